//! `rankdeck drill`: short runs of the user's program on the user's hosts, each with one injected fault, and a table of
//! detections, delays and leftovers.
//!
//! Each case is a run that `rankdeck run` launches, with its checks, and that only a drill may break (DRILL-1).
//!
//! - DRILL-5: a drill starts no case while another run of this user is live in a working directory of its hosts. Without
//!   a prompt or `--yes`, it starts none beside a run in another directory, or on a GPU that others use.
//! - DRILL-6: whatever ends a case, its run is stopped, and every host is scanned for what is left.

use crate::app::signals::ConsoleSignals;
use crate::app::stderr;
use crate::cli::args::promises::RequiredPromises;
use crate::cli::args::{DrillArgs, DrillCase};
use crate::cli::support::drill::console::{DrillConsole, Waited};
use crate::cli::support::drill::events::{RunEvents, SeenCheckpoint};
use crate::cli::support::drill::judge::{
    self, CaseFacts, CaseOutcome, CaseRecord, CheckpointFate, ResumeFacts,
};
use crate::cli::support::drill::{self as support, proved};
use crate::cli::support::launch::{self, LaunchOptions};
use crate::cli::support::prompt::NoPrompts;
use crate::cli::support::run_index::{self, decode, exec_on_all, own_binary};
use crate::cli::support::run_name::{self, new_run_id};
use crate::cli::support::{Failure, code, interrupt, print, prompt, sources};
use rankdeck_config::HostsSource;
use rankdeck_link::{AgentCommand, LineSink, Links};
use rankdeck_proto::drill::{DrillFault, DrillOrder, SLICE_MS, STRUCK};
use rankdeck_proto::files::Removal;
use rankdeck_proto::holders::{Holder, HolderList};
use rankdeck_proto::run_entry::{HostRunState, RunEntry, RunTraces};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{GpuSelection, Host};
use rankdeck_types::ids::{Rank, RunId};
use rankdeck_types::words::{clean, clip, plural};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long the ranks may take to start, beyond the experiment's own budget.
const STARTING: Duration = Duration::from_secs(120);
/// How long a stop may take beyond `launch.stop_limit_s`.
const STOPPING: Duration = Duration::from_secs(60);
/// How long the last processes of a verified run, such as its agents, may take to end.
const ENDING: Duration = Duration::from_secs(20);
/// Between two scans.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a Python rank has to raise: it may be inside a call that holds its interpreter.
const RAISING_S: u64 = 20;
/// Steps of a restarted run, and the state of one that is attached again.
const SHOWING: Duration = Duration::from_secs(120);
/// Longest part of a run's name that comes from the experiment's.
const NAME: usize = 40;
/// Most processes that are listed.
const LISTED: usize = 16;

