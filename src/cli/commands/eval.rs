//! `rankdeck eval`: evaluates a checkpoint on this machine.

use crate::app::play::NOT_LOADED;
use crate::cli::args::EvalArgs;
use crate::cli::support::{Failure, code, policy};
use rankdeck_config::HostsSource;
use std::process::Stdio;

/// Runs `rankdeck eval`.
pub(crate) async fn eval(hosts_from: &HostsSource, args: EvalArgs) -> Result<u8, Failure> {
    let checkpoint = policy::here(hosts_from, &args.policy, "ckpt", &args.host_keys).await?;
    let mut command = policy::trainer(&checkpoint, &args.worker)?;
    if let Some(episodes) = args.episodes {
        command.arg("--episodes").arg(episodes.to_string());
    }
    if args.output.json {
        command.arg("--json");
    }
    let status = command.stdin(Stdio::null()).status().map_err(|error| {
        Failure::failed(format!("failed to start {}: {error}", command.get_program().display()))
            .hint("reinstall rankdeck and rankdeck-trainer together")
    })?;
    match status.code() {
        Some(NOT_LOADED) => {
            Err(Failure::failed("rankdeck-trainer cannot load libtorch".to_owned()).hint(format!(
                "run `{}` in the active Python environment, or set LIBTORCH to an unpacked torch directory",
                rankdeck_proto::libtorch::FETCH
            )))
        }
        Some(code) => Ok(u8::try_from(code).unwrap_or(code::FAILED)),
        None => Err(Failure::failed(format!("rankdeck-trainer was killed: {status}"))
            .hint("it may have run out of memory: check with `free -h`")),
    }
}
