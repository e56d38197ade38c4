//! A run as plain lines, or as JSON Lines. Data to stdout; errors and hints to stderr.

use super::clock::time_of_day;
use super::line_writer::LineWriter;
use super::stderr;
use rankdeck_core::model::Model;
use rankdeck_core::report::{
    FirstFailure, Report, ReportBody, RestartState, Severity, VerdictKind, VerdictReport,
};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::{bytes, clean, clean_output, count, duration, plain_json, plural, rate};

/// Least time between two progress lines of the plain form.
pub const PROGRESS_MS: u64 = 2000;

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Lines for people.
    Plain {
        /// The ranks' log lines too.
        logs: bool,
    },
    /// For programs: each report as one JSON object.
    Json,
}

/// How much is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Least time between two lines of progress, and between two of metrics, ms; `None`: the form's own.
    pub every_ms: Option<u64>,
    /// Only the start, verdicts, restarts and the end.
    pub quiet: bool,
}

impl Pace {
    /// As a form has it.
    pub const USUAL: Pace = Pace { every_ms: None, quiet: false };
}

/// Prints reports as lines or as JSON.
#[derive(Debug)]
pub struct Printer {
    form: Form,
    pace: Pace,
    metrics_at: Option<Timestamp>,
    logged_at: Option<Timestamp>,
    output: LineWriter,
    progress_at: Option<Timestamp>,
}

/// A line and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Must get through.
    Out(String),
    /// A newer one will replace it.
    Gauge(String),
    /// For people only.
    Err(String),
}

impl Printer {
    /// A printer to stdout.
    pub fn new(form: Form) -> std::io::Result<Printer> {
        Printer::paced(form, Pace::USUAL)
    }

    /// The same at a pace.
    pub fn paced(form: Form, pace: Pace) -> std::io::Result<Printer> {
        let output = LineWriter::new(std::io::stdout())?;
        Ok(Printer { form, pace, metrics_at: None, logged_at: None, output, progress_at: None })
    }

