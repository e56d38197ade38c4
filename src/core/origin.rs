//! Where a restart starts from, and the prompt before it: one decision and one text for the command line, the
//! screen, line mode, home and the restart policy.
//!
//! Invariants:
//! - ORIGIN-1: a restart starts from the latest checkpoint of the present line of training. It starts from
//!   scratch only on request, or if no checkpoint exists, and then its text reports that.
//! - ORIGIN-2: a generation that begins earlier leaves the checkpoints after its origin behind: they are not
//!   offered again, and `latest` and `best` do not name them.
//! - ORIGIN-3: the question names every variable of the console whose value is sent.
//! - ORIGIN-4: a restart takes the code of the generation before, and the present content of its directory only on
//!   request. Ranks that run in the directory itself always take it as it is. Its text reports which, and the
//!   files that have changed.
//! - ORIGIN-5: a named checkpoint is rejected, whoever asks, if the program of the next generation does not read it.

use crate::model::{CheckpointModel, Model, RunState};
use rankdeck_proto::lineage::{Origin, SavedAt};
use rankdeck_proto::message::LaunchHash;
use rankdeck_proto::run_entry::SavedCheckpoint;
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::ids::{Generation, NodeRank};
use rankdeck_types::plan::Plan;
use rankdeck_types::promise::{Kept, Promise};
use rankdeck_types::words::{clip, count, plural};
use std::collections::VecDeque;

/// The word for the latest checkpoint.
pub const LATEST: &str = "latest";
/// The reason of the checkpoint of the best evaluation.
const BEST: &str = "best";
/// The word for a start without any checkpoint.
pub const SCRATCH: &str = "scratch";
/// Most checkpoints that a question names.
const FIXED: usize = 4;
/// Longest command in a question, characters.
const COMMAND: usize = 240;

/// Most names of changed files in a text.
const NAMED: usize = 3;

/// Whether a word asks for a start without any checkpoint; `afresh` is its former name.
pub fn is_scratch(word: &str) -> bool {
    [SCRATCH, "afresh"].contains(&word)
}

/// Which code the next generation runs (ORIGIN-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodeChoice {
    /// The code of the present generation.
    #[default]
    Same,
    /// What its directory contains now.
    New,
}

impl CodeChoice {
    /// Its words.
    pub const WORDS: [(&str, CodeChoice); 2] = [("same", CodeChoice::Same), ("new", CodeChoice::New)];

    /// Parses `same` or `new`.
    ///
    /// # Errors
    /// It is another word.
    pub fn parse(word: &str) -> Result<CodeChoice, String> {
        let found = CodeChoice::WORDS.into_iter().find(|(name, _)| *name == word);
        found.map(|(_, choice)| choice).ok_or_else(|| "expected `same` or `new`".to_owned())
    }
}

/// The code of a plan's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedCode {
    /// A directory of their hosts, which is not uploaded.
    InPlace,
    /// A pack, by its hash.
    Pack(String),
}

impl PlannedCode {
    /// `None` for the built-in trainer, which has no code of the user.
    pub fn of(plan: &Plan) -> Option<PlannedCode> {
        match &plan.experiment.launch.code {
            Some(Code::Pack(hash)) => Some(PlannedCode::Pack(hash.clone())),
            Some(Code::Path(_)) | None => (!plan.is_builtin()).then_some(PlannedCode::InPlace),
        }
    }

    /// The hash of a pack.
    pub fn into_hash(self) -> Option<String> {
        match self {
            PlannedCode::InPlace => None,
            PlannedCode::Pack(hash) => Some(hash),
        }
    }
}

/// Files that differ.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangedFiles {
    /// Paths of the first few.
    pub named: Vec<String>,
    pub count: usize,
}

impl ChangedFiles {
    /// Of all their paths.
    pub fn new(mut paths: Vec<String>) -> ChangedFiles {
        let count = paths.len();
        paths.truncate(NAMED);
        ChangedFiles { named: paths, count }
    }

    /// `train.py, model.py, data.py and 3 more`; empty without any.
    pub fn text(&self) -> String {
        let names = self.named.join(", ");
        match self.count.saturating_sub(self.named.len()) {
            0 => names,
            more if names.is_empty() => plural(more, "file"),
            more => format!("{names} and {more} more"),
        }
    }
}

