//! `rankdeck export-metrics`: exports a run's metrics to Prometheus until it ends.

use crate::app::driver::ExitReason;
use crate::app::metrics::{self, Endpoint, MetricsFormat, Textfile};
use crate::cli::args::ExportMetricsArgs;
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::RunLocator;
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code};
use rankdeck_config::HostsSource;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

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
