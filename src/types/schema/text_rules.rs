//! What strings may hold: names, paths, addresses, interfaces. Each refusal says why and what helps.

/// A rule for strings.
#[derive(Debug)]
pub struct TextRule {
    /// What is expected, after "expected".
    pub expected: &'static str,
    /// Refuses a text that does not follow the rule.
    pub test: fn(&str) -> Result<(), Refusal>,
}

/// Why a text is refused, and what helps.
pub type Refusal = (String, String);

fn refuse(why: impl Into<String>, hint: impl Into<String>) -> Result<(), Refusal> {
    Err((why.into(), hint.into()))
}

/// Names of hosts and runs: they become file names, so letters, digits, `-`, `_`, `.` only.
pub static NAME: TextRule = TextRule { expected: "a name of letters, digits, `-`, `_` and `.`", test: name };
/// Any text that is not empty.
pub static PLAIN: TextRule = TextRule { expected: "a string, not empty", test: plain };
/// A file or a folder.
pub static PATH: TextRule = TextRule { expected: "a path", test: path };
/// A line for the shell.
pub static SHELL: TextRule = TextRule { expected: "a shell line", test: plain };
/// An environment id.
pub static ENV_ID: TextRule = TextRule { expected: "an environment id", test: plain };
/// A program that is started: a path, or a name that `PATH` finds.
pub static PROGRAM: TextRule = TextRule { expected: "a path, or a name in `PATH`", test: plain };
/// A host name, an address or an ssh alias.
pub static ADDRESS: TextRule = TextRule { expected: "an address or host name", test: address };
/// A login name.
pub static USER: TextRule = TextRule { expected: "a user name", test: user };
/// Hosts that lead to the one that is meant, in their order.
pub static JUMP: TextRule = TextRule { expected: "`user@host:port`, separated by commas", test: jump };
/// libtorch on a host.
pub static LIBTORCH: TextRule = TextRule { expected: "a folder, or `python:PATH`", test: libtorch };
/// A network interface.
pub static INTERFACE: TextRule = TextRule { expected: "the name of a network interface", test: interface };
/// Where a web server is asked.
pub static URL: TextRule = TextRule { expected: "an address that begins with `https://`", test: url };

/// What helps where a password is written.
const NO_PASSWORD: &str = "no password is kept: `ssh-copy-id` puts a key there, or an agent has it";

fn url(text: &str) -> Result<(), Refusal> {
    match text.starts_with("https://") || text.starts_with("http://") {
        true => plain(text),
        false => refuse("is no address of the web", "write `https://...`"),
    }
}

fn plain(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return refuse("is empty", "leave the key out to use the default");
    }
    if text.contains('\0') {
        return refuse("holds a NUL character", "no program or file can be called that");
    }
    Ok(())
}

fn path(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let Some(name) = variable_in(text) else { return Ok(()) };
    let home = ["$HOME", "${HOME}"].iter().find_map(|home| text.strip_prefix(home));
    let hint = match home.filter(|rest| rest.starts_with('/') && variable_in(rest).is_none()) {
        Some(rest) => format!("write `\"~{rest}\"`"),
        None => "write the path itself; `~/` begins at the home folder".to_owned(),
    };
    refuse(format!("holds `${name}`, which no shell expands here"), hint)
}

/// The name behind the first `$NAME` or `${NAME}` of a text.
pub fn variable_in(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let after = text[at + 1..].trim_start_matches('{');
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = &after[..after.find(|c| !is_part(c)).unwrap_or(after.len())];
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_').then_some(name)
    })
}

fn name(text: &str) -> Result<(), Refusal> {
    let hint = "use letters, digits, `-`, `_` and `.`, beginning with a letter or digit";
    if text.is_empty() {
        return refuse("is empty", hint);
    }
    if text.len() > 64 {
        return refuse(format!("has {} characters, 64 are allowed", text.chars().count()), hint);
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.".contains(*c))) {
        // `node[01-04]`, as Slurm writes several.
        let hint = if bad == '[' { "one name, not a range of them; write each by itself" } else { hint };
        return refuse(format!("holds the character `{}`", bad.escape_default()), hint);
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse("does not begin with a letter or digit", hint);
    }
    Ok(())
}

