//! Where the trials of a sweep run in parallel: groups of hosts, shares of a host, or free GPUs of one. GPUs
//! that become free while trials wait become slots as well.

use crate::app::stderr;
use crate::cli::args::{HostKeyArgs, RunArgs};
use crate::cli::support::run_index::own_binary;
use crate::cli::support::{Failure, prompt};
use rankdeck_link::{AgentCommand, LineSink, Links, Prompter};
use rankdeck_proto::run_entry::{GivenGpu, HostSnapshot, SNAPSHOT_MARKER};
use rankdeck_types::host::{GpuSelection, Host};
use rankdeck_types::words::plural;
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a host may take to report its GPUs, including login.
const PATIENCE: Duration = Duration::from_secs(90);
/// A GPU with a smaller share of memory in use is free.
const FREE: f64 = 0.1;

/// Interval between queries for free GPUs while trials wait.
const QUERY_EVERY: Duration = Duration::from_secs(15);

/// A place for one trial at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TrialSlot {
    /// Names of its hosts.
    pub(crate) hosts: Vec<String>,
    /// GPUs of the trial, as a plan counts them; empty: as in the hosts file.
    #[serde(default)]
    pub(crate) gpus: Vec<u32>,
}

/// Returns the slots of the arguments on these hosts.
pub(crate) async fn of(hosts: &[Host], args: &RunArgs) -> Result<Vec<TrialSlot>, Failure> {
    if let Some(per_run) = args.gpus_per_run {
        let free = free_gpus(hosts, &args.host_keys, &mut |line| stderr::line(line)).await?;
        let slots = of_gpus(hosts, &free, per_run as usize);
        if slots.is_empty() {
            let needed = plural(per_run as usize, "free GPU");
            return Err(Failure::host(format!("no host has {needed}")).hint(
                "check GPU use with `rankdeck`; without --gpus-per-run, trials run one after another",
            ));
        }
        return Ok(slots);
    }
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    if let Some(runs) = args.runs_per_host {
        let all = (0..runs).flat_map(|_| names.iter());
        return Ok(all.map(|name| TrialSlot { hosts: vec![name.clone()], gpus: Vec::new() }).collect());
    }
    let size = args.hosts_per_run.map_or(names.len(), |n| n as usize).clamp(1, names.len().max(1));
    let groups = names.chunks(size).filter(|group| group.len() == size);
    Ok(groups.map(|group| TrialSlot { hosts: group.to_vec(), gpus: Vec::new() }).collect())
}

/// Returns slots of `per_run` GPUs, round robin over the hosts so that each gets its share.
fn of_gpus(hosts: &[Host], free: &[Vec<u32>], per_run: usize) -> Vec<TrialSlot> {
    let mut slots = Vec::new();
    let most = free.iter().map(|gpus| gpus.len() / per_run.max(1)).max().unwrap_or(0);
    for round in 0..most {
        for (host, gpus) in hosts.iter().zip(free) {
            if let Some(gpus) = gpus.chunks_exact(per_run.max(1)).nth(round) {
                slots.push(TrialSlot { hosts: vec![host.name.clone()], gpus: gpus.to_vec() });
            }
        }
    }
    slots
}

/// Returns the free GPUs among those that the user allows on a host, as a plan counts them.
fn free_of(host: &Host, there: &[GivenGpu]) -> Vec<u32> {
    let given = |place: u32| match &host.gpus {
        None => false,
        Some(GpuSelection::Word(_)) => true,
        Some(GpuSelection::Count(count)) => place < *count,
        Some(GpuSelection::List(list)) => list.contains(&place),
    };
    let is_free = |gpu: &GivenGpu| match gpu.memory_total {
        // A driver that does not report memory may report processes.
        0 => !gpu.lost && gpu.processes == 0,
        total => !gpu.lost && (gpu.memory_used as f64) < FREE * total as f64,
    };
    let free = (0..).zip(there).filter(|(place, gpu)| given(*place) && is_free(gpu));
    free.map(|(place, _)| place).collect()
}

/// Returns the free GPUs of each host, in host order. A host that does not respond has none, with a warning.
async fn free_gpus(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
    print: &mut dyn FnMut(&str),
) -> Result<Vec<Vec<u32>>, Failure> {
    let snapshots: Vec<Arc<Mutex<Option<HostSnapshot>>>> = hosts.iter().map(|_| Arc::default()).collect();
    let prompter: Arc<dyn Prompter> = prompt::TerminalPrompter::new(host_keys);
    let command = |index: usize, host: &Host| {
        let to = snapshots[index].clone();
        let lines = LineSink::new(move |line| {
            if let Some(snapshot) =
                line.strip_prefix(SNAPSHOT_MARKER).and_then(|json| serde_json::from_str(json).ok())
            {
                *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
            }
        });
        let args = ["fleet", "--workdir", &host.workdir, "--seconds", "1"].map(str::to_owned).to_vec();
        AgentCommand { args, lines, within: Some(PATIENCE), ..AgentCommand::default() }
    };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    let mut free = Vec::new();
    for ((host, reply), snapshot) in hosts.iter().zip(replies).zip(&snapshots) {
        if let Err(error) = reply {
            print(&format!("warning: {}: {}; no trial runs there", host.name, error.error));
        }
        let snapshot = snapshot.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let gpus = free_of(host, &snapshot.given);
        print(&format!("{}: {} of {} free", host.name, gpus.len(), plural(snapshot.given.len(), "GPU")));
        free.push(gpus);
    }
    Ok(free)
}

