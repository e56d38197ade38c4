//! Uploads files in chunks, so that a broken link costs one chunk and not the file.
//!
//! Nothing else uses the session meanwhile (SSH-3), so that an upload needs no extra login. The chunks of a
//! file are stored in `CACHE/pieces`, named by the file's hash and the chunk's number, and finally joined,
//! measured and hashed there.
//!
//! One command transfers several chunks or a whole file, because every command runs the start files of the
//! login shell. The bytes go to a temporary name next to the target, are measured (and hashed, if the host
//! can), and then renamed, so that hosts that share a home directory may upload at the same time. Invariants:
//! - A complete chunk is never uploaded again, no matter which console uploaded it.
//! - CHUNK-2: a file appears under its name only complete and with the right hash (if the host can hash).
//! - UPLOAD-1: a host that cannot write reports it at once, which ends the upload.

use super::exec;
use super::exec::CommandOutput;
use super::exec::Script;
use super::session::BlockReason;
use super::session::{SshChannel, SshSession};
use super::{SessionOwner, SshError, SshErrorKind};
use crate::deploy::Image;

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a chunk: seconds on a slow link, and a few hundred chunks for the largest files.
pub const PIECE: u64 = 8 << 20;
/// Most chunks per command: the list of their names and hashes must fit on a command line.
const BATCH: usize = 32;
const _: () = assert!(PIECE.is_multiple_of(BLOCK));
/// Timeout of listing and of joining chunks.
const JOINING: Duration = Duration::from_secs(120);

/// Uploads files over one session.
pub(crate) struct Uploader<'a> {
    session: &'a dyn SshSession,
    /// Bytes sent.
    pub sent: u64,
}

