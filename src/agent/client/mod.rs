//! `rankdeck.py`, by which a Python program reports to its agent (docs/reporting.md).
//!
//! Owner: the program that imports it; the rules stand at its head. The hook puts it on `PYTHONPATH`, and
//! `rankdeck client` prints it.

/// The module.
pub const SOURCE: &str = include_str!("rankdeck.py");

#[cfg(test)]
mod tests;
