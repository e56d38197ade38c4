//! Checks an experiment for what the built-in trainer does not support or would ignore, and for sizes that
//! the ranks cannot share; splits the sizes. Each error has the key to change.
//!
//! The console calls it before anything starts, and every rank before it waits for others. Checks that need
//! the environment itself (its spaces) run in the ranks.

use super::{PlanError, PlannedSize};
use crate::blocks::BlockShare;
use crate::experiment::{
    BackendChoice, Env, EnvWorker, Experiment, INVARIANT_BLOCKS, Kernel, NetworkKind, OnRankLoss, Policy,
    Precision, builtin_env,
};
use crate::learn::{ActionKind, Learn, NormAdv};

/// What ids of EnvPool begin with.
const ENVPOOL: &str = "envpool:";

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
    if experiment.distributed.invariant && !experiment.launch.command.is_empty() {
        return vec![PlanError::new(
            "distributed.invariant",
            "`distributed.invariant` cannot be kept: gradients of your own program are not summed by rankdeck",
            "remove `distributed.invariant`",
        )];
    }
    let (Some(learn), Some(env)) = (&experiment.learn, &experiment.env) else { return Vec::new() };
    if !experiment.launch.command.is_empty() {
        return Vec::new();
    }
    let mut found = environment(env, learn, &experiment.policy);
    found.extend(unused_keys(experiment, env, learn));
    found.extend(without_effect(policy_keys(&experiment.policy, learn)));
    found.extend(never_learns(experiment, learn));
    found.extend(not_invariant(experiment, env, learn));
    found
}

