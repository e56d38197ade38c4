//! Asks the programs of ranks to end, below the shells and launchers that wait for them.
//!
//! Owner: the supervisor; the work is done on threads of its own. Invariants:
//! - ASK-1: a shell is held from before its mains get their signal until all of them have ended. Then it gets
//!   SIGTERM itself, so that it runs its traps and not its next command.
//! - ASK-2: once a harder order has come, nothing here sends a signal: who was killed counts as killed.
//! - ASK-3: what reads the output of a main outlives it for a moment, at most [`MOMENT`].
//! - ASK-4: what is below a main, such as workers of a data loader, gets nothing while the main lives.

use crate::proc::{self, ProcessKey};
use crate::program::{self, AskManner, AskStage, Roles};
use crate::supervise::{groups, process_scan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long what stands around a main may take to end by itself after it.
const MOMENT: Duration = Duration::from_secs(2);
/// Polling interval for the end of mains.
const POLL: Duration = Duration::from_millis(20);
/// Reads of a tree until all its shells are held: each held shell may have started one more in between.
const HOLDS: usize = 32;
/// How long the kernel may take to stop a process.
const STOPPING: Duration = Duration::from_millis(500);

/// A rank to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskedRank {
    /// Its process.
    pub ident: ProcessKey,
    /// It has been inside a collective for long.
    pub blocked: bool,
}

/// Requests under way.
#[derive(Clone, Default)]
pub(crate) struct TerminateRequests(Arc<Mutex<RequestState>>);

#[derive(Default)]
struct RequestState {
    /// Orders that nothing was to be asked any more, counted.
    ended: u64,
    /// Calls so far.
    calls: u64,
    /// The latest call about each rank; an earlier one leaves the rank to it.
    latest: BTreeMap<ProcessKey, u64>,
    /// What reads the output of each rank's mains.
    readers: BTreeMap<ProcessKey, Vec<ProcessKey>>,
}

/// One call, from its order on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TerminateRequest {
    number: u64,
    ended: u64,
}

/// A rank whose mains are waited for.
struct TerminatingRank {
    root: ProcessKey,
    roles: Roles,
    stage: TerminationStage,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TerminationStage {
    Mains,
    /// Since then starters and readers may end by themselves.
    Around(Instant),
    Readers,
    Over,
}

impl TerminateRequests {
    /// A new order about these ranks; to be made where orders are put in their order.
    pub fn call(&self, ranks: &[ProcessKey]) -> TerminateRequest {
        let mut state = self.lock();
        state.calls += 1;
        let call = TerminateRequest { number: state.calls, ended: state.ended };
        state.latest.extend(ranks.iter().map(|rank| (*rank, call.number)));
        call
    }

    /// ASK-2. A harder order has come, or everything is over.
    pub fn end(&self) {
        let mut state = self.lock();
        state.ended += 1;
        (state.latest, state.readers) = Default::default();
        program::held().clear();
    }

    /// Sends the signal of this stage to the mains of ranks and holds their shells. `elsewhere`: their programs
    /// are below a container's monitor. Blocks.
    pub fn ask(
        &self,
        call: TerminateRequest,
        ranks: &[AskedRank],
        (stage, preferred): (AskStage, Option<i32>),
        elsewhere: bool,
    ) -> AskedRanks {
        let (mut others, mut handles_more, mut asked) = (BTreeSet::new(), false, Vec::new());
        for AskedRank { ident: root, blocked } in ranks {
            let roles = self.roles(call, *root, elsewhere);
            if !self.is_on(call, *root) {
                continue;
            }
            let readers = roles.readers.iter().chain(&roles.catching_readers).copied().collect::<Vec<_>>();
            if !readers.is_empty() {
                self.lock().readers.insert(*root, readers);
            }
            let manner = AskManner { stage, preferred, blocked: *blocked };
            for main in &roles.mains {
                // A shell whose commands have ended since it was held.
                let was_held = program::held().remove(&main.ident);
                let signal = if was_held { Some(libc::SIGTERM) } else { main.signal(manner) };
                if let Some(signal) = signal {
                    process_scan::deliver(main.ident, signal);
                }
                handles_more |= main.signal(AskManner { stage: AskStage::Second, ..manner }).is_some();
            }
            others.extend(roles.all());
            // ASK-4.
            others
                .extend(roles.mains.iter().flat_map(|main| keys_below(main.ident)).chain(keys_below(*root)));
            if !roles.is_alone(*root) {
                asked.push(TerminatingRank { root: *root, roles, stage: TerminationStage::Mains });
            }
        }
        AskedRanks { spared: others, handles_more, followed: TerminatingRanks { call, asked } }
    }

