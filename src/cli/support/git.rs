//! Reads the state of a checkout through the `git` program. Without git or a checkout, there is no state.
//!
//! - GIT-1: git runs no program that the repository or the user's settings name, and contacts no server.

use rankdeck_proto::pack;
use rankdeck_types::words::plural;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that git may take: a launch waits for it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of a list of files.
const LIST: u64 = 64 << 20;
/// Most bytes of a diff that are stored.
pub(crate) const DIFF: u64 = 1 << 20;
/// Most filters that a repository may define.
const FILTERS: usize = 64;
/// Deepest submodule whose filters are switched off.
const DEPTH: usize = 4;
/// Settings under which git runs no other program, and writes plain patches (GIT-1).
const SETTINGS: [&str; 7] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "color.ui=false",
    "diff.relative=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.submodule=short",
];

/// Files and folders that git ignores, relative to a folder.
#[derive(Debug, Default)]
pub(crate) struct IgnoredPaths {
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl IgnoredPaths {
    /// Whether the file or directory is ignored. Directories are checked before their contents.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let above = || path.match_indices('/').map(|(at, _)| &path[..at]);
        self.files.contains(path)
            || self.folders.contains(path)
            || above().any(|folder| self.folders.contains(folder))
    }
}

/// Most directories that are searched for repositories.
const MAX_FOLDERS: usize = 20_000;

/// Returns what `.gitignore` and the like exclude below `folder`, also in submodules and other repositories
/// inside, which git itself does not enter.
pub(crate) fn ignored(folder: &Path) -> IgnoredPaths {
    let mut found = ignored_of_one(folder);
    let left_out = pack::EXCLUDED.map(str::to_owned);
    let mut folders = vec![String::new()];
    let mut searched = 0;
    while let Some(below) = folders.pop() {
        let at = folder.join(&below);
        if !below.is_empty() && at.join(".git").exists() {
            let inner = ignored_of_one(&at);
            let path = |name: String| format!("{below}/{name}");
            found.files.extend(inner.files.into_iter().map(path));
            found.folders.extend(inner.folders.into_iter().map(path));
        }
        searched += 1;
        if searched >= MAX_FOLDERS {
            break;
        }
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            // Links are not followed.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            if !found.covers(&path) && !pack::matches(&path, &left_out) {
                folders.push(path);
            }
        }
    }
    found
}

/// Returns what the repository around `folder` excludes below it.
fn ignored_of_one(folder: &Path) -> IgnoredPaths {
    let args = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"];
    let text = run(folder, &args, LIST).unwrap_or_default();
    let mut found = IgnoredPaths::default();
    for path in text.split('\0').filter(|path| !path.is_empty()) {
        match path.strip_suffix('/') {
            Some(path) => found.folders.insert(path.to_owned()),
            None => found.files.insert(path.to_owned()),
        };
    }
    found
}

/// The state of a checkout.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Checkout {
    pub(crate) commit: String,
    /// The branch; `None` for a detached HEAD.
    pub(crate) branch: Option<String>,
    /// Whether the checkout differs from the commit.
    #[serde(default)]
    pub(crate) dirty: bool,
    /// Number of changed files, including untracked ones.
    pub(crate) changed: usize,
}

impl Checkout {
    /// The short commit, branch and number of changed files.
    pub(crate) fn shown(&self) -> String {
        let short: String = self.commit.chars().take(12).collect();
        let branch = self.branch.as_ref().map(|branch| format!(" on {branch}")).unwrap_or_default();
        match self.changed {
            0 => format!("{short}{branch}"),
            1 => format!("{short}{branch}, 1 file changed"),
            count => format!("{short}{branch}, {} changed", plural(count, "file")),
        }
    }
}

/// Returns the checkout around `folder`.
pub(crate) fn checkout(folder: &Path) -> Option<Checkout> {
    let status = run(folder, &["status", "--porcelain=v2", "--branch", "--", "."], LIST)?;
    // Without a commit or a branch, the name is in parentheses.
    let branch_field = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix("# branch.")?.strip_prefix(name));
        found.map(|value| value.trim().to_owned()).filter(|value| !value.starts_with('('))
    };
    let changed = status.lines().filter(|line| !line.starts_with('#')).count();
    Some(Checkout {
        commit: branch_field("oid ")?,
        branch: branch_field("head "),
        dirty: changed > 0,
        changed,
    })
}

/// Returns the diff against the commit below `folder`, at most [`DIFF`] bytes; `None` if git fails.
fn difference(folder: &Path) -> Option<String> {
    let plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--binary"];
    run(folder, &[&["diff"], &plain[..], &["HEAD", "--", "."]].concat(), DIFF)
}

/// The checkout around a directory, and its diff.
#[derive(Debug, Default)]
pub(crate) struct CodeState {
    pub(crate) checkout: Option<Checkout>,
    /// At most [`DIFF`] bytes; `None` if the checkout has changes that git could not print.
    pub(crate) changes: Option<String>,
}

