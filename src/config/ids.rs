//! Ids of environments: which one was meant.

use super::suggest::closest;
use rankdeck_types::experiment::BUILTIN_ENVS;

/// The games of the Arcade Learning Environment, as their ids have them.
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

/// The id that was most likely meant, if any is close; `None` for one that Python may know.
pub fn meant(id: &str) -> Option<String> {
    let (stem, version) = split(id);
    let same = |name: &str| letters(name) == letters(stem);
    // `Pong-v0` and `Pong-v4` are ids of their own.
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

/// A name and the number of its version.
fn split(id: &str) -> (&str, Option<&str>) {
    match id.rsplit_once("-v") {
        Some((stem, version)) if version.chars().all(|c| c.is_ascii_digit()) => (stem, Some(version)),
        _ => (id, None),
    }
}

/// Letters and digits alone, in lower case.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_without_its_version_or_folder_is_completed_with_the_newest() {
        for (id, told) in [
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
            assert_eq!(meant(id).as_deref(), Some(told), "{id}");
        }
        for other in ["Ant-v4", "Hopper-v5", "PongNoFrameskip-v4", "Pong-v4", "my_env", "LunarLander-v3", ""]
        {
            assert_eq!(meant(other), None, "{other}");
        }
    }
}
