//! Bounded series of `(x, y)` for charts: when full, neighbours are merged, so that the whole run stays
//! visible.

/// A bounded series; x never decreases.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    points: Vec<(f64, f64)>,
}

/// Most points kept.
pub const CAPACITY: usize = 1024;

impl Series {
    /// Adds a point; one with a smaller x than the last is ignored (a restarted generation repeats steps).
    pub fn push(&mut self, x: f64, y: f64) {
        if !y.is_finite() || self.points.last().is_some_and(|(last, _)| x < *last) {
            return;
        }
        if self.points.len() == CAPACITY {
            self.points = self
                .points
                .chunks(2)
                .map(|pair| {
                    let n = pair.len() as f64;
                    (pair[pair.len() - 1].0, pair.iter().map(|p| p.1).sum::<f64>() / n)
                })
                .collect();
        }
        self.points.push((x, y));
    }

    /// The points, oldest first.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The newest value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point.1)
    }
}
