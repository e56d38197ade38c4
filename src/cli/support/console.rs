//! The console of a command: its links, its recording, its output, the summary when it ends; and the console
//! of an existing run.

use crate::app::driver::{self, Connector, ConsoleExit, ConsoleLinks, ConsoleSetup, ExitReason};
use crate::app::exit_condition::{ExitCondition, silent};
use crate::app::headless::{LineFormat, PrintRate};
use crate::app::line_writer::LineWriter;
use crate::app::metrics::Endpoint;
use crate::app::output::ConsoleOutput;
use crate::app::record::{self, Recorder};
use crate::app::secrets::VariableConsent;
use crate::app::{stderr, summary};
use crate::cli::args::{HostKeyArgs, OutputArgs};
use crate::cli::support::output_mode::{self, OutputMode};
use crate::cli::support::provenance::{self, Provenance};
use crate::cli::support::run_index::{FoundRun, RunIndex, own_binary, trainer_binary};
use crate::cli::support::{Failure, code, print, prompt, relaunch};
use rankdeck_core::Goal;
use rankdeck_core::model::{Model, RunState};
use rankdeck_link::{LinkRequest, NoAgentPolicy};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::{folders, trust};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::ui::Notify;
use rankdeck_types::words::clean;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;
use tokio::sync::mpsc;

/// Link events that may wait for the driver.
pub(crate) const INBOX: usize = 1024;

/// A screen stays open after the end of the run, unless `--exit` was passed.
pub(crate) fn watching(output: &OutputArgs) -> ExitCondition {
    if output.exit { ExitCondition::Watch } else { ExitCondition::Linger }
}

/// What all links of a console have in common.
pub(crate) struct LinkOptions<'a> {
    pub(crate) run: &'a RunId,
    /// Start agents, or find them.
    pub(crate) opening: NoAgentPolicy,
    /// Whether the built-in trainer is needed.
    pub(crate) builtin: bool,
    /// Which host keys are accepted.
    pub(crate) host_keys: &'a HostKeyArgs,
    /// Screen or lines.
    pub(crate) chosen: OutputMode,
}

/// Opens one link per host that is `is_included`.
pub(crate) fn open_links(
    hosts: &[Host],
    options: &LinkOptions,
    is_included: impl Fn(&Host) -> bool,
) -> Result<ConsoleLinks, Failure> {
    let agent_binary = own_binary()?;
    let found_trainer = trainer_binary(&agent_binary);
    let trainer_binary = if options.builtin { found_trainer.clone() } else { None };
    let interactive =
        options.chosen == OutputMode::Screen || prompt::can_ask() || options.host_keys.accept_new_host_keys;
    let (events, inbox) = mpsc::channel(INBOX);
    let request = LinkRequest {
        node: NodeRank(0),
        host: Host::default(),
        run: options.run.clone(),
        no_agent: options.opening,
        agent_binary,
        trainer_binary,
        interactive,
    };
    let opener = rankdeck_link::Links::from_environment();
    let handles = hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| is_included(host))
        .map(|(node, host)| {
            let (node, host) = (NodeRank(node as u32), host.clone());
            opener.open(LinkRequest { node, host, ..request.clone() }, events.clone())
        })
        .collect();
    let connector: Connector = Box::new(move |node, host, opening, builtin| {
        let request = LinkRequest {
            node,
            host: host.clone(),
            no_agent: opening,
            trainer_binary: found_trainer.clone().filter(|_| builtin),
            ..request.clone()
        };
        opener.open(request, events.clone())
    });
    Ok(ConsoleLinks { handles, inbox, connector: Some(connector) })
}

/// What a console opens besides its output.
pub(crate) struct Outlets {
    notify: Notify,
    metrics: Option<Endpoint>,
}

/// Opens the outlets that options and `ui.toml` name, before anything is recorded or launched.
pub(crate) async fn outlets() -> Result<Outlets, Failure> {
    Ok(Outlets { notify: output_mode::notify()?, metrics: output_mode::endpoint().await? })
}

/// Runs a console with the output that was chosen.
pub(crate) async fn console(
    mut setup: ConsoleSetup,
    outlets: Outlets,
    chosen: OutputMode,
    log: Option<File>,
    pace: PrintRate,
) -> Result<ConsoleExit, Failure> {
    if matches!(chosen, OutputMode::Lines(_)) {
        setup.exit_condition = setup.exit_condition.without_screen();
    }
    setup.can_ask = prompt::can_ask();
    (setup.notify, setup.metrics) = (Some(outlets.notify), outlets.metrics);
    setup.can_relaunch = relaunch::is_offered();
    setup.read_files = Some(relaunch::read_files);
    setup.changer = relaunch::change;
    setup.at_home = output_mode::is_at_home();
    let end = drive(setup, output_mode::open(chosen, log, pace)?).await?;
    relaunch::set_requested(end.again);
    Ok(end)
}

