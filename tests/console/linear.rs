//! Line mode: printed lines and typed words.

use crate::pty::simulate;
use crate::scenes::*;
use crate::support::texts;
use rankdeck_core::model::Model;
use rankdeck_proto::message::StopMode;
use rankdeck_tui::ScreenAction;
use rankdeck_tui::linear::{LineAnswer, Linear};

fn enter(linear: &mut Linear, model: &Model, typed: &str) -> LineAnswer {
    linear.handle_line(model, typed, NOW)
}

/// The lines that a word prints; it has no other effect.
fn printed(model: &Model, typed: &str) -> String {
    let answer = enter(&mut Linear::default(), model, typed);
    assert!(answer.actions.is_empty(), "{typed}: {:?}", answer.actions);
    answer.lines.join("\n")
}

fn four() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

#[test]
fn words_print_what_pages_show() {
    let model = four();
    let mut shown = Transcript::default();
    for (typed, fact) in [
        ("status", "weights"),
        ("stat", "weights"),
        ("ranks", "rank 3 on node-b"),
        ("ranks node-b", "rank 2 on node-b"),
        ("rank 2", "rank 2 on node-b"),
        ("log 0 2", "iter 599 env_step"),
        ("evals", "12"),
        ("charts", "return: "),
        ("hosts", "node-a"),
        ("events", "generation 0"),
        ("help", "log N [LINES]"),
        ("find reset twice", "rank 1: warning: environment 3 was reset twice"),
        ("checkpoints", "best"),
    ] {
        let text = printed(&model, typed);
        assert!(text.contains(fact), "{typed}: {text}");
        assert!(!text.contains(['│', '╭', '▸', '█']), "{typed}: nothing is drawn: {text}");
        shown.add(typed, &text);
    }
    assert!(!printed(&model, "ranks node-b").contains("node-a"));
    assert_eq!(printed(&model, "log 0 2").lines().count(), 2);
    shown.add("status of a stuck run", &printed(&behind(), "status"));
    shown.add("why", &printed(&behind(), "why"));
    let why = printed(&behind_closely(), "why");
    assert!(why.contains("log 3") && !why.contains("rankdeck logs"), "{why}");
    shown.add("why after an inspection", &why);
    for typed in ["status", "charts", "ranks", "hosts", "outcome"] {
        shown.add(&format!("{typed} of an ended run"), &printed(&over(), typed));
    }
    shown.add("outcome of a running one", &printed(&model, "outcome"));
    insta::assert_snapshot!(shown.0);
}

