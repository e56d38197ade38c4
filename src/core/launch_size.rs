//! Checks that a launch message fits the wire limit of every host (WIRE-1), before anything starts,
//! and again when a launch is sent.

use rankdeck_proto::frame::MAX_FRAME;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::plan::{Plan, PlanError};
use serde::Serialize;
use std::collections::BTreeMap;

/// Room that the rest of a message and of a record may need, bytes.
const ROOM: usize = 64 << 10;
/// Bytes of a snapshot about one rank: a launch that can be sent can also be reported to a console.
const RANK_ROOM: usize = 512;

/// Refuses a plan whose launch is too large for one of its hosts, and names the largest key.
pub fn check(plan: &Plan) -> Result<(), PlanError> {
    let common = size(&plan.common());
    for planned in plan.members() {
        let node = planned.node_rank;
        let ranks = plan.ranks_of(node).count();
        let own = size(&planned.host.env) + size(&planned.host.setup);
        let all = common + own + ranks * RANK_ROOM + ROOM;
        if all > MAX_FRAME {
            let (key, bytes) = largest(plan, node);
            let (name, all, most, has) =
                (&planned.host.name, all >> 10, MAX_FRAME >> 10, bytes.div_ceil(1 << 10));
            let error = format!(
                "the launch for host {name} is too large to send ({all} KiB, {most} KiB at most): `{key}` has {has} KiB"
            );
            let hint = format!("make `{key}` smaller, or put its content into a file on the hosts");
            return Err(PlanError::new(key, error, hint));
        }
    }
    Ok(())
}

/// The key with the most bytes.
fn largest(plan: &Plan, node: NodeRank) -> (String, usize) {
    let host = plan.hosts.get(node.index()).map(|planned| &planned.host);
    let launch = &plan.experiment.launch;
    let keys = [
        variable("launch.env", &launch.env),
        ("launch.command".to_string(), size(&launch.command)),
        host.map_or_else(Default::default, |host| variable(&format!("host.{node}.env"), &host.env)),
        (format!("host.{node}.prelude"), host.map_or(0, |host| size(&host.setup))),
        ("host.*.nproc".to_string(), size(&plan.ranks)),
        ("host".to_string(), plan.common().hosts.iter().map(|planned| size(&planned.host)).sum()),
    ];
    keys.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or_default()
}

/// One variable where it is most of them, otherwise all of them.
fn variable(key: &str, env: &BTreeMap<String, String>) -> (String, usize) {
    let all = size(env);
    let one = env.iter().max_by_key(|(_, value)| value.len()).filter(|(_, value)| value.len() > all / 2);
    (one.map_or_else(|| key.to_owned(), |(name, _)| format!("{key}.{name}")), all)
}

/// Bytes as JSON.
fn size(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX >> 2, |bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{draft, resolve};
    use rankdeck_proto::frame;
    use rankdeck_proto::message::{
        AgentMessage, ConsoleMessage, Exit, LaunchSpec, RankSnapshot, Record, RecordEvent,
    };
    use rankdeck_types::host::Transport;
    use rankdeck_types::ids::{Generation, LocalRank, Rank};
    use rankdeck_types::plan::{PlannedHost, PlannedRank};

    /// A plan of `hosts` hosts with `nproc` ranks each, and a variable of `bytes` bytes.
    fn plan(hosts: u32, nproc: u32, bytes: usize) -> Plan {
        let mut plan = resolve(&draft(1, Transport::Ssh), &[]).unwrap();
        plan.experiment.launch.env.insert("LARGE".into(), "x".repeat(bytes));
        let host = plan.hosts[0].host.clone();
        let named = |node: u32| rankdeck_types::host::Host { name: format!("node{node:05}"), ..host.clone() };
        plan.hosts = (0..hosts).map(|node| PlannedHost::new(NodeRank(node), named(node))).collect();
        let rank = |rank: u32| PlannedRank {
            rank: Rank(rank),
            local_rank: LocalRank(rank % nproc),
            node_rank: NodeRank(rank / nproc),
            gpu: Some(rank % nproc),
        };
        plan.ranks = (0..hosts * nproc).map(rank).collect();
        plan
    }

    /// WIRE-1: whatever passes can be sent, recorded, and reported to a console that attaches.
    #[test]
    fn wire_1_accepted_launch_fits_every_message() {
        for (hosts, nproc) in [(1, 1), (2, 8), (1, 700), (100, 8), (400, 1)] {
            let (mut fits, mut large) = (0, MAX_FRAME);
            while large - fits > 64 {
                let bytes = fits.midpoint(large);
                *if check(&plan(hosts, nproc, bytes)).is_ok() { &mut fits } else { &mut large } = bytes;
            }
            assert!(fits > 0, "{hosts} hosts of {nproc} ranks");
            let plan = plan(hosts, nproc, fits);
            let spec = Box::new(LaunchSpec {
                generation: Generation(7),
                node_rank: NodeRank(0),
                master_addr: "node00000.cluster.example".into(),
                master_port: 65_535,
                resume: Some("x".repeat(4096)),
                resume_at: None,
                plan: plan.share_of(NodeRank(0)),
            });
            let exit = Exit::NotStarted { error: "e".repeat(300) };
            let ranks: Vec<RankSnapshot> = plan
                .ranks_of(NodeRank(0))
                .map(|planned| RankSnapshot {
                    rank: planned.rank,
                    pid: Some(u32::MAX),
                    exit: Some(exit.clone()),
                })
                .collect();
            let event = RecordEvent::Launched { spec: spec.clone() };
            let record = Record { seq: u64::MAX, time: 1.7e9, generation: Generation(7), event };
            assert!(frame::encode(&AgentMessage::Record(record)).is_ok());
            let snapshot =
                AgentMessage::Snapshot { spec: Some(spec.clone()), ranks, last_seq: u64::MAX, holds: vec![] };
            assert!(frame::encode(&snapshot).is_ok(), "{hosts} hosts of {nproc} ranks, {fits} bytes");
            let launch = ConsoleMessage::Launch { spec, private: Default::default(), after_end: true };
            assert!(frame::encode(&launch).is_ok());
        }
    }

    #[test]
    fn wire_1_too_large_launch_names_key() {
        for (hosts, nproc, key) in [(1, 17_000, "host.*.nproc"), (5_000, 1, "host"), (40_000, 1, "host")] {
            let error = check(&plan(hosts, nproc, 1)).unwrap_err();
            assert_eq!(error.key, key, "{hosts} hosts of {nproc} ranks");
        }
    }
}
