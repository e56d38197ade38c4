//! Time of one write to the status page: a phase, and a collective entered and left, on a page in a file as
//! an agent maps it.
//!
//! `cargo bench --bench page` prints nanoseconds of CPU time per publication. `benches/overhead.py trainer`
//! counts how many a rank makes per second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a benchmark has nobody to report to

use rankdeck_proto::message::Phase;
use rankdeck_proto::status_page::{Dtype, Entry, Op, WORLD, Writer, tag};

const ROUNDS: u32 = 1_000_000;

fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() {
    let path = std::env::temp_dir().join(format!("rankdeck-page-{}", std::process::id()));
    let mut page = Writer::create(&path, 0, 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    page.group("world", 2);
    let entry = Entry {
        op: Op::AllReduce,
        tag: tag("gradients"),
        count: 9155,
        bytes: 36_620,
        dtype: Dtype::F32,
        root: None,
        call_site: 7,
    };
    let before = cpu_ns();
    for round in 0..ROUNDS {
        page.phase(if round % 2 == 0 { Phase::Rollout } else { Phase::Learn });
    }
    let phases = (cpu_ns() - before) / f64::from(ROUNDS);
    let before = cpu_ns();
    for _ in 0..ROUNDS {
        page.enter_in(WORLD, entry);
        page.leave();
    }
    let collectives = (cpu_ns() - before) / f64::from(ROUNDS) / 2.0;
    println!("one publication: {phases:.0} ns (phase), {collectives:.0} ns (collective entered or left)");
}
