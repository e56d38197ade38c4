//! Prints a run as plain lines or as JSON Lines. Data goes to stdout, errors and hints to stderr.

use super::clock::time_of_day;
use super::line_writer::{HURRY, LineWriter, PATIENCE};
use super::signals::{ConsoleSignal, ConsoleSignals};
use super::{stderr, summary};
use rankdeck_core::model::Model;
use rankdeck_core::origin;
use rankdeck_core::reason::Reason;
use rankdeck_core::report::{
    FirstFailure, Report, ReportBody, RestartState, Severity, VerdictKind, VerdictReport,
};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank, RunId, Timestamp, WallTime};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::meaning::{Meaning, Meanings};
use rankdeck_types::words::{bytes, clean, clean_output, count, duration, fixed, plain_json, plural, rate};
use std::collections::BTreeMap;

/// Least time between two plain progress lines.
const PROGRESS_MS: u64 = 2000;

/// How long the end of a console waits for the reader of its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndPatience {
    /// For a reader that reads, and [`PATIENCE`] for one that does not.
    Usual,
    /// The same with [`HURRY`]: a signal asked a viewer to exit.
    Signaled,
    /// [`HURRY`], also for a reader that reads: the console exits at once.
    Cut,
}

/// The line format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Lines for people.
    Plain {
        /// Also print the ranks' log lines.
        logs: bool,
    },
    /// For programs: each report as one JSON object.
    Json,
}

/// How often lines are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrintRate {
    /// Least time between two lines of progress, and between two of metrics, ms; `None`: the default of the
    /// format.
    pub(crate) every_ms: Option<u64>,
    /// Only the start, verdicts, restarts and the end.
    pub(crate) quiet: bool,
}

impl PrintRate {
    /// The default of the format.
    pub(crate) const USUAL: PrintRate = PrintRate { every_ms: None, quiet: false };
}

/// Prints reports as lines or as JSON.
#[derive(Debug)]
pub(crate) struct Printer {
    form: LineFormat,
    pace: PrintRate,
    metrics_at: Option<Timestamp>,
    logged_at: Option<Timestamp>,
    output: LineWriter,
    progress_at: Option<Timestamp>,
}

/// A line and its destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OutputLine {
    /// Always printed.
    Out(String),
    /// Replaced by a newer one.
    Gauge(String),
    /// Never dropped: the outcome of the run.
    Last(String),
    /// For people only.
    Err(String),
}

impl Printer {
    /// A printer to stdout.
    pub(crate) fn new(form: LineFormat) -> std::io::Result<Printer> {
        Printer::paced(form, PrintRate::USUAL)
    }

    /// A printer with a print rate.
    pub(crate) fn paced(form: LineFormat, pace: PrintRate) -> std::io::Result<Printer> {
        let output = LineWriter::new(std::io::stdout())?;
        Ok(Printer { form, pace, metrics_at: None, logged_at: None, output, progress_at: None })
    }

    /// Whether the print rate drops a report.
    fn is_left_out(&mut self, now: Timestamp, body: &ReportBody) -> bool {
        let last = match body {
            ReportBody::Progress { .. } => Some(&mut self.progress_at),
            ReportBody::Metrics { .. } => Some(&mut self.metrics_at),
            ReportBody::Histogram { .. } | ReportBody::Image { .. } => Some(&mut self.logged_at),
            _ => None,
        };
        if self.pace.quiet {
            return !matches!(
                body,
                ReportBody::RunStarted { .. }
                    | ReportBody::Verdict(_)
                    | ReportBody::Restart { .. }
                    | ReportBody::Membership { .. }
                    | ReportBody::RunFinished { .. }
            );
        }
        let (Some(last), Some(every_ms)) = (last, self.pace.every_ms) else { return false };
        if last.is_some_and(|at| now.since(at) < every_ms) {
            return true;
        }
        *last = Some(now);
        false
    }

