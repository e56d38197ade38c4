//! The GPUs that programs of this user see: all, or those that `CUDA_VISIBLE_DEVICES` names, be it the user,
//! a scheduler or a container that set it. A plan counts among these.

use super::nvml;
use super::shares::Shares;
use rankdeck_proto::message::{GpuInstance, GpuSample};

/// A GPU, or an instance of MIG on it, that programs see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleGpu {
    /// As [`GpuSample::index`] counts.
    pub index: u32,
    /// Unique name of the instance.
    pub instance: Option<String>,
}

impl VisibleGpu {
    fn whole(gpu: &GpuSample) -> VisibleGpu {
        // Of a divided GPU that is named as a whole, CUDA takes the first instance.
        VisibleGpu { index: gpu.index, instance: gpu.instances.first().map(|first| first.uuid.clone()) }
    }

    /// The GPU that is meant.
    pub fn gpu<'a>(&self, all: &'a [GpuSample]) -> Option<&'a GpuSample> {
        all.iter().find(|gpu| gpu.index == self.index)
    }

    /// The instance that is meant.
    pub fn instance<'a>(&self, gpu: &'a GpuSample) -> Option<&'a GpuInstance> {
        let uuid = self.instance.as_ref()?;
        gpu.instances.iter().find(|instance| instance.uuid == *uuid)
    }
}

/// GPUs that programs see here, 0 without a driver.
pub fn count() -> u32 {
    nvml::load().map_or(0, |nvml| visible(&nvml::look(&nvml, &mut Shares::default())).len() as u32)
}

/// The GPUs that programs of this user see, in the order in which they count them. `None` stands for an
/// instance that the driver does not show.
pub fn visible(all: &[GpuSample]) -> Vec<Option<VisibleGpu>> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => listed(&list, all),
        Err(_) => together(all.iter().map(|gpu| Some(VisibleGpu::whole(gpu))).collect()),
    }
}

/// Those that one process can use: an instance alone, or whole GPUs.
fn together(mut given: Vec<Option<VisibleGpu>>) -> Vec<Option<VisibleGpu>> {
    let is_whole = |one: &Option<VisibleGpu>| one.as_ref().is_some_and(|given| given.instance.is_none());
    let whole = given.iter().take_while(|one| is_whole(one)).count();
    given.truncate(whole.max(1));
    given
}

/// What the GPU of this index in a plan is here. The agent gives ranks the same: an index beyond the list
/// stays an index of the host.
pub fn planned(index: u32, all: &[GpuSample]) -> Option<VisibleGpu> {
    among(index, visible(all), all)
}

fn among(index: u32, mut visible: Vec<Option<VisibleGpu>>, all: &[GpuSample]) -> Option<VisibleGpu> {
    if (index as usize) < visible.len() {
        return visible.swap_remove(index as usize);
    }
    all.iter().find(|gpu| gpu.index == index).map(VisibleGpu::whole)
}

/// As CUDA reads the list: an entry that is no GPU hides itself and all that follow. Of instances that are
/// named one by one, the agent gives each rank its own.
fn listed(list: &str, all: &[GpuSample]) -> Vec<Option<VisibleGpu>> {
    let entry = |entry: &str| match entry.parse::<u32>() {
        Ok(index) => all.iter().find(|gpu| gpu.index == index).map(|gpu| Some(VisibleGpu::whole(gpu))),
        Err(_) if entry.starts_with("MIG-") => Some(instance(entry, all)),
        Err(_) if entry.starts_with("GPU-") => {
            all.iter().find(|gpu| gpu.uuid.starts_with(entry)).map(|gpu| Some(VisibleGpu::whole(gpu)))
        }
        Err(_) => None,
    };
    let given = list.split(',').map(str::trim).map_while(entry).collect();
    if list.contains("MIG-") { given } else { together(given) }
}

/// The instance of this name. Names of old drivers, `MIG-GPU-.../1/0`, tell its GPU only.
fn instance(entry: &str, all: &[GpuSample]) -> Option<VisibleGpu> {
    let named = |gpu: &GpuSample| {
        let uuid = gpu.instances.iter().find(|instance| instance.uuid.starts_with(entry))?.uuid.clone();
        Some(VisibleGpu { index: gpu.index, instance: Some(uuid) })
    };
    let of_gpu = |gpu: &&GpuSample| {
        let on = entry.strip_prefix("MIG-").and_then(|rest| rest.split('/').next());
        on.is_some_and(|on| on == gpu.uuid)
    };
    let old = || all.iter().find(of_gpu).map(|gpu| VisibleGpu { index: gpu.index, instance: None });
    all.iter().find_map(named).or_else(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> [GpuSample; 4] {
        [0, 1, 2, 3].map(|index: u32| {
            let instance =
                |name: &str| GpuInstance { uuid: format!("MIG-{index}{name}"), ..Default::default() };
            let instances = if index == 3 { vec![instance("a"), instance("b")] } else { Vec::new() };
            GpuSample { index, uuid: format!("GPU-{index}{index}ab"), instances, ..GpuSample::default() }
        })
    }

    fn given(index: u32, instance: Option<&str>) -> Option<VisibleGpu> {
        Some(VisibleGpu { index, instance: instance.map(str::to_owned) })
    }

    #[test]
    fn a_list_of_visible_devices_is_read_as_cuda_reads_it() {
        let all = four();
        let of = |list| listed(list, &all);
        assert_eq!(of("2,1"), [given(2, None), given(1, None)]);
        assert_eq!(of("GPU-22, 0"), [given(2, None), given(0, None)]);
        assert_eq!(of("1,9,2"), [given(1, None)]);
        assert_eq!(of("MIG-5"), [None]);
        assert_eq!(of("MIG-3b,MIG-3a"), [given(3, Some("MIG-3b")), given(3, Some("MIG-3a"))]);
        assert_eq!(of("3"), [given(3, Some("MIG-3a"))], "CUDA takes the first instance");
        assert_eq!(of("3,1"), [given(3, Some("MIG-3a"))], "and then nothing else");
        assert_eq!(of("1,3,2"), [given(1, None)], "or whole GPUs only");
        assert_eq!(of("MIG-GPU-33ab/2/0"), [given(3, None)]);
        assert!(of("").is_empty() && of("-1").is_empty());
    }

    #[test]
    fn an_index_of_a_plan_counts_among_them() {
        let all = four();
        let of = |index, list| among(index, listed(list, &all), &all);
        assert_eq!(of(0, "2,1"), given(2, None));
        assert_eq!(of(1, "MIG-3b,MIG-3a"), given(3, Some("MIG-3a")));
        assert_eq!(of(0, "MIG-5"), None, "not that of the host's index 0");
        assert_eq!(of(2, "1,0"), given(2, None), "as the agent gives it");
        assert_eq!(of(9, "1,0"), None);
    }
}
