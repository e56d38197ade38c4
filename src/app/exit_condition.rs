//! Exit conditions: a small state machine that decides when a command has done its work. Checks the model
//! after every event, requests events, and decides when to exit. Pure: no clock, no I/O.

use rankdeck_core::event::{Event, StopSource};
use rankdeck_core::model::{HostModel, Model, RankLife, RankModel, RunState};
use rankdeck_core::origin;
use rankdeck_proto::message::{LaunchHash, StopMode};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, Rank, Timestamp};
use rankdeck_types::plan::Plan;

/// Milliseconds to wait for unreachable hosts once all others have answered.
const UNREACHABLE_MS: u64 = 15_000;

/// Milliseconds within which hosts answer or fail: then a stop is requested, and other commands give up.
const REQUEST_MS: u64 = 60_000;

/// Milliseconds in which excluded hosts may still answer once all others have: their ranks are stopped as
/// well.
const EXCLUDED_MS: u64 = 5_000;

/// Milliseconds of a wait that is not reported.
const PATIENCE_MS: u64 = 3_000;

/// The end of a wait, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Deadline(Option<Timestamp>);

impl Deadline {
    /// Whether `waits` has been true for `ms` without a break.
    fn is_over(&mut self, waits: bool, now: Timestamp, ms: u64) -> bool {
        self.0 = waits.then(|| self.0.unwrap_or_else(|| now.plus(ms)));
        self.0.is_some_and(|end| now >= end)
    }
}

/// The time limits of an exit condition: every wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct WaitLimits {
    /// For all hosts.
    all: Deadline,
    /// For unreachable hosts.
    unreachable: Deadline,
    /// For excluded hosts.
    excluded: Deadline,
}

/// The answers of the required hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostResponses {
    Missing,
    /// Missing, and the wait is over.
    Late,
    All,
}

impl WaitLimits {
    /// Returns whether all hosts except excluded ones have answered; `settled`: their reports are complete.
    fn answers(&mut self, now: Timestamp, model: &Model, exclude: &[String], settled: bool) -> HostResponses {
        let late = self.all.is_over(true, now, REQUEST_MS);
        let silent: Vec<&HostModel> = silent(model, exclude).collect();
        let complete = silent.is_empty() && settled;
        let coming = complete && model.hosts.iter().any(is_coming);
        let waited = self.excluded.is_over(coming, now, EXCLUDED_MS);
        if complete && (!coming || waited || late) {
            return HostResponses::All;
        }
        let away = !silent.is_empty() && silent.iter().all(|host| host.link.is_unreachable());
        match self.unreachable.is_over(away, now, UNREACHABLE_MS) || late {
            true => HostResponses::Late,
            false => HostResponses::Missing,
        }
    }

    fn ends(&self) -> Option<Timestamp> {
        [self.all, self.unreachable, self.excluded].into_iter().filter_map(|bound| bound.0).min()
    }

    /// Whether the wait is long enough to be reported.
    fn is_long(&self, now: Timestamp) -> bool {
        self.all.0.is_some_and(|end| now.plus(REQUEST_MS - PATIENCE_MS) >= end)
    }
}

/// When a console exits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExitCondition {
    /// Exit when the core is done.
    Watch,
    /// Exit when the user quits, even after the end of the run.
    Linger,
    /// Exit when the core is done, and change nothing: a signal exits.
    Observe,
    /// Exit once the run is up.
    Detach(WaitLimits),
    /// Exit once the hosts have reported the run.
    Query {
        /// Hosts that need not answer.
        exclude: Vec<String>,
        /// For the wait for the others.
        limits: WaitLimits,
    },
    /// Stop the run and exit when the stop is verified.
    Stop {
        /// How the run is stopped.
        mode: StopMode,
        /// Whether the stop was requested.
        requested: bool,
        /// For the wait for hosts, before the request and after it.
        limits: WaitLimits,
    },
    /// Have a lost rank start again, and exit once it has joined the others.
    Add {
        rank: Rank,
        /// Whether that was requested.
        requested: bool,
        /// For the wait for hosts, before the request and after it.
        limits: WaitLimits,
    },
    /// Restart the run and exit once the new generation is up.
    Restart {
        /// The checkpoint to restart from.
        from: Option<String>,
        /// Whether every collective is checked.
        checked: bool,
        /// Hosts to exclude.
        exclude: Vec<String>,
        add: Vec<Host>,
        /// The experiment with overrides.
        experiment: Option<Box<Experiment>>,
        /// The launch that the user confirmed; `None`: any.
        shown: Option<LaunchHash>,
        /// The run has ended, which is awaited first.
        over: bool,
        /// Generation at the time of the request.
        requested: Option<Generation>,
        /// For the wait for hosts, before the request and after it.
        limits: WaitLimits,
    },
}

