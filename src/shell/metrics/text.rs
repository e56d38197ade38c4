//! The model as text for Prometheus: names with units, totals and ranks. Pure.

use rankdeck_core::model::{HostModel, Model, RankLife, RankModel, Remains, RunState};
use rankdeck_core::report::Outcome;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::link_state::LinkState;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// What a family counts.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

/// How it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// The older text format, which a textfile collector reads: a family is called as its samples are, and
    /// there is no kind `info`.
    Prometheus,
}

struct Writer {
    out: String,
    run: String,
    form: Form,
}

impl Writer {
    /// A family with its samples; none is written without a sample that is a number.
    fn family(&mut self, name: &str, kind: Kind, help: &str, samples: Vec<(Labels, f64)>) {
        let samples: Vec<_> = samples.into_iter().filter(|(_, value)| value.is_finite()).collect();
        if samples.is_empty() {
            return;
        }
        let (word, suffix) = match kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
            Kind::Info => ("info", "_info"),
        };
        let (word, family) = match self.form {
            Form::OpenMetrics => (word, name.to_owned()),
            Form::Prometheus => (if kind == Kind::Info { "gauge" } else { word }, format!("{name}{suffix}")),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "# TYPE rankdeck_{family} {word}");
        let _ = writeln!(self.out, "# HELP rankdeck_{family} {help}");
        for (labels, value) in samples {
            let _ = write!(self.out, "rankdeck_{name}{suffix}{{run=\"{}\"", escaped(&self.run));
            for (label, text) in labels {
                let _ = write!(self.out, ",{label}=\"{}\"", escaped(&text));
            }
            let _ = writeln!(self.out, "}} {value}");
        }
    }

    fn one(&mut self, name: &str, kind: Kind, help: &str, value: Option<f64>) {
        self.family(name, kind, help, value.map(|value| (Vec::new(), value)).into_iter().collect());
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All that is known of the run at `now`.
pub fn text(model: &Model, now: Timestamp, form: Form) -> String {
    let run = model.run.id.as_ref().map(|run| run.0.clone()).unwrap_or_default();
    let mut to = Writer { out: String::new(), run, form };
    totals(&mut to, model, now);
    ranks(&mut to, model, now);
    hosts(&mut to, model, now);
    if form == Form::OpenMetrics {
        to.out.push_str("# EOF\n");
    }
    to.out
}

fn totals(to: &mut Writer, model: &Model, now: Timestamp) {
    use Kind::{Counter, Gauge, Info};
    let run = &model.run;
    let backend = model.plan.as_ref().map(|plan| plan.backend.clone()).unwrap_or_default();
    let labels = vec![("generation", run.generation.to_string()), ("backend", backend)];
    to.family("run", Info, "The run and its present generation.", vec![(labels, 1.0)]);
    let states = [
        ("connecting", RunState::Connecting),
        ("launching", RunState::Launching),
        ("running", RunState::Running),
        ("draining", RunState::Draining),
        ("restarting", RunState::Restarting),
        ("over", RunState::Over),
    ];
    let states =
        states.map(|(name, state)| (vec![("state", name.to_owned())], f64::from(run.state == state)));
    to.family("run_state", Gauge, "1 for the state that the run is in.", states.into());
    let ends = [Outcome::Succeeded, Outcome::Failed, Outcome::Stuck, Outcome::Stopped].map(|outcome| {
        (vec![("outcome", outcome.name().to_owned())], f64::from(run.outcome == Some(outcome)))
    });
    to.family("run_outcome", Gauge, "1 for how the run ended; all 0 while it goes on.", ends.into());
    to.one("world_size", Gauge, "Ranks of the present generation.", Some(model.ranks.len() as f64));
    to.one("restarts", Counter, "Restarts by policy.", Some(f64::from(run.restarts)));
    let progress = model.progress.as_ref();
    let counters = progress.map(|progress| &progress.totals);
    let total = |pick: fn(&rankdeck_proto::message::Counters) -> u64| counters.map(|all| pick(all) as f64);
    to.one("env_steps", Counter, "Environment steps over all ranks.", total(|all| all.env_step));
    to.one("train_iterations", Counter, "Training iterations.", total(|all| all.train_iter));
    to.one("episodes", Counter, "Finished episodes over all ranks.", total(|all| all.episodes));
    to.one("gradient_updates", Counter, "Gradient updates.", total(|all| all.updates));
    let goal = run.total_steps.map(|goal| goal as f64);
    to.one("env_steps_goal", Gauge, "Environment steps that the run is to reach.", goal);
    // What stands still is not told as if it went on.
    let moving = progress.filter(|progress| progress.since(now) < STALE_MS && run.state == RunState::Running);
    let speed = progress.map(|_| moving.map_or(0.0, |progress| progress.steps_per_s));
    to.one("env_steps_per_second", Gauge, "Steps per second of wall time; 0 when nothing moves.", speed);
    let eta = moving.and_then(|progress| progress.eta_s);
    to.one("eta_seconds", Gauge, "Seconds to the goal at this speed.", eta);
    let age = progress.map(|progress| progress.since(now) as f64 / 1000.0);
    to.one("progress_age_seconds", Gauge, "Seconds since ranks last told their totals.", age);
    let mean = counters.and_then(|all| all.return_last_100).or(progress.and_then(|all| all.return_mean));
    to.one("episode_return", Gauge, "Mean return of the last training episodes.", mean);
    to.one(
        "eval_return",
        Gauge,
        "Mean return of the last evaluation.",
        model.evals.back().map(|eval| eval.return_mean),
    );
    let best = model
        .evals
        .iter()
        .map(|eval| eval.return_mean)
        .fold(None, |best: Option<f64>, mean| Some(best.map_or(mean, |best| best.max(mean))));
    to.one("eval_return_best", Gauge, "Highest mean return of the evaluations that are kept.", best);
    to.one("checkpoints", Gauge, "Checkpoints that are known.", Some(model.checkpoints.len() as f64));
    let verdicts = model.verdicts.iter().map(|verdict| {
        let rank = verdict.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let severity = format!("{:?}", verdict.severity).to_lowercase();
        (vec![("verdict", verdict.verdict.name().to_owned()), ("severity", severity), ("rank", rank)], 1.0)
    });
    to.family("verdict", Gauge, "1 for each verdict of the watch that stands.", verdicts.collect());
    let lost = model.drops.lost() as f64;
    to.one("lost_messages", Counter, "Messages that nobody can read any more.", Some(lost));
    let scalars = model
        .scalars
        .iter()
        .filter_map(|(name, series)| Some((vec![("name", name.clone())], series.last()?)));
    to.family("scalar", Gauge, "Latest value of each series of the run.", scalars.collect());
}

/// Progress and samples that are older are of the past.
const STALE_MS: u64 = 10_000;

fn ranks(to: &mut Writer, model: &Model, now: Timestamp) {
    use Kind::{Counter, Gauge};
    let labels = |rank: &RankModel| vec![("rank", rank.rank.to_string()), ("host", rank.host.clone())];
    let each = |pick: &dyn Fn(&RankModel) -> Option<f64>| -> Vec<(Labels, f64)> {
        model.ranks.iter().filter_map(|rank| Some((labels(rank), pick(rank)?))).collect()
    };
    let fresh = |rank: &RankModel| rank.sampled.is_some_and(|at| now.since(at) < STALE_MS);
    let gauge = |pick: fn(&rankdeck_proto::message::RankSample) -> Option<f64>| {
        each(&|rank: &RankModel| rank.sample.as_ref().filter(|_| fresh(rank)).and_then(pick))
    };
    let up = each(&|rank| match model.remains(rank) {
        Some(Remains::LeftOver) => Some(1.0),
        // Nobody knows.
        Some(Remains::Unproved) => None,
        Some(Remains::Gone) => Some(0.0),
        None => Some(f64::from(matches!(rank.life, RankLife::Spawned | RankLife::Joined))),
    });
    to.family("rank_up", Gauge, "1 while the rank's process is there.", up);
    let steps = each(&|rank| rank.own.map(|own| own.env_step as f64));
    to.family("rank_env_steps", Counter, "The rank's own environment steps.", steps);
    let speed = each(&|rank| Some(if fresh(rank) { rank.steps_per_s } else { 0.0 }));
    to.family("rank_env_steps_per_second", Gauge, "The rank's own steps per second.", speed);
    let cpu = gauge(|sample| Some(f64::from(sample.cpu_percent) / 100.0));
    to.family("rank_cpu_ratio", Gauge, "Cores that the rank's process uses.", cpu);
    let memory = gauge(|sample| Some(sample.rss as f64));
    to.family("rank_resident_memory_bytes", Gauge, "Memory of the rank's process.", memory);
    let memory = gauge(|sample| sample.gpu_memory.map(|bytes| bytes as f64));
    to.family("rank_gpu_memory_bytes", Gauge, "Memory of the rank on its GPU.", memory);
    let calls = gauge(|sample| sample.page.as_ref().map(|page| page.collective.entered as f64));
    to.family(
        "rank_collective_sequence",
        Gauge,
        "Number of the collective that the rank entered last.",
        calls,
    );
    let lines = each(&|rank| Some(rank.log.next as f64));
    to.family("rank_log_lines", Gauge, "Lines of the rank's log in this generation.", lines);
}

fn hosts(to: &mut Writer, model: &Model, now: Timestamp) {
    use Kind::Gauge;
    let fresh = |host: &HostModel| host.heard.is_some_and(|at| now.since(at) < STALE_MS);
    let each = |pick: &dyn Fn(&HostModel) -> Option<f64>| -> Vec<(Labels, f64)> {
        let one = |host: &HostModel| Some((vec![("host", host.name.clone())], pick(host)?));
        model.hosts.iter().filter_map(one).collect()
    };
    let up = each(&|host| Some(f64::from(matches!(host.link, LinkState::Ready { .. }) && fresh(host))));
    to.family("host_up", Gauge, "1 while the host's agent is heard.", up);
    let age = each(&|host| host.heard.map(|at| now.since(at) as f64 / 1000.0));
    to.family("host_heard_age_seconds", Gauge, "Seconds since anything came from the host.", age);
    let gauge = |pick: fn(&rankdeck_proto::message::HostSample) -> f64| {
        each(&|host: &HostModel| host.sample.as_ref().filter(|_| fresh(host)).map(pick))
    };
    to.family(
        "host_cpu_ratio",
        Gauge,
        "Part of all cores in use.",
        gauge(|all| f64::from(all.cpu_percent) / 100.0),
    );
    to.family("host_memory_used_bytes", Gauge, "Memory in use.", gauge(|all| all.memory_used as f64));
    to.family("host_memory_bytes", Gauge, "Memory of the host.", gauge(|all| all.memory_total as f64));
    to.family("host_load1", Gauge, "Load over a minute.", gauge(|all| f64::from(all.load1)));
    let mut gpus: BTreeMap<(&str, &str), Vec<(Labels, f64)>> = BTreeMap::new();
    for host in model.hosts.iter().filter(|host| fresh(host)) {
        for gpu in host.sample.iter().flat_map(|sample| &sample.gpus) {
            let values = [
                (
                    "gpu_utilization_ratio",
                    "Part of the time that the GPU works.",
                    gpu.utilization.map(|percent| f64::from(percent) / 100.0),
                ),
                ("gpu_memory_used_bytes", "Memory of the GPU in use.", Some(gpu.memory_used as f64)),
                ("gpu_memory_bytes", "Memory of the GPU.", Some(gpu.memory_total as f64)),
                ("gpu_power_watts", "Power of the GPU.", gpu.power_w.map(f64::from)),
                ("gpu_temperature_celsius", "Temperature of the GPU.", gpu.temperature_c.map(f64::from)),
                ("gpu_sm_clock_hertz", "Clock of the GPU.", gpu.sm_clock_mhz.map(|mhz| f64::from(mhz) * 1e6)),
            ];
            for (name, help, value) in values {
                let labels = vec![("host", host.name.clone()), ("gpu", gpu.index.to_string())];
                gpus.entry((name, help)).or_default().extend(value.map(|value| (labels, value)));
            }
        }
    }
    for ((name, help), samples) in gpus {
        to.family(name, Gauge, help, samples);
    }
}
