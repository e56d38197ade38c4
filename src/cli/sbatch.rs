//! `rankdeck sbatch`: a script that runs an experiment in a Slurm job.
//!
//! The console is the batch script itself (`exec`), so that `scancel --batch --signal=TERM` and the warning
//! before the time limit reach it: it stops the run with a checkpoint, and the job ends when every agent has
//! verified that nothing is left.

use super::args::SbatchArgs;
use super::roster::own_binary;
use super::{Failure, code, print};
use rankdeck_link::ssh::quote;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// `rankdeck sbatch`.
pub fn sbatch(hosts_path: &Path, args: &SbatchArgs) -> Result<u8, Failure> {
    let experiment = rankdeck_config::load_experiment(&args.experiment, &args.set)?;
    let binary = own_binary()?.display().to_string();
    let folder = std::env::current_dir().map_err(|error| {
        Failure::failed(format!("failed to find the current folder: {error}"))
            .hint("`cd` into a folder that exists and that you may read")
    })?;
    let script = script(args, hosts_path, &experiment.run.name, &binary, &folder)?;
    if args.dry_run {
        print::stdout(script.trim_end());
        return Ok(code::SUCCESS);
    }
    let failed = |error: std::io::Error| {
        Failure::failed(format!("failed to run sbatch: {error}")).hint("`--dry-run` shows the script")
    };
    let mut child = Command::new("sbatch")
        .arg("--parsable")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(Failure::failed("sbatch refused the script").hint("`--dry-run` shows the script"));
    }
    // `JOB` or `JOB;CLUSTER`.
    let answer = String::from_utf8_lossy(&output.stdout);
    let job = answer.trim().split(';').next().unwrap_or_default();
    print::stdout(&format!("submitted: job {job}"));
    print::stderr(&format!(
        "hint: output goes to {}-{job}.out; `scancel --batch --signal=TERM {job}` stops it with a checkpoint",
        experiment.run.name
    ));
    Ok(code::SUCCESS)
}

fn script(
    args: &SbatchArgs,
    hosts: &Path,
    name: &str,
    binary: &str,
    folder: &Path,
) -> Result<String, Failure> {
    let mut lines = vec!["#!/bin/sh".to_owned()];
    let mut option = |text: String| lines.push(format!("#SBATCH {text}"));
    option(format!("--job-name={name}"));
    option(format!("--nodes={}", args.nodes));
    match (args.ntasks_per_node, args.gpus_per_node) {
        (Some(tasks), _) => option(format!("--ntasks-per-node={tasks}")),
        (None, gpus) => option(format!("--ntasks-per-node={}", gpus.max(1))),
    }
    if args.gpus_per_node > 0 {
        option(format!("--gpus-per-node={}", args.gpus_per_node));
    }
    option(format!("--output={name}-%j.out"));
    // The batch script alone is warned: it stops the ranks in good order.
    option(format!("--signal=B:TERM@{}", args.stop_before_s));
    if let Some(time) = &args.time {
        option(format!("--time={time}"));
    }
    args.option.iter().for_each(|text| option(text.clone()));
    if let Some(bad) = lines.iter().find(|line| line.contains('\n')) {
        return Err(Failure::usage(format!("an option of sbatch must be one line: {bad:?}"))
            .hint("give each option with an `--option` of its own"));
    }
    let experiment = args.experiment.display().to_string();
    let mut words = vec![binary, "run", &experiment, "--slurm", "--headless"];
    let hosts = hosts.display().to_string();
    if Path::new(&hosts).exists() {
        words.extend(["--hosts", hosts.as_str()]);
    }
    words.extend(args.set.iter().flat_map(|set| ["--set", set.as_str()]));
    let folder = folder.display().to_string();
    lines.push(format!("cd {} || exit 2", quote::word(&folder)));
    lines.push(format!("exec {}", quote::words(words.into_iter())));
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SbatchArgs {
        SbatchArgs {
            experiment: "my exp.toml".into(),
            nodes: 2,
            ntasks_per_node: None,
            gpus_per_node: 4,
            time: Some("1:00:00".into()),
            set: vec!["run.seed=3".into()],
            option: vec!["--partition=gpu".into()],
            stop_before_s: 90,
            dry_run: true,
        }
    }

    #[test]
    fn the_script_says_what_slurm_has_to_know_and_becomes_the_console() {
        let text =
            script(&args(), Path::new("/no/hosts.toml"), "exp", "/bin/rankdeck", Path::new("/w d")).unwrap();
        for line in [
            "#SBATCH --nodes=2",
            "#SBATCH --ntasks-per-node=4",
            "#SBATCH --gpus-per-node=4",
            "#SBATCH --signal=B:TERM@90",
            "#SBATCH --time=1:00:00",
            "#SBATCH --partition=gpu",
            "cd '/w d' || exit 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("exec /bin/rankdeck run 'my exp.toml' --slurm --headless"), "{last}");
        assert!(last.ends_with("--set run.seed=3"), "{last}");
        let evil = SbatchArgs { option: vec!["--x\nrm -rf /".into()], ..args() };
        assert!(script(&evil, Path::new("h"), "exp", "r", Path::new("/")).is_err());
    }
}
