//! The status line: the worst verdict with the best advice, else how the ranks are; and the banner of a run that
//! has ended.
//!
//! It reads the present even while the view is frozen: alarms break through.

use crate::run::chrome::{Ctx, header};
use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::{advice, ranks, staleness};
use rankdeck_core::card::Advice;
use rankdeck_core::model::{Model, OwnMetrics, RankLife, RankModel, RunState};
use rankdeck_core::report::{Confidence, RunOutcome, Severity, VerdictReport};
use rankdeck_kit::{Role, put, put_right, text, width};
use rankdeck_proto::message::{PageSample, Phase, Survivor};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Most leftover processes listed in the banner; the others are counted.
const LISTED: usize = 4;
/// From this width on, an alert fits in one line.
const WIDE: u16 = 140;
/// Cells before the second line.
const INDENT: usize = 3;
/// Fewest cells for the start of a sentence next to its label.
const BESIDE: usize = 16;
/// Cells between a reason and the hint behind it.
const GAP: usize = 3;
/// A rank without a heartbeat for longer does not count as making progress, ms.
const STILL_MS: u64 = 5_000;
/// Hosts and series named; the others are counted.
const NAMED: usize = 2;

fn survivors(model: &Model) -> Vec<(String, &Survivor)> {
    model
        .hosts
        .iter()
        .flat_map(|host| host.stopped.iter().flatten().map(|survivor| (host.name.clone(), survivor)))
        .collect()
}

/// Lines that the status needs on a screen of this size.
pub fn height(model: &Model, keys: KeyNames<'_>, area: Rect) -> u16 {
    if model.run.state != RunState::Over {
        return alert_height(model, keys, area).unwrap_or(1);
    }
    let left = survivors(model).len();
    let listed = left.min(if area.height >= 24 { LISTED } else { 2 });
    let reason = text::wrap(&model.run.reason, reason_width(area)).len().min(2);
    (2 + reason + listed + usize::from(left > listed)) as u16
}

fn reason_width(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(6))
}

/// Draws the status line.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.status;
    if area.is_empty() {
        return;
    }
    if ctx.live.run.state == RunState::Over {
        banner(ctx, buf, area);
    } else if !alert(ctx, buf, area) {
        put(buf, area, 0, Line::from(line(ctx)));
    }
}

fn banner(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) {
    let model = ctx.live;
    let run = &model.run;
    let (word, role) = header::state(ctx, run);
    let mut right = Vec::new();
    if let Some(code) = run.exit_code {
        let role = if code == 0 { Role::Good } else { Role::Bad };
        right.push(ctx.s("exit code ", Role::Dim));
        right.push(ctx.s(format!("{code} "), role));
    }
    let left = survivors(model);
    let style = ctx.theme.style(role).add_modifier(Modifier::REVERSED | Modifier::BOLD);
    let took = ctx
        .live
        .run
        .elapsed_ms(ctx.live_now)
        .map_or(String::new(), |ms| format!(" after {}", words::duration_ms(ms)));
    let what = match run.outcome.is_none() && run.launch.is_none() {
        true => " no host has reported the run".to_owned(),
        false => format!(" the run has ended{took}"),
    };
    let head = vec![Span::styled(format!(" {word} "), style), ctx.s(what, Role::Strong)];
    let taken = width(&head);
    put(buf, area, 0, Line::from(head));
    put_right(buf, area, 0, taken, right);
    let mut row = 1;
    for line in text::wrap(&run.reason, reason_width(area)).into_iter().take(2) {
        let role = if matches!(run.outcome, Some(RunOutcome::Failed | RunOutcome::Stuck)) {
            Role::Bad
        } else {
            Role::Text
        };
        put(buf, area, row, Line::from(ctx.s(format!("   {line}"), role)));
        row += 1;
    }
    put(buf, area, row, Line::from(verification(ctx, left.len())));
    row += 1;
    let listed = usize::from(area.height).saturating_sub(row);
    let listed = if left.len() > listed { listed.saturating_sub(1) } else { left.len() };
    for (host, survivor) in left.iter().take(listed) {
        let rank = survivor.rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
        let text = format!(
            "   {} {host}: pid {}{rank}, state {}: {}",
            ctx.glyphs().pick("›", ">"),
            survivor.pid,
            survivor.state,
            words::clean(&survivor.command)
        );
        put(buf, area, row, Line::from(ctx.s(ctx.cut(&text, usize::from(area.width)), Role::Bad)));
        row += 1;
    }
    if left.len() > listed {
        let more = left.len() - listed;
        put(buf, area, row, Line::from(ctx.s(format!("   and {more} more; see hosts (5)"), Role::Bad)));
    }
}

