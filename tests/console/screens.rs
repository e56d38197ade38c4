//! Snapshots of screens at the supported sizes. The scenes are in `tests/console/scenes`.

use crate::scenes::*;
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::show::EnvImage;
use rankdeck_tui::state::{LivePolicy, Overlay};
use rankdeck_tui::{Glyphs, ScreenAction, Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;

const SIZES: [(u16, u16); 3] = [(80, 24), (100, 30), (160, 50)];

fn buffer(model: &Model, view: &mut ViewState, theme: &Theme, size: (u16, u16)) -> Buffer {
    cells(model, view, theme, size, NOW)
}

fn text(buffer: &Buffer) -> String {
    rows(buffer).lines().map(|row| format!("{}\n", row.trim_end())).collect()
}

fn screen(model: &Model, view: &mut ViewState, size: (u16, u16)) -> String {
    text(&buffer(model, view, &Theme::dark(), size))
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    press_at(model, view, keys, (80, 24))
}

/// The scene after some keys, at every size.
fn shots(name: &str, model: &Model, keys: &str) {
    for size in SIZES {
        let mut view = ViewState::new();
        press(model, &mut view, keys);
        view.toasts.clear();
        insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), screen(model, &mut view, size));
    }
}

/// The scene after some keys, at 80x24.
fn shot(name: &str, model: &Model, keys: &str) {
    let mut view = ViewState::new();
    press(model, &mut view, keys);
    view.toasts.clear();
    insta::assert_snapshot!(name.to_string(), screen(model, &mut view, (80, 24)));
}

fn two() -> Model {
    running(&[cpu("node-a", 1), cpu("node-b", 1)])
}

fn many() -> Model {
    let names = ["node-a", "node-b", "node-c", "node-d", "node-e", "node-f", "node-g", "node-h"];
    running(&names.map(|name| gpu(name, 8)))
}

#[test]
fn connecting_shows_every_link_state() {
    shots("connecting", &on_the_way(), "");
}

#[test]
fn unknown_host_key_opens_a_prompt() {
    shots("host_key", &host_key(), "");
}

#[test]
fn evidence_shows_an_inspected_rank() {
    shots("evidence_card", &behind_closely(), "d");
}

#[test]
fn running_on_two_cpu_ranks() {
    shots("running_2_cpu", &two(), "");
}

#[test]
fn running_on_two_gpus() {
    shots("running_2_gpu", &running(&[gpu("node-a", 2)]), "");
}

#[test]
fn running_on_64_gpus() {
    shots("running_64_gpu", &many(), "");
}

#[test]
fn running_on_64_cpu_ranks() {
    shots("running_64_cpu", &running(&[cpu("big", 64)]), "");
}

#[test]
fn stuck_rank_is_named() {
    shots("behind", &behind(), "");
    shots("behind_evidence", &behind(), "d");
}

#[test]
fn dead_rank_is_named() {
    shots("dead", &dead(), "");
}

#[test]
fn finished_run_shows_its_outcome() {
    shots("over", &over(), "");
    shots("over_survivors", &over_with_survivors(), "");
}

#[test]
fn help_is_made_from_the_table() {
    shots("help", &two(), "?");
    shot("help_filtered", &two(), "?stop");
}

#[test]
fn logs_merge_and_filter() {
    shots("logs", &two(), "4");
    shots("logs_filtered", &two(), "4/593\n");
    shot("logs_typing", &two(), "4/!iter");
    shot("logs_of_a_rank", &two(), "jl");
}

#[test]
fn evaluations_are_a_table() {
    shots("evals", &two(), "3");
    shot("evals_stop", &over(), "3");
}

#[test]
fn hosts_show_links_and_gpus() {
    let mut model = dead();
    let sample = model.hosts[1].sample.as_mut().unwrap();
    sample.gpus[1].throttle = vec!["power".into()];
    sample.gpus[0].temperature_c = Some(88);
    shots("hosts", &model, "5");
    shot("hosts_connecting", &on_the_way(), "5");
}

#[test]
fn unreachable_host_is_shown_with_its_age() {
    shot("hosts_unreachable", &unreachable(), "5");
    let mut view = ViewState::new();
    press(&unreachable(), &mut view, "5");
    let shown = screen(&unreachable(), &mut view, (80, 24));
    assert!(shown.contains("9m 58s"), "{shown}");
}

#[test]
fn hosts_of_the_next_generation_are_picked() {
    shots("pick_hosts", &pickable(), "H");
    shot("pick_hosts_without", &pickable(), "Hj ");
    let mut view = ViewState::new();
    view.steering.spares = vec![spare("node-c")];
    press(&pickable(), &mut view, "Hjj ");
    view.toasts.clear();
    insta::assert_snapshot!("pick_hosts_with_another", screen(&pickable(), &mut view, (80, 24)));
}

#[test]
fn events_are_listed() {
    shots("events", &two(), "6");
}

#[test]
fn charts_have_their_page() {
    shots("charts", &two(), "2");
    shot("charts_closer", &two(), "2++h");
}

