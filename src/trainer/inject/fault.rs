//! The names of faults.

use super::SavePoint;
use std::str::FromStr;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InjectedKind {
    /// `exit`: ends with code 1, silently (before an optimiser step).
    Exit,
    /// `leave`: ends with code 0 before the others (H8).
    Leave,
    /// `raise`: an error message, code 1 (H10).
    Raise,
    /// `segv`: SIGSEGV (H11).
    Segv,
    /// `abort`: SIGABRT (H11).
    Abort,
    /// `kill`: SIGKILL (H11).
    Kill,
    /// `stop`: SIGSTOP (H15).
    Stop,
    /// `spin`: a loop without end (H27).
    Spin,
    /// `sleep-env`: an environment that never answers (H5).
    SleepEnv,
    /// `lock`: the same lock taken twice inside a gather of rows, outside of DDP (H4), before an optimiser
    /// step.
    Lock,
    /// `lock-aux`: the same in the gather of PPG's auxiliary phase, where ALF had it.
    LockAux,
    /// `oom=MIB`: allocates that much memory and keeps it; for a smaller memory cgroup (H12).
    Memory(u64),
    /// `mismatch-op`: a broadcast in the place of a gradient all-reduce (H1).
    MismatchOp,
    /// `mismatch-count`: one element more in it (H2).
    MismatchCount,
    /// `mismatch-dtype`: doubles in it (H2).
    MismatchDtype,
    /// `mismatch-root`: the next broadcast comes from another rank (H2).
    MismatchRoot,
    /// `skip`: skips one gradient all-reduce (H3b).
    Skip,
    /// `extra-barrier`: a barrier that the others do not call (H9b).
    ExtraBarrier,
    /// `no-sync`: skips every gradient all-reduce from then on; for all ranks (H26).
    NoSync,
    /// `slow=PERCENT`: learning takes that much longer from then on (H18).
    Slow(u64),
    /// `teardown`: does not leave the group (H24).
    Teardown,
    /// `disk-full`: the next checkpoint fails because the disk is full (H13).
    DiskFull,
    /// `kill-POINT=FILE` and `full-POINT=FILE`: SIGKILL, or a full disk, while file number FILE since STEP is
    /// written; [`SavePoint::of`] has the names of the points.
    Saving {
        /// It is killed; otherwise the disk is full.
        killed: bool,
        /// Where in the writing of a file.
        point: SavePoint,
        /// Files that reach the point before, and this one.
        file: u64,
    },
    /// `long-eval=SECONDS`: every episode of evaluations takes so long, with progress between them (N1).
    LongEval(u64),
    /// `slow-start=SECONDS`: the first optimiser step takes so long (N3).
    SlowStart(u64),
    /// `slow-checkpoint=SECONDS`: each checkpoint takes that much longer than the one before (N4).
    SlowCheckpoint(u64),
    /// `lognormal-env=MILLISECONDS`: steps of environments take log-normal times of that median, 99.9th
    /// percentile 100 times it (N5).
    LognormalEnv(u64),
    /// `pause=SECONDS`: one pause in an optimiser step (N6).
    Pause(u64),
    /// `pace=MILLISECONDS`: not a fault. Every step of the environments takes that much longer, so that
    /// several runs fit on one machine.
    Pace(u64),
}

impl InjectedKind {
    /// It happens again and again.
    pub fn goes_on(self) -> bool {
        matches!(
            self,
            InjectedKind::NoSync
                | InjectedKind::Slow(_)
                | InjectedKind::LongEval(_)
                | InjectedKind::SlowCheckpoint(_)
                | InjectedKind::LognormalEnv(_)
                | InjectedKind::Pace(_)
        )
    }
}

