//! The card of a verdict: ranks in words, what was ruled out, what to do.

use super::cause;
use super::draft::{Draft, Judgement};
use super::rank_view::{self, RankView};
use crate::card::{Advice, Card, Others, Side};
use crate::model::{Look, Model, RankLife, RankModel};
use crate::reason::{self, VerdictKind, fill};
use crate::report::VerdictReport;
use rankdeck_proto::inspection::{Frame, How, Inspection};
use rankdeck_proto::message::RankSample;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use std::collections::{BTreeMap, BTreeSet};

/// Frames on a card. The top ones are always there, the others only if they are the program's own.
const FRAMES: usize = 12;
const TOP_FRAMES: usize = 3;
/// Lines about other ranks.
const OTHERS: usize = 8;
/// Notes of a close look that are kept.
const NOTES: usize = 4;
/// Children named on a card.
const CHILDREN: usize = 4;

/// A rank on a card.
pub(super) fn side(rank: &RankModel, look: Option<&Inspection>) -> Side {
    let mut side = Side {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: look.and_then(|look| look.pid).or(rank.pid).or(rank.sample.as_ref().map(|sample| sample.pid)),
        last_line: look
            .and_then(|look| look.last_line.clone())
            .or_else(|| rank.log.lines.back().map(|line| line.text.clone()))
            .map(|line| words::clip(&line, 200))
            .unwrap_or_default(),
        ..Side::default()
    };
    if let Some(sample) = &rank.sample {
        side.os = os(sample, look);
        side.call = rank_view::call(sample);
        side.silent_ms = super::movement::silence(sample);
        side.children = children(sample, look);
        if let Some(page) = &sample.page {
            side.train_iter = page.iteration();
            if !page.by_hook {
                side.env_step = Some(page.env_step);
                side.phase = page.phase.name().into();
                side.activity = page.activity.name().into();
                side.phase_age_ms = Some(page.phase_age_ms);
            }
            if page.total > 0 {
                side.amount = format!("{}/{}", page.done, page.total);
            }
        }
    }
    if let Some(look) = look {
        side.blocked_on = look.blocked_on.as_deref().map(|text| words::clip(text, 200)).unwrap_or_default();
        side.at = cause::user_frame(look).unwrap_or_default();
        side.stack = stack(look);
    }
    side
}

/// What a close look at a rank shows.
pub(crate) fn seen(rank: &RankModel, look: &Inspection, at: Timestamp) -> Look {
    let notes = look.notes.iter().take(NOTES).map(|note| words::clip(note, 200));
    let said = look.ras.iter().take(NOTES).map(|line| format!("NCCL RAS: {}", words::clip(line, 200)));
    Look { at, side: side(rank, Some(look)), notes: said.chain(notes).collect() }
}

/// The operating system's view, in words.
fn os(sample: &RankSample, look: Option<&Inspection>) -> String {
    let frozen = sample.signals.cgroup.as_ref().is_some_and(|cgroup| cgroup.frozen)
        || look.is_some_and(|look| look.os.frozen_cgroup);
    let state = if frozen { "frozen by its cgroup" } else { words::process_state(sample.state) };
    let mut text = format!("{state} ({}), cpu {:.0} %", sample.state, sample.cpu_percent);
    let looked = look.and_then(|look| look.os.syscall.clone());
    let wchan = look.and_then(|look| look.os.wchan.clone()).unwrap_or_else(|| sample.wchan.clone());
    match (looked, wchan.is_empty()) {
        (Some(call), true) => text.push_str(&format!(", in {call}")),
        (Some(call), false) => text.push_str(&format!(", in {call}: {wchan}")),
        (None, false) => text.push_str(&format!(", waits in {wchan}")),
        (None, true) => {}
    }
    text
}

fn children(sample: &RankSample, look: Option<&Inspection>) -> Vec<String> {
    let from_look = look.into_iter().flat_map(|look| &look.children).map(|child| {
        let cpu = match child.cpu_ms_moved {
            0 => "no CPU used".to_string(),
            ms => format!("used {ms} ms of CPU"),
        };
        format!("pid {} {}: {}, {cpu}", child.pid, child.name, words::process_state(child.state))
    });
    let list: Vec<String> = from_look.collect();
    let list = if list.is_empty() {
        let children = sample.signals.children.iter();
        children.map(|c| format!("pid {} {}: {}", c.pid, c.name, words::process_state(c.state))).collect()
    } else {
        list
    };
    list.into_iter().take(CHILDREN).collect()
}

