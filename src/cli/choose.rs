//! Screen or lines.

use super::Failure;
use super::args::OutputArgs;
use crate::shell::headless::{Form, Printer};
use crate::shell::output::Output;
use crate::shell::screen::Screen;
use std::fs::File;
use std::io::{self, IsTerminal};

/// The output that was asked for, or that fits where we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputChoice {
    /// The screen.
    Screen,
    /// Lines.
    Lines(Form),
}

/// Where we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalInfo {
    /// stdin and stdout are terminals.
    pub terminal: bool,
    /// `TERM`.
    pub term: Option<String>,
}

impl TerminalInfo {
    /// Looks around.
    pub fn here() -> TerminalInfo {
        TerminalInfo {
            terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
            term: std::env::var("TERM").ok(),
        }
    }
}

/// Decides. Without a terminal: lines; on a terminal that cannot show a screen: an error rather than garbage.
pub fn choose(args: &OutputArgs, place: &TerminalInfo) -> Result<OutputChoice, Failure> {
    if args.json {
        return Ok(OutputChoice::Lines(Form::Json));
    }
    if args.headless || !place.terminal {
        return Ok(OutputChoice::Lines(Form::Plain { logs: args.logs }));
    }
    match place.term.as_deref() {
        None | Some("" | "dumb") => Err(Failure::usage(format!(
            "this terminal cannot show a screen (TERM={})",
            place.term.as_deref().unwrap_or("")
        ))
        .hint(
            "`--headless` prints plain lines; or set TERM to what the terminal is, such as xterm-256color",
        )),
        Some(_) => Ok(OutputChoice::Screen),
    }
}

/// Opens it; `log` takes stderr while a screen is up.
pub fn open(chosen: OutputChoice, log: Option<File>) -> Result<Output, Failure> {
    match chosen {
        OutputChoice::Screen => {
            Screen::open(log).map(|screen| Output::Screen(Box::new(screen))).map_err(|error| {
                Failure::failed(format!("failed to take the terminal: {error}")).hint("`--headless`")
            })
        }
        OutputChoice::Lines(form) => {
            Printer::new(form).map(|printer| Output::Lines(Box::new(printer))).map_err(Failure::no_thread)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(terminal: bool, term: &str) -> TerminalInfo {
        TerminalInfo { terminal, term: Some(term.to_owned()) }
    }

    #[test]
    fn lines_without_a_terminal_screen_with_one_refusal_on_a_dumb_one() {
        let plain = OutputArgs::default();
        let lines = OutputChoice::Lines(Form::Plain { logs: false });
        assert_eq!(choose(&plain, &place(false, "dumb")), Ok(lines));
        assert_eq!(choose(&plain, &place(true, "xterm")), Ok(OutputChoice::Screen));
        assert_eq!(choose(&OutputArgs { headless: true, ..plain.clone() }, &place(true, "dumb")), Ok(lines));
        assert_eq!(
            choose(&OutputArgs { json: true, ..plain.clone() }, &place(true, "xterm")),
            Ok(OutputChoice::Lines(Form::Json))
        );
        let refused = choose(&plain, &place(true, "dumb")).unwrap_err();
        assert!(refused.code == 2 && refused.to_string().contains("--headless"), "{refused}");
    }
}
