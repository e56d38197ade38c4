//! Histograms and pictures that one look at the event files has found.
//!
//! Of each name a few are kept, spread over the steps, the newest among them; what is not passed on is
//! counted, and what is wrong is told a few times.

use crate::observe::gate::{Gate, Kind};
use rankdeck_proto::media::{self, Histogram, PictureHead};
use rankdeck_proto::message::{LoggedHistogram, LoggedImage, RankEvent, RecordEvent};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use std::collections::BTreeMap;
use std::time::Instant;

/// Most histograms of a name that wait.
const HISTOGRAMS: usize = 16;
/// Most pictures of a name that wait.
const PICTURES: usize = 4;
/// Most names of either kind.
const NAMES: usize = 64;
/// Wrong ones that are told; the others are only counted.
const TOLD: u32 = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LoggedMedia {
    histograms: PendingMedia<Histogram>,
    pictures: PendingMedia<Vec<u8>>,
    wrong: Vec<String>,
    told: u32,
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
        if self.0.len() >= NAMES && !self.0.contains_key(&name) {
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
            let wanted: Vec<usize> = match room {
                _ if room >= count => (0..count).collect(),
                0 => Vec::new(),
                1 => vec![count - 1],
                _ => (0..room).map(|i| i * (count - 1) / (room - 1)).collect(),
            };
            gone += (count - wanted.len()) as u64;
            let kept = before.into_iter().chain([newest]).enumerate().filter(|(at, _)| wanted.contains(at));
            taken.extend(kept.map(|(_, (step, one))| (name.clone(), step, one)));
        }
        (taken, gone)
    }
}

impl LoggedMedia {
    pub fn histogram(&mut self, name: String, step: u64, bins: Histogram) {
        match media::check_name(&name) {
            Ok(()) => self.dropped += self.histograms.add(name, step, bins, HISTOGRAMS),
            Err(why) => self.refuse("histogram", &name, step, &why),
        }
    }

    pub fn picture(&mut self, name: String, step: u64, file: &[u8]) {
        match media::check_name(&name).and_then(|()| PictureHead::of(file)) {
            Ok(_) => self.dropped += self.pictures.add(name, step, file.to_vec(), PICTURES),
            Err(why) => self.refuse("image", &name, step, &why),
        }
    }

    /// One that is none.
    pub fn refuse(&mut self, kind: &str, name: &str, step: u64, why: &str) {
        self.dropped += 1;
        self.told += 1;
        if self.told > TOLD {
            return;
        }
        let rest = if self.told == TOLD { "; further ones are only counted" } else { "" };
        let name = words::clip(name, 80);
        self.wrong.push(format!("metrics.tensorboard: {kind} `{name}` at step {step}: {why}{rest}"));
    }

    /// A record of the file is longer than any that is read.
    pub fn too_long(&mut self, bytes: u64) {
        let why = format!("a record of {} was passed over", words::bytes(bytes));
        self.refuse("summary", "", 0, &why);
    }

    /// What is to be recorded now.
    pub fn take(&mut self, gate: &Gate, now: Instant) -> Vec<RecordEvent> {
        gate.withhold(std::mem::take(&mut self.dropped));
        let mut all: Vec<RecordEvent> =
            std::mem::take(&mut self.wrong).into_iter().map(|text| RecordEvent::Notice { text }).collect();
        let mut say = |said| all.push(RecordEvent::Rank { rank: Rank(0), said });
        let (histograms, gone) = self.histograms.take(|name| gate.room(Kind::Histogram, name, now));
        gate.withhold(gone);
        for (name, env_step, bins) in histograms {
            let Histogram { edges, counts } = bins;
            let one = LoggedHistogram { name, env_step, edges, counts, ..LoggedHistogram::default() };
            // It was checked when it was read.
            if let Ok(Some(one)) = gate.histogram(one, now) {
                say(RankEvent::Histogram(one));
            }
        }
        let (pictures, gone) = self.pictures.take(|name| gate.room(Kind::Picture, name, now));
        gate.withhold(gone);
        for (name, env_step, file) in pictures {
            let one = LoggedImage { name, env_step, data: media::encoded(&file), ..LoggedImage::default() };
            if let Ok(Some(one)) = gate.picture(one, now) {
                say(RankEvent::Image(one));
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
            RecordEvent::Rank { said: RankEvent::Histogram(one), .. } => Some(one.env_step),
            _ => None,
        };
        events.iter().filter_map(step).collect()
    }

    #[test]
    fn of_many_steps_some_are_told_the_newest_among_them_and_the_rest_is_counted() {
        let (gate, mut logged, now) = (Gate::default(), LoggedMedia::default(), Instant::now());
        let bins = Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] };
        (0..1000).for_each(|step| logged.histogram("w".into(), step, bins.clone()));
        let told = steps(&logged.take(&gate, now));
        assert!((8..=12).contains(&told.len()), "{told:?}");
        assert_eq!((told.last(), told.len() as u64 + gate.withheld()), (Some(&999), 1000));
        assert!(told[0] < 300, "spread over all: {told:?}");
    }

    #[test]
    fn wrong_ones_are_told_a_few_times_and_counted() {
        let (gate, mut logged) = (Gate::default(), LoggedMedia::default());
        (0..20).for_each(|step| logged.picture("seen".into(), step, b"text"));
        logged.picture("n".repeat(300), 0, b"GIF89a\x05\0\x04\0");
        let told = logged.take(&gate, Instant::now());
        assert_eq!((told.len(), gate.withheld()), (TOLD as usize, 21));
        let RecordEvent::Notice { text } = &told[0] else { panic!("{told:?}") };
        assert_eq!(text, "metrics.tensorboard: image `seen` at step 0: it is neither PNG nor GIF");
    }
}
