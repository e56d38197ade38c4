//! Chooses the output of a run: screen or lines.

use crate::app::headless::{LineFormat, PrintRate, Printer};
use crate::app::metrics::Endpoint;
use crate::app::output::ConsoleOutput;
use crate::app::output::LinearScreen;
use crate::app::screen::TerminalScreen;
use crate::app::stderr;
use crate::cli::args::OutputArgs;
use crate::cli::support::Failure;
use rankdeck_tui::Theme;
use rankdeck_tui::keys::read_keymap;
use rankdeck_types::ui::{GlyphsName, Notify, ThemeName, Ui};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The output of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// The full screen.
    Screen,
    /// Line mode: lines, and typed commands.
    Linear {
        /// Also print the ranks' log lines.
        logs: bool,
    },
    Lines(LineFormat),
}

/// The terminal of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TerminalInfo {
    /// Whether stdin and stdout are terminals.
    pub(crate) terminal: bool,
    /// Value of `TERM`.
    pub(crate) term: Option<String>,
}

impl TerminalInfo {
    /// Reads the environment and the standard streams of this process.
    pub(crate) fn here() -> TerminalInfo {
        TerminalInfo {
            terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
            term: std::env::var("TERM").ok(),
        }
    }
}

/// Chooses the output of a run. Without a terminal: lines. A terminal that cannot show a screen is an error.
pub(crate) fn choose(args: &OutputArgs, place: &TerminalInfo) -> Result<OutputMode, Failure> {
    if let Some(address) = args.metrics {
        let _ = METRICS.set(address);
    }
    if args.json {
        return Ok(OutputMode::Lines(LineFormat::Json));
    }
    if args.linear {
        let settings = ui_settings(args)?;
        let _ = UI.set(settings);
        return Ok(OutputMode::Linear { logs: args.logs });
    }
    if args.headless || !place.terminal {
        return Ok(OutputMode::Lines(LineFormat::Plain { logs: args.logs }));
    }
    match place.term.as_deref() {
        None | Some("" | "dumb") => Err(Failure::usage(format!(
            "the full-screen UI does not support this terminal (TERM={})",
            place.term.as_deref().unwrap_or("")
        ))
        .hint("use `--linear` or `--headless`, or set TERM to the terminal type, such as xterm-256color")),
        Some(_) => {
            let settings = ui_settings(args)?;
            // A process has one screen; the first call decides.
            let _ = UI.set(settings);
            Ok(OutputMode::Screen)
        }
    }
}

/// UI settings of this process, set by [`choose`].
static UI: OnceLock<Ui> = OnceLock::new();

/// Whether closing the screen of a run returns to the home screen.
static AT_HOME: AtomicBool = AtomicBool::new(false);

/// From now on, closing the screen of a run returns to the home screen.
pub(crate) fn stay_at_home() {
    AT_HOME.store(true, Ordering::Relaxed);
}

/// Whether closing the screen of a run returns to the home screen.
pub(crate) fn is_at_home() -> bool {
    AT_HOME.load(Ordering::Relaxed)
}

/// UI settings of this process; the defaults before [`choose`].
pub(crate) fn ui() -> Ui {
    UI.get().cloned().unwrap_or_default()
}

/// Address of the metrics endpoint, set by [`choose`].
static METRICS: OnceLock<SocketAddr> = OnceLock::new();

/// Opens the endpoint of `--metrics`.
pub(crate) async fn endpoint() -> Result<Option<Endpoint>, Failure> {
    let Some(address) = METRICS.get() else { return Ok(None) };
    let endpoint = Endpoint::open(Some(*address), None).await.map_err(|error| {
        Failure::usage(format!("--metrics {address}: {error}"))
            .hint("choose a free port with `--metrics ADDRESS:PORT`")
    })?;
    if let Some(address) = endpoint.address() {
        stderr::line(&format!("metrics at http://{address}/metrics"));
    }
    Ok(Some(endpoint))
}

/// When and how this process notifies the user.
pub(crate) fn notify() -> Result<Notify, Failure> {
    match UI.get() {
        Some(ui) => Ok(ui.notify.clone()),
        None => Ok(ui_settings(&OutputArgs::default())?.notify),
    }
}

/// `ui.toml`, overridden by the options.
fn ui_settings(args: &OutputArgs) -> Result<Ui, Failure> {
    let path = rankdeck_config::ui::path();
    let judge = |table: &str, lines: &[(String, String)]| match table {
        "keys" => read_keymap(lines).1,
        _ => Theme::dark().recolor(lines).1,
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

/// Print rate from the options.
pub(crate) fn pace(args: &OutputArgs) -> PrintRate {
    let every_ms = args.every.map(|seconds| (seconds * 1000.0) as u64);
    PrintRate { every_ms, quiet: args.quiet }
}

/// Opens the output; `log` takes stderr while a screen is up.
pub(crate) fn open(chosen: OutputMode, log: Option<File>, pace: PrintRate) -> Result<ConsoleOutput, Failure> {
    match chosen {
        OutputMode::Screen => {
            let screen = TerminalScreen::open(log, &ui()).map_err(|error| {
                Failure::failed(format!("cannot open the terminal: {error}")).hint("use `--headless`")
            })?;
            Ok(ConsoleOutput::Screen(Box::new(screen)))
        }
        OutputMode::Linear { logs } => LinearScreen::open(logs, pace, ui().read_only)
            .map(|screen| ConsoleOutput::Linear(Box::new(screen)))
            .map_err(Failure::no_thread),
        OutputMode::Lines(form) => Printer::paced(form, pace)
            .map(|printer| ConsoleOutput::Lines(Box::new(printer)))
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
    fn output_choice_depends_on_terminal() {
        let plain = OutputArgs::default();
        let lines = OutputMode::Lines(LineFormat::Plain { logs: false });
        assert_eq!(choose(&plain, &place(false, "dumb")), Ok(lines));
        assert_eq!(choose(&plain, &place(true, "xterm")), Ok(OutputMode::Screen));
        assert_eq!(choose(&OutputArgs { headless: true, ..plain.clone() }, &place(true, "dumb")), Ok(lines));
        assert_eq!(
            choose(&OutputArgs { json: true, ..plain.clone() }, &place(true, "xterm")),
            Ok(OutputMode::Lines(LineFormat::Json))
        );
        let refused = choose(&plain, &place(true, "dumb")).unwrap_err();
        assert!(refused.code == 2 && refused.to_string().contains("--headless"), "{refused}");
    }
}
