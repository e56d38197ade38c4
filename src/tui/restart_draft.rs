//! A restart with changed keys while it is typed: from which checkpoint, which keys, and what becomes of
//! them. Pure; who reads `key=value` is handed in, as it is the reader of experiment files.

use rankdeck_core::model::{CheckpointModel, HostModel, Model, RunState, Subject};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::WallTime;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, PlannedSize, replan};
use rankdeck_types::probe::Probe;
use rankdeck_types::schema::{Key, Keys, Kind};
use rankdeck_types::weights;
use rankdeck_types::words;
use std::collections::BTreeSet;

/// What a checkpoint is called that is both.
const LATEST_AND_BEST: &str = "latest, best";
/// While a host that joins has not told its GPUs.
pub const NOT_ASKED: &str = "the new host is asked for its GPUs first";
/// Most rows of checkpoints.
const MOST: usize = 200;

/// An experiment with changed keys.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedExperiment {
    /// As it is then.
    pub experiment: Box<Experiment>,
    /// Keys that differ, as they were and as they are.
    pub differences: Vec<(String, String, String)>,
}

/// An experiment's file that is not as it was when the run was launched.
#[derive(Debug, Clone, PartialEq)]
pub struct EditedFile {
    /// As its user would name it here.
    pub file: String,
    /// Keys that differ, as they were and as they are; at least one.
    pub differences: Vec<(String, String, String)>,
}

impl EditedFile {
    /// In a sentence: a restart keeps to what the run was launched with.
    pub fn told(&self) -> String {
        let shown = |(key, was, is): &(String, String, String)| format!("{key} {was} -> {is}");
        let some: Vec<String> = self.differences.iter().take(3).map(shown).collect();
        let more = match self.differences.len().saturating_sub(3) {
            0 => String::new(),
            more => format!(", {more} more"),
        };
        format!(
            "{} has changed since the launch: {}{more}; a restart keeps the run's own",
            self.file,
            some.join(", ")
        )
    }
}

/// Reads `key=value` as `--set` does, or says all that is wrong.
pub type Changer = fn(&Experiment, &[String]) -> Result<ChangedExperiment, Vec<String>>;

/// Where a generation can begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// What it is called: `latest`, `best`, a file's name, `afresh`.
    pub name: String,
    /// What the order names; `None`: the beginning.
    pub from: Option<String>,
    /// Its place, `None` for the beginning.
    pub checkpoint: Option<CheckpointModel>,
    /// When it was written; `None`: not known.
    pub time: Option<WallTime>,
    /// Mean return of the evaluation before it.
    pub mean_return: Option<f64>,
}

/// What is typed and picked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RestartDraft {
    /// `key=value` words.
    pub line: String,
    /// Index of the origin.
    pub selected: usize,
    /// Hosts that take no part in it, and hosts that join it.
    pub hosts: OtherHosts,
    /// What becomes of it.
    pub outcome: Outcome,
    /// What has changed in the experiment's file.
    pub edited: Option<EditedFile>,
}

/// Hosts whose part changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OtherHosts {
    /// Those that are left out.
    pub exclude: Vec<String>,
    /// Those that take part, or take part again.
    pub add: Vec<Host>,
}

impl OtherHosts {
    /// `without a, b; with c`; empty when nothing changes.
    pub fn told(&self) -> String {
        let added: Vec<&str> = self.add.iter().map(|host| host.name.as_str()).collect();
        let part = |word: &str, names: String| match names.as_str() {
            "" => None,
            names => Some(format!("{word} {names}")),
        };
        let parts = [part("without", self.exclude.join(", ")), part("with", added.join(", "))];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// A host joins whose GPUs only it can tell.
    pub fn is_open(&self, model: &Model) -> bool {
        let known = |host: &Host| model.hosts.iter().any(|known| known.name == host.name);
        self.add.iter().any(|host| host.gpus.is_some() && !known(host))
    }

    /// The plan that follows `plan` with them.
    ///
    /// # Errors
    /// As those of [`replan`].
    pub fn plan(&self, model: &Model, plan: &Plan) -> Result<Plan, PlanError> {
        let probe = |host: &HostModel| host.probe.clone().unwrap_or_default();
        let mut probes: Vec<Probe> = model.hosts.iter().map(probe).collect();
        probes.resize(model.hosts.len() + self.add.len(), Probe::default());
        for probe in &mut probes {
            // Whether there is a trainer has shown when it was launched, or shows when the host is connected.
            probe.trainer.get_or_insert_default();
        }
        let exclude = self.exclude.iter().cloned().collect();
        replan(plan, &exclude, &self.add, &probes, PlanDraft::resolve)
    }
}

/// What a typed line comes to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The experiment with its changed keys; `None`: nothing changes, or there is a mistake.
    pub changed: Option<ChangedExperiment>,
    /// The plan in a line.
    pub plan: String,
    /// All that is wrong.
    pub mistakes: Vec<String>,
}

