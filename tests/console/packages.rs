//! packaging/dist.py: what it makes is the same every time, and runs where nothing else is.

use crate::support::{rankdeck, trainer};
use rankdeck_testkit::{program, repository, skipped};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Packages of the programs in `binaries`.
fn packages(binaries: &Path, out: &Path) -> Vec<PathBuf> {
    let mut command = Command::new("python3");
    command.arg(repository("packaging/dist.py")).args([binaries, out]).env("RANKDECK_DIST_LEVEL", "0");
    run(command.env("CONSOLE", rankdeck().get_program()));
    let mut made: Vec<PathBuf> = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
    made.sort();
    made
}

/// packaging/check.py of what is in a folder.
fn check(out: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(repository("packaging/check.py")).arg(std::env::consts::ARCH).arg(out);
    command
}

/// Stand-ins, which make small packages: what counts is how these are put together. The launcher holds
/// `words`; the console is the one that `CONSOLE` names, and holds no path.
fn stand_ins(folder: &Path, words: &str) {
    let console = "#!/bin/sh\nexec \"$CONSOLE\" \"$@\"\n";
    let launcher = format!("#!/bin/sh\nexit\n{words}");
    let texts =
        [("rankdeck", console), ("rankdeck-trainer", "#!/bin/sh\n"), ("rankdeck-launcher", &launcher)];
    for (name, text) in texts {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_release_that_needs_a_newer_system_or_names_the_builders_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let made = |words: &str| {
        stand_ins(folder.path(), words);
        let mut command = Command::new("python3");
        command.arg(repository("packaging/dist.py")).args([folder.path(), &out]).arg("--released");
        command.env("CONSOLE", rankdeck().get_program()).env("RANKDECK_DIST_LEVEL", "0").output().unwrap()
    };
    for (words, said) in [
        (
            "\0GLIBC_2.28\0GLIBC_2.34\0GLIBC_2.4\0".to_owned(),
            "bin/rankdeck-trainer needs GLIBC_2.34, which glibc 2.28",
        ),
        ("\0GLIBCXX_3.4.24\0GLIBCXX_3.4.29\0".to_owned(), "bin/rankdeck-trainer needs GLIBCXX_3.4.29"),
        (format!("at {}", repository("src/main.rs").display()), "bin/rankdeck-trainer contains the path"),
    ] {
        let refused = made(&words);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(said), "{words:?}: {refused:?}");
        assert!(!out.exists(), "{words:?}: packages were made");
    }
    let taken = made("\0GLIBC_2.28\0GLIBC_2.4\0GLIBCXX_3.4.24\0CXXABI_1.3.11\0GCC_3.0\0");
    assert!(taken.status.success(), "{taken:?}");
    assert!(out.join("rankdeck-0.1.0-py3-none-manylinux_2_28_x86_64.whl").is_file());
}

/// Programs for older systems share the system's libstdc++ with libtorch, and bring what older ones lack.
#[test]
fn a_program_with_the_stubs_of_libstdcxx_needs_no_newer_one_and_catches_what_others_throw() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // What a newer library has: `bad_array_new_length` of a container, in GCC 11 and newer.
    let program = "#include <memory>\n#include <new>\n#include <stdexcept>\n#include <string>\n\
        void other(std::string &);\nint main(int n, char **) {\n  std::string text(\"a\");\n  int caught = 0;\n\
        try { other(text); } catch (const std::out_of_range &) { caught++; }\n\
        try { std::allocator<double>().allocate(static_cast<std::size_t>(-n)); } catch (const std::bad_alloc &) { caught++; }\n\
        return caught == 2 && text == \"ab\" ? 0 : 1;\n}\n";
    let other = "#include <stdexcept>\n#include <string>\nvoid other(std::string &text) { text += 'b'; text.at(9); }\n";
    std::fs::create_dir(path("stubs")).unwrap();
    std::fs::write(path("program.cpp"), program).unwrap();
    std::fs::write(path("other.cpp"), other).unwrap();
    let make = "import pathlib, sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import sysroot; \
        place = pathlib.Path(sys.argv[2]); sysroot.gcc(sysroot.tools(sysroot.os.uname().machine), place, place)";
    run(Command::new("python3").args(["-c", make]).arg(repository("packaging")).arg(path("stubs")));
    let compile = |words: &[&str]| run(Command::new("c++").args(words).current_dir(folder.path()));
    compile(&["-shared", "-fPIC", "-o", "libother.so", "other.cpp"]);
    compile(&["-o", "program", "program.cpp", "-Lstubs", "-L.", "-lother", "-Wl,-rpath,$ORIGIN"]);
    run(&mut Command::new(path("program")));
    let symbols = run(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(path("program")));
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let newest = symbols
        .split("GLIBCXX_3.4.")
        .skip(1)
        .filter_map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok());
    assert!(newest.max().is_some_and(|version| version <= 24), "{symbols}");
    assert!(!symbols.contains("CXXABI_1.3.13"), "{symbols}");
}

