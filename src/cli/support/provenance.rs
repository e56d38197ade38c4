//! The origin of a run: command line, commit, local changes and versions. Stored with the console's
//! recording.

use crate::app::{record, stderr};
use crate::cli::support::code_record::CodeRecord;
use crate::cli::support::git::{self, Checkout, CodeState};
use crate::cli::support::preflight::PreflightReport;
use crate::cli::support::relaunch::RelaunchSpec;
use crate::cli::support::run_name::own_folder;
use rankdeck_proto::regular;
use rankdeck_proto::trust;
use rankdeck_types::code::Code;
use rankdeck_types::experiment::{Experiment, LaunchConfig};
use rankdeck_types::hidden;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::variables::{self, RequestedVariables};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// File name, next to `experiment.toml`.
pub(crate) const FILE: &str = "origin.json";
/// Most bytes of a file that a launch has left.
const MOST_BYTES: u64 = 16 << 20;
/// Local changes.
const CHANGES: &str = "changes.diff";

/// The origin of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Provenance {
    /// As typed, without secrets.
    command_line: Vec<String>,
    /// The working directory of the console.
    folder: PathBuf,
    /// Version of rankdeck.
    rankdeck: &'static str,
    /// How to launch the same run again; `None` without an experiment file.
    launch: Option<RelaunchSpec>,
    /// The checkout of the code, or of the working directory.
    git: Option<Checkout>,
    /// The pack that the ranks run in.
    code: Option<String>,
    /// Versions on each host.
    hosts: BTreeMap<String, Versions>,
    /// `None`: unknown.
    #[serde(skip)]
    changes: Option<String>,
    /// What was in the directory of the code, for restarts.
    #[serde(skip)]
    content: Option<CodeRecord>,
}

/// Versions on one host: of the ranks' interpreter or the trainer's Python worker, and of the libraries
/// below.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Versions {
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cuda: Option<String>,
    /// Python packages.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    packages: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    libtorch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    kernel: String,
}

/// Returns how a run that was launched from this directory can be launched again.
pub(crate) fn relaunch_spec(run: &RunId) -> Option<RelaunchSpec> {
    #[derive(Deserialize)]
    struct OriginFile {
        launch: Option<RelaunchSpec>,
    }
    let consoles = std::fs::read_dir(own_folder(&run.0).ok()?).ok()?;
    let mut folders: Vec<PathBuf> = consoles.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let kept = |folder: &PathBuf| {
        let text = regular::read_text(&folder.join(FILE)).ok()?;
        Some(serde_json::from_str::<OriginFile>(&text).ok()?.launch?.restored(folder))
    };
    folders.iter().rev().find_map(kept).filter(|again| again.experiment.is_file())
}

/// Returns the variables of this console that the user's own files name for a run: its experiment and hosts as
/// this directory's consoles launched it, the hosts file, and options such as `launch.pass_env=["TOKEN"]`.
pub(crate) fn named_variables(run: &RunId, listed: &[Host], options: &[String]) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = options.iter().flat_map(|option| option.split(|c| !is_part(c)));
    let mut names: BTreeSet<String> =
        words.filter(|word| variables::is_name(word)).map(str::to_owned).collect();
    let consoles = own_folder(&run.0).ok().and_then(|folder| std::fs::read_dir(folder).ok());
    let consoles = consoles.into_iter().flatten().flatten();
    for folder in consoles.map(|entry| entry.path()) {
        let text = |name: &str| {
            let bytes = trust::read(&folder.join(name), MOST_BYTES).ok()?;
            String::from_utf8(bytes).ok()
        };
        let own = text("experiment.toml").and_then(|text| toml::from_str::<Experiment>(&text).ok());
        let Some(own) = own else { continue };
        let hosts = text("hosts.json").and_then(|text| serde_json::from_str::<Vec<Host>>(&text).ok());
        let launch = own.filled_launch();
        let none = Host::default();
        for host in hosts.iter().flatten().chain(listed).chain([&none]) {
            names.extend(RequestedVariables::new(&launch, host).console_names());
        }
    }
    let none = LaunchConfig::default();
    names.extend(listed.iter().flat_map(|host| RequestedVariables::new(&none, host).console_names()));
    names
}

