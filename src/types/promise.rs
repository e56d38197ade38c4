//! The promises of a run, and which of them a program keeps.
//!
//! A promise holds for the built-in trainer and for a user's program. [`Contract::of`] decides before a launch which
//! ones the program keeps, and [`Contract::demand`] rejects what an option needs and the program lacks. Pure: callers
//! read the source. Invariants:
//! - CONTRACT-1: a promise on which a result rests (the seed, a checkpoint to start from) counts as kept only if the
//!   program declares it. Unknown is not yes.
//! - CONTRACT-2: a promise that is not kept has a reason, or a line to write.
//! - CONTRACT-3: a draft becomes a plan only if its program keeps what the options asked for.

use crate::command::{CommandParts, Interpreter};
use crate::error::HintedError;
use crate::experiment::Experiment;
use crate::template::{self, RANK_SEED_VARIABLE, SEED, SEED_NAMES, SEED_VARIABLE};
use crate::{arguments, hidden, quote, words};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a run promises. The order is that of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// Each rank has its rank, world size and address.
    Identity,
    /// Seeds and swept values reach the program.
    Seed,
    /// Steps are counted.
    Steps,
    /// Evaluations are recorded.
    Evaluations,
    /// Values become charts.
    Metrics,
    /// Checkpoints are listed.
    Checkpoints,
    /// A clean stop lets the program save.
    Stop,
    /// A generation or run continues from a checkpoint.
    Resume,
    /// The end has its cause.
    End,
    /// Results can be copied.
    Results,
    /// A stuck rank is named.
    Stuck,
    /// A policy can be played, evaluated and exported.
    Playback,
}

/// Who keeps a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    /// The built-in trainer.
    Builtin,
    /// A Python program with the hook.
    Hooked,
    /// Any other program.
    Other,
}

/// Whether a kind of program can keep a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromiseCell {
    /// It can; the condition or the extent, empty without one.
    Yes(&'static str),
    /// It cannot, and why.
    No(&'static str),
}

/// Whether a program keeps a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    Yes,
    No,
    /// Only the run shows it.
    Unknown,
}

impl Kept {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kept::Yes => "yes",
            Kept::No => "no",
            Kept::Unknown => "unknown",
        }
    }

    /// The word in a table.
    pub fn shown(self) -> &'static str {
        match self {
            Kept::Yes => "kept",
            Kept::No => "not kept",
            Kept::Unknown => "unknown",
        }
    }
}

const NO_HOOK: &str = "without the Python hook, only suspended, frozen and dead ranks are named, not which rank waits \
                       for which";
const OTHER_FORMAT: &str = "the format of its checkpoints is unknown";

impl Promise {
    /// All promises.
    pub const ALL: [Promise; 12] = [
        Promise::Identity,
        Promise::Seed,
        Promise::Steps,
        Promise::Evaluations,
        Promise::Metrics,
        Promise::Checkpoints,
        Promise::Stop,
        Promise::Resume,
        Promise::End,
        Promise::Results,
        Promise::Stuck,
        Promise::Playback,
    ];

