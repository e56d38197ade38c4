//! Selects algorithms: strong ones that libssh2 supports and the user's configuration allows.
//!
//! After a mismatch, reads the server's offer for the error, over another connection, because libssh2 does
//! not expose it: greeting and `SSH_MSG_KEXINIT` are not encrypted (RFC 4253, 4.2 and 7.1).

use super::SshError;
use super::session::BlockReason;
use super::user_config::{AllowedAlgorithms, SshTarget};
use super::{connection, keys};
use ssh2::{MethodType, Session};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Accepted host key types, best first; `ssh-rsa` keys sign with SHA-2 only.
const HOST_KEYS: [&str; 6] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];
/// Key exchanges for libssh2, which would also offer group1, 3des, cbc, md5 and SHA-1 signatures.
const KEX: [&str; 9] = [
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group-exchange-sha256",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group18-sha512",
    "diffie-hellman-group14-sha256",
];
const CIPHERS: [&str; 6] = [
    "aes256-gcm@openssh.com",
    "aes128-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes192-ctr",
    "aes128-ctr",
];
const MACS: [&str; 4] =
    ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512"];
/// Signatures of the user's keys.
const SIGNATURES: &str = "rsa-sha2-512,rsa-sha2-256";

/// A kind of algorithm.
struct AlgorithmKind {
    /// Name in errors.
    name: &'static str,
    /// Keyword in ssh_config and sshd_config.
    keyword: &'static str,
    /// libssh2's methods.
    methods: &'static [MethodType],
    ours: &'static [&'static str],
    /// Returns the names that the user's configuration allows.
    allowed: fn(&AllowedAlgorithms) -> &[String],
    offered: fn(&ServerAlgorithms) -> &[String],
}

const KINDS: [AlgorithmKind; 4] = [
    AlgorithmKind {
        name: "key exchange",
        keyword: "KexAlgorithms",
        methods: &[MethodType::Kex],
        ours: &KEX,
        allowed: |allowed| &allowed.kex,
        offered: |offer| &offer.kex,
    },
    AlgorithmKind {
        name: "host key",
        keyword: "HostKeyAlgorithms",
        methods: &[MethodType::HostKey],
        ours: &HOST_KEYS,
        allowed: |allowed| &allowed.host_keys,
        offered: |offer| &offer.host_keys,
    },
    AlgorithmKind {
        name: "cipher",
        keyword: "Ciphers",
        methods: &[MethodType::CryptCs, MethodType::CryptSc],
        ours: &CIPHERS,
        allowed: |allowed| &allowed.ciphers,
        offered: |offer| &offer.ciphers,
    },
    AlgorithmKind {
        name: "MAC",
        keyword: "MACs",
        methods: &[MethodType::MacCs, MethodType::MacSc],
        ours: &MACS,
        allowed: |allowed| &allowed.macs,
        offered: |offer| &offer.macs,
    },
];

impl AlgorithmKind {
    /// Returns the supported names that the user's configuration allows; an empty list allows all.
    fn usable(&self, allowed: &AllowedAlgorithms) -> Vec<&'static str> {
        let allowed = (self.allowed)(allowed);
        let may = |name: &&&str| allowed.is_empty() || allowed.iter().any(|one| one == **name);
        self.ours.iter().filter(may).copied().collect()
    }
}

/// Restricts a session to strong algorithms, with known host key types first.
pub(super) fn restrict(session: &Session, target: &SshTarget, known: &[String]) -> Result<(), SshError> {
    let label = &target.label;
    let fault =
        |error: ssh2::Error| SshError::transient(format!("{label}: ssh session: {}", error.message()), "");
    for kind in &KINDS {
        let mut usable = kind.usable(&target.allowed);
        if usable.is_empty() {
            return Err(SshError::permanent(
                format!(
                    "{label}: {} in the ssh configuration allows {}; the built-in SSH supports {}",
                    kind.keyword,
                    listed((kind.allowed)(&target.allowed)),
                    kind.ours.join(", ")
                ),
                format!("{OPENSSH}, or allow one of these in {} in ~/.ssh/config", kind.keyword),
            ));
        }
        if kind.keyword == "HostKeyAlgorithms" {
            usable = known_first(&usable, known);
        }
        for method in kind.methods {
            session.method_pref(*method, &usable.join(",")).map_err(fault)?;
        }
    }
    session.method_pref(MethodType::SignAlgo, SIGNATURES).map_err(fault)
}

