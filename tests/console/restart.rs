//! A restart with changed keys: checkpoint, keys, the resulting plan, and the confirmation.

use crate::scenes::*;
use rankdeck::app::overrides::change;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_core::origin::{ChangedFiles, CodeStanding, PlannedCode};
use rankdeck_tui::restart_draft::{ChangedExperiment, EditedFile, FileAnswer, OtherHosts, RestartDraft};
use rankdeck_tui::state::Overlay;
use rankdeck_tui::{ScreenAction, Theme, ViewState};
use rankdeck_types::code::Code;
use rankdeck_types::promise::ProgramFacts;

const SIZE: (u16, u16) = (100, 36);

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    press_at(model, view, keys, SIZE)
}

fn screen(model: &Model, view: &mut ViewState) -> String {
    rows(&cells(model, view, &Theme::dark(), SIZE, NOW))
}

fn trimmed(shown: &str) -> String {
    shown.lines().map(|row| format!("{}\n", row.trim_end())).collect()
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
        model.checkpoints.push_back(CheckpointModel {
            path,
            env_step,
            train_iter: iter,
            reason,
            ..CheckpointModel::default()
        });
    }
    let mut view = ViewState::new();
    view.steering.changer = Some(change);
    (model, view)
}

fn order(actions: Vec<ScreenAction>) -> (Option<String>, Option<u32>) {
    match actions.as_slice() {
        [ScreenAction::Send(Event::RestartRequested { from, experiment, exclude, add, .. })] => {
            assert!(exclude.is_empty() && add.is_empty());
            (from.clone(), experiment.as_ref().map(|experiment| experiment.env.as_ref().unwrap().num_envs))
        }
        other => panic!("{other:?}"),
    }
}

/// A user who has edited the file since the launch may expect that a restart reads it.
#[test]
fn edited_experiment_file_is_shown_before_a_restart() {
    let (model, mut view) = scene();
    press(&model, &mut view, "R");
    let question = rankdeck_tui::file_question(&model, &view).unwrap();
    assert_eq!((question.line.as_str(), question.changed), ("", None));
    let change = |key: &str| (key.to_owned(), "1".to_owned(), "2".to_owned());
    let differences = ["learn.gamma", "run.seed", "env.num_envs", "run.total_steps"].map(change).to_vec();
    let edited = Some(EditedFile { file: "ppo.toml".into(), differences });
    let answer = FileAnswer { edited, ..FileAnswer::default() };
    rankdeck_tui::answer_files(&model, &mut view, answer, NOW);
    assert!(rankdeck_tui::file_question(&model, &view).is_none(), "asked once");
    let shown = screen(&model, &mut view);
    for part in ["ppo.toml", "learn.gamma 1 -> 2"] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    insta::assert_snapshot!(trimmed(&shown));
}

/// Files decide about the seed; another key needs none.
fn change_unchecked(
    experiment: &rankdeck_types::experiment::Experiment,
    sets: &[String],
) -> Result<ChangedExperiment, Vec<String>> {
    let unchecked = sets.iter().any(|set| set.starts_with("run.seed="));
    change(experiment, sets).map(|changed| ChangedExperiment { unchecked, ..changed })
}

#[test]
fn restart_waits_for_files_that_decide_about_a_key() {
    let (model, mut view) = scene();
    view.steering.changer = Some(change_unchecked);
    press(&model, &mut view, "Rrun.seed=41");
    assert_eq!(press(&model, &mut view, "\n"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))), "no question yet");
    // The answer to an earlier line decides nothing.
    let answer = |line: &str, mistakes: &[&str]| FileAnswer {
        line: line.into(),
        mistakes: mistakes.iter().map(|text| (*text).to_owned()).collect(),
        ..FileAnswer::default()
    };
    rankdeck_tui::answer_files(&model, &mut view, answer("run.seed=4", &["unused"]), NOW);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))));
    let question = rankdeck_tui::file_question(&model, &view).unwrap();
    assert_eq!(
        (question.line.as_str(), question.changed.map(|changed| changed.run.seed)),
        ("run.seed=41", Some(41))
    );
    let mut refused = view.clone();
    rankdeck_tui::answer_files(&model, &mut refused, answer("run.seed=41", &["unused"]), NOW);
    assert!(matches!(refused.overlay(), Some(Overlay::Restart(_))));
    assert!(screen(&model, &mut refused).contains("unused"));
    assert_eq!(press(&model, &mut refused, "\n"), [], "a mistake orders nothing");
    assert!(matches!(refused.overlay(), Some(Overlay::Restart(_))));
    rankdeck_tui::answer_files(&model, &mut view, answer("run.seed=41", &[]), NOW);
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))), "the question follows");
    assert!(rankdeck_tui::file_question(&model, &view).is_none());
}

