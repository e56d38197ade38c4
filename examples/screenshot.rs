//! Draws docs/screen.svg from a real run: `cargo run --release --example screenshot -- CONSOLE PICTURE`.
//!
//! The console runs in a terminal of its own until it has something to show. Then the terminal's cells become
//! an SVG, and the run is stopped cleanly.

use portable_pty::{Child, CommandBuilder, PtySize, native_pty_system};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const COLUMNS: u16 = 110;
const ROWS: u16 = 34;
/// Training iterations until the curves have a shape.
const ITERATIONS: u64 = 150;
/// Until there is something to see, and until the run has ended.
const DEADLINE: Duration = Duration::from_secs(120);
/// No byte for this long: the frame is complete.
const QUIET: Duration = Duration::from_millis(60);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(console), Some(picture)) = (args.next(), args.next()) else {
        return Err("usage: screenshot CONSOLE PICTURE".into());
    };
    let console = Path::new(&console).canonicalize()?;
    let repository = std::env::current_dir()?;
    // The sample's hosts work in the current folder: run directories go away with this one.
    let folder = tempfile::Builder::new().prefix("rankdeck-").tempdir()?;
    let mut command = CommandBuilder::new(console);
    command.cwd(folder.path());
    command.arg("run");
    command.arg(repository.join("configs/cartpole_ppo.toml"));
    command.args(["--hosts".into(), repository.join("hosts.toml")]);
    // The sample is solved before its curves have a shape; this one runs until it is stopped.
    command.args(["--set", "eval.stop_value=501"]);
    for (name, value) in [("TERM", "xterm-256color"), ("COLORTERM", "truecolor"), ("LC_ALL", "C.UTF-8")] {
        command.env(name, value);
    }
    command.env_remove("NO_COLOR");
    let terminal = Terminal::start(command)?;
    let drawn = terminal
        .wait("evaluations and curves", |text| text.contains("running") && evaluated(text) >= ITERATIONS);
    let svg = drawn.map(|()| svg(terminal.lock().parser.screen()));
    // Also after a failure: nothing keeps running.
    let stopped = terminal.stop();
    std::fs::write(&picture, svg?)?;
    stopped
}

/// Iteration of the latest evaluation in the log pane.
fn evaluated(text: &str) -> u64 {
    let numbers =
        text.split("eval after iteration ").skip(1).filter_map(|rest| rest.split(',').next()?.parse().ok());
    numbers.max().unwrap_or(0)
}

/// What the console has drawn, and when it wrote last.
struct Drawn {
    parser: vt100::Parser,
    written: Instant,
}

/// The console in a terminal.
struct Terminal {
    drawn: Arc<Mutex<Drawn>>,
    child: Mutex<Box<dyn Child + Send + Sync>>,
    _master: Box<dyn portable_pty::MasterPty + Send>,
}

impl Terminal {
    fn start(command: CommandBuilder) -> Result<Terminal, Box<dyn Error>> {
        let size = PtySize { rows: ROWS, cols: COLUMNS, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size)?;
        let mut reader = pair.master.try_clone_reader()?;
        let child = pair.slave.spawn_command(command)?;
        drop(pair.slave);
        let parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        let drawn = Arc::new(Mutex::new(Drawn { parser, written: Instant::now() }));
        let theirs = Arc::clone(&drawn);
        std::thread::spawn(move || {
            let mut bytes = [0; 8192];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                let mut drawn = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                drawn.parser.process(&bytes[..read]);
                drawn.written = Instant::now();
            }
        });
        Ok(Terminal { drawn, child: Mutex::new(child), _master: pair.master })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the screen shows the expected text in a complete frame.
    fn wait(&self, what: &str, shows: impl Fn(&str) -> bool) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            let drawn = self.lock();
            let text = drawn.parser.screen().contents();
            if shows(&text) && drawn.written.elapsed() >= QUIET {
                return Ok(());
            }
            drop(drawn);
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!(
            "no {what} within {DEADLINE:?}; the screen shows:\n{}",
            self.lock().parser.screen().contents()
        )
        .into())
    }

    /// Stops the run as a first SIGTERM does; kills the console when it does not end.
    fn stop(&self) -> Result<(), Box<dyn Error>> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = child.process_id().and_then(|pid| i32::try_from(pid).ok()) {
            // SAFETY: kill has no memory effects, and the child has not been reaped.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            match child.try_wait()? {
                Some(status) if status.exit_code() == 130 => return Ok(()),
                Some(status) => {
                    return Err(format!(
                        "the console ended with {status:?}:\n{}",
                        self.lock().parser.screen().contents()
                    )
                    .into());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        child.kill()?;
        child.wait()?;
        Err("the console did not end after SIGTERM".into())
    }
}

const FONT_SIZE: f64 = 14.0;
const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
const MARGIN: f64 = 12.0;
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d5d8de";
/// The sixteen colours of the terminal.
const PALETTE: [&str; 16] = [
    "#16181d", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf", "#5c6370",
    "#ff7a85", "#b5e890", "#ffd68a", "#7cc0ff", "#dc8df2", "#6fd3df", "#ffffff",
];

/// How a run of cells looks.
#[derive(Clone, PartialEq)]
struct Style {
    colour: String,
    background: Option<String>,
    bold: bool,
    underline: bool,
    dim: bool,
}