    /// The word in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Promise::Identity => "identity",
            Promise::Seed => "seed",
            Promise::Steps => "steps",
            Promise::Evaluations => "evaluations",
            Promise::Metrics => "metrics",
            Promise::Checkpoints => "checkpoints",
            Promise::Stop => "stop",
            Promise::Resume => "resume",
            Promise::End => "end",
            Promise::Results => "results",
            Promise::Stuck => "stuck",
            Promise::Playback => "playback",
        }
    }

    /// The promise in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Promise::Identity => "each rank has its rank, world size and address",
            Promise::Seed => "the seed and swept values reach the program",
            Promise::Steps => "steps are counted, for progress, rates and `--until`",
            Promise::Evaluations => "evaluations are recorded, for the best return and scores of sweeps",
            Promise::Metrics => "values become charts, reports and exports",
            Promise::Checkpoints => "checkpoints are listed with path and step",
            Promise::Stop => "a clean stop lets the program save, and reports lost work",
            Promise::Resume => "a restart or a new run continues from a checkpoint",
            Promise::End => "the outcome names the first failure and its error",
            Promise::Results => "files of the run can be copied",
            Promise::Stuck => "a stuck rank is named, with the ranks that wait for it",
            Promise::Playback => "`play`, `eval` and `export` use its checkpoints",
        }
    }

    /// Whether a kind of program can keep the promise.
    pub fn cell(self, runner: Runner) -> PromiseCell {
        use PromiseCell::{No, Yes};
        use Runner::{Builtin, Hooked, Other};
        match (self, runner) {
            (_, Builtin) => Yes(""),
            (Promise::Identity, Hooked) => {
                Yes("arguments of `init_process_group` are compared with the plan")
            }
            (Promise::Identity, Other) => Yes("in its environment"),
            (Promise::Seed, Hooked) => {
                Yes("with `{run.seed}`, `RANKDECK_SEED` or `rankdeck.seed()`; arguments with `[args]`")
            }
            (Promise::Seed, Other) => Yes("with `{run.seed}` or `RANKDECK_SEED`; arguments with `[args]`"),
            (Promise::Steps, Hooked) => {
                Yes("as `rankdeck.report()` counts them, else as rank 0 prints or writes them")
            }
            (Promise::Steps, Other) => Yes("as rank 0 prints or writes them"),
            (Promise::Evaluations, Hooked) => Yes("with `rankdeck.eval()`, or a series of evaluations"),
            (Promise::Evaluations, Other) => Yes("with a series of evaluations"),
            (Promise::Metrics, Hooked | Other) => Yes("from its output and the files that it writes"),
            (Promise::Checkpoints, Hooked) => {
                Yes("with `rankdeck.checkpoint()`, or by the names of its files")
            }
            (Promise::Checkpoints, Other) => Yes("by the names of its files"),
            (Promise::Stop, Hooked) => {
                Yes("with `rankdeck.should_stop()`, or a handler of SIGTERM or SIGINT")
            }
            (Promise::Stop, Other) => Yes("with a handler of SIGTERM or SIGINT"),
            (Promise::Resume, Hooked | Other) => Yes("with `RANKDECK_RESUME` or `{resume}`"),
            (Promise::End, Hooked) => Yes("by exit code, signal and uncaught exception"),
            (Promise::End, Other) => Yes("by exit code and signal; the error is the last output"),
            (Promise::Results, Hooked | Other) => Yes("files in the directory of the run"),
            (Promise::Stuck, Hooked) => Yes("collectives of `torch.distributed`"),
            (Promise::Stuck, Other) => No(NO_HOOK),
            (Promise::Playback, Hooked | Other) => No(OTHER_FORMAT),
        }
    }

    /// Whether a result rests on the promise, so that unknown is not yes (CONTRACT-1).
    pub fn bears_a_result(self) -> bool {
        matches!(self, Promise::Seed | Promise::Resume | Promise::Playback)
    }

    /// The error if an option needs the promise. `kept`: not [`Kept::Yes`].
    fn refusal(self, kept: Kept) -> String {
        match (self, kept) {
            (Promise::Seed, Kept::Unknown) => {
                "the source of the program is not readable on this machine, and its command has \
                                               no `{run.seed}`: the seed may not reach it"
                    .to_owned()
            }
            (Promise::Seed, _) => {
                "the program does not use the seed: `{run.seed}` and RANKDECK_SEED are not in its \
                                   command or source"
                    .to_owned()
            }
            (Promise::Resume, Kept::Unknown) => {
                "the source of the program is not readable on this machine, and its command \
                                                 has no `{resume}`: the checkpoint may not reach it"
                    .to_owned()
            }
            (Promise::Resume, _) => "the program does not read the checkpoint to start from: `{resume}` and \
                                     RANKDECK_RESUME are not in its command or source"
                .to_owned(),
            (Promise::Playback, _) => {
                "only checkpoints of the built-in trainer can be played, evaluated and exported".to_owned()
            }
            (promise, _) => format!("the program does not keep the promise `{}`", promise.name()),
        }
    }
}

/// A name that shows how a program works with rankdeck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramName {
    /// The seed.
    Seed,
    /// The checkpoint to start from.
    Resume,
    /// A variable of torchrun, or a process group.
    Group,
    /// The secret that the ranks share.
    Secret,
    /// `rankdeck.report()`, or the event socket.
    Report,
    /// `rankdeck.eval()`.
    Evaluation,
    /// `rankdeck.checkpoint()`.
    Checkpoint,
    /// A handler of a signal, or `rankdeck.should_stop()`.
    Stop,
    /// A name of another version.
    #[serde(other)]
    Other,
}

