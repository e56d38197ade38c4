//! Values of a console's variables that ranks of this host were started with: the next generation has them
//! too when the console that starts it does not. In memory only, as long as the agent lives (SECRET-1).

use rankdeck_proto::message::LaunchSpec;
use rankdeck_types::error::HintedError;
use rankdeck_types::variables::{Values, WantedVariables};

/// What the latest launch wanted, and the values that it had.
#[derive(Default)]
pub(crate) struct LaunchVariables {
    wanted: WantedVariables,
    values: Values,
}

impl LaunchVariables {
    /// Completes what a console hands over by what an earlier one did, and keeps it. `inherited`: variables
    /// that ranks have from the agent.
    ///
    /// Errors: a rank would be started without a variable that the plan names.
    pub fn complete(
        &mut self,
        spec: &LaunchSpec,
        values: &mut Values,
        inherited: &dyn Fn(&str) -> bool,
    ) -> Result<(), HintedError> {
        let wanted = wanted(spec);
        values.complete(&self.values, |name| wanted.agrees(&self.wanted, name));
        let lacking: Vec<&str> = wanted
            .names()
            .filter(|name| !(values.has(name) || wanted.passes(name) && inherited(name)))
            .collect();
        if !lacking.is_empty() {
            return Err(HintedError::new(
                format!("no rank is started without {}, which the launch does not hold", lacking.join(", ")),
                "`export` it in the shell of the console, then restart",
            ));
        }
        *self = LaunchVariables { wanted, values: values.clone() };
        Ok(())
    }

    /// Names of variables that the next ranks of the same plan would have without a console.
    pub fn names(&self, spec: &LaunchSpec, inherited: &dyn Fn(&str) -> bool) -> Vec<String> {
        let wanted = wanted(spec);
        let has = |name: &&str| {
            self.values.has(name) && wanted.agrees(&self.wanted, name)
                || wanted.passes(name) && inherited(name)
        };
        wanted.names().filter(has).map(str::to_owned).collect()
    }
}

fn wanted(spec: &LaunchSpec) -> WantedVariables {
    let host = spec.plan.hosts.get(spec.node_rank.index());
    host.map(|planned| WantedVariables::new(&spec.plan.experiment.launch, &planned.host)).unwrap_or_default()
}

/// The agent's own environment has it, and ranks inherit that.
pub(crate) fn inherited(name: &str) -> bool {
    std::env::var_os(name).is_some()
}
