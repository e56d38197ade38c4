//! Experiment files (`configs/*.toml`).
//!
//! Sizes are over all ranks. Unknown keys are errors. The resolved form (defaults filled in, `--set` applied)
//! is written to the run directory and read by the trainer.

pub use super::learn::{
    A2cConfig, ActionKind, DqnConfig, Learn, PpgConfig, PpoConfig, PqnConfig, SacConfig, Td3Config,
};

use super::code::Code;
use super::schema::ValueKind::{Integer, Integers, Names, Number, Text, Texts};
use super::schema::{ADDRESS, ENV_ID, FACTORY, NAME, PATH, PLAIN, PROGRAM};
use super::schema::{POSITIVE, SECONDS, SHARE, U32, ValueKind, YEAR_S, choices, keys};
use serde::Serialize;
use std::collections::BTreeMap;

/// An environment of Gymnasium that is built in (Rust).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltinEnv {
    pub id: &'static str,
    /// Its actions.
    pub actions: ActionKind,
}

/// Environments that are built in.
pub const BUILTIN_ENVS: &[BuiltinEnv] = &[
    BuiltinEnv { id: "CartPole-v0", actions: ActionKind::Discrete },
    BuiltinEnv { id: "CartPole-v1", actions: ActionKind::Discrete },
    BuiltinEnv { id: "Pendulum-v1", actions: ActionKind::Continuous },
    BuiltinEnv { id: "Acrobot-v1", actions: ActionKind::Discrete },
    BuiltinEnv { id: "MountainCar-v0", actions: ActionKind::Discrete },
    BuiltinEnv { id: "MountainCarContinuous-v0", actions: ActionKind::Continuous },
];

/// Returns the built-in environment of this id.
pub fn builtin_env(id: &str) -> Option<&'static BuiltinEnv> {
    BUILTIN_ENVS.iter().find(|env| env.id == id)
}

/// What ids of rankdeck's own environments begin with, which are built in and which Gymnasium does not have.
pub const OWN_ENVS: &str = "rankdeck/";

/// Returns the ids of all built-in environments.
pub fn builtin_ids() -> impl Iterator<Item = &'static str> {
    BUILTIN_ENVS.iter().map(|env| env.id)
}

keys! {
    /// A whole experiment file.
    pub struct Experiment {
        /// Name and length of the run.
        run: Run,
        /// The command of the ranks, their code and variables, and how they are stopped.
        launch: LaunchConfig => "",
        /// Arguments of your own program: any key, with a text, number, boolean or array. `lr = 3e-4` fills
        /// `{args.lr}` in `launch.command` and `launch.env`. Without `{args.lr}`, it replaces the value of `--lr` or
        /// `lr=` in the command. Otherwise `--lr=3e-4` is appended (`lr=3e-4` if the command has words such as
        /// `model.size=2`). `--set args.lr=1e-4` and `--sweep args.lr=1e-4,3e-4` set it, too.
        #[serde(default)]
        args: BTreeMap<String, String> [ValueKind::Arguments] = BTreeMap::new(),
        /// The process group.
        distributed: Distributed => "",
        /// The RL environment.
        env: Option<Env> => "required by the built-in trainer",
        /// The networks.
        policy: Policy => "",
        /// Collection of experience.
        collect: Collect => "",
        /// The algorithm and its hyperparameters; the other keys of the table depend on `algorithm`.
        learn: Option<Learn> => "required by the built-in trainer",
        /// Evaluation: rank 0 plays whole episodes with the policy while the other ranks wait.
        eval: Eval => "",
        /// Checkpoints. Rank 0 writes them atomically into the run directory.
        checkpoint: CheckpointConfig => "",
        /// Detection of stuck, slow and diverging ranks.
        watch: WatchConfig => "",
        /// Automatic restarts of failed generations, by the console that launched the run.
        restart: Restart => "",
        /// Metrics of a program that does not report them. They are rank 0's values, not reduced over the
        /// ranks.
        metrics: Metrics => "",
    }
}

keys! {
    /// The table `[run]`.
    pub struct Run {
        /// Name of the run; the run directory is `runs/NAME-TIMESTAMP`.
        name: String [Text(&NAME)],
        /// Base seed; each rank and environment derives its own stream from it. Your own program receives
        /// it as `RANKDECK_SEED` and as `{run.seed}` in `launch.command` and `launch.env`.
        #[serde(default)]
        seed: u64 = 0,
        /// Environment steps over all ranks after which the built-in trainer ends; 0: no limit. Your own
        /// program gets it as `{run.total_steps}`, and progress is shown against it.
        #[serde(default)]
        total_steps: u64 = 0,
        /// Note to show in `rankdeck ps`.
        note: Option<String> [Text(&PLAIN)] => "none",
    }
}

