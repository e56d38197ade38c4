//! Checkpoints that are found, and placed on every host of the generation that resumes from them.

use crate::Goal;
use crate::event::Event;
use crate::model::{EventTone, RunState};
use crate::report::{ReportBody, RestartState, RunOutcome};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::Restart;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::Generation;
use rankdeck_types::link_state::Prompt;

const PATH: &str = "/w/out/ck.pt";

/// A script on `hosts` hosts, each with its own disk.
fn running(hosts: usize, max_restarts: u32) -> Cluster {
    let mut draft = draft(hosts, Transport::Local);
    draft.experiment.restart =
        Restart { max_restarts: Some(max_restarts), backoff_s: 0.1, ..Restart::default() };
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), hosts, vec![]);
    c.all_ready();
    c.pass(2_000);
    assert_eq!(c.model().run.state, RunState::Running);
    c.agents.iter_mut().for_each(|agent| agent.disk = Some(Default::default()));
    c
}

fn save(c: &mut Cluster, node: usize, path: &str, content: &str) {
    c.agents[node].disk.get_or_insert_default().insert(path.into(), content.into());
}

fn found(c: &mut Cluster, node: usize, path: &str, env_step: Option<u64>) {
    let modified = c.wall_time(node);
    let file =
        CheckpointFile { path: path.into(), bytes: 5, modified, env_step, ..CheckpointFile::default() };
    c.record(node, RecordEvent::CheckpointFiles { files: vec![file], complete: false });
}

fn fail(c: &mut Cluster) {
    c.exit_of(1, killed(), false);
    c.pass(2_250);
    for node in 0..c.agents.len() {
        for rank in [2 * node as u32, 2 * node as u32 + 1] {
            if c.agents[node].samples.contains_key(&rank) {
                c.exit_of(rank, Exit::Signal { signal: 15, out_of_memory: false }, true);
            }
        }
        c.proof(node);
    }
    c.pass(1_000);
}

fn content<'a>(c: &'a Cluster, node: usize, path: &str) -> Option<&'a str> {
    c.agents[node].disk.as_ref()?.get(path).map(String::as_str)
}

fn last_restart(c: &Cluster) -> Option<RestartState> {
    c.reports.iter().rev().find_map(|(_, _, body)| match body {
        ReportBody::Restart { state, .. } => Some(*state),
        _ => None,
    })
}

#[test]
fn found_checkpoint_is_copied_to_the_other_host() {
    let mut c = running(2, 1);
    save(&mut c, 0, PATH, "12345");
    found(&mut c, 0, PATH, Some(20));
    let known = c.model().checkpoints.back().unwrap();
    assert_eq!((known.origin, known.bytes, known.step()), (CheckpointOrigin::Found, Some(5), Some(20)));
    fail(&mut c);
    for node in 0..2 {
        let launch = c.launches(node).pop().unwrap();
        assert_eq!((launch.generation, launch.resume_path()), (Generation(1), Some(PATH)), "node {node}");
        assert_eq!(content(&c, node, PATH), Some("12345"));
    }
}

#[test]
fn found_files_are_one_checkpoint_until_they_change() {
    let mut c = running(2, 0);
    found(&mut c, 0, PATH, None);
    c.pass(3_000);
    found(&mut c, 1, PATH, None);
    assert_eq!(c.model().checkpoints.len(), 1, "ranks of two hosts save under one path");
    found(&mut c, 0, "/w/out/other.pt", None);
    assert_eq!(c.model().checkpoints.len(), 2);
    // What ranks report is what a restart resumes from.
    let event =
        RankEvent::Checkpoint { path: PATH.into(), env_step: 9, train_iter: 1, reason: "best".into() };
    c.rank_event(0, event);
    c.pass(3_000);
    found(&mut c, 0, "/w/out/data.zip", None);
    let all: Vec<&str> = c.model().checkpoints.iter().map(|saved| saved.path.as_str()).collect();
    assert_eq!(all, ["/w/out/other.pt", "/w/out/data.zip", PATH]);
}

