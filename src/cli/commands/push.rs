//! `rankdeck push`: uploads the agent, trainer, code and libtorch to all hosts.

use crate::app::stderr;
use crate::cli::args::{PrintArgs, PushArgs};
use crate::cli::support::preflight::MANY;
use crate::cli::support::prompt::ProgressPrompter;
use crate::cli::support::provision::{by_hash, call_all, no_question, pack_code, upload};
use crate::cli::support::run_index::{self, load_hosts, own_binary, trainer_binary};
use crate::cli::support::run_name::new_run_id;
use crate::cli::support::{Failure, code, print};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, AgentReply, Prompter, Upload};
use rankdeck_proto::pack::{self, Pack};
use rankdeck_proto::{folders, trust};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::words::{bytes, plural};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One host of a push.
struct PushRow {
    host: Host,
    /// Its latest reply, with all bytes sent so far.
    answer: Result<AgentReply, HintedError>,
}

/// What is uploaded, and the lines that describe it.
struct UploadContents {
    hosts: Vec<Host>,
    builtin: bool,
    uploads: Vec<Upload>,
    lines: Vec<String>,
}

/// Packs the files of the command.
fn contents(hosts_from: &HostsSource, args: &PushArgs) -> Result<UploadContents, Failure> {
    let Some(experiment) = args.experiment.clone().map(ExperimentSource::File) else {
        let hosts = load_hosts(hosts_from)?;
        return Ok(UploadContents { hosts, builtin: true, uploads: Vec::new(), lines: Vec::new() });
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
    Ok(UploadContents { hosts: draft.hosts, builtin, uploads: files, lines })
}

/// Runs `rankdeck push`.
pub(crate) async fn push(hosts_from: &HostsSource, args: PushArgs) -> Result<u8, Failure> {
    let UploadContents { hosts, builtin, uploads, mut lines } = contents(hosts_from, &args)?;
    let libtorch = args.libtorch.as_deref().map(pack_libtorch).transpose()?;
    let own = own_binary()?;
    let trainer = trainer_binary(&own).filter(|_| builtin);
    lines.insert(0, if trainer.is_some() { "agent and trainer".into() } else { "agent".into() });
    let prompter: Arc<dyn Prompter> = ProgressPrompter::new(&args.host_keys);
    let answers = call_all(&hosts, &prompter, |_| AgentCommand {
        args: vec!["examine".into()],
        input: no_question(),
        trainer: trainer.clone(),
        uploads: uploads.clone(),
        ..AgentCommand::default()
    })
    .await?;
    let mut rows: Vec<PushRow> =
        hosts.into_iter().zip(answers).map(|(host, answer)| PushRow { host, answer }).collect();
    if let Some((pack, version)) = &libtorch {
        lines.push(format!("libtorch {version} ({}, {})", short(&pack.hash), bytes(pack.bytes)));
        bring_libtorch(&mut rows, pack, &prompter).await?;
    }
    prompter.finished();
    lines.iter().for_each(|line| args.output.detail(line));
    Ok(report(&rows, args.output))
}

/// Prints the result of each host; returns the exit code.
fn report(rows: &[PushRow], output: PrintArgs) -> u8 {
    for row in rows {
        output.record(|| {
            let sent = row.answer.as_ref().ok().map(|answer| answer.uploaded);
            let error = row.answer.as_ref().err().map(|error| &error.error);
            json!({ "kind": "pushed", "host": row.host.name, "sent": sent, "error": error })
        });
    }
    let mut table = vec![["HOST", "STATE", "SENT"].map(str::to_owned).to_vec()];
    let is_shown = |row: &&PushRow| rows.len() <= MANY || row.answer.is_err();
    table.extend(rows.iter().filter(is_shown).map(|row| match &row.answer {
        Ok(answer) => vec![row.host.name.clone(), "ready".into(), bytes(answer.uploaded)],
        Err(_) => vec![row.host.name.clone(), "FAILED".into(), "-".into()],
    }));
    if !output.json && table.len() > 1 {
        print::text(&print::table(&table));
    }
    if rows.len() > MANY {
        let ready = rows.iter().filter(|row| row.answer.is_ok()).count();
        output.outcome(&format!("{ready} of {} ready", plural(rows.len(), "host")));
    }
    let errors: Vec<&HintedError> = rows.iter().filter_map(|row| row.answer.as_ref().err()).collect();
    print::errors(errors.iter().copied());
    if errors.is_empty() {
        return code::SUCCESS;
    }
    stderr::line("hint: run `rankdeck push` again; files that arrived are not sent twice");
    code::HOST
}

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

/// Writes the experiment with all defaults filled in, as a file named by its content.
fn resolved(draft: &PlanDraft) -> Result<(PathBuf, String), Failure> {
    use sha2::{Digest, Sha256};
    let fault = |error: String| {
        Failure::failed(format!("cannot write the resolved experiment: {error}"))
            .hint("set RANKDECK_CACHE to a writable directory")
    };
    let text = toml::to_string(&draft.experiment).map_err(|error| fault(error.to_string()))?;
    let hash = rankdeck_types::words::hex(&Sha256::digest(&text)[..8]);
    let folder = folders::private_cache("experiments")
        .map_err(|failure| Failure::failed(failure.error).hint(failure.hint))?;
    let name = format!("{}-{hash}.toml", draft.experiment.run.name);
    let path = folder.join(&name);
    let written = trust::create(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| fault(error.to_string()))?;
    Ok((path, name))
}

/// Packs the part of an unpacked torch directory that programs link with.
fn pack_libtorch(folder: &Path) -> Result<(Pack, String), Failure> {
    if !folder.join("lib/libtorch_cpu.so").exists() {
        return Err(Failure::usage(format!("lib/libtorch_cpu.so not found in {}", folder.display()))
            .hint("pass an unpacked torch wheel or libtorch archive"));
    }
    let needed = |path: &str| {
        path == "lib" || path.starts_with("lib/") || ["version.py", "build-version"].contains(&path)
    };
    let pack =
        pack::make(folder, &needed).map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    let version = rankdeck_proto::libtorch::version(folder).unwrap_or_else(|| "unknown version".into());
    Ok((pack, version))
}

/// Uploads and unpacks libtorch on the hosts that lack it.
async fn bring_libtorch(
    rows: &mut [PushRow],
    pack: &Pack,
    prompter: &Arc<dyn Prompter>,
) -> Result<(), Failure> {
    let folder =
        |answer: &AgentReply| format!("{}/{}/{}", answer.cache, folders::LIBTORCH, short(&pack.hash));
    let by_host: BTreeMap<String, String> = rows
        .iter()
        .filter_map(|row| Some((row.host.name.clone(), folder(row.answer.as_ref().ok()?))))
        .collect();
    let folder = |host: &Host| by_host.get(&host.name).cloned().unwrap_or_default();
    let ready: Vec<Host> = rows.iter().filter(|row| row.answer.is_ok()).map(|row| row.host.clone()).collect();
    // The library itself decides whether it exists: a configured directory that contains one passes.
    let replies = call_all(&ready, prompter, |host| {
        let question = serde_json::json!({ "workdir": ".", "libtorch": folder(host) });
        AgentCommand {
            args: vec!["examine".into()],
            input: question.to_string().into_bytes(),
            ..AgentCommand::default()
        }
    })
    .await?;
    let lacks = |host: &Host, reply: &Result<AgentReply, HintedError>| {
        let findings = reply.as_ref().ok().and_then(|answer| {
            run_index::decode::<rankdeck_proto::examination::HostFindings>(host, &answer.text).ok()
        });
        !matches!(findings.and_then(|findings| findings.libtorch), Some(Ok(_)))
    };
    let lacking: Vec<Host> = ready
        .iter()
        .zip(&replies)
        .filter(|(host, reply)| lacks(host, reply))
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
