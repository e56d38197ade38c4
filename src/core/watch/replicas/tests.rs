use super::*;

/// A rank's weights after a step, of up to eight lanes.
fn taken(step: u64, lanes: &[u32], sum: f64) -> FingerprintSample {
    let mut all = [0; LANES];
    all[..lanes.len()].copy_from_slice(lanes);
    FingerprintSample {
        step,
        lanes: all,
        sum,
        scale: 100.0,
        finite: true,
        synced: true,
        shapes: 7,
        ..FingerprintSample::default()
    }
}

/// Compares what `weights` gives for each rank and step, as it comes in.
fn run(ranks: u32, steps: u64, weights: impl Fn(u32, u64) -> Option<FingerprintSample>) -> Replicas {
    let mut tracks: Vec<(Rank, Track)> = (0..ranks).map(|rank| (Rank(rank), Track::default())).collect();
    let mut replicas = Replicas::default();
    for step in 0..steps {
        // Ranks are heard of one after the other.
        for at in 0..tracks.len() {
            let (rank, track) = &mut tracks[at];
            if let Some(sample) = weights(rank.0, step) {
                track.weights.insert((sample.optimizer, sample.step), sample);
            }
            let living: Vec<(Rank, &Track)> = tracks.iter().map(|(rank, track)| (*rank, track)).collect();
            replicas.compare(&living);
        }
    }
    replicas
}

fn grounds(replicas: &Replicas) -> Option<(Grounds, u64, Vec<u32>)> {
    let drift = replicas.drift()?;
    Some((drift.grounds, drift.differ_at, drift.odd().iter().map(|rank| rank.0).collect()))
}

/// What all ranks have after a step.
fn together(step: u64) -> Vec<u32> {
    (0..8).map(|lane| (step * 100 + lane + 1) as u32).collect()
}

#[test]
fn replicas_that_stay_equal_are_well() {
    let found = run(4, 200, |_, step| Some(taken(step, &together(step), step as f64)));
    assert_eq!((grounds(&found), found.not_finite()), (None, None));
    // A scaler that leaves out steps on all ranks leaves out steps of the optimiser, too.
    let found = run(2, 200, |_, step| Some(taken(step, &together(step / 3), step as f64)));
    assert_eq!(grounds(&found), None);
}

#[test]
fn one_rank_that_leaves_is_named_with_the_step() {
    for ranks in [3, 4, 8] {
        let found = run(ranks, 60, |rank, step| {
            let own = if rank == 1 && step >= 20 { 5_000 } else { 0 };
            let lanes: Vec<u32> = together(step).iter().map(|lane| lane + own).collect();
            Some(taken(step, &lanes, f64::from(own)))
        });
        assert_eq!(grounds(&found), Some((Grounds::KeptEqual, 20, vec![1])));
    }
    // Of two, nobody can be named.
    let found = run(2, 60, |rank, step| {
        Some(taken(step, &together(if step >= 20 { step + u64::from(rank) } else { step }), f64::from(rank)))
    });
    assert_eq!(grounds(&found), Some((Grounds::KeptEqual, 20, vec![])));
    assert_eq!(found.drift().unwrap().equal_at, 19);
}

#[test]
fn gradients_that_were_never_synchronised_are_told_after_the_first_step() {
    for ranks in [2, 4] {
        let found = run(ranks, 3, |rank, step| {
            Some(taken(step, &together(step * (1 + u64::from(rank))), step as f64 * f64::from(rank)))
        });
        assert_eq!(grounds(&found), Some((Grounds::NeverEqual, 1, vec![])));
    }
    // The same seen from a later step on is no proof of anything.
    let found = run(2, 30, |rank, step| {
        (step > 4)
            .then(|| taken(step, &together(step * (1 + u64::from(rank))), step as f64 * f64::from(rank)))
    });
    assert_eq!(grounds(&found), None);
}

/// Local SGD: `every` steps of each rank's own, then the mean of all weights.
fn local(ranks: u32, steps: u64, every: u64, until: u64, loss: bool) -> Replicas {
    run(ranks, steps, |rank, step| {
        let behind = step % every == 0;
        let own = if step == 0 || behind && step < until { 0 } else { 1 + u64::from(rank) };
        Some(FingerprintSample {
            synced: behind || loss && step % 3 == 0,
            ..taken(step, &together(step * 10 + own), step as f64 * own as f64)
        })
    })
}

