//! Verdicts about facts: a process that exited, weights or totals that differ, a run that does not learn.

use crate::card::{Advice, ranges};
use crate::exit_message::ExitMessage;
use crate::join::JoinedIteration;
use crate::model::{Model, RankLife};
use crate::reason::{Proof, Reason, SentenceForm, Severity};
use crate::report::VerdictReport;
use crate::watch::assess::finding::{self, AbnormalExit, Assessment};
use crate::watch::history::run_view::RunView;
use crate::watch::patterns::group_arguments;
use crate::watch::patterns::learning::LearningIssue;
use crate::watch::patterns::normalizers::NormalizerDrift;
use crate::watch::patterns::replicas::{DriftConfidence, NotFinite, WeightDrift};
use crate::watch::report::builder::{VerdictBuilder, complaint, find, host_of, name};
use rankdeck_proto::message::{Exit, Membership};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// Most log lines in the evidence.
const LOG_LINES: usize = 6;
/// Most characters of an error message with its cause.
const SHOWN: usize = 700;

/// The driver's errors of the rank's GPU.
fn gpu_complaint(model: &Model, rank: Rank) -> Option<String> {
    let rank = find(model, rank)?;
    let sample = model.hosts.get(rank.node.index())?.sample.as_ref()?;
    let gpu = sample.gpus.iter().find(|gpu| Some(gpu.index) == rank.gpu)?;
    (gpu.lost || !gpu.xids.is_empty()).then(|| complaint(gpu))
}

/// Describes a process that failed.
pub(crate) fn dead(model: &Model, rank: Rank, death: &AbnormalExit<'_>) -> VerdictReport {
    let &AbnormalExit { exit, message, last_lines, victim_of, sent, .. } = death;
    let found = find(model, rank);
    let mut ended = exit.predicate();
    match sent {
        Some(_) if matches!(exit, Exit::Signal { .. }) => ended.push_str(", sent from a console"),
        Some(signal) => ended.push_str(&format!(" after {} sent from a console", words::signal_name(signal))),
        None => {}
    }
    let shown = exit.message(message.shown(), last_lines);
    if !shown.is_empty() {
        ended.push_str(&format!(": {}", words::clip(&words::clean_output(shown), SHOWN)));
    }
    let deviation = group_arguments::deviation(model, rank).map(|deviation| words::clean(&deviation));
    if let Some(deviation) = &deviation {
        ended.push_str(&format!("; it had called init_process_group {deviation}"));
    }
    let assessment = death.assessment();
    let secondary = match victim_of {
        Some(rank) => Some(format!("secondary failure: rank {rank} failed first")),
        None if assessment.reason == Reason::MismatchAbort => {
            Some("secondary failure: another rank called a different collective".into())
        }
        None if assessment.severity == Severity::Amber => {
            Some("secondary failure: its connection to another rank broke".into())
        }
        None => None,
    };
    let log = log_excerpt(last_lines, message);
    let draft = VerdictBuilder {
        rank: Some(rank),
        host: host_of(model, Some(rank)),
        facts: secondary.into_iter().chain(gpu_complaint(model, rank)).chain(log).collect(),
        ..VerdictBuilder::new(assessment, vec![("who", name(model, rank)), ("ended", ended)])
    };
    let mut verdict = draft.build(&RunView::without_ranks(model));
    let hint = found.and_then(|rank| rank.error.as_ref()).map(|error| &error.1);
    if deviation.is_some() {
        let text = "use RANK for the rank, and LOCAL_RANK only to select the device".into();
        verdict.card.actions.insert(0, Advice { text, command: String::new() });
    }
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        // The program's own hint comes first.
        verdict.card.actions.insert(0, Advice { text: hint.clone(), command: String::new() });
    }
    verdict
}

/// Describes a rank that the others outlive; `change`: the membership without it, once they have agreed on one.
pub(crate) fn lost(model: &Model, rank: Rank, change: Option<&Membership>) -> VerdictReport {
    let exit = find(model, rank).and_then(|rank| match &rank.life {
        RankLife::Exited(exit) => Some(exit),
        RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished => None,
    });
    let ended = exit.map_or("left the process group".to_owned(), Exit::predicate);
    let (after, facts) = match change {
        Some(change) => (
            format!(
                "{} of {} continue after iteration {}",
                change.ranks.len(),
                words::plural(model.ranks.len(), "rank"),
                change.iteration
            ),
            vec![
                format!("ranks {} continue after step {}", ranges(&change.ranks), words::count(change.steps)),
                format!("{} not in the totals", words::plural(change.steps_lost as usize, "step")),
                format!("new group after {}", words::duration(change.seconds)),
            ],
        ),
        None => ("the other ranks are forming a group without it".to_owned(), Vec::new()),
    };
    let words = vec![("who", name(model, rank)), ("ended", ended), ("after", after)];
    let proof = if exit.is_some() { Proof::Gone } else { Proof::Reported };
    let draft = VerdictBuilder {
        rank: Some(rank),
        host: host_of(model, Some(rank)),
        facts,
        ..VerdictBuilder::new(Assessment::proved(proof, Reason::RankLost), words)
    };
    draft.build(&RunView::without_ranks(model))
}

