//! Looks for lines in the logs of a run that lie on this host: for `rankdeck logs --grep` as a command of its
//! own, so that a run that is over can be searched, too, and for the screen as a thread of the agent.
//!
//! ```text
//! kept      what is kept of one log, as one stream of lines
//! matching  which of them match
//! page      those that are wanted of all that match
//! around    all lines around a moment
//! ```
//!
//! Invariants:
//! - SEARCH-1: it never takes time from ranks: it runs where nobody else wants the core or the disk.
//! - SEARCH-2: memory is bounded by a piece of a file and by the hits that are wanted, whatever is searched.

mod around;
mod kept;
mod matching;
mod page;

use crate::entries;
use crate::paths::RunPaths;
use kept::{KeptStream, Log, Piece, shown};
use matching::Matching;
use page::Page;
use rankdeck_proto::search::{LogFindings, LogHit, LogSearch, Part};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank, RunId};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the command may take on one host.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of what it finds.
const ROOM: usize = 64 << 20;
/// Most bytes of what is found for a frame: each may become six of JSON.
pub const FRAME_ROOM: usize = 128 << 10;
/// Most lines of context, whatever is asked for.
const MOST_CONTEXT: usize = 100;
/// A log that is moved away while it is read is read again, so many times.
const TRIES: usize = 3;

/// Looks for it in every log of `run` under `workdir`.
///
/// # Errors
/// The pattern is no regular expression, or nothing of the run is here.
pub fn search(workdir: &Path, run: &RunId, wanted: &LogSearch) -> Result<LogFindings, HintedError> {
    let nodes = entries::folders_of(workdir, run);
    if nodes.is_empty() {
        return Err(HintedError::new(format!("nothing of run {run} is on this host"), "`rankdeck ps --all`"));
    }
    yield_to_others();
    let began = Instant::now();
    let found = look(&nodes, wanted, ROOM, &mut |_| began.elapsed() < PATIENCE).map_err(|error| {
        HintedError::new(
            format!("`{}`: {error}", wanted.pattern),
            "write \\( for a bracket that is meant as one",
        )
    })?;
    let cut = match found.over {
        true => found.cut,
        false => format!("not all lines were looked at within {} s", PATIENCE.as_secs()),
    };
    Ok(LogFindings { cut, over: true, ..found })
}

/// Looks through the logs of these nodes, for at most `room` bytes of hits. `go_on` is told how far it is;
/// when it says no, what was found by then is not [`LogFindings::over`].
///
/// # Errors
/// What is wrong with the pattern.
pub fn look(
    nodes: &[RunPaths],
    wanted: &LogSearch,
    room: usize,
    go_on: &mut dyn FnMut(&LogFindings) -> bool,
) -> Result<LogFindings, String> {
    let matching = Matching::new(wanted)?;
    let own = nodes.iter().filter(|paths| wanted.node.is_none_or(|only| only == paths.node));
    let mut logs: Vec<Log> = own.flat_map(logs).filter(|log| is_wanted(wanted, log)).collect();
    if let Part::Around(place) = wanted.part {
        logs.retain(|log| log.generation == place.generation);
        return Ok(around::look(&logs, wanted, place, room));
    }
    let mut findings = LogFindings::default();
    let sizes: Vec<(u64, u64)> = logs.iter().map(Log::open).map(|kept| (kept.bytes(), kept.gone())).collect();
    findings.of_bytes = sizes.iter().map(|(bytes, _)| bytes).sum();
    findings.gone_bytes = sizes.iter().map(|(_, gone)| gone).sum();
    let mut search = Search { wanted, matching, findings, page: Page::new(wanted, room), go_on };
    for log in &logs {
        if !search.log(log) {
            return Ok(search.found(false));
        }
    }
    Ok(search.found(true))
}

fn is_wanted(wanted: &LogSearch, log: &Log) -> bool {
    wanted.rank.is_none_or(|only| only == log.rank)
        && (wanted.ranks.is_empty() || wanted.ranks.contains(&log.rank))
        && wanted.generation.is_none_or(|only| only == log.generation)
}

/// Every log of a node, the older generations first.
fn logs(paths: &RunPaths) -> Vec<Log> {
    let number = |name: &str, before: &str, after: &str| -> Option<u32> {
        name.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
    };
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut found = Vec::new();
    for generation in
        names(&paths.node_dir()).iter().filter_map(|name| number(name, "gen", "")).map(Generation)
    {
        for rank in
            names(&paths.generation_dir(generation)).iter().filter_map(|name| number(name, "rank", ".log"))
        {
            found.push(Log { generation, rank: Rank(rank), path: paths.rank_log(generation, Rank(rank)) });
        }
    }
    found.sort_by_key(|log| (log.generation, log.rank));
    found
}

/// A search under way.
struct Search<'a> {
    wanted: &'a LogSearch,
    matching: Matching,
    findings: LogFindings,
    page: Page,
    go_on: &'a mut dyn FnMut(&LogFindings) -> bool,
}

