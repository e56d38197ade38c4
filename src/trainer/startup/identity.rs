//! Resolves the rank's identity and files from flags, torchrun's environment or Slurm's.
//!
//! Explicit flags win over environment. Contradictory or incomplete environments are refused: a trainer that
//! takes itself for rank 0 of 1 when it was meant as rank 3 of 4 writes over rank 0's files.
//!
//! Invariants:
//! - IDENTITY-1: rank and world size come from one source (flags, or RANK and WORLD_SIZE, or Slurm's step),
//!   and other sources that are present must agree, unless torchrun or rankdeck's agent started this process
//!   inside a Slurm step.
//! - IDENTITY-2: `rank < world_size`, and a group of more than one has an address.

use crate::distributed::BackendKind;
use crate::error::TrainerError;
pub use rankdeck_launcher::Flags;
use rankdeck_proto::secret::GroupSecret;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A rank's identity and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankIdentity {
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
    /// Backend requested on the command line.
    pub backend: Option<BackendKind>,
    /// Generation of the run; 0 where the environment does not give one.
    pub generation: u32,
    /// Interface for the group's traffic.
    pub interface: Option<String>,
    /// What the ranks of this generation know each other by.
    pub secret: Option<GroupSecret>,
    /// Some ranks are on other hosts.
    pub(crate) spans_hosts: bool,
    /// Path of the status page.
    pub status_page: Option<PathBuf>,
    /// The agent's event socket.
    pub events: Option<PathBuf>,
    /// File for what operations give, and the iterations to trace.
    pub(crate) trace: Option<(PathBuf, RangeInclusive<u64>)>,
    /// The running group that this rank joins, instead of forming one with all others.
    pub join: Option<JoinTarget>,
}

/// A group that a rank joins after it was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinTarget {
    /// The latest known change of its members.
    pub epoch: u32,
    /// Where one of its members takes ranks in.
    pub entrance: SocketAddr,
}

/// A source that names rank and world size.
struct IdentitySource {
    from: &'static str,
    rank: u32,
    world_size: u32,
    local_rank: Option<u32>,
}

/// The environment; empty values count as absent.
pub(crate) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl RankIdentity {
    /// Puts flags and environment together.
    pub(crate) fn resolve(flags: &Flags, env: EnvLookup) -> Result<RankIdentity, TrainerError> {
        let identity = identity(flags, env)?;
        let IdentitySource { rank, world_size, .. } = identity;
        if rank >= world_size {
            return Err(TrainerError::usage(
                format!("rank {rank} is out of range for world size {world_size} ({})", identity.from),
                "ranks count from 0 to world_size - 1",
            ));
        }
        let local_rank = match (identity.local_rank, world_size) {
            (Some(local), _) => local,
            (None, 1) => 0,
            (None, _) => {
                return Err(TrainerError::usage(
                    format!("LOCAL_RANK of rank {rank} is not set, so its GPU is unknown"),
                    "set LOCAL_RANK or --local-rank: the rank's index on its own host",
                ));
            }
        };
        if let Some(local_world) = number(env, "LOCAL_WORLD_SIZE")?
            && local_rank >= local_world
            && flags.local_rank.is_none()
        {
            return Err(TrainerError::usage(
                format!("LOCAL_RANK={local_rank} is out of range for LOCAL_WORLD_SIZE={local_world}"),
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
            trace: flags.trace.clone().zip(flags.trace_iterations.map(|(first, last)| first..=last)),
            join: join_target(env)?,
        })
    }
}

/// Where the agent has this rank join: `RANKDECK_JOIN` is the epoch, `RANKDECK_STORE` the address.
fn join_target(env: EnvLookup) -> Result<Option<JoinTarget>, TrainerError> {
    let Some(epoch) = number(env, "RANKDECK_JOIN")? else { return Ok(None) };
    let store = get(env, "RANKDECK_STORE").ok_or_else(|| {
        TrainerError::usage(
            "RANKDECK_JOIN is set without RANKDECK_STORE",
            "set RANKDECK_STORE to the `store` of the latest `membership` event, or unset RANKDECK_JOIN",
        )
    })?;
    match store.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(entrance)) => Ok(Some(JoinTarget { epoch, entrance })),
        failed => {
            let why = failed.err().map_or_else(|| "no address found".to_owned(), |error| error.to_string());
            Err(TrainerError::usage(
                format!("invalid RANKDECK_STORE={store}: {why}"),
                "set it to ADDRESS:PORT, the `store` of the latest `membership` event",
            ))
        }
    }
}

