//! How the ranks find each other: store, count, then the backend's own connections, all within one limit.
//!
//! Owner: the process group. Every step that may block runs on a helper thread (DIST-2), since neither the
//! resolver nor a store whose server is frozen can be trusted to come back.

use super::bounded::within;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::gloo;
use super::nccl::{self, Nccl};
use super::settings::{BackendKind, GroupSettings};
use super::store::{Store, StoreAddress, StoreMember};
use super::transport::CollectiveTransport;
use std::time::{Duration, Instant};

/// Time that a helper thread gets beyond the deadline to say why it failed.
const GRACE: Duration = Duration::from_secs(4);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where the store is. Rank 0 serves it, unless torchrun's agent already does; `RANKDECK_STORE_FD` names a
/// socket that a launcher bound for it.
fn address(settings: &GroupSettings) -> StoreAddress {
    let agent_serves = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let server = settings.rank == 0 && !agent_serves;
    let given = variable("RANKDECK_STORE_FD").and_then(|value| value.parse().ok());
    let bound =
        || listen_on_own_address(&settings.master_addr, settings.master_port, interface(settings).as_deref());
    StoreAddress {
        host: settings.master_addr.clone(),
        port: settings.master_port,
        server,
        listen_fd: given.or_else(|| if server { bound() } else { None }),
    }
}

/// A socket that listens only on the address that the other ranks use. libtorch itself would listen on every
/// address of the host and accept every connection. `None`, which leaves it to libtorch, where the address is
/// not this host's own (behind address translation), or is a name for loopback that means another address
/// elsewhere.
fn listen_on_own_address(master: &str, port: u16, interface: Option<&str>) -> Option<i32> {
    use std::net::{IpAddr, TcpListener, ToSocketAddrs};
    use std::os::fd::IntoRawFd;
    let literal = master.parse::<IpAddr>().is_ok() || master == "localhost";
    let certain = |ip: IpAddr| !ip.is_loopback() || literal || interface == Some("lo");
    let mut addresses = (master, port).to_socket_addrs().ok()?.filter(|address| certain(address.ip()));
    // The store owns the descriptor from here on, for the life of the process.
    addresses.find_map(|address| TcpListener::bind(address).ok()).map(IntoRawFd::into_raw_fd)
}

fn interface(settings: &GroupSettings) -> Option<String> {
    settings.interface.clone().filter(|name| !name.is_empty()).or_else(|| variable("GLOO_SOCKET_IFNAME"))
}

/// What is known to fail later. Reported now, while the other ranks still listen.
fn trouble(settings: &GroupSettings) -> Option<BackendError> {
    let failure = match settings.backend {
        BackendKind::Gloo => {
            let name = interface(settings).filter(|name| !gloo::interface_exists(name))?;
            BackendError::new(
                DistErrorKind::Usage,
                format!("there is no network interface {name} on the host of rank {}", settings.rank),
            )
        }
        BackendKind::Nccl => {
            let failure = nccl::available().err()?;
            BackendError::new(failure.kind, format!("{} (host of rank {})", failure.text, settings.rank))
        }
    };
    Some(failure)
}

fn error(settings: &GroupSettings, failure: BackendError) -> DistError {
    DistError::new(failure.kind, DistPhase::Rendezvous, (settings.rank, settings.world_size), failure.text)
}

/// Joins the store and waits for all ranks.
pub(super) fn join(settings: &GroupSettings, moved: impl FnMut()) -> Result<Store, DistError> {
    let deadline = Instant::now() + settings.timeout;
    let address = address(settings);
    let place = format!("{}:{}", address.host, address.port);
    let generation = settings.generation;
    let trouble = trouble(settings);
    let member = StoreMember {
        rank: settings.rank,
        world_size: settings.world_size,
        backend: settings.backend.name(),
    };
    within(
        settings.timeout + GRACE,
        move |progress| {
            let store = Store::open(&address, generation, deadline)?;
            progress.moved();
            store.join(&member, trouble, deadline, || progress.moved())?;
            Ok(store)
        },
        moved,
    )
    .unwrap_or_else(|| {
        Err(BackendError::new(DistErrorKind::Timeout, format!("the store at {place} stopped answering")))
    })
    .map_err(|failure| error(settings, failure))
}

/// Connects the backend of a group whose ranks have all joined.
pub(super) fn connect(
    settings: &GroupSettings,
    store: &Store,
) -> Result<Box<dyn CollectiveTransport>, DistError> {
    let (rank, world_size, timeout) = (settings.rank, settings.world_size, settings.timeout);
    let result: Result<Box<dyn CollectiveTransport>, _> = match settings.backend {
        BackendKind::Gloo => {
            let store = store.clone();
            let interface = interface(settings);
            let (host, port) = (settings.master_addr.clone(), settings.master_port);
            within(
                timeout + GRACE,
                move |_| gloo::open(&store, rank, world_size, interface.as_deref(), (&host, port), timeout),
                || {},
            )
            .unwrap_or_else(|| {
                Err(BackendError::new(DistErrorKind::Timeout, "gloo did not connect all ranks in time"))
            })
            .map(|gloo| Box::new(gloo) as _)
        }
        BackendKind::Nccl => Nccl::open(store, settings).map(|nccl| Box::new(nccl) as _),
    };
    result.map_err(|failure| error(settings, failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_listens_on_its_own_address_only() {
        use std::net::TcpListener;
        use std::os::fd::{FromRawFd, OwnedFd};
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let fd = listen_on_own_address("127.0.0.1", port, None).unwrap();
        // SAFETY: the descriptor was given up by the function a moment ago and belongs to nobody else.
        let listener = TcpListener::from(unsafe { OwnedFd::from_raw_fd(fd) });
        assert_eq!(listener.local_addr().unwrap(), ([127, 0, 0, 1], port).into());
        assert_eq!(
            listen_on_own_address("127.0.0.1", port, None),
            None,
            "the port is taken: libtorch says so"
        );
        assert_eq!(listen_on_own_address("192.0.2.1", 0, None), None, "not an address of this host");
        assert_eq!(listen_on_own_address("no-such-host.invalid", 0, None), None);
    }
}
