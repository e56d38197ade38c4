//! A process that the user asks for: its environment, a signal to it, and what the watch makes of that.

use crate::event::Event;
use crate::reason::Reason;
use crate::report::ReportBody;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_proto::process::*;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank};

const TERM: i32 = 15;
const OF_RANK_2: ProcessName = ProcessName { rank: Some(Rank(2)), pid: 1002, start: 0 };

fn running() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(10_000);
    c
}

fn asked(c: &Cluster, node: usize) -> Vec<(u64, ProcessName, ProcessAction)> {
    let orders = c.agents[node].orders.iter();
    orders
        .filter_map(|order| match order {
            ConsoleMessage::Reach { request, process, action } => Some((*request, *process, *action)),
            _ => None,
        })
        .collect()
}

fn ask(c: &mut Cluster, action: ProcessAction) {
    c.event(Event::ReachRequested { node: NodeRank(1), process: OF_RANK_2, action });
}

fn answer(c: &mut Cluster, node: usize, request: u64, outcome: ReachOutcome) {
    c.said(node, AgentMessage::Reached { request, outcome: Box::new(outcome) });
}

fn environment(value: &str) -> ReachOutcome {
    let variable = Variable { name: "PATH".into(), value: Some(value.into()) };
    ReachOutcome::Environment(Environment { variables: vec![variable], left_out: 0 })
}

#[test]
fn reach_2_an_environment_is_asked_of_its_host_and_is_in_no_record() {
    let mut c = running();
    c.events.clear();
    ask(&mut c, ProcessAction::Environment);
    assert_eq!((asked(&c, 0).len(), asked(&c, 1)), (0, vec![(1, OF_RANK_2, ProcessAction::Environment)]));
    assert!(c.model().reaches.environment(NodeRank(1), OF_RANK_2).is_none(), "not answered yet");
    answer(&mut c, 0, 1, environment("of another host"));
    assert!(c.model().reaches.environment(NodeRank(1), OF_RANK_2).is_none(), "that host was not asked");
    let before = c.model().revision;
    answer(&mut c, 1, 1, environment("/very/visible"));
    assert!(c.model().revision > before, "the screen shows it");
    let told = c.model().reaches.environment(NodeRank(1), OF_RANK_2).unwrap().unwrap();
    assert_eq!(told.variables[0].value.as_deref(), Some("/very/visible"));
    assert!(c.events.iter().all(|(_, event)| !event.is_recorded()), "{:?}", c.events);
    let kept = serde_json::to_string(c.model()).unwrap();
    assert!(!kept.contains("/very/visible") && !format!("{:?}", c.events).contains("/very/visible"));
    assert!(!c.model().history.iter().any(|line| line.text.contains("/very/visible")));
}

#[test]
fn an_agent_that_is_lost_silent_or_unwilling_is_said_so() {
    let why = |c: &Cluster| {
        let found = c.model().reaches.environment(NodeRank(1), OF_RANK_2);
        found.and_then(Result::err).map(|error| error.error).unwrap_or_default()
    };
    let mut c = running();
    ask(&mut c, ProcessAction::Environment);
    c.pass(4_000);
    assert_eq!(why(&c), "");
    c.pass(3_000);
    assert!(why(&c).contains("does not answer"), "{}", why(&c));
    ask(&mut c, ProcessAction::Environment);
    answer(&mut c, 1, 2, ReachOutcome::Refused(HintedError::new("pid 1002 has ended", "")));
    assert_eq!(why(&c), "pid 1002 has ended");
    ask(&mut c, ProcessAction::Environment);
    c.lose(1);
    assert!(why(&c).contains("was lost before it answered"), "{}", why(&c));
    ask(&mut c, ProcessAction::Environment);
    assert!(why(&c).contains("is not connected"), "{}", why(&c));
    assert_eq!(c.model().reaches.answered(0).count(), 4);
    assert_eq!(c.model().reaches.answered(3).count(), 1, "each is told once");
    for _ in 0..100 {
        ask(&mut c, ProcessAction::Environment);
    }
    assert!(c.model().reaches.answered(0).count() <= 16, "questions are bounded");
}