/// The end of a log as facts, repeated lines as one. The line with the error is kept, whatever follows it.
fn log_excerpt(lines: &[String], message: &ExitMessage) -> Vec<String> {
    let mut folded: Vec<(&String, u32)> = Vec::new();
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        match folded.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => folded.push((line, 1)),
        }
    }
    let from = folded.len().saturating_sub(LOG_LINES);
    let error = folded.iter().rposition(|(line, _)| message.is_in(line)).filter(|at| *at < from);
    let kept = error.into_iter().chain(from + usize::from(error.is_some())..folded.len());
    let shown = kept.filter_map(|at| folded.get(at)).map(|(line, times)| {
        let line = words::clip(&words::clean_output(line), 200);
        if *times > 1 { format!("log: {line} ({times} times)") } else { format!("log: {line}") }
    });
    shown.collect()
}

/// Describes differing weights of the built-in trainer. `members`: the ranks of the values; empty: all.
pub(crate) fn drift(
    model: &Model,
    train_iter: u64,
    values: &[String],
    members: &[Rank],
) -> (Option<Rank>, VerdictReport) {
    let rank_of = |index: usize| members.get(index).copied().unwrap_or(Rank(index as u32));
    let votes = |value: &String| values.iter().filter(|other| *other == value).count();
    let majority = values.iter().find(|value| votes(value) * 2 > values.len());
    let odd = majority.and_then(|most| values.iter().position(|value| value != most)).map(rank_of);
    let fingerprint = |(index, value): (usize, &String)| {
        format!("rank {}: fingerprint {}", rank_of(index), words::clip(value, 32))
    };
    let words = vec![
        ("who", odd.map(|rank| name(model, rank)).unwrap_or_default()),
        ("iteration", train_iter.to_string()),
    ];
    let draft = VerdictBuilder {
        form: if odd.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank: odd,
        host: host_of(model, odd),
        facts: values.iter().take(16).enumerate().map(fingerprint).collect(),
        ..VerdictBuilder::new(Assessment::proved(Proof::Reported, Reason::WeightsDiffer), words)
    };
    (odd, draft.build(&RunView::without_ranks(model)))
}

/// Describes replicas of a script whose weights differ.
pub(crate) fn replicas_differ(model: &Model, drift: &WeightDrift) -> VerdictReport {
    let why = match drift.grounds {
        DriftConfidence::KeptEqual => "the program kept them equal before",
        DriftConfidence::NeverEqual => {
            "equal at start, different after every step: gradients are not synchronized"
        }
        DriftConfidence::Rounding => "they differ by rounding only, as on hosts with different processors",
        DriftConfidence::InPart => {
            "other weights stay equal: these differ on purpose, or are not synchronized"
        }
        DriftConfidence::Seldom => "equal only after some collectives: weights are averaged occasionally",
        DriftConfidence::NeverExchanged => {
            "equal at start, and nothing as large as the weights was exchanged since"
        }
        DriftConfidence::BeganApart if drift.differ_at == 0 => "different at start, and never equal since",
        DriftConfidence::BeganApart => "never equal, but changed by the same updates",
    };
    let odd = drift.odd();
    let rank = odd.first().copied();
    let (before, after, optimizer) = (drift.equal_at, drift.differ_at, drift.optimizer);
    let sides = drift.sides.iter().take(8).map(|side| format!("ranks {} are equal", ranges(side)));
    let never = drift.grounds == DriftConfidence::BeganApart;
    let places = if never {
        format!(
            "optimizer {optimizer}: different at every step from {after} on, with equal changes at each of them"
        )
    } else {
        format!("optimizer {optimizer}: equal after step {before}, different after step {after}")
    };
    let mut facts = vec![places, why.to_owned()];
    facts.extend(sides.filter(|_| drift.sides.iter().any(|side| side.len() > 1)));
    let words = vec![
        ("who", rank.map(|rank| name(model, rank)).unwrap_or_default()),
        ("iteration", after.to_string()),
        ("why", why.to_owned()),
    ];
    let assessment = finding::drift(drift);
    let form = match (assessment.severity, rank) {
        (Severity::Amber, _) => SentenceForm::Doubtful,
        (_, Some(_)) => SentenceForm::Usual,
        (_, None) => SentenceForm::Unnamed,
    };
    let host = host_of(model, rank);
    let mut verdict = VerdictBuilder { form, rank, host, facts, ..VerdictBuilder::new(assessment, words) }
        .build(&RunView::without_ranks(model));
    // A restart from a checkpoint helps only where the weights were equal once and are meant to be.
    let text = match drift.grounds {
        // Averaged gradients keep equal weights equal, no more.
        DriftConfidence::BeganApart => {
            "broadcast rank 0's weights before the first step, as DDP does, or seed all ranks equally until the \
             model is built; load checkpoints on every rank"
        }
        DriftConfidence::Seldom => {
            "average gradients at every step to train one model; ignore this for local SGD"
        }
        DriftConfidence::NeverExchanged => {
            "all-reduce gradients before each step, as DDP does; ignore this if each rank trains its own model"
        }
        DriftConfidence::InPart
        | DriftConfidence::Rounding
        | DriftConfidence::NeverEqual
        | DriftConfidence::KeptEqual => return verdict,
    };
    verdict.card.actions.insert(0, Advice { text: text.into(), command: String::new() });
    verdict
}

