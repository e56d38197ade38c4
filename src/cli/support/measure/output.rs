//! Prints a measurement as tables or as JSON, with the change against the baseline. Pure but for the age.

use super::{HostMeasurement, Measurement, PairMeasurement, WholeMeasurement, judge};
use crate::cli::support::print;
use rankdeck_types::words::{NONE, bit_rate, bytes, plural};
use serde_json::{Value, json};

/// Most pairs of the table: the slowest ones.
const MOST_PAIRS: usize = 24;
/// Changes below this share are noise.
const NOISE: f64 = 0.1;

/// Returns the tables, as text.
pub(crate) fn text(now: &Measurement, before: Option<&Measurement>) -> String {
    let mut parts = Vec::new();
    if !now.pairs.is_empty() {
        parts.push(print::table(&pair_rows(now, before)));
        if now.pairs.len() > MOST_PAIRS {
            parts.push(format!("{} faster", plural(now.pairs.len() - MOST_PAIRS, "more pair")));
        }
    }
    parts.push(print::table(&host_rows(now, before)));
    parts.extend(now.whole.as_ref().and_then(|whole| whole_line(now, whole, before)));
    parts.join("\n\n")
}

/// The change of a rate, of which more is better.
fn change(own: Option<f64>, was: Option<f64>) -> String {
    match (own, was) {
        (Some(own), Some(was)) if was > 0.0 => match own / was - 1.0 {
            share if share.abs() < NOISE => "same".to_owned(),
            share if share > 9.0 => format!("{:.0}x", share + 1.0),
            share => format!("{:+.0}%", share * 100.0),
        },
        (Some(_), None) => "new".to_owned(),
        _ => NONE.to_owned(),
    }
}

/// A header or a row, with the column of changes only if there is a baseline.
fn row<const N: usize>(cells: [String; N], change: Option<String>) -> Vec<String> {
    cells.into_iter().chain(change).collect()
}

fn pair_rows(now: &Measurement, before: Option<&Measurement>) -> Vec<Vec<String>> {
    let header = ["PAIR", "ROUND TRIP", "THERE", "BACK"].map(str::to_owned);
    let header = row(header, before.map(|_| "CHANGE".to_owned()));
    let mut pairs: Vec<&PairMeasurement> = now.pairs.iter().collect();
    if pairs.len() > MOST_PAIRS {
        // What was not measured comes first.
        pairs.sort_by(|a, b| a.bps().unwrap_or(0.0).total_cmp(&b.bps().unwrap_or(0.0)));
        pairs.truncate(MOST_PAIRS);
    }
    let rate = |value: Option<f64>| value.map_or(NONE.to_owned(), bit_rate);
    let cells = |pair: &&PairMeasurement| {
        let latency = pair.latency_s.map_or(NONE.to_owned(), judge::short_time);
        let cells = [pair.name(), latency, rate(pair.there_bps), rate(pair.back_bps)];
        let was = |before: &Measurement| judge::same_pair(before, pair).and_then(|pair| pair.bps());
        row(cells, before.map(|before| change(pair.bps(), was(before))))
    };
    std::iter::once(header).chain(pairs.iter().map(cells)).collect()
}

fn host_rows(now: &Measurement, before: Option<&Measurement>) -> Vec<Vec<String>> {
    let size = now.hosts.iter().map(|host| host.disk_bytes).max().unwrap_or_default();
    let write = if size == 0 { "WRITE".to_owned() } else { format!("WRITE {}", bytes(size)) };
    let header = row(["HOST".to_owned(), "CLOCK".to_owned(), write], before.map(|_| "CHANGE".to_owned()));
    let cells = |host: &HostMeasurement| {
        let disk = host.disk_s.map_or(NONE.to_owned(), |seconds| {
            let part = if host.disk_bytes < size {
                format!("{} in ", bytes(host.disk_bytes))
            } else {
                String::new()
            };
            format!("{part}{}", judge::short_time(seconds))
        });
        let was = |before: &Measurement| judge::same_host(before, host).and_then(HostMeasurement::disk_rate);
        row(
            [host.name.clone(), clock(host), disk],
            before.map(|before| change(host.disk_rate(), was(before))),
        )
    };
    std::iter::once(header).chain(now.hosts.iter().map(cells)).collect()
}

/// The offset of a clock with its bound.
fn clock(host: &HostMeasurement) -> String {
    let (Some(clock), Some(bound)) = (host.clock_s, host.clock_bound_s) else { return NONE.to_owned() };
    if bound == 0.0 {
        return "reference".to_owned();
    }
    let sign = if clock < 0.0 { "-" } else { "+" };
    format!("{sign}{} ± {}", judge::short_time(clock.abs()), judge::short_time(bound))
}

