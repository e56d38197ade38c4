//! Translates the command line of a launcher into ranks, which rankdeck starts itself. Pure: words in,
//! [`Translation`] out.
//!
//! Each launcher is one row. Each of its options is taken, set as a variable of the ranks, dropped with a word, or
//! refused by name; an unknown option is refused.

use rankdeck_types::command::{CommandParts, CommandTarget, file_name, is_python};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::words::plural;
use rankdeck_types::{hidden, quote};
use std::collections::BTreeMap;

/// What a launcher's command line asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translation {
    /// The launcher, as it is called.
    pub launcher: String,
    /// The command of each rank; per-rank values are templates.
    pub command: Vec<String>,
    /// The option with the number of ranks, and that number.
    pub ranks: Option<(String, RankCount)>,
    /// The option with the number of hosts, and its limits.
    pub hosts: Option<(String, u32, u32)>,
    /// GPUs of each host.
    pub gpus: Option<Vec<u32>>,
    /// Variables of the ranks.
    pub env: BTreeMap<String, String>,
    /// Variables of the console that the ranks get.
    pub pass_env: Vec<String>,
    pub max_restarts: Option<u32>,
    /// Each rank gets cores of its own.
    pub bind: bool,
    /// Ranks get Slurm's variables of a task.
    pub slurm_env: bool,
    /// Options that name rank 0's host, and that host.
    pub masters: Vec<(String, String)>,
    /// The option with the index of a host, and that index.
    pub node_rank: Option<(String, u32)>,
    /// Options without a meaning here.
    pub dropped: Vec<String>,
}

/// A number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankCount {
    PerHost(u32),
    /// Over all hosts.
    Total(u32),
}

impl Translation {
    /// Returns the ranks per host on this number of hosts.
    ///
    /// # Errors
    /// The number does not divide, or the hosts are too few or too many.
    pub fn ranks_per_host(&self, hosts: usize) -> Result<Option<u32>, HintedError> {
        let count = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
        if let Some((option, least, most)) = &self.hosts
            && !(*least..=*most).contains(&count)
        {
            return Err(HintedError::new(
                format!("`{option}` of `{}` does not fit {}", self.launcher, plural(hosts, "host")),
                format!("pass the hosts with `--hosts a,b`, or remove `{option}`"),
            ));
        }
        match &self.ranks {
            None => Ok(None),
            Some((_, RankCount::PerHost(ranks))) => Ok(Some(*ranks)),
            Some((_, RankCount::Total(ranks))) if ranks.is_multiple_of(count) => Ok(Some(ranks / count)),
            Some((option, RankCount::Total(ranks))) => Err(HintedError::new(
                format!(
                    "`{option}` of `{}`: cannot split {ranks} ranks evenly across {count} hosts",
                    self.launcher
                ),
                format!("choose a multiple of {count}"),
            )),
        }
    }

    /// Returns the option that contradicts the hosts of the run. Ranks start on all of them, rank 0 on the first.
    pub fn contradiction(&self, hosts: &[Host]) -> Option<HintedError> {
        let first = hosts.first()?;
        let later = |name: &str| hosts.iter().skip(1).any(|host| host.name == name || host.address == name);
        let is_first = |name: &str| first.name == name || first.address == name;
        let other = self.masters.iter().find(|(_, name)| later(name) && !is_first(name));
        if let Some((option, name)) = other {
            return Some(HintedError::new(
                format!("`{option}` of `{}` is {name}, but rank 0 runs on {}", self.launcher, first.name),
                format!("list {name} first in the hosts, or remove `{option}`"),
            ));
        }
        let (option, index) = self.node_rank.as_ref().filter(|(_, index)| *index as usize >= hosts.len())?;
        Some(HintedError::new(
            format!("`{option} {index}` of `{}` does not fit {}", self.launcher, plural(hosts.len(), "host")),
            format!("remove `{option}`, and pass all hosts with `--hosts a,b`: one command starts all ranks"),
        ))
    }

    /// Describes the translation in one line.
    pub fn line(&self) -> String {
        let ranks = match &self.ranks {
            None => "one rank per GPU".to_owned(),
            Some((_, RankCount::PerHost(ranks))) => format!("{} per host", plural(*ranks as usize, "rank")),
            Some((_, RankCount::Total(ranks))) => format!("{} in all", plural(*ranks as usize, "rank")),
        };
        let command = hidden::words(self.command.iter().map(String::as_str));
        let command = quote::words(command.iter().map(String::as_str));
        let mut line = format!("`{}` is translated: {ranks}, each `{command}`", self.launcher);
        if !self.env.is_empty() {
            let names: Vec<&str> = self.env.keys().map(String::as_str).collect();
            line += &format!("; sets {}", names.join(", "));
        }
        if self.bind {
            line += "; sets `launch.bind`";
        }
        if self.slurm_env {
            line += "; sets `launch.slurm_env`";
        }
        if !self.dropped.is_empty() {
            line += &format!("; not needed: {}", self.dropped.join(", "));
        }
        line + "; `--keep-launcher` runs it as it is"
    }
}

/// What an option becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OptionEffect {
    /// The number of ranks per host.
    RanksPerHost,
    /// The number of ranks over all hosts.
    Ranks,
    /// The number of hosts, or its limits `MIN:MAX` or `MIN-MAX`.
    Hosts,
    /// There is one host.
    OneHost,
    /// Rank 0's host, maybe with a port.
    Master,
    /// The index of a host.
    NodeRank,
    /// `launch.bind = "auto"`, unless the value is `none`.
    Bind,
    /// The target is a module.
    Module,
    /// The target is a program of any kind.
    NoPython,
    /// Ranks get no argument with their local rank.
    NoLocalRank,
    /// `[restart] max_restarts`.
    Restarts,
    /// GPUs of each host; `all` is the default.
    Gpus,
    /// GPUs of this machine: `localhost:0,1`.
    Include,
    /// A variable with the value.
    Variable(&'static str),
    /// A variable with the value in capitals.
    Capitals(&'static str),
    /// A variable that is `true`.
    Switch(&'static str),
    /// A variable of the console, or `NAME=VALUE`.
    Export,
    /// The same, several with commas; `ALL` is the default.
    Exports,
    /// Name and value of a variable, in two words.
    Pair,
    /// A configuration of accelerate that comes with TRL, or its path.
    TrlConfig,
    /// A file with arguments of the script, among them options of the launcher.
    Arguments,
    /// A file with further options, `key: value` per line.
    File,
    Dropped,
    /// With what to do instead.
    Refused(&'static str),
    /// The same, unless the value is `none`.
    RefusedValue(&'static str),
}

use OptionEffect::{
    Arguments, Bind, Capitals, Dropped, Export, Exports, File, Gpus, Hosts, Include, Master, Module,
    NoLocalRank, NoPython, NodeRank, OneHost, Pair, Ranks, RanksPerHost, Refused, RefusedValue, Restarts,
    Switch, TrlConfig, Variable,
};

/// An option of a launcher.
struct LauncherOption {
    /// Its names; `-` and `_` within a name are the same.
    names: &'static [&'static str],
    /// How many words follow as its value.
    values: usize,
    meaning: OptionEffect,
}

const fn flag(names: &'static [&'static str], meaning: OptionEffect) -> LauncherOption {
    LauncherOption { names, values: 0, meaning }
}

const fn valued(names: &'static [&'static str], meaning: OptionEffect) -> LauncherOption {
    LauncherOption { names, values: 1, meaning }
}

/// A launcher.
struct Launcher {
    name: &'static str,
    /// Its modules for `python -m`.
    modules: &'static [&'static str],
    /// Words before its options; those in brackets may be missing.
    subcommand: &'static [&'static str],
    options: &'static [LauncherOption],
    /// Ranks per host without an option; `None`: one per GPU.
    ranks: Option<u32>,
    /// Variables that it always sets.
    env: &'static [(&'static str, &'static str)],
    /// Argument of the script with its local rank.
    local_rank: Option<&'static str>,
    /// The target is a command, not a script.
    is_command: bool,
    /// Lightning reads devices and nodes from variables, too.
    is_lightning: bool,
    /// A file with options that is read if none is named.
    file: Option<&'static str>,
    /// Its own scripts, by subcommand, and the modules that they are. Its options stand among their arguments.
    scripts: &'static [(&'static str, &'static str)],
    /// It sets Slurm's variables of a task.
    is_slurm: bool,
    /// Why it is not translated.
    refused: Option<&'static str>,
}

