//! A restart with changed config keys while the changes are typed: checkpoint, changes, resulting plan. Pure; the parser of
//! `key=value` is passed in, since it is that of experiment files. The app reads files: it takes a [`FileQuestion`], and
//! passes the [`FileAnswer`] on when it has one.

use rankdeck_core::model::{CheckpointModel, EventSubject, HostModel, Model, RunState};
use rankdeck_core::origin::{
    self, CodeChoice, CodeStanding, LATEST, PlannedCode, SCRATCH, Standing, StartPoint, is_scratch,
};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::WallTime;
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, PlannedSize, replan};
use rankdeck_types::schema::{ConfigKey, Keys, ValueKind};
use rankdeck_types::weights;
use rankdeck_types::words;
use std::collections::BTreeSet;

/// Name of a checkpoint that is both.
pub const LATEST_AND_BEST: &str = "latest, best";
/// Shown while the GPUs of a joining host are unknown.
pub const NOT_ASKED: &str = "sizes depend on the new host's GPUs";
/// Most rows of checkpoints.
const MOST: usize = 200;

/// An experiment with changed keys.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedExperiment {
    /// The changed experiment.
    pub experiment: Box<Experiment>,
    /// Keys that differ: name, old value, new value.
    pub differences: Vec<(String, String, String)>,
    /// The program's files decide whether the keys have an effect.
    pub unchecked: bool,
}

/// What files are to be read for: changes in the experiment file and the code, and typed keys that the program may not
/// use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FileQuestion {
    /// The line that is typed.
    pub line: String,
    /// The experiment with its keys, if they are [`ChangedExperiment::unchecked`].
    pub changed: Option<Box<Experiment>>,
    /// The code of the present generation; `None`: the built-in trainer's.
    pub code: Option<PlannedCode>,
    /// The code as it is now is to be uploaded to the hosts of the run, with these changes.
    pub upload: Option<OtherHosts>,
}

/// What the files have shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FileAnswer {
    /// The line of the question.
    pub line: String,
    /// Changes in the experiment file since the launch.
    pub edited: Option<EditedFile>,
    /// Why its keys are rejected, or the code was not uploaded.
    pub mistakes: Vec<String>,
    /// The code against its directory; `None`: the built-in trainer's.
    pub code: Option<CodeStanding>,
    /// An upload was tried: the hash of the pack, if it is on all hosts.
    pub uploaded: Option<Option<String>>,
}

/// An experiment file that has changed since the launch.
#[derive(Debug, Clone, PartialEq)]
pub struct EditedFile {
    /// Its path, as the user types it.
    pub file: String,
    /// Keys that differ: name, old value, new value; at least one.
    pub differences: Vec<(String, String, String)>,
}

impl RestartSource {
    /// The start that it stands for.
    pub fn start(&self) -> StartPoint {
        let step = self.checkpoint.as_ref().and_then(CheckpointModel::step);
        let name = if self.name == LATEST_AND_BEST { LATEST } else { &self.name };
        self.from.as_ref().map_or_else(StartPoint::scratch, |from| StartPoint::at(name, from, step))
    }
}

impl EditedFile {
    /// One sentence: a restart keeps the values of the launch.
    pub fn description(&self) -> String {
        let shown = |(key, was, is): &(String, String, String)| format!("{key} {was} -> {is}");
        let some: Vec<String> = self.differences.iter().take(3).map(shown).collect();
        let more = match self.differences.len().saturating_sub(3) {
            0 => String::new(),
            more => format!(", {more} more"),
        };
        format!(
            "{} has changed since the launch: {}{more}; a restart keeps the run's values",
            self.file,
            some.join(", ")
        )
    }
}

/// Applies `key=value` words as `--set` does, or returns all mistakes.
pub type Changer = fn(&Experiment, &[String]) -> Result<ChangedExperiment, Vec<String>>;

/// A source to restart from.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartSource {
    /// Its name: `latest`, `best`, a file name, `scratch`.
    pub name: String,
    /// The checkpoint in the restart request; `None`: from scratch.
    pub from: Option<String>,
    /// Its checkpoint; `None`: from scratch, or not saved yet.
    pub checkpoint: Option<CheckpointModel>,
    /// When it was saved; `None`: unknown.
    pub time: Option<WallTime>,
    /// Mean return of the evaluation before it.
    pub mean_return: Option<f64>,
}