impl Versions {
    /// One line; torch is listed once.
    fn line(&self) -> String {
        let named = [
            ("python", &self.python),
            ("torch", &self.torch),
            ("cuda", &self.cuda),
            ("libtorch", &self.libtorch),
            ("driver", &self.driver),
        ];
        let named = named.into_iter().filter_map(|(name, version)| Some((name, version.as_ref()?)));
        let packages = self.packages.iter().filter(|(name, _)| *name != "torch");
        let kernel = Some(("kernel", &self.kernel)).filter(|(_, kernel)| !kernel.is_empty());
        let all = named.chain(packages.map(|(name, version)| (name.as_str(), version))).chain(kernel);
        all.map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the origin as rows of a report, name and text; empty if no console of `run` launched it.
pub(crate) fn rows(run: &Path) -> Vec<(String, String)> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct OriginFile {
        command_line: Vec<String>,
        folder: PathBuf,
        rankdeck: String,
        git: Option<Checkout>,
        code: Option<String>,
        hosts: BTreeMap<String, Versions>,
    }
    let consoles = std::fs::read_dir(run).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = consoles.map(|entry| entry.path().join(FILE)).collect();
    files.sort();
    let kept = |file: &PathBuf| serde_json::from_str(&regular::read_text(file).ok()?).ok();
    let Some(kept): Option<OriginFile> = files.iter().find_map(kept) else { return Vec::new() };
    let mut rows = vec![
        ("command".to_owned(), hidden::words(kept.command_line.iter().map(String::as_str)).join(" ")),
        ("folder".to_owned(), kept.folder.display().to_string()),
        ("git".to_owned(), kept.git.as_ref().map_or_else(|| "no checkout".to_owned(), Checkout::shown)),
        ("rankdeck".to_owned(), kept.rankdeck),
    ];
    rows.extend(kept.code.map(|code| ("code".to_owned(), code)));
    let mut alike: Vec<(Vec<String>, Versions)> = Vec::new();
    for (host, versions) in kept.hosts {
        match alike.iter_mut().find(|(_, known)| *known == versions) {
            Some((hosts, _)) => hosts.push(host),
            None => alike.push((vec![host], versions)),
        }
    }
    rows.extend(alike.into_iter().map(|(hosts, versions)| (hosts.join(", "), versions.line())));
    rows
}

impl Provenance {
    /// The origin of a run with this code.
    pub(crate) fn new(
        draft: &PlanDraft,
        report: &PreflightReport,
        code: CodeState,
        content: Option<CodeRecord>,
        launch: Option<RelaunchSpec>,
    ) -> Provenance {
        let versions = |(host, answer): (&String, &Result<crate::cli::support::preflight::HostAnswer, _>)| {
            let found = &answer.as_ref().ok()?.findings;
            let python = found.program.as_ref().and_then(|program| program.python.clone());
            let mut worker = found.environment.clone().map(|worker| worker.versions).unwrap_or_default();
            let its_python = worker.remove("python");
            let versions = Versions {
                python: python.as_ref().map(|python| python.version.clone()).or(its_python),
                prefix: python.as_ref().map(|python| python.prefix.clone()),
                torch: python.as_ref().and_then(|python| python.torch.clone()),
                cuda: python.as_ref().and_then(|python| python.cuda.clone()),
                packages: python.map(|python| python.packages).unwrap_or(worker),
                libtorch: found.libtorch_version.clone(),
                driver: found.driver.clone(),
                kernel: found.kernel.clone(),
            };
            Some((host.clone(), versions))
        };
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        Provenance {
            command_line: hidden::words(words.iter().map(String::as_str)),
            folder: std::env::current_dir().unwrap_or_default(),
            launch: launch.map(RelaunchSpec::redacted),
            rankdeck: env!("CARGO_PKG_VERSION"),
            code: draft.experiment.launch.code.as_ref().map(Code::to_string),
            hosts: report.hosts.iter().zip(&report.answers).filter_map(versions).collect(),
            changes: code.changes,
            content,
            git: code.checkout,
        }
    }

    /// Writes the file into a console's directory.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        serde_json::to_writer_pretty(record::create(&folder.join(FILE))?, self)?;
        self.content.as_ref().map_or(Ok(()), |content| content.write(folder))?;
        let Some(changes) = &self.changes else {
            stderr::line("warning: git cannot print the changes of the checkout; they are not stored");
            return Ok(());
        };
        if !changes.is_empty() {
            let mut file = record::create(&folder.join(CHANGES))?;
            file.write_all(changes.as_bytes())?;
            if changes.len() as u64 >= git::DIFF {
                writeln!(file, "\n... truncated after {} bytes", git::DIFF)?;
            }
        }
        Ok(())
    }
}