    /// Whether it is left out, by the pace that was asked for.
    fn is_left_out(&mut self, now: Timestamp, body: &ReportBody) -> bool {
        let told = match body {
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
                    | ReportBody::RunFinished { .. }
            );
        }
        let (Some(told), Some(every_ms)) = (told, self.pace.every_ms) else { return false };
        if told.is_some_and(|at| now.since(at) < every_ms) {
            return true;
        }
        *told = Some(now);
        false
    }

    /// The form.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Prints a report; `model` is the state after it.
    pub fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        if self.is_left_out(now, &report.body) {
            failed_host(report, model).into_iter().for_each(|line| self.put(line));
            return;
        }
        let lines = match self.form {
            Form::Json => json(report),
            Form::Plain { logs } => {
                match report.body {
                    ReportBody::Log { .. } if !logs => return,
                    ReportBody::Progress { .. } if self.pace.every_ms.is_none() => {
                        if self.progress_at.is_some_and(|at| now.since(at) < PROGRESS_MS) {
                            return;
                        }
                        self.progress_at = Some(now);
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

    /// Prints an answer to what was typed.
    pub fn say(&self, line: String) {
        self.output.line(line);
    }

    fn put(&mut self, line: Line) {
        match line {
            Line::Out(line) => self.output.line(line),
            Line::Gauge(line) => self.output.gauge(line),
            Line::Err(line) => stderr::line(&line),
        }
    }
}

fn json(report: &Report) -> Vec<Line> {
    match serde_json::to_string(report).map(|line| plain_json(&line)) {
        Ok(line) if matches!(report.body, ReportBody::Log { .. }) => vec![Line::Gauge(line)],
        Ok(line) => vec![Line::Out(line)],
        Err(error) => vec![Line::Err(format!("error: a report is no JSON: {error}"))],
    }
}

fn failed_host(report: &Report, model: &Model) -> Vec<Line> {
    let ReportBody::Host { node_rank, host, .. } = &report.body else { return Vec::new() };
    match model.hosts.get(node_rank.index()).map(|host| &host.link) {
        Some(LinkState::Failed(HintedError { error, hint })) => {
            let error =
                if error.contains(host.as_str()) { error.clone() } else { format!("host {host}: {error}") };
            let hint = (!hint.is_empty()).then(|| Line::Err(format!("hint: {hint}")));
            std::iter::once(Line::Err(format!("error: {error}"))).chain(hint).collect()
        }
        _ => Vec::new(),
    }
}

/// A report as lines for people.
pub fn plain(report: &Report, model: &Model) -> Vec<Line> {
    let at = time_of_day(report.time);
    let out = |text: String| vec![Line::Out(format!("{at}  {}", clean(text.trim_end())))];
    match &report.body {
        ReportBody::RunStarted { world_size, nnodes, backend, master, adopted, .. } => out(format!(
            "run {} generation {}: {}, {}, {backend}, master {master}{}",
            report.run,
            report.generation,
            plural(*nnodes as usize, "host"),
            plural(*world_size as usize, "rank"),
            if *adopted { " (found running)" } else { "" },
        )),
        ReportBody::Host { host, state, detail, .. } => out(format!("host {host}  {state}  {detail}")),
        ReportBody::Rank { rank, host, state, pid, exit_code, signal, detail } => {
            // Of an end, the detail is the phrase for it and says more than the state.
            let ended = exit_code.is_some() || signal.is_some();
            let (what, more) = if ended { (detail, "") } else { (state, detail.as_str()) };
            let facts = [pid.map(|pid| format!("pid {pid}")), (!more.is_empty()).then(|| more.to_owned())];
            out(format!("rank {rank} on {host}  {what}  {}", join(&facts)))
        }
        ReportBody::Progress { .. } => {
            vec![Line::Gauge(format!("{at}  {}", progress(&report.body).unwrap_or_default()))]
        }
        ReportBody::Notice { host, text, .. } => out(format!("notice of {host}: {text}")),
        ReportBody::Eval { env_step, episodes, return_mean, return_std, stop, .. } => out(format!(
            "eval {}at step {}: return {return_mean:.2} ± {return_std:.2} over {}{}",
            if model.evals.is_empty() { String::new() } else { format!("{} ", model.evals.len()) },
            count(*env_step),
            plural(*episodes as usize, "episode"),
            if *stop { ", stop value reached" } else { "" },
        )),
        ReportBody::Checkpoint { path, env_step, reason, .. } => {
            out(format!("checkpoint ({reason}) at step {}: {path}", count(*env_step)))
        }
        ReportBody::Verdict(verdict) => {
            let lead = |i: usize| if i == 0 { at.as_str() } else { "        " };
            let lines = verdict_lines(verdict).into_iter().enumerate();
            lines.map(|(i, text)| Line::Out(format!("{}  {}", lead(i), clean(&text)))).collect()
        }
        ReportBody::Metrics { rank, source, env_step, values, .. } => {
            let step = env_step.map_or(String::new(), |step| format!("step {}  ", count(step)));
            let values: Vec<String> =
                values.iter().take(8).map(|(name, value)| format!("{name} {value:.4}")).collect();
            let text = format!("{step}{}  (rank {rank}'s own from {source}, not reduced)", values.join("  "));
            vec![Line::Gauge(format!("{at}  {}", clean(&text)))]
        }
        ReportBody::Histogram { name, env_step, count: values, mean, min, max, .. } => {
            let text = format!(
                "step {}  histogram {name}: {} from {min:.4} to {max:.4}, mean {mean:.4}",
                count(*env_step),
                plural(values.round() as usize, "value"),
            );
            vec![Line::Gauge(format!("{at}  {}", clean(&text)))]
        }
        ReportBody::Image { name, env_step, width, height, bytes: size, .. } => {
            let text = format!(
                "step {}  picture {name}: {width} x {height} pixels, {}",
                count(*env_step),
                bytes(*size)
            );
            vec![Line::Gauge(format!("{at}  {}", clean(&text)))]
        }
        ReportBody::Log { rank, host, line } => {
            vec![Line::Gauge(format!("{host}:{rank}| {}", clean_output(line)))]
        }
        ReportBody::Restart { .. } => out(restart(&report.body).unwrap_or_default()),
        ReportBody::RunFinished { .. } => {
            finished(&report.body, model).unwrap_or_default().into_iter().flat_map(out).collect()
        }
    }
}

/// A report about a restart as one line without time.
fn restart(body: &ReportBody) -> Option<String> {
    let ReportBody::Restart {
        state,
        next_generation: next,
        reason,
        in_s,
        restarts,
        max_restarts,
        from,
        world_size,
        hosts,
        ..
    } = body
    else {
        return None;
    };
    let from = from.as_deref().unwrap_or("the beginning");
    let (ranks, hosts_count) = (plural(*world_size as usize, "rank"), plural(hosts.len(), "host"));
    let shape = format!("{ranks} on {hosts_count} ({})", hosts.join(", "));
    Some(match state {
        RestartState::Planned => format!("restart: generation {next} from {from}, {shape}: {reason}"),
        RestartState::Waiting => format!(
            "restart {restarts} of {max_restarts} in {}: generation {next} from {from}, {shape}: {reason}",
            duration(*in_s)
        ),
        RestartState::Refused => format!("no restart: {reason}"),
        RestartState::GivenUp => reason.clone(),
    })
}

/// The end of a run as lines without time. What a verdict has said is not said again.
fn finished(body: &ReportBody, model: &Model) -> Option<Vec<String>> {
    let ReportBody::RunFinished { reason, outcome, first_failure, .. } = body else { return None };
    let is_new = |text: &str| !model.verdicts.iter().any(|verdict| verdict.reason == text);
    let fell =
        |rank: &Rank| model.verdicts.iter().any(|v| v.verdict == VerdictKind::Dead && v.rank == Some(*rank));
    let is_told = |first: &&FirstFailure| {
        !is_new(&first.error) && first.certain && first.followed.iter().chain(&first.alike).all(fell)
    };
    let first = first_failure.as_ref().filter(|first| !is_told(first)).map(|first| first.line.as_str());
    let first = first.filter(|line| line != reason && is_new(line));
    let mut end = format!("run finished: {}", format!("{outcome:?}").to_lowercase());
    if is_new(reason) {
        end.push_str(&format!(": {reason}"));
    }
    Some(first.into_iter().map(str::to_owned).chain([end]).collect())
}

/// A progress report as one line without time.
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
        Some(format!("{} steps/s", rate(*steps_per_s))),
        eta_s.map(|eta| format!("eta {}", duration(eta))),
        Some(format!("episodes {}", count(*episodes))),
        return_mean.map(|mean| format!("return {mean:.1}")),
        return_last_100.map(|mean| format!("last 100 {mean:.1}")),
        Some(plural(per_rank.len(), "rank")),
        (!consistent).then(|| "TOTALS DIFFER FROM THE RANKS' SUM".to_owned()),
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
        return vec![format!("cleared: {who} is no longer {name}  {}", verdict.reason).trim_end().to_owned()];
    }
    let severity = if verdict.severity == Severity::Red { "RED" } else { "AMBER" };
    let confidence = format!("{:?}", verdict.confidence).to_lowercase();
    let reason = verdict.reason.strip_prefix(&format!("{who} ")).unwrap_or(&verdict.reason);
    let latency = duration(verdict.latency_s);
    let head = format!("{severity} {who}: {name} ({confidence}, after {latency}): {reason}");
    let lines = verdict.card.text().into_iter().map(|line| format!("    {line}"));
    std::iter::once(head).chain(lines).collect()
}

fn join(parts: &[Option<String>]) -> String {
    parts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests;
