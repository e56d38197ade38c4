//! docs/tutorials.md and README: their commands run, in order, with a script on two hosts that have disks of their own.
//! A command that cannot run here is listed with its reason, and its name and reason are printed. The snippets of the
//! tutorials make up a script that is killed and resumes.

use super::examples::{KilledHost, bed_with, resumes_after_kill};
use crate::support::hosts::TestBed;
use crate::support::{stripped_console, wait_until};
use rankdeck_testkit::{python, repository};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a test does with a command of a document.
enum Step {
    /// It succeeds; the parts are replaced by what they stand for, and the options added.
    Runs(&'static [(&'static str, &'static str)], &'static str),
    /// The same, and it needs the built-in trainer.
    Trains(&'static [(&'static str, &'static str)], &'static str),
    /// It cannot run here.
    Skipped(&'static str),
}
use Step::{Runs, Skipped, Trains};

const SLURM: &str = "needs a Slurm cluster; tests/hosts/slurm.rs has a simulated one";
const SCREEN: &str = "needs a terminal; tests/console/pty.rs has one";
const OWN_LIBRARIES: &str = "an example; tests/hosts/examples.rs runs it";
/// A word of the documents, and the name of the run that it stands for.
const RUN: (&str, &str) = ("ppo-2026", "{run}");

/// The command without its comment, and what a test does with it.
fn tutorial(command: &str) -> Step {
    match command {
        "rankdeck demo" => Skipped(SCREEN),
        "rankdeck run -- python train.py --lr 3e-4"
        | "rankdeck run --hosts gpu-a,gpu-b -- python train.py --lr 3e-4"
        | "rankdeck init gpu-a gpu-b train.py"
        | "rankdeck check train.toml"
        | "rankdeck run train.toml"
        | "rankdeck run --hosts gpu-a,gpu-b -- torchrun --nproc-per-node 2 train.py --lr 3e-4"
        | "rankdeck ps" => Runs(&[], ""),
        "python wandb_run.py runs/ppo-2026 --project cartpole" => Skipped("needs a login at W&B"),
        "WANDB_MODE=offline python wandb_run.py runs/ppo-2026" => Skipped("needs wandb"),
        "rankdeck sbatch ppo.toml --nodes 2 --time 4:00:00 --dry-run" => {
            Runs(&[("ppo.toml", "train.toml")], "")
        }
        "rankdeck attach" => Runs(&[], " --headless"),
        "rankdeck restart" | "rankdeck restart --from scratch" | "rankdeck restart --code new" => {
            Runs(&[], " --yes")
        }
        "rankdeck run ppo.toml --from ppo-2026:best" => Trains(&[RUN], " --set run.total_steps=8192"),
        "rankdeck run ppo.toml --continue" => Trains(&[], " --set run.total_steps=12288"),
        "rankdeck run ppo.toml --seeds 1..5 --sweep learn.learning_rate=1e-4,3e-4" => Trains(&[], ""),
        "rankdeck queue" => Trains(&[], ""),
        "rankdeck queue sweep-ppo-2026 --resume" => Trains(&[("sweep-ppo-2026", "{sweep}")], ""),
        "rankdeck fetch ppo-2026" | "rankdeck fetch ppo-2026 '*.safetensors'" => Trains(&[RUN], ""),
        "rankdeck eval ppo-2026:best --episodes 100" => Trains(&[RUN], ""),
        "rankdeck export ppo-2026:best" => Skipped("needs torch in python3; tests/runs/results.rs runs it"),
        "rankdeck tensorboard ppo-2026" => Skipped("a server that does not end"),
        _ if command.starts_with("rankdeck run examples/python/") => Skipped(OWN_LIBRARIES),
        _ if command.contains("sbatch") || command.contains("slurm") || command.starts_with("salloc") => {
            Skipped(SLURM)
        }
        _ => panic!("`{command}` is not in the table of {}", file!()),
    }
}

/// What a test does with a command of the tutorials for a script, where the document has the built-in trainer.
fn scripted(command: &str) -> Step {
    const FILE: (&str, &str) = ("ppo.toml", "train.toml");
    const SCRIPTS: (&str, &str) = ("ppo-2026", "{script}");
    match command {
        "rankdeck init gpu-a gpu-b train.py" | "rankdeck run train.toml" | "rankdeck queue" => Runs(&[], ""),
        // `best` is a checkpoint of the trainer.
        "rankdeck run ppo.toml --from ppo-2026:best" => Runs(&[FILE, (":best", ""), SCRIPTS], ""),
        "rankdeck run ppo.toml --continue" => Runs(&[FILE], ""),
        "rankdeck run ppo.toml --seeds 1..5 --sweep learn.learning_rate=1e-4,3e-4" => {
            Runs(&[FILE, ("1..5", "1..2"), ("learn.learning_rate", "args.lr")], "")
        }
        "rankdeck queue sweep-ppo-2026 --resume" => Runs(&[("sweep-ppo-2026", "{sweep}")], ""),
        "rankdeck fetch ppo-2026" => Runs(&[SCRIPTS], ""),
        "rankdeck fetch ppo-2026 '*.safetensors'" => Runs(&[SCRIPTS, ("*.safetensors", "*.json")], ""),
        "rankdeck eval ppo-2026:best --episodes 100" | "rankdeck export ppo-2026:best" => {
            Skipped("refused for scripts; tests/runs/promises.rs")
        }
        _ => Skipped("commands_of_the_tutorials_run has it"),
    }
}

fn readme(command: &str) -> Step {
    match command {
        "cargo install --locked --path ." | "make demo" => Skipped("builds rankdeck"),
        "rankdeck demo" | "rankdeck" => Skipped(SCREEN),
        "rankdeck run --hosts gpu-a,gpu-b -- python train.py"
        | "rankdeck init gpu-a gpu-b train.py"
        | "rankdeck check train.toml"
        | "rankdeck run train.toml"
        | "rankdeck ps"
        | "rankdeck gpus"
        | "rankdeck stop" => Runs(&[], ""),
        "rankdeck attach" => Runs(&[], " --headless"),
        "rankdeck logs --rank 3 -f" => Runs(&[("--rank 3", "--rank 1")], ""),
        "rankdeck drill train.toml" => Skipped("tests/runs/drills.rs runs it"),
        _ if command.starts_with("rankdeck sbatch") => Skipped(SLURM),
        _ => panic!("`{command}` is not in the table of {}", file!()),
    }
}

/// The fenced blocks of a document in one language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(name)) => open = Some((name == language, String::new())),
            (Some(_), Some(_)) => found.extend(open.take().filter(|(fits, _)| *fits).map(|(_, block)| block)),
            (Some((_, block)), None) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

/// The commands of a document: of its console blocks, and of its tables.
fn commands(text: &str) -> Vec<String> {
    let typed = blocks(text, "console");
    let typed = typed.iter().flat_map(|block| block.lines()).filter_map(|line| line.strip_prefix("$ "));
    let typed = typed.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned());
    let cells = text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
    let listed = cells.filter_map(|cell| cell.trim().strip_prefix("`rankdeck run")?.strip_suffix('`'));
    typed.chain(listed.map(|rest| format!("rankdeck run{rest}"))).collect()
}

