//! The steps of one inspection, in order: those that cannot block first.
//!
//! Owner: the helper thread of one inspection.

use super::syscall::{self, SyscallWait, WaitKind};
use super::{
    InspectTarget, MemoryWait, SharedHelper, awaited, descriptors, memory, obstacle, ras, recorder, sockets,
    stacks, state_words, variables,
};
use crate::observe::{cgroup_stat, host_signals, pages};
use crate::proc::{self, ProcStat, ProcessKey};
use crate::program;
use rankdeck_proto::inspection::{
    GroupView, InspectedChild, Obstacle, OsState, PythonView, Socket, StackMethod, ThreadStack,
};
use rankdeck_proto::message::{CollectiveCall, GpuSample};
use rankdeck_proto::status_page::{GroupCounters, View, monotonic_ns, tag_text};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// CPU times are compared over this long.
const WINDOW: Duration = Duration::from_millis(250);
/// NCCL's RAS ends this long before the inspection, so that its omissions can be reported, too.
const RAS_ENDS_BEFORE: Duration = Duration::from_millis(100);
/// The note on a process whose memory another helper waits for (INSPECT-2).
pub(super) const MEMORY_IS_AWAITED: &str =
    "cannot read stacks: an earlier inspection still waits for the memory of the process";
/// Variables are read only if this much time is left for the CPU times that follow.
const VARIABLES: Duration = Duration::from_millis(300);
/// Most children listed.
const CHILDREN: usize = 64;
/// Most connections listed.
const SOCKETS: usize = 32;

pub(super) fn run(subject: &InspectTarget, shared: &SharedHelper, deadline: Instant) {
    let begun = Instant::now();
    shared.found(|found| {
        found.last_line.clone_from(&subject.last_line);
        found.gpu = subject.gpu.as_ref().map(gpu_words);
        found.pressure = host_signals::pressure();
        found.began_ms = monotonic_ns() / 1_000_000;
    });
    let page = pages::open(&subject.page).and_then(|reader| reader.view()).ok();
    let writer = page.filter(|view| view.rank == subject.rank.0).map(|view| view.pid);
    let program = |ident: ProcessKey| writer.map_or(ident, |writer| program::writer(ident, writer));
    let inside =
        |ident: ProcessKey| if subject.elsewhere { program::in_container(ident) } else { Some(ident) };
    let client = subject.ident.filter(|_| subject.elsewhere);
    let alive = subject.ident.and_then(inside).map(program).and_then(|ident| {
        proc::stat(ident.pid).filter(|stat| stat.start == ident.start).map(|stat| (ident, stat))
    });
    match (alive, client.and_then(|client| proc::stat(client.pid))) {
        (Some((ident, stat)), _) => process(subject, ident, &stat, shared, deadline),
        (None, Some(client)) => shared.found(|found| {
            let (pid, state) = (client.pid, client.state);
            found.pid = Some(pid);
            found.os = OsState { state, words: state_words(state).into(), ..OsState::default() };
            found.notes.push("the program in its container is not visible".into());
        }),
        (None, None) => shared.found(|found| {
            found.os = OsState { state: 'X', words: state_words('X').into(), ..OsState::default() };
            found.notes.push("no process".into());
        }),
    }
    shared.found(|found| found.took_ms = (begun.elapsed().as_millis() as u64).max(1));
}

/// A process under inspection, and counters that are compared at its end.
struct ProcessInspection<'a> {
    pid: u32,
    stat: &'a ProcStat,
    groups: Option<cgroup_stat::Groups>,
    /// What its CPU quota had done at the beginning.
    throttling: cgroup_stat::Throttling,
    /// CPU ticks of its descendants at the beginning.
    cpu: BTreeMap<u32, u64>,
    call: Option<SyscallWait>,
    cores: awaited::CoreUsage,
    /// What the storage that it waits for had moved at the beginning.
    storage: Option<u64>,
    begun: Instant,
}

