//! The console must not need libtorch, even when built beside the trainer.

use std::process::Command;

fn needed(program: &str) -> Vec<String> {
    let output =
        Command::new("readelf").args(["-d", program]).output().expect("readelf (binutils) is installed");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}

fn of_torch(name: &str) -> bool {
    ["torch", "libc10", "cuda", "nccl", "gomp", "stdc++"].iter().any(|part| name.contains(part))
}

#[test]
fn the_console_needs_no_torch_library() {
    let console = needed(env!("CARGO_BIN_EXE_rankdeck"));
    assert!(console.iter().any(|name| name.starts_with("libc.so")), "{console:?}");
    assert!(!console.iter().any(|name| of_torch(name)), "{console:?}");
}

#[test]
fn this_test_needs_libtorch_but_no_cuda_library() {
    let program = std::env::current_exe().unwrap();
    let own = needed(program.to_str().unwrap());
    assert!(own.iter().any(|name| name.contains("torch_cpu")), "{own:?}");
    assert!(!own.iter().any(|name| name.contains("cuda") || name.contains("nccl")), "{own:?}");
}
