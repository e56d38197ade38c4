//! `rankdeck queue`: lists sweeps, or continues one.

use crate::cli::args::QueueArgs;
use crate::cli::support::run_name::{RUNS, check_readable};
use crate::cli::support::sweep::{carry_on, found};
use crate::cli::support::{Failure, code};
use std::path::Path;

/// No sweep matches the name.
fn none_such(name: Option<&str>) -> Failure {
    let error = match name {
        Some(name) => format!("sweep `{name}` not found in runs/"),
        None => "no sweep found in runs/".to_owned(),
    };
    Failure::usage(error).hint("list sweeps with `rankdeck queue`")
}

/// Runs `rankdeck queue`.
pub(crate) async fn queue(args: QueueArgs) -> Result<u8, Failure> {
    check_readable()?;
    let mut sweeps = found(Path::new(RUNS));
    if let Some(name) = &args.sweep {
        sweeps.retain(|sweep| sweep.name.contains(name.as_str()));
    }
    if args.resume {
        return match sweeps.len() {
            1 => {
                let mut sweep = sweeps.remove(0);
                if args.failed {
                    sweep.trials.iter_mut().for_each(|trial| trial.reopen());
                }
                let finder = sweep.finder()?;
                carry_on(sweep, finder).await
            }
            0 => Err(none_such(args.sweep.as_deref())),
            n => Err(Failure::usage(format!("{n} sweeps match"))
                .hint("choose one: `rankdeck queue SWEEP --resume`")),
        };
    }
    if sweeps.is_empty() && args.sweep.is_some() {
        return Err(none_such(args.sweep.as_deref()));
    }
    if sweeps.is_empty() {
        args.output.outcome("no sweeps");
    }
    for sweep in &sweeps {
        args.output.record(|| sweep.as_json());
        if !args.output.json {
            sweep.print();
        }
    }
    Ok(code::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sweep_is_named() {
        assert!(none_such(Some("nope")).cause.error.contains("`nope`"));
        assert!(!none_such(None).cause.hint.is_empty());
    }
}
