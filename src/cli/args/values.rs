//! Values of options and how they are parsed: ages, times, settings, stop values, checkpoints, seeds and the
//! axes of sweeps.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use rankdeck_types::host::GpuSelection;
use rankdeck_types::ids::WallTime;
use rankdeck_types::plan::StopGoal;
use std::collections::BTreeSet;

/// Name of the latest checkpoint of a run.
pub(crate) const LATEST: &str = "latest";
/// Name of the newest run.
pub(crate) const LAST: &str = "@last";
/// Most trials of a sweep.
pub(crate) const MAX_TRIALS: usize = 10_000;
/// Accepted forms of a time.
const TIME_FORMS: &str = "expected 10m, 2h or 1d (ago), 03:12, 03:12:44, or 2026-11-23 03:12";

/// Parses `30d`, `12h`, `45m` or `10s`.
pub(crate) fn parse_age(text: &str) -> Result<f64, String> {
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

pub(crate) fn parse_set(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        None if text.trim().starts_with('~') => Ok(text.to_owned()),
        _ => Err("expected KEY=VALUE, such as learn.gamma=0.98, or ~KEY to unset a key".to_owned()),
    }
}

/// Parses `NAME=VALUE` into the override of a variable of the ranks.
pub(crate) fn parse_env(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, value)) if rankdeck_types::variables::is_name(name) => {
            Ok(format!("launch.env.{name}={}", toml::Value::String(value.to_owned())))
        }
        _ => Err("expected NAME=VALUE, such as WANDB_MODE=offline".to_owned()),
    }
}

/// Parses `0,1`, `all` or `auto`, as `gpus` in the hosts file.
pub(crate) fn parse_gpus(text: &str) -> Result<GpuSelection, String> {
    if matches!(text, "all" | "auto") {
        return Ok(GpuSelection::Word(text.to_owned()));
    }
    let indices: Option<Vec<u32>> = text.split(',').map(|index| index.trim().parse().ok()).collect();
    indices.map(GpuSelection::List).ok_or_else(|| "expected GPU indices such as 0,1, or all".to_owned())
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0 to 86400".to_owned()),
    }
}

pub(crate) fn parse_until(text: &str) -> Result<StopGoal, String> {
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
        "steps" => Ok(StopGoal::Steps(n)),
        "iters" => Ok(StopGoal::Iters(n)),
        "evals" => Ok(StopGoal::Evals(n)),
        "seconds" => Ok(StopGoal::Seconds(n)),
        _ => Err(expected.to_owned()),
    }
}

/// Parses a size in gigabytes.
pub(crate) fn parse_gb(text: &str) -> Result<f64, String> {
    let size = text.parse::<f64>().ok().filter(|size| (0.0..=1e6).contains(size));
    size.ok_or_else(|| "expected gigabytes, from 0 to 1000000".to_owned())
}

/// The override that `--max-copy-gb` stands for.
pub(crate) fn copy_limit(gb: Option<f64>) -> Option<String> {
    gb.map(|gb| format!("launch.max_copy_gb={gb:?}"))
}

/// Parses the weight of past values when smoothing, from 0 to 0.999.
pub(crate) fn parse_weight(text: &str) -> Result<f64, String> {
    let weight = text.parse::<f64>().ok().filter(|weight| (0.0..=0.999).contains(weight));
    weight.ok_or_else(|| "expected a number from 0 to 0.999".to_owned())
}

/// Parses `0,1`: two different ranks.
pub(crate) fn parse_rank_pair(text: &str) -> Result<(u32, u32), String> {
    let pair = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.filter(|(a, b): &(u32, u32)| a != b)
        .ok_or_else(|| "expected two different ranks, such as `0,1`".into())
}

/// Parses `80x24`: columns and rows of an animation.
pub(crate) fn parse_size(text: &str) -> Result<(u16, u16), String> {
    let expected = "expected columns and rows from 20x8 to 400x200, such as 80x24";
    let (columns, rows) = text.split_once('x').ok_or(expected)?;
    match (columns.parse(), rows.parse()) {
        (Ok(columns), Ok(rows)) if (20..=400).contains(&columns) && (8..=200).contains(&rows) => {
            Ok((columns, rows))
        }
        _ => Err(expected.to_owned()),
    }
}

/// Parses a time into seconds since the epoch, by this machine's clock and time zone.
pub(crate) fn parse_time(text: &str) -> Result<WallTime, String> {
    time_from(text.trim(), &Zoned::new(Timestamp::now(), TimeZone::system()))
}

