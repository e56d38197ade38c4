//! The commands that can be typed: in the palette of the screen, and in line mode. One table for both.

/// A typed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table below describes each")]
pub enum Verb {
    Rank,
    Host,
    Log,
    Level,
    Search,
    Filter,
    Env,
    Signal,
    Sort,
    Panes,
    Cols,
    Axis,
    Smooth,
    Chart,
    Export,
    Compare,
    Media,
    Time,
    Theme,
    Glyphs,
    Set,
    Restart,
    Help,
    Status,
    Ranks,
    Waits,
    Stack,
    Continue,
    Add,
    Why,
    Find,
    Evals,
    Charts,
    Bins,
    Pictures,
    Checkpoints,
    Hosts,
    Events,
    Outcome,
    Stop,
    Kill,
    Detach,
    Play,
    Quit,
}

/// How a command is used: its arguments, and what it does.
pub type Usage = (&'static str, &'static str);

/// A row of the table.
#[derive(Debug)]
pub struct Word {
    /// Which command.
    pub verb: Verb,
    /// As it is typed.
    pub name: &'static str,
    /// In the palette; `None`: not there, or a key's command.
    pub screen: Option<Usage>,
    /// In line mode.
    pub lines: Option<Usage>,
}

const fn both(verb: Verb, name: &'static str, screen: Usage, lines: Usage) -> Word {
    Word { verb, name, screen: Some(screen), lines: Some(lines) }
}

const fn screen(verb: Verb, name: &'static str, arguments: &'static str, about: &'static str) -> Word {
    Word { verb, name, screen: Some((arguments, about)), lines: None }
}

const fn lines(verb: Verb, name: &'static str, arguments: &'static str, about: &'static str) -> Word {
    Word { verb, name, screen: None, lines: Some((arguments, about)) }
}

/// The table, in the order in which they are listed.
#[rustfmt::skip]
pub static WORDS: &[Word] = &[
    lines(Verb::Status, "status", "", "show progress and problems"),
    lines(Verb::Ranks, "ranks", "[TEXT]", "list ranks; with TEXT, those that match"),
    both(Verb::Rank, "rank", ("N", "show rank details"), ("N", "show rank details")),
    lines(Verb::Waits, "waits", "", "show wait times and the straggler"),
    lines(Verb::Stack, "stack", "N", "request a rank's stack; show it with `rank N`"),
    lines(Verb::Continue, "continue", "N", "continue a suspended rank (SIGCONT)"),
    both(Verb::Add, "add", ("[N]", "start a lost rank again; it joins the running group"),
        ("N", "start a lost rank again; it joins the running group")),
    screen(Verb::Host, "host", "NAME", "show a host's ranks"),
    both(Verb::Log, "log", ("[N|all] [TIME]", "show the log of a rank, or of all, at a time: 03:12, -5m"),
        ("N [LINES]", "show the last lines of a rank's log")),
    screen(Verb::Level, "level", "NAME", "set the log level: all, info, warnings, errors"),
    screen(Verb::Search, "search", "TEXT", "find the newest matching log line; N and n step"),
    lines(Verb::Find, "find", "TEXT", "show the last log lines with this text"),
    screen(Verb::Filter, "filter", "[TEXT]", "filter ranks; on the Logs page, the log"),
    both(Verb::Env, "env", ("RANK|pid:PID", "show a process's environment variables (secrets hidden)"),
        ("N", "request a rank's environment variables (secrets hidden); repeat to show them")),
    both(Verb::Signal, "signal", ("RANK|pid:PID NAME", "send a signal to a process: TERM, USR1 ... (asks)"),
        ("N NAME", "send a signal to a rank: TERM, USR1 ... (asks for confirmation)")),
    lines(Verb::Why, "why", "", "show the evidence for the verdicts"),
    screen(Verb::Sort, "sort", "COLUMN [up|down]", "sort the ranks"),
    screen(Verb::Panes, "panes", "[NAME=PERCENT]", "set sizes of ranks, charts, evals, events; alone: reset"),
    screen(Verb::Cols, "cols", "[+COLUMN] [-COLUMN]", "show columns first (+) or never (-); alone: reset"),
    screen(Verb::Axis, "axis", "steps|time|wall", "set the x axis of charts"),
    screen(Verb::Smooth, "smooth", "WEIGHT", "smooth the charts, 0 to 0.99"),
    screen(Verb::Chart, "chart", "NAME", "show or hide a series"),
    screen(Verb::Export, "export", "[csv|svg|png]", "export the shown series"),
    screen(Verb::Compare, "compare", "[RUN ...]", "overlay recorded runs on the charts; alone: none"),
    screen(Verb::Media, "media", "[NAME]", "show logged images"),
    lines(Verb::Evals, "evals", "[LINES]", "show the last evaluations"),
    lines(Verb::Charts, "charts", "", "show the newest value of every series"),
    lines(Verb::Bins, "bins", "NAME", "show the newest histogram of a series"),
    lines(Verb::Pictures, "pictures", "", "show the newest image of each name: step and size"),
    lines(Verb::Checkpoints, "checkpoints", "", "list checkpoints to restart from"),
    lines(Verb::Hosts, "hosts", "", "list hosts and GPUs"),
    lines(Verb::Events, "events", "[LINES]", "show the last events"),
    lines(Verb::Outcome, "outcome", "", "show the outcome: cause, last minute, losses"),
    screen(Verb::Time, "time", "[WHEN|now]", "go to a time: 03:12, -5m"),
    screen(Verb::Theme, "theme", "NAME", "set the theme: dark, light, mono, cvd"),
    screen(Verb::Glyphs, "glyphs", "NAME", "set the glyphs: braille, block, ascii"),
    screen(Verb::Set, "set", "KEY=VALUE ...", "restart with changed config keys"),
    both(Verb::Restart, "restart", ("[latest|best|scratch|CHECKPOINT] [code=new] [KEY=VALUE]",
        "restart from a checkpoint, with changed config keys"),
        ("[latest|best|scratch|CHECKPOINT] [code=new] [KEY=VALUE]",
        "restart from a checkpoint or from scratch (asks for confirmation)")),
    lines(Verb::Stop, "stop", "", "stop the run cleanly (asks for confirmation)"),
    lines(Verb::Kill, "kill", "", "kill the run (asks for confirmation)"),
    lines(Verb::Detach, "detach", "", "detach; the run keeps running"),
    lines(Verb::Play, "play", "", "show the policy in rank 0's evaluation"),
    lines(Verb::Quit, "quit", "", "quit (asks whether to detach or stop)"),
    lines(Verb::Help, "help", "", "list commands"),
];

