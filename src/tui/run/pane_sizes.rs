//! Sizes that the user has given to the panes of the overview: shares of the page, so that they suit a
//! terminal of another size. [`crate::run::layout`] keeps them within bounds.

use crate::run::geometry::Pane;
use ratatui::layout::Rect;

/// Shares are of this many parts.
const WHOLE: u32 = 1000;
/// Fewest cells of a pane next to another one.
const NARROWEST: u16 = 20;

/// A part of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaneShare(u16);

impl PaneShare {
    /// The share of `cells` in `all`.
    pub fn new(cells: u16, all: u16) -> PaneShare {
        // Rounded up, so that as many cells come out again.
        PaneShare((u32::from(cells) * WHOLE).div_ceil(u32::from(all.max(1))).min(WHOLE) as u16)
    }

    /// The cells of the share in `all`.
    pub fn of(self, all: u16) -> u16 {
        (u32::from(self.0) * u32::from(all) / WHOLE) as u16
    }
}

/// What was given; `None`: as it comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaneSizes {
    /// Height of the ranks.
    pub ranks: Option<PaneShare>,
    /// Height of the charts.
    pub charts: Option<PaneShare>,
    /// Width of the evaluations.
    pub evals: Option<PaneShare>,
    /// Width of the events.
    pub events: Option<PaneShare>,
}

const NAMES: [&str; 4] = ["ranks", "charts", "evals", "events"];

impl PaneSizes {
    fn each(&mut self) -> [(&'static str, &mut Option<PaneShare>); 4] {
        let [ranks, charts, evals, events] = NAMES;
        let PaneSizes { ranks: a, charts: b, evals: c, events: d } = self;
        [(ranks, a), (charts, b), (evals, c), (events, d)]
    }

    /// Reads `ranks=40`, percent of the page.
    ///
    /// # Errors
    /// A word is not such a size.
    pub fn read<'a>(words: impl Iterator<Item = &'a str>) -> Result<PaneSizes, String> {
        let mut sizes = PaneSizes::default();
        for word in words {
            let (name, percent) =
                word.split_once('=').ok_or_else(|| format!("expected NAME=PERCENT, found `{word}`"))?;
            let percent = percent.trim_end_matches('%').parse::<u16>().ok();
            let percent = percent.filter(|percent| (5..=95).contains(percent));
            let percent = percent.ok_or_else(|| format!("`{word}` is out of range; use 5 to 95 percent"))?;
            let mut all = sizes.each();
            let place = all.iter_mut().find(|(known, _)| *known == name);
            let (_, size) = place.ok_or_else(|| format!("unknown pane `{name}`; {}", NAMES.join(", ")))?;
            **size = Some(PaneShare(percent * 10));
        }
        Ok(sizes)
    }

    /// As it is read again.
    pub fn words(mut self) -> Vec<String> {
        let word = |(name, size): (&str, &mut Option<PaneShare>)| {
            size.map(|share| format!("{name}={}", (share.0 + 5) / 10))
        };
        self.each().into_iter().filter_map(word).collect()
    }
}

/// A border that can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// The lower one of a pane.
    Below(Pane),
    /// The right one of a pane.
    Behind(Pane),
}

/// Widths of the panes side by side: evaluations first, then the log, then the events.
pub fn widths(sizes: PaneSizes, row: Rect, usual: &[Rect]) -> Vec<Rect> {
    let least = NARROWEST.min(row.width / usual.len().max(1) as u16);
    let given = |size: Option<PaneShare>, usual: u16, others: u16| match size {
        Some(share) => share.of(row.width).clamp(least, (row.width - others * least).max(least)),
        None => usual,
    };
    let (first, last) = match usual {
        [evals, _, events] => (given(sizes.evals, evals.width, 2), Some((sizes.events, events.width))),
        [evals, _] => (given(sizes.evals, evals.width, 1), None),
        _ => return usual.to_vec(),
    };
    let last = last.map(|(size, usual)| {
        let room = row.width.saturating_sub(first + least);
        size.map_or(usual, |share| share.of(row.width)).clamp(least.min(room), room)
    });
    let middle = row.width.saturating_sub(first + last.unwrap_or(0));
    let mut x = row.x;
    [Some(first), Some(middle), last]
        .into_iter()
        .flatten()
        .map(|width| {
            let part = Rect { x, width, ..row };
            x += width;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_gives_back_its_cells() {
        for all in 1..=600 {
            for cells in 0..=all {
                assert_eq!(PaneShare::new(cells, all).of(all), cells, "{cells} of {all}");
            }
        }
    }

    #[test]
    fn sizes_are_read_as_typed_and_wrong_ones_are_named() {
        let read = |words: &[&str]| PaneSizes::read(words.iter().copied());
        let words = ["ranks=40", "evals=25"];
        assert_eq!(read(&words).unwrap().words(), words);
        assert_eq!(read(&[]), Ok(PaneSizes::default()));
        for (word, why) in
            [("ranks", "NAME=PERCENT"), ("ranks=3", "5 to 95"), ("log=20", "unknown pane `log`")]
        {
            let error = read(&[word]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn panes_beside_each_other_keep_their_least_width() {
        let row = Rect::new(0, 0, 150, 10);
        let part = |x, width| Rect { x, width, ..row };
        let usual = [part(0, 35), part(35, 65), part(100, 50)];
        for percent in [5, 50, 95] {
            let sizes = PaneSizes {
                evals: Some(PaneShare(percent * 10)),
                events: Some(PaneShare(percent * 10)),
                ..PaneSizes::default()
            };
            let parts = widths(sizes, row, &usual);
            assert_eq!(parts.iter().map(|part| part.width).sum::<u16>(), row.width);
            assert!(parts.iter().all(|part| part.width >= NARROWEST), "{parts:?}");
        }
    }
}
