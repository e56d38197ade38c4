//! Where and how to log in: `hosts.toml` over `~/.ssh/config`.
//!
//! `ssh -G` resolves the user's file exactly (Include, Match, tokens, jumps) and connects to nothing; where there is no `ssh`, the
//! ssh2-config crate reads it, and a file with `Match` is refused, because that crate gives its body to the wrong hosts.
//! Owner: called on a session's own thread, since it starts a process. What `hosts.toml` says wins.

use super::SshError;
use rankdeck_types::host::Host;
use ssh2_config::{ParseRule, SshConfig};
use std::collections::HashMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Most jumps on the way to one host.
const MAX_JUMPS: usize = 8;
/// Least and most of what `ServerAlive*` can allow. Agents speak twice a second, so less says nothing; and many set minutes to keep a NAT from
/// forgetting them (Debian's ssh sets 300 s by itself with `BatchMode`), which must not hide a dead host for a quarter of an hour.
pub const SILENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
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
    /// Name in known_hosts instead of the address.
    pub host_key_alias: Option<String>,
    /// Bound of the TCP connection.
    pub connect_timeout: Duration,
    /// How long the other end may say nothing before the connection counts as broken: `ServerAliveInterval` times `ServerAliveCountMax`, within
    /// [`SILENCE`]; `None` where the interval is not set.
    pub silence: Option<Duration>,
    /// `StrictHostKeyChecking yes`: never ask about an unknown key.
    pub strict: bool,
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
        let through = if jumps.is_empty() { String::new() } else { format!("-J {} ", jumps.join(",")) };
        format!("ssh {port}{through}{}@{}", self.user, self.address)
    }
}

/// What is asked for, before the user's file is looked at.
#[derive(Debug, Clone, Default)]
struct Wanted {
    label: String,
    address: String,
    port: Option<u16>,
    user: Option<String>,
    identity_file: Option<String>,
    proxy_jump: Option<String>,
}

/// Resolves a host of `hosts.toml`. `config`: another file than `~/.ssh/config`.
pub fn resolve(host: &Host, config: Option<&Path>) -> Result<SshTarget, SshError> {
    let wanted = Wanted {
        label: host.name.clone(),
        address: host.address.clone(),
        port: host.port,
        user: host.user.clone(),
        identity_file: host.identity_file.clone(),
        proxy_jump: host.proxy_jump.clone(),
    };
    target(&wanted, config, true, 0)
}

fn target(
    wanted: &Wanted,
    config: Option<&Path>,
    with_jumps: bool,
    depth: usize,
) -> Result<SshTarget, SshError> {
    let label = &wanted.label;
    if wanted.address.is_empty()
        || wanted.address.starts_with('-')
        || wanted.user.as_deref().is_some_and(|user| user.starts_with('-'))
    {
        return Err(SshError::lasting(
            format!("{label}: {:?} is no address", wanted.address),
            "set address (and user) of this host in hosts.toml",
        ));
    }
    let values = match ssh_g(wanted, config)? {
        Some(text) => parse(&text),
        None => from_crate(wanted, config)?,
    };
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
            "set proxy_jump for this host in hosts.toml (`none` connects directly)",
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
                format!("{label}: {text:?} is no jump host"),
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
fn jump(text: &str) -> Option<Wanted> {
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
    (!address.is_empty()).then(|| Wanted { address: address.into(), port, user, ..Wanted::default() })
}

/// What `ssh -G` prints; `None` where there is no `ssh`.
fn ssh_g(wanted: &Wanted, config: Option<&Path>) -> Result<Option<String>, SshError> {
    let mut command = Command::new("ssh");
    command.arg("-G").stdin(Stdio::null());
    if let Some(file) = config {
        command.arg("-F").arg(file);
    }
    if let Some(port) = wanted.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &wanted.user {
        command.args(["-l", user]);
    }
    let output = match command.arg("--").arg(&wanted.address).output() {
        Ok(output) => output,
        Err(_) => return Ok(None),
    };
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("no reason given");
    Err(SshError::lasting(
        format!("{}: ssh does not accept its configuration: {said}", wanted.label),
        format!("try `ssh -G {}`", wanted.address),
    ))
}

type Values = HashMap<String, Vec<String>>;

/// `key value` lines; repeated keys collect.
fn parse(text: &str) -> Values {
    let mut values = Values::new();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(' ') {
            values.entry(key.to_ascii_lowercase()).or_default().push(value.trim().into());
        }
    }
    values
}

