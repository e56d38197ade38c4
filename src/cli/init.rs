//! `rankdeck init`: a hosts file from the hosts themselves, and an experiment from a script.
//!
//! Owner: the user, who reads both files before the first run. Nothing that is there is written over.

use super::args::InitArgs;
use super::prompt;
use super::roster::{self, own_binary};
use super::{Failure, code, print};
use crate::shell::stderr;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_link::{AgentCommand, Links, Prompter};
use rankdeck_proto::examination::{Findings, Question};
use rankdeck_proto::folders;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::words::{bytes, clean};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HOSTS: &str = "hosts.toml";
/// Most aliases of the user's SSH configuration that are listed.
const ALIASES: usize = 20;
/// Most bytes of a script that are read.
const SCRIPT: u64 = 1 << 20;

/// Runs `rankdeck init`.
pub async fn init(args: InitArgs) -> Result<u8, Failure> {
    let script = match &args.script {
        Some(path) if !path.is_file() => {
            return Err(Failure::usage(format!("there is no script {}", path.display()))
                .hint("give the path of your training script, such as `--script train.py`"));
        }
        Some(path) => Some(path.clone()),
        None => guess(Path::new(".")),
    };
    let source = match args.hosts.is_empty() {
        true => HostsSource::Here,
        false => HostsSource::Named(args.hosts.clone()),
    };
    let hosts = rankdeck_config::load_hosts(&source)?;
    let answers = ask(&hosts, &args).await?;
    let text = hosts_file(&hosts, &answers, &aliases(&folders::home().join(".ssh/config")));
    write(Path::new(HOSTS), &text, args.force)?;
    for (host, answer) in hosts.iter().zip(&answers) {
        match answer {
            Ok(found) => {
                print::stdout(&format!("  {}: {}", host.name, described(found)));
            }
            Err(error) => print::error(error),
        }
    }
    let Some(script) = script else {
        stderr::line(
            "hint: no Python script was found here; `rankdeck init --script train.py` writes its experiment",
        );
        return Ok(exit(&answers));
    };
    let name = script.with_extension("toml");
    let name = PathBuf::from(name.file_name().unwrap_or(name.as_os_str()));
    write(&name, &experiment_file(&script), args.force)?;
    let file = name.display();
    print::stdout(&format!("next: `rankdeck check {file}`, then `rankdeck run {file}`"));
    Ok(exit(&answers))
}

fn exit(answers: &[Result<Findings, HintedError>]) -> u8 {
    if answers.iter().any(Result::is_err) { code::HOST } else { code::SUCCESS }
}

async fn ask(hosts: &[Host], args: &InitArgs) -> Result<Vec<Result<Findings, HintedError>>, Failure> {
    let prompter: Arc<dyn Prompter> = prompt::Terminal::new(&args.host_keys);
    let command = |_, host: &Host| {
        let question = Question {
            workdir: host.workdir.clone(),
            command: vec!["python3".into(), "-c".into(), String::new()],
            ..Question::default()
        };
        AgentCommand {
            args: vec!["examine".into()],
            input: serde_json::to_vec(&question).unwrap_or_default(),
            ..AgentCommand::default()
        }
    };
    let replies = Links::from_environment().call_all(hosts, &own_binary()?, &prompter, command).await;
    let decoded =
        hosts.iter().zip(replies).map(|(host, reply)| roster::decode::<Findings>(host, &reply?.text));
    Ok(decoded.collect())
}

/// Writes a file that is not there yet.
fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        stderr::line(&format!(
            "note: {} is there already, and stays as it is (`--force` writes over it)",
            path.display()
        ));
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| {
        Failure::failed(format!("cannot write {}: {error}", path.display()))
            .hint("run it in a folder that you may write to")
    })?;
    print::stdout(&format!("wrote {}", path.display()));
    Ok(())
}

/// GPUs, Python and torch in a few words.
fn described(found: &Findings) -> String {
    let gpus = match (found.probe.gpu_count, found.gpus.first()) {
        (0, _) => "no GPU".to_owned(),
        (count, Some(gpu)) if gpu.memory_total == 0 => format!("{count} x {}", gpu.name),
        (count, Some(gpu)) => format!("{count} x {} ({})", gpu.name, bytes(gpu.memory_total)),
        (count, None) => format!("{count} GPUs"),
    };
    let python = found.program.as_ref().and_then(|program| program.python.as_ref());
    let python = match python {
        Some(python) => {
            let torch = python.torch.as_ref().map_or("no torch".to_owned(), |torch| format!("torch {torch}"));
            format!("Python {} ({}), {torch}", python.version, python.prefix)
        }
        None => "no python3".to_owned(),
    };
    clean(&format!("{} cores, {gpus}, {python}", found.probe.cpu_count))
}

