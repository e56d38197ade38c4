//! Ranks are lost and the others continue; a lost rank joins again.

use crate::Goal;
use crate::end::RankEnd;
use crate::event::{Event, StopSource};
use crate::membership::MembershipModel;
use crate::model::{ChartMarkKind, EventTone, RankLife, RunState};
use crate::report::{ReportBody, RunOutcome, Severity, VerdictKind};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::experiment::OnRankLoss;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::link_state::LinkState;

const LOST: (VerdictKind, Option<u32>, Severity) = (VerdictKind::Lost, Some(1), Severity::Amber);

/// A run of two ranks per host that are in the process group.
fn training(hosts: usize, on_rank_loss: OnRankLoss) -> Cluster {
    let mut draft = draft(hosts, Transport::Local);
    draft.experiment.distributed.on_rank_loss = on_rank_loss;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), hosts, vec![]);
    c.all_ready();
    for rank in 0..2 * hosts as u32 {
        join(&mut c, rank);
    }
    c.pass(2_000);
    assert_eq!(c.model().run.state, RunState::Running);
    c
}

fn shrinking(hosts: usize) -> Cluster {
    training(hosts, OnRankLoss::Shrink)
}

fn join(c: &mut Cluster, rank: u32) {
    c.rank_event(rank, RankEvent::Joined { world_size: 4, backend: "tcp".into(), device: "cpu".into() });
}

fn ranks(numbers: &[u32]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank).collect()
}

/// The lowest of `members` reports them.
fn report(c: &mut Cluster, epoch: u32, members: &[u32], lost: &[u32], joined: &[u32]) {
    let change = Membership {
        epoch,
        ranks: ranks(members),
        lost: ranks(lost),
        joined: ranks(joined),
        iteration: 10 * u64::from(epoch),
        steps: 4_800,
        steps_lost: 128,
        seconds: 0.25,
        store: Some("10.0.0.1:4711".into()),
    };
    c.rank_event(members[0], RankEvent::Membership(change));
}

fn membership(c: &Cluster) -> &MembershipModel {
    &c.model().membership
}

fn is_undisturbed(c: &Cluster) -> bool {
    c.model().run.state == RunState::Running && (0..c.agents.len()).all(|node| c.stops(node).is_empty())
}

fn end(c: &Cluster) -> (Option<RunOutcome>, Option<u8>) {
    (c.model().run.outcome, c.exit)
}

fn counters(train_iter: u64, env_step: u64) -> Counters {
    Counters { train_iter, env_step, samples: env_step, ..Counters::default() }
}

#[test]
fn shrink_1_lost_rank_does_not_end_the_generation() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    c.pass(3_000);
    assert!(is_undisturbed(&c), "the survivors have time to agree");
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.pass(30_000);
    assert!(is_undisturbed(&c));
    assert_eq!(c.model().lost_ranks(), ranks(&[1]));
    let rank = &c.model().ranks[1];
    assert_eq!((rank.end, rank.failed()), (Some(RankEnd::Lost), false));
    assert_eq!(c.verdicts().first(), Some(&LOST));
    assert!(c.verdicts().iter().all(|verdict| verdict.0 == VerdictKind::Lost), "{:?}", c.verdicts());
    let [verdict] = &c.model().verdicts[..] else { panic!("{:?}", c.model().verdicts) };
    insta::assert_snapshot!("verdict_of_a_lost_rank", verdict_text(verdict));
    let mark = c.model().marks.iter().find(|mark| matches!(mark.kind, ChartMarkKind::Membership { .. }));
    let mark = mark.unwrap();
    assert_eq!(mark.kind, ChartMarkKind::Membership { members: 3, world: 4 });
    assert_eq!(mark.place.step, 4_800.0);
    let is_it = |body: &ReportBody| {
        matches!(
            body,
            ReportBody::Membership { epoch: 1, world_size: 4, env_step: 4_800, steps_lost: 128, .. }
        )
    };
    assert!(c.reports.iter().any(|(_, _, body)| is_it(body)));
    let line = c.model().history.iter().find(|line| line.text.contains("3 of 4 ranks")).unwrap();
    assert_eq!(line.tone, EventTone::Warn);
    insta::assert_snapshot!("line_of_a_loss", line.text);
}

#[test]
fn shrink_1_report_may_come_before_the_exit() {
    let mut c = shrinking(2);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    assert_eq!((c.model().lost_ranks(), &c.model().ranks[1].life), (ranks(&[1]), &RankLife::Joined));
    c.exit_of(1, killed(), false);
    c.pass(30_000);
    assert!(is_undisturbed(&c));
    assert_eq!(c.model().ranks[1].end, Some(RankEnd::Lost));
    assert_eq!(c.model().verdicts.len(), 1);
}

