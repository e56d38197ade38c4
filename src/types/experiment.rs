//! `configs/*.toml`: one experiment.
//!
//! Owner: the user. Sizes are global, over all ranks. Unknown keys are errors.
//! The resolved form (defaults filled in, `--set` applied) is written to the run directory and read by the
//! trainer.

pub use super::learn::{A2c, Dqn, Learn, Ppg, Ppo, Sac};

use super::schema::Kind::{Integer, Integers, Number, Text, Texts};
use super::schema::text_rules::{ADDRESS, ENV_ID, NAME, PATH, PLAIN, PROGRAM};
use super::schema::{POSITIVE, SECONDS, SHARE, U32, YEAR_S, choices, keys};
use std::collections::BTreeMap;

/// Environments that are computed in Rust.
pub const BUILTIN_ENVS: [&str; 6] =
    ["CartPole-v0", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"];

keys! {
    /// A whole experiment file.
    pub struct Experiment {
        /// What the run is called and how long it is.
        run: Run,
        /// What each rank runs, and what happens when the console is gone.
        launch: Launch => "",
        /// The process group.
        distributed: Distributed => "",
        /// The environment.
        env: Option<Env> => "required by the built-in trainer",
        /// The networks.
        policy: Policy => "",
        /// Collecting experience.
        collect: Collect => "",
        /// The algorithm and its hyper-parameters; `algorithm` decides which other keys there are.
        learn: Option<Learn> => "required by the built-in trainer",
        /// Rank 0 plays whole episodes with the greedy policy while the others wait.
        eval: Eval => "",
        /// Checkpoints, written by rank 0 into the run directory, atomically.
        checkpoint: Checkpoint => "",
        /// Stuck-rank detection.
        watch: Watch => "",
        /// What the console that launched the run does when a generation fails.
        restart: Restart => "",
        /// Values picked from what a program of the user prints or writes: rank 0's own, not reduced over the
        /// ranks.
        metrics: Metrics => "",
    }
}

keys! {
    /// The table `[run]`.
    pub struct Run {
        /// Name; the run directory is `runs/NAME-TIMESTAMP`.
        name: String [Text(&NAME)],
        /// Base seed; rank and environment streams are derived from it without overlap.
        #[serde(default)]
        seed: u64 = 0,
        /// Global environment steps after which the run ends; 0: no limit.
        #[serde(default)]
        total_steps: u64 = 0,
        /// What the run is for, in your own words; `rankdeck ps` shows it.
        note: Option<String> [Text(&PLAIN)] => "none",
    }
}

keys! {
    /// The table `[launch]`.
    #[serde(default)]
    pub struct Launch {
        /// A torchrun-style program and its arguments, run once per rank.
        command: Vec<String> => "the built-in trainer",
        /// Folder, relative to this file, that is copied to every host by content; each run gets its own
        /// copy, and ranks run in it.
        // A console replaces it by `sha256:HASH` before it launches.
        code: Option<String> [Text(&PATH)] => "nothing: ranks run in the host's `workdir`",
        /// Patterns of files below `code` that stay behind, such as `*.ckpt` or `data/`; without `/` for any
        /// name, with `/` for the whole path.
        exclude: Vec<String> [Texts("patterns")]
            => "`.git`, `__pycache__`, `venv`, `runs` and the like stay behind anyway",
        /// Patterns of files that travel although `.gitignore` lists them, such as `*.so`.
        include: Vec<String> [Texts("patterns")] => "what git ignores stays behind",
        /// Environment of the ranks; `hosts.toml` wins. `${NAME}` is the console's own variable as of each
        /// launch; its value is in no file and no record.
        env: BTreeMap<String, String> = BTreeMap::new(),
        /// Variables of the console that the ranks get, such as `WANDB_API_KEY`: names are recorded, values
        /// never.
        pass_env: Vec<String> [Texts("names of variables")] => "nothing",
        /// Threads per rank (`OMP_NUM_THREADS`).
        threads: u32 [Integer(1..=4096)] = 1,
        /// What happens when the console is gone: training goes on, or the agents stop it after `lease_s`.
        on_disconnect: OnDisconnect = OnDisconnect::Keep,
        /// Seconds without a console after which `on_disconnect = "stop"` stops the run.
        lease_s: f64 [SECONDS] = 30.0,
        /// Seconds between the polite and the hard signal.
        stop_grace_s: f64 [SECONDS] = 10.0,
        /// Seconds that a clean stop may take while ranks make progress: `stop_grace_s` counts from the last
        /// one then.
        stop_limit_s: f64 [SECONDS] = 300.0,
        /// Address of rank 0's store as the other hosts reach it, where SSH uses another one.
        master_addr: Option<String> [Text(&ADDRESS)] => "address of the first host",
        /// Port of rank 0's store; 0: a free one is chosen on the first host.
        master_port: u16 = 0,
    }
}

choices! {
    /// What happens to a run when its console is gone.
    pub enum OnDisconnect {
        /// Training goes on and any console can adopt it.
        Keep = "keep",
        /// The agents stop it after `lease_s`.
        Stop = "stop",
    }
}

keys! {
    /// The table `[distributed]`.
    #[serde(default)]
    pub struct Distributed {
        /// Collectives; `auto`: NCCL where every rank has a GPU, else those of CPU tensors.
        backend: Backend = Backend::Auto,
        /// Seconds after which a collective, or the rendezvous, gives up.
        timeout_s: f64 [SECONDS] = 600.0,
        /// MiB per gradient bucket.
        bucket_mb: f64 [Number { min: 0.0, max: 65536.0, open: true }] = 25.0,
        /// Updates between comparisons of the ranks' weight fingerprints; 0: never.
        fingerprint_every: u64 = 1,
        /// Devices of each rank that a batch of `dqn` is split over, from the rank's own on; gradients are
        /// gathered on the first.
        data_parallel: u32 [Integer(1..=64)] = 1,
    }
}

choices! {
    /// The library of the collectives.
    pub enum Backend {
        /// NCCL where every rank has a GPU, else as `tcp`.
        Auto = "auto",
        /// NCCL, for CUDA tensors.
        Nccl = "nccl",
        /// The built-in trainer's own, for CPU tensors: TCP connections between the ranks.
        Tcp = "tcp",
    }
}

keys! {
    /// The table `[env]`. Absent options of Atari games take the values of [`Env::atari`].
    pub struct Env {
        /// Environment id: classic control in Rust (such as `CartPole-v1`), an Atari game (`ALE/Pong-v5`,
        /// `PongNoFrameskip-v4`), or any id that Gymnasium knows (`module:Name-v0` imports the module first).
        id: String [Text(&ENV_ID)],
        /// Environments over all ranks; must be divisible by the world size.
        num_envs: u32 [Integer(1..=1_000_000)],
        /// Where environments are computed: in the trainer, or in a Python process beside each rank; `auto`:
        /// in the trainer where it knows the id.
        #[serde(default)]
        worker: EnvWorker = EnvWorker::Auto,
        /// Interpreter of the Python worker, on every host; `rankdeck-trainer --setup-env DIR` makes one.
        #[serde(default = "default_python")]
        python: String [Text(&PROGRAM)] = default_python(),
        /// Threads of each rank's Atari emulators.
        worker_threads: Option<u32> [Integer(1..=4096)] => "the host's cores over its ranks",
        /// Seconds after which a Python worker that does not answer is given up; starting it may take twice
        /// as long. With several ranks at most 0.4 of `distributed.timeout_s`, since the others wait.
        #[serde(default = "default_worker_timeout_s")]
        worker_timeout_s: f64 [SECONDS] = default_worker_timeout_s(),
        /// Steps after which an episode is cut off (truncated).
        max_episode_steps: Option<u32> [Integer(1..=U32)] => "the environment's own limit",
        /// Atari: frames per step, the last two maximised.
        frame_skip: Option<u32> [Integer(1..=1000)] => "4",
        /// Atari: probability that a frame repeats the previous action (sticky actions).
        repeat_action_probability: Option<f64> [SHARE] => "0.25 for `ALE/*-v5`, else 0",
        /// Atari: at most so many idle frames begin a game.
        noop_max: Option<u32> [Integer(0..=1000)] => "30",
        /// Atari: in training a lost life ends the episode; evaluations and returns are of whole games.
        episodic_life: Option<bool> => "true",
        /// Atari: training sees the sign of each reward; returns stay unclipped.
        clip_rewards: Option<bool> => "true",
        /// Atari: frames in an observation.
        frame_stack: Option<u32> [Integer(1..=64)] => "4",
        /// Atari: height and width of a frame, gray.
        image_size: Option<u32> [Integer(8..=512)] => "84",
    }
}

impl Env {
    /// `num_envs` environments `id`, everything else as it is by default.
    pub fn new(id: impl Into<String>, num_envs: u32) -> Env {
        Env { id: id.into(), num_envs, ..Env::default() }
    }
}

fn default_python() -> String {
    "python3".into()
}

fn default_worker_timeout_s() -> f64 {
    60.0
}

choices! {
    /// Where environments are computed.
    pub enum EnvWorker {
        /// In Rust where the id is known there, else in Python.
        Auto = "auto",
        /// In this process.
        Rust = "rust",
        /// In a Python process beside each rank.
        Python = "python",
    }
}

keys! {
    /// The table `[policy]`.
    #[serde(default)]
    pub struct Policy {
        /// Fully connected layers, for flat observations; for images the three convolutions of Mnih et al.
        /// 2015, or the residual network of Espeholt et al. 2018.
        network: Network = Network::Mlp,
        /// Widths of the hidden layers; for images those after the convolutions (512 for `nature`, 256 for
        /// `impala` in the papers).
        hidden: Vec<u32> [Integers(1..=65536)] = vec![64, 64],
        /// Channels of the three convolutions of `nature`, or of the sequences of `impala`.
        channels: Option<Vec<u32>> [Integers(1..=65536)]
            => "`[32, 64, 64]` for `nature`, `[16, 32, 32]` for `impala`",
        /// Between the layers of `mlp`; the others have ReLU.
        activation: Activation = Activation::Tanh,
        /// Actor and critic share the hidden layers; networks for images always do.
        shared: bool = false,
        /// Logarithm of the actions' standard deviation at the start, for continuous actions.
        log_std: f64 [Number { min: -20.0, max: 5.0, open: false }] = 0.0,
        /// What runs the networks: `native`, hand-written passes for fully connected networks on the CPU,
        /// several times as fast; `libtorch`; or the former where it can.
        kernel: Kernel = Kernel::Auto,
        /// On a GPU, updates of PPO, DQN and SAC and the networks' looks at observations are captured as CUDA
        /// graphs after the first few, and started with one call each; where that fails, the reason is said
        /// and they are done step by step, as with `false`. No real GPU has compared the two yet.
        cuda_graphs: bool = false,
        /// On a GPU, cuDNN sums in one order only, so that a run that is resumed goes on bit by bit;
        /// CleanRL's `torch_deterministic`. `false` lets it choose, which may be faster.
        deterministic: bool = true,
        /// On a GPU, cuDNN times its algorithms where a shape is new, and keeps the fastest. No real GPU has
        /// compared it with `false` yet.
        cudnn_benchmark: bool = false,
        /// On a GPU, images are laid out colours last for the convolutions, as they always are on CPUs. No
        /// real GPU has compared it with `false` yet.
        channels_last: bool = false,
        /// What networks for images compute in, up to their last layers; `bf16` rounds what goes into and
        /// comes out of each layer. Weights, last layers, losses and optimisers are f32. No real GPU has
        /// compared the two yet.
        precision: Precision = Precision::F32,
    }
}

choices! {
    /// What networks compute in.
    pub enum Precision {
        /// 32 bits.
        F32 = "f32",
        /// Half as many, with fewer digits.
        Bf16 = "bf16",
    }
}

choices! {
    /// The kind of network.
    pub enum Network {
        /// Fully connected layers, for flat observations.
        Mlp = "mlp",
        /// The three convolutions of Mnih et al. 2015, for images.
        Nature = "nature",
        /// The residual network of Espeholt et al. 2018, for images.
        Impala = "impala",
    }
}

choices! {
    /// What runs the networks.
    pub enum Kernel {
        /// The hand-written passes where they exist: fully connected networks on the CPU; libtorch elsewhere.
        Auto = "auto",
        /// The hand-written passes only.
        Native = "native",
        /// libtorch computes every pass.
        Libtorch = "libtorch",
    }
}

choices! {
    /// The function between layers.
    pub enum Activation {
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Rectified linear unit.
        Relu = "relu",
    }
}

keys! {
    /// The table `[collect]`.
    #[serde(default)]
    pub struct Collect {
        /// Steps of each environment per training iteration.
        num_steps: u32 [Integer(1..=10_000_000)] = 128,
        /// Normalise observations by their running moments over all ranks (`ppo`, `ppg`, `a2c`).
        normalise_observations: bool = false,
        /// Bound of normalised observations.
        clip_observations: f64 [POSITIVE] = 10.0,
        /// Divide rewards by the running deviation of the discounted return over all ranks (`ppo`, `ppg`,
        /// `a2c`).
        normalise_rewards: bool = false,
        /// Bound of normalised rewards.
        clip_rewards: f64 [POSITIVE] = 10.0,
        /// Factor of the rewards that the learner sees.
        reward_scale: f64 [POSITIVE] = 1.0,
        /// Each rank's environments are two halves, each in a Python worker of its own: one half steps while
        /// the policy looks at the other (`ppo`, `ppg`, `a2c`). Same rollouts, bit by bit, where the
        /// hand-written passes compute the policy; libtorch may round otherwise for half as many rows.
        double_buffer: bool = false,
    }
}

keys! {
    /// The table `[eval]`.
    #[serde(default)]
    pub struct Eval {
        /// Training iterations between evaluations; 0: never.
        every: u64 = 0,
        /// Episodes per evaluation, each with its own fixed seed.
        episodes: u32 [Integer(1..=1_000_000)] = 20,
        /// Environments that are played at the same time.
        num_envs: Option<u32> [Integer(1..=100_000)] => "as many as episodes, at most 32",
        /// Steps after which an evaluation cuts an episode off; it counts as it stands.
        max_steps: u32 [Integer(1..=U32)] = 100_000,
        /// The run ends, successfully, when an evaluation's mean return reaches this.
        stop_value: Option<f64> => "never",
    }
}

keys! {
    /// The table `[checkpoint]`.
    #[serde(default)]
    pub struct Checkpoint {
        /// Training iterations between checkpoints; 0: only best and last.
        every: u64 = 0,
        /// Also keep the checkpoint with the best evaluation.
        best: bool = true,
        /// Also write every rank's replay (DQN, SAC), or the rollouts of the present phase (PPG), with each
        /// `latest`; false: a restart fills replay again before it learns on, and that phase learns from
        /// fewer rollouts.
        replay: bool = false,
        /// Checkpoints of single iterations (`iter-N`) that are kept, the newest ones; 0: all.
        keep: u32 = 0,
    }
}

keys! {
    /// The table `[watch]`.
    #[serde(default)]
    pub struct Watch {
        /// What to do about a red verdict on a living rank that is certain: say so, stop (exit code 4), or
        /// restart from the latest checkpoint. Silence alone is never certain, unless `silence_is_stuck_s`
        /// is set.
        on_stuck: OnStuck = OnStuck::Report,
        /// Seconds without a sample after which a host is `lost`.
        lost_after_s: f64 [SECONDS] = 5.0,
        /// Seconds that others must have waited in a collective before the rank that has not entered it is
        /// `behind`.
        behind_after_s: f64 [SECONDS] = 5.0,
        /// Seconds allowed for start-up and rendezvous before `behind` may be said about them.
        init_budget_s: f64 [SECONDS] = 120.0,
        /// Seconds allowed for an evaluation or a checkpoint that shows no progress, and for whatever a rank
        /// of a script does while others wait for it.
        rank0_budget_s: f64 [SECONDS] = 600.0,
        /// Seconds of silence after which a rank that others wait for counts as stuck without any proof, so
        /// that `on_stuck` acts on it. A healthy rank may be silent, too: choose more than any evaluation,
        /// download or remote call of the run takes.
        silence_is_stuck_s: Option<f64> [SECONDS] => "never",
        /// Ranks compare every collective before they begin it, so that the first difference is named at its
        /// call: slower; `rankdeck restart --check-collectives` does the same for one generation.
        check_collectives: bool = false,
        /// Show the process groups of Python ranks through a `sitecustomize` on `PYTHONPATH`; scripts stay as
        /// they are.
        python_hook: bool = true,
        /// Compare the weights of Python ranks after steps of their optimisers, by a few elements of each
        /// parameter: at most 1 % of the time. Needs `python_hook`.
        fingerprint_weights: bool = true,
        /// Say so when the run does not learn: values that are no numbers, a policy that collapses, values
        /// that diverge, evaluations that fall. `on_stuck` never acts on it.
        learning: bool = true,
    }
}

choices! {
    /// What to do about a stuck rank.
    pub enum OnStuck {
        /// The run goes on; screen, lines and JSON name the stuck rank.
        Report = "report",
        /// Stop the run; exit code 4.
        Stop = "stop",
        /// Restart from the latest checkpoint.
        Restart = "restart",
    }
}

keys! {
    /// The table `[restart]`.
    #[serde(default)]
    pub struct Restart {
        /// Restarts by policy over the life of the run, each a new generation from the latest checkpoint.
        max_restarts: Option<u32> [Integer(0..=1_000_000)]
            => "0; 3 where `watch.on_stuck` or `lost_host` asks for restarts",
        /// Seconds before a restart; doubled with each restart that made no progress.
        backoff_s: f64 [Number { min: 0.0, max: YEAR_S, open: false }] = 1.0,
        /// Longest wait before a restart, seconds.
        backoff_max_s: f64 [Number { min: 0.0, max: YEAR_S, open: false }] = 60.0,
        /// Restarts in a row without a new checkpoint or training iteration after which the policy gives up.
        no_progress: u32 [Integer(1..=1_000_000)] = 2,
        /// A host that gives no proof of its stop after a failure: the run ends, or the next generation does
        /// without the host.
        lost_host: LostHost = LostHost::Stop,
    }
}

impl Restart {
    /// Restarts where `watch.on_stuck` or `lost_host` asks for them and `max_restarts` is absent.
    pub const ASKED: u32 = 3;

    /// Milliseconds before a restart that follows `barren` restarts without progress.
    pub fn delay_ms(&self, barren: u32) -> u64 {
        let seconds = self.backoff_s * f64::from(2_u32.saturating_pow(barren));
        (seconds.min(self.backoff_max_s).max(0.0) * 1000.0) as u64
    }
}

choices! {
    /// What to do about a host that was lost.
    pub enum LostHost {
        /// The run ends.
        Stop = "stop",
        /// The next generation does without it.
        Exclude = "exclude",
    }
}

keys! {
    /// The table `[metrics]`.
    #[serde(default)]
    pub struct Metrics {
        /// Shipped sets of patterns: `cleanrl` for `global_step=..., episodic_return=...` and `SPS: ...`.
        presets: Vec<String> [Texts("names")] => "none",
        /// Regular expressions, one named group per value, such as
        /// `step (?P<env_step>[0-9]+) loss (?P<loss>[-0-9.e]+)`; `env_step`, `return` and `SPS` have their
        /// usual meaning, other names become charts.
        stdout: Vec<String> [Texts("patterns")] => "none",
        /// Folder with TensorBoard event files that rank 0 writes, on its host: scalars, histograms,
        /// pictures; relative paths begin at `workdir`.
        tensorboard: Option<String> [Text(&PATH)] => "none",
    }
}
