//! What an update and a step cost on a GPU, counted: launches, waits of the host, bytes between host and
//! device.
//!
//! An update's share is the difference between two runs of the same length, one of which makes more updates.
//! `UPDATE_EXPECTED=1` writes the table of `benches/gpu/COUNTS.md`.

use super::{pixels, train};
use rankdeck_testkit::fake_cuda::{Counts, FakeCuda};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Counts of one thing that is done again and again.
struct Each {
    launches: f64,
    calls: f64,
    waits: f64,
    down: f64,
    up: f64,
    /// CPU time of the host, ms: what this machine needs, which nothing asserts.
    host: f64,
}

impl Each {
    /// `(more - less) / times`.
    fn of(more: &Counts, less: &Counts, times: u64) -> Each {
        let each = |names: &[&str]| {
            let sum = |counts: &Counts| names.iter().map(|name| counts[*name]).sum::<u64>() as f64;
            (sum(more) - sum(less)) / times as f64
        };
        Each {
            launches: each(&["launches", "graph_launches"]),
            calls: each(&["gemms", "convolutions"]),
            waits: each(&["stream_waits", "event_waits", "device_waits", "copy_waits"]),
            down: each(&["bytes_down"]),
            up: each(&["bytes_up"]),
            host: each(&["host_us"]) / 1000.0,
        }
    }

    /// What `benches/gpu/cleanrl.py` prints of an update.
    fn reported(value: &Value) -> Each {
        let of = |name: &str| value[name].as_f64().unwrap();
        let (launches, calls, waits) = (of("launches"), of("calls"), of("waits"));
        Each { launches, calls, waits, down: of("down"), up: of("up"), host: of("host") }
    }

    fn row(&self, name: &str, before: &str) -> String {
        let Each { launches, calls, waits, down, up, host } = self;
        format!(
            "| {name} | {before} | {launches:.0} + {calls:.0} | {waits:.1} | {down:.0} | {up:.0} |{TIME}{:.1} |\n",
            host.max(0.0)
        )
    }
}

/// What stands before a time in the table.
const TIME: &str = " about ";

/// The table without its times, which differ from machine to machine and from run to run.
fn counts_of(table: &str) -> String {
    let without = |line: &str| line.split(TIME).next().unwrap_or(line).to_owned() + "\n";
    table.lines().map(without).collect()
}

/// Counts of two experiments; `None` has been noted as a skip.
fn counts(less: &str, more: &str, knobs: &[(&str, &str)], args: &[&str]) -> Option<[Counts; 2]> {
    Some([count(less, knobs, args)?, count(more, knobs, args)?])
}

/// Counts of one experiment, which is trained once for all tests that use it.
fn count(experiment: &str, knobs: &[(&str, &str)], args: &[&str]) -> Option<Counts> {
    static KNOWN: Mutex<BTreeMap<String, Counts>> = Mutex::new(BTreeMap::new());
    let what = format!("{experiment} {knobs:?} {args:?}");
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(counts) = known().get(&what) {
        return Some(counts.clone());
    }
    let rank = if args.is_empty() { "-" } else { "0" };
    let counts = train(experiment, knobs, args)?.fake.counts(rank);
    known().insert(what, counts.clone());
    Some(counts)
}

/// How the same work is put on the GPU.
#[derive(Clone, Copy, PartialEq)]
enum Road {
    /// Call by call.
    Stepwise,
    /// As CUDA graphs, which is what users get.
    Graphs,
}

impl Road {
    fn table(self) -> String {
        format!("[policy]\ncuda_graphs = {}\n", self == Road::Graphs)
    }
}

fn ppo(epochs: u32, steps: u64, road: Road) -> String {
    let rest = format!("update_epochs = {epochs}\n[eval]\nevery = 0\n{}", road.table());
    crate::harness::experiment(steps, "", &rest)
}