#[test]
fn inspector_shows_a_rank() {
    shots("inspect", &behind(), "jjj\n");
    shot("inspect_gpu", &dead(), "j\n");
}

#[test]
fn questions_name_targets_and_effect() {
    shot("ask_quit", &two(), "q");
    shot("ask_stop", &two(), "x");
    shot("ask_kill", &two(), "X");
    shot("ask_restart", &two(), "r");
}

#[test]
fn zoom_filter_and_marks() {
    shot("ranks_filtered", &many(), "/host:node-c\n");
    shot("ranks_zoom_sorted", &many(), "zoo  ");
}

#[test]
fn frozen_view_still_shows_verdicts() {
    let calm = running(&[cpu("node-a", 2), cpu("node-b", 2)]);
    let mut view = ViewState::new();
    press(&calm, &mut view, "f");
    let mut alarm = behind();
    alarm.revision += 40;
    insta::assert_snapshot!("frozen", screen(&alarm, &mut view, (80, 24)));
}

#[test]
fn small_screens() {
    for (w, h) in [(60, 16), (72, 20)] {
        let mut view = ViewState::new();
        insta::assert_snapshot!(format!("small_{w}x{h}"), screen(&behind(), &mut view, (w, h)));
    }
    let mut view = ViewState::new();
    insta::assert_snapshot!("too_small", screen(&behind(), &mut view, (50, 12)));
    press(&behind(), &mut view, "x");
    insta::assert_snapshot!("too_small_stop", screen(&behind(), &mut view, (50, 12)));
}

#[test]
fn other_glyphs() {
    let mut view = ViewState::new();
    let ascii = Theme::detect(true, false, false);
    insta::assert_snapshot!("ascii", text(&buffer(&behind(), &mut view, &ascii, (80, 24))));
    assert!(text(&buffer(&behind(), &mut view, &ascii, (80, 24))).is_ascii());
    let block = Theme::dark().with_glyphs(Glyphs::Block);
    insta::assert_snapshot!("block", text(&buffer(&two(), &mut view, &block, (80, 24))));
}

/// Styles of the rows given, as runs of `[style]text`.
fn styled(buffer: &Buffer, rows: impl Iterator<Item = u16>) -> String {
    let mut out = String::new();
    for y in rows {
        let mut last = None;
        for x in 0..buffer.area.width {
            let cell = &buffer[(x, y)];
            let style = (cell.fg, cell.modifier);
            if last != Some(style) {
                out.push_str(&format!("[{:?} {:?}]", cell.fg, cell.modifier));
                last = Some(style);
            }
            out.push_str(cell.symbol());
        }
        out = out.trim_end().to_string();
        out.push('\n');
    }
    out
}

#[test]
fn styles_carry_the_meaning_too() {
    for theme in [Theme::dark(), Theme::mono(), Theme::cvd(), Theme::light()] {
        let mut view = ViewState::new();
        let drawn = buffer(&behind(), &mut view, &theme, (80, 24));
        insta::assert_snapshot!(format!("styled_behind_{}", theme.name), styled(&drawn, 0..13));
    }
}

#[test]
fn policy_view_shows_an_evaluation() {
    shots("policy", &at_play(), "v");
    shot("policy_unseen", &two(), "v");
    let mut old = at_play();
    old.policy.at = Timestamp(NOW.0 - 12_000);
    shot("policy_old", &old, "v");
}

#[test]
fn policy_view_draws_its_observation() {
    let mut model = at_play();
    let frame = model.policy.frame.as_mut().unwrap();
    let pixels: Vec<u8> = (0..84 * 84).map(|i| if (i % 84) / 12 % 2 == 0 { 20 } else { 230 }).collect();
    frame.policy.env_id = "ALE/Pong-v5".into();
    frame.step.seen = Vec::new();
    frame.step.picture = Some(EnvImage::of(84, 84, &pixels));
    let mut view = ViewState::new();
    press(&model, &mut view, "v");
    let mono = text(&buffer(&model, &mut view, &Theme::mono(), (80, 24)));
    insta::assert_snapshot!("policy_picture_mono", mono);
    let dark = buffer(&model, &mut view, &Theme::dark(), (80, 24));
    assert!(text(&dark).contains('▀'), "{}", text(&dark));
}

#[test]
fn policy_view_is_live_only() {
    let mut over = two();
    over.run.state = RunState::Over;
    let mut view = ViewState::new();
    press(&over, &mut view, "v");
    assert!(view.overlays.is_empty() && toasts(&view).contains("rankdeck play"), "{:?}", view.toasts);
    let mut view = ViewState::new();
    let model = at_play();
    press(&model, &mut view, "v");
    assert_eq!(view.overlays[..], [Overlay::Policy(LivePolicy)]);
    let copied = press(&model, &mut view, "y");
    assert!(matches!(&copied[..], [ScreenAction::Copy(text)] if text.contains(" 4 of 20")), "{copied:?}");
    press(&model, &mut view, "v");
    assert!(view.overlays.is_empty(), "the same key closes it");
}
