//! Describes findings: the words of each reason's sentence, and the evidence.

use crate::card::{Advice, RankEvidence, ranges};
use crate::model::{Model, RankModel, SlowLink};
use crate::reason::{Certainty, Proof, Reason, SentenceForm, Severity};
use crate::report::VerdictReport;
use crate::watch::assess::finding::{Assessment, Finding, LateRank, SilenceCause, SilentHost};
use crate::watch::history::hosts::LinkLoss;
use crate::watch::history::inspections::{self, user_frame};
use crate::watch::history::program;
use crate::watch::history::run_view::{self, RankView, RunView};
use crate::watch::patterns::group_arguments::{ArgumentFault, ArgumentMismatch};
use crate::watch::patterns::input::InputBound;
use crate::watch::patterns::mismatch::CollectiveMismatch;
use crate::watch::patterns::network::NetworkFault;
use crate::watch::patterns::speed::SlowRun;
use crate::watch::patterns::stragglers::{Straggler, used_up};
use crate::watch::report::builder::{
    NAMED, VerdictBuilder, complaint, find, host_of, inspected, link_error, name, side, waiters, xid_words,
};
use rankdeck_proto::inspection::Obstacle;
use rankdeck_proto::message::InputKind;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;

/// Most lines about the ranks of a stalled run.
const STALLED_LINES: usize = 32;

/// Describes a finding.
pub(crate) fn verdict(run: &RunView<'_>, finding: &Finding) -> VerdictReport {
    match finding {
        Finding::Halted { rank, reason, halted_ms } => halted(run, *rank, *reason, *halted_ms),
        Finding::LateRank { late, assessment } => late_rank(run, late, *assessment),
        Finding::Mismatch { mismatch: what, waited_ms } => mismatch(run, what, *waited_ms),
        Finding::OrderDeadlock { ring, waited_ms, is_proved } => {
            order_deadlock(run, ring, *waited_ms, *is_proved)
        }
        Finding::InsideCollective { members, seq, waited_ms, severity } => {
            inside_collective(run, members, *seq, *waited_ms, *severity)
        }
        Finding::Network(fault) | Finding::LinkDown { fault, .. } => network(run, fault.clone()),
        Finding::LossyNetwork { place, waiters, group, seq, waited_ms } => {
            lossy_network(run, place, waiters, group, *seq, *waited_ms)
        }
        Finding::Gpu { rank, reason } => gpu(run, *rank, *reason),
        Finding::OptimizerIdle { rank, own, theirs, collectives } => {
            optimizer_idle(run, *rank, [*own, *theirs, *collectives])
        }
        Finding::NoCollectives { ranks, updates, iterations } => {
            no_collectives(run, ranks, *updates, *iterations)
        }
        Finding::Arguments(mismatch) => arguments(run, mismatch),
        Finding::RankVariables { ranks, names } => rank_variables(run, ranks, names),
        Finding::SeparatePrograms { ranks } => separate_programs(run, ranks),
        Finding::RendezvousBlocked { waited_ms } => rendezvous_blocked(run, *waited_ms),
        Finding::SilentHost(silent) => silent_host(run, silent),
        Finding::Stall { rank, severity, still_ms } => stall(run, *rank, *severity, *still_ms),
        Finding::Straggler(slow) => straggler(run, slow),
        Finding::SlowRun(slow) => slow_run(run, *slow),
        Finding::InputBound(bound) => input_bound(run, bound),
        Finding::SharedCore { node, core, count } => shared_core(run, *node, *core, *count),
    }
}

/// Describes one rank as an evidence table does.
fn describe(run: &RunView<'_>, rank: Rank) -> Option<RankEvidence> {
    Some(side(find(run.model, rank)?, run.view(rank).and_then(|view| view.inspection())))
}

/// What an inspection of the culprit showed, and the waiting ranks.
fn observations(run: &RunView<'_>, culprit: Rank, waiting: &[Rank]) -> Vec<String> {
    inspected(run.view(culprit)).into_iter().chain(waiters(run.model, waiting)).collect()
}