/// An update of PPO: 8 iterations of 4 minibatches, with one epoch and with three.
fn ppo_update(road: Road) -> Option<Each> {
    let [less, more] = counts(&ppo(1, 4096, road), &ppo(3, 4096, road), &[], &[])?;
    Some(Each::of(&more, &less, 8 * 2 * 4))
}

fn pong((epochs, num_steps, iterations): (u32, u32, u32), road: Road) -> String {
    format!(
        "[run]\nname = 'test'\nseed = 1\ntotal_steps = {}\n[env]\n{}num_envs = 2\n\
         [collect]\nnum_steps = {num_steps}\n{}network = 'nature'\n\
         [learn]\nalgorithm = 'ppo'\nupdate_epochs = {epochs}\n[eval]\nevery = 0\n",
        iterations * 2 * num_steps,
        pixels(),
        road.table()
    )
}

/// An update of PPO on pixels, and a step of its rollout.
fn pong_counts(road: Road) -> Option<[Each; 2]> {
    let of = |epochs, num_steps| count(&pong((epochs, num_steps, 3), road), &[], &[]);
    let (less, steps, updates) = (of(1, 16)?, of(1, 32)?, of(3, 16)?);
    Some([Each::of(&updates, &less, 3 * 2 * 4), Each::of(&steps, &less, 3 * 16)])
}

/// An experiment of DQN or SAC: 4 steps an iteration, of which 20 are before learning begins.
struct OffPolicy {
    algorithm: &'static str,
    /// The table of the environment.
    env: String,
    /// More of the table of the policy.
    policy: &'static str,
}

impl OffPolicy {
    /// DQN and SAC on vectors.
    fn small() -> [OffPolicy; 2] {
        let of = |algorithm, id: &str| OffPolicy { algorithm, env: format!("id = '{id}'\n"), policy: "" };
        [of("dqn", "CartPole-v1"), of("sac", "Pendulum-v1")]
    }

    /// DQN on pixels.
    fn pong() -> OffPolicy {
        OffPolicy { algorithm: "dqn", env: pixels(), policy: "network = 'nature'\n" }
    }

    fn text(&self, iterations: u64, updates: u32, road: Road) -> String {
        let OffPolicy { algorithm, env, policy } = self;
        format!(
            "[run]\nname = 'test'\nseed = 1\ntotal_steps = {}\n[env]\n{env}num_envs = 1\n\
             [collect]\nnum_steps = 4\n[learn]\nalgorithm = '{algorithm}'\nlearning_starts = 80\n\
             buffer_size = 400\nupdates_per_iteration = {updates}\nbatch_size = 32\n[eval]\nevery = 0\n{}{policy}",
            4 * iterations,
            road.table()
        )
    }

    fn update(&self, road: Road) -> Option<Each> {
        let [less, more] = counts(&self.text(60, 2, road), &self.text(60, 4, road), &[], &[])?;
        Some(Each::of(&more, &less, 41 * 2))
    }

    /// An iteration: 4 steps and 2 updates.
    fn iteration(&self, road: Road) -> Option<Each> {
        let [less, more] = counts(&self.text(40, 2, road), &self.text(60, 2, road), &[], &[])?;
        Some(Each::of(&more, &less, 20))
    }
}

/// Whole iterations on every road, with the number of steps and updates in each.
fn iterations(road: Road) -> Option<Vec<(&'static str, u32, Each)>> {
    let [less, more] = counts(&ppo(1, 4096, road), &ppo(1, 8192, road), &[], &[])?;
    let small = Each::of(&more, &less, 8);
    let of = |iterations| pong((1, 16, iterations), road);
    let [less, more] = counts(&of(3), &of(6), &[], &[])?;
    let pixels = Each::of(&more, &less, 3);
    let [dqn, sac] = OffPolicy::small();
    Some(vec![
        ("PPO, CartPole: 128 steps, 4 updates", 128, small),
        ("PPO, Pong: 16 steps, 4 updates", 16, pixels),
        ("DQN, CartPole: 4 steps, 2 updates", 4, dqn.iteration(road)?),
        ("DQN, Pong: 4 steps, 2 updates", 4, OffPolicy::pong().iteration(road)?),
        ("SAC, Pendulum: 4 steps, 2 updates", 4, sac.iteration(road)?),
    ])
}

