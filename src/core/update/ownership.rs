//! Ownership of the run: which launches this console follows, and what an agent's message may cause.
//!
//! A compromised agent can report any plan. Invariants:
//! - OWN-1: a console that launched the present generation follows another console's only when every host of
//!   its own confirms it: those with ranks report the same launch, and no process is left on the others.
//! - OWN-2: a plan that agents reported is launched again only if all of its hosts report the same one, and
//!   if the user was shown it, with the variables of the console that it passes.

use super::{link, policy, transition};
use crate::model::{EventTone, HostModel};
use crate::origin;
use crate::origin::exclusion;
use crate::report::ReportBody;
use crate::run::{ActiveLaunch, ConsoleRole};
use crate::session::{EventCtx, Goal};
use rankdeck_proto::message::{LaunchHash, LaunchSpec};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::plan::Plan;

/// The result of a launch that a host reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaunchFinding {
    /// It cannot be true; the host is given up.
    Flaw,
    Noted,
    /// This console follows it from now on: what hosts had reported about it can be applied.
    Followed,
}

/// The snapshot or a record of a host shows which launch it has accepted.
pub(super) fn seen(ctx: &mut EventCtx<'_>, node: NodeRank, spec: &LaunchSpec) -> LaunchFinding {
    let name = ctx.host_name(node);
    let foreign = ctx.model.run.id.as_ref().is_some_and(|run| *run != spec.plan.run);
    let flaw = match spec.plan.flaw() {
        None if foreign => Some(format!("it belongs to run {}", spec.plan.run)),
        flaw => flaw,
    };
    if let Some(flaw) = flaw {
        let error = format!("{name}: agent reported an invalid plan: {flaw}");
        link::fail(
            ctx,
            node,
            HintedError::new(error, "the host may be compromised: check it before you trust it"),
        );
        return LaunchFinding::Flaw;
    }
    let hash = spec.hash();
    let host = ctx.host(node);
    if host.machine.accepted(spec.generation, &hash) {
        (host.stopped, host.machine.launch_open) = (None, None);
        // The rank's log file of a new generation begins at line 0.
        for rank in ctx.model.ranks.iter_mut().filter(|rank| rank.node == node) {
            rank.log.next = 0;
        }
    }
    transition::take_part(ctx, spec.generation, &spec.plan);
    let newer = ctx.session.run.launch.as_ref().is_none_or(|launch| launch.generation < spec.generation);
    let mut followed = false;
    if newer && ctx.session.run.is_launcher() {
        rival(ctx, node, spec);
        followed = follow(ctx);
    } else if newer {
        let first = ctx.session.run.launch.is_none();
        adopt(ctx, spec, hash.clone());
        let text = if first {
            format!("attached to the run in generation {}", spec.generation)
        } else {
            format!("generation {} was launched by another console", spec.generation)
        };
        ctx.note(EventTone::Info, text);
    }
    if ctx.session.run.is_current(spec.generation)
        && !ctx.session.run.is_launcher()
        && ctx.model.run.launch.as_ref() == Some(&hash)
        && let Some(plan) = &mut ctx.model.plan
    {
        plan.take_own(node, &spec.plan);
    }
    compare(ctx);
    if followed { LaunchFinding::Followed } else { LaunchFinding::Noted }
}

/// A host reports a newer launch than the current one, which this console has made.
pub(super) fn rival(ctx: &mut EventCtx<'_>, node: NodeRank, spec: &LaunchSpec) {
    let name = ctx.host_name(node);
    let host = ctx.host(node);
    if host.machine.rival.as_deref() != Some(spec) {
        host.machine.rival = Some(Box::new(spec.clone()));
        let text = format!("reports generation {} of another console", spec.generation);
        ctx.note(EventTone::Warn, format!("{name} {text}"));
        ctx.report(ReportBody::Notice { node_rank: node, host: name, text });
    }
}

