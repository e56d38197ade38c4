//! The keys of the learner: `[policy]`, `[collect]`, and `[learn]` by algorithm.

use super::schema::Fallback::{Required, Value, Words};
use super::schema::{Key, Keys, Kind, NOT_NEGATIVE, POSITIVE, SHARE, U32, U63, key};

pub(super) static POLICY: Keys = &[&[
    key(
        "network",
        Kind::Choice(&["mlp", "nature", "impala"]),
        Value("\"mlp\""),
        "Fully connected layers, for flat observations; for images the three convolutions of Mnih et al. 2015, or the residual network of Espeholt et al. 2018.",
    ),
    key(
        "hidden",
        Kind::Integers(1..=65536),
        Value("[64, 64]"),
        "Widths of the hidden layers; for images those after the convolutions (512 for `nature`, 256 for `impala` in the papers).",
    ),
    key(
        "channels",
        Kind::Integers(1..=65536),
        Words("`[32, 64, 64]` for `nature`, `[16, 32, 32]` for `impala`"),
        "Channels of the three convolutions of `nature`, or of the sequences of `impala`.",
    ),
    key(
        "activation",
        Kind::Choice(&["tanh", "relu"]),
        Value("\"tanh\""),
        "Between the layers of `mlp`; the others have ReLU.",
    ),
    key(
        "shared",
        Kind::Flag,
        Value("false"),
        "Actor and critic share the hidden layers; networks for images always do.",
    ),
    key(
        "log_std",
        Kind::Number { min: -20.0, max: 5.0, open: false },
        Value("0.0"),
        "Logarithm of the actions' standard deviation at the start, for continuous actions.",
    ),
    key(
        "kernel",
        Kind::Choice(&["auto", "native", "libtorch"]),
        Value("\"auto\""),
        "What runs the networks: `native`, hand-written passes for fully connected networks on the CPU, several times as fast; `libtorch`; or the former where it can.",
    ),
]];

pub(super) static COLLECT: Keys = &[&[
    key(
        "num_steps",
        Kind::Integer(1..=10_000_000),
        Value("128"),
        "Steps of each environment per training iteration.",
    ),
    key(
        "normalise_observations",
        Kind::Flag,
        Value("false"),
        "Normalise observations by their running moments over all ranks (`ppo`, `ppg`, `a2c`).",
    ),
    key("clip_observations", POSITIVE, Value("10.0"), "Bound of normalised observations."),
    key(
        "normalise_rewards",
        Kind::Flag,
        Value("false"),
        "Divide rewards by the running deviation of the discounted return over all ranks (`ppo`, `ppg`, `a2c`).",
    ),
    key("clip_rewards", POSITIVE, Value("10.0"), "Bound of normalised rewards."),
    key("reward_scale", POSITIVE, Value("1.0"), "Factor of the rewards that the learner sees."),
]];

/// Every algorithm with its keys.
pub(super) static LEARN: &[(&str, Keys)] =
    &[("ppo", PPO), ("ppg", PPG), ("a2c", A2C), ("dqn", DQN), ("sac", SAC)];

const fn algorithm(word: &'static [&'static str], doc: &'static str) -> Key {
    key("algorithm", Kind::Choice(word), Required, doc)
}

const fn learning_rate(default: &'static str) -> Key {
    key("learning_rate", POSITIVE, Value(default), "Adam's learning rate.")
}

const fn anneal_lr(default: &'static str) -> Key {
    key(
        "anneal_lr",
        Kind::Flag,
        Value(default),
        "Linear decay of the learning rate to 0 over `run.total_steps`.",
    )
}

const fn adam_eps(default: &'static str) -> Key {
    key("adam_eps", POSITIVE, Value(default), "Adam's epsilon.")
}

const fn gamma(default: &'static str) -> Key {
    key("gamma", SHARE, Value(default), "Discount of future rewards.")
}

const fn gae_lambda(default: &'static str) -> Key {
    key("gae_lambda", SHARE, Value(default), "GAE's lambda; 1: returns up to the end of the rollout.")
}

const fn num_minibatches(default: &'static str) -> Key {
    key(
        "num_minibatches",
        Kind::Integer(1..=U32),
        Value(default),
        "Minibatches per epoch; must divide each rank's rollout.",
    )
}

