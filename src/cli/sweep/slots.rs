//! Where the runs of a sweep may be at once: groups of hosts, shares of a host, or free GPUs of one. GPUs
//! that others leave become slots, too, while cells wait.

use crate::cli::args::{HostKeyArgs, RunArgs};
use crate::cli::roster::own_binary;
use crate::cli::{Failure, prompt};
use crate::shell::stderr;
use rankdeck_link::{AgentCommand, LineSink, Links, Prompter};
use rankdeck_proto::fleet::{GivenGpu, HostLook, LOOK};
use rankdeck_types::host::{Gpus, Host};
use rankdeck_types::words::plural;
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a host may take to tell its GPUs, login included.
const PATIENCE: Duration = Duration::from_secs(90);
/// A GPU of which less of the memory is in use is free.
const FREE: f64 = 0.1;

/// Between two looks for free GPUs while cells wait and none ends.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// A place for one run at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Slot {
    /// Names of its hosts.
    pub hosts: Vec<String>,
    /// The GPUs that a run there gets, as a plan counts them; empty: as the hosts file says.
    #[serde(default)]
    pub gpus: Vec<u32>,
}

/// The slots that the arguments ask for, on these hosts.
pub(super) async fn of(hosts: &[Host], args: &RunArgs) -> Result<Vec<Slot>, Failure> {
    if let Some(per_run) = args.gpus_per_run {
        let free = free_gpus(hosts, &args.host_keys, &mut |line| stderr::line(line)).await?;
        let slots = of_gpus(hosts, &free, per_run as usize);
        if slots.is_empty() {
            let wanted = plural(per_run as usize, "free GPU");
            return Err(Failure::host(format!("no host has {wanted}"))
                .hint("`rankdeck` shows who uses them; without --gpus-per-run, runs follow each other"));
        }
        return Ok(slots);
    }
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    if let Some(runs) = args.runs_per_host {
        let all = (0..runs).flat_map(|_| names.iter());
        return Ok(all.map(|name| Slot { hosts: vec![name.clone()], gpus: Vec::new() }).collect());
    }
    let size = args.hosts_per_run.map_or(names.len(), |n| n as usize).clamp(1, names.len().max(1));
    let groups = names.chunks(size).filter(|group| group.len() == size);
    Ok(groups.map(|group| Slot { hosts: group.to_vec(), gpus: Vec::new() }).collect())
}

/// Slots of `per_run` GPUs, of all hosts in turn so that each gets its share when there are few runs.
fn of_gpus(hosts: &[Host], free: &[Vec<u32>], per_run: usize) -> Vec<Slot> {
    let mut slots = Vec::new();
    let most = free.iter().map(|gpus| gpus.len() / per_run.max(1)).max().unwrap_or(0);
    for round in 0..most {
        for (host, gpus) in hosts.iter().zip(free) {
            if let Some(gpus) = gpus.chunks_exact(per_run.max(1)).nth(round) {
                slots.push(Slot { hosts: vec![host.name.clone()], gpus: gpus.to_vec() });
            }
        }
    }
    slots
}

/// Of the GPUs that the user gives on a host, those that nobody uses, as a plan counts them: among those that
/// programs see there.
fn free_of(host: &Host, there: &[GivenGpu]) -> Vec<u32> {
    let given = |place: u32| match &host.gpus {
        None => false,
        Some(Gpus::Word(_)) => true,
        Some(Gpus::Count(count)) => place < *count,
        Some(Gpus::List(list)) => list.contains(&place),
    };
    let is_free = |gpu: &GivenGpu| match gpu.memory_total {
        // A driver that does not tell memory may tell processes.
        0 => !gpu.lost && gpu.processes == 0,
        total => !gpu.lost && (gpu.memory_used as f64) < FREE * total as f64,
    };
    let free = (0..).zip(there).filter(|(place, gpu)| given(*place) && is_free(gpu));
    free.map(|(place, _)| place).collect()
}

/// The free GPUs of each host, in host order. A host that does not answer has none, and that is told.
async fn free_gpus(
    hosts: &[Host],
    host_keys: &HostKeyArgs,
    told: &mut dyn FnMut(&str),
) -> Result<Vec<Vec<u32>>, Failure> {
    let looks: Vec<Arc<Mutex<Option<HostLook>>>> = hosts.iter().map(|_| Arc::default()).collect();
    let prompter: Arc<dyn Prompter> = prompt::Terminal::new(host_keys);
    let command = |index: usize, host: &Host| {
        let to = looks[index].clone();
        let lines = LineSink::new(move |line| {
            if let Some(look) = line.strip_prefix(LOOK).and_then(|json| serde_json::from_str(json).ok()) {
                *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(look);
            }
        });
        let args = ["fleet", "--workdir", &host.workdir, "--seconds", "1"].map(str::to_owned).to_vec();
        AgentCommand { args, lines, within: Some(PATIENCE), ..AgentCommand::default() }
    };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    let mut free = Vec::new();
    for ((host, reply), look) in hosts.iter().zip(replies).zip(&looks) {
        if let Err(error) = reply {
            told(&format!("warning: {}: {}; no run goes there", host.name, error.error));
        }
        let look = look.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let gpus = free_of(host, &look.given);
        told(&format!("{}: {} of {} free", host.name, gpus.len(), plural(look.given.len(), "GPU")));
        free.push(gpus);
    }
    Ok(free)
}

