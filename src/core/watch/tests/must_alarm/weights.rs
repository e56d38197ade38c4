//! Weights of scripts that drift apart, and optimisers that do not step.

use crate::reason::Reason;
use crate::report::{Confidence, Severity};
use crate::testkit::*;
use crate::watch::tests::lab::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

/// Runs a script whose ranks step ten times a second; `change` makes of a rank's fingerprint what it has.
fn script(c: &mut Cluster, ms: u64, change: impl Fn(u32, &mut FingerprintSample)) {
    drive(c, ms, |rank, now, sample| {
        let steps = now / 100;
        let mut page = hooked(2 * steps + 2, 2 * steps + 2, 10);
        (page.updates, page.train_iter) = (steps, steps);
        page.fingerprints = weights(steps);
        page.fingerprints.iter_mut().for_each(|taken| change(rank, taken));
        sample.page = Some(page);
    });
}

#[test]
fn a_rank_whose_weights_drift_away_is_named_with_the_step() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 60;
    script(&mut c, 10_000, |rank, taken| {
        if rank == 2 && taken.step >= from {
            (taken.lanes, taken.sum) = ([7; 8], 50.0);
        }
    });
    assert_eq!(reds(&c), [(Some(2), Reason::WeightsDiffer)]);
    let verdict = verdicts(&c).into_iter().find(|told| told.reason_code == Reason::WeightsDiffer).unwrap();
    assert_eq!(verdict.confidence, Confidence::Certain);
    assert!(verdict.reason.contains(&format!("iteration {from}")), "{}", verdict.reason);
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 30;
    script(&mut c, 6_000, |rank, taken| taken.finite = rank != 1 || taken.step < from);
    assert_eq!(reds(&c), [(Some(1), Reason::WeightsNotFinite)]);
}

#[test]
fn weights_that_are_equal_or_differ_in_part_are_not_red() {
    let mut c = trained(2);
    script(&mut c, 6_000, |_, _| {});
    assert_eq!(c.verdicts(), []);
    let mut c = trained(2);
    script(&mut c, 6_000, |rank, taken| taken.lanes[5] += rank * 1_000_000);
    assert!(verdicts(&c).iter().all(|told| told.severity <= Severity::Amber), "{:?}", c.verdicts());
}

#[test]
fn a_rank_that_leaves_out_steps_of_its_optimiser_is_named() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 30;
    drive(&mut c, 8_000, |rank, now, sample| {
        let steps = now / 100;
        let made = if rank == 3 { steps.min(from) } else { steps };
        let mut page = hooked(2 * steps + 2, 2 * steps + 2, 10);
        (page.updates, page.train_iter) = (made, made);
        let began =
            |step: u64| IterationSample { train_iter: step, seq: 2 * step, ..IterationSample::default() };
        page.iterations = (made - 8..=made).map(began).collect();
        sample.page = Some(page);
    });
    assert_eq!(reds(&c).first(), Some(&(Some(3), Reason::SilentShift)), "{:?}", c.verdicts());
    let verdict = verdicts(&c).into_iter().find(|told| told.rank == Some(Rank(3))).unwrap();
    assert!(verdict.reason.contains("steps of its optimiser"), "{}", verdict.reason);
}
