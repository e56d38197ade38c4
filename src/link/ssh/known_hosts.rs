//! Reads and writes `known_hosts`.
//!
//! The libraries' readers match keys of other ports, lack wildcards, ignore `@revoked`, and fail on one bad
//! line. This one follows OpenSSH: plain, hashed (HMAC-SHA1), `[host]:port`, `*`, `?`, `!`, `@revoked`;
//! malformed lines are skipped. It only detects `@cert-authority`, because libssh2 cannot verify
//! certificates. Stricter than OpenSSH, a key for port 22 does not match another port. Invariants:
//! - KNOWN-1: a revoked key never matches, even if it is listed elsewhere.
//! - KNOWN-2: a host with another known key is `Changed`, never `Unknown`.
//! - KNOWN-3: only whole lines are appended, and existing lines are never rewritten.
//!
//! Checks a server's host key against known_hosts and `RevokedHostKeys`, and prompts for unknown keys.
//! libssh2 cannot verify host certificates, so that servers present their plain key.
//!
//! `RevokedHostKeys` is a list of public keys or a key revocation list (KRL). As in OpenSSH, a file that
//! cannot be read or parsed revokes every key. Source of the binary format: OpenSSH's PROTOCOL.krl.
//! Certificates in a list are ignored.

use super::connection::{Connection, Permit};
use super::user_config::{SshTarget, UnknownKeys};
use super::{SessionOwner, SshError, keys, quote};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, Mac};
use rankdeck_proto::regular;
use rankdeck_types::link_state::Prompt;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest part of a file to read.
const MAX_FILE: u64 = 16 << 20;

/// Location of a key in known_hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyLocation {
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
}

/// Result of checking a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostKeyCheck {
    /// The key is known.
    Match,
    /// The host has no known key.
    Unknown,
    /// The host has another known key.
    Changed {
        /// Location, of a key of the same type if possible.
        location: KeyLocation,
        /// Type of the known key.
        key_type: String,
        /// `SHA256:...` of the known key.
        fingerprint: String,
    },
    /// The key is revoked.
    Revoked {
        /// Location of the revocation.
        location: KeyLocation,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    /// Patterns and whether they are negated.
    Patterns(Vec<(bool, String)>),
    /// Salt and HMAC.
    Hashed(Vec<u8>, Vec<u8>),
}

/// Marker of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyMarker {
    /// A host key.
    Plain,
    Revoked,
    /// `@cert-authority`: a key that signs host certificates.
    Authority,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownHostEntry {
    location: KeyLocation,
    marker: KeyMarker,
    names: Names,
    key_type: String,
    key: Vec<u8>,
}

/// Contents of known_hosts files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KnownHosts {
    entries: Vec<KnownHostEntry>,
}

impl KnownHosts {
    /// Reads the files that exist; a file that cannot be read counts as empty (its hosts are then unknown).
    pub fn load(files: &[PathBuf]) -> KnownHosts {
        let mut known = KnownHosts::default();
        for file in files {
            let mut bytes = Vec::new();
            let read = regular::open(file).and_then(|opened| opened.take(MAX_FILE).read_to_end(&mut bytes));
            if read.is_ok() {
                known.add(file, &String::from_utf8_lossy(&bytes));
            }
        }
        known
    }

    /// Adds the lines of one file.
    pub fn add(&mut self, file: &Path, text: &str) {
        let lines = text.lines().enumerate();
        self.entries.extend(lines.filter_map(|(index, line)| {
            entry(line, KeyLocation { file: file.to_path_buf(), line: index + 1 })
        }));
    }

    /// Checks `key` (wire form) of the host `name` ([`record_name`]).
    pub fn check(&self, name: &str, key: &[u8]) -> HostKeyCheck {
        let ours: Vec<&KnownHostEntry> =
            self.entries.iter().filter(|entry| entry.names.matches(name)).collect();
        if let Some(entry) = ours.iter().find(|entry| entry.marker == KeyMarker::Revoked && entry.key == key)
        {
            return HostKeyCheck::Revoked { location: entry.location.clone() };
        }
        let listed: Vec<&KnownHostEntry> =
            ours.into_iter().filter(|entry| entry.marker == KeyMarker::Plain).collect();
        if listed.iter().any(|entry| entry.key == key) {
            return HostKeyCheck::Match;
        }
        let kind = key_type(key);
        let nearest = listed.iter().find(|entry| entry.key_type == kind).or(listed.first());
        match nearest {
            None => HostKeyCheck::Unknown,
            Some(entry) => HostKeyCheck::Changed {
                location: entry.location.clone(),
                key_type: entry.key_type.clone(),
                fingerprint: fingerprint(&entry.key),
            },
        }
    }

