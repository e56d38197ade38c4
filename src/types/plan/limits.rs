//! Checks an experiment for what the built-in trainer does not support or would ignore, and for sizes that
//! the ranks cannot share; splits the sizes. Each error has the key to change.
//!
//! The console calls it before anything starts, and every rank before it waits for others. Checks that need
//! the environment itself (its spaces) run in the ranks.

use super::{PlanError, PlannedSize};
use crate::experiment::{
    BUILTIN_ENVS, Env, EnvWorker, Experiment, Kernel, NetworkKind, OnRankLoss, Policy, Precision,
};
use crate::learn::{ActionKind, Learn, NormAdv};

/// What ids of EnvPool begin with.
const ENVPOOL: &str = "envpool:";

/// Environments of [`BUILTIN_ENVS`] whose actions are continuous.
const CONTINUOUS: [&str; 2] = ["Pendulum-v1", "MountainCarContinuous-v0"];

/// Returns all errors that do not depend on the number of ranks; for a program of the user, only those of promises that
/// the built-in trainer alone keeps.
pub fn problems(experiment: &Experiment) -> Vec<PlanError> {
    if !experiment.launch.command.is_empty() && experiment.distributed.on_rank_loss == OnRankLoss::Shrink {
        return vec![PlanError::new(
            "distributed.on_rank_loss",
            "`distributed.on_rank_loss = \"shrink\"` needs the built-in trainer: `launch.command` is set",
            "remove `distributed.on_rank_loss`; `[restart]` restarts any program",
        )];
    }
    let (Some(learn), Some(env)) = (&experiment.learn, &experiment.env) else { return Vec::new() };
    if !experiment.launch.command.is_empty() {
        return Vec::new();
    }
    let mut found = environment(env, learn, &experiment.policy);
    found.extend(unused_keys(experiment, env, learn));
    found.extend(never_learns(experiment, learn));
    found
}

/// Checks that need only the id of the environment.
fn environment(env: &Env, learn: &Learn, policy: &Policy) -> Vec<PlanError> {
    let mut found = Vec::new();
    let id = env.id.as_str();
    // Of a library or a factory, the id is a name only.
    let is_name = env.library.is_some() || env.vector.is_some();
    let builtin = !is_name && env.is_builtin() && BUILTIN_ENVS.contains(&id);
    let atari = !is_name && env.is_atari();
    let continuous = CONTINUOUS.contains(&id);
    let (name, actions) = (learn.name(), learn.actions());
    if (builtin || atari) && actions == ActionKind::Continuous && !continuous {
        found.push(PlanError::new(
            "learn.algorithm",
            format!("`{name}` needs continuous actions; `{id}` has discrete actions"),
            "set `learn.algorithm = \"dqn\"`, or choose another `env.id`",
        ));
    }
    if builtin && actions == ActionKind::Discrete && continuous {
        found.push(PlanError::new(
            "learn.algorithm",
            format!("`{name}` needs discrete actions; `{id}` has continuous actions"),
            "set `learn.algorithm = \"sac\"`, or choose another `env.id`",
        ));
    }
    let python_keys = env.python_keys();
    if let Some(key) = python_keys.first().filter(|_| env.worker == EnvWorker::Rust) {
        found.push(PlanError::new(
            format!("env.{key}"),
            format!("`env.{key}` has no effect: `env.worker` is `rust`"),
            format!("remove `env.{key}`, or set `env.worker = \"python\"`"),
        ));
    }
    let own = "`env.library` steps its environments";
    let games = "ale-py steps all Atari games of a rank in one process";
    for (wrong, key, why) in [
        (env.library.is_some(), "workers", own),
        (env.library.is_some(), "wrappers", own),
        (env.library.is_some(), "vector", own),
        (env.library.is_some(), "channels", own),
        (env.library.is_some(), "action_masks", own),
        (env.is_atari() && env.vector.is_none(), "kwargs", games),
        (env.is_atari() && env.vector.is_none(), "wrappers", games),
        (env.is_atari() && env.vector.is_none(), "workers", games),
        (env.is_atari() && env.vector.is_none(), "channels", "frames of Atari games are stacked first"),
        (env.is_atari() && env.vector.is_none(), "action_masks", "Atari games allow all actions"),
        (env.vector.is_some(), "wrappers", "the factory of `env.vector` wraps its environments"),
        (id.starts_with(ENVPOOL), "wrappers", "EnvPool steps its environments in C++"),
        (id.starts_with(ENVPOOL), "vector", "`env.id` selects EnvPool"),
    ] {
        if wrong && python_keys.contains(&key) {
            found.push(PlanError::new(
                format!("env.{key}"),
                format!("`env.{key}` has no effect: {why}"),
                format!("remove `env.{key}`"),
            ));
        }
    }
    if env.max_episode_steps.is_some() && (env.vector.is_some() || id.starts_with(ENVPOOL)) {
        found.push(PlanError::new(
            "env.max_episode_steps",
            "`env.max_episode_steps` has no effect: the vector environment limits its own episodes",
            "pass the limit in `env.kwargs`, for example `max_episode_steps = 500`",
        ));
    }
    let images = policy.network != NetworkKind::Mlp;
    if images && (builtin || actions == ActionKind::Continuous) {
        let why = match builtin {
            true => format!("`{id}` has flat observations"),
            false => format!("`{name}` supports only fully connected networks"),
        };
        found.push(PlanError::new(
            "policy.network",
            format!("`policy.network` needs images: {why}"),
            "set `policy.network = \"mlp\"`",
        ));
    }
    found
}

