//! How ranks and runs end: two tables. The first row that fits decides.
//!
//! Invariants:
//! - END-1: an exception that ended the main program is a failure, whatever the exit code.
//! - END-2: what a stop causes is not a failure: a signal of the stop, `KeyboardInterrupt`, a connection that a
//!   rank which stopped earlier has closed.
//! - END-3: a crash of the interpreter after the main program has returned is not a failure.
//! - END-4: a limit of `--until` that is reached during a critical verdict is not a success.

use crate::exit_message::ExitMessage;
use crate::report::RunOutcome;
use crate::run::EndCause;
use rankdeck_proto::message::{Exit, FailureKind, FinishReason, RunEnd};
use rankdeck_types::exit::SIGABRT;
use rankdeck_types::ids::Rank;
use rankdeck_types::words::signal_name;
use serde::{Deserialize, Serialize};

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankEnd {
    /// Its work is done.
    Done,
    /// Its work is done; its interpreter crashed as it exited.
    CrashedAtExit,
    /// A stop has ended it.
    Stopped,
    /// A stop has ended it by SIGKILL.
    Killed,
    /// Killed, crashed, never started, or a mistake in the configuration.
    Hard,
    /// It failed by itself.
    Failed,
    /// It failed because of another rank.
    Secondary,
    /// It died, and the others continue without it.
    Lost,
}

impl RankEnd {
    /// Its work is done.
    pub fn is_good(self) -> bool {
        matches!(self, RankEnd::Done | RankEnd::CrashedAtExit)
    }

    /// It failed, by itself or because of another rank.
    pub fn is_failure(self) -> bool {
        matches!(self, RankEnd::Hard | RankEnd::Failed | RankEnd::Secondary)
    }
}

/// What is known about the end of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndEvidence<'a> {
    pub exit: &'a Exit,
    /// Its own error message.
    pub message: &'a ExitMessage,
    /// An exception ended its main program.
    pub raised: bool,
    /// Its main program returned without one.
    pub returned: bool,
    /// It named a mistake in the configuration.
    pub usage: bool,
    /// A signal that the user sent to it ended it.
    pub sent: bool,
    /// Its agent had been ordered to stop it.
    pub stopping: bool,
    /// The generation was on its way out, for another reason than a failure.
    pub ending: bool,
    /// `launch.stop_signal`.
    pub stop_signal: Option<i32>,
}

/// How a rank ended.
pub(crate) fn of_rank(evidence: &EndEvidence<'_>) -> RankEnd {
    let EndEvidence { exit, message, raised, returned, usage, sent, stopping, ending, stop_signal } =
        evidence;
    let kind = message.kind();
    // Libraries abort the process when a connection breaks, and an interpreter that an exception ended may
    // crash as it exits; every other signal comes from elsewhere.
    let killed = matches!(exit, Exit::Signal { signal, .. } if *signal != SIGABRT)
        && !(*raised && exit.reports_crash());
    let lost_peer = matches!(kind, FailureKind::Connection | FailureKind::Mismatch) && !killed;
    let by_stop = exit.is_stop_effect() || stop_signal.is_some_and(|signal| exit.is_by(signal));
    match exit {
        Exit::Code { code: 0 } if !raised => RankEnd::Done,
        Exit::Signal { out_of_memory: true, .. } => RankEnd::Hard,
        // END-2.
        Exit::NotStarted { .. } if *stopping => RankEnd::Stopped,
        _ if *stopping && by_stop && !exit.is_success() && exit.is_sigkill() => RankEnd::Killed,
        _ if *stopping && by_stop && !exit.is_success() => RankEnd::Stopped,
        _ if *stopping && message.is_interrupt() => RankEnd::Stopped,
        _ if (*stopping || *ending) && lost_peer => RankEnd::Stopped,
        // END-3.
        _ if *returned && !raised && exit.reports_crash() => RankEnd::CrashedAtExit,
        Exit::NotStarted { .. } => RankEnd::Hard,
        _ if *sent || killed => RankEnd::Hard,
        Exit::Code { .. } if *usage => RankEnd::Hard,
        _ if lost_peer => RankEnd::Secondary,
        _ if kind == FailureKind::Configuration => RankEnd::Hard,
        _ => RankEnd::Failed,
    }
}