/// The next step of an exit condition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExitStep {
    /// Wait for the next event or timeout.
    Wait,
    /// Pass this event to the core.
    Do(Event),
    /// A time limit passed, or the request was refused; exit.
    GiveUp,
}

impl ExitCondition {
    /// For `--detach`.
    pub(crate) fn detach() -> ExitCondition {
        ExitCondition::Detach(WaitLimits::default())
    }

    /// For a query about a run; hosts in `exclude` need not answer.
    pub(crate) fn query(exclude: Vec<String>) -> ExitCondition {
        ExitCondition::Query { exclude, limits: WaitLimits::default() }
    }

    /// For `rankdeck stop`.
    pub(crate) fn stop(mode: StopMode) -> ExitCondition {
        ExitCondition::Stop { mode, requested: false, limits: WaitLimits::default() }
    }

    /// For `rankdeck add`.
    pub(crate) fn add(rank: Rank) -> ExitCondition {
        ExitCondition::Add { rank, requested: false, limits: WaitLimits::default() }
    }

    /// For `rankdeck restart`.
    pub(crate) fn restart(
        from: Option<String>,
        exclude: Vec<String>,
        add: Vec<Host>,
        checked: bool,
        shown: Option<LaunchHash>,
        over: bool,
    ) -> ExitCondition {
        ExitCondition::Restart {
            from,
            checked,
            exclude,
            add,
            experiment: None,
            shown,
            over,
            requested: None,
            limits: WaitLimits::default(),
        }
    }

    /// The same restart with overrides.
    #[must_use]
    pub(crate) fn with_experiment(mut self, changed: Option<Box<Experiment>>) -> ExitCondition {
        if let ExitCondition::Restart { experiment, .. } = &mut self {
            *experiment = changed;
        }
        self
    }

    /// Whether the console outlives the end of the run.
    pub(crate) fn outlives_run(&self) -> bool {
        matches!(self, ExitCondition::Linger | ExitCondition::Restart { over: true, .. })
    }

    /// The same without a screen.
    pub(crate) fn without_screen(self) -> ExitCondition {
        match self {
            ExitCondition::Linger => ExitCondition::Watch,
            other => other,
        }
    }

    /// Whether nothing was requested yet, or the request still waits for hosts: a signal exits, and the run is
    /// unchanged.
    pub(crate) fn is_unrequested(&self, model: &Model) -> bool {
        match self {
            ExitCondition::Query { .. }
            | ExitCondition::Stop { requested: false, .. }
            | ExitCondition::Add { requested: false, .. }
            | ExitCondition::Restart { requested: None, .. } => true,
            // Later, all ranks are stopped, and the next generation waits for its hosts.
            ExitCondition::Restart { requested: Some(_), .. } => {
                !model.run.restart_awaits.is_empty() && model.run.state != RunState::Restarting
            }
            _ => false,
        }
    }

    /// Describes a requested restart, for a user who interrupts it.
    pub(crate) fn restart_in_progress(&self, model: &Model) -> Option<String> {
        let ExitCondition::Restart { requested: Some(old), .. } = self else { return None };
        Some(match model.run.generation {
            new if new > *old => format!("the restart was requested; generation {new} is starting"),
            _ => format!("the restart was requested; generation {old} is stopping"),
        })
    }

