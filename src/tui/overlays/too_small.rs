//! Below the smallest size: what matters in words, and that stop and quit still work.

use crate::geometry::{MIN_HEIGHT, MIN_WIDTH};
use crate::panes::header;
use crate::ranks;
use crate::state::Overlay;
use crate::theme::Role;
use crate::widgets::{Ctx, put};
use rankdeck_types::link_state::Prompt;
use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

/// Draws the whole screen.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.area;
    let (state, role) = header::state(ctx, &ctx.live.run);
    let mut lines = vec![Line::from(vec![ctx.s("rankdeck ", Role::Accent), ctx.s(state, role)])];
    if let Some(verdict) = ranks::live_verdicts(ctx.live).next() {
        let who = verdict.rank.map_or_else(|| "run".to_string(), |rank| format!("rank {rank}"));
        let text = format!("{who}: {}", verdict.verdict.name());
        lines.push(Line::from(ctx.s(text, ranks::severity_role(verdict.severity))));
    }
    match ctx.view.overlay() {
        Some(Overlay::Confirm(confirm)) => {
            lines.push(Line::from(ctx.s(confirm.title.clone(), Role::Warn)));
            for (i, choice) in confirm.choices.iter().enumerate() {
                let text = format!("{} {}", choice.key, choice.label);
                let span = if i == confirm.selected {
                    Span::styled(format!("[{text}]"), ctx.theme.chosen)
                } else {
                    ctx.s(format!(" {text}"), Role::Text)
                };
                lines.push(Line::from(span));
            }
        }
        Some(Overlay::Ask(ask)) => {
            let text = match ask.prompt {
                Prompt::UnknownHostKey { .. } => "unknown host key: n refuses; enlarge to read it",
                Prompt::Passphrase { .. } => "passphrase: type, then enter",
                Prompt::Password { .. } => "password: type, then enter",
            };
            lines.push(Line::from(ctx.s(text, Role::Warn)));
        }
        _ => {
            lines.push(Line::from(
                ctx.s(format!("{}x{} is too small", area.width, area.height), Role::Strong),
            ));
            lines.push(Line::from(ctx.s(format!("needs {MIN_WIDTH}x{MIN_HEIGHT}"), Role::Dim)));
            lines.push(Line::from(vec![
                ctx.s("q", Role::Accent),
                ctx.s(" quit  ", Role::Dim),
                ctx.s("x", Role::Accent),
                ctx.s(" stop", Role::Dim),
            ]));
        }
    }
    // On the lowest screens the last line, which is the way out, wins.
    let skip = lines.len().saturating_sub(usize::from(area.height));
    let top = usize::from(area.height).saturating_sub(lines.len()) / 2;
    for (row, line) in lines.into_iter().skip(skip).enumerate() {
        put(buf, area, top + row, line.centered());
    }
}