    /// Returns the location of a trusted certificate authority for this host.
    pub fn authority(&self, name: &str) -> Option<&KeyLocation> {
        let mut entries = self.entries.iter();
        let found =
            entries.find(|entry| entry.marker == KeyMarker::Authority && entry.names.matches(name))?;
        let revoked = |entry: &KnownHostEntry| entry.marker == KeyMarker::Revoked && entry.key == found.key;
        (!self.entries.iter().any(revoked)).then_some(&found.location)
    }

    /// Returns the types of the known keys of a host, in the order of the file.
    pub(crate) fn key_types(&self, name: &str) -> Vec<String> {
        let mut types: Vec<String> = Vec::new();
        for entry in
            self.entries.iter().filter(|entry| entry.marker == KeyMarker::Plain && entry.names.matches(name))
        {
            if !types.contains(&entry.key_type) {
                types.push(entry.key_type.clone());
            }
        }
        types
    }
}

impl Names {
    fn matches(&self, name: &str) -> bool {
        match self {
            Names::Hashed(salt, hash) => Hmac::<Sha1>::new_from_slice(salt)
                .is_ok_and(|mac| mac.chain_update(name.as_bytes()).verify_slice(hash).is_ok()),
            Names::Patterns(patterns) => {
                let hit = |negated: bool| {
                    patterns.iter().any(|(is_negated, pattern)| *is_negated == negated && glob(pattern, name))
                };
                hit(false) && !hit(true)
            }
        }
    }
}

/// Returns the name of a host in the file: lower case, with `[...]:port` unless the port is 22.
pub(crate) fn record_name(host: &str, port: u16) -> String {
    let host = host.to_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

/// Returns `SHA256:` and the unpadded base64 of the digest, as in `ssh-keygen -l`.
pub fn fingerprint(key: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(key)))
}

/// Returns the type of a key in wire form, empty if malformed.
pub fn key_type(key: &[u8]) -> String {
    let Some(head) = key.first_chunk::<4>() else { return String::new() };
    let length = u32::from_be_bytes(*head) as usize;
    key.get(4..4 + length.min(256))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .unwrap_or_default()
}

/// Appends `name key`; creates the directory (0700) and the file (0600) if missing.
pub fn append(file: &Path, name: &str, key: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(file)?;
    // The last line may lack a newline.
    let mut last = [b'\n'];
    if opened.metadata()?.len() > 0 {
        opened.seek(SeekFrom::End(-1))?;
        opened.read_exact(&mut last)?;
    }
    let start = if last == *b"\n" { "" } else { "\n" };
    opened.write_all(format!("{start}{name} {} {}\n", key_type(key), STANDARD.encode(key)).as_bytes())
}

fn entry(line: &str, location: KeyLocation) -> Option<KnownHostEntry> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut fields = line.split_whitespace();
    let mut first = fields.next()?;
    let marker = match first {
        "@revoked" => KeyMarker::Revoked,
        "@cert-authority" => KeyMarker::Authority,
        _ if first.starts_with('@') => return None,
        _ => KeyMarker::Plain,
    };
    if marker != KeyMarker::Plain {
        first = fields.next()?;
    }
    let named_type = fields.next()?;
    let key = STANDARD.decode(fields.next()?).ok()?;
    if key_type(&key) != named_type {
        return None;
    }
    Some(KnownHostEntry { location, marker, names: names(first)?, key_type: named_type.into(), key })
}

fn names(field: &str) -> Option<Names> {
    if let Some(hashed) = field.strip_prefix("|1|") {
        let (salt, hash) = hashed.split_once('|')?;
        return Some(Names::Hashed(STANDARD.decode(salt).ok()?, STANDARD.decode(hash).ok()?));
    }
    if field.starts_with('|') {
        return None;
    }
    let patterns = field.split(',').filter(|pattern| !pattern.is_empty());
    Some(Names::Patterns(
        patterns
            .map(|pattern| match pattern.strip_prefix('!') {
                Some(rest) => (true, rest.to_lowercase()),
                None => (false, pattern.to_lowercase()),
            })
            .collect(),
    ))
}

