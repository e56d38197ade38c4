//! What hosts get before anything runs there: agent, trainer, code, libtorch, the resolved experiment. All of it is named by content and goes to all
//! hosts at once; what is there is not sent again, and a broken link costs a piece of a file, not the file.

use super::args::{MeetArgs, PushArgs};
use super::preflight::PushedCode;
use super::prompt::Progress;
use super::roster::{self, load_hosts, own_binary, trainer_binary};
use super::run::new_run_id;
use super::{Failure, code, print};
use rankdeck_config::HostsSource;
use rankdeck_link::{Answer, Call, Cargo, LinkError, Prompter};
use rankdeck_proto::examination::Code;
use rankdeck_proto::folders;
use rankdeck_proto::pack;
use rankdeck_proto::pack::{BY_HASH, Pack};
use rankdeck_tui::text::bytes;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Code that was packed here.
#[derive(Debug)]
pub struct Packed {
    /// Its pack, in this machine's cache.
    pub pack: Pack,
    /// What a preflight wants to know of it.
    pub code: PushedCode,
}

/// Packs `launch.code`, when there is one.
pub fn pack_code(draft: &PlanDraft, experiment: &Path) -> Result<Option<Packed>, Failure> {
    let launch = &draft.experiment.launch;
    let Some(folder) = &launch.code else { return Ok(None) };
    let folder = experiment.parent().unwrap_or(Path::new(".")).join(folder);
    if !folder.is_dir() {
        return Err(Failure::usage(format!("`launch.code`: {} is no folder", folder.display()))
            .hint("it begins at the experiment file's own folder"));
    }
    let mut exclude: Vec<String> = pack::EXCLUDED.map(str::to_owned).to_vec();
    exclude.extend(launch.exclude.iter().cloned());
    let pack = pack::make(&folder, &|path| !pack::matches(path, &exclude))
        .map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    let script = rankdeck_agent::examine::script_of(&launch.command);
    let has_script = script.is_none_or(|script| {
        Path::new(script).is_absolute() || (folder.join(script).is_file() && !pack::matches(script, &exclude))
    });
    let code = PushedCode { hash: pack.hash.clone(), has_script };
    Ok(Some(Packed { pack, code }))
}

/// What agents are to find in the launch instead of a folder of this machine.
pub fn by_hash(packed: &Packed) -> String {
    format!("{BY_HASH}{}", packed.pack.hash)
}

/// A pack on its way.
pub fn cargo(pack: &Pack) -> Cargo {
    Cargo { path: pack.path.clone(), folder: "packs".into(), name: format!("{}.pack", pack.hash) }
}

/// Makes one call to every host at once; answers in host order.
async fn call_all(
    hosts: &[Host],
    prompter: &Arc<dyn Prompter>,
    make: impl Fn(&Host) -> Call,
) -> Result<Vec<Result<Answer, LinkError>>, Failure> {
    let binary = own_binary()?;
    let tasks: Vec<_> = hosts
        .iter()
        .map(|host| {
            let (host, binary, call, prompter) = (host.clone(), binary.clone(), make(host), prompter.clone());
            tokio::spawn(async move { rankdeck_link::call(&host, &binary, call, prompter).await })
        })
        .collect();
    let mut answers = Vec::with_capacity(tasks.len());
    for (task, host) in tasks.into_iter().zip(hosts) {
        answers.push(task.await.unwrap_or_else(|error| {
            Err(LinkError { error: format!("host {}: {error}", host.name), hint: String::new() })
        }));
    }
    Ok(answers)
}

fn no_question() -> Vec<u8> {
    br#"{"workdir":"."}"#.to_vec()
}

/// Brings the code to the hosts that lack it, before a launch.
pub async fn bring_code(hosts: &[&Host], packed: &Packed, meet: &MeetArgs) -> Result<(), Failure> {
    if hosts.is_empty() {
        return Ok(());
    }
    let hosts: Vec<Host> = hosts.iter().map(|host| (*host).clone()).collect();
    let prompter: Arc<dyn Prompter> = Progress::new(meet);
    let cargo = cargo(&packed.pack);
    let answers = call_all(&hosts, &prompter, |_| Call {
        args: vec!["examine".into()],
        input: no_question(),
        cargo: vec![cargo.clone()],
        ..Call::default()
    })
    .await?;
    answers.into_iter().collect::<Result<Vec<_>, _>>().map(drop).map_err(Failure::from)
}

