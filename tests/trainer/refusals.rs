//! What cannot work ends every rank before training, with one clear error that names the key to change, and
//! exit code 2.

use crate::harness::{Run, totals};
use rankdeck_proto::message::RankEvent;

fn experiment(env: &str, rest: &str) -> String {
    format!("[run]\nname = 'x'\ntotal_steps = 5000\n[env]\n{env}\n{rest}\n")
}

#[test]
fn bad_input_ends_every_rank_before_training() {
    let cartpole = "id = 'CartPole-v1'\nnum_envs = 4";
    for (env, rest, key) in [
        ("id = 'CartPole-v7'\nnum_envs = 4\nworker = 'rust'", "[learn]\nalgorithm = 'ppo'", "env.id"),
        ("id = 'CartPole-v1'\nnum_envs = 3", "[learn]\nalgorithm = 'ppo'", "env.num_envs"),
        (cartpole, "[learn]\nalgorithm = 'ppo'\nnum_minibatches = 7", "learn.num_minibatches"),
        (cartpole, "[learn]\nalgorithm = 'ppg'\naux_num_minibatches = 7", "learn.aux_num_minibatches"),
        (cartpole, "[policy]\nnetwork = 'nature'\n[learn]\nalgorithm = 'a2c'", "policy.network"),
        (cartpole, "[collect]\nnum_steps = 4000\n[learn]\nalgorithm = 'ppo'", "collect.num_steps"),
    ] {
        let mut run = Run::start(&experiment(env, rest), &["--spawn", "2"]);
        run.end_with(2);
        let events = run.events();
        assert!(totals(&events).is_empty(), "{key}");
        for rank in 0..2 {
            let errors: Vec<_> = events
                .iter()
                .filter_map(|(from, event)| match event {
                    RankEvent::Error { message, hint, usage, .. } if *from == rank => {
                        Some((message, hint, usage))
                    }
                    _ => None,
                })
                .collect();
            let [(message, hint, true)] = errors[..] else {
                panic!("{key}: rank {rank} reported {errors:?}\n{}", run.logs())
            };
            assert!(message.contains(key) || hint.contains(key), "{key}: {message}; {hint}");
        }
    }
}
