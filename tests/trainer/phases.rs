//! PPG's phases train what they should: the auxiliary head only in the auxiliary phase, and the shared layers by the critic only when asked to.

use crate::equality::{apart, train};

fn case(policy_iterations: u32, rest: &str) -> String {
    format!(
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\nshared = true\n[collect]\nnum_steps = 32\n\
         [learn]\nalgorithm = 'ppg'\nnum_minibatches = 2\naux_num_minibatches = 2\npolicy_iterations = {policy_iterations}\n{rest}"
    )
}

#[test]
fn the_auxiliary_head_learns_in_the_auxiliary_phase_only() {
    let head = |iterations: u64| {
        let ended = train(&case(3, ""), 1, iterations, true).remove(0);
        let find = |name: &str| ended.state.arrays.iter().find(|a| a.name == name).unwrap().values.clone();
        (find("model.aux_critic.weight"), find("model.critic.weight"), ended.updates)
    };
    let (start, two, three) = (head(0), head(2), head(3));
    assert_eq!(start.0, two.0, "nothing reaches it in the policy phase");
    assert_ne!(start.1, two.1);
    assert_ne!(two.0, three.0);
    // Two minibatches per iteration, and six epochs of two minibatches.
    assert_eq!((two.2, three.2), (4, 6 + 12));
}

/// In the policy phase the critic's loss, however large, does not reach the shared layers, unless it shall.
#[test]
fn the_critic_reaches_shared_layers_only_when_asked_to() {
    let shared = |vf_coef: &str, critic_trains_shared: bool| {
        let rest = format!(
            "max_grad_norm = 1e9\nvf_coef = {vf_coef}\ncritic_trains_shared = {critic_trains_shared}"
        );
        let mut state = train(&case(9, &rest), 1, 1, true).remove(0).state;
        state.arrays.retain(|array| array.name.starts_with("model.network"));
        state
    };
    assert_eq!(apart(&shared("0", false), &shared("1000", false)).0, 0.0);
    assert!(apart(&shared("0", true), &shared("1000", true)).0 > 1e-5);
}