/// The secret of this generation, where the launcher or the user has set one.
pub fn secret(env: EnvLookup) -> Result<Option<GroupSecret>, TrainerError> {
    let Some(text) = get(env, GroupSecret::VARIABLE) else { return Ok(None) };
    GroupSecret::from_hex(&text).map(Some).ok_or_else(|| {
        TrainerError::usage(
            format!("{} is not 64 hexadecimal digits", GroupSecret::VARIABLE),
            "give all ranks the same output of `openssl rand -hex 32`, or unset it",
        )
    })
}

/// Refuses `--spawn` inside another group.
pub(crate) fn check_spawn(env: EnvLookup) -> Result<(), TrainerError> {
    match ["RANK", "WORLD_SIZE", "LOCAL_RANK"].into_iter().find(|key| get(env, key).is_some()) {
        None => Ok(()),
        Some(key) => Err(TrainerError::usage(
            format!(
                "--spawn starts a new group, but {key} is set: this process is already a rank of another group"
            ),
            "omit --spawn, or run it under `env -u RANK -u WORLD_SIZE -u LOCAL_RANK`".to_owned(),
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
            TrainerError::usage(format!("invalid number {key}={text}"), format!("correct or unset {key}"))
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
                format!("{there} is set without {missing}"),
                format!("set {missing} too, or neither to train with one rank"),
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
                    "conflicting launchers: RANK={} WORLD_SIZE={}, but the Slurm step has rank {} of {}",
                    named.rank, named.world_size, slurm.rank, slurm.world_size
                ),
                "unset RANK, WORLD_SIZE and LOCAL_RANK to use Slurm's, or pass --rank, --world-size and --local-rank",
            ))
        }
        (Some(named), _) => Ok(named),
        (None, Some(slurm)) => {
            Ok(IdentitySource { local_rank: flags.local_rank.or(slurm.local_rank), ..slurm })
        }
        (None, None) => Ok(IdentitySource { from: "alone", rank: 0, world_size: 1, local_rank }),
    }
}

/// A task of a Slurm *step*. A batch script has SLURM_PROCID=0 too, but is one process, whatever the value of
/// SLURM_NTASKS.
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