fn process(
    subject: &InspectTarget,
    ident: ProcessKey,
    stat: &ProcStat,
    shared: &SharedHelper,
    deadline: Instant,
) {
    let pid = ident.pid;
    let (begun, cpu) = (Instant::now(), cpu_of_tree(pid));
    let ras = ask_ras(subject, shared, deadline);
    let groups = cgroup_stat::Mounts::read().of(pid);
    let throttling = groups.as_ref().map(cgroup_stat::Groups::throttling).unwrap_or_default();
    shared.stage("state of the main thread");
    let call = syscall::call(pid, pid);
    let storage = call.as_ref().and_then(|call| syscall::storage_bytes(pid, call));
    let cores = awaited::CoreUsage::read(pid);
    let seen = ProcessInspection { pid, stat, groups, throttling, cpu, call, cores, storage, begun };
    seen.main_thread(shared);
    let tcp = seen.sockets(shared);
    shared.stage("status page");
    status_page(subject, shared);
    match MemoryWait::start(ident) {
        Some(venture) => {
            memory_parts(pid, seen.call.as_ref(), &tcp, shared, deadline);
            drop(venture);
        }
        None => shared.found(|found| found.notes.push(MEMORY_IS_AWAITED.into())),
    }
    shared.stage("Flight Recorder");
    recorder::add(subject, shared, deadline);
    shared.stage("CPU times");
    seen.cpu_times(shared, deadline);
    if let Some(ras) = ras {
        shared.stage("NCCL's RAS");
        let _ = ras.join();
    }
}

/// Queries NCCL's RAS in parallel: it waits a second for a missing rank.
fn ask_ras(subject: &InspectTarget, shared: &SharedHelper, deadline: Instant) -> Option<JoinHandle<()>> {
    if subject.ras.is_empty() {
        return None;
    }
    let (addresses, rank, shared) = (subject.ras.clone(), subject.rank.0, shared.clone());
    let ask = move || {
        let report = ras::query_any(&addresses, deadline.checked_sub(RAS_ENDS_BEFORE).unwrap_or(deadline));
        shared.found(|found| match report {
            Ok(Some(report)) => found.ras = report.lines_about(rank),
            // An NCCL without RAS is not worth a note.
            Ok(None) => {}
            Err(error) => found.notes.push(format!("NCCL RAS at {error}")),
        });
    };
    // Without a thread there is one witness less.
    std::thread::Builder::new().name("ras".into()).spawn(ask).ok()
}

impl ProcessInspection<'_> {
    fn main_thread(&self, shared: &SharedHelper) {
        let (pid, stat, groups) = (self.pid, self.stat, self.groups.as_ref());
        let frozen = groups.is_some_and(cgroup_stat::Groups::is_frozen);
        // The wait is that of its call, which was read a moment later.
        let state = match (stat.state, &self.call) {
            ('R' | 'S', Some(call)) if call.is_awake() => 'R',
            ('R' | 'S', Some(_)) => 'S',
            (state, _) => state,
        };
        shared.found(|found| {
            found.pid = Some(pid);
            found.os = OsState {
                state,
                words: if frozen { "frozen by its cgroup" } else { state_words(state) }.into(),
                wchan: Some(proc::wchan(pid)).filter(|wchan| !wchan.is_empty()),
                syscall: self.call.as_ref().and_then(syscall::in_short),
                frozen_cgroup: frozen,
                throttled_share: None,
                oom_kills: groups.map_or(0, cgroup_stat::Groups::oom_kills),
                tracer: proc::tracer(pid),
                threads: stat.threads as u32,
                cpu_ms_moved: 0,
                sleep_left_ms: None,
                shared_lock: self.call.as_ref().is_some_and(syscall::is_shared_lock),
            };
            if groups.is_none() {
                found.notes.push("cannot read its cgroup".into());
            }
            if self.call.is_none() && stat.state != 'Z' {
                found.notes.push("cannot read its system call (ptrace is restricted)".into());
            }
        });
    }

    /// Its connections, and its blocking resource as far as the kernel shows it; all connections of the host.
    fn sockets(&self, shared: &SharedHelper) -> Vec<sockets::Tcp> {
        let (pid, call) = (self.pid, self.call.as_ref());
        shared.stage("sockets");
        let tcp = match sockets::tcp() {
            Ok(tcp) => tcp,
            Err(error) => {
                shared.found(|found| found.notes.push(format!("cannot read TCP_INFO: {error}")));
                Vec::new()
            }
        };
        let connections = connections(pid, &tcp);
        let blocked_on = call.and_then(|call| syscall::in_words(pid, call, &tcp));
        let obstacle = call.and_then(|call| obstacle::find(pid, call, &tcp));
        let beneath = obstacle_beneath(pid, obstacle.as_ref(), &tcp);
        shared.found(|found| {
            found.sockets = connections;
            found.obstacle = beneath.or(obstacle);
            found.blocked_on = blocked_on;
            found.children = children(pid, &self.cpu);
        });
        tcp
    }

    /// CPU times need two moments.
    fn cpu_times(&self, shared: &SharedHelper, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        std::thread::sleep(WINDOW.saturating_sub(self.begun.elapsed()).min(left));
        let storage = self.call.as_ref().and_then(|call| syscall::storage_bytes(self.pid, call));
        let before = self.throttling;
        let moved = self.groups.as_ref().map(cgroup_stat::Groups::throttling);
        shared.found(|found| {
            found.children = children(self.pid, &self.cpu);
            found.lacks_cores = self.cores.lacked();
            found.storage_bytes = storage;
            found.storage_moved = storage.zip(self.storage).map_or(0, |(now, then)| now.saturating_sub(then));
            let own = proc::stat(self.pid).map_or(0, |now| now.cpu_ticks.saturating_sub(self.stat.cpu_ticks));
            found.os.cpu_ms_moved = own * 1000 / proc::ticks_per_second();
            found.os.throttled_share = moved.and_then(|now| {
                let passed = now.periods.checked_sub(before.periods).filter(|passed| *passed > 0)?;
                Some(now.throttled.saturating_sub(before.throttled) as f64 / passed as f64)
            });
        });
    }
}

