//! Reads hosts from a Slurm allocation: nodes, tasks and GPUs from the variables that Slurm sets (`man srun`,
//! OUTPUT ENVIRONMENT VARIABLES; node lists as in `man scontrol`, show hostnames).
//!
//! `[defaults]` of the hosts file still applies to the rest: working directory, environment, prelude,
//! libtorch, interface.

use super::diagnostic::{Diagnostic, Diagnostics, SourceText};
use super::document::{self, Node};
use rankdeck_types::host::{GpuSelection, Host, HostTable, Transport};
use std::path::Path;
use std::sync::Arc;

/// The option for the hosts of the allocation.
pub(super) const OPTION: &str = "--slurm";

/// Most nodes of a list: far above any cluster, far below what could exhaust memory.
const MOST: usize = 65_536;

/// Environment lookup; empty values count as absent.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One node of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmNode {
    /// Its name in Slurm.
    pub name: String,
    /// Tasks on it, if the job requested tasks.
    pub tasks: Option<u32>,
    /// GPUs of the job on it.
    pub gpus: u32,
}

/// Returns the nodes of the current allocation, in Slurm's order.
///
/// # Errors
/// Outside an allocation, or for a malformed variable: message and hint.
pub fn allocation(env: Lookup) -> Result<Vec<SlurmNode>, (String, String)> {
    let get = |name: &str| env(name).filter(|value| !value.trim().is_empty());
    let list = get("SLURM_JOB_NODELIST").or_else(|| get("SLURM_NODELIST")).ok_or_else(|| {
        (
            "not in a Slurm allocation: SLURM_JOB_NODELIST is not set".to_owned(),
            "run it under `salloc`, or submit a job with `rankdeck sbatch EXPERIMENT.toml`".to_owned(),
        )
    })?;
    let broken = |name: &str, why: String| {
        (
            format!("cannot read {name}: {why}"),
            "Slurm sets this variable; unset it if something else did".to_owned(),
        )
    };
    let names = expand(&list).map_err(|why| broken("SLURM_JOB_NODELIST", why))?;
    let has_tasks =
        ["SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"].iter().any(|name| get(name).is_some());
    let tasks = match get("SLURM_TASKS_PER_NODE").filter(|_| has_tasks) {
        Some(text) => Some(counts(&text).map_err(|why| broken("SLURM_TASKS_PER_NODE", why))?),
        None => None,
    };
    let per_node = get("SLURM_GPUS_PER_NODE").or_else(|| get("SLURM_GPUS_ON_NODE")).map(|text| amount(&text));
    let per_task = get("SLURM_GPUS_PER_TASK").map(|text| amount(&text));
    let listed = get("SLURM_JOB_GPUS").map(|text| Some(text.split(',').count() as u32));
    let gpus = |tasks: Option<u32>| {
        let by_task = || per_task.map(|each| each.map(|each| each.saturating_mul(tasks.unwrap_or(1))));
        per_node.or_else(by_task).or(listed).unwrap_or(Some(0))
    };
    names
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            let tasks = tasks.as_ref().and_then(|counts| counts.get(i)).copied();
            let gpus = gpus(tasks).ok_or_else(|| broken("SLURM_GPUS_PER_NODE", "no count found".into()))?;
            Ok(SlurmNode { name, tasks, gpus })
        })
        .collect()
}

/// Parses `2`, `a100:2` or `a100:1,h200:3` into a count.
fn amount(text: &str) -> Option<u32> {
    text.split(',').try_fold(0_u32, |sum, part| {
        let count = part.rsplit(':').next()?.trim().parse::<u32>().ok()?;
        sum.checked_add(count)
    })
}

/// Expands `2(x3),1` to `2 2 2 1`.
fn counts(text: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, rest)) => {
                (count, rest.strip_suffix(')').and_then(|times| times.parse::<usize>().ok()))
            }
            None => (part.trim(), Some(1)),
        };
        let (Ok(count), Some(times)) = (count.parse::<u32>(), times) else {
            return Err(format!("invalid count `{part}`"));
        };
        if all.len().saturating_add(times) > MOST {
            return Err(format!("more than {MOST} nodes"));
        }
        all.extend(std::iter::repeat_n(count, times));
    }
    Ok(all)
}

/// Expands `gpu[03-05,9]-ib,login` to `gpu03-ib gpu04-ib gpu05-ib gpu9-ib login`. Ranges keep leading zeros;
/// several brackets multiply.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in parts(list)? {
        let mut found = vec![String::new()];
        let mut rest = part;
        while let Some(open) = rest.find('[') {
            let (plain, behind) = rest.split_at(open);
            let close = behind.find(']').ok_or_else(|| format!("missing `]` in `{part}`"))?;
            let ends = range_ends(&behind[1..close], MOST)?;
            if found.len().saturating_mul(ends.len()) > MOST {
                return Err(format!("more than {MOST} nodes"));
            }
            found = found
                .iter()
                .flat_map(|head| ends.iter().map(move |end| format!("{head}{plain}{end}")))
                .collect();
            rest = &behind[close + 1..];
        }
        if rest.contains(']') || part.is_empty() {
            return Err(format!("invalid node list `{list}`"));
        }
        names.extend(found.into_iter().map(|head| head + rest));
        if names.len() > MOST {
            return Err(format!("more than {MOST} nodes"));
        }
    }
    Ok(names)
}

