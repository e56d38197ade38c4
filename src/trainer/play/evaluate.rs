//! Evaluation: rank 0 plays whole episodes with the policy while the other ranks wait, by its best actions or as
//! training acts (`eval.greedy`).
//!
//! Environment `i` has the stream of evaluation episode `i`, the same in every evaluation and disjoint from
//! training. While it plays, rank 0 meets the others in a small collective every [`VOTE_EVERY`]: no
//! collective waits for a whole evaluation, and a stop request on any rank ends it.
//!
//! Invariants:
//! - EVAL-1: two evaluations of one policy are equal: they differ by the policy only. Actions that are drawn come
//!   from streams of their own, one for each environment, that start anew with each evaluation.
//! - EVAL-2: each environment plays a fixed number of episodes, the counts differ by at most one, and all of
//!   them count: no bias to short ones.
//! - EVAL-3: an episode ends after `eval.max_steps` steps at the latest, and an evaluation ends at the next
//!   step once a stop was requested.

use super::show;
use crate::algo::Greedy;
use crate::collect::rollout::ActionBuffer;
use crate::distributed::{DistError, ProcessGroup, ReduceOp};
use crate::env::{StepOutcome, VectorEnv};
use crate::error::TrainerError;
use crate::inject;
use crate::support::events::print_line;
use crate::support::signals;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Evaluation;
use rankdeck_proto::show::{LIVE_PIXELS, ShownStep};
use rankdeck_types::experiment::Eval;
use std::time::{Duration, Instant};

/// Most environments of an evaluation, unless `eval.num_envs` is set; more episodes are played one after
/// the other.
const MAX_ENVS: u32 = 32;
/// Between two meetings of the ranks during an evaluation.
const VOTE_EVERY: Duration = Duration::from_millis(250);
/// Between two log lines about a running evaluation.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The epoch of the streams that draw actions; that of the episodes themselves is 0.
const ACTIONS: u64 = 1;

/// What an evaluation does after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalControl {
    /// Continue.
    Continue,
    /// Continue, and show the next step.
    Show,
    /// Stop here.
    Stop,
}

/// Observes an evaluation and may stop it.
pub trait EvalObserver {
    /// Called after every step with the progress; decides what follows.
    fn after_step(&mut self, played: EvalProgress) -> Result<EvalControl, TrainerError>;
    /// Gets a step that was requested; `ended` episodes were over before it.
    fn on_step(&mut self, _step: ShownStep, _ended: usize) {}
    /// Called when all episodes have ended, with their returns.
    fn on_end(&mut self, _returns: &[f64]) {}
}

/// Observer that only decides whether to continue.
pub(crate) struct EvalCallback<F>(pub F);

impl<F: FnMut(EvalProgress) -> Result<bool, TrainerError>> EvalObserver for EvalCallback<F> {
    fn after_step(&mut self, played: EvalProgress) -> Result<EvalControl, TrainerError> {
        Ok(if self.0(played)? { EvalControl::Continue } else { EvalControl::Stop })
    }
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvalProgress {
    /// Episodes that have ended.
    pub episodes: usize,
    /// Steps of all environments.
    pub steps: u64,
}

/// Environments that an evaluation plays at the same time.
pub fn num_envs(eval: &Eval) -> usize {
    eval.num_envs.unwrap_or(MAX_ENVS).clamp(1, eval.episodes.max(1)) as usize
}

/// How an evaluation takes its actions.
pub(super) struct EvalActions {
    /// The environments' streams; `None`: the best actions.
    randoms: Option<Vec<Generator>>,
}

impl EvalActions {
    /// Of `envs` environments, from the beginning of their streams.
    pub(super) fn new(eval: &Eval, seeds: &Seeds, envs: usize) -> EvalActions {
        let stream = |env| seeds.generator(Purpose::Eval, env, ACTIONS);
        EvalActions { randoms: (!eval.greedy).then(|| (0..).take(envs).map(stream).collect()) }
    }