/// The rank's own status.
fn status_page(subject: &InspectTarget, shared: &SharedHelper) {
    let page = pages::open(&subject.page).and_then(|reader| reader.view());
    let Some(view) = page.as_ref().ok().filter(|view| view.rank == subject.rank.0) else { return };
    let now = monotonic_ns();
    let groups = if view.by_hook { hook_groups(view, now) } else { Vec::new() };
    shared.found(|found| {
        if view.by_hook {
            found.python = Some(PythonView { source: "hook".into(), groups, ..PythonView::default() });
        }
        let latest = view.sample(now).collective;
        if latest.entered > latest.left {
            let words = format!(
                "inside {} #{} ({}) for {} ms",
                latest.call.op, latest.entered, latest.call.tag, latest.age_ms
            );
            found.notes.push(words);
        }
    });
}

/// The process groups on the page of a Python rank.
fn hook_groups(view: &View, now: u64) -> Vec<GroupView> {
    let one = |group: &GroupCounters| {
        let last = view.ring.iter().find(|call| call.seq == group.last).copied().unwrap_or_default();
        GroupView {
            name: tag_text(&group.name),
            ranks: Vec::new(),
            size: group.size as u32,
            enqueued: group.entered,
            completed: group.left,
            // The tag is PyTorch's own name of the function.
            call: CollectiveCall { op: tag_text(&last.tag), ..view.call(&last) },
            age_ms: view.age_ms(if last.left_ns > 0 { last.left_ns } else { last.entered_ns }, now),
            chain: group.chain,
        }
    };
    view.groups.iter().filter(|group| group.entered > 0 || group.size > 0).map(one).collect()
}

/// What takes the process's memory lock.
fn memory_parts(
    pid: u32,
    call: Option<&SyscallWait>,
    tcp: &[sockets::Tcp],
    shared: &SharedHelper,
    deadline: Instant,
) {
    shared.stage("memory map");
    let mappings = match memory::code(pid) {
        Ok(mappings) => mappings,
        Err(error) => {
            shared.found(|found| found.notes.push(format!("no stacks: memory map: {error}")));
            return;
        }
    };
    let waited = wait(pid, call, tcp, shared, deadline);
    stacks::read(pid, &mappings, shared, deadline);
    // Stacks take a while. One that has come to another wait meanwhile is seen once more, so that its stack
    // and its call belong together.
    let has_gone_on =
        |waited: &SyscallWait| syscall::call(pid, pid).is_some_and(|now| now != *waited && !now.is_awake());
    if waited.as_ref().is_some_and(has_gone_on) && Instant::now() < deadline {
        wait(pid, waited.as_ref(), tcp, shared, deadline);
        shared.stage("stacks (second sample)");
        let again = SharedHelper::default();
        stacks::read(pid, &mappings, &again, deadline);
        let again = again.found(std::mem::take);
        shared.found(|found| stacks::replace(found, again));
    }
    through_its_threads(pid, tcp, shared);
    polled_variables(pid, shared, deadline);
}