/// Sorts known host key types first: else the server may present a key that cannot be compared.
fn known_first(types: &[&'static str], known: &[String]) -> Vec<&'static str> {
    let listed = |kind: &&'static str| match *kind {
        "rsa-sha2-512" | "rsa-sha2-256" => known.iter().any(|known| known == "ssh-rsa"),
        kind => known.iter().any(|known| known == kind),
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = types.iter().copied().partition(listed);
    first.extend(rest);
    first
}

/// Returns the error of a failed key exchange; reads the server's offer if it is reached directly.
pub(super) fn mismatch(target: &SshTarget, direct: bool, blocked: &BlockReason) -> SshError {
    let (label, place) = (&target.label, target.place());
    let offer = match direct {
        true => {
            connection::dial_each(&target.address, target.port, target.family, target.connect_timeout).ok()
        }
        false => None,
    };
    let Some(offer) = offer.and_then(|stream| ask_offer(stream).ok()) else {
        return SshError::permanent(
            format!("{label}: no common algorithm with {place}: {}", blocked.text()),
            format!("check the server's offer with `{} -vv`", target.command()),
        );
    };
    let missing = KINDS.iter().find(|kind| {
        let usable = kind.usable(&target.allowed);
        !(kind.offered)(&offer).iter().any(|name| usable.contains(&name.as_str()))
    });
    match missing {
        Some(kind) => SshError::permanent(
            format!(
                "{label}: no common algorithm with {place}: the server offers {} {}; rankdeck supports {}",
                kind.name,
                listed((kind.offered)(&offer)),
                kind.usable(&target.allowed).join(", ")
            ),
            advice(kind, target, (kind.offered)(&offer)),
        ),
        None => SshError::transient(
            format!("{label}: key exchange with {place} failed: {}", blocked.text()),
            format!("try `{}`", target.command()),
        ),
    }
}

/// Hint for algorithms that libssh2 lacks.
const OPENSSH: &str = "set `transport = \"openssh\"` for this host in hosts.toml";

/// Returns the hint for a server that offers only `theirs`.
fn advice(kind: &AlgorithmKind, target: &SshTarget, theirs: &[String]) -> String {
    let first = kind.usable(&target.allowed).first().copied().unwrap_or_default();
    let directive = kind.keyword;
    let allow = format!("allow {first} in {directive} of its sshd_config");
    let postquantum = |name: &String| ["sntrup", "mlkem", "ntru"].iter().any(|word| name.contains(word));
    let weak = |name: &String| {
        let words = ["sha1", "cbc", "3des", "arcfour", "md5", "ssh-dss", "ripemd"];
        words.iter().any(|word| name.contains(word)) || name == "ssh-rsa"
    };
    if theirs.iter().any(postquantum) {
        format!("{OPENSSH} (the built-in SSH has no post-quantum key exchange), or {allow}")
    } else if theirs.iter().all(weak) {
        format!("update the server (SHA-1, CBC, 3DES, DSA and MD5 are rejected), or {allow}")
    } else {
        format!("{OPENSSH}, or {allow}")
    }
}

/// Joins names, up to a limit.
fn listed(names: &[String]) -> String {
    const MOST: usize = 12;
    let shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    let more = if names.len() > MOST { ", ..." } else { "" };
    rankdeck_types::words::clip(&format!("{}{more}", shown.join(", ")), 600)
}

/// Timeout of each read.
const READING: Duration = Duration::from_secs(5);
/// Largest first packet of a key exchange.
const MAX_PACKET: u32 = 64 << 10;
/// Largest greeting.
const MAX_GREETING: usize = 16 << 10;
const KEXINIT: u8 = 20;

/// Algorithms of a server, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServerAlgorithms {
    /// Key exchanges.
    kex: Vec<String>,
    host_keys: Vec<String>,
    /// Ciphers, server to client.
    ciphers: Vec<String>,
    /// Message authentication codes, server to client.
    macs: Vec<String>,
}

/// Reads the offer of the server at the other end of `stream`.
fn ask_offer(mut stream: TcpStream) -> io::Result<ServerAlgorithms> {
    stream.set_read_timeout(Some(READING))?;
    stream.set_write_timeout(Some(READING))?;
    stream.write_all(concat!("SSH", "-2.0-rankdeck\r\n").as_bytes())?;
    let mut line = Vec::new();
    let mut count = 0;
    // Lines before the greeting are allowed.
    while !(line.starts_with(b"SSH-") && line.ends_with(b"\n")) {
        if line.ends_with(b"\n") {
            line.clear();
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        count += 1;
        if count > MAX_GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes(head);
    if length > MAX_PACKET {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; length as usize];
    stream.read_exact(&mut packet)?;
    read(&packet).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses a packet without its length: padding length, message, cookie, ten lists.
fn read(packet: &[u8]) -> Option<ServerAlgorithms> {
    let (_padding, message) = packet.split_first()?;
    let mut rest = message.strip_prefix(&[KEXINIT])?.get(16..)?;
    let mut list = || {
        let text = String::from_utf8_lossy(keys::string(&mut rest)?).into_owned();
        Some(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>())
    };
    let (mut kex, host_keys, _, ciphers) = (list()?, list()?, list()?, list()?);
    let (_, macs) = (list()?, list()?);
    // Extension markers are among the key exchanges (RFC 8308, and OpenSSH's PROTOCOL).
    kex.retain(|name| !name.starts_with("ext-info-") && !name.starts_with("kex-strict-"));
    Some(ServerAlgorithms { kex, host_keys, ciphers, macs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_key_types_come_first() {
        assert_eq!(known_first(&HOST_KEYS, &[]), HOST_KEYS);
        assert_eq!(known_first(&HOST_KEYS, &["ssh-rsa".into()])[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
        assert_eq!(known_first(&HOST_KEYS, &["ecdsa-sha2-nistp256".into()])[0], "ecdsa-sha2-nistp256");
        assert_eq!(known_first(&HOST_KEYS, &["unheard-of".into()]).len(), HOST_KEYS.len());
    }

    #[test]
    fn libssh2_supports_all_listed_algorithms() {
        let session = Session::new().unwrap();
        for kind in &KINDS {
            for name in kind.ours {
                let method = kind.methods[0];
                session.method_pref(method, name).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        session.method_pref(MethodType::SignAlgo, SIGNATURES).unwrap();
    }

    #[test]
    fn configuration_narrows_the_lists() {
        let mut allowed = AllowedAlgorithms::default();
        assert_eq!(KINDS[0].usable(&allowed), KEX);
        allowed.kex = vec!["sntrup761x25519-sha512@openssh.com".into(), "curve25519-sha256".into()];
        assert_eq!(KINDS[0].usable(&allowed), ["curve25519-sha256"]);
        allowed.kex.pop();
        assert!(KINDS[0].usable(&allowed).is_empty());
    }

    #[test]
    fn kexinit_packet_is_parsed_unless_truncated() {
        let lists = [
            "k1,ext-info-s,k2,kex-strict-s-v00@openssh.com",
            "h",
            "c1",
            "c2,c3",
            "m1",
            "m2",
            "none",
            "none",
            "",
            "",
        ];
        let mut packet = vec![4, KEXINIT];
        packet.extend([7; 16]);
        for list in lists {
            packet.extend((list.len() as u32).to_be_bytes());
            packet.extend(list.as_bytes());
        }
        let offer = read(&packet).unwrap();
        assert_eq!((offer.kex, offer.host_keys), (vec!["k1".to_owned(), "k2".into()], vec!["h".to_owned()]));
        assert_eq!((offer.ciphers, offer.macs), (vec!["c2".to_owned(), "c3".into()], vec!["m2".to_owned()]));
        for end in 0..packet.len() - 16 {
            read(&packet[..end]);
        }
        assert_eq!(read(&packet[..40]), None);
    }
}