/// The rows of [`iterations`], each of which waits for its steps' actions, and for what is read at its end.
fn iteration_rows() -> Option<String> {
    let mut table = String::from(
        "\n# What an iteration costs\n\n\
         Everything from one iteration to the next: its steps, its updates, and what is read at its end; counted as\n\
         the difference between runs of more and of fewer iterations, on the same fakes.\n\n\
         | an iteration | launches | waits | bytes down | bytes up |\n|---|---|---|---|---|\n",
    );
    for (road, words) in [(Road::Stepwise, "call by call"), (Road::Graphs, "CUDA graphs")] {
        for (name, steps, each) in iterations(road)? {
            let most = f64::from(steps) + 4.0;
            assert!(each.waits <= most, "{name}, {words}: {} waits of the host", each.waits);
            let Each { launches, calls, waits, down, up, .. } = each;
            let _ = writeln!(
                table,
                "| {name}, {words} | {launches:.0} + {calls:.0} | {waits:.1} | {down:.0} | {up:.0} |"
            );
        }
    }
    Some(table)
}

fn within(name: &str, each: &Each, launches: f64, bytes_up: f64) {
    assert!(each.launches <= launches, "{name}: {} launches", each.launches);
    assert!(each.waits <= 0.0, "{name}: {} waits of the host", each.waits);
    // Loss and norm of an update are read with everything else at the end of the iteration.
    assert!(each.down <= 64.0, "{name}: {} bytes to the host", each.down);
    assert!(each.up <= bytes_up, "{name}: {} bytes to the device", each.up);
}

/// RECORDING-1. One launch for each update; an epoch sets its number back.
#[test]
fn ppo_update_of_one_rank_is_one_graph() {
    let Some([less, more]) = counts(&ppo(1, 4096, Road::Graphs), &ppo(3, 4096, Road::Graphs), &[], &[])
    else {
        return;
    };
    let each = Each::of(&more, &less, 8 * 2 * 4);
    assert!(each.calls <= 0.0, "{} calls of libraries", each.calls);
    assert_eq!(more["graph_launches"] - less["graph_launches"], 64);
    let nodes = (more["graph_nodes"] - less["graph_nodes"]) / 64;
    // As many kernels as without, and those that count minibatches on the device.
    assert!((100..=190).contains(&nodes), "{nodes} nodes");
}

/// Sequences are cut on the host, from what it has collected: an update with memory asks the device for nothing.
#[test]
fn ppo_update_with_memory_waits_for_nothing() {
    let of = |epochs| format!("{}memory = 'mingru'\nmemory_size = 16\n", ppo(epochs, 4096, Road::Stepwise));
    let Some([less, more]) = counts(&of(1), &of(3), &[], &[]) else { return };
    let each = Each::of(&more, &less, 8 * 2 * 4);
    assert!(each.waits <= 0.0, "{} waits of the host: {less:?} {more:?}", each.waits);
    assert!(each.down <= 64.0, "{} bytes to the host", each.down);
    // For each of the 128 rows its place (i64), its advantage and whether an episode begins with it (f32 each), and the
    // number of the minibatch's one environment (i64).
    let most = f64::from(128 * (8 + 4 + 4) + 8);
    assert!(each.up <= most, "{} bytes to the device, {most} expected", each.up);
}

