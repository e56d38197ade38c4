//! Fuzzes everything that a rank parses from other ranks or from files (rankdeck_testkit::fuzz).

use super::auth_listener::{Credentials, Handshake, HandshakeStep};
use super::channel::{Channel, SessionKeys};
use super::store::{StoreAnswer, StoreRequest, StoreValues};
use crate::checkpoint::TensorEntry;
use crate::checkpoint::{self, Checkpoint};
use crate::support::state::Array;
use rankdeck_testkit::fuzz::{Counting, fuzz};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

#[test]
fn fuzz_store_requests() {
    let requests =
        [StoreRequest::Set("a/b", b"value"), StoreRequest::Get("a/b"), StoreRequest::Add("joined", 1)];
    let seeds = requests.iter().map(StoreRequest::encode).chain([StoreAnswer::Value(b"x".to_vec()).encode()]);
    let values = std::cell::RefCell::new(StoreValues::default());
    fuzz("store", seeds.collect(), 32 * MIB, |bytes| {
        let _ = StoreAnswer::decode(bytes);
        if let Some(request) = StoreRequest::decode(bytes) {
            assert_eq!(StoreRequest::decode(&request.encode()), Some(request.clone()));
            let answer = values.borrow_mut().answer(&request);
            assert_eq!(StoreAnswer::decode(&answer.encode()), Some(answer));
        }
    });
}

/// No input passes the handshake.
#[test]
fn fuzz_handshakes() {
    let hello = [b"rankdk/1", &1u32.to_le_bytes()[..], &0u32.to_le_bytes(), &[9; 32], &[3; 32]].concat();
    let credentials = Credentials::new(None, "fuzz");
    fuzz("greeting", vec![hello], MIB, |bytes| {
        let (mut caller, here) = pair();
        let _ = caller.write_all(&bytes[..bytes.len().min(4096)]);
        let _ = caller.shutdown(std::net::Shutdown::Write);
        let mut greeting = Some(Handshake::new(here).unwrap());
        while let Some(pending) = greeting.take() {
            let (rest, step) = pending.step(&credentials, 0);
            assert!(!matches!(step, HandshakeStep::Verified(_)));
            greeting = rest;
        }
        drop(caller);
    });
}

#[test]
fn fuzz_records_between_ranks() {
    let record = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
    let seeds = vec![record(b"a few bytes"), [record(b""), record(&[7; 64])].concat()];
    fuzz("channel", seeds, MIB, |bytes| {
        let (mut peer, here) = pair();
        let keys = SessionKeys { sends: None, receives: None };
        let mut channel = Channel::new(1, here, keys, 4096).unwrap();
        let _ = peer.write_all(&bytes[..bytes.len().min(16 << 10)]);
        drop(peer);
        while channel.fill().is_ok() {
            match channel.record() {
                Ok(Some(record)) => assert!(record.len() <= 4096),
                Ok(None) => continue,
                Err(_) => return,
            }
            channel.consume();
        }
    });
}

#[test]
fn fuzz_checkpoints() {
    use sha2::{Digest, Sha256};
    const HASH: usize = 32;
    fuzz("checkpoints", vec![checkpoint::tests::sample().encode().unwrap()], 64 * MIB, |bytes| {
        let _ = Checkpoint::decode(bytes);
        // Behind the right checksum, so that more than the checksum is tried.
        let body = &bytes[..bytes.len().saturating_sub(HASH)];
        let _ = Checkpoint::decode(&[body, &Sha256::digest(body)].concat());
    });
}

/// Names of arrays are the algorithm's own, but nothing in the format may depend on that.
#[test]
fn fuzz_names_in_safetensors() {
    fuzz("safetensors", vec![b"actor.0.weight".to_vec(), "\"é\n".into()], MIB, |bytes| {
        let bytes = &bytes[..bytes.len().min(4096)];
        let name = String::from_utf8_lossy(bytes);
        let array = Array { name: name.to_string(), shape: vec![1], values: vec![0.5] };
        let file =
            crate::checkpoint::encode_safetensors(&[(&*name, TensorEntry::F32(&array))], &BTreeMap::new())
                .unwrap();
        let (head, rest) = file.split_first_chunk::<8>().unwrap();
        let header = &rest[..u64::from_le_bytes(*head) as usize];
        let header: serde_json::Value = serde_json::from_slice(header).unwrap();
        assert_eq!(header[&*name]["shape"], serde_json::json!([1]));
    });
}
