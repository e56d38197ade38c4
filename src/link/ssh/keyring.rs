//! Passphrases and passwords the user has typed, in memory, for the life of the process.
//!
//! Why kept at all: an upload needs a second session and a broken link a new one, at night too; and four
//! hosts with one key should ask once. Owner: this module. Invariants:
//! - RING-1: a secret is never written anywhere, never formatted, and overwritten when it is dropped.
//! - One question at a time about one secret; others who need it wait and then use the answer.

use super::{Operator, wait};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something not to be seen.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text over.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.fill(0);
        // Keeps the compiler from leaving the overwriting out.
        std::hint::black_box(&bytes);
    }
}

#[derive(Default)]
struct Ring {
    secrets: HashMap<String, Secret>,
    asking: HashSet<String>,
}

static RING: Mutex<Option<Ring>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Ring) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Ring>> = RING.lock().unwrap_or_else(PoisonError::into_inner);
    act(guard.get_or_insert_default())
}

/// The secret called `name`, when it was typed before.
pub fn get(name: &str) -> Option<Secret> {
    with(|ring| ring.secrets.get(name).cloned())
}

/// Remembers a secret that has proved right.
pub fn put(name: &str, secret: Secret) {
    with(|ring| ring.secrets.insert(name.into(), secret));
}

/// Forgets a secret that has proved wrong.
pub fn forget(name: &str) {
    with(|ring| ring.secrets.remove(name));
}

/// The right to ask for one secret; given back on drop.
#[derive(Debug)]
pub struct Turn(String);

impl Drop for Turn {
    fn drop(&mut self) {
        with(|ring| ring.asking.remove(&self.0));
    }
}

/// Waits until nobody else asks for `name`; `None` when the operator closes meanwhile. Look into the ring
/// again afterwards.
pub fn turn(name: &str, operator: &mut dyn Operator) -> Option<Turn> {
    loop {
        if with(|ring| ring.asking.insert(name.into())) {
            return Some(Turn(name.into()));
        }
        if operator.closing() {
            return None;
        }
        // People type for seconds; a look every 50 ms costs nothing and needs no second way to be woken.
        let wake: Vec<_> = operator
            .wake_fd()
            .map(|fd| wait::Interest { fd, read: true, write: false })
            .into_iter()
            .collect();
        let _ = wait::poll(&wake, Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_1_a_secret_does_not_show_itself() {
        assert_eq!(format!("{:?}", Secret::new("hunter2".into())), "(secret)");
        put("test: one", Secret::new("a".into()));
        assert_eq!(get("test: one").unwrap().text(), "a");
        forget("test: one");
        assert_eq!(get("test: one"), None);
    }
}
