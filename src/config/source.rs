//! Sources of the hosts and the experiment of a run: files, or the command line.

use super::diagnostic::{Diagnostic, Diagnostics, SourceText};
use super::document::{self, Node};
use super::hosts;
use super::slurm::{self, SlurmJobs};
use rankdeck_types::host::{GpuSelection, Host};
use rankdeck_types::setup::Setup;
use rankdeck_types::{command, hidden};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Source of the hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostsSource {
    /// The `[[host]]` tables of this file.
    File(PathBuf),
    /// SSH destinations (`user@host:port`); `local` is this machine.
    Named(Vec<String>),
    /// This machine: no hosts file exists or was given.
    Here,
    /// The nodes of Slurm jobs.
    Slurm {
        /// The hosts file whose `[defaults]` apply, if it exists.
        defaults: PathBuf,
        jobs: SlurmJobs,
    },
    /// Another source, with this number of ranks per host.
    Ranks(Box<HostsSource>, u32),
    /// Another source, with these GPUs per host and one rank per GPU.
    Devices(Box<HostsSource>, GpuSelection),
    /// Another source, with this virtual environment on every host.
    Venv(Box<HostsSource>, String),
}

/// Name of a source that is not a file.
const HOSTS_OPTION: &str = "--hosts";
/// The hosts file that is used without [`HOSTS_OPTION`].
const DEFAULT_FILE: &str = "hosts.toml";

impl HostsSource {
    /// Parses `--hosts`: a file, or destinations separated by commas.
    pub fn parse(text: &str) -> HostsSource {
        let is_list = text.contains(',') || !(text.contains('/') || text.ends_with(".toml"));
        match is_list && !Path::new(text).exists() {
            true => HostsSource::Named(text.split(',').map(|name| name.trim().to_owned()).collect()),
            false => HostsSource::File(text.into()),
        }
    }

    /// Reads the hosts in node-rank order, and the document for later errors.
    pub(super) fn read(&self) -> Result<(Vec<Host>, Node), Diagnostics> {
        match self {
            HostsSource::File(path) => hosts::read(path),
            HostsSource::Named(_) | HostsSource::Here => hosts::read_source(&self.text()?),
            HostsSource::Slurm { defaults, jobs } => {
                slurm::read(defaults, jobs, &|name| std::env::var(name).ok(), &slurm::run)
            }
            HostsSource::Ranks(inner, nproc) => {
                let (mut hosts, root) = inner.read()?;
                hosts.iter_mut().for_each(|host| host.nproc = Some(*nproc));
                Ok((hosts, root))
            }
            HostsSource::Devices(inner, gpus) => {
                let (mut hosts, root) = inner.read()?;
                for host in &mut hosts {
                    (host.gpus, host.nproc) = (Some(gpus.clone()), None);
                }
                Ok((hosts, root))
            }
            HostsSource::Venv(inner, folder) => {
                let (mut hosts, root) = inner.read()?;
                for host in &mut hosts {
                    let (modules, prelude) =
                        (std::mem::take(&mut host.setup.modules), host.setup.prelude.take());
                    host.setup = Setup { modules, prelude, venv: Some(folder.clone()), ..Setup::default() };
                }
                Ok((hosts, root))
            }
        }
    }

    /// Returns hosts without a file as the text of one: each uses all its GPUs.
    fn text(&self) -> Result<Arc<SourceText>, Diagnostics> {
        let mut text = "[defaults]\ngpus = \"auto\"\n".to_owned();
        let local = "transport = \"local\"\n";
        if let HostsSource::Named(names) = self {
            for name in names {
                text += &match name.as_str() {
                    "local" | "localhost" => format!("[[host]]\nname = {}\n{local}", toml_text(name)),
                    name => destination(name).map_err(|why| {
                        let error = format!("invalid destination `{}`: {why}", hidden::line(name));
                        Diagnostics::from(Diagnostic::about_file(HOSTS_OPTION, error).hint(
                            "pass names that `ssh` resolves, `user@host:port`, or the path of a hosts file: `--hosts a,b`",
                        ))
                    })?,
                };
            }
        } else {
            text += &format!("[[host]]\nname = \"local\"\n{local}");
        }
        Ok(Arc::new(SourceText::new(HOSTS_OPTION, text)))
    }

