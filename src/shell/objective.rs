//! What a command came for, as a small machine beside the core: looks at the model after every event, asks
//! for events, and says when to leave. Pure: no clock, no I/O.

use rankdeck_core::event::Event;
use rankdeck_core::event::StopSource;
use rankdeck_core::model::{Model, RankLife, RankModel, RunState};
use rankdeck_proto::message::{LaunchHash, StopMode};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::Plan;

/// Milliseconds that a stop waits for hosts that cannot be reached, once all others have reported.
pub const UNREACHABLE_MS: u64 = 15_000;

/// Milliseconds within which a stop is ordered, although hosts have neither answered nor failed.
pub const ORDER_MS: u64 = 60_000;

/// What a console is to reach before it leaves.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// Stay until the core is done.
    Watch,
    /// Stay until the user leaves, even after the end of the run.
    Linger,
    /// Stay until the core is done, and change nothing: a signal leaves.
    Observe,
    /// Leave once the run is up.
    Detach,
    /// Leave once it is known what runs.
    Look,
    /// Stop the run and stay until the stop is verified.
    Stop {
        /// How hard the run is stopped.
        mode: StopMode,
        /// When it began to wait for the hosts.
        began: Option<Timestamp>,
        /// The order was given.
        ordered: bool,
        /// Since when all hosts but unreachable ones have reported.
        waiting: Option<Timestamp>,
    },
    /// Begin a new generation and leave once it runs.
    Restart {
        /// The checkpoint to begin from.
        from: Option<String>,
        /// Every collective is to be checked.
        checked: bool,
        /// Hosts to leave out.
        exclude: Vec<String>,
        /// Hosts to take in.
        add: Vec<Host>,
        /// The experiment with changed keys.
        experiment: Option<Box<Experiment>>,
        /// The launch that the user has seen; `None`: whichever it is.
        shown: Option<LaunchHash>,
        /// The run is over, and that is awaited first.
        over: bool,
        /// When it began to wait.
        began: Option<Timestamp>,
        /// Generation when the order was given.
        ordered: Option<Generation>,
    },
}

/// What an objective needs next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Nothing until the next event or its timeout.
    Wait,
    /// Tell the core this event.
    Do(Event),
    /// Hosts could not be reached, so that the stop cannot be verified there; leave.
    GiveUp,
}

impl Objective {
    /// The objective of `rankdeck stop`.
    pub fn stop(mode: StopMode) -> Objective {
        Objective::Stop { mode, began: None, ordered: false, waiting: None }
    }

    /// The objective of `rankdeck restart`.
    pub fn restart(
        from: Option<String>,
        exclude: Vec<String>,
        add: Vec<Host>,
        checked: bool,
        shown: Option<LaunchHash>,
        over: bool,
    ) -> Objective {
        Objective::Restart {
            from,
            checked,
            exclude,
            add,
            experiment: None,
            shown,
            over,
            began: None,
            ordered: None,
        }
    }

    /// The same restart with changed keys.
    #[must_use]
    pub fn with_experiment(mut self, changed: Option<Box<Experiment>>) -> Objective {
        if let Objective::Restart { experiment, .. } = &mut self {
            *experiment = changed;
        }
        self
    }

    /// The console outlives the end of the run.
    pub fn outlives_run(&self) -> bool {
        matches!(self, Objective::Linger | Objective::Restart { over: true, .. })
    }

    /// The same where there is no screen to linger on.
    pub fn without_screen(self) -> Objective {
        match self {
            Objective::Linger => Objective::Watch,
            other => other,
        }
    }

