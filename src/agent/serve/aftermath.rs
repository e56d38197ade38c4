//! After a rank's end: reaping, last words, leftovers, the proof; and the guard, which sees to it all when the agent cannot.
//!
//! Owner: the agent's loop. Whatever reads all of `/proc` or waits for processes runs on a thread of its own and reports back.

use crate::observe::gpu;
use crate::proc::Ident;
use crate::serve::{
    Settings, TICK,
    duty::{Agent, News},
};
use crate::supervise::{
    groups,
    guard::{Guard, Watch},
    lifecycle::{self, Action},
    sweep::{self, Mark, Scope},
};
use rankdeck_types::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::task::spawn_local;

/// How long leftovers are hunted before the survivors are told.
pub(super) const PURGE: Duration = Duration::from_secs(10);
/// What a rank that returned 0 left behind may take to end by itself.
const POLITE: Duration = Duration::from_secs(2);
/// A rank's last words may take this long to arrive, and no less than that.
const LAST_WORDS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long the driver may take to give GPUs back.
const GPU_PATIENCE: Duration = Duration::from_secs(5);
/// Children that ended before it was known which rank they are.
const EARLY: usize = 1024;

impl Agent {
    /// Waits for the rank's last words on the event socket and for its last log lines.
    pub(super) fn autopsy(&self, rank: Rank) {
        // What its page said last is heard before its end is.
        self.subjects.look_now();
        let (audience, logs, news) = (self.audience.clone(), self.logs.clone(), self.news.clone());
        spawn_local(async move {
            let begun = Instant::now();
            // Its connection may not even be accepted yet, hence the least time.
            while begun.elapsed() < LAST_WORDS.0
                || (audience.open_of(rank) > 0 && begun.elapsed() < LAST_WORDS.1)
            {
                audience.turn();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let (answer, lines) = tokio::sync::oneshot::channel();
            logs.finish(rank, move |lines| drop(answer.send(lines)));
            let lines = tokio::time::timeout(Duration::from_secs(2), lines).await;
            let lines = lines.ok().and_then(Result::ok).unwrap_or_default();
            let _ = news.send(News::Autopsied(rank, lines)).await;
        });
    }

    pub(super) fn clear_leftovers(&self, rank: Rank, ident: Ident, polite: bool) {
        let scope = Scope {
            sessions: BTreeMap::from([(ident, Some(rank))]),
            spared: self.spared(),
            ..Scope::marked(mark(&self.settings, Some(rank)))
        };
        let news = self.news.clone();
        tokio::task::spawn_blocking(move || {
            let polite = if polite { POLITE } else { Duration::ZERO };
            if sweep::purge(&scope, polite, PURGE).is_empty() {
                let _ = news.blocking_send(News::LeftNothing(rank));
            }
        });
    }

    fn spared(&self) -> BTreeSet<u32> {
        self.guard.iter().map(|guard| guard.pid).chain([self.ident.pid]).collect()
    }

    /// Everything of the run on this host, by all nets.
    pub(super) fn scope(&self) -> Scope {
        let machine = self.machine.borrow();
        let sessions = machine
            .ranks()
            .iter()
            .filter(|life| !self.emptied.contains(&life.rank))
            .filter_map(|life| Some((life.ident.filter(|ident| ident.start > 0)?, Some(life.rank))))
            .collect();
        Scope {
            sessions,
            below: Some(self.ident.pid),
            spared: self.spared(),
            ..Scope::marked(mark(&self.settings, None))
        }
    }

    pub(super) fn prove(&self) {
        let (scope, news, gpus) = (self.scope(), self.news.clone(), self.gpus.clone());
        let (used, mut pids): (Vec<Option<u32>>, BTreeSet<u32>) = {
            let machine = self.machine.borrow();
            let pid = |life: &lifecycle::RankLife| life.ident.map(|ident| ident.pid);
            (
                machine.ranks().iter().map(|life| life.gpu).collect(),
                machine.ranks().iter().filter_map(pid).collect(),
            )
        };
        let used: BTreeSet<u32> = used.into_iter().flatten().collect();
        let cgroup = self.cgroup.clone();
        tokio::task::spawn_blocking(move || {
            pids.extend(sweep::find(&scope).iter().map(|found| found.ident.pid));
            if let Some(cgroup) = cgroup {
                cgroup.kill();
            }
            let survivors = sweep::purge(&scope, Duration::ZERO, PURGE);
            let free = gpus_free(&gpus, &used, &pids);
            let _ = news.blocking_send(News::Proved(survivors, free));
        });
    }

    /// Reaps every child that has ended: those that are known also while another child is being made.
    pub(super) fn reap(&mut self) {
        if !groups::has_dead() {
            return;
        }
        let guard = self.guard.as_ref().map(|guard| guard.pid);
        let live: Vec<u32> = {
            let machine = self.machine.borrow();
            let ranks = machine.ranks().iter().filter(|life| life.lives());
            ranks.filter_map(|life| Some(life.ident?.pid)).chain(guard).collect()
        };
        for pid in live {
            if let Some(status) = groups::reap(pid) {
                self.bury(pid, status);
            }
        }
        while let Some((pid, status)) = groups::reap_any() {
            self.bury(pid, status);
        }
    }

    /// A child was reaped: a rank, the guard, a helper, or something that a rank left to the agent.
    fn bury(&mut self, pid: u32, status: i32) {
        let is_it =
            |life: &lifecycle::RankLife| life.lives() && life.ident.is_some_and(|ident| ident.pid == pid);
        let is_rank = self.machine.borrow().ranks().iter().any(is_it);
        if is_rank {
            let actions = self.ended(pid, status);
            self.perform(actions);
        } else if self.guard.as_ref().is_some_and(|guard| guard.pid == pid) {
            self.guard = None;
            self.notice("the guard process ended; starting another".into());
        } else if self.spawning > 0 && self.early.len() < EARLY {
            // A rank that ended before the loop was told its pid looks like this, too.
            self.early.insert(pid, status);
        }
    }

    pub(super) fn ended(&mut self, pid: u32, status: i32) -> Vec<Action> {
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        let out_of_memory = killed && self.oom.was_it();
        let now = self.now();
        self.machine.borrow_mut().reaped(pid, lifecycle::decode(status, out_of_memory), now)
    }

    pub(super) fn keep_guard(&mut self) {
        if self.guard.is_some() || Instant::now() < self.guard_retry {
            return;
        }
        self.guard_retry = Instant::now() + Duration::from_secs(5);
        let watch = Watch {
            run: self.settings.run.clone(),
            paths: self.settings.paths.clone(),
            agent: self.ident,
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        };
        match Guard::start(&watch).and_then(|guard| guard.beat().map(|()| guard)) {
            Ok(guard) => self.guard = Some(guard),
            Err(error) => self.notice(format!("no guard process: {error}; trying again")),
        }
    }
}

/// What the processes of this node carry, or of one of its ranks.
pub(super) fn mark(settings: &Settings, rank: Option<Rank>) -> Mark {
    Mark {
        run: settings.run.clone(),
        run_dir: settings.paths.run_dir.clone(),
        node: settings.paths.node,
        agent: None,
        rank,
    }
}

/// The GPUs among `used` that hold none of `pids` any more; none when the driver does not tell.
fn gpus_free(gpus: &gpu::Gpus, used: &BTreeSet<u32>, pids: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    if used.is_empty() || gpus.latest().is_empty() {
        return Vec::new();
    }
    loop {
        let seen = gpus.since(begun).unwrap_or_default();
        let free: Vec<u32> = seen
            .iter()
            .filter(|gpu| {
                used.contains(&gpu.index)
                    && !gpu.lost
                    && !gpu.processes.iter().any(|(pid, _)| pids.contains(pid))
            })
            .map(|gpu| gpu.index)
            .collect();
        if free.len() == used.len() || begun.elapsed() >= GPU_PATIENCE {
            return free;
        }
        std::thread::sleep(TICK);
    }
}
