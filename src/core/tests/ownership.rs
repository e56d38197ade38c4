//! Compromised agents: what their messages may and may not cause (OWN-1, OWN-2, WIRE-1).

use crate::Goal;
use crate::event::{Effect, Event, StopSource};
use crate::model::RunState;
use crate::origin;
use crate::report::ReportBody;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{Generation, NodeRank};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::PlannedHost;

fn running(hosts: usize) -> Cluster {
    let mut c = Cluster::launch(hosts);
    c.all_ready();
    c.pass(2_000);
    assert_eq!(c.model().run.state, RunState::Running);
    c
}

/// Changes the launch that `node` reports, with its record of it.
fn lie(c: &mut Cluster, node: usize, change: impl Fn(&mut LaunchSpec)) {
    let mut spec = c.agents[node].spec.clone().unwrap();
    change(&mut spec);
    c.agents[node].spec = Some(spec.clone());
    c.record(node, RecordEvent::Launched { spec: Box::new(spec) });
}

fn evil(spec: &mut LaunchSpec) {
    spec.plan.experiment.launch.command = vec!["/bin/sh".into(), "-c".into(), "id > PWNED".into()];
}

fn refused(c: &Cluster) -> String {
    c.model().run.refused.clone().unwrap_or_default()
}

#[test]
fn own_1_single_host_cannot_take_over_a_run() {
    let mut c = running(2);
    lie(&mut c, 1, |spec| {
        evil(spec);
        spec.generation = Generation(9);
    });
    assert_eq!((c.model().run.generation.0, c.model().run.adopted), (0, false));
    assert_eq!(c.model().run.differing, ["bee"]);
    // A restart is still this console's, and of its own command.
    c.event(Event::restart(None));
    assert_eq!((c.stops(0), refused(&c)), (vec![StopMode::Clean], String::new()));
    c.host_ends(0, true);
    c.pass(60_000);
    assert!(c.launches(0).iter().all(|spec| spec.plan.experiment.launch.command == ["true"]));
}

#[test]
fn own_1_launch_confirmed_by_all_hosts_is_followed() {
    let mut c = running(2);
    for node in 0..2 {
        c.record(node, RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false });
        c.host_ends(node, true);
    }
    for node in 0..2 {
        lie(&mut c, node, |spec| spec.generation = Generation(1));
        for (rank, local) in [(2 * node as u32, 0), (2 * node as u32 + 1, 1)] {
            let (rank, local_rank) = (rankdeck_types::ids::Rank(rank), rankdeck_types::ids::LocalRank(local));
            c.record(node, RecordEvent::RankSpawned { rank, local_rank, pid: 7 });
        }
        assert_eq!(c.model().run.generation.0, node as u32, "one host is not enough");
    }
    assert!(c.model().run.adopted && c.model().run.differing.is_empty());
    assert!(c.model().ranks.iter().all(|rank| rank.pid == Some(7)), "what came before it is not lost");
}

#[test]
fn own_2_disagreeing_hosts_block_restart() {
    let mut refusals = Vec::new();
    for first in 0..2 {
        let mut c = running(2);
        // Without a record of its own: the host reports it from the start.
        evil(c.agents[1].spec.as_mut().unwrap());
        for record in &mut c.agents[1].records {
            if let RecordEvent::Launched { spec } = &mut record.event {
                evil(spec);
            }
        }
        let mut other = c.attach();
        other.ready(first);
        other.ready(1 - first);
        let shown = other.model().run.launch.clone();
        other.event(Event::restart(None).having_shown(shown));
        refusals.push(refused(&other));
        assert_eq!(other.model().run.differing.len(), 1);
        other.pass(60_000);
        assert!(other.stops(0).is_empty() && other.launches(0).is_empty() && other.launches(1).is_empty());
    }
    insta::assert_snapshot!("disagreeing_hosts", refusals.join("\n"));
}

#[test]
fn own_2_adopted_run_restarts_only_as_shown() {
    let c = running(2);
    let mut other = c.attach();
    other.all_ready();
    for shown in [None, Some(LaunchHash("of another launch".into()))] {
        other.event(Event::restart(None).having_shown(shown));
        insta::assert_snapshot!("unconfirmed_restart", refused(&other));
    }
    let shown = other.model().run.launch.clone();
    other.event(Event::restart(None).having_shown(shown));
    for node in 0..2 {
        other.host_ends(node, true);
    }
    assert_eq!((other.launches(0).len(), other.launches(1).len()), (1, 1));
}

/// The environment of its own host is not among the equal parts of a launch.
#[test]
fn own_2_variable_reported_after_the_question_blocks() {
    let c = running(2);
    let mut other = c.attach();
    other.all_ready();
    let shown = origin::shown(other.model());
    assert_eq!(shown, other.model().run.launch, "the plan passes nothing");
    let greedy = |spec: &mut LaunchSpec| {
        spec.plan.hosts[1].host.env.insert("LEAK".into(), "x${CLOUD_SECRET}".into());
    };
    greedy(other.agents[1].spec.as_mut().unwrap());
    for record in &mut other.agents[1].records {
        if let RecordEvent::Launched { spec } = &mut record.event {
            greedy(spec);
        }
    }
    other.lose(1);
    other.ready(1);
    let plan = other.model().plan.clone().unwrap();
    assert_eq!(plan.console_variables(None).into_iter().collect::<Vec<_>>(), ["CLOUD_SECRET"]);
    assert!(other.model().run.differing.is_empty());
    other.event(Event::restart(None).having_shown(shown));
    assert!(!refused(&other).is_empty() && other.stops(0).is_empty(), "the question had another text");
    let question = origin::passed(&plan, None).unwrap();
    assert!(question.contains("CLOUD_SECRET"), "ORIGIN-3: {question}");
    let shown = origin::shown(other.model());
    other.event(Event::restart(None).having_shown(shown));
    assert_eq!(other.stops(0).len(), 1);
}

