//! What a run was, or is so far: the lines of `rankdeck ps` and of lists of runs. Pure.
//!
//! It comes from the hosts' own records. How a run ended is what the console said that launched its last
//! generation; where none was there at the end, the records of the ranks decide, by the same rules.

use rankdeck_proto::message::{Ending, Evaluation, FinishReason, Outcome};
use rankdeck_proto::run_entry::{NodeDigest, RankFailure, RunEntry, RunState, SavedCheckpoint};
use rankdeck_types::ids::{Generation, WallTime};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a run was.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunSummary {
    /// How it ended, `None` while it runs, and when nobody knows.
    pub outcome: Option<Outcome>,
    /// The exit code of that end.
    pub exit_code: Option<u8>,
    /// Every rank left by itself.
    pub clean: Option<bool>,
    /// One sentence about the end, empty while it runs.
    pub reason: String,
    /// The rank that failed first, and how.
    pub first_failure: Option<String>,
    /// Environment steps over all ranks.
    pub env_step: Option<u64>,
    /// The goal in environment steps.
    pub total_steps: Option<u64>,
    pub train_iter: Option<u64>,
    /// Finished training episodes.
    pub episodes: Option<u64>,
    /// Latest mean return of training episodes.
    pub last_return: Option<f64>,
    /// The evaluation with the highest mean return.
    pub best: Option<Evaluation>,
    pub evals: u64,
    /// The latest checkpoint.
    pub checkpoint: Option<SavedCheckpoint>,
    /// When it began, seconds since the epoch.
    pub started: Option<WallTime>,
    /// When its last generation ended.
    pub ended: Option<WallTime>,
    /// Seconds that its generations have lasted.
    pub duration_s: f64,
    /// The latest generation.
    pub generation: Generation,
    /// Ranks of it.
    pub world_size: u32,
    pub gpus: u32,
    /// Names of all hosts that it ever had, in node_rank order.
    pub hosts: Vec<String>,
    /// What ranks run.
    pub program: String,
    /// That is the built-in trainer, which can begin from its checkpoints.
    pub builtin: bool,
    /// `run.note`.
    pub note: String,
}

impl RunSummary {
    /// Of what its hosts report; `now`: seconds since the epoch.
    pub fn of(parts: &[&RunEntry], now: WallTime) -> RunSummary {
        let generation = parts.iter().map(|part| part.generation).max().unwrap_or_default();
        let latest: Vec<&RunEntry> =
            parts.iter().copied().filter(|part| part.generation == generation).collect();
        // Rank 0 may have moved to another host with a generation.
        let digests = || parts.iter().map(|part| &part.digest);
        let told: Option<&NodeDigest> =
            digests().max_by_key(|digest| digest.totals.map_or(0, |totals| totals.train_iter + 1));
        let totals = told.and_then(|digest| digest.totals);
        let counted = digests().filter_map(|digest| digest.counted).reduce(|one, other| one.plus(&other));
        let best = digests().filter_map(|digest| digest.best.as_ref());
        let first = latest.first().map(|part| &part.digest);
        let over = !parts.is_empty() && parts.iter().all(|part| part.state == RunState::Finished);
        let hosts = hosts(parts);
        let ending = over.then(|| ending(&latest, hosts.len() > parts.len())).flatten();
        let began = parts.iter().map(|part| part.started).filter(|started| *started > 0.0);
        RunSummary {
            outcome: ending.as_ref().map(|ending| ending.outcome),
            exit_code: ending.as_ref().map(|ending| ending.exit_code),
            clean: ending.as_ref().map(|ending| ending.clean),
            first_failure: ending.as_ref().and_then(|ending| ending.first_failure.clone()),
            reason: ending.map(|ending| ending.reason).unwrap_or_default(),
            env_step: totals
                .map(|totals| totals.env_step)
                .or(counted.map(|counted| counted.env_step))
                .or(digests().find_map(|digest| digest.own_step)),
            total_steps: first.map(|digest| digest.total_steps).filter(|goal| *goal > 0),
            train_iter: totals.or(counted).map(|counters| counters.train_iter),
            episodes: totals.or(counted).map(|counters| counters.episodes),
            last_return: told
                .and_then(|digest| digest.last_return)
                .or(digests().find_map(|digest| digest.last_return)),
            best: best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)).cloned(),
            evals: digests().map(|digest| digest.evals).sum(),
            checkpoint: digests()
                .filter_map(|digest| digest.checkpoint.as_ref())
                .max_by_key(|saved| saved.train_iter)
                .cloned(),
            started: began.fold(None, |least, one| Some(least.map_or(one, |least: f64| least.min(one)))),
            ended: digests()
                .filter_map(|digest| digest.ended)
                .fold(None, |latest, one| Some(latest.map_or(one, |latest: f64| latest.max(one))))
                .filter(|_| over),
            duration_s: digests().map(|digest| duration(digest, now)).fold(0.0, f64::max),
            generation,
            world_size: latest.iter().map(|part| part.world_size).max().unwrap_or(0),
            gpus: latest.iter().map(|part| part.digest.gpus).max().unwrap_or(0),
            hosts,
            program: first.map(|digest| digest.program.clone()).unwrap_or_default(),
            builtin: first.is_some_and(|digest| digest.builtin),
            note: first.map(|digest| digest.note.clone()).unwrap_or_default(),
        }
    }

    /// How it ended in one word, with the exit code unless that is 0.
    pub fn outcome_text(&self) -> Option<String> {
        let (outcome, code) = (self.outcome?, self.exit_code.unwrap_or(0));
        let usual = matches!((outcome, code), (Outcome::Succeeded, _) | (Outcome::Stopped, 130));
        Some(if usual { outcome.name().to_owned() } else { format!("{} ({code})", outcome.name()) })
    }
}

