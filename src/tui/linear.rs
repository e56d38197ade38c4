//! The console as lines: what is typed as a word is answered by lines, and nothing that was said is ever
//! changed. For screen readers, and for terminals that cannot move a cursor. Pure.
//!
//! - UI-16: a word does what its key does on the screen, asks what that asks, and says why when it cannot be
//!   done; nothing is done without a yes that the screen would ask for.

mod histogram;
mod vocabulary;

use crate::commands;
use crate::fresh;
use crate::keys::{BINDINGS, Command};
use crate::overlays::{evidence, inspect, pictures};
use crate::panes::strip::AwaitedRank;
use crate::panes::{calm, charts, end, hosts};
use crate::ranks;
use crate::reach;
use crate::restart_draft::origins;
use crate::speeds;
use crate::state::{Action, Confirm, Overlay, ViewState};
use crate::text;
use crate::theme::Glyphs;
use crate::time::time_of_day;
use rankdeck_core::event::Event;
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::process::{Environment, ProcessName};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use vocabulary::{WORDS, help, in_words};

/// Lines of a log, unless more are asked for.
const LINES: usize = 10;
/// Most lines of an answer.
const MOST: usize = 200;

/// What is being asked, and what this console may do.
#[derive(Debug, Clone, Default)]
pub struct Linear {
    /// As a screen would have it: open questions, and what can be done.
    pub view: ViewState,
    /// The environment that was told last, and the number of its answer.
    told: (ProcessName, u64),
}

/// What follows from a typed line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// For the user.
    pub lines: Vec<String>,
    /// To be carried out.
    pub actions: Vec<Action>,
}

impl Answer {
    fn said(line: impl Into<String>) -> Answer {
        Answer { lines: vec![line.into()], actions: Vec::new() }
    }
}

impl Linear {
    /// A line was typed.
    pub fn hear(&mut self, model: &Model, typed: &str, now: Timestamp) -> Answer {
        let typed = typed.trim().to_lowercase();
        self.view.toasts.clear();
        if let Some(Overlay::Confirm(confirm)) = self.view.overlays.pop() {
            return self.decide(model, confirm, &typed, now);
        }
        self.view.overlays.clear();
        let mut parts = typed.split_whitespace();
        let Some(first) = parts.next() else { return Answer::default() };
        let rest: Vec<&str> = parts.collect();
        let name = match WORDS.iter().filter(|word| word.name.starts_with(first)).collect::<Vec<_>>()[..] {
            [only] => only.name,
            _ => first,
        };
        let lines = match name {
            "help" | "?" => help(),
            "status" => status(model, now),
            "ranks" => all_ranks(model, &rest.join(" "), now),
            "rank" => match rank(model, rest.first()) {
                Ok(rank) => in_words(model, lines_of(&inspect::plain(model, rank, now))),
                Err(why) => vec![why],
            },
            "waits" => waits(model),
            "stack" | "continue" => {
                let command = if name == "stack" { Command::Stack } else { Command::Continue };
                return self.reach(model, command, rest.first(), now);
            }
            "env" | "signal" => return self.process(model, name, &rest),
            "why" => in_words(model, why(model)),
            "log" => log(model, &rest),
            "find" => find(model, &rest.join(" ")),
            "checkpoints" => checkpoints(model),
            "play" if !model.policy.watched => {
                let ask = vec![Action::Tell(Event::Watched { on: true })];
                return Answer { lines: vec!["rank 0 is asked; `play` again tells it".into()], actions: ask };
            }
            "play" => policy(model),
            "evals" => evals(model, count(rest.first())),
            "charts" => newest(model),
            "bins" => histogram::told(model, &rest.join(" ")),
            "pictures" => or_none(pictures::plain(model), "the program has logged no pictures"),
            "hosts" => all_hosts(model, now),
            "events" => self.events(model, count(rest.first())),
            "end" => self.end(model),
            "stop" => return self.order(model, Command::Stop, now),
            "kill" => return self.order(model, Command::Kill, now),
            "restart" => return self.order(model, Command::Restart, now),
            "detach" => return self.order(model, Command::Detach, now),
            "quit" | "exit" => return self.order(model, Command::Quit, now),
            other => vec![format!("`{}` is no word here; `help` lists them", words::clean(other))],
        };
        Answer { lines, actions: Vec::new() }
    }

