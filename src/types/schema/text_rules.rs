//! Rules for strings: names, paths, addresses, interfaces. Each refusal has a reason and a hint.

/// A rule for strings.
#[derive(Debug)]
pub struct TextRule {
    /// What is expected, after "expected".
    pub expected: &'static str,
    /// The rule as a regular expression, if it is a short one, for the JSON Schema.
    pub pattern: Option<&'static str>,
    /// Rejects a text that does not follow the rule.
    pub test: fn(&str) -> Result<(), Refusal>,
}

/// Reason of a refusal, and the hint.
pub type Refusal = (String, String);

fn refuse(why: impl Into<String>, hint: impl Into<String>) -> Result<(), Refusal> {
    Err((why.into(), hint.into()))
}

impl TextRule {
    /// A rule without a pattern.
    pub const fn new(expected: &'static str, test: fn(&str) -> Result<(), Refusal>) -> TextRule {
        TextRule { expected, pattern: None, test }
    }
}

/// Names of hosts and runs: they become file names, so letters, digits, `-`, `_`, `.` only.
pub static NAME: TextRule = TextRule {
    expected: "a name of letters, digits, `-`, `_` and `.`",
    pattern: Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
    test: name,
};
/// Any text that is not empty.
pub static PLAIN: TextRule = TextRule::new("a non-empty string", plain);
/// A file or a directory.
pub static PATH: TextRule = TextRule::new("a path", path);
/// A line for the shell.
pub static SHELL: TextRule = TextRule::new("a shell line", plain);
/// An environment id.
pub(crate) static ENV_ID: TextRule = TextRule::new("an RL environment id", plain);
/// A callable of a Python module.
pub(crate) static FACTORY: TextRule = TextRule::new("`module:callable`", factory);
/// A program that is started: a path, or a name that `PATH` finds.
pub static PROGRAM: TextRule = TextRule::new("a path, or a name in `PATH`", plain);
/// A host name, an address or an ssh alias.
pub static ADDRESS: TextRule = TextRule::new("an address or host name", address);
/// A login name.
pub static USER: TextRule = TextRule::new("a user name", user);
/// Hosts that lead to the one that is meant, in their order.
pub(crate) static JUMP: TextRule = TextRule::new("`user@host:port`, separated by commas", jump);
/// libtorch on a host.
pub static LIBTORCH: TextRule = TextRule::new("a directory, or `python:PATH`", libtorch);
/// A network interface.
pub(crate) static INTERFACE: TextRule = TextRule::new("the name of a network interface", interface);
/// A web address.
pub(crate) static URL: TextRule =
    TextRule { expected: "a URL that starts with `https://`", pattern: Some("^https?://"), test: url };

/// Hint for a password in a file.
const NO_PASSWORD: &str = "passwords are not stored: install a key with `ssh-copy-id`, or use an ssh-agent";

fn url(text: &str) -> Result<(), Refusal> {
    match text.starts_with("https://") || text.starts_with("http://") {
        true => plain(text),
        false => refuse("is not a URL", "write `https://...`"),
    }
}

fn plain(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return refuse("is empty", "remove the key to use the default");
    }
    if text.contains('\0') {
        return refuse("contains a NUL character", "remove the NUL character");
    }
    Ok(())
}

fn factory(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.split_once(':') {
        Some((module, name)) if !module.is_empty() && !name.is_empty() => Ok(()),
        _ => refuse("names no module", "write `module:callable`"),
    }
}

fn path(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let Some(name) = variable_in(text) else { return Ok(()) };
    let home = ["$HOME", "${HOME}"].iter().find_map(|home| text.strip_prefix(home));
    let hint = match home.filter(|rest| rest.starts_with('/') && variable_in(rest).is_none()) {
        Some(rest) => format!("write `\"~{rest}\"`"),
        None => "write the path itself; `~/` is the home directory".to_owned(),
    };
    refuse(format!("contains `${name}`, which is not expanded (no shell)"), hint)
}