/// The code of a run that is to restart, against its directory on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeStanding {
    /// Ranks run in the directory itself.
    pub in_place: bool,
    /// What has changed since the present generation; `None`: the directory is not on this machine, or no
    /// console here has recorded what was in it.
    pub changed: Option<ChangedFiles>,
}

impl CodeStanding {
    /// New code can be requested.
    pub fn is_offered(&self) -> bool {
        !self.in_place && self.changed.as_ref().is_some_and(|changed| changed.count > 0)
    }

    /// `code: same as before (train.py and 3 more changed since)`.
    pub fn text(&self, choice: CodeChoice) -> String {
        let changed = self.changed.as_ref().filter(|changed| changed.count > 0).map(ChangedFiles::text);
        let known = self.changed.is_some();
        match (self.in_place, choice, changed) {
            (true, _, Some(changed)) => format!("code: the directory as it is now ({changed} changed since)"),
            (true, _, None) if known => "code: the directory as it is now (unchanged)".to_owned(),
            (true, _, None) => "code: the directory as it is now".to_owned(),
            (false, CodeChoice::New, Some(changed)) => format!("code: new ({changed} changed)"),
            (false, CodeChoice::Same, Some(changed)) => {
                format!("code: same as before ({changed} changed since)")
            }
            (false, _, None) if known => "code: same as before (unchanged)".to_owned(),
            (false, _, None) => "code: same as before (its directory is not on this machine)".to_owned(),
        }
    }
}

/// What the next generation takes, as reports name it: `same`, `new` or `in_place`; `None` for the built-in
/// trainer.
pub(crate) fn code_word(present: &Plan, next: &Plan) -> Option<&'static str> {
    Some(match PlannedCode::of(next)? {
        PlannedCode::InPlace => "in_place",
        code if PlannedCode::of(present).as_ref() == Some(&code) => "same",
        PlannedCode::Pack(_) => "new",
    })
}

/// The same for people.
pub fn code_text(word: &str) -> &'static str {
    match word {
        "same" => "same code",
        "new" => "new code",
        _ => "code as it is in its directory",
    }
}

/// The state of a run that is to restart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    pub run: String,
    /// It runs the built-in trainer.
    pub builtin: bool,
    /// It is a program that does not declare that it resumes from a checkpoint.
    pub unsure: bool,
    /// Ranks run, and are stopped first.
    pub running: bool,
    /// Its latest generation.
    pub generation: Generation,
    pub ranks: usize,
    /// Names, in node_rank order.
    pub hosts: Vec<String>,
    /// Global environment steps.
    pub env_step: Option<u64>,
    /// The latest checkpoint of the present line of training.
    pub latest: Option<SavedCheckpoint>,
    /// What the present generation began from.
    pub resumed: Option<String>,
    /// A host that may have a checkpoint does not report.
    pub silent: bool,
    /// A host does not respond: nothing is set aside there.
    pub away: bool,
    /// Checkpoints that a start from scratch cannot set aside: a container writes them where its host has other
    /// files, or their paths are those of whole directories.
    pub fixed: Vec<String>,
}

/// Where a generation begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartPoint {
    /// The word for it: `latest`, `scratch`, a checkpoint's name.
    pub name: String,
    /// The checkpoint as an order names it; `None`: from scratch.
    pub from: Option<String>,
    /// Steps at that checkpoint, where they are known.
    pub env_step: Option<u64>,
    /// No checkpoint exists.
    pub forced: bool,
}

impl StartPoint {
    /// Without any checkpoint.
    pub fn scratch() -> StartPoint {
        StartPoint { name: SCRATCH.to_owned(), from: None, env_step: None, forced: false }
    }

    /// A checkpoint.
    pub fn at(name: impl Into<String>, from: impl Into<String>, env_step: Option<u64>) -> StartPoint {
        StartPoint { name: name.into(), from: Some(from.into()), env_step, forced: false }
    }

    /// What an order for it names. Where no checkpoint exists yet, the stop may still write the first one.
    pub fn requested(&self) -> Option<String> {
        self.from.clone().or_else(|| self.forced.then(|| LATEST.to_owned()))
    }

    /// `resumes from step 12,800 (latest)`.
    pub fn text(&self) -> String {
        match (&self.from, self.env_step) {
            (None, _) if self.forced => "starts from scratch: no checkpoint exists".to_owned(),
            (None, _) => "starts from scratch".to_owned(),
            (Some(_), Some(step)) => format!("resumes from step {} ({})", count(step), self.name),
            (Some(_), None) => format!("resumes from {}", self.name),
        }
    }
}