/// Describes running statistics of normalizers that differ while the weights are equal.
pub(crate) fn normalizers_differ(model: &Model, drift: &NormalizerDrift) -> VerdictReport {
    let facts = vec![format!(
        "ranks {}: different in {} comparisons in a row, and never equal since step {}",
        ranges(&drift.ranks),
        drift.steps,
        drift.since
    )];
    let words = vec![("step", drift.since.to_string())];
    VerdictBuilder { facts, ..VerdictBuilder::new(finding::normalizers(), words) }
        .build(&RunView::without_ranks(model))
}

/// Describes weights of a script that contain NaN or Inf.
pub(crate) fn not_finite(model: &Model, found: &NotFinite) -> VerdictReport {
    let rank = if let [rank] = found.ranks.as_slice() { Some(*rank) } else { None };
    let words = vec![
        ("who", rank.map(|rank| name(model, rank)).unwrap_or_default()),
        ("ranks", ranges(&found.ranks)),
        ("step", found.step.to_string()),
    ];
    let draft = VerdictBuilder {
        form: if rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank,
        host: host_of(model, rank),
        facts: vec![format!("optimizer {}: {} of {} ranks", found.optimizer, found.ranks.len(), found.of)],
        ..VerdictBuilder::new(Assessment::proved(Proof::Reported, Reason::WeightsNotFinite), words)
    };
    draft.build(&RunView::without_ranks(model))
}

/// Describes totals that do not match the sum of the per-rank counters.
pub(crate) fn totals_differ(model: &Model, joined: &JoinedIteration) -> VerdictReport {
    let pairs = [
        ("env_step", joined.totals.env_step, joined.sum.env_step),
        ("samples", joined.totals.samples, joined.sum.samples),
        ("episodes", joined.totals.episodes, joined.sum.episodes),
    ];
    let mut facts: Vec<String> = pairs
        .iter()
        .filter(|(_, total, sum)| total != sum)
        .map(|(name, total, sum)| format!("{name}: all-reduced {total}, sum over ranks {sum}"))
        .collect();
    if facts.is_empty() {
        let (total, sum) = (joined.totals.duration_s, joined.sum.duration_s);
        facts.push(format!("duration_s: all-reduced {total}, sum over ranks {sum}"));
    }
    let words = vec![("iteration", joined.totals.train_iter.to_string())];
    let assessment = Assessment::proved(Proof::Reported, Reason::TotalsDiffer);
    VerdictBuilder { facts, ..VerdictBuilder::new(assessment, words) }.build(&RunView::without_ranks(model))
}

/// Describes a learning problem.
pub(crate) fn learning(model: &Model, issue: LearningIssue) -> VerdictReport {
    let assessment = finding::learning(&issue);
    // Equal returns are from the beginning on: no checkpoint is better.
    let is_of_start = issue.reason == Reason::EqualReturns;
    let before = model
        .checkpoints
        .iter()
        .rev()
        .find(|checkpoint| checkpoint.step().is_some_and(|step| (step as f64) < issue.since));
    let before = before.filter(|_| !is_of_start);
    let mut facts = issue.facts;
    facts.extend((!is_of_start).then(|| match before {
        Some(checkpoint) => format!(
            "last checkpoint before it: {} at step {}",
            checkpoint.path,
            words::count(checkpoint.env_step)
        ),
        None => "no checkpoint before it".into(),
    }));
    let host = issue.rank.and_then(|rank| model.ranks.get(rank.index())).map(|rank| rank.host.clone());
    let draft =
        VerdictBuilder { rank: issue.rank, host, facts, ..VerdictBuilder::new(assessment, issue.words) };
    let mut verdict = draft.build(&RunView::without_ranks(model));
    let run = model.run.id.as_ref().map(|run| run.0.as_str()).unwrap_or_default();
    if let Some(checkpoint) = before {
        let command = format!("rankdeck restart {run} --from {}", checkpoint.path);
        let step = words::count(checkpoint.env_step);
        let text = format!("roll back to the last checkpoint before it, at step {step}");
        verdict.card.actions.insert(0, Advice { text, command });
    }
    verdict
}
