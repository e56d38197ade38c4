//! What `check` says where GPUs are wanted and nobody tells of enough of them.

use crate::gpus::{machine, split_in_any_way};

/// A driver that was updated and not loaded anew, one that is not loaded, a container that was given no NVML:
/// none of them is "no driver", and each has its own remedy.
#[test]
fn a_driver_that_tells_of_no_gpu_is_told_with_its_reason() {
    for (knob, value, reason, hint) in [
        ("nvml", "18", "its libraries are of different versions", "reboot that host"),
        ("nvml", "9", "is installed, and not loaded", "modprobe nvidia"),
        ("without", "libnvidia-ml.so.1:nvmlInit_v2", "NVML does not work", "NVIDIA_DRIVER_CAPABILITIES"),
    ] {
        for gpus in ["[0, 1]", "1", "'all'"] {
            let Some(machine) = machine(&[("gpus", "2"), (knob, value)], &format!("gpus = {gpus}")) else {
                return;
            };
            split_in_any_way(&machine);
            let output = machine.command(&["check"], &[]).output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(output.status.code(), Some(3), "{gpus}: {said}");
            assert!(said.contains(reason) && said.contains(hint), "{gpus}: {said}");
            assert!(!said.contains("no NVIDIA driver"), "{gpus}: {said}");
        }
    }
}

/// The user's own list, or Slurm's, is why fewer GPUs are there than the plan wants.
#[test]
fn a_list_of_visible_gpus_is_told_as_the_reason_why_none_is_there() {
    for (gpus, given) in [("[0, 1]", ""), ("'all'", ""), ("1", "-1"), ("1", "7"), ("[0, 1]", "1")] {
        let Some(machine) = machine(&[("gpus", "2")], &format!("gpus = {gpus}")) else { return };
        split_in_any_way(&machine);
        let output = machine.command(&["check"], &[("CUDA_VISIBLE_DEVICES", given)]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(3), "{gpus}, {given:?}: {said}");
        let reason = format!("CUDA_VISIBLE_DEVICES is `{given}` there");
        assert!(said.contains(&reason) && said.contains("from Slurm: correct it"), "{gpus}: {said}");
        assert!(!said.contains("Xid"), "{gpus}, {given:?}: {said}");
    }
    for env in ["CUDA_VISIBLE_DEVICES = '1'", "CUDA_VISIBLE_DEVICES = ''"] {
        let Some(machine) = machine(&[("gpus", "2")], &format!("gpus = 'all'\nenv = {{ {env} }}")) else {
            return;
        };
        let output = machine.command(&["check"], &[]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{env}: {said}");
        assert!(said.contains("would be the same for all ranks") && said.contains("--gpus 2,3"), "{said}");
    }
}