impl Standing {
    /// Of a run as a console follows it.
    pub fn of(model: &Model) -> Standing {
        let plan = model.plan.as_ref();
        let first = plan.and_then(|plan| plan.ranks.first()).map(|rank| rank.node_rank);
        let silent =
            first.and_then(|node| model.hosts.get(node.index())).is_some_and(|host| host.last_seq == 0);
        let totals = model.latest.as_ref().map(|latest| latest.counters.env_step);
        let summed = model.progress.as_ref().map(|progress| progress.totals.env_step);
        let own = model.own.as_ref().and_then(|own| own.env_step);
        Standing {
            run: model.run.id.as_ref().map_or_else(|| "this run".to_owned(), |id| id.0.clone()),
            builtin: plan.is_some_and(Plan::is_builtin),
            unsure: plan.is_some_and(|plan| plan.may_not_resume(None)),
            running: model.run.state != RunState::Over,
            generation: model.run.generation,
            ranks: model.ranks.len(),
            hosts: model.member_names(),
            env_step: totals.or(summed).or(own),
            latest: model.checkpoints.back().map(CheckpointModel::saved),
            resumed: model.run.resumed.clone(),
            silent,
            away: model.hosts.iter().any(|host| host.link.is_unreachable()),
            fixed: fixed(model),
        }
    }

    /// The same before a generation of this plan, with this experiment in place of the plan's.
    pub fn before(self, plan: &Plan, next: Option<&Experiment>) -> Standing {
        Standing { unsure: plan.may_not_resume(next), ..self }
    }

    /// Where the next generation begins (ORIGIN-1). Another word than `latest` and `scratch` names a
    /// checkpoint that the caller finds.
    ///
    /// # Errors
    /// `latest` is asked for and no checkpoint exists, or it is not known whether one does.
    pub fn start(&self, word: Option<&str>) -> Result<StartPoint, HintedError> {
        match word {
            Some(word) if is_scratch(word) => return Ok(StartPoint::scratch()),
            Some(word) if word != LATEST => return Ok(StartPoint::at(word, word, None)),
            Some(_) | None => {}
        }
        let named = |path: &String| path.rsplit('/').next().unwrap_or(path).to_owned();
        match (&self.latest, &self.resumed) {
            (Some(saved), _) if saved.step().is_none() => {
                Ok(StartPoint::at(format!("{LATEST}: {}", named(&saved.path)), LATEST, None))
            }
            (Some(saved), _) => Ok(StartPoint::at(LATEST, LATEST, saved.step())),
            // The stop writes it.
            (None, _) if self.builtin && self.running => Ok(StartPoint::at(LATEST, LATEST, None)),
            // It began there, and has saved nothing since.
            (None, Some(from)) => Ok(StartPoint::at(named(from), from, None)),
            (None, None) if self.silent => Err(HintedError::new(
                format!("no checkpoint of run {} found: not all of its hosts respond", self.run),
                "`--from scratch` starts without one, `--from PATH` names a file on a host that responds",
            )),
            (None, None) if word.is_some() => Err(HintedError::new(
                format!("run {} has no checkpoint", self.run),
                "`--from scratch` starts it without one",
            )),
            (None, None) => Ok(StartPoint { forced: true, ..StartPoint::scratch() }),
        }
    }

    /// `ppo-1: 16 ranks on 2 hosts (node-a, node-b)`.
    pub fn targets(&self) -> String {
        let names = self.hosts.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if self.hosts.len() > 4 { ", ..." } else { "" };
        let (ranks, hosts) = (plural(self.ranks, "rank"), plural(self.hosts.len(), "host"));
        format!("{}: {ranks} on {hosts} ({names}{more})", self.run)
    }

    /// What is stopped, and what follows: two sentences.
    pub fn stops(&self) -> String {
        let next = self.generation.0.saturating_add(1);
        let step = self.env_step.map_or(String::new(), |step| format!(" at step {}", count(step)));
        match self.running {
            true => format!("All ranks are stopped{step}, then generation {next} starts."),
            false => format!("The run has ended{step}. Generation {next} starts."),
        }
    }

    /// Where it starts, and what that discards.
    pub fn effect(&self, start: &StartPoint) -> String {
        format!("{}; {}", self.begins(start), self.loss(start))
    }

