//! Two ranks on CPUs, started by `--spawn`: totals, stopping, failing.

use crate::harness::{Run, counters, experiment, kill, totals};
use rankdeck_proto::message::{FinishReason, RankEvent};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

const LONG: u64 = 100_000_000;

fn iterations(run: &Run, rank: u32) -> u64 {
    counters(&run.events(), rank).last().map_or(0, |c| c.train_iter)
}

fn training(run: &Run) {
    run.wait_for("counters of both ranks", |events| (0..2).all(|rank| !counters(events, rank).is_empty()));
}

#[test]
fn totals_equal_rank_sums_and_weights_stay_equal() {
    let rest = "[eval]\nevery = 10\nepisodes = 2\n[checkpoint]\nevery = 7";
    let mut run = Run::start(&experiment(30 * 512, "", rest), &["--spawn", "2"]);
    run.end_with(0);
    let events = run.events();
    let (totals, own) = (totals(&events), [0, 1].map(|rank| counters(&events, rank)));
    assert!(totals.len() >= 5, "iterations 1, 7, 10, 14, ... report at least");
    for (i, total) in totals.iter().enumerate() {
        let [a, b] = [own[0][i], own[1][i]];
        assert_eq!([a.train_iter, b.train_iter], [total.train_iter; 2]);
        assert_eq!(a.env_step + b.env_step, total.env_step);
        assert_eq!((total.env_step, total.samples), (total.train_iter * 512, a.samples + b.samples));
        assert_eq!(a.episodes + b.episodes, total.episodes);
        assert!((a.duration_s + b.duration_s - total.duration_s).abs() < 1e-9);
        assert_eq!([a.updates, b.updates], [total.updates; 2]);
        assert_eq!(a.returns.sum + b.returns.sum, total.returns.sum);
        assert_eq!(a.returns.count + b.returns.count, total.returns.count);
    }
    assert_eq!(totals.last().unwrap().env_step, 30 * 512);
    assert!(own[0].last().unwrap().episodes != 0 && own[0].last() != own[1].last());
    let fingerprints: Vec<_> = events
        .iter()
        .filter_map(|(rank, event)| match event {
            RankEvent::Fingerprint { values, equal, .. } => Some((*rank, values.clone(), *equal)),
            _ => None,
        })
        .collect();
    assert_eq!(fingerprints.len(), totals.len());
    // They follow the weights: no two iterations have the same.
    let distinct: std::collections::HashSet<&String> =
        fingerprints.iter().map(|(_, values, _)| &values[0]).collect();
    assert_eq!(distinct.len(), totals.len());
    for (rank, values, equal) in fingerprints {
        assert!(
            rank == 0
                && equal
                && values.len() == 2
                && values[0] == values[1]
                && values[0] != "0000000000000000"
        );
    }
    for rank in 0..2 {
        let finished = (rank, RankEvent::Finished { reason: FinishReason::Budget });
        assert!(events.contains(&finished));
    }
}

#[test]
fn first_sigterm_stops_all_ranks_at_the_same_iteration() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    run.signal(libc::SIGTERM);
    run.end_with(0);
    let left = iterations(&run, 0);
    assert!(left > 0);
    assert_eq!(left, iterations(&run, 1));
    let events = run.events();
    let checkpoint = events.iter().find_map(|(_, event)| match event {
        RankEvent::Checkpoint { path, train_iter, reason, .. } => {
            Some((path.clone(), *train_iter, reason.clone()))
        }
        _ => None,
    });
    let path = run.file("checkpoints/latest.ckpt");
    assert_eq!(checkpoint, Some((path.to_string_lossy().into_owned(), left, "stop".into())));
    for rank in 0..2 {
        assert!(events.contains(&(rank, RankEvent::Finished { reason: FinishReason::Stopped })));
    }
}

#[test]
fn signal_to_one_rank_stops_all() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    kill(run.rank_pid(1), libc::SIGTERM);
    run.end_with(0);
    assert_eq!(iterations(&run, 0), iterations(&run, 1));
}

#[test]
fn second_signal_exits_at_once() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    // Rank 1 stands still, so that no iteration can end and the first signal alone would wait without end.
    let rank1 = run.rank_pid(1);
    kill(rank1, libc::SIGSTOP);
    run.signal(libc::SIGTERM);
    // SIGNAL-2: what comes at once belongs to the first.
    std::thread::sleep(Duration::from_secs(1));
    run.signal(libc::SIGINT);
    kill(rank1, libc::SIGCONT);
    run.end_with(1);
    assert!(!run.events().iter().any(|(_, event)| matches!(event, RankEvent::Finished { .. })));
}