fn first<'a>(values: &'a Values, key: &str) -> Option<&'a str> {
    values.get(key).and_then(|list| list.first()).map(String::as_str)
}

/// The target and its jump list.
fn assemble(wanted: &Wanted, values: &Values) -> (SshTarget, Option<String>) {
    let home = std::env::home_dir().unwrap_or_default();
    let address = first(values, "hostname").unwrap_or(&wanted.address).to_string();
    let port = wanted.port.or_else(|| first(values, "port").and_then(|port| port.parse().ok())).unwrap_or(22);
    let local_user = || {
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_else(|| "root".into())
    };
    let user =
        wanted.user.clone().or_else(|| first(values, "user").map(String::from)).unwrap_or_else(local_user);
    let expand = |path: &str| expand(path, &home, &address, &user, port, &wanted.address);
    let files = |key: &str| -> Vec<PathBuf> {
        let lists = values.get(key).map(Vec::as_slice).unwrap_or_default();
        lists
            .iter()
            .flat_map(|list| split(list))
            .filter(|file| file != "none")
            .map(|file| expand(&file))
            .collect()
    };
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
    let agent = match first(values, "identityagent") {
        None | Some("SSH_AUTH_SOCK") => AgentChoice::Environment,
        Some("none") => AgentChoice::Off,
        Some(text) => match text.strip_prefix('$') {
            Some(name) => std::env::var_os(name.trim_matches(['{', '}']))
                .map_or(AgentChoice::Off, |path| AgentChoice::Socket(path.into())),
            None => AgentChoice::Socket(expand(text.trim_matches('"'))),
        },
    };
    let jump = wanted.proxy_jump.clone().or_else(|| first(values, "proxyjump").map(String::from));
    let number = |key: &str| first(values, key).and_then(|text| text.parse::<u64>().ok()).filter(|&n| n > 0);
    let seconds = number("connecttimeout");
    let silence = number("serveraliveinterval").map(|interval| {
        let silence =
            Duration::from_secs(interval.saturating_mul(number("serveralivecountmax").unwrap_or(3)));
        silence.clamp(SILENCE.0, SILENCE.1)
    });
    let target = SshTarget {
        label: wanted.label.clone(),
        identities,
        certificates: files("certificatefile"),
        silence,
        identities_only: first(values, "identitiesonly") == Some("yes"),
        agent,
        known_hosts,
        global_known_hosts,
        host_key_alias: first(values, "hostkeyalias").map(String::from),
        connect_timeout: seconds.map_or(DEFAULT_CONNECT_TIMEOUT, Duration::from_secs),
        strict: matches!(first(values, "stricthostkeychecking"), Some("yes" | "true")),
        jumps: Vec::new(),
        address: address.clone(),
        user: user.clone(),
        port,
    };
    // `none` in either file means: no jump, whatever stands behind it.
    (target, jump.filter(|jump| jump != "none" && !jump.is_empty()))
}

/// Words of a value; a path with blanks stands in double quotes.
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

/// `~` and ssh's tokens in a path.
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

