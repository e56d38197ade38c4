//! Resolves login parameters: `hosts.toml` over `~/.ssh/config`.
//!
//! `ssh -G` resolves the user's file exactly (Include, Match, tokens, jumps) without connecting. Without
//! `ssh`, the ssh2-config crate reads it, and a file with `Match` is rejected, because that crate applies its
//! body to the wrong hosts. It starts a process, so it runs on the session's thread.

use super::{SshError, quote};
use rankdeck_proto::regular;
use rankdeck_types::host::Host;
use ssh2_config::{ParseRule, SshConfig};
use std::collections::HashMap;
use std::io::BufReader;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Most jumps to one host.
const MAX_JUMPS: usize = 8;
/// Bounds of the silence from `ServerAlive*`. Agents send one message per second, so less than 2 s is too
/// short; and many users set minutes for NAT (Debian's ssh sets 300 s with `BatchMode`), which must not hide
/// a dead host.
pub const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The ssh-agent to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentChoice {
    /// The one in `SSH_AUTH_SOCK`, if any.
    Environment,
    /// None.
    Off,
    /// The one at this socket.
    Socket(PathBuf),
}

/// Addresses to connect to (`AddressFamily`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressFamily {
    Any,
    V4,
    V6,
}

impl AddressFamily {
    /// Returns whether an address is of this family.
    pub fn allows(self, ip: IpAddr) -> bool {
        match self {
            AddressFamily::Any => true,
            AddressFamily::V4 => ip.is_ipv4(),
            AddressFamily::V6 => ip.is_ipv6(),
        }
    }
}

/// Policy for unknown host keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownKeys {
    /// Prompt the user.
    Ask,
    /// Reject them.
    Refuse,
    /// Accept and save them (`accept-new`, `no`).
    Accept,
}

/// Algorithms that the user's configuration allows; an empty list allows all supported ones.
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

/// Resolved login parameters of one SSH server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshTarget {
    /// Name for messages: the name in `hosts.toml`, or the jump as written.
    pub label: String,
    /// Login user.
    pub user: String,
    /// Address or name to connect to.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// Private keys to offer, in this order; they may not exist.
    pub identities: Vec<PathBuf>,
    /// Certificates for those keys, besides `KEY-cert.pub` of each; they may not exist.
    pub certificates: Vec<PathBuf>,
    /// Offer only keys of the agent that are among [`SshTarget::identities`].
    pub identities_only: bool,
    /// Source of other keys.
    pub agent: AgentChoice,
    /// Methods that the user's configuration allows, in the server's words (`PreferredAuthentications`,
    /// `PubkeyAuthentication` and the like); an empty list allows all.
    pub methods: Vec<String>,
    /// Addresses to connect to.
    pub family: AddressFamily,
    /// Options of the user's configuration that the built-in SSH ignores, with their values.
    pub ignored: Vec<String>,
    /// The user's known_hosts files; accepted keys are appended to the first.
    pub known_hosts: Vec<PathBuf>,
    /// The machine's known_hosts files.
    pub global_known_hosts: Vec<PathBuf>,
    /// File of revoked keys (`RevokedHostKeys`).
    pub revoked_host_keys: Option<PathBuf>,
    pub allowed: AllowedAlgorithms,
    /// Name in known_hosts instead of the address.
    pub host_key_alias: Option<String>,
    /// Timeout of the TCP connection.
    pub connect_timeout: Duration,
    /// Silence after which the connection counts as broken: `ServerAliveInterval` times
    /// `ServerAliveCountMax`, within [`SILENCE`]; `None` if the interval is not set.
    pub silence: Option<Duration>,
    /// `StrictHostKeyChecking`: policy for unknown keys. A changed key is always rejected.
    pub unknown_keys: UnknownKeys,
    /// Jump servers, the nearest first; they have no jumps.
    pub jumps: Vec<SshTarget>,
}

/// Start of the label of a jump host. Names of hosts contain no space.
const JUMP: &str = "jump host ";

impl SshTarget {
    /// Returns the name of a jump host as it was written, `None` for a host of the run.
    pub fn jump(&self) -> Option<&str> {
        self.label.strip_prefix(JUMP)
    }

    /// Returns `user@address:port`, for errors.
    pub fn account(&self) -> String {
        format!("{}@{}", self.user, self.place())
    }

