//! What `--seeds` and `--sweep` name. Pure.

use std::collections::BTreeSet;

/// Most cells of a sweep.
pub const CELLS: usize = 10_000;

/// What `--seeds` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// A key with each of its values, `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis(pub Vec<String>);

/// Numbers of `1..10`, `1-10` or `1,2,5`; both ends of a range are in it.
pub fn parse_seeds(text: &str) -> Result<Seeds, String> {
    let expected = || "expected seeds such as 1..10 or 1,2,5".to_owned();
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once("..").or_else(|| part.split_once('-')).unwrap_or((part, part));
        let number = |text: &str| text.trim().trim_start_matches('=').parse::<u64>().map_err(|_| expected());
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first >= CELLS as u64 {
            return Err(expected());
        }
        seeds.extend(first..=last);
    }
    let mut seen = BTreeSet::new();
    match seeds.iter().find(|seed| !seen.insert(**seed)) {
        Some(twice) => Err(format!("seed {twice} is named twice; a run with it would be the same again")),
        None => Ok(Seeds(seeds)),
    }
}

/// `KEY=VALUE,VALUE,...`: a key and its values. Commas within brackets, braces and quotes separate nothing.
pub fn parse_axis(text: &str) -> Result<Axis, String> {
    let (key, values) = text
        .split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .ok_or_else(|| "expected KEY=VALUE,VALUE, such as learn.learning_rate=1e-4,3e-4".to_owned())?;
    let (mut depth, mut quote, mut one, mut all) = (0_i32, None, String::new(), Vec::new());
    for letter in values.chars() {
        match (letter, quote) {
            (',', None) if depth == 0 => all.push(std::mem::take(&mut one)),
            (letter, quote_now) => {
                match (letter, quote_now) {
                    ('[' | '{', None) => depth += 1,
                    (']' | '}', None) => depth -= 1,
                    ('"' | '\'', None) => quote = Some(letter),
                    (letter, Some(open)) if letter == open => quote = None,
                    _ => {}
                }
                one.push(letter);
            }
        }
    }
    all.push(one);
    if all.iter().any(|value| value.trim().is_empty()) {
        return Err(format!("`{key}` has an empty value"));
    }
    Ok(Axis(all.iter().map(|value| format!("{}={}", key.trim(), value.trim())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_values_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_seeds("1..3"), Ok(Seeds(vec![1, 2, 3])));
        assert_eq!(parse_seeds("1-2,7"), Ok(Seeds(vec![1, 2, 7])));
        for wrong in ["", "x", "3..1", "1..", "-1", "0..99999999", "1,1", "1..3,2"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_axis("a.b=1, 2"), Ok(Axis(vec!["a.b=1".into(), "a.b=2".into()])));
        assert_eq!(
            parse_axis("p.hidden=[64,64],[32]"),
            Ok(Axis(vec!["p.hidden=[64,64]".into(), "p.hidden=[32]".into()]))
        );
        assert_eq!(parse_axis("a=\"x,y\",z"), Ok(Axis(vec!["a=\"x,y\"".into(), "a=z".into()])));
        for wrong in ["", "a", "=1", "a=", "a=1,,2"] {
            assert!(parse_axis(wrong).is_err(), "{wrong}");
        }
    }
}
