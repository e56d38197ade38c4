//! Readers of `/proc`.
//!
//! Every function returns `None` or an empty list when the process is gone.
//! A process is named by (pid, start time in clock ticks): a pid alone may be reused.
//!
//! - PROC-1: what stands in `/proc` is bytes. A name, a path or an argument that is not UTF-8 hides no
//!   process and no line: each wrong byte is read as U+FFFD.

use crate::open_files::{self, OpenFileSlot};
use rankdeck_proto::trust::own_uid;
use rankdeck_types::exit::Exit;
use rankdeck_types::hidden;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most bytes read of one `/proc/PID/environ`.
const ENVIRON_BYTES: u64 = 1 << 20;
/// Most bytes read of a command line for display.
const COMMAND_BYTES: u64 = 4096;
/// Most processes of one tree.
const TREE_LIMIT: usize = 16_384;

/// Most bytes of a file that is read whole: the mappings of a process with many libraries are the longest.
const TEXT_BYTES: u64 = 16 << 20;
/// Bytes of a file that is read again and again, at first and at most.
const AGAIN_BYTES: usize = 4096;
const AGAIN_LIMIT: usize = 64 << 10;

/// A process, named so that a reused pid is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
}

/// A small file of `/proc` that stays open, where there is room (FILES-2): of a process that has ended,
/// nothing can be read any more, even if its pid is reused. Beyond the limit it is opened for each read.
#[derive(Debug)]
pub(crate) struct ProcFile {
    path: PathBuf,
    held: Option<(File, OpenFileSlot)>,
    bytes: Vec<u8>,
}

impl ProcFile {
    /// Opens it; `None` without such a file.
    pub fn open(path: impl AsRef<Path>) -> Option<ProcFile> {
        let path = path.as_ref().to_owned();
        let held = match File::open(&path) {
            Ok(file) => OpenFileSlot::take().map(|place| (file, place)),
            Err(error) if open_files::are_used_up(&error) => None,
            Err(_) => return None,
        };
        Some(ProcFile { path, held, bytes: vec![0; AGAIN_BYTES] })
    }

    /// Its text now, at most the first 64 KiB.
    pub fn text(&mut self) -> Option<Cow<'_, str>> {
        let opened = if self.held.is_none() { Some(File::open(&self.path).ok()?) } else { None };
        let file = self.held.as_ref().map(|(file, _)| file).or(opened.as_ref())?;
        let mut len = file.read_at(&mut self.bytes, 0).ok()?;
        while len == self.bytes.len() && len < AGAIN_LIMIT {
            self.bytes.resize(2 * len, 0);
            len = file.read_at(&mut self.bytes, 0).ok()?;
        }
        Some(String::from_utf8_lossy(self.bytes.get(..len)?))
    }
}

/// Reads a small file of the kernel, in four calls: `std::fs::read_to_string` needs twice as many, because
/// it queries the size, which is 0 here, and starts with reads of 32 bytes.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    read(path).ok()
}

/// The same, and why it cannot be read.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(AGAIN_BYTES);
    File::open(path)?.take(TEXT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Process id.
    pub pid: u32,
    /// Name of the program, at most 15 bytes.
    pub comm: String,
    /// State letter: `R S D T t Z X I`.
    pub state: char,
    /// Parent.
    pub ppid: u32,
    /// Session, named by its leader's pid.
    pub session: u32,
    /// User and system time of all its threads, clock ticks.
    pub cpu_ticks: u64,
    /// Page faults of all its threads that needed the disk.
    pub major_faults: u64,
    pub threads: u64,
    /// When it started, clock ticks since boot.
    pub start: u64,
    /// Resident memory, bytes.
    pub rss: u64,
}

impl ProcStat {
    /// Nothing of it runs any more. A leader that ended before its threads also shows `Z`, but with threads
    /// left.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

/// One process, `None` when it does not exist.
pub fn stat(pid: u32) -> Option<ProcStat> {
    parse_stat(&text(format!("/proc/{pid}/stat"))?)
}

/// Reads the text of a `stat` file; the program's name may hold any byte, parentheses included.
pub(crate) fn parse_stat(text: &str) -> Option<ProcStat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let pid = text[..open].trim().parse().ok()?;
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(ProcStat {
        pid,
        comm: text.get(open + 1..close)?.to_owned(),
        state: fields.first()?.chars().next()?,
        ppid: number(4)? as u32,
        session: number(6)? as u32,
        cpu_ticks: number(14)? + number(15)?,
        major_faults: number(12)?,
        threads: number(20)?,
        start: number(22)?,
        rss: number(24)? * page_bytes(),
    })
}