/// SIGNAL-2: `timeout` signals its child, and then its whole group, in which the child is.
#[test]
fn signal_2_simultaneous_signals_are_one_request() {
    for signals in [[libc::SIGTERM, libc::SIGTERM], [libc::SIGTERM, libc::SIGINT]] {
        let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
        training(&run);
        // They find the ranks in the middle of something, so that both are delivered before either is handled.
        let ranks = [0, 1].map(|rank| run.rank_pid(rank));
        ranks.iter().for_each(|rank| kill(*rank, libc::SIGSTOP));
        for signal in signals {
            run.signal(signal);
            ranks.iter().for_each(|rank| kill(*rank, signal));
        }
        ranks.iter().for_each(|rank| kill(*rank, libc::SIGCONT));
        run.end_with(0);
        let stopped = RankEvent::Finished { reason: FinishReason::Stopped };
        assert_eq!(run.events().iter().filter(|(_, event)| *event == stopped).count(), 2, "{}", run.logs());
        assert!(run.file("checkpoints/latest.ckpt").exists());
    }
}

#[test]
fn spawn_2_parent_has_one_thread_and_no_gpu_libraries() {
    let run = Run::start(&experiment(LONG, "", "[eval]\nevery = 0\n"), &["--spawn", "2"]);
    training(&run);
    let parent = format!("/proc/{}", run.pid());
    assert_eq!(std::fs::read_dir(format!("{parent}/task")).unwrap().count(), 1);
    let maps = std::fs::read_to_string(format!("{parent}/maps")).unwrap();
    assert!(maps.contains("libtorch_cpu.so"), "loaded once for all");
    assert!(!maps.contains("libtorch_cuda") && !maps.contains("libcuda.so"), "{maps}");
}

#[test]
fn group_ends_under_a_launcher_that_ignores_sigchld() {
    let experiment = experiment(512, "", "[eval]\nevery = 0\n");
    let mut run = Run::start_by(&experiment, &["--spawn", "2"], |command| {
        // SAFETY: signal may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            });
        }
    });
    run.end_with(0);
}

#[test]
fn killed_rank_fails_the_group_without_leftovers() {
    let mut run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    kill(run.rank_pid(1), libc::SIGKILL);
    run.end_with(1);
    // The remaining rank reports what it noticed.
    let output = run.events().into_iter().find_map(|(rank, event)| match event {
        RankEvent::Error { message, usage, .. } => Some((rank, message, usage)),
        _ => None,
    });
    let (rank, message, usage) = output.unwrap();
    assert!(rank == 0 && !usage && !message.is_empty(), "{message}");
}

#[test]
fn spawn_1_ranks_die_with_their_parent() {
    let run = Run::start(&experiment(LONG, "", ""), &["--spawn", "2"]);
    training(&run);
    assert_eq!(run.processes().len(), 3);
    run.signal(libc::SIGKILL);
    // The parent itself stays as a zombie, whose environment is empty, until it is reaped.
    run.nothing_left();
}

#[test]
fn config_errors_exit_2_on_every_rank_with_a_hint() {
    for (experiment, args, key) in [
        (
            experiment(5000, "", "").replace("id = 'CartPole-v1'", "id = 'Cart-v9'\nworker = 'rust'"),
            vec!["--spawn", "2"],
            "env.id",
        ),
        (experiment(5000, "", ""), vec!["--spawn", "3"], "env.num_envs"),
        (experiment(5000, "", "num_minibatches = 7"), vec![], "num_minibatches"),
        (experiment(100, "", ""), vec![], "total_steps"),
        (experiment(5000, "", "no_such_key = 1"), vec![], "rankdeck check"),
        (experiment(5000, "", "[distributed]\nbackend = 'nccl'"), vec![], "tcp"),
    ] {
        let mut run = Run::start(&experiment, &args);
        run.end_with(2);
        let hint = run.events().into_iter().find_map(|(_, event)| match event {
            RankEvent::Error { hint, usage: true, .. } => Some(hint),
            _ => None,
        });
        assert!(hint.as_ref().is_some_and(|hint| hint.contains(key)), "{hint:?}\n{}", run.logs());
        assert!(!run.run_dir().join("checkpoints").exists());
    }
}

#[test]
fn contradictory_variables_exit_2_before_start() {
    let mut run = Run::start_with(&experiment(5000, "", ""), &[], &[("RANK", "1")]);
    run.end_with(2);
    assert!(run.logs().contains("WORLD_SIZE"), "{}", run.logs());
    assert!(matches!(&run.events()[..], [(1, RankEvent::Error { usage: true, .. })]));
    let mut run = Run::start_with(&experiment(5000, "", ""), &["--spawn", "2"], &[("WORLD_SIZE", "2")]);
    run.end_with(2);
    assert!(run.logs().contains("--spawn"), "{}", run.logs());
}

/// MESH-1, STORE-1: a process without the secret talks to whatever the ranks listen on while they join, and
/// learns and changes nothing: it floods their ports, speaks the store's words, and greets as a rank would.
#[test]
fn unauthenticated_peer_changes_only_a_counter() {
    attacked(None);
}