#[test]
fn own_2_silent_host_confirms_nothing() {
    let c = running(2);
    let mut other = c.attach();
    other.ready(0);
    let shown = other.model().run.launch.clone();
    other.event(Event::restart(None).having_shown(shown));
    insta::assert_snapshot!("silent_host_confirms_nothing", refused(&other));
}

#[test]
fn host_known_only_from_agent_is_included_in_stop() {
    let c = running(2);
    let mut other = c.attach();
    let laptop = Host {
        name: "laptop".into(),
        transport: Transport::Local,
        workdir: "/tmp/chosen-by-the-host".into(),
        ..Host::default()
    };
    for agent in &mut other.agents {
        let plan = &mut agent.spec.as_mut().unwrap().plan;
        plan.hosts.push(PlannedHost::new(NodeRank(2), laptop.clone()));
        plan.ranks.last_mut().unwrap().node_rank = NodeRank(2);
        agent.records.clear();
    }
    other.agents[0].connected = true;
    let event =
        Event::LinkChanged { node: NodeRank(0), state: LinkState::Ready { probe: Default::default() } };
    let mut effects = other.core.handle(other.now, event);
    let spec = other.agents[0].spec.clone().map(Box::new);
    for message in [
        hello(0, other.wall_time(0)),
        AgentMessage::Snapshot { spec, ranks: vec![], last_seq: 0, holds: vec![] },
    ] {
        let event = Event::AgentMessage { node: NodeRank(0), message: Box::new(message) };
        effects.extend(other.core.handle(other.now, event));
    }
    assert!(
        effects.iter().any(|e| matches!(e, Effect::Find { node: NodeRank(2), name } if name == "laptop"))
    );
    assert!(!effects.iter().any(|e| matches!(e, Effect::Connect { .. })), "no address of an agent's is used");
    other.agents.push(FakeAgent::default());
    let state = LinkState::Failed(HintedError { error: "not listed".into(), hint: String::new() });
    other.link(2, state);
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.host_ends(0, true);
    other.ready(1);
    other.host_ends(1, true);
    other.pass(60_000);
    let [ReportBody::RunFinished { proved: false, unverified, .. }] = &other.finished()[..] else { panic!() };
    assert_eq!(unverified[..], ["laptop"]);
}

#[test]
fn run_2_host_without_ranks_is_still_stopped() {
    let c = running(2);
    let mut other = c.attach();
    // bee reports a generation in which ant has no ranks.
    let spec = other.agents[1].spec.as_mut().unwrap();
    spec.generation = Generation(1);
    spec.plan.ranks.retain(|rank| rank.node_rank == NodeRank(1));
    for (index, rank) in spec.plan.ranks.iter_mut().enumerate() {
        rank.rank.0 = index as u32;
    }
    let spec = spec.clone();
    other.record(1, RecordEvent::Launched { spec: Box::new(spec) });
    other.ready(1);
    other.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
    other.proof(1);
    other.pass(3_000);
    assert_eq!(other.exit, None, "ant has proved nothing");
    other.ready(0);
    assert_eq!(other.stops(0), [StopMode::Clean]);
    other.host_ends(0, true);
    let [ReportBody::RunFinished { proved: true, .. }] = &other.finished()[..] else { panic!() };
}

#[test]
fn plan_6_agent_with_impossible_plan_is_refused() {
    let c = running(2);
    let mut other = c.attach();
    other.agents[1].spec.as_mut().unwrap().plan.hosts[0].host.name = "../../etc".into();
    other.ready(1);
    let LinkState::Failed(error) = &other.model().hosts[1].link else { panic!() };
    insta::assert_snapshot!("impossible_plan", error.with_hint());
}

#[test]
fn plan_5_launch_has_only_secrets_of_its_host() {
    let mut draft = draft(2, Transport::Ssh);
    for host in &mut draft.hosts {
        host.env.insert("TOKEN".into(), format!("secret of {}", host.name));
    }
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
    c.all_ready();
    for (node, name, other) in [(0, "ant", "bee"), (1, "bee", "ant")] {
        let text = serde_json::to_string(&c.launches(node)[0]).unwrap();
        assert!(text.contains(&format!("secret of {name}")) && !text.contains(&format!("secret of {other}")));
    }
    // Another console puts the shares together, and gives each host its own again.
    let mut other = c.attach();
    other.all_ready();
    let shown = other.model().run.launch.clone();
    other.event(Event::restart(None).having_shown(shown));
    other.host_ends(0, true);
    other.host_ends(1, true);
    let text = serde_json::to_string(&other.launches(1)[0]).unwrap();
    assert!(text.contains("secret of bee") && !text.contains("secret of ant"), "{text}");
}

#[test]
fn wire_1_too_large_launch_names_key() {
    for (key, host) in [("launch.env.LARGE", false), ("host.1.env.LARGE", true)] {
        let mut draft = draft(2, Transport::Ssh);
        let env = if host { &mut draft.hosts[1].env } else { &mut draft.experiment.launch.env };
        env.insert("LARGE".into(), "x".repeat(1_100_000));
        let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
        c.all_ready();
        assert_eq!((c.exit, c.launches(0).len()), (Some(2), 0));
        let reason = &c.model().run.reason;
        assert!(reason.contains(&format!("`{key}`")), "{reason}");
    }
}
