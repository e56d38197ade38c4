//! Which keys of an experiment a checkpoint of the built-in trainer has to agree on: they decide which arrays
//! there are, and of which shapes. The trainer compares the arrays themselves; this tells before it starts.

use crate::error::HintedError;
use crate::experiment::{Experiment, Learn, Network};

/// A key that a checkpoint has another value for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Its path, as `--set` takes it.
    pub key: &'static str,
    /// What the checkpoint was made with.
    pub there: String,
    /// What the experiment wants.
    pub here: String,
}

/// Keys on which the experiment that made a checkpoint and one that shall begin from it do not agree. With
/// another algorithm or environment nothing else is worth a word.
pub fn misfits(there: &Experiment, here: &Experiment) -> Vec<Misfit> {
    let (there, here) = (shaping(there), shaping(here));
    let value = |of: &[(&str, String)], key: &str| {
        of.iter()
            .find(|(known, _)| *known == key)
            .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    };
    let mut found: Vec<Misfit> = Vec::new();
    for (key, _) in there.iter().chain(&here) {
        let (was, is) = (value(&there, key), value(&here, key));
        if was != is && !found.iter().any(|misfit| misfit.key == *key) {
            found.push(Misfit { key, there: was, here: is });
        }
    }
    if let Some(at) = found.iter().position(|misfit| DECIDING.contains(&misfit.key)) {
        found = vec![found.swap_remove(at)];
    }
    found
}

/// Why nothing can begin from a checkpoint, with what helps; `from` is what it is called. `None`: it fits.
pub fn refusal(from: &str, misfits: &[Misfit]) -> Option<HintedError> {
    let told = |misfit: &Misfit| format!("{} is {} there, {} here", misfit.key, misfit.there, misfit.here);
    let keep = |misfit: &Misfit| format!("{}={}", misfit.key, misfit.there.replace(", ", ","));
    let list = |word: &str, each: &dyn Fn(&Misfit) -> String| {
        misfits.iter().map(each).collect::<Vec<_>>().join(word)
    };
    (!misfits.is_empty()).then(|| {
        HintedError::new(
            format!("checkpoint {from} does not fit: {}", list("; ", &told)),
            format!("keep {}, or begin afresh", list(" and ", &keep)),
        )
    })
}

/// With another value of these, all others may differ too.
const DECIDING: [&str; 2] = ["learn.algorithm", "env.id"];

/// Those keys with their values, as far as they have a meaning for this experiment.
fn shaping(experiment: &Experiment) -> Vec<(&'static str, String)> {
    let Experiment { env, policy, collect, learn, .. } = experiment;
    let mut keys = Vec::new();
    if let Some(learn) = learn {
        keys.push(("learn.algorithm", learn.name().to_owned()));
    }
    if let Some(env) = env {
        keys.push(("env.id", env.id.clone()));
        if env.looks_atari() {
            let atari = env.atari();
            keys.push(("env.frame_stack", atari.frame_stack.to_string()));
            keys.push(("env.image_size", atari.image_size.to_string()));
        }
    }
    let (network, channels): (&str, &[u32]) = match policy.network {
        Network::Mlp => ("mlp", &[]),
        Network::Nature => ("nature", &[32, 64, 64]),
        Network::Impala => ("impala", &[16, 32, 32]),
    };
    keys.push(("policy.network", network.to_owned()));
    keys.push(("policy.hidden", format!("{:?}", policy.hidden)));
    if policy.network != Network::Mlp {
        keys.push(("policy.channels", format!("{:?}", policy.channels.as_deref().unwrap_or(channels))));
    }
    match learn {
        Some(Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_)) => {
            // Networks for images always share, and without hidden layers there is nothing to share.
            if policy.network == Network::Mlp && !policy.hidden.is_empty() {
                keys.push(("policy.shared", policy.shared.to_string()));
            }
            keys.push(("collect.normalise_observations", collect.normalise_observations.to_string()));
            keys.push(("collect.normalise_rewards", collect.normalise_rewards.to_string()));
        }
        Some(Learn::Dqn(dqn)) => keys.push(("learn.dueling", dqn.dueling.to_string())),
        Some(Learn::Sac(_)) | None => {}
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
        misfits(&experiment(there), &experiment(here)).iter().map(|misfit| misfit.key).collect()
    }

    #[test]
    fn keys_that_shape_the_weights_must_agree_and_others_need_not() {
        assert_eq!(keys("", "[policy]\nhidden = [32]\n"), ["policy.hidden"]);
        assert_eq!(keys("", "[policy]\nhidden = [64, 64]\nactivation = 'relu'\n"), [""; 0]);
        assert_eq!(keys("", "gamma = 0.5\n[collect]\nnum_steps = 7\n"), [""; 0]);
        assert_eq!(keys("", "[policy]\nshared = true\n"), ["policy.shared"]);
        assert_eq!(keys("", "[collect]\nnormalise_rewards = true\n"), ["collect.normalise_rewards"]);
        assert_eq!(keys("dqn|", "dqn|dueling = true\n"), ["learn.dueling"]);
        // What an algorithm has no use for changes nothing of it.
        assert_eq!(
            keys("dqn|", "dqn|[policy]\nshared = true\n[collect]\nnormalise_rewards = true\n"),
            [""; 0]
        );
        // An algorithm is the one thing to say.
        assert_eq!(keys("", "dqn|[policy]\nhidden = [32]\n"), ["learn.algorithm"]);
    }

    #[test]
    fn what_is_left_out_is_what_it_is_by_default() {
        let atari = |more: &str, policy: &str| {
            toml::from_str::<Experiment>(&format!(
                "[run]\nname = 'x'\n[env]\nid = 'ALE/Pong-v5'\nnum_envs = 4\n{more}[policy]\nnetwork = 'nature'\n\
                 {policy}[learn]\nalgorithm = 'dqn'\n"
            ))
            .unwrap()
        };
        let usual = atari("", "");
        assert_eq!(misfits(&usual, &atari("frame_stack = 4\n", "channels = [32, 64, 64]\n")), []);
        let other: Vec<&str> = misfits(&usual, &atari("frame_stack = 2\n", "channels = [8, 8, 8]\n"))
            .iter()
            .map(|misfit| misfit.key)
            .collect();
        assert_eq!(other, ["env.frame_stack", "policy.channels"]);
    }

    #[test]
    fn a_refusal_names_key_and_values_and_what_to_keep() {
        let told = refusal(
            "/r/latest.ckpt",
            &misfits(&experiment(""), &experiment("[policy]\nhidden = [32]\nshared = true\n")),
        )
        .unwrap();
        assert_eq!(
            told.error,
            "checkpoint /r/latest.ckpt does not fit: policy.hidden is [64, 64] there, [32] here; policy.shared is \
             false there, true here"
        );
        assert_eq!(told.hint, "keep policy.hidden=[64,64] and policy.shared=false, or begin afresh");
        assert_eq!(refusal("x", &[]), None);
    }
}
