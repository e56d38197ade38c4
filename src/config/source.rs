//! Where the hosts and the experiment of a run come from: files, or the command line.

use super::diagnostic::{Diagnostic, Diagnostics, Source};
use super::document::{self, Node};
use super::{hidden, hosts, slurm};
use rankdeck_types::experiment::Metrics;
use rankdeck_types::host::{Gpus, Host};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the hosts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostsSource {
    /// The `[[host]]` tables of this file.
    File(PathBuf),
    /// Destinations of SSH, as `ssh` takes them: `user@host:port`; `local` is this machine.
    Named(Vec<String>),
    /// This machine alone: there is no hosts file, and nobody named one.
    Here,
    /// The Slurm allocation that this process runs in.
    Slurm {
        /// The hosts file whose `[defaults]` hold, if there is such a file.
        defaults: PathBuf,
    },
    /// The same with so many ranks on each host.
    Ranks(Box<HostsSource>, u32),
    /// The same with these GPUs on each host, and a rank for each.
    Devices(Box<HostsSource>, Vec<u32>),
}

/// What a source is called that is no file.
const HOSTS_OPTION: &str = "--hosts";

impl HostsSource {
    /// What `--hosts` names: a file, or destinations separated by commas.
    pub fn parse(text: &str) -> HostsSource {
        let is_list = text.contains(',') || !(text.contains('/') || text.ends_with(".toml"));
        match is_list && !Path::new(text).exists() {
            true => HostsSource::Named(text.split(',').map(|name| name.trim().to_owned()).collect()),
            false => HostsSource::File(text.into()),
        }
    }

    /// The hosts in node_rank order, with the document for errors that are found later.
    pub(super) fn read(&self) -> Result<(Vec<Host>, Node), Diagnostics> {
        match self {
            HostsSource::File(path) => hosts::read(path),
            HostsSource::Named(_) | HostsSource::Here => hosts::read_source(&self.text()?),
            HostsSource::Slurm { defaults } => slurm::read(defaults, &|name| std::env::var(name).ok()),
            HostsSource::Ranks(inner, nproc) => {
                let (mut hosts, root) = inner.read()?;
                hosts.iter_mut().for_each(|host| host.nproc = Some(*nproc));
                Ok((hosts, root))
            }
            HostsSource::Devices(inner, gpus) => {
                let (mut hosts, root) = inner.read()?;
                for host in &mut hosts {
                    (host.gpus, host.nproc) = (Some(Gpus::List(gpus.clone())), None);
                }
                Ok((hosts, root))
            }
        }
    }

    /// Hosts that no file describes, as a file would: each takes all GPUs that it has.
    fn text(&self) -> Result<Arc<Source>, Diagnostics> {
        let mut text = "[defaults]\ngpus = \"auto\"\n".to_owned();
        let local = "transport = \"local\"\n";
        if let HostsSource::Named(names) = self {
            for name in names {
                text += &match name.as_str() {
                    "local" | "localhost" => format!("[[host]]\nname = \"{name}\"\n{local}"),
                    name => destination(name).map_err(|why| {
                        let error = format!("`{}` is no destination: {why}", hidden::line(name));
                        Diagnostics::from(Diagnostic::about_file(HOSTS_OPTION, error).hint(
                            "write `--hosts a,b` with names that `ssh` knows, `user@host:port`, or the path of a hosts \
                             file",
                        ))
                    })?,
                };
            }
        } else {
            text += &format!("[[host]]\nname = \"local\"\n{local}");
        }
        Ok(Arc::new(Source::new(HOSTS_OPTION, text)))
    }