    /// Returns the hosts that are waited for, once that takes a while.
    pub(crate) fn awaited<'a>(&self, now: Timestamp, model: &'a Model) -> Vec<&'a str> {
        let none: &[String] = &[];
        match self {
            ExitCondition::Query { exclude, limits }
            | ExitCondition::Restart { exclude, requested: None, limits, .. }
                if limits.is_long(now) =>
            {
                silent(model, exclude).map(|host| host.name.as_str()).collect()
            }
            ExitCondition::Restart { requested: Some(_), .. } => {
                model.run.restart_awaits.iter().map(String::as_str).collect()
            }
            ExitCondition::Stop { requested: false, limits, .. }
            | ExitCondition::Add { requested: false, limits, .. }
                if limits.is_long(now) =>
            {
                silent(model, none).map(|host| host.name.as_str()).collect()
            }
            ExitCondition::Stop { requested: true, limits, .. } if limits.unreachable.0.is_some() => {
                unproved(model).map(|host| host.name.as_str()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns why the hosts that are waited for cannot be reached, as far as that is known.
    pub(crate) fn obstacles<'a>(&self, now: Timestamp, model: &'a Model) -> Vec<&'a HintedError> {
        let names = self.awaited(now, model);
        let awaited = model.hosts.iter().filter(|host| names.contains(&host.name.as_str()));
        awaited.filter_map(|host| host.link.failure()).collect()
    }

    /// Checks the model and decides.
    pub(crate) fn step(&mut self, now: Timestamp, model: &Model) -> ExitStep {
        match self {
            ExitCondition::Watch | ExitCondition::Linger | ExitCondition::Observe => ExitStep::Wait,
            ExitCondition::Detach(limits) => {
                let launched = model.run.launch.is_some();
                if is_up(model) {
                    return self.leave();
                }
                let away = !launched && members(model).any(|host| host.link.is_unreachable());
                if limits.unreachable.is_over(away, now, REQUEST_MS) {
                    *self = ExitCondition::Watch;
                    return ExitStep::Do(Event::StopRequested {
                        mode: StopMode::Clean,
                        by: StopSource::Detach,
                    });
                }
                match limits.all.is_over(launched && is_starting(model), now, start_ms(model)) {
                    true => self.leave(),
                    false => ExitStep::Wait,
                }
            }
            ExitCondition::Query { exclude, limits } => {
                let settled = model.run.state != RunState::Connecting;
                match limits.answers(now, model, exclude, settled) {
                    HostResponses::Missing => ExitStep::Wait,
                    HostResponses::Late => ExitStep::GiveUp,
                    HostResponses::All => self.leave(),
                }
            }
            ExitCondition::Stop { mode, requested, limits } => {
                if !*requested && (limits.all.is_over(true, now, REQUEST_MS) || is_known(model)) {
                    (*requested, *limits) = (true, WaitLimits::default());
                    return ExitStep::Do(Event::StopRequested { mode: *mode, by: StopSource::Command });
                }
                let away = *requested && only_unreachable_left(model);
                if limits.unreachable.is_over(away, now, UNREACHABLE_MS) {
                    ExitStep::GiveUp
                } else {
                    ExitStep::Wait
                }
            }
            ExitCondition::Add { rank, requested: false, limits } => {
                // Hosts without which the run continues need not answer, unless it is the rank's own.
                let rank = *rank;
                let own = model.ranks.get(rank.index()).map(|rank| rank.node);
                let is_left =
                    |host: &&HostModel| Some(host.node_rank) != own && model.has_only_lost(host.node_rank);
                let left: Vec<String> =
                    model.hosts.iter().filter(is_left).map(|host| host.name.clone()).collect();
                let settled = !matches!(model.run.state, RunState::Connecting | RunState::Launching);
                match limits.answers(now, model, &left, settled) {
                    HostResponses::Missing => ExitStep::Wait,
                    HostResponses::Late => ExitStep::GiveUp,
                    HostResponses::All => {
                        *self = ExitCondition::Add { rank, requested: true, limits: WaitLimits::default() };
                        ExitStep::Do(Event::RejoinRequested { rank })
                    }
                }
            }
            ExitCondition::Add { rank, requested: true, limits } => {
                if model.membership.refused.is_some() {
                    return ExitStep::GiveUp;
                }
                if !is_lost(model, *rank) {
                    return self.leave();
                }
                match limits.all.is_over(true, now, start_ms(model)) {
                    true => ExitStep::GiveUp,
                    false => ExitStep::Wait,
                }
            }
            ExitCondition::Restart { .. } => self.step_restart(now, model),
        }
    }

    /// The same for a restart: requests it once all remaining hosts have answered, then waits for the new
    /// generation.
    fn step_restart(&mut self, now: Timestamp, model: &Model) -> ExitStep {
        let ExitCondition::Restart {
            from,
            checked,
            exclude,
            add,
            experiment,
            shown,
            over,
            requested,
            limits,
        } = self
        else {
            return ExitStep::Wait;
        };
        let Some(old) = *requested else {
            // What the user wants to restart has been ended meanwhile (RESTART-9).
            if model.run.stopped_elsewhere {
                return ExitStep::GiveUp;
            }
            let settled = match model.run.state {
                RunState::Connecting => false,
                RunState::Launching => model.is_settled_without(exclude),
                RunState::Over => true,
                RunState::Draining if *over => !exclude.is_empty() && model.is_settled_without(exclude),
                RunState::Running => !*over && model.is_settled_without(exclude),
                RunState::Restarting | RunState::Draining => !*over,
            };
            // An added host has its own link; its first state must be known.
            let joins = |host: &&HostModel| add.iter().any(|added| added.name == host.name);
            let settled = settled && !model.hosts.iter().filter(joins).any(is_coming);
            match limits.answers(now, model, exclude, settled) {
                HostResponses::Missing => return ExitStep::Wait,
                HostResponses::Late => return ExitStep::GiveUp,
                HostResponses::All => {}
            }
            (*requested, *limits) = (Some(model.run.generation), WaitLimits::default());
            let (from, shown) = (from.clone(), shown.clone().or_else(|| origin::shown(model)));
            return ExitStep::Do(if *checked {
                Event::CheckedRestartRequested { from, shown }
            } else {
                let (exclude, add, experiment) = (exclude.clone(), add.clone(), experiment.clone());
                Event::RestartRequested { from, exclude, add, experiment, shown }
            });
        };
        if model.run.refused.is_some() {
            return ExitStep::GiveUp;
        }
        if model.run.generation > old && is_up(model) {
            return self.leave();
        }
        // The stop before the restart has its own time limits.
        let stopped = model.run.state == RunState::Restarting && model.run.stopping.is_none();
        let away = stopped && members(model).any(|host| host.link.is_unreachable());
        let starting = model.run.generation > old && is_starting(model);
        if limits.unreachable.is_over(away, now, REQUEST_MS) {
            return ExitStep::GiveUp;
        }
        if limits.all.is_over(starting, now, start_ms(model)) { self.leave() } else { ExitStep::Wait }
    }

    /// Exits; the run keeps running, whether all ranks are up or not.
    fn leave(&mut self) -> ExitStep {
        *self = ExitCondition::Watch;
        ExitStep::Do(Event::DetachRequested)
    }

    /// When to check again without an event.
    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        match self {
            ExitCondition::Watch | ExitCondition::Linger | ExitCondition::Observe => None,
            ExitCondition::Detach(limits)
            | ExitCondition::Query { limits, .. }
            | ExitCondition::Stop { limits, .. }
            | ExitCondition::Add { limits, .. }
            | ExitCondition::Restart { limits, .. } => limits.ends(),
        }
    }
}

