//! Ranks in real containers: the program inside is inspected, not the tool's client.

use super::bed::*;
use super::inspecting::inspect;
use crate::support::podman::Podman;
use rankdeck_proto::message::*;

#[test]
fn program_in_a_container_is_inspected_and_stopped() {
    let bed = Bed::new("contained");
    let Some(podman) = Podman::new(bed.workdir()) else { return };
    let started = bed.start();
    let mut console = Console::attach(&started, 0);
    let mut spec = bed.spec(0, 2, &["bash", "-c", "echo begun; exec sleep 1000"]);
    spec.plan.hosts[0].host.setup.container = Some(podman.line("").replace("  ", " "));
    console.launch(spec);
    let client = console.pid(0);
    console.wait_line(0, "begun");
    console.wait_line(1, "begun");
    let found = inspect(&mut console, 0, "the program is seen", |found| {
        found.pid.is_some_and(|pid| pid != client && name(pid) == "sleep")
    });
    let program = found.pid.unwrap();
    let of_0 = |sample: &HostSample| sample.ranks.iter().find(|rank| rank.rank.0 == 0).cloned();
    console.wait("a sample of the program", |console| {
        console.samples.last().and_then(of_0).is_some_and(|rank| rank.pid == program && rank.rss > 0)
    });
    kill(program, libc::SIGSTOP);
    console.wait("a sample of the program, which is stopped", |console| {
        console.samples.last().and_then(of_0).is_some_and(|rank| rank.state == 'T')
    });
    console.stop(StopMode::Kill, 0);
    assert_eq!(console.stopped(), []);
    assert_eq!(bed.marked().into_iter().filter(|stat| stat.comm == "sleep").count(), 0);
    until("podman forgets them", || podman.names().trim().is_empty().then_some(()));
}

#[test]
fn ask_1_stop_reaches_a_container_program_below_a_shell() {
    let bed = Bed::new("contained-shell");
    let Some(podman) = Podman::new(bed.workdir()) else { return };
    let started = bed.start();
    let mut console = Console::attach(&started, 0);
    let main = "import signal, sys\ndef stop(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n\
                signal.signal(signal.SIGTERM, stop)\nprint('up', flush=True)\nwhile True:\n    signal.pause()\n";
    let script = format!("/usr/bin/python3 -S -c \"{main}\"; echo next");
    let mut spec = bed.spec(0, 1, &["bash", "-c", &script]);
    spec.plan.experiment.watch.python_hook = false;
    spec.plan.hosts[0].host.setup.container = Some(podman.line("").replace("  ", " "));
    console.launch(spec);
    console.wait_line(0, "up");
    console.stop(StopMode::Clean, 60_000);
    let (exit, lines, _) = console.exit(0);
    assert_eq!(lines, ["up", "saved"], "{exit:?}");
    assert_eq!(console.stopped(), []);
    until("podman forgets it", || podman.names().trim().is_empty().then_some(()));
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}
