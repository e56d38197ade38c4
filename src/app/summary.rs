//! The summary at the end of a console: outcome, evaluations, totals, whether the stop is verified, and where
//! the files are. Pure.

use super::clock::time_of_day;
use super::record::RecordingInfo;
use rankdeck_core::model::{Model, RankLife, RankModel};
use rankdeck_core::report::{ReportBody, RunOutcome, Severity, VerdictKind};
use rankdeck_proto::message::Work;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::Plan;
use rankdeck_types::variables;
use rankdeck_types::words::{NONE, bytes, clean, count, duration, fixed, plural, ranges, rate};

/// Evaluations listed; of longer runs the first two, the best and the latest.
const EVALS: usize = 12;
/// Preflight warnings that are repeated.
const WARNINGS: usize = 5;
/// Log lines of the rank that failed first.
const LOG_LINES: usize = 10;

/// Hosts whose free GPUs are listed.
const HOSTS: usize = 8;

/// First line about a stop that is not verified.
pub const NOT_VERIFIED: &str = "stop NOT VERIFIED";

/// Everything that claims a verified stop is printed by this function. `hosts`: those that were asked, and
/// verified it.
pub(crate) fn verified(run: Option<&RunId>, hosts: usize) -> String {
    let run = run.map_or_else(String::new, |run| format!("run {run}: "));
    format!("stop verified: {run}no process left on {}", plural(hosts, "host"))
}

/// A host with unknown processes.
pub(crate) fn unverified(host: &str) -> String {
    format!("  cannot verify that all processes exited on {host}")
}

/// Returns the summary, one line each; long ones are folded at `width` columns. `finished` is the run's
/// [`ReportBody::RunFinished`].
pub(crate) fn lines(
    model: &Model,
    finished: &ReportBody,
    record: Option<&RecordingInfo>,
    width: usize,
) -> Vec<String> {
    let ReportBody::RunFinished { outcome, exit_code, reason, work, warnings: odd, .. } = finished else {
        return Vec::new();
    };
    let failed = matches!(outcome, RunOutcome::Failed | RunOutcome::Stuck);
    let mut lines = vec![String::new()];
    lines.extend(evaluations(model));
    lines.extend(totals(model, width));
    if failed {
        lines.extend(first_failure(model, reason));
    }
    lines.extend(warnings(model));
    lines.extend(verification(model, finished, width));
    lines.extend(places(model, record));
    lines.extend(odd.iter().map(|warning| format!("warning: {warning}")));
    let word = format!("{outcome:?}").to_lowercase();
    let work = self::work(*outcome, work.as_ref()).map(|work| format!("; {work}")).unwrap_or_default();
    lines.extend(folded(format!("{word}: {reason}{work} (exit code {exit_code})").split(' '), " ", 2, width));
    lines.iter().map(|line| clean(line)).collect()
}

/// Describes what the end left of the work, where that is worth a word: that nothing is known of checkpoints
/// is not, of a run that failed.
pub(crate) fn work(outcome: RunOutcome, work: Option<&Work>) -> Option<String> {
    let is_known = |work: &&Work| matches!(work, Work::Saved { .. } | Work::Lost { .. });
    work.filter(|work| is_known(work) || outcome == RunOutcome::Stopped).map(Work::describe)
}

/// Joins parts into one line, or as few as fit `width` columns; continuation lines are indented by `inward`.
fn folded<'a>(
    parts: impl Iterator<Item = &'a str>,
    between: &str,
    inward: usize,
    width: usize,
) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if columns(line) + columns(between) + columns(part) <= width => {
                line.push_str(between);
                line.push_str(part);
            }
            Some(_) => lines.push(format!("{}{part}", " ".repeat(inward))),
            None => lines.push(part.to_owned()),
        }
    }
    lines
}

fn columns(text: &str) -> usize {
    rankdeck_tui::text::width(text)
}