/// Whether the others continue without the rank.
pub(crate) fn is_lost(model: &Model, rank: Rank) -> bool {
    model.ranks.get(rank.index()).is_some_and(|rank| rank.lost)
}

/// Whether every rank is in the process group; a program that does not report it counts by its processes.
/// Ranks that finished successfully before the others joined are ignored.
fn is_up(model: &Model) -> bool {
    let keeps_running = match model.run.state {
        RunState::Running => true,
        RunState::Draining => model.run.stopping.is_none(),
        RunState::Connecting | RunState::Launching | RunState::Restarting | RunState::Over => false,
    };
    keeps_running && model.ranks.iter().any(|rank| is_rank_up(model, rank)) && ranks_not_up(model).is_empty()
}

/// Returns the ranks that are not up.
pub(crate) fn ranks_not_up(model: &Model) -> Vec<Rank> {
    let has_ended_well = |rank: &RankModel| match &rank.life {
        RankLife::Finished => true,
        RankLife::Exited(_) => rank.ended_well(),
        RankLife::Pending | RankLife::Spawned | RankLife::Joined => false,
    };
    let members = model.ranks.iter().filter(|rank| !rank.lost);
    let not_up = members.filter(|rank| !is_rank_up(model, rank) && !has_ended_well(rank));
    not_up.map(|rank| rank.rank).collect()
}

/// Whether the rank has joined, as far as its program reports that.
fn is_rank_up(model: &Model, rank: &RankModel) -> bool {
    let reports = model.plan.as_ref().is_none_or(Plan::is_builtin);
    match rank.life {
        RankLife::Joined => true,
        RankLife::Spawned => !reports,
        RankLife::Pending | RankLife::Finished | RankLife::Exited(_) => false,
    }
}

fn is_starting(model: &Model) -> bool {
    matches!(model.run.state, RunState::Launching | RunState::Running)
}

