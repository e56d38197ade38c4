//! The identity of this build.

use object::{Object, ReadCache};
use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::sync::OnceLock;

/// Crate version and content of the running executable, as in `hello`.
pub(crate) fn build() -> String {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| named(content())).clone()
}

fn named(content: Option<String>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    content.map_or_else(|| version.to_owned(), |content| format!("{version}+{content}"))
}

/// Twelve hexadecimal digits: the linker's own hash of the content, or a SHA-256 where a linker left none.
fn content() -> Option<String> {
    let mut file = File::open("/proc/self/exe").ok()?;
    if let Some(id) = build_id(&file) {
        return Some(id);
    }
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).ok()?;
    Some(words::hex(&hash.finalize()[..6]))
}

/// From the note `.note.gnu.build-id` (`man ld`, --build-id), which a stripped copy keeps.
fn build_id(file: &File) -> Option<String> {
    let cache = ReadCache::new(file);
    let program = object::File::parse(&cache).ok()?;
    let id = program.build_id().ok()??;
    id.get(..6).map(words::hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linkers_hash_names_this_build() {
        let id = build_id(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(build(), format!("{}+{id}", env!("CARGO_PKG_VERSION")));
        assert_eq!(id.len(), 12);
    }

    #[test]
    fn program_without_the_note_has_no_build_id() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "#!/bin/sh\n").unwrap();
        assert_eq!(build_id(&File::open(file.path()).unwrap()), None);
    }
}
