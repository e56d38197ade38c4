//! Uploads to hosts before anything runs there: agent, trainer, code, libtorch, the resolved experiment.
//! Files are named by content and sent to all hosts in parallel; existing ones are not sent again, and a
//! broken link costs a piece of a file.

use crate::cli::args::HostKeyArgs;
use crate::cli::support::git::{self, IgnoredPaths};
use crate::cli::support::preflight::PushedCode;
use crate::cli::support::prompt::ProgressPrompter;
use crate::cli::support::run_index::own_binary;
use crate::cli::support::{Failure, work_place};
use rankdeck_config::Locator;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, AgentReply, Links, Prompter, Upload};
use rankdeck_proto::examination::CodeFinding;
use rankdeck_proto::folders;
use rankdeck_proto::pack::{self, Pack};
use rankdeck_proto::regular;
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::words::clean;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Code that was packed on this machine.
#[derive(Debug)]
pub(crate) struct PackedCode {
    /// Its directory.
    pub(crate) folder: PathBuf,
    /// Its pack, in this machine's cache.
    pub(crate) pack: Pack,
    /// What a preflight needs from it.
    pub(crate) code: PushedCode,
}

/// Selects the files of a code directory that are uploaded.
pub(crate) struct CodeSelection {
    folder: PathBuf,
    exclude: Vec<String>,
    include: Vec<String>,
    ignored: IgnoredPaths,
}

impl CodeSelection {
    /// For `launch.exclude` and `launch.include`.
    pub(crate) fn new(folder: &Path, exclude: &[String], include: &[String]) -> CodeSelection {
        CodeSelection {
            folder: folder.to_owned(),
            exclude: pack::EXCLUDED
                .iter()
                .map(|name| (*name).to_owned())
                .chain(exclude.iter().cloned())
                .collect(),
            include: include.to_vec(),
            ignored: git::ignored(folder),
        }
    }

    /// Whether a file is uploaded, or a directory entered.
    pub(crate) fn keeps(&self, path: &str) -> bool {
        // Included files may be in a directory that git ignores as a whole.
        let kept = || {
            !self.include.is_empty()
                && (pack::matches(path, &self.include) || self.folder.join(path).is_dir())
        };
        !pack::matches(path, &self.exclude) && (!self.ignored.covers(path) || kept())
    }
}

/// The directory of `launch.code`.
pub(crate) fn code_folder(code: &str, experiment: &ExperimentSource) -> PathBuf {
    match code.strip_prefix("~/").or((code == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => experiment.folder().join(code),
    }
}

/// Returns what a directory is that holds more than a project.
fn too_wide(folder: &Path, home: &Path) -> Option<&'static str> {
    let real = folder.canonicalize().ok()?;
    match real.parent() {
        None => Some("the root directory"),
        Some(_) if home.canonicalize().is_ok_and(|home| home == real) => Some("your home directory"),
        Some(_) => None,
    }
}

/// Where runs of this machine work in copies, as paths in `folder`.
fn work_folders(draft: &PlanDraft, folder: &Path) -> Vec<String> {
    let local = draft.hosts.iter().filter(|host| host.transport == Transport::Local);
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let below = |host: &Host| {
        let work = work_place::workdir(host).join("work");
        Some(work.strip_prefix(&folder).ok()?.to_str()?.to_owned())
    };
    local.filter_map(below).collect()
}

/// A folder in which runs work, or what is noted next to it.
fn is_of_runs(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_note = name.starts_with('.') && (name.ends_with(".pack.json") || name.ends_with(".lock"));
    is_note || path.with_file_name(format!(".{name}.pack.json")).exists()
}

