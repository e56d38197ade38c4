//! The newest histogram of a name in lines.

use crate::text;
use rankdeck_core::model::Model;
use rankdeck_types::words;

/// Cells of the longest bar.
const BAR: f64 = 30.0;
/// Most lines of bins.
const ROWS: usize = 16;

/// What is typed may be a part of the name, where no other has it.
pub(super) fn told(model: &Model, typed: &str) -> Vec<String> {
    let names = || model.histograms.keys().map(String::as_str);
    if names().next().is_none() {
        return vec!["the program has logged no histograms".into()];
    }
    let like = |name: &&str| name.to_lowercase().contains(typed);
    let exact = names().find(|name| name.to_lowercase() == typed);
    let (one, several) = (names().find(like), names().filter(like).count() > 1);
    let Some(name) = exact.or(one.filter(|_| !several)) else {
        let all: Vec<String> = names().map(words::clean).collect();
        return vec![format!("which one? there are {}", all.join(", "))];
    };
    let Some(column) = model.histograms.get(name).and_then(|series| series.newest()) else {
        return Vec::new();
    };
    let (low, high) = column.bins.range();
    let step = text::si(column.place.step);
    let (total, mean) = (words::count(column.bins.total().round() as u64), text::value(column.bins.mean()));
    let [from, to] = text::apart([low, high]);
    let name = words::clean(name);
    let mut lines = vec![format!("{name} at step {step}: {total} values from {from} to {to}, mean {mean}")];
    let bins = column.bins.counts.len();
    let rows = if bins <= ROWS { column.bins.bins().collect() } else { parts(low, high, column) };
    let most = rows.iter().map(|bin| bin.count).fold(1.0, f64::max);
    lines.extend(rows.iter().map(|bin| {
        let [from, to] = text::apart([bin.low, bin.high]);
        let bar = "#".repeat((bin.count / most * BAR).ceil() as usize);
        format!("{from} to {to}: {} {bar}", words::count(bin.count.round() as u64)).trim_end().to_owned()
    }));
    lines
}

/// The same in fewer parts.
fn parts(low: f64, high: f64, column: &rankdeck_core::model::Column) -> Vec<rankdeck_proto::media::Bin> {
    let wide = (high - low) / ROWS as f64;
    let counts = column.bins.in_rows(low, high, ROWS).into_iter().enumerate();
    let part = |(i, count): (usize, f64)| rankdeck_proto::media::Bin {
        low: low + wide * i as f64,
        high: low + wide * (i + 1) as f64,
        count,
    };
    counts.map(part).collect()
}