/// What the loop refers to in which its main thread sleeps.
fn polled_variables(pid: u32, shared: &SharedHelper, deadline: Instant) {
    let sleeps = shared.found(|found| {
        let python = |stack: &ThreadStack| stack.how == StackMethod::Python && stack.tid == pid;
        found.os.sleep_left_ms.is_some() && found.obstacle.is_none() && found.threads.iter().any(python)
    });
    if !sleeps || deadline.saturating_duration_since(Instant::now()) < VARIABLES {
        return;
    }
    shared.stage("variables");
    match variables::of_main_thread(pid) {
        Ok(variables) => shared.found(|found| found.variables = variables),
        Err(error) => shared.found(|found| found.notes.push(format!("no Python variables: {error}"))),
    }
}

/// What its main thread waits for through another thread of its own.
fn through_its_threads(pid: u32, tcp: &[sockets::Tcp], shared: &SharedHelper) {
    shared.stage("awaited threads");
    let is_named = shared.found(|found| found.obstacle.is_some() || !found.awaits.is_empty());
    let stacks = shared.found(|found| found.threads.clone());
    let Some(wait) = awaited::follow(pid, &stacks, tcp).filter(|_| !is_named) else { return };
    let connection = wait.obstacles.iter().find_map(|obstacle| {
        let beneath = obstacle_beneath(pid, Some(obstacle), tcp);
        let found = beneath.unwrap_or_else(|| obstacle.clone());
        matches!(found, Obstacle::Connection { .. }).then_some(found)
    });
    let slept = awaited::sleep_ms(pid, &wait.processes, connection.as_ref(), tcp);
    shared.found(|found| {
        found.awaited_sleep_ms = found.awaited_sleep_ms.or(wait.sleep_ms).or(slept);
        found.awaits = wait.processes;
        if let Some(connection) = &connection {
            found.blocked_on = Some(format!("its thread {}: {}", wait.thread, connection.words()));
        }
        found.obstacle = connection;
    });
}

/// What its main thread waits for, and when that ends by itself; the call of that wait.
fn wait(
    pid: u32,
    known: Option<&SyscallWait>,
    tcp: &[sockets::Tcp],
    shared: &SharedHelper,
    deadline: Instant,
) -> Option<SyscallWait> {
    shared.stage("blocking resource");
    let wait = MainThreadWait::read(pid, tcp, deadline);
    let call = wait.as_ref().map(|wait| wait.call);
    if let Some(wait) = wait {
        describe_wait(pid, wait, known, tcp, shared);
    }
    let (processes, obstacle) = shared.found(|found| (found.awaits.clone(), found.obstacle.clone()));
    let sleep_ms = awaited::sleep_ms(pid, &processes, obstacle.as_ref(), tcp);
    shared.found(|found| found.awaited_sleep_ms = sleep_ms);
    call
}

/// Describes a wait, which may differ from the one found earlier.
fn describe_wait(
    pid: u32,
    wait: MainThreadWait,
    known: Option<&SyscallWait>,
    tcp: &[sockets::Tcp],
    shared: &SharedHelper,
) {
    let is_between = wait.is_between();
    let MainThreadWait { call, sleep_left_ms, awaits, path, polled, obstacle: named, is_whole } = wait;
    let path = path.or_else(|| is_whole.then(|| polled_peers(pid, &polled, tcp)).flatten());
    let is_other = known != Some(&call) && !call.is_awake();
    let own = if is_other { obstacle::find(pid, &call, tcp) } else { None };
    let own = obstacle_beneath(pid, own.as_ref(), tcp).or(own);
    let beneath = obstacle_beneath(pid, named.as_ref(), tcp);
    let words = if is_other { syscall::in_words(pid, &call, tcp) } else { None };
    shared.found(|found| {
        if matches!(found.os.state, 'R' | 'S') && (is_between || is_other) {
            let state = if is_between { 'R' } else { 'S' };
            (found.os.state, found.os.words) = (state, state_words(state).into());
        }
        if is_other {
            found.os.syscall = syscall::in_short(&call);
            found.os.shared_lock = syscall::is_shared_lock(&call);
            (found.blocked_on, found.obstacle) = (words, own);
        }
        (found.os.sleep_left_ms, found.awaits) = (sleep_left_ms, awaits);
        found.blocked_on = path.or(found.blocked_on.take());
        if named.is_some() {
            // Without the memory, the queried name was unknown.
            let known = found.obstacle.take().filter(|known| !matches!(known, Obstacle::NameServer { .. }));
            found.obstacle = known.or(beneath).or(named);
        }
    });
}