#[test]
fn shrink_1_without_the_option_a_loss_ends_all() {
    let mut c = training(2, OnRankLoss::Restart);
    c.exit_of(1, killed(), false);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.pass(3_000);
    assert_eq!((c.stops(0), c.stops(1)), (vec![StopMode::Terminate], vec![StopMode::Terminate]));
    assert_eq!((c.model().lost_ranks(), c.model().drops.misplaced), (vec![], 1));
}

#[test]
fn shrink_1_rank_that_has_not_joined_fails_the_run() {
    let mut draft = draft(2, Transport::Local);
    draft.experiment.distributed.on_rank_loss = OnRankLoss::Shrink;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
    c.all_ready();
    c.pass(1_000);
    c.exit_of(1, killed(), false);
    c.pass(3_000);
    assert_eq!(c.stops(0), [StopMode::Terminate]);
}

#[test]
fn shrink_1_last_rank_fails_the_run() {
    let mut c = shrinking(1);
    c.exit_of(0, killed(), false);
    c.pass(1_000);
    assert!(is_undisturbed(&c));
    c.exit_of(1, killed(), false);
    c.proof(0);
    assert_eq!(end(&c), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(c.model().run.first_failure.as_ref().map(|first| first.rank), Some(Rank(0)));
}

#[test]
fn shrink_2_unconfirmed_loss_is_a_failure() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    c.pass(9_500);
    assert!(is_undisturbed(&c));
    c.pass(4_000);
    assert_eq!((c.stops(0), c.stops(1)), (vec![StopMode::Terminate], vec![StopMode::Terminate]));
    assert!(c.verdicts().contains(&(VerdictKind::Dead, Some(1), Severity::Red)), "{:?}", c.verdicts());
    for rank in [0, 2, 3] {
        c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
    }
    (0..2).for_each(|node| c.proof(node));
    assert_eq!(end(&c), (Some(RunOutcome::Failed), Some(1)));
    let first = c.model().run.first_failure.as_ref().unwrap();
    assert_eq!((first.rank, c.model().lost_ranks()), (Rank(1), vec![]));
    assert!(c.model().ranks[1].failed());
}

#[test]
fn shrink_4_survivor_that_cannot_continue_ends_all() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    c.pass(500);
    c.exit_of(0, Exit::Code { code: CANNOT_SHRINK }, false);
    c.pass(2_500);
    assert_eq!(c.stops(1), [StopMode::Terminate]);
    for rank in [2, 3] {
        c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
    }
    (0..2).for_each(|node| c.proof(node));
    assert_eq!(end(&c), (Some(RunOutcome::Failed), Some(1)));
    let first = c.model().run.first_failure.as_ref().unwrap();
    assert_eq!(
        (first.rank, first.followed.as_slice()),
        (Rank(1), &ranks(&[0])[..]),
        "the cause, not the effect"
    );
}

#[test]
fn shrink_3_exit_of_no_member_changes_nothing() {
    let mut c = shrinking(2);
    report(&mut c, 1, &[0, 1], &[2, 3], &[]);
    c.exit_of(2, Exit::Code { code: CANNOT_SHRINK }, false);
    c.exit_of(3, Exit::Code { code: 0 }, false);
    c.proof(1);
    c.pass(20_000);
    assert!(is_undisturbed(&c));
    assert_eq!(c.model().lost_ranks(), ranks(&[2, 3]));
}

#[test]
fn survivors_are_not_accused_while_they_form_a_group() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    c.hang(99, |_| {});
    c.pass(9_000);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.release();
    c.pass(20_000);
    assert!(c.verdicts().iter().all(|verdict| verdict.0 == VerdictKind::Lost), "{:?}", c.verdicts());
}

#[test]
fn totals_follow_the_members() {
    let mut c = shrinking(2);
    c.iteration(1, 10);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    for (rank, steps) in [(0, 25), (2, 15), (3, 15)] {
        c.rank_event(rank, RankEvent::Counters(counters(11, steps)));
    }
    c.rank_event(0, RankEvent::Totals(counters(11, 55)));
    let progress = c.model().progress.as_ref().unwrap();
    assert_eq!((progress.totals.train_iter, progress.consistent), (11, true));
    let per_rank: Vec<Rank> = progress.per_rank.iter().map(|rank| rank.rank).collect();
    assert_eq!(per_rank, ranks(&[0, 2, 3]));
    assert_eq!((c.model().member_count(), c.model().shrunk_to().as_deref()), (3, Some("3 of 4 ranks")));
}

