//! Which algorithms are negotiated: strong ones that libssh2 has and the user's configuration allows.
//!
//! Pure, but for the question to a server that shares none of them.

use super::dial;
use super::offer::{self, Offer};
use super::user_config::{AllowedAlgorithms, SshTarget};
use super::{SshError, wait::Stall};
use ssh2::{MethodType, Session};

/// Host key types we accept, best first; `ssh-rsa` keys sign with SHA-2 only.
const HOST_KEYS: [&str; 6] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];
/// What libssh2 may negotiate; it would offer group1, 3des, cbc, md5 and SHA-1 signatures by itself.
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
/// Signatures for our own keys.
const SIGNATURES: &str = "rsa-sha2-512,rsa-sha2-256";

/// One kind of algorithm.
struct Kind {
    /// What people call it.
    name: &'static str,
    /// Its keyword in ssh_config and sshd_config.
    keyword: &'static str,
    /// Where libssh2 keeps its list.
    methods: &'static [MethodType],
    ours: &'static [&'static str],
    /// What the user's configuration allows.
    allowed: fn(&AllowedAlgorithms) -> &[String],
    offered: fn(&Offer) -> &[String],
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "key exchange",
        keyword: "KexAlgorithms",
        methods: &[MethodType::Kex],
        ours: &KEX,
        allowed: |allowed| &allowed.kex,
        offered: |offer| &offer.kex,
    },
    Kind {
        name: "host key",
        keyword: "HostKeyAlgorithms",
        methods: &[MethodType::HostKey],
        ours: &HOST_KEYS,
        allowed: |allowed| &allowed.host_keys,
        offered: |offer| &offer.host_keys,
    },
    Kind {
        name: "cipher",
        keyword: "Ciphers",
        methods: &[MethodType::CryptCs, MethodType::CryptSc],
        ours: &CIPHERS,
        allowed: |allowed| &allowed.ciphers,
        offered: |offer| &offer.ciphers,
    },
    Kind {
        name: "MAC",
        keyword: "MACs",
        methods: &[MethodType::MacCs, MethodType::MacSc],
        ours: &MACS,
        allowed: |allowed| &allowed.macs,
        offered: |offer| &offer.macs,
    },
];

impl Kind {
    /// Ours that the user's configuration allows; an empty list of his allows all.
    fn usable(&self, allowed: &AllowedAlgorithms) -> Vec<&'static str> {
        let allowed = (self.allowed)(allowed);
        let may = |name: &&&str| allowed.is_empty() || allowed.iter().any(|one| one == **name);
        self.ours.iter().filter(may).copied().collect()
    }
}

/// Allows strong algorithms only, and asks for the key types on record first.
pub(super) fn restrict(session: &Session, target: &SshTarget, known: &[String]) -> Result<(), SshError> {
    let label = &target.label;
    let fault =
        |error: ssh2::Error| SshError::passing(format!("{label}: ssh session: {}", error.message()), "");
    for kind in &KINDS {
        let mut usable = kind.usable(&target.allowed);
        if usable.is_empty() {
            return Err(SshError::lasting(
                format!(
                    "{label}: {} of the ssh configuration allows {}; rankdeck's SSH library has {}",
                    kind.keyword,
                    listed((kind.allowed)(&target.allowed)),
                    kind.ours.join(", ")
                ),
                format!("{OPENSSH}; or allow one of these in {} for it in ~/.ssh/config", kind.keyword),
            ));
        }
        if kind.keyword == "HostKeyAlgorithms" {
            usable = on_record_first(&usable, known);
        }
        for method in kind.methods {
            session.method_pref(*method, &usable.join(",")).map_err(fault)?;
        }
    }
    session.method_pref(MethodType::SignAlgo, SIGNATURES).map_err(fault)
}

