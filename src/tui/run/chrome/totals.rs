//! The totals: all-reduced counters next to the sum of the ranks' own, with `=` or `≠`.

use crate::run::chrome::Ctx;
use crate::run::staleness;
use rankdeck_core::model::{Model, OwnMetrics, TrainingProgress};
use rankdeck_kit::{Role, put, text, width};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// The return of the last 100 episodes.
const MEAN_RETURN: &str = "mean return";
/// The return of the episodes of the latest iterations.
const EPISODE_RETURN: &str = "episode return";

struct Column {
    label: &'static str,
    total: String,
    sum: String,
    equal: bool,
}

/// Draws three lines.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.totals;
    if area.is_empty() {
        return;
    }
    let progress = ctx.model.progress.as_ref();
    if let (None, Some(own)) = (progress, &ctx.model.own) {
        own_values(ctx, buf, own);
        return facts(ctx, buf, area, 60);
    }
    let columns = columns(progress);
    let reduced = progress.is_none_or(|progress| progress.reduced);
    let wide: Vec<usize> = columns
        .iter()
        .map(|column| column.label.len().max(column.total.len()).max(column.sum.len()) + 3)
        .collect();
    // A column that does not fit goes whole: no number is cut.
    let mut room = usize::from(area.width).saturating_sub(14);
    let fitting = wide.iter().take_while(|wide| {
        let fits = **wide <= room;
        room = room.saturating_sub(**wide);
        fits
    });
    let shown = fitting.count();
    let iteration = progress
        .map_or(String::new(), |progress| format!("iter {}", text::count_in(progress.totals.train_iter, 7)));
    let late = progress.and_then(|progress| staleness::joined_late(ctx.model, progress, ctx.now));
    let iteration = match late {
        Some(age) => ctx.s(format!(" {:<12}", format!("{} ago", words::duration_ms(age))), Role::Warn),
        None => ctx.s(format!(" {iteration:<12}"), Role::Dim),
    };
    let strong = if late.is_some() { Role::Dim } else { Role::Strong };
    let sum = ctx.s(format!(" {:<12}", "sum of ranks"), Role::Dim);
    let mut rows = if reduced {
        [vec![iteration], vec![ctx.s(format!(" {:<12}", "all-reduced"), Role::Dim)], vec![sum]]
    } else {
        [vec![iteration], vec![sum], vec![ctx.s(" not all-reduced".to_owned(), Role::Dim)]]
    };
    for (column, wide) in columns.iter().zip(&wide).take(shown) {
        let glyphs = ctx.glyphs();
        rows[0].push(ctx.s(text::right(column.label, *wide, glyphs), Role::Dim));
        rows[1].push(ctx.s(text::right(&column.total, *wide, glyphs), strong));
        if progress.is_some() && reduced {
            let (sign, role) = if column.equal {
                ("=", if late.is_some() { Role::Dim } else { Role::Good })
            } else {
                (glyphs.pick("≠", "!="), Role::Bad)
            };
            let pad = wide.saturating_sub(column.sum.len() + 1);
            rows[2].push(ctx.s(text::right(sign, pad, glyphs), role));
            let role = match (column.equal, late) {
                (false, _) => Role::Bad,
                (true, Some(_)) => Role::Dim,
                (true, None) => Role::Text,
            };
            rows[2].push(ctx.s(format!(" {}", column.sum), role));
        } else if reduced {
            rows[2].push(ctx.s(text::right(&column.sum, *wide, glyphs), Role::Dim));
        }
    }
    let taken = rows.iter().map(|row| width(row)).max().unwrap_or(0);
    for (i, row) in rows.into_iter().enumerate() {
        put(buf, area, i, Line::from(row));
    }
    facts(ctx, buf, area, taken + 3);
}

/// Values that a program reports, marked as those of one rank.
fn own_values(ctx: &Ctx<'_>, buf: &mut Buffer, own: &OwnMetrics) {
    let area = ctx.geo.totals;
    let number = |value: Option<f64>| value.map_or_else(|| text::NONE.to_string(), text::value);
    let step = own.env_step.map_or_else(|| text::NONE.to_string(), |step| text::count_in(step, 13));
    let mut row = vec![Span::raw(" ")];
    let speed = own.steps_per_s.filter(|_| !staleness::is_over(ctx.model));
    for (label, value) in
        [("env_step", step), (EPISODE_RETURN, number(own.return_mean)), ("steps/s", number(speed))]
    {
        row.extend(ctx.fact(label, value));
        row.push(Span::raw("  "));
    }
    put(buf, area, 0, Line::from(row));
    let age = own.since(ctx.now);
    let age = if age > staleness::OWN_LATE_MS {
        format!("{} ago; ", words::duration_ms(age))
    } else {
        String::new()
    };
    let word = format!(" {age}rank {} only, from its {}; not all-reduced", own.rank, own.source);
    put(buf, area, 1, Line::from(ctx.s(word, Role::Warn)));
    if let Some(progress) = &own.progress {
        let mut row = vec![Span::raw(" ")];
        row.extend(ctx.fact("progress", progress.shown.amount()));
        if !progress.shown.label.is_empty() {
            row.push(ctx.s(format!("  {}", progress.shown.label), Role::Dim));
        }
        put(buf, area, 2, Line::from(row));
    }
}