    /// The file that holds the keys of the hosts.
    fn path(&self) -> Option<&Path> {
        match self {
            HostsSource::File(path) | HostsSource::Slurm { defaults: path } => Some(path),
            HostsSource::Named(_) | HostsSource::Here => None,
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) => inner.path(),
        }
    }

    /// What the user calls the source.
    pub(super) fn name(&self) -> String {
        match self {
            HostsSource::Slurm { defaults } if !defaults.exists() => slurm::OPTION.to_owned(),
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) => inner.name(),
            _ => self.path().map_or_else(|| HOSTS_OPTION.to_owned(), |path| path.display().to_string()),
        }
    }

    /// The document alone, when it can be read.
    pub(super) fn document(&self) -> Option<Node> {
        let source = match self.path() {
            Some(path) => document::read(path, "file", "").ok()?,
            None => return None,
        };
        document::parse(&source).ok()
    }

    /// The options that name this source on a command line.
    pub fn options(&self) -> Vec<String> {
        let option = |value: String| vec![HOSTS_OPTION.to_owned(), value];
        match self {
            HostsSource::File(path) => option(path.display().to_string()),
            HostsSource::Named(names) => option(names.join(",")),
            HostsSource::Here => option("local".to_owned()),
            HostsSource::Slurm { defaults } => {
                let file = defaults.exists().then(|| option(defaults.display().to_string()));
                std::iter::once(slurm::OPTION.to_owned()).chain(file.into_iter().flatten()).collect()
            }
            HostsSource::Ranks(inner, nproc) => {
                let mut options = inner.options();
                options.extend(["--nproc".to_owned(), nproc.to_string()]);
                options
            }
            HostsSource::Devices(inner, gpus) => {
                let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
                let mut options = inner.options();
                options.extend(["--gpus".to_owned(), gpus.join(",")]);
                options
            }
        }
    }
}

/// `user@host:port` as a table of a hosts file.
fn destination(text: &str) -> Result<String, String> {
    let (user, rest) = text.rsplit_once('@').map_or((None, text), |(user, rest)| (Some(user), rest));
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (address, port) = match (bracketed, rest.rsplit_once(':')) {
        (Some((address, after)), _) => (address, after.strip_prefix(':')),
        // More colons are an IPv6 address.
        (None, Some((address, port))) if !address.contains(':') => (address, Some(port)),
        _ => (rest, None),
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err("no password is kept: `ssh-copy-id` puts a key there, or an agent has it".to_owned());
    }
    let (address_rule, user_rule) =
        (&rankdeck_types::schema::text_rules::ADDRESS, &rankdeck_types::schema::text_rules::USER);
    (address_rule.test)(address).map_err(|(why, _)| format!("its host {why}"))?;
    let name: String = address
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    let name = name.trim_start_matches(['-', '_', '.']);
    let mut table = format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\n");
    if let Some(user) = user {
        (user_rule.test)(user).map_err(|(why, _)| format!("its user {why}"))?;
        table += &format!("user = \"{user}\"\n");
    }
    if let Some(port) = port {
        let port: u16 = port.parse().map_err(|_| format!("`{port}` is no port"))?;
        table += &format!("port = {port}\n");
    }
    Ok(table)
}

/// Where the experiment comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ExperimentSource {
    /// An experiment file.
    File(PathBuf),
    /// What follows `--` on the command line.
    Command {
        /// Program and arguments.
        words: Vec<String>,
        /// The working folder goes to the hosts as the code.
        ships: bool,
        /// What is picked from what it prints and writes.
        metrics: Metrics,
    },
}

/// What the user calls a command without a file.
pub(super) const COMMAND_LINE: &str = "command line";

impl ExperimentSource {
    /// The text with its name.
    pub(super) fn source(&self) -> Result<Arc<Source>, Diagnostics> {
        match self {
            ExperimentSource::File(path) => {
                if let Some(refusal) = not_an_experiment(path) {
                    return Err(refusal.into());
                }
                let missing = "experiments are TOML files, such as `configs/cartpole_ppo.toml`";
                document::read(path, "experiment file", missing)
            }
            ExperimentSource::Command { words, ships, metrics } => {
                let mut launch = toml::Table::new();
                launch.insert("command".into(), words.clone().into());
                if *ships {
                    launch.insert("code".into(), ".".into());
                }
                let mut run = toml::Table::new();
                run.insert("name".into(), run_name(words).into());
                let mut text = toml::Table::new();
                text.insert("run".into(), run.into());
                text.insert("launch".into(), launch.into());
                if let Ok(picked) = toml::Table::try_from(metrics)
                    && !picked.is_empty()
                {
                    text.insert("metrics".into(), picked.into());
                }
                Ok(Arc::new(Source::new(COMMAND_LINE, text.to_string())))
            }
        }
    }

    /// What relative paths of the experiment begin at.
    pub fn folder(&self) -> PathBuf {
        match self {
            ExperimentSource::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            ExperimentSource::Command { .. } => PathBuf::new(),
        }
    }

    /// What the user calls it.
    pub fn name(&self) -> String {
        match self {
            ExperimentSource::File(path) => path.display().to_string(),
            ExperimentSource::Command { .. } => COMMAND_LINE.to_owned(),
        }
    }
}

