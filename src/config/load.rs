//! Loads an experiment and says everything that is wrong with it by itself; `draft` says what is wrong with
//! it on given hosts.

use super::bases;
use super::check::check;
use super::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use super::document::{self, Node, Value};
use super::source::ExperimentSource;
use super::{ids, overrides};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::BUILTIN_ENVS;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::variables;
use std::sync::Arc;

/// An experiment with `--set KEY=VALUE` applied and every default filled in.
///
/// Errors: every mistake in the file and the overrides, with its line.
pub fn load_experiment(source: &ExperimentSource, sets: &[String]) -> Result<Experiment, Diagnostics> {
    read_experiment(source, sets).map(|(experiment, _)| experiment)
}

/// The same, with the document for errors that come later.
pub(super) fn read_experiment(
    from: &ExperimentSource,
    sets: &[String],
) -> Result<(Experiment, Node), Diagnostics> {
    let source = from.source()?;
    let root = bases::read(from, &source, sets)?;
    complete(&source, root, sets)
}

/// A resolved experiment with other keys, as `--set` would change it in its file.
///
/// Errors: every mistake in the overrides, and in what they make of the rest.
pub fn change_experiment(experiment: &Experiment, sets: &[String]) -> Result<Experiment, Diagnostics> {
    let text = toml::to_string(experiment)
        .map_err(|error| Diagnostic::about_file("experiment", error.to_string()))?;
    let source = Arc::new(Source::new("experiment", text));
    let root = document::parse(&source)?;
    complete(&source, root, sets).map(|(experiment, _)| experiment)
}

fn complete(
    source: &Arc<Source>,
    mut root: Node,
    sets: &[String],
) -> Result<(Experiment, Node), Diagnostics> {
    let mut found = Diagnostics::new();
    if root.entry("run").is_none() && (root.entry("host").is_some() || root.entry("defaults.nproc").is_some())
    {
        return Err(Diagnostic::about_file(
            source.name.clone(),
            "this is a hosts file, and an experiment is wanted",
        )
        .hint(format!("`rankdeck check EXPERIMENT.toml --hosts {}`", source.name))
        .into());
    }
    overrides::apply(&mut root, sets, Experiment::KEYS, &mut found);
    check(&root, Experiment::KEYS, &mut found);
    // A missing table has no place in the text.
    for diagnostic in found.0.iter_mut().filter(|diagnostic| diagnostic.file.is_empty()) {
        diagnostic.file.clone_from(&source.name);
    }
    let is_builtin = root.entry("launch.command").is_none();
    if is_builtin {
        check_builtin(&root, &mut found);
    }
    let experiment: Experiment = match root.read() {
        Ok(experiment) => experiment,
        // What serde says has been said better, unless nothing was said.
        Err(error) => return found.or(()).and(Err(error)),
    };
    for wrong in rankdeck_types::metrics::compile(&experiment.metrics).err().unwrap_or_default() {
        let at = nearest(&root, &[wrong.key.as_str(), "metrics"]);
        found.push(Diagnostic::at(&at, wrong.cause.error).hint(wrong.cause.hint));
    }
    check_rules(&root, &experiment, &mut found);
    found.or((experiment, root))
}

/// What only the built-in trainer needs.
fn check_builtin(root: &Node, found: &mut Diagnostics) {
    for (table, example) in
        [("env", "id = \"CartPole-v1\"` and `num_envs = 4"), ("learn", "algorithm = \"ppo\"")]
    {
        if root.entry(table).is_none() {
            found.push(
                Diagnostic::about_file(root.place.source.name.clone(), format!("`[{table}]` is missing"))
                    .hint(format!("the built-in trainer needs `[{table}]` with `{example}`; another program is named by `launch.command`")),
            );
        }
    }
    let text = |key: &str| match root.entry(key).map(|found| found.node) {
        Some(Node { place, value: Value::String(text) }) => Some((place, text.as_str())),
        _ => None,
    };
    let worker = text("env.worker").map_or("auto", |(_, worker)| worker);
    if let Some((place, id)) = text("env.id")
        && !id.trim().is_empty()
        && !BUILTIN_ENVS.contains(&id)
        && (worker == "rust" || worker == "auto" && !id.contains([':', '/']))
    {
        // Python may know any other id; one that is nearly a known one is a typing mistake.
        let is_known = |close: &String| worker != "rust" || BUILTIN_ENVS.contains(&close.as_str());
        let hint = match (ids::meant(id).filter(is_known), worker) {
            (Some(close), _) => {
                format!("write `\"{close}\"` (`env.worker = \"python\"` asks Gymnasium for `{id}`)")
            }
            (None, "rust") => {
                let known = BUILTIN_ENVS.map(|id| format!("`{id}`")).join(", ");
                format!("in Rust there are {known}; `env.worker = \"python\"` asks Gymnasium for `{id}`")
            }
            (None, _) => return,
        };
        found.push(
            Diagnostic::at(place, format!("unknown environment `{id}`"))
                .label("unknown environment")
                .hint(hint),
        );
    }
}

/// Keys against each other.
fn check_rules(root: &Node, experiment: &Experiment, found: &mut Diagnostics) {
    for (index, name) in experiment.launch.pass_env.iter().enumerate() {
        let at = || nearest(root, &[format!("launch.pass_env.{index}"), "launch.pass_env".to_owned()]);
        if let Some((name, _)) = name.split_once('=') {
            found.push(
                Diagnostic::at(&at(), "`pass_env` holds a value".to_owned()).hint(format!(
                    "write the name alone, `\"{name}\"`, and `export {name}=...` in your shell"
                )),
            );
        } else if !variables::is_name(name) {
            found.push(
                Diagnostic::at(&at(), format!("`{}` is no name of a variable", name.escape_default()))
                    .hint("write the name alone, such as `\"WANDB_API_KEY\"`"),
            );
        } else if let Some(HintedError { error, hint }) = variables::reserved(name) {
            found.push(Diagnostic::at(&at(), error).hint(hint));
        } else if experiment.launch.env.contains_key(name) {
            found.push(
                Diagnostic::at(&at(), format!("`{name}` is in `env` and in `pass_env`"))
                    .hint("keep it in `pass_env` when it is a secret, else in `env`"),
            );
        }
    }
    // A program of the user's sees none of the tables below.
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
                "`eval.stop_value` can never be reached: `eval.every` is 0, so nothing is evaluated",
            )
            .hint("set `eval.every = 10`, or remove `stop_value`"),
        );
    }
}

/// The value of the first of these paths that is written down; else the whole text.
pub(super) fn nearest(root: &Node, paths: &[impl AsRef<str>]) -> Place {
    paths.iter().find_map(|path| root.entry(path.as_ref())).map_or_else(
        || Place { source: root.place.source.clone(), range: 0..0 },
        |found| match found.node.value {
            Value::Table(_) => found.key.clone(),
            _ => found.node.place.clone(),
        },
    )
}
