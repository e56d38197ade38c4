//! The overlays of the home screen. A new one is a file here and a line in [`HomeOverlay`].

pub(super) mod confirm;
pub(super) mod help;
pub(super) mod launch;
pub(super) mod output;
pub(super) mod processes;

use super::HomeUi;

rankdeck_kit::overlays! { HomeUi;
    /// What lies over a page of home.
    pub enum HomeOverlay {
        Help(help::HomeHelp),
        Confirm(confirm::Confirmation),
        Launch(launch::LaunchForm),
        Processes(processes::GpuProcesses),
        Prune(confirm::PruneForm),
        Output(output::OutputView),
    }
}