/// Functions of the client module.
static FUNCTIONS: [(&str, ProgramName); 6] = [
    ("seed", ProgramName::Seed),
    ("resume", ProgramName::Resume),
    ("report", ProgramName::Report),
    ("eval", ProgramName::Evaluation),
    ("checkpoint", ProgramName::Checkpoint),
    ("should_stop", ProgramName::Stop),
];

/// Words that stand by themselves.
static WORDS: [(&str, ProgramName); 22] = [
    ("RANKDECK_EVENTS", ProgramName::Report),
    (SEED_VARIABLE, ProgramName::Seed),
    (RANK_SEED_VARIABLE, ProgramName::Seed),
    ("RANKDECK_RESUME", ProgramName::Resume),
    ("RANKDECK_SECRET", ProgramName::Secret),
    ("SIGTERM", ProgramName::Stop),
    ("SIGINT", ProgramName::Stop),
    ("KeyboardInterrupt", ProgramName::Stop),
    ("trap", ProgramName::Stop),
    ("\"RANK\"", ProgramName::Group),
    ("'RANK'", ProgramName::Group),
    ("$RANK", ProgramName::Group),
    ("${RANK", ProgramName::Group),
    ("LOCAL_RANK", ProgramName::Group),
    ("WORLD_SIZE", ProgramName::Group),
    ("LOCAL_WORLD_SIZE", ProgramName::Group),
    ("NODE_RANK", ProgramName::Group),
    ("GROUP_RANK", ProgramName::Group),
    ("MASTER_ADDR", ProgramName::Group),
    ("MASTER_PORT", ProgramName::Group),
    ("init_process_group", ProgramName::Group),
    ("TORCHELASTIC_RUN_ID", ProgramName::Group),
];

fn is_word_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether a name stands by itself in a line.
fn is_name_in(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let (starts, ends) = (name.starts_with(is_word_part), name.ends_with(is_word_part));
        !(starts && before.ends_with(is_word_part) || ends && after.starts_with(is_word_part))
    })
}

/// Returns the names in a source, except in comments.
pub fn names_in(text: &str) -> BTreeSet<ProgramName> {
    let lines = || text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    let alias = lines().find_map(|line| line.strip_prefix("import rankdeck as ")).map(str::trim);
    // Most files have none.
    let words: Vec<&(&str, ProgramName)> = WORDS.iter().filter(|(word, _)| text.contains(word)).collect();
    let functions = if text.contains("rankdeck") { &FUNCTIONS[..] } else { &[] };
    let mut found = BTreeSet::new();
    for line in lines() {
        let named = words.iter().filter(|(word, _)| is_name_in(line, word));
        found.extend(named.map(|(_, name)| *name));
        let imported = line.strip_prefix("from rankdeck import").unwrap_or_default();
        let is_called = |function: &str| {
            let of = |module: &str| is_name_in(line, &format!("{module}.{function}("));
            of("rankdeck") || alias.is_some_and(of) || is_name_in(imported, function)
        };
        found.extend(functions.iter().filter(|(function, _)| is_called(function)).map(|(_, name)| *name));
    }
    found
}

/// How much of a program's source was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// The files that its command leads to.
    Read,
    /// Its script is not on this machine.
    Absent,
    /// It is a binary, or a module or tool that is installed elsewhere.
    #[default]
    #[serde(other)]
    Unreadable,
}

/// What is known about a program before its launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramFacts {
    pub source: SourceState,
    /// What its source names.
    pub names: BTreeSet<ProgramName>,
    /// The command was typed, and is in no file.
    pub is_typed: bool,
}

/// A promise of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractTerm {
    pub promise: Promise,
    pub kept: Kept,
    /// How it is kept, or why it is not.
    pub text: &'static str,
    /// The line to write, where one helps.
    pub line: String,
}

