//! The built-in trainer's sizes: whether they can be split over ranks, and what each rank gets.
//!
//! The console asks before anything starts, and every rank before it waits for others: by the same functions.

use super::{PlanError, PlannedSize};
use crate::experiment::Experiment;
use crate::learn::{Learn, NormAdv};

/// Sizes before they are split.
struct GlobalSizes {
    envs: u64,
    steps: u64,
    minibatches: u64,
}

fn global(experiment: &Experiment) -> Option<(GlobalSizes, &Learn)> {
    if !experiment.launch.command.is_empty() {
        return None;
    }
    let learn = experiment.learn.as_ref()?;
    let envs = u64::from(experiment.env.as_ref()?.num_envs);
    let (steps, minibatches) = (u64::from(experiment.collect.num_steps), u64::from(learn.num_minibatches()));
    Some((GlobalSizes { envs, steps, minibatches }, learn))
}

fn problem(error: String, hint: String, key: &str) -> Option<PlanError> {
    Some(PlanError::new(key, error, hint))
}

/// The multiple of `world` below `size` and the one above, for hints.
fn multiples(size: u64, world: u64) -> String {
    let (below, above) = (size / world * world, (size / world + 1) * world);
    if below == 0 { format!("{above}") } else { format!("{below} or {above}") }
}

/// The first size that `world` ranks cannot share (PLAN-2).
pub fn size_problem(experiment: &Experiment, world: u64) -> Option<PlanError> {
    let (GlobalSizes { envs, steps, .. }, learn) = global(experiment)?;
    let world = world.max(1);
    if envs == 0 || !envs.is_multiple_of(world) {
        return problem(
            format!("{envs} environments cannot be split over {world} ranks"),
            format!("set `env.num_envs` to a multiple of {world}, such as {}", multiples(envs, world)),
            "env.num_envs",
        );
    }
    let local_envs = envs / world;
    if experiment.collect.double_buffer && !local_envs.is_multiple_of(2) {
        let whole = 2 * world;
        return problem(
            format!("{local_envs} environments of each rank cannot be split into two halves"),
            format!("set `env.num_envs` to a multiple of {whole}, such as {}", multiples(envs, whole)),
            "env.num_envs",
        );
    }
    let own = match learn {
        Learn::Dqn(dqn) => replay_problem(u64::from(dqn.batch_size), dqn.buffer_size, local_envs, world),
        Learn::Sac(sac) => replay_problem(u64::from(sac.batch_size), sac.buffer_size, local_envs, world),
        Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) => rollout_problem(experiment, learn, local_envs),
    };
    if own.is_some() {
        return own;
    }
    let (batch, total) = (envs * steps, experiment.run.total_steps);
    if total > 0 && total < batch {
        return problem(
            format!("`run.total_steps` is {total}, less than one rollout of {batch} steps over all ranks"),
            format!("set `run.total_steps` to {batch} or more, or shorten `collect.num_steps`"),
            "run.total_steps",
        );
    }
    None
}

fn rollout_problem(experiment: &Experiment, learn: &Learn, local_envs: u64) -> Option<PlanError> {
    let local = local_envs * u64::from(experiment.collect.num_steps);
    let minibatches = u64::from(learn.num_minibatches());
    if minibatches == 0 || !local.is_multiple_of(minibatches) {
        return problem(
            format!(
                "each rank's rollout of {local} transitions cannot be split into {minibatches} minibatches"
            ),
            format!(
                "set `learn.num_minibatches` to a divisor of {local}, such as {}",
                divisor(local, minibatches)
            ),
            "learn.num_minibatches",
        );
    }
    // A minibatch is larger over all ranks, but a world of one must be able to resume it.
    if learn.norm_adv() != NormAdv::Off && local / minibatches < 2 {
        return problem(
            "each rank's minibatch has 1 transition, whose advantage cannot be normalised".into(),
            "set a smaller `learn.num_minibatches`, or `learn.norm_adv = false`".into(),
            "learn.num_minibatches",
        );
    }
    if let Learn::Ppg(ppg) = learn {
        let units = u64::from(ppg.policy_iterations) * local_envs;
        let minibatches = u64::from(ppg.aux_num_minibatches);
        if minibatches == 0 || !units.is_multiple_of(minibatches) {
            return problem(
                format!(
                    "the {units} rollouts of single environments that each rank collects in a policy phase cannot be \
                     split into {minibatches} minibatches"
                ),
                format!(
                    "set `learn.aux_num_minibatches` to a divisor of {units}, such as {}",
                    divisor(units, minibatches)
                ),
                "learn.aux_num_minibatches",
            );
        }
    }
    None
}

