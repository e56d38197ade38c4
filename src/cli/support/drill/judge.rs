//! The result of a case: whether its fault was named, what became of the checkpoint, and what is left (DRILL-3).
//! Pure.

use super::events::{RunEvents, SeenVerdict};
use crate::cli::args::DrillCase;
use crate::cli::support::print;
use rankdeck_types::words::{NONE, bytes, clip, count, plural};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A verdict may arrive before the host's word that it has struck, seconds.
const EARLY_S: f64 = 1.0;

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CaseOutcome {
    /// All as promised.
    Passed,
    Failed,
    /// It does not apply to this program.
    Skipped,
}

/// What became of the latest checkpoint before the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckpointFate {
    /// It is there; after a clean stop, it holds all of the work.
    Kept,
    Lost,
    /// No checkpoint was seen.
    None,
    /// Its host does not show it.
    Unknown,
}

/// What is known after a case.
#[derive(Debug)]
pub(crate) struct CaseFacts<'a> {
    pub(crate) case: DrillCase,
    pub(crate) events: &'a RunEvents,
    /// The rank that was broken, and its host.
    pub(crate) victim: Option<(u64, String)>,
    /// When the fault came, seconds since the drill began; `None`: it never came.
    pub(crate) struck: Option<f64>,
    /// When the answer came that replaces a verdict: the new console shows the run, the new generation makes steps.
    pub(crate) answered: Option<f64>,
    /// Why the fault does not apply.
    pub(crate) skipped: Option<String>,
    /// Problems on the way.
    pub(crate) notes: Vec<String>,
    /// The latest checkpoint and whether its host still has it.
    pub(crate) checkpoint: (CheckpointFate, Option<u64>),
    /// The restart: step of the checkpoint, and the last step before it.
    pub(crate) resumed: Option<ResumeFacts>,
    /// Processes that the scans found.
    pub(crate) left: Vec<String>,
    /// GPU memory that they hold; `None` without GPUs.
    pub(crate) gpu_memory: Option<u64>,
}

/// What a restart began from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResumeFacts {
    /// It has a checkpoint.
    pub(crate) has_checkpoint: bool,
    /// Step of the checkpoint.
    pub(crate) saved: Option<u64>,
    /// Last step before the restart.
    pub(crate) before: Option<u64>,
    /// First step after it.
    pub(crate) first: Option<u64>,
}

impl ResumeFacts {
    /// The first step if the program has resumed; else why not.
    ///
    /// A program counts on where its checkpoint ended; one that begins again counts from the start.
    fn step(self) -> Result<u64, String> {
        if !self.has_checkpoint {
            return Err("restarted from scratch: no checkpoint was reported".to_owned());
        }
        let Some(first) = self.first else {
            return Err("no step was seen after the restart".to_owned());
        };
        match self.saved.or(self.before.map(|before| before / 2)) {
            Some(least) if first < least => {
                let text = format!("step {} after the restart: the checkpoint was not read", count(first));
                Err(text)
            }
            Some(_) => Ok(first),
            None => Err("no step was seen before the restart".to_owned()),
        }
    }
}

/// The result of a case: a line of `--json`, and a row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CaseRecord {
    pub(crate) case: DrillCase,
    pub(crate) run: Option<String>,
    pub(crate) outcome: CaseOutcome,
    /// The fault as it was named.
    pub(crate) named: Option<String>,
    /// Seconds from the fault to that.
    pub(crate) seconds: Option<f64>,
    pub(crate) checkpoint: CheckpointFate,
    pub(crate) checkpoint_step: Option<u64>,
    /// First step after a restart that resumed.
    pub(crate) resumed_step: Option<u64>,
    pub(crate) processes_left: Vec<String>,
    /// Bytes.
    pub(crate) gpu_memory_left: Option<u64>,
    /// Why it has not passed, or was skipped.
    pub(crate) notes: Vec<String>,
}