    /// What a key would do with a rank.
    fn reach(&mut self, model: &Model, command: Command, typed: Option<&&str>, now: Timestamp) -> Answer {
        match rank(model, typed) {
            Ok(rank) => self.view.ranks.selected = Some(rank),
            Err(why) => return Answer::said(why),
        }
        let mut answer = self.order(model, command, now);
        self.view.overlays.clear();
        if !answer.actions.is_empty() {
            answer.lines.push("asked; `rank N` tells what comes back".into());
        }
        answer
    }

    /// The environment of a rank, or a signal to it.
    fn process(&mut self, model: &Model, name: &str, typed: &[&str]) -> Answer {
        let found = rank(model, typed.first()).and_then(|rank| reach::rank(model, rank));
        let process = match found {
            Ok(process) => process,
            Err(why) => return Answer::said(why),
        };
        let done = match typed.get(1) {
            _ if name == "env" => {
                if let Some(answer) = model.reaches.environment(process.node, process.name)
                    && self.told != (process.name, model.reaches.answers())
                {
                    self.told = (process.name, model.reaches.answers());
                    return Answer { lines: environment(answer), actions: Vec::new() };
                }
                reach::environment(&mut self.view, &process)
            }
            Some(signal) => match words::signal_named(signal) {
                Some(number) => reach::signal(model, &mut self.view, &process, number),
                None => Err(format!("`{}` is no signal", words::clean(signal))),
            },
            None => Err("signal N NAME: which one?".into()),
        };
        let mut answer = match done {
            Ok(actions) => Answer { lines: self.asked(), actions },
            Err(why) => return Answer::said(why),
        };
        if name == "env" {
            self.view.overlays.clear();
            answer.lines = vec!["its agent is asked; `env N` again tells it".into()];
        }
        answer
    }

    /// What a key would do.
    fn order(&mut self, model: &Model, command: Command, now: Timestamp) -> Answer {
        let binding = BINDINGS.iter().find(|binding| binding.command == command);
        if let Some(why) = binding.and_then(|binding| (binding.disabled)(model, &self.view)) {
            return Answer::said(format!("not now: {why}"));
        }
        let actions = commands::perform(model, &mut self.view, command, now);
        Answer { lines: self.asked(), actions }
    }

    /// The question that is open.
    fn asked(&self) -> Vec<String> {
        let Some(Overlay::Confirm(confirm)) = self.view.overlay() else { return Vec::new() };
        let mut lines = vec![confirm.title.clone()];
        lines.extend(confirm.text.iter().cloned());
        let labels: Vec<&str> = confirm.choices.iter().map(|choice| choice.label.as_str()).collect();
        lines.push(format!("type one of: {}", labels.join("; ")));
        lines
    }

    /// An answer to a question: a choice by its first word or its key. Anything else changes nothing.
    fn decide(&mut self, model: &Model, confirm: Confirm, typed: &str, now: Timestamp) -> Answer {
        let first = |label: &str| label.split([' ', ',']).next().unwrap_or_default().to_lowercase();
        let said = first(typed);
        let is_it = |label: &str, key: char| said == first(label) || said == key.to_string();
        match confirm.choices.iter().find(|choice| is_it(&choice.label, choice.key)) {
            Some(choice) => match choice.action.clone() {
                Some(action) => Answer { lines: Vec::new(), actions: vec![action] },
                None => Answer::said("nothing is done"),
            },
            // Another word than those that were offered is a word of its own.
            None if WORDS.iter().any(|word| word.name == said) => {
                let mut answer = self.hear(model, typed, now);
                answer.lines.insert(0, "nothing is done".into());
                answer
            }
            None => {
                self.view.open(Overlay::Confirm(confirm));
                Answer { lines: self.asked().into_iter().rev().take(1).collect(), actions: Vec::new() }
            }
        }
    }