/// The palette's command of this name.
pub fn on_screen(name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name == name && word.screen.is_some())
}

/// The palette's commands with their usage.
pub fn of_screen() -> impl Iterator<Item = (&'static Word, Usage)> {
    WORDS.iter().filter_map(|word| Some((word, word.screen?)))
}

/// Line mode's commands with their usage.
pub fn of_lines() -> impl Iterator<Item = (&'static Word, Usage)> {
    WORDS.iter().filter_map(|word| Some((word, word.lines?)))
}

/// Line mode's command of this name, or the only one that starts with it.
pub fn in_lines(typed: &str) -> Option<&'static Word> {
    let typed = match typed {
        "?" => "help",
        "exit" => "quit",
        // Its former name.
        "end" => "outcome",
        typed => typed,
    };
    let exact = of_lines().find(|(word, _)| word.name == typed);
    let mut starting = of_lines().filter(|(word, _)| !typed.is_empty() && word.name.starts_with(typed));
    let only = starting.next().filter(|_| starting.next().is_none());
    exact.or(only).map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_unique_names_and_texts() {
        for (i, word) in WORDS.iter().enumerate() {
            assert!(WORDS[i + 1..].iter().all(|other| other.name != word.name), "{}", word.name);
            let about = [word.screen, word.lines].into_iter().flatten();
            assert!(!word.name.contains(' ') && about.clone().count() > 0, "{}", word.name);
            assert!(about.into_iter().all(|(_, about)| !about.is_empty()), "{}", word.name);
        }
    }

    #[test]
    fn in_lines_takes_unambiguous_prefixes() {
        assert_eq!(in_lines("stat").map(|word| word.verb), Some(Verb::Status));
        assert_eq!(in_lines("rank").map(|word| word.verb), Some(Verb::Rank), "a whole name wins");
        assert_eq!(in_lines("st").map(|word| word.verb), None);
        assert_eq!(in_lines("exit").map(|word| word.verb), Some(Verb::Quit));
        assert_eq!(in_lines("end").map(|word| word.verb), Some(Verb::Outcome));
    }
}
