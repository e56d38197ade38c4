//! Every key of `hosts.toml` and of the experiment files: its type, range, default and meaning.
//!
//! The one list that the checks, the suggestions and `docs/CONFIG.md` are made from; tests compare it with what serde reads.

use std::ops::RangeInclusive;

/// One key.
#[derive(Debug)]
pub struct Key {
    /// As written in the file.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What holds without it.
    pub default: Fallback,
    /// One sentence.
    pub doc: &'static str,
}

/// Keys of one table, in parts, so that tables can share parts.
pub type Keys = &'static [&'static [Key]];

/// What a key may hold.
#[derive(Debug)]
pub enum Kind {
    /// A string that follows a rule.
    Text(&'static TextRule),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An integer of a range.
    Integer(RangeInclusive<i128>),
    /// A finite number of a range; `open` leaves out the lower end.
    Number {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
        /// Without `min` itself.
        open: bool,
    },
    /// `true` or `false`.
    Flag,
    /// An array of strings, not empty.
    Texts,
    /// An array of integers of a range, not empty.
    Integers(RangeInclusive<i128>),
    /// A table of environment variables.
    Environment,
    /// `"all"`, a count, or a list of different indices.
    Gpus,
    /// A table.
    Table(Keys),
    /// An array of tables.
    Tables(Keys),
    /// A table whose other keys depend on one of its words.
    Tagged {
        /// The key that decides.
        tag: &'static str,
        /// Word, and the keys that go with it.
        variants: &'static [(&'static str, Keys)],
    },
}

