//! The rows. The order is that in which documents list them.

use super::{AdviceRow, OnVerdict, ReasonRow, SentenceForm, Severity, VerdictKind};
use serde::{Deserialize, Serialize};

const fn advice(text: &'static str, command: &'static str) -> AdviceRow {
    AdviceRow { text, command }
}

const LOG: AdviceRow = advice("look at its log", "rankdeck logs {run} --rank {rank}");
const LOGS: AdviceRow = advice("look at the logs", "rankdeck logs {run}");
/// Only for runs that have a checkpoint.
pub(crate) const RESTART: AdviceRow =
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
const SMALLER: AdviceRow = advice("lower the learning rate (`learn.learning_rate`), or clip gradients", "");
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
        $name:ident = $text:literal, $kind:ident, $severity:ident, $policy:ident,
        [$($form:ident $sentence:expr),+ $(,)?],
        [$($advice:expr),+ $(,)?];
    )*) => {
        /// Why the watch speaks, as one word.
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
        pub(super) static ROWS: &[ReasonRow] = &[$(ReasonRow {
            reason: Reason::$name,
            name: $text,
            kind: VerdictKind::$kind,
            severity: Severity::$severity,
            policy: OnVerdict::$policy,
            doc: concat!($($doc),+).trim_ascii(),
            sentences: &[$((SentenceForm::$form, $sentence)),+],
            advice: &[$($advice),+],
        }),*];
    };
}

