//! Inspections of suspicious ranks: which ranks to request one for, how often, and what the replies show, such
//! as the code that a rank runs.
//!
//! An inspection costs the agent up to two seconds of reading, never the rank anything. Invariants:
//! - INSPECT-1: a rank is inspected at most every [`EVERY_MS`] while it stands still, with growing gaps, and at
//!   most [`MOST`] ranks at a time. The gaps start over when what an inspection showed has ended.
//! - INSPECT-2: an inspection counts only while the rank has not moved since.
//! - INSPECT-3: an inspection that catches a rank between two waits does not show what it waits for. An earlier
//!   one that did still counts; the rank's connections come from the latest one.

use rankdeck_proto::inspection::FrameOwner;
use rankdeck_proto::inspection::{
    Frame, InnerTarget, Inspection, OF_CHILD, OF_TASK, Socket, StackMethod, ThreadStack,
};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds that an inspection may take before a verdict is reported without it.
pub(crate) const INSPECTION_MS: u64 = 2_000;
/// Least time between two inspections of a rank, ms; doubles with each.
const EVERY_MS: u64 = 3_000;
const DOUBLINGS: u32 = 6;
/// Most ranks inspected at a time.
pub(crate) const MOST: usize = 8;

/// What the inspection before the latest showed of the storage that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum EarlierStorage {
    /// There was none, or the agent cannot count the bytes.
    #[default]
    Unknown,
    /// How much it had moved, bytes.
    Moved(u64),
    /// One of the two inspections saw the rank awake: its wait had ended.
    Answered,
}

impl EarlierStorage {
    /// Whether the storage has moved bytes since; `now`: its counter at the latest inspection.
    pub fn has_moved_since(self, now: Option<u64>) -> bool {
        match (self, now) {
            (EarlierStorage::Unknown, _) | (_, None) => false,
            (EarlierStorage::Moved(then), Some(now)) => now > then,
            (EarlierStorage::Answered, Some(_)) => true,
        }
    }
}

/// A line of the program at which inspections in a row have seen a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stay {
    /// See [`site`].
    pub site: String,
    /// How many of them saw it in a sleep that began after the one before had ended.
    pub naps: u32,
    /// When the first of them began, on the clock of the host's samples.
    pub since_ms: u64,
    /// When its latest sleep ends; 0 if it did not sleep.
    wakes_at: u64,
}

impl Stay {
    /// The stay with the next inspection; `None` where that shows no line. `before`: up to then.
    fn next(before: Option<Stay>, inspection: &Inspection) -> Option<Stay> {
        let site = site(inspection)?;
        let began = inspection.began_ms;
        let new = || Stay { since_ms: began, ..Stay::default() };
        let stay = before.filter(|stay| stay.site == site).unwrap_or_else(new);
        let left = inspection.os.sleep_left_ms.filter(|_| began > 0);
        let is_another = left.is_some() && stay.wakes_at < began;
        let naps = stay.naps + u32::from(is_another);
        let wakes_at = left.map_or(stay.wakes_at, |left| began.saturating_add(left));
        Some(Stay { site, naps, wakes_at, ..stay })
    }
}

/// The inspections of one rank since it stands still.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct InspectionHistory {
    /// When the latest one was requested, on the awake clock.
    #[serde(rename = "at")]
    requested_at: Option<u64>,
    /// How many were requested.
    #[serde(rename = "times")]
    requests: u32,
    /// The latest reply.
    #[serde(rename = "answer")]
    pub latest: Option<Inspection>,
    /// The latest one that saw it wait, if `latest` did not.
    pub waiting: Option<Inspection>,
    /// The functions of its main thread at the inspection before, as a hash.
    #[serde(default)]
    pub functions_before: Option<u64>,
    /// Where the latest inspections in a row have seen it.
    #[serde(default)]
    pub stay: Option<Stay>,
    pub storage_before: EarlierStorage,
    /// Connections at the first inspection since the rank stands still, once there is a second one.
    #[serde(rename = "before")]
    pub sockets_before: Vec<Socket>,
}

/// All inspections of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct InspectionLog {
    ranks: BTreeMap<Rank, InspectionHistory>,
    /// Number of the latest request.
    request: u64,
}

