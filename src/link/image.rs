//! A local file that a host is to have, identified by its content.

use super::elf::{self, Needs};
use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// What is known of files, by path, size and time of change.
type NeedsCache = HashMap<(PathBuf, u64, SystemTime), (String, Needs)>;

/// One file to have on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Where it is here.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// What it needs of a host, if it is a program.
    pub needs: Needs,
}

impl Image {
    /// Looks at a file; hashes of unchanged files are kept, since sixteen links want the same one.
    pub fn read(path: &Path) -> io::Result<Image> {
        static SEEN: Mutex<Option<NeedsCache>> = Mutex::new(None);
        let facts = fs::metadata(path)?;
        let key = (path.to_path_buf(), facts.len(), facts.modified()?);
        // Held while hashing: the other links wait for the one that does it.
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert_default();
        let (sha256, needs) = match seen.get(&key) {
            Some(known) => known.clone(),
            None => {
                let known = look(path)?;
                seen.insert(key, known.clone());
                known
            }
        };
        Ok(Image { path: path.to_path_buf(), size: facts.len(), sha256, needs })
    }

    /// SHA-256 of `size` bytes from `offset`.
    pub fn piece(&self, offset: u64, size: u64) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes)?;
        Ok(words::hex(&Sha256::digest(&bytes)))
    }
}

fn look(path: &Path) -> io::Result<(String, Needs)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((words::hex(&digest.finalize()), elf::needs(&file))),
            count => digest.update(&buffer[..count]),
        }
    }
}
