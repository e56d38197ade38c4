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
    let mut tracks: Vec<(Rank, RankHistory)> =
        (0..ranks).map(|rank| (Rank(rank), RankHistory::default())).collect();
    let mut replicas = Replicas::default();
    for step in 0..steps {
        // Ranks report one after the other.
        for at in 0..tracks.len() {
            let (rank, track) = &mut tracks[at];
            if let Some(sample) = weights(rank.0, step) {
                track.taken(&sample);
            }
            let living: Vec<(Rank, &RankHistory)> =
                tracks.iter().map(|(rank, track)| (*rank, track)).collect();
            replicas.compare(&living);
        }
    }
    replicas
}

fn grounds(replicas: &Replicas) -> Option<(DriftConfidence, u64, Vec<u32>)> {
    let drift = replicas.drift()?;
    Some((drift.grounds, drift.differ_at, drift.odd().iter().map(|rank| rank.0).collect()))
}

/// What all ranks have after a step.
fn together(step: u64) -> Vec<u32> {
    (0..8).map(|lane| (step * 100 + lane + 1) as u32).collect()
}

#[test]
fn equal_replicas_are_not_reported() {
    let found = run(4, 200, |_, step| Some(taken(step, &together(step), step as f64)));
    assert_eq!((grounds(&found), found.not_finite()), (None, None));
    // A scaler that leaves out steps on all ranks leaves out steps of the optimizer, too.
    let found = run(2, 200, |_, step| Some(taken(step, &together(step / 3), step as f64)));
    assert_eq!(grounds(&found), None);
}

#[test]
fn drifting_rank_is_named_with_step() {
    for ranks in [3, 4, 8] {
        let found = run(ranks, 60, |rank, step| {
            let own = if rank == 1 && step >= 20 { 5_000 } else { 0 };
            let lanes: Vec<u32> = together(step).iter().map(|lane| lane + own).collect();
            Some(taken(step, &lanes, f64::from(own)))
        });
        assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 20, vec![1])));
    }
    // Of two, no one can be named.
    let found = run(2, 60, |rank, step| {
        Some(taken(step, &together(if step >= 20 { step + u64::from(rank) } else { step }), f64::from(rank)))
    });
    assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 20, vec![])));
    assert_eq!(found.drift().unwrap().equal_at, 19);
}