impl CodeState {
    fn of(folder: &Path) -> CodeState {
        let checkout = checkout(folder);
        let is_dirty = checkout.as_ref().is_some_and(|checkout| checkout.dirty);
        CodeState { checkout, changes: if is_dirty { difference(folder) } else { Some(String::new()) } }
    }
}

/// A git query that runs during the rest of a launch.
#[derive(Debug)]
pub(crate) struct GitQuestion {
    folder: PathBuf,
    /// `None` if no thread was available: git then runs at the end.
    answer: Option<JoinHandle<CodeState>>,
}

/// Starts a git query without waiting for it.
pub(crate) fn ask(folder: &Path) -> GitQuestion {
    let mine = folder.to_owned();
    let asking = std::thread::Builder::new().name("git".into()).spawn(move || CodeState::of(&mine));
    GitQuestion { folder: folder.to_owned(), answer: asking.ok() }
}

impl GitQuestion {
    /// Waits for the state.
    pub(crate) fn answer(self) -> CodeState {
        let state = self.answer.and_then(|answer| answer.join().ok());
        state.unwrap_or_else(|| CodeState::of(&self.folder))
    }
}

/// Returns the start of a command's output; `None` if the command fails or takes too long.
fn run(folder: &Path, args: &[&str], most: u64) -> Option<String> {
    let mut settings = Vec::new();
    for name in filters(folder)? {
        let off = [("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")];
        settings.extend(off.map(|(key, value)| format!("filter.{name}.{key}={value}")));
    }
    let settings: Vec<&str> = settings.iter().flat_map(|text| ["-c", text.as_str()]).collect();
    start(folder, &[&settings[..], args].concat(), most)
}

/// Returns the names of filters that the repository itself defines, and its submodules; the user's own, such
/// as that of git-lfs, are in other files. They would run to compare a file. `None` if they cannot be
/// switched off.
fn filters(folder: &Path) -> Option<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    add_filters(folder, &mut found, DEPTH);
    // git takes the name up to the first `=`.
    let fit = found.len() <= FILTERS && !found.iter().any(|name| name.contains('='));
    fit.then_some(found)
}

fn add_filters(folder: &Path, found: &mut BTreeSet<String>, deeper: usize) {
    for scope in ["--local", "--worktree"] {
        let args = ["config", scope, "--includes", "--name-only", "-z", "--get-regexp", r"^filter\."];
        let keys = start(folder, &args, LIST).unwrap_or_default();
        let names = keys.split('\0').filter_map(|key| key.strip_prefix("filter.")?.rsplit_once('.'));
        found.extend(names.map(|(name, _)| name.to_owned()));
    }
    if deeper == 0 || found.len() > FILTERS {
        return;
    }
    let files = start(folder, &["ls-files", "--stage", "-z", "--", "."], LIST).unwrap_or_default();
    let links = files.split('\0').filter_map(|line| line.strip_prefix("160000 ")?.split_once('\t'));
    links.take(FILTERS).for_each(|(_, path)| add_filters(&folder.join(path), found, deeper - 1));
}