/// What is known about the end of a run, all hosts having verified their stop.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunEvidence<'a> {
    pub cause: Option<&'a EndCause>,
    /// A stop was sent to a host.
    pub ordered: bool,
    /// The failure to report, and whether it is a mistake in the configuration.
    pub culprit: Option<(&'a str, bool)>,
    /// Ranks ended, while stopping, in a way that no stop causes; how the first one did.
    pub bad_exit: Option<&'a str>,
    /// The critical verdict that stood when the limit of `--until` was reached.
    pub stuck: Option<&'a str>,
    /// Why rank 0's loop ended.
    pub finish: Option<FinishReason>,
    /// The latest signal that a console had sent to a rank.
    pub signalled: Option<(Rank, i32)>,
}

/// How a run ended.
pub(crate) fn of_run(evidence: &RunEvidence<'_>) -> RunEnd {
    let RunEvidence { cause, ordered, culprit, bad_exit, stuck, finish, signalled } = *evidence;
    let bad = culprit.map(|(text, _)| text).or(bad_exit);
    let failed = |text: &str| {
        let usage = culprit.is_some_and(|(_, usage)| usage);
        RunEnd::new(RunOutcome::Failed, if usage { 2 } else { 1 }, text)
    };
    let stopped = |by: String| {
        let text = bad.map_or(by.clone(), |bad| format!("{by}; {bad}"));
        RunEnd::new(RunOutcome::Stopped, 130, text)
    };
    match cause {
        Some(EndCause::Failure) => failed(bad.unwrap_or("a rank failed while it was being stopped")),
        Some(EndCause::LaunchFailed(text)) => RunEnd::new(RunOutcome::Failed, 3, text.clone()),
        Some(EndCause::Stuck(text)) => RunEnd::new(RunOutcome::Stuck, 4, text.clone()),
        Some(EndCause::Until(goal)) => match (stuck, bad) {
            // END-4.
            (Some(verdict), _) => {
                RunEnd::new(RunOutcome::Stuck, 4, format!("{verdict}, when the run reached {goal}"))
            }
            (None, Some(bad)) => failed(bad),
            (None, None) => RunEnd::new(RunOutcome::Succeeded, 0, format!("reached {goal}")),
        },
        Some(EndCause::Requested { by }) if ordered => stopped(format!("stopped by {by}")),
        Some(EndCause::Elsewhere { by }) => stopped(format!("stopped by {by} elsewhere")),
        Some(EndCause::Requested { .. }) | None => match bad {
            Some(bad) => failed(bad),
            None => by_itself(finish, signalled),
        },
    }
}