/// A console's folder on the test bed whose hosts are gpu-a and gpu-b.
struct Workplace {
    bed: TestBed,
    folder: PathBuf,
}

/// A script that reports, saves and resumes without any library; `PAUSE` makes it last.
const SCRIPT: &str = "\
import json, os, sys, time
import rankdeck

start, path, rank = 0, os.environ.get('RANKDECK_RESUME'), int(os.environ.get('RANK', 0))
seed = int(os.environ.get('RANKDECK_SEED', 0))
rate = sum(float(word[5:]) for word in sys.argv if word.startswith('--lr='))
if path:
    start = json.load(open(path))['step']
for step in range(start + 1, start + int(os.environ.get('STEPS', 20)) + 1):
    time.sleep(0.05)
    print(f'step: {step} loss={1 / step + seed + rate}', flush=True)
    rankdeck.report(env_step=step, loss=1 / step + seed + rate)
    if rank == 0 and step % 5 == 0:
        json.dump({'step': step}, open('last.tmp', 'w'))
        os.replace('last.tmp', 'last.json')
        rankdeck.checkpoint('last.json')
    if rankdeck.should_stop():
        break
";

/// A run of the built-in trainer that takes seconds.
const PPO: &str = "[run]\nname = \"ppo\"\ntotal_steps = 4096\n[env]\nid = \"CartPole-v1\"\nnum_envs = 4\n\
                   [learn]\nalgorithm = \"ppo\"\n[eval]\nevery = 2\nepisodes = 2\n";

