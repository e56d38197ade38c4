//! Reads and writes `known_hosts`.
//!
//! The libraries' readers match keys of other ports, lack wildcards, ignore `@revoked`, and fail on one bad
//! line. This one follows OpenSSH: plain, hashed (HMAC-SHA1), `[host]:port`, `*`, `?`, `!`, `@revoked`;
//! malformed lines are skipped. It only detects `@cert-authority`, because libssh2 cannot verify
//! certificates. Stricter than OpenSSH, a key for port 22 does not match another port. Invariants:
//! - KNOWN-1: a revoked key never matches, even if it is listed elsewhere.
//! - KNOWN-2: a host with another known key is `Changed`, never `Unknown`.
//! - KNOWN-3: only whole lines are appended, and existing lines are never rewritten.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, Mac};
use rankdeck_proto::regular;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, OpenOptions};
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
}