/// A process that is stopped, traced or frozen.
fn halted(run: &RunView<'_>, rank: Rank, reason: Reason, halted_ms: u64) -> VerdictReport {
    let found = find(run.model, rank);
    let sample = found.and_then(|found| found.sample.as_ref());
    let state = sample.map_or('T', |sample| sample.state);
    let inside = run.inside(rank);
    let cgroup = sample.and_then(|sample| sample.signals.cgroup.as_ref());
    let frozen = cgroup.filter(|_| reason == Reason::CgroupFrozen);
    // SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
    let sent = found.and_then(|found| found.signalled);
    let stopped = match sent.filter(|sent| state == 'T' && (19..=22).contains(&sent.signal)) {
        Some(sent) => format!("suspended by {} sent from a console", words::signal_name(sent.signal)),
        None => words::process_state(state).into(),
    };
    let words = vec![("who", name(run.model, rank)), ("state", stopped), ("letter", state.to_string())];
    VerdictBuilder {
        rank: Some(rank),
        host: host_of(run.model, Some(rank)),
        waiter: inside.first().copied(),
        facts: frozen.map(|cgroup| format!("cgroup {} is frozen", cgroup.path)).into_iter().collect(),
        observations: observations(run, rank, &inside),
        latency_ms: halted_ms,
        ..VerdictBuilder::new(Assessment::proved(Proof::Halted, reason), words)
    }
    .build(run)
}

/// One rank holds the others up.
fn late_rank(run: &RunView<'_>, late: &LateRank, assessment: Assessment) -> VerdictReport {
    let form = if late.ahead {
        SentenceForm::Alone
    } else if assessment.severity == Severity::Amber {
        SentenceForm::Doubtful
    } else {
        SentenceForm::Usual
    };
    let mut facts = match late.also.as_slice() {
        [] => Vec::new(),
        also => vec![format!("also late: ranks {}", ranges(also))],
    };
    let inner = find(run.model, late.rank).and_then(RankModel::inner_ranks);
    facts.extend(inner.map(|inner| format!("rank {} has spawned {inner}", late.rank)));
    facts.extend(find(run.model, late.rank).and_then(ended_thread));
    if matches!(assessment.reason, Reason::HostOverloaded | Reason::Throttled) {
        facts.extend(run.view(late.rank).map(shortage_of_cores).unwrap_or_default());
    }
    VerdictBuilder {
        form,
        rank: Some(late.rank),
        host: host_of(run.model, Some(late.rank)),
        waiter: late.waiters.first().copied(),
        facts,
        observations: observations(run, late.rank, &late.waiters),
        latency_ms: late.waited_ms,
        compared: (late.seq > 1 && !late.group.is_empty()).then(|| late.seq - 1),
        ..VerdictBuilder::new(assessment, words_about(run, late))
    }
    .build(run)
}

/// The exception that ended one of its threads: what the thread should have done may be what the rank waits for.
fn ended_thread(rank: &RankModel) -> Option<String> {
    let exception = rank.exception.as_ref().filter(|exception| !exception.thread.is_empty())?;
    let at =
        Some(&exception.at).filter(|at| !at.is_empty()).map(|at| format!(" at {}", words::clip(at, 120)));
    let message = words::clip(&format!("{}: {}", exception.class, exception.message), 200);
    let (thread, at) = (words::clip(&exception.thread, 40), at.unwrap_or_default());
    Some(format!("rank {}: its thread {thread} ended with {message}{at}", rank.rank))
}

/// Values for every `{word}` that a sentence about a late rank may use.
fn words_about(run: &RunView<'_>, late: &LateRank) -> Vec<(&'static str, String)> {
    let culprit = find(run.model, late.rank);
    let view = run.view(late.rank);
    let page = culprit.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
    let own = page.filter(|page| !page.by_hook);
    let phase = own.map_or("user code", |page| page.phase.name());
    let doing = match own.map(|page| page.activity.name()) {
        None => phase.to_string(),
        Some("") => format!("phase {phase}"),
        Some(activity) => format!("phase {phase} ({activity})"),
    };
    let amount = page.filter(|page| page.total > 0).map(|page| format!(" {}/{}", page.done, page.total));
    let at = view.and_then(|view| view.inspection()).and_then(user_frame);
    let obstacle = view.and_then(|view| view.inspection()?.obstacle.as_ref());
    let obstacle =
        obstacle.map_or_else(|| "data from the network".to_owned(), |found| words::clean(&found.words()));
    let child = view.and_then(ended_child);
    let stopped = view.and_then(program::stopped_child);
    let goal = run.model.run.total_steps;
    let others = match late.waiters.as_slice() {
        [_] => "1 rank is waiting".to_string(),
        many => format!("{} ranks are waiting", many.len()),
    };
    let awaited = awaited(run, late);
    let after = if late.group.is_empty() {
        format!("ranks {} lost their connection to it", ranges(&late.waiters))
    } else {
        format!("{others} in {awaited}")
    };
    vec![
        ("who", name(run.model, late.rank)),
        ("rank", late.rank.to_string()),
        ("phase", phase.to_string()),
        ("doing", doing),
        ("amount", amount.unwrap_or_default()),
        ("start", view.map(start).unwrap_or_default()),
        ("at", at.map(|at| format!(" at {at}")).unwrap_or_default()),
        ("about", view.map(refers_to).unwrap_or_default()),
        ("obstacle", obstacle),
        ("child", child.map(|child| format!(" ({child})")).unwrap_or_default()),
        ("stopped", stopped.map(|pid| format!(" (pid {pid} is suspended)")).unwrap_or_default()),
        ("iteration", own.map(|page| format!(", in iteration {}", page.train_iter)).unwrap_or_default()),
        ("goal", goal.map(|goal| format!(" of a run of {goal} steps")).unwrap_or_default()),
        ("others", others),
        ("arrived", arrived(run.model)),
        ("awaited", awaited),
        ("after", after),
        ("waited", words::duration_ms(late.waited_ms)),
    ]
}

