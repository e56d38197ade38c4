//! Signals of the host as a whole: pressure, the group's network interface, suspension.
//!
//! Owner: the sampling thread, which keeps one [`HostWatch`].

use crate::proc;
use rankdeck_proto::inspection::Pressure;
use rankdeck_proto::message::{HostSignals, LinkSample};
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between lookups of the interface towards the master.
const ROUTE_ROUND: Duration = Duration::from_secs(10);

/// Share of the last 10 s in which tasks waited; `None` on kernels without pressure-stall information.
pub(crate) fn pressure() -> Option<Pressure> {
    let read = |name: &str| proc::text(format!("/proc/pressure/{name}"));
    let memory = read("memory")?;
    Some(Pressure {
        cpu: avg10(&read("cpu")?, "some"),
        memory: avg10(&memory, "some"),
        memory_full: avg10(&memory, "full"),
        io: avg10(&read("io")?, "some"),
    })
}

fn avg10(text: &str, kind: &str) -> f32 {
    text.lines()
        .find_map(|line| {
            line.strip_prefix(kind)?.trim_start().strip_prefix("avg10=")?.split(' ').next()?.parse().ok()
        })
        .unwrap_or(0.0)
}

/// What the sampling thread remembers about the host.
#[derive(Debug, Default)]
pub(crate) struct HostWatch {
    master: String,
    named: Option<String>,
    link: Option<String>,
    route_read_at: Option<Instant>,
    awake: Option<(u64, u64)>,
}

impl HostWatch {
    /// Sets where the group meets, and the interface that `hosts.toml` names for it.
    pub fn aim(&mut self, master: &str, interface: Option<&str>) {
        if self.master != master || self.named.as_deref() != interface {
            self.master = master.to_owned();
            self.named = interface.map(str::to_owned);
            self.route_read_at = None;
        }
    }

    /// The signals now.
    pub fn sample(&mut self) -> HostSignals {
        HostSignals { pressure: pressure(), link: self.link(), suspended_ms: self.suspended_ms() }
    }

    fn link(&mut self) -> Option<LinkSample> {
        if self.route_read_at.is_none_or(|at| at.elapsed() >= ROUTE_ROUND) {
            self.route_read_at = Some(Instant::now());
            // A route that is gone does not make the interface another one.
            if let Some(name) = self.named.clone().or_else(|| interface_towards(&self.master)) {
                self.link = Some(name);
            }
        }
        self.link.as_deref().and_then(|name| link(Path::new("/sys/class/net"), name))
    }

    fn suspended_ms(&mut self) -> u64 {
        let (boot, mono) = (clock_ms(libc::CLOCK_BOOTTIME), clock_ms(libc::CLOCK_MONOTONIC));
        let (boot_before, mono_before) = *self.awake.get_or_insert((boot, mono));
        (boot - boot_before).saturating_sub(mono - mono_before)
    }
}

/// Milliseconds of a clock of this machine.
pub(crate) fn clock_ms(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

fn link(folder: &Path, name: &str) -> Option<LinkSample> {
    let folder = folder.join(name);
    let read = |file: &str| proc::text(folder.join(file));
    // The carrier of a disabled interface is unreadable; a removed interface has no directory.
    let exists = folder.exists();
    let carrier = read("carrier").is_some_and(|text| text.trim() == "1");
    let changes = read("carrier_changes").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    exists
        .then(|| LinkSample { name: name.to_owned(), up: carrier, carrier_changes: changes })
        .or_else(|| (!name.is_empty()).then(|| LinkSample { name: name.to_owned(), ..LinkSample::default() }))
}

/// Returns the interface whose address packets to `master` carry; `None` for this host itself and for names that need
/// a lookup.
fn interface_towards(master: &str) -> Option<String> {
    let address: IpAddr = master.parse().ok()?;
    if address.is_loopback() {
        return None;
    }
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the kernel only picks the route.
    socket.connect((address, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    interface_addresses().into_iter().find(|one| one.address == own).map(|one| one.name)
}

/// One address of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    /// The interface.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The interface is up.
    pub is_up: bool,
}

/// Returns the IP addresses of all interfaces.
pub(crate) fn interface_addresses() -> Vec<InterfaceAddress> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `first` with a list that freeifaddrs below gives back.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return found;
    }
    let mut at = first;
    while !at.is_null() {
        // SAFETY: `at` is an entry of the list, which lives until freeifaddrs.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: the name is a NUL-terminated string and the address has the length that its family demands.
        let (name, address) = unsafe {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            let address = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::from(address.sin6_addr.s6_addr)
                }
                _ => continue,
            };
            (name, address)
        };
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        found.push(InterfaceAddress { name, address, is_up });
    }
    // SAFETY: the list came from getifaddrs and nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_from_its_lines() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!((avg10(text, "some"), avg10(text, "full"), avg10("", "some")), (12.5, 3.25, 0.0));
    }

    #[test]
    fn cable_that_is_out_shows() {
        let folder = tempfile::tempdir().unwrap();
        let eth = folder.path().join("eth0");
        std::fs::create_dir(&eth).unwrap();
        std::fs::write(eth.join("carrier"), "1\n").unwrap();
        std::fs::write(eth.join("carrier_changes"), "4\n").unwrap();
        let up = link(folder.path(), "eth0").unwrap();
        assert_eq!((up.up, up.carrier_changes), (true, 4));
        std::fs::write(eth.join("carrier"), "0\n").unwrap();
        assert!(!link(folder.path(), "eth0").unwrap().up);
        assert!(!link(folder.path(), "gone0").unwrap().up, "an interface that was taken away is down");
    }

    #[test]
    fn route_to_this_host_is_no_link() {
        assert_eq!(interface_towards("127.0.0.1"), None);
        assert_eq!(interface_towards("some.name"), None);
        let mut watch = HostWatch::default();
        watch.aim("127.0.0.1", None);
        let signals = watch.sample();
        assert_eq!(signals.link, None);
        assert!(signals.suspended_ms < 1000);
    }

    #[test]
    fn interface_of_an_own_address_is_found() {
        let found =
            interface_addresses().into_iter().find(|one| one.address.is_ipv4() && !one.address.is_loopback());
        let Some(InterfaceAddress { name, address: ip, .. }) = found else { return };
        assert!(!name.is_empty());
        // The route to an own address is the loopback's, but the address that packets carry is the
        // interface's.
        assert_eq!(interface_towards(&ip.to_string()), Some(name));
    }
}