/// Returns slots of GPUs that are free now and not in `known`.
fn added(hosts: &[Host], mut free: Vec<Vec<u32>>, per_run: usize, known: &[TrialSlot]) -> Vec<TrialSlot> {
    for (host, gpus) in hosts.iter().zip(&mut free) {
        let ours =
            |gpu: &u32| known.iter().any(|slot| slot.hosts.contains(&host.name) && slot.gpus.contains(gpu));
        gpus.retain(|gpu| !ours(gpu));
    }
    of_gpus(hosts, &free, per_run)
}

/// A running query for the free GPUs of each host.
type GpuQuery = Pin<Box<dyn Future<Output = Option<Vec<Vec<u32>>>>>>;

/// Finds GPUs that became free since the sweep started.
pub(crate) struct FreeGpuFinder {
    hosts: Vec<Host>,
    host_keys: HostKeyArgs,
    per_run: usize,
    next: Instant,
    query: Option<GpuQuery>,
}

impl FreeGpuFinder {
    /// `None` for a sweep without GPU slots.
    pub(crate) fn new(
        hosts: Vec<Host>,
        host_keys: HostKeyArgs,
        gpus_per_run: Option<u32>,
    ) -> Option<FreeGpuFinder> {
        let per_run = gpus_per_run? as usize;
        Some(FreeGpuFinder { hosts, host_keys, per_run, next: Instant::now() + QUERY_EVERY, query: None })
    }

    /// Queries at once: a run has ended, and another user's may have as well.
    pub(crate) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Waits for the next query and returns the slots that it adds to `known`. Cancel-safe: a running query
    /// continues with the next call.
    pub(crate) async fn found(&mut self, known: &[TrialSlot]) -> Vec<TrialSlot> {
        let query = match &mut self.query {
            Some(query) => query,
            none => {
                tokio::time::sleep_until(self.next).await;
                let (hosts, host_keys) = (self.hosts.clone(), self.host_keys.clone());
                // A host that does not respond was reported at the start, and adds none.
                none.insert(Box::pin(async move { free_gpus(&hosts, &host_keys, &mut |_| ()).await.ok() }))
            }
        };
        let free = query.await;
        self.query = None;
        self.next = Instant::now() + QUERY_EVERY;
        added(&self.hosts, free.unwrap_or_default(), self.per_run, known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(used: u64) -> GivenGpu {
        GivenGpu { memory_used: used, memory_total: 100, ..GivenGpu::default() }
    }

    fn host(name: &str, gpus: Option<GpuSelection>) -> Host {
        Host { name: name.into(), gpus, ..Host::default() }
    }

    #[test]
    fn used_or_unlisted_gpus_are_not_free() {
        let gpus = [gpu(0), gpu(90), gpu(9), gpu(0)];
        let free = |given| free_of(&host("a", given), &gpus);
        assert_eq!(free(Some(GpuSelection::Word("all".into()))), [0, 2, 3]);
        assert_eq!(free(Some(GpuSelection::Count(2))), [0]);
        assert_eq!(free(Some(GpuSelection::List(vec![1, 3]))), [3]);
        assert_eq!(free(None), [] as [u32; 0]);
        let without_memory = |processes| GivenGpu { processes, ..GivenGpu::default() };
        let all = host("a", Some(GpuSelection::Word("all".into())));
        assert_eq!(free_of(&all, &[without_memory(0)]), [0]);
        assert_eq!(free_of(&all, &[without_memory(1)]), [] as [u32; 0]);
        assert_eq!(free_of(&all, &[GivenGpu { lost: true, ..gpu(0) }, gpu(0)]), [1]);
    }

    #[test]
    fn gpu_slots_rotate_hosts_without_overlap() {
        let hosts = [host("a", None), host("b", None)];
        let slots = of_gpus(&hosts, &[vec![0, 2, 3], vec![1, 5]], 1);
        let pairs: Vec<(&str, u32)> =
            slots.iter().map(|slot| (slot.hosts[0].as_str(), slot.gpus[0])).collect();
        assert_eq!(pairs, [("a", 0), ("b", 1), ("a", 2), ("b", 5), ("a", 3)]);
        let pairs = of_gpus(&hosts, &[vec![0, 2, 3], vec![1]], 2);
        assert_eq!(pairs, [TrialSlot { hosts: vec!["a".into()], gpus: vec![0, 2] }]);
        assert!(of_gpus(&hosts, &[vec![], vec![]], 1).is_empty());
        let known = [TrialSlot { hosts: vec!["a".into()], gpus: vec![0, 2] }];
        let slot = |name: &str, gpu| TrialSlot { hosts: vec![name.into()], gpus: vec![gpu] };
        let added = added(&hosts, vec![vec![0, 2, 3], vec![0]], 1, &known);
        assert_eq!(added, [slot("a", 3), slot("b", 0)], "the sweep's own are not offered again");
    }
}
