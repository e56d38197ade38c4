//! What docs/security.md promises of an agent.

use super::bed::{Bed, Console, until};
use rankdeck_proto::frame::MAX_FRAME;
use rankdeck_proto::message::{ConsoleMessage, LaunchSecrets};
use rankdeck_proto::secret::GroupSecret;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Every folder 0700 and every file 0600 below a run directory, and its sockets.
#[test]
fn run_files_are_private_to_their_user() {
    let bed = Bed::new("private");
    let agent = bed.start();
    let socket = Path::new(&agent.socket);
    assert!(std::fs::symlink_metadata(socket).unwrap().file_type().is_socket());
    assert_eq!((mode(socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    assert_eq!(mode(&socket.with_extension("ev")), 0o600);
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 1, &["sh", "-c", "echo up; sleep 60"]));
    console.wait_line(0, "up");
    let mut folders = vec![bed.node_dir(0).parent().unwrap().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                files += 1;
                assert_eq!(mode(&entry.path()), 0o600, "{}", entry.path().display());
            }
        }
    }
    assert!(files >= 5, "manifest, records, log, launcher or page are missing");
}

#[test]
fn other_user_is_not_served_on_an_open_socket() {
    let bed = Bed::new("stranger");
    let agent = bed.start();
    let socket = Path::new(&agent.socket);
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        rankdeck_testkit::skip!("only root can become another user");
    }
    for folder in socket.ancestors().skip(1).take_while(|folder| folder.starts_with(bed.workdir())) {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o711)).unwrap();
    }
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666)).unwrap();
    let talk = "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                s.settimeout(30); s.sendall(sys.stdin.buffer.read()); print(len(s.recv(1)))";
    let mut child = Command::new("python3")
        .args(["-c", talk, &agent.socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let attach = rankdeck_proto::message::ConsoleMessage::Attach {
        protocol: rankdeck_proto::message::PROTOCOL,
        build: "x".into(),
        after_seq: 0,
        log_tail: 0,
    };
    child.stdin.take().unwrap().write_all(&rankdeck_proto::frame::encode(&attach).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let output_text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // Hung up at once: an end of file, or a failed write or read.
    assert!(
        output_text.trim() == "0" || output_text.contains("Broken pipe") || output_text.contains("reset"),
        "{output_text}"
    );
    Console::attach(&agent, 0);
}

#[test]
fn oversized_frame_ends_only_its_connection() {
    let bed = Bed::new("large");
    let agent = bed.start();
    let mut stream = UnixStream::connect(&agent.socket).unwrap();
    stream.write_all(&(MAX_FRAME as u32 + 1).to_be_bytes()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    until("the agent still serves", || Some(Console::attach(&agent, 0)));
}

/// SECRET-1: in the environment of the rank, and nowhere else.
#[test]
fn generation_secret_is_in_no_file_or_message() {
    let bed = Bed::new("secret");
    let agent = bed.start();
    let secret = GroupSecret::draw().unwrap();
    let hex = secret.to_hex();
    let mut console = Console::attach(&agent, 0);
    let spec = bed.spec(0, 1, &["sh", "-c", "[ ${#RANKDECK_SECRET} = 64 ] && echo has it; sleep 60"]);
    console.send(&ConsoleMessage::Launch {
        spec: Box::new(spec),
        private: LaunchSecrets { secret: Some(secret), ..LaunchSecrets::default() },
        after_end: false,
    });
    console.wait_line(0, "has it");
    let mut later = Console::attach(&agent, 0);
    until("a console that attaches later knows the run", || {
        later.pump();
        (later.snapshot.is_some() && later.records.len() >= 2).then_some(())
    });
    for client in [&console, &later] {
        let output_text =
            serde_json::to_string(&(&client.snapshot, &client.records, &client.others)).unwrap();
        assert!(output_text.contains("RANKDECK_SECRET"), "the plan with its command is there");
        assert!(!output_text.contains(&hex));
    }
    let (mut folders, mut files) = (vec![bed.workdir().to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files += 1;
                let bytes = std::fs::read(entry.path()).unwrap();
                assert!(!String::from_utf8_lossy(&bytes).contains(&hex), "{}", entry.path().display());
            }
        }
    }
    assert!(files >= 4, "{files}");
    let holds = |pid: u32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(&hex)
    };
    let ranks: Vec<u32> = bed.marked().iter().map(|stat| stat.pid).collect();
    assert!(ranks.iter().any(|pid| holds(*pid, "environ")));
    for pid in ranks.iter().copied().chain(bed.watchers().iter().map(|stat| stat.pid)) {
        assert!(!holds(pid, "cmdline"));
    }
    for stat in bed.watchers() {
        assert!(!holds(stat.pid, "environ"), "agent and guard have it in no environment");
    }
}

/// Python that makes `folder` with `mode` as user 61003.
fn squat(folder: &Path, mode: u32) {
    let program = "import os, sys; os.setgid(61003); os.setuid(61003); os.umask(0); os.mkdir(sys.argv[1], int(sys.argv[2]))";
    let made =
        Command::new("python3").args(["-c", program]).arg(folder).arg(mode.to_string()).status().unwrap();
    assert!(made.success());
}

/// SOCKET-1: the default place is a name that anybody can guess.
#[test]
fn socket_1_foreign_directory_does_not_block_a_start() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        rankdeck_testkit::skip!("only root can become another user");
    }
    for squatters in [0o777, 0o700] {
        // A user of this test alone: the place is named after it.
        let uid = 900_000 + std::process::id() % 90_000;
        let place = Path::new("/tmp").join(format!("rankdeck-{uid}"));
        squat(&place, squatters);
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(uid), Some(uid)).unwrap();
        let agent = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck"));
            std::os::unix::process::CommandExt::uid(&mut command, uid).env("HOME", home.path());
            command.env_remove("XDG_RUNTIME_DIR").env("RANKDECK_AGENT_TIMING", "linger=1");
            command
                .arg("agent")
                .args(args)
                .args(["--workdir", home.path().to_str().unwrap()])
                .output()
                .unwrap()
        };
        let output = agent(&["start", "--run", "squatted", "--host", "a", "--node-rank", "0"]);
        let started: rankdeck_agent::serve::daemon::ServingAgent =
            super::bed::answer(&output, "RANKDECK-AGENT");
        assert!(Path::new(&started.socket).starts_with(home.path()), "{started:?}");
        assert_eq!(mode(Path::new(&started.socket).parent().unwrap()), 0o700);
        super::bed::kill(started.pid, libc::SIGTERM);
        until("it has ended", || rankdeck_agent::proc::stat(started.pid).is_none().then_some(()));
        std::fs::remove_dir(&place).unwrap();
    }
}

