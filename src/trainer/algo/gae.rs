//! Generalized advantage estimation (Schulman et al. 2016), with CleanRL's convention for episode ends.
//!
//! `dones[t]` means that the observation *at* `t` is the first of a new episode, that is, that the action at
//! `t - 1` ended one; the flag after the last step is a separate argument. Both termination and truncation
//! cut the chain of advantages. Whether the value of a truncated episode's last observation counts is up to
//! the caller: it is in `final_values`, which are 0 where nothing follows. CleanRL's PPO leaves them all 0,
//! and its published CartPole returns were made that way.

/// A rollout's numbers, each `[steps][envs]`, and what follows its last step, `[envs]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gae<'a> {
    /// Rewards of the actions.
    pub rewards: &'a [f32],
    /// Values of the observations.
    pub values: &'a [f32],
    /// Values of the last observations of the episodes that the actions cut off; 0 where nothing was cut off,
    /// or where it must not count.
    pub(crate) final_values: &'a [f32],
    /// 1.0 where the observation begins an episode.
    pub(crate) dones: &'a [f32],
    /// Values after the last step.
    pub(crate) next_values: &'a [f32],
    /// Flags after the last step.
    pub(crate) next_dones: &'a [f32],
    pub gamma: f32,
    pub lambda: f32,
}

impl Gae<'_> {
    /// Writes advantages and returns (advantage + value), `[steps][envs]`.
    pub(crate) fn run(&self, advantages: &mut [f32], returns: &mut [f32]) {
        let envs = self.next_values.len();
        let steps = self.rewards.len().checked_div(envs).unwrap_or(0);
        for env in 0..envs {
            let (mut later, mut next_value, mut next_done) =
                (0.0, self.next_values[env], self.next_dones[env]);
            for step in (0..steps).rev() {
                let i = step * envs + env;
                let continues = 1.0 - next_done;
                let follows = next_value * continues + self.final_values[i];
                let delta = self.rewards[i] + self.gamma * follows - self.values[i];
                later = delta + self.gamma * self.lambda * continues * later;
                advantages[i] = later;
                returns[i] = later + self.values[i];
                (next_value, next_done) = (self.values[i], self.dones[i]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gae_equals_values_computed_by_hand() {
        // One environment, gamma 0.5, lambda 0.5; the second action ends an episode. By hand, from the end:
        // t=2: delta = 4 + 0.5*8*1 - 3 = 5,    adv = 5
        // t=1: delta = 2 + 0 - 2       = 0,    adv = 0           (ends: no bootstrap, no later advantage)
        // t=0: delta = 1 + 0.5*2 - 1   = 1,    adv = 1 + 0.25*0 = 1
        let gae = Gae {
            rewards: &[1.0, 2.0, 4.0],
            values: &[1.0, 2.0, 3.0],
            final_values: &[0.0; 3],
            dones: &[0.0, 0.0, 1.0],
            next_values: &[8.0],
            next_dones: &[0.0],
            gamma: 0.5,
            lambda: 0.5,
        };
        let (mut advantages, mut returns) = ([0.0; 3], [0.0; 3]);
        gae.run(&mut advantages, &mut returns);
        assert_eq!((advantages, returns), ([1.0, 0.0, 5.0], [2.0, 2.0, 8.0]));
        // The last action ends an episode: the value after it must not count.
        Gae { next_dones: &[1.0], ..gae }.run(&mut advantages, &mut returns);
        assert_eq!(advantages, [1.0, 0.0, 1.0]);
    }

    /// A task that gives reward 1 at every step, cut off every 10 steps. With the value 1 / (1 - gamma)
    /// everywhere, all advantages are 0 if and only if the values behind the cuts count.
    #[test]
    fn truncated_episode_is_bootstrapped_by_its_final_value() {
        let value = 1.0 / (1.0 - 0.9);
        let (rewards, values) = ([1.0; 30], [value; 30]);
        let dones: Vec<f32> = (0..30).map(|step| f32::from(u8::from(step % 10 == 0))).collect();
        let final_values: Vec<f32> = (0..30).map(|step| if step % 10 == 9 { value } else { 0.0 }).collect();
        let largest = |final_values: &[f32]| {
            let (mut advantages, mut returns) = ([0.0; 30], [0.0; 30]);
            let (next_values, next_dones) = ([value], [1.0]);
            let gae = Gae {
                rewards: &rewards,
                values: &values,
                final_values,
                dones: &dones,
                next_values: &next_values,
                next_dones: &next_dones,
                gamma: 0.9,
                lambda: 0.95,
            };
            gae.run(&mut advantages, &mut returns);
            advantages.iter().fold(0.0_f32, |largest, advantage| largest.max(advantage.abs()))
        };
        assert!(largest(&final_values) < 1e-5);
        assert!(largest(&[0.0; 30]) > 5.0);
    }

    #[test]
    fn environments_do_not_mix() {
        let column = |rewards: [f32; 2], values: [f32; 2], next: f32| {
            let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
            let (dones, ends) = ([0.0; 2], [0.0]);
            let gae = Gae {
                rewards: &rewards,
                values: &values,
                final_values: &[0.0; 2],
                dones: &dones,
                next_values: &[next],
                next_dones: &ends,
                gamma: 0.9,
                lambda: 0.8,
            };
            gae.run(&mut advantages, &mut returns);
            advantages
        };
        let (a, b) = (column([1.0, 2.0], [0.5, 0.25], 3.0), column([-1.0, 0.0], [1.5, 2.0], -2.0));
        let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
        Gae {
            rewards: &[1.0, -1.0, 2.0, 0.0],
            values: &[0.5, 1.5, 0.25, 2.0],
            final_values: &[0.0; 4],
            dones: &[0.0; 4],
            next_values: &[3.0, -2.0],
            next_dones: &[0.0; 2],
            gamma: 0.9,
            lambda: 0.8,
        }
        .run(&mut advantages, &mut returns);
        assert_eq!(advantages, [a[0], b[0], a[1], b[1]]);
    }
}
