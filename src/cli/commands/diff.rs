//! `rankdeck diff`: the first iteration, tensor and operation at which two executions of the built-in trainer part.
//!
//! The iteration follows from the fingerprints that runs record, the tensor from their checkpoints, and the operation
//! from a replay: both executions are continued on this machine from the last checkpoint that is equal in both, up to
//! the iteration in which they part, and every operation's result is compared.
//!
//! Invariants:
//! - DIFF-1: a replay runs only the environments of the trainer itself, and no other code that a checkpoint names.
//! - DIFF-2: exit code 0 means that everything that both executions recorded is equal, 1 that something differs.

use crate::cli::args::{DiffArgs, FetchArgs, HostKeyArgs, PrintArgs};
use crate::cli::support::{Failure, code, copy, interrupt, policy};
use rankdeck_config::HostsSource;
use rankdeck_proto::execution::{
    CheckpointArray, CheckpointContents, FINGERPRINTS, FingerprintLine, MOST_OPERATIONS, TracedOperation,
    TracedStage,
};
use rankdeck_proto::files::{CHECKPOINT_MAGIC, CHECKPOINT_PREFIX, FETCHED};
use rankdeck_types::experiment::{BackendChoice, Experiment, LaunchConfig, OnRankLoss, builtin_env};
use rankdeck_types::words::{clean, plural};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Most bytes of a checkpoint's header.
const MOST_HEADER: u64 = 64 << 20;
/// Most bytes of a file with operations.
const MOST_TRACE: u64 = 512 << 20;
/// Largest group that one machine replays.
const MOST_RANKS: u32 = 64;
/// Most iterations whose operations are compared.
const MOST_ITERATIONS: u64 = 1000;
/// Most bytes that are read of a replay's output.
const MOST_WORDS: u64 = 64 << 10;
/// Most tensors that are listed.
const LISTED: usize = 8;

/// One execution: the files that a run has left.
struct Execution {
    name: String,
    prints: BTreeMap<u64, FingerprintLine>,
    /// One checkpoint of each iteration.
    checkpoints: BTreeMap<u64, PathBuf>,
    /// The rank that is compared.
    rank: u32,
}