/// Whether the stop is verified, and what is free again.
fn verification(ctx: &Ctx<'_>, left: usize) -> Vec<Span<'static>> {
    let model = ctx.live;
    let silent: Vec<&str> =
        model.hosts.iter().filter(|host| host.stopped.is_none()).map(|host| host.name.as_str()).collect();
    if left > 0 {
        let what = if left == 1 { "1 process is".to_string() } else { format!("{left} processes are") };
        let text = format!("   stop NOT VERIFIED: {what} still running");
        return vec![ctx.s(text, Role::Bad)];
    }
    if !silent.is_empty() {
        let names = silent.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = if silent.len() > 3 { ", ..." } else { "" };
        return vec![
            ctx.s(format!("   could not verify that all processes exited on {names}{more}"), Role::Warn),
        ];
    }
    let mut spans = vec![
        ctx.s("   stop verified", Role::Good),
        ctx.s(format!(" on {}: no process left", words::plural(model.verified_hosts(), "host")), Role::Dim),
    ];
    let free: Vec<String> = model
        .hosts
        .iter()
        .filter(|host| !host.gpus_free.is_empty())
        .map(|host| format!("{}:{}", host.name, words::ranges(&host.gpus_free)))
        .collect();
    let count: usize = model.hosts.iter().map(|host| host.gpus_free.len()).sum();
    if count > 0 {
        let names = format!("; free again: {}", free.join(" "));
        let fits = width(&spans) + names.len() < usize::from(ctx.geo.area.width);
        let short = format!("; {} free again", words::plural(count, "GPU"));
        spans.push(ctx.s(if fits { names } else { short }, Role::Dim));
    }
    spans
}

/// The text of an alert.
#[derive(Debug, Clone, PartialEq, Default)]
struct AlarmText {
    label: String,
    /// Per line: a part of the reason, and the hint.
    rows: Vec<(String, String)>,
}

/// Lines for the worst verdict on a screen of this size; `None` without a verdict.
fn alert_height(model: &Model, keys: KeyNames<'_>, area: Rect) -> Option<u16> {
    let worst = ranks::live_verdicts(model).next()?;
    // A critical one keeps its height while its values change.
    Some(match (worst.severity == Severity::Red, area.width >= WIDE) {
        (true, false) => 2,
        (_, true) => 1,
        (false, false) => {
            let alarm = alarm_text(model, keys, worst, usize::from(area.width), 2);
            1 + u16::from(alarm.rows.get(1).is_some_and(|row| !row.0.is_empty()))
        }
    })
}

/// The reason without the subject that the label names.
fn point<'a>(reason: &'a str, verdict: &VerdictReport, who: &str) -> &'a str {
    let rank = verdict.rank.map(|rank| format!("rank {rank}"));
    let subjects = [Some(who.to_string()), rank, verdict.host.clone()];
    let cut = subjects
        .into_iter()
        .flatten()
        .find_map(|subject| reason.strip_prefix(&subject)?.strip_prefix([' ', ':', ',']));
    let Some(cut) = cut.map(str::trim_start) else { return reason };
    cut.strip_prefix("is ").unwrap_or(cut)
}

/// The keys at the right end of the first line.
fn why_key(model: &Model, keys: KeyNames<'_>) -> (String, String, &'static str) {
    let more = ranks::live_verdicts(model).count().saturating_sub(1);
    let more = if more > 0 { format!("+{more} more  ") } else { String::new() };
    (more, keys.of(ScreenCommand::Explain), " why ")
}

