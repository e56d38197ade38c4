//! Checks the program that ranks will run: whether a rank would find it, and which Python and torch it uses. Checks
//! the Python environment of the built-in trainer's worker as well: its packages, the id, and the kind of actions.
//!
//! Owner: one preflight. The shell, the environment and the directory are those of a rank; nothing imports
//! torch, whose version is read from its files.
//!
//! The code that ranks will run: the hash of what was pushed, or of the script and its other ranks where nothing
//! is pushed.
//!
//! Owner: one preflight. Hosts are compared by these hashes, so they depend on names and contents only, never
//! on times or places.

use crate::paths;
use crate::supervise::setup::{self, Container, ScriptContext};
use crate::supervise::{groups, libtorch};
use rankdeck_proto::examination::{CodeFinding, EnvFindings, EnvQuestion, HostQuestion, ProgramFinding};
use rankdeck_proto::{pack, regular};
use rankdeck_types::command::{CommandParts, CommandTarget};
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::visible_devices;
use rankdeck_types::setup::Uv;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a prelude and an interpreter may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// How long loading CUDA may take: seconds from a cold disk.
const GPU_PATIENCE: Duration = Duration::from_secs(30);
/// The list of GPUs that a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Most output that is read.
const MAX_OUTPUT: u64 = 1 << 20;
/// Most lines and characters of the output of a failed setup.
const MAX_LINES: usize = 4;
const MAX_WORDS: usize = 400;

/// Asks an interpreter without importing anything that costs time.
const SCRIPT: &str = r#"
import sys
# A module of the working directory, which -c puts first, may have the name of one that is needed here.
first, sys.path[:] = [folder for folder in sys.path[:1] if not folder], [folder for folder in sys.path if folder]
import glob, json, os
version = cuda = None
for folder in first + sys.path:
    path = os.path.join(folder or ".", "torch", "version.py")
    if os.path.isfile(path):
        for line in open(path):
            if line.startswith("__version__") and "'" in line:
                version = line.split("'")[1]
            if line.startswith("cuda") and "'" in line:
                cuda = line.split("'")[1]
        break
import importlib.util
def lacks(name):
    try:
        return importlib.util.find_spec(name) is None
    except Exception:
        return False
packages = {}
try:
    from importlib.metadata import version as version_of
    for name in ["numpy", "gymnasium"] + sys.argv[2:]:
        try:
            packages[name] = str(version_of(name))
        except Exception:
            pass
except ImportError:
    pass
# The script's own folder stands where -c puts the working directory.
sys.path[:0] = sys.argv[1:2] or first
missing = [name for name in sys.argv[2:] if lacks(name)]
beside = [name for name in missing if os.path.isdir(name) or os.path.isfile(name + ".py")]
def has(folder, name):
    places = os.path.join(glob.escape(folder), "lib", "python3*", "site-packages", name)
    return any(glob.glob(places + end) for end in ["", ".py", ".*.so"])
needed = [name for name in missing if name not in beside and name != "rankdeck"]
if not needed and not version and not sys.argv[2:]:
    needed = ["torch"]
venvs = [os.path.abspath(folder) for folder in [".venv", "venv", "env"] if needed
    and os.path.isfile(os.path.join(folder, "pyvenv.cfg")) and all(has(folder, name) for name in needed)]
print("RANKDECK-PYTHON", json.dumps({
    "missing": missing, "beside": beside, "venv": venvs[0] if venvs else None,
    "executable": sys.executable or "", "prefix": sys.prefix, "version": sys.version.split()[0],
    "torch": version, "cuda": cuda, "packages": packages,
}))
"#;

/// Printed by the shell once the setup has succeeded; the program's path follows.
const READY: &str = "RANKDECK-READY";

/// What was found of the program, and why what comes before it fails.
#[derive(Debug, Default)]
pub(super) struct ProgramProbe {
    /// `None` for the built-in trainer.
    pub program: Option<ProgramFinding>,
    /// The last words of the shell that failed.
    pub setup: Option<String>,
}

