//! The meaning of a series, by its name: which one is the return, the step, the learning rate. Also the
//! patterns of `[metrics]`, and the built-in ones.
//!
//! Invariants:
//! - MEANING-1: this is the only table of names. Pages and commands ask for a meaning; charts keep the program's
//!   own names.

use super::experiment::Metrics;
use super::plan::PlanError;
use regex_lite::{Regex, RegexBuilder};
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

/// Chart of the returns of training episodes, as the console and the built-in trainer name it.
pub const RETURN: &str = "charts/episodic_return";
/// Chart of the mean returns of evaluations.
pub const EVAL: &str = "charts/eval_return";
/// Chart of environment steps per second.
pub const SPEED: &str = "charts/SPS";

/// Longest name that may have a meaning, bytes.
const NAME: usize = 128;

macro_rules! meanings {
    ($($(#[doc = $doc:literal])* $variant:ident = $key:literal,)*) => {
        /// What the values of a series are, whatever their program calls them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Meaning {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Meaning {
            /// All meanings.
            pub const ALL: &[Meaning] = &[$(Meaning::$variant,)*];

            /// Returns the key in `metrics.names`.
            pub fn key(self) -> &'static str {
                match self {
                    $(Meaning::$variant => $key,)*
                }
            }
        }
    };
}

meanings! {
    /// Return of training episodes.
    Return = "return",
    /// Length of training episodes.
    Length = "length",
    /// Return of evaluation episodes.
    EvalReturn = "eval_return",
    /// Length of evaluation episodes.
    EvalLength = "eval_length",
    /// Steps, as the program counts them.
    Step = "step",
    /// Training iterations.
    Iteration = "iteration",
    /// Passes over the data.
    Epoch = "epoch",
    /// Steps per second.
    StepsPerSecond = "steps_per_s",
    LearningRate = "learning_rate",
    /// Training loss.
    Loss = "loss",
    PolicyLoss = "policy_loss",
    ValueLoss = "value_loss",
    Entropy = "entropy",
    /// Kullback-Leibler divergence from the former policy.
    Kl = "kl",
}

impl Meaning {
    /// Returns the meaning with this key.
    pub fn with_key(key: &str) -> Option<Meaning> {
        Meaning::ALL.iter().copied().find(|meaning| meaning.key() == key)
    }

    /// Returns whether its values count how far training is.
    pub fn is_count(self) -> bool {
        matches!(self, Meaning::Step | Meaning::Iteration | Meaning::Epoch)
    }

    /// Returns whether its values are results of training: no configuration has a value of this name.
    pub fn is_result(self) -> bool {
        match self {
            Meaning::Return
            | Meaning::Length
            | Meaning::EvalReturn
            | Meaning::EvalLength
            | Meaning::StepsPerSecond
            | Meaning::Loss
            | Meaning::PolicyLoss
            | Meaning::ValueLoss
            | Meaning::Entropy
            | Meaning::Kl => true,
            Meaning::Step | Meaning::Iteration | Meaning::Epoch | Meaning::LearningRate => false,
        }
    }
}