/// What it does instead of joining: ` and is computing at train.py:9 in main`.
fn start(view: &RankView<'_>) -> String {
    let at = view.inspection().and_then(user_frame).map(|at| format!(" at {at}")).unwrap_or_default();
    match (view.never_sleeps(), at.is_empty()) {
        (true, _) => format!(" and is computing{at}"),
        (false, true) => String::new(),
        (false, false) => format!(" and is{at}"),
    }
}

/// What the loop refers to in which it sleeps: ` (path = /data/ready.flag)`.
fn refers_to(view: &RankView<'_>) -> String {
    let named = view.inspection().and_then(|inspection| inspection.variables.first());
    named.map(|text| format!(" ({})", words::clip(text, 120))).unwrap_or_default()
}

/// The child that has exited, and how: `pid 77, killed by SIGKILL`.
fn ended_child(view: &RankView<'_>) -> Option<String> {
    let pid = program::lost_worker(view)?.pid;
    let known = view.inspection().and_then(|inspection| {
        inspection
            .children
            .iter()
            .find(|child| child.pid == pid)?
            .exit
            .as_ref()
            .map(|exit| format!(", {exit}"))
    });
    Some(format!("pid {pid}{}", known.unwrap_or_default()))
}

/// How many ranks have called `init_process_group`.
fn arrived(model: &Model) -> String {
    format!("{} of {} arrived", model.arrived_ranks(), words::plural(model.ranks.len(), "rank"))
}

/// The collective that the waiting ranks are in.
fn awaited(run: &RunView<'_>, late: &LateRank) -> String {
    let alone = [late.rank];
    let in_it = if late.ahead { &alone[..] } else { &late.waiters };
    let call = in_it.iter().find_map(|rank| {
        let view = run.view(*rank)?;
        view.waiting_call().filter(|_| view.waiting().is_some_and(|group| group.name == late.group))
    });
    match call {
        Some(call) => call.name(),
        None if late.group.is_empty() => "the process group".into(),
        None => format!("collective #{}", late.seq),
    }
}

/// Ranks called different collectives.
fn mismatch(run: &RunView<'_>, what: &CollectiveMismatch, waited_ms: u64) -> VerdictReport {
    let side = what.odd.first().copied().unwrap_or_default();
    let CollectiveMismatch { seq, mine, theirs, other, .. } = what;
    let in_group = what.group != run_view::WORLD;
    let words = vec![
        ("who", what.rank.map(|rank| name(run.model, rank)).unwrap_or_default()),
        ("side", side.to_string()),
        ("other", other.to_string()),
        ("seq", seq.to_string()),
        ("group", if in_group { format!(" of group {}", what.group) } else { String::new() }),
        ("mine", mine.clone()),
        ("theirs", theirs.clone()),
    ];
    let mut facts =
        vec![format!("rank {side} at #{seq}: {mine}"), format!("rank {other} at #{seq}: {theirs}")];
    if what.odd.len() > 1 {
        facts.push(format!("ranks that deviate: {}", ranges(&what.odd)));
    }
    // Without a culprit, the evidence table has no column for the first of those that deviate.
    let unnamed = describe(run, side).filter(|_| what.rank.is_none());
    let mut seen: Vec<String> = unnamed.iter().flat_map(RankEvidence::evidence).collect();
    seen.extend(observations(run, side, &run.inside(side)));
    let certainty = what.proof.map_or(Certainty::Likely, Certainty::Proved);
    VerdictBuilder {
        form: if what.rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank: what.rank,
        host: host_of(run.model, what.rank),
        waiter: Some(*other),
        opposite: what.rank.is_none().then_some(side),
        facts,
        observations: seen,
        latency_ms: waited_ms,
        compared: seq.checked_sub(1).filter(|seq| *seq > 0),
        ..VerdictBuilder::new(Assessment::usual(certainty, what.reason), words)
    }
    .build(run)
}

