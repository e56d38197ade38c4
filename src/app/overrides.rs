//! Overrides of a run's experiment, parsed as `--set`.

use rankdeck_config::change_experiment;
use rankdeck_tui::restart_draft::ChangedExperiment;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::{hidden, override_key};
use toml::{Table, Value};

/// Keys that cannot change during a run, and why.
const FIXED: [(&str, &str, &str); 3] = [
    ("run.name", "the name of a run cannot change", "launch another run with `rankdeck run EXPERIMENT.toml`"),
    (
        "launch.code",
        "the directory of a run's code cannot change",
        "upload its current content with `--code new`",
    ),
    (
        "launch.include",
        "the directory of a run's code cannot change",
        "upload its current content with `--code new`",
    ),
];

/// Applies overrides to an experiment.
///
/// # Errors
/// All mistakes in the overrides and in the resulting experiment.
pub fn change(experiment: &Experiment, sets: &[String]) -> Result<ChangedExperiment, Vec<String>> {
    let mut wrong = Vec::new();
    for set in sets {
        let keys = override_key::keys(set);
        // A table that is unset takes its keys with it.
        let is_within = |key: &str, table: &str| {
            set.trim().starts_with('~') && key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'))
        };
        let is_set = |key: &str| keys.iter().any(|own| own == key || is_within(key, own));
        if let Some((key, why, hint)) = FIXED.iter().find(|(key, ..)| is_set(key)) {
            wrong.push(format!("{key}: {why}; hint: {hint}"));
        }
        if !set.contains('=') && !set.starts_with('~') {
            wrong.push(format!("`{set}`: expected KEY=VALUE"));
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let changed = change_experiment(experiment, sets).map_err(|found| {
        let text = |one: &rankdeck_config::Diagnostic| {
            let hint = if one.hint.is_empty() { String::new() } else { format!("; hint: {}", one.hint) };
            format!("{}{hint}", one.message)
        };
        found.0.iter().map(text).collect::<Vec<_>>()
    })?;
    let differences = differences(experiment, &changed);
    Ok(ChangedExperiment { experiment: Box::new(changed), differences, unchecked: false })
}

/// Returns the differing keys with both values; secrets are hidden, and still differ.
pub(crate) fn differences(was: &Experiment, is: &Experiment) -> Vec<(String, String, String)> {
    let table = |own: &Experiment| Table::try_from(own).ok();
    let shown = |own: &Experiment| table(&hidden::experiment(own));
    let (Some(own), Some(shown)) = (table(was).zip(table(is)), shown(was).zip(shown(is))) else {
        return Vec::new();
    };
    let mut keys = Vec::new();
    compare(&[], &own.0, &own.1, &mut keys);
    let text = |table: &Table, path: &[String]| {
        let (last, above) = path.split_last()?;
        let within = above.iter().try_fold(table, |table, key| table.get(key)?.as_table())?;
        Some(within.get(last)?.to_string())
    };
    let shown_in = |table: &Table, path: &[String]| text(table, path).unwrap_or_else(|| "-".to_owned());
    let row = |path: Vec<String>| (path.join("."), shown_in(&shown.0, &path), shown_in(&shown.1, &path));
    keys.into_iter().map(row).collect()
}

fn compare(above: &[String], was: &Table, is: &Table, found: &mut Vec<Vec<String>>) {
    let gone = was.keys().filter(|key| !is.contains_key(*key));
    for key in is.keys().chain(gone) {
        let path: Vec<String> = above.iter().chain([key]).cloned().collect();
        match (was.get(key), is.get(key)) {
            (Some(Value::Table(was)), Some(Value::Table(is))) => compare(&path, was, is, found),
            (was, is) if was != is => found.push(path),
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
    fn overrides_list_old_and_new_values() {
        let changed = change(&experiment(), &sets(&["learn.gamma=0.5", "env.num_envs=8"])).unwrap();
        assert_eq!(changed.experiment.env.as_ref().unwrap().num_envs, 8);
        let keys: Vec<&str> = changed.differences.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["env.num_envs", "learn.gamma"]);
        assert_eq!(changed.differences[0].1, "4");
        assert_eq!(change(&experiment(), &[]).unwrap().differences, []);
    }

    #[test]
    fn fixed_key_is_refused_in_every_spelling() {
        for set in
            ["run.name=b", "run . name=b", "run.\"name\"='b'", "run={name='b'}", "~launch.code", "~ launch"]
        {
            assert!(
                change(&experiment(), &sets(&[set])).is_err_and(|wrong| wrong[0].contains("hint: ")),
                "{set}"
            );
        }
    }

    #[test]
    fn hide_1_changed_secret_is_listed_but_hidden() {
        let with = |value: &str| {
            let mut own = experiment();
            own.launch.env.insert("API_TOKEN".into(), value.into());
            own
        };
        let found = differences(&with("hunter2"), &with("hunter3"));
        assert_eq!(found.iter().map(|(key, ..)| key.as_str()).collect::<Vec<_>>(), ["launch.env.API_TOKEN"]);
        let found = format!("{found:?} {:?}", differences(&experiment(), &with("hunter2")));
        assert!(found.contains("API_TOKEN") && !found.contains("hunter"), "{found}");
    }

    #[test]
    fn all_mistakes_have_hints() {
        let wrong = |all: &[&str]| change(&experiment(), &sets(all)).unwrap_err().join("\n");
        assert!(wrong(&["run.name=y"]).contains("run.name"));
        assert!(wrong(&["learn.gama=0.5"]).contains("gamma"));
        assert!(wrong(&["gamma"]).contains("KEY=VALUE"));
        assert!(wrong(&["learn.gamma=2"]).contains("number"));
    }
}
