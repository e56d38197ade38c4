//! Local files to deploy, identified by content, with their requirements.
//!
//! Reads the head of a 64-bit little-endian ELF file: machine, loader (`PT_INTERP`), and the newest version
//! of glibc among the names that the loader has to find (`DT_STRTAB`). Source: the System V ABI, chapters 4
//! and 5.

use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Hashes and requirements, by path, size and modification time.
type RequirementsCache = HashMap<(PathBuf, u64, SystemTime), (String, BinaryRequirements)>;

/// A file to deploy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Local path.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Requirements of a program.
    pub needs: BinaryRequirements,
}

impl Image {
    /// Reads a file. Hashes of unchanged files are cached: all links deploy the same ones.
    pub fn read(path: &Path) -> io::Result<Image> {
        static SEEN: Mutex<Option<RequirementsCache>> = Mutex::new(None);
        let facts = fs::metadata(path)?;
        let key = (path.to_path_buf(), facts.len(), facts.modified()?);
        // Held while hashing, so that other links wait for the result.
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert_default();
        let (sha256, needs) = match seen.get(&key) {
            Some(known) => known.clone(),
            None => {
                let known = hash_and_needs(path)?;
                seen.insert(key, known.clone());
                known
            }
        };
        Ok(Image { path: path.to_path_buf(), size: facts.len(), sha256, needs })
    }

    /// Returns the SHA-256 of `size` bytes from `offset`.
    pub fn piece(&self, offset: u64, size: u64) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes)?;
        Ok(words::hex(&Sha256::digest(&bytes)))
    }
}

fn hash_and_needs(path: &Path) -> io::Result<(String, BinaryRequirements)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((words::hex(&digest.finalize()), needs(&file))),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// Requirements of a program. Default: none, for scripts and static programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BinaryRequirements {
    /// Path of the loader.
    pub loader: Option<String>,
    /// Oldest glibc that has every symbol.
    pub glibc: Option<(u32, u32)>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// One entry of the program header table.
struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Reads bytes of a file at an offset; `None` if it is too short.
type ReadAt<'a> = &'a dyn Fn(u64, u64) -> Option<Vec<u8>>;

/// Most bytes of one table.
const MAX_TABLE: u64 = 64 << 20;

/// Returns the requirements of a program; none for other files.
fn needs(file: &File) -> BinaryRequirements {
    needs_of(&|offset, size| {
        let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= MAX_TABLE)?];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    })
}

fn needs_of(read: ReadAt<'_>) -> BinaryRequirements {
    let Some(segments) = segments(read) else { return BinaryRequirements::default() };
    let of = |kind: u32| segments.iter().find(|segment| segment.kind == kind);
    let loader = of(PT_INTERP).and_then(|segment| read(segment.offset, segment.size));
    let loader = loader.map(|text| String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned());
    let names = of(PT_DYNAMIC).and_then(|segment| {
        let dynamic = read(segment.offset, segment.size)?;
        let value = |tag: u64| {
            let mut entries = dynamic.chunks_exact(16);
            entries.find(|entry| number(entry, 0, 8) == Some(tag)).and_then(|entry| number(entry, 8, 8))
        };
        let address = value(DT_STRTAB)?;
        let home = segments.iter().find(|segment| {
            segment.kind == PT_LOAD && address >= segment.address && address - segment.address < segment.size
        })?;
        read(home.offset.checked_add(address - home.address)?, value(DT_STRSZ)?)
    });
    let names = names.unwrap_or_default();
    let versions = names.split(|&byte| byte == 0).filter_map(glibc);
    BinaryRequirements { loader, glibc: versions.max() }
}

/// Parses `GLIBC_2.34` into a version.
fn glibc(name: &[u8]) -> Option<(u32, u32)> {
    let mut parts = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn segments(read: ReadAt<'_>) -> Option<Vec<ProgramHeader>> {
    let head = read(0, 64)?;
    // 64-bit, little-endian.
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, size, count) = (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    let segment = |index: u64| {
        let entry = read(table.checked_add(index * size)?, size)?;
        Some(ProgramHeader {
            kind: u32::try_from(number(&entry, 0, 4)?).ok()?,
            offset: number(&entry, 8, 8)?,
            address: number(&entry, 16, 8)?,
            size: number(&entry, 32, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

/// Reads a little-endian number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    Some(bytes.get(at..at + size)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> BinaryRequirements {
        needs_of(&|offset, size| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?).map(<[u8]>::to_vec)
        })
    }

    #[test]
    fn own_binary_needs_its_loader_and_glibc() {
        let needs = needs(&File::open(std::env::current_exe().unwrap()).unwrap());
        assert!(needs.loader.unwrap().contains("ld-linux"));
        assert!(needs.glibc.unwrap() >= (2, 17));
    }

    #[test]
    fn script_or_truncated_file_has_no_needs() {
        assert_eq!(of(b"#!/bin/sh\n"), BinaryRequirements::default());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for end in 0..2048 {
            of(&own[..end]);
        }
        let mut huge = own[..4096].to_vec();
        huge[32..40].fill(0xff);
        assert_eq!(of(&huge), BinaryRequirements::default());
    }

    #[test]
    fn glibc_version_is_parsed() {
        assert_eq!(glibc(b"GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc(b"GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc(b"GLIBC_PRIVATE"), None);
    }
}
