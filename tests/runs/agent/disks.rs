//! A disk that is full for a while.

use super::bed::*;
use rankdeck_proto::message::*;
use rankdeck_testkit::{repository, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk of its own below the working folder of a bed, where a file that is removed gives room at
/// once.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: &Path) -> Option<SmallDisk> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"]).arg(path);
        mount.output().is_ok_and(|output| output.status.success()).then(|| SmallDisk(path.to_owned()))
    }

    fn fill(&self) {
        let block = vec![7; 4096];
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// SPOOL-3, CORE-3: nobody ends, it is said, and what was kept in memory is written when there is room again.
#[test]
fn spool_3_a_full_disk_ends_nobody_and_leaves_no_gap_in_the_records() {
    let bed = Bed::new("full");
    let Some(disk) = SmallDisk::at(bed.workdir()) else { skip!("no tmpfs can be mounted here") };
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let program = repository("tests/programs/rank.py");
    let words = ["python3", program.to_str().unwrap(), "--iters", "1000000", "--pause", "0.02"];
    console.launch(bed.spec(0, 1, &words));
    let counters = |console: &Console| {
        let of = |record: &&Record| {
            matches!(&record.event, RecordEvent::Rank { said: RankEvent::Counters(_), .. })
        };
        console.records.iter().filter(of).count()
    };
    let notice = |console: &Console, text: &str| {
        console.find(|event| {
            matches!(event, RecordEvent::Notice { text: said } if said.contains(text)).then_some(())
        })
    };
    console.wait("counters", |console| counters(console) > 5);
    disk.fill();
    console.wait("it is said", |console| notice(console, "cannot be written").is_some());
    let before = counters(&console);
    console.wait("records go on", |console| counters(console) > before + 50);
    disk.free();
    console.wait("it is said again", |console| notice(console, "again; 0 were lost").is_some());
    console.stop(StopMode::Clean, 20_000);
    assert_eq!(console.stopped(), []);
    assert_eq!(console.exit(0).0, Exit::Code { code: 0 });
    assert_eq!(console.seqs(), (1..=console.records.len() as u64).collect::<Vec<_>>());
    until("all of it is on disk", || {
        let text = std::fs::read_to_string(bed.node_dir(0).join("records.jsonl")).unwrap();
        let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (records == console.records).then_some(())
    });
    let manifest = std::fs::read_to_string(bed.node_dir(0).join("manifest.json")).unwrap();
    assert!(manifest.contains("\"running\": false"), "{manifest}");
    drop(console);
    kill(agent.pid, libc::SIGTERM);
    until("agent and guard have ended", || bed.watchers().is_empty().then_some(()));
}