/// What is typed and selected.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RestartDraft {
    /// `key=value` words.
    pub line: String,
    /// Index of the origin.
    pub selected: usize,
    /// Hosts to add and to exclude.
    pub hosts: OtherHosts,
    /// The result.
    pub outcome: DraftOutcome,
    /// What the files have shown last; `None`: nothing yet.
    pub files: Option<FileAnswer>,
    /// It was confirmed before the files had shown whether its keys have an effect, or the code was uploaded.
    pub is_waiting: bool,
    /// The code of the present generation; `None`: the built-in trainer's.
    pub code: Option<PlannedCode>,
    /// Which code the line requests.
    pub choice: CodeChoice,
}

/// The word of a line that chooses the code, before its `=`.
pub const CODE: &str = "code";

/// Hosts to add and to exclude.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OtherHosts {
    /// Hosts to exclude.
    pub exclude: Vec<String>,
    /// Hosts to add.
    pub add: Vec<Host>,
}

impl OtherHosts {
    /// `without a, b; with c`; empty when nothing changes.
    pub fn description(&self) -> String {
        let added: Vec<&str> = self.add.iter().map(|host| host.name.as_str()).collect();
        let part = |word: &str, names: String| match names.as_str() {
            "" => None,
            names => Some(format!("{word} {names}")),
        };
        let parts = [part("without", self.exclude.join(", ")), part("with", added.join(", "))];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// The GPUs of a joining host are not known yet.
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

/// The result of a typed line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DraftOutcome {
    /// The experiment with its changed keys; `None`: nothing changes, or there is a mistake.
    pub changed: Option<ChangedExperiment>,
    /// The plan in a line.
    pub plan: String,
    /// All mistakes.
    pub mistakes: Vec<String>,
}

/// All restart sources, each checkpoint once: the newest first, scratch last.
pub fn origins(model: &Model) -> Vec<RestartSource> {
    let origin = |name: String, from: String, checkpoint: &CheckpointModel| RestartSource {
        name,
        from: Some(from),
        checkpoint: Some(checkpoint.clone()),
        time: written(model, &checkpoint.path),
        mean_return: return_at(model, checkpoint.env_step),
    };
    let (best, latest) = (best(model), model.checkpoints.back());
    let (over, same) = (model.run.state == RunState::Over, is_best_latest(model));
    let bare =
        |name: String, from| RestartSource { name, from, checkpoint: None, time: None, mean_return: None };
    let mut all = Vec::new();
    if let Some(latest) = latest {
        all.push(origin(if same { LATEST_AND_BEST } else { LATEST }.into(), LATEST.into(), latest));
    } else if let Ok(StartPoint { name, from: Some(from), .. }) = Standing::of(model).start(None) {
        all.push(bare(name, Some(from)));
    }
    if let Some(best) = best.filter(|_| !same) {
        all.push(origin("best".into(), best.path.clone(), best));
    }
    let mut seen: BTreeSet<&String> = best.iter().map(|best| &best.path).collect();
    // While the run is up, the stop saves a newer one.
    seen.extend(latest.filter(|_| over).map(|latest| &latest.path));
    let is_listed = |checkpoint: &CheckpointModel| {
        // The file of that name is what `latest` means.
        file_name(&checkpoint.path) == "latest.ckpt"
            || over
                && checkpoint.train_iter > 0
                && latest.is_some_and(|latest| latest.train_iter == checkpoint.train_iter)
    };
    for checkpoint in model.checkpoints.iter().rev().take(MOST) {
        if !is_listed(checkpoint) && seen.insert(&checkpoint.path) {
            all.push(origin(file_name(&checkpoint.path).into(), checkpoint.path.clone(), checkpoint));
        }
    }
    all.push(bare(SCRATCH.into(), None));
    all
}

/// The checkpoint of the best evaluation.
pub fn best(model: &Model) -> Option<&CheckpointModel> {
    model.checkpoints.iter().rev().find(|checkpoint| checkpoint.reason == "best")
}

/// Whether it is the latest one, too. While the run is up, a stop saves a newer one.
pub fn is_best_latest(model: &Model) -> bool {
    let latest = model.checkpoints.back();
    let same = |(latest, best): (&CheckpointModel, &CheckpointModel)| latest.train_iter == best.train_iter;
    model.run.state == RunState::Over && latest.zip(best(model)).is_some_and(same)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn written(model: &Model, path: &str) -> Option<WallTime> {
    let about = |subject: &Option<EventSubject>| matches!(subject, Some(EventSubject::Checkpoint(file)) if file == path);
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
    /// One in which the origin that `requested` names is picked: a path, `latest`, `best`, an iteration,
    /// `scratch`.
    pub fn new(model: &Model, requested: Option<&str>, line: &str, change: Option<Changer>) -> RestartDraft {
        let origins = origins(model);
        let over = model.run.state == RunState::Over;
        let named = |origin: &RestartSource, requested: &str| {
            let iteration = requested.parse::<u64>().ok();
            let stands = over || origin.name != "latest";
            let file = origin.checkpoint.as_ref().filter(|_| stands);
            origin.from.is_none() && is_scratch(requested)
                || origin.name.split(", ").any(|name| name == requested)
                || origin.from.as_deref() == Some(requested)
                || file.is_some_and(|file| file.path == requested || Some(file.train_iter) == iteration)
        };
        let selected =
            requested.and_then(|requested| origins.iter().position(|origin| named(origin, requested)));
        let mut draft = RestartDraft {
            line: line.to_owned(),
            selected: selected.unwrap_or(0),
            ..RestartDraft::default()
        };
        if let (Some(requested), None) = (requested, selected) {
            draft.outcome.mistakes.push(format!("unknown checkpoint `{requested}`"));
            return draft;
        }
        draft.evaluate(model, change);
        draft
    }

    /// One with other hosts, from the latest checkpoint.
    pub fn on_hosts(model: &Model, hosts: OtherHosts, change: Option<Changer>) -> RestartDraft {
        let mut draft = RestartDraft { hosts, ..RestartDraft::default() };
        draft.evaluate(model, change);
        draft
    }

    /// Evaluates the line.
    pub fn evaluate(&mut self, model: &Model, change: Option<Changer>) {
        self.outcome = DraftOutcome::default();
        let Some(plan) = &model.plan else {
            self.outcome.mistakes.push("waiting for the run's plan".into());
            return;
        };
        self.code = PlannedCode::of(plan);
        let (sets, codes): (Vec<String>, Vec<String>) =
            split(&self.line).into_iter().partition(|word| code_word(word).is_none());
        self.choice = CodeChoice::Same;
        for word in codes.iter().filter_map(|word| code_word(word)) {
            match CodeChoice::parse(word) {
                Ok(choice) => self.choice = choice,
                Err(expected) => self.outcome.mistakes.push(format!("{CODE}={word}: {expected}")),
            }
        }
        if self.choice == CodeChoice::New && self.code.is_none() {
            self.outcome.mistakes.push("the run uses the built-in trainer, which has no code".into());
        }
        if !self.outcome.mistakes.is_empty() {
            return;
        }
        let requested = match (sets.is_empty(), change) {
            (true, _) => plan.experiment.clone(),
            (false, None) => {
                self.outcome.mistakes.push("config keys cannot be changed in this console".into());
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
        if let Some(mistake) =
            self.refusal(model, plan, &requested).or_else(|| self.misfit(model, plan, &requested))
        {
            self.outcome.mistakes.push(mistake);
            return;
        }
        if self.hosts.is_open(model) {
            self.outcome.plan = NOT_ASKED.into();
            return;
        }
        match self.hosts.plan(model, &plan.clone().with_experiment(requested)) {
            Ok(next) => self.outcome.plan = shape(&next),
            Err(error) => {
                self.outcome.changed = None;
                self.outcome.mistakes.push(format!("{} (config key {})", error.cause.with_hint(), error.key));
            }
        }
    }

    /// Why a restart from the source that is picked is rejected with this experiment. Where the present generation
    /// began is not named by the user.
    fn refusal(&self, model: &Model, plan: &Plan, requested: &Experiment) -> Option<String> {
        let origins = origins(model);
        let origin = origins.get(self.selected).or(origins.last())?;
        origin.checkpoint.as_ref()?;
        origin::refusal(plan, Some(requested), origin.from.as_deref()).map(|refused| refused.with_hint())
    }

    /// Why the trainer could not start from the source that is picked with this experiment. Checkpoints of
    /// a run are taken for what its present experiment makes.
    fn misfit(&self, model: &Model, plan: &Plan, requested: &Experiment) -> Option<String> {
        let origins = origins(model);
        let origin = origins.get(self.selected).or(origins.last())?;
        if !plan.is_builtin() || origin.from.is_none() {
            return None;
        }
        let refused = weights::refusal(&origin.name, &weights::mismatches(&plan.experiment, requested))?;
        Some(format!("{}; hint: {}", refused.error, refused.hint))
    }

    /// What files are to be read for; `None`: they have been. Code is uploaded once the restart is confirmed.
    pub fn question(&self) -> Option<FileQuestion> {
        let changed = self.outcome.changed.as_ref().filter(|changed| changed.unchecked);
        let upload = self.is_waiting && self.takes_new();
        let is_answered = match &self.files {
            None => false,
            Some(answer) if upload => answer.line == self.line && answer.uploaded.is_some(),
            Some(answer) => changed.is_none() || answer.line == self.line,
        };
        let changed = changed.map(|changed| changed.experiment.clone());
        (!is_answered).then(|| FileQuestion {
            line: self.line.clone(),
            changed,
            code: self.code.clone(),
            upload: upload.then(|| self.hosts.clone()),
        })
    }

    /// Files are still to show whether the typed keys have an effect, or new code is to be uploaded.
    pub fn is_unchecked(&self) -> bool {
        let is_unread = self.question().is_some_and(|question| question.changed.is_some());
        is_unread || self.outcome.mistakes.is_empty() && self.takes_new() && self.uploaded().is_none()
    }

    /// A new pack is requested. Ranks that run in the directory itself take it as it is.
    fn takes_new(&self) -> bool {
        self.choice == CodeChoice::New && matches!(self.code, Some(PlannedCode::Pack(_)))
    }

    /// Forgets an upload that has failed: a confirmed line tries it again.
    pub fn retry(&mut self) {
        if self.uploaded() == Some(&None) {
            self.files = None;
        }
    }

    fn uploaded(&self) -> Option<&Option<String>> {
        self.files.as_ref().filter(|answer| answer.line == self.line)?.uploaded.as_ref()
    }

    /// The hash of the new code, if it was requested and is on all hosts.
    pub fn new_code(&self) -> Option<&String> {
        self.uploaded().filter(|_| self.takes_new())?.as_ref()
    }

    /// The text about the code, as far as it is known from files.
    pub fn code_text(&self) -> Option<String> {
        Some(self.files.as_ref()?.code.as_ref()?.text(self.choice))
    }

    /// Requests the other code in the line; nothing if only one exists.
    pub fn toggle_code(&mut self) {
        if !matches!(self.code, Some(PlannedCode::Pack(_))) {
            return;
        }
        let choice = self.choice;
        let mut words = split(&self.line);
        words.retain(|word| code_word(word).is_none());
        if choice == CodeChoice::Same {
            words.push(format!("{CODE}=new"));
        }
        self.line = words.join(" ");
    }

    /// All mistakes: those of the line, and those that files have shown.
    pub fn mistakes(&self) -> impl Iterator<Item = &String> {
        let line = &self.line;
        let shown = self.files.iter().filter(move |answer| answer.line == *line);
        self.outcome.mistakes.iter().chain(shown.flat_map(|answer| &answer.mistakes))
    }

    /// Completes the last word as far as it is unambiguous.
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

    /// Completions of the last word, with the keys' descriptions.
    pub fn suggestions(&self) -> Vec<(String, &'static str)> {
        let (_, word) = last_word(&self.line);
        if let Some(value) = code_word(word) {
            let fits = CodeChoice::WORDS.into_iter().map(|(name, _)| name);
            let fits = fits.filter(|name| name.starts_with(value) && *name != value);
            return fits.map(|name| (format!("{CODE}={name}"), CODE_MEANS)).collect();
        }
        if let Some((path, value)) = word.split_once('=') {
            let parts: Vec<&str> = path.split('.').collect();
            let Some(key) = rankdeck_types::schema::find(Experiment::KEYS, &parts) else { return Vec::new() };
            let ValueKind::Choice(words) = &key.kind else { return Vec::new() };
            let fits = words.iter().filter(|choice| choice.starts_with(value) && **choice != value);
            return fits.map(|choice| (format!("{path}={choice}"), key.doc)).collect();
        }
        let mut found = Vec::new();
        paths(Experiment::KEYS.iter(), "", &mut found);
        found.push((CODE.to_owned(), CODE_MEANS));
        found.retain(|(path, _)| path.starts_with(word));
        found.sort();
        found.dedup_by(|a, b| a.0 == b.0);
        found
    }
}

fn paths(
    keys: impl Iterator<Item = &'static ConfigKey>,
    before: &str,
    found: &mut Vec<(String, &'static str)>,
) {
    for key in keys {
        let path = format!("{before}{}", key.name);
        let below = format!("{path}.");
        match &key.kind {
            ValueKind::Table(keys) => paths((*keys as Keys).iter(), &below, found),
            ValueKind::Tagged { variants, .. } => {
                variants.iter().for_each(|variant| paths(variant.all_keys(), &below, found));
            }
            ValueKind::Tables(_)
            | ValueKind::Environment
            | ValueKind::Names(_)
            | ValueKind::Arguments
            | ValueKind::Values => {}
            _ => found.push((path, key.doc)),
        }
    }
}

const CODE_MEANS: &str = "Code of the next generation: the same, or new: its directory as it is now";

/// The value of a word that chooses the code.
fn code_word(word: &str) -> Option<&str> {
    word.strip_prefix(CODE)?.strip_prefix('=')
}

fn last_word(line: &str) -> (&str, &str) {
    let at = line.rfind(' ').map_or(0, |at| at + 1);
    line.split_at(at)
}

/// Splits at spaces outside of quotes and brackets.
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

/// A plan in one line.
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
    fn line_is_split_outside_quotes_and_brackets() {
        assert_eq!(split("a=1  b=\"x y\" c=[1, 2]"), ["a=1", "b=\"x y\"", "c=[1, 2]"]);
        assert_eq!(split("  "), Vec::<String>::new());
    }

    #[test]
    fn line_is_completed_from_the_schema() {
        let complete = |line: &str| {
            let mut draft = RestartDraft { line: line.into(), ..RestartDraft::default() };
            draft.complete();
            draft.line
        };
        assert_eq!(complete("learn.learning_r"), "learn.learning_rate=");
        assert_eq!(complete("learn.gamma=0.9 run.total"), "learn.gamma=0.9 run.total_steps=");
        assert_eq!(complete("nonsense"), "nonsense");
        assert_eq!(complete("distributed.backend=n"), "distributed.backend=nccl");
        assert_eq!(complete("learn.gamma=0.9 code=n"), "learn.gamma=0.9 code=new");
    }

    /// The code is uploaded when the restart is confirmed, once.
    #[test]
    fn new_code_is_uploaded_for_a_confirmed_line() {
        let mut draft = RestartDraft {
            line: "a.b=[1, 2]".into(),
            code: Some(PlannedCode::Pack("ab".into())),
            ..RestartDraft::default()
        };
        draft.toggle_code();
        assert_eq!(draft.line, "a.b=[1, 2] code=new");
        draft.choice = CodeChoice::New;
        let read = FileAnswer { line: draft.line.clone(), ..FileAnswer::default() };
        draft.files = Some(read.clone());
        assert!(draft.question().is_none() && draft.is_unchecked());
        draft.is_waiting = true;
        assert_eq!(draft.question().and_then(|question| question.upload), Some(OtherHosts::default()));
        draft.files = Some(FileAnswer { uploaded: Some(Some("cd".into())), ..read });
        assert!(draft.question().is_none() && !draft.is_unchecked());
        assert_eq!(draft.new_code().map(String::as_str), Some("cd"));
        draft.toggle_code();
        assert_eq!(draft.line, "a.b=[1, 2]");
        draft.code = Some(PlannedCode::InPlace);
        draft.toggle_code();
        assert_eq!(draft.line, "a.b=[1, 2]", "its ranks take the directory as it is");
    }
}
