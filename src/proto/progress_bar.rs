//! Progress bars in the output of programs: tqdm's, rich's, Lightning's and Keras'. Pure.
//!
//! Invariants:
//! - BAR-1: any text is read in time that grows with its length, and gives a bar only in one of these forms:
//!   `n/total [elapsed<left, rate]`, `nunit [elapsed, rate]`, `n/total elapsed • left rate`, `━━━ 45% left`,
//!   `n/total ━━━ left time/unit`.

use rankdeck_types::meaning::{Meaning, Meanings};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Most places of a line at which a bar is looked for.
const PLACES: usize = 8;
/// Longest label and unit, characters.
const LABEL: usize = 40;
const UNIT: usize = 16;
/// Largest amount: all integers up to it are exact.
const AMOUNT: f64 = 9e15;
/// A bar not seen for this long no longer stands for the run.
const STALE: Duration = Duration::from_secs(60);
/// The same for a slow one, in steps of it.
const STALE_STEPS: f64 = 3.0;

/// Progress of a program as its bar shows it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownProgress {
    /// Completed amount.
    pub done: u64,
    /// Amount at the end; `None` if the bar shows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What is counted: `it`, `epoch`; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Amount per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// Seconds to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// Label of the bar: `Epoch 3`; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl ShownProgress {
    /// Returns `20 of 1,800 it`.
    pub fn amount(&self) -> String {
        let total = self.total.map_or(String::new(), |total| format!(" of {}", words::count(total)));
        let done = words::count(self.done);
        match self.unit.as_str() {
            "" => format!("{done}{total}"),
            "%" => format!("{done}%"),
            // Counts of the program itself, by their names.
            unit if Meaning::with_key(unit).is_some_and(Meaning::is_count) => format!("{unit} {done}{total}"),
            unit => format!("{done}{total} {unit}"),
        }
    }

    /// Returns whether it shows this count of the program: `epoch 162` is the epoch of that number.
    pub fn shows(&self, name: &str, at: f64) -> bool {
        let count = |name: &str| {
            let meaning = Meaning::with_key(name).or_else(|| Meanings::default().of(name));
            meaning.filter(|meaning| meaning.is_count())
        };
        let is_same = self.unit == name || count(&self.unit).is_some_and(|own| count(name) == Some(own));
        is_same && (at - self.done as f64).abs() < 0.5
    }

    /// Returns the completed share, 0 to 1.
    pub fn share(&self) -> Option<f64> {
        let total = self.total.filter(|total| *total > 0)?;
        Some((self.done as f64 / total as f64).min(1.0))
    }

    /// Returns whether it has reached its end.
    pub fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.done >= total)
    }

    /// Returns seconds to the end, `age_s` after it was shown.
    pub fn eta_after(&self, age_s: f64) -> Option<f64> {
        self.eta_s.filter(|_| !self.is_complete()).map(|eta| (eta - age_s.max(0.0)).max(0.0))
    }

    /// Limits texts and numbers of a record.
    #[must_use]
    pub fn checked(mut self) -> ShownProgress {
        let is_plain = |value: &f64| value.is_finite() && *value >= 0.0;
        self.per_s = self.per_s.filter(is_plain);
        self.eta_s = self.eta_s.filter(is_plain);
        self.label = words::clip(&self.label, LABEL);
        self.unit = words::clip(&self.unit, UNIT);
        self
    }
}

/// A counter of a program that reports no environment steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShownCounter {
    /// What is counted: `epoch`.
    pub unit: String,
    pub at: f64,
}

/// A bar in a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar<'a> {
    pub progress: ShownProgress,
    /// Seconds since it began.
    pub elapsed_s: f64,
    /// The text behind the rate, where programs show values.
    pub values: &'a str,
}

/// Returns the bar in a line of output without escape sequences.
pub fn parse(line: &str) -> Option<Bar<'_>> {
    let mut places = line.match_indices('[').take(PLACES);
    places.find_map(|(open, _)| bracketed(line, open)).or_else(|| dotted(line)).or_else(|| drawn(line))
}

/// Returns whether a line may have a bar: most have none.
pub fn may_be(line: &str) -> bool {
    line.contains(['[', '•', LINE])
}