/// DRILL-3
pub(crate) fn judge(facts: CaseFacts<'_>) -> CaseRecord {
    let found = facts.struck.and_then(|struck| {
        Some((struck, named(facts.case, facts.events, facts.victim.as_ref(), facts.answered, struck)?))
    });
    let (named, seconds) = match found {
        Some((struck, (who, at))) => (Some(who), Some((at - struck).max(0.0))),
        None => (None, None),
    };
    let CaseFacts {
        case,
        events,
        victim,
        struck,
        skipped,
        mut notes,
        checkpoint,
        resumed,
        left,
        gpu_memory,
        ..
    } = facts;
    let mut failed = struck.is_none() || named.is_none();
    if struck.is_some() && named.is_none() {
        notes.push(unnamed(case, events, victim.as_ref(), struck.unwrap_or_default()));
    }
    let resumed_step = match resumed.map(ResumeFacts::step) {
        Some(Ok(step)) => Some(step),
        Some(Err(why)) => {
            failed = true;
            notes.push(why);
            None
        }
        None => None,
    };
    let (fate, checkpoint_step) = checkpoint;
    // A stop is to save; everything else is to keep what there is.
    if fate == CheckpointFate::Lost || case == DrillCase::Stop && fate != CheckpointFate::Kept {
        failed = true;
        notes.push(match (case, fate) {
            (DrillCase::Stop, CheckpointFate::Lost) => {
                "the program did not save before it stopped".to_owned()
            }
            (DrillCase::Stop, _) => "no checkpoint was seen after the stop".to_owned(),
            _ => "the checkpoint is gone".to_owned(),
        });
    }
    if !left.is_empty() || gpu_memory.is_some_and(|memory| memory > 0) {
        failed = true;
        notes.extend(left.iter().map(|process| format!("left: {process}")));
    }
    let outcome = match (skipped, failed) {
        (Some(why), _) if left.is_empty() => {
            notes = vec![why];
            CaseOutcome::Skipped
        }
        (_, true) => CaseOutcome::Failed,
        (_, false) => CaseOutcome::Passed,
    };
    CaseRecord {
        case,
        run: events.run.clone(),
        outcome,
        named,
        seconds,
        checkpoint: fate,
        checkpoint_step,
        resumed_step,
        processes_left: left,
        gpu_memory_left: gpu_memory,
        notes,
    }
}

/// Why a case does not apply to this program. A slow rank is found by the ranks that wait for it.
pub(crate) fn inapplicable(case: DrillCase, events: &RunEvents) -> Option<String> {
    match case {
        DrillCase::Slow if events.world_size == 1 => {
            Some("the run has one rank: no other rank waits for it".to_owned())
        }
        DrillCase::Slow if events.has_collectives == Some(false) => {
            Some("the ranks enter no collectives that rankdeck sees: a slow rank is not named".to_owned())
        }
        _ => None,
    }
}

/// Whether there is nothing more to wait for after the fault.
pub(crate) fn is_reported(
    case: DrillCase,
    events: &RunEvents,
    victim: Option<&(u64, String)>,
    struck: f64,
) -> bool {
    let is_named = || named(case, events, victim, None, struck).is_some();
    events.end.is_some() || matches!(case, DrillCase::Freeze | DrillCase::Slow) && is_named()
}

/// Who or what was named as the fault, and when.
fn named(
    case: DrillCase,
    events: &RunEvents,
    victim: Option<&(u64, String)>,
    answered: Option<f64>,
    struck: f64,
) -> Option<(String, f64)> {
    let end = events.end.as_ref();
    let (rank, host) = victim.map(|(rank, host)| (*rank, host.as_str())).unzip();
    let of_rank = |verdict: &&SeenVerdict| verdict.rank.is_some() && verdict.rank == rank;
    let of_host = |verdict: &&SeenVerdict| verdict.host.is_some() && verdict.host.as_deref() == host;
    let after = events.verdicts.iter().filter(|verdict| verdict.at >= struck - EARLY_S);
    let first = |fits: &dyn Fn(&&SeenVerdict) -> bool| {
        after.clone().find(|verdict| fits(verdict)).map(|verdict| (verdict.code.clone(), verdict.at))
    };
    let by_rank = |codes: &[&str]| {
        let (code, at) = first(&|verdict| of_rank(verdict) && codes.contains(&verdict.code.as_str()))?;
        Some((format!("rank {}: {code}", rank?), at))
    };
    let by_end = || {
        let end = end.filter(|end| end.first_failure.as_ref().map(|(rank, _)| *rank) == rank)?;
        Some((format!("rank {}: first failure", end.first_failure.as_ref()?.0), end.at))
    };
    match case {
        DrillCase::Freeze => by_rank(&["stopped"]),
        DrillCase::Kill => by_rank(&["killed"]).or_else(by_end),
        DrillCase::Exception => by_rank(&["failed"]).or_else(by_end),
        DrillCase::Slow => {
            let slow = |verdict: &&SeenVerdict| {
                of_rank(verdict) && matches!(verdict.kind.as_str(), "straggler" | "frozen")
            };
            first(&slow).map(|(code, at)| (format!("rank {}: {code}", rank.unwrap_or_default()), at))
        }
        DrillCase::Agent => {
            let verdict =
                first(&|verdict| of_host(verdict) && matches!(verdict.kind.as_str(), "dead" | "lost"));
            verdict.map(|(code, at)| (format!("{}: {code}", host.unwrap_or_default()), at))
        }
        DrillCase::Console => answered.map(|at| ("attached".to_owned(), at)),
        DrillCase::Restart => answered.map(|at| (format!("generation {}", events.generation), at)),
        DrillCase::Stop => end.filter(|end| end.proved).map(|end| ("stop verified".to_owned(), end.at)),
    }
}