/// Groups used in different orders.
fn order_deadlock(
    run: &RunView<'_>,
    ring: &[(Rank, String)],
    waited_ms: u64,
    is_proved: bool,
) -> VerdictReport {
    let places: Vec<String> = ring
        .iter()
        .take(NAMED)
        .filter_map(|(rank, _)| {
            let call = run.view(*rank)?.waiting_call()?;
            let site = call.call.at_site();
            Some(format!("rank {rank} is waiting in {}{site}", call.name()))
        })
        .collect();
    let ranks: Vec<Rank> = ring.iter().map(|(rank, _)| *rank).collect();
    let words = vec![("ranks", ranges(&ranks)), ("places", places.join(", "))];
    let mut facts = places;
    facts.push("each of them waits in a process group that another one has not entered".into());
    let certainty = if is_proved { Certainty::Proved(Proof::Ring) } else { Certainty::Likely };
    VerdictBuilder {
        waiter: ranks.first().copied(),
        opposite: ranks.get(1).copied(),
        facts,
        latency_ms: waited_ms,
        ..VerdictBuilder::new(Assessment::usual(certainty, Reason::OrderDeadlock), words)
    }
    .build(run)
}

/// All members are inside the same collective.
fn inside_collective(
    run: &RunView<'_>,
    members: &[Rank],
    seq: u64,
    waited_ms: u64,
    severity: Severity,
) -> VerdictReport {
    let first = members.first().copied();
    let call = first.and_then(|rank| run.view(rank)?.waiting_call());
    let words = vec![
        ("count", members.len().to_string()),
        ("call", call.map_or(format!("collective #{seq}"), |call| call.name())),
        ("waited", words::duration_ms(waited_ms)),
    ];
    let mut observations = waiters(run.model, members);
    for rank in members.iter().take(NAMED) {
        observations.extend(describe(run, *rank).iter().flat_map(RankEvidence::seen));
        add_new(&mut observations, inspected(run.view(*rank)));
    }
    let assessment =
        Assessment { severity, ..Assessment::usual(Certainty::Possible, Reason::InsideCollective) };
    VerdictBuilder {
        waiter: first,
        observations,
        latency_ms: waited_ms,
        compared: Some(seq),
        ..VerdictBuilder::new(assessment, words)
    }
    .build(run)
}

/// TCP traffic between hosts is not acknowledged, or an interface is down.
fn network(run: &RunView<'_>, fault: NetworkFault) -> VerdictReport {
    let NetworkFault { host, reason, certainty, words, facts, since_ms, waiter } = fault;
    VerdictBuilder {
        host,
        waiter,
        facts,
        latency_ms: since_ms,
        ..VerdictBuilder::new(Assessment::usual(certainty, reason), words)
    }
    .build(run)
}

/// TCP traffic is retransmitted while ranks wait: a late rank there is not the culprit.
fn lossy_network(
    run: &RunView<'_>,
    place: &str,
    waiters: &[Rank],
    group: &str,
    seq: u64,
    waited_ms: u64,
) -> VerdictReport {
    let first = waiters.first().copied();
    let late = LateRank {
        rank: first.unwrap_or_default(),
        waiters: waiters.to_vec(),
        group: group.to_owned(),
        seq,
        waited_ms,
        ..LateRank::default()
    };
    let assessment =
        Assessment { severity: Severity::Amber, ..Assessment::usual(Certainty::Likely, Reason::NetworkLoss) };
    let words = words_about(run, &late).into_iter().chain([("where", place.to_owned())]).collect();
    VerdictBuilder {
        form: SentenceForm::Doubtful,
        waiter: first,
        observations: waiters_and_inspections(run, waiters),
        latency_ms: waited_ms,
        ..VerdictBuilder::new(assessment, words)
    }
    .build(run)
}

/// A GPU is lost or reports an error.
fn gpu(run: &RunView<'_>, rank: Rank, reason: Reason) -> VerdictReport {
    let gpu = run.view(rank).and_then(|view| view.gpu);
    let xid = gpu.and_then(|gpu| gpu.xids.last()).map(|xid| xid_words(*xid));
    let words = vec![
        ("who", name(run.model, rank)),
        ("gpu", gpu.map(|gpu| gpu.index.to_string()).unwrap_or_default()),
        ("xid", xid.unwrap_or_default()),
    ];
    let inside = run.inside(rank);
    VerdictBuilder {
        rank: Some(rank),
        host: host_of(run.model, Some(rank)),
        waiter: inside.first().copied(),
        facts: gpu.map(complaint).into_iter().collect(),
        observations: waiters(run.model, &inside),
        ..VerdictBuilder::new(Assessment::proved(Proof::Lost, reason), words)
    }
    .build(run)
}

