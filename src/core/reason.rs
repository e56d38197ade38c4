//! The reasons of verdicts: one table, from which verdicts, evidence, JSON, `rankdeck explain`
//! and documents are made.
//!
//! A row holds everything about a reason: its code in JSON (`reason_code`, which never changes), the kind of
//! its verdicts, its usual severity, when `watch.on_stuck` acts on it, its meaning (the doc comment), the
//! sentences of verdicts, and advice. `watch::report` fills in each `{word}` of a sentence or an advice.

use serde::{Deserialize, Serialize};

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// An outlier.
    Possible,
    /// No progress, and consistent evidence.
    Likely,
    /// Proved, see [`Proof`].
    Certain,
}

/// What makes a verdict certain, from a closed list. Silence, counts, and the iterations of a script are not on
/// it: healthy programs are silent for any time, and count as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The kernel reports that the process is stopped or frozen, or the only one that could end its wait is.
    Halted,
    /// A process has exited: the rank's own, or the only one that could end its wait.
    Gone,
    /// Ranks are inside the same collective of a group with different calls, each known by its name.
    CallsDiffer,
    /// Ranks wait for each other, and both ends of each wait were seen.
    Ring,
    /// Two ranks of one group call themselves the same rank.
    SameRankTwice,
    /// The program's own report: its arguments, weights, totals or iterations.
    Reported,
    /// A device, a network interface or the connection to a host is gone, as the driver, the kernel or the link
    /// reports.
    Lost,
    /// A lock has been held for many times longer than any wait at that line before, while nothing else in the
    /// rank ran or waited for something else.
    Outlasted,
    /// The rank has been silent for longer than the user allows (`watch.silence_is_stuck_s`).
    Limit,
}

impl Proof {
    /// The observation, in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Proof::Halted => "the kernel reports a suspended process",
            Proof::Gone => "a process has exited",
            Proof::CallsDiffer => "ranks are in different calls with the same sequence number",
            Proof::Ring => "ranks wait for each other",
            Proof::SameRankTwice => "two processes have the same rank",
            Proof::Reported => "reported by the program",
            Proof::Lost => "reported by the driver, the kernel or the link",
            Proof::Outlasted => "the lock outlasted every earlier wait at that line",
            Proof::Limit => "silent for longer than `silence_is_stuck_s`",
        }
    }
}

/// How sure an assessment is: it can be certain only by a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    /// See [`Confidence::Possible`].
    Possible,
    /// See [`Confidence::Likely`].
    Likely,
    Proved(Proof),
}

impl Certainty {
    /// The proof; `None` without one.
    pub fn proof(self) -> Option<Proof> {
        match self {
            Certainty::Possible | Certainty::Likely => None,
            Certainty::Proved(proof) => Some(proof),
        }
    }

    /// As reports have it.
    pub fn confidence(self) -> Confidence {
        match self {
            Certainty::Possible => Confidence::Possible,
            Certainty::Likely => Confidence::Likely,
            Certainty::Proved(_) => Confidence::Certain,
        }
    }
}

/// The kind of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The process ended, by an exit code or a signal.
    Dead,
    /// No message from the host.
    Lost,
    /// The process is stopped (SIGSTOP, debugger).
    Frozen,
    /// Others wait in a collective that this rank has not entered.
    Behind,
    /// Ranks are in different collectives of the same number, or make none.
    Desync,
    /// The network between hosts.
    Network,
    /// A GPU is broken.
    Gpu,
    /// Its environment does not respond.
    EnvStuck,
    /// Slow, not stuck.
    Straggler,
    /// Weights differ between ranks.
    Drift,
    /// All-reduced totals do not match the sum of the per-rank counters.
    TotalsDiffer,
    /// The run does not learn, or its return falls.
    Learning,
}

impl VerdictKind {
    /// The code in JSON and on screens.
    pub fn name(self) -> &'static str {
        match self {
            VerdictKind::Dead => "dead",
            VerdictKind::Lost => "lost",
            VerdictKind::Frozen => "frozen",
            VerdictKind::Behind => "behind",
            VerdictKind::Desync => "desync",
            VerdictKind::Network => "network",
            VerdictKind::Gpu => "gpu",
            VerdictKind::EnvStuck => "env_stuck",
            VerdictKind::Straggler => "straggler",
            VerdictKind::Drift => "drift",
            VerdictKind::TotalsDiffer => "totals_differ",
            VerdictKind::Learning => "learning",
        }
    }
}

/// How urgent a verdict is. JSON keeps the names `red` and `amber`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The condition no longer holds.
    Cleared,
    /// A warning.
    Amber,
    /// Critical.
    Red,
}

/// Milliseconds after which a stopped, traced or frozen process is not paused only briefly.
const HELD_MS: u64 = 60_000;

/// When `watch.on_stuck` acts on a critical verdict about a live rank. It acts only on what is certain: a
/// healthy rank may be silent for a while, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnVerdict {
    /// As soon as it is certain.
    AtOnce,
    /// When it has lasted for a minute: a process that is suspended for a snapshot or an inspection
    /// continues earlier.
    Held,
    /// When it is proved and has lasted `watch.rank0_budget_s`. Silence proves nothing, however long it lasts.
    Lasting,
    /// Never: the run may be healthy, or `[restart]` handles it.
    Never,
}

