//! Gauges of real processes.

use super::*;
use rankdeck_proto::message::GpuInstance;

#[test]
fn only_a_host_whose_ranks_all_move_is_looked_at_less_often() {
    let calm = |ages: &[Option<u64>]| is_calm(ages.iter().copied(), Duration::from_millis(500));
    assert!(calm(&[Some(0), Some(499)]));
    assert!(!calm(&[Some(0), Some(500)]), "one stands still");
    assert!(!calm(&[Some(0), None]), "one has no page");
    assert!(!calm(&[]), "nobody is there yet");
}

#[test]
fn a_large_world_is_sampled_once_a_second_unless_a_rank_stands_still() {
    let timing = Timing::default();
    let moves = || [Some(0), Some(499)];
    assert_eq!(pause(moves(), 8, timing), Duration::from_millis(500));
    assert_eq!(pause(moves(), 1024, timing), Duration::from_secs(1));
    assert_eq!(pause([Some(0), Some(1000)], 1024, timing), timing.sample);
    let wanted = Duration::from_millis(50);
    let timing = Timing { calm_sample: Some(wanted), ..timing };
    assert_eq!(pause([Some(0)], 1024, timing), wanted, "as tests say");
}

#[test]
fn a_share_of_a_gpu_is_told_only_where_pids_are() {
    let gpu = |told: &[(u32, u32)]| GpuSample {
        processes: told.iter().map(|(pid, _)| (*pid, 1)).collect(),
        shares: told.to_vec(),
        ..GpuSample::default()
    };
    let here = |pid: u32| pid < 100;
    let of = |told: &[(u32, u32)]| share_of(&gpu(told), &[7, 8], here);
    assert_eq!(of(&[(7, 30), (8, 20), (9, 40)]), Some(50));
    assert_eq!(of(&[(9, 40)]), Some(0), "another's only, so far");
    assert_eq!(of(&[(7, 30)]), None, "alone, the GPU's figure is its own");
    assert_eq!(of(&[(5007, 30), (5009, 40)]), None, "a container hides whose they are");
    assert_eq!(of(&[(7, 30), (5009, 40)]), Some(30), "that of a container beside ours");
}

#[test]
fn connections_are_counted_of_scripts_that_give_no_sign() {
    let page = |by_hook, age| PageSample { by_hook, heartbeat_age_ms: age, ..PageSample::default() };
    assert!(gives_signs(&page(false, 60_000)), "its phase says what it does");
    assert!(gives_signs(&page(true, 200)) && !gives_signs(&page(true, 3_000)));
    let watched = WatchedRank::of(Ident { pid: 1, start: 1 });
    assert!(!watched.gives_signs, "a program without a page never does");
}

#[test]
fn ranks_get_on_when_each_moves_or_waits_for_others() {
    let shown = |state: char, page: Option<PageSample>| RankSample {
        rank: Rank(0),
        pid: 1,
        state,
        cpu_percent: 0.0,
        rss: 0,
        children: 0,
        wchan: String::new(),
        gpu: None,
        gpu_memory: None,
        gpu_share: None,
        page,
        signals: Default::default(),
    };
    let rank = |age: u64, waits: bool, state: char| {
        let mut page = PageSample { heartbeat_age_ms: age, ..PageSample::default() };
        page.collective.entered = u64::from(waits);
        shown(state, Some(page))
    };
    let all = |ranks: Vec<RankSample>| all_get_on(&HostSample { ranks, ..HostSample::default() });
    assert!(all(vec![rank(100, false, 'R'), rank(60_000, true, 'S')]));
    assert!(!all(vec![rank(100, false, 'R'), rank(60_000, false, 'S')]), "one hangs");
    assert!(!all(vec![rank(60_000, true, 'T')]), "one is frozen");
    assert!(all(vec![rank(100, false, 'R'), rank(60_000, false, 'Z')]), "one has ended");
    assert!(!all(vec![shown('S', None)]), "one has no page");
    assert!(!all(vec![]));
}

