//! The programs of a rank: which of its processes do the work, and which only wait for them. A program in docker
//! or podman is started by their monitor: it is not a child of the rank's own process, which is only their client.
//!
//! The only state is the list of shells that a stop holds. A rank's own process is often no
//! program: `bash run.sh`, `python x | tee log`, `uv run x`. Parts of its tree:
//! - A *shell* runs commands one after another (also `xargs`, `find`). A stop holds it by SIGSTOP meanwhile,
//!   so that it neither starts its next command nor ends before the one under way.
//! - A *starter* runs one command and ends with it (`time`, `timeout`, `uv`, `conda`). One that catches
//!   SIGTERM passes it on.
//! - A *launcher* starts ranks of its own (`torchrun`, `accelerate`) and passes each signal on that it catches.
//! - A *reader* reads a pipe that is written inside the tree (`tee`). It ends by itself after all writers.
//! - A *service* works for the others (`Xvfb` of `xvfb-run`): it is asked nothing, and ends after them.
//! - A *main* is the first other process on each branch.
//!
//! Invariants:
//! - PROGRAM-1: each main of a rank gets each signal of a stop once. What is below one that catches it is left
//!   to it.
//! - PROGRAM-2: a process that does not catch SIGTERM stands aside for those below it that run the same
//!   executable and do: a launcher in Python, and its Python programs.
//! - PROGRAM-3: a trap of a shell runs after its command has ended, as shells do it. Where the commands run
//!   in the background and none of them catches SIGTERM, the trap stops them, and the shell is the main.
//! - PROGRAM-4: a main gets the signal that it handles: SIGTERM, else SIGINT, which ends a Python program as
//!   ctrl-c does; later the other one, if it handles that. What it passes a signal on to decides for it.

use crate::proc::{self, ProcessKey};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most levels of wrappers.
const DEPTH: usize = 64;
/// Programs that run commands one after another.
const SHELLS: [&str; 16] = [
    "sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "mksh", "lksh", "yash", "fish", "csh", "tcsh",
    "xargs", "find", "hush",
];
/// Programs that hold many others under their names.
const BOXES: [&str; 2] = ["busybox", "toybox"];
/// Programs that run one command and end with it. Others, as `env` and `nohup`, become their command.
const STARTERS: [&str; 28] = [
    "time",
    "timeout",
    "setsid",
    "flock",
    "strace",
    "ltrace",
    "perf",
    "nsys",
    "ncu",
    "script",
    "unbuffer",
    "uv",
    "uvx",
    "conda",
    "mamba",
    "micromamba",
    "pixi",
    "poetry",
    "pdm",
    "hatch",
    "pipenv",
    "starter",
    "starter-suid",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "podman-init",
];

/// Programs in the background of a shell that others need until they have ended: displays, agents, buses, servers.
const SERVICES: [&str; 10] = [
    "Xvfb",
    "Xorg",
    "Xvnc",
    "Xtigervnc",
    "Xephyr",
    "ssh-agent",
    "dbus-daemon",
    "pulseaudio",
    "redis-server",
    "nvidia-cuda-mps-control",
];

/// Programs that start ranks of their own.
const LAUNCHERS: [&str; 2] = ["accelerate", "torchrun"];

/// The process of a rank's program that writes its status page and calls itself `writer`, where a shell, a
/// launcher or a container's starter stands between that and the rank's own, `root`.
pub(crate) fn writer(root: ProcessKey, writer: u32) -> ProcessKey {
    if writer == root.pid {
        return root;
    }
    let below = proc::descendants(root.pid);
    // Inside a container of its own, it calls itself by another number.
    let inner = |pid: &u32| {
        let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let last = numbers.split_whitespace().last().and_then(|number| number.parse().ok());
        last == Some(writer)
    };
    let found = below.iter().find(|pid| **pid == writer).or_else(|| below.iter().find(|pid| inner(pid)));
    let lives = found.and_then(|pid| proc::stat(*pid)).filter(|stat| !stat.is_gone());
    lives.map_or(root, |stat| ProcessKey { pid: stat.pid, start: stat.start })
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ProcessKind {
    Shell,
    Starter,
    Launcher,
    Service,
    #[default]
    Other,
}

/// A file by device and inode.
type DeviceInode = (u64, u64);

/// One process of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    ident: ProcessKey,
    parent: u32,
    kind: ProcessKind,
    /// SIGTERM runs something in it.
    catches: bool,
    /// SIGINT does.
    interrupts: bool,
    /// Shells start background commands so; ranks start with the default.
    ignores_quit: bool,
    executable: Option<DeviceInode>,
    /// The pipe that is its standard input.
    reads: Option<DeviceInode>,
    /// Pipes that are its standard output and error.
    writes: Vec<DeviceInode>,
}