/// The optimizer of a rank makes no steps any more.
fn optimizer_idle(run: &RunView<'_>, rank: Rank, counts: [u64; 3]) -> VerdictReport {
    let [own, theirs, collectives] = counts.map(|count| count.to_string());
    let who = name(run.model, rank);
    let words = vec![("who", who), ("own", own), ("theirs", theirs), ("collectives", collectives)];
    VerdictBuilder {
        rank: Some(rank),
        host: host_of(run.model, Some(rank)),
        ..VerdictBuilder::new(Assessment::usual(Certainty::Likely, Reason::OptimizerIdle), words)
    }
    .build(run)
}

/// Ranks update their weights without any collective.
fn no_collectives(run: &RunView<'_>, ranks: &[Rank], updates: u64, iterations: u64) -> VerdictReport {
    let one = (ranks.len() == 1).then(|| ranks.first().copied()).flatten();
    let words = vec![
        ("who", one.map(|rank| name(run.model, rank)).unwrap_or_default()),
        ("ranks", ranges(ranks)),
        ("updates", updates.to_string()),
        ("iterations", iterations.to_string()),
    ];
    VerdictBuilder {
        form: if one.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank: one,
        host: host_of(run.model, one),
        facts: vec!["without exchanged gradients, every rank trains a different model".into()],
        ..VerdictBuilder::new(Assessment::proved(Proof::Reported, Reason::NoCollectives), words)
    }
    .build(run)
}

/// A rank slows the run.
fn straggler(run: &RunView<'_>, slow: &Straggler) -> VerdictReport {
    let lost = format!("{:.0}", slow.lost * 100.0);
    let mut facts = slow.facts.clone();
    facts.push(format!("the others lost {lost}% of their time waiting for it"));
    facts.extend(slow_links(run.model, slow.rank));
    let words = vec![("who", name(run.model, slow.rank)), ("lost", lost)];
    VerdictBuilder {
        rank: Some(slow.rank),
        host: host_of(run.model, Some(slow.rank)),
        facts,
        latency_ms: slow.over_ms,
        ..VerdictBuilder::new(Assessment::usual(Certainty::Likely, slow.reason), words)
    }
    .build(run)
}

/// Links of a rank's host to other hosts of the run that were slow before the launch.
fn slow_links(model: &Model, rank: Rank) -> Vec<String> {
    let own = host_of(model, Some(rank)).unwrap_or_default();
    let is_member = |name: &String| model.ranks.iter().any(|rank| rank.host == *name);
    let between = |link: &&SlowLink| link.hosts.contains(&own) && link.hosts.iter().all(is_member);
    let found = model.slow_links.iter().filter(between).take(NAMED);
    let sentence = |link: &SlowLink| {
        let [one, other] = &link.hosts;
        let (own, usual) = (words::bit_rate(link.bps), words::bit_rate(link.usual_bps));
        format!("the link {one} to {other} measured {own} on {}, the usual link {usual}", link.day)
    };
    found.map(sentence).collect()
}

/// The run is slower than it was.
fn slow_run(run: &RunView<'_>, slow: SlowRun) -> VerdictReport {
    let words = vec![("before", format!("{:.1}", slow.before)), ("now", format!("{:.1}", slow.now))];
    VerdictBuilder::new(Assessment::usual(Certainty::Likely, Reason::SlowRun), words).build(run)
}

/// The run waits for its input.
fn input_bound(run: &RunView<'_>, bound: &InputBound) -> VerdictReport {
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let (input, advice) = match bound.kind {
        InputKind::DataLoader => ("the next batch", 0),
        InputKind::Environments => ("a step of its environments", 1),
    };
    let at = Some(words::clean(&bound.site)).filter(|site| !site.is_empty());
    let words = vec![
        ("share", format!("{:.0}", bound.share * 100.0)),
        ("input", input.to_owned()),
        ("at", at.map(|at| format!(" at {at}")).unwrap_or_default()),
    ];
    let each = bound.ranks.iter().take(NAMED);
    let mut verdict = VerdictBuilder {
        facts: each.map(|(rank, share)| format!("{}: {}", name(run.model, *rank), percent(*share))).collect(),
        latency_ms: bound.over_ms,
        ..VerdictBuilder::new(Assessment::usual(Certainty::Likely, Reason::InputBound), words)
    }
    .build(run);
    // The row has one advice for each kind of input.
    let fits = verdict.card.actions.drain(..).enumerate().filter(|(place, _)| *place == advice);
    let fits: Vec<Advice> = fits.map(|(_, advice)| advice).collect();
    verdict.card.actions = fits;
    verdict
}