    /// Returns `address:port`.
    pub fn place(&self) -> String {
        match self.address.contains(':') {
            true => format!("[{}]:{}", self.address, self.port),
            false => format!("{}:{}", self.address, self.port),
        }
    }

    /// Returns the hint about ignored options of the user's configuration, which may be why a connection
    /// fails; empty without any.
    pub(super) fn ignored_hint(&self) -> String {
        match self.ignored.as_slice() {
            [] => String::new(),
            ignored => format!(
                "; the built-in SSH ignores {} of the ssh configuration: set `transport = \"openssh\"` for this host in hosts.toml",
                ignored.join(", ")
            ),
        }
    }

    /// Returns whether the user's configuration allows a method of authentication.
    pub(super) fn allows_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|allowed| allowed == method)
    }

    /// Returns the equivalent `ssh` command, for hints.
    pub fn command(&self) -> String {
        let port = if self.port == 22 { String::new() } else { format!("-p {} ", self.port) };
        let jumps: Vec<String> =
            self.jumps.iter().map(|jump| format!("{}@{}", jump.user, jump.place())).collect();
        let through =
            if jumps.is_empty() { String::new() } else { format!("-J {} ", quote::word(&jumps.join(","))) };
        format!("ssh {port}{through}{}", quote::word(&format!("{}@{}", self.user, self.address)))
    }
}

/// A requested host, before the user's file is read.
#[derive(Debug, Clone, Default)]
struct RequestedHost {
    /// Name for messages.
    label: String,
    /// Address, name or alias.
    address: String,
    /// Takes precedence over the file, as do the others.
    port: Option<u16>,
    /// Login user.
    user: Option<String>,
    /// The key.
    identity_file: Option<String>,
    /// Jump hosts.
    proxy_jump: Option<String>,
}

impl RequestedHost {
    fn from_host(host: &Host) -> RequestedHost {
        RequestedHost {
            label: host.name.clone(),
            address: host.address.clone(),
            port: host.port,
            user: host.user.clone(),
            identity_file: host.identity_file.clone(),
            proxy_jump: host.proxy_jump.clone(),
        }
    }

    /// Rejects values that `ssh` would parse as options.
    fn check(&self) -> Result<(), SshError> {
        let option = |text: &str| text.starts_with('-');
        let bad = self.address.is_empty()
            || option(&self.address)
            || self.user.as_deref().is_some_and(option)
            || self.proxy_jump.as_deref().is_some_and(option);
        if !bad {
            return Ok(());
        }
        Err(SshError::permanent(
            format!("{}: invalid address {:?}", self.label, self.address),
            "set address (and user) of this host in hosts.toml",
        ))
    }
}

/// Resolves a host of `hosts.toml`. `config`: a file in place of `~/.ssh/config`.
pub fn resolve(host: &Host, config: Option<&Path>) -> Result<SshTarget, SshError> {
    target(&RequestedHost::from_host(host), config, true, 0)
}

/// Resolves a host for the system's `ssh`, without jumps and without checks of unsupported options.
pub(crate) fn outline(host: &Host, config: Option<&Path>) -> Result<SshTarget, SshError> {
    let requested = RequestedHost::from_host(host);
    requested.check()?;
    Ok(assemble(&requested, &read_values(&requested, config)?).0)
}

fn target(
    requested: &RequestedHost,
    config: Option<&Path>,
    with_jumps: bool,
    depth: usize,
) -> Result<SshTarget, SshError> {
    let label = &requested.label;
    requested.check()?;
    let values = read_values(requested, config)?;
    if let Some(command) = first(&values, "knownhostscommand").filter(|command| *command != "none") {
        return Err(SshError::permanent(
            format!(
                "{label}: the built-in SSH does not support KnownHostsCommand {command:?} of the ssh configuration"
            ),
            format!(
                "set `transport = \"openssh\"` for this host in hosts.toml, or `KnownHostsCommand none` for it in ~/.ssh/config, and add its key to known_hosts (`ssh-keyscan {}`)",
                quote::word(&requested.address)
            ),
        ));
    }
    let (mut target, jump) = assemble(requested, &values);
    if !with_jumps {
        return Ok(target);
    }
    if let Some(jump) = jump {
        target.jumps = jumps(label, &jump, config, depth)?;
    } else if let Some(command) = first(&values, "proxycommand").filter(|command| *command != "none") {
        return Err(SshError::permanent(
            format!(
                "{label}: the built-in SSH does not support ProxyCommand {command:?} of the ssh configuration"
            ),
            "set `transport = \"openssh\"` for this host in hosts.toml, or proxy_jump (`none` connects directly)",
        ));
    }
    Ok(target)
}

