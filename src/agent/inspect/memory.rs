//! Memory and mappings of another process, without stopping it.
//!
//! Reading takes the process's memory lock and can therefore block forever when
//! a thread of it is stuck in the kernel while holding that lock: only for helper threads with a deadline
//! (INSPECT-1).

use std::io;

/// One mapping of a file with code in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeMapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Path as the process sees it.
    pub path: String,
    /// The file is no longer there; what is in its place is another one.
    pub gone: bool,
}

/// The executable file mappings of a process.
pub(crate) fn code(pid: u32) -> io::Result<Vec<CodeMapping>> {
    Ok(parse(&crate::proc::read(format!("/proc/{pid}/maps"))?))
}

fn parse(maps: &str) -> Vec<CodeMapping> {
    maps.lines()
        .filter_map(|line| {
            let mut words = line.splitn(6, ' ').map(str::trim);
            let (range, mode, offset) = (words.next()?, words.next()?, words.next()?);
            let path = words.nth(2)?;
            let (start, end) = range.split_once('-')?;
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (path, gone) = path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true));
            (mode.contains('x') && path.starts_with('/')).then_some(CodeMapping {
                start: hex(start)?,
                end: hex(end)?,
                offset: hex(offset)?,
                path: path.to_owned(),
                gone,
            })
        })
        .collect()
}

/// At most `most` bytes from `address` upwards, up to the end of the mapping.
pub(crate) fn read(pid: u32, address: u64, most: usize) -> io::Result<Vec<u8>> {
    const STEP: usize = 4096;
    let mut bytes = vec![0u8; most];
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
    // One piece per page: a read ends before the first piece that is not wholly there.
    let mut there = Vec::new();
    let mut at = address;
    let end = address.saturating_add(most as u64);
    while at < end && there.len() < 1024 {
        let next = ((at / STEP as u64 + 1) * STEP as u64).min(end);
        there.push(libc::iovec { iov_base: at as *mut libc::c_void, iov_len: (next - at) as usize });
        at = next;
    }
    // SAFETY: `here` points into `bytes`, which outlives the call; the addresses in `there` belong to the
    // other process and are checked by the kernel.
    let got = unsafe {
        libc::process_vm_readv(pid as libc::pid_t, &here, 1, there.as_ptr(), there.len() as libc::c_ulong, 0)
    };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(got as usize);
    Ok(bytes)
}

/// A NUL-terminated text of a process, at most 4096 bytes.
pub(crate) fn text(pid: u32, address: u64) -> Option<String> {
    let bytes = read(pid, address, 4096).ok()?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_from_files_counts() {
        let maps = "\
55d0-55d8 r--p 00000000 08:01 12                         /usr/bin/x
55d8-55ff r-xp 00001000 08:01 12                         /usr/bin/x y (deleted)
7ffd-7fff rw-p 00000000 00:00 0                          [stack]
7fff-8000 r-xp 00000000 00:00 0                          [vdso]
";
        let code = parse(maps);
        assert_eq!(code.len(), 1);
        assert_eq!((code[0].start, code[0].offset, code[0].path.as_str()), (0x55d8, 0x1000, "/usr/bin/x y"));
        assert!(code[0].gone);
    }

    #[test]
    fn reading_stops_where_memory_ends() {
        let value = *b"across a process boundary\0";
        let pid = std::process::id();
        assert_eq!(text(pid, value.as_ptr() as u64).unwrap(), "across a process boundary");
        assert!(read(pid, 16, 8).is_err());
    }
}
