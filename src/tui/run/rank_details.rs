//! Details of a rank, from one list of labeled values: drawn as a card, below the rank table, copied as text.

use crate::run::card::{self, LabeledValue};
use crate::run::command::KeyNames;
use crate::run::staleness;
use crate::run::{DrawCtx, advice, ranks};
use rankdeck_core::model::{Model, RankInspection, RankModel};
use rankdeck_kit::{Glyphs, Role, plot, put, put_lines, text};
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Lines of the log on the card.
pub const LOG_LINES: usize = 12;

/// `keys`: advice names keys; without them, commands.
fn details(
    model: &Model,
    rank: &RankModel,
    now: Timestamp,
    glyphs: Glyphs,
    keys: Option<KeyNames<'_>>,
) -> Vec<LabeledValue> {
    let state = ranks::state_at(model, rank, glyphs, now);
    let was = staleness::was(model, rank, now);
    let mut list: Vec<LabeledValue> =
        vec![("state", format!("{} {} {}", state.letter, state.glyph, state.word), state.role)];
    if let Some(verdict) = ranks::verdict_of(model, rank.rank) {
        list.push(("verdict", words::clean(&verdict.reason), ranks::severity_role(verdict.severity)));
        for evidence in verdict.card.evidence() {
            list.push(("", format!("{} {}", glyphs.pick("•", "-"), words::clean(&evidence)), Role::Text));
        }
        if !verdict.card.actions.is_empty() {
            let hint = match keys {
                Some(keys) => {
                    let best = verdict.card.actions.iter().take(2);
                    best.map(|best| advice::line(best, keys)).collect::<Vec<_>>().join("; ")
                }
                None => verdict.card.hint(),
            };
            list.push(("hint", words::clean(&hint), Role::Accent));
        }
    }
    if let Some((error, hint)) = &rank.error {
        list.push(("error", words::clean(error), Role::Bad));
        if !hint.is_empty() {
            list.push(("hint", words::clean(hint), Role::Accent));
        }
    }
    list.push((
        "place",
        format!("node_rank {} ({}), local_rank {}", rank.node, rank.host, rank.local_rank),
        Role::Text,
    ));
    list.push(("device", device(model, rank, was.is_none()), Role::Text));
    process(rank, now, was.as_deref(), &mut list);
    if let Some(inspection) = &rank.inspection {
        stack(inspection, now, &mut list);
    }
    page(rank, was.as_deref(), &mut list);
    counters(rank, was.as_deref(), &mut list);
    speed(model, rank, now, &mut list);
    list
}

/// What it computes on; `gauged`: with what that does now.
fn device(model: &Model, rank: &RankModel, gauged: bool) -> String {
    let mut parts = Vec::new();
    if !rank.device.is_empty() {
        parts.push(rank.device.clone());
    }
    match (rank.gpu, ranks::gpu(model, rank)) {
        (_, Some(gpu)) => {
            parts.push(format!("gpu {} {}", gpu.index, gpu.name));
            if gauged {
                gauges(gpu, &mut parts);
            }
        }
        (Some(gpu), None) => parts.push(format!("gpu {gpu}")),
        (None, None) if parts.is_empty() => parts.push("cpu".into()),
        (None, None) => {}
    }
    parts.join(", ")
}

fn gauges(gpu: &GpuSample, parts: &mut Vec<String>) {
    parts.extend(gpu.utilization.map(|percent| format!("{percent}%")));
    if gpu.memory_total > 0 {
        parts.push(format!("{}/{}", words::bytes(gpu.memory_used), words::bytes(gpu.memory_total)));
    }
    parts.extend(gpu.power_w.map(|watts| format!("{watts:.0}W")));
    parts.extend(gpu.temperature_c.map(|degrees| format!("{degrees}C")));
    parts.extend(gpu.sm_clock_mhz.map(|clock| format!("{clock}MHz")));
    if !gpu.throttle.is_empty() {
        parts.push(format!("throttle: {}", gpu.throttle.join(", ")));
    }
}