/// Packs `launch.code`, if set.
pub(crate) fn pack_code(
    draft: &PlanDraft,
    experiment: &ExperimentSource,
) -> Result<Option<PackedCode>, Failure> {
    let launch = &draft.experiment.launch;
    let Some(folder) = launch.code.as_ref().and_then(Code::path) else { return Ok(None) };
    let folder = code_folder(folder, experiment);
    if !folder.is_dir() {
        let place = Locator::new(&HostsSource::Here, experiment).place("launch.code");
        return Err(Failure::usage(format!("`launch.code`: {} is not a directory", folder.display())).hint(
            format!("{place}: the path is relative to the directory of that file; `code = \".\"` copies the directory itself"),
        ));
    }
    if let Some(what) = too_wide(&folder, &folders::home()) {
        let place = || Locator::new(&HostsSource::Here, experiment).place("launch.code");
        let hint = match experiment {
            ExperimentSource::Command { .. } => "run it from a project directory".to_owned(),
            ExperimentSource::File(_) => format!("{}: set a project directory", place()),
        };
        let error = format!("`launch.code` is {what}: {}", folder.display());
        return Err(Failure::usage(error).hint(hint));
    }
    let never = pack::EXCLUDED.map(str::to_owned);
    let selection = CodeSelection::new(&folder, &launch.exclude, &launch.include);
    let work = work_folders(draft, &folder);
    let of_runs = |path: &str| {
        let is_inside =
            |work: &String| path.strip_prefix(work.as_str()).is_some_and(|rest| rest.starts_with('/'));
        work.iter().any(is_inside) && is_of_runs(&folder.join(path))
    };
    let keep = |path: &str| selection.keeps(path) && !of_runs(path);
    let never_uploaded = RefCell::new(Vec::new());
    let pack = pack::make(&folder, &|path| {
        if pack::matches(path, &never)
            && !pack::matches(path, &launch.exclude)
            && has_python(&folder.join(path))
        {
            never_uploaded.borrow_mut().push(path.to_owned());
        }
        keep(path)
    })
    .map_err(|failure| Failure::usage(failure.error).hint(failure.hint))?;
    let script = rankdeck_agent::examine::script_of(&launch.command);
    let program = launch.command.first().map(String::as_str).filter(|program| program.contains('/'));
    let has_script = [script, program].into_iter().flatten().all(|script| {
        Path::new(script).is_absolute()
            || (folder.join(script).is_file() && !pack::matches(script, &selection.exclude))
    });
    // A path arrives if every directory above it does.
    let arrives = |path: &str| {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.map(|end| &path[..end])
            .all(|part| keep(part) && !pack.dangling.iter().any(|(link, _)| link == part))
    };
    let roots = search_path(draft);
    let imports = script.map(|script| imports(&folder, script, &roots, &arrives)).unwrap_or_default();
    let left_out = left_out(&never_uploaded.into_inner(), &pack.dangling, &imports.left_out);
    let (hash, beside) = (pack.hash.clone(), imports.beside);
    let code = PushedCode { hash, has_script, imports: imports.elsewhere, beside, left_out };
    Ok(Some(PackedCode { folder, pack, code }))
}

/// Returns whether a directory contains Python files. Environments and caches have none at their top.
fn has_python(folder: &Path) -> bool {
    let is_python = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "py");
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_python))
}

/// Most names in a message.
const NAMED: usize = 3;

/// Describes what does not arrive on the hosts although the program may need it.
fn left_out(folders: &[String], dangling: &[(String, PathBuf)], imports: &[String]) -> Option<HintedError> {
    let list = |names: Vec<String>| match names.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMED].join(", ")),
    };
    let (mut found, mut hints) = (Vec::new(), Vec::new());
    if !folders.is_empty() {
        found.push(format!("Python files in {}", list(folders.to_vec())));
        hints.push(
            "rename these directories: `runs`, `venv`, `wandb` and the like are never uploaded, at any depth",
        );
    }
    if !dangling.is_empty() {
        let shown = |(link, target): &(String, PathBuf)| format!("{link} -> {}", target.display());
        found.push(format!("targets of links ({})", list(dangling.iter().map(shown).collect())));
        hints.push("replace links that point outside `launch.code` with copies, or set `launch.code` to a directory above");
    }
    if !imports.is_empty() {
        found.push(format!("{}, which the script imports", list(imports.to_vec())));
        hints.push("list files that git ignores in `launch.include`, and check `launch.exclude`");
    }
    let text = format!("not uploaded with `launch.code`: {}", clean(&found.join("; ")));
    (!found.is_empty()).then(|| HintedError::new(text, hints.join("; ")))
}

/// Returns the directories of the code that `PYTHONPATH` adds to those in which Python searches.
fn search_path(draft: &PlanDraft) -> Vec<String> {
    let of = |env: &BTreeMap<String, String>| env.get("PYTHONPATH").cloned().unwrap_or_default();
    let lists = draft.hosts.iter().map(|host| of(&host.env)).chain([of(&draft.experiment.launch.env)]);
    let folders = lists.flat_map(|list| list.split(':').map(str::to_owned).collect::<Vec<_>>());
    let relative = folders.filter(|folder| !folder.is_empty() && !folder.starts_with(['/', '~', '$']));
    relative.map(|folder| folder.trim_start_matches("./").trim_matches(['/', '.']).to_owned()).collect()
}