/// Runs the setup of a question's ranks, and finds their program.
pub(super) fn probe(question: &HostQuestion, workdir: &Path) -> ProgramProbe {
    let at_home = in_home(question);
    let question = at_home.as_ref().unwrap_or(question);
    let Some(program) = question.command.first() else {
        let ready = !question.setup.is_empty();
        return ProgramProbe {
            setup: ready.then(|| attempt(question, workdir, &[]).err()).flatten(),
            program: None,
        };
    };
    let mut found = ProgramFinding::default();
    if let Some(script) = script_of(&question.command) {
        let script = if script.starts_with('~') { paths::expand(script) } else { workdir.join(script) };
        found.script_exists = script.is_file();
        found.script = Some(script.display().to_string());
    }
    // The shell of a preflight may be in another directory, and finds what cannot be run.
    if let Some(error) =
        named_by_path(question).and_then(|path| refused(&workdir.join(path), &question.command))
    {
        return ProgramProbe { program: Some(ProgramFinding { error: Some(error), ..found }), setup: None };
    }
    let is_python =
        Path::new(program).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    let ask = if is_python { "exec \"$0\" -c \"$@\"" } else { "" };
    let inner = format!(
        "echo {READY}; printf 'RANKDECK-PROGRAM %s\\n' \"$(command -v \"$0\")\"; \
         printf 'RANKDECK-PYTHON3 %s\\n' \"$(command -v python3)\"; {ask}"
    );
    let (folder_of_script, imports) = required_packages(question, &found);
    let mut words = vec![inner.as_str(), program, SCRIPT, &folder_of_script];
    words.extend(imports.iter().map(String::as_str));
    let output = match attempt(question, workdir, &words) {
        Ok(output) => output,
        Err(error) => return ProgramProbe { program: Some(found), setup: Some(error) },
    };
    if is_made_later(question, workdir) {
        found.later = Some("`uv sync` creates the environment at launch".into());
        return ProgramProbe { program: Some(found), setup: None };
    }
    let after =
        |marker: &str| output.output.lines().find_map(|line| line.strip_prefix(marker)).map(str::trim);
    found.path = after("RANKDECK-PROGRAM").filter(|path| !path.is_empty()).map(str::to_owned);
    if found.path.is_none() {
        let elsewhere =
            "use its full path, pass `--venv DIR`, or set `venv`, `conda` or `prelude` in the hosts file";
        let other = after("RANKDECK-PYTHON3").filter(|path| program == "python" && !path.is_empty());
        let hint = match other {
            Some(path) => format!("write `python3`, which exists there ({path}); or {elsewhere}"),
            None => elsewhere.to_owned(),
        };
        found.error = Some(HintedError::new(format!("`{program}` not found in a non-login shell"), hint));
    }
    found.python = after("RANKDECK-PYTHON ").and_then(|text| serde_json::from_str(text).ok());
    if is_python && found.path.is_some() && found.python.is_none() {
        found.error = Some(HintedError::new(
            format!("cannot run `{program}`: {}", last_words(&output.errors)),
            format!("try `{program} -c 1` in a shell on the host"),
        ));
    }
    ProgramProbe { program: Some(found), setup: None }
}

/// The question with the program's path, if it begins at the home directory.
fn in_home(question: &HostQuestion) -> Option<HostQuestion> {
    let program = question.command.first().filter(|program| program.starts_with("~/"))?;
    let path = paths::program(program).into_string().ok()?;
    let mut own = question.clone();
    own.command[0] = path;
    question.setup.container.is_none().then_some(own)
}

/// Returns the program if it is a path of the host: not a name in PATH, nothing inside a
/// container or in uploaded code.
fn named_by_path(question: &HostQuestion) -> Option<&str> {
    let path = question.command.first().filter(|path| path.contains('/') && !path.starts_with('~'))?;
    let here = question.code.is_none() || Path::new(path).is_absolute();
    (here && question.setup.container.is_none()).then_some(path)
}

/// Why a file cannot be started as a program, and what helps.
fn refused(file: &Path, command: &[String]) -> Option<HintedError> {
    let shown = file.display();
    let Some(found) = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file) else {
        let hint = "copy it to the host, change `workdir`, or upload it with `launch.code = \"DIR\"`";
        return Some(HintedError::new(format!("program not found: {shown}"), hint));
    };
    if found.permissions().mode() & 0o111 != 0 {
        return None;
    }
    let interpreter = match file.extension().and_then(|end| end.to_str()) {
        Some("py") => Some("python"),
        Some("sh") => Some("sh"),
        _ => None,
    };
    let line = |name: &str| format!(", or name its interpreter: `{name} {}`", command.join(" "));
    let hint = format!("`chmod +x {shown}`{}", interpreter.map(line).unwrap_or_default());
    Some(HintedError::new(format!("{shown} is not executable"), hint))
}