/// All ranks of a host are bound to one core.
fn shared_core(run: &RunView<'_>, node: NodeRank, core: u32, count: usize) -> VerdictReport {
    let host = run.model.hosts.get(node.index());
    let name = host.map(|host| host.name.clone()).unwrap_or_default();
    let cores = host.and_then(|host| host.sample.as_ref()).map_or(0, |sample| sample.cpu_count);
    let words = vec![("count", count.to_string()), ("host", name.clone()), ("core", core.to_string())];
    VerdictBuilder {
        host: Some(name),
        facts: vec![format!("the host has {cores} cores")],
        ..VerdictBuilder::new(Assessment::usual(Certainty::Likely, Reason::SharedCore), words)
    }
    .build(run)
}

/// A host that sends no messages.
fn silent_host(run: &RunView<'_>, silent: &SilentHost) -> VerdictReport {
    let SilentHost { node, assessment, silence_ms, ref cause, starved, ranks_alive } = *silent;
    let host = run.model.hosts.get(node.index());
    let name = host.map(|host| host.name.clone()).unwrap_or_default();
    let why = match cause {
        SilenceCause::Unreachable => "unreachable".to_owned(),
        SilenceCause::AgentSilent => "connected, but the agent is not responding".to_owned(),
        SilenceCause::LinkDown(LinkLoss::Silence) => "no data over the connection, reconnecting".to_owned(),
        SilenceCause::LinkDown(LinkLoss::Error(error)) => format!("{error}; reconnecting"),
        SilenceCause::LinkDown(LinkLoss::Unknown) => "connection lost, reconnecting".to_owned(),
    };
    let silence = words::duration_ms(silence_ms);
    let mut facts = vec![format!("last message {silence} ago")];
    if starved {
        facts.push("host CPUs were oversubscribed at its last message: the agent may be short of CPU".into());
    }
    facts.extend(host.and_then(|host| link_error(&host.link)));
    facts.push(if ranks_alive {
        "other ranks make progress, so its ranks are alive; only this console is disconnected".into()
    } else {
        "its ranks may still be running; verdicts about them wait until it responds".into()
    });
    let words = vec![("host", name.clone()), ("silence", silence), ("why", why)];
    VerdictBuilder {
        host: Some(name),
        facts,
        latency_ms: silence_ms,
        ..VerdictBuilder::new(assessment, words)
    }
    .build(run)
}

/// The whole run is stalled.
fn stall(run: &RunView<'_>, rank: Option<Rank>, severity: Severity, still_ms: u64) -> VerdictReport {
    let views = &run.views;
    let culprits: Vec<&RankView> =
        views.iter().filter(|view| rank.is_none_or(|rank| rank == view.rank)).collect();
    let at = culprits.iter().find_map(|view| view.inspection().and_then(user_frame));
    let words = vec![
        ("who", rank.map(|rank| name(run.model, rank)).unwrap_or_default()),
        ("count", views.len().to_string()),
        ("cause", common_wait(&culprits)),
        ("at", at.map(|at| format!(" at {at}")).unwrap_or_default()),
        ("waited", words::duration_ms(still_ms)),
    ];
    let assessment = Assessment { severity, certainty: Certainty::Likely, reason: Reason::Standstill };
    VerdictBuilder {
        form: if rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank,
        host: host_of(run.model, rank),
        waiter: views.iter().map(|view| view.rank).find(|other| rank.is_some_and(|rank| rank != *other)),
        observations: stalled_ranks(run),
        latency_ms: still_ms,
        ..VerdictBuilder::new(assessment, words)
    }
    .build(run)
}

/// Describes what a stalled rank waits for.
fn waits_for(view: &RankView<'_>) -> String {
    let named = view.inspection().and_then(|inspection| inspection.obstacle.as_ref()).map(Obstacle::words);
    let inspected = named.or_else(|| view.inspection().and_then(|inspection| inspection.blocked_on.clone()));
    let kernel = || Some(view.sample.wchan.clone()).filter(|wchan| !wchan.is_empty());
    match view.sample.state {
        'D' => inspected.map_or("the kernel (probably unresponsive storage)".into(), |what| {
            format!("the kernel: {what}")
        }),
        _ => inspected.or_else(kernel).unwrap_or_else(|| "something unknown".into()),
    }
}

