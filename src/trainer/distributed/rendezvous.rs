//! Rendezvous: store, rank count, then the backend's own connections, all within one time limit.
//!
//! Every step that may block runs on a helper thread (DIST-2), since neither the resolver nor a store whose
//! server is frozen can be trusted to come back.

use super::bounded::within;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::ffi::TorchStore;
use super::nccl::{self, Nccl};
use super::store::{Store, StoreAddress, StoreIdentity, StoreMember};
use super::tcp::CpuTransport;
use super::transport::CollectiveTransport;
use super::{BackendKind, GroupSettings};
use crate::support::page::StatusPage;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

/// Extra time beyond the deadline for a helper thread to return its error.
const GRACE: Duration = Duration::from_secs(4);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where the store is. Rank 0 serves it on a socket that its launcher bound (`RANKDECK_STORE_FD`), or on its
/// own. Where torchrun's agent serves a store at the master's port, that one holds the address of rank 0's.
fn address(settings: &GroupSettings, deadline: Instant) -> Result<StoreAddress, BackendError> {
    let (host, port) = (settings.master_addr.clone(), settings.master_port);
    let is_server = settings.rank == 0;
    if variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True") {
        return by_torchruns_store(settings, deadline);
    }
    let listener = match variable("RANKDECK_STORE_FD").and_then(|value| value.parse().ok()) {
        _ if !is_server => None,
        // SAFETY: the launcher bound the socket for this process and gave it up; nothing else here uses it.
        Some(fd) => Some(unsafe { TcpListener::from_raw_fd(fd) }),
        None => Some(listen(&host, port, interface(settings).as_deref())?),
    };
    Ok(StoreAddress { host, port, listener })
}

fn by_torchruns_store(settings: &GroupSettings, deadline: Instant) -> Result<StoreAddress, BackendError> {
    let (host, port) = (&settings.master_addr, settings.master_port);
    let millis = || {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        i64::try_from(left).unwrap_or(i64::MAX).max(1)
    };
    let torchruns = TorchStore::connect(host, port, millis()).map_err(|failure| {
        BackendError::new(failure.kind, format!("torchrun's store at {host}:{port}: {}", failure.text))
    })?;
    let key = format!("rankdeck/{}/store", settings.generation);
    let mut listener = None;
    if settings.rank == 0 {
        let own = own_address(settings)?;
        let bound = TcpListener::bind((own, 0)).and_then(|bound| Ok((bound.local_addr()?, bound)));
        let (place, bound) = bound.map_err(|error| {
            BackendError::new(DistErrorKind::Failed, format!("rank 0 cannot listen at {own}: {error}"))
        })?;
        torchruns.set(&key, place.to_string().as_bytes())?;
        listener = Some(bound);
    }
    let value = torchruns.get(&key, millis())?;
    let text = String::from_utf8_lossy(&value).into_owned();
    let place: SocketAddr = text.parse().map_err(|_| {
        BackendError::new(DistErrorKind::Mismatch, format!("invalid address for rank 0's store: {text:?}"))
    })?;
    Ok(StoreAddress { host: place.ip().to_string(), port: place.port(), listener })
}

/// Where the other ranks reach this one.
pub(super) fn own_address(settings: &GroupSettings) -> Result<IpAddr, BackendError> {
    let (master, port) = (&settings.master_addr, settings.master_port);
    let own = interface(settings).and_then(|name| address_of(&name));
    // Where this host's own name means loopback, other hosts reach it elsewhere.
    let outward = |ip: IpAddr| match ip.is_loopback() && !is_literal(master) {
        true => outward_address().unwrap_or(ip),
        false => ip,
    };
    own.or_else(|| address_towards(master, port).map(outward)).ok_or_else(|| {
        let text = format!("no address of rank {} can reach {master}", settings.rank);
        BackendError::new(DistErrorKind::Connection, text)
    })
}

/// Listens on the address that the other ranks use. On all addresses only where that one is not this host's
/// own (behind address translation), or is a name for loopback that means another address elsewhere.
fn listen(master: &str, port: u16, interface: Option<&str>) -> Result<TcpListener, BackendError> {
    let literal = is_literal(master);
    let certain = |ip: IpAddr| !ip.is_loopback() || literal || interface == Some("lo");
    let own: Vec<SocketAddr> = (master, port)
        .to_socket_addrs()
        .map(|found| found.filter(|address| certain(address.ip())).collect())
        .unwrap_or_default();
    let mut failure = None;
    let everywhere = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    for address in own.into_iter().chain(everywhere) {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let text = format!("port {port} is in use on this host");
                return Err(BackendError::new(DistErrorKind::AddressInUse, text));
            }
            Err(error) => failure = Some(error),
        }
    }
    let why = failure.map_or_else(String::new, |error| error.to_string());
    Err(BackendError::new(DistErrorKind::Failed, format!("cannot serve the store at {master}:{port}: {why}")))
}

/// Not a name that another host may resolve to something else.
fn is_literal(master: &str) -> bool {
    master.parse::<IpAddr>().is_ok() || master == "localhost"
}

fn interface(settings: &GroupSettings) -> Option<String> {
    settings.interface.clone().filter(|name| !name.is_empty()).or_else(|| variable("GLOO_SOCKET_IFNAME"))
}

