//! A stop reaches the programs of ranks below shells and what else waits for them, and gives them their time.

use super::bed::*;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::{LaunchConfig, StopSignal};
use std::path::PathBuf;

/// A program that, once it gets SIGTERM, saves as soon as it may, and notes how often it got one.
const MAIN: &str = r#"
import os, signal, sys, time
name = "".join(sys.argv[1:])
def stop(*_):
    with open("asked" + name, "a") as file:
        file.write("x")
    print("asked" + name, flush=True)
    while not os.path.exists("../may-save"):
        time.sleep(0.01)
    with open("saved" + name, "w") as file:
        file.write("weights")
    print("last words" + name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
# One write: two of these share a pipe, and an unbuffered `print` writes the line and its end apart.
sys.stdout.write("up\n")
sys.stdout.flush()
while True:
    time.sleep(1000)
"#;

/// The same below a Python program that only waits for it.
const LAUNCHER: &str = "import subprocess, sys\nsubprocess.run([sys.executable, '../main.py'])\n";

/// A program that handles no signal itself: it saves what its worker holds when it is interrupted. The worker
/// must not be.
const INTERRUPTED: &str = r#"
import multiprocessing, sys, time
def work(pipe):
    try:
        pipe.send("weights of " + pipe.recv())
    except BaseException as error:
        open("signaled", "w").write(repr(error))
        raise
if __name__ == "__main__":
    pipe, other = multiprocessing.Pipe()
    multiprocessing.Process(target=work, args=(other,), daemon=True).start()
    sys.stdout.write("up\n")
    sys.stdout.flush()
    try:
        while True:
            time.sleep(1000)
    except KeyboardInterrupt:
        pipe.send("the worker")
        open("saved.zip", "w").write(pipe.recv())
"#;

/// Scripts, and the names under which their mains save.
const CASES: [(&str, &[&str]); 16] = [
    ("python3 ../main.py\ntouch next", &[""]),
    ("set -e\npython3 ../main.py\ntouch next", &[""]),
    ("exec sh -c 'python3 ../main.py; touch next'", &[""]),
    ("python3 ../main.py | tee copy\ntouch next", &[""]),
    ("exec > >(tee copy)\npython3 ../main.py\ntouch next", &[""]),
    ("( python3 ../main.py ; touch next )\ntouch next", &[""]),
    ("trap 'cat saved > trapped' EXIT\npython3 ../main.py\ntouch next", &[""]),
    ("trap 'cat saved > trapped; exit 3' TERM\npython3 ../main.py\ntouch next", &[""]),
    (
        "trap 'kill -TERM $PID; wait $PID; cat saved > trapped; exit' TERM\npython3 ../main.py & PID=$!\nwait $PID\ntouch next",
        &[""],
    ),
    ("python3 ../main.py 1 & python3 ../main.py 2 & wait\ntouch next", &["1", "2"]),
    ("exec timeout 1000 bash -c 'python3 ../main.py; touch next'", &[""]),
    ("exec timeout 1000 python3 ../main.py", &[""]),
    ("echo ../main.py | exec xargs -n 1 python3\ntouch next", &[""]),
    ("nohup env X=1 python3 ../main.py\ntouch next", &[""]),
    ("python3 ../launcher.py", &[""]),
    ("yes | python3 ../main.py\ntouch next", &[""]),
];

/// Ranks that run `scripts`, each in a folder of its own.
fn launch(bed: &Bed, console: &mut Console, scripts: &[&str]) {
    launch_with(bed, console, scripts, |_| {});
}

fn launch_with(bed: &Bed, console: &mut Console, scripts: &[&str], change: impl FnOnce(&mut LaunchConfig)) {
    bed.script("main.py", MAIN);
    bed.script("launcher.py", LAUNCHER);
    bed.script("interrupted.py", INTERRUPTED);
    for (rank, script) in scripts.iter().enumerate() {
        std::fs::create_dir(folder(bed, rank)).unwrap();
        std::fs::write(folder(bed, rank).join("run.sh"), script).unwrap();
    }
    let command = ["bash", "-c", "cd rank$RANKDECK_RANK && exec bash ./run.sh"];
    let mut spec = bed.spec(0, scripts.len() as u32, &command);
    spec.plan.experiment.watch.python_hook = false;
    change(&mut spec.plan.experiment.launch);
    console.launch(spec);
}

fn folder(bed: &Bed, rank: usize) -> PathBuf {
    bed.workdir().join(format!("rank{rank}"))
}

fn text(bed: &Bed, rank: usize, name: &str) -> Option<String> {
    std::fs::read_to_string(folder(bed, rank).join(name)).ok()
}

/// Every main runs.
fn wait_up(bed: &Bed, console: &mut Console, mains: &[usize]) {
    for (rank, count) in mains.iter().enumerate() {
        console.wait(&format!("rank {rank} is up"), |console| {
            let log =
                console.lines.iter().filter(|(r, _, line)| r.0 as usize == rank && line == "up").count();
            let copy =
                text(bed, rank, "copy").map_or(0, |copy| copy.lines().filter(|line| *line == "up").count());
            log.max(copy) == *count
        });
    }
}

#[test]
fn ask_1_and_3_stop_waits_for_programs_below_shells() {
    for (name, mode) in [("bc", StopMode::Clean), ("bt", StopMode::Terminate)] {
        let bed = Bed::new(name);
        let mut console = Console::attach(&bed.start(), 0);
        launch(&bed, &mut console, &CASES.map(|(script, _)| script));
        wait_up(&bed, &mut console, &CASES.map(|(_, mains)| mains.len()));
        console.stop(mode, 120_000);
        let mut missing: Vec<(usize, &str)> = CASES
            .iter()
            .enumerate()
            .flat_map(|(rank, (_, mains))| mains.iter().map(move |main| (rank, *main)))
            .collect();
        console.wait(&format!("every main is asked, {mode:?}"), |console| {
            missing.retain(|(rank, main)| text(&bed, *rank, &format!("asked{main}")).is_none());
            let ended = |event: &RecordEvent| match event {
                RecordEvent::RankExited { rank, exit, .. } => Some((*rank, exit.clone())),
                _ => None,
            };
            assert_eq!(console.find(ended), None, "ended before its main had saved, {mode:?}");
            missing.is_empty()
        });
        // Shells that are held are not reported as stopped.
        let seen = console.samples.last().map_or(0, |sample| sample.mono_ms);
        console.wait("a sample", |console| console.samples.last().is_some_and(|s| s.mono_ms > seen + 1_500));
        let states: String = console.samples.last().unwrap().ranks.iter().map(|rank| rank.state).collect();
        assert!(!states.contains(['T', 'X', 'Z']), "{states}");
        std::fs::write(bed.workdir().join("may-save"), "").unwrap();
        assert_eq!(console.stopped(), []);
        for (rank, (script, mains)) in CASES.iter().enumerate() {
            let (exit, _, stopping) = console.exit(rank as u32);
            assert!(
                stopping && !matches!(exit, Exit::Signal { signal: libc::SIGKILL, .. }),
                "{script}: {exit:?}"
            );
            for main in *mains {
                let read = |what: &str| text(&bed, rank, &format!("{what}{main}"));
                assert_eq!(read("saved").as_deref(), Some("weights"), "{script}");
                // `timeout` sends its own group another one.
                let once = !script.starts_with("exec timeout 1000 python3") && mode == StopMode::Clean;
                assert!(!once || read("asked").as_deref() == Some("x"), "{script}: {:?}", read("asked"));
            }
            assert_eq!(text(&bed, rank, "next"), None, "{script}: the next command was not to run");
            if script.contains("trapped") {
                assert_eq!(text(&bed, rank, "trapped").as_deref(), Some("weights"), "{script}");
            }
            if script.contains("tee") {
                let copy = text(&bed, rank, "copy").unwrap_or_default();
                assert!(copy.ends_with("last words\n"), "{script}: {copy:?}");
            }
        }
        assert_eq!(bed.marked(), []);
    }
}

#[test]
fn translating_trap_gets_the_signal_alone() {
    let bed = Bed::new("translate");
    let script = "trap 'touch ../may-save; kill -USR1 $PID; wait $PID; exit 0' TERM\npython3 - <<'END' & PID=$!\n\
                  import signal, sys, time\n\
                  def stop(*_):\n    open('saved', 'w').write('weights')\n    sys.exit(0)\n\
                  signal.signal(signal.SIGUSR1, stop)\nprint('up', flush=True)\ntime.sleep(1000)\nEND\nwait\n";
    let mut console = Console::attach(&bed.start(), 0);
    launch(&bed, &mut console, &[script]);
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 120_000);
    assert_eq!(console.stopped(), []);
    assert_eq!(console.exit(0).0, Exit::Code { code: 0 });
    assert_eq!(text(&bed, 0, "saved").as_deref(), Some("weights"));
}