/// Follows a launch of another console once it is confirmed (OWN-1). Returns whether it did.
pub(super) fn follow(ctx: &mut EventCtx<'_>) -> bool {
    if !ctx.session.run.is_launcher() {
        return false;
    }
    let rivals = ctx.model.hosts.iter().filter_map(|host| host.machine.rival.clone());
    let Some(spec) = rivals.max_by_key(|spec| spec.generation) else { return false };
    let hash = spec.hash();
    let confirms = |host: &HostModel| {
        if spec.plan.has_ranks(host.node_rank) {
            host.machine.launch_hash.as_ref() == Some(&hash)
        } else {
            host.is_clear()
        }
    };
    // A host that joins the run there may have no link here yet.
    let own = |host: &&HostModel| ctx.is_member(host) || host.machine.is_connected() && ctx.counts(host);
    let confirmed = ctx.model.hosts.iter().filter(own).all(confirms);
    if confirmed {
        for host in &mut ctx.model.hosts {
            host.machine.rival = None;
        }
        adopt(ctx, &spec, hash);
        let text = format!("generation {} was launched by another console", spec.generation);
        ctx.note(EventTone::Info, text);
    }
    confirmed
}

/// Makes a launch that agents report the current one.
fn adopt(ctx: &mut EventCtx<'_>, spec: &LaunchSpec, hash: LaunchHash) {
    ctx.model.run.master = format!("{}:{}", spec.master_addr, spec.master_port);
    let (generation, resume) = (spec.generation, spec.resume.clone());
    ctx.model.run.launch = Some(hash);
    transition::begin_generation(
        ctx,
        spec.plan.clone(),
        ActiveLaunch {
            generation,
            resume,
            placed: Default::default(),
            after_end: false,
            role: ConsoleRole::Onlooker,
        },
    );
}

/// Hosts that disagree with this console's launch, or with the current one.
pub(super) fn compare(ctx: &mut EventCtx<'_>) {
    let Some(present) = ctx.session.run.launch.as_ref().map(|launch| launch.generation) else { return };
    let reference = ctx.model.run.launch.clone();
    let differs = |host: &&HostModel| match host.machine.generation {
        Some(generation) if generation == present => host.machine.launch_hash != reference,
        Some(generation) if generation > present => true,
        Some(_) => host.caught_up() && !host.is_clear(),
        None => false,
    };
    let names: Vec<String> = ctx.model.hosts.iter().filter(differs).map(|host| host.name.clone()).collect();
    ctx.model.run.differing = names;
}

/// Whether a restart without the hosts of these names may be made (OWN-2). Reports why not.
pub(super) fn may_restart(ctx: &mut EventCtx<'_>, shown: Option<&LaunchHash>, excluded: &[String]) -> bool {
    let launches = matches!(ctx.session.goal, Goal::Launch(_)) && ctx.session.run.launch.is_none();
    if launches || ctx.session.run.is_launcher() || ctx.session.run.exited {
        return true;
    }
    compare(ctx);
    let refusal = match (&ctx.model.plan, &ctx.model.run.launch) {
        (Some(plan), Some(launch)) => objection(ctx, plan, launch, shown, excluded),
        _ => Some("the run is unknown until a host responds".to_string()),
    };
    let Some(text) = refusal else { return true };
    policy::refuse(ctx, text);
    false
}

fn objection(
    ctx: &EventCtx<'_>,
    plan: &Plan,
    launch: &LaunchHash,
    shown: Option<&LaunchHash>,
    excluded: &[String],
) -> Option<String> {
    let differing = &ctx.model.run.differing;
    if !differing.is_empty() {
        return Some(format!(
            "hosts disagree about the run; one may be compromised: {} and the others",
            differing.join(", ")
        ));
    }
    let silent: Vec<String> = plan
        .members()
        .filter(|planned| !excluded.contains(&planned.host.name))
        .filter(|planned| {
            let host = ctx.model.hosts.get(planned.node_rank.index());
            host.is_none_or(|host| host.machine.launch_hash.as_ref() != Some(launch))
        })
        .map(|planned| planned.host.name.clone())
        .collect();
    if !silent.is_empty() {
        let error = format!("no response from {}, which must confirm the plan", silent.join(", "));
        let hint = exclusion(ctx.model, &silent).unwrap_or_default();
        return Some(HintedError { error, hint }.with_hint());
    }
    (shown != origin::shown(ctx.model).as_ref())
        .then(|| "another console launched this run: review its command and confirm the restart".to_string())
}