/// Repeats the preflight warnings: on a screen they are long gone.
pub(crate) fn warnings(model: &Model) -> Vec<String> {
    let all = &model.run.warnings;
    let mut lines: Vec<String> =
        all.iter().take(WARNINGS).map(|warning| format!("preflight warning: {warning}")).collect();
    if all.len() > WARNINGS {
        lines.push(format!("  (and {} more)", all.len() - WARNINGS));
    }
    lines
}

fn evaluations(model: &Model) -> Vec<String> {
    if model.evals.is_empty() {
        return Vec::new();
    }
    let best = model
        .evals
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.return_mean.total_cmp(&b.1.return_mean))
        .map_or(0, |(i, _)| i);
    let first_of_tail = model.evals.len().saturating_sub(EVALS - 3);
    let shown = |i: usize| model.evals.len() <= EVALS || i < 2 || i == best || i >= first_of_tail;
    let mut rows = vec![
        ["eval", "env_step", "train_iter", "episodes", "return", "std", "min", "max", ""].map(str::to_owned),
    ];
    rows.extend(model.evals.iter().enumerate().filter(|(i, _)| shown(*i)).map(|(i, eval)| {
        let notes = [
            (eval.stop, "stop value reached"),
            (!eval.stop && i == best, "best"),
            (eval.sampled, "actions sampled"),
        ];
        let notes: Vec<&str> = notes.into_iter().filter_map(|(shown, note)| shown.then_some(note)).collect();
        let reported = |text: String| if eval.is_of_series() { NONE.to_owned() } else { text };
        [
            (i + 1).to_string(),
            count(eval.env_step),
            reported(count(eval.train_iter)),
            reported(eval.episodes.to_string()),
            fixed(eval.return_mean, 2),
            reported(fixed(eval.return_std, 2)),
            reported(fixed(eval.return_min, 2)),
            reported(fixed(eval.return_max, 2)),
            notes.join(", "),
        ]
    }));
    let hidden = model.evals.len() + 1 - rows.len();
    let mut lines = right_aligned(&rows);
    if hidden > 0 {
        lines.push(format!("  ({hidden} more evaluations are recorded)"));
    }
    lines.push(String::new());
    lines
}

fn right_aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let last = N - 1;
    rows.iter()
        .map(|row| {
            let cells = row[..last].iter().zip(&widths).map(|(cell, w)| format!("  {cell:>w$}"));
            format!("{}  {}", cells.collect::<String>(), row[last]).trim_end().to_owned()
        })
        .collect()
}

fn totals(model: &Model, width: usize) -> Vec<String> {
    let wall_s = match (model.run.started, model.run.ended) {
        (Some(started), Some(ended)) => {
            Some((ended.since(started) + model.run.head_start_ms) as f64 / 1000.0)
        }
        _ => None,
    };
    let wall = wall_s.map(|s| format!("wall time  {}", duration(s)));
    let Some(progress) = &model.progress else { return wall.into_iter().collect() };
    let t = &progress.totals;
    let mut parts = vec![
        format!("totals     env_step {}", count(t.env_step)),
        format!("samples {}", count(t.samples)),
        format!("episodes {}", count(t.episodes)),
        format!("updates {}", count(t.updates)),
        format!("env time {} (sum over ranks)", duration(t.duration_s)),
    ];
    parts.extend((!progress.consistent).then(|| "(TOTALS MISMATCH)".to_owned()));
    let mut lines = folded(parts.iter().map(String::as_str), "  ", "totals     ".len(), width);
    lines.extend(wall.map(|wall| match wall_s {
        Some(s) if s > 0.0 && !model.run.adopted => {
            format!("{wall}  ({} steps/s)", rate(t.env_step as f64 / s))
        }
        _ => wall,
    }));
    lines
}