    /// Prints a report; `model` is the state after it.
    pub(crate) fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        if self.is_left_out(now, &report.body) {
            failed_host(report, model).into_iter().for_each(|line| self.put(line));
            return;
        }
        if let Some(dropped) = self.output.take_dropped() {
            self.dropped(report.run.clone(), report.generation, report.time, dropped);
        }
        let lines = match self.form {
            LineFormat::Json => json(report),
            LineFormat::Plain { logs } => {
                match report.body {
                    ReportBody::Log { .. } if !logs => return,
                    ReportBody::Progress { .. } if self.pace.every_ms.is_none() => {
                        if self.progress_at.is_some_and(|at| now.since(at) < PROGRESS_MS) {
                            return;
                        }
                        self.progress_at = Some(now);
                    }
                    ReportBody::Metrics { .. } if self.pace.every_ms.is_none() => {
                        if self.metrics_at.is_some_and(|at| now.since(at) < PROGRESS_MS) {
                            return;
                        }
                        self.metrics_at = Some(now);
                    }
                    ReportBody::Histogram { .. } | ReportBody::Image { .. }
                        if self.pace.every_ms.is_none() =>
                    {
                        if self.logged_at.is_some_and(|at| now.since(at) < PROGRESS_MS) {
                            return;
                        }
                        self.logged_at = Some(now);
                    }
                    _ => {}
                }
                plain(report, model)
            }
        };
        let trouble = failed_host(report, model);
        for line in lines.into_iter().chain(trouble) {
            self.put(line);
        }
    }

    /// Prints how many lines were dropped.
    fn dropped(&self, run: RunId, generation: Generation, time: WallTime, lines: u64) {
        let report = Report { run, generation, time, body: ReportBody::LinesDropped { lines } };
        let lines = match self.form {
            LineFormat::Json => json(&report),
            LineFormat::Plain { .. } => plain(&report, &Model::default()),
        };
        for line in lines {
            if let OutputLine::Out(line) = line {
                self.put(OutputLine::Last(line));
            }
        }
    }

    /// Prints the last lines and the count of dropped ones: waits for a reader that reads, and gives up on
    /// one that does not. Returns whether everything was read.
    pub(crate) async fn finish(
        &mut self,
        model: &Model,
        signals: &mut ConsoleSignals,
        patience: EndPatience,
    ) -> bool {
        if let Some(dropped) = self.output.take_all_dropped() {
            let run = model.run.id.clone().unwrap_or_else(|| RunId(String::new()));
            self.dropped(run, model.run.generation, wall_time(), dropped);
        }
        let hurry = async {
            match patience {
                // The user does not wait.
                EndPatience::Usual | EndPatience::Signaled => {
                    while !matches!(signals.next().await, ConsoleSignal::Stop | ConsoleSignal::HangUp) {}
                }
                EndPatience::Cut => tokio::time::sleep(HURRY).await,
            }
        };
        let unread = if patience == EndPatience::Usual { PATIENCE } else { HURRY };
        tokio::select! {
            () = self.output.written(unread) => {}
            () = hurry => {}
        }
        let lost = self.output.give_up();
        if lost > 0 {
            stderr::line(&format!("warning: stdout was not read: {} lost", plural(lost, "line")));
        }
        lost == 0
    }

    /// Waits until the reader has caught up: for a program without other work.
    pub(crate) fn wait_for_room(&self) {
        self.output.wait_for_room();
    }

    /// Waits until everything is read.
    pub(crate) fn wait(&self) {
        self.output.wait();
    }

    /// Prints a reply to a typed command.
    pub(crate) fn print(&self, line: String) {
        self.put(OutputLine::Out(line));
    }

    /// Prints a line; nothing of a host's text in it drives the terminal.
    fn put(&self, line: OutputLine) {
        let safe = |line: String| match self.form {
            LineFormat::Json => plain_json(&line),
            LineFormat::Plain { .. } => clean(&line),
        };
        match line {
            OutputLine::Out(line) => self.output.line(safe(line)),
            OutputLine::Gauge(line) => self.output.gauge(safe(line)),
            OutputLine::Last(line) => self.output.last_words(safe(line)),
            OutputLine::Err(line) => stderr::line(&line),
        }
    }
}