fn columns(progress: Option<&TrainingProgress>) -> Vec<Column> {
    let Some(progress) = progress else {
        let none = |label| Column { label, total: text::NONE.into(), sum: text::NONE.into(), equal: true };
        return vec![none("env_step"), none("samples"), none("episodes"), none("collecting")];
    };
    let (totals, sum) = (&progress.totals, &progress.sum);
    let number = |label, total: u64, sum: u64| Column {
        label,
        // Both numbers short or both long, so that they can be compared by eye.
        total: text::count_in(total, if sum.max(total) < 10_000_000_000 { 13 } else { 0 }),
        sum: text::count_in(sum, if sum.max(total) < 10_000_000_000 { 13 } else { 0 }),
        equal: total == sum,
    };
    vec![
        number("env_step", totals.env_step, sum.env_step),
        number("samples", totals.samples, sum.samples),
        number("episodes", totals.episodes, sum.episodes),
        Column {
            label: "collecting",
            total: words::duration(totals.duration_s),
            sum: words::duration(sum.duration_s),
            // A sum of f64 depends on its order; anything beyond rounding is a difference.
            equal: (totals.duration_s - sum.duration_s).abs() <= 1e-9 * totals.duration_s.abs().max(1.0),
        },
    ]
}

/// Master address, weights and returns, on the right as far as there is room.
fn facts(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, taken: usize) {
    let room = usize::from(area.width).saturating_sub(taken + 1);
    let model = ctx.model;
    let mut lines: [Vec<Span<'static>>; 3] = Default::default();
    if !model.run.master.is_empty() {
        lines[0] = ctx.fact("master", model.run.master.clone()).to_vec();
        if width(&lines[0]) > room {
            lines[0] = vec![ctx.s(model.run.master.clone(), Role::Text)];
        }
    }
    lines[1] = weights(ctx, room);
    let (name, training) = training_return(model);
    let evaluation = model.evals.back().map(|eval| eval.return_mean);
    if let Some(mean) = training.or(evaluation) {
        let names = if training.is_some() { [name, "return"] } else { ["eval", "eval"] };
        let forms: Vec<_> = names.iter().map(|name| ctx.fact(name, text::value(mean)).to_vec()).collect();
        let fits = forms.iter().find(|form| width(form) <= room).or(forms.last());
        lines[2] = fits.cloned().unwrap_or_default();
        if let (Some(_), Some(evaluation)) = (training, evaluation) {
            let mut more = vec![Span::raw("  ")];
            more.extend(ctx.fact("eval", text::value(evaluation)));
            if width(&lines[2]) + width(&more) <= room {
                lines[2].extend(more);
            }
        }
    }
    let wide = lines.iter().map(|line| width(line)).filter(|wide| *wide <= room).max().unwrap_or(0);
    for (row, line) in lines.into_iter().enumerate() {
        if !line.is_empty() && width(&line) <= room {
            let x = area.right().saturating_sub(wide as u16 + 1);
            put(buf, Rect { x, width: wide as u16, ..area }, row, Line::from(line));
        }
    }
}

/// The return of training with its name: over the last 100 episodes, as the field reports it, else over those
/// of the latest iterations.
fn training_return(model: &Model) -> (&'static str, Option<f64>) {
    let Some(progress) = &model.progress else { return (EPISODE_RETURN, None) };
    let last = model.latest.as_ref().and_then(|latest| latest.counters.return_last_100);
    match last.or(progress.totals.return_last_100) {
        Some(last) => (MEAN_RETURN, Some(last)),
        None => (EPISODE_RETURN, progress.return_mean),
    }
}

fn weights(ctx: &Ctx<'_>, room: usize) -> Vec<Span<'static>> {
    let Some(fingerprint) = &ctx.model.fingerprint else {
        return if room > 24 { vec![ctx.s("weights not compared yet", Role::Dim)] } else { Vec::new() };
    };
    let compared = text::count_in(fingerprint.compared, 7);
    let (sign, role) = if fingerprint.equal {
        ("equal", Role::Good)
    } else {
        (ctx.glyphs().pick("≠ DRIFT", "!= DRIFT"), Role::Bad)
    };
    let mut spans = vec![ctx.s("weights ", Role::Dim), ctx.s(sign, role)];
    let more = format!(" {compared} times");
    if fingerprint.equal && width(&spans) + more.len() <= room {
        spans.push(ctx.s(more, Role::Dim));
    }
    spans
}
