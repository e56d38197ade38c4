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

use super::distributed::BackendKind;
use super::error::TrainerError;
use clap::builder::ArgPredicate;
use std::path::PathBuf;

/// Command line of `rankdeck-trainer`.
#[derive(Debug, Clone, Default, clap::Parser)]
#[command(name = "rankdeck-trainer", version, about = "rankdeck's built-in trainer: one rank of a run")]
pub struct Flags {
    /// Experiment file (TOML)
    #[arg(long, value_name = "FILE", required = false, required_unless_present_any = ["check_env", "setup_env"],
          default_value_if("check_env", ArgPredicate::IsPresent, "-"),
          default_value_if("setup_env", ArgPredicate::IsPresent, "-"))]
    pub config: PathBuf,
    /// Folder for checkpoints and TensorBoard files [default: $RANKDECK_RUN_DIR, else runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Checkpoint to resume from, or `latest` [default: $RANKDECK_RESUME]
    #[arg(long, value_name = "FILE|latest")]
    pub resume: Option<String>,
    /// Index of this rank over all hosts [default: $RANK]
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Ranks in the group [default: $WORLD_SIZE]
    #[arg(long, value_name = "N")]
    pub world_size: Option<u32>,
    /// Index of this rank on its host; picks the GPU [default: $LOCAL_RANK]
    #[arg(long, value_name = "N")]
    pub local_rank: Option<u32>,
    /// Host of rank 0's store [default: $MASTER_ADDR]
    #[arg(long, value_name = "HOST")]
    pub master_addr: Option<String>,
    /// Port of rank 0's store [default: $MASTER_PORT]
    #[arg(long, value_name = "PORT")]
    pub master_port: Option<u16>,
    /// Library of the collectives; wins over distributed.backend
    #[arg(long, value_name = "gloo|nccl", value_parser = ["gloo", "nccl"])]
    pub backend: Option<String>,
    /// Start N ranks on this host, forward signals to them, end with the worst of their exit codes
    #[arg(long, value_name = "N", conflicts_with_all = ["rank", "world_size", "local_rank"],
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub spawn: Option<u32>,
    /// Fault on purpose, FAULT[=VALUE]@RANK:STEP; may be given again
    #[cfg(feature = "inject")]
    #[arg(long, value_name = "FAULT@RANK:STEP")]
    pub inject: Vec<super::inject::InjectedFault>,
    /// Make an environment on this host as a run would, play it, say what it looks like; with --config, with
    /// the options of its [env]
    #[arg(long, value_name = "ID", conflicts_with = "spawn")]
    pub check_env: Option<String>,
    /// Make a Python virtual environment in DIR with what Gymnasium's and Atari's environments need, and
    /// check it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["spawn", "check_env"])]
    pub setup_env: Option<PathBuf>,
    /// With --setup-env: also install this package, such as `gymnasium[mujoco]`; may be given several times
    #[arg(long, value_name = "PACKAGE", requires = "setup_env")]
    pub package: Vec<String>,
    /// With --check-env or --setup-env: the interpreter to use [default: env.python, else python3]
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
}

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
            backend: flags.backend.as_deref().map(|name| match name {
                "nccl" => BackendKind::Nccl,
                _ => BackendKind::Gloo,
            }),
            generation: match number(env, "RANKDECK_GENERATION")? {
                Some(generation) => generation,
                None => number(env, "TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            },
            interface: get(env, "GLOO_SOCKET_IFNAME").or_else(|| get(env, "NCCL_SOCKET_IFNAME")),
            status_page: get(env, "RANKDECK_STATUS_PAGE").map(PathBuf::from),
            events: get(env, "RANKDECK_EVENTS").map(PathBuf::from),
        })
    }
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
    fn a_config_is_needed_for_a_run_and_only_for_a_run() {
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
    fn nobody_says_anything_one_rank_trains_alone() {
        let identity = resolve(Flags::default(), &[]).unwrap();
        assert_eq!((identity.rank, identity.world_size, identity.local_rank), (0, 1, 0));
        assert_eq!(identity.run_dir, None);
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
    fn a_batch_script_is_one_process() {
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
    fn identity_1_incomplete_and_contradictory_environments_are_refused() {
        assert!(refused(&[("RANK", "0")]).contains("RANK is given without WORLD_SIZE"));
        assert!(refused(&[("WORLD_SIZE", "2")]).contains("WORLD_SIZE is given without RANK"));
        assert!(refused(&[&TORCHRUN[..], &SLURM[..]].concat()).contains("two launchers disagree"));
        assert!(refused(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK=x"));
        let one_flag = Flags { rank: Some(0), ..Flags::default() };
        assert!(
            resolve(one_flag, &[]).unwrap_err().to_string().contains("--rank is given without --world-size")
        );
    }

    #[test]
    fn identity_1_torchrun_inside_a_slurm_step_is_not_a_contradiction() {
        let pairs = [&TORCHRUN[..], &SLURM[..], &[("TORCHELASTIC_RUN_ID", "a")]].concat();
        assert_eq!(resolve(Flags::default(), &pairs).unwrap().rank, 3);
    }

    #[test]
    fn identity_2_impossible_ranks_and_missing_addresses_are_refused() {
        let with = |key: &'static str, value: &'static str| -> Vec<(&str, &str)> {
            let rest = TORCHRUN.iter().copied().filter(|(k, _)| *k != key);
            rest.chain([(key, value)]).filter(|(_, v)| !v.is_empty()).collect()
        };
        assert!(refused(&with("RANK", "4")).contains("rank 4 does not exist"));
        assert!(refused(&with("LOCAL_RANK", "2")).contains("LOCAL_RANK=2"));
        assert!(refused(&with("LOCAL_RANK", "")).contains("no LOCAL_RANK"));
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
