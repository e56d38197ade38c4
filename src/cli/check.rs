//! `rankdeck check`: preflight only. A table of checks x hosts and a hint for each failure; nothing is started.

use super::args::CheckArgs;
use super::roster::{decode, exec_on_all, own_binary, trainer_binary};
use super::run::new_run_id;
use super::{Failure, code, print};
use crate::agent::RunEntry;
use crate::agent::entries::RunState;
use crate::config;
use crate::config::hosts::{Gpus, Host};
use crate::core::event::Probe;
use crate::core::plan::{Plan, PlanDraft};
use crate::link::LinkError;
use crate::shell::words::printable;
use std::path::Path;

/// The result of one check on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cell {
    Ok(String),
    Warn { text: String, hint: String },
    Fail { text: String, hint: String },
    Skip,
}

const NAMES: [&str; 7] = ["reach", "agent", "ranks", "gpus", "trainer", "libtorch", "busy"];

/// `rankdeck check`.
pub async fn check(hosts_path: &Path, args: CheckArgs) -> Result<u8, Failure> {
    let draft = config::load_draft(hosts_path, &args.experiment, &args.set, |experiment| {
        new_run_id(&experiment.run.name)
    })?;
    let probes = exec_on_all(&draft.hosts, &args.meet, |_| vec!["probe".to_owned()]).await?;
    let lists = exec_on_all(&draft.hosts, &args.meet, |host| {
        ["list", "--workdir", &host.workdir].map(str::to_owned).to_vec()
    })
    .await?;
    let probes: Vec<Result<Probe, LinkError>> = draft
        .hosts
        .iter()
        .zip(probes)
        .map(|(host, answer)| answer.and_then(|text| decode::<Probe>(host, &text)))
        .collect();
    let can_upload = own_binary().ok().as_deref().and_then(trainer_binary).is_some();
    let columns: Vec<Vec<Cell>> = draft
        .hosts
        .iter()
        .zip(&probes)
        .zip(&lists)
        .map(|((host, probe), list)| {
            let runs = list
                .as_ref()
                .ok()
                .and_then(|text| decode::<Vec<RunEntry>>(host, text).ok())
                .unwrap_or_default();
            column(&draft, host, probe, &runs, can_upload)
        })
        .collect();
    print_table(&draft.hosts, &columns);
    let failed = columns.iter().flatten().any(|cell| matches!(cell, Cell::Fail { .. }));
    for (host, cells) in draft.hosts.iter().zip(&columns) {
        for (name, cell) in NAMES.iter().zip(cells) {
            match cell {
                Cell::Fail { text, hint } => complain("error", &host.name, name, text, hint),
                Cell::Warn { text, hint } => complain("warning", &host.name, name, text, hint),
                Cell::Ok(_) | Cell::Skip => {}
            }
        }
    }
    if failed {
        return Ok(code::HOST);
    }
    let probes: Vec<Probe> = probes.into_iter().flatten().collect();
    let plan = draft.resolve(&probes)?;
    print_plan(&plan);
    Ok(code::SUCCESS)
}

fn complain(what: &str, host: &str, check: &str, text: &str, hint: &str) {
    print::stderr(&printable(&format!("{what}: host {host}: {check}: {text}")));
    if !hint.is_empty() {
        print::stderr(&printable(&format!("hint: {hint}")));
    }
}

fn column(
    draft: &PlanDraft,
    host: &Host,
    probe: &Result<Probe, LinkError>,
    runs: &[RunEntry],
    can_upload: bool,
) -> Vec<Cell> {
    let probe = match probe {
        Ok(probe) => probe,
        Err(error) => {
            let fail = Cell::Fail { text: error.error.clone(), hint: error.hint.clone() };
            return std::iter::once(fail).chain(std::iter::repeat_n(Cell::Skip, NAMES.len() - 1)).collect();
        }
    };
    let builtin = draft.experiment.launch.command.is_empty();
    vec![
        Cell::Ok(probe.hostname.clone()),
        Cell::Ok("ok".to_owned()),
        ranks(host, probe),
        gpus(host, probe),
        trainer(builtin, probe, can_upload),
        libtorch(builtin, host, probe),
        busy(runs),
    ]
}

fn wanted_gpus(host: &Host) -> Option<u32> {
    match host.gpus.as_ref()? {
        Gpus::Word(_) => None,
        Gpus::Count(n) => Some(*n),
        Gpus::List(list) => list.iter().max().map(|max| max + 1),
    }
}

fn ranks(host: &Host, probe: &Probe) -> Cell {
    let gpu_ranks = match &host.gpus {
        None => None,
        Some(Gpus::Word(_)) => Some(probe.gpu_count),
        Some(Gpus::Count(n)) => Some(*n),
        Some(Gpus::List(list)) => Some(list.len() as u32),
    };
    let ranks = host.nproc.or(gpu_ranks).unwrap_or(1);
    if ranks > probe.cpu_count {
        return Cell::Warn {
            text: format!("{ranks} ranks on {} cores", probe.cpu_count),
            hint: "they will take turns; lower `nproc` in hosts.toml".to_owned(),
        };
    }
    Cell::Ok(format!("{ranks} on {} cores", probe.cpu_count))
}

