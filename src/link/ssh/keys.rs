//! Private key files: encryption, public key, and certificates.

use super::user_config::SshTarget;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rankdeck_proto::regular;
use std::path::{Path, PathBuf};

/// Facts about a key file that need no passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFacts {
    /// Needs a passphrase.
    pub encrypted: bool,
    /// Public key in wire form, if the file contains it unencrypted (OpenSSH's format).
    pub public: Option<Vec<u8>>,
}

/// Parses the text of a private key file; `None` if it is not one.
pub fn facts(text: &str) -> Option<KeyFacts> {
    let begin = text.lines().map(str::trim).find(|line| line.starts_with("-----BEGIN "))?;
    if !begin.contains("PRIVATE KEY") {
        return None;
    }
    if !begin.contains("OPENSSH") {
        let encrypted = begin.contains("ENCRYPTED")
            || text.lines().any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"));
        return Some(KeyFacts { encrypted, public: None });
    }
    let body: String = text.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect();
    let bytes = STANDARD.decode(body).ok()?;
    let mut rest = bytes.strip_prefix(b"openssh-key-v1\0".as_slice())?;
    let cipher = string(&mut rest)?.to_vec();
    string(&mut rest)?; // name of the key derivation
    string(&mut rest)?; // its options
    let (_count, tail) = rest.split_first_chunk::<4>()?;
    rest = tail;
    let public = string(&mut rest).map(<[u8]>::to_vec);
    Some(KeyFacts { encrypted: cipher != b"none", public })
}

/// Returns the key of a `.pub` file (`type base64 comment`) in wire form.
pub(crate) fn public_blob(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.split_whitespace().nth(1)?).ok()
}

/// Returns whether `certificate` (wire form) certifies the key `public`.
///
/// A certificate is a type, a nonce, the key's fields after its type, and the certified data (OpenSSH,
/// PROTOCOL.certkeys).
pub(crate) fn certifies(certificate: &[u8], public: &[u8]) -> bool {
    let (mut certificate, mut public) = (certificate, public);
    let certified = |kind: &[u8]| kind.ends_with(b"-cert-v01@openssh.com");
    string(&mut certificate).is_some_and(certified)
        && string(&mut certificate).is_some()
        && string(&mut public).is_some()
        && !public.is_empty()
        && certificate.starts_with(public)
}

/// Takes one length-prefixed string off the front.
pub(super) fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<4>()?;
    let (text, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *rest = tail;
    Some(text)
}

/// A secret text.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Creates a secret.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.fill(0);
        // Keeps the compiler from removing the overwrite.
        std::hint::black_box(&bytes);
    }
}

/// A configured key.
pub(super) struct KeyFile {
    pub path: PathBuf,
    /// Private key; empty for a `.pub` file, which selects a key of the agent.
    pub text: Secret,
    /// Needs a passphrase.
    pub encrypted: bool,
    /// Public key in wire form, if known.
    pub public: Option<Vec<u8>>,
    /// Certificates (path and text of the file), offered before the key, as in OpenSSH.
    pub certificates: Vec<(PathBuf, String)>,
}

impl KeyFile {
    /// Returns whether the file has the private key.
    pub fn is_private(&self) -> bool {
        !self.text.text().is_empty()
    }
}

/// Loads the configured keys that exist; adds unusable ones to `tried`.
pub(super) fn load(target: &SshTarget, tried: &mut Vec<String>) -> Vec<KeyFile> {
    let mut files = Vec::new();
    for path in &target.identities {
        let text = match regular::read_text(path) {
            Ok(text) => Secret::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                tried.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let Some(facts) = self::facts(text.text()) else {
            let named = text.text().starts_with("ssh-") || text.text().starts_with("ecdsa-");
            match public_blob(text.text()).filter(|_| named) {
                Some(public) => files.push(KeyFile {
                    path: path.clone(),
                    text: Secret::new(String::new()),
                    encrypted: false,
                    public: Some(public),
                    certificates: Vec::new(),
                }),
                None => tried.push(format!("{}: not a private key", path.display())),
            }
            continue;
        };
        let public = facts.public.or_else(|| {
            regular::read_text(&sibling_path(path, ".pub")).ok().and_then(|text| public_blob(&text))
        });
        let certificates = certificates(target, path, public.as_deref());
        files.push(KeyFile { path: path.clone(), text, encrypted: facts.encrypted, public, certificates });
    }
    files
}

fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_path_buf().into_os_string();
    name.push(suffix);
    name.into()
}

/// Returns the certificates of the key at `path`: configured ones for this key, and `PATH-cert.pub`.
fn certificates(target: &SshTarget, path: &Path, public: Option<&[u8]>) -> Vec<(PathBuf, String)> {
    let Some(public) = public else { return Vec::new() };
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for file in target.certificates.iter().cloned().chain([sibling_path(path, "-cert.pub")]) {
        let fits =
            |text: &String| public_blob(text).is_some_and(|certificate| certifies(&certificate, public));
        if let Some(text) = regular::read_text(&file).ok().filter(fits)
            && !found.iter().any(|(_, known)| *known == text)
        {
            found.push((file, text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openssh(cipher: &str) -> String {
        let mut bytes = b"openssh-key-v1\0".to_vec();
        let mut put = |text: &[u8]| {
            bytes.extend((text.len() as u32).to_be_bytes());
            bytes.extend(text);
        };
        put(cipher.as_bytes());
        put(b"bcrypt");
        put(b"options");
        bytes.extend([0, 0, 0, 1]);
        bytes.extend([0, 0, 0, 3]);
        bytes.extend(b"pub");
        format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
            STANDARD.encode(bytes)
        )
    }

    #[test]
    fn certificate_matches_only_its_key() {
        let wire = |parts: &[&[u8]]| {
            let part = |part: &&[u8]| [&(part.len() as u32).to_be_bytes()[..], part].concat();
            parts.iter().flat_map(part).collect::<Vec<u8>>()
        };
        let key = wire(&[b"ssh-ed25519", b"the key"]);
        let kind = b"ssh-ed25519-cert-v01@openssh.com";
        assert!(certifies(&wire(&[kind, b"nonce", b"the key", b"serial"]), &key));
        assert!(!certifies(&wire(&[kind, b"nonce", b"another", b"serial"]), &key));
        assert!(!certifies(&key, &key) && !certifies(b"", &key) && !certifies(&wire(&[kind, b"nonce"]), b""));
    }

    #[test]
    fn encryption_is_detected_in_every_format() {
        assert_eq!(
            facts(&openssh("none")),
            Some(KeyFacts { encrypted: false, public: Some(b"pub".to_vec()) })
        );
        assert!(facts(&openssh("aes256-ctr")).unwrap().encrypted);
        assert!(facts("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=").unwrap().encrypted);
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: x\n\nMII=";
        assert!(facts(old).unwrap().encrypted);
        assert!(!facts("-----BEGIN RSA PRIVATE KEY-----\nMII=").unwrap().encrypted);
    }

    #[test]
    fn other_or_truncated_file_is_not_a_key() {
        for text in [
            "",
            "ssh-ed25519 AAAA me",
            "-----BEGIN CERTIFICATE-----\nAA",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA",
        ] {
            assert_eq!(facts(text), None, "{text}");
        }
        let whole = openssh("none");
        for cut in 0..whole.len() {
            let _ = facts(&whole[..cut]);
        }
    }
}
