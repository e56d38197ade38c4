//! What a program file needs of the machine that runs it.
//!
//! Reads the head of a 64-bit little-endian ELF file: machine, loader (`PT_INTERP`), and the newest version
//! of glibc among the names that the loader has to find (`DT_STRTAB`). Source: the System V ABI, chapters 4
//! and 5.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Needs of one program. Default: none, as of a script or a static program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
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
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Reads so many bytes of a file from an offset; `None` when it does not have them.
type ReadAt<'a> = &'a dyn Fn(u64, u64) -> Option<Vec<u8>>;

/// Most bytes of one table.
const MAX_TABLE: u64 = 64 << 20;

/// The needs of a program; a file of another kind has none that are known.
pub fn needs(file: &File) -> Needs {
    needs_of(&|offset, size| {
        let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= MAX_TABLE)?];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    })
}

fn needs_of(read: ReadAt<'_>) -> Needs {
    let Some(segments) = segments(read) else { return Needs::default() };
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
    Needs { loader, glibc: versions.max() }
}

/// `GLIBC_2.34` as a version.
fn glibc(name: &[u8]) -> Option<(u32, u32)> {
    let mut parts = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn segments(read: ReadAt<'_>) -> Option<Vec<Segment>> {
    let head = read(0, 64)?;
    // 64 bits, little end first.
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, size, count) = (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    let segment = |index: u64| {
        let entry = read(table.checked_add(index * size)?, size)?;
        Some(Segment {
            kind: u32::try_from(number(&entry, 0, 4)?).ok()?,
            offset: number(&entry, 8, 8)?,
            address: number(&entry, 16, 8)?,
            size: number(&entry, 32, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

/// A little-endian number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    Some(bytes.get(at..at + size)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Needs {
        needs_of(&|offset, size| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?).map(<[u8]>::to_vec)
        })
    }

    #[test]
    fn this_program_needs_the_loader_and_the_glibc_it_is_linked_with() {
        let needs = needs(&File::open(std::env::current_exe().unwrap()).unwrap());
        assert!(needs.loader.unwrap().contains("ld-linux"));
        assert!(needs.glibc.unwrap() >= (2, 17));
    }

    #[test]
    fn scripts_and_cut_files_have_no_needs_that_are_known() {
        assert_eq!(of(b"#!/bin/sh\n"), Needs::default());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for end in 0..2048 {
            of(&own[..end]);
        }
        let mut huge = own[..4096].to_vec();
        huge[32..40].fill(0xff);
        assert_eq!(of(&huge), Needs::default());
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(glibc(b"GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc(b"GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc(b"GLIBC_PRIVATE"), None);
    }
}
