//! One run of a sweep: what it changes, how far it is, how it ended.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Cell {
    /// What it changes, `KEY=VALUE`.
    pub sets: Vec<String>,
    pub state: CellState,
    /// Where it is, or was, among the sweep's slots.
    #[serde(default)]
    pub slot: Option<usize>,
    /// Its run, once it has begun.
    pub run: Option<String>,
    /// Exit code of its console.
    pub exit_code: Option<i32>,
    /// Why it ended.
    pub reason: String,
    /// Environment steps so far.
    pub env_step: u64,
    /// Mean return of its latest evaluation.
    pub last_eval: Option<f64>,
    /// Mean return of its last 100 training episodes.
    pub last_return: Option<f64>,
}

impl Cell {
    /// A line of its console.
    pub(super) fn hear(&mut self, line: &Value) {
        let number = |name: &str| line[name].as_f64();
        match line["kind"].as_str() {
            Some("run_started") => self.run = line["run"].as_str().map(str::to_owned),
            Some("progress") => {
                self.env_step = line["env_step"].as_u64().unwrap_or(self.env_step);
                self.last_return = number("return_last_100").or(number("return_mean")).or(self.last_return);
            }
            Some("metrics") => {
                self.env_step = line["env_step"].as_u64().unwrap_or(self.env_step);
                self.last_return = line["values"]["charts/episodic_return"].as_f64().or(self.last_return);
            }
            Some("eval") => self.last_eval = number("return_mean"),
            Some("run_finished") => {
                self.reason = line["reason"].as_str().unwrap_or_default().to_owned();
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self, exit_code: i32) {
        self.exit_code = Some(exit_code);
        self.state = match exit_code {
            0 => CellState::Succeeded,
            130 | 137 => CellState::Stopped,
            _ => CellState::Failed,
        };
    }

    /// One that failed goes on from its latest checkpoint, or begins where it never did.
    pub(super) fn reopen(&mut self) {
        if self.state == CellState::Failed {
            self.state = if self.run.is_some() { CellState::Stopped } else { CellState::Waiting };
        }
    }

    /// What it is compared by.
    pub(super) fn score(&self) -> Option<f64> {
        self.last_eval.or(self.last_return)
    }

    /// What it changes besides the seed.
    pub(super) fn variant(&self) -> String {
        let sets: Vec<&str> =
            self.sets.iter().map(String::as_str).filter(|set| !set.starts_with("run.seed=")).collect();
        if sets.is_empty() { "(as it is)".to_owned() } else { sets.join(" ") }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CellState {
    #[default]
    Waiting,
    Running,
    Succeeded,
    Failed,
    Stopped,
}

impl CellState {
    pub(super) fn name(self) -> &'static str {
        match self {
            CellState::Waiting => "waiting",
            CellState::Running => "running",
            CellState::Succeeded => "succeeded",
            CellState::Failed => "failed",
            CellState::Stopped => "stopped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_compared_by_its_evaluations_and_else_by_its_training() {
        let mut cell = Cell { sets: vec!["a=1".into(), "run.seed=2".into()], ..Cell::default() };
        cell.hear(&serde_json::json!({"kind": "run_started", "run": "r"}));
        cell.hear(&serde_json::json!({"kind": "progress", "env_step": 7, "return_last_100": 3.5, "return_mean": 1.0}));
        assert_eq!((cell.score(), cell.env_step, cell.variant().as_str()), (Some(3.5), 7, "a=1"));
        cell.hear(&serde_json::json!({"kind": "eval", "return_mean": 9.0}));
        cell.end(0);
        assert_eq!(
            (cell.score(), cell.state, cell.run.as_deref()),
            (Some(9.0), CellState::Succeeded, Some("r"))
        );
        cell.end(2);
        assert_eq!(cell.state, CellState::Failed);
        cell.end(130);
        assert_eq!(cell.state, CellState::Stopped);
    }
}
