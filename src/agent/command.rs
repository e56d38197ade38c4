//! `rankdeck agent ...`: what was typed, and the one line that each command answers with.
//!
//! Owner: none. The reader of an answer skips everything before the marker, since login shells print what
//! they like first.

use crate::entries;
use crate::examine;
use crate::files;
use crate::fleet;
use crate::paths::{self, RunPaths};
use crate::proc::Ident;
use crate::reach;
use crate::search;
use crate::serve::{
    self,
    daemon::{self, Start},
    relay,
    settings::Settings,
};
use crate::supervise::guard::{self, Watch};
use rankdeck_proto::pack;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::words::clean;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

const USAGE: &str = "agent start|hold|relay|list|fleet|reach|probe|examine|unpack|sweep|traces|checkpoints|header|search|files|read|measure|remove; these commands are used by the console itself";
/// Options without a value.
const FLAGS: [&str; 2] = ["existing", "lines"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    Start(Start),
    Serve(Box<Settings>),
    Guard(Watch),
    /// Start or find an agent, and stay while it lives.
    Hold(Start),
    Relay(PathBuf, bool),
    List(PathBuf),
    /// Look at this host for so long.
    Fleet(PathBuf, Duration),
    /// The environment of a process, or a signal to it.
    Reach(Ident, Option<i32>),
    Probe,
    Examine,
    Unpack(String, PathBuf),
    Sweep(String, PathBuf),
    Traces(String, PathBuf),
    Checkpoints(String, PathBuf),
    Checkpoint(String, PathBuf),
    /// What a checkpoint tells of itself.
    Header(String, PathBuf),
    Search(String, PathBuf, String),
    Files(String, PathBuf),
    Read {
        run: String,
        workdir: PathBuf,
        path: String,
        offset: u64,
        bytes: u64,
    },
    /// Remove a run, or only say what that would free.
    Remove {
        run: String,
        workdir: PathBuf,
        dry: bool,
    },
}

/// Tells whoever typed the command, or the console that sent it.
fn complain(failure: &HintedError) {
    #[expect(clippy::disallowed_methods, reason = "an agent has no console's door")]
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "error: {}\nhint: {}", clean(&failure.error), clean(&failure.hint));
}

/// Parses and carries out.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let command = match parse(&args) {
        Ok(command) => command,
        Err(failure) => {
            complain(&failure);
            return ExitCode::from(2);
        }
    };
    match command {
        Command::Start(start) => answer("RANKDECK-AGENT", daemon::start(&start)),
        Command::List(workdir) => answer("RANKDECK-LIST", Ok(entries::list(&workdir))),
        Command::Fleet(workdir, within) => answer("RANKDECK-FLEET", fleet::tell(&workdir, within)),
        Command::Reach(meant, signal) => {
            let reached = match signal {
                Some(signal) => reach::signal(meant, signal),
                None => reach::environment(meant, &BTreeSet::new()),
            };
            answer("RANKDECK-REACHED", reached)
        }
        Command::Examine => answer("RANKDECK-FINDINGS", examine::main()),
        Command::Unpack(hash, into) => answer("RANKDECK-UNPACKED", unpack(&hash, &into)),
        Command::Probe => answer("RANKDECK-PROBE", Ok(examine::probe())),
        Command::Checkpoints(run, workdir) => {
            answer("RANKDECK-CHECKPOINTS", Ok(files::checkpoints(&workdir, &run)))
        }
        Command::Checkpoint(path, workdir) => {
            let found: Vec<String> = files::checkpoint(&workdir, &path).into_iter().collect();
            answer("RANKDECK-CHECKPOINT", Ok(found))
        }
        Command::Header(path, workdir) => answer("RANKDECK-HEADER", files::header(&workdir, &path)),
        Command::Files(run, workdir) => answer("RANKDECK-FILES", files::list(&workdir, &run)),
        Command::Read { run, workdir, path, offset, bytes } => {
            answer("RANKDECK-PIECE", files::read(&workdir, &run, &path, offset, bytes))
        }
        Command::Remove { run, workdir, dry } => {
            answer("RANKDECK-REMOVAL", files::remove(&workdir, &run, dry))
        }
        Command::Sweep(run, workdir) => {
            #[derive(Serialize)]
            struct SweepAnswer {
                survivors: Vec<rankdeck_proto::message::Survivor>,
            }
            let swept =
                RunId::parse(&run).map(|run| SweepAnswer { survivors: entries::clean(&run, &workdir) });
            answer("RANKDECK-SWEEP", swept)
        }
        Command::Traces(run, workdir) => {
            answer("RANKDECK-TRACES", RunId::parse(&run).map(|run| entries::traces(&run, &workdir)))
        }
        Command::Search(run, workdir, wanted) => {
            let found = RunId::parse(&run).and_then(|run| {
                let wanted = serde_json::from_str(&wanted).map_err(|error| {
                    HintedError::new(format!("the search cannot be read: {error}"), USAGE)
                })?;
                search::search(&workdir, &run, &wanted)
            });
            answer("RANKDECK-SEARCH", found)
        }
        Command::Hold(start) => daemon::hold(&start, |started| {
            answer("RANKDECK-PROBE", Ok(examine::probe()));
            answer("RANKDECK-AGENT", started);
        }),
        Command::Relay(socket, lines) => match relay::run(&socket, lines) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                complain(&failure);
                ExitCode::FAILURE
            }
        },
        Command::Serve(settings) => serve::main(*settings),
        Command::Guard(watch) => match guard::main(&watch) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
}