    /// How it starts: `resumes from step 12,800 (latest)`, or what the program is offered if it may not resume.
    pub fn begins(&self, start: &StartPoint) -> String {
        match (&start.from, start.env_step) {
            (Some(_), Some(step)) if self.unsure => {
                format!("offers the program the checkpoint of step {} ({})", count(step), start.name)
            }
            (Some(_), None) if self.unsure => format!("offers the program the checkpoint {}", start.name),
            _ => start.text(),
        }
    }

    fn loss(&self, start: &StartPoint) -> String {
        let present = self.env_step.unwrap_or(0);
        if start.from.is_none() {
            let lost = match present {
                0 => "all progress is discarded".to_owned(),
                steps => format!("all progress ({} steps) is discarded", count(steps)),
            };
            if self.away {
                return format!("{lost}; checkpoints on hosts that do not respond stay where they are");
            }
            return match self.builtin {
                true => {
                    format!("{lost}; earlier checkpoints are kept in checkpoints/gen{}/", self.generation)
                }
                false => {
                    let fixed = match self.fixed.as_slice() {
                        [] => String::new(),
                        fixed => format!("; not set aside: {}", fixed.join(", ")),
                    };
                    format!("{lost}; its checkpoints are kept in gen{}/{fixed}", self.generation)
                }
            };
        }
        if self.unsure {
            return "all progress is discarded if the program does not read it".to_owned();
        }
        let since = start.env_step.zip(self.env_step).map(|(step, present)| present.saturating_sub(step));
        let stop_saves = self.builtin && self.running && start.name == LATEST;
        match (since, stop_saves) {
            (Some(0), true) | (None, true) => "the stop writes a newer one".to_owned(),
            (Some(steps), true) => {
                format!(
                    "the stop writes a newer one, without which {} steps since then are lost",
                    count(steps)
                )
            }
            (Some(0), false) => "no steps are discarded".to_owned(),
            (Some(steps), false) => format!("{} steps since then are discarded", count(steps)),
            (None, false) => "steps since then are discarded".to_owned(),
        }
    }

    /// The question before a restart with this experiment in place of the plan's.
    pub fn question(&self, start: &StartPoint, plan: &Plan, next: Option<&Experiment>) -> Vec<String> {
        let mut lines = vec![self.targets(), self.stops(), format!("It {}.", self.effect(start))];
        lines.extend(command(plan, next));
        lines
    }

    /// What a launch names, once nothing of the generation before is left: the latest checkpoint of a script,
    /// or of another host's folder, by its path. The trainer finds its own, and where it has none starts
    /// without.
    pub(crate) fn launched_from(&self, from: Option<String>, moved: bool) -> Option<String> {
        if from.as_deref() != Some(LATEST) {
            return from;
        }
        match &self.latest {
            Some(saved) if moved || !self.builtin => Some(saved.path.clone()),
            Some(_) => from,
            None => self.resumed.clone().or(from.filter(|_| self.builtin)),
        }
    }

    /// Where a launch from `from` begins, for people.
    pub fn started(&self, from: Option<&str>) -> StartPoint {
        let Some(from) = from.filter(|from| *from != LATEST || self.latest.is_some()) else {
            return StartPoint { forced: self.latest.is_none(), ..StartPoint::scratch() };
        };
        let latest = self.latest.as_ref().filter(|saved| from == LATEST || saved.path == from);
        match latest {
            Some(saved) => StartPoint::at(LATEST, from, saved.step()),
            None => StartPoint::at(from.rsplit('/').next().unwrap_or(from), from, None),
        }
    }
}

/// The known checkpoint that a word names: `best`, an iteration, a step, a path or a file name. The newest fits.
pub fn named<'a>(model: &'a Model, word: &str) -> Option<&'a CheckpointModel> {
    let number = word.parse::<u64>().ok();
    let fits: [&dyn Fn(&CheckpointModel) -> bool; 4] = [
        &|saved| saved.path == word,
        &|saved| saved.reason == word,
        &|saved| number.is_some() && [saved.train_iter, saved.env_step].map(Some).contains(&number),
        &|saved| saved.path.rsplit('/').next() == Some(word),
    ];
    fits.iter().find_map(|fits| model.checkpoints.iter().rev().find(|saved| fits(saved)))
}