/// Matches OpenSSH's patterns: `*` any run of characters, `?` exactly one. Linear in space, at worst
/// quadratic in time.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    n = from + 1;
                    star = Some((at, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

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
    let (kind, shown) = (key_type(&key), fingerprint(&key));
    let file = |location: &KeyLocation| format!("{}:{}", location.file.display(), location.line);
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
    let (label, shown) = (&target.label, fingerprint(key));
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
    let (kind, shown) = (key_type(key), fingerprint(key));
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
    if let Err(error) = append(file, name, key) {
        let host = &target.label;
        tracing::warn!(%host, file = %file.display(), %error, "cannot save the host key");
    }
}

/// Most bytes of a revocation file that are read.
const MAX_REVOKED: u64 = 16 << 20;
const MAGIC: &[u8] = b"SSHKRL\n\0";

/// Returns whether the file revokes `key` (wire form).
///
/// # Errors
/// The file cannot be read or parsed.
fn revokes(file: &Path, key: &[u8]) -> Result<bool, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    opened.take(MAX_REVOKED + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_REVOKED {
        return Err(format!("larger than {} MiB", MAX_REVOKED >> 20));
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
            .filter(|blob| line.split_whitespace().next() == Some(key_type(blob).as_str()));
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
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::Command;

    fn key(kind: &str, fill: u8) -> Vec<u8> {
        let mut blob = (kind.len() as u32).to_be_bytes().to_vec();
        blob.extend(kind.as_bytes());
        blob.extend([0, 0, 0, 32]);
        blob.extend([fill; 32]);
        blob
    }

    fn line(names: &str, key: &[u8]) -> String {
        format!("{names} {} {} some comment", key_type(key), STANDARD.encode(key))
    }

    fn known(lines: &[String]) -> KnownHosts {
        let mut known = KnownHosts::default();
        known.add(Path::new("kh"), &lines.join("\n"));
        known
    }

    fn hashed(name: &str) -> String {
        let salt = [7u8; 20];
        let mac = Hmac::<Sha1>::new_from_slice(&salt).unwrap().chain_update(name).finalize().into_bytes();
        format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(mac))
    }

    #[test]
    fn every_name_form_matches_only_its_host() {
        let ours = key("ssh-ed25519", 1);
        let cases = [
            ("node1", "node1", "node2"),
            ("Node1", "node1", "node11"),
            ("a,node1,b", "node1", "c"),
            ("10.77.0.*", "10.77.0.3", "10.78.0.3"),
            ("node?", "node1", "node12"),
            ("*.lab,!gw.lab", "n.lab", "gw.lab"),
            ("[node1]:2222", "[node1]:2222", "node1"),
            ("node1", "node1", "[node1]:2222"),
            ("[*]:2222", "[x]:2222", "x"),
        ];
        for (pattern, yes, no) in cases {
            let known = known(&[line(pattern, &ours)]);
            assert_eq!(known.check(yes, &ours), HostKeyCheck::Match, "{pattern} {yes}");
            assert_eq!(known.check(no, &ours), HostKeyCheck::Unknown, "{pattern} {no}");
        }
        for name in ["node1", "[node1]:2222"] {
            let known = known(&[line(&hashed(name), &ours)]);
            assert_eq!(known.check(name, &ours), HostKeyCheck::Match);
            assert_eq!(known.check("node2", &ours), HostKeyCheck::Unknown);
        }
    }

    #[test]
    fn known_1_revoked_key_is_rejected_though_listed() {
        let ours = key("ssh-ed25519", 1);
        let lines = [line("node1", &ours), format!("@revoked {}", line("*", &ours))];
        let location = KeyLocation { file: "kh".into(), line: 2 };
        assert_eq!(known(&lines).check("node1", &ours), HostKeyCheck::Revoked { location });
        let other = key("ssh-ed25519", 2);
        assert_eq!(
            known(&lines[1..]).check("node1", &other),
            HostKeyCheck::Unknown,
            "another key is not revoked"
        );
    }

    #[test]
    fn known_2_another_key_of_any_type_is_a_change() {
        let (old, new) = (key("ssh-ed25519", 1), key("ssh-ed25519", 2));
        let rsa = key("ssh-rsa", 1);
        let known = known(&["# a comment".into(), line("node1", &rsa), line("node1", &old)]);
        let HostKeyCheck::Changed { location, key_type, fingerprint: shown } = known.check("node1", &new)
        else {
            panic!()
        };
        assert_eq!((location.line, key_type.as_str(), shown), (3, "ssh-ed25519", fingerprint(&old)));
        let ecdsa = key("ecdsa-sha2-nistp256", 1);
        assert!(matches!(known.check("node1", &ecdsa), HostKeyCheck::Changed { .. }));
        assert_eq!(known.key_types("node1"), ["ssh-rsa", "ssh-ed25519"]);
    }

    #[test]
    fn malformed_lines_and_authorities_are_skipped() {
        let ours = key("ssh-ed25519", 1);
        let good = line("node1", &ours);
        let bad = [
            "garbage".to_string(),
            "node1 ssh-ed25519 !!!".into(),
            "node1 ssh-rsa AAAA".into(),
            format!("@cert-authority {good}"),
            format!("@unheard-of {good}"),
            "|1|x".into(),
            "|9|a|b ssh-ed25519 AAAA".into(),
            "\u{fffd}\u{0}".into(),
        ];
        assert_eq!(known(&bad).check("node1", &ours), HostKeyCheck::Unknown);
        let authority = known(&bad);
        assert_eq!(authority.authority("node1").map(|location| location.line), Some(4));
        assert_eq!(authority.authority("node2"), None);
        let mut with_good = bad.to_vec();
        with_good.push(good);
        assert_eq!(known(&with_good).check("node1", &ours), HostKeyCheck::Match);
    }

    #[test]
    fn known_3_append_keeps_lines_and_sets_modes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/known_hosts");
        let (first, second) = (key("ssh-ed25519", 1), key("ssh-ed25519", 2));
        append(&file, "node1", &first).unwrap();
        fs::write(&file, fs::read_to_string(&file).unwrap().trim_end()).unwrap();
        append(&file, "[node2]:2222", &second).unwrap();
        let known = KnownHosts::load(std::slice::from_ref(&file));
        assert_eq!(known.check("node1", &first), HostKeyCheck::Match);
        assert_eq!(known.check("[node2]:2222", &second), HostKeyCheck::Match);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn key_with_a_wrong_length_has_no_type() {
        assert_eq!(key_type(&[0xff, 0xff, 0xff, 0xff, 1]), "");
        assert_eq!(key_type(&[]), "");
    }

    fn public_key(fill: u8) -> Vec<u8> {
        let kind = b"ssh-ed25519";
        [&[0, 0, 0, 11], &kind[..], &[0, 0, 0, 32], &[fill; 32]].concat()
    }

    fn revoked_line(key: &[u8]) -> String {
        format!("ssh-ed25519 {} comment\n", STANDARD.encode(key))
    }

    #[test]
    fn key_list_revokes_its_keys_and_broken_list_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("revoked");
        assert!(revokes(&file, &public_key(1)).is_err(), "a missing file");
        std::fs::write(
            &file,
            format!("# lost\n\n{}{}", revoked_line(&public_key(1)), revoked_line(&public_key(2))),
        )
        .unwrap();
        assert_eq!(revokes(&file, &public_key(2)), Ok(true));
        assert_eq!(revokes(&file, &public_key(3)), Ok(false));
        std::fs::write(&file, "ssh-ed25519 !!!\n").unwrap();
        assert!(revokes(&file, &public_key(3)).unwrap_err().contains("line 1"));
    }

    /// All key forms of `ssh-keygen -k`.
    #[test]
    fn krl_of_ssh_keygen_revokes_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        let own = revoked_line(&public_key(1));
        let specs = [
            own.clone(),
            format!("key: {own}"),
            format!("sha1: {own}"),
            format!("sha256: {own}"),
            format!("hash: {}\n", fingerprint(&public_key(1))),
        ];
        for (index, spec) in specs.iter().enumerate() {
            let (list, file) = (path(&format!("list{index}")), path(&format!("spec{index}")));
            std::fs::write(&file, spec).unwrap();
            let made = Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).arg(&file).output();
            let Ok(made) = made else { return rankdeck_testkit::skipped("no ssh-keygen") };
            assert!(made.status.success(), "{spec}: {made:?}");
            assert_eq!(revokes(&list, &public_key(1)), Ok(true), "{spec}");
            assert_eq!(revokes(&list, &public_key(2)), Ok(false), "{spec}");
            let whole = std::fs::read(&list).unwrap();
            for end in MAGIC.len()..whole.len() {
                std::fs::write(&list, &whole[..end]).unwrap();
                let _ = revokes(&list, &public_key(1));
            }
        }
    }
}
