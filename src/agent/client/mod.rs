//! `rankdeck.py`: one file, made of two here, by which a Python program reports to its agent
//! (docs/EVENTS.md).
//!
//! Owner: the program that imports it; the rules stand at its head. The hook puts it on `PYTHONPATH`, and
//! `rankdeck client` prints it.

/// The module.
pub const SOURCE: &str = concat!(include_str!("rankdeck.py"), include_str!("logged.py"));

#[cfg(test)]
mod tests;
