//! Runs in a Slurm allocation that is no more.

use crate::Goal;
use crate::report::ReportBody;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Transport;
use rankdeck_types::link_state::LinkState;

/// The job that the nodes belonged to is over, as after the failure of one: nobody gets there any more. The
/// end comes within the bound, whatever was heard before.
#[test]
fn run_2_a_run_whose_allocation_is_over_ends_and_is_not_proved() {
    let failed = |name: &str| {
        LinkState::Failed(HintedError {
            error: format!("{name}: Slurm job 7 has no nodes any more: NODE_FAIL (NodeDown)"),
            hint: "look there".into(),
        })
    };
    for stop_heard in [false, true] {
        let mut draft = draft(2, Transport::Slurm);
        draft.hosts.iter_mut().for_each(|host| host.transport = Transport::Slurm);
        let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
        c.all_ready();
        if stop_heard {
            c.record(0, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "Slurm job 7".into() });
        }
        c.link(0, failed("ant"));
        c.pass(60_000);
        assert_eq!(c.exit, None, "the other node may be heard");
        c.link(1, failed("bee"));
        c.pass(45_000);
        let [ReportBody::RunFinished { proved: false, unverified, reason, .. }] = &c.finished()[..] else {
            panic!("{stop_heard}: {:?}", c.finished())
        };
        assert_eq!(unverified[..], ["ant", "bee"], "{reason}");
        assert!(reason.contains("no proof from ant, bee"), "{reason}");
        assert!(reason.contains(if stop_heard { "Slurm job 7" } else { "NODE_FAIL" }), "{reason}");
        assert_ne!(c.exit, Some(0));
    }
}
