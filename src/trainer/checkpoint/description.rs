//! Describes a run in checkpoints, exported policies and TensorBoard: spaces, settings and versions.

use crate::distributed::torch_version;
use crate::env::{ActionSpace, BYTE_SCALE, Branch, ObservationType, Spec};
use rankdeck_types::experiment::{Experiment, NetworkKind};
use rankdeck_types::hidden;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What was trained, and by what.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Description {
    /// The resolved experiment.
    pub experiment: Value,
    /// rankdeck and libtorch.
    pub versions: BTreeMap<String, String>,
    /// Shape of an observation, as the environment gives it.
    pub observation_shape: Vec<usize>,
    /// `f32` or `u8`.
    pub observation_type: String,
    /// What an observation is multiplied by before anything else happens to it; networks for images scale
    /// bytes themselves.
    pub(crate) observation_scale: f32,
    /// The parts of a `Dict` observation with images, where the network takes them; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) branches: Vec<Branch>,
    /// `{"n": 2}`, `{"sizes": [3, 2]}`, or `{"low": [...], "high": [...]}` with `null` for a missing bound.
    pub actions: Value,
}

impl Description {
    /// Of an experiment on environments with these shapes, as they are before [`Spec::fitted`].
    pub(crate) fn new(experiment: &Experiment, spec: &Spec) -> Description {
        let bound = |values: &[f32]| -> Vec<Option<f32>> {
            values.iter().map(|value| Some(*value).filter(|value| value.is_finite())).collect()
        };
        let bytes = spec.observation_type == ObservationType::U8;
        Description {
            // Checkpoints are passed on, and exported policies hold it, too.
            experiment: serde_json::to_value(hidden::experiment(experiment)).unwrap_or_default(),
            versions: BTreeMap::from([
                ("rankdeck".into(), env!("CARGO_PKG_VERSION").into()),
                ("libtorch".into(), torch_version()),
            ]),
            observation_shape: spec.observation_shape.clone(),
            observation_type: if bytes { "u8" } else { "f32" }.into(),
            observation_scale: match experiment.policy.network {
                NetworkKind::Mlp if bytes => 1.0 / BYTE_SCALE,
                _ => 1.0,
            },
            branches: spec.clone().fitted(experiment.policy.network).branches,
            actions: match &spec.actions {
                ActionSpace::Discrete { n } => json!({ "n": n }),
                ActionSpace::MultiDiscrete { sizes } => json!({ "sizes": sizes }),
                ActionSpace::Continuous { low, high } => json!({ "low": bound(low), "high": bound(high) }),
            },
        }
    }

    /// Keys of the experiment with other values there than here, as `KEY THERE, now HERE`. Where and how long
    /// a run is launched and watched makes no other run of it.
    pub(crate) fn differences(&self, here: &Description) -> Vec<String> {
        let (mut there, mut now) = (BTreeMap::new(), BTreeMap::new());
        flatten(&self.experiment, "", &mut there);
        flatten(&here.experiment, "", &mut now);
        let names: std::collections::BTreeSet<&String> = there.keys().chain(now.keys()).collect();
        let shown = |value: Option<&String>| value.map_or("not set".to_owned(), Clone::clone);
        names
            .into_iter()
            .filter(|name| !ELSEWHERE.iter().any(|prefix| name.starts_with(prefix)))
            .filter(|name| there.get(*name) != now.get(*name))
            .map(|name| format!("{name} {}, now {}", shown(there.get(name)), shown(now.get(name))))
            .collect()
    }

    /// All keys of the experiment and the versions, one `(name, value)` each.
    pub(crate) fn settings(&self) -> Vec<(String, Value)> {
        let mut settings = BTreeMap::new();
        leaves(&self.experiment, "", &mut |name, value| {
            settings.insert(name, value.clone());
        });
        let versions =
            self.versions.iter().map(|(name, version)| (format!("version.{name}"), json!(version)));
        settings.into_iter().chain(versions).collect()
    }
}

/// Tables about where a run executes, not what it trains.
const ELSEWHERE: [&str; 6] = ["run.name", "launch.", "watch.", "restart.", "metrics.", "distributed.backend"];

fn leaves(value: &Value, prefix: &str, each: &mut impl FnMut(String, &Value)) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                leaves(value, &name, each);
            }
        }
        value => each(prefix.to_owned(), value),
    }
}

fn flatten(value: &Value, prefix: &str, to: &mut BTreeMap<String, String>) {
    leaves(value, prefix, &mut |name, value| {
        to.insert(name, value.to_string());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Description {
        Description::new(&toml::from_str(text).unwrap(), &Spec::discrete(4, 2))
    }

    #[test]
    fn differences_list_settings_but_not_placement() {
        let base = "[run]\nname = 'a'\nseed = 1\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[learn]\nalgorithm = 'ppo'\n";
        let other = base.replace("seed = 1", "seed = 999").replace("'a'", "'b'")
            + "gamma = 0.5\n[watch]\nlost_after_s = 9\n";
        let (there, here) = (described(base), described(&other));
        assert_eq!(there.differences(&here), ["learn.gamma 0.99, now 0.5", "run.seed 1, now 999"]);
        assert!(there.differences(&there).is_empty());
        let limited = described(&base.replace("num_envs = 4", "num_envs = 4\nmax_episode_steps = 7"));
        assert_eq!(there.differences(&limited), ["env.max_episode_steps not set, now 7"]);
        assert!(there.settings().contains(&("learn.gamma".into(), json!(0.99))));
        assert!(there.settings().iter().any(|(name, _)| name == "version.libtorch"));
    }
}