fn start(folder: &Path, args: &[&str], most: u64) -> Option<String> {
    let mut child = Command::new("git")
        .arg("-C")
        .arg(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
        .arg("--no-pager")
        .args(SETTINGS.iter().flat_map(|setting| ["-c", setting]))
        .args(args)
        .env("GIT_OPTIONAL_LOCKS", "0")
        // Objects that a partial clone lacks are not fetched.
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "none")
        .env_remove("GIT_EXTERNAL_DIFF")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = child.stdout.take()?;
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(most).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    let reply = answer.recv_timeout(PATIENCE);
    let full = reply.as_ref().is_ok_and(|read| read.as_ref().is_ok_and(|bytes| bytes.len() as u64 >= most));
    if reply.is_err() || full {
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    (status.success() || full).then_some(())?;
    Some(String::from_utf8_lossy(&reply.ok()?.ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn ignored_files_of_inner_repositories_are_covered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let inner = path.join("libs/inner");
        fs::create_dir_all(inner.join("cache")).unwrap();
        for (name, text) in
            [(".gitignore", ".env\ncache/\n"), (".env", "KEY=1"), ("cache/x", ""), ("a.py", "")]
        {
            fs::write(inner.join(name), text).unwrap();
        }
        for at in [path, &inner] {
            assert!(Command::new("git").arg("-C").arg(at).args(["init", "-q"]).status().unwrap().success());
        }
        let found = ignored(path);
        assert!(found.covers("libs/inner/.env") && found.covers("libs/inner/cache/x"), "{found:?}");
        assert!(!found.covers("libs/inner/a.py") && !found.covers("libs"), "{found:?}");
    }

    #[test]
    fn git_state_covers_ignored_paths_and_counts_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(checkout(path).is_none() && !ignored(path).covers("x"));
        let git = |args: &[&str]| {
            let args =
                [&["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"], args].concat();
            assert!(Command::new("git").arg("-C").arg(path).args(args).output().unwrap().status.success());
        };
        git(&["init", "-q"]);
        assert!(checkout(path).is_none(), "nothing is committed yet");
        fs::create_dir_all(path.join("data/deep")).unwrap();
        fs::create_dir_all(path.join("src")).unwrap();
        for (name, text) in [
            (".gitignore", "data/\n*.bin\n"),
            ("a.py", "1"),
            ("big.bin", ""),
            ("data/deep/x", ""),
            ("src/b.bin", ""),
            ("new.py", ""),
        ] {
            fs::write(path.join(name), text).unwrap();
        }
        git(&["add", "a.py", ".gitignore"]);
        git(&["commit", "-qm", "x"]);
        let found = ignored(path);
        for (name, covered) in [
            ("data", true),
            ("data/deep/x", true),
            ("big.bin", true),
            ("src/b.bin", true),
            ("a.py", false),
            ("new.py", false),
            ("src", false),
        ] {
            assert_eq!(
                found.covers(name),
                covered || name == "src" && found.folders.contains("src"),
                "{name}"
            );
        }
        fs::write(path.join("a.py"), "2").unwrap();
        let state = checkout(path).unwrap();
        assert!(state.dirty && state.changed >= 2 && state.commit.len() == 40, "{state:?}");
        let branch = state.branch.clone().expect("a new repository has a branch");
        let state_now = ask(path).answer();
        assert_eq!(state_now.checkout, Some(state));
        let changes = state_now.changes.unwrap_or_default();
        assert!(changes.contains("+2"), "the launch waits for all of it: {changes}");
        git(&["checkout", "-q", "--detach"]);
        assert_eq!(checkout(path).map(|state| state.branch), Some(None), "no longer on {branch}");
    }
    #[test]
    fn git_1_programs_of_the_repository_do_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let at = |name: &str| path.join(name);
        let git = |args: &[&str]| {
            let own = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "protocol.file.allow=always"];
            let done = Command::new("git").arg("-C").arg(path).args(own).args(args).output().unwrap();
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        fs::create_dir(at("part")).unwrap();
        git(&["init", "-q"]);
        git(&["init", "-q", "part"]);
        for (name, text) in [
            ("evil", "#!/bin/sh\ntouch \"$(dirname \"$0\")/ran\"\ncat 2>/dev/null\n"),
            ("a.py", "1\n"),
            ("b.x", "1\n"),
            (".gitattributes", "*.py diff=own\n*.x filter=own\n"),
            ("part/c.x", "1\n"),
            ("part/.gitattributes", "*.x filter=deep\n"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        fs::set_permissions(at("evil"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let evil = at("evil").display().to_string();
        git(&["-C", "part", "add", "."]);
        git(&["-C", "part", "commit", "-qm", "x"]);
        git(&["add", "a.py", "b.x", ".gitattributes", "part"]);
        git(&["commit", "-qm", "x"]);
        for key in [
            "core.fsmonitor",
            "diff.external",
            "diff.own.textconv",
            "diff.own.command",
            "filter.own.clean",
            "core.pager",
        ] {
            git(&["config", key, &evil]);
        }
        git(&["config", "filter.own.required", "true"]);
        git(&["config", "color.ui", "always"]);
        git(&["config", "diff.noprefix", "true"]);
        git(&["-C", "part", "config", "filter.deep.clean", &evil]);
        git(&["-C", "part", "config", "core.fsmonitor", &evil]);
        // Of another length, so that the file's time does not count; git reads the files to compare them.
        for name in ["a.py", "b.x", "part/c.x"] {
            fs::write(at(name), "22\n").unwrap();
        }
        let _ = fs::remove_file(at("ran"));
        assert!(ignored(path).files.is_empty());
        let state = ask(path).answer();
        assert!(!at("ran").exists(), "a program of the repository ran");
        assert!(state.checkout.is_some_and(|checkout| checkout.dirty && checkout.changed >= 3));
        let changes = state.changes.unwrap();
        for line in ["--- a/a.py", "+++ b/b.x", "+22"] {
            assert!(changes.lines().any(|found| found == line), "{line}: {changes:?}");
        }
        fs::write(at("p.diff"), &changes).unwrap();
        git(&["checkout", "-q", "--", "a.py"]);
        git(&[
            "-c",
            "filter.own.required=false",
            "-c",
            "filter.own.clean=",
            "apply",
            "-p1",
            "--include=a.py",
            "p.diff",
        ]);
        assert_eq!(fs::read_to_string(at("a.py")).unwrap(), "22\n");
    }
}
