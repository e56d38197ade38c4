//! Work that overlaps on a GPU, counted: gradients that travel while backward runs, half of the
//! environments that steps while the policy runs on the other half; and the types of convolutions.

use super::{pixels, train};
use crate::harness::{Run, totals};
use rankdeck_testkit::fake_cuda::{Counts, FakeCuda};

const CALL_BY_CALL: &str = "";
const GRAPHS: &str = "cuda_graphs = true\n";

/// Three iterations of 16 steps on Pong, with this many environments and epochs, rows of `[policy]`, and other
/// tables. `env`: that of Pong.
fn pong(env: &str, num_envs: u32, epochs: u32, policy: &str, rest: &str) -> String {
    format!(
        "[run]\nname = 'test'\nseed = 1\ntotal_steps = {}\n[env]\n{env}num_envs = {num_envs}\n\
         [policy]\nnetwork = 'nature'\n{policy}\
         [learn]\nalgorithm = 'ppo'\nupdate_epochs = {epochs}\n[eval]\nevery = 0\n[checkpoint]\nevery = 1\n{rest}",
        48 * num_envs
    )
}

/// What each of two ranks did more with three epochs than with one: 3 iterations of 2 epochs of 4 updates.
fn updates_of_two(policy: &str, bucket_mb: f64) -> Option<[Counts; 2]> {
    let of = |epochs| {
        let rest = format!("[collect]\nnum_steps = 16\n[distributed]\nbucket_mb = {bucket_mb}\n");
        train(&pong(&pixels(), 2, epochs, policy, &rest), &[("gpus", "2")], &["--spawn", "2"])
    };
    let (less, more) = (of(1)?, of(3)?);
    Some(["0", "1"].map(|rank| {
        let (less, more) = (less.fake.counts(rank), more.fake.counts(rank));
        more.into_iter().map(|(name, count)| (name.clone(), count.wrapping_sub(less[&name]))).collect()
    }))
}

/// DDP-5. The network has 1.1 MB of gradients, 0.3 of them in convolutions. Where that is more than a bucket,
/// collectives are begun before backward's last launches, as many on both ranks, and still the host does not wait.
#[test]
fn ddp_5_large_gradients_overlap_with_backward() {
    const UPDATES: u64 = 3 * 2 * 4;
    for policy in [CALL_BY_CALL, GRAPHS] {
        for (bucket_mb, buckets, overlaps) in [(25.0, 1, false), (0.5, 3, true), (0.1, 7, true)] {
            let Some(ranks) = updates_of_two(policy, bucket_mb) else { return };
            for counts in &ranks {
                assert_eq!(counts["collectives"], buckets * UPDATES, "{bucket_mb} MiB, {policy}: {counts:?}");
                let beside = counts["launches_beside"];
                let enough = if overlaps { beside >= UPDATES } else { beside == 0 };
                assert!(enough, "{bucket_mb} MiB, {policy}: {beside} launches beside collectives");
                for waits in ["stream_waits", "event_waits", "device_waits", "copy_waits"] {
                    assert_eq!(counts[waits], 0, "{bucket_mb} MiB, {policy}: {waits}");
                }
            }
        }
    }
}

/// DQN's, too: its heads are most of it.
#[test]
fn ddp_5_dqn_gradients_overlap_with_backward() {
    let env = pixels();
    let experiment = |bucket_mb: f64| {
        format!(
            "[run]\nname = 'test'\nseed = 1\ntotal_steps = 160\n[env]\n{env}num_envs = 2\n\
             [policy]\nnetwork = 'nature'\ncuda_graphs = true\n\
             [collect]\nnum_steps = 4\n[learn]\nalgorithm = 'dqn'\ndueling = true\nlearning_starts = 40\n\
             buffer_size = 200\nbatch_size = 8\n[eval]\nevery = 0\n[distributed]\nbucket_mb = {bucket_mb}\n"
        )
    };
    let of = |bucket_mb| {
        Some(train(&experiment(bucket_mb), &[("gpus", "2")], &["--spawn", "2"])?.fake.counts("1"))
    };
    let (Some(whole), Some(parts)) = (of(25.0), of(0.2)) else { return };
    assert_eq!(whole["launches_beside"], 0);
    assert!(parts["launches_beside"] >= 10 && parts["collectives"] > whole["collectives"], "{parts:?}");
}

/// What a step of the rollout costs, and what the games came to: two steps of the one road and the other.
#[test]
fn double_buffer_costs_one_launch_per_half() {
    let Some(python) = rankdeck_testkit::python("numpy, gymnasium, ale_py") else { return };
    let env = format!("id = 'PongNoFrameskip-v4'\nworker = 'python'\npython = '{python}'\n");
    let run = |num_steps: u32, double_buffer: bool| {
        let rest = format!("[collect]\nnum_steps = {num_steps}\ndouble_buffer = {double_buffer}\n");
        let text = pong(&env, 2, 1, GRAPHS, &rest)
            .replace("total_steps = 96", &format!("total_steps = {}", 6 * num_steps));
        // How many checkpoints are written depends on the clock.
        let text = text.replace("[checkpoint]\nevery = 1\n", "");
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeCuda::new(folder.path(), &[])?;
        let mut run = Run::start_by(&text, &[], |command| fake.apply(command));
        run.end_with(0);
        let last = totals(&run.events()).pop().unwrap();
        Some((fake.counts("-"), (last.env_step, last.episodes, format!("{:?}", last))))
    };
    let each = |double_buffer| {
        let (less, more) = (run(16, double_buffer)?, run(32, double_buffer)?);
        let of = |name: &str| (more.0[name] - less.0[name]) as f64 / 48.0;
        let waits = of("stream_waits") + of("event_waits") + of("device_waits") + of("copy_waits");
        let reported = format!("{:?} {:?}", less.0, more.0);
        Some(((of("launches") + of("graph_launches"), waits, of("bytes_up"), reported), (more.1.0, more.1.1)))
    };
    let (Some((whole, played)), Some((halves, theirs))) = (each(false), each(true)) else { return };
    assert_eq!(played, theirs, "steps and episodes");
    // On a busy machine the beginnings of long iterations are kept: 16 reads each, in at most 3 iterations of
    // 48.
    assert!(whole.0 <= 1.0 && whole.1 <= 1.0 + 1.0, "{whole:?} {halves:?}");
    assert!(halves.0 <= 2.0 && halves.1 <= 2.0 + 1.0, "{halves:?}");
    // Each observation goes up once, by whichever way.
    assert!((halves.2 - whole.2).abs() < 100.0, "{whole:?} {halves:?}");
}

/// TRUNK-2 and TRUNK-3 on a GPU: the layouts and types that cuDNN gets.
#[test]
fn trunk_3_channels_last_and_bf16_only_if_configured() {
    let asked = |policy: &str| {
        let counts =
            train(&pong(&pixels(), 1, 1, policy, "[collect]\nnum_steps = 16\n"), &[], &[])?.fake.counts("-");
        Some((counts["channels_last"] > 0, counts["bf16_tensors"] > 0, counts["convolutions"] > 0))
    };
    for (policy, expected) in [
        ("", (false, false, true)),
        ("channels_last = true\n", (true, false, true)),
        ("precision = 'bf16'\n", (false, true, true)),
        ("channels_last = true\nprecision = 'bf16'\ncuda_graphs = true\n", (true, true, true)),
    ] {
        let Some(asked) = asked(policy) else { return };
        assert_eq!(asked, expected, "{policy}");
    }
}