#[test]
fn place_3_group_starts_only_with_a_checkpoint_on_every_host() {
    let mut c = running(3, 1);
    for (node, content) in [(0, "aaaaa"), (1, "bbbbb")] {
        save(&mut c, node, PATH, content);
    }
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    assert_eq!(c.launches(0).len(), 1, "no host is launched");
    assert_eq!((c.model().run.outcome, c.exit), (Some(RunOutcome::Failed), Some(1)));
    assert_eq!(last_restart(&c), Some(RestartState::Refused));
    assert!(c.model().run.reason.contains(NAMES[2]), "{}", c.model().run.reason);
}

#[test]
fn place_3_parts_of_a_sharded_checkpoint_stay() {
    let mut c = running(2, 1);
    for (node, content) in [(0, "aaaaa"), (1, "bbbbb")] {
        save(&mut c, node, PATH, content);
    }
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    for (node, own) in [(0, "aaaaa"), (1, "bbbbb")] {
        assert_eq!(c.launches(node).len(), 2);
        assert_eq!(content(&c, node, PATH), Some(own));
    }
}

#[test]
fn place_4_large_file_is_copied_in_a_window_of_pieces() {
    let mut c = running(2, 1);
    let large = "x".repeat(10 * PIECE as usize + 7);
    save(&mut c, 0, PATH, &large);
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    assert_eq!(c.launches(1).len(), 2);
    let is_read = |order: &&ConsoleMessage| match order {
        ConsoleMessage::Checkpoint { order, .. } => matches!(**order, CheckpointOrder::Read { .. }),
        _ => false,
    };
    assert_eq!(c.agents[0].orders.iter().filter(is_read).count(), 11, "all pieces, each once");
    assert_eq!(c.most_replies, 4, "at once");
    assert_eq!(content(&c, 1, PATH).map(str::len), Some(large.len()));
}

/// A run on two hosts that asks before any copy; host 0 has a checkpoint.
fn asking(max_restarts: u32) -> Cluster {
    let mut draft = draft(2, Transport::Local);
    draft.experiment.restart =
        Restart { max_restarts: Some(max_restarts), backoff_s: 0.1, ..Restart::default() };
    draft.experiment.launch.max_copy_gb = 0.0;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, vec![]);
    c.all_ready();
    c.pass(2_000);
    c.agents.iter_mut().for_each(|agent| agent.disk = Some(Default::default()));
    save(&mut c, 0, PATH, "12345");
    found(&mut c, 0, PATH, Some(20));
    c
}

/// The user restarts the run, and its ranks end.
fn restart(c: &mut Cluster) {
    c.event(Event::restart(Some("latest".into())));
    (0..c.agents.len()).for_each(|node| c.host_ends(node, true));
    c.pass(1_000);
}

#[test]
fn place_5_user_is_asked_about_a_large_copy() {
    for (yes, launches) in [(true, 2), (false, 1)] {
        let mut c = asking(0);
        restart(&mut c);
        let [Prompt::CopyCheckpoint { bytes: 5, .. }] = c.asked[..] else { panic!("{:?}", c.asked) };
        assert_eq!((c.launches(1).len(), content(&c, 1, PATH)), (1, None), "it waits for the answer");
        c.event(Event::CopyAnswered { yes });
        c.pass(1_000);
        assert_eq!((c.launches(0).len(), c.launches(1).len()), (launches, launches));
        assert!(c.model().hosts.iter().all(|host| host.prompt.is_none()));
        assert_eq!(c.exit.is_some(), !yes);
    }
}

#[test]
fn place_5_automatic_restart_copies_without_a_prompt() {
    let mut c = asking(1);
    let warnings = |c: &Cluster| c.model().history.iter().filter(|line| line.tone == EventTone::Warn).count();
    let before = warnings(&c);
    fail(&mut c);
    assert!(c.asked.is_empty(), "{:?}", c.asked);
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (2, 2), "{}", c.model().run.reason);
    assert_eq!(content(&c, 1, PATH), Some("12345"));
    assert!(warnings(&c) > before);
}

