//! The GPUs of a host against those that the run wants.

use crate::cli::preflight::Cell;
use rankdeck_proto::examination::{Findings, GpuFinding, GpuHealth, GpuProcess};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Gpus, Host};
use rankdeck_types::words::{bytes, plural};

pub(super) fn gpus(host: &Host, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    let there = found.probe.gpu_count;
    let Some(asked) = &host.gpus else {
        return match there {
            0 => Cell::passed("none wanted, none there"),
            _ => Cell::warning(
                format!("{there} there, and none wanted"),
                "write `gpus = \"all\"` for this host, or `gpus = []` with `nproc` to say that CPUs are meant",
                key("gpus"),
            ),
        };
    };
    if let Some(HintedError { error, hint }) = found.untold_gpus.as_ref().filter(|_| there == 0) {
        let cell: fn(String, String, String) -> Cell =
            if asked.is_auto() { Cell::warning } else { Cell::failed };
        return cell(error.clone(), hint.clone(), key("gpus"));
    }
    if there == 0 && asked.is_auto() {
        return Cell::passed("none there");
    }
    let why = || match (&found.visible_gpus, &found.driver) {
        (Some(list), _) => format!("CUDA_VISIBLE_DEVICES is `{list}` there"),
        (None, Some(version)) => format!("driver {version}"),
        (None, None) => "there is no NVIDIA driver".to_owned(),
    };
    let wanted = wanted(host, found);
    let listed = "that list comes from the user's environment there, or from Slurm: correct it, or change `gpus`, which \
                  counts among those that it names";
    let lost = "one that has fallen off the bus is counted no more: look for `Xid 79` in `dmesg` there, and reboot; or \
                change `gpus`";
    let repair = if found.visible_gpus.is_some() { listed } else { lost };
    if there == 0 && matches!(asked, Gpus::Word(_)) {
        let look = "run `nvidia-smi` there; or leave `gpus` out and set `nproc`";
        let hint = if found.visible_gpus.is_some() { listed } else { look };
        return Cell::failed(format!("gpus = \"all\", and there are none: {}", why()), hint, key("gpus"));
    }
    if let Some(missing) = wanted.iter().find(|index| **index >= there) {
        return Cell::failed(
            format!("GPU {missing} is wanted, and {there} are there: {}", why()),
            repair,
            key("gpus"),
        );
    }
    let used = |gpu: &&GpuFinding| wanted.contains(&gpu.index);
    if let Some(twice) = named_twice(found, &wanted) {
        return Cell::failed(
            format!("CUDA_VISIBLE_DEVICES names {} ({}) twice", twice.name, twice.uuid),
            "name each GPU once there; more ranks than GPUs share them with `nproc`",
            key("gpus"),
        );
    }
    if let Some(cell) = lost_gpus(found, &wanted, key) {
        return cell;
    }
    let check = match &found.gpu_check {
        Some(Err(HintedError { error, hint })) => {
            Some(Cell::failed(format!("the trainer cannot use them: {error}"), hint.clone(), key("libtorch")))
        }
        _ => None,
    };
    // Often one of these is why another is there: all that are found are told.
    let told = || found.gpus.iter().filter(used);
    let ill = told().find_map(|gpu| ill(gpu, key));
    let taken = told().find_map(|gpu| taken(gpu, key));
    if let Some(cell) = check.into_iter().chain(ill).chain(taken).reduce(both) {
        return cell;
    }
    if let Some(ranks) = host.nproc.filter(|ranks| !wanted.is_empty() && *ranks as usize > wanted.len()) {
        return Cell::warning(
            format!("{ranks} ranks share {}", plural(wanted.len(), "GPU")),
            "ranks on one GPU take turns, in collectives, too: leave `nproc` out for one rank per GPU",
            key("nproc"),
        );
    }
    Cell::passed(format!("{there} there"))
}

/// What to say of GPUs that the run would use and that have fallen off the bus. Whatever else is wrong there
/// comes from that.
fn lost_gpus(found: &Findings, wanted: &[u32], key: &dyn Fn(&str) -> String) -> Option<Cell> {
    let lost = found.gpus.iter().filter(|gpu| gpu.lost && wanted.contains(&gpu.index));
    let lost: Vec<String> = lost.map(|gpu| gpu.index.to_string()).collect();
    let text = match lost.as_slice() {
        [] => return None,
        [one] => format!("GPU {one} has fallen off the bus: the driver does not reach it any more"),
        many => {
            let many = many.join(", ");
            format!("GPUs {many} have fallen off the bus: the driver does not reach them any more")
        }
    };
    let hint = "reboot the host, or reset the GPU with `nvidia-smi --gpu-reset`; or name the others in \
                `CUDA_VISIBLE_DEVICES` there";
    Some(Cell::failed(text, hint, key("gpus")))
}