impl ContractTerm {
    /// Whether an option may rest on the promise (CONTRACT-1).
    fn is_enough(&self) -> bool {
        match self.kept {
            Kept::Yes => true,
            Kept::Unknown => !self.promise.bears_a_result(),
            Kept::No => false,
        }
    }
}

/// Which promises a program keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    terms: Vec<ContractTerm>,
}

impl Contract {
    /// Decides which promises the program of an experiment keeps.
    pub fn of(experiment: &Experiment, facts: &ProgramFacts) -> Contract {
        let program = Program { experiment, facts, hook: hook(experiment) };
        Contract { terms: Promise::ALL.into_iter().map(|promise| program.term(promise)).collect() }
    }

    /// All promises, in their order.
    pub fn terms(&self) -> &[ContractTerm] {
        &self.terms
    }

    /// Whether the program keeps a promise.
    pub fn kept(&self, promise: Promise) -> Kept {
        self.term(promise).map_or(Kept::Unknown, |term| term.kept)
    }

    /// Whether the program certainly keeps a promise.
    pub fn keeps(&self, promise: Promise) -> bool {
        self.kept(promise) == Kept::Yes
    }

    fn term(&self, promise: Promise) -> Option<&ContractTerm> {
        self.terms.iter().find(|term| term.promise == promise)
    }

    /// Rejects what the program does not keep.
    ///
    /// # Errors
    /// The first promise that is not kept, with the line to write.
    pub fn demand(&self, asked: &[Promise]) -> Result<(), HintedError> {
        let mut terms = asked.iter().filter_map(|promise| self.term(*promise));
        match terms.find(|term| !term.is_enough()) {
            Some(term) => Err(HintedError::new(term.promise.refusal(term.kept), term.line.as_str())),
            None => Ok(()),
        }
    }

    /// Returns what a run does that is to resume, if its program does not declare that it can, and the line to write.
    pub fn caution(&self) -> Option<HintedError> {
        let term = self.term(Promise::Resume).filter(|term| term.kept != Kept::Yes)?;
        Some(HintedError::new(
            "starts from scratch unless your program resumes on its own",
            term.line.as_str(),
        ))
    }
}

/// Whether the Python hook is loaded in the program.
fn hook(experiment: &Experiment) -> Kept {
    let launch = &experiment.launch;
    if !experiment.watch.python_hook {
        return Kept::No;
    }
    let Some(parts) = CommandParts::of(&launch.command) else { return Kept::No };
    // `-I`, `-E` and `-S` keep Python from finding it.
    let is_isolated = |word: &String| {
        let letters = word.strip_prefix('-').unwrap_or_default();
        !letters.starts_with(['-', 'c', 'm', 'W', 'X']) && letters.contains(['I', 'E', 'S'])
    };
    let options = launch.command.get(parts.program + 1..parts.arguments).unwrap_or_default();
    match parts.interpreter {
        Interpreter::Python if options.iter().any(is_isolated) => Kept::No,
        Interpreter::Python => Kept::Yes,
        // A shell, a launcher or a tool may start Python.
        Interpreter::Shell | Interpreter::None => Kept::Unknown,
    }
}

/// A program whose promises are decided.
struct Program<'a> {
    experiment: &'a Experiment,
    facts: &'a ProgramFacts,
    hook: Kept,
}