/// What the letter of a process's state means.
pub fn state_word(letter: char) -> &'static str {
    match letter {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in the kernel",
        'T' | 't' => "suspended",
        'Z' => "zombie",
        'X' => "gone",
        _ => "unknown",
    }
}

/// `was`: what is known is of the past.
fn process(rank: &RankModel, now: Timestamp, was: Option<&str>, list: &mut Vec<LabeledValue>) {
    let Some(sample) = &rank.sample else {
        let pid = rank.pid.map_or("not started".into(), |pid| format!("pid {pid}, not sampled yet"));
        list.push(("process", pid, Role::Dim));
        return;
    };
    let letter = state_word(sample.state);
    let wchan =
        if sample.wchan.is_empty() { String::new() } else { format!(", waiting in {}", sample.wchan) };
    let children = match sample.children {
        0 => String::new(),
        1 => ", 1 child".into(),
        n => format!(", {n} children"),
    };
    let before = if was.is_some() { "was " } else { "" };
    list.push((
        "process",
        format!("pid {}, {before}{} ({letter}){children}{wchan}", sample.pid, sample.state),
        Role::Text,
    ));
    if let Some(inner) = rank.inner_ranks() {
        list.push(("spawned", inner, Role::Text));
    }
    let gpu =
        sample.gpu_memory.map_or(String::new(), |bytes| format!(", GPU memory {}", words::bytes(bytes)));
    list.push((
        "use",
        format!("{before}{:.0}% of one core, resident {}{gpu}", sample.cpu_percent, words::bytes(sample.rss)),
        Role::Text,
    ));
    if let Some(was) = was {
        list.push(("sampled", format!("last {was}"), Role::Warn));
    } else if let Some(at) = rank.sampled {
        let age = now.since(at);
        let role = if age > staleness::SILENT_MS { Role::Warn } else { Role::Dim };
        list.push(("sampled", format!("{} ago", words::duration_ms(age)), role));
    }
}

/// What its agent found in an inspection.
fn stack(inspection: &RankInspection, now: Timestamp, list: &mut Vec<LabeledValue>) {
    let side = &inspection.side;
    let age = format!("inspected {} ago", words::duration_ms(now.since(inspection.at)));
    let blocked =
        if side.blocked_on.is_empty() { age } else { format!("{age}, blocked on {}", side.blocked_on) };
    list.push(("stack", words::clean(&blocked), Role::Strong));
    list.extend(side.stack.iter().map(|frame| ("", words::clean(frame), Role::Text)));
    list.extend(inspection.notes.iter().map(|note| ("", words::clean(note), Role::Dim)));
    list.extend(side.children.iter().map(|child| ("child", words::clean(child), Role::Text)));
}

fn page(rank: &RankModel, was: Option<&str>, list: &mut Vec<LabeledValue>) {
    let Some(page) = ranks::page(rank) else {
        if rank.sample.is_some() {
            list.push(("phase", "unknown: the program writes no status page".into(), Role::Dim));
        }
        return;
    };
    let phase = format!("{} for {}", page.phase.name(), words::duration_ms(page.phase_age_ms));
    let progress = format!("progress {}", words::count(page.phase_progress));
    let beat = words::duration_ms(page.heartbeat_age_ms);
    let line = match was {
        Some(was) => format!("was {phase}, {progress}, {was}; heartbeat {beat} earlier"),
        None => format!("{phase}, {progress}, heartbeat {beat} ago"),
    };
    list.push(("phase", line, Role::Text));
    let collective = &page.collective;
    let line = if collective.entered == 0 {
        "none yet".to_string()
    } else {
        let age = words::duration_ms(collective.age_ms);
        let left = words::count(collective.left);
        let place = match (ranks::inside(collective), was) {
            (true, None) => format!("inside for {age}, last left #{left}"),
            (true, Some(was)) => format!("was inside for {age}, {was}; last left #{left}"),
            (false, None) => format!("left {age} ago"),
            (false, Some(_)) => format!("left {age} before"),
        };
        format!(
            "#{} {} \"{}\" {} {}, {place}",
            words::count(collective.entered),
            collective.call.op,
            collective.call.tag,
            words::bytes(collective.call.bytes),
            collective.call.dtype,
        )
    };
    list.push(("collective", line, Role::Text));
}

