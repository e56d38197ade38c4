//! Collectives of CPU tensors over TCP: libtorch's Gloo, and [direct](super::direct) all-reduces where they
//! are faster.
//!
//! Owner: the process group.

use super::collective::CollectiveNote;
use super::direct::{DirectAllReduce, Reduction};
use super::error::{BackendError, DistErrorKind};
use super::ffi::{self, GlooDevice, GlooHandle, RawReduce};
use super::staging::copy;
use super::store::Store;
use super::transport::CollectiveTransport;
use super::{memory, mesh};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// The address from which this host reaches the master. Other hosts can reach it, unlike some addresses that
/// the host's own name resolves to.
pub(super) fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    let target: SocketAddr = (host, port).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it looks up the route.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// Largest direct all-reduce, in bytes, among more than two ranks. Beyond it Gloo is faster: it sends each
/// number about twice, while recursive doubling sends it once per round. Between two ranks both send the
/// same.
const DIRECT_MAX: usize = 256 << 10;

/// How long ranks that differ stay in their calls. The watch compares them with the other ranks to find the
/// wrong one, and the others would not arrive if these ranks ended at once.
const LINGER: Duration = Duration::from_secs(2);

/// The connections of one rank.
pub(super) struct Gloo {
    handle: GlooHandle,
    direct: DirectAllReduce,
    world_size: u32,
}

impl CollectiveTransport for Gloo {
    fn name(&self) -> String {
        format!("gloo (libtorch {})", ffi::torch_version())
    }

    fn device(&self) -> Option<Device> {
        Some(Device::Cpu)
    }

    /// Directly or through Gloo, by size and type alone, so that all ranks choose the same.
    fn all_reduce(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        op: RawReduce,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let reduction = Reduction { op, kind: tensor.kind() };
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        if !reduction.is_known() || (self.world_size > 2 && bytes > DIRECT_MAX) {
            return self.handle.all_reduce(tensor, op, limit_ms);
        }
        // SAFETY: a collective runs on the thread that owns the tensors, and until it returns this thread
        // does nothing but send, receive and combine these bytes.
        let bytes = unsafe { memory::bytes_mut(tensor) };
        let result = self.direct.all_reduce(note, bytes, reduction, limit_ms);
        if result.as_ref().is_err_and(|failure| failure.kind == DistErrorKind::Mismatch) {
            std::thread::sleep(LINGER);
        }
        result
    }

    fn broadcast(&self, tensor: &mut Tensor, root: u32, limit_ms: i64) -> Result<(), BackendError> {
        self.handle.broadcast(tensor, root, limit_ms)
    }

    fn all_gather(
        &self,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        if input.device() == Device::Cpu {
            return self.handle.all_gather(outputs, input, limit_ms);
        }
        let mut host = input.to_device(Device::Cpu);
        let mut hosts: Vec<Tensor> = outputs.iter().map(|_| host.empty_like()).collect();
        self.handle.all_gather(&mut hosts, &mut host, limit_ms)?;
        outputs.iter_mut().zip(&hosts).try_for_each(|(output, host)| copy(output, host))
    }

    fn barrier(&self, limit_ms: i64) -> Result<(), BackendError> {
        self.handle.barrier(limit_ms)
    }

    /// Connections close when they are dropped.
    fn close(self: Box<Self>, _healthy: bool) {}
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

/// Connects every rank with every other; all ranks must call it.
pub(super) fn open(
    store: &Store,
    rank: u32,
    world_size: u32,
    interface: Option<&str>,
    master: (&str, u16),
    timeout: Duration,
) -> Result<Gloo, BackendError> {
    let deadline = Instant::now() + timeout;
    let towards = address_towards(master.0, master.1);
    let address = towards.map(|address| address.to_string());
    let device = match (interface, &address) {
        (Some(name), _) => GlooDevice::Interface(name),
        (None, Some(address)) => GlooDevice::Address(address),
        (None, None) => GlooDevice::HostName,
    };
    let place = match &device {
        GlooDevice::Interface(name) => format!("on interface {name}"),
        GlooDevice::Address(address) => format!("at {address}"),
        GlooDevice::HostName => "at the address of this host's name".into(),
    };
    let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1);
    let own = interface.and_then(address_of).or(towards).ok_or_else(|| {
        BackendError::new(
            DistErrorKind::Connection,
            format!("rank {rank} has no address that leads to {}", master.0),
        )
    })?;
    let cannot = |failure: BackendError| {
        let text = format!("gloo {place} cannot connect to the other ranks: {}", failure.text);
        BackendError::new(failure.kind, text)
    };
    let direct = mesh::open(store, rank, world_size, own, deadline).map_err(cannot)?;
    let handle = GlooHandle::open(store.handle(), &store.key("gloo"), rank, world_size, &device, timeout_ms)
        .map_err(cannot)?;
    Ok(Gloo { handle, direct, world_size })
}

/// Whether this host has a network interface of that name.
pub(super) fn interface_exists(name: &str) -> bool {
    !name.contains('/') && std::path::Path::new("/sys/class/net").join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_its_address() {
        assert_eq!(address_of("lo"), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_of("no-such-one0"), None);
        assert_eq!(address_of("a-name-that-is-too-long-for-an-interface"), None);
    }

    #[test]
    fn the_loopback_is_reached_from_the_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(address_towards("no such host.invalid", 9), None);
    }
}
