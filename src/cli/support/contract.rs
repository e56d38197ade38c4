//! The gate of every launch: reads the source of a user's program (the command, and the files on this machine that it
//! refers to) for its promises, and rejects options that need other ones.
//!
//! The source may be elsewhere, or use a name in a way that is not found: a missing match proves nothing.

use crate::cli::args::promises::RequiredPromises;
use crate::cli::support::Failure;
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_core::model::Model;
use rankdeck_proto::regular;
use rankdeck_types::code::Code;
use rankdeck_types::command::{CommandParts, CommandTarget};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::promise::{Contract, Kept, ProgramFacts, ProgramName, Promise, SourceState, names_in};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most files of a program that are read, and most bytes of each.
const FILES: usize = 256;
const BYTES: u64 = 1 << 20;
/// Extensions of files that are followed when a text names them.
pub(crate) const FOLLOWED: [&str; 8] = [".py", ".sh", ".bash", ".yaml", ".yml", ".toml", ".json", ".cfg"];
/// The client module names variables in every program that it is next to.
const CLIENT: &str = "rankdeck.py";

/// Where a program may be on this machine.
pub(crate) struct ProgramSource {
    pub(super) folders: Vec<PathBuf>,
}

impl ProgramSource {
    /// The directories of an experiment's program.
    pub(crate) fn of(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> ProgramSource {
        let here = |host: &&Host| matches!(host.transport, Transport::Local);
        let code =
            experiment.launch.code.iter().filter_map(Code::path).map(|path| source.folder().join(path));
        let workdirs = hosts.iter().filter(here).map(|host| {
            let workdir = host.workdir.as_str();
            PathBuf::from(if workdir.is_empty() { "." } else { workdir })
        });
        ProgramSource {
            folders: code.chain([source.folder()]).chain(workdirs).chain([PathBuf::from(".")]).collect(),
        }
    }

    /// Returns what the command and the files that it leads to name.
    pub(crate) fn facts(&self, command: &[String], is_typed: bool) -> ProgramFacts {
        let mut names = BTreeSet::new();
        self.search().visit(command, &mut |text| names.extend(names_in(text)));
        ProgramFacts { source: self.state(command), names, is_typed }
    }

    /// Whether the files of the command are on this machine.
    fn state(&self, command: &[String]) -> SourceState {
        let search = self.search();
        let or_unreadable = |is_read: bool| if is_read { SourceState::Read } else { SourceState::Unreadable };
        match CommandParts::of(command).map(|parts| parts.target) {
            Some(CommandTarget::Text(_)) => SourceState::Read,
            Some(CommandTarget::Script(path)) if search.file(path, None).is_some() => SourceState::Read,
            Some(CommandTarget::Script(_)) => SourceState::Absent,
            Some(CommandTarget::Module(name)) => or_unreadable(!search.module(name, None).is_empty()),
            // A script with an interpreter line.
            Some(CommandTarget::Program(path)) => {
                let is_text = |path: PathBuf| text_of(&path).starts_with("#!");
                or_unreadable(search.file(path, None).is_some_and(is_text))
            }
            None => SourceState::Unreadable,
        }
    }

    fn search(&self) -> SourceSearch<'_> {
        SourceSearch { folders: &self.folders, read: BTreeSet::new() }
    }
}

/// The word without variables of a shell, which nothing expands in an argument.
fn without_variables(word: &str) -> String {
    let mut parts = word.split('$');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        let name = part.strip_prefix('{').unwrap_or(part);
        kept + " " + name.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The files of a program that have been read.
struct SourceSearch<'a> {
    folders: &'a [PathBuf],
    read: BTreeSet<PathBuf>,
}

