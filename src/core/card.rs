//! The evidence of a verdict, as data. The screen draws it, JSON carries it, line mode prints it.
//!
//! `watch::report` fills it in and bounds every list. No decision is made from it.

use rankdeck_proto::message::CollectiveCall;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};

/// The evidence behind a verdict.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Card {
    /// The culprit at its last sample.
    #[serde(rename = "guilty", skip_serializing_if = "Option::is_none")]
    pub culprit: Option<RankEvidence>,
    /// A rank that waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiter: Option<RankEvidence>,
    /// Where ranks are in different collectives and none is known as the culprit: a rank that is in another one
    /// than `waiter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opposite: Option<RankEvidence>,
    /// Decisive facts that are not about one rank.
    pub facts: Vec<String>,
    /// Further evidence: what inspections showed, and the waiting ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observations: Vec<String>,
    /// The other ranks, with those that do the same in one line.
    pub others: Vec<RankGroup>,
    /// Causes that measurements rule out.
    pub ruled_out: Vec<String>,
    /// What to do, best first.
    pub actions: Vec<Advice>,
}

/// One row of the evidence table: a label and a text per rank; may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardRow {
    /// What it is about; empty for the head with the ranks' names.
    pub label: &'static str,
    /// The culprit.
    pub culprit: String,
    pub waiter: String,
}