impl Member {
    fn read(pid: u32) -> Option<Member> {
        let stat = proc::stat(pid).filter(|stat| !stat.is_gone())?;
        let signals = signals(pid)?;
        let pipe = |fd: u32| {
            let file = std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
            file.file_type().is_fifo().then(|| (file.dev(), file.ino()))
        };
        let link = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let kind = kind(&base_name(&link.to_string_lossy()), &proc::arguments(pid));
        // What a shell blocks, it blocks for a moment; another program reads it from a descriptor.
        let blocked = if kind == ProcessKind::Shell { 0 } else { signals.blocked };
        Some(Member {
            ident: ProcessKey { pid, start: stat.start },
            parent: stat.ppid,
            kind,
            catches: (signals.caught | blocked) & !signals.ignored & bit(libc::SIGTERM) != 0,
            interrupts: (signals.caught | blocked) & !signals.ignored & bit(libc::SIGINT) != 0,
            ignores_quit: signals.ignored & bit(libc::SIGQUIT) != 0,
            executable: std::fs::metadata(format!("/proc/{pid}/exe"))
                .ok()
                .map(|file| (file.dev(), file.ino())),
            reads: pipe(0),
            writes: [1, 2].into_iter().filter_map(pipe).collect(),
        })
    }

    fn main(&self) -> MainProgram {
        MainProgram { ident: self.ident, handles_term: self.catches, handles_int: self.interrupts }
    }
}

/// A process that a stop asks to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MainProgram {
    pub ident: ProcessKey,
    /// SIGTERM runs something in it, or in what it passes SIGTERM on to.
    pub handles_term: bool,
    /// The same of SIGINT.
    pub handles_int: bool,
}

/// Which of its signals a program is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskStage {
    /// The one that it handles best.
    First,
    /// The other one.
    Second,
    /// SIGTERM, whatever it handles.
    Terminate,
}

/// How a rank's programs are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskManner {
    pub stage: AskStage,
    /// `launch.stop_signal`.
    pub preferred: Option<i32>,
    /// It has been inside a collective for long: Python runs no handler before the call returns.
    pub blocked: bool,
}

impl MainProgram {
    /// Nothing is known of it.
    fn unknown(ident: ProcessKey) -> MainProgram {
        MainProgram { ident, handles_term: false, handles_int: false }
    }

    /// PROGRAM-4. The signal to send; `None`: it handles no second one.
    pub fn signal(&self, manner: AskManner) -> Option<i32> {
        let handled: Vec<i32> = [(libc::SIGTERM, self.handles_term), (libc::SIGINT, self.handles_int)]
            .into_iter()
            .filter(|(signal, handles)| *handles && !(manner.blocked && *signal == libc::SIGINT))
            .map(|(signal, _)| signal)
            .collect();
        let first = manner.preferred.or(handled.first().copied()).unwrap_or(libc::SIGTERM);
        match manner.stage {
            AskStage::First => Some(first),
            AskStage::Second => handled.into_iter().find(|signal| *signal != first),
            AskStage::Terminate => Some(libc::SIGTERM),
        }
    }
}

/// What a process does with signals, each a mask of bits; blocked are those of its main thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Signals {
    blocked: u64,
    ignored: u64,
    caught: u64,
}

/// The bit of a signal in a mask.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What a process does with signals; `None` when it is gone.
fn signals(pid: u32) -> Option<Signals> {
    let status = proc::text(format!("/proc/{pid}/status"))?;
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(Signals { blocked: mask("SigBlk:")?, ignored: mask("SigIgn:")?, caught: mask("SigCgt:")? })
}

/// The last part of a path, without a shell's dash for logins.
fn base_name(path: &str) -> String {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or_default().trim_start_matches('-').to_owned()
}