#[test]
fn it_is_said_why_there_are_no_compilers_for_older_systems() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("sysroot");
    for (arch, said) in [
        ("sparc", "sysroot: no such architecture: sparc (there are x86_64 and aarch64)"),
        (std::env::consts::ARCH, "sysroot: pip could not fetch ziglang=="),
    ] {
        let mut command = Command::new("python3");
        command.arg(repository("packaging/sysroot.py")).arg(arch).arg(&place).env("PIP_NO_INDEX", "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(said), "{output:?}");
        assert!(output.stdout.is_empty(), "nothing for cargo: {output:?}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn packages_are_the_same_every_time() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path(), "");
    let [first, second] = ["a", "b"].map(|name| packages(folder.path(), &folder.path().join(name)));
    assert_eq!(first.len(), 4, "tarball, wheel, .deb and checksums: {first:?}");
    for (one, other) in first.iter().zip(&second) {
        assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap(), "{one:?} differs");
    }
    let tarball = &first.iter().find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
    let listed = run(Command::new("tar").arg("tzf").arg(tarball));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for path in [
        "bin/rankdeck",
        "libexec/rankdeck/rankdeck-trainer",
        "share/man/man1/rankdeck-run.1.gz",
        "share/doc/rankdeck/LICENSES-OF-PARTS.txt.gz",
    ] {
        assert!(listed.contains(path), "{path}: {listed}");
    }
    for path in ["share/zsh/site-functions/_rankdeck", "share/bash-completion/completions/rankdeck"] {
        assert!(listed.contains(path), "{path}: {listed}");
    }
    let member = listed.lines().find(|path| path.ends_with("LICENSES-OF-PARTS.txt.gz")).unwrap();
    let packed = run(Command::new("tar").arg("xzOf").arg(tarball).arg(member)).stdout;
    let place = folder.path().join("licences.gz");
    std::fs::write(&place, packed).unwrap();
    let texts = run(Command::new("gzip").arg("-dc").arg(&place)).stdout;
    let texts = String::from_utf8_lossy(&texts);
    for part in
        ["\nratatui ", "Rust's standard library: MIT OR Apache-2.0", "GCC's run-time libraries: GPL-3.0"]
    {
        assert!(texts.contains(part), "no licence of {part:?}");
    }
}

#[test]
fn the_check_of_packages_names_what_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path(), "");
    let out = folder.path().join("out");
    let made = packages(folder.path(), &out);
    let refused = |out: &Path| {
        let output = check(out).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&out);
    assert!(said.contains("check: `rankdeck --version` ended with exit code"), "{said}");

    // A tarball of other programs, and none.
    stand_ins(folder.path(), "other");
    let tarball = made.iter().find(|path| path.to_string_lossy().ends_with(".tar.gz")).unwrap();
    packages(folder.path(), &folder.path().join("others"));
    std::fs::copy(folder.path().join("others").join(tarball.file_name().unwrap()), tarball).unwrap();
    let said = refused(&out);
    assert!(said.contains("bin/rankdeck-trainer in rankdeck_0.1.0_amd64.deb is not that in"), "{said}");
    std::fs::remove_file(tarball).unwrap();
    let said = refused(&out);
    assert!(said.contains("has 0 files rankdeck-0.1.0-x86_64-linux.tar.gz, not one"), "{said}");
}

#[test]
fn checksums_keep_those_of_packages_for_another_architecture() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path(), "");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("rankdeck_0.1.0_arm64.deb"), "there").unwrap();
    let before = "11  rankdeck_0.1.0_amd64.deb\n22  rankdeck_0.1.0_arm64.deb\n33  gone.deb\n";
    std::fs::write(out.join("SHA256SUMS"), before).unwrap();
    packages(folder.path(), &out);
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), 4, "{sums}");
    let stands = |line: &str| sums.lines().any(|other| other == line);
    assert!(stands("22  rankdeck_0.1.0_arm64.deb") && !stands("11  rankdeck_0.1.0_amd64.deb"), "{sums}");
}

