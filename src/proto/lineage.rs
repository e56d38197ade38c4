//! The present line of training: which values of earlier generations still count after restarts.
//!
//! A generation that begins at an earlier checkpoint leaves what came after it behind. Consoles and agents ask
//! here, so that a figure of an abandoned generation is in none of their outputs.
//!
//! Invariants:
//! - LINE-1: a value counts if the latest generation made it, or if each generation since began after it.
//! - LINE-2: where a generation began comes from its order; where that names no known step, from its first
//!   totals.

use rankdeck_types::ids::Generation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The word for the latest checkpoint in an order.
const LATEST: &str = "latest";
/// Most generations kept; the first ones go first.
const GENERATIONS: usize = 256;

/// A checkpoint, as far as it places a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedAt {
    /// The generation that wrote it.
    pub generation: Generation,
    pub env_step: u64,
}

/// Where a generation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nothing of the generations before it counts.
    Scratch,
    /// It continues that generation, up to this step; `None`: not known yet.
    Checkpoint { generation: Generation, env_step: Option<u64> },
}

impl Origin {
    /// The origin that the order of `generation` names: `from` is a checkpoint's path, `latest`, or `None` for
    /// a start from scratch; `saved` looks up a checkpoint of an earlier generation by that word.
    pub fn of(generation: Generation, from: Option<&str>, saved: Option<SavedAt>) -> Origin {
        let Some(from) = from else { return Origin::Scratch };
        let before = Generation(generation.0.saturating_sub(1));
        match saved {
            // Steps are 0 where a checkpoint does not report any.
            Some(saved) => Origin::Checkpoint {
                generation: saved.generation.min(before),
                env_step: Some(saved.env_step).filter(|step| *step > 0),
            },
            None => Origin::Checkpoint {
                generation: set_aside(from).filter(|_| from != LATEST).map_or(before, |of| of.min(before)),
                env_step: None,
            },
        }
    }
}

/// The generation in whose directory a checkpoint lies: `checkpoints/gen0/iter-12.ckpt`.
fn set_aside(path: &str) -> Option<Generation> {
    path.rsplit('/').skip(1).find_map(|part| part.strip_prefix("gen")?.parse().ok()).map(Generation)
}

/// The generations of a run after the first, and where they began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lineage {
    origins: BTreeMap<Generation, Origin>,
    /// The last step that counts of each generation before the latest; of others nothing does.
    ends: BTreeMap<Generation, u64>,
}

impl Lineage {
    /// A generation began; returns whether that changes what counts.
    pub fn begin(&mut self, generation: Generation, origin: Origin) -> bool {
        if generation == Generation(0) {
            return false;
        }
        let known = self.origins.get(&generation).copied();
        let origin = match (known, origin) {
            (Some(Origin::Scratch), _) => Origin::Scratch,
            // Hosts report an order one after another; one of them may do so before the checkpoint is known.
            (
                Some(Origin::Checkpoint { generation: of, env_step: known }),
                Origin::Checkpoint { generation, env_step },
            ) => Origin::Checkpoint {
                generation: if env_step.is_some() { generation } else { of },
                env_step: known.into_iter().chain(env_step).min(),
            },
            (_, origin) => origin,
        };
        self.place(generation, origin)
    }

    /// Takes what another host knows.
    pub fn merge(&mut self, other: &Lineage) {
        for (generation, origin) in &other.origins {
            self.begin(*generation, *origin);
        }
    }

    /// The totals of a generation have reached this step; returns whether that changes what counts. The first
    /// of them show where it began, unless its order did. Steps that it repeats are its own.
    pub fn reached(&mut self, generation: Generation, env_step: u64) -> bool {
        let Some(Origin::Checkpoint { generation: of, env_step: known }) =
            self.origins.get(&generation).copied()
        else {
            return false;
        };
        if known.is_some_and(|known| known < env_step) {
            return false;
        }
        let before = env_step.checked_sub(1);
        let origin = before
            .map_or(Origin::Scratch, |step| Origin::Checkpoint { generation: of, env_step: Some(step) });
        self.place(generation, origin)
    }

    fn place(&mut self, generation: Generation, origin: Origin) -> bool {
        if self.origins.insert(generation, origin) == Some(origin) {
            return false;
        }
        while self.origins.len() > GENERATIONS {
            self.origins.pop_first();
        }
        self.ends = self.line();
        true
    }

    /// The way back from the latest generation.
    fn line(&self) -> BTreeMap<Generation, u64> {
        let mut ends = BTreeMap::new();
        let Some((latest, _)) = self.origins.last_key_value() else { return ends };
        let (mut at, mut end) = (*latest, u64::MAX);
        // Generations only continue earlier ones: a file may say otherwise.
        while let Some(Origin::Checkpoint { generation, env_step }) = self.origins.get(&at)
            && *generation < at
        {
            end = end.min(env_step.unwrap_or(u64::MAX));
            ends.insert(*generation, end);
            at = *generation;
        }
        ends
    }

