//! Fuzzing on stable Rust: mutates known inputs for a limited time.
//!
//! `RANKDECK_FUZZ_SECONDS` sets the time of each target (default 1), `RANKDECK_FUZZ_SEED` the seed. A failure
//! prints the seed and writes the input to a file; files in `tests/fuzz/NAME/` are tried first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limit of one input, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// An allocator that counts the memory of each thread, as `#[global_allocator]` of a test binary.
pub struct Counting;

/// Returns the allocated bytes of this thread, if [`Counting`] is the allocator.
pub fn live() -> isize {
    LIVE.with(Cell::get)
}

fn count(bytes: isize) {
    // An ending thread has no counters.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Pseudorandom numbers (S. Vigna, splitmix64).
pub struct Random(u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 for 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }
}

/// Texts that are difficult for parsers.
const WORDS: [&str; 24] = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "NaN",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "{\"a\":",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "é",
    "\r\n",
    "\n",
    "\0",
    "''",
    "\"kind\":\"",
];
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let rest = bytes.len() - at;
    match random.below(11) {
        0 if rest > 0 => bytes[at] ^= 1 << random.below(8),
        1 if rest > 0 => bytes[at] = random.number() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + random.below(rest.min(64) + 1))),
        4 => {
            let piece = bytes[at..at + random.below(rest.min(256) + 1)].to_vec();
            for _ in 0..1 << random.below(7) {
                bytes.splice(at..at, piece.iter().copied());
            }
        }
        5 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        6 => {
            let number = NUMBERS[random.below(NUMBERS.len())];
            let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
            let number = if random.below(2) == 0 { little } else { big };
            let width = [1, 2, 4, 8][random.below(4)].min(rest);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        7 => {
            let from = random.below(other.len() + 1);
            let piece = &other[from..from + random.below((other.len() - from).min(1024) + 1)];
            bytes.splice(at..at, piece.iter().copied());
        }
        8 => {
            // Replace a value.
            let is_value = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+.\"".contains(byte);
            if let Some(start) = bytes[at..].iter().position(is_value).map(|start| at + start) {
                let end = bytes[start..].iter().position(|byte| !is_value(byte));
                let end = end.map_or(bytes.len(), |end| start + end);
                bytes.splice(start..end, WORDS[random.below(WORDS.len())].bytes());
            }
        }
        9 => {
            let line = |at: usize, bytes: &[u8]| {
                let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |start| start + 1);
                let end = bytes[at..].iter().position(|byte| *byte == b'\n');
                start..end.map_or(bytes.len(), |end| at + end + 1)
            };
            let from = line(at, bytes);
            let moved: Vec<u8> = bytes.drain(from).collect();
            let to = line(random.below(bytes.len() + 1), bytes).start;
            bytes.splice(to..to, moved);
        }
        _ => bytes.splice(at..at, [random.number() as u8; 3]).for_each(drop),
    }
}

/// Runs `target` with the `seeds`, the files in `tests/fuzz/NAME/` and their mutations for a limited time. An
/// input may take at most `most` bytes of memory at a time.
///
/// # Panics
///
/// If the target panics, takes too much memory or does not return (which aborts the process).
pub fn fuzz(name: &'static str, seeds: Vec<Vec<u8>>, most: usize, target: impl Fn(&[u8])) {
    fuzz_by(name, seeds, most, mutate, target);
}

/// The same with mutations that know the form of the input; they get it, another input, and random numbers.
///
/// # Panics
///
/// As [`fuzz`].
#[expect(clippy::panic, clippy::disallowed_macros, reason = "fails the test")]
pub fn fuzz_by(
    name: &'static str,
    mut seeds: Vec<Vec<u8>>,
    most: usize,
    mutate: impl Fn(&mut Vec<u8>, &[u8], &mut Random),
    target: impl Fn(&[u8]),
) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("RANKDECK_FUZZ_SEED").unwrap_or(1);
    let time = Duration::from_secs(number("RANKDECK_FUZZ_SECONDS").unwrap_or(1));
    if let Ok(kept) = std::fs::read_dir(super::repository("tests/fuzz").join(name)) {
        let mut files: Vec<PathBuf> = kept.flatten().map(|entry| entry.path()).collect();
        files.sort();
        seeds.extend(files.iter().filter_map(|file| std::fs::read(file).ok()));
    }
    let failed = move |input: &[u8], how: &str| {
        let file = std::env::temp_dir().join(format!("rankdeck-fuzz-{name}-{}", std::process::id()));
        let _ = std::fs::write(&file, input);
        format!("{name}: {how}; seed {seed}, input in {}: keep it in tests/fuzz/{name}/", file.display())
    };
    let begun = Arc::new(AtomicU64::new(0));
    let (beats, start) = (Arc::downgrade(&begun), Instant::now());
    std::thread::spawn(move || {
        while let Some(begun) = beats.upgrade() {
            let now = start.elapsed().as_millis() as u64;
            if now.saturating_sub(begun.load(Ordering::Relaxed)) > PATIENCE.as_millis() as u64 {
                eprintln!("{name}: an input took over {PATIENCE:?}; RANKDECK_FUZZ_SEED={seed}");
                std::process::abort();
            }
            drop(begun);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let mut random = Random(seed);
    let mut tried = 0_u64;
    while start.elapsed() < time || tried < seeds.len() as u64 {
        let mut input = seeds.get(tried as usize).cloned().unwrap_or_else(|| {
            let one = random.below(seeds.len());
            seeds.get(one).cloned().unwrap_or_default()
        });
        if tried >= seeds.len() as u64 {
            let other = seeds.get(random.below(seeds.len())).cloned().unwrap_or_default();
            for _ in 0..1 << random.below(5) {
                mutate(&mut input, &other, &mut random);
            }
            input.truncate(4 << 20);
        }
        begun.store(start.elapsed().as_millis() as u64, Ordering::Relaxed);
        let before = LIVE.with(Cell::get);
        PEAK.with(|peak| peak.set(before));
        let ended = catch_unwind(AssertUnwindSafe(|| target(&input)));
        let taken = PEAK.with(Cell::get) - before;
        if ended.is_err() {
            panic!("{}", failed(&input, "it panicked"));
        }
        if taken > most as isize {
            panic!("{}", failed(&input, &format!("{} bytes took {taken} bytes of memory", input.len())));
        }
        tried += 1;
    }
    println!("{name}: {tried} inputs in {:.1?}, seed {seed}", start.elapsed());
}
