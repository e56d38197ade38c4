//! What of an experiment the built-in trainer cannot do or would pass over, with the key to change.
//!
//! The console asks before anything starts, and every rank before it waits for others: by the same function.
//! Where only the environment itself can tell (its spaces), the ranks find it.

use super::PlanError;
use crate::experiment::{BUILTIN_ENVS, Env, EnvWorker, Experiment, Kernel, Network, Policy, Precision};
use crate::learn::Learn;

/// Environments of [`BUILTIN_ENVS`] whose actions are continuous.
const CONTINUOUS: [&str; 2] = ["Pendulum-v1", "MountainCarContinuous-v0"];

/// Everything that cannot work, whatever the number of ranks. None for a program of the user's.
pub fn problems(experiment: &Experiment) -> Vec<PlanError> {
    let (Some(learn), Some(env)) = (&experiment.learn, &experiment.env) else { return Vec::new() };
    if !experiment.launch.command.is_empty() {
        return Vec::new();
    }
    let mut found = environment(env, learn, &experiment.policy);
    found.extend(idle(experiment, env, learn));
    found.extend(never_learns(experiment, learn));
    found
}

/// What is known of an environment by its id.
fn environment(env: &Env, learn: &Learn, policy: &Policy) -> Vec<PlanError> {
    let mut found = Vec::new();
    let id = env.id.as_str();
    let builtin = env.worker != EnvWorker::Python && BUILTIN_ENVS.contains(&id);
    let continuous = CONTINUOUS.contains(&id);
    if (builtin || env.looks_atari()) && matches!(learn, Learn::Sac(_)) && !continuous {
        found.push(PlanError::new(
            "learn.algorithm",
            format!("`sac` needs continuous actions, and those of `{id}` are discrete"),
            "set `learn.algorithm = \"dqn\"`, or choose another `env.id`",
        ));
    }
    if builtin && matches!(learn, Learn::Dqn(_)) && continuous {
        found.push(PlanError::new(
            "learn.algorithm",
            format!("`dqn` needs discrete actions, and those of `{id}` are continuous"),
            "set `learn.algorithm = \"sac\"`, or choose another `env.id`",
        ));
    }
    let images = policy.network != Network::Mlp;
    if images && (builtin || matches!(learn, Learn::Sac(_))) {
        let why = match builtin {
            true => format!("`{id}` shows numbers"),
            false => "`sac` has fully connected networks only".to_owned(),
        };
        found.push(PlanError::new(
            "policy.network",
            format!("`policy.network` is for images, and {why}"),
            "set `policy.network = \"mlp\"`",
        ));
    }
    found
}

/// Keys that were set and would be passed over.
fn idle(experiment: &Experiment, env: &Env, learn: &Learn) -> Vec<PlanError> {
    let Experiment { policy, collect, distributed, checkpoint, .. } = experiment;
    let name = learn.name();
    let off_policy = learn.on_policy().is_none();
    let dense = policy.network == Network::Mlp;
    let of = |others: &str| format!("`{name}` does not use it; {others} do");
    let for_images = || "it is for networks of images, and `policy.network` is `mlp`".to_owned();
    let builtin = env.worker != EnvWorker::Python && BUILTIN_ENVS.contains(&env.id.as_str());
    let rows: [(bool, &str, String); 16] = [
        (off_policy && collect.normalise_observations, "collect.normalise_observations", of(ON)),
        (off_policy && collect.normalise_rewards, "collect.normalise_rewards", of(ON)),
        (
            !collect.normalise_observations && collect.clip_observations != 10.0,
            "collect.clip_observations",
            "it bounds normalised observations, and `collect.normalise_observations` is false".into(),
        ),
        (
            !collect.normalise_rewards && collect.clip_rewards != 10.0,
            "collect.clip_rewards",
            "it bounds normalised rewards, and `collect.normalise_rewards` is false".into(),
        ),
        (
            distributed.data_parallel > 1 && !matches!(learn, Learn::Dqn(_)),
            "distributed.data_parallel",
            format!("`{name}` does not use it; `dqn` does"),
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
            format!("`{}` is computed in the trainer; `env.worker = \"python\"` takes Gymnasium's", env.id),
        ),
        (
            !off_policy && !matches!(learn, Learn::Ppg(_)) && checkpoint.replay,
            "checkpoint.replay",
            of("`dqn`, `sac` and `ppg`"),
        ),
        (
            env.worker_threads.is_some() && !env.looks_atari(),
            "env.worker_threads",
            format!("it is for the emulators of Atari games, and `{}` is not one", env.id),
        ),
        (
            policy.kernel == Kernel::Native
                && (!dense
                    || distributed.data_parallel > 1
                    || matches!(learn, Learn::Sac(_) | Learn::Ppg(_))),
            "policy.kernel",
            "the hand-written passes are for fully connected networks of `ppo`, `a2c` and `dqn` on the CPU"
                .into(),
        ),
    ];
    let idle = rows.into_iter().filter(|(set, ..)| *set);
    idle.map(|(_, key, why)| {
        PlanError::new(key, format!("`{key}` would change nothing: {why}"), format!("remove `{key}`"))
    })
    .collect()
}

const ON: &str = "`ppo`, `ppg` and `a2c`";

/// A run that is over before it learns.
fn never_learns(experiment: &Experiment, learn: &Learn) -> Option<PlanError> {
    let starts = match learn {
        Learn::Dqn(dqn) => dqn.learning_starts,
        Learn::Sac(sac) => sac.learning_starts,
        Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) => return None,
    };
    let total = experiment.run.total_steps;
    (total > 0 && starts >= total).then(|| {
        PlanError::new(
            "learn.learning_starts",
            format!(
                "the run would not learn: it ends after {total} steps, and learning begins after {starts}"
            ),
            "lower `learn.learning_starts`, or raise `run.total_steps`",
        )
    })
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
    fn what_every_rank_would_refuse_is_refused_before() {
        for (id, algorithm, rest, key) in [
            ("CartPole-v1", "sac", "", "learn.algorithm"),
            ("PongNoFrameskip-v4", "sac", "", "learn.algorithm"),
            ("Pendulum-v1", "dqn", "", "learn.algorithm"),
            ("CartPole-v1", "ppo", "[policy]\nnetwork = 'nature'\n", "policy.network"),
            ("Ant-v5", "sac", "[policy]\nnetwork = 'impala'\n", "policy.network"),
            ("CartPole-v1", "dqn", "learning_starts = 50000\n", "learn.learning_starts"),
        ] {
            assert_eq!(keys(id, algorithm, rest), [key], "{id} {algorithm} {rest}");
        }
    }

    #[test]
    fn keys_that_would_be_passed_over_are_refused() {
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
        assert_eq!(keys("Pendulum-v1", "sac", "[policy]\nkernel = 'native'\n"), ["policy.kernel"]);
    }

    #[test]
    fn what_can_work_is_let_through() {
        for (id, algorithm, rest) in [
            ("CartPole-v1", "dqn", "[policy]\nkernel = 'native'\n"),
            ("Pendulum-v1", "sac", "[checkpoint]\nreplay = true\n"),
            ("Pendulum-v1", "ppo", "[collect]\nnormalise_rewards = true\nclip_rewards = 5.0\n"),
            ("PongNoFrameskip-v4", "dqn", "[policy]\nnetwork = 'nature'\n[distributed]\ndata_parallel = 2\n"),
            ("module:Anything-v0", "dqn", "[policy]\nnetwork = 'nature'\n"),
            ("PongNoFrameskip-v4", "ppo", "worker_threads = 8\n"),
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
}