/// Slots of GPUs that are free now and in none of `known`.
fn added(hosts: &[Host], mut free: Vec<Vec<u32>>, per_run: usize, known: &[Slot]) -> Vec<Slot> {
    for (host, gpus) in hosts.iter().zip(&mut free) {
        let ours =
            |gpu: &u32| known.iter().any(|slot| slot.hosts.contains(&host.name) && slot.gpus.contains(gpu));
        gpus.retain(|gpu| !ours(gpu));
    }
    of_gpus(hosts, &free, per_run)
}

type Look = Pin<Box<dyn Future<Output = Option<Vec<Vec<u32>>>>>>;

/// Looks for GPUs that have become free since the sweep began.
pub(super) struct Finder {
    hosts: Vec<Host>,
    host_keys: HostKeyArgs,
    per_run: usize,
    next: Instant,
    look: Option<Look>,
}

impl Finder {
    /// `None` for a sweep that asks for no GPUs.
    pub(super) fn new(hosts: Vec<Host>, host_keys: HostKeyArgs, gpus_per_run: Option<u32>) -> Option<Finder> {
        let per_run = gpus_per_run? as usize;
        Some(Finder { hosts, host_keys, per_run, next: Instant::now() + LOOK_EVERY, look: None })
    }

    /// Looks at once: a run has ended, and another user's may have, too.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Waits for the next look; the slots that it adds to `known`. To be dropped at any time: a look under
    /// way goes on with the next call.
    pub(super) async fn found(&mut self, known: &[Slot]) -> Vec<Slot> {
        let look = match &mut self.look {
            Some(look) => look,
            none => {
                tokio::time::sleep_until(self.next).await;
                let (hosts, host_keys) = (self.hosts.clone(), self.host_keys.clone());
                // A host that does not answer was told at the beginning, and adds none.
                none.insert(Box::pin(async move { free_gpus(&hosts, &host_keys, &mut |_| ()).await.ok() }))
            }
        };
        let free = look.await;
        self.look = None;
        self.next = Instant::now() + LOOK_EVERY;
        added(&self.hosts, free.unwrap_or_default(), self.per_run, known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(used: u64) -> GivenGpu {
        GivenGpu { memory_used: used, memory_total: 100, ..GivenGpu::default() }
    }

    fn host(name: &str, gpus: Option<Gpus>) -> Host {
        Host { name: name.into(), gpus, ..Host::default() }
    }

    #[test]
    fn gpus_that_are_used_or_not_given_are_left_alone() {
        let gpus = [gpu(0), gpu(90), gpu(9), gpu(0)];
        let free = |given| free_of(&host("a", given), &gpus);
        assert_eq!(free(Some(Gpus::Word("all".into()))), [0, 2, 3]);
        assert_eq!(free(Some(Gpus::Count(2))), [0]);
        assert_eq!(free(Some(Gpus::List(vec![1, 3]))), [3]);
        assert_eq!(free(None), [] as [u32; 0]);
        let untold = |processes| GivenGpu { processes, ..GivenGpu::default() };
        let all = host("a", Some(Gpus::Word("all".into())));
        assert_eq!(free_of(&all, &[untold(0)]), [0]);
        assert_eq!(free_of(&all, &[untold(1)]), [] as [u32; 0]);
        assert_eq!(free_of(&all, &[GivenGpu { lost: true, ..gpu(0) }, gpu(0)]), [1]);
    }

    #[test]
    fn hosts_take_turns_and_no_gpu_is_in_two_slots() {
        let hosts = [host("a", None), host("b", None)];
        let slots = of_gpus(&hosts, &[vec![0, 2, 3], vec![1, 5]], 1);
        let told: Vec<(&str, u32)> =
            slots.iter().map(|slot| (slot.hosts[0].as_str(), slot.gpus[0])).collect();
        assert_eq!(told, [("a", 0), ("b", 1), ("a", 2), ("b", 5), ("a", 3)]);
        let pairs = of_gpus(&hosts, &[vec![0, 2, 3], vec![1]], 2);
        assert_eq!(pairs, [Slot { hosts: vec!["a".into()], gpus: vec![0, 2] }]);
        assert!(of_gpus(&hosts, &[vec![], vec![]], 1).is_empty());
        let known = [Slot { hosts: vec!["a".into()], gpus: vec![0, 2] }];
        let slot = |name: &str, gpu| Slot { hosts: vec![name.into()], gpus: vec![gpu] };
        let added = added(&hosts, vec![vec![0, 2, 3], vec![0]], 1, &known);
        assert_eq!(added, [slot("a", 3), slot("b", 0)], "the sweep's own are not offered again");
    }
}
