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

/// Adds a file and all files of its modules. `is_root` is true for files whose modules lie beside them.
fn reach(file: &Path, is_root: bool, reached: &mut BTreeSet<PathBuf>) {
    let file = file.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if !reached.insert(file.clone()) {
        return;
    }
    let beside = file.parent().unwrap().to_path_buf();
    let below = if is_root { beside.clone() } else { file.with_extension("") };
    for (name, path) in declared(&std::fs::read_to_string(&file).unwrap()) {
        if let Some(path) = path {
            reach(&beside.join(path), true, reached);
            continue;
        }
        let (short, long) = (below.join(format!("{name}.rs")), below.join(&name).join("mod.rs"));
        let long_one = long.is_file();
        assert!(short.is_file() || long_one, "{} declares `mod {name};`, which has no file", file.display());
        reach(if long_one { &long } else { &short }, long_one, reached);
    }
}

/// Sources that git tracks or would track, by their endings.
fn sources(endings: &[&str]) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).unwrap();
    let files = names.split('\0').map(|name| repository("").join(name));
    let ends = |file: &PathBuf| {
        file.extension().is_some_and(|extension| endings.iter().any(|ending| extension == *ending))
    };
    // One that was deleted and not yet committed is still listed.
    files.filter(|file| ends(file) && file.is_file()).collect()
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
fn every_rs_file_is_compiled() {
    let mut reached = BTreeSet::new();
    for target in targets() {
        reach(&target, true, &mut reached);
    }
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches"] {
        rust_files(&repository(folder), &mut files);
    }
    assert!(files.len() > 200, "{} files", files.len());
    let forgotten: Vec<_> = files.iter().filter(|file| !reached.contains(*file)).collect();
    assert!(forgotten.is_empty(), "no `mod` leads to {forgotten:#?}");
}

/// No skip is silent: a test that returns early because something is missing says so through `skip!`.
#[test]
fn no_test_prints_that_it_was_skipped() {
    let mut files = Vec::new();
    for folder in ["src", "tests"] {
        rust_files(&repository(folder), &mut files);
    }
    let word = concat!("eprintln!(\"", "skipped");
    let silent: Vec<_> =
        files.iter().filter(|file| std::fs::read_to_string(file).unwrap().contains(word)).collect();
    assert!(silent.is_empty(), "use rankdeck_testkit::skip! in {silent:#?}");
}

/// Most lines of a source file.
const FILE_LINES: usize = 500;
/// Most lines of code of a function.
const FUNCTION_LINES: usize = 80;

#[test]
fn no_source_file_is_long() {
    let files = sources(&["rs", "py", "sh"]);
    assert!(files.len() > 500, "{} files", files.len());
    let lines = |file: &PathBuf| std::fs::read_to_string(file).unwrap().lines().count();
    let long: Vec<_> =
        files.iter().map(|file| (lines(file), file)).filter(|(lines, _)| *lines > FILE_LINES).collect();
    assert!(long.is_empty(), "above {FILE_LINES} lines: {long:#?}");
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name of the function that begins in a line.
fn begun(line: &str, python: bool) -> Option<&str> {
    let mut rest = line.trim_start();
    if python {
        rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("def ")?;
    } else {
        let (before, after) = rest.split_once("fn ")?;
        let is_modifier = |word: &str| {
            word.starts_with("pub")
                || word.starts_with('"')
                || ["in", "const", "async", "unsafe", "extern", "default"].contains(&word)
                || word.ends_with(')')
        };
        if !before.split_whitespace().all(is_modifier) {
            return None;
        }
        rest = after;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &rest[..end])
}

/// Names and lines of code of the functions of a formatted file. The end of a function is the first line that
/// is indented as its beginning and closes it; in Python, the last line before one that is indented no more.
/// Blank lines, comments and the rows of a list that is written out are not code.
fn functions(text: &str, python: bool) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = begun(line, python) else { continue };
        let depth = indent(line);
        let (mut code, mut table) = (1, None);
        if python || !line.ends_with(['}', ';']) {
            for line in &lines[at + 1..] {
                let bare = line.trim();
                let ends = indent(line) <= depth && !bare.is_empty();
                if python && ends && !bare.starts_with(')') {
                    break;
                }
                let is_row = table.is_some_and(|table| indent(line) > table);
                code += usize::from(
                    !bare.is_empty() && !bare.starts_with(["//", "#"][usize::from(python)]) && !is_row,
                );
                if !is_row && !bare.is_empty() {
                    table = [" = [", " in ["].iter().any(|open| line.ends_with(open)).then(|| indent(line));
                }
                if !python && ends && (bare == "}" || bare.ends_with(';')) {
                    break;
                }
            }
        }
        found.push((name.to_owned(), code));
    }
    found
}

#[test]
fn no_function_is_long() {
    let (mut count, mut long) = (0, Vec::new());
    for file in sources(&["rs", "py"]) {
        let text = std::fs::read_to_string(&file).unwrap();
        for (name, lines) in functions(&text, file.extension().is_some_and(|extension| extension == "py")) {
            count += 1;
            if lines > FUNCTION_LINES {
                long.push(format!("{lines} {name} in {}", file.display()));
            }
        }
    }
    assert!(count > 6000, "{count} functions");
    assert!(long.is_empty(), "above {FUNCTION_LINES} lines of code:\n{}", long.join("\n"));
}

#[test]
fn lines_of_code_of_functions_are_counted() {
    let rust = "\
impl A {
    pub(super) async fn one(
        a: usize,
    ) -> usize {
        // Why.

        let table = [
            1,
            2,
        ];
        for a in table {
            two();
        }
    }

    fn two() {}
}

trait B {
    fn three(&self);
    unsafe extern \"C\" fn four();
}

let a = f(|| g(\"a fn b\"));
";
    let python = "\
async def one(
    a,
):
    # Why.
    rows = [
        1,
    ]

    def two():
        return rows
    return two

x = 1
";
    let found = |text, python| -> Vec<(String, usize)> { functions(text, python) };
    let wanted = |list: &[(&str, usize)]| -> Vec<(String, usize)> {
        list.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect()
    };
    assert_eq!(found(rust, false), wanted(&[("one", 9), ("two", 1), ("three", 1), ("four", 1)]));
    assert_eq!(found(python, true), wanted(&[("one", 8), ("two", 2)]));
}
