//! Loads `hosts.toml`: the hosts, how to reach them, and their ranks.
//!
//! The order of `[[host]]` is the node-rank order; rank = ranks on the previous hosts + local rank. A host
//! overrides any value of `[defaults]`; the merged form is [`Host`]. `env` is merged variable by variable.

use super::check::{self, check};
use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::document::{self, Node};
use rankdeck_types::host::{Host, HostTable, Hosts, Transport};
use rankdeck_types::schema::{ADDRESS, NAME};
use rankdeck_types::setup::ENVIRONMENTS;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Hint for a missing file.
const MISSING: &str = "pass hosts with `--hosts gpu-a,gpu-b` or a file with `--hosts PATH`, or write `hosts.toml`: \
     `[[host]]` and `name = \"gpu-a\"` for each host; `rankdeck init` generates one for this machine, \
     `rankdeck init gpu-a gpu-b` for others";

/// Reads the hosts of a `hosts.toml` in node-rank order, and the document for later errors.
pub(super) fn read(path: &Path) -> Result<(Vec<Host>, Node), Diagnostics> {
    read_source(&document::read(path, "hosts file", MISSING)?)
}

/// Reads the hosts from a text.
pub(super) fn read_source(source: &Arc<SourceText>) -> Result<(Vec<Host>, Node), Diagnostics> {
    let root = check::parse(source, Hosts::KEYS)?;
    if root.entry("host").is_none() && root.entry("run").is_some() {
        return Err(Diagnostic::about_file(
            source.name.clone(),
            "expected a hosts file, found an experiment",
        )
        .hint("pass a file with `[[host]]` and `name = \"node0\"` for each host, or the hosts: `--hosts a,b`")
        .into());
    }
    let mut found = Diagnostics::new();
    check(&root, Hosts::KEYS, &mut found);
    check_hosts(&root, &mut found);
    found.or(())?;
    let Hosts { defaults, host } = root.read()?;
    let hosts = host.into_iter().map(|table| merge(&defaults, table)).collect();
    Ok((hosts, root))
}

/// Reads `[defaults]` only.
pub(super) fn read_defaults(path: &Path) -> Result<(HostTable, Node), Diagnostics> {
    let source = document::read(path, "hosts file", "")?;
    let root = check::parse(&source, Hosts::KEYS)?;
    let mut found = Diagnostics::new();
    check(&root, Hosts::KEYS, &mut found);
    found.or(())?;
    let file: Hosts = root.read()?;
    Ok((file.defaults, root))
}

fn merge(defaults: &HostTable, table: HostTable) -> Host {
    let setup = table.setup(defaults);
    let transport = table.transport.or(defaults.transport).unwrap_or_default();
    let name = table.name.unwrap_or_default();
    let mut env = defaults.env.clone().unwrap_or_default();
    env.extend(table.env.unwrap_or_default());
    let pick = |own: Option<String>, default: &Option<String>| own.or_else(|| default.clone());
    let (address, workdir) = match transport {
        Transport::Ssh | Transport::Openssh | Transport::Slurm => (name.clone(), "rankdeck"),
        Transport::Local => ("127.0.0.1".to_owned(), "."),
    };
    Host {
        address: pick(table.address, &defaults.address).unwrap_or(address),
        name,
        port: table.port.or(defaults.port),
        user: pick(table.user, &defaults.user),
        identity_file: pick(table.identity_file, &defaults.identity_file).map(expand_home),
        proxy_jump: pick(table.proxy_jump, &defaults.proxy_jump),
        gpus: table.gpus.or_else(|| defaults.gpus.clone()),
        nproc: table.nproc.or(defaults.nproc),
        workdir: pick(table.workdir, &defaults.workdir).unwrap_or_else(|| workdir.to_owned()),
        env,
        setup,
        libtorch: pick(table.libtorch, &defaults.libtorch),
        transport,
        interface: pick(table.interface, &defaults.interface),
        peer_address: None,
        slurm_job: None,
    }
}

/// Expands `~/` on this machine.
fn expand_home(path: String) -> String {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest).display().to_string(),
        _ => path,
    }
}

/// Checks hosts against each other, and keys against keys.
fn check_hosts(root: &Node, found: &mut Diagnostics) {
    let Some(table) = root.table() else { return };
    let hosts = match table.get("host").map(|entry| &entry.node.value) {
        Some(document::TomlValue::Array(hosts)) if !hosts.is_empty() => hosts.as_slice(),
        Some(document::TomlValue::Array(_)) | None => {
            // A misspelled `[[hosts]]` has its own error.
            if found.0.is_empty() {
                let error = Diagnostic::about_file(root.place.source.name.clone(), "no hosts");
                found.push(error.hint("add a host: `[[host]]`, then `name = \"node0\"`, then `transport = \"local\"` for this machine"));
            }
            return;
        }
        Some(_) => return,
    };
    let defaults = table.get("defaults").map(|entry| &entry.node);
    let mut seen: BTreeMap<&str, SourceSpan> = BTreeMap::new();
    for host in hosts {
        if let Some(name) = text(Some(host), "name") {
            let at = place(host, "name");
            if let Some(first) = seen.get(name) {
                let line = first.line();
                found.push(
                    Diagnostic::at(&at, format!("duplicate host name `{name}`"))
                        .label("duplicate")
                        .hint(format!("rename one; the first `{name}` is on line {line}")),
                );
            }
            seen.entry(name).or_insert(at);
        }
        check_host(host, defaults, found);
    }
    check_own_addresses(hosts, defaults, found);
    check_identity(defaults, found);
    check_environments(defaults, found);
}

