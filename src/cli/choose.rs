//! Screen or lines.

use super::args::OutputArgs;
use super::{Failure, again};
use crate::shell::headless::{Form, Pace, Printer};
use crate::shell::linear::LinearScreen;
use crate::shell::metrics::Endpoint;
use crate::shell::output::Output;
use crate::shell::screen::Screen;
use crate::shell::stderr;
use rankdeck_tui::Theme;
use rankdeck_tui::keys::Keymap;
use rankdeck_types::ui::{GlyphsName, Notify, ThemeName, Ui};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The output that was asked for, or that fits where we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputChoice {
    /// The full screen.
    Screen,
    /// Lines, and words that are typed.
    Linear {
        /// The ranks' log lines too.
        logs: bool,
    },
    Lines(Form),
}

/// Where we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalInfo {
    /// stdin and stdout are terminals.
    pub terminal: bool,
    /// Value of `TERM`.
    pub term: Option<String>,
}

impl TerminalInfo {
    /// Reads the environment and the standard streams of this process.
    pub fn here() -> TerminalInfo {
        TerminalInfo {
            terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
            term: std::env::var("TERM").ok(),
        }
    }
}

/// Decides. Without a terminal: lines; on a terminal that cannot show a screen: an error rather than garbage.
pub fn choose(args: &OutputArgs, place: &TerminalInfo) -> Result<OutputChoice, Failure> {
    if let Some(address) = args.metrics {
        let _ = METRICS.set(address);
    }
    if args.json {
        return Ok(OutputChoice::Lines(Form::Json));
    }
    if args.linear {
        let wanted = wanted(args)?;
        let _ = UI.set(wanted);
        return Ok(OutputChoice::Linear { logs: args.logs });
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
            "`--linear` prints lines and takes words, `--headless` only prints; or set TERM to what the terminal is, \
             such as xterm-256color",
        )),
        Some(_) => {
            let wanted = wanted(args)?;
            // Of several screens in one process, the first decides; there is one.
            let _ = UI.set(wanted);
            Ok(OutputChoice::Screen)
        }
    }
}

/// How this process's screen is to look, once that is known.
static UI: OnceLock<Ui> = OnceLock::new();

/// Home comes back when a screen is left.
static AT_HOME: AtomicBool = AtomicBool::new(false);

/// From now on, whoever leaves the screen of a run goes back to home.
pub fn stay_at_home() {
    AT_HOME.store(true, Ordering::Relaxed);
}

/// Home is below the screens of this process.
pub fn is_at_home() -> bool {
    AT_HOME.load(Ordering::Relaxed)
}

/// How screens of this process look.
pub fn ui() -> Ui {
    UI.get().cloned().unwrap_or_default()
}

/// Where Prometheus is to ask, once that is known.
static METRICS: OnceLock<SocketAddr> = OnceLock::new();

/// Opens what `--metrics` asks for.
pub async fn endpoint() -> Result<Option<Endpoint>, Failure> {
    let Some(address) = METRICS.get() else { return Ok(None) };
    let endpoint = Endpoint::open(Some(*address), None).await.map_err(|error| {
        Failure::usage(format!("--metrics {address}: {error}"))
            .hint("`--metrics ADDRESS:PORT` with a free port")
    })?;
    if let Some(address) = endpoint.address() {
        stderr::line(&format!("metrics at http://{address}/metrics"));
    }
    Ok(Some(endpoint))
}

/// When this process calls its user, and how.
pub fn notify() -> Result<Notify, Failure> {
    match UI.get() {
        Some(ui) => Ok(ui.notify.clone()),
        None => Ok(wanted(&OutputArgs::default())?.notify),
    }
}

/// Nothing that is done at this console may change the run.
pub fn is_read_only(args: &OutputArgs) -> Result<bool, Failure> {
    Ok(wanted(args)?.read_only)
}

/// What `ui.toml` says, changed by what was typed.
fn wanted(args: &OutputArgs) -> Result<Ui, Failure> {
    let path = rankdeck_config::ui::path();
    let judge = |table: &str, lines: &[(String, String)]| match table {
        "keys" => Keymap::read(lines).1,
        _ => Theme::dark().recolour(lines).1,
    };
    let load = |path: PathBuf| rankdeck_config::ui::load(&path, judge);
    let mut ui = path.map(load).transpose()?.unwrap_or_default();
    match args.theme.as_deref() {
        Some("auto") => ui.theme = ThemeName::Auto,
        Some("dark") => ui.theme = ThemeName::Dark,
        Some("light") => ui.theme = ThemeName::Light,
        Some("mono") => ui.theme = ThemeName::Mono,
        Some("cvd") => ui.theme = ThemeName::Cvd,
        _ => {}
    }
    match args.glyphs.as_deref() {
        Some("auto") => ui.glyphs = GlyphsName::Auto,
        Some("braille") => ui.glyphs = GlyphsName::Braille,
        Some("block") => ui.glyphs = GlyphsName::Block,
        Some("ascii") => ui.glyphs = GlyphsName::Ascii,
        _ => {}
    }
    ui.read_only |= args.read_only;
    Ok(ui)
}

/// How much is printed.
pub fn pace(args: &OutputArgs) -> Pace {
    let every_ms = args.every.map(|seconds| (seconds * 1000.0) as u64);
    Pace { every_ms, quiet: args.quiet }
}

/// Opens it; `log` takes stderr while a screen is up.
pub fn open(chosen: OutputChoice, log: Option<File>, pace: Pace) -> Result<Output, Failure> {
    match chosen {
        OutputChoice::Screen => {
            let mut screen = Screen::open(log, &ui()).map_err(|error| {
                Failure::failed(format!("failed to take the terminal: {error}")).hint("`--headless`")
            })?;
            screen.view.steering.again = again::is_offered();
            screen.view.steering.edited = Some(again::edited);
            screen.view.steering.at_home = AT_HOME.load(Ordering::Relaxed);
            Ok(Output::Screen(Box::new(screen)))
        }
        OutputChoice::Linear { logs } => LinearScreen::open(logs, pace, ui().read_only)
            .map(|screen| Output::Linear(Box::new(screen)))
            .map_err(Failure::no_thread),
        OutputChoice::Lines(form) => Printer::paced(form, pace)
            .map(|printer| Output::Lines(Box::new(printer)))
            .map_err(Failure::no_thread),
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
