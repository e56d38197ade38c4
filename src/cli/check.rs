//! `rankdeck check`: preflight only. A table of checks x hosts, and what would help for each failure; nothing
//! is started.

use super::args::CheckArgs;
use super::preflight::{self, Grade, Subject};
use super::provision;
use super::roster::{own_binary, trainer_binary};
use super::run_id::new_run_id;
use super::{Failure, all_reduce, print};
use rankdeck_config::HostsSource;
use rankdeck_config::locate::Locator;
use rankdeck_proto::clock::wall_time;

/// `rankdeck check`.
pub async fn check(hosts_from: &HostsSource, args: CheckArgs) -> Result<u8, Failure> {
    let draft = rankdeck_config::load_draft(hosts_from, &args.experiment, &args.set, |experiment| {
        new_run_id(&experiment.run.name)
    })?;
    let locator = Locator::new(hosts_from, &args.experiment);
    let packed = provision::pack_code(&draft, &args.experiment)?;
    let subject = Subject {
        draft: &draft,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
        places: Vec::new(),
    };
    let mut report = preflight::preflight(&subject, &args.host_keys).await?;
    if args.all_reduce && report.code() == super::code::SUCCESS {
        let cell = all_reduce::try_it(hosts_from, &draft, &report, &args).await?;
        report.last = Some(("all_reduce", cell));
    }
    if args.json {
        for line in preflight::as_json(&report, &locator, &draft.run.0, wall_time()) {
            print::stdout(&line.to_string());
        }
        preflight::complain(&report, &locator);
    } else {
        preflight::print(&report, &locator);
        if report.count(Grade::Failed) == 0 {
            print::stdout(&format!(
                "\n{} hosts checked in {:.2} s, {} warnings",
                report.hosts.len(),
                report.took.as_secs_f64(),
                report.count(Grade::Warning)
            ));
        }
    }
    preflight::verdict(&report, &locator)?;
    Ok(report.code())
}
