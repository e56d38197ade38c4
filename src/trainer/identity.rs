//! Which rank this process is, and where its files are: from flags, torchrun's environment or Slurm's.
//!
//! Owner: the process's start. Explicit flags win over environment. Contradictory or incomplete environments
//! are refused: a trainer that takes itself for rank 0 of 1 when it was meant as rank 3 of 4 writes over rank
//! 0's files.
//!
//! Invariants:
//! - IDENTITY-1: rank and world size come from one source (flags, or RANK and WORLD_SIZE, or Slurm's step),
//!   and other sources that are present must agree, unless torchrun or rankdeck's agent started this process
//!   inside a Slurm step.
//! - IDENTITY-2: `rank < world_size`, and a group of more than one has an address.

pub use rankdeck_launcher::flags::Flags;

use super::distributed::BackendKind;
use super::error::TrainerError;
use rankdeck_proto::secret::GroupSecret;
use std::path::PathBuf;

/// A rank's identity and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankIdentity {
    /// Experiment file.
    pub config: PathBuf,
    /// Folder of the run, when given.
    pub run_dir: Option<PathBuf>,
    /// Checkpoint path or `latest`.
    pub resume: Option<String>,
    /// Index over all hosts.
    pub rank: u32,
    /// Ranks in the group.
    pub world_size: u32,
    /// Index on this host.
    pub local_rank: u32,
    /// Host of rank 0's store; empty for a group of one.
    pub master_addr: String,
    /// Port of rank 0's store; 0 for a group of one.
    pub master_port: u16,
    /// Backend asked for on the command line.
    pub backend: Option<BackendKind>,
    /// Generation of the run; 0 where the environment does not give one.
    pub generation: u32,
    /// Interface for the group's traffic.
    pub interface: Option<String>,
    /// What the ranks of this generation know each other by.
    pub secret: Option<GroupSecret>,
    /// Some ranks are on other hosts.
    pub spans_hosts: bool,
    /// Path of the status page.
    pub status_page: Option<PathBuf>,
    /// The agent's event socket.
    pub events: Option<PathBuf>,
}

/// A source that names rank and world size.
struct IdentitySource {
    from: &'static str,
    rank: u32,
    world_size: u32,
    local_rank: Option<u32>,
}