#[test]
fn words_reach_ranks_and_print_gpus_and_policy() {
    use rankdeck_core::event::Event;
    use rankdeck_types::ids::Rank;
    let (mut model, mut linear) = (running(&[gpu("node-a", 2), gpu("node-b", 2)]), Linear::default());
    let mut shown = Transcript::default();
    let reply = enter(&mut linear, &model, "stack 3");
    assert_eq!(reply.actions, [ScreenAction::Send(Event::InspectRequested { rank: Rank(3) })]);
    shown.add("stack 3", &reply.lines.join("\n"));
    let reply = enter(&mut linear, &model, "continue 3");
    assert_eq!(reply.actions, []);
    shown.add("continue 3 while it runs", &reply.lines.join("\n"));
    model.ranks[3].sample.as_mut().unwrap().state = 'T';
    let reply = enter(&mut linear, &model, "continue 3");
    assert_eq!(reply.actions, [ScreenAction::Send(Event::ContinueRequested { rank: Rank(3) })]);
    for typed in ["hosts", "waits", "find nothing like it"] {
        shown.add(typed, &printed(&model, typed));
    }
    let reply = enter(&mut linear, &model, "play");
    assert_eq!(reply.actions, [ScreenAction::Send(Event::Watched { on: true })]);
    let played = printed(&at_play(), "play");
    assert!(played.contains("0.820"), "{played}");
    shown.add("play", &played);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn unknown_word_prints_the_usage() {
    let model = four();
    let mut shown = Transcript::default();
    for typed in ["dance", "rank", "log 9", "rank x", "ranks nobody"] {
        shown.add(typed, &printed(&model, typed));
    }
    assert_eq!(enter(&mut Linear::default(), &model, "  "), LineAnswer::default());
    insta::assert_snapshot!(shown.0);
}

#[test]
fn ui_16_irreversible_word_needs_yes() {
    let (model, mut linear) = (four(), Linear::default());
    let reply = enter(&mut linear, &model, "stop");
    assert!(reply.actions.is_empty(), "{reply:?}");
    let mut shown = Transcript::default();
    shown.add("stop", &reply.lines.join("\n"));
    assert_eq!(enter(&mut linear, &model, "perhaps").actions, [], "it asks again");
    assert_eq!(enter(&mut linear, &model, "yes").actions, [ScreenAction::stop(StopMode::Clean)]);
    shown.add("yes without a question", &printed(&model, "yes"));
    enter(&mut linear, &model, "kill");
    let cancelled = enter(&mut linear, &model, "no");
    assert!(cancelled.actions.is_empty() && cancelled.lines.len() == 1, "{cancelled:?}");
    shown.add("no", &cancelled.lines[0]);
    enter(&mut linear, &model, "kill");
    let other = enter(&mut linear, &model, "status");
    assert!(
        other.actions.is_empty() && other.lines[0] == cancelled.lines[0] && other.lines.len() > 2,
        "{other:?}"
    );
    enter(&mut linear, &model, "quit");
    assert_eq!(enter(&mut linear, &model, "detach").actions, [ScreenAction::leave()]);
    linear.view.steering.read_only = true;
    let refused = enter(&mut linear, &model, "stop");
    assert!(refused.actions.is_empty(), "{refused:?}");
    shown.add("stop in a read-only console", &refused.lines.join("\n"));
    let over = over();
    let refused = enter(&mut Linear::default(), &over, "stop");
    assert!(refused.actions.is_empty(), "{refused:?}");
    shown.add("stop of an ended run", &refused.lines.join("\n"));
    assert_eq!(enter(&mut Linear::default(), &over, "quit").actions, [ScreenAction::leave()]);
    insta::assert_snapshot!(shown.0);
}

/// The words after it are those of the palette, and the question is the same.
#[test]
fn ui_16_restart_takes_checkpoint_and_keys() {
    use rankdeck_core::event::Event;
    let mut model = four();
    let experiment = "[run]\nname = \"x\"\ntotal_steps = 2000000\n[env]\nid = \"CartPole-v1\"\nnum_envs = 16\n\
                      [learn]\nalgorithm = \"ppo\"\n";
    model.plan.as_mut().unwrap().experiment = toml::from_str(experiment).unwrap();
    let path = "/R/Checkpoints/Iter-7.ckpt";
    model.checkpoints.push_back(rankdeck_core::model::CheckpointModel {
        path: path.into(),
        train_iter: 7,
        ..Default::default()
    });
    let asked = |typed: &str, reply: &str| {
        let mut linear = Linear::default();
        linear.view.steering.changer = Some(rankdeck::app::overrides::change);
        assert_eq!(enter(&mut linear, &model, typed).actions, [], "{typed}");
        match enter(&mut linear, &model, reply).actions.as_slice() {
            [ScreenAction::Send(Event::RestartRequested { from, experiment, .. })] => {
                (from.clone(), experiment.as_ref().map(|experiment| experiment.run.seed))
            }
            other => panic!("{typed}: {other:?}"),
        }
    };
    assert_eq!(asked("restart scratch", "scratch"), (None, None));
    assert_eq!(asked("restart latest", "latest"), (Some("latest".into()), None));
    assert_eq!(asked(&format!("restart {path}"), "picked"), (Some(path.into()), None));
    assert_eq!(asked("restart 7", "picked"), (Some(path.into()), None));
    assert_eq!(asked("restart run.seed=41", "yes"), (Some("latest".into()), Some(41)));
    for wrong in ["restart nowhere", "restart run.sed=1", "restart nowhere run.seed=1"] {
        let mut linear = Linear::default();
        linear.view.steering.changer = Some(rankdeck::app::overrides::change);
        assert_eq!(enter(&mut linear, &model, wrong).actions, []);
        assert_eq!(enter(&mut linear, &model, "yes").actions, [], "{wrong}: no question is open");
    }
}

/// The loop of the run reads no file: the question comes when they have been read.
#[test]
fn restart_in_line_mode_waits_for_files() {
    use rankdeck_core::event::Event;
    use rankdeck_tui::restart_draft::{ChangedExperiment, FileAnswer};
    let mut model = four();
    let experiment = "[run]\nname = \"x\"\ntotal_steps = 2000000\n[env]\nid = \"CartPole-v1\"\nnum_envs = 16\n\
                      [learn]\nalgorithm = \"ppo\"\n";
    model.plan.as_mut().unwrap().experiment = toml::from_str(experiment).unwrap();
    let waiting = || {
        let mut linear = Linear::default();
        linear.view.steering.changer = Some(|experiment, sets| {
            let changed = rankdeck::app::overrides::change(experiment, sets);
            changed.map(|changed| ChangedExperiment { unchecked: true, ..changed })
        });
        assert_eq!(enter(&mut linear, &model, "restart run.seed=41").actions, []);
        assert!(linear.is_waiting());
        linear
    };
    let answer = |mistakes: &[&str]| FileAnswer {
        line: "run.seed=41".into(),
        mistakes: mistakes.iter().map(|text| (*text).to_owned()).collect(),
        ..FileAnswer::default()
    };
    let mut linear = waiting();
    assert!(linear.answer_files(&model, answer(&[])).lines.len() > 1 && !linear.is_waiting());
    let asked = enter(&mut linear, &model, "yes").actions;
    assert!(matches!(&asked[..], [ScreenAction::Send(Event::RestartRequested { .. })]), "{asked:?}");
    let mut linear = waiting();
    assert_eq!(linear.answer_files(&model, answer(&["unused"])).lines, ["unused"]);
    assert_eq!(enter(&mut linear, &model, "yes").actions, [], "no question is open");
    let mut linear = waiting();
    enter(&mut linear, &model, "status");
    assert!(linear.answer_files(&model, answer(&[])).lines.is_empty(), "another word cancels it");
}

/// A console that attaches does not know yet whether the run runs: it asks before it stops it.
#[test]
fn ui_16_stop_asks_while_links_open() {
    use rankdeck_core::model::RunState;
    let mut model = Model::default();
    model.run.state = RunState::Connecting;
    for (typed, mode) in [("stop", StopMode::Clean), ("kill", StopMode::Kill)] {
        let mut linear = Linear::default();
        assert_eq!(
            enter(&mut linear, &model, typed).actions,
            [ScreenAction::stop(mode)],
            "nothing is launched"
        );
        linear.view.steering.attached = true;
        assert_eq!(enter(&mut linear, &model, typed).actions, [], "{typed}");
        assert_eq!(enter(&mut linear, &model, "yes").actions, [ScreenAction::stop(mode)]);
    }
}

#[test]
fn dumb_terminal_gets_lines_without_escape_sequences() {
    let mut terminal = simulate(&["--linear", "--every", "1"], &[("TERM", "dumb")]);
    terminal.until_shows("steps/s");
    terminal.send("ranks\r");
    terminal.until_shows("rank 1 on sim-00: ");
    terminal.send("stop\r");
    terminal.until_shows(texts::CHOICES);
    terminal.send("yes\r");
    terminal.until_shows(texts::STOPPED);
    terminal.send("end\r");
    terminal.until_shows(texts::TOTALS);
    terminal.send("quit\r");
    assert_eq!(terminal.wait(), 130);
    assert!(!terminal.raw.lock().unwrap().contains(&b'\x1b'), "no escape sequence");
}
