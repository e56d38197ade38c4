//! A link's question: an unknown host key, a passphrase, a password. What is typed is never shown.

use crate::state::Ask;
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Answers about a host key.
const NO: &str = "no, refuse";
const YES: &str = "yes, remember it";

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, ask: &Ask) {
    let host = ctx.live.hosts.get(ask.node.index()).map_or("?", |host| host.name.as_str());
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(70);
    let fact = |label: &str, value: &str| {
        Line::from(vec![
            ctx.s(format!("{label:<12}"), Role::Dim),
            ctx.s(ctx.cut(&words::clean(value), cells.saturating_sub(12)), Role::Strong),
        ])
    };
    let words = |text: &str, role| -> Vec<Line<'static>> {
        text::wrap(&words::clean(text), cells).into_iter().map(|line| Line::from(ctx.s(line, role))).collect()
    };
    let (title, mut lines) = match &ask.prompt {
        Prompt::UnknownHostKey { host: address, key_type, fingerprint } => {
            let mut lines = words(
                "This host's key is not in known_hosts. Compare the fingerprint with what the host's owner told you.",
                Role::Text,
            );
            lines.push(Line::default());
            lines.push(fact("host", address));
            lines.push(fact("key type", key_type));
            lines.push(fact("fingerprint", fingerprint));
            lines.push(Line::default());
            (format!("{host}: trust this host key?"), lines)
        }
        Prompt::Passphrase { key } => {
            let mut lines = words("This private key is encrypted.", Role::Text);
            lines.push(fact("key", key));
            lines.push(Line::default());
            (format!("{host}: passphrase"), lines)
        }
        Prompt::Password { account, text } => {
            let mut lines = vec![fact("account", account)];
            lines.extend(words(text, Role::Text));
            lines.push(Line::default());
            (format!("{host}: password"), lines)
        }
    };
    lines.push(match ask.prompt {
        Prompt::UnknownHostKey { .. } => answers(ctx, ask.yes),
        Prompt::Passphrase { .. } | Prompt::Password { .. } => masked(ctx, ask, cells),
    });
    let keys = match ask.prompt {
        Prompt::UnknownHostKey { .. } => "",
        _ => "enter answers, esc refuses",
    };
    let size = (cells as u16, lines.len() as u16);
    let inner = frame::popup(ctx, buf, size, Role::Warn, &title, keys);
    // The answer stays visible on a screen that is too low for the whole question.
    let skip = lines.len().saturating_sub(usize::from(inner.height));
    let y = inner.y + (lines.len() - skip).saturating_sub(1) as u16;
    if matches!(ask.prompt, Prompt::UnknownHostKey { .. }) {
        let mut x = inner.right();
        for (key, label) in [('y', YES), ('n', NO)] {
            let wide = label.len() as u16 + 4;
            x = x.saturating_sub(wide);
            let place = Rect { x, y, width: wide, height: 1 }.intersection(inner);
            ctx.target(place, Target::Key(KeyEvent::from(KeyCode::Char(key))));
            x = x.saturating_sub(2);
        }
    }
    for (row, line) in lines.into_iter().skip(skip).enumerate() {
        put(buf, inner, row, line);
    }
}

fn answers(ctx: &Ctx<'_>, yes: bool) -> Line<'static> {
    let option = |key: &str, label: &str, marked: bool| {
        if marked {
            Span::styled(format!("[{key} {label}]"), ctx.theme.chosen)
        } else {
            ctx.s(format!(" {key} {label} "), Role::Text)
        }
    };
    Line::from(vec![option("n", NO, !yes), Span::raw("  "), option("y", YES, yes)]).right_aligned()
}

/// A dot per character, the newest at the right when there are many.
fn masked(ctx: &Ctx<'_>, ask: &Ask, cells: usize) -> Line<'static> {
    let typed = ask.input.chars().count().min(cells.saturating_sub(4));
    let dots = ctx.glyphs().pick("•", "*").repeat(typed);
    Line::from(vec![
        ctx.s("> ", Role::Accent),
        ctx.s(dots, Role::Strong),
        ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent),
    ])
}
