//! `rankdeck status`: shows the progress of one run, for status bars and scripts.
//! `rankdeck wait`: waits until a run has ended and exits with its code. The run is not affected.

use crate::app::driver::ExitReason;
use crate::app::exit_condition::ExitCondition;
use crate::cli::args::{StatusArgs, WaitArgs};
use crate::cli::commands::ps;
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::{LocatedRun, RunLocator};
use crate::cli::support::run_index::{FoundRun, RunStatus};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code, code_record, print, run_name};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::RunOutcome;
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_types::words::{clean, count, duration, fixed, rate};
use std::sync::Mutex;
use std::time::Duration;

/// Runs `rankdeck status`.
pub(crate) async fn status(hosts_from: &HostsSource, args: StatusArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let located = match locator.pick(args.run.as_deref(), RunAction::Watch).await {
        Ok(located) => located,
        // A status bar has no room for errors.
        Err(_) if args.line => {
            print::stdout("");
            return Ok(code::SUCCESS);
        }
        Err(failure) => return Err(failure),
    };
    let (found, now) = (located.found()?, wall_time());
    let summary = found.summary(now);
    if args.output.json {
        print::json(&ps::as_json(&located.run_index, &found, now));
    } else if args.line {
        print::stdout(&clean(&line(found.run, found.state, &summary)));
    } else {
        for (label, text) in facts(&found, &summary) {
            print::stdout(&clean(&format!("{label:<10} {text}")));
        }
    }
    Ok(code::SUCCESS)
}

/// `ppo-1122 12.8% 6.38M 32.9k/s ETA 22m best eval 18.4`.
fn line(run: &str, state: RunStatus, summary: &RunSummary) -> String {
    let mut words = vec![run.to_owned()];
    let goal = summary.total_steps.filter(|goal| *goal > 0);
    match state {
        RunStatus::Running => {
            words.extend(summary.restarting.then(|| "restarting".to_owned()));
            let fails = !summary.restarting && summary.first_failure.is_some();
            words.extend(fails.then(|| "! rank failed".to_owned()));
            let speed = summary.steps_per_s.filter(|speed| *speed > 0.0);
            let shown = summary.progress.as_ref().filter(|_| summary.env_step.is_none() || goal.is_none());
            if let (Some(done), Some(goal)) = (summary.env_step, goal) {
                words.push(format!("{:.1}%", (done as f64 / goal as f64 * 100.0).min(100.0)));
            }
            let is_shown = shown.is_some_and(|shown| is_step(shown, summary));
            words.extend(summary.env_step.filter(|_| !is_shown).map(short));
            words.extend(speed.map(|speed| format!("{}/s", short(speed as u64))));
            if let (Some(done), Some(goal), Some(speed)) = (summary.env_step, goal, speed) {
                words.push(format!("ETA {}", duration(goal.saturating_sub(done) as f64 / speed)));
            }
            if let Some(shown) = shown {
                words.extend(shown.share().map(|share| format!("{:.1}%", share * 100.0)));
                words.push(shown.amount());
                words.extend(shown.eta_s.map(|eta| format!("ETA {}", duration(eta))));
            }
        }
        _ => {
            let sign = if summary.outcome == Some(RunOutcome::Succeeded) { "ok" } else { "!" };
            let how = summary.outcome_text().unwrap_or_else(|| state.name().to_owned());
            words.push(format!("{sign} {how}"));
            words.extend(summary.env_step.map(short));
        }
    }
    words.extend(summary.best.as_ref().map(|best| format!("best eval {}", fixed(best.return_mean, 1))));
    words.join(" ")
}

/// Whether a program's progress is its number of steps.
fn is_step(shown: &ShownProgress, summary: &RunSummary) -> bool {
    summary.env_step.is_some_and(|steps| shown.shows("step", steps as f64))
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
    let mut facts = vec![("run", found.run.to_owned()), ("state", found.state_text(summary))];
    // Of a run that has ended, it is the reason.
    let failure = summary.first_failure.clone().filter(|_| summary.outcome.is_none());
    facts.extend(failure.map(|text| ("failed", text)));
    facts.extend(Some(summary.reason.clone()).filter(|text| !text.is_empty()).map(|text| ("reason", text)));
    let is_shown = summary.progress.as_ref().is_some_and(|shown| is_step(shown, summary));
    facts.extend(summary.env_step.filter(|_| !is_shown).map(|steps| {
        let goal = summary.total_steps.map_or(String::new(), |goal| format!(" of {}", count(goal)));
        ("steps", format!("{}{goal}", count(steps)))
    }));
    facts.extend(summary.progress.as_ref().map(|shown| {
        let label = if shown.label.is_empty() { String::new() } else { format!("{}: ", shown.label) };
        let eta = shown.eta_s.map_or(String::new(), |eta| format!(", ETA {}", duration(eta)));
        ("progress", format!("{label}{}{eta}", shown.amount()))
    }));
    facts.extend(summary.steps_per_s.map(|speed| ("speed", format!("{} steps/s", rate(speed)))));
    facts.extend(summary.last_return.map(|mean| ("return", fixed(mean, 1))));
    facts.extend(summary.best.as_ref().map(|best| ("best eval", fixed(best.return_mean, 1))));
    facts.extend(summary.checkpoint.as_ref().map(|saved| ("checkpoint", saved.path.clone())));
    facts.extend(summary.code.as_ref().map(|hash| {
        let folder = run_name::own_folder(found.run).unwrap_or_default();
        ("code", code_record::described(&folder, hash))
    }));
    facts.extend(summary.results.iter().map(|found| ("results", found.describe())));
    facts.push(("time", duration(summary.duration_s)));
    facts.push(("hosts", summary.hosts.join(" ")));
    facts
}

