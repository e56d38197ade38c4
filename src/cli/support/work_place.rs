//! Where ranks of a script work: in the user's own directory, or in a folder of the run on each host.
//!
//! - PLACE-1: a single run of which all ranks are on this machine works in place, as in a shell. Trials of a sweep,
//!   and a run while another one of its name works there, get a copy of the code.

use crate::app::stderr;
use crate::cli::support::{provision, sources};
use rankdeck_config::ExperimentSource;
use rankdeck_types::code::Code;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::words::{clean, hex};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Where ranks work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkPlace {
    /// In the user's own code on this machine, or in the directory that the hosts file names: nothing is uploaded.
    Own,
    /// In a copy of the code.
    Copy,
}

/// Decides, and sets the draft's code accordingly (PLACE-1). `quiet`: prints nothing.
pub(crate) fn decide(
    draft: &mut PlanDraft,
    source: &ExperimentSource,
    is_trial: bool,
    quiet: bool,
) -> WorkPlace {
    let live = |workdir: &Path, name: &str, folder: &Path| rankdeck_agent::live_run_in(workdir, name, folder);
    let (place, owner) = decided(draft, source, is_trial, &live);
    if let Some(owner) = owner.filter(|_| !quiet) {
        stderr::line(&clean(&format!(
            "note: run {owner} works in this directory; this run works in a copy, without files that git ignores"
        )));
    }
    place
}

/// Also returns the run because of which it is a copy.
fn decided(
    draft: &mut PlanDraft,
    source: &ExperimentSource,
    is_trial: bool,
    live: &dyn Fn(&Path, &str, &Path) -> Option<String>,
) -> (WorkPlace, Option<String>) {
    let launch = &draft.experiment.launch;
    let is_here = draft.hosts.iter().all(|host| host.transport == Transport::Local);
    let code = launch.code.as_ref().and_then(Code::path);
    if launch.command.is_empty() || !is_here || is_trial {
        return (if code.is_some() { WorkPlace::Copy } else { WorkPlace::Own }, None);
    }
    let folder = code.map(|code| provision::code_folder(code, source));
    // A wrong directory is reported when it is packed.
    let Ok(own) = folder.as_deref().map(Path::canonicalize).transpose() else {
        return (WorkPlace::Copy, None);
    };
    let name = &draft.experiment.run.name;
    let owner = draft.hosts.iter().find_map(|host| {
        let workdir = workdir(host);
        live(&workdir, name, own.as_deref().unwrap_or(&workdir))
    });
    let ExperimentSource::Command { words, .. } = source else {
        return match (own, owner) {
            (None, _) => (WorkPlace::Own, None),
            (Some(_), Some(owner)) => (WorkPlace::Copy, Some(owner)),
            (Some(own), None) => (in_place(draft, own), None),
        };
    };
    match (own, owner) {
        (_, Some(owner)) if code.is_some() || sources::is_here(words, Path::new("")) => {
            draft.experiment.launch.code.get_or_insert_with(|| Code::Path(".".into()));
            (WorkPlace::Copy, Some(owner))
        }
        (Some(own), _) => (in_place(draft, own), None),
        (None, _) => (WorkPlace::Own, None),
    }
}

/// Ranks work in this directory.
fn in_place(draft: &mut PlanDraft, folder: PathBuf) -> WorkPlace {
    match folder.to_str() {
        Some(path) if folder.is_dir() => {
            draft.experiment.launch.code = Some(Code::Path(path.to_owned()));
            WorkPlace::Own
        }
        _ => WorkPlace::Copy,
    }
}

/// The working directory of a host that is this machine.
pub(crate) fn workdir(host: &Host) -> PathBuf {
    let workdir = if host.workdir.is_empty() { "." } else { &host.workdir };
    let path = match workdir.strip_prefix("~/").or((workdir == "~").then_some("")) {
        Some(rest) => rankdeck_proto::folders::home().join(rest),
        None => PathBuf::from(workdir),
    };
    std::path::absolute(&path).unwrap_or(path)
}

/// The name of the folder in which a trial works, below `WORKDIR/work`: trials with other values have another one,
/// so that none continues what it did not begin. Values may be secrets, so only their hash is in it.
pub(crate) fn of_trial(trial: &str, sets: &[String]) -> String {
    let digest = Sha256::digest(sets.join("\n").as_bytes());
    format!("{trial}-{}", hex(&digest[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::RunId;

    fn draft(transport: Transport, code: Option<&str>, folder: &Path) -> PlanDraft {
        let host =
            Host { name: "a".into(), transport, workdir: folder.display().to_string(), ..Host::default() };
        let mut experiment: rankdeck_types::experiment::Experiment =
            toml::from_str("[run]\nname = \"ppo\"\n[launch]\ncommand = [\"python3\", \"train.py\"]").unwrap();
        experiment.launch.code = code.map(|code| Code::Path(code.into()));
        PlanDraft {
            run: RunId("ppo-1".into()),
            experiment,
            hosts: vec![host],
            excluded: Default::default(),
            resume: None,
            program: None,
            asked: Default::default(),
            drill: false,
        }
    }

    #[test]
    fn place_1_single_local_run_works_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let source = ExperimentSource::File(root.join("ppo.toml"));
        let decided = |transport, code: Option<&str>, is_trial, live: Option<&str>| {
            let mut draft = draft(transport, code, &root);
            let live = |_: &Path, name: &str, place: &Path| {
                assert_eq!((name, place), ("ppo", &*root));
                live.map(str::to_owned)
            };
            let (place, owner) = decided(&mut draft, &source, is_trial, &live);
            (place, draft.experiment.launch.code, owner)
        };
        let path = |text: &str| Some(Code::Path(text.to_owned()));
        let own = path(root.to_str().unwrap());
        let (local, ssh) = (Transport::Local, Transport::Ssh);
        assert_eq!(decided(local, Some("."), false, None), (WorkPlace::Own, own, None));
        assert_eq!(decided(ssh, Some("."), false, None), (WorkPlace::Copy, path("."), None));
        assert_eq!(decided(local, Some("."), true, None), (WorkPlace::Copy, path("."), None), "a trial");
        let second = decided(local, Some("."), false, Some("ppo-0"));
        assert_eq!(second, (WorkPlace::Copy, path("."), Some("ppo-0".into())));
        // In the directory that the hosts file names, even if another run works there.
        assert_eq!(decided(local, None, false, Some("ppo-0")), (WorkPlace::Own, None, None));
        assert_eq!(decided(local, Some("none"), false, None), (WorkPlace::Copy, path("none"), None));
    }

    #[test]
    fn trials_with_other_values_have_other_folders() {
        let of =
            |sets: &[&str]| of_trial("lr/3", &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["run.seed=1"]), of(&["run.seed=1"]));
        assert_ne!(of(&["run.seed=1"]), of(&["run.seed=2"]));
        assert!(
            of(&["launch.env.TOKEN=secret"]).starts_with("lr/3-") && !of(&["x=secret"]).contains("secret")
        );
    }
}
