//! Faults that are there before the launch: what is refused, and what is waited for or only said.

use super::*;

/// A fault that is seen before anything starts.
fn refusal(fault: &str, code: i32, words: &[&str], break_it: impl Fn(&Fixture) -> String) {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for round in 0..rounds() {
        let experiment = break_it(&fixture);
        let began = Instant::now();
        let said = fixture.refused(&experiment, code, words);
        report(fault, round, &said, began.elapsed().as_secs_f64());
    }
}

#[test]
fn wrong_key() {
    refusal("wrong key", 3, &["node1", "refused the login"], |fixture| {
        fixture.bed.fault(1, &["keys", "none"]);
        fixture.counting(5, "")
    });
}

#[test]
fn changed_host_key() {
    refusal("changed host key", 3, &["SHA256:", "known_hosts"], |fixture| {
        fixture.bed.fault(1, &["hostkey"]);
        fixture.counting(5, "")
    });
}

#[test]
fn full_disk() {
    refusal("full disk", 3, &["disk", "No space left", "workdir"], |fixture| {
        // The agent must get there first: its cache may lie on another disk than the runs.
        let experiment = fixture.counting(5, "");
        fixture.rankdeck(&["check", &experiment]);
        fixture.bed.fault(1, &["disk", "full"]);
        experiment
    });
}

#[test]
fn missing_interpreter() {
    refusal("missing interpreter", 3, &["`python9` is not found", "e.toml:4"], |fixture| {
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python9\", \"train.py\"]\n")
    });
}

#[test]
fn missing_script() {
    refusal("missing script", 3, &["train.py", "launch.code"], |fixture| {
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n")
    });
}

#[test]
fn code_mismatch() {
    refusal("code mismatch", 3, &["code: script", "on node0"], |fixture| {
        for node in 0..NODES {
            fixture.bed.on(
                node,
                &format!("mkdir -p ~tb/work; echo 'print({node})' > ~tb/work/train.py; chown -R tb ~tb/work"),
            );
        }
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n")
    });
}

#[test]
fn version_mismatch() {
    refusal("version mismatch", 3, &["torch 2.10.1, and 2.10.0 on node0"], |fixture| {
        for node in 0..NODES {
            let torch = format!(
                "mkdir -p ~tb/work/torch; echo \"__version__ = '2.10.{node}'\" > ~tb/work/torch/version.py; chown -R tb ~tb/work"
            );
            fixture.bed.on(node, &torch);
        }
        fixture.counting(5, "")
    });
}

/// Something that listens on a host; ended when dropped.
struct Squatter(Child);

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn port_in_use() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    let listen =
        "import socket, sys; s = socket.create_server((\"\", 24711)); print(1, flush=True); sys.stdin.read()";
    let mut command: Command = fixture.bed.call(&["exec", "node0", "python3", "-c", listen]);
    let mut squatter = Squatter(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = [0];
    std::io::Read::read_exact(squatter.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    for round in 0..rounds() {
        let experiment = fixture.counting(5, "master_port = 24711\n");
        let began = Instant::now();
        let output = fixture.rankdeck(&["run", &experiment, "--headless"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("port 24711") && stderr.contains("master_port = 0"), "{stderr}");
        report(
            "port in use",
            round,
            stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default(),
            began.elapsed().as_secs_f64(),
        );
    }
    drop(squatter);
    fixture.bed.on(0, "pkill -f [c]reate_server || true");
    wait_until("nothing is left", 40, || {
        (0..NODES).all(|node| !fixture.bed.processes(node).contains("rankdeck"))
    });
}

/// One host's start files take longer than the hosts wait for each other: that is waited for, said, and
/// blamed on nothing else.
#[test]
fn slow_login_shell() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for (node, seconds) in [(0, "1"), (1, "5")] {
        fixture.bed.fault(node, &["slowlogin", seconds]);
    }
    for round in 0..rounds() {
        let began = Instant::now();
        let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
        assert_eq!(console.finish(180).code(), Some(0), "{}", console.told());
        let took = began.elapsed().as_secs_f64();
        gapless(&console);
        let stderr = console.stderr();
        assert!(stderr.contains("for node1 to run a command: its login shell"), "said meanwhile: {stderr}");
        let warning = stderr
            .lines()
            .find(|line| line.starts_with("warning: host node1: reach:") && line.contains("start files"))
            .unwrap_or_else(|| panic!("{stderr}"));
        report("slow login shell", round, warning, took);
        fixture.nothing_is_left();
    }
}

#[test]
fn noisy_shell_and_max_startups() {
    for (fault, args) in
        [("noisy rc", vec!["noisy"]), ("MaxStartups", vec!["sshd-opt", "m", "MaxStartups 1:100:1"])]
    {
        let Some(fixture) = Fixture::start(NODES) else { return };
        for node in 0..NODES {
            fixture.bed.fault(node, &args);
        }
        for round in 0..rounds() {
            let began = Instant::now();
            let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
            assert_eq!(console.finish(180).code(), Some(0), "{fault}: {}", console.told());
            let finished = console.seen.last().unwrap();
            assert_eq!(
                (&finished["outcome"], &finished["proved"]),
                (&Value::from("succeeded"), &Value::from(true))
            );
            report(fault, round, "the run succeeds", began.elapsed().as_secs_f64());
            gapless(&console);
            fixture.nothing_is_left();
        }
    }
}

/// A host whose wall clock is 100 s ahead, by a library that ranks and agents load.
#[test]
fn clock_skew() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    if program("cc").is_none() {
        skip!("no C compiler to pretend a clock with");
    }
    let source = fixture.write(
        "skew.c",
        "#define _GNU_SOURCE\n#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) { int r = syscall(SYS_clock_gettime, id, t); \
         if (id == CLOCK_REALTIME) t->tv_sec += 100; return r; }\n",
    );
    let library = fixture.bed.folder.path().join("shared/skew.so");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    fixture.bed.on(1, "echo 'export LD_PRELOAD=/mnt/skew.so' > ~tb/.bashrc; chown tb ~tb/.bashrc");
    for round in 0..rounds() {
        let began = Instant::now();
        let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
        assert_eq!(console.finish(120).code(), Some(0), "{}", console.told());
        gapless(&console);
        let stderr = console.stderr();
        let warning =
            stderr.lines().find(|line| line.contains("clock")).unwrap_or_else(|| panic!("{stderr}"));
        assert!(warning.contains("node1") && warning.contains("ahead of this machine"), "{warning}");
        report("clock skew", round, warning, began.elapsed().as_secs_f64());
        fixture.nothing_is_left();
    }
}
