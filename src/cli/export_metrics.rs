//! `rankdeck export-metrics`: a run's figures for Prometheus, by a process that does nothing else.

use super::args::ExportMetricsArgs;
use super::join::Target;
use super::roster::roster;
use super::{Failure, code};
use crate::shell::driver::Why;
use crate::shell::metrics::{self, Endpoint, Form, Textfile};
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Where figures are served unless something else is wanted; OpenTelemetry's exporters use the same.
const PORT: u16 = 9464;

/// Runs `rankdeck export-metrics`: tells a run's figures until it is over.
pub async fn export_metrics(hosts_from: &HostsSource, args: ExportMetricsArgs) -> Result<u8, Failure> {
    let usual = args.textfile.is_none().then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    let listen = args.listen.or(usual);
    let file = args.textfile.map(|path| Textfile { path, every: Duration::from_secs_f64(args.every) });
    let asked = Endpoint::open(listen, file.clone()).await.map_err(|error| {
        let places =
            [listen.map(|listen| listen.to_string()), file.as_ref().map(|f| f.path.display().to_string())];
        Failure::usage(format!("{}: {error}", places.into_iter().flatten().collect::<Vec<_>>().join(", ")))
            .hint("`--listen ADDRESS:PORT` with a free port, `--textfile FILE` in a folder of yours")
    })?;
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    let target = Target::new(&roster, &found)?;
    if let Some(address) = asked.address() {
        stderr::line(&format!("{}: metrics at http://{address}/metrics; ctrl-c leaves", target.run));
    }
    if let Some(file) = &file {
        stderr::line(&format!("{}: metrics in {}; ctrl-c leaves", target.run, file.path.display()));
    }
    let end = target.measure(asked, &args.host_keys).await?;
    if let Some(file) = file {
        let at = end.model.run.ended.unwrap_or_default();
        file.write(&metrics::text(&end.model, at, Form::Prometheus)).map_err(|error| {
            Failure::failed(format!("{}: {error}", file.path.display())).hint("its figures are old")
        })?;
    }
    // How the run ended is a figure, and no failure of this command.
    Ok(if end.why == Why::GaveUp { code::HOST } else { code::SUCCESS })
}
