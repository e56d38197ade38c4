//! What the events pane remembers.

use crate::model::Subject;
use crate::testkit::*;
use rankdeck_proto::message::{Evaluation, RankEvent};

#[test]
fn core_2_routine_makes_room_before_what_matters_does() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.iteration(1, 10);
    let before = c.model().history.len();
    let first = c.model().history[0].clone();
    for n in 2..1500 {
        c.rank_said(0, RankEvent::Eval(Evaluation { env_step: n * 100, ..Evaluation::default() }));
        c.rank_said(
            0,
            RankEvent::Checkpoint {
                path: format!("/ckpt/{n}"),
                env_step: n * 100,
                train_iter: n,
                reason: "every".into(),
            },
        );
    }
    let history = &c.model().history;
    assert!(before > 2 && history.len() <= 1000 && c.model().drops.history > 1000);
    assert_eq!(history[0], first, "the beginning is still told");
    assert_eq!(history.iter().filter(|line| !line.routine).count(), before);
    assert_eq!(history.back().unwrap().subject, Some(Subject::Checkpoint("/ckpt/1499".into())));
    assert!(history.iter().is_sorted_by_key(|line| line.number));
}

#[test]
fn a_verdict_keeps_its_card_when_it_is_over() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.iteration(1, 10);
    c.hang(1, |_| {});
    c.pass(15_000);
    c.release();
    c.pass(5_000);
    let told: Vec<&str> = c
        .model()
        .history
        .iter()
        .filter(|line| matches!(line.subject, Some(Subject::Verdict(_))))
        .map(|line| line.text.as_str())
        .collect();
    assert!(
        c.model().verdicts.is_empty() && told.last().is_some_and(|text| text.starts_with("over: ")),
        "{told:?}"
    );
}

#[test]
fn a_stop_of_many_ranks_is_one_line_for_each_way_in_which_they_end() {
    let mut c = Cluster::launch(3);
    c.all_ready();
    c.iteration(1, 10);
    (0..3).for_each(|node| c.host_ends(node, true));
    let lines: Vec<&str> = c.model().history.iter().map(|line| line.text.as_str()).collect();
    let ends: Vec<&&str> = lines.iter().filter(|line| line.starts_with("rank")).collect();
    assert_eq!(ends.len(), 1, "{lines:?}");
    assert!(ends[0].starts_with("ranks 0-5 "), "{ends:?}");
}
