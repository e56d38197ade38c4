//! Collectives of CPU tensors over direct connections ([`collectives`]), which the ranks make through the store:
//! TCP, and shared memory between ranks of one host ([`shared`]).
//!
//! Invariants:
//! - The lower rank of two listens, the higher one connects. Listening ends when all have come.
//! - MESH-1: the ranks connect, whatever other connections arrive at the listening port
//!   ([`crate::distributed::auth_listener`]).

mod collectives;
mod cores;
mod exchange;
mod shared;

use crate::distributed::auth_listener::AuthListener;
use crate::distributed::auth_listener::{self, Credentials};
use crate::distributed::channel::{Channel, wait};
use crate::distributed::error::{BackendError, DistErrorKind};
use crate::distributed::ffi::ReduceKernel;
use crate::distributed::membership::Interrupt;
use crate::distributed::memory;
use crate::distributed::store::Store;
use crate::distributed::transport::{CollectiveNote, CollectiveTransport, copy};
use collectives::{CpuCollectives, partners};
use cores::RankCores;
use exchange::{PeerConnections, RECORD, Reduction};
use rankdeck_proto::status_page::{CollectiveOp, Dtype};
use shared::PeerLink;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tch::{Device, Tensor};

/// How long ranks that differ stay in their calls. The watch compares them with the other ranks to find the
/// wrong one, and the others would not arrive if these ranks ended at once.
const LINGER: Duration = Duration::from_secs(2);

/// The connections of one rank.
pub(crate) struct CpuTransport {
    direct: CpuCollectives,
    rank: u32,
    sealed: bool,
}

impl CpuTransport {
    /// Connects this rank, which listens at `address`, with the others; all ranks must call it, with the same
    /// `shared_memory`. Its connections end with the interrupt.
    pub(crate) fn open(
        store: &Store,
        (rank, world_size): (u32, u32),
        (shared_memory, interrupt): (bool, Option<&Interrupt>),
        address: IpAddr,
        deadline: Instant,
    ) -> Result<CpuTransport, BackendError> {
        let channels = connect_partners(store, rank, world_size, address, deadline)?;
        if let Some(interrupt) = interrupt {
            channels.iter().for_each(|channel| interrupt.add(channel.stream()));
        }
        let links = match shared_memory {
            true => shared::share(rank, channels, shared::place(), deadline)?,
            false => channels.into_iter().map(PeerLink::Stream).collect(),
        };
        let mut direct = CpuCollectives::new(rank, world_size, PeerConnections::new(rank, links));
        if shared_memory {
            let mut cores = vec![0; RankCores::BYTES * world_size as usize];
            let own = RankCores::of_this_thread(shared::place()).to_bytes();
            cores[rank as usize * RankCores::BYTES..][..RankCores::BYTES].copy_from_slice(&own);
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            direct.all_gather(&cores_note(), &mut cores, left.try_into().unwrap_or(i64::MAX))?;
            let ranks: Vec<RankCores> = cores.as_chunks().0.iter().map(RankCores::from_bytes).collect();
            direct.set_spins(cores::have_cores(&ranks, rank as usize));
        }
        Ok(CpuTransport { direct, rank, sealed: store.has_secret() })
    }
}

/// The gather of the ranks' cores, before the group's first collective.
fn cores_note() -> CollectiveNote {
    let mut tag = [0; 16];
    tag[..5].copy_from_slice(b"cores");
    CollectiveNote { seq: 0, op: CollectiveOp::AllGather, tag, count: RankCores::BYTES, dtype: Dtype::U8 }
}

fn lingering(result: Result<(), BackendError>) -> Result<(), BackendError> {
    if result.as_ref().is_err_and(|failure| failure.kind == DistErrorKind::Mismatch) {
        std::thread::sleep(LINGER);
    }
    result
}

impl CollectiveTransport for CpuTransport {
    fn name(&self) -> String {
        let tcp = format!("tcp ({})", if self.sealed { "encrypted" } else { "not encrypted" });
        match self.direct.counts() {
            (_, 0) => tcp,
            (all, shared) if all == shared => "shared memory".into(),
            _ => format!("shared memory, {tcp}"),
        }
    }

    fn device(&self) -> Option<Device> {
        Some(Device::Cpu)
    }

    fn all_reduce(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        op: ReduceKernel,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let reduction = Reduction { op, kind: tensor.kind() };
        if !reduction.is_known() {
            let text = format!("tensors of kind {:?} cannot be reduced", tensor.kind());
            return Err(BackendError::new(DistErrorKind::Usage, text));
        }
        // SAFETY: a collective runs on the thread that owns the tensors, and until it returns this thread
        // does nothing but send, receive and combine these bytes.
        let bytes = unsafe { memory::bytes_mut(tensor) };
        lingering(self.direct.all_reduce(note, bytes, reduction, limit_ms))
    }

    fn broadcast(
        &self,
        note: &CollectiveNote,
        tensor: &mut Tensor,
        root: u32,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        // SAFETY: as in `all_reduce`.
        let bytes = unsafe { memory::bytes_mut(tensor) };
        lingering(self.direct.broadcast(note, bytes, root, limit_ms))
    }