/// A request to an agent for inspections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InspectRequest {
    /// The host.
    pub node: NodeRank,
    /// Number of the request.
    pub request: u64,
    /// The ranks to inspect.
    pub ranks: Vec<Rank>,
    /// Ranks to inspect that ranks of the plan have started themselves.
    pub inner: Vec<InnerTarget>,
}

impl InspectionLog {
    /// Returns the inspections to request now; `suspects` are in order of weight.
    pub fn request(&mut self, suspects: &[(NodeRank, Rank)], awake_ms: u64) -> Vec<InspectRequest> {
        // A rank that is no longer a suspect is forgotten: its next incident starts over.
        let suspects = &suspects[..suspects.len().min(MOST)];
        let ranks: BTreeSet<Rank> = suspects.iter().map(|(_, rank)| *rank).collect();
        self.ranks.retain(|rank, _| ranks.contains(rank));
        let mut by_node: BTreeMap<NodeRank, Vec<Rank>> = BTreeMap::new();
        for (node, rank) in suspects {
            let history = self.ranks.entry(*rank).or_default();
            let gap = EVERY_MS << history.requests.saturating_sub(1).min(DOUBLINGS);
            if history.requested_at.is_none_or(|at| awake_ms.saturating_sub(at) >= gap) {
                history.requested_at = Some(awake_ms);
                history.requests += 1;
                by_node.entry(*node).or_default().push(*rank);
            }
        }
        by_node
            .into_iter()
            .map(|(node, ranks)| {
                self.request += 1;
                InspectRequest { node, request: self.request, ranks, inner: Vec::new() }
            })
            .collect()
    }

    /// Takes a reply.
    pub fn on_reply(&mut self, inspection: Inspection) {
        if let Some(history) = self.ranks.get_mut(&inspection.rank) {
            history.functions_before = history.latest.as_ref().and_then(main_functions);
            let before = history.latest.clone().filter(|inspection| !inspection.os.is_awake());
            let awake = inspection.os.is_awake()
                || history.latest.as_ref().is_some_and(|latest| latest.os.is_awake());
            history.storage_before = match before.as_ref().and_then(|inspection| inspection.storage_bytes) {
                _ if awake => EarlierStorage::Answered,
                Some(bytes) => EarlierStorage::Moved(bytes),
                None => EarlierStorage::Unknown,
            };
            let seen_waiting = before.or(history.waiting.take());
            history.waiting = seen_waiting.filter(|_| inspection.os.is_awake());
            // On a busy host an inspection may end before it has read a stack. An earlier stack still holds:
            // the rank has not moved since.
            let (threads, sockets) =
                history.latest.take().map(|before| (before.threads, before.sockets)).unwrap_or_default();
            if history.sockets_before.is_empty() {
                history.sockets_before = sockets;
            }
            let threads = if inspection.threads.is_empty() { threads } else { inspection.threads };
            let inspection = Inspection { threads, ..inspection };
            history.stay = Stay::next(history.stay.take(), &inspection);
            history.latest = Some(inspection);
        }
    }

    /// What the latest inspection showed has ended: the next one follows soon.
    pub fn expire(&mut self, rank: Rank) {
        if let Some(history) = self.ranks.get_mut(&rank) {
            history.requests = history.requests.min(1);
        }
    }

    /// The line at which the latest inspection saw a rank, if that began at `since_ms` or later.
    pub fn site_since(&self, rank: Rank, since_ms: u64) -> Option<&str> {
        let history = self.ranks.get(&rank)?;
        let began_ms = history.latest.as_ref()?.began_ms;
        history.stay.as_ref().filter(|_| began_ms > since_ms).map(|stay| stay.site.as_str())
    }

    /// A rank moved: what was inspected has ended. Returns where it was.
    pub fn on_progress(&mut self, rank: Rank) -> Option<Stay> {
        let history = self.ranks.get_mut(&rank)?;
        let (requested_at, requests) = (history.requested_at, history.requests);
        let ended = std::mem::replace(
            history,
            InspectionHistory { requested_at, requests, ..InspectionHistory::default() },
        );
        ended.stay
    }

    /// Returns the inspections of a rank since it stands still.
    pub fn of_rank(&self, rank: Rank) -> Option<&InspectionHistory> {
        self.ranks.get(&rank)
    }
}