/// A process that this one waits for may itself be blocked on something that neither of them can change.
fn obstacle_beneath(pid: u32, obstacle: Option<&Obstacle>, tcp: &[sockets::Tcp]) -> Option<Obstacle> {
    let below = proc::descendants(pid);
    let waited_for: Vec<u32> = match obstacle? {
        Obstacle::Pipe { ends, .. } => ends.iter().map(|end| end.pid).collect(),
        Obstacle::Connection { owner: Some(owner), .. } => vec![owner.pid],
        Obstacle::Child { process } => vec![process.pid],
        _ => return None,
    };
    waited_for.into_iter().filter(|other| below.contains(other)).find_map(|other| {
        let call = syscall::call(other, other)?;
        let named = obstacle::find(other, &call, tcp).or_else(|| obstacle::in_memory(other, &call, tcp))?;
        let outside = match &named {
            Obstacle::FileLock { .. } | Obstacle::Fifo { .. } | Obstacle::NameServer { .. } => true,
            Obstacle::Connection { owner, .. } => owner.as_ref().is_none_or(|owner| owner.pid != pid),
            Obstacle::Listener { .. } | Obstacle::Pipe { .. } | Obstacle::Child { .. } => false,
        };
        outside.then_some(named)
    })
}

fn cpu_of_tree(pid: u32) -> BTreeMap<u32, u64> {
    proc::descendants(pid).into_iter().filter_map(proc::stat).map(|stat| (stat.pid, stat.cpu_ticks)).collect()
}

fn children(pid: u32, before: &BTreeMap<u32, u64>) -> Vec<InspectedChild> {
    let mut stats: Vec<ProcStat> = proc::descendants(pid).into_iter().filter_map(proc::stat).collect();
    // The most informative first: ended ones.
    stats.sort_by_key(|stat| (stat.state != 'Z', stat.pid));
    stats
        .into_iter()
        .take(CHILDREN)
        .map(|stat| InspectedChild {
            pid: stat.pid,
            state: stat.state,
            cpu_ms_moved: before.get(&stat.pid).map_or(0, |ticks| stat.cpu_ticks.saturating_sub(*ticks))
                * 1000
                / proc::ticks_per_second(),
            exit: proc::end(stat.pid),
            member: member(pid, &stat),
            name: stat.comm,
        })
        .collect()
}

/// RANK and WORLD_SIZE of a process that is a rank of a group of its own, below the rank `pid`. Its own workers
/// inherit them, so that only the topmost counts.
fn member(pid: u32, stat: &ProcStat) -> Option<(u32, u32)> {
    let own = identity(stat.pid)?;
    (own.1 > 1 && identity(pid) != Some(own) && identity(stat.ppid) != Some(own)).then_some(own)
}

fn identity(pid: u32) -> Option<(u32, u32)> {
    let environ = proc::environ(pid)?;
    let number = |name: &str| std::str::from_utf8(proc::variable(&environ, name)?).ok()?.parse().ok();
    Some((number("RANK")?, number("WORLD_SIZE")?))
}

/// The connections of a process, those in trouble first.
fn connections(pid: u32, tcp: &[sockets::Tcp]) -> Vec<Socket> {
    let inodes = descriptors::socket_inodes(pid);
    let mut found: Vec<Socket> =
        tcp.iter().filter(|tcp| inodes.contains(&tcp.inode)).map(|tcp| tcp.socket.clone()).collect();
    found.sort_by_key(|socket| {
        (
            std::cmp::Reverse(socket.backoff),
            std::cmp::Reverse(socket.send_queue),
            std::cmp::Reverse(socket.last_received_ms),
        )
    });
    found.truncate(SOCKETS);
    found
}

