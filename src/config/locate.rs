//! Finds the line of a key, for errors after loading.

use super::diagnostic::Diagnostic;
use super::document::{Node, nearest};
use super::source::{COMMAND_LINE, ExperimentSource, HostsSource};
use rankdeck_types::quote;

/// The documents of a hosts file and an experiment.
#[derive(Debug)]
pub struct Locator {
    pub(super) hosts: Option<Node>,
    pub(super) experiment: Option<Node>,
    pub(super) hosts_name: String,
    pub(super) experiment_name: String,
    /// Options that set a key of every host, such as `--gpus`.
    pub(super) given: Vec<&'static str>,
    /// Options that select these hosts again.
    pub(super) options: Vec<String>,
}

/// Document, its name, and the paths to try in turn.
type Candidates<'a> = (Option<&'a Node>, &'a str, Vec<String>);

impl Locator {
    /// Reads both again; a file that cannot be read is named without a line.
    pub fn new(hosts: &HostsSource, experiment: &ExperimentSource) -> Locator {
        Locator {
            hosts: hosts.document(),
            experiment: experiment
                .source()
                .and_then(|source| super::bases::read(experiment, &source, &[]))
                .ok(),
            hosts_name: hosts.name(),
            experiment_name: experiment.name(),
            given: hosts.given(),
            options: hosts.repeated(),
        }
    }

    /// Returns `FILE:LINE` of a dotted key, such as `launch.command`, or `host.1.gpus` for the second host;
    /// the line of its table if the key is absent.
    pub fn place(&self, key: &str) -> String {
        let (root, name, paths) = self.candidates(key);
        let written = root.filter(|root| paths.iter().any(|path| root.entry(path).is_some()));
        match written.map(|root| nearest(root, &paths).line()) {
            // This text is not visible to the user.
            Some(_) if name == COMMAND_LINE => name.to_owned(),
            Some(line) => format!("{name}:{line}"),
            None => name.to_owned(),
        }
    }

    /// Returns the arguments that select this experiment and its hosts.
    pub fn subject(&self) -> String {
        let options = self.options.iter().map(|word| quote::word(word));
        // What follows `--` belongs to the command.
        let words: Vec<String> = match self.experiment_name == COMMAND_LINE {
            true => options.chain(["-- COMMAND".to_owned()]).collect(),
            false => std::iter::once(quote::word(&self.experiment_name)).chain(options).collect(),
        };
        words.join(" ")
    }

    /// Creates an error about a dotted key.
    pub(super) fn diagnostic(&self, key: &str, message: &str) -> Diagnostic {
        match self.candidates(key) {
            (Some(root), _, paths) => Diagnostic::at(&nearest(root, &paths), message),
            (None, name, _) => Diagnostic::about_file(name, message),
        }
    }

    fn candidates(&self, key: &str) -> Candidates<'_> {
        let (table, last) = key.rsplit_once('.').unwrap_or(("", key));
        let (own, table) = (key.to_owned(), table.to_owned());
        if key == "host" || key.starts_with("host.") {
            // The option wins over the file.
            let option = self.given.iter().find(|option| option.trim_start_matches('-') == last);
            if let Some(option) = option {
                return (None, option, Vec::new());
            }
            (self.hosts.as_ref(), &self.hosts_name, vec![own, format!("defaults.{last}"), table])
        } else {
            (self.experiment.as_ref(), &self.experiment_name, vec![own, table])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_of_the_command_line_is_named_by_itself() {
        let hosts = HostsSource::parse("gpu-a,gpu-b");
        let hosts = HostsSource::Venv(Box::new(hosts), "env".into());
        let hosts = HostsSource::Ranks(Box::new(hosts), 2);
        let locator = Locator::new(&hosts, &ExperimentSource::File("e.toml".into()));
        assert_eq!(locator.place("host.1.venv"), "--venv");
        assert_eq!(locator.place("host.0.nproc"), "--nproc");
        assert_eq!(locator.place("host.0.gpus"), "--hosts");
        assert!(locator.diagnostic("host.0.nproc", "x").to_string().contains("--nproc"));
    }

    #[test]
    fn subject_repeats_hosts_that_were_given() {
        let subject =
            |hosts: &HostsSource, experiment: ExperimentSource| Locator::new(hosts, &experiment).subject();
        let file = || ExperimentSource::File("my e.toml".into());
        let command = ExperimentSource::Command { words: vec!["./x".into()], ships: false };
        assert_eq!(subject(&HostsSource::Here, file()), "'my e.toml'");
        assert_eq!(subject(&HostsSource::parse("hosts.toml"), file()), "'my e.toml'");
        assert_eq!(subject(&HostsSource::parse("lab.toml"), file()), "'my e.toml' --hosts lab.toml");
        let two = HostsSource::Ranks(Box::new(HostsSource::Here), 2);
        assert_eq!(subject(&two, file()), "'my e.toml' --nproc 2");
        assert_eq!(subject(&HostsSource::parse("a,b"), command), "--hosts a,b -- COMMAND");
    }

    #[test]
    fn key_falls_back_to_defaults_then_to_its_table() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let hosts = write(
            "hosts.toml",
            "[defaults]\nworkdir = \"w\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\nworkdir = \"x\"\n",
        );
        let experiment = write("e.toml", "[run]\nname = \"e\"\n[launch]\nmaster_port = 1\n");
        let source = HostsSource::File(hosts.clone());
        let locator = Locator::new(&source, &ExperimentSource::File(experiment));
        let line = |key: &str| locator.place(key).rsplit_once(':').map(|(_, line)| line.to_owned());
        assert_eq!(line("host.1.workdir").as_deref(), Some("7"));
        assert_eq!(line("host.0.workdir").as_deref(), Some("2"));
        assert_eq!(line("launch.master_port").as_deref(), Some("4"));
        assert_eq!(line("launch.command").as_deref(), Some("3"));
        assert!(locator.place("host.0.gpus").starts_with(hosts.to_str().unwrap()));
        assert_eq!(
            Locator::new(&source, &ExperimentSource::File("/gone.toml".into())).place("run.name"),
            "/gone.toml"
        );
    }
}