const KEEP: &str = "pass `--keep-launcher` to run the launcher as one rank";
const HOSTS: &str = "pass the hosts with `--hosts a,b`, or list them in hosts.toml";
const FOLDER: &str = "set `workdir` of the hosts, or `cd` there first";

const TORCHRUN: &[LauncherOption] = &[
    valued(&["--nproc-per-node"], RanksPerHost),
    valued(&["--nnodes"], Hosts),
    valued(&["--max-restarts"], Restarts),
    flag(&["-m", "--module"], Module),
    flag(&["--no-python"], NoPython),
    flag(&["--use-env"], NoLocalRank),
    flag(&["--standalone"], OneHost),
    flag(&["--run-path"], Dropped),
    valued(&["--rdzv-endpoint", "--master-addr"], Master),
    valued(&["--node-rank"], NodeRank),
    valued(&["--rdzv-backend", "--rdzv-id", "--rdzv-conf", "--local-addr"], Dropped),
    valued(&["--master-port", "--role", "--monitor-interval"], Dropped),
    valued(&["--start-method", "--event-log-handler", "--logs-specs", "--local-ranks-filter"], Dropped),
    valued(&["--log-dir", "-r", "--redirects", "-t", "--tee"], Dropped),
    valued(&["--numa-binding"], Bind),
];

const FSDP: &str = "configure it in the program, or pass `--keep-launcher` to run the launcher as one rank";