fn kind(executable: &str, arguments: &[String]) -> ProcessKind {
    let argument = |index: usize| arguments.get(index).map(|word| base_name(word)).unwrap_or_default();
    let named = |name: &str| {
        // `bash-static`, `zsh-5.9`, `ksh93`.
        let letters =
            name.split(['-', '.']).next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit());
        match name {
            name if SHELLS.contains(&name) || SHELLS.contains(&letters) => Some(ProcessKind::Shell),
            name if STARTERS.contains(&name) => Some(ProcessKind::Starter),
            name if LAUNCHERS.contains(&name) => Some(ProcessKind::Launcher),
            name if SERVICES.contains(&name) => Some(ProcessKind::Service),
            _ => None,
        }
    };
    let executable = if executable.is_empty() { argument(0) } else { executable.to_owned() };
    let found = match executable.as_str() {
        name if BOXES.contains(&name) => {
            let first = argument(0);
            named(&if BOXES.contains(&first.as_str()) { argument(1) } else { first })
        }
        // A script of a launcher, or a module.
        name if name.starts_with("python") => {
            let module = match argument(2) {
                module if module.starts_with("torch.distributed.") => "torchrun".to_owned(),
                module => module.split('.').next().unwrap_or_default().to_owned(),
            };
            let script = if argument(1) == "m" { module } else { argument(1) };
            named(&script).filter(|kind| *kind != ProcessKind::Shell)
        }
        name => named(name),
    };
    found.unwrap_or_default()
}

/// What each process of a rank is for a stop; those that are named nowhere are left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// Are asked to end.
    pub mains: Vec<MainProgram>,
    /// Shells with a command under way.
    pub shells: Vec<ProcessKey>,
    /// Wait for a main, with no shell between.
    pub starters: Vec<ProcessKey>,
    /// Wait for a shell, and end with it.
    pub aside: Vec<ProcessKey>,
    /// Read what mains write, and end by themselves.
    pub readers: Vec<ProcessKey>,
    /// The same, and they catch SIGTERM.
    pub catching_readers: Vec<ProcessKey>,
}

impl Roles {
    /// Of a rank's own process and what is below it. One that catches SIGTERM and has no shell's ways is not
    /// descended into.
    pub fn read(root: ProcessKey) -> Roles {
        let alone = |main| Roles { mains: vec![main], ..Roles::default() };
        let Some(own) = Member::read(root.pid).filter(|own| own.ident == root) else {
            return alone(MainProgram::unknown(root));
        };
        if own.catches && own.kind == ProcessKind::Other {
            return alone(own.main());
        }
        let below = proc::descendants(root.pid).into_iter().filter_map(Member::read);
        let mut roles = Roles::default();
        Tree::new(std::iter::once(own.clone()).chain(below)).part(&own, DEPTH, &mut roles);
        roles
    }

    /// Everything that has a part.
    pub fn all(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        let others = [&self.readers, &self.catching_readers, &self.shells, &self.starters, &self.aside];
        self.mains.iter().map(|main| main.ident).chain(others.into_iter().flatten().copied())
    }

    /// Only this process is asked, and nothing stands around it.
    pub fn is_alone(&self, root: ProcessKey) -> bool {
        self.all().eq([root])
    }

    /// The same for a client that passes signals on to the first process inside its container.
    pub fn through_client(&self, client: ProcessKey) -> Roles {
        let handles = |of: fn(&MainProgram) -> bool| !self.mains.is_empty() && self.mains.iter().all(of);
        let handles_term = handles(|main| main.handles_term);
        let main = MainProgram { ident: client, handles_term, handles_int: handles(|main| main.handles_int) };
        Roles { mains: vec![main], ..Roles::default() }
    }

    fn add(&mut self, other: Roles) {
        self.mains.extend(other.mains);
        self.shells.extend(other.shells);
        self.starters.extend(other.starters);
        self.aside.extend(other.aside);
        self.readers.extend(other.readers);
        self.catching_readers.extend(other.catching_readers);
    }
}

/// A rank's own process and those below it.
struct Tree {
    members: BTreeMap<u32, Member>,
    children: BTreeMap<u32, Vec<u32>>,
}

impl Tree {
    fn new(members: impl IntoIterator<Item = Member>) -> Tree {
        let members: BTreeMap<u32, Member> =
            members.into_iter().map(|member| (member.ident.pid, member)).collect();
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for member in members.values() {
            children.entry(member.parent).or_default().push(member.ident.pid);
        }
        Tree { members, children }
    }

    /// The processes below another one, without services.
    fn children(&self, of: &Member) -> Vec<&Member> {
        let pids = self.children.get(&of.ident.pid).into_iter().flatten();
        let members = pids.filter_map(|pid| self.members.get(pid));
        members.filter(|member| member.kind != ProcessKind::Service).collect()
    }

    /// A process and everything below it.
    fn branch<'a>(&'a self, of: &'a Member) -> Vec<&'a Member> {
        let mut found = vec![of];
        let mut next = 0;
        while let Some(member) = found.get(next).copied().filter(|_| found.len() <= self.members.len()) {
            found.extend(self.children(member));
            next += 1;
        }
        found
    }