keys! {
    /// The table `[launch]`.
    #[serde(default)]
    pub struct LaunchConfig {
        /// Program and arguments to run once per rank. These templates are filled, also in `env`:
        /// `{run.seed}` (or `{seed}`), `{args.KEY}`, any other key of this file such as `{run.name}`, and
        /// for each rank `{rank}`, `{local_rank}`, `{world_size}`, `{run}`, `{run_dir}` and `{resume}`. Other
        /// braces are passed on unchanged.
        command: Vec<String> => "the built-in trainer",
        /// Directory of the code, relative to this file. A single run on this machine works in it; other hosts
        /// and trials of a sweep get a copy in `work/NAME` of their `workdir`.
        // A console replaces it by `sha256:HASH` before it launches, or by the absolute path of a run in place.
        code: Option<Code> => "none: ranks run in the host's `workdir`",
        /// Patterns of files not to upload, such as `*.ckpt` or `data/`; without `/` they match any name,
        /// with `/` the whole path.
        exclude: Vec<String> [Texts("patterns")]
            => "`.git`, `__pycache__`, `venv`, `runs` and the like are never uploaded",
        /// Patterns of files to upload even if `.gitignore` excludes them, such as `*.so`.
        include: Vec<String> [Texts("patterns")] => "files that git ignores are not uploaded",
        /// Words to append to `command` in a generation that resumes, such as `["--resume", "{resume}"]`.
        /// `{resume}` is the checkpoint's path on the rank's host; it is filled also in `command` and `env`,
        /// and empty in a generation that starts from scratch.
        resume: Vec<String> [Texts("words")] => "none",
        /// Patterns of checkpoints that are not named `*.pt`, `*.pth`, `*.ckpt`, `*.zip`, `*.safetensors`,
        /// `*.cleanrl_model`, `checkpoint-*/`, `checkpoint_N/`, `global_stepN/`, `*.ckpt/` and directories of
        /// `*.distcp`: `out/*.bin`, relative to the directory in which ranks run, or `/scratch/out/*.bin`. Without
        /// `/` they match any name.
        checkpoints: Vec<String> [Texts("patterns")] => "none",
        /// Maximum size of the checkpoint files to copy between hosts before a generation resumes, in GB.
        /// Above it, a prompt asks first; without an answer within 10 minutes, the generation does not start.
        /// Automatic restarts (`[restart]`) copy without asking, and a warning reports it.
        max_copy_gb: f64 [Number { min: 0.0, max: 1_000_000.0, open: false }] = 2.0,
        /// Environment variables of the ranks; `hosts.toml` takes precedence. `${NAME}` expands to the
        /// console's variable at each launch; its value is stored in no file or recording. Templates are
        /// filled as in `command`.
        env: BTreeMap<String, String> = BTreeMap::new(),
        /// Environment variables of the console to pass to the ranks, such as `WANDB_API_KEY`. Names are
        /// recorded, values are not.
        pass_env: Vec<String> [Texts("variable names")] => "none",
        /// Set Slurm's variables of a task (`SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_NTASKS`, ...) to each
        /// rank's own values, for programs that read those instead of torchrun's.
        slurm_env: bool = false,
        /// Run a launcher in `command` (`torchrun`, `accelerate launch`, ...) as it is. If false, its command
        /// line is translated: rankdeck starts the ranks itself.
        keep_launcher: bool = false,
        /// Set torchrun's variables (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR`, ...) also for a
        /// single rank. With `false` it is an ordinary process. Several ranks always have them.
        rank_variables: Option<bool> => "`true` with a hosts file, with `--nproc` or for a translated \
                                         launcher, or if the program names one of them or `init_process_group`; \
                                         else `false`",
        /// Give the ranks `RANKDECK_SECRET`, a secret that they share.
        group_secret: Option<bool> => "`true` for the built-in trainer and for programs that name it",
        /// Threads per rank (`OMP_NUM_THREADS`).
        threads: Option<u32> [Integer(1..=4096)] => "1 if ranks share a host; `OMP_NUM_THREADS` of host or user wins",
        /// Bind each rank and its child processes to cores of its own. `auto` splits the host's cores evenly across
        /// its ranks, near their GPUs (NUMA); `rankdeck check` lists them. With fewer cores than ranks, none is
        /// bound.
        bind: Option<CoreBinding> => "`none`; `auto` for a translated launcher that binds, as with \
                                      `torchrun --numa-binding`",
        /// When no console is attached: keep running, or stop after `lease_s`.
        on_disconnect: OnDisconnect = OnDisconnect::Keep,
        /// Seconds without a console before `on_disconnect = "stop"` stops the run.
        lease_s: f64 [SECONDS] = 30.0,
        /// First signal of a clean stop. After `stop_grace_s`, the program gets the other one of
        /// SIGTERM and SIGINT, if it handles that, then SIGKILL.
        stop_signal: Option<StopSignal> => "SIGTERM if the program handles it, else SIGINT",
        /// Seconds that a stop waits for each of its signals.
        stop_grace_s: f64 [SECONDS] = 10.0,
        /// Maximum seconds of a clean stop. Up to this limit, `stop_grace_s` restarts with each sign of
        /// progress, and while a checkpoint file grows.
        stop_limit_s: f64 [SECONDS] = 120.0,
        /// Address of rank 0 for the other hosts, if it differs from the SSH address.
        master_addr: Option<String> [Text(&ADDRESS)] => "address of the first host",
        /// Port of rank 0's store; 0: a free port on the first host.
        master_port: u16 = 0,
    }
}