/// Why nothing was named.
fn unnamed(case: DrillCase, events: &RunEvents, victim: Option<&(u64, String)>, struck: f64) -> String {
    let other = events.verdicts.iter().find(|verdict| verdict.at >= struck - EARLY_S && verdict.is_red);
    let who = victim.map_or_else(|| "the rank".to_owned(), |(rank, host)| format!("rank {rank} on {host}"));
    match (case, other) {
        (DrillCase::Console, _) => "a new console did not find the run making progress".to_owned(),
        (DrillCase::Restart, _) => "the new generation did not start".to_owned(),
        (DrillCase::Stop, _) => "the stop was not verified".to_owned(),
        (_, Some(SeenVerdict { rank: Some(rank), code, .. })) => {
            format!("{who} was not named, but rank {rank} was ({code})")
        }
        _ => format!("{who} was not named"),
    }
}

/// The columns of the table, and their widths.
const COLUMNS: [(&str, usize); 7] =
    [("CASE", 9), ("NAMED", 20), ("AFTER", 7), ("CHECKPOINT", 14), ("RESUMED", 9), ("LEFT", 4), ("GPU", 5)];

/// The table of a drill; notes are below it.
pub(crate) fn table(records: &[CaseRecord]) -> String {
    let header = COLUMNS.map(|(name, _)| name.to_owned()).to_vec();
    let rows = records.iter().map(|record| {
        let fitted = |(cell, (_, width)): (String, (&str, usize))| match cell.chars().count() > width {
            true => clip(&cell, width - 1),
            false => cell,
        };
        cells(record).into_iter().zip(COLUMNS).map(fitted).collect::<Vec<_>>()
    });
    let mut text = print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>());
    for record in records {
        for note in &record.notes {
            text += &format!("\n{}: {note}", record.case.name());
        }
    }
    text
}

fn cells(record: &CaseRecord) -> [String; 7] {
    let named = match record.outcome {
        CaseOutcome::Skipped => "skipped".to_owned(),
        _ => record.named.clone().unwrap_or_else(|| "no".to_owned()),
    };
    let step = record.checkpoint_step.map(|step| format!("step {}", count(step)));
    let checkpoint = match record.checkpoint {
        CheckpointFate::Kept => step.unwrap_or_else(|| "kept".to_owned()),
        CheckpointFate::Lost => "lost".to_owned(),
        CheckpointFate::None => "none seen".to_owned(),
        CheckpointFate::Unknown => "unknown".to_owned(),
    };
    let resumed = match (record.case, record.resumed_step) {
        (DrillCase::Restart, None) => "no".to_owned(),
        (_, step) => step.map_or_else(|| NONE.to_owned(), count),
    };
    [
        record.case.name().to_owned(),
        named,
        record.seconds.map_or_else(|| NONE.to_owned(), |seconds| format!("{seconds:.1}s")),
        checkpoint,
        resumed,
        record.processes_left.len().to_string(),
        record.gpu_memory_left.map_or_else(|| NONE.to_owned(), bytes),
    ]
}

/// The line of `--json` about a case.
pub(crate) fn as_json(record: &CaseRecord) -> Value {
    let mut line = json!({ "kind": "drill_case" });
    if let (Value::Object(line), Ok(Value::Object(fields))) = (&mut line, serde_json::to_value(record)) {
        line.extend(fields);
    }
    line
}

