use super::*;
use crate::experiment::{Distributed, Env, Learn, Ppo, Run};
use crate::ids::RunId;
use crate::plan::user_environment;
use proptest::prelude::*;

pub(crate) fn host(name: &str) -> Host {
    Host {
        name: name.into(),
        address: name.into(),
        workdir: "rankdeck".into(),
        transport: Transport::Ssh,
        ..Host::default()
    }
}

pub(crate) fn probe(gpu_count: u32) -> Probe {
    Probe { gpu_count, cpu_count: 2, ..Probe::default() }
}

pub(crate) fn draft(hosts: Vec<Host>, num_envs: u32) -> PlanDraft {
    PlanDraft {
        run: RunId("test-20260101-000000".into()),
        experiment: Experiment {
            run: Run { name: "test".into(), seed: 1, total_steps: 500_000, note: None },
            launch: Default::default(),
            distributed: Distributed::default(),
            env: Some(Env::new("CartPole-v1", num_envs)),
            policy: Default::default(),
            collect: Default::default(),
            learn: Some(Learn::Ppo(Ppo::default())),
            eval: Default::default(),
            checkpoint: Default::default(),
            watch: Default::default(),
            restart: Default::default(),
            metrics: Default::default(),
        },
        hosts,
        excluded: Default::default(),
        resume: None,
    }
}

fn with(name: &str, gpus: Option<Gpus>, nproc: Option<u32>) -> Host {
    Host { gpus, nproc, ..host(name) }
}

fn all() -> Option<Gpus> {
    Some(Gpus::Word("all".into()))
}

fn layout(plan: &Plan) -> Vec<(u32, u32, u32, Option<u32>)> {
    plan.ranks.iter().map(|r| (r.rank.0, r.node_rank.0, r.local_rank.0, r.gpu)).collect()
}

#[test]
fn two_hosts_of_two() {
    let plan = draft(vec![with("a", None, Some(2)), with("b", None, Some(2))], 8).resolve(&[]).unwrap();
    assert_eq!(layout(&plan), [(0, 0, 0, None), (1, 0, 1, None), (2, 1, 0, None), (3, 1, 1, None)]);
    assert_eq!(plan.backend, "tcp");
    assert_eq!(plan.experiment.distributed.backend, Backend::Tcp);
    let sizes: Vec<(&str, u64, u64)> =
        plan.sizes.iter().map(|s| (s.name.as_str(), s.local, s.global)).collect();
    assert_eq!(
        sizes,
        [("num_envs", 2, 8), ("batch", 256, 1024), ("minibatch", 64, 256), ("iterations", 488, 488)]
    );
}

#[test]
fn four_hosts_of_one() {
    let hosts = ["a", "b", "c", "d"].map(host).to_vec();
    let plan = draft(hosts, 4).resolve(&[]).unwrap();
    assert_eq!(layout(&plan), [(0, 0, 0, None), (1, 1, 0, None), (2, 2, 0, None), (3, 3, 0, None)]);
    assert_eq!(plan.hosts[0].address, "a");
}

#[test]
fn different_hosts_and_all_gpus() {
    let hosts = vec![
        with("a", all(), None),
        with("b", Some(Gpus::List(vec![3, 1])), None),
        with("c", Some(Gpus::Count(1)), None),
    ];
    let draft = draft(hosts, 10);
    assert_eq!(draft.world_size(), None);
    assert_eq!(draft.resolve(&[]).unwrap_err().key, "host.0.gpus");
    let plan = draft.resolve(&[probe(2), probe(4), probe(1)]).unwrap();
    assert_eq!(
        layout(&plan),
        [(0, 0, 0, Some(0)), (1, 0, 1, Some(1)), (2, 1, 0, Some(3)), (3, 1, 1, Some(1)), (4, 2, 0, Some(0))]
    );
    assert_eq!(plan.backend, "nccl");
}

#[test]
fn one_rank_without_a_gpu_makes_the_group_one_of_cpus() {
    let plan = draft(vec![with("a", Some(Gpus::Count(1)), None), host("b")], 4).resolve(&[]).unwrap();
    assert_eq!(plan.backend, "tcp");
}

