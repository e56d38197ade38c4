//! Keeping the file of records small: which records of a long run are left out.
//!
//! Owner: the spool's writer. What a run *is* stays: launches, processes and their ends, stops. What it
//! reported becomes coarser: counters of fewer and fewer iterations, the same ones on every host, so that
//! totals can still be compared with the ranks' own counters. Histograms and images, which are long, become
//! coarser before them. Each stretch that is left out becomes one
//! record with its range, so that numbers continue without gaps (CORE-3).
//!
//! - SPOOL-5: the file is rewritten when it reaches [`FILE_BYTES`], to about [`TARGET_BYTES`]; the newest
//!   records stay as they are, and everything that is left out is counted.

use rankdeck_proto::message::{Record, RecordEvent};
use rankdeck_proto::trust;
use rankdeck_types::ids::Generation;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Length at which the file is rewritten: an attach reads all of it.
pub(super) const FILE_BYTES: u64 = 16 << 20;
/// What is aimed at.
const TARGET_BYTES: u64 = 8 << 20;
/// Newest part that is not made coarser.
const NEWEST_BYTES: u64 = 2 << 20;

/// Stages that histograms are ahead of a series in becoming coarser, and images.
const SHORT: u32 = 1;
const LONG: u32 = 3;
/// About the length of a record that stands for others.
const OMITTED_BYTES: u64 = 110;

/// Reads a file from an offset; other readers of the same descriptor do not notice.
pub(super) struct ReadFrom {
    pub file: Arc<File>,
    pub offset: u64,
}

impl Read for ReadFrom {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The record that stands for the records `first..=last`.
pub(super) fn omitted(first: u64, last: u64, time: f64, generation: Generation) -> Record {
    Record { seq: last, time, generation, event: RecordEvent::Omitted { first } }
}

/// What of a record decides whether it stays.
#[derive(Debug, Deserialize)]
struct LightRecord {
    seq: u64,
    time: f64,
    generation: Generation,
    event: LightEvent,
}

#[derive(Debug, Deserialize)]
struct LightEvent {
    event: String,
    #[serde(default)]
    first: Option<u64>,
    #[serde(default)]
    rank: Option<u32>,
    #[serde(default, rename = "said")]
    reported: Option<EventHeader>,
}

#[derive(Debug, Deserialize)]
struct EventHeader {
    kind: String,
    #[serde(default)]
    train_iter: Option<u64>,
}

/// How dear a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordPriority {
    /// What the run is.
    Structure,
    /// Single events: evaluations, checkpoints, notices.
    Event,
    /// One of many of its kind, with its place among them.
    Series(u64),
    /// A histogram or an image, with its place among them, and how many stages it is ahead of a series.
    Logged(u64, u32),
    /// It stands for others.
    Omitted,
}

#[derive(Debug, Clone, Copy)]
struct RecordSummary {
    first: u64,
    seq: u64,
    time: f64,
    generation: Generation,
    bytes: u64,
    worth: RecordPriority,
}

/// Sorts records; places in a series without iterations are counted.
#[derive(Default)]
struct RecordClassifier {
    places: BTreeMap<Option<u32>, u64>,
    logged: u64,
}

impl RecordClassifier {
    fn fact(&mut self, line: &[u8]) -> Option<RecordSummary> {
        let light: LightRecord = serde_json::from_slice(line).ok()?;
        let place = light.event.reported.as_ref().and_then(|header| header.train_iter);
        let worth = match (
            light.event.event.as_str(),
            light.event.reported.as_ref().map(|header| header.kind.as_str()),
        ) {
            ("launched" | "rank_spawned" | "rank_exited" | "stop_ordered" | "stopped" | "ended", _) => {
                RecordPriority::Structure
            }
            ("omitted", _) => RecordPriority::Omitted,
            (_, Some("counters" | "totals" | "scalars" | "fingerprint")) => {
                RecordPriority::Series(place.unwrap_or(0))
            }
            (_, Some(kind @ ("histogram" | "image"))) => {
                self.logged += 1;
                RecordPriority::Logged(self.logged, if kind == "image" { LONG } else { SHORT })
            }
            ("metrics", _) => {
                let count = self.places.entry(light.event.rank).or_default();
                *count += 1;
                RecordPriority::Series(*count)
            }
            _ => RecordPriority::Event,
        };
        let first = light.event.first.filter(|_| worth == RecordPriority::Omitted).unwrap_or(light.seq);
        let LightRecord { seq, time, generation, .. } = light;
        Some(RecordSummary { first, seq, time, generation, bytes: line.len() as u64, worth })
    }
}