/// Why a restart from a checkpoint that the user names is rejected: the program of the next generation does not read it
/// (ORIGIN-5). `latest` and a start from scratch are not rejected; neither are plans of earlier versions, which do not
/// record what a program declares.
pub fn refusal(plan: &Plan, next: Option<&Experiment>, from: Option<&str>) -> Option<HintedError> {
    from.filter(|from| *from != LATEST && !is_scratch(from))?;
    let contract = plan.next_contract(next);
    match plan.program.is_none() && contract.kept(Promise::Resume) == Kept::Unknown {
        true => None,
        false => contract.demand(&[Promise::Resume]).err(),
    }
}

/// Known checkpoints of a script that cannot be set aside, some of them.
fn fixed(model: &Model) -> Vec<String> {
    let Some(plan) = model.plan.as_ref().filter(|plan| !plan.is_builtin()) else { return Vec::new() };
    let below = |outer: &str, path: &str| {
        let outer = outer.trim_end_matches('/');
        path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_fixed = |saved: &&CheckpointModel| {
        let run_dir = model.hosts.get(saved.node.index()).map_or("", |host| host.run_dir.as_str());
        let host = plan.hosts.get(saved.node.index()).map(|planned| &planned.host);
        // `WORKDIR/runs/RUN`, as the host has resolved it.
        let workdir = run_dir.rsplit_once("/runs/").map_or("", |(workdir, _)| workdir);
        let path = saved.path.as_str();
        let shared = [workdir, run_dir].iter().any(|folder| !folder.is_empty() && below(folder, path));
        let in_container = host.is_some_and(|host| host.setup.container.is_some());
        let holds_run = !run_dir.is_empty() && below(path, run_dir);
        !path.starts_with('/') || holds_run || in_container && !shared
    };
    let mut found: Vec<String> = Vec::new();
    for saved in model.checkpoints.iter().rev().filter(is_fixed) {
        if found.len() < FIXED && !found.contains(&saved.path) {
            found.push(saved.path.clone());
        }
    }
    found
}

/// The command that is started, shortened, and what it gets of this console: part of every question.
pub fn command(plan: &Plan, next: Option<&Experiment>) -> Vec<String> {
    let command = plan.command_line();
    // A whole program may be in its arguments.
    let command = match command.chars().count().saturating_sub(COMMAND) {
        0 => command,
        more => format!("{} and {} more characters", clip(&command, COMMAND), count(more as u64)),
    };
    std::iter::once(format!("Command: {command}"))
        .chain(caution(plan, next))
        .chain(passed(plan, next))
        .collect()
}

/// What a restart from a checkpoint does if the program does not declare that it resumes; `None` also for plans that
/// do not record it.
fn caution(plan: &Plan, next: Option<&Experiment>) -> Option<String> {
    plan.program.as_ref()?;
    Some(format!("A restart {}.", plan.next_contract(next).caution()?.error))
}

/// What ranks get from the console's environment: for a plan that hosts report, part of every question
/// (ORIGIN-3).
pub fn passed(plan: &Plan, next: Option<&Experiment>) -> Option<String> {
    let names = plan.console_variables(next);
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty())
        .then(|| format!("Its ranks get these variables of this console: {}.", names.join(", ")))
}

/// What a question about this run has shown: its launch, and the variables of the console that it passes. A
/// host may report another environment of its own between question and answer (OWN-2).
pub fn shown(model: &Model) -> Option<LaunchHash> {
    let launch = model.run.launch.as_ref()?;
    let names = model.plan.as_ref().map(|plan| plan.console_variables(None)).unwrap_or_default();
    let words = std::iter::once(launch.0.as_str()).chain(names.iter().map(String::as_str));
    Some(LaunchHash(words.collect::<Vec<_>>().join(" ")))
}

/// The command that restarts a run without hosts that do not respond; `None`: no other host is left.
pub fn exclusion(model: &Model, away: &[impl AsRef<str>]) -> Option<String> {
    let members = model.plan.as_ref().map_or(0, |plan| plan.members().count());
    let run = model.run.id.as_ref()?;
    let away: Vec<&str> = away.iter().map(AsRef::as_ref).collect();
    let options: String = away.iter().map(|name| format!(" --exclude {name}")).collect();
    (!away.is_empty() && away.len() < members)
        .then(|| format!("`rankdeck restart {run}{options}` restarts without {}", away.join(", ")))
}

/// Where the present generation began.
pub fn began(model: &Model) -> StartPoint {
    let earlier = model.checkpoints.iter().rev().find(|saved| saved.generation < model.run.generation);
    let standing = Standing { latest: earlier.map(CheckpointModel::saved), ..Standing::of(model) };
    standing.started(model.run.resumed.as_deref())
}

