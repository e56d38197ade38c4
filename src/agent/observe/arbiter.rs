//! Selects the source of a series that several sources have. Pure.
//!
//! A program may report a return, write it to an event file and print it. Charts would show it twice, and the numbers
//! of pages would alternate.
//!
//! - ARBITER-1: values of one meaning, and of one name without a meaning, come from one source. A better one (the
//!   order of [`SeriesSource`]) takes over within [`TAKEOVER`] of the first value; then the source stays. What the
//!   program reports itself always takes over.
//! - ARBITER-2: a name that was only recognized, has no meaning and never changed its value is not charted.
//! - ARBITER-3: the evaluations of a program come from one name of one source, those with environment steps before
//!   those with iterations: DI-engine writes each under two names. They are held for [`DECISION`] after the first one,
//!   and again if a better source takes over, unless the user has declared their name.
//! - Memory is bounded: [`SERIES`] series, [`HELD`] evaluations.

use rankdeck_proto::message::{Evaluation, RankEvent, RecordEvent};
use rankdeck_proto::progress_bar::ShownCounter;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::{Meaning, Meanings};
use rankdeck_types::words;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long after the first value a better source may take over.
const TAKEOVER: Duration = Duration::from_secs(30);
/// How long evaluations are held until their name is decided.
const DECISION: Duration = Duration::from_secs(5);
/// How long a program may run without any value before that is reported.
const ABSENCE: Duration = Duration::from_secs(120);
/// Most evaluations that are held.
const HELD: usize = 1024;
/// Most series whose source is known.
const SERIES: usize = 512;
/// Most names that a summary lists.
const LISTED: usize = 6;

/// Where values come from, the best source first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SeriesSource {
    /// The program reports them by the event socket.
    Reported,
    /// A pattern of `metrics.stdout`.
    Declared,
    /// An event file that the program writes.
    EventFile,
    /// A file with rows of values that the program writes.
    RowFile,
    /// A form that was recognized in the output, or a preset.
    Printed,
}

impl SeriesSource {
    /// Returns the source of a record of files.
    pub fn of_file(source: &str) -> SeriesSource {
        if source == "tensorboard" { SeriesSource::EventFile } else { SeriesSource::RowFile }
    }

    /// It is not declared in `[metrics]`.
    fn is_found(self) -> bool {
        self > SeriesSource::Declared
    }

