//! Where a key is written down, for findings that come after the files were read.

use super::diagnostic::Diagnostic;
use super::document::{self, Node};
use super::load::nearest;
use std::path::Path;

/// The texts of a hosts file and of an experiment.
#[derive(Debug)]
pub struct Locator {
    hosts: Option<Node>,
    experiment: Option<Node>,
    hosts_name: String,
    experiment_name: String,
}

impl Locator {
    /// Reads both again, for their lines only; a file that cannot be read any more is named without one.
    pub fn new(hosts: &Path, experiment: &Path) -> Locator {
        let tree =
            |path: &Path| document::read(path, "file", "").and_then(|source| document::parse(&source)).ok();
        Locator {
            hosts: tree(hosts),
            experiment: tree(experiment),
            hosts_name: hosts.display().to_string(),
            experiment_name: experiment.display().to_string(),
        }
    }

    /// `FILE:LINE` of a dotted key, such as `launch.command`, or `host.1.gpus` for the second host; where it is not written down, of its table.
    pub fn place(&self, key: &str) -> String {
        let is_host = key == "host" || key.starts_with("host.");
        let (root, name) = match is_host {
            true => (&self.hosts, &self.hosts_name),
            false => (&self.experiment, &self.experiment_name),
        };
        let Some(root) = root else { return name.clone() };
        let last = key.rsplit('.').next().unwrap_or(key);
        let table = key.rsplit_once('.').map_or("", |(table, _)| table);
        let default = format!("defaults.{last}");
        let candidates: &[&str] = if is_host { &[key, &default, table] } else { &[key, table] };
        match Diagnostic::at(&nearest(root, candidates), "").span {
            Some(span) if candidates.iter().any(|path| root.entry(path).is_some()) => {
                format!("{name}:{}", span.line)
            }
            _ => name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_their_own_table_then_in_the_defaults_then_at_the_table() {
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
        let locator = Locator::new(&hosts, &experiment);
        let line = |key: &str| locator.place(key).rsplit_once(':').map(|(_, line)| line.to_owned());
        assert_eq!(line("host.1.workdir").as_deref(), Some("7"));
        assert_eq!(line("host.0.workdir").as_deref(), Some("2"));
        assert_eq!(line("launch.master_port").as_deref(), Some("4"));
        assert_eq!(line("launch.command").as_deref(), Some("3"));
        assert!(locator.place("host.0.gpus").starts_with(hosts.to_str().unwrap()));
        assert_eq!(Locator::new(&hosts, Path::new("/gone.toml")).place("run.name"), "/gone.toml");
    }
}