    /// Returns the hosts file.
    fn path(&self) -> Option<&Path> {
        match self {
            HostsSource::File(path) | HostsSource::Slurm { defaults: path, .. } => Some(path),
            HostsSource::Named(_) | HostsSource::Here => None,
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
                inner.path()
            }
        }
    }

    /// Returns the name of the source.
    pub(super) fn name(&self) -> String {
        match self {
            HostsSource::Slurm { defaults, jobs } if !defaults.exists() => jobs.option(),
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
                inner.name()
            }
            _ => self.path().map_or_else(|| HOSTS_OPTION.to_owned(), |path| path.display().to_string()),
        }
    }

    /// Returns whether the hosts are those of a file.
    pub fn is_file(&self) -> bool {
        match self {
            HostsSource::File(_) => true,
            HostsSource::Named(_) | HostsSource::Here | HostsSource::Slurm { .. } => false,
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
                inner.is_file()
            }
        }
    }

    /// Returns whether the number of ranks per host is given with the hosts.
    pub fn has_nproc(&self) -> bool {
        match self {
            HostsSource::Ranks(..) => true,
            HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => inner.has_nproc(),
            HostsSource::File(_) | HostsSource::Named(_) | HostsSource::Here | HostsSource::Slurm { .. } => {
                false
            }
        }
    }

    /// Whether no host is named: the file lacks `[[host]]`, or there is no file.
    pub fn is_without_hosts(&self) -> bool {
        match self {
            HostsSource::Here => true,
            HostsSource::File(path) => {
                let lacks = |root: &Node| root.entry("host").is_none() && root.entry("hosts").is_none();
                !path.exists() || self.document().as_ref().is_some_and(lacks)
            }
            HostsSource::Named(_) | HostsSource::Slurm { .. } => false,
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
                inner.is_without_hosts()
            }
        }
    }

    /// Returns the document, if it can be read.
    pub(super) fn document(&self) -> Option<Node> {
        let source = match self.path() {
            Some(path) => document::read(path, "file", "").ok()?,
            None => return None,
        };
        document::parse(&source).ok()
    }

    /// Returns the options that set a key of every host.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let (inner, option) = match self {
            HostsSource::File(_) | HostsSource::Named(_) | HostsSource::Here | HostsSource::Slurm { .. } => {
                return Vec::new();
            }
            HostsSource::Ranks(inner, _) => (inner, "--nproc"),
            HostsSource::Devices(inner, _) => (inner, "--gpus"),
            HostsSource::Venv(inner, _) => (inner, "--venv"),
        };
        let mut given = inner.given();
        given.push(option);
        given
    }

    /// Returns the options that a repeated command needs: hosts that it finds by itself need none.
    pub(super) fn repeated(&self) -> Vec<String> {
        let options = self.options();
        let is_found = match self.innermost() {
            HostsSource::Here => true,
            HostsSource::File(path) => path == Path::new(DEFAULT_FILE),
            _ => false,
        };
        // The hosts come first.
        options.into_iter().skip(if is_found { 2 } else { 0 }).collect()
    }

    fn innermost(&self) -> &HostsSource {
        match self {
            HostsSource::Ranks(inner, _) | HostsSource::Devices(inner, _) | HostsSource::Venv(inner, _) => {
                inner.innermost()
            }
            source => source,
        }
    }

    /// Returns the command-line options for this source.
    pub fn options(&self) -> Vec<String> {
        let option = |value: String| vec![HOSTS_OPTION.to_owned(), value];
        match self {
            HostsSource::File(path) => option(path.display().to_string()),
            HostsSource::Named(names) => option(names.join(",")),
            HostsSource::Here => option("local".to_owned()),
            HostsSource::Slurm { defaults, jobs } => {
                let file = defaults.exists().then(|| option(defaults.display().to_string()));
                std::iter::once(jobs.option()).chain(file.into_iter().flatten()).collect()
            }
            HostsSource::Ranks(inner, nproc) => {
                let mut options = inner.options();
                options.extend(["--nproc".to_owned(), nproc.to_string()]);
                options
            }
            HostsSource::Devices(inner, gpus) => {
                let gpus = match gpus {
                    GpuSelection::Word(word) => word.clone(),
                    GpuSelection::Count(count) => {
                        (0..*count).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",")
                    }
                    GpuSelection::List(list) => list.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
                };
                let mut options = inner.options();
                options.extend(["--gpus".to_owned(), gpus]);
                options
            }
            HostsSource::Venv(inner, folder) => {
                let mut options = inner.options();
                options.extend(["--venv".to_owned(), folder.clone()]);
                options
            }
        }
    }
}

