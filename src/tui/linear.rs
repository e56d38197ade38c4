//! Line mode: answers typed commands with lines, which never change afterwards. For screen readers, and for
//! terminals that cannot move a cursor. Pure.
//!
//! - UI-16: a command does what its key does on the screen, asks for the same confirmation, and gives the
//!   reason when it is disabled.

use crate::run::action::{Request, ScreenAction};
use crate::run::chrome::status;
use crate::run::command::ScreenCommand;
use crate::run::input::{execute, on_command};
use crate::run::overlays::processes::signal;
use crate::run::overlays::{Confirm, EnvironmentCard, Overlay, confirm, evidence, images, restart};
use crate::run::pages::hosts;
use crate::run::pages::ranks::strip::AwaitedRank;
use crate::run::restart_draft::{FileAnswer, origins};
use crate::run::time::time_of_day;
use crate::run::words::{Verb, in_lines, of_lines};
use crate::run::{ViewState, keys, outcome, palette, processes, rank_details, ranks, staleness};
use rankdeck_charts::selection::is_live_only;
use rankdeck_charts::selection::label;
use rankdeck_core::event::Event;
use rankdeck_core::model::{HistogramBucket, Model, RunState};
use rankdeck_core::origin::{CodeChoice, SCRATCH, is_scratch};
use rankdeck_core::report::VerdictReport;
use rankdeck_kit::confirm::Choice;
use rankdeck_kit::{Glyphs, text};
use rankdeck_proto::media::Bin;
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::process::{Environment, ProcessName};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;

/// Lines of a log, unless more are requested.
const LINES: usize = 10;
/// Most lines of an answer.
const MOST: usize = 200;
/// Cells of the longest bar of a histogram.
const BAR_CELLS: f64 = 30.0;
/// Most lines of its bins.
const BIN_ROWS: usize = 16;

/// Line mode: the open question, and what this console may do.
#[derive(Debug, Clone, Default)]
pub struct Linear {
    /// State as on the screen: open questions, and what this console can do.
    pub view: ViewState,
    /// The environment that was shown last, and the number of its reply.
    shown_env: (ProcessName, u64),
}

/// The answer to a typed line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineAnswer {
    /// For the user.
    pub lines: Vec<String>,
    /// For the shell.
    pub actions: Vec<ScreenAction>,
}

impl LineAnswer {
    fn line(line: impl Into<String>) -> LineAnswer {
        LineAnswer { lines: vec![line.into()], actions: Vec::new() }
    }
}

impl Linear {
    /// Handles a typed line.
    pub fn handle_line(&mut self, model: &Model, typed: &str, now: Timestamp) -> LineAnswer {
        let as_typed = typed.trim();
        let typed = as_typed.to_lowercase();
        self.view.toasts.clear();
        if let Some(Overlay::Confirm(confirm)) = self.view.overlays.pop() {
            return self.decide(model, confirm, as_typed, now);
        }
        self.view.overlays.clear();
        let mut parts = typed.split_whitespace();
        let Some(first) = parts.next() else { return LineAnswer::default() };
        let rest: Vec<&str> = parts.collect();
        let Some(word) = in_lines(first) else {
            return LineAnswer::line(format!("unknown command `{}`; type `help`", words::clean(first)));
        };
        let lines = match word.verb {
            Verb::Help => help(),
            Verb::Status => status(model, now),
            Verb::Ranks => all_ranks(model, &rest.join(" "), now),
            Verb::Rank => match rank(model, rest.first()) {
                Ok(rank) => in_words(model, lines_of(&rank_details::plain(model, rank, now))),
                Err(why) => vec![why],
            },
            Verb::Waits => waits(model),
            Verb::Stack => return self.reach(model, ScreenCommand::Stack, rest.first(), now),
            Verb::Continue => return self.reach(model, ScreenCommand::Continue, rest.first(), now),
            Verb::Add => return self.reach(model, ScreenCommand::Rejoin, rest.first(), now),
            Verb::Env | Verb::Signal => return self.process(model, word.verb, &rest, now),
            Verb::Why => in_words(model, why(model)),
            Verb::Log => log(model, &rest),
            Verb::Find => find(model, &rest.join(" ")),
            Verb::Checkpoints => checkpoints(model),
            Verb::Play if !model.policy.watched => {
                let request = vec![ScreenAction::Send(Event::Watched { on: true })];
                return LineAnswer {
                    lines: vec!["requested; `play` shows the policy".into()],
                    actions: request,
                };
            }
            Verb::Play => policy(model),
            Verb::Evals => evals(model, count(rest.first())),
            Verb::Charts => newest(model),
            Verb::Bins => histogram(model, &rest.join(" ")),
            Verb::Pictures => or_none(images::plain(model), "no images logged yet"),
            Verb::Hosts => all_hosts(model, now),
            Verb::Events => self.events(model, count(rest.first())),
            Verb::Outcome => self.end(model),
            Verb::Stop => return self.order(model, ScreenCommand::Stop, now),
            Verb::Kill => return self.order(model, ScreenCommand::Kill, now),
            // Paths and values keep their case.
            Verb::Restart => {
                return self.restart(model, &as_typed.split_whitespace().skip(1).collect::<Vec<_>>());
            }
            Verb::Detach => return self.order(model, ScreenCommand::Detach, now),
            Verb::Quit => return self.order(model, ScreenCommand::Quit, now),
            // The rest of the table is for the screen.
            _ => Vec::new(),
        };
        LineAnswer { lines, actions: Vec::new() }
    }