impl SourceSearch<'_> {
    /// Visits the words of the command, and the files that they lead to.
    fn visit(mut self, command: &[String], read: &mut dyn FnMut(&str)) {
        let mut open: Vec<PathBuf> = Vec::new();
        for (at, word) in command.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| command.get(at)).map_or("", String::as_str);
            let is_text = before.starts_with('-') && before.ends_with('c');
            match is_text {
                true => read(word),
                false => read(&without_variables(word)),
            }
            let value = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
            open.extend([word.as_str(), value].iter().filter_map(|name| self.file(name, None)));
            if before == "-m" {
                open.extend(self.module(word, None));
            }
            if is_text {
                open.extend(self.named_in(word, None));
            }
        }
        while let Some(path) = open.pop() {
            let is_client = path.file_name().is_some_and(|name| name == CLIENT);
            if is_client || self.read.len() >= FILES || !self.read.insert(path.clone()) {
                continue;
            }
            let text = text_of(&path);
            read(&text);
            open.extend(self.named_in(&text, path.parent()));
            if path.extension().is_some_and(|ending| ending == "py") {
                open.extend(self.imported_by(&text, path.parent()));
            }
        }
    }

    /// Finds a file with this name, next to another one or in a directory of the program.
    fn file(&self, name: &str, dir: Option<&Path>) -> Option<PathBuf> {
        let places = dir.into_iter().chain(self.folders.iter().map(PathBuf::as_path));
        places.map(|folder| folder.join(name)).find(|path| !name.is_empty() && path.is_file())
    }

    /// The files of a module.
    fn module(&self, name: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let path = name.trim_start_matches('.').replace('.', "/");
        let files = [format!("{path}.py"), format!("{path}/__init__.py"), format!("{path}/__main__.py")];
        files.iter().filter(|_| !path.is_empty()).filter_map(|file| self.file(file, dir)).collect()
    }

    /// Returns the files that a text names: scripts that a shell starts, and configurations.
    fn named_in(&self, text: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let is_part = |c: char| c.is_alphanumeric() || "._-/~".contains(c);
        let mut words = text.split(|c| !is_part(c)).filter(|word| !word.is_empty()).peekable();
        let mut found = Vec::new();
        while let Some(word) = words.next() {
            if word == "-m" {
                found.extend(words.peek().into_iter().flat_map(|module| self.module(module, dir)));
            } else if FOLLOWED.iter().any(|ending| word.ends_with(ending)) {
                found.extend(self.file(word, dir));
            }
        }
        found
    }

    /// Modules of the program that a Python source imports.
    fn imported_by(&self, text: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for line in text.lines().map(str::trim_start) {
            let line = line.split('#').next().unwrap_or_default();
            if let Some(list) = line.strip_prefix("import ") {
                let names = list.split(',').filter_map(|name| name.split_whitespace().next());
                found.extend(names.flat_map(|name| self.module(name, dir)));
            } else if let Some((from, names)) =
                line.strip_prefix("from ").and_then(|rest| rest.split_once(" import"))
            {
                let from = from.trim();
                found.extend(self.module(from, dir));
                let names = names.split([',', '(', ')']).filter_map(|name| name.split_whitespace().next());
                found.extend(names.flat_map(|name| self.module(&format!("{from}.{name}"), dir)));
            }
        }
        found
    }
}