/// Runs `rankdeck drill`.
pub(crate) async fn drill(
    hosts_from: &HostsSource,
    args: DrillArgs,
    options: Vec<String>,
) -> Result<u8, Failure> {
    let cases: Vec<DrillCase> =
        DrillCase::ALL.into_iter().filter(|case| args.only.is_empty() || args.only.contains(case)).collect();
    let (from, experiment) = sources::of(hosts_from, &args.subject);
    if !args.output.quiet
        && let Some(line) = rankdeck_config::translation(&experiment, &args.set)
    {
        stderr::line(&line);
    }
    let needs = RequiredPromises::of_sets("drill", &args.set);
    let launch = LaunchOptions {
        sets: &args.set,
        exclude: &args.exclude,
        needs: &needs,
        is_trial: false,
        drill: true,
        quiet: args.output.quiet,
    };
    let (draft, packed) =
        launch::drafted(&from, &experiment, &launch, |experiment| new_run_id(&experiment.run.name))?;
    let hosts: Vec<Host> =
        draft.hosts.iter().filter(|host| !draft.excluded.contains(&host.name)).cloned().collect();
    let name = draft.experiment.run.name.clone();
    args.output.progress(&format!(
        "drill of {name}: {} on {}, at most about {}; ctrl-c stops it",
        plural(cases.len(), "case"),
        plural(hosts.len(), "host"),
        support::expected(&cases, args.train_s)
    ));
    let (none, mut confirmed) = (BTreeSet::new(), BTreeSet::new());
    let elsewhere = interrupt::before_start(refuse_beside_live_runs(&hosts, &args, &none)).await?;
    interrupt::before_start(confirm_use(&hosts, &args, elsewhere, (&none, &mut confirmed))).await?;
    let launch = &draft.experiment.launch;
    let mut drill = Drill {
        binary: own_binary()?,
        signals: ConsoleSignals::new(false).map_err(Failure::no_thread)?,
        begun: Instant::now(),
        interrupted: false,
        launched: BTreeSet::new(),
        stop_s: launch.stop_limit_s,
        start: STARTING
            + Duration::try_from_secs_f64(draft.experiment.watch.init_budget_s).unwrap_or_default(),
        args: &args,
        options,
        name: name.clone(),
        hosts,
    };
    let mut records: Vec<CaseRecord> = Vec::new();
    let mut failure = None;
    for (index, case) in cases.iter().enumerate() {
        // The hosts may be in use since the previous case.
        if index > 0
            && let Err(why) = drill.check_use(&mut confirmed).await
        {
            failure = Some(why);
            break;
        }
        args.output.progress(&format!("{}/{} {}", index + 1, cases.len(), case.name()));
        match drill.run_case(*case).await {
            Ok(Some(record)) => {
                args.output.record(|| judge::as_json(&record));
                records.push(record);
            }
            Ok(None) => {}
            Err(why) => failure = Some(why),
        }
        if drill.interrupted || failure.is_some() {
            break;
        }
    }
    if !args.output.json && !records.is_empty() {
        print::text(&judge::table(&records));
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let result = match drill.interrupted {
        true => code::INTERRUPTED,
        false if records.iter().any(|record| record.outcome == CaseOutcome::Failed) => code::FAILED,
        false => code::SUCCESS,
    };
    let names = drill.hosts.iter().map(|host| host.name.clone()).collect();
    let pack = packed.as_ref().map(|packed| packed.code.hash.as_str());
    let kept = match records.is_empty() {
        true => None,
        false => {
            let facts = proved::ProvedFacts::new(&draft.experiment, pack, names, &records);
            let kept = facts.keep(&proved::state_folder());
            kept.map_err(|why| stderr::line(&format!("warning: results not saved: {}", why.cause.error))).ok()
        }
    };
    args.output.outcome(&judge::summary(&records));
    args.output.record(|| {
        let of = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
        json!({
            "kind": "drill",
            "name": name,
            "cases": cases.len(),
            "passed": of(CaseOutcome::Passed),
            "failed": of(CaseOutcome::Failed),
            "skipped": of(CaseOutcome::Skipped),
            "exit_code": result,
            "file": kept.as_ref().map(|path| path.display().to_string()),
        })
    });
    Ok(result)
}

/// DRILL-5. A drill would take its cores, GPUs and time from a run that matters. Returns runs in other working
/// directories, which may leave the drill its share.
///
/// `own`: runs of this drill; what is left of one was reported, and its case has failed.
async fn refuse_beside_live_runs(
    hosts: &[Host],
    args: &DrillArgs,
    own: &BTreeSet<String>,
) -> Result<Vec<String>, Failure> {
    let lists = run_index::list(hosts, &args.host_keys).await?;
    let (mut silent, mut elsewhere) = (Vec::new(), BTreeMap::new());
    for (host, list) in hosts.iter().zip(lists) {
        let list = match list {
            Ok(list) => list,
            Err(error) => {
                silent.push(error);
                continue;
            }
        };
        if let Some(live) = live_beside(&list.runs, own) {
            let (run, host) = (&live.run, &host.name);
            return Err(Failure::usage(format!("run {run} is live on {host}: a drill would disturb it"))
                .hint(format!(
                    "wait for it with `rankdeck wait {run}`, or stop it with `rankdeck stop {run}`"
                )));
        }
        // Hosts that are one machine report the same run.
        for other in list.elsewhere.into_iter().filter(|other| !own.contains(&other.run.0)) {
            let line = format!("run {} is live on {}, in {}", other.run, host.name, other.run_dir);
            elsewhere.entry(other.run_dir).or_insert(line);
        }
    }
    match silent.into_iter().next() {
        Some(error) => Err(Failure::host(error.error).hint(error.hint)),
        None => Ok(elsewhere.into_values().collect()),
    }
}

/// DRILL-5. The first live run that the drill did not launch.
fn live_beside<'a>(runs: &'a [RunEntry], own: &BTreeSet<String>) -> Option<&'a RunEntry> {
    runs.iter().find(|entry| entry.state != HostRunState::Finished && !own.contains(&entry.run.0))
}