/// A GPU in words, with what is wrong first.
pub(crate) fn gpu_words(gpu: &GpuSample) -> String {
    let mut words = Vec::new();
    if gpu.lost {
        words.push("lost by the driver".to_owned());
    }
    if !gpu.xids.is_empty() {
        let list: Vec<String> = gpu.xids.iter().map(u64::to_string).collect();
        words.push(format!("Xid {}", list.join(", ")));
    }
    if let Some(errors) = gpu.ecc_uncorrected.filter(|errors| *errors > 0) {
        words.push(format!("{errors} uncorrected memory errors"));
    }
    if !gpu.throttle.is_empty() {
        words.push(format!("clocks throttled: {}", gpu.throttle.join(", ")));
    }
    words.extend(gpu.utilization.map(|percent| format!("busy {percent}%")));
    words.extend(gpu.power_w.map(|watts| format!("{watts:.0} W")));
    words.extend(gpu.sm_clock_mhz.map(|clock| format!("{clock} MHz")));
    words.extend((!gpu.instances.is_empty()).then(|| "utilization unknown (MIG)".to_owned()));
    words.extend(gpu.temperature_c.map(|degrees| format!("{degrees} C")));
    format!("GPU {}: {}", gpu.index, words.join(", "))
}

/// Most other ends of polled descriptors that are named.
const PEERS: usize = 8;
/// Most reads of a wait while the thread keeps running, and the pause between them.
const WAIT_READS: u32 = 5;
const WAIT_PAUSE: Duration = Duration::from_millis(10);

/// The wait of a main thread, by its call and its memory: both of the same wait. A thread that polls starts one wait
/// after the other, and on a busy host an inspection is slow enough for the call of one and the memory of the next.
#[derive(Debug)]
struct MainThreadWait {
    call: SyscallWait,
    /// Milliseconds until it wakes by itself.
    sleep_left_ms: Option<u64>,
    /// The processes that it waits for.
    awaits: Vec<u32>,
    /// The call and the path that is one of its arguments, in words.
    path: Option<String>,
    /// The descriptors that it polls.
    polled: Vec<i32>,
    /// Its blocking resource, where only its memory shows it.
    obstacle: Option<Obstacle>,
    /// It had no core while this was read: what is not here, it does not wait for.
    is_whole: bool,
}

impl MainThreadWait {
    /// Reads until the thread has had no core meanwhile, a few times at most; `None` when the kernel does not
    /// show its call.
    fn read(pid: u32, tcp: &[sockets::Tcp], deadline: Instant) -> Option<MainThreadWait> {
        let mut wait = MainThreadWait::once(pid, tcp)?;
        for _ in 1..WAIT_READS {
            if wait.is_whole || Instant::now() + WAIT_PAUSE >= deadline {
                break;
            }
            std::thread::sleep(WAIT_PAUSE);
            wait = MainThreadWait::once(pid, tcp)?;
        }
        Some(wait)
    }

    fn once(pid: u32, tcp: &[sockets::Tcp]) -> Option<MainThreadWait> {
        let turns = || proc::schedule(pid, pid).map(|had| had.turns);
        let before = turns();
        let call = syscall::call(pid, pid)?;
        let mut wait = MainThreadWait {
            call,
            sleep_left_ms: awaited::sleep_left_ms(pid, &call).or_else(|| awaited::lock_left_ms(pid, &call)),
            awaits: awaited::processes(pid, &call),
            path: path_argument(pid, &call),
            obstacle: obstacle::in_memory(pid, &call, tcp),
            polled: awaited::poll_call(pid, &call).map(|polled| polled.fds).unwrap_or_default(),
            is_whole: false,
        };
        // Where the kernel does not count switches, only the call is compared.
        let is_same = turns() == before && syscall::call(pid, pid) == Some(call);
        if !is_same && wait.awaits.is_empty() {
            // The resource may be that of the next wait.
            wait.obstacle = None;
        }
        Some(MainThreadWait { is_whole: is_same && !call.is_awake(), ..wait })
    }

    /// It prints nothing, and need not be all.
    fn is_between(&self) -> bool {
        let is_described = self.sleep_left_ms.is_some() || self.path.is_some() || self.obstacle.is_some();
        !self.is_whole && !is_described && self.awaits.is_empty()
    }
}