/// The thread that shows what the program does: its main thread, or one that has work where that has none.
pub(crate) fn leading_thread(inspection: &Inspection) -> Option<&ThreadStack> {
    // A Python program's own lines are in its interpreter frames; native frames below them are the library's.
    let python = |of_child: bool| {
        let is_one = move |thread: &&ThreadStack| {
            thread.how == StackMethod::Python && thread.name.starts_with(OF_CHILD) == of_child
        };
        inspection.threads.iter().filter(is_one)
    };
    // Other native threads wait for work most of the time; where they do is irrelevant.
    let main = inspection.pid.or_else(|| inspection.threads.first().map(|thread| thread.tid));
    let is_main = |thread: &&ThreadStack| thread.how == StackMethod::Native && Some(thread.tid) == main;
    let native = || inspection.threads.iter().filter(is_main);
    let has = |thread: &ThreadStack, owner| thread.frames.iter().any(|frame| frame.owner() == owner);
    main_stack(inspection)
        .filter(|thread| thread.frames.iter().any(|frame| frame.owner() != FrameOwner::System))
        .or_else(|| python(false).find(|thread| has(thread, FrameOwner::Program)))
        .or_else(|| python(false).find(|thread| has(thread, FrameOwner::Library)))
        .or_else(|| native().find(|thread| has(thread, FrameOwner::Program)))
        .or_else(|| python(true).find(|thread| has(thread, FrameOwner::Program)))
        .or_else(|| python(true).find(|thread| has(thread, FrameOwner::Library)))
}

/// The innermost frame that is neither PyTorch's nor the language's own library's, and the innermost one of the
/// program itself.
fn own_frames(inspection: &Inspection) -> Option<(&Frame, Option<&Frame>)> {
    frames_of(leading_thread(inspection)?)
}

fn frames_of(stack: &ThreadStack) -> Option<(&Frame, Option<&Frame>)> {
    let inner = stack.frames.iter().find(|frame| frame.owner() != FrameOwner::System)?;
    let caller = stack.frames.iter().find(|frame| frame.owner() == FrameOwner::Program);
    Some((inner, caller))
}

/// `FILE:LINE` and function of the innermost frame of the program's code, from an inspection. Of a library also
/// the line of the program that called it. Of an event loop the line of its first task.
pub(crate) fn user_frame(inspection: &Inspection) -> Option<String> {
    let of_task = || awaited_tasks(inspection).find_map(stack_frame);
    of_task().or_else(|| stack_frame(leading_thread(inspection)?))
}

/// The same from one stack.
fn stack_frame(stack: &ThreadStack) -> Option<String> {
    let (inner, caller) = frames_of(stack)?;
    // Parameters of types make names of hundreds of characters.
    let bare = inner.function.find('<').filter(|at| *at > 0);
    let name = bare.and_then(|at| inner.function.get(..at)).unwrap_or(&inner.function);
    let name = words::clip(name, 80);
    let function = if name.is_empty() { String::new() } else { format!(" in {name}") };
    let caller = caller.filter(|caller| !std::ptr::eq(*caller, inner));
    let caller = caller.map(|caller| format!(", called at {}", caller.place())).unwrap_or_default();
    Some(format!("{}{function}{caller}", inner.place()))
}

/// Parts of Python's library in which a main thread waits for other threads of its process, and for the tasks of
/// its event loop.
const THREAD_WAITS: [&str; 3] = ["/concurrent/futures/", "/threading.py", "/queue.py"];
const EVENT_LOOP: &str = "/asyncio/";
/// Most threads, tasks or children of which a line is shown.
const SHOWN: usize = 4;

/// The main thread waits inside this part of Python's library.
fn waits_inside(inspection: &Inspection, part: &str) -> bool {
    let frames = main_stack(inspection).into_iter().flat_map(|stack| &stack.frames);
    let mut innermost = frames.take_while(|frame| frame.owner() == FrameOwner::System);
    innermost.any(|frame| frame.file.as_deref().is_some_and(|file| file.contains(part)))
}

