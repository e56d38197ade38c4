//! Checks a server's host key against known_hosts and `RevokedHostKeys`, and prompts for unknown keys.
//! libssh2 cannot verify host certificates, so that servers present their plain key.
//!
//! `RevokedHostKeys` is a list of public keys or a key revocation list (KRL). As in OpenSSH, a file that
//! cannot be read or parsed revokes every key. Source of the binary format: OpenSSH's PROTOCOL.krl.
//! Certificates in a list are ignored.

use super::connection::{Connection, Permit};
use super::known_hosts::{self, HostKeyCheck, KnownHosts};
use super::user_config::{SshTarget, UnknownKeys};
use super::{SessionOwner, SshError, keys, quote};
use rankdeck_types::link_state::Prompt;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Compares the server's key with known_hosts; prompts for an unknown key, and saves it on `yes`.
pub(super) fn check(
    connection: &Connection,
    known: &KnownHosts,
    name: &str,
    permit: &mut Option<Permit>,
    owner: &mut dyn SessionOwner,
) -> Result<(), SshError> {
    let target = &connection.target;
    let label = &target.label;
    let key = connection.session.host_key().map(|(key, _)| key.to_vec()).unwrap_or_default();
    let (kind, shown) = (known_hosts::key_type(&key), known_hosts::fingerprint(&key));
    let file = |location: &known_hosts::KeyLocation| format!("{}:{}", location.file.display(), location.line);
    if key.is_empty() {
        return Err(SshError::transient(format!("{label}: the server sent no host key"), ""));
    }
    not_revoked(target, name, &key)?;
    match known.check(name, &key) {
        HostKeyCheck::Match => Ok(()),
        HostKeyCheck::Revoked { location } => Err(SshError::permanent(
            format!("{label}: host key {shown} of {name} is revoked in {}", file(&location)),
            "do not connect; contact the administrator of this host",
        )),
        HostKeyCheck::Changed { location, key_type, fingerprint } => Err(SshError::permanent(
            format!(
                "{label}: host key of {name} has changed: {kind} {shown}, expected {key_type} {fingerprint} ({})",
                file(&location)
            ),
            format!(
                "this may be an attack; if the host was reinstalled, run `ssh-keygen -R {} -f {}` and connect again",
                quote::word(name),
                quote::word(&location.file.display().to_string())
            ),
        )),
        HostKeyCheck::Unknown => {
            if let Some(location) = known.authority(name) {
                return Err(SshError::permanent(
                    format!(
                        "{label}: host key of {name} ({kind} {shown}) is not in known_hosts; {} trusts a certificate authority \
                         for it, but the built-in SSH cannot check host certificates",
                        file(location)
                    ),
                    format!(
                        "set `transport = \"openssh\"` for this host in hosts.toml; or check the certificate with `{}` and add the line of `{scan}` \
                         with this fingerprint to known_hosts",
                        target.command(),
                        scan = format_args!(
                            "ssh-keyscan -t {kind} -p {} {}",
                            target.port,
                            quote::word(&target.address)
                        ),
                    ),
                ));
            }
            ask(connection, name, &key, permit, owner)
        }
    }
}

/// Checks `RevokedHostKeys`.
fn not_revoked(target: &SshTarget, name: &str, key: &[u8]) -> Result<(), SshError> {
    let Some(file) = &target.revoked_host_keys else { return Ok(()) };
    let (label, shown) = (&target.label, known_hosts::fingerprint(key));
    match revokes(file, key) {
        Ok(false) => Ok(()),
        Ok(true) => Err(SshError::permanent(
            format!("{label}: host key {shown} of {name} is revoked by {} (RevokedHostKeys)", file.display()),
            "do not connect; contact the administrator of this host",
        )),
        Err(why) => Err(SshError::permanent(
            format!(
                "{label}: all host keys are rejected: cannot use RevokedHostKeys {}: {why}",
                file.display()
            ),
            "fix the file (`ssh-keygen -Q -l -f FILE` prints it), or remove RevokedHostKeys from the ssh configuration",
        )),
    }
}

