//! Heat maps of histograms: the share of values in each cell as a level from 0 to 1.

use crate::axis::Scale;
use rankdeck_core::model::{HistogramBucket, HistogramSeries};
use rankdeck_kit::plot::{Axes, HeatColumns, HeatMap, heat_map};
use rankdeck_kit::theme::{ColorDepth, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Spread of small shares on a logarithmic scale.
const SPREAD: f64 = 1000.0;

/// A heat map on a grid of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatGrid {
    /// The values at its bottom and top.
    pub y: (f64, f64),
    /// Levels by column from the left and row from the bottom; `None` where there is no histogram.
    pub columns: HeatColumns,
}

/// Returns the heat map of a series over a window of the x axis.
///
/// Each histogram reaches back to the one before it; a cell with several shows their mean. Levels grow with
/// the square root of the share, or with its logarithm.
pub fn heat_grid(
    series: &HistogramSeries,
    scale: &Scale,
    x: (f64, f64),
    (across, rows): (usize, usize),
    log: bool,
) -> Option<HeatGrid> {
    let y = value_range(series, scale, x)?;
    let all = series.columns();
    let place = |column: &HistogramBucket| scale.position(column.place);
    let wide = (x.1 - x.0) / across.max(1) as f64;
    let shares = |column: &HistogramBucket| -> Vec<f64> {
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
    Some(HeatGrid { y, columns })
}

/// Returns the range of values of the histograms in a window.
pub fn value_range(series: &HistogramSeries, scale: &Scale, x: (f64, f64)) -> Option<(f64, f64)> {
    let all = series.columns();
    let first = all.partition_point(|column| scale.position(column.place) < x.0);
    // The first one beyond the window reaches back into it.
    let seen = all.iter().enumerate().skip(first).take_while(|(at, column)| {
        let before = at.checked_sub(1).and_then(|before| all.get(before));
        scale.position(column.place) <= x.1 || before.is_some_and(|before| scale.position(before.place) < x.1)
    });
    seen.map(|(_, column)| column.bins.range())
        .reduce(|(low, high), (from, to)| (low.min(from), high.max(to)))
        .filter(|(low, high)| low < high && (high - low).is_finite())
}

/// Returns the histogram nearest to a position of the x axis.
pub fn column_at<'a>(series: &'a HistogramSeries, scale: &Scale, at: f64) -> Option<&'a HistogramBucket> {
    let distance = |column: &&HistogramBucket| (scale.position(column.place) - at).abs();
    series.columns().iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// A series to be drawn as a heat map.
pub struct HeatPlot<'a> {
    pub series: &'a HistogramSeries,
    pub scale: &'a Scale,
    /// Position of the horizontal cursor, from 0 at the bottom to 1 at the top.
    pub height: Option<f64>,
}

impl HeatPlot<'_> {
    /// Draws the map with axis labels; returns the area of the map itself.
    pub fn draw(&self, theme: &Theme, depth: ColorDepth, buf: &mut Buffer, area: Rect, axes: &Axes) -> Rect {
        let levels = |across, rows| {
            let grid = heat_grid(self.series, self.scale, axes.x, (across, rows), axes.log);
            grid.map(|grid| grid.columns)
        };
        let map = HeatMap { range: value_range(self.series, self.scale, axes.x), levels: &levels };
        heat_map(theme, depth, buf, area, &map, axes, self.height)
    }
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
            series.push(Place { step: *step, time: 0.0, ..Place::default() }, bins);
        }
        series
    }

    fn levels(heat: &HeatGrid) -> Vec<Option<Vec<u32>>> {
        let whole = |level: &f64| (level * 100.0).round() as u32;
        heat.columns
            .iter()
            .map(|column| column.as_ref().map(|rows| rows.iter().map(whole).collect()))
            .collect()
    }

    #[test]
    fn histogram_reaches_back_to_the_previous_one() {
        let edges = [0.0, 1.0, 2.0];
        let series = series(&[(10.0, &edges, &[4.0, 0.0]), (30.0, &edges, &[1.0, 3.0])]);
        let scale = Scale::default();
        let drawn = heat_grid(&series, &scale, (0.0, 40.0), (4, 2), false).unwrap();
        assert_eq!(drawn.y, (0.0, 2.0));
        let (one, other) = (Some(vec![100, 0]), Some(vec![50, 87]));
        assert_eq!(levels(&drawn), [None, one, other.clone(), other]);
        let closer = heat_grid(&series, &scale, (15.0, 25.0), (2, 2), false).unwrap();
        assert!(closer.columns.iter().all(Option::is_some), "between two there is the later one");
        assert_eq!(heat_grid(&series, &scale, (50.0, 60.0), (2, 2), false), None);
        let log = heat_grid(&series, &scale, (0.0, 40.0), (4, 2), true).unwrap();
        assert!(log.columns[2].as_ref().unwrap()[0] > 0.7, "{log:?}");
    }

    #[test]
    fn cell_with_several_histograms_shows_their_mean() {
        let edges = [0.0, 1.0, 2.0];
        let series = series(&[(1.0, &edges, &[4.0, 0.0]), (2.0, &edges, &[0.0, 4000.0])]);
        let drawn = heat_grid(&series, &Scale::default(), (0.0, 10.0), (1, 2), false).unwrap();
        assert_eq!(levels(&drawn), [Some(vec![100, 100])]);
        assert_eq!(column_at(&series, &Scale::default(), 1.4).unwrap().place.step, 1.0);
    }
}
