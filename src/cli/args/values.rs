//! Values of flags, from text: ages, seconds, settings, ends of a run.

use rankdeck_types::plan::Until;

/// Seconds of `30d`, `12h`, `45m` or `10s`.
pub fn parse_age(text: &str) -> Result<f64, String> {
    let expected = "expected a number and d, h, m or s, such as 30d";
    let unit = text.chars().last().ok_or(expected)?;
    let seconds = match unit {
        'd' => 86_400.0,
        'h' => 3600.0,
        'm' => 60.0,
        's' => 1.0,
        _ => return Err(expected.to_owned()),
    };
    let number: f64 = text.trim_end_matches(unit).parse().map_err(|_| expected.to_owned())?;
    if number.is_finite() && number >= 0.0 { Ok(number * seconds) } else { Err(expected.to_owned()) }
}

pub fn parse_set(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        None if text.trim().starts_with('~') => Ok(text.to_owned()),
        _ => Err("expected KEY=VALUE, such as learn.gamma=0.98, or ~KEY to remove a key".to_owned()),
    }
}

pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0 to 86400".to_owned()),
    }
}

pub fn parse_until(text: &str) -> Result<Until, String> {
    let expected = "expected steps=N, iters=N, evals=N or seconds=N";
    let (kind, number) = text.split_once('=').ok_or(expected)?;
    // People write 1_000_000 and 1e6 for step counts.
    let plain = number.trim().replace('_', "");
    let n = plain
        .parse::<u64>()
        .ok()
        .or_else(|| {
            plain
                .parse::<f64>()
                .ok()
                .filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n))
                .map(|n| n as u64)
        })
        .ok_or_else(|| format!("`{number}` is not a whole number; {expected}"))?;
    match kind.trim() {
        "steps" => Ok(Until::Steps(n)),
        "iters" => Ok(Until::Iters(n)),
        "evals" => Ok(Until::Evals(n)),
        "seconds" => Ok(Until::Seconds(n)),
        _ => Err(expected.to_owned()),
    }
}

/// A weight of the past.
pub fn parse_weight(text: &str) -> Result<f64, String> {
    let weight = text.parse::<f64>().ok().filter(|weight| (0.0..=0.999).contains(weight));
    weight.ok_or_else(|| "a number from 0 to 0.999 is needed".to_owned())
}