/// Reports keys that are set and have no effect.
fn unused_keys(experiment: &Experiment, env: &Env, learn: &Learn) -> Vec<PlanError> {
    let Experiment { policy, collect, distributed, checkpoint, .. } = experiment;
    let name = learn.name();
    let off_policy = learn.on_policy().is_none();
    let dense = policy.network == NetworkKind::Mlp;
    let of = |others: &str| format!("only {others} use it, not `{name}`");
    let for_images = || "it applies to networks for images, but `policy.network` is `mlp`".to_owned();
    let builtin = env.is_builtin() && BUILTIN_ENVS.contains(&env.id.as_str());
    let rows: [(bool, &str, String); 17] = [
        (off_policy && collect.normalise_observations, "collect.normalise_observations", of(ON)),
        (off_policy && collect.normalise_rewards, "collect.normalise_rewards", of(ON)),
        (
            !collect.normalise_observations && collect.clip_observations != 10.0,
            "collect.clip_observations",
            "`collect.normalise_observations` is false".into(),
        ),
        (
            !collect.normalise_rewards && collect.clip_rewards != 10.0,
            "collect.clip_rewards",
            "`collect.normalise_rewards` is false".into(),
        ),
        (
            distributed.data_parallel > 1 && !matches!(learn, Learn::Dqn(_)),
            "distributed.data_parallel",
            format!("only `dqn` uses it, not `{name}`"),
        ),
        (off_policy && policy.shared, "policy.shared", of(ON)),
        (off_policy && policy.log_std != 0.0, "policy.log_std", of(ON)),
        (dense && policy.channels.is_some(), "policy.channels", "`policy.network` is `mlp`".into()),
        (dense && policy.channels_last, "policy.channels_last", for_images()),
        (dense && policy.precision != Precision::F32, "policy.precision", for_images()),
        (dense && policy.cudnn_benchmark, "policy.cudnn_benchmark", for_images()),
        (off_policy && collect.double_buffer, "collect.double_buffer", of(ON)),
        (
            !off_policy && builtin && collect.double_buffer,
            "collect.double_buffer",
            format!("`{}` runs in the trainer; `env.worker = \"python\"` uses Gymnasium's", env.id),
        ),
        (
            !off_policy && !matches!(learn, Learn::Ppg(_)) && checkpoint.replay,
            "checkpoint.replay",
            of("`dqn`, `sac`, `td3` and `ppg`"),
        ),
        (
            env.uses_masks() && !matches!(learn, Learn::Ppo(_) | Learn::A2c(_)),
            "env.action_masks",
            of("`ppo` and `a2c`"),
        ),
        (
            env.worker_threads.is_some() && !env.is_atari(),
            "env.worker_threads",
            format!("it applies to Atari games, and `{}` is not one", env.id),
        ),
        (
            policy.kernel == Kernel::Native
                && (!dense
                    || distributed.data_parallel > 1
                    || env.uses_masks()
                    || matches!(learn, Learn::Sac(_) | Learn::Td3(_) | Learn::Ppg(_))),
            "policy.kernel",
            "the native kernel supports fully connected networks of `ppo`, `a2c` and `dqn` on the CPU, without \
             action masks"
                .into(),
        ),
    ];
    let unused = rows.into_iter().filter(|(set, ..)| *set);
    unused
        .map(|(_, key, why)| {
            PlanError::new(key, format!("`{key}` has no effect: {why}"), format!("remove `{key}`"))
        })
        .collect()
}

