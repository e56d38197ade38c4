//! `rankdeck status`: shows the progress of one run, for status bars and scripts.

use crate::cli::args::StatusArgs;
use crate::cli::commands::ps;
use crate::cli::support::run_index::{FoundRun, RunIndex, RunStatus, query_runs};
use crate::cli::support::{Failure, code, print};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::RunOutcome;
use rankdeck_types::words::{clean, count, duration};

/// Runs `rankdeck status`.
pub(crate) async fn status(hosts_from: &HostsSource, args: StatusArgs) -> Result<u8, Failure> {
    let run_index = query_runs(hosts_from, &args.host_keys).await?;
    let now = wall_time();
    let found = match pick(&run_index, args.run.as_deref()) {
        Ok(found) => found,
        // A status bar has no room for errors.
        Err(_) if args.line => {
            print::stdout("");
            return Ok(code::SUCCESS);
        }
        Err(failure) => return Err(failure),
    };
    let summary = found.summary(now);
    if args.json {
        print::stdout(&ps::as_json(&run_index, &found, now).to_string());
    } else if args.line {
        print::stdout(&clean(&line(found.run, found.state, &summary)));
    } else {
        for (label, text) in facts(&found, &summary) {
            print::stdout(&clean(&format!("{label:<10} {text}")));
        }
    }
    Ok(code::SUCCESS)
}

/// Returns the run by name; without a name the running one, else the newest.
fn pick<'a>(run_index: &'a RunIndex, name: Option<&str>) -> Result<FoundRun<'a>, Failure> {
    let newest = |found: &FoundRun<'a>| found.summary(0.0).started.unwrap_or(0.0);
    match (name, run_index.pick(name)) {
        (None, Err(failure)) => {
            let runs = run_index.runs();
            let live: Vec<_> =
                runs.iter().filter(|found| found.state == RunStatus::Running).cloned().collect();
            let among = if live.is_empty() { runs } else { live };
            among.into_iter().max_by(|a, b| newest(a).total_cmp(&newest(b))).ok_or(failure)
        }
        (_, picked) => picked,
    }
}

/// `ppo-1122 12.8% 6.38M 32.9k/s ETA 22m best 18.4`.
fn line(run: &str, state: RunStatus, summary: &RunSummary) -> String {
    let mut words = vec![run.to_owned()];
    let goal = summary.total_steps.filter(|goal| *goal > 0);
    match state {
        RunStatus::Running => {
            let speed = speed(summary);
            if let (Some(done), Some(goal)) = (summary.env_step, goal) {
                words.push(format!("{:.1}%", (done as f64 / goal as f64 * 100.0).min(100.0)));
            }
            words.extend(summary.env_step.map(short));
            words.extend(speed.map(|speed| format!("{}/s", short(speed as u64))));
            if let (Some(done), Some(goal), Some(speed)) = (summary.env_step, goal, speed) {
                words.push(format!("ETA {}", duration(goal.saturating_sub(done) as f64 / speed)));
            }
        }
        _ => {
            let sign = if summary.outcome == Some(RunOutcome::Succeeded) { "ok" } else { "!" };
            let how = summary.outcome_text().unwrap_or_else(|| state.name().to_owned());
            words.push(format!("{sign} {how}"));
            words.extend(summary.env_step.map(short));
        }
    }
    words.extend(summary.best.as_ref().map(|best| format!("best {:.1}", best.return_mean)));
    words.join(" ")
}

/// Average steps per second.
fn speed(summary: &RunSummary) -> Option<f64> {
    let steps = summary.env_step.filter(|steps| *steps > 0)? as f64;
    (summary.duration_s > 0.0).then(|| steps / summary.duration_s)
}

/// `6.38M`.
fn short(number: u64) -> String {
    let value = number as f64;
    match number {
        1_000_000_000.. => format!("{:.2}G", value / 1e9),
        1_000_000.. => format!("{:.2}M", value / 1e6),
        10_000.. => format!("{:.1}k", value / 1e3),
        _ => number.to_string(),
    }
}

fn facts(found: &FoundRun<'_>, summary: &RunSummary) -> Vec<(&'static str, String)> {
    let state = match summary.outcome_text() {
        Some(text) if found.state != RunStatus::Running => text,
        _ => found.state.name().to_owned(),
    };
    let mut facts = vec![("run", found.run.to_owned()), ("state", state)];
    facts.extend(Some(summary.reason.clone()).filter(|text| !text.is_empty()).map(|text| ("reason", text)));
    facts.extend(summary.env_step.map(|steps| {
        let goal = summary.total_steps.map_or(String::new(), |goal| format!(" of {}", count(goal)));
        ("steps", format!("{}{goal}", count(steps)))
    }));
    facts.extend(speed(summary).map(|speed| ("speed", format!("{speed:.0} steps/s on average"))));
    facts.extend(summary.last_return.map(|mean| ("return", format!("{mean:.1}"))));
    facts.extend(summary.best.as_ref().map(|best| ("best eval", format!("{:.1}", best.return_mean))));
    facts.extend(summary.checkpoint.as_ref().map(|saved| ("checkpoint", saved.path.clone())));
    facts.push(("time", duration(summary.duration_s)));
    facts.push(("hosts", summary.hosts.join(" ")));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_line_shows_progress_and_outcome() {
        let going = RunSummary {
            env_step: Some(250_000),
            total_steps: Some(1_000_000),
            duration_s: 100.0,
            ..RunSummary::default()
        };
        let shown = line("ppo-1", RunStatus::Running, &going);
        assert_eq!(shown, format!("ppo-1 25.0% 250.0k 2500/s ETA {}", duration(300.0)));
        let over = RunSummary { outcome: Some(RunOutcome::Failed), exit_code: Some(1), ..going };
        assert_eq!(line("ppo-1", RunStatus::Finished, &over), "ppo-1 ! failed (1) 250.0k");
        assert_eq!(line("x", RunStatus::Running, &RunSummary::default()), "x");
    }
}
