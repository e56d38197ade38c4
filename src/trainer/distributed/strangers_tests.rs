//! What strangers can do at a port where ranks meet, and between two ranks: nothing that counts.

use super::*;
use crate::distributed::channel::Channel;
use crate::distributed::error::DistErrorKind;
use crate::distributed::greeting::{self, PATIENCE};
use rankdeck_proto::secret::GroupSecret;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

const RANKS: u32 = 4;

fn credentials(byte: u8) -> Credentials {
    Credentials::new(GroupSecret::from_hex(&format!("{byte:02x}").repeat(32)).as_ref(), "test")
}

/// Runs a reception as rank 0 while `body` talks to it; who got in.
fn receive(body: impl FnOnce(SocketAddr)) -> (Vec<u32>, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut reception = Reception::new(listener, credentials(7), 0, RANKS).unwrap();
    let over = AtomicBool::new(false);
    let over = &over;
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let mut ranks = Vec::new();
            while !over.load(Ordering::SeqCst) || !reception.greetings.is_empty() {
                ranks.extend(reception.step().unwrap().iter().map(|guest| guest.rank));
                assert!(reception.greetings.len() <= reception.most);
                let mut subjects = Vec::new();
                reception.interests(&mut subjects);
                let soon = Instant::now() + Duration::from_millis(20);
                crate::distributed::channel::wait(&mut subjects, Some(soon));
            }
            (ranks, reception.strangers.count)
        });
        body(address);
        over.store(true, Ordering::SeqCst);
        serving.join().unwrap()
    })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// As a rank does: again after every failure but a wrong proof.
fn persistent(address: SocketAddr, byte: u8, rank: u32) -> std::io::Result<TcpStream> {
    loop {
        match greeting::call(address, &credentials(byte), rank, 0, soon()) {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return Err(error),
            Err(_) => {}
        }
    }
}

#[test]
fn greet_1_only_who_knows_the_secret_gets_in() {
    let (ranks, strangers) = receive(|address| {
        persistent(address, 7, 3).unwrap();
        let refused = persistent(address, 8, 2).unwrap_err();
        assert!(refused.to_string().contains("does not know this run's secret"), "{refused}");
        let elsewhere = Credentials::new(GroupSecret::from_hex(&"07".repeat(32)).as_ref(), "other scope");
        assert!(greeting::call(address, &elsewhere, 2, 0, soon()).is_err(), "another scope");
        assert!(greeting::call(address, &credentials(7), 2, 1, soon()).is_err(), "another rank was wanted");
    });
    assert_eq!((ranks, strangers), (vec![3], 3));
}

/// GREET-1: everything that one greeting said, said again.
#[test]
fn a_greeting_that_was_overheard_opens_nothing() {
    let overheard = std::sync::Mutex::new(Vec::new());
    let (ranks, strangers) = receive(|address| {
        // A relay that writes down what the caller says.
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = relay.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut caller, mut there) =
                    (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
                for (from_caller, length) in [(true, 48), (false, 64), (true, 32), (false, 32)] {
                    let mut bytes = vec![0; length];
                    let (from, to) =
                        if from_caller { (&mut caller, &mut there) } else { (&mut there, &mut caller) };
                    from.read_exact(&mut bytes).unwrap();
                    to.write_all(&bytes).unwrap();
                    if from_caller {
                        overheard.lock().unwrap().extend(bytes);
                    }
                }
            });
            greeting::call(place, &credentials(7), 1, 0, soon()).unwrap();
        });
        let mut again = TcpStream::connect(address).unwrap();
        again.write_all(&overheard.lock().unwrap()).unwrap();
        let mut rest = Vec::new();
        let _ = again.read_to_end(&mut rest);
        assert_eq!(rest.len(), 64, "the listener's own challenge, then nothing");
    });
    assert_eq!((ranks, strangers), (vec![1], 1));
}

/// GREET-2: a listener's answer does not serve as a caller's.
#[test]
fn a_proof_that_is_sent_back_proves_nothing() {
    let (ranks, strangers) = receive(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        let hello = [b"rankdk/1", &3u32.to_le_bytes()[..], &0u32.to_le_bytes(), &[9; 32]].concat();
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 64];
        stream.read_exact(&mut answer).unwrap();
        stream.write_all(&answer[32..]).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    });
    assert_eq!((ranks, strangers), (vec![], 1));
}

