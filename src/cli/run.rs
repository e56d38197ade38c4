//! `rankdeck run`: launch and watch.

use super::args::{FaceArgs, MeetArgs, RunArgs};
use super::choose::{self, Chosen, Place};
use super::roster::{own_binary, trainer_binary};
use super::{Failure, code, preflight, print, prompt, provision};
use crate::config;
use crate::config::hosts::Host;
use crate::config::locate::Locator;
use crate::core::Goal;
use crate::core::ids::{NodeRank, RunId};
use crate::core::plan::{PlanDraft, Until};
use crate::link::{self, LinkEvent, LinkHandle, LinkRequest};
use crate::shell::clock::wall_time;
use crate::shell::driver::{self, End, Session, Why};
use crate::shell::errand::Errand;
use crate::shell::face::Face;
use crate::shell::headless::Form;
use crate::shell::record::{self, Recorder};
use crate::shell::{log, summary};
use std::io::{self, IsTerminal};
use std::path::Path;
use tokio::sync::mpsc;

/// Link events that may wait for the driver.
pub const INBOX: usize = 1024;
/// Folder of runs, on the console too.
pub const RUNS: &str = "runs";

/// `rankdeck run`.
pub async fn run(hosts_path: &Path, args: RunArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.face, &Place::here())?;
    let mut sets = args.set.clone();
    sets.extend(args.name.as_ref().map(|name| format!("run.name={}", toml::Value::String(name.clone()))));
    let draft = config::load_draft(hosts_path, &args.experiment, &sets, |experiment| {
        new_run_id(&experiment.run.name)
    })?;
    let draft = cleared(draft, hosts_path, &args, chosen).await?;
    let errand = if args.detach { Errand::Detach } else { Errand::Watch };
    let builtin = draft.experiment.launch.command.is_empty();
    let (run, hosts) = (draft.run.clone(), draft.hosts.clone());
    let goal = Goal::Launch(Box::new(draft));
    let road = Road { run: &run, start: true, builtin, meet: &args.meet, chosen };
    let (links, inbox) = open_links(&hosts, &road)?;
    let end = console(goal, args.until, errand, (links, inbox), &args.meet, chosen, Some(&run)).await?;
    Ok(finish(&end, &args.face, &run))
}

/// Preflight, and what it decides: the draft with everything that only the hosts could tell, and with its code on every host.
async fn cleared(
    mut draft: PlanDraft,
    hosts_path: &Path,
    args: &RunArgs,
    chosen: Chosen,
) -> Result<PlanDraft, Failure> {
    let locator = Locator::new(hosts_path, &args.experiment);
    let packed = provision::pack_code(&draft, &args.experiment)?;
    let subject = preflight::Subject {
        draft: &draft,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
    };
    let report = preflight::preflight(&subject, &args.meet).await?;
    preflight::complain(&report, &locator);
    if let Err(failure) = preflight::verdict(&report, &locator) {
        if chosen == Chosen::Lines(Form::Json) {
            preflight::refuse(&report, &locator, &draft.run, &failure);
        }
        return Err(failure);
    }
    if let Some(packed) = &packed {
        let codes =
            report.answers.iter().map(|answer| answer.as_ref().ok().map(|found| found.findings.code.clone()));
        provision::bring_code(&provision::lacking(&draft.hosts, codes), packed, &args.meet).await?;
        draft.experiment.launch.code = Some(provision::by_hash(packed));
    }
    if draft.hosts.len() > 1 {
        let routes = preflight::interfaces(&report);
        for (host, route) in draft.hosts.iter_mut().zip(routes).filter(|(host, _)| host.interface.is_none()) {
            host.interface = route;
        }
    }
    Ok(draft)
}

/// `NAME-YYYYMMDD-HHMMSS`, local time; `-2`, `-3`, ... follow where this folder already knows a run of that name, so that two consoles that begin
/// in the same second do not meet in one run.
pub fn new_run_id(name: &str) -> RunId {
    free_run_id(&format!("{name}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")), |id| {
        Path::new(RUNS).join(id).exists()
    })
}

