//! Histograms as files: CSV of every bin, and heat maps of shapes. Pure.

use crate::chart_shape::{Shape, canvas, head, labels};
use crate::chart_view::Scale;
use crate::heat::{RAMP, heat, step};
use rankdeck_core::model::HistogramSeries;
use std::fmt::Write as _;

/// Cells of a map, across and down.
const CELLS: (usize, usize) = (160, 64);
/// Much to little, as on paper: the dark end of the screen's ramp last.
const COLOURS: [&str; RAMP.len()] = [
    "#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989", "#482878",
    "#440154",
];

/// One row per bin of each histogram, those without a value left out: `histograms` is how many were put
/// together. Names are fields already.
pub fn csv(series: &[(String, &HistogramSeries)]) -> String {
    let mut out = String::from("series,env_step,time,low,high,count,histograms\n");
    for (name, series) in series {
        for column in series.columns() {
            let (place, behind) = (column.place, column.behind);
            for bin in column.bins.bins().filter(|bin| bin.count > 0.0) {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{name},{},{:.3},{},{},{},{behind}",
                    place.step, place.time, bin.low, bin.high, bin.count
                );
            }
        }
    }
    out
}

/// A heat map as shapes, with its frame and labels.
pub fn shapes(title: &str, series: &HistogramSeries, scale: &Scale, x: (f64, f64), log: bool) -> Vec<Shape> {
    let mut out = head(title);
    let Some(map) = heat(series, scale, x, CELLS, log) else { return out };
    let (low, high) = map.y;
    out.extend(labels([low, low / 2.0 + high / 2.0, high], scale, x));
    let (left, top, w, h) = canvas();
    let (wide, tall) = (w / CELLS.0 as f64, h / CELLS.1 as f64);
    for (x, levels) in map.columns.iter().enumerate() {
        let Some(levels) = levels else { continue };
        let mut row = 0;
        while row < levels.len() {
            let colour = step(levels[row], COLOURS.len());
            let same =
                levels[row..].iter().take_while(|level| step(**level, COLOURS.len()) == colour).count();
            if let Some(colour) = colour {
                let at = (left + wide * x as f64, top + h - tall * (row + same) as f64);
                out.push(Shape::Cell { at, size: (wide, tall * same as f64), colour: COLOURS[colour] });
            }
            row += same;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart_file::document;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::Histogram;

    #[test]
    fn histograms_become_rows_and_shapes() {
        let mut series = HistogramSeries::default();
        for step in [10.0, 20.0] {
            let bins = Histogram { edges: vec![0.0, 1.0, 2.0, 3.0], counts: vec![4.0, 0.0, step] };
            series.push(Place { step, time: 1.5 }, bins);
        }
        let text = csv(&[("\"a,b\"".to_owned(), &series)]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows[..2], ["\"a,b\",10,1.500,0,1,4,1", "\"a,b\",10,1.500,2,3,10,1"]);
        assert_eq!(rows.len(), 4, "empty bins are left out");
        let svg = document(&[shapes("<w>", &series, &Scale::default(), (0.0, 20.0), false)]);
        assert!(svg.contains("&lt;w&gt;") && svg.matches("<rect ").count() > 100 && svg.contains("#440154"));
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