fn counters(rank: &RankModel, was: Option<&str>, list: &mut Vec<LabeledValue>) {
    if let Some(page) = ranks::page(rank) {
        // The hook in a script sees at most steps of optimizers.
        let line = match (page.by_hook, page.iteration()) {
            (false, _) => format!(
                "iteration {}, env_step {}, samples {}, episodes {}, updates {}",
                words::count(page.train_iter),
                words::count(page.env_step),
                words::count(page.samples),
                words::count(page.episodes),
                words::count(page.updates),
            ),
            (true, Some(steps)) => format!("{} optimizer steps", words::count(steps)),
            (true, None) => "no optimizer step yet: only collectives are counted".into(),
        };
        list.push((if was.is_some() { "last" } else { "now" }, line, Role::Text));
    }
    if let Some(own) = &rank.own {
        list.push((
            "reported",
            format!(
                "iteration {}: env_step {}, samples {}, episodes {}, collecting {}",
                words::count(own.train_iter),
                words::count(own.env_step),
                words::count(own.samples),
                words::count(own.episodes),
                words::duration(own.duration_s),
            ),
            Role::Text,
        ));
    }
}

fn speed(model: &Model, rank: &RankModel, now: Timestamp, list: &mut Vec<LabeledValue>) {
    let Some(own) = staleness::speed(model, rank, now) else {
        if rank.steps_per_s.is_some() {
            list.push(("speed", text::NONE.into(), Role::Dim));
        }
        return;
    };
    let mut speeds: Vec<f64> =
        model.ranks.iter().filter_map(|rank| staleness::speed(model, rank, now)).collect();
    speeds.sort_by(f64::total_cmp);
    let beside = match speeds.get(speeds.len() / 2).filter(|_| model.ranks.len() > 1) {
        Some(median) => format!(" (median of all ranks {})", text::si(*median)),
        None => String::new(),
    };
    list.push(("speed", format!("{} steps/s{beside}", text::si(own)), Role::Text));
}

/// Its latest iterations: how long they took, and how long it waited for others; the last as text.
fn paces(rank: &RankModel) -> Vec<(&'static str, Vec<f64>, String)> {
    let latest = rank.watch_history.latest_iterations();
    let Some((seconds, share)) = latest.last() else { return Vec::new() };
    let last = [words::duration(*seconds), format!("{:.0}%", share * 100.0)];
    let (seconds, shares) = latest.iter().copied().unzip();
    let [last_seconds, last_share] = last;
    vec![("iterations", seconds, last_seconds), ("waits", shares, last_share)]
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
}

/// Rows of the card at this width.
pub fn rows(model: &Model, rank: Rank, cells: usize, now: Timestamp, keys: KeyNames<'_>) -> usize {
    ranks::find(model, rank).map_or(0, |rank| {
        let trends = usize::from(!rank.cpu_history.is_empty())
            + usize::from(!rank.gpu_history.is_empty())
            + paces(rank).len();
        let facts = details(model, rank, now, Glyphs::Ascii, Some(keys));
        card::value_rows(&facts, cells) + trends + 2 + rank.log.lines.len().min(LOG_LINES)
    })
}

