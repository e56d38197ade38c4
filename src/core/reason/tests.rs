//! The table is sound: names, sentences and advice.

use super::*;

#[test]
fn names_are_what_json_says_and_unknown_ones_are_read() {
    for row in reasons() {
        assert_eq!(serde_json::to_string(&row.reason).unwrap(), format!("\"{}\"", row.name));
        assert_eq!(row.reason.row().name, row.name, "rows are in the order of the variants");
        assert_eq!(row.sentences[0].0, SentenceForm::Usual, "{}", row.name);
        assert!(row.doc.ends_with('.'), "{}", row.doc);
    }
    assert_eq!(serde_json::from_str::<Reason>("\"to_be_invented\"").unwrap(), Reason::Unknown);
}

#[test]
fn advice_needs_only_what_every_verdict_knows() {
    let known = ["run", "rank", "pid", "host", "master"].map(|word| (word, "x".to_string()));
    for advice in reasons().flat_map(|row| row.advice) {
        fill(advice.text, &known);
        fill(advice.command, &known);
    }
}

#[test]
fn words_are_filled_in_once() {
    let words = [("who", "rank 1 {at}".to_string()), ("at", " here".to_string())];
    assert_eq!(fill("a {who}{at}.", &words), "a rank 1 {at} here.");
    assert_eq!(fill("nothing", &[]), "nothing");
}