/// Milliseconds within which a generation starts.
fn start_ms(model: &Model) -> u64 {
    let budget_s = model.plan.as_ref().map_or(0.0, |plan| plan.experiment.watch.init_budget_s);
    REQUEST_MS.saturating_add((budget_s.max(0.0) * 1000.0) as u64)
}

/// Whether the run is known and every host was reached or is unreachable.
fn is_known(model: &Model) -> bool {
    !matches!(model.run.state, RunState::Connecting)
        && !model.hosts.is_empty()
        && model.hosts.iter().all(|host| host.agent.is_some() || host.link.is_unreachable())
}

/// Returns the hosts with ranks; all hosts until the plan is known.
fn members(model: &Model) -> impl Iterator<Item = &HostModel> {
    let is_member = |host: &&HostModel| model.plan.as_ref().is_none_or(|plan| plan.has_ranks(host.node_rank));
    model.hosts.iter().filter(is_member)
}

/// Returns the hosts with ranks that have not answered, or stopped answering.
pub(crate) fn silent<'a>(model: &'a Model, exclude: &[String]) -> impl Iterator<Item = &'a HostModel> {
    members(model).filter(|host| !exclude.contains(&host.name) && !has_answered(host))
}

fn has_answered(host: &HostModel) -> bool {
    host.agent.is_some() && !host.is_replaying() && !host.link.is_unreachable()
}

/// Whether a host has neither answered nor failed so far.
fn is_coming(host: &HostModel) -> bool {
    !has_answered(host) && !host.link.is_unreachable()
}

/// Returns the hosts without a verified stop.
fn unproved(model: &Model) -> impl Iterator<Item = &HostModel> {
    model.hosts.iter().filter(|host| host.stopped.is_none())
}