fn whole_line(now: &Measurement, whole: &WholeMeasurement, before: Option<&Measurement>) -> Option<String> {
    let hosts = now.hosts.len();
    let (seconds, bus) = (whole.seconds?, whole.bus_bps(hosts)?);
    let was = before.map(|before| before.whole.as_ref().and_then(|whole| whole.bus_bps(before.hosts.len())));
    let change = was.map(|was| format!(", {}", change(Some(bus), was))).unwrap_or_default();
    let latency = whole.latency_s.map(|latency| format!(", {} for 8 bytes each", judge::short_time(latency)));
    Some(format!(
        "all-reduce over {}: {} in {}, {} on each link{change}{}",
        plural(hosts, "host"),
        bytes(whole.bytes),
        judge::short_time(seconds),
        bit_rate(bus),
        latency.unwrap_or_default()
    ))
}

/// Returns one JSON object per pair, per host and for the whole.
pub(crate) fn as_json(now: &Measurement, before: Option<&Measurement>, run: &str) -> Vec<Value> {
    let line = |of: &str, fields: Value| {
        let mut line = json!({
            "kind": "measurement", "run": run, "generation": 0, "time": now.time, "of": of,
        });
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        line
    };
    let pair_values = |pair: &PairMeasurement| json!({ "latency_s": pair.latency_s, "there_bps": pair.there_bps, "back_bps": pair.back_bps });
    let host_values =
        |host: &HostMeasurement| json!({ "disk_bytes": host.disk_bytes, "disk_s": host.disk_s });
    let whole_values = |whole: &WholeMeasurement, hosts: usize| {
        json!({
            "latency_s": whole.latency_s,
            "bytes": whole.bytes,
            "seconds": whole.seconds,
            "bus_bps": whole.bus_bps(hosts),
        })
    };
    let joined = |values: Value, more: Value| {
        let (mut all, Value::Object(more)) = (values, more) else { return Value::Null };
        if let Value::Object(all) = &mut all {
            all.extend(more);
        }
        all
    };
    let mut lines = Vec::new();
    for pair in &now.pairs {
        let known = before.and_then(|before| judge::same_pair(before, pair));
        let more = json!({ "baseline": known.as_ref().map(pair_values), "error": pair.error });
        lines.push(line("pair", joined(json!({ "hosts": pair.hosts }), joined(pair_values(pair), more))));
    }
    for host in &now.hosts {
        let known = before.and_then(|before| judge::same_host(before, host));
        let more = json!({
            "clock_s": host.clock_s,
            "clock_bound_s": host.clock_bound_s,
            "baseline": known.map(host_values),
            "error": host.error,
        });
        lines.push(line("host", joined(json!({ "hosts": [host.name] }), joined(host_values(host), more))));
    }
    if let Some(whole) = &now.whole {
        let known = before.and_then(|before| Some(whole_values(before.whole.as_ref()?, before.hosts.len())));
        let names: Vec<&str> = now.hosts.iter().map(|host| host.name.as_str()).collect();
        let more = json!({ "baseline": known, "error": whole.error });
        let values = joined(whole_values(whole, now.hosts.len()), more);
        lines.push(line("whole", joined(json!({ "hosts": names }), values)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::measure::judge::tests::even;

    #[test]
    fn tables_show_values_and_changes() {
        let before = even(3);
        let mut now = even(3);
        now.pairs[1].there_bps = Some(0.94e9);
        now.pairs[2] = PairMeasurement {
            hosts: now.pairs[2].hosts.clone(),
            error: Some("refused".into()),
            ..PairMeasurement::default()
        };
        now.hosts[2].disk_s = Some(0.5);
        insta::assert_snapshot!(format!("{}\n\n{}", text(&even(1), None), text(&now, Some(&before))));
    }

    #[test]
    fn table_of_many_pairs_keeps_the_slowest() {
        let mut now = even(16);
        now.pairs[100].there_bps = Some(1e6);
        let rows = pair_rows(&now, None);
        assert_eq!((rows.len(), rows[1][2].as_str()), (MOST_PAIRS + 1, "1.0 Mb/s"));
    }

    #[test]
    fn json_lines_carry_values_and_baseline() {
        let lines = as_json(&even(2), Some(&even(2)), "r");
        let kinds: Vec<&str> = lines.iter().filter_map(|line| line["of"].as_str()).collect();
        assert_eq!(kinds, ["pair", "host", "host", "whole"]);
        assert_eq!(lines[0]["baseline"]["there_bps"], 9.4e9);
        assert_eq!((&lines[1]["hosts"][0], &lines[1]["disk_s"]), (&json!("gpu-a"), &json!(0.05)));
        assert!(lines[3]["bus_bps"].as_f64().is_some_and(|bps| (6.7e9..6.8e9).contains(&bps)));
        let alone = as_json(&even(2), None, "r");
        assert!(alone.iter().all(|line| line["baseline"].is_null()));
    }
}
