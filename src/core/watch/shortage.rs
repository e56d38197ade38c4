//! Ranks that want a core and get none: their host has none to spare, or their group has used up its quota.
//! Pure.
//!
//! What such a rank does takes long, and stands still as what is stuck does. Its silence then means less.

use super::movement::IDLE;
use super::quota;
use super::rank_view::RankView;
use crate::reason::Reason;
use rankdeck_types::words;

/// Share of the time without a core from which a rank is starved. [`STARVED`] is how many times its budget
/// that may last: an endless loop on a busy host looks the same.
const DELAYED: f64 = 0.2;
/// CPU share from which a rank on a busy host has its part of it.
const FAIR: f64 = 0.5;
pub(super) const STARVED: u64 = 4;

/// It has something to do and does not get a core for it. One that only waits uses none at all, however busy
/// its host is.
pub(super) fn starved(view: &RankView<'_>) -> bool {
    let busy = cores_are_short(view);
    let moved = view.moved();
    // What runs beside the main thread says nothing about it.
    let own = moved.main_cpu.or(moved.cpu);
    let waits = view.sample.state == 'R' || moved.delayed >= DELAYED || own.is_some_and(|cpu| cpu > IDLE);
    busy && waits && own.is_some_and(|cpu| cpu < FAIR)
}

/// Its host has no core to spare, or its group has used up its share of them.
pub(super) fn cores_are_short(view: &RankView<'_>) -> bool {
    view.host.is_busy() || view.moved().throttled.is_some_and(|share| share >= DELAYED)
}

/// Something of the rank wants a core and gets none: its main thread, another thread of it, or a child. Where
/// cores are short, that is so until somebody has looked.
pub(super) fn lacks_cores(view: &RankView<'_>) -> bool {
    starved(view) || (cores_are_short(view) && view.look.is_none_or(|look| look.lacks_cores))
}

/// How many times longer everything may take where cores are short.
pub(super) fn stretch(view: &RankView<'_>) -> u64 {
    (view.host.crowd.ceil() as u64).max(STARVED)
}

/// Cores are short, and the rank and its children get little CPU or wait for it, so that all they do takes
/// long.
pub(super) fn gets_little(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let children_ms: u64 = moved.children.iter().map(|child| child.cpu_ms).sum();
    let children = children_ms as f64 / moved.over_ms.max(1) as f64;
    let share = moved.cpu.unwrap_or(0.0) + children;
    let ready = || view.sample.signals.children.iter().any(|child| child.state == 'R');
    cores_are_short(view) && share < FAIR && (share > 0.0 || ready() || starved(view))
}

/// Why it gets none; `None` where cores are not short.
pub(super) fn reason(view: &RankView<'_>) -> Option<Reason> {
    let quota = view.moved().throttled.is_some_and(|share| share >= DELAYED);
    match (quota, view.host.is_busy()) {
        // On a full host, too, the kernel's own count is what is known for certain.
        (true, _) => Some(Reason::Throttled),
        (false, true) => Some(Reason::HostOverloaded),
        (false, false) => None,
    }
}

/// What of this was seen, for the card of a rank whose silence is not red because of it.
pub(super) fn facts(view: &RankView<'_>) -> Vec<String> {
    let (host, moved) = (&view.host, view.moved());
    let mut facts = Vec::new();
    if let Some(share) = moved.throttled.filter(|share| *share >= DELAYED) {
        facts.push(quota::used_up(share));
    }
    if host.is_busy() {
        let pressure = host.pressure.map(|(cpu, _)| format!(", tasks wait for one {cpu:.0} % of the time"));
        facts.push(format!(
            "no core is free on its host: {:.0} % busy{}, {:.1} tasks for each core",
            host.cpu_percent,
            pressure.unwrap_or_default(),
            host.crowd
        ));
    }
    if let Some(cpu) = moved.main_cpu.or(moved.cpu).filter(|_| moved.over_ms > 0) {
        facts.push(format!(
            "in the latest {} it had a core {:.0} % of the time, and was ready and had none {:.0} %",
            words::duration_ms(moved.over_ms),
            cpu.min(1.0) * 100.0,
            moved.delayed.min(1.0) * 100.0
        ));
    }
    facts
        .push(format!("while that is so, it may be silent {} times as long before it is red", stretch(view)));
    facts
}