    /// Whether a value of this generation at this step belongs to the present line of training.
    pub fn keeps(&self, generation: Generation, env_step: f64) -> bool {
        let Some((latest, _)) = self.origins.last_key_value() else { return true };
        generation >= *latest || self.ends.get(&generation).is_some_and(|end| env_step <= *end as f64)
    }

    /// The step from which a generation began, as far as it is known.
    pub fn began_at(&self, generation: Generation) -> Option<u64> {
        match self.origins.get(&generation)? {
            Origin::Scratch => Some(0),
            Origin::Checkpoint { env_step, .. } => *env_step,
        }
    }

    /// The same of the latest generation.
    pub fn began(&self) -> Option<u64> {
        self.began_at(*self.origins.last_key_value()?.0)
    }

    /// It is as [`Lineage::begin`] makes one.
    pub fn is_sound(&self) -> bool {
        self.origins.len() <= GENERATIONS && self.ends.len() <= GENERATIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(generation: u32, env_step: u64) -> Origin {
        Origin::Checkpoint { generation: Generation(generation), env_step: Some(env_step) }
    }

    fn unknown(generation: u32) -> Origin {
        Origin::Checkpoint { generation: Generation(generation), env_step: None }
    }

    /// The last of these steps that counts of a generation.
    fn end(line: &Lineage, generation: u32) -> Option<u64> {
        (0..=100).rev().map(|step| step * 100).find(|step| line.keeps(Generation(generation), *step as f64))
    }

    #[test]
    fn line_1_checkpoint_limits_generations_before_it() {
        let mut line = Lineage::default();
        assert!(line.keeps(Generation(7), 1e9), "no restart is known");
        assert!(line.begin(Generation(1), at(0, 3_000)));
        assert!(!line.begin(Generation(1), at(0, 3_000)), "another host reports the same");
        assert!(line.begin(Generation(2), at(1, 5_000)));
        assert_eq!([0, 1, 2].map(|of| end(&line, of)), [Some(3_000), Some(5_000), Some(10_000)]);
        assert!(line.begin(Generation(3), at(2, 1_000)));
        assert_eq!([0, 1, 2].map(|of| end(&line, of)), [Some(1_000); 3]);
        assert!(line.begin(Generation(4), Origin::Scratch));
        assert_eq!([0, 1, 2, 3, 4].map(|of| end(&line, of)), [None, None, None, None, Some(10_000)]);
        assert!(!line.begin(Generation(0), Origin::Scratch), "a first launch has nothing behind it");
    }

    #[test]
    fn line_1_abandoned_checkpoint_revives_its_generation() {
        let mut line = Lineage::default();
        line.begin(Generation(1), at(0, 3_000));
        line.begin(Generation(2), at(0, 4_500));
        assert_eq!([0, 1, 2].map(|of| end(&line, of)), [Some(4_500), None, Some(10_000)]);
    }

    #[test]
    fn line_2_first_totals_place_an_unknown_origin() {
        let mut line = Lineage::default();
        line.begin(Generation(1), unknown(0));
        assert_eq!(end(&line, 0), Some(10_000));
        assert!(line.reached(Generation(1), 4_000));
        assert_eq!(end(&line, 0), Some(3_900), "a step that it repeats is its own");
        assert!(!line.reached(Generation(1), 5_000), "it continues");
        assert!(!line.begin(Generation(1), unknown(0)), "a host that reports later changes nothing");
        assert_eq!(line.began_at(Generation(1)), Some(3_999));
        line.begin(Generation(2), at(1, 6_000));
        assert!(line.reached(Generation(2), 50), "the program did not take the checkpoint");
        assert_eq!([0, 1].map(|of| end(&line, of)), [Some(0); 2]);
        assert!(line.reached(Generation(2), 0));
        assert_eq!([0, 1].map(|of| end(&line, of)), [None; 2]);
    }

    #[test]
    fn origin_comes_from_checkpoint_or_its_directory() {
        let saved = |env_step| Some(SavedAt { generation: Generation(1), env_step });
        let of = |from, saved| Origin::of(Generation(3), from, saved);
        assert_eq!(of(None, None), Origin::Scratch);
        assert_eq!(of(Some("latest"), saved(500)), at(1, 500));
        assert_eq!(of(Some("latest"), saved(0)), unknown(1), "a script's file without a step");
        assert_eq!(of(Some("latest"), None), unknown(2));
        assert_eq!(of(Some("/r/checkpoints/gen0/iter-12.ckpt"), None), unknown(0));
        assert_eq!(of(Some("/r/gen9/a.ckpt"), None), unknown(2), "no generation continues a later one");
    }

    #[test]
    fn line_is_bounded_and_survives_any_state() {
        let mut line = Lineage::default();
        (1..2_000).for_each(|n| {
            line.begin(Generation(n), unknown(n - 1));
        });
        assert!(line.is_sound() && line.keeps(Generation(1_900), 5.0));
        let state = r#"{"origins":{"5":{"checkpoint":{"generation":9,"env_step":3}}},"ends":{}}"#;
        let mut line: Lineage = serde_json::from_str(state).unwrap();
        assert!(line.reached(Generation(5), 1));
        assert!(!line.keeps(Generation(1), 0.0));
    }
}
