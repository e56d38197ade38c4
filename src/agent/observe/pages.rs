//! The status pages of this host's ranks, held open while they are in use.
//!
//! Owner: the agent's process; sampling and inspections read the same open page. A rank has its page mapped,
//! and a store into a truncated file kills the rank (SIGBUS). So a page loses its name as soon
//! as it is open here: a file without a name cannot be truncated, overwritten or removed. It goes with the last
//! of its writer and this agent.

use rankdeck_proto::status_page::StatusPageReader;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

static OPEN: LazyLock<Mutex<HashMap<PathBuf, Arc<StatusPageReader>>>> = LazyLock::new(Mutex::default);

fn pages() -> MutexGuard<'static, HashMap<PathBuf, Arc<StatusPageReader>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The page that was made at `path` last.
///
/// Errors: it is missing, or not a page (yet).
pub(crate) fn open(path: &Path) -> io::Result<Arc<StatusPageReader>> {
    // No caller waits for the lock while a file system is slow.
    match StatusPageReader::open(path) {
        Ok(page) => {
            let page = Arc::new(without_name(path, page));
            pages().insert(path.to_owned(), page.clone());
            Ok(page)
        }
        // A later file that is not a page replaces none.
        Err(error) => pages().get(path).cloned().ok_or(error),
    }
}

/// Takes away the name of the page that was opened at `path`, or of one that was made there since, which is
/// then the one. In a directory where no name can be taken away the page keeps it.
fn without_name(path: &Path, opened: StatusPageReader) -> StatusPageReader {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let number = TAKEN.fetch_add(1, Ordering::Relaxed);
    let aside = path.with_extension(format!("taken{}-{number}", std::process::id()));
    if std::fs::rename(path, &aside).is_err() {
        return opened;
    }
    let latest = StatusPageReader::open(&aside);
    let _ = std::fs::remove_file(&aside);
    latest.unwrap_or(opened)
}

/// Lets go of all pages but these.
pub(crate) fn keep(keeps: impl Fn(&Path) -> bool) {
    pages().retain(|path, _| keeps(path));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::status_page::StatusPageWriter;
    use std::fs::File;

    #[test]
    fn page_2_truncated_page_file_reaches_no_rank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank3.page");
        assert!(open(&path).is_err());
        let mut writer = StatusPageWriter::create(&path, 3, 0).unwrap();
        let mut step = 0;
        for length in [0, 1, 4096, 1 << 20] {
            open(&path).unwrap();
            // As `truncate` and `>` do: where there is no file they make one.
            File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .unwrap()
                .set_len(length)
                .unwrap();
            step += 1;
            writer.update(|body| body.env_step = step);
            assert_eq!(open(&path).unwrap().view().unwrap().body.env_step, step, "cut to {length}");
        }
    }

    #[test]
    fn later_page_of_the_same_name_is_the_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.page");
        let pid = |view: io::Result<Arc<StatusPageReader>>| view.unwrap().view().unwrap().generation;
        let _first = StatusPageWriter::create(&path, 0, 1).unwrap();
        assert_eq!(pid(open(&path)), 1);
        assert_eq!(pid(open(&path)), 1, "without a name");
        let _second = StatusPageWriter::create(&path, 0, 2).unwrap();
        assert_eq!(pid(open(&path)), 2);
        // One that is made while the name of the one before is taken away.
        let _third = StatusPageWriter::create(&path, 0, 3).unwrap();
        let third = StatusPageReader::open(&path).unwrap();
        let _fourth = StatusPageWriter::create(&path, 0, 4).unwrap();
        assert_eq!(without_name(&path, third).view().unwrap().generation, 4);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no name is left");
        keep(|kept| !kept.starts_with(folder.path()));
        assert!(open(&path).is_err());
    }
}
