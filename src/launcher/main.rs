//! `rankdeck-trainer` as packages install it: starts without libtorch, and becomes the trainer.

use clap::Parser;
use rankdeck_envs::log::{print_line, warn};
use rankdeck_launcher::Flags;
use rankdeck_launcher::{LaunchError, discovery, environments};
use rankdeck_proto::folders;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match begin(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(LaunchError { hinted, usage }) => {
            warn(&format!("rankdeck-trainer: error: {}", hinted.error));
            if !hinted.hint.is_empty() {
                warn(&format!("rankdeck-trainer: hint: {}", hinted.hint));
            }
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn begin(flags: &Flags) -> Result<(), LaunchError> {
    if let Some(folder) = &flags.setup_env {
        return environments::set_up(folder, flags);
    }
    let libraries = discovery::Surroundings::here().libraries();
    let trainer =
        folders::executable().ok_or_else(|| LaunchError::failure("cannot find this program's own file", ""));
    let trainer = trainer.and_then(|own| discovery::trainer(&own));
    if flags.check_env.is_some() {
        let is_whole = flags.config.as_os_str() == "-";
        if is_whole || libraries.is_err() || trainer.is_err() {
            let checked = environments::check(flags)?;
            if checked.experiment.is_some_and(|experiment| experiment.learn.is_some()) {
                print_line("  network       not checked (needs libtorch)");
            }
            return Ok(());
        }
    }
    let (libraries, trainer) = (libraries?, trainer?);
    let before = std::env::var_os("LD_LIBRARY_PATH").filter(|value| !value.is_empty());
    let before = before.iter().flat_map(std::env::split_paths).filter(|path| *path != libraries);
    let path = std::env::join_paths(std::iter::once(libraries.clone()).chain(before)).map_err(|error| {
        LaunchError::usage(
            format!("cannot add {} to LD_LIBRARY_PATH: {error}", libraries.display()),
            "move libtorch to a path without `:`",
        )
    })?;
    let error = Command::new(&trainer).args(std::env::args_os().skip(1)).env("LD_LIBRARY_PATH", path).exec();
    Err(LaunchError::failure(
        format!("cannot start {}: {error}", trainer.display()),
        "reinstall rankdeck: its programs belong together",
    ))
}
