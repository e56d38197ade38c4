//! `learnt.json`: what the watch has learnt about a run's pace. Where it fails, the next console learns anew.

use rankdeck_core::PaceHistory;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const FILE: &str = "learnt.json";
/// Far more than 24 histograms need.
const MOST_BYTES: u64 = 1 << 20;

/// Keeps it in `folder`, whole or not at all.
pub(super) fn keep(folder: &Path, learnt: &PaceHistory) -> io::Result<()> {
    let temporary = folder.join(format!("{FILE}.tmp"));
    let text = serde_json::to_vec(learnt)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&text)?;
    std::fs::rename(&temporary, folder.join(FILE))
}

/// What the latest earlier console of the same run, whose folder lies beside `own`, has learnt.
pub fn recall(own: &Path) -> Option<PaceHistory> {
    let folders = std::fs::read_dir(own.parent()?).ok()?.flatten().map(|entry| entry.path());
    let files = folders.filter(|folder| folder != own).map(|folder| folder.join(FILE));
    let dated = files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)));
    let (_, latest) = dated.max()?;
    let mut text = String::new();
    File::open(latest).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