fn json(report: &Report) -> Vec<OutputLine> {
    match serde_json::to_string(report) {
        Ok(line) if matches!(report.body, ReportBody::Log { .. }) => vec![OutputLine::Gauge(line)],
        Ok(line) if matches!(report.body, ReportBody::RunFinished { .. }) => vec![OutputLine::Last(line)],
        Ok(line) => vec![OutputLine::Out(line)],
        Err(error) => vec![OutputLine::Err(format!("error: cannot encode a report as JSON: {error}"))],
    }
}

fn failed_host(report: &Report, model: &Model) -> Vec<OutputLine> {
    let ReportBody::Host { node_rank, host, .. } = &report.body else { return Vec::new() };
    match model.hosts.get(node_rank.index()).map(|host| &host.link) {
        Some(LinkState::Failed(HintedError { error, hint })) => {
            let error =
                if error.contains(host.as_str()) { error.clone() } else { format!("host {host}: {error}") };
            let hint = (!hint.is_empty()).then(|| OutputLine::Err(format!("hint: {hint}")));
            std::iter::once(OutputLine::Err(format!("error: {error}"))).chain(hint).collect()
        }
        _ => Vec::new(),
    }
}

/// Formats a report as lines for people.
pub(crate) fn plain(report: &Report, model: &Model) -> Vec<OutputLine> {
    let at = time_of_day(report.time);
    let out = |text: String| vec![OutputLine::Out(format!("{at}  {}", text.trim_end()))];
    match &report.body {
        ReportBody::RunStarted { world_size, nnodes, backend, master, adopted, .. } => out(format!(
            "run {} generation {}: {}, {}{}{}",
            report.run,
            report.generation,
            plural(*nnodes as usize, "host"),
            plural(*world_size as usize, "rank"),
            match (backend.as_str(), *world_size) {
                // It communicates with nothing that rankdeck knows.
                ("own", 1) => String::new(),
                ("own", _) => format!(", master {master}"),
                _ => format!(", {backend}, master {master}"),
            },
            if *adopted { " (attached)" } else { "" },
        )),
        ReportBody::Host { host, state, detail, .. } => out(format!("host {host}  {state}  {detail}")),
        ReportBody::Rank { rank, host, state, pid, exit_code, signal, detail } => {
            // For an exit, the detail describes it better than the state.
            let ended = exit_code.is_some() || signal.is_some();
            let (what, more) = if ended { (detail, "") } else { (state, detail.as_str()) };
            let facts = [pid.map(|pid| format!("pid {pid}")), (!more.is_empty()).then(|| more.to_owned())];
            out(format!("rank {rank} on {host}  {what}  {}", join(&facts)))
        }
        ReportBody::Progress { .. } => {
            vec![OutputLine::Gauge(format!("{at}  {}", progress(&report.body).unwrap_or_default()))]
        }
        ReportBody::Notice { host, text, .. } => out(format!("notice from {host}: {text}")),
        ReportBody::Eval { env_step, episodes, return_mean, return_std, stop, sampled, series, .. } => {
            let spread = match series.is_empty() {
                true => {
                    let episodes = plural(*episodes as usize, "episode");
                    let how = if *sampled { ", actions sampled" } else { "" };
                    format!(" ± {} over {episodes}{how}", fixed(*return_std, 2))
                }
                false => format!(" ({series})"),
            };
            out(format!(
                "eval {}at step {}: return {}{spread}{}",
                if model.evals.is_empty() { String::new() } else { format!("{} ", model.evals.len()) },
                count(*env_step),
                fixed(*return_mean, 2),
                if *stop { ", stop value reached" } else { "" },
            ))
        }
        ReportBody::Checkpoint { path, env_step, reason, origin, bytes: size, .. } => {
            let step = Some(*env_step).filter(|step| *step > 0 || origin.is_reported());
            let step = step.map(|step| format!(" at step {}", count(step))).unwrap_or_default();
            let size = size.map(|size| format!(" ({})", bytes(size))).unwrap_or_default();
            out(format!("checkpoint ({reason}){step}: {path}{size}"))
        }
        ReportBody::Verdict(verdict) => {
            let lead = |i: usize| if i == 0 { at.as_str() } else { "        " };
            let lines = verdict_lines(verdict).into_iter().enumerate();
            lines.map(|(i, text)| OutputLine::Out(format!("{}  {text}", lead(i)))).collect()
        }
        ReportBody::Metrics { rank, source, env_step, values, progress, counter, .. } => {
            let counter = env_step
                .map(|step| ("step", step as f64))
                .or(counter.as_ref().map(|counter| (counter.unit.as_str(), counter.at)));
            let text =
                format!("{}  (rank {rank} only, from {source})", metrics(counter, values, progress.as_ref()));
            vec![OutputLine::Gauge(format!("{at}  {text}"))]
        }
        ReportBody::Histogram { name, env_step, count: values, mean, min, max, .. } => {
            let text = format!(
                "step {}  histogram {name}: {} from {} to {}, mean {}",
                count(*env_step),
                plural(values.round() as usize, "value"),
                fixed(*min, 4),
                fixed(*max, 4),
                fixed(*mean, 4),
            );
            vec![OutputLine::Gauge(format!("{at}  {text}"))]
        }
        ReportBody::Image { name, env_step, width, height, bytes: size, .. } => {
            let text = format!(
                "step {}  image {name}: {width} x {height} pixels, {}",
                count(*env_step),
                bytes(*size)
            );
            vec![OutputLine::Gauge(format!("{at}  {text}"))]
        }
        ReportBody::Log { rank, host, line } => {
            vec![OutputLine::Gauge(format!("{host}:{rank}| {}", clean_output(line)))]
        }
        ReportBody::LinesDropped { lines } => {
            out(format!("{} dropped: stdout was not read", plural(*lines as usize, "line")))
        }
        ReportBody::Restart { .. } => out(restart(&report.body).unwrap_or_default()),
        ReportBody::Membership { .. } => {
            let latest = model.membership.changes.back();
            latest.map_or_else(Vec::new, |latest| out(model.describe_change(&latest.change)))
        }
        ReportBody::RunFinished { .. } => {
            let lines = finished(&report.body, model).unwrap_or_default();
            let last = |text: String| OutputLine::Last(format!("{at}  {}", text.trim_end()));
            lines.into_iter().map(last).collect()
        }
    }
}

