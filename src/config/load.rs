//! Loads an experiment, alone or together with its hosts, and reports all errors in it, with
//! file, line and column, before any host is contacted. [`Locator`] finds the line of a key, for errors after
//! loading.

use super::check::check;
use super::diagnostic::{Diagnostic, Diagnostics, SourceText};
use super::document::{self, Node, TomlValue, nearest};
use super::launchers::{self, Translation};
use super::source::{COMMAND_LINE, ExperimentSource, HostsSource};
use super::{arguments, bases, overrides, suggest, templates};
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{CoreBinding, Experiment, OWN_ENVS, builtin_env, builtin_ids};
use rankdeck_types::host::{GpuSelection, Host};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::quote;
use rankdeck_types::schema::{self, Keys, ValueKind};
use rankdeck_types::variables::{self, MOST_BYTES, RequestedVariables};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads an experiment with `--set KEY=VALUE` applied and defaults filled in.
///
/// # Errors
/// All errors in the file and the overrides, with their lines.
pub fn load_experiment(source: &ExperimentSource, sets: &[String]) -> Result<Experiment, Diagnostics> {
    read_experiment(source, sets).map(|loaded| loaded.experiment)
}

/// Describes how the launcher of an experiment's command is translated; `None` without a launcher.
pub fn translation(source: &ExperimentSource, sets: &[String]) -> Option<String> {
    read_experiment(source, sets).ok()?.translation.map(|made| made.line())
}

/// A loaded experiment.
struct LoadedExperiment {
    experiment: Experiment,
    /// Its document, for later errors.
    root: Node,
    /// What the launcher in its command asks for.
    translation: Option<Translation>,
}

fn read_experiment(from: &ExperimentSource, sets: &[String]) -> Result<LoadedExperiment, Diagnostics> {
    let source = from.source()?;
    let root = bases::read(from, &source, sets)?;
    complete(&source, root, sets, from.folder())
}

/// Applies overrides to a resolved experiment.
///
/// # Errors
/// All errors in the overrides and in the changed experiment.
pub fn change_experiment(experiment: &Experiment, sets: &[String]) -> Result<Experiment, Diagnostics> {
    let text = toml::to_string(experiment)
        .map_err(|error| Diagnostic::about_file("experiment", error.to_string()))?;
    let source = Arc::new(SourceText::new("experiment", text));
    let root = document::parse(&source)?;
    complete(&source, root, sets, PathBuf::new()).map(|loaded| loaded.experiment)
}

/// `folder`: relative paths start there.
fn complete(
    source: &Arc<SourceText>,
    mut root: Node,
    sets: &[String],
    folder: PathBuf,
) -> Result<LoadedExperiment, Diagnostics> {
    let mut found = Diagnostics::new();
    if root.entry("run").is_none() && (root.entry("host").is_some() || root.entry("defaults.nproc").is_some())
    {
        return Err(Diagnostic::about_file(
            source.name.clone(),
            "expected an experiment, found a hosts file",
        )
        .hint(format!("`rankdeck check EXPERIMENT.toml --hosts {}`", source.name))
        .into());
    }
    arguments::nest(&mut root);
    let sets = templates::reaching(&root, sets, &mut found);
    overrides::apply(&mut root, &sets, Experiment::KEYS, &mut found);
    arguments::flatten(&mut root);
    check(&root, Experiment::KEYS, &mut found);
    // A missing table has no span.
    for diagnostic in found.0.iter_mut().filter(|diagnostic| diagnostic.file.is_empty()) {
        diagnostic.file.clone_from(&source.name);
    }
    let is_builtin = root.entry("launch.command").is_none();
    // A misspelled key has its own error, and the others would follow from it.
    if is_builtin && !has_misspelled_command(&root) {
        check_builtin(&root, &mut found);
    }
    let mut experiment: Experiment = match root.read() {
        Ok(experiment) => experiment,
        // The checks report the same errors better than serde.
        Err(error) => return found.or(()).and(Err(error)),
    };
    for wrong in rankdeck_types::meaning::compile_patterns(&experiment.metrics).err().unwrap_or_default() {
        let at = nearest(&root, &[wrong.key.as_str(), "metrics"]);
        found.push(Diagnostic::at(&at, wrong.cause.error).hint(wrong.cause.hint));
    }
    let translation = translate(&root, &mut experiment, &folder, &mut found);
    check_rules(&root, &experiment, &mut found);
    templates::check(&root, &experiment, &mut found);
    found.or(LoadedExperiment { experiment, root, translation })
}