    fn label(self) -> &'static str {
        match self {
            SeriesSource::Reported | SeriesSource::Declared => "declared",
            SeriesSource::EventFile => "event file",
            SeriesSource::RowFile => "file of rows",
            SeriesSource::Printed => "output",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SeriesKey {
    Meaning(Meaning),
    Name(String),
}

#[derive(Debug)]
struct Owner {
    source: SeriesSource,
    /// When its first value came.
    since: Instant,
    /// The latest name of it.
    name: String,
}

/// The evaluations of a program that reports none (ARBITER-3).
#[derive(Debug, Default)]
struct FoundEvaluations {
    /// Those whose name is not decided.
    held: Vec<(SeriesSource, Evaluation)>,
    /// When the first of them came.
    held_at: Option<Instant>,
    decided: Option<(SeriesSource, String)>,
    /// The last step that was passed on.
    step: u64,
}

impl FoundEvaluations {
    /// Takes in an evaluation; returns it if its name is the decided one.
    fn admit(&mut self, source: SeriesSource, evaluation: Evaluation, now: Instant) -> Option<Evaluation> {
        match &self.decided {
            Some((decided, name)) if *decided == source => {
                (*name == evaluation.series).then(|| self.pass(evaluation))
            }
            Some((decided, _)) if *decided < source => None,
            _ => {
                self.decided = None;
                self.held_at.get_or_insert(now);
                if self.held.len() < HELD {
                    self.held.push((source, evaluation));
                }
                None
            }
        }
    }

    /// The same for a name that the user has declared, or the first one of several; nothing better can follow.
    fn admit_declared(&mut self, source: SeriesSource, evaluation: Evaluation) -> Option<Evaluation> {
        match &self.decided {
            Some((decided, name)) if *decided == source => {
                (*name == evaluation.series).then(|| self.pass(evaluation))
            }
            _ => {
                let before = self.step;
                self.held.clear();
                self.held_at = None;
                self.decided = Some((source, evaluation.series.clone()));
                // The former source had it.
                (before == 0 || evaluation.env_step > before).then(|| self.pass(evaluation))
            }
        }
    }

    fn pass(&mut self, evaluation: Evaluation) -> Evaluation {
        self.step = self.step.max(evaluation.env_step);
        evaluation
    }

    /// Decides on a name when it is time; returns the evaluations of that name which were held.
    fn decide(&mut self, meanings: &Meanings, now: Instant, is_end: bool) -> Vec<Evaluation> {
        let is_due =
            |at: Instant| is_end || now.saturating_duration_since(at) >= DECISION || self.held.len() >= HELD;
        if !self.held_at.is_some_and(is_due) {
            return Vec::new();
        }
        self.held_at = None;
        let held = std::mem::take(&mut self.held);
        let Some(best) = held.iter().map(|(source, _)| *source).min() else { return Vec::new() };
        let of_best = || held.iter().filter(|(source, _)| *source == best).map(|(_, found)| &found.series);
        let by_steps = of_best().map(String::as_str).filter(|name| !counts_iterations(name));
        let name = meanings
            .best(Meaning::EvalReturn, by_steps)
            .or_else(|| meanings.best(Meaning::EvalReturn, of_best().map(String::as_str)))
            .map(str::to_owned);
        let Some(name) = name else { return Vec::new() };
        // A source that takes over repeats what the former one had.
        let before = self.step;
        let is_new = |found: &Evaluation| before == 0 || found.env_step > before;
        let left = held
            .into_iter()
            .filter(|(source, found)| *source == best && found.series == name && is_new(found))
            .map(|(_, found)| self.pass(found))
            .collect();
        self.decided = Some((best, name));
        left
    }
}

/// Returns whether the steps of a series with this name are iterations: `evaluator_iter/reward_mean`.
fn counts_iterations(name: &str) -> bool {
    name.split('/').any(|part| part.ends_with("_iter") || matches!(part, "iter" | "epoch" | "time"))
}

/// The sources of all series of one generation.
#[derive(Debug, Default)]
pub(crate) struct Arbiter {
    meanings: Meanings,
    owners: BTreeMap<SeriesKey, Owner>,
    /// First values of names that may be constants; `None` once they have moved.
    first: BTreeMap<String, Option<f64>>,
    evaluations: FoundEvaluations,
    /// When the first undeclared value arrived.
    found_at: Option<Instant>,
    is_summarized: bool,
    /// When the program gave its first sign.
    begun: Option<Instant>,
    is_absence_reported: bool,
}

impl Arbiter {
    /// Returns the arbiter of a generation.
    pub fn new(meanings: Meanings) -> Arbiter {
        Arbiter { meanings, ..Arbiter::default() }
    }

    /// The program runs: it has printed or reported something.
    pub fn has_sign(&mut self, now: Instant) {
        self.begun.get_or_insert(now);
    }

    /// Takes in what rank 0 reports itself.
    pub fn reported(&mut self, event: &RankEvent, now: Instant) {
        let mut take = |key: SeriesKey, name: &str| {
            let source = SeriesSource::Reported;
            self.owners.insert(key, Owner { source, since: now, name: name.to_owned() });
        };
        match event {
            RankEvent::Counters(counters) | RankEvent::Totals(counters) => {
                if counters.env_step > 0 || counters.train_iter > 0 {
                    take(SeriesKey::Meaning(Meaning::Step), "env_step");
                    take(SeriesKey::Meaning(Meaning::StepsPerSecond), "env_step");
                }
                if counters.returns.count > 0 {
                    take(SeriesKey::Meaning(Meaning::Return), "returns");
                }
            }
            RankEvent::Scalars { values, .. } => {
                for name in values.keys() {
                    let key = self.meanings.of(name).map_or_else(|| named(name), SeriesKey::Meaning);
                    take(key, name);
                }
            }
            RankEvent::Eval(_) => {
                take(SeriesKey::Meaning(Meaning::EvalReturn), "eval");
                take(SeriesKey::Meaning(Meaning::EvalLength), "eval");
            }
            _ => {}
        }
    }

    /// Takes in an event of an observer; `source`: where a value of this name comes from. Returns what is left of
    /// it, and the evaluation that it holds.
    pub fn admit(
        &mut self,
        mut event: RecordEvent,
        source: impl Fn(&str) -> SeriesSource,
        now: Instant,
    ) -> Vec<RecordEvent> {
        let RecordEvent::Metrics { env_step, values, not_finite, spread, counter, progress, .. } = &mut event
        else {
            return vec![event];
        };
        let is_bare = values.is_empty() && not_finite.is_empty();
        values.retain(|name, value| {
            self.owns(name, source(name), now) && self.moves(name, *value, source(name))
        });
        not_finite.retain(|name, _| self.owns(name, source(name), now));
        spread.retain(|name, _| values.contains_key(name));
        if let Some(step) = *env_step
            && !self.owns_key(SeriesKey::Meaning(Meaning::Step), "env_step", source("env_step"), now)
        {
            // The other source's steps are the run's; these are the places of its own values.
            *counter = Some(ShownCounter { unit: "step".to_owned(), at: step as f64 });
            *env_step = None;
        }
        if self.source(Meaning::Step) == Some(SeriesSource::Reported) {
            *progress = None;
        }
        let evaluation = self.evaluation(*env_step, counter.as_ref(), values);
        let evaluation = evaluation.and_then(|evaluation| {
            let source = source(&evaluation.series);
            if source.is_found() {
                self.evaluations.admit(source, evaluation, now)
            } else {
                self.evaluations.admit_declared(source, evaluation)
            }
        });
        let is_progress = progress.is_some() || is_bare && env_step.is_some();
        let is_empty = values.is_empty() && not_finite.is_empty() && !is_progress;
        let left = (!is_empty).then_some(event);
        left.into_iter().chain(evaluation.map(recorded)).collect()
    }

    /// Returns the evaluations whose name has been decided since; `is_end`: it is decided now.
    pub fn decided_evaluations(&mut self, now: Instant, is_end: bool) -> Vec<RecordEvent> {
        let decided = self.evaluations.decide(&self.meanings, now, is_end);
        decided.into_iter().map(recorded).collect()
    }

    /// Notes under which name the program counts steps: it is not among the values.
    pub fn counts_by(&mut self, meaning: Meaning, name: &str, source: SeriesSource, now: Instant) {
        self.owns_key(SeriesKey::Meaning(meaning), name, source, now);
    }

    /// Describes what was found without a declaration, once, when sources and names are decided or at the end; before
    /// that, once, that nothing was found for long.
    pub fn summary(&mut self, now: Instant, is_end: bool) -> Option<String> {
        if self.owners.is_empty() {
            return self.absence(now);
        }
        let found_at = self.found_at.filter(|_| !self.is_summarized)?;
        let is_open =
            now.saturating_duration_since(found_at) < TAKEOVER || self.evaluations.held_at.is_some();
        if !is_end && is_open {
            return None;
        }
        self.is_summarized = true;
        let found = || self.owners.iter().filter(|(_, owner)| owner.source.is_found());
        let decided = self.evaluations.decided.as_ref();
        let known = found().filter_map(|(key, owner)| match key {
            SeriesKey::Meaning(meaning) => {
                let decided = decided.filter(|_| *meaning == Meaning::EvalReturn);
                let (source, name) =
                    decided.map_or((owner.source, &owner.name), |(source, name)| (*source, name));
                Some(format!("{} = {} ({})", meaning.key(), words::clip(name, 60), source.label()))
            }
            SeriesKey::Name(_) => None,
        });
        let known: Vec<String> = known.collect();
        let others = found().count() - known.len();
        if known.is_empty() && others == 0 {
            return None;
        }
        let mut parts: Vec<String> = known.into_iter().take(LISTED).collect();
        if others > 0 {
            parts.push(format!("{} without a known meaning", words::plural(others, "more name")));
        }
        Some(format!(
            "metrics found: {}; `metrics.names.return = \"NAME\"` selects another name, `metrics.stdout` other output",
            parts.join(", ")
        ))
    }

    fn absence(&mut self, now: Instant) -> Option<String> {
        let begun = self.begun.filter(|_| !self.is_absence_reported)?;
        self.is_absence_reported = now.saturating_duration_since(begun) >= ABSENCE;
        self.is_absence_reported.then(|| {
            "no metrics found so far, in the output or in files that the program writes; \
             `metrics.stdout` reads other output, `rankdeck.report()` reports values"
                .to_owned()
        })
    }

    fn source(&self, meaning: Meaning) -> Option<SeriesSource> {
        self.owners.get(&SeriesKey::Meaning(meaning)).map(|owner| owner.source)
    }

    /// ARBITER-1.
    fn owns(&mut self, name: &str, source: SeriesSource, now: Instant) -> bool {
        let key = self.meanings.of(name).map_or_else(|| named(name), SeriesKey::Meaning);
        self.owns_key(key, name, source, now)
    }

    fn owns_key(&mut self, key: SeriesKey, name: &str, source: SeriesSource, now: Instant) -> bool {
        if source.is_found() {
            self.found_at.get_or_insert(now);
        }
        let is_full = self.owners.len() >= SERIES;
        match self.owners.get_mut(&key) {
            Some(owner) if owner.source == source => {
                // Pages show the best name of a meaning, of equally good ones the first by name.
                let mut both = [owner.name.as_str(), name];
                both.sort_unstable();
                if let SeriesKey::Meaning(meaning) = key
                    && owner.name != name
                    && self.meanings.best(meaning, both) == Some(name)
                {
                    name.clone_into(&mut owner.name);
                }
                true
            }
            Some(owner) if source < owner.source && now.saturating_duration_since(owner.since) < TAKEOVER => {
                (owner.source, owner.name) = (source, name.to_owned());
                true
            }
            Some(_) => false,
            None if is_full => true,
            None => {
                self.owners.insert(key, Owner { source, since: now, name: name.to_owned() });
                true
            }
        }
    }

    /// ARBITER-2.
    fn moves(&mut self, name: &str, value: f64, source: SeriesSource) -> bool {
        if source != SeriesSource::Printed || self.meanings.of(name).is_some() {
            return true;
        }
        match self.first.get_mut(name) {
            Some(None) => true,
            Some(first) if *first == Some(value) => false,
            Some(first) => {
                *first = None;
                true
            }
            None => {
                if self.first.len() < SERIES {
                    self.first.insert(name.to_owned(), Some(value));
                }
                false
            }
        }
    }

    /// The evaluation that the values hold, of a program that reports none.
    fn evaluation(
        &self,
        env_step: Option<u64>,
        counter: Option<&ShownCounter>,
        values: &BTreeMap<String, f64>,
    ) -> Option<Evaluation> {
        let names = || values.keys().map(String::as_str);
        let name = self.meanings.best(Meaning::EvalReturn, names())?;
        let mean = *values.get(name)?;
        let length = self.meanings.value(Meaning::EvalLength, values).unwrap_or(0.0);
        let step = env_step.or(counter.map(|counter| counter.at.max(0.0) as u64)).unwrap_or(0);
        Some(Evaluation::of_series(name, step, mean, length))
    }
}

/// An evaluation as rank 0 would report it.
fn recorded(evaluation: Evaluation) -> RecordEvent {
    RecordEvent::Rank { rank: Rank(0), event: RankEvent::Eval(evaluation) }
}

fn named(name: &str) -> SeriesKey {
    SeriesKey::Name(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{Counters, Returns};
    use rankdeck_proto::progress_bar::ShownProgress;

    fn metrics(env_step: Option<u64>, values: &[(&str, f64)]) -> RecordEvent {
        RecordEvent::Metrics {
            rank: Rank(0),
            source: "stdout".into(),
            env_step,
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            skipped: 0,
            not_finite: BTreeMap::new(),
            spread: BTreeMap::new(),
            counter: None,
            progress: None,
        }
    }

    /// Names of the values that are left, and steps.
    fn left(events: &[RecordEvent]) -> (Vec<&str>, Option<u64>) {
        match events.first() {
            Some(RecordEvent::Metrics { values, env_step, .. }) => {
                (values.keys().map(String::as_str).collect(), *env_step)
            }
            _ => (Vec::new(), None),
        }
    }

    struct Bench {
        arbiter: Arbiter,
        begin: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { arbiter: Arbiter::new(Meanings::default()), begin: Instant::now() }
        }

        fn admit(&mut self, second: u64, source: SeriesSource, event: RecordEvent) -> Vec<RecordEvent> {
            self.arbiter.admit(event, |_| source, self.begin + Duration::from_secs(second))
        }

        fn decided(&mut self, second: u64) -> Vec<RecordEvent> {
            self.arbiter.decided_evaluations(self.begin + Duration::from_secs(second), false)
        }
    }

    #[test]
    fn arbiter_1_better_source_takes_over_early() {
        let mut bench = Bench::new();
        let printed = || metrics(None, &[("charts/episodic_return", 1.0), ("loss", 0.5)]);
        let all = bench.admit(0, SeriesSource::Printed, printed());
        assert_eq!(left(&all).0, ["charts/episodic_return", "loss"]);
        let file =
            bench.admit(10, SeriesSource::EventFile, metrics(Some(8), &[("rollout/ep_rew_mean", 1.0)]));
        assert_eq!(left(&file).0, ["rollout/ep_rew_mean"]);
        let all = bench.admit(11, SeriesSource::Printed, printed());
        assert_eq!(left(&all).0, ["loss"], "the return comes from the file");
        let late = bench.admit(40, SeriesSource::EventFile, metrics(Some(9), &[("train/loss", 1.0)]));
        assert!(late.is_empty(), "the source of the loss is fixed");
    }

    #[test]
    fn arbiter_1_reported_values_always_win() {
        let mut bench = Bench::new();
        let printed = || metrics(Some(5), &[("reward", 1.0), ("loss", 0.5)]);
        assert_eq!(
            left(&bench.admit(0, SeriesSource::Declared, printed())),
            (vec!["loss", "reward"], Some(5))
        );
        let returns = Returns::of(1.0);
        let counters = Counters { env_step: 8, returns, ..Counters::default() };
        bench.arbiter.reported(&RankEvent::Counters(counters), bench.begin + Duration::from_secs(99));
        let all = bench.admit(100, SeriesSource::Declared, printed());
        assert_eq!(left(&all), (vec!["loss"], None));
        let Some(RecordEvent::Metrics { counter: Some(counter), .. }) = all.first() else {
            panic!("{all:?}")
        };
        assert_eq!(counter.at, 5.0, "the place of its own values");
        let mut bar = metrics(None, &[]);
        let RecordEvent::Metrics { progress, .. } = &mut bar else { unreachable!() };
        *progress = Some(ShownProgress::default());
        assert!(bench.admit(101, SeriesSource::Printed, bar).is_empty());
    }

    #[test]
    fn steps_without_values_are_admitted_unless_reported() {
        let mut bench = Bench::new();
        let step = |step| metrics(Some(step), &[]);
        assert_eq!(left(&bench.admit(0, SeriesSource::Printed, step(5))), (vec![], Some(5)));
        let counters = Counters { env_step: 8, ..Counters::default() };
        bench.arbiter.reported(&RankEvent::Counters(counters), bench.begin + Duration::from_secs(1));
        assert!(bench.admit(2, SeriesSource::Printed, step(6)).is_empty());
    }

    #[test]
    fn arbiter_2_constants_are_no_series_until_they_move() {
        let mut bench = Bench::new();
        let event = |size: f64| metrics(None, &[("batch_size", size), ("loss", 0.5)]);
        for second in 0..30 {
            assert_eq!(left(&bench.admit(second, SeriesSource::Printed, event(32.0))).0, ["loss"]);
        }
        let moved = bench.admit(31, SeriesSource::Printed, event(64.0));
        assert_eq!(left(&moved).0, ["batch_size", "loss"]);
        let declared = metrics(None, &[("size", 32.0)]);
        assert_eq!(left(&bench.admit(32, SeriesSource::Declared, declared)).0, ["size"], "the user's own");
    }

    #[test]
    fn series_of_evaluations_become_evaluations() {
        let mut bench = Bench::new();
        let values = [("eval/mean_reward", 21.5), ("eval/mean_ep_length", 30.0)];
        let events = bench.admit(0, SeriesSource::EventFile, metrics(Some(100), &values));
        assert_eq!(events.len(), 1, "a better name may follow");
        let events = bench.decided(5);
        let [RecordEvent::Rank { event: RankEvent::Eval(evaluation), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((evaluation.env_step, evaluation.return_mean, evaluation.length_mean), (100, 21.5, 30.0));
        assert_eq!(evaluation.series, "eval/mean_reward");
        bench.arbiter.reported(&RankEvent::Eval(Evaluation::default()), bench.begin);
        assert!(bench.admit(1, SeriesSource::EventFile, metrics(Some(200), &values)).is_empty());
    }

    /// Names and steps of evaluations.
    fn evaluations(events: &[RecordEvent]) -> Vec<(&str, u64)> {
        let evaluation = |event| match event {
            &RecordEvent::Rank { event: RankEvent::Eval(ref found), .. } => {
                Some((found.series.as_str(), found.env_step))
            }
            _ => None,
        };
        events.iter().filter_map(evaluation).collect()
    }

    #[test]
    fn arbiter_3_evaluations_have_one_name_of_one_source() {
        let mut bench = Bench::new();
        let name = |axis: &str, last: &str| format!("evaluator_{axis}/{last}");
        let all = |bench: &mut Bench, second: u64, iteration: u64, step: u64| {
            let mut events = Vec::new();
            for (axis, at) in [("iter", iteration), ("step", step)] {
                for last in ["reward_mean", "eval_episode_return_mean"] {
                    let row = metrics(Some(at), &[(&name(axis, last), 9.4)]);
                    events.extend(bench.admit(second, SeriesSource::EventFile, row));
                }
            }
            events
        };
        let printed = |mean| metrics(Some(100), &[("eval/reward_mean", mean)]);
        assert_eq!(evaluations(&bench.admit(0, SeriesSource::Printed, printed(9.4))), []);
        assert_eq!(evaluations(&all(&mut bench, 2, 10, 100)), []);
        assert_eq!(evaluations(&bench.decided(4)), []);
        assert_eq!(evaluations(&bench.decided(5)), [("evaluator_step/eval_episode_return_mean", 100)]);
        assert_eq!(
            evaluations(&all(&mut bench, 9, 20, 200)),
            [("evaluator_step/eval_episode_return_mean", 200)]
        );
        assert_eq!(evaluations(&bench.admit(10, SeriesSource::Printed, printed(9.5))), []);
        assert_eq!(evaluations(&bench.decided(99)), []);
    }

    #[test]
    fn arbiter_3_declared_evaluations_have_one_name() {
        let mut bench = Bench::new();
        let row = |name: &str, step: u64| metrics(Some(step), &[(name, 1.0)]);
        bench.admit(0, SeriesSource::EventFile, row("eval/return", 100));
        assert_eq!(evaluations(&bench.decided(5)), [("eval/return", 100)]);
        for (step, name, expected) in [
            (100, "eval_return", &[][..]),
            (200, "eval_return", &[("eval_return", 200)]),
            (200, "eval/return", &[]),
            (300, "eval_return", &[("eval_return", 300)]),
        ] {
            assert_eq!(evaluations(&bench.admit(9, SeriesSource::Declared, row(name, step))), expected);
        }
        assert_eq!(evaluations(&bench.admit(9, SeriesSource::EventFile, row("eval/return", 400))), []);
        assert_eq!(evaluations(&bench.decided(99)), []);
    }

    #[test]
    fn arbiter_3_better_source_repeats_no_evaluation() {
        let mut bench = Bench::new();
        let row = |step: u64| metrics(Some(step), &[("eval/mean_reward", 1.0)]);
        bench.admit(0, SeriesSource::Printed, row(100));
        assert_eq!(evaluations(&bench.decided(5)), [("eval/mean_reward", 100)]);
        for step in [100, 200] {
            assert_eq!(evaluations(&bench.admit(9, SeriesSource::EventFile, row(step))), []);
        }
        assert_eq!(evaluations(&bench.decided(14)), [("eval/mean_reward", 200)]);
    }

    #[test]
    fn summary_names_the_evaluations_and_series_that_are_used() {
        let mut bench = Bench::new();
        let found = |at: u64, name: &str| metrics(Some(at), &[(name, 9.4)]);
        for name in ["evaluator_iter/eval_episode_return_mean", "evaluator_step/eval_episode_return_mean"] {
            bench.admit(0, SeriesSource::EventFile, found(10, name));
        }
        for name in ["train/reward_mean", "rollout/ep_rew_mean"] {
            bench.admit(0, SeriesSource::EventFile, found(10, name));
        }
        bench.decided(5);
        let begin = bench.begin;
        let at = |second: u64| begin + Duration::from_secs(second);
        let text = bench.arbiter.summary(at(31), false).unwrap();
        assert!(text.contains("evaluator_step/") && !text.contains("evaluator_iter/"), "{text}");
        let used = Meanings::default();
        let used = used.best(Meaning::Return, ["train/reward_mean", "rollout/ep_rew_mean"]).unwrap();
        assert!(text.contains(&format!("return = {used} ")), "{text}");
        // A better source is not decided yet.
        let mut bench = Bench::new();
        bench.admit(0, SeriesSource::Printed, found(10, "eval/reward_mean"));
        bench.decided(5);
        bench.admit(28, SeriesSource::EventFile, found(20, "eval/mean_reward"));
        let begin = bench.begin;
        let at = |second: u64| begin + Duration::from_secs(second);
        assert_eq!(bench.arbiter.summary(at(31), false), None);
        bench.decided(33);
        let text = bench.arbiter.summary(at(33), false).unwrap();
        assert!(text.contains("eval/mean_reward (event file)"), "{text}");
    }

    #[test]
    fn absence_of_metrics_is_reported_once() {
        let mut bench = Bench::new();
        let begin = bench.begin;
        let at = |second: u64| begin + Duration::from_secs(second);
        assert_eq!(bench.arbiter.summary(at(999), false), None, "it may be importing");
        bench.arbiter.has_sign(at(0));
        assert_eq!(bench.arbiter.summary(at(119), true), None, "a short program may have none");
        let text = bench.arbiter.summary(at(120), false).unwrap();
        assert!(text.contains("metrics.stdout") && text.contains("rankdeck.report()"), "{text}");
        assert_eq!(bench.arbiter.summary(at(999), true), None, "once");
        bench.admit(1000, SeriesSource::Printed, metrics(None, &[("loss", 1.0)]));
        assert!(bench.arbiter.summary(at(1030), false).unwrap().contains("loss = loss"));
        let mut reports = Bench::new();
        let begin = reports.begin;
        reports.arbiter.has_sign(begin);
        reports.arbiter.reported(&RankEvent::Eval(Evaluation::default()), begin);
        assert_eq!(reports.arbiter.summary(begin + ABSENCE, false), None);
    }

    #[test]
    fn summary_is_given_once_with_the_names() {
        let mut bench = Bench::new();
        let at = |bench: &Bench, second: u64| bench.begin + Duration::from_secs(second);
        bench.admit(0, SeriesSource::Declared, metrics(None, &[("loss", 1.0)]));
        assert_eq!(bench.arbiter.summary(at(&bench, 99), true), None, "nothing was found, all was declared");
        bench.admit(100, SeriesSource::Printed, metrics(None, &[("rollout/ep_rew_mean", 1.0), ("x", 1.0)]));
        assert_eq!(bench.arbiter.summary(at(&bench, 110), false), None, "too early");
        let text = bench.arbiter.summary(at(&bench, 130), false).unwrap();
        assert!(
            text.contains("return = rollout/ep_rew_mean") && text.contains("metrics.names.return"),
            "{text}"
        );
        assert_eq!(bench.arbiter.summary(at(&bench, 200), true), None, "once");
    }
}