/// Resolves a jump list. As in OpenSSH, only the first server may have jumps.
fn jumps(label: &str, list: &str, config: Option<&Path>, depth: usize) -> Result<Vec<SshTarget>, SshError> {
    let mut hops = Vec::new();
    for (index, text) in list.split(',').map(str::trim).filter(|text| !text.is_empty()).enumerate() {
        let mut requested = jump(text).ok_or_else(|| {
            SshError::permanent(
                format!("{label}: invalid jump host {text:?}"),
                "set proxy_jump to user@host:port",
            )
        })?;
        // Equal for all hosts behind it, which share its session.
        requested.label = format!("{JUMP}{text}");
        let mut hop = target(&requested, config, index == 0 && depth < MAX_JUMPS, depth + 1)
            .map_err(|error| error.on(label))?;
        hops.append(&mut hop.jumps);
        hops.push(hop);
    }
    if hops.len() > MAX_JUMPS {
        return Err(SshError::permanent(
            format!("{label}: more than {MAX_JUMPS} jumps"),
            "check for a ProxyJump cycle with `ssh -G`",
        ));
    }
    Ok(hops)
}

/// Parses `[ssh://][user@]host[:port]`, with `[...]` around an IPv6 address.
fn jump(text: &str) -> Option<RequestedHost> {
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
    (!address.is_empty()).then(|| RequestedHost {
        address: address.into(),
        port,
        user,
        ..RequestedHost::default()
    })
}

/// Returns the target and its jump list.
fn assemble(requested: &RequestedHost, values: &KeywordValues) -> (SshTarget, Option<String>) {
    let home = std::env::home_dir().unwrap_or_default();
    let address = first(values, "hostname").unwrap_or(&requested.address).to_string();
    let port =
        requested.port.or_else(|| first(values, "port").and_then(|port| port.parse().ok())).unwrap_or(22);
    let local_user = || {
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_else(|| "root".into())
    };
    let user =
        requested.user.clone().or_else(|| first(values, "user").map(String::from)).unwrap_or_else(local_user);
    let expand = |path: &str| expand(path, &home, &address, &user, port, &requested.address);
    let files = |key: &str| -> Vec<PathBuf> { files(values, key).map(|file| expand(&file)).collect() };
    let mut known_hosts = files("userknownhostsfile");
    if !values.contains_key("userknownhostsfile") {
        known_hosts.push(home.join(".ssh/known_hosts"));
    }
    let mut global_known_hosts = files("globalknownhostsfile");
    if !values.contains_key("globalknownhostsfile") {
        global_known_hosts.push("/etc/ssh/ssh_known_hosts".into());
    }
    let identities = match &requested.identity_file {
        Some(file) => vec![expand(file)],
        None => files("identityfile"),
    };
    let jump = requested.proxy_jump.clone().or_else(|| first(values, "proxyjump").map(String::from));
    let seconds = positive(values, "connecttimeout");
    let revoked = first(values, "revokedhostkeys").map(|file| file.trim_matches('"'));
    let target = SshTarget {
        label: requested.label.clone(),
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
        methods: methods(values),
        family: match first(values, "addressfamily") {
            Some("inet") => AddressFamily::V4,
            Some("inet6") => AddressFamily::V6,
            _ => AddressFamily::Any,
        },
        ignored: ignored(values),
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
    // `none` in either file disables jumps.
    (target, jump.filter(|jump| jump != "none" && !jump.is_empty()))
}

/// Returns the files that a key lists, as written.
fn files<'a>(values: &'a KeywordValues, key: &str) -> impl Iterator<Item = String> + 'a {
    let lists = values.get(key).map(Vec::as_slice).unwrap_or_default();
    lists.iter().flat_map(|list| split(list)).filter(|file| file != "none")
}