fn svg(screen: &vt100::Screen) -> String {
    let width = f64::from(COLUMNS) * CELL_WIDTH + 2.0 * MARGIN;
    let height = f64::from(ROWS) * CELL_HEIGHT + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"'DejaVu Sans Mono',Menlo,Consolas,monospace\" \
         font-size=\"{FONT_SIZE}\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for row in 0..ROWS {
        let mut column = 0;
        while column < COLUMNS {
            let style = style(screen, row, column);
            let (from, mut cells) = (column, Vec::new());
            while column < COLUMNS && self::style(screen, row, column) == style {
                let cell = screen.cell(row, column);
                let shown = cell.and_then(|cell| cell.contents().chars().next()).unwrap_or(' ');
                cells.push((column, shown));
                column += if cell.is_some_and(vt100::Cell::is_wide) { 2 } else { 1 };
            }
            draw(&mut out, &style, &cells, row, from, column - from);
        }
    }
    out.push_str("</svg>\n");
    out
}

/// One run of cells of a row. Each character has its own place, so that columns stay aligned in every font.
fn draw(out: &mut String, style: &Style, cells: &[(u16, char)], row: u16, column: u16, width: u16) {
    let x = |column: u16| MARGIN + f64::from(column) * CELL_WIDTH;
    let y = MARGIN + f64::from(row) * CELL_HEIGHT;
    let colour = &style.colour;
    if let Some(background) = &style.background {
        let (left, width) = (x(column), f64::from(width) * CELL_WIDTH);
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{background}\"/>"
        );
    }
    let (dots, text): (Vec<_>, Vec<_>) =
        cells.iter().filter(|(_, c)| *c != ' ').partition(|(_, c)| ('\u{2800}'..='\u{28ff}').contains(c));
    if !dots.is_empty() {
        let path: String = dots.iter().map(|(column, c)| braille(x(*column), y, *c)).collect();
        let _ = writeln!(
            out,
            "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linecap=\"round\"/>"
        );
    }
    if text.is_empty() {
        return;
    }
    let mut attributes = String::new();
    for (holds, attribute) in [
        (style.bold, " font-weight=\"bold\""),
        (style.underline, " text-decoration=\"underline\""),
        (style.dim, " opacity=\"0.6\""),
    ] {
        attributes.push_str(if holds { attribute } else { "" });
    }
    let baseline = y + CELL_HEIGHT * 0.75;
    // Word by word: some programs take the place of the first character only.
    for word in text.chunk_by(|(left, _), (right, _)| left + 1 == *right) {
        let places: Vec<String> = word.iter().map(|(column, _)| format!("{:.1}", x(*column))).collect();
        let text: String = word.iter().map(|(_, c)| *c).collect();
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{baseline:.1}\" fill=\"{colour}\"{attributes}>{}</text>",
            places.join(" "),
            text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
        );
    }
}

/// The dots of a braille character as a path: few fonts have them at the right width.
fn braille(x: f64, y: f64, c: char) -> String {
    const PLACES: [(u8, u8); 8] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
    let bits = u32::from(c) - 0x2800;
    let dot = |(bit, (column, row)): (usize, &(u8, u8))| {
        let (x, y) = (
            x + CELL_WIDTH * (0.25 + 0.5 * f64::from(*column)),
            y + CELL_HEIGHT * (0.125 + 0.25 * f64::from(*row)),
        );
        (bits >> bit & 1 == 1).then(|| format!("M{x:.1} {y:.1}h0"))
    };
    PLACES.iter().enumerate().filter_map(dot).collect()
}

fn style(screen: &vt100::Screen, row: u16, column: u16) -> Style {
    let Some(cell) = screen.cell(row, column) else {
        return Style {
            colour: FOREGROUND.into(),
            background: None,
            bold: false,
            underline: false,
            dim: false,
        };
    };
    let (mut front, mut back) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
    if cell.inverse() {
        let shown = back.unwrap_or_else(|| BACKGROUND.into());
        back = Some(front.unwrap_or_else(|| FOREGROUND.into()));
        front = Some(shown);
    }
    Style {
        colour: front.unwrap_or_else(|| FOREGROUND.into()),
        background: back,
        bold: cell.bold(),
        underline: cell.underline(),
        dim: cell.dim(),
    }
}

/// `None` for the terminal's default.
fn colour(colour: vt100::Color) -> Option<String> {
    match colour {
        vt100::Color::Default => None,
        vt100::Color::Rgb(red, green, blue) => Some(format!("#{red:02x}{green:02x}{blue:02x}")),
        vt100::Color::Idx(index) => Some(match index {
            0..16 => PALETTE[usize::from(index)].into(),
            16..232 => {
                let level = |part: u8| if part == 0 { 0 } else { 55 + 40 * part };
                let cube = index - 16;
                let (red, green, blue) = (level(cube / 36), level(cube / 6 % 6), level(cube % 6));
                format!("#{red:02x}{green:02x}{blue:02x}")
            }
            232.. => {
                let gray = 8 + 10 * (index - 232);
                format!("#{gray:02x}{gray:02x}{gray:02x}")
            }
        }),
    }
}