impl Workplace {
    fn start() -> Option<Workplace> {
        let bed = TestBed::start(2)?.with_agent();
        bed.hosts(2, 1, "");
        let config = bed.folder.path().join("config");
        let text = std::fs::read_to_string(&config).unwrap();
        let mut named = text.replace("Host node* ", "Host gpu-a gpu-b node* ");
        for (name, address) in [("gpu-a", "10.77.0.10"), ("gpu-b", "10.77.0.11")] {
            named = format!("Host {name}\n  HostName {address}\n{named}");
        }
        std::fs::write(&config, named).unwrap();
        let folder = bed.folder.path().join("tutorial");
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        std::fs::write(folder.join("train.py"), SCRIPT).unwrap();
        // Where the system has only `python3`.
        for place in
            [folder.clone(), bed.folder.path().join("node0/home/tb"), bed.folder.path().join("node1/home/tb")]
        {
            std::fs::create_dir_all(place.join("bin")).unwrap();
            let python = place.join("bin/python");
            std::fs::write(&python, "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
            std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            std::fs::write(place.join(".bashrc"), "export PATH=$HOME/bin:$PATH\n").unwrap();
        }
        Some(Workplace { bed, folder })
    }

    /// A line of a shell in the console's folder.
    fn shell(&self, line: &str) -> Output {
        let programs = stripped_console();
        let path = std::env::var("PATH").unwrap();
        let path =
            format!("{}:{}:{path}", self.folder.join("bin").display(), programs.parent().unwrap().display());
        let mut command: Command = self.bed.call(&["exec", "console", "sh", "-c", line]);
        command.env("RANKDECK_SSH_CONFIG", self.bed.folder.path().join("config")).env("PATH", path);
        command.env_remove("RANKDECK_HOSTS").current_dir(&self.folder).stdin(Stdio::null()).output().unwrap()
    }

    fn succeeds(&self, line: &str) -> String {
        let output = self.shell(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "`{line}`\n{}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// The newest folder of `runs/` whose name begins like this.
    fn newest(&self, begin: &str) -> String {
        let listed = std::fs::read_dir(self.folder.join("runs")).into_iter().flatten().flatten();
        let named = listed.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
        let dated = named.map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.file_name()));
        dated.max().map(|(_, name)| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Starts a run of the script that lasts, and waits for a checkpoint.
    fn start_long_run(&self) {
        self.succeeds("rankdeck run train.toml --detach --set 'launch.env={STEPS=\"100000\"}'");
        wait_until("a checkpoint", 60, || self.succeeds("rankdeck status --json").contains("last.json"));
    }

    /// Stops whatever runs, and sets up the built-in trainer.
    fn use_trainer(&self) {
        self.shell("rankdeck stop");
        let hosts = self.bed.hosts(2, 1, &self.bed.libtorch());
        std::fs::copy(hosts, self.folder.join("hosts.toml")).unwrap();
        std::fs::write(self.folder.join("ppo.toml"), PPO).unwrap();
        self.succeeds("rankdeck run ppo.toml");
    }

    /// Runs the commands of a document in order, and prints those that are skipped.
    fn follow(&self, document: &str, table: fn(&str) -> Step, long_before: &str) {
        let text = std::fs::read_to_string(repository(document)).unwrap();
        let has_trainer = stripped_console().with_file_name("rankdeck-trainer").is_file();
        let (mut trained, mut is_long, mut counted) = (false, false, [0, 0]);
        for command in commands(&text) {
            let (replaced, more, trains) = match table(&command) {
                Runs(replaced, more) => (replaced, more, false),
                Trains(replaced, more) if has_trainer => (replaced, more, true),
                not => {
                    let reason =
                        if let Skipped(reason) = not { reason } else { "no trainer next to the console" };
                    println!("skipped: {document}: `{command}`: {reason}");
                    counted[1] += 1;
                    continue;
                }
            };
            counted[0] += 1;
            if trains && !std::mem::replace(&mut trained, true) {
                self.use_trainer();
            }
            if command == long_before && !is_long {
                is_long = true;
                self.start_long_run();
            }
            let line = replaced.iter().fold(command.clone(), |line, (from, to)| line.replace(from, to));
            let names = [("{run}", "ppo-"), ("{sweep}", "sweep-"), ("{script}", "train-")];
            let line = names.iter().fold(line, |line, (word, begin)| line.replace(word, &self.newest(begin)));
            self.succeeds(&format!("{line}{more}"));
            if line.starts_with("rankdeck run train.toml --from") || line.ends_with("train.toml --continue") {
                self.has_resumed();
            }
            if line.starts_with("rankdeck fetch train-") {
                self.has_fetched();
            }
            if command.starts_with("rankdeck restart --code new") {
                self.shows_new_code();
            }
        }
        self.shell("rankdeck stop");
        for node in 0..2 {
            wait_until("agents end", 60, || !self.bed.processes(node).contains("rankdeck"));
        }
        println!("{document}: {} commands run, {} skipped", counted[0], counted[1]);
    }

    /// The newest run of the script has resumed on both hosts, which have disks of their own.
    fn has_resumed(&self) {
        let run = self.newest("train-");
        for rank in 0..2 {
            let log = self.succeeds(&format!("rankdeck logs {run} --rank {rank}"));
            assert!(log.contains("step: ") && !log.contains("step: 1 "), "rank {rank} of {run}: {log}");
        }
    }

    /// What the newest run of the script has saved is on this machine.
    fn has_fetched(&self) {
        let run = self.newest("train-");
        let mut open = vec![self.folder.join("runs").join(&run).join("hosts")];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name() == "last.json" {
                    return;
                }
                open.push(entry.path());
            }
        }
        panic!("{run}: last.json was not fetched");
    }

    /// A change of the script reaches the next generation by `--code new` only, on every host.
    fn shows_new_code(&self) {
        let script = self.folder.join("train.py");
        std::fs::write(
            &script,
            format!("{SCRIPT}# changed\n").replace("step: {step}", "step: {step} changed"),
        )
        .unwrap();
        let restarted = |option: &str| -> serde_json::Value {
            let text = self.succeeds(&format!("rankdeck restart --yes --json{option}"));
            serde_json::from_str(text.lines().last().unwrap()).unwrap()
        };
        let is_changed =
            |rank: u32| self.succeeds(&format!("rankdeck logs --rank {rank}")).contains(" changed");
        let same = restarted("");
        assert_eq!((&same["code"], &same["changed_files"]), (&"same".into(), &1.into()), "{same}");
        assert!(!is_changed(0));
        let new = restarted(" --code new");
        assert_eq!((&new["code"], &new["changed_files"]), (&"new".into(), &1.into()), "{new}");
        for rank in 0..2 {
            wait_until("the new code runs", 60, || is_changed(rank));
        }
        let status = self.succeeds("rankdeck status");
        assert!(status.contains("train.py"), "{status}");
    }
}

#[test]
fn commands_of_the_tutorials_run() {
    let Some(place) = Workplace::start() else { return };
    place.follow("docs/tutorials.md", tutorial, "rankdeck restart");
}

#[test]
fn commands_of_the_tutorials_run_with_a_script() {
    let Some(place) = Workplace::start() else { return };
    place.follow("docs/tutorials.md", scripted, "");
}

#[test]
fn commands_of_the_readme_run() {
    let Some(place) = Workplace::start() else { return };
    place.follow("README.md", readme, "rankdeck stop");
}

/// Indents a block of a loop.
fn indented(block: &str, cells: usize) -> String {
    block.lines().map(|line| format!("{:cells$}{line}\n", "")).collect()
}

/// The Python snippets in their order: report, W&B, resume, save.
#[test]
fn snippets_of_the_tutorials_resume_on_two_disks() {
    let Some(python) = python("torch") else { return };
    let Some(bed) = bed_with(&python) else { return };
    let text = std::fs::read_to_string(repository("docs/tutorials.md")).unwrap();
    let python_blocks = blocks(&text, "python");
    let [report, wandb, resume, save] = python_blocks.as_slice() else {
        panic!("{} snippets; the script below has places for four", python_blocks.len())
    };
    let script = format!(
        "import os, time\nimport torch\nimport torch.distributed as dist\nimport wandb\n\
         dist.init_process_group('gloo')\nrank = dist.get_rank()\n\
         model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.Adam(model.parameters())\n{wandb}{resume}\
         print(f'resumed step={{start}}', flush=True)\n\
         for done in range(start, 60):\n\
         \x20   step, steps, returns = done + 1, done + 1, [1.0]\n\
         \x20   time.sleep(0.1)\n\
         \x20   loss = model(torch.ones(2)).sum()\n\
         \x20   optimizer.zero_grad()\n    loss.backward()\n\
         \x20   dist.all_reduce(model.weight.grad)\n    optimizer.step()\n\
         \x20   loss = loss.item()\n{}\
         \x20   if rank == 0 and step % 5 == 0:\n{}",
        indented(report, 4),
        indented(save, 8)
    );
    let folder = bed.folder.path().join("snippets");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("train.py"), script).unwrap();
    std::fs::write(
        bed.folder.path().join("shared/wandb.py"),
        "def init(**options):\n    assert options['resume'] == 'allow' and options['id']\n",
    )
    .unwrap();
    let experiment = folder.join("train.toml");
    std::fs::write(&experiment, "[run]\nname = \"train\"\n[launch]\ncommand = [\"true\"]\ncode = \".\"\n")
        .unwrap();
    let command = [python.as_str(), "-u", "train.py"];
    let killed = (KilledHost { node: 1, nproc: 1 }, 2);
    resumes_after_kill(&bed, &experiment, &command, "launch.env={PYTHONPATH=\"/mnt\"}", killed);
}