impl Card {
    /// The evidence table as rows, in reading order, without empty ones.
    pub fn rows(&self) -> Vec<CardRow> {
        if self.culprit.is_none() && self.waiter.is_none() {
            return Vec::new();
        }
        type Of = fn(&RankEvidence) -> String;
        let parts: [(&'static str, Of); 12] = [
            ("", |side| format!("rank {} on {}", side.rank, side.host)),
            ("step", RankEvidence::step),
            ("phase", RankEvidence::phase_text),
            ("silent for", |side| side.silent_ms.map(words::duration_ms).unwrap_or_default()),
            ("collective", |side| side.call.as_ref().map(CollectiveRef::place).unwrap_or_default()),
            ("size", |side| side.call.as_ref().map(|call| call.call.size()).unwrap_or_default()),
            ("called at", |side| side.call.as_ref().map(|call| short(&call.call.site)).unwrap_or_default()),
            ("process", |side| {
                let pid = side.pid.map(|pid| format!("pid {pid} ")).unwrap_or_default();
                if side.os.is_empty() { pid.trim_end().to_string() } else { format!("{pid}{}", side.os) }
            }),
            ("blocked on", |side| side.blocked_on.clone()),
            ("code", |side| short(&side.at)),
            ("children", |side| side.children.join("; ")),
            ("last log", |side| side.last_line.clone()),
        ];
        let of = |side: &Option<RankEvidence>, part: Of| side.as_ref().map(part).unwrap_or_default();
        parts
            .into_iter()
            .map(|(label, part)| CardRow {
                label,
                culprit: of(&self.culprit, part),
                waiter: of(&self.waiter, part),
            })
            .filter(|row| !row.culprit.is_empty() || !row.waiter.is_empty())
            .collect()
    }

    /// The ranks whose stacks explain the verdict, the first of them the culprit if it is known; those without a
    /// stack are left out. Two if the ranks are in different collectives: the difference is the cause.
    pub fn stacks(&self) -> Vec<&RankEvidence> {
        let inside = |side: &RankEvidence| side.call.clone().filter(|call| call.inside);
        let first = self.culprit.as_ref().or(self.opposite.as_ref());
        let differ = |waiter: &&RankEvidence| match first.and_then(inside).zip(inside(waiter)) {
            Some((mine, theirs)) => (mine.seq, mine.call) != (theirs.seq, theirs.call),
            None => self.culprit.is_none() && self.opposite.is_some(),
        };
        let waiter = self.waiter.as_ref().filter(differ);
        first.into_iter().chain(waiter).filter(|side| !side.stack.is_empty()).collect()
    }

    /// What supports the verdict, one fact per entry.
    pub fn evidence(&self) -> Vec<String> {
        let culprit = self.culprit.iter().flat_map(RankEvidence::evidence);
        self.facts.iter().cloned().chain(culprit).chain(self.observations.iter().cloned()).collect()
    }

    /// What to do, in one line: the two best actions.
    pub fn hint(&self) -> String {
        let line = |advice: &Advice| {
            if advice.command.is_empty() {
                advice.text.clone()
            } else {
                format!("{}: `{}`", advice.text, advice.command)
            }
        };
        self.actions.iter().take(2).map(line).collect::<Vec<_>>().join("; ")
    }

    /// As plain text: the table, the stack, the other ranks, ruled-out causes, advice.
    pub fn text(&self) -> Vec<String> {
        const LABEL: usize = 12;
        const COLUMN: usize = 56;
        let rows = self.rows();
        let wide = rows.iter().map(|row| row.culprit.chars().count()).max().unwrap_or(0).min(COLUMN);
        let mut lines: Vec<String> =
            self.facts.iter().map(|fact| format!("{:<LABEL$}{fact}", "fact")).collect();
        // The log may be among the facts.
        let is_known = |row: &CardRow| {
            row.label == "last log"
                && row.waiter.is_empty()
                && self.facts.last().and_then(|fact| fact.strip_prefix("log: ")) == Some(row.culprit.as_str())
        };
        for CardRow { label, culprit, waiter } in rows.into_iter().filter(|row| !is_known(row)) {
            let is_head = label.is_empty();
            // Without a rank to compare with, the head is a row like the others.
            let label = if is_head && waiter.is_empty() { "culprit" } else { label };
            let (culprit, waiter) = match label {
                "" => (
                    if culprit.is_empty() { culprit } else { format!("culprit: {culprit}") },
                    if waiter.is_empty() { waiter } else { format!("waiting: {waiter}") },
                ),
                _ => (culprit, waiter),
            };
            let line = match (culprit.is_empty(), waiter.is_empty()) {
                (_, true) => format!("{label:<LABEL$}{culprit}"),
                (true, false) => format!("{label:<LABEL$}{waiter}"),
                (false, false) => format!("{label:<LABEL$}{culprit:<wide$} | {waiter}"),
            };
            lines.push(line.trim_end().to_string());
        }
        let mut list = |label: &str, items: Vec<String>| {
            for (i, item) in items.into_iter().enumerate() {
                lines.push(format!("{:<LABEL$}{item}", if i == 0 { label } else { "" }));
            }
        };
        list("stack", self.stack_lines());
        list("others", self.others.iter().map(RankGroup::line).collect());
        list("ruled out", self.ruled_out.clone());
        list("do", self.actions.iter().map(Advice::line).collect());
        lines
    }

    /// The stacks below one another; with the names of their ranks if there are several.
    fn stack_lines(&self) -> Vec<String> {
        match self.stacks().as_slice() {
            [] => Vec::new(),
            [one] => one.stack.clone(),
            many => many
                .iter()
                .flat_map(|side| {
                    let frames = side.stack.iter().map(|frame| format!("  {frame}"));
                    std::iter::once(format!("rank {} on {}", side.rank, side.host)).chain(frames)
                })
                .collect(),
        }
    }
}

/// A place in the source with the last two parts of its path: the whole one stands in the stack and in JSON.
fn short(place: &str) -> String {
    let (path, rest) = place.split_once(' ').unwrap_or((place, ""));
    let parts: Vec<&str> = path.rsplitn(3, '/').collect();
    let end = match parts.as_slice() {
        [file, folder, _] => format!("{folder}/{file}"),
        _ => path.to_string(),
    };
    if rest.is_empty() { end } else { format!("{end} {rest}") }
}

impl RankEvidence {
    /// What the status page, the kernel and an inspection show, one fact per entry.
    pub fn evidence(&self) -> Vec<String> {
        let rank = self.rank;
        let mut facts = Vec::new();
        let place = self.call.as_ref().map_or("no collective yet".to_string(), |call| {
            let size = call.call.size();
            if size.is_empty() { call.place() } else { format!("{} ({size})", call.place()) }
        });
        match (self.silent_ms, self.phase.is_empty()) {
            (None, _) => {}
            (Some(_), true) => facts.push(format!("rank {rank}: {place}")),
            (Some(silent_ms), false) => {
                let activity =
                    if self.activity.is_empty() { String::new() } else { format!(" ({})", self.activity) };
                let amount =
                    if self.amount.is_empty() { String::new() } else { format!(", {} done", self.amount) };
                facts.push(format!(
                    "rank {rank}: phase {}{activity} for {}{amount}, iteration {}, last progress {} ago, {place}",
                    self.phase,
                    words::duration_ms(self.phase_age_ms.unwrap_or(0)),
                    self.train_iter.unwrap_or(0),
                    words::duration_ms(silent_ms),
                ));
            }
        }
        if let Some(pid) = self.pid.filter(|_| !self.os.is_empty()) {
            facts.push(format!("rank {rank}: pid {pid} is {}", self.os));
        }
        facts.extend(self.seen());
        facts
    }

