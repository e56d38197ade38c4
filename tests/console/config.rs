//! Configuration files: good ones load, bad ones are refused with the exact message next to them, and the
//! shipped files work together. `UPDATE_EXPECTED=1` rewrites the messages.

// Clippy spares only the test functions themselves, not what they share.

use rankdeck_config::{Diagnostics, ExperimentSource, HostsSource};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{GpuSelection, Host, Hosts, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::{PlanDraft, PlannedBackend};
use rankdeck_types::schema::{self, ConfigKey, Fallback, Keys, ValueKind, Variant};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn load_hosts(path: &Path) -> Result<Vec<Host>, Diagnostics> {
    rankdeck_config::load_hosts(&HostsSource::File(path.to_owned()))
}

fn load_experiment(path: impl AsRef<Path>, sets: &[String]) -> Result<Experiment, Diagnostics> {
    rankdeck_config::load_experiment(&ExperimentSource::File(path.as_ref().to_owned()), sets)
}

fn load_draft(
    hosts: &Path,
    experiment: &Path,
    sets: &[String],
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<PlanDraft, Diagnostics> {
    rankdeck_config::load_draft(
        &HostsSource::File(hosts.to_owned()),
        &ExperimentSource::File(experiment.to_owned()),
        sets,
        run,
    )
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no .{extension} files in {folder}");
    found
}

fn run_id(experiment: &Experiment) -> RunId {
    RunId(format!("{}-20260101-000000", experiment.run.name))
}

fn is_update() -> bool {
    std::env::var_os("UPDATE_EXPECTED").is_some()
}

/// Compares with a committed file, or rewrites it.
fn expect(path: &Path, text: &str) -> Result<(), String> {
    if is_update() {
        fs::write(path, text).unwrap();
        return Ok(());
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    match expected == text {
        true => Ok(()),
        false => Err(format!("{} differs.\n--- expected\n{expected}\n--- found\n{text}\n", path.display())),
    }
}

fn refusal(path: &Path) -> Result<(), Diagnostics> {
    let name = path.file_name().unwrap().to_str().unwrap();
    if name.starts_with("hosts_") {
        load_hosts(path).map(|_| ())
    } else if name.starts_with("plan_") {
        let own = path.with_extension("hosts");
        let hosts = if own.exists() { own } else { PathBuf::from("hosts.toml") };
        load_draft(&hosts, path, &[], run_id).map(|_| ())
    } else {
        load_experiment(path, &[]).map(|_| ())
    }
}

#[test]
fn invalid_file_has_its_expected_output() {
    let mut wrong = String::new();
    for path in files("tests/configs/invalid", "toml") {
        match refusal(&path) {
            Ok(()) => writeln!(wrong, "{} was accepted", path.display()).unwrap(),
            Err(all) => {
                for one in &all.0 {
                    assert!(!one.message.ends_with('.'), "{one}");
                    assert!(one.span.is_some() || !one.hint.is_empty(), "neither line nor hint:\n{one}");
                }
                if let Err(difference) = expect(&path.with_extension("expected"), &format!("{all}\n")) {
                    wrong.push_str(&difference);
                }
            }
        }
    }
    for path in files("tests/configs/invalid", "expected") {
        assert!(path.with_extension("toml").exists(), "{} has no file", path.display());
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn valid_file_loads() {
    for path in files("tests/configs/valid", "toml") {
        let loaded = match path.ends_with("hosts.toml") {
            true => load_hosts(&path).map(|_| ()),
            false => load_experiment(&path, &[]).map(|_| ()),
        };
        loaded.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn host_overrides_defaults() {
    let hosts = load_hosts(Path::new("tests/configs/valid/hosts.toml")).unwrap();
    let [gpu0, gpu1, here] = hosts.as_slice() else { panic!("{hosts:?}") };
    assert_eq!(
        (gpu0.address.as_str(), gpu0.port, gpu0.user.as_deref()),
        ("10.0.0.10", Some(2222), Some("alice"))
    );
    assert_eq!(gpu0.env, [("A", "default"), ("B", "host")].map(|(k, v)| (k.into(), v.into())).into());
    assert_eq!((gpu0.gpus.clone(), gpu0.nproc), (Some(GpuSelection::Word("all".into())), Some(2)));
    assert_eq!((gpu1.address.as_str(), gpu1.nproc, gpu1.workdir.as_str()), ("gpu1", Some(4), "/data/runs"));
    assert_eq!(gpu0.workdir, "rankdeck");
    assert_eq!(
        (here.transport, here.address.as_str(), here.workdir.as_str()),
        (Transport::Local, "127.0.0.1", ".")
    );
    assert_eq!(here.gpus, Some(GpuSelection::Count(0)));
}

#[test]
fn shipped_file_resolves_to_a_plan() {
    for path in files("configs", "toml") {
        let draft =
            load_draft(Path::new("hosts.toml"), &path, &[], run_id).unwrap_or_else(|error| panic!("{error}"));
        let plan = draft.resolve(&[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let backend = if plan.is_builtin() { PlannedBackend::Tcp } else { PlannedBackend::Own };
        assert_eq!((plan.world_size(), plan.backend()), (2, backend), "{}", path.display());
    }
    let draft =
        load_draft(Path::new("hosts.toml"), Path::new("configs/cartpole_ppo.toml"), &[], run_id).unwrap();
    let plan = draft.resolve(&[]).unwrap();
    let sizes: Vec<(&str, u64, u64)> =
        plan.sizes.iter().map(|s| (s.name.as_str(), s.local, s.global)).collect();
    assert_eq!(
        sizes,
        [("num_envs", 2, 4), ("batch", 256, 512), ("minibatch", 64, 128), ("iterations", 976, 976)]
    );
}

/// Keys in comments of the sample must be valid.
#[test]
fn sample_hosts_file_shows_every_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "").unwrap();
    let sample = fs::read_to_string("hosts.toml").unwrap();
    let is_code = |line: &str| {
        line.starts_with("[[") || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
    };
    let text: String = sample
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| is_code(rest)).unwrap_or(line))
        .map(|line| format!("{}\n", line.replace("~/.ssh/id_ed25519", key.to_str().unwrap())))
        .collect();
    let path = folder.path().join("hosts.toml");
    fs::write(&path, &text).unwrap();
    let hosts = load_hosts(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(hosts.len(), 3);
    let Some(ValueKind::Tables(keys)) = schema::find(Hosts::KEYS, &["host"]).map(|key| &key.kind) else {
        panic!()
    };
    for key in keys.iter() {
        assert!(text.contains(&format!("{} = ", key.name)), "hosts.toml lacks `{}`", key.name);
    }
}

#[test]
fn resolved_experiment_loads_again_and_is_equal() {
    let folder = tempfile::tempdir().unwrap();
    for path in [files("configs", "toml"), files("tests/configs/valid", "toml")].concat() {
        if path.ends_with("hosts.toml") {
            continue;
        }
        let experiment = load_experiment(&path, &["run.seed=7".into()]).unwrap();
        assert_eq!(experiment.run.seed, 7);
        let written = folder.path().join("experiment.toml");
        fs::write(&written, toml::to_string(&experiment).unwrap()).unwrap();
        let again =
            load_experiment(&written, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(again, experiment);
    }
}

#[test]
fn missing_file_is_named_with_a_hint() {
    let missing = load_hosts(Path::new("nowhere/hosts.toml")).unwrap_err();
    let [error] = missing.0.as_slice() else { panic!("{missing}") };
    assert_eq!(error.file, "nowhere/hosts.toml");
    assert!(error.hint.contains("rankdeck init"), "{missing}");
    let directory = load_experiment(Path::new("configs"), &[]).unwrap_err().to_string();
    assert!(directory.contains("--> configs"), "{directory}");
    let both = load_draft(Path::new("nowhere/h.toml"), Path::new("nowhere/e.toml"), &[], run_id).unwrap_err();
    assert_eq!(both.0.len(), 2);
}

#[test]
fn binary_or_oversized_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    fs::write(&path, b"a = \"\xff\"").unwrap();
    assert!(load_hosts(&path).unwrap_err().0[0].message.contains("byte 5"));
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(load_hosts(&path).unwrap_err().0[0].message.contains("1048576"));
}

#[test]
fn deep_nesting_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    let deep =
        |open: &str, close: &str, count: usize| format!("{}1{}", open.repeat(count), close.repeat(count));
    let dotted = format!("{}x = 1\n", "a.".repeat(200_000));
    let texts = [
        format!("x = {}", deep("[", "]", 200_000)),
        format!("x = {}", deep("{a=", "}", 100_000)),
        dotted.clone(),
    ];
    for text in texts {
        fs::write(&path, &text).unwrap();
        assert!(load_experiment(&path, &[]).is_err());
        assert!(load_hosts(&path).is_err());
    }
    assert!(load_experiment(Path::new("configs/cartpole_ppo.toml"), &[dotted.replace('\n', "")]).is_err());
}

#[test]
fn override_wins_and_its_error_quotes_the_command_line() {
    let path = Path::new("configs/cartpole_ppo.toml");
    let set =
        |sets: &[&str]| load_experiment(path, &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    let experiment = set(&["env.num_envs=8", "run.name=other", "launch.env.X=1", "env.num_envs=16"]).unwrap();
    assert_eq!(experiment.env.as_ref().unwrap().num_envs, 16);
    assert_eq!((experiment.run.name.as_str(), experiment.launch.env["X"].as_str()), ("other", "1"));
    let shown = set(&["learn.gama=0.9", "learn.gamma=2", "learn.gae_lambda=high"]).unwrap_err().to_string();
    insta::assert_snapshot!(shown);
}

#[test]
fn plan_error_points_to_the_override() {
    let (hosts_path, path) = (Path::new("hosts.toml"), Path::new("configs/cartpole_ppo.toml"));
    let sets = ["env.num_envs=3".to_owned()];
    let shown = load_draft(hosts_path, path, &sets, run_id).unwrap_err().to_string();
    assert!(shown.contains("--> --set:1:14") && shown.contains("env.num_envs=3"), "{shown}");
}

#[test]
fn hosts_file_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slurm:x.toml");
    fs::write(&path, "[[host]]\nname = \"a\"\ntransport = \"local\"\n").unwrap();
    assert_eq!(load_hosts(&path).unwrap()[0].name, "a");
    let relative = load_hosts(Path::new("slurm:gone.toml")).unwrap_err().to_string();
    assert!(relative.contains("--> slurm:gone.toml"), "{relative}");
}

/// Both come from one definition; this checks the serde attributes of tables with required keys.
#[test]
fn schema_agrees_with_serde() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    let learn = schema::find(Experiment::KEYS, &["learn"]).unwrap();
    let ValueKind::Tagged { variants, .. } = learn.kind else { panic!("{learn:?}") };
    for variant in variants {
        let word = variant.word;
        let text = format!(
            "run = {{ name = 'x', total_steps = 1000 }}\nenv = {{ id = 'CartPole-v1', num_envs = 1 }}\nlearn = {{ algorithm = '{word}' }}\n"
        );
        fs::write(&path, text).unwrap();
        let file = if word == "ppo" { "every_key".to_owned() } else { format!("every_key_{word}") };
        let every = fs::read_to_string(format!("tests/configs/valid/{file}.toml")).unwrap();
        schema_and_serde_agree(&path, &toml::from_str(&every).unwrap(), variant, word == "ppo");
    }
}

/// With the keys `learn` of one algorithm; `whole`: `every` uses the other sections' keys too.
fn schema_and_serde_agree(path: &Path, every: &toml::Table, learn: &'static Variant, whole: bool) {
    let resolved = toml::Value::try_from(load_experiment(path, &[]).unwrap()).unwrap();
    // One file cannot use all keys of other sections: some exclude each other.
    let others: Vec<toml::Table> = fs::read_dir("tests/configs/valid")
        .unwrap()
        .map(|file| toml::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap())
        .collect();
    let used_elsewhere = |section: &str, key: &str| {
        others.iter().any(|file| file.get(section).is_some_and(|table| table.get(key).is_some()))
    };
    for section in Experiment::KEYS {
        let section_keys = |section: &'static ConfigKey| match section.name {
            "learn" => Box::new(learn.all_keys()),
            _ => section_keys(section),
        };
        for key in section_keys(section) {
            let found = resolved.get(section.name).and_then(|table| table.get(key.name));
            let path = format!("{}.{}", section.name, key.name);
            let is_launch_command = path == "launch.command";
            assert!(
                is_launch_command
                    || !whole && section.name != "learn"
                    || every[section.name].get(key.name).is_some()
                    || used_elsewhere(section.name, key.name),
                "no file in tests/configs/valid uses {path}"
            );
            match (&key.default, found) {
                (Fallback::Value(_), _) if path == "run.total_steps" => {}
                (Fallback::Value(text), Some(found)) => {
                    let default: toml::Table = toml::from_str(&format!("x = {}", text())).unwrap();
                    assert_eq!(found, &default["x"], "{path}");
                }
                (Fallback::Required, Some(_)) | (Fallback::Words(_), None) => {}
                (default, found) => panic!("{path}: schema {default:?}, serde {found:?}"),
            }
        }
        let known: BTreeSet<&str> = section_keys(section).map(|key| key.name).collect();
        for name in resolved.get(section.name).unwrap().as_table().unwrap().keys() {
            assert!(known.contains(name.as_str()), "the schema lacks {}.{name}", section.name);
        }
    }
}

/// The keys of a table.
pub fn section_keys(section: &'static ConfigKey) -> Box<dyn Iterator<Item = &'static ConfigKey>> {
    match &section.kind {
        ValueKind::Table(keys) | ValueKind::Tables(keys) => Box::new(keys.iter()),
        ValueKind::Tagged { variants, .. } => Box::new(variants.iter().flat_map(Variant::all_keys)),
        _ => Box::new(std::iter::empty()),
    }
}

mod nothing_panics {
    use super::*;
    use proptest::prelude::*;

    fn word() -> impl Strategy<Value = String> {
        let names: Vec<&'static str> = [Hosts::KEYS, Experiment::KEYS]
            .into_iter()
            .flat_map(|keys: Keys| keys)
            .flat_map(|key| section_keys(key).chain([key]))
            .map(|key| key.name)
            .collect();
        let values = [
            "\"all\"",
            "0",
            "-1",
            "1e9",
            "nan",
            "true",
            "[]",
            "[0, 0]",
            "{}",
            "\"\"",
            "\"a\"",
            "[[1]]",
            "99999999999999999999",
            "1979-05-27",
            "\"ppo\"",
        ];
        prop_oneof![
            4 => (proptest::sample::select(names.clone()), proptest::sample::select(values.to_vec())).prop_map(|(k, v)| format!("{k} = {v}\n")),
            2 => proptest::sample::select(names).prop_map(|name| format!("[{name}]\n")),
            2 => Just("[[host]]\n".to_owned()),
            1 => "\\PC{0,20}\n",
        ]
    }

    proptest! {
        #[test]
        fn any_input_is_reported_without_panic(parts in proptest::collection::vec(word(), 0..20), set in "\\PC{0,30}", other in word()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.toml");
            fs::write(&path, parts.concat()).unwrap();
            for result in [load_hosts(&path).map(|_| ()), load_experiment(&path, &[set, other]).map(|_| ())] {
                if let Err(all) = result {
                    prop_assert!(!all.0.is_empty());
                    prop_assert!(!all.to_string().chars().any(|c| c.is_control() && c != '\n'));
                }
            }
        }
    }
}