/// Every origin, each checkpoint once: the newest first, the beginning last.
pub fn origins(model: &Model) -> Vec<Origin> {
    let origin = |name: String, from: String, checkpoint: &CheckpointModel| Origin {
        name,
        from: Some(from),
        checkpoint: Some(checkpoint.clone()),
        time: written(model, &checkpoint.path),
        mean_return: return_at(model, checkpoint.env_step),
    };
    let best = model.checkpoints.iter().rev().find(|checkpoint| checkpoint.reason == "best");
    let latest = model.checkpoints.back();
    // Of a run that goes on, the latest one is yet to be written, by the stop.
    let over = model.run.state == RunState::Over;
    let same = over && best.zip(latest).is_some_and(|(best, latest)| best.train_iter == latest.train_iter);
    let mut all = Vec::new();
    if let Some(latest) = latest {
        all.push(origin(if same { LATEST_AND_BEST } else { "latest" }.into(), "latest".into(), latest));
    }
    if let Some(best) = best.filter(|_| !same) {
        all.push(origin("best".into(), best.path.clone(), best));
    }
    let mut seen: BTreeSet<&String> = best.iter().map(|best| &best.path).collect();
    let is_told = |checkpoint: &CheckpointModel| {
        // The file of that name is what `latest` means.
        file_name(&checkpoint.path) == "latest.ckpt"
            || over && latest.is_some_and(|latest| latest.train_iter == checkpoint.train_iter)
    };
    for checkpoint in model.checkpoints.iter().rev().take(MOST) {
        if !is_told(checkpoint) && seen.insert(&checkpoint.path) {
            all.push(origin(file_name(&checkpoint.path).into(), checkpoint.path.clone(), checkpoint));
        }
    }
    all.push(Origin { name: "afresh".into(), from: None, checkpoint: None, time: None, mean_return: None });
    all
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn written(model: &Model, path: &str) -> Option<WallTime> {
    let about =
        |subject: &Option<Subject>| matches!(subject, Some(Subject::Checkpoint(file)) if file == path);
    model
        .history
        .iter()
        .rev()
        .find(|line| about(&line.subject))
        .map(|line| line.time)
        .filter(|time| *time > 0.0)
}

fn return_at(model: &Model, env_step: u64) -> Option<f64> {
    model.evals.iter().rev().find(|eval| eval.env_step <= env_step).map(|eval| eval.return_mean)
}

impl RestartDraft {
    /// One in which the origin that `wanted` names is picked: a path, `latest`, `best`, an iteration,
    /// `afresh`.
    pub fn new(model: &Model, wanted: Option<&str>, line: &str, change: Option<Changer>) -> RestartDraft {
        let origins = origins(model);
        let over = model.run.state == RunState::Over;
        let named = |origin: &Origin, wanted: &str| {
            let iteration = wanted.parse::<u64>().ok();
            let stands = over || origin.name != "latest";
            let file = origin.checkpoint.as_ref().filter(|_| stands);
            origin.name.split(", ").any(|name| name == wanted)
                || origin.from.as_deref() == Some(wanted)
                || file.is_some_and(|file| file.path == wanted || Some(file.train_iter) == iteration)
        };
        let selected = wanted.and_then(|wanted| origins.iter().position(|origin| named(origin, wanted)));
        let mut draft = RestartDraft {
            line: line.to_owned(),
            selected: selected.unwrap_or(0),
            ..RestartDraft::default()
        };
        if let (Some(wanted), None) = (wanted, selected) {
            draft.outcome.mistakes.push(format!("no checkpoint `{wanted}` is known here"));
            return draft;
        }
        draft.look(model, change);
        draft
    }

    /// One with other hosts, from the latest checkpoint.
    pub fn on_hosts(model: &Model, hosts: OtherHosts, change: Option<Changer>) -> RestartDraft {
        let mut draft = RestartDraft { hosts, ..RestartDraft::default() };
        draft.look(model, change);
        draft
    }

    /// What the line comes to now.
    pub fn look(&mut self, model: &Model, change: Option<Changer>) {
        self.outcome = Outcome::default();
        let Some(plan) = &model.plan else {
            self.outcome.mistakes.push("the run's plan is not known yet".into());
            return;
        };
        let sets = split(&self.line);
        let wanted = match (sets.is_empty(), change) {
            (true, _) => plan.experiment.clone(),
            (false, None) => {
                self.outcome.mistakes.push("keys cannot be changed from here".into());
                return;
            }
            (false, Some(change)) => match change(&plan.experiment, &sets) {
                Ok(changed) => {
                    let experiment = (*changed.experiment).clone();
                    self.outcome.changed = Some(changed).filter(|changed| !changed.differences.is_empty());
                    experiment
                }
                Err(mistakes) => {
                    self.outcome.mistakes = mistakes;
                    return;
                }
            },
        };
        if let Some(mistake) = self.misfit(model, plan, &wanted) {
            self.outcome.mistakes.push(mistake);
            return;
        }
        if self.hosts.is_open(model) {
            self.outcome.plan = NOT_ASKED.into();
            return;
        }
        match self.hosts.plan(model, &Plan { experiment: wanted, ..plan.clone() }) {
            Ok(next) => self.outcome.plan = shape(&next),
            Err(error) => {
                self.outcome.changed = None;
                self.outcome.mistakes.push(format!("{} (key {})", error.cause.with_hint(), error.key));
            }
        }
    }

    /// Why the trainer could not begin from the origin that is picked with this experiment. Checkpoints of
    /// a run are taken for what its present experiment makes.
    fn misfit(&self, model: &Model, plan: &Plan, wanted: &Experiment) -> Option<String> {
        let origins = origins(model);
        let origin = origins.get(self.selected).or(origins.last())?;
        if !plan.is_builtin() || origin.from.is_none() {
            return None;
        }
        let refused = weights::refusal(&origin.name, &weights::misfits(&plan.experiment, wanted))?;
        Some(format!("{}; hint: {}", refused.error, refused.hint))
    }

    /// Completes the word that is typed, as far as it is clear.
    pub fn complete(&mut self) {
        let all = self.suggestions();
        let (before, word) = last_word(&self.line);
        let Some(first) = all.first() else { return };
        let mut common = first.0.clone();
        for (other, _) in &all {
            while !other.starts_with(&common) {
                common.pop();
            }
        }
        if all.len() == 1 && !common.contains('=') {
            common.push('=');
        }
        if common.len() > word.len() {
            self.line = format!("{before}{common}");
        }
    }

    /// What the word that is typed may become, with what the key does.
    pub fn suggestions(&self) -> Vec<(String, &'static str)> {
        let (_, word) = last_word(&self.line);
        if let Some((path, value)) = word.split_once('=') {
            let parts: Vec<&str> = path.split('.').collect();
            let Some(key) = rankdeck_types::schema::find(Experiment::KEYS, &parts) else { return Vec::new() };
            let Kind::Choice(words) = &key.kind else { return Vec::new() };
            let fits = words.iter().filter(|choice| choice.starts_with(value) && **choice != value);
            return fits.map(|choice| (format!("{path}={choice}"), key.doc)).collect();
        }
        let mut found = Vec::new();
        paths(Experiment::KEYS.iter(), "", &mut found);
        found.retain(|(path, _)| path.starts_with(word));
        found.sort();
        found.dedup_by(|a, b| a.0 == b.0);
        found
    }
}

fn paths(keys: impl Iterator<Item = &'static Key>, before: &str, found: &mut Vec<(String, &'static str)>) {
    for key in keys {
        let path = format!("{before}{}", key.name);
        let below = format!("{path}.");
        match &key.kind {
            Kind::Table(keys) => paths((*keys as Keys).iter(), &below, found),
            Kind::Tagged { variants, .. } => {
                variants.iter().for_each(|variant| paths(variant.all_keys(), &below, found));
            }
            Kind::Tables(_) | Kind::Environment | Kind::Names(_) => {}
            _ => found.push((path, key.doc)),
        }
    }
}

