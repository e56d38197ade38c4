//! `rankdeck run`: launch and watch.

use super::again::{self, Again};
use super::args::{HostKeyArgs, OutputArgs, RunArgs};
use super::choose::{self, OutputChoice, TerminalInfo};
use super::origin::Origin;
use super::provision::PackedCode;
use super::roster::{own_binary, trainer_binary};
use super::run_id::{RUNS, claimed_run_id};
use super::{Failure, begin_from, code, git, preflight, print, prompt, provision, sources, sweep};
use crate::shell::demo::Demo;
use crate::shell::driver;
use crate::shell::driver::{Connector, End, Session, Why};
use crate::shell::headless::{Form, Pace};
use crate::shell::objective::Objective;
use crate::shell::output::Output;
use crate::shell::record;
use crate::shell::record::Recorder;
use crate::shell::{log, stderr, summary};
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

/// Runs `rankdeck run`: launches an experiment and shows it.
pub async fn run(hosts_from: &HostsSource, args: RunArgs) -> Result<u8, Failure> {
    if let Some(code) = sweep::run(hosts_from, &args).await? {
        return Ok(code);
    }
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let mut sets = args.set.clone();
    sets.extend(args.name.as_ref().map(|name| format!("run.name={}", toml::Value::String(name.clone()))));
    sets.extend(args.note.as_ref().map(|note| format!("run.note={}", toml::Value::String(note.clone()))));
    let (hosts_from, experiment) = sources::of(hosts_from, &args.subject);
    let drafted = || -> Result<(PlanDraft, Option<PackedCode>), Failure> {
        let draft = rankdeck_config::load_draft(&hosts_from, &experiment, &sets, |experiment| {
            claimed_run_id(&experiment.run.name)
        })?;
        let draft = leave_out(draft, &args.exclude)?;
        let packed = provision::pack_code(&draft, &experiment)?;
        Ok((draft, packed))
    };
    let (mut draft, packed) = drafted().inspect_err(|failure| {
        if args.output.json {
            preflight::refuse_plan("run_finished", failure);
        }
    })?;
    let locator = Locator::new(&hosts_from, &experiment);
    draft.resume = match &args.from {
        Some(source) => Some(begin_from::find(source, &draft, &hosts_from, &args.host_keys).await?),
        None if args.carry_on => begin_from::find_newest(&draft, &args.host_keys).await?,
        None => None,
    };
    if let Some(path) = &draft.resume {
        let first = begin_from::first_host(&draft)?;
        begin_from::fits(first, path, &draft.experiment, &args.host_keys).await?;
        stderr::line(&format!("begins from {path}"));
    } else if args.carry_on {
        stderr::line("begins from the beginning: no earlier run of this name has a checkpoint");
    }
    let at = experiment.folder().join(draft.experiment.launch.code.clone().unwrap_or_default());
    let ClearedDraft { draft, warnings, origin } =
        cleared(draft, packed, &locator, &args, chosen, &at).await?;
    let objective = if args.detach { Objective::Detach } else { watching(&args.output) };
    let builtin = draft.experiment.launch.command.is_empty();
    let (run, hosts) = (draft.run.clone(), draft.hosts.clone());
    if !builtin && !args.output.quiet && chosen == OutputChoice::Lines(Form::Plain { logs: false }) {
        stderr::line(&format!(
            "hint: `rankdeck logs {run} -f` shows what the ranks print; `--logs` prints it here"
        ));
    }
    let excluded = draft.excluded.clone();
    let goal = Goal::Launch(Box::new(draft));
    let options =
        LinkOptions { run: &run, opening: Opening::Launch, builtin, host_keys: &args.host_keys, chosen };
    let links = open_links(&hosts, &options, |host| !excluded.contains(&host.name))?;
    let spares = hosts.iter().filter(|host| excluded.contains(&host.name)).cloned().collect();
    again::offer(again(&args));
    let watching = ConsoleOptions {
        until: args.until,
        objective,
        spares,
        listed: hosts,
        warnings,
        record: Some((Path::new(RUNS), &run)),
        origin: Some(origin),
        pace: choose::pace(&args.output),
        simulated: false,
        demo: None,
    };
    let end = console(goal, watching, links, &args.host_keys, chosen).await?;
    Ok(finish(&end, &args.output, &run))
}

/// A screen stays on its last picture until a key, unless it was asked not to.
pub fn watching(output: &OutputArgs) -> Objective {
    if output.exit { Objective::Watch } else { Objective::Linger }
}

/// A draft that the preflight has let through.
struct ClearedDraft {
    draft: PlanDraft,
    warnings: Vec<String>,
    origin: Origin,
}

