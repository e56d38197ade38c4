//! What a Python loop refers to in which the main thread sleeps: paths and addresses among the variables of its
//! functions, from the innermost one out to the program's own.
//!
//! A program that polls for a file, or dials an address that refuses it, has no descriptor and no connection while
//! it sleeps: only its variables name what it waits for. Nothing else of them leaves this module: no other values, no
//! passwords and no queries of URLs.

use super::sockets;
use py_spy::config::{Config, LockingStrategy};
use rankdeck_proto::inspection::{Frame, FrameOwner};
use rankdeck_proto::mapping;
use std::net::{IpAddr, SocketAddr};

/// Most functions that are searched, and most values that are named.
const FUNCTIONS: usize = 16;
const NAMED: usize = 3;
/// Longest value.
const CHARS: usize = 200;
/// Extensions of files that programs wait for; others count only below a directory.
const EXTENSIONS: [&str; 14] =
    ["lock", "flag", "done", "ready", "pid", "sock", "json", "txt", "csv", "pt", "pth", "npy", "db", "yaml"];
/// Names of variables with a host, whose port has a variable of its own.
const HOSTS: [&str; 8] = ["host", "hostname", "addr", "address", "ip", "server", "master_addr", "host_name"];
const PORTS: [&str; 2] = ["port", "master_port"];

/// The first port that any user may take.
const FIRST_FREE: u16 = 1024;

/// One variable and its value, as py-spy prints it.
type Variable = (String, String);

/// The paths and addresses, addresses first: `path = /data/ready.flag`.
///
/// # Errors
/// The interpreter cannot be read.
pub(super) fn of_main_thread(pid: u32) -> Result<Vec<String>, String> {
    let functions = mapping::reading(|| functions(pid))?;
    let mut found: Vec<(Kind, String)> = Vec::new();
    for variables in &functions {
        for (kind, text) in named(variables) {
            if !found.iter().any(|(_, known)| of_variable(known) == of_variable(&text)) {
                found.push((kind, text));
            }
        }
    }
    found.sort_by_key(|(kind, _)| *kind);
    Ok(found.into_iter().take(NAMED).map(|(_, text)| with_listener(pid, text)).collect())
}

/// The value in `NAME = VALUE`.
fn of_variable(text: &str) -> &str {
    text.split_once(" = ").map_or(text, |(_, value)| value)
}

/// The variables of the main thread's functions, innermost first, up to the first one of the program.
fn functions(pid: u32) -> Result<Vec<Vec<Variable>>, String> {
    let text = |error: &dyn std::fmt::Display| format!("{error:#}");
    let config =
        Config { blocking: LockingStrategy::NonBlocking, native: false, dump_locals: 1, ..Config::default() };
    let mut spy = py_spy::PythonSpy::new(pid as py_spy::Pid, &config).map_err(|error| text(&error))?;
    let traces = spy.get_stack_traces().map_err(|error| text(&error))?;
    let Some(main) = traces.into_iter().find(|trace| trace.os_thread_id == Some(u64::from(pid))) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for frame in main.frames.into_iter().take(FUNCTIONS) {
        let place = Frame { file: Some(frame.filename), ..Frame::default() };
        let locals = frame.locals.unwrap_or_default();
        found.push(locals.into_iter().filter_map(|local| Some((local.name, local.repr?))).collect());
        if place.owner() == FrameOwner::Program {
            break;
        }
    }
    Ok(found)
}

/// Addresses explain more than paths: these may be of anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Address,
    Path,
}

/// The paths and addresses among variables, with their names.
fn named(variables: &[Variable]) -> Vec<(Kind, String)> {
    let of = |names: &[&str]| variables.iter().find(|(name, _)| names.contains(&name.as_str()));
    let host = of(&HOSTS).and_then(|(_, repr)| quoted(repr)).filter(|host| is_host(host));
    let port = of(&PORTS).and_then(|(_, repr)| quoted(repr).unwrap_or(repr).parse::<u16>().ok());
    let pair = host.zip(port).map(|(host, port)| (Kind::Address, format!("address = {host}:{port}")));
    let each = variables.iter().filter_map(|(name, repr)| {
        let (kind, value) = value(repr)?;
        Some((kind, format!("{name} = {value}")))
    });
    pair.into_iter().chain(each).collect()
}

fn quoted(repr: &str) -> Option<&str> {
    repr.strip_prefix('"')?.strip_suffix('"')
}

