//! Translates the command line of a launcher into ranks, which rankdeck starts itself. Pure: words in,
//! [`Translation`] out.
//!
//! Each launcher is one row. Each of its options is taken, set as a variable of the ranks, dropped with a word, or
//! refused by name; an unknown option is refused.

use rankdeck_types::command::{CommandParts, CommandTarget, file_name, is_python};
use rankdeck_types::error::HintedError;
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
    /// The number of hosts, or its limits `MIN:MAX`.
    Hosts,
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
    /// Name and value of a variable, in two words.
    Pair,
    /// A file with further options, `key: value` per line.
    File,
    Dropped,
    /// With what to do instead.
    Refused(&'static str),
}

use OptionEffect::{
    Capitals, Dropped, Export, File, Gpus, Hosts, Include, Module, NoLocalRank, NoPython, Pair, Ranks,
    RanksPerHost, Refused, Restarts, Switch, Variable,
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
}

const KEEP: &str = "pass `--keep-launcher` to run the launcher as one rank";

const TORCHRUN: &[LauncherOption] = &[
    valued(&["--nproc-per-node"], RanksPerHost),
    valued(&["--nnodes"], Hosts),
    valued(&["--max-restarts"], Restarts),
    flag(&["-m", "--module"], Module),
    flag(&["--no-python"], NoPython),
    flag(&["--use-env"], NoLocalRank),
    flag(&["--standalone", "--run-path"], Dropped),
    valued(&["--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--local-addr"], Dropped),
    valued(&["--node-rank", "--master-addr", "--master-port", "--role", "--monitor-interval"], Dropped),
    valued(&["--start-method", "--event-log-handler", "--logs-specs", "--local-ranks-filter"], Dropped),
    valued(&["--log-dir", "-r", "--redirects", "-t", "--tee", "--numa-binding"], Dropped),
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
    flag(&["--multi-gpu", "--same-network", "--quiet", "-q", "--enable-cpu-affinity"], Dropped),
    flag(&["--standalone", "--downcast-bf16"], Dropped),
    valued(&["--machine-rank", "--main-process-ip", "--main-process-port", "--rdzv-backend"], Dropped),
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
    valued(&["--node-rank", "--main-address", "--main-port"], Dropped),
];

const DEEPSPEED: &[LauncherOption] = &[
    valued(&["--num-gpus"], RanksPerHost),
    valued(&["--num-nodes"], Hosts),
    valued(&["-i", "--include"], Include),
    valued(&["-e", "--exclude"], Refused("name the GPUs to use: `--gpus 0,1` before the command")),
    valued(&["-H", "--hostfile"], Refused("pass the hosts with `--hosts a,b`, or list them in hosts.toml")),
    flag(&["--module"], Module),
    flag(&["--no-python"], NoPython),
    flag(&["--no-local-rank"], NoLocalRank),
    valued(&["--master-port", "--master-addr", "--node-rank", "--launcher", "--launcher-args"], Dropped),
    valued(&["--save-pid", "--enable-each-rank-log", "--ssh-port"], Dropped),
    flag(&["--no-ssh", "--no-ssh-check", "--force-multi", "--bind-cores-to-rank"], Dropped),
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
        Refused("pass the hosts with `--hosts a,b`, or list them in hosts.toml"),
    ),
    flag(&["--allow-run-as-root", "--oversubscribe", "-oversubscribe", "-q", "-v", "--verbose"], Dropped),
    flag(&["--tag-output", "-tag-output", "-l", "--report-bindings", "-report-bindings"], Dropped),
    valued(&["--bind-to", "-bind-to", "--map-by", "-map-by", "--rank-by", "--output-filename"], Dropped),
    LauncherOption { names: &["-mca", "--mca"], values: 2, meaning: Dropped },
    valued(&["-wdir", "-wd", "--wdir"], Refused("set `workdir` of the hosts, or `cd` there first")),
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
    }
}

