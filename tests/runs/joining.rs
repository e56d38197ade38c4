//! Scripts whose ranks die while they meet: inside `init_process_group`, when there is no group yet that
//! could break.

use crate::support::{Bench, Console};
use rankdeck_testkit::python;
use serde_json::Value;

/// `HOW` strikes rank 1 once it is inside: behind the rendezvous, before the group is there, as a library
/// that is loaded there would.
const SCRIPT: &str = r#"
import os, signal, sys
import torch.distributed as dist

def strike(*args, **kwargs):
    how = os.environ["HOW"]
    if how == "raise":
        raise ValueError("no such fabric")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    dist.distributed_c10d._new_process_group_helper = strike
dist.init_process_group("gloo")
dist.barrier()
"#;

#[test]
fn a_rank_that_dies_inside_init_process_group_is_named_with_its_cause() {
    let Some(python) = python("torch") else { return };
    for (how, ranks, cause) in [
        ("kill", 3, "SIGKILL"),
        ("exit", 2, "exited with code 3"),
        ("raise", 2, "ValueError: no such fabric"),
    ] {
        let bench = Bench::new();
        let hosts = bench.local_hosts(1, ranks);
        let script = bench.write("script.py", SCRIPT);
        let text = format!(
            "[run]\nname = \"joining\"\n[launch]\ncommand = {:?}\n[launch.env]\nHOW = \"{how}\"\n",
            [python.to_string(), script.display().to_string()]
        );
        let experiment = bench.write("experiment.toml", &text);
        let mut console =
            Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
        let verdict = console.wait_for("a red verdict", 60, |line| {
            line["kind"] == "verdict" && line["severity"] == "red" && line["verdict"] == "dead"
        });
        assert_eq!(verdict["rank"], Value::from(1), "{how}: {verdict}");
        // Its peers wait for it, and may notice in their own time; nobody waits for them.
        assert_eq!(console.finish(90).code(), Some(1), "{how}: {}", console.told());
        let finished = console.seen.last().unwrap();
        assert_eq!(finished["first_failure"]["rank"], Value::from(1), "{how}: {finished}");
        let said = format!("{verdict}{finished}");
        assert!(said.contains(cause), "{how}: {cause}: {said}");
        assert_eq!(finished["proved"], Value::from(true), "{how}: {finished}");
        assert!(bench.rank_processes().is_empty(), "{how}: {:?}", bench.rank_processes());
    }
}
