//! PyTorch's Flight Recorder of a Python rank, as a witness next to the hook's page, and the tasks of its event loop.
//!
//! Owner: the helper thread of one inspection. It requests a dump through the status page and reads the file
//! that the hook writes; nothing is started in the rank. A rank that cannot answer (stopped, frozen,
//! interpreter lock held) is waited for briefly, and that is noted. Format: the JSON of `_dump_fr_trace_json`
//! of PyTorch 2.9 and later (dump format 2.10). With Gloo `state` stays `scheduled` and `retired` shows that
//! it is complete; numbers may come as text.

use super::{InspectTarget, SharedHelper};
use crate::observe::pages;
use rankdeck_proto::inspection::{
    Frame, GroupView, OF_TASK, PythonView, RecentCall, StackMethod, ThreadStack,
};
use rankdeck_proto::message::CollectiveCall;
use rankdeck_proto::regular;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of the hook, which polls five times a second.
const ANSWER: Duration = Duration::from_millis(600);
/// Most bytes of a dump.
const BYTES: u64 = 16 << 20;
/// Latest calls that are kept.
const RECENT: usize = 16;
/// Most bytes of a list of tasks, most tasks, and most frames of each.
const TASK_BYTES: u64 = 256 << 10;
const TASKS: usize = 16;
const TASK_FRAMES: usize = 32;

