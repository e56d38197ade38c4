//! Prometheus metrics of the run: `GET /metrics` in OpenMetrics text for `--metrics ADDRESS:PORT`, or a file
//! for the textfile collector of node_exporter.
//!
//! Owner: tasks of the console's loop; the loop formats the text, the tasks serve HTTP and write the file.
//! Invariants:
//! - METRICS-1: at most [`CONNECTIONS`] connections at a time, each for at most [`WITHIN`] and with
//!   [`REQUEST_BYTES`] of request; more wait in the system's queue.
//! - Only this machine is served unless the address allows more.
//! - METRICS-2: a request is answered only under a name of this machine (`Host`), so that no web page reads the
//!   metrics through a name of its own (DNS rebinding).

use super::replace_file::{check_replaceable, replace_file};
use super::stderr;
use rankdeck_core::model::{HostModel, LeftoverState, Model, RankLife, RankModel, RunState};
use rankdeck_core::report::RunOutcome;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::link_state::LinkState;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Most connections at a time.
const CONNECTIONS: usize = 8;
/// Longest time for a connection.
const WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a request.
const REQUEST_BYTES: usize = 8 << 10;
/// The exporter may run as another user: the usual mode of a new file.
const TEXTFILE_MODE: u32 = 0o666;
/// Older progress and samples are stale.
const STALE_MS: u64 = 10_000;
/// Content type of the reply.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A request for metrics: the format, and where to send the text.
#[derive(Debug)]
pub(crate) struct MetricsRequest {
    pub(crate) form: MetricsFormat,
    /// For the text.
    pub(crate) answer: oneshot::Sender<String>,
}

/// A file that is replaced atomically at an interval.
#[derive(Debug, Clone)]
pub(crate) struct Textfile {
    /// The file; node_exporter reads names that end in `.prom`.
    pub(crate) path: PathBuf,
    /// The interval.
    pub(crate) every: Duration,
}

impl Textfile {
    /// Replaces the file.
    ///
    /// # Errors
    /// The directory is gone, full or not writable.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        replace_file(&self.path, text.as_bytes(), TEXTFILE_MODE)
    }
}

/// Sources of requests: an open endpoint, a file, or both.
pub(crate) struct Endpoint {
    address: Option<SocketAddr>,
    request: mpsc::Receiver<MetricsRequest>,
    tasks: Vec<JoinHandle<()>>,
    /// Keeps the receiver open.
    _asks: mpsc::Sender<MetricsRequest>,
}

/// Parses `9464`, `:9464`, `127.0.0.1:9464`, `[::]:9464`.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| "expected PORT, or ADDRESS:PORT such as 127.0.0.1:9464".to_owned())
}

impl Endpoint {
    /// Opens the endpoint.
    ///
    /// # Errors
    /// The port is in use, the address is not local, or the file cannot be written.
    pub(crate) async fn open(listen: Option<SocketAddr>, file: Option<Textfile>) -> io::Result<Endpoint> {
        let (asks, request) = mpsc::channel(CONNECTIONS);
        let (mut address, mut tasks) = (None, Vec::new());
        if let Some(listen) = listen {
            let listener = TcpListener::bind(listen).await?;
            address = Some(listener.local_addr()?);
            tasks.push(tokio::spawn(serve(listener, asks.clone())));
        }
        if let Some(file) = file {
            // A file that cannot be written is reported at once; an existing file stays.
            check_replaceable(&file.path, TEXTFILE_MODE)?;
            tasks.push(tokio::spawn(keep(file, asks.clone())));
        }
        Ok(Endpoint { address, request, tasks, _asks: asks })
    }

