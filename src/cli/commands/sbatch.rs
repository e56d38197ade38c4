//! `rankdeck sbatch`: submits a script that runs an experiment in a Slurm job.
//!
//! The console replaces the batch script (`exec`), so that `scancel --batch --signal=TERM` and the signal
//! before the time limit reach it: it stops the run with a checkpoint, and the job ends when every agent has
//! verified that no process is left.

use crate::app::stderr;
use crate::cli::args::SbatchArgs;
use crate::cli::support::run_index::own_binary;
use crate::cli::support::{Failure, code, print, seed, sources};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_types::experiment::Metrics;
use rankdeck_types::quote;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds reserved for killing stuck processes and for the verification.
const VERIFY_S: u32 = 20;

/// Runs `rankdeck sbatch`.
pub(crate) fn sbatch(hosts: &HostsSource, args: &SbatchArgs) -> Result<u8, Failure> {
    let (options, command) = sources::split_rest(&args.rest, args.experiment.is_some())?;
    let source = match &args.experiment {
        Some(path) => ExperimentSource::File(path.clone()),
        None => {
            ExperimentSource::Command { words: command.clone(), ships: false, metrics: Metrics::default() }
        }
    };
    let experiment = rankdeck_config::load_experiment(&source, &args.set)?;
    if seed::is_set(&args.set) {
        seed::demand(&experiment, &source, &[])?;
    }
    let binary = own_binary()?.display().to_string();
    let folder = std::env::current_dir().map_err(|error| {
        Failure::failed(format!("cannot find the current directory: {error}"))
            .hint("`cd` to a readable directory")
    })?;
    let limit = experiment.launch.stop_limit_s;
    let defaults = match hosts {
        HostsSource::File(path) | HostsSource::Slurm { defaults: path } => path.as_path(),
        _ => Path::new(""),
    };
    let own = args.time.iter().map(|time| format!("--time={time}"));
    own.chain(joined(&options)).chain(args.option.iter().cloned()).try_for_each(|option| refuse(&option))?;
    let args =
        &SbatchArgs { option: args.option.iter().cloned().chain(joined(&options)).collect(), ..args.clone() };
    let script = script(args, &command, defaults, (&experiment.run.name, limit), &binary, &folder)?;
    if args.dry_run {
        print::stdout(script.trim_end());
        return Ok(code::SUCCESS);
    }
    let failed = |error: std::io::Error| {
        Failure::failed(format!("failed to run sbatch: {error}")).hint("print the script with `--dry-run`")
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
        return Err(Failure::failed("sbatch rejected the script").hint("print the script with `--dry-run`"));
    }
    // `JOB` or `JOB;CLUSTER`.
    let answer = String::from_utf8_lossy(&output.stdout);
    let job = answer.trim().split(';').next().unwrap_or_default();
    print::stdout(&format!("submitted: job {job}"));
    stderr::line(&format!(
        "hint: output goes to {}-{job}.out; stop with a checkpoint: `scancel --batch --signal=TERM {job}`",
        experiment.run.name
    ));
    Ok(code::SUCCESS)
}

/// Joins `--partition gpu` into one option; an option with `=` is complete.
fn joined(words: &[String]) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for word in words {
        match options.last_mut() {
            Some(option) if !word.starts_with('-') => {
                option.push(' ');
                option.push_str(word);
            }
            _ => options.push(word.clone()),
        }
    }
    options
}

/// Rejects an option that sbatch would reject or ignore.
fn refuse(option: &str) -> Result<(), Failure> {
    let (name, value) =
        option.split_once(['=', ' ']).map_or((option, None), |(name, value)| (name, Some(value)));
    if !name.starts_with('-') {
        return Err(Failure::usage(format!("invalid sbatch option `{option}`"))
            .hint(format!("options start with `-`: write `--{option}`")));
    }
    let Some(value) = value.map(str::trim) else { return Ok(()) };
    let (fits, form) = match name {
        "--time" | "-t" | "--time-min" => {
            (is_time(value), "such as `8:00:00`, `90` (minutes) or `2-12:00` (days and hours)")
        }
        "--mem" | "--mem-per-cpu" | "--mem-per-gpu" => (is_memory(value), "such as `64G` or `8000M`"),
        "--cpus-per-task" | "-c" | "--cpus-per-gpu" | "--ntasks" | "-n" | "--ntasks-per-node" => {
            (value.parse::<u32>().is_ok_and(|count| count > 0), "such as `8`")
        }
        _ => (true, ""),
    };
    match fits {
        true => Ok(()),
        false => Err(Failure::usage(format!("`{option}`: invalid value `{value}`"))
            .hint(format!("use Slurm's format for `{name}`, {form}"))),
    }
}

