//! What comes before a rank, as one shell script that ends in the rank's program. Pure, but for the choice of
//! the shell.
//!
//! Owner: launches, and the preflight that tries the same script. Invariants:
//! - SETUP-1: a rank's program starts only if everything before it has succeeded. A part that fails, a
//!   prelude that leaves the shell, a shell that cannot read the script: each ends with a status that is not
//!   0.
//! - SETUP-2: the words of the command reach the program unchanged, and no script before it sees them.

use rankdeck_types::ids::{Generation, Rank, RunId};
use rankdeck_types::quote;
use rankdeck_types::setup::{Setup, Tool, Uv};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where modules are usually set up for shells that are no login shells.
const MODULES: &str = "\"${LMOD_PKG:-}/init/sh\" \"${MODULESHOME:-}/init/sh\" /etc/profile.d/lmod.sh \
                       /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh \
                       /usr/share/modules/init/sh /usr/share/Modules/init/sh";
/// What conda's installers are called.
const CONDAS: [&str; 5] = ["miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda"];

/// What a script is made for.
pub(crate) struct Stage<'a> {
    /// The host's working folder, where the script begins.
    pub workdir: &'a Path,
    /// Where the program runs; its own copy of pushed code, or the working folder.
    pub folder: &'a Path,
    /// What a container needs to see and to know.
    pub container: Container<'a>,
    /// Nothing may be made: an environment that is not there yet is left out.
    pub look_only: bool,
}

/// What a container needs besides image and command.
#[derive(Default)]
pub(crate) struct Container<'a> {
    /// A name that nothing else has.
    pub name: String,
    /// Folders that it sees under their own names.
    pub folders: Vec<&'a Path>,
    /// Variables that it inherits.
    pub variables: Vec<OsString>,
    /// The rank has a GPU.
    pub gpu: bool,
}

/// Shell, script and `argv` as one command. Without anything to set up, `argv` itself.
pub(crate) fn command(setup: &Setup, stage: &Stage<'_>, argv: Vec<OsString>) -> Vec<OsString> {
    if setup.is_empty() {
        return argv;
    }
    let script = script(setup, stage, &argv);
    vec![shell().into(), "-c".into(), script, "rankdeck".into()]
}

/// The login shell when it is one that reads such scripts, else bash where there is one, else sh.
pub(crate) fn shell() -> PathBuf {
    let login = std::env::var_os("SHELL").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    choose(login, std::env::split_paths(&path).chain(["/bin".into(), "/usr/bin".into()]))
}

fn choose(login: Option<PathBuf>, mut folders: impl Iterator<Item = PathBuf>) -> PathBuf {
    let reads = |path: &PathBuf| {
        path.is_absolute() && matches!(path.file_name().and_then(OsStr::to_str), Some("bash" | "zsh"))
    };
    login
        .filter(|path| reads(path) && path.is_file())
        .or_else(|| folders.find_map(|folder| Some(folder.join("bash")).filter(|path| path.is_file())))
        .unwrap_or_else(|| "/bin/sh".into())
}

fn script(setup: &Setup, stage: &Stage<'_>, argv: &[OsString]) -> OsString {
    let mut text = Text::default();
    // The script ends by becoming the program. Whatever else ends it is a failure, whatever its status.
    text.line(
        "trap 'rankdeck_status=$?; echo \"rankdeck: what comes before the rank failed (status \
         $rankdeck_status)\" >&2; test $rankdeck_status -ne 0 || exit 1' EXIT",
    );
    text.line("set --");
    text.enter(stage.workdir);
    modules(setup, &mut text);
    conda(setup, &mut text);
    environment(setup, stage, &mut text);
    if let Some(prelude) = &setup.prelude {
        // Read by itself, so that an open quote or `if` is its own mistake. A list such as `test -f x && . x`
        // may end with any status.
        text.line("set -e");
        text.line(&format!("eval {}", quote::always(&format!("{prelude}\n:"))));
        text.line("set +e");
    }
    if stage.folder != stage.workdir {
        text.enter(stage.folder);
    }
    text.line("trap - EXIT");
    let mut last = OsString::from("exec ");
    if let Some((word, tool, rest)) = setup.container() {
        last.push(container_words(word, tool, rest, stage));
        last.push(" ");
    }
    last.push(quote::os_words(argv.iter().map(OsString::as_os_str)));
    text.0.push(last);
    text.0
}

