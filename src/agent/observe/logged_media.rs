//! Histograms and images from event files that wait to be sent. They pass the [`MediaLimiter`], as those of the
//! event socket do.

use crate::observe::media_limiter::{MediaKind, MediaLimiter};
use rankdeck_proto::media::{self, Histogram, ImageHeader};
use rankdeck_proto::message::{LoggedHistogram, LoggedImage, RankEvent, RecordEvent};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use std::collections::BTreeMap;
use std::time::Instant;

/// Most histograms of a name that wait.
const HISTOGRAMS: usize = 16;
/// Most images of a name that wait.
const PICTURES: usize = 4;
/// Most names of either kind.
const MEDIA_NAMES: usize = 64;
/// Most reports of invalid ones; the others are only counted.
const REPORTED: u32 = 8;

/// Histograms and images from event files that wait to be sent. Of each name a few are kept, spread over the steps,
/// the newest among them; what is not passed on is counted, and invalid ones are reported a few times.
#[derive(Debug, Default)]
pub(super) struct LoggedMedia {
    histograms: PendingMedia<Histogram>,
    pictures: PendingMedia<Vec<u8>>,
    wrong: Vec<String>,
    reported: u32,
    dropped: u64,
}

/// What waits under each name.
#[derive(Debug)]
struct PendingMedia<T>(BTreeMap<String, ThinnedSeries<T>>);

/// The newest of a name with its step, and of those before it one in `stride`.
#[derive(Debug)]
struct ThinnedSeries<T> {
    newest: (u64, T),
    before: Vec<(u64, T)>,
    stride: u64,
    seen: u64,
}

impl<T> ThinnedSeries<T> {
    /// Returns how many gave way; `most`, an even number, is for those before the newest.
    fn add(&mut self, step: u64, one: T, most: usize) -> u64 {
        let former = std::mem::replace(&mut self.newest, (step, one));
        self.seen += 1;
        if !self.seen.is_multiple_of(self.stride) {
            return 1;
        }
        let length = self.before.len();
        if length + 1 >= most {
            let mut at = 0;
            self.before.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.stride *= 2;
        }
        let gone = length - self.before.len();
        self.before.push(former);
        gone as u64
    }
}

impl<T> Default for PendingMedia<T> {
    fn default() -> PendingMedia<T> {
        PendingMedia(BTreeMap::new())
    }
}

impl<T> PendingMedia<T> {
    /// Returns how many gave way.
    fn add(&mut self, name: String, step: u64, one: T, most: usize) -> u64 {
        if self.0.len() >= MEDIA_NAMES && !self.0.contains_key(&name) {
            return 1;
        }
        match self.0.get_mut(&name) {
            Some(kept) => kept.add(step, one, most),
            None => {
                let kept = ThinnedSeries { newest: (step, one), before: Vec::new(), stride: 1, seen: 0 };
                self.0.insert(name, kept);
                0
            }
        }
    }

    /// Of each name as many as there is room for, spread over those that wait; and how many there was none
    /// for.
    fn take(&mut self, room: impl Fn(&str) -> usize) -> (Vec<(String, u64, T)>, u64) {
        let (mut taken, mut gone) = (Vec::new(), 0);
        for (name, ThinnedSeries { newest, before, .. }) in std::mem::take(&mut self.0) {
            let (count, room) = (before.len() + 1, room(&name));
            let chosen: Vec<usize> = match room {
                _ if room >= count => (0..count).collect(),
                0 => Vec::new(),
                1 => vec![count - 1],
                _ => (0..room).map(|i| i * (count - 1) / (room - 1)).collect(),
            };
            gone += (count - chosen.len()) as u64;
            let kept = before.into_iter().chain([newest]).enumerate().filter(|(at, _)| chosen.contains(at));
            taken.extend(kept.map(|(_, (step, one))| (name.clone(), step, one)));
        }
        (taken, gone)
    }
}

impl LoggedMedia {
    /// Takes in a histogram.
    pub fn histogram(&mut self, name: String, step: u64, bins: Histogram) {
        match media::check_name(&name) {
            Ok(()) => self.dropped += self.histograms.add(name, step, bins, HISTOGRAMS),
            Err(why) => self.refuse("histogram", &name, step, &why),
        }
    }