choices! {
    /// The cores of ranks.
    pub enum CoreBinding {
        /// All of the host's.
        None = "none",
        /// Its own share of them.
        Auto = "auto",
    }
}

choices! {
    /// A signal that asks a program to end.
    pub enum StopSignal {
        /// As `kill` sends it.
        Term = "SIGTERM",
        /// As ctrl-c sends it.
        Int = "SIGINT",
        /// The terminal is gone.
        Hup = "SIGHUP",
        /// The terminal asks for a core dump.
        Quit = "SIGQUIT",
        /// For programs that save when they get it.
        Usr1 = "SIGUSR1",
        /// The same.
        Usr2 = "SIGUSR2",
    }
}

impl StopSignal {
    /// Returns its number on Linux.
    pub fn number(self) -> i32 {
        match self {
            StopSignal::Hup => 1,
            StopSignal::Int => 2,
            StopSignal::Quit => 3,
            StopSignal::Usr1 => 10,
            StopSignal::Usr2 => 12,
            StopSignal::Term => 15,
        }
    }
}

choices! {
    /// What happens to a run when no console is attached.
    pub enum OnDisconnect {
        /// The run keeps running; any console can attach.
        Keep = "keep",
        /// The agents stop it after `lease_s`.
        Stop = "stop",
    }
}

/// Blocks that 1, 2, 3, 4, 6 and 12 ranks can share.
pub const INVARIANT_BLOCKS: u32 = 12;

keys! {
    /// The table `[distributed]`.
    #[serde(default)]
    pub struct Distributed {
        /// Collective backend; `auto` uses NCCL if every rank has a GPU, else TCP.
        backend: BackendChoice = BackendChoice::Auto,
        /// Timeout of a collective or the rendezvous, in seconds.
        timeout_s: f64 [SECONDS] = 600.0,
        /// Exchange CPU tensors between ranks of a host through shared memory.
        shared_memory: bool = true,
        /// Size of a gradient bucket, in MiB.
        bucket_mb: f64 [Number { min: 0.0, max: 65536.0, open: true }] = 25.0,
        /// Updates between comparisons of the ranks' weight fingerprints; 0: never.
        fingerprint_every: u64 = 1,
        /// Devices per rank to split a `dqn` batch over, starting with the rank's own. Gradients are
        /// gathered on the first.
        data_parallel: u32 [Integer(1..=64)] = 1,
        /// Learn the same weights, to the bit, on any number of ranks: gradients are summed per block of RL
        /// environments, in one fixed order. For `ppo` and `a2c` with native kernels on CPUs.
        invariant: bool = false,
        /// Blocks of RL environments with `distributed.invariant`; must be divisible by the world size and
        /// divide `env.num_envs`.
        invariant_blocks: u32 [Integer(1..=4096)] = INVARIANT_BLOCKS,
        /// What happens to the other ranks if a rank of the built-in trainer dies.
        on_rank_loss: OnRankLoss = OnRankLoss::Restart,
    }
}

choices! {
    /// What happens to the other ranks if one dies.
    pub enum OnRankLoss {
        /// They are stopped; the run ends, or restarts by `[restart]`.
        Restart = "restart",
        /// They form a smaller group and continue from their last common update.
        Shrink = "shrink",
    }
}