/// Runs a program in a root in which nothing is but `root` and the C library.
fn in_a_clean_root(root: &Path, words: &[&str]) -> Option<Output> {
    let needed = run(Command::new("ldd").arg(rankdeck().get_program()));
    for word in
        String::from_utf8_lossy(&needed.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let place = root.join(word.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(word, place).unwrap();
    }
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "chroot"]).arg(root).args(words).env_clear();
    let output = command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/tmp").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("unshare") {
        skipped(&format!("no user namespaces here: {}", said.trim()));
        return None;
    }
    assert!(output.status.success(), "{words:?}: {output:?}");
    Some(output)
}

#[test]
fn each_package_runs_where_nothing_else_is() {
    let Some(trainer) = trainer() else { return };
    if !trainer.with_file_name("rankdeck-launcher").is_file() {
        return skipped("no launcher beside the console; cargo build -p rankdeck-launcher");
    }
    let folder = tempfile::tempdir().unwrap();
    let made = packages(trainer.parent().unwrap(), &folder.path().join("out"));
    let of = |end: &str| made.iter().find(|path| path.to_string_lossy().ends_with(end)).unwrap();
    let tried = run(&mut check(&folder.path().join("out")));
    let tried = String::from_utf8_lossy(&tried.stdout).into_owned();
    assert!(
        tried.contains("hold the same 3 programs") && tried.contains("--check-env CartPole-v1"),
        "{tried}"
    );
    let version = run(rankdeck().arg("--version")).stdout;
    let works = |root: &Path, console: &str| {
        let Some(output) = in_a_clean_root(root, &[console, "--version"]) else { return };
        assert_eq!(output.stdout, version, "{console}");
        let simulated =
            ["simulate", "--nnodes", "1", "--ranks", "2", "--iteration-ms", "50", "--steps", "20480"];
        let words: Vec<&str> = [console].into_iter().chain(simulated).chain(["--json"]).collect();
        let Some(output) = in_a_clean_root(root, &words) else { return };
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"outcome\":\"succeeded\""));
        let launcher = format!("{console}-trainer");
        let Some(output) = in_a_clean_root(root, &[&launcher, "--check-env", "CartPole-v1"]) else { return };
        assert!(String::from_utf8_lossy(&output.stdout).contains("CartPole-v1: works"), "{output:?}");
    };

    let root = folder.path().join("tarball");
    std::fs::create_dir(&root).unwrap();
    run(Command::new("tar").args(["xzf"]).arg(of(".tar.gz")).arg("-C").arg(&root).arg("--no-same-owner"));
    works(&root, "/rankdeck-0.1.0/bin/rankdeck");

    if program("dpkg-deb").is_some() {
        let root = folder.path().join("deb");
        run(Command::new("dpkg-deb").arg("-x").arg(of(".deb")).arg(&root));
        works(&root, "/usr/bin/rankdeck");
        let listed = run(Command::new("dpkg-deb").arg("--contents").arg(of(".deb"))).stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
        for (at, name) in names.iter().enumerate().filter(|(_, name)| **name != "./usr/") {
            let folder = name.trim_end_matches('/').rsplit_once('/').unwrap().0.to_owned() + "/";
            assert!(names[..at].contains(&folder.as_str()), "dpkg makes no folder of {name}: {names:#?}");
        }
        let fields = run(Command::new("dpkg-deb").arg("-f").arg(of(".deb")).arg("Depends"));
        assert!(String::from_utf8_lossy(&fields.stdout).contains("libc6 (>= 2."));
    } else {
        skipped("no dpkg-deb");
    }

    let venv = folder.path().join("venv");
    let made_venv = Command::new("python3").args(["-m", "venv"]).arg(&venv).output().unwrap();
    if !made_venv.status.success() {
        return skipped("python3 makes no virtual environment");
    }
    let python = venv.join("bin/python");
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"])
        .arg(of(".whl")));
    assert_eq!(run(Command::new(venv.join("bin/rankdeck")).arg("--version")).stdout, version);
    assert!(
        venv.join("share/doc/rankdeck/configs/cartpole_ppo.toml").is_file(),
        "an experiment to begin with"
    );
    let asks = "import importlib.metadata as m; print(m.requires('rankdeck'))";
    let extra = run(Command::new(&python).args(["-c", asks]));
    assert_eq!(extra.stdout, b"[\"torch==2.11.*; extra == 'torch'\"]\n", "pip install 'rankdeck[torch]'");
    let imported = run(Command::new(&python).args(["-c", "import rankdeck; print(rankdeck.should_stop())"]));
    assert_eq!(imported.stdout, b"False\n");
    let help = run(Command::new(venv.join("bin/rankdeck-trainer")).arg("--help"));
    assert!(String::from_utf8_lossy(&help.stdout).contains("--setup-env"));
    run(Command::new(&python).args(["-m", "pip", "uninstall", "--quiet", "--yes", "rankdeck"]));
    assert!(!venv.join("bin/rankdeck").exists());
}

