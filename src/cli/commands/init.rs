//! `rankdeck init`: writes a hosts file from the hosts' answers, and an experiment file for a script.
//! Existing files are not overwritten without `--force`.

use crate::app::stderr;
use crate::cli::args::InitArgs;
use crate::cli::support::output_file::OutputFile;
use crate::cli::support::run_index::{self, own_binary};
use crate::cli::support::{Failure, code, print, prompt};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, Links, Prompter};
use rankdeck_proto::examination::{HostFindings, HostQuestion};
use rankdeck_proto::folders;
use rankdeck_proto::regular;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::quote;
use rankdeck_types::words::{bytes, clean};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HOSTS: &str = "hosts.toml";
/// Most bytes of a script that are read.
const SCRIPT: u64 = 1 << 20;
/// Most aliases of the user's SSH configuration that are listed.
const ALIASES: usize = 20;

/// Runs `rankdeck init`.
pub(crate) async fn init(args: InitArgs) -> Result<u8, Failure> {
    let (given, names) = sorted(&args)?;
    let script = match given {
        Some(path) if !path.is_file() => {
            return Err(Failure::usage(format!("script not found: {}", path.display()))
                .hint("pass the path of your training script: `rankdeck init train.py`"));
        }
        Some(path) => Some(path),
        None => find_script(Path::new(".")),
    };
    let command = script.as_deref().map(command_of).transpose()?;
    let source = match names.is_empty() {
        true => HostsSource::Here,
        false => HostsSource::Named(names),
    };
    let hosts = rankdeck_config::load_hosts(&source)?;
    let answers = ask(&hosts, &args).await?;
    let text = hosts_file(&hosts, &answers, &aliases(&folders::home().join(".ssh/config")));
    write(Path::new(HOSTS), &text, &args)?;
    for (host, answer) in hosts.iter().zip(&answers) {
        if let Ok(found) = answer {
            args.output.detail(&format!("  {}: {}", host.name, described(found)));
        }
    }
    print::errors(answers.iter().filter_map(|answer| answer.as_ref().err()));
    let (Some(script), Some(command)) = (script, command) else {
        stderr::line(
            "hint: no Python script found in this directory; pass one with `rankdeck init train.py`",
        );
        return Ok(exit(&answers));
    };
    let name = script.with_extension("toml");
    let name = match name.file_name() {
        Some(name) if name != HOSTS => PathBuf::from(name),
        _ => PathBuf::from("experiment.toml"),
    };
    write(&name, &experiment_file(&script, &command), &args)?;
    let file = name.display();
    args.output.detail(&format!("next: `rankdeck check {file}`, then `rankdeck run {file}`"));
    Ok(exit(&answers))
}

fn exit(answers: &[Result<HostFindings, HintedError>]) -> u8 {
    if answers.iter().any(Result::is_err) { code::HOST } else { code::SUCCESS }
}

async fn ask(hosts: &[Host], args: &InitArgs) -> Result<Vec<Result<HostFindings, HintedError>>, Failure> {
    let prompter: Arc<dyn Prompter> = prompt::TerminalPrompter::new(&args.host_keys);
    let command = |_, host: &Host| {
        // On this machine, ranks run in the user's own directory.
        let here = std::env::current_dir().ok().filter(|_| host.transport == Transport::Local);
        let question = HostQuestion {
            workdir: host.workdir.clone(),
            folder: here.map(|folder| folder.display().to_string()),
            command: vec!["python3".into(), "-c".into(), String::new()],
            ..HostQuestion::default()
        };
        AgentCommand {
            args: vec!["examine".into()],
            input: serde_json::to_vec(&question).unwrap_or_default(),
            ..AgentCommand::default()
        }
    };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    let decoded =
        hosts.iter().zip(replies).map(|(host, reply)| run_index::decode::<HostFindings>(host, &reply?.text));
    Ok(decoded.collect())
}

/// Writes a file unless it exists.
fn write(path: &Path, text: &str, args: &InitArgs) -> Result<(), Failure> {
    let record = |is_new: bool| json!({ "kind": "file", "file": path, "written": is_new });
    if path.exists() && !args.force {
        stderr::line(&format!(
            "note: {} already exists and is unchanged (`--force` overwrites it)",
            path.display()
        ));
        args.output.record(|| record(false));
        return Ok(());
    }
    OutputFile::new(path)?.write(text.as_bytes())?;
    args.output.outcome(&format!("wrote {}", path.display()));
    args.output.record(|| record(true));
    Ok(())
}

