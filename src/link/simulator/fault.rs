//! What goes wrong in a simulated world, and when. Times are counted from the moment when all ranks have
//! joined; a fault belongs to one generation, so that a restart heals.

use rankdeck_types::ids::Generation;
use std::time::Duration;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Rank, or host for `lose` and `survive`.
    pub target: u32,
    /// When it begins.
    pub at: Duration,
    /// How long it lasts; `None`: without end.
    pub lasts: Option<Duration>,
    /// The only generation that has it.
    pub generation: Generation,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The rank is stopped (SIGSTOP).
    Freeze,
    /// The rank computes without end and never enters its next collective.
    Behind,
    /// The rank's environment does not answer.
    EnvStuck,
    /// The rank is slower than the others.
    Slow,
    /// The rank is killed (SIGKILL).
    Kill,
    /// The rank reports an error and exits with code 1.
    Fail,
    /// The rank's weights differ from the others'.
    Drift,
    /// The link to the host breaks.
    Lose,
    /// A process on the host outlives the stop.
    Survive,
}

impl FaultKind {
    /// Training stands still while it lasts.
    pub fn hangs(self) -> bool {
        match self {
            FaultKind::Freeze
            | FaultKind::Behind
            | FaultKind::EnvStuck
            | FaultKind::Kill
            | FaultKind::Fail => true,
            FaultKind::Slow | FaultKind::Drift | FaultKind::Lose | FaultKind::Survive => false,
        }
    }
}

/// Reads `KIND:TARGET@SECONDS[+DURATION]`.
///
/// # Errors
/// One sentence that says what was expected.
pub fn parse_fault(text: &str) -> Result<Fault, String> {
    let expected = "expected KIND:TARGET@SECONDS[+DURATION], such as freeze:2@5 or lose:1@3+10";
    let (kind, rest) = text.split_once(':').ok_or(expected)?;
    let (target, when) = rest.split_once('@').ok_or(expected)?;
    let (at, lasts) = when.split_once('+').map_or((when, None), |(at, lasts)| (at, Some(lasts)));
    let kind = match kind {
        "freeze" => FaultKind::Freeze,
        "behind" => FaultKind::Behind,
        "env" => FaultKind::EnvStuck,
        "slow" => FaultKind::Slow,
        "kill" => FaultKind::Kill,
        "fail" => FaultKind::Fail,
        "drift" => FaultKind::Drift,
        "lose" => FaultKind::Lose,
        "survive" => FaultKind::Survive,
        _ => return Err("kinds are freeze, behind, env, slow, kill, fail, drift, lose, survive".to_owned()),
    };
    let seconds = |text: &str| {
        text.parse::<f64>()
            .ok()
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
            .ok_or_else(|| expected.to_owned())
    };
    Ok(Fault {
        kind,
        target: target.parse().map_err(|_| expected.to_owned())?,
        at: seconds(at)?,
        lasts: lasts.map(seconds).transpose()?,
        generation: Generation(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_nonsense_is_refused() {
        let fault = parse_fault("lose:1@3.5+10").unwrap();
        assert_eq!((fault.kind, fault.target), (FaultKind::Lose, 1));
        assert_eq!((fault.at, fault.lasts), (Duration::from_millis(3500), Some(Duration::from_secs(10))));
        for bad in
            ["", "freeze", "freeze:1", "melt:1@2", "freeze:x@1", "freeze:1@-1", "freeze:1@NaN", "kill:1@2+x"]
        {
            assert!(parse_fault(bad).is_err(), "{bad}");
        }
    }
}