/// Runs a console.
pub(crate) async fn drive(setup: ConsoleSetup, output: ConsoleOutput) -> Result<ConsoleExit, Failure> {
    driver::drive(setup, output).await.map_err(|error| {
        Failure::failed(format!("the terminal failed: {error}"))
            .hint("the run keeps running: `rankdeck attach`, or `rankdeck attach --headless`")
    })
}

/// Opens the recording of a console in `records`, and its own log, which takes stderr while a screen is up.
pub(crate) fn record(
    goal: &Goal,
    (records, run): (&Path, &RunId),
    origin: Option<&Provenance>,
) -> Result<(Recorder, File), Failure> {
    let failure = |error: std::io::Error| {
        Failure::failed(format!("failed to record into {}: {error}", records.join(&run.0).display()))
            .hint("run the command in a writable directory")
    };
    trust::check_run(records, &records.join(&run.0)).map_err(Failure::place)?;
    folders::create_runs(records).map_err(|why| failure(std::io::Error::other(why.error)))?;
    let folder = record::make_folder(records, run).map_err(failure)?;
    let log = record::open_log(&folder).map_err(failure)?;
    let recorder = Recorder::new(&folder, goal, wall_time()).map_err(failure)?;
    if let Some(origin) = origin {
        origin.write(&folder).map_err(failure)?;
    }
    Ok((recorder, log))
}

/// Prints the summary; returns the exit code.
pub(crate) fn finish(end: &ConsoleExit, output: &OutputArgs, run: &RunId) -> u8 {
    // The run should be shown, but no host has reported it.
    let unknown = is_unknown(&end.model);
    match (end.why, &end.finished) {
        _ if unknown => {}
        (ExitReason::Detached, _) if output.quiet => {}
        (ExitReason::Detached, _) => {
            let away: Vec<&str> = silent(&end.model, &[]).map(|host| host.name.as_str()).collect();
            stderr::line(&match away.is_empty() {
                true => format!("detached: run {run} keeps running"),
                false => format!("detached: run {run} was not stopped; no response from {}", away.join(", ")),
            });
            stderr::line(&format!(
                "hint: reconnect with `rankdeck attach {run}`, stop with `rankdeck stop {run}`"
            ));
        }
        (ExitReason::Cut | ExitReason::Interrupted, _) => {
            stderr::line(&format!("quit without stopping run {run}; its processes may still be running"));
            stderr::line(&format!("hint: check with `rankdeck ps`, kill with `rankdeck stop {run} --kill`"));
        }
        (_, Some(finished)) if !output.json && end.read => {
            // The end of the summary waits for a slow reader.
            if let Ok(stdout) = LineWriter::new(io::stdout()) {
                let is_short = output.quiet && end.code == code::SUCCESS && summary::is_verified(finished);
                // The outcome is the last line of the run.
                let lines = match is_short {
                    true => summary::warnings(&end.model).iter().map(|line| clean(line)).collect(),
                    false => summary::lines(&end.model, finished, end.record.as_ref(), print::columns()),
                };
                lines.into_iter().for_each(|line| stdout.line(line));
            }
        }
        _ => {}
    }
    // On a terminal, or where both streams share a file, the summary is already on stdout.
    let read =
        end.finished.is_some() && end.read && !output.json && (io::stdout().is_terminal() || is_one_stream());
    if !read
        && (end.why == ExitReason::Done || unknown)
        && !matches!(end.code, code::SUCCESS | code::INTERRUPTED)
        && !end.model.run.reason.is_empty()
    {
        stderr::line(&format!("error: run {run}: {}", end.model.run.reason));
    }
    if unknown {
        stderr::line(&format!(
            "hint: run {run} was not stopped; list the hosts that respond with `rankdeck ps`"
        ));
    }
    end.code
}

/// The console has ended without a host that reported the run.
fn is_unknown(model: &Model) -> bool {
    model.run.state == RunState::Over && model.run.launch.is_none() && model.run.outcome.is_none()
}

/// Whether stdout and stderr lead to the same place.
#[expect(clippy::disallowed_methods, reason = "reads metadata, writes nothing")]
fn is_one_stream() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let place = |stream: std::os::fd::BorrowedFd<'_>| {
        let data = std::fs::File::from(stream.try_clone_to_owned().ok()?).metadata().ok()?;
        Some((data.dev(), data.ino()))
    };
    let (out, err) = (place(io::stdout().as_fd()), place(io::stderr().as_fd()));
    out.is_some() && out == err
}

