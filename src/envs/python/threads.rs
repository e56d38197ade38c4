//! Threads of a worker.

use rankdeck_types::experiment::Env;

/// `env.worker_threads`. Without it, Atari emulators take this rank's share of the cores, since the trainer
/// waits while they compute; others have what the rank has.
pub(super) fn of_worker(env: &Env) -> u32 {
    let number = |key: &str| std::env::var(key).ok()?.parse::<usize>().ok();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    env.worker_threads.unwrap_or_else(|| share(env.looks_atari(), cores, number))
}

fn share(emulators: bool, cores: usize, number: impl Fn(&str) -> Option<usize>) -> u32 {
    let threads = if emulators {
        cores / number("LOCAL_WORLD_SIZE").unwrap_or(1).max(1)
    } else {
        number("OMP_NUM_THREADS").unwrap_or(1)
    };
    threads.clamp(1, 4096) as u32
}

/// `OMP_NUM_THREADS` of a worker with so many threads. Emulators have threads of their own; those of NumPy's
/// would only spin beside them.
pub(super) fn of_numpy(env: &Env, threads: u32) -> u32 {
    if env.looks_atari() { 1 } else { threads }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulators_share_the_cores_of_the_host_with_those_of_its_other_ranks() {
        let local = |ranks: Option<usize>| {
            move |key: &str| match key {
                "LOCAL_WORLD_SIZE" => ranks,
                _ => Some(3),
            }
        };
        assert_eq!(share(true, 16, local(None)), 16);
        assert_eq!(share(true, 16, local(Some(4))), 4);
        assert_eq!(share(true, 2, local(Some(8))), 1);
        assert_eq!(share(false, 16, local(Some(1))), 3, "as many as the rank");
    }

    #[test]
    fn numpy_has_one_thread_beside_emulators() {
        for (id, wanted) in [("ALE/Pong-v5", 1), ("HalfCheetah-v5", 3)] {
            assert_eq!(of_numpy(&Env::new(id, 1), 3), wanted, "{id}");
        }
    }
}