/// Returns the directory of the script's own modules, and the packages that it imports: from the console
/// for uploaded code, else from the script on this host.
fn required_packages(question: &HostQuestion, found: &ProgramFinding) -> (String, Vec<String>) {
    let nowhere = "/nonexistent".to_owned();
    if question.code.is_some() {
        return (nowhere, question.imports.clone());
    }
    let script = found.script.as_ref().filter(|script| script.ends_with(".py")).map(Path::new);
    let Some(script) = script else { return (nowhere, Vec::new()) };
    let mut text = String::new();
    let read = regular::open(script).map(|file| file.take(MAX_OUTPUT).read_to_string(&mut text));
    let folder_of_script = script.parent().map_or(nowhere, |folder| folder.display().to_string());
    match read {
        Ok(Ok(_)) => (folder_of_script, super::imports_of(&text)),
        _ => (folder_of_script, Vec::new()),
    }
}

/// The environment is made from a project that is not here yet, or has none yet.
fn is_made_later(question: &HostQuestion, workdir: &Path) -> bool {
    let has_none = |project: &Path| !project.join(".venv/bin/activate").is_file();
    match &question.setup.uv {
        None | Some(Uv::Here(false)) => false,
        Some(Uv::Here(true)) => question.code.is_some() || has_none(workdir),
        Some(Uv::Folder(folder)) => has_none(&paths::expand_in(folder, &base(question, workdir))),
    }
}

/// Where the setup starts: the host's working directory, even if ranks run in the user's own code.
fn base(question: &HostQuestion, folder: &Path) -> PathBuf {
    match &question.folder {
        Some(_) => paths::expand(&question.workdir),
        None => folder.to_owned(),
    }
}

/// Runs the setup of a rank, then `sh -c INNER...`; returns what both printed. The environment is a rank's, as far
/// as it is known before the launch; preludes may read their rank.
///
/// Errors: the setup fails; the end of its output.
fn attempt(question: &HostQuestion, workdir: &Path, inner: &[&str]) -> Result<ProbeOutput, String> {
    let mut setup = question.setup.clone();
    let ready = format!("echo {READY}");
    let mut words = vec!["sh", "-c"];
    match inner.is_empty() {
        true => words.push(&ready),
        false => words.extend(inner),
    }
    if is_made_later(question, workdir) {
        setup.uv = None;
        words[2] = "PATH=\"$PATH:$HOME/.local/bin:$HOME/.cargo/bin\"; \
                    command -v uv >/dev/null || { echo 'command `uv` not found on this host' >&2; exit 1; }; \
                    echo RANKDECK-READY";
    }
    let (base, folder) = (nearest(&base(question, workdir)), nearest(workdir));
    let own =
        question.env.keys().map(String::as_str).chain(question.variables.reveal().map(|(name, _)| name));
    let variables = own.map(OsString::from).collect();
    let folders = if folder.starts_with(&base) { vec![&*base] } else { vec![&*base, &*folder] };
    let container = Container { folders, variables, ..Container::default() };
    let stage = ScriptContext { workdir: &base, folder: &folder, container, probe_only: true };
    let argv = setup::command(&setup, &stage, words.iter().map(OsString::from).collect());
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).current_dir(&folder);
    for (name, value) in [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")]
    {
        command.env(name, value);
    }
    command.envs(&question.env).envs(question.variables.reveal());
    let ran = run(&mut command, PATIENCE).map_err(|error| match question.setup.container().is_some() {
        true => format!("{error} (check that the image is on this host)"),
        false => error,
    })?;
    match ran.output.lines().any(|line| line.trim() == READY) {
        true => Ok(ran),
        false => Err(last_words(&ran.errors)),
    }
}

/// Returns the end of a failed shell's output as one line.
fn last_words(errors: &str) -> String {
    let lines: Vec<&str> = errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let (own, others): (Vec<&str>, Vec<&str>) =
        lines.into_iter().partition(|line| line.starts_with("rankdeck: setup failed"));
    let shown = if others.is_empty() { &own } else { &others };
    let from = shown.len().saturating_sub(MAX_LINES);
    let text: String = shown[from..].join("; ").chars().take(MAX_WORDS).collect();
    if text.is_empty() { "no output".to_owned() } else { text }
}