/// Describes what all culprits of a stall wait for. Numbers differ from process to process: those that differ
/// are left out.
fn common_wait(culprits: &[&RankView<'_>]) -> String {
    let bare = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let all: Vec<String> = culprits.iter().map(|view| waits_for(view)).collect();
    match all.split_first() {
        Some((first, others)) if others.iter().all(|other| bare(other) == bare(first)) => {
            let shared = |(at, word)| others.iter().all(|other| other.split(' ').nth(at) == Some(word));
            let word = |(at, word)| if shared((at, word)) { word } else { "..." };
            let common: Vec<&str> = first.split(' ').enumerate().map(word).collect();
            format!("waiting for {}", words::clip(&common.join(" "), 160))
        }
        _ => common_path(&all).unwrap_or_else(|| "each rank waits for something else".into()),
    }
}

/// The file that all of them wait for, in different calls.
fn common_path(waits: &[String]) -> Option<String> {
    let (first, others) = waits.split_first()?;
    let paths = |text: &str| -> Vec<String> {
        let words = text.split(' ').map(|word| word.trim_end_matches([',', ';']));
        words.filter(|word| word.len() > 1 && word.starts_with('/')).map(str::to_owned).collect()
    };
    let is_common = |path: &String| others.iter().all(|other| paths(other).contains(path));
    let path = paths(first).into_iter().find(is_common)?;
    Some(format!("waiting for {}", words::clip(&path, 160)))
}

/// One line for each rank, with the children and threads that explain it.
fn stalled_ranks(run: &RunView<'_>) -> Vec<String> {
    let views = || run.views.iter().take(inspections::MOST);
    let mut all: Vec<String> = views().map(|view| stalled_rank(run, view)).collect();
    for view in views() {
        let rank = find(run.model, view.rank);
        let explains =
            rank.is_some_and(|rank| !rank.inner.is_empty()) || program::lost_worker(view).is_some();
        if let Some(inner) = rank.and_then(RankModel::inner_ranks) {
            all.push(format!("rank {} has spawned {inner}", view.rank));
        }
        let side = rank.filter(|_| explains).map(|rank| side(rank, view.inspection()));
        let children = side.into_iter().flat_map(|side| side.children);
        all.extend(children.map(|child| format!("rank {}: {child}", view.rank)));
        let seen = view.inspection().map(inspections::awaited_lines).unwrap_or_default();
        all.extend(seen.into_iter().map(|line| format!("rank {}: {line}", view.rank)));
    }
    all.truncate(STALLED_LINES);
    all
}

fn stalled_rank(run: &RunView<'_>, view: &RankView<'_>) -> String {
    let at = view.inspection().and_then(user_frame).map(|at| format!(" at {at}")).unwrap_or_default();
    format!(
        "{} is waiting for {}{at}, no activity for {}",
        name(run.model, view.rank),
        words::clip(&waits_for(view), 160),
        words::duration_ms(view.quiet_ms())
    )
}

/// Ranks that called `init_process_group` with arguments that exclude each other or the plan.
fn arguments(run: &RunView<'_>, what: &ArgumentMismatch) -> VerdictReport {
    let side = what.odd.first().copied().unwrap_or_default();
    let others = |rank: Rank| name(run.model, rank);
    let theirs = match (what.fault, what.rank) {
        (ArgumentFault::SameRank, _) => format!("{} did so, too", others(what.other)),
        (ArgumentFault::Groups | ArgumentFault::Addresses, Some(_)) => {
            format!("{} {}", others(what.other), what.theirs)
        }
        _ => what.theirs.clone(),
    };
    let given = |rank: Rank| run.view(rank)?.page()?.group_arguments.as_ref();
    let site = given(side).map(|given| words::clean(&given.site)).filter(|site| !site.is_empty());
    let words = vec![
        ("who", what.rank.map(|rank| name(run.model, rank)).unwrap_or_default()),
        ("side", side.to_string()),
        ("other", what.other.to_string()),
        ("mine", words::clean(&what.mine)),
        ("theirs", words::clean(&theirs)),
        ("at", site.map(|site| format!(" at {site}")).unwrap_or_default()),
    ];
    let shown = |rank: &Rank| {
        let given = given(*rank)?;
        let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
        let port = given.port.map_or(String::new(), |port| format!(":{port}"));
        let backend = Some(&given.backend).filter(|backend| !backend.is_empty());
        let backend = backend.map(|backend| format!(", backend {}", words::clean(backend)));
        let variables = Some(given.contradicting.join(", ")).filter(|names| !names.is_empty());
        let variables = variables.map(|names| format!(" ({} contradict the plan)", words::clean(&names)));
        Some(format!(
            "{}: rank {} of {} at {}{port}{}{}",
            name(run.model, *rank),
            number(given.rank),
            number(given.world_size),
            words::clean(&given.address),
            backend.unwrap_or_default(),
            variables.unwrap_or_default()
        ))
    };
    let mut ranks: Vec<Rank> = what.odd.iter().copied().take(NAMED).chain([what.other]).collect();
    ranks.dedup();
    let (severity, certainty) = match what.fault {
        ArgumentFault::Groups => (Severity::Red, Certainty::Proved(Proof::Reported)),
        ArgumentFault::SameRank => (Severity::Red, Certainty::Proved(Proof::SameRankTwice)),
        ArgumentFault::Addresses | ArgumentFault::TooLarge => (Severity::Red, Certainty::Likely),
        ArgumentFault::Plan => (Severity::Amber, Certainty::Likely),
    };
    let assessment = Assessment { severity, certainty, reason: Reason::RendezvousMismatch };
    let mut verdict = VerdictBuilder {
        form: if what.rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank: what.rank,
        host: host_of(run.model, what.rank),
        waiter: Some(what.other).filter(|other| what.rank != Some(*other)),
        facts: ranks.iter().filter_map(shown).collect(),
        observations: waiters(run.model, &what.waiters),
        latency_ms: what.waited_ms,
        ..VerdictBuilder::new(assessment, words)
    }
    .build(run);
    if let Some(variable) = &what.variable {
        let text = match variable.as_str() {
            "LOCAL_RANK" => "use RANK for the rank, and LOCAL_RANK only to select the device".to_owned(),
            "RANK" => "keep the RANK that rankdeck sets".to_owned(),
            other => format!("remove {} from the environment, or use RANK instead", words::clean(other)),
        };
        verdict.card.actions.insert(0, Advice { text, command: String::new() });
    }
    verdict
}

/// Variables of launchers that contradict the plan.
fn rank_variables(run: &RunView<'_>, ranks: &[Rank], names: &[String]) -> VerdictReport {
    let which = if let [one] = ranks { format!("rank {one}") } else { format!("ranks {}", ranges(ranks)) };
    let names: Vec<String> = names.iter().take(NAMED).map(|name| words::clean(name)).collect();
    let words = vec![("variables", names.join(", ")), ("ranks", which)];
    VerdictBuilder::new(Assessment::proved(Proof::Reported, Reason::RankVariables), words).build(run)
}

/// Ranks that step optimizers and have no process group with others.
fn separate_programs(run: &RunView<'_>, ranks: &[Rank]) -> VerdictReport {
    let steps = |rank: &Rank| {
        let steps = run.view(*rank)?.page()?.updates;
        Some(format!("{}: {}", name(run.model, *rank), words::plural(steps as usize, "optimizer step")))
    };
    let facts = ranks.iter().take(NAMED).filter_map(steps).collect();
    let words = vec![("count", ranks.len().to_string())];
    let assessment = Assessment::proved(Proof::Reported, Reason::SeparatePrograms);
    VerdictBuilder { facts, ..VerdictBuilder::new(assessment, words) }.build(run)
}

/// All ranks wait for a group that does not form.
fn rendezvous_blocked(run: &RunView<'_>, waited_ms: u64) -> VerdictReport {
    let all: Vec<Rank> = run.model.ranks.iter().map(|rank| rank.rank).collect();
    let words = vec![("waited", words::duration_ms(waited_ms))];
    VerdictBuilder {
        waiter: all.first().copied(),
        observations: waiters(run.model, &all),
        latency_ms: waited_ms,
        ..VerdictBuilder::new(Assessment::usual(Certainty::Likely, Reason::RendezvousBlocked), words)
    }
    .build(run)
}

/// How short of cores a rank is, for a rank whose silence is not critical because of it.
fn shortage_of_cores(view: &RankView<'_>) -> Vec<String> {
    let (host, moved) = (&view.host, view.moved());
    let mut facts = Vec::new();
    if let Some(share) = moved.throttled.filter(|share| *share >= program::DELAYED) {
        facts.push(used_up(share));
    }
    if host.is_busy() {
        let pressure = host.pressure.map(|(cpu, _)| format!(", tasks wait for a core {cpu:.0}% of the time"));
        facts.push(format!(
            "host CPUs: {:.0}% busy{}, {:.1} runnable tasks per core",
            host.cpu_percent,
            pressure.unwrap_or_default(),
            host.crowd
        ));
    }
    if let Some(cpu) = moved.main_cpu.or(moved.cpu).filter(|_| moved.over_ms > 0) {
        facts.push(format!(
            "over the latest {}: running {:.0}% of the time, ready without a core {:.0}%",
            words::duration_ms(moved.over_ms),
            cpu.min(1.0) * 100.0,
            moved.delayed.min(1.0) * 100.0
        ));
    }
    facts.push(format!(
        "the verdict becomes critical only after {} times the usual silence",
        program::stretch(view)
    ));
    facts
}

/// The waiting ranks, and what inspections of them showed.
fn waiters_and_inspections(run: &RunView<'_>, ranks: &[Rank]) -> Vec<String> {
    let mut all = waiters(run.model, ranks);
    add_new(&mut all, ranks.iter().take(NAMED).flat_map(|rank| inspected(run.view(*rank))));
    all
}

/// Adds new facts: every inspection repeats those about the whole run.
fn add_new(all: &mut Vec<String>, facts: impl IntoIterator<Item = String>) {
    for fact in facts {
        if !all.contains(&fact) {
            all.push(fact);
        }
    }
}
