//! Calls to the user while no console looks on: by the webhook and the command that came with the launch.
//!
//! Owner: the agent's loop, of the host of rank 0; others get nothing to call with. Commands run on threads
//! of their own. Invariants:
//! - CALLS-1: address and command are in memory only, and nobody is called while a console looks on: that one
//!   does it.
//! - CALLS-2: at most [`AT_ONCE`] commands at a time, [`WITHIN`] each; what finds no room is counted and
//!   told.

use crate::proc;
use crate::supervise::groups;
use crate::supervise::helpers::Helpers;
use rankdeck_proto::message::{AwayNotices, Exit, HostSample, RankEvent, RecordEvent};
use rankdeck_types::ids::RunId;
use rankdeck_types::{webhook, words};
use serde_json::json;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most commands at a time.
const AT_ONCE: usize = 4;
/// How long a command may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Calls that wait for the next look at the clock.
const WAITING: usize = 8;
/// Most characters of what is told, and bytes of what a command says about its failure.
const LONGEST: usize = 200;
/// Occasions where none are named.
const USUAL: [&str; 2] = ["end", "verdict"];

/// What is worth a call.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    occasion: &'static str,
    text: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Calls {
    run: RunId,
    host: String,
    away: Option<AwayNotices>,
    waiting: VecDeque<Call>,
    best: Option<f64>,
    failed: bool,
    /// Who ordered a stop.
    ordered: Option<String>,
    /// What the ranks' pages said when they last moved, and when that was.
    moved: Option<(u64, Instant)>,
    still: bool,
    helpers: Helpers,
    failures: Arc<Mutex<Vec<String>>>,
    lost: u64,
}

impl Calls {
    /// Of an agent that has launched nothing.
    pub fn new(run: RunId, host: String, helpers: Helpers) -> Calls {
        Calls {
            run,
            host,
            away: None,
            waiting: VecDeque::new(),
            best: None,
            failed: false,
            ordered: None,
            moved: None,
            still: false,
            helpers,
            failures: Arc::default(),
            lost: 0,
        }
    }

    /// A generation begins; a console that brings nothing to call with changes nothing.
    pub fn begin(&mut self, away: Option<AwayNotices>) {
        self.away = away.or(self.away.take());
        (self.failed, self.ordered, self.moved, self.still) = (false, None, None, false);
    }

    /// Something was recorded.
    pub fn see(&mut self, event: &RecordEvent) {
        if let Some(call) = self.away.is_some().then(|| self.weigh(event)).flatten() {
            self.wait(call);
        }
    }

    fn weigh(&mut self, event: &RecordEvent) -> Option<Call> {
        let end = |text: String| Some(Call { occasion: "end", text });
        match event {
            RecordEvent::RankExited { rank, exit, last_lines, stopping: false, .. }
                if *exit != (Exit::Code { code: 0 }) && !self.failed =>
            {
                self.failed = true;
                let last = last_lines.last().map_or(String::new(), |line| format!(": {line}"));
                end(format!("failed: rank {rank} on {} {exit}{last}", self.host))
            }
            RecordEvent::StopOrdered { by, .. } => {
                self.ordered.get_or_insert_with(|| by.clone());
                None
            }
            RecordEvent::Stopped { .. } if self.failed => None,
            RecordEvent::Stopped { survivors, .. } => {
                let left = match survivors.len() {
                    0 => String::new(),
                    left => format!("; {} left", words::plural(left, "process")),
                };
                match &self.ordered {
                    Some(by) => end(format!("stopped by {by}, as far as {} knows{left}", self.host)),
                    None => end(format!("finished, as far as {} knows{left}", self.host)),
                }
            }
            RecordEvent::Rank { said: RankEvent::Eval(eval), .. } if eval.return_mean.is_finite() => {
                let mean = eval.return_mean;
                let before = self.best.replace(self.best.map_or(mean, |best| best.max(mean)));
                // The first one is the best of none.
                let better = before.is_some_and(|before| mean > before);
                let text = format!("best evaluation {mean:.1} at step {}", eval.env_step);
                better.then_some(Call { occasion: "best", text })
            }
            _ => None,
        }
    }