fn duration(digest: &NodeDigest, now: WallTime) -> f64 {
    digest.seconds + digest.since.map_or(0.0, |since| (now - since).max(0.0))
}

/// Names of all hosts that any part of the run names, in node_rank order. Every host knows its own place
/// best; the lists tell the others, the latest generation's first.
pub fn hosts(parts: &[&RunEntry]) -> Vec<String> {
    let mut parts: Vec<&RunEntry> = parts.to_vec();
    parts.sort_by_key(|part| std::cmp::Reverse(part.generation));
    let own = parts.iter().map(|part| (part.node_rank.index(), part.host.as_str()));
    let lists = parts.iter().flat_map(|part| part.hosts.iter().map(String::as_str).enumerate());
    let mut named = BTreeSet::new();
    let wanted: Vec<(usize, &str)> = own.chain(lists).filter(|(_, name)| named.insert(*name)).collect();
    let mut places: Vec<Option<&str>> = vec![None; wanted.len()];
    let mut displaced = Vec::new();
    for (index, name) in wanted {
        match places.get_mut(index) {
            Some(place @ None) => *place = Some(name),
            Some(Some(_)) | None => displaced.push(name),
        }
    }
    let mut displaced = displaced.into_iter();
    places.into_iter().filter_map(|place| place.or_else(|| displaced.next())).map(str::to_owned).collect()
}

/// The end of the latest generation; `silent`: not all hosts of the run have told their part.
fn ending(parts: &[&RunEntry], silent: bool) -> Option<Ending> {
    if let Some(told) = parts.iter().find_map(|part| part.digest.ending.as_ref()) {
        return Some(told.clone());
    }
    if parts.iter().all(|part| part.world_size == 0) {
        return None;
    }
    let sum = |of: fn(&NodeDigest) -> u32| parts.iter().map(|part| of(&part.digest)).sum::<u32>();
    let failed = parts.iter().filter_map(|part| Some((part, part.digest.failure.as_ref()?)));
    let failed = failed.filter(|(_, failure)| failure.exit.is_some());
    if let Some((part, failure)) = failed.min_by(|a, b| a.1.time.total_cmp(&b.1.time)) {
        let text = failure_text(&part.host, failure);
        let code = if failure.usage { 2 } else { 1 };
        return Some(Ending {
            first_failure: Some(text.clone()),
            ..Ending::new(Outcome::Failed, code, text)
        });
    }
    if sum(|digest| digest.bad_exits) > 0 {
        return Some(Ending::new(Outcome::Failed, 1, "a rank failed while it was being stopped"));
    }
    if silent {
        return None;
    }
    let ended = sum(|digest| digest.exits) >= parts.iter().map(|part| part.world_size).max().unwrap_or(0);
    let killed = sum(|digest| digest.killed) > 0;
    let finish = parts.iter().find_map(|part| part.digest.finish);
    let stopped_by = parts.iter().find_map(|part| part.digest.stop.as_ref());
    Some(match (finish, stopped_by) {
        (_, Some(by)) if killed => {
            Ending::new(Outcome::Stopped, Ending::KILLED, format!("stopped by {by}: ranks were killed"))
        }
        _ if !ended => Ending::new(
            Outcome::Failed,
            1,
            "its end is not recorded: an agent was killed, or its host went down with it",
        ),
        (Some(FinishReason::StopValue), _) => Ending::clean(Outcome::Succeeded, 0, "reached the stop value"),
        (Some(FinishReason::Budget), _) => Ending::clean(Outcome::Succeeded, 0, "reached the step goal"),
        (_, Some(by)) => Ending::clean(Outcome::Stopped, 130, format!("stopped by {by}")),
        (Some(FinishReason::Stopped), None) => {
            Ending::clean(Outcome::Stopped, 130, "all ranks left after a signal")
        }
        (None, None) => Ending::clean(Outcome::Succeeded, 0, "all ranks ended with exit code 0"),
    })
}

fn failure_text(host: &str, failure: &RankFailure) -> String {
    let how = failure.exit.as_ref().map(|exit| exit.predicate()).unwrap_or_default();
    let said = if failure.text.is_empty() { String::new() } else { format!(": {}", failure.text) };
    format!("rank {} on {host} {how}{said}", failure.rank)
}

#[cfg(test)]
mod tests;