    /// Waits for the mains, and ends what stood around them. Blocks.
    pub fn follow(&self, followed: TerminatingRanks) {
        let TerminatingRanks { call, mut asked } = followed;
        while !asked.is_empty() {
            asked.retain_mut(|rank| {
                self.is_on(call, rank.root) && is_alive(&rank.root) && {
                    self.step(call, rank);
                    rank.stage != TerminationStage::Over
                }
            });
            sleep(POLL);
        }
    }

    /// What reads the output of a rank's mains, or of those of all ranks, and still runs.
    pub fn readers(&self, rank: Option<ProcessKey>) -> Vec<ProcessKey> {
        let state = self.lock();
        let of_it = state.readers.iter().filter(|(of, _)| rank.is_none_or(|rank| rank == **of));
        let known: Vec<ProcessKey> = of_it.flat_map(|(_, readers)| readers).copied().collect();
        drop(state);
        known.into_iter().filter(is_alive).collect()
    }

    /// ASK-3. Blocks until they have ended, for a moment at most.
    pub fn let_readers_end(&self, rank: Option<ProcessKey>) {
        let begun = Instant::now();
        while begun.elapsed() < MOMENT && !self.readers(rank).is_empty() {
            sleep(POLL);
        }
    }

    /// A container's client passes signals on to the first process inside. Where that is a shell, this is not
    /// enough.
    fn roles(&self, call: TerminateRequest, root: ProcessKey, elsewhere: bool) -> Roles {
        let inside = if elsewhere { program::in_container(root) } else { None };
        match inside.map(|inside| self.hold(call, root, inside)) {
            Some(roles) if !roles.shells.is_empty() => Roles { aside: vec![root], ..roles },
            Some(roles) => roles.through_client(root),
            None => self.hold(call, root, root),
        }
    }

    /// ASK-1. Holds the shells of a rank until its tree stays as it is.
    fn hold(&self, call: TerminateRequest, rank: ProcessKey, root: ProcessKey) -> Roles {
        let mut held: BTreeSet<ProcessKey> = BTreeSet::new();
        for _ in 0..HOLDS {
            let roles = Roles::read(root);
            let new: Vec<ProcessKey> =
                roles.shells.iter().filter(|shell| !held.contains(shell)).copied().collect();
            if new.is_empty() || !self.is_on(call, rank) {
                let free: Vec<ProcessKey> =
                    held.into_iter().filter(|shell| !roles.shells.contains(shell)).collect();
                for shell in free {
                    program::held().remove(&shell);
                    groups::signal(shell.pid, shell.start, libc::SIGCONT);
                }
                return roles;
            }
            for shell in new {
                program::held().insert(shell);
                groups::signal(shell.pid, shell.start, libc::SIGSTOP);
                held.insert(shell);
            }
            let begun = Instant::now();
            while !held.iter().all(is_stopped) && begun.elapsed() < STOPPING {
                sleep(Duration::from_millis(1));
            }
        }
        Roles::read(root)
    }