/// Describes GPUs, Python and torch in a few words.
fn described(found: &HostFindings) -> String {
    let gpus = match (found.probe.gpu_count, found.gpus.first()) {
        (0, _) => "no GPU".to_owned(),
        (count, Some(gpu)) if gpu.memory_total == 0 => format!("{count} x {}", gpu.name),
        (count, Some(gpu)) => format!("{count} x {} ({})", gpu.name, bytes(gpu.memory_total)),
        (count, None) => format!("{count} GPUs"),
    };
    let python = found.program.as_ref().and_then(|program| program.python.as_ref());
    let python = match python {
        Some(python) => {
            let torch = match (&python.torch, &python.venv) {
                (Some(torch), _) => format!("torch {torch}"),
                (None, Some(venv)) => format!("no torch (`--venv {}` has it)", quote::word(venv)),
                (None, None) => "no torch".to_owned(),
            };
            format!("Python {} ({}), {torch}", python.version, python.prefix)
        }
        None => "no python3".to_owned(),
    };
    clean(&format!("{} cores, {gpus}, {python}", found.probe.cpu_count))
}

fn hosts_file(hosts: &[Host], answers: &[Result<HostFindings, HintedError>], aliases: &[String]) -> String {
    let mut text = String::from(
        "# Hosts in node-rank order. All keys: `rankdeck help hosts`, `rankdeck schema hosts`.\n\n\
         [defaults]\n\
         # Python environment of the ranks; choose one:\n\
         # venv = \"venv\"                   # relative to workdir\n\
         # conda = \"rl\"\n\
         # uv = true\n",
    );
    for (host, answer) in hosts.iter().zip(answers) {
        text.push('\n');
        let _ = match answer {
            Ok(found) => writeln!(text, "# {}", described(found)),
            Err(error) => writeln!(text, "# not reached: {}", clean(&error.error)),
        };
        let _ = writeln!(text, "[[host]]\nname = {:?}", host.name);
        if host.transport == Transport::Local {
            text += "transport = \"local\"\n";
        } else if host.address != host.name {
            let _ = writeln!(text, "address = {:?}", host.address);
        }
        if let Some(port) = host.port {
            let _ = writeln!(text, "port = {port}");
        }
        if let Some(user) = &host.user {
            let _ = writeln!(text, "user = {user:?}");
        }
        match answer {
            Ok(found) if found.probe.gpu_count > 0 => text += "gpus = \"all\"\n",
            Ok(_) => text += "nproc = 1                         # ranks; no GPU found\n",
            Err(_) => text += "# gpus = \"all\"\n",
        }
    }
    let others: Vec<&String> =
        aliases.iter().filter(|alias| !hosts.iter().any(|host| host.name == **alias)).collect();
    if !others.is_empty() {
        text += "\n# Also in ~/.ssh/config:\n";
        for alias in others.into_iter().take(ALIASES) {
            let _ = writeln!(text, "# [[host]]\n# name = {alias:?}");
        }
    }
    text
}

