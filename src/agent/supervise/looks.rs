//! Looks at the processes of the host that several searches share.
//!
//! Owner: the supervisor. When a generation ends, each of its ranks is searched for at the same moment, and a
//! look reads every environment of the host.
//!
//! - LOOKS-1: a look that is shared began after each of its searches asked for it: "nothing is left" is never
//!   said of an older one.

use crate::supervise::sweep::{FoundProcess, Processes, Scope};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct SharedLooks(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// Looks that have begun, counted.
    begun: u64,
    /// The last of them is under way.
    looking: bool,
    /// Searches that wait for a look.
    waiting: usize,
    /// The last look that has ended and its number, while anybody waits.
    last: Option<(u64, Arc<Processes>)>,
}

impl SharedLooks {
    /// What a look that begins now finds in scope. Blocks.
    pub fn find(&self, scope: &Scope) -> Vec<FoundProcess> {
        self.look(Processes::look).find(scope)
    }

    fn look(&self, read: impl Fn() -> Processes) -> Arc<Processes> {
        let (_, changed) = &*self.0;
        let mut state = self.lock();
        let wanted = state.begun + 1;
        state.waiting += 1;
        let processes = loop {
            if let Some((_, last)) = state.last.as_ref().filter(|(number, _)| *number >= wanted) {
                break Arc::clone(last);
            }
            if state.looking {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.looking = true;
            state.begun += 1;
            drop(state);
            let processes = Arc::new(read());
            state = self.lock();
            state.looking = false;
            state.last = Some((state.begun, processes));
            changed.notify_all();
        };
        state.waiting -= 1;
        if state.waiting == 0 {
            state.last = None;
        }
        processes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn looks_1_searches_share_the_look_that_begins_after_all_of_them_have_asked() {
        let looks = SharedLooks::default();
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let goes_on = Arc::new(Mutex::new(goes_on));
        let ask = || {
            let (looks, begun, goes_on) = (looks.clone(), begun.clone(), goes_on.clone());
            thread::spawn(move || {
                looks.look(|| {
                    begun.send(()).unwrap();
                    goes_on.lock().unwrap().recv().unwrap();
                    Processes::look()
                })
            })
        };
        let first = ask();
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        let others: Vec<_> = (0..7).map(|_| ask()).collect();
        let deadline = Instant::now() + Duration::from_secs(10);
        while looks.lock().waiting < 8 {
            assert!(Instant::now() < deadline, "all have asked");
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        begins.recv_timeout(Duration::from_secs(10)).expect("the others need a look of their own");
        go_on.send(()).unwrap();
        let first = first.join().unwrap();
        let others: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
        assert!(others.iter().all(|other| Arc::ptr_eq(other, &others[0]) && !Arc::ptr_eq(other, &first)));
        assert!(begins.try_recv().is_err(), "two looks are enough");
        assert!(looks.lock().last.is_none(), "nothing is kept");
    }
}