/// How an unreaped process of this user has ended; `None` while it runs.
pub(crate) fn end(pid: u32) -> Option<Exit> {
    let (stat, status) = (text(format!("/proc/{pid}/stat"))?, text(format!("/proc/{pid}/status"))?);
    // The kernel shows 0 for those of others.
    let uid =
        status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
    if uid != Some(own_uid()) || !parse_stat(&stat)?.is_gone() {
        return None;
    }
    parse_end(&stat)
}

/// The last field of a `stat` file, as wait(2) returns it.
fn parse_end(stat: &str) -> Option<Exit> {
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let status: i32 = fields.get(52 - 3)?.parse().ok()?;
    Some(match status & 0x7f {
        0 => Exit::Code { code: (status >> 8) & 0xff },
        signal => Exit::Signal { signal, out_of_memory: false },
    })
}

/// A process has a controlling terminal.
pub(crate) fn has_terminal(pid: u32) -> bool {
    let text = text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_ascii_whitespace().nth(4).is_some_and(|terminal| terminal != "0")
}

/// All processes that this user can see.
pub fn all() -> Vec<ProcStat> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder.flatten().filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The pids below `root`, itself excluded, from the kernel's own lists of children.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut todo = vec![root];
    while let Some(pid) = todo.pop() {
        for child in children(pid) {
            if found.len() >= TREE_LIMIT {
                return found;
            }
            found.push(child);
            todo.push(child);
        }
    }
    found
}

/// A process and those below it, the nearest first, at most `most`.
pub(crate) fn nearest(root: u32, most: usize) -> Vec<u32> {
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() && found.len() < most {
        found.extend(children(found[at]));
        at += 1;
    }
    found.truncate(most);
    found
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| text(thread.path().join("children")))
        .flat_map(|text| {
            text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

/// The environment a process was started with; `None` when it is another user's.
pub fn environ(pid: u32) -> Option<Vec<u8>> {
    read_environ(pid).ok()
}

/// The same, and why it cannot be read.
pub(crate) fn read_environ(pid: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(ENVIRON_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The value of `name` in the bytes of an `environ` file.
pub fn variable<'a>(environ: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environ
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")))
}

/// The arguments that a process was started with; none when it is another user's or a kernel thread.
pub(crate) fn arguments(pid: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(ENVIRON_BYTES).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    text.split_terminator('\0').map(str::to_owned).collect()
}

/// A process, its parent, that one's parent, and so on.
pub(crate) fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(pid), |pid| stat(*pid).map(|stat| stat.ppid)).take_while(|pid| *pid > 0)
}

/// The start of a command line, arguments separated by spaces; the name in brackets when there is none.
pub(crate) fn command(stat: &ProcStat) -> String {
    let text = command_line(stat.pid, 160);
    if text.is_empty() { format!("[{}]", stat.comm) } else { text }
}

/// At most `most` characters of a command line, without secrets; empty when there is none.
pub(crate) fn command_line(pid: u32, most: usize) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(COMMAND_BYTES).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let shown = hidden::words(text.split_terminator('\0')).join(" ");
    shown.trim().chars().take(most).collect()
}

/// Returns the kernel function that the main thread of a process waits in, empty when it runs or the kernel does not
/// show it.
pub(crate) fn wchan(pid: u32) -> String {
    match text(format!("/proc/{pid}/wchan")) {
        Some(text) if text.trim() != "0" => text.trim().to_owned(),
        _ => String::new(),
    }
}

/// The thread that traces a process, as debuggers do; 0 when none does.
pub(crate) fn tracer(pid: u32) -> u32 {
    let status = text(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok()).unwrap_or(0)
}

/// Bytes that a process, or one thread, has moved so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Io {
    /// Through `read` and `write`: files, pipes, terminals.
    pub calls: u64,
    /// From and to storage.
    pub storage: u64,
}

