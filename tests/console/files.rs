//! Rules for the repository's own files.

use rankdeck_testkit::repository;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First files of all libraries, programs, tests, benchmarks and build scripts.
fn targets() -> Vec<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        // Packages of other platforms need not be here.
        .args(["metadata", "--offline", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"])
        .current_dir(repository(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Those of a path, members of the workspace or not.
    let packages =
        metadata["packages"].as_array().unwrap().iter().filter(|package| package["source"].is_null());
    let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
    targets.map(|target| PathBuf::from(target["src_path"].as_str().unwrap())).collect()
}

/// Names of the modules that a file declares with `mod NAME;`, or paths where `#[path]` gives one.
fn declared(text: &str) -> Vec<(String, Option<String>)> {
    let (mut modules, mut path) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.strip_suffix("\"]").map(str::to_owned);
        } else if !line.starts_with("#[") {
            let module = line.strip_suffix(';').and_then(|line| {
                let (before, name) = line.rsplit_once("mod ")?;
                (before.is_empty() || before.starts_with("pub")).then(|| name.to_owned())
            });
            modules.extend(module.map(|name| (name, path.take())));
            path = None;
        }
    }
    modules
}

/// Adds a file and all files of its modules. `is_root` is true for files whose modules are in the same folder.
fn reach(file: &Path, is_root: bool, reached: &mut BTreeSet<PathBuf>) {
    let file = file.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if !reached.insert(file.clone()) {
        return;
    }
    let folder = file.parent().unwrap().to_path_buf();
    let below = if is_root { folder.clone() } else { file.with_extension("") };
    for (name, path) in declared(&std::fs::read_to_string(&file).unwrap()) {
        if let Some(path) = path {
            reach(&folder.join(path), true, reached);
            continue;
        }
        let (short, long) = (below.join(format!("{name}.rs")), below.join(&name).join("mod.rs"));
        let long_one = long.is_file();
        assert!(short.is_file() || long_one, "{} declares `mod {name};`, which has no file", file.display());
        reach(if long_one { &long } else { &short }, long_one, reached);
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path.canonicalize().unwrap());
        }
    }
}

/// A file that no `mod` leads to is never compiled and never tested.
#[test]
fn every_rust_file_is_compiled() {
    let mut reached = BTreeSet::new();
    for target in targets() {
        reach(&target, true, &mut reached);
    }
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches"] {
        rust_files(&repository(folder), &mut files);
    }
    let forgotten: Vec<_> = files.iter().filter(|file| !reached.contains(*file)).collect();
    assert!(forgotten.is_empty(), "no `mod` leads to {forgotten:#?}");
}

/// No skip is silent: a test that returns early because something is missing calls `skip!`.
#[test]
fn skipped_test_is_counted() {
    let mut files = Vec::new();
    for folder in ["src", "tests"] {
        rust_files(&repository(folder), &mut files);
    }
    let word = concat!("eprintln!(\"", "skipped");
    let silent: Vec<_> =
        files.iter().filter(|file| std::fs::read_to_string(file).unwrap().contains(word)).collect();
    assert!(silent.is_empty(), "use rankdeck_testkit::skip! in {silent:#?}");
}