fn modules(setup: &Setup, text: &mut Text) {
    if setup.modules.is_empty() {
        return;
    }
    text.line("if ! command -v module >/dev/null 2>&1; then");
    text.line(&format!("for rankdeck_init in {MODULES}; do"));
    text.line("if [ -r \"$rankdeck_init\" ]; then . \"$rankdeck_init\"; break; fi");
    text.line("done; fi");
    text.line(
        "command -v module >/dev/null 2>&1 || { echo 'there is no `module` command on this host' >&2; exit 1; }",
    );
    text.line(&format!("module load {} || exit 1", quote::words(setup.modules.iter().map(String::as_str))));
}

fn conda(setup: &Setup, text: &mut Text) {
    let Some(name) = setup.conda.as_deref().map(quoted) else { return };
    let places: Vec<String> = ["$HOME", "/opt"]
        .iter()
        .flat_map(|root| CONDAS.iter().map(move |conda| format!("\"{root}/{conda}/bin/conda\"")))
        .collect();
    text.line("rankdeck_conda=");
    text.line(&format!(
        "for rankdeck_found in \"${{CONDA_EXE:-}}\" \"$(command -v conda 2>/dev/null)\" {}; do",
        places.join(" ")
    ));
    text.line("if [ -x \"$rankdeck_found\" ]; then rankdeck_conda=$rankdeck_found; break; fi");
    text.line("done");
    text.line("if [ -n \"$rankdeck_conda\" ]; then");
    text.line(&format!(
        "eval \"$(\"$rankdeck_conda\" shell.posix hook)\" && conda activate {name} || exit 1"
    ));
    text.line("elif command -v micromamba >/dev/null 2>&1; then");
    text.line(&format!(
        "eval \"$(micromamba shell hook --shell posix)\" && micromamba activate {name} || exit 1"
    ));
    text.line("else echo 'neither conda nor micromamba is on this host: not on PATH, not in the home folder, not in /opt' >&2; exit 1; fi");
}

fn environment(setup: &Setup, stage: &Stage<'_>, text: &mut Text) {
    if let Some(folder) = &setup.venv {
        activate(&crate::paths::expand_in(folder, stage.workdir), text);
    }
    let project = match &setup.uv {
        None | Some(Uv::Here(false)) => return,
        Some(Uv::Here(true)) => stage.folder.to_owned(),
        Some(Uv::Folder(folder)) => crate::paths::expand_in(folder, stage.workdir),
    };
    // Where uv's own installer puts it.
    text.line("PATH=\"$PATH:$HOME/.local/bin:$HOME/.cargo/bin\"");
    text.line("command -v uv >/dev/null 2>&1 || { echo 'there is no `uv` on this host' >&2; exit 1; }");
    let own = project.join(".venv");
    if !stage.look_only {
        let project = quote::os_words([project.as_os_str()]);
        text.0.push("UV_PROJECT_ENVIRONMENT=");
        text.0.push(quote::os_words([own.as_os_str()]));
        text.0.push(" uv sync --quiet --project ");
        text.0.push(project);
        text.line(" || exit 1");
    }
    activate(&own, text);
}

fn activate(folder: &Path, text: &mut Text) {
    let file = folder.join("bin/activate");
    let file = quote::os_words([file.as_os_str()]);
    text.0.push("[ -r ");
    text.0.push(&file);
    text.0.push(" ] || { echo 'there is no' ");
    text.0.push(&file);
    text.line(" >&2; exit 1; }");
    text.0.push(". ");
    text.0.push(&file);
    text.line(" || exit 1");
}

