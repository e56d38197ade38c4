//! A restart with changed keys: from which checkpoint, which keys, what becomes of them, and a yes.

use crate::scenes::*;
use rankdeck::shell::changer::change;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_tui::restart_draft::{EditedFile, RestartDraft};
use rankdeck_tui::state::{Overlay, Steering};
use rankdeck_tui::{Action, Theme, ViewState};

const SIZE: (u16, u16) = (100, 36);

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<Action> {
    press_at(model, view, keys, SIZE)
}

fn screen(model: &Model, view: &mut ViewState) -> String {
    rows(&cells(model, view, &Theme::dark(), SIZE, NOW))
}

fn scene() -> (Model, ViewState) {
    let mut model = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let experiment = "[run]\nname = \"x\"\ntotal_steps = 2000000\n[env]\nid = \"CartPole-v1\"\nnum_envs = 16\n\
                      [learn]\nalgorithm = \"ppo\"\n";
    model.plan.as_mut().unwrap().experiment = toml::from_str(experiment).unwrap();
    model.checkpoints.clear();
    for (iter, reason) in [(100, "every"), (200, "best"), (300, "every")] {
        let path = format!("/r/checkpoints/iter-{iter}.ckpt");
        let (env_step, reason) = (iter * 1000, reason.to_owned());
        model.checkpoints.push_back(CheckpointModel { path, env_step, train_iter: iter, reason });
    }
    let steering = Steering { changer: Some(change), ..Steering::default() };
    let view = ViewState { steering, ..ViewState::new() };
    (model, view)
}

fn order(actions: Vec<Action>) -> (Option<String>, Option<u32>) {
    match actions.as_slice() {
        [Action::Tell(Event::RestartRequested { from, experiment, exclude, add, .. })] => {
            assert!(exclude.is_empty() && add.is_empty());
            (from.clone(), experiment.as_ref().map(|experiment| experiment.env.as_ref().unwrap().num_envs))
        }
        other => panic!("{other:?}"),
    }
}

/// Who has edited the file since the launch may think that a restart reads it.
#[test]
fn a_file_that_has_changed_since_the_launch_is_told_before_a_restart() {
    let (model, mut view) = scene();
    view.steering.edited = Some(|| {
        let change = |key: &str| (key.to_owned(), "1".to_owned(), "2".to_owned());
        let differences = ["learn.gamma", "run.seed", "env.num_envs", "run.total_steps"].map(change).to_vec();
        Some(EditedFile { file: "ppo.toml".into(), differences })
    });
    press(&model, &mut view, "R");
    let shown = screen(&model, &mut view);
    for part in ["ppo.toml has changed since the launch: learn.gamma 1 -> 2", "1 more", "key typed here"] {
        assert!(
            shown.contains(part),
            "{part} in
{shown}"
        );
    }
}

/// Any checkpoint can be picked, and keys can be changed.
#[test]
fn a_checkpoint_is_picked_and_a_key_changed_with_the_plan_before_the_yes() {
    let (model, mut view) = scene();
    assert_eq!(press(&model, &mut view, "R"), []);
    let shown = screen(&model, &mut view);
    for row in [
        "latest: iteration 300",
        "best: iteration 200",
        "iter-100.ckpt: iteration 100",
        "afresh: new weights",
    ] {
        assert!(shown.contains(row), "{row} in\n{shown}");
    }
    let envs = model.plan.as_ref().unwrap().experiment.env.as_ref().unwrap().num_envs;
    press(&model, &mut view, &format!("↓↓↓env.num_e\t{}", envs * 2));
    let shown = screen(&model, &mut view);
    assert!(shown.contains(&format!("env.num_envs = {}  (was {envs})", envs * 2)), "{shown}");
    let share = format!("per rank: num_envs {envs} of {}", envs * 2);
    assert!(shown.contains(&share), "{shown}");
    assert_eq!(press(&model, &mut view, "\n"), []);
    let shown = screen(&model, &mut view);
    assert!(
        shown.contains("iter-100.ckpt") && shown.contains(&format!("{envs} becomes {}", envs * 2)),
        "{shown}"
    );
    assert_eq!(press(&model, &mut view.clone(), "\n"), [], "the default is no");
    let (from, num_envs) = order(press(&model, &mut view, "y"));
    assert_eq!((from.as_deref(), num_envs), (Some("/r/checkpoints/iter-100.ckpt"), Some(envs * 2)));
    assert!(view.overlays.is_empty());
}

#[test]
fn mistakes_are_shown_as_they_are_typed_and_order_nothing() {
    let (model, mut view) = scene();
    press(&model, &mut view, "Rlearn.gama=0.5");
    assert!(screen(&model, &mut view).contains("gamma"));
    assert_eq!(press(&model, &mut view, "\n"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))), "nothing is asked");
    let envs = model.plan.as_ref().unwrap().experiment.env.as_ref().unwrap().num_envs + 1;
    let (model, mut view) = scene();
    press(&model, &mut view, &format!("Renv.num_envs={envs}"));
    let shown = screen(&model, &mut view);
    assert!(shown.contains("environments") && shown.contains("env.num_envs"), "{shown}");
    assert_eq!(press(&model, &mut view, "\n"), []);
}