choices! {
    /// Collective backend.
    pub enum BackendChoice {
        /// NCCL if every rank has a GPU, else `tcp`.
        Auto = "auto",
        /// NCCL, for CUDA tensors.
        Nccl = "nccl",
        /// TCP connections of the built-in trainer, for CPU tensors.
        Tcp = "tcp",
    }
}

keys! {
    /// The table `[env]`. Atari options that are not set take the values of [`Env::atari`].
    pub struct Env {
        /// Id of the RL environment: classic control in Rust (`CartPole-v1`), an Atari game (`ALE/Pong-v5`,
        /// `PongNoFrameskip-v4`), or any Gymnasium id (`module:Name-v0` imports the module first).
        id: String [Text(&ENV_ID)],
        /// RL environments over all ranks; must be divisible by the world size.
        num_envs: u32 [Integer(1..=1_000_000)],
        /// Run RL environments in the trainer (`rust`) or in a Python worker per rank (`python`); `auto` uses
        /// Rust if the id is built in.
        #[serde(default)]
        worker: EnvWorker = EnvWorker::Auto,
        /// Python interpreter of the worker, on every host; `rankdeck-trainer --setup-env DIR` creates one.
        #[serde(default = "default_python")]
        python: String [Text(&PROGRAM)] = default_python(),
        /// Threads of each rank's Atari emulators.
        worker_threads: Option<u32> [Integer(1..=4096)] => "host cores divided by ranks",
        /// Python processes per rank that step RL environments at the same time. Results do not depend on it.
        workers: Option<u32> [Integer(1..=1024)]
            => "host cores divided by ranks, at most one per environment; 1 for Atari games and `env.vector`",
        /// Keyword arguments of the environment: `gymnasium.make(id, **kwargs)`, or those of `env.vector`.
        kwargs: Option<BTreeMap<String, toml::Value>> => "none",
        /// Wrappers, applied in this order to each environment: `module:callable`, called with the environment.
        wrappers: Option<Vec<String>> [Texts("`module:callable` strings")] => "none",
        /// Factory of a Gymnasium `VectorEnv` in place of single environments: `module:factory`, called with
        /// `num_envs` and `env.kwargs`. `env.id` is only its name. For EnvPool, set `env.id = "envpool:Pong-v5"`
        /// instead.
        vector: Option<String> [Text(&FACTORY)] => "none",
        /// Shared library with an environment of your own in C, Rust or another language, built against
        /// `rankdeck_env.h`; relative to the ranks' directory. `env.id` is only its name. `env.kwargs` are passed to it
        /// as JSON.
        library: Option<String> [Text(&PATH)] => "none",
        /// Side of the channels in image observations of Python environments: `first` for `[channels, height,
        /// width]`, `last` for `[height, width, channels]`.
        channels: Option<ImageChannels> => "the last side if it is smaller than the first",
        /// Choose only among the actions that the environment allows: `info["action_mask"]` of every reset and
        /// step, or the key `action_mask` of a `Dict` observation. For algorithms with discrete actions.
        action_masks: Option<bool> => "false",
        /// Timeout of a Python worker, in seconds; starting it may take twice as long. With several ranks,
        /// at most 0.4 of `distributed.timeout_s`, because the others wait.
        #[serde(default = "default_worker_timeout_s")]
        worker_timeout_s: f64 [SECONDS] = default_worker_timeout_s(),
        /// Steps after which an episode is truncated.
        max_episode_steps: Option<u32> [Integer(1..=U32)] => "the environment's own limit",
        /// Atari: frames per step; the observation is the maximum of the last two.
        frame_skip: Option<u32> [Integer(1..=1000)] => "4",
        /// Atari: probability that a frame repeats the previous action (sticky actions).
        repeat_action_probability: Option<f64> [SHARE] => "0.25 for `ALE/*-v5`, else 0",
        /// Atari: maximum number of idle frames at the start of a game.
        noop_max: Option<u32> [Integer(0..=1000)] => "30",
        /// Atari: a lost life ends the episode in training; evaluations and returns cover whole games.
        episodic_life: Option<bool> => "true",
        /// Atari: training uses the sign of each reward; returns stay unclipped.
        clip_rewards: Option<bool> => "true",
        /// Atari: frames per observation.
        frame_stack: Option<u32> [Integer(1..=64)] => "4",
        /// Atari: height and width of a grayscale frame.
        image_size: Option<u32> [Integer(8..=512)] => "84",
    }
}