fn answer<T: Serialize>(marker: &str, result: Result<T, HintedError>) -> ExitCode {
    let (json, code) = match result {
        Ok(value) => (serde_json::to_string(&value), ExitCode::SUCCESS),
        Err(failure) => (serde_json::to_string(&failure), ExitCode::FAILURE),
    };
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{marker} {}", json.unwrap_or_default()).and_then(|()| output.flush());
    if written.is_ok() { code } else { ExitCode::FAILURE }
}

/// Unpacks a pack of the cache into a folder of the cache, and gives back nothing but that.
fn unpack(hash: &str, into: &std::path::Path) -> Result<BTreeMap<String, String>, HintedError> {
    let pack = pack::cached(hash).ok_or_else(|| {
        HintedError::new(format!("pack {hash} is not on this host"), "`rankdeck push` brings it")
    })?;
    pack::unpack(&pack, hash, into)?;
    let _ = std::fs::remove_file(pack);
    Ok(BTreeMap::from([("folder".to_owned(), into.display().to_string())]))
}

fn usage(error: impl Into<String>) -> HintedError {
    HintedError::new(error, USAGE)
}

/// The options of a command line that nobody has asked for yet.
struct Options<'a> {
    verb: &'a str,
    values: BTreeMap<&'a str, String>,
    flags: BTreeSet<&'a str>,
}

impl<'a> Options<'a> {
    fn read(verb: &'a str, rest: &'a [String]) -> Result<Options<'a>, HintedError> {
        let mut options = Options { verb, values: BTreeMap::new(), flags: BTreeSet::new() };
        let mut rest = rest.iter();
        while let Some(option) = rest.next() {
            let name = option.strip_prefix("--").ok_or_else(|| usage(format!("unexpected `{option}`")))?;
            if FLAGS.contains(&name) {
                options.flags.insert(name);
            } else {
                let value = rest.next().ok_or_else(|| usage(format!("`{option}` needs a value")))?;
                options.values.insert(name, value.clone());
            }
        }
        Ok(options)
    }

    fn get(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    fn take(&mut self, name: &str) -> Result<String, HintedError> {
        self.get(name).ok_or_else(|| usage(format!("`agent {}` needs `--{name}`", self.verb)))
    }

    fn number<T: FromStr>(&mut self, name: &str) -> Result<T, HintedError> {
        self.take(name)?.parse().map_err(|_| usage(format!("`--{name}` is not a number")))
    }

    fn node(&mut self) -> Result<NodeRank, HintedError> {
        let text = self.take("node-rank")?;
        text.parse().map(NodeRank).map_err(|_| usage(format!("`{text}` is not a node_rank")))
    }

    /// The folder of runs.
    fn workdir(&mut self) -> Result<PathBuf, HintedError> {
        Ok(paths::expand(&self.take("workdir")?))
    }

    fn paths(&mut self) -> Result<RunPaths, HintedError> {
        Ok(RunPaths { run_dir: self.take("run-dir")?.into(), node: self.node()? })
    }

    /// That nothing is left over.
    fn end(self) -> Result<(), HintedError> {
        match self.values.keys().next() {
            Some(name) => Err(usage(format!("`agent {}` has no option `--{name}`", self.verb))),
            None => Ok(()),
        }
    }
}

fn parse(args: &[String]) -> Result<Command, HintedError> {
    let (verb, rest) = args.split_first().ok_or_else(|| usage("agent needs a command"))?;
    let mut options = Options::read(verb, rest)?;
    let command = command(&mut options)?;
    options.end()?;
    Ok(command)
}

