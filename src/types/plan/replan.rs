//! The plan of a next generation: the same experiment on fewer, more or other hosts.

use super::{Plan, PlanDraft, PlanError};
use crate::host::Host;
use crate::probe::Probe;
use std::collections::BTreeSet;

/// The plan that follows `plan` when the hosts named in `exclude` get no ranks and those of `add` get theirs.
/// Known hosts keep their places, new ones come after all others. `probes` are what the links found, in
/// node_rank order of the hosts of the result; hosts without ranks need none.
///
/// Errors: sizes that do not divide, hosts that cannot carry their ranks, names that do not exist, each with
/// the key to change.
pub fn replan(
    plan: &Plan,
    exclude: &BTreeSet<String>,
    add: &[Host],
    probes: &[Probe],
    resolve: impl Fn(&PlanDraft, &[Probe]) -> Result<Plan, PlanError>,
) -> Result<Plan, PlanError> {
    let mut draft = plan.draft();
    let refused = |error: String, hint: &str| PlanError::new("host", error, hint);
    for host in add {
        match draft.hosts.iter_mut().find(|known| known.name == host.name) {
            Some(_) if !draft.excluded.remove(&host.name) => {
                let error = format!("host `{}` takes part already", host.name);
                return Err(refused(error, "add hosts that have no ranks in this generation"));
            }
            Some(known) => *known = host.clone(),
            None => draft.hosts.push(host.clone()),
        }
    }
    for name in exclude {
        if !draft.hosts.iter().any(|host| host.name == *name) {
            let error = format!("the run has no host `{name}` to exclude");
            return Err(refused(error, "`rankdeck ps` shows the hosts of each run"));
        }
        draft.excluded.insert(name.clone());
    }
    let mut all = probes.to_vec();
    all.resize(draft.hosts.len(), Probe::default());
    let mut next = resolve(&draft, &all)?;
    for planned in &mut next.hosts {
        // What an earlier launch found on the host is still there.
        let Some(known) = plan.hosts.get(planned.node_rank.index()) else { continue };
        planned.trainer = planned.trainer.take().or_else(|| known.trainer.clone());
        planned.libtorch = planned.libtorch.take().or_else(|| known.libtorch.clone());
    }
    if let Some(planned) = next.members().find(|planned| next.is_builtin() && planned.trainer.is_none()) {
        let error = format!("host `{}` has no rankdeck-trainer", planned.host.name);
        return Err(refused(
            error,
            "build it beside this rankdeck (`cargo build --release --workspace`), or set `launch.command`",
        ));
    }
    Ok(next)
}

impl Plan {
    /// The draft that leads to this plan: hosts as the user described them, and those that this generation
    /// excludes.
    pub fn draft(&self) -> PlanDraft {
        let excluded = self.hosts.iter().filter(|planned| !self.has_ranks(planned.node_rank));
        PlanDraft {
            run: self.run.clone(),
            experiment: self.experiment.clone(),
            excluded: excluded.map(|planned| planned.host.name.clone()).collect(),
            hosts: self.hosts.iter().map(|planned| planned.host.clone()).collect(),
            resume: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank_environment;
    use super::super::resolve::tests::{draft, host};
    use super::*;
    use crate::ids::Generation;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn with_trainer(plan: Plan) -> Plan {
        let hosts = plan
            .hosts
            .iter()
            .map(|host| super::super::PlannedHost { trainer: Some("/t".into()), ..host.clone() });
        Plan { hosts: hosts.collect(), ..plan.clone() }
    }

    fn three() -> Plan {
        with_trainer(draft(vec![host("a"), host("b"), host("c")], 12).resolve(&[]).unwrap())
    }

    fn column(plan: &Plan, name: &str) -> Vec<String> {
        let env = |rank| rank_environment(plan, rank, Generation(1), "a", 1);
        plan.ranks.iter().map(|rank| env(rank)[name].clone()).collect()
    }

    #[test]
    fn plan_4_an_excluded_host_keeps_its_index_and_the_others_count_without_it() {
        let next = replan(&three(), &names(&["b"]), &[], &[], PlanDraft::resolve).unwrap();
        assert_eq!(next.hosts.len(), 3);
        assert_eq!(next.ranks.iter().map(|rank| rank.node_rank.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(column(&next, "RANK"), ["0", "1"]);
        assert_eq!(column(&next, "NODE_RANK"), ["0", "1"]);
        assert_eq!(column(&next, "GROUP_WORLD_SIZE"), ["2", "2"]);
        assert_eq!(column(&next, "RANKDECK_NODE"), ["0", "2"]);
        assert_eq!(next.sizes.iter().find(|size| size.name == "num_envs").unwrap().local, 6);
        assert_eq!(next.hosts[2].trainer.as_deref(), Some("/t"));
    }

    #[test]
    fn hosts_come_back_in_their_place_and_new_ones_behind() {
        let two = replan(&three(), &names(&["b"]), &[], &[], PlanDraft::resolve).unwrap();
        let again = replan(&two, &names(&[]), &[host("b")], &[], PlanDraft::resolve).unwrap();
        assert_eq!(again.ranks, three().ranks);
        let probes = vec![Probe { trainer: Some("/n".into()), ..Probe::default() }; 4];
        let more = replan(&two, &names(&[]), &[host("d")], &probes, PlanDraft::resolve).unwrap();
        assert_eq!(more.ranks.iter().map(|rank| rank.node_rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn sizes_that_do_not_divide_name_the_key() {
        let mut plan = three();
        plan.experiment.env.as_mut().unwrap().num_envs = 9;
        let refused = replan(&plan, &names(&["c"]), &[], &[], PlanDraft::resolve).unwrap_err();
        assert_eq!(refused.key, "env.num_envs");
        assert!(
            refused.cause.error.contains("9 environments") && refused.cause.error.contains("2 ranks"),
            "{refused}"
        );
        for (exclude, add) in [(vec!["x"], vec![]), (vec![], vec![host("a")]), (vec!["a", "b", "c"], vec![])]
        {
            assert!(replan(&three(), &names(&exclude), &add, &[], PlanDraft::resolve).is_err());
        }
    }

    #[test]
    fn growing_from_one_machine_makes_it_reachable() {
        let one = with_trainer(draft(vec![host("a")], 12).resolve(&[]).unwrap());
        assert_eq!(
            (one.hosts[0].address.as_str(), one.hosts[0].interface.as_deref()),
            ("127.0.0.1", Some("lo"))
        );
        let probes = vec![Probe { trainer: Some("/n".into()), ..Probe::default() }; 2];
        let two = replan(&one, &names(&[]), &[host("b")], &probes, PlanDraft::resolve).unwrap();
        assert_ne!(two.hosts[0].address, "127.0.0.1");
        assert_eq!(two.hosts[0].interface, None);
    }
}
