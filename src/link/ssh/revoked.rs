//! `RevokedHostKeys` of the ssh configuration: a list of public keys, or a key revocation list (KRL).
//!
//! As OpenSSH: a file that cannot be read or understood revokes every key. Source of the binary form:
//! OpenSSH's PROTOCOL.krl. Certificates in a list are left aside: a host shows plain keys here.

use super::keys;
use super::known_hosts;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Most bytes of a file that are read.
const MAX_FILE: u64 = 16 << 20;
const MAGIC: &[u8] = b"SSHKRL\n\0";

/// Is `key` (wire form) revoked by the file? An error says why the file is of no use.
pub fn revokes(file: &Path, key: &[u8]) -> Result<bool, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("larger than {} MiB", MAX_FILE >> 20));
    }
    match bytes.strip_prefix(MAGIC) {
        Some(rest) => listed(rest, key),
        None => named(&String::from_utf8_lossy(&bytes), key),
    }
}

/// A list of keys, one per line.
fn named(text: &str, key: &[u8]) -> Result<bool, String> {
    let mut found = false;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let blob = keys::public_blob(line)
            .filter(|blob| line.split_whitespace().next() == Some(known_hosts::key_type(blob).as_str()));
        let blob = blob.ok_or_else(|| format!("line {} is not a public key", index + 1))?;
        found |= blob == key;
    }
    Ok(found)
}

/// The sections of a KRL behind its magic number.
fn listed(bytes: &[u8], key: &[u8]) -> Result<bool, String> {
    const CERTIFICATES: u8 = 1;
    const KEYS: u8 = 2;
    const SHA1_OF_KEYS: u8 = 3;
    const SIGNATURES: u8 = 4;
    const SHA256_OF_KEYS: u8 = 5;
    const EXTENSION: u8 = 255;
    let cut = || "the revocation list is cut short".to_string();
    let (version, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
    if u32::from_be_bytes(*version) != 1 {
        return Err("the revocation list has an unknown version".into());
    }
    // Number, date, flags.
    let mut rest = rest.get(24..).ok_or_else(cut)?;
    for _reserved_and_comment in 0..2 {
        keys::string(&mut rest).ok_or_else(cut)?;
    }
    let mut found = false;
    while let Some((&kind, tail)) = rest.split_first() {
        rest = tail;
        let mut section = keys::string(&mut rest).ok_or_else(cut)?;
        let wanted = match kind {
            CERTIFICATES => continue,
            KEYS => key.to_vec(),
            SHA1_OF_KEYS => Sha1::digest(key).to_vec(),
            SHA256_OF_KEYS => Sha256::digest(key).to_vec(),
            // Nothing but signatures follows; OpenSSH does not ask for them either.
            SIGNATURES => break,
            EXTENSION if optional(section) => continue,
            kind => return Err(format!("section {kind} of the revocation list is unknown")),
        };
        while !section.is_empty() {
            found |= keys::string(&mut section).ok_or_else(cut)? == wanted;
        }
    }
    Ok(found)
}

/// An extension that may be ignored.
fn optional(mut section: &[u8]) -> bool {
    keys::string(&mut section).is_some() && section.first() == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use std::path::PathBuf;
    use std::process::Command;

    fn key(fill: u8) -> Vec<u8> {
        let kind = b"ssh-ed25519";
        [&[0, 0, 0, 11], &kind[..], &[0, 0, 0, 32], &[fill; 32]].concat()
    }

    fn line(key: &[u8]) -> String {
        format!("ssh-ed25519 {} comment\n", STANDARD.encode(key))
    }

    #[test]
    fn a_list_of_keys_revokes_its_keys_and_a_broken_one_cannot_be_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("revoked");
        assert!(revokes(&file, &key(1)).is_err(), "a missing file");
        std::fs::write(&file, format!("# lost\n\n{}{}", line(&key(1)), line(&key(2)))).unwrap();
        assert_eq!(revokes(&file, &key(2)), Ok(true));
        assert_eq!(revokes(&file, &key(3)), Ok(false));
        std::fs::write(&file, "ssh-ed25519 !!!\n").unwrap();
        assert!(revokes(&file, &key(3)).unwrap_err().contains("line 1"));
    }

    /// Against `ssh-keygen -k`, the reference, in all three ways to name a key.
    #[test]
    fn revocation_lists_of_ssh_keygen_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        let own = line(&key(1));
        let specs = [
            own.clone(),
            format!("key: {own}"),
            format!("sha1: {own}"),
            format!("sha256: {own}"),
            format!("hash: {}\n", known_hosts::fingerprint(&key(1))),
        ];
        for (index, spec) in specs.iter().enumerate() {
            let (list, file) = (path(&format!("list{index}")), path(&format!("spec{index}")));
            std::fs::write(&file, spec).unwrap();
            let made = Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).arg(&file).output();
            let Ok(made) = made else { return rankdeck_testkit::skipped("no ssh-keygen") };
            assert!(made.status.success(), "{spec}: {made:?}");
            assert_eq!(revokes(&list, &key(1)), Ok(true), "{spec}");
            assert_eq!(revokes(&list, &key(2)), Ok(false), "{spec}");
            let whole = std::fs::read(&list).unwrap();
            for end in MAGIC.len()..whole.len() {
                std::fs::write(&list, &whole[..end]).unwrap();
                let _ = revokes(&list, &key(1));
            }
        }
    }
}
