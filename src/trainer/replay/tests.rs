use super::*;
use crate::env::ObservationBuffer;
use rankdeck_kernel::seeds::{Purpose, Seeds};

const GAMMA: f64 = 0.5;

fn spec(shape: &[usize], kind: ObservationType) -> Spec {
    Spec {
        observation_shape: shape.to_vec(),
        observation_type: kind,
        actions: ActionSpace::Discrete { n: 9 },
    }
}

/// One environment whose observation is a number.
struct Line {
    replay: Replay,
    spec: Spec,
}

impl Line {
    fn new(capacity: usize, n_step: usize) -> Line {
        let spec = spec(&[1], ObservationType::F32);
        let mut replay = Replay::new(ReplayShape::new(&spec, 1, capacity, n_step, GAMMA));
        replay.start(Observations::F32(&[0.0]));
        Line { replay, spec }
    }

    /// A step that shows `next`; after an end the environment shows `reset`.
    fn step(&mut self, action: i64, reward: f32, next: f32, end: Option<(bool, f32)>) {
        let mut outcome = StepOutcome::new(&self.spec, 1);
        outcome.rewards[0] = reward;
        let mut now = next;
        if let Some((terminated, reset)) = end {
            outcome.terminated[0] = terminated;
            outcome.truncated[0] = !terminated;
            outcome.final_observations = ObservationBuffer::F32(vec![next]);
            now = reset;
        }
        self.replay.add(Actions::Discrete(&[action]), &outcome, Observations::F32(&[now]));
    }

    fn read(&self, index: usize) -> ReplayBatch {
        let mut batch = ReplayBatch::default();
        self.replay.buffers[0].read(index, &self.replay.shape, &mut batch);
        batch
    }

    fn row(&self, index: usize) -> (f32, i64, f32, f32, f32) {
        let batch = self.read(index);
        (batch.numbers.now[0], batch.choices[0], batch.rewards[0], batch.discounts[0], batch.numbers.next[0])
    }
}

/// REPLAY-2 on a chain of four steps, n = 3: pitfall 4.27 of the references.
#[test]
fn n_step_returns_stop_at_termination() {
    let mut line = Line::new(100, 3);
    for i in 0..4 {
        line.step(i, 1.0 + i as f32, 10.0 + i as f32, (i == 3).then_some((true, 0.5)));
    }
    // Observations 0, 10, 11, 12 and the final 13; rewards 1, 2, 3, 4.
    assert_eq!(line.row(0), (0.0, 0, 1.0 + 0.5 * 2.0 + 0.25 * 3.0, 0.125, 12.0));
    assert_eq!(line.row(1), (10.0, 1, 2.0 + 0.5 * 3.0 + 0.25 * 4.0, 0.0, 13.0));
    assert_eq!(line.row(2), (11.0, 2, 3.0 + 0.5 * 4.0, 0.0, 13.0));
    assert_eq!(line.row(3), (12.0, 3, 4.0, 0.0, 13.0));
}

#[test]
fn n_step_truncation_bootstraps_from_final_observation() {
    let mut line = Line::new(100, 3);
    for i in 0..4 {
        line.step(i, 1.0, 10.0 + i as f32, (i == 3).then_some((false, 0.5)));
    }
    line.step(7, 100.0, 20.0, None);
    assert_eq!(line.row(0), (0.0, 0, 1.75, 0.125, 12.0));
    assert_eq!(line.row(1), (10.0, 1, 1.75, 0.125, 13.0));
    // No reward of the next episode, and gamma to the number of rewards that were summed.
    assert_eq!(line.row(2), (11.0, 2, 1.5, 0.25, 13.0));
    assert_eq!(line.row(3), (12.0, 3, 1.0, 0.5, 13.0));
    // REPLAY-3: the next episode begins with what the environment showed after the reset.
    assert_eq!(line.row(4), (0.5, 7, 100.0, 0.5, 20.0));
}

#[test]
fn newest_steps_bootstrap_from_newest_observation() {
    let mut line = Line::new(100, 3);
    line.step(0, 1.0, 10.0, None);
    line.step(1, 1.0, 11.0, None);
    assert_eq!(line.row(0), (0.0, 0, 1.5, 0.25, 11.0));
    assert_eq!(line.row(1), (10.0, 1, 1.0, 0.5, 11.0));
    line.step(2, 1.0, 12.0, None);
    assert_eq!(line.row(0), (0.0, 0, 1.75, 0.125, 12.0));
}