/// A value that is a path or an address.
fn value(repr: &str) -> Option<(Kind, String)> {
    if let Some(parts) = repr.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        // What `socket.connect` takes.
        let mut parts = parts.split(", ");
        let (host, port) = (quoted(parts.next()?)?, parts.next()?.parse::<u16>().ok()?);
        return is_host(host).then(|| (Kind::Address, format!("{host}:{port}")));
    }
    let text = quoted(repr)?;
    if text.chars().count() > CHARS || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return None;
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // Without a user and a password.
        let place = place.rsplit('@').next().unwrap_or_default();
        let is_scheme = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
        return (is_scheme && !place.is_empty())
            .then(|| (Kind::Address, format!("{scheme}://{place}{path}")));
    }
    // `cuda:0` is a device.
    let is_port = |host: &str, port: &str| {
        port.parse::<u16>().is_ok_and(|port| port >= FIRST_FREE || host.contains('.'))
    };
    if text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && is_port(host, port)) {
        return Some((Kind::Address, text.to_owned()));
    }
    is_path(text).then(|| (Kind::Path, text.to_owned()))
}

fn is_host(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && (text.chars().all(is_name) || text.parse::<IpAddr>().is_ok())
}

fn is_path(text: &str) -> bool {
    let file = text.rsplit('/').next().unwrap_or(text);
    let extension = file.rsplit_once('.').map(|(_, extension)| extension);
    let is_known = extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
    let below = text.contains('/') && extension.is_some_and(|extension| (1..=6).contains(&extension.len()));
    let is_rooted = ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start));
    text.len() > 1 && extension != Some("py") && (is_rooted || is_known || below)
}

/// An address of this host, with a note if nothing listens there.
fn with_listener(pid: u32, text: String) -> String {
    let address = of_variable(&text);
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let address = address.split('/').next().unwrap_or_default().replace("localhost", "127.0.0.1");
    let Some(address) = address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback())
    else {
        return text;
    };
    let reaches = |at: &SocketAddr| {
        at.port() == address.port() && (at.ip().is_unspecified() || at.ip() == address.ip())
    };
    let is_served = sockets::listening(pid).iter().any(|(_, at)| reaches(at));
    if is_served { text } else { format!("{text}, where nothing listens") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::Victim;

    fn found(reprs: &[(&str, &str)]) -> Vec<String> {
        let variables: Vec<Variable> =
            reprs.iter().map(|(name, repr)| ((*name).to_owned(), (*repr).to_owned())).collect();
        named(&variables).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn paths_and_addresses_are_told_from_other_values() {
        for (repr, expected) in [
            ("\"/data/ready.flag\"", Some("/data/ready.flag")),
            ("\"index.lock\"", Some("index.lock")),
            ("\"runs/a/latest.pt\"", Some("runs/a/latest.pt")),
            ("(\"10.0.0.9\", 7000)", Some("10.0.0.9:7000")),
            ("\"sim:7000\"", Some("sim:7000")),
            ("\"http://me:secret@sim:80/score?key=secret\"", Some("http://sim:80/score")),
            ("\"application/json\"", None),
            ("\"hunter2\"", None),
            ("\"cuda:0\"", None),
            ("\"train.py\"", None),
            ("\"a sentence about /data\"", None),
            ("7000", None),
            ("<PosixPath at 0x7f>", None),
        ] {
            let value = value(repr).map(|(_, value)| value);
            assert_eq!(value.as_deref(), expected, "{repr}");
        }
    }

    #[test]
    fn host_and_port_of_two_variables_are_one_address() {
        assert_eq!(
            found(&[("host", "\"10.0.0.9\""), ("port", "7000"), ("password", "\"x\"")]),
            ["address = 10.0.0.9:7000"]
        );
    }

    fn polls(body: &str, fits: impl Fn(&[String]) -> bool) {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("data.py");
        std::fs::write(&script, format!("import os, socket, time\n{body}")).unwrap();
        let victim = Victim::start("python3", &[script.to_str().unwrap()]);
        let mut seen = Vec::new();
        victim.until("what it polls is named", || {
            seen = victim.inspection().variables;
            fits(&seen)
        });
    }

    #[test]
    fn polled_path_is_named() {
        let body = "def wait(path, password):\n    while not os.path.exists(path): time.sleep(0.5)\n\
            wait('/nonexistent/ready.flag', 'hunter2')\n";
        polls(body, |seen| *seen == ["path = /nonexistent/ready.flag".to_owned()]);
    }

    #[test]
    fn refused_address_is_named() {
        // The port was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let body = format!(
            "def dial(host, port):\n    while True:\n        try: return socket.create_connection((host, port))\n\
             \x20       except OSError: time.sleep(0.5)\ndial('127.0.0.1', {port})\n"
        );
        let expected = format!("address = 127.0.0.1:{port}, where nothing listens");
        polls(&body, |seen| *seen == [expected.clone()]);
    }
}
