//! Heat maps of histograms: which share of the values lies where, as levels of colours. Pure.

use crate::chart_view::Scale;
use rankdeck_core::model::{Column, HistogramSeries};

/// Little to much: red, green and blue of Viridis (Smith and van der Walt 2015), which rises in brightness
/// and is told apart by colour-blind eyes.
pub const RAMP: [[u8; 3]; 10] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x28, 0x78],
    [0x3e, 0x49, 0x89],
    [0x31, 0x68, 0x8e],
    [0x26, 0x82, 0x8e],
    [0x1f, 0x9e, 0x89],
    [0x35, 0xb7, 0x79],
    [0x6e, 0xce, 0x58],
    [0xb5, 0xde, 0x2b],
    [0xfd, 0xe7, 0x25],
];
/// How much a logarithmic scale spreads small shares.
const SPREAD: f64 = 1000.0;

/// A heat map: a level from 0 to 1 for each of its cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    /// The values at its bottom and its top.
    pub y: (f64, f64),
    /// A column of levels from the bottom to the top for each position of the x axis; `None` where there is
    /// no histogram.
    pub columns: Vec<Option<Vec<f64>>>,
}

/// A series over a window of the x axis. Each histogram reaches back to the one before it; a cell with
/// several shows their mean. Colours grow with the square root of the share, or with its logarithm.
pub fn heat(
    series: &HistogramSeries,
    scale: &Scale,
    x: (f64, f64),
    (across, rows): (usize, usize),
    log: bool,
) -> Option<Heat> {
    let y = span(series, scale, x)?;
    let all = series.columns();
    let place = |column: &Column| scale.of(column.place);
    let wide = (x.1 - x.0) / across.max(1) as f64;
    let shares = |column: &Column| -> Vec<f64> {
        let total = column.bins.total().max(f64::MIN_POSITIVE);
        column.bins.in_rows(y.0, y.1, rows).into_iter().map(|count| count / total).collect()
    };
    let mut columns: Vec<Option<Vec<f64>>> = Vec::with_capacity(across);
    // The same histogram fills many cells.
    let mut latest: Option<(usize, Vec<f64>)> = None;
    for cell in 0..across {
        let (from, to) = (x.0 + wide * cell as f64, x.0 + wide * (cell + 1) as f64);
        let is_last = cell + 1 == across;
        let first = all.partition_point(|column| place(column) < from);
        let inside =
            all[first..].iter().take_while(|column| place(column) < to || (is_last && place(column) <= to));
        let count = inside.clone().count();
        columns.push(match count {
            0 if first == 0 || first == all.len() => None,
            0 | 1 => {
                if latest.as_ref().is_none_or(|(at, _)| *at != first) {
                    latest = Some((first, shares(&all[first])));
                }
                latest.as_ref().map(|(_, shares)| shares.clone())
            }
            _ => {
                let mut sum = vec![0.0; rows];
                for column in inside {
                    sum.iter_mut().zip(shares(column)).for_each(|(sum, share)| *sum += share / count as f64);
                }
                Some(sum)
            }
        });
    }
    let most = columns.iter().flatten().flatten().copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let level = |share: f64| match log {
        true => (share * SPREAD).ln_1p() / (most * SPREAD).ln_1p(),
        false => (share / most).sqrt(),
    };
    columns.iter_mut().flatten().flatten().for_each(|share| *share = level(*share));
    Some(Heat { y, columns })
}

/// The values that histograms of a window reach from and to.
pub fn span(series: &HistogramSeries, scale: &Scale, x: (f64, f64)) -> Option<(f64, f64)> {
    let all = series.columns();
    let first = all.partition_point(|column| scale.of(column.place) < x.0);
    // One beyond the window reaches back into it.
    let seen = all.iter().enumerate().skip(first).take_while(|(at, column)| {
        let before = at.checked_sub(1).and_then(|before| all.get(before));
        scale.of(column.place) <= x.1 || before.is_some_and(|before| scale.of(before.place) < x.1)
    });
    seen.map(|(_, column)| column.bins.range())
        .reduce(|(low, high), (from, to)| (low.min(from), high.max(to)))
        .filter(|(low, high)| low < high && (high - low).is_finite())
}

/// The column nearest to a place of the x axis.
pub fn column_at<'a>(series: &'a HistogramSeries, scale: &Scale, at: f64) -> Option<&'a Column> {
    let far = |column: &&Column| (scale.of(column.place) - at).abs();
    series.columns().iter().min_by(|a, b| far(a).total_cmp(&far(b)))
}

/// The place of a level among `count` signs or colours; `None` where nothing is.
pub fn step(level: f64, count: usize) -> Option<usize> {
    (level > 0.0).then(|| ((level * count as f64) as usize).min(count.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::Histogram;

    fn series(all: &[(f64, &[f64], &[f64])]) -> HistogramSeries {
        let mut series = HistogramSeries::default();
        for (step, edges, counts) in all {
            let bins = Histogram { edges: edges.to_vec(), counts: counts.to_vec() };
            series.push(Place { step: *step, time: 0.0 }, bins);
        }
        series
    }

    fn levels(heat: &Heat) -> Vec<Option<Vec<u32>>> {
        let whole = |level: &f64| (level * 100.0).round() as u32;
        heat.columns
            .iter()
            .map(|column| column.as_ref().map(|rows| rows.iter().map(whole).collect()))
            .collect()
    }

    #[test]
    fn each_histogram_reaches_back_to_the_one_before_it() {
        let edges = [0.0, 1.0, 2.0];
        let series = series(&[(10.0, &edges, &[4.0, 0.0]), (30.0, &edges, &[1.0, 3.0])]);
        let scale = Scale::default();
        let drawn = heat(&series, &scale, (0.0, 40.0), (4, 2), false).unwrap();
        assert_eq!(drawn.y, (0.0, 2.0));
        let (one, other) = (Some(vec![100, 0]), Some(vec![50, 87]));
        assert_eq!(levels(&drawn), [None, one, other.clone(), other]);
        let closer = heat(&series, &scale, (15.0, 25.0), (2, 2), false).unwrap();
        assert!(closer.columns.iter().all(Option::is_some), "between two there is the later one");
        assert_eq!(heat(&series, &scale, (50.0, 60.0), (2, 2), false), None);
        let log = heat(&series, &scale, (0.0, 40.0), (4, 2), true).unwrap();
        assert!(log.columns[2].as_ref().unwrap()[0] > 0.7, "{log:?}");
    }

    #[test]
    fn many_histograms_in_a_cell_are_their_mean_whatever_their_size() {
        let edges = [0.0, 1.0, 2.0];
        let series = series(&[(1.0, &edges, &[4.0, 0.0]), (2.0, &edges, &[0.0, 4000.0])]);
        let drawn = heat(&series, &Scale::default(), (0.0, 10.0), (1, 2), false).unwrap();
        assert_eq!(levels(&drawn), [Some(vec![100, 100])]);
        assert_eq!(column_at(&series, &Scale::default(), 1.4).unwrap().place.step, 1.0);
        assert_eq!((step(0.0, 4), step(0.01, 4), step(1.0, 4)), (None, Some(0), Some(3)));
    }
}
