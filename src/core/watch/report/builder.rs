//! Builds a verdict: the sentence of its reason, its evidence, what was ruled out, and advice; with the phrases
//! that verdicts share.

use crate::card::{Advice, Card, RankEvidence, RankGroup};
use crate::model::{Model, RankInspection, RankLife, RankModel};
use crate::reason::{self, AdviceRow, SentenceForm, VerdictKind, fill};
use crate::report::VerdictReport;
use crate::watch::assess::finding::Assessment;
use crate::watch::history::inspections::{
    awaited_lines, child_frame, child_is_in_collective, leading_thread, user_frame,
};
use crate::watch::history::movement;
use crate::watch::history::program;
use crate::watch::history::run_view::{self, RankView, RunView};
use crate::watch::patterns::network::unanswered;
use rankdeck_proto::inspection::FrameOwner;
use rankdeck_proto::inspection::{Frame, InspectedChild, Inspection, StackMethod};
use rankdeck_proto::message::{Exit, GpuSample, InnerRank, RankSample};
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;
use std::collections::{BTreeMap, BTreeSet};

/// A verdict being built: everything but its evidence tables.
#[derive(Debug)]
pub(crate) struct VerdictBuilder {
    pub assessment: Assessment,
    /// Selects the sentence of the reason.
    pub form: SentenceForm,
    /// Values for the `{word}`s of that sentence.
    pub words: Vec<(&'static str, String)>,
    /// The culprit.
    pub rank: Option<Rank>,
    pub host: Option<String>,
    /// A rank that waits for it.
    pub waiter: Option<Rank>,
    /// Without a culprit: a rank in another collective than `waiter`.
    pub opposite: Option<Rank>,
    /// Decisive facts that are not about one rank.
    pub facts: Vec<String>,
    /// Further evidence.
    pub observations: Vec<String>,
    pub latency_ms: u64,
    /// All ranks issued the same calls up to this number.
    pub compared: Option<u64>,
}

impl VerdictBuilder {
    pub fn new(assessment: Assessment, words: Vec<(&'static str, String)>) -> VerdictBuilder {
        VerdictBuilder {
            assessment,
            form: SentenceForm::Usual,
            words,
            rank: None,
            host: None,
            waiter: None,
            opposite: None,
            facts: Vec::new(),
            observations: Vec::new(),
            latency_ms: 0,
            compared: None,
        }
    }

    /// Builds the verdict.
    pub fn build(self, run: &RunView<'_>) -> VerdictReport {
        let model = run.model;
        let card = card(run, &self);
        let Assessment { severity, certainty, reason } = self.assessment;
        // A signal that a user sent must not be misread.
        let sent = self.rank.and_then(|rank| model.ranks.get(rank.index())?.signalled);
        let sent = sent.filter(|sent| !words::signal_is_harmless(sent.signal));
        let sent =
            sent.map(|sent| format!("{} was sent to it from a console", words::signal_name(sent.signal)));
        VerdictReport {
            rank: self.rank,
            host: self.host,
            verdict: reason.kind(),
            severity,
            confidence: certainty.confidence(),
            proof: certainty.proof(),
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

/// Frames of a stack. The top ones are always shown, the others only if they are the program's or of one of its
/// libraries.
const FRAMES: usize = 12;
const TOP_FRAMES: usize = 3;
/// Characters of a function and of its place. A generic function's name may have hundreds.
const FUNCTION_CHARS: usize = 80;
const PLACE_CHARS: usize = 120;
/// Lines about other ranks.
const OTHERS: usize = 8;
/// Notes of an inspection.
const NOTES: usize = 4;
/// Children of a rank that are named.
const CHILDREN: usize = 8;

/// Describes one rank.
pub(crate) fn side(rank: &RankModel, inspection: Option<&Inspection>) -> RankEvidence {
    let mut side = RankEvidence {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: inspection
            .and_then(|inspection| inspection.pid)
            .or(rank.pid)
            .or(rank.sample.as_ref().map(|sample| sample.pid)),
        last_line: inspection
            .and_then(|inspection| inspection.last_line.clone())
            .or_else(|| rank.log.lines.back().map(|line| line.text.clone()))
            .map(|line| words::clip(&line, 200))
            .unwrap_or_default(),
        ..RankEvidence::default()
    };
    if let Some(sample) = &rank.sample {
        side.os = os(sample, inspection);
        side.call = run_view::call(sample);
        side.silent_ms = movement::silence(sample);
        side.children = children(sample, inspection, &rank.inner);
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
    if let Some(inspection) = inspection {
        side.blocked_on =
            inspection.blocked_on.as_deref().map(|text| words::clip(text, 200)).unwrap_or_default();
        side.at = user_frame(inspection).unwrap_or_default();
        side.stack = stack(inspection);
    }
    side
}

/// Describes what an inspection of a rank shows.
pub(crate) fn describe_inspection(
    rank: &RankModel,
    inspection: &Inspection,
    at: Timestamp,
) -> RankInspection {
    let notes = inspection.notes.iter().take(NOTES).map(|note| words::clip(note, 200));
    let ras = inspection.ras.iter().take(NOTES).map(|line| format!("NCCL RAS: {}", words::clip(line, 200)));
    RankInspection { at, side: side(rank, Some(inspection)), notes: ras.chain(notes).collect() }
}

/// Describes the state of the process as the kernel reports it.
fn os(sample: &RankSample, inspection: Option<&Inspection>) -> String {
    let frozen = sample.signals.cgroup.as_ref().is_some_and(|cgroup| cgroup.frozen)
        || inspection.is_some_and(|inspection| inspection.os.frozen_cgroup);
    let state = if frozen { "frozen by its cgroup" } else { words::process_state(sample.state) };
    let mut text = format!("{state} ({}), cpu {:.0}%", sample.state, sample.cpu_percent);
    let syscall = inspection.and_then(|inspection| inspection.os.syscall.clone());
    let wchan =
        inspection.and_then(|inspection| inspection.os.wchan.clone()).unwrap_or_else(|| sample.wchan.clone());
    match (syscall, wchan.is_empty()) {
        (Some(call), true) => text.push_str(&format!(", in {call}")),
        (Some(call), false) => text.push_str(&format!(", in {call}: {wchan}")),
        (None, false) => text.push_str(&format!(", waiting in {wchan}")),
        (None, true) => {}
    }
    text
}

/// Describes the children, those first that explain a wait: ended ones, those that the rank waits for, and ranks of
/// its own that wait for no other.
fn children(sample: &RankSample, inspection: Option<&Inspection>, inner: &[InnerRank]) -> Vec<String> {
    let inspected = |inspection: &Inspection| {
        let member = |child: &InspectedChild| member(child, inner);
        let explains = |child: &&InspectedChild| {
            let waits = child_is_in_collective(inspection, child.pid);
            let is_awaited = inspection.awaits.contains(&child.pid);
            (child.state != 'Z', !is_awaited, member(child).is_none(), waits)
        };
        let mut all: Vec<&InspectedChild> = inspection.children.iter().collect();
        all.sort_by_key(explains);
        let text = |child: &&InspectedChild| {
            let cpu = match child.cpu_ms_moved {
                0 => "no CPU used".to_string(),
                ms => format!("used {ms} ms of CPU"),
            };
            let does = match &child.exit {
                Some(exit) => exit.to_string(),
                None => format!("{}, {cpu}", words::process_state(child.state)),
            };
            let which = member(child).map(|member| format!(" ({member})")).unwrap_or_default();
            let at = child_frame(inspection, child.pid).map(|at| format!(", at {at}")).unwrap_or_default();
            format!("pid {} {}{which}: {does}{at}", child.pid, child.name)
        };
        all.iter().map(text).collect::<Vec<String>>()
    };
    let list = inspection.map(inspected).unwrap_or_default();
    let list = if list.is_empty() {
        let children = sample.signals.children.iter();
        children.map(|c| format!("pid {} {}: {}", c.pid, c.name, words::process_state(c.state))).collect()
    } else {
        list
    };
    list.into_iter().take(CHILDREN).collect()
}

/// `rank 2 of 4 in its own group`; `None` for other processes.
fn member(child: &InspectedChild, inner: &[InnerRank]) -> Option<String> {
    let by_hook = inner.iter().find(|inner| inner.pid == child.pid);
    let by_hook = by_hook.and_then(|inner| Some((inner.rank?, inner.world_size?)));
    let (rank, size) = by_hook.or(child.member)?;
    Some(format!("rank {rank} of {size} in its own group"))
}

/// A frame of Rust's own library, whose paths are those of the build machine.
fn is_of_rust(frame: &Frame) -> bool {
    frame.file.as_ref().is_some_and(|file| file.starts_with("/rustc/"))
}

/// The stack of the main thread, Python frames before native ones: the call that it is blocked in, then the
/// program's own frames.
fn stack(inspection: &Inspection) -> Vec<String> {
    let order = [StackMethod::Python, StackMethod::Native, StackMethod::Kernel];
    let threads =
        order.iter().flat_map(|how| inspection.threads.iter().filter(move |thread| thread.how == *how));
    let first = leading_thread(inspection).or_else(|| threads.clone().next());
    let frames = first.into_iter().flat_map(|thread| &thread.frames);
    frames
        .filter(|frame| !frame.is_of_hook())
        .enumerate()
        .filter(|(depth, frame)| {
            (*depth < TOP_FRAMES && !is_of_rust(frame)) || frame.owner() != FrameOwner::System
        })
        .take(FRAMES)
        .map(|(_, frame)| {
            let place = match (&frame.file, frame.line) {
                (Some(file), Some(line)) => format!("  {file}:{line}"),
                (Some(file), None) => format!("  {file}"),
                (None, _) => String::new(),
            };
            format!("{}{}", words::clip(&frame.function, FUNCTION_CHARS), end_of(&place, PLACE_CHARS))
        })
        .collect()
}

/// The last characters of a place, where its line is.
fn end_of(place: &str, most: usize) -> String {
    let skipped = place.chars().count().saturating_sub(most);
    words::clip(&place.chars().skip(skipped).collect::<String>(), most)
}

/// Describes what a rank does in a few words; equal for ranks that do the same.
fn doing(rank: &RankModel) -> (String, u64) {
    let Some(sample) = &rank.sample else { return ("no sample yet".into(), 0) };
    match run_view::call(sample).filter(|call| call.inside) {
        Some(call) => (format!("waiting in {}", call.name()), call.age_ms),
        None => match &sample.page {
            Some(page) if !page.by_hook => (format!("in {}", page.phase.name()), page.phase_age_ms),
            Some(page) => ("in user code".into(), page.heartbeat_age_ms),
            None => (words::process_state(sample.state).into(), 0),
        },
    }
}

/// Ranks on silent hosts: their state is unknown. After a death, hosts are not checked.
fn on_silent_hosts(views: &[RankView<'_>], kind: VerdictKind) -> BTreeSet<Rank> {
    let checked = kind == VerdictKind::Lost || views.iter().any(|view| view.fresh);
    let silent = views.iter().filter(|view| checked && view.alive() && !view.fresh);
    silent.map(|view| view.rank).collect()
}

/// Describes the other ranks, with those that do the same in one line.
fn others(model: &Model, silent: &BTreeSet<Rank>, shown: &[Rank]) -> Vec<RankGroup> {
    let mut alike: BTreeMap<String, (Vec<Rank>, u64)> = BTreeMap::new();
    for rank in model.ranks.iter().filter(|rank| !shown.contains(&rank.rank)) {
        let (text, age) = match &rank.life {
            RankLife::Exited(exit) => (exit.predicate(), 0),
            _ if silent.contains(&rank.rank) => (format!("unknown: no message from {}", rank.host), 0),
            RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished => doing(rank),
        };
        let entry = alike.entry(text).or_default();
        entry.0.push(rank.rank);
        entry.1 = entry.1.max(age);
    }
    let mut lines: Vec<(String, (Vec<Rank>, u64))> = alike.into_iter().collect();
    lines.sort_by_key(|(_, (ranks, _))| ranks.len());
    let more: usize = lines.iter().skip(OTHERS).map(|(_, (ranks, _))| ranks.len()).sum();
    let mut all: Vec<RankGroup> = lines
        .into_iter()
        .take(OTHERS)
        .map(|(text, (ranks, age))| {
            let text = if age > 0 { format!("{text} for {}", words::duration_ms(age)) } else { text };
            RankGroup { ranks, text }
        })
        .collect();
    if more > 0 {
        all.push(RankGroup { ranks: Vec::new(), text: format!("and {more} more ranks in other states") });
    }
    all
}

/// Other causes that measurements rule out.
fn ruled_out(model: &Model, view: Option<&RankView<'_>>, verdict: &VerdictBuilder) -> Vec<String> {
    let kind = verdict.assessment.reason.kind();
    let mut list = Vec::new();
    if let Some(seq) = verdict.compared {
        list.push(format!("all ranks issued the same collectives up to #{seq}"));
    }
    let Some(view) = view else { return list };
    let cgroup = view.sample.signals.cgroup.as_ref();
    if kind != VerdictKind::Frozen && view.alive() {
        let frozen = if cgroup.is_some() { " or frozen by its cgroup" } else { "" };
        list.push(format!("its process is running, not suspended{frozen}"));
    }
    if let Some(host) = model.hosts.get(view.node.index())
        && view.fresh
    {
        list.push(format!("{} is responding", host.name));
    }
    if let Some(gpu) = view.gpu
        && gpu.xids.is_empty()
        && !gpu.lost
    {
        list.push("its GPU reports no errors".into());
    }
    if !view.sockets().is_empty()
        && view.sockets().iter().all(|socket| socket.backoff < 2 && socket.retransmits < 2)
    {
        let count = view.sockets().len();
        list.push(format!("no retransmissions on its {count} TCP connections"));
    }
    if let Some((cpu, memory)) = view.host.pressure
        && cpu < 40.0
        && memory < 5.0
    {
        list.push("host CPU and memory are fine".into());
    }
    if let Some(share) = view.moved().throttled
        && share < 0.1
    {
        list.push("its CPU quota is not used up".into());
    }
    if kind == VerdictKind::Behind && view.page().is_some() {
        let usual = words::duration_ms(view.threshold.stuck);
        list.push(format!(
            "no progress for {}; up to {usual} is normal in this phase",
            words::duration_ms(view.silence_ms())
        ));
    }
    list
}

/// Advice, best first.
fn advice(run: &RunView<'_>, verdict: &VerdictBuilder) -> Vec<Advice> {
    let model = run.model;
    let worker = verdict.rank.and_then(|rank| run.view(rank)).and_then(program::stopped_child);
    let rank = verdict.rank.and_then(|rank| model.ranks.get(rank.index()));
    let pid = rank.and_then(|rank| rank.sample.as_ref().map(|sample| sample.pid).or(rank.pid));
    let words = [
        ("run", model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default()),
        ("rank", verdict.rank.map(|rank| rank.to_string()).unwrap_or_default()),
        ("pid", pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ("worker", worker.map(|pid| pid.to_string()).unwrap_or_default()),
        ("host", verdict.host.clone().unwrap_or_default()),
        ("master", model.run.master.clone()),
    ];
    // Without a checkpoint, a restart cannot resume.
    let saved = !model.checkpoints.is_empty();
    filled_advice(verdict.assessment.reason.row().advice, saved, &words)
}

/// The rows of which every `{word}` has a value. Of a verdict about several ranks, the logs of all are advised.
fn filled_advice(rows: &[AdviceRow], saved: bool, words: &[(&str, String)]) -> Vec<Advice> {
    let can_fill = |row: &AdviceRow| [row.text, row.command].iter().all(|text| reason::can_fill(text, words));
    rows.iter()
        .filter(|row| saved || **row != reason::RESTART)
        .map(|row| if *row == reason::LOG && !can_fill(row) { reason::LOGS } else { *row })
        .filter(can_fill)
        .map(|row| Advice { text: fill(row.text, words), command: fill(row.command, words) })
        .collect()
}

/// The evidence without facts and observations.
fn card(run: &RunView<'_>, verdict: &VerdictBuilder) -> Card {
    let model = run.model;
    let view = |rank: Rank| run.view(rank);
    let draw = |rank: Rank| {
        Some(side(model.ranks.get(rank.index())?, view(rank).and_then(|view| view.inspection())))
    };
    let shown: Vec<Rank> = verdict.rank.into_iter().chain(verdict.waiter).collect();
    Card {
        culprit: verdict.rank.and_then(draw),
        waiter: verdict.waiter.and_then(draw),
        opposite: verdict.opposite.and_then(draw),
        others: others(model, &on_silent_hosts(&run.views, verdict.assessment.reason.kind()), &shown),
        ruled_out: ruled_out(model, verdict.rank.and_then(view), verdict),
        actions: advice(run, verdict),
        ..Card::default()
    }
}

/// Xid numbers of NVIDIA's list that concern a GPU rather than a program, with NVIDIA's words.
const XIDS: [(u64, &str); 17] = [
    (13, "graphics engine exception"),
    (31, "GPU memory page fault"),
    (43, "GPU stopped processing"),
    (45, "preemptive cleanup after earlier errors"),
    (48, "uncorrectable ECC error"),
    (62, "internal microcontroller halt"),
    (63, "row remapped"),
    (64, "row remapping failed"),
    (74, "NVLink error"),
    (79, "fallen off the bus"),
    (92, "high rate of corrected ECC errors"),
    (94, "contained ECC error"),
    (95, "uncontained ECC error"),
    (119, "GSP RPC timeout"),
    (120, "GSP error"),
    (121, "C2C link error"),
    (140, "unrecovered ECC error"),
];

/// Returns an Xid with its meaning: `79 (fallen off the bus)`.
pub(crate) fn xid_words(xid: u64) -> String {
    match XIDS.iter().find(|(number, _)| *number == xid) {
        Some((_, meaning)) => format!("{xid} ({meaning})"),
        None => xid.to_string(),
    }
}

/// Most ranks that are named one by one.
pub(crate) const NAMED: usize = 4;

/// `rank 1 on bee`.
fn who(rank: &RankModel) -> String {
    format!("rank {} on {}", rank.rank, rank.host)
}

pub(crate) fn name(model: &Model, rank: Rank) -> String {
    find(model, rank).map_or_else(|| format!("rank {rank}"), who)
}

pub(crate) fn find(model: &Model, rank: Rank) -> Option<&RankModel> {
    model.ranks.get(rank.index())
}

pub(crate) fn host_of(model: &Model, rank: Option<Rank>) -> Option<String> {
    find(model, rank?).map(|rank| rank.host.clone())
}

/// What an inspection shows in addition to the state of the rank itself.
pub(crate) fn inspected(view: Option<&RankView<'_>>) -> Vec<String> {
    let Some((view, inspection)) = view.and_then(|view| Some((view, view.inspection()?))) else {
        return Vec::new();
    };
    let rank = inspection.rank;
    let mut facts = Vec::new();
    let ended = inspection.children.iter().filter(|child| child.state == 'Z').take(NAMED);
    facts.extend(ended.map(|child| {
        let how = child.exit.as_ref().map_or_else(|| "has exited".to_owned(), Exit::predicate);
        format!("rank {rank}: child process {} ({}) {how}", child.pid, child.name)
    }));
    facts.extend(awaited_lines(inspection).into_iter().map(|line| format!("rank {rank}: {line}")));
    let variables = inspection.variables.iter().take(NAMED);
    facts.extend(variables.map(|text| format!("rank {rank}: variable {}", words::clip(text, 200))));
    let lossy =
        view.sockets().iter().filter(|socket| socket.backoff >= 2 || socket.retransmits >= 2).take(NAMED);
    facts.extend(lossy.map(|socket| {
        format!(
            "rank {rank}: TCP to {}: {}, {} retransmissions, nothing received for {}",
            socket.peer,
            unanswered(socket),
            socket.retransmits,
            words::duration_ms(u64::from(socket.last_received_ms))
        )
    }));
    if inspection.storage_moved > 0 {
        let moved = words::bytes(inspection.storage_moved);
        facts.push(format!("rank {rank}: the storage that it waits for moved {moved} during the inspection"));
    }
    facts.extend(inspection.gpu.iter().map(|gpu| format!("rank {rank}: {}", words::clip(gpu, 200))));
    facts.extend(ras(inspection));
    facts
}

/// The report of NCCL's RAS, or the note why it has none.
fn ras(inspection: &Inspection) -> Vec<String> {
    let report =
        inspection.ras.iter().take(NAMED).map(|line| format!("NCCL RAS: {}", words::clip(line, 200)));
    let silent =
        inspection.notes.iter().find(|note| inspection.ras.is_empty() && note.starts_with("NCCL RAS"));
    report.chain(silent.map(|note| words::clip(note, 200))).collect()
}

/// The driver's errors of a GPU.
pub(crate) fn complaint(gpu: &GpuSample) -> String {
    let xids: Vec<String> = gpu.xids.iter().map(|xid| xid_words(*xid)).collect();
    let lost = gpu.lost.then(|| "the driver has lost it".to_owned());
    let xids = (!xids.is_empty()).then(|| format!("Xid {}", xids.join(", ")));
    let errors: Vec<String> = lost.into_iter().chain(xids).collect();
    format!("GPU {} ({}): {}", gpu.index, gpu.name, errors.join(", "))
}

/// The ranks that wait, in a few lines.
pub(crate) fn waiters(model: &Model, ranks: &[Rank]) -> Vec<String> {
    let mut facts: Vec<String> = ranks
        .iter()
        .take(NAMED)
        .filter_map(|rank| {
            let rank = find(model, *rank)?;
            let sample = rank.sample.as_ref()?;
            let place = match (run_view::call(sample), &sample.page) {
                (Some(call), _) if call.inside => {
                    let site = call.call.at_site();
                    format!(
                        "has been waiting in {} for {}{site}",
                        call.name(),
                        words::duration_ms(call.age_ms)
                    )
                }
                (_, Some(page)) if page.collective.entered == 0 => {
                    format!(
                        "has been waiting for the process group for {}",
                        words::duration_ms(page.phase_age_ms)
                    )
                }
                _ => return None,
            };
            Some(format!("{} {place}", who(rank)))
        })
        .collect();
    if ranks.len() > NAMED {
        facts.push(format!("and {} more ranks are waiting", ranks.len() - NAMED));
    }
    facts
}

/// Why the link to a host is down.
pub(crate) fn link_error(state: &LinkState) -> Option<String> {
    let lost = if let LinkState::Lost { reason, .. } = state { Some(reason) } else { None };
    lost.or(state.failure().map(|failure| &failure.error)).map(|why| format!("link: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advice of this row where only these words are known.
    fn advised(row: &reason::ReasonRow, known: &[&str]) -> Vec<Advice> {
        let words = ["run", "rank", "pid", "worker", "host", "master"];
        let words = words.map(|word| (word, if known.contains(&word) { "X" } else { "" }.to_owned()));
        filled_advice(row.advice, true, &words)
    }

    #[test]
    fn advice_without_a_value_is_never_shown() {
        for row in reason::all_reasons() {
            for known in [&["run"][..], &["run", "host"], &["run", "rank", "host"], &[]] {
                for advice in advised(row, known) {
                    let all = [&advice.text, &advice.command];
                    let has_hole = |text: &&String| text.contains("  ") || text.trim() != text.as_str();
                    assert!(!all.iter().any(has_hole), "{}: {advice:?}", row.name);
                    assert!(!all.iter().any(|text| text.contains("``")), "{}: {advice:?}", row.name);
                    let needs_rank = advice.command.contains("--rank");
                    assert!(!needs_rank || known.contains(&"rank"), "{}: {advice:?}", row.name);
                }
            }
        }
    }

    #[test]
    fn verdict_without_rank_advises_logs_of_all() {
        let row = reason::Reason::WeightsNotFinite.row();
        let commands: Vec<String> = advised(row, &["run"]).into_iter().map(|advice| advice.command).collect();
        assert!(commands.contains(&"rankdeck logs X".to_owned()), "{commands:?}");
    }

    #[test]
    fn hang_advises_stack_and_suspended_worker_first() {
        let first = |reason: reason::Reason, known: &[&str]| advised(reason.row(), known)[0].command.clone();
        let alive = ["run", "rank", "pid", "host"];
        let stopped = ["run", "rank", "pid", "host", "worker"];
        for hang in [reason::Reason::DataLoader, reason::Reason::Pipe, reason::Reason::ChildProcess] {
            assert_eq!(first(hang, &alive), "rankdeck attach X");
            assert_eq!(first(hang, &stopped), "kill -s CONT X");
        }
        for hang in [reason::Reason::Lock, reason::Reason::WaitsForPeer, reason::Reason::TeardownStall] {
            assert_eq!(first(hang, &stopped), "rankdeck attach X");
        }
    }

    #[test]
    fn known_xids_have_a_meaning() {
        assert_eq!(xid_words(79), "79 (fallen off the bus)");
        assert_eq!(xid_words(7), "7");
        assert!(XIDS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
