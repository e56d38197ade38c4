//! `rankdeck agent ...`: the parsed command lines, and the one-line reply of each command.
//!
//! Owner: none. The reader of an answer skips everything before the marker, since login shells print what
//! they like first.

use crate::drill;
use crate::entries;
use crate::examine;
use crate::files;
use crate::fleet;
use crate::holders;
use crate::paths::{self, RunPaths};
use crate::proc::ProcessKey;
use crate::process_query;
use crate::search;
use crate::serve::{
    self, Settings,
    daemon::{self, StartRequest},
    relay,
};
use crate::supervise::guard::{self, GuardConfig};
use rankdeck_proto::drill::{DrillOrder, SLICE_MS};
use rankdeck_proto::holders::HolderName;
use rankdeck_proto::pack;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank, RunId};
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

const USAGE: &str = "agent start|hold|relay|list|fleet|gpus|free|reach|drill|probe|examine|benchmark|unpack|sweep|traces|checkpoints|header|search|files|read|measure|remove; the console runs these commands";
/// Options without a value.
const FLAGS: [&str; 5] = ["existing", "lines", "resume", "results", "unproven"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum AgentSubcommand {
    Start(StartRequest),
    Serve(Box<Settings>),
    Guard(GuardConfig),
    /// Start or find an agent, and stay while it lives.
    Hold(StartRequest),
    Relay(PathBuf, bool),
    List(PathBuf),
    /// How long to sample this host.
    Fleet(PathBuf, Duration),
    /// What holds GPUs of this host.
    Gpus(PathBuf),
    /// End processes that were listed; also unproven ones.
    Free(PathBuf, Vec<HolderName>, bool),
    /// The environment of a process, or a signal to it.
    Reach(ProcessKey, Option<i32>),
    /// Break a rank of a run, or its agent.
    Drill(PathBuf, DrillOrder),
    Probe,
    Examine,
    Benchmark,
    Unpack(String, PathBuf),
    Sweep(String, PathBuf),
    Traces(String, PathBuf),
    Checkpoints(String, PathBuf),
    Checkpoint(String, PathBuf),
    /// Print the header of a checkpoint.
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
    /// Remove a run, or only print what that would free.
    Remove {
        run: String,
        workdir: PathBuf,
        dry: bool,
        /// With its results, and those that were fetched into its directory.
        results: bool,
    },
}

/// Prints an error for the user or the console.
fn complain(failure: &HintedError) {
    #[expect(clippy::disallowed_methods, reason = "an agent prints without a console")]
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "error: {}\nhint: {}", clean(&failure.error), clean(&failure.hint));
}