/// The output of commands that show no run themselves.
pub(crate) fn plain() -> OutputMode {
    OutputMode::Lines(LineFormat::Plain { logs: false })
}

/// A run and its hosts in node-rank order, as in the hosts file.
pub(crate) struct ExistingRun {
    pub(crate) run: RunId,
    /// Its hosts. A host that is not in the hosts file has only a name and is not contacted.
    pub(crate) hosts: Vec<Host>,
    /// Names of hosts that are not in the hosts file.
    pub(crate) unlisted: Vec<String>,
    /// All hosts of the hosts file.
    listed: Vec<Host>,
}

impl ExistingRun {
    /// The run with all hosts that any host reports.
    pub(crate) fn with_unlisted(run_index: &RunIndex, found: &FoundRun) -> Result<ExistingRun, Failure> {
        let run = RunId::parse(found.run)?;
        let mut unlisted = Vec::new();
        let hosts = found.hosts().into_iter().map(|name| match run_index.host(&name) {
            Ok(host) => host.clone(),
            Err(_) => {
                unlisted.push(name.clone());
                Host { name, ..Host::default() }
            }
        });
        let hosts = hosts.collect();
        Ok(ExistingRun { run, hosts, unlisted, listed: run_index.hosts.clone() })
    }

    /// The run, if all of its hosts are in the hosts file.
    pub(crate) fn new(run_index: &RunIndex, found: &FoundRun) -> Result<ExistingRun, Failure> {
        let hosts = run_index.hosts_of(found)?;
        Ok(ExistingRun {
            run: RunId::parse(found.run)?,
            hosts,
            unlisted: Vec::new(),
            listed: run_index.hosts.clone(),
        })
    }

    /// The goal of a console that attaches.
    pub(crate) fn goal(&self) -> Goal {
        Goal::Attach {
            run: self.run.clone(),
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
        }
    }

    /// Opens links to its agents.
    pub(crate) fn open_links(
        &self,
        host_keys: &HostKeyArgs,
        chosen: OutputMode,
    ) -> Result<ConsoleLinks, Failure> {
        self.open(NoAgentPolicy::Attach, host_keys, chosen)
    }

    fn open(
        &self,
        opening: NoAgentPolicy,
        host_keys: &HostKeyArgs,
        chosen: OutputMode,
    ) -> Result<ConsoleLinks, Failure> {
        let options = LinkOptions { run: &self.run, opening, builtin: false, host_keys, chosen };
        open_links(&self.hosts, &options, |host| !self.unlisted.contains(&host.name))
    }

    /// Attaches without output until the exit condition is met.
    pub(crate) async fn run_until(
        &self,
        exit_condition: ExitCondition,
        host_keys: &HostKeyArgs,
    ) -> Result<ConsoleExit, Failure> {
        self.drive(exit_condition, None, VariableConsent::Unasked, host_keys).await
    }

    /// Restarts the run without output. Without a confirmation, only variables are sent that the user's files
    /// name, or `options`.
    pub(crate) async fn restart(
        &self,
        exit_condition: ExitCondition,
        confirmed: bool,
        options: &[String],
        host_keys: &HostKeyArgs,
    ) -> Result<ConsoleExit, Failure> {
        let consent = match confirmed {
            true => VariableConsent::Unasked,
            false => VariableConsent::Named(provenance::named_variables(&self.run, &self.listed, options)),
        };
        self.drive(exit_condition, None, consent, host_keys).await
    }

    /// Attaches without output and serves metrics until the run ends or a signal arrives.
    pub(crate) async fn serve_metrics(
        &self,
        endpoint: Endpoint,
        host_keys: &HostKeyArgs,
    ) -> Result<ConsoleExit, Failure> {
        self.drive(ExitCondition::Observe, Some(endpoint), VariableConsent::Unasked, host_keys).await
    }

    async fn drive(
        &self,
        exit_condition: ExitCondition,
        metrics: Option<Endpoint>,
        consent: VariableConsent,
        host_keys: &HostKeyArgs,
    ) -> Result<ConsoleExit, Failure> {
        let opening = match exit_condition {
            ExitCondition::Stop { .. } => NoAgentPolicy::Stop,
            _ => NoAgentPolicy::Attach,
        };
        let links = self.open(opening, host_keys, plain())?;
        let mut setup = ConsoleSetup::new(self.goal(), exit_condition, links);
        setup.listed = self.listed.clone();
        setup.accept_new_host_keys = host_keys.accept_new_host_keys;
        setup.can_ask = prompt::can_ask();
        setup.metrics = metrics;
        setup.consent = consent;
        drive(setup, ConsoleOutput::Quiet).await
    }
}