fn signalled(c: &mut Cluster, rank: u32, signal: i32) {
    let node = rank as usize / 2;
    c.record(node, RecordEvent::Signalled { rank: Some(Rank(rank)), pid: 1000 + rank, signal });
}

fn dead(c: &Cluster) -> (Reason, String) {
    let verdict = c.model().verdicts.first().unwrap_or_else(|| panic!("no verdict"));
    (verdict.reason_code, verdict.reason.clone())
}

#[test]
fn a_rank_that_ends_by_a_signal_from_a_console_says_so() {
    for (exit, end) in [
        (Exit::Signal { signal: TERM, out_of_memory: false }, "was killed by SIGTERM, which a console sent"),
        (Exit::Code { code: 143 }, "exited with code 143 after SIGTERM from a console"),
        (Exit::Code { code: 1 }, "exited with code 1 after SIGTERM from a console"),
    ] {
        let mut c = running();
        signalled(&mut c, 2, TERM);
        assert!(c.model().history.iter().any(|line| line.text.contains("a console sends it SIGTERM")));
        let said =
            |body: &ReportBody| matches!(body, ReportBody::Notice { text, .. } if text.contains("SIGTERM"));
        assert!(c.told.iter().any(|(_, _, body)| said(body)), "lines and JSON have it, too");
        c.pass(500);
        c.exit_of(2, exit, false);
        let (reason, sentence) = dead(&c);
        assert_eq!(reason, Reason::Killed, "{sentence}");
        assert!(sentence.contains(end), "{sentence}");
    }
}

#[test]
fn a_signal_explains_no_end_that_has_another_cause() {
    let other = |signal: i32, exit: Exit, pass: u64| {
        let mut c = running();
        signalled(&mut c, 2, signal);
        c.pass(pass);
        c.exit_of(2, exit, false);
        let (_, sentence) = dead(&c);
        assert!(!sentence.contains("console"), "{sentence}");
    };
    let code = Exit::Code { code: 1 };
    // SIGWINCH and SIGCONT end nothing; SIGTERM a minute ago was survived; SIGSEGV is its own.
    other(28, code.clone(), 500);
    other(18, code.clone(), 500);
    other(TERM, code.clone(), 60_000);
    other(TERM, Exit::Signal { signal: 11, out_of_memory: false }, 500);
    // Another rank got it.
    let mut c = running();
    signalled(&mut c, 1, TERM);
    c.exit_of(2, code, false);
    assert!(!dead(&c).1.contains("console"));
}

#[test]
fn ranks_that_leave_together_after_a_signal_from_a_console_say_so() {
    let mut c = running();
    signalled(&mut c, 2, TERM);
    for rank in 0..4 {
        c.rank_said(rank, RankEvent::Finished { reason: FinishReason::Stopped });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    for node in 0..2 {
        c.record(node, RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 1 });
    }
    assert_eq!(c.model().run.reason, "all ranks left after SIGTERM from a console to rank 2");
}

#[test]
fn a_rank_that_a_console_has_stopped_says_so_and_goes_on_after_sigcont() {
    let mut c = running();
    signalled(&mut c, 1, 19);
    c.hang(1, |sample| sample.state = 'T');
    c.pass(5_000);
    let verdict = c.model().verdicts.first().cloned().unwrap_or_else(|| panic!("no verdict"));
    assert_eq!((verdict.reason_code, verdict.rank), (Reason::Stopped, Some(Rank(1))));
    assert!(verdict.reason.contains("is stopped by SIGSTOP, which a console sent"), "{}", verdict.reason);
    assert!(verdict.card.facts.contains(&"a console sent it SIGSTOP".to_owned()), "{:?}", verdict.card.facts);
    signalled(&mut c, 1, 18);
    assert!(c.model().ranks[1].signalled.is_some_and(|sent| sent.signal == 18));
}