/// A pseudo-random number that is the same on every host (SplitMix64, Steele et al. 2014): programs may
/// report odd iterations only.
fn mixed(place: u64) -> u64 {
    let mut word = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Which of the older records stay: of a series one in `2^n` with the smallest `n` that is enough; where
/// nothing is enough, no events, and of former generations nothing at all.
fn choose(older: &[RecordSummary], target: u64) -> impl Fn(&RecordSummary) -> bool + use<> {
    let latest = older.iter().map(|fact| fact.generation).max().unwrap_or(Generation(0));
    let keeps = move |stage: u32, fact: &RecordSummary| match fact.worth {
        RecordPriority::Structure => stage < 32 || fact.generation == latest,
        RecordPriority::Event => stage < 31,
        RecordPriority::Series(place) => stage < 31 && mixed(place).trailing_zeros() >= stage,
        RecordPriority::Logged(place, ahead) => stage < 31 && mixed(place).trailing_zeros() >= stage + ahead,
        RecordPriority::Omitted => false,
    };
    // Each stretch that is left out costs a record of its own.
    let bytes = |stage: u32| {
        let (mut bytes, mut gap) = (0, false);
        for fact in older {
            if keeps(stage, fact) {
                bytes += fact.bytes + if gap { OMITTED_BYTES } else { 0 };
            }
            gap = !keeps(stage, fact);
        }
        bytes
    };
    let stage = (1..=32).find(|stage| bytes(*stage) <= target).unwrap_or(32);
    move |fact: &RecordSummary| keeps(stage, fact)
}

/// A file that was rewritten.
pub(super) struct RewrittenFile {
    pub file: File,
    /// Records that were left out now.
    pub left_out: u64,
}

/// Writes what is to stay of `length` bytes of `old` to `path`, which replaces the file there when it is
/// whole.
pub(super) fn rewrite(old: &Arc<File>, length: u64, path: &Path) -> io::Result<RewrittenFile> {
    let temporary = path.with_extension("jsonl.new");
    let result = write_kept(old, length, &temporary).and_then(|rewritten| {
        rewritten.file.sync_data()?;
        std::fs::rename(&temporary, path)?;
        Ok(rewritten)
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

fn lines(old: &Arc<File>, length: u64) -> BufReader<io::Take<ReadFrom>> {
    BufReader::with_capacity(1 << 16, ReadFrom { file: old.clone(), offset: 0 }.take(length))
}

fn write_kept(old: &Arc<File>, length: u64, temporary: &Path) -> io::Result<RewrittenFile> {
    let mut sorter = RecordClassifier::default();
    let (mut facts, mut offset, mut line) = (Vec::new(), 0, Vec::new());
    let mut reader = lines(old, length);
    while reader.read_until(b'\n', &mut line)? > 0 {
        facts.push((offset, sorter.fact(&line)));
        offset += line.len() as u64;
        line.clear();
    }
    let newest = facts.partition_point(|(offset, _)| offset + NEWEST_BYTES < length);
    let older: Vec<RecordSummary> = facts.iter().take(newest).filter_map(|(_, fact)| *fact).collect();
    let keep = choose(&older, TARGET_BYTES - NEWEST_BYTES);
    let mut out = BufWriter::with_capacity(1 << 16, trust::create(temporary)?);
    let (mut left_out, mut reached) = (0, 0);
    let mut reader = lines(old, length);
    for (at, (_, fact)) in facts.iter().enumerate() {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        // The last record holds the next number, and stays.
        let Some(fact) = fact else { continue };
        if at < newest && at + 1 < facts.len() && !keep(fact) {
            left_out += u64::from(fact.worth != RecordPriority::Omitted);
            continue;
        }
        if fact.first > reached + 1 {
            let record = omitted(reached + 1, fact.first - 1, fact.time, fact.generation);
            serde_json::to_writer(&mut out, &record)?;
            out.write_all(b"\n")?;
        }
        out.write_all(&line)?;
        reached = fact.seq;
    }
    Ok(RewrittenFile { file: out.into_inner().map_err(io::IntoInnerError::into_error)?, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{Counters, RankEvent};
    use rankdeck_types::ids::Rank;

    fn counters(seq: u64, train_iter: u64) -> Record {
        let event = RankEvent::Counters(Counters { train_iter, ..Counters::default() });
        let event = RecordEvent::Rank { rank: Rank(0), event };
        Record { seq, time: 1.0, generation: Generation(0), event }
    }

    fn notice(seq: u64, text: &str) -> Record {
        Record { seq, time: 1.0, generation: Generation(0), event: RecordEvent::Notice { text: text.into() } }
    }

    fn file(folder: &Path, records: &[Record]) -> (Arc<File>, u64) {
        let text: String =
            records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
        std::fs::write(folder.join("records.jsonl"), &text).unwrap();
        (Arc::new(File::open(folder.join("records.jsonl")).unwrap()), text.len() as u64)
    }

    fn rewritten(folder: &Path, records: &[Record]) -> (Vec<Record>, u64) {
        let (old, length) = file(folder, records);
        let path = folder.join("records.jsonl");
        let result = rewrite(&old, length, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() as u64 <= TARGET_BYTES + 4096, "{}", text.len());
        (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), result.left_out)
    }

    /// Every number belongs to exactly one record, and the counts agree.
    fn check(before: &[Record], after: &[Record], left_out: u64) {
        let mut reached = 0;
        let mut missing = 0;
        for record in after {
            let first = match record.event {
                RecordEvent::Omitted { first } => {
                    missing += record.seq - first + 1;
                    first
                }
                _ => record.seq,
            };
            assert_eq!(first, reached + 1, "{record:?}");
            reached = record.seq;
        }
        assert_eq!((reached, missing), (before.last().unwrap().seq, left_out));
    }

    #[test]
    fn spool_5_compaction_accounts_for_every_number() {
        let folder = tempfile::tempdir().unwrap();
        let mut records: Vec<Record> = (1..=90_000).map(|seq| counters(seq, 2 * seq + 1)).collect();
        let mode = rankdeck_proto::message::StopMode::Clean;
        let stop = RecordEvent::StopOrdered { mode, by: "x".into(), ends: false };
        records[1000].event = stop.clone();
        records[2000] = notice(2001, "once");
        let (after, left_out) = rewritten(folder.path(), &records);
        check(&records, &after, left_out);
        let length: usize = after.iter().map(|record| serde_json::to_string(record).unwrap().len() + 1).sum();
        assert!((TARGET_BYTES / 3..=TARGET_BYTES).contains(&(length as u64)), "{length}");
        assert!(after.iter().any(|record| record.event == stop) && after.contains(&records[2000]));
        assert_eq!(after[after.len() - 5000..], records[records.len() - 5000..], "the newest stay");
        // Once more: what was left out before stays counted in its record.
        let (again, more) = rewritten(
            folder.path(),
            &[after, (90_001..150_000).map(|seq| counters(seq, seq)).collect()].concat(),
        );
        check(&[counters(149_999, 1)], &again, left_out + more);
    }

    #[test]
    fn spool_5_flood_of_single_events_is_bounded_too() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(20_000);
        let mut records: Vec<Record> = (1..=1000).map(|seq| notice(seq, &long)).collect();
        records[0].event =
            RecordEvent::RankSpawned { rank: Rank(0), local_rank: rankdeck_types::ids::LocalRank(0), pid: 1 };
        let (after, left_out) = rewritten(folder.path(), &records);
        check(&records, &after, left_out);
        assert!(left_out > 800 && after.contains(&records[0]), "{left_out}");
    }

    #[test]
    fn spool_5_pictures_do_not_crowd_out_counters() {
        use rankdeck_proto::message::LoggedImage;
        let folder = tempfile::tempdir().unwrap();
        let picture = |seq: u64| {
            let event = RankEvent::Image(LoggedImage { data: "x".repeat(40_000), ..LoggedImage::default() });
            let event = RecordEvent::Rank { rank: Rank(0), event };
            Record { seq, time: 1.0, generation: Generation(0), event }
        };
        let records: Vec<Record> =
            (1..=20_000).map(|seq| if seq % 40 == 0 { picture(seq) } else { counters(seq, seq) }).collect();
        let (after, left_out) = rewritten(folder.path(), &records);
        check(&records, &after, left_out);
        let count = |kind: &str| after.iter().filter(|record| format!("{record:?}").contains(kind)).count();
        let (pictures, counters) = (count("Image("), count("Counters("));
        assert!((60..200).contains(&pictures) && counters > 8_000, "{pictures} {counters}");
    }

    #[test]
    fn hosts_keep_the_same_iterations() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let kept = |folder: &Path, every: u64| {
            let records: Vec<Record> = (1..=90_000).map(|seq| counters(seq, every * seq)).collect();
            let kept = rewritten(folder, &records).0.into_iter().filter_map(|record| match record.event {
                RecordEvent::Rank { event: RankEvent::Counters(counters), .. } => Some(counters.train_iter),
                _ => None,
            });
            kept.filter(|train_iter| *train_iter < 50_000).collect::<Vec<_>>()
        };
        assert_eq!(kept(folders[0].path(), 1), kept(folders[1].path(), 1));
    }
}
