//! What docs/SECURITY.md promises of an agent.

use super::bed::{Bed, Console, until};
use rankdeck_proto::frame::MAX_FRAME;
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
fn nothing_of_a_run_is_open_to_other_users() {
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
fn another_user_is_not_served_even_where_the_socket_is_open() {
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
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // Hung up at once: an end of file, or a write or a read that finds nobody.
    assert!(said.trim() == "0" || said.contains("Broken pipe") || said.contains("reset"), "{said}");
    Console::attach(&agent, 0);
}

#[test]
fn a_frame_over_1_mib_ends_the_connection_and_nothing_else() {
    let bed = Bed::new("large");
    let agent = bed.start();
    let mut stream = UnixStream::connect(&agent.socket).unwrap();
    stream.write_all(&(MAX_FRAME as u32 + 1).to_be_bytes()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    until("the agent still serves", || Some(Console::attach(&agent, 0)));
}