/// Returns the host names of an SSH configuration, without patterns.
fn aliases(config: &Path) -> Vec<String> {
    let text = regular::read_text(config).unwrap_or_default();
    let names = text.lines().filter_map(|line| {
        let (word, rest) = line.trim().split_once(|c: char| c.is_whitespace() || c == '=')?;
        word.eq_ignore_ascii_case("host").then(|| rest.trim_start_matches('=').to_owned())
    });
    let mut found: Vec<String> = Vec::new();
    for name in names.flat_map(|names| names.split_whitespace().map(str::to_owned).collect::<Vec<_>>()) {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if plain && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Extensions of scripts, and of files passed instead of one.
const ENDS: [&str; 4] = ["py", "sh", "bash", "toml"];

/// Splits the arguments into script and hosts: an existing file, or a name with the extension of a script, is
/// the script.
fn sorted(args: &InitArgs) -> Result<(Option<PathBuf>, Vec<String>), Failure> {
    let is_script = |text: &&String| {
        let path = Path::new(text.as_str());
        path.is_file() || path.extension().is_some_and(|end| ENDS.iter().any(|one| end == *one))
    };
    let (scripts, hosts): (Vec<&String>, Vec<&String>) = args.given.iter().partition(is_script);
    let mut scripts: Vec<PathBuf> = scripts.into_iter().map(PathBuf::from).collect();
    scripts.extend(args.script.clone());
    if let [first, second, ..] = scripts.as_slice() {
        let error = format!("two scripts: {} and {}", first.display(), second.display());
        return Err(Failure::usage(error).hint("pass one script per `rankdeck init`"));
    }
    Ok((scripts.pop(), hosts.into_iter().cloned().collect()))
}

/// Returns the command of a script: by its extension, else the script itself.
fn command_of(script: &Path) -> Result<Vec<String>, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let path = script.display().to_string();
    let with =
        |words: &[&str]| Ok(words.iter().map(|word| (*word).to_owned()).chain([path.clone()]).collect());
    match script.extension().and_then(|end| end.to_str()) {
        Some("py") => return with(&["python3", "-u"]),
        Some("sh" | "bash") => return with(&["bash"]),
        Some("toml") => {
            return Err(Failure::usage(format!("not a script: {path}"))
                .hint("pass the script itself, and hosts by name"));
        }
        _ => {}
    }
    let mode = std::fs::metadata(script).map_or(0, |metadata| metadata.permissions().mode());
    let first = read(script).lines().next().unwrap_or_default().to_owned();
    match first.starts_with("#!") && first.contains("python") {
        true => with(&["python3", "-u"]),
        false if mode & 0o111 != 0 && path.contains('/') => with(&[]),
        false if mode & 0o111 != 0 => Ok(vec![format!("./{path}")]),
        false => Err(Failure::usage(format!("not a Python script or an executable: {path}"))
            .hint(format!("if it is a program, run `chmod +x {path}`"))),
    }
}

/// Finds the script in a directory: `train.py` or `main.py`, else the only Python program.
fn find_script(folder: &Path) -> Option<PathBuf> {
    for name in ["train.py", "main.py", "run.py"] {
        if folder.join(name).is_file() {
            return Some(name.into());
        }
    }
    let scripts = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut programs = scripts
        .filter(|path| path.extension().is_some_and(|end| end == "py"))
        .filter(|path| read(path).contains("__main__"));
    match (programs.next(), programs.next()) {
        (Some(only), None) => Some(PathBuf::from(only.file_name()?)),
        _ => None,
    }
}

fn experiment_file(script: &Path, words: &[String]) -> String {
    let source = ExperimentSource::Command { words: words.to_vec(), ships: true };
    let name = rankdeck_config::load_experiment(&source, &[])
        .map_or("mine".into(), |experiment| experiment.run.name);
    let mut text = format!(
        "# All keys: `rankdeck schema experiment`.\n\n[run]\nname = {name:?}\n\n[launch]\ncommand = {words:?}\n\
         code = \".\"                          # copied to every host, except files that git ignores\n"
    );
    let source = read(script);
    let keys: Vec<&str> = ["WANDB_API_KEY", "HF_TOKEN"]
        .into_iter()
        .filter(|key| source.contains(key) || *key == "WANDB_API_KEY" && source.contains("import wandb"))
        .collect();
    if !keys.is_empty() {
        let _ = writeln!(
            text,
            "# pass_env = {keys:?}         # passed from your shell; values are written to no file"
        );
    }
    text += METRICS;
    text
}

/// `[metrics]` for what is not recognized in the output.
const METRICS: &str = "\n# [metrics]                         # the usual output and log files are recognized without it\n\
    # stdout = ['loss[=: ]+(?P<loss>[-+0-9.eE]+)']\n\
    # names = { return = \"my/score\" }\n";

/// Returns the start of a script; empty if it cannot be read.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = regular::open(path).map(|file| file.take(SCRIPT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_metrics_are_valid_keys() {
        let text: String =
            METRICS.lines().map(|line| line.trim_start_matches("# ").to_owned() + "\n").collect();
        let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
        let metrics: rankdeck_types::experiment::Metrics = table["metrics"].clone().try_into().unwrap();
        assert!(rankdeck_types::meaning::compile_patterns(&metrics).is_ok());
    }

    #[test]
    fn init_separates_script_from_hosts() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let put = |name: &str, text: &str, mode: u32| {
            std::fs::write(at(name), text).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
            at(name)
        };
        let split = |given: &[&str], script: Option<&str>| {
            let args = InitArgs {
                given: given.iter().map(|one| (*one).to_owned()).collect(),
                script: script.map(PathBuf::from),
                force: false,
                host_keys: Default::default(),
                output: Default::default(),
            };
            sorted(&args)
                .map(|(script, hosts)| (script.map(|path| path.display().to_string()), hosts.join(" ")))
        };
        let plain = put("train", "#!/bin/sh\n", 0o755);
        for script in ["train.py", "gone/x.sh", plain.as_str()] {
            assert_eq!(
                split(&["gpu-a", script, "gpu-b"], None).unwrap(),
                (Some(script.into()), "gpu-a gpu-b".into())
            );
        }
        assert_eq!(split(&["gpu-a"], Some("x.py")).unwrap(), (Some("x.py".into()), "gpu-a".into()));
        assert!(split(&["a.py", "b.py"], None).is_err() && split(&["a.py"], Some("b.py")).is_err());
        let words = |path: &str| command_of(Path::new(path)).map(|words| words.join(" "));
        assert_eq!(words("a.py").unwrap(), "python3 -u a.py");
        assert_eq!(words("d/a.sh").unwrap(), "bash d/a.sh");
        assert_eq!(words(&plain).unwrap(), plain);
        let python = put("tool", "#!/usr/bin/env python3\n", 0o644);
        assert_eq!(words(&python).unwrap(), format!("python3 -u {python}"));
        for odd in [put("notes", "words", 0o644), put("e.toml", "", 0o644)] {
            assert!(words(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn aliases_are_the_names_without_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(
            &file,
            "Host gpu-a gpu-b\n  HostName x\nHost *.lab !bad\nhost=c\nMatch all\nHost gpu-a\n",
        )
        .unwrap();
        assert_eq!(aliases(&file), ["gpu-a", "gpu-b", "c"]);
        assert!(aliases(Path::new("/nope")).is_empty());
    }
}