/// DRILL-5. Asks about what uses the hosts and was not confirmed yet: runs in other working directories, and processes on
/// GPUs that the drill may use.
async fn confirm_use(
    hosts: &[Host],
    args: &DrillArgs,
    elsewhere: Vec<String>,
    (own, confirmed): (&BTreeSet<String>, &mut BTreeSet<String>),
) -> Result<(), Failure> {
    let mut used = elsewhere;
    for (host, list) in hosts.iter().zip(gpu_holders(hosts, args).await?) {
        let holders = list.map_err(|error| Failure::host(error.error).hint(error.hint))?;
        let is_other = |holder: &&Holder| holder.run.as_ref().is_none_or(|run| !own.contains(run));
        used.extend(holders.iter().filter(|holder| may_use(host, holder)).filter(is_other).map(|holder| {
            let gpus: Vec<String> = holder.gpus.iter().map(|share| share.index.to_string()).collect();
            let Holder { pid, user, command, .. } = holder;
            format!("GPU {} on {}: {user}, pid {pid}, {}", gpus.join(", "), host.name, clip(command, 60))
        }));
    }
    used.retain(|line| !confirmed.contains(line));
    if used.is_empty() {
        return Ok(());
    }
    used.iter().take(LISTED).for_each(|line| stderr::line(&clean(line)));
    let question = format!("run the drill beside {}?", plural(used.len(), "other program"));
    if args.yes || prompt::can_confirm() && prompt::yes(&question).await {
        confirmed.extend(used);
        return Ok(());
    }
    Err(Failure::usage("no case was started: other programs use these hosts")
        .hint("wait for them, choose other GPUs with `--gpus`, confirm the prompt, or pass `--yes`"))
}

/// Whether a drill on this host may use a GPU of that process.
fn may_use(host: &Host, holder: &Holder) -> bool {
    holder.gpus.iter().any(|share| match &host.gpus {
        Some(GpuSelection::List(list)) => list.contains(&share.index),
        Some(GpuSelection::Count(count)) => share.index < *count,
        Some(GpuSelection::Word(_)) => true,
        None => false,
    })
}

/// The processes that hold GPUs of each host.
async fn gpu_holders(
    hosts: &[Host],
    args: &DrillArgs,
) -> Result<Vec<Result<Vec<Holder>, HintedError>>, Failure> {
    let words = |host: &Host| ["gpus", "--workdir", &host.workdir].map(str::to_owned).to_vec();
    let answers = exec_on_all(hosts, &args.host_keys, words).await?;
    let holders = |(host, answer): (&Host, Result<String, HintedError>)| {
        let list: HolderList = decode(host, &answer?)?;
        Ok(list.holders.into_iter().filter(|holder| !holder.gpus.is_empty()).collect())
    };
    Ok(hosts.iter().zip(answers).map(holders).collect())
}

/// A drill under way.
struct Drill<'a> {
    args: &'a DrillArgs,
    /// Options that select the same hosts.
    options: Vec<String>,
    /// Name of the experiment.
    name: String,
    /// Those with ranks.
    hosts: Vec<Host>,
    binary: PathBuf,
    signals: ConsoleSignals,
    begun: Instant,
    interrupted: bool,
    /// Names of the runs so far.
    launched: BTreeSet<String>,
    /// `launch.stop_limit_s`
    stop_s: f64,
    /// How long the ranks may take to start.
    start: Duration,
}

/// What a case has come to so far.
#[derive(Default)]
struct CaseState {
    victim: Option<(u64, String)>,
    struck: Option<f64>,
    answered: Option<f64>,
    skipped: Option<String>,
    resumed: Option<ResumeFacts>,
    notes: Vec<String>,
    /// An order that lasts.
    order: Option<tokio::task::JoinHandle<Result<(), HintedError>>>,
}

impl CaseState {
    /// Ends an order that lasts; its host resumes what it has suspended.
    async fn end_order(&mut self) {
        if let Some(order) = self.order.take() {
            order.abort();
            let _ = order.await;
        }
    }
}