/// Reports addresses of other machines if all hosts are local: ranks would connect to rank 0 there.
fn check_own_addresses(hosts: &[Node], defaults: Option<&Node>, found: &mut Diagnostics) {
    let is_local =
        |host: &Node| text(Some(host), "transport").or_else(|| text(defaults, "transport")) == Some("local");
    if !hosts.iter().all(is_local) {
        return;
    }
    for table in hosts.iter().chain(defaults) {
        let Some(address) = text(Some(table), "address") else { continue };
        let is_own = ["localhost", "::1", "0.0.0.0"].contains(&address) || address.starts_with("127.");
        if !is_own && let Some(entry) = table.entry("address") {
            let message = "`address` has no effect: every host uses transport `local`";
            found.push(
                Diagnostic::at(entry.key, message).hint("remove `address`, or write `transport = \"ssh\"`"),
            );
        }
    }
}

/// Reports more than one key that selects a Python.
fn check_environments(table: Option<&Node>, found: &mut Diagnostics) {
    let Some(table) = table else { return };
    let given: Vec<&str> = ENVIRONMENTS.into_iter().filter(|key| table.entry(key).is_some()).collect();
    if let [first, second, ..] = given.as_slice()
        && let Some(entry) = table.entry(second)
    {
        found.push(
            Diagnostic::at(entry.key, format!("`{first}` and `{second}` both select a Python"))
                .label("second")
                .hint("keep one; `modules` are loaded before it, and `prelude` runs after it"),
        );
    }
}

fn check_host(host: &Node, defaults: Option<&Node>, found: &mut Diagnostics) {
    let name = text(Some(host), "name").unwrap_or("?");
    let either = |key: &str| host.entry(key).or_else(|| defaults.and_then(|table| table.entry(key)));
    let transport = text(Some(host), "transport").or_else(|| text(defaults, "transport"));
    if transport == Some("local") {
        for key in HostTable::SSH_ONLY {
            if let Some(entry) = host.entry(key) {
                found.push(
                    Diagnostic::at(
                        entry.key,
                        format!("`{key}` has no effect for host `{name}`: its transport is `local`"),
                    )
                    .hint(format!("remove `{key}`, or write `transport = \"ssh\"`")),
                );
            }
        }
    } else {
        check_identity(Some(host), found);
        if let Some(entry) = either("address")
            && matches!(&entry.node.value, document::TomlValue::String(text) if text == "local")
        {
            found.push(
                Diagnostic::at(&entry.node.place, format!("host `{name}`: `local` is not an address"))
                    .label("not an address")
                    .hint("for this machine, write `transport = \"local\"` in place of `address`"),
            );
        }
        // The default address is the name, which must be a valid address.
        if either("address").is_none()
            && let Err((why, hint)) = (ADDRESS.test)(name)
            && (NAME.test)(name).is_ok()
            && host.entry("name").is_some()
        {
            let at = place(host, "name");
            found.push(
                Diagnostic::at(&at, format!("`name` is also the address of host `{name}`, and {why}"))
                    .hint(hint),
            );
        }
    }
    check_environments(Some(host), found);
    if let (Some(gpus), None) = (either("gpus"), either("nproc")) {
        let empty = match &gpus.node.value {
            document::TomlValue::Integer(0) => true,
            document::TomlValue::Array(items) => items.is_empty(),
            _ => false,
        };
        if empty {
            found.push(
                Diagnostic::at(&gpus.node.place, format!("host `{name}` has 0 ranks"))
                    .label("no GPU and no `nproc`")
                    .hint("set the number of ranks: `nproc = 1`"),
            );
        }
    }
}

/// Reports a missing private key.
fn check_identity(table: Option<&Node>, found: &mut Diagnostics) {
    if let (Some(path), Some(table)) = (text(table, "identity_file"), table) {
        let expanded = expand_home(path.to_owned());
        if !path.is_empty() && !Path::new(&expanded).is_file() {
            found.push(
                Diagnostic::at(
                    &place(table, "identity_file"),
                    format!("identity file not found: `{expanded}`"),
                )
                .label("no such file")
                .hint("set the path of a private key on this machine, such as `~/.ssh/id_ed25519`"),
            );
        }
    }
}

fn text<'a>(table: Option<&'a Node>, key: &str) -> Option<&'a str> {
    match table.and_then(Node::table)?.get(key).map(|entry| &entry.node.value) {
        Some(document::TomlValue::String(text)) => Some(text),
        _ => None,
    }
}

fn place(table: &Node, key: &str) -> SourceSpan {
    table.entry(key).map_or(&table.place, |found| &found.node.place).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_local_hints_at_the_transport() {
        for text in [
            "[[host]]\nname = \"a\"\naddress = \"local\"\n",
            "[defaults]\naddress = \"local\"\n[[host]]\nname = \"a\"\n",
        ] {
            let source = Arc::new(SourceText::new("hosts.toml", text));
            let found = read_source(&source).map(drop).unwrap_err();
            assert_eq!(found.0.len(), 1, "{found}");
            assert!(found.0[0].hint.contains("`transport = \"local\"`"), "{found}");
        }
        let source = "[[host]]\nname = \"a\"\naddress = \"localhost\"\n";
        assert!(read_source(&Arc::new(SourceText::new("hosts.toml", source))).is_ok());
    }
}