/// The script that the first program of a command runs: an interpreter, or torchrun.
pub fn script_of(command: &[String]) -> Option<&str> {
    let parts = CommandParts::of(command).filter(|parts| parts.program == 0)?;
    match parts.target {
        // A program that is a script is found by its own name.
        CommandTarget::Script(path) if parts.arguments > 1 => {
            Some(path).filter(|path| path.ends_with(".py") || path.ends_with(".sh"))
        }
        _ => None,
    }
}

/// Runs the built-in trainer's GPU check in its own process: a failure at rank start becomes a finding
/// before. `None` without a trainer that supports it.
pub(super) fn check_gpu(question: &HostQuestion, libtorch: &Path) -> Option<Result<String, HintedError>> {
    let trainer = libtorch::trainer()?;
    let mut path = libtorch.join("lib").into_os_string();
    let before = question.env.get("LD_LIBRARY_PATH").map(OsString::from);
    if let Some(before) =
        before.or_else(|| std::env::var_os("LD_LIBRARY_PATH")).filter(|path| !path.is_empty())
    {
        path.push(":");
        path.push(before);
    }
    let mut command = Command::new(trainer);
    command.arg("--check-gpu");
    // As its ranks will see them: a fault of a GPU that the run does not use does not matter.
    if !question.planned_gpus.is_empty() {
        let visible = std::env::var(VISIBLE).ok();
        command.env(VISIBLE, visible_devices(&question.planned_gpus, visible.as_deref()).join(","));
    }
    command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID").envs(&question.env).env("LD_LIBRARY_PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let (mut out, mut errors) = (child.stdout.take()?, child.stderr.take()?);
    let (sender, answer) = mpsc::channel();
    let _ = std::thread::Builder::new().name("examine".into()).spawn(move || {
        let mut text = String::new();
        let _ = out.by_ref().take(MAX_OUTPUT).read_to_string(&mut text);
        let _ = errors.by_ref().take(MAX_OUTPUT).read_to_string(&mut text);
        let _ = sender.send(text);
    });
    let Ok(output) = answer.recv_timeout(GPU_PATIENCE) else {
        // Where the driver does not let go of it, it ends when the driver does.
        let _ = child.kill();
        let text = format!("CUDA did not start within {} s", GPU_PATIENCE.as_secs());
        return Some(Err(HintedError::new(text, "run `nvidia-smi` on the host")));
    };
    let part = |word: &str| output.lines().find_map(|line| Some(line.split_once(word)?.1.trim().to_owned()));
    match child.wait().ok()?.code() {
        Some(0) => Some(Ok(output.lines().last().unwrap_or_default().to_owned())),
        // Unknown arguments end it, too.
        _ if output.contains("unexpected argument") => None,
        _ => Some(Err(HintedError::new(
            part("error: ").unwrap_or_else(|| words(&output)),
            part("hint: ").unwrap_or_else(|| "run `rankdeck-trainer --check-gpu` on the host".to_owned()),
        ))),
    }
}

/// Returns the last line of a program's output.
fn words(output: &str) -> String {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output").trim().to_owned()
}

/// `path`, or the nearest directory above it that is there.
pub(super) fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Standard output and error of a command that may take `within`; everything of its process group is killed
/// then.
pub(crate) fn output(command: &mut Command, within: Duration) -> Result<(String, String), String> {
    run(command, within).map(|output| (output.output, output.errors))
}

/// Output of a command.
struct ProbeOutput {
    output: String,
    errors: String,
}

/// Runs a command to its end; everything of its process group is killed after `within`.
fn run(command: &mut Command, within: Duration) -> Result<ProbeOutput, String> {
    groups::set_apart(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().to_string_lossy()))?;
    let pid = child.id() as i32;
    let (sender, answers) = mpsc::channel();
    let output = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let errors = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    for (index, pipe) in [output, errors].into_iter().enumerate() {
        let (sender, pipe) = (sender.clone(), pipe.ok_or("no pipe")?);
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.take(MAX_OUTPUT).read_to_end(&mut text);
            let _ = sender.send((index, String::from_utf8_lossy(&text).into_owned()));
        });
    }
    let deadline = Instant::now() + within;
    let mut texts = [String::new(), String::new()];
    let mut received = 0;
    while received < texts.len() {
        let Ok((index, text)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        else {
            break;
        };
        texts[index] = text;
        received += 1;
    }
    // SAFETY: kill takes integers; the child is not reaped yet, so the group (its own session) is still its.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let _ = child.wait();
    let [output, errors] = texts;
    match received {
        2 => Ok(ProbeOutput { output, errors }),
        _ => Err(format!("no response within {} s", within.as_secs())),
    }
}