const ACCELERATE: &[LauncherOption] = &[
    valued(&["--num-processes"], Ranks),
    valued(&["--num-machines"], Hosts),
    valued(&["--gpu-ids"], Gpus),
    valued(&["--config-file"], File),
    valued(&["--mixed-precision"], Variable("ACCELERATE_MIXED_PRECISION")),
    valued(&["--gradient-accumulation-steps"], Variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")),
    valued(&["--num-cpu-threads-per-process"], Variable("OMP_NUM_THREADS")),
    valued(&["--dynamo-backend"], Capitals("ACCELERATE_DYNAMO_BACKEND")),
    valued(&["--dynamo-mode"], Variable("ACCELERATE_DYNAMO_MODE")),
    flag(&["--dynamo-use-fullgraph"], Switch("ACCELERATE_DYNAMO_USE_FULLGRAPH")),
    flag(&["--dynamo-use-dynamic"], Switch("ACCELERATE_DYNAMO_USE_DYNAMIC")),
    flag(&["--cpu", "--use-cpu"], Switch("ACCELERATE_USE_CPU")),
    flag(&["--debug"], Switch("ACCELERATE_DEBUG_MODE")),
    valued(&["--max-restarts"], Restarts),
    flag(&["-m", "--module"], Module),
    flag(&["--no-python"], NoPython),
    flag(&["--multi-gpu", "--same-network", "--quiet", "-q"], Dropped),
    flag(&["--standalone", "--downcast-bf16"], Dropped),
    flag(&["--enable-cpu-affinity"], Bind),
    valued(&["--machine-rank"], NodeRank),
    valued(&["--main-process-ip"], Master),
    valued(&["--main-process-port", "--rdzv-backend"], Dropped),
    valued(&["--rdzv-conf", "--monitor-interval", "--log-dir", "--role", "--tee"], Dropped),
    valued(&["--compute-environment", "--main-training-function"], Dropped),
    flag(&["--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--use-parallelism-config"], Refused(FSDP)),
    flag(&["--tpu", "--use-xpu", "--ipex"], Refused(KEEP)),
];

const FABRIC: &[LauncherOption] = &[
    valued(&["--devices"], RanksPerHost),
    valued(&["--num-nodes"], Hosts),
    valued(&["--accelerator"], Variable("LT_ACCELERATOR")),
    valued(&["--strategy"], Variable("LT_STRATEGY")),
    valued(&["--precision"], Variable("LT_PRECISION")),
    valued(&["--node-rank"], NodeRank),
    valued(&["--main-address"], Master),
    valued(&["--main-port"], Dropped),
];

const DEEPSPEED: &[LauncherOption] = &[
    valued(&["--num-gpus"], RanksPerHost),
    valued(&["--num-nodes"], Hosts),
    valued(&["-i", "--include"], Include),
    valued(&["-e", "--exclude"], Refused("name the GPUs to use: `--gpus 0,1` before the command")),
    valued(&["-H", "--hostfile"], Refused(HOSTS)),
    flag(&["--module"], Module),
    flag(&["--no-python"], NoPython),
    flag(&["--no-local-rank"], NoLocalRank),
    valued(&["--master-addr"], Master),
    valued(&["--node-rank"], NodeRank),
    valued(&["--master-port", "--launcher", "--launcher-args"], Dropped),
    valued(&["--save-pid", "--enable-each-rank-log", "--ssh-port"], Dropped),
    flag(&["--no-ssh", "--no-ssh-check", "--force-multi"], Dropped),
    flag(&["--bind-cores-to-rank"], Bind),
    valued(&["--bind-core-list"], Refused("split all cores with `--bind_cores_to_rank`")),
    valued(
        &["--autotuning", "--elastic-training", "--min-elastic-nodes", "--max-elastic-nodes"],
        Refused(KEEP),
    ),
];

const MPIRUN: &[LauncherOption] = &[
    valued(&["-n", "-np", "--np", "-c"], Ranks),
    valued(&["-ppn", "-npernode", "--npernode", "-N", "-perhost"], RanksPerHost),
    valued(&["-x", "-envlist"], Export),
    LauncherOption { names: &["-genv", "-env"], values: 2, meaning: Pair },
    valued(
        &["-H", "-host", "--host", "-hosts", "-hostfile", "--hostfile", "-machinefile", "-f"],
        Refused(HOSTS),
    ),
    flag(&["--allow-run-as-root", "--oversubscribe", "-oversubscribe", "-q", "-v", "--verbose"], Dropped),
    flag(&["--tag-output", "-tag-output", "-l", "--report-bindings", "-report-bindings"], Dropped),
    valued(&["--bind-to", "-bind-to"], Bind),
    valued(&["--map-by", "-map-by", "--rank-by", "--output-filename"], Dropped),
    LauncherOption { names: &["-mca", "--mca"], values: 2, meaning: Dropped },
    valued(&["-wdir", "-wd", "--wdir"], Refused(FOLDER)),
];

/// MosaicML's (composer/cli/launcher.py).
const COMPOSER: &[LauncherOption] = &[
    valued(&["-n", "--nproc"], RanksPerHost),
    valued(&["--world-size"], Ranks),
    flag(&["-m", "--module-mode"], Module),
    flag(&["-c", "--command-mode"], NoPython),
    valued(&["--node-rank"], NodeRank),
    valued(&["--master-addr"], Master),
    valued(&["--base-rank", "--master-port", "--run-directory", "--stdout", "--stderr"], Dropped),
    flag(&["-v", "--verbose"], Dropped),
];

/// It starts torchrun on each host (colossalai/cli/launcher/run.py).
const COLOSSALAI: &[LauncherOption] = &[
    valued(&["--nproc-per-node"], RanksPerHost),
    valued(&["--num-nodes"], Hosts),
    flag(&["-m"], Module),
    valued(&["--master-addr"], Master),
    valued(&["--master-port", "--ssh-port"], Dropped),
    valued(&["-H", "-host", "--host", "--hostfile", "--include", "--exclude"], Refused(HOSTS)),
    valued(&["--extra-launch-args"], Refused("write options of torchrun as `torchrun ... train.py`")),
];

const JOB: &str = "remove it inside a job (`rankdeck run --slurm`), or pass it to `rankdeck sbatch`";

const SRUN: &[LauncherOption] = &[
    valued(&["-n", "--ntasks"], Ranks),
    valued(&["--ntasks-per-node"], RanksPerHost),
    valued(&["-N", "--nodes"], Hosts),
    valued(&["--export"], Exports),
    valued(&["--cpu-bind"], Bind),
    valued(&["--mpi"], RefusedValue(KEEP)),
    flag(
        &["-l", "--label", "-u", "--unbuffered", "-v", "--verbose", "-Q", "--quiet", "--exclusive"],
        Dropped,
    ),
    flag(&["-K", "--kill-on-bad-exit", "--overlap", "--exact", "-E", "--preserve-env"], Dropped),
    valued(&["-c", "--cpus-per-task", "--gpu-bind", "-o", "--output", "-e", "--error"], Dropped),
    valued(&["-J", "--job-name", "-m", "--distribution", "-W", "--wait"], Dropped),
    valued(&["-D", "--chdir"], Refused(FOLDER)),
    valued(&["-p", "--partition", "-A", "--account", "-q", "--qos", "-t", "--time", "--jobid"], Refused(JOB)),
    valued(&["--gres", "-G", "--gpus", "--gpus-per-node", "--gpus-per-task"], Refused(JOB)),
    valued(&["--mem", "--mem-per-cpu", "--mem-per-gpu", "-C", "--constraint", "--reservation"], Refused(JOB)),
    valued(&["-w", "--nodelist", "-x", "--exclude"], Refused(JOB)),
];

/// The scripts that `trl` starts with `accelerate launch`. They leave out arguments that they do not know
/// (trl/cli.py).
const TRL_SCRIPTS: &[(&str, &str)] = &[
    ("sft", "trl.scripts.sft"),
    ("dpo", "trl.scripts.dpo"),
    ("grpo", "trl.scripts.grpo"),
    ("kto", "trl.scripts.kto"),
    ("reward", "trl.scripts.reward"),
    ("rloo", "trl.scripts.rloo"),
];

/// Options of `accelerate launch` that no script of TRL has, and those of `trl`.
const TRL: &[LauncherOption] = &[
    valued(&["--config"], Arguments),
    valued(&["--accelerate-config"], TrlConfig),
    valued(&["--config-file"], File),
    valued(&["--num-processes"], Ranks),
    valued(&["--num-machines"], Hosts),
    valued(&["--gpu-ids"], Gpus),
    valued(&["--mixed-precision"], Variable("ACCELERATE_MIXED_PRECISION")),
    valued(&["--num-cpu-threads-per-process"], Variable("OMP_NUM_THREADS")),
    valued(&["--machine-rank"], NodeRank),
    valued(&["--main-process-ip"], Master),
    valued(&["--main-process-port", "--rdzv-backend"], Dropped),
    flag(&["--multi-gpu", "--same-network"], Dropped),
    flag(&["--use-deepspeed", "--use-fsdp", "--use-parallelism-config"], Refused(FSDP)),
];

const MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "{rank}"),
    ("OMPI_COMM_WORLD_SIZE", "{world_size}"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "{local_rank}"),
];

const fn launcher(
    name: &'static str,
    modules: &'static [&'static str],
    subcommand: &'static [&'static str],
    options: &'static [LauncherOption],
) -> Launcher {
    Launcher {
        name,
        modules,
        subcommand,
        options,
        ranks: None,
        env: &[],
        local_rank: None,
        is_command: false,
        is_lightning: false,
        file: None,
        scripts: &[],
        is_slurm: false,
        refused: None,
    }
}

/// Of `accelerate`, if none is named.
const ACCELERATE_FILE: &str = "~/.cache/huggingface/accelerate/default_config.yaml";

static LAUNCHERS: [Launcher; 14] = [
    Launcher { ranks: Some(1), ..launcher("torchrun", &["torch.distributed.run"], &[], TORCHRUN) },
    Launcher {
        ranks: Some(1),
        local_rank: Some("--local-rank={local_rank}"),
        ..launcher("torch.distributed.launch", &["torch.distributed.launch"], &[], TORCHRUN)
    },
    Launcher {
        file: Some(ACCELERATE_FILE),
        ..launcher("accelerate", &["accelerate.commands.launch"], &["[launch]"], ACCELERATE)
    },
    Launcher { file: Some(ACCELERATE_FILE), ..launcher("accelerate-launch", &[], &[], ACCELERATE) },
    Launcher {
        file: Some(ACCELERATE_FILE),
        scripts: TRL_SCRIPTS,
        ..launcher("trl", &["trl.cli"], &[], ACCELERATE)
    },
    Launcher {
        ranks: Some(1),
        env: &[("LT_CLI_USED", "1")],
        is_lightning: true,
        ..launcher("fabric", &["lightning.fabric.cli"], &["run"], FABRIC)
    },
    Launcher {
        ranks: Some(1),
        env: &[("LT_CLI_USED", "1")],
        is_lightning: true,
        ..launcher("lightning", &["lightning"], &["run", "[model]"], FABRIC)
    },
    Launcher {
        local_rank: Some("--local_rank={local_rank}"),
        ..launcher("deepspeed", &["deepspeed.launcher.runner"], &[], DEEPSPEED)
    },
    Launcher { env: MPI, is_command: true, ..launcher("mpirun", &[], &[], MPIRUN) },
    Launcher { env: MPI, is_command: true, ..launcher("mpiexec", &[], &[], MPIRUN) },
    launcher("composer", &["composer.cli", "composer.cli.launcher"], &[], COMPOSER),
    launcher("colossalai", &["colossalai.cli"], &["run"], COLOSSALAI),
    Launcher { is_slurm: true, is_command: true, ..launcher("srun", &[], &[], SRUN) },
    Launcher { refused: Some(HOROVOD), ..launcher("horovodrun", &["horovod.runner.launch"], &[], &[]) },
];

