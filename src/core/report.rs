//! The reports of a console: the objects of `--json`, one per line. Schema: `docs/json.md`; fields
//! are only ever added.

pub use crate::reason::{Confidence, Proof, Severity, VerdictKind};
pub use rankdeck_proto::message::RunOutcome;

use crate::card::Card;
use crate::reason::Reason;
use rankdeck_proto::media::ImageFormat;
use rankdeck_proto::message::{CheckpointOrigin, GpuSample, RunResults, StepSource, Work};
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, WallTime};
use rankdeck_types::plan::PlannedSize;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};

/// Version of this schema, in `run_started`.
pub(crate) const SCHEMA: u32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub run: RunId,
    pub generation: Generation,
    /// When, seconds since the epoch; filled in by the shell.
    pub time: WallTime,
    #[serde(flatten)]
    pub body: ReportBody,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportBody {
    /// A generation was launched (or, with `adopted`, found running).
    RunStarted {
        /// [`SCHEMA`].
        schema: u32,
        /// Ranks.
        world_size: u32,
        /// Hosts.
        nnodes: u32,
        /// `tcp` or `nccl`; `own` of your own program on CPUs.
        backend: String,
        /// `ADDRESS:PORT` of rank 0's store.
        master: String,
        /// Found running by `attach`.
        adopted: bool,
        /// The run directory on rank 0's host.
        run_dir: String,
    },
    /// A host's link or agent changed.
    Host {
        /// Index.
        node_rank: NodeRank,
        /// Name.
        host: String,
        /// `connecting`, `ready`, `lost`, `failed`, ...
        state: String,
        /// Details; may be empty.
        detail: String,
    },
    /// A rank changed its life (spawned, joined, exited).
    Rank {
        /// The rank it is about.
        rank: Rank,
        host: String,
        /// `spawned`, `joined`, `finished`, `failed`, `killed`, ...
        state: String,
        /// Process id.
        pid: Option<u32>,
        /// Exit code, when it returned one.
        exit_code: Option<i32>,
        /// Signal, when one ended it.
        signal: Option<i32>,
        /// More.
        detail: String,
    },
    /// All-reduced totals next to every rank's own counters of the same iteration.
    Progress {
        train_iter: u64,
        /// All-reduced.
        env_step: u64,
        /// All-reduced.
        samples: u64,
        /// All-reduced.
        episodes: u64,
        /// All-reduced seconds of collecting (rank-seconds).
        duration_s: f64,
        /// Global environment steps per second of wall time, smoothed; `null` before a second of them is
        /// measured.
        steps_per_s: Option<f64>,
        /// Mean return of the training episodes finished since the previous progress, `null` when none did.
        return_mean: Option<f64>,
        /// Mean return of the last 100 training episodes over all ranks, `null` when none ended or the
        /// trainer does not report it.
        return_last_100: Option<f64>,
        /// Optimizer updates.
        updates: u64,
        /// Goal in environment steps, `null` without one.
        total_steps: Option<u64>,
        /// Seconds to the goal at the present rate.
        eta_s: Option<f64>,
        /// The sums of `per_rank` equal the totals.
        consistent: bool,
        /// The ranks all-reduced the totals; otherwise the console added the ranks' latest counters up.
        #[serde(default)]
        reduced: bool,
        /// In rank order, taken at the same iteration.
        per_rank: Vec<RankProgress>,
    },
    /// Values that a program of the user gave without knowing rankdeck.
    Metrics {
        /// The rank it is about.
        rank: Rank,
        /// `stdout` or `tensorboard`.
        source: String,
        /// Its environment steps, `null` if it does not report them.
        env_step: Option<u64>,
        /// Name to value.
        values: std::collections::BTreeMap<String, f64>,
        /// The return of training episodes among them, whatever the program calls it.
        #[serde(default)]
        return_mean: Option<f64>,
        /// How far the program is, by its progress bar or a counter with an end; `null` if that has not
        /// changed.
        #[serde(default)]
        progress: Option<ShownProgress>,
        /// What the program counts instead of steps, such as its epochs, and where these values are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counter: Option<ShownCounter>,
        /// Always `false`: one rank's own, not reduced over the ranks.
        reduced: bool,
    },
    /// How values were spread at one step, as the program logs it.
    Histogram {
        name: String,
        /// Global environment steps.
        env_step: u64,
        train_iter: u64,
        /// How many values.
        count: f64,
        /// About their mean: each value as if it were in the middle of its bin.
        mean: f64,
        /// The lowest border of a bin with a value.
        min: f64,
        /// The highest one.
        max: f64,
        /// Borders of the bins, rising.
        edges: Vec<f64>,
        /// How many values are in each bin.
        counts: Vec<f64>,
    },
    /// The program logged a picture; the screen, the report and the record have it.
    Image {
        name: String,
        /// Global environment steps.
        env_step: u64,
        train_iter: u64,
        /// `png` or `gif`.
        format: ImageFormat,
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Bytes of its file.
        bytes: u64,
    },
    /// Rank 0 evaluated.
    Eval {
        /// Global environment steps.
        env_step: u64,
        train_iter: u64,
        /// Episodes played.
        episodes: u32,
        return_mean: f64,
        /// Standard deviation.
        return_std: f64,
        /// Smallest.
        return_min: f64,
        /// Largest.
        return_max: f64,
        /// The stop value was reached.
        stop: bool,
        /// Actions were taken as in training instead of the best ones.
        #[serde(default)]
        sampled: bool,
        /// The series of a program that reports no evaluations: only its mean return is known. Empty for one that
        /// was reported.
        #[serde(default)]
        series: String,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// Path on the host that saved it.
        path: String,
        /// Global environment steps; 0: unknown.
        env_step: u64,
        train_iter: u64,
        /// Why it was written; `found` if no rank has reported it.
        reason: String,
        /// How it is known: `reported` by a rank, or `found` on its disk.
        #[serde(default)]
        origin: CheckpointOrigin,
        /// Source of the steps of a found one: a number in its `name`, or the steps of the `rank`s when it was
        /// complete; else `null`.
        #[serde(default)]
        step_from: Option<StepSource>,
        /// Size, of all files in it; `null`: unknown.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// A notice of an agent: an event that it rejected, a fallback in use.
    Notice {
        /// Index.
        node_rank: NodeRank,
        /// Whose agent.
        host: String,
        /// One sentence.
        text: String,
    },
    /// The reader of these lines did not keep up: some are missing here.
    LinesDropped {
        /// How many.
        lines: u64,
    },
    /// A verdict appeared, changed or was cleared.
    Verdict(VerdictReport),
    /// A log line of a rank.
    Log {
        /// The rank it is about.
        rank: Rank,
        host: String,
        /// The text.
        line: String,
    },
    /// A new generation follows, or was requested and does not.
    Restart {
        /// Where it stands.
        state: RestartState,
        /// The generation that follows; the present one when it is refused.
        next_generation: Generation,
        /// One sentence: why.
        reason: String,
        /// Seconds until it begins, as far as known.
        in_s: f64,
        /// Restarts by policy so far, this one included.
        restarts: u32,
        /// How many there may be.
        max_restarts: u32,
        /// Checkpoint that it begins from, `null` for a start from scratch.
        from: Option<String>,
        /// The code of its ranks: `same` as before, `new`, or `in_place`; absent for the built-in trainer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// Ranks that it will have.
        world_size: u32,
        /// Names of the hosts that take part.
        hosts: Vec<String>,
        /// Sizes per rank and over all ranks.
        sizes: Vec<PlannedSize>,
        /// The failure that it follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_failure: Option<FirstFailure>,
    },
    /// The process group has other members: ranks were lost, or have joined again.
    Membership {
        /// Changes since the launch of the generation, this one included.
        epoch: u32,
        /// The members from now on.
        ranks: Vec<Rank>,
        /// Former members that are gone.
        lost: Vec<Rank>,
        /// Members that have joined.
        joined: Vec<Rank>,
        /// Ranks of the plan.
        world_size: u32,
        /// Iteration after which they continue.
        train_iter: u64,
        /// Global environment steps at that place.
        env_step: u64,
        /// Global environment steps that the totals do not contain any more.
        steps_lost: u64,
        /// Seconds from the notice of the change to the new group.
        seconds: f64,
    },
    /// The run is over.
    RunFinished {
        /// How it ended.
        outcome: RunOutcome,
        /// The console's exit code.
        exit_code: u8,
        /// Every rank left by itself, and that is proved: no rank failed, and none had to be killed.
        #[serde(default)]
        clean: bool,
        /// Processes left, `HOST:PID COMMAND`; empty when the stop is proved.
        survivors: Vec<String>,
        /// Names of the hosts on which something may be left.
        #[serde(default)]
        unverified: Vec<String>,
        /// The stop was proved on every host that may ever have had ranks.
        proved: bool,
        /// One sentence: why.
        reason: String,
        /// Milliseconds from the first stop order or exit to the proof.
        stop_ms: u64,
        /// GPUs free again, `HOST:INDEX`.
        gpus_free: Vec<String>,
        /// The failure that began the end, when ranks failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_failure: Option<FirstFailure>,
        /// What the end left of the work; absent if the run ended by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work: Option<Work>,
        /// What is odd about the end, though no failure.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
        /// What ranks have written where they work, per host or shared directory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        results: Vec<ResultsReport>,
    },
}

/// Files that ranks have written where they work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResultsReport {
    pub host: String,
    /// The directory on that host.
    pub folder: String,
    /// It is the user's own directory, not a copy.
    pub in_place: bool,
    pub files: u64,
    pub bytes: u64,
    /// Names of the first ones: checkpoints, then metrics, then others.
    pub names: Vec<String>,
    /// Number of further files that this run or another one has written.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared: u64,
    /// Names of such runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<String>,
    /// The whole directory was searched.
    pub complete: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ResultsReport {
    /// Of what hosts report; those that share a directory are one.
    pub fn of<'a>(found: impl Iterator<Item = (&'a str, &'a RunResults)>) -> Vec<ResultsReport> {
        let mut shown: Vec<(&str, &RunResults)> = Vec::new();
        for (host, results) in found {
            let is_known = !results.mark.is_empty();
            match shown.iter_mut().find(|known| is_known && known.1.mark == results.mark) {
                Some(known) if known.1.files < results.files => *known = (host, results),
                Some(_) => {}
                None => shown.push((host, results)),
            }
        }
        let report = |(host, results): (&str, &RunResults)| {
            let RunResults { folder, in_place, mark: _, files, bytes, names, shared, shared_with, complete } =
                results.clone();
            let host = host.to_owned();
            ResultsReport { host, folder, in_place, files, bytes, names, shared, shared_with, complete }
        };
        shown.into_iter().map(report).collect()
    }

    /// In one line: `3 files, 1.2M in /w/work/ppo on a: best.pt, log.csv and 1 more`.
    pub fn describe(&self) -> String {
        let count = words::plural(self.files as usize, "file");
        let at_least = if self.complete { "" } else { "at least " };
        let more = match self.files.saturating_sub(self.names.len() as u64) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = match self.names.is_empty() {
            true => String::new(),
            false => format!(": {}{more}", self.names.join(", ")),
        };
        let shared = match self.shared {
            0 => String::new(),
            count => {
                let (files, runs) = (words::plural(count as usize, "file"), self.shared_with.join(", "));
                format!("; {files} of this run or {runs}, which worked there at the same time")
            }
        };
        let place = format!("{} in {} on {}", words::bytes(self.bytes), self.folder, self.host);
        words::clean(&format!("{at_least}{count}, {place}{names}{shared}"))
    }
}

