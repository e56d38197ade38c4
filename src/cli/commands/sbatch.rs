//! `rankdeck sbatch`: submits a script that runs an experiment in a Slurm job.
//!
//! The console replaces the batch script (`exec`), so that `scancel --batch --signal=TERM` and the signal
//! before the time limit reach it: it stops the run with a checkpoint, and the job ends when every agent has
//! verified that no process is left.

use crate::app::stderr;
use crate::cli::args::SbatchArgs;
use crate::cli::support::run_index::own_binary;
use crate::cli::support::{Failure, child, code, contract, print, sources};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_types::experiment::LaunchConfig;
use rankdeck_types::promise::Contract;
use rankdeck_types::quote;
use serde_json::json;
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
        None => ExperimentSource::Command { words: command.clone(), ships: false },
    };
    let experiment = rankdeck_config::load_experiment(&source, &args.set)?;
    if let Some(line) = rankdeck_config::translation(&source, &args.set) {
        args.output.progress(&line);
    }
    let needs = args.needs();
    contract::demand(&experiment, &source, &[], &needs)?;
    let known = contract::facts(&experiment, &source, &[]);
    if let Some(line) = contract::caution(&experiment, &Contract::of(&experiment, &known), &needs) {
        args.output.progress(&line);
    }
    let binary = own_binary()?.display().to_string();
    let folder = std::env::current_dir().map_err(|error| {
        Failure::failed(format!("cannot find the current directory: {error}"))
            .hint("`cd` to a readable directory")
    })?;
    let launch = &experiment.launch;
    let defaults = match hosts {
        HostsSource::File(path) | HostsSource::Slurm { defaults: path, .. } => path.as_path(),
        _ => Path::new(""),
    };
    let options = args.option.iter().map(|text| SbatchOption::parse(text)).chain(joined(&options)?).collect();
    let script = script(args, options, &command, defaults, (&experiment.run.name, launch), &binary, &folder)?;
    let record = |job: Option<&str>| json!({ "kind": "submitted", "job": job, "script": script });
    if args.dry_run {
        match args.output.json {
            true => print::json(&record(None)),
            false => print::data(script.trim_end()),
        };
        return Ok(code::SUCCESS);
    }
    let job = submit(&script)?;
    args.output.outcome(&format!("submitted: job {job}"));
    args.output.record(|| record(Some(&job)));
    args.output.progress(&format!(
        "hint: watch it with `rankdeck attach --slurm={job}`; output goes to {}-{job}.out; stop with a checkpoint: \
         `scancel --batch --signal=TERM {job}`",
        experiment.run.name
    ));
    Ok(code::SUCCESS)
}

/// Submits a script, and returns the id of its job.
fn submit(script: &str) -> Result<String, Failure> {
    const ELSEWHERE: &str = "submit from a login node of the cluster; `--dry-run` prints the script";
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::failed("sbatch not found: Slurm is not installed here").hint(ELSEWHERE)
        }
        _ => Failure::failed(format!("failed to run sbatch: {error}"))
            .hint("print the script with `--dry-run`"),
    };
    let mut child = Command::new("sbatch")
        .arg("--parsable")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // An sbatch that exits before it has read the script prints the reason.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    let words = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if !output.status.success() {
        let words =
            words.iter().map(|line| line.trim_start_matches("sbatch: ").trim_start_matches("error: "));
        let words = words.take(MOST_WORDS).collect::<Vec<_>>().join("; ");
        // Without a configuration or a controller, the script is not to blame.
        let absent =
            ["configuration source", "slurm.conf", "Unable to contact"].iter().any(|why| words.contains(why));
        return Err(Failure::failed(match words.is_empty() {
            true => "sbatch rejected the script".to_owned(),
            false => format!("sbatch: {words}"),
        })
        .hint(if absent { ELSEWHERE } else { "print the script with `--dry-run`" }));
    }
    written.map_err(failed)?;
    words.iter().take(MOST_WORDS).for_each(|line| stderr::line(line));
    // `JOB` or `JOB;CLUSTER`.
    let answer = String::from_utf8_lossy(&output.stdout);
    Ok(answer.trim().split(';').next().unwrap_or_default().to_owned())
}

/// Most lines of sbatch's own words.
const MOST_WORDS: usize = 8;

/// An option of sbatch: `--partition=gpu`, `-p gpu`, `--exclusive`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SbatchOption {
    name: String,
    /// The sign before its value, and the value.
    value: Option<(char, String)>,
}