/// The other ends of polled descriptors, in words; `None` where none is known.
fn polled_peers(pid: u32, polled: &[i32], tcp: &[sockets::Tcp]) -> Option<String> {
    let targets = polled.iter().filter_map(|fd| descriptors::target(pid, *fd));
    let mut peers: Vec<String> = targets.flat_map(|target| target.peers(tcp)).collect();
    peers.sort_unstable();
    peers.dedup();
    let more = peers.len().saturating_sub(PEERS);
    peers.truncate(PEERS);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    (!peers.is_empty()).then(|| format!("several descriptors (poll): {}{more}", peers.join(", ")))
}

/// The path that a call waits for, when it is one of its arguments.
fn path_argument(pid: u32, call: &SyscallWait) -> Option<String> {
    let number = call.number?;
    let (name, kind) = syscall::name(number);
    let at = match (name, kind) {
        ("openat" | "unlinkat" | "renameat2", WaitKind::Other) => call.args[1],
        ("open" | "stat" | "rename" | "mkdir", WaitKind::Other) => call.args[0],
        _ => return None,
    };
    let path = memory::text(pid, at)?;
    let mount = descriptors::mount_of(pid, &path).map_or_else(String::new, |mount| format!(" ({mount})"));
    Some(format!("{name} of {path}{mount}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::syscall::name;
    use crate::inspect::tests::Victim;

    fn read(victim: &Victim) -> Option<MainThreadWait> {
        MainThreadWait::read(victim.pid(), &[], Instant::now() + Duration::from_secs(1))
    }

    /// It polls two pipes in turn: a reader that mixes two waits finds no process at the other end.
    #[test]
    fn alternating_polls_are_never_mixed() {
        let code = "import multiprocessing as m, time\n\
            ends = [m.Pipe(False) for _ in range(2)]\n\
            for n, (r, w) in enumerate(ends):\n\
            \x20   m.Process(target=time.sleep, args=(500,), daemon=True).start()\n\
            while True:\n\
            \x20   for r, w in ends: r.poll(0.02)";
        let program = Victim::start("python3", &["-c", code]);
        let polls =
            |wait: &MainThreadWait| wait.call.number.is_some_and(|call| name(call).0.ends_with("poll"));
        // On a busy machine most reads come between two waits.
        let deadline = Instant::now() + Duration::from_secs(300);
        let (mut reads, mut whole) = (0, 0);
        while reads < 300 || whole == 0 {
            assert!(Instant::now() < deadline, "{whole} of {reads} reads are whole");
            let Some(wait) = read(&program) else { continue };
            reads += 1;
            // On a busy machine it also waits for the disk, in other calls or in a page fault.
            if !polls(&wait) && !wait.call.is_awake() {
                continue;
            }
            if wait.is_whole {
                assert!(!wait.call.is_awake() && !wait.awaits.is_empty(), "{wait:?}");
                whole += 1;
            } else {
                assert!(wait.is_between() || !wait.awaits.is_empty(), "{wait:?}");
            }
        }
    }

    #[test]
    fn poll_of_two_connections_names_both_peers() {
        let code = "import select, socket\n\
            servers = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]\n\
            ends = [socket.create_connection(server.getsockname()) for server in servers]\n\
            polled = select.poll()\n\
            for end in ends: polled.register(end, select.POLLIN)\n\
            polled.poll()";
        let program = Victim::start("python3", &["-c", code]);
        program.until("both peers are named", || {
            let words = program.inspection().blocked_on.unwrap_or_default();
            words.matches("TCP 127.0.0.1:").count() == 2
        });
    }

    #[test]
    fn thread_that_computes_is_between_two_waits() {
        let program = Victim::start("python3", &["-c", "while True: pass"]);
        let computes = |wait: MainThreadWait| wait.call.is_awake() && !wait.is_whole && wait.is_between();
        program.until("it computes", || read(&program).is_some_and(computes));
    }

    #[test]
    fn rank_of_its_own_is_known_by_its_environment() {
        let code = "import os, subprocess\n\
            env = dict(os.environ, RANK='2', WORLD_SIZE='4')\n\
            subprocess.run(['sh', '-c', 'sleep 1000 & wait'], env=env)";
        let victim = Victim::start("python3", &["-c", code]);
        let mut members = Vec::new();
        victim.until("its rank and that one's child are there", || {
            let children = victim.inspection().children;
            members = children.iter().filter_map(|child| child.member).collect();
            // A process that was just forked may have no environment of its own yet.
            children.len() == 2 && !members.is_empty()
        });
        assert_eq!(members, [(2, 4)], "its child inherits the variables");
    }
}
