//! Where and how to log in: `hosts.toml` over `~/.ssh/config`.
//!
//! `ssh -G` resolves the user's file exactly (Include, Match, tokens, jumps) and connects to nothing; where
//! there is no `ssh`, the ssh2-config crate reads it, and a file with `Match` is refused, because that crate
//! gives its body to the wrong hosts ([`config_values`]). Owner: called on a session's own thread, since it
//! starts a process. What `hosts.toml` says wins.

use super::config_values::{self, Values, WantedHost, expand, first, split};
use super::{SshError, quote};
use rankdeck_types::host::Host;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most jumps on the way to one host.
const MAX_JUMPS: usize = 8;
/// Least and most of what `ServerAlive*` can allow. Agents speak once a second at least, so less than 2 s
/// says nothing; and many set minutes to keep a NAT from forgetting them (Debian's ssh sets 300 s by itself
/// with `BatchMode`), which must not hide a dead host for a quarter of an hour.
pub const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which ssh-agent to ask for keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentChoice {
    /// The one in `SSH_AUTH_SOCK`, if any.
    Environment,
    /// None.
    Off,
    /// The one behind this socket.
    Socket(PathBuf),
}

/// What becomes of a host key that is not on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownKeys {
    /// The user is asked.
    Ask,
    Refuse,
    /// It is accepted and remembered: the user has said so in his file (`accept-new`, `no`).
    Accept,
}

/// Algorithms that the user's configuration allows; an empty list allows all that we have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedAlgorithms {
    /// `KexAlgorithms`
    pub kex: Vec<String>,
    /// `HostKeyAlgorithms`
    pub host_keys: Vec<String>,
    /// `Ciphers`
    pub ciphers: Vec<String>,
    /// `MACs`
    pub macs: Vec<String>,
}

/// One SSH server, ready to be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshTarget {
    /// Name for messages: that of `hosts.toml`, or the jump as written.
    pub label: String,
    /// Login user.
    pub user: String,
    /// Address or name to connect to.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// Private keys to offer, in this order; some may not exist.
    pub identities: Vec<PathBuf>,
    /// Certificates for those keys, besides the `KEY-cert.pub` that may lie beside each; some may not exist.
    pub certificates: Vec<PathBuf>,
    /// Offer no key of the agent that is not among [`SshTarget::identities`].
    pub identities_only: bool,
    /// Where other keys come from.
    pub agent: AgentChoice,
    /// The user's known_hosts; accepted keys are appended to the first.
    pub known_hosts: Vec<PathBuf>,
    /// The machine's known_hosts.
    pub global_known_hosts: Vec<PathBuf>,
    /// Keys that are never accepted (`RevokedHostKeys`).
    pub revoked_host_keys: Option<PathBuf>,
    /// What may be negotiated.
    pub allowed: AllowedAlgorithms,
    /// Name in known_hosts instead of the address.
    pub host_key_alias: Option<String>,
    /// Bound of the TCP connection.
    pub connect_timeout: Duration,
    /// How long the other end may say nothing before the connection counts as broken: `ServerAliveInterval`
    /// times `ServerAliveCountMax`, within [`SILENCE`]; `None` where the interval is not set.
    pub silence: Option<Duration>,
    /// `StrictHostKeyChecking`: what becomes of an unknown key. A changed key is refused whatever it says.
    pub unknown_keys: UnknownKeys,
    /// Servers to go through, the nearest first; theirs are empty.
    pub jumps: Vec<SshTarget>,
}

impl SshTarget {
    /// `user@address:port`, as errors name it.
    pub fn account(&self) -> String {
        format!("{}@{}", self.user, self.place())
    }

    /// `address:port`.
    pub fn place(&self) -> String {
        match self.address.contains(':') {
            true => format!("[{}]:{}", self.address, self.port),
            false => format!("{}:{}", self.address, self.port),
        }
    }

    /// The `ssh` command line that does the same login, for hints.
    pub fn command(&self) -> String {
        let port = if self.port == 22 { String::new() } else { format!("-p {} ", self.port) };
        let jumps: Vec<String> =
            self.jumps.iter().map(|jump| format!("{}@{}", jump.user, jump.place())).collect();
        let through =
            if jumps.is_empty() { String::new() } else { format!("-J {} ", quote::word(&jumps.join(","))) };
        format!("ssh {port}{through}{}", quote::word(&format!("{}@{}", self.user, self.address)))
    }
}