impl Env {
    /// Returns `num_envs` environments `id` with defaults for everything else.
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
    /// The side of an image that holds its channels.
    pub enum ImageChannels {
        /// `[channels, height, width]`.
        First = "first",
        /// `[height, width, channels]`.
        Last = "last",
    }
}

choices! {
    /// Where environments run.
    pub enum EnvWorker {
        /// In Rust if the id is built in, else in Python.
        Auto = "auto",
        /// In the trainer.
        Rust = "rust",
        /// In a Python worker per rank.
        Python = "python",
    }
}

keys! {
    /// The table `[policy]`.
    #[serde(default)]
    pub struct Policy {
        /// Fully connected layers for flat observations; for images, the three convolutions of Mnih et al.
        /// 2015 (`nature`) or the residual network of Espeholt et al. 2018 (`impala`).
        network: NetworkKind = NetworkKind::Mlp,
        /// Widths of the hidden layers; for images, those after the convolutions (the papers use 512 for
        /// `nature`, 256 for `impala`).
        hidden: Vec<u32> [Integers(1..=65536)] = vec![64, 64],
        /// Channels of the three convolutions of `nature` or the three sequences of `impala`.
        channels: Option<Vec<u32>> [Integers(1..=65536)]
            => "`[32, 64, 64]` for `nature`, `[16, 32, 32]` for `impala`",
        /// Widths of the hidden layers for values beside images in `Dict` observations (`ppo`, `ppg`, `a2c`);
        /// each image has its own convolutions.
        vector_hidden: Option<Vec<u32>> [Integers(1..=65536)] => "`[64]`",
        /// Activation between the layers of `mlp`; the other networks use ReLU.
        activation: Activation = Activation::Tanh,
        /// Share the hidden layers between actor and critic; networks for images always do.
        shared: bool = false,
        /// Memory of the policy (`ppo`, `a2c`), between the hidden layers and the heads of actor and critic: an LSTM
        /// as in CleanRL's ppo_atari_lstm.py, or a minGRU (Feng et al. 2024). Actor and critic share the layers
        /// below. Each minibatch has the whole rollouts of some RL environments: `learn.num_minibatches` must
        /// divide the RL environments of each rank.
        memory: Option<MemoryKind> => "none",
        /// Width of the memory.
        memory_size: Option<u32> [Integer(1..=65536)] => "128",
        /// Initial log standard deviation of continuous actions.
        log_std: f64 [Number { min: -20.0, max: 5.0, open: false }] = 0.0,
        /// Implementation of the networks: `native` (hand-written CPU passes for fully connected networks,
        /// several times as fast), `libtorch`, or `auto` (native where supported).
        kernel: Kernel = Kernel::Auto,
        /// On a GPU, capture updates of PPO, DQN, SAC and TD3 and policy inference as CUDA graphs after the
        /// first few steps. If capture fails, the reason is logged and they run step by step. Not yet
        /// benchmarked on real GPUs.
        cuda_graphs: bool = false,
        /// On a GPU, use deterministic cuDNN algorithms, so that a resumed run is bit-identical (CleanRL's
        /// `torch_deterministic`). `false` may be faster.
        deterministic: bool = true,
        /// On a GPU, let cuDNN benchmark its algorithms for each new shape. Not yet benchmarked on real
        /// GPUs.
        cudnn_benchmark: bool = false,
        /// On a GPU, use the channels-last memory layout for convolutions, as on CPUs. Not yet benchmarked
        /// on real GPUs.
        channels_last: bool = false,
        /// Precision of networks for images; `bf16` rounds the inputs and outputs of all layers but the
        /// last. Weights, last layers, losses and optimizers stay f32. Not yet benchmarked on real GPUs.
        precision: Precision = Precision::F32,
    }
}

choices! {
    /// Memory of a policy.
    pub enum MemoryKind {
        /// Long short-term memory.
        Lstm = "lstm",
        /// Minimal gated recurrent unit (Feng et al. 2024).
        MinGru = "mingru",
    }
}

choices! {
    /// Precision of the networks.
    pub enum Precision {
        /// 32-bit floating point.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
    }
}

choices! {
    /// Network architecture.
    pub enum NetworkKind {
        /// Fully connected layers, for flat observations.
        Mlp = "mlp",
        /// The three convolutions of Mnih et al. 2015, for images.
        Nature = "nature",
        /// The residual network of Espeholt et al. 2018, for images.
        Impala = "impala",
    }
}