/// What a process has moved so far; `None` when it is another user's.
pub(crate) fn io(pid: u32) -> Option<Io> {
    parse_io(&text(format!("/proc/{pid}/io"))?)
}

/// The same from the text of an `io` file.
pub(crate) fn parse_io(text: &str) -> Option<Io> {
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let storage = value("read_bytes:")?.saturating_add(value("write_bytes:")?);
    Some(Io { calls: value("rchar:")?.saturating_add(value("wchar:")?), storage })
}

/// What a thread had of the cores so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Nanoseconds on a core.
    pub ran_ns: u64,
    /// Nanoseconds that it was ready and had none.
    pub delay_ns: u64,
    /// How often it was given one.
    pub turns: u64,
}

/// What a thread had of the cores; `None` when it is gone.
pub(crate) fn schedule(pid: u32, tid: u32) -> Option<Schedule> {
    parse_schedule(&text(format!("/proc/{pid}/task/{tid}/schedstat"))?)
}

/// The only core that the main thread of a process may use; `None` if there are more, or it is gone.
pub(crate) fn only_core(pid: u32) -> Option<u32> {
    // SAFETY: the set is plain data, for which zero is valid; the call gets its size and fills it in; the macros
    // only read it.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(pid as libc::pid_t, size, &raw mut cores) != 0
            || libc::CPU_COUNT(&cores) != 1
        {
            return None;
        }
        (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &cores)).map(|core| core as u32)
    }
}

/// CPU time that all threads of a process have used, ns; `None` when it is gone.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both point to values of their types for the duration of the calls.
    let is_known = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    is_known.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// From the text of a `schedstat` file (Documentation/scheduler/sched-stats.rst). Kernels without these
/// statistics write zeros.
pub(crate) fn parse_schedule(text: &str) -> Option<Schedule> {
    let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
    Some(Schedule { ran_ns: fields.next()?, delay_ns: fields.next()?, turns: fields.next()? })
}

/// Busy and all clock ticks of all cores since boot.
pub(crate) fn cpu_ticks() -> Option<(u64, u64)> {
    let text = text("/proc/stat")?;
    let ticks: Vec<u64> = text
        .lines()
        .next()?
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|t| t.parse().ok())
        .collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

/// Memory in use and in all, bytes.
pub(crate) fn memory() -> Option<(u64, u64)> {
    let text = text("/proc/meminfo")?;
    let values: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            Some((name, rest.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024))
        })
        .collect();
    let total = *values.get("MemTotal")?;
    Some((total.saturating_sub(*values.get("MemAvailable")?), total))
}

/// `/proc/loadavg`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadAverage {
    /// Mean over about one minute.
    pub one_minute: f32,
    /// Pid of the process or thread that was made last in this namespace, its children's namespaces included.
    pub newest: Option<u32>,
}

/// The kernel's load.
pub(crate) fn load() -> Option<LoadAverage> {
    parse_load(&text("/proc/loadavg")?)
}

fn parse_load(text: &str) -> Option<LoadAverage> {
    let mut fields = text.split_ascii_whitespace();
    let one_minute = fields.next()?.parse().ok()?;
    // Sandboxes that do not count write 0.
    let newest = fields.nth(3).and_then(|pid| pid.parse().ok()).filter(|pid| *pid > 0);
    Some(LoadAverage { one_minute, newest })
}