/// Returns the rank that caused the end: the one that failed first, else one with a `dead` verdict, else one
/// with an error message, else one that failed by itself.
fn culprit(model: &Model) -> Option<&RankModel> {
    let first = model.run.first_failure.as_ref().map(|first| first.rank);
    let blamed = model
        .verdicts
        .iter()
        .find(|v| v.severity == Severity::Red && v.verdict == VerdictKind::Dead)
        .or_else(|| model.verdicts.iter().find(|v| v.severity == Severity::Red))
        .and_then(|v| v.rank);
    let blamed = first.or(blamed);
    blamed
        .and_then(|blamed| model.ranks.get(blamed.index()))
        .or_else(|| model.ranks.iter().find(|rank| rank.error.is_some()))
        .or_else(|| model.ranks.iter().find(|rank| rank.failed()))
}

/// Describes the rank that failed first, with its last output; `reason` is at the end of the summary and is
/// not repeated.
fn first_failure(model: &Model, reason: &str) -> Vec<String> {
    let unreachable = model.hosts.iter().filter_map(|host| match &host.link {
        LinkState::Failed(HintedError { error, hint }) => {
            Some(format!("host {}: {error}; hint: {hint}", host.name))
        }
        _ => None,
    });
    let mut lines: Vec<String> = unreachable.collect();
    let Some(rank) = culprit(model) else { return lines };
    let name = format!("rank {} on {}", rank.rank, rank.host);
    let how = match &rank.life {
        RankLife::Exited(exit) if reason.contains(&format!("{name} {}", exit.predicate())) => {
            "end of its log".to_owned()
        }
        RankLife::Exited(exit) => exit.to_string(),
        life => format!("{life:?}").to_lowercase(),
    };
    lines.push(format!("{name} (local_rank {}): {how}", rank.local_rank));
    if let Some((message, hint)) = &rank.error {
        lines.push(format!("  {message}"));
        lines.extend((!hint.is_empty()).then(|| format!("  hint: {hint}")));
    }
    if lacks_variables(model, rank) {
        lines.push("  hint: pass `--nproc 1`, or set `launch.rank_variables = true`".to_owned());
    }
    let skip = rank.log.lines.len().saturating_sub(LOG_LINES);
    lines.extend(
        rank.log.lines.iter().skip(skip).map(|line| format!("  {}:{}| {}", rank.host, rank.rank, line.text)),
    );
    lines
}

/// Whether a single rank failed because it has none of torchrun's variables (PLAIN-1).
fn lacks_variables(model: &Model, rank: &RankModel) -> bool {
    let is_plain = model.plan.as_ref().is_some_and(Plan::is_plain);
    let names = |text: &str| {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(variables::is_identity)
    };
    is_plain && rank.exception.as_ref().is_some_and(|exception| names(&exception.message))
}

/// Whether every host has reported that no process of the run is left.
pub(crate) fn is_verified(finished: &ReportBody) -> bool {
    matches!(finished, ReportBody::RunFinished { proved: true, survivors, .. } if survivors.is_empty())
}

/// Formats whether the stop is verified, and what is left if not; folds at `width` columns.
pub(crate) fn verification(model: &Model, finished: &ReportBody, width: usize) -> Vec<String> {
    let ReportBody::RunFinished { survivors, unverified: open, stop_ms, gpus_free, .. } = finished else {
        return Vec::new();
    };
    let verified = is_verified(finished);
    if verified
        && model.run.started.is_none()
        && model.ranks.iter().all(|rank| rank.life == RankLife::Pending)
    {
        return vec!["nothing was started".to_owned()];
    }
    if verified {
        let gpus = (!gpus_free.is_empty()).then(|| format!("GPUs free: {}", by_host(gpus_free)));
        let took = duration(*stop_ms as f64 / 1000.0);
        let point = format!("{} ({took})", self::verified(None, model.verified_hosts()));
        let point = if gpus.is_some() { point + ";" } else { point };
        return folded([point].iter().chain(&gpus).map(String::as_str), " ", 2, width);
    }
    let mut lines = vec![NOT_VERIFIED.to_owned()];
    lines.extend(differing(model));
    lines.extend((!open.is_empty()).then(|| unverified(&open.join(", "))));
    lines.extend(survivors.iter().map(|survivor| format!("  still running: {survivor}")));
    lines
}