/// Last parts of names, in lower case with `_` between words, the preferred one of each meaning first. Those with
/// `/` need the part before it, too.
const TABLE: &[(&str, Meaning)] = &[
    // The built-in trainer, CleanRL.
    ("return_last_100", Meaning::Return),
    ("episodic_return", Meaning::Return),
    // Stable-Baselines3, RLlib before and since its new API, Tianshou, PufferLib, rsl_rl, skrl, rl_games, DI-engine.
    ("ep_rew_mean", Meaning::Return),
    ("episode_reward_mean", Meaning::Return),
    ("episode_return_mean", Meaning::Return),
    ("mean_episode_return", Meaning::Return),
    ("mean_episode_reward", Meaning::Return),
    ("mean_episodic_return", Meaning::Return),
    ("total_reward_(mean)", Meaning::Return),
    ("mean_reward", Meaning::Return),
    ("reward_mean", Meaning::Return),
    ("mean_return", Meaning::Return),
    ("return_mean", Meaning::Return),
    ("average_reward", Meaning::Return),
    ("average_return", Meaning::Return),
    ("avg_reward", Meaning::Return),
    ("avg_return", Meaning::Return),
    ("rewards/iter", Meaning::Return),
    ("rewards/step", Meaning::Return),
    ("rewards/time", Meaning::Return),
    ("episode_return", Meaning::Return),
    ("episode_returns", Meaning::Return),
    ("episode_reward", Meaning::Return),
    ("episode_rewards", Meaning::Return),
    ("ep_return", Meaning::Return),
    ("ep_reward", Meaning::Return),
    ("ep_ret", Meaning::Return),
    ("epret", Meaning::Return),
    ("averageepret", Meaning::Return),
    // OpenAI's baselines, TF-Agents, Dopamine, rlkit, Tianshou since 1.0, ML-Agents, DreamerV3, verl.
    ("eprewmean", Meaning::Return),
    ("averagereturn", Meaning::Return),
    ("averagereturns", Meaning::Return),
    ("average_returns", Meaning::Return),
    ("returns_mean", Meaning::Return),
    ("returns_stat/mean", Meaning::Return),
    ("cumulative_reward", Meaning::Return),
    ("episode/score", Meaning::Return),
    ("rewards/mean", Meaning::Return),
    ("score/mean", Meaning::Return),
    ("average_score", Meaning::Return),
    ("avg_score", Meaning::Return),
    ("mean_score", Meaning::Return),
    ("episode_score", Meaning::Return),
    // TRL's PPO.
    ("rlhf_reward", Meaning::Return),
    ("return", Meaning::Return),
    ("returns", Meaning::Return),
    ("rewards", Meaning::Return),
    ("reward", Meaning::Return),
    ("rew", Meaning::Return),
    ("episodic_length", Meaning::Length),
    ("ep_len_mean", Meaning::Length),
    ("episode_len_mean", Meaning::Length),
    ("mean_episode_length", Meaning::Length),
    ("episode_length", Meaning::Length),
    ("episode_lengths", Meaning::Length),
    ("episode_lengths/iter", Meaning::Length),
    ("episode_lengths/step", Meaning::Length),
    ("episode_lengths/time", Meaning::Length),
    ("mean_ep_length", Meaning::Length),
    ("ep_length", Meaning::Length),
    ("ep_len", Meaning::Length),
    ("eplen", Meaning::Length),
    ("eplenmean", Meaning::Length),
    ("averageepisodelength", Meaning::Length),
    ("lens_stat/mean", Meaning::Length),
    ("episode/length", Meaning::Length),
    // Sample Factory, skrl.
    ("len/len", Meaning::Length),
    ("episode/total_timesteps_(mean)", Meaning::Length),
    ("env_step", Meaning::Step),
    ("env_steps", Meaning::Step),
    ("total_env_steps", Meaning::Step),
    ("num_env_steps", Meaning::Step),
    ("envstep", Meaning::Step),
    ("total_envstep_count", Meaning::Step),
    ("num_env_steps_sampled_lifetime", Meaning::Step),
    ("timesteps_total", Meaning::Step),
    ("num_timesteps", Meaning::Step),
    ("total_timesteps", Meaning::Step),
    ("agent_steps", Meaning::Step),
    ("total_steps", Meaning::Step),
    ("global_step", Meaning::Step),
    ("frames", Meaning::Step),
    ("timestep", Meaning::Step),
    ("timesteps", Meaning::Step),
    ("time_step", Meaning::Step),
    // Spinning Up, TF-Agents, OpenAI's baselines, rlpyt, and the code of TD3's authors.
    ("totalenvinteracts", Meaning::Step),
    ("environmentsteps", Meaning::Step),
    ("environment_steps", Meaning::Step),
    ("timestepssofar", Meaning::Step),
    ("cumsteps", Meaning::Step),
    ("total_t", Meaning::Step),
    ("step", Meaning::Step),
    ("steps", Meaning::Step),
    ("train_iter", Meaning::Iteration),
    ("training_iteration", Meaning::Iteration),
    ("learning_iteration", Meaning::Iteration),
    ("iteration", Meaning::Iteration),
    ("iterations", Meaning::Iteration),
    ("iter", Meaning::Iteration),
    ("update", Meaning::Iteration),
    // Composer.
    ("time/batch", Meaning::Iteration),
    ("epoch", Meaning::Epoch),
    ("sps", Meaning::StepsPerSecond),
    ("fps", Meaning::StepsPerSecond),
    ("fps_total", Meaning::StepsPerSecond),
    ("steps_per_second", Meaning::StepsPerSecond),
    ("steps_per_s", Meaning::StepsPerSecond),
    ("steps/s", Meaning::StepsPerSecond),
    ("steps_per_sec", Meaning::StepsPerSecond),
    ("stepspersecond", Meaning::StepsPerSecond),
    ("env_steps_per_second", Meaning::StepsPerSecond),
    ("env_steps_per_sec", Meaning::StepsPerSecond),
    ("avg_envstep_per_sec", Meaning::StepsPerSecond),
    ("performance/step_fps", Meaning::StepsPerSecond),
    ("learning_rate", Meaning::LearningRate),
    ("cur_lr_avg", Meaning::LearningRate),
    ("cur_lr", Meaning::LearningRate),
    ("lr", Meaning::LearningRate),
    ("loss", Meaning::Loss),
    ("train_loss", Meaning::Loss),
    ("training_loss", Meaning::Loss),
    ("total_loss", Meaning::Loss),
    ("total_loss_avg", Meaning::Loss),
    // Composer, TRL.
    ("loss/train/total", Meaning::Loss),
    ("loss/total", Meaning::Loss),
    ("policy_loss", Meaning::PolicyLoss),
    ("policy_gradient_loss", Meaning::PolicyLoss),
    ("pg_loss", Meaning::PolicyLoss),
    ("actor_loss", Meaning::PolicyLoss),
    // Spinning Up.
    ("losspi", Meaning::PolicyLoss),
    ("lossv", Meaning::ValueLoss),
    ("lossq", Meaning::ValueLoss),
    ("loss/policy_avg", Meaning::PolicyLoss),
    ("loss/policy", Meaning::PolicyLoss),
    ("value_loss", Meaning::ValueLoss),
    ("value_function_loss", Meaning::ValueLoss),
    ("v_loss", Meaning::ValueLoss),
    ("vf_loss", Meaning::ValueLoss),
    ("critic_loss", Meaning::ValueLoss),
    ("q_loss", Meaning::ValueLoss),
    ("qf_loss", Meaning::ValueLoss),
    ("td_loss", Meaning::ValueLoss),
    ("loss/value_avg", Meaning::ValueLoss),
    ("loss/value", Meaning::ValueLoss),
    ("entropy", Meaning::Entropy),
    ("entropy_loss", Meaning::Entropy),
    ("entropy_avg", Meaning::Entropy),
    ("kl", Meaning::Kl),
    ("approx_kl", Meaning::Kl),
    ("approxkl_avg", Meaning::Kl),
    // RLlib.
    ("mean_kl_loss", Meaning::Kl),
];

