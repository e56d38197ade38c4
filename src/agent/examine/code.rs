//! The code that ranks will run: the hash of what was pushed, or of the script and its other ranks where nothing
//! is pushed.
//!
//! Owner: one preflight. Hosts are compared by these hashes, so they depend on names and contents only, never
//! on times or places.

use rankdeck_proto::examination::{CodeFinding, HostQuestion};
use rankdeck_proto::pack;
use rankdeck_proto::regular;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Most files next to a script that are hashed, and most bytes.
const MAX_FILES: usize = 2000;
const MAX_BYTES: u64 = 32 << 20;

pub(super) fn probe(question: &HostQuestion, workdir: &Path, script: Option<&str>) -> CodeFinding {
    if let Some(hash) = &question.code {
        return CodeFinding { pushed: pack::cached(hash).is_some(), ..CodeFinding::default() };
    }
    let Some(script) = script.map(Path::new) else { return CodeFinding::default() };
    let Ok(bytes) = regular::read(script, MAX_BYTES) else { return CodeFinding::default() };
    let folder = script.parent().unwrap_or(workdir);
    CodeFinding {
        pushed: false,
        script: Some(short(&Sha256::digest(bytes))),
        folder: neighbours(folder),
        commit: script.canonicalize().ok().and_then(|script| commit(&script)),
    }
}

fn short(digest: &[u8]) -> String {
    rankdeck_types::words::hex(&digest[..8])
}

/// Hash over all `.py` files of a directory; `None` when there are too many to be a program.
fn neighbours(folder: &Path) -> Option<String> {
    let mut files = Vec::new();
    gather(folder, 0, &mut files)?;
    files.sort();
    let mut digest = Sha256::new();
    let mut total = 0;
    for file in files {
        let bytes = regular::read(&file, MAX_BYTES).ok()?;
        total += bytes.len() as u64;
        if total > MAX_BYTES {
            return None;
        }
        digest.update(file.strip_prefix(folder).unwrap_or(&file).as_os_str().as_encoded_bytes());
        digest.update(Sha256::digest(&bytes));
    }
    Some(short(&digest.finalize()))
}

fn gather(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Option<()> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry.file_type().ok()?;
        // Runs, environments and repositories below do not belong to the program.
        let apart = name.starts_with('.')
            || ["runs", "venv", "env", "node_modules", "__pycache__", "site-packages"].contains(&&*name);
        if kind.is_dir() && !apart && depth < 8 {
            gather(&path, depth + 1, files)?;
        } else if kind.is_file() && name.ends_with(".py") {
            files.push(path);
            if files.len() > MAX_FILES {
                return None;
            }
        }
    }
    Some(())
}

/// Commit that the checkout around `path` stands on, from git's own files.
fn commit(path: &Path) -> Option<String> {
    let git = path.ancestors().map(|folder| folder.join(".git")).find(|git| git.is_dir())?;
    let head = regular::read_text(&git.join("HEAD")).ok()?;
    let head = head.trim();
    let full = match head.strip_prefix("ref: ") {
        None => head.to_owned(),
        Some(name) => match regular::read_text(&git.join(name)) {
            Ok(text) => text.trim().to_owned(),
            Err(_) => {
                let packed = regular::read(&git.join("packed-refs"), MAX_BYTES).ok()?;
                let packed = String::from_utf8_lossy(&packed);
                packed.lines().find(|line| line.ends_with(name))?.split(' ').next()?.to_owned()
            }
        },
    };
    Some(full.chars().take(16).collect()).filter(|commit: &String| commit.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_contents_and_names_only() {
        let make = |text: &str, name: &str| {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
            write("train.py", "import model");
            write(name, text);
            write("notes.txt", &format!("{:?}", folder.path()));
            std::fs::create_dir(folder.path().join("runs")).unwrap();
            write("runs/x.py", name);
            let script = folder.path().join("train.py");
            let code = probe(&HostQuestion::default(), folder.path(), script.to_str());
            (code.script.unwrap(), code.folder.unwrap())
        };
        let one = make("a", "model.py");
        assert_eq!(one, make("a", "model.py"));
        assert_ne!(one.1, make("b", "model.py").1);
        assert_ne!(one.1, make("a", "other.py").1);
        assert_eq!(one.0, make("b", "model.py").0, "the script is the same");
    }

    #[test]
    fn commit_is_found_loose_packed_or_detached() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let id = "0123456789abcdef0123456789abcdef01234567";
        write("sub/train.py", "");
        let found = || commit(&folder.path().join("sub/train.py"));
        assert_eq!(found(), None);
        write(".git/HEAD", &format!("{id}\n"));
        assert_eq!(found().as_deref(), Some("0123456789abcdef"));
        write(".git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(found(), None);
        write(".git/packed-refs", &format!("# pack\n{id} refs/heads/main\n"));
        assert_eq!(found().as_deref(), Some("0123456789abcdef"));
    }
}
