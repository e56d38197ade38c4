//! The baseline of a set of hosts: a measurement that later ones are compared with.
//!
//! One file per set in `~/.cache/rankdeck/baselines`, named by the hosts' names and addresses. What cannot be read is
//! treated as absent: it is only ever a comparison.

use super::{Measurement, judge};
use crate::app::clock;
use rankdeck_core::model::SlowLink;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::{folders, trust};
use rankdeck_types::error::{HintedError, write_hint};
use rankdeck_types::host::Host;
use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

/// Directory of the cache.
const FOLDER: &str = "baselines";
/// Most bytes of a file.
const MOST: u64 = 16 << 20;

/// The name of the file of a set of hosts, whatever their order.
fn name(hosts: &[Host]) -> String {
    let mut lines: Vec<String> =
        hosts.iter().map(|host| format!("{}\t{}\n", host.name, host.address)).collect();
    lines.sort();
    let hash = Sha256::digest(lines.concat().as_bytes());
    format!("{}.json", words::hex(hash.get(..8).unwrap_or_default()))
}

/// Returns the baseline of these hosts, if there is one.
pub(crate) fn load(hosts: &[Host]) -> Option<Measurement> {
    let bytes = trust::read(&folders::cache().join(FOLDER).join(name(hosts)), MOST).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Makes a measurement the baseline of these hosts.
///
/// # Errors
/// It cannot be written.
pub(crate) fn save(hosts: &[Host], measured: &Measurement) -> Result<PathBuf, HintedError> {
    let path = folders::private_cache(FOLDER)?.join(name(hosts));
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let text = serde_json::to_vec_pretty(measured).unwrap_or_default();
    let written = trust::create(&part).and_then(|mut file| file.write_all(&text));
    let written = written.and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&part);
        let error = error.to_string();
        HintedError::new(format!("cannot write {}: {error}", path.display()), write_hint(&error))
    })?;
    Ok(path)
}

/// Describes the age of a measurement: `Nov 30, 3 days ago`.
pub(crate) fn age(measured: &Measurement) -> String {
    let seconds = (wall_time() - measured.time).max(0.0);
    let ago = match (seconds / 86_400.0) as usize {
        0 => format!("{} ago", words::duration(seconds)),
        days => format!("{} ago", words::plural(days, "day")),
    };
    format!("{}, {ago}", clock::day(measured.time))
}

/// Returns the slow links of the baseline of these hosts, for the evidence of a run.
pub(crate) fn slow_links(hosts: &[Host]) -> Vec<SlowLink> {
    let Some(measured) = (hosts.len() > 1).then(|| load(hosts)).flatten() else { return Vec::new() };
    let day = clock::day(measured.time);
    let link = |(pair, bps, usual_bps): (&super::PairMeasurement, f64, f64)| SlowLink {
        hosts: pair.hosts.clone(),
        bps,
        usual_bps,
        day: day.clone(),
    };
    judge::slow_pairs(&measured).into_iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_depends_on_hosts_and_not_on_their_order() {
        let host = |name: &str, address: &str| Host {
            name: name.into(),
            address: address.into(),
            ..Host::default()
        };
        let (a, b) = (host("a", "10.0.0.1"), host("b", "10.0.0.2"));
        assert_eq!(name(&[a.clone(), b.clone()]), name(&[b.clone(), a.clone()]));
        assert_ne!(name(&[a.clone(), b]), name(&[a, host("b", "10.0.0.3")]));
    }
}