fn address(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    // `ssh://` is an error of its own where nothing else is wrong.
    let bare = text.split_once("://").map_or(text, |(_, rest)| rest.trim_end_matches('/'));
    if let Some((login, host)) = bare.rsplit_once('@') {
        // A password is said nowhere.
        if let Some((user, _)) = login.split_once(':') {
            let host = host.split_once(':').map_or(host, |(host, _)| host);
            return refuse(
                "holds a password",
                format!("{NO_PASSWORD}; write `address = \"{host}\"` and `user = \"{user}\"`"),
            );
        }
        let user = login;
        return match host.split_once(':') {
            Some((host, port)) if !port.contains(':') => refuse(
                "holds a user name and a port",
                format!("write `address = \"{host}\"`, `user = \"{user}\"` and `port = {port}`"),
            ),
            _ => refuse("holds a user name", format!("write `address = \"{host}\"` and `user = \"{user}\"`")),
        };
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return refuse(
            format!("holds `{scheme}://`"),
            format!("write `address = \"{}\"`", rest.trim_end_matches('/')),
        );
    }
    if let Some(bad) =
        text.chars().find(|c| c.is_whitespace() || c.is_control() || "/\\\"'`$;&|<>(){}".contains(*c))
    {
        return refuse(
            format!("holds the character `{}`", bad.escape_default()),
            "write a host name, an IP address or an alias of `~/.ssh/config`",
        );
    }
    if text.starts_with('-') {
        return refuse("begins with `-`", "write a host name, an IP address or an alias of `~/.ssh/config`");
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            refuse("holds a port", format!("write `address = \"{host}\"` and `port = {port}`"))
        }
        // Resolvers read a bare number as a 32-bit address: 6841231 becomes 0.104.99.143.
        _ if text.chars().all(|c| c.is_ascii_digit()) => refuse(
            "is a number and would be read as an IPv4 address",
            "write the address with its dots, or a name",
        ),
        _ => Ok(()),
    }
}

fn user(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let bad = |c: &char| c.is_whitespace() || c.is_control() || "@:/\"'`$;&|<>".contains(*c);
    match text.chars().find(bad) {
        Some(bad) => {
            refuse(format!("holds the character `{}`", bad.escape_default()), "write the login name alone")
        }
        None if text.starts_with('-') => refuse("begins with `-`", "write the login name alone"),
        None => Ok(()),
    }
}

fn jump(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    let hint = "write `user@host:port`, or several separated by commas; user and port may be left out";
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
            return refuse("holds a password", NO_PASSWORD);
        }
        if host.is_empty() || login == Some("") {
            return refuse("has a hop without a host or user", hint);
        }
        // Hints show it as a command to type, and `ssh` may hand it to a shell.
        if let Some(bad) = hop.chars().find(|c| "\\\"'`$;&|<>(){}!*?#~".contains(*c)) {
            return refuse(format!("holds the character `{}`", bad.escape_default()), hint);
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
            refuse("names no interpreter", "write `python:PATH`, such as `python:venv/bin/python3`")
        }
        _ => Ok(()),
    }
}

fn interface(text: &str) -> Result<(), Refusal> {
    plain(text)?;
    match text.chars().find(|c| c.is_whitespace() || c.is_control() || *c == '/') {
        Some(bad) => refuse(
            format!("holds the character `{}`", bad.escape_default()),
            "`ip -brief address` lists the interfaces of a host",
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["gpu1", "10.0.0.7", "fe80::1", "::1", "node-1.cluster.example", "a%eth0"] {
            assert_eq!(address(good), Ok(()), "{good}");
        }
        for bad in ["", " ", "a b", "root@a", "a:22", "6841231", "-oProxyCommand=x", "a;b", "$(x)"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_only_a_shell_expands_is_no_path() {
        for good in ["a", "~/x", "/a b", "a$", "$1", "x$-y"] {
            assert_eq!(path(good), Ok(()), "{good}");
        }
        for (bad, hint) in
            [("$HOME/x", "`\"~/x\"`"), ("${HOME}/x", "`\"~/x\"`"), ("a/$USER", "the path itself")]
        {
            let (why, told) = path(bad).unwrap_err();
            assert!(why.contains("no shell") && told.contains(hint), "{bad}: {why}, {told}");
        }
        assert!(path("").is_err());
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for (test, text) in [
            (address as fn(&str) -> _, "me:s3cret@h"),
            (address, "ssh://me:s3cret@h:22/"),
            (address, "me:s3@cret@h"),
            (jump, "me:s3cret@h,b"),
        ] {
            let (why, hint) = test(text).unwrap_err();
            assert!(why == "holds a password" && !hint.contains("cret"), "{text}: {why}, {hint}");
        }
    }

    #[test]
    fn jumps() {
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
}
