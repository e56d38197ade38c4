//! From links to running ranks, and every way in which that fails.

use crate::event::{Effect, Event, StopSource};
use crate::model::{RankLife, RunState};
use crate::report::{ReportBody, RunOutcome};
use crate::testkit::*;
use crate::{Core, Goal};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::{NodeRank, RunId, Timestamp};
use rankdeck_types::link_state::LinkState;

fn failed() -> LinkState {
    LinkState::Failed(HintedError {
        error: "bee: connection refused".into(),
        hint: "is sshd running?".into(),
    })
}

#[test]
fn launch_runs_ranks_once_all_hosts_link() {
    let mut c = Cluster::launch(2);
    assert_eq!(c.model().run.state, RunState::Connecting);
    c.ready(0);
    c.pass(1000);
    assert_eq!(c.model().run.state, RunState::Connecting, "waits for all hosts");
    assert!(c.launches(0).is_empty());
    c.ready(1);
    assert_eq!(c.model().run.state, RunState::Running);
    for node in 0..2 {
        let launches = c.launches(node);
        assert_eq!(launches.len(), 1);
        assert_eq!((launches[0].master_addr.as_str(), launches[0].master_port), ("127.0.0.1", 40_001));
        assert_eq!(launches[0].node_rank, NodeRank(node as u32));
        assert_eq!(launches[0].generation.0, 0);
    }
    assert!(c.model().ranks.iter().all(|rank| rank.life == RankLife::Spawned && rank.pid.is_some()));
    let started: Vec<_> =
        c.reports.iter().filter(|(_, _, b)| matches!(b, ReportBody::RunStarted { .. })).collect();
    assert!(
        matches!(
            started[..],
            [(0, _, ReportBody::RunStarted { world_size: 4, nnodes: 2, adopted: false, .. })]
        ),
        "{started:?}"
    );
}

#[test]
fn ssh_hosts_use_first_address_and_fixed_port() {
    let mut draft = draft(2, Transport::Ssh);
    draft.experiment.launch.master_port = 29_500;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
    c.all_ready();
    let launch = &c.launches(1)[0];
    assert_eq!((launch.master_addr.as_str(), launch.master_port), ("ant.lan", 29_500));
    assert!(!c.agents[0].orders.iter().any(|order| matches!(order, ConsoleMessage::ReservePort { .. })));
    assert_eq!(c.model().run.master, "ant.lan:29500");
}

#[test]
fn probe_fills_plan_and_missing_trainer_stops_launch() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.launch.command.clear();
    let goal = Goal::Launch(Box::new(draft));
    let mut c = Cluster::with(goal.clone(), 1, vec![]);
    let probe = Probe { trainer: Some("/t".into()), libtorch: Some("/l".into()), ..Probe::default() };
    c.link(0, LinkState::Ready { probe });
    let host = &c.launches(0)[0].plan.hosts[0];
    assert_eq!((host.trainer.as_deref(), host.libtorch()), (Some("/t"), Some("/l")));

    let mut c = Cluster::with(goal, 1, vec![]);
    c.ready(0);
    assert_eq!(c.exit, Some(3));
    insta::assert_snapshot!("missing_trainer", c.model().run.reason);
    assert!(c.launches(0).is_empty());
}

#[test]
fn host_failure_before_launch_exits_3() {
    let mut c = Cluster::launch(3);
    c.ready(0);
    c.link(1, failed());
    assert_eq!(c.exit, None, "the others may still report a failure");
    c.pass(2_250);
    assert_eq!(c.exit, Some(3));
    assert!(c.launches(0).is_empty() && c.launches(2).is_empty());
    assert_eq!(c.agents[0].orders.last(), Some(&ConsoleMessage::Close));
    assert!(c.agents[0].closed && c.agents[2].closed);
    let [ReportBody::RunFinished { outcome, proved, survivors, reason, .. }] = &c.finished()[..] else {
        panic!()
    };
    assert_eq!((*outcome, *proved, survivors.len()), (RunOutcome::Failed, true, 0));
    assert!(reason.contains("connection refused") && reason.contains("sshd"), "{reason}");
    assert_eq!(c.core.poll_timeout(), None);
}

#[test]
fn all_link_failures_are_reported_together() {
    let mut c = Cluster::launch(2);
    c.link(0, LinkState::Failed(HintedError { error: "ant: no route".into(), hint: String::new() }));
    c.link(1, failed());
    assert_eq!(c.exit, Some(3));
    let reason = &c.model().run.reason;
    assert!(reason.contains("ant: no route") && reason.contains("bee: connection refused"), "{reason}");
}

#[test]
fn impossible_plan_exits_2() {
    let goal = Goal::Launch(Box::new(draft(1, Transport::Local)));
    let mut c = Cluster::launch(1);
    c.core = Core::with_resolver(goal, vec![], Timestamp(0), no_plan);
    c.ready(0);
    assert_eq!(c.exit, Some(2));
    assert!(c.model().run.reason.contains("change env.num_envs"));
}

#[test]
fn foreign_agent_is_refused_with_hint() {
    for change in [0, 1] {
        let mut c = Cluster::launch(1);
        c.agents[0].connected = false;
        c.event(Event::LinkChanged {
            node: NodeRank(0),
            state: LinkState::Ready { probe: Probe::default() },
        });
        let mut message = hello(0, c.wall_time(0));
        if let AgentMessage::Hello { protocol, run, .. } = &mut message {
            match change {
                0 => *protocol = 99,
                _ => *run = RunId("other".into()),
            }
        }
        c.receive(0, message);
        assert_eq!(c.exit, Some(3));
        assert!(
            matches!(&c.model().hosts[0].link, LinkState::Failed(HintedError { hint, .. }) if !hint.is_empty())
        );
        assert!(c.agents[0].closed);
    }
}

