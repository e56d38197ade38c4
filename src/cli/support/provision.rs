//! Uploads to hosts before anything runs there: agent, trainer, code, libtorch, the resolved experiment.
//! Files are named by content and sent to all hosts in parallel; existing ones are not sent again, and a
//! broken link costs a piece of a file.

use crate::cli::args::HostKeyArgs;
use crate::cli::support::preflight::PushedCode;
use crate::cli::support::prompt::ProgressPrompter;
use crate::cli::support::run_index::own_binary;
use crate::cli::support::{Failure, git};
use rankdeck_config::locate::Locator;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, AgentReply, Links, Prompter, Upload};
use rankdeck_proto::examination::CodeFinding;
use rankdeck_proto::folders;
use rankdeck_proto::pack::{self, Pack};
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use std::path::Path;
use std::sync::Arc;

/// Code that was packed on this machine.
#[derive(Debug)]
pub(crate) struct PackedCode {
    /// Its pack, in this machine's cache.
    pub(crate) pack: Pack,
    /// What a preflight needs from it.
    pub(crate) code: PushedCode,
}

/// Packs `launch.code`, if set.
pub(crate) fn pack_code(
    draft: &PlanDraft,
    experiment: &ExperimentSource,
) -> Result<Option<PackedCode>, Failure> {
    let launch = &draft.experiment.launch;
    let Some(folder) = launch.code.as_ref().and_then(Code::path) else { return Ok(None) };
    let folder = match folder.strip_prefix("~/").or((folder == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => experiment.folder().join(folder),
    };
    if !folder.is_dir() {
        let place = Locator::new(&HostsSource::Here, experiment).place("launch.code");
        return Err(Failure::usage(format!("`launch.code`: {} is not a directory", folder.display())).hint(
            format!("{place}: the path is relative to the directory of that file; `code = \".\"` copies the directory itself"),
        ));
    }
    let mut exclude: Vec<String> = pack::EXCLUDED.map(str::to_owned).to_vec();
    exclude.extend(launch.exclude.iter().cloned());
    let ignored = git::ignored(&folder);
    // Included files may be in a directory that git ignores as a whole.
    let kept = |path: &str| {
        !launch.include.is_empty() && (pack::matches(path, &launch.include) || folder.join(path).is_dir())
    };
    let pack =
        pack::make(&folder, &|path| !pack::matches(path, &exclude) && (!ignored.covers(path) || kept(path)))
            .map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    let script = rankdeck_agent::examine::script_of(&launch.command);
    let program = launch.command.first().map(String::as_str).filter(|program| program.contains('/'));
    let has_script = [script, program].into_iter().flatten().all(|script| {
        Path::new(script).is_absolute() || (folder.join(script).is_file() && !pack::matches(script, &exclude))
    });
    let imports = script.map(|script| imports(&folder, script)).unwrap_or_default();
    let code = PushedCode { hash: pack.hash.clone(), has_script, imports };
    Ok(Some(PackedCode { pack, code }))
}

/// Returns the packages that a script of `folder` imports from elsewhere.
fn imports(folder: &Path, script: &str) -> Vec<String> {
    let path = folder.join(script);
    let script_dir = path.parent().unwrap_or(folder).to_owned();
    let own = |name: &str| {
        [folder, &script_dir]
            .iter()
            .any(|at| at.join(name).is_dir() || at.join(format!("{name}.py")).is_file())
    };
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut names =
        if script.ends_with(".py") { rankdeck_agent::examine::imports_of(&text) } else { Vec::new() };
    names.retain(|name| !own(name));
    names
}

/// Returns the value of `launch.code` for agents: the pack instead of a local directory.
pub(crate) fn by_hash(packed: &PackedCode) -> Code {
    Code::Pack(packed.pack.hash.clone())
}

/// Returns the upload of a pack.
pub(crate) fn upload(pack: &Pack) -> Upload {
    Upload { path: pack.path.clone(), folder: "packs".into(), name: format!("{}.pack", pack.hash) }
}

/// Calls every host in parallel; replies are in host order.
pub(crate) async fn call_all(
    hosts: &[Host],
    prompter: &Arc<dyn Prompter>,
    make: impl Fn(&Host) -> AgentCommand,
) -> Result<Vec<Result<AgentReply, HintedError>>, Failure> {
    let binary = own_binary()?;
    Ok(Links::from_environment().call_all(hosts, &binary, prompter, |_, host| make(host)).await)
}

pub(crate) fn no_question() -> Vec<u8> {
    br#"{"workdir":"."}"#.to_vec()
}

/// Uploads the code to the hosts that lack it.
pub(crate) async fn bring_code(
    hosts: &[&Host],
    packed: &PackedCode,
    host_keys: &HostKeyArgs,
) -> Result<(), Failure> {
    if hosts.is_empty() {
        return Ok(());
    }
    let hosts: Vec<Host> = hosts.iter().map(|host| (*host).clone()).collect();
    let prompter: Arc<dyn Prompter> = ProgressPrompter::new(host_keys);
    let code = upload(&packed.pack);
    let answers = call_all(&hosts, &prompter, |_| AgentCommand {
        args: vec!["examine".into()],
        input: no_question(),
        uploads: vec![code.clone()],
        ..AgentCommand::default()
    })
    .await?;
    answers.into_iter().collect::<Result<Vec<_>, _>>().map(drop).map_err(Failure::from)
}

/// Returns the hosts without the code, according to a preflight.
pub(crate) fn lacking(hosts: &[Host], codes: impl Iterator<Item = Option<CodeFinding>>) -> Vec<&Host> {
    hosts
        .iter()
        .zip(codes)
        .filter(|(_, code)| !code.as_ref().is_some_and(|code| code.pushed))
        .map(|(host, _)| host)
        .collect()
}