static LAUNCHERS: [Launcher; 8] = [
    Launcher { ranks: Some(1), ..launcher("torchrun", &["torch.distributed.run"], &[], TORCHRUN) },
    Launcher {
        ranks: Some(1),
        local_rank: Some("--local-rank={local_rank}"),
        ..launcher("torch.distributed.launch", &["torch.distributed.launch"], &[], TORCHRUN)
    },
    Launcher {
        file: Some("~/.cache/huggingface/accelerate/default_config.yaml"),
        ..launcher("accelerate", &["accelerate.commands.launch"], &["[launch]"], ACCELERATE)
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
        ..launcher("lightning", &[], &["run", "[model]"], FABRIC)
    },
    Launcher {
        local_rank: Some("--local_rank={local_rank}"),
        ..launcher("deepspeed", &["deepspeed.launcher.runner"], &[], DEEPSPEED)
    },
    Launcher { env: MPI, is_command: true, ..launcher("mpirun", &[], &[], MPIRUN) },
    Launcher { env: MPI, is_command: true, ..launcher("mpiexec", &[], &[], MPIRUN) },
];

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
    let mut made = Parsed::new(launcher, &call);
    let at = made.options(words, call.options)?;
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
    made.finish(words.get(at..).unwrap_or_default(), read).map(Some)
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
}

/// Finds the launcher that a command starts.
fn find(words: &[String]) -> Option<(&'static Launcher, LauncherCall)> {
    let at = CommandParts::of(words)?.program;
    let word = words.get(at)?;
    let before = words.get(..at)?.to_vec();
    let (launcher, name, python, mut options) = if is_python(word) {
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
    let needs = launcher.name == "accelerate" && !is_python(word);
    (!needs || words.get(at + 1).is_some_and(|word| word == "launch"))
        .then_some((launcher, LauncherCall { name, before, python, options }))
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
    /// Names of options that the command line has: a file does not replace them.
    given: Vec<&'static str>,
}

impl<'a> Parsed<'a> {
    fn new(launcher: &'static Launcher, call: &'a LauncherCall) -> Parsed<'a> {
        let env = launcher.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let ranks = launcher.ranks.map(|ranks| (String::new(), RankCount::PerHost(ranks)));
        let made =
            Translation { launcher: call.name.clone(), env: env.collect(), ranks, ..Translation::default() };
        Parsed {
            launcher,
            call,
            made,
            is_module: false,
            is_program: launcher.is_command,
            has_local_rank: launcher.local_rank.is_some(),
            has_file: false,
            files: Vec::new(),
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
        let folded = name.replace('_', "-");
        self.launcher.options.iter().find(|option| option.names.contains(&folded.as_str()))
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
            RanksPerHost => self.made.ranks = Some((name.to_owned(), RankCount::PerHost(number(value)?))),
            Ranks => self.made.ranks = Some((name.to_owned(), RankCount::Total(number(value)?))),
            Hosts => {
                let (least, most) = value.split_once(':').unwrap_or((value, value));
                self.made.hosts = Some((name.to_owned(), number(least)?, number(most)?));
            }
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
            Pair => {
                let second = values.get(1).cloned().unwrap_or_default();
                self.set(value, second);
            }
            File => {
                self.has_file = true;
                self.files.push(value.to_owned());
            }
            Dropped => self.made.dropped.push(name.to_owned()),
            Refused(hint) => return Err(wrong(hint)),
        }
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
                self.take(option, &name, &[value.to_owned()])?;
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
    fn hosts_get_the_ranks_of_the_launcher() {
        use crate::{ExperimentSource, HostsSource, load_draft};
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
        let none = Some(GpuSelection::List(Vec::new()));
        assert!(kept.hosts.iter().all(|host| host.nproc == Some(1) && host.gpus == none));
        let four = HostsSource::Ranks(Box::new(two.clone()), 4);
        assert!(draft("torchrun t.py", &four, &[]).unwrap().hosts.iter().all(|host| host.nproc == Some(4)));
        for (line, hosts, name) in [
            ("torchrun --nproc-per-node 3 t.py", &four, "--nproc 4"),
            ("torchrun --nnodes 3 t.py", &two, "--nnodes"),
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
            "srun -n 2 python t.py",
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
