//! An attacker between two ranks, and one at the place where they meet: refused, named on the rank that
//! sees it, and the weights are as ever.

use crate::harness::{RankError, Run, errors, experiment, kill};
use rankdeck_proto::message::{FailureKind, RankEvent};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A record on its way.
struct Passing {
    /// To or from rank 0's store, rather than between two ranks.
    store: bool,
    /// The rank that sent it, the one that gets it, and how many that has got before on this connection.
    from: u32,
    to: u32,
    number: usize,
    bytes: Vec<u8>,
    /// What went the other way last.
    other: Vec<u8>,
}

/// What is passed on instead of a record, and whether the connection ends then.
type Forward = (Vec<Vec<u8>>, bool);

/// What is done to one record.
type Attack = fn(Passing) -> Forward;

/// What is done to every record.
type Tamper = dyn Fn(Passing) -> Forward + Send + Sync;

fn untouched(record: Passing) -> Forward {
    (vec![record.bytes], false)
}

/// The library that leads connections astray; `None` has been noted as a skip.
fn detour(folder: &std::path::Path) -> Option<PathBuf> {
    let library = folder.join("between.so");
    let source = rankdeck_testkit::repository("tests/trainer/between.c");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    match compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status() {
        Ok(status) => {
            assert!(status.success());
            Some(library)
        }
        Err(_) => {
            rankdeck_testkit::skipped("no C compiler");
            None
        }
    }
}

/// Sits between the ranks for as long as the test process lives; its port.
fn between(master: u16, tamper: Arc<Tamper>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let tamper = Arc::clone(&tamper);
            std::thread::spawn(move || relay(caller, master, &tamper));
        }
    });
    port
}