/// The lines of the card, with the last ones of the log: as many as `log` allows.
pub fn lines(
    cx: &DrawCtx<'_>,
    (model, keys): (&Model, KeyNames<'_>),
    rank: &RankModel,
    cells: usize,
    log: impl Fn(usize) -> usize,
) -> Vec<Line<'static>> {
    let values = details(model, rank, cx.now, cx.glyphs(), Some(keys));
    let mut lines = card::value_lines(cx, &values, cells);
    let before = if staleness::was(model, rank, cx.now).is_some() { " was" } else { "" };
    let room = cells.saturating_sub(18 + before.len()).min(60);
    for (label, history) in [("cpu", &rank.cpu_history), ("gpu", &rank.gpu_history)] {
        if let Some(last) = history.back() {
            let values = history.iter().map(|value| f64::from(*value));
            let spark = plot::spark(values, room, 0.0, 100.0, cx.glyphs());
            lines.push(Line::from(vec![
                cx.s(format!("{:<12}", format!("{label} trend")), Role::Dim),
                cx.s(spark, Role::Accent),
                cx.s(format!("{before} {last:.0}%"), Role::Text),
            ]));
        }
    }
    for (label, values, last) in paces(rank) {
        let top = if label == "waits" { 1.0 } else { most(&values) };
        let spark = plot::spark(values.iter().copied(), room, 0.0, top, cx.glyphs());
        lines.push(Line::from(vec![
            cx.s(format!("{label:<12}"), Role::Dim),
            cx.s(spark, Role::Accent),
            cx.s(format!("{before} {last}"), Role::Text),
        ]));
    }
    lines.push(Line::default());
    let held = rank.log.lines.len();
    lines.push(Line::from(
        cx.s(format!("log, last of {} lines", words::count(rank.log.next.max(held as u64))), Role::Dim),
    ));
    let most = log(lines.len());
    for line in rank.log.lines.iter().skip(held.saturating_sub(most)) {
        lines.push(Line::from(
            cx.s(format!("  {}", cx.cut(&words::clean(&line.text), cells.saturating_sub(2))), Role::Text),
        ));
    }
    lines
}

/// Whose card it is, and whether all is well with it.
pub fn title(cx: &DrawCtx<'_>, model: &Model, rank: &RankModel) -> (String, Role) {
    let state = ranks::state_at(model, rank, cx.glyphs(), cx.now);
    let role = if state.trouble { Role::Bad } else { Role::Accent };
    (format!("rank {} on {}", rank.rank, rank.host), role)
}

/// Below a table that leaves room: the card of its selected rank, with as much of the log as fits.
pub fn below(
    cx: &DrawCtx<'_>,
    (model, keys): (&Model, KeyNames<'_>),
    buf: &mut Buffer,
    area: Rect,
    rank: &RankModel,
) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let (title, role) = title(cx, model, rank);
    let dash = cx.glyphs().border().horizontal_top;
    let rest = usize::from(area.width).saturating_sub(text::width(&title) + 4);
    let rule = [
        cx.s(dash.repeat(2), Role::Dim),
        cx.s(format!(" {title} "), role),
        cx.s(dash.repeat(rest), Role::Dim),
    ];
    put(buf, area, 0, Line::from(rule.to_vec()));
    let cells = usize::from(area.width.saturating_sub(2));
    let height = usize::from(area.height.saturating_sub(1));
    let inner = Rect { x: area.x + 2, y: area.y + 1, width: cells as u16, height: height as u16 };
    let lines = lines(cx, (model, keys), rank, cells, |rows| height.saturating_sub(rows));
    put_lines(buf, inner, lines);
}

/// As plain text, for the clipboard.
pub fn plain(model: &Model, rank: Rank, now: Timestamp) -> String {
    let Some(rank) = ranks::find(model, rank) else { return String::new() };
    let mut lines = vec![format!("rank {} on {}", rank.rank, rank.host)];
    for (label, text, _) in details(model, rank, now, Glyphs::Ascii, None) {
        lines.push(format!("{label:<12}{text}"));
    }
    lines.join("\n")
}