/// Formats a restart as one line without time.
fn restart(body: &ReportBody) -> Option<String> {
    let ReportBody::Restart {
        state,
        next_generation: next,
        reason,
        in_s,
        restarts,
        max_restarts,
        from,
        code,
        world_size,
        hosts,
        ..
    } = body
    else {
        return None;
    };
    let code = code.as_deref().map_or(String::new(), |word| format!(", {}", origin::code_text(word)));
    let from = format!("{}{code}", from.as_deref().unwrap_or("scratch"));
    let (ranks, hosts_count) = (plural(*world_size as usize, "rank"), plural(hosts.len(), "host"));
    let shape = format!("{ranks} on {hosts_count} ({})", hosts.join(", "));
    Some(match state {
        RestartState::Planned => format!("restart: generation {next} from {from}, {shape}: {reason}"),
        RestartState::Waiting => format!(
            "restart {restarts} of {max_restarts} in {}: generation {next} from {from}, {shape}: {reason}",
            duration(*in_s)
        ),
        RestartState::Refused => format!("not restarting: {reason}"),
        RestartState::GivenUp => reason.clone(),
    })
}

/// Formats the end of a run without time. Verdicts are not repeated.
fn finished(body: &ReportBody, model: &Model) -> Option<Vec<String>> {
    let ReportBody::RunFinished { reason, outcome, first_failure, work, warnings, .. } = body else {
        return None;
    };
    let is_new = |text: &str| !model.verdicts.iter().any(|verdict| verdict.reason == text);
    let fell =
        |rank: &Rank| model.verdicts.iter().any(|v| v.verdict == VerdictKind::Dead && v.rank == Some(*rank));
    let is_reported = |first: &&FirstFailure| {
        !is_new(&first.error) && first.certain && first.followed.iter().chain(&first.alike).all(fell)
    };
    let first = first_failure.as_ref().filter(|first| !is_reported(first)).map(|first| first.line.as_str());
    let first = first.filter(|line| line != reason && is_new(line));
    let mut end = format!("run finished: {}", format!("{outcome:?}").to_lowercase());
    if is_new(reason) {
        end.push_str(&format!(": {reason}"));
    }
    if let Some(work) = summary::work(*outcome, work.as_ref()) {
        end.push_str(&format!("; {work}"));
    }
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    Some(first.into_iter().map(str::to_owned).chain(warnings).chain([end]).collect())
}