/// NCCL's work is not part of a graph: an update has one before the gradients are averaged, and one after.
#[test]
fn ppo_update_of_two_ranks_waits_for_no_collective() {
    let two = [("gpus", "2")];
    // Rank 0's clock decides when losses are gathered for a report, which waits. With a checkpoint after
    // every iteration there is a report after each, and two runs differ by their updates alone.
    let of = |epochs, road| format!("{}[checkpoint]\nevery = 1\n", ppo(epochs, 4096, road));
    for (road, launches) in [(Road::Stepwise, 160.0), (Road::Graphs, 4.0)] {
        let Some([less, more]) = counts(&of(1, road), &of(3, road), &two, &["--spawn", "2"]) else { return };
        let each = Each::of(&more, &less, 8 * 2 * 4);
        assert!(each.launches <= launches, "{} launches", each.launches);
        assert!(each.waits <= 0.0, "{} waits of the host: {less:?} {more:?}", each.waits);
        assert_eq!(more["collective_threads"], 0, "NCCL makes no thread for a collective");
        assert_eq!(more["collectives"], less["collectives"] + 64, "each update is reduced");
    }
}

/// What an update sums, norms and losses, is cut into the same parts whatever the number of multiprocessors,
/// so that ranks on GPUs of two models clip alike. What cuBLAS and cuDNN choose is theirs, and how tensors
/// are put one behind the other changes no number.
#[test]
fn update_launch_shapes_are_equal_on_all_gpu_models() {
    let of = |epochs, multiprocessors| {
        let wide = format!(
            "[run]\nname = 'test'\nseed = 1\ntotal_steps = 64\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
             [policy]\nhidden = [256, 256]\ncuda_graphs = false\n[collect]\nnum_steps = 16\n\
             [learn]\nalgorithm = 'ppo'\nupdate_epochs = {epochs}\n[eval]\nevery = 0\n"
        );
        count(&wide, &[("multiprocessors", multiprocessors)], &[])
    };
    let updates = |multiprocessors| {
        let [less, more] = [of(1, multiprocessors)?, of(3, multiprocessors)?];
        let more_of = |name: &str| more[name].wrapping_sub(less[name]);
        Some((more_of("launches"), more_of("launch_shapes")))
    };
    let (Some(small), Some(large)) = (updates("1"), updates("132")) else { return };
    assert!(small.0 > 8 * 100, "{small:?}");
    assert_eq!(small, large, "launches of 8 updates, and their shapes");
}

/// RECORDING-2.
#[test]
fn failed_capture_is_logged_and_training_continues() {
    for knob in ["capture_refused", "capture_fails"] {
        let Some(trained) = train(&ppo(2, 4096, Road::Graphs), &[(knob, "1")], &[]) else { return };
        let logs = trained.run.logs();
        assert_eq!(logs.matches("CUDA graphs").count(), 1, "{logs}");
        let counts = trained.fake.counts("-");
        assert_eq!(counts["graph_launches"], 0);
        // 8 iterations of 2 epochs of 4 updates.
        assert!(counts["launches"] > 64 * 100, "{counts:?}");
    }
}

