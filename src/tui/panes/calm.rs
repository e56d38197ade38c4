//! What the status line says while no verdict stands: only what is known, and what is not.

use crate::fresh;
use crate::ranks;
use crate::text;
use crate::theme::Role;
use crate::widgets::Ctx;
use rankdeck_core::model::{HostModel, Model, RankLife, RankModel, RunState};
use rankdeck_proto::message::{PageSample, Phase};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::text::Span;

/// Beyond this a rank without a sign of life is not told as moving, ms.
const STILL_MS: u64 = 5_000;
/// Hosts and series named; the others are counted.
const NAMED: usize = 2;

pub fn line(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    match changing(ctx.live) {
        Some((role, text)) => {
            let sign = ctx.glyphs().pick("◌", "o");
            vec![ctx.s(format!(" {sign} "), role), ctx.s(text, Role::Dim)]
        }
        None => running(ctx),
    }
}

/// The same as a sentence.
pub fn sentence(model: &Model, now: Timestamp) -> String {
    match changing(model) {
        Some((_, text)) => text,
        None => warned(model, now).unwrap_or_else(|| RankCounts::of(model, now).told(model).1),
    }
}

/// What a run is about to do.
fn changing(model: &Model) -> Option<(Role, String)> {
    Some(match model.run.state {
        RunState::Connecting => (Role::Warn, "opening links; nothing runs yet".into()),
        RunState::Launching => (Role::Warn, "launching ranks".into()),
        RunState::Restarting => (Role::Warn, "stopping this generation; a new one follows".into()),
        _ if model.run.stopping.is_some() || model.run.state == RunState::Draining => {
            (Role::Warn, leaving(model))
        }
        RunState::Running | RunState::Draining | RunState::Over => return None,
    })
}

fn leaving(model: &Model) -> String {
    let is_clear = |host: &&HostModel| host.stopped.as_ref().is_some_and(Vec::is_empty);
    let verified = model.hosts.iter().filter(is_clear).count();
    let alive = model.ranks.iter().filter(|rank| ranks::alive(rank)).count();
    let hosts = words::plural(model.hosts.len(), "host");
    format!("ranks are leaving: {alive} still running; stop verified on {verified} of {hosts}")
}

fn running(ctx: &Ctx<'_>) -> Vec<Span<'static>> {
    if let Some(warned) = warned(ctx.live, ctx.live_now) {
        let sign = ctx.s(format!(" {} ", ctx.glyphs().tone(Role::Warn)), Role::Warn);
        return vec![sign, ctx.s(warned, Role::Warn)];
    }
    let known = RankCounts::of(ctx.live, ctx.live_now);
    let (role, text) = known.told(ctx.live);
    vec![ctx.s(format!(" {} ", ctx.glyphs().tone(role)), role), ctx.s(text, Role::Dim)]
}

/// What is wrong although no verdict stands.
fn warned(model: &Model, now: Timestamp) -> Option<String> {
    let warned: Vec<String> = [unheard(model, now), not_numbers(model)].into_iter().flatten().collect();
    (!warned.is_empty()).then(|| warned.join("; "))
}

fn unheard(model: &Model, now: Timestamp) -> Option<String> {
    let silent: Vec<(&str, u64)> = model
        .hosts
        .iter()
        .filter_map(|host| Some((host.name.as_str(), fresh::unheard(model, host, now)?)))
        .collect();
    let longest = silent.iter().map(|(_, age)| *age).max()?;
    let names = named(silent.iter().map(|(name, _)| *name));
    let ranks = model.ranks.iter().filter(|rank| fresh::unheard_rank(model, rank, now).is_some()).count();
    let all = model.ranks.len();
    let age = words::duration_ms(longest / 1000 * 1000);
    Some(format!(
        "nothing heard of {names} for {age}: the state of {ranks} of {} is unknown",
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
    Some(format!("{names}: not a number since step {} ({values} values)", text::si(since)))
}

/// How many ranks are in which state, as far as can be seen.
#[derive(Debug, Default, PartialEq)]
struct RankCounts {
    /// No sample, or on its way to the process group.
    starting: usize,
    /// In the rendezvous.
    meeting: usize,
    /// Its process exists; it tells nothing of itself.
    opaque: usize,
    moving: usize,
    /// Inside a collective for long.
    waiting: usize,
    /// No sign of life for long, outside of collectives.
    still: usize,
    ended: usize,
    /// The shortest silence of those that tell of themselves, ms.
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
                Some(page) if page.by_hook && !counts(page) => &mut self.opaque,
                Some(page) if *life == RankLife::Spawned && !counts(page) => match page.phase {
                    Phase::Rendezvous => &mut self.meeting,
                    _ => &mut self.starting,
                },
                Some(page) => {
                    let silent = fresh::silence(rank, now).unwrap_or(0);
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

    fn told(&self, model: &Model) -> (Role, String) {
        let all = model.ranks.len();
        let ranks = words::plural(all, "rank");
        if self.meeting > 0 || self.starting > 0 {
            let there = all - self.meeting - self.starting;
            let what = if self.meeting > 0 { "rendezvous" } else { "starting" };
            return (Role::Text, format!("{what}: {there} of {ranks} in the process group"));
        }
        if self.opaque > 0 {
            return (Role::Text, self.hidden(model));
        }
        if self.ended > 0 && self.ended < all {
            return (Role::Text, format!("{} of {ranks} have ended, {} still move", self.ended, self.moving));
        }
        if self.ended == all {
            return (Role::Text, "all ranks have ended".into());
        }
        let silence = words::duration_ms(self.silence.unwrap_or(0) / 1000 * 1000);
        match (self.moving, self.waiting, self.still) {
            (0, ..) => (Role::Text, format!("no rank has moved for {silence}; no verdict yet")),
            (moving, 0, 0) => {
                let what = if moving == 1 { "the rank moves" } else { "all ranks move" };
                (Role::Good, format!("no trouble: {what}{}", weights(model)))
            }
            (moving, waiting, 0) => {
                let move_ = if moving == 1 { "moves" } else { "move" };
                (
                    Role::Good,
                    format!("no trouble: {moving} of {ranks} {move_}, {waiting} wait in collectives"),
                )
            }
            (moving, _, still) => (
                Role::Text,
                format!("{moving} of {ranks} move, {still} show no sign of life; no verdict yet"),
            ),
        }
    }

    /// Of processes that tell nothing of themselves.
    fn hidden(&self, model: &Model) -> String {
        let processes = words::plural(self.opaque, "process");
        let metrics = match &model.own {
            Some(own) => format!("values come from rank {}'s {}", own.rank, own.source),
            None => "no [metrics]".into(),
        };
        let others = if self.moving > 0 {
            format!("; {} move", words::plural(self.moving, "rank"))
        } else {
            String::new()
        };
        format!("{processes} alive; progress unknown: no collectives, {metrics}{others}")
    }
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