    /// Does what a key does with a rank.
    fn reach(
        &mut self,
        model: &Model,
        command: ScreenCommand,
        typed: Option<&&str>,
        now: Timestamp,
    ) -> LineAnswer {
        match rank(model, typed) {
            Ok(rank) => self.view.selected = Some(rank),
            Err(why) => return LineAnswer::line(why),
        }
        let mut answer = self.order(model, command, now);
        self.view.overlays.clear();
        if !answer.actions.is_empty() {
            answer.lines.push("requested; `rank N` shows the result".into());
        }
        answer
    }

    /// Shows a rank's environment, or sends it a signal.
    fn process(&mut self, model: &Model, verb: Verb, typed: &[&str], now: Timestamp) -> LineAnswer {
        let found = rank(model, typed.first()).and_then(|rank| processes::rank(model, rank));
        let process = match found {
            Ok(process) => process,
            Err(why) => return LineAnswer::line(why),
        };
        let done = match typed.get(1) {
            _ if verb == Verb::Env => {
                if let Some(answer) = model.process_queries.environment(process.node, process.name)
                    && self.shown_env != (process.name, model.process_queries.answers())
                {
                    self.shown_env = (process.name, model.process_queries.answers());
                    return LineAnswer { lines: environment(answer), actions: Vec::new() };
                }
                EnvironmentCard::open(&mut self.view, &process)
            }
            Some(name) => match words::signal_named(name) {
                Some(number) => signal(model, &mut self.view, &process, number),
                None => Err(format!("unknown signal `{}`", words::clean(name))),
            },
            None => Err("usage: signal N NAME".into()),
        };
        let mut answer = match done {
            Ok(requests) => self.execute(model, requests, now),
            Err(why) => return LineAnswer::line(why),
        };
        if verb == Verb::Env {
            self.view.overlays.clear();
            answer.lines = vec!["requested; repeat `env N` to show it".into()];
        }
        answer
    }

    /// Does what a key does.
    fn order(&mut self, model: &Model, command: ScreenCommand, now: Timestamp) -> LineAnswer {
        if let Some(why) = keys::disabled(model, &self.view, command) {
            return LineAnswer::line(format!("not available: {why}"));
        }
        let actions = on_command(model, &mut self.view, command, now);
        LineAnswer { lines: self.question(), actions }
    }

    /// Asks about a restart as the palette does. The form for changed keys is for the screen: its question
    /// follows at once.
    fn restart(&mut self, model: &Model, arguments: &[&str]) -> LineAnswer {
        if let Some(why) = keys::disabled(model, &self.view, ScreenCommand::Restart) {
            return LineAnswer::line(format!("not available: {why}"));
        }
        if let Err(why) = palette::restart(model, &mut self.view, arguments) {
            return LineAnswer::line(why);
        }
        if let Some(Overlay::Restart(form)) = self.view.overlays.top_mut() {
            form.0.is_waiting = form.0.is_unchecked();
            if form.0.is_waiting {
                return LineAnswer::line(restart::waiting_text(&form.0));
            }
            let order = restart::order(model, &form.0);
            return self.ask(model, order);
        }
        LineAnswer { lines: self.question(), actions: Vec::new() }
    }

