//! Ranks as threads of this process. Dropping a rank's [`Members`] does to the others what its death does: its sockets
//! close.

use super::agreement::Agreement;
use super::service::MemberRequest;
use super::*;
use crate::distributed::auth_listener::{self, AuthListener};
use crate::distributed::group::Reformation;
use crate::distributed::{BackendKind, ReduceOp};
use crate::support::page::StatusPage;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_types::error::HintedError;
use std::net::Ipv4Addr;
use std::time::Instant;
use tch::Device;

const DEADLINE: Duration = Duration::from_secs(60);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// After which a rank that does not answer counts as lost.
const SILENCE: Duration = Duration::from_millis(400);
const TERMS: AgreementTerms<'_> =
    AgreementTerms { limit: DEADLINE, is_planned: false, excludes_hosts: false, can_split: &[true; 8] };

fn settings(rank: u32, world_size: u32, port: u16) -> GroupSettings {
    GroupSettings {
        rank,
        world_size,
        local_rank: rank,
        master_addr: "127.0.0.1".into(),
        master_port: port,
        backend: BackendKind::Tcp,
        timeout: DEADLINE,
        shared_memory: true,
        interface: None,
        generation: 3,
        secret: GroupSecret::from_hex(&"5e".repeat(32)),
        device: Device::Cpu,
        interrupt: Some(Interrupt::default()),
    }
}

fn member(rank: u32, world_size: u32) -> Members {
    Members::at(HERE, &settings(rank, world_size, 0), SILENCE).unwrap()
}

/// Ranks that know each other, as after the launch.
fn launched(world_size: u32) -> Vec<Members> {
    let all: Vec<Members> = (0..world_size).map(|rank| member(rank, world_size)).collect();
    introduce(&all, &[]);
    all
}

/// All of them, and `more`, form the first group.
fn introduce(all: &[Members], more: &[Member]) {
    let mut members: Vec<Member> = all.iter().map(|rank| rank.shared.lock().own.clone()).collect();
    members.extend(more.iter().cloned());
    members.sort_by_key(|member| member.rank);
    for rank in all {
        rank.shared.lock().view = GroupView::launch(members.clone());
    }
}

/// A rank that does not respond: its host accepts the connection, and that is all.
fn mute(rank: u32) -> (TcpListener, Member) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, Member { rank, address })
}

type Outcome = Result<Agreement, HintedError>;

