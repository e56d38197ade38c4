//! Private key files: is a passphrase needed, and which public key is it? Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What a key file tells without its passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFacts {
    /// A passphrase is needed.
    pub encrypted: bool,
    /// The public key in wire form, when the file holds it in the clear (OpenSSH's own format does).
    pub public: Option<Vec<u8>>,
}

/// Looks at the text of a private key file; `None` when it is none.
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

/// The key of a `.pub` file (`type base64 comment`) in wire form.
pub fn public_blob(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.split_whitespace().nth(1)?).ok()
}

/// Is `certificate` (in wire form) one for the key `public`? A certificate is a type, a nonce, the fields of
/// the key behind its type, and what is certified.
/// OpenSSH, PROTOCOL.certkeys.
pub fn certifies(certificate: &[u8], public: &[u8]) -> bool {
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
    fn a_certificate_belongs_to_one_key() {
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
    fn encryption_is_seen_in_every_format() {
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
    fn other_files_and_cut_files_are_no_keys() {
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
