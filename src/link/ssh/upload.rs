//! Files to a host, each whole or not at all.
//!
//! Owner: the session's thread; nothing else uses the session meanwhile (SSH-3). The bytes go into a
//! temporary name beside the target, are measured (and hashed, where the host has `sha256sum`), and then
//! renamed: others see the old file or the new one, and hosts that share a home folder may upload at the same
//! time. Any number of files travel through one command, because every command pays for the start files of
//! the login shell. Invariants:
//! - UPLOAD-1: a host that cannot write says so at once, and what it says ends the upload.

use super::output::Output;
use super::script::Script;
use super::session::{SshChannel, SshSession};
use super::wait::Stall;
use super::{Operator, SshError, exec};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::{Duration, Instant};

/// Begins the host's answer.
const VERDICT: &str = "RANKDECK-UPLOAD";
/// How long an upload may stand still.
const STALLED: Duration = Duration::from_secs(30);
/// How long the host may take to hash and rename.
const CHECKING: Duration = Duration::from_secs(60);
/// How long a link that is slow may hold up what the host still says once it has said why not.
const PARTING: Duration = Duration::from_secs(2);
const CHUNK: usize = 256 << 10;

/// Bytes that the host can take from the stream without reading into what follows: all parts but the last are
/// multiples of it.
pub const BLOCK: u64 = 64 << 10;

/// One file there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Where its bytes begin in the file here.
    pub offset: u64,
    /// How many; a multiple of [`BLOCK`] for all but the last part.
    pub size: u64,
    /// Their SHA-256 in hexadecimal.
    pub sha256: String,
    /// Name there.
    pub name: String,
}

/// What to upload.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The file here.
    pub local: &'a Path,
    /// What becomes of it there, in the order in which it travels.
    pub parts: &'a [Part],
    /// Absolute folder there; made when missing, with mode 0700.
    pub folder: &'a str,
    /// Makes the temporary names unique.
    pub token: &'a str,
    /// Name of the whole that these bytes are a part of, for people.
    pub shown: &'a str,
    /// Bytes of the whole that are there already.
    pub before: u64,
    /// Bytes of the whole.
    pub total: u64,
}

/// Uploads; the operator hears the bytes sent so far.
pub fn upload(
    session: &dyn SshSession,
    operator: &mut dyn Operator,
    what: &Batch<'_>,
) -> Result<(), SshError> {
    let label = session.label();
    let fault = |error: io::Error| {
        SshError::lasting(
            format!("{label}: cannot read {}: {error}", what.local.display()),
            "build or install rankdeck again",
        )
    };
    let mut file = std::fs::File::open(what.local).map_err(fault)?;
    let command = script(what).command();
    let mut channel = session.start(operator, &command, Instant::now() + STALLED)?;
    let mut sent = 0;
    let broken = |stall: Stall, sent: u64| {
        let hint = "the link is too slow or broken; try again";
        stall.passing(
            &format!(
                "{label}: upload of {} broke off after {} of {} bytes",
                what.shown,
                what.before + sent,
                what.total
            ),
            hint,
        )
    };
    let mut chunk = vec![0; CHUNK];
    let mut early = Output::default();
    let mut rest = 0..0;
    'sending: for part in what.parts {
        file.seek(io::SeekFrom::Start(part.offset)).map_err(fault)?;
        let mut left = (&mut file).take(part.size);
        loop {
            let count = left.read(&mut chunk).map_err(fault)?;
            if count == 0 {
                break;
            }
            let mut done = 0;
            let mut deadline = Instant::now() + STALLED;
            while done < count {
                match channel.write(&chunk[done..count]) {
                    Ok(written) => {
                        done += written;
                        sent += written as u64;
                        deadline = Instant::now() + STALLED;
                        operator.progress(what.shown, what.before + sent, what.total);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // UPLOAD-1. A verdict that nobody has read hides the end of the command from libssh2,
                        // too.
                        let heard = exec::listen(channel.as_mut(), &mut early)
                            .map_err(|stall| broken(stall, sent))?;
                        if early.after(VERDICT).is_some() || channel.ended() {
                            rest = done..count;
                            break 'sending;
                        }
                        if !heard {
                            channel.pause(operator, deadline).map_err(|stall| broken(stall, sent))?;
                        }
                    }
                    // The command has ended early; what it said tells why.
                    Err(_) => break 'sending,
                }
            }
        }
    }
    end(channel.as_mut(), operator, &chunk[rest], &mut early).map_err(|stall| broken(stall, sent))?;
    match session.refusal(&early) {
        Some(error) => Err(error),
        None => judge(session, what, &early),
    }
}