#[test]
fn registries_take_the_manifests_and_the_oldest_rust_builds_every_dependency() {
    let metadata = run(Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(repository("")));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let version = |value: &serde_json::Value| -> Vec<u64> {
        value.as_str().unwrap_or("").split('.').filter_map(|part| part.parse().ok()).collect()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let own = |package: &serde_json::Value| package["source"].is_null();
    let promised = version(&packages.iter().find(|package| own(package)).unwrap()["rust_version"]);
    for package in packages {
        let name = package["name"].as_str().unwrap();
        assert!(version(&package["rust_version"]) <= promised, "{name} needs a newer Rust than we promise");
        if !own(package) || package["publish"].is_array() {
            continue;
        }
        for field in ["description", "license"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        let keywords = package["keywords"].as_array().unwrap();
        assert!(keywords.len() <= 5, "{name}: crates.io takes five keywords");
        for keyword in keywords.iter().filter_map(serde_json::Value::as_str) {
            assert!(keyword.len() <= 20 && !keyword.contains(' '), "{name}: crates.io refuses {keyword}");
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_published = dependency["kind"].is_null() && dependency["path"].is_string();
            assert!(
                !is_published || dependency["req"] != "*",
                "{name}: {} has no version",
                dependency["name"]
            );
        }
    }
}

/// Paths of `include_str!` and `include_bytes!` in a source file, from its folder.
fn included(source: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(source).unwrap();
    let paths = text.split("include_").skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix("str!(\"").or_else(|| rest.strip_prefix("bytes!(\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    });
    paths.map(|path| source.parent().unwrap().join(path).canonicalize().unwrap()).collect()
}

/// Whether a crate is to be packed with this file: a source, what sources and registries read, or a licence.
fn belongs(path: &str) -> bool {
    let papers = [
        ".cargo_vcs_info.json",
        "Cargo.lock",
        "Cargo.toml",
        "Cargo.toml.orig",
        "CHANGELOG.md",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "docs/JSON.md",
        "docs/screen.svg",
    ];
    let is_source = [".rs", ".py", ".cpp"].iter().any(|end| path.ends_with(end));
    let left_over = ["__pycache__", "data", "dist", "runs", "snapshots", "target"];
    papers.contains(&path) || is_source && !path.split('/').any(|part| left_over.contains(&part))
}

/// A crate that is published without a file of its sources builds here and nowhere else. What no source needs
/// is not published.
#[test]
fn every_published_crate_has_the_files_that_its_sources_include_and_no_stray_ones() {
    let metadata = run(Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--no-deps"])
        .current_dir(repository("")));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let mut seen = 0;
    for package in metadata["packages"].as_array().unwrap().iter().filter(|one| !one["publish"].is_array()) {
        let name = package["name"].as_str().unwrap();
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let listed = run(Command::new(env!("CARGO"))
            .args(["package", "--list", "--offline", "--allow-dirty", "--package", name])
            .current_dir(repository("")));
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let stray: Vec<&str> = listed.lines().filter(|path| !belongs(path)).collect();
        assert!(
            stray.is_empty(),
            "{name} would be published with {stray:?}; `include` in its Cargo.toml says what it needs"
        );
        let files: Vec<PathBuf> =
            listed.lines().filter_map(|path| folder.join(path).canonicalize().ok()).collect();
        // Tests are not built by who installs a crate.
        let is_source = |path: &&PathBuf| {
            path.extension().is_some_and(|end| end == "rs") && !path.to_string_lossy().contains("tests")
        };
        for source in files.iter().filter(is_source) {
            for wanted in included(source) {
                assert!(
                    files.contains(&wanted),
                    "{name}: {source:?} includes {wanted:?}, which is not packed"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 5, "{seen} included files");
}
