//! Findings of a measurement: slow links, hosts and disks, and changes against the baseline. Pure.

use super::{HostMeasurement, Measurement, PairMeasurement};
use rankdeck_types::words::{bit_rate, bytes};
use std::collections::BTreeMap;

/// A link is slow if the usual one is this many times as fast.
const SLOW_LINK: f64 = 3.0;
/// A round trip is long if it takes this many times as long as the usual one, and this many seconds longer.
const LONG_TRIP: f64 = 5.0;
const LONGER_S: f64 = 0.0005;
/// A disk is slow if the usual one is this many times as fast, or if it writes fewer bytes per second than that.
const SLOW_DISK: f64 = 4.0;
const SLOW_DISK_RATE: f64 = 10e6;
/// Clocks are apart from this many seconds on: later, a host's events may be in the wrong order.
const CLOCK_S: f64 = 0.1;
/// A value has changed for the worse if it is this many times worse than in the baseline.
const CHANGED: f64 = 2.0;
/// What to do about a link.
const LINK_HINT: &str = "check speed and errors with `ethtool` and `ip -s link` on both hosts; `interface` in the hosts file \
    selects a network";
/// Most sentences of a kind; the rest is counted.
const MOST: usize = 8;

/// The upper median; of two values, the greater one.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The usual value: the median over the hosts of each host's best pair. One slow host changes it little, although it
/// is part of many pairs.
fn usual(
    pairs: &[PairMeasurement],
    value: fn(&PairMeasurement) -> Option<f64>,
    best: fn(f64, f64) -> f64,
) -> Option<f64> {
    let mut bests: BTreeMap<&str, f64> = BTreeMap::new();
    for pair in pairs {
        let Some(value) = value(pair) else { continue };
        for host in &pair.hosts {
            bests.entry(host).and_modify(|known| *known = best(*known, value)).or_insert(value);
        }
    }
    median(bests.into_values().collect())
}

/// Slow pairs with their bit rate and the usual one.
pub(crate) fn slow_pairs(measured: &Measurement) -> Vec<(&PairMeasurement, f64, f64)> {
    let usual = usual(&measured.pairs, PairMeasurement::bps, f64::max).unwrap_or_default();
    let slow = |pair: &&PairMeasurement| pair.bps().is_some_and(|bps| bps * SLOW_LINK <= usual);
    let found = measured.pairs.iter().filter(slow);
    found.filter_map(|pair| Some((pair, pair.bps()?, usual))).collect()
}

/// How many times, for people.
fn times(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.1}x").replace(".0x", "x") } else { format!("{factor:.0}x") }
}

/// Something unusual, and how to look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anomaly {
    /// One sentence, with the host or pair first.
    pub(crate) text: String,
    pub(crate) hint: &'static str,
}

/// The first sentences of a kind, and how many there are more.
fn few(mut found: Vec<String>, hint: &'static str) -> impl Iterator<Item = Anomaly> {
    let more = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    found.extend((more > 0).then(|| format!("and {more} more")));
    found.into_iter().map(move |text| Anomaly { text, hint })
}

/// Returns what is unusual.
pub(crate) fn facts(measured: &Measurement) -> Vec<Anomaly> {
    let failed = |pair: &PairMeasurement| Some(format!("{}: {}", pair.name(), pair.error.as_ref()?));
    let host_failed = |host: &HostMeasurement| Some(format!("{}: {}", host.name, host.error.as_ref()?));
    let failed = measured.pairs.iter().filter_map(failed).collect();
    let host_failed = measured.hosts.iter().filter_map(host_failed).collect();
    let all = few(
        failed,
        "check firewalls and routes between the hosts; `interface` in the hosts file selects a network",
    )
    .chain(few(host_failed, "check `workdir` and the logs of the host"))
    .chain(few(slow_links(measured), LINK_HINT))
    .chain(few(long_trips(measured), LINK_HINT))
    .chain(few(slow_disks(measured), "set `workdir` to a faster disk; checkpoints go there"))
    .chain(few(clocks(measured), "synchronize the clocks (chrony, systemd-timesyncd)"));
    all.collect()
}