impl OnVerdict {
    /// The words in documents.
    pub fn name(self) -> &'static str {
        match self {
            OnVerdict::AtOnce => "at once",
            OnVerdict::Held => "after a minute",
            OnVerdict::Lasting => {
                "after `rank0_budget_s` if proved, after `silence_is_stuck_s` if only silent"
            }
            OnVerdict::Never => "never",
        }
    }

    /// Returns the proof of a verdict that has lasted for `lasted_ms`.
    ///
    /// Time alone proves nothing: a healthy rank may be silent for any time, unless the user has set a limit.
    pub fn proof(self, found: Option<Proof>, lasted_ms: u64, bounds: ConfidenceBounds) -> Option<Proof> {
        let enough_ms = match self {
            OnVerdict::Never => return found,
            OnVerdict::AtOnce => 0,
            OnVerdict::Held => HELD_MS.min(bounds.budget_ms),
            OnVerdict::Lasting => bounds.budget_ms,
        };
        if bounds.silence_ms.is_some_and(|limit_ms| bounds.silent_ms.min(lasted_ms) >= limit_ms) {
            Some(found.unwrap_or(Proof::Limit))
        } else {
            found.filter(|_| lasted_ms >= enough_ms)
        }
    }
}

/// Times that decide how sure a verdict is, ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfidenceBounds {
    /// How long a rank may be silent without a verdict: `watch.rank0_budget_s`.
    pub budget_ms: u64,
    /// How long the rank has been silent.
    pub silent_ms: u64,
    /// Silence after which the user counts a rank as stuck: `watch.silence_is_stuck_s`.
    pub silence_ms: Option<u64>,
}

/// The case that a sentence covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentenceForm {
    /// Every case without a sentence of its own.
    Usual,
    /// It may be harmless.
    Doubtful,
    /// The culprit is unknown.
    Unnamed,
    /// The rank waits alone in a call that no other rank made.
    Alone,
}

/// An advice with `{word}`s to fill in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdviceRow {
    /// The advice in words.
    pub text: &'static str,
    /// The command to run; may be empty.
    pub command: &'static str,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct ReasonRow {
    pub reason: Reason,
    /// The code in JSON.
    pub name: &'static str,
    /// The kind of its verdicts.
    pub kind: VerdictKind,
    /// Its severity, unless an assessment sets another.
    pub severity: Severity,
    /// When `watch.on_stuck` acts on it.
    pub policy: OnVerdict,
    /// The observations that prove it, in one to three sentences; for `rankdeck explain` and documents.
    pub meaning: &'static str,
    /// The sentences of verdicts. The first one is for [`SentenceForm::Usual`].
    pub sentences: &'static [(SentenceForm, &'static str)],
    /// What to do, best first.
    pub advice: &'static [AdviceRow],
}

impl ReasonRow {
    /// Returns the sentence for a case.
    pub fn sentence(&self, form: SentenceForm) -> &'static str {
        let own = self.sentences.iter().find(|(case, _)| *case == form);
        own.or(self.sentences.first()).map_or("", |(_, text)| text)
    }
}

/// Returns all rows, in the order in which documents list them.
pub fn all_reasons() -> &'static [ReasonRow] {
    ROWS
}

/// Finds a reason by its code, such as `gil_held`.
pub fn reason_by_code(code: &str) -> Option<&'static ReasonRow> {
    ROWS.iter().find(|row| row.name == code)
}

impl Reason {
    /// Returns its row.
    pub fn row(self) -> &'static ReasonRow {
        &ROWS[self as usize]
    }

    /// Returns its code in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the kind of its verdicts.
    pub fn kind(self) -> VerdictKind {
        self.row().kind
    }
}

/// Replaces each `{word}` of `template` by its value.
pub(crate) fn fill(template: &str, words: &[(&str, String)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (word, tail) = after.split_once('}').unwrap_or((after, ""));
        let value = words.iter().find(|(name, _)| *name == word);
        debug_assert!(value.is_some(), "no value for {{{word}}} in {template:?}");
        text.push_str(before);
        text.push_str(value.map_or("", |(_, value)| value));
        rest = tail;
    }
    text + rest
}

/// Whether every `{word}` of `template` that is among `words` has a value.
pub(crate) fn can_fill(template: &str, words: &[(&str, String)]) -> bool {
    words.iter().all(|(name, value)| !value.is_empty() || !template.contains(&format!("{{{name}}}")))
}

const fn advice(text: &'static str, command: &'static str) -> AdviceRow {
    AdviceRow { text, command }
}

pub(crate) const LOG: AdviceRow = advice("check the rank's log", "rankdeck logs {run} --rank {rank}");
/// The stack of a rank that hangs, and whose log is silent therefore.
const STACK: AdviceRow = advice(
    "show the rank's stack (press `t` on the Ranks page, or type `stack {rank}` in line mode)",
    "rankdeck attach {run}",
);
/// Only if a child process is suspended. The key that continues a rank does not reach its child processes, and is found
/// by `kill -CONT`.
const CONTINUE_WORKER: AdviceRow =
    advice("continue the suspended child process on {host}", "kill -s CONT {worker}");