fn alarm_text(
    model: &Model,
    keys: KeyNames<'_>,
    verdict: &VerdictReport,
    cells: usize,
    lines: usize,
) -> AlarmText {
    let (who, glyphs) = (ranks::subject(verdict), keys.glyphs);
    let sign = glyphs.tone(ranks::severity_role(verdict.severity));
    let label = format!(" {sign} {who}: {} ", verdict.verdict.name());
    let sure = match verdict.confidence {
        Confidence::Possible => " (possible)",
        Confidence::Likely => " (likely)",
        Confidence::Certain => "",
    };
    let reason = words::clean(&format!("{}{sure}", point(&verdict.reason, verdict, &who)));
    let (more, key, why) = why_key(model, keys);
    let taken = text::width(&label) + text::width(&more) + text::width(&key) + why.len() + 2;
    let beside = cells.saturating_sub(taken);
    let below = cells.saturating_sub(INDENT + 1);
    let hint = match verdict.severity {
        Severity::Red => hint(&verdict.card.actions, keys, below),
        _ => String::new(),
    };
    if lines < 2 {
        let fits = text::width(&reason) + text::width(&hint) + GAP <= beside;
        let hint = if fits { hint } else { String::new() };
        return AlarmText { label, rows: vec![(text::cut(&reason, beside, glyphs), hint)] };
    }
    let mut parts = pieces(&reason, beside, below);
    let beside_hint = below.saturating_sub(text::width(&hint) + GAP);
    if parts.len() > lines || parts.len() == lines && text::width(&parts[lines - 1]) > beside_hint {
        // The last line holds the end of the reason, cut, and the hint, unless that leaves nothing of the
        // reason.
        let room = if hint.is_empty() || beside_hint < below / 3 { below } else { beside_hint };
        let rest = parts.split_off(lines - 1).join(" ");
        parts.push(text::cut(&rest, room, glyphs));
    }
    let last = parts.len() - 1;
    let at = if last > 0 && text::width(&parts[last]) <= beside_hint { last } else { last + 1 };
    let mut rows: Vec<(String, String)> = parts.into_iter().map(|part| (part, String::new())).collect();
    rows.resize_with(lines, Default::default);
    if let Some(row) = rows.get_mut(at) {
        row.1 = hint;
    }
    AlarmText { label, rows }
}

/// A text in parts: the first next to something else, the others below it.
fn pieces(reason: &str, beside: usize, below: usize) -> Vec<String> {
    let first = match text::wrap(reason, beside).into_iter().next() {
        Some(first) if beside >= BESIDE => first,
        _ => String::new(),
    };
    let rest = reason.get(first.len()..).unwrap_or_default().trim_start();
    let mut parts = vec![first];
    if !rest.is_empty() {
        parts.extend(text::wrap(rest, below));
    }
    parts
}

/// The best advice, in the longest form that fits.
fn hint(actions: &[Advice], keys: KeyNames<'_>, cells: usize) -> String {
    let Some(best) = actions.first() else { return String::new() };
    let forms = match advice::key_of(best, keys) {
        Some(key) => vec![format!("{key}: {}", advice::by_key(best))],
        None if best.command.is_empty() => vec![format!("hint: {}", best.text), best.text.clone()],
        None => vec![
            format!("hint: {}: {}", best.text, best.command),
            format!("{}: {}", best.text, best.command),
            best.command.clone(),
        ],
    };
    let forms: Vec<String> = forms.iter().map(|form| words::clean(form)).collect();
    let fitting = forms.iter().find(|form| text::width(form) <= cells);
    fitting.or(forms.last()).cloned().unwrap_or_default()
}

/// Draws the worst verdict; false without one.
fn alert(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) -> bool {
    let Some(worst) = ranks::live_verdicts(ctx.live).next() else { return false };
    let lines = usize::from(area.height);
    let alarm = alarm_text(ctx.live, ctx.keys(), worst, usize::from(area.width), lines);
    let red = worst.severity == Severity::Red;
    let role = ranks::severity_role(worst.severity);
    let label = match red {
        true => Span::styled(alarm.label, ctx.theme.bad.add_modifier(Modifier::REVERSED)),
        false => ctx.s(alarm.label, role),
    };
    let strong = if red { Role::Strong } else { Role::Text };
    for (row, (reason, hint)) in alarm.rows.into_iter().enumerate() {
        let mut spans = match row {
            0 => vec![label.clone(), Span::raw(" ")],
            _ => vec![Span::raw(" ".repeat(INDENT))],
        };
        let gap = if reason.is_empty() { 0 } else { GAP };
        spans.push(ctx.s(reason, strong));
        if !hint.is_empty() {
            spans.push(Span::raw(" ".repeat(gap)));
            spans.push(ctx.s(hint, Role::Accent));
        }
        let taken = width(&spans);
        put(buf, area, row, Line::from(spans));
        if row == 0 {
            let (more, key, why) = why_key(ctx.live, ctx.keys());
            let right = vec![ctx.s(more, role), ctx.s(key, Role::Accent), ctx.s(why, Role::Dim)];
            put_right(buf, area, 0, taken, right);
        }
    }
    true
}

/// The line of a run without verdicts.
fn line(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    match changing(ctx.live) {
        Some((role, text)) => {
            let sign = ctx.glyphs().pick("◌", "o");
            vec![ctx.s(format!(" {sign} "), role), ctx.s(text, Role::Dim)]
        }
        None => running(ctx),
    }
}