const ON: &str = "`ppo`, `ppg` and `a2c`";

/// Reports a run that ends before it learns.
fn never_learns(experiment: &Experiment, learn: &Learn) -> Option<PlanError> {
    let starts = learn.replay()?.learning_starts;
    let total = experiment.run.total_steps;
    (total > 0 && starts >= total).then(|| {
        PlanError::new(
            "learn.learning_starts",
            format!("the run ends after {total} steps, before learning starts at {starts}"),
            "lower `learn.learning_starts`, or raise `run.total_steps`",
        )
    })
}

/// Sizes before they are split.
struct GlobalSizes {
    envs: u64,
    steps: u64,
    minibatches: u64,
}

fn global(experiment: &Experiment) -> Option<(GlobalSizes, &Learn)> {
    if !experiment.launch.command.is_empty() {
        return None;
    }
    let learn = experiment.learn.as_ref()?;
    let envs = u64::from(experiment.env.as_ref()?.num_envs);
    let (steps, minibatches) = (u64::from(experiment.collect.num_steps), u64::from(learn.num_minibatches()));
    Some((GlobalSizes { envs, steps, minibatches }, learn))
}

fn size_error(error: String, hint: String, key: &str) -> Option<PlanError> {
    Some(PlanError::new(key, error, hint))
}

/// Returns the multiples of `world` below and above `size`, for hints.
fn multiples(size: u64, world: u64) -> String {
    let (below, above) = (size / world * world, (size / world + 1) * world);
    if below == 0 { format!("{above}") } else { format!("{below} or {above}") }
}

/// Returns the first size that `world` ranks cannot share (PLAN-2).
pub fn size_problem(experiment: &Experiment, world: u64) -> Option<PlanError> {
    let (GlobalSizes { envs, steps, .. }, learn) = global(experiment)?;
    let world = world.max(1);
    if envs == 0 || !envs.is_multiple_of(world) {
        return size_error(
            format!("cannot split {envs} environments evenly across {world} ranks"),
            format!("set `env.num_envs` to a multiple of {world}, such as {}", multiples(envs, world)),
            "env.num_envs",
        );
    }
    let local_envs = envs / world;
    if experiment.collect.double_buffer && !local_envs.is_multiple_of(2) {
        let whole = 2 * world;
        return size_error(
            format!("cannot split the {local_envs} environments of each rank into two halves"),
            format!("set `env.num_envs` to a multiple of {whole}, such as {}", multiples(envs, whole)),
            "env.num_envs",
        );
    }
    let own = match learn.replay() {
        Some(replay) => replay_problem(u64::from(replay.batch_size), replay.buffer_size, local_envs, world),
        None => rollout_problem(experiment, learn, local_envs),
    };
    if own.is_some() {
        return own;
    }
    let (batch, total) = (envs * steps, experiment.run.total_steps);
    if total > 0 && total < batch {
        return size_error(
            format!("`run.total_steps = {total}` is less than one rollout of {batch} steps over all ranks"),
            format!("set `run.total_steps` to {batch} or more, or shorten `collect.num_steps`"),
            "run.total_steps",
        );
    }
    None
}

