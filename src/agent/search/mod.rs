//! Searches the logs of a run that lie on this host: for `rankdeck logs --grep` as a command of its own, so that a
//! finished run can be searched, too, and for the screen as a thread of the agent.
//!
//! ```text
//! log_stream  what is kept of one log, as one stream of lines
//! ```
//!
//! Invariants:
//! - SEARCH-1: it never takes time from ranks: it runs at idle priority for cores and disks.
//! - SEARCH-2: memory is bounded by a chunk of a file and by the requested hits, whatever is searched.
//!
//! All lines around a moment: of each log some before it and some after it, and of those only where the lines
//! of every log are complete.

mod log_stream;

use crate::entries;
use crate::observe::logs::line_ends;
use crate::paths::RunPaths;
use log_stream::{KeptStream, Log, LogChunk, shown};
use rankdeck_proto::search::{HitSelection, LinePlace, LogFindings, LogHit, LogSearch, compile};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank, RunId};
use regex::{Regex, bytes};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the command may take on one host.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of what it finds.
const ROOM: usize = 64 << 20;
/// Most bytes of what is found for a frame: each may become six of JSON.
pub(crate) const FRAME_ROOM: usize = 128 << 10;
/// Most lines of context, whatever is asked for.
const MOST_CONTEXT: usize = 100;
/// How often a log is read again that is moved away while it is read.
const TRIES: usize = 3;

/// Searches every log of `run` under `workdir`.
///
/// # Errors
/// The pattern is not a regular expression, or the run is not on this host.
pub(crate) fn search(workdir: &Path, run: &RunId, query: &LogSearch) -> Result<LogFindings, HintedError> {
    let nodes = entries::folders_of(workdir, run);
    if nodes.is_empty() {
        return Err(HintedError::new(
            format!("run {run} not found on this host"),
            "list runs with `rankdeck ps --all`",
        ));
    }
    yield_to_others();
    let began = Instant::now();
    let found = search_nodes(&nodes, query, ROOM, &mut |_| began.elapsed() < PATIENCE).map_err(|error| {
        HintedError::new(format!("`{}`: {error}", query.pattern), "write `\\(` for a literal parenthesis")
    })?;
    let cut = match found.over {
        true => found.cut,
        false => format!("not all lines were searched within {} s", PATIENCE.as_secs()),
    };
    Ok(LogFindings { cut, over: true, ..found })
}

/// Searches the logs of these nodes, for at most `room` bytes of hits. `go_on` gets the progress;
/// when it returns `false`, the result is not [`LogFindings::over`].
///
/// # Errors
/// What is wrong with the pattern.
pub(crate) fn search_nodes(
    nodes: &[RunPaths],
    query: &LogSearch,
    room: usize,
    go_on: &mut dyn FnMut(&LogFindings) -> bool,
) -> Result<LogFindings, String> {
    let matcher = LineMatcher::new(query)?;
    let own = nodes.iter().filter(|paths| query.node.is_none_or(|only| only == paths.node));
    let mut logs: Vec<Log> = own.flat_map(logs).filter(|log| is_searched(query, log)).collect();
    if let HitSelection::Around(place) = query.part {
        logs.retain(|log| log.generation == place.generation);
        return Ok(search_around(&logs, query, place, room));
    }
    let mut findings = LogFindings::default();
    let sizes: Vec<(u64, u64)> = logs.iter().map(Log::open).map(|kept| (kept.bytes(), kept.gone())).collect();
    findings.of_bytes = sizes.iter().map(|(bytes, _)| bytes).sum();
    findings.gone_bytes = sizes.iter().map(|(_, gone)| gone).sum();
    let mut search = Search { query, matcher, findings, page: HitPage::new(query, room), go_on };
    for log in &logs {
        if !search.log(log) {
            return Ok(search.found(false));
        }
    }
    Ok(search.found(true))
}

fn is_searched(query: &LogSearch, log: &Log) -> bool {
    query.rank.is_none_or(|only| only == log.rank)
        && (query.ranks.is_empty() || query.ranks.contains(&log.rank))
        && query.generation.is_none_or(|only| only == log.generation)
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
    query: &'a LogSearch,
    matcher: LineMatcher,
    findings: LogFindings,
    page: HitPage,
    go_on: &'a mut dyn FnMut(&LogFindings) -> bool,
}