    fn events(&self, model: &Model, count: usize) -> Vec<String> {
        let lines = model.history.iter().rev().take(count).collect::<Vec<_>>().into_iter().rev();
        let told = lines.map(|line| {
            let clock = time_of_day(line.time, self.view.chart.utc_offset_s);
            format!("{clock} {}", words::clean(&line.text))
        });
        or_none(told.collect(), "nothing has happened yet")
    }

    fn end(&self, model: &Model) -> Vec<String> {
        if model.run.state != RunState::Over {
            return vec!["the run is not over".into()];
        }
        let mut lines = vec![end::headline(model)];
        lines.extend(end::totals(model));
        lines.extend(end::last_minute(model).iter().map(|line| {
            format!("{} {}", time_of_day(line.time, self.view.chart.utc_offset_s), words::clean(&line.text))
        }));
        lines
    }
}

fn environment(answer: Result<&Environment, HintedError>) -> Vec<String> {
    match answer {
        Err(error) => vec![error.with_hint()],
        Ok(found) => {
            let lines = found.variables.iter().take(MOST).map(|variable| {
                let value = variable.value.as_deref().unwrap_or("(hidden)");
                format!("{}={}", words::clean(&variable.name), words::clean(value))
            });
            let more = found.variables.len().saturating_sub(MOST) as u64 + found.left_out;
            lines.chain((more > 0).then(|| format!("and {more} more"))).collect()
        }
    }
}

fn or_none(lines: Vec<String>, none: &str) -> Vec<String> {
    if lines.is_empty() { vec![none.to_owned()] } else { lines }
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().take(MOST).map(str::to_owned).collect()
}

fn count(typed: Option<&&str>) -> usize {
    typed.and_then(|typed| typed.parse().ok()).unwrap_or(LINES).clamp(1, MOST)
}

/// The rank that was typed.
fn rank(model: &Model, typed: Option<&&str>) -> Result<Rank, String> {
    let number = typed.and_then(|typed| typed.parse().ok().map(Rank));
    let number = number.ok_or("which rank? `ranks` lists them")?;
    ranks::find(model, number).map(|rank| rank.rank).ok_or_else(|| {
        format!("there is no rank {number}; there are {}", words::plural(model.ranks.len(), "rank"))
    })
}

fn state(model: &Model) -> String {
    match (model.run.state, model.run.outcome) {
        (RunState::Over, Some(outcome)) => format!("over, {}", format!("{outcome:?}").to_lowercase()),
        (state, _) => format!("{state:?}").to_lowercase(),
    }
}

fn status(model: &Model, now: Timestamp) -> Vec<String> {
    let name = model.run.id.as_ref().map_or("the run", |id| id.0.as_str());
    let mut lines = vec![format!("{name}, generation {}: {}", model.run.generation, state(model))];
    if let Some(figures) = fresh::figures(model, now) {
        let goal = model.run.total_steps.filter(|goal| *goal > 0);
        let goal = goal.map_or(String::new(), |goal| format!(" of {}", words::count(goal)));
        let speed = match figures.late_ms {
            _ if fresh::is_over(model) => String::new(),
            Some(age) if figures.stalled => format!(", stalled for {}", words::duration_ms(age)),
            Some(age) => format!(
                ", {} steps a second, {} ago",
                words::rate(figures.steps_per_s),
                words::duration_ms(age)
            ),
            None => format!(", {} steps a second", words::rate(figures.steps_per_s)),
        };
        let left = figures.eta_s.filter(|_| figures.late_ms.is_none() && !fresh::is_over(model));
        let left = left.map_or(String::new(), |eta| format!(", {} to go", words::duration(eta)));
        lines.push(format!("step {}{goal}{speed}{left}", words::count(figures.env_step)));
    }
    if let Some(last) = model.evals.back() {
        lines.push(format!(
            "evaluation {}: return {} over {}",
            model.evals.len(),
            text::value(last.return_mean),
            words::plural(last.episodes as usize, "episode")
        ));
    }
    if let Some(weights) = &model.fingerprint {
        let equal = if weights.equal { "equal" } else { "DIFFERENT" };
        lines.push(format!("weights of all ranks {equal} at iteration {}", words::count(weights.train_iter)));
    }
    let verdicts: Vec<String> = ranks::live_verdicts(model).map(verdict).collect();
    match (verdicts.is_empty(), model.run.state) {
        (false, _) => lines.extend(verdicts),
        (true, RunState::Over) => {}
        (true, _) => lines.push(calm::sentence(model, now)),
    }
    lines
}