/// Where a restart stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartState {
    /// It will begin when the present generation has ended, or right away.
    Planned,
    /// It waits (backoff).
    Waiting,
    /// It was requested and is impossible; the current generation keeps running.
    Refused,
    /// The policy makes no more restarts.
    GivenUp,
}

/// The failure of a generation over all hosts: who failed first by one clock, and who merely followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The rank that failed first.
    pub rank: Rank,
    pub host: String,
    /// What happened to it: its first error, else how it ended.
    pub error: String,
    /// When, seconds since the epoch on the console's clock.
    pub time: WallTime,
    /// The time is right within this many seconds: half a round trip to the host's agent.
    pub bound_s: f64,
    /// No other failure of the same gravity is within the bounds of both clocks.
    pub certain: bool,
    /// The end of its log, oldest line first.
    pub last_lines: Vec<String>,
    /// Ranks that failed by themselves with the same exception, or the same error, as this one.
    #[serde(default)]
    pub alike: Vec<Rank>,
    /// Other ranks that failed later, or because a peer was gone.
    pub followed: Vec<Rank>,
    /// Ranks that failed by themselves so close to it that the clocks cannot order them.
    pub together: Vec<Rank>,
    /// All of it in one line.
    pub line: String,
}

/// One rank's own counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankProgress {
    /// The rank it is about.
    pub rank: Rank,
    pub host: String,
    /// Environment steps of this rank.
    pub env_step: u64,
    /// Samples of this rank.
    pub samples: u64,
    /// Episodes of this rank.
    pub episodes: u64,
    /// Its own, seconds.
    pub duration_s: f64,
    /// What it does now.
    pub phase: String,
    /// Collective entered last.
    pub collective_seq: u64,
    /// Percent of one core.
    pub cpu_percent: Option<f32>,
    /// Percent of its GPU.
    pub gpu_percent: Option<u32>,
    /// Bytes.
    pub rss: Option<u64>,
    /// Bytes on its GPU.
    pub gpu_memory: Option<u64>,
    /// Its GPU as the driver reports it, `null` without one.
    #[serde(default)]
    pub gpu: Option<GpuState>,
}

