//! How an event of the run's history is shown: its severity, the time since the launch, its rank.

use rankdeck_core::model::{EventSubject, EventTone, HistoryLine, Model};
use rankdeck_kit::{Role, text};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// The role of a tone.
pub fn role(tone: EventTone) -> Role {
    match tone {
        EventTone::Info => Role::Dim,
        EventTone::Good => Role::Good,
        EventTone::Warn => Role::Warn,
        EventTone::Bad => Role::Bad,
    }
}

/// The role of an event's text: routine reads like any other text.
pub fn text_role(tone: EventTone) -> Role {
    if tone == EventTone::Info { Role::Text } else { role(tone) }
}

/// The event with this number.
pub fn find(model: &Model, number: u64) -> Option<&HistoryLine> {
    model.history.iter().find(|line| line.number == number)
}

/// The rank that an event is about.
pub fn rank_of(line: &HistoryLine) -> Option<Rank> {
    match &line.subject {
        Some(EventSubject::Verdict(verdict)) => verdict.rank,
        Some(EventSubject::Rank(rank)) => Some(*rank),
        Some(EventSubject::Checkpoint(_)) | None => None,
    }
}

/// The time since the launch; before the launch there is no zero, and the first event is it.
pub fn since_launch(model: &Model, line: &HistoryLine) -> String {
    // A console that came later has read all of it at once; the agents report when it was.
    if let Some(launched) = model.run.launched.filter(|_| model.run.adopted && line.time > 0.0) {
        let after_ms = (line.time - launched) * 1000.0;
        return match after_ms < 0.0 {
            true => format!("-{:>6}", words::duration_ms(-after_ms as u64)),
            false => text::clock(after_ms as u64),
        };
    }
    let first = model.history.front().map(|line| line.at);
    let zero = model.run.started.or(first).unwrap_or_default();
    match line.at < zero {
        true => format!("-{:>6}", words::duration_ms(zero.since(line.at))),
        false => text::clock(line.at.since(zero)),
    }
}
