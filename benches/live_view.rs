//! The cost of live frames for an evaluation.
//!
//! `cargo bench -p rankdeck-trainer --bench live_view` plays evaluations in pairs: with an agent that takes
//! the frames, and without any. A pair is one number, so that what else runs on the machine moves both. It
//! prints the median of the pairs' ratios in time and in CPU time of the process (the thread that writes
//! frames and the stand-in that reads them are in it), with quartiles. The policies are cheaper than any
//! real one, which makes the share of frames larger. Frames are taken all the time here, and in a run, too,
//! whether or not it is watched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a benchmark that fails must stop

use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::show::{PolicyEstimate, ShownPolicy, ShownStep};
use rankdeck_trainer::algo::Greedy;
use rankdeck_trainer::collect::rollout::ActionBuffer;
use rankdeck_trainer::env::{
    ActionSpace, Actions, EnvError, EnvPurpose, Episode, ObservationType, Observations, Spec, StepOutcome,
    VectorEnv, make_vector,
};
use rankdeck_trainer::error::TrainerError;
use rankdeck_trainer::play::evaluate::{EvalControl, EvalObserver, EvalProgress, evaluate};
use rankdeck_trainer::play::show::LiveEval;
use rankdeck_trainer::support::events::EventSender;
use rankdeck_types::experiment::{Env, Eval};
use rankdeck_types::ids::{Generation, Rank};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::time::Instant;

const PAIRS: usize = 15;
/// Minimum duration of an evaluation in seconds.
const PLAYED_S: f64 = 1.0;

/// Pushes to where the pole falls.
struct Push;

impl Greedy for Push {
    fn act(
        &mut self,
        seen: Observations<'_>,
        _: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { panic!("discrete actions") };
        for (action, seen) in actions.iter_mut().zip(seen.f32().unwrap().chunks(4)) {
            *action = i64::from(0.02 * seen[0] + 0.1 * seen[1] + seen[2] + 0.5 * seen[3] > 0.0);
        }
        Ok(())
    }
    fn estimate(&self, _: usize) -> Option<PolicyEstimate> {
        Some(PolicyEstimate { scores: vec![0.25, 0.75], value: Some(1.0), ..PolicyEstimate::default() })
    }
}

/// Reads all pixels, as the cheapest policy with image observations would.
struct Glance;

impl Greedy for Glance {
    fn act(
        &mut self,
        seen: Observations<'_>,
        _: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { panic!("discrete actions") };
        for (action, seen) in actions.iter_mut().zip(seen.u8().unwrap().chunks(4 * 84 * 84)) {
            *action = seen.iter().map(|pixel| i64::from(*pixel)).sum::<i64>() % 6;
        }
        Ok(())
    }
}

/// Eight games with stacked frames of 84 x 84 whose steps only move a block.
struct Frames {
    spec: Spec,
    pixels: Vec<u8>,
    step: usize,
}

const GAMES: usize = 8;
const GAME_STEPS: usize = 2000;

impl VectorEnv for Frames {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn len(&self) -> usize {
        GAMES
    }
    fn observations(&self) -> Observations<'_> {
        Observations::U8(&self.pixels)
    }
    fn step(&mut self, _: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.step += 1;
        let at = self.step % self.pixels.len();
        self.pixels[at] = self.pixels[at].wrapping_add(97);
        outcome.rewards.fill(1.0);
        outcome.valid.fill(true);
        let over = self.step.is_multiple_of(GAME_STEPS);
        outcome.terminated.fill(over);
        outcome.truncated.fill(false);
        outcome.episodes.clear();
        let episode = |env| Episode { env, episode_return: GAME_STEPS as f64, length: GAME_STEPS as u64 };
        outcome.episodes.extend((0..GAMES).filter(|_| over).map(episode));
        Ok(())
    }
    fn reset(&mut self) -> Result<(), EnvError> {
        self.step = 0;
        Ok(())
    }
    fn words_per_env(&self) -> Option<usize> {
        None
    }
    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        Ok(None)
    }
    fn restore(&mut self, _: &[u64]) -> Result<(), EnvError> {
        Ok(())
    }
}