/// A GPU as its driver reports it; unknown values are `null`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    /// NVML index on the host.
    pub index: u32,
    /// The driver has lost it.
    pub lost: bool,
    /// The driver's latest error reports (Xid numbers), oldest first.
    pub xids: Vec<u64>,
    /// Reasons why clocks are held down, in words.
    pub throttle: Vec<String>,
    /// Watts.
    pub power_w: Option<f32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Streaming-multiprocessor clock, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Memory errors since the driver was loaded that were corrected.
    pub ecc_corrected: Option<u64>,
    /// The same that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Bytes per second over PCIe to it.
    pub pcie_rx: Option<u64>,
    /// Bytes per second over PCIe from it.
    pub pcie_tx: Option<u64>,
    /// Bytes per second over NVLink to it.
    pub nvlink_rx: Option<u64>,
    /// Bytes per second over NVLink from it.
    pub nvlink_tx: Option<u64>,
    /// Errors of its NVLinks from which they recovered.
    pub nvlink_errors: Option<u64>,
}

impl From<&GpuSample> for GpuState {
    fn from(gpu: &GpuSample) -> GpuState {
        GpuState {
            index: gpu.index,
            lost: gpu.lost,
            xids: gpu.xids.clone(),
            throttle: gpu.throttle.clone(),
            power_w: gpu.power_w,
            temperature_c: gpu.temperature_c,
            sm_clock_mhz: gpu.sm_clock_mhz,
            ecc_corrected: gpu.ecc_corrected,
            ecc_uncorrected: gpu.ecc_uncorrected,
            pcie_rx: gpu.pcie_rx,
            pcie_tx: gpu.pcie_tx,
            nvlink_rx: gpu.nvlink_rx,
            nvlink_tx: gpu.nvlink_tx,
            nvlink_errors: gpu.nvlink_errors,
        }
    }
}