#[test]
fn ask_2_killed_main_below_a_shell_is_killed() {
    let stubborn = "python3 -c \"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); \
                    signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)\"\n\
                    touch next\n";
    let killed = Exit::Signal { signal: libc::SIGKILL, out_of_memory: false };
    let bed = Bed::new("stubborn-main");
    let mut console = Console::attach(&bed.start(), 0);
    launch(&bed, &mut console, &[stubborn]);
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 300);
    assert_eq!(console.exit(0).0, killed, "after its grace");
    assert_eq!(console.stopped(), []);
    // A harder stop in the middle of a clean one.
    let bed = Bed::new("harder");
    let mut console = Console::attach(&bed.start(), 0);
    launch(&bed, &mut console, &["python3 ../main.py\ntouch next"]);
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 120_000);
    console.wait_line(0, "asked");
    console.stop(StopMode::Kill, 0);
    assert_eq!(console.exit(0).0, killed, "at once");
    assert_eq!(console.stopped(), []);
    assert_eq!((text(&bed, 0, "saved"), text(&bed, 0, "next")), (None, None));
    assert_eq!(bed.marked(), []);
}

#[test]
fn ask_4_interrupted_program_saves_before_its_workers_end() {
    let scripts = [
        "python3 ../interrupted.py\ntouch next",
        "python3 ../interrupted.py | tee copy\ntouch next",
        "exec python3 ../interrupted.py",
    ];
    let bed = Bed::new("interrupted");
    let mut console = Console::attach(&bed.start(), 0);
    launch(&bed, &mut console, &scripts);
    wait_up(&bed, &mut console, &[1; 3]);
    console.stop(StopMode::Clean, 60_000);
    assert_eq!(console.stopped(), []);
    for (rank, script) in scripts.iter().enumerate() {
        let (exit, _, stopping) = console.exit(rank as u32);
        // A shell ends by the signal that keeps it from its next command.
        let is_killed = matches!(exit, Exit::Signal { signal: libc::SIGKILL, .. });
        let is_expected = exit == Exit::Code { code: 0 } || !script.starts_with("exec") && !is_killed;
        assert!(stopping && is_expected, "{script}: {exit:?}");
        assert_eq!(text(&bed, rank, "signaled"), None, "{script}");
        assert_eq!(text(&bed, rank, "saved.zip").as_deref(), Some("weights of the worker"), "{script}");
        assert_eq!(text(&bed, rank, "next"), None, "{script}");
    }
    // What they have saved is found before the stop is verified.
    let found = |event: &RecordEvent| match event {
        RecordEvent::CheckpointFiles { files, complete: true } => Some(files.clone()),
        _ => None,
    };
    let files = console.find(found).expect("reported before the proof");
    let saved = files.iter().filter(|file| file.path.ends_with("/saved.zip") && file.bytes == 21);
    assert_eq!(saved.count(), 3, "{files:?}");
}

