//! Files to a host, in pieces, so that a broken link costs one piece and not the file.
//!
//! Owner: the link's thread; pieces travel on a session of their own (SSH-3). A file of more than one piece is gathered in `CACHE/pieces`, whose names are
//! made of the file's hash and the piece's number, and joined, measured and hashed there at the end. Invariants:
//! - FREIGHT-1: a piece that is there in its whole length is never sent again, by whomever it was sent.
//! - FREIGHT-2: a file appears under its name only whole and with the right hash (where the host can hash).

use super::deploy::{Image, described};
use crate::ssh::connect;
use crate::ssh::connect::Connection;
use crate::ssh::upload;
use crate::ssh::upload::{Part, Upload};
use crate::ssh::user_config::Target;
use crate::ssh::{Operator, SshError, exec, quote};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a piece: seconds on a slow link, and no more than a few hundred of them for the largest files.
pub const PIECE: u64 = 8 << 20;
/// Most pieces that one command takes: the list of their names and hashes must stay a command line.
const BATCH: usize = 32;
const _: () = assert!(PIECE.is_multiple_of(upload::BLOCK));
/// Bound of looking for pieces and of joining them.
const JOINING: Duration = Duration::from_secs(120);

/// The session for uploads, opened when the first is needed, and what went over it.
pub struct Sender<'a> {
    target: &'a Target,
    bulk: Option<Connection>,
    /// Bytes sent.
    pub sent: u64,
}

