//! Everything known about one rank, from one list of facts: drawn as a card, copied as text.

use crate::fresh;
use crate::keys::Keymap;
use crate::overlays::{self, Fact, INSPECT_CELLS, evidence};
use crate::ranks;
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::{Ctx, meter, put};
use rankdeck_core::model::{Look, Model, RankModel};
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Lines of the log on the card.
const LOG_LINES: usize = 12;

/// `keymap`: what helps is told by its keys; as commands without one.
fn facts(
    model: &Model,
    rank: &RankModel,
    now: Timestamp,
    glyphs: Glyphs,
    keymap: Option<&Keymap>,
) -> Vec<Fact> {
    let state = ranks::state_at(model, rank, glyphs, now);
    let was = fresh::was(model, rank, now);
    let mut list: Vec<Fact> =
        vec![("state", format!("{} {} {}", state.letter, state.glyph, state.word), state.role)];
    if let Some(verdict) = ranks::verdict_of(model, rank.rank) {
        list.push(("verdict", words::clean(&verdict.reason), ranks::severity_role(verdict.severity)));
        for evidence in verdict.card.evidence() {
            list.push(("", format!("{} {}", glyphs.pick("•", "-"), words::clean(&evidence)), Role::Text));
        }
        if !verdict.card.actions.is_empty() {
            let hint = match keymap {
                Some(keymap) => {
                    let best = verdict.card.actions.iter().take(2);
                    best.map(|advice| evidence::advised(advice, keymap)).collect::<Vec<_>>().join("; ")
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
    if let Some(look) = &rank.look {
        stack(look, now, &mut list);
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
        'T' | 't' => "stopped",
        'Z' => "zombie",
        'X' => "gone",
        _ => "unknown",
    }
}

/// `was`: what is known is of the past.
fn process(rank: &RankModel, now: Timestamp, was: Option<&str>, list: &mut Vec<Fact>) {
    let Some(sample) = &rank.sample else {
        let pid = rank.pid.map_or("not started".into(), |pid| format!("pid {pid}, no sample yet"));
        list.push(("process", pid, Role::Dim));
        return;
    };
    let letter = state_word(sample.state);
    let wchan = if sample.wchan.is_empty() { String::new() } else { format!(", waits in {}", sample.wchan) };
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
    let gpu =
        sample.gpu_memory.map_or(String::new(), |bytes| format!(", on the GPU {}", words::bytes(bytes)));
    list.push((
        "use",
        format!("{before}{:.0}% of one core, resident {}{gpu}", sample.cpu_percent, words::bytes(sample.rss)),
        Role::Text,
    ));
    if let Some(was) = was {
        list.push(("sampled", format!("last {was}"), Role::Warn));
    } else if let Some(at) = rank.sampled {
        let age = now.since(at);
        let role = if age > fresh::UNHEARD_MS { Role::Warn } else { Role::Dim };
        list.push(("sampled", format!("{} ago", words::duration_ms(age)), role));
    }
}

/// What its agent saw when it looked closely.
fn stack(look: &Look, now: Timestamp, list: &mut Vec<Fact>) {
    let side = &look.side;
    let age = format!("seen {} ago", words::duration_ms(now.since(look.at)));
    let blocked =
        if side.blocked_on.is_empty() { age } else { format!("{age}, blocked on {}", side.blocked_on) };
    list.push(("stack", words::clean(&blocked), Role::Strong));
    list.extend(side.stack.iter().map(|frame| ("", words::clean(frame), Role::Text)));
    list.extend(look.notes.iter().map(|note| ("", words::clean(note), Role::Dim)));
    list.extend(side.children.iter().map(|child| ("child", words::clean(child), Role::Text)));
}

fn page(rank: &RankModel, was: Option<&str>, list: &mut Vec<Fact>) {
    let Some(page) = ranks::page(rank) else {
        if rank.sample.is_some() {
            list.push(("phase", "unknown: this program writes no status page".into(), Role::Dim));
        }
        return;
    };
    let phase = format!("{} for {}", page.phase.name(), words::duration_ms(page.phase_age_ms));
    let progress = format!("progress {}", words::count(page.phase_progress));
    let beat = words::duration_ms(page.heartbeat_age_ms);
    let told = match was {
        Some(was) => format!("was {phase}, {progress}, {was}; heartbeat {beat} earlier"),
        None => format!("{phase}, {progress}, heartbeat {beat} ago"),
    };
    list.push(("phase", told, Role::Text));
    let collective = &page.collective;
    let told = if collective.entered == 0 {
        "none yet".to_string()
    } else {
        let age = words::duration_ms(collective.age_ms);
        let left = words::count(collective.left);
        let place = match (ranks::inside(collective), was) {
            (true, None) => format!("inside for {age}, last left #{left}"),
            (true, Some(was)) => format!("was inside for {age}, {was}; last left #{left}"),
            (false, None) => format!("left {age} ago"),
            (false, Some(_)) => format!("had left it for {age}"),
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
    list.push(("collective", told, Role::Text));
}

fn counters(rank: &RankModel, was: Option<&str>, list: &mut Vec<Fact>) {
    if let Some(page) = ranks::page(rank) {
        // The hook in a script sees steps of optimisers at most.
        let told = match (page.by_hook, page.iteration()) {
            (false, _) => format!(
                "iteration {}, env_step {}, samples {}, episodes {}, updates {}",
                words::count(page.train_iter),
                words::count(page.env_step),
                words::count(page.samples),
                words::count(page.episodes),
                words::count(page.updates),
            ),
            (true, Some(steps)) => format!("{} steps of optimisers", words::count(steps)),
            (true, None) => "no optimiser has made a step: collectives are all that is counted".into(),
        };
        list.push((if was.is_some() { "at last" } else { "now" }, told, Role::Text));
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

fn speed(model: &Model, rank: &RankModel, now: Timestamp, list: &mut Vec<Fact>) {
    let Some(own) = fresh::speed(model, rank, now) else {
        if rank.steps_per_s > 0.0 {
            list.push(("speed", text::NONE.into(), Role::Dim));
        }
        return;
    };
    let mut speeds: Vec<f64> = model.ranks.iter().filter_map(|rank| fresh::speed(model, rank, now)).collect();
    speeds.sort_by(f64::total_cmp);
    let beside = match speeds.get(speeds.len() / 2).filter(|_| model.ranks.len() > 1) {
        Some(median) => format!(" (median of all ranks {})", text::si(*median)),
        None => String::new(),
    };
    list.push(("speed", format!("{} steps/s{beside}", text::si(own)), Role::Text));
}

/// Its latest iterations: how long they took, and how long it waited for others; the last as text.
fn paces(rank: &RankModel) -> Vec<(&'static str, Vec<f64>, String)> {
    let latest = rank.track.latest_iterations();
    let Some((seconds, share)) = latest.last() else { return Vec::new() };
    let told = [words::duration(*seconds), format!("{:.0}%", share * 100.0)];
    let (seconds, shares) = latest.iter().copied().unzip();
    let [seconds_told, share_told] = told;
    vec![("iterations", seconds, seconds_told), ("waits", shares, share_told)]
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
}

/// Rows of the card at this width.
pub fn rows(model: &Model, rank: Rank, cells: usize, now: Timestamp, keymap: &Keymap) -> usize {
    ranks::find(model, rank).map_or(0, |rank| {
        let trends = usize::from(!rank.cpu_history.is_empty())
            + usize::from(!rank.gpu_history.is_empty())
            + paces(rank).len();
        let facts = facts(model, rank, now, Glyphs::Ascii, Some(keymap));
        overlays::fact_rows(&facts, cells) + trends + 2 + rank.log.lines.len().min(LOG_LINES)
    })
}

/// What the card says, and the last lines of the log: as many as `log` allows.
fn lines(ctx: &Ctx<'_>, rank: &RankModel, cells: usize, log: impl Fn(usize) -> usize) -> Vec<Line<'static>> {
    let keymap = Some(&ctx.view.steering.keymap);
    let told = facts(ctx.model, rank, ctx.now, ctx.glyphs(), keymap);
    let mut lines = overlays::fact_lines(ctx, &told, cells);
    let before = if fresh::was(ctx.model, rank, ctx.now).is_some() { " was" } else { "" };
    let room = cells.saturating_sub(18 + before.len()).min(60);
    for (label, history) in [("cpu", &rank.cpu_history), ("gpu", &rank.gpu_history)] {
        if let Some(last) = history.back() {
            let values = history.iter().map(|value| f64::from(*value));
            let spark = meter::spark(values, room, 0.0, 100.0, ctx.glyphs());
            lines.push(Line::from(vec![
                ctx.s(format!("{:<12}", format!("{label} trend")), Role::Dim),
                ctx.s(spark, Role::Accent),
                ctx.s(format!("{before} {last:.0}%"), Role::Text),
            ]));
        }
    }
    for (label, values, last) in paces(rank) {
        let top = if label == "waits" { 1.0 } else { most(&values) };
        let spark = meter::spark(values.iter().copied(), room, 0.0, top, ctx.glyphs());
        lines.push(Line::from(vec![
            ctx.s(format!("{label:<12}"), Role::Dim),
            ctx.s(spark, Role::Accent),
            ctx.s(format!("{before} {last}"), Role::Text),
        ]));
    }
    lines.push(Line::default());
    let held = rank.log.lines.len();
    lines.push(Line::from(
        ctx.s(format!("log, last of {} lines", words::count(rank.log.next.max(held as u64))), Role::Dim),
    ));
    let most = log(lines.len());
    for line in rank.log.lines.iter().skip(held.saturating_sub(most)) {
        lines.push(Line::from(
            ctx.s(format!("  {}", ctx.cut(&words::clean(&line.text), cells.saturating_sub(2))), Role::Text),
        ));
    }
    lines
}

/// Whose card it is, and whether all is well with it.
fn title(ctx: &Ctx<'_>, rank: &RankModel) -> (String, Role) {
    let state = ranks::state_at(ctx.model, rank, ctx.glyphs(), ctx.now);
    let role = if state.trouble { Role::Bad } else { Role::Accent };
    (format!("rank {} on {}", rank.rank, rank.host), role)
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, rank: Rank, top: usize) {
    let Some(rank) = ranks::find(ctx.model, rank) else { return };
    let cells = overlays::card_cells(ctx.geo.area, INSPECT_CELLS);
    let (title, role) = title(ctx, rank);
    overlays::card(ctx, buf, role, &title, lines(ctx, rank, cells, |_| LOG_LINES), top, cells);
}

/// Below a table that leaves room: the card of its selected rank, with as much of the log as fits.
pub fn below(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, rank: &RankModel) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let (title, role) = title(ctx, rank);
    let dash = ctx.glyphs().border().horizontal_top;
    let rest = usize::from(area.width).saturating_sub(text::width(&title) + 4);
    let rule = [
        ctx.s(dash.repeat(2), Role::Dim),
        ctx.s(format!(" {title} "), role),
        ctx.s(dash.repeat(rest), Role::Dim),
    ];
    put(buf, area, 0, Line::from(rule.to_vec()));
    let cells = usize::from(area.width.saturating_sub(2));
    let height = usize::from(area.height.saturating_sub(1));
    let inner = Rect { x: area.x + 2, y: area.y + 1, width: cells as u16, height: height as u16 };
    let lines = lines(ctx, rank, cells, |told| height.saturating_sub(told));
    for (row, line) in lines.into_iter().take(height).enumerate() {
        put(buf, inner, row, line);
    }
}

/// As plain text, for the clipboard.
pub fn plain(model: &Model, rank: Rank, now: Timestamp) -> String {
    let Some(rank) = ranks::find(model, rank) else { return String::new() };
    let mut lines = vec![format!("rank {} on {}", rank.rank, rank.host)];
    for (label, text, _) in facts(model, rank, now, Glyphs::Ascii, None) {
        lines.push(format!("{label:<12}{text}"));
    }
    lines.join("\n")
}
