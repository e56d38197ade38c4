//! Limits of a host: few file descriptors, and a disk that is full for a while.

use super::bed::*;
use rankdeck_proto::message::*;
use rankdeck_testkit::{repository, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn files_1_2_and_3_few_descriptors_are_enough() {
    let mut bed = Bed::new("few");
    bed.files = Some((100, 100));
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 16, &["sleep", "100000"]));
    console.wait("samples of all ranks", |console| {
        let all = |sample: &HostSample| sample.ranks.iter().filter(|rank| rank.state == 'S').count() == 16;
        console.samples.last().is_some_and(all)
    });
    console.stop(StopMode::Clean, 30_000);
    assert_eq!(console.stopped(), []);
    assert_eq!(bed.marked(), []);
}

#[test]
fn files_1_ranks_get_the_inherited_limit() {
    let mut bed = Bed::new("limits");
    bed.files = Some((200, 300));
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 1, &["sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)"]));
    assert_eq!(console.exit(0).1, ["200 300"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.pid)).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["300", "300"]);
}

#[test]
fn files_3_and_4_stop_works_without_free_descriptors() {
    for mode in [StopMode::Clean, StopMode::Kill] {
        let mut bed = Bed::new("used-up");
        bed.files = Some((100, 100));
        let agent = bed.start();
        let mut console = Console::attach(&agent, 0);
        console.launch(bed.spec(0, 4, &["sleep", "100000"]));
        (0..4).for_each(|rank| _ = console.pid(rank));
        // From outside: what is open now is all that may be.
        let open = std::fs::read_dir(format!("/proc/{}/fd", agent.pid)).unwrap().count() as u64;
        let limit = libc::rlimit { rlim_cur: open, rlim_max: open };
        // SAFETY: the call reads one valid rlimit and writes nothing.
        let set =
            unsafe { libc::prlimit(agent.pid as i32, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        let mut other = Console::attach(&agent, 0);
        other.stop(mode, 30_000);
        assert_eq!(other.stopped(), [], "{mode:?}");
        assert_eq!(bed.marked(), [], "{mode:?}");
    }
}

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

/// SPOOL-3, CORE-3: no process ends, it is reported, and records in memory are written when there is space again.
#[test]
fn spool_3_full_disk_leaves_no_gap_in_records() {
    let bed = Bed::new("full");
    let Some(disk) = SmallDisk::at(bed.workdir()) else { skip!("no tmpfs can be mounted here") };
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let program = repository("tests/programs/rank.py");
    let words = ["python3", program.to_str().unwrap(), "--iters", "1000000", "--pause", "0.02"];
    console.launch(bed.spec(0, 1, &words));
    let counters = |console: &Console| {
        let of = |record: &&Record| {
            matches!(&record.event, RecordEvent::Rank { event: RankEvent::Counters(_), .. })
        };
        console.records.iter().filter(of).count()
    };
    let notice = |console: &Console, text: &str| {
        console.find(|event| {
            matches!(event, RecordEvent::Notice { text: output_text } if output_text.contains(text))
                .then_some(())
        })
    };
    console.wait("counters", |console| counters(console) > 5);
    disk.fill();
    console.wait("a notice", |console| notice(console, "records.jsonl").is_some());
    let before = counters(&console);
    console.wait("records go on", |console| counters(console) > before + 50);
    disk.free();
    console.wait("a notice about the end", |console| notice(console, " 0 ").is_some());
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
