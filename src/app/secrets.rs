//! The part of a launch that no recording contains: the secrets of generations, values of this console's
//! environment variables, and notification addresses.
//!
//! Owner: the driver. The core decides what is launched and has none of them, so the driver adds them to each
//! launch that it sends.
//!
//! - SECRET-3: a value is sent only if the user's files or options name its variable, or the question before
//!   the restart did. What agents report afterwards adds none.

use rankdeck_core::event::Event;
use rankdeck_core::model::{HostModel, Model};
use rankdeck_proto::message::{AwayNotices, LaunchSecrets, LaunchSpec};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, NodeRank};
use rankdeck_types::plan::{Plan, PlannedHost};
use rankdeck_types::ui::Notify;
use rankdeck_types::variables::{PassedVariables, RequestedVariables};
use std::collections::BTreeSet;
use std::io;

/// Which variables of this console a plan may request. Plans come from agents, too (SECRET-3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum VariableConsent {
    /// All of them: this console launches the user's own plan.
    Own,
    /// Those that the confirmed question has named (ORIGIN-3); none before the first one.
    #[default]
    Unasked,
    /// The same, after it.
    Confirmed(BTreeSet<String>),
    /// Those that files and options of the user name, without any question.
    Named(BTreeSet<String>),
}

impl VariableConsent {
    fn covers(&self, name: &str) -> bool {
        match self {
            VariableConsent::Own => true,
            VariableConsent::Unasked => false,
            VariableConsent::Confirmed(names) | VariableConsent::Named(names) => names.contains(name),
        }
    }

    /// Takes the answer to the question about this restart; `adopted`: the plan is another console's.
    fn confirm(&mut self, event: &Event, plan: &Plan, adopted: bool) {
        let (mut joined, mut next) = (&[][..], None);
        if let Event::RestartRequested { add, experiment, .. } = event {
            (joined, next) = (add, experiment.as_deref());
        }
        let asked = match self {
            VariableConsent::Own => adopted,
            VariableConsent::Unasked | VariableConsent::Confirmed(_) => true,
            VariableConsent::Named(_) => false,
        };
        if asked {
            let launch = next.unwrap_or(&plan.experiment).filled_launch();
            let added = joined.iter().flat_map(|host| RequestedVariables::new(&launch, host).console_names());
            *self =
                VariableConsent::Confirmed(plan.console_variables(next).into_iter().chain(added).collect());
        }
    }

    fn value(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|_| self.covers(name))
    }
}

/// The secret of the latest generation, and the state of the variables.
#[derive(Default)]
pub(crate) struct GenerationSecrets {
    consent: VariableConsent,
    latest: Option<(Generation, GroupSecret)>,
    /// Whether a plan was compared with this console's variables.
    compared: bool,
    /// How agents notify the user while no console is attached.
    away: Option<AwayNotices>,
    /// The folder in which ranks work.
    work: Option<String>,
}

impl GenerationSecrets {
    /// For these notification settings. `work`: the folder in which ranks work.
    pub(crate) fn new(
        notify: Option<&Notify>,
        consent: VariableConsent,
        work: Option<String>,
    ) -> GenerationSecrets {
        let away = notify.and_then(|notify| {
            let webhook = if notify.away { notify.webhook.clone() } else { String::new() };
            let away = AwayNotices { on: notify.on.clone(), webhook, command: notify.away_command.clone() };
            (!away.webhook.is_empty() || !away.command.is_empty()).then_some(away)
        });
        GenerationSecrets { away, consent, work, ..GenerationSecrets::default() }
    }

    /// Returns the private part of the launch of one host.
    ///
    /// Errors: the kernel's random numbers cannot be read.
    pub(crate) fn private(&mut self, spec: &LaunchSpec) -> io::Result<LaunchSecrets> {
        let secret = spec.plan.shares_secret().then(|| self.of(spec.generation)).transpose()?;
        let host = spec.plan.hosts.get(spec.node_rank.index());
        let launch = spec.plan.experiment.filled_launch();
        let requested = host.map(|planned| RequestedVariables::new(&launch, &planned.host));
        let variables = requested.map(|requested| requested.fill(&|name| self.consent.value(name)).0);
        let first = spec.plan.ranks.first().is_some_and(|rank| rank.node_rank == spec.node_rank);
        let away = self.away.clone().filter(|_| first);
        let work = self.work.clone();
        Ok(LaunchSecrets { secret, variables: variables.unwrap_or_default(), away, work })
    }

    /// Returns the private part for a rank of a host that joins a running generation: what this console has of it, if it
    /// has launched the generation.
    pub(crate) fn known(&self, generation: Generation, plan: &Plan, node: NodeRank) -> LaunchSecrets {
        let latest = self.latest.as_ref().filter(|(known, _)| *known == generation);
        let Some((_, secret)) = latest else { return LaunchSecrets::default() };
        let launch = plan.experiment.filled_launch();
        let planned = plan.hosts.get(node.index());
        let requested = planned.map(|planned| RequestedVariables::new(&launch, &planned.host));
        let variables = requested.map(|requested| requested.fill(&|name| self.consent.value(name)).0);
        let (variables, work) = (variables.unwrap_or_default(), self.work.clone());
        LaunchSecrets { secret: Some(secret.clone()), variables, away: None, work }
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
        let names = missing(model, plan, &Event::restart(None), &VariableConsent::Own);
        (!names.is_empty()).then(|| {
            format!(
                "not set in this console: {}; restarts are disabled; hint: `export` them and attach again",
                list(names)
            )
        })
    }

