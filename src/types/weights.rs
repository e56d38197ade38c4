//! Compares the keys of an experiment that shape the arrays of a checkpoint of the built-in trainer. The
//! trainer compares the arrays themselves; this check runs before it starts.

use crate::error::HintedError;
use crate::experiment::{Experiment, Learn, MemoryKind, NetworkKind};

/// A key whose value differs in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointMismatch {
    /// Its path, as `--set` takes it.
    pub key: &'static str,
    /// Value of the checkpoint.
    pub there: String,
    /// Value of the experiment.
    pub here: String,
}

/// Returns the keys that differ between the experiment of a checkpoint and one that resumes from it; only the
/// algorithm or the environment if one of those differs.
pub fn mismatches(there: &Experiment, here: &Experiment) -> Vec<CheckpointMismatch> {
    let (there, here) = (shaping(there), shaping(here));
    let value = |of: &[(&str, String)], key: &str| {
        of.iter()
            .find(|(known, _)| *known == key)
            .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    };
    let mut found: Vec<CheckpointMismatch> = Vec::new();
    for (key, _) in there.iter().chain(&here) {
        let (was, is) = (value(&there, key), value(&here, key));
        if was != is && !found.iter().any(|misfit| misfit.key == *key) {
            found.push(CheckpointMismatch { key, there: was, here: is });
        }
    }
    if let Some(at) = found.iter().position(|misfit| DECIDING.contains(&misfit.key)) {
        found = vec![found.swap_remove(at)];
    }
    found
}

/// Returns why an experiment cannot resume from the checkpoint called `from`; `None` if it can.
pub fn refusal(from: &str, mismatches: &[CheckpointMismatch]) -> Option<HintedError> {
    let describe = |misfit: &CheckpointMismatch| {
        format!("{} is {} in the checkpoint, {} in the experiment", misfit.key, misfit.there, misfit.here)
    };
    let keep = |misfit: &CheckpointMismatch| format!("{}={}", misfit.key, misfit.there.replace(", ", ","));
    let list = |word: &str, each: &dyn Fn(&CheckpointMismatch) -> String| {
        mismatches.iter().map(each).collect::<Vec<_>>().join(word)
    };
    (!mismatches.is_empty()).then(|| {
        HintedError::new(
            format!("checkpoint {from} does not fit: {}", list("; ", &describe)),
            format!("keep {}, or start from scratch", list(" and ", &keep)),
        )
    })
}

/// With another value of these, all others may differ too.
const DECIDING: [&str; 3] = ["learn.algorithm", "env.id", "policy.memory"];