/// A run of a script whose code is a pack, and what its directory contains now.
fn scene_of_script() -> (Model, ViewState, FileAnswer) {
    let (mut model, view) = scene();
    let experiment =
        "[run]\nname = \"x\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \"sha256:ab\"\n";
    model.plan.as_mut().unwrap().experiment = toml::from_str(experiment).unwrap();
    let changed = Some(ChangedFiles::new(vec!["train.py".to_owned(), "model.py".to_owned()]));
    let code = Some(CodeStanding { in_place: false, changed });
    (model, view, FileAnswer { code, ..FileAnswer::default() })
}

#[test]
fn origin_4_new_code_is_uploaded_before_the_question() {
    let (model, mut view, answer) = scene_of_script();
    press(&model, &mut view, "R");
    let question = rankdeck_tui::file_question(&model, &view).unwrap();
    assert_eq!((question.code, question.upload), (Some(PlannedCode::Pack("ab".into())), None));
    rankdeck_tui::answer_files(&model, &mut view, answer.clone(), NOW);
    let shown = screen(&model, &mut view);
    assert!(shown.contains("train.py, model.py"), "{shown}");
    press(&model, &mut view, "code=new");
    assert_eq!(press(&model, &mut view, "\n"), []);
    let upload = rankdeck_tui::file_question(&model, &view).and_then(|question| question.upload);
    assert_eq!(upload, Some(OtherHosts::default()), "once it is confirmed");
    let line = "code=new".to_owned();
    let mut refused = view.clone();
    let mistakes = vec!["node-b: unreachable".to_owned()];
    let failed = FileAnswer { line: line.clone(), mistakes, uploaded: Some(None), ..answer.clone() };
    rankdeck_tui::answer_files(&model, &mut refused, failed, NOW);
    assert!(matches!(refused.overlay(), Some(Overlay::Restart(_))), "nothing is asked");
    assert_eq!(press(&model, &mut refused, "\n"), []);
    assert!(rankdeck_tui::file_question(&model, &refused).is_some_and(|question| question.upload.is_some()));
    let done = FileAnswer { line, uploaded: Some(Some("cd".into())), ..answer };
    rankdeck_tui::answer_files(&model, &mut view, done, NOW);
    let Some(Overlay::Confirm(question)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    assert!(question.text.iter().any(|line| line.contains("train.py, model.py")), "{question:?}");
    match press(&model, &mut view, "y").as_slice() {
        [ScreenAction::Send(Event::RestartRequested { experiment: Some(experiment), .. })] => {
            assert_eq!(experiment.launch.code, Some(Code::Pack("cd".into())));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn origin_4_question_of_a_key_names_changed_files() {
    let (model, mut view, answer) = scene_of_script();
    press(&model, &mut view, "r");
    let question = rankdeck_tui::file_question(&model, &view).unwrap();
    assert_eq!((question.code.is_some(), question.upload), (true, None));
    rankdeck_tui::answer_files(&model, &mut view, answer, NOW);
    assert!(rankdeck_tui::file_question(&model, &view).is_none(), "asked once");
    let Some(Overlay::Confirm(question)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    assert!(question.text.last().is_some_and(|line| line.contains("train.py, model.py")), "{question:?}");
    match press(&model, &mut view, "s").as_slice() {
        [ScreenAction::Send(Event::RestartRequested { experiment: None, .. })] => {}
        other => panic!("the code stays: {other:?}"),
    }
}

/// `restart --from` rejects the same.
#[test]
fn origin_5_screen_rejects_a_checkpoint_that_is_not_read() {
    let (mut model, view, answer) = scene_of_script();
    let from = |model: &Model, keys: &str| match press(model, &mut view.clone(), keys).as_slice() {
        [ScreenAction::Send(Event::RestartRequested { from, .. })] => from.clone(),
        other => other.first().map(|action| format!("{action:?}")),
    };
    let best = from(&model, "rb");
    assert_eq!(best.as_deref(), Some("/r/checkpoints/iter-200.ckpt"), "nothing is recorded");
    model.plan.as_mut().unwrap().program = Some(ProgramFacts::default());
    assert_eq!(from(&model, "rb"), None);
    assert_eq!(from(&model, "rl").as_deref(), Some("latest"));
    let asks = |open: &str, keys: &str| {
        let mut view = view.clone();
        press(&model, &mut view, open);
        rankdeck_tui::answer_files(&model, &mut view, answer.clone(), NOW);
        press(&model, &mut view, keys);
        matches!(view.overlay(), Some(Overlay::Confirm(_)))
    };
    assert!(asks("R", "\n") && !asks("R", "↓\n"), "the form");
    assert!(asks(":", "restart latest\n") && !asks(":", "restart best\n"), "the palette");
}

#[test]
fn picked_checkpoint_and_changed_key_show_their_plan() {
    let (model, mut view) = scene();
    assert_eq!(press(&model, &mut view, "R"), []);
    let shown = screen(&model, &mut view);
    for row in ["latest: ", "best: ", "iter-100.ckpt: ", "scratch: "] {
        assert!(shown.contains(row), "{row} in\n{shown}");
    }
    let mut transcript = Transcript::default();
    transcript.add("R", &shown);
    let envs = model.plan.as_ref().unwrap().experiment.env.as_ref().unwrap().num_envs;
    press(&model, &mut view, &format!("↓↓↓env.num_e\t{}", envs * 2));
    let shown = screen(&model, &mut view);
    assert!(shown.contains(&format!("env.num_envs = {}", envs * 2)), "{shown}");
    assert!(shown.contains(&format!("num_envs {envs} of {}", envs * 2)), "{shown}");
    transcript.add("env.num_envs", &shown);
    assert_eq!(press(&model, &mut view, "\n"), []);
    let shown = screen(&model, &mut view);
    assert!(shown.contains("iter-100.ckpt") && shown.contains(&format!("{envs} -> {}", envs * 2)), "{shown}");
    assert_eq!(press(&model, &mut view.clone(), "\n"), [], "the default answer is 'no'");
    transcript.add("enter", &shown);
    let (from, num_envs) = order(press(&model, &mut view, "y"));
    assert_eq!((from.as_deref(), num_envs), (Some("/r/checkpoints/iter-100.ckpt"), Some(envs * 2)));
    assert!(view.overlays.is_empty());
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn typed_mistakes_are_shown_and_order_nothing() {
    let (model, mut view) = scene();
    press(&model, &mut view, "Rlearn.gama=0.5");
    assert!(screen(&model, &mut view).contains("gamma"));
    assert_eq!(press(&model, &mut view, "\n"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))), "no question");
    let envs = model.plan.as_ref().unwrap().experiment.env.as_ref().unwrap().num_envs + 1;
    let (model, mut view) = scene();
    press(&model, &mut view, &format!("Renv.num_envs={envs}"));
    let shown = screen(&model, &mut view);
    assert!(shown.contains("env.num_envs"), "{shown}");
    assert_eq!(press(&model, &mut view, "\n"), []);
}

#[test]
fn restart_command_takes_a_checkpoint_and_keys() {
    let (model, mut view) = scene();
    press(&model, &mut view, ":restart 200 learn.gamma=0.5\n");
    assert!(screen(&model, &mut view).contains("learn.gamma = 0.5"));
    let (from, _) = order(press(&model, &mut view, "\ny"));
    assert_eq!(from.as_deref(), Some("/r/checkpoints/iter-200.ckpt"));
    press(&model, &mut view, ":restart 999\n");
    assert!(view.overlays.is_empty() && !view.toasts.is_empty(), "{:?}", view.overlays);
    press(&model, &mut view, ":restart 999 learn.gamma=0.5\n");
    assert_eq!(press(&model, &mut view, "\n"), [], "checkpoint not found");
}

/// The command opens the question of `r` with the choice selected, and sends nothing by itself.
#[test]
fn restart_command_asks_as_its_key_does() {
    let (model, view) = scene();
    let asked = |line: &str| {
        let mut view = view.clone();
        assert_eq!(press(&model, &mut view, &format!(":{line}\n")), [], "{line}");
        let Some(Overlay::Confirm(question)) = view.overlay().cloned() else { panic!("{line}: {view:?}") };
        (question, view)
    };
    let mut by_key = view.clone();
    press(&model, &mut by_key, "r");
    let (plain, _) = asked("restart");
    assert_eq!(by_key.overlay(), Some(&Overlay::Confirm(plain.clone())));
    assert_eq!(plain.selected, 0);
    let best = "/r/checkpoints/iter-200.ckpt";
    for (word, key, from) in [
        ("latest", 'l', Some("latest")),
        ("scratch", 's', None),
        ("afresh", 's', None),
        ("best", 'b', Some(best)),
        ("100", 'p', Some("/r/checkpoints/iter-100.ckpt")),
        ("/elsewhere/x.ckpt", 'p', Some("/elsewhere/x.ckpt")),
    ] {
        let (question, mut view) = asked(&format!("restart {word}"));
        assert_eq!(question.choices[question.selected].key, key, "{word}");
        assert_eq!(order(press(&model, &mut view, "\n")), (from.map(str::to_owned), None), "{word}");
    }
}

/// A running trainer without a checkpoint saves one when it stops.
#[test]
fn running_trainer_restarts_from_its_stops_checkpoint() {
    let (mut model, mut view) = scene();
    model.checkpoints.clear();
    assert_eq!(origins_of(&model), ["latest", "scratch"]);
    press(&model, &mut view, "r");
    assert_eq!(order(press(&model, &mut view, "l")), (Some("latest".into()), None));
    model.run.state = RunState::Over;
    assert_eq!(origins_of(&model), ["scratch"]);
}

/// A checkpoint fits only the networks of its experiment: others start from scratch, or there is no question.
#[test]
fn changed_networks_start_from_scratch_only() {
    let (model, mut view) = scene();
    press(&model, &mut view, "Rpolicy.hidden=[32]");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("[64, 64]"), "{shown}");
    assert_eq!(press(&model, &mut view, "\n"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Restart(_))), "no question");
    let mistakes = |view: &ViewState| match view.overlay() {
        Some(Overlay::Restart(draft)) => draft.0.outcome.mistakes.len(),
        _ => panic!("the dialog is gone"),
    };
    press(&model, &mut view, "↓↓↓↓");
    assert_eq!(mistakes(&view), 0, "scratch needs no checkpoint");
    press(&model, &mut view, "↑");
    assert_eq!(mistakes(&view), 1, "another checkpoint is checked again");
    press(&model, &mut view, "↓\n");
    assert_eq!(order(press(&model, &mut view, "y")).0, None);
}

/// Names of the checkpoints in the form.
fn origins_of(model: &Model) -> Vec<String> {
    rankdeck_tui::restart_draft::origins(model).into_iter().map(|origin| origin.name).collect()
}

#[test]
fn each_checkpoint_is_offered_once() {
    let (mut model, mut view) = scene();
    assert_eq!(origins_of(&model), ["latest", "best", "iter-300.ckpt", "iter-100.ckpt", "scratch"]);
    press(&model, &mut view, "R");
    // The stop saves a newer one than that of 300.
    insta::assert_snapshot!(trimmed(&screen(&model, &mut view)));
    model.run.state = RunState::Over;
    assert_eq!(origins_of(&model), ["latest", "best", "iter-100.ckpt", "scratch"]);
    model.checkpoints.pop_back();
    assert_eq!(origins_of(&model), ["latest, best", "iter-100.ckpt", "scratch"]);
    for name in ["latest", "best", "200", "/r/checkpoints/iter-200.ckpt"] {
        let draft = RestartDraft::new(&model, Some(name), "", None);
        assert_eq!((draft.selected, draft.outcome.mistakes.len()), (0, 0), "{name}");
    }
    let (_, mut view) = scene();
    press(&model, &mut view, "r");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("latest, best: ") && !shown.contains("│ best: "), "{shown}");
}

/// Another host can make sizes indivisible: the keys that help can be changed right there.
#[test]
fn indivisible_sizes_lead_from_hosts_to_config_keys() {
    let (mut model, mut view) = scene();
    let mut transcript = Transcript::default();
    for planned in &mut model.plan.as_mut().unwrap().hosts {
        planned.host = spare(&planned.host.name);
    }
    model.plan.as_mut().unwrap().experiment.env.as_mut().unwrap().num_envs = 16;
    view.steering.spares = vec![spare("node-c")];
    press(&model, &mut view, "HG ");
    let shown = screen(&model, &mut view);
    assert!(shown.contains(" 6") && shown.contains("R "), "{shown}");
    transcript.add("H", &shown);
    assert_eq!(press(&model, &mut view.clone(), "\n"), []);
    press(&model, &mut view, "R");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("node-c"), "{shown}");
    transcript.add("R", &shown);
    press(&model, &mut view, "env.num_envs=18");
    let shown = screen(&model, &mut view);
    transcript.add("env.num_envs=18", &shown);
    press(&model, &mut view, "\n");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("node-c") && shown.contains("16 -> 18"), "{shown}");
    transcript.add("enter", &shown);
    insta::assert_snapshot!(transcript.0);
    let actions = press(&model, &mut view, "y");
    let [ScreenAction::Send(Event::RestartRequested { from, exclude, add, experiment, .. })] =
        actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    assert_eq!((from.as_deref(), exclude.len(), add.len()), (Some("latest"), 0, 1));
    assert_eq!(experiment.as_ref().unwrap().env.as_ref().unwrap().num_envs, 18);
    assert!(view.overlays.is_empty());
}