fn divisor(of: u64, at_most: u64) -> u64 {
    (1..=at_most.min(of)).rev().find(|count| of.is_multiple_of(*count)).unwrap_or(1)
}

fn replay_problem(batch: u64, buffer: u64, local_envs: u64, world: u64) -> Option<PlanError> {
    if batch == 0 || !batch.is_multiple_of(world) {
        return problem(
            format!("a batch of {batch} transitions cannot be split over {world} ranks"),
            format!("set `learn.batch_size` to a multiple of {world}, such as {}", multiples(batch, world)),
            "learn.batch_size",
        );
    }
    let (rows, capacity) = (batch / world, buffer / world);
    let least = rows.max(local_envs);
    if capacity < least {
        return problem(
            format!(
                "`learn.buffer_size` is {buffer}, {capacity} transitions per rank: less than a batch of {rows} or one of \
                 each of {local_envs} environments"
            ),
            format!("set `learn.buffer_size` to {} or more", least * world),
            "learn.buffer_size",
        );
    }
    None
}

/// What each rank gets, for people.
pub(super) fn sizes(experiment: &Experiment, world: u64) -> Vec<PlannedSize> {
    let Some((GlobalSizes { envs, steps, minibatches }, learn)) = global(experiment) else {
        return Vec::new();
    };
    let collected = envs * steps;
    let split =
        |name: &str, global: u64| PlannedSize { name: name.to_owned(), local: global / world, global };
    let mut sizes = vec![split("num_envs", envs)];
    sizes.extend(match learn {
        Learn::Dqn(dqn) => [split("collected", collected), split("batch", u64::from(dqn.batch_size))],
        Learn::Sac(sac) => [split("collected", collected), split("batch", u64::from(sac.batch_size))],
        Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) => {
            [split("batch", collected), split("minibatch", collected / minibatches)]
        }
    });
    let iterations = experiment.run.total_steps / collected;
    if iterations > 0 {
        sizes.push(PlannedSize { name: "iterations".into(), local: iterations, global: iterations });
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(algorithm: &str, envs: u32, rest: &str, world: u64) -> Option<String> {
        let text = format!(
            "[run]\nname = 'x'\ntotal_steps = 5000000\n[env]\nid = 'CartPole-v1'\nnum_envs = {envs}\n\
             [learn]\nalgorithm = '{algorithm}'\n{rest}"
        );
        let found = size_problem(&toml::from_str(&text).unwrap(), world);
        assert!(found.iter().all(|one| !one.cause.error.is_empty() && !one.cause.hint.is_empty()));
        found.map(|one| one.key)
    }

    /// What every rank would refuse: shares of a batch, of replay and of PPG's auxiliary phase.
    #[test]
    fn what_cannot_be_shared_off_policy_and_in_the_auxiliary_phase_is_refused() {
        for (algorithm, envs, rest, world, wanted) in [
            ("dqn", 3, "batch_size = 20", 3, Some("learn.batch_size")),
            ("dqn", 3, "batch_size = 21", 3, None),
            ("sac", 3, "", 3, Some("learn.batch_size")),
            ("sac", 4, "", 4, None),
            ("dqn", 2, "batch_size = 32\nbuffer_size = 10", 2, Some("learn.buffer_size")),
            ("dqn", 64, "batch_size = 2\nbuffer_size = 63", 1, Some("learn.buffer_size")),
            (
                "ppg",
                4,
                "policy_iterations = 3\naux_num_minibatches = 4",
                2,
                Some("learn.aux_num_minibatches"),
            ),
            ("ppg", 4, "policy_iterations = 2\naux_num_minibatches = 4", 2, None),
            ("ppo", 6, "[collect]\ndouble_buffer = true", 2, Some("env.num_envs")),
            ("ppo", 8, "[collect]\ndouble_buffer = true", 2, None),
        ] {
            assert_eq!(key(algorithm, envs, rest, world).as_deref(), wanted, "{algorithm} {rest} on {world}");
        }
    }
}