impl Program<'_> {
    fn term(&self, promise: Promise) -> ContractTerm {
        let launch = &self.experiment.launch;
        if launch.command.is_empty() {
            return ContractTerm { promise, kept: Kept::Yes, text: "", line: String::new() };
        }
        let (kept, line) = self.kept(promise);
        let runner = if self.hook == Kept::Yes { Runner::Hooked } else { Runner::Other };
        let text = match (promise.cell(runner), kept) {
            (PromiseCell::No(why), _) => why,
            (PromiseCell::Yes(how), Kept::Yes | Kept::Unknown) => how,
            (PromiseCell::Yes(_), Kept::No) => "not found in its command or source",
        };
        ContractTerm { promise, kept, text, line: if kept == Kept::Yes { String::new() } else { line } }
    }

    /// Whether the program keeps a promise, and the line to write if not.
    fn kept(&self, promise: Promise) -> (Kept, String) {
        let (launch, metrics) = (&self.experiment.launch, &self.experiment.metrics);
        let names = |name: ProgramName| self.facts.names.contains(&name);
        let declared = |is_declared: bool| match (is_declared, self.facts.source) {
            (true, _) => Kept::Yes,
            (false, SourceState::Read) => Kept::No,
            (false, SourceState::Absent | SourceState::Unreadable) => Kept::Unknown,
        };
        // What the run may still show.
        let or_unknown = |is_declared: bool| if is_declared { Kept::Yes } else { Kept::Unknown };
        let reads_values =
            !(metrics.presets.is_empty() && metrics.stdout.is_empty()) || metrics.tensorboard.is_some();
        let python = |line: &str| match self.hook {
            Kept::No => String::new(),
            Kept::Yes | Kept::Unknown => format!("in Python: `{line}`"),
        };
        let hook_line = || match self.experiment.watch.python_hook {
            true => String::new(),
            false => "write `watch.python_hook = true`".to_owned(),
        };
        match promise {
            Promise::Identity | Promise::End | Promise::Results => (Kept::Yes, String::new()),
            Promise::Seed => {
                let is_declared = self.has_template(&SEED_NAMES) || names(ProgramName::Seed);
                (declared(is_declared), self.seed_line())
            }
            Promise::Steps => {
                (or_unknown(names(ProgramName::Report) || reads_values), python("rankdeck.report(steps)"))
            }
            Promise::Metrics => (
                or_unknown(names(ProgramName::Report) || reads_values),
                python("rankdeck.report(steps, loss=loss)"),
            ),
            Promise::Evaluations => {
                let is_named = metrics.names.contains_key("eval_return");
                let line = "write `metrics.names.eval_return = \"SERIES\"`".to_owned();
                let line = match python("rankdeck.eval(returns)") {
                    python if python.is_empty() => line,
                    python => format!("{python}, or {line}"),
                };
                (or_unknown(names(ProgramName::Evaluation) || is_named), line)
            }
            Promise::Checkpoints => {
                let is_declared = names(ProgramName::Checkpoint) || !launch.checkpoints.is_empty();
                (or_unknown(is_declared), python("rankdeck.checkpoint(path)"))
            }
            Promise::Stop => {
                let is_declared = names(ProgramName::Stop) || launch.stop_signal.is_some();
                (or_unknown(is_declared), python("if rankdeck.should_stop(): save(); break"))
            }
            Promise::Resume => (declared(self.declares_resume()), self.resume_line()),
            Promise::Stuck => (self.hook, hook_line()),
            Promise::Playback => (Kept::No, PLAYBACK_LINE.to_owned()),
        }
    }

    /// Whether the command, a variable or an argument has one of these templates.
    fn has_template(&self, known: &[&str]) -> bool {
        let in_args = self.experiment.args.values().flat_map(|value| template::names_in(value));
        template::names(&self.experiment.launch).chain(in_args).any(|name| known.contains(&name))
    }

    /// Whether the program declares that it starts from a checkpoint that it gets.
    fn declares_resume(&self) -> bool {
        let launch = &self.experiment.launch;
        !launch.resume.is_empty()
            || self.has_template(&["resume"])
            || self.facts.names.contains(&ProgramName::Resume)
    }

    /// What to write so that the program gets the checkpoint.
    fn resume_line(&self) -> String {
        let line = match self.facts.is_typed {
            true => "add `--set 'launch.resume=[\"--resume\", \"{resume}\"]'`",
            false => "write `resume = [\"--resume\", \"{resume}\"]` below `[launch]`",
        };
        format!("{line}, or have the program read `RANKDECK_RESUME`")
    }

    /// What to write so that the program gets the seed.
    fn seed_line(&self) -> String {
        let command = with_seed(&self.experiment.launch.command);
        let command: Vec<String> = command.iter().map(|word| words::clean(word)).collect();
        let command = hidden::words(command.iter().map(String::as_str));
        let line = if self.facts.is_typed {
            format!("rankdeck run -- {}", quote::words(command.iter().map(String::as_str)))
        } else {
            let words = command.into_iter().map(toml::Value::String).collect();
            format!("command = {}", toml::Value::Array(words))
        };
        format!("write `{line}`, or have the program read `{SEED_VARIABLE}` (in Python: `rankdeck.seed()`)")
    }
}