/// What differs between two executions.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
struct Difference {
    /// Iterations whose fingerprints both have.
    compared_iterations: usize,
    /// Checkpoints of the same iteration that both have.
    compared_checkpoints: usize,
    /// The last iteration before the first different one whose fingerprints are equal.
    last_equal: Option<u64>,
    /// The first iteration with different fingerprints.
    first_different: Option<u64>,
    /// The first checkpoint that differs.
    tensors: Option<TensorDifferences>,
    /// Configuration keys that differ.
    settings: Vec<SettingDifference>,
    /// The first operation that differs in a replay.
    operation: Option<OperationDifference>,
    /// Why there was no replay, or what it found.
    replay: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TensorDifferences {
    train_iter: u64,
    /// Tensors that differ, in their order.
    tensors: Vec<TensorDifference>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TensorDifference {
    name: String,
    /// Numbers that differ, and all; both 0 if the shapes differ or one is missing.
    differing: usize,
    len: usize,
    /// Place of the first one, and both values.
    index: Vec<i64>,
    a: Option<f32>,
    b: Option<f32>,
    /// Largest difference.
    largest: Option<f32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct SettingDifference {
    key: String,
    a: Value,
    b: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct OperationDifference {
    train_iter: u64,
    update: u64,
    stage: TracedStage,
    /// `rank 1`, `block 3`, or `all ranks`.
    unit: String,
    operation: String,
    /// Absent where the execution does not make the operation.
    a: Option<OperationResult>,
    b: Option<OperationResult>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct OperationResult {
    hash: String,
    len: u64,
    norm: Option<f64>,
}

/// Runs `rankdeck diff`.
///
/// # Errors
/// As with `diff`, 1 means a difference: every failure has another code.
pub(crate) async fn diff(hosts_from: &HostsSource, args: DiffArgs) -> Result<u8, Failure> {
    compare(hosts_from, args)
        .await
        .map_err(|failure| Failure { code: failure.code.max(code::USAGE), ..failure })
}

async fn compare(hosts_from: &HostsSource, args: DiffArgs) -> Result<u8, Failure> {
    let (ranks, other) = match (args.ranks, &args.other) {
        (Some(ranks), _) => (ranks, &args.run),
        (None, Some(other)) => ((0, 0), other),
        (None, None) => return Err(Failure::usage("no second run").hint("`rankdeck diff RUN_A RUN_B`")),
    };
    let mut a = Execution::load(hosts_from, &args.run, ranks.0, &args.host_keys).await?;
    let b = match args.ranks {
        Some((one, other)) => {
            let name = format!("{} rank {other}", a.name);
            a.name = format!("{} rank {one}", a.name);
            Execution { name, rank: other, ..a.same_files() }
        }
        None => Execution::load(hosts_from, other, ranks.1, &args.host_keys).await?,
    };
    let mut found = recorded(&a, &b)?;
    if found.compared_iterations + found.compared_checkpoints == 0 {
        return Err(Failure::usage(format!("{} and {} have no iteration in common", a.name, b.name)).hint(
            "compare runs of the built-in trainer with `distributed.fingerprint_every` above 0, from the same start",
        ));
    }
    if found.differs() {
        match replayable(&a, &b, &found) {
            // What the runs recorded is the result also without a replay.
            Ok(plan) if !args.no_replay => {
                let replay = async { Ok(plan.run(&a, &b, &mut found, args.output).await) };
                if let Err(failure) = interrupt::while_replaying(replay).await? {
                    found.replay = format!("failed: {}", failure.cause.with_hint());
                }
            }
            Ok(_) => found.replay = "skipped: --no-replay".to_owned(),
            Err(why) => found.replay = format!("skipped: {why}"),
        }
    }
    report(&a, &b, &found, args.output);
    Ok(if found.differs() { code::FAILED } else { code::SUCCESS })
}

impl Difference {
    fn differs(&self) -> bool {
        self.first_different.is_some() || self.tensors.is_some()
    }
}

impl Execution {
    /// The files in the directory of a run, or fetched from its hosts.
    async fn load(
        hosts_from: &HostsSource,
        run: &str,
        rank: u32,
        host_keys: &HostKeyArgs,
    ) -> Result<Execution, Failure> {
        let (folder, name) = match own_folder(Path::new(run)) {
            Some(folder) => (folder, run.to_owned()),
            None => fetch(hosts_from, run, host_keys).await?,
        };
        let text = match std::fs::read_to_string(folder.join(FINGERPRINTS)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(unreadable(&folder.join(FINGERPRINTS), &error)),
        };
        let mut checkpoints = BTreeMap::new();
        for entry in std::fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "ckpt")
                && path.is_file()
                && let Some(iteration) = iteration_of(&path)
            {
                checkpoints.insert(iteration, path);
            }
        }
        Ok(Execution { name, prints: FingerprintLine::parse_all(&text), checkpoints, rank })
    }

    fn same_files(&self) -> Execution {
        let Execution { name, prints, checkpoints, rank } = self;
        Execution {
            name: name.clone(),
            prints: prints.clone(),
            checkpoints: checkpoints.clone(),
            rank: *rank,
        }
    }

    fn checkpoint(&self, iteration: u64) -> Result<CheckpointContents, Failure> {
        let path = self.checkpoints.get(&iteration).cloned().unwrap_or_default();
        let bytes = std::fs::read(&path).map_err(|error| unreadable(&path, &error))?;
        CheckpointContents::read(&bytes).map_err(|why| {
            Failure::usage(format!("checkpoint {} {why}", path.display()))
                .hint("remove it, or fetch it again with `rankdeck fetch`")
        })
    }

    /// The first checkpoint from an iteration on, or the last one: its experiment is the run's there.
    fn nearest(&self, iteration: u64) -> Option<u64> {
        let mut later = self.checkpoints.range(iteration..);
        later.next().or(self.checkpoints.last_key_value()).map(|(iteration, _)| *iteration)
    }

    /// The iteration after which it has recorded its first fingerprint: that of the checkpoint that it was resumed
    /// from, or 0.
    fn resumed_at(&self) -> u64 {
        self.prints.first_key_value().map_or(0, |(first, _)| first.saturating_sub(1))
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read {}: {error}", path.display())).hint("check its permissions")
}

/// The directory with fingerprints or checkpoints that a path names: a run directory, or a copy of it below
/// `hosts/HOST`.
fn own_folder(path: &Path) -> Option<PathBuf> {
    let has_files = |path: &Path| path.join(FINGERPRINTS).is_file() || path.join("checkpoints").is_dir();
    if !path.is_dir() {
        return None;
    }
    if has_files(path) {
        return Some(path.to_owned());
    }
    let hosts = std::fs::read_dir(path.join(FETCHED)).into_iter().flatten().flatten();
    hosts.map(|entry| entry.path()).filter(|path| has_files(path)).max_by_key(|path| modified(path))
}

/// When the fingerprints, or else the checkpoints, were written.
fn modified(folder: &Path) -> Option<std::time::SystemTime> {
    let prints = folder.join(FINGERPRINTS).metadata();
    prints.or_else(|_| folder.join("checkpoints").metadata()).and_then(|found| found.modified()).ok()
}

/// The directory of a run and its full name.
async fn fetch(
    hosts_from: &HostsSource,
    run: &str,
    host_keys: &HostKeyArgs,
) -> Result<(PathBuf, String), Failure> {
    let (mut into, mut name) = (PathBuf::new(), run.to_owned());
    for pattern in [FINGERPRINTS, "checkpoints/*.ckpt"] {
        let request = FetchArgs {
            run: run.to_owned(),
            pattern: Some(pattern.to_owned()),
            into: None,
            max_size_gb: 64,
            output: PrintArgs::default(),
            host_keys: host_keys.clone(),
        };
        let copied = copy::copy(hosts_from, &request).await?;
        if let Some(lost) = copied.total.lost {
            return Err(lost);
        }
        (into, name) = (copied.into, copied.run);
    }
    let run_folder = into.parent().map(Path::to_owned).unwrap_or_default();
    let folder = own_folder(&run_folder).ok_or_else(|| {
        Failure::usage(format!("run {run} has neither fingerprints nor checkpoints"))
            .hint("only runs of the built-in trainer have them")
    })?;
    Ok((folder, name))
}

/// After which iteration a checkpoint was written, by its header alone.
fn iteration_of(path: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Header {
        train_iter: u64,
    }
    let mut file = File::open(path).ok()?;
    let mut prefix = [0; CHECKPOINT_PREFIX];
    file.read_exact(&mut prefix).ok().filter(|()| prefix.starts_with(CHECKPOINT_MAGIC))?;
    let len = u64::from(u32::from_le_bytes(prefix.get(12..16)?.try_into().ok()?));
    let mut header = Vec::new();
    file.take(len.min(MOST_HEADER)).read_to_end(&mut header).ok()?;
    serde_json::from_slice::<Header>(&header).ok().map(|header| header.train_iter)
}

/// Compares what both have recorded.
fn recorded(a: &Execution, b: &Execution) -> Result<Difference, Failure> {
    let mut found = Difference::default();
    for (iteration, line) in &a.prints {
        let (Some(of_a), Some(of_b)) =
            (line.of(a.rank), b.prints.get(iteration).and_then(|line| line.of(b.rank)))
        else {
            continue;
        };
        found.compared_iterations += 1;
        match found.first_different {
            None if of_a == of_b => found.last_equal = Some(*iteration),
            None => found.first_different = Some(*iteration),
            Some(_) => {}
        }
    }
    // Ranks of one run share its checkpoints.
    if a.rank != b.rank {
        return Ok(found);
    }
    let common: Vec<u64> =
        a.checkpoints.keys().copied().filter(|at| b.checkpoints.contains_key(at)).collect();
    for iteration in common {
        let (own, other) = (a.checkpoint(iteration)?, b.checkpoint(iteration)?);
        found.compared_checkpoints += 1;
        let tensors = tensor_differences(&own.arrays, &other.arrays);
        if !tensors.is_empty() {
            found.tensors = Some(TensorDifferences { train_iter: iteration, tensors });
            break;
        }
    }
    let near = found.first_different.or(found.last_equal).unwrap_or(0);
    if let (Some(at_a), Some(at_b)) = (a.nearest(near), b.nearest(near)) {
        found.settings = settings(&a.checkpoint(at_a)?.experiment, &b.checkpoint(at_b)?.experiment);
    }
    Ok(found)
}

fn tensor_differences(a: &[CheckpointArray], b: &[CheckpointArray]) -> Vec<TensorDifference> {
    let names: BTreeSet<&str> = a.iter().chain(b).map(|array| array.name.as_str()).collect();
    let find = |among: &[CheckpointArray], name: &str| among.iter().position(|array| array.name == name);
    let mut found: Vec<(usize, TensorDifference)> = Vec::new();
    for name in names {
        let (at, other) = (find(a, name), find(b, name));
        let place = at.or(other).unwrap_or(0);
        let missing = TensorDifference {
            name: name.to_owned(),
            differing: 0,
            len: 0,
            index: Vec::new(),
            a: None,
            b: None,
            largest: None,
        };
        match (at.map(|at| &a[at]), other.map(|at| &b[at])) {
            (Some(a), Some(b)) if a.shape == b.shape => {
                let pairs = a.values.iter().zip(&b.values).enumerate();
                let differing: Vec<(usize, f32, f32)> = pairs
                    .filter(|(_, (a, b))| a.to_bits() != b.to_bits())
                    .map(|(at, (a, b))| (at, *a, *b))
                    .collect();
                let Some((first, of_a, of_b)) = differing.first().copied() else { continue };
                let largest = differing.iter().map(|(_, a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
                found.push((
                    place,
                    TensorDifference {
                        differing: differing.len(),
                        len: a.values.len(),
                        index: index_of(first, &a.shape),
                        a: Some(of_a),
                        b: Some(of_b),
                        largest: Some(largest),
                        ..missing
                    },
                ));
            }
            _ => found.push((place, missing)),
        }
    }
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, tensor)| tensor).collect()
}

/// The place of an element in an array of this shape.
fn index_of(element: usize, shape: &[i64]) -> Vec<i64> {
    let mut rest = element as i64;
    let mut index: Vec<i64> = shape
        .iter()
        .rev()
        .map(|side| {
            let at = rest % (*side).max(1);
            rest /= (*side).max(1);
            at
        })
        .collect();
    index.reverse();
    index
}

/// Where and how long a run is launched and watched makes no other run of it.
const ELSEWHERE: [&str; 5] = ["run.name", "launch.", "watch.", "restart.", "metrics."];

fn settings(a: &Value, b: &Value) -> Vec<SettingDifference> {
    let (a, b) = (leaves(a), leaves(b));
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let value = |of: &BTreeMap<String, Value>, key: &String| of.get(key).cloned().unwrap_or(Value::Null);
    keys.into_iter()
        .filter(|key| !ELSEWHERE.iter().any(|prefix| key.starts_with(prefix)))
        .map(|key| SettingDifference { key: key.clone(), a: value(&a, key), b: value(&b, key) })
        .filter(|setting| setting.a != setting.b)
        .collect()
}

fn leaves(value: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), value)];
    while let Some((name, value)) = open.pop() {
        match value {
            Value::Object(table) => open.extend(table.iter().map(|(key, value)| {
                (if name.is_empty() { key.clone() } else { format!("{name}.{key}") }, value)
            })),
            value => {
                found.insert(name, value.clone());
            }
        }
    }
    found
}

/// What a replay runs.
#[derive(Debug)]
struct ReplayPlan {
    /// The last iteration whose checkpoints are equal, or that the other execution was resumed from; 0: from
    /// scratch.
    start: u64,
    /// Each execution's checkpoint of it.
    checkpoints: [Option<PathBuf>; 2],
    /// The iterations whose operations are compared.
    first: u64,
    last: u64,
    experiments: [Experiment; 2],
    worlds: [u32; 2],
}

/// Returns how both executions can be replayed, or why they cannot.
fn replayable(a: &Execution, b: &Execution, found: &Difference) -> Result<ReplayPlan, String> {
    let differing = found.tensors.as_ref().map(|tensors| tensors.train_iter);
    if let (Some(at), Some(last_equal)) = (differing, found.last_equal)
        && at <= last_equal
    {
        return Err(format!(
            "fingerprints up to iteration {last_equal} are equal, so the weights of iteration {at} were changed after training"
        ));
    }
    let last = found.first_different.or(differing).unwrap_or(0);
    if last == 0 {
        return Err("the weights differ before the first iteration".to_owned());
    }
    let mut start = 0;
    for at in a.checkpoints.keys().rev().copied().filter(|at| *at < last && b.checkpoints.contains_key(at)) {
        let pair = a.checkpoint(at).and_then(|own| Ok((own, b.checkpoint(at)?)));
        let (own, other) = pair.map_err(|failure| failure.cause.error)?;
        if tensor_differences(&own.arrays, &other.arrays).is_empty() {
            start = at;
            break;
        }
    }
    // An execution that was resumed from a checkpoint of the other one need not have it.
    let resumed = [a, b].map(Execution::resumed_at).into_iter().max().unwrap_or(0);
    let is_known = |at: &u64| a.checkpoints.contains_key(at) || b.checkpoints.contains_key(at);
    if start == 0 && resumed < last && is_known(&resumed) {
        start = resumed;
    }
    let path = |own: &Execution, other: &Execution| {
        own.checkpoints.get(&start).or(other.checkpoints.get(&start)).cloned()
    };
    let checkpoints = if start == 0 { [None, None] } else { [path(a, b), path(b, a)] };
    let first = found.last_equal.filter(|equal| *equal < last).unwrap_or(start).max(start) + 1;
    if last - first >= MOST_ITERATIONS {
        return Err(format!(
            "the executions part between iterations {first} and {last}, more than {MOST_ITERATIONS} apart"
        ));
    }
    let of = |execution: &Execution| {
        let at = execution.nearest(last).ok_or_else(|| format!("{} has no checkpoint", execution.name))?;
        let contents = execution.checkpoint(at).map_err(|failure| failure.cause.error)?;
        Ok::<_, String>((replayed(&execution.name, contents.experiment)?, contents.world_size.max(1)))
    };
    let ((experiment_a, world_a), (experiment_b, world_b)) = (of(a)?, of(b)?);
    if let Some(world) = [world_a, world_b].into_iter().find(|world| *world > MOST_RANKS) {
        return Err(format!("{world} ranks exceed the {MOST_RANKS} that one machine replays"));
    }
    Ok(ReplayPlan {
        start,
        checkpoints,
        first,
        last,
        experiments: [experiment_a, experiment_b],
        worlds: [world_a, world_b],
    })
}

/// The experiment of a checkpoint as it is replayed (DIFF-1).
fn replayed(name: &str, experiment: Value) -> Result<Experiment, String> {
    let mut experiment: Experiment = serde_json::from_value(experiment)
        .map_err(|error| format!("the experiment of {name} is of another version of rankdeck: {error}"))?;
    let env = experiment.env.as_ref().ok_or_else(|| format!("{name} has no environment"))?;
    if !env.is_builtin() || env.library.is_some() || builtin_env(&env.id).is_none() {
        return Err(format!("the environment `{}` of {name} is code outside of the trainer", env.id));
    }
    if let Some(learn) = experiment.learn.as_ref().filter(|learn| learn.on_policy().is_none()) {
        return Err(format!("`{}` of {name} has no traced operations", learn.name()));
    }
    if experiment.distributed.backend == BackendChoice::Nccl {
        return Err(format!("{name} was trained on GPUs, whose results this machine's CPUs do not repeat"));
    }
    // The number of threads may decide how libtorch rounds.
    experiment.launch = LaunchConfig { threads: experiment.launch.threads, ..LaunchConfig::default() };
    experiment.distributed.backend = BackendChoice::Tcp;
    // A replay without one of its ranks is none.
    experiment.distributed.on_rank_loss = OnRankLoss::Restart;
    Ok(experiment)
}

/// What a replay left.
struct Replay {
    /// Operations of each rank.
    ranks: Vec<Vec<TracedOperation>>,
    prints: BTreeMap<u64, FingerprintLine>,
}

impl ReplayPlan {
    async fn run(
        &self,
        a: &Execution,
        b: &Execution,
        found: &mut Difference,
        output: PrintArgs,
    ) -> Result<(), Failure> {
        let from = match self.start {
            0 => "from scratch".to_owned(),
            start => format!("from the checkpoint of iteration {start}"),
        };
        output.progress(&format!("replaying both up to iteration {} {from}", self.last));
        let own = self.replay(a, 0).await?;
        // Both ranks of one run are in one replay.
        let other = if a.rank == b.rank { Some(self.replay(b, 1).await?) } else { None };
        let other = other.as_ref().unwrap_or(&own);
        let units = if self.experiments[0].distributed.invariant { "block" } else { "rank" };
        let until = traced_until([&own, other]);
        found.operation = match a.rank == b.rank {
            true => {
                let blocks = |index: usize| {
                    let distributed = &self.experiments[index].distributed;
                    distributed.invariant.then_some(distributed.invariant_blocks)
                };
                let same_units =
                    blocks(0) == blocks(1) && (blocks(0).is_some() || self.worlds[0] == self.worlds[1]);
                let (own, other) = (before(all_ranks(&own), until), before(all_ranks(other), until));
                first_operation(&own, &other, same_units, units)
            }
            false => {
                let shared = |rank: u32| -> Vec<&TracedOperation> {
                    let operations = own.ranks.get(rank as usize).into_iter().flatten();
                    before(operations.filter(|operation| operation.stage.is_shared()).collect(), until)
                };
                first_operation(&shared(a.rank), &shared(b.rank), true, units)
            }
        };
        let repeats = |execution: &Execution, replay: &Replay| {
            let (recorded, again) = (execution.prints.get(&self.last), replay.prints.get(&self.last));
            let rank = if a.rank == b.rank { execution.rank } else { 0 };
            recorded.zip(again).is_none_or(|(recorded, again)| recorded.of(execution.rank) == again.of(rank))
        };
        let range = match self.first == self.last {
            true => format!("iteration {}", self.last),
            false => format!("iterations {} to {}", self.first, self.last),
        };
        let other_result: Vec<&str> = [(a, &own), (b, other)]
            .into_iter()
            .filter(|(execution, replay)| !repeats(execution, replay))
            .map(|(execution, _)| execution.name.as_str())
            .collect();
        found.replay = match (&found.operation, other_result.as_slice()) {
            (Some(_), []) => format!("{range} of both"),
            (Some(_), others) => format!("{range}; {} had another result when it ran", others.join(" and ")),
            (None, []) if until.is_some() => {
                format!(
                    "{range}: the first {MOST_OPERATIONS} operations of a rank are equal, later ones were not traced"
                )
            }
            (None, []) => format!("{range}: equal, as far as both have the same operations"),
            (None, others) => format!(
                "{range}: equal, but {} had another result when it ran: look for faulty hardware, another version, or weights that were changed from outside",
                others.join(" and ")
            ),
        };
        Ok(())
    }

