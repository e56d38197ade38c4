//! The built-in trainer started by others than rankdeck: the same ranks and the same totals, whoever starts
//! it.

use super::*;
use rankdeck_proto::message::{Counters, RankEvent, Returns};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::time::Duration;

const EXPERIMENT: &str = "[run]\nname = 'test'\nseed = 3\ntotal_steps = 2048\n[env]\nid = 'CartPole-v1'\nnum_envs = 8\n\
                          [collect]\nnum_steps = 64\n[distributed]\nbackend = 'tcp'\n[learn]\nalgorithm = 'ppo'\n";

/// What all ranks said last about themselves, by rank, and rank 0's last totals.
fn outcome(folder: &Path, mut command: Command) -> (BTreeMap<u32, Counters>, Counters) {
    std::fs::write(folder.join("experiment.toml"), EXPERIMENT).unwrap();
    let socket = folder.join("events.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut speaker = None;
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    match serde_json::from_str(&line).unwrap() {
                        RankEvent::Hello { rank, .. } => speaker = Some(rank.0),
                        event => drop(sender.send((speaker.unwrap(), event))),
                    }
                }
            });
        }
    });
    command
        .current_dir(folder)
        .env("RANKDECK_EVENTS", &socket)
        .env("GLOO_SOCKET_IFNAME", "lo")
        .env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (mut own, mut totals, mut finished) = (BTreeMap::new(), None, 0);
    while finished < 4 {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            (rank, RankEvent::Counters(counters)) => _ = own.insert(rank, without_time(counters)),
            (0, RankEvent::Totals(counters)) => totals = Some(without_time(counters)),
            (_, RankEvent::Finished { .. }) => finished += 1,
            _ => {}
        }
    }
    (own, totals.unwrap())
}

/// Without what depends on when a rank reports: its time, and the episodes since the report before.
fn without_time(counters: Counters) -> Counters {
    Counters { duration_s: 0.0, returns: Returns::default(), ..counters }
}

fn trainer_under(slurm: &Slurm, words: &[&str], folder: &Path) -> Command {
    let (program, args) = words.split_first().unwrap();
    let mut command = slurm.command(program);
    command.args(args).args(["--config", "experiment.toml", "--run-dir"]).arg(folder.join("run"));
    command
}

#[test]
fn srun_and_torchrun_give_the_ranks_and_totals_of_spawn() {
    let Some(slurm) = Slurm::start() else { return };
    let Some(binary) = super::trainer() else { return };
    let binary = binary.to_str().unwrap();
    let run = |words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = trainer_under(&slurm, words, folder.path());
        if words[0] == "srun" {
            // The nodes of this Slurm have no names that resolve; the port is the trainer's own choice.
            command.env("MASTER_ADDR", "127.0.0.1");
        }
        outcome(folder.path(), command)
    };
    let spawned = run(&[binary, "--spawn", "4"]);
    assert_eq!(spawned.0.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(spawned.1.env_step, 2048);
    let stepped = run(&["srun", "--nodes=2", "--ntasks-per-node=2", "--mpi=none", "--quiet", binary]);
    assert_eq!(stepped, spawned, "srun");
    let Some(python) = python("torch") else { return };
    let torchrun =
        [&python, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node=4"];
    let launched = run(&[&torchrun[..], &[binary]].concat());
    assert_eq!(launched, spawned, "torchrun");
}
