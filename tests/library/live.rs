//! Moments of rank 0's evaluations: they come while it plays, seldom, and change nothing.

use crate::harness::{Run, experiment};
use crate::resuming::{load, without_time};
use rankdeck_proto::message::RankEvent;
use rankdeck_proto::show::{LiveFrame, ScoreKind};
use std::time::Duration;

/// Evaluations that take a while: one environment plays one episode after the other.
const EVAL: &str = "[eval]\nevery = 4\nepisodes = 120\nnum_envs = 1\n[checkpoint]\nevery = 4";

fn frames(run: &Run) -> Vec<LiveFrame> {
    let events = run.events();
    assert!(events.iter().all(|(rank, event)| *rank == 0 || !matches!(event, RankEvent::Frame(_))));
    let frames = events.into_iter().filter_map(|(_, event)| match event {
        RankEvent::Frame(frame) => Some(*frame),
        _ => None,
    });
    frames.collect()
}

#[test]
fn live_1_observed_run_is_bit_equal() {
    let experiment = experiment(8 * 512, "seed = 3", EVAL);
    let mut seen = Run::start(&experiment, &["--spawn", "2"]);
    let began = std::time::Instant::now();
    seen.end_with(0);
    let took = began.elapsed();
    let mut unseen = Run::start_by(&experiment, &["--spawn", "2"], |command| {
        command.env_remove("RANKDECK_EVENTS");
    });
    unseen.end_with(0);
    assert_eq!((frames(&unseen), unseen.events()), (Vec::new(), Vec::new()));
    let [a, b] = [&seen, &unseen].map(|run| without_time(load(&run.file("checkpoints/latest.ckpt"))));
    assert_eq!((&a.header, &a.ranks, &a.words), (&b.header, &b.ranks, &b.words));
    for (a, b) in a.arrays.iter().zip(&b.arrays) {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!((&a.name, bits(&a.values)), (&b.name, bits(&b.values)));
    }
    let returns = |run: &Run| -> Vec<String> {
        let metrics = std::fs::read_to_string(run.file("metrics.csv")).unwrap();
        let last = |line: &str| line.rsplitn(4, ',').take(3).collect::<Vec<_>>().join(",");
        metrics.lines().map(last).collect()
    };
    assert_eq!(returns(&seen), returns(&unseen), "every evaluation");

    let frames = frames(&seen);
    assert!(!frames.is_empty(), "{}", seen.logs());
    let most = took.as_millis() / Duration::from_millis(250).as_millis() + 1;
    assert!(frames.len() as u128 <= most, "LIVE-2: {} in {took:?}", frames.len());
    for frame in &frames {
        let (policy, step) = (&frame.policy, &frame.step);
        assert_eq!((policy.env_id.as_str(), policy.algorithm.as_str()), ("CartPole-v1", "ppo"));
        assert!(policy.episodes == 120 && step.episode == frame.ended && step.seen.len() == 4, "{frame:?}");
        assert_eq!(step.episode_return, (step.step + 1) as f64, "CartPole gives 1 for each step");
        let thought = step.thought.as_ref().unwrap();
        assert_eq!((thought.kind, thought.scores.len()), (ScoreKind::Probability, 2));
        let best = usize::from(thought.scores[1] > thought.scores[0]);
        assert_eq!(step.action, [best as f32], "the greedy action");
    }
}
