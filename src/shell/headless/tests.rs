//! Tests of the plain lines.

use super::*;
use rankdeck_core::card::{Advice, Card};
use rankdeck_core::model::HostModel;
use rankdeck_core::report::{Confidence, RankProgress};
use rankdeck_types::ids::{Generation, NodeRank, RunId};

fn report(body: ReportBody) -> Report {
    Report { run: RunId("r".into()), generation: Generation(0), time: 0.0, body }
}

fn texts(report: &Report, model: &Model) -> Vec<String> {
    plain(report, model)
        .into_iter()
        .map(|line| match line {
            Line::Out(text) | Line::Gauge(text) | Line::Err(text) => text[10..].to_owned(),
        })
        .collect()
}

fn rank_progress() -> RankProgress {
    RankProgress {
        rank: Rank(0),
        host: "a".into(),
        env_step: 1,
        samples: 1,
        episodes: 1,
        duration_s: 1.0,
        phase: "rollout".into(),
        collective_seq: 1,
        cpu_percent: None,
        gpu_percent: None,
        rss: None,
        gpu_memory: None,
        gpu: None,
    }
}

#[test]
fn progress_has_share_rate_and_eta_and_shouts_when_totals_lie() {
    let body = |consistent| ReportBody::Progress {
        train_iter: 3,
        env_step: 12_288,
        samples: 12_288,
        episodes: 120,
        duration_s: 3.0,
        steps_per_s: 8123.4,
        return_mean: Some(34.21),
        return_last_100: Some(30.04),
        updates: 12,
        total_steps: Some(500_000),
        eta_s: Some(62.0),
        consistent,
        reduced: true,
        per_rank: vec![rank_progress(), rank_progress()],
    };
    assert_eq!(
        texts(&report(body(true)), &Model::default()),
        [
            "step 12,288 / 500,000 (2.5%)  8,123 steps/s  eta 1m 02s  episodes 120  return 34.2  last 100 30.0  2 ranks"
        ]
    );
    assert!(texts(&report(body(false)), &Model::default())[0].contains("TOTALS DIFFER"));
}

fn frozen() -> VerdictReport {
    VerdictReport {
        rank: Some(Rank(2)),
        host: Some("b".into()),
        verdict: VerdictKind::Frozen,
        reason_code: Default::default(),
        card: Box::new(Card {
            facts: vec!["state T".into()],
            actions: vec![Advice { text: "continue it".into(), command: "kill -CONT 7".into() }],
            ..Card::default()
        }),
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason: "the process is stopped".into(),
        latency_s: 1.2,
        first_s: 1.2,
    }
}

#[test]
fn a_verdict_names_the_rank_the_evidence_and_the_hint() {
    let verdict = frozen();
    assert_eq!(
        texts(&report(ReportBody::Verdict(verdict.clone())), &Model::default()),
        [
            "RED rank 2 on b: frozen (certain, after 1.2s): the process is stopped",
            "    fact        state T",
            "    do          continue it: kill -CONT 7"
        ]
    );
    let cleared = VerdictReport { severity: Severity::Cleared, reason: String::new(), ..verdict };
    assert_eq!(
        texts(&report(ReportBody::Verdict(cleared)), &Model::default()),
        ["cleared: rank 2 on b is no longer frozen"]
    );
}

#[test]
fn a_first_failure_that_the_verdicts_have_told_is_not_told_again() {
    let said = "rank 1 on b was killed by SIGKILL";
    let dead = |rank, reason: &str| VerdictReport {
        verdict: VerdictKind::Dead,
        rank: Some(Rank(rank)),
        reason: reason.into(),
        ..frozen()
    };
    let ends = |verdicts: Vec<VerdictReport>, together: Vec<Rank>| {
        let first = FirstFailure {
            rank: Rank(1),
            host: "b".into(),
            error: said.into(),
            time: 0.0,
            bound_s: 0.0,
            certain: together.is_empty(),
            last_lines: vec![],
            alike: vec![],
            followed: vec![Rank(0)],
            together,
            line: format!("first failure: {said}; rank 0 followed"),
        };
        let body = ReportBody::RunFinished {
            outcome: rankdeck_core::report::Outcome::Failed,
            exit_code: 1,
            clean: false,
            survivors: vec![],
            unverified: vec![],
            proved: true,
            reason: said.into(),
            stop_ms: 1,
            gpus_free: vec![],
            first_failure: Some(first),
        };
        texts(&report(body), &Model { verdicts, ..Model::default() }).len()
    };
    let both = || vec![dead(1, said), dead(0, "rank 0 on a exited with code 1")];
    assert_eq!(ends(both(), vec![]), 1, "only that the run has ended");
    for (verdicts, together) in [(vec![], vec![]), (vec![dead(1, said)], vec![]), (both(), vec![Rank(2)])] {
        assert_eq!(ends(verdicts, together), 2, "it says something that no verdict has said");
    }
}

#[test]
fn a_failed_host_goes_to_stderr_with_its_hint() {
    let link =
        LinkState::Failed(HintedError { error: "connection refused".into(), hint: "is sshd up?".into() });
    let model =
        Model { hosts: vec![HostModel { name: "b".into(), link, ..Default::default() }], ..Model::default() };
    let body = ReportBody::Host {
        node_rank: NodeRank(0),
        host: "b".into(),
        state: "failed".into(),
        detail: String::new(),
    };
    assert_eq!(
        failed_host(&report(body), &model),
        [Line::Err("error: host b: connection refused".into()), Line::Err("hint: is sshd up?".into())]
    );
}

#[test]
fn json_is_one_object_per_line_with_the_four_common_keys() {
    let lines = json(&report(ReportBody::Log { rank: Rank(0), host: "a".into(), line: "x\ny".into() }));
    let [Line::Gauge(line)] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(!line.contains('\n'));
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    for key in ["kind", "run", "generation", "time"] {
        assert!(value.get(key).is_some(), "{key}");
    }
}
