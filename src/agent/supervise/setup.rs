//! The setup of a rank, as one shell script that ends in the rank's program. Pure, but for the choice of
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

/// Files that set up modules in non-login shells.
const MODULES: &str = "\"${LMOD_PKG:-}/init/sh\" \"${MODULESHOME:-}/init/sh\" /etc/profile.d/lmod.sh \
                       /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh \
                       /usr/share/modules/init/sh /usr/share/Modules/init/sh";
/// What conda's installers are called.
const CONDAS: [&str; 5] = ["miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda"];

/// What a script is made for.
pub(crate) struct ScriptContext<'a> {
    /// The host's working directory, where the script starts.
    pub workdir: &'a Path,
    /// Where the program runs; its own copy of pushed code, or the working directory.
    pub folder: &'a Path,
    /// Directories and variables for a container.
    pub container: Container<'a>,
    /// Nothing may be made: an environment that is not there yet is left out.
    pub probe_only: bool,
}

/// Settings of a container, apart from image and command.
#[derive(Default)]
pub(crate) struct Container<'a> {
    /// A unique name.
    pub name: String,
    /// Directories mounted under the same paths.
    pub folders: Vec<&'a Path>,
    /// Variables that it inherits.
    pub variables: Vec<OsString>,
    /// The rank has a GPU.
    pub gpu: bool,
}

