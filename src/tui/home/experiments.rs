//! The page of experiments: the files, and the plan of the selected one on the hosts.

use super::model::Home;
use super::pen::{Pen, paragraph, rule};
use super::state::HomeView;
use crate::text;
use crate::theme::Role;
use crate::widgets::put;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Where the rows are: the upper half; the plan stands below.
pub(super) fn list_area(page: Rect) -> Rect {
    Rect { y: page.y + 1, height: (page.height / 2).saturating_sub(1), ..page }
}

pub(super) fn draw(pen: &Pen<'_>, buf: &mut Buffer, page: Rect, home: &Home, view: &HomeView) {
    let list = list_area(page);
    if home.experiments.is_empty() {
        let area = Rect { x: page.x + 2, width: page.width.saturating_sub(4), ..page };
        let lines = [
            ("no experiment in configs/ or in this folder".to_owned(), Role::Strong),
            ("`rankdeck init` writes one for a script of yours".to_owned(), Role::Dim),
        ];
        paragraph(pen, buf, area, &lines, 0);
        return;
    }
    let widest = |of: fn(&super::Experiment) -> &str, most: usize| {
        home.experiments.iter().map(|one| text::width(of(one))).max().unwrap_or(0).clamp(8, most)
    };
    let (file, name) = (widest(|one| &one.path, 40), widest(|one| &one.name, 24));
    let head =
        format!("  {} {} {} WHAT", pen.left("FILE", file), pen.left("NAME", name), pen.right("STEPS", 12));
    put(buf, page, 0, Line::from(pen.s(head, Role::Dim)));
    for (at, one) in home.experiments.iter().enumerate().skip(view.top[1]).take(list.height.into()) {
        let selected = view.experiment.as_ref() == Some(&one.path);
        let goal = if one.total_steps > 0 { words::count(one.total_steps) } else { text::NONE.into() };
        let mut spans = vec![
            pen.cursor(selected, false),
            pen.s(pen.left(&one.path, file), if selected { Role::Accent } else { Role::Text }),
            Span::raw(" "),
            pen.s(pen.left(&one.name, name), Role::Text),
            pen.s(format!(" {} ", pen.right(&goal, 12)), Role::Text),
        ];
        let room = usize::from(list.width).saturating_sub(crate::widgets::width(&spans));
        spans.push(match &one.wrong {
            Some(wrong) => pen.s(pen.cut(wrong, room), Role::Bad),
            None => pen.s(pen.cut(&one.what, room), Role::Dim),
        });
        pen.row(buf, list, at - view.top[1], Line::from(spans), selected);
    }
    let below = Rect { y: list.bottom(), height: page.bottom().saturating_sub(list.bottom()), ..page };
    plan(pen, buf, below, home, view.experiment.as_deref().unwrap_or_default());
}

/// The plan of a file.
pub(super) fn plan(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home, path: &str) {
    if area.height < 2 {
        return;
    }
    rule(pen, buf, area, "plan");
    let inside =
        Rect { x: area.x + 2, y: area.y + 1, width: area.width.saturating_sub(3), height: area.height - 1 };
    let lines: Vec<(String, Role)> = match home.draft.as_ref().filter(|draft| draft.path == path) {
        Some(draft) => {
            let role = if draft.fits { Role::Text } else { Role::Bad };
            draft
                .lines
                .iter()
                .enumerate()
                .map(|(i, line)| (line.clone(), if i == 0 { role } else { Role::Text }))
                .collect()
        }
        None => vec![("...".into(), Role::Dim)],
    };
    paragraph(pen, buf, inside, &lines, 0);
}