/// The environment; empty values count as absent.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl RankIdentity {
    /// Puts flags and environment together.
    pub fn resolve(flags: &Flags, env: EnvLookup) -> Result<RankIdentity, TrainerError> {
        let identity = identity(flags, env)?;
        let IdentitySource { rank, world_size, .. } = identity;
        if rank >= world_size {
            return Err(TrainerError::usage(
                format!("rank {rank} does not exist in a group of {world_size} ({})", identity.from),
                "ranks count from 0 to world_size - 1",
            ));
        }
        let local_rank = match (identity.local_rank, world_size) {
            (Some(local), _) => local,
            (None, 1) => 0,
            (None, _) => {
                return Err(TrainerError::usage(
                    format!("rank {rank} has no LOCAL_RANK, so its GPU is unknown"),
                    "set LOCAL_RANK or --local-rank: the rank's index on its own host",
                ));
            }
        };
        if let Some(local_world) = number(env, "LOCAL_WORLD_SIZE")?
            && local_rank >= local_world
            && flags.local_rank.is_none()
        {
            return Err(TrainerError::usage(
                format!("LOCAL_RANK={local_rank} does not exist with LOCAL_WORLD_SIZE={local_world}"),
                "local ranks count from 0 to LOCAL_WORLD_SIZE - 1",
            ));
        }
        let (master_addr, master_port) =
            if world_size == 1 { (String::new(), 0) } else { master(flags, env)? };
        Ok(RankIdentity {
            config: flags.config.clone(),
            run_dir: flags.run_dir.clone().or_else(|| get(env, "RANKDECK_RUN_DIR").map(PathBuf::from)),
            resume: flags.resume.clone().or_else(|| get(env, "RANKDECK_RESUME")),
            rank,
            world_size,
            local_rank,
            master_addr,
            master_port,
            backend: flags.backend.and_then(BackendKind::named),
            generation: match number(env, "RANKDECK_GENERATION")? {
                Some(generation) => generation,
                None => number(env, "TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            },
            interface: get(env, "GLOO_SOCKET_IFNAME").or_else(|| get(env, "NCCL_SOCKET_IFNAME")),
            secret: secret(env)?,
            spans_hosts: number::<u32>(env, "LOCAL_WORLD_SIZE")?.is_some_and(|local| local < world_size)
                || number::<u32>(env, "SLURM_STEP_NUM_NODES")?.is_some_and(|nodes| nodes > 1),
            status_page: get(env, "RANKDECK_STATUS_PAGE").map(PathBuf::from),
            events: get(env, "RANKDECK_EVENTS").map(PathBuf::from),
        })
    }
}

/// The secret of this generation, where the launcher or the user has set one.
pub fn secret(env: EnvLookup) -> Result<Option<GroupSecret>, TrainerError> {
    let Some(text) = get(env, GroupSecret::VARIABLE) else { return Ok(None) };
    GroupSecret::from_hex(&text).map(Some).ok_or_else(|| {
        TrainerError::usage(
            format!("{} does not have 64 hexadecimal digits", GroupSecret::VARIABLE),
            "give all ranks the same output of `openssl rand -hex 32`, or unset it",
        )
    })
}

/// Refuses `--spawn` inside somebody else's group.
pub fn check_spawn(env: EnvLookup) -> Result<(), TrainerError> {
    match ["RANK", "WORLD_SIZE", "LOCAL_RANK"].into_iter().find(|key| get(env, key).is_some()) {
        None => Ok(()),
        Some(key) => Err(TrainerError::usage(
            format!(
                "--spawn starts a group of its own, but {key} is set: this process is already a rank of another"
            ),
            format!(
                "leave out --spawn, or run `env -u RANK -u WORLD_SIZE -u LOCAL_RANK` before it (found {key})"
            ),
        )),
    }
}

fn get(env: EnvLookup, key: &str) -> Option<String> {
    env(key).filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(env: EnvLookup, key: &str) -> Result<Option<T>, TrainerError> {
    match get(env, key) {
        None => Ok(None),
        Some(text) => text.trim().parse().map(Some).map_err(|_| {
            TrainerError::usage(
                format!("{key}={text} is not a number that fits"),
                format!("correct or unset {key}"),
            )
        }),
    }
}

/// Two variables that are set together or not at all.
fn pair(
    from: &'static str,
    (rank_key, rank): (&str, Option<u32>),
    (world_key, world_size): (&str, Option<u32>),
    local_rank: Option<u32>,
) -> Result<Option<IdentitySource>, TrainerError> {
    match (rank, world_size) {
        (Some(rank), Some(world_size)) => Ok(Some(IdentitySource { from, rank, world_size, local_rank })),
        (None, None) => Ok(None),
        (rank, _) => {
            let (there, missing) = if rank.is_some() { (rank_key, world_key) } else { (world_key, rank_key) };
            Err(TrainerError::usage(
                format!("{there} is given without {missing}"),
                format!("give {missing} too, or neither (then one rank trains alone)"),
            ))
        }
    }
}

fn identity(flags: &Flags, env: EnvLookup) -> Result<IdentitySource, TrainerError> {
    let local_rank = match flags.local_rank {
        Some(local) => Some(local),
        None => number(env, "LOCAL_RANK")?,
    };
    let typed = pair("flags", ("--rank", flags.rank), ("--world-size", flags.world_size), local_rank)?;
    if let Some(identity) = typed {
        return Ok(identity);
    }
    let named = pair(
        "RANK and WORLD_SIZE",
        ("RANK", number(env, "RANK")?),
        ("WORLD_SIZE", number(env, "WORLD_SIZE")?),
        local_rank,
    )?;
    let slurm = slurm(env)?;
    let inside = ["TORCHELASTIC_RUN_ID", "RANKDECK_RUN"].iter().any(|key| get(env, key).is_some());
    match (named, slurm) {
        (Some(named), Some(slurm)) if !inside => {
            if (named.rank, named.world_size) == (slurm.rank, slurm.world_size) {
                return Ok(IdentitySource { local_rank: named.local_rank.or(slurm.local_rank), ..named });
            }
            Err(TrainerError::usage(
                format!(
                    "two launchers disagree: RANK={} WORLD_SIZE={}, but Slurm's step says {} of {}",
                    named.rank, named.world_size, slurm.rank, slurm.world_size
                ),
                "unset RANK, WORLD_SIZE and LOCAL_RANK to use Slurm's, or give --rank, --world-size and --local-rank",
            ))
        }
        (Some(named), _) => Ok(named),
        (None, Some(slurm)) => {
            Ok(IdentitySource { local_rank: flags.local_rank.or(slurm.local_rank), ..slurm })
        }
        (None, None) => Ok(IdentitySource { from: "alone", rank: 0, world_size: 1, local_rank }),
    }
}

/// A task of a Slurm *step*. A batch script has SLURM_PROCID=0 too, but is one process, whatever SLURM_NTASKS
/// says.
fn slurm(env: EnvLookup) -> Result<Option<IdentitySource>, TrainerError> {
    if get(env, "SLURM_STEP_ID").or_else(|| get(env, "SLURM_STEPID")).is_none() {
        return Ok(None);
    }
    let tasks = match number(env, "SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => Some(tasks),
        None => number(env, "SLURM_NTASKS")?,
    };
    pair(
        "Slurm's step",
        ("SLURM_PROCID", number(env, "SLURM_PROCID")?),
        ("SLURM_STEP_NUM_TASKS", tasks),
        number(env, "SLURM_LOCALID")?,
    )
}

fn master(flags: &Flags, env: EnvLookup) -> Result<(String, u16), TrainerError> {
    let nodes = get(env, "SLURM_STEP_NODELIST").or_else(|| get(env, "SLURM_NODELIST"));
    let addr = flags
        .master_addr
        .clone()
        .or_else(|| get(env, "MASTER_ADDR"))
        .or_else(|| nodes.as_deref().and_then(first_node));
    let port = match (flags.master_port, number::<u16>(env, "MASTER_PORT")?) {
        (Some(port), _) | (None, Some(port)) => Some(port),
        (None, None) => slurm_port(env)?,
    };
    let missing = |key: &str, flag: &str| {
        TrainerError::usage(
            format!("{key} is not set, so this rank cannot find rank 0"),
            format!("set {key} or {flag}, the same on all ranks"),
        )
    };
    let addr = addr.ok_or_else(|| missing("MASTER_ADDR", "--master-addr"))?;
    match port {
        Some(port) if port > 0 => Ok((addr, port)),
        _ => Err(missing("MASTER_PORT", "--master-port")),
    }
}

/// A port that all tasks of a Slurm step derive alike, and neighbouring steps differently.
fn slurm_port(env: EnvLookup) -> Result<Option<u16>, TrainerError> {
    let job: Option<u64> = number(env, "SLURM_JOB_ID")?;
    let step: Option<u64> = number(env, "SLURM_STEP_ID")?;
    Ok(job.map(|job| 20_000 + (job.wrapping_mul(64).wrapping_add(step.unwrap_or(0)) % 10_000) as u16))
}

/// First host of Slurm's list: `gpu[03-07,9],x1` gives `gpu03`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let first = match rest.strip_prefix('[') {
        Some(ranges) => {
            let digits = ranges.find([',', '-', ']'])?;
            let after = ranges.find(']').map_or("", |close| &ranges[close + 1..]);
            let suffix = &after[..after.find(',').unwrap_or(after.len())];
            format!("{prefix}{}{suffix}", &ranges[..digits])
        }
        None => prefix.to_string(),
    };
    (!first.is_empty()).then_some(first)
}

#[cfg(test)]
mod tests;