/// `n/total [elapsed<left, rate, values]`, and the same without a total.
fn bracketed(line: &str, open: usize) -> Option<Bar<'_>> {
    let (elapsed_s, rest) = clock(line[open + 1..].trim_start())?;
    let rest = rest.trim_start();
    let (has_left, left, rest) = match rest.strip_prefix('<') {
        Some(rest) => {
            let (left, rest) = clock_or_none(rest.trim_start())?;
            (true, left, rest.trim_start())
        }
        None => (false, None, rest),
    };
    let (speed, values) = match rest.strip_prefix(',') {
        Some(rest) => {
            let end = rest.find([',', ']']).unwrap_or(rest.len());
            let values = rest[end..].trim_start_matches(',');
            (rest[..end].trim(), values.rsplit_once(']').map_or(values, |(inside, _)| inside))
        }
        None if rest.is_empty() || rest.starts_with(']') => ("", ""),
        None => return None,
    };
    // Without a time to the end, a rate makes it a bar.
    if !has_left && !speed.contains('/') {
        return None;
    }
    let amount = Amount::at_end(line[..open].trim_end(), has_left)?;
    finish(amount, elapsed_s, left, speed, values)
}

/// `n/total elapsed • left rate values`.
fn dotted(line: &str) -> Option<Bar<'_>> {
    let (before, after) = line.split_once('•')?;
    let (head, elapsed) = before.trim_end().rsplit_once(' ')?;
    let (elapsed_s, "") = clock(elapsed)? else { return None };
    let (left, rest) = clock_or_none(after.trim_start())?;
    let rest = rest.trim_start();
    let (speed, values) = rest.split_once(' ').unwrap_or((rest, ""));
    let (speed, values) = if speed.contains('/') { (speed, values) } else { ("", rest) };
    finish(Amount::at_end(head.trim_end(), true)?, elapsed_s, left, speed, values)
}

/// Of such signs, rich and Keras draw a bar.
const LINE: char = '━';
const DRAWN: [char; 3] = [LINE, '╸', '╺'];
/// Shortest bar, signs.
const SIGNS: usize = 5;

/// `label ━━━━━ 45% left` of rich's default, `n/total ━━━━━ left time/unit - values` of Keras. Where a bar is shorter,
/// its signs may mean something else.
fn drawn(line: &str) -> Option<Bar<'_>> {
    let at = line.find(DRAWN)?;
    let (head, rest) = line.split_at(at);
    let after = rest.trim_start_matches(DRAWN);
    if rest.chars().take_while(|sign| DRAWN.contains(sign)).count() < SIGNS {
        return None;
    }
    let after = after.trim_start();
    let (first, rest) = after.split_once(' ').unwrap_or((after, ""));
    if let Some(share) = first.strip_suffix('%') {
        let done = share.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share))?;
        let (eta_s, _) = clock_or_none(rest.trim_start())?;
        let (done, label) = (done.round() as u64, label(head).to_owned());
        let progress =
            ShownProgress { done, total: Some(100), unit: "%".to_owned(), per_s: None, eta_s, label };
        return Some(Bar { progress: progress.checked(), elapsed_s: 0.0, values: "" });
    }
    let (speed, values) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
    let is_time =
        first.strip_suffix('s').is_some_and(|time| time.parse::<f64>().is_ok()) || clock(first).is_some();
    if !is_time || rate(speed, None).0.is_none() {
        return None;
    }
    finish(Amount::at_end(head.trim_end(), true)?, 0.0, None, speed, values)
}

fn finish<'a>(
    amount: Amount<'_>,
    elapsed_s: f64,
    left: Option<f64>,
    speed: &str,
    values: &'a str,
) -> Option<Bar<'a>> {
    let Amount { done, total, unit, scale, head } = amount;
    let (rate, rate_unit) = rate(speed, scale);
    let unit = if rate_unit.is_empty() { unit } else { rate_unit };
    // A download is not the program's progress.
    let is_bytes = unit.ends_with('B') && unit.len() <= 3;
    if is_bytes || total.is_some_and(|total| total == 0 || done > total) {
        return None;
    }
    let per_s =
        rate.or_else(|| (elapsed_s > 0.0).then(|| done as f64 / elapsed_s)).filter(|rate| *rate > 0.0);
    let remaining = total.map(|total| total.saturating_sub(done) as f64);
    let eta_s = left.or_else(|| Some(remaining? / per_s?));
    let progress =
        ShownProgress { done, total, unit: unit.to_owned(), per_s, eta_s, label: label(head).to_owned() };
    Some(Bar { progress: progress.checked(), elapsed_s, values: values.trim() })
}

