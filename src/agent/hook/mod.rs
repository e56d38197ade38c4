//! The hook for Python ranks: a `sitecustomize` on `PYTHONPATH` that shows PyTorch's process groups on the
//! rank's status page.
//!
//! Owner: the thread that prepares a launch writes it into the directory of the generation; the rules of the
//! hook itself stand at its head. `[watch] python_hook = false` leaves it out.

use rankdeck_proto::folders::create_private;
use rankdeck_proto::trust;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The modules, as they are put on the host: only the first is loaded by every interpreter, the next three
/// with `torch.distributed`, two more with what they watch, one for an inspection of an event loop, one when an
/// exception ends the program, and the last one by programs that import it.
const SOURCES: [(&str, &str); 9] = [
    ("sitecustomize.py", include_str!("sitecustomize.py")),
    ("rankdeck_hook.py", include_str!("rankdeck_hook.py")),
    ("rankdeck_page.py", include_str!("rankdeck_page.py")),
    ("rankdeck_weights.py", include_str!("rankdeck_weights.py")),
    ("rankdeck_input.py", include_str!("rankdeck_input.py")),
    ("rankdeck_normal.py", include_str!("rankdeck_normal.py")),
    ("rankdeck_tasks.py", include_str!("rankdeck_tasks.py")),
    ("rankdeck_ending.py", include_str!("rankdeck_ending.py")),
    ("rankdeck.py", crate::client::SOURCE),
];

/// Variables that make PyTorch keep and write its Flight Recorder; the files lie in `folder`. The hook adds the
/// names of PyTorch before 2.8, of which newer versions warn. Timing is left alone: it may hang PyTorch's own
/// watchdog.
pub(crate) fn recorder_environment(folder: &Path) -> [(&'static str, PathBuf); 4] {
    [
        ("TORCH_FR_BUFFER_SIZE", "2000".into()),
        ("TORCH_FR_DUMP_TEMP_FILE", folder.join("fr_rank_")),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1".into()),
        ("PYTHONFAULTHANDLER", "1".into()),
    ]
}

/// Writes the hook and returns the directory that belongs on `PYTHONPATH`.
pub(crate) fn install(generation_dir: &Path) -> io::Result<PathBuf> {
    let folder = generation_dir.join("python");
    create_private(&folder).map_err(|failure| io::Error::other(failure.error))?;
    for (name, source) in SOURCES {
        trust::create(&folder.join(name))?.write_all(source.as_bytes())?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests;