#[test]
fn weights_that_are_averaged_now_and_then_are_no_alarm() {
    for (every, loss) in [(2, false), (4, false), (20, false), (320, false), (5, true), (16, true)] {
        let found = local(3, 700, every, u64::MAX, loss);
        assert_eq!(grounds(&found), None, "every {every} steps, {loss}");
    }
    // One that stops to do so is told.
    let found = local(3, 200, 4, 100, false);
    assert_eq!(grounds(&found).map(|found| found.0), Some(Grounds::KeptEqual));
    assert_eq!(found.drift().map(|drift| (drift.equal_at, drift.differ_at)), Some((96, 128)));
    // So is one that never begins to, whatever collectives it makes.
    let found = local(3, 200, 4, 0, false);
    assert_eq!(grounds(&found).map(|found| found.0), Some(Grounds::NeverEqual));
    let alone = |steps| {
        run(2, steps, |rank, step| {
            let own = together(step * (1 + u64::from(rank)));
            Some(FingerprintSample { synced: false, ..taken(step, &own, step as f64 * f64::from(rank)) })
        })
    };
    assert_eq!(grounds(&alone(ALONE)), None);
    assert_eq!(grounds(&alone(ALONE + 1)).map(|found| found.0), Some(Grounds::NeverEqual));
}

/// Gradients that are averaged at every step, until nobody makes a collective any more.
#[test]
fn ranks_that_all_stop_to_synchronise_are_told() {
    let found = run(2, 300, |rank, step| {
        let own = if step < 100 { 0 } else { u64::from(rank) };
        let sample = taken(step, &together(step * 3 + own), own as f64 * step as f64);
        Some(FingerprintSample { synced: step < 100, ..sample })
    });
    assert_eq!(grounds(&found), Some((Grounds::KeptEqual, 100, vec![])));
}

#[test]
fn ranks_that_differ_on_purpose_are_no_alarm() {
    // Shards: nothing is ever equal but what all begin with, such as ones and zeros.
    let found = run(4, 60, |rank, step| {
        let mut lanes = together(step * 10 + u64::from(rank));
        if step == 0 {
            lanes[3] = 1;
        }
        Some(taken(step, &lanes, f64::from(rank)))
    });
    assert!(grounds(&found).is_none_or(|found| found.0 == Grounds::InPart), "{:?}", found.drift());
    // Parts of a model: other shapes.
    let found = run(2, 60, |rank, step| {
        let own = if step == 0 { 0 } else { step + u64::from(rank) * 1_000 };
        Some(FingerprintSample { shapes: rank, ..taken(step, &together(own), f64::from(rank)) })
    });
    assert_eq!(grounds(&found), None);
    // A noise of each rank's own, beside weights that all share.
    let found = run(4, 60, |rank, step| {
        let mut lanes = together(step);
        lanes[7] = if step == 0 { 9 } else { rank * 1_000 + step as u32 };
        Some(taken(step, &lanes, f64::from(rank)))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(Grounds::InPart));
    // Two models of two replicas each, which begin alike.
    let found = run(4, 60, |rank, step| {
        Some(taken(step, &together(step * (1 + u64::from(rank / 2))), step as f64 * f64::from(rank / 2)))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(Grounds::InPart));
    // A learner and three actors without optimisers.
    let found = run(4, 60, |rank, step| (rank == 0).then(|| taken(step, &together(step), 0.0)));
    assert_eq!(grounds(&found), None);
}

#[test]
fn last_bits_are_told_apart_from_errors_and_errors_grow() {
    let found = run(2, 60, |rank, step| {
        Some(taken(
            step,
            &together(step * 3 + if step > 9 { u64::from(rank) } else { 0 }),
            f64::from(rank) * 1e-6,
        ))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(Grounds::Rounding));
    let found = run(2, 60, |rank, step| {
        let apart = f64::from(rank) * 1e-6 * step as f64 * step as f64;
        Some(taken(step, &together(step * 3 + if step > 9 { u64::from(rank) } else { 0 }), apart))
    });
    assert_eq!(grounds(&found).map(|found| (found.0, found.1)), Some((Grounds::KeptEqual, 10)));
}

#[test]
fn weights_that_are_no_numbers_are_named_with_the_first_ranks() {
    let bad = |sample: FingerprintSample| FingerprintSample { finite: false, sum: 0.0, scale: 0.0, ..sample };
    let found = run(4, 60, |rank, step| {
        let sample = taken(step, &together(step), 0.0);
        Some(if rank == 2 && step >= 30 { bad(sample) } else { sample })
    });
    let told = found.not_finite().unwrap();
    assert_eq!((told.step, told.ranks.as_slice(), told.of), (30, &[Rank(2)][..], 4));
    let found = run(2, 60, |_, step| {
        let sample = taken(step, &together(step), 0.0);
        Some(if step >= 12 { bad(sample) } else { sample })
    });
    assert_eq!((found.not_finite().unwrap().step, grounds(&found)), (12, None));
}

#[test]
fn ranks_that_look_at_different_steps_are_compared_at_those_they_share() {
    let found = run(4, 512, |rank, step| {
        let every = 1 << (rank % 4);
        let own = if rank == 3 && step >= 100 { 5_000 } else { 0 };
        let lanes: Vec<u32> = together(step).iter().map(|lane| lane + own).collect();
        (step < 8 || step % every == 0).then(|| taken(step, &lanes, f64::from(own)))
    });
    assert_eq!(grounds(&found), Some((Grounds::KeptEqual, 104, vec![3])));
}