fn rollout_problem(experiment: &Experiment, learn: &Learn, local_envs: u64) -> Option<PlanError> {
    let local = local_envs * u64::from(experiment.collect.num_steps);
    let minibatches = u64::from(learn.num_minibatches());
    if minibatches == 0 || !local.is_multiple_of(minibatches) {
        return size_error(
            format!("cannot split each rank's rollout of {local} transitions into {minibatches} minibatches"),
            format!(
                "set `learn.num_minibatches` to a divisor of {local}, such as {}",
                divisor(local, minibatches)
            ),
            "learn.num_minibatches",
        );
    }
    // A minibatch is larger over all ranks, but a world of one must be able to resume it.
    if learn.norm_adv() != NormAdv::Off && local / minibatches < 2 {
        return size_error(
            "each rank's minibatch has 1 transition, too few to normalize advantages".into(),
            "set a smaller `learn.num_minibatches`, or `learn.norm_adv = false`".into(),
            "learn.num_minibatches",
        );
    }
    if let Learn::Ppg(ppg) = learn {
        let units = u64::from(ppg.policy_iterations) * local_envs;
        let minibatches = u64::from(ppg.aux_num_minibatches);
        if minibatches == 0 || !units.is_multiple_of(minibatches) {
            return size_error(
                format!(
                    "cannot split the {units} rollouts of single environments per rank and policy phase into \
                     {minibatches} minibatches"
                ),
                format!(
                    "set `learn.aux_num_minibatches` to a divisor of {units}, such as {}",
                    divisor(units, minibatches)
                ),
                "learn.aux_num_minibatches",
            );
        }
    }
    None
}

fn divisor(of: u64, at_most: u64) -> u64 {
    (1..=at_most.min(of)).rev().find(|count| of.is_multiple_of(*count)).unwrap_or(1)
}

fn replay_problem(batch: u64, buffer: u64, local_envs: u64, world: u64) -> Option<PlanError> {
    if batch == 0 || !batch.is_multiple_of(world) {
        return size_error(
            format!("cannot split a batch of {batch} transitions evenly across {world} ranks"),
            format!("set `learn.batch_size` to a multiple of {world}, such as {}", multiples(batch, world)),
            "learn.batch_size",
        );
    }
    let (rows, capacity) = (batch / world, buffer / world);
    let least = rows.max(local_envs);
    if capacity < least {
        return size_error(
            format!(
                "`learn.buffer_size = {buffer}` holds {capacity} transitions per rank, fewer than a batch of {rows} or one \
                 step of {local_envs} environments"
            ),
            format!("set `learn.buffer_size` to {} or more", least * world),
            "learn.buffer_size",
        );
    }
    None
}