/// Two complaints as one, the worse first.
fn both(first: Cell, second: Cell) -> Cell {
    let (first, second) = if second.grade > first.grade { (second, first) } else { (first, second) };
    let text = format!("{}; {}", first.text, second.text);
    let hint = format!("{}; {}", first.hint, second.hint);
    Cell { text, hint, ..first }
}

/// What to say of a GPU whose memory has faults.
fn ill(gpu: &GpuFinding, key: &dyn Fn(&str) -> String) -> Option<Cell> {
    let GpuHealth { uncorrected, reset_pending, remap_failed } = gpu.health;
    let reset = "`nvidia-smi --gpu-reset` (or a reboot) puts spare memory in; or choose other `gpus`";
    if remap_failed {
        let text = format!("GPU {}: bad memory, and no spare rows are left for it", gpu.index);
        return Some(Cell::failed(text, "the GPU has to be replaced; choose other `gpus`", key("gpus")));
    }
    let pending = reset_pending.then(|| "bad memory is replaced at the next reset only".to_owned());
    let errors = || format!("{} not corrected", plural(uncorrected as usize, "memory error"));
    let said: Vec<String> = pending.into_iter().chain((uncorrected > 0).then(errors)).collect();
    let text = format!("GPU {}: {}", gpu.index, said.join(", "));
    (!said.is_empty()).then(|| Cell::warning(text, reset, key("gpus")))
}

/// What to say of a GPU that somebody uses, or that has hardly any memory left.
fn taken(gpu: &GpuFinding, key: &dyn Fn(&str) -> String) -> Option<Cell> {
    let free = gpu.memory_total.saturating_sub(gpu.memory_used);
    let full = gpu.memory_total > 0 && free < gpu.memory_total / 10;
    let Some(first) = gpu.processes.first() else {
        let text = format!(
            "GPU {}: {} of {} in use, by processes that cannot be seen",
            gpu.index,
            bytes(gpu.memory_used),
            bytes(gpu.memory_total)
        );
        let hint = "another container or user holds it; choose other `gpus`";
        return full.then(|| Cell::failed(text, hint, key("gpus")));
    };
    let text = format!("GPU {} is in use: {} holds {}", gpu.index, who(first), bytes(first.bytes));
    let hint = match &first.run {
        Some(run) => format!("`rankdeck stop {run}` ends it; or choose other `gpus`"),
        None => "end it, or choose other `gpus`".to_owned(),
    };
    Some(match full {
        true => Cell::failed(text, hint, key("gpus")),
        false => Cell::warning(text, hint, key("gpus")),
    })
}

/// A process on a GPU, in words.
fn who(process: &GpuProcess) -> String {
    match &process.run {
        Some(run) => format!("process {} of run {run}", process.pid),
        None if process.command.is_empty() => format!("process {}", process.pid),
        None => format!("process {} ({})", process.pid, process.command),
    }
}

/// A wanted GPU that another wanted index means, too.
fn named_twice<'a>(found: &'a Findings, wanted: &[u32]) -> Option<&'a GpuFinding> {
    let named = || found.gpus.iter().filter(|gpu| wanted.contains(&gpu.index) && !gpu.uuid.is_empty());
    named().find(|gpu| named().any(|other| other.index < gpu.index && other.uuid == gpu.uuid))
}

/// The GPUs that the plan would use: fewer ranks than GPUs leave the last ones out.
pub(in crate::cli::preflight) fn wanted(host: &Host, found: &Findings) -> Vec<u32> {
    let mut wanted = match &host.gpus {
        None => Vec::new(),
        Some(Gpus::Word(_)) => (0..found.probe.gpu_count).collect(),
        Some(Gpus::Count(count)) => (0..*count).collect(),
        Some(Gpus::List(list)) => list.clone(),
    };
    wanted.truncate(host.nproc.map_or(usize::MAX, |ranks| ranks as usize));
    wanted
}
