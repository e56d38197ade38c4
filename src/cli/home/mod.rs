//! Runs the home screen: bare `rankdeck` on a terminal.
//!
//! [`hosts`] polls the hosts. Updates go into a [`Home`](rankdeck_tui::home::Home), which is drawn; keys come
//! back as actions. A command that needs the terminal runs in this process, so that credentials are entered
//! once; hosts are not polled meanwhile. Other commands run in the background as child processes.
//!
//! [`RunLists`] has the runs of the hosts, merged as `rankdeck ps` does, and local recordings, with their latest
//! progress and their outcome.

pub(super) mod experiments;
mod hosts;

use super::args::{Cli, HomeArgs, OutputArgs};
use super::output_mode::{self, TerminalInfo};
use super::run_index::own_binary;
use super::support::output_file::free_names;
use super::{Failure, child, code, print, relaunch};
use crate::app::clock::Clock;
use crate::app::home_screen::HomeScreen;
use crate::app::record::reader;
use crate::app::signals::{ConsoleSignal, ConsoleSignals};
use crate::app::stderr;
use crate::cli::run_index::{RunIndex, RunStatus};
use crate::cli::support::locate::{self, RecordedRun};
use crate::cli::support::run_name::RUNS;
use clap::FromArgMatches;
use hosts::{HostPoller, HostUpdate, ReplyView};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::{RunEntry, RunList};
use rankdeck_tui::Role;
use rankdeck_tui::home::{Home, HomeAction, HomeEvent, HomeView, JobOutput, RunPhase, RunRow};
use rankdeck_types::host::Host;
use rankdeck_types::words::clean;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Runs a rankdeck command.
pub type Dispatch = fn(Cli) -> Pin<Box<dyn Future<Output = Result<u8, Failure>>>>;

/// State of the home screen.
struct HomeSession {
    /// Options of every command that home starts.
    options: Vec<String>,
    /// Options of commands that show a run screen.
    screen_options: Vec<String>,
    source: HostsSource,
    hosts: Vec<Host>,
    home: Home,
    view: HomeView,
    clock: Clock,
    lists: RunLists,
    poller: HostPoller,
    jobs: BackgroundJobs,
    /// File and overrides of the latest requested preview.
    requested_preview: Option<(String, String)>,
    dispatch: Dispatch,
}

/// Signals that end the console on any screen.
struct ExitSignals {
    terminate: Signal,
    hang_up: Signal,
}