/// A row of the table.
struct KnownName {
    /// The part before the last one, if that matters.
    part: &'static str,
    place: usize,
    meaning: Meaning,
}

/// Rows of the table by their last parts.
fn index() -> &'static HashMap<&'static str, Vec<KnownName>> {
    static INDEX: OnceLock<HashMap<&'static str, Vec<KnownName>>> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index: HashMap<&'static str, Vec<KnownName>> = HashMap::new();
        for (place, (pattern, meaning)) in TABLE.iter().enumerate() {
            let (part, last) = pattern.rsplit_once('/').unwrap_or(("", pattern));
            index.entry(last).or_default().push(KnownName { part, place, meaning: *meaning });
        }
        index
    })
}

/// Groups of series about evaluations; what begins with `eval` is one as well.
const EVALUATIONS: [&str; 5] = ["test", "testing", "val", "valid", "validation"];

/// Returns the meaning of a name, and its place in the table: the smaller, the better the name.
fn find(name: &str) -> Option<(usize, Meaning)> {
    if name.is_empty() || name.len() > NAME {
        return None;
    }
    let name = plain(name);
    let (group, last) = name.rsplit_once('/').unwrap_or(("", name.as_str()));
    let evaluates = |word: &str| word.starts_with("eval") || EVALUATIONS.contains(&word);
    let (in_group, bare) = match last.split_once('_') {
        // `eval_reward`, but not `eval` alone.
        Some((first, rest)) if evaluates(first) => (true, rest),
        _ => (group.split('/').any(evaluates), last),
    };
    let is_in = |part: &str| part.is_empty() || ends_with_part(group, part);
    let candidates = index().get(bare).map_or(&[][..], Vec::as_slice);
    let found = candidates.iter().find(|candidate| is_in(candidate.part));
    let found = found.map(|candidate| (candidate.place, candidate.meaning));
    let (place, meaning) = found.or_else(|| by_ending(bare)).or_else(|| of_training(bare))?;
    match (in_group, meaning) {
        (false, meaning) => Some((place, meaning)),
        (true, Meaning::Return) => Some((place, Meaning::EvalReturn)),
        (true, Meaning::Length) => Some((place, Meaning::EvalLength)),
        // Losses and counts of evaluations are others than those of training.
        (true, _) => None,
    }
}

