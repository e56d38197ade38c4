//! The program that ranks will run: is it there as a rank would find it, and which Python and torch are
//! behind it?
//!
//! Owner: one preflight. The shell, the environment and the folder are those of a rank; nothing imports
//! torch, whose version is read from its files.

use crate::paths;
use crate::supervise::groups;

use rankdeck_proto::examination::{Program, Python, Question};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a prelude and an interpreter may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Most output that is read.
const MAX_OUTPUT: u64 = 1 << 20;

/// Asks an interpreter without importing anything that costs time.
const SCRIPT: &str = r#"
import sys, os
version = cuda = ""
for folder in sys.path:
    path = os.path.join(folder or ".", "torch", "version.py")
    if os.path.isfile(path):
        for line in open(path):
            if line.startswith("__version__"):
                version = line.split("'")[1] if "'" in line else ""
            if line.startswith("cuda") and "'" in line:
                cuda = line.split("'")[1]
        break
print("RANKDECK-PYTHON", sys.version.split()[0], version or "-", cuda or "-")
"#;

/// Looks for the program of a question; `None` for the built-in trainer.
pub(super) fn look(question: &Question, workdir: &Path) -> Option<Program> {
    let program = question.command.first()?;
    let is_python =
        Path::new(program).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    let folder = nearest(workdir);
    let mut script = question.prelude.clone().unwrap_or_default();
    script += "\nprintf 'RANKDECK-PROGRAM %s\\n' \"$(command -v \"$0\")\"";
    if is_python {
        script += "\nexec \"$0\" -c \"$1\"";
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, program, SCRIPT]).envs(&question.env).current_dir(&folder);
    let mut found = Program::default();
    match run(&mut command, PATIENCE) {
        Ok(said) => {
            let after = |marker: &str| said.lines().find_map(|line| line.strip_prefix(marker)).map(str::trim);
            found.path = after("RANKDECK-PROGRAM").filter(|path| !path.is_empty()).map(str::to_owned);
            if found.path.is_none() {
                found.error = Some(format!("`{program}` is not found in a shell without login"));
            }
            found.python = after("RANKDECK-PYTHON").and_then(python);
            if is_python && found.path.is_some() && found.python.is_none() {
                found.error = Some(format!("`{program}` does not run"));
            }
        }
        Err(error) => found.error = Some(error),
    }
    if let Some(script) = script_of(&question.command) {
        let script = if script.starts_with('~') { paths::expand(script) } else { workdir.join(script) };
        found.script_exists = script.is_file();
        found.script = Some(script.display().to_string());
    }
    Some(found)
}

fn python(line: &str) -> Option<Python> {
    let mut words = line.split_whitespace();
    let known = |word: Option<&str>| word.filter(|word| *word != "-").map(str::to_owned);
    Some(Python { version: words.next()?.to_owned(), torch: known(words.next()), cuda: known(words.next()) })
}

/// The script among an interpreter's arguments.
pub fn script_of(command: &[String]) -> Option<&str> {
    let program = Path::new(command.first()?).file_name()?.to_string_lossy().into_owned();
    if !["python", "torchrun", "bash", "sh"].iter().any(|name| program.starts_with(name)) {
        return None;
    }
    for argument in command.get(1..)? {
        match argument.as_str() {
            // What follows is a program text or a module's name.
            "-c" | "-m" => return None,
            option if option.starts_with('-') => {}
            path if path.ends_with(".py") || path.ends_with(".sh") => return Some(path),
            // The value of an option, or something else that we do not understand.
            _ if program.starts_with("torchrun") => {}
            _ => return None,
        }
    }
    None
}

/// Version of an unpacked libtorch: the wheel's `version.py`, or the archive's `build-version`.
pub fn torch_version(folder: &Path) -> Option<String> {
    let wheel = std::fs::read_to_string(folder.join("version.py")).ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("__version__"))?;
        Some(line.split('\'').nth(1)?.to_owned())
    });
    wheel.or_else(|| {
        let text = std::fs::read_to_string(folder.join("build-version")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    })
}

/// `path`, or the nearest folder above it that is there.
pub(super) fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Standard output of a command; everything of its process group is killed after `within`.
pub(super) fn run(command: &mut Command, within: Duration) -> Result<String, String> {
    groups::set_apart(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().to_string_lossy()))?;
    let pid = child.id() as i32;
    let output = child.stdout.take().ok_or("no pipe")?;
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.take(MAX_OUTPUT).read_to_end(&mut text);
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    let said = answer.recv_timeout(within);
    // SAFETY: kill takes integers; the child is not reaped yet, so the group (its own session) is still its.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let _ = child.wait();
    said.map_err(|_| format!("it gave no answer within {} s", within.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_script_is_what_the_interpreter_runs() {
        assert_eq!(script_of(&words("python3 -u train.py --lr 1 other.py")), Some("train.py"));
        assert_eq!(script_of(&words("torchrun --nproc 2 train.py")), Some("train.py"));
        assert_eq!(script_of(&words("python3 -m pkg.train")), None);
        assert_eq!(script_of(&words("python3 -c print(1) a.py")), None);
        assert_eq!(script_of(&words("./train a.py")), None);
        assert_eq!(script_of(&[]), None);
    }

    #[test]
    fn a_program_is_found_as_a_rank_would_find_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "").unwrap();
        let look = |command: &str, prelude: Option<&str>| {
            let question = Question {
                command: words(command),
                prelude: prelude.map(str::to_owned),
                ..Question::default()
            };
            look(&question, folder.path()).unwrap()
        };
        let found = look("python3 train.py", Some("echo noise"));
        assert!(found.error.is_none() && found.script_exists && found.python.is_some(), "{found:?}");
        assert!(!look("python3 missing.py", None).script_exists);
        assert!(look("no-such-program x", None).error.unwrap().contains("no-such-program"));
        let hidden = look("python3 train.py", Some("PATH=/nonexistent"));
        assert!(hidden.error.is_some(), "{hidden:?}");
        assert!(look("python3 train.py", Some("exit 3")).error.is_some());
    }

    #[test]
    fn versions_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(torch_version(folder.path()), None);
        std::fs::write(folder.path().join("build-version"), "2.11.0+cpu\n").unwrap();
        assert_eq!(torch_version(folder.path()).as_deref(), Some("2.11.0+cpu"));
        std::fs::write(folder.path().join("version.py"), "x = 1\n__version__ = '2.11.1'\n").unwrap();
        assert_eq!(torch_version(folder.path()).as_deref(), Some("2.11.1"));
        assert_eq!(python("3.11.2 - -").unwrap().torch, None);
        assert_eq!(python("3.11.2 2.11.0+cu130 13.0").unwrap().cuda.as_deref(), Some("13.0"));
    }
}