/// What is known to fail later. Reported now, while the other ranks still listen.
fn trouble(settings: &GroupSettings) -> Option<BackendError> {
    let failure = match settings.backend {
        BackendKind::Tcp => {
            let name = interface(settings).filter(|name| !interface_exists(name))?;
            BackendError::new(
                DistErrorKind::Usage,
                format!("network interface {name} not found on the host of rank {}", settings.rank),
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
    let of_thread = settings.clone();
    let place = format!("{}:{}", settings.master_addr, settings.master_port);
    let address = move |deadline| address(&of_thread, deadline);
    join_at((&place, ""), settings, trouble(settings), address, moved)
}

/// The same for a group that is not the run's first one: at this place, which one of its ranks has a socket for, with
/// a `scope` of its own ([`StoreIdentity::scope`]).
pub(super) fn join_again(
    place: SocketAddr,
    listener: Option<TcpListener>,
    scope: &str,
    settings: &GroupSettings,
) -> Result<Store, DistError> {
    let address = StoreAddress { host: place.ip().to_string(), port: place.port(), listener };
    join_at((&place.to_string(), scope), settings, None, move |_| Ok(address), || {})
}

fn join_at(
    (place, scope): (&str, &str),
    settings: &GroupSettings,
    trouble: Option<BackendError>,
    address: impl FnOnce(Instant) -> Result<StoreAddress, BackendError> + Send + 'static,
    moved: impl FnMut(),
) -> Result<Store, DistError> {
    let deadline = Instant::now() + settings.timeout;
    let identity = StoreIdentity {
        rank: settings.rank,
        world_size: settings.world_size,
        generation: settings.generation,
        scope: scope.to_owned(),
        secret: settings.secret.clone(),
    };
    let member = StoreMember {
        rank: settings.rank,
        world_size: settings.world_size,
        backend: settings.backend.name(),
    };
    within(
        settings.timeout + GRACE,
        move |progress| {
            let store = Store::open(address(deadline)?, &identity, deadline)?;
            progress.moved();
            store.join(&member, trouble, deadline, || progress.moved())?;
            Ok(store)
        },
        moved,
    )
    .unwrap_or_else(|| {
        Err(BackendError::new(DistErrorKind::Timeout, format!("the store at {place} stopped responding")))
    })
    .map_err(|failure| error(settings, failure))
}

/// Connects the backend of a group whose ranks have all joined.
pub(super) fn connect(
    settings: &GroupSettings,
    store: &Store,
    page: &StatusPage,
) -> Result<Box<dyn CollectiveTransport>, DistError> {
    let result: Result<Box<dyn CollectiveTransport>, _> = match settings.backend {
        BackendKind::Tcp => {
            let (store, settings) = (store.clone(), settings.clone());
            within(
                settings.timeout + GRACE,
                move |_| {
                    let deadline = Instant::now() + settings.timeout;
                    let address = own_address(&settings)?;
                    let identity = (settings.rank, settings.world_size);
                    let how = (settings.shared_memory, settings.interrupt.as_ref());
                    CpuTransport::open(&store, identity, how, address, deadline)
                },
                || {},
            )
            .unwrap_or_else(|| {
                Err(BackendError::new(DistErrorKind::Timeout, "not all ranks connected in time"))
            })
            .map(|transport| Box::new(transport) as _)
        }
        BackendKind::Nccl => Nccl::open(store, settings, page).map(|nccl| Box::new(nccl) as _),
    };
    result.map_err(|failure| error(settings, failure))
}

/// The address from which this host reaches the master. Other hosts can reach it, unlike some addresses that
/// the host's own name resolves to.
fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    let target: SocketAddr = (host, port).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it resolves the route.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// The address from which this host reaches the world: of its default route (192.0.2.1 is unassigned).
fn outward_address() -> Option<IpAddr> {
    address_towards("192.0.2.1", 9).filter(|ip| !ip.is_loopback())
}

/// The IPv4 address of a network interface.
fn address_of(interface: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: `request` is plain data for which zeros are valid; the kernel reads the name in it, which ends
    // in NUL, and writes an address of the family AF_INET into it, which is then read as what it is.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if interface.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFADDR, &mut request) != 0 {
            return None;
        }
        let address: *const libc::sockaddr_in = (&raw const request.ifr_ifru.ifru_addr).cast();
        Some(Ipv4Addr::from(address.read_unaligned().sin_addr.s_addr.to_ne_bytes()).into())
    }
}

/// Whether this host has a network interface of that name.
fn interface_exists(name: &str) -> bool {
    !name.contains('/') && std::path::Path::new("/sys/class/net").join(name).exists()
}

#[cfg(test)]
mod interface_tests {
    use super::*;

    #[test]
    fn interface_address_is_found() {
        assert_eq!(address_of("lo"), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_of("no-such-one0"), None);
        assert_eq!(address_of("a-name-that-is-too-long-for-an-interface"), None);
    }

    #[test]
    fn loopback_is_reached_from_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_towards("no such host.invalid", 9), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_listens_on_its_own_address_only() {
        let port = rankdeck_testkit::free_port();
        let listener = listen("127.0.0.1", port, None).unwrap();
        assert_eq!(listener.local_addr().unwrap(), ([127, 0, 0, 1], port).into());
        let taken = listen("127.0.0.1", port, None).unwrap_err();
        assert_eq!(taken.kind, DistErrorKind::AddressInUse);
        for elsewhere in ["192.0.2.1", "no-such-host.invalid"] {
            let listener = listen(elsewhere, 0, None).unwrap();
            assert!(listener.local_addr().unwrap().ip().is_unspecified(), "{elsewhere}: behind translation");
        }
    }
}