/// Parses `MM:SS` or `H:MM:SS` at the start of a text; returns seconds and the rest.
fn clock(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(text.len());
    let mut seconds = 0.0;
    let mut parts = 0;
    for part in text[..end].split(':') {
        parts += 1;
        if part.is_empty() || part.len() > 6 || parts > 3 {
            return None;
        }
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    (parts >= 2).then_some((seconds, &text[end..]))
}

/// The same; an unknown time is `?` or `-:--:--`.
fn clock_or_none(text: &str) -> Option<(Option<f64>, &str)> {
    let unknown = text.strip_prefix('?').or_else(|| text.strip_prefix("-:--:--"));
    match unknown {
        Some(rest) => Some((None, rest)),
        None => clock(text).map(|(seconds, rest)| (Some(seconds), rest)),
    }
}

/// What a bar counts.
struct Amount<'a> {
    done: u64,
    total: Option<u64>,
    unit: &'a str,
    /// Letter of the scale that it is written in.
    scale: Option<char>,
    /// The text before it.
    head: &'a str,
}

impl<'a> Amount<'a> {
    /// Parses `n/total`, or `n` with a unit where no time to the end is shown.
    fn at_end(text: &'a str, with_total: bool) -> Option<Amount<'a>> {
        let (head, last) = text.rsplit_once(' ').unwrap_or(("", text));
        let is_word = !last.is_empty() && last.chars().all(char::is_alphabetic);
        let (head, last, unit) = match is_word && with_total {
            // `1,308/100,000 it [`
            true => {
                let text = head.trim_end();
                let (head, count) = text.rsplit_once(' ').unwrap_or(("", text));
                (head, count, last)
            }
            false => (head, last, ""),
        };
        if let Some((done, total)) = last.split_once('/') {
            let begin = done.rfind(|c: char| !is_part(c)).map_or(0, |at| at + len_at(done, at));
            let ((done, scale), (total, _)) = (scaled(&done[begin..])?, scaled(total)?);
            return Some(Amount { done, total: Some(total), unit, scale, head });
        }
        if with_total {
            return None;
        }
        let end = last.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')?;
        let (number, unit) = last.split_at(end);
        let (done, _) = scaled(number).filter(|_| unit.chars().all(char::is_alphabetic))?;
        Some(Amount { done, total: None, unit, scale: None, head })
    }
}

/// Part of a number with separators and a scale.
fn is_part(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | ',' | 'k' | 'K' | 'M' | 'G' | 'T')
}

fn len_at(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

/// `1,308` or `1.31k` as a number, and its letter.
fn scaled(text: &str) -> Option<(u64, Option<char>)> {
    let letter = text.chars().next_back().filter(|c| !c.is_ascii_digit());
    let factor = match letter {
        None => 1.0,
        Some('k' | 'K') => 1e3,
        Some('M') => 1e6,
        Some('G') => 1e9,
        Some('T') => 1e12,
        Some(_) => return None,
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).replace(',', "");
    if digits.len() > 20 || !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse::<f64>().ok()? * factor;
    (number <= AMOUNT).then_some((number.round() as u64, letter))
}

/// `4.40it/s`, `2.3s/it` or `200ms/step`: amount per second, and the unit. `scale`: the count has a scale.
fn rate(text: &str, scale: Option<char>) -> (Option<f64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | '?')).unwrap_or(text.len());
    let number = text[..end].replace(',', "").parse::<f64>().ok().filter(|number| number.is_finite());
    let unit = text[end..].trim_start();
    if let Some(unit) = unit.strip_suffix("/s") {
        let factor = match unit.chars().next() {
            Some('k') => 1e3,
            Some('M') => 1e6,
            Some('G') => 1e9,
            _ => 1.0,
        };
        return match scale.is_some() && factor > 1.0 && unit.len() > 1 {
            true => (number.map(|number| number * factor), &unit[1..]),
            false => (number, unit),
        };
    }
    let times = [("s/", 1.0), ("ms/", 1e3), ("us/", 1e6)];
    let timed = times.iter().find_map(|(time, parts)| Some((unit.strip_prefix(time)?, parts)));
    match timed {
        Some((unit, parts)) => (number.filter(|number| *number > 0.0).map(|number| parts / number), unit),
        None => (None, ""),
    }
}

/// The text before the percentage and the bar.
fn label(head: &str) -> &str {
    let end = head.find(['|', '━', '╸', '╺', '█', '─', '▏', '▎', '▍', '▌', '▋', '▊', '▉']);
    let text = head[..end.unwrap_or(head.len())].trim_end();
    let text = match text.strip_suffix('%') {
        Some(text) => text.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'),
        None => text,
    };
    text.trim().trim_end_matches(':').trim_end()
}

/// The bar that shows how far a program is, of all that it shows: the one that takes longest.
#[derive(Debug, Default)]
pub struct MainBar(Option<SeenBar>);

#[derive(Debug)]
struct SeenBar {
    progress: ShownProgress,
    /// From its begin to its end, seconds, as far as it is known.
    span_s: f64,
    seen: Instant,
}