/// A verdict with its point first.
fn verdict(verdict: &rankdeck_core::report::VerdictReport) -> String {
    let who = match (&verdict.rank, &verdict.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the run".into(),
    };
    let reason =
        verdict.reason.strip_prefix(&who).unwrap_or(&verdict.reason).trim_start_matches([' ', ',', ':']);
    words::clean(&format!("{}: {who}: {reason}", verdict.verdict.name()))
}

fn all_ranks(model: &Model, wanted: &str, now: Timestamp) -> Vec<String> {
    let told = model.ranks.iter().map(|rank| {
        let state = ranks::state_at(model, rank, Glyphs::Ascii, now).word;
        let phase = ranks::phase(rank);
        let was = if fresh::was(model, rank, now).is_some() { "was in " } else { "" };
        let phase = if phase == text::NONE { String::new() } else { format!(", {was}{phase}") };
        let steps =
            ranks::env_step(rank).map_or(String::new(), |step| format!(", step {}", words::count(step)));
        let inside = ranks::page(rank).filter(|page| ranks::inside(&page.collective));
        let inside = inside.map_or(String::new(), |page| {
            let was = if was.is_empty() { "" } else { "was " };
            format!(", {was}in collective {}", words::count(page.collective.entered))
        });
        format!("rank {} on {}: {state}{phase}{steps}{inside}", rank.rank, rank.host)
    });
    let kept: Vec<String> = told.filter(|line| line.to_lowercase().contains(wanted)).collect();
    let more = kept.len().saturating_sub(MOST);
    let mut lines: Vec<String> = kept.into_iter().take(MOST).collect();
    if more > 0 {
        lines.push(format!("and {more} more; `ranks TEXT` shows those with a text"));
    }
    or_none(lines, "no rank is like that")
}

fn waits(model: &Model) -> Vec<String> {
    let mut lines: Vec<String> = AwaitedRank::of(model).map(|awaited| awaited.words()).into_iter().collect();
    lines.extend(model.ranks.iter().filter_map(|rank| {
        let (seconds, share) = rank.track.iteration()?;
        let took = words::duration(seconds);
        Some(format!("rank {}: {:.0} % waiting, {took} an iteration", rank.rank, share * 100.0))
    }));
    lines.truncate(MOST);
    or_none(lines, "no rank tells how long it waits")
}

fn find(model: &Model, text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["find what? `find nan` shows lines with that text".into()];
    }
    let mut found: Vec<(u64, String)> = model
        .ranks
        .iter()
        .flat_map(|rank| rank.log.lines.iter().map(move |line| (rank.rank, line)))
        .filter(|(_, line)| line.text.to_lowercase().contains(text))
        .map(|(rank, line)| (line.merge_ms, format!("rank {rank}: {}", words::clean_output(&line.text))))
        .collect();
    found.sort_by_key(|(time, _)| *time);
    let skip = found.len().saturating_sub(LINES);
    let shown = found.into_iter().skip(skip).map(|(_, line)| line).collect();
    or_none(shown, "no line that is held here has that text; `rankdeck logs --grep` searches on the hosts")
}

fn checkpoints(model: &Model) -> Vec<String> {
    let told = origins(model).into_iter().filter_map(|origin| {
        let file = origin.checkpoint?;
        let mean = origin.mean_return.map_or(String::new(), |mean| format!(", return {}", text::value(mean)));
        Some(format!("{} at step {}{mean}: {}", origin.name, words::count(file.env_step), file.path))
    });
    or_none(told.take(MOST).collect(), "no checkpoint yet")
}

