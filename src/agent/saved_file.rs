//! Whether a checkpoint is whole: a writer that was killed, and a full disk, leave the first part of a file.
//!
//! Owner: threads and one-shot commands. Invariants:
//! - WHOLE-1: only a file whose own format shows that its end is missing is cut off: an archive (PyTorch, Lightning,
//!   Stable-Baselines3) without the directory at its end, a safetensors file that is shorter than in its header, an
//!   empty one of these. Of each, bounded parts are read.

use rankdeck_proto::files::CHECKPOINT_ENDINGS;
use rankdeck_proto::regular;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most files of a checkpoint that are looked at, and deepest directory.
const FILES: usize = 256;
const DEPTH: usize = 8;
/// Most bytes from the beginning of an archive's last record to its end: the record, and a comment.
const TAIL: u64 = 22 + 65_535;
/// Largest header of a safetensors file that is read.
const HEADER: u64 = 4 << 20;

/// Whether a file, or one in a directory, is cut off. What cannot be read is not.
pub(crate) fn is_cut_off(path: &Path) -> bool {
    let mut open = vec![(path.to_owned(), 0)];
    let mut files = 0;
    while let Some((path, depth)) = open.pop() {
        let Ok(data) = std::fs::symlink_metadata(&path) else { continue };
        if data.is_dir() && depth < DEPTH {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten().take(FILES);
            open.extend(entries.map(|entry| (entry.path(), depth + 1)));
        } else if data.is_file() {
            files += 1;
            if files > FILES {
                return false;
            }
            if is_file_cut_off(&path).unwrap_or(false) {
                return true;
            }
        }
    }
    false
}

/// WHOLE-1.
fn is_file_cut_off(path: &Path) -> io::Result<bool> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !CHECKPOINT_ENDINGS.contains(&ending) {
        return Ok(false);
    }
    let file = regular::open(path)?;
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(true);
    }
    let mut head = [0; 8];
    file.read_exact_at(&mut head[..length.min(8) as usize], 0)?;
    if head.starts_with(b"PK\x03\x04") {
        let from = length.saturating_sub(TAIL);
        let mut tail = vec![0; (length - from) as usize];
        file.read_exact_at(&mut tail, from)?;
        return Ok(memchr::memmem::rfind(&tail, b"PK\x05\x06").is_none());
    }
    let header = u64::from_le_bytes(head);
    if ending != "safetensors" || header > HEADER && length >= 8 {
        return Ok(false);
    }
    let begin = head.len() as u64 + header;
    if length < begin {
        return Ok(true);
    }
    let mut text = vec![0; header as usize];
    file.read_exact_at(&mut text, head.len() as u64)?;
    let Ok(tensors) = serde_json::from_slice::<BTreeMap<String, Value>>(&text) else { return Ok(false) };
    let ends = tensors.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    Ok(length < begin.saturating_add(ends.max().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_1_cut_off_files_lack_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let archive = [&b"PK\x03\x04archive/data.pkl"[..], b"weights", b"PK\x05\x06", &[0; 18]].concat();
        let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let tensors = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
        let commented = [&archive[..], &[b'c'; 900]].concat();
        for (name, bytes, expected) in [
            ("a.pt", &archive[..], false),
            ("a.zip", &commented[..], false),
            ("a.pt", &archive[..20], true),
            ("a.ckpt", &archive[..archive.len() - 22], true),
            ("a.pt", &b""[..], true),
            ("a.safetensors", &tensors[..], false),
            ("a.safetensors", &tensors[..tensors.len() - 1], true),
            ("a.safetensors", &tensors[..20], true),
            ("a.pt", &archive[..4], true),
            ("a.safetensors", &tensors[..5], true),
            // Formats that do not show it.
            ("a.pt", &b"\x80\x02old format"[..], false),
            ("a.pt", &b"x"[..], false),
            ("a.json", &b""[..], false),
            ("a.safetensors", &[0xff; 64][..], false),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(is_cut_off(&path), expected, "{name} {} bytes", bytes.len());
            std::fs::remove_file(&path).unwrap();
        }
        assert!(!is_cut_off(&folder.path().join("none.pt")));
    }

    #[test]
    fn whole_1_directory_is_cut_off_with_one_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("checkpoint-20/policy");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("trainer_state.json"), "{}").unwrap();
        std::fs::write(inner.join("a.pt"), b"PK\x03\x04PK\x05\x06").unwrap();
        assert!(!is_cut_off(folder.path()));
        std::fs::write(inner.join("b.pt"), b"PK\x03\x04weights").unwrap();
        assert!(is_cut_off(folder.path()));
    }
}