impl SeenBar {
    fn is_stale(&self, now: Instant) -> bool {
        let step_s = self.progress.per_s.map_or(0.0, |per_s| 1.0 / per_s);
        let slow = Duration::try_from_secs_f64(step_s * STALE_STEPS).unwrap_or(Duration::MAX);
        now.saturating_duration_since(self.seen) > STALE.max(slow)
    }
}

impl MainBar {
    /// Takes in a bar that a program shows now.
    pub fn see(&mut self, bar: &Bar<'_>, now: Instant) {
        let span_s = bar.elapsed_s + bar.progress.eta_s.unwrap_or(0.0);
        let gives_way = self.0.as_ref().is_none_or(|known| {
            is_same(&known.progress, &bar.progress)
                || known.progress.is_complete()
                || span_s >= known.span_s
                || known.is_stale(now)
        });
        if gives_way {
            self.0 = Some(SeenBar { progress: bar.progress.clone(), span_s, seen: now });
        }
    }

    /// Takes in a counter that a program prints, unless a bar shows more.
    pub fn count(&mut self, progress: ShownProgress, now: Instant) {
        let gives_way = self.0.as_ref().is_none_or(|known| {
            let is_next = known.progress.is_complete() && progress.total.is_some();
            is_same(&known.progress, &progress) || is_next || known.is_stale(now)
        });
        if gives_way {
            self.0 = Some(SeenBar { progress, span_s: 0.0, seen: now });
        }
    }

    /// Returns the progress.
    pub fn progress(&self) -> Option<&ShownProgress> {
        self.0.as_ref().map(|bar| &bar.progress)
    }
}