/// A line and what surrounds it in its log.
struct SearchLine<'a> {
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

    /// Searches one log; `false` to stop.
    fn log(&mut self, log: &Log) -> bool {
        for left in (0..TRIES).rev() {
            let kept = log.open();
            let before = (self.findings.clone(), self.page.clone());
            let mut reader = LogScan { log, kept: &kept, search: self, before: VecDeque::new(), after: 0 };
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
struct LogScan<'a, 'b> {
    log: &'a Log,
    kept: &'a KeptStream,
    search: &'a mut Search<'b>,
    /// Lines before the next hit, for its context.
    before: VecDeque<String>,
    /// Lines that still belong to the last hit.
    after: usize,
}

impl LogScan<'_, '_> {
    /// Searches a chunk; `false` to stop.
    fn piece(&mut self, piece: LogChunk<'_>) -> bool {
        let timed = self.search.query.since.is_some() || self.search.query.until.is_some();
        let lines = match piece.long_end {
            Some(end) => {
                let text = String::from_utf8_lossy(piece.bytes);
                self.line(&SearchLine { number: piece.first, end, text: &text });
                1
            }
            None if timed || self.search.query.context > 0 => self.each_line(piece),
            None => {
                let matcher = self.search.matcher.clone();
                matcher.each(piece, |line| self.hit(line))
            }
        };
        let findings = &mut self.search.findings;
        findings.lines += lines;
        let end = piece.long_end.unwrap_or(piece.begin + piece.bytes.len() as u64);
        findings.bytes += end - piece.begin.min(end);
        (self.search.go_on)(&self.search.findings)
    }

    fn each_line(&mut self, piece: LogChunk<'_>) -> u64 {
        let (mut end, mut number) = (piece.begin, piece.first);
        for raw in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let text = shown(raw.strip_suffix(b"\n").unwrap_or(raw));
            self.line(&SearchLine { number, end, text: &text });
            number += 1;
        }
        number - piece.first
    }

    /// A line of any kind, with its context.
    fn line(&mut self, line: &SearchLine<'_>) {
        let query = self.search.query;
        let context = (query.context as usize).min(MOST_CONTEXT);
        let in_time = match self.kept.time(line.end).map(|read| read.seen_ms as f64 / 1000.0) {
            _ if query.since.is_none() && query.until.is_none() => true,
            Some(time) => {
                query.since.is_none_or(|since| time >= since) && query.until.is_none_or(|until| time <= until)
            }
            None => {
                self.search.findings.untimed += 1;
                false
            }
        };
        if in_time && self.search.matcher.matches(line.text) {
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

    fn hit(&mut self, line: &SearchLine<'_>) {
        let before = self.before.drain(..).collect();
        let hit = hit_of(self.log, self.kept, line);
        self.search.page.add(hit.place(), || LogHit { text: line.text.to_owned(), before, ..hit });
    }
}

/// Returns a line as a hit, without its text.
fn hit_of(log: &Log, kept: &KeptStream, line: &SearchLine<'_>) -> LogHit {
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

/// Gives the calling thread idle priority for core and disk.
pub(crate) fn yield_to_others() {
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

/// Most hits, whatever is asked for.
const MOST_HITS: usize = 10_000;
/// About what a hit takes next to its texts.
const HIT_BYTES: usize = 128;

/// The requested page of all matches: the newest, those before a place, or those after it. Bounded.
#[derive(Debug, Clone)]
struct HitPage {
    part: HitSelection,
    hits: BTreeMap<LinePlace, LogHit>,
    limit: usize,
    room: usize,
    bytes: usize,
    more: u64,
    newer: u64,
    /// The hit that was added last, and is still there.
    last: Option<LinePlace>,
}

impl HitPage {
    /// At most `room` bytes of hits.
    fn new(query: &LogSearch, room: usize) -> HitPage {
        HitPage {
            part: query.part,
            hits: BTreeMap::new(),
            limit: (query.limit as usize).clamp(1, MOST_HITS),
            room,
            bytes: 0,
            more: 0,
            newer: 0,
            last: None,
        }
    }

    /// A hit; `make` is called when it is kept.
    fn add(&mut self, place: LinePlace, make: impl FnOnce() -> LogHit) {
        self.last = None;
        match self.part {
            HitSelection::Before(end) if !place.is_before(&end) => return self.newer += 1,
            HitSelection::After(begin) if !begin.is_before(&place) => return self.more += 1,
            _ => {}
        }
        let full = self.hits.len() >= self.limit;
        match (self.is_from_the_begin(), self.hits.first_key_value(), self.hits.last_key_value()) {
            (false, Some((first, _)), _) if full && place < *first => return self.more += 1,
            (true, _, Some((last, _))) if full && place > *last => return self.newer += 1,
            _ => {}
        }
        let hit = make();
        self.bytes += hit_bytes(&hit);
        self.hits.insert(place, hit);
        self.last = Some(place);
        self.shrink();
    }

    /// A line that follows the last hit.
    fn after(&mut self, text: &str) {
        if let Some(hit) = self.last.and_then(|place| self.hits.get_mut(&place)) {
            hit.after.push(text.to_owned());
            self.bytes += text.len();
            self.shrink();
        }
    }

    /// Hits, and how many are before and after them.
    fn end(self) -> (Vec<LogHit>, u64, u64) {
        (self.hits.into_values().collect(), self.more, self.newer)
    }

    fn is_from_the_begin(&self) -> bool {
        matches!(self.part, HitSelection::After(_))
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
            self.bytes -= gone.as_ref().map_or(0, |(_, hit)| hit_bytes(hit));
        }
    }
}

/// About how many bytes a hit takes.
fn hit_bytes(hit: &LogHit) -> usize {
    let texts = hit.before.iter().chain(&hit.after).chain([&hit.text]);
    HIT_BYTES + texts.map(String::len).sum::<usize>()
}

/// Matches lines: a whole chunk is searched at once, and each candidate line is matched as it is displayed.
#[derive(Debug, Clone)]
struct LineMatcher {
    line: Regex,
    invert: bool,
    /// Finds the start of what may match in many lines; `None`: line by line.
    many: Option<bytes::Regex>,
}

impl LineMatcher {
    /// # Errors
    /// What is wrong with the pattern.
    fn new(query: &LogSearch) -> Result<LineMatcher, String> {
        let line = compile(&query.pattern)?;
        Ok(LineMatcher { line, invert: query.invert, many: many(&query.pattern).filter(|_| !query.invert) })
    }

    /// Whether this line matches.
    fn matches(&self, text: &str) -> bool {
        self.line.is_match(text) != self.invert
    }

    /// Calls `each` for the matcher lines of a chunk; returns how many lines it has.
    fn each(&self, piece: LogChunk<'_>, mut each: impl FnMut(&SearchLine<'_>)) -> u64 {
        let bytes = piece.bytes;
        let many = self.many.as_ref().filter(|_| std::str::from_utf8(bytes).is_ok());
        let (mut at, mut number) = (0, piece.first);
        while at < bytes.len() {
            let begin = match many {
                None => at,
                Some(many) => {
                    let Some(found) = many.find_at(bytes, at) else { break };
                    let before = &bytes[at..found.start()];
                    number += line_ends(before);
                    at + before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
                }
            };
            if begin == bytes.len() {
                // All lines before are counted.
                at = begin;
                break;
            }
            let rest = &bytes[begin..];
            let len = rest.iter().position(|byte| *byte == b'\n');
            let next = begin + len.map_or(rest.len(), |len| len + 1);
            let text = shown(&rest[..len.unwrap_or(rest.len())]);
            if self.matches(&text) {
                each(&SearchLine { number, end: piece.begin + next as u64, text: &text });
            }
            (at, number) = (next, number + 1);
        }
        // One without an end is a line, too.
        number - piece.first
            + line_ends(&bytes[at..])
            + u64::from(at < bytes.len() && bytes.last() != Some(&b'\n'))
    }
}

/// Returns the pattern for many lines at once. It must find every line's match: `None` for a pattern that
/// distinguishes the start of a line from that of the text.
fn many(pattern: &str) -> Option<bytes::Regex> {
    if pattern.is_empty() || ["\\A", "\\z", "(?"].iter().any(|special| pattern.contains(special)) {
        return None;
    }
    let any_case = !pattern.chars().any(char::is_uppercase);
    bytes::RegexBuilder::new(pattern).case_insensitive(any_case).multi_line(true).crlf(true).build().ok()
}

/// Fewest and most lines of a log on each side.
const LEAST: usize = 3;
const MOST: usize = 500;

/// Finds them.
fn search_around(logs: &[Log], query: &LogSearch, place: LinePlace, room: usize) -> LogFindings {
    let side = (query.limit as usize / logs.len().max(1) / 2).clamp(LEAST, MOST);
    let (mut findings, mut windows) = (LogFindings { over: true, ..LogFindings::default() }, Vec::new());
    for log in logs {
        let kept = log.open();
        let mut window = Window::new(log, &kept, place, side);
        if let Err(error) = kept.read(&mut |piece| window.piece(piece)) {
            findings.cut = format!("{}: {error}", log.path.display());
        }
        windows.push(window.taken());
    }
    let first = windows
        .iter()
        .filter(|taken| taken.older > 0)
        .filter_map(|taken| taken.lines.first())
        .map(LogHit::place)
        .max();
    let last = windows
        .iter()
        .filter(|taken| taken.newer)
        .filter_map(|taken| taken.lines.last())
        .map(LogHit::place)
        .min();
    let older: u64 = windows.iter().map(|taken| taken.older).sum();
    let newer = windows.iter().any(|taken| taken.newer);
    let all = windows.into_iter().flat_map(|taken| taken.lines);
    let mut lines: Vec<LogHit> = all
        .filter(|line| first.is_none_or(|first| line.place() >= first))
        .filter(|line| last.is_none_or(|last| line.place() <= last))
        .collect();
    lines.sort_by_key(LogHit::place);
    let (lines, cut_before, cut_after) = nearest(lines, place, room);
    findings.more = older + cut_before;
    findings.newer = u64::from(newer) + cut_after;
    findings.lines = lines.len() as u64;
    findings.hits = lines;
    findings
}

/// Those lines that are nearest and have room, and how many are left out on each side.
fn nearest(lines: Vec<LogHit>, place: LinePlace, room: usize) -> (Vec<LogHit>, u64, u64) {
    let middle = lines.partition_point(|line| line.place().is_before(&place));
    let (mut begin, mut end, mut bytes) = (middle, middle, 0);
    loop {
        let before = begin.checked_sub(1).filter(|_| middle - begin <= end - middle || end == lines.len());
        let next = before.or((end < lines.len()).then_some(end));
        let Some(next) = next else { break };
        bytes += hit_bytes(&lines[next]);
        if bytes > room {
            break;
        }
        (begin, end) = (begin.min(next), end.max(next + 1));
    }
    let cut = (begin as u64, (lines.len() - end) as u64);
    (lines.into_iter().skip(begin).take(end - begin).collect(), cut.0, cut.1)
}

/// What is taken of one log.
struct LogExcerpt {
    lines: Vec<LogHit>,
    /// Lines before those.
    older: u64,
    /// There are lines after those.
    newer: bool,
}

/// The lines next to the place, while a log is read.
struct Window<'a> {
    log: &'a Log,
    kept: &'a KeptStream,
    place: LinePlace,
    /// Most lines on each side.
    side: usize,
    before: VecDeque<LogHit>,
    after: Vec<LogHit>,
    /// Lines before those.
    older: u64,
    /// There are lines after those.
    newer: bool,
}

impl<'a> Window<'a> {
    fn new(log: &'a Log, kept: &'a KeptStream, place: LinePlace, side: usize) -> Window<'a> {
        Window { log, kept, place, side, before: VecDeque::new(), after: Vec::new(), older: 0, newer: false }
    }

    fn taken(self) -> LogExcerpt {
        let lines = self.before.into_iter().chain(self.after).collect();
        LogExcerpt { lines, older: self.older, newer: self.newer }
    }

    fn piece(&mut self, piece: LogChunk<'_>) -> bool {
        if let Some(end) = piece.long_end {
            let text = String::from_utf8_lossy(piece.bytes);
            return self.line(&SearchLine { number: piece.first, end, text: &text });
        }
        let unfinished = u64::from(piece.bytes.last().is_some_and(|byte| *byte != b'\n'));
        let last = piece.first + line_ends(piece.bytes) + unfinished - 1;
        let end = piece.begin + piece.bytes.len() as u64;
        let last = hit_of(self.log, self.kept, &SearchLine { number: last, end, text: "" }).place();
        // Of a piece that is wholly before, only the end can count.
        let from = if last.is_before(&self.place) { last_lines(piece.bytes, self.side) } else { 0 };
        let skipped = line_ends(&piece.bytes[..from]);
        if skipped > 0 {
            self.older += skipped + self.before.len() as u64;
            self.before.clear();
        }
        let (mut end, mut number) = (piece.begin + from as u64, piece.first + skipped);
        for raw in piece.bytes[from..].split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let text = shown(raw.strip_suffix(b"\n").unwrap_or(raw));
            if !self.line(&SearchLine { number, end, text: &text }) {
                return false;
            }
            number += 1;
        }
        true
    }

    /// Takes a line; `false` when the context is complete.
    fn line(&mut self, line: &SearchLine<'_>) -> bool {
        let hit = LogHit { text: line.text.to_owned(), ..hit_of(self.log, self.kept, line) };
        if hit.place().is_before(&self.place) {
            if self.before.len() == self.side {
                self.before.pop_front();
                self.older += 1;
            }
            self.before.push_back(hit);
            return true;
        }
        self.newer = self.after.len() > self.side;
        if !self.newer {
            self.after.push(hit);
        }
        !self.newer
    }
}