/// Returns the names of a comma-separated list.
fn names(values: &KeywordValues, key: &str) -> Vec<String> {
    let list = first(values, key).unwrap_or_default();
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Options that decide whether and as whom a login succeeds, and that the built-in SSH does not support. Their
/// defaults are not printed by `ssh -G`, or are `none`, `no` or empty.
const UNSUPPORTED: [(&str, &str); 3] = [
    ("bindaddress", "BindAddress"),
    ("bindinterface", "BindInterface"),
    ("pkcs11provider", "PKCS11Provider"),
];

fn ignored(values: &KeywordValues) -> Vec<String> {
    let set = |(key, name): &(&str, &str)| {
        let value = first(values, key).filter(|value| !["", "none", "no"].contains(value))?;
        Some(format!("{name} {value}"))
    };
    UNSUPPORTED.iter().filter_map(set).collect()
}

/// Returns the allowed methods; empty if all are.
fn methods(values: &KeywordValues) -> Vec<String> {
    const METHODS: [(&str, &str); 3] = [
        ("publickey", "pubkeyauthentication"),
        ("keyboard-interactive", "kbdinteractiveauthentication"),
        ("password", "passwordauthentication"),
    ];
    let preferred = names(values, "preferredauthentications");
    let allowed: Vec<String> = METHODS
        .iter()
        .filter(|(method, key)| {
            let wanted = preferred.is_empty() || preferred.iter().any(|name| name == method);
            wanted && !matches!(first(values, key), Some("no" | "false"))
        })
        .map(|(method, _)| (*method).to_owned())
        .collect();
    if allowed.len() == METHODS.len() { Vec::new() } else { allowed }
}

fn positive(values: &KeywordValues, key: &str) -> Option<u64> {
    first(values, key).and_then(|text| text.parse().ok()).filter(|number| *number > 0)
}

/// Returns the allowed silence of a server.
fn silence(values: &KeywordValues) -> Option<Duration> {
    let interval = positive(values, "serveraliveinterval")?;
    let times = positive(values, "serveralivecountmax").unwrap_or(3);
    Some(Duration::from_secs(interval.saturating_mul(times)).clamp(SILENCE.0, SILENCE.1))
}

fn agent(values: &KeywordValues, expand: impl Fn(&str) -> PathBuf) -> AgentChoice {
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

/// Returns the values for a host. `config`: a file in place of `~/.ssh/config`.
fn read_values(requested: &RequestedHost, config: Option<&Path>) -> Result<KeywordValues, SshError> {
    match ssh_g(requested, config)? {
        Some(text) => Ok(parse(&text)),
        None => from_crate(requested, config),
    }
}

/// Returns the output of `ssh -G`; `None` without `ssh`.
fn ssh_g(requested: &RequestedHost, config: Option<&Path>) -> Result<Option<String>, SshError> {
    let mut command = Command::new("ssh");
    command.arg("-G").stdin(Stdio::null());
    if let Some(file) = config {
        command.arg("-F").arg(file);
    }
    if let Some(port) = requested.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &requested.user {
        command.args(["-l", user]);
    }
    let output = match command.arg("--").arg(&requested.address).output() {
        Ok(output) => output,
        Err(_) => return Ok(None),
    };
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = stderr.lines().next().unwrap_or("no reason given");
    Err(SshError::permanent(
        format!("{}: ssh rejects its configuration: {reason}", requested.label),
        format!("check it with `ssh -G {}`", quote::word(&requested.address)),
    ))
}

/// Values by keyword in lower case.
type KeywordValues = HashMap<String, Vec<String>>;

/// Parses `key value` lines; repeated keys collect.
fn parse(text: &str) -> KeywordValues {
    let mut values = KeywordValues::new();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(' ') {
            values.entry(key.to_ascii_lowercase()).or_default().push(value.trim().into());
        }
    }
    values
}

fn first<'a>(values: &'a KeywordValues, key: &str) -> Option<&'a str> {
    values.get(key).and_then(|list| list.first()).map(String::as_str)
}

/// Splits a value into words; double quotes enclose spaces.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Expands `~` and ssh's tokens in a path.
fn expand(path: &str, home: &Path, address: &str, user: &str, port: u16, asked: &str) -> PathBuf {
    let mut text = String::new();
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => match chars.next() {
                Some('d') => text.push_str(&home.to_string_lossy()),
                Some('h') => text.push_str(address),
                Some('n') => text.push_str(asked),
                Some('r') => text.push_str(user),
                Some('p') => text.push_str(&port.to_string()),
                Some('u') => text.push_str(&std::env::var("USER").unwrap_or_default()),
                Some('%') | None => text.push('%'),
                Some(other) => text.extend(['%', other]),
            },
            c => text.push(c),
        }
    }
    match text.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => text.into(),
    }
}

