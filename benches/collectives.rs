//! Time of one collective of CPU tensors on this machine, from 4 B to 64 MiB.
//!
//! `cargo bench -p rankdeck-trainer --bench collectives -- [RANKS]` starts that many ranks (2 by default) by
//! running itself again (BENCH_SIZES: bytes of the all-reduces, with commas between), and rank 0 prints a
//! table: 5th percentile, median and 95th percentile in microseconds, the CPU time of rank 0's whole process
//! per call, and bytes per rank over the median (what NCCL's tests call algorithm bandwidth). A last table
//! compares all-reduces with and without a secret, call by call in turns. On a machine that does other things
//! as well, CPU time and 5th percentile are the most useful.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a benchmark that fails must stop

use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_trainer::distributed::{BackendKind, Ddp, GroupSettings, ProcessGroup, ReduceOp};
use rankdeck_trainer::support::page::StatusPage;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

const SIZES: [usize; 11] =
    [4, 64, 1 << 10, 4 << 10, 36_620, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

fn main() {
    match std::env::var("BENCH_RANK") {
        Ok(rank) => run(rank.parse().unwrap()),
        Err(_) => start(std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2)),
    }
}

fn start(world_size: u32) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, fd) = (listener.local_addr().unwrap().port(), listener.as_raw_fd());
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .env("BENCH_RANK", rank.to_string())
                .env("BENCH_RANKS", world_size.to_string())
                .env("BENCH_PORT", port.to_string())
                .env("OMP_NUM_THREADS", "1");
            if rank == 0 {
                command.env("RANKDECK_STORE_FD", fd.to_string());
                // SAFETY: fcntl is async-signal-safe, and the descriptor stays open until the loop is done.
                unsafe {
                    command.pre_exec(move || {
                        libc::fcntl(fd, libc::F_SETFD, 0);
                        Ok(())
                    });
                }
            }
            command.spawn().unwrap()
        })
        .collect();
    drop(listener);
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}

fn number(name: &str) -> u32 {
    std::env::var(name).unwrap().parse().unwrap()
}

fn connect(settings: &GroupSettings) -> ProcessGroup {
    let page = StatusPage::new(StatusPageWriter::anonymous(settings.rank, 0).unwrap());
    ProcessGroup::connect(settings, page).unwrap_or_else(|error| panic!("{error}"))
}