/// How long an environment may take to be made.
pub(super) const ENV_PATIENCE: Duration = Duration::from_secs(30);

/// Makes the environment as the worker does, and prints its spaces.
const ENV_SCRIPT: &str = r#"
import importlib, json, sys
name, atari = sys.argv[1], sys.argv[2] == "atari"
found = {"executable": sys.executable, "missing": [], "error": None, "discrete": None, "image": None}
def report():
    print("RANKDECK-ENV", json.dumps(found), flush=True)
    sys.exit()
for package in ["numpy", "gymnasium"] + (["ale_py"] if atari else []):
    try:
        importlib.import_module(package)
    except ImportError as error:
        found["missing"].append(package)
found["versions"] = {"python": sys.version.split()[0]}
for package in ["numpy", "gymnasium"] + (["ale_py"] if atari else []):
    version = getattr(sys.modules.get(package), "__version__", None)
    if version:
        found["versions"][package] = str(version)
if found["missing"]:
    report()
import gymnasium
if atari:
    import ale_py
    gymnasium.register_envs(ale_py)
try:
    env = gymnasium.make(name)
    space = env.action_space
    found["discrete"] = isinstance(space, gymnasium.spaces.Discrete)
    shape = getattr(env.observation_space, "shape", None) or ()
    found["image"] = len(shape) == 3
except Exception as error:
    found["error"] = "%s: %s" % (type(error).__name__, str(error).splitlines()[0] if str(error) else "")
report()
"#;

/// Probes the environment with its interpreter: trainer and libtorch are not needed. A simulator that takes long to start
/// is not an error and is not reported.
pub(super) fn probe_environment(question: &HostQuestion, env: &EnvQuestion, workdir: &Path) -> EnvFindings {
    let folder = nearest(workdir);
    let mut command = Command::new(&env.python);
    let kind = if env.atari { "atari" } else { "any" };
    // NumPy's threads, one for each core, would only spin.
    command
        .args(["-c", ENV_SCRIPT, &env.id, kind])
        .env("OMP_NUM_THREADS", "1")
        .envs(&question.env)
        .envs(question.variables.reveal());
    command.current_dir(&folder);
    match run(&mut command, ENV_PATIENCE) {
        Ok(ProbeOutput { output, .. }) => {
            let line = output.lines().find_map(|line| line.strip_prefix("RANKDECK-ENV"));
            line.and_then(|text| serde_json::from_str(text.trim()).ok()).unwrap_or_default()
        }
        Err(error) if error.starts_with("cannot run") => {
            EnvFindings { no_python: Some(error), ..EnvFindings::default() }
        }
        Err(_) => EnvFindings::default(),
    }
}

/// Most files next to a script that are hashed, and most bytes.
const MAX_FILES: usize = 2000;
const MAX_BYTES: u64 = 32 << 20;

pub(super) fn probe_code(question: &HostQuestion, workdir: &Path, script: Option<&str>) -> CodeFinding {
    if let Some(hash) = &question.code {
        return CodeFinding { pushed: pack::cached(hash).is_some(), ..CodeFinding::default() };
    }
    let Some(script) = script.map(Path::new) else { return CodeFinding::default() };
    let Ok(bytes) = regular::read(script, MAX_BYTES) else { return CodeFinding::default() };
    let folder = script.parent().unwrap_or(workdir);
    CodeFinding {
        pushed: false,
        script: Some(short(&Sha256::digest(bytes))),
        folder: neighbours(folder),
        commit: script.canonicalize().ok().and_then(|script| commit(&script)),
    }
}

fn short(digest: &[u8]) -> String {
    rankdeck_types::words::hex(&digest[..8])
}

/// Hash over all `.py` files of a directory; `None` when there are too many to be a program.
fn neighbours(folder: &Path) -> Option<String> {
    let mut files = Vec::new();
    gather(folder, 0, &mut files)?;
    files.sort();
    let mut digest = Sha256::new();
    let mut total = 0;
    for file in files {
        let bytes = regular::read(&file, MAX_BYTES).ok()?;
        total += bytes.len() as u64;
        if total > MAX_BYTES {
            return None;
        }
        digest.update(file.strip_prefix(folder).unwrap_or(&file).as_os_str().as_encoded_bytes());
        digest.update(Sha256::digest(&bytes));
    }
    Some(short(&digest.finalize()))
}