/// Returns the name in the first `$NAME` or `${NAME}` of a text.
pub fn variable_in(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let after = text[at + 1..].trim_start_matches('{');
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = &after[..after.find(|c| !is_part(c)).unwrap_or(after.len())];
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_').then_some(name)
    })
}

fn name(text: &str) -> Result<(), Refusal> {
    let hint = "use letters, digits, `-`, `_` and `.`, starting with a letter or digit";
    if text.is_empty() {
        return refuse("is empty", hint);
    }
    if text.len() > 64 {
        return refuse(format!("has {} characters, limit 64", text.chars().count()), hint);
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.".contains(*c))) {
        // `node[01-04]`, as Slurm writes several.
        let hint = if bad == '[' { "list each name separately, not as a range" } else { hint };
        return refuse(format!("contains the character `{}`", bad.escape_default()), hint);
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse("does not start with a letter or digit", hint);
    }
    Ok(())
}

fn address(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    // `ssh://` is reported only if nothing else is wrong.
    let bare = text.split_once("://").map_or(text, |(_, rest)| rest.trim_end_matches('/'));
    if let Some((login, host)) = bare.rsplit_once('@') {
        // A password is never printed.
        if let Some((user, _)) = login.split_once(':') {
            let host = host.split_once(':').map_or(host, |(host, _)| host);
            return refuse(
                "contains a password",
                format!("{NO_PASSWORD}; write `address = \"{host}\"` and `user = \"{user}\"`"),
            );
        }
        let user = login;
        return match host.split_once(':') {
            Some((host, port)) if !port.contains(':') => refuse(
                "contains a user name and a port",
                format!("write `address = \"{host}\"`, `user = \"{user}\"` and `port = {port}`"),
            ),
            _ => refuse(
                "contains a user name",
                format!("write `address = \"{host}\"` and `user = \"{user}\"`"),
            ),
        };
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return refuse(
            format!("contains `{scheme}://`"),
            format!("write `address = \"{}\"`", rest.trim_end_matches('/')),
        );
    }
    if let Some(bad) =
        text.chars().find(|c| c.is_whitespace() || c.is_control() || "/\\\"'`$;&|<>(){}".contains(*c))
    {
        return refuse(
            format!("contains the character `{}`", bad.escape_default()),
            "use a host name, an IP address or an alias of `~/.ssh/config`",
        );
    }
    if text.starts_with('-') {
        return refuse("starts with `-`", "use a host name, an IP address or an alias of `~/.ssh/config`");
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            refuse("contains a port", format!("write `address = \"{host}\"` and `port = {port}`"))
        }
        // Resolvers read a bare number as a 32-bit address: 6841231 becomes 0.104.99.143.
        _ if text.chars().all(|c| c.is_ascii_digit()) => refuse(
            "is a number and would be read as an IPv4 address",
            "use the address with its dots, or a name",
        ),
        _ => Ok(()),
    }
}

/// Directories write `user@domain` and `DOMAIN\user`.
fn user(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let bad = |c: &char| c.is_whitespace() || c.is_control() || ":/\"'`$;&|<>".contains(*c);
    match text.chars().find(bad) {
        Some(bad) => {
            refuse(format!("contains the character `{}`", bad.escape_default()), "use only the login name")
        }
        None if text.starts_with(['-', '@']) || text.ends_with(['@', '\\']) => {
            refuse("starts with `-`, or has nothing before or after `@`", "use only the login name")
        }
        None => Ok(()),
    }
}

