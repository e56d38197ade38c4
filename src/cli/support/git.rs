//! Reads the state of a checkout through the `git` program. Without git or a checkout, there is no state.

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

/// Returns what `.gitignore` and the like exclude below `folder`.
pub(crate) fn ignored(folder: &Path) -> IgnoredPaths {
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

/// Returns the diff against the commit below `folder`, at most [`DIFF`] bytes; empty without changes.
fn difference(folder: &Path) -> String {
    run(folder, &["diff", "HEAD", "--", "."], DIFF).unwrap_or_default()
}

/// The checkout around a directory, and its diff.
#[derive(Debug, Default)]
pub(crate) struct CodeState {
    pub(crate) checkout: Option<Checkout>,
    /// At most [`DIFF`] bytes.
    pub(crate) changes: String,
}

impl CodeState {
    fn of(folder: &Path) -> CodeState {
        let checkout = checkout(folder);
        let is_dirty = checkout.as_ref().is_some_and(|checkout| checkout.dirty);
        CodeState { checkout, changes: if is_dirty { difference(folder) } else { String::new() } }
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
    let mut child = Command::new("git")
        .arg("-C")
        .arg(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
        .args(args)
        .env("GIT_OPTIONAL_LOCKS", "0")
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
        assert!(state_now.changes.contains("+2"), "the launch waits for all of it: {state_now:?}");
        git(&["checkout", "-q", "--detach"]);
        assert_eq!(checkout(path).map(|state| state.branch), Some(None), "no longer on {branch}");
    }
}