impl WantedHost {
    fn of(host: &Host) -> WantedHost {
        WantedHost {
            label: host.name.clone(),
            address: host.address.clone(),
            port: host.port,
            user: host.user.clone(),
            identity_file: host.identity_file.clone(),
            proxy_jump: host.proxy_jump.clone(),
        }
    }

    /// Refuses what `ssh` would take for an option.
    fn check(&self) -> Result<(), SshError> {
        let option = |text: &str| text.starts_with('-');
        let bad = self.address.is_empty()
            || option(&self.address)
            || self.user.as_deref().is_some_and(option)
            || self.proxy_jump.as_deref().is_some_and(option);
        if !bad {
            return Ok(());
        }
        Err(SshError::lasting(
            format!("{}: {:?} is not an address", self.label, self.address),
            "set address (and user) of this host in hosts.toml",
        ))
    }
}

/// Resolves a host of `hosts.toml`. `config`: another file than `~/.ssh/config`.
pub fn resolve(host: &Host, config: Option<&Path>) -> Result<SshTarget, SshError> {
    target(&WantedHost::of(host), config, true, 0)
}

/// A host for those who let `ssh` find its way: without jumps, and whatever the user's file wants.
pub fn outline(host: &Host, config: Option<&Path>) -> Result<SshTarget, SshError> {
    let wanted = WantedHost::of(host);
    wanted.check()?;
    Ok(assemble(&wanted, &config_values::look_up(&wanted, config)?).0)
}

fn target(
    wanted: &WantedHost,
    config: Option<&Path>,
    with_jumps: bool,
    depth: usize,
) -> Result<SshTarget, SshError> {
    let label = &wanted.label;
    wanted.check()?;
    let values = config_values::look_up(wanted, config)?;
    if let Some(command) = first(&values, "knownhostscommand").filter(|command| *command != "none") {
        return Err(SshError::lasting(
            format!(
                "{label}: the ssh configuration wants KnownHostsCommand {command:?}, which rankdeck does not run"
            ),
            format!(
                "set `transport = \"openssh\"` for this host in hosts.toml, or `KnownHostsCommand none` for this host in ~/.ssh/config, and put its key into known_hosts (`ssh-keyscan {}`)",
                quote::word(&wanted.address)
            ),
        ));
    }
    let (mut target, jump) = assemble(wanted, &values);
    if !with_jumps {
        return Ok(target);
    }
    if let Some(jump) = jump {
        target.jumps = jumps(label, &jump, config, depth)?;
    } else if let Some(command) = first(&values, "proxycommand").filter(|command| *command != "none") {
        return Err(SshError::lasting(
            format!(
                "{label}: the ssh configuration wants ProxyCommand {command:?}, which rankdeck does not run"
            ),
            "set `transport = \"openssh\"` for this host in hosts.toml, or proxy_jump (`none` connects directly)",
        ));
    }
    Ok(target)
}

/// The servers of a jump list. As with OpenSSH, only the first may need jumps of its own.
fn jumps(label: &str, list: &str, config: Option<&Path>, depth: usize) -> Result<Vec<SshTarget>, SshError> {
    let mut hops = Vec::new();
    for (index, text) in list.split(',').map(str::trim).filter(|text| !text.is_empty()).enumerate() {
        let mut wanted = jump(text).ok_or_else(|| {
            SshError::lasting(
                format!("{label}: {text:?} does not name a jump host"),
                "write proxy_jump as user@host:port",
            )
        })?;
        wanted.label = format!("{label} (jump {text})");
        let mut hop = target(&wanted, config, index == 0 && depth < MAX_JUMPS, depth + 1)?;
        hops.append(&mut hop.jumps);
        hops.push(hop);
    }
    if hops.len() > MAX_JUMPS {
        return Err(SshError::lasting(
            format!("{label}: more than {MAX_JUMPS} jumps"),
            "a jump host's own ProxyJump may lead in a circle: check with `ssh -G`",
        ));
    }
    Ok(hops)
}

/// `[ssh://][user@]host[:port]`, with `[...]` around an IPv6 address.
fn jump(text: &str) -> Option<WantedHost> {
    let text = text.strip_prefix("ssh://").unwrap_or(text).trim_end_matches('/');
    let (user, place) = match text.rsplit_once('@') {
        Some((user, place)) => (Some(user.to_string()), place),
        None => (None, text),
    };
    let (address, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (address, rest.strip_prefix(':'))
        }
        None => match place.split_once(':') {
            Some((_, rest)) if rest.contains(':') => (place, None),
            Some((address, port)) => (address, Some(port)),
            None => (place, None),
        },
    };
    let port = match port {
        Some(port) => Some(port.parse::<u16>().ok()?),
        None => None,
    };
    (!address.is_empty()).then(|| WantedHost { address: address.into(), port, user, ..WantedHost::default() })
}

