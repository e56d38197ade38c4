//! Metrics of runs in other tools. `rankdeck mlflow` writes recorded runs as an MLflow file store, for `mlflow ui` and
//! MLflow's client. `tensorboard` fetches the event files of runs and opens them in TensorBoard; `export-metrics`
//! exports a run's metrics to Prometheus until it ends.
//!
//! - The id of a run is derived from its name: written again, a run replaces itself, and nothing else in the
//!   store changes.
//! - No link that another user of the store's directory can have put there is followed.

use super::fetch::fetch;
use crate::app::driver::ExitReason;
use crate::app::metrics::{self, Endpoint, MetricsFormat, Textfile};
use crate::app::replace_file::replace_file;
use crate::cli::args::{ExportMetricsArgs, FetchArgs, MlflowArgs, TensorboardArgs};
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::{self, LocatedRun, RunLocator};
use crate::cli::support::run_name::{RunAction, own_folder};
use crate::cli::support::{Failure, code};
use rankdeck_config::HostsSource;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::model::Model;
use rankdeck_core::report::RunOutcome;
use rankdeck_types::words::plural;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Longest value of an MLflow parameter.
const LONGEST: usize = 6000;
/// MLflow's run states.
const RUNNING: u8 = 1;
const FINISHED: u8 = 3;
const FAILED: u8 = 4;
const KILLED: u8 = 5;
/// Mode of a new file of the store, which may be shared.
const NEW: u32 = 0o666;

/// Runs `rankdeck mlflow`.
pub(crate) fn mlflow(args: &MlflowArgs) -> Result<u8, Failure> {
    let store = std::path::absolute(&args.into).unwrap_or_else(|_| args.into.clone());
    let mut entries = Vec::new();
    for run in &args.runs {
        let recorded = locate::recording(run)?;
        let (model, at) = locate::open_recording(&recorded)?.last().map_err(|error| {
            Failure::usage(error.to_string()).hint("it may be from another version of rankdeck: use that one")
        })?;
        entries.push(MlflowRun::of(&ComparedRun::from_model(&recorded.name, &model, at), &model));
    }
    for entry in &entries {
        entry.write(&store).map_err(|error| {
            Failure::failed(format!("failed to write {}: {error}", store.display()))
                .hint("choose a writable directory with `--into DIR`")
        })?;
    }
    let (runs, shown) = (plural(args.runs.len(), "run"), store.display());
    args.output.outcome(&format!("wrote {runs} to {shown}"));
    args.output.progress(&format!("hint: show them with `mlflow ui --backend-store-uri {shown}`"));
    let names: Vec<&str> = entries.iter().map(|entry| entry.run.as_str()).collect();
    args.output.record(|| json!({ "kind": "mlflow_store", "runs": names, "store": store }));
    Ok(code::SUCCESS)
}

/// A run in the store.
#[derive(Debug, Default)]
struct MlflowRun {
    experiment: String,
    run: String,
    status: u8,
    /// Milliseconds since the epoch.
    started: u64,
    ended: u64,
    params: BTreeMap<String, String>,
    /// Milliseconds, value, step.
    metrics: BTreeMap<String, Vec<(u64, f64, u64)>>,
}

impl MlflowRun {
    fn of(run: &ComparedRun, model: &Model) -> MlflowRun {
        let ms = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
        let mut metrics: BTreeMap<String, Vec<(u64, f64, u64)>> = BTreeMap::new();
        for (name, series) in &run.series {
            let points = series.points().iter();
            let points =
                points.map(|point| (ms(point.place.time), point.mean, point.place.step.max(0.0) as u64));
            metrics.insert(key(name), points.collect());
        }
        let times = || metrics.values().flatten().map(|(time, ..)| *time).filter(|time| *time > 0);
        let ended = times().max().unwrap_or_default();
        let started = times().min().unwrap_or(ended).min(ended.saturating_sub(ms(run.duration_s)));
        for eval in &model.evals {
            // The recording has no time of an evaluation except in its charts: steps order them.
            let std = if eval.is_of_series() { f64::NAN } else { eval.return_std };
            let values = [("eval/return_mean", eval.return_mean), ("eval/return_std", std)];
            for (name, value) in values.into_iter().filter(|(_, value)| value.is_finite()) {
                let line = (time_of(&metrics, eval.env_step).unwrap_or(ended), value, eval.env_step);
                metrics.entry(name.to_owned()).or_default().push(line);
            }
        }
        MlflowRun {
            experiment: run.settings.get("run.name").cloned().unwrap_or_else(|| run.run.clone()),
            run: run.run.clone(),
            status: match run.outcome {
                None => RUNNING,
                Some(RunOutcome::Succeeded) => FINISHED,
                Some(RunOutcome::Stopped) => KILLED,
                Some(_) => FAILED,
            },
            started,
            ended,
            params: run.settings.iter().map(|(name, value)| (key(name), value.clone())).collect(),
            metrics,
        }
    }