/// Returns the start of a file; empty if it cannot be read.
fn text_of(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = regular::open(path).map(|file| file.take(BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns what is known about the program of an experiment. Reads its source on this machine.
pub(crate) fn facts(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> ProgramFacts {
    let is_typed = matches!(source, ExperimentSource::Command { .. });
    ProgramSource::of(experiment, source, hosts).facts(&experiment.launch.command, is_typed)
}

/// Rejects an experiment whose program does not keep what is needed.
pub(crate) fn demand(
    experiment: &Experiment,
    source: &ExperimentSource,
    hosts: &[Host],
    needs: &RequiredPromises,
) -> Result<(), Failure> {
    if needs.demanded.is_empty() {
        return Ok(());
    }
    checked(&Contract::of(experiment, &facts(experiment, source, hosts)), needs)
}

/// Completes a draft by what is known about its program, and rejects it if the program does not keep what is needed.
/// Returns why a single rank has torchrun's variables, or lacks them.
pub(crate) fn complete(
    draft: &mut PlanDraft,
    hosts: &HostsSource,
    source: &ExperimentSource,
    needs: &RequiredPromises,
) -> Result<Option<&'static str>, Failure> {
    let facts = facts(&draft.experiment, source, &draft.hosts);
    let why = decide_variables(draft, hosts, &facts);
    draft.program = Some(facts).filter(|_| !draft.experiment.launch.command.is_empty());
    draft.asked = needs.demanded.clone();
    checked(&draft.contract(), needs).map(|()| why)
}

/// Decides which variables the ranks of a user's program get, where the draft leaves it open: torchrun's for a single
/// rank (PLAIN-1), and the secret that ranks share. The plan then holds the decision, so that restarts keep it.
///
/// Returns why a single rank has torchrun's variables, or lacks them; `None` for the built-in trainer.
fn decide_variables(
    draft: &mut PlanDraft,
    hosts: &HostsSource,
    facts: &ProgramFacts,
) -> Option<&'static str> {
    let launch = &mut draft.experiment.launch;
    if launch.command.is_empty() {
        return None;
    }
    if launch.group_secret.is_none() {
        launch.group_secret = Some(facts.names.contains(&ProgramName::Secret));
    }
    let (is_set, why) = match launch.rank_variables {
        Some(is_set) => (is_set, "`launch.rank_variables`"),
        None if launch.slurm_env => (true, "`launch.slurm_env`"),
        None if hosts.is_file() => (true, "there is a hosts file"),
        None if hosts.has_nproc() => (true, "`--nproc` is given"),
        None if facts.names.contains(&ProgramName::Group) => (true, "the program names them"),
        None if facts.source == SourceState::Absent => (true, "the script is not on this machine"),
        None => (false, "the program does not name them"),
    };
    launch.rank_variables = Some(is_set);
    Some(why)
}

fn checked(contract: &Contract, needs: &RequiredPromises) -> Result<(), Failure> {
    let asked: Vec<Promise> = needs.demanded.iter().copied().collect();
    contract.demand(&asked).map_err(refused)
}

fn refused(HintedError { error, hint }: HintedError) -> Failure {
    Failure::usage(error).hint(hint)
}

/// Rejects what needs a promise that the program of an existing run does not keep, by its record. Older records have no
/// facts about the program: what is unknown there is left to the prompt of the command.
pub(crate) fn demand_of_run(model: &Model, promise: Promise) -> Result<(), Failure> {
    let Some(plan) = &model.plan else { return Ok(()) };
    let contract = plan.contract();
    match plan.program.is_none() && contract.kept(promise) == Kept::Unknown {
        true => Ok(()),
        false => contract.demand(&[promise]).map_err(refused),
    }
}

/// Returns the note on a launch that is to resume, now or by itself, if its program does not declare that it can.
pub(crate) fn caution(
    experiment: &Experiment,
    contract: &Contract,
    needs: &RequiredPromises,
) -> Option<String> {
    let who = match needs.wanted.contains(&Promise::Resume) {
        true => "the run",
        false if experiment.restarts_by_itself() => "each restart",
        false => return None,
    };
    let HintedError { error, hint } = contract.caution()?;
    Some(format!("note: {who} {error}; {hint}"))
}

/// Returns the same note on a run that was restarted from a checkpoint.
pub(crate) fn caution_of_run(model: &Model) -> Option<String> {
    let plan = model.plan.as_ref().filter(|plan| plan.program.is_some())?;
    let HintedError { error, hint } = plan.contract().caution()?;
    Some(format!("note: the run {error}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_config::load_draft;
    use rankdeck_types::ids::RunId;

    #[test]
    fn names_are_found_in_every_file_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("plain.py", "import random, torch\n# RANKDECK_SEED is not used\nseed = 1\n");
        write("reads.py", "import os\nseed = int(os.environ['RANKDECK_SEED'])\n");
        write("calls.py", "import rankdeck\ntorch.manual_seed(rankdeck.seed())\n");
        write("alias.py", "import rankdeck as rd\nprint(rd.seed())\n");
        write("from.py", "from rankdeck import report, seed\n");
        write("reports.py", "import rankdeck\nrankdeck.report(1)\n");
        write("rankdeck.py", "RANKDECK_SEED\n");
        write("imports.py", "if True:\n    from lib.args import parse\n");
        write("lib/args.py", "from . import deep\n");
        write("lib/deep.py", "SEED = 'RANKDECK_SEED'\n");
        write("pkg/__init__.py", "");
        write("pkg/__main__.py", "import pkg.own\n");
        write("pkg/own.py", "RANKDECK_SEED\n");
        write("ranks.py", "import os\nseed = os.environ['RANKDECK_RANK_SEED']\n");
        write("run.sh", "#!/bin/bash\nexec python3 reads.py \"$@\"\n");
        write("plain.sh", "python3 plain.py\n");
        write("hydra.yaml", "seed: ${oc.env:RANKDECK_SEED}\n");
        std::fs::write(folder.path().join("binary"), b"\x7fELF\0RANKDECK_SEED").unwrap();
        let source = ProgramSource { folders: vec![folder.path().to_owned()] };
        let facts = |command: &[&str]| {
            let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            source.facts(&words, false)
        };
        for command in [
            &["python3", "reads.py"][..],
            &["python3", "-u", "calls.py"],
            &["python3", "ranks.py"],
            &["python3", "alias.py"],
            &["python3", "from.py"],
            &["python3", "imports.py"],
            &["python3", "-m", "pkg"],
            &["bash", "run.sh"],
            &["./run.sh"],
            &["sh", "-c", "exec python3 plain.py --seed $RANKDECK_SEED"],
            &["sh", "-c", "cd . && python3 reads.py"],
            &["python3", "-c", "import os; os.environ['RANKDECK_SEED']"],
            &["python3", "plain.py", "--config=hydra.yaml"],
            &["python3", "plain.py", "seed=${oc.env:RANKDECK_SEED}"],
        ] {
            let found = facts(command);
            assert!(found.names.contains(&ProgramName::Seed), "{command:?}");
            assert_eq!(found.source, SourceState::Read, "{command:?}");
        }
        for (command, state) in [
            (&["python3", "plain.py"][..], SourceState::Read),
            (&["python3", "reports.py"], SourceState::Read),
            (&["bash", "plain.sh"], SourceState::Read),
            (&["python3", "plain.py", "--seed", "$RANKDECK_SEED"], SourceState::Read),
            (&["python3", "plain.py", "${seed}", "{{seed}}"], SourceState::Read),
            (&["python3", "absent.py"], SourceState::Absent),
            (&["./simulate", "--seed", "1"], SourceState::Unreadable),
            (&["python3", "-m", "nowhere"], SourceState::Unreadable),
            (&[], SourceState::Unreadable),
        ] {
            let found = facts(command);
            assert!(!found.names.contains(&ProgramName::Seed), "{command:?}");
            assert_eq!(found.source, state, "{command:?}");
        }
        assert_eq!(facts(&["./binary"]).source, SourceState::Unreadable);
    }

    #[test]
    fn draft_with_a_promise_not_kept_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        let rejected = |script: &str, needs: &RequiredPromises| {
            std::fs::write(folder.path().join("t.py"), script).unwrap();
            std::fs::write(&path, "[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"t.py\"]\n")
                .unwrap();
            let source = ExperimentSource::File(path.clone());
            let mut draft = load_draft(&HostsSource::Here, &source, &[], |_| RunId("a-1".into())).unwrap();
            let completed = complete(&mut draft, &HostsSource::Here, &source, needs);
            assert!(draft.program.is_some());
            assert_eq!(draft.problems(&[]).is_empty(), completed.is_ok());
            assert_eq!(demand(&draft.experiment, &source, &draft.hosts, needs).is_ok(), completed.is_ok());
            let noted = caution(&draft.experiment, &draft.contract(), needs).is_some();
            (completed.is_err(), noted)
        };
        let resume = || [Promise::Resume].into();
        let from = RequiredPromises { demanded: resume(), ..RequiredPromises::default() };
        let continued = RequiredPromises { wanted: resume(), ..RequiredPromises::default() };
        let reads = "import os\nfrom_ = os.environ.get(\"RANKDECK_RESUME\")\n";
        assert_eq!(rejected("import torch\n", &RequiredPromises::default()), (false, false));
        assert_eq!(rejected("import torch\n", &from), (true, false));
        assert_eq!(rejected("import torch\n", &continued), (false, true));
        assert_eq!(rejected(reads, &from), (false, false));
        assert_eq!(rejected(reads, &continued), (false, false));
    }

    /// What is decided about a script on these hosts.
    fn decided(script: &str, launch: &str, hosts: &HostsSource) -> (Option<bool>, Option<bool>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(folder.path().join("t.py"), script).unwrap();
        let text = format!("[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"t.py\"]\n{launch}");
        std::fs::write(&path, text).unwrap();
        let source = ExperimentSource::File(path);
        let mut draft = load_draft(hosts, &source, &[], |_| RunId("a-1".into())).unwrap();
        let facts = facts(&draft.experiment, &source, &draft.hosts);
        decide_variables(&mut draft, hosts, &facts).unwrap();
        (draft.experiment.launch.rank_variables, draft.experiment.launch.group_secret)
    }

    #[test]
    fn plain_1_single_rank_is_plain_unless_asked() {
        let of = |script: &str, launch: &str, hosts: &HostsSource| decided(script, launch, hosts).0;
        let here = HostsSource::Here;
        assert_eq!(of("import gym\nrank = 1\n", "", &here), Some(false));
        assert_eq!(of("import gym\n", "rank_variables = true\n", &here), Some(true));
        assert_eq!(of("import gym\n", "slurm_env = true\n", &here), Some(true));
        let ranks = HostsSource::Ranks(Box::new(HostsSource::Here), 1);
        assert_eq!(of("import gym\n", "", &ranks), Some(true));
        assert_eq!(of("import gym\n", "rank_variables = false\n", &ranks), Some(false));
        assert_eq!(of("import gym\n", "", &HostsSource::Named(vec!["local".into()])), Some(false));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts.toml");
        std::fs::write(&file, "[[host]]\nname = \"a\"\ntransport = \"local\"\n").unwrap();
        assert_eq!(of("import gym\n", "", &HostsSource::File(file)), Some(true));
        for script in [
            "import os\nrank = int(os.environ[\"RANK\"])\n",
            "x = os.environ.get('LOCAL_RANK', 0)\n",
            "dist.init_process_group('gloo')\n",
            "subprocess.run('echo $RANK', shell=True)\n",
        ] {
            assert_eq!(of(script, "", &here), Some(true), "{script}");
        }
        for script in ["# LOCAL_RANK\n", "MY_WORLD_SIZE = RANKDECK_RANK = 1\n", "print('RANKS')\n"] {
            assert_eq!(of(script, "", &here), Some(false), "{script}");
        }
    }

    #[test]
    fn script_that_is_not_here_is_not_plain() {
        let names = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            let source = ExperimentSource::Command { words, ships: false };
            let mut draft = load_draft(&HostsSource::Here, &source, &[], |_| RunId("a-1".into())).unwrap();
            let facts = facts(&draft.experiment, &source, &draft.hosts);
            decide_variables(&mut draft, &HostsSource::Here, &facts);
            draft.experiment.launch.rank_variables
        };
        assert!(!Path::new("nowhere.py").exists());
        assert_eq!(names(&["python3", "nowhere.py"]), Some(true));
        assert_eq!(names(&["puffer", "train"]), Some(false));
        assert_eq!(names(&["sh", "-c", "echo $RANK"]), Some(true));
    }

    #[test]
    fn secret_is_for_programs_that_name_it() {
        let of = |script: &str| decided(script, "", &HostsSource::Here).1;
        assert_eq!(of("os.environ['RANKDECK_SECRET']\n"), Some(true));
        assert_eq!(of("import gym\n"), Some(false));
    }
}
