//! Whether a launch can be told to every host: a message has a bound (WIRE-1). Asked before anything starts,
//! and again when a launch is sent.

use rankdeck_proto::frame::MAX_FRAME;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::plan::{Plan, PlanError};
use serde::Serialize;
use std::collections::BTreeMap;

/// Room that the rest of a message and of a record may need, bytes.
const ROOM: usize = 64 << 10;
/// What a snapshot says about one rank, bytes: a launch that can be sent can also be told to a console.
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
        ("host".to_string(), size(&plan.common().hosts)),
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