/// What helps with a policy of another program.
const PLAYBACK_LINE: &str = "copy its checkpoints with `rankdeck fetch`, and load them in your program";
/// Returns the command with the template: instead of a seed that it names, else as an option at its end.
fn with_seed(command: &[String]) -> Vec<String> {
    let mut words = command.to_vec();
    let option = |word: &str| matches!(word, "--seed" | "-seed" | "--random-seed" | "--random_seed");
    for at in 0..words.len() {
        let next = words.get(at + 1).is_some_and(|value| value.parse::<i64>().is_ok());
        let Some(word) = words.get(at).cloned() else { break };
        let given = word.split_once('=').filter(|(name, _)| option(name) || name.ends_with("seed"));
        if let Some((name, _)) = given.filter(|(name, _)| !name.contains(' ')) {
            words[at] = format!("{name}={SEED}");
            return words;
        }
        if option(&word) && next {
            words[at + 1] = SEED.to_owned();
            return words;
        }
    }
    arguments::with_option(command, "seed", SEED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(command: &[&str]) -> Experiment {
        let mut found: Experiment =
            toml::from_str("[run]\nname = \"a\"\n[launch]\ncommand = [\"true\"]\n").unwrap();
        found.launch.command = command.iter().map(|word| (*word).to_owned()).collect();
        found
    }

    fn read(names: &[ProgramName]) -> ProgramFacts {
        ProgramFacts { source: SourceState::Read, names: names.iter().copied().collect(), is_typed: false }
    }

    #[test]
    fn contract_1_unknown_is_not_yes_where_a_result_rests() {
        let binary = Contract::of(&experiment(&["./simulate"]), &ProgramFacts::default());
        for promise in Promise::ALL {
            assert_eq!(binary.demand(&[promise]).is_err(), promise.bears_a_result(), "{promise:?}");
        }
        assert_eq!(binary.kept(Promise::Seed), Kept::Unknown);
        assert_eq!(binary.kept(Promise::Resume), Kept::Unknown);
        let template =
            Contract::of(&experiment(&["./simulate", "{seed}", "{resume}"]), &ProgramFacts::default());
        assert_eq!(template.demand(&[Promise::Seed, Promise::Resume]), Ok(()));
        let plain = Contract::of(&experiment(&["python3", "t.py"]), &read(&[]));
        assert_eq!((plain.kept(Promise::Seed), plain.kept(Promise::Resume)), (Kept::No, Kept::No));
        let reads =
            Contract::of(&experiment(&["python3", "t.py"]), &read(&[ProgramName::Seed, ProgramName::Resume]));
        assert_eq!(reads.demand(&[Promise::Seed, Promise::Resume]), Ok(()));
        assert!(plain.caution().is_some() && binary.caution().is_some() && reads.caution().is_none());
    }

    #[test]
    fn contract_2_promise_not_kept_has_reason_or_line() {
        let mut without_hook = experiment(&["python3", "t.py"]);
        without_hook.watch.python_hook = false;
        for own in [experiment(&["./simulate"]), experiment(&["python3", "t.py"]), without_hook] {
            for facts in [ProgramFacts::default(), read(&[])] {
                let contract = Contract::of(&own, &facts);
                assert_eq!(contract.terms().len(), Promise::ALL.len());
                for term in contract.terms().iter().filter(|term| term.kept != Kept::Yes) {
                    assert!(!term.text.is_empty() || !term.line.is_empty(), "{term:?}");
                }
                for promise in Promise::ALL {
                    let Err(refused) = contract.demand(&[promise]) else { continue };
                    assert!(!refused.hint.is_empty(), "{refused:?}");
                }
            }
        }
    }

    #[test]
    fn builtin_trainer_keeps_every_promise() {
        let builtin = Contract::of(&experiment(&[]), &ProgramFacts::default());
        assert_eq!(builtin.demand(&Promise::ALL), Ok(()));
        assert!(builtin.terms().iter().all(|term| term.kept == Kept::Yes) && builtin.caution().is_none());
    }

    #[test]
    fn contract_agrees_with_the_table() {
        let all = read(&[
            ProgramName::Seed,
            ProgramName::Resume,
            ProgramName::Report,
            ProgramName::Evaluation,
            ProgramName::Checkpoint,
            ProgramName::Stop,
        ]);
        for (command, runner) in
            [(&["python3", "t.py"][..], Runner::Hooked), (&["./t"], Runner::Other), (&[], Runner::Builtin)]
        {
            let mut own = experiment(command);
            own.watch.python_hook = runner != Runner::Other;
            let contract = Contract::of(&own, &all);
            for promise in Promise::ALL {
                let can = matches!(promise.cell(runner), PromiseCell::Yes(_));
                assert_eq!(contract.kept(promise), if can { Kept::Yes } else { Kept::No }, "{promise:?}");
            }
        }
    }

    #[test]
    fn hook_is_not_loaded_by_isolated_python() {
        for (command, expected) in [
            (&["python3", "t.py", "-I"][..], Kept::Yes),
            (&["uv", "run", "python", "-u", "-m", "pkg"], Kept::Yes),
            (&["python3", "-I", "t.py"], Kept::No),
            (&["python3", "-uE", "t.py"], Kept::No),
            (&["python3", "-W", "error", "t.py"], Kept::Yes),
            (&["bash", "run.sh"], Kept::Unknown),
            (&["./t"], Kept::Unknown),
        ] {
            assert_eq!(hook(&experiment(command)), expected, "{command:?}");
        }
    }

    #[test]
    fn names_are_found_outside_of_comments() {
        let of = |text: &str| names_in(text).into_iter().collect::<Vec<_>>();
        for (text, expected) in [
            (
                "import rankdeck\nrankdeck.report(1)\nrankdeck.eval(r)\n",
                &[ProgramName::Report, ProgramName::Evaluation][..],
            ),
            (
                "import rankdeck as rd\nif rd.should_stop(): rd.checkpoint(p)\n",
                &[ProgramName::Checkpoint, ProgramName::Stop],
            ),
            ("from rankdeck import seed, report\n", &[ProgramName::Seed, ProgramName::Report]),
            ("signal.signal(signal.SIGTERM, save)\n", &[ProgramName::Stop]),
            ("path = os.environ.get('RANKDECK_RESUME')\n", &[ProgramName::Resume]),
            ("os.environ['RANKDECK_SECRET']\n", &[ProgramName::Secret]),
            ("rank = int(os.environ[\"RANK\"])\n", &[ProgramName::Group]),
            ("subprocess.run('echo $RANK', shell=True)\n", &[ProgramName::Group]),
            ("# RANKDECK_SEED, SIGTERM\nmodel.eval()\nseed = 1\ntorch.utils.checkpoint.checkpoint(f)\n", &[]),
            ("MY_WORLD_SIZE = RANKDECK_RANK = 1\nprint('RANKS')\nXRANKDECK_SEED = 1\n", &[]),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn seed_line_has_the_template() {
        for (command, expected) in [
            (&["python3", "train.py"][..], &["python3", "train.py", "--seed", "{seed}"][..]),
            (&["python3", "t.py", "--seed", "1", "-x"], &["python3", "t.py", "--seed", "{seed}", "-x"]),
            (&["python3", "t.py", "--seed=1"], &["python3", "t.py", "--seed={seed}"]),
            (&["python3", "t.py", "train.seed=1"], &["python3", "t.py", "train.seed={seed}"]),
            (&["sh", "-c", "python3 t.py"], &["sh", "-c", "python3 t.py --seed {seed}"]),
        ] {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(with_seed(&command), expected);
        }
        let own = experiment(&["python3", "train.py"]);
        let hint = |facts| Contract::of(&own, &facts).demand(&[Promise::Seed]).unwrap_err().hint;
        let line = "command = [\"python3\", \"train.py\", \"--seed\", \"{seed}\"]";
        assert!(hint(read(&[])).contains(line) && toml::from_str::<toml::Table>(line).is_ok());
        let typed = ProgramFacts { is_typed: true, ..read(&[]) };
        let secret = experiment(&["python3", "t.py", "--api-key", "hunter2"]);
        assert!(!format!("{:?}", Contract::of(&secret, &typed)).contains("hunter2"));
        assert!(hint(typed).contains("rankdeck run -- python3 train.py --seed"));
    }
}