pub(super) fn add(subject: &InspectTarget, shared: &SharedHelper, deadline: Instant) {
    let Ok(reader) = pages::open(&subject.page) else { return };
    if !reader.has_hook() {
        return;
    }
    let Ok(request) = reader.ask_hook() else { return };
    let until = (Instant::now() + ANSWER).min(deadline);
    while reader.hook_answered().is_ok_and(|answered| answered != request) {
        if Instant::now() >= until {
            shared.found(|found| {
                found.notes.push(
                    "cannot read the Flight Recorder: the rank's interpreter is not running or has no recorder"
                        .into(),
                );
            });
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let tasks = tasks(&answer_path(&subject.page, ".tasks"));
    shared.found(|found| found.threads.extend(tasks));
    match read(&answer_path(&subject.page, ".fr")) {
        Ok(view) => shared.found(|found| {
            let python = found.python.get_or_insert_default();
            // The page is fresher; the recorder has members and calls from C++.
            for group in view.groups {
                match python.groups.iter_mut().find(|known| known.name == group.name) {
                    Some(known) if known.ranks.is_empty() => known.ranks = group.ranks,
                    Some(_) => {}
                    None => python.groups.push(group),
                }
            }
            python.source = if python.source.is_empty() {
                view.source
            } else {
                format!("{} and {}", python.source, view.source)
            };
            python.recent = view.recent;
        }),
        Err(error) => {
            shared.found(|found| found.notes.push(format!("cannot read the Flight Recorder: {error}")))
        }
    }
}

/// Where the hook writes an answer.
fn answer_path(page: &Path, end: &str) -> PathBuf {
    let mut path = page.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// The suspended tasks of the program's event loop, the main one first; none without one.
fn tasks(path: &Path) -> Vec<ThreadStack> {
    let mut text = String::new();
    let read = regular::open(path).and_then(|file| file.take(TASK_BYTES).read_to_string(&mut text));
    read.map(|_| parse_tasks(&text)).unwrap_or_default()
}

/// Reads a list of tasks: `[{"name": "Task-1", "frames": [["main", "train.py", 7]]}]`.
fn parse_tasks(text: &str) -> Vec<ThreadStack> {
    let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let frame = |frame: &Value| Frame {
        function: frame[0].as_str().unwrap_or_default().to_owned(),
        file: frame[1].as_str().map(str::to_owned),
        line: frame[2].as_u64().and_then(|line| u32::try_from(line).ok()),
    };
    let task = |task: &Value| ThreadStack {
        name: format!("{OF_TASK}{}", task["name"].as_str().unwrap_or_default()),
        how: StackMethod::Python,
        frames: task["frames"].as_array().into_iter().flatten().take(TASK_FRAMES).map(frame).collect(),
        ..ThreadStack::default()
    };
    list.iter().take(TASKS).map(task).collect()
}

fn read(path: &Path) -> Result<PythonView, String> {
    let mut text = String::new();
    regular::open(path)
        .and_then(|file| file.take(BYTES).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text)
}

/// Reads a dump.
pub(crate) fn parse(text: &str) -> Result<PythonView, String> {
    let dump: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut groups: Vec<GroupView> = dump["pg_status"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, status)| GroupView {
            name: if name == "0" { "world".to_owned() } else { name.clone() },
            ranks: ranks(&dump["pg_config"][name]["ranks"]),
            enqueued: number(&status["last_enqueued_collective"]),
            completed: number(&status["last_completed_collective"]),
            ..GroupView::default()
        })
        .collect();
    let entries = dump["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let calls: Vec<RecentCall> = entries.iter().rev().take(RECENT).rev().map(call).collect();
    for group in &mut groups {
        group.size = group.ranks.len() as u32;
        if let Some(last) = entries.iter().rev().map(call).find(|call| call.call.group == group.name) {
            group.call = last.call;
        }
    }
    groups.sort_by_key(|group| (group.name != "world", group.name.clone()));
    Ok(PythonView { source: "flight recorder".into(), torch: String::new(), groups, recent: calls })
}

fn call(entry: &Value) -> RecentCall {
    let name = entry["profiling_name"].as_str().unwrap_or_default();
    let group = entry["process_group"][0].as_str().unwrap_or_default();
    let count = entry["input_sizes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|sizes| sizes.as_array().into_iter().flatten().map(number).product::<u64>())
        .sum();
    let retired = entry["retired"].as_bool().unwrap_or(false);
    let frame = &entry["frames"][0];
    let site = match (frame["filename"].as_str(), number(&frame["line"])) {
        (Some(file), line) => format!("{file}:{line}"),
        _ => String::new(),
    };
    RecentCall {
        seq: number(&entry["collective_seq_id"]),
        state: if retired { "completed" } else { entry["state"].as_str().unwrap_or_default() }.to_owned(),
        call: CollectiveCall {
            op: name.split_once(':').map_or(name, |(_, op)| op).to_owned(),
            group: if group == "0" { "world".to_owned() } else { group.to_owned() },
            count,
            dtype: entry["input_dtypes"][0].as_str().unwrap_or_default().to_lowercase(),
            site,
            ..CollectiveCall::default()
        },
    }
}

/// Numbers come as numbers or as text; -1 stands for none.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// `[0, 1]`, as text or as a list.
fn ranks(value: &Value) -> Vec<u32> {
    match value {
        Value::Array(list) => list.iter().map(|rank| number(rank) as u32).take(4096).collect(),
        Value::String(text) => text
            .trim_matches(['[', ']'])
            .split(',')
            .filter_map(|rank| rank.trim().parse().ok())
            .take(4096)
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = r#"{"comm_lib_version":"","pg_config":{"":{"desc":"","name":"","ranks":"[]"},"1":{"ranks":"[0, 1]"}},
        "pg_status":{"0":{"last_completed_collective":"10","last_enqueued_collective":"11","last_started_collective":"-1"},
        "1":{"last_completed_collective":"1","last_enqueued_collective":"1","last_started_collective":"-1"}},"version":"2.10",
        "entries":[{"collective_seq_id":10,"input_dtypes":["Float"],"input_sizes":[[4,5],[2]],"process_group":["0","default_pg"],
        "profiling_name":"gloo:broadcast","retired":true,"state":"scheduled"},
        {"collective_seq_id":11,"input_dtypes":["Float"],"input_sizes":[[20]],"process_group":["0","default_pg"],
        "profiling_name":"gloo:all_reduce","retired":false,"state":"scheduled","frames":[{"filename":"train.py","line":7,"name":"main"}]}]}"#;

    #[test]
    fn tasks_are_stacks_without_a_thread() {
        let text = r#"[{"name": "Task-1", "frames": [["get", "/usr/lib/python3.11/asyncio/queues.py", 158],
            ["main", "train.py", 7]]}, {"name": "x", "frames": []}, 7]"#;
        let found = parse_tasks(text);
        assert_eq!(
            found.iter().map(|task| task.name.as_str()).collect::<Vec<_>>(),
            ["task Task-1", "task x", "task "]
        );
        let frame = &found[0].frames[1];
        assert_eq!((frame.function.as_str(), frame.line, found[0].tid), ("main", Some(7), 0));
        for cut in 0..text.len() {
            let _ = parse_tasks(&text[..cut]);
        }
    }

    #[test]
    fn dump_of_gloo_is_read() {
        let view = parse(DUMP).unwrap();
        let world = &view.groups[0];
        assert_eq!((world.name.as_str(), world.enqueued, world.completed), ("world", 11, 10));
        assert_eq!(
            (world.call.op.as_str(), world.call.count, world.call.site.as_str()),
            ("all_reduce", 20, "train.py:7")
        );
        assert_eq!(view.groups[1].ranks, [0, 1]);
        let states: Vec<(u64, u64, &str)> =
            view.recent.iter().map(|c| (c.seq, c.call.count, c.state.as_str())).collect();
        assert_eq!(states, [(10, 22, "completed"), (11, 20, "scheduled")]);
    }

    #[test]
    fn anything_else_is_an_error_or_empty() {
        assert!(parse("").is_err());
        assert_eq!(parse("{}").unwrap().groups, []);
        assert_eq!(parse(r#"{"entries":[1,{"process_group":3}],"pg_status":7}"#).unwrap().recent.len(), 2);
    }
}