/// A frame of Rust's own library, whose paths are those of the machine that built it.
fn is_of_rust(frame: &Frame) -> bool {
    frame.file.as_ref().is_some_and(|file| file.starts_with("/rustc/"))
}

/// The stack of the main thread, Python frames before native ones: what it is blocked in, and below that the
/// program's own frames.
fn stack(look: &Inspection) -> Vec<String> {
    let order = [How::Python, How::Native, How::Kernel];
    let threads = order.iter().flat_map(|how| look.threads.iter().filter(move |thread| thread.how == *how));
    let first = threads.clone().next();
    let frames = first.into_iter().flat_map(|thread| &thread.frames);
    frames
        .enumerate()
        .filter(|(depth, frame)| (*depth < TOP_FRAMES && !is_of_rust(frame)) || cause::is_own(frame))
        .take(FRAMES)
        .map(|(_, frame)| {
            let place = match (&frame.file, frame.line) {
                (Some(file), Some(line)) => format!("  {file}:{line}"),
                (Some(file), None) => format!("  {file}"),
                (None, _) => String::new(),
            };
            words::clip(&format!("{}{place}", frame.function), 160)
        })
        .collect()
}

/// What a rank does, in half a line; equal for ranks that do the same.
fn doing(rank: &RankModel) -> (String, u64) {
    let Some(sample) = &rank.sample else { return ("nothing heard of it yet".into(), 0) };
    match rank_view::call(sample).filter(|call| call.inside) {
        Some(call) => (format!("waits in {}", call.name()), call.age_ms),
        None => match &sample.page {
            Some(page) if !page.by_hook => (format!("in {}", page.phase.name()), page.phase_age_ms),
            Some(page) => ("in its own code".into(), page.heartbeat_age_ms),
            None => (words::process_state(sample.state).into(), 0),
        },
    }
}