/// Formats values of a program at a place of its counter. A count that its progress shows is not repeated.
fn metrics(
    counter: Option<(&str, f64)>,
    values: &BTreeMap<String, f64>,
    progress: Option<&ShownProgress>,
) -> String {
    let whole = |at: f64, decimals| if at.fract() == 0.0 { fixed(at, 0) } else { fixed(at, decimals) };
    let is_shown = |name: &str, at: f64| progress.is_some_and(|progress| progress.shows(name, at));
    let place = counter.filter(|(unit, at)| !is_shown(unit, *at)).map(|(unit, at)| match at {
        at if at.fract() == 0.0 && (0.0..9e15).contains(&at) => format!("{unit} {}", count(at as u64)),
        at => format!("{unit} {}", fixed(at, 2)),
    });
    let is_repeated = |name: &str, at: f64| {
        is_shown(name, at) || counter.is_some_and(|(unit, place)| unit == name && (place - at).abs() < 0.5)
    };
    let values = values.iter().filter(|(name, value)| !is_repeated(name, **value)).take(8);
    let is_count = |name: &str| Meanings::default().of(name).is_some_and(Meaning::is_count);
    let values = values.map(|(name, value)| match is_count(name) {
        true => format!("{name} {}", whole(*value, 4)),
        false => format!("{name} {}", fixed(*value, 4)),
    });
    let progress = progress.map(|progress| {
        let eta = progress.eta_s.map_or(String::new(), |eta| format!(", eta {}", duration(eta)));
        let is_place = counter.is_some_and(|(unit, at)| progress.shows(unit, at));
        let label = match progress.label.as_str() {
            "" if is_place => String::new(),
            "" => "progress ".to_owned(),
            label => format!("{label} "),
        };
        format!("{label}{}{eta}", progress.amount())
    });
    place.into_iter().chain(values).chain(progress).collect::<Vec<_>>().join("  ")
}

/// Formats progress as one line without time.
fn progress(body: &ReportBody) -> Option<String> {
    let ReportBody::Progress {
        env_step,
        episodes,
        steps_per_s,
        return_mean,
        return_last_100,
        total_steps,
        eta_s,
        consistent,
        per_rank,
        ..
    } = body
    else {
        return None;
    };
    let goal = total_steps
        .filter(|total| *total > 0)
        .map(|total| format!(" / {} ({:.1}%)", count(total), 100.0 * *env_step as f64 / total as f64));
    let parts = [
        Some(format!("step {}{}", count(*env_step), goal.unwrap_or_default())),
        steps_per_s.map(|speed| format!("{} steps/s", rate(speed))),
        eta_s.map(|eta| format!("eta {}", duration(eta))),
        Some(format!("episodes {}", count(*episodes))),
        return_mean.map(|mean| format!("episode return {}", fixed(mean, 1))),
        return_last_100.map(|mean| format!("mean return {}", fixed(mean, 1))),
        Some(plural(per_rank.len(), "rank")),
        (!consistent).then(|| "TOTALS MISMATCH".to_owned()),
    ];
    Some(join(&parts))
}

fn verdict_lines(verdict: &VerdictReport) -> Vec<String> {
    let who = match (&verdict.rank, &verdict.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, Some(host)) => format!("host {host}"),
        (None, None) => "the run".to_owned(),
    };
    let name = verdict.verdict.name();
    if verdict.severity == Severity::Cleared {
        return vec![format!("cleared: {who} no longer {name}  {}", verdict.reason).trim_end().to_owned()];
    }
    let severity = if verdict.severity == Severity::Red { "CRITICAL" } else { "WARNING" };
    let confidence = format!("{:?}", verdict.confidence).to_lowercase();
    let reason = verdict.reason.strip_prefix(&format!("{who} ")).unwrap_or(&verdict.reason);
    let latency = duration(verdict.latency_s);
    let head = format!("{severity} {who}: {name} ({confidence}, after {latency}): {reason}");
    let lines = verdict.card.text().into_iter().map(|line| format!("    {line}"));
    let code = verdict.reason_code;
    let explain =
        (code != Reason::default()).then(|| format!("    explain     rankdeck explain {}", code.name()));
    std::iter::once(head).chain(lines).chain(explain).collect()
}