    /// The address of the endpoint.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Waits for a request. Cancel-safe; never ends.
    pub(crate) async fn next_request(&mut self) -> MetricsRequest {
        match self.request.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Writes the file at its interval; warns once about a failure and keeps the old file.
async fn keep(file: Textfile, asks: mpsc::Sender<MetricsRequest>) {
    let mut warned = false;
    loop {
        let (answer, text) = oneshot::channel();
        if asks.send(MetricsRequest { form: MetricsFormat::Prometheus, answer }).await.is_err() {
            return;
        }
        let Ok(text) = text.await else { return };
        // A slow disk delays no link.
        let to = file.clone();
        let written = tokio::task::spawn_blocking(move || to.write(&text)).await;
        if let Ok(Err(error)) = written
            && !std::mem::replace(&mut warned, true)
        {
            stderr::line(&format!("warning: {}: {error}; its values are outdated", file.path.display()));
        }
        tokio::time::sleep(file.every).await;
    }
}

async fn serve(listener: TcpListener, asks: mpsc::Sender<MetricsRequest>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut open = tokio::task::JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No free descriptor: a later connection may get one.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let asks = asks.clone();
        open.spawn(async move {
            let _ = tokio::time::timeout(WITHIN, answer(stream, asks)).await;
            drop(permit);
        });
    }
}

async fn answer(mut stream: TcpStream, asks: mpsc::Sender<MetricsRequest>) -> io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..read]);
        if read == 0 || request.len() > REQUEST_BYTES {
            return reply(&mut stream, "400 Bad Request", "text/plain", "unsupported request\n").await;
        }
    }
    let line = String::from_utf8_lossy(&request);
    if !hosts_of(&line).all(|host| is_own(host, stream.local_addr().ok(), &machine())) {
        let refused = "not a name of this machine; use its IP address, its host name or localhost\n";
        return reply(&mut stream, "403 Forbidden", "text/plain", refused).await;
    }
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => {
            let (answer, text) = oneshot::channel();
            let _ = asks.send(MetricsRequest { form: MetricsFormat::OpenMetrics, answer }).await;
            match text.await {
                Ok(text) => reply(&mut stream, "200 OK", CONTENT_TYPE, &text).await,
                Err(_) => {
                    reply(
                        &mut stream,
                        "503 Service Unavailable",
                        "text/plain",
                        "the console is shutting down\n",
                    )
                    .await
                }
            }
        }
        ("GET", _) => reply(&mut stream, "404 Not Found", "text/plain", "not found; use /metrics\n").await,
        _ => {
            reply(&mut stream, "405 Method Not Allowed", "text/plain", "method not allowed; use GET\n").await
        }
    }
}

/// Returns the values of `Host` in a request. Browsers always send one; a client without it is not a browser.
fn hosts_of(request: &str) -> impl Iterator<Item = &str> {
    let head = request.split("\r\n\r\n").next().unwrap_or_default();
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host")).map(|(_, value)| value.trim())
}

/// Returns whether a `Host` is loopback, the address of the connection, or the machine's name (METRICS-2).
fn is_own(host: &str, listens: Option<SocketAddr>, machine: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || listens.is_some_and(|at| at.ip().to_canonical() == address);
    }
    let name = name.trim_end_matches('.');
    let short = machine.split('.').next().unwrap_or_default();
    let is = |own: &str| !own.is_empty() && name.eq_ignore_ascii_case(own);
    is("localhost") || is(machine) || is(short)
}

/// Returns the name of this machine; empty if unknown.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

async fn reply(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// The type of a metric family.
#[derive(Clone, Copy, PartialEq)]
enum MetricType {
    Gauge,
    Counter,
    Info,
}

/// The exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0, which Prometheus requests.
    OpenMetrics,
    /// The older text format, for textfile collectors: the family has the name of its samples, and there is
    /// no type `info`.
    Prometheus,
}

struct OpenMetricsWriter {
    out: String,
    run: String,
    form: MetricsFormat,
}