    /// A restart waits for files; what is typed now would cancel it.
    pub fn is_waiting(&self) -> bool {
        matches!(self.view.overlay(), Some(Overlay::Restart(_)))
    }

    /// It waits for an upload.
    pub fn is_uploading(&self) -> bool {
        matches!(self.view.overlay(), Some(Overlay::Restart(form)) if form.0.choice == CodeChoice::New)
    }

    /// Files have shown what they were read for: the question about the restart that waited for it.
    pub fn answer_files(&mut self, model: &Model, answer: FileAnswer) -> LineAnswer {
        if let Some(line) = restart::add_code(&mut self.view, &answer) {
            return LineAnswer::line(line);
        }
        match restart::take_answer(model, &mut self.view, answer) {
            Some(order) => self.ask(model, order),
            None => LineAnswer::default(),
        }
    }

    /// Asks about a restart in place of its form.
    fn ask(&mut self, model: &Model, order: Result<(Vec<String>, Event), String>) -> LineAnswer {
        self.view.overlays.clear();
        match order {
            Ok((text, event)) => self.view.open(confirm::changed(model, text, event)),
            Err(why) => return LineAnswer::line(words::clean(&why)),
        }
        LineAnswer { lines: self.question(), actions: Vec::new() }
    }

    fn execute(&mut self, model: &Model, requests: Vec<Request>, now: Timestamp) -> LineAnswer {
        let actions = execute(model, &mut self.view, requests, now);
        LineAnswer { lines: self.question(), actions }
    }

    /// The question that is open.
    fn question(&self) -> Vec<String> {
        let Some(Overlay::Confirm(confirm)) = self.view.overlay() else { return Vec::new() };
        let mut lines = vec![confirm.title.clone()];
        lines.extend(confirm.text.iter().cloned());
        let labels: Vec<&str> = confirm.choices.iter().map(|choice| choice.label.as_str()).collect();
        // What was named is marked; its name confirms it.
        let marked = labels.get(confirm.selected).filter(|_| confirm.selected > 0);
        lines.push(match marked {
            Some(label) => format!("type `{label}` to confirm, or one of: {}", labels.join("; ")),
            None => format!("type one of: {}", labels.join("; ")),
        });
        lines
    }

    /// An answer to a question: a choice by its first word or its key. Anything else changes nothing.
    fn decide(&mut self, model: &Model, confirm: Confirm, typed: &str, now: Timestamp) -> LineAnswer {
        let first = |label: &str| {
            label.split(|c: char| c == ',' || c.is_whitespace()).next().unwrap_or_default().to_lowercase()
        };
        let reply = first(typed);
        let reply = if is_scratch(&reply) { SCRATCH.to_owned() } else { reply };
        let is_no = |choice: &Choice<ScreenAction>| choice.action.is_none() && reply == "no";
        let is_reply = |choice: &Choice<ScreenAction>| {
            reply == first(&choice.label) || reply == choice.key.to_string() || is_no(choice)
        };
        match confirm.choices.iter().find(|choice| is_reply(choice)) {
            Some(choice) => match choice.action.clone() {
                Some(action) => LineAnswer { lines: Vec::new(), actions: vec![action] },
                None => LineAnswer::line("canceled"),
            },
            // Another word than those that were offered is a word of its own.
            None if of_lines().any(|(word, _)| word.name == reply) => {
                let mut answer = self.handle_line(model, typed, now);
                answer.lines.insert(0, "canceled".into());
                answer
            }
            None => {
                self.view.open(confirm);
                LineAnswer { lines: self.question().into_iter().rev().take(1).collect(), actions: Vec::new() }
            }
        }
    }

    fn events(&self, model: &Model, count: usize) -> Vec<String> {
        let lines = model.history.iter().rev().take(count).collect::<Vec<_>>().into_iter().rev();
        let found = lines.map(|line| {
            let clock = time_of_day(line.time, self.view.style.utc_offset_s);
            format!("{clock} {}", words::clean(&line.text))
        });
        or_none(found.collect(), "no events yet")
    }

