//! A new run like one that is over: its experiment and the keys that were changed, kept beside the record of
//! the run for consoles that come later.

use crate::shell::changer;
use rankdeck_config::ExperimentSource;
use rankdeck_tui::restart_draft::EditedFile;
use rankdeck_types::experiment::Experiment;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a run was launched from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The experiment file.
    pub experiment: PathBuf,
    /// `KEY=VALUE`s beside it.
    pub set: Vec<String>,
    /// All keys that they came to then, as TOML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// What has changed in the file of the run on the screen since its launch.
pub fn edited() -> Option<EditedFile> {
    offered().0.clone()?.edited()
}

/// What the run on the screen was launched from, and whether its user wants another one.
static OFFERED: Mutex<(Option<Again>, bool)> = Mutex::new((None, false));

fn offered() -> MutexGuard<'static, (Option<Again>, bool)> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next screen may ask for a run like this.
pub fn offer(again: Option<Again>) {
    *offered() = (again, false);
}

/// A screen may ask for it.
pub fn is_offered() -> bool {
    offered().0.is_some()
}

/// A screen was left; `wanted`: for a run like its own.
pub fn left(wanted: bool) {
    offered().1 = wanted;
}

/// A run like the one that was on the screen is wanted.
pub fn is_wanted() -> bool {
    let offered = offered();
    offered.1 && offered.0.is_some()
}

/// The run that is wanted, once.
pub fn take() -> Option<Again> {
    let mut offered = offered();
    let wanted = std::mem::take(&mut offered.1);
    offered.0.take().filter(|_| wanted)
}

impl Again {
    /// Of a launch; `None` where there is no file to launch again.
    pub fn new(experiment: Option<&Path>, set: &[String]) -> Option<Again> {
        let experiment = std::path::absolute(experiment?).ok()?;
        let again = Again { experiment, set: set.to_vec(), read: None };
        let read = again.read().and_then(|read| toml::to_string(&read).ok());
        Some(Again { read, ..again })
    }

    /// The file as it is now.
    fn read(&self) -> Option<Experiment> {
        let source = ExperimentSource::File(self.experiment.clone());
        let mut read = rankdeck_config::load_experiment(&source, &self.set).ok()?;
        // Values of variables are kept nowhere.
        read.launch.env.clear();
        Some(read)
    }

    /// What has changed in the file since the launch: a restart keeps to the run's own keys, and its user may
    /// think otherwise. `None` when nothing has.
    pub fn edited(&self) -> Option<EditedFile> {
        let was: Experiment = toml::from_str(self.read.as_deref()?).ok()?;
        let differences = changer::differences(&was, &self.read()?);
        (!differences.is_empty()).then(|| EditedFile { file: self.path(), differences })
    }

    /// As the user would name the file here.
    pub fn path(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        self.experiment.strip_prefix(&here).unwrap_or(&self.experiment).display().to_string()
    }
}