/// Largest file of a launcher or script that is read.
const MOST_READ: u64 = 1 << 20;

/// Puts the program in place of a launcher that starts it.
fn translate(
    root: &Node,
    experiment: &mut Experiment,
    folder: &Path,
    found: &mut Diagnostics,
) -> Option<Translation> {
    if experiment.launch.keep_launcher {
        return None;
    }
    let base = experiment.launch.code.as_ref().and_then(Code::path).unwrap_or_default().to_owned();
    let read = |path: &str| {
        let home = path.strip_prefix("~/").zip(std::env::var_os("HOME"));
        let places = match home {
            Some((rest, home)) => vec![Path::new(&home).join(rest)],
            None => vec![folder.join(&base).join(path), folder.join(path), PathBuf::from(path)],
        };
        let file = places.into_iter().find(|path| path.is_file())?;
        let mut text = String::new();
        std::fs::File::open(file).ok()?.take(MOST_READ).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let made = match launchers::translate(&experiment.launch.command, &read) {
        Ok(made) => made?,
        Err(HintedError { error, hint }) => {
            found.push(Diagnostic::at(&nearest(root, &["launch.command"]), error).hint(hint));
            return None;
        }
    };
    let launch = &mut experiment.launch;
    launch.command.clone_from(&made.command);
    for (name, value) in &made.env {
        launch.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    launch.pass_env.extend(made.pass_env.iter().filter(|name| !launch.env.contains_key(*name)).cloned());
    launch.rank_variables.get_or_insert(true);
    if made.bind {
        launch.bind.get_or_insert(CoreBinding::Auto);
    }
    launch.slurm_env |= made.slurm_env;
    experiment.restart.max_restarts = experiment.restart.max_restarts.or(made.max_restarts);
    Some(made)
}

/// Gives hosts the ranks and GPUs that a launcher asks for. `has_nproc`: the user gives the ranks, too.
fn spread(
    made: &Translation,
    hosts: &mut [Host],
    has_nproc: bool,
    locator: &Locator,
    found: &mut Diagnostics,
) {
    if let Some(HintedError { error, hint }) = made.contradiction(hosts) {
        return found.push(locator.diagnostic("launch.command", &error).hint(hint));
    }
    let ranks = match made.ranks_per_host(hosts.len()) {
        Ok(ranks) => ranks,
        Err(HintedError { error, hint }) => {
            return found.push(locator.diagnostic("launch.command", &error).hint(hint));
        }
    };
    for host in hosts {
        if let Some(gpus) = &made.gpus {
            host.gpus = Some(GpuSelection::List(gpus.clone()));
        }
        let option = made.ranks.as_ref().map_or("", |(option, _)| option.as_str());
        match (ranks, host.nproc) {
            // Without an option, the launcher starts one rank; the user's number is more specific.
            (Some(ranks), Some(own)) if has_nproc && ranks != own && !option.is_empty() => {
                let error = format!("`--nproc {own}` and `{option}` of `{}` differ", made.launcher);
                return found.push(locator.diagnostic("launch.command", &error).hint("remove one of them"));
            }
            (Some(_), Some(_)) if has_nproc => {}
            (Some(ranks), _) => host.nproc = Some(ranks),
            (None, _) => {}
        }
    }
}

/// Makes one rank of a host, which sees all its GPUs unless some are selected.
fn leave_to_launcher(host: &mut Host) {
    host.nproc = Some(1);
    if host.gpus.as_ref().is_some_and(GpuSelection::is_auto) {
        host.gpus = Some(GpuSelection::List(Vec::new()));
    }
}

/// Whether the top level has an unknown table with a name close to that of `table`.
fn has_misspelled_table(root: &Node, table: &str) -> bool {
    let mut tables = root.table().into_iter().flatten().filter(|(_, entry)| entry.node.table().is_some());
    tables.any(|(name, _)| is_misspelled(name, Experiment::KEYS, table))
}

/// Whether `launch.command` seems to be there under another name.
fn has_misspelled_command(root: &Node) -> bool {
    let keys = match schema::find(Experiment::KEYS, &["launch"]).map(|key| &key.kind) {
        Some(ValueKind::Table(keys)) => *keys,
        _ => return false,
    };
    let launch = root.entry("launch").and_then(|found| found.node.table());
    has_misspelled_table(root, "launch")
        || launch.into_iter().flatten().any(|(name, _)| is_misspelled(name, keys, "command"))
}

/// Whether `name` is not in `keys`, and `key` is the closest of them.
fn is_misspelled(name: &str, keys: Keys, key: &str) -> bool {
    let names = || keys.iter().map(|key| key.name);
    names().all(|known| known != name) && suggest::closest(name, names()) == Some(key)
}

/// Checks the requirements of the built-in trainer.
fn check_builtin(root: &Node, found: &mut Diagnostics) {
    for (table, example) in
        [("env", "id = \"CartPole-v1\"` and `num_envs = 4"), ("learn", "algorithm = \"ppo\"")]
    {
        if root.entry(table).is_none() && !has_misspelled_table(root, table) {
            found.push(
                Diagnostic::about_file(root.place.source.name.clone(), format!("`[{table}]` is missing"))
                    .hint(format!(
                        "add `[{table}]` with `{example}` for the built-in trainer, or set `launch.command`"
                    )),
            );
        }
    }
    let text = |key: &str| match root.entry(key).map(|found| found.node) {
        Some(Node { place, value: TomlValue::String(text) }) => Some((place, text.as_str())),
        _ => None,
    };
    let worker = text("env.worker").map_or("auto", |(_, worker)| worker);
    let is_name_only = ["env.library", "env.vector"].into_iter().any(|key| text(key).is_some());
    if let Some((place, id)) = text("env.id")
        && !id.trim().is_empty()
        && !is_name_only
        && builtin_env(id).is_none()
        && !id.starts_with(OWN_ENVS)
        && (worker == "rust" || worker == "auto" && !id.contains([':', '/']))
    {
        // Gymnasium may have any other id; one that is close to a known one is a typo.
        let is_known = |close: &String| worker != "rust" || builtin_env(close).is_some();
        let hint = match (suggest::env_id(id).filter(is_known), worker) {
            (Some(close), _) => {
                format!("write `\"{close}\"` (`env.worker = \"python\"` uses Gymnasium's `{id}`)")
            }
            (None, "rust") => {
                let known = builtin_ids().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
                format!(
                    "built-in RL environments: {known}; `env.worker = \"python\"` uses Gymnasium's `{id}`"
                )
            }
            (None, _) => return,
        };
        found.push(
            Diagnostic::at(place, format!("unknown RL environment `{id}`"))
                .label("unknown RL environment")
                .hint(hint),
        );
    }
}

/// Checks keys against each other.
fn check_rules(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    for (index, name) in experiment.launch.pass_env.iter().enumerate() {
        let at = || nearest(root, &[format!("launch.pass_env.{index}"), "launch.pass_env".to_owned()]);
        if let Some((name, _)) = name.split_once('=') {
            found.push(Diagnostic::at(&at(), "`pass_env` takes variable names, not values".to_owned()).hint(
                format!("list only the name, `\"{name}\"`, and run `export {name}=...` in your shell"),
            ));
        } else if !variables::is_name(name) {
            found.push(
                Diagnostic::at(&at(), format!("invalid variable name `{}`", name.escape_default()))
                    .hint("list names such as `\"WANDB_API_KEY\"`"),
            );
        } else if let Some(HintedError { error, hint }) = variables::reserved(name) {
            found.push(Diagnostic::at(&at(), error).hint(hint));
        } else if experiment.launch.env.contains_key(name) {
            found.push(
                Diagnostic::at(&at(), format!("`{name}` is in both `env` and `pass_env`"))
                    .hint("keep secrets in `pass_env` and other values in `env`"),
            );
        }
    }
    check_limits(root, experiment, found);
    // A program of the user does not use the tables below.
    if !experiment.launch.command.is_empty() {
        return;
    }
    if let Some(learn) = &experiment.learn
        && learn.anneals()
        && experiment.run.total_steps == 0
    {
        found.push(
            Diagnostic::at(
                &nearest(root, &["learn.anneal_lr", "run.total_steps", "learn"]),
                "`learn.anneal_lr` needs `run.total_steps`: the learning rate falls to 0 over that many steps",
            )
            .hint("set `run.total_steps`, or `learn.anneal_lr = false`"),
        );
    }
    if experiment.eval.stop_value.is_some() && experiment.eval.every == 0 {
        found.push(
            Diagnostic::at(
                &nearest(root, &["eval.stop_value"]),
                "`eval.stop_value` has no effect: `eval.every = 0` disables evaluation",
            )
            .hint("set `eval.every = 10`, or remove `stop_value`"),
        );
    }
}

/// Reports limits of which one makes the other void.
fn check_limits(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    let (watch, restart) = (&experiment.watch, &experiment.restart);
    if restart.backoff_s > restart.backoff_max_s {
        let (first, most) = (restart.backoff_s, restart.backoff_max_s);
        let error = format!("`restart.backoff_s` of {first} s exceeds `restart.backoff_max_s` of {most} s");
        let at = nearest(root, &["restart.backoff_s", "restart.backoff_max_s", "restart"]);
        found.push(Diagnostic::at(&at, error).hint("raise `backoff_max_s`, or lower `backoff_s`"));
    }
    if let Some(silence) = watch.silence_is_stuck_s.filter(|silence| *silence < watch.behind_after_s) {
        let behind = watch.behind_after_s;
        let error = format!(
            "`watch.silence_is_stuck_s` of {silence} s is below `watch.behind_after_s` of {behind} s"
        );
        let at = nearest(root, &["watch.silence_is_stuck_s", "watch.behind_after_s", "watch"]);
        found.push(Diagnostic::at(&at, error).hint(
            "choose more than the longest time that a healthy rank is silent, such as `silence_is_stuck_s = 900`",
        ));
    }
}

/// Loads hosts and an experiment and checks them together; reports the errors of both at once.
///
/// # Errors
/// All errors that can be found without connecting to a host.
pub fn load_draft(
    hosts_source: &HostsSource,
    experiment_source: &ExperimentSource,
    sets: &[String],
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<PlanDraft, Diagnostics> {
    match (hosts_source.read(), read_experiment(experiment_source, sets)) {
        (Ok((mut hosts, hosts_text)), Ok(loaded)) => {
            let LoadedExperiment { experiment, root, translation } = loaded;
            let run = run(&experiment);
            let locator = Locator {
                hosts: Some(hosts_text),
                experiment: Some(root),
                hosts_name: hosts_source.name(),
                experiment_name: experiment_source.name(),
                given: hosts_source.given(),
                options: hosts_source.repeated(),
            };
            let mut found = Diagnostics::new();
            if let Some(made) = &translation {
                spread(made, &mut hosts, hosts_source.has_nproc(), &locator, &mut found);
            }
            if experiment.launch.keep_launcher && !hosts_source.has_nproc() {
                hosts.iter_mut().for_each(leave_to_launcher);
            }
            let draft = PlanDraft {
                run,
                experiment,
                hosts,
                excluded: Default::default(),
                resume: None,
                program: None,
                asked: Default::default(),
                drill: false,
            };
            for problem in draft.problems(&[]) {
                found.push(locator.diagnostic(&problem.key, &problem.cause.error).hint(&problem.cause.hint));
            }
            missing_variables(&draft, &locator, &mut found);
            gpus_for_all(&draft, &locator, &mut found);
            long_strings(&draft, &locator, &mut found);
            found.or(draft)
        }
        (hosts, experiment) => {
            let mut all = hosts.err().unwrap_or_default();
            all.0.extend(experiment.err().unwrap_or_default().0);
            Err(all)
        }
    }
}

/// Linux's MAX_ARG_STRLEN: longest argument or variable, terminator included.
const MOST_STRING: usize = 128 << 10;
/// Bytes of the script around a prelude.
const SCRIPT_ROOM: usize = 16 << 10;

/// Reports variables, arguments and preludes that are too long: hosts would fail with "argument list too
/// long" for each rank.
fn long_strings(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    let launch = &draft.experiment.launch;
    // `NAME=VALUE` and a zero byte.
    let variable = |(name, value): (&String, &String)| (name.clone(), name.len() + value.len() + 2);
    let mut strings: Vec<(String, usize, usize)> = Vec::new();
    strings.extend(launch.command.iter().map(|word| ("launch.command".into(), word.len() + 1, MOST_STRING)));
    strings.extend(launch.resume.iter().map(|word| ("launch.resume".into(), word.len() + 1, MOST_STRING)));
    let shared = launch.env.iter().map(variable);
    strings.extend(shared.map(|(name, bytes)| (format!("launch.env.{name}"), bytes, MOST_STRING)));
    for (node, host) in draft.hosts.iter().enumerate() {
        let own = host.env.iter().map(variable);
        strings.extend(own.map(|(name, bytes)| (format!("host.{node}.env.{name}"), bytes, MOST_STRING)));
        let prelude = host.setup.prelude.as_ref().map_or(0, String::len);
        strings.push((format!("host.{node}.prelude"), prelude, MOST_STRING - SCRIPT_ROOM));
    }
    for (key, bytes, most) in strings.into_iter().filter(|(_, bytes, most)| bytes > most) {
        let error = format!(
            "`{key}` is {} KiB long; Linux limits an argument or variable to {} KiB",
            bytes.div_ceil(1 << 10),
            most >> 10
        );
        found.push(locator.diagnostic(&key, &error).hint("move the content to a file on the hosts"));
    }
}

/// Reports a `CUDA_VISIBLE_DEVICES` for all ranks: it would put them on the same GPU.
fn gpus_for_all(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    const LIST: &str = "CUDA_VISIBLE_DEVICES";
    let launch = &draft.experiment.launch;
    let none = GpuSelection::List(Vec::new());
    let uses = |host: &&Host| host.gpus.as_ref().is_some_and(|gpus| *gpus != none && !gpus.is_auto());
    let Some(node) = draft.hosts.iter().position(|host| uses(&host)) else { return };
    let passed =
        launch.pass_env.iter().position(|name| name == LIST).map(|at| format!("launch.pass_env.{at}"));
    let set = launch.env.contains_key(LIST).then(|| format!("launch.env.{LIST}"));
    let own = draft.hosts[node].env.contains_key(LIST).then(|| format!("host.{node}.env.{LIST}"));
    if let Some(key) = passed.or(set).or(own) {
        let text = format!("`{LIST}` would be the same for all ranks, but each rank gets its own GPU");
        let hint = "select GPUs with `gpus = [2, 3]` of a host or `--gpus 2,3`; `gpus = []` leaves the choice to you";
        found.push(locator.diagnostic(&key, &text).hint(hint));
    }
}

/// Reports variables to pass to the ranks that are not set in this process.
fn missing_variables(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    let launch = &draft.experiment.launch;
    let mut reported = BTreeSet::new();
    let mut bytes = 0;
    for (node, host) in draft.hosts.iter().enumerate() {
        let (values, missing) = RequestedVariables::new(launch, host).fill(&|name| std::env::var(name).ok());
        bytes = bytes.max(values.bytes());
        for name in missing.into_iter().filter(|name| reported.insert(name.clone())) {
            let holds = |(_, value): &(&String, &String)| value.contains(&format!("${{{name}}}"));
            let key = match (
                launch.pass_env.iter().position(|passed| *passed == name),
                launch.env.iter().find(holds),
            ) {
                (Some(index), _) => format!("launch.pass_env.{index}"),
                (None, Some((key, _))) => format!("launch.env.{key}"),
                (None, None) => {
                    let own = host.env.iter().find(holds).map_or("", |(key, _)| key.as_str());
                    format!("host.{node}.env.{own}")
                }
            };
            found.push(
                locator
                    .diagnostic(&key, &format!("environment variable `{name}` is not set"))
                    .hint(format!("run `export {name}=...` first; an empty value counts as set")),
            );
        }
    }
    if bytes > MOST_BYTES {
        found.push(
            locator
                .diagnostic(
                    "launch.pass_env",
                    &format!("the values of passed variables total {bytes} bytes, limit {MOST_BYTES}"),
                )
                .hint("move large values to files on the hosts"),
        );
    }
}

/// The documents of a hosts file and an experiment.
#[derive(Debug)]
pub struct Locator {
    pub(super) hosts: Option<Node>,
    pub(super) experiment: Option<Node>,
    pub(super) hosts_name: String,
    pub(super) experiment_name: String,
    /// Options that set a key of every host, such as `--gpus`.
    pub(super) given: Vec<&'static str>,
    /// Options that select these hosts again.
    pub(super) options: Vec<String>,
}

/// Document, its name, and the paths to try in turn.
type Candidates<'a> = (Option<&'a Node>, &'a str, Vec<String>);

impl Locator {
    /// Reads both again; a file that cannot be read is named without a line.
    pub fn new(hosts: &HostsSource, experiment: &ExperimentSource) -> Locator {
        Locator {
            hosts: hosts.document(),
            experiment: experiment
                .source()
                .and_then(|source| super::bases::read(experiment, &source, &[]))
                .ok(),
            hosts_name: hosts.name(),
            experiment_name: experiment.name(),
            given: hosts.given(),
            options: hosts.repeated(),
        }
    }

    /// Returns `FILE:LINE` of a dotted key, such as `launch.command`, or `host.1.gpus` for the second host;
    /// the line of its table if the key is absent.
    pub fn place(&self, key: &str) -> String {
        let (root, name, paths) = self.candidates(key);
        let written = root.filter(|root| paths.iter().any(|path| root.entry(path).is_some()));
        match written.map(|root| nearest(root, &paths).line()) {
            // This text is not visible to the user.
            Some(_) if name == COMMAND_LINE => name.to_owned(),
            Some(line) => format!("{name}:{line}"),
            None => name.to_owned(),
        }
    }

    /// Returns the arguments that select this experiment and its hosts.
    pub fn subject(&self) -> String {
        let options = self.options.iter().map(|word| quote::word(word));
        // What follows `--` belongs to the command.
        let words: Vec<String> = match self.experiment_name == COMMAND_LINE {
            true => options.chain(["-- COMMAND".to_owned()]).collect(),
            false => std::iter::once(quote::word(&self.experiment_name)).chain(options).collect(),
        };
        words.join(" ")
    }

    /// Creates an error about a dotted key.
    pub(super) fn diagnostic(&self, key: &str, message: &str) -> Diagnostic {
        match self.candidates(key) {
            (Some(root), _, paths) => Diagnostic::at(&nearest(root, &paths), message),
            (None, name, _) => Diagnostic::about_file(name, message),
        }
    }

    fn candidates(&self, key: &str) -> Candidates<'_> {
        let (table, last) = key.rsplit_once('.').unwrap_or(("", key));
        let (own, table) = (key.to_owned(), table.to_owned());
        if key == "host" || key.starts_with("host.") {
            // The option wins over the file.
            let option = self.given.iter().find(|option| option.trim_start_matches('-') == last);
            if let Some(option) = option {
                return (None, option, Vec::new());
            }
            (self.hosts.as_ref(), &self.hosts_name, vec![own, format!("defaults.{last}"), table])
        } else {
            (self.experiment.as_ref(), &self.experiment_name, vec![own, table])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_of_the_command_line_is_named_by_itself() {
        let hosts = HostsSource::parse("gpu-a,gpu-b");
        let hosts = HostsSource::Venv(Box::new(hosts), "env".into());
        let hosts = HostsSource::Ranks(Box::new(hosts), 2);
        let locator = Locator::new(&hosts, &ExperimentSource::File("e.toml".into()));
        assert_eq!(locator.place("host.1.venv"), "--venv");
        assert_eq!(locator.place("host.0.nproc"), "--nproc");
        assert_eq!(locator.place("host.0.gpus"), "--hosts");
        assert!(locator.diagnostic("host.0.nproc", "x").to_string().contains("--nproc"));
    }

    #[test]
    fn typo_is_reported_without_what_follows_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        for (text, lines) in [
            ("[run]\nname = \"e\"\n[launch]\ncomand = [\"x\"]\n", vec![Some(4)]),
            ("[run]\nname = \"e\"\n[lunch]\ncommand = [\"x\"]\n", vec![Some(3)]),
            ("[launch]\ncomand = [\"x\"]\n", vec![Some(2), None]),
            (
                "[run]\nname = \"e\"\n[evn]\nid = \"CartPole-v1\"\n[learn]\nalgorithm = \"ppo\"\n",
                vec![Some(3)],
            ),
            ("[run]\nname = \"e\"\nnaem = 1\n", vec![Some(3), None, None]),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = load_experiment(&ExperimentSource::File(path.clone()), &[]).unwrap_err().0;
            let found: Vec<Option<u32>> = found.iter().map(|one| one.span.map(|span| span.line)).collect();
            assert_eq!(found, lines, "{text}");
        }
    }

    #[test]
    fn subject_repeats_hosts_that_were_given() {
        let subject =
            |hosts: &HostsSource, experiment: ExperimentSource| Locator::new(hosts, &experiment).subject();
        let file = || ExperimentSource::File("my e.toml".into());
        let command = ExperimentSource::Command { words: vec!["./x".into()], ships: false };
        assert_eq!(subject(&HostsSource::Here, file()), "'my e.toml'");
        assert_eq!(subject(&HostsSource::parse("hosts.toml"), file()), "'my e.toml'");
        assert_eq!(subject(&HostsSource::parse("lab.toml"), file()), "'my e.toml' --hosts lab.toml");
        let two = HostsSource::Ranks(Box::new(HostsSource::Here), 2);
        assert_eq!(subject(&two, file()), "'my e.toml' --nproc 2");
        assert_eq!(subject(&HostsSource::parse("a,b"), command), "--hosts a,b -- COMMAND");
    }

    #[test]
    fn key_falls_back_to_defaults_then_to_its_table() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let hosts = write(
            "hosts.toml",
            "[defaults]\nworkdir = \"w\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\nworkdir = \"x\"\n",
        );
        let experiment = write("e.toml", "[run]\nname = \"e\"\n[launch]\nmaster_port = 1\n");
        let source = HostsSource::File(hosts.clone());
        let locator = Locator::new(&source, &ExperimentSource::File(experiment));
        let line = |key: &str| locator.place(key).rsplit_once(':').map(|(_, line)| line.to_owned());
        assert_eq!(line("host.1.workdir").as_deref(), Some("7"));
        assert_eq!(line("host.0.workdir").as_deref(), Some("2"));
        assert_eq!(line("launch.master_port").as_deref(), Some("4"));
        assert_eq!(line("launch.command").as_deref(), Some("3"));
        assert!(locator.place("host.0.gpus").starts_with(hosts.to_str().unwrap()));
        assert_eq!(
            Locator::new(&source, &ExperimentSource::File("/gone.toml".into())).place("run.name"),
            "/gone.toml"
        );
    }
}