/// Checks that need only the id of the environment.
fn environment(env: &Env, learn: &Learn, policy: &Policy) -> Vec<PlanError> {
    let mut found = Vec::new();
    let id = env.id.as_str();
    // Of a library or a factory, the id is a name only.
    let is_name = env.library.is_some() || env.vector.is_some();
    let known = builtin_env(id);
    let builtin = !is_name && env.is_builtin() && known.is_some();
    let atari = !is_name && env.is_atari();
    let continuous = known.is_some_and(|known| known.actions == ActionKind::Continuous);
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
    if policy.network == NetworkKind::Impala && matches!(learn, Learn::Pqn(_)) {
        found.push(PlanError::new(
            "policy.network",
            "`pqn` has no `impala` network with layer normalization",
            "set `policy.network = \"nature\"`",
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
    let has_policy = learn.on_policy().is_some();
    let replays = learn.replay().is_some();
    let dense = policy.network == NetworkKind::Mlp;
    let of = |others: &str| format!("only {others} use it, not `{name}`");
    let for_images = || "it applies to networks for images, but `policy.network` is `mlp`".to_owned();
    let builtin = env.is_builtin() && builtin_env(&env.id).is_some();
    let rows = [
        (replays && collect.normalise_rewards, "collect.normalise_rewards", of(ROLLOUTS)),
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
        (!has_policy && policy.shared, "policy.shared", of(ON)),
        (!has_policy && policy.log_std != 0.0, "policy.log_std", of(ON)),
        (dense && policy.channels.is_some(), "policy.channels", "`policy.network` is `mlp`".into()),
        (dense && policy.channels_last, "policy.channels_last", for_images()),
        (dense && policy.precision != Precision::F32, "policy.precision", for_images()),
        (dense && policy.cudnn_benchmark, "policy.cudnn_benchmark", for_images()),
        (!has_policy && collect.double_buffer, "collect.double_buffer", of(ON)),
        (
            has_policy && builtin && collect.double_buffer,
            "collect.double_buffer",
            format!("`{}` runs in the trainer; `env.worker = \"python\"` uses Gymnasium's", env.id),
        ),
        (
            !replays && !matches!(learn, Learn::Ppg(_)) && checkpoint.replay,
            "checkpoint.replay",
            of("`dqn`, `sac`, `td3` and `ppg`"),
        ),
        (
            env.uses_masks() && learn.actions() == ActionKind::Continuous,
            "env.action_masks",
            format!("`{name}` needs continuous actions, of which no mask excludes any"),
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
                    || has_policy && env.uses_masks()
                    || matches!(learn, Learn::Ppg(_) | Learn::Pqn(_))),
            "policy.kernel",
            "the native kernels support fully connected networks of `ppo`, `a2c`, `dqn`, `sac` and `td3` on the CPU, \
             without action masks"
                .into(),
        ),
    ];
    without_effect(rows)
}

/// Keys that a policy with memory cannot have, those that need one, and those for `Dict` observations.
fn policy_keys(policy: &Policy, learn: &Learn) -> Vec<(bool, &'static str, String)> {
    let has_memory = policy.memory.is_some();
    vec![
        (
            has_memory && !matches!(learn, Learn::Ppo(_) | Learn::A2c(_)),
            "policy.memory",
            format!("only `ppo` and `a2c` use it, not `{}`", learn.name()),
        ),
        (
            policy.vector_hidden.is_some() && learn.on_policy().is_none(),
            "policy.vector_hidden",
            format!("only {ON} use it, not `{}`", learn.name()),
        ),
        (
            policy.vector_hidden.is_some() && policy.network == NetworkKind::Mlp,
            "policy.vector_hidden",
            "`policy.network` is `mlp`, which takes all values together".into(),
        ),
        (
            !has_memory && policy.memory_size.is_some(),
            "policy.memory_size",
            "`policy.memory` is not set".into(),
        ),
        (
            has_memory && policy.cuda_graphs,
            "policy.cuda_graphs",
            "updates of policies with memory depend on where episodes end, and cannot be captured".into(),
        ),
    ]
}

/// The errors for keys that are set and have no effect: of the rows that hold, key and reason.
fn without_effect(rows: impl IntoIterator<Item = (bool, &'static str, String)>) -> Vec<PlanError> {
    let unused = rows.into_iter().filter(|(set, ..)| *set);
    unused
        .map(|(_, key, why)| {
            PlanError::new(key, format!("`{key}` has no effect: {why}"), format!("remove `{key}`"))
        })
        .collect()
}

/// Algorithms with a policy gradient.
const ON: &str = "`ppo`, `ppg` and `a2c`";
/// Algorithms that learn from rollouts.
const ROLLOUTS: &str = "`ppo`, `ppg`, `a2c` and `pqn`";

/// Reports what depends on the number of ranks although `distributed.invariant` is set.
fn not_invariant(experiment: &Experiment, env: &Env, learn: &Learn) -> Vec<PlanError> {
    let Experiment { distributed, policy, .. } = experiment;
    if !distributed.invariant {
        let unused = distributed.invariant_blocks != INVARIANT_BLOCKS;
        let error = || {
            PlanError::new(
                "distributed.invariant_blocks",
                "`distributed.invariant_blocks` has no effect: `distributed.invariant` is false",
                "remove `distributed.invariant_blocks`, or set `distributed.invariant = true`",
            )
        };
        return unused.then(error).into_iter().collect();
    }
    let name = learn.name();
    let on_policy = "set `learn.algorithm = \"ppo\"` or `\"a2c\"`";
    let libtorch = "libtorch computes it, whose order of additions depends on the size of a rank's batch";
    let together = "it seeds and steps the environments of a rank as one";
    let rows = [
        (
            learn.replay().is_some(),
            "learn.algorithm",
            format!(
                "`{name}` samples a replay per rank, which has other transitions on another number of ranks"
            ),
            on_policy,
        ),
        (
            learn.replay().is_none() && !supports_invariance(learn),
            "learn.algorithm",
            format!("`{name}` learns in libtorch, whose order of additions depends on a rank's batch"),
            on_policy,
        ),
        (
            distributed.backend == BackendChoice::Nccl,
            "distributed.backend",
            "GPUs and NCCL add in an order of their own".into(),
            "set `distributed.backend = \"tcp\"`",
        ),
        (
            policy.network != NetworkKind::Mlp,
            "policy.network",
            format!("a network for images is not supported: {libtorch}"),
            "set `policy.network = \"mlp\"`",
        ),
        (
            policy.kernel == Kernel::Libtorch,
            "policy.kernel",
            format!("`policy.kernel = \"libtorch\"` is not supported: {libtorch}"),
            "remove `policy.kernel`",
        ),
        (
            distributed.on_rank_loss == OnRankLoss::Shrink,
            "distributed.on_rank_loss",
            "a smaller group may not hold whole shares of the blocks".into(),
            "remove `distributed.on_rank_loss`",
        ),
        (
            policy.memory.is_some(),
            "policy.memory",
            "minibatches of a policy with memory are whole rollouts of some environments".into(),
            "remove `policy.memory`",
        ),
        (
            env.uses_masks(),
            "env.action_masks",
            format!("an update with action masks is not supported: {libtorch}"),
            "remove `env.action_masks`",
        ),
        (env.vector.is_some(), "env.vector", together.into(), "remove `env.vector`"),
        (
            env.vector.is_none() && (env.id.starts_with(ENVPOOL) || env.is_atari()),
            "env.id",
            format!("`{}`: {together}", env.id),
            "choose an environment in Rust or of Gymnasium, or set `distributed.invariant = false`",
        ),
        (
            supports_invariance(learn) && learn.norm_adv() == NormAdv::Rank,
            "learn.norm_adv_over",
            "advantages are normalized over a rank's share of the minibatch".into(),
            "set `learn.norm_adv_over = \"world\"`",
        ),
    ];
    let wrong = rows.into_iter().filter(|(wrong, ..)| *wrong);
    wrong
        .map(|(_, key, why, hint)| {
            PlanError::new(key, format!("`distributed.invariant` cannot be kept: {why}"), hint)
        })
        .collect()
}

/// Algorithms whose updates the native kernels compute by blocks of environments.
fn supports_invariance(learn: &Learn) -> bool {
    matches!(learn, Learn::Ppo(_) | Learn::A2c(_))
}

/// Returns the blocks of a rank with `distributed.invariant`.
pub fn block_share(experiment: &Experiment, rank: u32, world: u32) -> Option<BlockShare> {
    let envs = experiment.env.as_ref()?.num_envs;
    let blocks = experiment.distributed.invariant_blocks;
    experiment.distributed.invariant.then(|| BlockShare::new(blocks, envs, rank, world))
}

/// Returns the first size that does not fit the blocks of `distributed.invariant`.
fn block_problem(experiment: &Experiment, learn: &Learn, envs: u64, world: u64) -> Option<PlanError> {
    if !experiment.distributed.invariant {
        return None;
    }
    let blocks = u64::from(experiment.distributed.invariant_blocks);
    if blocks == 0 || !blocks.is_multiple_of(world) {
        return size_error(
            format!("cannot split {blocks} blocks of environments evenly across {world} ranks"),
            format!(
                "set `distributed.invariant_blocks` to a multiple of {world}, such as {}: the same for all runs to compare",
                multiples(blocks, world)
            ),
            "distributed.invariant_blocks",
        );
    }
    if !envs.is_multiple_of(blocks) {
        return size_error(
            format!("cannot split {envs} environments evenly into {blocks} blocks"),
            format!(
                "set `env.num_envs` to a multiple of {blocks}, such as {}, or `distributed.invariant_blocks` to a divisor \
                 of {envs}",
                multiples(envs, blocks)
            ),
            "env.num_envs",
        );
    }
    let (rows, minibatches) =
        (envs / blocks * u64::from(experiment.collect.num_steps), u64::from(learn.num_minibatches()));
    if minibatches == 0 || !rows.is_multiple_of(minibatches) {
        return size_error(
            format!("cannot split the {rows} transitions of each block into {minibatches} minibatches"),
            format!(
                "set `learn.num_minibatches` to a divisor of {rows}, such as {}",
                divisor(rows, minibatches)
            ),
            "learn.num_minibatches",
        );
    }
    None
}

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
    if let Some(problem) = block_problem(experiment, learn, envs, world) {
        return Some(problem);
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
    if experiment.policy.memory.is_some() && !local_envs.is_multiple_of(minibatches) {
        return size_error(
            format!(
                "cannot split the {local_envs} environments of each rank into {minibatches} minibatches: `policy.memory` \
                 learns from whole rollouts"
            ),
            format!(
                "set `learn.num_minibatches` to a divisor of {local_envs}, such as {}",
                divisor(local_envs, minibatches)
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
    if experiment.distributed.invariant {
        sizes.push(split("blocks", u64::from(experiment.distributed.invariant_blocks)));
    }
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
            ("Pendulum-v1", "pqn", "", "learn.algorithm"),
            ("PongNoFrameskip-v4", "pqn", "[policy]\nnetwork = 'impala'\n", "policy.network"),
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
            ("dqn", "collect", "normalise_rewards = true"),
            ("pqn", "checkpoint", "replay = true"),
            ("pqn", "policy", "shared = true"),
            ("pqn", "policy", "kernel = 'native'"),
            ("pqn", "collect", "double_buffer = true"),
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
        for algorithm in ["sac", "td3"] {
            assert_eq!(keys("module:Any-v0", algorithm, masks), ["env.action_masks"], "{algorithm}");
        }
        for set in ["action_masks = true", "channels = 'last'"] {
            let key = format!("env.{}", set.split(' ').next().unwrap());
            let text = format!("worker = 'auto'\n{set}\n[policy]\nnetwork = 'nature'\n");
            assert_eq!(keys("PongNoFrameskip-v4", "ppo", &text), [key]);
        }
        let native = format!("{masks}[policy]\nkernel = 'native'\n");
        assert_eq!(keys("module:Any-v0", "ppo", &native), ["policy.kernel"]);
        assert!(keys("Pendulum-v1", "sac", "[policy]\nkernel = 'native'\n").is_empty());
        assert!(keys("Pendulum-v1", "td3", "[policy]\nkernel = 'native'\n").is_empty());
        for (algorithm, rest, key) in [
            ("ppg", "memory = 'lstm'", "policy.memory"),
            ("dqn", "memory = 'mingru'", "policy.memory"),
            ("ppo", "memory_size = 64", "policy.memory_size"),
            ("ppo", "vector_hidden = [32]", "policy.vector_hidden"),
            ("a2c", "memory = 'mingru'\ncuda_graphs = true", "policy.cuda_graphs"),
        ] {
            let text = format!("[policy]\n{rest}\n");
            assert_eq!(keys("CartPole-v1", algorithm, &text), [key], "{algorithm} {rest}");
        }
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
            ("module:Any-v0", "dqn", "worker = 'python'\naction_masks = true\n"),
            ("module:Any-v0", "pqn", "worker = 'python'\naction_masks = true\n"),
            ("module:Any-v0", "ppg", "worker = 'python'\naction_masks = true\n"),
            ("Pendulum-v1", "sac", "[collect]\nnormalise_observations = true\nclip_observations = 5.0\n"),
            ("CartPole-v1", "pqn", "[collect]\nnormalise_observations = true\nnormalise_rewards = true\n"),
            ("PongNoFrameskip-v4", "ppg", "[collect]\ndouble_buffer = true\n"),
            ("CartPole-v1", "a2c", "worker = 'python'\n[collect]\ndouble_buffer = true\n"),
            ("CartPole-v1", "ppo", "[policy]\nmemory = 'lstm'\nmemory_size = 64\nkernel = 'native'\n"),
            ("PongNoFrameskip-v4", "a2c", "[policy]\nnetwork = 'nature'\nmemory = 'mingru'\n"),
            (
                "PongNoFrameskip-v4",
                "dqn",
                "[policy]\nnetwork = 'nature'\nchannels_last = true\nprecision = 'bf16'\ncudnn_benchmark = true\n",
            ),
        ] {
            assert!(keys(id, algorithm, rest).is_empty(), "{id} {algorithm} {rest}");
        }
    }

    #[test]
    fn invariant_mode_rejects_what_depends_on_ranks() {
        let invariant = "[distributed]\ninvariant = true\n";
        for (id, algorithm, rest, key) in [
            ("CartPole-v1", "ppo", "".to_owned(), "learn.norm_adv_over"),
            ("CartPole-v1", "dqn", "".to_owned(), "learn.algorithm"),
            ("Pendulum-v1", "sac", "".to_owned(), "learn.algorithm"),
            ("Pendulum-v1", "td3", "".to_owned(), "learn.algorithm"),
            ("CartPole-v1", "ppg", "".to_owned(), "learn.algorithm"),
            ("CartPole-v1", "a2c", "[policy]\nkernel = 'libtorch'\n".to_owned(), "policy.kernel"),
            ("module:Any-v0", "a2c", "[policy]\nnetwork = 'nature'\n".to_owned(), "policy.network"),
            (
                "module:Any-v0",
                "a2c",
                "worker = 'python'\naction_masks = true\n".to_owned(),
                "env.action_masks",
            ),
            ("module:Any-v0", "a2c", "worker = 'python'\nvector = 'module:make'\n".to_owned(), "env.vector"),
            ("envpool:Any-v0", "a2c", "worker = 'python'\n".to_owned(), "env.id"),
            ("PongNoFrameskip-v4", "a2c", "".to_owned(), "env.id"),
        ] {
            let (env, rest) =
                if rest.starts_with("worker") { (rest, String::new()) } else { (String::new(), rest) };
            let text = format!(
                "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = '{id}'\nnum_envs = 12\n{env}\
                 [learn]\nalgorithm = '{algorithm}'\n{rest}{invariant}"
            );
            let found = problems(&toml::from_str(&text).unwrap());
            let keys: Vec<&str> = found.iter().map(|one| one.key.as_str()).collect();
            assert_eq!(keys, [key], "{id} {algorithm}");
            assert!(found.iter().all(|one| !one.cause.hint.is_empty()));
        }
        let accepted = format!("norm_adv_over = 'world'\n{invariant}");
        assert!(keys("CartPole-v1", "ppo", &accepted).is_empty());
        assert!(keys("Pendulum-v1", "a2c", invariant).is_empty());
        assert_eq!(
            keys("Pendulum-v1", "a2c", "[distributed]\ninvariant_blocks = 4\n"),
            ["distributed.invariant_blocks"]
        );
        assert_eq!(
            keys("Pendulum-v1", "a2c", &format!("{invariant}backend = 'nccl'\n")),
            ["distributed.backend"]
        );
    }

    #[test]
    fn block_sizes_that_do_not_divide_name_their_key() {
        let on = "norm_adv_over = 'world'\n[distributed]\ninvariant = true\n";
        for (envs, blocks, world, expected) in [
            (12, 12, 1, None),
            (24, 12, 3, None),
            (12, 12, 4, None),
            (8, 8, 8, None),
            (40, 12, 5, Some("distributed.invariant_blocks")),
            (8, 12, 4, Some("env.num_envs")),
        ] {
            let rest = format!("{on}invariant_blocks = {blocks}\n");
            assert_eq!(size_key("ppo", envs, &rest, world).as_deref(), expected, "{envs} {blocks} {world}");
        }
        let rest = format!("num_minibatches = 3\n{on}[collect]\nnum_steps = 64\n");
        assert_eq!(size_key("ppo", 36, &rest, 1), None);
        assert_eq!(size_key("ppo", 24, &rest, 1).as_deref(), Some("learn.num_minibatches"));
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
            ("ppo", 8, "[policy]\nmemory = 'lstm'", 2, None),
            ("ppo", 4, "[policy]\nmemory = 'lstm'", 2, Some("learn.num_minibatches")),
            ("a2c", 1, "[policy]\nmemory = 'lstm'", 1, None),
        ] {
            assert_eq!(
                size_key(algorithm, envs, rest, world).as_deref(),
                expected,
                "{algorithm} {rest} on {world}"
            );
        }
    }
}