/// Whether a text is a Slurm time: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`, or unlimited.
fn is_time(text: &str) -> bool {
    let is_digits =
        |part: &str| !part.is_empty() && part.len() < 10 && part.chars().all(|c| c.is_ascii_digit());
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let parts: Vec<&str> = rest.split(':').collect();
    let is_clock = parts.len() <= 3 && parts.iter().all(|part| is_digits(part));
    days.is_none_or(is_digits) && is_clock
        || ["UNLIMITED", "INFINITE"].contains(&text.to_uppercase().as_str())
}

/// Whether a text is a number of megabytes, or one with a unit.
fn is_memory(text: &str) -> bool {
    let upper = text.to_uppercase();
    let digits = upper.strip_suffix('B').unwrap_or(&upper).trim_end_matches(['K', 'M', 'G', 'T']);
    digits.parse::<u64>().is_ok() && upper.len() <= digits.len() + 2
}

fn script(
    args: &SbatchArgs,
    command: &[String],
    hosts: &Path,
    (name, stop_limit_s): (&str, f64),
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
    // Only the batch script is signaled: it stops the ranks cleanly. USR1 is for the time limit; TERM is left
    // for users, who do not want a requeue.
    let signal = if args.requeue { "USR1" } else { "TERM" };
    option(format!("--signal=B:{signal}@{}", args.stop_before_s));
    if args.requeue {
        option("--requeue".to_owned());
        option("--open-mode=append".to_owned());
    }
    if let Some(time) = &args.time {
        option(format!("--time={time}"));
    }
    args.option.iter().for_each(|text| option(text.clone()));
    if let Some(bad) = lines.iter().find(|line| line.contains('\n')) {
        return Err(Failure::usage(format!("sbatch option contains a line break: {bad:?}"))
            .hint("pass each option with its own `--option`"));
    }
    let experiment = args.experiment.as_ref().map(|path| path.display().to_string());
    let mut words = vec![binary, "run"];
    words.extend(experiment.as_deref());
    words.extend(["--slurm", "--headless"]);
    let hosts = hosts.display().to_string();
    if Path::new(&hosts).exists() {
        words.extend(["--hosts", hosts.as_str()]);
    }
    // The time before the limit, minus the time of a verified stop.
    let warned = f64::from(args.stop_before_s.saturating_sub(VERIFY_S).max(1)).min(stop_limit_s);
    let limit = format!("launch.stop_limit_s={warned:?}");
    words.extend(["--set", &limit]);
    words.extend(args.set.iter().flat_map(|set| ["--set", set.as_str()]));
    let folder = folder.display().to_string();
    lines.push(format!("cd {} || exit 2", quote::word(&folder)));
    let program = match command.is_empty() {
        true => String::new(),
        false => format!(" -- {}", quote::words(command.iter().map(String::as_str))),
    };
    let command = quote::words(words);
    if args.requeue {
        // The job id separates its runs from those of other jobs of the same experiment.
        let name = format!("--name {}-\"$SLURM_JOB_ID\"", quote::word(name));
        lines.push(REQUEUE.replace("COMMAND", &format!("{command} {name} --continue{program}")));
    } else {
        lines.push(format!("exec {command}{program}"));
    }
    Ok(lines.join("\n") + "\n")
}

/// Runs the console as a child of the script, which forwards signals: `wait` returns at each of them.
const REQUEUE: &str = "\
again=
COMMAND &
console=$!
warned() {
    again=yes
    echo \"Slurm job $SLURM_JOB_ID reaches its time limit: stopping the run; it resumes when the job restarts\"
    kill -TERM $console
}
trap warned USR1
trap 'kill -TERM $console' TERM INT
while :; do
    wait $console
    code=$?
    kill -0 $console 2>/dev/null || break