impl<'a> Sender<'a> {
    /// Nothing is opened yet.
    pub fn new(target: &'a Target) -> Sender<'a> {
        Sender { target, bulk: None, sent: 0 }
    }

    /// Brings one file to `CACHE/FOLDER/NAME`; `connection` is for short commands.
    pub fn file(
        &mut self,
        connection: &Connection,
        image: &Image,
        cache: &str,
        folder: &str,
        name: &str,
        operator: &mut dyn Operator,
    ) -> Result<(), SshError> {
        operator.progress(name, 0, image.size);
        let folder = format!("{cache}/{folder}");
        if image.size <= PIECE {
            let whole = Part { offset: 0, size: image.size, sha256: image.sha256.clone(), name: name.into() };
            return self.parts(image, &[whole], &folder, (0, name), operator);
        }
        let stem: String = image.sha256.chars().take(32).collect();
        let gathered = format!("{cache}/pieces");
        let there = look(connection, &gathered, &stem, operator)?;
        let count = image.size.div_ceil(PIECE);
        let size = |index: u64| PIECE.min(image.size - index * PIECE);
        let piece = |index: u64| format!("{stem}.{index:05}");
        let missing: Vec<u64> =
            (0..count).filter(|&index| there.get(&piece(index)) != Some(&size(index))).collect();
        let mut done = image.size - missing.iter().map(|&index| size(index)).sum::<u64>();
        for batch in missing.chunks(BATCH) {
            let parts: Result<Vec<Part>, SshError> = batch
                .iter()
                .map(|&index| {
                    let sha256 = image
                        .piece(index * PIECE, size(index))
                        .map_err(|error| unreadable(connection, image, &error))?;
                    Ok(Part { offset: index * PIECE, size: size(index), sha256, name: piece(index) })
                })
                .collect();
            self.parts(image, &parts?, &gathered, (done, name), operator)?;
            done += batch.iter().map(|&index| size(index)).sum::<u64>();
            operator.progress(name, done, image.size);
        }
        join(connection, image, &gathered, &stem, count, &folder, name, operator)
    }

    /// Sends parts of `image` over the session for uploads; `before`: bytes of it that are there already.
    fn parts(
        &mut self,
        image: &Image,
        parts: &[Part],
        folder: &str,
        (before, shown): (u64, &str),
        operator: &mut dyn Operator,
    ) -> Result<(), SshError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let bulk = match self.bulk.take() {
            Some(bulk) => bulk,
            None => connect::connect(self.target, operator)?,
        };
        // Unique among the consoles that share this home folder: process, upload, and a throw of the dice for the machine.
        let dice = (super::backoff::dice() * 1e15) as u64;
        let token = format!("{}-{}-{dice:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let what =
            Upload { local: &image.path, parts, folder, token: &token, shown, before, total: image.size };
        upload::upload(&bulk, operator, &what)?;
        self.sent += parts.iter().map(|part| part.size).sum::<u64>();
        self.bulk = Some(bulk);
        Ok(())
    }
}

fn unreadable(connection: &Connection, image: &Image, error: &std::io::Error) -> SshError {
    SshError::lasting(
        format!("{}: cannot read {}: {error}", connection.label(), image.path.display()),
        "does it still lie there?",
    )
}

/// Sizes of the pieces of one file that the host has; pieces that nobody has asked for since a day are removed.
fn look(
    connection: &Connection,
    folder: &str,
    stem: &str,
    operator: &mut dyn Operator,
) -> Result<BTreeMap<String, u64>, SshError> {
    let folder = quote::word(folder);
    let script = format!(
        "cd {folder} 2>/dev/null && {{ find . -type f -mmin +1440 -exec rm -f {{}} + 2>/dev/null; \
         for f in {stem}.*; do test -f \"$f\" && echo \"RANKDECK-PIECE $f $(($(wc -c < \"$f\")))\"; done; }}; echo RANKDECK-PIECES"
    );
    let output = exec::run(connection, operator, &quote::script(&script), &[], JOINING, &|_| false)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let piece = |line: &str| {
        let (name, size) = line.strip_prefix("RANKDECK-PIECE ")?.split_once(' ')?;
        Some((name.to_owned(), size.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(piece).collect())
}

/// Makes the file of its pieces, and removes them.
#[allow(clippy::too_many_arguments, reason = "one caller, a few lines above")]
fn join(
    connection: &Connection,
    image: &Image,
    pieces: &str,
    stem: &str,
    count: u64,
    folder: &str,
    name: &str,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let script = joining(image, pieces, stem, count, folder, name);
    let output = exec::run(connection, operator, &quote::script(&script), &[], JOINING, &|_| false)?;
    match output.after("RANKDECK-JOINED") {
        Some(verdict) if verdict == "ok" => Ok(()),
        verdict => Err(SshError::passing(
            format!(
                "{}: cannot put {name} together in {folder}: {} {}",
                connection.label(),
                verdict.unwrap_or_default(),
                described(&output)
            ),
            format!("is the disk or the quota full? try `{} df -h`", connection.target.command()),
        )),
    }
}

fn joining(image: &Image, pieces: &str, stem: &str, count: u64, folder: &str, name: &str) -> String {
    let list: Vec<String> = (0..count).map(|index| format!("{stem}.{index:05}")).collect();
    let list = list.join(" ");
    let (source, target) = (quote::word(pieces), quote::word(&format!("{folder}/{name}")));
    let (folder, part) = (quote::word(folder), quote::word(&format!("{folder}/.{name}")));
    let (size, sha256) = (image.size, &image.sha256);
    // A damaged piece cannot be told from the others: all go, and the next attempt brings them again. Hosts that share a home folder gather the same
    // pieces: who comes second finds them gone, and the file whole in its place.
    format!(
        "umask 077; P={part}.$$.part; fail() {{ rm -f \"$P\"; \
         if test -x {target} && test \"$(($(wc -c < {target})))\" = {size}; then echo \"RANKDECK-JOINED ok\"; exit 0; fi; \
         echo \"RANKDECK-JOINED $1\"; exit 1; }}; \
         mkdir -p {folder} && cd {source} || fail \"cannot make the folder:\"; \
         cat {list} > \"$P\" || fail \"cannot write:\"; \
         test \"$(($(wc -c < \"$P\")))\" = {size} || fail \"incomplete:\"; \
         if command -v sha256sum >/dev/null 2>&1; then s=$(sha256sum < \"$P\"); \
         test \"${{s%% *}}\" = {sha256} || {{ rm -f {list}; fail \"damaged:\"; }}; fi; \
         chmod 0755 \"$P\" && mv -f \"$P\" {target} || fail \"cannot rename:\"; rm -f {list}; echo \"RANKDECK-JOINED ok\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn joined(image: &Image, pieces: &Path, folder: &Path) -> String {
        let script = joining(image, pieces.to_str().unwrap(), "abc", 2, folder.to_str().unwrap(), "it's");
        let output = Command::new("/bin/sh").args(["-c", &quote::script(&script)]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn freight_2_pieces_become_the_whole_file_or_none() {
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
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is left behind");
        std::fs::write(pieces.join("abc.00001"), "WORLD").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED damaged:");
        assert_eq!(std::fs::read_dir(&pieces).unwrap().count(), 0, "damaged pieces go");
        std::fs::write(pieces.join("abc.00000"), "hello ").unwrap();
        std::fs::write(pieces.join("abc.00001"), "world").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED ok");
        assert_eq!(std::fs::read_to_string(target.join("it's")).unwrap(), "hello world");
        // Another host with the same home folder has been faster.
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED ok");
        std::fs::write(target.join("it's"), "hello").unwrap();
        assert_eq!(joined(&image, &pieces, &target), "RANKDECK-JOINED cannot write:", "not by another file");
        std::fs::write(target.join("it's"), "hello world").unwrap();
        assert_eq!(std::fs::read_dir(&pieces).unwrap().count(), 0);
    }

    #[test]
    fn a_piece_is_hashed_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "hello world").unwrap();
        let image = Image::read(&path).unwrap();
        std::fs::write(&path, "world").unwrap();
        let world = Image::read(&path).unwrap();
        std::fs::write(&path, "hello world").unwrap();
        assert_eq!(image.piece(6, 5).unwrap(), world.sha256);
    }
}