/// What holds when a key is absent.
#[derive(Debug)]
pub enum Fallback {
    /// It must be there.
    Required,
    /// This value, as TOML.
    Value(&'static str),
    /// Something that only words can say; may be empty.
    Words(&'static str),
}

/// A rule for strings.
#[derive(Debug)]
pub struct TextRule {
    /// What is expected, after "expected".
    pub expected: &'static str,
    /// The text follows the rule; otherwise why not, and advice.
    pub test: fn(&str) -> Result<(), (String, String)>,
}

impl Key {
    /// Must it be there?
    pub fn is_required(&self) -> bool {
        matches!(self.default, Fallback::Required)
    }
}

impl Kind {
    /// What is expected, for messages and documentation.
    pub fn expected(&self) -> String {
        match self {
            Kind::Text(rule) => rule.expected.to_owned(),
            Kind::Choice(words) => one_of(words),
            Kind::Integer(range) => format!("an integer{}", integer_range(range)),
            Kind::Number { min, max, open } => format!("a number{}", number_range(*min, *max, *open)),
            Kind::Flag => "`true` or `false`".to_owned(),
            Kind::Texts => "an array of strings, not empty".to_owned(),
            Kind::Integers(range) => format!("an array of integers{}, not empty", integer_range(range)),
            Kind::Environment => "a table of strings".to_owned(),
            Kind::Gpus => "`\"all\"`, a count or a list of indices".to_owned(),
            Kind::Table(_) | Kind::Tagged { .. } => "a table".to_owned(),
            Kind::Tables(_) => "an array of tables".to_owned(),
        }
    }
}

fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

fn integer_range(range: &RangeInclusive<i128>) -> String {
    match (*range.start(), *range.end()) {
        (min, U32 | U63) => format!(", {min} or more"),
        (min, max) => format!(" from {min} to {max}"),
    }
}

fn number_range(min: f64, max: f64, open: bool) -> String {
    match (min == f64::MIN, max == f64::MAX) {
        (true, true) => String::new(),
        (false, true) if open => format!(" above {min}"),
        (false, true) => format!(", {min} or more"),
        _ if open => format!(" above {min}, at most {max}"),
        _ => format!(" from {min} to {max}"),
    }
}

pub(super) const U32: i128 = u32::MAX as i128;
/// TOML's largest integer.
pub(super) const U63: i128 = i64::MAX as i128;
/// A year: longer waits are typing errors, and every clock can carry it.
const YEAR_S: f64 = 31_536_000.0;
const SECONDS: Kind = Kind::Number { min: 0.0, max: YEAR_S, open: true };
pub(super) const POSITIVE: Kind = Kind::Number { min: 0.0, max: f64::MAX, open: true };
pub(super) const NOT_NEGATIVE: Kind = Kind::Number { min: 0.0, max: f64::MAX, open: false };
pub(super) const SHARE: Kind = Kind::Number { min: 0.0, max: 1.0, open: false };

pub(super) const fn key(name: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key { name, kind, default, doc }
}

use Fallback::{Required, Value, Words};

/// `hosts.toml`.
pub static HOSTS: Keys = &[&[
    key(
        "defaults",
        Kind::Table(DEFAULTS),
        Words("no defaults"),
        "Values for hosts that do not say otherwise.",
    ),
    key("host", Kind::Tables(HOST), Required, "One table per host, in node_rank order."),
]];

/// `[defaults]`.
static DEFAULTS: Keys = &[SHARED];
/// `[[host]]`.
static HOST: Keys = &[&[key("name", Kind::Text(&NAME), Required, "Unique name, shown everywhere.")], SHARED];

static SHARED: &[Key] = &[
    key(
        "transport",
        Kind::Choice(&["ssh", "local"]),
        Value("\"ssh\""),
        "How to reach the host; `local` is this machine, without SSH.",
    ),
    key(
        "address",
        Kind::Text(&ADDRESS),
        Words("the name; `127.0.0.1` for local hosts"),
        "Address or alias of `~/.ssh/config`. Without `launch.master_addr`, the first host's must also be reachable from the other hosts.",
    ),
    key("port", Kind::Integer(1..=65535), Words("`~/.ssh/config`, else 22"), "SSH port."),
    key("user", Kind::Text(&USER), Words("`~/.ssh/config`, else the local user"), "Login user."),
    key(
        "identity_file",
        Kind::Text(&PLAIN),
        Words("agent, `~/.ssh/config`, usual keys"),
        "Private key; `~/` is this machine's home folder.",
    ),
    key(
        "proxy_jump",
        Kind::Text(&JUMP),
        Words("`~/.ssh/config`"),
        "Jump hosts, `user@host:port`, separated by commas.",
    ),
    key("gpus", Kind::Gpus, Words("no GPU"), "`\"all\"`, the first so many, or a list of NVML indices."),
    key(
        "nproc",
        Kind::Integer(1..=4096),
        Words("one per GPU, or 1 without GPUs"),
        "Ranks on this host; with fewer GPUs than ranks, ranks share GPUs in turn.",
    ),
    key(
        "workdir",
        Kind::Text(&PLAIN),
        Words("`.` for local hosts, `rankdeck` for SSH hosts"),
        "Folder on the host that holds `runs/`; relative paths begin at the home folder (SSH) or the current folder (local).",
    ),
    key("env", Kind::Environment, Words("nothing"), "Environment of the ranks; wins over the experiment's."),
    key(
        "prelude",
        Kind::Text(&PLAIN),
        Words("nothing"),
        "Shell line before each rank, such as `source venv/bin/activate`.",
    ),
    key(
        "libtorch",
        Kind::Text(&LIBTORCH),
        Words("what the host offers"),
        "libtorch for the built-in trainer: a folder on the host, or `python:PATH` for the torch of that interpreter.",
    ),
    key(
        "interface",
        Kind::Text(&INTERFACE),
        Words("the library's choice; `lo` when all ranks are on one machine"),
        "Network interface for the rendezvous and the collectives.",
    ),
];

/// Keys of a host that only SSH uses.
pub const SSH_ONLY: [&str; 4] = ["port", "user", "identity_file", "proxy_jump"];

/// `configs/*.toml`.
pub static EXPERIMENT: Keys = &[&[
    key("run", Kind::Table(RUN), Required, "What the run is called and how long it is."),
    key(
        "launch",
        Kind::Table(LAUNCH),
        Words(""),
        "What each rank runs, and what happens when the console is gone.",
    ),
    key("distributed", Kind::Table(DISTRIBUTED), Words(""), "The process group."),
    key("env", Kind::Table(ENV), Words("required by the built-in trainer"), "The environment."),
    key("policy", Kind::Table(POLICY), Words(""), "The networks."),
    key("collect", Kind::Table(COLLECT), Words(""), "Collecting experience."),
    key(
        "learn",
        Kind::Tagged { tag: "algorithm", variants: LEARN },
        Words("required by the built-in trainer"),
        "The algorithm and its hyper-parameters; `algorithm` decides which other keys there are.",
    ),
    key(
        "eval",
        Kind::Table(EVAL),
        Words(""),
        "Rank 0 plays whole episodes with the greedy policy while the others wait.",
    ),
    key(
        "checkpoint",
        Kind::Table(CHECKPOINT),
        Words(""),
        "Checkpoints, written by rank 0 into the run directory, atomically.",
    ),
    key("watch", Kind::Table(WATCH), Words(""), "Stuck-rank detection."),
    key(
        "restart",
        Kind::Table(RESTART),
        Words(""),
        "What the console that launched the run does when a generation fails.",
    ),
    key(
        "metrics",
        Kind::Table(METRICS),
        Words(""),
        "Values picked from what a program of the user prints or writes: rank 0's own, not reduced over the ranks.",
    ),
]];

static RUN: Keys = &[&[
    key("name", Kind::Text(&NAME), Required, "Name; the run directory is `runs/NAME-TIMESTAMP`."),
    key(
        "seed",
        Kind::Integer(0..=U63),
        Value("0"),
        "Base seed; rank and environment streams are derived from it without overlap.",
    ),
    key(
        "total_steps",
        Kind::Integer(0..=U63),
        Value("0"),
        "Global environment steps after which the run ends; 0: no limit.",
    ),
]];

static LAUNCH: Keys = &[&[
    key(
        "command",
        Kind::Texts,
        Words("the built-in trainer"),
        "A torchrun-style program and its arguments, run once per rank.",
    ),
    key(
        "code",
        Kind::Text(&PLAIN),
        Words("nothing: ranks run in the host's `workdir`"),
        "Folder, relative to this file, that is copied to every host by content; each run gets its own copy, and ranks run in it.",
    ),
    key(
        "exclude",
        Kind::Texts,
        Words("`.git`, `__pycache__`, `venv`, `runs` and the like stay behind anyway"),
        "Patterns of files below `code` that stay behind, such as `*.ckpt` or `data/`; without `/` for any name, with `/` for the whole path.",
    ),
    key("env", Kind::Environment, Value("{}"), "Environment of the ranks; `hosts.toml` wins."),
    key("threads", Kind::Integer(1..=4096), Value("1"), "Threads per rank (`OMP_NUM_THREADS`)."),
    key(
        "on_disconnect",
        Kind::Choice(&["keep", "stop"]),
        Value("\"keep\""),
        "What happens when the console is gone: training goes on, or the agents stop it after `lease_s`.",
    ),
    key(
        "lease_s",
        SECONDS,
        Value("30.0"),
        "Seconds without a console after which `on_disconnect = \"stop\"` stops the run.",
    ),
    key("stop_grace_s", SECONDS, Value("10.0"), "Seconds between the polite and the hard signal."),
    key(
        "master_addr",
        Kind::Text(&ADDRESS),
        Words("address of the first host"),
        "Address of rank 0's store as the other hosts reach it, where SSH uses another one.",
    ),
    key(
        "master_port",
        Kind::Integer(0..=65535),
        Value("0"),
        "Port of rank 0's store; 0: a free one is chosen on the first host.",
    ),
]];

static DISTRIBUTED: Keys = &[&[
    key(
        "backend",
        Kind::Choice(&["auto", "nccl", "gloo"]),
        Value("\"auto\""),
        "Library of the collectives; `auto`: NCCL where every rank has a GPU, else Gloo.",
    ),
    key(
        "timeout_s",
        SECONDS,
        Value("600.0"),
        "Seconds after which a collective, or the rendezvous, gives up.",
    ),
    key(
        "bucket_mb",
        Kind::Number { min: 0.0, max: 65536.0, open: true },
        Value("25.0"),
        "MiB per gradient bucket.",
    ),
    key(
        "fingerprint_every",
        Kind::Integer(0..=U63),
        Value("1"),
        "Updates between comparisons of the ranks' weight fingerprints; 0: never.",
    ),
    key(
        "data_parallel",
        Kind::Integer(1..=64),
        Value("1"),
        "Devices of each rank that a batch of `dqn` is split over, from the rank's own on; gradients are gathered on the first.",
    ),
]];

static ENV: Keys = &[&[
    key(
        "id",
        Kind::Text(&PLAIN),
        Required,
        "Environment id: classic control in Rust (such as `CartPole-v1`), an Atari game (`ALE/Pong-v5`, `PongNoFrameskip-v4`), or any id that Gymnasium knows (`module:Name-v0` imports the module first).",
    ),
    key(
        "num_envs",
        Kind::Integer(1..=1_000_000),
        Required,
        "Environments over all ranks; must be divisible by the world size.",
    ),
    key(
        "worker",
        Kind::Choice(&["auto", "rust", "python"]),
        Value("\"auto\""),
        "Where environments are computed: in the trainer, or in a Python process beside each rank; `auto`: in the trainer where it knows the id.",
    ),
    key(
        "python",
        Kind::Text(&PLAIN),
        Value("\"python3\""),
        "Interpreter of the Python worker, on every host; `rankdeck-trainer --setup-env DIR` makes one.",
    ),
    key(
        "worker_threads",
        Kind::Integer(1..=4096),
        Words("`launch.threads`"),
        "Threads of each rank's Atari emulators.",
    ),
    key(
        "worker_timeout_s",
        SECONDS,
        Value("60.0"),
        "Seconds after which a Python worker that does not answer is given up; starting it may take twice as long.",
    ),
    key(
        "max_episode_steps",
        Kind::Integer(1..=U32),
        Words("the environment's own limit"),
        "Steps after which an episode is cut off (truncated).",
    ),
    key("frame_skip", Kind::Integer(1..=1000), Words("4"), "Atari: frames per step, the last two maximised."),
    key(
        "repeat_action_probability",
        SHARE,
        Words("0.25 for `ALE/*-v5`, else 0"),
        "Atari: probability that a frame repeats the previous action (sticky actions).",
    ),
    key("noop_max", Kind::Integer(0..=1000), Words("30"), "Atari: at most so many idle frames begin a game."),
    key(
        "episodic_life",
        Kind::Flag,
        Words("true"),
        "Atari: in training a lost life ends the episode; evaluations and returns are of whole games.",
    ),
    key(
        "clip_rewards",
        Kind::Flag,
        Words("true"),
        "Atari: training sees the sign of each reward; returns stay unclipped.",
    ),
    key("frame_stack", Kind::Integer(1..=64), Words("4"), "Atari: frames in an observation."),
    key("image_size", Kind::Integer(8..=512), Words("84"), "Atari: height and width of a frame, gray."),
]];

static EVAL: Keys = &[&[
    key("every", Kind::Integer(0..=U63), Value("0"), "Training iterations between evaluations; 0: never."),
    key(
        "episodes",
        Kind::Integer(1..=1_000_000),
        Value("20"),
        "Episodes per evaluation, each with its own fixed seed.",
    ),
    key(
        "stop_value",
        Kind::Number { min: f64::MIN, max: f64::MAX, open: false },
        Words("never"),
        "The run ends, successfully, when an evaluation's mean return reaches this.",
    ),
]];

static CHECKPOINT: Keys = &[&[
    key(
        "every",
        Kind::Integer(0..=U63),
        Value("0"),
        "Training iterations between checkpoints; 0: only best and last.",
    ),
    key("best", Kind::Flag, Value("true"), "Also keep the checkpoint with the best evaluation."),
    key(
        "replay",
        Kind::Flag,
        Value("false"),
        "Also write every rank's replay, with each `latest`; false: a restart fills it again before it learns on.",
    ),
]];

static WATCH: Keys = &[&[
    key(
        "on_stuck",
        Kind::Choice(&["report", "stop", "restart"]),
        Value("\"report\""),
        "What to do about a red verdict on a living rank: say so, stop (exit code 4), or restart from the latest checkpoint.",
    ),
    key("lost_after_s", SECONDS, Value("5.0"), "Seconds without a sample after which a host is `lost`."),
    key(
        "behind_after_s",
        SECONDS,
        Value("5.0"),
        "Seconds that others must have waited in a collective before the rank that has not entered it is `behind`.",
    ),
    key(
        "init_budget_s",
        SECONDS,
        Value("120.0"),
        "Seconds allowed for start-up and rendezvous before `behind` may be said about them.",
    ),
    key(
        "rank0_budget_s",
        SECONDS,
        Value("600.0"),
        "Seconds allowed for an evaluation or a checkpoint that shows no progress.",
    ),
    key(
        "check_collectives",
        Kind::Flag,
        Value("false"),
        "Ranks compare every collective before they begin it, so that the first difference is named at its call: slower; `rankdeck restart --microscope` does the same for one generation.",
    ),
    key(
        "python_hook",
        Kind::Flag,
        Value("true"),
        "Show the process groups of Python ranks through a `sitecustomize` on `PYTHONPATH`; scripts stay as they are.",
    ),
]];

static METRICS: Keys = &[&[
    key(
        "presets",
        Kind::Texts,
        Words("none"),
        "Shipped sets of patterns: `cleanrl` for `global_step=..., episodic_return=...` and `SPS: ...`.",
    ),
    key(
        "stdout",
        Kind::Texts,
        Words("none"),
        "Regular expressions, one named group per value, such as `step (?P<env_step>[0-9]+) loss (?P<loss>[-0-9.e]+)`; \
         `env_step`, `return` and `SPS` have their usual meaning, other names become charts.",
    ),
    key(
        "tensorboard",
        Kind::Text(&PLAIN),
        Words("none"),
        "Folder with TensorBoard event files that rank 0 writes, on its host; relative paths begin at `workdir`.",
    ),
]];

static RESTART: Keys = &[&[
    key(
        "max_restarts",
        Kind::Integer(0..=1_000_000),
        Words("0; 3 where `watch.on_stuck` or `lost_host` asks for restarts"),
        "Restarts by policy over the life of the run, each a new generation from the latest checkpoint.",
    ),
    key(
        "backoff_s",
        Kind::Number { min: 0.0, max: YEAR_S, open: false },
        Value("1.0"),
        "Seconds before a restart; doubled with each restart that made no progress.",
    ),
    key(
        "backoff_max_s",
        Kind::Number { min: 0.0, max: YEAR_S, open: false },
        Value("60.0"),
        "Longest wait before a restart, seconds.",
    ),
    key(
        "no_progress",
        Kind::Integer(1..=1_000_000),
        Value("2"),
        "Restarts in a row without a new checkpoint or training iteration after which the policy gives up.",
    ),
    key(
        "lost_host",
        Kind::Choice(&["stop", "exclude"]),
        Value("\"stop\""),
        "A host that gives no proof of its stop after a failure: the run ends, or the next generation does without the host.",
    ),
]];

use super::schema_learn::{COLLECT, LEARN, POLICY};
use super::text_rules::{ADDRESS, INTERFACE, JUMP, LIBTORCH, NAME, PLAIN, USER};

/// The keys of a table as one list.
pub fn keys_of(keys: Keys) -> impl Iterator<Item = &'static Key> + Clone {
    keys.iter().flat_map(|part| part.iter())
}

/// The key that a dotted path names (array indices left out).
pub fn find(keys: Keys, path: &[&str]) -> Option<&'static Key> {
    let (first, rest) = path.split_first()?;
    let key = keys_of(keys).find(|key| key.name == *first)?;
    if rest.is_empty() {
        return Some(key);
    }
    match &key.kind {
        Kind::Table(keys) | Kind::Tables(keys) => find(keys, rest),
        Kind::Tagged { variants, .. } => variants.iter().find_map(|(_, keys)| find(keys, rest)),
        _ => None,
    }
}
