//! The words of the user's ssh configuration for one host.
//!
//! From `ssh -G`, which resolves Include, Match and tokens exactly and connects to nothing, or from the
//! ssh2-config crate.

use super::SshError;
use super::quote;
use ssh2_config::{ParseRule, SshConfig};
use std::collections::HashMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is asked for, before the user's file is looked at.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedHost {
    /// Name for messages.
    pub label: String,
    /// Address, name or alias.
    pub address: String,
    /// Wins over the file's, as do the others.
    pub port: Option<u16>,
    /// Login user.
    pub user: Option<String>,
    /// The key.
    pub identity_file: Option<String>,
    /// Jump hosts.
    pub proxy_jump: Option<String>,
}

/// The values for a host. `config`: another file than `~/.ssh/config`.
pub(super) fn look_up(wanted: &WantedHost, config: Option<&Path>) -> Result<Values, SshError> {
    match ssh_g(wanted, config)? {
        Some(text) => Ok(parse(&text)),
        None => from_crate(wanted, config),
    }
}

/// What `ssh -G` prints; `None` where there is no `ssh`.
fn ssh_g(wanted: &WantedHost, config: Option<&Path>) -> Result<Option<String>, SshError> {
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
        format!("try `ssh -G {}`", quote::word(&wanted.address)),
    ))
}

/// Values by keyword in lower case.
pub(super) type Values = HashMap<String, Vec<String>>;

/// `key value` lines; repeated keys collect.
pub(super) fn parse(text: &str) -> Values {
    let mut values = Values::new();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(' ') {
            values.entry(key.to_ascii_lowercase()).or_default().push(value.trim().into());
        }
    }
    values
}

pub(super) fn first<'a>(values: &'a Values, key: &str) -> Option<&'a str> {
    values.get(key).and_then(|list| list.first()).map(String::as_str)
}

/// Words of a value; a path with blanks stands in double quotes.
pub(super) fn split(text: &str) -> Vec<String> {
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
pub(super) fn expand(path: &str, home: &Path, address: &str, user: &str, port: u16, asked: &str) -> PathBuf {
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
fn from_crate(wanted: &WantedHost, config: Option<&Path>) -> Result<Values, SshError> {
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
    for line in text.lines() {
        let word =
            line.trim_start().split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or_default();
        match word.to_ascii_lowercase().as_str() {
            "match" => return Err(refuse("it holds a Match block".into())),
            // The crate mixes these with defaults of its own.
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

    #[test]
    fn the_crate_reads_simple_files_and_refuses_match() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, "Host n1\n  HostName 10.0.0.%h\n  Port 2200\n  User me\n  IdentityFile /k\n  UserKnownHostsFile /kh\n  IdentitiesOnly yes\n").unwrap();
        let wanted = WantedHost { label: "node1".into(), address: "n1".into(), ..WantedHost::default() };
        let values = from_crate(&wanted, Some(&file)).unwrap();

        let first = |key: &str| first(&values, key);
        assert_eq!(
            (first("hostname"), first("port"), first("user")),
            (Some("10.0.0.n1"), Some("2200"), Some("me"))
        );
        assert_eq!((first("identityfile"), first("userknownhostsfile")), (Some("\"/k\""), Some("/kh")));
        assert_eq!(first("identitiesonly"), Some("yes"));
        fs::write(&file, "Match all\n  Port 9\n").unwrap();
        assert!(from_crate(&wanted, Some(&file)).unwrap_err().cause.error.contains("Match"));
        fs::write(&file, "Ciphers=aes128-ctr\n").unwrap();
        assert!(from_crate(&wanted, Some(&file)).unwrap_err().cause.error.contains("Ciphers"));
    }
}
