//! How many histograms and images are passed on: programs may log them at every step.
//!
//! Owner: the agent; event connections and the follower of event files share one [`MediaLimiter`]. Invariants:
//! - MEDIA-2: of each name a few pass at once and then one a second; all together pass no more bytes than
//!   [`MediaKind::rate`]; at most [`NAMES`] names of a kind pass. The rest is counted.

use rankdeck_proto::media::{self, Histogram};
use rankdeck_proto::message::{LoggedHistogram, LoggedImage};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most names of one kind.
pub(crate) const NAMES: usize = 32;
/// Of each name and second; a little more than the client in Python sends.
const EACH: f64 = 1.25;

/// What is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MediaKind {
    Histogram,
    Picture,
}

impl MediaKind {
    /// How many of one name may pass at once.
    fn burst(self) -> f64 {
        match self {
            MediaKind::Histogram => 12.0,
            MediaKind::Picture => 6.0,
        }
    }

    /// Bytes of all names that may pass at once, and a second.
    fn rate(self) -> (f64, f64) {
        match self {
            MediaKind::Histogram => (1e6, 24e3),
            MediaKind::Picture => (2e6, 64e3),
        }
    }
}

/// What may be spent: it grows with time up to a bound.
#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    fn full(most: f64, now: Instant) -> TokenBucket {
        TokenBucket { left: most, at: now }
    }

    fn grow(&mut self, rate: f64, most: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + passed * rate).min(most), now);
    }
}

#[derive(Debug, Default)]
struct TokenBuckets {
    names: BTreeMap<(MediaKind, String), TokenBucket>,
    bytes: BTreeMap<MediaKind, TokenBucket>,
}

/// Limits the histograms and images of a run. Clones share one.
#[derive(Debug, Clone, Default)]
pub(crate) struct MediaLimiter {
    purses: Arc<Mutex<TokenBuckets>>,
    withheld: Arc<AtomicU64>,
}

impl MediaLimiter {
    /// Starts a generation.
    pub fn start(&self) {
        *self.purses.lock().unwrap_or_else(PoisonError::into_inner) = TokenBuckets::default();
    }

    /// How many were not passed on, so far.
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Counts those that were not passed on.
    pub fn withhold(&self, count: u64) {
        let more = |before: u64| Some(before.saturating_add(count));
        // Of a closure that always gives a number, this cannot fail.
        let _ = self.withheld.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// How many more of this name may pass now.
    pub fn room(&self, kind: MediaKind, name: &str, now: Instant) -> usize {
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        purses.name(kind, name, now).map_or(0, |purse| purse.left.max(0.0) as usize)
    }

    /// Whether this one passes (MEDIA-2); it is counted where it does not.
    pub fn passes(&self, kind: MediaKind, name: &str, bytes: usize, now: Instant) -> bool {
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = purses.pay(kind, name, bytes as f64, now);
        drop(purses);
        if !passes {
            self.withhold(1);
        }
        passes
    }

    /// A histogram of a rank; `None` when it does not pass.
    ///
    /// # Errors
    /// It is invalid; the reason is for its sender.
    pub fn histogram(
        &self,
        logged: LoggedHistogram,
        now: Instant,
    ) -> Result<Option<LoggedHistogram>, String> {
        self.withhold(logged.skipped);
        media::check_name(&logged.name)?;
        let bins = Histogram { edges: logged.edges, counts: logged.counts };
        bins.check()?;
        // About what it takes in a record.
        let bytes = 100 + logged.name.len() + 12 * (bins.edges.len() + bins.counts.len());
        let passes = self.passes(MediaKind::Histogram, &logged.name, bytes, now);
        let logged = LoggedHistogram { edges: bins.edges, counts: bins.counts, skipped: 0, ..logged };
        Ok(passes.then_some(logged))
    }

    /// An image of a rank; `None` when it does not pass.
    ///
    /// # Errors
    /// As [`MediaLimiter::histogram`].
    pub fn picture(&self, logged: LoggedImage, now: Instant) -> Result<Option<LoggedImage>, String> {
        self.withhold(logged.skipped);
        media::check_name(&logged.name)?;
        media::decoded(&logged.data)?;
        let passes = self.passes(MediaKind::Picture, &logged.name, 100 + logged.data.len(), now);
        Ok(passes.then_some(LoggedImage { skipped: 0, ..logged }))
    }
}

impl TokenBuckets {
    /// What a name may spend; `None` for one too many.
    fn name(&mut self, kind: MediaKind, name: &str, now: Instant) -> Option<&mut TokenBucket> {
        let key = (kind, name.to_owned());
        let known = self.names.keys().filter(|(known, _)| *known == kind).count();
        if known >= NAMES && !self.names.contains_key(&key) {
            return None;
        }
        let purse = self.names.entry(key).or_insert_with(|| TokenBucket::full(kind.burst(), now));
        purse.grow(EACH, kind.burst(), now);
        Some(purse)
    }

