//! The reasons that a verdict may give: one table, from which verdicts, cards, JSON and documents are made.
//!
//! A row holds all that is said about a reason: its name in JSON (`reason_code`, which never changes), the
//! kind of its verdicts, how bad it usually is, a sentence for documents (the doc comment), the sentences of
//! verdicts, and advice. The watch fills in each `{word}` of a sentence or an advice.

use serde::{Deserialize, Serialize};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The process ended, by an exit code or a signal.
    Dead,
    /// The host says nothing.
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
    /// Its environment does not answer.
    EnvStuck,
    /// Slow, not stuck.
    Straggler,
    /// Weights differ between ranks.
    Drift,
    /// All-reduced totals are not the sum of the ranks' own counters.
    TotalsDiffer,
}

impl VerdictKind {
    /// The word in JSON and on screens.
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
        }
    }
}

/// How bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is over.
    Cleared,
    /// Worth knowing.
    Amber,
    /// Act.
    Red,
}

/// The case that a sentence is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentenceForm {
    /// Every case that has no sentence of its own.
    Usual,
    /// It may be harmless.
    Doubtful,
    /// Nothing tells which rank is the one to blame.
    Unnamed,
    /// The rank waits alone in a call that no other rank makes.
    Alone,
}

/// Something to do, with `{word}`s to fill in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdviceRow {
    /// What it does.
    pub text: &'static str,
    /// The command, empty when there is none.
    pub command: &'static str,
}

/// All that is said about one reason.
#[derive(Debug, Clone, Copy)]
pub struct ReasonRow {
    /// The reason.
    pub reason: Reason,
    /// The word in JSON.
    pub name: &'static str,
    /// The kind of its verdicts.
    pub kind: VerdictKind,
    /// How bad it is, unless the watch has grounds to say otherwise.
    pub severity: Severity,
    /// One sentence for documents.
    pub doc: &'static str,
    /// The sentences of verdicts. The first one is for [`SentenceForm::Usual`].
    pub sentences: &'static [(SentenceForm, &'static str)],
    /// What to do, the best first.
    pub advice: &'static [AdviceRow],
}

impl ReasonRow {
    /// The sentence for a case.
    pub fn sentence(&self, form: SentenceForm) -> &'static str {
        let own = self.sentences.iter().find(|(case, _)| *case == form);
        own.or(self.sentences.first()).map_or("", |(_, text)| text)
    }
}

/// All rows, for documents and tests.
pub fn reasons() -> impl Iterator<Item = &'static ReasonRow> {
    ROWS.iter()
}

impl Reason {
    /// What is said about it.
    pub fn row(self) -> &'static ReasonRow {
        &ROWS[self as usize]
    }

    /// The word in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The kind of verdict that this reason belongs to.
    pub fn kind(self) -> VerdictKind {
        self.row().kind
    }
}

/// `template` with each `{word}` replaced by its value.
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

const fn advice(text: &'static str, command: &'static str) -> AdviceRow {
    AdviceRow { text, command }
}

const LOG: AdviceRow = advice("look at its log", "rankdeck logs {run} --rank {rank}");
const LOGS: AdviceRow = advice("look at the logs", "rankdeck logs {run}");
const RESTART: AdviceRow =
    advice("restart from the latest checkpoint", "rankdeck restart {run} --from latest");
const CHECK: AdviceRow = advice(
    "restart with every collective checked before it begins",
    "rankdeck restart {run} --check-collectives",
);
const CABLE: AdviceRow = advice("look at the interface, its cable and the firewall between the hosts", "");
const CONNECT: AdviceRow = advice("connect to it", "ssh {host}");
const COMES_BACK: AdviceRow = advice("the run goes on there and is found again when the host answers", "");
const DRIVER: AdviceRow = advice("see what the driver says, on {host}", "nvidia-smi -q -d ERRORS");
const OTHER_GPUS: AdviceRow =
    advice("restart on healthy GPUs: change `gpus` in hosts.toml and launch anew", "");
const FEWER_ENVS: AdviceRow = advice("use fewer environments per rank (`env.num_envs`)", "");
const BUSY_HOST: AdviceRow = advice("see what else runs there, on {host}", "top");
const WAIT: AdviceRow = advice("nothing while it moves", "");
const COMPARE: AdviceRow = advice("compare it with the others on the ranks page", "");

const ENDED: &str = "{who} {ended}";
const SILENT: &str = "nothing heard from {host} for {silence}: {why}";
const STOPPED: &str = "{who} is {state} (process state {letter})";
const OTHER_CALL: &str =
    "{who} is in another collective #{seq}{group} than the others: {mine} against {theirs}";
