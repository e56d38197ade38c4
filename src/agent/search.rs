//! `agent search`: looks for a pattern in the logs of a run that lie on this host.
//!
//! Owner: a one-shot command beside the agent, so that a run that is over can be searched, too. It never
//! takes time from ranks: it runs where nobody else wants the core, and only for [`PATIENCE`]. Memory is
//! bounded by the hits asked for.

use crate::entries;
use crate::observe::line_times::Times;
use crate::observe::logs::LINE_BYTES;
use crate::paths::RunPaths;
use rankdeck_proto::search::{LogFindings, LogHit, LogSearch};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank, RunId};
use regex_lite::{Regex, RegexBuilder};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a search may take on one host.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks at the clock after so many lines.
const LINES: u64 = 1024;
/// Most hits and lines of context, whatever is asked for.
const MOST_HITS: usize = 10_000;
const MOST_CONTEXT: usize = 100;

/// Looks for it in every log of `run` under `workdir`.
///
/// # Errors
/// The pattern is no regular expression, or nothing of the run is here.
pub fn search(workdir: &Path, run: &RunId, wanted: &LogSearch) -> Result<LogFindings, HintedError> {
    let any_case = !wanted.pattern.chars().any(char::is_uppercase);
    let pattern = RegexBuilder::new(&wanted.pattern).case_insensitive(any_case).build().map_err(|error| {
        HintedError::new(
            format!("`{}`: {error}", wanted.pattern),
            "write \\( for a bracket that is meant as one",
        )
    })?;
    let nodes = entries::folders_of(workdir, run);
    if nodes.is_empty() {
        return Err(HintedError::new(format!("nothing of run {run} is on this host"), "`rankdeck ps --all`"));
    }
    yield_to_others();
    let began = Instant::now();
    let mut found = Found { wanted, pattern, began, findings: LogFindings::default(), hits: VecDeque::new() };
    for (generation, rank, parts) in nodes.iter().flat_map(logs) {
        let is_wanted = wanted.rank.is_none_or(|only| only == rank)
            && wanted.generation.is_none_or(|only| only == generation);
        if is_wanted && !found.file(generation, rank, &parts) {
            found.findings.cut = format!("not all lines were looked at within {} s", PATIENCE.as_secs());
            break;
        }
    }
    found.findings.hits = found.hits.into();
    Ok(found.findings)
}

/// Every log of a node: generation, rank, and its files in the order of writing.
fn logs(paths: &RunPaths) -> Vec<(Generation, Rank, Vec<PathBuf>)> {
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
            let log = paths.rank_log(generation, Rank(rank));
            let older = PathBuf::from(format!("{}.1", log.display()));
            found.push((generation, Rank(rank), vec![older, log]));
        }
    }
    found.sort_by_key(|(generation, rank, _)| (*generation, *rank));
    found
}

struct Found<'a> {
    wanted: &'a LogSearch,
    pattern: Regex,
    began: Instant,
    findings: LogFindings,
    hits: VecDeque<LogHit>,
}

impl Found<'_> {
    /// Looks through the files of one log; `false` when there is no time left.
    fn file(&mut self, generation: Generation, rank: Rank, parts: &[PathBuf]) -> bool {
        let context = (self.wanted.context as usize).min(MOST_CONTEXT);
        let (mut number, mut before, mut after) = (0, VecDeque::new(), 0);
        let times = parts.last().map(|log| Times::of(log)).unwrap_or_default();
        for (index, part) in parts.iter().enumerate() {
            // One that is moved away meanwhile is not there.
            let Ok(file) = File::open(part) else { continue };
            let mut reader = BufReader::with_capacity(1 << 16, file);
            let mut end = 0;
            while let Some((line, bytes)) = next_line(&mut reader) {
                end += bytes;
                number += 1;
                let is_newer = index + 1 == parts.len();
                let time_ms = if is_newer { times.of_newer(end) } else { times.of_older(end) };
                let time = time_ms.map(|ms| ms as f64 / 1000.0);
                self.findings.lines += 1;
                if self.findings.lines.is_multiple_of(LINES) && self.began.elapsed() > PATIENCE {
                    return false;
                }
                let in_time = match time {
                    _ if self.wanted.since.is_none() && self.wanted.until.is_none() => true,
                    Some(time) => {
                        self.wanted.since.is_none_or(|since| time >= since)
                            && self.wanted.until.is_none_or(|until| time <= until)
                    }
                    None => {
                        self.findings.untimed += 1;
                        false
                    }
                };
                if in_time && self.pattern.is_match(&line) {
                    let before = before.drain(..).collect();
                    self.hit(LogHit {
                        rank,
                        generation,
                        line: number,
                        text: line,
                        time,
                        before,
                        after: Vec::new(),
                    });
                    after = context;
                } else if after > 0 {
                    after -= 1;
                    if let Some(hit) = self.hits.back_mut() {
                        hit.after.push(line);
                    }
                } else if context > 0 {
                    if before.len() == context {
                        before.pop_front();
                    }
                    before.push_back(line);
                }
            }
        }
        true
    }

    /// Keeps the newest.
    fn hit(&mut self, hit: LogHit) {
        if self.hits.len() >= (self.wanted.limit as usize).clamp(1, MOST_HITS) {
            self.hits.pop_front();
            self.findings.more += 1;
        }
        self.hits.push_back(hit);
    }
}

