//! The program of a rank that docker or podman runs: a monitor of theirs starts it, so that it is no child of
//! the rank's own process, which is only their client.

use crate::proc::{self, Ident};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// What all processes of a rank have in their environment, and no other process.
const MARK: [&str; 4] = ["RANKDECK_RUN", "RANKDECK_RUN_DIR", "RANKDECK_AGENT", "RANKDECK_RANK"];
/// First processes of a container that only reap and pass signals on.
const INITS: [&str; 5] = ["docker-init", "podman-init", "catatonit", "tini", "dumb-init"];

/// The first process of the program that a client has had started in its container. `None` when there is
/// none, yet or any more.
pub fn program(client: Ident) -> Option<Ident> {
    let environ = proc::environ(client.pid)?;
    let mark: Vec<(&str, &[u8])> =
        MARK.iter().map(|name| Some((*name, proc::variable(&environ, name)?))).collect::<Option<_>>()?;
    let own_root = root("self")?;
    let is_ours = |stat: &proc::Stat| {
        // The monitor is marked like the program, and stays in the host's own tree of files.
        stat.start >= client.start
            && !stat.is_gone()
            && !INITS.contains(&stat.comm.as_str())
            && root(&stat.pid.to_string()).is_some_and(|root| root != own_root)
            && proc::environ(stat.pid).is_some_and(|environ| {
                mark.iter().all(|(name, value)| proc::variable(&environ, name) == Some(value))
            })
    };
    let found: Vec<proc::Stat> = proc::all().into_iter().filter(is_ours).collect();
    let pids: BTreeSet<u32> = found.iter().map(|stat| stat.pid).collect();
    let tops = found.iter().filter(|stat| !pids.contains(&stat.ppid));
    tops.min_by_key(|stat| (stat.start, stat.pid)).map(|stat| Ident { pid: stat.pid, start: stat.start })
}

/// The root folder of a process: device and inode.
fn root(pid: &str) -> Option<(u64, u64)> {
    let found = std::fs::metadata(format!("/proc/{pid}/root")).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    struct ChildGuard(Child);

    impl Drop for ChildGuard {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn marked(program: &str, arguments: &[&str], rank: &str) -> ChildGuard {
        let mark = MARK.map(|name| (name, if name == "RANKDECK_RANK" { rank } else { "containers-test" }));
        ChildGuard(Command::new(program).args(arguments).envs(mark).spawn().unwrap())
    }

    fn ident(child: &ChildGuard) -> Ident {
        Ident { pid: child.0.id(), start: proc::stat(child.0.id()).unwrap().start }
    }

    /// A program with another root folder that is no child of the client, beside one of another rank and one
    /// that is marked and stays outside, as a monitor does.
    #[test]
    fn the_program_of_a_container_is_found_by_its_mark_and_its_root() {
        let allowed = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
        if !allowed.is_ok_and(|status| status.success()) {
            rankdeck_testkit::skip!("no user name spaces here");
        }
        let client = marked("sleep", &["1000"], "3");
        let monitor = marked("sleep", &["1000"], "3");
        assert_eq!(program(ident(&client)), None, "the container is not there yet");
        let inside = "mount -t tmpfs none /mnt && mkdir /mnt/usr && mount --rbind /usr /mnt/usr && cd /mnt && \
                      ln -s usr/bin usr/lib usr/lib64 . && exec chroot /mnt sleep 1000";
        let other = marked("unshare", &["--map-root-user", "--mount", "sh", "-c", inside], "4");
        let own = marked("unshare", &["--map-root-user", "--mount", "sh", "-c", inside], "3");
        let begun = Instant::now();
        while program(ident(&client)).is_none()
            || proc::stat(own.0.id()).is_none_or(|own| own.comm != "sleep")
        {
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s");
        }
        assert_eq!(program(ident(&client)), Some(ident(&own)));
        drop((own, other, monitor));
        assert_eq!(program(ident(&client)), None, "it is gone");
    }
}
