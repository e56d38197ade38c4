//! `rankdeck run`: launch and watch.

use super::args::{HostKeyArgs, OutputArgs, RunArgs};
use super::choose::{self, OutputChoice, TerminalInfo};
use super::roster::{own_binary, trainer_binary};
use super::run_id::{RUNS, new_run_id};
use super::{Failure, code, preflight, print, prompt, provision};
use crate::shell::driver;
use crate::shell::driver::{Connector, End, Session, Why};
use crate::shell::headless::Form;
use crate::shell::objective::Objective;
use crate::shell::output::Output;
use crate::shell::record;
use crate::shell::record::Recorder;
use crate::shell::{log, summary};
use rankdeck_config::HostsSource;
use rankdeck_config::locate::Locator;
use rankdeck_core::Goal;
use rankdeck_link::{LinkEvent, LinkHandle, LinkRequest, Opening};
use rankdeck_proto::clock::wall_time;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::plan::{PlanDraft, Until};
use std::io::{self, IsTerminal};
use std::path::Path;
use tokio::sync::mpsc;

/// Link events that may wait for the driver.
pub const INBOX: usize = 1024;

/// `rankdeck run`.
pub async fn run(hosts_from: &HostsSource, args: RunArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let mut sets = args.set.clone();
    sets.extend(args.name.as_ref().map(|name| format!("run.name={}", toml::Value::String(name.clone()))));
    let draft = rankdeck_config::load_draft(hosts_from, &args.experiment, &sets, |experiment| {
        new_run_id(&experiment.run.name)
    })?;
    let draft = leave_out(draft, &args.exclude)?;
    let (draft, warnings) = cleared(draft, hosts_from, &args, chosen).await?;
    let objective = if args.detach { Objective::Detach } else { Objective::Watch };
    let builtin = draft.experiment.launch.command.is_empty();
    let (run, hosts) = (draft.run.clone(), draft.hosts.clone());
    let excluded = draft.excluded.clone();
    let goal = Goal::Launch(Box::new(draft));
    let options =
        LinkOptions { run: &run, opening: Opening::Launch, builtin, host_keys: &args.host_keys, chosen };
    let links = open_links(&hosts, &options, |host| !excluded.contains(&host.name))?;
    let spares = hosts.into_iter().filter(|host| excluded.contains(&host.name)).collect();
    let watching = ConsoleOptions { until: args.until, objective, spares, warnings, record: Some(&run) };
    let end = console(goal, watching, links, &args.host_keys, chosen).await?;
    Ok(finish(&end, &args.output, &run))
}

/// Preflight, and what it decides: the draft with everything that only the hosts could tell, and with its
/// code on every host; and what it warned of.
async fn cleared(
    mut draft: PlanDraft,
    hosts_from: &HostsSource,
    args: &RunArgs,
    chosen: OutputChoice,
) -> Result<(PlanDraft, Vec<String>), Failure> {
    let locator = Locator::new(hosts_from, &args.experiment);
    let packed = provision::pack_code(&draft, &args.experiment)?;
    let out = |host: &Host| draft.excluded.contains(&host.name);
    let (places, hosts): (Vec<usize>, Vec<Host>) =
        draft.hosts.iter().cloned().enumerate().filter(|(_, host)| !out(host)).unzip();
    // Hosts that are left out are often those that do not answer.
    let members = PlanDraft { hosts, excluded: Default::default(), ..draft.clone() };
    let subject = preflight::Subject {
        draft: &members,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
        places,
    };
    let report = preflight::preflight(&subject, &args.host_keys).await?;
    preflight::complain(&report, &locator);
    if let Err(failure) = preflight::verdict(&report, &locator) {
        if chosen == OutputChoice::Lines(Form::Json) {
            preflight::refuse(&report, &locator, &draft.run, &failure);
        }
        return Err(failure);
    }
    if let Some(packed) = &packed {
        let codes =
            report.answers.iter().map(|answer| answer.as_ref().ok().map(|found| found.findings.code.clone()));
        provision::bring_code(&provision::lacking(&members.hosts, codes), packed, &args.host_keys).await?;
        draft.experiment.launch.code = Some(provision::by_hash(packed));
    }
    if members.hosts.len() > 1 {
        let routes = members.hosts.iter().zip(preflight::interfaces(&report));
        for (asked, route) in routes.filter(|(host, _)| host.interface.is_none()) {
            let host = draft.hosts.iter_mut().find(|host| host.name == asked.name);
            host.into_iter().for_each(|host| host.interface = route.clone());
        }
    }
    Ok((draft, preflight::warnings(&report, &locator)))
}

/// The draft without the hosts that `--exclude` names: they keep their places and can be added later.
fn leave_out(mut draft: PlanDraft, names: &[String]) -> Result<PlanDraft, Failure> {
    for name in names {
        if !draft.hosts.iter().any(|host| host.name == *name) {
            return Err(Failure::usage(format!("there is no host `{name}` to exclude"))
                .hint("use a name of the hosts file"));
        }
        draft.excluded.insert(name.clone());
    }
    match draft.problems(&[]).into_iter().next() {
        Some(problem) if !names.is_empty() => Err(problem.into()),
        _ => Ok(draft),
    }
}

/// What all links of a console have in common.
pub struct LinkOptions<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Start agents, or find them.
    pub opening: Opening,
    /// The built-in trainer is needed.
    pub builtin: bool,
    /// Which host keys to accept.
    pub host_keys: &'a HostKeyArgs,
    /// Screen or lines.
    pub chosen: OutputChoice,
}

