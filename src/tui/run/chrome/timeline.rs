//! The timeline: the time that is shown, the next event, and the position in the recording.

use crate::run::chrome::Ctx;
use crate::run::history;
use crate::run::time::{TimeCursor, TimelineMark, time_of_day};
use crate::run::{RunTarget, Target, ViewState};
use rankdeck_core::model::EventTone;
use rankdeck_kit::{Role, put, put_right, text, width};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Cells that the time and its distance take at least, next to the keys.
const APART: usize = 20;

/// Rows that the bar takes on a screen of this height.
pub fn height(view: &ViewState, rows: u16) -> u16 {
    match view.moment.cursor {
        None => 0,
        Some(_) if rows < 24 => 1,
        Some(_) => 2,
    }
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.time;
    let Some(cursor) = ctx.view.moment.cursor.as_ref().filter(|_| !area.is_empty()) else { return };
    let mut left = vec![clock(ctx, cursor), Span::raw(" ")];
    let cells = usize::from(area.width);
    left.extend(present(ctx, cells.saturating_sub(width(&left))));
    let roomy = area.width >= 110;
    let keys = keys(cursor, roomy, cells.saturating_sub(width(&left)));
    let room = cells.saturating_sub(width(&left) + text::width(keys) + 3);
    let apart = apart(cursor, roomy);
    let near = near(ctx, cursor, room.saturating_sub(text::width(&apart) + 3));
    if !near.is_empty() {
        left.extend(near);
        left.push(Span::raw("   "));
    }
    // Half of a number would be another one.
    if text::width(&apart) <= room {
        left.push(ctx.s(apart, Role::Dim));
    }
    let taken = width(&left);
    put(buf, area, 0, Line::from(left));
    put_right(buf, area, 0, taken, vec![ctx.s(keys, Role::Dim)]);
    if area.height > 1 {
        let below = Rect { y: area.y + 1, height: 1, ..area };
        put(buf, below, 0, Line::from(line(ctx, cursor, below)));
    }
}

/// The time that is shown, and the playback speed.
pub fn clock(ctx: &Ctx<'_>, cursor: &TimeCursor) -> Span<'static> {
    let glyphs = ctx.glyphs();
    let sign = match cursor.speed {
        Some(speed) => format!("{} {speed}x", glyphs.pick("▶", ">")),
        None => glyphs.pick("⏸", "=").to_owned(),
    };
    let clock = time_of_day(cursor.wall_time(cursor.at), ctx.view.style.utc_offset_s);
    let style = ctx.theme.style(Role::Warn).add_modifier(Modifier::REVERSED | Modifier::BOLD);
    Span::styled(format!(" {sign} {clock} "), style)
}

/// The keys, as many as leave room for the time.
fn keys(cursor: &TimeCursor, roomy: bool, cells: usize) -> &'static str {
    let forms = match (cursor.live, cursor.over) {
        (true, false) => {
            [", . 1s  < > event  T time  esc live ", ", . < > T  esc live ", "< > T  esc live ", "esc live "]
        }
        (true, true) => {
            [", . 1s  < > event  T time  esc now ", ", . < > T  esc now ", "< > T  esc now ", "esc now "]
        }
        (false, _) => {
            [", . 1s  < > event  T time  P play ", ", . < > T  P play ", "< > T  P play ", "P play "]
        }
    };
    let from = usize::from(!roomy);
    let fits = forms[from..].iter().find(|form| text::width(form) + APART < cells);
    fits.unwrap_or(&forms[forms.len() - 1])
}

/// The distance to live, or to the end.
fn apart(cursor: &TimeCursor, roomy: bool) -> String {
    let ahead = words::duration_ms(cursor.end.since(cursor.at));
    match (cursor.live, cursor.over) {
        (true, true) if cursor.at >= cursor.end => "end of the run".into(),
        (true, true) => format!("{ahead} before the end"),
        (true, false) if roomy => format!("live is {ahead} ahead"),
        (true, false) => format!("live {ahead} ahead"),
        (false, _) if cursor.at >= cursor.end => "end of the recording".into(),
        (false, _) => format!("{ahead} before the end"),
    }
}

