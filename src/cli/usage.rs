//! Errors of the command line: clap's, with a correction.

use crate::cli::home;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

/// Most experiments that an error lists.
const EXPERIMENTS: usize = 8;

/// Adds a tip to an error, or replaces words that explain nothing.
pub(super) fn explained(mut error: clap::Error) -> clap::Error {
    let has = |word: &str| error.context().any(|(_, what)| what.to_string().contains(word));
    let tip = match error.kind() {
        ErrorKind::ArgumentConflict if has("COMMAND") => Some(
            "a program needs no experiment file: `rankdeck run -- python train.py`; in a file, write \
             `command = [\"python\", \"train.py\"]` in `[launch]`"
                .to_owned(),
        ),
        ErrorKind::MissingRequiredArgument if has("EXPERIMENT") => Some(experiments()),
        ErrorKind::MissingRequiredArgument if has("<RUN>") => {
            Some("list runs with `rankdeck ps --all`; `@last` is the newest".to_owned())
        }
        ErrorKind::UnknownArgument if has("-v") && !has("--v") => {
            Some("`--version` prints the version".to_owned())
        }
        ErrorKind::ValueValidation => return number(error),
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The experiments of this directory, or how to do without one.
fn experiments() -> String {
    let files = home::experiments::paths();
    let shown: Vec<String> = files.iter().take(EXPERIMENTS).map(|path| path.display().to_string()).collect();
    let more = if files.len() > shown.len() { ", ..." } else { "" };
    match shown.is_empty() {
        true => "pass a program: `-- python train.py`; or write an experiment file with `rankdeck init`"
            .to_owned(),
        false => format!("experiments here: {}{more}", shown.join(", ")),
    }
}

/// Adds the expected number to an error of the parser, which names only the invalid digit.
fn number(error: clap::Error) -> clap::Error {
    let Some(why) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else {
        return error;
    };
    let expected = match why.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is out of range",
        _ => "expected a whole number",
    };
    let value = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (given, argument) = (value(ContextKind::InvalidValue), value(ContextKind::InvalidArg));
    let text = format!(
        "invalid value '{given}' for '{argument}': {expected}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

#[cfg(test)]
mod tests {
    use crate::cli::args::help::command;

    /// The error of a command line.
    fn error(words: &str) -> String {
        let found = command().try_get_matches_from(words.split(' '));
        super::explained(found.unwrap_err()).to_string()
    }

    #[test]
    fn wrong_command_line_says_what_to_type() {
        for (words, expected) in [
            ("rankdeck logs --tail x", "expected a whole number"),
            ("rankdeck logs --tail 99999999999999999999", "out of range"),
            ("rankdeck rm", "`rankdeck ps --all`"),
            ("rankdeck -v", "`--version`"),
            ("rankdeck run a.toml -- python", "needs no experiment file"),
        ] {
            let text = error(words);
            assert!(text.contains(expected), "{words}: {text}");
        }
        assert!(!error("rankdeck logs --verbose").contains("--version"));
    }
}
