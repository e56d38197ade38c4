//! Counts searches that may still kill what they find.
//!
//! Owner: the supervisor. A search looks for the run's processes on a thread of its own, by marks that the
//! next generation's ranks carry as well. So a stop is proved only when none of them is under way.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Searches that are under way.
#[derive(Clone, Default)]
pub(crate) struct Searches(Arc<(Mutex<usize>, Condvar)>);

/// One of them, until it is dropped.
pub(crate) struct Search(Searches);

impl Searches {
    /// To be called before its thread starts: the thread may take a while to.
    pub fn begin(&self) -> Search {
        self.change(|count| *count += 1);
        Search(self.clone())
    }

    /// Blocks while there is any.
    pub fn wait(&self) {
        let (count, ended) = &*self.0;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(ended.wait_while(count, |count| *count > 0));
    }

    fn change(&self, how: impl FnOnce(&mut usize)) {
        let (count, changed) = &*self.0;
        how(&mut count.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.0.change(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_wait_is_over_when_no_search_is_under_way() {
        let searches = Searches::default();
        searches.wait();
        let (first, second) = (searches.begin(), searches.begin());
        let (told, waited) = mpsc::channel();
        let other = searches.clone();
        let waiting = thread::spawn(move || {
            other.wait();
            told.send(()).unwrap();
        });
        drop(first);
        assert!(waited.recv_timeout(Duration::from_millis(50)).is_err(), "one is under way");
        thread::spawn(move || drop(second)).join().unwrap();
        waited.recv_timeout(Duration::from_secs(10)).unwrap();
        waiting.join().unwrap();
    }
}