/// Where the generation `began` begins by its order, as far as its checkpoint is known.
pub(crate) fn placed(
    checkpoints: &VecDeque<CheckpointModel>,
    began: Generation,
    from: Option<&str>,
) -> Origin {
    let mut earlier = checkpoints.iter().rev().filter(|saved| saved.generation < began);
    let saved = earlier.find(|saved| from == Some(LATEST) || from == Some(saved.path.as_str()));
    let at = saved.map(|saved| SavedAt { generation: saved.generation, env_step: saved.env_step });
    Origin::of(began, from, at)
}

/// Forgets checkpoints that the generation `began` leaves behind (ORIGIN-2). `by`: the host whose records have come
/// up to its launch; `None`: those of all hosts have.
pub(crate) fn leave_behind(
    checkpoints: &mut VecDeque<CheckpointModel>,
    began: Generation,
    from: Option<&str>,
    by: Option<NodeRank>,
) {
    if began == Generation(0) || from == Some(LATEST) {
        return;
    }
    let origin = checkpoints.iter().rposition(|saved| saved.generation < began && Some(&*saved.path) == from);
    let kept = origin.map_or(0, |origin| origin + 1);
    // The host that saved the origin may report it later, and after it only what is left behind.
    let by = by.filter(|_| origin.is_none() && from.is_some());
    let mut index = 0;
    checkpoints.retain(|saved| {
        index += 1;
        index <= kept || saved.generation >= began || by.is_some_and(|node| saved.node != node)
    });
}

