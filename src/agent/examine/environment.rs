//! The Python environment of the built-in trainer's worker: are its packages there, is the id known, and
//! which actions does it take?
//!
//! Owner: one preflight. Trainer and libtorch are not needed: the interpreter answers. A simulator that takes
//! long to start is no mistake; then nothing is said.

use super::program::{self, CommandOutput};
use rankdeck_proto::examination::{EnvFindings, EnvQuestion, Question};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long an environment may take to be made.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Makes the environment as the worker does, and says what it takes.
const SCRIPT: &str = r#"
import importlib, json, sys
name, atari = sys.argv[1], sys.argv[2] == "atari"
found = {"executable": sys.executable, "missing": [], "error": None, "discrete": None, "image": None}
def say():
    print("RANKDECK-ENV", json.dumps(found), flush=True)
    sys.exit()
for package in ["numpy", "gymnasium"] + (["ale_py"] if atari else []):
    try:
        importlib.import_module(package)
    except ImportError as error:
        found["missing"].append(package)
found["versions"] = {"python": sys.version.split()[0]}
for package in ["numpy", "gymnasium"] + (["ale_py"] if atari else []):
    version = getattr(sys.modules.get(package), "__version__", None)
    if version:
        found["versions"][package] = str(version)
if found["missing"]:
    say()
import gymnasium
if atari:
    import ale_py
    gymnasium.register_envs(ale_py)
try:
    env = gymnasium.make(name)
    space = env.action_space
    found["discrete"] = isinstance(space, gymnasium.spaces.Discrete)
    shape = getattr(env.observation_space, "shape", None) or ()
    found["image"] = len(shape) == 3
except Exception as error:
    found["error"] = "%s: %s" % (type(error).__name__, str(error).splitlines()[0] if str(error) else "")
say()
"#;

pub(super) fn look(question: &Question, env: &EnvQuestion, workdir: &Path) -> EnvFindings {
    let folder = program::nearest(workdir);
    let mut command = Command::new(&env.python);
    let kind = if env.atari { "atari" } else { "any" };
    // NumPy's threads, one for each core, would only spin.
    command
        .args(["-c", SCRIPT, &env.id, kind])
        .env("OMP_NUM_THREADS", "1")
        .envs(&question.env)
        .envs(question.variables.reveal());
    command.current_dir(&folder);
    match program::run(&mut command, PATIENCE) {
        Ok(CommandOutput { output, .. }) => {
            let line = output.lines().find_map(|line| line.strip_prefix("RANKDECK-ENV"));
            line.and_then(|text| serde_json::from_str(text.trim()).ok()).unwrap_or_default()
        }
        Err(error) if error.starts_with("cannot run") => {
            EnvFindings { no_python: Some(error), ..EnvFindings::default() }
        }
        Err(_) => EnvFindings::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(python: &str, id: &str) -> EnvFindings {
        let env = EnvQuestion { python: python.into(), id: id.into(), atari: id.starts_with("ALE/") };
        look(&Question::default(), &env, Path::new("/"))
    }

    #[test]
    fn packages_that_are_missing_are_named() {
        // No packages at all: a venv of its own.
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder.path()).status();
        assert!(made.unwrap().success(), "python3 with venv is needed");
        let python = folder.path().join("bin/python").display().to_string();
        assert_eq!(asked(&python, "ALE/Pong-v5").missing, ["numpy", "gymnasium", "ale_py"]);
        assert_eq!(asked(&python, "Pong").missing, ["numpy", "gymnasium"]);
        assert!(asked("/nope/python", "Pong").no_python.is_some());
    }

    #[test]
    fn an_id_that_gymnasium_does_not_know_and_actions_are_told() {
        let Some(python) = std::env::var_os("RANKDECK_TEST_PYTHON") else {
            return rankdeck_testkit::skipped("RANKDECK_TEST_PYTHON is not set");
        };
        let python = python.to_string_lossy();
        let wrong = asked(&python, "Pong").error.unwrap_or_default();
        assert!(wrong.contains("Pong"), "{wrong}");
        let found = asked(&python, "CartPole-v1");
        assert_eq!(found.discrete, Some(true));
        let names: Vec<&str> = found.versions.keys().map(String::as_str).collect();
        assert_eq!(names, ["gymnasium", "numpy", "python"]);
        assert_eq!(asked(&python, "Pendulum-v1").discrete, Some(false));
    }
}