/// All of these ranks agree at the same time, each with the iterations that it holds.
fn agree(
    ranks: &[Members],
    held: impl Fn(u32) -> Vec<u64> + Sync,
    terms: AgreementTerms<'_>,
) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|rank| {
                let held = &held;
                scope.spawn(move || {
                    let own = rank.shared.lock().own.rank;
                    rank.agree(&held(own), &terms)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The one view that all have agreed on; only its leader has the socket of the store.
fn one_view(outcomes: Vec<Outcome>) -> GroupView {
    let agreed: Vec<Agreement> = outcomes.into_iter().map(Result::unwrap).collect();
    let view = agreed[0].view.clone();
    assert!(agreed.iter().all(|other| other.view == view));
    assert_eq!(agreed.iter().filter(|other| other.listener.is_some()).count(), 1);
    view
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// MEMBER-3: rank 0 among them.
#[test]
fn member_3_survivors_go_back_to_a_common_iteration() {
    for lost in 0..3 {
        let mut ranks = launched(3);
        ranks.remove(lost);
        // One rank has ended iteration 6 already, the others have not.
        let view = one_view(agree(&ranks, |rank| if rank == 2 { vec![5, 6] } else { vec![4, 5] }, TERMS));
        let left: Vec<u32> = (0..3).filter(|rank| *rank != lost as u32).collect();
        assert_eq!((view.ranks(), view.epoch, view.leader), (left.clone(), 1, left[0]));
        assert_eq!(view.iteration, if left.contains(&0) || left.contains(&1) { 5 } else { 6 });
        assert_eq!(changes(&[0, 1, 2], &view), (vec![lost as u32], vec![]));
        assert!(ranks.iter().all(|rank| !rank.shared.interrupt.is_set()), "the next group can begin");
    }
}

#[test]
fn several_ranks_may_be_lost_at_once() {
    for lost in [[0, 1], [1, 3], [0, 3]] {
        let ranks: Vec<Members> = launched(4)
            .into_iter()
            .enumerate()
            .filter(|(rank, _)| !lost.contains(rank))
            .map(|(_, rank)| rank)
            .collect();
        let view = one_view(agree(&ranks, |_| vec![0], TERMS));
        assert_eq!(changes(&[0, 1, 2, 3], &view).0, lost.map(|rank| rank as u32));
    }
    let last = launched(3).split_off(2);
    let view = one_view(agree(&last, |_| vec![9], TERMS));
    assert_eq!((view.ranks(), view.iteration), (vec![2], 9), "one rank continues alone");
}

/// A false alarm: the ranks form the same group again.
#[test]
fn complete_group_forms_again_without_a_loss() {
    let ranks = launched(2);
    let view = one_view(agree(&ranks, |_| vec![1, 2], TERMS));
    assert_eq!((view.ranks(), view.iteration), (vec![0, 1], 2));
}

/// The leader ends after all have accepted its proposal, and before any has its commit.
#[test]
fn leader_lost_before_its_commit_is_left_out() {
    let mut ranks = launched(3);
    for rank in &ranks {
        rank.shared.lock().held = Some(vec![7]);
    }
    let proposal = proposal(&ranks, 7);
    for peer in &proposal.members[1..] {
        let reply = ranks[0].call(peer, &MemberRequest::Propose(proposal.clone())).unwrap();
        assert_eq!(reply, service::MemberReply::Accepted);
    }
    drop(ranks.remove(0));
    let view = one_view(agree(&ranks, |_| vec![7], TERMS));
    assert_eq!((view.ranks(), view.epoch), (vec![1, 2], 1));
    assert_ne!(view.nonce, proposal.nonce);
}

/// It ends when one member has its commit and the other one has not: both come to the same group in the end.
#[test]
fn leader_lost_within_its_commit_leaves_one_group() {
    let mut ranks = launched(3);
    for rank in &ranks {
        rank.shared.lock().held = Some(vec![7]);
    }
    let proposal = proposal(&ranks, 7);
    for peer in &proposal.members[1..] {
        ranks[0].call(peer, &MemberRequest::Propose(proposal.clone())).unwrap();
    }
    let commit = MemberRequest::Commit { nonce: proposal.nonce };
    ranks[0].call(&proposal.members[1], &commit).unwrap();
    assert_eq!(ranks[1].view(), proposal);
    drop(ranks.remove(0));
    // Rank 2 learns of the group from rank 1, and takes it over.
    let taken = ranks[1].agree(&[7], &TERMS).unwrap();
    assert_eq!(taken.view, proposal);
    // It cannot be formed without its leader.
    let view = one_view(agree(&ranks, |_| vec![7], TERMS));
    assert_eq!((view.ranks(), view.epoch), (vec![1, 2], 2));
}

fn proposal(ranks: &[Members], iteration: u64) -> GroupView {
    let view = ranks[0].view();
    GroupView { epoch: 1, nonce: 77, iteration, leader: 0, store: Some((HERE, 9).into()), ..view }
}

/// MEMBER-1.
#[test]
fn member_1_second_proposal_is_refused_while_one_is_pending() {
    let ranks = launched(3);
    ranks[2].shared.lock().held = Some(vec![7]);
    let first = proposal(&ranks, 7);
    let target = first.members[2].clone();
    let ask = |from: &Members, request: &MemberRequest| from.call(&target, request).unwrap();
    use service::MemberReply::{Accepted, Refused};
    assert_eq!(ask(&ranks[0], &MemberRequest::Propose(first.clone())), Accepted);
    let other = GroupView { leader: 1, nonce: 78, ..first.clone() };
    assert_eq!(ask(&ranks[1], &MemberRequest::Propose(other.clone())), Refused);
    assert_eq!(ask(&ranks[1], &MemberRequest::Commit { nonce: 77 }), Refused, "of another rank");
    assert_eq!(ask(&ranks[0], &MemberRequest::Commit { nonce: 78 }), Refused);
    assert_eq!(ask(&ranks[0], &MemberRequest::Commit { nonce: 77 }), Accepted);
    assert_eq!(ranks[2].view(), first);
    // What a rank does not hold, what another rank leads, and what is over.
    ranks[2].shared.lock().held = Some(vec![7]);
    let next = GroupView { epoch: 2, nonce: 79, parent: 77, ..first.clone() };
    for wrong in [
        GroupView { iteration: 8, ..next.clone() },
        GroupView { leader: 1, ..next.clone() },
        GroupView { parent: 5, ..next.clone() },
        GroupView { epoch: 1, ..next.clone() },
        GroupView { members: next.members[..2].to_vec(), ..next.clone() },
    ] {
        assert_eq!(ask(&ranks[0], &MemberRequest::Propose(wrong)), Refused);
    }
    assert_eq!(ask(&ranks[0], &MemberRequest::Propose(next)), Accepted);
}

/// MEMBER-2: a rank that does not respond may still train.
#[test]
fn member_2_minority_does_not_continue() {
    let (_listeners, silent): (Vec<_>, Vec<_>) = [mute(1), mute(2)].into_iter().unzip();
    let majority: Vec<Members> = [0, 3, 4].map(|rank| member(rank, 5)).into();
    introduce(&majority, &silent);
    assert_eq!(one_view(agree(&majority, |_| vec![1], TERMS)).ranks(), [0, 3, 4]);
    let minority = vec![member(0, 3)];
    introduce(&minority, &silent);
    let refused = agree(&minority, |_| vec![1], AgreementTerms { excludes_hosts: true, ..TERMS }).remove(0);
    assert!(refused.unwrap_err().error.contains("1 of 3"));
}

/// Two ranks on two hosts, one of which is silent: who continues alone must be certain that it is the only one.
#[test]
fn member_2_half_continues_only_if_it_may_and_has_the_lowest_rank() {
    for (own, other, excludes_hosts, continues) in
        [(0, 1, true, true), (0, 1, false, false), (1, 0, true, false), (1, 0, false, false)]
    {
        let (_listener, silent) = mute(other);
        let half = vec![member(own, 2)];
        introduce(&half, &[silent]);
        let outcome = agree(&half, |_| vec![1], AgreementTerms { excludes_hosts, ..TERMS }).remove(0);
        assert_eq!(outcome.is_ok(), continues, "rank {own}, excludes {excludes_hosts}");
    }
}

/// A rank that others have left out does not form a group of its own.
#[test]
fn excluded_rank_is_refused() {
    let mut ranks = launched(3);
    let late = ranks.remove(2);
    let view = GroupView { members: late.view().members[..2].to_vec(), ..proposal(&ranks, 4) };
    for rank in &ranks {
        rank.shared.lock().view = view.clone();
    }
    let refused = late.agree(&[4], &TERMS).unwrap_err();
    assert!(refused.error.contains("0, 1") && refused.error.contains("rank 2"), "{refused:?}");
}

/// MEMBER-4: a rank that never arrives is not waited for beyond the limit.
#[test]
fn ranks_without_common_iteration_are_refused() {
    let ranks = launched(2);
    let outcomes = agree(&ranks[..1], |_| Vec::new(), AgreementTerms { limit: SILENCE, ..TERMS });
    assert!(outcomes[0].is_err());
    let ranks = launched(1);
    assert!(agree(&ranks, |_| Vec::new(), TERMS).remove(0).is_err(), "nothing to go back to");
}

#[test]
fn rank_joins_at_the_members_next_agreement() {
    let mut ranks = launched(3);
    // It was lost, and is started again; rank 0 is the one to join.
    drop(ranks.remove(0));
    let view = one_view(agree(&ranks, |_| vec![2], TERMS));
    assert_eq!(view.ranks(), [1, 2]);
    let joiner = member(0, 3);
    let entrance = view.entrance().unwrap();
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| joiner.join(entrance, DEADLINE));
        wait_until("no request to join", || ranks.iter().any(|rank| rank.waiting() > 0));
        // Three ranks cannot share the work, and then they can.
        let two = AgreementTerms { can_split: &[false, true, true, false], ..TERMS };
        assert_eq!(one_view(agree(&ranks, |_| vec![2, 3], two)).ranks(), [1, 2]);
        let view = one_view(agree(&ranks, |_| vec![3, 4], TERMS));
        assert_eq!((view.ranks(), view.leader, view.iteration), (vec![0, 1, 2], 1, 4));
        assert_eq!(changes(&[1, 2], &view), (vec![], vec![0]));
        assert_eq!(joins.join().unwrap().unwrap().view, view);
    });
    assert!(ranks.iter().all(|rank| rank.waiting() == 0));
    // It has nothing to go back to yet, and counts all the same.
    drop(ranks.remove(0));
    let left = vec![joiner, ranks.remove(0)];
    let view = one_view(agree(&left, |rank| if rank == 0 { vec![] } else { vec![4] }, TERMS));
    assert_eq!((view.ranks(), view.leader), (vec![0, 2], 2));
}

#[test]
fn joining_rank_that_ended_is_left_out() {
    let mut ranks = launched(2);
    drop(ranks.remove(1));
    let view = one_view(agree(&ranks, |_| vec![2], TERMS));
    let joiner = member(1, 2);
    let own = joiner.shared.lock().own.clone();
    joiner.call(&view.members[0], &MemberRequest::Join(own)).unwrap();
    assert_eq!(ranks[0].waiting(), 1);
    drop(joiner);
    let view = one_view(agree(&ranks, |_| vec![3], TERMS));
    assert_eq!((view.ranks(), view.iteration), (vec![0], 3));
    assert_eq!(ranks[0].waiting(), 0);
}

/// A rank that computes notices the end of the next one.
#[test]
fn end_of_a_watched_rank_interrupts_its_watcher() {
    let mut ranks = launched(3);
    ranks.iter().for_each(Members::watch);
    let interrupts: Vec<Interrupt> = ranks.iter().map(|rank| rank.shared.interrupt.clone()).collect();
    assert!(interrupts.iter().all(|interrupt| !interrupt.is_set()));
    drop(ranks.remove(1));
    wait_until("rank 0 watches rank 1", || interrupts[0].is_set());
    // Rank 1 watched rank 2, which notices it, too.
    wait_until("rank 2 is watched by rank 1", || interrupts[2].is_set());
}

/// The end of a rank counts while its group trains.
#[test]
fn end_of_an_earlier_or_finished_group_is_no_loss() {
    let ranks = launched(1);
    let interrupt = ranks[0].shared.interrupt.clone();
    ranks[0].shared.lost(7, None, None);
    assert!(!interrupt.is_set(), "of another epoch");
    ranks[0].shared.lost(0, None, None);
    assert!(interrupt.is_set());
    interrupt.clear();
    ranks[0].retire();
    ranks[0].shared.lost(0, None, None);
    assert!(!interrupt.is_set(), "ranks end one after the other");
}

/// MEMBER-5: what was made for one group does not open in another one of the same generation.
#[test]
fn member_5_connection_of_an_earlier_group_is_rejected() {
    let secret = GroupSecret::from_hex(&"5e".repeat(32));
    let of = |scope: &str| Credentials::new(secret.as_ref(), &format!("store of generation 3{scope}"));
    for (theirs, ours, accepted) in
        [("", "/1.0f", false), ("/1.0f", "/2.0f", false), ("/1.0f", "/1.0f", true)]
    {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut auth_listener = AuthListener::new(listener, of(ours), 0, 2).unwrap();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                auth_listener::connect(address, &of(theirs), 1, 0, Instant::now() + DEADLINE).is_ok()
            });
            while !caller.is_finished() {
                auth_listener.step().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(caller.join().unwrap(), accepted, "{theirs} at {ours}");
        });
    }
}