/// Between two queries about a run whose console has just ended: another generation may start.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `rankdeck wait`.
pub(crate) async fn wait(hosts_from: &HostsSource, args: WaitArgs) -> Result<u8, Failure> {
    let run = Mutex::new(args.run.clone());
    let ended = ended(hosts_from, &args, &run);
    let Some(limit) = args.timeout else { return ended.await };
    let within = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
    tokio::time::timeout(within, ended).await.unwrap_or_else(|_| {
        let run = run.lock().map_or_else(|_| args.run.clone(), |run| run.clone());
        let failure = Failure::failed(format!("run {run} has not ended within {}", duration(limit)));
        Err(Failure { code: code::TIMEOUT, ..failure }.hint(format!(
            "show its progress with `rankdeck status {run}`, or stop it with `rankdeck stop {run}`"
        )))
    })
}

/// Waits for the end of the run and prints it. `run` becomes its full name.
async fn ended(hosts_from: &HostsSource, args: &WaitArgs, run: &Mutex<String>) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let mut located = locator.find(Some(&args.run), RunAction::Read).await?;
    let name = located.run.clone();
    if let Ok(mut run) = run.lock() {
        run.clone_from(&name);
    }
    loop {
        let found = located.found()?;
        match found.state {
            RunStatus::Finished => return report(&located, args),
            RunStatus::Orphaned => {
                return Err(Failure::failed(format!("run {name} has processes without an agent"))
                    .hint(format!("kill them with `rankdeck stop {name}`")));
            }
            RunStatus::Running => {}
        }
        let target = ExistingRun::new(&located.run_index, &found)?;
        let end = target.run_until(ExitCondition::Observe, &args.host_keys).await?;
        if end.why != ExitReason::Done {
            return Ok(code::INTERRUPTED);
        }
        located = locator.pick(Some(&name), RunAction::Read).await?;
        if located.found()?.state == RunStatus::Running {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Prints how the run ended; returns its exit code.
fn report(located: &LocatedRun, args: &WaitArgs) -> Result<u8, Failure> {
    let (run_index, found, now) = (&located.run_index, located.found()?, wall_time());
    let summary = found.summary(now);
    if args.output.json {
        print::json(&ps::as_json(run_index, &found, now));
    }
    let silent = run_index
        .silent
        .iter()
        .any(|(index, _)| run_index.hosts.get(*index).is_some_and(|host| found.hosts().contains(&host.name)));
    match (summary.exit_code, summary.outcome) {
        (Some(code), Some(outcome)) => {
            if !args.output.json {
                let reason =
                    if summary.reason.is_empty() { String::new() } else { format!(": {}", summary.reason) };
                print::stdout(&clean(&format!(
                    "run {} {}{reason} (exit code {code})",
                    found.run,
                    outcome.name()
                )));
            }
            Ok(code)
        }
        _ if silent => Err(run_index.silent_failure()),
        _ => Err(Failure::failed(format!("the end of run {} is not recorded", found.run))
            .hint(format!("check its logs with `rankdeck logs {}`", found.run))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_rank_of_a_running_run_is_a_fact() {
        let entry = crate::cli::support::run_index::sample_entry();
        let found = FoundRun { run: "r", state: RunStatus::Running, parts: vec![(0, &entry)] };
        let failed = |outcome| {
            let first_failure = Some("rank 1 on a exited with code 1".to_owned());
            let summary = RunSummary { first_failure, outcome, ..RunSummary::default() };
            facts(&found, &summary).into_iter().any(|(label, _)| label == "failed")
        };
        assert!(failed(None) && !failed(Some(RunOutcome::Failed)));
    }

    #[test]
    fn status_line_shows_progress_and_outcome() {
        let going = RunSummary {
            env_step: Some(250_000),
            total_steps: Some(1_000_000),
            steps_per_s: Some(2_500.0),
            ..RunSummary::default()
        };
        let shown = line("ppo-1", RunStatus::Running, &going);
        assert_eq!(shown, format!("ppo-1 25.0% 250.0k 2500/s ETA {}", duration(300.0)));
        let over = RunSummary { outcome: Some(RunOutcome::Failed), exit_code: Some(1), ..going };
        assert_eq!(line("ppo-1", RunStatus::Finished, &over), "ppo-1 ! failed (1) 250.0k");
        assert_eq!(line("x", RunStatus::Running, &RunSummary::default()), "x");
        let failed = RunSummary { first_failure: Some("rank 1".into()), ..RunSummary::default() };
        assert!(line("x", RunStatus::Running, &failed).contains('!'));
        let shown = ShownProgress {
            done: 20,
            total: Some(1800),
            unit: "it".into(),
            eta_s: Some(570.0),
            ..ShownProgress::default()
        };
        let bar = RunSummary { progress: Some(shown), ..RunSummary::default() };
        let eta = duration(570.0);
        assert_eq!(line("x", RunStatus::Running, &bar), format!("x 1.1% 20 of 1,800 it ETA {eta}"));
        let counted = RunSummary { env_step: Some(5), total_steps: Some(10), ..bar };
        assert_eq!(line("x", RunStatus::Running, &counted), "x 50.0% 5", "the run's own target counts");
        let shown =
            ShownProgress { done: 5, total: Some(20), unit: "step".into(), ..ShownProgress::default() };
        let steps = RunSummary { total_steps: None, progress: Some(shown), ..counted };
        assert_eq!(line("x", RunStatus::Running, &steps), "x 25.0% step 5 of 20", "once");
        let named = |steps: &RunSummary| {
            facts(&FoundRun { run: "x", state: RunStatus::Running, parts: Vec::new() }, steps)
        };
        assert!(named(&steps).iter().all(|(name, _)| *name != "steps"));
    }
}