    fn part(&self, member: &Member, depth: usize, roles: &mut Roles) {
        let children = self.children(member);
        if depth == 0 || children.is_empty() {
            return roles.mains.push(member.main());
        }
        match member.kind {
            ProcessKind::Shell => self.shell(member, &children, depth, roles),
            ProcessKind::Starter | ProcessKind::Launcher => self.starter(member, &children, depth, roles),
            ProcessKind::Other if !member.catches => {
                let mut same = Vec::new();
                children.iter().for_each(|child| self.catching(child, member.executable, depth, &mut same));
                // PROGRAM-2.
                match same.is_empty() {
                    true => roles.mains.push(member.main()),
                    false => roles.starters.push(member.ident),
                }
                roles.mains.extend(same);
            }
            ProcessKind::Service | ProcessKind::Other => roles.mains.push(member.main()),
        }
    }

    /// PROGRAM-4. One that catches SIGTERM passes it on, and a launcher each signal that it catches. Where the
    /// programs below handle another one, they get it themselves.
    fn starter(&self, member: &Member, children: &[&Member], depth: usize, roles: &mut Roles) {
        let mut below = Roles::default();
        children.iter().for_each(|child| self.part(child, depth - 1, &mut below));
        let passes_on = member.catches && !self.starts_shell(member, depth);
        let any = |of: fn(&MainProgram) -> bool| below.mains.iter().any(of);
        let interrupts = any(|main| !main.handles_term && main.handles_int);
        if passes_on && !interrupts {
            return roles.mains.push(member.main());
        }
        if passes_on && member.kind == ProcessKind::Launcher && member.interrupts {
            let main = MainProgram { handles_term: !interrupts, ..member.main() };
            return roles.mains.push(main);
        }
        match below.shells.is_empty() {
            true => roles.starters.push(member.ident),
            false => roles.aside.push(member.ident),
        }
        roles.add(below);
    }

    fn shell(&self, shell: &Member, children: &[&Member], depth: usize, roles: &mut Roles) {
        let mut below = Roles::default();
        for child in children {
            match self.reads_own_pipe(child) {
                false => self.part(child, depth - 1, &mut below),
                true => {
                    let branch = self.branch(child);
                    let idents = branch.iter().map(|member| member.ident);
                    match branch.iter().any(|member| catches_itself(member)) {
                        true => below.catching_readers.extend(idents),
                        false => below.readers.extend(idents),
                    }
                }
            }
        }
        let silent = |main: &MainProgram| {
            self.members.get(&main.ident.pid).is_some_and(|main| !main.catches && main.ignores_quit)
        };
        // PROGRAM-3.
        let is_main = shell.catches && below.mains.iter().all(silent);
        if is_main || below.mains.is_empty() {
            below = Roles {
                mains: vec![shell.main()],
                readers: below.readers,
                catching_readers: below.catching_readers,
                ..Roles::default()
            };
        } else {
            below.shells.insert(0, shell.ident);
        }
        roles.add(below);
    }

    fn starts_shell(&self, starter: &Member, depth: usize) -> bool {
        let starts = |child: &&Member| {
            child.kind == ProcessKind::Shell
                || child.kind == ProcessKind::Starter && depth > 0 && self.starts_shell(child, depth - 1)
        };
        self.children(starter).iter().any(starts)
    }

    /// The first on each branch that catch SIGTERM and run `executable`.
    fn catching(
        &self,
        member: &Member,
        executable: Option<DeviceInode>,
        depth: usize,
        found: &mut Vec<MainProgram>,
    ) {
        if member.catches && member.executable.is_some() && member.executable == executable {
            found.push(member.main());
        } else if depth > 0 && !member.catches {
            let children = self.children(member);
            children.iter().for_each(|child| self.catching(child, executable, depth - 1, found));
        }
    }

    /// Its standard input is written inside the tree. One that catches SIGTERM, as no writer does, is the
    /// program of its pipe anyway: `yes | python x`.
    fn reads_own_pipe(&self, member: &Member) -> bool {
        let Some(pipe) = member.reads else { return false };
        let branch = self.branch(member);
        let inside: BTreeSet<ProcessKey> = branch.iter().map(|member| member.ident).collect();
        let mut writers = self
            .members
            .values()
            .filter(|other| !inside.contains(&other.ident) && other.writes.contains(&pipe))
            .peekable();
        let written = writers.peek().is_some();
        let program = branch.iter().any(|member| catches_itself(member)) && !writers.any(catches_itself);
        written && !program
    }
}

fn catches_itself(member: &Member) -> bool {
    member.catches && member.kind != ProcessKind::Shell
}