    fn write(&self, store: &Path) -> io::Result<()> {
        let experiment_id = experiment_id(&self.experiment);
        let experiment = store.join(&experiment_id);
        let about = experiment.join("meta.yaml");
        std::fs::create_dir_all(&experiment)?;
        if experiment.is_symlink() {
            return Err(io::Error::other(format!("{experiment_id} is a symbolic link")));
        }
        if !about.exists() {
            let uri = format!("file://{}", experiment.display());
            let fields = json!({
                "artifact_location": uri, "creation_time": self.started, "experiment_id": experiment_id,
                "last_update_time": self.ended, "lifecycle_stage": "active", "name": self.experiment,
            });
            replace_file(&about, yaml(&fields).as_bytes(), NEW)?;
        }
        let id = run_id(&self.run);
        let folder = experiment.join(&id);
        let fields = json!({
            "artifact_uri": format!("file://{}/artifacts", folder.display()),
            "end_time": (self.status != RUNNING).then_some(self.ended),
            "entry_point_name": "", "experiment_id": experiment_id, "lifecycle_stage": "active",
            "run_id": id, "run_name": self.run, "run_uuid": id,
            "source_name": "rankdeck", "source_type": 4, "source_version": "",
            "start_time": self.started, "status": self.status, "tags": [], "user_id": user(),
        });
        // Written to a sibling directory first, so that no reader sees half of it; names that start with a
        // dot are not runs. Its name is random, so no link can be in it.
        let new = tempfile::Builder::new().prefix(".rankdeck-").tempdir_in(&experiment)?;
        let sibling = new.path();
        for name in ["artifacts", "metrics", "params", "tags"] {
            std::fs::create_dir(sibling.join(name))?;
        }
        replace_file(&sibling.join("meta.yaml"), yaml(&fields).as_bytes(), NEW)?;
        for (name, value) in &self.params {
            let value: String = value.chars().take(LONGEST).collect();
            put(&sibling.join("params"), name, &value)?;
        }
        for (name, lines) in &self.metrics {
            let mut text = String::new();
            for (time, value, step) in lines {
                let _ = writeln!(text, "{time} {value} {step}");
            }
            put(&sibling.join("metrics"), name, &text)?;
        }
        put(&sibling.join("tags"), "mlflow.runName", &self.run)?;
        put(&sibling.join("tags"), "mlflow.user", &user())?;
        put(&sibling.join("tags"), "mlflow.source.name", "rankdeck")?;
        remove(&folder)?;
        std::fs::rename(sibling, &folder)
    }
}

/// Returns the time of a step, from the charts.
fn time_of(metrics: &BTreeMap<String, Vec<(u64, f64, u64)>>, step: u64) -> Option<u64> {
    metrics.values().flatten().filter(|(_, _, at)| *at <= step).map(|(time, ..)| *time).max()
}

fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file whose path is an MLflow name: a slash is a directory. If `a` is a chart, `a/b` is written as
/// `a.b`.
fn put(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let mut path = folder.join(name);
    if path.ancestors().skip(1).any(Path::is_file) {
        path = folder.join(name.replace('/', "."));
    }
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    replace_file(&path, text.as_bytes(), NEW)
}