impl<'a> Uploader<'a> {
    /// Creates an uploader.
    pub fn new(session: &'a dyn SshSession) -> Uploader<'a> {
        Uploader { session, sent: 0 }
    }

    /// Uploads a file to `CACHE/FOLDER/NAME`.
    pub fn file(
        &mut self,
        image: &Image,
        cache: &str,
        folder: &str,
        name: &str,
        owner: &mut dyn SessionOwner,
    ) -> Result<(), SshError> {
        let session = self.session;
        owner.progress(name, 0, image.size);
        let folder = format!("{cache}/{folder}");
        if image.size <= PIECE {
            let whole =
                UploadPart { offset: 0, size: image.size, sha256: image.sha256.clone(), name: name.into() };
            return self.parts(image, &[whole], &folder, (0, name), owner);
        }
        let stem: String = image.sha256.chars().take(32).collect();
        let gathered = format!("{cache}/pieces");
        let present = list_pieces(session, &gathered, &stem, owner)?;
        let count = image.size.div_ceil(PIECE);
        let size = |index: u64| PIECE.min(image.size - index * PIECE);
        let piece = |index: u64| piece_name(&stem, index);
        let missing: Vec<u64> =
            (0..count).filter(|&index| present.get(&piece(index)) != Some(&size(index))).collect();
        let mut done = image.size - missing.iter().map(|&index| size(index)).sum::<u64>();
        for batch in missing.chunks(BATCH) {
            let parts: Result<Vec<UploadPart>, SshError> = batch
                .iter()
                .map(|&index| {
                    let sha256 = image
                        .piece(index * PIECE, size(index))
                        .map_err(|error| unreadable(session, image, &error))?;
                    Ok(UploadPart { offset: index * PIECE, size: size(index), sha256, name: piece(index) })
                })
                .collect();
            self.parts(image, &parts?, &gathered, (done, name), owner)?;
            done += batch.iter().map(|&index| size(index)).sum::<u64>();
            owner.progress(name, done, image.size);
        }
        ChunkedFile { image, folder: &gathered, stem: &stem, count }.join(session, &folder, name, owner)
    }

    /// Uploads parts of `image`; `before`: bytes of it that the host already has.
    fn parts(
        &mut self,
        image: &Image,
        parts: &[UploadPart],
        folder: &str,
        (before, shown): (u64, &str),
        owner: &mut dyn SessionOwner,
    ) -> Result<(), SshError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Unique among the consoles that share this home directory: process, upload, and a random number.
        let random = (crate::random_fraction() * 1e15) as u64;
        let token = format!("{}-{}-{random:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let what =
            UploadJob { local: &image.path, parts, folder, token: &token, shown, before, total: image.size };
        upload(self.session, owner, &what)?;
        self.sent += parts.iter().map(|part| part.size).sum::<u64>();
        Ok(())
    }
}

fn unreadable(session: &dyn SshSession, image: &Image, error: &io::Error) -> SshError {
    SshError::permanent(
        format!("{}: cannot read {}: {error}", session.label(), image.path.display()),
        "check that it was not moved or rebuilt meanwhile",
    )
}

/// Lists the chunks of a file on the host with their sizes; removes chunks that are older than a day.
fn list_pieces(
    session: &dyn SshSession,
    folder: &str,
    stem: &str,
    owner: &mut dyn SessionOwner,
) -> Result<BTreeMap<String, u64>, SshError> {
    let script = Script::new().set("folder", folder).set("stem", stem).run(
        "cd \"$folder\" 2>/dev/null && { find . -type f -mmin +1440 -exec rm -f {} + 2>/dev/null; \
         for f in \"$stem\".*; do test -f \"$f\" && echo \"RANKDECK-PIECE $f $(($(wc -c < \"$f\")))\"; done; }; \
         echo RANKDECK-PIECES",
    );
    let output = exec::run(session, owner, &script.command(), JOINING, &|_| false)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let piece = |line: &str| {
        let (name, size) = line.strip_prefix("RANKDECK-PIECE ")?.split_once(' ')?;
        Some((name.to_owned(), size.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(piece).collect())
}

/// A file to join from its chunks.
struct ChunkedFile<'a> {
    image: &'a Image,
    /// Directory of the chunks on the host.
    folder: &'a str,
    /// Prefix of their names.
    stem: &'a str,
    count: u64,
}

impl ChunkedFile<'_> {
    /// Joins the chunks into `FOLDER/NAME`, and removes them.
    fn join(
        &self,
        session: &dyn SshSession,
        folder: &str,
        name: &str,
        owner: &mut dyn SessionOwner,
    ) -> Result<(), SshError> {
        let command = self.script(folder, name).command();
        let output = exec::run(session, owner, &command, JOINING, &|_| false)?;
        match output.after("RANKDECK-JOINED") {
            Some(verdict) if verdict == "ok" => Ok(()),
            verdict => {
                let kind = match &verdict {
                    Some(verdict) if verdict.starts_with("cannot") => SshErrorKind::Permanent,
                    _ => SshErrorKind::Transient,
                };
                let error = format!(
                    "{}: cannot join {name} in {folder}: {} {}",
                    session.label(),
                    verdict.unwrap_or_default(),
                    output.summary()
                );
                let hint = unwritable(session, &error);
                Err(SshError::new(kind, error, hint))
            }
        }
    }

    /// Returns the host's script. A damaged chunk cannot be identified: all are removed, and the next attempt
    /// uploads them again. Hosts that share a home directory share the chunks: for the second one, the chunks
    /// are gone and the file is complete.
    fn script(&self, folder: &str, name: &str) -> Script {
        let names: Vec<String> = (0..self.count).map(|index| piece_name(self.stem, index)).collect();
        Script::new()
            .set("pieces", self.folder)
            .set("folder", folder)
            .set("target", format!("{folder}/{name}"))
            .set("part", format!("{folder}/.{name}"))
            .set("size", self.image.size)
            .set("hash", &self.image.sha256)
            .arguments(&names)
            .run(HASH)
            .run(
                "umask 077; part=\"$part.$$.part\"; fail() { rm -f \"$part\"; \
                 if test -x \"$target\" && test \"$(hash_of \"$target\")\" = \"$hash\"; \
                 then echo \"RANKDECK-JOINED ok\"; exit 0; fi; echo \"RANKDECK-JOINED $1\"; exit 1; }; \
                 mkdir -p \"$folder\" && cd \"$pieces\" || fail \"cannot make the folder:\"; \
                 cat \"$@\" > \"$part\" || fail \"cannot write:\"; \
                 test \"$(($(wc -c < \"$part\")))\" = \"$size\" || fail \"incomplete:\"; \
                 if can_hash; then test \"$(hash_of \"$part\")\" = \"$hash\" || { rm -f \"$@\"; fail \"damaged:\"; }; fi; \
                 chmod 0755 \"$part\" && mv -f \"$part\" \"$target\" || fail \"cannot rename:\"; \
                 rm -f \"$@\"; echo \"RANKDECK-JOINED ok\"",
            )
    }
}

fn piece_name(stem: &str, index: u64) -> String {
    format!("{stem}.{index:05}")
}

/// Marker of the host's verdict.
const VERDICT: &str = "RANKDECK-UPLOAD";
/// Timeout of an upload without progress.
const STALLED: Duration = Duration::from_secs(30);
/// Timeout of hashing and renaming.
const CHECKING: Duration = Duration::from_secs(60);
/// Timeout of the remaining output after a negative verdict.
const PARTING: Duration = Duration::from_secs(2);
const BUFFER: usize = 256 << 10;

/// Block size with which the host reads parts from the stream: all parts but the last are multiples of it.
pub const BLOCK: u64 = 64 << 10;

/// A part of a local file, and its file on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadPart {
    /// Offset in the local file.
    pub offset: u64,
    /// Bytes; a multiple of [`BLOCK`] for all but the last part.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Name on the host.
    pub name: String,
}