impl SbatchOption {
    fn parse(text: &str) -> SbatchOption {
        let at = text.find(['=', ' ']);
        let (name, value) = at.map_or((text, None), |at| (&text[..at], Some(&text[at..])));
        let value = value.and_then(|value| Some((value.chars().next()?, value[1..].trim().to_owned())));
        SbatchOption { name: name.to_owned(), value }
    }

    fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.name.as_str())
    }

    fn value(&self) -> Option<&str> {
        self.value.as_ref().map(|(_, value)| value.as_str())
    }

    /// The option in a line of a script. sbatch reads quotes and backslashes there as a shell does, and a comment
    /// from `#` on.
    fn line(&self) -> String {
        let Some((sign, value)) = &self.value else { return self.name.clone() };
        let is_plain = |c: char| !c.is_whitespace() && !"\"'\\#".contains(c);
        let value = match !value.is_empty() && value.chars().all(is_plain) {
            true => value.clone(),
            false => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
        };
        format!("{}{sign}{value}", self.name)
    }
}

/// Joins `--partition gpu` into one option; an option with `=` is complete.
fn joined(words: &[String]) -> Result<Vec<SbatchOption>, Failure> {
    let mut options: Vec<SbatchOption> = Vec::new();
    for word in words {
        match options.last_mut() {
            _ if word == ":" => {
                return Err(Failure::usage("heterogeneous jobs are not supported")
                    .hint("request all nodes at once, without `:`"));
            }
            Some(option) if !word.starts_with('-') && option.value.is_none() => {
                option.value = Some((' ', word.clone()));
            }
            Some(option) if !word.starts_with('-') => {
                return Err(Failure::usage(format!("unexpected word `{word}` after `{}`", option.line()))
                    .hint("quote a value with spaces: `-- --comment \"two words\"`"));
            }
            _ => options.push(match word.split_once('=') {
                Some((name, value)) => {
                    SbatchOption { name: name.to_owned(), value: Some(('=', value.to_owned())) }
                }
                None => SbatchOption { name: word.clone(), value: None },
            }),
        }
    }
    Ok(options)
}

/// Rejects limits of which one makes the other void.
fn contradictions(args: &SbatchArgs, options: &[SbatchOption], grace_s: f64) -> Result<(), Failure> {
    let before = args.stop_before_s;
    let limits = options.iter().filter(|option| option.is(&["--time", "-t", "--time-min"]));
    for (option, limit) in limits.filter_map(|option| Some((option, limit_s(option.value()?)?))) {
        if limit <= u64::from(before) {
            let (name, value) = (&option.name, option.value().unwrap_or_default());
            let units = match (value.contains(['-', ':']), value.matches(':').count()) {
                (false, _) => format!("Slurm reads `{value}` as minutes; for hours, write `{value}:00:00`"),
                (true, 1) if !value.contains('-') => {
                    format!("Slurm reads `{value}` as minutes and seconds; for hours, write `{value}:00`")
                }
                _ => "raise the time limit".to_owned(),
            };
            return Err(Failure::usage(format!(
                "`{name}` of {limit} s does not exceed `--stop-before-s` of {before} s: the run would stop as soon as it \
                 starts"
            ))
            .hint(format!("{units}; or stop later: `--stop-before-s {}`", (limit / 3).max(1))));
        }
    }
    if grace_s >= f64::from(before) {
        return Err(Failure::usage(format!(
            "`launch.stop_grace_s` of {grace_s} s does not fit in `--stop-before-s` of {before} s: Slurm would kill the \
             ranks first"
        ))
        .hint(format!("raise it: `--stop-before-s {}`", grace_s.ceil() as u64 + u64::from(VERIFY_S))));
    }
    Ok(())
}