/// The suspended tasks of the event loop that the main thread waits in, the main one first.
fn awaited_tasks(inspection: &Inspection) -> impl Iterator<Item = &ThreadStack> {
    let is_task = |stack: &&ThreadStack| stack.name.starts_with(OF_TASK);
    let waits =
        inspection.threads.iter().any(|stack| is_task(&stack)) && waits_inside(inspection, EVENT_LOOP);
    inspection.threads.iter().filter(move |stack| waits && is_task(stack))
}

/// Where the threads or tasks are that the main thread waits for. Which of them ends the wait cannot be seen: those
/// that run code of the program.
pub(crate) fn awaited_lines(inspection: &Inspection) -> Vec<String> {
    let own = |stack: &&ThreadStack| stack.frames.iter().any(|frame| frame.owner() == FrameOwner::Program);
    let tasks = awaited_tasks(inspection).filter(own).filter_map(|stack| {
        let name = words::clip(stack.name.strip_prefix(OF_TASK)?, 40);
        Some(format!("its task {name} waits at {}", stack_frame(stack)?))
    });
    let waits = THREAD_WAITS.iter().any(|part| waits_inside(inspection, part));
    let is_thread = |stack: &&ThreadStack| {
        let other = stack.name.starts_with(OF_CHILD) || stack.name.starts_with(OF_TASK);
        let is_hook = stack.frames.iter().any(Frame::is_of_hook);
        waits && stack.how == StackMethod::Python && Some(stack.tid) != inspection.pid && !other && !is_hook
    };
    let threads = inspection.threads.iter().filter(is_thread).filter(own).filter_map(|stack| {
        let name = if stack.name.is_empty() { stack.tid.to_string() } else { words::clip(&stack.name, 40) };
        Some(format!("its thread {name} is at {}", stack_frame(stack)?))
    });
    tasks.chain(threads).take(SHOWN).collect()
}

/// The stack of a child process.
fn child_stack(inspection: &Inspection, pid: u32) -> Option<&ThreadStack> {
    let name = format!("{OF_CHILD}{pid} ");
    inspection.threads.iter().find(|stack| stack.name.starts_with(&name))
}

/// `FILE:LINE` and function of the innermost frame of a child's code.
pub(crate) fn child_frame(inspection: &Inspection, pid: u32) -> Option<String> {
    stack_frame(child_stack(inspection, pid)?)
}

/// Whether a child is inside a call of a process group.
pub(crate) fn child_is_in_collective(inspection: &Inspection, pid: u32) -> bool {
    child_stack(inspection, pid).is_some_and(|stack| stack.frames.iter().any(is_of_collective))
}

/// File and function of that frame.
pub(crate) fn user_function(inspection: &Inspection) -> Option<String> {
    let (inner, _) = own_frames(inspection)?;
    Some(words::clip(&format!("{} {}", inner.path(), inner.function), SITE_CHARS))
}

/// Most characters of a line.
const SITE_CHARS: usize = 200;

/// The line at which the program is: `FILE:LINE`, of a library with the line that called it.
pub(crate) fn site(inspection: &Inspection) -> Option<String> {
    let (inner, caller) = own_frames(inspection)?;
    let caller = caller.filter(|caller| !std::ptr::eq(*caller, inner));
    let both = [Some(inner), caller].into_iter().flatten().map(Frame::place).collect::<Vec<_>>().join(" < ");
    Some(words::clip(&both, SITE_CHARS))
}

/// The functions of the main thread's stack, as a hash (FNV-1a).
pub(crate) fn main_functions(inspection: &Inspection) -> Option<u64> {
    let stack = leading_thread(inspection)?;
    let names = stack.frames.iter().flat_map(|frame| [frame.path(), frame.function.as_str(), "\n"]);
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Some(names.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, hash))
}

/// Returns the Python stack of the program's main thread: of the rank's own process, or, where that only starts the
/// program, of a process below it. Python workers of a native program run none of its code.
pub(crate) fn main_stack(inspection: &Inspection) -> Option<&ThreadStack> {
    let python = || inspection.threads.iter().filter(|stack| stack.how == StackMethod::Python);
    let own = || python().filter(|stack| !stack.name.starts_with(OF_CHILD));
    let is_own_code = |stack: &&ThreadStack| stack.frames.iter().any(is_of_program);
    let native = inspection.threads.iter().filter(|stack| stack.how == StackMethod::Native);
    let is_native = || native.clone().any(|stack| is_own_code(&stack));
    own()
        .find(|stack| Some(stack.tid) == inspection.pid)
        .or_else(|| own().next())
        .or_else(|| if is_native() { None } else { python().next() })
}