/// An upload.
#[derive(Debug, Clone, Copy)]
pub struct UploadJob<'a> {
    /// The local file.
    pub local: &'a Path,
    /// Its parts, in the order of the transfer.
    pub parts: &'a [UploadPart],
    /// Absolute directory on the host; created with mode 0700 if missing.
    pub folder: &'a str,
    /// Unique suffix of temporary names.
    pub token: &'a str,
    /// Name of the whole file, for display.
    pub shown: &'a str,
    /// Bytes of the whole file that the host already has.
    pub before: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// Uploads, and reports the bytes sent to the owner.
pub fn upload(
    session: &dyn SshSession,
    owner: &mut dyn SessionOwner,
    what: &UploadJob<'_>,
) -> Result<(), SshError> {
    let label = session.label();
    let fault = |error: io::Error| {
        SshError::permanent(
            format!("{label}: cannot read {}: {error}", what.local.display()),
            "rebuild or reinstall rankdeck",
        )
    };
    let mut file = std::fs::File::open(what.local).map_err(fault)?;
    let command = script(what).command();
    let mut channel = session.start(owner, &command, Instant::now() + STALLED)?;
    let mut early = CommandOutput::default();
    exec::await_start(session, channel.as_mut(), owner, (exec::START, false), &mut early)?;
    let mut sent = 0;
    let broken = |blocked: BlockReason, sent: u64| {
        let hint = "check the network and try again";
        blocked.transient(
            &format!(
                "{label}: upload of {} interrupted after {} of {} bytes",
                what.shown,
                what.before + sent,
                what.total
            ),
            hint,
        )
    };
    let mut chunk = vec![0; BUFFER];
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
                        owner.progress(what.shown, what.before + sent, what.total);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // UPLOAD-1. An unread verdict also hides the end of the command from libssh2.
                        let has_output = exec::read_output(channel.as_mut(), &mut early)
                            .map_err(|blocked| broken(blocked, sent))?;
                        if early.after(VERDICT).is_some() || channel.ended() {
                            rest = done..count;
                            break 'sending;
                        }
                        if !has_output {
                            channel.pause(owner, deadline).map_err(|blocked| broken(blocked, sent))?;
                        }
                    }
                    // The command ended early; its output has the reason.
                    Err(_) => break 'sending,
                }
            }
        }
    }
    finish(channel.as_mut(), owner, &chunk[rest], &mut early).map_err(|blocked| broken(blocked, sent))?;
    match session.refusal(&early) {
        Some(error) => Err(error),
        None => check_verdict(session, what, &early),
    }
}

