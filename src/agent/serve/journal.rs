//! The agent's journal: durable records, and notices.

use crate::serve::log_line;
use crate::serve::notifier::AgentNotifier;
use crate::serve::spool::Spool;
use crate::supervise::lifecycle::Lifecycle;
use rankdeck_proto::message::RecordEvent;
use rankdeck_types::ids::Generation;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long a slow disk may hold up the end of an agent.
const LAST_RECORDS: Duration = Duration::from_secs(5);

/// Records, notices and the log of the agent.
pub(crate) struct AgentJournal {
    lifecycle: Rc<RefCell<Lifecycle>>,
    spool: Spool,
    path: PathBuf,
    failing: bool,
    left_out: u64,
    /// Notifications about some records.
    pub notifier: RefCell<AgentNotifier>,
}

impl AgentJournal {
    /// A journal that writes to `spool`, whose file is `path`.
    pub fn new(
        lifecycle: Rc<RefCell<Lifecycle>>,
        spool: Spool,
        path: PathBuf,
        notifier: AgentNotifier,
    ) -> AgentJournal {
        AgentJournal { lifecycle, spool, path, failing: false, left_out: 0, notifier: RefCell::new(notifier) }
    }

    /// Records an event of the latest generation.
    pub fn record(&self, event: RecordEvent) {
        self.record_of(self.lifecycle.borrow().generation(), event);
    }

    /// Records an event of any generation.
    pub fn record_of(&self, generation: Generation, event: RecordEvent) {
        self.notifier.borrow_mut().on_record(&event);
        self.spool.append(generation, event);
    }

    /// Records a notice of the agent.
    pub fn notice(&self, text: String) {
        log_line(&text);
        self.record(RecordEvent::Notice { text });
    }

    /// Reports when records cannot be written to disk, and when they can be again.
    pub fn check_disk(&mut self) {
        let left_out = self.spool.left_out();
        if left_out > self.left_out {
            let text = format!("{}: {left_out} older records were dropped so far", self.path.display());
            // One is enough for a run of weeks; consoles count what they do not get.
            if self.left_out == 0 {
                self.notice(text)
            } else {
                log_line(&text)
            }
            self.left_out = left_out;
        }
        let failing = self.spool.is_failing();
        if failing == self.failing {
            return;
        }
        self.failing = failing;
        self.notice(if failing {
            format!("cannot write {}; records are kept in memory", self.path.display())
        } else {
            format!("records are written to disk again; {} were lost", self.spool.lost())
        });
    }

    /// Writes the manifest soon.
    pub fn save_manifest(&self, bytes: Vec<u8>) {
        self.spool.save_manifest(bytes);
    }

    /// Waits until everything is on disk; `false` when the disk takes too long.
    pub fn flush(&self) -> bool {
        self.spool.flush(LAST_RECORDS)
    }
}
