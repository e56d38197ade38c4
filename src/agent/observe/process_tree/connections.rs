//! What the TCP connections of a rank's processes have carried.
//!
//! Owner: the sampling thread. To go over the descriptors of a process takes longer than all else here, so
//! that it is done again only when the process has run since: one that waits opens and closes nothing.

use crate::inspect::descriptors;
use crate::proc::{self, Ident, Stat};
use std::collections::BTreeMap;

/// Bytes that open connections have carried.
#[derive(Debug, Default)]
pub(super) struct NetBytes {
    /// Of the rank's own process.
    pub main: u64,
    /// Of each process below it, without the connections that its parent has, too: who is forked has them,
    /// and what the parent does with them is none of its doing.
    pub below: BTreeMap<u32, u64>,
}

/// The sockets of one process.
#[derive(Debug)]
struct ProcessSockets {
    /// CPU time that it had used before they were listed, ns; `None` where the kernel does not tell.
    cpu_ns: Option<u64>,
    inodes: Vec<u64>,
}

/// The sockets of one rank's processes.
#[derive(Debug, Default)]
pub(super) struct Connections {
    known: BTreeMap<Ident, ProcessSockets>,
}

impl Connections {
    /// Counts; `carried` says what each socket of the host has carried, by inode.
    pub fn count(&mut self, root: &Stat, below: &[&Stat], carried: &BTreeMap<u64, u64>) -> NetBytes {
        let ident = |process: &Stat| Ident { pid: process.pid, start: process.start };
        let all = || std::iter::once(root).chain(below.iter().copied());
        let mut before = std::mem::take(&mut self.known);
        self.known = all().map(|process| (ident(process), sockets(ident(process), &mut before))).collect();
        let by_pid: BTreeMap<u32, &[u64]> =
            self.known.iter().map(|(ident, opened)| (ident.pid, opened.inodes.as_slice())).collect();
        let of = |pid: &u32| by_pid.get(pid).copied().unwrap_or_default();
        let own = |process: &&Stat| {
            let own = of(&process.pid).iter().filter(|inode| !of(&process.ppid).contains(inode));
            (process.pid, own.filter_map(|inode| carried.get(inode)).sum())
        };
        NetBytes {
            main: of(&root.pid).iter().filter_map(|inode| carried.get(inode)).sum(),
            below: below.iter().map(own).collect(),
        }
    }
}

fn sockets(of: Ident, before: &mut BTreeMap<Ident, ProcessSockets>) -> ProcessSockets {
    let cpu_ns = proc::cpu_ns(of.pid);
    match before.remove(&of) {
        Some(known) if known.cpu_ns == cpu_ns && cpu_ns.is_some() => known,
        _ => ProcessSockets { cpu_ns, inodes: descriptors::socket_inodes(of.pid) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_of_one_who_has_run_is_seen_at_once_and_one_that_waits_is_not_gone_over() {
        let own = proc::stat(std::process::id()).unwrap();
        let ident = Ident { pid: own.pid, start: own.start };
        let mut connections = Connections::default();
        connections.count(&own, &[], &BTreeMap::new());
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let before = connections.known[&ident].inodes.len();
        connections.count(&own, &[], &BTreeMap::new());
        assert!(connections.known[&ident].inodes.len() >= before + 2);

        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while proc::stat(sleeper.id()).unwrap().state != 'S' || proc::wchan(sleeper.id()).is_empty() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        let stat = proc::stat(sleeper.id()).unwrap();
        let ident = Ident { pid: stat.pid, start: stat.start };
        connections.count(&stat, &[], &BTreeMap::new());
        // What was known of it is taken as it is.
        connections.known.get_mut(&ident).unwrap().inodes = vec![7];
        let seen = connections.count(&stat, &[], &BTreeMap::from([(7, 100)]));
        assert_eq!(seen.main, 100);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