const fn update_epochs(default: &'static str) -> Key {
    key("update_epochs", Kind::Integer(1..=U32), Value(default), "Epochs over each rollout.")
}

const fn norm_adv(default: &'static str, doc: &'static str) -> Key {
    key("norm_adv", Kind::Flag, Value(default), doc)
}

const fn ent_coef(default: &'static str) -> Key {
    key("ent_coef", NOT_NEGATIVE, Value(default), "Weight of the entropy bonus.")
}

const fn bootstrap_truncated(default: &'static str) -> Key {
    key(
        "bootstrap_truncated",
        Kind::Flag,
        Value(default),
        "Where a time limit cut an episode, go on with the value of its last observation; false: as if it had ended, as CleanRL's PPO does.",
    )
}

/// Of all algorithms with a critic of state values.
static ACTOR_CRITIC: &[Key] = &[
    key(
        "norm_adv_over",
        Kind::Choice(&["rank", "world"]),
        Value("\"rank\""),
        "Whose moments normalise advantages: the rank's share, as CleanRL does, or all ranks', which makes the result independent of the world size.",
    ),
    key(
        "value_loss",
        Kind::Choice(&["squared", "huber"]),
        Value("\"squared\""),
        "Loss of the value estimates: half the squared error, or Huber's with delta 1.",
    ),
    key("vf_coef", NOT_NEGATIVE, Value("0.5"), "Weight of the value loss."),
    key("max_grad_norm", POSITIVE, Value("0.5"), "Bound of the averaged gradient's global norm."),
];

/// Of the algorithms with a clipped ratio.
static CLIPPED: &[Key] = &[
    key(
        "clip_coef",
        Kind::Number { min: 0.0, max: 1.0, open: true },
        Value("0.2"),
        "Clip range of the probability ratio.",
    ),
    key("clip_vloss", Kind::Flag, Value("true"), "Clip the value loss with the same range."),
];

static PPO: Keys = &[
    &[
        algorithm(&["ppo"], "Proximal policy optimisation; defaults as CleanRL's ppo.py."),
        learning_rate("0.00025"),
        anneal_lr("true"),
        adam_eps("0.00001"),
        gamma("0.99"),
        gae_lambda("0.95"),
        num_minibatches("4"),
        update_epochs("4"),
        norm_adv("true", "Normalise advantages per minibatch."),
        ent_coef("0.01"),
        key(
            "target_kl",
            NOT_NEGATIVE,
            Value("0.0"),
            "Leave the epoch loop when the all-reduced KL estimate exceeds this; 0: never.",
        ),
        bootstrap_truncated("false"),
    ],
    CLIPPED,
    ACTOR_CRITIC,
];

static PPG: Keys = &[
    &[
        algorithm(&["ppg"], "Phasic policy gradient; defaults as CleanRL's ppg_procgen.py."),
        learning_rate("0.0005"),
        anneal_lr("false"),
        adam_eps("0.00000001"),
        gamma("0.999"),
        gae_lambda("0.95"),
        key(
            "policy_iterations",
            Kind::Integer(1..=100_000),
            Value("32"),
            "Training iterations (rollouts) of a policy phase; an auxiliary phase follows.",
        ),
        num_minibatches("8"),
        update_epochs("1"),
        norm_adv("true", "Normalise advantages over the whole rollout."),
        ent_coef("0.01"),
        key(
            "critic_trains_shared",
            Kind::Flag,
            Value("false"),
            "Let the critic's loss change the shared layers in the policy phase too (ALF); false: it reads them detached (CleanRL).",
        ),
        key(
            "aux_epochs",
            Kind::Integer(1..=U32),
            Value("6"),
            "Epochs over everything that the policy phase collected.",
        ),
        key(
            "aux_num_minibatches",
            Kind::Integer(1..=U32),
            Value("16"),
            "Minibatches per auxiliary epoch, of whole rollouts of single environments; must divide `policy_iterations` times the rank's environments.",
        ),
        key(
            "beta_clone",
            NOT_NEGATIVE,
            Value("1.0"),
            "Weight of the KL divergence from the policy before the auxiliary phase.",
        ),
        bootstrap_truncated("false"),
    ],
    CLIPPED,
    ACTOR_CRITIC,
];

