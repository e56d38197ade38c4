//! `distributed.invariant`: 1, 2, 3 and 4 ranks learn the same weights, to the bit.

use crate::equality::train;
use crate::harness::Run;
use crate::resuming::load;
use rankdeck_proto::execution::{FINGERPRINTS, FingerprintLine};
use rankdeck_trainer::support::state::AlgorithmState;
use std::collections::BTreeMap;

/// `[env]` to `[learn]`, each for iterations that make at least 20 updates, and the world sizes besides 1.
const CASES: [(&str, &str, u64, &[u32]); 5] = [
    (
        "ppo, discrete, four minibatches, target KL",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 12\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 32\n\
         [learn]\nalgorithm = 'ppo'\nnorm_adv_over = 'world'\ntarget_kl = 0.02\nlearning_rate = 0.01\n",
        6,
        &[2, 3, 4],
    ),
    (
        "ppo, continuous, shared layers, normalizers, blocks of two environments",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 24\n[policy]\nhidden = [16]\nshared = true\nactivation = 'relu'\n\
         [collect]\nnum_steps = 16\nnormalise_observations = true\nnormalise_rewards = true\n\
         [learn]\nalgorithm = 'ppo'\nnorm_adv_over = 'world'\nent_coef = 0.001\nvalue_loss = 'huber'\n",
        3,
        &[2, 3, 4],
    ),
    (
        "ppo, plain advantages, truncated episodes",
        "[env]\nid = 'CartPole-v0'\nnum_envs = 12\nmax_episode_steps = 20\n[policy]\nhidden = [16]\n[collect]\n\
         num_steps = 32\n[learn]\nalgorithm = 'ppo'\nnorm_adv = false\nbootstrap_truncated = true\n",
        2,
        &[3, 4],
    ),
    (
        "a2c, continuous, normalized over the world",
        "[env]\nid = 'Pendulum-v1'\nnum_envs = 12\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 8\n\
         normalise_observations = true\n[learn]\nalgorithm = 'a2c'\nnorm_adv = true\nnorm_adv_over = 'world'\n",
        20,
        &[2, 3, 4],
    ),
    (
        "a2c, discrete, blocks that do not pair up",
        "[env]\nid = 'CartPole-v1'\nnum_envs = 30\n[policy]\nhidden = [16]\n[collect]\nnum_steps = 8\n\
         [learn]\nalgorithm = 'a2c'\nent_coef = 0.01\n",
        20,
        &[3, 5],
    ),
];

fn mode(case: &str, on: bool) -> String {
    // As many blocks as divide all world sizes of a case.
    let blocks = if case.contains("num_envs = 30") { 15 } else { 12 };
    match on {
        true => format!("{case}[distributed]\ninvariant = true\ninvariant_blocks = {blocks}\n"),
        false => case.to_owned(),
    }
}

/// All arrays and words, as bits.
fn bits(state: &AlgorithmState) -> BTreeMap<String, Vec<u64>> {
    let arrays = state.arrays.iter();
    let arrays = arrays
        .map(|array| (array.name.clone(), array.values.iter().map(|v| u64::from(v.to_bits())).collect()));
    arrays.chain(state.words.iter().map(|words| (words.name.clone(), words.values.clone()))).collect()
}

#[test]
fn blocks_2_any_number_of_ranks_learns_the_same_bits() {
    for (name, case, iterations, worlds) in CASES {
        let case = mode(case, true);
        let alone = train(&case, 1, iterations, true).remove(0);
        let start = train(&case, 1, 0, true).remove(0);
        assert!(alone.updates >= 20, "{name}: {}", alone.updates);
        assert_ne!(bits(&start.state)["adam.first"], bits(&alone.state)["adam.first"], "{name}");
        for world in worlds {
            let ranks = train(&case, *world, iterations, true);
            let mut envs = Vec::new();
            for (rank, ended) in ranks.iter().enumerate() {
                for (array, expected) in bits(&alone.state) {
                    let same = bits(&ended.state)[&array] == expected;
                    assert!(same, "{name}: {array} of rank {rank} of {world} has other bits");
                }
                assert_eq!(ended.updates, alone.updates, "{name}");
                assert_eq!(ended.chains, alone.chains, "{name}");
                envs.extend_from_slice(&ended.state.envs);
            }
            assert_eq!(envs, alone.state.envs, "{name}: environments on {world} ranks");
        }
    }
}