/// Where the last `most` lines start.
fn last_lines(bytes: &[u8], most: usize) -> usize {
    let ends = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.filter(|end| *end < bytes.len()).nth(most - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::line_splitter::LINE_BYTES;
    use rankdeck_proto::frame::{MAX_FRAME, encode};
    use rankdeck_types::ids::NodeRank;

    fn node(logs: &[(&str, &str)]) -> (tempfile::TempDir, RunPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().to_owned(), node: NodeRank(0) };
        for (name, text) in logs {
            let file = paths.node_dir().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        (folder, paths)
    }

    fn find(paths: &RunPaths, query: &LogSearch) -> LogFindings {
        let found = search_nodes(std::slice::from_ref(paths), query, FRAME_ROOM, &mut |_| true).unwrap();
        assert!(found.over);
        found
    }

    fn query(pattern: &str) -> LogSearch {
        LogSearch { pattern: pattern.into(), limit: 10, ..LogSearch::default() }
    }

    fn texts(found: &LogFindings) -> Vec<&str> {
        found.hits.iter().map(|hit| hit.text.as_str()).collect()
    }

    #[test]
    fn hits_come_with_their_context_over_files_and_generations() {
        let (_folder, paths) = node(&[
            ("gen0/rank0.log.1", "a\nb\nERROR 1\n"),
            ("gen0/rank0.log", "c\nd\r50%\re\nERROR 2"),
            ("gen0/rank1.log", "fine\n"),
            ("gen1/rank0.log", "error again\n"),
            ("gen1/rank0.page", "error\n"),
        ]);
        let query = LogSearch { context: 1, ..query("error") };
        let found = find(&paths, &query);
        let hits: Vec<(u32, u64, &str)> =
            found.hits.iter().map(|hit| (hit.generation.0, hit.line, hit.text.as_str())).collect();
        assert_eq!(hits, [(0, 3, "ERROR 1"), (0, 6, "ERROR 2"), (1, 1, "error again")]);
        assert_eq!(
            (found.hits[0].before.as_slice(), found.hits[0].after.as_slice()),
            (&["b".to_owned()][..], &["c".to_owned()][..])
        );
        assert_eq!(found.hits[1].before, ["e"], "as a terminal would show it");
        assert_eq!((found.lines, found.more), (8, 0));
        let exact = find(&paths, &LogSearch { pattern: "ERROR".into(), ..query.clone() });
        assert_eq!(exact.hits.len(), 2, "capitals are meant as such");
        let others = find(&paths, &LogSearch { invert: true, ranks: vec![Rank(1)], ..query.clone() });
        assert_eq!(texts(&others), ["fine"]);
        let few = find(&paths, &LogSearch { limit: 1, ..query });
        assert_eq!((few.hits.len(), few.hits[0].text.as_str(), few.more), (1, "error again", 2));
    }

    #[test]
    fn newest_are_those_of_all_ranks_by_time() {
        let logs = [
            ("gen0/rank0.log", "x 0\nx 1\n"),
            ("gen0/rank0.log.times", "read 4 10000\nread 8 90000\n"),
            ("gen0/rank1.log", "x 2\nx 3\n"),
            ("gen0/rank1.log.times", "read 4 20000\nread 8 30000\n"),
        ];
        let (_folder, paths) = node(&logs);
        let found = find(&paths, &LogSearch { limit: 2, ..query("x") });
        assert_eq!((texts(&found), found.more), (vec!["x 3", "x 1"], 2));
        let at = found.hits[0].place();
        let earlier = find(&paths, &LogSearch { part: HitSelection::Before(at), ..query("x") });
        assert_eq!((texts(&earlier), earlier.more, earlier.newer), (vec!["x 0", "x 2"], 0, 2));
        let later = find(&paths, &LogSearch { part: HitSelection::After(at), ..query("x") });
        assert_eq!((texts(&later), later.more, later.newer), (vec!["x 1"], 3, 0));
    }

    #[test]
    fn lines_are_found_by_the_time_at_which_they_were_read() {
        let (_folder, paths) = node(&[
            ("gen0/rank0.log.1", "a\nbb\n"),
            ("gen0/rank0.log", "ccc\nd\n"),
            ("gen0/rank0.log.times", "read 2 10000\nread 5 20000\nnewer 5\nread 9 30000\nread 11 40000\n"),
            ("gen1/rank0.log", "no times\n"),
        ]);
        let all = query("");
        let found = |query: &LogSearch| -> Vec<String> {
            find(&paths, query).hits.into_iter().map(|hit| hit.text).collect()
        };
        assert_eq!(found(&all), ["a", "bb", "ccc", "d", "no times"]);
        assert_eq!(found(&LogSearch { since: Some(20.0), until: Some(30.0), ..all.clone() }), ["bb", "ccc"]);
        let late = find(&paths, &LogSearch { since: Some(40.0), ..all });
        assert_eq!((late.hits[0].time, late.hits.len(), late.untimed), (Some(40.0), 1, 1));
    }

    #[test]
    fn lines_without_end_and_bytes_that_are_no_text_are_bounded() {
        let long = "x".repeat(3 << 20);
        let (_folder, paths) = node(&[("gen0/rank0.log", &format!("{long}\nxend\u{fffd}\n"))]);
        std::fs::write(paths.generation_dir(Generation(0)).join("rank1.log"), b"\xffx\nx\xfe\xfd nan\n")
            .unwrap();
        let found = find(&paths, &query("^x"));
        assert_eq!(found.hits.len(), 3);
        assert!(found.hits[0].text.len() <= LINE_BYTES);
        assert_eq!(texts(&find(&paths, &query("^x.*nan$"))), ["x\u{fffd}\u{fffd} nan"]);
    }

    #[test]
    fn line_before_a_rotation_counts_once() {
        let (_folder, paths) = node(&[
            ("gen0/rank0.log.1", "one\nnan 2\nnan 3\nnan"),
            ("gen0/rank0.log", "nan 3\nnan 4\n"),
            ("gen0/rank0.log.times", "older 100\nnewer 110 9\nread 200 5000\n"),
        ]);
        let found = find(&paths, &query("nan"));
        let hits: Vec<(u64, &str)> = found.hits.iter().map(|hit| (hit.line, hit.text.as_str())).collect();
        assert_eq!(hits, [(9, "nan 2"), (10, "nan 3"), (11, "nan 4")]);
        assert_eq!((found.lines, found.gone_bytes, found.bytes, found.of_bytes), (4, 100, 22, 22));
    }

    #[test]
    fn invalid_pattern_is_an_error_and_cancel_ends_at_once() {
        let (_folder, paths) = node(&[("gen0/rank0.log", &"loss nan\n".repeat(1_000_000))]);
        let nodes = [paths];
        assert_eq!(
            search_nodes(&nodes, &query("(nan"), FRAME_ROOM, &mut |_| true).unwrap_err(),
            "unclosed group"
        );
        let mut progress = Vec::new();
        let found = search_nodes(&nodes, &query("nan"), FRAME_ROOM, &mut |so_far| {
            progress.push((so_far.bytes, so_far.of_bytes));
            progress.len() < 3
        });
        let found = found.unwrap();
        assert!(!found.over && found.lines < 500_000, "{}", found.lines);
        assert!(progress.len() == 3 && progress.is_sorted() && progress[2].0 < progress[2].1, "{progress:?}");
        let all = search_nodes(&nodes, &query("nan"), FRAME_ROOM, &mut |_| true).unwrap();
        assert_eq!((all.lines, all.hits.len(), all.more), (1_000_000, 10, 999_990));
        assert_eq!(all.hits[9].line, 1_000_000);
    }

    #[test]
    fn search_2_findings_fit_a_frame_for_all_lines() {
        let line = format!("{}\n", "\u{1b}".repeat(LINE_BYTES));
        let (_folder, paths) = node(&[("gen0/rank0.log", &line.repeat(200))]);
        let all = LogSearch { limit: 10_000, ..query("") };
        let around = HitSelection::Around(LinePlace { line: 100, ..LinePlace::default() });
        for query in [all.clone(), LogSearch { part: around, ..all }] {
            let found = find(&paths, &query);
            assert!(!found.hits.is_empty() && encode(&found).unwrap().len() < MAX_FRAME);
        }
    }

    /// Two ranks that write a line each second, and one that writes a hundred.
    fn three_ranks() -> (tempfile::TempDir, RunPaths) {
        let (folder, paths) = node(&[]);
        std::fs::create_dir_all(paths.generation_dir(Generation(0))).unwrap();
        for (rank, per_second) in [(0, 1), (1, 1), (2, 100)] {
            let (mut text, mut times) = (String::new(), String::new());
            for second in 1..=60 {
                for n in 0..per_second {
                    text += &format!("rank {rank} second {second} line {n}\n");
                }
                times += &format!("read {} {}\n", text.len(), second * 1000);
            }
            let log = paths.rank_log(Generation(0), Rank(rank));
            std::fs::write(format!("{}.times", log.display()), times).unwrap();
            std::fs::write(log, text).unwrap();
        }
        (folder, paths)
    }

    #[test]
    fn context_has_complete_lines_of_all_ranks() {
        let (_folder, paths) = three_ranks();
        let hit = find(&paths, &query("rank 1 second 30 "));
        let at = hit.hits[0].place();
        let found =
            find(&paths, &LogSearch { part: HitSelection::Around(at), limit: 600, ..LogSearch::default() });
        assert!(found.hits.is_sorted_by_key(LogHit::place));
        let of = |rank| found.hits.iter().filter(|hit| hit.rank == Rank(rank)).count();
        // A hundred lines of the one on each side are a second before and one after.
        assert!(of(0) >= 2 && of(1) >= 2 && (150..=201).contains(&of(2)), "{} {} {}", of(0), of(1), of(2));
        assert!(found.hits.iter().any(|hit| hit.place() == at) && found.more > 0 && found.newer > 0);
        let seconds: Vec<f64> = found.hits.iter().filter_map(|hit| hit.time).collect();
        assert!(seconds.iter().all(|second| (28.0..=32.0).contains(second)), "{seconds:?}");
        let first = LinePlace { line: 1, time_ms: 10, rank: Rank(0), ..LinePlace::default() };
        let found =
            find(&paths, &LogSearch { part: HitSelection::Around(first), limit: 60, ..LogSearch::default() });
        assert_eq!((texts(&found)[0].split(" line").next(), found.more), (Some("rank 2 second 1"), 0));
    }

    #[test]
    fn search_1_searching_thread_has_idle_priority() {
        let own = std::thread::spawn(|| {
            yield_to_others();
            // SAFETY: both read the priority of this thread and take integers.
            unsafe { (libc::sched_getscheduler(0), libc::syscall(libc::SYS_ioprio_get, 1, 0)) }
        });
        assert_eq!(own.join().unwrap(), (libc::SCHED_IDLE, 3 << 13));
    }

    fn place(line: u64) -> LinePlace {
        LinePlace { time_ms: line * 10, line, ..LinePlace::default() }
    }

    fn page(part: HitSelection, limit: u32, text: &str, lines: &[u64]) -> (Vec<u64>, u64, u64) {
        let mut page = HitPage::new(&LogSearch { part, limit, ..LogSearch::default() }, 128 << 10);
        for line in lines {
            page.add(place(*line), || LogHit { line: *line, text: text.into(), ..LogHit::default() });
        }
        let (hits, more, newer) = page.end();
        (hits.iter().map(|hit| hit.line).collect(), more, newer)
    }

    #[test]
    fn page_has_the_hits_next_to_its_place_and_counts_the_others() {
        // In whatever order the logs are read.
        let lines = [5, 6, 1, 2, 3, 9, 4, 8, 7];
        assert_eq!(page(HitSelection::Newest, 4, "", &lines), (vec![6, 7, 8, 9], 5, 0));
        assert_eq!(page(HitSelection::Newest, 20, "", &lines), ((1..10).collect(), 0, 0));
        assert_eq!(page(HitSelection::Before(place(6)), 2, "", &lines), (vec![4, 5], 3, 4));
        assert_eq!(page(HitSelection::After(place(6)), 2, "", &lines), (vec![7, 8], 6, 1));
        assert_eq!(page(HitSelection::Before(place(1)), 2, "", &lines), (vec![], 0, 9));
    }

    #[test]
    fn search_2_page_is_bounded_in_bytes_too() {
        let long = "x".repeat(4096);
        let (hits, more, _) = page(HitSelection::Newest, 1000, &long, &(0..500).collect::<Vec<_>>());
        assert_eq!(hits.len() as u64 + more, 500);
        assert!(hits.len() < 40 && hits.last() == Some(&499), "{}", hits.len());
        let (hits, _, newer) =
            page(HitSelection::After(place(9)), 1000, &long, &(0..500).collect::<Vec<_>>());
        assert!(hits.first() == Some(&10) && hits.len() < 40 && newer > 400);
    }

    fn found(pattern: &str, text: &[u8]) -> (Vec<(u64, u64, String)>, u64) {
        let matcher =
            LineMatcher::new(&LogSearch { pattern: pattern.into(), ..LogSearch::default() }).unwrap();
        let mut all = Vec::new();
        let piece = LogChunk { bytes: text, begin: 100, first: 7, long_end: None };
        let lines = matcher.each(piece, |line| all.push((line.number, line.end, line.text.to_owned())));
        (all, lines)
    }

    /// As `grep` would do it: line by line.
    fn expected(pattern: &str, text: &[u8]) -> (Vec<(u64, u64, String)>, u64) {
        let one = compile(pattern).unwrap();
        let (mut all, mut number, mut end) = (Vec::new(), 7, 100);
        for raw in text.split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let line = shown(raw.strip_suffix(b"\n").unwrap_or(raw)).into_owned();
            if one.is_match(&line) {
                all.push((number, end, line));
            }
            number += 1;
        }
        (all, number - 7)
    }

    #[test]
    fn many_lines_at_once_give_what_each_line_gives() {
        let texts: [&[u8]; 6] = [
            b"loss 0.5\nloss NaN\n\nloss inf\nend",
            b"10% nan\r20%\r30% fine\nnan\r\nx\rnan\n",
            b"a\nb\na b\n\n\nab\n",
            b"\n",
            b"\xff nan\nn\xffan nan\nfine\n",
            "épisode 5\nÉPISODE 6\nstraße\n".as_bytes(),
        ];
        let patterns = [
            "nan|inf", "^loss", "nan$", "^$", r"a\s+b", r"a[^x]*b", "x*", ".", "^.{8}$", r"\bnan\b", r"\d+%",
            "NaN", r"(?m)^a", r"\Aa", r"fine\z", "é", r"\w+ 5", "[^a]", r"\s", r"e\n?",
        ];
        for text in texts {
            for pattern in patterns {
                assert_eq!(found(pattern, text), expected(pattern, text), "{pattern} in {text:?}");
            }
        }
    }
}
