//! `rankdeck check`: preflight only. A table of checks x hosts, and what would help for each failure; nothing
//! is started.

use super::args::CheckArgs;
use super::preflight::{self, Grade, Subject};
use super::provision::{self, PackedCode};
use super::roster::{own_binary, trainer_binary};
use super::run_id::new_run_id;
use super::{Failure, all_reduce, git, print, sources};
use rankdeck_config::HostsSource;
use rankdeck_config::locate::Locator;
use rankdeck_proto::clock::wall_time;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::quote;
use rankdeck_types::words::{bytes, plural};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Runs `rankdeck check`: shows the plan and examines the hosts.
pub async fn check(hosts_from: &HostsSource, args: CheckArgs) -> Result<u8, Failure> {
    let (hosts_from, experiment) = sources::of(hosts_from, &args.subject);
    let drafted = || -> Result<(PlanDraft, Option<PackedCode>), Failure> {
        let draft = rankdeck_config::load_draft(&hosts_from, &experiment, &args.set, |experiment| {
            new_run_id(&experiment.run.name)
        })?;
        let packed = provision::pack_code(&draft, &experiment)?;
        Ok((draft, packed))
    };
    let (draft, packed) = drafted().inspect_err(|failure| {
        if args.json {
            preflight::refuse_plan("check_finished", failure);
        }
    })?;
    let locator = Locator::new(&hosts_from, &experiment);
    let subject = Subject {
        draft: &draft,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
        places: Vec::new(),
    };
    let mut report = preflight::preflight(&subject, &args.host_keys).await?;
    if args.all_reduce && report.code() == super::code::SUCCESS {
        let cell = all_reduce::try_it(&hosts_from, &draft, &report, &args).await?;
        report.last = Some(("all_reduce", cell));
    }
    if args.json {
        for line in preflight::as_json(&report, &locator, &draft.run.0, wall_time()) {
            print::json(&line);
        }
        preflight::complain(&report, &locator);
    } else {
        preflight::print(&report, &locator);
        if report.count(Grade::Failed) == 0 {
            told(&draft, packed.as_ref(), experiment.folder()).iter().for_each(|line| {
                print::stdout(line);
            });
        }
        if report.count(Grade::Failed) == 0 {
            print::stdout(&format!(
                "\n{} checked in {:.2} s, {}",
                plural(report.hosts.len(), "host"),
                report.took.as_secs_f64(),
                plural(report.count(Grade::Warning), "warning")
            ));
        }
    }
    preflight::verdict(&report, &locator).map_err(|failure| preflight::shortly(&report, failure))?;
    Ok(report.code())
}

/// What the ranks run and where, as part of the plan.
fn told(draft: &PlanDraft, packed: Option<&provision::PackedCode>, folder: PathBuf) -> Vec<String> {
    let launch = &draft.experiment.launch;
    let mut lines = Vec::new();
    if !launch.command.is_empty() {
        lines.push(format!("  command  {}", quote::words(launch.command.iter().map(String::as_str))));
    }
    lines.push(match (packed, launch.command.is_empty()) {
        (Some(PackedCode { pack, .. }), _) => {
            let folder = launch.code.as_deref().unwrap_or_default();
            format!(
                "  code     `{folder}`, {}, {}: each host gets a copy",
                plural(pack.files, "file"),
                bytes(pack.bytes)
            )
        }
        (None, false) => {
            let folders: BTreeSet<&str> = draft.hosts.iter().map(|host| host.workdir.as_str()).collect();
            let folders: Vec<&str> = folders.into_iter().collect();
            format!("  code     none is copied: ranks run in `{}`", folders.join("`, `"))
        }
        (None, true) => return lines,
    });
    let folder = folder.join(launch.code.as_deref().unwrap_or_default());
    lines.extend(git::checkout(&folder).map(|git| format!("  git      {}", git.shown())));
    if !launch.pass_env.is_empty() {
        lines.push(format!("  passed   {}", launch.pass_env.join(" ")));
    }
    lines
}
