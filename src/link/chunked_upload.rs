//! Files to a host, in pieces, so that a broken link costs one piece and not the file.
//!
//! Owner: the link's thread; nothing else uses its session while pieces travel (SSH-3), so that an upload
//! needs no login of its own. A file of more than one piece is gathered in `CACHE/pieces`, where names are
//! made of the file's hash and the piece's number. At the end the pieces are joined, measured and hashed
//! there. Invariants:
//! - A piece that is there in its whole length is never sent again, whichever console sent it.
//! - CHUNK-2: a file appears under its name only whole and with the right hash (where the host can hash).

use super::image::Image;
use crate::ssh::script::Script;
use crate::ssh::session::SshSession;
use crate::ssh::upload;
use crate::ssh::upload::{Batch, Part};
use crate::ssh::{Operator, SshError, SshErrorKind, exec};
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

/// Files on their way over one session.
pub struct Uploader<'a> {
    session: &'a dyn SshSession,
    /// Bytes sent.
    pub sent: u64,
}

impl<'a> Uploader<'a> {
    /// Nothing is sent yet.
    pub fn new(session: &'a dyn SshSession) -> Uploader<'a> {
        Uploader { session, sent: 0 }
    }

    /// Sends one file to `CACHE/FOLDER/NAME`.
    pub fn file(
        &mut self,
        image: &Image,
        cache: &str,
        folder: &str,
        name: &str,
        operator: &mut dyn Operator,
    ) -> Result<(), SshError> {
        let session = self.session;
        operator.progress(name, 0, image.size);
        let folder = format!("{cache}/{folder}");
        if image.size <= PIECE {
            let whole = Part { offset: 0, size: image.size, sha256: image.sha256.clone(), name: name.into() };
            return self.parts(image, &[whole], &folder, (0, name), operator);
        }
        let stem: String = image.sha256.chars().take(32).collect();
        let gathered = format!("{cache}/pieces");
        let there = look(session, &gathered, &stem, operator)?;
        let count = image.size.div_ceil(PIECE);
        let size = |index: u64| PIECE.min(image.size - index * PIECE);
        let piece = |index: u64| piece_name(&stem, index);
        let missing: Vec<u64> =
            (0..count).filter(|&index| there.get(&piece(index)) != Some(&size(index))).collect();
        let mut done = image.size - missing.iter().map(|&index| size(index)).sum::<u64>();
        for batch in missing.chunks(BATCH) {
            let parts: Result<Vec<Part>, SshError> = batch
                .iter()
                .map(|&index| {
                    let sha256 = image
                        .piece(index * PIECE, size(index))
                        .map_err(|error| unreadable(session, image, &error))?;
                    Ok(Part { offset: index * PIECE, size: size(index), sha256, name: piece(index) })
                })
                .collect();
            self.parts(image, &parts?, &gathered, (done, name), operator)?;
            done += batch.iter().map(|&index| size(index)).sum::<u64>();
            operator.progress(name, done, image.size);
        }
        Pieces { image, folder: &gathered, stem: &stem, count }.join(session, &folder, name, operator)
    }

    /// Sends parts of `image`; `before`: bytes of it that are there already.
    fn parts(
        &mut self,
        image: &Image,
        parts: &[Part],
        folder: &str,
        (before, shown): (u64, &str),
        operator: &mut dyn Operator,
    ) -> Result<(), SshError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Unique among the consoles that share this home folder: process, upload, and chance for the machine.
        let random = (super::random::fraction() * 1e15) as u64;
        let token = format!("{}-{}-{random:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let what =
            Batch { local: &image.path, parts, folder, token: &token, shown, before, total: image.size };
        upload::upload(self.session, operator, &what)?;
        self.sent += parts.iter().map(|part| part.size).sum::<u64>();
        Ok(())
    }
}

fn unreadable(session: &dyn SshSession, image: &Image, error: &std::io::Error) -> SshError {
    SshError::lasting(
        format!("{}: cannot read {}: {error}", session.label(), image.path.display()),
        "it was there a moment ago: was it moved or rebuilt?",
    )
}

/// Sizes of the pieces of one file that the host has; pieces that nobody has asked for in a day are removed.
fn look(
    session: &dyn SshSession,
    folder: &str,
    stem: &str,
    operator: &mut dyn Operator,
) -> Result<BTreeMap<String, u64>, SshError> {
    let script = Script::new().set("folder", folder).set("stem", stem).run(
        "cd \"$folder\" 2>/dev/null && { find . -type f -mmin +1440 -exec rm -f {} + 2>/dev/null; \
         for f in \"$stem\".*; do test -f \"$f\" && echo \"RANKDECK-PIECE $f $(($(wc -c < \"$f\")))\"; done; }; \
         echo RANKDECK-PIECES",
    );
    let output = exec::run(session, operator, &script.command(), &[], JOINING, &|_| false)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let piece = |line: &str| {
        let (name, size) = line.strip_prefix("RANKDECK-PIECE ")?.split_once(' ')?;
        Some((name.to_owned(), size.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(piece).collect())
}

/// A file that is to be put together from its pieces.
struct Pieces<'a> {
    image: &'a Image,
    /// Folder of the pieces on the host.
    folder: &'a str,
    /// What their names begin with.
    stem: &'a str,
    count: u64,
}

impl Pieces<'_> {
    /// Makes `FOLDER/NAME` of the pieces, and removes them.
    fn join(
        &self,
        session: &dyn SshSession,
        folder: &str,
        name: &str,
        operator: &mut dyn Operator,
    ) -> Result<(), SshError> {
        let command = self.script(folder, name).command();
        let output = exec::run(session, operator, &command, &[], JOINING, &|_| false)?;
        match output.after("RANKDECK-JOINED") {
            Some(verdict) if verdict == "ok" => Ok(()),
            verdict => {
                let kind = match &verdict {
                    Some(verdict) if verdict.starts_with("cannot") => SshErrorKind::Lasting,
                    _ => SshErrorKind::Passing,
                };
                let error = format!(
                    "{}: cannot put {name} together in {folder}: {} {}",
                    session.label(),
                    verdict.unwrap_or_default(),
                    output.described()
                );
                Err(SshError::new(kind, error, upload::full_disk(session)))
            }
        }
    }

    /// A damaged piece cannot be told from the others: all go, and the next attempt sends them again. Hosts
    /// that share a home folder gather the same pieces: the second of them finds the pieces gone, and the
    /// file whole in its place.
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
            .run(upload::HASH)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn joined(image: &Image, pieces: &Path, folder: &Path) -> String {
        let pieces = Pieces { image, folder: pieces.to_str().unwrap(), stem: "abc", count: 2 };
        let command = pieces.script(folder.to_str().unwrap(), "it's").command();
        let output = Command::new("/bin/sh").args(["-c", &command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn chunk_2_pieces_become_the_whole_file_or_none() {
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
        std::fs::write(target.join("it's"), "HELLO world").unwrap();
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