/// Prompts for an unknown key.
fn ask(
    connection: &Connection,
    name: &str,
    key: &[u8],
    permit: &mut Option<Permit>,
    owner: &mut dyn SessionOwner,
) -> Result<(), SshError> {
    let target = &connection.target;
    let label = &target.label;
    let (kind, shown) = (known_hosts::key_type(key), known_hosts::fingerprint(key));
    let scan = format!("ssh-keyscan -p {} {} | ssh-keygen -lf -", target.port, quote::word(&target.address));
    let refused = |why: &str| {
        SshError::permanent(
            format!("{label}: host key of {name} is unknown ({kind} {shown}){why}"),
            format!(
                "compare the fingerprint with `{scan}` from a trusted network, then accept it with `{}`",
                target.command()
            ),
        )
    };
    if target.unknown_keys == UnknownKeys::Accept {
        save(target, name, key);
        return Ok(());
    }
    if target.unknown_keys == UnknownKeys::Refuse {
        return Err(refused(" and StrictHostKeyChecking is yes"));
    }
    if !owner.interactive() {
        return Err(refused(""));
    }
    // Other handshakes need not wait for the user.
    permit.take();
    let prompt =
        Prompt::UnknownHostKey { host: name.into(), key_type: kind.clone(), fingerprint: shown.clone() };
    let answer = owner.ask(&prompt);
    if owner.closing() {
        return Err(SshError::closed());
    }
    match answer.as_deref().map(str::trim) {
        Some("yes") => {}
        Some(typed) if typed == shown => {}
        _ => return Err(refused(" and was not accepted")),
    }
    save(target, name, key);
    Ok(())
}

/// Saves a key. A failure is only logged: the user is prompted again next time.
fn save(target: &SshTarget, name: &str, key: &[u8]) {
    let Some(file) = target.known_hosts.first() else { return };
    if let Err(error) = known_hosts::append(file, name, key) {
        let host = &target.label;
        tracing::warn!(%host, file = %file.display(), %error, "cannot save the host key");
    }
}

/// Most bytes of a revocation file that are read.
const MAX_FILE: u64 = 16 << 20;
const MAGIC: &[u8] = b"SSHKRL\n\0";

/// Returns whether the file revokes `key` (wire form).
///
/// # Errors
/// The file cannot be read or parsed.
fn revokes(file: &Path, key: &[u8]) -> Result<bool, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("larger than {} MiB", MAX_FILE >> 20));
    }
    match bytes.strip_prefix(MAGIC) {
        Some(rest) => krl_revokes(rest, key),
        None => key_list_revokes(&String::from_utf8_lossy(&bytes), key),
    }
}

/// Searches a list of keys, one per line.
fn key_list_revokes(text: &str, key: &[u8]) -> Result<bool, String> {
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

/// Searches the sections of a KRL after its magic number.
fn krl_revokes(bytes: &[u8], key: &[u8]) -> Result<bool, String> {
    const CERTIFICATES: u8 = 1;
    const KEYS: u8 = 2;
    const SHA1_OF_KEYS: u8 = 3;
    const SIGNATURES: u8 = 4;
    const SHA256_OF_KEYS: u8 = 5;
    const EXTENSION: u8 = 255;
    let cut = || "the revocation list is truncated".to_string();
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
        let needle = match kind {
            CERTIFICATES => continue,
            KEYS => key.to_vec(),
            SHA1_OF_KEYS => Sha1::digest(key).to_vec(),
            SHA256_OF_KEYS => Sha256::digest(key).to_vec(),
            // Only signatures follow; OpenSSH ignores them, too.
            SIGNATURES => break,
            EXTENSION if optional(section) => continue,
            kind => return Err(format!("section {kind} of the revocation list is unknown")),
        };
        while !section.is_empty() {
            found |= keys::string(&mut section).ok_or_else(cut)? == needle;
        }
    }
    Ok(found)
}

/// Returns whether an extension may be ignored.
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
    fn key_list_revokes_its_keys_and_broken_list_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("revoked");
        assert!(revokes(&file, &key(1)).is_err(), "a missing file");
        std::fs::write(&file, format!("# lost\n\n{}{}", line(&key(1)), line(&key(2)))).unwrap();
        assert_eq!(revokes(&file, &key(2)), Ok(true));
        assert_eq!(revokes(&file, &key(3)), Ok(false));
        std::fs::write(&file, "ssh-ed25519 !!!\n").unwrap();
        assert!(revokes(&file, &key(3)).unwrap_err().contains("line 1"));
    }

    /// All key forms of `ssh-keygen -k`.
    #[test]
    fn krl_of_ssh_keygen_revokes_its_keys() {
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