#[test]
fn place_5_prompt_without_an_answer_ends_the_restart() {
    let mut c = asking(0);
    restart(&mut c);
    c.pass(590_000);
    assert_eq!((c.asked.len(), c.exit), (1, None), "there is time");
    c.pass(15_000);
    assert_eq!((c.launches(0).len(), c.exit), (1, Some(1)));
    assert_eq!(last_restart(&c), Some(RestartState::Refused));
    assert!(c.model().hosts.iter().all(|host| host.prompt.is_none()));
}

#[test]
fn place_7_named_checkpoint_is_found_before_anything_stops() {
    let mut c = running(2, 0);
    let ask = |c: &mut Cluster| c.event(Event::restart(Some("/w/named.pt".into())));
    ask(&mut c);
    assert!(c.stops(0).is_empty() && c.model().run.refused.is_some());
    assert_eq!((c.model().run.state, last_restart(&c)), (RunState::Running, Some(RestartState::Refused)));
    save(&mut c, 1, "/w/named.pt", "12345");
    ask(&mut c);
    assert_eq!(c.stops(0), [StopMode::Clean], "one host has it");
    (0..2).for_each(|node| c.host_ends(node, true));
    c.pass(1_000);
    assert_eq!(content(&c, 0, "/w/named.pt"), Some("12345"));
}

#[test]
fn directory_that_is_described_in_pages_is_copied_whole() {
    const FOLDER: &str = "/w/out/global_step1";
    let mut c = running(2, 1);
    let names: Vec<String> = (0..5).map(|number| format!("{FOLDER}/{number}")).collect();
    for name in &names {
        save(&mut c, 0, name, name);
    }
    found(&mut c, 0, FOLDER, Some(20));
    fail(&mut c);
    assert_eq!(c.launches(1).len(), 2, "{}", c.model().run.reason);
    assert!(names.iter().all(|name| content(&c, 1, name) == Some(name.as_str())));
}

#[test]
fn missing_checkpoint_refuses_the_restart() {
    let mut c = running(2, 1);
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    assert_eq!((c.launches(0).len(), last_restart(&c)), (1, Some(RestartState::Refused)));
}

/// Rank 0's host writes on; the other one still has what an earlier generation wrote there.
#[test]
fn file_of_an_earlier_generation_is_set_aside_and_replaced() {
    let mut c = running(2, 2);
    save(&mut c, 0, PATH, "aaaaa");
    save(&mut c, 1, PATH, "bbbbb");
    c.agents[0].written_in.insert(PATH.into(), Generation(0));
    c.agents[1].written_in.insert(PATH.into(), Generation(0));
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    assert_eq!(c.launches(1).len(), 2, "parts of a sharded checkpoint");
    save(&mut c, 0, PATH, "ccccc");
    c.agents[0].written_in.insert(PATH.into(), Generation(1));
    c.pass(3_000);
    found(&mut c, 0, PATH, Some(30));
    fail(&mut c);
    assert_eq!((c.launches(0).len(), c.launches(1).len()), (3, 3), "{}", c.model().run.reason);
    assert_eq!((content(&c, 0, PATH), content(&c, 1, PATH)), (Some("ccccc"), Some("ccccc")));
    assert_eq!(content(&c, 1, "/w/out/gen0/ck.pt"), Some("bbbbb"));
}

#[test]
fn place_6_deleted_latest_gives_way_to_the_one_before() {
    const OLDER: &str = "/w/out/older.pt";
    let mut c = running(2, 1);
    save(&mut c, 0, OLDER, "12345");
    found(&mut c, 0, OLDER, Some(10));
    c.pass(3_000);
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    for node in 0..2 {
        let launch = c.launches(node).pop().unwrap();
        assert_eq!((launch.generation, launch.resume_path()), (Generation(1), Some(OLDER)), "node {node}");
        assert_eq!(content(&c, node, OLDER), Some("12345"));
    }
    assert!(c.model().checkpoints.iter().all(|saved| saved.path == OLDER));
}