/// The comparison can fail: without the mode, the bits differ.
#[test]
fn other_runs_depend_on_the_number_of_ranks() {
    let (name, case, iterations, _) = CASES[0];
    let [one, two] = [1, 2].map(|world| train(&mode(case, false), world, iterations, true).remove(0));
    assert_ne!(one.chains, two.chains, "{name}");
}

const EXPERIMENT: &str = "[run]\nname = 'test'\nseed = 3\ntotal_steps = 4608\n[env]\nid = 'CartPole-v1'\nnum_envs = 12\n\
    [policy]\nhidden = [16]\n[collect]\nnum_steps = 32\n[learn]\nalgorithm = 'ppo'\nnorm_adv_over = 'world'\n\
    [eval]\nevery = 0\n[checkpoint]\nevery = 6\n[distributed]\ninvariant = true\n";

fn prints(run: &Run) -> BTreeMap<u64, FingerprintLine> {
    FingerprintLine::parse_all(&std::fs::read_to_string(run.file(FINGERPRINTS)).unwrap())
}

#[test]
fn runs_of_several_processes_have_the_same_fingerprints() {
    let run = |world: &str| {
        let mut run = Run::start(EXPERIMENT, &["--spawn", world]);
        run.end_with(0);
        run
    };
    let one = run("1");
    assert_eq!(prints(&one).into_keys().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    for world in ["2", "3", "4"] {
        assert_eq!(prints(&run(world)), prints(&one), "{world} ranks");
    }
}

#[test]
fn resumed_run_on_other_ranks_has_the_same_bits() {
    let mut whole = Run::start(EXPERIMENT, &["--spawn", "2"]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-6.ckpt");
    let mut resumed = Run::start(EXPERIMENT, &["--spawn", "3", "--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    let [a, b] = [&whole, &resumed].map(|run| load(&run.file("checkpoints/latest.ckpt")));
    assert_eq!(a.header.train_iter, 12);
    assert_eq!(a.arrays, b.arrays);
    let later: Vec<FingerprintLine> =
        prints(&whole).into_values().filter(|line| line.train_iter > 6).collect();
    assert_eq!(prints(&resumed).into_values().collect::<Vec<_>>(), later);
}

#[test]
fn ranks_that_do_not_divide_the_blocks_are_refused() {
    let mut run = Run::start(EXPERIMENT, &["--spawn", "5"]);
    run.end_with(2);
    assert!(run.logs().contains("env.num_envs"), "{}", run.logs());
    let mut run = Run::start(&EXPERIMENT.replace("num_envs = 12", "num_envs = 60"), &["--spawn", "5"]);
    run.end_with(2);
    assert!(run.logs().contains("distributed.invariant_blocks"), "{}", run.logs());
}

#[test]
fn traced_replay_repeats_the_iteration_of_a_run() {
    let mut whole = Run::start(EXPERIMENT, &["--spawn", "2"]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-6.ckpt");
    let trace = whole.file("trace");
    let args =
        ["--resume", from.to_str().unwrap(), "--trace", trace.to_str().unwrap(), "--trace-iterations", "8"];
    let mut replay = Run::start(EXPERIMENT, &args);
    replay.end_with(0);
    let replayed = prints(&replay);
    assert_eq!(replayed.keys().copied().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(replayed[&8], prints(&whole)[&8]);
    assert!(!replay.file("checkpoints/latest.ckpt").exists());
    let text = std::fs::read_to_string(trace.with_extension("0")).unwrap();
    let operations: Vec<rankdeck_proto::execution::TracedOperation> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(operations.iter().all(|operation| operation.train_iter == 8));
    let of = |name: &str| operations.iter().filter(|operation| operation.operation == name).count();
    // 16 updates of 12 blocks each.
    assert_eq!((of("actor layer 0 product"), of("gradient over all ranks")), (16 * 12, 16));
    assert_eq!((of("rewards"), of("weights actor.0.weight")), (12, 1 + 16));
    let positions: std::collections::BTreeSet<_> =
        operations.iter().map(rankdeck_proto::execution::TracedOperation::position).collect();
    assert_eq!(positions.len(), operations.len(), "each operation has a place of its own");
}
