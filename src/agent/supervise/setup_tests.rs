//! What comes before a rank, in the shells that are here.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// What a program that shows where it is and what it was told says, its status and its errors.
fn told(shell: &Path, setup: &Setup, workdir: &Path, folder: &Path) -> (Option<i32>, String, String) {
    let argv = ["sh", "-c", "pwd; printf '<%s>' \"$@\"; echo \"$MARK $VIRTUAL_ENV\"", "x", "a b", "$c'd"];
    let stage = Stage { workdir, folder, container: Container::default(), look_only: false };
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

/// A folder with an environment `v`, whose script is what venv writes, in short.
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
fn setup_2_words_arrive_unchanged_and_a_sourced_script_sees_none_of_them() {
    let folder = workdir();
    let there = folder.path().canonicalize().unwrap();
    let code = there.join("v");
    for shell in shells() {
        for setup in [prelude(". ./v/bin/activate"), Setup { venv: Some("v".into()), ..Setup::default() }] {
            let (status, said, errors) = told(&shell, &setup, &there, &code);
            let expected = format!("{}\n<a b><$c'd>args: 0 v\n", code.display());
            assert_eq!((status, said.as_str()), (Some(0), expected.as_str()), "{shell:?} {errors}");
        }
    }
}

#[test]
fn setup_1_a_prelude_that_fails_starts_nothing_and_says_why() {
    let folder = workdir();
    for shell in shells() {
        for (line, says) in [
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
            let (status, said, errors) = told(&shell, &prelude(line), folder.path(), folder.path());
            assert!(status != Some(0) && said.is_empty(), "{shell:?}: {line}: {status:?} {said}");
            assert!(errors.contains(says) && !errors.is_empty(), "{shell:?}: {line}: {errors}");
        }
        for line in
            ["[ -f nope ] && . nope", "false || true", "# nothing", "export X=1 # end", "x=$(true); y=1"]
        {
            let (status, _, errors) = told(&shell, &prelude(line), folder.path(), folder.path());
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
        for (setup, says) in [(missing.clone(), "other/bin/activate"), (uv(), "uv")] {
            let (status, said, errors) = told(&shell, &setup, there, there);
            assert!(status == Some(1) && said.is_empty() && errors.contains(says), "{shell:?} {errors}");
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
            let (status, said, errors) = told(&shell, &setup, there, there);
            assert!(status == Some(0) && said.contains(mark), "{shell:?} {said} {errors}");
        }
        let other = Setup { conda: Some("nope".into()), ..Setup::default() };
        assert_ne!(told(&shell, &other, there, there).0, Some(0), "{shell:?}");
        let stage =
            Stage { workdir: there, folder: there, container: Container::default(), look_only: false };
        let script = script(&modules(), &stage, &["sh", "-c", "echo $MARK"].map(OsString::from));
        let output = Command::new(&shell).arg("-c").arg(script).env("MODULESHOME", there).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "cuda/12 gcc\n", "{shell:?} {output:?}");
    }
}

#[test]
fn a_look_makes_no_environment() {
    let folder = workdir();
    let stage = Stage {
        workdir: folder.path(),
        folder: folder.path(),
        container: Container::default(),
        look_only: true,
    };
    let setup = Setup { uv: Some(Uv::Here(true)), ..Setup::default() };
    let script = script(&setup, &stage, &["true".into()]);
    assert!(!script.to_str().unwrap().contains("uv sync"));
}

#[test]
fn the_shell_is_the_login_shell_or_bash_or_sh() {
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
        let stage = Stage {
            workdir: "/w".as_ref(),
            folder: "/w/code".as_ref(),
            container: Container {
                name: "r-0".into(),
                folders: vec!["/w".as_ref(), "/run/u".as_ref()],
                variables: vec!["RANK".into()],
                gpu,
            },
            look_only: false,
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
fn only_tools_with_monitors_of_their_own_are_told_to_forget() {
    let of = |container: &str| {
        let setup = Setup { container: Some(container.into()), ..Setup::default() };
        let name = container_name(&RunId("r".into()), Generation(2), Rank(0));
        removal(&setup, vec![name]).map(|words| words.join(OsStr::new(" ")))
    };
    assert_eq!(of("podman a/b").unwrap(), "podman rm --force r-gen2-rank0");
    assert_eq!(of("/opt/docker --shm-size 8g a/b").unwrap(), "/opt/docker rm --force r-gen2-rank0");
    assert_eq!(of("apptainer a.sif"), None);
}
