//! Who looks at the policy at play.

use crate::event::Event;
use crate::testkit::*;
use rankdeck_proto::inspection::{Frame, How, Inspection, ThreadStack};
use rankdeck_proto::message::*;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::ids::{Generation, Rank, Timestamp};

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(10_000);
    c
}

fn watches(c: &Cluster, node: usize) -> Vec<bool> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Watch { on } => Some(*on),
            _ => None,
        })
        .collect()
}

fn frame(c: &mut Cluster, node: usize, generation: u32, ended: u32) {
    let frame = Box::new(LiveFrame { ended, ..LiveFrame::default() });
    c.said(node, AgentMessage::Frame { generation: Generation(generation), age_ms: 300, missed: 2, frame });
}

fn ended(c: &Cluster) -> Option<u32> {
    c.model().policy.frame.as_ref().map(|frame| frame.ended)
}

#[test]
fn agents_are_asked_for_frames_while_somebody_looks_and_again_when_they_come_back() {
    let mut c = running();
    assert!(watches(&c, 0).is_empty(), "nobody looks");
    c.event(Event::Watched { on: true });
    c.event(Event::Watched { on: true });
    assert_eq!((watches(&c, 0), watches(&c, 1)), (vec![true], vec![true]));
    c.lose(0);
    c.event(Event::Watched { on: false });
    c.event(Event::Watched { on: true });
    c.ready(0);
    assert_eq!(watches(&c, 0), [true, true], "a lost host is asked when it is back");
    assert_eq!(watches(&c, 1), [true, false, true]);
    c.event(Event::Watched { on: false });
    c.lose(1);
    c.ready(1);
    assert_eq!(watches(&c, 1).last(), Some(&false), "nobody looks any more");
}

#[test]
fn the_newest_frame_of_rank_0_and_this_generation_is_held_with_its_age() {
    let mut c = running();
    c.event(Event::Watched { on: true });
    let before = c.model().revision;
    frame(&mut c, 0, 0, 1);
    assert_eq!(ended(&c), Some(1));
    let policy = &c.model().policy;
    assert_eq!((policy.at, policy.missed), (Timestamp(c.now.0 - 300), 2));
    assert!(c.model().revision > before, "the screen shows it");
    frame(&mut c, 1, 0, 7);
    assert_eq!((ended(&c), c.model().drops.misplaced), (Some(1), 1), "rank 0 is elsewhere");
    frame(&mut c, 0, 9, 8);
    assert_eq!(ended(&c), Some(1), "of another generation");
    frame(&mut c, 0, 0, 2);
    assert_eq!(ended(&c), Some(2));
    c.event(Event::Watched { on: false });
    let before = c.model().revision;
    frame(&mut c, 0, 0, 3);
    assert_eq!(c.model().revision, before, "one that was on its way changes no screen");
}

#[test]
fn frames_and_looks_are_in_no_record() {
    let mut c = running();
    c.events.clear();
    c.event(Event::Watched { on: true });
    frame(&mut c, 0, 0, 1);
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    assert!(Event::Ticked.is_recorded());
    let kept = serde_json::to_string(c.model()).unwrap();
    let read: crate::model::Model = serde_json::from_str(&kept).unwrap();
    assert_eq!(read.policy, crate::model::PolicyView::default());
}

#[test]
fn a_look_at_a_healthy_rank_is_asked_for_and_kept_beside_it() {
    let mut c = running();
    c.event(Event::LookRequested { rank: Rank(1) });
    c.event(Event::LookRequested { rank: Rank(9) });
    let asked: Vec<_> = c.agents.iter().map(|agent| looks(&agent.orders)).collect();
    assert_eq!(asked, [vec![vec![Rank(1)]], vec![]], "its own host, and nobody for a rank that is none");
    let stack = ThreadStack {
        frames: vec![Frame { function: "collect".into(), file: Some("train.py".into()), line: Some(14) }],
        how: How::Python,
        ..ThreadStack::default()
    };
    let answer = |rank| Inspection { rank, threads: vec![stack.clone()], ..Inspection::default() };
    c.said(0, AgentMessage::Inspected { request: 0, inspections: vec![answer(Rank(1)), answer(Rank(2))] });
    let look = c.model().ranks[1].look.as_ref().unwrap();
    assert_eq!(look.side.stack, ["collect  train.py:14"]);
    assert!(c.model().ranks[2].look.is_none() && c.model().drops.misplaced == 1);
    assert!(c.model().verdicts.is_empty(), "a look is no suspicion");
}

fn looks(orders: &[ConsoleMessage]) -> Vec<Vec<Rank>> {
    let asked = orders.iter().filter_map(|order| match order {
        ConsoleMessage::Inspect { ranks, .. } => Some(ranks.clone()),
        _ => None,
    });
    asked.collect()
}

#[test]
fn a_rank_is_continued_by_the_agent_of_its_host() {
    let mut c = running();
    c.event(Event::ContinueRequested { rank: Rank(2) });
    let asked = |node: usize| {
        c.agents[node]
            .orders
            .iter()
            .any(|order| matches!(order, ConsoleMessage::Continue { ranks } if ranks == &[Rank(2)]))
    };
    assert!(asked(1) && !asked(0));
    assert!(c.model().history.iter().any(|line| line.text.contains("rank 2 is to be continued")));
}
