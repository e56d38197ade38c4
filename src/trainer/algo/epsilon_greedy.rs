//! Epsilon-greedy actions, of DQN and PQN (Mnih et al. 2015).

use rankdeck_kernel::numpy_random::Generator;

/// Epsilon after `env_step` environment steps over all ranks: from `start` to `end` within `steps`, linearly.
pub(super) fn linear(start: f64, end: f64, steps: u64, env_step: u64) -> f64 {
    start + (end - start) * (env_step as f64 / steps.max(1) as f64).min(1.0)
}

/// One of `actions` actions that `mask` allows, all equally likely. Draws one number.
pub(super) fn random_action(actions: usize, mask: Option<&[u8]>, random: &mut Generator) -> i64 {
    let Some(mask) = mask else { return random.below(actions as u64) as i64 };
    let allowed = || mask.iter().enumerate().filter(|(_, allowed)| **allowed != 0);
    let chosen = random.below(allowed().count().max(1) as u64) as usize;
    allowed().nth(chosen).map_or(0, |(action, _)| action as i64)
}

/// The largest of these Q-values whose action `mask` allows.
pub(super) fn best_value(q: &[f32], mask: Option<&[u8]>) -> f32 {
    let allowed = |i: &usize| mask.is_none_or(|mask| mask[*i] != 0);
    (0..q.len()).filter(allowed).map(|i| q[i]).fold(f32::NEG_INFINITY, f32::max)
}

/// The mask of one environment, among those of all, `actions` numbers each.
pub(super) fn mask_of(masks: Option<&[u8]>, actions: usize, env: usize) -> Option<&[u8]> {
    masks.and_then(|masks| masks.get(env * actions..(env + 1) * actions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kernel::seeds::{Purpose, Seeds};

    #[test]
    fn random_actions_are_allowed_and_equally_likely() {
        let mut random = Seeds::new(1).generator(Purpose::Action, 0, 0);
        let mut counts = [0_u32; 5];
        for _ in 0..30_000 {
            counts[random_action(5, Some(&[0, 1, 1, 0, 1]), &mut random) as usize] += 1;
        }
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!([1, 2, 4].iter().all(|i| (9_600..10_400).contains(&counts[*i])), "{counts:?}");
        // Without a mask, the draw is the one of all actions.
        let [mut a, mut b] = [2, 2].map(|seed| Seeds::new(seed).generator(Purpose::Action, 0, 0));
        assert_eq!(random_action(5, None, &mut a), b.below(5) as i64);
    }

    #[test]
    fn best_value_is_the_largest_allowed_one() {
        let q = [3.0, -1.0, 2.0];
        assert_eq!((best_value(&q, None), best_value(&q, Some(&[0, 1, 1]))), (3.0, 2.0));
        assert_eq!(mask_of(Some(&[1, 0, 0, 1]), 2, 1), Some([0, 1].as_slice()));
    }

    #[test]
    fn epsilon_falls_linearly_to_its_end() {
        for (step, expected) in [(0, 1.0), (50, 0.55), (100, 0.1), (u64::MAX, 0.1)] {
            assert!((linear(1.0, 0.1, 100, step) - expected).abs() < 1e-12, "{step}");
        }
    }
}
