//! `known_hosts`, read and written by ourselves.
//!
//! The libraries' readers take another port's key for a match, know no wildcards, ignore `@revoked`, and fail
//! on one bad line. This one does as OpenSSH: plain, hashed (HMAC-SHA1), `[host]:port`, `*`, `?`, `!`,
//! `@revoked`; of `@cert-authority` it is only told that there is one, since libssh2 cannot verify
//! certificates; a line that makes no sense is skipped. Stricter in one place: a key known for port 22 does
//! not count for another port.
//!
//! Owner: the user's file. Invariants:
//! - KNOWN-1: a revoked key never matches, wherever else it is listed.
//! - KNOWN-2: a host with any other key on record is `Changed`, never `Unknown`.
//! - KNOWN-3: only whole lines are appended, and what is there is never rewritten.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of a file that are read.
const MAX_FILE: u64 = 16 << 20;

/// Where a key is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
}

/// What is known about a host's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostKeyCheck {
    /// This very key is on record.
    Match,
    /// Nothing is on record for this host.
    Unknown,
    /// Another key is.
    Changed {
        /// Where; of the same type as the key offered when there is one.
        place: Place,
        /// Type of the key on record.
        key_type: String,
        /// `SHA256:...` of the key on record.
        fingerprint: String,
    },
    /// The key is marked as stolen.
    Revoked {
        /// The line that says so.
        place: Place,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    /// Patterns and whether they are negated.
    Patterns(Vec<(bool, String)>),
    /// Salt and HMAC.
    Hashed(Vec<u8>, Vec<u8>),
}

/// What a line says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// It is the host's.
    Plain,
    Revoked,
    /// `@cert-authority`: it signs the host's certificates.
    Authority,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    place: Place,
    mark: Mark,
    names: Names,
    key_type: String,
    key: Vec<u8>,
}

/// All that is on record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownHosts {
    entries: Vec<Entry>,
}

impl KnownHosts {
    /// Reads the files that exist; a file that cannot be read counts as empty (then its hosts are unknown and
    /// the user is asked).
    pub fn load(files: &[PathBuf]) -> KnownHosts {
        let mut known = KnownHosts::default();
        for file in files {
            let mut bytes = Vec::new();
            let read = fs::File::open(file).and_then(|opened| opened.take(MAX_FILE).read_to_end(&mut bytes));
            if read.is_ok() {
                known.add(file, &String::from_utf8_lossy(&bytes));
            }
        }
        known
    }

    /// Adds the lines of one file.
    pub fn add(&mut self, file: &Path, text: &str) {
        let lines = text.lines().enumerate();
        self.entries
            .extend(lines.filter_map(|(index, line)| {
                entry(line, Place { file: file.to_path_buf(), line: index + 1 })
            }));
    }

    /// What the record says about `key` (the wire form) of the host called `name` ([`record_name`]).
    pub fn check(&self, name: &str, key: &[u8]) -> HostKeyCheck {
        let ours: Vec<&Entry> = self.entries.iter().filter(|entry| entry.names.cover(name)).collect();
        if let Some(entry) = ours.iter().find(|entry| entry.mark == Mark::Revoked && entry.key == key) {
            return HostKeyCheck::Revoked { place: entry.place.clone() };
        }
        let listed: Vec<&Entry> = ours.into_iter().filter(|entry| entry.mark == Mark::Plain).collect();
        if listed.iter().any(|entry| entry.key == key) {
            return HostKeyCheck::Match;
        }
        let kind = key_type(key);
        let nearest = listed.iter().find(|entry| entry.key_type == kind).or(listed.first());
        match nearest {
            None => HostKeyCheck::Unknown,
            Some(entry) => HostKeyCheck::Changed {
                place: entry.place.clone(),
                key_type: entry.key_type.clone(),
                fingerprint: fingerprint(&entry.key),
            },
        }
    }

    /// Where an authority is trusted to sign certificates of this host.
    pub fn authority(&self, name: &str) -> Option<&Place> {
        let mut entries = self.entries.iter();
        let found = entries.find(|entry| entry.mark == Mark::Authority && entry.names.cover(name))?;
        let revoked = |entry: &Entry| entry.mark == Mark::Revoked && entry.key == found.key;
        (!self.entries.iter().any(revoked)).then_some(&found.place)
    }

    /// Types of the keys on record for a host, each once, in the order of the file.
    pub fn key_types(&self, name: &str) -> Vec<String> {
        let mut types: Vec<String> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.mark == Mark::Plain && entry.names.cover(name))
        {
            if !types.contains(&entry.key_type) {
                types.push(entry.key_type.clone());
            }
        }
        types
    }
}