fn only_unreachable_left(model: &Model) -> bool {
    model.run.state != RunState::Over
        && unproved(model).next().is_some()
        && unproved(model).all(|host| host.link.is_unreachable())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::exit::Exit;
    use rankdeck_types::ids::{LocalRank, NodeRank, Rank};
    use rankdeck_types::link_state::LinkState;
    use rankdeck_types::plan::PlannedRank;

    fn model(state: RunState, lives: &[RankLife]) -> Model {
        let mut model = Model::default();
        model.run.state = state;
        model.hosts = (0..2)
            .map(|node| HostModel {
                node_rank: NodeRank(node),
                agent: Some((1, "b".into())),
                link: LinkState::Starting,
                ..HostModel::default()
            })
            .collect();
        model.ranks = lives.iter().enumerate().map(|(r, life)| rank(r as u32, life.clone())).collect();
        model
    }

    fn rank(rank: u32, life: RankLife) -> RankModel {
        let planned =
            PlannedRank { rank: Rank(rank), local_rank: LocalRank(rank), node_rank: NodeRank(0), gpu: None };
        RankModel { life, ..RankModel::pending(&planned, "a") }
    }

    #[test]
    fn detach_waits_for_every_rank() {
        let mut exit_condition = ExitCondition::detach();
        let half = model(RunState::Running, &[RankLife::Joined, RankLife::Spawned]);
        assert_eq!(exit_condition.step(Timestamp(0), &half), ExitStep::Wait);
        let all = model(RunState::Running, &[RankLife::Joined, RankLife::Joined]);
        assert_eq!(exit_condition.step(Timestamp(0), &all), ExitStep::Do(Event::DetachRequested));
        assert_eq!(exit_condition.step(Timestamp(0), &all), ExitStep::Wait, "asked once");
    }

    #[test]
    fn detach_ignores_ranks_that_finished_early() {
        let well = RankLife::Exited(Exit::Code { code: 0 });
        let badly = RankLife::Exited(Exit::Code { code: 1 });
        let step =
            |state, lives: &[RankLife]| ExitCondition::detach().step(Timestamp(0), &model(state, lives));
        let draining = RunState::Draining;
        assert_eq!(step(draining, &[RankLife::Pending, well.clone()]), ExitStep::Wait, "it is still to come");
        assert_eq!(step(draining, &[RankLife::Joined, well.clone()]), ExitStep::Do(Event::DetachRequested));
        assert_eq!(
            step(draining, &[RankLife::Joined, RankLife::Finished]),
            ExitStep::Do(Event::DetachRequested)
        );
        assert_eq!(
            step(draining, &[well.clone(), well.clone()]),
            ExitStep::Wait,
            "the run is over in a moment"
        );
        assert_eq!(step(draining, &[RankLife::Joined, badly]), ExitStep::Wait, "a stop follows");
        let mut stopping = model(draining, &[RankLife::Joined, well]);
        stopping.run.stopping = Some(StopMode::Clean);
        assert_eq!(ExitCondition::detach().step(Timestamp(0), &stopping), ExitStep::Wait);
    }

    #[test]
    fn stop_is_requested_once_when_the_run_is_known() {
        let mut exit_condition = ExitCondition::stop(StopMode::Clean);
        assert_eq!(exit_condition.step(Timestamp(0), &model(RunState::Connecting, &[])), ExitStep::Wait);
        let known = model(RunState::Running, &[RankLife::Joined]);
        assert!(matches!(
            exit_condition.step(Timestamp(0), &known),
            ExitStep::Do(Event::StopRequested { .. })
        ));
        assert_eq!(exit_condition.step(Timestamp(1), &known), ExitStep::Wait);
    }

    #[test]
    fn stop_is_requested_at_the_time_limit() {
        let mut exit_condition = ExitCondition::stop(StopMode::Clean);
        let mute = model(RunState::Connecting, &[]);
        assert_eq!(exit_condition.step(Timestamp(5), &mute), ExitStep::Wait);
        assert_eq!(exit_condition.poll_timeout(), Some(Timestamp(5 + REQUEST_MS)));
        assert!(matches!(exit_condition.step(Timestamp(5 + REQUEST_MS), &mute), ExitStep::Do(_)));
    }

    #[test]
    fn stop_gives_up_on_unreachable_host_at_the_limit() {
        let mut exit_condition = ExitCondition::stop(StopMode::Kill);
        let mut known = model(RunState::Draining, &[RankLife::Joined]);
        exit_condition.step(Timestamp(0), &known);
        known.hosts[0].stopped = Some(Vec::new());
        known.hosts[1].link = LinkState::Lost { reason: "gone".into(), retry_ms: 1 };
        assert_eq!(exit_condition.step(Timestamp(10), &known), ExitStep::Wait);
        assert_eq!(exit_condition.poll_timeout(), Some(Timestamp(10 + UNREACHABLE_MS)));
        assert_eq!(exit_condition.step(Timestamp(10 + UNREACHABLE_MS), &known), ExitStep::GiveUp);
        known.hosts[1].link = LinkState::Starting;
        assert_eq!(exit_condition.step(Timestamp(20 + UNREACHABLE_MS), &known), ExitStep::Wait);
        assert_eq!(exit_condition.poll_timeout(), None);
    }

    #[test]
    fn ended_run_restarts_once_its_end_is_known() {
        let mut exit_condition = ExitCondition::restart(None, Vec::new(), Vec::new(), false, None, true);
        assert!(exit_condition.outlives_run());
        let mut at = model(RunState::Running, &[RankLife::Joined]);
        assert_eq!(
            exit_condition.step(Timestamp(5), &at),
            ExitStep::Wait,
            "its records are still being read"
        );
        assert_eq!(exit_condition.poll_timeout(), Some(Timestamp(5 + REQUEST_MS)));
        let mut late = exit_condition.clone();
        assert_eq!(late.step(Timestamp(5 + REQUEST_MS), &at), ExitStep::GiveUp);
        at.run.state = RunState::Over;
        assert_eq!(exit_condition.step(Timestamp(6), &at), ExitStep::Do(Event::restart(None)));
    }

    #[test]
    fn add_exits_when_the_rank_has_joined() {
        let dead = RankLife::Exited(Exit::Code { code: 1 });
        let mut at = model(RunState::Running, &[RankLife::Joined, dead]);
        at.ranks[1].lost = true;
        let mut exit_condition = ExitCondition::add(Rank(1));
        assert!(exit_condition.is_unrequested(&at));
        let order = ExitStep::Do(Event::RejoinRequested { rank: Rank(1) });
        assert_eq!(exit_condition.step(Timestamp(0), &at), order);
        assert_eq!(exit_condition.step(Timestamp(1), &at), ExitStep::Wait);
        let mut late = exit_condition.clone();
        assert_eq!(late.step(Timestamp(1 + start_ms(&at)), &at), ExitStep::GiveUp);
        at.membership.refused = Some("its host does not respond".into());
        assert_eq!(exit_condition.clone().step(Timestamp(2), &at), ExitStep::GiveUp);
        (at.membership.refused, at.ranks[1].lost) = (None, false);
        assert_eq!(exit_condition.step(Timestamp(3), &at), ExitStep::Do(Event::DetachRequested));
    }

    #[test]
    fn restart_exits_when_the_new_generation_is_up() {
        let mut exit_condition =
            ExitCondition::restart(Some("latest".into()), Vec::new(), Vec::new(), false, None, false);
        let mut at = model(RunState::Running, &[RankLife::Joined]);
        assert_eq!(
            exit_condition.step(Timestamp(0), &at),
            ExitStep::Do(Event::restart(Some("latest".into())))
        );
        assert_eq!(exit_condition.step(Timestamp(1), &at), ExitStep::Wait, "still the old one");
        at.run.generation = Generation(1);
        at.run.state = RunState::Launching;
        assert_eq!(exit_condition.step(Timestamp(2), &at), ExitStep::Wait);
        at.run.state = RunState::Running;
        assert_eq!(exit_condition.step(Timestamp(3), &at), ExitStep::Do(Event::DetachRequested));
    }

    /// Host 1 of two is unreachable, and its ranks may not have started.
    fn half_away() -> Model {
        let mut at = model(RunState::Launching, &[RankLife::Joined, RankLife::Pending]);
        at.ranks[1].node = NodeRank(1);
        for (host, name) in at.hosts.iter_mut().zip(["a", "b"]) {
            host.name = name.into();
        }
        at.hosts[1].agent = None;
        at.hosts[1].link = LinkState::Lost { reason: "no route".into(), retry_ms: 1 };
        at
    }

    fn without(exclude: &[&str], over: bool) -> ExitCondition {
        let exclude = exclude.iter().map(|name| name.to_string()).collect();
        ExitCondition::restart(None, exclude, Vec::new(), false, None, over)
    }

    #[test]
    fn restart_9_restart_gives_up_on_stop_of_another_console() {
        for over in [false, true] {
            let mut at = model(RunState::Draining, &[RankLife::Joined, RankLife::Joined]);
            at.run.stopped_elsewhere = true;
            assert_eq!(without(&[], over).step(Timestamp(5), &at), ExitStep::GiveUp);
        }
    }

    #[test]
    fn restart_gives_up_on_unreachable_host() {
        let query = ExitCondition::query(Vec::new());
        for mut exit_condition in [without(&[], false), without(&[], true), query] {
            let at = half_away();
            assert_eq!(exit_condition.step(Timestamp(5), &at), ExitStep::Wait);
            assert_eq!(exit_condition.poll_timeout(), Some(Timestamp(5 + UNREACHABLE_MS)));
            assert_eq!(exit_condition.step(Timestamp(4 + UNREACHABLE_MS), &at), ExitStep::Wait);
            assert_eq!(exit_condition.awaited(Timestamp(5 + UNREACHABLE_MS), &at), ["b"]);
            assert!(exit_condition.is_unrequested(&at));
            assert_eq!(exit_condition.step(Timestamp(5 + UNREACHABLE_MS), &at), ExitStep::GiveUp);
        }
    }

    #[test]
    fn restart_gives_up_on_hosts_without_answer() {
        let mut at = half_away();
        at.hosts[1].link = LinkState::Connecting { attempt: 1 };
        let unknown = model(RunState::Connecting, &[]);
        let launching = model(RunState::Launching, &[RankLife::Joined, RankLife::Pending]);
        for at in [at, unknown, launching] {
            for mut exit_condition in [without(&[], false), ExitCondition::query(Vec::new())] {
                if exit_condition == ExitCondition::query(Vec::new()) && at.hosts.iter().all(has_answered) {
                    continue;
                }
                assert_eq!(exit_condition.step(Timestamp(5), &at), ExitStep::Wait);
                assert_eq!(exit_condition.step(Timestamp(4 + REQUEST_MS), &at), ExitStep::Wait);
                assert_eq!(exit_condition.step(Timestamp(5 + REQUEST_MS), &at), ExitStep::GiveUp);
            }
        }
    }

    #[test]
    fn restart_excluding_silent_host_is_immediate() {
        let order = |exit_condition: &mut ExitCondition, now| match exit_condition
            .step(Timestamp(now), &half_away())
        {
            ExitStep::Do(Event::RestartRequested { exclude, .. }) => Some(exclude),
            _ => None,
        };
        assert_eq!(order(&mut without(&["b"], false), 5), Some(vec!["b".to_string()]));
        assert_eq!(order(&mut without(&["a"], false), 5), None, "the other one is away");
        let mut query = ExitCondition::query(vec!["b".into()]);
        assert_eq!(query.step(Timestamp(5), &half_away()), ExitStep::Do(Event::DetachRequested));
    }

    #[test]
    fn excluded_host_is_awaited_briefly() {
        let mut at = half_away();
        at.hosts[1].link = LinkState::Connecting { attempt: 1 };
        let mut exit_condition = without(&["b"], false);
        assert_eq!(exit_condition.step(Timestamp(5), &at), ExitStep::Wait);
        assert!(matches!(exit_condition.clone().step(Timestamp(5 + EXCLUDED_MS), &at), ExitStep::Do(_)));
        at.hosts[1].agent = Some((1, "b".into()));
        assert!(
            matches!(exit_condition.step(Timestamp(6), &at), ExitStep::Do(_)),
            "its ranks are stopped, too"
        );
    }

    #[test]
    fn added_host_waits_for_its_first_link_state() {
        let mut at = half_away();
        at.hosts[1].link = LinkState::Connecting { attempt: 1 };
        let joining = Host { name: "b".into(), ..Host::default() };
        let mut exit_condition =
            ExitCondition::restart(None, vec!["b".into()], vec![joining], false, None, false);
        assert_eq!(exit_condition.step(Timestamp(5), &at), ExitStep::Wait);
        assert_eq!(exit_condition.step(Timestamp(5 + EXCLUDED_MS), &at), ExitStep::Wait);
        at.hosts[1].link = LinkState::Failed(rankdeck_types::error::HintedError::new("no run here", ""));
        assert!(matches!(exit_condition.step(Timestamp(6 + EXCLUDED_MS), &at), ExitStep::Do(_)));
    }

    #[test]
    fn requested_restart_has_time_limits() {
        let mut at = model(RunState::Running, &[RankLife::Joined, RankLife::Joined]);
        let mut exit_condition = without(&[], false);
        assert!(matches!(exit_condition.step(Timestamp(0), &at), ExitStep::Do(_)));
        assert!(!exit_condition.is_unrequested(&at) && exit_condition.restart_in_progress(&at).is_some());
        at.run.state = RunState::Restarting;
        at.run.stopping = Some(StopMode::Clean);
        at.hosts[1].link = LinkState::Lost { reason: "gone".into(), retry_ms: 1 };
        assert_eq!(exit_condition.step(Timestamp(REQUEST_MS), &at), ExitStep::Wait);
        assert_eq!(exit_condition.poll_timeout(), None, "a stop has limits of its own");
        at.run.stopping = None;
        let began = 2 * REQUEST_MS;
        assert_eq!(exit_condition.step(Timestamp(began), &at), ExitStep::Wait);
        let mut starting = exit_condition.clone();
        assert_eq!(exit_condition.step(Timestamp(began + REQUEST_MS), &at), ExitStep::GiveUp);
        let mut stuck = model(RunState::Running, &[RankLife::Joined, RankLife::Spawned]);
        stuck.run.generation = Generation(1);
        assert_eq!(starting.step(Timestamp(began), &stuck), ExitStep::Wait);
        let leaves = ExitStep::Do(Event::DetachRequested);
        assert_eq!(starting.step(Timestamp(began + start_ms(&stuck)), &stuck), leaves);
        assert_eq!(ranks_not_up(&stuck), [Rank(1)]);
    }

    #[test]
    fn detach_has_time_limits() {
        let mut at = model(RunState::Connecting, &[]);
        at.hosts[1].link = LinkState::Lost { reason: "gone".into(), retry_ms: 1 };
        let mut exit_condition = ExitCondition::detach();
        assert_eq!(exit_condition.step(Timestamp(1), &at), ExitStep::Wait);
        assert_eq!(exit_condition.poll_timeout(), Some(Timestamp(1 + REQUEST_MS)));
        let mut launched = exit_condition.clone();
        let stop = Event::StopRequested { mode: StopMode::Clean, by: StopSource::Detach };
        assert_eq!(
            exit_condition.step(Timestamp(1 + REQUEST_MS), &at),
            ExitStep::Do(stop),
            "nothing was launched"
        );
        let mut stuck = model(RunState::Running, &[RankLife::Joined, RankLife::Spawned]);
        stuck.run.launch = Some(LaunchHash("1".into()));
        assert_eq!(launched.step(Timestamp(2), &stuck), ExitStep::Wait);
        let leaves = ExitStep::Do(Event::DetachRequested);
        assert_eq!(launched.step(Timestamp(2 + start_ms(&stuck)), &stuck), leaves);
    }
}
