//! Real rank processes over TCP. Every test makes a process of this binary for each rank.
//!
//! Each scenario's ranks run [`run_role`] with a role; they print one `RESULT {json}` line, which the tests
//! judge.

mod collectives;
mod ddp;
mod faults;
mod gpu;
mod harness;
mod nccl;
mod off_policy;
mod process;

/// What a process that is not forked runs; does nothing when started by hand.
#[test]
#[ignore = "not a test: the rank processes that the other tests start"]
fn rank_process() {
    run_role();
}

/// What a rank is to do, from its environment.
fn run_role() {
    let Some(me) = harness::Me::from_environment() else { return };
    let result = match me.role.as_str() {
        "collectives" => collectives::rank(&me),
        "groups" => collectives::groups(&me),
        "groups_differ" => collectives::groups_differ(&me),
        "objects" => collectives::objects(&me),
        "ddp" => ddp::rank(&me),
        "layout" => ddp::layout(&me),
        "mixed_up" => ddp::mixed_up(&me),
        "contributors" => ddp::contributors(&me),
        "accumulated" => ddp::accumulated(&me),
        "dqn" => off_policy::dqn(&me),
        "sac" => off_policy::sac(&me),
        "td3" => off_policy::td3(&me),
        "warm_up" => off_policy::warm_up(&me),
        "unused" => ddp::unused(&me),
        "join" => faults::join(&me),
        "absent" => faults::absent(&me),
        "killed" => faults::killed(&me),
        "frozen" => faults::frozen(&me),
        "mismatch" => faults::mismatch(&me),
        "sizes" => faults::sizes(&me),
        "leave" => faults::leave(&me),
        "nccl" => nccl::rank(&me),
        "nccl_collectives" => nccl::with_cuda(&me, collectives::rank),
        "nccl_killed" => nccl::with_cuda(&me, faults::killed),
        "nccl_queued" => nccl::with_cuda(&me, gpu::queued),
        "nccl_join" => nccl::with_cuda(&me, faults::join),
        other => panic!("no role {other}"),
    };
    harness::answer(&result);
}