/// RECEPTION-1, GREET-3: garbage, silence, drops of bytes and a flood, and ranks get in all the same.
#[test]
fn strangers_keep_no_rank_out() {
    let begun = Instant::now();
    let (mut ranks, strangers) = receive(|address| {
        // Silent ones that stay, more than are kept.
        let silent: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(address).ok()).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // One that says a byte at a time.
            scope.spawn(|| {
                let mut slow = TcpStream::connect(address).unwrap();
                while !over.load(Ordering::SeqCst) {
                    let _ = slow.write_all(b"r");
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            scope.spawn(|| {
                for round in 0..600 {
                    let Ok(mut stream) = TcpStream::connect(address) else { continue };
                    let garbage: Vec<u8> = (0..round % 97).map(|i| (i * 31 + round) as u8).collect();
                    let _ = stream.write_all(&garbage);
                }
            });
            let ranks: Vec<_> =
                (1..RANKS).map(|rank| scope.spawn(move || persistent(address, 7, rank).unwrap())).collect();
            let streams: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            over.store(true, Ordering::SeqCst);
            drop(streams);
        });
        drop(silent);
    });
    ranks.sort_unstable();
    ranks.dedup();
    assert_eq!(ranks, [1, 2, 3]);
    assert!(strangers >= 500, "{strangers}");
    assert!(
        begun.elapsed() < 12 * PATIENCE,
        "one stranger's patience after the other: {:?}",
        begun.elapsed()
    );
}

/// Two ends of a connection with somebody between them, who does this with each record: `None` drops it.
fn tampered(tamper: impl Fn(usize, Vec<u8>) -> Vec<Vec<u8>> + Send) -> Result<Vec<Vec<u8>>, DistErrorKind> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut reception = Reception::new(listener, credentials(7), 0, 2).unwrap();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = relay.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut caller, mut there) = (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
            for (from_caller, length) in [(true, 48), (false, 64), (true, 32), (false, 32)] {
                let mut bytes = vec![0; length];
                let (from, to) =
                    if from_caller { (&mut caller, &mut there) } else { (&mut there, &mut caller) };
                from.read_exact(&mut bytes).unwrap();
                to.write_all(&bytes).unwrap();
            }
            for number in 0.. {
                let mut record = vec![0; 4 + 16 + 100];
                if caller.read_exact(&mut record).is_err() {
                    return;
                }
                for record in tamper(number, record) {
                    let _ = there.write_all(&record);
                }
            }
        });
        let sending = scope.spawn(move || {
            let (stream, keys) = greeting::call(place, &credentials(7), 1, 0, soon()).unwrap();
            let mut channel = Channel::new(0, stream, keys, 100).unwrap();
            for byte in 0..3u8 {
                channel.put([&[byte; 60], &[byte; 40]]).unwrap();
                while !channel.is_flushed() {
                    channel.flush().unwrap();
                }
            }
        });
        let guest = loop {
            if let Some(guest) = reception.step().unwrap().pop() {
                break guest;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let mut channel = Channel::new(1, guest.stream, guest.keys, 100).unwrap();
        sending.join().unwrap();
        let mut records = Vec::new();
        while records.len() < 3 {
            channel.fill().map_err(|failure| failure.kind)?;
            while let Some(record) = channel.record().map_err(|failure| failure.kind)? {
                records.push(record.to_vec());
                channel.consume();
            }
        }
        Ok(records)
    })
}

/// SEAL-1, CHANNEL-1, CHANNEL-2: somebody between two ranks can end their connection, and change nothing.
#[test]
fn nothing_between_two_ranks_can_be_changed() {
    let honest = tampered(|_, record| vec![record]).unwrap();
    assert_eq!(honest, [vec![0; 100], vec![1; 100], vec![2; 100]]);
    let again = std::sync::Mutex::new(Vec::new());
    type Tamper<'a> = Box<dyn Fn(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'a>;
    let attacks: Vec<(&str, Tamper<'_>)> = vec![
        (
            "one bit",
            Box::new(|number, mut record| {
                record[50] ^= u8::from(number == 1);
                vec![record]
            }),
        ),
        (
            "repeated",
            Box::new(|number, record| if number == 0 { vec![record.clone(), record] } else { vec![record] }),
        ),
        ("left out", Box::new(|number, record| if number == 1 { vec![] } else { vec![record] })),
        (
            "swapped",
            Box::new(|number, record| {
                if number == 0 {
                    again.lock().unwrap().push(record);
                    vec![]
                } else {
                    let held = again.lock().unwrap().pop();
                    [Some(record), held].into_iter().flatten().collect()
                }
            }),
        ),
        (
            "shorter",
            Box::new(|_, mut record| {
                record[0] = 99;
                vec![record]
            }),
        ),
        (
            "4 GiB",
            Box::new(|_, mut record| {
                record[..4].fill(0xff);
                vec![record]
            }),
        ),
    ];
    for (name, attack) in attacks {
        assert_eq!(tampered(attack), Err(DistErrorKind::Forged), "{name}");
    }
    let cut = tampered(|number, record| if number < 2 { vec![record] } else { vec![record[..70].to_vec()] });
    assert_eq!(cut, Err(DistErrorKind::Connection), "cut off");
}