/// Two states of one bar: the number in its label may differ.
fn is_same(one: &ShownProgress, other: &ShownProgress) -> bool {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    (one.total, &one.unit) == (other.total, &other.unit) && words(&one.label) == words(&other.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_the_count_of_its_unit_only() {
        let progress =
            |unit: &str| ShownProgress { done: 162, unit: unit.into(), ..ShownProgress::default() };
        for (unit, name, at, expected) in [
            ("epoch", "epoch", 162.0, true),
            ("epoch", "epoch", 161.0, false),
            ("epoch", "step", 162.0, false),
            ("step", "global_step", 162.0, true),
            ("it", "epoch", 162.0, false),
            ("", "epoch", 162.0, false),
            ("epoch", "loss", 162.0, false),
        ] {
            assert_eq!(progress(unit).shows(name, at), expected, "{unit} {name} {at}");
        }
    }

    fn shown(line: &str) -> (u64, Option<u64>, String, Option<f64>, String) {
        let bar = parse(line).unwrap_or_else(|| panic!("no bar: {line}"));
        let ShownProgress { done, total, unit, eta_s, label, .. } = bar.progress;
        (done, total, unit, eta_s, label)
    }

    #[test]
    fn bar_1_forms_of_tqdm_rich_and_lightning_are_read() {
        let bar = |done: u64, total: Option<u64>, unit: &str, eta_s: Option<f64>, label: &str| {
            (done, total, unit.to_owned(), eta_s, label.to_owned())
        };
        for (line, expected) in [
            (
                "  1%|          | 1308/100000 [00:33<12:00, 136.98it/s]",
                bar(1308, Some(100_000), "it", Some(720.0), ""),
            ),
            (
                "Epoch 3:  45%|████▌     | 45/100 [00:10<00:12,  4.40it/s, v_num=0, train_loss=0.123]",
                bar(45, Some(100), "it", Some(12.0), "Epoch 3"),
            ),
            ("100%|██████████| 20/20 [1:02:03<00:00, 2.3s/it]", bar(20, Some(20), "it", Some(0.0), "")),
            ("45it [00:10,  4.50it/s]", bar(45, None, "it", None, "")),
            ("  0%|          | 0/100 [00:00<?, ?it/s]", bar(0, Some(100), "it", None, "")),
            (
                "Map: 50%|█████     | 1.50k/3.00k [00:02<00:02, 900 examples/s]",
                bar(1500, Some(3000), "examples", Some(2.0), "Map"),
            ),
            (
                "   1% ━╺━━━ 1,308/100,000  [ 0:00:33 < 0:12:00 , 137 it/s ]",
                bar(1308, Some(100_000), "it", Some(720.0), ""),
            ),
            (
                "Epoch 0/9 ━━━━━━ 45/100 0:00:10 • 0:00:12 4.40it/s v_num: 0.000 loss: 0.5",
                bar(45, Some(100), "it", Some(12.0), "Epoch 0/9"),
            ),
            ("20/1800 [00:08<09:30]", bar(20, Some(1800), "", Some(570.0), "")),
            ("Training... ━━━━━━━━╸━━━━━━━  45% 0:00:12", bar(45, Some(100), "%", Some(12.0), "Training...")),
            ("Working... ━━━━━━━━━━━━━━━━   0% -:--:--", bar(0, Some(100), "%", None, "Working...")),
            (
                "10/32 ━━━━━━━━━━━━━━━━━━━━ 4s 200ms/step - accuracy: 0.9 - loss: 0.3",
                bar(10, Some(32), "step", Some(4.4), ""),
            ),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
        let values = |line| parse(line).map(|bar| bar.values);
        assert_eq!(values("1/2 [00:01<00:01, 1it/s, a=1, b=2]"), Some("a=1, b=2"));
        assert_eq!(values("1/2 0:00:10 • 0:00:12 4.40it/s a: 1"), Some("a: 1"));
        assert_eq!(values("1/2 ━━━━━━━━ 4s 20ms/step - loss: 0.3"), Some("- loss: 0.3"));
        let slow = parse("1/2 [00:04<00:04, 4s/it]").unwrap();
        assert_eq!(slow.progress.per_s, Some(0.25));
    }

    #[test]
    fn bar_1_other_lines_are_no_bars() {
        for line in [
            "",
            "[12:30:45] step 3/10",
            "loaded 3/10 files [cached]",
            "2026-11-29 [05:51:00] INFO",
            "model.safetensors: 100%|██████████| 548M/548M [00:05<00:00, 100MB/s]",
            "11/10 [00:01<00:01, 1it/s]",
            "1/0 [00:01<00:01, 1it/s]",
            "a • b",
            "━━━━━━━━━━━━━━━━━━━━",
            "━━━ 45% 0:00:12",
            "━━━━━━━━ results ━━━━━━━━",
            "2/3 ━━━━━━━━ 4s later",
            "1/2 [00:01<",
            "1/2 [:<:]",
            "é/2 [00:01<00:01]",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn main_bar_is_the_one_that_takes_longest() {
        let (mut bars, now) = (MainBar::default(), Instant::now());
        let mut see = |line: &str, after: u64| {
            bars.see(&parse(line).unwrap(), now + Duration::from_secs(after));
            bars.progress().unwrap().done
        };
        assert_eq!(see("all: 3/10 [05:00<11:40, 100s/it]", 0), 3);
        assert_eq!(see("45/100 [00:10<00:12, 4.4it/s]", 1), 3, "an inner loop");
        assert_eq!(see("all: 4/10 [06:40<10:00, 100s/it]", 100), 4);
        assert_eq!(see("45/100 [00:10<00:12, 4.4it/s]", 399), 4, "it is slow");
        assert_eq!(see("46/100 [00:10<00:12, 4.4it/s]", 401), 46, "it was not seen for long");
        assert_eq!(see("100/100 [00:22<00:00, 4.4it/s]", 402), 100);
        assert_eq!(see("test: 1/5 [00:01<00:04, 1it/s]", 403), 1, "the other one is complete");
    }

    #[test]
    fn counter_gives_way_to_a_bar() {
        let (mut bars, now) = (MainBar::default(), Instant::now());
        let count = |done| ShownProgress { done, unit: "epoch".into(), ..ShownProgress::default() };
        bars.count(count(3), now);
        bars.count(count(4), now);
        assert_eq!(bars.progress().unwrap().done, 4);
        bars.see(&parse("45/100 [00:10<00:12, 4.4it/s]").unwrap(), now);
        bars.count(count(5), now);
        assert_eq!(bars.progress().unwrap().done, 45);
    }

    #[test]
    fn progress_is_described_with_its_unit_and_end() {
        let progress = parse("20/1800 [00:08<09:30, 2it/s]").unwrap().progress;
        assert_eq!((progress.amount().as_str(), progress.share()), ("20 of 1,800 it", Some(20.0 / 1800.0)));
        assert_eq!((progress.eta_after(70.0), progress.eta_after(1e9)), (Some(500.0), Some(0.0)));
        let share = parse("Training ━━━━━━━━ 45% 0:00:12").unwrap().progress;
        assert_eq!((share.amount().as_str(), share.share()), ("45%", Some(0.45)));
        let odd =
            ShownProgress { eta_s: Some(f64::NAN), per_s: Some(-1.0), label: "x".repeat(99), ..progress };
        let checked = odd.checked();
        assert_eq!((checked.eta_s, checked.per_s, checked.label.chars().count()), (None, None, 41));
    }
}
