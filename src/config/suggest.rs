//! Finds the closest known word to an unknown one, and the closest environment id.

use rankdeck_types::experiment::BUILTIN_ENVS;

/// Returns the number of edits between two words: insertions, deletions, substitutions, swaps of neighbors.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}

/// Returns the known word that is closest to `word`, if any: by spelling, by a part (`lambda` of
/// `gae_lambda`), by prefix, or by initials (`lr` for `learning_rate`).
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    // Longer than any key, and the search is quadratic.
    if length > 64 {
        return None;
    }
    let known: Vec<&str> = known.into_iter().collect();
    let near = |candidate: &str| {
        let edits = distance(word, candidate);
        (edits <= (length / 3).max(1) && edits < candidate.chars().count().min(length.max(1)))
            .then_some(edits)
    };
    let by = |score: &dyn Fn(&str) -> Option<usize>| {
        known.iter().filter_map(|name| score(name).map(|edits| (edits, *name))).min().map(|(_, name)| name)
    };
    let part = |name: &str| name.split('_').filter(|part| part.len() > 3).filter_map(near).min();
    let start = |name: &str| (length >= 3 && (name.starts_with(word) || word.starts_with(name))).then_some(0);
    let initials = |name: &str| {
        let letters: String = name.split('_').filter_map(|part| part.chars().next()).collect();
        (length >= 2 && letters == word).then_some(0)
    };
    by(&near).or_else(|| by(&initials)).or_else(|| by(&start)).or_else(|| by(&part))
}

/// Returns whether `word` is a typo of `known`.
pub fn nearly(word: &str, known: &str) -> bool {
    distance(word, known) <= 2.min(word.chars().count() / 4)
}

/// Games of the Arcade Learning Environment, as in their ids.
const GAMES: [&str; 62] = [
    "Adventure",
    "AirRaid",
    "Alien",
    "Amidar",
    "Assault",
    "Asterix",
    "Asteroids",
    "Atlantis",
    "BankHeist",
    "BattleZone",
    "BeamRider",
    "Berzerk",
    "Bowling",
    "Boxing",
    "Breakout",
    "Carnival",
    "Centipede",
    "ChopperCommand",
    "CrazyClimber",
    "Defender",
    "DemonAttack",
    "DoubleDunk",
    "ElevatorAction",
    "Enduro",
    "FishingDerby",
    "Freeway",
    "Frostbite",
    "Gopher",
    "Gravitar",
    "Hero",
    "IceHockey",
    "Jamesbond",
    "JourneyEscape",
    "Kangaroo",
    "Krull",
    "KungFuMaster",
    "MontezumaRevenge",
    "MsPacman",
    "NameThisGame",
    "Phoenix",
    "Pitfall",
    "Pong",
    "Pooyan",
    "PrivateEye",
    "Qbert",
    "Riverraid",
    "RoadRunner",
    "Robotank",
    "Seaquest",
    "Skiing",
    "Solaris",
    "SpaceInvaders",
    "StarGunner",
    "Surround",
    "Tennis",
    "TimePilot",
    "Tutankham",
    "UpNDown",
    "Venture",
    "VideoPinball",
    "WizardOfWor",
    "Zaxxon",
];

/// Returns the environment id that is closest to `id`; `None` if Gymnasium may have the id.
pub(crate) fn env_id(id: &str) -> Option<String> {
    let (stem, version) = split(id);
    let same = |name: &str| letters(name) == letters(stem);
    // `Pong-v0` and `Pong-v4` are other ids.
    if let Some(game) = GAMES.into_iter().find(|game| same(game))
        && matches!(version, None | Some("5"))
    {
        return Some(format!("ALE/{game}-v5"));
    }
    let newest = |stem: &str| BUILTIN_ENVS.into_iter().filter(|known| split(known).0 == stem).max();
    if let Some(known) = BUILTIN_ENVS.into_iter().find(|known| same(split(known).0)) {
        return newest(split(known).0).map(str::to_owned);
    }
    let near = closest(id, BUILTIN_ENVS)?;
    let is_same_version = version.is_some_and(|version| split(near).1 == Some(version));
    Some(if is_same_version { near } else { newest(split(near).0).unwrap_or(near) }.to_owned())
}

/// Splits an id into name and version.
fn split(id: &str) -> (&str, Option<&str>) {
    match id.rsplit_once("-v") {
        Some((stem, version)) if version.chars().all(|c| c.is_ascii_digit()) => (stem, Some(version)),
        _ => (id, None),
    }
}

/// Returns letters and digits in lower case.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_matches_by_spelling_part_prefix_and_initials() {
        let known = ["gpus", "nproc", "address", "identity_file", "num_minibatches"];
        assert_eq!(closest("gpu", known), Some("gpus"));
        assert_eq!(closest("adress", known), Some("address"));
        assert_eq!(closest("identityfile", known), Some("identity_file"));
        assert_eq!(closest("nporc", known), Some("nproc"));
        assert_eq!(closest("colour", known), None);
        let learn = ["learning_rate", "gae_lambda", "gamma", "learn"];
        assert_eq!(closest("lamda", learn), Some("gae_lambda"));
        assert_eq!(closest("lr", learn), Some("learning_rate"));
        assert_eq!(closest("learning", learn), Some("learn"));
        assert_eq!(closest("", known), None);
    }

    #[test]
    fn swap_is_one_edit() {
        assert_eq!(distance("nporc", "nproc"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn incomplete_id_suggests_the_newest_version() {
        for (id, expected) in [
            ("CartPole", "CartPole-v1"),
            ("cartpole", "CartPole-v1"),
            ("cart_pole-v1", "CartPole-v1"),
            ("CartPole-v2", "CartPole-v1"),
            ("CartPoel-v0", "CartPole-v0"),
            ("Pendulum", "Pendulum-v1"),
            ("MountainCar", "MountainCar-v0"),
            ("MountainCarContinuous", "MountainCarContinuous-v0"),
            ("Pong", "ALE/Pong-v5"),
            ("pong-v5", "ALE/Pong-v5"),
            ("space_invaders", "ALE/SpaceInvaders-v5"),
        ] {
            assert_eq!(env_id(id).as_deref(), Some(expected), "{id}");
        }
        for other in ["Ant-v4", "Hopper-v5", "PongNoFrameskip-v4", "Pong-v4", "my_env", "LunarLander-v3", ""]
        {
            assert_eq!(env_id(other), None, "{other}");
        }
    }
}
