//! A launch before any host is queried: the draft of its plan and its code, from one command line. `run` and
//! `drill` take the same way.

use crate::cli::args::promises::RequiredPromises;
use crate::cli::support::provision::{self, PackedCode};
use crate::cli::support::work_place::{self, WorkPlace};
use crate::cli::support::{Failure, contract};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_types::code::Code;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;

/// The options of a launch.
pub(crate) struct LaunchOptions<'a> {
    /// Overrides, `KEY=VALUE`.
    pub(crate) sets: &'a [String],
    /// Hosts of `--exclude`.
    pub(crate) exclude: &'a [String],
    /// Promises that the command line needs.
    pub(crate) needs: &'a RequiredPromises,
    /// It is a trial of a sweep.
    pub(crate) is_trial: bool,
    /// The run may be broken on purpose.
    pub(crate) drill: bool,
    /// Print no notes.
    pub(crate) quiet: bool,
}

/// Loads and checks hosts and experiment, and packs the code.
pub(crate) fn drafted(
    hosts_from: &HostsSource,
    experiment: &ExperimentSource,
    options: &LaunchOptions<'_>,
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<(PlanDraft, Option<PackedCode>), Failure> {
    let mut draft = rankdeck_config::load_draft(hosts_from, experiment, options.sets, run)?;
    if options.drill {
        in_a_copy(&mut draft, options.exclude)?;
    }
    contract::complete(&mut draft, hosts_from, experiment, options.needs)?;
    let mut draft = leave_out(draft, options.exclude)?;
    let is_apart = options.is_trial || options.drill;
    let packed = match work_place::decide(&mut draft, experiment, is_apart, options.quiet) {
        WorkPlace::Own => None,
        WorkPlace::Copy => provision::pack_code(&draft, experiment)?,
    };
    Ok((draft, packed))
}

/// Makes a drill of a launch. Its program runs in a copy of the code, also where it would run in place.
fn in_a_copy(draft: &mut PlanDraft, exclude: &[String]) -> Result<(), Failure> {
    draft.drill = true;
    let launch = &mut draft.experiment.launch;
    if launch.command.is_empty() || launch.code.is_some() {
        return Ok(());
    }
    let mut members = draft.hosts.iter().filter(|host| !exclude.contains(&host.name));
    let folder = members.next().filter(|first| {
        let is_here = |host: &Host| host.transport == Transport::Local && host.workdir == first.workdir;
        is_here(first) && members.all(is_here)
    });
    let Some(folder) = folder.map(|host| host.workdir.clone()) else {
        return Err(Failure::usage("a drill runs in a copy of the code, but `launch.code` is not set").hint(
            "set `launch.code` to the directory of the program, or run the command in that directory",
        ));
    };
    let place = if folder.is_empty() { ".".to_owned() } else { folder };
    let absolute = std::path::absolute(&place).ok().and_then(|path| path.to_str().map(str::to_owned));
    let path = if place.starts_with('~') { place } else { absolute.unwrap_or(place) };
    launch.code = Some(Code::Path(path));
    Ok(())
}

/// Marks the hosts of `--exclude`: they keep their node ranks and can be added later.
fn leave_out(mut draft: PlanDraft, names: &[String]) -> Result<PlanDraft, Failure> {
    for name in names {
        if !draft.hosts.iter().any(|host| host.name == *name) {
            return Err(Failure::usage(format!("unknown host `{name}` in `--exclude`"))
                .hint("use a `name` of the hosts file"));
        }
        draft.excluded.insert(name.clone());
    }
    match draft.problems(&[]).into_iter().next() {
        Some(problem) if !names.is_empty() => Err(problem.into()),
        _ => Ok(draft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::code::USAGE;

    fn draft() -> PlanDraft {
        let experiment = "[run]\nname = \"t\"\n[launch]\ncommand = [\"python3\", \"train.py\"]";
        let host = |name: &str| Host { name: name.into(), ..Host::default() };
        PlanDraft {
            run: RunId("t-1".into()),
            experiment: toml::from_str(experiment).unwrap(),
            hosts: vec![host("a"), host("b")],
            excluded: Default::default(),
            resume: None,
            program: None,
            asked: Default::default(),
            drill: false,
        }
    }

    #[test]
    fn drill_runs_in_a_copy_of_the_code() {
        let of = |change: &dyn Fn(&mut PlanDraft)| {
            let mut draft = draft();
            change(&mut draft);
            in_a_copy(&mut draft, &[])
                .map(|()| (draft.drill, draft.experiment.launch.code))
                .map_err(|why| why.code)
        };
        let code = |path: &str| Ok((true, Some(Code::Path(path.to_owned()))));
        let local = |draft: &mut PlanDraft, workdirs: [&str; 2]| {
            for (host, workdir) in draft.hosts.iter_mut().zip(workdirs) {
                (host.transport, host.workdir) = (Transport::Local, workdir.to_owned());
            }
        };
        assert_eq!(of(&|draft| local(draft, ["/w", "/w"])), code("/w"));
        assert_eq!(of(&|draft| local(draft, ["~/w", "~/w"])), code("~/w"));
        assert_eq!(of(&|draft| draft.experiment.launch.code = Some(Code::Path("src".into()))), code("src"));
        assert_eq!(of(&|draft| draft.experiment.launch.command.clear()), Ok((true, None)), "the trainer");
        // A program that only the hosts have cannot be copied from here.
        assert_eq!(of(&|_| {}), Err(USAGE));
        assert_eq!(of(&|draft| local(draft, ["/w", "/v"])), Err(USAGE));
    }
}