/// The status of a run without verdicts, as a sentence.
pub fn sentence(model: &Model, now: Timestamp) -> String {
    match changing(model) {
        Some((_, text)) => text,
        None => warned(model, now).unwrap_or_else(|| RankCounts::of(model, now).describe(model).1),
    }
}

/// What the run is doing, unless it is running.
fn changing(model: &Model) -> Option<(Role, String)> {
    let awaits = &model.run.restart_awaits;
    if !awaits.is_empty() {
        let state = match model.run.state {
            RunState::Restarting => "all ranks are stopped",
            _ => "nothing is stopped yet",
        };
        return Some((Role::Warn, format!("the restart waits for {}; {state}", awaits.join(", "))));
    }
    Some(match model.run.state {
        RunState::Connecting => (Role::Warn, "connecting; no rank runs yet".into()),
        RunState::Launching => (Role::Warn, "launching ranks".into()),
        RunState::Restarting => (Role::Warn, "restarting: stopping this generation".into()),
        _ if model.run.stopping.is_some() || model.run.state == RunState::Draining => {
            (Role::Warn, leaving(model))
        }
        RunState::Running | RunState::Draining | RunState::Over => return None,
    })
}

fn leaving(model: &Model) -> String {
    let verified = model.verified_hosts();
    let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
    let hosts = words::plural(model.hosts.len(), "host");
    format!("stopping: {alive} still running; stop verified on {verified} of {hosts}")
}

fn running(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    if let Some(warned) = warned(ctx.live, ctx.live_now) {
        let sign = ctx.s(format!(" {} ", ctx.glyphs().tone(Role::Warn)), Role::Warn);
        return vec![sign, ctx.s(warned, Role::Warn)];
    }
    let known = RankCounts::of(ctx.live, ctx.live_now);
    let (role, text) = known.describe(ctx.live);
    vec![ctx.s(format!(" {} ", ctx.glyphs().tone(role)), role), ctx.s(text, Role::Dim)]
}

/// Problems that are not verdicts.
fn warned(model: &Model, now: Timestamp) -> Option<String> {
    let warned: Vec<String> = [silent_hosts(model, now), not_numbers(model)].into_iter().flatten().collect();
    (!warned.is_empty()).then(|| warned.join("; "))
}

fn silent_hosts(model: &Model, now: Timestamp) -> Option<String> {
    let silent: Vec<(&str, u64)> = model
        .hosts
        .iter()
        .filter_map(|host| Some((host.name.as_str(), staleness::host_silence(model, host, now)?)))
        .collect();
    let longest = silent.iter().map(|(_, age)| *age).max()?;
    let names = named(silent.iter().map(|(name, _)| *name));
    let ranks = model.ranks.iter().filter(|rank| staleness::rank_silence(model, rank, now).is_some()).count();
    let all = model.ranks.len();
    let age = words::duration_ms(longest / 1000 * 1000);
    Some(format!(
        "no message from {names} for {age}: state of {ranks} of {} unknown",
        words::plural(all, "rank")
    ))
}

fn named<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Series whose newest value is not a finite number.
fn not_numbers(model: &Model) -> Option<String> {
    let broken: Vec<(&str, f64, u64)> = model
        .scalars
        .iter()
        .filter(|(_, series)| series.last().is_some_and(|last| !last.is_finite()))
        .map(|(name, series)| (name.as_str(), series.not_finite_since(), series.not_finite()))
        .collect();
    let (_, since, values) = *broken.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let names = named(broken.iter().map(|(name, ..)| *name));
    Some(format!("{names}: not finite since step {} ({values} values)", text::si(since)))
}

/// Number of ranks per state.
#[derive(Debug, Default, PartialEq)]
struct RankCounts {
    /// Not sampled yet, or joining the process group.
    starting: usize,
    /// In the rendezvous.
    meeting: usize,
    /// Running, without a status page.
    opaque: usize,
    moving: usize,
    /// Inside a collective for a long time.
    waiting: usize,
    /// No heartbeat for a long time, outside of collectives.
    still: usize,
    ended: usize,
    /// The shortest time since a heartbeat, ms.
    silence: Option<u64>,
}

impl RankCounts {
    fn of(model: &Model, now: Timestamp) -> RankCounts {
        let mut known = RankCounts::default();
        for rank in &model.ranks {
            known.count(rank, now);
        }
        known
    }

