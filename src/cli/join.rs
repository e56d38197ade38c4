//! `rankdeck attach` and `rankdeck restart`: work on a run that somebody launched before.

use super::args::{AttachArgs, HostKeyArgs, RestartArgs};
use super::choose::{self, OutputChoice, TerminalInfo};
use super::roster::{Found, Roster, State, roster};
use super::run::{self, LinkOptions, Links};
use super::{Failure, code, print, prompt};
use crate::shell::driver::{Session, Why};
use crate::shell::objective::Objective;
use crate::shell::output::Output;
use rankdeck_config::HostsSource;
use rankdeck_core::Goal;
use rankdeck_link::Opening;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;

/// `rankdeck attach`.
pub async fn attach(hosts_from: &HostsSource, args: AttachArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    if chosen != OutputChoice::Screen {
        print::stderr("note: ctrl-c stops the run cleanly; to leave it running: `kill -HUP` this process");
    }
    let goal = Target::new(&roster, &found)?;
    let links = goal.open_links(&args.host_keys, chosen)?;
    let spares = roster.hosts.iter().filter(|host| !goal.hosts.contains(host)).cloned().collect();
    let watching = run::ConsoleOptions {
        until: Vec::new(),
        objective: Objective::Linger,
        spares,
        warnings: Vec::new(),
        record: Some(&goal.run),
    };
    let end = run::console(goal.goal(), watching, links, &args.host_keys, chosen).await?;
    Ok(run::finish(&end, &args.output, &goal.run))
}

/// `rankdeck restart`.
pub async fn restart(hosts_from: &HostsSource, args: RestartArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    if found.state != State::Running {
        return Err(Failure::usage(format!(
            "run {} is {}: nothing serves it",
            found.run,
            found.state.name()
        ))
        .hint("`rankdeck run` begins a new one"));
    }
    let target = Target::new(&roster, &found)?;
    let add: Vec<Host> = args.add.iter().map(|name| roster.host(name).cloned()).collect::<Result<_, _>>()?;
    let changes = !args.exclude.is_empty() || !add.is_empty();
    // On other hosts a run goes on from where it is unless somebody says otherwise.
    let from =
        args.from.clone().or_else(|| changes.then(|| "latest".to_owned())).filter(|from| from != "afresh");
    let objective = Objective::restart(from, args.exclude.clone(), add, args.check_collectives);
    let end = target.pursue(objective, &args.host_keys).await?;
    if let Some(refused) = end.model.run.refused.as_ref().filter(|_| end.why != Why::Detached) {
        return Err(Failure::usage(format!("no restart: {refused}"))
            .hint(format!("run {} goes on as it is", target.run)));
    }
    if end.why != Why::Detached {
        let reason = end.model.run.reason.clone();
        return Err(Failure {
            code: end.code.max(code::FAILED),
            ..Failure::failed(format!("run {} did not come back: {reason}", target.run))
        }
        .hint(format!("`rankdeck logs {}`", target.run)));
    }
    print::stdout(&format!(
        "restarted: run {} generation {}, {} ranks on {}",
        target.run,
        end.model.run.generation,
        end.model.ranks.len(),
        end.model
            .plan
            .iter()
            .flat_map(|plan| plan.members())
            .map(|planned| planned.host.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    ));
    for size in end.model.plan.iter().filter(|_| changes).flat_map(|plan| &plan.sizes) {
        print::stdout(&format!("  {}  {} per rank, {} in all", size.name, size.local, size.global));
    }
    Ok(code::SUCCESS)
}

/// A run and its hosts in node_rank order.
pub struct Target {
    /// The run.
    pub run: RunId,
    /// Its hosts.
    pub hosts: Vec<Host>,
}

impl Target {
    /// The run that was found.
    pub fn new(roster: &Roster, found: &Found) -> Result<Target, Failure> {
        Ok(Target { run: RunId(found.run.to_owned()), hosts: roster.hosts_of(found)? })
    }

    /// Looking at it.
    pub fn goal(&self) -> Goal {
        Goal::Attach {
            run: self.run.clone(),
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
        }
    }

    /// Links that find its agents.
    pub fn open_links(&self, host_keys: &HostKeyArgs, chosen: OutputChoice) -> Result<Links, Failure> {
        let options =
            LinkOptions { run: &self.run, opening: Opening::Attach, builtin: false, host_keys, chosen };
        run::open_links(&self.hosts, &options, |_| true)
    }

    /// Attaches without showing anything, pursues the objective, and leaves.
    pub async fn pursue(
        &self,
        objective: Objective,
        host_keys: &HostKeyArgs,
    ) -> Result<crate::shell::driver::End, Failure> {
        let Links { links, inbox, connector } = self.open_links(host_keys, run::plain())?;
        let session = Session {
            goal: self.goal(),
            until: Vec::new(),
            objective,
            links,
            inbox,
            connector,
            spares: Vec::new(),
            warnings: Vec::new(),
            recorder: None,
            accept_new_host_keys: host_keys.accept_new_host_keys,
            can_ask: prompt::can_ask(),
        };
        run::drive(session, Output::Quiet).await
    }
}