#[test]
fn unsynchronized_gradients_are_reported_after_first_step() {
    for ranks in [2, 4] {
        let found = run(ranks, 3, |rank, step| {
            Some(taken(step, &together(step * (1 + u64::from(rank))), step as f64 * f64::from(rank)))
        });
        assert_eq!(grounds(&found), Some((DriftConfidence::NeverEqual, 1, vec![])));
    }
    // The same seen from a later step on proves nothing.
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
fn local_sgd_is_a_warning_at_most() {
    for (every, loss) in [(2, false), (4, false), (20, false), (320, false), (5, true), (16, true)] {
        let found = local(3, 700, every, u64::MAX, loss);
        let found = grounds(&found).map(|found| found.0);
        assert_eq!(found, Some(DriftConfidence::Seldom), "every {every} steps, {loss}");
    }
    assert_eq!(grounds(&local(3, 8, 4, u64::MAX, false)), None, "too early");
    // One that stops to do so is reported.
    let found = local(3, 200, 4, 100, false);
    assert_eq!(grounds(&found).map(|found| found.0), Some(DriftConfidence::KeptEqual));
    assert_eq!(found.drift().map(|drift| (drift.equal_at, drift.differ_at)), Some((96, 128)));
    // So is one that never begins to, whatever collectives it makes.
    let found = local(3, 200, 4, 0, false);
    assert_eq!(grounds(&found).map(|found| found.0), Some(DriftConfidence::NeverEqual));
    let alone = |steps| {
        run(2, steps, |rank, step| {
            let own = together(step * (1 + u64::from(rank)));
            Some(FingerprintSample { synced: false, ..taken(step, &own, step as f64 * f64::from(rank)) })
        })
    };
    assert_eq!(grounds(&alone(FIRST)), None);
    let found = grounds(&alone(FIRST + 1)).map(|found| (found.0, found.1));
    assert_eq!(found, Some((DriftConfidence::NeverExchanged, FIRST)));
}

/// Compares what comes of ranks that have made one list of fingerprints each.
fn compared(all: &[Vec<FingerprintSample>]) -> Replicas {
    let longest = all.iter().map(Vec::len).max().unwrap_or_default() as u64;
    run(all.len() as u32, longest, |rank, tick| all[rank as usize].get(tick as usize).copied())
}

/// Fingerprints of a rank that makes `own` steps in each round, before four collectives average the weights of
/// all ranks.
fn rounds(rank: u32, count: u64, own: impl Fn(u64) -> u64) -> Vec<FingerprintSample> {
    let mut made = Vec::new();
    for round in 0..count {
        for steps in 0..own(round) {
            let step = made.len() as u64;
            let apart = 1_000_000 * (1 + u64::from(rank)) + step;
            made.push(FingerprintSample {
                synced: steps == 0 && round > 0,
                position: Some(FingerprintPosition { seq: 4 * round, steps }),
                ..taken(step, &together(if steps == 0 { round } else { apart }), step as f64)
            });
        }
    }
    made
}

#[test]
fn uneven_local_steps_are_a_warning_at_most() {
    // As many steps as fit into some time, or until a measure of each rank's own ends an epoch.
    for spread in [2, 5, 11] {
        let own = |rank: u32| {
            let rank = u64::from(rank);
            move |round: u64| 1 + (round * 7 + rank * (5 + round) + round / 3) % spread
        };
        let all: Vec<_> = (0..3).map(|rank| rounds(rank, 200, own(rank))).collect();
        let lengths: BTreeSet<usize> = all.iter().map(Vec::len).collect();
        assert!(lengths.len() > 1, "numbers of steps differ: {lengths:?}");
        let found = grounds(&compared(&all)).map(|found| found.0);
        assert!(found.is_none_or(|found| found == DriftConfidence::Seldom), "{spread}: {found:?}");
    }
    // The averages of one rank come to something else from a round on.
    let mut all: Vec<_> =
        (0..3).map(|rank| rounds(rank, 200, |round| 2 + (round + u64::from(rank)) % 3)).collect();
    for taken in all[1].iter_mut().filter(|taken| taken.synced && taken.position.unwrap().seq >= 400) {
        taken.lanes[0] += 77;
        taken.sum += 5.0;
    }
    let found = grounds(&compared(&all)).map(|found| (found.0, found.2));
    assert_eq!(found, Some((DriftConfidence::KeptEqual, vec![1])));
}

/// A program whose local steps are known only by the flag: none of them is at a position that all ranks have.
#[test]
fn local_steps_without_common_position_are_known() {
    let alone = |rank: u32| {
        let mut all = rounds(rank, 100, |round| if round < 70 { 1 } else { 3 });
        all.iter_mut().for_each(|taken| taken.local = rank == 2);
        all
    };
    let found = grounds(&compared(&[alone(0), alone(1), alone(2)])).map(|found| found.0);
    assert!(found.is_none_or(|found| found == DriftConfidence::Seldom), "{found:?}");
}

/// Averaged gradients: each rank's steps, one collective before each; the ranks have `batches` in each epoch, and
/// at its end all get the weights of the last one, as below DDP's `Join`.
fn joined(batches: u64, epochs: u64) -> Vec<FingerprintSample> {
    let each = (0..epochs).flat_map(|epoch| (0..batches).map(move |batch| epoch * 40 + batch));
    let taken = |(step, seq): (usize, u64)| FingerprintSample {
        position: Some(FingerprintPosition { seq, steps: 0 }),
        ..taken(step as u64, &together(seq), seq as f64)
    };
    each.enumerate().map(taken).collect()
}

#[test]
fn uneven_batches_below_join_are_not_reported() {
    let mut all = [joined(20, 12), joined(25, 12), joined(30, 12)];
    assert_eq!(grounds(&compared(&all)), None);
    // Ranks that go apart are reported by their common positions all the same.
    for taken in all[2].iter_mut().filter(|taken| taken.position.unwrap().seq >= 210) {
        taken.lanes[3] += 9;
        taken.sum += 5.0;
    }
    let found = compared(&all);
    assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 110, vec![2])));
    assert_eq!(found.drift().unwrap().equal_at, 109, "steps of the first rank");
}

