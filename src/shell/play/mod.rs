//! A policy at play: on the terminal, or into a recording. `rankdeck-trainer` plays and prints a line per
//! step ([`player`]); [`Play`](rankdeck_tui::play::Play) says what is shown when.
//!
//! ```text
//! player    the trainer as a child, and its lines
//! screen    the terminal: keys, frames, pictures
//! graphics  pictures as kitty, iTerm2 and sixel take them
//! record    recordings: asciicast and GIF
//! png, gif  the formats of pictures
//! ```

mod gif;
pub mod graphics;
pub mod player;
mod png;
pub mod record;
pub mod screen;

pub use png::png;