/// A file that is something else by its name.
fn not_an_experiment(path: &Path) -> Option<Diagnostic> {
    let shown = path.display().to_string();
    let refuse =
        |message: &str, hint: String| Some(Diagnostic::about_file(shown.clone(), message).hint(hint));
    if path.is_dir() {
        return refuse(
            "this is a folder, and an experiment is a TOML file",
            format!("name a file in `{shown}`"),
        );
    }
    match path.extension()?.to_str()? {
        "py" => refuse(
            "this is a Python script, and an experiment is a TOML file",
            format!("without an experiment file: `rankdeck run -- python {shown}`"),
        ),
        "sh" | "bash" => refuse(
            "this is a shell script, and an experiment is a TOML file",
            format!("without an experiment file: `rankdeck run -- bash {shown}`"),
        ),
        "yaml" | "yml" | "json" | "ini" | "cfg" => refuse(
            "an experiment is a TOML file",
            "`configs/cartpole_ppo.toml` shows one; a script with a configuration of its own needs none: \
             `rankdeck run -- python train.py`"
                .to_owned(),
        ),
        _ => None,
    }
}

/// A name after the script, the module or the program.
fn run_name(words: &[String]) -> String {
    let module = words.iter().position(|word| word == "-m").and_then(|at| words.get(at + 1));
    let script = words.iter().find(|word| word.ends_with(".py") || word.ends_with(".sh"));
    let what = match (module, script) {
        (Some(module), _) => module.rsplit('.').next().unwrap_or(module),
        (None, Some(script)) => script,
        (None, None) => words.first().map_or("run", String::as_str),
    };
    let stem =
        Path::new(what).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String = stem
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .take(48)
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

/// The hosts of `source`, in node_rank order. Looks at the identity files and the environment, and at nothing
/// else outside the hosts file.
///
/// Errors: every mistake, with its line.
pub fn load_hosts(source: &HostsSource) -> Result<Vec<Host>, Diagnostics> {
    source.read().map(|(hosts, _)| hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::{Gpus, Transport};

    #[test]
    fn a_list_of_destinations_is_as_good_as_a_file() {
        let source = HostsSource::parse("gpu-a, me@10.0.0.1:2222,[fe80::1]:22,local");
        let hosts = load_hosts(&source).unwrap_or_else(|error| panic!("{error}"));
        let told: Vec<_> =
            hosts.iter().map(|host| (host.name.as_str(), host.address.as_str(), host.port)).collect();
        assert_eq!(
            told,
            [
                ("gpu-a", "gpu-a", None),
                ("10.0.0.1", "10.0.0.1", Some(2222)),
                ("fe80--1", "fe80::1", Some(22)),
                ("local", "127.0.0.1", None)
            ]
        );
        assert_eq!(hosts[1].user.as_deref(), Some("me"));
        assert!(hosts.iter().all(|host| host.gpus == Some(Gpus::Word("auto".into()))));
        assert_eq!((hosts[0].transport, hosts[3].transport), (Transport::Ssh, Transport::Local));
        assert_eq!(source.options(), ["--hosts", "gpu-a,me@10.0.0.1:2222,[fe80::1]:22,local"]);
    }

    #[test]
    fn what_names_no_host_is_refused_and_paths_are_files() {
        for bad in ["a,,b", "a b", "-oProxyCommand=x", "a:port", "@a", "a,a", "$(x),b"] {
            let error = load_hosts(&HostsSource::parse(bad)).map(drop).unwrap_err().to_string();
            assert!(error.contains("--hosts"), "{bad}: {error}");
        }
        for file in ["lab.toml", "some/where", "./hosts"] {
            assert_eq!(HostsSource::parse(file), HostsSource::File(file.into()), "{file}");
        }
    }

    #[test]
    fn a_run_is_named_after_what_it_runs() {
        let name = |line: &str| run_name(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, expected) in [
            ("python -u train.py --lr 1", "train"),
            ("python3 src/my train.py", "train"),
            ("python -m pkg.sub.ppo --x a.py", "ppo"),
            ("./run.sh", "run"),
            ("/opt/bin/solver 3", "solver"),
            ("_odd name", "odd"),
            ("\u{e9}", "run"),
        ] {
            assert_eq!(name(line), expected, "{line}");
        }
    }
}
