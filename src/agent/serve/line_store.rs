//! The last log lines of each rank, and the queues of the consoles that are fed from them.
//!
//! Owner: the agent's loop. Both are bounded; what a slow console misses is counted (CONSOLE-1).

use crate::observe::logs::LineBatch;
use rankdeck_proto::message::{AgentMessage, LinesRead};
use rankdeck_types::ids::{Generation, Rank};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use tokio::sync::Notify;

/// Log lines that may wait for one console.
const WAITING_LINES: usize = 2000;
/// Log lines kept per rank for consoles that come later, and about their bytes.
const KEPT_LINES: usize = 2000;
const KEPT_BYTES: usize = 512 << 10;

/// The last log lines of each rank, and the queues of the consoles.
#[derive(Debug, Default)]
pub(crate) struct LineStore {
    kept: BTreeMap<Rank, StoredLines>,
    queues: Vec<Weak<ConsoleLineQueue>>,
    /// Lines that did not even reach this store.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct StoredLines {
    lines: VecDeque<StoredLine>,
    bytes: usize,
}

#[derive(Debug)]
struct StoredLine {
    number: u64,
    /// Numbers before it whose lines were written over.
    overwritten: u64,
    /// When it was read.
    time_ms: u64,
    text: String,
}

/// Log lines that wait for one console.
#[derive(Debug, Default)]
pub(crate) struct ConsoleLineQueue {
    batches: RefCell<VecDeque<LineBatch>>,
    lines: Cell<usize>,
    dropped: Cell<u64>,
    wake: Notify,
}

impl LineStore {
    /// Clears everything for a new generation.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Keeps lines and hands them to every console.
    pub fn push(&mut self, batch: &LineBatch) {
        let kept = self.kept.entry(batch.rank).or_default();
        let numbered = (batch.first..).zip(LinesRead::each(&batch.times)).zip(&batch.lines);
        for ((number, time_ms), line) in numbered {
            kept.bytes += line.len();
            let overwritten = if number == batch.first { batch.overwritten } else { 0 };
            kept.lines.push_back(StoredLine { number, overwritten, time_ms, text: line.clone() });
            while kept.lines.len() > KEPT_LINES || kept.bytes > KEPT_BYTES {
                let Some(line) = kept.lines.pop_front() else { break };
                kept.bytes -= line.text.len();
            }
        }
        self.queues.retain(|queue| {
            let Some(queue) = queue.upgrade() else { return false };
            let mut batches = queue.batches.borrow_mut();
            queue.lines.set(queue.lines.get() + batch.lines.len());
            batches.push_back(batch.clone());
            while queue.lines.get() > WAITING_LINES && batches.len() > 1 {
                let Some(oldest) = batches.pop_front() else { break };
                queue.lines.set(queue.lines.get() - oldest.lines.len());
                queue.dropped.set(queue.dropped.get() + oldest.lines.len() as u64);
            }
            queue.wake.notify_one();
            true
        });
    }

    /// Returns the last non-blank line of a rank.
    pub fn last(&self, rank: Rank) -> Option<String> {
        let lines = &self.kept.get(&rank)?.lines;
        lines.iter().rev().map(|line| line.text.trim_end()).find(|line| !line.is_empty()).map(str::to_owned)
    }

    /// A queue for a console that attaches; it is fed until it is dropped.
    pub fn subscribe(&mut self) -> Rc<ConsoleLineQueue> {
        let queue = Rc::new(ConsoleLineQueue::default());
        self.queues.push(Rc::downgrade(&queue));
        queue
    }

    /// The last `most` lines of each rank, as messages of consecutive lines.
    pub fn tails(&self, most: usize) -> Vec<AgentMessage> {
        let mut messages = Vec::new();
        for (rank, kept) in &self.kept {
            let skip = kept.lines.len().saturating_sub(most);
            let mut batch: Option<LineBatch> = None;
            let mut bytes = 0;
            let mut close = |batch: Option<LineBatch>| messages.extend(batch.map(LineBatch::message));
            for line in kept.lines.iter().skip(skip) {
                let follows = batch.as_ref().is_some_and(|batch| {
                    batch.first + batch.lines.len() as u64 == line.number
                        && bytes + line.text.len() < 96 << 10
                });
                if !follows {
                    close(batch.take());
                    bytes = 0;
                }
                let batch = batch.get_or_insert_with(|| LineBatch {
                    rank: *rank,
                    generation: Generation::default(),
                    first: line.number,
                    overwritten: line.overwritten,
                    lines: Vec::new(),
                    times: Vec::new(),
                });
                bytes += line.text.len();
                batch.lines.push(line.text.clone());
                LinesRead::add(&mut batch.times, line.time_ms);
            }
            close(batch);
        }
        messages
    }
}

impl ConsoleLineQueue {
    /// Lines that this console was too slow for, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Returns when a batch has come since the last call.
    pub async fn fed(&self) {
        self.wake.notified().await;
    }

    /// The oldest batch that waits.
    pub fn pop(&self) -> Option<LineBatch> {
        let batch = self.batches.borrow_mut().pop_front()?;
        self.lines.set(self.lines.get() - batch.lines.len());
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: u64, count: u64) -> LineBatch {
        let lines = (first..first + count).map(|i| format!("line {i}")).collect();
        let times = vec![LinesRead { lines: count as u32, time_ms: first }];
        LineBatch { rank: Rank(0), generation: Generation(0), first, overwritten: 0, lines, times }
    }

    #[test]
    fn console_1_waiting_lines_are_bounded_and_drops_counted() {
        let mut store = LineStore::default();
        let queue = store.subscribe();
        for i in 0..100 {
            store.push(&batch(i * 100, 100));
        }
        assert_eq!(queue.lines.get(), WAITING_LINES);
        assert_eq!(queue.dropped.get(), 10_000 - WAITING_LINES as u64);
        assert_eq!(queue.pop().unwrap().first, 10_000 - WAITING_LINES as u64);
        drop(queue);
        store.push(&batch(10_000, 1));
        assert!(store.queues.is_empty(), "a console that left takes its queue along");
    }

    #[test]
    fn tails_keep_numbers_across_gaps() {
        let mut store = LineStore::default();
        store.push(&batch(0, 3));
        store.push(&batch(10, 2));
        store.push(&batch(12, 1));
        let times: Vec<Vec<u64>> = store
            .tails(9)
            .iter()
            .map(|message| match message {
                AgentMessage::Log { lines, times, .. } => LinesRead::each(times).take(lines.len()).collect(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(times, [vec![0, 0, 0], vec![10, 10, 12]]);
        let firsts: Vec<(u64, usize)> = store
            .tails(5)
            .iter()
            .map(|message| match message {
                AgentMessage::Log { first, lines, .. } => (*first, lines.len()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(firsts, [(1, 2), (10, 3)]);
    }
}