/// The next line as a terminal would show it, cut as the agent cuts lines; `None` at the end. What a rank is
/// just writing counts, too. With the bytes that it takes in the file.
fn next_line(reader: &mut impl BufRead) -> Option<(String, u64)> {
    let (mut line, mut any, mut restart, mut all) = (Vec::new(), false, false, 0);
    loop {
        let bytes = reader.fill_buf().ok()?;
        if bytes.is_empty() {
            break;
        }
        any = true;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        for byte in part {
            if *byte == b'\r' {
                restart = true;
                continue;
            }
            if std::mem::take(&mut restart) {
                line.clear();
            }
            if line.len() < LINE_BYTES {
                line.push(*byte);
            }
        }
        let taken = part.len() + usize::from(end.is_some());
        all += taken as u64;
        reader.consume(taken);
        if end.is_some() {
            break;
        }
    }
    any.then(|| (String::from_utf8_lossy(&line).into_owned(), all))
}

/// Takes the core only while nobody else wants it.
fn yield_to_others() {
    // SAFETY: both change the priority of this process alone, and read nothing but the structure given.
    unsafe {
        let idle = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &idle);
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn find(paths: &RunPaths, wanted: LogSearch) -> LogFindings {
        let any_case = !wanted.pattern.chars().any(char::is_uppercase);
        let pattern = RegexBuilder::new(&wanted.pattern).case_insensitive(any_case).build().unwrap();
        let (findings, hits) = (LogFindings::default(), VecDeque::new());
        let mut found = Found { wanted: &wanted, pattern, began: Instant::now(), findings, hits };
        for (generation, rank, parts) in logs(paths) {
            assert!(found.file(generation, rank, &parts));
        }
        LogFindings { hits: found.hits.into(), ..found.findings }
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
        let wanted = LogSearch { pattern: "error".into(), context: 1, limit: 10, ..LogSearch::default() };
        let found = find(&paths, wanted.clone());
        let hits: Vec<(u32, u64, &str)> =
            found.hits.iter().map(|hit| (hit.generation.0, hit.line, hit.text.as_str())).collect();
        assert_eq!(hits, [(0, 3, "ERROR 1"), (0, 6, "ERROR 2"), (1, 1, "error again")]);
        assert_eq!(
            (found.hits[0].before.as_slice(), found.hits[0].after.as_slice()),
            (&["b".to_owned()][..], &["c".to_owned()][..])
        );
        assert_eq!(found.hits[1].before, ["e"], "as a terminal would show it");
        assert_eq!((found.lines, found.more), (8, 0));
        let exact = find(&paths, LogSearch { pattern: "ERROR".into(), ..wanted.clone() });
        assert_eq!(exact.hits.len(), 2, "capitals are meant as such");
        let few = find(&paths, LogSearch { limit: 1, ..wanted });
        assert_eq!((few.hits.len(), few.hits[0].text.as_str(), few.more), (1, "error again", 2));
    }

    #[test]
    fn lines_are_found_by_the_time_at_which_they_were_read() {
        let (_folder, paths) = node(&[
            ("gen0/rank0.log.1", "a\nbb\n"),
            ("gen0/rank0.log", "ccc\nd\n"),
            ("gen0/rank0.log.times", "read 2 10000\nread 5 20000\nnewer 5\nread 9 30000\nread 11 40000\n"),
            ("gen1/rank0.log", "no times\n"),
        ]);
        let all = LogSearch { limit: 10, ..LogSearch::default() };
        let texts = |wanted: LogSearch| -> Vec<String> {
            find(&paths, wanted).hits.into_iter().map(|hit| hit.text).collect()
        };
        assert_eq!(texts(all.clone()), ["a", "bb", "ccc", "d", "no times"]);
        assert_eq!(texts(LogSearch { since: Some(20.0), until: Some(30.0), ..all.clone() }), ["bb", "ccc"]);
        let late = find(&paths, LogSearch { since: Some(40.0), ..all });
        assert_eq!((late.hits[0].time, late.hits.len(), late.untimed), (Some(40.0), 1, 1));
    }

    #[test]
    fn lines_without_end_and_bytes_that_are_no_text_are_bounded() {
        let long = "x".repeat(3 << 20);
        let (_folder, paths) = node(&[("gen0/rank0.log", &format!("{long}\nxend\u{fffd}\n"))]);
        let wanted = LogSearch { pattern: "^x".into(), limit: 10, ..LogSearch::default() };
        let found = find(&paths, wanted);
        assert_eq!(found.hits.len(), 2);
        assert!(found.hits[0].text.len() <= LINE_BYTES);
    }
}