    fn step(&self, call: TerminateRequest, rank: &mut TerminatingRank) {
        let TerminatingRank { root, roles, stage } = rank;
        let gone = |idents: &[ProcessKey]| !idents.iter().any(is_alive);
        let mains: Vec<ProcessKey> = roles.mains.iter().map(|main| main.ident).collect();
        // Checked after their end: they may have been killed.
        let send = |idents: &[ProcessKey]| {
            let left: Vec<ProcessKey> = idents.iter().filter(|ident| is_alive(ident)).copied().collect();
            if self.is_on(call, *root) {
                for ident in left {
                    program::held().remove(&ident);
                    process_scan::deliver(ident, libc::SIGTERM);
                }
            }
        };
        if *stage == TerminationStage::Mains && gone(&mains) {
            *stage = TerminationStage::Around(Instant::now());
        }
        if let TerminationStage::Around(since) = *stage {
            let over = gone(&roles.starters) && gone(&roles.catching_readers);
            if over || since.elapsed() >= MOMENT {
                send(&roles.starters);
                send(&roles.catching_readers);
                *stage = TerminationStage::Readers;
            }
        }
        if *stage == TerminationStage::Readers && gone(&roles.catching_readers) {
            send(&roles.shells);
            *stage = TerminationStage::Over;
        }
    }

    fn is_on(&self, call: TerminateRequest, rank: ProcessKey) -> bool {
        let state = self.lock();
        state.ended == call.ended && state.latest.get(&rank) == Some(&call.number)
    }

    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows from asking ranks.
pub(crate) struct AskedRanks {
    /// What has a part in that, and what is below the mains: nothing else is to signal it.
    pub spared: BTreeSet<ProcessKey>,
    /// A main handles another signal, too.
    pub handles_more: bool,
    /// For [`TerminateRequests::follow`].
    pub followed: TerminatingRanks,
}

/// The processes below one.
fn keys_below(root: ProcessKey) -> impl Iterator<Item = ProcessKey> {
    let stats = proc::descendants(root.pid).into_iter().filter_map(proc::stat);
    stats.map(|stat| ProcessKey { pid: stat.pid, start: stat.start })
}

/// Ranks whose mains were asked to end.
pub(crate) struct TerminatingRanks {
    call: TerminateRequest,
    asked: Vec<TerminatingRank>,
}

fn is_alive(ident: &ProcessKey) -> bool {
    match proc::stat(ident.pid) {
        Some(stat) => stat.start == ident.start && !stat.is_gone(),
        // Without a free descriptor nothing can be read.
        None => groups::exists(ident.pid),
    }
}

fn is_stopped(ident: &ProcessKey) -> bool {
    let stops = |stat: proc::ProcStat| stat.start == ident.start && !matches!(stat.state, 'T' | 't');
    !proc::stat(ident.pid).is_some_and(stops) || !is_alive(ident)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command};

    /// A session of processes, killed on drop.
    struct TestSession(Child);

    impl Drop for TestSession {
        fn drop(&mut self) {
            program::held().remove(&self.key());
            let group = format!("-{}", self.0.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = self.0.wait();
        }
    }

    impl TestSession {
        /// Runs a script of bash, and waits until its program has written `ready`.
        fn start(folder: &Path, script: &str) -> TestSession {
            let mut bash = Command::new("bash");
            let bash = bash.args(["-c", script]).current_dir(folder).process_group(0).spawn().unwrap();
            let session = TestSession(bash);
            until("the program is ready", || folder.join("ready").exists());
            session
        }

        fn key(&self) -> ProcessKey {
            let stat = proc::stat(self.0.id()).unwrap();
            ProcessKey { pid: stat.pid, start: stat.start }
        }
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < deadline, "not within 30 s: {what}");
            sleep(POLL);
        }
    }

    fn ask(requests: &TerminateRequests, rank: ProcessKey, stage: AskStage) -> AskedRanks {
        let asked = AskedRank { ident: rank, blocked: false };
        requests.ask(requests.call(&[rank]), &[asked], (stage, None), false)
    }