choices! {
    /// Implementation of the networks.
    pub enum Kernel {
        /// Native where supported, else libtorch.
        Auto = "auto",
        /// Hand-written CPU passes for fully connected networks.
        Native = "native",
        /// libtorch.
        Libtorch = "libtorch",
    }
}

choices! {
    /// Activation function.
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
        /// Normalize observations by their running mean and variance over all ranks. Replay buffers hold raw
        /// observations and normalize them when they are sampled.
        normalise_observations: bool = false,
        /// Absolute bound of normalized observations.
        clip_observations: f64 [POSITIVE] = 10.0,
        /// Divide rewards by the running standard deviation of the discounted return over all ranks (`ppo`,
        /// `ppg`, `a2c`, `pqn`).
        normalise_rewards: bool = false,
        /// Absolute bound of normalized rewards.
        clip_rewards: f64 [POSITIVE] = 10.0,
        /// Factor applied to the rewards that the learner receives.
        reward_scale: f64 [POSITIVE] = 1.0,
        /// Split each rank's environments into two halves with a Python worker each: one half steps while
        /// the policy processes the other (`ppo`, `ppg`, `a2c`). Rollouts are bit-identical with the native
        /// kernel; libtorch may round differently for half as many rows.
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
        /// RL environments to evaluate in parallel.
        num_envs: Option<u32> [Integer(1..=100_000)] => "number of episodes, at most 32",
        /// Steps after which an evaluation truncates an episode; its return so far counts.
        max_steps: u32 [Integer(1..=U32)] = 100_000,
        /// Take the best action at every step. If false, act as in training: draw from the policy (`ppo`, `ppg`,
        /// `a2c`, `sac`), add exploration noise (`td3`), or act at random with `learn.epsilon_end` (`dqn`, `pqn`). The
        /// best checkpoint and `stop_value` follow from the same evaluations.
        greedy: bool = true,
        /// End the run successfully when the mean return of an evaluation reaches this value.
        stop_value: Option<f64> => "never",
    }
}

keys! {
    /// The table `[checkpoint]`.
    #[serde(default)]
    pub struct CheckpointConfig {
        /// Training iterations between checkpoints; 0: only best and last.
        every: u64 = 0,
        /// Also keep the checkpoint with the best evaluation.
        best: bool = true,
        /// Also save each rank's replay buffer (DQN, SAC, TD3) or the rollouts of the current phase (PPG) with
        /// each `latest`. If false, a restart refills the buffer before it learns, and the phase learns
        /// from fewer rollouts.
        replay: bool = false,
        /// Number of newest iteration checkpoints (`iter-N`) to keep; 0: all.
        keep: u32 = 0,
    }
}

keys! {
    /// The table `[watch]`.
    #[serde(default)]
    pub struct WatchConfig {
        /// Action on a certain, critical verdict about a live rank: report it, stop (exit code 4), or
        /// restart from the latest checkpoint. Silence alone is never certain unless `silence_is_stuck_s`
        /// is set.
        on_stuck: OnStuck = OnStuck::Report,
        /// Seconds without a sample before a host is `lost`.
        lost_after_s: f64 [SECONDS] = 5.0,
        /// Seconds that other ranks wait in a collective before the rank that has not entered it is
        /// `behind`.
        behind_after_s: f64 [SECONDS] = 5.0,
        /// Seconds allowed for startup and rendezvous before a `behind` verdict.
        init_budget_s: f64 [SECONDS] = 120.0,
        /// Seconds allowed for an evaluation or a checkpoint without progress, and for anything that a rank
        /// of a script does while others wait for it.
        rank0_budget_s: f64 [SECONDS] = 600.0,
        /// Treat a rank that others wait for as stuck after this many seconds without progress, even
        /// without proof, so that `on_stuck` applies. Healthy ranks can be silent, too: choose more than
        /// the longest evaluation, download or remote call.
        silence_is_stuck_s: Option<f64> [SECONDS] => "never",
        /// Check that all ranks issue the same collective before each one. Slow, finds the first mismatch;
        /// `rankdeck restart --check-collectives` enables it for one generation.
        check_collectives: bool = false,
        /// Report the process groups of Python ranks through a `sitecustomize` on `PYTHONPATH`; scripts
        /// need no changes.
        python_hook: bool = true,
        /// Compare the weights of Python ranks after optimizer steps, by a few elements per parameter;
        /// takes at most 1% of the time. Needs `python_hook`.
        fingerprint_weights: bool = true,
        /// Detect learning problems: NaN, policy collapse, divergence, falling evaluations. `on_stuck`
        /// never acts on them.
        learning: bool = true,
    }
}