fn gpus(host: &Host, probe: &Probe) -> Cell {
    match (&host.gpus, wanted_gpus(host)) {
        (None, _) => Cell::Ok(format!("none wanted, {} there", probe.gpu_count)),
        (Some(_), None) if probe.gpu_count == 0 => Cell::Fail {
            text: "gpus = \"all\", but the driver shows none".to_owned(),
            hint: "run `nvidia-smi` there; or leave `gpus` out and set `nproc`".to_owned(),
        },
        (Some(_), Some(n)) if n > probe.gpu_count => Cell::Fail {
            text: format!("{n} GPUs wanted, the driver shows {}", probe.gpu_count),
            hint: "run `nvidia-smi` there; or change `gpus` in hosts.toml".to_owned(),
        },
        _ => Cell::Ok(format!("{} there", probe.gpu_count)),
    }
}

fn trainer(builtin: bool, probe: &Probe, can_upload: bool) -> Cell {
    match (builtin, &probe.trainer) {
        (false, _) => Cell::Ok("own command".to_owned()),
        (true, Some(_)) => Cell::Ok("there".to_owned()),
        (true, None) if can_upload => Cell::Ok("will be uploaded".to_owned()),
        (true, None) => Cell::Fail {
            text: "no rankdeck-trainer there, and none beside rankdeck to upload".to_owned(),
            hint: "build it with `cargo build --release --features trainer`, or set `launch.command`"
                .to_owned(),
        },
    }
}

fn libtorch(builtin: bool, host: &Host, probe: &Probe) -> Cell {
    match (builtin, &probe.libtorch, &host.libtorch) {
        (false, ..) => Cell::Ok("not needed".to_owned()),
        (true, Some(path), _) => Cell::Ok(path.clone()),
        (true, None, Some(configured)) => Cell::Ok(format!("{configured} (as configured)")),
        (true, None, None) => Cell::Fail {
            text: "no libtorch found".to_owned(),
            hint: "set `libtorch` of this host in hosts.toml: a directory, or `python:PATH`".to_owned(),
        },
    }
}

fn busy(runs: &[RunEntry]) -> Cell {
    let alive: Vec<&RunEntry> =
        runs.iter().filter(|entry| entry.ranks_alive > 0 || entry.state == RunState::Orphaned).collect();
    match alive.first() {
        None => Cell::Ok("idle".to_owned()),
        Some(entry) if entry.state == RunState::Orphaned => Cell::Warn {
            text: format!("leftovers of run {}", entry.run),
            hint: format!("`rankdeck stop {}` removes them", entry.run),
        },
        Some(entry) => Cell::Warn {
            text: format!("run {} has {} ranks there", entry.run, entry.ranks_alive),
            hint: "two runs on one GPU slow each other down".to_owned(),
        },
    }
}

fn print_table(hosts: &[Host], columns: &[Vec<Cell>]) {
    let header =
        std::iter::once("CHECK".to_owned()).chain(hosts.iter().map(|host| host.name.clone())).collect();
    let rows = NAMES.iter().enumerate().map(|(i, name)| {
        let cells = columns.iter().map(|column| match &column[i] {
            Cell::Ok(text) => printable(text),
            Cell::Warn { .. } => "WARNING".to_owned(),
            Cell::Fail { .. } => "FAILED".to_owned(),
            Cell::Skip => "-".to_owned(),
        });
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    print::stdout(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
}

fn print_plan(plan: &Plan) {
    print::stdout(&format!(
        "\nplan: world_size {}, {} hosts, {}",
        plan.world_size(),
        plan.hosts.len(),
        plan.backend
    ));
    for host in &plan.hosts {
        let ranks: Vec<String> = plan
            .ranks_of(host.node_rank)
            .map(|rank| {
                rank.gpu.map_or_else(|| rank.rank.to_string(), |gpu| format!("{}=gpu{gpu}", rank.rank))
            })
            .collect();
        print::stdout(&format!("  node_rank {}  {}  ranks {}", host.node_rank, host.name, ranks.join(" ")));
    }
    for size in &plan.sizes {
        print::stdout(&format!("  {}  {} per rank, {} global", size.name, size.local, size.global));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(gpus: u32) -> Probe {
        Probe { cpu_count: 4, gpu_count: gpus, ..Probe::default() }
    }

    #[test]
    fn a_missing_trainer_fails_only_when_it_is_needed_and_cannot_be_uploaded() {
        assert!(matches!(trainer(true, &probe(0), false), Cell::Fail { .. }));
        assert!(matches!(trainer(true, &probe(0), true), Cell::Ok(_)));
        assert!(matches!(trainer(false, &probe(0), false), Cell::Ok(_)));
    }

    #[test]
    fn leftovers_and_running_ranks_are_worth_a_warning() {
        let entry =
            |state, ranks_alive| RunEntry { state, ranks_alive, ..crate::cli::roster::sample_entry() };
        assert!(matches!(busy(&[entry(RunState::Orphaned, 0)]), Cell::Warn { .. }));
        assert!(matches!(
            busy(&[entry(RunState::Finished, 0), entry(RunState::Running, 2)]),
            Cell::Warn { .. }
        ));
        assert!(matches!(busy(&[entry(RunState::Finished, 0)]), Cell::Ok(_)));
    }
}