/// A host whose pairs are all slow is named once.
fn slow_links(measured: &Measurement) -> Vec<String> {
    let mut slow = slow_pairs(measured);
    let mut found = Vec::new();
    for HostMeasurement { name, .. } in &measured.hosts {
        let is_own = |pair: &PairMeasurement| pair.hosts.contains(name);
        let own = measured.pairs.iter().filter(|pair| is_own(pair) && pair.bps().is_some()).count();
        let (theirs, others): (Vec<_>, Vec<_>) = slow.iter().copied().partition(|(pair, ..)| is_own(pair));
        if own > 1 && theirs.len() == own {
            let best = theirs.iter().map(|(_, bps, _)| *bps).fold(0.0, f64::max);
            let usual = theirs.first().map_or(0.0, |(_, _, usual)| *usual);
            found.push(format!(
                "{name}: at most {} to every other host, {} slower than usual ({})",
                bit_rate(best),
                times(usual / best),
                bit_rate(usual)
            ));
            slow = others;
        }
    }
    found.extend(slow.into_iter().map(|(pair, bps, usual)| {
        let (own, factor) = (bit_rate(bps), times(usual / bps));
        format!("{}: {own}, {factor} slower than usual ({})", pair.name(), bit_rate(usual))
    }));
    let uneven = |pair: &PairMeasurement| {
        let (there, back) = (pair.there_bps?, pair.back_bps?);
        let factor = there.max(back) / there.min(back);
        let [one, other] = &pair.hosts;
        let (from, to) = if there < back { (one, other) } else { (other, one) };
        let (less, more) = (bit_rate(there.min(back)), bit_rate(there.max(back)));
        let known = [format!("{}:", pair.name()), format!("{one}:"), format!("{other}:")];
        let is_known = found.iter().any(|fact: &String| known.iter().any(|name| fact.starts_with(name)));
        (factor >= SLOW_LINK && one != other && !is_known).then(|| {
            format!("{from} to {to}: {less}, {} slower than in the other direction ({more})", times(factor))
        })
    };
    let uneven: Vec<String> = measured.pairs.iter().filter_map(uneven).collect();
    found.extend(uneven);
    found
}

fn long_trips(measured: &Measurement) -> Vec<String> {
    let usual = usual(&measured.pairs, |pair| pair.latency_s, f64::min).unwrap_or_default();
    let long = |pair: &PairMeasurement| {
        let own = pair.latency_s.filter(|own| *own >= usual * LONG_TRIP && *own >= usual + LONGER_S)?;
        Some(format!("{}: {} round trip, usually {}", pair.name(), short_time(own), short_time(usual)))
    };
    measured.pairs.iter().filter_map(long).collect()
}

fn slow_disks(measured: &Measurement) -> Vec<String> {
    let usual = median(measured.hosts.iter().filter_map(HostMeasurement::disk_rate).collect());
    let usual = usual.filter(|_| measured.hosts.len() > 1).unwrap_or_default();
    let slow = |host: &HostMeasurement| {
        let rate = host.disk_rate()?;
        let wrote = format!("{}: {}/s to its workdir", host.name, bytes(rate as u64));
        match rate * SLOW_DISK <= usual {
            true => Some(format!(
                "{wrote}, {} slower than usual ({}/s)",
                times(usual / rate),
                bytes(usual as u64)
            )),
            false => (rate < SLOW_DISK_RATE).then(|| format!("{wrote}: checkpoints will be slow")),
        }
    };
    measured.hosts.iter().filter_map(slow).collect()
}

fn clocks(measured: &Measurement) -> Vec<String> {
    let other = measured.hosts.first().filter(|_| measured.hosts.len() > 1);
    let other = other.map_or("this machine", |first| first.name.as_str());
    let apart = |host: &HostMeasurement| {
        let (clock, bound) = (host.clock_s?, host.clock_bound_s?);
        let word = if clock > 0.0 { "ahead of" } else { "behind" };
        (clock.abs() - bound > CLOCK_S)
            .then(|| format!("{}: its clock is {:.2} s {word} {other}", host.name, clock.abs()))
    };
    measured.hosts.iter().filter_map(apart).collect()
}

/// `85 us`, `1.2 ms`, `2.5 s`.
pub(crate) fn short_time(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.099_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// The pair of the same hosts in a baseline, in the same direction.
pub(crate) fn same_pair(before: &Measurement, pair: &PairMeasurement) -> Option<PairMeasurement> {
    let [one, other] = &pair.hosts;
    before.pairs.iter().find_map(|known| match &known.hosts {
        hosts if *hosts == pair.hosts => Some(known.clone()),
        [known_one, known_other] if known_one == other && known_other == one => Some(PairMeasurement {
            hosts: pair.hosts.clone(),
            there_bps: known.back_bps,
            back_bps: known.there_bps,
            ..known.clone()
        }),
        _ => None,
    })
}

/// The host of the same name in a baseline.
pub(crate) fn same_host<'a>(before: &'a Measurement, host: &HostMeasurement) -> Option<&'a HostMeasurement> {
    before.hosts.iter().find(|known| known.name == host.name)
}