pub(crate) const LOGS: AdviceRow = advice("check the logs of all ranks", "rankdeck logs {run}");
/// Only for runs that have a checkpoint.
pub(crate) const RESTART: AdviceRow = advice("restart from the latest checkpoint", "rankdeck restart {run}");
const CHECK: AdviceRow =
    advice("restart with collective checking", "rankdeck restart {run} --check-collectives");
const CABLE: AdviceRow = advice("check the interface, cable and firewall between the hosts", "");
const LOG_IN: AdviceRow = advice("log in to {host}", "ssh {host}");
const RECONNECTS: AdviceRow = advice("no action needed: ranks keep running; rankdeck reconnects", "");
const DRIVER: AdviceRow = advice("check driver errors on {host}", "nvidia-smi -q -d ERRORS");
const OTHER_GPUS: AdviceRow = advice("use healthy GPUs: edit `gpus` in hosts.toml and relaunch", "");
const FEWER_ENVS: AdviceRow = advice("reduce `env.num_envs`", "");
const BUSY_HOST: AdviceRow = advice("check other load on {host}", "top");
const WAIT: AdviceRow = advice("no action needed while it makes progress", "");
const SMALLER: AdviceRow = advice("lower `learn.learning_rate` or clip gradients", "");
const COMPARE: AdviceRow = advice("compare it with other ranks in Overview (1)", "");

const ENDED: &str = "{who} {ended}";
const SILENT: &str = "no message from {host} for {silence}: {why}";
const HELD: &str = "{who} is {state} (process state {letter})";
const WAITS_FOR: &str = "{who} is waiting for {obstacle} in {doing}{at}; {others} in {awaited}";
const OTHER_CALL: &str =
    "{who} called a different collective #{seq}{group}: {mine}; the others called {theirs}";
const OTHER_CALLS: &str = "ranks {side} and {other} called different collectives #{seq}{group}: {mine} vs {theirs}; culprit unknown";
const GPU_GONE: &str = "GPU {gpu} of {who} has fallen off the bus";