/// Formats `a:0`, `a:1`, ... as `a:0-7 b:0-3,6`; of many hosts the first ones and a count.
fn by_host(gpus: &[String]) -> String {
    let mut hosts: Vec<(&str, Vec<u32>)> = Vec::new();
    for (host, index) in gpus.iter().filter_map(|gpu| gpu.rsplit_once(':')) {
        let Ok(index) = index.parse() else { continue };
        match hosts.iter_mut().find(|(name, _)| *name == host) {
            Some((_, indices)) => indices.push(index),
            None => hosts.push((host, vec![index])),
        }
    }
    let listed = hosts.iter().take(HOSTS).map(|(host, indices)| format!("{host}:{}", ranges(indices)));
    let listed = listed.collect::<Vec<_>>().join(" ");
    match hosts.len().saturating_sub(HOSTS) {
        0 => listed,
        more => format!("{listed} and {more} more hosts, {} GPUs in all", count(gpus.len() as u64)),
    }
}

/// Formats the hosts that contradict the others about the run.
pub(crate) fn differing(model: &Model) -> Option<String> {
    let names = &model.run.differing;
    let text = || format!("  {} disagree with the other hosts about the run", names.join(", "));
    (!names.is_empty()).then(text)
}

fn places(model: &Model, record: Option<&RecordingInfo>) -> Vec<String> {
    let checkpoint = model.checkpoints.back().map(|c| format!("checkpoint {}{}", c.path, c.remark()));
    let results = model.run.results().into_iter().map(|found| format!("results    {}", found.describe()));
    let folder = model.hosts.first().filter(|host| !host.run_dir.is_empty());
    let folder = folder.map(|host| format!("run dir    {} on {}", host.run_dir, host.name));
    let run = model.run.id.as_ref().filter(|_| record.is_some());
    let again = run.map(|run| format!("replay     `rankdeck replay {run}`"));
    let record = record.map(|kept| {
        let since = kept.since.map(|time| format!(", since {}", time_of_day(time)));
        let since = since.unwrap_or_default();
        format!("recording  {} ({}{since})", kept.folder.display(), bytes(kept.bytes))
    });
    let over = model.run.outcome.is_some_and(|outcome| outcome != RunOutcome::Succeeded);
    // A demonstration has no hosts and no recording.
    let resume = run.filter(|_| over && checkpoint.is_some());
    let resume = resume.map(|run| format!("resume     `rankdeck restart {run}`"));
    checkpoint.into_iter().chain(results).chain(resume).chain(folder).chain(record).chain(again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::{HeldLine, HostModel};
    use rankdeck_proto::message::{Evaluation, Exit};
    use rankdeck_types::ids::{LocalRank, NodeRank, Rank};
    use rankdeck_types::plan::PlannedRank;

    fn finished(outcome: RunOutcome, proved: bool, survivors: &[&str]) -> ReportBody {
        ReportBody::RunFinished {
            outcome,
            exit_code: 0,
            clean: true,
            survivors: survivors.iter().map(|s| s.to_string()).collect(),
            unverified: if proved && survivors.is_empty() { vec![] } else { vec!["b".into()] },
            proved,
            reason: "why".into(),
            stop_ms: 420,
            gpus_free: vec!["a:0".into()],
            first_failure: None,
            work: None,
            warnings: Vec::new(),
            results: Vec::new(),
        }
    }

    #[test]
    fn last_line_has_the_work_and_warnings_are_before_it() {
        let end = |outcome, left: Option<Work>| {
            let mut end = finished(outcome, true, &[]);
            if let ReportBody::RunFinished { work, warnings, .. } = &mut end {
                *work = left;
                warnings.push("rank 1 on a crashed".into());
            }
            let lines = lines(&model(), &end, None, 80);
            assert!(lines.iter().any(|line| line == "warning: rank 1 on a crashed"), "{lines:?}");
            let begin = lines.iter().rposition(|line| !line.starts_with(' ')).unwrap();
            lines[begin..].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
        };
        let saved = || Work::Saved {
            path: "/w/logs/CartPole-v1.zip".into(),
            bytes: Some(141_000),
            env_step: None,
            after_s: Some(3.0),
        };
        for outcome in [RunOutcome::Stopped, RunOutcome::Succeeded, RunOutcome::Failed] {
            let last = end(outcome, Some(saved()));
            assert!(last.contains("; saved logs/CartPole-v1.zip ("), "{last}");
            assert!(last.ends_with("(exit code 0)"), "{last}");
        }
        assert_ne!(end(RunOutcome::Stopped, Some(Work::NeverSaved)), end(RunOutcome::Stopped, None));
        assert_eq!(end(RunOutcome::Failed, Some(Work::NeverSaved)), end(RunOutcome::Failed, None));
    }

    fn rank(life: RankLife) -> RankModel {
        let planned =
            PlannedRank { rank: Rank(0), local_rank: LocalRank(0), node_rank: NodeRank(0), gpu: None };
        RankModel { life, ..RankModel::pending(&planned, "a") }
    }

    #[test]
    fn summary_repeats_warnings() {
        let mut model = model();
        model.run.warnings = (0..7).map(|n| format!("host a: clock {n}")).collect();
        let text = lines(&model, &finished(RunOutcome::Succeeded, true, &[]), None, 80).join("\n");
        assert!(text.contains("host a: clock 4\n  (and 2 more)"), "{text}");
        assert!(!text.contains("clock 5"), "{text}");
    }

    #[test]
    fn summary_fits_80_columns_without_cuts() {
        let counters = rankdeck_proto::message::Counters {
            env_step: 41_200_000,
            samples: 41_200_000,
            episodes: 123_456,
            updates: 1_234_567,
            duration_s: 24_072.0,
            ..Default::default()
        };
        let progress = rankdeck_core::model::TrainingProgress {
            totals: counters,
            sum: counters,
            consistent: false,
            reduced: true,
            generation: Default::default(),
            steps_per_s: None,
            return_mean: None,
            eta_s: None,
            at: rankdeck_types::ids::Timestamp(0),
            age_ms: 0,
            per_rank: Vec::new(),
        };
        let model = Model { progress: Some(progress), ..model() };
        let mut end = finished(RunOutcome::Failed, true, &[]);
        let why = "rank 13 on gpu-b was killed by SIGKILL, which a console sent; rank 0 to rank 12 lost it and followed";
        if let ReportBody::RunFinished { reason, gpus_free, .. } = &mut end {
            *reason = why.into();
            *gpus_free = (0..9).map(|host| format!("a-long-name-{host}:0")).collect();
        }
        let all = lines(&model, &end, None, 80);
        assert!(
            all.iter().filter(|line| !line.starts_with("  GPUs free")).all(|line| columns(line) <= 80),
            "{all:#?}"
        );
        let text = all.join("\n");
        for part in [
            "totals     env_step 41,200,000  samples 41,200,000  episodes 123,456\n           updates 1,234,567",
            "(TOTALS MISMATCH)",
            "stop verified: no process left on 2 hosts (420ms);\n  GPUs free: a-long-name-0:0",
            "failed: rank 13 on gpu-b was killed by SIGKILL, which a console sent; rank 0 to\n  rank 12",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(all.last().unwrap().ends_with("followed (exit code 0)"), "{text}");
        let whole = lines(&model, &end, None, usize::MAX);
        let last = whole.last().unwrap();
        assert!(
            last.starts_with("failed: rank 13") && last.ends_with("followed (exit code 0)"),
            "{whole:#?}"
        );
        assert!(
            whole.iter().any(|line| line.starts_with("totals ") && line.contains("env time")),
            "{whole:#?}"
        );
    }

    #[test]
    fn equal_failures_show_log_of_first_rank() {
        let one = |n: u32, text: &str| {
            let mut rank = RankModel { rank: Rank(n), ..rank(RankLife::Exited(Exit::Code { code: 1 })) };
            rank.log.lines.push_back(HeldLine::new(u64::from(n), text));
            rank
        };
        let verdict = r#"{"rank": 0, "host": "a", "verdict": "dead", "severity": "red", "confidence": "certain",
            "reason": "", "latency_s": 0.0, "card": {}}"#;
        let first = r#"{"rank": 1, "host": "a", "error": "", "time": 0.0, "bound_s": 0.0, "certain": true,
            "last_lines": [], "followed": [], "together": [], "line": ""}"#;
        let mut model = Model {
            ranks: vec![one(0, "of rank 0"), one(1, "of rank 1")],
            verdicts: vec![serde_json::from_str(verdict).unwrap()],
            ..model()
        };
        model.run.first_failure = Some(serde_json::from_str(first).unwrap());
        let text = lines(&model, &finished(RunOutcome::Failed, true, &[]), None, 80).join("\n");
        assert!(text.contains("of rank 1") && !text.contains("of rank 0"), "{text}");
    }

    #[test]
    fn unstarted_run_has_no_stop_line() {
        let model = Model { ranks: vec![rank(RankLife::Pending)], ..model() };
        let text = lines(&model, &finished(RunOutcome::Failed, true, &[]), None, 80).join("\n");
        assert!(text.contains("nothing was started") && !text.contains("stop verified"), "{text}");
    }

    fn model() -> Model {
        let host = |name: &str, stopped| HostModel { name: name.into(), stopped, ..HostModel::default() };
        let hosts = vec![host("a", Some(vec![])), host("b", Some(vec![])), host("never-asked", None)];
        Model { hosts, ranks: vec![rank(RankLife::Exited(Exit::Code { code: 0 }))], ..Model::default() }
    }

    #[test]
    fn stop_line_requires_verification() {
        let yes = lines(&model(), &finished(RunOutcome::Succeeded, true, &[]), None, 80).join("\n");
        assert!(yes.contains("stop verified: no process left on 2 hosts (420ms); GPUs free: a:0"), "{yes}");
        for no in
            [finished(RunOutcome::Stopped, false, &[]), finished(RunOutcome::Stopped, true, &["b:7 python"])]
        {
            let text = lines(&model(), &no, None, 80).join("\n");
            assert!(text.contains(NOT_VERIFIED) && text.contains("all processes exited on b"), "{text}");
            assert!(!text.contains("stop verified"), "{text}");
        }
    }

    #[test]
    fn free_gpus_are_listed_as_ranges() {
        let gpus = |hosts: u32| -> Vec<String> {
            (0..hosts).flat_map(|host| (0..8).map(move |gpu| format!("h{host}:{gpu}"))).collect()
        };
        assert_eq!(by_host(&gpus(2)), "h0:0-7 h1:0-7");
        assert_eq!(by_host(&["a:3".into(), "a:0".into(), "[::1]:1".into()]), "a:0,3 [::1]:1");
        let many = by_host(&gpus(128));
        assert!(many.len() < 120 && many.ends_with("and 120 more hosts, 1,024 GPUs in all"), "{many}");
    }

    #[test]
    fn long_evaluation_list_keeps_first_best_and_last() {
        let mut model = model();
        let eval = |i: u64| Evaluation {
            env_step: i * 1000,
            return_mean: if i == 50 { 99.0 } else { 1.0 },
            ..Default::default()
        };
        model.evals = (1..=100).map(eval).collect();
        let table = evaluations(&model);
        assert!(table.len() <= EVALS + 3, "{}", table.len());
        for step in ["1,000", "50,000", "100,000"] {
            assert!(table.iter().any(|line| line.contains(&format!(" {step} "))), "{step}");
        }
        assert!(table.iter().any(|line| line.contains("more evaluations")));
    }
}