#[test]
fn agent_without_hello_times_out() {
    let mut c = Cluster::launch(1);
    c.event(Event::LinkChanged { node: NodeRank(0), state: LinkState::Ready { probe: Probe::default() } });
    c.pass(19_000);
    assert_eq!(c.exit, None);
    c.pass(2_000);
    assert_eq!(c.exit, Some(3));
    insta::assert_snapshot!("agent_without_hello", c.model().run.reason);
}

#[test]
fn refused_launch_stops_others_and_exits_3() {
    let mut c = Cluster::launch(2);
    c.refuse_launch = Some(1);
    c.all_ready();
    assert_eq!(c.stops(0), [StopMode::Terminate]);
    assert_eq!(c.exit, None, "the other host has not proved its stop");
    c.exit_of(0, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.exit_of(1, Exit::Signal { signal: 15, out_of_memory: false }, true);
    c.proof(0);
    assert_eq!(c.exit, Some(3));
    assert!(c.model().run.reason.contains("no such program"), "{}", c.model().run.reason);
}

#[test]
fn lost_launch_is_sent_again_once() {
    let mut c = Cluster::launch(2);
    c.ready(0);
    // The link of node 1 breaks right after its snapshot: the launch goes nowhere.
    c.event(Event::LinkChanged { node: NodeRank(1), state: LinkState::Ready { probe: Probe::default() } });
    c.receive(1, hello(1, c.wall_time(1)));
    c.receive(1, AgentMessage::Snapshot { spec: None, ranks: vec![], last_seq: 0, holds: vec![] });
    assert_eq!(c.model().run.state, RunState::Launching);
    assert!(c.launches(1).is_empty());
    c.lose(1);
    c.pass(1_000);
    c.ready(1);
    assert_eq!(c.launches(1).len(), 1);
    assert_eq!(c.model().run.state, RunState::Running);
    c.lose(1);
    c.ready(1);
    assert_eq!(c.launches(1).len(), 1, "it has it now");
    assert_eq!(c.launches(0).len(), 1);
}

#[test]
fn stop_or_detach_before_launch_leaves_nothing() {
    for event in
        [Event::StopRequested { mode: StopMode::Clean, by: StopSource::Signal }, Event::DetachRequested]
    {
        let mut c = Cluster::launch(2);
        c.ready(0);
        c.event(event);
        assert_eq!(c.exit, Some(130));
        c.ready(1);
        assert!(c.launches(0).is_empty() && c.launches(1).is_empty());
        assert_eq!(c.finished().len(), 1);
    }
}

#[test]
fn prompts_are_shown_and_answered_once() {
    let mut c = Cluster::launch(1);
    let prompt = rankdeck_types::link_state::Prompt::Passphrase { key: "id".into() };
    c.link(0, LinkState::Asking { prompt: prompt.clone() });
    assert_eq!(c.model().hosts[0].prompt, Some(prompt));
    let answer = || Event::PromptAnswered { node: NodeRank(0), answer: Some("x".into()) };
    let effects = c.core.handle(Timestamp(1), answer());
    let handed = matches!(effects[..], [Effect::Link { command: LinkCommand::Answer(Some(_)), .. }]);
    assert!(handed, "{effects:?}");
    assert!(c.core.handle(Timestamp(2), answer()).is_empty());
    assert_eq!(c.model().hosts[0].prompt, None);
}

#[test]
fn ticks_are_due_four_times_a_second_at_most() {
    let mut c = Cluster::launch(2);
    assert_eq!(c.core.poll_timeout(), Some(Timestamp(250)));
    c.ready(0);
    assert_eq!(c.core.poll_timeout(), Some(Timestamp(250)), "events do not hurry the tick");
    c.pass(250);
    assert_eq!(c.core.poll_timeout(), Some(Timestamp(500)));
}

#[test]
fn samples_trigger_ticks_in_healthy_run() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.pass(1_000);
    let ticked = c.now;
    assert_eq!(c.core.poll_timeout(), Some(ticked.plus(750)), "the latest samples are assessed");
    c.now = ticked.plus(500);
    c.sample(0);
    assert_eq!(c.core.poll_timeout(), Some(ticked.plus(250)), "new ones: at once");
    c.core.handle(c.now, Event::Ticked);
    assert_eq!(c.core.poll_timeout(), Some(ticked.plus(1_250)));
    c.core.handle(ticked.plus(1_250), Event::Ticked);
    c.core.handle(ticked.plus(1_260), Event::Ticked);
    assert_eq!(c.core.poll_timeout(), Some(ticked.plus(1_510)), "a silent host is checked more often");
}

#[test]
fn agents_are_pinged_while_run_lasts() {
    let mut c = Cluster::launch(1);
    c.ready(0);
    c.pass(10_000);
    let pings =
        c.agents[0].orders.iter().filter(|order| matches!(order, ConsoleMessage::Ping { .. })).count();
    assert_eq!(pings, 5);
    c.now = c.now.plus(40);
    c.receive(0, AgentMessage::Pong { sent_ms: 10_000, wall_time: None });
    assert_eq!(c.model().hosts[0].rtt_ms, Some(40));
}