const HOROVOD: &str = "Horovod needs the rendezvous server of its launcher: pass `--keep-launcher` to run it as one rank, \
                       and name the hosts in its `-H`; or start ranks of `torch.distributed`";

/// Libraries whose programs need the MPI launcher.
const NEEDS_MPI: [&str; 3] = ["mpi4py", "horovod", "petsc4py"];

/// Reads a file of this machine.
pub type FileReader<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Translates a command; `None` if no launcher starts it.
///
/// # Errors
/// An option that has no translation, or a program that needs its launcher.
pub fn translate(words: &[String], read: FileReader<'_>) -> Result<Option<Translation>, HintedError> {
    let Some((launcher, call)) = find(words) else { return Ok(None) };
    if let Some(hint) = launcher.refused {
        return Err(HintedError::new(format!("`{}` has no translation", call.name), hint));
    }
    let mut made = Parsed::new(launcher, &call);
    let target = match call.script {
        Some(module) => {
            made.is_module = true;
            let arguments = made.scattered(words.get(call.options..).unwrap_or_default())?;
            std::iter::once(module.to_owned()).chain(arguments).collect()
        }
        None => {
            let at = made.options(words, call.options)?;
            words.get(at..).unwrap_or_default().to_vec()
        }
    };
    // Without the file, the script reports it.
    for text in std::mem::take(&mut made.arguments).iter().filter_map(|path| read(path)) {
        made.read_arguments(&text)?;
    }
    if let (false, Some(path)) = (made.has_file, launcher.file)
        && let Some(text) = read(path)
    {
        made.file(path, &text)?;
    }
    for path in std::mem::take(&mut made.files) {
        let text = read(&path).ok_or_else(|| {
            let error = format!("cannot read `{path}`, the configuration of `{}`", call.name);
            HintedError::new(error, "check the path, or pass the options themselves")
        })?;
        made.file(&path, &text)?;
    }
    made.finish(&target, read).map(Some)
}

/// How a launcher is called.
struct LauncherCall {
    name: String,
    /// Words before the launcher, such as `uv run`.
    before: Vec<String>,
    /// The interpreter of the ranks, with its options.
    python: Vec<String>,
    /// Index of the launcher's first option.
    options: usize,
    /// The module of the launcher's own script.
    script: Option<&'static str>,
}

/// Finds the launcher that a command starts.
fn find(words: &[String]) -> Option<(&'static Launcher, LauncherCall)> {
    let at = CommandParts::of(words)?.program;
    let word = words.get(at)?;
    let mut before = words.get(..at)?.to_vec();
    let (launcher, name, python, mut options) = if before.last().is_some_and(|word| word == "-m") {
        // `uv run -m MODULE`.
        let launcher = LAUNCHERS.iter().find(|own| own.modules.contains(&word.as_str()))?;
        before.pop();
        (launcher, format!("python -m {word}"), vec!["python".to_owned()], at + 1)
    } else if is_python(word) {
        let rest = words.get(at..)?;
        let flag = rest.iter().position(|word| word == "-m")?;
        // Behind a script, `-m` is the script's own.
        let is_option = rest.get(1..flag)?.iter().all(|word| word.starts_with('-'));
        let module = rest.get(flag + 1).filter(|_| is_option)?;
        let launcher = LAUNCHERS.iter().find(|own| own.modules.contains(&module.as_str()))?;
        (launcher, format!("{word} -m {module}"), rest.get(..flag)?.to_vec(), at + flag + 2)
    } else {
        let launcher = LAUNCHERS.iter().find(|own| own.name == file_name(word) && !own.name.contains('.'))?;
        let python = word.rsplit_once('/').map(|(folder, _)| format!("{folder}/python"));
        (launcher, word.clone(), vec![python.unwrap_or_else(|| "python3".to_owned())], at + 1)
    };
    for part in launcher.subcommand {
        let is_optional = part.starts_with('[');
        let is_there = words.get(options).is_some_and(|word| word == part.trim_matches(['[', ']']));
        options += usize::from(is_there);
        if !is_there && !is_optional {
            return None;
        }
    }
    // `accelerate config` launches nothing.
    let needs = launcher.name == "accelerate" && file_name(word) == launcher.name;
    if needs && words.get(at + 1).is_none_or(|word| word != "launch") {
        return None;
    }
    let mut script = None;
    if !launcher.scripts.is_empty() {
        // `trl env` launches nothing, either.
        let (_, module) =
            launcher.scripts.iter().find(|(own, _)| words.get(options).is_some_and(|word| word == own))?;
        script = Some(*module);
        options += 1;
    }
    Some((launcher, LauncherCall { name, before, python, options, script }))
}

/// A command line that is being read.
struct Parsed<'a> {
    launcher: &'static Launcher,
    call: &'a LauncherCall,
    made: Translation,
    is_module: bool,
    is_program: bool,
    has_local_rank: bool,
    has_file: bool,
    files: Vec<String>,
    /// Files with arguments of the script.
    arguments: Vec<String>,
    /// The number of ranks in all and that per host, with their options: both give the number of hosts.
    counts: [Option<(String, u32)>; 2],
    /// Names of options that the command line has: a file does not replace them.
    given: Vec<&'static str>,
}