/// The live status in the longest form that fits: playback does not hide a current problem.
pub fn present(ctx: &Ctx<'_>, cells: usize) -> Vec<Span<'static>> {
    let cursor = ctx.view.moment.cursor.as_ref();
    let Some(behind) = cursor.and_then(|cursor| cursor.behind.as_ref()) else { return Vec::new() };
    let role = history::role(behind.tone);
    let style = match behind.tone {
        EventTone::Bad => ctx.theme.bad.add_modifier(Modifier::REVERSED),
        EventTone::Info | EventTone::Good | EventTone::Warn => ctx.theme.style(role),
    };
    let (sign, label) = (ctx.glyphs().tone(role), words::clean(&behind.label));
    let more = if behind.more > 0 { format!(" +{}", behind.more) } else { String::new() };
    let forms = [format!(" now {sign} {label}{more} "), format!(" now {sign} {label} ")];
    let form = forms.iter().find(|form| text::width(form) <= cells);
    let form = form.cloned().unwrap_or_else(|| ctx.cut(&forms[1], cells));
    vec![Span::styled(form, style), Span::raw(" ")]
}

/// The last event, or the next one if it is nearer.
fn near(ctx: &Ctx<'_>, cursor: &TimeCursor, cells: usize) -> Vec<Span<'static>> {
    // Routine events are shown only at their own time.
    let is_shown = |mark: &&TimelineMark| !mark.routine || mark.at == cursor.at;
    let at_it = cursor.marks.iter().rev().filter(is_shown).find(|mark| mark.at <= cursor.at);
    let next = cursor.marks.iter().filter(is_shown).find(|mark| mark.at > cursor.at);
    let (mark, word) = match (at_it, next) {
        (Some(last), Some(next)) if cursor.at.since(last.at) > next.at.since(cursor.at) => (next, "before"),
        (Some(last), _) => (last, "after"),
        (None, Some(next)) => (next, "before"),
        (None, None) => return Vec::new(),
    };
    let apart = match word {
        "before" => mark.at.since(cursor.at),
        _ => cursor.at.since(mark.at),
    };
    let role = history::role(mark.tone);
    let head = format!("{} {word} ", words::duration_ms(apart));
    let room = cells.saturating_sub(text::width(&head) + 2);
    if room < 8 {
        return Vec::new();
    }
    vec![
        ctx.s(head, Role::Text),
        ctx.s(format!("{} ", ctx.glyphs().tone(role)), role),
        ctx.s(ctx.cut(&words::clean(&mark.text), room), role),
    ]
}

/// The recording as a line, with its events and the cursor.
fn line(ctx: &Ctx<'_>, cursor: &TimeCursor, area: Rect) -> Vec<Span<'static>> {
    let cells = usize::from(area.width);
    let glyphs = ctx.glyphs();
    let clock = |at| time_of_day(cursor.wall_time(at), ctx.view.style.utc_offset_s);
    let length = words::duration_ms(cursor.end.since(cursor.start));
    let (begin, end) =
        (format!(" {} ", clock(cursor.start)), format!(" {}  recording {length} ", clock(cursor.end)));
    let wide = cells.saturating_sub(begin.len() + end.len() + 2).max(1);
    let x = area.x + begin.len() as u16 + 1;
    let bar = Rect { x, width: wide as u16, ..area }.intersection(area);
    ctx.target(bar, Target::Own(RunTarget::Recording(cursor.start, cursor.end)));
    let whole = cursor.end.since(cursor.start).max(1) as f64;
    let place = |at: Timestamp| {
        let share = at.since(cursor.start) as f64 / whole;
        ((share * (wide - 1) as f64).round() as usize).min(wide - 1)
    };
    let mut row: Vec<(&'static str, Role)> = vec![(glyphs.pick("─", "-"), Role::Dim); wide];
    let mut rank = vec![0; wide];
    for mark in cursor.marks.iter().filter(|mark| !mark.routine) {
        let grave = match mark.tone {
            EventTone::Info => continue,
            EventTone::Good => 1,
            EventTone::Warn => 2,
            EventTone::Bad => 3,
        };
        let role = history::role(mark.tone);
        let cell = place(mark.at);
        if rank[cell] < grave {
            rank[cell] = grave;
            row[cell] = (glyphs.tone(role), role);
        }
    }
    row[place(cursor.at)] = (glyphs.pick("●", "O"), Role::Accent);
    let mut spans = vec![ctx.s(begin, Role::Dim), ctx.s(glyphs.pick("├", "|"), Role::Dim)];
    spans.extend(row.into_iter().map(|(sign, role)| ctx.s(sign, role)));
    spans.push(ctx.s(glyphs.pick("┤", "|"), Role::Dim));
    spans.push(ctx.s(end, Role::Dim));
    spans
}
