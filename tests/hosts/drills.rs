//! Drills of a data-parallel program of PyTorch on two hosts with SSH and disks of their own.

use super::examples::bed_with;
use crate::support::hosts::TestBed;
use crate::support::{Console, wait_until};
use rankdeck_testkit::python;
use serde_json::{Value, json};

/// DistributedDataParallel over Gloo. Rank 0 saves now and then and when it is stopped; all ranks resume.
const SCRIPT: &str = r#"
import os, time
import torch
import torch.distributed as dist
import rankdeck

assert os.environ["RANKDECK_DRILL"] == "1" and os.environ["WANDB_MODE"] == "offline"
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
step, path = 0, os.environ.get("RANKDECK_RESUME")
if path:
    saved = torch.load(path)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]


def save():
    saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(saved, "last.tmp")
    os.replace("last.tmp", "last.pt")
    rankdeck.checkpoint("last.pt")


stop = torch.zeros(1)
while not stop.item():
    step += 1
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    rankdeck.report(env_step=step, loss=loss.item())
    stop.fill_(float(rankdeck.should_stop()))
    dist.all_reduce(stop)
    if dist.get_rank() == 0 and (step % 20 == 0 or stop.item()):
        save()
dist.destroy_process_group()
"#;

/// Drills these cases; each must pass, and nothing may be left on the hosts. `None` if the test is skipped.
fn passes(only: &str) -> Option<Vec<Value>> {
    let python = python("torch")?;
    let bed = bed_with(&python)?;
    let folder = bed.folder.path().join("ddp");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("train.py"), SCRIPT).unwrap();
    let experiment = folder.join("ddp.toml");
    let command = [python.as_str(), "-u", "train.py"];
    let text = format!("[run]\nname = \"ddp\"\n[launch]\ncommand = {command:?}\ncode = \".\"\n");
    std::fs::write(&experiment, text).unwrap();
    let hosts = bed.hosts(2, 1, "");
    let words = ["drill", experiment.to_str().unwrap(), "--only", only, "--train-s", "60", "--json", "--yes"];
    let mut command = bed.rankdeck(&hosts, &words);
    command.env("XDG_STATE_HOME", bed.folder.path().join("state"));
    let mut console = Console::spawn(command);
    let code = console.finish(540).code();
    let cases = console.all("drill_case");
    assert_eq!(code, Some(0), "{cases:#?} {}", console.transcript());
    let names: Vec<&str> = cases.iter().filter_map(|case| case["case"].as_str()).collect();
    assert_eq!(names.join(","), only);
    for case in &cases {
        assert_eq!((&case["outcome"], &case["processes_left"]), (&"passed".into(), &json!([])), "{case}");
    }
    nothing_is_left(&bed);
    Some(cases)
}

/// No process, run or file of the program is left on a host.
fn nothing_is_left(bed: &TestBed) {
    for node in 0..2 {
        wait_until("processes to end", 30, || !bed.processes(node).contains("rankdeck"));
        let left = bed.on(node, "find /home/tb/work -name '*.pt' -o -name 'drill-*'");
        assert_eq!(left, "", "node{node}");
    }
}

#[test]
fn drill_of_ddp_names_frozen_and_killed_ranks() {
    let Some(cases) = passes("freeze,kill,exception") else { return };
    for (case, rank) in cases.iter().zip(["rank 1: stopped", "rank 1: killed", "rank 1: f"]) {
        assert!(case["named"].as_str().unwrap().starts_with(rank), "{case}");
    }
}

#[test]
fn drill_of_ddp_stops_restarts_and_loses_an_agent() {
    let Some(cases) = passes("agent,stop,restart") else { return };
    assert_eq!((&cases[1]["checkpoint"], &cases[2]["checkpoint"]), (&"kept".into(), &"kept".into()));
    assert!(cases[2]["resumed_step"].as_u64() > Some(20), "{cases:?}");
}

/// SIGSTOP and SIGCONT in turn: the other rank waits for it in every step.
#[test]
fn drill_of_ddp_names_a_slow_rank() {
    let Some(cases) = passes("slow") else { return };
    assert!(cases[0]["named"].as_str().unwrap().starts_with("rank 1: "), "{cases:?}");
}