/// Everything before the command that runs in the container, as the tools' documentation has it. Ranks keep
/// the host's network, processes and shared memory: NCCL and Gloo need them, and so does whoever looks for
/// leftovers.
fn container_words(word: &str, tool: Tool, rest: &str, stage: &Stage<'_>) -> OsString {
    let needs = &stage.container;
    let mut words: Vec<OsString> = vec![word.into()];
    let mut add = |option: &str, value: &OsStr| words.extend([option.into(), value.to_owned()]);
    let same = |folder: &Path| {
        let mut pair = folder.as_os_str().to_owned();
        pair.push(":");
        pair.push(folder);
        pair
    };
    match tool {
        Tool::Apptainer => {
            add("exec", OsStr::new("--pwd"));
            let folder = stage.folder.as_os_str().to_owned();
            words.push(folder);
            for folder in &needs.folders {
                words.extend(["--bind".into(), same(folder)]);
            }
            if needs.gpu {
                words.push("--nv".into());
            }
        }
        Tool::Docker | Tool::Podman => {
            words.extend(["run", "--rm"].map(Into::into));
            // Podman refuses it in the host's process name space, where nobody is process 1.
            if tool == Tool::Docker {
                words.push("--init".into());
            }
            words.extend(["--network=host", "--ipc=host", "--pid=host"].map(Into::into));
            if !needs.name.is_empty() {
                words.extend(["--name".into(), OsString::from(&needs.name)]);
            }
            words.extend(["--workdir".into(), stage.folder.into()]);
            for folder in &needs.folders {
                words.extend(["--volume".into(), same(folder)]);
            }
            // Values come from the environment of the tool itself, so that none stands on a command line.
            for name in &needs.variables {
                words.extend(["--env".into(), name.clone()]);
            }
            match (tool, needs.gpu) {
                (Tool::Docker, true) => words.extend(["--gpus".into(), "all".into()]),
                (_, true) => words.extend(["--device".into(), "nvidia.com/gpu=all".into()]),
                (_, false) => {}
            }
        }
    }
    let mut line = quote::os_words(words.iter().map(OsString::as_os_str));
    // What the shell on this host decides, and the user's own words, stand as they are.
    line.push(match tool {
        Tool::Apptainer => " ",
        Tool::Docker => " --user \"$(id -u):$(id -g)\" --env HOME=/tmp ",
        // Root's containers have root's own user name space, and podman refuses to map it.
        Tool::Podman => " $([ \"$(id -u)\" = 0 ] || echo --userns=keep-id) --env HOME=/tmp ",
    });
    line.push(rest);
    line
}

/// The name of a rank's container.
pub(crate) fn container_name(run: &RunId, generation: Generation, rank: Rank) -> String {
    format!("{run}-gen{generation}-rank{rank}")
}

/// What has docker or podman forget containers: where all of a run is killed, nobody is left who would.
pub(crate) fn removal(setup: &Setup, names: Vec<String>) -> Option<Vec<OsString>> {
    let (word, _, _) = setup.container().filter(|_| setup.starts_elsewhere() && !names.is_empty())?;
    Some([word.to_owned(), "rm".into(), "--force".into()].into_iter().chain(names).map(Into::into).collect())
}

/// A name or a folder as a word; `~/` is left for the shell to expand.
fn quoted(text: &str) -> String {
    match text.strip_prefix("~/") {
        Some(rest) => format!("\"$HOME\"/{}", quote::word(rest)),
        None => quote::word(text),
    }
}

/// Lines of a script.
#[derive(Default)]
struct Text(OsString);

impl Text {
    fn line(&mut self, line: &str) {
        self.0.push(line);
        self.0.push("\n");
    }

    fn enter(&mut self, folder: &Path) {
        self.0.push("cd ");
        self.0.push(quote::os_words([folder.as_os_str()]));
        self.line(" || exit 1");
    }
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