/// Forgets the oldest checkpoint, but not the newest `best` one.
pub(crate) fn forget_oldest(checkpoints: &mut VecDeque<CheckpointModel>) {
    let best = checkpoints.iter().rposition(|saved| saved.reason == BEST);
    let oldest = usize::from(best == Some(0) && checkpoints.len() > 1);
    checkpoints.remove(oldest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(path: &str, env_step: u64) -> SavedCheckpoint {
        let (train_iter, reason) = (env_step / 100, "every".into());
        SavedCheckpoint { path: path.into(), env_step, train_iter, reason, ..SavedCheckpoint::default() }
    }

    fn standing(running: bool, builtin: bool, latest: bool) -> Standing {
        let latest = latest.then(|| saved("/r/checkpoints/latest.ckpt", 1200));
        let hosts = vec!["a".to_owned()];
        Standing {
            run: "x".into(),
            builtin,
            running,
            ranks: 2,
            hosts,
            env_step: Some(1500),
            latest,
            ..Standing::default()
        }
    }

    /// Running or over, trainer or script, with a checkpoint or without, by every word.
    #[test]
    fn origin_1_restart_uses_latest_unless_scratch() {
        for (running, builtin) in [(true, true), (true, false), (false, true), (false, false)] {
            let with = standing(running, builtin, true);
            for word in [None, Some("latest")] {
                let start = with.start(word).unwrap();
                assert_eq!(
                    (start.from.as_deref(), start.env_step),
                    (Some(LATEST), Some(1200)),
                    "{with:?} {word:?}"
                );
            }
            let without = standing(running, builtin, false);
            let start = without.start(None).unwrap();
            // The stop of the trainer writes it.
            let waits = running && builtin;
            assert_eq!(start.from.as_deref(), waits.then_some(LATEST), "{without:?}");
            assert_eq!(start.forced, !waits);
            assert_eq!(start.requested().as_deref(), Some(LATEST), "what the stop may still save");
            assert_eq!(without.start(Some("latest")).is_ok(), waits, "asked for by name, and missing");
            for word in ["scratch", "afresh"] {
                for run in [&with, &without] {
                    let start = run.start(Some(word)).unwrap();
                    assert_eq!((start.name.as_str(), start.requested()), ("scratch", None));
                }
            }
            let named = with.start(Some("/x/a.ckpt")).unwrap();
            assert_eq!(named.from.as_deref(), Some("/x/a.ckpt"));
        }
    }

    #[test]
    fn origin_1_generation_without_checkpoint_uses_its_origin() {
        let mut run = standing(false, false, false);
        run.resumed = Some("/r/ck.txt".into());
        assert_eq!(run.start(None).unwrap().from.as_deref(), Some("/r/ck.txt"));
        run.resumed = None;
        run.silent = true;
        assert!(run.start(None).is_err(), "the host that has it may be the one that does not answer");
        assert!(run.start(Some("scratch")).is_ok());
    }

    #[test]
    fn program_that_may_not_resume_is_offered_a_checkpoint() {
        let mut run = standing(false, false, true);
        let start = run.start(None).unwrap();
        assert_eq!(run.begins(&start), start.text());
        run.unsure = true;
        assert_ne!(run.begins(&start), start.text(), "nothing shows that it reads it");
        assert_ne!(run.effect(&start), Standing { unsure: false, ..run.clone() }.effect(&start));
        let scratch = StartPoint::scratch();
        assert_eq!(run.begins(&scratch), scratch.text());
    }

    /// A script that does not read its checkpoint, until `launch.resume` passes it on.
    #[test]
    fn origin_5_next_plan_decides_what_is_rejected() {
        let mut bare = crate::testkit::experiment();
        bare.launch.command = vec!["./train".into()];
        let mut passed = bare.clone();
        passed.launch.resume = vec!["--resume".into(), "{resume}".into()];
        let mut plan = Plan {
            run: rankdeck_types::ids::RunId("t".into()),
            experiment: bare,
            program: Some(rankdeck_types::promise::ProgramFacts::default()),
            hosts: vec![],
            ranks: vec![],
            sizes: vec![],
            drill: false,
        };
        let refused = |plan: &Plan, next, from| refusal(plan, next, from).is_some();
        assert!(refused(&plan, None, Some("best")) && refused(&plan, None, Some("/w/a.pt")));
        for from in [None, Some(LATEST), Some(SCRATCH)] {
            assert!(!refused(&plan, None, from), "{from:?}");
        }
        assert!(!refused(&plan, Some(&passed), Some("best")), "by the plan that follows");
        let run = standing(false, false, true);
        let start = run.start(None).unwrap();
        assert_ne!(run.clone().before(&plan, None).begins(&start), start.text());
        assert_eq!(run.before(&plan, Some(&passed)).begins(&start), start.text());
        plan.program = None;
        assert!(!refused(&plan, None, Some("best")), "a record of an earlier version");
    }

    #[test]
    fn restart_without_a_host_sets_nothing_aside_there() {
        for builtin in [true, false] {
            let mut run = standing(true, builtin, true);
            let effect = |run: &Standing| run.effect(&StartPoint::scratch());
            assert!(effect(&run).contains("gen0/"));
            run.away = true;
            assert!(!effect(&run).contains("gen0/"), "{}", effect(&run));
        }
    }

    #[test]
    fn origin_4_text_names_code_and_changed_files() {
        let changed = |count: usize| {
            let paths = ["train.py", "a.py", "b.py", "c.py"].map(str::to_owned).to_vec();
            Some(ChangedFiles::new(paths[..count].to_vec()))
        };
        let text = |in_place, count: Option<usize>, choice| {
            CodeStanding { in_place, changed: count.and_then(changed) }.text(choice)
        };
        use CodeChoice::{New, Same};
        let texts = [
            text(false, Some(0), Same),
            text(false, Some(1), Same),
            text(false, Some(4), Same),
            text(false, None, Same),
            text(false, Some(2), New),
            text(false, Some(0), New),
            text(true, Some(0), Same),
            text(true, Some(4), New),
            text(true, None, Same),
        ];
        insta::assert_snapshot!("code_of_a_restart", texts.join("\n"));
        assert_eq!((CodeChoice::parse("new"), CodeChoice::parse("same")), (Ok(New), Ok(Same)));
        assert!(CodeChoice::parse("old").is_err());
        let offered = |in_place, changed| CodeStanding { in_place, changed }.is_offered();
        assert!(offered(false, changed(1)) && !offered(false, changed(0)));
        assert!(!offered(true, changed(1)) && !offered(false, None));
    }

    #[test]
    fn word_names_the_newest_known_checkpoint_that_fits() {
        let saved = |path: &str, env_step, train_iter, reason: &str| CheckpointModel {
            path: path.into(),
            env_step,
            train_iter,
            reason: reason.into(),
            ..CheckpointModel::default()
        };
        let all = [
            saved("/w/a.pt", 100, 1, "best"),
            saved("/w/b.pt", 200, 2, "best"),
            saved("/w/20.pt", 300, 0, "found"),
        ];
        let model = Model { checkpoints: all.into(), ..Model::default() };
        let path = |word| named(&model, word).map(|saved| saved.path.as_str());
        for (word, expected) in [
            ("best", Some("/w/b.pt")),
            ("1", Some("/w/a.pt")),
            ("300", Some("/w/20.pt")),
            ("/w/a.pt", Some("/w/a.pt")),
            ("a.pt", Some("/w/a.pt")),
            ("7", None),
            ("c.pt", None),
        ] {
            assert_eq!(path(word), expected, "{word}");
        }
    }

    #[test]
    fn origin_1_found_checkpoint_without_steps_is_named() {
        let mut run = standing(false, false, false);
        run.latest = Some(SavedCheckpoint {
            path: "/w/out/model.pt".into(),
            origin: rankdeck_proto::message::CheckpointOrigin::Found,
            ..SavedCheckpoint::default()
        });
        let start = run.start(None).unwrap();
        assert_eq!((start.from.as_deref(), start.env_step), (Some(LATEST), None));
        assert!(start.text().contains("model.pt"), "{}", start.text());
        assert_eq!(run.launched_from(start.from, false).as_deref(), Some("/w/out/model.pt"));
    }

    #[test]
    fn launch_names_path_unless_trainer_finds_latest() {
        let from = || Some("latest".to_owned());
        let path = Some("/r/checkpoints/latest.ckpt".to_owned());
        let trainer = standing(false, true, true);
        assert_eq!(trainer.launched_from(from(), false), from());
        assert_eq!(trainer.launched_from(from(), true), path, "rank 0 is on another host");
        assert_eq!(standing(true, false, true).launched_from(from(), false), path);
        assert_eq!(standing(true, false, false).launched_from(from(), false), None, "nothing to hand over");
        assert_eq!(standing(true, true, false).launched_from(from(), false), from());
        assert_eq!(trainer.launched_from(None, false), None);
        assert_eq!(trainer.launched_from(Some("/x".into()), true).as_deref(), Some("/x"));
    }

    #[test]
    fn origin_2_checkpoints_after_origin_are_dropped() {
        let all = || -> VecDeque<CheckpointModel> {
            let of = |(path, generation): &(&str, u32)| CheckpointModel {
                path: (*path).to_owned(),
                generation: Generation(*generation),
                ..CheckpointModel::default()
            };
            [("5", 0), ("best", 0), ("10", 0), ("best", 0), ("latest", 0), ("20", 1)].iter().map(of).collect()
        };
        let left = |from: Option<&str>, began: u32| -> Vec<String> {
            let mut all = all();
            leave_behind(&mut all, Generation(began), from, None);
            all.into_iter().map(|saved| saved.path).collect()
        };
        assert_eq!(left(None, 1), ["20"]);
        assert_eq!(left(Some("/elsewhere"), 1), ["20"]);
        assert_eq!(left(Some("latest"), 1).len(), 6);
        assert_eq!(left(Some("10"), 1), ["5", "best", "10", "20"]);
        assert_eq!(left(Some("best"), 1), ["5", "best", "10", "best", "20"]);
        assert_eq!(left(None, 2), [""; 0]);
        assert_eq!(left(None, 0).len(), 6, "a first launch has nothing behind it");
    }

    /// Records of two hosts come in any order: that of the launch on one before the checkpoints of the other.
    #[test]
    fn origin_2_unknown_origin_drops_only_that_hosts_own() {
        let left = |by: u32, from: Option<&str>| {
            let best = CheckpointModel { path: "best".into(), reason: BEST.into(), ..Default::default() };
            let mut all = VecDeque::from([best]);
            leave_behind(&mut all, Generation(1), from, Some(NodeRank(by)));
            all.len()
        };
        assert_eq!(left(1, Some("40")), 1, "host 0 has not sent `40` yet");
        assert_eq!(left(0, Some("40")), 0, "it is not one of its own");
        assert_eq!((left(1, None), left(0, None)), (0, 0), "from scratch");
        assert_eq!(left(1, Some("best")), 1);
    }

    #[test]
    fn best_checkpoint_outlives_the_bound() {
        let of = |reason: &str| CheckpointModel { reason: reason.into(), ..CheckpointModel::default() };
        let mut all: VecDeque<CheckpointModel> = ["best", "best", "every", "latest"].map(of).into();
        forget_oldest(&mut all);
        forget_oldest(&mut all);
        let left: Vec<&str> = all.iter().map(|saved| saved.reason.as_str()).collect();
        assert_eq!(left, ["best", "latest"]);
    }
}
