//! A rank is lost and the others continue: what the screen shows, and how the rank starts again.

use super::*;
use rankdeck_core::RankEnd;
use rankdeck_core::membership::{MembershipChange, MembershipModel};
use rankdeck_core::series::Place;
use rankdeck_types::experiment::OnRankLoss;
use rankdeck_types::ids::Generation;

/// Rank 1 of four has died, and the others continue.
fn shrunk() -> Model {
    let mut model = four();
    if let Some(plan) = &mut model.plan {
        plan.experiment.distributed.on_rank_loss = OnRankLoss::Shrink;
    }
    let change = Membership {
        epoch: 1,
        ranks: vec![Rank(0), Rank(2), Rank(3)],
        lost: vec![Rank(1)],
        iteration: 600,
        steps: 1_228_800,
        steps_lost: 512,
        seconds: 0.44,
        ..Membership::default()
    };
    model.membership = MembershipModel {
        epoch: 1,
        members: change.ranks.clone(),
        news: 1,
        store: Some("10.0.0.1:4711".into()),
        changes: [MembershipChange { generation: Generation(0), time: 0.0, change }].into(),
        ..MembershipModel::default()
    };
    let rank = &mut model.ranks[1];
    rank.life = RankLife::Exited(Exit::Signal { signal: 9, out_of_memory: false });
    (rank.lost, rank.end) = (true, Some(RankEnd::Lost));
    let reason = "rank 1 on node-a was killed by SIGKILL; 3 of 4 ranks continue after iteration 600";
    let lost = verdict(1, "node-a", VerdictKind::Lost, reason);
    model.verdicts = vec![rankdeck_core::report::VerdictReport { severity: Severity::Amber, ..lost }];
    model
}

#[test]
fn lost_rank_is_in_header_status_and_table() {
    let (model, mut view) = (shrunk(), ViewState::new());
    let shown = screen(&model, &mut view);
    for text in ["3 of 4 ranks", "lost"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
    view.toasts.clear();
    insta::assert_snapshot!(screen(&model, &mut view));
}

#[test]
fn change_of_members_is_a_toast_once() {
    let (mut model, mut view) = (shrunk(), ViewState::new());
    screen(&model, &mut view);
    insta::assert_snapshot!(toasts(&view));
    view.toasts.clear();
    screen(&model, &mut view);
    assert_eq!(toasts(&view), "");
    model.membership.refused = Some("rank 1 cannot join: unknown rank".into());
    screen(&model, &mut view);
    assert_ne!(toasts(&view), "");
    // What had happened before this console came is no news.
    let (mut before, mut view) = (shrunk(), ViewState::new());
    before.membership.news = 0;
    screen(&before, &mut view);
    assert_eq!(toasts(&view), "");
}

#[test]
fn lost_rank_is_added_by_key_and_word() {
    let (model, mut view) = (shrunk(), ViewState::new());
    let order = ScreenAction::Send(Event::RejoinRequested { rank: Rank(1) });
    view.selected = Some(Rank(1));
    assert_eq!(press(&model, &mut view, "a"), std::slice::from_ref(&order));
    let mut view = ViewState::new();
    let mut typed = press(&model, &mut view, ":add 1");
    typed.extend(tap(&model, &mut view, KeyCode::Enter, KeyModifiers::NONE));
    assert_eq!(typed, [order]);
    view.steering.read_only = true;
    view.selected = Some(Rank(1));
    assert!(press(&model, &mut view, "a").is_empty());
    let (four, mut view) = (four(), ViewState::new());
    view.selected = Some(Rank(1));
    assert!(press(&four, &mut view, "a").is_empty(), "it is not lost");
}

#[test]
fn change_of_members_is_marked_in_charts() {
    let mut model = shrunk();
    let place = Place { step: 600_000.0, ..Place::default() };
    let kind = ChartMarkKind::Membership { members: 3, world: 4 };
    model.marks.push_back(ChartMark { place, kind });
    let mut view = ViewState::new();
    press(&model, &mut view, "2");
    assert!(screen(&model, &mut view).contains("3/4 ranks"), "{}", screen(&model, &mut view));
}