#[test]
fn more_ranks_than_gpus_share_in_turn() {
    let plan = draft(vec![with("a", Some(Gpus::List(vec![2, 5])), Some(5))], 5).resolve(&[]).unwrap();
    let gpus: Vec<Option<u32>> = plan.ranks.iter().map(|rank| rank.gpu).collect();
    assert_eq!(gpus, [Some(2), Some(5), Some(2), Some(5), Some(2)]);
}

#[test]
fn what_the_hosts_lack_is_refused() {
    for (gpus, present, says) in [
        (all(), 0, "has no GPU"),
        (Some(Gpus::Count(4)), 2, "has 2 GPUs, and `gpus` asks for 4"),
        (Some(Gpus::List(vec![0, 2])), 2, "asks for index 2"),
        (Some(Gpus::Count(0)), 2, "has 0 ranks"),
        (Some(Gpus::List(vec![])), 2, "has 0 ranks"),
    ] {
        let error = draft(vec![host("a"), with("b", gpus, None)], 4)
            .resolve(&[probe(0), probe(present)])
            .unwrap_err();
        assert!(error.cause.error.contains(says) && error.cause.error.contains("`b`"), "{error:?}");
        assert_eq!(error.key, "host.1.gpus");
        assert!(!error.cause.hint.is_empty());
    }
}

#[test]
fn nccl_on_cpus_is_refused_before_anything_is_asked() {
    let mut draft = draft(vec![with("a", all(), None), host("b")], 4);
    draft.experiment.distributed.backend = Backend::Nccl;
    let problems = draft.problems(&[]);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].cause.error.contains("host `b`"), "{problems:?}");
    assert_eq!(problems[0].key, "distributed.backend");
}

#[test]
fn sizes_that_do_not_split_are_refused() {
    let two = || vec![host("a"), host("b")];
    let error = draft(two(), 3).resolve(&[]).unwrap_err();
    assert_eq!(
        (error.key.as_str(), error.cause.hint.as_str()),
        ("env.num_envs", "set `env.num_envs` to a multiple of 2, such as 2 or 4")
    );
    let mut minibatches = draft(two(), 4);
    minibatches.experiment.learn = Some(Learn::Ppo(Ppo { num_minibatches: 5, ..Ppo::default() }));
    assert_eq!(minibatches.resolve(&[]).unwrap_err().key, "learn.num_minibatches");
    let mut single = draft(two(), 4);
    single.experiment.learn = Some(Learn::Ppo(Ppo { num_minibatches: 256, ..Ppo::default() }));
    assert!(single.resolve(&[]).unwrap_err().cause.error.contains("normalised"));
    let mut short = draft(two(), 4);
    short.experiment.run.total_steps = 511;
    assert_eq!(short.resolve(&[]).unwrap_err().key, "run.total_steps");
    short.experiment.run.total_steps = 512;
    assert_eq!(short.resolve(&[]).unwrap().sizes[3].global, 1);
}

#[test]
fn a_program_of_the_user_has_no_sizes() {
    let mut draft = draft(vec![host("a"), host("b")], 3);
    draft.experiment.launch.command = vec!["python3".into(), "train.py".into()];
    let plan = draft.resolve(&[]).unwrap();
    assert!(plan.sizes.is_empty() && !plan.is_builtin());
}

#[test]
fn the_rendezvous_address_is_one_that_the_others_can_reach() {
    let local = |name: &str| Host { transport: Transport::Local, address: "127.0.0.1".into(), ..host(name) };
    let plan = draft(vec![local("a"), local("b")], 4).resolve(&[]).unwrap();
    assert_eq!(
        (plan.hosts[0].address.as_str(), plan.hosts[0].interface.as_deref()),
        ("127.0.0.1", Some("lo"))
    );
    let plan = draft(vec![host("alias")], 4).resolve(&[]).unwrap();
    assert_eq!(plan.hosts[0].address, "127.0.0.1");
    let mut mixed = draft(vec![local("a"), host("b")], 4);
    assert_eq!(mixed.resolve(&[]).unwrap_err().key, "host.0.address");
    mixed.experiment.launch.master_addr = Some("10.1.1.1".into());
    let plan = mixed.resolve(&[]).unwrap();
    assert_eq!((plan.hosts[0].address.as_str(), plan.hosts[0].interface.as_deref()), ("10.1.1.1", None));
    // Rank 0 elsewhere: the local host only dials out.
    assert!(draft(vec![host("b"), local("a")], 4).resolve(&[]).is_ok());
}