/// Ends the input, and takes in what else the host says. `rest` is what the last write was given and did not
/// get through.
fn end(
    channel: &mut dyn SshChannel,
    operator: &mut dyn Operator,
    rest: &[u8],
    heard: &mut Output,
) -> Result<(), Stall> {
    let judged = heard.after(VERDICT).is_some();
    let deadline = Instant::now() + if judged { PARTING } else { CHECKING };
    // The input's end would wait for it until the deadline, and in vain.
    while !rest.is_empty() && channel.is_half_sent() {
        match channel.write(rest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match channel.pause(operator, deadline) {
                    Err(Stall::TimedOut) => break,
                    paused => paused?,
                }
            }
            // What follows of it is of no use to the host.
            Ok(_) | Err(_) => break,
        }
    }
    // Any other trouble shows in the host's answer.
    if let Err(stall @ Stall::Closed) = channel.end_input(operator, deadline) {
        return Err(stall);
    }
    match exec::collect(channel, operator, deadline, &|_| false) {
        Ok(late) => {
            heard.status = late.status;
            heard.stdout.extend(late.stdout);
            heard.stderr.extend(late.stderr);
            Ok(())
        }
        Err(stall @ Stall::Closed) => Err(stall),
        Err(_) if judged => Ok(()),
        Err(stall) => Err(stall),
    }
}

/// What the host's answer means.
fn judge(session: &dyn SshSession, what: &Batch<'_>, output: &Output) -> Result<(), SshError> {
    let (label, folder, said) = (session.label(), what.folder, output.complaint());
    match output.after(VERDICT).as_deref() {
        Some("ok") => Ok(()),
        // What the host cannot write now it cannot write in a second either.
        Some(verdict) if verdict.starts_with("cannot") => Err(SshError::lasting(
            format!("{label}: cannot upload {} to {folder}: {verdict} {said}", what.shown),
            full_disk(session),
        )),
        Some(verdict) => Err(SshError::passing(
            format!("{label}: upload of {} to {folder} failed: {verdict} {said}", what.shown).trim_end(),
            full_disk(session),
        )),
        None => Err(SshError::passing(
            format!("{label}: upload of {} to {folder} broke off: {said}", what.shown),
            "try again",
        )),
    }
}

/// What helps where a host cannot write.
pub fn full_disk(session: &dyn SshSession) -> String {
    format!(
        "free space or quota there (`{} df -h`), or set RANKDECK_CACHE on the host to a folder on another disk",
        session.by_hand()
    )
}

/// Shell functions: `hash_of FILE` prints its SHA-256, or nothing; `can_hash` says whether it could. Where a
/// host has openssl, that is several times as fast as coreutils without it.
pub const HASH: &str = "hash_of() { s=$(openssl dgst -sha256 -r < \"$1\" 2>/dev/null) || \
     s=$(sha256sum < \"$1\" 2>/dev/null); echo \"${s%% *}\"; }; \
     can_hash() { command -v openssl >/dev/null 2>&1 || command -v sha256sum >/dev/null 2>&1; }";