fn page(rank: u32) -> StatusPage {
    StatusPage::new(StatusPageWriter::anonymous(rank, 3).unwrap())
}

fn sum(group: &ProcessGroup) -> Result<i64, DistError> {
    let mut values = [1];
    group.all_reduce_i64(&mut values, ReduceOp::Sum, "test")?;
    Ok(values[0])
}

/// A rank ends before, within and after a collective; the others form a group without it and compute in it.
#[test]
fn survivors_form_a_group_and_compute() {
    for (shared_memory, dies_after) in [(true, 0), (true, 3), (false, 1)] {
        for lost in 0..3 {
            let port = rankdeck_testkit::free_port();
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    scope.spawn(move || {
                        let settings = GroupSettings { shared_memory, ..settings(rank, 3, port) };
                        let page = page(rank);
                        let group = ProcessGroup::connect(&settings, page.clone()).unwrap();
                        let members = Members::at(HERE, &settings, SILENCE).unwrap();
                        members.start(&group).unwrap();
                        let mut done = 0;
                        let error = loop {
                            if rank == lost && done == dies_after {
                                // Its sockets close in this order, or all at once.
                                group.abandon();
                                return drop(members);
                            }
                            match sum(&group) {
                                Ok(value) => assert_eq!(value, 3),
                                Err(error) => break error,
                            }
                            done += 1;
                        };
                        assert_eq!(error.kind, DistErrorKind::Connection, "{error}");
                        group.abandon();
                        let agreement = members.agree(&[u64::saturating_sub(done, 1), done], &TERMS);
                        // One may have done one more than the other.
                        let Agreement { view, listener } = agreement.unwrap();
                        let reformation = Reformation {
                            identity: (rank, 3),
                            epoch: view.epoch,
                            nonce: view.nonce,
                            place: view.store,
                            listener,
                        };
                        let index = view.index_of(rank).unwrap();
                        let settings = GroupSettings { rank: index, world_size: 2, ..settings };
                        let group =
                            ProcessGroup::reform(&settings, reformation, page.clone(), DEADLINE).unwrap();
                        members.watch();
                        assert_eq!((group.rank(), group.world_size(), group.run_rank()), (index, 2, rank));
                        for _ in 0..3 {
                            assert_eq!(sum(&group).unwrap(), 2);
                        }
                        let body = *page.lock().body();
                        assert_eq!((body.membership_epoch, body.member_count), (1, 2));
                        members.retire();
                        group.destroy(DEADLINE).unwrap();
                    });
                }
            });
        }
    }
}

/// A rank that waits for one that computes is woken when a third one is lost.
#[test]
fn interrupt_ends_a_collective_that_waits() {
    for shared_memory in [true, false] {
        let port = rankdeck_testkit::free_port();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let settings = GroupSettings { shared_memory, ..settings(1, 2, port) };
                let group = ProcessGroup::connect(&settings, page(1)).unwrap();
                sum(&group).unwrap();
                // It computes until the other one has ended its wait.
                let _ = receiver.recv_timeout(DEADLINE);
                group.abandon();
            });
            let settings = GroupSettings { shared_memory, ..settings(0, 2, port) };
            let group = ProcessGroup::connect(&settings, page(0)).unwrap();
            sum(&group).unwrap();
            let interrupt = settings.interrupt.clone().unwrap();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                interrupt.set();
            });
            assert_eq!(sum(&group).unwrap_err().kind, DistErrorKind::Connection);
            assert!(group.check_members().is_err() && sum(&group).is_err());
            sender.send(()).unwrap();
        });
    }
}