impl<'a> Parsed<'a> {
    fn new(launcher: &'static Launcher, call: &'a LauncherCall) -> Parsed<'a> {
        let env = launcher.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let ranks = launcher.ranks.map(|ranks| (String::new(), RankCount::PerHost(ranks)));
        let made =
            Translation { launcher: call.name.clone(), env: env.collect(), ranks, ..Translation::default() };
        let made = Translation { slurm_env: launcher.is_slurm, ..made };
        Parsed {
            launcher,
            call,
            made,
            is_module: false,
            is_program: launcher.is_command,
            has_local_rank: launcher.local_rank.is_some(),
            has_file: false,
            files: Vec::new(),
            arguments: Vec::new(),
            counts: [None, None],
            given: Vec::new(),
        }
    }

    /// Reads the options; returns the index of the first word behind them.
    fn options(&mut self, words: &[String], from: usize) -> Result<usize, HintedError> {
        let mut at = from;
        while let Some(word) = words.get(at).filter(|word| word.len() > 1 && word.starts_with('-')) {
            at += 1;
            if word == "--" {
                break;
            }
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if word.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            // `-n4`.
            let (name, attached) = match word.split_at_checked(2) {
                Some((short, value))
                    if self.option(name).is_none()
                        && value.starts_with(|c: char| c.is_ascii_digit())
                        && self.option(short).is_some_and(|option| option.values == 1) =>
                {
                    (short, Some(value.to_owned()))
                }
                _ => (name, attached),
            };
            let Some(option) = self.option(name) else {
                return Err(HintedError::new(
                    format!("`{name}` of `{}` has no translation", self.call.name),
                    format!("remove it, or {KEEP}"),
                ));
            };
            let count = if attached.is_some() { 0 } else { option.values };
            let mut values: Vec<String> = words.iter().skip(at).take(count).cloned().collect();
            if values.len() < count {
                return Err(HintedError::new(
                    format!("`{name}` of `{}` has no value", self.call.name),
                    format!("write `{name} VALUE`"),
                ));
            }
            at += count;
            values.extend(attached);
            self.given.push(option.names[0]);
            self.take(option, name, &values)?;
        }
        Ok(at)
    }

    fn option(&self, name: &str) -> Option<&'static LauncherOption> {
        among(self.launcher.options, name)
    }

    /// Takes the launcher's options from the arguments of its own script; returns the others.
    fn scattered(&mut self, words: &[String]) -> Result<Vec<String>, HintedError> {
        let mut others = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let Some(option) = among(TRL, name) else {
                others.push(word.clone());
                continue;
            };
            let value = match attached {
                None if option.values > 0 => words.next().cloned(),
                attached => attached,
            };
            if option.values > 0 && value.is_none() {
                return Err(HintedError::new(
                    format!("`{name}` of `{}` has no value", self.call.name),
                    format!("write `{name} VALUE`"),
                ));
            }
            if option.meaning == Arguments {
                others.extend([name.to_owned()].into_iter().chain(value.clone()));
            }
            self.given.push(option.names[0]);
            self.take(option, name, value.as_slice())?;
        }
        Ok(others)
    }

    /// Takes the launcher's options from a file with arguments of its script. Those of the command line win.
    fn read_arguments(&mut self, text: &str) -> Result<(), HintedError> {
        for line in text.lines() {
            let plain = line.split(" #").next().unwrap_or_default();
            let Some((key, value)) = plain.split_once(':') else { continue };
            let name = format!("--{key}");
            let value = value.trim().trim_matches(['"', '\'']);
            let Some(option) = among(TRL, &name).filter(|option| option.meaning != Arguments) else {
                continue;
            };
            if !self.given.contains(&option.names[0]) && !value.is_empty() && value != "false" {
                self.given.push(option.names[0]);
                self.take(option, &name, &[value.to_owned()])?;
            }
        }
        Ok(())
    }

    /// Applies an option.
    fn take(&mut self, option: &LauncherOption, name: &str, values: &[String]) -> Result<(), HintedError> {
        let value = values.first().map_or("", String::as_str);
        let call = self.call;
        let wrong = |expected: &str| {
            let shown = if value.is_empty() { name.to_owned() } else { format!("{name} {value}") };
            HintedError::new(format!("`{shown}` of `{}` has no translation", call.name), expected)
        };
        let number = |text: &str| {
            let number = text.parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| wrong(&format!("write a whole number: `{name} 2`")))
        };
        match option.meaning {
            RanksPerHost if ["auto", "gpu", "-1"].contains(&value) => self.made.ranks = None,
            RanksPerHost if value.contains(',') && self.launcher.is_lightning => {
                self.made.gpus = Some(indices(value).ok_or_else(|| wrong("write indices: `0,1`"))?);
                self.made.ranks = None;
            }
            RanksPerHost => {
                self.made.ranks = Some((name.to_owned(), RankCount::PerHost(number(value)?)));
                self.counts[1] = Some((name.to_owned(), number(value)?));
            }
            Ranks => {
                self.made.ranks = Some((name.to_owned(), RankCount::Total(number(value)?)));
                self.counts[0] = Some((name.to_owned(), number(value)?));
            }
            Hosts => {
                let (least, most) = value.split_once([':', '-']).unwrap_or((value, value));
                self.made.hosts = Some((name.to_owned(), number(least)?, number(most)?));
            }
            OneHost => {
                self.made.hosts.get_or_insert((name.to_owned(), 1, 1));
            }
            Master => {
                let host =
                    value.rsplit_once(':').filter(|(host, _)| !host.contains(':')).map_or(value, |at| at.0);
                self.made.masters.push((name.to_owned(), host.to_owned()));
                self.made.dropped.push(name.to_owned());
            }
            NodeRank => {
                let index = value.parse().map_err(|_| wrong(&format!("write a number: `{name} 0`")))?;
                self.made.node_rank = Some((name.to_owned(), index));
                self.made.dropped.push(name.to_owned());
            }
            Bind if value == "none" => {}
            Bind => self.made.bind = true,
            Module => self.is_module = true,
            NoPython => self.is_program = true,
            NoLocalRank => self.has_local_rank = false,
            Restarts => {
                let count = value.parse().map_err(|_| wrong(&format!("write a number: `{name} 3`")))?;
                self.made.max_restarts = Some(count);
            }
            Gpus if value == "all" => {}
            Gpus => self.made.gpus = Some(indices(value).ok_or_else(|| wrong("write indices: `0,1`"))?),
            Include => {
                let own = value.strip_prefix("localhost:").and_then(indices);
                self.made.gpus = Some(own.ok_or_else(|| {
                    wrong("pass hosts with `--hosts a,b` and GPUs with `--gpus 0,1` before the command")
                })?);
            }
            Variable(variable) => self.set(variable, value.to_owned()),
            Capitals(variable) => self.set(variable, value.to_uppercase()),
            Switch(variable) => self.set(variable, "true".to_owned()),
            Export => match value.split_once('=') {
                Some((variable, value)) => self.set(variable, value.to_owned()),
                None => self.made.pass_env.extend(value.split(',').map(str::to_owned)),
            },
            Exports => {
                for part in value.split(',').filter(|part| !["ALL", "NONE", ""].contains(part)) {
                    match part.split_once('=') {
                        Some((variable, value)) => self.set(variable, value.to_owned()),
                        None => self.made.pass_env.push(part.to_owned()),
                    }
                }
            }
            Pair => {
                let second = values.get(1).cloned().unwrap_or_default();
                self.set(value, second);
            }
            File => {
                self.has_file = true;
                self.files.push(value.to_owned());
            }
            TrlConfig => self.trl_config(value).map_err(|()| wrong(FSDP))?,
            Arguments => self.arguments.push(value.to_owned()),
            RefusedValue(_) if value == "none" => {}
            Dropped => self.made.dropped.push(name.to_owned()),
            Refused(hint) | RefusedValue(hint) => return Err(wrong(hint)),
        }
        Ok(())
    }

    /// Takes a file of accelerate, or one of those that TRL has (trl/accelerate_configs); `Err`: it shards the model.
    fn trl_config(&mut self, name: &str) -> Result<(), ()> {
        self.has_file = true;
        let ranks = match name {
            "single_gpu" => 1,
            "multi_gpu" => 8,
            "zero1" | "zero2" | "zero3" | "fsdp1" | "fsdp2" => return Err(()),
            path => {
                self.files.push(path.to_owned());
                return Ok(());
            }
        };
        if !self.given.contains(&"--num-processes") {
            self.made.ranks = Some(("--accelerate_config".to_owned(), RankCount::Total(ranks)));
        }
        self.made.env.entry("ACCELERATE_MIXED_PRECISION".to_owned()).or_insert_with(|| "bf16".to_owned());
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) {
        // `$` would be a variable of the console.
        self.made.env.insert(name.to_owned(), value.replace('$', "$$"));
    }

    /// Reads a file of options: one `key: value` per line. Options of the command line win.
    fn file(&mut self, path: &str, text: &str) -> Result<(), HintedError> {
        let refuse = |what: &str| {
            let error = format!("`{what}` in `{path}` has no translation");
            HintedError::new(error, format!("remove it, or {KEEP}"))
        };
        for line in text.lines() {
            let plain = line.split(" #").next().unwrap_or_default().trim_end();
            if plain.is_empty() || plain.starts_with(['#', '%']) || plain == "---" || plain == "{}" {
                continue;
            }
            let (key, value) = plain.split_once(':').ok_or_else(|| refuse(plain.trim()))?;
            let value = value.trim().trim_matches(['"', '\'']);
            let is_off =
                ["", "null", "~", "false", "no", "{}", "[]"].contains(&value.to_lowercase().as_str());
            if key.starts_with([' ', '-']) || value.is_empty() {
                return Err(refuse(key.trim()));
            }
            if key == "distributed_type" {
                if !["NO", "MULTI_GPU", "MULTI_CPU"].contains(&value) {
                    return Err(refuse(&format!("distributed_type: {value}")));
                }
                continue;
            }
            let name = format!("--{key}");
            let Some(option) = self.option(&name) else {
                // Settings of TPUs and clouds stand in every file.
                if is_off || key.starts_with("tpu_") {
                    continue;
                }
                return Err(refuse(key));
            };
            if is_off && key != "mixed_precision" || self.given.contains(&option.names[0]) {
                continue;
            }
            if option.meaning != Dropped {
                // What is dropped of a file is not listed.
                let listed = self.made.dropped.len();
                self.take(option, &name, &[value.to_owned()])?;
                self.made.dropped.truncate(listed);
            }
        }
        Ok(())
    }

    /// Makes the command of the ranks from the words behind the options.
    fn finish(mut self, target: &[String], read: FileReader<'_>) -> Result<Translation, HintedError> {
        let call = self.call;
        let name = &call.name;
        let Some((first, rest)) = target.split_first() else {
            let hint = format!("write the script after its options: `{name} ... train.py`");
            return Err(HintedError::new(format!("`{name}` starts no program"), hint));
        };
        if let [Some((total, ranks)), Some((per_host, own))] = std::mem::take(&mut self.counts) {
            if !ranks.is_multiple_of(own) {
                let error =
                    format!("`{total} {ranks}` and `{per_host} {own}` of `{name}` contradict each other");
                return Err(HintedError::new(
                    error,
                    format!("choose a multiple of {own}, or remove one of them"),
                ));
            }
            self.made.ranks = Some((per_host, RankCount::PerHost(own)));
            self.made.hosts.get_or_insert((total, ranks / own, ranks / own));
        }
        if self.launcher.is_command {
            let script = CommandParts::of(target).map(|parts| parts.target);
            let text = match script {
                Some(CommandTarget::Script(path)) if path.ends_with(".py") => read(path).unwrap_or_default(),
                Some(CommandTarget::Module(_)) => String::new(),
                _ => {
                    return Err(HintedError::new(
                        format!("`{name}` starts `{first}`, which may need MPI"),
                        KEEP,
                    ));
                }
            };
            if let Some(library) = NEEDS_MPI.iter().find(|library| text.contains(**library)) {
                return Err(HintedError::new(
                    format!("the program uses `{library}`, which needs `{name}`"),
                    KEEP,
                ));
            }
        }
        let mut command = call.before.clone();
        if !self.is_program {
            command.extend(call.python.iter().cloned());
            if self.is_module {
                command.push("-m".to_owned());
            }
        }
        command.push(first.clone());
        command.extend(self.launcher.local_rank.filter(|_| self.has_local_rank).map(str::to_owned));
        command.extend(rest.iter().cloned());
        self.made.command = command;
        if self.launcher.is_lightning {
            let devices = match (&self.made.ranks, &self.made.gpus) {
                (Some((_, RankCount::PerHost(ranks))), _) => ranks.to_string(),
                (_, Some(gpus)) => gpus.len().to_string(),
                _ => "auto".to_owned(),
            };
            self.made.env.insert("LT_DEVICES".to_owned(), devices);
            let hosts = self.made.hosts.as_ref().map_or(1, |(_, least, _)| *least);
            self.made.env.insert("LT_NUM_NODES".to_owned(), hosts.to_string());
        }
        Ok(self.made)
    }
}