fn command(options: &mut Options<'_>) -> Result<Command, HintedError> {
    Ok(match options.verb {
        verb @ ("start" | "hold") => {
            let start = Start {
                run: options.take("run")?,
                host: options.take("host")?,
                node: options.node()?,
                workdir: options.take("workdir")?,
                existing: options.flags.contains("existing"),
                launcher: options.get("launcher"),
            };
            if verb == "hold" { Command::Hold(start) } else { Command::Start(start) }
        }
        "serve" => Command::Serve(Box::new(Settings {
            run: RunId::parse(&options.take("run")?)?,
            host: options.take("host")?,
            paths: options.paths()?,
            workdir: options.take("workdir")?.into(),
            sockets: Rc::new(RefCell::new(options.take("sockets")?.into())),
            umask: options.number("umask")?,
            holder: options.get("holder").and_then(|holder| ident(&holder)),
        })),
        "guard" => Command::Guard(Watch {
            run: RunId::parse(&options.take("run")?)?,
            paths: options.paths()?,
            agent: ident(&options.take("agent")?)
                .ok_or_else(|| usage("`--agent` does not name a process"))?,
            cgroup: options.get("cgroup").map(Into::into),
            note: options.take("note")?.into(),
        }),
        "relay" => Command::Relay(options.take("socket")?.into(), options.flags.contains("lines")),
        "list" => Command::List(options.workdir()?),
        "fleet" => {
            let within = Duration::from_secs(options.number("seconds")?);
            Command::Fleet(options.workdir()?, within)
        }
        "reach" => {
            let meant = options.take("process")?;
            let meant = ident(&meant).ok_or_else(|| usage("`--process` does not name a process"))?;
            let signal = options.get("signal").map(|text| text.parse());
            Command::Reach(meant, signal.transpose().map_err(|_| usage("`--signal` is not a number"))?)
        }
        "probe" => Command::Probe,
        "examine" => Command::Examine,
        "unpack" => Command::Unpack(options.take("hash")?, options.take("into")?.into()),
        "files" => Command::Files(options.take("run")?, options.workdir()?),
        "read" => Command::Read {
            run: options.take("run")?,
            workdir: options.workdir()?,
            path: options.take("path")?,
            offset: options.number("offset")?,
            bytes: options.number("bytes")?,
        },
        "measure" | "remove" => Command::Remove {
            run: options.take("run")?,
            workdir: options.workdir()?,
            dry: options.verb == "measure",
        },
        "checkpoints" => Command::Checkpoints(options.take("run")?, options.workdir()?),
        "checkpoint" => Command::Checkpoint(options.take("path")?, options.workdir()?),
        "header" => Command::Header(options.take("path")?, options.workdir()?),
        "sweep" => Command::Sweep(options.take("run")?, options.workdir()?),
        "traces" => Command::Traces(options.take("run")?, options.workdir()?),
        "search" => Command::Search(options.take("run")?, options.workdir()?, options.take("wanted")?),
        verb => return Err(usage(format!("agent has no command `{verb}`"))),
    })
}

fn ident(text: &str) -> Option<Ident> {
    let (pid, start) = text.split_once('-')?;
    Some(Ident { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, HintedError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_contract_s_command_lines_are_understood() {
        let start = parsed("start --run r --host a --node-rank 2 --workdir w --existing").unwrap();
        let expected = Start {
            run: "r".into(),
            host: "a".into(),
            node: NodeRank(2),
            workdir: "w".into(),
            existing: true,
            launcher: None,
        };
        assert_eq!(start, Command::Start(expected));
        assert_eq!(parsed("relay --socket /s").unwrap(), Command::Relay("/s".into(), false));
        assert_eq!(parsed("probe").unwrap(), Command::Probe);
        let fleet = Command::Fleet("/w".into(), Duration::from_secs(90));
        assert_eq!(parsed("fleet --workdir /w --seconds 90").unwrap(), fleet);
        assert_eq!(parsed("list --workdir /w").unwrap(), Command::List("/w".into()));
        assert_eq!(parsed("sweep --run r --workdir /w").unwrap(), Command::Sweep("r".into(), "/w".into()));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("", "needs a command"),
            ("fly", "fly"),
            ("start --run r", "--host"),
            ("start --run r --host a --node-rank x --workdir w", "node_rank"),
            ("relay --socket", "--socket"),
            ("probe --fast 1", "--fast"),
            ("probe fast", "fast"),
        ] {
            let error = parsed(line).unwrap_err().error;
            assert!(error.contains(word), "{line:?}: {error}");
        }
    }
}