fn relay(mut caller: TcpStream, master: u16, tamper: &Arc<Tamper>) -> Option<()> {
    let mut meant = [0; 2];
    caller.read_exact(&mut meant).ok()?;
    let meant = u16::from_be_bytes(meant);
    let mut there = TcpStream::connect(("127.0.0.1", meant)).ok()?;
    let mut ranks = [0, 0];
    for (from_caller, length) in [(true, 48), (false, 64), (true, 32), (false, 32)] {
        let mut bytes = vec![0; length];
        let (from, to) = if from_caller { (&mut caller, &mut there) } else { (&mut there, &mut caller) };
        from.read_exact(&mut bytes).ok()?;
        to.write_all(&bytes).ok()?;
        if length == 48 {
            ranks = [8, 12].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
        }
    }
    let latest = [Arc::new(std::sync::Mutex::new(Vec::new())), Arc::default()];
    for (way, from, to) in [(0, &caller, &there), (1, &there, &caller)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let (own, other) = (Arc::clone(&latest[way]), Arc::clone(&latest[1 - way]));
        let (tamper, sender, receiver) = (Arc::clone(tamper), ranks[way], ranks[1 - way]);
        std::thread::spawn(move || {
            for number in 0.. {
                let Some(bytes) = record(&mut from) else { break };
                own.lock().unwrap().clone_from(&bytes);
                let other = other.lock().unwrap().clone();
                let (records, cut) = tamper(Passing {
                    store: meant == master,
                    from: sender,
                    to: receiver,
                    number,
                    bytes,
                    other,
                });
                if records.iter().any(|bytes| to.write_all(bytes).is_err()) || cut {
                    break;
                }
            }
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Some(())
}

/// A length, that many bytes, and their tag.
fn record(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).ok()?;
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes.resize(4 + length + 16, 0);
    from.read_exact(&mut bytes[4..]).ok()?;
    Some(bytes)
}

/// Starts two ranks that know each other by a secret.
fn ranks(text: &str, master: u16, more: &[(&str, &str)]) -> [Run; 2] {
    ["0", "1"].map(|rank| rank_of(text, master, rank, &"5a".repeat(32), more))
}

fn rank_of(text: &str, master: u16, rank: &str, secret: &str, more: &[(&str, &str)]) -> Run {
    let master = master.to_string();
    let own = [
        ("RANK", rank),
        ("LOCAL_RANK", rank),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &master),
        ("RANKDECK_SECRET", secret),
    ];
    Run::start_with(text, &[], &[&own[..], more].concat())
}

fn fingerprints(run: &Run) -> BTreeMap<u64, Vec<String>> {
    let events = run.events().into_iter();
    events
        .filter_map(|(_, event)| match event {
            RankEvent::Fingerprint { train_iter, values, .. } => Some((train_iter, values)),
            _ => None,
        })
        .collect()
}

/// The error that ended a rank.
fn error(run: &Run) -> RankError {
    let error = errors(&run.events()).into_iter().next();
    error.unwrap_or_else(|| panic!("no error\n{}", run.logs()))
}

const ITERATIONS: u64 = 48;

fn text() -> String {
    experiment(ITERATIONS * 512, "", "[distributed]\ntimeout_s = 20\nshared_memory = false")
}

/// Runs two ranks with an attacker between them; both, once they have ended.
fn attacked(tamper: Arc<Tamper>) -> Option<[Run; 2]> {
    let folder = tempfile::tempdir().unwrap();
    let library = detour(folder.path())?;
    let master = rankdeck_testkit::free_port();
    let port = between(master, tamper).to_string();
    let mut runs = ranks(&text(), master, &[("LD_PRELOAD", library.to_str().unwrap()), ("BETWEEN", &port)]);
    for run in &mut runs {
        run.wait();
        run.nothing_left();
    }
    Some(runs)
}

/// SEAL-1: between two ranks that train.
#[test]
fn seal_1_tampered_message_is_rejected_by_receiver() {
    let mut quiet = ranks(&text(), rankdeck_testkit::free_port(), &[]);
    quiet.iter_mut().for_each(|run| run.end_with(0));
    let weights = fingerprints(&quiet[0]);
    assert!(weights.contains_key(&ITERATIONS), "{weights:?}");
    let same = |run: &Run, name: &str| {
        for (iteration, found) in fingerprints(run) {
            assert!(
                weights.get(&iteration).is_none_or(|weights| *weights == found),
                "{name}: iteration {iteration}"
            );
        }
    };

    // Later, but all of it: nothing is refused.
    let Some(late) = attacked(Arc::new(|record: Passing| {
        std::thread::sleep(Duration::from_millis(1));
        untouched(record)
    })) else {
        return;
    };
    for run in &late {
        assert!(
            run.logs().contains("finished") || fingerprints(&late[0]).contains_key(&ITERATIONS),
            "{}",
            run.logs()
        );
    }
    assert_eq!(fingerprints(&late[0]).get(&ITERATIONS), weights.get(&ITERATIONS), "late: {}", late[0].logs());

    // In the midst of training; earlier ones are those of its beginning.
    const AT: usize = 40;
    let attacks: [(&str, Attack); 5] = [
        ("one bit", |mut record| {
            let middle = record.bytes.len() / 2;
            record.bytes[middle] ^= 4;
            untouched(record)
        }),
        ("repeated", |record| (vec![record.bytes.clone(), record.bytes], false)),
        ("sent back", |record| (vec![record.other], false)),
        ("shorter", |mut record| {
            let short = u32::from_le_bytes(record.bytes[..4].try_into().unwrap()) - 1;
            record.bytes[..4].copy_from_slice(&short.to_le_bytes());
            untouched(record)
        }),
        ("cut off", |record| (vec![record.bytes[..record.bytes.len() / 2].to_vec()], true)),
    ];
    for (name, attack) in attacks {
        for victim in [0, 1] {
            let runs = attacked(Arc::new(move |record: Passing| {
                let due = !record.store && record.to == victim && record.number == AT;
                if due { attack(record) } else { untouched(record) }
            }));
            let runs = runs.unwrap();
            let (own, peer) = (&runs[victim as usize], 1 - victim);
            let found = error(own);
            // A forged record has no kind of its own.
            let kind = if name == "cut off" { FailureKind::Connection } else { FailureKind::Other };
            assert_eq!(found.kind, kind, "{name} to rank {victim}: {found:?}");
            for part in [format!("rank {victim} of 2: collective "), format!("rank {peer}")] {
                assert!(found.message.contains(&part), "{name}: {part} in {found:?}");
            }
            assert!(!found.hint.is_empty(), "{found:?}");
            let other = error(&runs[peer as usize]);
            assert!(other.message.contains(&format!("rank {victim}: ")), "{name}: the other end: {other:?}");
            assert!(!fingerprints(&runs[0]).contains_key(&ITERATIONS), "{name}: it ended there");
            same(&runs[0], name);
        }
    }
}

/// STORE-1: between a rank and the store at which they meet.
#[test]
fn store_1_tampered_store_message_is_rejected() {
    for victim in [1, 0] {
        let runs = attacked(Arc::new(move |mut record: Passing| {
            // Rank 0 talks to its own store in the same way.
            if record.store && record.from != victim && record.to == victim && record.number == 2 {
                let last = record.bytes.len() - 17;
                record.bytes[last] ^= 1;
            }
            untouched(record)
        }));
        let Some(runs) = runs else { return };
        let found = error(&runs[1]);
        assert!(found.message.contains("127.0.0.1:") && !found.hint.is_empty(), "{found:?}");
        if victim == 1 {
            assert_eq!(found.kind, FailureKind::Other, "{found:?}");
        } else {
            let logs = runs[0].logs();
            assert!(logs.lines().any(|line| line.starts_with("rank 0's store: ")), "{logs}");
        }
        assert_eq!(error(&runs[0]).kind, FailureKind::Rendezvous, "{:?}", error(&runs[0]));
        assert!(fingerprints(&runs[0]).is_empty(), "nothing was learned");
    }
}

/// Another process listens on MASTER_PORT before rank 0 does.
#[test]
fn taken_port_is_named_with_a_hint() {
    let text = text();
    let hold = |answers: fn(TcpStream)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        std::thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                if watched.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::spawn(move || answers(caller));
            }
        });
        (port, over)
    };
    let garbage: fn(TcpStream) = |mut caller| {
        let _ = caller.write_all(&[0x5a; 4096]);
        let _ = caller.read(&mut [0; 4096]);
    };
    let silence: fn(TcpStream) = |mut caller| {
        let _ = caller.read_to_end(&mut Vec::new());
    };
    // A forged server has no kind of its own.
    let refused = FailureKind::Other;
    let cases = [("garbage", garbage, refused), ("silence", silence, FailureKind::Rendezvous)];
    for (name, answers, expected) in cases {
        let (port, over) = hold(answers);
        let mut runs = ranks(&text, port, &[]);
        runs.iter_mut().for_each(|run| run.end_with(1));
        taken(name, &runs, port, expected);
        over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", port));
    }

    // One that speaks as rank 0 does, without the secret.
    let port = rankdeck_testkit::free_port();
    let thief = rank_of(&text, port, "0", &"6b".repeat(32), &[]);
    crate::group::until_listening(thief.pid(), port);
    let mut runs = ranks(&text, port, &[]);
    runs.iter_mut().for_each(|run| run.end_with(1));
    taken("another secret", &runs, port, refused);
    kill(thief.pid(), libc::SIGKILL);
}

fn taken(name: &str, runs: &[Run; 2], port: u16, expected: FailureKind) {
    let [server, client] = [0, 1].map(|rank| error(&runs[rank]));
    assert_eq!((server.kind, client.kind), (FailureKind::PortTaken, expected), "{name}: {client:?}");
    assert!(server.message.contains(&port.to_string()), "{name}: {server:?}");
    assert!(server.hint.contains("ss -ltnp"), "{name}: {server:?}");
    assert!(client.message.contains(&format!("127.0.0.1:{port}")), "{name}: {client:?}");
    for found in [server, client] {
        assert!(found.hint.contains("MASTER_PORT"), "{name}: {found:?}");
    }
    assert!(runs.iter().all(|run| fingerprints(run).is_empty()), "{name}: nothing was learned");
}