#[test]
fn a_rank_has_the_gpu_that_its_processes_use() {
    let gpu = |index, pids: &[u32]| GpuSample {
        index,
        processes: pids.iter().map(|pid| (*pid, 1)).collect(),
        ..GpuSample::default()
    };
    let gpus = [gpu(0, &[7]), gpu(2, &[40, 41])];
    let of = |pid, planned: Option<u32>| {
        let planned = planned.map(|index| VisibleGpu { index, instance: None });
        gpu_of(&gpus, &[pid], planned.as_ref()).map(|gpu| gpu.index)
    };
    assert_eq!(of(41, Some(0)), Some(2), "Slurm gave it another one than the plan");
    assert_eq!(of(99, Some(0)), Some(0), "it uses none yet");
    assert_eq!(of(99, None), None);
}

#[test]
fn memory_is_that_of_the_ranks_processes_or_of_their_instance() {
    let instance =
        |name: &str, used| GpuInstance { uuid: name.into(), memory_used: used, ..Default::default() };
    let instances = vec![instance("MIG-a", 3), instance("MIG-b", 5)];
    let divided = GpuSample { instances, processes: vec![(7, 2)], ..GpuSample::default() };
    let given = VisibleGpu { index: 0, instance: Some("MIG-b".into()) };
    assert_eq!(memory_of(&divided, &[7], Some(&given)), Some(2));
    assert_eq!(memory_of(&divided, &[8], Some(&given)), Some(5), "its pid is hidden");
    let whole = GpuSample { memory_used: 9, ..GpuSample::default() };
    assert_eq!(memory_of(&whole, &[8], Some(&VisibleGpu { index: 0, instance: None })), None);
}

/// Ends with the test.
struct ChildGuard(std::process::Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        for below in proc::descendants(self.0.id()) {
            let start = proc::stat(below).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(below, start, libc::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a launcher waits for says nothing about the program that it has started.
#[test]
fn the_program_behind_a_launcher_is_what_is_looked_at() {
    let shell = std::process::Command::new("sh").args(["-c", "sleep 1000; true"]).spawn().unwrap();
    let shell = ChildGuard(shell);
    let begun = Instant::now();
    let soon = || assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s");
    let program = loop {
        match proc::descendants(shell.0.id()).first().and_then(|pid| proc::stat(*pid)) {
            Some(stat) if stat.comm == "sleep" => break stat,
            _ => soon(),
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    drop(rankdeck_proto::status_page::Writer::create(&page, 4, 1).unwrap());
    // The page names its writer.
    let file = std::fs::File::options().write(true).open(&page).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &u64::from(program.pid).to_le_bytes(), 32).unwrap();
    let own = proc::stat(shell.0.id()).unwrap();
    let ident = Ident { pid: own.pid, start: own.start };
    let target = Target { rank: Rank(4), ident, gpu: None, page: page.clone(), elsewhere: false };
    crate::supervise::groups::signal(program.pid, program.start, libc::SIGSTOP);
    let mut sampler = Sampler::default();
    loop {
        let sample = sampler.look(Generation(1), std::slice::from_ref(&target), &Gpus::default());
        let rank = &sample.ranks[0];
        if (rank.pid, rank.state) == (program.pid, 'T') {
            assert!(rank.page.is_some() && rank.children == 1, "the tree is that of the launcher");
            break;
        }
        soon();
    }
    let subject = crate::inspect::Subject { rank: Rank(4), ident: Some(ident), page, ..Default::default() };
    let look = crate::inspect::inspect(vec![subject]).remove(0);
    assert_eq!((look.pid, look.os.state), (Some(program.pid), 'T'));
}

#[test]
fn a_sample_shows_this_process_as_a_rank() {
    let own = proc::stat(std::process::id()).unwrap();
    let target = Target {
        rank: Rank(4),
        ident: Ident { pid: own.pid, start: own.start },
        gpu: None,
        page: "/nonexistent".into(),
        elsewhere: false,
    };
    let gone = Target { ident: Ident { pid: own.pid, start: own.start + 1 }, ..target.clone() };
    let mut sampler = Sampler::default();
    let sample = sampler.look(Generation(1), &[target, gone], &Gpus::default());
    assert_eq!((sample.generation, sample.ranks.len()), (Generation(1), 2));
    assert!(sample.memory_total > 0 && sample.cpu_count > 0);
    assert!(sample.ranks[0].rss > 0 && sample.ranks[0].state != 'X');
    assert_eq!((sample.ranks[1].state, sample.ranks[1].rss), ('X', 0));
    assert_eq!(sample.ranks[0].page, None);
}