/// Host key types, those on record first: else the server would show a key that we cannot compare.
fn on_record_first(types: &[&'static str], known: &[String]) -> Vec<&'static str> {
    let listed = |kind: &&'static str| match *kind {
        "rsa-sha2-512" | "rsa-sha2-256" => known.iter().any(|known| known == "ssh-rsa"),
        kind => known.iter().any(|known| known == kind),
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = types.iter().copied().partition(listed);
    first.extend(rest);
    first
}

/// Why a key exchange failed, when it is because nothing is common to both ends. Asks the server what it
/// offers, when it is reached directly.
pub(super) fn mismatch(target: &SshTarget, direct: bool, stall: &Stall) -> SshError {
    let (label, place) = (&target.label, target.place());
    let offer = match direct {
        true => dial::dial_each(&target.address, target.port, target.connect_timeout).ok(),
        false => None,
    };
    let Some(offer) = offer.and_then(|stream| offer::ask(stream).ok()) else {
        return SshError::lasting(
            format!("{label}: no common algorithm with {place}: {}", stall.text()),
            format!("`{} -vv` shows what the server offers", target.command()),
        );
    };
    let missing = KINDS.iter().find(|kind| {
        let usable = kind.usable(&target.allowed);
        !(kind.offered)(&offer).iter().any(|name| usable.contains(&name.as_str()))
    });
    match missing {
        Some(kind) => SshError::lasting(
            format!(
                "{label}: no common algorithm with {place}: the server's {} is one of {}; rankdeck has {}",
                kind.name,
                listed((kind.offered)(&offer)),
                kind.usable(&target.allowed).join(", ")
            ),
            advice(kind, target, (kind.offered)(&offer)),
        ),
        None => SshError::passing(
            format!("{label}: the key exchange with {place} failed: {}", stall.text()),
            format!("try `{}`", target.command()),
        ),
    }
}

/// The system's `ssh` has more than libssh2.
const OPENSSH: &str = "set `transport = \"openssh\"` for this host in hosts.toml";

/// What helps where a server offers nothing but `theirs`.
fn advice(kind: &Kind, target: &SshTarget, theirs: &[String]) -> String {
    let first = kind.usable(&target.allowed).first().copied().unwrap_or_default();
    let directive = kind.keyword;
    let allow = format!("allow {first} in {directive} of its sshd_config");
    let postquantum = |name: &String| ["sntrup", "mlkem", "ntru"].iter().any(|word| name.contains(word));
    let weak = |name: &String| {
        let words = ["sha1", "cbc", "3des", "arcfour", "md5", "ssh-dss", "ripemd"];
        words.iter().any(|word| name.contains(word)) || name == "ssh-rsa"
    };
    if theirs.iter().any(postquantum) {
        format!("{OPENSSH}: rankdeck's own SSH library has no post-quantum key exchange; or {allow}")
    } else if theirs.iter().all(weak) {
        format!("rankdeck refuses SHA-1, CBC, 3DES, DSA and MD5: update that server, or {allow}")
    } else {
        format!("{OPENSSH}; or {allow}")
    }
}

/// Names of a server or a user, not too many.
fn listed(names: &[String]) -> String {
    const MOST: usize = 12;
    let shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    let more = if names.len() > MOST { ", ..." } else { "" };
    rankdeck_types::words::clip(&format!("{}{more}", shown.join(", ")), 600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_types_on_record_are_asked_for_first() {
        assert_eq!(on_record_first(&HOST_KEYS, &[]), HOST_KEYS);
        assert_eq!(on_record_first(&HOST_KEYS, &["ssh-rsa".into()])[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
        assert_eq!(on_record_first(&HOST_KEYS, &["ecdsa-sha2-nistp256".into()])[0], "ecdsa-sha2-nistp256");
        assert_eq!(on_record_first(&HOST_KEYS, &["unheard-of".into()]).len(), HOST_KEYS.len());
    }

    #[test]
    fn libssh2_knows_every_algorithm_that_we_name() {
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
    fn the_configuration_narrows_the_lists() {
        let mut allowed = AllowedAlgorithms::default();
        assert_eq!(KINDS[0].usable(&allowed), KEX);
        allowed.kex = vec!["sntrup761x25519-sha512@openssh.com".into(), "curve25519-sha256".into()];
        assert_eq!(KINDS[0].usable(&allowed), ["curve25519-sha256"]);
        allowed.kex.pop();
        assert!(KINDS[0].usable(&allowed).is_empty());
    }
}