fn time_from(text: &str, now: &Zoned) -> Result<WallTime, String> {
    let seconds = |at: Timestamp| at.as_millisecond() as f64 / 1000.0;
    if let Ok(age) = parse_age(text) {
        return Ok(seconds(now.timestamp()) - age);
    }
    // With a time zone, as logs of other programs have it.
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(seconds(at));
    }
    let zoned = |at: DateTime| at.to_zoned(now.time_zone().clone()).map_err(|error| error.to_string());
    if let Ok(at) = text.parse::<DateTime>() {
        return Ok(seconds(zoned(at)?.timestamp()));
    }
    let time = text.parse::<Time>().ok().filter(|_| text.contains(':')).ok_or(TIME_FORMS)?;
    let today = zoned(now.date().to_datetime(time))?;
    // The latest one that has been.
    let at = if today.timestamp() > now.timestamp() {
        today.checked_sub(1.day()).map_err(|error| error.to_string())?
    } else {
        today
    };
    Ok(seconds(at.timestamp()))
}

/// Formats a date and time of day: `11-23 03:12:44`; dashes if unknown.
pub(crate) fn time_text(time: Option<WallTime>) -> String {
    let at = time
        .filter(|time| *time > 0.0)
        .and_then(|time| Timestamp::from_millisecond((time * 1000.0) as i64).ok());
    at.map_or_else(
        || "--------------".into(),
        |at| at.to_zoned(TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string(),
    )
}

/// The checkpoint a run starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckpointSource {
    /// A file on rank 0's host.
    Path(String),
    /// A checkpoint of a run.
    Run {
        /// Name of the run, or a unique prefix of it.
        run: String,
        /// File name without extension.
        checkpoint: String,
    },
}

/// File name, without extension, of a checkpoint of the built-in trainer: `latest`, `best`, an iteration, or
/// one of these from an earlier generation (`gen0/best`).
pub(crate) fn checkpoint_stem(name: &str) -> Option<String> {
    if let Some((folder, name)) = name.split_once('/') {
        let generation = folder.strip_prefix("gen")?.parse::<u32>().ok()?;
        return checkpoint_stem(name)
            .filter(|stem| !stem.contains('/'))
            .map(|stem| format!("gen{generation}/{stem}"));
    }
    match name {
        LATEST | "best" => Some(name.to_owned()),
        number => number.parse::<u64>().ok().map(|number| format!("iter-{number}")),
    }
}

/// Parses `RUN`, `RUN:latest`, `RUN:best`, `RUN:ITERATION`, `RUN:gen0/best` or a path.
pub(crate) fn parse_checkpoint(text: &str) -> Result<CheckpointSource, String> {
    let (run, checkpoint) = text.split_once(':').unwrap_or((text, LATEST));
    let earlier = !run.contains('/') && checkpoint.contains('/') && checkpoint_stem(checkpoint).is_some();
    if text.contains('/') && !earlier {
        return Ok(CheckpointSource::Path(text.to_owned()));
    }
    let checkpoint =
        checkpoint_stem(checkpoint).ok_or("expected RUN, RUN:latest, RUN:best, RUN:ITERATION or a path")?;
    match run.is_empty() || run.ends_with(".ckpt") {
        true => Err("expected a run, or the path of a checkpoint with a `/` in it".to_owned()),
        false => Ok(CheckpointSource::Run { run: run.to_owned(), checkpoint }),
    }
}

/// Seeds given by `--seeds`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SweepSeeds(pub(crate) Vec<u64>);

/// A key of a sweep with each of its values, as `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SweepAxis(pub(crate) Vec<String>);

/// Parses `1..10`, `1-10` or `1,2,5`; ranges include both ends.
pub(crate) fn parse_seeds(text: &str) -> Result<SweepSeeds, String> {
    let expected = || "expected seeds such as 1..10 or 1,2,5".to_owned();
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once("..").or_else(|| part.split_once('-')).unwrap_or((part, part));
        let number = |text: &str| text.trim().trim_start_matches('=').parse::<u64>().map_err(|_| expected());
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first >= MAX_TRIALS as u64 {
            return Err(expected());
        }
        seeds.extend(first..=last);
    }
    let mut seen = BTreeSet::new();
    match seeds.iter().find(|seed| !seen.insert(**seed)) {
        Some(twice) => Err(format!("seed {twice} is listed twice")),
        None => Ok(SweepSeeds(seeds)),
    }
}