macro_rules! reasons {
    ($(
        $(#[doc = $doc:literal])+
        $(#[serde($other:ident)])?
        $name:ident = $text:literal, $kind:ident, $severity:ident, $policy:ident,
        [$($form:ident $sentence:expr),+ $(,)?],
        [$($advice:expr),+ $(,)?];
    )*) => {
        /// The reason of a verdict, from a closed list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $(
                $(#[doc = $doc])+
                $(#[default] #[serde($other)])?
                $name,
            )*
        }

        /// In the order of the variants.
        static ROWS: &[ReasonRow] = &[$(ReasonRow {
            reason: Reason::$name,
            name: $text,
            kind: VerdictKind::$kind,
            severity: Severity::$severity,
            policy: OnVerdict::$policy,
            meaning: concat!($($doc),+).trim_ascii(),
            sentences: &[$((SentenceForm::$form, $sentence)),+],
            advice: &[$($advice),+],
        }),*];
    };
}

reasons! {
    /// A signal from outside ended the process: another user, a batch system, or a console. The agent read
    /// the signal from the exit status.
    Killed = "killed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The kernel's out-of-memory killer ended the process, or an allocation failed on the host or on a GPU.
    /// The proof is the cgroup's kill counter, or the exception that ended the program.
    OutOfMemory = "out_of_memory", Dead, Red, Never,
        [Usual ENDED],
        [advice("reduce `env.num_envs` or use a host with more memory", ""), RESTART];
    /// The process crashed with SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL. `PYTHONFAULTHANDLER=1` in
    /// `launch.env` adds a traceback to the log.
    Crashed = "crashed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The program exited with an error. The verdict shows the exception that ended it, with file and line,
    /// or else the last line of its log.
    Failed = "failed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The program ended because its GPU or the driver stopped working: every call to it returns an error.
    GpuFailed = "gpu_failed", Dead, Red, Never,
        [Usual ENDED],
        [DRIVER, RESTART];
    /// The process did not start: the command was not found or not executable, or the setup before it failed.
    NotStarted = "not_started", Dead, Red, Never,
        [Usual ENDED],
        [advice("check `launch.command`, `prelude` and `workdir` on that host", "")];
    /// The program ended because a disk or a quota was full where it wrote.
    DiskFull = "disk_full", Dead, Red, Never,
        [Usual ENDED],
        [advice("free disk space on {host}", "df -h"), RESTART];
    /// The program ended because another process uses a port that it needs, such as the port of the
    /// rendezvous.
    PortTaken = "port_taken", Dead, Red, Never,
        [Usual ENDED],
        [advice("find the process on that port on {host}", "ss -ltnp")];
    /// The process ended because its connection to another rank broke. It is a secondary failure: the other
    /// rank failed first.
    ConnectionLost = "connection_lost", Dead, Amber, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The process ended because another rank sent a message of the wrong size. It is a secondary failure:
    /// the ranks called different collectives.
    MismatchAbort = "mismatch_abort", Dead, Amber, Never,
        [Usual ENDED],
        [CHECK, RESTART];

    /// The host sends no messages, and its SSH connection is down. Other ranks do not make progress either,
    /// so its ranks may be gone.
    HostSilent = "host_silent", Lost, Red, Never,
        [Usual SILENT],
        [LOG_IN, RECONNECTS];
    /// The SSH connection to the host is up, but its agent sends no messages: it may be suspended, or short
    /// of CPU.
    AgentSilent = "agent_silent", Lost, Red, Never,
        [Usual SILENT],
        [LOG_IN, RECONNECTS];
    /// Only this console is disconnected from the host. The other ranks complete collectives with its ranks,
    /// so these are alive.
    LinkLost = "link_lost", Lost, Amber, Never,
        [Usual SILENT],
        [LOG_IN, RECONNECTS];

    /// The rank died or does not respond, and the others continue without it (`distributed.on_rank_loss =
    /// "shrink"`). The totals of the run go on from their last common update.
    RankLost = "rank_lost", Lost, Amber, Never,
        [Usual "{who} {ended}; {after}"],
        [LOG, advice("start it again; it joins the running group", "rankdeck add {run} --rank {rank}")];

    /// A signal such as SIGSTOP suspended the process. The kernel reports process state T.
    Stopped = "stopped", Frozen, Red, Held,
        [Usual HELD],
        [advice("continue the process on {host}", "kill -CONT {pid}")];
    /// A debugger or tracer holds the process. The kernel reports process state t.
    Debugger = "debugger", Frozen, Red, Lasting,
        [Usual HELD],
        [advice("detach the debugger or tracer", "")];
    /// The cgroup freezer holds the process, as when its container is paused. The cgroup reports `frozen 1`.
    CgroupFrozen = "cgroup_frozen", Frozen, Red, Held,
        [Usual "{who} is frozen (cgroup freezer or paused container)"],
        [advice("thaw the cgroup or unpause the container on {host}", "cat /proc/{pid}/cgroup")];

    /// The rank exited with code 0 while the others still train. All ranks must run the same number of
    /// iterations.
    LeftEarly = "left_early", Behind, Red, AtOnce,
        [Usual "{who} exited early (exit code 0{iteration}{goal}); {after}"],
        [LOG, RESTART];
    /// The rank is ready to run and gets no core: its host has more runnable tasks than cores. It may be
    /// silent for longer before the verdict becomes critical.
    HostOverloaded = "host_overloaded", Behind, Amber, Never,
        [Usual "rank {rank} is short of CPU in {phase}{amount}{at} (host oversubscribed); {others} in {awaited}"],
        [BUSY_HOST];
    /// The main thread has been in uninterruptible sleep (process state D) at every sample and moves no
    /// bytes: a disk or network file system probably does not respond. Storage that still moves bytes is
    /// `expected_wait`.
    Storage = "storage", Behind, Red, Lasting,
        [Usual "{who} is blocked in the kernel (probably unresponsive storage) in {doing}{at}; \
            {others} in {awaited}"],
        [advice("check the kernel stack on {host}", "cat /proc/{pid}/stack"), advice("check mounts on {host}", "df")];
    /// The rank's memory is paged in and out, on its host or at the limit of its own cgroup: high memory
    /// pressure and many major page faults.
    Thrashing = "thrashing", Behind, Amber, Never,
        [Usual "rank {rank} is thrashing (memory is paged in and out) in {phase}{amount}; {others} in {awaited}"],
        [FEWER_ENVS];
    /// The rank waits for a worker process of its RL environment that has exited. Lines that the worker printed
    /// are in the rank's log.
    EnvWorkerDied = "env_worker_died", EnvStuck, Red, AtOnce,
        [Usual "{who} is waiting for an environment worker that has exited{child}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for its RL environment workers, and none of them uses CPU or moves bytes.
    EnvWorkerDeadlocked = "env_worker_deadlocked", EnvStuck, Red, Lasting,
        [Usual "{who} is waiting for idle environment workers{stopped}{at}; {others} in {awaited}"],
        [CONTINUE_WORKER, STACK, LOG, RESTART];
    /// The rank waits for its RL environment workers, which use CPU: they are slow, not stuck.
    SlowEnv = "slow_env", Behind, Amber, Never,
        [Usual "rank {rank} is still in {phase}{amount} (slow RL environments); {others} in {awaited}"],
        [WAIT];
    /// A thread holds Python's global interpreter lock (GIL) while it sleeps or computes in C code, and the
    /// main thread waits for that lock. While the thread computes, the verdict is a warning.
    GilHeld = "gil_held", Behind, Red, Lasting,
        [
            Usual "a thread of {who} holds the GIL in {doing}{at}; {others} in {awaited}",
            Doubtful "{who} is computing in C code that holds the GIL{at}; {others} in {awaited}",
        ],
        [STACK, LOG, RESTART];
    /// An evaluation, a checkpoint or a start makes progress, and the other ranks wait for it.
    ExpectedWait = "expected_wait", Behind, Amber, Never,
        [Usual "rank {rank} is still in {phase}{amount}{at} (making progress); {others} in {awaited}"],
        [WAIT];
    /// The rank uses CPU without progress, with the same functions on its stack at each inspection, libraries
    /// included. In a script this is a warning: computing looks the same. Set `watch.silence_is_stuck_s` to limit
    /// it.
    Spinning = "spinning", Behind, Red, Lasting,
        [
            Usual "{who} is using CPU without progress in {doing}{at}; {others} in {awaited}",
            Doubtful "{who} is busy in the same functions in two inspections{at} (computing or spinning); \
                {others} in {awaited}",
        ],
        [STACK, LOG, RESTART];
    /// The main thread waits for a lock (a futex) outside any collective, and nothing in the rank uses CPU. Certain
    /// after an hour, if the wait is also ten times as long as any earlier one at that line in this run.
    Lock = "lock", Behind, Red, Lasting,
        [Usual "{who} is blocked on a lock in {doing}{at}; {others} in {awaited}"],
        [STACK, LOG, RESTART];
    /// The main thread sleeps outside any collective, for longer than its silence budget.
    Sleeping = "sleeping", Behind, Red, Lasting,
        [Usual "{who} is sleeping in {doing}{at}; {others} in {awaited}"],
        [STACK, LOG, RESTART];
    /// The main thread polls for a condition: in three inspections, it slept at the same line, in a new sleep each
    /// time, and nothing else in the rank was active. A warning until the wait is twice as long as any earlier one at
    /// that line in this run (at least 60 s). If no earlier one has ended, a warning for `watch.rank0_budget_s`.
    Polling = "polling", Behind, Red, Lasting,
        [Usual "{who} has slept in a loop{at}{about} for {waited} and does nothing else; {others} in {awaited}"],
        [advice("check what that line waits for", ""), STACK, LOG, RESTART];
    /// The rank waits for a lock on a file, or retries to take it. The evidence names the file and the
    /// process that holds the lock.
    FileLock = "file_lock", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [advice("find the lock holder on {host}", "lslocks"), LOG, RESTART];
    /// The rank reads from, writes to or opens a FIFO whose other end no process uses. The evidence names its
    /// path.
    Fifo = "fifo", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [STACK, LOG, RESTART];
    /// The rank waits for a reply from a DNS server. The evidence names the server.
    NameLookup = "name_lookup", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [advice("check DNS servers on {host}", "cat /etc/resolv.conf"), LOG];
    /// The rank waits for a child process to exit, and that process is idle. The evidence names it and the
    /// system call that it is in.
    ChildProcess = "child_process", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [CONTINUE_WORKER, STACK, LOG, RESTART];
    /// The rank waits for the process at the other end of a pipe, and that process is idle. The evidence
    /// names it.
    Pipe = "pipe", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [CONTINUE_WORKER, STACK, LOG, RESTART];
    /// The rank waits for a child process that has exited: a worker of a pool or queue, or a rank that it has
    /// started itself. The evidence has its process id, its exit code or signal, and what the rank waits for.
    /// Certain if no live process holds the other end. Dead workers of vectorized environments are
    /// `env_worker_died`.
    WorkerDied = "worker_died", Behind, Red, Lasting,
        [Usual "{who} is waiting for a child process that has exited{child}{at}; {others} in {awaited}"],
        [advice("check why the child process exited", "rankdeck logs {run} --rank {rank}"), RESTART];
    /// The rank waits for its data loader's workers, and none of them uses CPU or moves bytes. With
    /// `num_workers=0` the error appears in the rank itself.
    DataLoader = "data_loader", Behind, Red, Lasting,
        [Usual "{who} is waiting for idle data loader workers{stopped}{at}; {others} in {awaited}"],
        [CONTINUE_WORKER, STACK, LOG, RESTART];
    /// The rank waits on a socket outside any collective, for a reply or an incoming connection. The
    /// evidence names the address, and the process if it is on that host. A warning for the first 60 s, and until the
    /// wait is twice as long as any earlier one at that line in this run.
    WaitsForPeer = "waits_for_peer", Behind, Red, Lasting,
        [Usual WAITS_FOR],
        [STACK, LOG, RESTART];
    /// The training loop has ended and the process does not exit, although others have. A warning if it computes in
    /// the same functions at each inspection: a last evaluation looks the same.
    TeardownStall = "teardown_stall", Behind, Red, Lasting,
        [
            Usual "{who} hangs in teardown ({phase}){at}",
            Doubtful "{who} is still computing in the same functions{at}, although other ranks have exited",
        ],
        [STACK, LOG, RESTART];
    /// The rank has not joined the rendezvous while other ranks wait there. It may still be importing
    /// modules.
    RendezvousIncomplete = "rendezvous_incomplete", Behind, Red, Lasting,
        [Usual "{who} has not joined the rendezvous{start} ({arrived}); {others} for the process group"],
        [LOG, RESTART];
    /// All ranks have reached the rendezvous, and the process group does not form: a host probably cannot
    /// reach rank 0.
    RendezvousBlocked = "rendezvous_blocked", Behind, Red, Lasting,
        [Usual "all ranks reached the rendezvous, but the process group did not form within {waited}"],
        [advice("make {master} reachable from every host (`address`, `interface` in hosts.toml)", "")];
    /// The rank is still in a collective that the other ranks have completed.
    InsideEarlier = "inside_earlier", Behind, Red, Lasting,
        [Usual "{who} is still in an earlier collective; {others} in {awaited}"],
        [LOG, RESTART];
    /// All ranks are in the same collective with the same arguments, and it does not complete. The program's
    /// call order is correct, so no rank is the culprit.
    InsideCollective = "inside_collective", Behind, Amber, Lasting,
        [Usual "all {count} ranks have been in {call} for {waited}: the call order is correct; \
            suspect the network, backend or device"],
        [LOGS, RESTART];

    /// No rank makes progress, for longer than ever before in this run, and no rank waits for another. The
    /// evidence has one line per rank.
    Standstill = "standstill", Behind, Red, Lasting,
        [
            Usual "{who} makes no progress: {cause}{at}; the run has been stalled for {waited}",
            Unnamed "none of {count} ranks makes progress: {cause}{at}; stalled for {waited}",
        ],
        [LOGS, RESTART];

    /// The rank called a different operation than the other ranks under the same sequence number.
    OpMismatch = "op_mismatch", Desync, Red, AtOnce,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank called the same operation with a different element count, data type or root.
    SizeMismatch = "size_mismatch", Desync, Red, AtOnce,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank skipped a collective that the other ranks called. Look for branches that depend on the rank
    /// or on its data: an early `continue`, a skipped loss, a data loader with one batch fewer.
    SkippedCall = "skipped_call", Desync, Red, AtOnce,
        [
            Usual "{who} skipped collective #{seq}{group}: it called {mine}; the others called {theirs}",
            Unnamed OTHER_CALLS,
        ],
        [CHECK, RESTART];
    /// The rank called a collective that the other ranks did not call. Look for branches that depend on the
    /// rank or on its data.
    ExtraCall = "extra_call", Desync, Red, AtOnce,
        [
            Usual "{who} made an extra collective #{seq}{group}: {mine}; the others called {theirs}",
            Unnamed OTHER_CALLS,
            Alone "{who} is alone in {awaited}{at}: no other rank called it",
        ],
        [CHECK, RESTART];
    /// The rank's collectives belong to other training iterations than those of the other ranks, and no error
    /// was raised. Built-in trainer only: the iterations of a script are unknown.
    SilentShift = "silent_shift", Desync, Red, AtOnce,
        [
            Usual "{who} is out of sync: {mine} vs {theirs} (no error raised)",
            Unnamed "ranks {side} and {other} are out of sync: {mine} vs {theirs}; culprit unknown",
        ],
        [CHECK, RESTART];
    /// Ranks use their process groups in different orders: each waits in a group that another has not
    /// entered.
    OrderDeadlock = "order_deadlock", Desync, Red, AtOnce,
        [Usual "deadlock: ranks {ranks} use their process groups in different orders: {places}"],
        [CHECK, RESTART];
    /// The rank updates its weights without any collective, so each rank trains its own model.
    NoCollectives = "no_collectives", Desync, Red, AtOnce,
        [
            Usual "{who} made {updates} optimizer updates in {iterations} iterations without any collective",
            Unnamed "ranks {ranks} made {updates} optimizer updates in {iterations} iterations without any \
                collective",
        ],
        [CHECK, RESTART];
    /// The rank's optimizer has stopped making steps, while the rank still takes part in collectives and the
    /// optimizers of all other ranks continue. Scripts only; the hook counts steps and collectives.
    OptimizerIdle = "optimizer_idle", Desync, Amber, Never,
        [Usual "{who} has made no optimizer step in {collectives} collectives: {own} steps, the others {theirs}"],
        [
            advice("check why this rank makes no step: a skipped batch, a gradient scaler, an exception", ""),
            advice("no action needed if this rank does not train on purpose", ""),
        ];
    /// Ranks of a script called `init_process_group` with conflicting addresses, ports, backends or world sizes, or
    /// with the same rank, so the process group cannot form. The hook reads the arguments. A warning if they conflict
    /// only with the plan, because the other ranks have not called it yet.
    RendezvousMismatch = "rendezvous_mismatch", Desync, Red, AtOnce,
        [
            Usual "{who} called init_process_group {mine}{at}; {theirs}",
            Unnamed "ranks {side} and {other} called init_process_group {mine} and {theirs}; culprit unknown",
        ],
        [
            advice("use the MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK that rankdeck sets on every rank", ""),
            LOGS,
        ];
    /// Environment variables of a rank (RANK, WORLD_SIZE, or those of Slurm, PMI or MPI) differ from the rank or
    /// world size that rankdeck assigned. Libraries such as Accelerate and DeepSpeed read them. Reported when the
    /// process group forms.
    RankVariables = "rank_variables", Desync, Amber, Never,
        [Usual "{variables} of {ranks} contradict the plan's rank or world size"],
        [advice("remove these variables from `launch.env`, `prelude` or the script", "")];
    /// All ranks have made optimizer steps for a minute without a process group: each rank trains a separate
    /// model. The hook counts the steps.
    SeparatePrograms = "separate_programs", Desync, Amber, Never,
        [Usual "{count} separate programs: no process group"],
        [
            advice(
                "to train one model, call init_process_group on every rank (Lightning: `strategy=\"ddp\"`)",
                "",
            ),
            advice("to train one model per seed, use `rankdeck run --seeds 1..5`", ""),
        ];

    /// The kernel reports that a network interface of the process group is down.
    LinkDown = "link_down", Network, Red, Lasting,
        [Usual "network interface {interface} on {host} is down"],
        [CABLE];
    /// TCP segments between hosts are not acknowledged: the retransmission timer has doubled at least twice.
    /// A warning if segments are only retransmitted.
    NetworkLoss = "network_loss", Network, Red, Lasting,
        [
            Usual "TCP traffic {where} is not acknowledged",
            Doubtful "TCP traffic {where} is being retransmitted; {others} in {awaited}",
        ],
        [CABLE];
    /// TCP segments arrive in one direction only; a firewall rule is likely.
    OneWayLoss = "one_way_loss", Network, Red, Lasting,
        [Usual "packets from {from} to {to} are lost (this direction only)"],
        [CABLE];

    /// The driver reported an error (Xid) of the rank's GPU since the run started.
    GpuFault = "gpu_fault", Gpu, Red, Never,
        [Usual "GPU {gpu} of {who} reported Xid {xid}"],
        [DRIVER, OTHER_GPUS];
    /// The driver has lost the rank's GPU. The host needs a reboot, or the GPU a reset.
    GpuLost = "gpu_lost", Gpu, Red, AtOnce,
        [Usual GPU_GONE],
        [DRIVER, OTHER_GPUS];

    /// The rank's cgroup has used up its CPU quota. The evidence has the kernel's counts: in how many
    /// periods, and for how long.
    Throttled = "throttled", Straggler, Amber, Never,
        [
            Usual "{who} slows the run by {lost}%: CPU quota exhausted",
            Doubtful "rank {rank} is CPU-throttled in {phase}{amount}{at}; {others} in {awaited}",
        ],
        [advice("raise the cgroup's CPU quota", "")];
    /// The rank enters most collectives last, and its host is under memory pressure.
    MemoryPressure = "memory_pressure", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: host memory pressure"],
        [FEWER_ENVS];
    /// The rank enters most collectives last, and its host has more runnable tasks than cores. Other hosts
    /// do not.
    CpuPressure = "cpu_pressure", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: host CPUs oversubscribed"],
        [BUSY_HOST];
    /// The rank enters most collectives last, and the driver reduces its GPU's clock: check temperature and
    /// power limit.
    GpuThrottled = "gpu_throttled", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: GPU clocks throttled"],
        [COMPARE];
    /// The rank enters most collectives last and spends more time learning than the other ranks.
    SlowCompute = "slow_compute", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: slower compute"],
        [COMPARE];
    /// The rank enters most collectives last and spends more time in its RL environments than the other
    /// ranks.
    SlowEnvironment = "slow_environment", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: slower RL environments"],
        [COMPARE];
    /// The rank enters most collectives last, and no measurement differs from the other ranks.
    Late = "late", Straggler, Amber, Never,
        [Usual "{who} slows the run by {lost}%: cause unknown"],
        [COMPARE];

    /// The kernel restricts all ranks of a host to the same core, although the host has more.
    SharedCore = "shared_core", Straggler, Amber, Never,
        [Usual "all {count} ranks on {host} are bound to core {core}"],
        [
            advice("remove the CPU binding: `taskset`, `GOMP_CPU_AFFINITY`, or a cpuset of Slurm or the container", ""),
            advice("give each rank cores of its own with `launch.bind = \"auto\"`", ""),
        ];
    /// For a minute, every rank of a script has waited for its input: for the next batch of a data loader during more
    /// than half of the time, or for a step of environments in worker processes during more than 80% of it. The hook
    /// measures it.
    InputBound = "input_bound", Straggler, Amber, Never,
        [Usual "the run waits for its input {share}% of the time: {input}{at}"],
        [
            advice("use more data loader workers (`num_workers`), or preprocess and cache the data", ""),
            advice("use more environment workers, or cheaper environments", ""),
        ];
    /// For three minutes in a row, the run has made less than half of its usual iterations per minute.
    SlowRun = "slow_run", Straggler, Amber, Never,
        [Usual "the run slowed down: {now} iterations per minute, {before} before"],
        [
            advice("compare iteration time, CPU and GPU before and after in Charts (2)", ""),
            advice("check memory growth, throttling and input data", ""),
        ];

    /// The weights of ranks that share a model have diverged: their fingerprints were equal and now differ. A
    /// warning if only some weights differ, if the difference is rounding, if the weights were never equal, or if
    /// they are averaged rarely or never.
    WeightsDiffer = "weights_differ", Drift, Red, Never,
        [
            Usual "weights of {who} differ from the other ranks at iteration {iteration}",
            Unnamed "weights differ across ranks at iteration {iteration}",
            Doubtful "some weights differ across ranks since step {iteration}: {why}",
        ],
        [advice("results after this point are invalid: restart from an earlier checkpoint", ""), CHECK];
    /// Running statistics of normalizers (mean and variance of observations, for example) differ across ranks at
    /// every step, although the weights are equal: each rank feeds the same policy differently scaled inputs.
    /// Statistics of batch normalization are not compared: they are local by design.
    NormalizersDiffer = "normalizers_differ", Drift, Amber, Never,
        [Usual "running statistics of normalizers differ across ranks since step {step}; the weights are equal"],
        [
            advice(
                "all-reduce the normalizer's mean, variance and count after each update, or keep it in a \
                    DistributedDataParallel module with `broadcast_buffers=True` (batch norm: SyncBatchNorm)",
                "",
            ),
            advice("no action needed if each rank normalizes with its own data on purpose", ""),
        ];
    /// Weights are NaN or infinite after an optimizer step.
    WeightsNotFinite = "weights_not_finite", Drift, Red, Never,
        [
            Usual "weights of {who} contain NaN or Inf since step {step}",
            Unnamed "weights of ranks {ranks} contain NaN or Inf since step {step}",
        ],
        [advice("restart from an earlier checkpoint with a lower learning rate or gradient clipping", ""), LOG];
    /// The all-reduced totals do not match the sum of the per-rank counters of the same iteration.
    TotalsDiffer = "totals_differ", TotalsDiffer, Red, Never,
        [Usual "all-reduced totals do not match the sum of per-rank counters at iteration {iteration}"],
        [advice("step counts are unreliable: make all ranks report the same iterations", "")];

    /// A loss, a return or another series is NaN or infinite. Look for a division by 0 in rewards and
    /// observations.
    Nan = "nan", Learning, Red, Never,
        [Usual "{series} has been {value} since step {step}{of}"],
        [SMALLER, LOGS];
    /// The policy's entropy is below a thousandth of its first value, and the return is poor: the policy has
    /// stopped exploring.
    EntropyCollapse = "entropy_collapse", Learning, Amber, Never,
        [Usual "policy collapse: {series} fell from {before} to {now} at return {return}"],
        [SMALLER, advice("raise `learn.ent_coef`", "")];
    /// An update changes the policy by more than 1 nat, or by 30 times the usual amount. Lower the number of
    /// epochs or set `learn.target_kl`.
    KlBlowup = "kl_blowup", Learning, Amber, Never,
        [Usual "policy updates too large: {series} is {now}"],
        [SMALLER];
    /// The error of the value function exceeds 100 times the square of the greatest return. Scale the
    /// rewards, or lower the learning rate.
    ValueDiverges = "value_diverges", Learning, Amber, Never,
        [Usual "value estimates diverge: {series} is {now}, but no return exceeds {returns}"],
        [SMALLER];
    /// Each of the latest three evaluations has lost more than half of the best evaluation's gain.
    EvalRegressed = "eval_regressed", Learning, Amber, Never,
        [Usual "evaluation return fell from {best} (step {step}) to {now}"],
        [advice("look for other changes at that step in Charts (2)", ""), SMALLER];
    /// All ranks report the same, changing returns in every iteration, or print the same returns of episodes: their
    /// environments have the same seed, so more ranks add no experience.
    EqualReturns = "equal_returns", Learning, Amber, Never,
        [Usual "all {count} ranks report the same returns: their environments have the same seed"],
        [advice("seed each rank's environments with RANKDECK_SEED plus RANK", "")];
    /// After half of the steps, the return has not improved since the start.
    NoLearning = "no_learning", Learning, Amber, Never,
        [Usual "no learning after {step} steps: return {now}, {before} at the start"],
        [advice("check rewards, observations and the learning rate", ""), SMALLER];

    /// The rank has not entered a collective that the other ranks wait in, and no measurement explains it.
    /// Check its stack and its log. A reason code from a newer version also appears as this one.
    #[serde(other)]
    Unknown = "unknown", Behind, Red, Lasting,
        [Usual "{who} has not entered {awaited}: no activity in {doing}{at}; {others}"],
        [LOG, RESTART];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_reason_code_is_read_as_unknown() {
        for row in all_reasons() {
            assert_eq!(serde_json::to_string(&row.reason).unwrap(), format!("\"{}\"", row.name));
            assert_eq!(row.reason.row().name, row.name, "rows are in the order of the variants");
            assert_eq!(row.sentences[0].0, SentenceForm::Usual, "{}", row.name);
            assert!(row.meaning.ends_with('.'), "{}", row.meaning);
        }
        assert_eq!(serde_json::from_str::<Reason>("\"to_be_invented\"").unwrap(), Reason::Unknown);
        assert_eq!(reason_by_code("gil_held").map(|row| row.reason), Some(Reason::GilHeld));
        assert!(reason_by_code("nothing").is_none());
    }

    #[test]
    fn advice_uses_only_common_words() {
        let known = ["run", "rank", "pid", "worker", "host", "master"].map(|word| (word, "x".to_string()));
        for advice in all_reasons().iter().flat_map(|row| row.advice) {
            fill(advice.text, &known);
            fill(advice.command, &known);
        }
    }

    #[test]
    fn fill_replaces_each_word_once() {
        let words = [("who", "rank 1 {at}".to_string()), ("at", " here".to_string())];
        assert_eq!(fill("a {who}{at}.", &words), "a rank 1 {at} here.");
        assert_eq!(fill("nothing", &[]), "nothing");
    }
}