fn policy(model: &Model) -> Vec<String> {
    let Some(frame) = &model.policy.frame else {
        return vec!["rank 0 shows no evaluation now".into()];
    };
    let step = &frame.step;
    let number = |value: f32| text::value(f64::from(value));
    let numbers = |values: &[f32]| values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(", ");
    let so_far = text::value(step.episode_return);
    let mut lines = vec![
        format!("episode {}, step {}: return {so_far} so far", step.episode, step.step),
        format!("action {}", numbers(&step.action)),
    ];
    if let Some(thought) = &step.thought {
        lines.push(format!("what it thinks of each action: {}", numbers(&thought.scores)));
        lines.extend(thought.value.map(|value| format!("expects {}", number(value))));
    }
    lines
}

fn why(model: &Model) -> Vec<String> {
    let cards = model
        .verdicts
        .iter()
        .flat_map(|verdict| lines_of(&evidence::plain(model, &ranks::verdict_id(verdict))));
    or_none(cards.take(MOST).collect(), "the watch has nothing to say")
}

fn log(model: &Model, rest: &[&str]) -> Vec<String> {
    let rank = match rank(model, rest.first()) {
        Ok(rank) => rank,
        Err(why) => return vec![why],
    };
    let Some(rank) = ranks::find(model, rank) else { return Vec::new() };
    let held = rank.log.lines.iter().rev().take(count(rest.get(1))).collect::<Vec<_>>();
    let lines = held.into_iter().rev().map(|line| words::clean_output(&line.text));
    or_none(lines.collect(), "it has printed nothing yet")
}

fn evals(model: &Model, count: usize) -> Vec<String> {
    let skip = model.evals.len().saturating_sub(count);
    let told = model.evals.iter().enumerate().skip(skip).map(|(at, eval)| {
        format!(
            "evaluation {} at step {}: return {}, from {} to {}, over {}",
            at + 1,
            words::count(eval.env_step),
            text::value(eval.return_mean),
            text::value(eval.return_min),
            text::value(eval.return_max),
            words::plural(eval.episodes as usize, "episode")
        )
    });
    or_none(told.collect(), "no evaluation yet")
}

fn newest(model: &Model) -> Vec<String> {
    let told = model.charts().map(|(name, series)| {
        let last = series.last().filter(|_| !(speeds::is_of_now(name) && fresh::is_over(model)));
        let last = last.map_or(text::NONE.to_owned(), text::value);
        format!("{}: {last}", charts::label(name))
    });
    or_none(told.take(MOST).collect(), "no values yet")
}

fn gpu_words(host: &str, gpu: &GpuSample) -> String {
    let busy = gpu.utilization.map_or(text::NONE.to_owned(), |percent| format!("{percent} %"));
    let mut told = vec![format!("busy {busy}")];
    if gpu.memory_total > 0 {
        let (used, total) = (words::bytes(gpu.memory_used), words::bytes(gpu.memory_total));
        told.push(format!("memory {used} of {total}"));
    }
    told.extend(gpu.power_w.map(|watts| format!("{watts:.0} W")));
    told.extend(gpu.temperature_c.map(|degrees| format!("{degrees} degrees")));
    told.extend((!gpu.throttle.is_empty()).then(|| format!("held back: {}", gpu.throttle.join(", "))));
    told.extend(hosts::instances(gpu));
    format!("GPU {} of {host}: {}", gpu.index, told.join(", "))
}

fn all_hosts(model: &Model, now: Timestamp) -> Vec<String> {
    let told = model.hosts.iter().flat_map(|host| {
        let word = hosts::word(host, now);
        // Gauges of a host that is not heard any more are of the past.
        let sample = host.sample.as_ref().filter(|_| fresh::is_heard(model, host, now));
        let load = sample.map_or(String::new(), |sample| {
            let used = words::bytes(sample.memory_used);
            let total = words::bytes(sample.memory_total);
            format!(", CPU {:.0} %, memory {used} of {total}", sample.cpu_percent)
        });
        let gpus = sample.iter().flat_map(|sample| &sample.gpus).map(|gpu| gpu_words(&host.name, gpu));
        std::iter::once(format!("host {}: {word}{load}", host.name)).chain(gpus).collect::<Vec<_>>()
    });
    or_none(told.take(MOST).collect(), "no hosts")
}