/// No rank failed, and nothing was requested.
fn by_itself(finish: Option<FinishReason>, signalled: Option<(Rank, i32)>) -> RunEnd {
    let succeeded = |reason: &str| RunEnd::new(RunOutcome::Succeeded, 0, reason);
    match finish {
        Some(FinishReason::StopValue) => succeeded("reached the stop value"),
        Some(FinishReason::Budget) => succeeded("reached the target steps"),
        Some(FinishReason::Stopped) => {
            let signal = signalled.map_or_else(
                || "a signal".to_owned(),
                |(rank, signal)| format!("{} sent to rank {rank} from a console", signal_name(signal)),
            );
            RunEnd::new(RunOutcome::Stopped, 130, format!("all ranks exited after {signal}"))
        }
        None => succeeded("all ranks ended with exit code 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StopSource;
    use crate::exit_message::EndOfProcess;
    use rankdeck_proto::message::Exception;

    const INT: i32 = 2;
    const USR1: i32 = 10;

    fn signal(signal: i32) -> Exit {
        Exit::Signal { signal, out_of_memory: false }
    }

    fn code(code: i32) -> Exit {
        Exit::Code { code }
    }

    fn raised(class: &str, message: &str) -> ExitMessage {
        let (class, message) = (class.into(), message.into());
        ExitMessage::exception(&Exception { class, message, ..Exception::default() })
    }

    fn lost() -> ExitMessage {
        raised("RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1")
    }

    fn end(exit: &Exit, message: &ExitMessage, change: impl Fn(&mut EndEvidence<'_>)) -> RankEnd {
        let mut evidence = EndEvidence {
            exit,
            message,
            raised: false,
            returned: false,
            usage: false,
            sent: false,
            stopping: false,
            ending: false,
            stop_signal: None,
        };
        change(&mut evidence);
        of_rank(&evidence)
    }

    #[test]
    fn end_of_a_rank_without_a_stop() {
        use RankEnd::*;
        let none = ExitMessage::default();
        let by = |exit: Exit| end(&exit, &none, |_| {});
        assert_eq!(by(code(0)), Done);
        let unstarted = || Exit::NotStarted { error: "no such file".into() };
        let memory = || Exit::Signal { signal: 9, out_of_memory: true };
        assert_eq!([unstarted(), memory(), signal(9), signal(11)].map(by), [Hard; 4]);
        assert_eq!([signal(6), code(1), code(139)].map(by), [Failed; 3]);
        let lost = lost();
        assert_eq!([code(1), signal(6)].map(|exit| end(&exit, &lost, |_| {})), [Secondary; 2]);
        assert_eq!(end(&signal(9), &lost, |_| {}), Hard, "somebody killed it");
        assert_eq!(end(&code(1), &none, |it| it.usage = true), Hard);
        assert_eq!(end(&code(1), &lost, |it| it.sent = true), Hard, "the user's own signal");
    }

    #[test]
    fn end_1_exception_is_a_failure_for_any_exit_code() {
        use RankEnd::*;
        let own = raised("KeyError", "'obs'");
        let raised = |it: &mut EndEvidence<'_>| it.raised = true;
        assert_eq!([code(0), code(1)].map(|exit| end(&exit, &own, raised)), [Failed; 2]);
        assert_eq!(end(&code(0), &lost(), raised), Secondary);
        let stopped = |it: &mut EndEvidence<'_>| (it.raised, it.stopping) = (true, true);
        assert_eq!(
            [code(0), code(1)].map(|exit| end(&exit, &own, stopped)),
            [Failed; 2],
            "no stop causes it"
        );
        assert_eq!(end(&signal(11), &own, raised), Failed, "its interpreter crashed as it exited");
        assert_eq!(end(&signal(11), &lost(), raised), Secondary);
    }

    #[test]
    fn end_2_what_a_stop_causes_is_no_failure() {
        use RankEnd::*;
        let none = ExitMessage::default();
        let stopping = |it: &mut EndEvidence<'_>| it.stopping = true;
        let ending = |it: &mut EndEvidence<'_>| it.ending = true;
        for (exit, expected) in [
            (code(0), Done),
            (signal(INT), Stopped),
            (signal(15), Stopped),
            (code(130), Stopped),
            (code(143), Stopped),
            (signal(9), Killed),
            (Exit::NotStarted { error: "stopped before".into() }, Stopped),
            (code(1), Failed),
            (signal(11), Hard),
            (signal(USR1), Hard),
        ] {
            assert_eq!(end(&exit, &none, stopping), expected, "{exit:?}");
        }
        let usr1 = |it: &mut EndEvidence<'_>| (it.stopping, it.stop_signal) = (true, Some(USR1));
        assert_eq!([signal(USR1), code(138)].map(|exit| end(&exit, &none, usr1)), [Stopped; 2]);
        let interrupt = raised("KeyboardInterrupt", "");
        assert_eq!(end(&code(1), &interrupt, stopping), Stopped);
        assert_eq!(end(&code(1), &interrupt, |_| {}), Failed, "nobody has asked for it");
        // Peers of a rank that has stopped, before their own order and after it.
        let lost = lost();
        for exit in [code(0), code(1), signal(6)] {
            let raises = |it: &mut EndEvidence<'_>| it.raised = true;
            for change in [stopping, ending] {
                let both = |it: &mut EndEvidence<'_>| {
                    raises(it);
                    change(it);
                };
                assert_eq!(end(&exit, &lost, both), Stopped, "{exit:?}");
            }
        }
        assert_eq!(end(&signal(15), &none, ending), Hard, "its order has not arrived");
        let memory = Exit::Signal { signal: 9, out_of_memory: true };
        assert_eq!(end(&memory, &none, stopping), Hard);
    }

    #[test]
    fn end_3_crash_after_the_work_is_no_failure() {
        use RankEnd::*;
        let none = ExitMessage::default();
        let returned = |it: &mut EndEvidence<'_>| it.returned = true;
        for exit in [signal(11), signal(6), signal(7), code(139)] {
            assert_eq!(end(&exit, &none, returned), CrashedAtExit, "{exit:?}");
        }
        assert_eq!(end(&code(1), &none, returned), Failed);
        assert_eq!(end(&signal(9), &none, returned), Hard);
        let both = |it: &mut EndEvidence<'_>| (it.returned, it.stopping) = (true, true);
        assert_eq!(end(&signal(11), &none, both), CrashedAtExit);
    }

    #[test]
    fn aborts_are_weighed_by_their_reason() {
        let exit = signal(6);
        let lines = ["terminate called", "  what():  [gloo/pair.cc:598] Connection closed by peer"];
        let lines = lines.map(str::to_owned);
        let process = EndOfProcess { exit: &exit, exception: None, error: None, lines: &lines, hooked: true };
        assert_eq!(end(&exit, &ExitMessage::of(&process), |_| {}), RankEnd::Secondary);
    }

    fn run(cause: Option<EndCause>, change: impl Fn(&mut RunEvidence<'_>)) -> (RunOutcome, u8) {
        let mut evidence = RunEvidence { cause: cause.as_ref(), ..RunEvidence::default() };
        change(&mut evidence);
        let ending = of_run(&evidence);
        (ending.outcome, ending.exit_code)
    }

    #[test]
    fn end_of_a_run_follows_its_cause() {
        use RunOutcome::*;
        let nothing = |_: &mut RunEvidence<'_>| {};
        let culprit = |it: &mut RunEvidence<'_>| it.culprit = Some(("rank 1 failed", false));
        let bad_exit = |it: &mut RunEvidence<'_>| (it.ordered, it.bad_exit) = (true, Some("rank 1 failed"));
        let ordered = |it: &mut RunEvidence<'_>| it.ordered = true;
        let requested = || Some(EndCause::Requested { by: StopSource::Key });
        let until = || Some(EndCause::Until("steps=9".into()));
        assert_eq!(run(None, nothing), (Succeeded, 0));
        assert_eq!(run(None, culprit), (Failed, 1));
        assert_eq!(run(Some(EndCause::Failure), culprit), (Failed, 1));
        assert_eq!(run(Some(EndCause::Failure), |it| it.culprit = Some(("x", true))), (Failed, 2));
        assert_eq!(run(Some(EndCause::LaunchFailed("x".into())), culprit), (Failed, 3));
        assert_eq!(run(Some(EndCause::Stuck("x".into())), bad_exit), (Stuck, 4));
        assert_eq!(run(requested(), ordered), (Stopped, 130));
        assert_eq!(run(requested(), bad_exit), (Stopped, 130));
        assert_eq!(run(requested(), nothing), (Succeeded, 0), "it had ended by itself");
        assert_eq!(run(Some(EndCause::Elsewhere { by: "lease".into() }), nothing), (Stopped, 130));
        assert_eq!(run(until(), ordered), (Succeeded, 0));
        assert_eq!(run(until(), bad_exit), (Failed, 1));
        let finish = |reason| move |it: &mut RunEvidence<'_>| it.finish = Some(reason);
        assert_eq!(run(None, finish(FinishReason::Budget)), (Succeeded, 0));
        assert_eq!(run(None, finish(FinishReason::Stopped)), (Stopped, 130));
        // The culprit is in the reason of a stop.
        let stopped = requested();
        let evidence = RunEvidence { cause: stopped.as_ref(), ordered: true, ..RunEvidence::default() };
        let evidence = RunEvidence { bad_exit: Some("rank 1 on ant failed"), ..evidence };
        assert!(of_run(&evidence).reason.ends_with("rank 1 on ant failed"));
    }

    #[test]
    fn end_4_limit_that_a_stuck_run_reaches_is_no_success() {
        let stuck = |it: &mut RunEvidence<'_>| it.stuck = Some("no rank could join");
        let until = Some(EndCause::Until("seconds=150".into()));
        assert_eq!(run(until, stuck), (RunOutcome::Stuck, 4));
        let requested = Some(EndCause::Requested { by: StopSource::Key });
        let both = |it: &mut RunEvidence<'_>| (it.ordered, it.stuck) = (true, Some("x"));
        assert_eq!(run(requested, both), (RunOutcome::Stopped, 130));
    }
}