/// `rankdeck push`.
pub async fn push(hosts_from: &HostsSource, args: PushArgs) -> Result<u8, Failure> {
    let mut cargoes = Vec::new();
    let mut lines = Vec::new();
    let mut builtin = true;
    let hosts = match &args.experiment {
        None => load_hosts(hosts_from)?,
        Some(experiment) => {
            let mut draft = rankdeck_config::load_draft(hosts_from, experiment, &args.set, |experiment| {
                new_run_id(&experiment.run.name)
            })?;
            builtin = draft.experiment.launch.command.is_empty();
            if let Some(packed) = pack_code(&draft, experiment)? {
                lines.push(format!(
                    "code {} ({} files, {})",
                    short(&packed.pack.hash),
                    packed.pack.files,
                    bytes(packed.pack.bytes)
                ));
                draft.experiment.launch.code = Some(by_hash(&packed));
                cargoes.push(cargo(&packed.pack));
            }
            let (file, name) = resolved(&draft)?;
            lines.push(format!("experiment {name}"));
            cargoes.push(Cargo { path: file, folder: "experiments".into(), name });
            draft.hosts
        }
    };
    let libtorch = args.libtorch.as_deref().map(pack_libtorch).transpose()?;
    let own = own_binary()?;
    let trainer = trainer_binary(&own).filter(|_| builtin);
    lines.insert(0, if trainer.is_some() { "agent and trainer".into() } else { "agent".into() });
    let prompter: Arc<dyn Prompter> = Progress::new(&args.meet);
    let first = call_all(&hosts, &prompter, |_| Call {
        args: vec!["examine".into()],
        input: no_question(),
        trainer: trainer.clone(),
        cargo: cargoes.clone(),
    })
    .await?;
    let mut failed = 0;
    let mut rows = vec![["HOST", "STATE", "SENT"].map(str::to_owned).to_vec()];
    let mut complaints = Vec::new();
    let mut ready = Vec::new();
    for (host, answer) in hosts.iter().zip(first) {
        match answer {
            Ok(answer) => ready.push((host.clone(), answer)),
            Err(error) => {
                failed += 1;
                rows.push(vec![host.name.clone(), "FAILED".into(), "-".into()]);
                complaints.push(error);
            }
        }
    }
    if let Some((pack, version)) = &libtorch {
        lines.push(format!("libtorch {version} ({}, {})", short(&pack.hash), bytes(pack.bytes)));
        ready = bring_libtorch(ready, pack, &prompter, &mut complaints, &mut rows, &mut failed).await?;
    }
    for (host, answer) in &ready {
        rows.push(vec![host.name.clone(), "ready".into(), bytes(answer.brought)]);
    }
    prompter_done(&prompter);
    for line in lines {
        print::stdout(&line);
    }
    print::stdout(&print::table(&rows));
    for error in &complaints {
        print::stderr(&format!("error: {}", error.error));
        if !error.hint.is_empty() {
            print::stderr(&format!("hint: {}", error.hint));
        }
    }
    if failed > 0 {
        print::stderr("hint: `rankdeck push` again sends only what is missing");
        return Ok(code::HOST);
    }
    Ok(code::SUCCESS)
}

fn prompter_done(prompter: &Arc<dyn Prompter>) {
    prompter.progress("", "", 0, 0);
}

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

/// The experiment with every default filled in, as a file named by its content.
fn resolved(draft: &PlanDraft) -> Result<(PathBuf, String), Failure> {
    use sha2::{Digest, Sha256};
    let fault = |error: String| Failure::failed(format!("cannot write the resolved experiment: {error}"));
    let text = toml::to_string(&draft.experiment).map_err(|error| fault(error.to_string()))?;
    let hash: String = Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
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
    let version =
        rankdeck_agent::examine::torch_version(folder).unwrap_or_else(|| "of unknown version".into());
    Ok((pack, version))
}

type Ready = Vec<(Host, Answer)>;

/// Brings the pack to the hosts that have no such library and unpacks it there.
async fn bring_libtorch(
    ready: Ready,
    pack: &Pack,
    prompter: &Arc<dyn Prompter>,
    complaints: &mut Vec<LinkError>,
    rows: &mut Vec<Vec<String>>,
    failed: &mut usize,
) -> Result<Ready, Failure> {
    let hosts: Vec<Host> = ready.iter().map(|(host, _)| host.clone()).collect();
    let folder = |cache: &str| format!("{cache}/{}/{}", folders::LIBTORCH, short(&pack.hash));
    let caches: std::collections::BTreeMap<&str, &str> =
        ready.iter().map(|(host, answer)| (host.name.as_str(), answer.cache.as_str())).collect();
    // The library itself says whether it is there: a configured folder that holds one passes.
    let looks = call_all(&hosts, prompter, |host| {
        let cache = caches.get(host.name.as_str()).copied().unwrap_or_default();
        let question = serde_json::json!({ "workdir": ".", "libtorch": folder(cache) });
        Call { args: vec!["examine".into()], input: question.to_string().into_bytes(), ..Call::default() }
    })
    .await?;
    let lacks: Vec<bool> = hosts
        .iter()
        .zip(&looks)
        .map(|(host, look)| {
            let findings = look.as_ref().ok().and_then(|answer| {
                roster::decode::<rankdeck_proto::examination::Findings>(host, &answer.text).ok()
            });
            !matches!(findings.and_then(|findings| findings.libtorch), Some(Ok(_)))
        })
        .collect();
    let lacking: Vec<Host> =
        hosts.iter().zip(&lacks).filter(|(_, lacks)| **lacks).map(|(host, _)| host.clone()).collect();
    let mut answers = call_all(&lacking, prompter, |host| {
        let cache = caches.get(host.name.as_str()).copied().unwrap_or_default();
        Call {
            args: ["unpack", "--hash", &pack.hash, "--into", &folder(cache)].map(str::to_owned).to_vec(),
            cargo: vec![cargo(pack)],
            ..Call::default()
        }
    })
    .await?
    .into_iter();
    let mut kept = Vec::new();
    for ((host, mut first), lacks) in ready.into_iter().zip(lacks) {
        match if lacks { answers.next() } else { None } {
            None => kept.push((host, first)),
            Some(Ok(answer)) => {
                first.brought += answer.brought;
                kept.push((host, first));
            }
            Some(Err(error)) => {
                *failed += 1;
                rows.push(vec![host.name.clone(), "FAILED".into(), "-".into()]);
                complaints.push(error);
            }
        }
    }
    Ok(kept)
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
