use super::*;
use crate::theme::{Glyphs, Theme};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_proto::show::{EndKind, Picture, ScoreKind, Thought};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn policy(env_id: &str) -> ShowLine {
    ShowLine::Policy(ShownPolicy {
        algorithm: "ppo".into(),
        env_id: env_id.into(),
        train_iter: 120,
        ..ShownPolicy::default()
    })
}

fn step(episode: u32, step: u64, seen: &[f32]) -> ShowLine {
    ShowLine::Step(ShownStep {
        episode,
        step,
        seen: seen.to_vec(),
        action: vec![1.0],
        thought: Some(Thought {
            scores: vec![0.125, 0.875],
            value: Some(42.5),
            kind: ScoreKind::Probability,
        }),
        reward: 1.0,
        episode_return: step as f64 + 1.0,
        ..ShownStep::default()
    })
}

fn end(episode: u32, steps: u64) -> ShowLine {
    ShowLine::End(ShownEnd {
        episode,
        steps,
        episode_return: steps as f64,
        end: EndKind::Terminated,
        seen: vec![2.5, 0.0, 0.3, 0.0],
    })
}

/// Three episodes of CartPole, of five steps each.
fn cart_pole() -> Play {
    let mut play = Play::new("cartpole:best", Some(3));
    play.push(policy("CartPole-v1"));
    for episode in 0..3 {
        (0..5).for_each(|i| play.push(step(episode, i, &[0.1, 0.0, 0.02, 0.0])));
        play.push(end(episode, 5));
    }
    play.over = Some(Ok(()));
    play
}

fn drawn(play: &Play, theme: &Theme, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view(play, theme, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width.max(1)));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
}

fn press(play: &mut Play, key: char) -> Option<PlayAction> {
    on_key(play, KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE), 0)
}

#[test]
fn time_passes_by_steps_and_the_end_of_an_episode_stays() {
    let mut play = cart_pole();
    let mut now = 0;
    let mut frames = 0;
    while let Some(due) = play.due_ms() {
        assert!(!play.tick(due - 1));
        assert!(play.tick(due));
        frames += 1;
        if matches!(play.moments.get(play.at - 1), Some(Moment::End(_))) {
            assert!(due - now >= 900, "an end stays");
        }
        now = due;
    }
    assert_eq!((frames, play.returns.len()), (17, 3));
    assert!(play.is_done());
}

#[test]
fn steps_back_take_returns_back_and_episodes_are_found_again() {
    let mut play = cart_pole();
    press(&mut play, 'n');
    press(&mut play, 'n');
    assert_eq!((play.moment().unwrap().episode(), play.returns.len()), (2, 2));
    press(&mut play, ',');
    assert!(play.paused && matches!(play.moment(), Some(Moment::End(_))));
    press(&mut play, ',');
    assert_eq!(play.returns.len(), 1);
    press(&mut play, '<');
    assert_eq!(play.moment().unwrap().episode(), 1);
    press(&mut play, '<');
    press(&mut play, '<');
    press(&mut play, '<');
    assert_eq!((play.at, play.returns.len()), (0, 0));
    assert_eq!(press(&mut play, 'q'), Some(PlayAction::Quit));
}

#[test]
fn an_episode_that_is_not_there_yet_is_waited_for() {
    let mut play = Play::new("x", None);
    play.push(policy("CartPole-v1"));
    play.push(step(0, 0, &[0.0; 4]));
    press(&mut play, 'n');
    (1..4).for_each(|i| play.push(step(0, i, &[0.0; 4])));
    assert!(play.wants_more());
    play.push(end(0, 4));
    play.push(step(1, 0, &[0.0; 4]));
    assert_eq!(play.moment().unwrap().episode(), 1);
    assert_eq!(play.returns, [(4.0, 4)]);
}

#[test]
fn memory_is_bounded_and_what_is_shown_stays() {
    let mut play = Play::new("x", None);
    let picture = Picture::of(400, 400, &vec![0; 480_000]);
    for i in 0..300 {
        play.push(ShowLine::Step(ShownStep {
            step: i,
            picture: Some(picture.clone()),
            ..ShownStep::default()
        }));
        play.advance(1);
        assert!(matches!(play.moment(), Some(Moment::Step(step)) if step.step == i));
    }
    assert!(play.bytes <= MEMORY && play.moments.len() < 100, "{} {}", play.bytes, play.moments.len());
}

#[test]
fn every_environment_is_drawn_at_every_size_with_all_glyphs() {
    for (env, seen) in [
        ("CartPole-v1", vec![0.1, 0.0, 0.05, 0.0]),
        ("Pendulum-v1", vec![0.5, 0.8, 0.1]),
        ("Acrobot-v1", vec![0.5, 0.8, 0.5, 0.8, 0.0, 0.0]),
        ("MountainCar-v0", vec![-0.5, 0.0]),
        ("Unknown-v0", vec![1.0; 60]),
        ("CartPole-v1", vec![]),
        ("CartPole-v1", vec![1e30, 0.0, f32::MAX, 0.0]),
    ] {
        let mut play = Play::new("x", None);
        play.push(policy(env));
        play.push(step(0, 0, &seen));
        for glyphs in [Glyphs::Braille, Glyphs::Block, Glyphs::Ascii] {
            let theme = Theme::mono().with_glyphs(glyphs);
            for (width, height) in [(0, 0), (1, 1), (30, 8), (80, 24), (200, 60)] {
                let text = drawn(&play, &theme, width, height);
                assert!(width < 80 || text.contains("87.5%") && text.contains("42.5"), "{env} {text}");
                assert!(glyphs != Glyphs::Ascii || text.is_ascii(), "{text}");
            }
        }
    }
}

#[test]
fn the_pole_stands_over_the_cart() {
    let mut play = cart_pole();
    play.advance(2);
    let text = drawn(&play, &Theme::mono().with_glyphs(Glyphs::Ascii), 80, 24);
    assert!(text.contains("episode 1 of 3 - step 3 - return 3"), "{text}");
    let inked = |line: &str| line.get(..44).unwrap_or_default().matches('#').count();
    let rows: Vec<usize> = text.lines().map(inked).collect();
    let cart = rows.iter().position(|count| *count >= 3).unwrap();
    assert!(rows[..cart].iter().filter(|count| (1..=2).contains(*count)).count() >= 3, "{text}");
    play.advance(100);
    assert!(drawn(&play, &Theme::mono(), 80, 24).contains("3 episodes played"));
}

#[test]
fn pictures_are_halves_of_blocks_or_shades() {
    let mut play = Play::new("x", None);
    play.push(policy("ALE/Pong-v5"));
    let bytes: Vec<u8> = (0..84 * 84).map(|i| if (i % 84) < 42 { 0 } else { 255 }).collect();
    play.push(ShowLine::Step(ShownStep {
        picture: Some(Picture::of(84, 84, &bytes)),
        ..ShownStep::default()
    }));
    assert!(drawn(&play, &Theme::dark(), 80, 24).contains('▀'));
    play.colours = Colours::None;
    let text = drawn(&play, &Theme::mono(), 80, 24);
    assert!(text.contains("   @@@") && !text.contains('▀'), "{text}");
    let area = picture_area(&play, ratatui::layout::Rect::new(0, 0, 80, 24)).unwrap();
    assert_eq!((area.width, area.height), (36, 18));
    assert_eq!(
        [picture::indexed([0; 3]), picture::indexed([255; 3]), picture::indexed([255, 0, 0])],
        [16, 231, 196]
    );
}