    /// Continues one execution and traces its operations. Its processes end with this, also before it is complete.
    async fn replay(&self, execution: &Execution, index: usize) -> Result<Replay, Failure> {
        let cannot = |error: std::io::Error| {
            Failure::failed(format!("cannot prepare the replay of {}: {error}", execution.name))
                .hint("check free disk space in the temporary directory")
        };
        let folder = tempfile::tempdir().map_err(cannot)?;
        let config = folder.path().join("experiment.toml");
        let text = toml::to_string(&self.experiments[index]).map_err(|error| {
            Failure::failed(format!("cannot write the experiment of {}: {error}", execution.name))
                .hint("pass --no-replay")
        })?;
        std::fs::write(&config, text).map_err(cannot)?;
        let (trace, run_dir) = (folder.path().join("trace"), folder.path().join("run"));
        let mut command = policy::trainer_program()?;
        command.arg("--config").arg(&config).arg("--run-dir").arg(&run_dir).args(["--backend", "tcp"]);
        command.arg("--trace").arg(&trace).arg(format!("--trace-iterations={}-{}", self.first, self.last));
        if let Some(checkpoint) = &self.checkpoints[index] {
            let path = std::path::absolute(checkpoint).map_err(cannot)?;
            command.arg("--resume").arg(path);
        }
        if self.worlds[index] > 1 {
            command.arg("--spawn").arg(self.worlds[index].to_string());
        }
        for variable in OTHER_GROUP {
            command.env_remove(variable);
        }
        let threads = self.experiments[index].launch.threads.unwrap_or(1).clamp(1, 1024);
        command.env("OMP_NUM_THREADS", threads.to_string());
        let log = folder.path().join("stderr");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).map_err(cannot)?);
        let program = command.get_program().to_owned();
        let mut command = tokio::process::Command::from(command);
        let status = command.kill_on_drop(true).status().await.map_err(|error| {
            Failure::failed(format!("failed to start {}: {error}", program.display()))
                .hint("reinstall rankdeck and rankdeck-trainer together")
        })?;
        if !status.success() {
            let words = last_words(&log);
            let last = words.lines().rev().find(|line| line.contains("error")).or(words.lines().last());
            return Err(Failure::failed(format!(
                "the replay of {} failed ({status}): {}",
                execution.name,
                clean(last.unwrap_or("no output"))
            ))
            .hint("pass --no-replay to compare only what the runs recorded"));
        }
        let ranks = (0..self.worlds[index])
            .map(|rank| operations(&folder.path().join(format!("trace.{rank}"))))
            .collect::<Result<Vec<_>, _>>()?;
        let prints = std::fs::read_to_string(run_dir.join(FINGERPRINTS)).unwrap_or_default();
        Ok(Replay { ranks, prints: FingerprintLine::parse_all(&prints) })
    }
}

