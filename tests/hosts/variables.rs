//! Values of the console's variables: only in the environment of the ranks (SECRET-1).

use crate::support::hosts::Loopback;
use crate::support::{Console, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the files below these folders that contain the text.
fn files_with(folders: &[&Path], text: &str) -> Vec<PathBuf> {
    let mut grep = Command::new("grep");
    // A line per file, with a count. Some files are removed meanwhile.
    grep.args(["-c", "-a", "-F", "-r", "-s", "-D", "skip", "-e", text]).args(folders);
    let counts = String::from_utf8_lossy(&grep.output().unwrap().stdout).into_owned();
    assert!(counts.lines().count() > 8, "no files of a run: {counts}");
    let holds = |line: &&str| !line.ends_with(":0");
    counts.lines().filter(holds).map(PathBuf::from).collect()
}

/// Returns the processes whose file below `/proc` contains the text.
fn processes_with(file: &str, text: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
    .collect()
}

#[test]
fn passed_variables_reach_ranks_only() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let value = format!("hush-{}-{:x}", std::process::id(), std::ptr::from_ref(&hosts) as usize);
    let script = format!(
        "[ \"$TOKEN\" = \"$(printf %s \"$WRAPPED\" | cut -c2- | rev | cut -c2- | rev)\" ] && \
         echo \"has ${{#TOKEN}} of {}, $PLAIN\"; sleep 600",
        value.len()
    );
    let experiment = hosts.bench.write(
        "e.toml",
        &format!(
            "[run]\nname = \"hush\"\n[launch]\ncommand = [\"bash\", \"-c\", {script:?}]\npass_env = [\"TOKEN\"]\n\
             env = {{ WRAPPED = \"x${{TOKEN}}y\", PLAIN = \"$5 ${{EMPTY}}\" }}\n"
        ),
    );
    let file = experiment.to_str().unwrap();
    // Without the variable, the run is not started, and the line is named.
    let refused = hosts.command(&["run", file, "--headless"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && stderr.contains("TOKEN") && stderr.contains("e.toml:5"),
        "{stderr}"
    );

    let mut command = hosts.command(&["run", file, "--headless", "--json"]);
    command.env("TOKEN", &value).env("EMPTY", "");
    let mut console = Console::spawn(command);
    for rank in 0..2 {
        let line = format!("has {0} of {0}, $5 ", value.len());
        console.wait_for("the rank has it", 60, |v| {
            v["kind"] == "log" && v["rank"] == rank && v["line"] == line
        });
    }
    let folders: Vec<&Path> = std::iter::once(hosts.bench.path())
        .chain(hosts.servers.iter().map(|server| server.folder.as_path()))
        .collect();
    assert_eq!(files_with(&folders, &value), Vec::<PathBuf>::new(), "while it runs");
    assert_eq!(processes_with("cmdline", &value), [0u32; 0]);
    let ranks: Vec<u32> = hosts.bench.rank_processes().iter().map(|(pid, _)| *pid).collect();
    let holders = processes_with("environ", &value);
    assert!(ranks.iter().all(|pid| holders.contains(pid)), "{ranks:?} {holders:?}");
    let others: Vec<&u32> =
        holders.iter().filter(|pid| !ranks.contains(pid) && **pid != console.pid()).collect();
    assert!(others.is_empty(), "in other environments: {others:?}");

    // Another console, without the variable: the agents keep it for later ranks.
    let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
    let mut other = hosts.console(&["attach", &run]);
    other.wait_kind("rank", 60);
    let again = hosts.command(&["restart", &run, "--yes"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(again.status.success(), "{}", text(&again.stderr));
    for rank in 0..2 {
        let line = format!("has {0} of {0}, $5 ", value.len());
        other.wait_for("the next ranks have it", 60, |v| {
            v["kind"] == "log" && v["generation"] == 1 && v["rank"] == rank && v["line"] == line
        });
    }
    // SIGKILL leaves the same files as a crash.
    crate::support::kill(console.pid(), libc::SIGKILL);
    let stop = hosts.command(&["stop", &run]).output().unwrap();
    assert!(stop.status.success(), "{}", text(&stop.stderr));
    other.finish(60);
    wait_until("agents leave", 30, || hosts.bench.processes().is_empty());
    assert_eq!(files_with(&folders, &value), Vec::<PathBuf>::new(), "when it is over");
    let warnings = other.stderr();
    assert!(!warnings.contains("TOKEN"), "{warnings}");

    // The value is gone with the agents, and the restart is rejected without it.
    let refused = hosts.command(&["restart", &run, "--yes"]).output().unwrap();
    let warned = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && warned.contains("EMPTY, TOKEN") && warned.contains("export"),
        "{warned}"
    );
    let listed = text(&hosts.command(&["ps", "--json"]).output().unwrap().stdout);
    let line: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!((&line["state"], &line["generation"]), (&"finished".into(), &1.into()), "{listed}");
    let output = format!("{:?}{:?}", console.seen, other.seen) + &console.stderr() + &warnings + &warned;
    assert!(!output.contains(&value));
}