#[test]
fn the_palette_takes_a_checkpoint_and_keys_and_nothing_changed_is_a_plain_restart() {
    let (model, mut view) = scene();
    press(&model, &mut view, ":restart 200 learn.gamma=0.5\n");
    assert!(screen(&model, &mut view).contains("learn.gamma = 0.5"));
    let (from, _) = order(press(&model, &mut view, "\ny"));
    assert_eq!(from.as_deref(), Some("/r/checkpoints/iter-200.ckpt"));
    press(&model, &mut view, ":restart\n");
    assert_eq!(order(press(&model, &mut view, "\ny")), (Some("latest".into()), None));
    press(&model, &mut view, ":restart 999\n");
    assert!(screen(&model, &mut view).contains("no checkpoint `999`"));
    assert_eq!(press(&model, &mut view, "\n"), []);
}

/// A checkpoint holds the networks of its experiment: other ones begin afresh, or nothing is asked.
#[test]
fn networks_that_no_checkpoint_holds_begin_afresh_only() {
    let (model, mut view) = scene();
    press(&model, &mut view, "Rpolicy.hidden=[32]");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("policy.hidden is [64, 64] there, [32] here"), "{shown}");
    assert_eq!(press(&model, &mut view, "\n"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))), "nothing is asked");
    let mistakes = |view: &ViewState| match view.overlay() {
        Some(Overlay::Restart(draft)) => draft.outcome.mistakes.len(),
        _ => panic!("the dialog is gone"),
    };
    press(&model, &mut view, "↓↓↓↓");
    assert_eq!(mistakes(&view), 0, "afresh needs no checkpoint");
    press(&model, &mut view, "↑");
    assert_eq!(mistakes(&view), 1, "another one is looked at again");
    press(&model, &mut view, "↓\n");
    assert_eq!(order(press(&model, &mut view, "y")).0, None);
}

/// What ends of rows name a checkpoint.
fn origins_of(model: &Model) -> Vec<String> {
    rankdeck_tui::restart_draft::origins(model).into_iter().map(|origin| origin.name).collect()
}

#[test]
fn each_checkpoint_is_offered_once() {
    let (mut model, mut view) = scene();
    assert_eq!(origins_of(&model), ["latest", "best", "iter-300.ckpt", "iter-100.ckpt", "afresh"]);
    press(&model, &mut view, "R");
    assert!(screen(&model, &mut view).contains("the stop writes a newer one"), "it is not that of 300");
    model.run.state = RunState::Over;
    assert_eq!(origins_of(&model), ["latest", "best", "iter-100.ckpt", "afresh"]);
    model.checkpoints.pop_back();
    assert_eq!(origins_of(&model), ["latest, best", "iter-100.ckpt", "afresh"]);
    for wanted in ["latest", "best", "200", "/r/checkpoints/iter-200.ckpt"] {
        let draft = RestartDraft::new(&model, Some(wanted), "", None);
        assert_eq!((draft.selected, draft.outcome.mistakes.len()), (0, 0), "{wanted}");
    }
    let (_, mut view) = scene();
    press(&model, &mut view, "r");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("latest, best: ") && shown.matches("iter-200.ckpt").count() == 1, "{shown}");
}

/// A host less makes sizes that do not divide: the keys that help can be changed right there.
#[test]
fn other_hosts_with_sizes_that_do_not_divide_lead_to_the_keys() {
    let (mut model, mut view) = scene();
    for planned in &mut model.plan.as_mut().unwrap().hosts {
        planned.host = spare(&planned.host.name);
    }
    model.plan.as_mut().unwrap().experiment.env.as_mut().unwrap().num_envs = 16;
    view.steering.spares = vec![spare("node-c")];
    press(&model, &mut view, "HG ");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("multiple of 6") && shown.contains("R changes keys for"), "{shown}");
    assert_eq!(press(&model, &mut view.clone(), "\n"), []);
    press(&model, &mut view, "R");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("hosts   with node-c") && shown.contains("cannot be split over 6"), "{shown}");
    press(&model, &mut view, "env.num_envs=18");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("plan") && shown.contains("6 ranks on 3 hosts"), "{shown}");
    press(&model, &mut view, "\n");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("hosts: with node-c") && shown.contains("env.num_envs: 16 becomes 18"), "{shown}");
    let actions = press(&model, &mut view, "y");
    let [Action::Tell(Event::RestartRequested { from, exclude, add, experiment, .. })] = actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    assert_eq!((from.as_deref(), exclude.len(), add.len()), (Some("latest"), 0, 1));
    assert_eq!(experiment.as_ref().unwrap().env.as_ref().unwrap().num_envs, 18);
    assert!(view.overlays.is_empty());
}

#[test]
fn no_word_is_cut_at_80_columns() {
    let (model, mut view) = scene();
    let shown = |view: &mut ViewState| rows(&cells(&model, view, &Theme::dark(), (80, 24), NOW));
    press_at(&model, &mut view, "R", (80, 24));
    let empty = shown(&mut view);
    assert!(
        empty.contains("empty changes nothing") && empty.contains("the stop writes a newer one"),
        "{empty}"
    );
    press_at(&model, &mut view, "learn.", (80, 24));
    for shown in [empty, shown(&mut view)] {
        let cut: Vec<&str> = shown.lines().filter(|line| line.contains('…')).collect();
        assert!(cut.is_empty(), "{cut:?}\n{shown}");
    }
}