/// As rank 0 in a run, without a group.
struct Attending<'a> {
    live: LiveEval<'a>,
    seen: u64,
}

impl EvalObserver for &mut Attending<'_> {
    fn after_step(&mut self, _: EvalProgress) -> Result<EvalControl, TrainerError> {
        Ok(if self.live.is_requested() { EvalControl::Show } else { EvalControl::Continue })
    }
    fn on_step(&mut self, step: ShownStep, ended: usize) {
        self.seen += 1;
        self.live.show(step, ended);
    }
}

fn cpu_s() -> f64 {
    // SAFETY: plain data that the call fills; zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: one valid structure.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Seconds, CPU seconds and frames of evaluations that take at least [`PLAYED_S`] together.
fn play(
    env: &mut dyn VectorEnv,
    eval: &Eval,
    policy: &mut dyn Greedy,
    events: &EventSender,
) -> (f64, f64, u64) {
    let (begun, cpu, mut rounds, mut frames) = (Instant::now(), cpu_s(), 0, 0);
    while rounds == 0 || begun.elapsed().as_secs_f64() < PLAYED_S {
        let mut attending = Attending { live: LiveEval::new(events, ShownPolicy::default()), seen: 0 };
        evaluate(env, (eval, &Seeds::new(1)), policy, &mut attending).unwrap().unwrap();
        (rounds, frames) = (rounds + 1, frames + attending.seen);
    }
    let rounds = f64::from(rounds);
    (begun.elapsed().as_secs_f64() / rounds, (cpu_s() - cpu) / rounds, frames)
}

fn quartiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| 100.0 * (values[(share * (values.len() - 1) as f64).round() as usize] - 1.0);
    format!("{:+.2} % ({:+.2} to {:+.2})", at(0.5), at(0.25), at(0.75))
}

fn measure(name: &str, env: &mut dyn VectorEnv, eval: &Eval, policy: &mut dyn Greedy, events: &EventSender) {
    let silent = EventSender::silent();
    play(env, eval, policy, &silent);
    let (mut wall, mut cpu, mut frames, mut seconds) = (Vec::new(), Vec::new(), 0, 0.0);
    for pair in 0..PAIRS {
        // Each comes first in every other pair.
        let mut watched = None;
        if pair % 2 == 0 {
            watched = Some(play(env, eval, policy, events));
        }
        let alone = play(env, eval, policy, &silent);
        let watched = watched.unwrap_or_else(|| play(env, eval, policy, events));
        wall.push(watched.0 / alone.0);
        cpu.push(watched.1 / alone.1);
        frames += watched.2;
        seconds += PLAYED_S;
    }
    let rate = frames as f64 / seconds;
    println!("{name}: time {}, CPU {}, {rate:.1} frames/s", quartiles(wall), quartiles(cpu));
}

fn main() {
    let folder = std::env::temp_dir().join(format!("live-view-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("events.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut chunk = vec![0; 1 << 16];
        while stream.read(&mut chunk).is_ok_and(|read| read > 0) {}
    });
    let events = EventSender::to(&path, Rank(0), Generation(0));
    let env = Env::new("CartPole-v1", 1);
    for envs in [1, 20] {
        let mut poles = make_vector(&env, envs, 0, &Seeds::new(1), 0, EnvPurpose::Evaluate).unwrap();
        let eval = Eval { episodes: 20, ..Eval::default() };
        measure(&format!("CartPole, {envs} at a time"), &mut *poles, &eval, &mut Push, &events);
    }
    let spec = Spec {
        observation_shape: vec![4, 84, 84],
        observation_type: ObservationType::U8,
        branches: Vec::new(),
        actions: ActionSpace::Discrete { n: 6 },
    };
    let mut games = Frames { spec, pixels: vec![0; GAMES * 4 * 84 * 84], step: 0 };
    let eval = Eval { episodes: GAMES as u32, ..Eval::default() };
    measure("pictures of 84 x 84, 8 at a time", &mut games, &eval, &mut Glance, &events);
    std::fs::remove_dir_all(&folder).unwrap();
}