impl OpenMetricsWriter {
    /// Writes a family with its samples; skipped without a finite sample.
    fn family(&mut self, name: &str, kind: MetricType, help: &str, samples: Vec<(Labels, f64)>) {
        let samples: Vec<_> = samples.into_iter().filter(|(_, value)| value.is_finite()).collect();
        if samples.is_empty() {
            return;
        }
        let (word, suffix) = match kind {
            MetricType::Gauge => ("gauge", ""),
            MetricType::Counter => ("counter", "_total"),
            MetricType::Info => ("info", "_info"),
        };
        let (word, family) = match self.form {
            MetricsFormat::OpenMetrics => (word, name.to_owned()),
            MetricsFormat::Prometheus => {
                (if kind == MetricType::Info { "gauge" } else { word }, format!("{name}{suffix}"))
            }
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

    fn one(&mut self, name: &str, kind: MetricType, help: &str, value: Option<f64>) {
        self.family(name, kind, help, value.map(|value| (Vec::new(), value)).into_iter().collect());
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Formats the state of the run at `now`.
pub fn text(model: &Model, now: Timestamp, form: MetricsFormat) -> String {
    let run = model.run.id.as_ref().map(|run| run.0.clone()).unwrap_or_default();
    let mut to = OpenMetricsWriter { out: String::new(), run, form };
    totals(&mut to, model, now);
    ranks(&mut to, model, now);
    hosts(&mut to, model, now);
    if form == MetricsFormat::OpenMetrics {
        to.out.push_str("# EOF\n");
    }
    to.out
}

fn totals(to: &mut OpenMetricsWriter, model: &Model, now: Timestamp) {
    use MetricType::{Counter, Gauge, Info};
    let run = &model.run;
    let backend = model.plan.as_ref().map(|plan| plan.backend().to_string()).unwrap_or_default();
    let labels = vec![("generation", run.generation.to_string()), ("backend", backend)];
    to.family("run", Info, "Run and current generation.", vec![(labels, 1.0)]);
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
    to.family("run_state", Gauge, "Current run state (1 = active).", states.into());
    let ends =
        [RunOutcome::Succeeded, RunOutcome::Failed, RunOutcome::Stuck, RunOutcome::Stopped].map(|outcome| {
            (vec![("outcome", outcome.name().to_owned())], f64::from(run.outcome == Some(outcome)))
        });
    to.family(
        "run_outcome",
        Gauge,
        "Outcome of the run (1 = this outcome; all 0 while it runs).",
        ends.into(),
    );
    to.one("world_size", Gauge, "Ranks of the current generation.", Some(model.ranks.len() as f64));
    to.one("restarts", Counter, "Restarts by policy.", Some(f64::from(run.restarts)));
    let progress = model.progress.as_ref();
    let counters = progress.map(|progress| &progress.totals);
    let total = |pick: fn(&rankdeck_proto::message::Counters) -> u64| counters.map(|all| pick(all) as f64);
    to.one("env_steps", Counter, "Environment steps over all ranks.", total(|all| all.env_step));
    to.one("train_iterations", Counter, "Training iterations.", total(|all| all.train_iter));
    to.one("episodes", Counter, "Finished episodes over all ranks.", total(|all| all.episodes));
    to.one("gradient_updates", Counter, "Gradient updates.", total(|all| all.updates));
    let goal = run.total_steps.map(|goal| goal as f64);
    to.one("env_steps_goal", Gauge, "Target environment steps.", goal);
    // A stalled rate is not reported as current.
    let moving = progress.filter(|progress| progress.since(now) < STALE_MS && run.state == RunState::Running);
    let stalled = progress.filter(|_| moving.is_none()).map(|_| 0.0);
    let speed = stalled.or(moving.and_then(|progress| progress.steps_per_s));
    to.one("env_steps_per_second", Gauge, "Steps per second of wall time (0 when stalled).", speed);
    let eta = moving.and_then(|progress| progress.eta_s);
    to.one("eta_seconds", Gauge, "Estimated seconds to the target.", eta);
    let age = progress.map(|progress| progress.since(now) as f64 / 1000.0);
    to.one("progress_age_seconds", Gauge, "Seconds since the last reported totals.", age);
    let mean = counters.and_then(|all| all.return_last_100).or(progress.and_then(|all| all.return_mean));
    let mean = mean.or(model.own.as_ref().and_then(|own| own.return_mean));
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
    to.one("eval_return_best", Gauge, "Highest mean return of the retained evaluations.", best);
    to.one("checkpoints", Gauge, "Known checkpoints.", Some(model.checkpoints.len() as f64));
    let verdicts = model.verdicts.iter().map(|verdict| {
        let rank = verdict.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let severity = format!("{:?}", verdict.severity).to_lowercase();
        (vec![("verdict", verdict.verdict.name().to_owned()), ("severity", severity), ("rank", rank)], 1.0)
    });
    to.family("verdict", Gauge, "Active verdicts (1 = active).", verdicts.collect());
    let lost = model.drops.lost() as f64;
    to.one("lost_messages", Counter, "Messages lost.", Some(lost));
    let scalars = model
        .scalars
        .iter()
        .filter_map(|(name, series)| Some((vec![("name", name.clone())], series.last()?)));
    to.family("scalar", Gauge, "Latest value of each series of the run.", scalars.collect());
}

fn ranks(to: &mut OpenMetricsWriter, model: &Model, now: Timestamp) {
    use MetricType::{Counter, Gauge};
    let labels = |rank: &RankModel| vec![("rank", rank.rank.to_string()), ("host", rank.host.clone())];
    let each = |pick: &dyn Fn(&RankModel) -> Option<f64>| -> Vec<(Labels, f64)> {
        model.ranks.iter().filter_map(|rank| Some((labels(rank), pick(rank)?))).collect()
    };
    let fresh = |rank: &RankModel| rank.sampled.is_some_and(|at| now.since(at) < STALE_MS);
    let gauge = |pick: fn(&rankdeck_proto::message::RankSample) -> Option<f64>| {
        each(&|rank: &RankModel| rank.sample.as_ref().filter(|_| fresh(rank)).and_then(pick))
    };
    let up = each(&|rank| match model.remains(rank) {
        Some(LeftoverState::LeftOver) => Some(1.0),
        // Unknown.
        Some(LeftoverState::Unproved) => None,
        Some(LeftoverState::Gone) => Some(0.0),
        None => Some(f64::from(matches!(rank.life, RankLife::Spawned | RankLife::Joined))),
    });
    to.family("rank_up", Gauge, "Whether the rank's process is running.", up);
    let steps = each(&|rank| rank.own.map(|own| own.env_step as f64));
    to.family("rank_env_steps", Counter, "Environment steps of the rank.", steps);
    let speed = each(&|rank| if fresh(rank) { rank.steps_per_s } else { Some(0.0) });
    to.family("rank_env_steps_per_second", Gauge, "Steps per second of the rank.", speed);
    let cpu = gauge(|sample| Some(f64::from(sample.cpu_percent) / 100.0));
    to.family("rank_cpu_ratio", Gauge, "CPU cores used by the rank's process.", cpu);
    let memory = gauge(|sample| Some(sample.rss as f64));
    to.family("rank_resident_memory_bytes", Gauge, "Memory of the rank's process.", memory);
    let memory = gauge(|sample| sample.gpu_memory.map(|bytes| bytes as f64));
    to.family("rank_gpu_memory_bytes", Gauge, "Memory of the rank on its GPU.", memory);
    let calls = gauge(|sample| sample.page.as_ref().map(|page| page.collective.entered as f64));
    to.family("rank_collective_sequence", Gauge, "Sequence number of the rank's last collective.", calls);
    let lines = each(&|rank| Some(rank.log.next as f64));
    to.family("rank_log_lines", Gauge, "Lines of the rank's log in this generation.", lines);
}

fn hosts(to: &mut OpenMetricsWriter, model: &Model, now: Timestamp) {
    use MetricType::Gauge;
    let fresh = |host: &HostModel| host.last_message_at.is_some_and(|at| now.since(at) < STALE_MS);
    let each = |pick: &dyn Fn(&HostModel) -> Option<f64>| -> Vec<(Labels, f64)> {
        let one = |host: &HostModel| Some((vec![("host", host.name.clone())], pick(host)?));
        model.hosts.iter().filter_map(one).collect()
    };
    let up = each(&|host| Some(f64::from(matches!(host.link, LinkState::Ready { .. }) && fresh(host))));
    to.family("host_up", Gauge, "Whether the host's agent is reachable.", up);
    let age = each(&|host| host.last_message_at.map(|at| now.since(at) as f64 / 1000.0));
    to.family("host_heard_age_seconds", Gauge, "Seconds since the last message from the host.", age);
    let gauge = |pick: fn(&rankdeck_proto::message::HostSample) -> f64| {
        each(&|host: &HostModel| host.sample.as_ref().filter(|_| fresh(host)).map(pick))
    };
    to.family(
        "host_cpu_ratio",
        Gauge,
        "Share of all cores in use.",
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
                    "GPU utilization.",
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn only_metrics_are_served() {
        let mut endpoint = Endpoint::open(Some(parse("0").unwrap()), None).await.unwrap();
        let address = endpoint.address().unwrap();
        assert!(address.ip().is_loopback());
        let loop_of_console = tokio::spawn(async move {
            loop {
                let _ = endpoint.next_request().await.answer.send("x 1\n# EOF\n".into());
            }
        });
        let text = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nx 1\n# EOF\n"), "{text}");
        assert!(text.contains("openmetrics-text; version=1.0.0"));
        let refused = ask(address, "GET /metrics HTTP/1.1\r\nhost: evil.example:9464\r\n\r\n").await;
        assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        loop_of_console.abort();
    }

    #[test]
    fn metrics_2_only_names_of_this_machine_are_accepted() {
        let at: SocketAddr = "10.0.0.1:9464".parse().unwrap();
        let own = |host: &str| is_own(host, Some(at), "gpu-a.lab");
        for host in ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "127.0.1.1", "[::1]:9464", "10.0.0.1:1"]
        {
            assert!(own(host), "{host}");
        }
        for host in ["gpu-a.lab:9464", "GPU-A", "gpu-a.lab.", "[::ffff:10.0.0.1]:9464"] {
            assert!(own(host), "{host}");
        }
        for host in
            ["", ":9464", "evil.example", "gpu-a.evil.example", "localhost.evil.example", "10.0.0.2", "[::2]"]
        {
            assert!(!own(host), "{host}");
        }
        assert!(!is_own("", None, "") && is_own("localhost", None, ""));
        let request = "GET /metrics HTTP/1.1\r\nA: b\r\nHOST: one \r\nhost:two:1\r\n\r\nHost: body";
        assert_eq!(hosts_of(request).collect::<Vec<_>>(), ["one", "two:1"]);
    }

    #[tokio::test]
    async fn metrics_1_silent_connections_are_limited() {
        let mut endpoint = Endpoint::open(Some(parse("127.0.0.1:0").unwrap()), None).await.unwrap();
        let address = endpoint.address().unwrap();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = tokio::spawn(async move {
            let _ = endpoint.next_request().await.answer.send("# EOF\n".into());
            endpoint
        });
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").await.ends_with("# EOF\n"));
        drop(asked.await.unwrap());
        assert!(TcpStream::connect(address).await.is_err() || silent.len() == CONNECTIONS - 1);
    }

    #[tokio::test]
    async fn textfile_is_replaced_and_missing_directory_fails() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Textfile { path: folder.path().join(name), every: Duration::from_millis(1) };
        assert!(Endpoint::open(None, Some(file("nowhere/run.prom"))).await.is_err());
        let mut endpoint = Endpoint::open(None, Some(file("run.prom"))).await.unwrap();
        for n in 0..3 {
            let request = endpoint.next_request().await;
            assert_eq!(request.form, MetricsFormat::Prometheus);
            if n > 0 {
                let before = std::fs::read_to_string(folder.path().join("run.prom")).unwrap();
                assert_eq!(before, format!("x {}\n", n - 1));
            }
            request.answer.send(format!("x {n}\n")).unwrap();
        }
        assert!(endpoint.address().is_none());
    }

    #[tokio::test]
    async fn textfile_keeps_old_values_until_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.prom");
        std::fs::write(&path, "x 1\n").unwrap();
        let file = Textfile { path: path.clone(), every: Duration::from_millis(1) };
        let endpoint = Endpoint::open(None, Some(file)).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x 1\n");
        drop(endpoint);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn port_without_address_is_loopback() {
        assert_eq!(parse("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse(":9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(parse("x").is_err() && parse("99999").is_err());
    }
}