    /// Chooses the actions for what all environments show.
    pub(super) fn choose(
        &mut self,
        env: &dyn VectorEnv,
        policy: &mut dyn Greedy,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        match &mut self.randoms {
            None => policy.act(env.observations(), env.masks(), actions),
            Some(randoms) => policy.sample(env.observations(), env.masks(), randoms, actions),
        }
    }
}

/// Plays `eval.episodes` episodes from the beginning of the streams of `seeds`. `observer` is called after every step
/// with the progress, and decides; `None`: it was aborted. The caller fills in `env_step`, `train_iter` and
/// `stop`.
pub fn evaluate(
    env: &mut dyn VectorEnv,
    (eval, seeds): (&Eval, &Seeds),
    policy: &mut dyn Greedy,
    mut observer: impl EvalObserver,
) -> Result<Option<Evaluation>, TrainerError> {
    let started = Instant::now();
    env.reset()?;
    policy.start_episodes();
    inject::here(inject::Hook::Episode);
    let mut score = Score::new(eval, env.len());
    let mut outcome = StepOutcome::new(env.spec(), env.len());
    let mut actions = ActionBuffer::new(&env.spec().actions, env.len());
    let mut chosen = EvalActions::new(eval, seeds, env.len());
    let mut next = observer.after_step(EvalProgress::default())?;
    while next != EvalControl::Stop && !score.is_over() {
        chosen.choose(env, policy, &mut actions)?;
        let shown = if next == EvalControl::Show { score.first_playing() } else { None };
        let seen = shown.map(|at| {
            let estimate = policy.estimate(at);
            show::describe_step(env.observations(), env.spec(), at, estimate, &actions, LIVE_PIXELS)
        });
        env.step(actions.view(), &mut outcome)?;
        policy.end_episodes(&outcome);
        if let (Some(at), Some(seen)) = (shown.filter(|at| outcome.valid[*at]), seen) {
            observer.on_step(score.place(at, f64::from(outcome.rewards[at]), seen), score.returns.len());
        }
        for done in score.add(&outcome) {
            env.retire(done);
        }
        next = observer.after_step(EvalProgress { episodes: score.returns.len(), steps: score.steps })?;
    }
    if next == EvalControl::Stop {
        return Ok(None);
    }
    score.warn_of_cuts(eval);
    observer.on_end(&score.returns);
    Ok(Some(Evaluation { sampled: !eval.greedy, ..score.evaluation(started.elapsed()) }))
}

/// Returns of an evaluation so far.
struct Score {
    episodes: usize,
    /// Episodes that each environment has still to play.
    left: Vec<usize>,
    /// Return and length of each environment's present episode.
    running: Vec<(f64, u64)>,
    max_steps: u64,
    returns: Vec<f64>,
    length: u64,
    steps: u64,
    cut: usize,
}

impl Score {
    fn new(eval: &Eval, envs: usize) -> Score {
        let episodes = eval.episodes as usize;
        Score {
            episodes,
            left: (0..envs).map(|i| (episodes + envs - 1 - i) / envs.max(1)).collect(),
            running: vec![(0.0, 0); envs],
            max_steps: u64::from(eval.max_steps),
            returns: Vec::with_capacity(episodes),
            length: 0,
            steps: 0,
            cut: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.left.iter().all(|left| *left == 0)
    }

    fn first_playing(&self) -> Option<usize> {
        self.left.iter().position(|left| *left > 0)
    }

    /// Where in the evaluation a step is that gave this reward and is not yet counted. Environment `i` plays
    /// the episodes `i`, `i` and the number of environments, and so on.
    fn place(&self, env: usize, reward: f64, seen: ShownStep) -> ShownStep {
        let envs = self.left.len();
        let played = (self.episodes + envs - 1 - env) / envs.max(1) - self.left[env];
        let (gained, step) = self.running[env];
        let episode = (env + played * envs) as u32;
        ShownStep { episode, step, reward, episode_return: gained + reward, ..seen }
    }

    /// Takes in a step; returns the environments that have played their share with it.
    fn add(&mut self, outcome: &StepOutcome) -> Vec<usize> {
        let mut done = Vec::new();
        for env in 0..self.left.len() {
            if self.left[env] == 0 || !outcome.valid[env] {
                continue;
            }
            self.steps += 1;
            let running = &mut self.running[env];
            *running = (running.0 + f64::from(outcome.rewards[env]), running.1 + 1);
            let ended = outcome.episodes.iter().find(|episode| episode.env == env);
            if let Some(episode) = ended {
                self.left[env] -= 1;
                self.note(env, episode.episode_return, episode.length);
            } else if self.running[env].1 >= self.max_steps {
                // The environment continues this episode: the next one would not be complete.
                (self.left[env], self.cut) = (0, self.cut + 1);
                let (episode_return, length) = self.running[env];
                self.note(env, episode_return, length);
            }
            if self.left[env] == 0 {
                done.push(env);
            }
        }
        done
    }

    fn note(&mut self, env: usize, episode_return: f64, length: u64) {
        self.returns.push(episode_return);
        self.length += length;
        self.running[env] = (0.0, 0);
        inject::here(inject::Hook::Episode);
    }

    fn warn_of_cuts(&self, eval: &Eval) {
        if self.cut > 0 {
            print_line(&format!(
                "evaluation: {} of {} episodes were cut off at eval.max_steps = {}; set env.max_episode_steps to limit episodes in training too",
                self.cut,
                self.returns.len(),
                eval.max_steps
            ));
        }
    }

    fn evaluation(&self, took: Duration) -> Evaluation {
        let returns = &self.returns;
        let count = returns.len().max(1) as f64;
        let mean = returns.iter().sum::<f64>() / count;
        let variance = returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / count;
        Evaluation {
            episodes: returns.len() as u32,
            return_mean: mean,
            return_std: variance.sqrt(),
            return_min: returns.iter().copied().reduce(f64::min).unwrap_or(0.0),
            return_max: returns.iter().copied().reduce(f64::max).unwrap_or(0.0),
            length_mean: self.length as f64 / count,
            duration_s: took.as_secs_f64(),
            ..Evaluation::default()
        }
    }
}

/// Rank 0's side of the meetings, and its log lines.
pub(crate) struct EvalHeartbeat<'a> {
    group: &'a ProcessGroup,
    started: Instant,
    last_vote: Instant,
    last_log: Instant,
    episodes: u32,
}

impl<'a> EvalHeartbeat<'a> {
    /// An evaluation of `episodes` episodes begins.
    pub(crate) fn new(group: &'a ProcessGroup, episodes: u32) -> EvalHeartbeat<'a> {
        let now = Instant::now();
        EvalHeartbeat { group, started: now, last_vote: now, last_log: now, episodes }
    }

    /// Meets the others when it is time to; `false` once any rank was asked to stop.
    pub(crate) fn continues(&mut self, played: EvalProgress, now: Instant) -> Result<bool, TrainerError> {
        if now.duration_since(self.last_log) >= LOG_EVERY {
            self.last_log = now;
            print_line(&format!(
                "evaluation: {} of {} episodes after {} steps in {:.0} s",
                played.episodes,
                self.episodes,
                played.steps,
                self.started.elapsed().as_secs_f64()
            ));
        }
        self.group.check_members()?;
        if signals::stop_requested() {
            return Ok(false);
        }
        if now.duration_since(self.last_vote) < VOTE_EVERY {
            return Ok(true);
        }
        let stop = vote(self.group, false)?.stop;
        self.last_vote = Instant::now();
        Ok(!stop)
    }

    /// Rank 0 plays no more: the others leave [`wait`].
    pub(crate) fn end(self) -> Result<(), DistError> {
        vote(self.group, true).map(drop)
    }
}

/// The other ranks wait until rank 0 plays no more.
pub fn wait(group: &ProcessGroup) -> Result<(), DistError> {
    while !vote(group, false)?.over {}
    Ok(())
}

/// The result of a vote of the ranks.
struct EvalVote {
    /// A rank was asked to stop.
    stop: bool,
    /// Rank 0 plays no more.
    over: bool,
}

/// Tag `eval`; how often the ranks vote depends on rank 0's `over` alone.
fn vote(group: &ProcessGroup, over: bool) -> Result<EvalVote, DistError> {
    let mut flags = [i64::from(signals::stop_requested()), i64::from(over)];
    group.all_reduce_i64(&mut flags, ReduceOp::Sum, "eval")?;
    Ok(EvalVote { stop: flags[0] > 0, over: flags[1] > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvPurpose, Observations, make_vector};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::Env;

    /// Pushes to where the pole falls, or always to the left.
    struct Push {
        balances: bool,
    }

    impl Greedy for Push {
        fn act(
            &mut self,
            seen: Observations<'_>,
            _: Option<&[u8]>,
            actions: &mut ActionBuffer,
        ) -> Result<(), TrainerError> {
            let ActionBuffer::Discrete(actions) = actions else { panic!("discrete actions") };
            for (action, seen) in actions.iter_mut().zip(seen.f32().unwrap().chunks(4)) {
                let right = 0.02 * seen[0] + 0.1 * seen[1] + seen[2] + 0.5 * seen[3] > 0.0;
                *action = i64::from(right && self.balances);
            }
            Ok(())
        }

        /// Pushes at random.
        fn sample(
            &mut self,
            _: Observations<'_>,
            _: Option<&[u8]>,
            randoms: &mut [Generator],
            actions: &mut ActionBuffer,
        ) -> Result<(), TrainerError> {
            let ActionBuffer::Discrete(actions) = actions else { panic!("discrete actions") };
            for (action, random) in actions.iter_mut().zip(randoms) {
                *action = random.below(2) as i64;
            }
            Ok(())
        }
    }

    fn cartpoles(envs: usize) -> Box<dyn VectorEnv> {
        make_vector(&Env::new("CartPole-v1", 1), envs, 0, &Seeds::new(1), 0, EnvPurpose::Evaluate).unwrap()
    }

    fn play(envs: usize, eval: &Eval, balances: bool) -> Evaluation {
        let mut env = cartpoles(envs);
        let mut again = || {
            let mut moves = 0;
            let observer = EvalCallback(|_| {
                moves += 1;
                Ok(true)
            });
            let evaluation = evaluate(&mut *env, (eval, &Seeds::new(1)), &mut Push { balances }, observer);
            assert!(moves > 8);
            Evaluation { duration_s: 0.0, ..evaluation.unwrap().unwrap() }
        };
        let first = again();
        assert_eq!(again(), first, "EVAL-1");
        first
    }

    fn episodes(episodes: u32) -> Eval {
        Eval { episodes, ..Eval::default() }
    }

    #[test]
    fn evaluation_repeats_and_episodes_differ() {
        let good = play(5, &episodes(5), true);
        assert_eq!((good.return_mean, good.return_std, good.length_mean), (500.0, 0.0, 500.0));
        // A policy that always pushes left falls soon, after different numbers of steps.
        let bad = play(20, &episodes(20), false);
        assert!(bad.return_mean < 12.0 && bad.return_min < bad.return_max, "{bad:?}");
    }

    /// EVAL-1, also of actions that are drawn.
    #[test]
    fn eval_1_sampled_evaluation_repeats_and_is_marked() {
        let best = play(4, &episodes(4), true);
        let sampled = play(4, &Eval { greedy: false, ..episodes(4) }, true);
        assert!(sampled.sampled && !best.sampled);
        assert!(sampled.return_mean < 100.0 && best.return_mean == 500.0, "{sampled:?}");
    }

    #[test]
    fn eval_2_every_environment_plays_its_share() {
        let seven = play(3, &episodes(7), false);
        assert_eq!(seven.episodes, 7);
        assert!(seven.length_mean > 7.0 && seven.length_mean == seven.return_mean);
    }

    #[test]
    fn eval_3_endless_episode_is_cut_and_stop_aborts() {
        let cut = play(4, &Eval { max_steps: 20, ..episodes(9) }, true);
        assert_eq!((cut.episodes, cut.return_mean, cut.length_mean), (4, 20.0, 20.0));
        let mut steps = 0;
        let observer = EvalCallback(|played: EvalProgress| {
            steps = played.steps;
            Ok(played.steps < 30)
        });
        let three = (&episodes(3), &Seeds::new(1));
        let stopped = evaluate(&mut *cartpoles(3), three, &mut Push { balances: true }, observer);
        assert_eq!((stopped.unwrap(), steps), (None, 30));
    }

    /// Requests every step, and keeps them.
    #[derive(Default)]
    struct Everything(Vec<(ShownStep, usize)>);

    impl EvalObserver for &mut Everything {
        fn after_step(&mut self, _: EvalProgress) -> Result<EvalControl, TrainerError> {
            Ok(EvalControl::Show)
        }
        fn on_step(&mut self, step: ShownStep, ended: usize) {
            self.0.push((step, ended));
        }
    }

    #[test]
    fn live_1_observer_sees_every_step_without_effect() {
        let unseen = play(3, &episodes(7), false);
        let mut seen = Everything::default();
        let seven = (&episodes(7), &Seeds::new(1));
        let result = evaluate(&mut *cartpoles(3), seven, &mut Push { balances: false }, &mut seen);
        assert_eq!(Evaluation { duration_s: 0.0, ..result.unwrap().unwrap() }, unseen, "equal to the bit");
        // The first environment plays the episodes 0, 3 and 6, and is the last to end.
        let steps: Vec<(u32, u64, f64)> =
            seen.0.iter().map(|(step, _)| (step.episode, step.step, step.episode_return)).collect();
        assert_eq!(steps[0], (0, 0, 1.0));
        for pair in steps.windows(2) {
            let (episode, step, gained) = pair[0];
            let next = [(episode, step + 1, gained + 1.0), (episode + 3, 0, 1.0)];
            assert!(next.contains(&pair[1]), "{pair:?}");
        }
        assert_eq!(steps.last().unwrap().0, 6);
        assert!(seen.0.iter().all(|(step, _)| step.seen.len() == 4 && step.action == [0.0]));
        assert!(seen.0.windows(2).all(|pair| pair[0].1 <= pair[1].1 && pair[1].1 < 7));
    }

    #[test]
    fn num_envs_is_bounded_by_episodes() {
        let of = |episodes, num_envs| num_envs_of(episodes, num_envs);
        assert_eq!([of(5, None), of(100, None), of(100, Some(64)), of(3, Some(64))], [5, 32, 64, 3]);
    }

    fn num_envs_of(episodes: u32, count: Option<u32>) -> usize {
        num_envs(&Eval { episodes, num_envs: count, ..Eval::default() })
    }
}
