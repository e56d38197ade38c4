//! Which rank a process takes itself for, and what it refuses.

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
    assert_eq!(parse(&["--setup-env", "venv", "--package", "a", "--package", "b"]).unwrap().package.len(), 2);
    assert!(parse(&["--package", "a", "--config", "x.toml"]).is_err());
}

#[test]
fn nobody_says_anything_one_rank_trains_alone() {
    let identity = resolve(Flags::default(), &[]).unwrap();
    assert_eq!((identity.rank, identity.world_size, identity.local_rank), (0, 1, 0));
    assert_eq!(identity.run_dir, None);
}

#[test]
fn a_secret_is_64_hexadecimal_digits_or_absent() {
    let with = |secret| resolve(Flags::default(), &[&TORCHRUN[..], &[("RANKDECK_SECRET", secret)]].concat());
    let digits = "0f".repeat(32);
    let identity = with(&digits).unwrap();
    assert_eq!((identity.secret, identity.spans_hosts), (GroupSecret::from_hex(&digits), true));
    assert_eq!(with("").unwrap().secret, None);
    let error = with("hunter2").unwrap_err();
    assert!(error.usage && error.hint().contains("openssl rand -hex 32"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "a mistyped secret is one too: {error}");
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
    assert!(resolve(one_flag, &[]).unwrap_err().to_string().contains("--rank is given without --world-size"));
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