/// Closes the input, and reads the remaining output. `rest`: bytes of the last write that were not sent.
fn finish(
    channel: &mut dyn SshChannel,
    owner: &mut dyn SessionOwner,
    rest: &[u8],
    received: &mut CommandOutput,
) -> Result<(), BlockReason> {
    let has_verdict = received.after(VERDICT).is_some();
    let deadline = Instant::now() + if has_verdict { PARTING } else { CHECKING };
    // Closing the input would wait for them until the deadline.
    while !rest.is_empty() && channel.is_half_sent() {
        match channel.write(rest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match channel.pause(owner, deadline) {
                Err(BlockReason::TimedOut) => break,
                paused => paused?,
            },
            // The host needs no more of it.
            Ok(_) | Err(_) => break,
        }
    }
    // Other failures show in the output.
    if let Err(blocked @ BlockReason::Closed) = channel.end_input(owner, deadline) {
        return Err(blocked);
    }
    match exec::collect(channel, owner, deadline) {
        Ok(late) => {
            received.status = late.status;
            received.stdout.extend(late.stdout);
            received.stderr.extend(late.stderr);
            Ok(())
        }
        Err(blocked @ BlockReason::Closed) => Err(blocked),
        Err(_) if has_verdict => Ok(()),
        Err(blocked) => Err(blocked),
    }
}

/// Checks the host's verdict.
fn check_verdict(
    session: &dyn SshSession,
    what: &UploadJob<'_>,
    output: &CommandOutput,
) -> Result<(), SshError> {
    let (label, folder, error) = (session.label(), what.folder, output.last_error_line());
    match output.after(VERDICT).as_deref() {
        Some("ok") => Ok(()),
        // A retry would fail in the same way.
        Some(verdict) if verdict.starts_with("cannot") => Err(SshError::permanent(
            format!("{label}: cannot upload {} to {folder}: {verdict} {error}", what.shown),
            unwritable(session, &error),
        )),
        Some(verdict) => Err(SshError::transient(
            format!("{label}: upload of {} to {folder} failed: {verdict} {error}", what.shown).trim_end(),
            unwritable(session, &error),
        )),
        None => Err(SshError::transient(
            format!("{label}: upload of {} to {folder} interrupted: {error}", what.shown),
            "try again",
        )),
    }
}

/// Returns the hint for a host that cannot write, by the reason that it printed.
pub(crate) fn unwritable(session: &dyn SshSession, reason: &str) -> String {
    unwritable_hint(&session.by_hand(), reason)
}

/// The texts are those of C libraries and shells for EACCES and EPERM, EROFS, and errors of the path itself.
fn unwritable_hint(by_hand: &str, reason: &str) -> String {
    let elsewhere = "set RANKDECK_CACHE there to a directory on another disk";
    let is_any = |texts: &[&str]| texts.iter().any(|text| reason.contains(text));
    if is_any(&["Permission denied", "Operation not permitted"]) {
        format!(
            "make that directory writable for this account (check `{by_hand} ls -ld ~ ~/.cache`), or {elsewhere}"
        )
    } else if is_any(&["Read-only"]) {
        format!("the file system is mounted read-only: remount it (check `{by_hand} df -h`), or {elsewhere}")
    } else if is_any(&[
        "No such file",
        "nonexistent",
        "Not a directory",
        "File exists",
        "File name too long",
        "levels of symbolic links",
    ]) {
        format!(
            "set RANKDECK_CACHE there to a directory that exists or can be created (check `{by_hand} ls -ld ~ ~/.cache`)"
        )
    } else {
        format!("free space or quota on the host (check `{by_hand} df -h`), or {elsewhere}")
    }
}

/// Shell functions: `hash_of FILE` prints its SHA-256, or nothing; `can_hash` returns whether it can. openssl
/// is several times as fast as coreutils without it.
pub const HASH: &str = "hash_of() { s=$(openssl dgst -sha256 -r < \"$1\" 2>/dev/null) || \
     s=$(sha256sum < \"$1\" 2>/dev/null); echo \"${s%% *}\"; }; \
     can_hash() { command -v openssl >/dev/null 2>&1 || command -v sha256sum >/dev/null 2>&1; }";

