//! One job per host, all at once.

use rankdeck_link::LinkError;
use rankdeck_types::host::Host;

/// Runs `job` for every host at once, with the host's index; answers in host order.
pub(super) async fn on_all<T, F>(hosts: &[Host], job: impl Fn(usize, Host) -> F) -> Vec<Result<T, LinkError>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, LinkError>> + Send + 'static,
{
    let jobs: Vec<_> =
        hosts.iter().enumerate().map(|(index, host)| tokio::spawn(job(index, host.clone()))).collect();
    let mut answers = Vec::with_capacity(jobs.len());
    for (job, host) in jobs.into_iter().zip(hosts) {
        answers.push(job.await.unwrap_or_else(|error| {
            let hint = "`rankdeck check EXPERIMENT.toml` shows what the host answers".to_owned();
            Err(LinkError { error: format!("host {}: {error}", host.name), hint })
        }));
    }
    answers
}