done
if [ \"$again\" ] && [ $code -eq 130 ]; then
    scontrol requeue \"$SLURM_JOB_ID\" && exit 0
fi
exit $code";

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SbatchArgs {
        SbatchArgs {
            experiment: Some("my exp.toml".into()),
            rest: Vec::new(),
            nodes: 2,
            ntasks_per_node: None,
            gpus_per_node: 4,
            time: Some("1:00:00".into()),
            set: vec!["run.seed=3".into()],
            option: vec!["--partition=gpu".into()],
            stop_before_s: 90,
            requeue: false,
            dry_run: true,
        }
    }

    #[test]
    fn batch_script_has_options_and_execs_the_console() {
        let of_experiment = |args: &SbatchArgs| {
            let hosts = Path::new("/no/hosts.toml");
            script(args, &[], hosts, ("exp", 300.0), "/bin/rankdeck", Path::new("/w d")).unwrap()
        };
        let text = of_experiment(&args());
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
        assert!(last.ends_with("--set launch.stop_limit_s=70.0 --set run.seed=3"), "{last}");
        let again = SbatchArgs { requeue: true, ..args() };
        let text = of_experiment(&again);
        for line in ["#SBATCH --signal=B:USR1@90", "#SBATCH --requeue", "#SBATCH --open-mode=append"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("--set run.seed=3 --name exp-\"$SLURM_JOB_ID\" --continue &"), "{text}");
        let program = SbatchArgs { experiment: None, ..args() };
        let command = ["python", "a b.py"].map(str::to_owned);
        let text = script(&program, &command, Path::new("h"), ("a", 300.0), "r", Path::new("/")).unwrap();
        assert!(text.trim_end().ends_with("--set run.seed=3 -- python 'a b.py'"), "{text}");
        assert_eq!(
            joined(&["-p", "gpu", "--x=1", "--y", "2"].map(str::to_owned)),
            ["-p gpu", "--x=1", "--y 2"]
        );
        let evil = SbatchArgs { option: vec!["--x\nrm -rf /".into()], ..args() };
        assert!(script(&evil, &[], Path::new("h"), ("exp", 300.0), "r", Path::new("/")).is_err());
    }

    #[test]
    fn invalid_slurm_values_are_refused_with_their_form() {
        for good in [
            "--time=8:00:00",
            "--time 90",
            "-t 2-12",
            "-t 2-12:30:00",
            "--time=UNLIMITED",
            "--mem=64G",
            "--mem 0",
            "--mem-per-cpu=8000MB",
            "-c 8",
            "--exclusive",
            "--partition=gpu",
            "-p gpu",
        ] {
            assert_eq!(refuse(good), Ok(()), "{good}");
        }
        for (bad, form) in [
            ("--time abc", "8:00:00"),
            ("--time=8h", "8:00:00"),
            ("-t 1:2:3:4", "8:00:00"),
            ("--mem=lots", "64G"),
            ("-c 0", "`8`"),
            ("partition=gpu", "`--partition=gpu`"),
        ] {
            let failure = refuse(bad).unwrap_err();
            assert!(failure.code == code::USAGE && failure.cause.hint.contains(form), "{bad}: {failure}");
        }
    }

    /// Runs the script with `console` in place of rankdeck and a `scontrol` that logs its arguments.
    fn requeued(console: &str, signal: &str) -> (i32, String) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(at(name), text).unwrap();
            std::fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        };
        write("scontrol", "#!/bin/sh\necho \"$@\" >> \"$LOG\"\n");
        write("console", &format!("#!/bin/sh\n{console}\n"));
        let again = SbatchArgs { requeue: true, ..args() };
        let binary = at("console").display().to_string();
        let text = script(&again, &[], Path::new("/none"), ("exp", 300.0), &binary, folder.path()).unwrap();
        write(
            "job",
            &text.replace(
                "trap 'kill -TERM $console' TERM INT",
                &format!("trap 'kill -TERM $console' TERM INT\n{signal}"),
            ),
        );
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let status = Command::new(at("job"))
            .env("PATH", path)
            .env("LOG", at("log"))
            .env("SLURM_JOB_ID", "7")
            .status()
            .unwrap();
        (status.code().unwrap_or(-1), std::fs::read_to_string(at("log")).unwrap_or_default())
    }

    #[test]
    fn job_is_requeued_only_at_the_time_limit() {
        let stops = "trap 'exit 130' TERM; while :; do sleep 0.05; done";
        let stubborn = "trap 'exit 137' TERM; while :; do sleep 0.05; done";
        let wait = "sleep 0.5";
        assert_eq!(requeued(stops, &format!("{wait}; kill -USR1 $$")), (0, "requeue 7\n".into()));
        assert_eq!(requeued(stops, &format!("{wait}; kill -TERM $$")), (130, String::new()));
        assert_eq!(requeued(stubborn, &format!("{wait}; kill -USR1 $$")), (137, String::new()));
        assert_eq!(requeued("exit 0", ""), (0, String::new()));
        assert_eq!(requeued("exit 3", ""), (3, String::new()));
    }
}