    /// Looks at the model and decides.
    pub fn step(&mut self, now: Timestamp, model: &Model) -> Next {
        match self {
            Objective::Watch | Objective::Linger | Objective::Observe => Next::Wait,
            Objective::Detach => {
                if is_up(model) {
                    *self = Objective::Watch;
                    Next::Do(Event::DetachRequested)
                } else {
                    Next::Wait
                }
            }
            Objective::Look => {
                if is_known(model) {
                    *self = Objective::Watch;
                    Next::Do(Event::DetachRequested)
                } else {
                    Next::Wait
                }
            }
            Objective::Stop { mode, began, ordered, waiting } => {
                let late = now.since(*began.get_or_insert(now)) >= ORDER_MS;
                if !*ordered && (late || is_known(model)) {
                    *ordered = true;
                    return Next::Do(Event::StopRequested { mode: *mode, by: StopSource::Command });
                }
                if *ordered && only_unreachable_left(model) {
                    let since = *waiting.get_or_insert(now);
                    if now.since(since) >= UNREACHABLE_MS { Next::GiveUp } else { Next::Wait }
                } else {
                    *waiting = None;
                    Next::Wait
                }
            }
            Objective::Restart { from, checked, exclude, add, experiment, shown, over, began, ordered } => {
                match ordered {
                    None if *over && model.run.state != RunState::Over => {
                        let late = now.since(*began.get_or_insert(now)) >= ORDER_MS;
                        if late { Next::GiveUp } else { Next::Wait }
                    }
                    None if is_known(model) && model.run.state != RunState::Launching => {
                        *ordered = Some(model.run.generation);
                        let (from, shown) =
                            (from.clone(), shown.clone().or_else(|| model.run.launch.clone()));
                        Next::Do(if *checked {
                            Event::CheckedRestartRequested { from, shown }
                        } else {
                            let (exclude, add, experiment) =
                                (exclude.clone(), add.clone(), experiment.clone());
                            Event::RestartRequested { from, exclude, add, experiment, shown }
                        })
                    }
                    Some(_) if model.run.refused.is_some() => Next::GiveUp,
                    Some(old) if model.run.generation > *old && is_up(model) => {
                        *self = Objective::Watch;
                        Next::Do(Event::DetachRequested)
                    }
                    _ => Next::Wait,
                }
            }
        }
    }

    /// When to look again although nothing happened.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        match self {
            Objective::Stop { waiting: Some(since), .. } => Some(since.plus(UNREACHABLE_MS)),
            Objective::Stop { began: Some(began), ordered: false, .. }
            | Objective::Restart { began: Some(began), ordered: None, .. } => Some(began.plus(ORDER_MS)),
            _ => None,
        }
    }
}

/// Every rank is in the process group; a program of the user may never say so, then its processes are all
/// there is to see. Ranks that have ended well before all others were there keep nobody waiting.
fn is_up(model: &Model) -> bool {
    let speaks = model.plan.as_ref().is_none_or(Plan::is_builtin);
    let goes_on = match model.run.state {
        RunState::Running => true,
        RunState::Draining => model.run.stopping.is_none(),
        RunState::Connecting | RunState::Launching | RunState::Restarting | RunState::Over => false,
    };
    let lives = |rank: &RankModel| match rank.life {
        RankLife::Joined => true,
        RankLife::Spawned => !speaks,
        RankLife::Pending | RankLife::Finished | RankLife::Exited(_) => false,
    };
    let has_ended_well = |rank: &RankModel| match &rank.life {
        RankLife::Finished => true,
        RankLife::Exited(exit) => exit.is_success(),
        RankLife::Pending | RankLife::Spawned | RankLife::Joined => false,
    };
    goes_on
        && model.ranks.iter().any(lives)
        && model.ranks.iter().all(|rank| lives(rank) || has_ended_well(rank))
}

/// The run is known and every host has been reached or is known to be out of reach.
fn is_known(model: &Model) -> bool {
    !matches!(model.run.state, RunState::Connecting)
        && !model.hosts.is_empty()
        && model.hosts.iter().all(|host| host.agent.is_some() || is_unreachable(&host.link))
}

fn is_unreachable(link: &LinkState) -> bool {
    matches!(link, LinkState::Lost { .. } | LinkState::Failed(_) | LinkState::Connecting { attempt: 2.. })
}

