//! Build script: with feature `trainer`, compiles the C++ shim over libtorch's c10d and tells the linker where libtorch lies.
//!
//! Without that feature it does nothing, so that the console builds on a machine that has no libtorch.

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
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
            .include(source)
            .include(include)
            .include(include.join("torch/csrc/api/include"))
            .file(source.join("shim.cpp"))
            .compile("rankdeck_shim");
    }

    fn link(lib: &Path) {
        println!("cargo:rustc-link-search=native={}", lib.display());
        println!("cargo:rustc-link-lib=dylib=torch_cpu");
        println!("cargo:rustc-link-lib=dylib=c10");
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
}
