//! The last log lines of each rank, and the queues of the consoles that are fed from them.
//!
//! Owner: the agent's loop. Both are bounded; what a slow console misses is counted (CONSOLE-1).

use crate::observe::logs::LineBatch;
use rankdeck_proto::message::{AgentMessage, LinesRead};
use rankdeck_types::ids::Rank;
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
    /// Number, when it was read, text.
    lines: VecDeque<(u64, u64, String)>,
    bytes: usize,
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
            kept.lines.push_back((number, time_ms, line.clone()));
            while kept.lines.len() > KEPT_LINES || kept.bytes > KEPT_BYTES {
                let Some((_, _, line)) = kept.lines.pop_front() else { break };
                kept.bytes -= line.len();
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
        lines
            .iter()
            .rev()
            .map(|(_, _, line)| line.trim_end())
            .find(|line| !line.is_empty())
            .map(str::to_owned)
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
            let mut run: Option<(u64, Vec<String>, Vec<LinesRead>, usize)> = None;
            let mut close = |run: &mut Option<(u64, Vec<String>, Vec<LinesRead>, usize)>| {
                if let Some((first, lines, times, _)) = run.take() {
                    messages.push(AgentMessage::Log { rank: *rank, first, lines, times });
                }
            };
            for (number, time_ms, line) in kept.lines.iter().skip(skip) {
                let goes_on = run.as_ref().is_some_and(|(first, lines, _, bytes)| {
                    first + lines.len() as u64 == *number && bytes + line.len() < 96 << 10
                });
                if !goes_on {
                    close(&mut run);
                }
                let (_, lines, times, bytes) = run.get_or_insert((*number, Vec::new(), Vec::new(), 0));
                *bytes += line.len();
                lines.push(line.clone());
                LinesRead::add(times, *time_ms);
            }
            close(&mut run);
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
    use rankdeck_types::ids::Generation;

    fn batch(first: u64, count: u64) -> LineBatch {
        let lines = (first..first + count).map(|i| format!("line {i}")).collect();
        let times = vec![LinesRead { lines: count as u32, time_ms: first }];
        LineBatch { rank: Rank(0), generation: Generation(0), first, lines, times }
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
