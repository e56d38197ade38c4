//! `rankdeck logs --grep`, `--since` and the like: the hosts look through the logs that they keep, all at
//! once.

use super::args::{LogsArgs, moment};
use super::join::Target;
use super::roster::{decode, exec_on_all};
use super::{Failure, code, print};
use crate::shell::stderr;
use rankdeck_proto::search::{LogFindings, LogHit, LogSearch};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::words::{clean_output, count};
use std::cmp::Ordering;

/// Nothing matched: what `grep` says, too.
const NOTHING: u8 = 1;

/// Asks every host of the run, and prints what matches.
pub async fn search(target: &Target, pattern: &str, args: &LogsArgs) -> Result<u8, Failure> {
    let wanted = LogSearch {
        node: None,
        pattern: pattern.to_owned(),
        rank: args.rank.map(Rank),
        generation: args.generation.map(Generation),
        since: args.since,
        until: args.until,
        context: args.context,
        limit: args.limit,
        ..LogSearch::default()
    };
    let ask = |host: &Host| {
        let node = target.hosts.iter().position(|known| known.name == host.name);
        let node = node.and_then(|node| u32::try_from(node).ok()).map(NodeRank);
        // Its fields are plain numbers and texts: it always becomes JSON.
        let json = serde_json::to_string(&LogSearch { node, ..wanted.clone() }).unwrap_or_default();
        let named = ["--run", &target.run.0, "--workdir", &host.workdir, "--wanted", &json];
        std::iter::once("search").chain(named).map(str::to_owned).collect()
    };
    let answers = exec_on_all(&target.hosts, &args.host_keys, ask).await?;
    let (mut lines, mut more, mut untimed, mut failed) = (0, 0, 0, None);
    let mut hits: Vec<(&str, LogHit)> = Vec::new();
    for (host, answer) in target.hosts.iter().zip(answers) {
        let of_host = |failed: HintedError| HintedError {
            error: format!("host {}: {}", host.name, failed.error),
            ..failed
        };
        let found: LogFindings = match answer.map_err(of_host).and_then(|text| decode(host, &text)) {
            Ok(found) => found,
            Err(error) => {
                stderr::line(&format!("error: {}", error.error));
                failed.get_or_insert(error);
                continue;
            }
        };
        if !found.cut.is_empty() {
            stderr::line(&format!("warning: {}: {}", host.name, found.cut));
        }
        (lines, more, untimed) = (lines + found.lines, more + found.more, untimed + found.untimed);
        hits.extend(found.hits.into_iter().map(|hit| (host.name.as_str(), hit)));
    }
    if hits.iter().all(|(_, hit)| hit.time.is_some()) {
        hits.sort_by(|(_, a), (_, b)| a.time.partial_cmp(&b.time).unwrap_or(Ordering::Equal));
    }
    let timed = args.times || args.since.is_some() || args.until.is_some();
    let context = wanted.context > 0;
    for (host, hit) in &hits {
        let time = timed.then(|| moment::shown(hit.time));
        if !shown(host, hit, context, time.as_deref()).iter().all(|line| print::stdout(line)) {
            break;
        }
    }
    let older =
        if more > 0 { format!(", {} older ones left out (--limit)", count(more)) } else { String::new() };
    let all = hits.len() as u64 + more;
    let untimed = if untimed > 0 {
        format!("; {} have no time and are left out", count(untimed))
    } else {
        String::new()
    };
    stderr::line(&format!("{} of {} lines match{older}{untimed}", count(all), count(lines)));
    match failed {
        Some(error) => Err(error.into()),
        None if hits.is_empty() => Ok(NOTHING),
        None => Ok(code::SUCCESS),
    }
}

/// A hit as lines, as `grep` shows them: `:` before what matches, `-` before what surrounds it.
fn shown(host: &str, hit: &LogHit, context: bool, time: Option<&str>) -> Vec<String> {
    let (rank, first) = (hit.rank, hit.line.saturating_sub(hit.before.len() as u64));
    let time = time.map_or(String::new(), |time| format!("{time} "));
    let name = match hit.generation {
        Generation(0) => format!("{host}:{rank}"),
        generation => format!("{host}:{rank} gen {generation}"),
    };
    let line = |number: u64, sign: char, text: &str| {
        format!("{time}{name}{sign}{number}{sign} {}", clean_output(text))
    };
    let mut lines: Vec<String> =
        hit.before.iter().zip(first..).map(|(text, number)| line(number, '-', text)).collect();
    lines.push(line(hit.line, ':', &hit.text));
    lines.extend(hit.after.iter().zip(hit.line + 1..).map(|(text, number)| line(number, '-', text)));
    if context {
        lines.push("--".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_stands_among_its_lines_as_grep_shows_them() {
        let hit = LogHit {
            rank: Rank(3),
            line: 8,
            text: "loss \u{1b}[2Jnan".into(),
            before: vec!["before".into()],
            after: vec!["after".into()],
            ..LogHit::default()
        };
        assert_eq!(shown("a", &hit, true, None), ["a:3-7- before", "a:3:8: loss nan", "a:3-9- after", "--"]);
        let later = LogHit { generation: Generation(2), ..hit };
        assert_eq!(
            shown("a", &later, false, Some("11-23 03:12:44"))[1],
            "11-23 03:12:44 a:3 gen 2:8: loss nan"
        );
    }
}
