//! The hits that are wanted of all: the newest, those before a place, or those after it.

use rankdeck_proto::search::{LinePlace, LogHit, LogSearch, Part};
use std::collections::BTreeMap;

/// Most hits, whatever is asked for.
const MOST_HITS: usize = 10_000;
/// About what a hit takes beside its texts.
const HIT_BYTES: usize = 128;

/// Hits by their places, bounded.
#[derive(Debug, Clone)]
pub(super) struct Page {
    part: Part,
    hits: BTreeMap<LinePlace, LogHit>,
    limit: usize,
    room: usize,
    bytes: usize,
    more: u64,
    newer: u64,
    /// The hit that was added last, and is still there.
    last: Option<LinePlace>,
}

impl Page {
    /// At most `room` bytes of hits.
    pub fn new(wanted: &LogSearch, room: usize) -> Page {
        Page {
            part: wanted.part,
            hits: BTreeMap::new(),
            limit: (wanted.limit as usize).clamp(1, MOST_HITS),
            room,
            bytes: 0,
            more: 0,
            newer: 0,
            last: None,
        }
    }

    /// A hit; `make` is called when it is kept.
    pub fn add(&mut self, place: LinePlace, make: impl FnOnce() -> LogHit) {
        self.last = None;
        match self.part {
            Part::Before(end) if !place.is_before(&end) => return self.newer += 1,
            Part::After(begin) if !begin.is_before(&place) => return self.more += 1,
            _ => {}
        }
        let full = self.hits.len() >= self.limit;
        match (self.is_from_the_begin(), self.hits.first_key_value(), self.hits.last_key_value()) {
            (false, Some((first, _)), _) if full && place < *first => return self.more += 1,
            (true, _, Some((last, _))) if full && place > *last => return self.newer += 1,
            _ => {}
        }
        let hit = make();
        self.bytes += size(&hit);
        self.hits.insert(place, hit);
        self.last = Some(place);
        self.shrink();
    }

    /// A line that follows the last hit.
    pub fn after(&mut self, text: &str) {
        if let Some(hit) = self.last.and_then(|place| self.hits.get_mut(&place)) {
            hit.after.push(text.to_owned());
            self.bytes += text.len();
            self.shrink();
        }
    }

    /// Hits, and how many are before and after them.
    pub fn end(self) -> (Vec<LogHit>, u64, u64) {
        (self.hits.into_values().collect(), self.more, self.newer)
    }

    fn is_from_the_begin(&self) -> bool {
        matches!(self.part, Part::After(_))
    }

    fn shrink(&mut self) {
        while self.hits.len() > self.limit || (self.bytes > self.room && self.hits.len() > 1) {
            let gone = if self.is_from_the_begin() {
                self.newer += 1;
                self.hits.pop_last()
            } else {
                self.more += 1;
                self.hits.pop_first()
            };
            self.bytes -= gone.as_ref().map_or(0, |(_, hit)| size(hit));
        }
    }
}

/// About how many bytes a hit takes.
pub(super) fn size(hit: &LogHit) -> usize {
    let texts = hit.before.iter().chain(&hit.after).chain([&hit.text]);
    HIT_BYTES + texts.map(String::len).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(line: u64) -> LinePlace {
        LinePlace { time_ms: line * 10, line, ..LinePlace::default() }
    }

    fn page(part: Part, limit: u32, text: &str, lines: &[u64]) -> (Vec<u64>, u64, u64) {
        let mut page = Page::new(&LogSearch { part, limit, ..LogSearch::default() }, 128 << 10);
        for line in lines {
            page.add(place(*line), || LogHit { line: *line, text: text.into(), ..LogHit::default() });
        }
        let (hits, more, newer) = page.end();
        (hits.iter().map(|hit| hit.line).collect(), more, newer)
    }

    #[test]
    fn a_page_has_the_hits_next_to_its_place_and_counts_the_others() {
        // In whatever order the logs are read.
        let lines = [5, 6, 1, 2, 3, 9, 4, 8, 7];
        assert_eq!(page(Part::Newest, 4, "", &lines), (vec![6, 7, 8, 9], 5, 0));
        assert_eq!(page(Part::Newest, 20, "", &lines), ((1..10).collect(), 0, 0));
        assert_eq!(page(Part::Before(place(6)), 2, "", &lines), (vec![4, 5], 3, 4));
        assert_eq!(page(Part::After(place(6)), 2, "", &lines), (vec![7, 8], 6, 1));
        assert_eq!(page(Part::Before(place(1)), 2, "", &lines), (vec![], 0, 9));
    }

    #[test]
    fn search_2_a_page_is_bounded_in_bytes_too() {
        let long = "x".repeat(4096);
        let (hits, more, _) = page(Part::Newest, 1000, &long, &(0..500).collect::<Vec<_>>());
        assert_eq!(hits.len() as u64 + more, 500);
        assert!(hits.len() < 40 && hits.last() == Some(&499), "{}", hits.len());
        let (hits, _, newer) = page(Part::After(place(9)), 1000, &long, &(0..500).collect::<Vec<_>>());
        assert!(hits.first() == Some(&10) && hits.len() < 40 && newer > 400);
    }
}