/// The target and its jump list.
fn assemble(wanted: &WantedHost, values: &Values) -> (SshTarget, Option<String>) {
    let home = std::env::home_dir().unwrap_or_default();
    let address = first(values, "hostname").unwrap_or(&wanted.address).to_string();
    let port = wanted.port.or_else(|| first(values, "port").and_then(|port| port.parse().ok())).unwrap_or(22);
    let local_user = || {
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_else(|| "root".into())
    };
    let user =
        wanted.user.clone().or_else(|| first(values, "user").map(String::from)).unwrap_or_else(local_user);
    let expand = |path: &str| expand(path, &home, &address, &user, port, &wanted.address);
    let files = |key: &str| -> Vec<PathBuf> { files(values, key).map(|file| expand(&file)).collect() };
    let mut known_hosts = files("userknownhostsfile");
    if !values.contains_key("userknownhostsfile") {
        known_hosts.push(home.join(".ssh/known_hosts"));
    }
    let mut global_known_hosts = files("globalknownhostsfile");
    if !values.contains_key("globalknownhostsfile") {
        global_known_hosts.push("/etc/ssh/ssh_known_hosts".into());
    }
    let identities = match &wanted.identity_file {
        Some(file) => vec![expand(file)],
        None => files("identityfile"),
    };
    let jump = wanted.proxy_jump.clone().or_else(|| first(values, "proxyjump").map(String::from));
    let seconds = positive(values, "connecttimeout");
    let revoked = first(values, "revokedhostkeys").map(|file| file.trim_matches('"'));
    let target = SshTarget {
        label: wanted.label.clone(),
        revoked_host_keys: revoked.filter(|file| *file != "none" && !file.is_empty()).map(expand),
        allowed: AllowedAlgorithms {
            kex: names(values, "kexalgorithms"),
            host_keys: names(values, "hostkeyalgorithms"),
            ciphers: names(values, "ciphers"),
            macs: names(values, "macs"),
        },
        identities,
        certificates: files("certificatefile"),
        silence: silence(values),
        identities_only: first(values, "identitiesonly") == Some("yes"),
        agent: agent(values, expand),
        known_hosts,
        global_known_hosts,
        host_key_alias: first(values, "hostkeyalias").map(String::from),
        connect_timeout: seconds.map_or(DEFAULT_CONNECT_TIMEOUT, Duration::from_secs),
        unknown_keys: match first(values, "stricthostkeychecking") {
            Some("yes" | "true") => UnknownKeys::Refuse,
            Some("accept-new" | "no" | "off" | "false") => UnknownKeys::Accept,
            _ => UnknownKeys::Ask,
        },
        jumps: Vec::new(),
        address: address.clone(),
        user: user.clone(),
        port,
    };
    // `none` in either file means: no jump, whatever stands behind it.
    (target, jump.filter(|jump| jump != "none" && !jump.is_empty()))
}

/// All files that a key lists, as they are written.
fn files<'a>(values: &'a Values, key: &str) -> impl Iterator<Item = String> + 'a {
    let lists = values.get(key).map(Vec::as_slice).unwrap_or_default();
    lists.iter().flat_map(|list| split(list)).filter(|file| file != "none")
}