/// Families of names.
fn by_ending(last: &str) -> Option<(usize, Meaning)> {
    let meaning = match last {
        kl if kl.ends_with("approx_kl") && !kl.starts_with("old") => Meaning::Kl,
        // One of several critics: `qf1_loss`.
        loss if loss.starts_with("qf") && loss.ends_with("_loss") => Meaning::ValueLoss,
        _ => return None,
    };
    Some((TABLE.len(), meaning))
}

/// `train_return`: the name behind the word. Counts of training are others than those of the run: `train_steps`.
fn of_training(last: &str) -> Option<(usize, Meaning)> {
    let name = last.strip_prefix("train_").or_else(|| last.strip_prefix("training_"))?;
    let mut rows = index().get(name)?.iter().filter(|row| row.part.is_empty());
    rows.next().filter(|row| row.meaning.is_result()).map(|row| (TABLE.len(), row.meaning))
}

fn ends_with_part(group: &str, part: &str) -> bool {
    group.strip_suffix(part).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// `rollout/ep_rew_mean` of `Rollout / Ep-Rew mean`.
fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    for sign in name.trim().chars() {
        let sign = match sign {
            '-' | ' ' | '\t' | '_' => '_',
            '/' | '.' | ':' => '/',
            other => other.to_ascii_lowercase(),
        };
        let joins = |sign: char| sign == '_' || sign == '/';
        match (plain.chars().next_back(), sign) {
            (None, '_') => {}
            (Some('_'), '/') => {
                plain.pop();
                if !plain.ends_with('/') {
                    plain.push('/');
                }
            }
            (Some(last), sign) if joins(last) && joins(sign) => {}
            _ => plain.push(sign),
        }
    }
    plain
}

/// The meanings of a program's names: those that the user assigns (`metrics.names`), then the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meanings {
    assigned: Vec<(Meaning, String)>,
}

impl Meanings {
    /// Returns the meanings under `metrics.names`; unknown keys are ignored.
    pub fn new(names: &BTreeMap<String, String>) -> Meanings {
        let assigned = names.iter().filter_map(|(key, name)| Some((Meaning::with_key(key)?, name.clone())));
        Meanings { assigned: assigned.collect() }
    }

    /// Returns the meaning of a name.
    pub fn of(&self, name: &str) -> Option<Meaning> {
        self.place(name).map(|(_, meaning)| meaning)
    }

