//! The part of a launch that no record contains: the secrets of generations, values of this console's
//! variables, and notification addresses.
//!
//! Owner: the driver. The core decides what is launched and knows neither, so the driver adds them to each
//! launch that it sends.

use rankdeck_core::event::Event;
use rankdeck_core::model::{HostModel, Model};
use rankdeck_proto::message::{AwayNotices, LaunchSecrets, LaunchSpec};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::Generation;
use rankdeck_types::plan::{Plan, PlannedHost};
use rankdeck_types::ui::Notify;
use rankdeck_types::variables::{PassedVariables, RequestedVariables};
use std::collections::BTreeSet;
use std::io;

/// The secret of the latest generation, and the state of the variables.
#[derive(Default)]
pub(crate) struct GenerationSecrets {
    latest: Option<(Generation, GroupSecret)>,
    /// Whether a plan was compared with this console's variables.
    compared: bool,
    /// How agents notify the user while no console is attached.
    away: Option<AwayNotices>,
}

impl GenerationSecrets {
    /// For these notification settings.
    pub(crate) fn new(notify: Option<&Notify>) -> GenerationSecrets {
        let away = notify.and_then(|notify| {
            let webhook = if notify.away { notify.webhook.clone() } else { String::new() };
            let away = AwayNotices { on: notify.on.clone(), webhook, command: notify.away_command.clone() };
            (!away.webhook.is_empty() || !away.command.is_empty()).then_some(away)
        });
        GenerationSecrets { away, ..GenerationSecrets::default() }
    }

    /// Returns the private part of the launch of one host.
    ///
    /// Errors: the kernel's random numbers cannot be read.
    pub(crate) fn private(&mut self, spec: &LaunchSpec) -> io::Result<LaunchSecrets> {
        let secret = Some(self.of(spec.generation)?);
        let host = spec.plan.hosts.get(spec.node_rank.index());
        let variables = host.map(|planned| values(&spec.plan.experiment, &planned.host).0);
        let first = spec.plan.ranks.first().is_some_and(|rank| rank.node_rank == spec.node_rank);
        let away = self.away.clone().filter(|_| first);
        Ok(LaunchSecrets { secret, variables: variables.unwrap_or_default(), away })
    }

    /// Returns the secret of a generation, the same for all hosts and every time that its launch is sent
    /// (SECRET-2).
    fn of(&mut self, generation: Generation) -> io::Result<GroupSecret> {
        match &self.latest {
            Some((known, secret)) if *known == generation => Ok(secret.clone()),
            _ => {
                let secret = GroupSecret::draw()?;
                self.latest = Some((generation, secret.clone()));
                Ok(secret)
            }
        }
    }

    /// Returns once which variables ranks would lack if this console restarted them, after all agents have
    /// reported theirs.
    pub(crate) fn lacking(&mut self, model: &Model) -> Option<String> {
        let plan = model.plan.as_ref().filter(|_| !self.compared)?;
        let has_reported =
            |planned: &PlannedHost| host(model, &planned.host.name).is_some_and(|host| host.holds.is_some());
        if !plan.members().all(has_reported) {
            return None;
        }
        self.compared = true;
        let names = missing(model, plan, &Event::restart(None));
        (!names.is_empty()).then(|| {
            format!(
                "not set in this console: {}; restarts are disabled; hint: `export` them and attach again",
                list(names)
            )
        })
    }

    /// Returns why this console cannot make the requested restart: neither it nor a remaining agent has the
    /// values for the ranks.
    pub(crate) fn refusal(event: &Event, model: &Model) -> Option<Event> {
        if !matches!(event, Event::RestartRequested { .. } | Event::CheckedRestartRequested { .. }) {
            return None;
        }
        let names = missing(model, model.plan.as_ref()?, event);
        (!names.is_empty()).then(|| Event::RestartRefused {
            reason: format!(
                "the run passes {}, which is not set in this console; hint: `export` it, then restart",
                list(names)
            ),
        })
    }
}

fn list(names: BTreeSet<String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn host<'a>(model: &'a Model, name: &str) -> Option<&'a HostModel> {
    model.hosts.iter().find(|host| host.name == name)
}

/// Returns the variables that ranks would lack after this restart.
fn missing(model: &Model, plan: &Plan, event: &Event) -> BTreeSet<String> {
    let (mut left, mut joined, mut next) = (&[][..], &[][..], &plan.experiment);
    if let Event::RestartRequested { exclude, add, experiment, .. } = event {
        (left, joined) = (exclude, add);
        next = experiment.as_deref().unwrap_or(next);
    }
    let stay = plan.members().map(|planned| &planned.host).filter(|host| !left.contains(&host.name));
    let mut lacking = BTreeSet::new();
    for host in stay.chain(joined) {
        let held = self::host(model, &host.name).and_then(|host| host.holds.as_deref()).unwrap_or_default();
        let was = RequestedVariables::new(&plan.experiment.filled_launch(), host);
        let missing = RequestedVariables::new(&next.filled_launch(), host).beyond(&was, held);
        lacking.extend(missing.fill(&|name| std::env::var(name).ok()).1);
    }
    lacking
}

/// Returns the values for one host's ranks, and the names of variables that this console does not have as
/// text.
pub(crate) fn values(experiment: &Experiment, host: &Host) -> (PassedVariables, Vec<String>) {
    RequestedVariables::new(&experiment.filled_launch(), host).fill(&|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_1_webhook_is_sent_only_if_configured() {
        let webhook = "https://example.org/hook".to_owned();
        let here = Notify { webhook, ..Notify::default() };
        assert_eq!(GenerationSecrets::new(Some(&here)).away, None);
        assert_eq!(GenerationSecrets::new(None).away, None);
        let there = Notify { away: true, ..here.clone() };
        let away = GenerationSecrets::new(Some(&there)).away.unwrap();
        assert_eq!(away.webhook, here.webhook);
        assert!(!format!("{away:?}").contains("example"));
    }

    #[test]
    fn secret_2_secret_is_per_generation() {
        let mut secrets = GenerationSecrets::default();
        let first = secrets.of(Generation(0)).unwrap();
        assert_eq!(secrets.of(Generation(0)).unwrap(), first);
        assert_ne!(secrets.of(Generation(1)).unwrap(), first);
    }
}