/// A fault with its rank and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectedFault {
    pub kind: InjectedKind,
    /// On which rank; `None` for every rank.
    pub rank: Option<u32>,
    /// Completed iterations.
    pub step: u64,
    /// The text of the flag, for messages.
    pub text: String,
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<InjectedFault, String> {
        let bad = |what: &str| format!("`{text}` is not a fault: {what}; write FAULT[=VALUE]@RANK:STEP");
        let (fault, target) = text.split_once('@').ok_or_else(|| bad("there is no `@`"))?;
        let (rank, step) = target.split_once(':').ok_or_else(|| bad("there is no `:`"))?;
        let rank = match rank {
            "all" => None,
            rank => Some(rank.parse().map_err(|_| bad("the rank is not a number"))?),
        };
        let step = step.parse().map_err(|_| bad("the step is not a number"))?;
        let (name, value) = match fault.split_once('=') {
            Some((name, value)) => (name, Some(value.parse().map_err(|_| bad("the value is not a number"))?)),
            None => (fault, None),
        };
        let saving = |name: &str| {
            let (killed, rest) = match name.strip_prefix("kill-") {
                Some(rest) => (true, rest),
                None => (false, name.strip_prefix("full-")?),
            };
            Some((killed, SavePoint::of(rest)?))
        };
        if let Some((killed, point)) = saving(name) {
            let kind = InjectedKind::Saving { killed, point, file: value.unwrap_or(1) };
            return Ok(InjectedFault { kind, rank, step, text: text.to_owned() });
        }
        let valued = |make: fn(u64) -> InjectedKind| value.map(make).ok_or_else(|| bad("it needs a value"));
        let kind = match name {
            "oom" => valued(InjectedKind::Memory)?,
            "slow" => valued(InjectedKind::Slow)?,
            "long-eval" => valued(InjectedKind::LongEval)?,
            "slow-start" => valued(InjectedKind::SlowStart)?,
            "slow-checkpoint" => valued(InjectedKind::SlowCheckpoint)?,
            "lognormal-env" => valued(InjectedKind::LognormalEnv)?,
            "pause" => valued(InjectedKind::Pause)?,
            "pace" => valued(InjectedKind::Pace)?,
            _ if value.is_some() => return Err(bad("it takes no value, or is unknown")),
            "exit" => InjectedKind::Exit,
            "leave" => InjectedKind::Leave,
            "raise" => InjectedKind::Raise,
            "segv" => InjectedKind::Segv,
            "abort" => InjectedKind::Abort,
            "kill" => InjectedKind::Kill,
            "stop" => InjectedKind::Stop,
            "spin" => InjectedKind::Spin,
            "sleep-env" => InjectedKind::SleepEnv,
            "lock" => InjectedKind::Lock,
            "lock-aux" => InjectedKind::LockAux,
            "mismatch-op" => InjectedKind::MismatchOp,
            "mismatch-count" => InjectedKind::MismatchCount,
            "mismatch-dtype" => InjectedKind::MismatchDtype,
            "mismatch-root" => InjectedKind::MismatchRoot,
            "skip" => InjectedKind::Skip,
            "extra-barrier" => InjectedKind::ExtraBarrier,
            "no-sync" => InjectedKind::NoSync,
            "teardown" => InjectedKind::Teardown,
            "disk-full" => InjectedKind::DiskFull,
            _ => return Err(bad("its name is unknown")),
        };
        Ok(InjectedFault { kind, rank, step, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let read = |text: &str| {
            text.parse::<InjectedFault>().map(|fault| (fault.kind, fault.rank, fault.step)).unwrap()
        };
        assert_eq!(read("spin@1:60"), (InjectedKind::Spin, Some(1), 60));
        assert_eq!(read("slow=30@all:2"), (InjectedKind::Slow(30), None, 2));
        let saving = |killed, point, file| InjectedKind::Saving { killed, point, file };
        assert_eq!(read("kill-before-rename=3@0:2").0, saving(true, SavePoint::BeforeRename, 3));
        assert_eq!(read("full-first-bytes@0:2").0, saving(false, SavePoint::FirstBytes, 1));
        for bad in [
            "",
            "spin",
            "spin@1",
            "spin@x:1",
            "spin@1:x",
            "what@1:1",
            "slow@1:1",
            "slow=x@1:1",
            "spin=3@1:1",
            "kill-what@1:1",
        ] {
            let error = bad.parse::<InjectedFault>().unwrap_err();
            assert!(error.contains("FAULT[=VALUE]@RANK:STEP"), "{bad}: {error}");
        }
    }
}