static A2C: Keys = &[
    &[
        algorithm(&["a2c"], "Advantage actor-critic: one update per rollout, on all of it."),
        learning_rate("0.0007"),
        anneal_lr("true"),
        adam_eps("0.00001"),
        gamma("0.99"),
        gae_lambda("1.0"),
        norm_adv("false", "Normalise advantages over the rollout."),
        ent_coef("0.0"),
        bootstrap_truncated("true"),
    ],
    ACTOR_CRITIC,
];

const fn buffer_size(default: &'static str) -> Key {
    key(
        "buffer_size",
        Kind::Integer(1..=1_000_000_000),
        Value(default),
        "Transitions that replay holds, over all ranks.",
    )
}

const fn learning_starts(default: &'static str) -> Key {
    key(
        "learning_starts",
        Kind::Integer(0..=U63),
        Value(default),
        "Environment steps over all ranks before the first update.",
    )
}

const fn batch_size(default: &'static str) -> Key {
    key(
        "batch_size",
        Kind::Integer(1..=10_000_000),
        Value(default),
        "Transitions per update, over all ranks; must be divisible by the world size.",
    )
}

const fn updates_per_iteration(default: &'static str) -> Key {
    key(
        "updates_per_iteration",
        Kind::Integer(1..=U32),
        Value(default),
        "Updates after each `collect.num_steps` steps.",
    )
}

const fn tau(default: &'static str) -> Key {
    key(
        "tau",
        Kind::Number { min: 0.0, max: 1.0, open: true },
        Value(default),
        "Share of a target network that its update replaces.",
    )
}

static DQN: Keys = &[&[
    algorithm(&["dqn"], "Deep Q-learning, discrete actions; defaults as CleanRL's dqn.py."),
    learning_rate("0.00025"),
    adam_eps("0.00000001"),
    gamma("0.99"),
    buffer_size("10000"),
    learning_starts("10000"),
    batch_size("128"),
    updates_per_iteration("1"),
    key(
        "target_every",
        Kind::Integer(1..=U63),
        Value("50"),
        "Updates between copies of the online network to the target network.",
    ),
    tau("1.0"),
    key("double", Kind::Flag, Value("false"), "Choose the next action by the online network."),
    key("dueling", Kind::Flag, Value("false"), "Split the network into state value and advantages."),
    key("n_step", Kind::Integer(1..=10_000), Value("1"), "Steps of reward before the bootstrap."),
    key("epsilon_start", SHARE, Value("1.0"), "Probability of a random action at the start."),
    key("epsilon_end", SHARE, Value("0.05"), "Probability of a random action at the end."),
    key(
        "epsilon_steps",
        Kind::Integer(1..=U63),
        Value("250000"),
        "Environment steps over all ranks over which epsilon falls: all of it for `linear`, the time constant for `exponential`.",
    ),
    key(
        "epsilon_decay",
        Kind::Choice(&["linear", "exponential"]),
        Value("\"linear\""),
        "How epsilon falls: evenly (CleanRL), or as `end + (start - end) * exp(-steps / epsilon_steps)` (DI-engine).",
    ),
    key(
        "loss",
        Kind::Choice(&["squared", "huber"]),
        Value("\"squared\""),
        "Of TD errors: their mean square (CleanRL, DI-engine), or Huber's loss with delta 1 (Mnih et al. 2015).",
    ),
    key(
        "max_grad_norm",
        NOT_NEGATIVE,
        Value("0.0"),
        "Bound of the averaged gradient's global norm; 0: none.",
    ),
]];

static SAC: Keys = &[&[
    algorithm(
        &["sac"],
        "Soft actor-critic, continuous actions; defaults as CleanRL's sac_continuous_action.py.",
    ),
    key("policy_lr", POSITIVE, Value("0.0003"), "Adam's learning rate of the actor."),
    key("q_lr", POSITIVE, Value("0.001"), "Adam's learning rate of the critics and of alpha."),
    adam_eps("0.00000001"),
    gamma("0.99"),
    buffer_size("1000000"),
    learning_starts("5000"),
    batch_size("256"),
    updates_per_iteration("1"),
    key(
        "policy_every",
        Kind::Integer(1..=10_000),
        Value("2"),
        "Critic updates between actor updates, which are then made up for.",
    ),
    tau("0.005"),
    key("autotune", Kind::Flag, Value("true"), "Learn the entropy weight; false: `alpha` stays."),
    key("alpha", POSITIVE, Value("1.0"), "Entropy weight, at the start when it is learnt."),
]];