/// Returns a text as a TOML string, with its quotes.
fn toml_text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Converts `user@host:port` to a table of a hosts file.
fn destination(text: &str) -> Result<String, String> {
    let (user, rest) = text.rsplit_once('@').map_or((None, text), |(user, rest)| (Some(user), rest));
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (address, port) = match (bracketed, rest.rsplit_once(':')) {
        (Some((address, after)), _) => (address, after.strip_prefix(':')),
        // More than one colon: an IPv6 address.
        (None, Some((address, port))) if !address.contains(':') => (address, Some(port)),
        _ => (rest, None),
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err(
            "passwords are not stored: install a key with `ssh-copy-id`, or use an ssh-agent".to_owned()
        );
    }
    let (address_rule, user_rule) = (&rankdeck_types::schema::ADDRESS, &rankdeck_types::schema::USER);
    (address_rule.test)(address).map_err(|(why, _)| format!("the host {why}"))?;
    let name: String = address
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    let name = name.trim_start_matches(['-', '_', '.']);
    let mut table = format!("[[host]]\nname = {}\naddress = {}\n", toml_text(name), toml_text(address));
    if let Some(user) = user {
        (user_rule.test)(user).map_err(|(why, _)| format!("the user {why}"))?;
        table += &format!("user = {}\n", toml_text(user));
    }
    if let Some(port) = port {
        let port: u16 = port.parse().map_err(|_| format!("invalid port `{port}`"))?;
        table += &format!("port = {port}\n");
    }
    Ok(table)
}

/// Source of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum ExperimentSource {
    /// An experiment file.
    File(PathBuf),
    /// The command after `--` on the command line.
    Command {
        /// Program and arguments.
        words: Vec<String>,
        /// Upload the working directory.
        ships: bool,
    },
}

/// Name of an experiment without a file.
pub(super) const COMMAND_LINE: &str = "command line";

impl ExperimentSource {
    /// Reads the text.
    pub(super) fn source(&self) -> Result<Arc<SourceText>, Diagnostics> {
        match self {
            ExperimentSource::File(path) => {
                if let Some(refusal) = not_an_experiment(path) {
                    return Err(refusal.into());
                }
                let missing = "pass an experiment file, such as `configs/cartpole_ppo.toml`";
                document::read(path, "experiment file", missing)
            }
            ExperimentSource::Command { words, ships } => {
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
                Ok(Arc::new(SourceText::new(COMMAND_LINE, text.to_string())))
            }
        }
    }

    /// Returns the directory that relative paths refer to.
    pub fn folder(&self) -> PathBuf {
        match self {
            ExperimentSource::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            ExperimentSource::Command { .. } => PathBuf::new(),
        }
    }

    /// Returns the name of the source.
    pub fn name(&self) -> String {
        match self {
            ExperimentSource::File(path) => path.display().to_string(),
            ExperimentSource::Command { .. } => COMMAND_LINE.to_owned(),
        }
    }
}

