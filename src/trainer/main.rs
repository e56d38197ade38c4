//! `rankdeck-trainer`: one rank of a run, or with `--spawn` several on this host.

use clap::Parser;
use rankdeck_trainer::startup::identity::Flags;
use std::io::Write;

fn main() {
    let code = match Flags::try_parse() {
        Ok(flags) => rankdeck_trainer::main(&flags),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { 2 } else { 0 }
        }
    };
    // Without libtorch's destructors: they take 0.1 s, and those of CUDA run concurrently with threads that use it.
    let _ = std::io::stdout().flush();
    // SAFETY: a null pointer means all streams of C, in which NCCL's messages may still be; _exit takes an
    // integer. Whatever had to be closed was closed by what main called.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(i32::from(code))
    }
}