/// Shell, script and `argv` as one command. Without anything to set up, `argv` itself.
pub(crate) fn command(setup: &Setup, stage: &ScriptContext<'_>, argv: Vec<OsString>) -> Vec<OsString> {
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

fn script(setup: &Setup, stage: &ScriptContext<'_>, argv: &[OsString]) -> OsString {
    let mut text = Text::default();
    // The script ends by becoming the program. Whatever else ends it is a failure, whatever its status.
    text.line(
        "trap 'rankdeck_status=$?; echo \"rankdeck: setup failed (status $rankdeck_status)\" >&2; test $rankdeck_status -ne 0 || exit 1' EXIT",
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
        "command -v module >/dev/null 2>&1 || { echo 'command `module` not found on this host' >&2; exit 1; }",
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
    text.line("else echo 'neither conda nor micromamba found on this host: searched PATH, the home directory and /opt' >&2; exit 1; fi");
}

fn environment(setup: &Setup, stage: &ScriptContext<'_>, text: &mut Text) {
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
    text.line("command -v uv >/dev/null 2>&1 || { echo 'command `uv` not found on this host' >&2; exit 1; }");
    let own = project.join(".venv");
    if !stage.probe_only {
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
    text.0.push(" ] || { echo 'not found:' ");
    text.0.push(&file);
    text.line(" >&2; exit 1; }");
    text.0.push(". ");
    text.0.push(&file);
    text.line(" || exit 1");
}

/// Everything before the command that runs in the container, as the tools' documentation has it. Ranks keep
/// the host's network, processes and shared memory: NCCL and Gloo need them, and so does the scan for
/// leftovers.
fn container_words(word: &str, tool: Tool, rest: &str, stage: &ScriptContext<'_>) -> OsString {
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
            // Podman refuses it in the host's process namespace, where it is not process 1.
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

/// Returns a script that removes containers from docker or podman: after a kill, no process is left that does.
pub(crate) fn removal(setup: &Setup, names: Vec<String>) -> Option<Vec<OsString>> {
    let (word, _, _) = setup.container().filter(|_| setup.starts_elsewhere() && !names.is_empty())?;
    Some([word.to_owned(), "rm".into(), "--force".into()].into_iter().chain(names).map(Into::into).collect())
}

/// A name or a directory as a word; `~/` is left for the shell to expand.
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
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// Runs a program that prints its directory and environment; returns its status, output and errors.
    fn run(shell: &Path, setup: &Setup, workdir: &Path, folder: &Path) -> (Option<i32>, String, String) {
        let argv = ["sh", "-c", "pwd; printf '<%s>' \"$@\"; echo \"$MARK $VIRTUAL_ENV\"", "x", "a b", "$c'd"];
        let stage = ScriptContext { workdir, folder, container: Container::default(), probe_only: false };
        let script = script(setup, &stage, &argv.map(OsString::from));
        let path = format!("{}:{}", workdir.join("bin").display(), std::env::var("PATH").unwrap());
        let output = Command::new(shell)
            .arg("-c")
            .arg(script)
            .arg("rankdeck")
            .env("PATH", path)
            .env("HOME", workdir)
            .env_remove("CONDA_EXE")
            .current_dir("/")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn shells() -> Vec<PathBuf> {
        let shells = ["/bin/sh", "/bin/bash", "/usr/bin/zsh"].map(PathBuf::from);
        shells.into_iter().filter(|shell| shell.is_file()).collect()
    }

    fn prelude(text: &str) -> Setup {
        Setup { prelude: Some(text.into()), ..Setup::default() }
    }

    /// A directory with an environment `v`, whose script is what venv writes, in short.
    fn workdir() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("v/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(
            bin.join("activate"),
            "VIRTUAL_ENV=v; export VIRTUAL_ENV; MARK=\"args: $#\"; export MARK\n",
        )
        .unwrap();
        folder
    }

    fn program(folder: &Path, name: &str, text: &str) {
        let bin = folder.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn setup_2_arguments_arrive_unchanged() {
        let folder = workdir();
        let there = folder.path().canonicalize().unwrap();
        let code = there.join("v");
        for shell in shells() {
            for setup in [prelude(". ./v/bin/activate"), Setup { venv: Some("v".into()), ..Setup::default() }]
            {
                let (status, output, errors) = run(&shell, &setup, &there, &code);
                let expected = format!("{}\n<a b><$c'd>args: 0 v\n", code.display());
                assert_eq!((status, output.as_str()), (Some(0), expected.as_str()), "{shell:?} {errors}");
            }
        }
    }

    #[test]
    fn setup_1_failing_prelude_starts_nothing_and_is_explained() {
        let folder = workdir();
        for shell in shells() {
            for (line, reason) in [
                ("source /nope/activate", ""),
                ("source /nope/activate; export A=1", ""),
                (". /nope/activate\nexport A=1", "/nope/activate"),
                ("conda activate rl", "conda"),
                ("false", "status 1"),
                ("exit 0", "status 0"),
                ("exit 7", "status 7"),
                ("echo 'unclosed", ""),
                ("echo $(", ""),
                ("if true; then :", ""),
                ("cd /nope", "/nope"),
            ] {
                let (status, output, errors) = run(&shell, &prelude(line), folder.path(), folder.path());
                assert!(status != Some(0) && output.is_empty(), "{shell:?}: {line}: {status:?} {output}");
                assert!(errors.contains(reason) && !errors.is_empty(), "{shell:?}: {line}: {errors}");
            }
            for line in
                ["[ -f nope ] && . nope", "false || true", "# nothing", "export X=1 # end", "x=$(true); y=1"]
            {
                let (status, _, errors) = run(&shell, &prelude(line), folder.path(), folder.path());
                assert_eq!(status, Some(0), "{shell:?}: {line}: {errors}");
            }
        }
    }

    #[test]
    fn keys_for_environments_do_what_their_tools_document_or_refuse() {
        let folder = workdir();
        let there = folder.path();
        let conda = || Setup { conda: Some("rl".into()), ..Setup::default() };
        let uv = || Setup { uv: Some(Uv::Folder("project".into())), ..Setup::default() };
        let modules = || Setup { modules: vec!["cuda/12".into(), "gcc".into()], ..Setup::default() };
        let missing = Setup { venv: Some("other".into()), ..Setup::default() };
        for shell in shells() {
            for (setup, reason) in [(missing.clone(), "other/bin/activate"), (uv(), "uv")] {
                let (status, output, errors) = run(&shell, &setup, there, there);
                assert!(
                    status == Some(1) && output.is_empty() && errors.contains(reason),
                    "{shell:?} {errors}"
                );
            }
        }
        std::fs::create_dir_all(there.join("miniforge3/bin")).unwrap();
        program(
            there,
            "conda",
            "[ \"$*\" = 'shell.posix hook' ] && echo 'conda() { [ \"$1 $2\" = \"activate rl\" ] && MARK=conda && export MARK; }'",
        );
        std::fs::rename(there.join("bin/conda"), there.join("miniforge3/bin/conda")).unwrap();
        program(
            there,
            "uv",
            "[ \"$1 $2 $3\" = 'sync --quiet --project' ] && mkdir -p \"$UV_PROJECT_ENVIRONMENT/bin\" && echo 'MARK=uv; export MARK' > \"$4/.venv/bin/activate\"",
        );
        std::fs::create_dir_all(there.join("init")).unwrap();
        std::fs::write(
            there.join("init/sh"),
            "module() { [ \"$1\" = load ] && MARK=\"$2 $3\" && export MARK; }\n",
        )
        .unwrap();
        for shell in shells() {
            for (setup, mark) in [(conda(), "conda"), (uv(), "uv")] {
                let (status, output, errors) = run(&shell, &setup, there, there);
                assert!(status == Some(0) && output.contains(mark), "{shell:?} {output} {errors}");
            }
            let other = Setup { conda: Some("nope".into()), ..Setup::default() };
            assert_ne!(run(&shell, &other, there, there).0, Some(0), "{shell:?}");
            let stage = ScriptContext {
                workdir: there,
                folder: there,
                container: Container::default(),
                probe_only: false,
            };
            let script = script(&modules(), &stage, &["sh", "-c", "echo $MARK"].map(OsString::from));
            let output =
                Command::new(&shell).arg("-c").arg(script).env("MODULESHOME", there).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "cuda/12 gcc\n", "{shell:?} {output:?}");
        }
    }

    #[test]
    fn probe_makes_no_environment() {
        let folder = workdir();
        let stage = ScriptContext {
            workdir: folder.path(),
            folder: folder.path(),
            container: Container::default(),
            probe_only: true,
        };
        let setup = Setup { uv: Some(Uv::Here(true)), ..Setup::default() };
        let script = script(&setup, &stage, &["true".into()]);
        assert!(!script.to_str().unwrap().contains("uv sync"));
    }

    #[test]
    fn shell_is_the_login_shell_or_bash_or_sh() {
        let folder = tempfile::tempdir().unwrap();
        let bash = folder.path().join("bash");
        let folders = || [folder.path().to_owned()].into_iter();
        assert_eq!(choose(None, folders()), Path::new("/bin/sh"));
        std::fs::write(&bash, "").unwrap();
        assert_eq!(choose(None, folders()), bash);
        for login in ["/usr/bin/fish", "/bin/tcsh", "/bin/dash", "/nope/zsh", "bash"] {
            assert_eq!(choose(Some(login.into()), folders()), bash, "{login}");
        }
        let zsh = folder.path().join("zsh");
        std::fs::write(&zsh, "").unwrap();
        assert_eq!(choose(Some(zsh.clone()), folders()), zsh);
    }

    #[test]
    fn containers_are_run_as_their_tools_document() {
        let line = |container: &str, gpu| {
            let stage = ScriptContext {
                workdir: "/w".as_ref(),
                folder: "/w/code".as_ref(),
                container: Container {
                    name: "r-0".into(),
                    folders: vec!["/w".as_ref(), "/run/u".as_ref()],
                    variables: vec!["RANK".into()],
                    gpu,
                },
                probe_only: false,
            };
            let setup = Setup { container: Some(container.into()), ..Setup::default() };
            let script = script(&setup, &stage, &["python".into(), "a b.py".into()]);
            script.to_str().unwrap().lines().last().unwrap().to_owned()
        };
        assert_eq!(
            line("apptainer --cleanenv docker://a/b:1", true),
            "exec apptainer exec --pwd /w/code --bind /w:/w --bind /run/u:/run/u --nv --cleanenv docker://a/b:1 \
         python 'a b.py'"
        );
        assert_eq!(
            line("podman a/b", true),
            "exec podman run --rm --network=host --ipc=host --pid=host --name r-0 --workdir /w/code \
         --volume /w:/w --volume /run/u:/run/u --env RANK --device nvidia.com/gpu=all \
         $([ \"$(id -u)\" = 0 ] || echo --userns=keep-id) --env HOME=/tmp a/b python 'a b.py'"
        );
        assert!(!line("docker a/b", false).contains("gpus"));
    }

    #[test]
    fn only_tools_with_own_monitors_remove_containers() {
        let of = |container: &str| {
            let setup = Setup { container: Some(container.into()), ..Setup::default() };
            let name = container_name(&RunId("r".into()), Generation(2), Rank(0));
            removal(&setup, vec![name]).map(|words| words.join(OsStr::new(" ")))
        };
        assert_eq!(of("podman a/b").unwrap(), "podman rm --force r-gen2-rank0");
        assert_eq!(of("/opt/docker --shm-size 8g a/b").unwrap(), "/opt/docker rm --force r-gen2-rank0");
        assert_eq!(of("apptainer a.sif"), None);
    }
}