#[test]
fn last_common_iteration_has_the_counters_of_all() {
    let mut c = shrinking(2);
    // The host of ranks 2 and 3 reports late.
    for rank in 0..2 {
        c.rank_event(rank, RankEvent::Counters(counters(10, 5)));
    }
    c.rank_event(0, RankEvent::Totals(counters(10, 20)));
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    for rank in 2..4 {
        c.rank_event(rank, RankEvent::Counters(counters(10, 5)));
    }
    let progress = c.model().progress.as_ref().unwrap();
    assert_eq!((progress.consistent, progress.per_rank.len()), (true, 4));
}

#[test]
fn lowest_member_reports_after_rank_0_is_lost() {
    let mut c = shrinking(2);
    c.exit_of(0, killed(), false);
    report(&mut c, 1, &[1, 2, 3], &[0], &[]);
    for rank in 1..4 {
        c.rank_event(rank, RankEvent::Counters(counters(11, 10)));
    }
    let misplaced = c.model().drops.misplaced;
    c.rank_event(2, RankEvent::Totals(counters(11, 99)));
    assert_eq!(c.model().drops.misplaced, misplaced + 1);
    c.rank_event(1, RankEvent::Totals(counters(11, 30)));
    assert_eq!(c.model().progress.as_ref().map(|progress| progress.totals.env_step), Some(30));
    for rank in 1..4 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
    }
    (0..2).for_each(|node| c.host_ends(node, false));
    assert_eq!(end(&c), (Some(RunOutcome::Succeeded), Some(0)));
    assert!(c.model().run.reason.ends_with("rank 0 was lost"), "{}", c.model().run.reason);
}

#[test]
fn differing_weights_name_a_member() {
    let mut c = shrinking(2);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    let values = ["a", "a", "b"].map(String::from).to_vec();
    c.rank_event(0, RankEvent::Fingerprint { train_iter: 11, update: 1, values, equal: false });
    assert!(c.verdicts().contains(&(VerdictKind::Drift, Some(3), Severity::Red)), "{:?}", c.verdicts());
}

#[test]
fn lost_host_does_not_keep_the_run_from_ending() {
    let mut c = shrinking(2);
    c.lose(1);
    c.pass(2_000);
    report(&mut c, 1, &[0, 1], &[2, 3], &[]);
    c.pass(60_000);
    assert!(is_undisturbed(&c));
    for rank in 0..2 {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
    }
    c.host_ends(0, false);
    assert_eq!(end(&c), (Some(RunOutcome::Succeeded), Some(0)), "it is not waited for");
    let [ReportBody::RunFinished { proved, unverified, clean, reason, .. }] = &c.finished()[..] else {
        panic!()
    };
    assert_eq!((*proved, *clean, &unverified[..]), (false, false, &["bee".to_owned()][..]));
    insta::assert_snapshot!("end_after_a_lost_host", reason);
}

#[test]
fn stop_while_shrinking_is_a_stop() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    c.pass(15_000);
    for rank in [0, 2, 3] {
        c.exit_of(rank, Exit::Code { code: 0 }, true);
    }
    (0..2).for_each(|node| c.proof(node));
    assert_eq!(end(&c), (Some(RunOutcome::Stopped), Some(130)));
    assert_eq!(c.model().ranks[1].end, Some(RankEnd::Lost));
}

#[test]
fn console_that_attaches_reads_the_same_members() {
    let mut c = shrinking(2);
    c.exit_of(3, killed(), false);
    report(&mut c, 1, &[0, 1, 2], &[3], &[]);
    c.pass(1_000);
    for order in [[0, 1], [1, 0]] {
        let mut other = c.attach();
        for node in order {
            other.ready(node);
            other.pass(1_000);
        }
        other.pass(30_000);
        assert!(is_undisturbed(&other), "{order:?}");
        assert_eq!(other.model().lost_ranks(), ranks(&[3]), "{order:?}");
        assert_eq!(membership(&other).news, 0, "{order:?}: it is no news");
    }
}

#[test]
fn loss_is_not_judged_while_a_host_is_unread() {
    let mut c = shrinking(2);
    c.exit_of(3, killed(), false);
    report(&mut c, 1, &[0, 1, 2], &[3], &[]);
    let mut other = c.attach();
    other.ready(1);
    other.link(0, LinkState::Lost { reason: "no route".into(), retry_ms: 500 });
    other.pass(60_000);
    assert!(other.stops(1).is_empty(), "the confirmation may be on the other host");
    other.ready(0);
    other.pass(15_000);
    assert!(is_undisturbed(&other));
}

