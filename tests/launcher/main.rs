//! `rankdeck-launcher`, which packages install as `rankdeck-trainer`: what it does where no libtorch is, and
//! how it becomes the trainer where one is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a test that cannot go on must fail"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An installed rankdeck: the launcher, and a fake trainer that prints how it was started.
struct Installation {
    prefix: tempfile::TempDir,
}

impl Installation {
    fn new() -> Installation {
        let prefix = tempfile::tempdir().unwrap();
        let place = |path: &str| {
            let path = prefix.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        std::fs::copy(env!("CARGO_BIN_EXE_rankdeck-launcher"), place("bin/rankdeck-trainer")).unwrap();
        let trainer = place("libexec/rankdeck/rankdeck-trainer");
        std::fs::write(&trainer, "#!/bin/sh\necho \"$LD_LIBRARY_PATH|$*\"\nexit 7\n").unwrap();
        std::fs::set_permissions(&trainer, PermissionsExt::from_mode(0o755)).unwrap();
        Installation { prefix }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.prefix.path().join(path)
    }

    /// Starts it in an empty folder with nothing else in its environment.
    fn run(&self, words: &[&str], env: &[(&str, &Path)]) -> Output {
        std::fs::create_dir_all(self.path("empty")).unwrap();
        let mut command = Command::new(self.path("bin/rankdeck-trainer"));
        command.args(words).env_clear().env("HOME", self.path("empty")).current_dir(self.path("empty"));
        command.envs(env.iter().copied()).output().unwrap()
    }

    /// A torch of a Python below a prefix of its own.
    fn torch(&self, name: &str, version: &str) -> PathBuf {
        let folder = self.path(name).join("lib/python3.12/site-packages/torch");
        std::fs::create_dir_all(folder.join("lib")).unwrap();
        std::fs::write(folder.join("lib/libtorch_cpu.so"), "").unwrap();
        std::fs::write(folder.join("version.py"), format!("__version__ = '{version}'\n")).unwrap();
        folder.join("lib")
    }
}

fn words(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn help_and_environment_checks_work_without_libtorch() {
    let installed = Installation::new();
    let help = installed.run(&["--help"], &[]);
    assert!(help.status.success() && words(&help.stdout).contains("--setup-env"), "{help:?}");
    let version = installed.run(&["--version"], &[]);
    assert!(words(&version.stdout).starts_with("rankdeck-trainer "), "{version:?}");
    let checked = installed.run(&["--check-env", "CartPole-v1"], &[]);
    assert!(checked.status.success() && words(&checked.stdout).contains("CartPole-v1"), "{checked:?}");
    let python = installed.path("nothing");
    let set_up = installed.run(&["--setup-env", "venv", "--python", python.to_str().unwrap()], &[]);
    assert_eq!(set_up.status.code(), Some(2), "{set_up:?}");
    assert!(words(&set_up.stderr).contains("python3-venv"), "{set_up:?}");
}

#[test]
fn experiment_is_checked_without_the_network_without_libtorch() {
    let installed = Installation::new();
    let experiment = "[run]\nname = 'x'\ntotal_steps = 512\n[env]\nid = 'Pendulum-v1'\nnum_envs = 4\n\
                      [learn]\nalgorithm = 'ppo'\n";
    std::fs::write(installed.path("x.toml"), experiment).unwrap();
    let checked = installed.run(&["--check-env", "CartPole-v1", "--config", "../x.toml"], &[]);
    let text = words(&checked.stdout);
    assert!(checked.status.success() && text.contains("libtorch"), "the network is not checked: {checked:?}");
}

#[test]
fn rank_without_libtorch_is_refused_with_a_command() {
    let installed = Installation::new();
    let alone = installed.run(&["--config", "x.toml"], &[]);
    assert_eq!(alone.status.code(), Some(2), "{alone:?}");
    let error = words(&alone.stderr);
    assert!(error.contains("pip install torch==2.11") && error.contains("LIBTORCH"), "{error}");

    installed.torch("venv", "2.9.1");
    let venv = installed.path("venv");
    let other = installed.run(&["--config", "x.toml"], &[("VIRTUAL_ENV", &venv)]);
    let error = words(&other.stderr);
    assert!(error.contains("2.11.x") && error.contains("2.9.1"), "{error}");
}

#[test]
fn launcher_execs_the_trainer_with_the_active_torch() {
    let installed = Installation::new();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let lib = installed.torch("active", "2.11.0+cu128");
        let prefix = installed.path("active");
        let became = installed.run(&["--config", "x.toml", "--spawn", "2"], &[(variable, &prefix)]);
        assert_eq!(became.status.code(), Some(7), "the trainer's own end: {became:?}");
        assert_eq!(words(&became.stdout), format!("{}|--config x.toml --spawn 2\n", lib.display()));
    }
    // Not active: the environment that it was installed in.
    let lib = installed.torch(".", "2.11.0");
    let own = words(&installed.run(&["--config", "x.toml"], &[]).stdout);
    assert_eq!(
        Path::new(own.split('|').next().unwrap()).canonicalize().unwrap(),
        lib.canonicalize().unwrap()
    );
}

/// An interpreter whose `-m venv` makes one that prints its arguments and installs nothing.
#[test]
fn setup_env_installs_a_matching_torch() {
    let installed = Installation::new();
    let python = installed.path("python3");
    let inner = "#!/bin/sh\\necho \"$@\"\\nexit 3\\n";
    let outer = format!(
        "#!/bin/sh\nmkdir -p \"$3/bin\"\nprintf '{inner}' >\"$3/bin/python\"\nchmod 755 \"$3/bin/python\"\n"
    );
    std::fs::write(&python, outer).unwrap();
    std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
    let path: &Path = Path::new("/usr/bin:/bin");
    let python = python.to_str().unwrap();
    let with = installed.run(&["--setup-env", "with", "--torch", "--python", python], &[("PATH", path)]);
    assert_eq!(with.status.code(), Some(2), "{with:?}");
    assert!(words(&with.stdout).contains(" ale-py==0.12.* torch==2.11.*\n"), "{with:?}");
    let without = installed.run(&["--setup-env", "without", "--python", python], &[("PATH", path)]);
    assert!(words(&without.stdout).contains(" ale-py==0.12.*\n"), "{without:?}");
}