impl Drill<'_> {
    /// DRILL-5
    async fn check_use(&self, confirmed: &mut BTreeSet<String>) -> Result<(), Failure> {
        let elsewhere = refuse_beside_live_runs(&self.hosts, self.args, &self.launched).await?;
        confirm_use(&self.hosts, self.args, elsewhere, (&self.launched, confirmed)).await
    }

    /// Launches a run, breaks it, stops it, and measures. `None`: interrupted.
    ///
    /// # Errors
    /// No run could be launched: the next case would fail in the same way.
    async fn run_case(&mut self, case: DrillCase) -> Result<Option<CaseRecord>, Failure> {
        let words = self.launch_words(case);
        let mut console = DrillConsole::start(&self.binary, words, self.begun)?;
        let mut state = CaseState::default();
        let broken = self.train_and_break(case, &mut console, &mut state).await;
        self.launched.extend(console.events.run.clone());
        // A rank stays frozen during its stop, and is resumed if anything of it is left.
        if case != DrillCase::Freeze {
            state.end_order().await;
        }
        self.stop(&mut console, &mut state).await;
        state.end_order().await;
        broken?;
        let Some(run) = console.events.run.clone() else {
            let failed = u8::try_from(console.exit.unwrap_or(1)).unwrap_or(code::FAILED).max(code::FAILED);
            return if self.interrupted { Ok(None) } else { Err(console.failure(failed)) };
        };
        let record = match self.measure(case, &run, &console, state).await {
            Ok(record) => record,
            Err(failure) => {
                stderr::line(&format!("note: run {run} is kept; `rankdeck stop {run}`, `rankdeck rm {run}`"));
                return Err(failure);
            }
        };
        if self.interrupted {
            // What the stop of the run has left is the only result of an interrupted case.
            let left = &record.processes_left;
            left.iter().for_each(|process| stderr::line(&format!("still running: {process}")));
            let state = if left.is_empty() { "stopped, no process left" } else { "not stopped" };
            self.args.output.progress(&format!("run {run}: {state}"));
        }
        match self.args.keep || record.outcome == CaseOutcome::Failed && !self.interrupted {
            true => self.args.output.progress(&format!("kept: `rankdeck logs {run}`, `rankdeck rm {run}`")),
            false => self.remove(&run).await,
        }
        Ok(Some(record).filter(|_| !self.interrupted))
    }

    /// The command that launches the run of a case. The user's policies would answer the fault before it is measured.
    fn launch_words(&self, case: DrillCase) -> Vec<String> {
        let DrillArgs { subject, set, exclude, host_keys, .. } = self.args;
        let name: String = self.name.chars().take(NAME).collect();
        let mut words = vec!["run".to_owned()];
        words.extend(self.options.iter().cloned());
        words.extend(["--json", "--drill", "--name"].map(str::to_owned));
        words.push(format!("drill-{name}-{}", case.name()));
        words.extend(subject.nproc.iter().flat_map(|nproc| ["--nproc".to_owned(), nproc.to_string()]));
        words.extend(subject.venv.iter().flat_map(|venv| ["--venv".to_owned(), venv.clone()]));
        words.extend(subject.gpus.iter().flat_map(|gpus| ["--gpus".to_owned(), gpu_words(gpus)]));
        words.extend(exclude.iter().flat_map(|host| ["--exclude".to_owned(), host.clone()]));
        words.extend(host_keys.accept_new_host_keys.then(|| "--accept-new-host-keys".to_owned()));
        let own = ["watch.on_stuck=report", "restart.max_restarts=0"].map(str::to_owned);
        words.extend(set.iter().chain(&own).flat_map(|set| ["--set".to_owned(), set.clone()]));
        match &subject.experiment {
            Some(path) => words.push(path.display().to_string()),
            None => {
                words.push("--".to_owned());
                words.extend(subject.command.iter().cloned());
            }
        }
        words
    }

    /// A command about an existing run.
    fn command(&self, command: &str, run: &str, more: &[&str]) -> Vec<String> {
        let words = [command, run, "--json"].into_iter().chain(more.iter().copied()).map(str::to_owned);
        let keys = self.args.host_keys.accept_new_host_keys.then(|| "--accept-new-host-keys".to_owned());
        words.chain(self.options.iter().cloned()).chain(keys).collect()
    }

    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Notes why a wait has ended too early; `false`: the case is over.
    fn goes_on(&mut self, waited: Waited, console: &DrillConsole, state: &mut CaseState, what: &str) -> bool {
        match waited {
            Waited::Done => return true,
            Waited::Late => state.notes.push(format!("{what}: timed out")),
            Waited::Ended => state.notes.push(format!("{what}: {}", console.error())),
            Waited::Interrupted => self.interrupted = true,
        }
        false
    }

    /// Waits until the run is steady, and breaks it; returns when the fault is named or the wait for that is over.
    async fn train_and_break(
        &mut self,
        case: DrillCase,
        console: &mut DrillConsole,
        state: &mut CaseState,
    ) -> Result<(), Failure> {
        let waited = console.until(&mut self.signals, self.start, |events, _| events.is_up()).await;
        if !self.goes_on(waited, console, state, "the ranks did not start") {
            return Ok(());
        }
        let (since, most) = (self.now(), f64::from(self.args.train_s));
        let bound = Duration::from_secs(u64::from(self.args.train_s) + 5);
        let steady = |events: &RunEvents, now: f64| case.is_steady(events, now - since, most);
        let waited = console.until(&mut self.signals, bound, steady).await;
        if !self.goes_on(waited, console, state, "the program ended before the fault") {
            return Ok(());
        }
        if console.events.end.is_some() {
            state.notes.push(format!("the program ended before the fault: {}", console.error()));
            return Ok(());
        }
        state.skipped = judge::inapplicable(case, &console.events);
        if state.skipped.is_some() {
            return Ok(());
        }
        state.victim = console.events.victim();
        let patience = case.patience(self.stop_s);
        match case {
            DrillCase::Freeze => {
                let stop = Duration::try_from_secs_f64(self.stop_s).unwrap_or_default();
                let longest = patience.saturating_add(2 * (stop.saturating_add(STOPPING)));
                self.order(DrillFault::Freeze, longest.as_secs(), console, state).await;
            }
            DrillCase::Kill => self.order(DrillFault::Kill, 0, console, state).await,
            DrillCase::Slow => self.order(DrillFault::Slow, patience.as_secs(), console, state).await,
            DrillCase::Exception => self.order(DrillFault::Exception, RAISING_S, console, state).await,
            DrillCase::Agent => self.order(DrillFault::Agent, 0, console, state).await,
            DrillCase::Console => {
                self.lose_console(patience, console, state).await?;
                return Ok(());
            }
            DrillCase::Restart => {
                self.restart(patience, console, state).await?;
                return Ok(());
            }
            DrillCase::Stop => {
                state.struck = Some(self.now());
                console.signal(libc::SIGTERM);
            }
        }
        let Some(struck) = state.struck else { return Ok(()) };
        let victim = state.victim.clone();
        let is_over = |events: &RunEvents, _: f64| judge::is_reported(case, events, victim.as_ref(), struck);
        let waited = console.until(&mut self.signals, patience, is_over).await;
        self.interrupted |= waited == Waited::Interrupted;
        Ok(())
    }

    /// Orders the host of the rank to break it. `state.struck` stays empty if nothing was done.
    async fn order(
        &mut self,
        fault: DrillFault,
        seconds: u64,
        console: &DrillConsole,
        state: &mut CaseState,
    ) {
        let (Some(run), Some((rank, host))) = (&console.events.run, &state.victim) else { return };
        let Some(host) = self.hosts.iter().find(|known| known.name == *host).cloned() else {
            state.notes.push(format!("unknown host `{host}`"));
            return;
        };
        let order = DrillOrder {
            run: RunId(run.clone()),
            rank: Rank(*rank as u32),
            fault,
            seconds,
            // Two slices per step: a rank that makes several steps in one is late in few of them.
            slice_ms: console.events.collective_ms().map_or(SLICE_MS, |step| (step / 2.0) as u64),
        };
        let (sender, mut struck) = mpsc::unbounded_channel();
        let command = AgentCommand {
            args: [&["drill", "--workdir", &host.workdir].map(str::to_owned)[..], &order.words()[..]]
                .concat(),
            within: Some(Duration::from_secs(seconds + 60)),
            lines: LineSink::new(move |line| {
                if line == STRUCK {
                    let _ = sender.send(Instant::now());
                }
            }),
            ..AgentCommand::default()
        };
        let binary = self.binary.clone();
        let mut task = tokio::spawn(async move {
            let reply = Links::from_environment().call(&host, &binary, command, Arc::new(NoPrompts)).await?;
            decode::<rankdeck_proto::drill::DrillReply>(&host, &reply.text).map(drop)
        });
        let interrupted = async {
            use crate::app::signals::ConsoleSignal::{HangUp, Stop};
            while !matches!(self.signals.next().await, Stop | HangUp) {}
        };
        let begun = self.begun;
        let strike = async {
            match struck.recv().await {
                // The hook confirms the request only at the end.
                Some(at) if fault == DrillFault::Exception => (Some(at), Some((&mut task).await)),
                Some(at) => (Some(at), None),
                // The order was refused.
                None => (None, Some((&mut task).await)),
            }
        };
        let (at, done) = tokio::select! {
            found = strike => found,
            () = interrupted => {
                self.interrupted = true;
                (None, None)
            }
        };
        match done {
            Some(Ok(Err(refused))) if fault == DrillFault::Exception => {
                state.skipped = Some(format!("{}; {}", refused.error, refused.hint));
            }
            Some(Ok(Err(refused))) => state.notes.push(refused.error),
            Some(Err(error)) => state.notes.push(error.to_string()),
            Some(Ok(Ok(()))) => state.struck = Some(seconds_since(begun, at)),
            None => {
                state.struck = at.map(|at| seconds_since(begun, Some(at)));
                state.order = Some(task);
            }
        }
    }

    /// Kills the console, and looks for the run with another one, which takes its place.
    async fn lose_console(
        &mut self,
        patience: Duration,
        console: &mut DrillConsole,
        state: &mut CaseState,
    ) -> Result<(), Failure> {
        let Some(run) = console.events.run.clone() else { return Ok(()) };
        state.struck = Some(self.now());
        console.signal(libc::SIGKILL);
        let waited = console.until_end(&mut self.signals, STOPPING).await;
        self.interrupted |= waited == Waited::Interrupted;
        if self.interrupted {
            return Ok(());
        }
        let before = console.events.clone();
        let attach = DrillConsole::start(&self.binary, self.command("attach", &run, &[]), self.begun)?;
        let lost = std::mem::replace(console, attach);
        console.events.run = Some(run);
        let shows_steps = before.step_lines > 0;
        let waited = console
            .until(&mut self.signals, patience, |events: &RunEvents, _| {
                let same =
                    events.is_adopted && events.generation == before.generation && events.end.is_none();
                same && (events.step_lines > 0 || !shows_steps)
            })
            .await;
        if self.goes_on(waited, console, state, "a new console did not show the run") {
            state.answered = Some(self.now());
        }
        let events = &mut console.events;
        events.checkpoint = events.checkpoint.take().or(lost.events.checkpoint);
        if events.hosts.is_empty() {
            events.hosts = lost.events.hosts;
        }
        Ok(())
    }

    /// Restarts the run from its latest checkpoint, as a user does from another terminal.
    async fn restart(
        &mut self,
        patience: Duration,
        console: &mut DrillConsole,
        state: &mut CaseState,
    ) -> Result<(), Failure> {
        let Some(run) = console.events.run.clone() else { return Ok(()) };
        let before = console.events.clone();
        state.struck = Some(self.now());
        let mut restart =
            DrillConsole::start(&self.binary, self.command("restart", &run, &["--yes"]), self.begun)?;
        let waited = restart.until_end(&mut self.signals, patience).await;
        self.interrupted |= waited == Waited::Interrupted;
        if restart.exit.is_none() {
            restart.signal(libc::SIGTERM);
        }
        let reply = restart.replies.iter().find(|line| line["kind"] == "restarted");
        let Some(reply) = reply.filter(|_| !self.interrupted) else {
            state.notes.push(format!("not restarted: {}", restart.error()));
            return Ok(());
        };
        let saved = reply["env_step"].as_u64().filter(|step| *step > 0);
        let mut resumed = ResumeFacts {
            has_checkpoint: reply["from"].is_string(),
            saved: saved.or(before.checkpoint.as_ref().and_then(|checkpoint| checkpoint.step)),
            before: before.last_step,
            first: None,
        };
        let shows_steps = before.step_lines > 0;
        let is_up = |events: &RunEvents, _: f64| {
            let follows = events.generation > before.generation && events.end.is_none();
            follows && (events.first_step.is_some() || !shows_steps && events.is_up())
        };
        let mut waited = console.until(&mut self.signals, SHOWING, is_up).await;
        if waited == Waited::Ended {
            // The console that launched the run may leave it to the one that restarted it.
            let attach = DrillConsole::start(&self.binary, self.command("attach", &run, &[]), self.begun)?;
            let old = std::mem::replace(console, attach);
            console.events.run = Some(run);
            waited = console.until(&mut self.signals, SHOWING, is_up).await;
            let events = &mut console.events;
            events.checkpoint = events.checkpoint.take().or(old.events.checkpoint);
            if events.hosts.is_empty() {
                events.hosts = old.events.hosts;
            }
        }
        resumed.first = console.events.first_step;
        state.resumed = Some(resumed);
        if self.goes_on(waited, console, state, "the new generation made no step") {
            state.answered = Some(self.now());
        }
        Ok(())
    }

    /// DRILL-6. A second signal kills the run.
    async fn stop(&mut self, console: &mut DrillConsole, state: &mut CaseState) {
        let Some(run) = console.events.run.clone() else {
            // It has launched nothing yet: a signal ends it, or its run as soon as there is one.
            console.signal(libc::SIGTERM);
            let _ = console.until_end(&mut self.signals, self.start + STOPPING).await;
            return;
        };
        if console.events.end.as_ref().is_none_or(|end| !end.proved) {
            let limit = Duration::try_from_secs_f64(self.stop_s).unwrap_or_default().saturating_add(STOPPING);
            for more in [&["--yes"][..], &["--yes", "--kill"]] {
                let words = self.command("stop", &run, more);
                let Ok(mut stop) = DrillConsole::start(&self.binary, words, self.begun) else { break };
                let waited = stop.until_end(&mut self.signals, limit).await;
                self.interrupted |= waited == Waited::Interrupted;
                if let Some(end) = stop.events.end.take() {
                    let is_proved = end.proved;
                    let known = console.events.end.take().filter(|known| known.proved || !is_proved);
                    console.events.end = known.or(Some(end));
                    if is_proved {
                        break;
                    }
                }
                stop.signal(libc::SIGKILL);
                state.notes.push(format!("the stop was not verified: {}", stop.error()));
            }
        }
        // The console of a run that has ended ends by itself, one that was attached does so by a signal.
        let waited = console.until_end(&mut self.signals, ENDING).await;
        if waited != Waited::Ended {
            console.signal(libc::SIGKILL);
            let _ = console.until_end(&mut self.signals, ENDING).await;
        }
    }

    /// Scans the hosts, and judges.
    async fn measure(
        &self,
        case: DrillCase,
        run: &str,
        console: &DrillConsole,
        state: CaseState,
    ) -> Result<CaseRecord, Failure> {
        let left = self.processes_left(run).await?;
        let (gpu_memory, checkpoint) =
            (self.gpu_memory(run, console).await?, self.checkpoint(case, console).await?);
        let CaseState { victim, struck, answered, skipped, resumed, notes, order: _ } = state;
        let facts = CaseFacts {
            case,
            events: &console.events,
            victim,
            struck,
            answered,
            skipped,
            notes,
            checkpoint,
            resumed,
            left,
            gpu_memory,
        };
        Ok(judge::judge(facts))
    }

    /// The processes of the run that its hosts still find once agents had time to end; a host that does not respond
    /// counts as one.
    async fn processes_left(&self, run: &str) -> Result<Vec<String>, Failure> {
        let deadline = Instant::now() + ENDING;
        loop {
            let words = |host: &Host| {
                ["traces", "--run", run, "--workdir", &host.workdir].map(str::to_owned).to_vec()
            };
            let answers = exec_on_all(&self.hosts, &self.args.host_keys, words).await?;
            let mut left: Vec<String> = Vec::new();
            for (host, answer) in self.hosts.iter().zip(answers) {
                match answer.and_then(|text| decode::<RunTraces>(host, &text)) {
                    Ok(traces) => left.extend(
                        traces
                            .alive
                            .iter()
                            .map(|one| clean(&format!("{}:{} {}", host.name, one.pid, one.command))),
                    ),
                    Err(error) => left.push(clean(&format!("{}: not scanned: {}", host.name, error.error))),
                }
            }
            // Hosts that are one machine show the same processes.
            let mut seen = BTreeSet::new();
            left.retain(|line| seen.insert(line.split_once(':').map(|(_, process)| process.to_owned())));
            if left.is_empty() || Instant::now() >= deadline {
                left.truncate(LISTED);
                return Ok(left);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// GPU memory that processes of the run hold; `None` without GPUs.
    async fn gpu_memory(&self, run: &str, console: &DrillConsole) -> Result<Option<u64>, Failure> {
        let mut held = 0_u64;
        for holders in gpu_holders(&self.hosts, self.args).await?.into_iter().flatten() {
            let own = holders.iter().filter(|holder| holder.run.as_deref() == Some(run));
            held =
                own.flat_map(|holder| &holder.gpus).fold(held, |sum, share| sum.saturating_add(share.memory));
        }
        Ok((console.events.on_gpus || held > 0).then_some(held))
    }

    /// What became of the latest checkpoint.
    async fn checkpoint(
        &self,
        case: DrillCase,
        console: &DrillConsole,
    ) -> Result<(CheckpointFate, Option<u64>), Failure> {
        let events = &console.events;
        let end = events.end.as_ref();
        if case == DrillCase::Stop {
            let saved = end.and_then(|end| end.checkpoint.as_ref()).and_then(|checkpoint| checkpoint.step);
            let fate = match end.and_then(|end| end.work.as_deref()) {
                Some("saved") => CheckpointFate::Kept,
                Some("lost") => CheckpointFate::Lost,
                Some("never_saved") => CheckpointFate::None,
                _ => CheckpointFate::Unknown,
            };
            return Ok((fate, saved));
        }
        let known = events.checkpoint.clone().or_else(|| end?.checkpoint.clone());
        let Some(SeenCheckpoint { path, step }) = known else { return Ok((CheckpointFate::None, None)) };
        let first = events.hosts.get(&0).and_then(|name| self.hosts.iter().find(|host| host.name == *name));
        let Some(first) = first else { return Ok((CheckpointFate::Unknown, step)) };
        let words = |host: &Host| {
            ["checkpoint", "--path", &path, "--workdir", &host.workdir].map(str::to_owned).to_vec()
        };
        let answers = exec_on_all(std::slice::from_ref(first), &self.args.host_keys, words).await?;
        let found = answers.into_iter().next().map(|answer| decode::<Vec<String>>(first, &answer?));
        let fate = match found {
            Some(Ok(found)) if found.is_empty() => CheckpointFate::Lost,
            Some(Ok(_)) => CheckpointFate::Kept,
            _ => CheckpointFate::Unknown,
        };
        Ok((fate, step))
    }

    /// Removes the files of a run, on its hosts and here. What cannot be removed is named.
    async fn remove(&self, run: &str) {
        let deadline = Instant::now() + ENDING;
        let problem = loop {
            let words = |host: &Host| {
                ["remove", "--run", run, "--workdir", &host.workdir].map(str::to_owned).to_vec()
            };
            let answers = match exec_on_all(&self.hosts, &self.args.host_keys, words).await {
                Ok(answers) => answers,
                Err(failure) => break Some(failure.cause.error),
            };
            let refused = self.hosts.iter().zip(answers).find_map(|(host, answer)| {
                match answer.and_then(|text| decode::<Removal>(host, &text)) {
                    Ok(removal) => removal.refused.map(|why| format!("{}: {why}", host.name)),
                    Err(error) => Some(error.error),
                }
            });
            // An agent ends a little after the console that has verified the stop.
            if refused.is_none() || Instant::now() >= deadline {
                break refused;
            }
            tokio::time::sleep(PAUSE).await;
        };
        let here =
            run_name::own_folder(run).map_err(|why| why.error).and_then(|folder| match folder.exists() {
                true => {
                    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
                }
                false => Ok(()),
            });
        if let Some(why) = problem.or(here.err()) {
            stderr::line(&format!("warning: run {run} is not removed: {}", clean(&why)));
            stderr::line(&format!("hint: remove it with `rankdeck rm {run}`"));
        }
    }
}

/// Seconds of a drill; now without a moment.
fn seconds_since(begun: Instant, at: Option<Instant>) -> f64 {
    at.unwrap_or_else(Instant::now).duration_since(begun).as_secs_f64()
}

/// A selection of GPUs as `--gpus` takes it.
fn gpu_words(gpus: &GpuSelection) -> String {
    let list = |indices: &[u32]| indices.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    match gpus {
        GpuSelection::Word(word) => word.clone(),
        GpuSelection::Count(count) => list(&(0..*count).collect::<Vec<_>>()),
        GpuSelection::List(indices) => list(indices),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::holders::GpuShare;

    #[test]
    fn drill_5_gpu_of_others_counts_if_the_drill_may_use_it() {
        let holder = |index: u32| Holder {
            gpus: vec![GpuShare { index, ..GpuShare::default() }],
            ..Holder::default()
        };
        let host = |gpus: Option<GpuSelection>, nproc: Option<u32>| Host { gpus, nproc, ..Host::default() };
        for (gpus, nproc, index, expected) in [
            (Some(GpuSelection::List(vec![1])), None, 1, true),
            (Some(GpuSelection::List(vec![1])), None, 0, false),
            (Some(GpuSelection::List(Vec::new())), None, 0, false),
            (Some(GpuSelection::Count(2)), None, 1, true),
            (Some(GpuSelection::Count(2)), None, 2, false),
            (Some(GpuSelection::Word("all".into())), Some(1), 7, true),
            (None, Some(2), 0, false),
        ] {
            assert_eq!(may_use(&host(gpus.clone(), nproc), &holder(index)), expected, "{gpus:?} {index}");
        }
    }

    #[test]
    fn drill_5_live_runs_of_others_stop_a_drill_between_cases() {
        let entry = |run: &str, state: HostRunState| RunEntry {
            run: RunId(run.into()),
            state,
            ..run_index::sample_entry()
        };
        let runs = [
            entry("done", HostRunState::Finished),
            entry("drill-a-kill-1", HostRunState::Running),
            entry("ppo-1", HostRunState::Orphaned),
        ];
        let own = BTreeSet::from(["drill-a-kill-1".to_owned()]);
        let live =
            |runs: &[RunEntry], own: &BTreeSet<String>| live_beside(runs, own).map(|run| run.run.0.clone());
        assert_eq!(live(&runs, &own).as_deref(), Some("ppo-1"));
        assert_eq!(live(&runs[..2], &own), None);
        assert_eq!(live(&runs[..2], &BTreeSet::new()).as_deref(), Some("drill-a-kill-1"));
    }

    #[test]
    fn gpu_selection_is_passed_on_as_it_was_typed() {
        use crate::cli::args::values::parse_gpus;
        for text in ["0,2", "all", "auto", "3"] {
            assert_eq!(gpu_words(&parse_gpus(text).unwrap()), text);
        }
    }
}