    fn place(&self, name: &str) -> Option<(usize, Meaning)> {
        if let Some((meaning, _)) = self.assigned.iter().find(|(_, assigned)| assigned == name) {
            return Some((0, *meaning));
        }
        let (place, meaning) = find(name)?;
        // The user has named another one.
        let is_free = self.assigned.iter().all(|(assigned, _)| *assigned != meaning);
        is_free.then_some((place + 1, meaning))
    }

    /// Returns the best of some names for a meaning.
    pub fn best<'a>(&self, meaning: Meaning, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let places = names.into_iter().filter_map(|name| {
            let (place, found) = self.place(name)?;
            (found == meaning).then_some((place, name))
        });
        // Of equally good ones the first.
        places.min_by_key(|(place, _)| *place).map(|(_, name)| name)
    }

    /// Returns the value with this meaning.
    pub fn value(&self, meaning: Meaning, values: &BTreeMap<String, f64>) -> Option<f64> {
        values.get(self.best(meaning, values.keys().map(String::as_str))?).copied()
    }
}

/// Most patterns of one experiment.
pub(crate) const PATTERNS: usize = 64;
/// Largest compiled pattern, bytes.
const SIZE: usize = 1 << 20;

/// Built-in sets of patterns, for `metrics.presets`.
pub(crate) const PRESETS: [(&str, &[&str]); 1] = [(
    "cleanrl",
    &[
        // `print(f"global_step={global_step}, episodic_return={info['episode']['r']}")`, with the array
        // brackets of newer Gymnasium.
        r"global_step=(?P<env_step>\d+), episodic_return=\[?\s*(?P<return>[-+0-9.eE]+|[-+]?nan|[-+]?inf)",
        r"^SPS: (?P<SPS>\d+)",
    ],
)];

/// Compiles the patterns in their order, presets first.
///
/// # Errors
/// All errors in presets and patterns, each with its key.
pub fn compile_patterns(metrics: &Metrics) -> Result<Vec<Regex>, Vec<PlanError>> {
    let (mut patterns, mut wrong) = (Vec::new(), Vec::new());
    for (index, name) in metrics.presets.iter().enumerate() {
        match PRESETS.iter().find(|(preset, _)| preset == name) {
            Some((_, texts)) => patterns.extend(texts.iter().filter_map(|text| pattern(text).ok())),
            None => {
                let known = PRESETS.map(|(name, _)| format!("`{name}`")).join(", ");
                wrong.push(PlanError::new(
                    format!("metrics.presets.{index}"),
                    format!("unknown preset `{name}`"),
                    format!("known presets: {known}"),
                ));
            }
        }
    }
    for (index, text) in metrics.stdout.iter().enumerate() {
        match pattern(text) {
            Ok(pattern) => patterns.push(pattern),
            Err((error, hint)) => {
                wrong.push(PlanError::new(format!("metrics.stdout.{index}"), error, hint));
            }
        }
    }
    for key in metrics.names.keys().filter(|key| Meaning::with_key(key).is_none()) {
        let known: Vec<String> = Meaning::ALL.iter().map(|meaning| format!("`{}`", meaning.key())).collect();
        wrong.push(PlanError::new(
            format!("metrics.names.{key}"),
            format!("unknown meaning `{key}`"),
            format!("known meanings: {}", known.join(", ")),
        ));
    }
    if patterns.len() > PATTERNS {
        let error = format!("{} patterns, limit {PATTERNS}", patterns.len());
        wrong.push(PlanError::new("metrics.stdout", error, "remove some patterns"));
    }
    if wrong.is_empty() { Ok(patterns) } else { Err(wrong) }
}