#[test]
fn probes_of_only_some_hosts_are_no_answer() {
    assert!(draft(vec![host("a"), host("b")], 4).resolve(&[probe(0)]).is_err());
    assert!(draft(Vec::new(), 4).resolve(&[]).is_err());
}

#[test]
fn hosts_win_over_the_experiment() {
    let mut one = host("a");
    one.env.insert("X".into(), "host".into());
    let mut draft = draft(vec![one], 4);
    draft.experiment.launch.env =
        [("X", "experiment"), ("Y", "experiment")].map(|(k, v)| (k.into(), v.into())).into();
    let plan = draft.resolve(&[]).unwrap();
    let env = user_environment(&plan, &plan.hosts[0]);
    let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(env, [("X", "host"), ("Y", "experiment")]);
}

fn any_host() -> impl Strategy<Value = (Option<Gpus>, Option<u32>, u32)> {
    let gpus = prop_oneof![
        Just(None),
        Just(all()),
        (0u32..5).prop_map(|count| Some(Gpus::Count(count))),
        proptest::sample::subsequence(vec![0u32, 1, 2, 3], 0..4).prop_map(|list| Some(Gpus::List(list))),
    ];
    (gpus, proptest::option::of(1u32..5), 0u32..5)
}

proptest! {
    /// PLAN-1, PLAN-2, PLAN-3.
    #[test]
    fn whatever_is_planned_is_sound(hosts in proptest::collection::vec(any_host(), 1..6), per_rank in 1u32..4, minibatches in 1u32..9, off in 0u32..2) {
        let probes: Vec<Probe> = hosts.iter().map(|(_, _, present)| probe(*present)).collect();
        let hosts: Vec<Host> = hosts.into_iter().enumerate().map(|(i, (gpus, nproc, _))| with(&format!("h{i}"), gpus, nproc)).collect();
        let mut draft = draft(hosts, 1);
        draft.experiment.launch.command = vec!["x".into()];
        let world = draft.resolve(&probes).map(|plan| plan.world_size());
        draft.experiment.launch.command.clear();
        if let (Ok(world), Some(env)) = (&world, draft.experiment.env.as_mut()) {
            env.num_envs = per_rank * world + off;
        }
        draft.experiment.learn = Some(Learn::Ppo(Ppo { num_minibatches: minibatches, ..Ppo::default() }));
        if let Ok(plan) = draft.resolve(&probes) {
            let world = plan.world_size();
            prop_assert!(world > 0);
            // PLAN-1
            let order: Vec<(u32, u32)> = plan.ranks.iter().map(|r| (r.node_rank.0, r.local_rank.0)).collect();
            prop_assert!(order.windows(2).all(|w| w[0] < w[1]));
            for (i, rank) in plan.ranks.iter().enumerate() {
                prop_assert_eq!(rank.rank.index(), i);
            }
            for node in &plan.hosts {
                let locals: Vec<u32> = plan.ranks_of(node.node_rank).map(|r| r.local_rank.0).collect();
                prop_assert_eq!(locals.clone(), (0..locals.len() as u32).collect::<Vec<_>>());
                prop_assert!(!locals.is_empty());
            }
            for rank in &plan.ranks {
                prop_assert!(rank.gpu.is_none_or(|gpu| gpu < probes[rank.node_rank.index()].gpu_count));
            }
            // PLAN-2
            for size in plan.sizes.iter().filter(|size| size.name != "iterations") {
                prop_assert_eq!(size.local * u64::from(world), size.global, "{}", size.name);
            }
            let local = |name: &str| plan.sizes.iter().find(|s| s.name == name).map(|s| s.local).unwrap();
            prop_assert_eq!(local("minibatch") * u64::from(minibatches), local("batch"));
            // PLAN-3
            let all_on_gpu = plan.ranks.iter().all(|rank| rank.gpu.is_some());
            prop_assert_eq!(plan.backend.as_str(), if all_on_gpu { "nccl" } else { "tcp" });
        } else if let Ok(world) = world {
            // With a group, only sizes can stand in the way, and only those that do not split.
            let local = (per_rank * world + off) / world * 128;
            prop_assert!((per_rank * world + off) % world != 0 || local % minibatches != 0);
        }
    }
}