    fn pay(&mut self, kind: MediaKind, name: &str, bytes: f64, now: Instant) -> bool {
        let (most, rate) = kind.rate();
        let all = self.bytes.entry(kind).or_insert_with(|| TokenBucket::full(most, now));
        all.grow(rate, most, now);
        let room = all.left >= bytes;
        let Some(purse) = self.name(kind, name, now).filter(|purse| room && purse.left >= 1.0) else {
            return false;
        };
        purse.left -= 1.0;
        if let Some(all) = self.bytes.get_mut(&kind) {
            all.left -= bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn media_2_names_rates_and_bytes_are_bounded() {
        let (gate, begun) = (MediaLimiter::default(), Instant::now());
        let passed = |name: &str, at: u64, bytes: usize, count: usize| {
            let now = begun + Duration::from_secs(at);
            (0..count).filter(|_| gate.passes(MediaKind::Picture, name, bytes, now)).count()
        };
        assert_eq!((passed("a", 0, 10, 100), gate.withheld()), (6, 94));
        assert_eq!(passed("a", 4, 10, 100), 5);
        assert_eq!(passed("b", 4, 300_000, 6), 6, "another name has its own");
        assert_eq!(passed("c", 4, 300_000, 6), 0, "all together have sent enough");
        assert_eq!(passed("c", 9, 300_000, 6), 1);
        let many = (0..100).filter(|i| passed(&format!("name {i}"), 60, 10, 1) == 1).count();
        assert_eq!(many, NAMES - 3);
        assert!(gate.passes(MediaKind::Histogram, "a", 10, begun), "the kinds are apart");
        gate.start();
        assert_eq!(passed("new", 60, 10, 1), 1, "a generation starts again");
    }

    #[test]
    fn invalid_histograms_and_images_are_refused_with_a_reason() {
        let gate = MediaLimiter::default();
        let bins = |edges: &[f64]| LoggedHistogram {
            name: "w".into(),
            edges: edges.to_vec(),
            counts: vec![1.0],
            skipped: 5,
            ..LoggedHistogram::default()
        };
        let passed = gate.histogram(bins(&[0.0, 1.0]), Instant::now()).unwrap().unwrap();
        assert_eq!((passed.skipped, gate.withheld()), (0, 5), "counted here, and nowhere else");
        let falling = gate.histogram(bins(&[1.0, 0.0]), Instant::now()).unwrap_err();
        let reason = Histogram { edges: vec![1.0, 0.0], counts: vec![1.0] }.check().unwrap_err();
        assert_eq!(falling, reason);
        let picture =
            |name: &str, data: String| LoggedImage { name: name.into(), data, ..LoggedImage::default() };
        let logged = gate.picture(picture("p", media::encoded(b"text")), Instant::now()).unwrap_err();
        assert_eq!(logged, media::ImageHeader::of(b"text").unwrap_err());
        let unnamed = gate.picture(picture("", String::new()), Instant::now()).unwrap_err();
        assert_eq!(unnamed, media::check_name("").unwrap_err());
    }
}