/// A line and what surrounds it in its log.
struct Line<'a> {
    number: u64,
    /// Where it ends among all bytes of the rank.
    end: u64,
    text: &'a str,
}

impl Search<'_> {
    fn found(self, over: bool) -> LogFindings {
        let (hits, more, newer) = self.page.end();
        LogFindings { hits, more, newer, over, ..self.findings }
    }

    /// Looks through one log; `false` when it is not to go on.
    fn log(&mut self, log: &Log) -> bool {
        for left in (0..TRIES).rev() {
            let kept = log.open();
            let before = (self.findings.clone(), self.page.clone());
            let mut reader = LogReader { log, kept: &kept, search: self, before: VecDeque::new(), after: 0 };
            let read = kept.read(&mut |piece| reader.piece(piece));
            match read {
                Ok(false) => return false,
                Err(error) => self.findings.cut = format!("{}: {error}", log.path.display()),
                Ok(true) if kept.is_moved(log) && left > 0 => (self.findings, self.page) = before,
                Ok(true) => {}
            }
            if !kept.is_moved(log) {
                break;
            }
        }
        true
    }
}

/// One log under way.
struct LogReader<'a, 'b> {
    log: &'a Log,
    kept: &'a KeptStream,
    search: &'a mut Search<'b>,
    /// Lines before the next hit, for its context.
    before: VecDeque<String>,
    /// Lines that still belong to the last hit.
    after: usize,
}

impl LogReader<'_, '_> {
    /// Looks through a piece; `false` when it is not to go on.
    fn piece(&mut self, piece: Piece<'_>) -> bool {
        let timed = self.search.wanted.since.is_some() || self.search.wanted.until.is_some();
        let lines = match piece.long_end {
            Some(end) => {
                let text = String::from_utf8_lossy(piece.bytes);
                self.line(&Line { number: piece.first, end, text: &text });
                1
            }
            None if timed || self.search.wanted.context > 0 => self.each_line(piece),
            None => {
                let matching = self.search.matching.clone();
                matching.each(piece, |line| self.hit(line))
            }
        };
        let findings = &mut self.search.findings;
        findings.lines += lines;
        let end = piece.long_end.unwrap_or(piece.begin + piece.bytes.len() as u64);
        findings.bytes += end - piece.begin.min(end);
        (self.search.go_on)(&self.search.findings)
    }

    fn each_line(&mut self, piece: Piece<'_>) -> u64 {
        let (mut end, mut number) = (piece.begin, piece.first);
        for raw in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let text = shown(raw.strip_suffix(b"\n").unwrap_or(raw));
            self.line(&Line { number, end, text: &text });
            number += 1;
        }
        number - piece.first
    }

    /// A line of any kind, with its context.
    fn line(&mut self, line: &Line<'_>) {
        let wanted = self.search.wanted;
        let context = (wanted.context as usize).min(MOST_CONTEXT);
        let in_time = match self.kept.time(line.end).map(|read| read.seen_ms as f64 / 1000.0) {
            _ if wanted.since.is_none() && wanted.until.is_none() => true,
            Some(time) => {
                wanted.since.is_none_or(|since| time >= since)
                    && wanted.until.is_none_or(|until| time <= until)
            }
            None => {
                self.search.findings.untimed += 1;
                false
            }
        };
        if in_time && self.search.matching.wants(line.text) {
            self.hit(line);
            self.after = context;
        } else if self.after > 0 {
            self.after -= 1;
            self.search.page.after(line.text);
        } else if context > 0 {
            if self.before.len() == context {
                self.before.pop_front();
            }
            self.before.push_back(line.text.to_owned());
        }
    }

    fn hit(&mut self, line: &Line<'_>) {
        let before = self.before.drain(..).collect();
        let hit = told(self.log, self.kept, line);
        self.search.page.add(hit.place(), || LogHit { text: line.text.to_owned(), before, ..hit });
    }
}

/// A line as it is told, without its text.
fn told(log: &Log, kept: &KeptStream, line: &Line<'_>) -> LogHit {
    let read = kept.time(line.end);
    LogHit {
        rank: log.rank,
        generation: log.generation,
        line: line.number,
        time: read.map(|read| read.seen_ms as f64 / 1000.0),
        at_ms: read.map_or(0, |read| read.about_ms),
        ..LogHit::default()
    }
}

/// Takes core and disk only while nobody else wants them; for the thread that calls it.
pub fn yield_to_others() {
    /// `IOPRIO_WHO_PROCESS`, and `IOPRIO_CLASS_IDLE` where it belongs.
    const OWN: libc::c_int = 1;
    const IDLE_DISK: libc::c_int = 3 << 13;
    // SAFETY: they change the priority of this thread alone, and read nothing but the structure given.
    unsafe {
        let idle = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &idle);
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::syscall(libc::SYS_ioprio_set, OWN, 0, IDLE_DISK);
    }
}

#[cfg(test)]
mod tests;
