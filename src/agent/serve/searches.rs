//! Searches in this host's logs for one console: one at a time, each in a thread of its own, so that neither
//! the loop nor a rank waits for a disk.
//!
//! Owner: the task that hears the console. A newer search, and the console's end, call off the one before.

use crate::paths::RunPaths;
use crate::search::{self, FRAME_ROOM};
use rankdeck_proto::message::AgentMessage;
use rankdeck_proto::search::{LogFindings, LogSearch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Most searches of all consoles at once.
const SEARCHES: usize = 8;
/// How often a console hears how far its search is.
const EVERY: Duration = Duration::from_millis(300);
/// How long a search may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// See the module.
pub(crate) struct Searches {
    paths: RunPaths,
    answers: mpsc::Sender<AgentMessage>,
    /// Searches of all consoles that are under way.
    all: Arc<AtomicUsize>,
    /// Calls off the latest one.
    off: Arc<AtomicBool>,
}

impl Searches {
    pub fn new(paths: RunPaths, answers: mpsc::Sender<AgentMessage>, all: Arc<AtomicUsize>) -> Searches {
        Searches { paths, answers, all, off: Arc::default() }
    }

    /// Begins one in place of that before; `None`: calls that off and nothing else.
    pub async fn begin(&mut self, request: u64, wanted: Option<Box<LogSearch>>) {
        self.off.store(true, Ordering::Relaxed);
        let Some(wanted) = wanted else { return };
        // What is heard at once tells that there is somebody who looks.
        let mut first = LogFindings::default();
        if self.all.load(Ordering::Relaxed) >= SEARCHES {
            first = not_looked(format!("{SEARCHES} searches are under way on this host"));
        }
        let busy = first.over;
        let message = AgentMessage::Found { request, findings: Box::new(first) };
        if self.answers.send(message).await.is_err() || busy {
            return;
        }
        self.off = Arc::default();
        let (off, paths, answers, held) =
            (self.off.clone(), self.paths.clone(), self.answers.clone(), SearchCount::new(&self.all));
        let thread = std::thread::Builder::new().name("search".into()).spawn(move || {
            search::yield_to_others();
            run(request, &wanted, &paths, &answers, &off);
            drop(held);
        });
        if let Err(error) = thread {
            let findings = Box::new(not_looked(format!("no thread for the search: {error}")));
            let _ = self.answers.send(AgentMessage::Found { request, findings }).await;
        }
    }
}

impl Drop for Searches {
    fn drop(&mut self) {
        self.off.store(true, Ordering::Relaxed);
    }
}

/// Counts a search while it is under way.
struct SearchCount(Arc<AtomicUsize>);

impl SearchCount {
    fn new(all: &Arc<AtomicUsize>) -> SearchCount {
        all.fetch_add(1, Ordering::Relaxed);
        SearchCount(all.clone())
    }
}

impl Drop for SearchCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn not_looked(cut: String) -> LogFindings {
    LogFindings { cut, over: true, ..LogFindings::default() }
}

fn run(
    request: u64,
    wanted: &LogSearch,
    paths: &RunPaths,
    answers: &mpsc::Sender<AgentMessage>,
    off: &AtomicBool,
) {
    let began = Instant::now();
    let mut told = began;
    let mut go_on = |so_far: &LogFindings| {
        if told.elapsed() >= EVERY {
            told = Instant::now();
            let findings = Box::new(so_far.clone());
            // A console that is slow misses this one.
            let sent = answers.try_send(AgentMessage::Found { request, findings });
            if let Err(mpsc::error::TrySendError::Closed(_)) = sent {
                return false;
            }
        }
        !off.load(Ordering::Relaxed) && began.elapsed() < PATIENCE
    };
    let found = search::look(std::slice::from_ref(paths), wanted, FRAME_ROOM, &mut go_on);
    if off.load(Ordering::Relaxed) {
        return;
    }
    let findings = match found {
        Ok(found) if found.over => found,
        Ok(found) => {
            let cut = format!("not all lines were looked at within {} s", PATIENCE.as_secs());
            LogFindings { cut, over: true, ..found }
        }
        Err(error) => not_looked(format!("`{}`: {error}", wanted.pattern)),
    };
    let _ = answers.blocking_send(AgentMessage::Found { request, findings: Box::new(findings) });
}