/// Snippets of files are valid: of experiments by `rankdeck check`, of hosts files by their keys.
#[test]
fn file_snippets_of_the_tutorials_are_valid() {
    let text = std::fs::read_to_string(repository("docs/tutorials.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write("train.py", "import sys\n");
    let found = blocks(&text, "toml");
    assert_eq!(found.len(), 2, "a snippet without a check");
    for snippet in found {
        let hosts = "[[host]]\nname = \"here\"\ntransport = \"local\"\nworkdir = \".\"\n";
        let (hosts, experiment) = match snippet.contains("[defaults]") {
            true => {
                (format!("{snippet}{hosts}"), "[launch]\ncommand = [\"python3\", \"train.py\"]\n".to_owned())
            }
            false => (hosts.to_owned(), snippet),
        };
        let hosts = write("hosts.toml", &hosts);
        let experiment = write("e.toml", &format!("[run]\nname = \"e\"\n{experiment}"));
        let check = checked(folder.path(), &experiment, &hosts);
        // A virtual environment is not on this machine; a mistake in a file has exit code 2.
        assert!(matches!(check.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&check.stderr));
    }
}

fn checked(folder: &Path, experiment: &Path, hosts: &Path) -> Output {
    let mut command = crate::support::rankdeck();
    command.arg("check").arg(experiment).arg("--hosts").arg(hosts).current_dir(folder).output().unwrap()
}

#[test]
fn commands_are_read_from_blocks_and_tables() {
    let text = "a\n```console\n$ rankdeck x --y 1     # why\n$ b\n```\n| c | `rankdeck run z.toml` |\n```python\n$ no\n```\n";
    assert_eq!(commands(text), ["rankdeck x --y 1", "b", "rankdeck run z.toml"]);
    assert_eq!(blocks(text, "python"), ["$ no\n"]);
}
