//! The agent's side of a status page.

use super::layout::{
    self, BODY, BODY_WORDS, FINGERPRINT_WORDS, FINGERPRINTS_START, GROUP_WORDS, GROUPS_START,
    ITERATION_WORDS, ITERATIONS_START, RING_START, RING_WORDS, SITE_WORDS, SITES_START,
};
use super::{
    Body, Collective, FINGERPRINTS, Fingerprint, GROUPS, Group, ITERATIONS, Iteration, MAGIC, PAGE_BYTES,
    RING, SEQLOCK, SITES, VERSION,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

const WRITER: usize = 5;
const ASKED: usize = 6;
const ANSWERED: usize = 7;
const READ_TRIES: usize = 1000;

/// What a reader saw.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Rank that wrote the page.
    pub rank: u32,
    /// The generation whose rank wrote the page.
    pub generation: u32,
    /// Its process id, as it sees itself (inside a pid namespace this is not the host's number).
    pub pid: u32,
    /// The hook in a Python rank writes it.
    pub by_hook: bool,
    /// What the rank said.
    pub body: Body,
    /// The ring, oldest first; empty slots left out.
    pub ring: Vec<Collective>,
    /// The groups, the group of all ranks first.
    pub groups: Vec<Group>,
    /// The latest iterations, oldest first.
    pub iterations: Vec<Iteration>,
    /// The latest fingerprints of weights, by optimiser and step.
    pub fingerprints: Vec<Fingerprint>,
    /// Call sites by number.
    pub sites: Vec<(u64, String)>,
    /// The writer died or was stopped inside a write: the body may be torn (PAGE-1).
    pub torn: bool,
}

/// The agent's side.
pub struct Reader {
    file: File,
}

impl Reader {
    /// Opens an existing page; an error when it is not one that this build can read (yet).
    pub fn open(path: &Path) -> io::Result<Reader> {
        // Whatever a rank has put there, opening it waits for nobody.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(bad("not a file"));
        }
        let reader = Reader { file };
        reader.copy()?;
        Ok(reader)
    }

    fn word(&self, index: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, index as u64 * 8)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The hook of a Python rank writes it.
    pub fn has_hook(&self) -> bool {
        self.word(WRITER).is_ok_and(|writer| writer == 1)
    }

    /// Asks the hook for a dump and returns the number of the request; see [`Reader::hook_answered`].
    pub fn ask_hook(&self) -> io::Result<u64> {
        let request = self.word(ASKED)?.wrapping_add(1);
        self.file.write_all_at(&request.to_le_bytes(), ASKED as u64 * 8)?;
        Ok(request)
    }

    /// Number of the request that the hook has answered last.
    pub fn hook_answered(&self) -> io::Result<u64> {
        self.word(ANSWERED)
    }

    /// The page now (PAGE-1).
    ///
    /// Errors: the file has been cut or overwritten.
    pub fn view(&self) -> io::Result<View> {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = self.word(SEQLOCK)?;
            fence(Ordering::Acquire);
            let copy = self.copy()?;
            fence(Ordering::Acquire);
            let after = self.word(SEQLOCK)?;
            let whole = before == after && before & 1 == 0;
            if whole || tries >= READ_TRIES {
                return Ok(copy.view(!whole));
            }
            std::hint::spin_loop();
        }
    }

    fn copy(&self) -> io::Result<PageCopy> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => bad("status page is too short"),
            _ => error,
        })?;
        let copy = PageCopy(bytes);
        match copy.load(0) {
            [MAGIC, VERSION] => Ok(copy),
            [MAGIC, _] => Err(bad("status page of another version")),
            _ => Err(bad("not a status page")),
        }
    }
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_string())
}

/// The bytes of a page at one moment.
struct PageCopy(Vec<u8>);

impl PageCopy {
    fn load<const N: usize>(&self, start: usize) -> [u64; N] {
        let word = |index: usize| self.0.get(index * 8..index * 8 + 8)?.try_into().ok();
        std::array::from_fn(|i| word(start + i).map_or(0, u64::from_le_bytes))
    }

    fn view(&self, torn: bool) -> View {
        let [rank, generation, pid, writer] = self.load(2);
        let collective = |slot| Collective::from_words(&self.load(RING_START + slot * RING_WORDS));
        let group = |slot| Group::from_words(&self.load(GROUPS_START + slot * GROUP_WORDS));
        let iteration = |slot| Iteration::from_words(&self.load(ITERATIONS_START + slot * ITERATION_WORDS));
        let site = |slot| self.load::<SITE_WORDS>(SITES_START + slot * SITE_WORDS);
        let fingerprint =
            |slot| Fingerprint::from_words(&self.load(FINGERPRINTS_START + slot * FINGERPRINT_WORDS));
        let mut fingerprints: Vec<Fingerprint> = (0..FINGERPRINTS).filter_map(fingerprint).collect();
        fingerprints.sort_unstable_by_key(|taken| (taken.optimizer, taken.step));
        let mut ring = used(RING, collective, |c| c.seq > 0);
        ring.sort_unstable_by_key(|collective| collective.seq);
        let mut iterations = used(ITERATIONS, iteration, |i| i.at_ns > 0);
        iterations.sort_unstable_by_key(|iteration| iteration.train_iter);
        View {
            rank: rank as u32,
            generation: generation as u32,
            pid: pid as u32,
            by_hook: writer == 1,
            body: Body::from_words(&self.load::<BODY_WORDS>(BODY)),
            ring,
            groups: used(GROUPS, group, |g| g.name != [0; 16]),
            iterations,
            fingerprints,
            sites: (0..SITES)
                .map(site)
                .filter(|words| words[0] != 0)
                .map(|words| (words[0], layout::site_text(&words)))
                .collect(),
            torn,
        }
    }
}

/// The slots in use; room for all is made at once, since readers come many times a second.
fn used<T>(slots: usize, slot: impl Fn(usize) -> T, in_use: impl Fn(&T) -> bool) -> Vec<T> {
    let mut found = Vec::with_capacity(slots);
    found.extend((0..slots).map(slot).filter(in_use));
    found
}