/// Variables that would make a replay a rank of another group.
const OTHER_GROUP: [&str; 13] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "RANKDECK_RESUME",
    "RANKDECK_RUN_DIR",
    "RANKDECK_GENERATION",
    "RANKDECK_STATUS_PAGE",
    "RANKDECK_EVENTS",
    "RANKDECK_JOIN",
    "RANKDECK_STORE",
];

/// The end of what a replay has written to its log file.
fn last_words(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let start = file.metadata()?.len().saturating_sub(MOST_WORDS);
        file.seek(SeekFrom::Start(start))?;
        let mut words = Vec::new();
        file.take(MOST_WORDS).read_to_end(&mut words)?;
        Ok(words)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

fn operations(path: &Path) -> Result<Vec<TracedOperation>, Failure> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    file.take(MOST_TRACE).read_to_string(&mut text).map_err(|error| unreadable(path, &error))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The operations of all ranks; of those that all make alike, rank 0's.
fn all_ranks(replay: &Replay) -> Vec<&TracedOperation> {
    let ranks = replay.ranks.iter().enumerate();
    let kept = ranks.flat_map(|(rank, operations)| {
        operations.iter().filter(move |operation| rank == 0 || !operation.stage.is_shared())
    });
    kept.collect()
}

/// Where operations belong: iteration, update, stage.
type TracedPlace = (u64, u64, TracedStage);

/// The place from which on a rank's operations are not all there: with as many as a file takes, the rest was not
/// written.
fn traced_until(replays: [&Replay; 2]) -> Option<TracedPlace> {
    let ranks = replays.into_iter().flat_map(|replay| &replay.ranks);
    let full = ranks.filter(|operations| operations.len() as u64 >= MOST_OPERATIONS);
    full.filter_map(|operations| operations.last())
        .map(|last| match last.stage {
            // Rollout and advantages of a block stand together.
            TracedStage::Advantages => (last.train_iter, last.update, TracedStage::Rollout),
            stage => (last.train_iter, last.update, stage),
        })
        .min()
}

/// The operations before a place.
fn before(mut operations: Vec<&TracedOperation>, until: Option<TracedPlace>) -> Vec<&TracedOperation> {
    operations.retain(|operation| {
        until.is_none_or(|until| (operation.train_iter, operation.update, operation.stage) < until)
    });
    operations
}

/// The first operation with another result. Operations that one execution alone makes count only where both have the
/// `same_units`.
fn first_operation(
    a: &[&TracedOperation],
    b: &[&TracedOperation],
    same_units: bool,
    units: &str,
) -> Option<OperationDifference> {
    let by_position = |operations: &[&TracedOperation]| -> BTreeMap<_, TracedOperation> {
        operations.iter().map(|operation| (operation.position(), (*operation).clone())).collect()
    };
    let (a, b) = (by_position(a), by_position(b));
    let positions: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let result = |operation: &TracedOperation| OperationResult {
        hash: operation.hash.clone(),
        len: operation.len,
        norm: operation.norm,
    };
    positions.into_iter().find_map(|position| {
        let (own, other) = (a.get(position), b.get(position));
        let shown = own.or(other)?;
        let is_compared = shown.stage.is_shared() || same_units;
        let differs = match (own, other) {
            (Some(own), Some(other)) => {
                (&own.hash, own.len, &own.operation) != (&other.hash, other.len, &other.operation)
            }
            _ => true,
        };
        (is_compared && differs).then(|| OperationDifference {
            train_iter: shown.train_iter,
            update: shown.update,
            stage: shown.stage,
            unit: match shown.stage.is_shared() {
                true => "all ranks".to_owned(),
                false => format!("{units} {}", shown.unit),
            },
            operation: match (own, other) {
                (Some(own), Some(other)) if own.operation != other.operation => {
                    format!("{} / {}", own.operation, other.operation)
                }
                _ => shown.operation.clone(),
            },
            a: own.map(result),
            b: other.map(result),
        })
    })
}

fn report(a: &Execution, b: &Execution, found: &Difference, output: PrintArgs) {
    output.record(|| {
        let mut line = json!({
            "kind": "diff",
            "a": a.name,
            "b": b.name,
            "ranks": (a.rank != b.rank).then_some([a.rank, b.rank]),
            "equal": !found.differs(),
        });
        if let (Value::Object(line), Ok(Value::Object(fields))) = (&mut line, serde_json::to_value(found)) {
            line.extend(fields);
        }
        line
    });
    let mut lines = lines(found).into_iter();
    // The first line has the result.
    if let Some(line) = lines.next() {
        output.outcome(&line);
    }
    lines.for_each(|line| output.detail(&line));
}

/// The result as text.
fn lines(found: &Difference) -> Vec<String> {
    let compared = format!(
        "{} and {}",
        plural(found.compared_iterations, "fingerprint"),
        plural(found.compared_checkpoints, "checkpoint")
    );
    let mut lines = Vec::new();
    match (found.first_different, &found.tensors) {
        (Some(first), _) => {
            let before = found
                .last_equal
                .map_or("none before it is equal".to_owned(), |last| format!("equal up to iteration {last}"));
            lines.push(format!("first iteration: {first} ({before}; compared {compared})"));
        }
        (None, Some(tensors)) => {
            lines.push(format!(
                "checkpoints differ at iteration {}, fingerprints do not (compared {compared})",
                tensors.train_iter
            ));
        }
        (None, None) => lines.push(format!("equal: compared {compared}")),
    }
    if let Some(tensors) = &found.tensors {
        for (at, tensor) in tensors.tensors.iter().take(LISTED).enumerate() {
            let label = if at == 0 { "first tensor" } else { "tensor" };
            lines.push(format!(
                "{label}: {} after iteration {}: {}",
                tensor.name,
                tensors.train_iter,
                tensor_words(tensor)
            ));
        }
        if let Some(more) = tensors.tensors.len().checked_sub(LISTED).filter(|more| *more > 0) {
            lines.push(format!("{} more differ", plural(more, "tensor")));
        }
    }
    if let Some(operation) = &found.operation {
        let OperationDifference { train_iter, update, unit, operation: name, .. } = operation;
        let place = match operation.stage {
            TracedStage::Start => "before the iteration".to_owned(),
            TracedStage::Rollout => "rollout".to_owned(),
            TracedStage::Advantages => "advantages".to_owned(),
            TracedStage::Pass => format!("update {update}, pass"),
            TracedStage::Step => format!("update {update}, step"),
        };
        lines.push(format!("first operation: iteration {train_iter}, {place}, {unit}: {name}"));
        let words = |result: &Option<OperationResult>| match result {
            None => "not made".to_owned(),
            Some(OperationResult { hash, len, norm }) => {
                let norm = norm.map_or("not finite".to_owned(), |norm| format!("norm {norm:e}"));
                format!("{hash}, {}, {norm}", plural(*len as usize, "number"))
            }
        };
        lines.push(format!("  a: {}", words(&operation.a)));
        lines.push(format!("  b: {}", words(&operation.b)));
    }
    for SettingDifference { key, a, b } in &found.settings {
        lines.push(format!("setting: {key}: {a} / {b}"));
    }
    if !found.replay.is_empty() {
        lines.push(format!("replay: {}", found.replay));
    }
    lines
}

fn tensor_words(tensor: &TensorDifference) -> String {
    let TensorDifference { differing, len, index, a, b, largest, .. } = tensor;
    match (a, b, largest) {
        (Some(a), Some(b), Some(largest)) => format!(
            "{differing} of {} differ by at most {largest:e}, the first at {index:?}: {a} / {b}",
            plural(*len, "number")
        ),
        _ => "missing in one, or of another shape".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(name: &str, shape: &[i64], values: &[f32]) -> CheckpointArray {
        CheckpointArray { name: name.into(), shape: shape.into(), values: values.into() }
    }

    fn execution(prints: &[(u64, &[u64])]) -> Execution {
        let lines = prints.iter().map(|(at, chains)| (*at, FingerprintLine::new(*at, chains)));
        Execution { name: "x".into(), prints: lines.collect(), checkpoints: BTreeMap::new(), rank: 0 }
    }

    fn operation(stage: TracedStage, unit: u32, step: u32, hash: &str) -> TracedOperation {
        TracedOperation {
            train_iter: 3,
            update: 1,
            stage,
            unit,
            step,
            operation: format!("operation {step}"),
            len: 4,
            hash: hash.into(),
            norm: Some(1.0),
        }
    }

    #[test]
    fn first_different_iteration_is_between_its_neighbors() {
        let a = execution(&[(1, &[1]), (2, &[2]), (4, &[4]), (5, &[5])]);
        let b = execution(&[(1, &[1]), (2, &[2]), (3, &[3]), (4, &[9]), (5, &[5])]);
        let found = recorded(&a, &b).unwrap();
        assert_eq!((found.last_equal, found.first_different), (Some(2), Some(4)));
        assert_eq!((found.compared_iterations, found.differs()), (4, true));
        assert!(!recorded(&a, &a.same_files()).unwrap().differs());
    }

    #[test]
    fn ranks_of_one_run_are_compared_by_their_own_fingerprints() {
        let a = execution(&[(1, &[1, 1, 1]), (2, &[2, 2, 7])]);
        let rank = |rank| Execution { rank, ..a.same_files() };
        assert_eq!(recorded(&a, &rank(1)).unwrap().first_different, None);
        assert_eq!(recorded(&a, &rank(2)).unwrap().first_different, Some(2));
        assert_eq!(recorded(&a, &rank(3)).unwrap().compared_iterations, 1, "only where all ranks are equal");
    }

    #[test]
    fn changed_weight_is_named_with_its_place() {
        let a = [array("model.b", &[2, 3], &[0.0; 6]), array("adam.first", &[2], &[1.0, 2.0])];
        let b = [
            array("model.b", &[2, 3], &[0.0, 0.0, 0.0, 0.0, 0.5, 0.0]),
            array("adam.first", &[2], &[1.0, 2.5]),
        ];
        let found = tensor_differences(&a, &b);
        assert_eq!(
            found.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(),
            ["model.b", "adam.first"]
        );
        assert_eq!((found[0].differing, found[0].len, &found[0].index), (1, 6, &vec![1, 1]));
        assert_eq!((found[0].a, found[0].b, found[0].largest), (Some(0.0), Some(0.5), Some(0.5)));
        assert!(tensor_differences(&a, &a).is_empty());
        let other = [array("model.b", &[3, 2], &[0.0; 6])];
        assert_eq!(tensor_differences(&a, &other).iter().filter(|tensor| tensor.len == 0).count(), 2);
    }

    #[test]
    fn first_operation_is_the_earliest_that_both_make() {
        let own = [operation(TracedStage::Pass, 0, 0, "1"), operation(TracedStage::Step, 0, 0, "2")];
        let mut other = own.clone();
        let first = |a: &[TracedOperation], b: &[TracedOperation], same: bool| {
            let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
            first_operation(&a, &b, same, "block")
        };
        assert_eq!(first(&own, &other, true), None);
        other[1].hash = "3".into();
        let found = first(&own, &other, true).unwrap();
        assert_eq!((found.stage, found.unit.as_str()), (TracedStage::Step, "all ranks"));
        other[0].hash = "4".into();
        let found = first(&own, &other, true).unwrap();
        assert_eq!((found.stage, found.unit.as_str()), (TracedStage::Pass, "block 0"));
        // Other units: only what all ranks share can be compared.
        assert_eq!(first(&own, &other, false).unwrap().stage, TracedStage::Step);
        assert_eq!(first(&own, &own[1..], true).unwrap().b, None);
        assert_eq!(first(&own, &own[1..], false), None);
    }

    /// A full file is not a difference, as when one rank has what several have in the other execution.
    #[test]
    fn operations_beyond_a_full_file_are_not_compared() {
        let own: Vec<_> = (0..3).map(|step| operation(TracedStage::Pass, 0, step, "1")).collect();
        let full = vec![operation(TracedStage::Pass, 0, 0, "1"); MOST_OPERATIONS as usize];
        let replay = |ranks| Replay { ranks, prints: BTreeMap::new() };
        let (short, full) = (replay(vec![own]), replay(vec![full]));
        assert_eq!(traced_until([&short, &short]), None);
        let until = traced_until([&short, &full]);
        assert_eq!(until, Some((3, 1, TracedStage::Pass)));
        assert_eq!(before(all_ranks(&short), None).len(), 3);
        assert!(before(all_ranks(&short), until).is_empty());
    }

    #[test]
    fn result_is_one_line_per_finding() {
        let tensor = TensorDifference {
            name: "model.actor.2.weight".into(),
            differing: 1,
            len: 32,
            index: vec![0, 3],
            a: Some(0.5),
            b: Some(0.25),
            largest: Some(0.25),
        };
        let result = |hash: &str| OperationResult { hash: hash.into(), len: 3, norm: Some(0.5) };
        let found = Difference {
            compared_iterations: 12,
            compared_checkpoints: 2,
            last_equal: Some(6),
            first_different: Some(7),
            tensors: Some(TensorDifferences { train_iter: 9, tensors: vec![tensor; LISTED + 1] }),
            settings: vec![SettingDifference { key: "learn.gamma".into(), a: json!(0.99), b: json!(0.9) }],
            operation: Some(OperationDifference {
                train_iter: 7,
                update: 0,
                stage: TracedStage::Step,
                unit: "all ranks".into(),
                operation: "norm, clip factor, learning rate".into(),
                a: Some(result("00000000000000aa")),
                b: None,
            }),
            replay: "iteration 7 of both".into(),
        };
        insta::assert_snapshot!(lines(&found).join("\n"));
        insta::assert_snapshot!(
            lines(&Difference { compared_iterations: 12, ..Difference::default() }).join("\n")
        );
    }

    #[test]
    fn settings_exclude_where_a_run_was_launched() {
        let a = json!({ "run": { "name": "a", "seed": 1 }, "launch": { "threads": 1 }, "learn": { "gamma": 0.9 } });
        let b = json!({ "run": { "name": "b", "seed": 2 }, "launch": { "threads": 2 }, "learn": { "gamma": 0.9 } });
        let found = settings(&a, &b);
        assert_eq!(found, [SettingDifference { key: "run.seed".into(), a: json!(1), b: json!(2) }]);
    }

    #[test]
    fn weights_changed_after_training_are_not_replayed() {
        let a = execution(&[]);
        let tensors = Some(TensorDifferences { train_iter: 5, tensors: Vec::new() });
        let found =
            Difference { last_equal: Some(5), first_different: Some(6), tensors, ..Difference::default() };
        assert!(replayable(&a, &a, &found).unwrap_err().contains("changed after training"));
    }

    /// DIFF-1
    #[test]
    fn diff_1_code_of_a_checkpoint_is_not_run() {
        let of = |env: &str, algorithm: &str| {
            let text = format!(
                "[run]\nname = 'x'\n[launch]\nenv = {{ A = '1' }}\n[env]\nnum_envs = 4\n{env}\n[learn]\nalgorithm = '{algorithm}'\n"
            );
            serde_json::to_value(toml::from_str::<Experiment>(&text).unwrap()).unwrap()
        };
        let experiment = |env: &str| of(env, "a2c");
        for algorithm in ["dqn", "pqn"] {
            assert!(replayed("x", of("id = 'CartPole-v1'", algorithm)).is_err(), "{algorithm} is not traced");
        }
        let accepted = replayed("x", experiment("id = 'CartPole-v1'")).unwrap();
        assert_eq!(accepted.launch, LaunchConfig::default());
        for env in [
            "id = 'module:Any-v0'",
            "id = 'CartPole-v1'\nworker = 'python'",
            "id = 'CartPole-v1'\nwrappers = ['module:Wrap']",
            "id = 'grid'\nlibrary = 'grid.so'",
            "id = 'CartPole-v1'\nlibrary = 'grid.so'",
        ] {
            assert!(replayed("x", experiment(env)).is_err(), "{env}");
        }
    }
}
