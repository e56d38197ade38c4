//! A console's query about one process of this host's user: its environment, or a signal to it.
//!
//! - REACH-3: nothing is done to a process of another user, to one that is another by now, or to what serves
//!   the run itself.

use crate::proc::{self, ProcessKey};
use crate::supervise::groups;
use rankdeck_proto::process::{
    ALL_BYTES, Environment, HIDDEN, ReachOutcome, VALUE_BYTES, VARIABLES, Variable,
};
use rankdeck_proto::trust::{self, own_uid};
use rankdeck_types::error::HintedError;
use rankdeck_types::variables::{holds_password, names_secret};
use rankdeck_types::words::{clip, signal_name};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// That this process is there, is the one that is meant, and belongs to this user.
///
/// # Errors
/// It is another process.
pub(crate) fn check(meant: ProcessKey) -> Result<(), HintedError> {
    let pid = meant.pid;
    let refuse = |error: String, hint: &str| Err(HintedError::new(error, hint));
    let Some(stat) = proc::stat(pid).filter(|stat| !stat.is_gone()) else {
        return refuse(format!("pid {pid} has ended"), "the process list updates in a moment");
    };
    if meant.start == 0 || stat.start != meant.start {
        return refuse(
            format!("pid {pid} is now another process: `{}`", clip(&stat.comm, 60)),
            "check the process list again",
        );
    }
    let uid = std::fs::metadata(format!("/proc/{pid}")).map(|facts| facts.uid()).unwrap_or(u32::MAX);
    if uid != own_uid() {
        let (whose, own) = (trust::user_name(uid), trust::user_name(own_uid()));
        return refuse(
            format!("pid {pid} belongs to {whose}, but this agent runs as {own}"),
            "only processes of your own user are accessible",
        );
    }
    Ok(())
}

/// Sends a signal to exactly this process, and to no child of it.
///
/// # Errors
/// The process is not to be reached, or the kernel refuses.
pub(crate) fn signal(meant: ProcessKey, signal: i32) -> Result<ReachOutcome, HintedError> {
    check(meant)?;
    if !(1..32).contains(&signal) {
        return Err(HintedError::new(
            format!("invalid signal {signal}"),
            "use 1 to 31, or a name such as TERM",
        ));
    }
    match groups::signal(meant.pid, meant.start, signal) {
        true => Ok(ReachOutcome::Signalled { signal }),
        false => Err(HintedError::new(
            format!("pid {} did not get {}: it has ended", meant.pid, signal_name(signal)),
            "",
        )),
    }
}

/// Returns the environment that a process was started with, without the values of secrets: those of `hidden`, those
/// that its run has named, and likely ones.
///
/// # Errors
/// The process is not to be reached, or its environment cannot be read.
pub(crate) fn environment(meant: ProcessKey, hidden: &BTreeSet<String>) -> Result<ReachOutcome, HintedError> {
    check(meant)?;
    let bytes = proc::environ(meant.pid).ok_or_else(|| {
        let error = format!("cannot read the environment variables of pid {}", meant.pid);
        HintedError::new(
            error,
            "the kernel hides it for other users' processes and for programs that changed their user",
        )
    })?;
    // Only of the process that was checked: read before, and checked again.
    check(meant)?;
    Ok(ReachOutcome::Environment(parse_environment(&bytes, hidden)))
}

fn parse_environment(bytes: &[u8], hidden: &BTreeSet<String>) -> Environment {
    let mut environment = Environment::default();
    let mut room = ALL_BYTES;
    let named = proc::variable(bytes, HIDDEN).map(String::from_utf8_lossy).unwrap_or_default();
    let named: BTreeSet<&str> = named.split(',').collect();
    let entries = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut entries: Vec<_> = entries.filter(|entry| !entry.is_empty()).collect();
    entries.sort_unstable();
    for entry in entries {
        // An entry without a name is skipped: it may be the rest of a secret.
        let Some((name, value)) = entry.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            environment.left_out += 1;
            continue;
        };
        let secret =
            hidden.contains(name) || named.contains(name) || names_secret(name) || holds_password(value);
        let value = (!secret).then(|| clip_bytes(value));
        let bytes = name.len() + value.as_ref().map_or(0, String::len);
        if environment.variables.len() == VARIABLES || bytes > room {
            environment.left_out += 1;
            continue;
        }
        room -= bytes;
        environment.variables.push(Variable { name: name.to_owned(), value });
    }
    environment
}