impl ExitSignals {
    fn new() -> io::Result<ExitSignals> {
        Ok(ExitSignals {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Tests whether a signal has arrived.
    fn received(&mut self) -> bool {
        use futures_util::FutureExt;
        self.terminate.recv().now_or_never().is_some() || self.hang_up.recv().now_or_never().is_some()
    }
}

/// Runs `rankdeck home`.
///
/// # Errors
/// If there is no terminal, or it fails.
pub async fn home(
    source: &HostsSource,
    args: HomeArgs,
    options: Vec<String>,
    dispatch: Dispatch,
) -> Result<u8, Failure> {
    let place = TerminalInfo::here();
    if !place.terminal {
        return Err(Failure::usage("home requires a terminal")
            .hint("list runs with `rankdeck ps`, commands with `rankdeck --help`"));
    }
    let output = OutputArgs {
        theme: args.theme.clone(),
        glyphs: args.glyphs.clone(),
        read_only: args.read_only,
        ..OutputArgs::default()
    };
    output_mode::choose(&output, &place)?;
    output_mode::stay_at_home();
    let (hosts, error) = match rankdeck_config::load_hosts(source) {
        Ok(hosts) => (hosts, None),
        Err(error) => (Vec::new(), Some(Failure::from(error).in_short())),
    };
    let mut home = Home::new(hosts.iter().map(|host| (host.name.clone(), host.address.clone())));
    home.error = error;
    let view = HomeView { read_only: output_mode::ui().read_only, ..HomeView::default() };
    let mut screen_options = Vec::new();
    for (name, value) in [("--theme", args.theme), ("--glyphs", args.glyphs)] {
        screen_options.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    if args.read_only {
        screen_options.push("--read-only".into());
    }
    let session = HomeSession {
        lists: RunLists::new(hosts.clone()),
        options,
        screen_options,
        source: source.clone(),
        hosts,
        home,
        view,
        clock: Clock::new(),
        poller: HostPoller::default(),
        jobs: BackgroundJobs::default(),
        requested_preview: None,
        dispatch,
    };
    session.run().await.map_err(Failure::terminal)?
}

/// What follows when the home screen closes.
enum NextStep {
    Quit,
    Command { args: Vec<String>, pause: bool },
    Edit(String),
}

impl HomeSession {
    async fn run(mut self) -> io::Result<Result<u8, Failure>> {
        let mut signals = ExitSignals::new()?;
        loop {
            match self.show().await? {
                NextStep::Quit => break,
                NextStep::Command { args, pause } => {
                    self.poller.stop();
                    self.run_on_terminal(&args, pause).await;
                    if signals.received() {
                        break;
                    }
                }
                NextStep::Edit(path) => {
                    self.poller.stop();
                    let edited = edit(&path).await;
                    edited.unwrap_or_else(|failure| pause(&failure.lines()));
                    if signals.received() {
                        break;
                    }
                }
            }
        }
        self.poller.stop();
        self.jobs.finish().await;
        Ok(Ok(code::SUCCESS))
    }

    /// Shows home until it closes.
    async fn show(&mut self) -> io::Result<NextStep> {
        let mut screen = HomeScreen::open(&output_mode::ui())?;
        let mut signals = ConsoleSignals::new(true)?;
        self.poller.start(&self.hosts);
        self.apply(HomeEvent::Experiments(experiments::find()));
        self.update_runs();
        self.open_relaunch();
        loop {
            let now = self.clock.now();
            screen.draw(&self.home, &mut self.view, now)?;
            let (due, wake) = (screen.poll_timeout(), screen.wake());
            let actions = tokio::select! {
                () = wake.notified() => Vec::new(),
                signal = signals.next() => match signal {
                    ConsoleSignal::Stop | ConsoleSignal::HangUp => vec![HomeAction::Quit],
                    ConsoleSignal::Suspend => vec![HomeAction::Suspend],
                    ConsoleSignal::Continue => vec![HomeAction::Redraw],
                },
                input = screen.next_input() => match input {
                    Some(input) => screen.handle_input(input, &self.home, &mut self.view, now),
                    None => vec![HomeAction::Quit],
                },
                update = self.poller.next() => {
                    self.on_update(update);
                    Vec::new()
                }
                ended = self.jobs.next() => {
                    self.on_job_end(ended);
                    Vec::new()
                }
                () = self.clock.sleep_until(due) => Vec::new(),
            };
            for action in actions {
                match action {
                    HomeAction::Quit => {
                        screen.close();
                        return Ok(NextStep::Quit);
                    }
                    HomeAction::OnTerminal { args, pause } => {
                        screen.close();
                        return Ok(NextStep::Command { args, pause });
                    }
                    HomeAction::Edit(path) => {
                        screen.close();
                        return Ok(NextStep::Edit(path));
                    }
                    HomeAction::Suspend => screen.suspend(&mut signals).await?,
                    HomeAction::Redraw => screen.redraw(),
                    HomeAction::Refresh => {
                        self.poller.start(&self.hosts);
                        self.apply(HomeEvent::Experiments(experiments::find()));
                    }
                    HomeAction::Preview { path, typed } => self.preview(path, typed),
                    HomeAction::Compare(runs) => self.compare(runs),
                    HomeAction::Process { host, process, action } => {
                        if let Some(host) = self.hosts.iter().find(|listed| listed.name == host).cloned() {
                            tokio::spawn(hosts::request_process(host, process, action, self.poller.sender()));
                        }
                    }
                    HomeAction::InBackground { title, args } => self.in_background(title, args),
                    HomeAction::WriteFiles { mut args, stem, files } => {
                        let endings: Vec<&str> = files.iter().map(|(_, ending)| *ending).collect();
                        let paths = free_names(Path::new(""), &stem, &endings);
                        let title = paths.join(", ");
                        let options = files.iter().zip(paths);
                        args.extend(options.flat_map(|((option, _), path)| [(*option).to_owned(), path]));
                        self.in_background(title, args);
                    }
                }
            }
        }
    }

    /// Opens the launch form if the run screen was closed to launch a similar run.
    fn open_relaunch(&mut self) {
        let Some(again) = relaunch::take() else { return };
        let (path, typed) = (again.path(), again.set.join(" "));
        self.view.open_launch(path.clone(), typed.clone());
        self.preview(path, typed);
    }

    fn apply(&mut self, event: HomeEvent) {
        self.home.update(event, self.clock.now());
    }

    fn on_update(&mut self, update: HostUpdate) {
        match update {
            HostUpdate::Snapshot(host, mut snapshot) => {
                let listed = snapshot.runs.take();
                // An empty list still marks the snapshot as one with a list.
                snapshot.runs = listed.as_ref().map(|_| RunList::default());
                self.apply(HomeEvent::Snapshot { host, snapshot });
                if let Some(list) = listed {
                    let unreadable = list.unreadable.map(|why| why.with_hint());
                    let left_out = unreadable.into_iter().chain(list.left_out).collect();
                    if let Some(warning) = self.lists.left_out(host, left_out) {
                        self.view.toast(warning, Role::Warn, self.clock.now());
                    }
                    self.lists.set(host, list.runs);
                    self.update_runs();
                }
            }
            HostUpdate::Failed(host, error) => {
                self.apply(HomeEvent::HostFailed { host, error });
                self.update_runs();
            }
            HostUpdate::Replied(host, process, action, outcome) => {
                match hosts::reply_view(&host, process, action, outcome) {
                    ReplyView::Output(output) => {
                        self.apply(HomeEvent::JobEnded { job: 0, output });
                        self.view.open_output();
                    }
                    ReplyView::Toast(text, role) => self.view.toast(text, role, self.clock.now()),
                }
            }
            HostUpdate::Recorded(recorded, summary) => {
                self.lists.add_summary(&recorded, *summary);
                self.show_runs();
            }
            HostUpdate::AllRecorded => {
                self.lists.read_all();
                self.update_runs();
            }
            HostUpdate::Compared(runs, missing) => self.apply(HomeEvent::Compared(runs, missing)),
            HostUpdate::Planned(preview) => {
                if self.requested_preview.as_ref() == Some(&(preview.path.clone(), preview.typed.clone())) {
                    self.apply(HomeEvent::Planned(preview));
                }
            }
        }
    }

    fn show_runs(&mut self) {
        let rows = self.lists.rows(&self.home);
        self.apply(HomeEvent::Runs(rows));
    }

    /// Updates the list of runs, and reads recordings of runs that no host knows on another thread.
    fn update_runs(&mut self) {
        self.show_runs();
        let unread = self.lists.unread(&self.home.runs);
        if unread.is_empty() {
            return;
        }
        let updates = self.poller.sender();
        tokio::task::spawn_blocking(move || {
            for recorded in unread {
                let summary = Box::new(read_summary(&recorded));
                if updates.blocking_send(HostUpdate::Recorded(recorded, summary)).is_err() {
                    return;
                }
            }
            let _ = updates.blocking_send(HostUpdate::AllRecorded);
        });
    }

    /// Plans a launch on another thread, because it may have to query the source of hosts.
    fn preview(&mut self, path: String, typed: String) {
        self.requested_preview = Some((path.clone(), typed.clone()));
        let chosen = self.view.fleet.chosen.clone();
        let probes = experiments::probes(&self.home);
        let (source, updates) = (self.source.clone(), self.poller.sender());
        tokio::task::spawn_blocking(move || {
            let preview = experiments::preview(&source, path, typed, &chosen, &probes);
            let _ = updates.blocking_send(HostUpdate::Planned(preview));
        });
    }

    /// Reads the recordings to compare on another thread.
    fn compare(&mut self, runs: Vec<String>) {
        let updates = self.poller.sender();
        tokio::task::spawn_blocking(move || {
            let (mut read, mut missing) = (Vec::new(), Vec::new());
            for run in runs {
                match super::compare::load(&run) {
                    Ok(run) => read.push(run),
                    Err(failure) => missing.push(format!("{run}: {}", failure.cause.error)),
                }
            }
            let _ = updates.blocking_send(HostUpdate::Compared(read, missing));
        });
    }

    fn in_background(&mut self, title: String, args: Vec<String>) {
        let args = self.options.iter().cloned().chain(args).collect::<Vec<_>>();
        let now = self.clock.now();
        match self.jobs.start(&title, &args) {
            Ok(job) => self.apply(HomeEvent::JobStarted { job, title }),
            Err(error) => self.view.toast(format!("{title}: {error}"), Role::Bad, now),
        }
    }

    fn on_job_end(&mut self, (job, output): (u64, JobOutput)) {
        let role = if output.succeeded { Role::Good } else { Role::Bad };
        let line = match output.succeeded {
            true => output.lines.iter().rev().find(|line| !line.starts_with("hint:")),
            false => output.lines.iter().find(|line| line.starts_with("error:")).or(output.lines.last()),
        };
        let text = format!("{}: {}   o shows all", output.title, line.map_or("done", String::as_str));
        self.view.toast(text, role, self.clock.now());
        self.apply(HomeEvent::JobEnded { job, output });
        // Show its effect without waiting for the next snapshot.
        self.poller.start(&self.hosts);
    }

    /// Runs a rankdeck command on the terminal; with `pause`, waits for Enter at its end.
    async fn run_on_terminal(&mut self, args: &[String], pause: bool) {
        let shows = matches!(args.first().map(String::as_str), Some("attach" | "run"));
        let screen_options = self.screen_options.iter().filter(|_| shows).cloned();
        let words = ["rankdeck".to_owned()].into_iter().chain(self.options.iter().cloned());
        let words: Vec<String> = words.chain(args.iter().cloned()).chain(screen_options).collect();
        let parsed = super::args::help::command().try_get_matches_from(&words);
        let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
        let done = match parsed {
            Ok(cli) => (self.dispatch)(cli).await,
            Err(error) => Err(Failure::usage(error.to_string())),
        };
        match done {
            Err(failure) => self::pause(&failure.lines()),
            Ok(_) if pause => self::pause(&[]),
            Ok(_) => {}
        }
    }
}

/// Prints lines and waits for Enter.
fn pause(lines: &[String]) {
    lines.iter().for_each(|line| stderr::line(line));
    stderr::status("press enter to return to home ");
    let mut line = String::new();
    let _ = io::stdin().read_line(&mut line);
}

/// Maximum bytes stored per stream.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// Running commands.
#[derive(Default)]
struct BackgroundJobs {
    running: JoinSet<(u64, JobOutput)>,
    titles: Vec<(u64, String)>,
    next: u64,
}

impl BackgroundJobs {
    /// Starts a command and returns its number. Without a terminal it cannot prompt.
    fn start(&mut self, title: &str, args: &[String]) -> io::Result<u64> {
        let binary = own_binary().map_err(|failure| io::Error::other(failure.to_string()))?;
        let child = child::spawn(&binary, args.to_vec(), |command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        })?;
        self.next += 1;
        let (job, title) = (self.next, title.to_owned());
        self.titles.push((job, title.clone()));
        self.running.spawn(async move {
            let output = match child.wait_with_output().await {
                Ok(output) => {
                    let lines = output_lines(&output.stdout).chain(output_lines(&output.stderr));
                    JobOutput { title, succeeded: output.status.success(), lines: lines.collect() }
                }
                Err(error) => JobOutput { title, succeeded: false, lines: vec![format!("error: {error}")] },
            };
            (job, output)
        });
        Ok(job)
    }

    /// Returns the next command that ends. Cancel-safe.
    async fn next(&mut self) -> (u64, JobOutput) {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => {
                    self.titles.retain(|(job, _)| *job != ended.0);
                    return ended;
                }
                Some(Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Waits for all running commands and prints their output.
    async fn finish(&mut self) {
        for (_, title) in &self.titles {
            stderr::line(&format!("note: waiting for `{title}` to finish"));
        }
        while let Some(ended) = self.running.join_next().await {
            if let Ok((_, output)) = ended {
                output.lines.iter().for_each(|line| {
                    print::stdout(line);
                });
            }
        }
    }
}

fn output_lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    let stored = &bytes[..bytes.len().min(MAX_OUTPUT_BYTES)];
    let lines: Vec<String> = String::from_utf8_lossy(stored).lines().map(clean).collect();
    lines.into_iter().filter(|line| !line.trim().is_empty())
}

/// Opens a file in the editor of `$VISUAL` or `$EDITOR` and waits for it.
async fn edit(path: &str) -> Result<(), Failure> {
    edit_with(&editor_command(&|name| std::env::var(name).ok()), path).await
}

/// Returns the editor as git and crontab choose it.
fn editor_command(value: &dyn Fn(&str) -> Option<String>) -> String {
    let set = |name: &str| value(name).filter(|editor| !editor.trim().is_empty());
    set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into())
}

/// Runs the editor through a shell, because the variable may contain arguments.
async fn edit_with(editor: &str, path: &str) -> Result<(), Failure> {
    let script = format!("exec {editor} \"$1\"");
    let status = Command::new("sh").args(["-c", &script, "sh", path]).status().await;
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Failure::failed(format!("the editor `{editor}` failed on {path}: {why}"))
        .hint("set another editor: `export EDITOR=nano`"))
}

/// How long the list of recordings is cached.
const CACHED: Duration = Duration::from_secs(10);

/// Maximum number of recordings read for the list, latest first.
const MAX_READ: usize = 200;

/// The latest run list of each host.
struct RunLists {
    hosts: Vec<Host>,
    reported: Vec<Vec<RunEntry>>,
    left_out: Vec<Vec<String>>,
    records: Vec<RecordedRun>,
    listed_at: Option<Instant>,
    /// Summaries of recordings, with their modification times.
    summaries: BTreeMap<String, (SystemTime, RunSummary)>,
    /// Recordings are being read.
    reading: bool,
}

impl RunLists {
    /// Creates empty lists for these hosts.
    pub fn new(hosts: Vec<Host>) -> RunLists {
        let (reported, left_out) = (vec![Vec::new(); hosts.len()], vec![Vec::new(); hosts.len()]);
        let (records, summaries) = (Vec::new(), BTreeMap::new());
        RunLists { hosts, reported, left_out, records, listed_at: None, summaries, reading: false }
    }

    /// Replaces the list of a host.
    pub fn set(&mut self, host: usize, runs: Vec<RunEntry>) {
        if let Some(reported) = self.reported.get_mut(host) {
            *reported = runs;
        }
    }

    /// Returns a warning if a host omits something from its list for a new reason.
    pub fn left_out(&mut self, host: usize, reasons: Vec<String>) -> Option<String> {
        let (known, name) = (self.left_out.get_mut(host)?, &self.hosts.get(host)?.name);
        let new = reasons.iter().find(|reason| !known.contains(reason));
        let warning = new.map(|reason| format!("host {name}: not listed: {reason}"));
        *known = reasons;
        warning
    }

    /// Returns recordings of these runs that changed since they were read, and marks them as being read
    /// until [`RunLists::read_all`].
    pub fn unread(&mut self, rows: &[RunRow]) -> Vec<RecordedRun> {
        let alone: BTreeSet<&str> =
            rows.iter().filter(|row| row.phase == RunPhase::Recorded).map(|row| row.run.as_str()).collect();
        let candidates =
            self.records.iter().filter(|recorded| alone.contains(recorded.name.as_str())).take(MAX_READ);
        let is_old = |recorded: &&RecordedRun| {
            self.summaries.get(&recorded.name).is_none_or(|(written, _)| *written != recorded.written)
        };
        let unread: Vec<RecordedRun> = candidates.filter(is_old).cloned().collect();
        if self.reading || unread.is_empty() {
            return Vec::new();
        }
        self.reading = true;
        unread
    }

    /// Caches the summary of a recording.
    pub fn add_summary(&mut self, recorded: &RecordedRun, summary: RunSummary) {
        self.summaries.insert(recorded.name.clone(), (recorded.written, summary));
    }

    /// All requested recordings are read.
    pub fn read_all(&mut self) {
        self.reading = false;
    }

    /// Returns all runs, newest first; recordings of runs that no host knows come last.
    pub fn rows(&mut self, home: &Home) -> Vec<RunRow> {
        if self.listed_at.is_none_or(|at| at.elapsed() >= CACHED) {
            self.records = reader::list(Path::new(RUNS));
            self.listed_at = Some(Instant::now());
        }
        let now = wall_time();
        let entries = self
            .reported
            .iter()
            .enumerate()
            .flat_map(|(host, reported)| reported.iter().map(move |entry| (host, entry.clone())));
        let silent = home.hosts.iter().enumerate();
        let silent = silent.filter_map(|(index, host)| Some((index, host.error.clone()?)));
        let run_index = RunIndex {
            hosts: self.hosts.clone(),
            entries: entries.collect(),
            silent: silent.collect(),
            left_out: Vec::new(),
            others: Vec::new(),
        }
        .deduplicated();
        let mut rows: Vec<RunRow> = run_index
            .runs()
            .iter()
            .map(|found| {
                let summary = found.summary(now);
                RunRow {
                    run: found.run.to_owned(),
                    phase: match found.state {
                        RunStatus::Running => RunPhase::Running,
                        RunStatus::Orphaned => RunPhase::Orphaned,
                        RunStatus::Finished => RunPhase::Ended,
                    },
                    alive: found.parts.iter().map(|(_, part)| part.ranks_alive).sum(),
                    age_s: summary.started.map(|started| (now - started).max(0.0)),
                    recorded: self.records.iter().any(|recorded| recorded.name == found.run),
                    summary,
                }
            })
            .collect();
        let listed: Vec<String> = rows.iter().map(|row| row.run.clone()).collect();
        let alone = self.records.iter().filter(|recorded| !listed.contains(&recorded.name));
        rows.extend(alone.map(|recorded| {
            let summary =
                self.summaries.get(&recorded.name).map(|(_, summary)| summary.clone()).unwrap_or_default();
            let written = recorded.written.elapsed().ok().map(|age| age.as_secs_f64());
            RunRow {
                run: recorded.name.clone(),
                phase: RunPhase::Recorded,
                age_s: summary.started.map(|started| (now - started).max(0.0)).or(written),
                recorded: true,
                summary,
                ..RunRow::default()
            }
        }));
        rows
    }
}

/// Reads the recording; the summary is empty if it cannot be read.
fn read_summary(recorded: &RecordedRun) -> RunSummary {
    let read = locate::open_recording(recorded).ok().and_then(|record| record.last().ok());
    read.map(|(model, at)| RunSummary::from_model(&model, at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn editor_comes_from_visual_or_editor_with_arguments() {
        let of = |pairs: &[(&str, &str)]| {
            editor_command(&|name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("EDITOR", "nano"), ("VISUAL", "code -w")]), "code -w");
        assert_eq!(of(&[("EDITOR", "nano"), ("VISUAL", " ")]), "nano");
        assert_eq!(of(&[]), "vi");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("an experiment.toml");
        std::fs::write(&file, "a\n").unwrap();
        edit_with("sed -i s/a/b/", file.to_str().unwrap()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b\n");
        assert!(edit_with("false", "x.toml").await.is_err());
    }

    #[test]
    fn missing_recording_has_an_empty_summary() {
        let nothing = RecordedRun {
            name: "x".into(),
            record: "nowhere".into(),
            written: std::time::SystemTime::UNIX_EPOCH,
            path: None,
        };
        assert_eq!(read_summary(&nothing), RunSummary::default());
    }
}