/// A value that changes with every boot of the machine.
pub(crate) fn boot_id() -> String {
    text("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// `uname -n`.
pub(crate) fn hostname() -> String {
    text("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Online cores.
pub(crate) fn cpu_count() -> u32 {
    // SAFETY: sysconf takes no pointers.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    count.max(1) as u32
}

/// Clock ticks per second.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_and_spaces_is_parsed() {
        let text =
            "42 (a) b (c) S 7 42 40 0 -1 4194304 1 0 0 0 10 5 0 0 20 0 3 0 900 1000 2 18446744073709551615";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state), (42, "a) b (c", 'S'));
        assert_eq!((stat.ppid, stat.session, stat.cpu_ticks), (7, 40, 15));
        assert_eq!((stat.threads, stat.start, stat.rss), (3, 900, 2 * page_bytes()));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (cut) S 1"), None);
    }

    #[test]
    fn proc_1_process_with_any_name_is_seen() {
        // Truncated inside a character by the kernel, not UTF-8 at all, and a fake end of the name.
        let names: [&[u8]; 5] = [
            "\u{8bad}\u{7ec3}\u{811a}\u{672c}\u{8bad}x".as_bytes(),
            b"\xff\xfe",
            b"a) R 1 (\n",
            b"x\ny: 1",
            b"\xe8",
        ];
        for name in names {
            let mut child = named(name);
            let seen = stat(child.id()).unwrap_or_else(|| panic!("{name:?} is not seen"));
            let shown = String::from_utf8_lossy(&name[..name.len().min(15)]).into_owned();
            assert_eq!((seen.pid, seen.comm.as_str()), (child.id(), shown.as_str()));
            assert_eq!(seen.ppid, std::process::id(), "{name:?}");
            assert!(all().iter().any(|found| found.pid == child.id() && found.start == seen.start));
            let mut again = ProcFile::open(format!("/proc/{}/stat", child.id())).unwrap();
            assert_eq!(parse_stat(&again.text().unwrap()).unwrap().start, seen.start);
            assert_eq!(tracer(child.id()), 0);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// A process that is called `name`.
    fn named(name: &[u8]) -> std::process::Child {
        use std::io::{BufRead, BufReader};
        let bytes: Vec<String> = name.iter().map(u8::to_string).collect();
        let program = format!(
            "import ctypes, time; ctypes.CDLL(None).prctl(15, bytes([{}]), 0, 0, 0); print(flush=True); \
             time.sleep(1000)",
            bytes.join(",")
        );
        let mut child = std::process::Command::new("python3")
            .args(["-c", &program])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    #[test]
    fn this_process_is_seen() {
        let own = stat(std::process::id()).unwrap();
        assert!(!own.is_gone() && own.rss > 0);
        assert!(all().iter().any(|stat| stat.pid == own.pid && stat.start == own.start));
        assert!(memory().is_some_and(|(used, total)| used > 0 && used < total));
        assert!(cpu_ticks().is_some_and(|(busy, all)| busy <= all));
    }

    #[test]
    fn newest_process_is_known_where_the_kernel_counts() {
        assert_eq!(
            parse_load("0.50 0.1 0.2 2/80 8015\n"),
            Some(LoadAverage { one_minute: 0.5, newest: Some(8015) })
        );
        assert_eq!(parse_load("0.00 0.00 0.00 0/0 0\n"), Some(LoadAverage { one_minute: 0.0, newest: None }));
        assert_eq!(parse_load(""), None);
    }

    #[test]
    fn file_that_grows_is_read_whole_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "short").unwrap();
        let mut again = ProcFile::open(&path).unwrap();
        assert_eq!(again.text().as_deref(), Some("short"));
        for length in [AGAIN_BYTES, 3 * AGAIN_BYTES, 7] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            assert_eq!(again.text().unwrap().len(), length);
        }
        std::fs::write(&path, "x".repeat(2 * AGAIN_LIMIT)).unwrap();
        assert_eq!(again.text().unwrap().len(), AGAIN_LIMIT);
    }

    #[test]
    fn end_of_a_zombie_is_its_wait_status() {
        let stat = |status: i32| format!("7 (a) b) Z {}{status}", "0 ".repeat(48));
        assert_eq!(parse_end(&stat(3 << 8)), Some(Exit::Code { code: 3 }));
        assert_eq!(parse_end(&stat(9)), Some(Exit::Signal { signal: 9, out_of_memory: false }));
        assert_eq!(parse_end(&stat(11 | 0x80)), Some(Exit::Signal { signal: 11, out_of_memory: false }));
        assert_eq!(parse_end("7 (a) Z 1"), None);
        assert_eq!(end(std::process::id()), None, "it runs");
        let mut child = std::process::Command::new("sh").args(["-c", "exit 5"]).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while end(child.id()).is_none() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(end(child.id()), Some(Exit::Code { code: 5 }));
        child.wait().unwrap();
    }

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let environ = b"XRANK=1\0RANK=3\0EMPTY=\0";
        assert_eq!(variable(environ, "RANK"), Some(&b"3"[..]));
        assert_eq!(variable(environ, "EMPTY"), Some(&b""[..]));
        assert_eq!(variable(environ, "RAN"), None);
    }
}