/// Returns the sizes per rank.
pub(super) fn sizes(experiment: &Experiment, world: u64) -> Vec<PlannedSize> {
    let Some((GlobalSizes { envs, steps, minibatches }, learn)) = global(experiment) else {
        return Vec::new();
    };
    let collected = envs * steps;
    let split =
        |name: &str, global: u64| PlannedSize { name: name.to_owned(), local: global / world, global };
    let mut sizes = vec![split("num_envs", envs)];
    sizes.extend(match learn.replay() {
        Some(replay) => [split("collected", collected), split("batch", u64::from(replay.batch_size))],
        None => [split("batch", collected), split("minibatch", collected / minibatches)],
    });
    let iterations = experiment.run.total_steps / collected;
    if iterations > 0 {
        sizes.push(PlannedSize { name: "iterations".into(), local: iterations, global: iterations });
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(id: &str, algorithm: &str, rest: &str) -> Vec<String> {
        let (env, rest) = if rest.starts_with("worker") { (rest, "") } else { ("", rest) };
        let text = format!(
            "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = '{id}'\nnum_envs = 4\n{env}\
             [learn]\nalgorithm = '{algorithm}'\n{rest}"
        );
        let found = problems(&toml::from_str(&text).unwrap());
        assert!(found.iter().all(|one| !one.cause.error.is_empty() && !one.cause.hint.is_empty()));
        found.into_iter().map(|one| one.key).collect()
    }

    #[test]
    fn unsupported_combination_names_its_key() {
        for (id, algorithm, rest, key) in [
            ("CartPole-v1", "sac", "", "learn.algorithm"),
            ("PongNoFrameskip-v4", "sac", "", "learn.algorithm"),
            ("Acrobot-v1", "td3", "", "learn.algorithm"),
            ("Ant-v5", "td3", "[policy]\nnetwork = 'nature'\n", "policy.network"),
            ("Pendulum-v1", "dqn", "", "learn.algorithm"),
            ("CartPole-v1", "ppo", "[policy]\nnetwork = 'nature'\n", "policy.network"),
            ("Ant-v5", "sac", "[policy]\nnetwork = 'impala'\n", "policy.network"),
            ("CartPole-v1", "dqn", "learning_starts = 50000\n", "learn.learning_starts"),
        ] {
            assert_eq!(keys(id, algorithm, rest), [key], "{id} {algorithm} {rest}");
        }
    }

    #[test]
    fn script_cannot_shrink() {
        let keys = |launch: &str| -> Vec<String> {
            let text = format!("[run]\nname = 'x'\n{launch}[distributed]\non_rank_loss = 'shrink'\n");
            problems(&toml::from_str(&text).unwrap()).into_iter().map(|one| one.key).collect()
        };
        assert_eq!(keys("[launch]\ncommand = ['python3', 'train.py']\n"), ["distributed.on_rank_loss"]);
        assert!(keys("").is_empty());
    }

    #[test]
    fn key_without_effect_is_rejected() {
        for (algorithm, table, setting) in [
            ("dqn", "collect", "normalise_observations = true"),
            ("dqn", "collect", "normalise_rewards = true"),
            ("dqn", "policy", "shared = true"),
            ("dqn", "policy", "log_std = -1.0"),
            ("ppo", "distributed", "data_parallel = 2"),
            ("a2c", "distributed", "data_parallel = 2"),
            ("ppo", "checkpoint", "replay = true"),
            ("ppo", "policy", "channels = [1, 2, 3]"),
            ("ppo", "collect", "clip_rewards = 5.0"),
            ("ppo", "collect", "clip_observations = 5.0"),
            ("ppg", "policy", "kernel = 'native'"),
            ("ppo", "policy", "channels_last = true"),
            ("dqn", "policy", "precision = 'bf16'"),
            ("ppo", "policy", "cudnn_benchmark = true"),
            ("ppo", "collect", "double_buffer = true"),
            ("dqn", "collect", "double_buffer = true"),
        ] {
            let key = format!("{table}.{}", setting.split(' ').next().unwrap());
            assert_eq!(
                keys("CartPole-v1", algorithm, &format!("[{table}]\n{setting}\n")),
                [key],
                "{algorithm}"
            );
        }
        assert_eq!(keys("CartPole-v1", "ppo", "worker_threads = 8\n"), ["env.worker_threads"]);
        let masks = "worker = 'python'\naction_masks = true\n";
        for algorithm in ["dqn", "sac", "td3", "ppg"] {
            assert_eq!(keys("module:Any-v0", algorithm, masks), ["env.action_masks"], "{algorithm}");
        }
        for set in ["action_masks = true", "channels = 'last'"] {
            let key = format!("env.{}", set.split(' ').next().unwrap());
            let text = format!("worker = 'auto'\n{set}\n[policy]\nnetwork = 'nature'\n");
            assert_eq!(keys("PongNoFrameskip-v4", "ppo", &text), [key]);
        }
        let native = format!("{masks}[policy]\nkernel = 'native'\n");
        assert_eq!(keys("module:Any-v0", "ppo", &native), ["policy.kernel"]);
        assert_eq!(keys("Pendulum-v1", "sac", "[policy]\nkernel = 'native'\n"), ["policy.kernel"]);
    }

    #[test]
    fn supported_combination_is_accepted() {
        for (id, algorithm, rest) in [
            ("CartPole-v1", "dqn", "[policy]\nkernel = 'native'\n"),
            ("Pendulum-v1", "sac", "[checkpoint]\nreplay = true\n"),
            ("Pendulum-v1", "td3", "[checkpoint]\nreplay = true\n"),
            ("Pendulum-v1", "ppo", "[collect]\nnormalise_rewards = true\nclip_rewards = 5.0\n"),
            ("PongNoFrameskip-v4", "dqn", "[policy]\nnetwork = 'nature'\n[distributed]\ndata_parallel = 2\n"),
            ("module:Anything-v0", "dqn", "[policy]\nnetwork = 'nature'\n"),
            ("PongNoFrameskip-v4", "ppo", "worker_threads = 8\n"),
            ("module:Any-v0", "ppo", "worker = 'python'\naction_masks = true\nchannels = 'first'\n"),
            ("module:Any-v0", "a2c", "worker = 'python'\naction_masks = true\n"),
            ("module:Any-v0", "dqn", "worker = 'python'\naction_masks = false\n"),
            ("PongNoFrameskip-v4", "ppg", "[collect]\ndouble_buffer = true\n"),
            ("CartPole-v1", "a2c", "worker = 'python'\n[collect]\ndouble_buffer = true\n"),
            (
                "PongNoFrameskip-v4",
                "dqn",
                "[policy]\nnetwork = 'nature'\nchannels_last = true\nprecision = 'bf16'\ncudnn_benchmark = true\n",
            ),
        ] {
            assert!(keys(id, algorithm, rest).is_empty(), "{id} {algorithm} {rest}");
        }
    }

    fn size_key(algorithm: &str, envs: u32, rest: &str, world: u64) -> Option<String> {
        let text = format!(
            "[run]\nname = 'x'\ntotal_steps = 5000000\n[env]\nid = 'CartPole-v1'\nnum_envs = {envs}\n\
             [learn]\nalgorithm = '{algorithm}'\n{rest}"
        );
        let found = size_problem(&toml::from_str(&text).unwrap(), world);
        assert!(found.iter().all(|one| !one.cause.error.is_empty() && !one.cause.hint.is_empty()));
        found.map(|one| one.key)
    }

    #[test]
    fn indivisible_batch_replay_and_aux_sizes_name_their_key() {
        for (algorithm, envs, rest, world, expected) in [
            ("dqn", 3, "batch_size = 20", 3, Some("learn.batch_size")),
            ("dqn", 3, "batch_size = 21", 3, None),
            ("sac", 3, "", 3, Some("learn.batch_size")),
            ("td3", 3, "", 3, Some("learn.batch_size")),
            ("sac", 4, "", 4, None),
            ("dqn", 2, "batch_size = 32\nbuffer_size = 10", 2, Some("learn.buffer_size")),
            ("dqn", 64, "batch_size = 2\nbuffer_size = 63", 1, Some("learn.buffer_size")),
            (
                "ppg",
                4,
                "policy_iterations = 3\naux_num_minibatches = 4",
                2,
                Some("learn.aux_num_minibatches"),
            ),
            ("ppg", 4, "policy_iterations = 2\naux_num_minibatches = 4", 2, None),
            ("ppo", 6, "[collect]\ndouble_buffer = true", 2, Some("env.num_envs")),
            ("ppo", 8, "[collect]\ndouble_buffer = true", 2, None),
        ] {
            assert_eq!(
                size_key(algorithm, envs, rest, world).as_deref(),
                expected,
                "{algorithm} {rest} on {world}"
            );
        }
    }
}
