use super::*;
use rankdeck_proto::message::Counters;
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{NodeRank, Rank, RunId};

/// One of two hosts with a rank each, after a run of 60 s.
fn part(node: u32, digest: NodeDigest) -> RunEntry {
    RunEntry {
        run: RunId("r".into()),
        node_rank: NodeRank(node),
        host: ["a", "b"][node as usize].into(),
        state: RunState::Finished,
        generation: Generation(0),
        world_size: 2,
        ranks_alive: 0,
        pids: Vec::new(),
        socket: String::new(),
        started: 1000.0 + f64::from(node),
        name: "r".into(),
        run_dir: "/r".into(),
        nnodes: 2,
        hosts: vec!["a".into(), "b".into()],
        agent_pid: 0,
        digest: NodeDigest { exits: 1, proved: true, seconds: 60.0, ended: Some(1060.0), ..digest },
    }
}

fn both(digest: NodeDigest) -> RunSummary {
    let parts = [part(0, digest.clone()), part(1, digest)];
    RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0)
}

#[test]
fn what_the_console_said_of_the_end_stands() {
    let ending = Ending::clean(Outcome::Succeeded, 0, "reached iters=3");
    let told = NodeDigest { ending: Some(ending), stop: Some("console".into()), ..Default::default() };
    let mut parts = [part(0, NodeDigest::default()), part(1, told)];
    let summary = RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0);
    assert_eq!((summary.outcome_text().unwrap().as_str(), summary.clean), ("succeeded", Some(true)));
    assert_eq!((summary.reason.as_str(), summary.duration_s), ("reached iters=3", 60.0));
    assert_eq!((summary.started, summary.ended), (Some(1000.0), Some(1060.0)));
    // Not while something of it runs, and not the end of a generation that another one has followed.
    parts[0].state = RunState::Running;
    assert_eq!(RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0).outcome, None);
    parts[0].state = RunState::Finished;
    parts[0].generation = Generation(1);
    let summary = RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0);
    assert!(summary.reason.contains("not recorded"), "{}", summary.reason);
}

#[test]
fn without_a_console_at_the_end_the_ranks_decide() {
    let end = |digest| {
        let summary = both(digest);
        (summary.outcome_text().unwrap(), summary.reason, summary.clean.unwrap())
    };
    let none = NodeDigest::default;
    assert_eq!(end(none()), ("succeeded".into(), "all ranks ended with exit code 0".into(), true));
    let budget = NodeDigest { finish: Some(FinishReason::Budget), ..none() };
    assert_eq!(end(budget), ("succeeded".into(), "reached the step goal".into(), true));
    let stop = NodeDigest { stop: Some("console".into()), finish: Some(FinishReason::Stopped), ..none() };
    assert_eq!(end(stop.clone()), ("stopped".into(), "stopped by console".into(), true));
    let killed = NodeDigest { killed: 1, finish: None, ..stop };
    assert_eq!(end(killed), ("stopped (137)".into(), "stopped by console: ranks were killed".into(), false));
    let bad = NodeDigest { bad_exits: 1, stop: Some("lease".into()), ..none() };
    assert_eq!(end(bad).0, "failed (1)");
}

#[test]
fn the_earliest_failure_is_told_and_a_failed_run_never_succeeded() {
    let failure = |rank: u32, time: f64, text: &str| {
        let exit = Some(Exit::Code { code: 1 });
        let failure = RankFailure { rank: Rank(rank), time, exit, text: text.into(), usage: false };
        NodeDigest { failure: Some(failure), stop: Some("console".into()), ..NodeDigest::default() }
    };
    let parts =
        [part(0, failure(0, 1050.0, "connection lost")), part(1, failure(1, 1049.0, "ValueError: x"))];
    let summary = RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0);
    assert_eq!(summary.first_failure.as_deref(), Some("rank 1 on b exited with code 1: ValueError: x"));
    assert_eq!((summary.outcome, summary.exit_code), (Some(Outcome::Failed), Some(1)));
    // An error that a rank reported without failing is no failure.
    let told = RankFailure { rank: Rank(0), time: 1.0, exit: None, text: "x".into(), usage: false };
    let summary = both(NodeDigest { failure: Some(told), ..NodeDigest::default() });
    assert_eq!(summary.outcome, Some(Outcome::Succeeded));
}

#[test]
fn a_run_whose_agents_went_down_has_failed_and_a_silent_host_leaves_the_end_open() {
    let mut parts = [part(0, NodeDigest::default()), part(1, NodeDigest::default())];
    parts[1].digest.exits = 0;
    let summary = RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0);
    assert_eq!(summary.outcome, Some(Outcome::Failed));
    assert!(summary.reason.contains("not recorded"), "{}", summary.reason);
    let summary = RunSummary::of(&[&parts[0]], 9000.0);
    assert_eq!((summary.outcome, summary.hosts.len()), (None, 2));
    assert_eq!(RunSummary::of(&[], 0.0), RunSummary::default());
}

#[test]
fn figures_are_those_of_rank_0_wherever_it_was() {
    let totals = |train_iter, env_step| Some(Counters { train_iter, env_step, ..Counters::default() });
    let best = |mean| Some(Evaluation { return_mean: mean, ..Evaluation::default() });
    let old = NodeDigest {
        totals: totals(5, 50),
        last_return: Some(1.0),
        best: best(9.0),
        evals: 2,
        ..Default::default()
    };
    let new = NodeDigest {
        totals: totals(8, 80),
        last_return: Some(2.0),
        best: best(4.0),
        evals: 1,
        ..Default::default()
    };
    let parts = [part(0, old), part(1, new)];
    let summary = RunSummary::of(&parts.iter().collect::<Vec<_>>(), 9000.0);
    assert_eq!((summary.env_step, summary.train_iter, summary.last_return), (Some(80), Some(8), Some(2.0)));
    assert_eq!((summary.best.unwrap().return_mean, summary.evals), (9.0, 3));
}

#[test]
fn a_run_that_goes_on_lasts_until_now() {
    let mut entry = part(0, NodeDigest { since: Some(2000.0), ..NodeDigest::default() });
    entry.state = RunState::Running;
    assert_eq!(RunSummary::of(&[&entry], 2030.0).duration_s, 90.0);
}
