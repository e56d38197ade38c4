//! What the launches of this console hold and no record shows: the secrets of generations, values of this
//! console's variables, and how its user is called.
//!
//! Owner: the driver. The core says what is launched and knows neither, so the driver adds both to each
//! launch that it sends.

use rankdeck_proto::message::{Away, LaunchSpec, Private};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::Launch;
use rankdeck_types::host::Host;
use rankdeck_types::ids::Generation;
use rankdeck_types::plan::Plan;
use rankdeck_types::ui::Notify;
use rankdeck_types::variables::{Values, Wanted};
use std::collections::BTreeSet;
use std::io;

/// The secret of the latest generation, and what was said about variables.
#[derive(Default)]
pub struct Secrets {
    latest: Option<(Generation, GroupSecret)>,
    /// A plan has been compared with this console's variables.
    compared: bool,
    /// How agents call the user while no console looks on.
    away: Option<Away>,
}

impl Secrets {
    /// Of a console whose user is called so.
    pub fn new(notify: Option<&Notify>) -> Secrets {
        let away = notify.and_then(|notify| {
            let webhook = if notify.away { notify.webhook.clone() } else { String::new() };
            let away = Away { on: notify.on.clone(), webhook, command: notify.away_command.clone() };
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

    /// Says once what the ranks would lack if this console started them.
    pub fn lacking(&mut self, plan: &Plan) -> Option<String> {
        if std::mem::replace(&mut self.compared, true) {
            return None;
        }
        let names = missing(&plan.experiment.launch, plan.hosts.iter().map(|planned| &planned.host));
        (!names.is_empty()).then(|| {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            format!(
                "not set in this console: {names}; a restart from here starts the ranks without; hint: set them \
                 and attach again before you restart"
            )
        })
    }
}

/// The values for one host's ranks, and the names of variables that this console does not have as text.
pub fn values(launch: &Launch, host: &Host) -> (Values, Vec<String>) {
    Wanted::new(launch, host).fill(&|name| std::env::var(name).ok())
}

/// Names of variables that this console lacks.
pub fn missing<'a>(launch: &Launch, hosts: impl Iterator<Item = &'a Host>) -> BTreeSet<String> {
    hosts.flat_map(|host| values(launch, host).1).collect()
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