/// Returns the shaping keys with their values, as far as they apply to this experiment.
fn shaping(experiment: &Experiment) -> Vec<(&'static str, String)> {
    let Experiment { env, policy, collect, learn, .. } = experiment;
    let mut keys = Vec::new();
    if let Some(learn) = learn {
        keys.push(("learn.algorithm", learn.name().to_owned()));
    }
    if let Some(env) = env {
        keys.push(("env.id", env.id.clone()));
        if env.is_atari() {
            let atari = env.atari();
            keys.push(("env.frame_stack", atari.frame_stack.to_string()));
            keys.push(("env.image_size", atari.image_size.to_string()));
        }
    }
    let (network, channels): (&str, &[u32]) = match policy.network {
        NetworkKind::Mlp => ("mlp", &[]),
        NetworkKind::Nature => ("nature", &[32, 64, 64]),
        NetworkKind::Impala => ("impala", &[16, 32, 32]),
    };
    keys.push(("policy.network", network.to_owned()));
    keys.push(("policy.hidden", format!("{:?}", policy.hidden)));
    if policy.network != NetworkKind::Mlp {
        keys.push(("policy.channels", format!("{:?}", policy.channels.as_deref().unwrap_or(channels))));
    }
    match learn {
        Some(Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_)) => {
            if let Some(memory) = policy.memory {
                let memory = match memory {
                    MemoryKind::Lstm => "lstm",
                    MemoryKind::MinGru => "mingru",
                };
                keys.push(("policy.memory", memory.to_owned()));
                keys.push(("policy.memory_size", policy.memory_size.unwrap_or(128).to_string()));
            }
            if policy.network != NetworkKind::Mlp {
                let hidden = policy.vector_hidden.as_deref().unwrap_or(&[64]);
                keys.push(("policy.vector_hidden", format!("{hidden:?}")));
            }
            // Networks for images and those with memory always share; without hidden layers, no layer can be shared.
            let shares = policy.network != NetworkKind::Mlp || policy.memory.is_some();
            if !shares && !policy.hidden.is_empty() {
                keys.push(("policy.shared", policy.shared.to_string()));
            }
        }
        Some(Learn::Dqn(dqn)) => keys.push(("learn.dueling", dqn.dueling.to_string())),
        Some(Learn::Sac(_) | Learn::Td3(_) | Learn::Pqn(_)) | None => {}
    }
    if let Some(learn) = learn {
        keys.push(("collect.normalise_observations", collect.normalise_observations.to_string()));
        if learn.replay().is_none() {
            keys.push(("collect.normalise_rewards", collect.normalise_rewards.to_string()));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(more: &str) -> Experiment {
        let (algorithm, more) = more.split_once('|').unwrap_or(("ppo", more));
        let text = format!(
            "[run]\nname = 'x'\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[learn]\nalgorithm = '{algorithm}'\n{more}"
        );
        toml::from_str(&text).unwrap()
    }

    fn keys(there: &str, here: &str) -> Vec<&'static str> {
        mismatches(&experiment(there), &experiment(here)).iter().map(|misfit| misfit.key).collect()
    }

    #[test]
    fn only_keys_that_shape_weights_must_agree() {
        assert_eq!(keys("", "[policy]\nhidden = [32]\n"), ["policy.hidden"]);
        assert_eq!(keys("", "[policy]\nhidden = [64, 64]\nactivation = 'relu'\n"), [""; 0]);
        assert_eq!(keys("", "gamma = 0.5\n[collect]\nnum_steps = 7\n"), [""; 0]);
        assert_eq!(keys("", "[policy]\nshared = true\n"), ["policy.shared"]);
        assert_eq!(keys("", "[collect]\nnormalise_rewards = true\n"), ["collect.normalise_rewards"]);
        assert_eq!(keys("dqn|", "dqn|dueling = true\n"), ["learn.dueling"]);
        let memory = "[policy]\nmemory = 'lstm'\n";
        assert_eq!(keys("", memory), ["policy.memory"]);
        assert_eq!(keys(memory, "[policy]\nmemory = 'mingru'\n"), ["policy.memory"]);
        assert_eq!(keys(memory, &format!("{memory}memory_size = 64\n")), ["policy.memory_size"]);
        assert_eq!(keys(memory, &format!("{memory}memory_size = 128\nshared = true\n")), [""; 0]);
        // Keys that an algorithm does not use do not matter.
        assert_eq!(
            keys("dqn|", "dqn|[policy]\nshared = true\n[collect]\nnormalise_rewards = true\n"),
            [""; 0]
        );
        // Only the algorithm is reported.
        assert_eq!(keys("", "dqn|[policy]\nhidden = [32]\n"), ["learn.algorithm"]);
    }

    #[test]
    fn absent_key_equals_its_default() {
        let atari = |more: &str, policy: &str| {
            toml::from_str::<Experiment>(&format!(
                "[run]\nname = 'x'\n[env]\nid = 'ALE/Pong-v5'\nnum_envs = 4\n{more}[policy]\nnetwork = 'nature'\n\
                 {policy}[learn]\nalgorithm = 'dqn'\n"
            ))
            .unwrap()
        };
        let usual = atari("", "");
        assert_eq!(mismatches(&usual, &atari("frame_stack = 4\n", "channels = [32, 64, 64]\n")), []);
        let other: Vec<&str> = mismatches(&usual, &atari("frame_stack = 2\n", "channels = [8, 8, 8]\n"))
            .iter()
            .map(|misfit| misfit.key)
            .collect();
        assert_eq!(other, ["env.frame_stack", "policy.channels"]);
    }

    #[test]
    fn refusal_names_keys_and_both_values() {
        let found = refusal(
            "/r/latest.ckpt",
            &mismatches(&experiment(""), &experiment("[policy]\nhidden = [32]\nshared = true\n")),
        )
        .unwrap();
        assert_eq!(
            found.error,
            "checkpoint /r/latest.ckpt does not fit: policy.hidden is [64, 64] in the checkpoint, [32] in the \
             experiment; policy.shared is false in the checkpoint, true in the experiment"
        );
        assert_eq!(found.hint, "keep policy.hidden=[64,64] and policy.shared=false, or start from scratch");
        assert_eq!(refusal("x", &[]), None);
    }
}
