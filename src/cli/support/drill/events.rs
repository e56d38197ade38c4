//! The input of a drill: the JSON lines of the console of its run.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Most verdicts that are kept.
const VERDICTS: usize = 256;

/// A verdict, as its line came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenVerdict {
    /// When, seconds since the drill began.
    pub(crate) at: f64,
    pub(crate) rank: Option<u64>,
    pub(crate) host: Option<String>,
    /// `reason_code`.
    pub(crate) code: String,
    /// Its kind, such as `straggler`.
    pub(crate) kind: String,
    pub(crate) is_red: bool,
}

/// The latest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenCheckpoint {
    /// On rank 0's host.
    pub(crate) path: String,
    /// `None`: the program does not report it.
    pub(crate) step: Option<u64>,
}

/// The end of a run, as its console reports it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SeenEnd {
    pub(crate) at: f64,
    pub(crate) proved: bool,
    pub(crate) reason: String,
    /// Rank and host of the first failure.
    pub(crate) first_failure: Option<(u64, String)>,
    /// State of `work`: `saved`, `lost`, ...; `None` if the run ended by itself.
    pub(crate) work: Option<String>,
    /// The checkpoint in `work`.
    pub(crate) checkpoint: Option<SeenCheckpoint>,
    /// Processes left, and hosts without a verified stop.
    pub(crate) left: Vec<String>,
}

/// What is known of a run. Steps and processes are those of the present generation.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunEvents {
    pub(crate) run: Option<String>,
    pub(crate) generation: u64,
    /// Found running by this console.
    pub(crate) is_adopted: bool,
    pub(crate) world_size: u64,
    pub(crate) on_gpus: bool,
    /// Ranks with a live process.
    pub(crate) up: BTreeSet<u64>,
    /// Host of each rank.
    pub(crate) hosts: BTreeMap<u64, String>,
    pub(crate) first_step: Option<u64>,
    pub(crate) last_step: Option<u64>,
    /// Lines that show progress.
    pub(crate) step_lines: u32,
    /// Whether a rank has entered a collective; `None`: nothing was reported about that.
    pub(crate) has_collectives: Option<bool>,
    /// When a number of collectives was reported: first and last time, and those numbers.
    pub(crate) collectives: Option<[(f64, u64); 2]>,
    pub(crate) checkpoint: Option<SeenCheckpoint>,
    pub(crate) verdicts: Vec<SeenVerdict>,
    pub(crate) end: Option<SeenEnd>,
}

impl RunEvents {
    /// Whether every rank has a process.
    pub(crate) fn is_up(&self) -> bool {
        self.world_size > 0 && self.up.len() as u64 == self.world_size
    }

    /// Milliseconds between two collectives; `None`: unknown.
    pub(crate) fn collective_ms(&self) -> Option<f64> {
        let [(from, first), (to, last)] = self.collectives?;
        let count = last.checked_sub(first).filter(|count| *count > 0)?;
        Some((to - from) * 1000.0 / count as f64)
    }

    /// The rank that is broken, and its host: the last one, so that rank 0 keeps reporting.
    pub(crate) fn victim(&self) -> Option<(u64, String)> {
        self.hosts.iter().next_back().map(|(rank, host)| (*rank, host.clone()))
    }

    /// Reads a line that came at `at`.
    pub(crate) fn on_line(&mut self, at: f64, line: &Value) {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let number = |name: &str| line[name].as_u64().filter(|number| *number > 0);
        match line["kind"].as_str().unwrap_or_default() {
            "run_started" => {
                let generation = line["generation"].as_u64().unwrap_or_default();
                if generation != self.generation || self.run.is_none() {
                    (self.first_step, self.last_step, self.step_lines) = (None, None, 0);
                    self.up.clear();
                }
                self.run = text("run");
                self.generation = generation;
                self.is_adopted = line["adopted"] == true;
                self.world_size = line["world_size"].as_u64().unwrap_or_default();
                self.on_gpus = line["backend"] == "nccl";
            }
            "rank" => {
                let Some(rank) = line["rank"].as_u64() else { return };
                self.hosts.insert(rank, text("host").unwrap_or_default());
                let lives = !line["pid"].is_null() && line["exit_code"].is_null() && line["signal"].is_null();
                match lives {
                    true => self.up.insert(rank),
                    false => self.up.remove(&rank),
                };
            }
            "progress" => {
                self.on_step(number("env_step").or(number("train_iter")));
                let ranks = line["per_rank"].as_array().into_iter().flatten();
                let entered = ranks.filter_map(|rank| rank["collective_seq"].as_u64()).max();
                let has_some = entered.map(|seq| seq > 0 || self.has_collectives == Some(true));
                self.has_collectives = has_some.or(self.has_collectives);
                if let Some(seq) = entered.filter(|seq| *seq > 0) {
                    let [first, _] = self.collectives.unwrap_or([(at, seq); 2]);
                    self.collectives = Some([first, (at, seq)]);
                }
            }
            "metrics" => {
                let shown = line["progress"]["done"].as_u64().filter(|done| *done > 0);
                self.on_step(number("env_step").or(shown));
            }
            "checkpoint" => {
                self.checkpoint = text("path")
                    .map(|path| SeenCheckpoint { path, step: number("env_step").or(number("train_iter")) });
            }
            "verdict" if self.verdicts.len() < VERDICTS && line["severity"] != "cleared" => {
                self.verdicts.push(SeenVerdict {
                    at,
                    rank: line["rank"].as_u64(),
                    host: text("host"),
                    code: text("reason_code").unwrap_or_default(),
                    kind: text("verdict").unwrap_or_default(),
                    is_red: line["severity"] == "red",
                });
            }
            "run_finished" => self.end = Some(ended(at, line)),
            _ => {}
        }
    }

