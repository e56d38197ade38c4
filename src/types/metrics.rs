//! Patterns of `[metrics]`, and the built-in ones.

use super::experiment::Metrics;
use super::meaning::Meaning;
use super::plan::PlanError;
use regex_lite::{Regex, RegexBuilder};

/// Most patterns of one experiment.
pub(crate) const PATTERNS: usize = 64;
/// Largest compiled pattern, bytes.
const SIZE: usize = 1 << 20;

/// Built-in sets of patterns, for `metrics.presets`.
pub(crate) const PRESETS: [(&str, &[&str]); 1] = [(
    "cleanrl",
    &[
        // `print(f"global_step={global_step}, episodic_return={info['episode']['r']}")`, with the array
        // brackets of newer Gymnasium.
        r"global_step=(?P<env_step>\d+), episodic_return=\[?\s*(?P<return>[-+0-9.eE]+|[-+]?nan|[-+]?inf)",
        r"^SPS: (?P<SPS>\d+)",
    ],
)];

/// Compiles the patterns in their order, presets first.
///
/// # Errors
/// All errors in presets and patterns, each with its key.
pub fn compile(metrics: &Metrics) -> Result<Vec<Regex>, Vec<PlanError>> {
    let (mut patterns, mut wrong) = (Vec::new(), Vec::new());
    for (index, name) in metrics.presets.iter().enumerate() {
        match PRESETS.iter().find(|(preset, _)| preset == name) {
            Some((_, texts)) => patterns.extend(texts.iter().filter_map(|text| pattern(text).ok())),
            None => {
                let known = PRESETS.map(|(name, _)| format!("`{name}`")).join(", ");
                wrong.push(PlanError::new(
                    format!("metrics.presets.{index}"),
                    format!("unknown preset `{name}`"),
                    format!("known presets: {known}"),
                ));
            }
        }
    }
    for (index, text) in metrics.stdout.iter().enumerate() {
        match pattern(text) {
            Ok(pattern) => patterns.push(pattern),
            Err((error, hint)) => {
                wrong.push(PlanError::new(format!("metrics.stdout.{index}"), error, hint));
            }
        }
    }
    for key in metrics.names.keys().filter(|key| Meaning::with_key(key).is_none()) {
        let known: Vec<String> = Meaning::ALL.iter().map(|meaning| format!("`{}`", meaning.key())).collect();
        wrong.push(PlanError::new(
            format!("metrics.names.{key}"),
            format!("unknown meaning `{key}`"),
            format!("known meanings: {}", known.join(", ")),
        ));
    }
    if patterns.len() > PATTERNS {
        let error = format!("{} patterns, limit {PATTERNS}", patterns.len());
        wrong.push(PlanError::new("metrics.stdout", error, "remove some patterns"));
    }
    if wrong.is_empty() { Ok(patterns) } else { Err(wrong) }
}

fn pattern(text: &str) -> Result<Regex, (String, String)> {
    let pattern = RegexBuilder::new(text).size_limit(SIZE).build().map_err(|error| {
        (
            format!("invalid pattern `{text}`: {error}"),
            "write it as a TOML literal string, in single quotes: 'loss=(?P<loss>[0-9.]+)'".to_owned(),
        )
    })?;
    match pattern.capture_names().flatten().next() {
        Some(_) => Ok(pattern),
        None => Err((
            format!("pattern `{text}` has no named group"),
            "name the value: `(?P<loss>[-+0-9.eE]+)`".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(presets: &[&str], stdout: &[&str]) -> Metrics {
        let own = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
        Metrics { presets: own(presets), stdout: own(stdout), ..Metrics::default() }
    }

    #[test]
    fn cleanrl_preset_matches_its_prints() {
        let patterns = compile(&with(&["cleanrl"], &[])).unwrap();
        let find = |line: &str| {
            patterns.iter().find_map(|pattern| pattern.captures(line)).map(|found| {
                let name = |name: &str| found.name(name).map(|value| value.as_str().to_owned());
                (name("env_step"), name("return"), name("SPS"))
            })
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(find("global_step=1234, episodic_return=21.0"), Some((some("1234"), some("21.0"), None)));
        assert_eq!(find("global_step=8, episodic_return=[-3.5]"), Some((some("8"), some("-3.5"), None)));
        assert_eq!(find("global_step=8, episodic_return=[nan]"), Some((some("8"), some("nan"), None)));
        assert_eq!(find("SPS: 2048"), Some((None, None, some("2048"))));
        assert_eq!(find("warning: SPS"), None);
    }

    #[test]
    fn invalid_pattern_names_its_key() {
        for (presets, stdout) in
            [(&["nope"][..], &[][..]), (&[][..], &["(", "x"][..]), (&[][..], &["loss=(.*)"][..])]
        {
            let wrong = compile(&with(presets, stdout)).unwrap_err();
            assert!(wrong.iter().all(|one| !one.cause.error.is_empty() && !one.cause.hint.is_empty()));
        }
        let wrong = compile(&with(&["cleanlr"], &["a(?P<a>b)", "("])).unwrap_err();
        let keys: Vec<&str> = wrong.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["metrics.presets.0", "metrics.stdout.1"]);
        let names = [("return".to_owned(), "x".to_owned()), ("retrun".to_owned(), "x".to_owned())].into();
        let wrong = compile(&Metrics { names, ..Metrics::default() }).unwrap_err();
        assert_eq!(wrong.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["metrics.names.retrun"]);
    }
}