    fn wait(&mut self, call: Call) {
        let away = self.away.as_ref();
        let on = away.map(|away| away.on.as_slice()).unwrap_or_default();
        let wanted = match on.is_empty() {
            true => USUAL.contains(&call.occasion),
            false => on.iter().any(|on| on == call.occasion),
        };
        if !wanted {
            return;
        }
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(call);
    }

    /// Looks whether the ranks here get on, as far as they have pages; one word after `within` without.
    pub fn look(&mut self, sample: &HostSample, now: Instant, within: Duration) {
        let mut hasher = DefaultHasher::new();
        let mut pages = 0;
        for page in sample.ranks.iter().filter_map(|rank| rank.page.as_ref()) {
            pages += 1;
            let calls = (page.collective.entered, page.collective.left);
            let steps = (page.train_iter, page.updates, page.env_step);
            (calls, steps, page.phase_progress).hash(&mut hasher);
        }
        let seen = hasher.finish();
        match self.moved {
            Some((before, since)) if before == seen && pages > 0 => {
                if now.duration_since(since) >= within && !std::mem::replace(&mut self.still, true) {
                    let age = words::duration(now.duration_since(since).as_secs_f64());
                    let text = format!("no rank on {} has got on for {age}", self.host);
                    self.wait(Call { occasion: "verdict", text });
                }
            }
            _ => (self.moved, self.still) = (Some((seen, now)), false),
        }
    }

    /// Calls what waits, unless a console does; what went wrong, for the record.
    pub fn make(&mut self, attended: bool) -> Vec<String> {
        let calls = std::mem::take(&mut self.waiting);
        if let Some(away) = self.away.clone().filter(|_| !attended) {
            calls.into_iter().for_each(|call| self.start(&away, &call));
        }
        let mut failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        if self.lost > 0 {
            failures.push(format!("calls to the user: {} found no room", std::mem::take(&mut self.lost)));
        }
        failures
    }

    fn start(&mut self, away: &AwayNotices, call: &Call) {
        let text = words::clip(&call.text, LONGEST);
        let told = json!({ "occasion": call.occasion, "run": self.run.0, "text": text, "from": self.host });
        let told = told.to_string();
        let mut all: Vec<(Vec<String>, String)> = Vec::new();
        if !away.command.is_empty() {
            all.push((away.command.clone(), told.clone()));
        }
        if !away.webhook.is_empty() {
            let curl = std::iter::once(webhook::PROGRAM).chain(webhook::ARGUMENTS);
            all.push((curl.map(str::to_owned).collect(), webhook::input(&away.webhook, &told)));
        }
        for (words, input) in all {
            if self.helpers.lock().len() >= AT_ONCE {
                self.lost += 1;
                continue;
            }
            let (helpers, failures) = (self.helpers.clone(), self.failures.clone());
            tokio::task::spawn_blocking(move || {
                if let Err(why) = run(&words, &input, WITHIN, &helpers) {
                    let program = words.first().map(String::as_str).unwrap_or_default();
                    let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(format!("a call to the user failed: {program}: {why}"));
                }
            });
        }
    }
}

/// Runs a command with this on its input. It is reaped by whoever reaps this process's children, so that a
/// failure is known by what it says.
fn run(words: &[String], input: &str, within: Duration, helpers: &Helpers) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("the command is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let (mut child, _spared) = helpers.spawn(&mut command).map_err(|error| error.to_string())?;
    let pid = child.id();
    let start = proc::stat(pid).map_or(0, |stat| stat.start);
    let (input, pipe) = (input.to_owned(), child.stdin.take());
    let said = child.stderr.take();
    let (answer, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if let Some(mut pipe) = pipe {
            // One that does not read is none the worse.
            let _ = pipe.write_all(input.as_bytes());
        }
        let mut text = Vec::new();
        if let Some(said) = said {
            let _ = said.take(LONGEST as u64 * 8).read_to_end(&mut text);
        }
        let _ = answer.send(String::from_utf8_lossy(&text).into_owned());
    });
    let heard = heard.recv_timeout(within);
    if heard.is_err() {
        groups::signal(pid, start, libc::SIGKILL);
    }
    match heard {
        Err(_) => Err(format!("killed after {} s", within.as_secs())),
        Ok(text) => match text.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => Err(words::clip(line.trim(), LONGEST)),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests;