choices! {
    /// Action on a stuck rank.
    pub enum OnStuck {
        /// The run keeps running; screen, lines and JSON report the stuck rank.
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
        /// Maximum automatic restarts per run, each from the latest checkpoint.
        max_restarts: Option<u32> [Integer(0..=1_000_000)]
            => "0; 3 if `watch.on_stuck` or `lost_host` requests restarts",
        /// Seconds before a restart; doubled after each restart without progress.
        backoff_s: f64 [Number { min: 0.0, max: YEAR_S, open: false }] = 1.0,
        /// Longest wait before a restart, in seconds.
        backoff_max_s: f64 [Number { min: 0.0, max: YEAR_S, open: false }] = 60.0,
        /// Give up after this many restarts in a row without a new checkpoint or training iteration.
        no_progress: u32 [Integer(1..=1_000_000)] = 2,
        /// If a host cannot verify its stop after a failure: end the run, or restart without the host.
        lost_host: LostHost = LostHost::Stop,
    }
}

impl Experiment {
    /// Returns whether the run may restart without a request.
    pub fn restarts_by_itself(&self) -> bool {
        let is_asked = self.watch.on_stuck == OnStuck::Restart || self.restart.lost_host == LostHost::Exclude;
        self.restart.max_restarts.map_or(is_asked, |most| most > 0)
    }

    /// Returns the longest wait between a failed generation and the next one by policy, milliseconds; `None`: the
    /// policy makes none.
    pub fn restart_wait_ms(&self) -> Option<u64> {
        self.restarts_by_itself().then(|| self.restart.delay_ms(self.restart.no_progress))
    }
}

impl Restart {
    /// Default of `max_restarts` if `watch.on_stuck` or `lost_host` requests restarts.
    pub const ASKED: u32 = 3;

    /// Returns the milliseconds before a restart that follows `barren` restarts without progress.
    pub fn delay_ms(&self, barren: u32) -> u64 {
        let seconds = self.backoff_s * f64::from(2_u32.saturating_pow(barren));
        (seconds.min(self.backoff_max_s).max(0.0) * 1000.0) as u64
    }
}

choices! {
    /// Action on a host that cannot verify its stop.
    pub enum LostHost {
        /// End the run.
        Stop = "stop",
        /// Restart without the host.
        Exclude = "exclude",
    }
}

keys! {
    /// The table `[metrics]`.
    #[serde(default)]
    pub struct Metrics {
        /// Built-in sets of patterns: `cleanrl` for `global_step=..., episodic_return=...` and `SPS: ...`.
        presets: Vec<String> [Texts("names")] => "none",
        /// Regular expressions with one named group per value, such as `step (?P<env_step>[0-9]+) loss
        /// (?P<loss>[-0-9.e]+)`. `env_step`, `return` and `SPS` have their usual meaning; other names
        /// become charts.
        stdout: Vec<String> [Texts("patterns")]
            => "`name=value`, `name: value`, dictionaries and tables are recognized",
        /// Directory of TensorBoard event files that rank 0 writes (scalars, histograms, images); relative
        /// to `workdir`.
        tensorboard: Option<String> [Text(&PATH)] => "none",
        /// Series to use for a known quantity, such as `return = "rollout/my_score"`. Keys: `return`, `length`,
        /// `eval_return`, `eval_length`, `step`, `iteration`, `epoch`, `steps_per_s`, `learning_rate`,
        /// `loss`, `policy_loss`, `value_loss`, `entropy`, `kl`.
        names: BTreeMap<String, String> [Names("names of series")] => "by the usual names",
    }
}

/// Frames after which a game is truncated: half an hour, as in ale-py.
const MAX_FRAMES: u64 = 108_000;

/// Options of an Atari game, with their defaults: the wrappers of CleanRL's `ppo_atari.py` and `dqn_atari.py`
/// and of DI-engine's `wrap_deepmind`, which follow OpenAI's Baselines and Mnih et al. 2015.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Atari {
    /// Frames per step; the observation is the maximum of the last two.
    pub frame_skip: u32,
    /// Probability that a frame repeats the previous action (Machado et al. 2018, sticky actions).
    pub repeat_action_probability: f64,
    /// A game starts with 1 to this many idle frames.
    pub noop_max: u32,
    /// A lost life ends the episode in training, without a reset; never in an evaluation.
    pub episodic_life: bool,
    /// Training uses the sign of each reward; evaluations never do.
    pub clip_rewards: bool,
    /// Frames in an observation.
    pub frame_stack: u32,
    /// Height and width of a frame in pixels, gray.
    pub image_size: u32,
    /// Frames after which a game is truncated.
    pub max_frames: u64,
}