    /// Takes in an image.
    pub fn picture(&mut self, name: String, step: u64, file: &[u8]) {
        match media::check_name(&name).and_then(|()| ImageHeader::of(file)) {
            Ok(_) => self.dropped += self.pictures.add(name, step, file.to_vec(), PICTURES),
            Err(why) => self.refuse("image", &name, step, &why),
        }
    }

    /// Counts an invalid one, and reports it within the limit.
    pub fn refuse(&mut self, kind: &str, name: &str, step: u64, why: &str) {
        self.dropped += 1;
        self.reported += 1;
        if self.reported > REPORTED {
            return;
        }
        let rest = if self.reported == REPORTED { "; further problems are only counted" } else { "" };
        let name = words::clip(name, 80);
        self.wrong.push(format!("metrics.tensorboard: {kind} `{name}` at step {step}: {why}{rest}"));
    }

    /// A record of the file is longer than any that is read.
    pub fn too_long(&mut self, bytes: u64) {
        let why = format!("a record of {} was skipped", words::bytes(bytes));
        self.refuse("summary", "", 0, &why);
    }

    /// What is to be recorded now.
    pub fn take(&mut self, gate: &MediaLimiter, now: Instant) -> Vec<RecordEvent> {
        gate.withhold(std::mem::take(&mut self.dropped));
        let mut all: Vec<RecordEvent> =
            std::mem::take(&mut self.wrong).into_iter().map(|text| RecordEvent::Notice { text }).collect();
        let mut report = |event| all.push(RecordEvent::Rank { rank: Rank(0), event });
        let (histograms, gone) = self.histograms.take(|name| gate.room(MediaKind::Histogram, name, now));
        gate.withhold(gone);
        for (name, env_step, bins) in histograms {
            let Histogram { edges, counts } = bins;
            let one = LoggedHistogram { name, env_step, edges, counts, ..LoggedHistogram::default() };
            // It was checked when it was read.
            if let Ok(Some(one)) = gate.histogram(one, now) {
                report(RankEvent::Histogram(one));
            }
        }
        let (pictures, gone) = self.pictures.take(|name| gate.room(MediaKind::Picture, name, now));
        gate.withhold(gone);
        for (name, env_step, file) in pictures {
            let one = LoggedImage { name, env_step, data: media::encoded(&file), ..LoggedImage::default() };
            if let Ok(Some(one)) = gate.picture(one, now) {
                report(RankEvent::Image(one));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(events: &[RecordEvent]) -> Vec<u64> {
        let step = |event: &RecordEvent| match event {
            RecordEvent::Rank { event: RankEvent::Histogram(one), .. } => Some(one.env_step),
            _ => None,
        };
        events.iter().filter_map(step).collect()
    }

    #[test]
    fn many_steps_are_thinned_and_the_rest_counted() {
        let (gate, mut logged, now) = (MediaLimiter::default(), LoggedMedia::default(), Instant::now());
        let bins = Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] };
        (0..1000).for_each(|step| logged.histogram("w".into(), step, bins.clone()));
        let reported = steps(&logged.take(&gate, now));
        assert!((8..=12).contains(&reported.len()), "{reported:?}");
        assert_eq!((reported.last(), reported.len() as u64 + gate.withheld()), (Some(&999), 1000));
        assert!(reported[0] < 300, "spread over all: {reported:?}");
    }

    #[test]
    fn invalid_media_are_reported_a_few_times_and_counted() {
        let (gate, mut logged) = (MediaLimiter::default(), LoggedMedia::default());
        (0..20).for_each(|step| logged.picture("seen".into(), step, b"text"));
        logged.picture("n".repeat(300), 0, b"GIF89a\x05\0\x04\0");
        let reported = logged.take(&gate, Instant::now());
        assert_eq!((reported.len(), gate.withheld()), (REPORTED as usize, 21));
        let RecordEvent::Notice { text } = &reported[0] else { panic!("{reported:?}") };
        assert!(text.contains("`seen`") && text.ends_with(&ImageHeader::of(b"text").unwrap_err()), "{text}");
    }
}
