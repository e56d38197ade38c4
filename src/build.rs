//! Build script: sets the version with its commit. Release builds keep function names but no line tables,
//! since the binary is copied to every host.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    let released = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if released {
        println!("cargo:rustc-link-arg-bin=rankdeck=-Wl,--strip-debug");
    }
    println!("cargo:rerun-if-env-changed=RANKDECK_COMMIT");
    // A debug build would be rebuilt after every commit.
    let build =
        if released { commit().map(|commit| format!(" ({commit})")) } else { Some(" (debug)".into()) };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=RANKDECK_VERSION={version}{}", build.unwrap_or_default());
}

/// Returns the commit that is built, from the environment, `cargo package` or Git; a tarball may have none.
fn commit() -> Option<String> {
    let short = |text: &str| {
        let text: String = text.trim().chars().take(7).collect();
        (text.len() == 7 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
    };
    if let Ok(given) = std::env::var("RANKDECK_COMMIT") {
        return short(&given);
    }
    if let Ok(packaged) = std::fs::read_to_string(".cargo_vcs_info.json") {
        return short(packaged.split("\"sha1\": \"").nth(1)?);
    }
    // A Git repository further up is another project's.
    if !Path::new(".git").exists() {
        return None;
    }
    println!("cargo:rerun-if-changed=.git/logs/HEAD");
    let found = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    short(&String::from_utf8_lossy(&found.stdout))
}
