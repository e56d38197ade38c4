//! Build script: compiles the C++ shim over libtorch's c10d and links libtorch.

use std::path::{Path, PathBuf};

const SHIM: &str = "rankdeck_shim";
/// Minor versions of the Pythons that PyTorch 2.11 is made for.
const PYTHONS: [u32; 5] = [10, 11, 12, 13, 14];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Err(error) = build() {
        println!("cargo:error={error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let libtorch = folder("LIBTORCH");
    let include = folder("LIBTORCH_INCLUDE").or_else(|| libtorch.clone());
    let lib = folder("LIBTORCH_LIB").or(libtorch);
    let (Some(include), Some(lib)) = (include, lib) else {
        return Err("libtorch not found: run `make libtorch`, or set LIBTORCH to its directory".into());
    };
    let (include, lib) = (include.join("include"), lib.join("lib"));
    if !lib.join("libtorch_cpu.so").exists() {
        return Err(format!("no libtorch_cpu.so in {}: run `make libtorch`, or set LIBTORCH", lib.display()));
    }
    compile(&include);
    link(&lib);
    Ok(())
}

/// A folder that an environment variable names.
fn folder(name: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={name}");
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn compile(include: &Path) {
    let source = Path::new("csrc");
    println!("cargo:rerun-if-changed={}", source.join("shim.cpp").display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        // Lines for stacks; types of all of libtorch's headers would weigh tens of megabytes.
        .debug(false)
        .flag("-g1")
        // It only passes arguments on.
        .opt_level(1)
        .include(include)
        .include(include.join("torch/csrc/api/include"))
        .file(source.join("shim.cpp"))
        .compile(SHIM);
}

fn link(lib: &Path) {
    println!("cargo:rustc-link-lib=dylib=stdc++");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    // Programs that go to other hosts carry no path of this one: agents set the library path. Elsewhere they
    // find libtorch relative to themselves: next to them, in the environment whose `bin` they are in, in a
    // clone. Tests and benchmarks stay here.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let environments = PYTHONS.map(|minor| format!("../lib/python3.{minor}/site-packages/torch"));
        let places = ["libtorch", "../lib/libtorch", "../../.libtorch/torch"].map(str::to_owned);
        for place in places.iter().chain(&environments) {
            println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/{place}/lib");
        }
        for kind in ["tests", "benches"] {
            println!("cargo:rustc-link-arg-{kind}=-Wl,-rpath,{}", lib.display());
        }
    } else {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    }
}
