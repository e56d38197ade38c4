//! Where a restart starts from, and the prompt before it: one decision and one text for the command line, the
//! screen, line mode, home and the restart policy.
//!
//! Invariants:
//! - ORIGIN-1: a restart starts from the latest checkpoint of the present line of training. It starts from
//!   scratch only on request, or if no checkpoint exists, and then its text reports that.
//! - ORIGIN-2: a generation that begins earlier leaves the checkpoints after its origin behind: they are not
//!   offered again, and `latest` and `best` do not name them.
//! - ORIGIN-3: the question names every variable of the console whose value is sent.

use crate::model::{CheckpointModel, Model, RunState};
use rankdeck_proto::lineage::{Origin, SavedAt};
use rankdeck_proto::message::LaunchHash;
use rankdeck_proto::run_entry::SavedCheckpoint;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::ids::Generation;
use rankdeck_types::plan::Plan;
use rankdeck_types::words::{clip, count, plural};
use std::collections::VecDeque;

/// The word for the latest checkpoint.
pub const LATEST: &str = "latest";
/// The word for a start without any checkpoint.
pub const SCRATCH: &str = "scratch";
/// Longest command in a question, characters.
const COMMAND: usize = 240;

/// Whether a word asks for a start without any checkpoint; `afresh` is its former name.
pub fn is_scratch(word: &str) -> bool {
    [SCRATCH, "afresh"].contains(&word)
}

/// The state of a run that is to restart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    pub run: String,
    /// It runs the built-in trainer.
    pub builtin: bool,
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
            running: model.run.state != RunState::Over,
            generation: model.run.generation,
            ranks: model.ranks.len(),
            hosts: model.hosts.iter().map(|host| host.name.clone()).collect(),
            env_step: totals.or(summed).or(own),
            latest: model.checkpoints.back().map(CheckpointModel::saved),
            resumed: model.run.resumed.clone(),
            silent,
        }
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
            (Some(saved), _) => Ok(StartPoint::at(LATEST, LATEST, Some(saved.env_step))),
            // The stop writes it.
            (None, _) if self.builtin && self.running => Ok(StartPoint::at(LATEST, LATEST, None)),
            // It began there, and has saved nothing since.
            (None, Some(from)) => Ok(StartPoint::at(named(from), from, None)),
            (None, None) if self.silent => Err(HintedError::new(
                format!("no checkpoint of run {} found: not all of its hosts answer", self.run),
                "`--from scratch` starts without one, `--from PATH` names a file on rank 0's host",
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
        format!("{}; {}", start.text(), self.loss(start))
    }

    fn loss(&self, start: &StartPoint) -> String {
        let present = self.env_step.unwrap_or(0);
        if start.from.is_none() {
            let lost = match present {
                0 => "all progress is discarded".to_owned(),
                steps => format!("all progress ({} steps) is discarded", count(steps)),
            };
            return match self.builtin {
                true => {
                    format!("{lost}; earlier checkpoints are kept in checkpoints/gen{}/", self.generation)
                }
                false => {
                    format!("{lost}; checkpoints that it reported are kept in gen{}/", self.generation)
                }
            };
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
            Some(saved) => StartPoint::at(LATEST, from, Some(saved.env_step)),
            None => StartPoint::at(from.rsplit('/').next().unwrap_or(from), from, None),
        }
    }
}

/// The command that is started, shortened, and what it gets of this console: part of every question.
pub fn command(plan: &Plan, next: Option<&Experiment>) -> Vec<String> {
    let command = plan.command_line();
    // A whole program may be in its arguments.
    let command = match command.chars().count().saturating_sub(COMMAND) {
        0 => command,
        more => format!("{} and {} more characters", clip(&command, COMMAND), count(more as u64)),
    };
    std::iter::once(format!("Command: {command}")).chain(passed(plan, next)).collect()
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

/// Forgets checkpoints that the generation `began` leaves behind (ORIGIN-2).
pub(crate) fn leave_behind(
    checkpoints: &mut VecDeque<CheckpointModel>,
    began: Generation,
    from: Option<&str>,
) {
    if began == Generation(0) || from == Some(LATEST) {
        return;
    }
    let origin = checkpoints.iter().rposition(|saved| saved.generation < began && Some(&*saved.path) == from);
    let kept = origin.map_or(0, |origin| origin + 1);
    let mut index = 0;
    checkpoints.retain(|saved| {
        index += 1;
        index <= kept || saved.generation >= began
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(path: &str, env_step: u64) -> SavedCheckpoint {
        SavedCheckpoint { path: path.into(), env_step, train_iter: env_step / 100, reason: "every".into() }
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
            leave_behind(&mut all, Generation(began), from);
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
}