/// Parses and carries out.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let command = match parse(&args) {
        Ok(command) => command,
        Err(failure) => {
            complain(&failure);
            return ExitCode::from(2);
        }
    };
    match command {
        AgentSubcommand::Start(start) => answer("RANKDECK-AGENT", daemon::start(&start)),
        AgentSubcommand::List(workdir) => answer("RANKDECK-LIST", Ok(entries::list(&workdir))),
        AgentSubcommand::Fleet(workdir, within) => {
            answer("RANKDECK-FLEET", fleet::stream_snapshots(&workdir, within))
        }
        AgentSubcommand::Gpus(workdir) => answer("RANKDECK-GPUS", Ok(holders::list(&workdir))),
        AgentSubcommand::Free(workdir, names, unproven) => {
            answer("RANKDECK-FREED", Ok(holders::free(&workdir, &names, unproven)))
        }
        AgentSubcommand::Reach(meant, signal) => {
            let reached = match signal {
                Some(signal) => process_query::signal(meant, signal),
                None => process_query::environment(meant, &BTreeSet::new()),
            };
            answer("RANKDECK-REACHED", reached)
        }
        AgentSubcommand::Drill(workdir, order) => answer("RANKDECK-DRILLED", drill::strike(&workdir, &order)),
        AgentSubcommand::Examine => answer("RANKDECK-FINDINGS", examine::main()),
        AgentSubcommand::Benchmark => answer("RANKDECK-BENCHMARK", examine::benchmark::main()),
        AgentSubcommand::Unpack(hash, into) => answer("RANKDECK-UNPACKED", unpack(&hash, &into)),
        AgentSubcommand::Probe => answer("RANKDECK-PROBE", Ok(examine::probe())),
        AgentSubcommand::Checkpoints(run, workdir) => {
            answer("RANKDECK-CHECKPOINTS", Ok(files::checkpoints(&workdir, &run)))
        }
        AgentSubcommand::Checkpoint(path, workdir) => {
            let found: Vec<String> = files::checkpoint(&workdir, &path).into_iter().collect();
            answer("RANKDECK-CHECKPOINT", Ok(found))
        }
        AgentSubcommand::Header(path, workdir) => answer("RANKDECK-HEADER", files::header(&workdir, &path)),
        AgentSubcommand::Files(run, workdir) => answer("RANKDECK-FILES", files::list(&workdir, &run)),
        AgentSubcommand::Read { run, workdir, path, offset, bytes } => {
            answer("RANKDECK-PIECE", files::read(&workdir, &run, &path, offset, bytes))
        }
        AgentSubcommand::Remove { run, workdir, dry, results } => {
            answer("RANKDECK-REMOVAL", files::remove(&workdir, &run, dry, results))
        }
        AgentSubcommand::Sweep(run, workdir) => {
            #[derive(Serialize)]
            struct SweepAnswer {
                survivors: Vec<rankdeck_proto::message::Survivor>,
            }
            let swept =
                RunId::parse(&run).map(|run| SweepAnswer { survivors: entries::clean(&run, &workdir) });
            answer("RANKDECK-SWEEP", swept)
        }
        AgentSubcommand::Traces(run, workdir) => {
            answer("RANKDECK-TRACES", RunId::parse(&run).map(|run| entries::traces(&run, &workdir)))
        }
        AgentSubcommand::Search(run, workdir, query) => {
            let found = RunId::parse(&run).and_then(|run| {
                let query = serde_json::from_str(&query)
                    .map_err(|error| HintedError::new(format!("invalid search: {error}"), USAGE))?;
                search::search(&workdir, &run, &query)
            });
            answer("RANKDECK-SEARCH", found)
        }
        AgentSubcommand::Hold(start) => daemon::hold(&start, |started| {
            answer("RANKDECK-PROBE", Ok(examine::probe()));
            answer("RANKDECK-AGENT", started);
        }),
        AgentSubcommand::Relay(socket, lines) => match relay::run(&socket, lines) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                complain(&failure);
                ExitCode::FAILURE
            }
        },
        AgentSubcommand::Serve(settings) => serve::main(*settings),
        AgentSubcommand::Guard(watch) => match guard::main(&watch) {
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

/// Unpacks a pack of the cache into a directory of the cache, and gives back nothing but that.
fn unpack(hash: &str, into: &std::path::Path) -> Result<BTreeMap<String, String>, HintedError> {
    let pack = pack::cached(hash).ok_or_else(|| {
        HintedError::new(format!("pack {hash} is not on this host"), "upload it with `rankdeck push`")
    })?;
    pack::unpack(&pack, hash, into)?;
    let _ = std::fs::remove_file(pack);
    Ok(BTreeMap::from([("folder".to_owned(), into.display().to_string())]))
}

fn usage(error: impl Into<String>) -> HintedError {
    HintedError::new(error, USAGE)
}

/// The options of a command line that are not consumed yet.
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
        text.parse().map(NodeRank).map_err(|_| usage(format!("invalid node_rank `{text}`")))
    }

    /// The directory of runs.
    fn workdir(&mut self) -> Result<PathBuf, HintedError> {
        Ok(paths::expand(&self.take("workdir")?))
    }

    fn paths(&mut self) -> Result<RunPaths, HintedError> {
        Ok(RunPaths { run_dir: self.take("run-dir")?.into(), node: self.node()? })
    }

    /// That nothing is left over.
    fn end(self) -> Result<(), HintedError> {
        match self.values.keys().next() {
            Some(name) => Err(usage(format!("unknown option `--{name}` of `agent {}`", self.verb))),
            None => Ok(()),
        }
    }
}

fn parse(args: &[String]) -> Result<AgentSubcommand, HintedError> {
    let (verb, rest) = args.split_first().ok_or_else(|| usage("`agent` needs a command"))?;
    let mut options = Options::read(verb, rest)?;
    let command = command(&mut options)?;
    options.end()?;
    Ok(command)
}