/// The names of a list with commas.
fn names(values: &Values, key: &str) -> Vec<String> {
    let list = first(values, key).unwrap_or_default();
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn positive(values: &Values, key: &str) -> Option<u64> {
    first(values, key).and_then(|text| text.parse().ok()).filter(|number| *number > 0)
}

/// How long a server may be silent.
fn silence(values: &Values) -> Option<Duration> {
    let interval = positive(values, "serveraliveinterval")?;
    let times = positive(values, "serveralivecountmax").unwrap_or(3);
    Some(Duration::from_secs(interval.saturating_mul(times)).clamp(SILENCE.0, SILENCE.1))
}

fn agent(values: &Values, expand: impl Fn(&str) -> PathBuf) -> AgentChoice {
    match first(values, "identityagent") {
        None | Some("SSH_AUTH_SOCK") => AgentChoice::Environment,
        Some("none") => AgentChoice::Off,
        Some(text) => match text.strip_prefix('$') {
            Some(name) => std::env::var_os(name.trim_matches(['{', '}']))
                .map_or(AgentChoice::Off, |path| AgentChoice::Socket(path.into())),
            None => AgentChoice::Socket(expand(text.trim_matches('"'))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(address: &str) -> WantedHost {
        WantedHost { label: "node1".into(), address: address.into(), ..WantedHost::default() }
    }

    const PRINTED: &str = "host n1\nrevokedhostkeys /r k\nhostkeyalgorithms ssh-ed25519,rsa-sha2-512\nuser trainer\nhostname 10.77.0.1\nport 2222\nidentitiesonly yes\nstricthostkeychecking true\n\
        identityfile /keys/a\nidentityfile \"/my keys/%h\"\nproxyjump gw,me@inner:2200\nconnecttimeout 3\nserveraliveinterval 4\nserveralivecountmax 2\ncertificatefile /keys/%n-cert.pub\nhostkeyalias pool\n\
        identityagent /run/agent.sock\nuserknownhostsfile /kh1 \"/k h2\"\nglobalknownhostsfile none\n";

    #[test]
    fn printed_values_become_a_target() {
        let (target, jump) = assemble(&wanted("n1"), &config_values::parse(PRINTED));
        assert_eq!(
            (target.user.as_str(), target.address.as_str(), target.port),
            ("trainer", "10.77.0.1", 2222)
        );
        assert_eq!(target.identities, [PathBuf::from("/keys/a"), "/my keys/10.77.0.1".into()]);
        assert!(target.identities_only && target.unknown_keys == UnknownKeys::Refuse);
        assert_eq!(target.agent, AgentChoice::Socket("/run/agent.sock".into()));
        assert_eq!(target.known_hosts, [PathBuf::from("/kh1"), "/k h2".into()]);
        assert!(target.global_known_hosts.is_empty());
        assert_eq!(target.host_key_alias.as_deref(), Some("pool"));
        assert_eq!(target.connect_timeout, Duration::from_secs(3));
        assert_eq!(target.silence, Some(Duration::from_secs(8)));
        assert_eq!(target.certificates, [PathBuf::from("/keys/n1-cert.pub")]);
        assert_eq!(target.revoked_host_keys, Some("/r k".into()));
        assert_eq!(target.allowed.host_keys, ["ssh-ed25519", "rsa-sha2-512"]);
        assert!(target.allowed.kex.is_empty());
        assert_eq!(jump.as_deref(), Some("gw,me@inner:2200"));
    }

    #[test]
    fn minutes_of_silence_are_cut() {
        let (target, _) = assemble(
            &wanted("n1"),
            &config_values::parse("serveraliveinterval 300\nserveralivecountmax 3\n"),
        );
        assert_eq!(target.silence, Some(SILENCE.1));
    }

    #[test]
    fn hosts_toml_wins() {
        let mut asked = wanted("n1");
        asked.port = Some(22);
        asked.user = Some("me".into());
        asked.identity_file = Some("/mine".into());
        asked.proxy_jump = Some("none".into());
        let (target, jump) = assemble(&asked, &config_values::parse(PRINTED));
        assert_eq!((target.user.as_str(), target.port, jump), ("me", 22, None));
        assert_eq!(target.identities, [PathBuf::from("/mine")]);
    }

    #[test]
    fn without_any_configuration_the_address_is_used_as_it_is() {
        let (target, jump) = assemble(&wanted("10.0.0.1"), &Values::new());
        assert_eq!((target.address.as_str(), target.port, jump), ("10.0.0.1", 22, None));
        assert!(target.unknown_keys == UnknownKeys::Ask && !target.known_hosts.is_empty());
        assert_eq!(target.silence, None);
    }

    #[test]
    fn jumps_are_split_into_user_host_and_port() {
        let parts = |text| jump(text).map(|wanted| (wanted.user, wanted.address, wanted.port));
        assert_eq!(parts("gw"), Some((None, "gw".into(), None)));
        assert_eq!(parts("me@gw:2200"), Some((Some("me".into()), "gw".into(), Some(2200))));
        assert_eq!(parts("ssh://me@gw:2200/"), Some((Some("me".into()), "gw".into(), Some(2200))));
        assert_eq!(parts("[fe80::1]:22"), Some((None, "fe80::1".into(), Some(22))));
        assert_eq!(parts("fe80::1"), Some((None, "fe80::1".into(), None)));
        assert_eq!(parts("gw:port"), None);
        assert_eq!(parts("me@"), None);
    }

    #[test]
    fn an_address_cannot_be_an_option() {
        let error = target(&wanted("-oProxyCommand=x"), None, true, 0).unwrap_err();
        assert!(error.cause.error.contains("not an address"), "{error}");
    }
}