/// Returns the values from the ssh2-config crate, for machines without `ssh`.
fn from_crate(requested: &RequestedHost, config: Option<&Path>) -> Result<KeywordValues, SshError> {
    let file = match config {
        Some(file) => file.to_path_buf(),
        None => std::env::home_dir().unwrap_or_default().join(".ssh/config"),
    };
    let mut values = KeywordValues::new();
    let Ok(text) = regular::read_text(&file) else { return Ok(values) };
    let refuse = |why: String| {
        SshError::permanent(
            format!("{}: cannot use {} without an ssh client: {why}", requested.label, file.display()),
            "install the OpenSSH client, or set address, port, user and identity_file in hosts.toml",
        )
    };
    for line in text.lines() {
        let word =
            line.trim_start().split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or_default();
        match word.to_ascii_lowercase().as_str() {
            "match" => return Err(refuse("it has a Match block".into())),
            // The crate mixes these with its own defaults.
            "hostkeyalgorithms" | "kexalgorithms" | "ciphers" | "macs" => {
                return Err(refuse(format!("it sets {word}")));
            }
            _ => {}
        }
    }
    let parsed = SshConfig::default()
        .parse(
            &mut BufReader::new(text.as_bytes()),
            ParseRule::ALLOW_UNKNOWN_FIELDS | ParseRule::ALLOW_UNSUPPORTED_FIELDS,
        )
        .map_err(|error| refuse(error.to_string()))?;
    let params = parsed.query(&requested.address);
    let mut put = |key: &str, list: Vec<String>| {
        if !list.is_empty() {
            values.insert(key.into(), list);
        }
    };
    put(
        "hostname",
        params.host_name.map(|name| name.replace("%h", &requested.address)).into_iter().collect(),
    );
    put("port", params.port.map(|port| port.to_string()).into_iter().collect());
    put("user", params.user.into_iter().collect());
    put("proxyjump", params.proxy_jump.map(|list| list.join(",")).into_iter().collect());
    put(
        "connecttimeout",
        params.connect_timeout.map(|time| time.as_secs().to_string()).into_iter().collect(),
    );
    put(
        "serveraliveinterval",
        params.server_alive_interval.map(|time| time.as_secs().to_string()).into_iter().collect(),
    );
    let quoted = |path: PathBuf| format!("\"{}\"", path.display());
    let own = params.identity_file.unwrap_or_default();
    let usual = || ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"].map(PathBuf::from).to_vec();
    let identities = if own.is_empty() { usual() } else { own };
    put("identityfile", identities.into_iter().map(quoted).collect());
    for fields in [params.ignored_fields, params.unsupported_fields] {
        for (key, list) in fields {
            let key = key.to_ascii_lowercase();
            // File lists are one value with several words, as in `ssh -G`.
            values.entry(key).or_insert_with(|| vec![list.join(" ")]);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn requested(address: &str) -> RequestedHost {
        RequestedHost { label: "node1".into(), address: address.into(), ..RequestedHost::default() }
    }

    const PRINTED: &str = "host n1\nrevokedhostkeys /r k\nhostkeyalgorithms ssh-ed25519,rsa-sha2-512\nuser trainer\nhostname 10.77.0.1\nport 2222\nidentitiesonly yes\nstricthostkeychecking true\n\
        identityfile /keys/a\nidentityfile \"/my keys/%h\"\nproxyjump gw,me@inner:2200\nconnecttimeout 3\nserveraliveinterval 4\nserveralivecountmax 2\ncertificatefile /keys/%n-cert.pub\nhostkeyalias pool\n\
        identityagent /run/agent.sock\nuserknownhostsfile /kh1 \"/k h2\"\nglobalknownhostsfile none\n";

    #[test]
    fn ssh_g_output_becomes_a_target() {
        let (target, jump) = assemble(&requested("n1"), &parse(PRINTED));
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
    fn ssh_options_are_obeyed_or_named() {
        let of = |text: &str| assemble(&requested("n1"), &parse(text)).0;
        let plain = of(
            "addressfamily any\npubkeyauthentication true\npasswordauthentication yes\npkcs11provider none\n",
        );
        assert_eq!((plain.family, plain.methods.len(), plain.ignored.len()), (AddressFamily::Any, 0, 0));
        assert!(plain.allows_method("publickey") && plain.ignored_hint().is_empty());
        assert_eq!(of("addressfamily inet6\n").family, AddressFamily::V6);
        let only = of("preferredauthentications keyboard-interactive,gssapi-with-mic\n");
        assert_eq!(only.methods, ["keyboard-interactive"]);
        let keyless = of("pubkeyauthentication false\n");
        assert!(!keyless.allows_method("publickey") && keyless.allows_method("password"));
        let bound = of("bindaddress 10.0.0.9\n");
        assert_eq!(bound.ignored, ["BindAddress 10.0.0.9"]);
        assert!(bound.ignored_hint().contains("openssh"));
    }

    #[test]
    fn long_silence_is_clamped() {
        let (target, _) =
            assemble(&requested("n1"), &parse("serveraliveinterval 300\nserveralivecountmax 3\n"));
        assert_eq!(target.silence, Some(SILENCE.1));
    }

    #[test]
    fn hosts_toml_overrides_the_configuration() {
        let mut asked = requested("n1");
        asked.port = Some(22);
        asked.user = Some("me".into());
        asked.identity_file = Some("/mine".into());
        asked.proxy_jump = Some("none".into());
        let (target, jump) = assemble(&asked, &parse(PRINTED));
        assert_eq!((target.user.as_str(), target.port, jump), ("me", 22, None));
        assert_eq!(target.identities, [PathBuf::from("/mine")]);
    }

    #[test]
    fn address_is_used_without_a_configuration() {
        let (target, jump) = assemble(&requested("10.0.0.1"), &KeywordValues::new());
        assert_eq!((target.address.as_str(), target.port, jump), ("10.0.0.1", 22, None));
        assert!(target.unknown_keys == UnknownKeys::Ask && !target.known_hosts.is_empty());
        assert_eq!(target.silence, None);
    }

    #[test]
    fn jump_is_split_into_user_host_and_port() {
        let parts = |text| jump(text).map(|requested| (requested.user, requested.address, requested.port));
        assert_eq!(parts("gw"), Some((None, "gw".into(), None)));
        assert_eq!(parts("me@gw:2200"), Some((Some("me".into()), "gw".into(), Some(2200))));
        assert_eq!(parts("ssh://me@gw:2200/"), Some((Some("me".into()), "gw".into(), Some(2200))));
        assert_eq!(parts("[fe80::1]:22"), Some((None, "fe80::1".into(), Some(22))));
        assert_eq!(parts("fe80::1"), Some((None, "fe80::1".into(), None)));
        assert_eq!(parts("gw:port"), None);
        assert_eq!(parts("me@"), None);
    }

    #[test]
    fn address_like_an_option_is_rejected() {
        assert!(target(&requested("-oProxyCommand=x"), None, true, 0).is_err());
    }

    #[test]
    fn crate_reads_simple_files_and_rejects_match() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, "Host n1\n  HostName 10.0.0.%h\n  Port 2200\n  User me\n  IdentityFile /k\n  UserKnownHostsFile /kh\n  IdentitiesOnly yes\n").unwrap();
        let requested =
            RequestedHost { label: "node1".into(), address: "n1".into(), ..RequestedHost::default() };
        let values = from_crate(&requested, Some(&file)).unwrap();

        let first = |key: &str| first(&values, key);
        assert_eq!(
            (first("hostname"), first("port"), first("user")),
            (Some("10.0.0.n1"), Some("2200"), Some("me"))
        );
        assert_eq!((first("identityfile"), first("userknownhostsfile")), (Some("\"/k\""), Some("/kh")));
        assert_eq!(first("identitiesonly"), Some("yes"));
        fs::write(&file, "Match all\n  Port 9\n").unwrap();
        assert!(from_crate(&requested, Some(&file)).is_err());
        fs::write(&file, "Ciphers=aes128-ctr\n").unwrap();
        assert!(from_crate(&requested, Some(&file)).is_err());
    }
}