    fn all_gather(
        &self,
        note: &CollectiveNote,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let host =
            if input.device() == Device::Cpu { input.shallow_clone() } else { input.to_device(Device::Cpu) };
        // SAFETY: this thread owns the tensor and writes to nothing before the bytes are copied.
        let own = unsafe { memory::bytes(&host) };
        let block = own.len();
        let mut all = vec![0; block * outputs.len()];
        all[self.rank as usize * block..][..block].copy_from_slice(own);
        lingering(self.direct.all_gather(note, &mut all, limit_ms))?;
        for (output, bytes) in outputs.iter_mut().zip(all.chunks_exact(block.max(1))) {
            let mut staged =
                if output.device() == Device::Cpu { output.shallow_clone() } else { host.empty_like() };
            // SAFETY: as in `all_reduce`; `staged` is the output itself, or not shared.
            unsafe { memory::bytes_mut(&mut staged) }.copy_from_slice(bytes);
            if output.device() != Device::Cpu {
                copy(output, &staged)?;
            }
        }
        Ok(())
    }

    fn barrier(&self, note: &CollectiveNote, limit_ms: i64) -> Result<(), BackendError> {
        lingering(self.direct.barrier(note, limit_ms))
    }

    /// Connections close when they are dropped.
    fn close(self: Box<Self>, _healthy: bool) {}
}

/// Between two calls to a rank that hung up.
const RETRY: Duration = Duration::from_millis(20);
/// Interval for checking whether this rank's own connections have failed.
const POLL: Duration = Duration::from_millis(250);

fn failed(text: String) -> BackendError {
    BackendError::new(DistErrorKind::Connection, text)
}

/// Connects `rank` with its partners; all ranks of the group must call it.
fn connect_partners(
    store: &Store,
    rank: u32,
    world_size: u32,
    address: IpAddr,
    deadline: Instant,
) -> Result<Vec<Channel>, BackendError> {
    let credentials = store.credentials();
    let partners = partners(rank, world_size);
    let (callers, called): (BTreeSet<u32>, BTreeSet<u32>) = partners.iter().partition(|peer| **peer > rank);
    let auth_listener = match callers.is_empty() {
        true => None,
        false => Some(listen(store, credentials.clone(), (rank, world_size), address)?),
    };
    let given_up = AtomicBool::new(false);
    let given_up = &given_up;
    std::thread::scope(|scope| {
        let accepting = auth_listener
            .map(|auth_listener| scope.spawn(move || accept(auth_listener, callers, deadline, given_up)));
        let mut channels = Vec::with_capacity(partners.len());
        let calls = called.into_iter().try_for_each(|peer| {
            channels.push(connect(store, &credentials, rank, peer, deadline)?);
            Ok(())
        });
        given_up.store(calls.is_err(), Ordering::Relaxed);
        if let Some(accepting) = accepting {
            let accepted = accepting.join().unwrap_or_else(|_| Err(failed("cannot accept".into())));
            calls?;
            channels.extend(accepted?);
        } else {
            calls?;
        }
        Ok(channels)
    })
}

fn listen(
    store: &Store,
    credentials: Credentials,
    (rank, world_size): (u32, u32),
    address: IpAddr,
) -> Result<AuthListener, BackendError> {
    let cannot = |error: std::io::Error| failed(format!("rank {rank} cannot listen at {address}: {error}"));
    let listener = TcpListener::bind((address, 0)).map_err(cannot)?;
    let place = listener.local_addr().map_err(cannot)?;
    let auth_listener = AuthListener::new(listener, credentials, rank, world_size).map_err(cannot)?;
    store.set(&format!("direct/{rank}"), place.to_string().as_bytes())?;
    Ok(auth_listener)
}

fn connect(
    store: &Store,
    credentials: &Credentials,
    rank: u32,
    peer: u32,
    deadline: Instant,
) -> Result<Channel, BackendError> {
    let place = store.get(&format!("direct/{peer}"), deadline)?;
    let place = String::from_utf8_lossy(&place);
    let address: SocketAddr =
        place.parse().map_err(|_| failed(format!("invalid address for rank {peer}: {place:?}")))?;
    loop {
        match auth_listener::connect(address, credentials, rank, peer, deadline) {
            Ok((stream, keys)) => return Channel::new(peer, stream, keys, RECORD),
            Err(error) if error.kind() == ErrorKind::InvalidData || Instant::now() >= deadline => {
                return Err(failed(format!("rank {rank} cannot reach rank {peer} at {address}: {error}")));
            }
            // Many callers at once, or none listening yet: the next try may get in.
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

fn accept(
    mut auth_listener: AuthListener,
    mut callers: BTreeSet<u32>,
    deadline: Instant,
    given_up: &AtomicBool,
) -> Result<Vec<Channel>, BackendError> {
    let mut channels = Vec::with_capacity(callers.len());
    loop {
        let arrived =
            auth_listener.step().map_err(|error| failed(format!("cannot accept connections: {error}")))?;
        for verified in arrived {
            if callers.remove(&verified.rank) {
                channels.push(Channel::new(verified.rank, verified.stream, verified.keys, RECORD)?);
            }
        }
        let Some(first) = callers.first() else { return Ok(channels) };
        if given_up.load(Ordering::Relaxed) {
            return Ok(channels);
        }
        let mut subjects = Vec::new();
        auth_listener.interests(&mut subjects);
        let next = auth_listener.next().unwrap_or(deadline).min(deadline).min(Instant::now() + POLL);
        if !wait(&mut subjects, Some(next)) && Instant::now() >= deadline {
            let text = format!("rank {first} did not connect to this rank in time");
            return Err(BackendError::new(DistErrorKind::Timeout, text));
        }
    }
}