/// The last line: how many cases have passed.
pub(crate) fn summary(records: &[CaseRecord]) -> String {
    let of = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
    let (passed, failed, skipped) =
        (of(CaseOutcome::Passed), of(CaseOutcome::Failed), of(CaseOutcome::Skipped));
    let more = [(failed, "failed"), (skipped, "skipped")];
    let more = more.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!(", {n} {word}"));
    format!("{passed} of {} passed{}", plural(records.len(), "case"), more.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(at: f64, rank: u64, code: &str, kind: &str) -> SeenVerdict {
        SeenVerdict {
            at,
            rank: Some(rank),
            host: Some(format!("h{rank}")),
            code: code.into(),
            kind: kind.into(),
            is_red: true,
        }
    }

    fn facts(case: DrillCase, events: &RunEvents) -> CaseFacts<'_> {
        CaseFacts {
            case,
            events,
            victim: Some((1, "h1".into())),
            struck: Some(10.0),
            answered: None,
            skipped: None,
            notes: Vec::new(),
            checkpoint: (CheckpointFate::Kept, Some(8)),
            resumed: None,
            left: Vec::new(),
            gpu_memory: None,
        }
    }

    fn outcome(facts: CaseFacts<'_>) -> (CaseOutcome, Option<f64>) {
        let record = judge(facts);
        (record.outcome, record.seconds)
    }

    use CaseOutcome::{Failed, Passed, Skipped};
    use DrillCase::{Agent, Console, Exception, Freeze, Kill, Restart, Slow, Stop};

    #[test]
    fn fault_is_named_by_its_rank_and_its_reason() {
        for (case, code, kind, named) in [
            (Freeze, "stopped", "frozen", true),
            (Freeze, "lock", "behind", false),
            (Kill, "killed", "dead", true),
            (Kill, "stopped", "frozen", false),
            (Exception, "failed", "dead", true),
            (Slow, "slow_compute", "straggler", true),
            (Slow, "stopped", "frozen", true),
            (Slow, "killed", "dead", false),
            (Agent, "killed", "dead", true),
            (Agent, "agent_silent", "lost", true),
            (Agent, "lock", "behind", false),
        ] {
            let by = |rank: u64, at: f64| RunEvents {
                verdicts: vec![verdict(at, rank, code, kind)],
                ..RunEvents::default()
            };
            let expected = if named { (Passed, Some(2.5)) } else { (Failed, None) };
            assert_eq!(outcome(facts(case, &by(1, 12.5))), expected, "{case:?} {code}");
            assert_eq!(outcome(facts(case, &by(0, 12.5))), (Failed, None), "another rank, {case:?} {code}");
            assert_eq!(
                outcome(facts(case, &by(1, 8.0))),
                (Failed, None),
                "before the fault, {case:?} {code}"
            );
        }
    }

    #[test]
    fn first_failure_names_a_rank_that_ended() {
        let end = |rank: u64| super::super::events::SeenEnd {
            at: 13.0,
            first_failure: Some((rank, "h".into())),
            ..Default::default()
        };
        for case in [Kill, Exception] {
            let by = |rank: u64| RunEvents { end: Some(end(rank)), ..RunEvents::default() };
            assert_eq!(outcome(facts(case, &by(1))), (Passed, Some(3.0)));
            assert_eq!(outcome(facts(case, &by(0))), (Failed, None));
        }
    }

    #[test]
    fn stop_passes_if_it_is_verified_and_has_saved() {
        let end = |proved| super::super::events::SeenEnd { at: 14.0, proved, ..Default::default() };
        let by = |proved| RunEvents { end: Some(end(proved)), ..RunEvents::default() };
        let of = |proved, fate| outcome(CaseFacts { checkpoint: (fate, None), ..facts(Stop, &by(proved)) }).0;
        assert_eq!(of(true, CheckpointFate::Kept), Passed);
        for fate in [CheckpointFate::Lost, CheckpointFate::None, CheckpointFate::Unknown] {
            assert_eq!(of(true, fate), Failed, "{fate:?}");
        }
        assert_eq!(of(false, CheckpointFate::Kept), Failed);
    }

    #[test]
    fn restart_passes_if_the_program_counts_on() {
        let events = RunEvents { generation: 1, ..RunEvents::default() };
        let of = |resumed: ResumeFacts| {
            let record =
                judge(CaseFacts { answered: Some(30.0), resumed: Some(resumed), ..facts(Restart, &events) });
            (record.outcome, record.resumed_step)
        };
        let base =
            ResumeFacts { has_checkpoint: true, saved: Some(800), before: Some(950), first: Some(810) };
        assert_eq!(of(base), (Passed, Some(810)));
        assert_eq!(of(ResumeFacts { first: Some(8), ..base }), (Failed, None), "it began again");
        assert_eq!(of(ResumeFacts { saved: None, ..base }), (Passed, Some(810)));
        assert_eq!(of(ResumeFacts { saved: None, first: Some(8), ..base }), (Failed, None));
        assert_eq!(of(ResumeFacts { has_checkpoint: false, ..base }), (Failed, None));
        assert_eq!(of(ResumeFacts { first: None, ..base }), (Failed, None));
        assert_eq!(of(ResumeFacts { saved: None, before: None, ..base }), (Failed, None));
    }

    #[test]
    fn slow_rank_needs_others_that_wait_for_it() {
        let events = |world_size: u64, has_collectives: Option<bool>| RunEvents {
            world_size,
            has_collectives,
            ..RunEvents::default()
        };
        for (world_size, collectives, applies) in
            [(2, Some(true), true), (2, None, true), (2, Some(false), false), (1, Some(true), false)]
        {
            let events = events(world_size, collectives);
            assert_eq!(inapplicable(Slow, &events).is_none(), applies, "{world_size} {collectives:?}");
            assert_eq!(inapplicable(Freeze, &events), None);
        }
    }

    /// DRILL-3
    #[test]
    fn drill_3_lost_checkpoint_and_leftovers_fail_a_case() {
        let events = RunEvents::default();
        let console = || CaseFacts { answered: Some(11.0), ..facts(Console, &events) };
        assert_eq!(outcome(console()), (Passed, Some(1.0)));
        let none = (CheckpointFate::None, None);
        assert_eq!(outcome(CaseFacts { checkpoint: none, ..console() }).0, Passed, "there was none to lose");
        let lost = (CheckpointFate::Lost, Some(8));
        assert_eq!(outcome(CaseFacts { checkpoint: lost, ..console() }).0, Failed);
        assert_eq!(outcome(CaseFacts { left: vec!["a:7 python".into()], ..console() }).0, Failed);
        assert_eq!(outcome(CaseFacts { gpu_memory: Some(0), ..console() }).0, Passed);
        assert_eq!(outcome(CaseFacts { gpu_memory: Some(1), ..console() }).0, Failed);
        assert_eq!(outcome(CaseFacts { struck: None, ..console() }).0, Failed);
        let skipped = || CaseFacts { struck: None, skipped: Some("no hook".into()), ..console() };
        assert_eq!(outcome(skipped()).0, Skipped);
        assert_eq!(outcome(CaseFacts { left: vec!["a:7 python".into()], ..skipped() }).0, Failed);
    }

    #[test]
    fn table_is_at_most_80_columns_wide() {
        let events =
            RunEvents { verdicts: vec![verdict(12.0, 1, "stopped", "frozen")], ..RunEvents::default() };
        let mut records = vec![judge(facts(Freeze, &events)), judge(facts(Kill, &events))];
        records.push(judge(CaseFacts {
            struck: None,
            skipped: Some("no Python hook".into()),
            ..facts(Exception, &events)
        }));
        let resumed =
            ResumeFacts { has_checkpoint: true, saved: Some(1), before: None, first: Some(1_234_567) };
        records.push(judge(CaseFacts {
            answered: Some(40.0),
            resumed: Some(resumed),
            gpu_memory: Some(0),
            ..facts(Restart, &events)
        }));
        let host = "a-host-with-a-long-name.example.org".to_owned();
        let lost = RunEvents {
            verdicts: vec![SeenVerdict {
                host: Some(host.clone()),
                ..verdict(11_000.0, 1, "agent_silent", "lost")
            }],
            ..RunEvents::default()
        };
        let left = vec![format!("{host}:4711 python train.py")];
        records.push(judge(CaseFacts {
            victim: Some((1, host)),
            checkpoint: (CheckpointFate::Kept, Some(u64::MAX)),
            gpu_memory: Some(3 << 30),
            left,
            ..facts(Agent, &lost)
        }));
        let text = format!("{}\n{}", table(&records), summary(&records));
        let rows = 1 + records.len();
        assert!(text.lines().take(rows).all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!("drill_table", text);
    }

    #[test]
    fn record_is_a_json_line_and_is_read_again() {
        let events =
            RunEvents { verdicts: vec![verdict(12.0, 1, "stopped", "frozen")], ..RunEvents::default() };
        let record = judge(facts(Freeze, &events));
        let line = as_json(&record);
        assert_eq!(
            (&line["kind"], &line["case"], &line["outcome"]),
            (&"drill_case".into(), &"freeze".into(), &"passed".into())
        );
        assert_eq!(
            (&line["seconds"], &line["checkpoint"], &line["checkpoint_step"]),
            (&2.0.into(), &"kept".into(), &8.into())
        );
        assert_eq!(serde_json::from_value::<CaseRecord>(line).unwrap(), record);
    }
}