impl Names {
    fn cover(&self, name: &str) -> bool {
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

/// The name that a host goes by in the file: lower case, with `[...]:port` unless the port is 22.
pub fn record_name(host: &str, port: u16) -> String {
    let host = host.to_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

/// `SHA256:` and the unpadded base64 of the digest, as `ssh-keygen -l` prints it.
pub fn fingerprint(key: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(key)))
}

/// The type that a key in wire form names in its first field, empty when it is none.
pub fn key_type(key: &[u8]) -> String {
    let Some(head) = key.first_chunk::<4>() else { return String::new() };
    let length = u32::from_be_bytes(*head) as usize;
    key.get(4..4 + length.min(256))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .unwrap_or_default()
}

/// Appends `name key`; makes the folder (0700) and the file (0600) when they are missing.
pub fn append(file: &Path, name: &str, key: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(file)?;
    // A last line without newline would swallow ours.
    let mut last = [b'\n'];
    if opened.metadata()?.len() > 0 {
        opened.seek(SeekFrom::End(-1))?;
        opened.read_exact(&mut last)?;
    }
    let start = if last == *b"\n" { "" } else { "\n" };
    opened.write_all(format!("{start}{name} {} {}\n", key_type(key), STANDARD.encode(key)).as_bytes())
}

fn entry(line: &str, place: Place) -> Option<Entry> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut fields = line.split_whitespace();
    let mut first = fields.next()?;
    let mark = match first {
        "@revoked" => Mark::Revoked,
        "@cert-authority" => Mark::Authority,
        _ if first.starts_with('@') => return None,
        _ => Mark::Plain,
    };
    if mark != Mark::Plain {
        first = fields.next()?;
    }
    let named_type = fields.next()?;
    let key = STANDARD.decode(fields.next()?).ok()?;
    if key_type(&key) != named_type {
        return None;
    }
    Some(Entry { place, mark, names: names(first)?, key_type: named_type.into(), key })
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

/// OpenSSH's patterns: `*` any run of characters, `?` exactly one. Linear in space, at worst quadratic in
/// time.
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
    fn every_form_of_a_name_matches_its_host_and_no_other() {
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
    fn known_1_a_revoked_key_is_refused_though_it_is_also_listed() {
        let ours = key("ssh-ed25519", 1);
        let lines = [line("node1", &ours), format!("@revoked {}", line("*", &ours))];
        let place = Place { file: "kh".into(), line: 2 };
        assert_eq!(known(&lines).check("node1", &ours), HostKeyCheck::Revoked { place });
        let other = key("ssh-ed25519", 2);
        assert_eq!(
            known(&lines[1..]).check("node1", &other),
            HostKeyCheck::Unknown,
            "another key is not revoked"
        );
    }

    #[test]
    fn known_2_another_key_is_a_change_whatever_its_type() {
        let (old, new) = (key("ssh-ed25519", 1), key("ssh-ed25519", 2));
        let rsa = key("ssh-rsa", 1);
        let known = known(&["# a comment".into(), line("node1", &rsa), line("node1", &old)]);
        let HostKeyCheck::Changed { place, key_type, fingerprint: shown } = known.check("node1", &new) else {
            panic!()
        };
        assert_eq!((place.line, key_type.as_str(), shown), (3, "ssh-ed25519", fingerprint(&old)));
        let ecdsa = key("ecdsa-sha2-nistp256", 1);
        assert!(matches!(known.check("node1", &ecdsa), HostKeyCheck::Changed { .. }));
        assert_eq!(known.key_types("node1"), ["ssh-rsa", "ssh-ed25519"]);
    }

    #[test]
    fn bad_lines_and_authorities_are_skipped() {
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
        assert_eq!(authority.authority("node1").map(|place| place.line), Some(4));
        assert_eq!(authority.authority("node2"), None);
        let mut with_good = bad.to_vec();
        with_good.push(good);
        assert_eq!(known(&with_good).check("node1", &ours), HostKeyCheck::Match);
    }

    #[test]
    fn known_3_appending_keeps_what_is_there_and_protects_the_file() {
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
    fn a_key_that_lies_about_its_length_has_no_type() {
        assert_eq!(key_type(&[0xff, 0xff, 0xff, 0xff, 1]), "");
        assert_eq!(key_type(&[]), "");
    }
}