const OTHER_CALLS: &str = "ranks {side} and {other} disagree about collective #{seq}{group}: \
    {mine} against {theirs}; nothing tells which is right";
const GPU_GONE: &str = "GPU {gpu} of {who} has fallen off the bus";

macro_rules! reasons {
    ($(
        $(#[doc = $doc:literal])+
        $(#[serde($other:ident)])?
        $name:ident = $text:literal, $kind:ident, $severity:ident,
        [$($form:ident $sentence:expr),+ $(,)?],
        [$($advice:expr),+ $(,)?];
    )*) => {
        /// Why.
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
            doc: concat!($($doc),+).trim_ascii(),
            sentences: &[$((SentenceForm::$form, $sentence)),+],
            advice: &[$($advice),+],
        }),*];
    };
}

reasons! {
    /// A signal ended the process from outside.
    Killed = "killed", Dead, Red,
        [Usual ENDED],
        [LOG, RESTART];
    /// The kernel's out-of-memory killer ended the process.
    OutOfMemory = "out_of_memory", Dead, Red,
        [Usual ENDED],
        [advice("use fewer environments per rank (`env.num_envs`) or a host with more memory", ""), RESTART];
    /// The process crashed (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL).
    Crashed = "crashed", Dead, Red,
        [Usual ENDED],
        [LOG, RESTART];
    /// The process ended with an error.
    Failed = "failed", Dead, Red,
        [Usual ENDED],
        [LOG, RESTART];
    /// The process could not be started.
    NotStarted = "not_started", Dead, Red,
        [Usual ENDED],
        [advice("check `launch.command`, `prelude` and `workdir` on that host", "")];
    /// No space was left where the process wrote.
    DiskFull = "disk_full", Dead, Red,
        [Usual ENDED],
        [advice("free space where the run writes, on {host}", "df -h"), RESTART];
    /// The rendezvous port belonged to another process.
    PortTaken = "port_taken", Dead, Red,
        [Usual ENDED],
        [advice("see who has the port, on {host}", "ss -ltnp")];
    /// A connection to another rank broke: a victim.
    ConnectionLost = "connection_lost", Dead, Amber,
        [Usual ENDED],
        [LOG, RESTART];
    /// A message of the wrong size from another rank ended the process: a victim.
    MismatchAbort = "mismatch_abort", Dead, Amber,
        [Usual ENDED],
        [CHECK, RESTART];

    /// The host says nothing, and the others wait for its ranks.
    HostSilent = "host_silent", Lost, Red,
        [Usual SILENT],
        [CONNECT, COMES_BACK];
    /// The link stands but the agent says nothing.
    AgentSilent = "agent_silent", Lost, Red,
        [Usual SILENT],
        [CONNECT, COMES_BACK];
    /// Only this console has lost the host: the other ranks go on with its ranks.
    LinkLost = "link_lost", Lost, Amber,
        [Usual SILENT],
        [CONNECT, COMES_BACK];

    /// A signal has stopped the process.
    Stopped = "stopped", Frozen, Red,
        [Usual STOPPED],
        [advice("continue it, on {host}", "kill -CONT {pid}")];
    /// A debugger or tracer holds the process.
    Debugger = "debugger", Frozen, Red,
        [Usual STOPPED],
        [advice("detach the debugger or tracer that holds it", "")];
    /// The cgroup or container of the process is frozen.
    CgroupFrozen = "cgroup_frozen", Frozen, Red,
        [Usual "{who} is frozen by its cgroup or container"],
        [advice("thaw its cgroup or unpause its container, on {host}", "cat /proc/{pid}/cgroup")];

    /// The rank ended with exit code 0 while the others go on.
    LeftEarly = "left_early", Behind, Red,
        [Usual "{who} left the training loop early (exit code 0{iteration}{goal}); {after}"],
        [LOG, RESTART];
    /// The rank's host has more to run than cores.
    HostOverloaded = "host_overloaded", Behind, Amber,
        [Usual "waiting for rank {rank}: {phase}{amount} (its host has more to run than cores; \
            {others} in {awaited})"],
        [BUSY_HOST];
    /// The rank is blocked in the kernel, as on storage that does not answer.
    Storage = "storage", Behind, Red,
        [Usual "{who} is blocked in the kernel, as on storage that does not answer, in {doing}{at}; \
            {others} in {awaited}"],
        [
            advice("see which file system it waits for, on {host}", "cat /proc/{pid}/stack"),
            advice("see what is mounted, on {host}", "df"),
        ];
    /// The rank's memory is being paged in and out.
    Thrashing = "thrashing", Behind, Amber,
        [Usual "waiting for rank {rank}: {phase}{amount} (its memory is being paged in and out; \
            {others} in {awaited})"],
        [FEWER_ENVS];
    /// A worker process of the rank's environment has ended.
    EnvWorkerDied = "env_worker_died", EnvStuck, Red,
        [Usual "{who} waits for a worker of its environment that has ended{child}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for workers of its environment, none of which does anything.
    EnvWorkerDeadlocked = "env_worker_deadlocked", EnvStuck, Red,
        [Usual "{who} waits for workers of its environment that do nothing{stopped}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank's environment works, but takes long.
    SlowEnv = "slow_env", Behind, Amber,
        [Usual "waiting for rank {rank}: {phase}{amount} (its environments work, but take long; \
            {others} in {awaited})"],
        [WAIT];
    /// A thread holds the Python interpreter lock.
    GilHeld = "gil_held", Behind, Red,
        [Usual "a thread of {who} holds the Python interpreter lock in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// An evaluation, a checkpoint or a start makes progress.
    ExpectedWait = "expected_wait", Behind, Amber,
        [Usual "waiting for rank {rank}: {phase}{amount} (it works; {others} in {awaited})"],
        [WAIT];
    /// The rank burns CPU without progress.
    Spinning = "spinning", Behind, Red,
        [
            Usual "{who} burns CPU without progress in {doing}{at}; {others} in {awaited}",
            Doubtful "{who} works or spins{at}, in the same function at two looks; {others} in {awaited}",
        ],
        [LOG, RESTART];
    /// The rank waits for a lock in local code.
    Lock = "lock", Behind, Red,
        [Usual "{who} waits for a lock in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank sleeps in local code.
    Sleeping = "sleeping", Behind, Red,
        [Usual "{who} sleeps in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for something from the network outside a collective.
    WaitsForPeer = "waits_for_peer", Behind, Red,
        [Usual "{who} waits for something from the network in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank does not get through the end of the run.
    TeardownStall = "teardown_stall", Behind, Red,
        [Usual "{who} does not get through the end of the run ({phase}){at}"],
        [LOG, RESTART];
    /// The rank has not come to the rendezvous.
    RendezvousIncomplete = "rendezvous_incomplete", Behind, Red,
        [Usual "{who} has not come to the rendezvous; {others} for the process group"],
        [LOG, RESTART];
    /// All ranks have come to the rendezvous, and the group does not form.
    RendezvousBlocked = "rendezvous_blocked", Behind, Red,
        [Usual "no rank could join the process group within {waited}"],
        [advice("every host must reach {master}; set `address` and `interface` in hosts.toml", "")];
    /// The rank is still inside an earlier collective that the others have left.
    InsideEarlier = "inside_earlier", Behind, Red,
        [Usual "{who} is still inside an earlier collective; {others} in {awaited}"],
        [LOG, RESTART];
    /// All ranks are inside the same collective, and nothing tells what holds it up.
    InsideCollective = "inside_collective", Behind, Amber,
        [Usual "all {count} ranks have been inside {call} for {waited}: the program's order is right, \
            something below it holds it up"],
        [LOGS, RESTART];

    /// The rank made another operation than the others under the same number.
    OpMismatch = "op_mismatch", Desync, Red,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank made the same operation with another count, element type or root.
    SizeMismatch = "size_mismatch", Desync, Red,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank left out a collective that the others made.
    SkippedCall = "skipped_call", Desync, Red,
        [
            Usual "{who} left out collective #{seq}{group}: it called {mine}, the others {theirs}",
            Unnamed OTHER_CALLS,
        ],
        [CHECK, RESTART];
    /// The rank made a collective that the others did not make.
    ExtraCall = "extra_call", Desync, Red,
        [
            Usual "{who} made a collective that the others did not make, #{seq}{group}: {mine}; \
                the others called {theirs}",
            Unnamed OTHER_CALLS,
            Alone "{who} is in {awaited}, which no other rank calls{at}; it waits alone for the others",
        ],
        [CHECK, RESTART];
    /// The rank's collectives belong to other training steps than the others', without any error.
    SilentShift = "silent_shift", Desync, Red,
        [
            Usual "{who} is out of step with the others: {mine} against {theirs}, without any error",
            Unnamed "ranks {side} and {other} are out of step: {mine} against {theirs}; \
                nothing tells which is right",
        ],
        [CHECK, RESTART];
    /// Ranks wait for each other in different groups, in a ring.
    OrderDeadlock = "order_deadlock", Desync, Red,
        [Usual "ranks {ranks} use their groups in different orders: {places}"],
        [CHECK, RESTART];
    /// The rank updates its weights without any collective.
    NoCollectives = "no_collectives", Desync, Red,
        [
            Usual "{who} has made {updates} updates in {iterations} iterations without a single collective",
            Unnamed "ranks {ranks} have made {updates} updates in {iterations} iterations without a single \
                collective",
        ],
        [CHECK, RESTART];

    /// A network interface of the group is down.
    LinkDown = "link_down", Network, Red,
        [Usual "network interface {interface} of {host} is down"],
        [CABLE];
    /// Messages between hosts are not acknowledged.
    NetworkLoss = "network_loss", Network, Red,
        [Usual "the network {where} does not carry messages"],
        [CABLE];
    /// Messages are lost in one direction only.
    OneWayLoss = "one_way_loss", Network, Red,
        [Usual "messages from {from} to {to} are lost, in one direction only"],
        [CABLE];

    /// The driver reported an error of the rank's GPU.
    GpuFault = "gpu_fault", Gpu, Red,
        [Usual "GPU {gpu} of {who} reported an error: Xid {xid}"],
        [DRIVER, OTHER_GPUS];
    /// The driver has lost the rank's GPU.
    GpuLost = "gpu_lost", Gpu, Red,
        [Usual GPU_GONE],
        [DRIVER, OTHER_GPUS];

    /// The rank's CPU quota is used up.
    Throttled = "throttled", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: CPU quota used up"],
        [advice("raise the CPU quota of its cgroup", "")];
    /// The rank's host is short of memory.
    MemoryPressure = "memory_pressure", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: short of memory"],
        [FEWER_ENVS];
    /// The rank's host has more to run than cores, and other hosts do not.
    CpuPressure = "cpu_pressure", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: its host is busy"],
        [BUSY_HOST];
    /// The rank's GPU runs at a reduced clock.
    GpuThrottled = "gpu_throttled", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: clocks of its GPU held down"],
        [COMPARE];
    /// The rank computes longer than the others.
    SlowCompute = "slow_compute", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: it computes longer"],
        [COMPARE];
    /// The rank's environments take longer than the others'.
    SlowEnvironment = "slow_environment", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: its environments take longer"],
        [COMPARE];
    /// The rank comes last, and nothing tells why.
    Late = "late", Straggler, Amber,
        [Usual "{who} slows everybody down by {lost} %: cause unknown"],
        [COMPARE];

    /// Replicas have different weights.
    WeightsDiffer = "weights_differ", Drift, Red,
        [
            Usual "the weights of {who} differ from the others' at iteration {iteration}",
            Unnamed "the ranks' weights differ at iteration {iteration}",
        ],
        [
            advice("results after this point are not those of one model; restart from a checkpoint before it", ""),
            CHECK,
        ];
    /// Totals are not the sum of the ranks' own counters.
    TotalsDiffer = "totals_differ", TotalsDiffer, Red,
        [Usual "all-reduced totals are not the sum of the ranks' own counters at iteration {iteration}"],
        [advice("do not trust step counts of this run; all ranks must report the same iterations", "")];

    /// Nothing that was looked at explains it. A reason that a newer console gave is read as this one, too.
    #[serde(other)]
    Unknown = "unknown", Behind, Red,
        [Usual "{who} has not entered {awaited}: nothing moves in {doing}{at}; {others}"],
        [LOG, RESTART];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_json_says_and_unknown_ones_are_read() {
        for row in reasons() {
            assert_eq!(serde_json::to_string(&row.reason).unwrap(), format!("\"{}\"", row.name));
            assert_eq!(row.reason.row().name, row.name, "rows are in the order of the variants");
            assert_eq!(row.sentences[0].0, SentenceForm::Usual, "{}", row.name);
            assert!(row.doc.ends_with('.'), "{}", row.doc);
        }
        assert_eq!(serde_json::from_str::<Reason>("\"to_be_invented\"").unwrap(), Reason::Unknown);
    }

    #[test]
    fn advice_needs_only_what_every_verdict_knows() {
        let known = ["run", "rank", "pid", "host", "master"].map(|word| (word, "x".to_string()));
        for advice in reasons().flat_map(|row| row.advice) {
            fill(advice.text, &known);
            fill(advice.command, &known);
        }
    }

    #[test]
    fn words_are_filled_in_once() {
        let words = [("who", "rank 1 {at}".to_string()), ("at", " here".to_string())];
        assert_eq!(fill("a {who}{at}.", &words), "a rank 1 {at} here.");
        assert_eq!(fill("nothing", &[]), "nothing");
    }
}