/// Preflight, and what it decides: the draft with everything that only the hosts could tell, and with its
/// code on every host; and what it warned of.
async fn cleared(
    mut draft: PlanDraft,
    packed: Option<PackedCode>,
    locator: &Locator,
    args: &RunArgs,
    chosen: OutputChoice,
    code_folder: &Path,
) -> Result<ClearedDraft, Failure> {
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
    // The code is as it is now, not as it is when the slowest host has answered.
    let asked = git::ask(code_folder);
    let report = preflight::preflight(&subject, &args.host_keys).await?;
    preflight::complain(&report, locator);
    if let Err(failure) = preflight::verdict(&report, locator) {
        if chosen == OutputChoice::Lines(Form::Json) {
            preflight::refuse(&report, locator, &draft.run, &failure);
        }
        return Err(preflight::shortly(&report, failure));
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
    let origin = Origin::new(&draft, &report, asked.answer(), again(args));
    Ok(ClearedDraft { draft, warnings: preflight::warnings(&report, locator), origin })
}

/// What to launch for another run like this.
fn again(args: &RunArgs) -> Option<Again> {
    let name = args.name.iter().map(|name| format!("run.name={}", toml::Value::String(name.clone())));
    let set: Vec<String> = args.set.iter().cloned().chain(name).collect();
    Again::new(args.subject.experiment.as_deref(), &set)
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
    let connector: Connector = Box::new(move |node, host, opening, builtin| {
        let request = LinkRequest {
            node,
            host: host.clone(),
            opening,
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
    /// All hosts that the user has named.
    pub listed: Vec<Host>,
    /// What the preflight warned of.
    pub warnings: Vec<String>,
    /// Record in this folder under this run's name.
    pub record: Option<(&'a Path, &'a RunId)>,
    /// Where the run comes from, of a launch.
    pub origin: Option<Origin>,
    /// How much is printed.
    pub pace: Pace,
    /// The hosts are simulated.
    pub simulated: bool,
    /// Keys of a demonstration.
    pub demo: Option<Demo>,
}

/// Runs a console over open links.
pub async fn console(
    goal: Goal,
    watching: ConsoleOptions<'_>,
    Links { links, inbox, connector }: Links,
    host_keys: &HostKeyArgs,
    chosen: OutputChoice,
) -> Result<End, Failure> {
    let ConsoleOptions { until, objective, spares, listed, warnings, record, origin, pace, simulated, demo } =
        watching;
    let objective = match chosen {
        OutputChoice::Screen | OutputChoice::Linear { .. } => objective,
        OutputChoice::Lines(_) => objective.without_screen(),
    };
    let opened = record.map(|(records, run)| open_record(records, run, &goal, origin.as_ref()));
    let (recorder, log) = opened.transpose()?.unzip();
    let session = Session {
        goal,
        until,
        objective,
        links,
        inbox,
        connector,
        spares,
        listed,
        warnings,
        recorder,
        accept_new_host_keys: host_keys.accept_new_host_keys,
        can_ask: prompt::can_ask(),
        simulated,
        demo,
        notify: Some(choose::notify()?),
        metrics: choose::endpoint().await?,
    };
    let end = drive(session, choose::open(chosen, log, pace)?).await?;
    again::left(end.again);
    Ok(end)
}

/// Runs a console.
pub async fn drive(session: Session, output: Output) -> Result<End, Failure> {
    driver::drive(session, output).await.map_err(|error| {
        Failure::failed(format!("the terminal failed: {error}"))
            .hint("the run goes on: `rankdeck attach`, or `rankdeck attach --headless`")
    })
}

fn open_record(
    records: &Path,
    run: &RunId,
    goal: &Goal,
    origin: Option<&Origin>,
) -> Result<(Recorder, std::fs::File), Failure> {
    let failure = |error: std::io::Error| {
        Failure::failed(format!("failed to record into {}: {error}", records.join(&run.0).display()))
            .hint("run it in a folder that you may write to")
    };
    let folder = record::make_folder(records, run).map_err(failure)?;
    let log = log::open(&folder).map_err(failure)?;
    let recorder = Recorder::new(&folder, goal, wall_time()).map_err(failure)?;
    if let Some(origin) = origin {
        origin.write(&folder).map_err(failure)?;
    }
    Ok((recorder, log))
}

/// Prints the summary; returns the exit code.
pub fn finish(end: &End, output: &OutputArgs, run: &RunId) -> u8 {
    match (end.why, &end.finished) {
        (Why::Detached, _) => {
            stderr::line(&format!("detached: run {run} goes on"));
            stderr::line(&format!(
                "hint: `rankdeck attach {run}` takes it up again, `rankdeck stop {run}` stops it"
            ));
        }
        (Why::Cut, _) => {
            stderr::line(&format!("left run {run} as it is; its processes may still run"));
            stderr::line(&format!("hint: `rankdeck ps`, `rankdeck stop {run} --kill`"));
        }
        (_, Some(finished)) if !output.json => {
            for line in summary::lines(&end.model, finished, end.record.as_ref()) {
                if !print::stdout(&line) {
                    break;
                }
            }
        }
        _ => {}
    }
    // On a terminal, or where both go into one file, the summary has just been said on stdout.
    let read = end.finished.is_some() && !output.json && (io::stdout().is_terminal() || is_one_stream());
    if !read
        && end.why == Why::Done
        && !matches!(end.code, code::SUCCESS | code::INTERRUPTED)
        && !end.model.run.reason.is_empty()
    {
        stderr::line(&format!("error: run {run}: {}", end.model.run.reason));
    }
    end.code
}

/// What goes to stdout and to stderr ends up in the same place.
#[expect(clippy::disallowed_methods, reason = "asks where it leads, and writes nothing")]
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

/// The form of lines for commands that show nothing themselves.
pub fn plain() -> OutputChoice {
    OutputChoice::Lines(Form::Plain { logs: false })
}