impl Env {
    /// Returns the Atari options that the file sets.
    pub fn atari_keys(&self) -> Vec<&'static str> {
        [
            ("frame_skip", self.frame_skip.is_some()),
            ("repeat_action_probability", self.repeat_action_probability.is_some()),
            ("noop_max", self.noop_max.is_some()),
            ("episodic_life", self.episodic_life.is_some()),
            ("clip_rewards", self.clip_rewards.is_some()),
            ("frame_stack", self.frame_stack.is_some()),
            ("image_size", self.image_size.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, set)| set.then_some(key))
        .collect()
    }

    /// Returns whether it runs in the trainer, without Python.
    pub fn is_builtin(&self) -> bool {
        let is_known = builtin_env(&self.id).is_some() || self.id.starts_with(OWN_ENVS);
        let known = is_known && self.python_keys().is_empty();
        match self.worker {
            _ if self.library.is_some() => true,
            EnvWorker::Rust => true,
            EnvWorker::Auto => known,
            EnvWorker::Python => false,
        }
    }

    /// Returns the keys that are set and need environments in Python.
    pub fn python_keys(&self) -> Vec<&'static str> {
        let keys = [
            (self.workers.is_some(), "workers"),
            (self.kwargs.is_some() && self.library.is_none(), "kwargs"),
            (self.wrappers.is_some(), "wrappers"),
            (self.vector.is_some(), "vector"),
            (self.channels.is_some(), "channels"),
            (self.uses_masks(), "action_masks"),
        ];
        keys.into_iter().filter(|(set, _)| *set).map(|(_, key)| key).collect()
    }

    /// Returns whether the policy chooses among the actions that the environment allows.
    pub fn uses_masks(&self) -> bool {
        self.action_masks == Some(true)
    }

    /// Returns the code that it loads: modules of its id, wrappers and factory, and its library.
    pub fn modules(&self) -> Vec<&str> {
        // A wrapper or factory without `:` would be imported as a whole.
        let module = |name: &'_ str| name.split_once(':').map_or(name.len(), |(module, _)| module.len());
        let imported = self.wrappers.iter().flatten().map(String::as_str).chain(self.vector.as_deref());
        let own = self.id.split_once(':').map(|(module, _)| module);
        own.into_iter()
            .chain(imported.map(|name| &name[..module(name)]))
            .chain(self.library.as_deref())
            .collect()
    }

    /// Returns whether the id is that of an Atari game of ale-py.
    pub fn is_atari(&self) -> bool {
        self.id.starts_with("ALE/") || self.id.contains("NoFrameskip-")
    }

    /// Returns all options, with defaults for those that the file does not set.
    pub fn atari(&self) -> Atari {
        // As ale-py registers these ids.
        let sticky = if self.id.starts_with("ALE/") || self.id.ends_with("-v0") { 0.25 } else { 0.0 };
        let frame_skip = self.frame_skip.unwrap_or(4);
        Atari {
            frame_skip,
            repeat_action_probability: self.repeat_action_probability.unwrap_or(sticky),
            noop_max: self.noop_max.unwrap_or(30),
            episodic_life: self.episodic_life.unwrap_or(true),
            clip_rewards: self.clip_rewards.unwrap_or(true),
            frame_stack: self.frame_stack.unwrap_or(4),
            image_size: self.image_size.unwrap_or(84),
            max_frames: self
                .max_episode_steps
                .map_or(MAX_FRAMES, |steps| u64::from(steps) * u64::from(frame_skip))
                .min(i32::MAX as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `eval` and `play` import nothing else from a checkpoint than what these name.
    #[test]
    fn env_modules_cover_id_wrappers_vector_and_library() {
        let env = Env {
            id: "registers:X-v0".into(),
            wrappers: Some(vec!["wraps.deep:One".into(), "whole".into()]),
            vector: Some("factory:make".into()),
            library: Some("./libenv.so".into()),
            ..Env::default()
        };
        assert_eq!(env.modules(), ["registers", "wraps.deep", "whole", "factory", "./libenv.so"]);
        let known = Env { id: "CartPole-v1".into(), ..Env::default() };
        assert!(known.modules().is_empty(), "{:?}", known.modules());
    }
}