fn gather(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Option<()> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry.file_type().ok()?;
        // Runs, environments and repositories below do not belong to the program.
        let apart = name.starts_with('.')
            || ["runs", "venv", "env", "node_modules", "__pycache__", "site-packages"].contains(&&*name);
        if kind.is_dir() && !apart && depth < 8 {
            gather(&path, depth + 1, files)?;
        } else if kind.is_file() && name.ends_with(".py") {
            files.push(path);
            if files.len() > MAX_FILES {
                return None;
            }
        }
    }
    Some(())
}

/// Commit that the checkout around `path` stands on, from git's own files.
fn commit(path: &Path) -> Option<String> {
    let git = path.ancestors().map(|folder| folder.join(".git")).find(|git| git.is_dir())?;
    let head = regular::read_text(&git.join("HEAD")).ok()?;
    let head = head.trim();
    let full = match head.strip_prefix("ref: ") {
        None => head.to_owned(),
        Some(name) => match regular::read_text(&git.join(name)) {
            Ok(text) => text.trim().to_owned(),
            Err(_) => {
                let packed = regular::read(&git.join("packed-refs"), MAX_BYTES).ok()?;
                let packed = String::from_utf8_lossy(&packed);
                packed.lines().find(|line| line.ends_with(name))?.split(' ').next()?.to_owned()
            }
        },
    };
    Some(full.chars().take(16).collect()).filter(|commit: &String| commit.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::setup::Setup;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn script_is_what_the_interpreter_runs() {
        assert_eq!(script_of(&words("python3 -u train.py --lr 1 other.py")), Some("train.py"));
        assert_eq!(script_of(&words("torchrun --nproc 2 train.py")), Some("train.py"));
        assert_eq!(script_of(&words("python3 -m pkg.train")), None);
        assert_eq!(script_of(&words("python3 -c print(1) a.py")), None);
        assert_eq!(script_of(&words("./train a.py")), None);
        assert_eq!(script_of(&words("./train.py a.py")), None);
        assert_eq!(script_of(&words("env A=1 python train.py")), None);
        assert_eq!(script_of(&[]), None);
    }

    #[test]
    fn program_is_found_as_a_rank_would_find_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "").unwrap();
        let probed = |command: &str, prelude: Option<&str>| {
            let setup = Setup { prelude: prelude.map(str::to_owned), ..Setup::default() };
            let question = HostQuestion { command: words(command), setup, ..HostQuestion::default() };
            super::probe(&question, folder.path())
        };
        let program = |command: &str, prelude| probed(command, prelude).program.unwrap();
        let found = program("python3 train.py", Some("echo noise"));
        assert!(found.error.is_none() && found.script_exists && found.python.is_some(), "{found:?}");
        assert!(!program("python3 missing.py", None).script_exists);
        assert!(program("no-such-program x", None).error.unwrap().error.contains("no-such-program"));
        // Named by its path: it has to be there, in that directory, and executable.
        for absent in ["./missing.py --lr 1", "/nonexistent/python train.py", "../."] {
            let error = program(absent, None).error.unwrap();
            assert!(error.error.starts_with("program not found: /"), "{absent}: {error:?}");
        }
        let error = program("./train.py --lr 1", None).error.unwrap();
        assert!(error.error.ends_with("train.py is not executable"), "{error:?}");
        assert!(
            error.hint.contains("chmod +x") && error.hint.ends_with("`python ./train.py --lr 1`"),
            "{error:?}"
        );
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("train.py"), mode).unwrap();
        let found = program("./train.py --lr 1", None);
        assert!(found.error.is_none() && found.path.is_some(), "{found:?}");
        let failed = |prelude| probed("python3 train.py", Some(prelude)).setup.unwrap();
        assert!(failed("PATH=/nonexistent; nothing").contains("nothing"), "{}", failed("PATH=/x; nothing"));
        assert!(failed("source /nope/activate").contains("/nope/activate"));
        assert!(failed("exit 3").contains("status 3"));
        // The prelude of the built-in trainer is tried, too.
        let builtin = HostQuestion {
            setup: Setup { prelude: Some("echo because >&2; false".into()), ..Setup::default() },
            ..HostQuestion::default()
        };
        let probed = super::probe(&builtin, folder.path());
        assert!(probed.program.is_none() && probed.setup.unwrap() == "because");
    }

    /// The words of the shell, of the loader or of the interpreter itself.
    #[test]
    fn interpreter_that_does_not_run_is_reported_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python3");
        for (content, expected) in [
            ("#!/nonexistent/python\n", "python3"),
            (
                "#!/bin/sh\necho 'libpython3.so: cannot open shared object file' >&2\nexit 127\n",
                "libpython3.so",
            ),
            ("#!/bin/sh\necho 'No module named encodings' >&2\nexit 1\n", "No module named encodings"),
            ("#!/bin/sh\nexit 1\n", "no output"),
        ] {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            let command = vec![path.display().to_string(), "train.py".to_owned()];
            let question = HostQuestion { command, ..HostQuestion::default() };
            let error = super::probe(&question, folder.path()).program.unwrap().error.unwrap();
            let (_, words) = error.error.split_once("`: ").unwrap_or_else(|| panic!("{error:?}"));
            assert!(words.contains(expected), "{content}: {error:?}");
            assert!(error.hint.contains("-c 1"), "{error:?}");
        }
    }

    #[test]
    fn missing_python_proposes_python3() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink("/bin/sh", bin.join("sh")).unwrap();
        let error = |program: &str| {
            let setup = Setup { prelude: Some(format!("PATH={}", bin.display())), ..Setup::default() };
            let question = HostQuestion { command: words(program), setup, ..HostQuestion::default() };
            super::probe(&question, folder.path()).program.unwrap().error.unwrap()
        };
        assert!(!error("python train.py").hint.contains("python3"));
        std::fs::write(bin.join("python3"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(bin.join("python3"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = error("python train.py");
        assert!(found.hint.contains("`python3`") && found.hint.contains("--venv"), "{found:?}");
        assert!(!error("no-such-program").hint.contains("python3"));
    }

    /// Nothing of it runs, and it does not stand in the way.
    #[test]
    fn module_of_the_working_directory_is_not_imported() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("open({:?}, 'w')\nraise SystemExit(1)\n", folder.path().join("ran"));
        for name in ["json.py", "os.py", "importlib.py"] {
            std::fs::write(folder.path().join(name), &text).unwrap();
        }
        let question = HostQuestion { command: words("python3 -c pass"), ..HostQuestion::default() };
        let found = super::probe(&question, folder.path()).program.unwrap();
        assert!(found.python.is_some_and(|python| !python.version.is_empty()));
        assert!(!folder.path().join("ran").exists());
    }

    #[test]
    fn module_beside_the_folder_of_the_script_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("scripts/train.py", "import lib_of_top, lib_of_script\n"),
            ("scripts/lib_of_script.py", ""),
            ("lib_of_top/__init__.py", ""),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let missing = |env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let question =
                HostQuestion { command: words("python3 scripts/train.py"), env, ..HostQuestion::default() };
            let python = super::probe(&question, folder.path()).program.unwrap().python.unwrap();
            assert_eq!(python.missing, python.beside);
            python.missing
        };
        assert_eq!(missing(&[]), ["lib_of_top"], "sys.path begins with the script's folder");
        assert_eq!(missing(&[("PYTHONPATH", ".")]), [""; 0]);
    }

    #[test]
    fn environment_that_has_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("train.py", "import lib_of_venv\n"),
            ("venv/pyvenv.cfg", ""),
            ("venv/lib/python3.9/site-packages/other.py", ""),
            (".venv/pyvenv.cfg", ""),
            (".venv/lib/python3.9/site-packages/other.py", ""),
            ("env/pyvenv.cfg", ""),
            ("env/lib/python3.9/site-packages/lib_of_venv/__init__.py", ""),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let question = HostQuestion { command: words("python3 train.py"), ..HostQuestion::default() };
        let python = super::probe(&question, folder.path()).program.unwrap().python.unwrap();
        let expected = folder.path().canonicalize().unwrap().join("env");
        assert_eq!(python.missing, ["lib_of_venv"]);
        assert_eq!(python.venv, Some(expected.display().to_string()));
    }

    #[test]
    fn interpreter_of_ranks_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let venv = folder.path().canonicalize().unwrap().join("v e");
        let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
        assert!(made.unwrap().success(), "python3 with venv is needed");
        let question = |setup: Setup| HostQuestion {
            command: words("python train.py"),
            setup,
            ..HostQuestion::default()
        };
        let preludes = ["source 'v e/bin/activate'", "source \"$PWD/v e/bin/activate\"; export X=1"];
        let mut setups: Vec<Setup> = preludes
            .iter()
            .map(|line| Setup { prelude: Some((*line).to_owned()), ..Setup::default() })
            .collect();
        setups.push(Setup { venv: Some("v e".into()), ..Setup::default() });
        for setup in setups {
            let probed = probe(&question(setup.clone()), folder.path());
            let python = probed.program.and_then(|program| program.python);
            let prefix = python.map(|python| python.prefix).unwrap_or_default();
            assert_eq!(prefix, venv.display().to_string(), "{setup:?} {:?}", probed.setup);
        }
    }

    #[test]
    fn environment_that_uv_creates_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let here = |code: Option<&str>| HostQuestion {
            setup: Setup { uv: Some(Uv::Here(true)), ..Setup::default() },
            code: code.map(str::to_owned),
            ..HostQuestion::default()
        };
        assert!(is_made_later(&here(None), folder.path()));
        std::fs::create_dir_all(folder.path().join(".venv/bin")).unwrap();
        std::fs::write(folder.path().join(".venv/bin/activate"), "").unwrap();
        assert!(!is_made_later(&here(None), folder.path()));
        assert!(
            is_made_later(&here(Some("hash")), folder.path()),
            "pushed code has an environment of its own"
        );
    }

    fn probed_env(python: &str, id: &str) -> EnvFindings {
        let env = EnvQuestion { python: python.into(), id: id.into(), atari: id.starts_with("ALE/") };
        probe_environment(&HostQuestion::default(), &env, Path::new("/"))
    }

    #[test]
    fn packages_that_are_missing_are_named() {
        // No packages at all: a venv of its own.
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder.path()).status();
        assert!(made.unwrap().success(), "python3 with venv is needed");
        let python = folder.path().join("bin/python").display().to_string();
        assert_eq!(probed_env(&python, "ALE/Pong-v5").missing, ["numpy", "gymnasium", "ale_py"]);
        assert_eq!(probed_env(&python, "Pong").missing, ["numpy", "gymnasium"]);
        assert!(probed_env("/nope/python", "Pong").no_python.is_some());
    }

    #[test]
    fn unknown_gymnasium_id_and_actions_are_reported() {
        let Some(python) = std::env::var_os("RANKDECK_TEST_PYTHON") else {
            return rankdeck_testkit::skipped("RANKDECK_TEST_PYTHON is not set");
        };
        let python = python.to_string_lossy();
        let wrong = probed_env(&python, "Pong").error.unwrap_or_default();
        assert!(wrong.contains("Pong"), "{wrong}");
        let found = probed_env(&python, "CartPole-v1");
        assert_eq!(found.discrete, Some(true));
        let names: Vec<&str> = found.versions.keys().map(String::as_str).collect();
        assert_eq!(names, ["gymnasium", "numpy", "python"]);
        assert_eq!(probed_env(&python, "Pendulum-v1").discrete, Some(false));
    }

    #[test]
    fn hashes_depend_on_contents_and_names_only() {
        let make = |text: &str, name: &str| {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
            write("train.py", "import model");
            write(name, text);
            write("notes.txt", &format!("{:?}", folder.path()));
            std::fs::create_dir(folder.path().join("runs")).unwrap();
            write("runs/x.py", name);
            let script = folder.path().join("train.py");
            let code = probe_code(&HostQuestion::default(), folder.path(), script.to_str());
            (code.script.unwrap(), code.folder.unwrap())
        };
        let one = make("a", "model.py");
        assert_eq!(one, make("a", "model.py"));
        assert_ne!(one.1, make("b", "model.py").1);
        assert_ne!(one.1, make("a", "other.py").1);
        assert_eq!(one.0, make("b", "model.py").0, "the script is the same");
    }

    #[test]
    fn commit_is_found_loose_packed_or_detached() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let id = "0123456789abcdef0123456789abcdef01234567";
        write("sub/train.py", "");
        let found = || commit(&folder.path().join("sub/train.py"));
        assert_eq!(found(), None);
        write(".git/HEAD", &format!("{id}\n"));
        assert_eq!(found().as_deref(), Some("0123456789abcdef"));
        write(".git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(found(), None);
        write(".git/packed-refs", &format!("# pack\n{id} refs/heads/main\n"));
        assert_eq!(found().as_deref(), Some("0123456789abcdef"));
    }
}
