//! Time of an environment step: classic control in Rust and in Gymnasium, Atari through the worker and in a
//! plain Python loop.
//!
//! `cargo bench -p rankdeck-trainer --bench envs -- [PYTHON]` prints nanoseconds per step (of one
//! environment) for vectors of several sizes. With an
//! interpreter that has Gymnasium and ale-py, the same for Gymnasium's SyncVectorEnv, and steps per second of
//! 8 Pongs with 1 and 2 emulator threads: a Python loop over the same AtariVectorEnv, and the worker. Beside
//! wall-clock figures stand steps per CPU-second (user and system time of the process and its children),
//! which neighbours on the machine change less.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a benchmark has nobody to report to

use rankdeck_kernel::seeds::Seeds;
use rankdeck_trainer::env::classic::KNOWN;
use rankdeck_trainer::env::{ActionSpace, Actions, EnvPurpose, StepOutcome, VectorEnv, make_vector};
use rankdeck_types::experiment::Env;
use std::process::Command;
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [8, 64, 1024];
const PLAYED: Duration = Duration::from_millis(500);
const PONGS: usize = 8;
const PONG_STEPS: usize = 1500;

/// Steps `vector` at random for a while; environment steps and wall seconds.
fn play(vector: &mut dyn VectorEnv, enough: impl Fn(usize, Duration) -> bool) -> (usize, f64) {
    let (spec, envs) = (vector.spec().clone(), vector.len());
    let mut outcome = StepOutcome::new(&spec, envs);
    let mut random = Seeds::new(1).generator(rankdeck_kernel::seeds::Purpose::Action, 0, 0);
    // Drawn before: what is measured is the environments.
    let n = spec.actions.width() as u64;
    let discrete: Vec<i64> = (0..envs * 61).map(|_| random.below(n) as i64).collect();
    let continuous: Vec<f32> = (0..envs * 61).map(|_| 2.0 * random.next_f64() as f32 - 1.0).collect();
    let begun = Instant::now();
    let mut rounds = 0;
    loop {
        for _ in 0..10 {
            let at = rounds % 61 * envs;
            let actions = match &spec.actions {
                ActionSpace::Discrete { .. } => Actions::Discrete(&discrete[at..at + envs]),
                ActionSpace::Continuous { .. } => Actions::Continuous(&continuous[at..at + envs]),
            };
            vector.step(actions, &mut outcome).unwrap();
            rounds += 1;
        }
        if enough(rounds, begun.elapsed()) {
            return (rounds * envs, begun.elapsed().as_secs_f64());
        }
    }
}

/// User and system seconds of this process, its ended children, and the living child of that pid.
fn cpu_seconds(child: Option<u32>) -> f64 {
    let of = |pid: &str| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        // SAFETY: no preconditions.
        ticks / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
    };
    of("self") + child.map_or(0.0, |pid| of(&pid.to_string()))
}

fn child() -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    text.split_whitespace().next()?.parse().ok()
}

fn python(python: &str, program: &str, args: &[&str]) -> String {
    let output = Command::new(python).arg("-c").arg(program).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

const SYNC: &str = "
import sys, time, gymnasium
env_id, envs = sys.argv[1], int(sys.argv[2])
env = gymnasium.make_vec(env_id, envs, vectorization_mode='sync')
env.reset(seed=1); env.action_space.seed(1)
actions = [env.action_space.sample() for _ in range(61)]
begun, cpu, rounds = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - begun < 0.5:
    env.step(actions[rounds % 61]); rounds += 1
print('%.0f' % (1e9 * (time.process_time() - cpu) / rounds / envs))
";

const PONG: &str = "
import sys, time, numpy
from ale_py.vector_env import AtariVectorEnv
envs, threads, rounds = map(int, sys.argv[1:])
env = AtariVectorEnv('pong', envs, num_threads=threads)
env.reset(seed=1)
actions = numpy.random.default_rng(1).integers(0, 6, (61, envs))
begun, cpu = time.perf_counter(), time.process_time()
for i in range(rounds):
    env.step(actions[i % 61])
wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
print('%8.0f steps/s  %8.0f steps/CPU-s' % (rounds * envs / wall, rounds * envs / cpu))
";

fn main() {
    let interpreter = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    println!("ns of CPU per step of one environment; vectors of {SIZES:?}");
    for id in KNOWN {
        let cells: Vec<String> = SIZES
            .iter()
            .map(|envs| {
                let mut vector =
                    make_vector(&Env::new(id, 1), *envs, 0, &Seeds::new(1), 0, EnvPurpose::Train).unwrap();
                let begun = cpu_seconds(None);
                let (steps, _) = play(vector.as_mut(), |_, elapsed| elapsed > PLAYED);
                format!("{:7.1}", 1e9 * (cpu_seconds(None) - begun) / steps as f64)
            })
            .collect();
        let theirs = match &interpreter {
            Some(path) => {
                let each: Vec<String> =
                    SIZES[..2].iter().map(|envs| python(path, SYNC, &[id, &envs.to_string()])).collect();
                format!("   SyncVectorEnv {}", each.join(" "))
            }
            None => String::new(),
        };
        println!("{id:26} {}{theirs}", cells.join(" "));
    }
    let Some(interpreter) = interpreter else { return };
    for threads in [1, 2] {
        let (envs, rounds) = (PONGS.to_string(), PONG_STEPS.to_string());
        let theirs = python(&interpreter, PONG, &[&envs, &threads.to_string(), &rounds]);
        println!("Pong x{PONGS}, {threads} threads, Python loop  {theirs}");
        // The same clipping and whole games as in the loop above.
        let env = Env {
            python: interpreter.clone(),
            worker_threads: Some(threads),
            ..Env::new("PongNoFrameskip-v4", PONGS as u32)
        };
        let mut vector = make_vector(&env, PONGS, 0, &Seeds::new(1), 0, EnvPurpose::Train).unwrap();
        let worker = child();
        let begun = cpu_seconds(worker);
        let (steps, wall) = play(vector.as_mut(), |rounds, _| rounds >= PONG_STEPS);
        let cpu = cpu_seconds(worker) - begun;
        println!(
            "Pong x{PONGS}, {threads} threads, worker       {:8.0} steps/s  {:8.0} steps/CPU-s",
            steps as f64 / wall,
            steps as f64 / cpu
        );
    }
}