fn only_unreachable_left(model: &Model) -> bool {
    model.run.state != RunState::Over
        && model.hosts.iter().any(|host| host.stopped.is_none())
        && model.hosts.iter().filter(|host| host.stopped.is_none()).all(|host| is_unreachable(&host.link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::HostModel;
    use rankdeck_types::exit::Exit;
    use rankdeck_types::ids::{LocalRank, NodeRank, Rank};
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
        let mut objective = Objective::Detach;
        let half = model(RunState::Running, &[RankLife::Joined, RankLife::Spawned]);
        assert_eq!(objective.step(Timestamp(0), &half), Next::Wait);
        let all = model(RunState::Running, &[RankLife::Joined, RankLife::Joined]);
        assert_eq!(objective.step(Timestamp(0), &all), Next::Do(Event::DetachRequested));
        assert_eq!(objective.step(Timestamp(0), &all), Next::Wait, "asked once");
    }

    #[test]
    fn detach_waits_for_no_end_where_a_rank_ended_before_all_others_were_there() {
        let well = RankLife::Exited(Exit::Code { code: 0 });
        let badly = RankLife::Exited(Exit::Code { code: 1 });
        let step = |state, lives: &[RankLife]| Objective::Detach.step(Timestamp(0), &model(state, lives));
        let draining = RunState::Draining;
        assert_eq!(step(draining, &[RankLife::Pending, well.clone()]), Next::Wait, "it is still to come");
        assert_eq!(step(draining, &[RankLife::Joined, well.clone()]), Next::Do(Event::DetachRequested));
        assert_eq!(step(draining, &[RankLife::Joined, RankLife::Finished]), Next::Do(Event::DetachRequested));
        assert_eq!(step(draining, &[well.clone(), well.clone()]), Next::Wait, "the run is over in a moment");
        assert_eq!(step(draining, &[RankLife::Joined, badly]), Next::Wait, "a stop follows");
        let mut stopping = model(draining, &[RankLife::Joined, well]);
        stopping.run.stopping = Some(StopMode::Clean);
        assert_eq!(Objective::Detach.step(Timestamp(0), &stopping), Next::Wait);
    }

    #[test]
    fn stop_is_ordered_once_and_only_when_the_run_is_known() {
        let mut objective = Objective::stop(StopMode::Clean);
        assert_eq!(objective.step(Timestamp(0), &model(RunState::Connecting, &[])), Next::Wait);
        let known = model(RunState::Running, &[RankLife::Joined]);
        assert!(matches!(objective.step(Timestamp(0), &known), Next::Do(Event::StopRequested { .. })));
        assert_eq!(objective.step(Timestamp(1), &known), Next::Wait);
    }

    #[test]
    fn a_stop_is_ordered_in_the_end_whatever_hosts_say() {
        let mut objective = Objective::stop(StopMode::Clean);
        let mute = model(RunState::Connecting, &[]);
        assert_eq!(objective.step(Timestamp(5), &mute), Next::Wait);
        assert_eq!(objective.poll_timeout(), Some(Timestamp(5 + ORDER_MS)));
        assert!(matches!(objective.step(Timestamp(5 + ORDER_MS), &mute), Next::Do(_)));
    }

    #[test]
    fn stop_gives_up_on_an_unreachable_host_after_a_while_and_not_before() {
        let mut objective = Objective::stop(StopMode::Kill);
        let mut known = model(RunState::Draining, &[RankLife::Joined]);
        objective.step(Timestamp(0), &known);
        known.hosts[0].stopped = Some(Vec::new());
        known.hosts[1].link = LinkState::Lost { reason: "gone".into(), retry_ms: 1 };
        assert_eq!(objective.step(Timestamp(10), &known), Next::Wait);
        assert_eq!(objective.poll_timeout(), Some(Timestamp(10 + UNREACHABLE_MS)));
        assert_eq!(objective.step(Timestamp(10 + UNREACHABLE_MS), &known), Next::GiveUp);
        known.hosts[1].link = LinkState::Starting;
        assert_eq!(objective.step(Timestamp(20 + UNREACHABLE_MS), &known), Next::Wait);
        assert_eq!(objective.poll_timeout(), None);
    }

    #[test]
    fn a_run_that_is_over_is_restarted_once_that_is_known_and_not_before() {
        let mut objective = Objective::restart(None, Vec::new(), Vec::new(), false, None, true);
        assert!(objective.outlives_run());
        let mut at = model(RunState::Running, &[RankLife::Joined]);
        assert_eq!(objective.step(Timestamp(5), &at), Next::Wait, "its records are still being read");
        assert_eq!(objective.poll_timeout(), Some(Timestamp(5 + ORDER_MS)));
        let mut late = objective.clone();
        assert_eq!(late.step(Timestamp(5 + ORDER_MS), &at), Next::GiveUp);
        at.run.state = RunState::Over;
        assert_eq!(objective.step(Timestamp(6), &at), Next::Do(Event::restart(None)));
    }

    #[test]
    fn restart_leaves_only_when_the_new_generation_is_up() {
        let mut objective =
            Objective::restart(Some("latest".into()), Vec::new(), Vec::new(), false, None, false);
        let mut at = model(RunState::Running, &[RankLife::Joined]);
        assert_eq!(objective.step(Timestamp(0), &at), Next::Do(Event::restart(Some("latest".into()))));
        assert_eq!(objective.step(Timestamp(1), &at), Next::Wait, "still the old one");
        at.run.generation = Generation(1);
        at.run.state = RunState::Launching;
        assert_eq!(objective.step(Timestamp(2), &at), Next::Wait);
        at.run.state = RunState::Running;
        assert_eq!(objective.step(Timestamp(3), &at), Next::Do(Event::DetachRequested));
    }
}
