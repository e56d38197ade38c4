//! What the words on the screen mean, for the help page.

/// A word as the screen has it, and its meaning.
pub type Word = (&'static str, &'static str);

/// In the order of the pages.
#[rustfmt::skip]
pub const WORDS: &[Word] = &[
    ("env_step", "steps of the environments, over all ranks; a frame that is skipped counts"),
    ("samples", "transitions that training may use"),
    ("collecting", "seconds that ranks spent in their environments, summed over ranks; not the time since the launch"),
    ("all-reduced", "as the ranks have agreed on it in a collective"),
    ("sum of ranks", "the ranks' own counters, added up here; = says that both are the same, ≠ that they are not"),
    ("return of 100", "mean return of the last 100 training episodes, over all ranks"),
    ("return", "mean return of the training episodes of the last iterations"),
    ("eval", "mean return of rank 0's last evaluation"),
    ("weights equal", "how often fingerprints of all ranks' weights were compared, and never differed"),
    ("steps/s", "of all ranks, over the last iterations; of a rank its own"),
    ("ETA", "time to run.total_steps at this speed"),
    ("stalled", "no rank that is heard has shown a sign of life for so long"),
    ("unheard", "nothing has come from the rank's host for so long: its state is not known"),
    ("gen", "generation: how often the ranks were started again"),
    ("adopted", "another console launched the run"),
    ("drops", "what nobody has any more (red), or was never sent because this console was slow (grey)"),
    ("GPU% CPU%", "use of the rank's GPU, else of one core"),
    ("MEM", "memory on the rank's GPU, else in RAM"),
    ("PHASE", "what the program says that it does: rollout, learn, eval, checkpoint, ..."),
    ("COLLECTIVE", "number of the rank's latest collective; its name and time while the rank is in it"),
    ("wait share", "part of an iteration that a rank spent waiting for others in collectives"),
    ("evaluation", "episodes that rank 0 plays without exploring, for the curve and the best checkpoint"),
    ("blamed, waits", "on a card: the rank that holds up the others, beside one that waits for it"),
    ("amber, red", "worth knowing; act"),
];

/// The words that contain what was typed, or whose meaning does.
pub fn matching(typed: &str) -> Vec<Word> {
    let needle = typed.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&needle);
    WORDS.iter().copied().filter(|(word, meaning)| has(word) || has(meaning)).collect()
}
