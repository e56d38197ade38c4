//! Resolves the hosts and the experiment of a command line.

use crate::cli::args::{Cli, CliCommand, SubjectArgs};
use crate::cli::support::Failure;
use rankdeck_config::{ExperimentSource, HostsSource, OwnSlurmJob, SlurmJobs};
use rankdeck_proto::folders;
use rankdeck_types::host::Transport;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the hosts file.
const FILE: &str = "hosts.toml";
/// Variable that names it.
const VARIABLE: &str = "RANKDECK_HOSTS";

/// Returns the hosts source of this command. `alone`: without a hosts file, this machine is used.
pub(crate) fn hosts(cli: &Cli, alone: bool) -> HostsSource {
    let given = cli.hosts.clone().map(|text| HostsSource::parse(&text));
    let found = || find(&|name| std::env::var_os(name), &std::env::current_dir().unwrap_or_default());
    let source = given.or_else(found);
    let in_slurm = |source: Option<HostsSource>, jobs| {
        let defaults = match source {
            Some(HostsSource::File(path)) => path,
            _ => FILE.into(),
        };
        HostsSource::Slurm { defaults, jobs }
    };
    let finds_runs = finds_runs(&cli.command);
    if let Some(job) = &cli.slurm {
        let env = |name: &str| std::env::var(name).ok();
        return in_slurm(source, slurm_jobs(job, finds_runs, &env));
    }
    let source = source.unwrap_or_else(|| match alone {
        true => HostsSource::Here,
        false => HostsSource::File(FILE.into()),
    });
    if finds_runs && source.is_without_hosts() {
        let is_missing = matches!(&source, HostsSource::File(path) if !path.exists());
        let is_shared = alone && !is_missing;
        match rankdeck_config::own_slurm_jobs() {
            // A job without nodes yet hides no runs of this machine.
            Some(jobs) if jobs.iter().any(OwnSlurmJob::is_running) || !(jobs.is_empty() || is_shared) => {
                return in_slurm(Some(source), SlurmJobs::Own);
            }
            // Jobs have ended; their directory may be shared.
            Some(_) if is_shared => return HostsSource::Here,
            _ => {}
        }
    }
    source
}

/// Whether a command is about runs that exist, on whatever hosts they are.
fn finds_runs(command: &CliCommand) -> bool {
    matches!(
        command,
        CliCommand::Attach(_)
            | CliCommand::Stop(_)
            | CliCommand::Kill(_)
            | CliCommand::Restart(_)
            | CliCommand::Wait(_)
            | CliCommand::Ps(_)
            | CliCommand::Status(_)
            | CliCommand::Logs(_)
            | CliCommand::ExportMetrics(_)
            | CliCommand::Fetch(_)
            | CliCommand::Rm(_)
            | CliCommand::Prune(_)
            | CliCommand::Tensorboard(_)
            | CliCommand::Eval(_)
            | CliCommand::Play(_)
            | CliCommand::Export(_)
    )
}

/// Returns the jobs that `--slurm` or `--slurm=JOB` selects. A new run uses only a job that was named.
fn slurm_jobs(job: &str, finds_runs: bool, env: &dyn Fn(&str) -> Option<String>) -> SlurmJobs {
    let named = env("SLURM_JOB_ID").filter(|job| !job.trim().is_empty());
    match (job, named) {
        ("", _) if rankdeck_config::is_in_allocation(env) => SlurmJobs::Current,
        ("", Some(job)) => SlurmJobs::Job(job),
        ("", None) if finds_runs => SlurmJobs::Own,
        ("", None) => SlurmJobs::Current,
        (job, _) => SlurmJobs::Job(job.to_owned()),
    }
}

/// Finds the hosts file of the project, of the environment, or of the user.
fn find(env: &dyn Fn(&str) -> Option<OsString>, folder: &Path) -> Option<HostsSource> {
    if folder.join(FILE).exists() {
        return Some(HostsSource::File(FILE.into()));
    }
    let is_set = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(named) = is_set(VARIABLE) {
        return Some(match named.to_str() {
            Some(text) => HostsSource::parse(text),
            None => HostsSource::File(named.into()),
        });
    }
    if let Some(project) = folder.ancestors().position(|folder| folder.join(".git").exists()) {
        let inside = folder.ancestors().skip(1).take(project);
        if let Some(path) = inside.map(|folder| folder.join(FILE)).find(|path| path.exists()) {
            return Some(HostsSource::File(path));
        }
    }
    let config = is_set("XDG_CONFIG_HOME").map_or_else(|| folders::home().join(".config"), PathBuf::from);
    Some(config.join("rankdeck").join(FILE)).filter(|path| path.exists()).map(HostsSource::File)
}

/// Returns hosts and experiment of a command that launches or checks.
pub(crate) fn of(hosts: &HostsSource, subject: &SubjectArgs) -> (HostsSource, ExperimentSource) {
    let mut hosts = hosts.clone();
    if let Some(folder) = &subject.venv {
        hosts = HostsSource::Venv(Box::new(hosts), folder.clone());
    }
    if let Some(gpus) = &subject.gpus {
        hosts = HostsSource::Devices(Box::new(hosts), gpus.clone());
    }
    if let Some(nproc) = subject.nproc {
        hosts = HostsSource::Ranks(Box::new(hosts), nproc);
    }
    let experiment = match &subject.experiment {
        Some(path) => ExperimentSource::File(path.clone()),
        None => program(&subject.command, &hosts),
    };
    (hosts, experiment)
}