/// Returns what is worse than in the baseline.
pub(crate) fn changes(now: &Measurement, before: &Measurement) -> Vec<Anomaly> {
    let mut found = Vec::new();
    for pair in &now.pairs {
        let Some(known) = same_pair(before, pair) else { continue };
        let name = pair.name();
        match (pair.bps(), known.bps()) {
            (Some(own), Some(was)) if own * CHANGED <= was => {
                found.push(format!("{name}: {}, was {}", bit_rate(own), bit_rate(was)));
            }
            (None, Some(was)) => found.push(format!("{name}: not measured, was {}", bit_rate(was))),
            _ => {}
        }
        if let (Some(own), Some(was)) = (pair.latency_s, known.latency_s)
            && own >= was * CHANGED
            && own >= was + LONGER_S
        {
            found.push(format!("{name}: {} round trip, was {}", short_time(own), short_time(was)));
        }
    }
    let hosts = now.hosts.len();
    if let (Some(whole), Some(known)) = (&now.whole, &before.whole)
        && let (Some(own), Some(was)) = (whole.bus_bps(hosts), known.bus_bps(before.hosts.len()))
        && was > 0.0
        && own * CHANGED <= was
    {
        found.push(format!("all-reduce: {} on each link, was {}", bit_rate(own), bit_rate(was)));
    }
    for host in &now.hosts {
        let known = same_host(before, host).and_then(HostMeasurement::disk_rate);
        if let (Some(own), Some(was)) = (host.disk_rate(), known)
            && own * CHANGED <= was
        {
            let [own, was] = [own, was].map(|rate| bytes(rate as u64));
            found.push(format!("{}: {own}/s to its workdir, was {was}/s", host.name));
        }
    }
    few(found, "if this is expected, make it the baseline with `rankdeck check --measure --save`").collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cli::support::measure::WholeMeasurement;

    /// Hosts `gpu-a`, `gpu-b`, ... with 9.4 Gb/s between all of them.
    pub(crate) fn even(count: usize) -> Measurement {
        let name = |node: usize| format!("gpu-{}", (b'a' + node as u8) as char);
        let host = |node: usize| HostMeasurement {
            name: name(node),
            clock_s: Some(0.0001 * node as f64),
            clock_bound_s: Some(0.00004),
            disk_bytes: 64 << 20,
            disk_s: Some(0.05),
            error: None,
        };
        let pair = |one: usize, other: usize| PairMeasurement {
            hosts: [name(one), name(other)],
            latency_s: Some(0.000_085),
            there_bps: Some(9.4e9),
            back_bps: Some(9.3e9),
            error: None,
        };
        Measurement {
            time: 1_764_500_000.0,
            hosts: (0..count).map(host).collect(),
            pairs: (0..count).flat_map(|one| (one + 1..count).map(move |other| pair(one, other))).collect(),
            whole: (count > 1).then_some(WholeMeasurement {
                latency_s: Some(0.0004),
                bytes: 64 << 20,
                seconds: Some(0.08),
                error: None,
            }),
        }
    }

    fn slow(measured: &mut Measurement, host: &str) {
        for pair in measured.pairs.iter_mut().filter(|pair| pair.hosts.iter().any(|name| name == host)) {
            pair.there_bps = Some(0.9e9);
        }
    }

    #[test]
    fn even_hosts_have_no_facts() {
        for count in 1..5 {
            assert_eq!(facts(&even(count)), []);
            assert_eq!(changes(&even(count), &even(count)), []);
        }
    }

    #[test]
    fn slow_link_is_named_by_its_pair() {
        let mut measured = even(4);
        measured.pairs[3].there_bps = Some(1.5e9);
        let found = facts(&measured);
        assert!(found.len() == 1 && found[0].text.contains("gpu-b to gpu-c"), "{found:?}");
        assert_eq!(slow_pairs(&measured)[0].0.hosts, ["gpu-b", "gpu-c"]);
    }

    #[test]
    fn slow_host_is_named_once() {
        for count in [3, 4, 8] {
            let mut measured = even(count);
            slow(&mut measured, "gpu-b");
            let found = facts(&measured);
            assert!(found.len() == 1 && found[0].text.starts_with("gpu-b:"), "{count} hosts: {found:?}");
            assert_eq!(slow_pairs(&measured).len(), count - 1);
        }
    }

    #[test]
    fn uneven_directions_are_named_in_the_slow_one() {
        let mut measured = even(2);
        measured.pairs[0].back_bps = Some(1e9);
        let found = facts(&measured);
        assert!(found.len() == 1 && found[0].text.starts_with("gpu-b to gpu-a"), "{found:?}");
    }

    #[test]
    fn failed_pair_slow_disk_and_clock_are_facts() {
        let mut measured = even(3);
        measured.pairs[1] = PairMeasurement {
            hosts: measured.pairs[1].hosts.clone(),
            error: Some("no response".into()),
            ..PairMeasurement::default()
        };
        measured.hosts[1].disk_s = Some(5.0);
        measured.hosts[2].clock_s = Some(-1.2);
        let found = facts(&measured);
        let firsts: Vec<&str> = found.iter().filter_map(|fact| fact.text.split(':').next()).collect();
        assert_eq!(firsts, ["gpu-a to gpu-c", "gpu-b", "gpu-c"]);
    }

    #[test]
    fn changes_compare_the_same_pair_in_any_order() {
        let (before, mut now) = (even(3), even(3));
        now.hosts.reverse();
        now.pairs.iter_mut().for_each(|pair| pair.hosts.reverse());
        assert_eq!(changes(&now, &before), []);
        now.pairs[0].there_bps = Some(1e9);
        now.hosts[0].disk_s = Some(1.0);
        let found = changes(&now, &before);
        assert!(
            found.len() == 2 && found[0].text.contains("gpu-b to gpu-a") && found[1].text.contains("gpu-c"),
            "{found:?}"
        );
    }
}
