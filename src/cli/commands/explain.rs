//! `rankdeck explain`: explains a reason code and how to fix its cause.

use crate::cli::args::ExplainArgs;
use crate::cli::support::{Failure, code, print};
use rankdeck_config::suggest::closest;
use rankdeck_core::reason::{OnVerdict, ReasonRow, all_reasons, reason_by_code};
use rankdeck_core::report::Severity;
use serde_json::{Value, json};

/// Columns of the text.
const WIDTH: usize = 80;

/// Runs `rankdeck explain`: explains a reason, or lists all of them.
pub(crate) fn explain(args: &ExplainArgs) -> Result<u8, Failure> {
    let rows: Vec<&ReasonRow> = match &args.reason {
        Some(word) => vec![find(word)?],
        None => all_reasons().iter().collect(),
    };
    if args.output.json {
        rows.iter().for_each(|row| {
            print::json(&as_json(row));
        });
    } else if args.reason.is_some() {
        rows.iter().flat_map(|row| page(row)).for_each(|line| {
            print::stdout(&line);
        });
    } else {
        print::text(&list(&rows));
    }
    Ok(code::SUCCESS)
}

/// Returns the row of a code; dashes and spaces count as underscores.
fn find(word: &str) -> Result<&'static ReasonRow, Failure> {
    let name = word.trim().to_lowercase().replace(['-', ' '], "_");
    reason_by_code(&name).ok_or_else(|| {
        let failure = Failure::usage(format!("unknown reason code `{word}`"));
        let similar = closest(&name, all_reasons().iter().map(|row| row.name));
        let failure = match similar {
            Some(similar) => failure.hint(format!("a similar one exists: `rankdeck explain {similar}`")),
            None => failure,
        };
        failure.hint("`rankdeck explain` lists all reason codes")
    })
}

fn severity(row: &ReasonRow) -> &'static str {
    match row.severity {
        Severity::Red => "critical",
        Severity::Amber => "warning",
        Severity::Cleared => "cleared",
    }
}

/// Advice with a name in place of each `{word}`.
fn filled(text: &str) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (word, tail) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(before);
        filled.push_str(&if word == "master" { "ADDRESS".to_owned() } else { word.to_uppercase() });
        rest = tail;
    }
    filled + rest
}

/// One line per reason: code, verdict, severity and the first sentence of its meaning.
fn list(rows: &[&ReasonRow]) -> String {
    let header = ["REASON CODE", "VERDICT", "SEVERITY", "MEANING"].map(str::to_owned).to_vec();
    let line = |row: &&ReasonRow| {
        let first = row.meaning.split(". ").next().unwrap_or_default().trim_end_matches('.');
        vec![row.name.to_owned(), row.kind.name().to_owned(), severity(row).to_owned(), first.to_owned()]
    };
    print::table(&std::iter::once(header).chain(rows.iter().map(line)).collect::<Vec<_>>())
}

/// The help page of one reason code.
fn page(row: &ReasonRow) -> Vec<String> {
    let mut lines =
        vec![format!("{}: a {} verdict, {}", row.name, row.kind.name(), severity(row)), String::new()];
    lines.extend(wrapped(row.meaning));
    lines.push(String::new());
    if row.policy != OnVerdict::Never {
        lines.extend(wrapped(&format!("`watch.on_stuck` acts on it: {}.", row.policy.name())));
        lines.push(String::new());
    }
    lines.push("Fix:".to_owned());
    for advice in row.advice {
        lines.push(format!("  {}", filled(advice.text)));
        if !advice.command.is_empty() {
            lines.push(format!("    {}", filled(advice.command)));
        }
    }
    lines.push(String::new());
    lines.push("Evidence in a run: `d` on its screen, `why` in line mode, `evidence` in --json".to_owned());
    lines
}

/// Words in lines of at most [`WIDTH`] columns.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn as_json(row: &ReasonRow) -> Value {
    let advice: Vec<Value> = row
        .advice
        .iter()
        .map(|advice| json!({ "text": filled(advice.text), "command": filled(advice.command) }))
        .collect();
    json!({
        "kind": "reason",
        "reason_code": row.name,
        "verdict": row.kind,
        "severity": row.severity,
        "meaning": row.meaning,
        "on_stuck": row.policy.name(),
        "advice": advice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_found_by_code_and_similar_codes_are_suggested() {
        for row in all_reasons() {
            assert_eq!(find(row.name).map(|found| found.name), Ok(row.name));
            assert!(page(row).iter().all(|line| !line.contains(['{', '}'])), "{}", row.name);
        }
        assert_eq!(find("GIL-held").map(|found| found.name), Ok("gil_held"));
        let failure = find("gil_hled").unwrap_err();
        assert!(failure.code == code::USAGE && failure.cause.hint.contains("gil_held"), "{failure}");
        assert_eq!(find("qqqqqqqq").unwrap_err().cause.hint.lines().count(), 1);
    }
}