/// A verdict, for people and machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictReport {
    /// The culprit, `null` without one.
    pub rank: Option<Rank>,
    pub host: Option<String>,
    /// The kind of problem.
    pub verdict: VerdictKind,
    /// How bad, or `cleared`.
    pub severity: Severity,
    /// How sure.
    pub confidence: Confidence,
    /// What makes it certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Why, as a word that never changes.
    #[serde(default)]
    pub reason_code: Reason,
    /// One sentence.
    pub reason: String,
    /// Seconds from the start of the problem (if known) to this verdict.
    pub latency_s: f64,
    /// The same to its first report, which refinements do not change.
    #[serde(default)]
    pub first_s: f64,
    /// Evidence and advice. JSON also has `evidence` and `hint`, which are derived from it.
    #[serde(flatten, with = "content")]
    pub card: Box<Card>,
}

/// The JSON of a card in a verdict.
mod content {
    use crate::card::Card;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct CardForm<'a> {
        evidence: Vec<String>,
        hint: String,
        card: &'a Card,
    }

    #[derive(Deserialize)]
    struct Read {
        card: Box<Card>,
    }

    pub fn serialize<S: Serializer>(card: &Card, to: S) -> Result<S::Ok, S::Error> {
        CardForm { evidence: card.evidence(), hint: card.hint(), card }.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<Card>, D::Error> {
        Ok(Read::deserialize(from)?.card)
    }
}