/// SOCKET-1: `/tmp` is cleaned while an agent lives, and another user takes the name.
#[test]
fn socket_1_sockets_move_to_an_own_directory() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        rankdeck_testkit::skip!("only root can become another user");
    }
    let bed = Bed::new("taken");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 1, &["sleep", "1000"]));
    console.pid(0);
    let folder = Path::new(&agent.socket).parent().unwrap().to_owned();
    let open_above = |mode: u32| {
        for above in folder.ancestors().skip(1).take_while(|above| above.starts_with(bed.workdir())) {
            std::fs::set_permissions(above, PermissionsExt::from_mode(mode)).unwrap();
        }
    };
    open_above(0o777);
    std::fs::remove_dir_all(&folder).unwrap();
    squat(&folder, 0o777);
    // TRUST-1: nothing starts where others can write.
    open_above(0o755);
    let moved = until("the agent is found again", || {
        let output = bed.agent(&bed.start_args("0"));
        let text = String::from_utf8_lossy(&output.stdout);
        text.contains("\"socket\"").then(|| {
            super::bed::answer::<rankdeck_agent::serve::daemon::ServingAgent>(&output, "RANKDECK-AGENT")
        })
    });
    assert_eq!(moved.pid, agent.pid);
    assert!(!Path::new(&moved.socket).starts_with(&folder), "{moved:?}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing of ours is there");
    let mut console = Console::attach(&moved, 0);
    console.stop(rankdeck_proto::message::StopMode::Kill, 0);
    assert_eq!(console.stopped(), []);
    console.launch(bed.spec(
        1,
        1,
        &["sh", "-c", "echo at $RANKDECK_EVENTS; test -S $RANKDECK_EVENTS && echo there"],
    ));
    console.wait_line(0, "there");
    console.wait("a notice", |console| {
        console.find(|event| matches!(event, rankdeck_proto::message::RecordEvent::Notice { text } if text.contains("sockets")).then_some(())).is_some()
    });
}
