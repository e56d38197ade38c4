//! Stands in for the crate `zip`, of which tch needs what is below for `.npz` files. rankdeck has none.
//!
//! The real crate brings compressors, ciphers and a clock, and is built twice: for tch, and for a build
//! script that downloads libtorch where there is none. Here every archive is refused.

use result::ZipError;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

/// Errors.
pub mod result {
    /// The only one: archives are not supported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ZipError;

    impl std::fmt::Display for ZipError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("this build reads and writes no archives")
        }
    }

    impl std::error::Error for ZipError {}

    /// What everything here gives back.
    pub type ZipResult<T> = Result<T, ZipError>;
}

/// How archives are written.
pub mod write {
    /// Options of a file.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct FileOptions;

    impl FileOptions {
        /// The same.
        pub fn compression_method(self, _: super::CompressionMethod) -> FileOptions {
            self
        }
    }
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionMethod {
    /// Not at all.
    Stored,
}

/// An archive to read; there is none.
#[derive(Debug)]
pub struct ZipArchive<R> {
    never: std::convert::Infallible,
    of: PhantomData<R>,
}

impl<R> ZipArchive<R> {
    /// Refuses.
    pub fn new(_: R) -> result::ZipResult<ZipArchive<R>> {
        Err(ZipError)
    }

    /// How many files it holds.
    #[expect(clippy::len_without_is_empty, reason = "as the crate has it")]
    pub fn len(&self) -> usize {
        match self.never {}
    }

    /// A file of it.
    pub fn by_index(&mut self, _: usize) -> result::ZipResult<read::ZipFile> {
        match self.never {}
    }
}

/// How archives are read.
pub mod read {
    use super::{PathBuf, Read, io};

    /// A file of an archive; there is none.
    #[derive(Debug)]
    pub struct ZipFile {
        never: std::convert::Infallible,
    }

    impl ZipFile {
        /// Its name.
        pub fn name(&self) -> &str {
            match self.never {}
        }

        /// Its name as a path below the present folder.
        pub fn mangled_name(&self) -> PathBuf {
            match self.never {}
        }

        /// Its size.
        pub fn size(&self) -> u64 {
            match self.never {}
        }
    }

    impl Read for ZipFile {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            match self.never {}
        }
    }
}

/// An archive to write: it takes no file.
#[derive(Debug)]
pub struct ZipWriter<W> {
    of: PhantomData<W>,
}

impl<W> ZipWriter<W> {
    /// One that refuses all files.
    pub fn new(_: W) -> ZipWriter<W> {
        ZipWriter { of: PhantomData }
    }

    /// Refuses.
    pub fn start_file(&mut self, _: String, _: write::FileOptions) -> result::ZipResult<()> {
        Err(ZipError)
    }
}

impl<W> Write for ZipWriter<W> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(ZipError))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
