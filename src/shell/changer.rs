//! Changed keys of a run's experiment, read as `--set` reads them.

use rankdeck_config::change_experiment;
use rankdeck_tui::restart_draft::ChangedExperiment;
use rankdeck_types::experiment::Experiment;
use toml::{Table, Value};

/// Keys that a run keeps as long as it lives, and what to do instead.
const FIXED: [(&str, &str); 3] = [
    ("run.name", "a run keeps its name"),
    ("launch.code", "the code of a run stays on its hosts"),
    ("launch.include", "the code of a run stays on its hosts"),
];

/// The experiment with these `KEY=VALUE`.
///
/// # Errors
/// All that is wrong with them, and with what they make of the rest.
pub fn change(experiment: &Experiment, sets: &[String]) -> Result<ChangedExperiment, Vec<String>> {
    let mut wrong = Vec::new();
    for set in sets {
        let path = set.trim_start_matches('~').split('=').next().unwrap_or_default().trim();
        if let Some((key, why)) = FIXED.iter().find(|(key, _)| *key == path) {
            wrong.push(format!("{key}: {why}; hint: `rankdeck run EXPERIMENT.toml` begins another run"));
        }
        if !set.contains('=') && !set.starts_with('~') {
            wrong.push(format!("`{set}`: write KEY=VALUE"));
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let changed = change_experiment(experiment, sets).map_err(|found| {
        let told = |one: &rankdeck_config::Diagnostic| {
            let hint = if one.hint.is_empty() { String::new() } else { format!("; hint: {}", one.hint) };
            format!("{}{hint}", one.message)
        };
        found.0.iter().map(told).collect::<Vec<_>>()
    })?;
    let differences = differences(experiment, &changed);
    Ok(ChangedExperiment { experiment: Box::new(changed), differences })
}

/// Keys that differ, as they were and as they are.
pub fn differences(was: &Experiment, is: &Experiment) -> Vec<(String, String, String)> {
    let (Ok(was), Ok(is)) = (Table::try_from(was), Table::try_from(is)) else { return Vec::new() };
    let mut found = Vec::new();
    compare("", &was, &is, &mut found);
    found
}

fn compare(before: &str, was: &Table, is: &Table, found: &mut Vec<(String, String, String)>) {
    let gone = was.keys().filter(|key| !is.contains_key(*key));
    for key in is.keys().chain(gone) {
        match (was.get(key), is.get(key)) {
            (Some(Value::Table(was)), Some(Value::Table(is))) => {
                compare(&format!("{before}{key}."), was, is, found);
            }
            (was, is) if was != is => {
                let text = |value: Option<&Value>| value.map_or_else(|| "-".to_owned(), ToString::to_string);
                found.push((format!("{before}{key}"), text(was), text(is)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment() -> Experiment {
        let text = "[run]\nname = \"x\"\ntotal_steps = 1000\n[env]\nid = \"CartPole-v1\"\nnum_envs = 4\n[learn]\nalgorithm = \"ppo\"\n";
        toml::from_str(text).unwrap()
    }

    fn sets(all: &[&str]) -> Vec<String> {
        all.iter().map(|set| (*set).to_owned()).collect()
    }

    #[test]
    fn changed_keys_are_told_with_what_they_were() {
        let changed = change(&experiment(), &sets(&["learn.gamma=0.5", "env.num_envs=8"])).unwrap();
        assert_eq!(changed.experiment.env.as_ref().unwrap().num_envs, 8);
        let keys: Vec<&str> = changed.differences.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["env.num_envs", "learn.gamma"]);
        assert_eq!(changed.differences[0].1, "4");
        assert_eq!(change(&experiment(), &[]).unwrap().differences, []);
    }

    #[test]
    fn all_mistakes_are_told_with_what_helps() {
        let wrong = |all: &[&str]| change(&experiment(), &sets(all)).unwrap_err().join("\n");
        assert!(wrong(&["run.name=y"]).contains("keeps its name"));
        assert!(wrong(&["learn.gama=0.5"]).contains("gamma"));
        assert!(wrong(&["gamma"]).contains("KEY=VALUE"));
        assert!(wrong(&["learn.gamma=2"]).contains("number"));
    }
}