    /// What only an inspection shows.
    pub fn seen(&self) -> Vec<String> {
        let RankEvidence { rank, at, blocked_on, .. } = self;
        let parts = [("at", at), ("blocked on", blocked_on)];
        let known = parts.into_iter().filter(|(_, text)| !text.is_empty());
        known.map(|(word, text)| format!("rank {rank}: {word} {text}")).collect()
    }

    fn step(&self) -> String {
        let parts = [
            self.train_iter.map(|iteration| format!("iteration {iteration}")),
            self.env_step.map(|step| format!("env_step {step}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn phase_text(&self) -> String {
        if self.phase.is_empty() {
            return String::new();
        }
        let activity = if self.activity.is_empty() { String::new() } else { format!(", {}", self.activity) };
        let amount = if self.amount.is_empty() { String::new() } else { format!(" {}", self.amount) };
        let age = self.phase_age_ms.map(|ms| format!(" for {}", words::duration_ms(ms))).unwrap_or_default();
        format!("{}{activity}{amount}{age}", self.phase)
    }
}

/// One rank on the card. Ages are of its host's clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankEvidence {
    /// The rank of this side.
    pub rank: Rank,
    pub host: String,
    /// Its process id there.
    pub pid: Option<u32>,
    pub train_iter: Option<u64>,
    /// Own environment steps.
    pub env_step: Option<u64>,
    /// Phase; empty if the program does not report one.
    pub phase: String,
    /// What it does inside the phase; may be empty.
    pub activity: String,
    /// Milliseconds since the phase began.
    pub phase_age_ms: Option<u64>,
    /// `120/300` of the phase, when it counts.
    pub amount: String,
    /// Milliseconds without progress of the program.
    pub silent_ms: Option<u64>,
    /// The collective it is in, or was in last.
    pub call: Option<CollectiveRef>,
    /// The state of the process as the kernel reports it.
    pub os: String,
    /// What it is blocked on; empty if unknown.
    pub blocked_on: String,
    /// `FILE:LINE` of the innermost frame of the program's own code; empty when unknown.
    pub at: String,
    /// Its stack, innermost first, one frame per line.
    pub stack: Vec<String>,
    /// Its children that matter, in words.
    pub children: Vec<String>,
    /// The last line of its log.
    pub last_line: String,
}

/// A collective of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectiveRef {
    /// It is inside; else it has left it.
    pub inside: bool,
    /// Number within the group.
    pub seq: u64,
    /// What the rank passed to it; no group stands for that of all ranks.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Milliseconds since it was entered, or left.
    pub age_ms: u64,
}

impl CollectiveRef {
    /// `all_reduce grad #47`, with the group where it is not that of all ranks.
    pub fn name(&self) -> String {
        let title = self.call.title();
        let what = if title.is_empty() { "collective".to_string() } else { title };
        if self.call.group.is_empty() {
            format!("{what} #{}", self.seq)
        } else {
            format!("{what} #{} of {}", self.seq, self.call.group)
        }
    }

    /// `inside all_reduce grad #47 for 6.2 s`, `left ... 6.4 s ago`.
    pub fn place(&self) -> String {
        if self.inside {
            format!("inside {} for {}", self.name(), words::duration_ms(self.age_ms))
        } else {
            format!("left {} {} ago", self.name(), words::duration_ms(self.age_ms))
        }
    }
}

/// Ranks that do the same.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankGroup {
    /// All ranks that are in the same state.
    pub ranks: Vec<Rank>,
    /// What they do.
    pub text: String,
}

impl RankGroup {
    /// `ranks 2-7: waits in ...`.
    pub fn line(&self) -> String {
        match self.ranks.as_slice() {
            [] => self.text.clone(),
            [one] => format!("rank {one}: {}", self.text),
            many => format!("ranks {}: {}", ranges(many), self.text),
        }
    }
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Advice {
    /// What it does.
    pub text: String,
    /// The command, empty when there is none.
    pub command: String,
}

impl Advice {
    /// The checkpoint to which it goes back, where it names one.
    pub fn checkpoint(&self) -> Option<&str> {
        let from = self.command.strip_prefix("rankdeck restart ")?.split_once(" --from ")?.1;
        (from != "latest").then_some(from)
    }

