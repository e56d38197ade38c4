//! Sweeps over hosts of the test bed.

use crate::support::hosts::TestBed;
use crate::support::{rank_program, wait_until};
use serde_json::Value;
use std::path::Path;

/// The file of the only sweep in a folder.
fn sweep(folder: &Path) -> Option<Value> {
    let entries = std::fs::read_dir(folder.join("runs")).ok()?.flatten();
    let file = entries.map(|entry| entry.path().join("sweep.json")).find(|path| path.exists())?;
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

#[test]
fn a_cell_that_is_killed_stops_no_other_and_goes_on_by_command() {
    let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(2, 1, "");
    let folder = bed.folder.path();
    let experiment = folder.join("cells.toml");
    let program = rank_program(&["--iters", "200"]);
    let text = format!("[run]\nname = \"cells\"\n[launch]\ncommand = [{program}]\nstop_grace_s = 3.0\n");
    std::fs::write(&experiment, text).unwrap();
    let common = ["run", experiment.to_str().unwrap(), "--hosts-per-run", "1"];
    let words = [&common[..], &["--sweep", "launch.threads=1,2", "--seeds", "1..2"]].concat();
    let mut console = bed.rankdeck(&hosts, &words).spawn().unwrap();
    let running = || -> Option<(String, usize)> {
        let sweep = sweep(folder)?;
        let cell =
            sweep["cells"].as_array()?.iter().find(|cell| cell["env_step"].as_u64() > Some(0))?.clone();
        let host = sweep["slots"][cell["slot"].as_u64()? as usize]["hosts"][0].as_str()?.to_owned();
        Some((cell["run"].as_str()?.to_owned(), host.strip_prefix("node")?.parse().ok()?))
    };
    wait_until("a cell to make steps", 120, || running().is_some());
    let (run, node) = running().unwrap();
    // Its rank, not its agent.
    bed.on(node, &format!("for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx RANKDECK_RUN={run} \
                           && tr '\\0' '\\n' <$p/environ | grep -qx RANK=0 && kill -KILL ${{p#/proc/}}; done; true"));
    assert_eq!(console.wait().unwrap().code(), Some(1), "one cell has failed");
    let states = || -> Vec<String> {
        let sweep = sweep(folder).unwrap();
        sweep["cells"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cell| cell["state"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(states().iter().filter(|state| *state == "failed").count(), 1, "{:?}", states());
    assert_eq!(states().iter().filter(|state| *state == "succeeded").count(), 3, "{:?}", states());

    let again = bed.rankdeck(&hosts, &["queue", "sweep-cells", "--resume", "--failed"]).output().unwrap();
    let told = String::from_utf8_lossy(&again.stdout).into_owned();
    assert_eq!(again.status.code(), Some(0), "{told} {}", String::from_utf8_lossy(&again.stderr));
    assert!(told.contains("4 succeeded") && told.matches("2/2").count() == 2, "{told}");
    let cells = sweep(folder).unwrap()["cells"].clone();
    assert!(
        cells.as_array().unwrap().iter().any(|cell| cell["run"] == run.as_str()),
        "in its own run: {cells}"
    );
}
