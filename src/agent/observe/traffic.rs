//! What goes over a GPU's PCIe connection and its NVLinks.
//!
//! Owner: the thread that asks the driver. The driver measures PCIe itself, for 20 ms a question; of NVLinks
//! it tells counters, and a rate is the difference between two rounds.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::sys_exports::field_id;
use rankdeck_proto::message::GpuSample;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::time::Instant;

/// All links of a GPU together.
const ALL_LINKS: c_uint = c_uint::MAX;
/// Received, sent, recovered from.
const ASKED: [c_uint; 3] = [
    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
];
/// `nvmlValueType_t` of whole numbers without a sign: 32 bits, and 64 bits by two names.
const NUMBERS: [c_uint; 3] = [1, 2, 3];

/// `nvmlFieldValue_t`: the wrapper of this library asks for the first link only.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Field {
    id: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency_us: i64,
    kind: c_uint,
    status: c_uint,
    value: u64,
}

/// Counters of the last round, in KiB, by the GPU's unique name: received and sent.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    before: BTreeMap<String, (Instant, [u64; 2])>,
}

impl Traffic {
    /// Adds what goes over the connections of a GPU, as far as the driver tells.
    pub fn complete(&mut self, nvml: &Nvml, gpu: &mut GpuSample) {
        let Ok(device) = nvml.device_by_index(gpu.index) else { return };
        // Kilobytes per second.
        let pcie = |way| device.pcie_throughput(way).ok().map(|rate| u64::from(rate) * 1000);
        (gpu.pcie_rx, gpu.pcie_tx) = (pcie(PcieUtilCounter::Receive), pcie(PcieUtilCounter::Send));
        let Some([received, sent, errors]) = links(nvml, &device) else { return };
        gpu.nvlink_errors = errors;
        if let (Some(received), Some(sent)) = (received, sent) {
            let rates = self.rates(&gpu.uuid, Instant::now(), [received, sent]);
            (gpu.nvlink_rx, gpu.nvlink_tx) = (rates.map(|rates| rates[0]), rates.map(|rates| rates[1]));
        }
    }

    /// Bytes per second since the last round; `None` in the first one, and when counters began anew.
    fn rates(&mut self, gpu: &str, now: Instant, kib: [u64; 2]) -> Option<[u64; 2]> {
        let (then, before) = self.before.insert(gpu.to_owned(), (now, kib))?;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        let rate = |way: usize| {
            let moved = kib.get(way)?.checked_sub(*before.get(way)?)?;
            (seconds > 0.0).then_some((moved as f64 * 1024.0 / seconds) as u64)
        };
        Some([rate(0)?, rate(1)?])
    }
}

/// Counters of all links of a GPU; `None` where the driver does not know the question.
fn links(nvml: &Nvml, device: &nvml_wrapper::Device<'_>) -> Option<[Option<u64>; 3]> {
    let ask = nvml.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
    let mut fields = ASKED.map(|id| Field { id, scope: ALL_LINKS, ..Field::default() });
    // SAFETY: `Field` has the layout of the C structure, the handle is of a living library, and the fields
    // live during the call.
    let status = unsafe { ask(device.handle(), fields.len() as c_int, fields.as_mut_ptr().cast()) };
    (status == 0).then_some(())?;
    Some(fields.map(|field| {
        match field.kind {
            // A union: of a short number the other half is undefined.
            1 => Some(field.value & u64::from(u32::MAX)),
            _ => Some(field.value),
        }
        .filter(|_| field.status == 0 && NUMBERS.contains(&field.kind))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_is_what_came_between_two_rounds() {
        let (mut traffic, start) = (Traffic::default(), Instant::now());
        assert_eq!(traffic.rates("a", start, [100, 200]), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(traffic.rates("a", later, [300, 200]), Some([100 * 1024, 0]));
        assert_eq!(traffic.rates("b", later, [300, 200]), None, "another GPU");
        let last = later + Duration::from_secs(1);
        assert_eq!(traffic.rates("a", last, [10, 0]), None, "the driver was loaded anew");
    }
}