    /// In one line, with the command.
    pub fn line(&self) -> String {
        if self.command.is_empty() { self.text.clone() } else { format!("{}: {}", self.text, self.command) }
    }
}

/// Consecutive ranks as ranges: `0, 2-7, 9`.
pub fn ranges(ranks: &[Rank]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank.0) => *last = rank.0,
            _ => parts.push((rank.0, rank.0)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_are_one_range() {
        let list = |ranks: &[u32]| ranges(&ranks.iter().map(|rank| Rank(*rank)).collect::<Vec<_>>());
        assert_eq!(list(&[0, 2, 3, 4, 9]), "0, 2-4, 9");
        assert_eq!(list(&[1, 2]), "1, 2");
        assert_eq!(list(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn collective_name_has_its_known_parts() {
        let passed = CollectiveCall { op: "all_reduce".into(), tag: "grad".into(), ..Default::default() };
        let call = CollectiveRef { seq: 47, call: passed.clone(), ..CollectiveRef::default() };
        assert_eq!((call.name(), call.call.size()), ("all_reduce grad #47".into(), String::new()));
        let passed =
            CollectiveCall { group: "pair".into(), count: 4, dtype: "f32".into(), root: Some(1), ..passed };
        let call = CollectiveRef { call: passed, ..call };
        assert_eq!(
            (call.name(), call.call.size()),
            ("all_reduce grad #47 of pair".into(), "4 f32, from rank 1".into())
        );
    }

    /// A rank inside `op`, with one frame.
    fn inside(rank: u32, op: &str) -> RankEvidence {
        let call = CollectiveCall { op: op.into(), ..Default::default() };
        RankEvidence {
            rank: Rank(rank),
            host: "ant".into(),
            call: Some(CollectiveRef { inside: true, seq: 7, call, age_ms: 9 }),
            stack: vec![format!("{op} at train.py:{rank}")],
            ..RankEvidence::default()
        }
    }

    #[test]
    fn different_collectives_show_both_stacks() {
        let ranks = |card: &Card| card.stacks().iter().map(|side| side.rank.0).collect::<Vec<_>>();
        let (one, two) = (Some(inside(1, "broadcast")), Some(inside(2, "all_reduce")));
        let named = Card { culprit: one.clone(), waiter: two.clone(), ..Card::default() };
        assert_eq!(ranks(&named), [1, 2]);
        let unnamed = Card { opposite: one.clone(), waiter: two.clone(), ..Card::default() };
        assert_eq!(ranks(&unnamed), [1, 2]);
        assert_eq!(unnamed.text().iter().filter(|line| line.contains(" at train.py:")).count(), 2);
        let json = serde_json::to_value(&unnamed).unwrap();
        assert_eq!(json["opposite"]["stack"][0], "broadcast at train.py:1");
        let same = Card { culprit: Some(inside(1, "all_reduce")), waiter: two.clone(), ..Card::default() };
        assert_eq!(ranks(&same), [1], "the waiting rank's stack shows nothing new");
        let stalled = Card { waiter: two, ..Card::default() };
        assert!(ranks(&stalled).is_empty());
    }

    #[test]
    fn title_of_a_scripts_collective_repeats_nothing() {
        let title = |op: &str, tag: &str| {
            CollectiveCall { op: op.into(), tag: tag.into(), ..Default::default() }.title()
        };
        assert_eq!(title("barrier", "monitored_barrie"), "barrier");
        assert_eq!(title("all_to_all", "all_to_all_singl"), "all_to_all");
        assert_eq!(title("none", "collective"), "collective", "issued by C++");
        assert_eq!(title("none", ""), "");
    }
}