reasons! {
    /// A signal ended the process from outside.
    Killed = "killed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// No memory was left: the kernel's out-of-memory killer ended the process, or an allocation failed, on
    /// the host or on a GPU.
    OutOfMemory = "out_of_memory", Dead, Red, Never,
        [Usual ENDED],
        [advice("use fewer environments per rank (`env.num_envs`) or a host with more memory", ""), RESTART];
    /// The process crashed (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL).
    Crashed = "crashed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The process ended with an error.
    Failed = "failed", Dead, Red, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// The GPU of the process failed, or its driver.
    GpuFailed = "gpu_failed", Dead, Red, Never,
        [Usual ENDED],
        [DRIVER, RESTART];
    /// The process could not be started.
    NotStarted = "not_started", Dead, Red, Never,
        [Usual ENDED],
        [advice("check `launch.command`, `prelude` and `workdir` on that host", "")];
    /// No space was left where the process wrote.
    DiskFull = "disk_full", Dead, Red, Never,
        [Usual ENDED],
        [advice("free space where the run writes, on {host}", "df -h"), RESTART];
    /// A port that the process wanted, as that of the rendezvous, belonged to another process.
    PortTaken = "port_taken", Dead, Red, Never,
        [Usual ENDED],
        [advice("see who has the port, on {host}", "ss -ltnp")];
    /// A connection to another rank broke: a victim.
    ConnectionLost = "connection_lost", Dead, Amber, Never,
        [Usual ENDED],
        [LOG, RESTART];
    /// A message of the wrong size from another rank ended the process: a victim.
    MismatchAbort = "mismatch_abort", Dead, Amber, Never,
        [Usual ENDED],
        [CHECK, RESTART];

    /// The host says nothing, and the others wait for its ranks.
    HostSilent = "host_silent", Lost, Red, Never,
        [Usual SILENT],
        [CONNECT, COMES_BACK];
    /// The link stands but the agent says nothing.
    AgentSilent = "agent_silent", Lost, Red, Never,
        [Usual SILENT],
        [CONNECT, COMES_BACK];
    /// Only this console has lost the host: the other ranks go on with its ranks.
    LinkLost = "link_lost", Lost, Amber, Never,
        [Usual SILENT],
        [CONNECT, COMES_BACK];

    /// A signal has stopped the process.
    Stopped = "stopped", Frozen, Red, Held,
        [Usual STOPPED],
        [advice("continue it, on {host}", "kill -CONT {pid}")];
    /// A debugger or tracer holds the process.
    Debugger = "debugger", Frozen, Red, Lasting,
        [Usual STOPPED],
        [advice("detach the debugger or tracer that holds it", "")];
    /// The cgroup or container of the process is frozen.
    CgroupFrozen = "cgroup_frozen", Frozen, Red, Held,
        [Usual "{who} is frozen by its cgroup or container"],
        [advice("thaw its cgroup or unpause its container, on {host}", "cat /proc/{pid}/cgroup")];

    /// The rank ended with exit code 0 while the others go on.
    LeftEarly = "left_early", Behind, Red, AtOnce,
        [Usual "{who} left the training loop early (exit code 0{iteration}{goal}); {after}"],
        [LOG, RESTART];
    /// The rank's host has more to run than cores.
    HostOverloaded = "host_overloaded", Behind, Amber, Never,
        [Usual "waiting for rank {rank}: {phase}{amount}{at} (its host has more to run than cores; \
            {others} in {awaited})"],
        [BUSY_HOST];
    /// The rank is blocked in the kernel, as on storage that does not answer.
    Storage = "storage", Behind, Red, Lasting,
        [Usual "{who} is blocked in the kernel, as on storage that does not answer, in {doing}{at}; \
            {others} in {awaited}"],
        [
            advice("see which file system it waits for, on {host}", "cat /proc/{pid}/stack"),
            advice("see what is mounted, on {host}", "df"),
        ];
    /// The rank's memory is being paged in and out.
    Thrashing = "thrashing", Behind, Amber, Never,
        [Usual "waiting for rank {rank}: {phase}{amount} (its memory is being paged in and out; \
            {others} in {awaited})"],
        [FEWER_ENVS];
    /// A worker process of the rank's environment has ended.
    EnvWorkerDied = "env_worker_died", EnvStuck, Red, AtOnce,
        [Usual "{who} waits for a worker of its environment that has ended{child}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for workers of its environment, none of which does anything.
    EnvWorkerDeadlocked = "env_worker_deadlocked", EnvStuck, Red, Lasting,
        [Usual "{who} waits for workers of its environment that do nothing{stopped}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank's environment works, but takes long.
    SlowEnv = "slow_env", Behind, Amber, Never,
        [Usual "waiting for rank {rank}: {phase}{amount} (its environments work, but take long; \
            {others} in {awaited})"],
        [WAIT];
    /// A thread holds the Python interpreter lock.
    GilHeld = "gil_held", Behind, Red, Lasting,
        [
            Usual "a thread of {who} holds the Python interpreter lock in {doing}{at}; {others} in {awaited}",
            Doubtful "{who} computes in C code that holds the Python interpreter lock{at}; {others} in {awaited}",
        ],
        [LOG, RESTART];
    /// An evaluation, a checkpoint or a start makes progress.
    ExpectedWait = "expected_wait", Behind, Amber, Never,
        [Usual "waiting for rank {rank}: {phase}{amount} (it works; {others} in {awaited})"],
        [WAIT];
    /// The rank burns CPU without progress.
    Spinning = "spinning", Behind, Red, Lasting,
        [
            Usual "{who} burns CPU without progress in {doing}{at}; {others} in {awaited}",
            Doubtful "{who} works or spins{at}, in the same function at two looks; {others} in {awaited}",
        ],
        [LOG, RESTART];
    /// The rank waits for a lock in local code.
    Lock = "lock", Behind, Red, Lasting,
        [Usual "{who} waits for a lock in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank sleeps in local code.
    Sleeping = "sleeping", Behind, Red, Lasting,
        [Usual "{who} sleeps in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for a lock on a file that another process holds.
    FileLock = "file_lock", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [advice("see who holds it, on {host}", "lslocks"), LOG, RESTART];
    /// The rank waits at a FIFO whose other end nobody uses.
    Fifo = "fifo", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for a name server that does not answer.
    NameLookup = "name_lookup", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [advice("see which name servers are asked, on {host}", "cat /etc/resolv.conf"), LOG];
    /// The rank waits for the end of a program that it has started, which does nothing.
    ChildProcess = "child_process", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for the other end of a pipe, which does nothing.
    Pipe = "pipe", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for workers that load its data, none of which does anything.
    DataLoader = "data_loader", Behind, Red, Lasting,
        [Usual "{who} waits for workers of its data loader that do nothing{stopped}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank waits for something from the network outside a collective.
    WaitsForPeer = "waits_for_peer", Behind, Red, Lasting,
        [Usual "{who} waits for {obstacle} in {doing}{at}; {others} in {awaited}"],
        [LOG, RESTART];
    /// The rank does not get through the end of the run.
    TeardownStall = "teardown_stall", Behind, Red, Lasting,
        [Usual "{who} does not get through the end of the run ({phase}){at}"],
        [LOG, RESTART];
    /// The rank has not come to the rendezvous.
    RendezvousIncomplete = "rendezvous_incomplete", Behind, Red, Lasting,
        [Usual "{who} has not come to the rendezvous; {others} for the process group"],
        [LOG, RESTART];
    /// All ranks have come to the rendezvous, and the group does not form.
    RendezvousBlocked = "rendezvous_blocked", Behind, Red, Lasting,
        [Usual "no rank could join the process group within {waited}"],
        [advice("every host must reach {master}; set `address` and `interface` in hosts.toml", "")];
    /// The rank is still inside an earlier collective that the others have left.
    InsideEarlier = "inside_earlier", Behind, Red, Lasting,
        [Usual "{who} is still inside an earlier collective; {others} in {awaited}"],
        [LOG, RESTART];
    /// All ranks are inside the same collective, and nothing tells what holds it up.
    InsideCollective = "inside_collective", Behind, Amber, Lasting,
        [Usual "all {count} ranks have been inside {call} for {waited}: the program's order is right, \
            something below it holds it up"],
        [LOGS, RESTART];

    /// Nothing moves on any rank, for longer than ever before in the run.
    Standstill = "standstill", Behind, Red, Lasting,
        [
            Usual "{who} does not move: {cause}{at}; nothing in the run has moved for {waited}",
            Unnamed "none of the {count} ranks moves: {cause}{at}; nothing has moved for {waited}",
        ],
        [LOGS, RESTART];

    /// The rank made another operation than the others under the same number.
    OpMismatch = "op_mismatch", Desync, Red, AtOnce,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank made the same operation with another count, element type or root.
    SizeMismatch = "size_mismatch", Desync, Red, AtOnce,
        [Usual OTHER_CALL, Unnamed OTHER_CALLS],
        [CHECK, RESTART];
    /// The rank left out a collective that the others made.
    SkippedCall = "skipped_call", Desync, Red, AtOnce,
        [
            Usual "{who} left out collective #{seq}{group}: it called {mine}, the others {theirs}",
            Unnamed OTHER_CALLS,
        ],
        [CHECK, RESTART];
    /// The rank made a collective that the others did not make.
    ExtraCall = "extra_call", Desync, Red, AtOnce,
        [
            Usual "{who} made a collective that the others did not make, #{seq}{group}: {mine}; \
                the others called {theirs}",
            Unnamed OTHER_CALLS,
            Alone "{who} is in {awaited}, which no other rank calls{at}; it waits alone for the others",
        ],
        [CHECK, RESTART];
    /// The rank's collectives belong to other training steps than the others', without any error.
    SilentShift = "silent_shift", Desync, Red, AtOnce,
        [
            Usual "{who} is out of step with the others: {mine} against {theirs}, without any error",
            Unnamed "ranks {side} and {other} are out of step: {mine} against {theirs}; \
                nothing tells which is right",
        ],
        [CHECK, RESTART];
    /// Ranks wait for each other in different groups, in a ring.
    OrderDeadlock = "order_deadlock", Desync, Red, AtOnce,
        [Usual "ranks {ranks} use their groups in different orders: {places}"],
        [CHECK, RESTART];
    /// The rank updates its weights without any collective.
    NoCollectives = "no_collectives", Desync, Red, AtOnce,
        [
            Usual "{who} has made {updates} updates in {iterations} iterations without a single collective",
            Unnamed "ranks {ranks} have made {updates} updates in {iterations} iterations without a single \
                collective",
        ],
        [CHECK, RESTART];

    /// A network interface of the group is down.
    LinkDown = "link_down", Network, Red, Lasting,
        [Usual "network interface {interface} of {host} is down"],
        [CABLE];
    /// Messages between hosts are not acknowledged.
    NetworkLoss = "network_loss", Network, Red, Lasting,
        [
            Usual "the network {where} does not carry messages",
            Doubtful "the network {where} loses messages; {others} in {awaited}",
        ],
        [CABLE];
    /// Messages are lost in one direction only.
    OneWayLoss = "one_way_loss", Network, Red, Lasting,
        [Usual "messages from {from} to {to} are lost, in one direction only"],
        [CABLE];

    /// The driver reported an error of the rank's GPU.
    GpuFault = "gpu_fault", Gpu, Red, Never,
        [Usual "GPU {gpu} of {who} reported an error: Xid {xid}"],
        [DRIVER, OTHER_GPUS];
    /// The driver has lost the rank's GPU.
    GpuLost = "gpu_lost", Gpu, Red, AtOnce,
        [Usual GPU_GONE],
        [DRIVER, OTHER_GPUS];

    /// The rank's CPU quota is used up.
    Throttled = "throttled", Straggler, Amber, Never,
        [
            Usual "{who} slows everybody down by {lost} %: CPU quota used up",
            Doubtful "waiting for rank {rank}: {phase}{amount}{at} (its CPU quota is used up; {others} in {awaited})",
        ],
        [advice("raise the CPU quota of its cgroup", "")];
    /// The rank's host is short of memory.
    MemoryPressure = "memory_pressure", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: short of memory"],
        [FEWER_ENVS];
    /// The rank's host has more to run than cores, and other hosts do not.
    CpuPressure = "cpu_pressure", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: its host is busy"],
        [BUSY_HOST];
    /// The rank's GPU runs at a reduced clock.
    GpuThrottled = "gpu_throttled", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: clocks of its GPU held down"],
        [COMPARE];
    /// The rank computes longer than the others.
    SlowCompute = "slow_compute", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: it computes longer"],
        [COMPARE];
    /// The rank's environments take longer than the others'.
    SlowEnvironment = "slow_environment", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: its environments take longer"],
        [COMPARE];
    /// The rank comes last, and nothing tells why.
    Late = "late", Straggler, Amber, Never,
        [Usual "{who} slows everybody down by {lost} %: cause unknown"],
        [COMPARE];

    /// Replicas have different weights.
    WeightsDiffer = "weights_differ", Drift, Red, Never,
        [
            Usual "the weights of {who} differ from the others' at iteration {iteration}",
            Unnamed "the ranks' weights differ at iteration {iteration}",
            Doubtful "some of the ranks' weights differ since step {iteration}: {why}",
        ],
        [
            advice("results after this point are not those of one model; restart from a checkpoint before it", ""),
            CHECK,
        ];
    /// Weights are infinite or no numbers.
    WeightsNotFinite = "weights_not_finite", Drift, Red, Never,
        [
            Usual "the weights of {who} are infinite or no numbers since step {step}",
            Unnamed "the weights of ranks {ranks} are infinite or no numbers since step {step}",
        ],
        [
            advice("restart from a checkpoint before it, with a smaller learning rate or clipped gradients", ""),
            LOG,
        ];
    /// Totals are not the sum of the ranks' own counters.
    TotalsDiffer = "totals_differ", TotalsDiffer, Red, Never,
        [Usual "all-reduced totals are not the sum of the ranks' own counters at iteration {iteration}"],
        [advice("do not trust step counts of this run; all ranks must report the same iterations", "")];

    /// A loss, a return or another series is not a number any more, or infinite.
    Nan = "nan", Learning, Red, Never,
        [Usual "{series} is {value} since step {step}{of}"],
        [SMALLER, LOGS];
    /// The policy tries nothing any more although the return is poor.
    EntropyCollapse = "entropy_collapse", Learning, Amber, Never,
        [Usual "the policy has collapsed: {series} fell from {before} to {now}, and the return is {return}"],
        [SMALLER, advice("raise the bonus for entropy (`learn.ent_coef`)", "")];
    /// Updates change the policy far more than they did, or than can be right.
    KlBlowup = "kl_blowup", Learning, Amber, Never,
        [Usual "updates change the policy too much: {series} is {now}"],
        [SMALLER];
    /// Errors of the value function are far beyond the returns.
    ValueDiverges = "value_diverges", Learning, Amber, Never,
        [Usual "the value estimates diverge: {series} is {now}, and no return is greater than {returns}"],
        [SMALLER];
    /// The latest evaluations have lost more than half of what was gained.
    EvalRegressed = "eval_regressed", Learning, Amber, Never,
        [Usual "evaluations fell from {best} at step {step} to {now}"],
        [advice("compare what else changed there on the charts page (2)", ""), SMALLER];
    /// After half of the steps the return is what it was at the beginning.
    NoLearning = "no_learning", Learning, Amber, Never,
        [Usual "nothing was learnt in {step} steps: the return is {now}, and was {before} at the beginning"],
        [advice("look at rewards, observations and the learning rate", ""), SMALLER];

    /// Nothing that was looked at explains it. A reason that a newer console gave is read as this one, too.
    #[serde(other)]
    Unknown = "unknown", Behind, Red, Lasting,
        [Usual "{who} has not entered {awaited}: nothing moves in {doing}{at}; {others}"],
        [LOG, RESTART];
}
