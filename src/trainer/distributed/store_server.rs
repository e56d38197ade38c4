//! Rank 0's side of the rendezvous store: one thread that greets ranks and answers them.
//!
//! Owner: rank 0's [`super::store::Store`], whose last clone ends it.
//!
//! Invariants:
//! - STORE-1: nothing is read or written for anybody who has not proved that it is a rank of this run
//!   ([`super::greeting`]).
//! - STORE-3: keys, values and connections are bounded in number and size, also for ranks.

use super::channel::{Channel, subject, wait};
use super::error::{BackendError, DistErrorKind};
use super::reception::Reception;
use super::store_wire::{Answer, RECORD, Request};
use crate::events::warn;
use std::collections::HashMap;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;

/// Most bytes of all keys and values.
const BYTES_MAX: usize = 16 << 20;
/// Counted for each key besides its own bytes.
const KEY_COST: usize = 64;
/// Connections that are kept, for each rank and besides.
const EACH: usize = 4;
const BESIDES: usize = 16;

/// The running server; dropping it ends it.
pub(super) struct StoreServer {
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Serves whoever gets in at the reception.
    ///
    /// Errors: no thread or no pipe can be made.
    pub(super) fn start(reception: Reception, world_size: u32) -> io::Result<StoreServer> {
        let (woken, wake) = io::pipe()?;
        let most = EACH * world_size as usize + BESIDES;
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            Service { reception, clients: Vec::new(), most, values: Values::default() }.run(&woken)
        })?;
        Ok(StoreServer { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The other end of the pipe becomes readable.
        self.wake.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Service {
    reception: Reception,
    clients: Vec<Channel>,
    most: usize,
    values: Values,
}

impl Service {
    fn run(mut self, woken: &PipeReader) {
        loop {
            let mut subjects = vec![subject(woken.as_raw_fd(), libc::POLLIN)];
            subjects.extend(self.clients.iter().map(|client| client.interest(true)));
            self.reception.interests(&mut subjects);
            wait(&mut subjects, self.reception.next());
            if subjects[0].revents != 0 {
                return;
            }
            // Ranks see a closed connection; they say so with the place of the store.
            let Ok(guests) = self.reception.step() else { return };
            for guest in guests {
                if self.clients.len() < self.most
                    && let Ok(client) = Channel::new(guest.rank, guest.stream, guest.keys, RECORD)
                {
                    self.clients.push(client);
                }
            }
            let values = &mut self.values;
            self.clients.retain_mut(|client| match serve(client, values) {
                Ok(()) => true,
                Err(failure) => {
                    // Ranks hang up when they leave; a forged record is nothing that a rank does.
                    if failure.kind == DistErrorKind::Forged {
                        warn(&format!("rank 0's store: {}; its connection is closed", failure.text));
                    }
                    false
                }
            });
        }
    }
}

/// Answers what has arrived. An error ends the connection.
fn serve(client: &mut Channel, values: &mut Values) -> Result<(), BackendError> {
    client.flush()?;
    client.fill()?;
    while client.is_flushed() {
        let Some(request) = client.record()? else { return Ok(()) };
        let answer = Request::decode(request).map_or(Answer::Refused, |request| values.answer(&request));
        client.consume();
        client.put([&answer.encode(), &[]])?;
        client.flush()?;
    }
    Ok(())
}

/// What is stored.
#[derive(Default)]
pub(super) struct Values {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
}

impl Values {
    pub(super) fn answer(&mut self, request: &Request<'_>) -> Answer {
        match request {
            Request::Get(key) => {
                self.values.get(*key).map_or(Answer::Absent, |value| Answer::Value(value.clone()))
            }
            Request::Set(key, value) => self.set(key, value.to_vec(), Vec::new()),
            Request::Add(key, delta) => {
                let number = match self.values.get(*key).map(|value| <[u8; 8]>::try_from(&value[..])) {
                    None => 0,
                    Some(Ok(bytes)) => i64::from_le_bytes(bytes),
                    Some(Err(_)) => return Answer::Refused,
                };
                // Reading a number that nobody has added to yet stores nothing.
                if *delta == 0 {
                    return Answer::Value(number.to_le_bytes().to_vec());
                }
                let sum = number.wrapping_add(*delta).to_le_bytes().to_vec();
                self.set(key, sum.clone(), sum)
            }
        }
    }

    fn set(&mut self, key: &str, value: Vec<u8>, answer: Vec<u8>) -> Answer {
        let before = self.values.get(key).map_or(0, |old| KEY_COST + key.len() + old.len());
        let bytes = self.bytes - before + KEY_COST + key.len() + value.len();
        if bytes > BYTES_MAX {
            return Answer::Refused;
        }
        self.bytes = bytes;
        self.values.insert(key.into(), value);
        Answer::Value(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_and_values_replaced() {
        let mut values = Values::default();
        let number = |n: i64| Answer::Value(n.to_le_bytes().to_vec());
        assert_eq!(values.answer(&Request::Add("n", 0)), number(0));
        assert_eq!(values.answer(&Request::Get("n")), Answer::Absent);
        assert_eq!(values.answer(&Request::Add("n", 3)), number(3));
        assert_eq!(values.answer(&Request::Add("n", -1)), number(2));
        assert_eq!(values.answer(&Request::Set("t", b"x")), Answer::Value(vec![]));
        assert_eq!(values.answer(&Request::Add("t", 1)), Answer::Refused);
        assert_eq!(values.answer(&Request::Set("t", b"yy")), Answer::Value(vec![]));
        assert_eq!(values.answer(&Request::Get("t")), Answer::Value(b"yy".to_vec()));
    }

    #[test]
    fn store_3_it_takes_no_more_than_its_bound() {
        let mut values = Values::default();
        let value = [0; 8 << 10];
        let taken =
            (0..).take_while(|i| values.answer(&Request::Set(&i.to_string(), &value)) != Answer::Refused);
        assert!((1000..2100).contains(&taken.count()));
        assert_eq!(values.answer(&Request::Set("0", b"")), Answer::Value(vec![]), "smaller is welcome");
    }
}
