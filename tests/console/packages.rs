//! packaging/dist.py: reproducible packages that run in an empty root.

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
fn release_for_a_newer_system_or_with_a_builder_path_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let made = |words: &str| {
        stand_ins(folder.path(), words);
        let mut command = Command::new("python3");
        command.arg(repository("packaging/dist.py")).args([folder.path(), &out]).arg("--released");
        command.env("CONSOLE", rankdeck().get_program()).env("RANKDECK_DIST_LEVEL", "0").output().unwrap()
    };
    for (words, message) in [
        ("\0GLIBC_2.28\0GLIBC_2.34\0GLIBC_2.4\0".to_owned(), "bin/rankdeck-trainer needs GLIBC_2.34"),
        ("\0GLIBCXX_3.4.24\0GLIBCXX_3.4.29\0".to_owned(), "bin/rankdeck-trainer needs GLIBCXX_3.4.29"),
        (format!("at {}", repository("src/main.rs").display()), "bin/rankdeck-trainer contains the path"),
    ] {
        let refused = made(&words);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(message), "{words:?}: {refused:?}");
        assert!(!out.exists(), "{words:?}: packages were made");
    }
    let taken = made("\0GLIBC_2.28\0GLIBC_2.4\0GLIBCXX_3.4.24\0CXXABI_1.3.11\0GCC_3.0\0");
    assert!(taken.status.success(), "{taken:?}");
    assert!(out.join("rankdeck-0.1.0-py3-none-manylinux_2_28_x86_64.whl").is_file());
}

/// Programs for older systems share the system's libstdc++ with libtorch, and bring what older ones lack.
#[test]
fn program_linked_with_stubs_needs_no_newer_libstdcxx() {
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
fn sysroot_reports_unknown_architecture_and_failed_download() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("sysroot");
    for (arch, message) in [("sparc", "sparc"), (std::env::consts::ARCH, "ziglang==")] {
        let mut command = Command::new("python3");
        command.arg(repository("packaging/sysroot.py")).arg(arch).arg(&place).env("PIP_NO_INDEX", "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(message), "{output:?}");
        assert!(output.stdout.is_empty(), "nothing for cargo: {output:?}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn packages_are_reproducible() {
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
        "share/doc/rankdeck/docs/tutorials.md",
        "share/doc/rankdeck/docs/design/processes.md",
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
    for part in [
        "\nratatui ",
        "Rust's standard library: MIT OR Apache-2.0",
        "GCC's run-time libraries: GPL-3.0",
        // C libraries inside crates have licenses of their own.
        "--- openssl/LICENSE.txt",
        "--- libssh2/COPYING",
        "--- src/zlib/LICENSE",
        "\nring ",
    ] {
        assert!(texts.contains(part), "no licence of {part:?}");
    }
}

#[test]
fn package_check_names_the_broken_part() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path(), "");
    let out = folder.path().join("out");
    let made = packages(folder.path(), &out);
    let refused = |out: &Path| {
        let output = check(out).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = refused(&out);
    assert!(message.contains("`rankdeck --version`"), "{message}");

    // A tarball of other programs, and none.
    stand_ins(folder.path(), "other");
    let tarball = made.iter().find(|path| path.to_string_lossy().ends_with(".tar.gz")).unwrap();
    packages(folder.path(), &folder.path().join("others"));
    std::fs::copy(folder.path().join("others").join(tarball.file_name().unwrap()), tarball).unwrap();
    let message = refused(&out);
    assert!(message.contains("bin/rankdeck-trainer in rankdeck_0.1.0_amd64.deb"), "{message}");
    std::fs::remove_file(tarball).unwrap();
    let message = refused(&out);
    assert!(message.contains("rankdeck-0.1.0-x86_64-linux.tar.gz"), "{message}");
}

#[test]
fn checksums_keep_other_architectures() {
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
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if message.contains("unshare") {
        skipped(&format!("no user namespaces here: {}", message.trim()));
        return None;
    }
    assert!(output.status.success(), "{words:?}: {output:?}");
    Some(output)
}

#[test]
fn packages_run_in_an_empty_root() {
    let Some(trainer) = trainer() else { return };
    if !trainer.with_file_name("rankdeck-launcher").is_file() {
        return skipped("no launcher next to the console; cargo build -p rankdeck-launcher");
    }
    let folder = tempfile::tempdir().unwrap();
    let made = packages(trainer.parent().unwrap(), &folder.path().join("out"));
    let of = |end: &str| made.iter().find(|path| path.to_string_lossy().ends_with(end)).unwrap();
    let tried = run(&mut check(&folder.path().join("out")));
    let tried = String::from_utf8_lossy(&tried.stdout).into_owned();
    assert!(tried.contains("--check-env CartPole-v1"), "{tried}");
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
        assert!(String::from_utf8_lossy(&output.stdout).contains("CartPole-v1: "), "{output:?}");
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
    for path in ["configs/cartpole_ppo.toml", "docs/tutorials.md", "README.md"] {
        assert!(venv.join("share/doc/rankdeck").join(path).is_file(), "{path}");
    }
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

/// Cargo refuses a dependency that needs a newer Rust than a build has.
#[test]
fn rust_version_covers_every_dependency() {
    let metadata = run(Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--locked"])
        .arg("--filter-platform=x86_64-unknown-linux-gnu")
        .current_dir(repository("")));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let version = |value: &serde_json::Value| -> Vec<u64> {
        value.as_str().unwrap_or("").split('.').filter_map(|part| part.parse().ok()).collect()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["source"].is_null()).unwrap();
    for package in packages {
        let needs = version(&package["rust_version"]);
        assert!(needs <= version(&own["rust_version"]), "{} needs Rust {needs:?}", package["name"]);
    }
}