fn clip_bytes(value: &str) -> String {
    if value.len() <= VALUE_BYTES {
        return value.to_owned();
    }
    let end = (0..=VALUE_BYTES).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", value.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> (Child, ProcessKey) {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null()).env("REACH_SEEN", "a b").env("REACH_API_KEY", "s3cret");
        let child = command.env("REACH_GIVEN", "s3cret too").spawn().unwrap();
        let pid = child.id();
        let has_begun =
            || proc::environ(pid).is_some_and(|bytes| proc::variable(&bytes, "REACH_SEEN").is_some());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !has_begun() {
            assert!(std::time::Instant::now() < until, "it does not begin");
            std::thread::yield_now();
        }
        let start = proc::stat(pid).unwrap().start;
        (child, ProcessKey { pid, start })
    }

    fn error(result: Result<ReachOutcome, HintedError>) -> String {
        result.unwrap_err().error
    }

    #[test]
    fn reach_1_environment_has_no_secrets() {
        let (mut child, meant) = sleeper();
        let hidden = BTreeSet::from(["REACH_GIVEN".to_owned()]);
        let Ok(ReachOutcome::Environment(found)) = environment(meant, &hidden) else {
            panic!("no environment")
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let value = |name: &str| {
            let found = found.variables.iter().find(|variable| variable.name == name);
            found.unwrap_or_else(|| panic!("{name} is missing")).value.clone()
        };
        assert_eq!(value("REACH_SEEN").as_deref(), Some("a b"));
        assert_eq!((value("REACH_API_KEY"), value("REACH_GIVEN")), (None, None));
        let json = serde_json::to_string(&found).unwrap();
        assert!(!json.contains("s3cret"), "no value of a secret leaves the host");
    }

    #[test]
    fn reach_1_run_names_what_its_ranks_and_their_children_hide() {
        let found = parse_environment(b"RANKDECK_HIDDEN=MINE,YOURS\0MINE=s3cret\0OURS=x", &BTreeSet::new());
        let value =
            |name: &str| found.variables.iter().find(|found| found.name == name).unwrap().value.clone();
        assert_eq!((value("MINE"), value("OURS").as_deref()), (None, Some("x")));
    }

    #[test]
    fn reach_2_no_formatting_shows_an_environment() {
        let found = parse_environment(b"A=visible\0B=also", &BTreeSet::new());
        assert!(!format!("{found:?} {:#?}", ReachOutcome::Environment(found.clone())).contains("visible"));
    }

    #[test]
    fn environment_is_bounded_and_omissions_are_counted() {
        let many: Vec<u8> = (0..VARIABLES + 7).flat_map(|i| format!("V{i:05}=x\0").into_bytes()).collect();
        let found = parse_environment(&many, &BTreeSet::new());
        assert_eq!((found.variables.len(), found.left_out), (VARIABLES, 7));
        let long = format!("A={}\0no name\0=x\0B=1", "ä".repeat(VALUE_BYTES));
        let found = parse_environment(long.as_bytes(), &BTreeSet::new());
        assert_eq!((found.variables.len(), found.left_out), (2, 2));
        assert!(found.variables[0].value.as_ref().unwrap().len() <= VALUE_BYTES + 3);
    }

    #[test]
    fn reach_3_only_the_process_that_is_meant_is_reached() {
        let (mut child, meant) = sleeper();
        let other = ProcessKey { start: meant.start + 1, ..meant };
        let mut refusals = vec![
            error(signal(other, libc::SIGKILL)),
            error(environment(ProcessKey { start: 0, ..meant }, &BTreeSet::new())),
            error(signal(meant, 77)),
        ];
        assert!(child.try_wait().unwrap().is_none(), "it keeps running");
        assert_eq!(signal(meant, libc::SIGTERM), Ok(ReachOutcome::Signalled { signal: libc::SIGTERM }));
        let ended = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGTERM));
        refusals.push(error(signal(meant, libc::SIGTERM)));
        insta::assert_snapshot!(
            "process_refusals",
            refusals.join("\n").replace(&format!("pid {}", meant.pid), "pid PID")
        );
    }

    #[test]
    fn reach_3_processes_of_others_are_refused_with_their_name() {
        let own = own_uid();
        let foreign = proc::all().into_iter().find(|stat| {
            let owner = std::fs::metadata(format!("/proc/{}", stat.pid)).map(|facts| facts.uid());
            !stat.is_gone() && owner.is_ok_and(|uid| uid != own)
        });
        let child = match foreign {
            Some(stat) => Ok(ProcessKey { pid: stat.pid, start: stat.start }),
            // As root, one of another user is made.
            None if own == 0 => {
                use std::os::unix::process::CommandExt;
                let child = Command::new("sleep").arg("1000").uid(65534).spawn().unwrap();
                let start = proc::stat(child.id()).unwrap().start;
                Err((child, start))
            }
            None => {
                rankdeck_testkit::skipped("no process of another user is seen here");
                return;
            }
        };
        let meant = match &child {
            Ok(meant) => *meant,
            Err((child, start)) => ProcessKey { pid: child.id(), start: *start },
        };
        let refused = error(signal(meant, libc::SIGCONT));
        if let Err((mut child, _)) = child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(refused.contains(&trust::user_name(own)), "{refused}");
    }
}
