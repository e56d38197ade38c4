//! RUN-2 over arbitrary histories: a stop ends within a bound, and is verified only if nothing is left.
//! Histories are made by acting on a [`World`], so that every state is one that can occur.

mod world;

use crate::event::{Event, StopSource};
use crate::testkit::*;
use proptest::prelude::*;
use rankdeck_proto::message::StopMode;
use rankdeck_types::host::Transport;
use std::collections::BTreeSet;
use world::{HOSTS, Manners, Shape, World};

/// Something that happens to the run.
#[derive(Debug, Clone)]
enum Op {
    Pass(u64),
    Lose(usize),
    Mend(usize),
    Fail(usize),
    Restart,
    Exclude(usize),
    Add(usize),
    Stop,
    Console,
    /// The agent dies; with or without its guard, and with or without the folder of the run.
    Kill(usize, bool, bool),
}

fn shape() -> impl Strategy<Value = Shape> {
    let manners = || {
        prop_oneof![
            8 => (0u64..3_000).prop_map(Manners::Polite),
            1 => Just(Manners::Deaf),
            1 => Just(Manners::Immortal),
        ]
    };
    let lag = || prop::sample::select(vec![0u64, 0, 50, 150, 700]);
    let hosts = prop::collection::vec((manners(), lag()), 2..=HOSTS);
    let left_out = prop_oneof![3 => Just(None), 1 => (0..HOSTS).prop_map(Some)];
    (hosts, any::<bool>(), left_out, any::<bool>()).prop_map(|(hosts, lost_exclude, left_out, thorough)| {
        let left_out = left_out.map(|node| node % hosts.len()).into_iter().collect();
        let (manners, lag_ms) = hosts.into_iter().unzip();
        Shape { manners, lag_ms, thorough, lost_exclude, left_out }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..HOSTS;
    prop_oneof![
        6 => prop::sample::select(vec![50u64, 200, 1_000, 4_000, 30_000]).prop_map(Op::Pass),
        4 => node().prop_map(Op::Lose),
        4 => node().prop_map(Op::Mend),
        2 => node().prop_map(Op::Fail),
        1 => Just(Op::Restart),
        2 => node().prop_map(Op::Exclude),
        1 => node().prop_map(Op::Add),
        1 => Just(Op::Stop),
        2 => Just(Op::Console),
        2 => (node(), any::<bool>(), any::<bool>())
            .prop_map(|(node, guarded, forgets)| Op::Kill(node, guarded, forgets)),
    ]
}

fn act(world: &mut World, op: &Op) {
    let (shown, hosts) = (world.core.model().run.launch.clone(), world.hosts());
    let change = |exclude: Vec<String>, add| Event::RestartRequested {
        from: None,
        exclude,
        add,
        experiment: None,
        shown: shown.clone(),
    };
    match op {
        Op::Pass(ms) => world.pass(*ms),
        Op::Lose(node) => world.lose(node % hosts),
        Op::Mend(node) => world.mend(node % hosts),
        Op::Fail(node) => world.fail(node % hosts),
        Op::Restart => world.event(Event::restart(None).having_shown(shown)),
        Op::Exclude(node) => world.event(change(vec![NAMES[node % hosts].into()], vec![])),
        Op::Add(node) => {
            world.event(change(vec![], vec![draft(hosts, Transport::Ssh).hosts.remove(node % hosts)]));
        }
        Op::Stop => world.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command }),
        Op::Console => world.another_console(),
        Op::Kill(node, guarded, forgets) => world.kill_agent(node % hosts, *guarded, *forgets),
    }
}

/// What must hold of a stop that was just asked for.
fn check(world: &mut World, what: &str) -> Result<(), TestCaseError> {
    let took = world.stop_and_wait();
    prop_assert!(took.is_some(), "{}: endless, alive {:?}", what, world.alive());
    let alive = world.alive();
    prop_assert!(
        !world.is_verified() || alive.is_empty(),
        "{}: called verified, but hosts {:?} still run",
        what,
        alive
    );
    Ok(())
}

/// `PROPTEST_CASES` cases, or few enough for every run of the tests.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever has happened, a stop ends in proof or without it, and proof is true. A second stop, when
    /// every host can be reached, ends everything that can be ended.
    #[test]
    fn run_2_any_stop_ends_and_is_verified_only_if_nothing_is_left(
        shape in shape(),
        ops in prop::collection::vec(op(), 0..25),
        attached in any::<bool>(),
    ) {
        let mut world = World::launch(&shape);
        world.pass(3_000);
        for op in &ops {
            act(&mut world, op);
        }
        if attached || world.exit.is_some() {
            world.another_console();
        }
        check(&mut world, "first stop")?;
        for node in 0..world.hosts() {
            world.mend(node);
        }
        world.another_console();
        world.pass(1_000);
        if world.exit.is_none() {
            check(&mut world, "second stop")?;
        }
        let mortal = shape.manners.iter().all(|manners| *manners != Manners::Immortal);
        let alive = world.alive();
        prop_assert!(!mortal || alive.is_empty(), "hosts {:?} still run after the second stop", alive);
        prop_assert!(!mortal || world.is_verified(), "nothing is left, and it is not verified: {:?}", world.finished);
    }
}

#[test]
fn run_2_a_stop_between_two_generations_ends_although_a_host_is_away() {
    let shape = |manners: Vec<Manners>| Shape {
        lag_ms: vec![0; manners.len()],
        manners,
        thorough: true,
        lost_exclude: true,
        left_out: BTreeSet::new(),
    };
    let polite = Manners::Polite(0);
    let histories = [
        (
            vec![polite; 3],
            vec![
                Op::Fail(0),
                Op::Pass(50),
                Op::Lose(1),
                Op::Lose(0),
                Op::Pass(30_000),
                Op::Mend(1),
                Op::Pass(200),
            ],
        ),
        (
            vec![polite, Manners::Immortal, polite],
            vec![Op::Exclude(1), Op::Pass(50), Op::Lose(0), Op::Pass(30_000)],
        ),
    ];
    for (manners, ops) in histories {
        let mut world = World::launch(&shape(manners));
        world.pass(3_000);
        for op in &ops {
            act(&mut world, op);
        }
        let before = format!("{:?}", world.core.session.run.stage);
        let took = world.stop_and_wait();
        assert!(
            took.is_some(),
            "before {before}, then {:?}, {:?}",
            world.core.session.run.stage,
            world.core.session.run.facts
        );
    }
}
