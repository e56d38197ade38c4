//! Reads files that were found, not named by the user: regular ones only, and not without a bound.
//!
//! A pipe in their place would block the reader forever, and a device would fill its memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most bytes of a small text file.
pub const TEXT_BYTES: u64 = 4 << 20;

/// Opens a regular file for reading.
///
/// # Errors
/// It is something else, or a system error.
pub fn open(path: &Path) -> io::Result<File> {
    // Without this flag, opening a pipe waits for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open`], or the file is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_long = || io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes"));
    if file.metadata()?.len() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

/// Reads a small regular file of UTF-8 text.
///
/// # Errors
/// Those of [`read`], or it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path, TEXT_BYTES)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn read_refuses_pipes_devices_and_long_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pipe = CString::new(at("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        symlink("/dev/zero", at("zero")).unwrap();
        std::fs::write(at("text"), "12345").unwrap();
        symlink(at("text"), at("link")).unwrap();
        for name in ["pipe", "zero", "", "none"] {
            assert!(read(&at(name), 8).is_err() && open(&at(name)).is_err(), "{name}");
        }
        assert_eq!(read(&at("text"), 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(&at("link"), 5).unwrap(), b"12345");
        assert_eq!(read_text(&at("text")).unwrap(), "12345");
        std::fs::write(at("text"), b"\xff").unwrap();
        assert!(read_text(&at("text")).is_err());
    }
}