/// Modules that a script imports.
#[derive(Debug, Default)]
struct ScriptImports {
    /// Packages from elsewhere.
    elsewhere: Vec<String>,
    /// Those of them that are at the top of the code: Python searches the script's own folder.
    beside: Vec<String>,
    /// Own modules that do not arrive on the hosts, as paths; also among `elsewhere`.
    left_out: Vec<String>,
}

/// Returns what a script of `folder` imports. `roots`: directories of `folder` in which Python searches, besides the
/// script's own. `arrives`: a path of `folder` is uploaded.
fn imports(folder: &Path, script: &str, roots: &[String], arrives: &dyn Fn(&str) -> bool) -> ScriptImports {
    let text = regular::read_text(&folder.join(script)).unwrap_or_default();
    let mut found = ScriptImports::default();
    if !script.ends_with(".py") {
        return found;
    }
    let script_dir = script.rsplit_once('/').map_or("", |(folder, _)| folder);
    for name in rankdeck_agent::examine::imports_of(&text) {
        let below =
            |at: &str, name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}/{name}") };
        let paths = |at: &str| [below(at, &name), below(at, &format!("{name}.py"))];
        let exists = |path: &String| match path.ends_with(".py") {
            true => folder.join(path).is_file(),
            false => folder.join(path).is_dir(),
        };
        let searched = roots.iter().map(String::as_str).chain([script_dir]);
        let own: Vec<String> = searched.flat_map(paths).filter(exists).collect();
        if own.iter().any(|path| arrives(path)) {
            continue;
        }
        if own.is_empty() && paths("").iter().any(|path| exists(path) && arrives(path)) {
            found.beside.push(name.clone());
        }
        found.left_out.extend(own.into_iter().next());
        found.elsewhere.push(name);
    }
    found
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
    bring_pack(&hosts, &packed.pack, ProgressPrompter::new(host_keys)).await
}

/// Uploads a pack to these hosts.
pub(crate) async fn bring_pack(
    hosts: &[Host],
    pack: &Pack,
    prompter: Arc<dyn Prompter>,
) -> Result<(), Failure> {
    let code = upload(pack);
    let answers = call_all(hosts, &prompter, |_| AgentCommand {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_home_are_no_project() {
        let home = tempfile::tempdir().unwrap();
        let project = home.path().join("project");
        std::fs::create_dir(&project).unwrap();
        let what = |folder: &Path| too_wide(folder, home.path());
        assert_eq!(what(Path::new("/")), Some("the root directory"));
        assert_eq!(what(&project.join("..")), Some("your home directory"));
        assert_eq!(what(&project), None);
    }

    #[test]
    fn modules_that_do_not_arrive_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("pkg/runs")).unwrap();
        std::fs::write(root.join("pkg/runs/__init__.py"), "").unwrap();
        for name in ["local_config.py", "helper.py"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        std::fs::write(root.join("train.py"), "import torch, helper\nimport local_config\nimport common\n")
            .unwrap();
        std::os::unix::fs::symlink("../libs", root.join("common")).unwrap();
        let arrives = |path: &str| path != "local_config.py";
        let found = imports(root, "train.py", &[], &arrives);
        assert_eq!(found.elsewhere, ["torch", "local_config", "common"]);
        assert_eq!(found.left_out, ["local_config.py"]);
        assert!(has_python(&root.join("pkg/runs")) && !has_python(&root.join("pkg")));

        std::fs::create_dir(root.join("scripts")).unwrap();
        std::fs::write(root.join("scripts/t.py"), "import helper\nimport torch\n").unwrap();
        let below = imports(root, "scripts/t.py", &[], &|_| true);
        assert_eq!((below.elsewhere.join(" "), below.beside), ("helper torch".into(), vec!["helper".into()]));
        let below = imports(root, "scripts/t.py", &[String::new()], &|_| true);
        assert_eq!((below.elsewhere.join(" "), below.beside.len()), ("torch".into(), 0));

        let links = vec![("common".to_owned(), PathBuf::from("../libs"))];
        let warning = left_out(&["pkg/runs".into()], &links, &found.left_out).unwrap();
        for part in ["pkg/runs", "common -> ../libs", "local_config.py"] {
            assert!(warning.error.contains(part), "{warning:?}");
        }
        assert!(!warning.hint.is_empty());
        assert_eq!(left_out(&[], &[], &[]), None);
    }
}