    fn on_step(&mut self, step: Option<u64>) {
        self.step_lines = self.step_lines.saturating_add(1);
        self.first_step = self.first_step.or(step);
        self.last_step = step.or(self.last_step);
    }
}

fn texts(list: &Value) -> impl Iterator<Item = String> + '_ {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned))
}

fn ended(at: f64, line: &Value) -> SeenEnd {
    let failure = &line["first_failure"];
    let (work, checkpoint) = work_of(&line["work"]);
    SeenEnd {
        at,
        proved: line["proved"] == true,
        reason: line["reason"].as_str().unwrap_or_default().to_owned(),
        first_failure: failure["rank"]
            .as_u64()
            .map(|rank| (rank, failure["host"].as_str().unwrap_or_default().to_owned())),
        work,
        checkpoint,
        left: texts(&line["survivors"]).chain(texts(&line["unverified"])).collect(),
    }
}

/// The state of `work` of a `run_finished` or `stop` line, and its checkpoint.
fn work_of(work: &Value) -> (Option<String>, Option<SeenCheckpoint>) {
    let checkpoint = work["path"].as_str().map(|path| SeenCheckpoint {
        path: path.to_owned(),
        step: work["env_step"].as_u64().filter(|step| *step > 0),
    });
    (work["state"].as_str().map(str::to_owned), checkpoint)
}

/// The end that `stop --json` reports.
pub(crate) fn stopped(at: f64, line: &Value) -> SeenEnd {
    let (work, checkpoint) = work_of(&line["work"]);
    SeenEnd {
        at,
        proved: line["verified"] == true,
        work,
        checkpoint,
        left: texts(&line["unverified"]).collect(),
        ..SeenEnd::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_and_processes_are_those_of_the_present_generation() {
        let mut events = RunEvents::default();
        let started = |generation: u64| json!({"kind": "run_started", "run": "r", "generation": generation, "world_size": 2, "backend": "own"});
        let rank = |rank: u64, pid: Option<u64>, signal: Option<u64>| json!({"kind": "rank", "rank": rank, "host": "a", "pid": pid, "exit_code": null, "signal": signal});
        let lines = [
            started(0),
            rank(0, None, None),
            rank(0, Some(7), None),
            rank(1, Some(8), None),
            json!({"kind": "progress", "env_step": 16, "train_iter": 1}),
            json!({"kind": "metrics", "env_step": null, "values": {"loss": 1.0}, "progress": null}),
            json!({"kind": "metrics", "env_step": null, "progress": {"done": 90}}),
        ];
        lines.iter().for_each(|line| events.on_line(1.0, line));
        assert!(events.is_up());
        assert_eq!((events.first_step, events.last_step, events.step_lines), (Some(16), Some(90), 3));
        assert_eq!(events.victim(), Some((1, "a".to_owned())));
        events.on_line(2.0, &rank(1, Some(8), Some(9)));
        assert!(!events.is_up());
        events.on_line(3.0, &started(1));
        events.on_line(3.0, &json!({"kind": "progress", "env_step": 0, "train_iter": 5}));
        assert_eq!((events.generation, events.up.len(), events.first_step), (1, 0, Some(5)));
    }

    #[test]
    fn collectives_are_known_once_one_was_entered() {
        let mut events = RunEvents::default();
        let progress = |sequences: &[u64]| {
            let ranks: Vec<Value> = sequences.iter().map(|seq| json!({"collective_seq": seq})).collect();
            json!({"kind": "progress", "env_step": 1, "per_rank": ranks})
        };
        for (sequences, expected) in [
            (&[][..], None),
            (&[0, 0], Some(false)),
            (&[0, 3], Some(true)),
            (&[0, 0], Some(true)),
            (&[], Some(true)),
        ] {
            events.on_line(1.0, &progress(sequences));
            assert_eq!(events.has_collectives, expected, "{sequences:?}");
        }
        assert_eq!(events.collective_ms(), None);
        events.on_line(3.0, &progress(&[43, 42]));
        assert_eq!(events.collective_ms(), Some(50.0));
    }

    #[test]
    fn verdicts_are_bounded_and_cleared_ones_are_none() {
        let mut events = RunEvents::default();
        let verdict = |severity: &str| json!({"kind": "verdict", "rank": 1, "severity": severity, "reason_code": "killed"});
        events.on_line(0.0, &verdict("cleared"));
        assert!(events.verdicts.is_empty());
        (0..1000).for_each(|_| events.on_line(0.0, &verdict("red")));
        assert_eq!(events.verdicts.len(), VERDICTS);
    }

    #[test]
    fn ends_of_consoles_and_of_stop_are_alike() {
        let work = json!({"state": "saved", "path": "/c", "env_step": 8});
        let mut events = RunEvents::default();
        events.on_line(
            4.0,
            &json!({"kind": "run_finished", "proved": true, "work": work, "survivors": [], "unverified": [],
                "first_failure": {"rank": 1, "host": "b"}, "reason": "x"}),
        );
        let end = events.end.unwrap();
        assert_eq!(end.first_failure, Some((1, "b".to_owned())));
        let other = stopped(4.0, &json!({"kind": "stop", "verified": true, "work": work, "unverified": []}));
        assert_eq!((end.proved, &end.work, &end.checkpoint), (other.proved, &other.work, &other.checkpoint));
        assert_eq!(other.checkpoint.unwrap().step, Some(8));
    }
}