/// CleanRL's updates, counted in the same way.
fn cleanrl() -> Option<Value> {
    let python = rankdeck_testkit::python("numpy, sympy, typing_extensions")?;
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeCuda::new(folder.path(), &[])?;
    let mut command = Command::new(python);
    fake.apply(command.arg(rankdeck_testkit::repository("benches/gpu/cleanrl.py")).arg(fake.built()));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("No module named 'torch._C'") {
        rankdeck_testkit::skipped("libtorch's wheel is of another Python than the tests'");
        return None;
    }
    assert!(output.status.success(), "{errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The budget of an update, in launches, and of what goes to the device, in bytes.
fn budget(name: &str, road: Road) -> (f64, f64) {
    let (stepwise, graphs, bytes_up) = match name {
        "PPO, CartPole" => (135.0, 1.5, 1600.0),
        "PPO, Pong" => (145.0, 1.5, 400.0),
        "DQN, CartPole" => (31.0, 1.0, 3000.0),
        // The replay is on the host: 32 observations and those after them go up.
        "DQN, Pong" => (54.0, 1.0, 32.0 * 2.0 * 4.0 * 84.0 * 84.0 + 3000.0),
        _ => (205.0, 1.0, 3000.0),
    };
    (if road == Road::Graphs { graphs } else { stepwise }, bytes_up)
}

/// LEDGER-1. Every update and every step of a rollout stays within its budget, and the table that is shown to
/// people is what is counted.
#[test]
fn updates_and_steps_stay_within_their_budgets() {
    let path = rankdeck_testkit::repository("benches/gpu/COUNTS.md");
    let mut table = String::from(
        "# What an update costs on a GPU\n\n\
         Counted on fake GPUs (`tests/fake_cuda`), where kernels do nothing: numbers of calls, no times. Made by\n\
         `UPDATE_EXPECTED=1 cargo nextest run --test trainer budgets`.\n\n\
         Launches of kernels + calls of cuBLAS and cuDNN, waits of the host, bytes from and to the device. Before: at\n\
         83513db, the same experiments. CleanRL's are the updates of its ppo.py, ppo_atari.py, dqn.py,\n\
         dqn_atari.py and sac_continuous_action.py in eager PyTorch, with the widths and batches of our rows\n\
         (`benches/gpu/cleanrl.py`). The programs themselves, at fe8d8a0, were counted once in the same way, and\n\
         agree: Pong's has one hidden layer, and 176 + 17.\n\n\
         The CPU time of the host is that of the process between launches, with the fakes' own: what this machine\n\
         needs to put an update on the GPU, to some tenths. It is shown and not asserted.\n\n\
         | what | before: launches, waits, bytes down | launches | waits | bytes down | bytes up | host CPU, ms |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let Some(theirs) = cleanrl() else { return };
    let [dqn, sac] = OffPolicy::small();
    let pixels = OffPolicy::pong();
    for (road, words) in [(Road::Stepwise, "call by call"), (Road::Graphs, "CUDA graphs")] {
        let Some(alone) = ppo_update(road) else { return };
        let (Some(dqn), Some(sac), Some(pixels)) = (dqn.update(road), sac.update(road), pixels.update(road))
        else {
            return;
        };
        let Some([pong, step]) = pong_counts(road) else { return };
        // Each observation goes up once, and one action comes back.
        let observations = 2.0 * 4.0 * 84.0 * 84.0;
        let launches = if road == Road::Graphs { 1.0 } else { 20.0 };
        let counted = (step.launches, step.waits, step.up, step.down);
        assert!(
            step.launches <= launches
                && step.waits <= 1.0
                && step.up <= observations + 200.0
                && step.down <= 128.0,
            "a step, {words}: {counted:?} launches, waits, bytes up and down, {observations} seen"
        );
        for (name, before, each) in [
            ("PPO, CartPole", "272 + 16, 13, 36,624", alone),
            ("PPO, Pong", "306 + 20, 15, 1,133,472", pong),
            ("DQN, CartPole", "96 + 11, 13, 36,884", dqn),
            ("DQN, Pong", "", pixels),
            ("SAC, Pendulum", "442 + 53, 36, 90,920", sac),
        ] {
            let (launches, bytes_up) = budget(name, road);
            within(&format!("{name}, {words}"), &each, launches, bytes_up);
            let waits = Each::reported(&theirs[name]).waits;
            assert!(each.waits < waits, "{name}: CleanRL's waits {waits} times");
            let _ = write!(table, "{}", each.row(&format!("{name}, an update, {words}"), before));
            if name == "PPO, Pong" {
                let name = format!("{name}, a step of the rollout, {words}");
                let _ = write!(table, "{}", step.row(&name, "12 + 7, 2, 56; 112,960 up"));
            }
        }
    }
    for name in ["PPO, CartPole", "PPO, Pong", "DQN, CartPole", "DQN, Pong", "SAC, Pendulum"] {
        let each = Each::reported(&theirs[name]);
        let _ = write!(table, "{}", each.row(&format!("{name}, an update, CleanRL's in eager PyTorch"), ""));
    }
    let Some(rows) = iteration_rows() else { return };
    table += &rows;
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    println!("{table}");
    assert_eq!(counts_of(&committed), counts_of(&table), "UPDATE_EXPECTED=1 writes {}", path.display());
}