/// The same where a rank may open few files: it logs that, and keeps enough of them for what is its own.
#[test]
fn unauthenticated_peer_under_low_file_limit_is_harmless() {
    let reported = attacked(Some(64));
    assert!(reported.contains("64") && reported.contains("`nofile`"), "{reported}");
    assert!(!reported.contains("Too many open files"), "{reported}");
}

/// What two ranks log while a stranger connects all the time, with a limit of open files.
fn attacked(files: Option<u64>) -> String {
    const ITERATIONS: u64 = 64;
    let text = experiment(ITERATIONS * 512, "", "[checkpoint]\nevery = 2\n");
    let mut alone = Run::start(&text, &["--spawn", "2"]);
    alone.end_with(0);
    assert!(!alone.logs().contains(REJECTED), "{}", alone.logs());

    let (port, secret) = (rankdeck_testkit::free_port().to_string(), "5a".repeat(32));
    let start = |rank: &str| {
        let environment = [
            ("RANK", rank),
            ("LOCAL_RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("RANKDECK_SECRET", &secret),
        ];
        Run::start_by(&text, &[], |command| {
            command.envs(environment);
            let Some(files) = files else { return };
            let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
            // SAFETY: setrlimit may be called between fork and exec, and reads a valid rlimit.
            unsafe {
                command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
        })
    };
    let mut first = start("0");
    let mut stranger = Stranger::default();
    while stranger.calls < 200 {
        assert!(
            stranger.began.elapsed() < Duration::from_secs(60),
            "rank 0 does not listen: {}",
            first.logs()
        );
        stranger.call(&listening_ranks(&[first.pid()]));
    }
    let mut second = start("1");
    while first.is_alive() && second.is_alive() {
        let ports = listening_ranks(&[first.pid(), second.pid()]);
        for _ in 0..50 {
            stranger.call(&ports);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    first.end_with(0);
    second.end_with(0);
    let (quiet, attacked) = (fingerprints(&alone), fingerprints(&first));
    assert!(quiet.contains_key(&ITERATIONS) && attacked.contains_key(&ITERATIONS), "{quiet:?} {attacked:?}");
    for (iteration, weights) in quiet {
        let same = attacked.get(&iteration).is_none_or(|attacked| *attacked == weights);
        assert!(same, "the same weights, bit for bit, at iteration {iteration}");
    }
    let reported = first.logs();
    let lines = reported.lines().filter(|line| line.contains(REJECTED)).count();
    assert!((1..=4).contains(&lines), "counted, and not a line for each: {reported}");
    reported
}

/// A rank's warning about connections that are not of its run.
const REJECTED: &str = "from outside this run";

/// Every rank's weights by iteration. Which iterations are reported depends on the time; the last one always
/// is.
fn fingerprints(run: &Run) -> BTreeMap<u64, Vec<String>> {
    let events = run.events().into_iter();
    events
        .filter_map(|(_, event)| match event {
            RankEvent::Fingerprint { train_iter, values, .. } => Some((train_iter, values)),
            _ => None,
        })
        .collect()
}

struct Stranger {
    began: Instant,
    calls: usize,
    held: VecDeque<TcpStream>,
}

impl Default for Stranger {
    fn default() -> Stranger {
        Stranger { began: Instant::now(), calls: 0, held: VecDeque::new() }
    }
}

impl Stranger {
    /// Calls each of these ports once, and keeps up to 300 connections open.
    fn call(&mut self, ports: &[u16]) {
        for port in ports {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", *port)) else { continue };
            self.calls += 1;
            let _ = match self.calls % 4 {
                // A good beginning, as rank 1.
                0 => stream.write_all(
                    &[b"rankdk/1", &1u32.to_le_bytes()[..], &0u32.to_le_bytes(), &[7; 32], &[0; 32]].concat(),
                ),
                // A record of the store's.
                1 => stream.write_all(b"\x10\0\0\0S\x0e\0rankdeck/0/dir"),
                // torch's own store.
                2 => stream.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c, 1, 4, 0, 0, 0, 0, 0, 0, 0]),
                _ => Ok(()),
            };
            self.held.push_back(stream);
            if self.held.len() > 300 {
                self.held.pop_front();
            }
        }
    }
}

/// Waits until a process listens on this port.
pub fn until_listening(pid: u32, port: u16) {
    let started = Instant::now();
    while !listening(pid).contains(&port) {
        assert!(started.elapsed() < Duration::from_secs(60), "no process listens on {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ports on which any of these processes listens. It searches all sockets of this machine.
fn listening_ranks(pids: &[u32]) -> Vec<u16> {
    pids.iter().flat_map(|pid| listening(*pid)).collect()
}

/// Ports on which a process listens.
fn listening(pid: u32) -> Vec<u16> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
            let is_own = *state == "0A" && sockets.iter().any(|socket| socket == inode);
            u16::from_str_radix(local.rsplit(':').next()?, 16).ok().filter(|_| is_own)
        })
        .collect()
}