/// An experiment from a command. Its directory is uploaded to hosts that do not share it.
pub(crate) fn program(words: &[String], hosts: &HostsSource) -> ExperimentSource {
    // Unreadable hosts are reported when the plan is made.
    let apart = rankdeck_config::load_hosts(hosts).is_ok_and(|hosts| {
        hosts.iter().any(|host| matches!(host.transport, Transport::Ssh | Transport::Openssh))
    });
    let ships = apart && is_here(words, Path::new(""));
    ExperimentSource::Command { words: words.to_vec(), ships }
}

/// Whether the script, module or program is in `folder`.
pub(crate) fn is_here(words: &[String], folder: &Path) -> bool {
    let module = words.iter().position(|word| word == "-m").and_then(|at| words.get(at + 1));
    let script = rankdeck_agent::examine::script_of(words).map(str::to_owned);
    let own = words.first().filter(|word| word.contains('/')).cloned();
    let below = |path: &str| {
        !Path::new(path).is_absolute()
            && !path.starts_with("..")
            && !path.starts_with('~')
            && folder.join(path).exists()
    };
    match (module, script.or(own)) {
        (Some(module), None) => {
            let top = module.split('.').next().unwrap_or(module);
            below(top) || below(&format!("{top}.py"))
        }
        (_, Some(path)) => below(&path),
        (None, None) => false,
    }
}

/// Splits the words after `--` of `sbatch` into Slurm options and, without an experiment, a command.
pub(crate) fn split_rest(
    rest: &[String],
    has_experiment: bool,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    if has_experiment {
        return Ok((rest.to_vec(), Vec::new()));
    }
    let (options, command) = match rest.iter().position(|word| word == "--") {
        Some(at) => (rest[..at].to_vec(), rest[at + 1..].to_vec()),
        None => (Vec::new(), rest.to_vec()),
    };
    match command.first() {
        Some(word) if !word.starts_with('-') => Ok((options, command)),
        _ => Err(Failure::usage("no experiment or command to run")
            .hint("`rankdeck sbatch EXPERIMENT.toml -- OPTIONS`, or `rankdeck sbatch -- OPTIONS -- python train.py`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn project_hosts_file_precedes_user_hosts_file() {
        let root = tempfile::tempdir().unwrap();
        let (project, config) = (root.path().join("p"), root.path().join("c"));
        let folder = project.join("a/b");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(config.join("rankdeck")).unwrap();
        let found = |named: Option<&str>| {
            let env = |name: &str| match name {
                VARIABLE => named.map(OsString::from),
                "XDG_CONFIG_HOME" => Some(config.clone().into_os_string()),
                _ => None,
            };
            find(&env, &folder)
        };
        let file = |path: &Path| Some(HostsSource::File(path.to_owned()));
        fs::write(root.path().join(FILE), "").unwrap();
        assert_eq!(found(None), None, "a file above the project is ignored");
        fs::write(config.join("rankdeck").join(FILE), "").unwrap();
        assert_eq!(found(None), file(&config.join("rankdeck").join(FILE)));
        fs::write(project.join(FILE), "").unwrap();
        fs::create_dir(project.join(".git")).unwrap();
        assert_eq!(found(None), file(&project.join(FILE)));
        assert_eq!(found(Some("lab.toml")), file(Path::new("lab.toml")));
        assert_eq!(found(Some("a,b")), Some(HostsSource::Named(words("a b"))));
        fs::write(folder.join(FILE), "").unwrap();
        assert_eq!(found(Some("lab.toml")), file(Path::new(FILE)), "the nearest wins");
    }

    #[test]
    fn slurm_option_selects_the_allocation_a_job_or_own_jobs() {
        let select = |job: &str, finds_runs, set: &[&str]| {
            slurm_jobs(job, finds_runs, &|name| set.contains(&name).then(|| "7".to_owned()))
        };
        let job = |id: &str| SlurmJobs::Job(id.to_owned());
        let allocated = ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"];
        assert_eq!(select("", true, &allocated), SlurmJobs::Current);
        assert_eq!(select("", false, &["SLURM_JOB_ID", "SLURM_HET_SIZE"]), SlurmJobs::Current);
        assert_eq!(select("", true, &["SLURM_JOB_ID"]), job("7"));
        assert_eq!(select("", true, &[]), SlurmJobs::Own);
        assert_eq!(select("", false, &[]), SlurmJobs::Current, "a new run uses only a job that was named");
        assert_eq!(select("9", true, &allocated), job("9"));
    }

    #[test]
    fn local_code_is_uploaded() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["train.py", "tool"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("pkg")).unwrap();
        for line in
            ["python -u train.py x", "python -m pkg.sub", "python3 -m train", "./tool 1", "bash ./train.py"]
        {
            assert!(is_here(&words(line), folder.path()), "{line}");
        }
        for line in
            ["python ../train.py", "python -m json.tool", "/bin/tool", "tool", "python -c 1", "python no.py"]
        {
            assert!(!is_here(&words(line), folder.path()), "{line}");
        }
    }

    #[test]
    fn sbatch_options_and_command_are_separated() {
        let split = |line: &str, has| split_rest(&words(line), has).map(|(a, b)| (a.join(" "), b.join(" ")));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(split("--partition=gpu -A lab", true), pair("--partition=gpu -A lab", ""));
        assert_eq!(split("python train.py --x", false), pair("", "python train.py --x"));
        assert_eq!(split("--mem 8G -- python t.py", false), pair("--mem 8G", "python t.py"));
        assert!(split("--partition=gpu", false).is_err() && split("--mem 8G --", false).is_err());
    }
}