/// Returns the host's script for the bytes on its stdin. It first removes leftovers that are older than a
/// day.
fn script(what: &UploadJob<'_>) -> Script {
    let begin = Script::started().set("folder", what.folder).run(HASH).run(
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
        // `cat` reads to the end, `dd` only its part: the next part follows.
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

    fn joined(image: &Image, pieces: &Path, folder: &Path) -> String {
        let pieces = ChunkedFile { image, folder: pieces.to_str().unwrap(), stem: "abc", count: 2 };
        let command = pieces.script(folder.to_str().unwrap(), "it's").command();
        let output = Command::new("/bin/sh").args(["-c", &command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn chunk_2_chunks_are_joined_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        std::fs::write(&whole, "hello world").unwrap();
        let image = Image::read(&whole).unwrap();
        let (pieces, target) = (folder.path().join("pieces"), folder.path().join("a b"));
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED cannot make the folder:");
        std::fs::create_dir(&pieces).unwrap();
        std::fs::write(pieces.join("abc.00000"), "hello ").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED cannot write:");
        std::fs::write(pieces.join("abc.00001"), "wor").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED incomplete:");
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "no temporary file remains");
        std::fs::write(pieces.join("abc.00001"), "WORLD").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED damaged:");
        assert_eq!(std::fs::read_dir(&pieces).unwrap().count(), 0, "damaged chunks are removed");
        std::fs::write(pieces.join("abc.00000"), "hello ").unwrap();
        std::fs::write(pieces.join("abc.00001"), "world").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED ok");
        assert_eq!(std::fs::read_to_string(target.join("it's")).unwrap(), "hello world");
        // Another host with the same home directory was faster.
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED ok");
        std::fs::write(target.join("it's"), "HELLO world").unwrap();
        assert_eq!(
            joined(&image, &pieces, &target),
            "RANKDECK-JOINED cannot write:",
            "another file does not count"
        );
        std::fs::write(target.join("it's"), "hello world").unwrap();
        assert_eq!(std::fs::read_dir(&pieces).unwrap().count(), 0);
    }

    #[test]
    fn unwritable_hint_depends_on_the_error_of_the_system() {
        let hints = |reasons: &[&str]| -> std::collections::BTreeSet<String> {
            reasons.iter().map(|reason| unwritable_hint("ssh h", reason)).collect()
        };
        let groups = [
            hints(&["mkdir: /x: Permission denied", "Operation not permitted"]),
            hints(&["Read-only file system"]),
            hints(&[
                "mkdir: cannot create directory '/proc/x': No such file or directory",
                "cannot create /x/y: Directory nonexistent",
                "/x: Not a directory",
                "/x: File exists",
            ]),
            hints(&["No space left on device", "Disk quota exceeded", ""]),
        ];
        assert!(groups.iter().all(|group| group.len() == 1), "{groups:?}");
        let all: std::collections::BTreeSet<&String> = groups.iter().flatten().collect();
        assert_eq!(all.len(), groups.len(), "{groups:?}");
        assert!(all.iter().all(|hint| hint.contains("RANKDECK_CACHE")), "{all:?}");
    }

    #[test]
    fn chunk_hash_covers_only_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "hello world").unwrap();
        let image = Image::read(&path).unwrap();
        std::fs::write(&path, "world").unwrap();
        let world = Image::read(&path).unwrap();
        std::fs::write(&path, "hello world").unwrap();
        assert_eq!(image.piece(6, 5).unwrap(), world.sha256);
    }

    fn feed(folder: &Path, sent: &[u8], parts: &[(&str, u64, &str)]) -> String {
        let folder = folder.to_str().unwrap();
        let parts: Vec<UploadPart> = parts
            .iter()
            .map(|(name, size, sha256)| UploadPart {
                offset: 0,
                size: *size,
                sha256: (*sha256).into(),
                name: (*name).into(),
            })
            .collect();
        let what = UploadJob {
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
        // A script that fails early does not read all of it.
        let _ = child.stdin.take().unwrap().write_all(sent);
        let stdout = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        stdout.strip_prefix("\nRANKDECK-HOST\n").unwrap().trim().to_string()
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
    fn only_complete_and_correct_file_appears() {
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
    fn complete_parts_survive_an_interrupted_upload() {
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