/// Parses `KEY=VALUE,VALUE,...`. Commas within brackets, braces and quotes do not separate values.
pub(crate) fn parse_axis(text: &str) -> Result<SweepAxis, String> {
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
    Ok(SweepAxis(all.iter().map(|value| format!("{}={}", key.trim(), value.trim())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_parses_age_time_of_day_and_date() {
        let now = "2026-11-23T07:30:00Z".parse::<Timestamp>().unwrap().to_zoned(TimeZone::UTC);
        let zero = now.timestamp().as_second() as f64;
        let ago = |text: &str| time_from(text, &now).map(|at| zero - at);
        assert_eq!(ago("10m"), Ok(600.0));
        assert_eq!(ago("1.5h"), Ok(5400.0));
        assert_eq!(ago("07:29"), Ok(60.0));
        assert_eq!(ago("07:29:30"), Ok(30.0));
        assert_eq!(ago("07:31"), Ok(86_400.0 - 60.0), "it was yesterday");
        assert_eq!(ago("2026-11-23 07:00"), Ok(1800.0));
        assert_eq!(ago("2026-11-23T07:00:00Z"), Ok(1800.0));
        assert_eq!(ago("2026-11-23T08:00:00+01:00"), Ok(1800.0));
        for wrong in ["", "yesterday", "25:00", "10", "10x", "-"] {
            assert!(time_from(wrong, &now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn checkpoint_sources_are_parsed() {
        let run = |run: &str, checkpoint: &str| {
            Ok(CheckpointSource::Run { run: run.to_owned(), checkpoint: checkpoint.to_owned() })
        };
        assert_eq!(parse_checkpoint("ppo-2026"), run("ppo-2026", "latest"));
        assert_eq!(parse_checkpoint("ppo:best"), run("ppo", "best"));
        assert_eq!(parse_checkpoint("ppo:120"), run("ppo", "iter-120"));
        assert_eq!(parse_checkpoint("ppo:gen0/best"), run("ppo", "gen0/best"));
        assert_eq!(parse_checkpoint("ppo:gen12/40"), run("ppo", "gen12/iter-40"));
        for path in ["gen0/best", "ppo:genx/best", "ppo:gen0/x.ckpt", "ppo:gen0/gen1/best"] {
            assert_eq!(parse_checkpoint(path), Ok(CheckpointSource::Path(path.into())), "{path}");
        }
        assert_eq!(parse_checkpoint("/x/a.ckpt"), Ok(CheckpointSource::Path("/x/a.ckpt".into())));
        assert_eq!(parse_checkpoint("runs/a:b/x.ckpt"), Ok(CheckpointSource::Path("runs/a:b/x.ckpt".into())));
        for wrong in ["", ":best", "ppo:", "ppo:newest", "x.ckpt", "ppo:-1"] {
            assert!(parse_checkpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn gpus_are_indices_or_all() {
        assert_eq!(parse_gpus("0, 3"), Ok(GpuSelection::List(vec![0, 3])));
        assert_eq!(parse_gpus("all"), Ok(GpuSelection::Word("all".into())));
        for wrong in ["", "some", "1,,2", "-1"] {
            assert!(parse_gpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variable_is_an_override() {
        assert_eq!(parse_env("A=b \"c\"=1"), Ok("launch.env.A='b \"c\"=1'".to_owned()));
        assert_eq!(parse_env("A="), Ok("launch.env.A=\"\"".to_owned()));
        for wrong in ["", "A", "=1", "a-b=1"] {
            assert!(parse_env(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seeds_and_axes_are_parsed() {
        assert_eq!(parse_seeds("1..3"), Ok(SweepSeeds(vec![1, 2, 3])));
        assert_eq!(parse_seeds("1-2,7"), Ok(SweepSeeds(vec![1, 2, 7])));
        for wrong in ["", "x", "3..1", "1..", "-1", "0..99999999", "1,1", "1..3,2"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_axis("a.b=1, 2"), Ok(SweepAxis(vec!["a.b=1".into(), "a.b=2".into()])));
        assert_eq!(
            parse_axis("p.hidden=[64,64],[32]"),
            Ok(SweepAxis(vec!["p.hidden=[64,64]".into(), "p.hidden=[32]".into()]))
        );
        assert_eq!(parse_axis("a=\"x,y\",z"), Ok(SweepAxis(vec!["a=\"x,y\"".into(), "a=z".into()])));
        for wrong in ["", "a", "=1", "a=", "a=1,,2"] {
            assert!(parse_axis(wrong).is_err(), "{wrong}");
        }
    }
}