/// Reports a file that is not an experiment by its name.
fn not_an_experiment(path: &Path) -> Option<Diagnostic> {
    let shown = path.display().to_string();
    let refuse =
        |message: &str, hint: String| Some(Diagnostic::about_file(shown.clone(), message).hint(hint));
    if path.is_dir() {
        return refuse("expected a TOML file, found a directory", format!("pass a file in `{shown}`"));
    }
    match path.extension()?.to_str()? {
        "py" => refuse(
            "expected a TOML file, found a Python script",
            format!("run it without an experiment file: `rankdeck run -- python {shown}`"),
        ),
        "sh" | "bash" => refuse(
            "expected a TOML file, found a shell script",
            format!("run it without an experiment file: `rankdeck run -- bash {shown}`"),
        ),
        "yaml" | "yml" | "json" | "ini" | "cfg" => refuse(
            "expected a TOML file",
            "see `configs/cartpole_ppo.toml`; a script with its own configuration needs no experiment file: \
             `rankdeck run -- python train.py`"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns a run name from the script, module or program.
fn run_name(words: &[String]) -> String {
    let name: String = command::title(words)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .take(48)
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

/// Loads the hosts of `source`, in node-rank order.
///
/// # Errors
/// All errors, with their lines.
pub fn load_hosts(source: &HostsSource) -> Result<Vec<Host>, Diagnostics> {
    source.read().map(|(hosts, _)| hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::host::{GpuSelection, Transport};

    #[test]
    fn destinations_are_parsed_as_hosts() {
        let source = HostsSource::parse("gpu-a, me@10.0.0.1:2222,[fe80::1]:22,local");
        let hosts = load_hosts(&source).unwrap_or_else(|error| panic!("{error}"));
        let found: Vec<_> =
            hosts.iter().map(|host| (host.name.as_str(), host.address.as_str(), host.port)).collect();
        assert_eq!(
            found,
            [
                ("gpu-a", "gpu-a", None),
                ("10.0.0.1", "10.0.0.1", Some(2222)),
                ("fe80--1", "fe80::1", Some(22)),
                ("local", "127.0.0.1", None)
            ]
        );
        assert_eq!(hosts[1].user.as_deref(), Some("me"));
        assert!(hosts.iter().all(|host| host.gpus == Some(GpuSelection::Word("auto".into()))));
        assert_eq!((hosts[0].transport, hosts[3].transport), (Transport::Ssh, Transport::Local));
        assert_eq!(source.options(), ["--hosts", "gpu-a,me@10.0.0.1:2222,[fe80::1]:22,local"]);
    }

    /// Directories write `user@domain` and `DOMAIN\user`.
    #[test]
    fn login_of_a_directory_is_accepted() {
        let source = HostsSource::parse(r"CORP\me@gpu-a,me@corp.example@gpu-b:2222");
        let hosts = load_hosts(&source).unwrap_or_else(|error| panic!("{error}"));
        let found: Vec<_> =
            hosts.iter().map(|host| (host.user.as_deref(), host.address.as_str(), host.port)).collect();
        assert_eq!(
            found,
            [(Some(r"CORP\me"), "gpu-a", None), (Some("me@corp.example"), "gpu-b", Some(2222))]
        );
    }

    #[test]
    fn invalid_destination_is_rejected_and_path_is_a_file() {
        for bad in ["a,,b", "a b", "-oProxyCommand=x", "a:port", "@a", "a,a", "$(x),b"] {
            let error = load_hosts(&HostsSource::parse(bad)).map(drop).unwrap_err().to_string();
            assert!(error.contains("--hosts"), "{bad}: {error}");
        }
        for file in ["lab.toml", "some/where", "./hosts"] {
            assert_eq!(HostsSource::parse(file), HostsSource::File(file.into()), "{file}");
        }
    }

    #[test]
    fn run_name_comes_from_the_command() {
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
