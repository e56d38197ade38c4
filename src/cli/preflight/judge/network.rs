//! The ways between the hosts: interface, ports and names.

use crate::cli::preflight::{Cell, Subject};
use rankdeck_proto::examination::Findings;
use rankdeck_types::host::Host;
use rankdeck_types::words::plural;

/// Interfaces that lead to containers and virtual machines of the same host.
const VIRTUAL: [&str; 6] = ["docker", "br-", "virbr", "veth", "cni", "flannel"];

pub(super) fn interface(
    subject: &Subject<'_>,
    node: usize,
    host: &Host,
    found: &Findings,
    key: &dyn Fn(&str) -> String,
) -> Cell {
    let listed = || {
        let names: Vec<&str> = found.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        format!("it has {}", names.join(", "))
    };
    let several = subject.draft.hosts.len() > 1;
    let route = found.route.as_ref().and_then(|route| route.interface.as_deref());
    match (&host.interface, route) {
        (Some(name), _) if !found.interfaces.iter().any(|interface| interface.name == *name) => Cell::failed(
            format!("no interface `{name}` is up there; {}", listed()),
            "change `interface`",
            key("interface"),
        ),
        (Some(name), Some(route)) if name == "lo" && route != "lo" && several => Cell::failed(
            "`lo` does not lead to the other hosts",
            format!("write `interface = \"{route}\"`, or leave it out"),
            key("interface"),
        ),
        (Some(name), Some(route)) if name != route && several => {
            let text = format!("`{name}`, but `{route}` leads to rank 0's host");
            Cell::warning(text, format!("is that meant? else `interface = \"{route}\"`"), key("interface"))
        }
        (Some(name), _) => Cell::passed(name.clone()),
        (None, Some(name)) if is_virtual(name) => Cell::warning(
            format!("`{name}` leads to rank 0's host, and looks like a bridge of containers"),
            "set `interface` to the one that the other hosts are reached by",
            key("interface"),
        ),
        (None, Some(name)) => Cell::passed(format!("{name} (route)")),
        // What is wrong with the way is said under `names`.
        (None, None) if several => Cell { hint: format!("host {node}"), ..Cell::skipped() },
        (None, None) => Cell::passed("not needed"),
    }
}

fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|start| name.starts_with(start))
}

pub(super) fn port(
    subject: &Subject<'_>,
    node: usize,
    found: &Findings,
    key: &dyn Fn(&str) -> String,
) -> Cell {
    let launch = &subject.draft.experiment.launch;
    if let Some(error) = found.listened.as_ref().and_then(|listened| listened.error.as_ref()) {
        let fixed = node == 0 && launch.master_port != 0;
        return match fixed {
            true => Cell::failed(
                format!("port {} of rank 0's store cannot be had: {error}", launch.master_port),
                format!(
                    "end what holds it (`ss -ltnp 'sport = :{}'` there), or write `master_port = 0`",
                    launch.master_port
                ),
                "launch.master_port",
            ),
            false => Cell::warning(
                format!("no port could be had for the test: {error}"),
                "nothing to do, unless it comes back: whether others reach this host is not known",
                "",
            ),
        };
    }
    let name = |peer: u32| subject.draft.hosts.get(peer as usize).map_or("?", |host| host.name.as_str());
    let firewall = "let the hosts reach each other on all ports: Gloo and NCCL choose them freely; `interface` and `address` choose another network";
    let mut lost: Vec<_> = found.reached.iter().filter(|to| to.error.is_some()).collect();
    lost.sort_by_key(|to| to.node);
    match lost.first() {
        None if found.reached.is_empty() && found.listened.is_none() => Cell::passed("not needed"),
        None => {
            let port = found.listened.as_ref().map_or(0, |listened| listened.port);
            match launch.master_port {
                0 => Cell::passed(plural(found.reached.len(), "host") + " reached"),
                _ if node == 0 => Cell::passed(format!("{port} is free")),
                _ => Cell::passed(plural(found.reached.len(), "host") + " reached"),
            }
        }
        Some(to) => {
            let why = to.error.clone().unwrap_or_default();
            let others =
                if lost.len() > 1 { format!(", nor {} others", lost.len() - 1) } else { String::new() };
            let text = format!("cannot reach {} at {}: {why}{others}", name(to.node), to.address);
            match to.node {
                0 => Cell::failed(
                    text,
                    format!("rank 0's store must be reachable from every host: {firewall}"),
                    "launch.master_addr",
                ),
                // A program of the user may do without.
                peer if subject.draft.experiment.launch.command.is_empty() => {
                    Cell::failed(text, firewall, format!("host.{peer}.address"))
                }
                peer => Cell::warning(
                    text,
                    firewall,
                    if peer == node as u32 { key("address") } else { format!("host.{peer}.address") },
                ),
            }
        }
    }
}

pub(super) fn names(subject: &Subject<'_>, node: usize, host: &Host, found: &Findings) -> Cell {
    let Some(route) = &found.route else { return Cell::passed("not needed") };
    let launch = &subject.draft.experiment.launch;
    let (key, name) = match (&launch.master_addr, subject.draft.hosts.first()) {
        (Some(name), _) => ("launch.master_addr", name.clone()),
        (None, Some(first)) => ("host.0.address", first.address.clone()),
        (None, None) => return Cell::skipped(),
    };
    if let Some(error) = &route.error {
        return Cell::failed(
            format!("`{name}`, the address of rank 0's store: {error}"),
            "set `launch.master_addr` to an address that every host can reach",
            key,
        );
    }
    let loopback = !route.addresses.is_empty() && route.addresses.iter().all(|ip| ip.is_loopback());
    // On another machine that would be the machine itself; on one machine it is right.
    let elsewhere = node != 0 && found.reached.iter().any(|to| to.node == 0 && to.error.is_some());
    if loopback && elsewhere {
        return Cell::failed(
            format!("`{name}` means this host itself there"),
            "remove it from /etc/hosts there, or set `launch.master_addr` to rank 0's address",
            key,
        );
    }
    let own = &found.names.own;
    if host.interface.is_none() && route.interface.is_none() && own.iter().all(|ip| ip.is_loopback()) {
        return Cell::warning(
            "the host's own name leads to a loopback address, which Gloo would listen on",
            "set `interface`",
            format!("host.{node}.interface"),
        );
    }
    let shown: Vec<String> = route.addresses.iter().take(2).map(ToString::to_string).collect();
    Cell::passed(format!("rank 0 at {}", shown.join(" ")))
}