fn jump(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let hint = "write `user@host:port`, several separated by commas; user and port are optional";
    for hop in text.split(',') {
        let hop = hop.trim();
        let (login, host) = hop.rsplit_once('@').map_or((None, hop), |(login, host)| (Some(login), host));
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match (bracketed, host.split_once(':')) {
            (Some((host, rest)), _) => (host, rest.strip_prefix(':')),
            (None, Some((host, port))) => (host, Some(port)),
            (None, None) => (host, None),
        };
        if login.is_some_and(|login| login.contains(':')) {
            return refuse("contains a password", NO_PASSWORD);
        }
        if host.is_empty() || login == Some("") {
            return refuse("has a hop without a host or user", hint);
        }
        // Hints show it as a command to type, and `ssh` may hand it to a shell.
        if let Some(bad) = hop.chars().find(|c| "\\\"'`$;&|<>(){}!*?#~".contains(*c)) {
            return refuse(format!("contains the character `{}`", bad.escape_default()), hint);
        }
        if hop.starts_with('-') || hop.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return refuse("has a hop with a space or a leading `-`", hint);
        }
        if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
            return refuse("has a hop whose port is not a number from 1 to 65535", hint);
        }
    }
    Ok(())
}

fn libtorch(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.strip_prefix("python:") {
        Some(path) if path.trim().is_empty() => {
            refuse("has no interpreter", "write `python:PATH`, such as `python:venv/bin/python3`")
        }
        _ => Ok(()),
    }
}

fn interface(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.chars().find(|c| c.is_whitespace() || c.is_control() || *c == '/') {
        Some(bad) => refuse(
            format!("contains the character `{}`", bad.escape_default()),
            "list the interfaces of a host with `ip -brief address`",
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_host_name_or_an_ip() {
        for good in ["gpu1", "10.0.0.7", "fe80::1", "::1", "node-1.cluster.example", "a%eth0"] {
            assert_eq!(address(good), Ok(()), "{good}");
        }
        for bad in ["", " ", "a b", "root@a", "a:22", "6841231", "-oProxyCommand=x", "a;b", "$(x)"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn path_with_a_shell_variable_is_rejected() {
        for good in ["a", "~/x", "/a b", "a$", "$1", "x$-y"] {
            assert_eq!(path(good), Ok(()), "{good}");
        }
        for (bad, hint) in
            [("$HOME/x", "`\"~/x\"`"), ("${HOME}/x", "`\"~/x\"`"), ("a/$USER", "the path itself")]
        {
            let (why, advice) = path(bad).unwrap_err();
            assert!(why.contains('$') && advice.contains(hint), "{bad}: {why}, {advice}");
        }
        assert!(path("").is_err());
    }

    #[test]
    fn password_is_rejected_and_not_repeated() {
        for (test, text) in [
            (address as fn(&str) -> _, "me:s3cret@h"),
            (address, "ssh://me:s3cret@h:22/"),
            (address, "me:s3@cret@h"),
            (jump, "me:s3cret@h,b"),
        ] {
            let (why, hint) = test(text).unwrap_err();
            assert!(hint.contains("ssh-copy-id") && !hint.contains("cret"), "{text}: {why}, {hint}");
        }
    }

    #[test]
    fn jump_host_is_checked_by_hop() {
        for good in ["a", "u@a", "u@a:2222", "a,u@b:22", "[::1]:22", "u@[fe80::2]"] {
            assert_eq!(jump(good), Ok(()), "{good}");
        }
        for bad in ["", "u@", "@a", "a,,b", "a:0", "a:70000", "a:x", "-a", "$(x)", "u`x`@a", "a;b", "a,b>c"] {
            assert!(jump(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_file_names() {
        for good in ["node0", "a.b-c_d", "0"] {
            assert_eq!(name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns_accept_what_the_rules_accept() {
        let long = ["x".repeat(64), "x".repeat(65)];
        let mut texts =
            vec!["node0", "a.b-c_d", "0", "", ".", "-a", "a/b", "a b", "é", "a\n", "https://a", "ftp://a"];
        texts.extend(long.iter().map(String::as_str));
        for rule in [&NAME, &URL] {
            let pattern = regex_lite::Regex::new(rule.pattern.unwrap()).unwrap();
            for text in &texts {
                assert_eq!(pattern.is_match(text), (rule.test)(text).is_ok(), "{text:?}: {}", rule.expected);
            }
        }
    }
}