fn hosts_file(hosts: &[Host], answers: &[Result<Findings, HintedError>], aliases: &[String]) -> String {
    let mut text = String::from(
        "# The hosts of a run, in the order of node_rank. Every key: docs/CONFIG.md, or `rankdeck schema hosts`.\n\n\
         [defaults]\n\
         # Where the ranks' Python comes from; one of these:\n\
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
            Ok(_) => text += "nproc = 1                         # ranks; no GPU was found\n",
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

/// Names of hosts in an SSH configuration, without patterns.
fn aliases(config: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(config).unwrap_or_default();
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

/// The script of a folder: `train.py` or `main.py`, else the only one that looks like a program.
fn guess(folder: &Path) -> Option<PathBuf> {
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

fn read(path: &Path) -> String {
    use std::io::Read;
    let mut text = String::new();
    let _ = std::fs::File::open(path).map(|file| file.take(SCRIPT).read_to_string(&mut text));
    text
}

fn experiment_file(script: &Path) -> String {
    let words = ["python3", "-u", &script.display().to_string()].map(str::to_owned);
    let source = ExperimentSource::Command { words: words.to_vec(), ships: true };
    let name = rankdeck_config::load_experiment(&source, &[])
        .map_or("mine".into(), |experiment| experiment.run.name);
    let mut text = format!(
        "# Every key: docs/CONFIG.md, or `rankdeck schema experiment`.\n\n[run]\nname = {name:?}\n\n[launch]\ncommand = {words:?}\n\
         code = \".\"                          # copied to every host; what git ignores stays behind\n"
    );
    let source = read(script);
    let keys: Vec<&str> = ["WANDB_API_KEY", "HF_TOKEN"]
        .into_iter()
        .filter(|key| source.contains(key) || *key == "WANDB_API_KEY" && source.contains("import wandb"))
        .collect();
    if !keys.is_empty() {
        let _ = writeln!(text, "# pass_env = {keys:?}         # of your shell; values are kept nowhere");
    }
    text += &metrics(&source);
    text
}

/// `[metrics]` as the source of a script suggests it.
fn metrics(source: &str) -> String {
    let mut lines = Vec::new();
    if source.contains("SummaryWriter(") {
        lines.push(format!("tensorboard = {:?}", tensorboard(source)));
    }
    if source.contains("global_step=") && source.contains("episodic_return") {
        lines.push("presets = [\"cleanrl\"]".to_owned());
    } else {
        let patterns = printed(source);
        if !patterns.is_empty() {
            let quoted: Vec<String> = patterns.iter().map(|pattern| format!("    '{pattern}',")).collect();
            lines.push(format!("stdout = [\n{}\n]", quoted.join("\n")));
        }
    }
    match lines.is_empty() {
        true => "\n# [metrics]                         # charts from what the script prints\n# stdout = ['loss[=: ]+(?P<loss>[-+0-9.eE]+)']\n"
            .to_owned(),
        false => format!("\n[metrics]                           # guessed from the script\n{}\n", lines.join("\n")),
    }
}

/// The folder of `SummaryWriter("runs/...")`, up to its first variable part.
fn tensorboard(source: &str) -> String {
    let inside = source.split("SummaryWriter(").nth(1).unwrap_or_default();
    let inside = inside.split(')').next().unwrap_or_default();
    let text = inside.split(['"', '\'']).nth(1).unwrap_or_default();
    let fixed = text.split('{').next().unwrap_or_default();
    let folder = match fixed.len() < text.len() {
        true => fixed.rsplit_once('/').map_or("", |(folder, _)| folder),
        false => fixed,
    };
    let plain = folder.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    if folder.is_empty() || !plain { "runs".to_owned() } else { folder.to_owned() }
}

/// Patterns for `print(f"... name={value} ...")` and `name: {value}`: one per name.
fn printed(source: &str) -> Vec<String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in source.lines().filter(|line| line.contains("print(f") || line.contains(".info(f")) {
        let mut rest = line;
        while let Some(at) = rest.find('{') {
            let before = rest[..at].trim_end();
            let value = rest[at + 1..].split('}').next().unwrap_or_default();
            let label = before.strip_suffix(['=', ':']).unwrap_or(before);
            let joins = before.ends_with(['=', ':']) || rest[..at].ends_with(' ');
            let name: String = label
                .chars()
                .rev()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect();
            let is_word =
                name.starts_with(|c: char| c.is_ascii_alphabetic()) && name != "f" && !value.is_empty();
            if joins && is_word && found.len() < 8 && !found.iter().any(|(known, _)| *known == name) {
                let group = if ["step", "global_step", "timestep", "env_step"].contains(&name.as_str()) {
                    "env_step".to_owned()
                } else {
                    name.clone()
                };
                found.push((name.clone(), format!("{name}[=: ]+(?P<{group}>[-+0-9.eE_]+)")));
            }
            rest = &rest[at + 1..];
        }
    }
    found.into_iter().map(|(_, pattern)| pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_guessed_from_what_a_script_writes() {
        assert!(metrics("print(f\"global_step={s}, episodic_return={r}\")").contains("cleanrl"));
        let own = metrics(
            "writer = SummaryWriter(f\"logs/tb/{name}\")\nprint(f\"step {i} loss={loss:.3f} acc: {a}\")",
        );
        assert!(own.contains("tensorboard = \"logs/tb\""), "{own}");
        for part in ["(?P<env_step>", "loss[=: ]+(?P<loss>", "acc[=: ]+(?P<acc>"] {
            assert!(own.contains(part), "{part} {own}");
        }
        assert!(metrics("x = 1").contains("# [metrics]"));
        assert_eq!(tensorboard("SummaryWriter()"), "runs");
        assert_eq!(tensorboard("SummaryWriter(log_dir='out/x')"), "out/x");
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