    fn end(&self, model: &Model) -> Vec<String> {
        if model.run.state != RunState::Over {
            return vec!["the run is still running".into()];
        }
        let mut lines = vec![outcome::headline(model)];
        lines.extend(outcome::totals(model));
        lines.extend(outcome::last_minute(model).iter().map(|line| {
            format!("{} {}", time_of_day(line.time, self.view.style.utc_offset_s), words::clean(&line.text))
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
    let number = number.ok_or("usage: rank N; `ranks` lists them")?;
    ranks::find(model, number).map(|rank| rank.rank).ok_or_else(|| {
        format!("unknown rank {number}; the run has {}", words::plural(model.ranks.len(), "rank"))
    })
}

fn state(model: &Model) -> String {
    match (model.run.state, model.run.outcome) {
        (RunState::Over, Some(outcome)) => format!("ended, {}", format!("{outcome:?}").to_lowercase()),
        (state, _) => format!("{state:?}").to_lowercase(),
    }
}

fn status(model: &Model, now: Timestamp) -> Vec<String> {
    let name = model.run.id.as_ref().map_or("the run", |id| id.0.as_str());
    let mut lines = vec![format!("{name}, generation {}: {}", model.run.generation, state(model))];
    if let Some(figures) = staleness::figures(model, now) {
        let goal = figures.goal.filter(|goal| *goal > 0);
        let goal = goal.map_or(String::new(), |goal| format!(" of {}", words::count(goal)));
        let unit = if figures.unit.is_empty() { String::new() } else { format!(" {}", figures.unit) };
        let known = figures.per_s.map(|rate| format!(", {}{unit} a second", words::rate(rate)));
        let known = known.unwrap_or_default();
        let speed = match figures.late_ms {
            _ if staleness::is_over(model) => String::new(),
            Some(age) if figures.stalled => format!(", stalled for {}", words::duration_ms(age)),
            Some(_) if known.is_empty() => known,
            Some(age) => format!("{known}, {} ago", words::duration_ms(age)),
            None => known,
        };
        let left = figures.eta_s.filter(|_| figures.late_ms.is_none() && !staleness::is_over(model));
        let left = left.map_or(String::new(), |eta| format!(", {} to go", words::duration(eta)));
        let (what, unit) = match (figures.unit == "steps", figures.label.is_empty()) {
            (true, _) => ("step".to_owned(), ""),
            (false, true) => ("progress".to_owned(), unit.as_str()),
            (false, false) => (format!("progress of {}", figures.label), unit.as_str()),
        };
        lines.push(format!("{what} {}{goal}{unit}{speed}{left}", words::count(figures.done)));
    }
    if let Some(last) = model.evals.back() {
        let over = match last.is_of_series() {
            true => String::new(),
            false => format!(" over {}", words::plural(last.episodes as usize, "episode")),
        };
        lines.push(format!(
            "evaluation {}: return {}{over}",
            model.evals.len(),
            text::value(last.return_mean),
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
        (true, _) => lines.push(status::sentence(model, now)),
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

fn all_ranks(model: &Model, filter: &str, now: Timestamp) -> Vec<String> {
    let found = model.ranks.iter().map(|rank| {
        let state = ranks::state_at(model, rank, Glyphs::Ascii, now).word;
        let phase = ranks::phase(rank);
        let was = if staleness::was(model, rank, now).is_some() { "was in " } else { "" };
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
    let kept: Vec<String> = found.filter(|line| line.to_lowercase().contains(filter)).collect();
    let more = kept.len().saturating_sub(MOST);
    let mut lines: Vec<String> = kept.into_iter().take(MOST).collect();
    if more > 0 {
        lines.push(format!("and {more} more; `ranks TEXT` filters"));
    }
    or_none(lines, "no matching rank")
}

fn waits(model: &Model) -> Vec<String> {
    let mut lines: Vec<String> = AwaitedRank::of(model).map(|awaited| awaited.words()).into_iter().collect();
    lines.extend(model.ranks.iter().filter_map(|rank| {
        let (seconds, share) = rank.watch_history.iteration()?;
        let took = words::duration(seconds);
        Some(format!("rank {}: {:.0}% waiting, {took} per iteration", rank.rank, share * 100.0))
    }));
    lines.truncate(MOST);
    or_none(lines, "no wait times reported yet")
}

fn find(model: &Model, text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["usage: find TEXT".into()];
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
    or_none(shown, "no match in this console; `rankdeck logs --grep` searches the hosts")
}

fn checkpoints(model: &Model) -> Vec<String> {
    let found = origins(model).into_iter().filter_map(|origin| {
        let file = origin.checkpoint?;
        let mean = origin.mean_return.map_or(String::new(), |mean| format!(", return {}", text::value(mean)));
        let step = file.step().map(|step| format!(" at step {}", words::count(step))).unwrap_or_default();
        Some(format!("{}{step}{mean}: {}{}", origin.name, file.path, file.remark()))
    });
    or_none(found.take(MOST).collect(), "no checkpoint yet")
}

fn policy(model: &Model) -> Vec<String> {
    let Some(frame) = &model.policy.frame else {
        return vec!["no evaluation is running".into()];
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
        lines.push(format!("action scores: {}", numbers(&thought.scores)));
        lines.extend(thought.value.map(|value| format!("value estimate {}", number(value))));
    }
    lines
}

fn why(model: &Model) -> Vec<String> {
    let cards = model.verdicts.iter().flat_map(|verdict| lines_of(&evidence::plain(verdict)));
    or_none(cards.take(MOST).collect(), "no verdict")
}

fn log(model: &Model, rest: &[&str]) -> Vec<String> {
    let rank = match rank(model, rest.first()) {
        Ok(rank) => rank,
        Err(why) => return vec![why],
    };
    let Some(rank) = ranks::find(model, rank) else { return Vec::new() };
    let held = rank.log.lines.iter().rev().take(count(rest.get(1))).collect::<Vec<_>>();
    let lines = held.into_iter().rev().map(|line| words::clean_output(&line.text));
    or_none(lines.collect(), "no output yet")
}

fn evals(model: &Model, count: usize) -> Vec<String> {
    let skip = model.evals.len().saturating_sub(count);
    let found = model.evals.iter().enumerate().skip(skip).map(|(at, eval)| {
        let spread = match eval.is_of_series() {
            true => format!(" ({})", words::clean(&eval.series)),
            false => format!(
                ", from {} to {}, over {}{}",
                text::value(eval.return_min),
                text::value(eval.return_max),
                words::plural(eval.episodes as usize, "episode"),
                if eval.sampled { ", actions sampled" } else { "" }
            ),
        };
        format!(
            "evaluation {} at step {}: return {}{spread}",
            at + 1,
            words::count(eval.env_step),
            text::value(eval.return_mean),
        )
    });
    or_none(found.collect(), "no evaluation yet")
}

fn newest(model: &Model) -> Vec<String> {
    let found = model.charts().map(|(name, series)| {
        let last = series.last().filter(|_| !(is_live_only(name) && staleness::is_over(model)));
        let last = last.map_or(text::NONE.to_owned(), text::value);
        format!("{}: {last}", label(name))
    });
    or_none(found.take(MOST).collect(), "no data yet")
}

/// The newest histogram of a name, or of the only name with this part.
fn histogram(model: &Model, typed: &str) -> Vec<String> {
    let names = || model.histograms.keys().map(String::as_str);
    if names().next().is_none() {
        return vec!["no histograms logged yet".into()];
    }
    let like = |name: &&str| name.to_lowercase().contains(typed);
    let exact = names().find(|name| name.to_lowercase() == typed);
    let (one, several) = (names().find(like), names().filter(like).count() > 1);
    let Some(name) = exact.or(one.filter(|_| !several)) else {
        let all: Vec<String> = names().map(words::clean).collect();
        return vec![format!("usage: bins NAME; available: {}", all.join(", "))];
    };
    let Some(column) = model.histograms.get(name).and_then(|series| series.newest()) else {
        return Vec::new();
    };
    let (low, high) = column.bins.range();
    let step = text::si(column.place.step);
    let (total, mean) = (words::count(column.bins.total().round() as u64), text::value(column.bins.mean()));
    let [from, to] = text::apart([low, high]);
    let name = words::clean(name);
    let mut lines = vec![format!("{name} at step {step}: {total} values from {from} to {to}, mean {mean}")];
    let bins = column.bins.counts.len();
    let rows = if bins <= BIN_ROWS { column.bins.bins().collect() } else { coarse_bins(low, high, column) };
    let most = rows.iter().map(|bin| bin.count).fold(1.0, f64::max);
    lines.extend(rows.iter().map(|bin| {
        let [from, to] = text::apart([bin.low, bin.high]);
        let bar = "#".repeat((bin.count / most * BAR_CELLS).ceil() as usize);
        format!("{from} to {to}: {} {bar}", words::count(bin.count.round() as u64)).trim_end().to_owned()
    }));
    lines
}

/// The same in fewer parts.
fn coarse_bins(low: f64, high: f64, column: &HistogramBucket) -> Vec<Bin> {
    let wide = (high - low) / BIN_ROWS as f64;
    let counts = column.bins.in_rows(low, high, BIN_ROWS).into_iter().enumerate();
    let part = |(i, count): (usize, f64)| Bin {
        low: low + wide * i as f64,
        high: low + wide * (i + 1) as f64,
        count,
    };
    counts.map(part).collect()
}

fn gpu_words(host: &str, gpu: &GpuSample) -> String {
    let busy = gpu.utilization.map_or(text::NONE.to_owned(), |percent| format!("{percent}%"));
    let mut found = vec![format!("utilization {busy}")];
    if gpu.memory_total > 0 {
        let (used, total) = (words::bytes(gpu.memory_used), words::bytes(gpu.memory_total));
        found.push(format!("memory {used} of {total}"));
    }
    found.extend(gpu.power_w.map(|watts| format!("{watts:.0} W")));
    found.extend(gpu.temperature_c.map(|degrees| format!("{degrees} C")));
    found.extend((!gpu.throttle.is_empty()).then(|| format!("throttled: {}", gpu.throttle.join(", "))));
    found.extend(hosts::instances(gpu));
    format!("GPU {} of {host}: {}", gpu.index, found.join(", "))
}

fn all_hosts(model: &Model, now: Timestamp) -> Vec<String> {
    let found = model.hosts.iter().flat_map(|host| {
        let word = hosts::word(host, now);
        // Gauges of a silent host are of the past.
        let sample = host.sample.as_ref().filter(|_| staleness::is_current(model, host, now));
        let load = sample.map_or(String::new(), |sample| {
            let used = words::bytes(sample.memory_used);
            let total = words::bytes(sample.memory_total);
            format!(", CPU {:.0}%, memory {used} of {total}", sample.cpu_percent)
        });
        let gpus = sample.iter().flat_map(|sample| &sample.gpus).map(|gpu| gpu_words(&host.name, gpu));
        std::iter::once(format!("host {}: {word}{load}", host.name)).chain(gpus).collect::<Vec<_>>()
    });
    or_none(found.take(MOST).collect(), "no hosts")
}

/// One line per command.
fn help() -> Vec<String> {
    let lines = of_lines().map(|(word, (arguments, about))| match arguments {
        "" => format!("{}: {about}", word.name),
        arguments => format!("{} {arguments}: {about}", word.name),
    });
    lines.chain(["Commands can be abbreviated.".to_owned()]).collect()
}

/// Lines that advise commands of a shell, with the words that do the same here.
fn in_words(model: &Model, lines: Vec<String>) -> Vec<String> {
    let advised = model.verdicts.iter().flat_map(|verdict| {
        let found = verdict.card.actions.iter();
        found.filter_map(move |advice| Some((advice.command.as_str(), word_for(verdict, &advice.command)?)))
    });
    let mut advised: Vec<(&str, String)> = advised.collect();
    // One command may be the beginning of another.
    advised.sort_by_key(|(command, _)| std::cmp::Reverse(command.len()));
    let found = |line: String| advised.iter().fold(line, |line, (from, to)| line.replace(from, to));
    lines.into_iter().map(found).collect()
}

fn word_for(verdict: &VerdictReport, command: &str) -> Option<String> {
    let rank = verdict.rank.map(|rank| rank.to_string());
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["rankdeck", "attach", ..] => rank.map(|rank| format!("stack {rank}")),
        ["rankdeck", "logs", ..] => rank.map(|rank| format!("log {rank}")),
        ["rankdeck", "restart", ..] if !command.contains("--check-collectives") => Some("restart".into()),
        ["rankdeck", "stop", ..] => Some("stop".into()),
        ["rankdeck", "add", ..] => rank.map(|rank| format!("add {rank}")),
        ["kill", "-CONT", ..] => rank.map(|rank| format!("continue {rank}")),
        _ => None,
    }
}
