//! What hosts get before anything runs there: agent, trainer, code, libtorch, the resolved experiment. All of
//! it is named by content and goes to all hosts at once; what is there is not sent again, and a broken link
//! costs a piece of a file, not the file.

use super::args::{HostKeyArgs, PushArgs};
use super::preflight::PushedCode;
use super::prompt::Progress;
use super::roster::{self, load_hosts, own_binary, trainer_binary};
use super::run_id::new_run_id;
use super::{Failure, code, git, print};
use crate::shell::stderr;
use rankdeck_config::locate::Locator;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, AgentReply, Links, Prompter, Upload};
use rankdeck_proto::examination::Code;
use rankdeck_proto::folders;
use rankdeck_proto::pack;
use rankdeck_proto::pack::{BY_HASH, Pack};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::words::bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Code that was packed here.
#[derive(Debug)]
pub struct PackedCode {
    /// Its pack, in this machine's cache.
    pub pack: Pack,
    /// What a preflight wants to know of it.
    pub code: PushedCode,
}

/// Packs `launch.code`, when there is one.
pub fn pack_code(draft: &PlanDraft, experiment: &ExperimentSource) -> Result<Option<PackedCode>, Failure> {
    let launch = &draft.experiment.launch;
    let Some(folder) = &launch.code else { return Ok(None) };
    let folder = match folder.strip_prefix("~/").or((folder == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => experiment.folder().join(folder),
    };
    if !folder.is_dir() {
        let place = Locator::new(&HostsSource::Here, experiment).place("launch.code");
        return Err(Failure::usage(format!("`launch.code`: {} is not a folder", folder.display())).hint(
            format!("{place}: relative to that file's folder; `code = \".\"` copies the folder itself"),
        ));
    }
    let mut exclude: Vec<String> = pack::EXCLUDED.map(str::to_owned).to_vec();
    exclude.extend(launch.exclude.iter().cloned());
    let ignored = git::ignored(&folder);
    // What is included may lie in a folder that git ignores as a whole.
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

/// Packages that a script of `folder` imports and that do not lie in it.
fn imports(folder: &Path, script: &str) -> Vec<String> {
    let path = folder.join(script);
    let beside = path.parent().unwrap_or(folder).to_owned();
    let own = |name: &str| {
        [folder, &beside].iter().any(|at| at.join(name).is_dir() || at.join(format!("{name}.py")).is_file())
    };
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut names =
        if script.ends_with(".py") { rankdeck_agent::examine::imports_of(&text) } else { Vec::new() };
    names.retain(|name| !own(name));
    names
}

/// What agents are to find in the launch instead of a folder of this machine.
pub fn by_hash(packed: &PackedCode) -> String {
    format!("{BY_HASH}{}", packed.pack.hash)
}

/// A pack as a file that a host is to have.
pub fn upload(pack: &Pack) -> Upload {
    Upload { path: pack.path.clone(), folder: "packs".into(), name: format!("{}.pack", pack.hash) }
}

/// Makes one call to every host at once; answers in host order.
async fn call_all(
    hosts: &[Host],
    prompter: &Arc<dyn Prompter>,
    make: impl Fn(&Host) -> AgentCommand,
) -> Result<Vec<Result<AgentReply, HintedError>>, Failure> {
    let binary = own_binary()?;
    Ok(Links::from_environment().call_all(hosts, &binary, prompter, |_, host| make(host)).await)
}

fn no_question() -> Vec<u8> {
    br#"{"workdir":"."}"#.to_vec()
}

/// Brings the code to the hosts that lack it, before a launch.
pub async fn bring_code(
    hosts: &[&Host],
    packed: &PackedCode,
    host_keys: &HostKeyArgs,
) -> Result<(), Failure> {
    if hosts.is_empty() {
        return Ok(());
    }
    let hosts: Vec<Host> = hosts.iter().map(|host| (*host).clone()).collect();
    let prompter: Arc<dyn Prompter> = Progress::new(host_keys);
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

/// One host of a push.
struct Row {
    host: Host,
    /// Its latest answer, with all bytes sent so far.
    answer: Result<AgentReply, HintedError>,
}

/// What is copied to the hosts, and the lines that name it.
struct Contents {
    hosts: Vec<Host>,
    builtin: bool,
    uploads: Vec<Upload>,
    lines: Vec<String>,
}

/// Packs what the command names.
fn contents(hosts_from: &HostsSource, args: &PushArgs) -> Result<Contents, Failure> {
    let Some(experiment) = args.experiment.clone().map(ExperimentSource::File) else {
        let hosts = load_hosts(hosts_from)?;
        return Ok(Contents { hosts, builtin: true, uploads: Vec::new(), lines: Vec::new() });
    };
    let mut draft = rankdeck_config::load_draft(hosts_from, &experiment, &args.set, |experiment| {
        new_run_id(&experiment.run.name)
    })?;
    let builtin = draft.experiment.launch.command.is_empty();
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    if let Some(packed) = pack_code(&draft, &experiment)? {
        let Pack { hash, files: count, bytes: size, .. } = &packed.pack;
        lines.push(format!("code {} ({count} files, {})", short(hash), bytes(*size)));
        draft.experiment.launch.code = Some(by_hash(&packed));
        files.push(upload(&packed.pack));
    }
    let (file, name) = resolved(&draft)?;
    lines.push(format!("experiment {name}"));
    files.push(Upload { path: file, folder: "experiments".into(), name });
    Ok(Contents { hosts: draft.hosts, builtin, uploads: files, lines })
}

/// Runs `rankdeck push`: uploads binaries and code, and starts nothing.
pub async fn push(hosts_from: &HostsSource, args: PushArgs) -> Result<u8, Failure> {
    let Contents { hosts, builtin, uploads, mut lines } = contents(hosts_from, &args)?;
    let libtorch = args.libtorch.as_deref().map(pack_libtorch).transpose()?;
    let own = own_binary()?;
    let trainer = trainer_binary(&own).filter(|_| builtin);
    lines.insert(0, if trainer.is_some() { "agent and trainer".into() } else { "agent".into() });
    let prompter: Arc<dyn Prompter> = Progress::new(&args.host_keys);
    let answers = call_all(&hosts, &prompter, |_| AgentCommand {
        args: vec!["examine".into()],
        input: no_question(),
        trainer: trainer.clone(),
        uploads: uploads.clone(),
        ..AgentCommand::default()
    })
    .await?;
    let mut rows: Vec<Row> =
        hosts.into_iter().zip(answers).map(|(host, answer)| Row { host, answer }).collect();
    if let Some((pack, version)) = &libtorch {
        lines.push(format!("libtorch {version} ({}, {})", short(&pack.hash), bytes(pack.bytes)));
        bring_libtorch(&mut rows, pack, &prompter).await?;
    }
    prompter.finished();
    lines.iter().for_each(|line| {
        print::stdout(line);
    });
    Ok(report(&rows))
}

/// Prints how each host fared; returns the exit code.
fn report(rows: &[Row]) -> u8 {
    let mut table = vec![["HOST", "STATE", "SENT"].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| match &row.answer {
        Ok(answer) => vec![row.host.name.clone(), "ready".into(), bytes(answer.uploaded)],
        Err(_) => vec![row.host.name.clone(), "FAILED".into(), "-".into()],
    }));
    print::stdout(&print::table(&table));
    let errors: Vec<&HintedError> = rows.iter().filter_map(|row| row.answer.as_ref().err()).collect();
    for error in &errors {
        print::error(error);
    }
    if errors.is_empty() {
        return code::SUCCESS;
    }
    stderr::line("hint: `rankdeck push` again sends only what is missing");
    code::HOST
}

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

/// The experiment with every default filled in, as a file named by its content.
fn resolved(draft: &PlanDraft) -> Result<(PathBuf, String), Failure> {
    use sha2::{Digest, Sha256};
    let fault = |error: String| {
        Failure::failed(format!("cannot write the resolved experiment: {error}"))
            .hint("set RANKDECK_CACHE to a folder that you may write to")
    };
    let text = toml::to_string(&draft.experiment).map_err(|error| fault(error.to_string()))?;
    let hash = rankdeck_types::words::hex(&Sha256::digest(&text)[..8]);
    let folder = folders::cache().join("experiments");
    let name = format!("{}-{hash}.toml", draft.experiment.run.name);
    folders::create_private(&folder).map_err(|failure| Failure::failed(failure.error).hint(failure.hint))?;
    let path = folder.join(&name);
    std::fs::write(&path, text).map_err(|error| fault(error.to_string()))?;
    Ok((path, name))
}

/// The part of an unpacked torch folder that programs are linked with.
fn pack_libtorch(folder: &Path) -> Result<(Pack, String), Failure> {
    if !folder.join("lib/libtorch_cpu.so").exists() {
        return Err(Failure::usage(format!("no lib/libtorch_cpu.so in {}", folder.display()))
            .hint("give the unpacked torch folder of a wheel, or of a libtorch archive"));
    }
    let needed = |path: &str| {
        path == "lib" || path.starts_with("lib/") || ["version.py", "build-version"].contains(&path)
    };
    let pack =
        pack::make(folder, &needed).map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    let version = rankdeck_proto::libtorch::version(folder).unwrap_or_else(|| "of unknown version".into());
    Ok((pack, version))
}

/// Brings the pack to the hosts that have no such library and unpacks it there.
async fn bring_libtorch(rows: &mut [Row], pack: &Pack, prompter: &Arc<dyn Prompter>) -> Result<(), Failure> {
    let folder =
        |answer: &AgentReply| format!("{}/{}/{}", answer.cache, folders::LIBTORCH, short(&pack.hash));
    let by_host: BTreeMap<String, String> = rows
        .iter()
        .filter_map(|row| Some((row.host.name.clone(), folder(row.answer.as_ref().ok()?))))
        .collect();
    let folder = |host: &Host| by_host.get(&host.name).cloned().unwrap_or_default();
    let ready: Vec<Host> = rows.iter().filter(|row| row.answer.is_ok()).map(|row| row.host.clone()).collect();
    // The library itself says whether it is there: a configured folder that holds one passes.
    let looks = call_all(&ready, prompter, |host| {
        let question = serde_json::json!({ "workdir": ".", "libtorch": folder(host) });
        AgentCommand {
            args: vec!["examine".into()],
            input: question.to_string().into_bytes(),
            ..AgentCommand::default()
        }
    })
    .await?;
    let lacks = |host: &Host, look: &Result<AgentReply, HintedError>| {
        let findings = look.as_ref().ok().and_then(|answer| {
            roster::decode::<rankdeck_proto::examination::Findings>(host, &answer.text).ok()
        });
        !matches!(findings.and_then(|findings| findings.libtorch), Some(Ok(_)))
    };
    let lacking: Vec<Host> = ready
        .iter()
        .zip(&looks)
        .filter(|(host, look)| lacks(host, look))
        .map(|(host, _)| host.clone())
        .collect();
    let answers = call_all(&lacking, prompter, |host| AgentCommand {
        args: ["unpack", "--hash", &pack.hash, "--into", &folder(host)].map(str::to_owned).to_vec(),
        uploads: vec![upload(pack)],
        ..AgentCommand::default()
    })
    .await?;
    for (host, answer) in lacking.iter().zip(answers) {
        let Some(row) = rows.iter_mut().find(|row| row.host.name == host.name) else { continue };
        match (&mut row.answer, answer) {
            (Ok(first), Ok(answer)) => first.uploaded += answer.uploaded,
            (_, Err(error)) => row.answer = Err(error),
            (Err(_), Ok(_)) => {}
        }
    }
    Ok(())
}

/// Hosts that a preflight found without the code.
pub fn lacking(hosts: &[Host], codes: impl Iterator<Item = Option<Code>>) -> Vec<&Host> {
    hosts
        .iter()
        .zip(codes)
        .filter(|(_, code)| !code.as_ref().is_some_and(|code| code.pushed))
        .map(|(host, _)| host)
        .collect()
}
