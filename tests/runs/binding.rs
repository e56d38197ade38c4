//! `launch.bind`: what `check` prints is what ranks and their children have.

use crate::results::path;
use crate::support::{Bench, Console, rankdeck};
use rankdeck_types::cores::CpuSet;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Each rank prints the CPUs of a child process, and its variable.
const COMMAND: &str =
    r#"["sh", "-c", "grep Cpus_allowed_list /proc/self/status; echo own=$RANKDECK_CPUS; sleep 0.2"]"#;

fn experiment(bench: &Bench, bind: &str) -> PathBuf {
    let text = format!("[run]\nname = \"bound\"\n[launch]\ncommand = {COMMAND}\nbind = \"{bind}\"\n");
    bench.write("bound.toml", &text)
}

/// The result of `check` about the ranks.
fn checked(experiment: &Path, hosts: &Path) -> Value {
    let words = ["check", path(experiment), "--hosts", path(hosts), "--json"];
    let output = rankdeck().args(words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(|line| line["check"] == "ranks").unwrap_or_else(|| panic!("{text}"))
}

/// What each rank has printed after `start`.
fn printed(console: &Console, start: &str) -> Vec<String> {
    let mut found: Vec<(u64, String)> = Vec::new();
    for line in console.all("log") {
        let text = line["line"].as_str().unwrap_or_default();
        if let Some(rest) = text.strip_prefix(start) {
            found.push((line["rank"].as_u64().unwrap(), rest.trim().to_owned()));
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}

fn run(experiment: &Path, hosts: &Path) -> Console {
    let mut console = Console::start(&["run", path(experiment), "--hosts", path(hosts)]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    console
}

/// CPUs of a rank that is not bound.
fn unbound() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

/// BIND-1
#[test]
fn ranks_have_the_cpus_that_check_prints() {
    let bench = Bench::new();
    for nproc in [1, 2] {
        let hosts = bench.local_hosts(1, nproc);
        let auto = experiment(&bench, "auto");
        let check = checked(&auto, &hosts);
        let console = run(&auto, &hosts);
        let (allowed, own) = (printed(&console, "Cpus_allowed_list:"), printed(&console, "own="));
        match check["text"].as_str().unwrap().split_once(", bound to CPUs ") {
            Some((_, sets)) => {
                let sets: Vec<String> = sets.split(' ').map(str::to_owned).collect();
                assert_eq!((&allowed, &own), (&sets, &sets));
                assert!(sets.len() == nproc && (nproc == 1 || sets[0] != sets[1]), "{sets:?}");
            }
            // This machine has one core.
            None => {
                assert_eq!(check["result"], "warning", "{check}");
                assert_eq!((allowed, own), (vec![unbound(); nproc], vec![String::new(); nproc]));
            }
        }
    }
}

/// BIND-2
#[test]
fn bind_2_more_ranks_than_cores_run_unbound() {
    let bench = Bench::new();
    let cores = unbound().parse::<CpuSet>().unwrap().iter().count();
    let hosts = bench.local_hosts(1, cores + 1);
    let auto = experiment(&bench, "auto");
    let check = checked(&auto, &hosts);
    let told = |text: &str| text.contains("not bound to cores");
    assert!(check["result"] == "warning" && told(check["text"].as_str().unwrap()), "{check}");
    let console = run(&auto, &hosts);
    assert_eq!(printed(&console, "Cpus_allowed_list:"), vec![unbound(); cores + 1]);
    let notices = console.all("notice");
    assert!(notices.iter().any(|notice| told(&notice["text"].to_string())), "{notices:?}");
}

#[test]
fn ranks_are_unbound_by_default() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let none = experiment(&bench, "none");
    assert!(!checked(&none, &hosts)["text"].as_str().unwrap().contains("CPUs"));
    let console = run(&none, &hosts);
    assert_eq!(printed(&console, "Cpus_allowed_list:"), vec![unbound(); 2]);
    assert_eq!(printed(&console, "own="), ["", ""]);
}