    /// Returns why this console cannot make the requested restart: neither it nor a remaining agent has the
    /// values for the ranks.
    pub(crate) fn refusal(&mut self, event: &Event, model: &Model) -> Option<Event> {
        if !matches!(event, Event::RestartRequested { .. } | Event::CheckedRestartRequested { .. }) {
            return None;
        }
        let plan = model.plan.as_ref()?;
        self.consent.confirm(event, plan, model.run.adopted);
        let names = missing(model, plan, event, &self.consent);
        let unnamed: BTreeSet<String> =
            names.iter().filter(|name| !self.consent.covers(name)).cloned().collect();
        let reason = match (names.is_empty(), unnamed.is_empty()) {
            (true, _) => return None,
            (false, true) => format!(
                "the run passes {}, which is not set in this console; hint: `export` it, then restart",
                list(names)
            ),
            (false, false) => {
                let quoted: Vec<String> = unnamed.iter().map(|name| format!("{name:?}")).collect();
                format!(
                    "the run's hosts request environment variables {} of this console, which no file in this \
                     directory lists; hint: confirm without `--yes`, or list them: `--set 'launch.pass_env=[{}]'`",
                    list(unnamed),
                    quoted.join(", ")
                )
            }
        };
        Some(Event::RestartRefused { reason })
    }
}

fn list(names: BTreeSet<String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn host<'a>(model: &'a Model, name: &str) -> Option<&'a HostModel> {
    model.hosts.iter().find(|host| host.name == name)
}

/// Returns the variables that ranks would lack after this restart.
fn missing(model: &Model, plan: &Plan, event: &Event, consent: &VariableConsent) -> BTreeSet<String> {
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
        lacking.extend(missing.fill(&|name| consent.value(name)).1);
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
    use rankdeck_core::{Core, Goal};
    use rankdeck_types::ids::{LocalRank, Rank, RunId, Timestamp};
    use rankdeck_types::plan::PlannedRank;

    #[test]
    fn secret_1_webhook_is_sent_only_if_configured() {
        let webhook = "https://example.org/hook".to_owned();
        let here = Notify { webhook, ..Notify::default() };
        let new = |notify| GenerationSecrets::new(notify, VariableConsent::Own, None);
        assert_eq!(new(Some(&here)).away, None);
        assert_eq!(new(None).away, None);
        let there = Notify { away: true, ..here.clone() };
        let away = new(Some(&there)).away.unwrap();
        assert_eq!(away.webhook, here.webhook);
        assert!(!format!("{away:?}").contains("example"));
    }

    /// A plan that agents report asks for what the run has never had.
    #[test]
    fn secret_3_unnamed_variable_is_not_sent() {
        let text = "[run]\nname = \"x\"\n[launch]\ncommand = [\"t\"]\npass_env = [\"HOME\"]\n\
                    env = { LEAK = \"${PATH}\" }\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let rank = PlannedRank { rank: Rank(0), local_rank: LocalRank(0), node_rank: NodeRank(0), gpu: None };
        let plan = Plan {
            run: RunId("x-1".into()),
            experiment,
            program: None,
            hosts: vec![PlannedHost::new(NodeRank(0), Host::default())],
            ranks: vec![rank],
            sizes: Vec::new(),
            drill: false,
        };
        let goal = Goal::Attach { run: plan.run.clone(), hosts: vec!["a".into()] };
        let mut model = Core::new(goal, Vec::new(), Timestamp(0)).model().clone();
        model.plan = Some(plan);
        let refused = |consent: VariableConsent| {
            let mut secrets = GenerationSecrets::new(None, consent, None);
            match secrets.refusal(&Event::restart(None), &model) {
                Some(Event::RestartRefused { reason }) => reason,
                other => format!("{other:?}"),
            }
        };
        let named =
            |names: &[&str]| VariableConsent::Named(names.iter().map(|name| name.to_string()).collect());
        assert_eq!(refused(VariableConsent::Unasked), "None", "the question has named both");
        let mut asked = GenerationSecrets::new(None, VariableConsent::Unasked, None);
        assert_eq!(asked.consent.value("HOME"), None);
        asked.refusal(&Event::restart(None), &model);
        assert!(asked.consent.value("HOME").is_some() && asked.consent.value("USER_OF_ANOTHER").is_none());
        assert_eq!(asked.consent, VariableConsent::Confirmed(["HOME", "PATH"].map(str::to_owned).into()));
        assert_eq!(refused(named(&["HOME", "PATH"])), "None");
        let reason = refused(named(&["HOME"]));
        assert!(reason.contains("pass_env=[\"PATH\"]") && !reason.contains("HOME"), "{reason}");
        assert_eq!((named(&[]).value("HOME"), named(&["HOME"]).value("HOME").is_some()), (None, true));
    }

    #[test]
    fn secret_2_secret_is_per_generation() {
        let mut secrets = GenerationSecrets::default();
        let first = secrets.of(Generation(0)).unwrap();
        assert_eq!(secrets.of(Generation(0)).unwrap(), first);
        assert_ne!(secrets.of(Generation(1)).unwrap(), first);
    }
}