/// What the host does with the bytes on its standard input. What uploads left there more than a day ago goes
/// first.
fn script(what: &Batch<'_>) -> Script {
    let begin = Script::new().set("folder", what.folder).run(HASH).run(
        "umask 077; P=; fail() { rm -f \"$P\"; echo \"RANKDECK-UPLOAD $1\"; exit 1; }; \
         take() { z=$1; h=$2; P=$3; T=$4; shift 4; \"$@\" > \"$P\" || fail \"cannot write:\"; \
         test \"$(($(wc -c < \"$P\")))\" = \"$z\" || fail \"incomplete:\"; \
         if can_hash; then test \"$(hash_of \"$P\")\" = \"$h\" || fail \"damaged on the way:\"; fi; \
         chmod 0755 \"$P\" && mv -f \"$P\" \"$T\" || fail \"cannot rename:\"; }; \
         mkdir -p \"$folder\" || fail \"cannot make the folder:\"; \
         find \"$folder\" -name \".*.part\" -mmin +1440 -exec rm -f {} + 2>/dev/null",
    );
    let last = what.parts.len().saturating_sub(1);
    let takes = what.parts.iter().enumerate().fold(begin, |script, (index, part)| {
        let part_name = format!("{}/.{}.{}.part", what.folder, part.name, what.token);
        let name = format!("{}/{}", what.folder, part.name);
        let (block, count) = (format!("bs={BLOCK}"), format!("count={}", part.size / BLOCK));
        // `cat` reads to the end, `dd` no further than it is told: what follows belongs to the next part.
        let reader: &[&str] =
            if index == last { &["cat"] } else { &["dd", &block, &count, "iflag=fullblock", "status=none"] };
        let size = part.size.to_string();
        let words = ["take", &size, &part.sha256, &part_name, &name];
        script.call(&[&words, reader].concat())
    });
    takes.run("echo \"RANKDECK-UPLOAD ok\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn feed(folder: &Path, sent: &[u8], parts: &[(&str, u64, &str)]) -> String {
        let folder = folder.to_str().unwrap();
        let parts: Vec<Part> = parts
            .iter()
            .map(|(name, size, sha256)| Part {
                offset: 0,
                size: *size,
                sha256: (*sha256).into(),
                name: (*name).into(),
            })
            .collect();
        let what = Batch {
            local: Path::new("x"),
            parts: &parts,
            folder,
            token: "t",
            shown: "x",
            before: 0,
            total: sent.len() as u64,
        };
        let mut child = Command::new("/bin/sh")
            .args(["-c", &script(&what).command()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A script that fails early does not read the rest.
        let _ = child.stdin.take().unwrap().write_all(sent);
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_string()
    }

    fn sum(bytes: &[u8]) -> String {
        rankdeck_types::words::hex(&Sha256::digest(bytes))
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_whole_and_true_files_appear() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a b/c");
        let good = sum(b"hello");
        assert_eq!(feed(&inside, b"hel", &[("it's", 5, &good)]), "RANKDECK-UPLOAD incomplete:");
        assert_eq!(feed(&inside, b"hallo", &[("it's", 5, &good)]), "RANKDECK-UPLOAD damaged on the way:");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 0, "nothing is left behind");
        assert_eq!(feed(&inside, b"hello", &[("it's", 5, &good)]), "RANKDECK-UPLOAD ok");
        assert_eq!(std::fs::read(inside.join("it's")).unwrap(), b"hello");
        assert_eq!(feed(&inside, b"hello!", &[("it's", 6, &sum(b"hello!"))]), "RANKDECK-UPLOAD ok");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
    }

    #[test]
    fn many_parts_travel_through_one_command_and_what_came_whole_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (vec![1; 2 * BLOCK as usize], vec![2; BLOCK as usize]);
        let (sums, c) = ((sum(&a), sum(&b)), b"the rest");
        let parts = [("a", 2 * BLOCK, sums.0.as_str()), ("b", BLOCK, sums.1.as_str()), ("c", 8, &sum(c))];
        let whole = [&a[..], &b, c].concat();
        // The link breaks in the middle of the second.
        let half = &whole[..whole.len() - BLOCK as usize];
        assert_eq!(feed(folder.path(), half, &parts), "RANKDECK-UPLOAD incomplete:");
        assert_eq!(names(folder.path()), ["a"]);
        assert_eq!(feed(folder.path(), &whole, &parts), "RANKDECK-UPLOAD ok");
        assert_eq!(names(folder.path()), ["a", "b", "c"]);
        assert_eq!(std::fs::read(folder.path().join("b")).unwrap(), b);
        assert_eq!(std::fs::read(folder.path().join("c")).unwrap(), c);
    }
}
