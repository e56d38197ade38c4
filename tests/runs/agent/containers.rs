//! Ranks in real containers: the program inside is inspected, not the tool's client.

use super::bed::*;
use super::inspecting::inspect;
use rankdeck_proto::message::*;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// podman with folders of its own, and a root folder of links into the host's /usr. `None`, and a skip, where
/// no container starts.
struct Podman {
    tool: PathBuf,
    root: PathBuf,
}

impl Podman {
    fn new(folder: &Path) -> Option<Podman> {
        let root = folder.join("root");
        for name in ["usr", "etc", "tmp", "proc", "sys", "dev", "run", "root"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        let tool = folder.join("podman");
        let storage = folder.join("containers");
        let own = ["root", "runroot"].map(|name| format!("--{name} {}", storage.join(name).display()));
        let options =
            format!("--runtime runc --cgroup-manager cgroupfs --storage-driver vfs {}", own.join(" "));
        std::fs::write(&tool, format!("#!/bin/sh\nexec /usr/bin/podman {options} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let podman = Podman { tool, root };
        let trial = format!("{} true", podman.line("run --rm --network=host --ipc=host --pid=host"));
        let tried = Command::new("sh").args(["-c", &trial]).output();
        match tried {
            Ok(done) if done.status.success() => Some(podman),
            Ok(done) => {
                let output_text = String::from_utf8_lossy(&done.stderr);
                rankdeck_testkit::skipped(&format!("podman and runc start no container: {output_text}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The tool, `words`, options and root folder. A machine may have lower limits than podman requests.
    fn line(&self, words: &str) -> String {
        let (tool, root) = (self.tool.display(), self.root.display());
        format!(
            "{tool} {words} --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --volume /usr:/usr:ro \
             --rootfs {root}"
        )
    }

    /// Names of its containers.
    fn names(&self) -> String {
        let listed =
            Command::new(&self.tool).args(["ps", "--all", "--format", "{{.Names}}"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).into_owned()
    }
}

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