#[test]
fn program_4_second_signal_and_stop_signal_are_sent() {
    let deaf = "exec python3 -c \"import signal, time; signal.signal(signal.SIGTERM, lambda *_: None)
try:
    print('up', flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    open('saved', 'w').write('weights')\"";
    let bed = Bed::new("second");
    let mut console = Console::attach(&bed.start(), 0);
    launch(&bed, &mut console, &[deaf]);
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 500);
    assert_eq!((console.exit(0).0, console.stopped()), (Exit::Code { code: 0 }, vec![]));
    assert_eq!(text(&bed, 0, "saved").as_deref(), Some("weights"));

    let own = "exec python3 -c \"import signal, sys, time
def save(*_):
    open('saved', 'w').write('weights')
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: open('asked', 'w').close())
print('up', flush=True)
time.sleep(1000)\"";
    let bed = Bed::new("own-signal");
    let mut console = Console::attach(&bed.start(), 0);
    launch_with(&bed, &mut console, &[own], |launch| launch.stop_signal = Some(StopSignal::Usr1));
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 60_000);
    assert_eq!((console.exit(0).0, console.stopped()), (Exit::Code { code: 0 }, vec![]));
    assert_eq!((text(&bed, 0, "saved").as_deref(), text(&bed, 0, "asked")), (Some("weights"), None));
}

#[test]
fn held_shells_end_with_the_agent() {
    let bed = Bed::new("held");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    launch(&bed, &mut console, &["( python3 ../main.py; touch next )\ntouch next"]);
    wait_up(&bed, &mut console, &[1]);
    console.stop(StopMode::Clean, 120_000);
    console.wait_line(0, "asked");
    assert!(bed.marked().iter().any(|stat| stat.state == 'T'), "{:?}", bed.marked());
    kill(agent.pid, libc::SIGKILL);
    until("nothing is left", || bed.marked().is_empty().then_some(()));
    assert_eq!(text(&bed, 0, "next"), None);
}