/// Splits at the commas outside brackets.
fn parts(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' if depth > 0 => return Err(format!("nested `[` in `{list}`")),
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    Ok(parts)
}

/// Expands `03-05,9` to `03 04 05 9`.
fn range_ends(text: &str, most: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) && text.len() <= 18 {
            true => text.parse::<u64>().map_err(|_| format!("invalid range `{part}`")),
            false => Err(format!("invalid range `{part}`")),
        };
        let (low, high) = (number(first)?, number(last)?);
        if low > high || high - low >= most as u64 || all.len() + (high - low) as usize >= most {
            return Err(format!("invalid range `{part}`"));
        }
        all.extend((low..=high).map(|n| format!("{n:0width$}", width = first.len())));
    }
    Ok(all)
}

/// Reads the hosts of the current allocation, with `[defaults]` of the hosts file if it exists.
pub(super) fn read(defaults_path: &Path, env: Lookup) -> Result<(Vec<Host>, Node), Diagnostics> {
    let failed =
        |(error, hint): (String, String)| Diagnostics::from(Diagnostic::about_file(OPTION, error).hint(hint));
    let nodes = allocation(env).map_err(failed)?;
    let (defaults, root) = match defaults_path.exists() {
        true => super::hosts::read_defaults(defaults_path)?,
        false => {
            let source = SourceText::new(OPTION, "");
            (HostTable::default(), document::parse(&Arc::new(source))?)
        }
    };
    let hosts = nodes.into_iter().map(|node| host(&defaults, node)).collect();
    Ok((hosts, root))
}

fn host(defaults: &HostTable, node: SlurmNode) -> Host {
    Host {
        address: node.name.clone(),
        name: node.name,
        gpus: (node.gpus > 0).then_some(GpuSelection::Count(node.gpus)),
        nproc: node.tasks.or(defaults.nproc),
        workdir: defaults.workdir.clone().unwrap_or_else(|| ".".into()),
        env: defaults.env.clone().unwrap_or_default(),
        setup: HostTable::default().setup(defaults),
        libtorch: defaults.libtorch.clone(),
        interface: defaults.interface.clone(),
        transport: Transport::Slurm,
        port: None,
        user: None,
        identity_file: None,
        proxy_jump: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn node_list_expands_as_in_scontrol() {
        for (list, names) in [
            ("node0", "node0"),
            ("node[0-3]", "node0 node1 node2 node3"),
            ("gpu[03-05,9],login", "gpu03 gpu04 gpu05 gpu9 login"),
            ("a[1-2]b[08-09]-ib", "a1b08-ib a1b09-ib a2b08-ib a2b09-ib"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("x1,x[3,5]", "x1 x3 x5"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        for bad in [
            "",
            ",",
            "a[",
            "a]",
            "a[1-",
            "a[2-1]",
            "a[x]",
            "a[1[2]]",
            "a[0-99999999]",
            "a[0-999][0-999]",
            "a[-]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    type Nodes = Vec<(String, Option<u32>, u32)>;

    fn found(pairs: &[(&str, &str)]) -> Result<Nodes, (String, String)> {
        let map: HashMap<&str, &str> = pairs.iter().copied().collect();
        let nodes = allocation(&|name| map.get(name).map(|value| value.to_string()))?;
        Ok(nodes.into_iter().map(|node| (node.name, node.tasks, node.gpus)).collect())
    }

    #[test]
    fn tasks_and_gpus_follow_the_job_request() {
        let list = ("SLURM_JOB_NODELIST", "n[0-1]");
        let node = |name: &str, tasks, gpus| (name.to_owned(), tasks, gpus);
        // Nodes only: Slurm sets 1(x2) although no tasks were requested.
        assert_eq!(found(&[list, ("SLURM_TASKS_PER_NODE", "1(x2)")]).unwrap()[1], node("n1", None, 0));
        let tasks = [list, ("SLURM_NTASKS", "3"), ("SLURM_TASKS_PER_NODE", "2,1")];
        assert_eq!(found(&tasks).unwrap(), [node("n0", Some(2), 0), node("n1", Some(1), 0)]);
        let with = |more: &[(&'static str, &'static str)]| found(&[&tasks[..], more].concat()).unwrap();
        assert_eq!(with(&[("SLURM_GPUS_PER_NODE", "fake:4")])[1], node("n1", Some(1), 4));
        assert_eq!(with(&[("SLURM_GPUS_PER_TASK", "2")])[0], node("n0", Some(2), 4));
        assert_eq!(with(&[("SLURM_GPUS_PER_NODE", "a:1,b:2")])[0].2, 3);
        assert_eq!(with(&[("SLURM_JOB_GPUS", "0,1")])[0].2, 2);
        let nodes = [list, ("SLURM_GPUS_ON_NODE", "8")];
        assert_eq!(found(&nodes).unwrap()[0], node("n0", None, 8), "one rank per GPU");
        assert!(found(&[]).unwrap_err().0.contains("SLURM_JOB_NODELIST"));
        for (name, value) in [("SLURM_TASKS_PER_NODE", "2(y2)"), ("SLURM_GPUS_PER_NODE", "many")] {
            assert!(found(&[list, ("SLURM_NTASKS", "2"), (name, value)]).is_err(), "{name}");
        }
    }
}
