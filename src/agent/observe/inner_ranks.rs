//! Ranks that a script's rank has started itself (HOOK-9): each writes a page next to that of the rank it belongs to.
//!
//! Owner: the sampling thread. A page loses its name as soon as it is open ([`pages`]), so that found ones are
//! remembered until their process ends. At most [`INNER_RANKS`] of a host are sampled.

use crate::observe::pages;
use crate::observe::sample::SampledRank;
use crate::proc::{self, ProcessKey};
use crate::program;
use rankdeck_types::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most of one host.
const INNER_RANKS: usize = 64;
/// Interval of the search for new pages.
const SEARCH: Duration = Duration::from_secs(2);
/// Between the name of a rank's page and the number of a rank of its own.
const MARK: &str = ".inner";

/// The ranks of a host's ranks.
#[derive(Debug, Default)]
pub(crate) struct InnerRanks {
    /// By the rank that has started them, and their number in their own group.
    known: BTreeMap<(Rank, u32), InnerPage>,
    searched: Option<Instant>,
}

#[derive(Debug)]
struct InnerPage {
    path: PathBuf,
    /// Its writer, as that calls itself, and that process.
    writer: Option<(u32, ProcessKey)>,
}

impl InnerRanks {
    /// The live ones, each with the rank that has started it; the searching for new ones is not done each time.
    pub fn sampled(&mut self, targets: &[SampledRank], now: Instant) -> Vec<(Rank, SampledRank)> {
        let belongs = |path: &Path| targets.iter().any(|target| is_of(path, &target.page));
        self.known.retain(|_, inner| belongs(&inner.path));
        if self.searched.is_none_or(|at| now.saturating_duration_since(at) >= SEARCH) {
            self.searched = Some(now);
            self.search(targets);
        }
        let mut found = Vec::new();
        self.known.retain(|(outer, number), inner| {
            let Some(target) = targets.iter().find(|target| target.rank == *outer) else { return false };
            let Some(ident) = inner.process(target.ident) else { return false };
            let sampled = SampledRank {
                rank: Rank(*number),
                ident,
                gpu: None,
                page: inner.path.clone(),
                elsewhere: false,
            };
            found.push((*outer, sampled));
            true
        });
        found
    }

    fn search(&mut self, targets: &[SampledRank]) {
        let folders: BTreeSet<&Path> = targets.iter().filter_map(|target| target.page.parent()).collect();
        for folder in folders {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let outer = targets.iter().find(|target| is_of(&path, &target.page));
                let Some((outer, number)) = outer.zip(number(&path)) else { continue };
                let is_new = !self.known.contains_key(&(outer.rank, number));
                if !is_new || self.known.len() < INNER_RANKS {
                    self.known.insert((outer.rank, number), InnerPage { path, writer: None });
                }
            }
        }
    }
}

impl InnerPage {
    /// Its process below `root`; `None` once that has ended, or where it is not seen from here.
    fn process(&mut self, root: ProcessKey) -> Option<ProcessKey> {
        let pid = pages::open(&self.path).ok()?.view().ok()?.pid;
        let known = self.writer.filter(|(writer, _)| *writer == pid).map(|(_, ident)| ident);
        let ident = known.unwrap_or_else(|| program::writer(root, pid));
        self.writer = Some((pid, ident));
        let lives = proc::stat(ident.pid).is_some_and(|stat| stat.start == ident.start && !stat.is_gone());
        (lives && ident != root).then_some(ident)
    }
}

/// Whether the page at `path` is one of a rank that the one with this page has started.
pub(crate) fn is_of(path: &Path, page: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let (Some(inner), Some(outer)) = (name(path), name(page)) else { return false };
    path.parent() == page.parent()
        && inner.strip_prefix(&outer).and_then(|rest| rest.strip_prefix(MARK)).is_some_and(is_number)
}

/// The page of a rank's own rank.
pub(crate) fn page(outer: &Path, number: u32) -> PathBuf {
    let mut name = outer.file_name().unwrap_or_default().to_owned();
    name.push(format!("{MARK}{number}"));
    outer.with_file_name(name)
}

fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.rsplit_once(MARK)?.1.parse().ok()
}

/// Answers to inspections lie next to pages.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Killed with its children.
    struct Program(Child);

    impl Drop for Program {
        fn drop(&mut self) {
            for child in proc::descendants(self.0.id()) {
                let start = proc::stat(child).map_or(0, |stat| stat.start);
                crate::supervise::groups::signal(child, start, libc::SIGKILL);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn until(what: &str, mut fits: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !fits() {
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn page_of_an_inner_rank_is_known_by_its_name() {
        let outer = Path::new("/run/gen0/rank1.page");
        assert!(is_of(&page(outer, 3), outer));
        assert_eq!(number(&page(outer, 3)), Some(3));
        for other in ["rank1.page", "rank1.page.inner3.tasks", "rank1.page.inner", "rank11.page.inner3"] {
            assert!(!is_of(&Path::new("/run/gen0").join(other), outer), "{other}");
        }
        assert!(!is_of(&page(outer, 3), Path::new("/run/gen1/rank1.page")), "an earlier generation");
    }

    /// The child writes the head of a page, as the hook does.
    #[test]
    fn inner_rank_is_sampled_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let outer = folder.path().join("rank0.page");
        let code = "import os, sys, time\npid = os.fork()\nif pid: os.waitpid(pid, 0); time.sleep(1000)\n\
            data = bytearray(24576)\nwords = memoryview(data).cast('Q')\n\
            words[0], words[1], words[2], words[4] = int.from_bytes(b'rankdeck', 'little'), 5, 1, os.getpid()\n\
            with open(sys.argv[1] + '.tmp', 'wb') as file: file.write(data)\n\
            os.rename(sys.argv[1] + '.tmp', sys.argv[1])\ntime.sleep(1000)";
        let path = page(&outer, 1);
        let program = Program(Command::new("python3").args(["-c", code]).arg(&path).spawn().unwrap());
        let stat = proc::stat(program.0.id()).unwrap();
        let ident = ProcessKey { pid: stat.pid, start: stat.start };
        let target = SampledRank { rank: Rank(0), ident, gpu: None, page: outer, elsewhere: false };
        let (mut inner, mut at) = (InnerRanks::default(), Instant::now());
        let mut sampled = Vec::new();
        until("its rank is found", || {
            at += SEARCH;
            sampled = inner.sampled(std::slice::from_ref(&target), at);
            !sampled.is_empty()
        });
        let [(starter, found)] = sampled.as_slice() else { panic!("{sampled:?}") };
        assert_eq!((*starter, found.rank), (Rank(0), Rank(1)));
        assert_eq!(proc::descendants(program.0.id()), [found.ident.pid]);
        crate::supervise::groups::signal(found.ident.pid, found.ident.start, libc::SIGKILL);
        until("its rank has ended", || inner.sampled(std::slice::from_ref(&target), at).is_empty());
    }
}