/// Ranks whose host says nothing: what they do, nobody knows. After a death nobody asks which hosts answer.
fn unheard(views: &[RankView<'_>], kind: VerdictKind) -> BTreeSet<Rank> {
    let asked = kind == VerdictKind::Lost || views.iter().any(|view| view.fresh);
    let silent = views.iter().filter(|view| asked && view.alive() && !view.fresh);
    silent.map(|view| view.rank).collect()
}

/// What the other ranks do.
fn others(model: &Model, silent: &BTreeSet<Rank>, shown: &[Rank]) -> Vec<Others> {
    let mut alike: BTreeMap<String, (Vec<Rank>, u64)> = BTreeMap::new();
    for rank in model.ranks.iter().filter(|rank| !shown.contains(&rank.rank)) {
        let (text, age) = match &rank.life {
            RankLife::Exited(exit) => (exit.predicate(), 0),
            _ if silent.contains(&rank.rank) => (format!("unheard: {} is silent", rank.host), 0),
            RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished => doing(rank),
        };
        let entry = alike.entry(text).or_default();
        entry.0.push(rank.rank);
        entry.1 = entry.1.max(age);
    }
    let mut lines: Vec<(String, (Vec<Rank>, u64))> = alike.into_iter().collect();
    lines.sort_by_key(|(_, (ranks, _))| ranks.len());
    let more: usize = lines.iter().skip(OTHERS).map(|(_, (ranks, _))| ranks.len()).sum();
    let mut told: Vec<Others> = lines
        .into_iter()
        .take(OTHERS)
        .map(|(text, (ranks, age))| {
            let text = if age > 0 { format!("{text} for {}", words::duration_ms(age)) } else { text };
            Others { ranks, text }
        })
        .collect();
    if more > 0 {
        told.push(Others { ranks: Vec::new(), text: format!("and {more} more ranks do other things") });
    }
    told
}

/// Why it is nothing else: only what was really looked at.
fn ruled_out(model: &Model, view: Option<&RankView<'_>>, draft: &Draft) -> Vec<String> {
    let kind = draft.judged.reason.kind();
    let mut list = Vec::new();
    if let Some(seq) = draft.compared {
        list.push(format!("all ranks made the same collectives up to #{seq}"));
    }
    let Some(view) = view else { return list };
    let cgroup = view.sample.signals.cgroup.as_ref();
    if kind != VerdictKind::Frozen && view.alive() {
        let frozen = if cgroup.is_some() { ", nor frozen by its cgroup" } else { "" };
        list.push(format!("its process is there and not stopped{frozen}"));
    }
    if let Some(host) = model.hosts.get(view.node.index())
        && view.fresh
    {
        list.push(format!("{} answers", host.name));
    }
    if let Some(gpu) = view.gpu
        && gpu.xids.is_empty()
        && !gpu.lost
    {
        list.push("its GPU reports no error".into());
    }
    if !view.sockets().is_empty()
        && view.sockets().iter().all(|socket| socket.backoff < 2 && socket.retransmits < 2)
    {
        let count = view.sockets().len();
        list.push(format!("nothing is retransmitted on its {count} TCP connections"));
    }
    if let Some((cpu, memory)) = view.host.pressure
        && cpu < 40.0
        && memory < 5.0
    {
        list.push("its host is short of neither CPU nor memory".into());
    }
    if let Some(share) = view.moved().throttled
        && share < 0.1
    {
        list.push("its CPU quota is not used up".into());
    }
    if kind == VerdictKind::Behind && view.page().is_some() {
        let usual = words::duration_ms(view.threshold.stuck);
        list.push(format!(
            "silent for {}; up to {usual} is taken as usual there",
            words::duration_ms(view.silence_ms())
        ));
    }
    list
}

/// What to do about it, the best first.
fn advice(model: &Model, draft: &Draft) -> Vec<Advice> {
    let rank = draft.rank.and_then(|rank| model.ranks.get(rank.index()));
    let pid = rank.and_then(|rank| rank.sample.as_ref().map(|sample| sample.pid).or(rank.pid));
    let words = [
        ("run", model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default()),
        ("rank", draft.rank.map(|rank| rank.to_string()).unwrap_or_default()),
        ("pid", pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ("host", draft.host.clone().unwrap_or_default()),
        ("master", model.run.master.clone()),
    ];
    // What cannot be resumed is not advised to be.
    let saved = !model.checkpoints.is_empty();
    let rows = draft.judged.reason.row().advice.iter().filter(|row| saved || **row != reason::RESTART);
    rows.map(|row| Advice { text: fill(row.text, &words), command: fill(row.command, &words) }).collect()
}

/// The card without its facts and observations.
pub(super) fn card(model: &Model, views: &[RankView<'_>], draft: &Draft) -> Card {
    let view = |rank: Rank| rank_view::of(views, rank);
    let draw = |rank: Rank| Some(side(model.ranks.get(rank.index())?, view(rank).and_then(|view| view.look)));
    let shown: Vec<Rank> = draft.rank.into_iter().chain(draft.waiter).collect();
    Card {
        guilty: draft.rank.and_then(draw),
        waiter: draft.waiter.and_then(draw),
        others: others(model, &unheard(views, draft.judged.reason.kind()), &shown),
        ruled_out: ruled_out(model, draft.rank.and_then(view), draft),
        actions: advice(model, draft),
        ..Card::default()
    }
}

impl Draft {
    /// The verdict. `views` are the ranks as they are now, as far as somebody has looked.
    pub fn verdict(self, model: &Model, views: &[RankView<'_>]) -> VerdictReport {
        let card = card(model, views, &self);
        let Judgement { severity, confidence, reason } = self.judged;
        // What the user asked for is not to be misread.
        let sent = self.rank.and_then(|rank| model.ranks.get(rank.index())?.signalled);
        let sent = sent.filter(|sent| !words::signal_is_harmless(sent.signal));
        let sent = sent.map(|sent| format!("a console sent it {}", words::signal_name(sent.signal)));
        VerdictReport {
            rank: self.rank,
            host: self.host,
            verdict: reason.kind(),
            severity,
            confidence,
            reason_code: reason,
            reason: fill(reason.row().sentence(self.form), &self.words),
            latency_s: self.latency_ms as f64 / 1000.0,
            first_s: 0.0,
            card: Box::new(Card {
                facts: sent.into_iter().chain(self.facts).collect(),
                observations: self.observations,
                ..card
            }),
        }
    }
}
