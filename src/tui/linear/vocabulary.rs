//! The words that can be typed, for parsing and for help.

use rankdeck_core::model::Model;
use rankdeck_core::report::VerdictReport;

/// A word that can be typed.
pub(super) struct Word {
    pub name: &'static str,
    pub arguments: &'static str,
    pub about: &'static str,
}

const fn word(name: &'static str, arguments: &'static str, about: &'static str) -> Word {
    Word { name, arguments, about }
}

pub(super) const WORDS: [Word; 25] = [
    word("status", "", "how far the run is, and what is wrong"),
    word("ranks", "[TEXT]", "every rank in a line; those with this text"),
    word("rank", "N", "everything about a rank"),
    word("waits", "", "how long ranks wait for each other, and for whom"),
    word("stack", "N", "ask for the stack of a rank; `rank N` then tells it"),
    word("continue", "N", "continue a rank that a signal has stopped"),
    word("env", "N", "the environment of a rank, without its secrets; ask again for the answer"),
    word("signal", "N NAME", "send a signal to a rank: TERM, USR1 ...; asks first"),
    word("why", "", "the evidence for what the watch says"),
    word("log", "N [LINES]", "the last lines of a rank's log"),
    word("find", "TEXT", "the last lines of all ranks with this text"),
    word("evals", "[LINES]", "the last evaluations"),
    word("charts", "", "the newest value of every series"),
    word("bins", "NAME", "how the values of the newest histogram of a name are spread"),
    word("pictures", "", "the newest picture of each name: its step and size"),
    word("checkpoints", "", "where a generation can begin"),
    word("hosts", "", "every host in a line, and every GPU"),
    word("events", "[LINES]", "what happened last"),
    word("end", "", "how the run ended, its last minute, what was lost"),
    word("stop", "", "stop the run; asks first"),
    word("kill", "", "kill every process of the run; asks first"),
    word("restart", "", "begin a new generation; asks from where"),
    word("detach", "", "leave; training goes on"),
    word("play", "", "the policy in rank 0's evaluation, while it goes on"),
    word("quit", "", "leave; asks how while ranks run"),
];

/// Lines that advise commands of a shell, with the words that do the same here.
pub(super) fn in_words(model: &Model, lines: Vec<String>) -> Vec<String> {
    let advised = model.verdicts.iter().flat_map(|verdict| {
        let found = verdict.card.actions.iter();
        found.filter_map(move |advice| Some((advice.command.as_str(), word_for(verdict, &advice.command)?)))
    });
    let mut advised: Vec<(&str, String)> = advised.collect();
    // One command may be the beginning of another.
    advised.sort_by_key(|(command, _)| std::cmp::Reverse(command.len()));
    let told = |line: String| advised.iter().fold(line, |line, (from, to)| line.replace(from, to));
    lines.into_iter().map(told).collect()
}

fn word_for(verdict: &VerdictReport, command: &str) -> Option<String> {
    let rank = verdict.rank.map(|rank| rank.to_string());
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["rankdeck", "logs", ..] => rank.map(|rank| format!("log {rank}")),
        ["rankdeck", "restart", ..] if !command.contains("--check-collectives") => Some("restart".into()),
        ["rankdeck", "stop", ..] => Some("stop".into()),
        ["kill", "-CONT", ..] => rank.map(|rank| format!("continue {rank}")),
        _ => None,
    }
}

pub(super) fn help() -> Vec<String> {
    let lines = WORDS.iter().map(|word| match word.arguments {
        "" => format!("{}: {}", word.name, word.about),
        arguments => format!("{} {arguments}: {}", word.name, word.about),
    });
    lines.chain(["The beginning of a word is enough where it is clear.".to_owned()]).collect()
}