#[test]
fn restart_form_keeps_the_iteration_next_to_long_steps() {
    let (mut model, _) = scene();
    let latest = model.checkpoints.back_mut().unwrap();
    (latest.train_iter, latest.env_step) = (1_234_567_890, 123_456_789_000);
    for size in [SIZE, (200, 60)] {
        let mut view = ViewState::new();
        view.steering.changer = Some(change);
        press_at(&model, &mut view, "R", size);
        let shown = rows(&cells(&model, &mut view, &Theme::dark(), size, NOW));
        let numbers = ["iteration 1234567890", "step 123,456,789,000"];
        assert!(numbers.iter().all(|number| shown.contains(number)), "{size:?}\n{shown}");
    }
}

#[test]
fn restart_form_fits_80_columns() {
    let (model, mut view) = scene();
    let shown = |view: &mut ViewState| rows(&cells(&model, view, &Theme::dark(), (80, 24), NOW));
    press_at(&model, &mut view, "R", (80, 24));
    let empty = shown(&mut view);
    insta::assert_snapshot!(trimmed(&empty));
    press_at(&model, &mut view, "learn.", (80, 24));
    for shown in [empty, shown(&mut view)] {
        let cut: Vec<&str> = shown.lines().filter(|line| line.contains('…')).collect();
        assert!(cut.is_empty(), "{cut:?}\n{shown}");
    }
}