    fn count(&mut self, rank: &RankModel, now: Timestamp) {
        let place = match (&rank.life, &rank.sample) {
            (RankLife::Exited(_) | RankLife::Finished, _) => &mut self.ended,
            (_, None) | (RankLife::Pending, _) => &mut self.starting,
            (life, Some(sample)) => match &sample.page {
                None => &mut self.opaque,
                Some(page) if page.by_hook && !counts(page) && page.phase != Phase::Rendezvous => {
                    &mut self.opaque
                }
                Some(page) if *life == RankLife::Spawned && !counts(page) => match page.phase {
                    Phase::Rendezvous => &mut self.meeting,
                    _ => &mut self.starting,
                },
                Some(page) => {
                    let silent = staleness::heartbeat_age(rank, now).unwrap_or(0);
                    self.silence = Some(self.silence.map_or(silent, |least| least.min(silent)));
                    match ranks::inside(&page.collective) {
                        _ if silent <= STILL_MS => &mut self.moving,
                        true => &mut self.waiting,
                        false => &mut self.still,
                    }
                }
            },
        };
        *place += 1;
    }

    fn describe(&self, model: &Model) -> (Role, String) {
        let all = model.ranks.len();
        let ranks = words::plural(all, "rank");
        if self.meeting > 0 {
            return (Role::Text, format!("rendezvous: {} of {ranks} arrived", model.arrived_ranks()));
        }
        if self.starting > 0 {
            return (
                Role::Text,
                format!("starting: {} of {ranks} in the process group", all - self.starting),
            );
        }
        if self.opaque > 0 {
            return (Role::Text, self.hidden(model));
        }
        if self.ended > 0 && self.ended < all {
            return (
                Role::Text,
                format!("{} of {ranks} have ended, {} still running", self.ended, self.moving),
            );
        }
        if self.ended == all {
            return (Role::Text, "all ranks have ended".into());
        }
        let silence = words::duration_ms(self.silence.unwrap_or(0) / 1000 * 1000);
        match (self.moving, self.waiting, self.still) {
            (0, ..) => (Role::Text, format!("no progress for {silence}; no verdict yet")),
            (moving, 0, 0) => {
                let what = if moving == 1 { "the rank makes progress" } else { "all ranks make progress" };
                (Role::Good, format!("ok: {what}{}", weights(model)))
            }
            (moving, waiting, 0) => {
                let move_ = if moving == 1 { "moves" } else { "move" };
                (Role::Good, format!("ok: {moving} of {ranks} {move_}, {waiting} waiting in collectives"))
            }
            (moving, _, still) => {
                (Role::Text, format!("{moving} of {ranks} make progress, {still} do not; no verdict yet"))
            }
        }
    }

    /// Of processes that report nothing.
    fn hidden(&self, model: &Model) -> String {
        let processes = words::plural(self.opaque, "process");
        let metrics = match &model.own {
            Some(own) => format!("values come from rank {}'s {}", own.rank, own.source),
            None => "no values in the output".into(),
        };
        let progress = match (reported_step(model), &model.own) {
            (Some(step), _) => format!("step {} as reported", words::count(step)),
            (None, Some(OwnMetrics { env_step: Some(step), .. })) => {
                format!("step {}; {metrics}", words::count(*step))
            }
            (None, Some(OwnMetrics { progress: Some(progress), .. })) => {
                format!("{}; {metrics}", progress.shown.amount())
            }
            (None, _) => format!("progress unknown: no collectives, {metrics}"),
        };
        let others = if self.moving > 0 {
            format!("; {} make progress", words::plural(self.moving, "rank"))
        } else {
            String::new()
        };
        format!("{processes} alive; {progress}{others}")
    }
}

/// The furthest step that ranks have reported by the client module.
fn reported_step(model: &Model) -> Option<u64> {
    let totals = model.latest.as_ref().map(|latest| &latest.counters);
    let totals = totals.or(model.progress.as_ref().map(|progress| &progress.totals));
    let totals = totals.map(|totals| totals.env_step);
    let own = model.ranks.iter().filter_map(|rank| rank.own.as_ref().map(|own| own.env_step));
    totals.into_iter().chain(own).max().filter(|step| *step > 0)
}

/// It has shown more than that it is there.
fn counts(page: &PageSample) -> bool {
    page.collective.entered > 0 || page.train_iter > 0 || page.env_step > 0
}

fn weights(model: &Model) -> String {
    match &model.fingerprint {
        Some(fingerprint) if fingerprint.equal => {
            format!(", weights equal at update {}", words::count(fingerprint.update))
        }
        _ => String::new(),
    }
}