/// The same values from the ssh2-config crate, for machines without `ssh`.
fn from_crate(wanted: &Wanted, config: Option<&Path>) -> Result<Values, SshError> {
    let file = match config {
        Some(file) => file.to_path_buf(),
        None => std::env::home_dir().unwrap_or_default().join(".ssh/config"),
    };
    let mut values = Values::new();
    let Ok(text) = fs::read_to_string(&file) else { return Ok(values) };
    let refuse = |why: String| {
        SshError::lasting(
            format!("{}: {} cannot be used without an ssh client: {why}", wanted.label, file.display()),
            "install the OpenSSH client, or give address, port, user and identity_file in hosts.toml",
        )
    };
    if text.lines().any(|line| line.trim_start().to_ascii_lowercase().starts_with("match")) {
        return Err(refuse("it holds a Match block".into()));
    }
    let parsed = SshConfig::default()
        .parse(
            &mut BufReader::new(text.as_bytes()),
            ParseRule::ALLOW_UNKNOWN_FIELDS | ParseRule::ALLOW_UNSUPPORTED_FIELDS,
        )
        .map_err(|error| refuse(error.to_string()))?;
    let params = parsed.query(&wanted.address);
    let mut put = |key: &str, list: Vec<String>| {
        if !list.is_empty() {
            values.insert(key.into(), list);
        }
    };
    put("hostname", params.host_name.map(|name| name.replace("%h", &wanted.address)).into_iter().collect());
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
            // File lists are one value with several words, as `ssh -G` prints them.
            values.entry(key).or_insert_with(|| vec![list.join(" ")]);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(address: &str) -> Wanted {
        Wanted { label: "node1".into(), address: address.into(), ..Wanted::default() }
    }

    const PRINTED: &str = "host n1\nuser trainer\nhostname 10.77.0.1\nport 2222\nidentitiesonly yes\nstricthostkeychecking true\n\
        identityfile /keys/a\nidentityfile \"/my keys/%h\"\nproxyjump gw,me@inner:2200\nconnecttimeout 3\nserveraliveinterval 4\nserveralivecountmax 2\ncertificatefile /keys/%n-cert.pub\nhostkeyalias pool\n\
        identityagent /run/agent.sock\nuserknownhostsfile /kh1 \"/k h2\"\nglobalknownhostsfile none\n";

    #[test]
    fn printed_values_become_a_target() {
        let (target, jump) = assemble(&wanted("n1"), &parse(PRINTED));
        assert_eq!(
            (target.user.as_str(), target.address.as_str(), target.port),
            ("trainer", "10.77.0.1", 2222)
        );
        assert_eq!(target.identities, [PathBuf::from("/keys/a"), "/my keys/10.77.0.1".into()]);
        assert!(target.identities_only && target.strict);
        assert_eq!(target.agent, AgentChoice::Socket("/run/agent.sock".into()));
        assert_eq!(target.known_hosts, [PathBuf::from("/kh1"), "/k h2".into()]);
        assert!(target.global_known_hosts.is_empty());
        assert_eq!(target.host_key_alias.as_deref(), Some("pool"));
        assert_eq!(target.connect_timeout, Duration::from_secs(3));
        assert_eq!(target.silence, Some(Duration::from_secs(8)));
        assert_eq!(target.certificates, [PathBuf::from("/keys/n1-cert.pub")]);
        assert_eq!(jump.as_deref(), Some("gw,me@inner:2200"));
    }

    #[test]
    fn minutes_of_silence_are_cut() {
        let (target, _) = assemble(&wanted("n1"), &parse("serveraliveinterval 300\nserveralivecountmax 3\n"));
        assert_eq!(target.silence, Some(SILENCE.1));
    }

    #[test]
    fn hosts_toml_wins() {
        let mut asked = wanted("n1");
        asked.port = Some(22);
        asked.user = Some("me".into());
        asked.identity_file = Some("/mine".into());
        asked.proxy_jump = Some("none".into());
        let (target, jump) = assemble(&asked, &parse(PRINTED));
        assert_eq!((target.user.as_str(), target.port, jump), ("me", 22, None));
        assert_eq!(target.identities, [PathBuf::from("/mine")]);
    }

    #[test]
    fn without_any_configuration_the_address_is_used_as_it_is() {
        let (target, jump) = assemble(&wanted("10.0.0.1"), &Values::new());
        assert_eq!((target.address.as_str(), target.port, jump), ("10.0.0.1", 22, None));
        assert!(!target.strict && !target.known_hosts.is_empty());
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
        assert!(error.cause.error.contains("no address"), "{error}");
    }

    #[test]
    fn the_crate_reads_simple_files_and_refuses_match() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, "Host n1\n  HostName 10.0.0.%h\n  Port 2200\n  User me\n  IdentityFile /k\n  UserKnownHostsFile /kh\n  IdentitiesOnly yes\n").unwrap();
        let values = from_crate(&wanted("n1"), Some(&file)).unwrap();
        let (target, _) = assemble(&wanted("n1"), &values);
        assert_eq!((target.address.as_str(), target.port, target.user.as_str()), ("10.0.0.n1", 2200, "me"));
        assert_eq!(target.identities, [PathBuf::from("/k")]);
        assert_eq!(target.known_hosts, [PathBuf::from("/kh")]);
        assert!(target.identities_only);
        fs::write(&file, "Match all\n  Port 9\n").unwrap();
        assert!(from_crate(&wanted("n1"), Some(&file)).unwrap_err().cause.error.contains("Match"));
    }
}