fn run(rank: u32) {
    tch::set_num_threads(1);
    let settings = GroupSettings {
        rank,
        world_size: number("BENCH_RANKS"),
        local_rank: rank,
        master_addr: "127.0.0.1".into(),
        master_port: number("BENCH_PORT") as u16,
        backend: BackendKind::Tcp,
        timeout: Duration::from_secs(120),
        interface: None,
        shared_memory: std::env::var_os("BENCH_STREAMS").is_none(),
        generation: 0,
        secret: GroupSecret::from_hex(&"5e".repeat(32)),
        device: Device::Cpu,
        interrupt: None,
    };
    let group = connect(&settings);
    let print = |line: String| {
        if rank == 0 {
            println!("{line}");
        }
    };
    print(format!("{}, {} ranks", group.backend_name(), settings.world_size));
    let sizes: Vec<usize> = match std::env::var("BENCH_SIZES") {
        Ok(text) => text.split(',').map(|size| size.parse().unwrap()).collect(),
        Err(_) => SIZES.to_vec(),
    };
    each_operation(&group, &sizes, &print);
    // SAFETY: this process has one thread that reads the environment, this one.
    unsafe { std::env::remove_var("RANKDECK_STORE_FD") };
    let mut port = i64::from(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    group.broadcast_object(&mut port, 0, "bench").unwrap();
    let open = connect(&GroupSettings { master_port: port as u16, secret: None, ..settings });
    sealed_against_open(&group, &open, &sizes, &print);
    open.destroy(Duration::from_secs(30)).unwrap();
    group.destroy(Duration::from_secs(30)).unwrap();
}

fn each_operation(group: &ProcessGroup, sizes: &[usize], print: &dyn Fn(String)) {
    print(format!(
        "{:>22} {:>11} {:>12} {:>12} {:>12} {:>12} {:>9}",
        "operation", "bytes", "p5 us", "median us", "p95 us", "CPU us", "GB/s"
    ));
    for &bytes in sizes {
        let mut tensor = Tensor::ones([(bytes / 4) as i64], (Kind::Float, Device::Cpu));
        let rounds = (256 << 20) / bytes.max(1 << 18);
        let times = measure(rounds.clamp(12, 1000), || {
            group.all_reduce(&mut tensor, ReduceOp::Avg, "bench").unwrap();
        });
        print(line("all_reduce f32 avg", bytes, &times));
    }
    let mut values = [1i64; 8];
    let times = measure(1000, || group.all_reduce_i64(&mut values, ReduceOp::Max, "bench").unwrap());
    print(line("all_reduce_i64", 64, &times));
    let times = measure(1000, || group.barrier("bench").unwrap());
    print(line("barrier", 0, &times));
    let mut object = (1.0, "stop".to_owned());
    let times = measure(1000, || group.broadcast_object(&mut object, 0, "bench").unwrap());
    print(line("broadcast_object", 4096, &times));
    let network = Tensor::ones([9155], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut ddp = Ddp::new(vec![("all".into(), network)], Vec::new(), group, 25 << 20).unwrap();
    let times = measure(1000, || ddp.reduce(group).unwrap());
    print(line("ddp.reduce", 36_620, &times));
    let times = measure(1000, || {
        let _ = std::hint::black_box(ddp.clip_grad_norm(0.5));
    });
    print(line("ddp.clip_grad_norm", 36_620, &times));
    let times = measure(1000, || {
        std::hint::black_box(ddp.fingerprint());
    });
    print(line("ddp.fingerprint", 36_620, &times));
    let times = measure(1000, || drop(ddp.compare(group).unwrap()));
    print(line("ddp.compare", 36_620, &times));
}

/// The same all-reduce with and without a secret, by turns.
fn sealed_against_open(group: &ProcessGroup, open: &ProcessGroup, sizes: &[usize], print: &dyn Fn(String)) {
    print(format!("\n{} against {}: medians", group.backend_name(), open.backend_name()));
    print(format!(
        "{:>22} {:>11} {:>12} {:>12} {:>8} {:>8}",
        "operation", "bytes", "us", "us", "ratio", "CPU"
    ));
    for &bytes in sizes {
        let mut tensor = Tensor::ones([(bytes / 4) as i64], (Kind::Float, Device::Cpu));
        let rounds = ((512 << 20) / bytes.max(1 << 18)).clamp(24, 4000);
        let mut sides = [(Vec::new(), 0.0), (Vec::new(), 0.0)];
        for round in 0..2 * rounds + 8 {
            // In the order of a palindrome, so that neither side is always the first.
            let side = (round / 2 + round) % 2;
            let (before, started) = (cpu(), Instant::now());
            [group, open][side].all_reduce(&mut tensor, ReduceOp::Avg, "bench").unwrap();
            if round >= 8 {
                sides[side].0.push(started.elapsed().as_secs_f64());
                sides[side].1 += cpu() - before;
            }
        }
        let [(sealed, sealed_cpu), (plain, plain_cpu)] = sides.map(|(mut times, cpu)| {
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], cpu)
        });
        print(format!(
            "{:>22} {bytes:>11} {:>12.1} {:>12.1} {:>8.3} {:>8.3}",
            "all_reduce f32 avg",
            sealed * 1e6,
            plain * 1e6,
            sealed / plain,
            sealed_cpu / plain_cpu
        ));
    }
}

/// Sorted seconds of each call, and CPU seconds of the process per call.
fn measure(rounds: usize, mut once: impl FnMut()) -> (Vec<f64>, f64) {
    for _ in 0..3 {
        once();
    }
    let before = cpu();
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let started = Instant::now();
            once();
            started.elapsed().as_secs_f64()
        })
        .collect();
    let each = (cpu() - before) / rounds as f64;
    times.sort_by(f64::total_cmp);
    (times, each)
}

/// CPU seconds of all threads of this process so far.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn line(name: &str, bytes: usize, (times, each): &(Vec<f64>, f64)) -> String {
    let [p5, median, p95] = [5, 50, 95].map(|percent| times[times.len() * percent / 100]);
    format!(
        "{name:>22} {bytes:>11} {:>12.1} {:>12.1} {:>12.1} {:>12.1} {:>9.3}",
        p5 * 1e6,
        median * 1e6,
        p95 * 1e6,
        each * 1e6,
        bytes as f64 / median / 1e9
    )
}