    /// A Python program without handlers saves as after ctrl-c, and its workers live until it has saved.
    #[test]
    fn ask_4_workers_live_until_their_main_has_saved() {
        let Some(python) = rankdeck_testkit::python("signal") else { return };
        let program = "import os, sys, time\n\
            worker = os.fork()\n\
            if worker == 0:\n    time.sleep(600)\n\
            try:\n    open('ready', 'w').close()\n    time.sleep(600)\n\
            except KeyboardInterrupt:\n    time.sleep(1)\n    \
            open('saved', 'w').write(str(os.waitpid(worker, os.WNOHANG)[0]))";
        for around in ["{}; sleep 600", "{} | cat"] {
            let folder = tempfile::tempdir().unwrap();
            let script = around.replace("{}", &format!("{python} -c \"{program}\""));
            let session = TestSession::start(folder.path(), &script);
            let (requests, shell) = (TerminateRequests::default(), session.key());
            let asked = ask(&requests, shell, AskStage::First);
            assert!(!asked.handles_more, "{script}");
            assert!(asked.spared.len() >= 3, "shell, program and worker: {:?}", asked.spared);
            until("the program has saved", || folder.path().join("saved").exists());
            until("it has written", || {
                std::fs::read(folder.path().join("saved")).is_ok_and(|it| !it.is_empty())
            });
            let worker = std::fs::read_to_string(folder.path().join("saved")).unwrap();
            assert_eq!(worker, "0", "{script}: the worker lived");
            requests.follow(asked.followed);
        }
    }

    /// The first signal is handled and leads to nothing; the second one ends it, the shell around it comes last.
    #[test]
    fn ask_4_second_signal_follows_the_first_one() {
        let Some(python) = rankdeck_testkit::python("signal") else { return };
        let program = "import signal, time\n\
            signal.signal(15, lambda *_: open('asked', 'w').close())\n\
            open('ready', 'w').close()\n\
            try:\n    while True: time.sleep(600)\n\
            except KeyboardInterrupt: open('saved', 'w').close()";
        let folder = tempfile::tempdir().unwrap();
        let script = format!("trap 'touch caught' TERM; {python} -c \"{program}\"; sleep 600");
        let session = TestSession::start(folder.path(), &script);
        let (requests, shell) = (TerminateRequests::default(), session.key());
        let first = ask(&requests, shell, AskStage::First);
        assert!(first.handles_more);
        until("the program is asked", || folder.path().join("asked").exists());
        assert!(!folder.path().join("saved").exists());
        let second = ask(&requests, shell, AskStage::Second);
        requests.follow(first.followed);
        assert!(is_alive(&shell) && program::is_held(shell), "an earlier call has no part in it");
        requests.follow(second.followed);
        assert!(folder.path().join("saved").exists());
        until("the shell's trap has run", || folder.path().join("caught").exists());
    }

    /// The program saves for a while after SIGTERM. The shell around it catches SIGTERM and stays.
    #[test]
    fn ask_1_program_below_a_shell_that_stays_has_its_time() {
        let Some(python) = rankdeck_testkit::python("signal") else { return };
        let program = "import signal, sys, time\n\
            def leave(*_):\n    time.sleep(1)\n    open('saved', 'w').close()\n    sys.exit(0)\n\
            signal.signal(15, leave)\nopen('ready', 'w').close()\ntime.sleep(600)";
        let run = format!("{python} -c \"{program}\"");
        let waits = format!("trap 'touch caught' TERM; {run}; sleep 600");
        let in_background = format!("trap 'touch caught' TERM; {run} & wait; wait; sleep 600");
        for script in [waits, in_background] {
            let folder = tempfile::tempdir().unwrap();
            let session = TestSession::start(folder.path(), &script);
            let (requests, shell) = (TerminateRequests::default(), session.key());
            requests.follow(ask(&requests, shell, AskStage::First).followed);
            assert!(folder.path().join("saved").exists(), "the shell is asked after it: {script}");
            until("the shell's trap has run", || folder.path().join("caught").exists());
            assert!(is_alive(&shell), "only the end of the grace period ends it");
        }
    }
}