/// Shells that a stop holds.
static HELD: Mutex<BTreeSet<ProcessKey>> = Mutex::new(BTreeSet::new());

/// A stop holds this process: its stopped state has no other meaning.
pub(crate) fn is_held(ident: ProcessKey) -> bool {
    held().contains(&ident)
}

/// The processes that a stop holds, to change.
pub(crate) fn held() -> MutexGuard<'static, BTreeSet<ProcessKey>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all processes of a rank have in their environment, and no other process.
const TAG: [&str; 4] = ["RANKDECK_RUN", "RANKDECK_RUN_DIR", "RANKDECK_AGENT", "RANKDECK_RANK"];
/// First processes of a container that only reap and pass signals on.
const INITS: [&str; 5] = ["docker-init", "podman-init", "catatonit", "tini", "dumb-init"];

/// The first process of the program that a client has had started in its container. `None` when there is
/// none, yet or any more.
pub(crate) fn in_container(client: ProcessKey) -> Option<ProcessKey> {
    let environ = proc::environ(client.pid)?;
    let mark: Vec<(&str, &[u8])> =
        TAG.iter().map(|name| Some((*name, proc::variable(&environ, name)?))).collect::<Option<_>>()?;
    let own_root = root("self")?;
    let is_ours = |stat: &proc::ProcStat| {
        // The monitor is marked like the program, and stays in the host's own tree of files.
        stat.start >= client.start
            && !stat.is_gone()
            && !INITS.contains(&stat.comm.as_str())
            && root(&stat.pid.to_string()).is_some_and(|root| root != own_root)
            && proc::environ(stat.pid).is_some_and(|environ| {
                mark.iter().all(|(name, value)| proc::variable(&environ, name) == Some(value))
            })
    };
    let found: Vec<proc::ProcStat> = proc::all().into_iter().filter(is_ours).collect();
    let pids: BTreeSet<u32> = found.iter().map(|stat| stat.pid).collect();
    let tops = found.iter().filter(|stat| !pids.contains(&stat.ppid));
    tops.min_by_key(|stat| (stat.start, stat.pid)).map(|stat| ProcessKey { pid: stat.pid, start: stat.start })
}

