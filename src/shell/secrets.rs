//! What the launches of this console hold and no record shows: the secrets of generations, values of this
//! console's variables, and how its user is called.
//!
//! Owner: the driver. The core says what is launched and knows neither, so the driver adds both to each
//! launch that it sends.

use rankdeck_core::event::Event;
use rankdeck_core::model::{HostModel, Model};
use rankdeck_proto::message::{AwayNotices, LaunchSpec, Private};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::Launch;
use rankdeck_types::host::Host;
use rankdeck_types::ids::Generation;
use rankdeck_types::plan::{Plan, PlannedHost};
use rankdeck_types::ui::Notify;
use rankdeck_types::variables::{Values, WantedVariables};
use std::collections::BTreeSet;
use std::io;

/// The secret of the latest generation, and what was said about variables.
#[derive(Default)]
pub struct Secrets {
    latest: Option<(Generation, GroupSecret)>,
    /// A plan has been compared with this console's variables.
    compared: bool,
    /// How agents call the user while no console looks on.
    away: Option<AwayNotices>,
}

impl Secrets {
    /// Of a console whose user is called so.
    pub fn new(notify: Option<&Notify>) -> Secrets {
        let away = notify.and_then(|notify| {
            let webhook = if notify.away { notify.webhook.clone() } else { String::new() };
            let away = AwayNotices { on: notify.on.clone(), webhook, command: notify.away_command.clone() };
            (!away.webhook.is_empty() || !away.command.is_empty()).then_some(away)
        });
        Secrets { away, ..Secrets::default() }
    }

    /// What goes with the launch of one host.
    ///
    /// Errors: the kernel's random numbers cannot be read.
    pub fn private(&mut self, spec: &LaunchSpec) -> io::Result<Private> {
        let secret = Some(self.of(spec.generation)?);
        let host = spec.plan.hosts.get(spec.node_rank.index());
        let variables = host.map(|planned| values(&spec.plan.experiment.launch, &planned.host).0);
        let first = spec.plan.ranks.first().is_some_and(|rank| rank.node_rank == spec.node_rank);
        let away = self.away.clone().filter(|_| first);
        Ok(Private { secret, variables: variables.unwrap_or_default(), away })
    }

    /// The same for all hosts of a generation, and for every time that its launch is sent (SECRET-2).
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

    /// Says once what ranks would lack if this console started them, when all agents have told what they
    /// keep.
    pub fn lacking(&mut self, model: &Model) -> Option<String> {
        let plan = model.plan.as_ref().filter(|_| !self.compared)?;
        let told =
            |planned: &PlannedHost| host(model, &planned.host.name).is_some_and(|host| host.holds.is_some());
        if !plan.members().all(told) {
            return None;
        }
        self.compared = true;
        let names = missing(model, plan, &Event::restart(None));
        (!names.is_empty()).then(|| {
            format!(
                "not set in this console: {}; no restart is made from here; hint: `export` them and attach again \
                 before you restart",
                list(names)
            )
        })
    }

    /// Why this console cannot make the restart that is asked for: neither it nor an agent that goes on has
    /// what the ranks are to get.
    pub fn refusal(event: &Event, model: &Model) -> Option<Event> {
        if !matches!(event, Event::RestartRequested { .. } | Event::CheckedRestartRequested { .. }) {
            return None;
        }
        let names = missing(model, model.plan.as_ref()?, event);
        (!names.is_empty()).then(|| Event::RestartRefused {
            reason: format!(
                "the run passes {}, not set in this console's environment; hint: `export` it, then restart",
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

/// Names of variables that ranks would lack after this restart, by what this console has and agents keep.
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
        let wanted = WantedVariables::new(&next.launch, host)
            .beyond(&WantedVariables::new(&plan.experiment.launch, host), held);
        lacking.extend(wanted.fill(&|name| std::env::var(name).ok()).1);
    }
    lacking
}

/// The values for one host's ranks, and the names of variables that this console does not have as text.
pub fn values(launch: &Launch, host: &Host) -> (Values, Vec<String>) {
    WantedVariables::new(launch, host).fill(&|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_1_an_address_goes_with_a_launch_only_where_the_user_says_so() {
        let webhook = "https://example.org/hook".to_owned();
        let here = Notify { webhook, ..Notify::default() };
        assert_eq!(Secrets::new(Some(&here)).away, None);
        assert_eq!(Secrets::new(None).away, None);
        let there = Notify { away: true, ..here.clone() };
        let away = Secrets::new(Some(&there)).away.unwrap();
        assert_eq!(away.webhook, here.webhook);
        assert!(!format!("{away:?}").contains("example"));
    }

    #[test]
    fn secret_2_hosts_share_the_secret_of_a_generation_and_a_restart_has_another() {
        let mut secrets = Secrets::default();
        let first = secrets.of(Generation(0)).unwrap();
        assert_eq!(secrets.of(Generation(0)).unwrap(), first);
        assert_ne!(secrets.of(Generation(1)).unwrap(), first);
    }
}