/// The ring against the plainest form there is: a list of transitions, oldest thrown out; many episodes, n =
/// 1 to 4.
#[test]
fn full_ring_holds_newest_transitions() {
    for n_step in 1..=4 {
        let mut line = Line::new(64, n_step);
        let mut random = Seeds::new(3).generator(Purpose::Env, 0, n_step as u64);
        let mut expected: Vec<(f32, i64, f32, Option<bool>, f32)> = Vec::new();
        let (mut now, mut length) = (0.0_f32, 0);
        for i in 0..1000_i64 {
            let (next, reward) = (random.next_f64() as f32, random.next_f64() as f32);
            length += 1;
            // At least eight steps per episode: what the spare frames are meant for.
            let end = (length >= 8 && random.below(10) == 0).then(|| random.below(2) == 0);
            expected.push((now, i, reward, end, next));
            let reset = random.next_f64() as f32;
            line.step(i, reward, next, end.map(|terminated| (terminated, reset)));
            (now, length) = if end.is_some() { (reset, 0) } else { (next, length) };
            let kept = &expected[expected.len().saturating_sub(64)..];
            assert_eq!(line.replay.len(), kept.len());
            let index = random.below(kept.len() as u64) as usize;
            let (mut sum, mut discount, mut last) = (0.0, 1.0, kept[index]);
            for step in kept[index..].iter().take(n_step) {
                (sum, discount, last) = (sum + discount * step.2, discount * 0.5, *step);
                if step.3.is_some() {
                    break;
                }
            }
            if last.3 == Some(true) {
                discount = 0.0;
            }
            assert_eq!(line.row(index), (kept[index].0, kept[index].1, sum, discount, last.4), "step {i}");
        }
    }
}

/// Very short episodes need more frames than there are: fewer transitions, all of them right.
#[test]
fn episodes_of_one_step_keep_what_fits() {
    let mut line = Line::new(40, 1);
    for i in 0..500_i64 {
        line.step(i, i as f32, 1000.0 + i as f32, Some((true, i as f32 + 1.0)));
        assert!(line.replay.len() <= 40 && line.replay.len() as i64 >= (i + 1).min(20));
        for index in 0..line.replay.len() {
            let (now, action, reward, discount, next) = line.row(index);
            assert_eq!(
                (now, reward, discount, next),
                (action as f32, action as f32, 0.0, 1000.0 + action as f32)
            );
        }
    }
}

/// REPLAY-1: two environments with stacks of frames, against the stacks themselves. Resets fill the stack
/// with the first frame; now and then an environment shows something unrelated.
#[test]
fn stacked_frames_round_trip() {
    let spec = spec(&[4, 2, 3], ObservationType::U8);
    let shape = ReplayShape::new(&spec, 2, 100, 2, GAMMA);
    assert_eq!((shape.stack, shape.frame, shape.element), (4, 6, 1));
    let mut replay = Replay::new(shape.clone());
    let mut random = Seeds::new(1).generator(Purpose::Env, 0, 0);
    let mut frame = || (0..6).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let mut stacks: [Vec<u8>; 2] = std::array::from_fn(|_| frame().repeat(4));
    let joined = |stacks: &[Vec<u8>; 2]| stacks.concat();
    replay.start(Observations::U8(&joined(&stacks)));
    let mut expected: [Vec<(Vec<u8>, Vec<u8>)>; 2] = [Vec::new(), Vec::new()];
    let mut lengths = [0, 0];
    for i in 0..400 {
        let mut outcome = StepOutcome::new(&spec, 2);
        let mut finals = Vec::new();
        for env in 0..2 {
            let before = stacks[env].clone();
            let mut next = [&before[6..], &frame()].concat();
            lengths[env] += 1;
            if i % 97 == 50 {
                next = (0..4).flat_map(|_| frame()).collect();
            }
            expected[env].push((before, next.clone()));
            finals.extend_from_slice(&next);
            stacks[env] = next;
            if lengths[env] == 32 + 7 * env {
                outcome.truncated[env] = true;
                stacks[env] = frame().repeat(4);
                lengths[env] = 0;
            }
        }
        outcome.final_observations = ObservationBuffer::U8(finals);
        replay.add(Actions::Discrete(&[i, i]), &outcome, Observations::U8(&joined(&stacks)));
    }
    assert_eq!(replay.len(), 100);
    for (buffer, expected) in replay.buffers.iter().zip(&expected) {
        let kept = &expected[expected.len() - buffer.len()..];
        for (index, (before, _)) in kept.iter().enumerate() {
            let mut batch = ReplayBatch::default();
            buffer.read(index, &shape, &mut batch);
            assert_eq!(&batch.pixels.now, before);
            // Two steps on, unless the episode or the data end before.
            let last = if batch.discounts[0] == 0.25 { index + 1 } else { index };
            assert_eq!(batch.pixels.next, kept[last].1);
        }
    }
    // One frame per transition and an eighth more, not five.
    assert!(shape.bytes() < 2 * (50 + 6 + 9 + 1) * 6 + 100 * 20);
}