/// The host that saved last has lost its file; the other one has its copy of the save before.
/// Its writer was killed while it saved.
#[test]
fn cut_off_checkpoint_gives_way_to_the_one_before() {
    let mut c = running(1, 1);
    found(&mut c, 0, "/w/1.pt", Some(1));
    found(&mut c, 0, "/w/2.pt", Some(2));
    let modified = c.wall_time(0);
    let path = "/w/2.pt".to_owned();
    let file = CheckpointFile { path, modified, is_cut_off: true, ..CheckpointFile::default() };
    c.record(0, RecordEvent::CheckpointFiles { files: vec![file], complete: true });
    let latest = c.model().checkpoints.back().map(|saved| saved.path.as_str());
    assert_eq!(latest, Some("/w/1.pt"));
}

#[test]
fn place_6_older_copy_is_used_as_what_it_is() {
    let mut c = running(2, 2);
    save(&mut c, 0, PATH, "aaaaa");
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    assert_eq!(content(&c, 1, PATH), Some("aaaaa"));
    c.agents[1].written_in.insert(PATH.into(), Generation(0));
    c.pass(3_000);
    found(&mut c, 0, PATH, Some(30));
    c.agents[0].disk = Some(Default::default());
    fail(&mut c);
    assert_eq!(c.launches(0).len(), 3, "{}", c.model().run.reason);
    assert_eq!(content(&c, 0, PATH), Some("aaaaa"));
    assert_eq!(c.model().checkpoints.back().and_then(|saved| saved.step()), Some(20));
}

#[test]
fn host_lost_during_a_copy_gets_all_of_it_when_it_is_back() {
    let mut c = asking(0);
    restart(&mut c);
    assert_eq!(c.asked.len(), 1);
    c.lose(1);
    c.pass(1_000);
    c.ready(1);
    c.pass(1_000);
    assert_eq!((c.asked.len(), c.launches(1).len()), (2, 1), "it is asked again");
    c.event(Event::CopyAnswered { yes: true });
    c.pass(1_000);
    assert_eq!((c.launches(1).len(), content(&c, 1, PATH)), (2, Some("12345")));
}

#[test]
fn checkpoint_is_unread_only_if_no_host_has_opened_it() {
    let notices = |c: &Cluster| {
        let is_notice = |body: &ReportBody| matches!(body, ReportBody::Notice { .. });
        c.reports.iter().filter(|(_, _, body)| is_notice(body)).count()
    };
    let mut c = running(2, 1);
    save(&mut c, 0, PATH, "12345");
    found(&mut c, 0, PATH, Some(20));
    fail(&mut c);
    let before = notices(&c);
    c.record(0, RecordEvent::CheckpointUnread { path: PATH.into() });
    assert_eq!(notices(&c), before, "the other host may have read it");
    c.record(1, RecordEvent::CheckpointUnread { path: PATH.into() });
    assert_eq!(notices(&c), before + 1);
}

#[test]
fn restart_8_two_unread_checkpoints_in_a_row_end_the_policy() {
    for saves in [false, true] {
        let mut c = running(1, 9);
        save(&mut c, 0, PATH, "12345");
        found(&mut c, 0, PATH, Some(20));
        for round in 1..=2 {
            fail(&mut c);
            assert_eq!(c.launches(0).len(), 1 + round, "saves: {saves}");
            c.record(0, RecordEvent::CheckpointUnread { path: PATH.into() });
            // Steps alone do not help: they are those of a start from scratch.
            c.iteration(round as u64, 100 * round as u64);
            if saves {
                found(&mut c, 0, PATH, Some(20 + round as u64));
            }
        }
        fail(&mut c);
        assert_eq!(c.launches(0).len(), if saves { 4 } else { 3 });
        assert_eq!(c.exit.is_some(), !saves);
    }
}