/// Links, what comes from them, and the way to open more.
pub struct Links {
    /// One per host that is wanted.
    pub links: Vec<LinkHandle>,
    /// What they say.
    pub inbox: mpsc::Receiver<(NodeRank, LinkEvent)>,
    /// Opens another one.
    pub connector: Option<Connector>,
}

/// Opens one link per host that is `wanted`.
pub fn open_links(
    hosts: &[Host],
    options: &LinkOptions,
    wanted: impl Fn(&Host) -> bool,
) -> Result<Links, Failure> {
    let agent_binary = own_binary()?;
    let found_trainer = trainer_binary(&agent_binary);
    let trainer_binary = if options.builtin { found_trainer.clone() } else { None };
    let interactive =
        options.chosen == OutputChoice::Screen || prompt::can_ask() || options.host_keys.accept_new_host_keys;
    let (events, inbox) = mpsc::channel(INBOX);
    let request = LinkRequest {
        node: NodeRank(0),
        host: Host::default(),
        run: options.run.clone(),
        opening: options.opening,
        agent_binary,
        trainer_binary,
        interactive,
    };
    let opener = rankdeck_link::Links::from_environment();
    let links = hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| wanted(host))
        .map(|(node, host)| {
            let (node, host) = (NodeRank(node as u32), host.clone());
            opener.open(LinkRequest { node, host, ..request.clone() }, events.clone())
        })
        .collect();
    let connector: Connector = Box::new(move |node, host, builtin| {
        let request = LinkRequest {
            node,
            host: host.clone(),
            opening: Opening::Join,
            trainer_binary: found_trainer.clone().filter(|_| builtin),
            ..request.clone()
        };
        opener.open(request, events.clone())
    });
    Ok(Links { links, inbox, connector: Some(connector) })
}

/// What a console watches a run with, besides the links.
pub struct ConsoleOptions<'a> {
    /// When to stop.
    pub until: Vec<Until>,
    /// What the command came for.
    pub objective: Objective,
    /// Hosts that could join.
    pub spares: Vec<Host>,
    /// What the preflight warned of.
    pub warnings: Vec<String>,
    /// Record under this run's name.
    pub record: Option<&'a RunId>,
}

/// Runs a console over open links.
pub async fn console(
    goal: Goal,
    watching: ConsoleOptions<'_>,
    Links { links, inbox, connector }: Links,
    host_keys: &HostKeyArgs,
    chosen: OutputChoice,
) -> Result<End, Failure> {
    let ConsoleOptions { until, objective, spares, warnings, record } = watching;
    let objective = if chosen == OutputChoice::Screen { objective } else { objective.without_screen() };
    let linger = objective == Objective::Linger;
    let (recorder, log) = match record.map(|run| open_record(run, &goal, &until, linger)).transpose()? {
        Some((recorder, log)) => (Some(recorder), Some(log)),
        None => (None, None),
    };
    let session = Session {
        goal,
        until,
        objective,
        links,
        inbox,
        connector,
        spares,
        warnings,
        recorder,
        accept_new_host_keys: host_keys.accept_new_host_keys,
        can_ask: prompt::can_ask(),
    };
    drive(session, choose::open(chosen, log)?).await
}

/// Runs a console.
pub async fn drive(session: Session, output: Output) -> Result<End, Failure> {
    driver::drive(session, output).await.map_err(|error| {
        Failure::failed(format!("the terminal failed: {error}"))
            .hint("the run goes on: `rankdeck attach`, or `rankdeck attach --headless`")
    })
}

fn open_record(
    run: &RunId,
    goal: &Goal,
    until: &[Until],
    linger: bool,
) -> Result<(Recorder, std::fs::File), Failure> {
    let failure = |error: std::io::Error| {
        Failure::failed(format!("failed to record into {RUNS}/{run}: {error}"))
            .hint("run it in a folder that you may write to")
    };
    let folder = record::make_folder(Path::new(RUNS), run).map_err(failure)?;
    let log = log::open(&folder).map_err(failure)?;
    let recorder = Recorder::new(&folder, goal, until, linger, wall_time()).map_err(failure)?;
    Ok((recorder, log))
}

/// Prints the summary; returns the exit code.
pub fn finish(end: &End, output: &OutputArgs, run: &RunId) -> u8 {
    match (end.why, &end.finished) {
        (Why::Detached, _) => {
            let text = format!(
                "detached: run {run} goes on\nhint: `rankdeck attach {run}` takes it up again, `rankdeck stop {run}` stops it"
            );
            print::stderr(&text);
        }
        (Why::Cut, _) => {
            let text = format!(
                "left run {run} as it is; its processes may still run\nhint: `rankdeck ps`, `rankdeck stop {run} --kill`"
            );
            print::stderr(&text);
        }
        (_, Some(finished)) if !output.json => {
            for line in summary::lines(&end.model, finished, end.record.as_deref()) {
                if !print::stdout(&line) {
                    break;
                }
            }
        }
        _ => {}
    }
    // On a terminal the summary has just been read on stdout.
    let read = end.finished.is_some() && !output.json && io::stdout().is_terminal();
    if !read
        && end.why == Why::Done
        && !matches!(end.code, code::SUCCESS | code::INTERRUPTED)
        && !end.model.run.reason.is_empty()
    {
        print::stderr(&format!("error: run {run}: {}", end.model.run.reason));
    }
    end.code
}

/// The form of lines for commands that show nothing themselves.
pub fn plain() -> OutputChoice {
    OutputChoice::Lines(Form::Plain { logs: false })
}