/// Finds an option by one of its names.
fn among(options: &'static [LauncherOption], name: &str) -> Option<&'static LauncherOption> {
    let folded = name.replace('_', "-");
    options.iter().find(|option| option.names.contains(&folded.as_str()))
}

/// Parses `0,1`.
fn indices(text: &str) -> Option<Vec<u32>> {
    text.split(',').map(|index| index.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn read(path: &str) -> Option<String> {
        match path {
            "mpi.py" => Some("from mpi4py import MPI\n".to_owned()),
            "sft.yaml" => {
                Some("model_name_or_path: m\nnum_processes: 4  # of all hosts\nlr: 1e-4\n".to_owned())
            }
            "c.yaml" => Some(
                "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\n\
                 downcast_bf16: 'no'\ngpu_ids: all\nmachine_rank: 0\nmixed_precision: bf16\n\
                 num_machines: 1\nnum_processes: 4\ntpu_env: []\nuse_cpu: false\n"
                    .to_owned(),
            ),
            "fsdp.yaml" => Some("distributed_type: FSDP\n".to_owned()),
            _ => None,
        }
    }

    fn made(line: &str) -> Translation {
        translate(&words(line), &read).unwrap_or_else(|error| panic!("{line}: {error}")).unwrap()
    }

    /// Command, ranks per host on one host, and variables.
    fn shown(line: &str) -> (String, Option<u32>, String) {
        let made = made(line);
        let env: Vec<String> = made.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (made.command.join(" "), made.ranks_per_host(1).unwrap(), env.join(" "))
    }

    #[test]
    fn torchrun_becomes_ranks() {
        for (line, command, ranks) in [
            ("torchrun --nproc-per-node 2 train.py --lr 1", "python3 train.py --lr 1", Some(2)),
            ("torchrun --nproc_per_node=gpu train.py", "python3 train.py", None),
            ("torchrun train.py", "python3 train.py", Some(1)),
            ("/v/bin/torchrun --standalone -m pkg.train x", "/v/bin/python -m pkg.train x", Some(1)),
            ("torchrun --no-python ./simulate --seed 1", "./simulate --seed 1", Some(1)),
            ("python -u -m torch.distributed.run --nproc-per-node 4 t.py", "python -u t.py", Some(4)),
            ("uv run torchrun --nproc-per-node 2 t.py", "uv run python3 t.py", Some(2)),
            (
                "python -m torch.distributed.launch --nproc_per_node 2 t.py --lr 1",
                "python t.py --local-rank={local_rank} --lr 1",
                Some(2),
            ),
            ("python -m torch.distributed.launch --use_env t.py", "python t.py", Some(1)),
        ] {
            assert_eq!(shown(line), (command.to_owned(), ranks, String::new()), "{line}");
        }
        let all = made("torchrun --max-restarts 3 --rdzv-endpoint h:1 --rdzv-id=5 --nnodes 1:2 t.py");
        assert_eq!(all.max_restarts, Some(3));
        assert_eq!(all.dropped, ["--rdzv-endpoint", "--rdzv-id"]);
        assert!(all.ranks_per_host(2).is_ok() && all.ranks_per_host(3).is_err());
    }

    #[test]
    fn accelerate_becomes_variables() {
        let line = "accelerate launch --num_processes 2 --mixed_precision fp16 --cpu --dynamo_backend inductor t.py -x";
        let (command, ranks, env) = shown(line);
        assert_eq!((command.as_str(), ranks), ("python3 t.py -x", Some(2)));
        assert_eq!(
            env,
            "ACCELERATE_DYNAMO_BACKEND=INDUCTOR ACCELERATE_MIXED_PRECISION=fp16 ACCELERATE_USE_CPU=true"
        );
        let total = made("accelerate launch --num_processes 6 t.py");
        assert_eq!(total.ranks_per_host(2), Ok(Some(3)));
        assert!(total.ranks_per_host(4).is_err());
        let (_, ranks, env) = shown("accelerate launch --config_file c.yaml t.py");
        assert_eq!((ranks, env.as_str()), (Some(4), "ACCELERATE_MIXED_PRECISION=bf16"));
        let (_, ranks, _) = shown("accelerate launch --config_file c.yaml --num_processes 2 t.py");
        assert_eq!(ranks, Some(2), "the command line wins");
    }

    #[test]
    fn fabric_deepspeed_and_mpirun_become_ranks() {
        let (command, ranks, env) = shown("fabric run --devices=2 --accelerator cpu --strategy ddp t.py");
        assert_eq!((command.as_str(), ranks), ("python3 t.py", Some(2)));
        assert_eq!(env, "LT_ACCELERATOR=cpu LT_CLI_USED=1 LT_DEVICES=2 LT_NUM_NODES=1 LT_STRATEGY=ddp");
        let (command, ranks, _) = shown("deepspeed --num_gpus 4 t.py --deepspeed_config c.json");
        assert_eq!(
            (command.as_str(), ranks),
            ("python3 t.py --local_rank={local_rank} --deepspeed_config c.json", Some(4))
        );
        let some = made("deepspeed --include localhost:1,3 t.py");
        assert_eq!((some.gpus.clone(), some.ranks_per_host(1)), (Some(vec![1, 3]), Ok(None)));
        let mpi = made("mpirun -np 4 --bind-to none -x A=1 -x HOME -mca btl tcp python t.py");
        assert_eq!(mpi.command.join(" "), "python t.py");
        assert_eq!((mpi.ranks_per_host(2), mpi.pass_env.as_slice()), (Ok(Some(2)), &["HOME".to_owned()][..]));
        assert_eq!((mpi.env["A"].as_str(), mpi.env["OMPI_COMM_WORLD_RANK"].as_str()), ("1", "{rank}"));
    }

    #[test]
    fn other_launchers_become_ranks() {
        for (line, command, ranks, env) in [
            ("composer -n 4 t.py --lr 1", "python3 t.py --lr 1", Some(4), ""),
            ("composer -n4 -m pkg.train", "python3 -m pkg.train", Some(4), ""),
            ("composer --world_size 8 --node_rank 0 t.py", "python3 t.py", Some(8), ""),
            ("python -m composer.cli -c ./simulate", "./simulate", None, ""),
            ("colossalai run --nproc_per_node 2 --master_port 1 t.py -x", "python3 t.py -x", Some(2), ""),
            ("srun -n4 -l --mpi=none python t.py", "python t.py", Some(4), ""),
            ("srun --ntasks-per-node=2 -N 1 -u python -m pkg.t", "python -m pkg.t", Some(2), ""),
            ("srun --export=ALL,A=1 python t.py", "python t.py", None, "A=1"),
            ("accelerate-launch --num_processes 2 t.py", "python3 t.py", Some(2), ""),
            (
                "/v/bin/trl sft --model m --num_processes 2 --output_dir o",
                "/v/bin/python -m trl.scripts.sft --model m --output_dir o",
                Some(2),
                "",
            ),
            (
                "trl dpo --config sft.yaml --debug x",
                "python3 -m trl.scripts.dpo --config sft.yaml --debug x",
                Some(4),
                "",
            ),
            (
                "trl grpo --num_processes=2 --accelerate_config multi_gpu",
                "python3 -m trl.scripts.grpo",
                Some(2),
                "ACCELERATE_MIXED_PRECISION=bf16",
            ),
            (
                "trl sft --accelerate_config c.yaml",
                "python3 -m trl.scripts.sft",
                Some(4),
                "ACCELERATE_MIXED_PRECISION=bf16",
            ),
            (
                "python -m lightning run model --devices 2 t.py",
                "python t.py",
                Some(2),
                "LT_CLI_USED=1 LT_DEVICES=2 LT_NUM_NODES=1",
            ),
        ] {
            assert_eq!(shown(line), (command.to_owned(), ranks, env.to_owned()), "{line}");
        }
        for line in ["composer -n 4 --world_size 8 t.py", "srun -n 8 --ntasks-per-node 4 python t.py"] {
            let both = made(line);
            assert_eq!(both.ranks_per_host(2), Ok(Some(4)), "{line}");
            assert!(both.ranks_per_host(1).is_err(), "{line}: it is for two hosts");
        }
        assert!(made("srun -n 2 python t.py").slurm_env && !made("torchrun t.py").slurm_env);
        assert_eq!(made("srun -N 2-4 -n 4 python t.py").hosts, Some(("-N".to_owned(), 2, 4)));
    }

    #[test]
    fn programs_before_a_launcher_stay_before_the_ranks() {
        for (line, command) in [
            ("uv run torchrun t.py", "uv run python3 t.py"),
            ("uv run --with torch -m torch.distributed.run t.py", "uv run --with torch python t.py"),
            ("poetry run accelerate launch --num_processes 1 t.py", "poetry run python3 t.py"),
            ("pipenv run deepspeed --num_gpus 1 --no_local_rank t.py", "pipenv run python3 t.py"),
            (
                "conda run -n rl --no-capture-output torchrun t.py",
                "conda run -n rl --no-capture-output python3 t.py",
            ),
            ("nohup nice -n 5 torchrun t.py", "nohup nice -n 5 python3 t.py"),
            ("env A=1 -u B python -m torch.distributed.run t.py", "env A=1 -u B python t.py"),
            ("time -p composer -n 1 t.py", "time -p python3 t.py"),
            ("numactl -m 0 torchrun t.py", "numactl -m 0 python3 t.py"),
            ("uv run trl sft --num_processes 1", "uv run python3 -m trl.scripts.sft"),
        ] {
            assert_eq!(made(line).command.join(" "), command, "{line}");
        }
    }

    #[test]
    fn binding_of_the_launcher_is_kept() {
        for (line, bind) in [
            ("torchrun --numa-binding exclusive t.py", true),
            ("torchrun t.py", false),
            ("accelerate launch --enable_cpu_affinity t.py", true),
            ("deepspeed --num_gpus 1 --bind_cores_to_rank t.py", true),
            ("mpirun -np 1 --bind-to core python t.py", true),
            ("mpirun -np 1 --bind-to none python t.py", false),
            ("srun --cpu-bind=cores python t.py", true),
        ] {
            assert_eq!(made(line).bind, bind, "{line}");
        }
    }

    #[test]
    fn option_that_contradicts_the_hosts_is_named() {
        let host = |name: &str, address: &str| Host {
            name: name.to_owned(),
            address: address.to_owned(),
            ..Host::default()
        };
        let hosts = [host("a", "10.0.0.1"), host("b", "10.0.0.2")];
        for (line, option) in [
            ("torchrun --nnodes 2 --master-addr b t.py", Some("--master-addr")),
            ("torchrun --nnodes 2 --rdzv-endpoint 10.0.0.2:29400 t.py", Some("--rdzv-endpoint")),
            ("torchrun --nnodes 2 --rdzv-endpoint a:29400 --node-rank 1 t.py", None),
            ("torchrun --nnodes 2 --master-addr 192.168.0.7 t.py", None),
            ("torchrun --nnodes 2 --node-rank 2 t.py", Some("--node-rank 2")),
            ("accelerate launch --num_machines 2 --main_process_ip b t.py", Some("--main_process_ip")),
            ("deepspeed --master_addr b t.py", Some("--master_addr")),
            ("colossalai run --master_addr b t.py", Some("--master_addr")),
        ] {
            let found = made(line).contradiction(&hosts);
            assert_eq!(found.is_some(), option.is_some(), "{line}: {found:?}");
            if let Some((found, option)) = found.zip(option) {
                assert!(found.error.contains(option) && !found.hint.is_empty(), "{line}: {found:?}");
            }
        }
        let alone = made("torchrun --standalone t.py");
        assert!(alone.ranks_per_host(1).is_ok());
        assert!(alone.ranks_per_host(2).unwrap_err().error.contains("--standalone"));
        assert!(made("torchrun --standalone --node-rank 1 t.py").contradiction(&hosts[..1]).is_some());
    }

    #[test]
    fn hosts_get_the_ranks_of_the_launcher() {
        use crate::{ExperimentSource, HostsSource, load_draft};
        use rankdeck_types::experiment::CoreBinding;
        use rankdeck_types::host::GpuSelection;
        use rankdeck_types::ids::RunId;
        let draft = |line: &str, hosts: &HostsSource, sets: &[&str]| {
            let source = ExperimentSource::Command { words: words(line), ships: false };
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            load_draft(hosts, &source, &sets, |_| RunId("a-1".into()))
        };
        let two = HostsSource::Named(vec!["a".into(), "b".into()]);
        let made = draft("torchrun --nproc-per-node 3 --nnodes 2 t.py", &two, &["launch.env.A=1"]).unwrap();
        assert_eq!(made.hosts.iter().map(|host| host.nproc).collect::<Vec<_>>(), [Some(3); 2]);
        assert_eq!(made.experiment.launch.command, ["python3", "t.py"]);
        assert_eq!(made.experiment.launch.rank_variables, Some(true));
        let env = draft("accelerate launch --cpu t.py", &two, &["launch.env.ACCELERATE_USE_CPU=no"]).unwrap();
        assert_eq!(env.experiment.launch.env["ACCELERATE_USE_CPU"], "no", "the user's");
        let kept = draft("torchrun --nproc-per-node 3 t.py", &two, &["launch.keep_launcher=true"]).unwrap();
        assert_eq!(kept.experiment.launch.command[0], "torchrun");
        let bound = draft("torchrun --numa-binding node t.py", &two, &[]).unwrap();
        assert_eq!(bound.experiment.launch.bind, Some(CoreBinding::Auto));
        let free = draft("torchrun --numa-binding node t.py", &two, &["launch.bind=none"]).unwrap();
        assert_eq!(free.experiment.launch.bind, Some(CoreBinding::None), "the user's");
        assert!(draft("srun -n 2 python t.py", &two, &[]).unwrap().experiment.launch.slurm_env);
        let none = Some(GpuSelection::List(Vec::new()));
        assert!(kept.hosts.iter().all(|host| host.nproc == Some(1) && host.gpus == none));
        let four = HostsSource::Ranks(Box::new(two.clone()), 4);
        assert!(draft("torchrun t.py", &four, &[]).unwrap().hosts.iter().all(|host| host.nproc == Some(4)));
        for (line, hosts, name) in [
            ("torchrun --nproc-per-node 3 t.py", &four, "--nproc 4"),
            ("torchrun --nnodes 3 t.py", &two, "--nnodes"),
            ("torchrun --nnodes 2 --master-addr b t.py", &two, "--master-addr"),
            ("torchrun --standalone t.py", &two, "--standalone"),
            ("accelerate launch --num_processes 3 t.py", &two, "--num_processes"),
            ("torchrun --frobnicate t.py", &two, "--frobnicate"),
        ] {
            let error = draft(line, hosts, &[]).unwrap_err().to_string();
            assert!(error.contains(name), "{line}: {error}");
        }
    }

    #[test]
    fn option_without_a_translation_is_refused_by_name() {
        for (line, name) in [
            ("torchrun --frobnicate 3 t.py", "--frobnicate"),
            ("torchrun --nproc-per-node cpu t.py", "--nproc-per-node cpu"),
            ("torchrun --nproc-per-node 2", "starts no program"),
            ("torchrun --nproc-per-node", "--nproc-per-node"),
            ("accelerate launch --use_deepspeed t.py", "--use_deepspeed"),
            ("accelerate launch --config_file fsdp.yaml t.py", "distributed_type: FSDP"),
            ("accelerate launch --config_file gone.yaml t.py", "gone.yaml"),
            ("deepspeed --include worker-0:0 t.py", "--include worker-0:0"),
            ("deepspeed --hostfile h t.py", "--hostfile h"),
            ("mpirun -np 2 -H a,b python t.py", "-H a,b"),
            ("mpirun -np 2 python mpi.py", "mpi4py"),
            ("mpirun -np 2 ./solver", "./solver"),
            ("composer --frobnicate t.py", "--frobnicate"),
            ("composer -n 3 --world_size 8 t.py", "--world_size 8"),
            ("colossalai run --host a,b t.py", "--host a,b"),
            ("colossalai run --hostfile h t.py", "--hostfile h"),
            ("trl sft --accelerate_config zero3 --model m", "--accelerate_config zero3"),
            ("trl sft --use_fsdp --model m", "--use_fsdp"),
            ("trl sft --num_processes", "--num_processes"),
            ("srun -n 2 ./solver", "./solver"),
            ("srun -p gpu python t.py", "-p gpu"),
            ("srun --gres=gpu:4 python t.py", "--gres gpu:4"),
            ("srun --mpi=pmix python t.py", "--mpi pmix"),
            ("horovodrun -np 4 -H a:2,b:2 python t.py", "horovodrun"),
            ("python -m horovod.runner.launch -np 2 python t.py", "horovod.runner.launch"),
        ] {
            let error = translate(&words(line), &read).expect_err(line);
            assert!(error.error.contains(name) && !error.hint.is_empty(), "{line}: {error:?}");
        }
    }

    #[test]
    fn other_commands_stay() {
        for line in [
            "python train.py -m torch.distributed.run",
            "python -m pkg.train",
            "ray start --head --block",
            "ray job submit -- python t.py",
            "colossalai check -i",
            "trl env",
            "trl vllm-serve --model m",
            "python -m lightning --help",
            "uv run -m pkg.train",
            "accelerate config",
            "accelerate test",
            "fabric consolidate x",
            "bash run.sh torchrun",
            "./torchrunner t.py",
        ] {
            assert_eq!(translate(&words(line), &read), Ok(None), "{line}");
        }
    }
}
