//! Build script: the released console travels to every host, so it keeps function names but no line tables.

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bin=rankdeck=-Wl,--strip-debug");
    }
}
