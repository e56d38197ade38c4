//! Is this server the one that is meant? Its host key against what is on record, and the user's word about a
//! new one.
//!
//! Owner: the session's thread. libssh2 cannot verify a host certificate, so a server shows its plain key.

use super::connection::{Connection, Permit};
use super::known_hosts::{self, HostKeyCheck, KnownHosts};
use super::user_config::{SshTarget, UnknownKeys};
use super::{Operator, SshError, quote, revoked};
use rankdeck_types::link_state::Prompt;

/// Compares the key that the server has shown with what is on record; asks about an unknown one, and on `yes`
/// remembers it.
pub(super) fn check(
    connection: &Connection,
    known: &KnownHosts,
    name: &str,
    permit: &mut Option<Permit>,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let target = &connection.target;
    let label = &target.label;
    let key = connection.session.host_key().map(|(key, _)| key.to_vec()).unwrap_or_default();
    let (kind, shown) = (known_hosts::key_type(&key), known_hosts::fingerprint(&key));
    let file = |place: &known_hosts::Place| format!("{}:{}", place.file.display(), place.line);
    if key.is_empty() {
        return Err(SshError::passing(format!("{label}: the server showed no host key"), ""));
    }
    not_revoked(target, name, &key)?;
    match known.check(name, &key) {
        HostKeyCheck::Match => Ok(()),
        HostKeyCheck::Revoked { place } => Err(SshError::lasting(
            format!("{label}: host key {shown} of {name} is revoked in {}", file(&place)),
            "do not connect; ask whoever runs this host",
        )),
        HostKeyCheck::Changed { place, key_type, fingerprint } => Err(SshError::lasting(
            format!(
                "{label}: host key of {name} has changed: now {kind} {shown}, on record {key_type} {fingerprint} ({})",
                file(&place)
            ),
            format!(
                "somebody may be listening; if the host was reinstalled: `ssh-keygen -R {} -f {}`, then connect again",
                quote::word(name),
                quote::word(&place.file.display().to_string())
            ),
        )),
        HostKeyCheck::Unknown => {
            if let Some(place) = known.authority(name) {
                return Err(SshError::lasting(
                    format!(
                        "{label}: host key of {name} ({kind} {shown}) is not on record; {} trusts a certificate authority \
                         for it, and rankdeck's SSH library cannot check host certificates",
                        file(place)
                    ),
                    format!(
                        "set `transport = \"openssh\"` for this host in hosts.toml; or let `{}` check the certificate, and if it connects without a question, put the line of `{scan}` \
                         with this fingerprint into known_hosts",
                        target.command(),
                        scan = format_args!(
                            "ssh-keyscan -t {kind} -p {} {}",
                            target.port,
                            quote::word(&target.address)
                        ),
                    ),
                ));
            }
            ask(connection, name, &key, permit, operator)
        }
    }
}

/// `RevokedHostKeys`. A file that cannot be read revokes every key, as with OpenSSH.
fn not_revoked(target: &SshTarget, name: &str, key: &[u8]) -> Result<(), SshError> {
    let Some(file) = &target.revoked_host_keys else { return Ok(()) };
    let (label, shown) = (&target.label, known_hosts::fingerprint(key));
    match revoked::revokes(file, key) {
        Ok(false) => Ok(()),
        Ok(true) => Err(SshError::lasting(
            format!("{label}: host key {shown} of {name} is revoked by {} (RevokedHostKeys)", file.display()),
            "do not connect; ask whoever runs this host",
        )),
        Err(why) => Err(SshError::lasting(
            format!(
                "{label}: no host key is accepted: RevokedHostKeys {} cannot be used: {why}",
                file.display()
            ),
            "mend that file, or take RevokedHostKeys out of the ssh configuration; `ssh-keygen -Q -l -f FILE` shows it",
        )),
    }
}

/// Asks about a key that nothing is known of.
fn ask(
    connection: &Connection,
    name: &str,
    key: &[u8],
    permit: &mut Option<Permit>,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let target = &connection.target;
    let label = &target.label;
    let (kind, shown) = (known_hosts::key_type(key), known_hosts::fingerprint(key));
    let scan = format!("ssh-keyscan -p {} {} | ssh-keygen -lf -", target.port, quote::word(&target.address));
    let refused = |why: &str| {
        SshError::lasting(
            format!("{label}: host key of {name} is unknown ({kind} {shown}){why}"),
            format!(
                "compare the fingerprint (`{scan}` from a place you trust), then accept it with `{}`",
                target.command()
            ),
        )
    };
    if target.unknown_keys == UnknownKeys::Accept {
        remember(target, name, key);
        return Ok(());
    }
    if target.unknown_keys == UnknownKeys::Refuse {
        return Err(refused(" and StrictHostKeyChecking is yes"));
    }
    if !operator.interactive() {
        return Err(refused(""));
    }
    // The server keeps this connection open meanwhile, but others need not wait for the user.
    permit.take();
    let prompt =
        Prompt::UnknownHostKey { host: name.into(), key_type: kind.clone(), fingerprint: shown.clone() };
    let answer = operator.ask(&prompt);
    if operator.closing() {
        return Err(SshError::closed());
    }
    match answer.as_deref().map(str::trim) {
        Some("yes") => {}
        Some(typed) if typed == shown => {}
        _ => return Err(refused(" and was not accepted")),
    }
    remember(target, name, key);
    Ok(())
}

/// Puts a key on record. Not remembering is a nuisance, not a danger: the user has accepted this key and will
/// be asked again.
fn remember(target: &SshTarget, name: &str, key: &[u8]) {
    let Some(file) = target.known_hosts.first() else { return };
    if let Err(error) = known_hosts::append(file, name, key) {
        let host = &target.label;
        tracing::warn!(%host, file = %file.display(), %error, "cannot remember the host key");
    }
}