/// A port that all tasks of a Slurm step derive alike, and neighboring steps differently.
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
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn resolve(flags: Flags, pairs: &[(&str, &str)]) -> Result<RankIdentity, TrainerError> {
        let map: HashMap<&str, &str> = pairs.iter().copied().collect();
        RankIdentity::resolve(&flags, &|key| map.get(key).map(|value| value.to_string()))
    }

    fn refused(pairs: &[(&str, &str)]) -> String {
        let error = resolve(Flags::default(), pairs).unwrap_err();
        assert!(error.usage && !error.hint().is_empty());
        error.hinted.error
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    const SLURM: [(&str, &str); 6] = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_NODELIST", "gpu[03-07,9]"),
    ];

    #[test]
    fn config_flag_is_required_for_runs_only() {
        use clap::{CommandFactory, Parser};
        Flags::command().debug_assert();
        let parse = |args: &[&str]| Flags::try_parse_from([&["rankdeck-trainer"], args].concat());
        assert_eq!(parse(&["--config", "x.toml"]).unwrap().config, PathBuf::from("x.toml"));
        assert!(parse(&[]).is_err() && parse(&["--spawn", "2"]).is_err());
        assert_eq!(parse(&["--check-env", "CartPole-v1"]).unwrap().check_env.as_deref(), Some("CartPole-v1"));
        assert_eq!(
            parse(&["--setup-env", "venv", "--package", "a", "--package", "b"]).unwrap().package.len(),
            2
        );
        assert!(parse(&["--package", "a", "--config", "x.toml"]).is_err());
    }

    #[test]
    fn no_flags_and_no_variables_mean_one_rank() {
        let identity = resolve(Flags::default(), &[]).unwrap();
        assert_eq!((identity.rank, identity.world_size, identity.local_rank), (0, 1, 0));
        assert_eq!(identity.run_dir, None);
    }

    #[test]
    fn secret_must_be_64_hex_digits_or_absent() {
        let with =
            |secret| resolve(Flags::default(), &[&TORCHRUN[..], &[("RANKDECK_SECRET", secret)]].concat());
        let digits = "0f".repeat(32);
        let identity = with(&digits).unwrap();
        assert_eq!((identity.secret, identity.spans_hosts), (GroupSecret::from_hex(&digits), true));
        assert_eq!(with("").unwrap().secret, None);
        let error = with("hunter2").unwrap_err();
        assert!(error.usage && error.hint().contains("openssl rand -hex 32"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "a mistyped secret is one too: {error}");
    }

    #[test]
    fn joining_rank_needs_an_entrance() {
        let with = |pairs: &[(&str, &str)]| resolve(Flags::default(), &[&TORCHRUN[..], pairs].concat());
        let join = with(&[("RANKDECK_JOIN", "2"), ("RANKDECK_STORE", "10.0.0.9:4711")]).unwrap().join;
        assert_eq!(join, Some(JoinTarget { epoch: 2, entrance: "10.0.0.9:4711".parse().unwrap() }));
        assert_eq!(with(&[]).unwrap().join, None);
        for wrong in [&[("RANKDECK_JOIN", "2")][..], &[("RANKDECK_JOIN", "2"), ("RANKDECK_STORE", "4711")]] {
            assert!(with(wrong).unwrap_err().usage);
        }
    }

    #[test]
    fn torchruns_environment() {
        let identity = resolve(Flags::default(), &TORCHRUN).unwrap();
        assert_eq!((identity.rank, identity.world_size, identity.local_rank), (3, 4, 1));
        assert_eq!((identity.master_addr.as_str(), identity.master_port), ("10.0.0.1", 29500));
    }

    #[test]
    fn slurms_environment() {
        let identity = resolve(Flags::default(), &SLURM).unwrap();
        assert_eq!((identity.rank, identity.world_size, identity.local_rank), (5, 8, 1));
        assert_eq!(identity.master_addr, "gpu03");
        assert_eq!(identity, resolve(Flags::default(), &SLURM).unwrap());
        assert!(identity.master_port >= 20_000);
    }

    #[test]
    fn batch_script_is_one_process() {
        let identity = resolve(Flags::default(), &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap();
        assert_eq!(identity.world_size, 1);
    }

    #[test]
    fn flags_win_over_everything() {
        let flags = Flags {
            rank: Some(1),
            world_size: Some(2),
            local_rank: Some(0),
            master_port: Some(1234),
            ..Flags::default()
        };
        let identity = resolve(flags, &[&TORCHRUN[..], &SLURM[..]].concat()).unwrap();
        assert_eq!((identity.rank, identity.world_size, identity.local_rank), (1, 2, 0));
        assert_eq!((identity.master_addr.as_str(), identity.master_port), ("10.0.0.1", 1234));
    }

    #[test]
    fn identity_1_incomplete_or_conflicting_environment_is_refused() {
        assert!(refused(&[("RANK", "0")]).contains("WORLD_SIZE"));
        assert!(refused(&[("WORLD_SIZE", "2")]).contains("RANK"));
        assert!(refused(&[&TORCHRUN[..], &SLURM[..]].concat()).contains("RANK=3 WORLD_SIZE=4"));
        assert!(refused(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK=x"));
        let one_flag = Flags { rank: Some(0), ..Flags::default() };
        assert!(resolve(one_flag, &[]).unwrap_err().to_string().contains("--world-size"));
    }

    #[test]
    fn identity_1_torchrun_inside_slurm_step_is_accepted() {
        let pairs = [&TORCHRUN[..], &SLURM[..], &[("TORCHELASTIC_RUN_ID", "a")]].concat();
        assert_eq!(resolve(Flags::default(), &pairs).unwrap().rank, 3);
    }

    #[test]
    fn identity_2_impossible_rank_or_missing_address_is_refused() {
        let with = |key: &'static str, value: &'static str| -> Vec<(&str, &str)> {
            let rest = TORCHRUN.iter().copied().filter(|(k, _)| *k != key);
            rest.chain([(key, value)]).filter(|(_, v)| !v.is_empty()).collect()
        };
        assert!(refused(&with("RANK", "4")).contains("rank 4"));
        assert!(refused(&with("LOCAL_RANK", "2")).contains("LOCAL_RANK=2"));
        assert!(refused(&with("LOCAL_RANK", "")).contains("LOCAL_RANK"));
        assert!(refused(&with("MASTER_ADDR", "")).contains("MASTER_ADDR"));
        assert!(refused(&with("MASTER_PORT", "")).contains("MASTER_PORT"));
        assert!(refused(&with("MASTER_PORT", "0")).contains("MASTER_PORT"));
    }

    #[test]
    fn spawning_inside_a_group_is_refused() {
        let inside = |key: &str| (key == "WORLD_SIZE").then(|| "2".to_string());
        assert!(check_spawn(&inside).unwrap_err().to_string().contains("WORLD_SIZE"));
        assert!(check_spawn(&|_| None).is_ok());
    }

    #[test]
    fn first_nodes_of_slurms_lists() {
        for (list, first) in [
            ("a", "a"),
            ("a1,b2", "a1"),
            ("gpu[03-07,9]", "gpu03"),
            ("gpu[4,7],x", "gpu4"),
            ("n[1-2].cluster,m", "n1.cluster"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!((first_node(""), first_node("gpu[")), (None, None));
    }
}