#[test]
fn skipped_step_is_drift_at_the_next_position() {
    for ranks in [2, 3] {
        let each = |rank: u32| -> Vec<FingerprintSample> {
            let skips = |iteration: u64| rank == 1 && iteration == 30;
            let taken = |iteration: u64| {
                let behind = u64::from(rank == 1 && iteration > 30);
                FingerprintSample {
                    position: Some(FingerprintPosition { seq: 5 * iteration + 4, steps: 0 }),
                    ..taken(
                        iteration - behind,
                        &together(3 * iteration - behind),
                        (iteration - behind) as f64,
                    )
                }
            };
            (0..60).filter(|iteration| !skips(*iteration)).map(taken).collect()
        };
        let found = compared(&(0..ranks).map(each).collect::<Vec<_>>());
        let odd = if ranks > 2 { vec![1] } else { vec![] };
        assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 31, odd)));
    }
}

#[test]
fn ranks_with_and_without_positions_are_not_compared() {
    let found = run(2, 60, |rank, step| {
        let position = (rank == 1).then_some(FingerprintPosition { seq: 3 * step + 1, steps: 0 });
        Some(FingerprintSample { position, ..taken(step, &together(step + u64::from(rank)), 1.0) })
    });
    assert_eq!(grounds(&found), None);
}

/// Gradients that are averaged at every step, until no one makes a collective any more.
#[test]
fn end_of_synchronization_is_reported() {
    let found = run(2, 300, |rank, step| {
        let own = if step < 100 { 0 } else { u64::from(rank) };
        let sample = taken(step, &together(step * 3 + own), own as f64 * step as f64);
        Some(FingerprintSample { synced: step < 100, ..sample })
    });
    assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 100, vec![])));
}