fn command(options: &mut Options<'_>) -> Result<AgentSubcommand, HintedError> {
    Ok(match options.verb {
        verb @ ("start" | "hold") => {
            let start = StartRequest {
                run: options.take("run")?,
                host: options.take("host")?,
                node: options.node()?,
                workdir: options.take("workdir")?,
                existing: options.flags.contains("existing"),
                launcher: options.get("launcher"),
                resume: options.flags.contains("resume"),
            };
            if verb == "hold" { AgentSubcommand::Hold(start) } else { AgentSubcommand::Start(start) }
        }
        "serve" => AgentSubcommand::Serve(Box::new(Settings {
            run: RunId::parse(&options.take("run")?)?,
            host: options.take("host")?,
            paths: options.paths()?,
            workdir: options.take("workdir")?.into(),
            sockets: Rc::new(RefCell::new(options.take("sockets")?.into())),
            umask: options.number("umask")?,
            holder: options.get("holder").and_then(|holder| ident(&holder)),
        })),
        "guard" => AgentSubcommand::Guard(GuardConfig {
            run: RunId::parse(&options.take("run")?)?,
            paths: options.paths()?,
            agent: ident(&options.take("agent")?).ok_or_else(|| usage("invalid process in `--agent`"))?,
            cgroup: options.get("cgroup").map(Into::into),
            note: options.take("note")?.into(),
        }),
        "relay" => AgentSubcommand::Relay(options.take("socket")?.into(), options.flags.contains("lines")),
        "list" => AgentSubcommand::List(options.workdir()?),
        "fleet" => {
            let within = Duration::from_secs(options.number("seconds")?);
            AgentSubcommand::Fleet(options.workdir()?, within)
        }
        "gpus" => AgentSubcommand::Gpus(options.workdir()?),
        "free" => {
            let names = options.take("processes")?;
            let names = HolderName::parse_list(&names).ok_or_else(|| usage("invalid `--processes`"))?;
            AgentSubcommand::Free(options.workdir()?, names, options.flags.contains("unproven"))
        }
        "reach" => {
            let meant = options.take("process")?;
            let meant = ident(&meant).ok_or_else(|| usage("invalid process in `--process`"))?;
            let signal = options.get("signal").map(|text| text.parse());
            AgentSubcommand::Reach(
                meant,
                signal.transpose().map_err(|_| usage("`--signal` is not a number"))?,
            )
        }
        "drill" => {
            let order = DrillOrder {
                run: RunId::parse(&options.take("run")?)?,
                rank: options.number("rank").map(Rank)?,
                fault: options.take("fault")?.parse().map_err(|()| usage("unknown fault in `--fault`"))?,
                seconds: options.number("seconds")?,
                slice_ms: match options.get("slice-ms") {
                    Some(text) => text.parse().map_err(|_| usage("`--slice-ms` is not a number"))?,
                    None => SLICE_MS,
                },
            };
            AgentSubcommand::Drill(options.workdir()?, order)
        }
        "probe" => AgentSubcommand::Probe,
        "examine" => AgentSubcommand::Examine,
        "benchmark" => AgentSubcommand::Benchmark,
        "unpack" => AgentSubcommand::Unpack(options.take("hash")?, options.take("into")?.into()),
        "files" => AgentSubcommand::Files(options.take("run")?, options.workdir()?),
        "read" => AgentSubcommand::Read {
            run: options.take("run")?,
            workdir: options.workdir()?,
            path: options.take("path")?,
            offset: options.number("offset")?,
            bytes: options.number("bytes")?,
        },
        "measure" | "remove" => AgentSubcommand::Remove {
            run: options.take("run")?,
            workdir: options.workdir()?,
            dry: options.verb == "measure",
            results: options.flags.contains("results"),
        },
        "checkpoints" => AgentSubcommand::Checkpoints(options.take("run")?, options.workdir()?),
        "checkpoint" => AgentSubcommand::Checkpoint(options.take("path")?, options.workdir()?),
        "header" => AgentSubcommand::Header(options.take("path")?, options.workdir()?),
        "sweep" => AgentSubcommand::Sweep(options.take("run")?, options.workdir()?),
        "traces" => AgentSubcommand::Traces(options.take("run")?, options.workdir()?),
        "search" => {
            AgentSubcommand::Search(options.take("run")?, options.workdir()?, options.take("wanted")?)
        }
        verb => return Err(usage(format!("unknown agent command `{verb}`"))),
    })
}

fn ident(text: &str) -> Option<ProcessKey> {
    let (pid, start) = text.split_once('-')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::drill::DrillFault;

    fn parsed(line: &str) -> Result<AgentSubcommand, HintedError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn command_lines_of_the_contract_are_parsed() {
        let start = parsed("start --run r --host a --node-rank 2 --workdir w --existing").unwrap();
        let expected = StartRequest {
            run: "r".into(),
            host: "a".into(),
            node: NodeRank(2),
            workdir: "w".into(),
            existing: true,
            launcher: None,
            resume: false,
        };
        assert_eq!(start, AgentSubcommand::Start(expected));
        assert_eq!(parsed("relay --socket /s").unwrap(), AgentSubcommand::Relay("/s".into(), false));
        assert_eq!(parsed("probe").unwrap(), AgentSubcommand::Probe);
        let fleet = AgentSubcommand::Fleet("/w".into(), Duration::from_secs(90));
        assert_eq!(parsed("fleet --workdir /w --seconds 90").unwrap(), fleet);
        let names = vec![HolderName { pid: 7, start: 8 }];
        assert_eq!(
            parsed("free --workdir /w --processes 7-8 --unproven").unwrap(),
            AgentSubcommand::Free("/w".into(), names, true)
        );
        let order = DrillOrder {
            run: RunId("r".into()),
            rank: Rank(1),
            fault: DrillFault::Freeze,
            seconds: 9,
            slice_ms: 3,
        };
        let line = format!("drill --workdir /w {}", order.words().join(" "));
        assert_eq!(parsed(&line).unwrap(), AgentSubcommand::Drill("/w".into(), order));
        assert_eq!(parsed("list --workdir /w").unwrap(), AgentSubcommand::List("/w".into()));
        assert_eq!(
            parsed("sweep --run r --workdir /w").unwrap(),
            AgentSubcommand::Sweep("r".into(), "/w".into())
        );
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
            ("drill --run r --workdir w --rank 0 --fault fly --seconds 1", "--fault"),
        ] {
            let error = parsed(line).unwrap_err().error;
            assert!(error.contains(word), "{line:?}: {error}");
        }
    }
}
