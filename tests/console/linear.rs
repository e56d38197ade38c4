//! The console as lines and typed words.

use crate::pty::simulate;
use crate::scenes::*;
use rankdeck_core::model::Model;
use rankdeck_proto::message::StopMode;
use rankdeck_tui::Action;
use rankdeck_tui::linear::{Answer, Linear};

fn hear(linear: &mut Linear, model: &Model, typed: &str) -> Answer {
    linear.hear(model, typed, NOW)
}

fn said(model: &Model, typed: &str) -> String {
    let answer = hear(&mut Linear::default(), model, typed);
    assert!(answer.actions.is_empty(), "{typed}: {:?}", answer.actions);
    answer.lines.join("\n")
}

fn four() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

#[test]
fn words_tell_what_pages_show_and_the_point_comes_first() {
    let model = four();
    for (typed, wanted) in [
        ("status", "steps a second"),
        ("stat", "no trouble"),
        ("ranks", "rank 3 on node-b: running"),
        ("ranks node-b", "rank 2 on node-b"),
        ("rank 2", "rank 2 on node-b"),
        ("log 0 2", "iter 599 env_step"),
        ("evals", "evaluation 12 at step"),
        ("charts", "return: "),
        ("hosts", "host node-a: ready, CPU"),
        ("events", "generation 0"),
        ("help", "log N [LINES]: the last lines"),
        ("find reset twice", "rank 1: warning: environment 3 was reset twice"),
        ("checkpoints", "at step"),
        ("status", "weights of all ranks equal at iteration"),
    ] {
        let said = said(&model, typed);
        assert!(said.contains(wanted), "{typed}: {said}");
        assert!(!said.contains(['│', '╭', '▸', '█']), "{typed}: nothing is drawn: {said}");
    }
    assert!(!said(&model, "ranks node-b").contains("node-a"));
    assert_eq!(said(&model, "log 0 2").lines().count(), 2);
    let behind = behind();
    let status = said(&behind, "status");
    assert!(status.lines().any(|line| line.starts_with("behind: rank")), "{status}");
    assert!(said(&behind, "why").contains("evidence") || said(&behind, "why").len() > status.len());
    let why = said(&behind_closely(), "why");
    assert!(why.contains("log 3") && why.contains("restart") && !why.contains("rankdeck logs"), "{why}");
    let over = over();
    assert!(!said(&over, "status").contains("steps a second"), "{}", said(&over, "status"));
    assert!(said(&over, "charts").contains("steps/s: -"), "{}", said(&over, "charts"));
    assert!(said(&over, "ranks").contains("was in learn") && !said(&over, "hosts").contains("CPU"));
    assert!(said(&over, "end").contains("last checkpoint") && said(&model, "end").contains("not over"));
}

#[test]
fn a_rank_is_reached_and_gpus_and_the_policy_are_told() {
    use rankdeck_core::event::Event;
    use rankdeck_types::ids::Rank;
    let (mut model, mut linear) = (running(&[gpu("node-a", 2), gpu("node-b", 2)]), Linear::default());
    let asked = hear(&mut linear, &model, "stack 3");
    assert_eq!(asked.actions, [Action::Tell(Event::LookRequested { rank: Rank(3) })]);
    assert!(asked.lines[0].contains("rank N"), "{asked:?}");
    assert!(hear(&mut linear, &model, "continue 3").lines[0].contains("no signal has stopped"));
    model.ranks[3].sample.as_mut().unwrap().state = 'T';
    let asked = hear(&mut linear, &model, "continue 3");
    assert_eq!(asked.actions, [Action::Tell(Event::ContinueRequested { rank: Rank(3) })]);
    assert!(said(&model, "hosts").contains("GPU 1 of node-b: busy"), "{}", said(&model, "hosts"));
    assert!(said(&model, "waits").contains("no rank tells"));
    assert!(said(&model, "find nothing like it").contains("rankdeck logs --grep"));
    let asked = hear(&mut linear, &model, "play");
    assert_eq!(asked.actions, [Action::Tell(Event::Watched { on: true })]);
    let played = said(&at_play(), "play");
    assert!(played.contains("episode 3, step 51") && played.contains("0.820"), "{played}");
}

#[test]
fn wrong_words_are_answered_with_right_ones() {
    let model = four();
    for (typed, wanted) in [
        ("dance", "`help` lists them"),
        ("rank", "which rank?"),
        ("log 9", "there is no rank 9; there are 4 ranks"),
        ("rank x", "which rank?"),
        ("ranks nobody", "no rank is like that"),
    ] {
        assert!(said(&model, typed).contains(wanted), "{typed}: {}", said(&model, typed));
    }
    assert_eq!(hear(&mut Linear::default(), &model, "  "), Answer::default());
}

#[test]
fn ui_16_what_cannot_be_taken_back_is_asked_and_only_a_yes_does_it() {
    let (model, mut linear) = (four(), Linear::default());
    let asked = hear(&mut linear, &model, "stop");
    assert!(asked.actions.is_empty(), "{asked:?}");
    let text = asked.lines.join("\n");
    assert!(
        text.contains("4 ranks on 2 hosts") && text.contains("type one of: no, go back; yes, stop"),
        "{text}"
    );
    assert_eq!(hear(&mut linear, &model, "perhaps").actions, [], "it is asked again");
    assert_eq!(hear(&mut linear, &model, "yes").actions, [Action::stop(StopMode::Clean)]);
    assert!(said(&model, "yes").contains("is no word"), "nothing is asked any more");
    hear(&mut linear, &model, "kill");
    assert_eq!(
        hear(&mut linear, &model, "no"),
        Answer { lines: vec!["nothing is done".into()], actions: vec![] }
    );
    hear(&mut linear, &model, "kill");
    let other = hear(&mut linear, &model, "status");
    assert!(
        other.actions.is_empty() && other.lines[0] == "nothing is done" && other.lines.len() > 2,
        "{other:?}"
    );
    hear(&mut linear, &model, "quit");
    assert_eq!(hear(&mut linear, &model, "detach").actions, [Action::leave()]);
    linear.view.steering.read_only = true;
    let refused = hear(&mut linear, &model, "stop");
    assert!(refused.actions.is_empty() && refused.lines[0].contains("read-only"), "{refused:?}");
    let over = over();
    let refused = hear(&mut Linear::default(), &over, "stop");
    assert!(refused.lines[0].contains("the run is over"), "{refused:?}");
    assert_eq!(hear(&mut Linear::default(), &over, "quit").actions, [Action::leave()]);
}

#[test]
fn a_dumb_terminal_gets_lines_takes_words_and_no_cursor_is_moved() {
    let mut terminal = simulate(&["--linear", "--every", "1"], &[("TERM", "dumb")]);
    terminal.until_shows("steps/s");
    terminal.send("ranks\r");
    terminal.until_shows("rank 1 on sim-00: running");
    terminal.send("stop\r");
    terminal.until_shows("type one of:");
    terminal.send("yes\r");
    terminal.until_shows("run finished: stopped");
    terminal.send("end\r");
    terminal.until_shows("totals:");
    terminal.send("quit\r");
    assert_eq!(terminal.wait(), 130);
    assert!(!terminal.raw.lock().unwrap().contains(&b'\x1b'), "no escape sequence");
}
