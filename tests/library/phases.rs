//! PPG's phases train what they should: the auxiliary head only in the auxiliary phase, and the shared layers
//! by the critic only when asked to.

use crate::equality::{apart, train};
use crate::harness::{Run, totals};

fn case(policy_iterations: u32, rest: &str) -> String {
    format!(
        "[env]\nid = 'CartPole-v1'\nnum_envs = 4\n[policy]\nhidden = [16]\nshared = true\n[collect]\nnum_steps = 32\n\
         [learn]\nalgorithm = 'ppg'\nnum_minibatches = 2\naux_num_minibatches = 2\npolicy_iterations = {policy_iterations}\n{rest}"
    )
}

/// PPG-1, ADAM-2.
#[test]
fn auxiliary_head_learns_in_its_phase_only() {
    let head = |iterations: u64| {
        let ended = train(&case(3, ""), 1, iterations, true).remove(0);
        let find = |name: &str| ended.state.arrays.iter().find(|a| a.name == name).unwrap().values.clone();
        (find("model.aux_critic.weight"), find("model.critic.weight"), ended.updates)
    };
    let (start, two, three, five) = (head(0), head(2), head(3), head(5));
    assert_eq!(start.0, two.0, "nothing reaches it in the policy phase");
    assert_eq!(three.0, five.0, "nor do the optimiser's moments move it there");
    assert_ne!(start.1, two.1);
    assert_ne!(two.0, three.0);
    // Two minibatches per iteration, and six epochs of two minibatches.
    assert_eq!((two.2, three.2), (4, 6 + 12));
}

/// In the policy phase the critic's loss, however large, does not reach the shared layers, unless it shall.
#[test]
fn critic_trains_shared_layers_only_if_configured() {
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

/// PPG-1: a run that is resumed within a phase has its auxiliary phases at the same iterations, and logs that
/// the first one knows less.
#[test]
fn resumed_run_keeps_its_phases() {
    let experiment =
        format!("[run]\nname = 'x'\ntotal_steps = {}\n{}[checkpoint]\nevery = 2\n", 5 * 4 * 32, case(4, ""));
    let mut whole = Run::start(&experiment, &[]);
    whole.end_with(0);
    let from = whole.file("checkpoints/iter-2.ckpt");
    let mut resumed = Run::start(&experiment, &["--resume", from.to_str().unwrap()]);
    resumed.end_with(0);
    let updates = |run: &Run| totals(&run.events()).last().unwrap().updates;
    assert_eq!((updates(&whole), updates(&resumed)), (5 * 2 + 12, 5 * 2 + 12));
    assert!(resumed.logs().contains("2 of 4 rollouts"), "{}", resumed.logs());
}