/// Returns the seconds of a Slurm time, which counts whole minutes; `None` without a limit.
fn limit_s(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').map_or((None, text), |(days, clock)| (Some(days), clock));
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<u64>>>()?;
    let days = days.map_or(Some(0), |days| days.parse::<u64>().ok())?;
    let (hours, minutes, seconds) = match (text.contains('-'), parts.as_slice()) {
        (true, [hours]) => (*hours, 0, 0),
        (true, [hours, minutes]) => (*hours, *minutes, 0),
        (false, [minutes]) => (0, *minutes, 0),
        (false, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let minutes = ((days * 24 + hours) * 60 + minutes).saturating_add(seconds.div_ceil(60));
    (minutes > 0).then_some(minutes.saturating_mul(60))
}

/// Rejects an option that sbatch would reject or ignore.
fn refuse(option: &SbatchOption) -> Result<(), Failure> {
    let name = option.name.as_str();
    if !name.starts_with('-') {
        let option = option.line();
        return Err(Failure::usage(format!("invalid sbatch option `{option}`"))
            .hint(format!("options start with `-`: write `--{option}`")));
    }
    let Some(value) = option.value() else { return Ok(()) };
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
        false => Err(Failure::usage(format!("`{}`: invalid value `{value}`", option.line()))
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
    mut options: Vec<SbatchOption>,
    command: &[String],
    hosts: &Path,
    (name, launch): (&str, &LaunchConfig),
    binary: &str,
    folder: &Path,
) -> Result<String, Failure> {
    // The last one wins, as for sbatch.
    if let Some(time) = &args.time {
        options.insert(0, SbatchOption::parse(&format!("--time={time}")));
    }
    options.iter().try_for_each(refuse)?;
    contradictions(args, &options, launch.stop_grace_s)?;
    if !options.iter().any(|option| option.is(&["--comment"])) {
        // Commands on the login node find the job by it.
        options.push(SbatchOption::parse(&format!("--comment={}", rankdeck_config::SLURM_COMMENT)));
    }
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
    // for users who stop the job without a requeue.
    let signal = if args.requeue { "USR1" } else { "TERM" };
    option(format!("--signal=B:{signal}@{}", args.stop_before_s));
    if args.requeue {
        option("--requeue".to_owned());
        option("--open-mode=append".to_owned());
    }
    options.iter().for_each(|one| option(one.line()));
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
    words.extend(args.venv.iter().flat_map(|venv| ["--venv", venv.as_str()]));
    // The time before the limit, minus the time of a verified stop.
    let warned = f64::from(args.stop_before_s.saturating_sub(VERIFY_S).max(1)).min(launch.stop_limit_s);
    let limit = format!("launch.stop_limit_s={warned:?}");
    words.extend(["--set", &limit]);
    // Every user of a node can read the arguments of the console: it reads overrides from stdin (ARGV-1).
    let (option, sets) =
        child::split_sets(args.set.iter().flat_map(|set| ["--set".into(), set.clone()]).collect());
    words.extend(option.iter().map(String::as_str));
    let (redirect, input) = match sets {
        Some(sets) => (format!(" <<'{END}'"), format!("\n{sets}\n{END}")),
        None => (String::new(), String::new()),
    };
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
        let command = format!("{command} {name} --continue{program}{redirect} &{input}");
        lines.push(REQUEUE.replace("COMMAND", &command));
    } else {
        lines.push(format!("exec {command}{program}{redirect}{input}"));
    }
    Ok(lines.join("\n") + "\n")
}

/// Ends the overrides in the script.
const END: &str = "RANKDECK-SET";

/// Runs the console as a child of the script, which forwards signals: `wait` returns at each of them.
const REQUEUE: &str = "\
again=
COMMAND
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
    use crate::cli::args::PrintArgs;

    fn args() -> SbatchArgs {
        SbatchArgs {
            experiment: Some("my exp.toml".into()),
            rest: Vec::new(),
            nodes: 2,
            ntasks_per_node: None,
            gpus_per_node: 4,
            time: Some("1:00:00".into()),
            set: vec!["run.seed=3".into()],
            venv: Some("~/v".into()),
            env: Vec::new(),
            option: Vec::new(),
            stop_before_s: 90,
            requeue: false,
            dry_run: true,
            output: PrintArgs::default(),
        }
    }

    #[test]
    fn batch_script_has_options_and_execs_the_console() {
        let launch = LaunchConfig::default();
        let of_experiment = |args: &SbatchArgs| {
            let (options, hosts) =
                (vec![SbatchOption::parse("--partition=gpu")], Path::new("/no/hosts.toml"));
            script(args, options, &[], hosts, ("exp", &launch), "/bin/rankdeck", Path::new("/w d")).unwrap()
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
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        assert!(last[2].starts_with("exec /bin/rankdeck run 'my exp.toml' --slurm --headless"), "{text}");
        assert!(last[2].contains(" --venv '~/v' "), "{text}");
        assert!(last[2].ends_with("--set launch.stop_limit_s=70.0 --set-stdin <<'RANKDECK-SET'"), "{text}");
        assert_eq!(last[..2], ["RANKDECK-SET", r#"["run.seed=3"]"#], "ARGV-1");
        let again = SbatchArgs { requeue: true, ..args() };
        let text = of_experiment(&again);
        for line in ["#SBATCH --signal=B:USR1@90", "#SBATCH --requeue", "#SBATCH --open-mode=append"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let end = "--set-stdin --name exp-\"$SLURM_JOB_ID\" --continue <<'RANKDECK-SET' &\n[\"run.seed=3\"]\nRANKDECK-SET\n";
        assert!(text.contains(end), "{text}");
        let program = SbatchArgs { experiment: None, ..args() };
        let command = ["python", "a b.py"].map(str::to_owned);
        let of_command = |options: Vec<SbatchOption>| {
            script(&program, options, &command, Path::new("h"), ("a", &launch), "r", Path::new("/"))
        };
        let text = of_command(Vec::new()).unwrap();
        assert!(text.contains("--set-stdin -- python 'a b.py' <<'RANKDECK-SET'\n"), "{text}");
        assert!(text.lines().any(|line| line == "#SBATCH --comment=rankdeck"), "{text}");
        let text = of_command(vec![SbatchOption::parse("--comment=mine")]).unwrap();
        assert_eq!(text.matches("--comment").count(), 1, "the user's own: {text}");
        assert!(of_command(vec![SbatchOption::parse("--x=a\nrm -rf /")]).is_err());
    }

    #[test]
    fn values_of_sbatch_options_are_quoted() {
        let lines = |words: &[&str]| -> Vec<String> {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            joined(&words).unwrap().iter().map(SbatchOption::line).collect()
        };
        assert_eq!(lines(&["-p", "gpu", "--x=1", "--y", "2"]), ["-p gpu", "--x=1", "--y 2"]);
        assert_eq!(
            lines(&["--comment", "two words", "--job-name=my job", "--exclusive"]),
            ["--comment \"two words\"", "--job-name=\"my job\"", "--exclusive"]
        );
        assert_eq!(SbatchOption::parse("--job-name=a \"b\" \\ #c").line(), r#"--job-name="a \"b\" \\ #c""#);
        assert_eq!(SbatchOption::parse("--mem 8G").line(), "--mem 8G");
        for words in [["--comment", "two", "words"], ["--exclusive", ":", "--nodes=1"]] {
            assert_eq!(joined(&words.map(str::to_owned)).unwrap_err().code, code::USAGE, "{words:?}");
        }
    }

    #[test]
    fn contradicting_sbatch_limits_are_refused() {
        let refused = |time: &str, before: u32, grace: f64| {
            let args = SbatchArgs { stop_before_s: before, ..args() };
            contradictions(&args, &[SbatchOption::parse(time)], grace).err()
        };
        for (time, before) in
            [("--time=2:00", 120), ("--time 1", 120), ("-t 0:01:30", 120), ("--time-min=2", 120)]
        {
            let failure = refused(time, before, 10.0).unwrap_or_else(|| panic!("{time}"));
            assert!(
                failure.code == code::USAGE && failure.cause.hint.contains("--stop-before-s"),
                "{time}: {failure}"
            );
        }
        assert!(refused("--time=2:00", 120, 10.0).unwrap().cause.hint.contains("`2:00:00`"));
        assert!(refused("--time=2", 120, 10.0).unwrap().cause.hint.contains("`2:00:00`"));
        for time in ["--time=2:00:00", "--time=3", "--time=0", "--time=UNLIMITED", "--time=1-0", "--mem=1"] {
            assert_eq!(refused(time, 120, 10.0), None, "{time}");
        }
        let grace = refused("--time=8:00:00", 120, 300.0).unwrap();
        assert!(grace.cause.hint.contains("--stop-before-s 320"), "{grace}");
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
            assert_eq!(refuse(&SbatchOption::parse(good)), Ok(()), "{good}");
        }
        for (bad, form) in [
            ("--time abc", "8:00:00"),
            ("--time=8h", "8:00:00"),
            ("-t 1:2:3:4", "8:00:00"),
            ("--mem=lots", "64G"),
            ("-c 0", "`8`"),
            ("partition=gpu", "`--partition=gpu`"),
        ] {
            let failure = refuse(&SbatchOption::parse(bad)).unwrap_err();
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
        let launch = ("exp", &LaunchConfig::default());
        let text =
            script(&again, Vec::new(), &[], Path::new("/none"), launch, &binary, folder.path()).unwrap();
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