#[test]
fn lost_rank_joins_again() {
    let mut c = shrinking(2);
    for rank in [2, 3] {
        c.exit_of(rank, killed(), false);
    }
    report(&mut c, 1, &[0, 1], &[2, 3], &[]);
    c.proof(1);
    c.pass(1_000);
    c.event(Event::RejoinRequested { rank: Rank(2) });
    let order = c.agents[1].orders.iter().find_map(|order| match order {
        ConsoleMessage::Rejoin { rank, generation, epoch, store, .. } => {
            Some((*rank, *generation, *epoch, store.clone()))
        }
        _ => None,
    });
    assert_eq!(order, Some((Rank(2), Generation(0), 1, Some("10.0.0.1:4711".into()))));
    assert_eq!((&c.model().ranks[2].life, membership(&c).joining), (&RankLife::Spawned, Some(Rank(2))));
    assert!(c.model().hosts[1].stopped.is_none(), "something runs there again");
    assert_eq!(c.model().rejoin_obstacle(Rank(3)), Some("another rank is joining"));
    join(&mut c, 2);
    report(&mut c, 2, &[0, 1, 2], &[], &[2]);
    c.pass(5_000);
    assert!(is_undisturbed(&c));
    assert_eq!((c.model().lost_ranks(), membership(&c).joining), (ranks(&[3]), None));
    assert!(c.verdicts().contains(&(VerdictKind::Lost, Some(2), Severity::Cleared)), "{:?}", c.verdicts());
    assert_eq!(c.model().ranks[2].end, None);
    // It is a member like the others again.
    c.exit_of(2, killed(), false);
    report(&mut c, 3, &[0, 1], &[2], &[]);
    c.pass(20_000);
    assert!(is_undisturbed(&c));
}

#[test]
fn rank_that_ends_before_it_joins_changes_nothing() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.event(Event::RejoinRequested { rank: Rank(1) });
    c.exit_of(1, Exit::Code { code: 1 }, false);
    c.pass(20_000);
    assert!(is_undisturbed(&c));
    assert_eq!((membership(&c).joining, membership(&c).refused.is_some()), (None, true));
    assert_eq!(c.model().rejoin_obstacle(Rank(1)), None, "it may be tried again");
}

#[test]
fn rank_that_is_not_lost_is_not_started() {
    let mut c = shrinking(2);
    for rank in [1, 9] {
        c.event(Event::RejoinRequested { rank: Rank(rank) });
        assert!(membership(&c).refused.is_some());
    }
    let is_order = |order: &ConsoleMessage| matches!(order, ConsoleMessage::Rejoin { .. });
    assert!(c.agents.iter().all(|agent| !agent.orders.iter().any(is_order)));
}

#[test]
fn refusal_of_an_agent_ends_the_request() {
    let mut c = shrinking(2);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.exit_of(1, killed(), false);
    c.event(Event::RejoinRequested { rank: Rank(1) });
    let why = rankdeck_types::error::HintedError::new("its end is not complete", "try again");
    c.receive(0, AgentMessage::Refused(why));
    assert_eq!((membership(&c).joining, membership(&c).refused.is_some()), (None, true));
    assert!(is_undisturbed(&c));
}

#[test]
fn next_generation_has_all_ranks() {
    let mut c = shrinking(2);
    c.exit_of(1, killed(), false);
    report(&mut c, 1, &[0, 2, 3], &[1], &[]);
    c.event(Event::restart(None));
    for node in 0..2 {
        c.host_ends(node, true);
    }
    c.pass(1_000);
    assert_eq!(c.model().run.generation, Generation(1));
    assert_eq!((c.model().lost_ranks(), membership(&c).epoch), (vec![], 0));
    assert_eq!(membership(&c).changes.len(), 1, "the record of the former generation stays");
    assert_eq!(c.launches(0).last().map(|spec| spec.plan.ranks.len()), Some(4));
}

#[test]
fn implausible_members_are_counted_and_ignored() {
    let mut c = shrinking(2);
    for members in [vec![0, 9], vec![2, 0]] {
        let change = Membership { epoch: 1, ranks: ranks(&members), ..Membership::default() };
        c.rank_event(0, RankEvent::Membership(change));
    }
    let elsewhere = Membership { epoch: 1, ranks: ranks(&[0, 1]), ..Membership::default() };
    c.record(1, RecordEvent::Rank { rank: Rank(0), event: RankEvent::Membership(elsewhere) });
    assert_eq!((c.model().drops.misplaced, membership(&c).epoch), (3, 0));
    assert!(c.model().lost_ranks().is_empty() && !c.model().has_only_lost(NodeRank(1)));
}