#[test]
fn intended_differences_are_never_critical() {
    // Shards: nothing is ever equal but what all begin with, such as ones and zeros.
    let found = run(4, 60, |rank, step| {
        let mut lanes = together(step * 10 + u64::from(rank));
        if step == 0 {
            lanes[3] = 1;
        }
        Some(taken(step, &lanes, f64::from(rank)))
    });
    assert!(grounds(&found).is_none_or(|found| found.0 == DriftConfidence::InPart), "{:?}", found.drift());
    // Parts of a model: other shapes.
    let found = run(2, 60, |rank, step| {
        let own = if step == 0 { 0 } else { step + u64::from(rank) * 1_000 };
        Some(FingerprintSample { shapes: rank, ..taken(step, &together(own), f64::from(rank)) })
    });
    assert_eq!(grounds(&found), None);
    // Noise that differs by rank, next to weights that all share.
    let found = run(4, 60, |rank, step| {
        let mut lanes = together(step);
        lanes[7] = if step == 0 { 9 } else { rank * 1_000 + step as u32 };
        Some(taken(step, &lanes, f64::from(rank)))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(DriftConfidence::InPart));
    // Two models of two replicas each, which begin alike.
    let found = run(4, 60, |rank, step| {
        Some(taken(step, &together(step * (1 + u64::from(rank / 2))), step as f64 * f64::from(rank / 2)))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(DriftConfidence::InPart));
    // A learner and three actors without optimizers.
    let found = run(4, 60, |rank, step| (rank == 0).then(|| taken(step, &together(step), 0.0)));
    assert_eq!(grounds(&found), None);
}

#[test]
fn rounding_is_distinguished_from_errors() {
    let found = run(2, 60, |rank, step| {
        Some(taken(
            step,
            &together(step * 3 + if step > 9 { u64::from(rank) } else { 0 }),
            f64::from(rank) * 1e-6,
        ))
    });
    assert_eq!(grounds(&found).map(|found| found.0), Some(DriftConfidence::Rounding));
    let found = run(2, 60, |rank, step| {
        let apart = f64::from(rank) * 1e-6 * step as f64 * step as f64;
        Some(taken(step, &together(step * 3 + if step > 9 { u64::from(rank) } else { 0 }), apart))
    });
    assert_eq!(grounds(&found).map(|found| (found.0, found.1)), Some((DriftConfidence::KeptEqual, 10)));
}

#[test]
fn non_finite_weights_name_first_ranks() {
    let bad = |sample: FingerprintSample| FingerprintSample { finite: false, sum: 0.0, scale: 0.0, ..sample };
    let found = run(4, 60, |rank, step| {
        let sample = taken(step, &together(step), 0.0);
        Some(if rank == 2 && step >= 30 { bad(sample) } else { sample })
    });
    let reported = found.not_finite().unwrap();
    assert_eq!((reported.step, reported.ranks.as_slice(), reported.of), (30, &[Rank(2)][..], 4));
    let found = run(2, 60, |_, step| {
        let sample = taken(step, &together(step), 0.0);
        Some(if step >= 12 { bad(sample) } else { sample })
    });
    assert_eq!((found.not_finite().unwrap().step, grounds(&found)), (12, None));
}

#[test]
fn fingerprints_are_compared_at_common_steps() {
    let found = run(4, 512, |rank, step| {
        let every = 1 << (rank % 4);
        let own = if rank == 3 && step >= 100 { 5_000 } else { 0 };
        let lanes: Vec<u32> = together(step).iter().map(|lane| lane + own).collect();
        (step < 8 || step % every == 0).then(|| taken(step, &lanes, f64::from(own)))
    });
    assert_eq!(grounds(&found), Some((DriftConfidence::KeptEqual, 104, vec![3])));
}

/// How an optimizer moves a weight: by its gradient, its own two memories and the number of the step.
type Rule = fn(f64, &mut [f64; 2], i32) -> f64;

fn adam(gradient: f64, [mean, square]: &mut [f64; 2], step: i32) -> f64 {
    *mean = 0.9 * *mean + 0.1 * gradient;
    *square = 0.999 * *square + 0.001 * gradient * gradient;
    let (mean, square) = (*mean / (1.0 - 0.9_f64.powi(step)), *square / (1.0 - 0.999_f64.powi(step)));
    2.5e-4 * mean / (square.sqrt() + 1e-8)
}

fn sign(gradient: f64, _: &mut [f64; 2], _: i32) -> f64 {
    1e-3 * gradient.signum()
}

fn plain(gradient: f64, _: &mut [f64; 2], _: i32) -> f64 {
    1e-3 * gradient
}

/// A number between -1 and 1 that only these decide (SplitMix64).
fn noise(of: [u64; 4]) -> f64 {
    let mut x = of.iter().fold(7_u64, |x, part| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part + 1));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// How ranks train: weights and biases in turns, the latter zero at first.
struct Training {
    rule: Rule,
    seed: u64,
    /// All ranks begin with the same weights.
    seeded: bool,
    /// Lanes whose gradients no one averages.
    own: fn(u64) -> bool,
}

impl Training {
    /// Fingerprints by rank and step.
    fn run(&self, ranks: u32, steps: u64) -> Vec<Vec<FingerprintSample>> {
        let gradient = |rank: u32, step, lane, at| {
            // What a rank sees is noise around what there is to learn.
            let seen = |rank: u32| noise([self.seed, u64::from(rank), step, lane * 64 + at]);
            let common = noise([self.seed, 99, 0, lane * 64 + at]) * 0.3;
            let mean = (0..ranks).map(seen).sum::<f64>() / f64::from(ranks);
            common + if (self.own)(lane) { seen(rank) } else { mean }
        };
        let each = |rank: u32| {
            let seed = if self.seeded { 50 } else { 50 + u64::from(rank) };
            let first = |lane: u64, at| if lane % 2 == 1 { 0.0 } else { noise([seed, 1, lane, at]) as f32 };
            let size = |lane: u64| if lane % 2 == 1 { 1 } else { 64 };
            let mut weights: Vec<Vec<(f32, [f64; 2])>> = (0..LANES as u64)
                .map(|lane| (0..size(lane)).map(|at| (first(lane, at), [0.0; 2])).collect())
                .collect();
            let mut taken = Vec::new();
            for step in 0..steps {
                taken.push(fingerprint(step, &weights));
                for (lane, weights) in weights.iter_mut().enumerate() {
                    for (at, (weight, memory)) in weights.iter_mut().enumerate() {
                        let by = gradient(rank, step, lane as u64, at as u64);
                        *weight -= (self.rule)(by, memory, step as i32 + 1) as f32;
                    }
                }
            }
            taken
        };
        (0..ranks).map(each).collect()
    }

    fn found(&self, ranks: u32, steps: u64) -> Replicas {
        let all = self.run(ranks, steps);
        run(ranks, steps, |rank, step| Some(all[rank as usize][step as usize]))
    }
}

fn fingerprint(step: u64, weights: &[Vec<(f32, [f64; 2])>]) -> FingerprintSample {
    let hash = |lane: &Vec<(f32, [f64; 2])>| {
        let mix = |hash: u32, bits: u32| (hash ^ bits).wrapping_mul(0x0100_0193);
        lane.iter().fold(0x811c_9dc5, |hash, (weight, _)| mix(hash, weight.to_bits())) | 1
    };
    let lanes: Vec<u32> = weights.iter().map(hash).collect();
    let all = || weights.iter().flatten().map(|(weight, _)| f64::from(*weight));
    FingerprintSample { scale: all().map(f64::abs).sum(), ..taken(step, &lanes, all().sum()) }
}

const RULES: [Rule; 3] = [adam, sign, plain];
const NONE: fn(u64) -> bool = |_| false;
const ALL: fn(u64) -> bool = |_| true;

#[test]
fn per_rank_heads_are_never_critical() {
    let heads: [fn(u64) -> bool; 3] = [|lane| lane == 7, |lane| lane >= 6, |lane| lane % 2 == 1];
    for (rule, own, seed) in RULES
        .iter()
        .flat_map(|rule| heads.map(|own| (*rule, own)))
        .flat_map(|(rule, own)| (0..20).map(move |seed| (rule, own, seed)))
    {
        for ranks in [2, 4] {
            let found = Training { rule, seed, seeded: true, own }.found(ranks, 60);
            let worst = grounds(&found).map(|found| found.0);
            assert_eq!(worst, Some(DriftConfidence::InPart), "seed {seed}: {:?}", found.drift());
        }
    }
}

#[test]
fn per_rank_head_with_own_optimizer_is_never_critical() {
    for (rule, seed) in RULES.iter().flat_map(|rule| (0..10).map(move |seed| (*rule, seed))) {
        for head in [0, 1] {
            let shared = Training { rule, seed, seeded: true, own: NONE }.run(2, 40);
            let own = Training { rule, seed, seeded: true, own: ALL }.run(2, 40);
            for ticks in 1..80 {
                let found = run(2, ticks, |rank, tick| {
                    let (optimizer, step) = (tick as u32 % 2, tick as usize / 2);
                    let taken = if optimizer == head { &own } else { &shared };
                    Some(FingerprintSample { optimizer, ..taken[rank as usize][step] })
                });
                let worst = grounds(&found).map(|found| found.0);
                assert!(
                    worst.is_none_or(|worst| worst == DriftConfidence::InPart),
                    "{ticks}: {:?}",
                    found.drift()
                );
            }
        }
    }
}

#[test]
fn different_start_with_averaged_gradients_is_a_warning() {
    for (rule, ranks) in RULES.iter().flat_map(|rule| [2, 4].map(|ranks| (*rule, ranks))) {
        let apart = Training { rule, seed: 3, seeded: false, own: NONE };
        let found = apart.found(ranks, 40);
        assert_eq!(grounds(&found), Some((DriftConfidence::BeganApart, 0, vec![])), "{:?}", found.drift());
        assert_eq!(grounds(&apart.found(ranks, 5)), None, "not so soon");
    }
    // One rank alone has loaded a checkpoint.
    let apart = Training { rule: adam, seed: 3, seeded: true, own: NONE }.run(4, 60);
    let loaded = Training { rule: adam, seed: 3, seeded: false, own: NONE }.run(4, 60);
    let found = run(4, 60, |rank, step| {
        Some(if rank == 2 { loaded[2][step as usize] } else { apart[rank as usize][step as usize] })
    });
    assert_eq!(grounds(&found), Some((DriftConfidence::BeganApart, 0, vec![2])), "{:?}", found.drift());
}

#[test]
fn per_rank_models_are_never_critical() {
    for (rule, seed) in RULES.iter().flat_map(|rule| (0..10).map(move |seed| (*rule, seed))) {
        for ranks in [2, 4] {
            // Shards, or members of a population.
            let found = Training { rule, seed, seeded: false, own: ALL }.found(ranks, 200);
            let worst = grounds(&found).map(|found| found.0);
            assert!(
                worst.is_none_or(|worst| worst == DriftConfidence::InPart),
                "seed {seed}: {:?}",
                found.drift()
            );
        }
    }
}