/// Returns a name that MLflow accepts and that is a path inside its directory.
fn key(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_-. :/".contains(c) { c } else { '_' };
    let parts = name.split('/').filter(|part| !part.is_empty() && *part != "." && *part != "..");
    let joined: Vec<String> = parts.map(|part| part.chars().map(allowed).collect()).collect();
    if joined.is_empty() { "_".to_owned() } else { joined.join("/") }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// 18 digits, as in MLflow.
fn experiment_id(name: &str) -> String {
    let number = digest(name)[..8].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{:018}", number % 1_000_000_000_000_000_000)
}

/// 32 hexadecimal digits.
fn run_id(name: &str) -> String {
    digest(name)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "rankdeck".to_owned())
}

/// Formats a flat table as YAML, of which JSON scalars are a subset.
fn yaml(fields: &Value) -> String {
    let table = fields.as_object().into_iter().flatten();
    table.map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// Runs `rankdeck tensorboard`.
pub(crate) async fn tensorboard(hosts_from: &HostsSource, args: TensorboardArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let mut found: Vec<LocatedRun> = Vec::new();
    for run in &args.runs {
        let known = found.last().map(|located| &located.run_index);
        let run_index = locator.index_or(known, Some(run)).await?;
        found.push(locator.select(run_index, Some(run), RunAction::Read).await?);
    }
    let mut places = Vec::new();
    for LocatedRun { run: name, .. } in found {
        let into = own_folder(&name).map_err(Failure::place)?.join("hosts");
        let fetched = FetchArgs {
            run: name.clone(),
            pattern: Some("*tfevents*".to_owned()),
            into: Some(into.clone()),
            max_size_gb: 4,
            output: args.output,
            host_keys: args.host_keys.clone(),
        };
        fetch(hosts_from, fetched).await?;
        places.push(format!("{name}:{}", into.display()));
    }
    let mut command = std::process::Command::new("tensorboard");
    match args.runs.as_slice() {
        // TensorBoard recommends `--logdir` for a single directory.
        [_] => command.arg("--logdir").arg(places[0].split_once(':').map_or("", |(_, path)| path)),
        _ => command.arg("--logdir_spec").arg(places.join(",")),
    };
    let status = command.args(&args.more).status().map_err(|error| {
        let folders = places.iter().map(|place| place.split_once(':').map_or("", |(_, path)| path));
        Failure::failed(format!("failed to start tensorboard: {error}")).hint(format!(
            "run `pip install tensorboard`; the files are in {}",
            folders.collect::<Vec<_>>().join(", ")
        ))
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(code::FAILED))
}

/// Default port, the same as that of OpenTelemetry's exporters.
const PORT: u16 = 9464;

/// Runs `rankdeck export-metrics`.
pub(crate) async fn export_metrics(hosts_from: &HostsSource, args: ExportMetricsArgs) -> Result<u8, Failure> {
    let usual = args.textfile.is_none().then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    let listen = args.listen.or(usual);
    if let Some(path) = args.textfile.as_ref().filter(|path| path.extension() != Some("prom".as_ref())) {
        return Err(Failure::usage(format!("{}: file name does not end in `.prom`", path.display()))
            .hint("node_exporter reads only .prom files: `--textfile run.prom`"));
    }
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let located = locator.find(args.run.as_deref(), RunAction::Watch).await?;
    let target = ExistingRun::new(&located.run_index, &located.found()?)?;
    let file = args.textfile.map(|path| Textfile { path, every: Duration::from_secs_f64(args.every) });
    let endpoint = Endpoint::open(listen, file.clone()).await.map_err(|error| {
        let places =
            [listen.map(|listen| listen.to_string()), file.as_ref().map(|f| f.path.display().to_string())];
        Failure::usage(format!("{}: {error}", places.into_iter().flatten().collect::<Vec<_>>().join(", ")))
            .hint("choose a free port with `--listen ADDRESS:PORT`, or a writable directory with `--textfile FILE`")
    })?;
    let output = args.output;
    let url = endpoint.address().map(|address| format!("http://{address}/metrics"));
    if let Some(url) = &url {
        output.progress(&format!("{}: metrics at {url} (ctrl-c quits)", target.run));
    }
    if let Some(file) = &file {
        output.progress(&format!("{}: metrics in {} (ctrl-c quits)", target.run, file.path.display()));
    }
    output.record(|| {
        let textfile = file.as_ref().map(|file| &file.path);
        json!({ "kind": "metrics_endpoint", "run": target.run, "url": url, "textfile": textfile })
    });
    let end = target.serve_metrics(endpoint, &args.host_keys).await?;
    if let Some(file) = file {
        let at = end.model.run.ended.unwrap_or_default();
        file.write(&metrics::text(&end.model, at, MetricsFormat::Prometheus)).map_err(|error| {
            Failure::failed(format!("{}: {error}", file.path.display())).hint("its values are outdated")
        })?;
    }
    // How the run ended is a metric, not a failure of this command.
    Ok(if end.why == ExitReason::GaveUp { code::HOST } else { code::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlflow_names_stay_inside_and_ids_are_stable() {
        assert_eq!(key("losses/policy loss"), "losses/policy loss");
        assert_eq!(key("../../etc/passwd"), "etc/passwd");
        assert_eq!(key("/a//b=c"), "a/b_c");
        assert_eq!(key("//"), "_");
        assert_eq!((experiment_id("x").len(), run_id("x").len()), (18, 32));
        assert_eq!(run_id("x"), run_id("x"));
    }

    #[test]
    fn mlflow_run_is_replaced_and_others_are_kept() {
        let store = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let entry = |value: f64| MlflowRun {
            experiment: "ppo".into(),
            run: "ppo-1".into(),
            status: FINISHED,
            params: BTreeMap::from([("learn.gamma".into(), "0.9".into())]),
            metrics: BTreeMap::from([("a".into(), vec![(5, value, 7)]), ("a/b".into(), vec![(6, value, 8)])]),
            ..MlflowRun::default()
        };
        let written = |entry: MlflowRun| entry.write(store.path()).is_ok();
        let folder = store.path().join(experiment_id("ppo"));
        std::fs::create_dir_all(folder.join("0123")).unwrap_or_else(|error| panic!("{error}"));
        assert!(written(entry(1.0)) && written(entry(2.5)));
        let read =
            |path: &str| std::fs::read_to_string(folder.join(run_id("ppo-1")).join(path)).unwrap_or_default();
        assert_eq!(read("metrics/a"), "5 2.5 7\n");
        assert_eq!(read("metrics/a.b"), "6 2.5 8\n", "a file cannot be a folder as well");
        assert_eq!(read("params/learn.gamma"), "0.9");
        assert!(
            read("meta.yaml").contains("status: 3\n") && read("meta.yaml").contains("run_name: \"ppo-1\"")
        );
        assert!(folder.join("0123").is_dir(), "another run");
    }

    #[test]
    fn mlflow_store_follows_no_link() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let (store, other) = (folder.path().join("store"), folder.path().join("other"));
        let of =
            |name: &str| MlflowRun { experiment: name.into(), run: "ppo-1".into(), ..MlflowRun::default() };
        let put = |at: &Path, link: &str, to: &Path| {
            std::fs::create_dir_all(at).and_then(|()| symlink(to, at.join(link))).unwrap_or_else(|error| {
                panic!("{link}: {error}");
            });
        };
        std::fs::create_dir(&other).unwrap_or_else(|error| panic!("{error}"));
        let experiment = store.join(experiment_id("ppo"));
        let id = run_id("ppo-1");
        put(&experiment, "meta.yaml", &other.join("new.yaml"));
        put(&experiment, &format!(".{id}"), &other);
        put(&experiment, &id, &other);
        assert!(of("ppo").write(&store).is_ok());
        assert!(!experiment.join("meta.yaml").is_symlink() && !experiment.join(&id).is_symlink());
        assert!(experiment.join(&id).join("meta.yaml").is_file());
        put(&store, &experiment_id("dqn"), &other);
        assert!(of("dqn").write(&store).is_err());
        let written = std::fs::read_dir(&other).map(Iterator::count);
        assert_eq!(written.ok(), Some(0), "nothing behind the links");
    }
}
