//! What a terminal can be sent beside frames: bell, notification, title, progress.

use rankdeck_core::model::{Model, RunState};
use rankdeck_core::report::Outcome;
use rankdeck_types::words::clean;

/// Remembers the terminal's own title.
pub const TITLE_KEPT: &str = "\x1b[22;0t";
/// Gives it back.
pub const TITLE_BACK: &str = "\x1b[23;0t";
/// Most characters of a title or a notification.
const LONGEST: usize = 120;

/// How a notification is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// iTerm2, WezTerm, ghostty.
    Osc9,
    /// foot, urxvt, VTE with a patch, WezTerm.
    Osc777,
    /// kitty.
    Osc99,
    /// The bell only.
    Bell,
}

/// What is known of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalFacts {
    way: Way,
    progress: bool,
    tmux: bool,
    title: bool,
}

/// State of a progress (OSC 9;4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// None.
    Off,
    /// Percent.
    At(u8),
    /// Percent, and something is wrong.
    Wrong(u8),
}

impl TerminalFacts {
    /// The terminal that this process runs in, by its environment.
    pub fn here() -> TerminalFacts {
        TerminalFacts::of(&|name| std::env::var(name).unwrap_or_default())
    }

    fn of(value: &dyn Fn(&str) -> String) -> TerminalFacts {
        let (term, program) = (value("TERM"), value("TERM_PROGRAM"));
        let set = |name: &str| !value(name).is_empty();
        let way = match program.as_str() {
            "iTerm.app" | "WezTerm" | "ghostty" => Way::Osc9,
            _ if set("KITTY_WINDOW_ID") || term == "xterm-kitty" => Way::Osc99,
            _ if value("LC_TERMINAL") == "iTerm2" => Way::Osc9,
            _ if term.starts_with("foot") || term.starts_with("rxvt-unicode") => Way::Osc777,
            _ => Way::Bell,
        };
        let progress =
            matches!(program.as_str(), "WezTerm" | "ghostty") || set("WT_SESSION") || set("ConEmuANSI");
        TerminalFacts {
            way,
            progress,
            tmux: set("TMUX"),
            title: term != "linux" && term != "dumb" && !term.is_empty(),
        }
    }

    /// Rings, and shows the text where the terminal can.
    pub fn notification(&self, text: &str) -> Vec<u8> {
        let text: String = clean(text).chars().filter(|c| *c != ';').take(LONGEST).collect();
        let sequence = match self.way {
            Way::Osc9 => format!("\x1b]9;{text}\x07"),
            Way::Osc777 => format!("\x1b]777;notify;rankdeck;{text}\x07"),
            Way::Osc99 => format!("\x1b]99;;{text}\x1b\\"),
            Way::Bell => String::new(),
        };
        format!("{}\x07", self.passed(&sequence)).into_bytes()
    }

    /// A title: the same bytes everywhere, tmux included.
    pub fn title(&self, text: &str) -> Vec<u8> {
        if !self.title {
            return Vec::new();
        }
        let text: String = clean(text).chars().take(LONGEST).collect();
        format!("\x1b]0;{text}\x07").into_bytes()
    }

    /// Remembers the title of before, or gives it back.
    pub fn keeps_title(&self) -> bool {
        self.title && !self.tmux
    }

    /// A progress, where the terminal has one.
    pub fn progress(&self, progress: Progress) -> Vec<u8> {
        if !self.progress {
            return Vec::new();
        }
        let sequence = match progress {
            Progress::Off => "\x1b]9;4;0\x07".to_owned(),
            Progress::At(percent) => format!("\x1b]9;4;1;{percent}\x07"),
            Progress::Wrong(percent) => format!("\x1b]9;4;2;{percent}\x07"),
        };
        self.passed(&sequence).into_bytes()
    }

    /// Through tmux, which keeps to itself what it does not know (`allow-passthrough`).
    fn passed(&self, sequence: &str) -> String {
        match self.tmux && !sequence.is_empty() {
            true => format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b")),
            false => sequence.to_owned(),
        }
    }
}

/// The run in a few words, and its progress.
pub fn state(model: &Model) -> (String, Progress) {
    let name = model.run.id.as_ref().map_or("rankdeck", |run| run.0.as_str());
    let goal = model.run.total_steps.filter(|goal| *goal > 0);
    let done = model.progress.as_ref().map_or(0, |progress| progress.totals.env_step);
    let percent = goal.map(|goal| (done.saturating_mul(100) / goal).min(100) as u8);
    let red = model.verdicts.first().filter(|_| model.run.state != RunState::Over);
    let red = red.filter(|verdict| verdict.severity == rankdeck_core::report::Severity::Red);
    match (model.run.state, red) {
        (RunState::Over, _) => {
            let sign = if model.run.outcome == Some(Outcome::Succeeded) { "✓" } else { "✗" };
            (format!("{sign} {name}"), Progress::Off)
        }
        (_, Some(verdict)) => {
            let whom = verdict.rank.map_or(String::new(), |rank| format!(" rank {rank}"));
            let name = format!("✗ {name}{whom} {}", verdict.verdict.name());
            (name, percent.map_or(Progress::Off, Progress::Wrong))
        }
        _ => match percent {
            Some(percent) => (format!("{percent}% {name}"), Progress::At(percent)),
            None => (name.to_owned(), Progress::Off),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pairs: &[(&str, &str)]) -> TerminalFacts {
        TerminalFacts::of(&|name| {
            pairs.iter().find(|(key, _)| *key == name).map_or(String::new(), |(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn notify_2_each_terminal_gets_what_it_understands_and_an_unknown_one_a_bell() {
        let text = |pairs: &[(&str, &str)]| {
            String::from_utf8(known(pairs).notification("a; b\x1b]0;x\x07")).unwrap()
        };
        assert_eq!(text(&[("TERM", "xterm-256color")]), "\x07");
        assert_eq!(text(&[("TERM_PROGRAM", "WezTerm")]), "\x1b]9;a b\x07\x07");
        assert_eq!(text(&[("TERM", "xterm-kitty")]), "\x1b]99;;a b\x1b\\\x07");
        assert_eq!(text(&[("TERM", "foot")]), "\x1b]777;notify;rankdeck;a b\x07\x07");
        let inside = [("TERM", "tmux-256color"), ("TMUX", "/x"), ("LC_TERMINAL", "iTerm2")];
        assert_eq!(text(&inside), "\x1bPtmux;\x1b\x1b]9;a b\x07\x1b\\\x07");
    }

    #[test]
    fn notify_2_a_progress_goes_only_to_terminals_that_have_one() {
        assert!(known(&[("TERM_PROGRAM", "iTerm.app")]).progress(Progress::At(5)).is_empty());
        assert_eq!(known(&[("WT_SESSION", "x")]).progress(Progress::Wrong(5)), b"\x1b]9;4;2;5\x07");
        assert_eq!(known(&[("TERM_PROGRAM", "ghostty")]).progress(Progress::Off), b"\x1b]9;4;0\x07");
        assert!(known(&[("TERM", "linux")]).title("x").is_empty());
        assert_eq!(known(&[("TERM", "xterm")]).title("x\x07y"), b"\x1b]0;xy\x07");
    }
}