fn free_run_id(stem: &str, taken: impl Fn(&str) -> bool) -> RunId {
    let numbered = (2..).map(|n| format!("{stem}-{n}"));
    let id = std::iter::once(stem.to_owned()).chain(numbered).find(|id| !taken(id));
    RunId(id.unwrap_or_else(|| stem.to_owned()))
}

/// What all links of a console have in common.
pub struct Road<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Start agents, rather than find them.
    pub start: bool,
    /// The built-in trainer is needed.
    pub builtin: bool,
    /// How to meet hosts.
    pub meet: &'a MeetArgs,
    /// Screen or lines.
    pub chosen: Chosen,
}

/// Links and what comes from them.
pub type Links = (Vec<LinkHandle>, mpsc::Receiver<(NodeRank, LinkEvent)>);

/// Opens one link per host.
pub fn open_links(hosts: &[Host], road: &Road) -> Result<Links, Failure> {
    let agent_binary = own_binary()?;
    let trainer_binary = if road.builtin { trainer_binary(&agent_binary) } else { None };
    let interactive = road.chosen == Chosen::Screen || prompt::can_ask() || road.meet.accept_new_host_keys;
    let (events, inbox) = mpsc::channel(INBOX);
    let links = hosts
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let request = LinkRequest {
                node: NodeRank(node as u32),
                host: host.clone(),
                run: road.run.clone(),
                start: road.start,
                agent_binary: agent_binary.clone(),
                trainer_binary: trainer_binary.clone(),
                interactive,
            };
            link::open(request, events.clone())
        })
        .collect();
    Ok((links, inbox))
}

/// Runs a console over open links; `record` under the run's name, if one is given.
pub async fn console(
    goal: Goal,
    until: Vec<Until>,
    errand: Errand,
    (links, inbox): Links,
    meet: &MeetArgs,
    chosen: Chosen,
    record: Option<&RunId>,
) -> Result<End, Failure> {
    let errand = if chosen == Chosen::Screen { errand } else { errand.without_screen() };
    let linger = errand == Errand::Linger;
    let (recorder, log) = match record.map(|run| open_record(run, &goal, &until, linger)).transpose()? {
        Some((recorder, log)) => (Some(recorder), Some(log)),
        None => (None, None),
    };
    let session = Session {
        goal,
        until,
        errand,
        links,
        inbox,
        recorder,
        accept_new_host_keys: meet.accept_new_host_keys,
        can_ask: prompt::can_ask(),
    };
    drive(session, choose::open(chosen, log)?).await
}

/// Runs a console.
pub async fn drive(session: Session, face: Face) -> Result<End, Failure> {
    driver::drive(session, face).await.map_err(|error| {
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

/// The last words, and the exit code.
pub fn finish(end: &End, face: &FaceArgs, run: &RunId) -> u8 {
    match (end.why, &end.finished) {
        (Why::Detached, _) => {
            let text = format!(
                "detached: run {run} goes on\nhint: `rankdeck attach {run}` takes it up again, `rankdeck stop {run}` stops it"
            );
            print::stderr(&text);
        }
        (Why::Cut, _) => {
            let text = format!(
                "left run {run} as it is; nothing is proved\nhint: `rankdeck ps`, `rankdeck stop {run} --kill`"
            );
            print::stderr(&text);
        }
        (_, Some(finished)) if !face.json => {
            for line in summary::lines(&end.model, finished, end.record.as_deref()) {
                if !print::stdout(&line) {
                    break;
                }
            }
        }
        _ => {}
    }
    // Who reads stdout on this terminal has just read it.
    let read = end.finished.is_some() && !face.json && io::stdout().is_terminal();
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
pub fn plain() -> Chosen {
    Chosen::Lines(Form::Plain { logs: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_the_same_second_gets_a_name_of_its_own() {
        let mut known = vec![];
        for expected in ["a-1", "a-1-2", "a-1-3"] {
            let id = free_run_id("a-1", |id| known.iter().any(|name| name == id));
            assert_eq!(id.0, expected);
            known.push(id.0);
        }
    }
}