fn join(parts: &[Option<String>]) -> String {
    parts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::card::{Advice, Card};
    use rankdeck_core::model::HostModel;
    use rankdeck_core::report::{Confidence, RankProgress};
    use rankdeck_types::ids::{Generation, NodeRank, RunId};

    fn report(body: ReportBody) -> Report {
        Report { run: RunId("r".into()), generation: Generation(0), time: 0.0, body }
    }

    fn texts(report: &Report, model: &Model) -> Vec<String> {
        plain(report, model)
            .into_iter()
            .map(|line| match line {
                OutputLine::Out(text)
                | OutputLine::Gauge(text)
                | OutputLine::Last(text)
                | OutputLine::Err(text) => text[10..].to_owned(),
            })
            .collect()
    }

    fn rank_progress() -> RankProgress {
        RankProgress {
            rank: Rank(0),
            host: "a".into(),
            env_step: 1,
            samples: 1,
            episodes: 1,
            duration_s: 1.0,
            phase: "rollout".into(),
            collective_seq: 1,
            cpu_percent: None,
            gpu_percent: None,
            rss: None,
            gpu_memory: None,
            gpu: None,
        }
    }

    #[test]
    fn progress_line_has_share_rate_eta_and_totals_mismatch() {
        let body = |consistent| ReportBody::Progress {
            train_iter: 3,
            env_step: 12_288,
            samples: 12_288,
            episodes: 120,
            duration_s: 3.0,
            steps_per_s: Some(8123.4),
            return_mean: Some(34.21),
            return_last_100: Some(30.04),
            updates: 12,
            total_steps: Some(500_000),
            eta_s: Some(62.0),
            consistent,
            reduced: true,
            per_rank: vec![rank_progress(), rank_progress()],
        };
        assert_eq!(
            texts(&report(body(true)), &Model::default()),
            [
                "step 12,288 / 500,000 (2.5%)  8,123 steps/s  eta 1m 02s  episodes 120  episode return 34.2  mean return 30.0  2 ranks"
            ]
        );
        assert!(texts(&report(body(false)), &Model::default())[0].contains("TOTALS MISMATCH"));
    }

    #[test]
    fn count_of_a_program_is_printed_once_and_whole() {
        let values = |all: &[(&str, f64)]| -> BTreeMap<String, f64> {
            all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let progress = |unit: &str, total| ShownProgress {
            done: 162,
            total,
            unit: unit.into(),
            ..ShownProgress::default()
        };
        let loss = [("loss", 0.5)];
        for (counter, all, progress, text) in [
            (Some(("epoch", 162.0)), &loss[..], Some(progress("epoch", None)), "loss 0.5000  epoch 162"),
            (
                Some(("step", 162.0)),
                &loss,
                Some(progress("step", Some(1000))),
                "loss 0.5000  step 162 of 1,000",
            ),
            (
                Some(("epoch", 2.0)),
                &loss,
                Some(progress("it", Some(200))),
                "epoch 2  loss 0.5000  progress 162 of 200 it",
            ),
            (Some(("epoch", 2.5)), &loss, None, "epoch 2.50  loss 0.5000"),
            (Some(("step", 16_200.0)), &loss, None, "step 16,200  loss 0.5000"),
            (
                None,
                &[("epoch", 162.0), ("loss", 1.0)],
                Some(progress("epoch", None)),
                "loss 1.0000  progress epoch 162",
            ),
            (Some(("step", 9.0)), &[("epoch", 3.0), ("step", 9.0)], None, "step 9  epoch 3"),
        ] {
            assert_eq!(metrics(counter, &values(all), progress.as_ref()), text);
        }
    }

    fn frozen() -> VerdictReport {
        VerdictReport {
            rank: Some(Rank(2)),
            host: Some("b".into()),
            verdict: VerdictKind::Frozen,
            reason_code: Default::default(),
            card: Box::new(Card {
                facts: vec!["state T".into()],
                actions: vec![Advice { text: "resume it".into(), command: "kill -CONT 7".into() }],
                ..Card::default()
            }),
            severity: Severity::Red,
            confidence: Confidence::Certain,
            proof: None,
            reason: "the process is stopped".into(),
            latency_s: 1.2,
            first_s: 1.2,
        }
    }

    #[test]
    fn verdict_lines_name_rank_evidence_and_fix() {
        let verdict = frozen();
        assert_eq!(
            texts(&report(ReportBody::Verdict(verdict.clone())), &Model::default()),
            [
                "CRITICAL rank 2 on b: frozen (certain, after 1.2s): the process is stopped",
                "    fact        state T",
                "    do          resume it: kill -CONT 7"
            ]
        );
        let cleared = VerdictReport { severity: Severity::Cleared, reason: String::new(), ..verdict };
        assert_eq!(
            texts(&report(ReportBody::Verdict(cleared)), &Model::default()),
            ["cleared: rank 2 on b no longer frozen"]
        );
    }

    #[test]
    fn first_failure_already_in_verdicts_is_not_repeated() {
        let error = "rank 1 on b was killed by SIGKILL";
        let dead = |rank, reason: &str| VerdictReport {
            verdict: VerdictKind::Dead,
            rank: Some(Rank(rank)),
            reason: reason.into(),
            ..frozen()
        };
        let ends = |verdicts: Vec<VerdictReport>, together: Vec<Rank>| {
            let first = FirstFailure {
                rank: Rank(1),
                host: "b".into(),
                error: error.into(),
                time: 0.0,
                bound_s: 0.0,
                certain: together.is_empty(),
                last_lines: vec![],
                alike: vec![],
                followed: vec![Rank(0)],
                together,
                line: format!("first failure: {error}; rank 0 followed"),
            };
            let body = ReportBody::RunFinished {
                outcome: rankdeck_core::report::RunOutcome::Failed,
                exit_code: 1,
                clean: false,
                survivors: vec![],
                unverified: vec![],
                proved: true,
                reason: error.into(),
                stop_ms: 1,
                gpus_free: vec![],
                first_failure: Some(first),
                work: None,
                warnings: vec![],
                results: vec![],
            };
            texts(&report(body), &Model { verdicts, ..Model::default() }).len()
        };
        let both = || vec![dead(1, error), dead(0, "rank 0 on a exited with code 1")];
        assert_eq!(ends(both(), vec![]), 1, "only that the run has ended");
        for (verdicts, together) in
            [(vec![], vec![]), (vec![dead(1, error)], vec![]), (both(), vec![Rank(2)])]
        {
            assert_eq!(ends(verdicts, together), 2, "the first failure is not in the verdicts");
        }
    }

    #[test]
    fn failed_host_is_printed_to_stderr_with_hint() {
        let link =
            LinkState::Failed(HintedError { error: "connection refused".into(), hint: "is sshd up?".into() });
        let model = Model {
            hosts: vec![HostModel { name: "b".into(), link, ..Default::default() }],
            ..Model::default()
        };
        let body = ReportBody::Host {
            node_rank: NodeRank(0),
            host: "b".into(),
            state: "failed".into(),
            detail: String::new(),
        };
        assert_eq!(
            failed_host(&report(body), &model),
            [
                OutputLine::Err("error: host b: connection refused".into()),
                OutputLine::Err("hint: is sshd up?".into())
            ]
        );
    }

    #[test]
    fn json_line_is_one_object_with_common_keys() {
        let lines = json(&report(ReportBody::Log { rank: Rank(0), host: "a".into(), line: "x\ny".into() }));
        let [OutputLine::Gauge(line)] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for key in ["kind", "run", "generation", "time"] {
            assert!(value.get(key).is_some(), "{key}");
        }
    }
}