fn last_word(line: &str) -> (&str, &str) {
    let at = line.rfind(' ').map_or(0, |at| at + 1);
    line.split_at(at)
}

/// Words, but for gaps within quotes and brackets.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut depth) = (Vec::new(), String::new(), None, 0u32);
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if c == open => quote = None,
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ' ') if depth == 0 => {
                words.push(std::mem::take(&mut word));
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// What a plan comes to.
fn shape(plan: &Plan) -> String {
    let sizes: Vec<String> = plan.sizes.iter().map(PlannedSize::text).collect();
    let sizes = if sizes.is_empty() { String::new() } else { format!("; per rank: {}", sizes.join(", ")) };
    let hosts = words::plural(plan.members().count(), "host");
    format!("{} on {hosts}{sizes}", words::plural(plan.ranks.len(), "rank"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_but_not_within_quotes_and_brackets() {
        assert_eq!(split("a=1  b=\"x y\" c=[1, 2]"), ["a=1", "b=\"x y\"", "c=[1, 2]"]);
        assert_eq!(split("  "), Vec::<String>::new());
    }

    #[test]
    fn keys_and_words_are_completed_from_the_schema() {
        let complete = |line: &str| {
            let mut draft = RestartDraft { line: line.into(), ..RestartDraft::default() };
            draft.complete();
            draft.line
        };
        assert_eq!(complete("learn.learning_r"), "learn.learning_rate=");
        assert_eq!(complete("learn.gamma=0.9 run.total"), "learn.gamma=0.9 run.total_steps=");
        assert_eq!(complete("nonsense"), "nonsense");
        assert_eq!(complete("distributed.backend=n"), "distributed.backend=nccl");
    }
}
