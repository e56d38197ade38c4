//! A text that is no TOML, told with what its line means for the key that it is about.

use super::check::meant;
use super::diagnostic::{Diagnostics, Source};
use super::document::{self, Node};
use super::syntax;
use rankdeck_types::schema::{self, Key, Keys};
use std::sync::Arc;

/// Parses a text whose tables are `keys`; all syntax errors at once.
pub fn parse(source: &Arc<Source>, keys: Keys) -> Result<Node, Diagnostics> {
    document::parse(source).map_err(|mut mistakes| {
        for mistake in &mut mistakes.0 {
            let Some(place) = mistake.place().filter(|_| document::is_syntax(mistake)) else { continue };
            if let Some(hint) = line_meant(&source.text, place.range.start, keys) {
                mistake.hint = hint;
            }
        }
        mistakes
    })
}

/// The line to write in place of the one at this byte.
fn line_meant(text: &str, at: usize, keys: Keys) -> Option<String> {
    let line = document::line_at(text, at);
    let line = line.split(" #").next().unwrap_or_default().trim();
    let (name, value) = syntax::assignment(line)?;
    let key = key_at(text, at, name, keys)?;
    let is_whole = line.parse::<toml::Table>().is_ok();
    // An open quote, or quotes as word processors write them.
    let value = value.trim_start_matches('=').trim();
    let inner = value.trim_matches(['"', '\'', '\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}']);
    let has_more = inner.contains(['"', '\'', '=', '\\', '\u{201c}', '\u{201d}']);
    if is_whole || has_more || inner.is_empty() || syntax::word(inner) == Some(syntax::Word::Nothing) {
        return None;
    }
    Some(format!("write `{name} = {}`", meant::value(key, inner)?))
}

/// The key of this name in the table that the byte is in.
fn key_at(text: &str, at: usize, name: &str, keys: Keys) -> Option<&'static Key> {
    let before = text.get(..at).unwrap_or(text);
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let headers = before[..begin].lines().rev().map(str::trim);
    let header = headers.filter(|line| line.starts_with('[')).find_map(|line| {
        let inner = line.split('#').next()?.trim().strip_prefix('[')?.strip_suffix(']')?;
        Some(inner.trim_start_matches('[').trim_end_matches(']').trim())
    });
    let path: Vec<&str> =
        header.into_iter().flat_map(|header| header.split('.')).chain(name.split('.')).collect();
    schema::find(keys, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;
    use rankdeck_types::host::Hosts;

    #[test]
    fn a_line_that_is_no_toml_is_told_as_its_key_takes_it() {
        let told = |keys: Keys, text: &str| {
            let source = Arc::new(Source::new("f", text));
            parse(&source, keys).unwrap_err().0[0].hint.clone()
        };
        for (text, line) in [
            ("[learn]\ngamma = 0,99\n", "gamma = 0.99"),
            ("[policy]\nhidden = (64, 64)\n", "hidden = [64, 64]"),
            ("[policy]\nhidden = 64, 64\n", "hidden = [64, 64]"),
            ("[run]\ntotal_steps = 10^6\n", "total_steps = 1000000"),
            ("[launch] # of all\nstop_grace_s = 10m\n", "stop_grace_s = 600"),
            ("[run]\nname = ppo\n", "name = \"ppo\""),
            ("[launch]\ncommand = python train.py\n", "command = [\"python\", \"train.py\"]"),
            ("[learn]\nanneal_lr = True\n", "anneal_lr = true"),
        ] {
            assert_eq!(told(Experiment::KEYS, text), format!("write `{line}`"), "{text}");
        }
        for (text, line) in [
            ("[[host]]\nname = gpu-a\n", "name = \"gpu-a\""),
            ("[[host]]\nname = \"a\"\ngpus = 0, 1\n", "gpus = [0, 1]"),
            ("[defaults]\nenv = A=1 B=2\n", ""),
        ] {
            let hint = told(Hosts::KEYS, text);
            assert!(hint == format!("write `{line}`") || line.is_empty(), "{text}: {hint}");
        }
    }
}
