//! Build script: with feature `trainer`, compiles the C++ shim over libtorch's c10d and tells the linker where libtorch lies.
//!
//! Without that feature it does nothing, so that the console builds on a machine that has no libtorch.

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    // Line tables are for stacks of ranks. The console travels to every host and needs names only.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bin=rankdeck=-Wl,--strip-debug");
    }
    #[cfg(feature = "trainer")]
    if let Err(error) = trainer::build() {
        println!("cargo:error={error}");
        std::process::exit(1);
    }
}

#[cfg(feature = "trainer")]
mod trainer {
    use std::path::{Path, PathBuf};

    const HEADERS: [&str; 5] =
        ["algorithm.h", "common/error.h", "context.h", "rendezvous/store.h", "transport/device.h"];

    const SHIM: &str = "rankdeck_shim";

    fn folder(name: &str) -> Option<PathBuf> {
        println!("cargo:rerun-if-env-changed={name}");
        std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    pub fn build() -> Result<(), String> {
        let libtorch = folder("LIBTORCH");
        let include = folder("LIBTORCH_INCLUDE").or_else(|| libtorch.clone());
        let lib = folder("LIBTORCH_LIB").or(libtorch);
        let (Some(include), Some(lib)) = (include, lib) else {
            return Err(
                "feature trainer needs libtorch: run `make libtorch`, or set LIBTORCH to its folder".into()
            );
        };
        let (include, lib) = (include.join("include"), lib.join("lib"));
        if !lib.join("libtorch_cpu.so").exists() {
            return Err(format!(
                "no libtorch_cpu.so in {}: run `make libtorch`, or set LIBTORCH",
                lib.display()
            ));
        }
        compile(&include);
        link(&lib);
        Ok(())
    }

    fn compile(include: &Path) {
        let source = Path::new("src/trainer/csrc");
        println!("cargo:rerun-if-changed={}", source.join("shim.cpp").display());
        for header in HEADERS {
            println!("cargo:rerun-if-changed={}", source.join("gloo").join(header).display());
        }
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .warnings(false)
            // Lines for stacks; types of all of libtorch's headers would weigh tens of megabytes.
            .debug(false)
            .flag("-g1")
            .include(source)
            .include(include)
            .include(include.join("torch/csrc/api/include"))
            .file(source.join("shim.cpp"))
            .cargo_metadata(false)
            .compile(SHIM);
    }

    fn link(lib: &Path) {
        let out = std::env::var("OUT_DIR").unwrap_or_default();
        println!("cargo:rustc-link-search=native={out}");
        // Not bundled into the library's archive, so that the console can be linked without it.
        println!("cargo:rustc-link-lib=static:-bundle={SHIM}");
        println!("cargo:rustc-link-lib=dylib=stdc++");
        println!("cargo:rustc-link-search=native={}", lib.display());
        println!("cargo:rustc-link-lib=dylib=torch_cpu");
        println!("cargo:rustc-link-lib=dylib=c10");
        keep_out_of_console(Path::new(&out));
        let rpath = format!("-Wl,-rpath,{}", lib.display());
        // Cargo has no directive for the library's own unit tests, the only other programs that run libtorch from a build folder. They are built
        // in the debug profile, where a search path in the console does no harm; a released console must not carry one.
        if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
            println!("cargo:rustc-link-arg={rpath}");
        } else {
            println!("cargo:rustc-link-arg-bin=rankdeck-trainer={rpath}");
            println!("cargo:rustc-link-arg-tests={rpath}");
            println!("cargo:rustc-link-arg-benches={rpath}");
        }
    }

    /// The console shares the library with the trainer, so dead calls into libtorch pull in the C++ objects behind them, and those have static
    /// initialisers, which no linker throws away: the console would need libtorch to start. Hence it is linked with empty archives in their
    /// place. Should the console ever call into the trainer, the linker says so.
    fn keep_out_of_console(out: &Path) {
        let empty = out.join("empty.a");
        let remap = |pattern: &str| format!("-Wl,--remap-inputs={pattern}={}", empty.display());
        if std::fs::write(&empty, "!<arch>\n").is_err() || !links_with(out, &remap("*nothing.rlib")) {
            println!(
                "cargo:warning=this linker has no --remap-inputs: build the console without feature trainer"
            );
            return;
        }
        for pattern in ["*libtorch_sys-*.rlib".to_owned(), format!("*lib{SHIM}.a")] {
            println!("cargo:rustc-link-arg-bin=rankdeck={}", remap(&pattern));
        }
    }

    /// Whether an empty program links with this argument.
    fn links_with(out: &Path, argument: &str) -> bool {
        let source = out.join("probe.rs");
        let Some(rustc) = std::env::var_os("RUSTC") else { return false };
        std::fs::write(&source, "fn main() {}").is_ok()
            && std::process::Command::new(rustc)
                .arg(&source)
                .args(["-C", &format!("link-arg={argument}"), "-o"])
                .arg(out.join("probe"))
                .output()
                .is_ok_and(|output| output.status.success())
    }
}