fn is_of_program(frame: &Frame) -> bool {
    frame.owner() == FrameOwner::Program
}

/// Whether the main thread is inside a call of the process group.
pub(crate) fn is_in_collective(inspection: &Inspection) -> bool {
    let main = inspection
        .threads
        .iter()
        .filter(|thread| Some(thread.tid) == inspection.pid && thread.how != StackMethod::Kernel);
    main.flat_map(|thread| &thread.frames).any(is_of_collective)
}

fn is_of_collective(frame: &Frame) -> bool {
    frame.file.as_deref().is_some_and(|file| file.contains("torch/distributed"))
        || ["c10d::", "gloo::"].iter().any(|part| frame.function.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::inspection::ThreadStack;

    fn latest(log: &InspectionLog, rank: u32) -> Option<&Inspection> {
        log.of_rank(Rank(rank))?.latest.as_ref()
    }

    #[test]
    fn frames_of_the_hook_are_never_the_place() {
        let frame = |file: &str| Frame { file: Some(file.into()), line: Some(3), ..Frame::default() };
        for file in ["/r/python/sitecustomize.py", "/r/python/rankdeck_hook.py", "/r/python/rankdeck.py"] {
            assert!(frame(file).is_of_hook() && frame(file).owner() == FrameOwner::System, "{file}");
        }
        for file in ["/w/rankdeck_train.py", "/w/python/train.py", "/w/python/a/rankdeck.py"] {
            assert_eq!(frame(file).owner(), FrameOwner::Program, "{file}");
        }
        let stack = |tid, files: [&str; 2]| ThreadStack {
            tid,
            how: StackMethod::Python,
            frames: files.map(frame).into(),
            ..ThreadStack::default()
        };
        let threads = vec![
            stack(8, ["/w/writer.py", "/w/train.py"]),
            stack(7, ["/r/python/rankdeck_hook.py", "/w/train.py"]),
        ];
        let inspection = Inspection { pid: Some(7), threads, ..Inspection::default() };
        assert_eq!(user_frame(&inspection).as_deref(), Some("/w/train.py:3"), "the main thread's");
    }

    #[test]
    fn inspect_1_requests_back_off_and_are_bounded() {
        let mut log = InspectionLog::default();
        let suspects: Vec<(NodeRank, Rank)> = (0..20).map(|rank| (NodeRank(rank / 4), Rank(rank))).collect();
        let first = log.request(&suspects, 0);
        assert_eq!(first.iter().map(|request| request.ranks.len()).sum::<usize>(), MOST);
        assert_eq!(first.len(), 2);
        let mut times = 0;
        for ms in (250..=60_000).step_by(250) {
            times += log.request(&suspects[..1], ms).len();
        }
        assert_eq!(times, 4, "after 3, 9, 21 and 45 seconds");
    }

    #[test]
    fn inspect_2_reply_is_dropped_when_rank_moves() {
        let mut log = InspectionLog::default();
        let suspects = [(NodeRank(0), Rank(1))];
        let answer = |rank| Inspection { rank: Rank(rank), ..Inspection::default() };
        log.request(&suspects, 0);
        log.on_reply(answer(1));
        log.on_reply(answer(2));
        assert!(latest(&log, 1).is_some() && latest(&log, 2).is_none(), "no request for rank 2");
        let stack = ThreadStack { tid: 7, ..ThreadStack::default() };
        log.on_reply(Inspection { threads: vec![stack], ..answer(1) });
        log.on_reply(answer(1));
        assert_eq!(
            latest(&log, 1).map(|inspection| inspection.threads.len()),
            Some(1),
            "an inspection without stacks keeps the earlier ones"
        );
        log.on_progress(Rank(1));
        assert!(latest(&log, 1).is_none());
        log.on_reply(answer(1));
        log.request(&[], 100);
        assert!(latest(&log, 1).is_none());
    }
}