#[test]
fn dummy_steps_are_not_stored() {
    let mut line = Line::new(10, 3);
    line.step(0, 1.0, 1.0, None);
    let mut outcome = StepOutcome::new(&line.spec, 1);
    outcome.valid[0] = false;
    line.replay.add(Actions::Discrete(&[8]), &outcome, Observations::F32(&[50.0]));
    line.step(1, 1.0, 51.0, None);
    assert_eq!(line.replay.len(), 2);
    assert_eq!(line.row(0), (0.0, 0, 1.0, 0.5, 1.0));
    assert_eq!(line.row(1), (50.0, 1, 1.0, 0.5, 51.0));
}

/// REPLAY-4: all of several environments' transitions, equally often, and the same for the same generator.
#[test]
fn sampling_is_even_and_repeatable() {
    let spec = spec(&[1], ObservationType::F32);
    let mut replay = Replay::new(ReplayShape::new(&spec, 3, 30, 1, GAMMA));
    replay.start(Observations::F32(&[0.0; 3]));
    let outcome = StepOutcome::new(&spec, 3);
    for i in 0..25 {
        replay.add(Actions::Discrete(&[3 * i, 3 * i + 1, 3 * i + 2]), &outcome, Observations::F32(&[0.0; 3]));
    }
    let draw = |epoch| {
        let mut batch = ReplayBatch::default();
        replay.sample(30_000, &mut Seeds::new(0).generator(Purpose::Replay, 0, epoch), &mut batch);
        batch.choices
    };
    let mut counts = std::collections::BTreeMap::new();
    let drawn = draw(0);
    drawn.iter().for_each(|choice| *counts.entry(*choice).or_insert(0) += 1);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), (45..75).collect::<Vec<_>>());
    // 1000 each on average; six standard deviations.
    assert!(counts.values().all(|count| (810..1190).contains(count)), "{counts:?}");
    assert_eq!(drawn, draw(0));
    assert_ne!(drawn, draw(1));
}

fn mark() -> ReplayMark {
    ReplayMark { env_id: "x".into(), seed: 1, rank: 0, world_size: 1, train_iter: 5 }
}

fn filled() -> Line {
    let mut line = Line::new(20, 2);
    for i in 0..33_i64 {
        line.step(i, i as f32, i as f32 + 1.0, (i % 9 == 8).then_some((i % 2 == 0, i as f32 + 0.5)));
    }
    line
}

#[test]
fn restored_shard_continues_bit_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replay-0.shard");
    let mut line = filled();
    save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
    save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    let mut copy =
        Line { replay: load(&line.replay.shape, &mark(), &path).unwrap(), spec: line.spec.clone() };
    assert_eq!(copy.replay.buffers, line.replay.buffers);
    for line in [&mut line, &mut copy] {
        // The environment shows its latest observation: the episode continues.
        line.replay.start(Observations::F32(&[33.0]));
        line.step(1, 1.0, 2.0, None);
    }
    assert_eq!(copy.replay.buffers, line.replay.buffers);
    assert_eq!(copy.row(18), (32.0, 32, 32.0 + 0.5, 0.25, 2.0));
    // It was recreated instead: the episode is cut, and the value of its latest observation still counts.
    let mut other =
        Line { replay: load(&line.replay.shape, &mark(), &path).unwrap(), spec: line.spec.clone() };
    other.replay.start(Observations::F32(&[0.25]));
    other.step(1, 1.0, 2.0, None);
    assert_eq!(other.row(18), (32.0, 32, 32.0, 0.5, 33.0));
    assert_eq!(other.row(19), (0.25, 1, 1.0, 0.5, 2.0));
}

/// SHARD-2.
#[test]
fn damaged_or_foreign_shard_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replay-0.shard");
    let line = filled();
    save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let shape = &line.replay.shape;
    for other in [
        ReplayMark { train_iter: 6, ..mark() },
        ReplayMark { rank: 1, ..mark() },
        ReplayMark { seed: 2, ..mark() },
    ] {
        assert!(load(shape, &other, &path).is_err());
    }
    assert!(load(&ReplayShape { capacity: 21, ..shape.clone() }, &mark(), &path).is_err());
    assert!(load(shape, &mark(), &folder.path().join("missing")).is_err());
    for cut in (0..bytes.len()).step_by(7) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(load(shape, &mark(), &path).is_err(), "cut at {cut}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        std::fs::write(&path, &damaged).unwrap();
        assert!(load(shape, &mark(), &path).is_err(), "byte {at}");
    }
    std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    assert!(load(shape, &mark(), &path).is_err());
}