fn pattern(text: &str) -> Result<Regex, (String, String)> {
    let pattern = RegexBuilder::new(text).size_limit(SIZE).build().map_err(|error| {
        (
            format!("invalid pattern `{text}`: {error}"),
            "write it as a TOML literal string, in single quotes: 'loss=(?P<loss>[0-9.]+)'".to_owned(),
        )
    })?;
    match pattern.capture_names().flatten().next() {
        Some(_) => Ok(pattern),
        None => Err((
            format!("pattern `{text}` has no named group"),
            "name the value: `(?P<loss>[-+0-9.eE]+)`".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<Meaning> {
        Meanings::default().of(name)
    }

    #[test]
    fn meaning_1_names_of_frameworks_are_known() {
        for (name, meaning) in [
            ("charts/episodic_return", Meaning::Return),
            ("charts/return_last_100", Meaning::Return),
            ("rollout/ep_rew_mean", Meaning::Return),
            ("env_runners/episode_return_mean", Meaning::Return),
            ("rewards/iter", Meaning::Return),
            ("Reward / Total reward (mean)", Meaning::Return),
            ("Mean reward", Meaning::Return),
            ("collector_step/reward_mean", Meaning::Return),
            ("EpRet", Meaning::Return),
            ("eprewmean", Meaning::Return),
            ("Metrics/AverageReturn", Meaning::Return),
            ("Train/AverageReturns", Meaning::Return),
            ("exploration/Returns Mean", Meaning::Return),
            ("train/returns_stat/mean", Meaning::Return),
            ("Environment/Cumulative Reward", Meaning::Return),
            ("episode/score", Meaning::Return),
            ("critic/score/mean", Meaning::Return),
            ("critic/rewards/mean", Meaning::Return),
            ("Average Score", Meaning::Return),
            ("reward/reward", Meaning::Return),
            ("train_return", Meaning::Return),
            ("training_episode_reward", Meaning::Return),
            ("train_policy_loss", Meaning::PolicyLoss),
            ("evaluation/Average Returns", Meaning::EvalReturn),
            ("test/returns_stat/mean", Meaning::EvalReturn),
            ("eval/Metrics/AverageReturn", Meaning::EvalReturn),
            ("test/lens_stat/mean", Meaning::EvalLength),
            ("Episode / Total timesteps (mean)", Meaning::Length),
            ("Environment/Episode Length", Meaning::Length),
            ("episode/length", Meaning::Length),
            ("len/len", Meaning::Length),
            ("TotalEnvInteracts", Meaning::Step),
            ("Total T", Meaning::Step),
            ("Metrics/EnvironmentSteps", Meaning::Step),
            ("charts/eval_return", Meaning::EvalReturn),
            ("eval/mean_reward", Meaning::EvalReturn),
            ("evaluator_step/reward_mean", Meaning::EvalReturn),
            ("test_reward", Meaning::EvalReturn),
            ("eval/mean_ep_length", Meaning::EvalLength),
            ("rollout/ep_len_mean", Meaning::Length),
            ("time/total_timesteps", Meaning::Step),
            ("global-step", Meaning::Step),
            ("Epoch", Meaning::Epoch),
            ("time/fps", Meaning::StepsPerSecond),
            ("charts/SPS", Meaning::StepsPerSecond),
            ("train/learning_rate", Meaning::LearningRate),
            ("train/loss", Meaning::Loss),
            ("losses/qf1_loss", Meaning::ValueLoss),
            ("train/approx_kl", Meaning::Kl),
            ("learners/default_policy/mean_kl_loss", Meaning::Kl),
            ("info/learner/default_policy/learner_stats/vf_loss", Meaning::ValueLoss),
            ("env_runners/num_env_steps_sampled_lifetime", Meaning::Step),
            ("evaluation/env_runners/episode_return_mean", Meaning::EvalReturn),
            ("objective/rlhf_reward", Meaning::Return),
            ("policy/approxkl_avg", Meaning::Kl),
            ("loss/policy_avg", Meaning::PolicyLoss),
            ("ppo/loss/value", Meaning::ValueLoss),
            ("loss/train/total", Meaning::Loss),
            ("time/batch", Meaning::Iteration),
        ] {
            assert_eq!(of(name), Some(meaning), "{name}");
        }
    }

    #[test]
    fn meaning_1_other_names_have_none() {
        for name in [
            "",
            "eval",
            "eval/loss",
            "val_loss",
            "reward_std",
            "best_reward",
            "entropy_coef",
            "losses/old_approx_kl",
            "target_kl",
            "batch_size",
            "/",
            "evaluator/envstep_count",
            "train_steps",
            "train_batch_size",
            "train_",
            "prompt_length/mean",
            "rewards/accuracy_reward/mean",
            "score",
            &"step".repeat(40),
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn best_name_is_the_steadiest() {
        let names = ["a/reward", "charts/episodic_return", "charts/return_last_100"];
        let best = |some: &[&'static str]| Meanings::default().best(Meaning::Return, some.iter().copied());
        assert_eq!(best(&names), Some("charts/return_last_100"));
        assert_eq!(best(&names[..2]), Some("charts/episodic_return"));
        assert_eq!(best(&["loss"]), None);
        let values = [("reward".to_owned(), 1.0), ("ep_rew_mean".to_owned(), 2.0)].into();
        assert_eq!(Meanings::default().value(Meaning::Return, &values), Some(2.0));
    }

    #[test]
    fn assigned_name_replaces_the_table() {
        let names = [("return".to_owned(), "my/score".to_owned()), ("typo".to_owned(), "x".to_owned())];
        let own = Meanings::new(&names.into());
        assert_eq!(own.of("my/score"), Some(Meaning::Return));
        assert_eq!(own.of("charts/episodic_return"), None, "the user has named another one");
        assert_eq!(own.of("eval/mean_reward"), Some(Meaning::EvalReturn));
    }

    #[test]
    fn keys_are_distinct_and_found() {
        for meaning in Meaning::ALL {
            assert_eq!(Meaning::with_key(meaning.key()), Some(*meaning));
        }
        assert_eq!(Meaning::with_key("x"), None);
    }

    fn with(presets: &[&str], stdout: &[&str]) -> Metrics {
        let own = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
        Metrics { presets: own(presets), stdout: own(stdout), ..Metrics::default() }
    }

    #[test]
    fn cleanrl_preset_matches_its_prints() {
        let patterns = compile_patterns(&with(&["cleanrl"], &[])).unwrap();
        let find = |line: &str| {
            patterns.iter().find_map(|pattern| pattern.captures(line)).map(|found| {
                let name = |name: &str| found.name(name).map(|value| value.as_str().to_owned());
                (name("env_step"), name("return"), name("SPS"))
            })
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(find("global_step=1234, episodic_return=21.0"), Some((some("1234"), some("21.0"), None)));
        assert_eq!(find("global_step=8, episodic_return=[-3.5]"), Some((some("8"), some("-3.5"), None)));
        assert_eq!(find("global_step=8, episodic_return=[nan]"), Some((some("8"), some("nan"), None)));
        assert_eq!(find("SPS: 2048"), Some((None, None, some("2048"))));
        assert_eq!(find("warning: SPS"), None);
    }

    #[test]
    fn invalid_pattern_names_its_key() {
        for (presets, stdout) in
            [(&["nope"][..], &[][..]), (&[][..], &["(", "x"][..]), (&[][..], &["loss=(.*)"][..])]
        {
            let wrong = compile_patterns(&with(presets, stdout)).unwrap_err();
            assert!(wrong.iter().all(|one| !one.cause.error.is_empty() && !one.cause.hint.is_empty()));
        }
        let wrong = compile_patterns(&with(&["cleanlr"], &["a(?P<a>b)", "("])).unwrap_err();
        let keys: Vec<&str> = wrong.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["metrics.presets.0", "metrics.stdout.1"]);
        let names = [("return".to_owned(), "x".to_owned()), ("retrun".to_owned(), "x".to_owned())].into();
        let wrong = compile_patterns(&Metrics { names, ..Metrics::default() }).unwrap_err();
        assert_eq!(wrong.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["metrics.names.retrun"]);
    }
}