/// The root directory of a process: device and inode.
fn root(pid: &str) -> Option<(u64, u64)> {
    let found = std::fs::metadata(format!("/proc/{pid}/root")).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    const PYTHON: DeviceInode = (1, 1);
    const GO: DeviceInode = (1, 2);

    /// A process below `parent`.
    fn member(pid: u32, parent: u32, kind: ProcessKind) -> Member {
        Member {
            ident: ident(pid),
            parent,
            kind,
            catches: false,
            interrupts: false,
            ignores_quit: false,
            executable: None,
            reads: None,
            writes: Vec::new(),
        }
    }

    fn ident(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: 7 }
    }

    fn shell(pid: u32, parent: u32) -> Member {
        member(pid, parent, ProcessKind::Shell)
    }

    fn starter(pid: u32, parent: u32) -> Member {
        member(pid, parent, ProcessKind::Starter)
    }

    /// A program that saves on SIGTERM.
    fn saving(pid: u32, parent: u32) -> Member {
        Member { catches: true, executable: Some(PYTHON), ..member(pid, parent, ProcessKind::Other) }
    }

    /// One that ignores SIGTERM.
    fn plain(pid: u32, parent: u32) -> Member {
        Member { catches: false, ..saving(pid, parent) }
    }

    fn in_background(member: Member) -> Member {
        Member { ignores_quit: true, ..member }
    }

    fn catching(member: Member) -> Member {
        Member { catches: true, ..member }
    }

    fn reading(member: Member, pipe: u64) -> Member {
        Member { reads: Some((0, pipe)), ..member }
    }

    fn writing(member: Member, pipe: u64) -> Member {
        Member { writes: vec![(0, pipe)], ..member }
    }

    /// Pids of mains, shells, starters, readers and catching readers below process 1.
    fn roles(members: Vec<Member>) -> [Vec<u32>; 5] {
        let roles = roles_of(members);
        let mains = roles.mains.iter().map(|main| main.ident).collect();
        [mains, roles.shells, roles.starters, roles.readers, roles.catching_readers]
            .map(|part| part.iter().map(|ident| ident.pid).collect())
    }

    fn roles_of(members: Vec<Member>) -> Roles {
        let root = members[0].clone();
        let mut roles = Roles::default();
        Tree::new(members).part(&root, DEPTH, &mut roles);
        roles
    }

    /// A Python program without a handler of its own: KeyboardInterrupt is all that it has.
    fn interruptible(pid: u32, parent: u32) -> Member {
        Member { interrupts: true, ..plain(pid, parent) }
    }

    fn interrupting(member: Member) -> Member {
        Member { interrupts: true, ..member }
    }

    /// Pids of mains below process 1 with their first and second signals.
    fn signals_of(
        members: Vec<Member>,
        preferred: Option<i32>,
        blocked: bool,
    ) -> Vec<(u32, i32, Option<i32>)> {
        let manner = |stage| AskManner { stage, preferred, blocked };
        let signals = |main: &MainProgram| {
            let first = main.signal(manner(AskStage::First)).unwrap();
            (main.ident.pid, first, main.signal(manner(AskStage::Second)))
        };
        roles_of(members).mains.iter().map(signals).collect()
    }

    #[test]
    fn program_4_main_gets_the_signal_that_it_handles() {
        const TERM: i32 = libc::SIGTERM;
        const INT: i32 = libc::SIGINT;
        let both = || interrupting(saving(2, 1));
        let below_a_shell = |main: Member| vec![shell(1, 0), main];
        for (main, preferred, blocked, expected) in [
            // A Python script, one with a handler, a program with handlers for SIGTERM alone and for nothing.
            (interruptible(2, 1), None, false, (INT, None)),
            (both(), None, false, (TERM, Some(INT))),
            (saving(2, 1), None, false, (TERM, None)),
            (plain(2, 1), None, false, (TERM, None)),
            // The user's choice comes first.
            (both(), Some(INT), false, (INT, Some(TERM))),
            (interruptible(2, 1), Some(libc::SIGUSR1), false, (libc::SIGUSR1, Some(INT))),
            (interruptible(2, 1), Some(TERM), false, (TERM, Some(INT))),
            // A handler in Python cannot run inside a collective.
            (interruptible(2, 1), None, true, (TERM, None)),
            (both(), None, true, (TERM, None)),
            (interruptible(2, 1), Some(INT), true, (INT, None)),
        ] {
            let found = signals_of(below_a_shell(main.clone()), preferred, blocked);
            assert_eq!(found, [(2, expected.0, expected.1)], "{main:?} {preferred:?} {blocked}");
        }
        let manner = AskManner { stage: AskStage::Terminate, preferred: Some(INT), blocked: false };
        assert_eq!(both().main().signal(manner), Some(TERM));
    }

    #[test]
    fn program_4_what_a_signal_is_passed_on_to_decides() {
        let launcher = |pid, parent| interrupting(catching(member(pid, parent, ProcessKind::Launcher)));
        // uv run train.py: uv passes SIGTERM on, which the program does not handle.
        let uv = vec![interrupting(catching(starter(1, 0))), interruptible(2, 1)];
        assert_eq!(roles(uv.clone()), [vec![2], vec![], vec![1], vec![], vec![]]);
        assert_eq!(signals_of(uv, None, false), [(2, libc::SIGINT, None)]);
        let uv = vec![interrupting(catching(starter(1, 0))), interrupting(saving(2, 1))];
        assert_eq!(signals_of(uv, None, false), [(1, libc::SIGTERM, Some(libc::SIGINT))]);
        // torchrun passes on what it gets, and ends all its ranks when one of them ends.
        let torchrun = vec![launcher(1, 0), interruptible(2, 1), interruptible(3, 1)];
        assert_eq!(signals_of(torchrun, None, false), [(1, libc::SIGINT, None)]);
        let torchrun = vec![launcher(1, 0), interrupting(saving(2, 1)), interrupting(saving(3, 1))];
        assert_eq!(signals_of(torchrun, None, false), [(1, libc::SIGTERM, Some(libc::SIGINT))]);
        // A launcher that catches nothing stands aside, and so does one that only waits.
        let launcher = member(1, 0, ProcessKind::Launcher);
        assert_eq!(roles(vec![launcher, interruptible(2, 1)]), [vec![2], vec![], vec![1], vec![], vec![]]);
        // A client of containers.
        let inside = roles_of(vec![interruptible(1, 0)]).through_client(ident(9));
        let first = AskManner { stage: AskStage::First, preferred: None, blocked: false };
        assert_eq!((inside.mains[0].ident, inside.mains[0].signal(first)), (ident(9), Some(libc::SIGINT)));
    }

    #[test]
    fn program_1_mains_are_below_shells() {
        // bash run.sh, and python3 train.py with a worker.
        assert_eq!(
            roles(vec![shell(1, 0), saving(2, 1), saving(3, 2)]),
            [vec![2], vec![1], vec![], vec![], vec![]]
        );
        // ( python x ) & python y & wait
        assert_eq!(
            roles(vec![shell(1, 0), shell(2, 1), saving(3, 2), plain(4, 1)]),
            [vec![3, 4], vec![1, 2], vec![], vec![], vec![]]
        );
        // A program alone, a shell alone, a launcher that passes signals on.
        assert_eq!(roles(vec![plain(1, 0)]), [vec![1], vec![], vec![], vec![], vec![]]);
        assert_eq!(roles(vec![shell(1, 0)]), [vec![1], vec![], vec![], vec![], vec![]]);
        assert_eq!(
            roles(vec![saving(1, 0), saving(2, 1), saving(3, 1)]),
            [vec![1], vec![], vec![], vec![], vec![]]
        );
    }

    #[test]
    fn starters_stand_aside_and_those_that_pass_signals_on_get_them() {
        // time python x; timeout 9 python x; timeout 9 bash run.sh; timeout 9 uv run bash run.sh
        assert_eq!(roles(vec![starter(1, 0), saving(2, 1)]), [vec![2], vec![], vec![1], vec![], vec![]]);
        assert_eq!(
            roles(vec![catching(starter(1, 0)), saving(2, 1)]),
            [vec![1], vec![], vec![], vec![], vec![]]
        );
        assert_eq!(
            roles(vec![catching(starter(1, 0)), shell(2, 1), saving(3, 2)]),
            [vec![3], vec![2], vec![], vec![], vec![]]
        );
        assert_eq!(
            roles(vec![catching(starter(1, 0)), catching(starter(2, 1)), shell(3, 2), saving(4, 3)]),
            [vec![4], vec![3], vec![], vec![], vec![]]
        );
    }

    #[test]
    fn program_2_launcher_of_the_same_interpreter_stands_aside() {
        assert_eq!(
            roles(vec![plain(1, 0), saving(2, 1), saving(3, 1)]),
            [vec![2, 3], vec![], vec![1], vec![], vec![]]
        );
        // A helper of another kind that catches everything is not its program.
        let helper = Member { executable: Some(GO), ..saving(2, 1) };
        assert_eq!(roles(vec![plain(1, 0), helper]), [vec![1], vec![], vec![], vec![], vec![]]);
        assert_eq!(roles(vec![plain(1, 0), plain(2, 1)]), [vec![1], vec![], vec![], vec![], vec![]]);
    }

    #[test]
    fn program_3_trap_stops_only_what_nothing_else_stops() {
        let trapped = || catching(shell(1, 0));
        // trap … TERM, with a program that saves, in the foreground and in the background.
        assert_eq!(roles(vec![trapped(), saving(2, 1)]), [vec![2], vec![1], vec![], vec![], vec![]]);
        assert_eq!(
            roles(vec![trapped(), in_background(saving(2, 1))]),
            [vec![2], vec![1], vec![], vec![], vec![]]
        );
        // trap 'kill -USR1 $PID' TERM; python x & wait
        assert_eq!(
            roles(vec![trapped(), in_background(plain(2, 1))]),
            [vec![1], vec![], vec![], vec![], vec![]]
        );
        // The trap would wait for a command in the foreground.
        assert_eq!(roles(vec![trapped(), plain(2, 1)]), [vec![2], vec![1], vec![], vec![], vec![]]);
    }

    #[test]
    fn reader_of_a_main_is_no_main() {
        // python x | tee log
        assert_eq!(
            roles(vec![shell(1, 0), writing(saving(2, 1), 5), reading(member(3, 1, ProcessKind::Other), 5)]),
            [vec![2], vec![1], vec![], vec![3], vec![]]
        );
        // exec > >(tee log), and a filter of several processes that catches SIGTERM.
        assert_eq!(
            roles(vec![
                writing(shell(1, 0), 5),
                writing(saving(2, 1), 5),
                reading(shell(3, 1), 5),
                reading(saving(4, 3), 5),
            ]),
            [vec![2], vec![1], vec![], vec![], vec![3, 4]]
        );
        // yes | python x
        assert_eq!(
            roles(vec![shell(1, 0), writing(plain(2, 1), 5), reading(saving(3, 1), 5)]),
            [vec![2, 3], vec![1], vec![], vec![], vec![]]
        );
        // yes | bash run.sh
        assert_eq!(
            roles(vec![
                shell(1, 0),
                writing(plain(2, 1), 5),
                reading(shell(3, 1), 5),
                reading(saving(4, 3), 5),
            ]),
            [vec![2, 4], vec![1, 3], vec![], vec![], vec![]]
        );
        // A shell that works by itself while its output is read.
        assert_eq!(
            roles(vec![writing(shell(1, 0), 5), reading(member(2, 1, ProcessKind::Other), 5)]),
            [vec![1], vec![], vec![], vec![2], vec![]]
        );
    }

    #[test]
    fn service_of_a_main_is_asked_nothing() {
        let service = |pid, parent| catching(member(pid, parent, ProcessKind::Service));
        // xvfb-run python x: an X client ends at once when its display does.
        assert_eq!(
            roles(vec![shell(1, 0), service(2, 1), interruptible(3, 1)]),
            [vec![3], vec![1], vec![], vec![], vec![]]
        );
        assert_eq!(roles(vec![shell(1, 0), service(2, 1)]), [vec![1], vec![], vec![], vec![], vec![]]);
        assert_eq!(roles(vec![service(1, 0)]), [vec![1], vec![], vec![], vec![], vec![]]);
    }

    #[test]
    fn kinds_are_known_by_executable_and_words() {
        let of = |executable: &str, words: &[&str]| {
            kind(executable, &words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
        };
        for shell in ["bash", "dash", "zsh-5.9", "ksh93", "bash-static", "xargs"] {
            assert_eq!(of(shell, &["./run.sh"]), ProcessKind::Shell, "{shell}");
        }
        assert_eq!(of("busybox", &["/bin/busybox", "sh", "run.sh"]), ProcessKind::Shell);
        assert_eq!(of("busybox", &["ash", "run.sh"]), ProcessKind::Shell);
        assert_eq!(of("busybox", &["sleep", "1"]), ProcessKind::Other);
        assert_eq!(of("", &["-bash"]), ProcessKind::Shell);
        assert_eq!(of("timeout", &["timeout", "9", "x"]), ProcessKind::Starter);
        assert_eq!(of("Xvfb", &["Xvfb", ":99", "-screen", "0"]), ProcessKind::Service);
        assert_eq!(of("python3.12", &["python", "/opt/conda/bin/conda", "run", "x"]), ProcessKind::Starter);
        for launcher in [
            &["python", "-m", "accelerate.commands.launch", "x.py"][..],
            &["python", "-m", "torch.distributed.run", "x.py"],
            &["python", "/venv/bin/torchrun", "x.py"],
        ] {
            assert_eq!(of("python3.12", launcher), ProcessKind::Launcher, "{launcher:?}");
        }
        assert_eq!(of("python3.12", &["python", "train.py"]), ProcessKind::Other);
        assert_eq!(of("python3.12", &["bash"]), ProcessKind::Other);
    }

    struct ChildGuard(Child);

    impl Drop for ChildGuard {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn marked(program: &str, arguments: &[&str], rank: &str) -> ChildGuard {
        let mark = TAG.map(|name| (name, if name == "RANKDECK_RANK" { rank } else { "containers-test" }));
        ChildGuard(Command::new(program).args(arguments).envs(mark).spawn().unwrap())
    }

    fn key_of(child: &ChildGuard) -> ProcessKey {
        ProcessKey { pid: child.0.id(), start: proc::stat(child.0.id()).unwrap().start }
    }

    /// A program with another root directory that is not a child of the client, next to one of another rank and one
    /// that is marked and stays outside, as a monitor does.
    #[test]
    fn program_of_a_container_is_found_by_its_mark_and_its_root() {
        let allowed = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
        if !allowed.is_ok_and(|status| status.success()) {
            rankdeck_testkit::skip!("no user name spaces here");
        }
        let client = marked("sleep", &["1000"], "3");
        let monitor = marked("sleep", &["1000"], "3");
        assert_eq!(in_container(key_of(&client)), None, "the container is not there yet");
        let inside = "mount -t tmpfs none /mnt && mkdir /mnt/usr && mount --rbind /usr /mnt/usr && cd /mnt && \
                      ln -s usr/bin usr/lib usr/lib64 . && exec chroot /mnt sleep 1000";
        let other = marked("unshare", &["--map-root-user", "--mount", "sh", "-c", inside], "4");
        let own = marked("unshare", &["--map-root-user", "--mount", "sh", "-c", inside], "3");
        let begun = Instant::now();
        while in_container(key_of(&client)).is_none()
            || proc::stat(own.0.id()).is_none_or(|own| own.comm != "sleep")
        {
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s");
        }
        assert_eq!(in_container(key_of(&client)), Some(key_of(&own)));
        drop((own, other, monitor));
        assert_eq!(in_container(key_of(&client)), None, "it is gone");
    }
}
