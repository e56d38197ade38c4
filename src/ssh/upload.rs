//! One file to a host, whole or not at all.
//!
//! Owner: the session's thread; the session is this upload's own (SSH-3). The bytes go through `cat` into a temporary name beside the
//! target, are measured (and hashed, where the host has `sha256sum`), and then renamed: others see the old file or the new one, and
//! hosts that share a home folder may upload at the same time.

use super::connect::Connection;
use super::wait::{self, Stall};
use super::{Operator, SshError, exec, quote};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an upload may stand still.
const STALLED: Duration = Duration::from_secs(30);
/// How long the host may take to hash and rename.
const CHECKING: Duration = Duration::from_secs(60);
const CHUNK: usize = 256 << 10;

/// What to upload.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// The file here.
    pub local: &'a Path,
    /// Where the bytes begin there.
    pub offset: u64,
    /// How many.
    pub size: u64,
    /// Their SHA-256 in hexadecimal.
    pub sha256: &'a str,
    /// Absolute folder there; made when missing, with mode 0700.
    pub folder: &'a str,
    /// Name there.
    pub name: &'a str,
    /// Makes the temporary name unique.
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
    connection: &Connection,
    operator: &mut dyn Operator,
    what: &Upload<'_>,
) -> Result<(), SshError> {
    let label = connection.label();
    let fault = |error: io::Error| {
        SshError::lasting(
            format!("{label}: cannot read {}: {error}", what.local.display()),
            "build or install rankdeck again",
        )
    };
    let mut file = std::fs::File::open(what.local).map_err(fault)?;
    file.seek(io::SeekFrom::Start(what.offset)).map_err(fault)?;
    let mut file = file.take(what.size);
    let command = quote::script(&script(what));
    let mut channel = exec::start(connection, operator, &command, Instant::now() + STALLED)?;
    let mut sent = 0;
    let mut chunk = vec![0; CHUNK];
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
    'sending: loop {
        let count = file.read(&mut chunk).map_err(fault)?;
        if count == 0 {
            break;
        }
        let mut done = 0;
        let mut deadline = Instant::now() + STALLED;
        while done < count {
            match channel.stream(0).write(&chunk[done..count]) {
                Ok(written) => {
                    done += written;
                    sent += written as u64;
                    deadline = Instant::now() + STALLED;
                    operator.progress(what.shown, what.before + sent, what.total);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if channel.eof() {
                        break 'sending;
                    }
                    wait::pause(&connection.session, connection.fd(), operator, deadline)
                        .map_err(|stall| broken(stall, sent))?;
                }
                // The command has ended early; what it said tells why.
                Err(_) => break 'sending,
            }
        }
    }
    let deadline = Instant::now() + CHECKING;
    // Any other trouble shows in the host's answer.
    if let Err(stall @ Stall::Closed) = connection.until(operator, deadline, || channel.send_eof()) {
        return Err(broken(stall, sent));
    }
    let output = exec::collect(connection, operator, &mut channel, deadline, &|_| false)
        .map_err(|stall| broken(stall, sent))?;
    match output.after("RANKDECK-UPLOAD") {
        Some(verdict) if verdict == "ok" => Ok(()),
        Some(verdict) => Err(SshError::passing(
            format!(
                "{label}: upload of {} to {} failed: {verdict} {}",
                what.name,
                what.folder,
                output.complaint()
            )
            .trim_end()
            .to_string(),
            format!(
                "is the disk or the quota full? try `{} df -h`; RANKDECK_CACHE on the host names another folder",
                connection.target.command()
            ),
        )),
        None => Err(SshError::passing(
            format!("{label}: upload of {} to {} broke off: {}", what.name, what.folder, output.complaint()),
            "try again",
        )),
    }
}

/// What the host does with the bytes on its standard input.
fn script(what: &Upload<'_>) -> String {
    let folder = quote::word(what.folder);
    let part = quote::word(&format!("{}/.{}.{}.part", what.folder, what.name, what.token));
    let target = quote::word(&format!("{}/{}", what.folder, what.name));
    let (size, sha256) = (what.size, what.sha256);
    // Leftovers of uploads that broke off a day ago go first. No `!` and no newline: csh would read them before sh does.
    format!(
        "umask 077; fail() {{ rm -f {part}; echo \"RANKDECK-UPLOAD $1\"; exit 1; }}; \
         mkdir -p {folder} || fail \"cannot make the folder:\"; \
         find {folder} -name \".*.part\" -mmin +1440 -exec rm -f {{}} + 2>/dev/null; \
         cat > {part} || fail \"cannot write:\"; \
         test \"$(($(wc -c < {part})))\" = {size} || fail \"incomplete:\"; \
         if command -v sha256sum >/dev/null 2>&1; then s=$(sha256sum < {part}); test \"${{s%% *}}\" = {sha256} || fail \"damaged on the way:\"; fi; \
         chmod 0755 {part} && mv -f {part} {target} || fail \"cannot rename:\"; echo \"RANKDECK-UPLOAD ok\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::process::{Command, Stdio};

    fn feed(folder: &Path, sent: &[u8], size: u64, sha256: &str) -> String {
        let folder = folder.to_str().unwrap();
        let what = Upload {
            local: Path::new("x"),
            offset: 0,
            size,
            sha256,
            folder,
            name: "it's",
            token: "t",
            shown: "x",
            before: 0,
            total: size,
        };
        let mut child = Command::new("/bin/sh")
            .args(["-c", &quote::script(&script(&what))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(sent).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_string()
    }

    #[test]
    fn only_whole_and_true_files_appear() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a b/c");
        let sum =
            |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let good = sum(b"hello");
        assert_eq!(feed(&inside, b"hel", 5, &good), "RANKDECK-UPLOAD incomplete:");
        assert_eq!(feed(&inside, b"hallo", 5, &good), "RANKDECK-UPLOAD damaged on the way:");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 0, "nothing is left behind");
        assert_eq!(feed(&inside, b"hello", 5, &good), "RANKDECK-UPLOAD ok");
        assert_eq!(std::fs::read(inside.join("it's")).unwrap(), b"hello");
        assert_eq!(feed(&inside, b"hello!", 6, &sum(b"hello!")), "RANKDECK-UPLOAD ok");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
    }
}
