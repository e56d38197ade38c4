//! Arguments of `play`.

use super::HostKeyArgs;
use crate::shell::play::graphics::Graphics;
use clap::Args;
use std::path::PathBuf;

/// How pictures of environments are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Pictures {
    /// As the terminal can, by its name.
    #[default]
    Auto,
    /// kitty's protocol.
    Kitty,
    /// iTerm2's.
    Iterm2,
    /// Sixels.
    Sixel,
    /// Halves of blocks.
    Blocks,
}

impl Pictures {
    /// The protocol, `None` for characters.
    pub fn graphics(self) -> Option<Graphics> {
        match self {
            Pictures::Auto => Graphics::here(),
            Pictures::Kitty => Some(Graphics::Kitty),
            Pictures::Iterm2 => Some(Graphics::Iterm2),
            Pictures::Sixel => Some(Graphics::Sixel),
            Pictures::Blocks => None,
        }
    }
}

/// `play`.
#[derive(Debug, Args)]
pub struct PlayArgs {
    /// Which policy: `RUN` or `RUN:latest`, `RUN:best`, `RUN:ITERATION`, or a path on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH")]
    pub policy: String,
    /// How many episodes; default: until you leave, 3 for a recording, the run's `eval.episodes` without a
    /// screen.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub episodes: Option<u32>,
    /// Record into this file instead of showing it: FILE.cast (asciicast, all of the screen) or FILE.gif (the
    /// environment alone).
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// With --record: columns and rows.
    #[arg(long, value_name = "COLUMNSxROWS", value_parser = parse_size, default_value = "80x24")]
    pub size: (u16, u16),
    /// How pictures of environments are drawn.
    #[arg(long, value_enum, default_value_t = Pictures::Auto, value_name = "HOW")]
    pub pictures: Pictures,
    /// A line per episode instead of the screen; automatic without a terminal.
    #[arg(long)]
    pub headless: bool,
    /// Replace a recording that is there.
    #[arg(long)]
    pub force: bool,
    /// The interpreter for environments in Python; default: the run's `env.python`.
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
    /// Colours of the screen; default: what `ui.toml` says, or by the terminal's background.
    #[arg(long, value_name = "NAME", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub theme: Option<String>,
    /// Characters of the screen; default: what `ui.toml` says, or by the locale.
    #[arg(long, value_name = "NAME", value_parser = ["auto", "braille", "block", "ascii"])]
    pub glyphs: Option<String>,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

fn parse_size(text: &str) -> Result<(u16, u16), String> {
    let expected = "expected columns and rows from 20x8 to 400x200, such as 80x24";
    let (columns, rows) = text.split_once('x').ok_or(expected)?;
    match (columns.parse(), rows.parse()) {
        (Ok(columns), Ok(rows)) if (20..=400).contains(&columns) && (8..=200).contains(&rows) => {
            Ok((columns, rows))
        }
        _ => Err(expected.to_owned()),
    }
}
