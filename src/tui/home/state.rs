//! What the user has selected, typed and opened on home.

use super::model::{FleetHost, Home, RunRow};
use crate::compare::Looks;
use crate::theme::Role;
use rankdeck_proto::process::{ProcessAction, ProcessName};
use rankdeck_types::ids::Timestamp;
use ratatui::layout::Rect;
use std::collections::BTreeSet;

/// How long a short message stays, milliseconds.
const TOAST_MS: u64 = 6000;

/// A page of home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Page {
    /// Runs of all hosts.
    #[default]
    Runs,
    /// Experiments to launch.
    Experiments,
    /// The hosts and their GPUs.
    Fleet,
    /// Marked runs beside each other.
    Compare,
}

impl Page {
    /// In the order of their numbers.
    pub const ALL: [Page; 4] = [Page::Runs, Page::Experiments, Page::Fleet, Page::Compare];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Page::Runs => "runs",
            Page::Experiments => "experiments",
            Page::Fleet => "fleet",
            Page::Compare => "compare",
        }
    }
}

/// What is to be done outside: commands are what follows `rankdeck` on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeAction {
    /// Leave.
    Quit,
    /// Give the terminal back until the shell continues us.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// Ask all hosts again, now.
    Refresh,
    /// Make the plan of an experiment with typed changes.
    Draft {
        /// The file.
        path: String,
        /// `KEY=VALUE`s.
        typed: String,
    },
    /// Give the terminal to a command, and come back when it has ended.
    OnTerminal {
        /// The command.
        args: Vec<String>,
        /// Its last words are read before home comes back.
        pause: bool,
    },
    /// Give the terminal to the user's editor with this file, and come back when it has ended.
    Edit(String),
    /// Read the records of these runs.
    Compare(Vec<String>),
    /// Ask for something of one process of a host.
    Reach {
        /// Name of the host.
        host: String,
        process: ProcessName,
        action: ProcessAction,
    },
    /// Run a command beside the screen, and show what it said.
    InBackground {
        /// What it is for.
        title: String,
        /// The command.
        args: Vec<String>,
    },
}

/// A launch that is being prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The experiment file.
    pub path: String,
    /// Changes of keys as they are typed: `learn.gamma=0.98 run.total_steps=1e6`.
    pub typed: String,
}

/// A text that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub title: String,
    /// What can be typed.
    pub hint: String,
    /// So far.
    pub typed: String,
    /// The command before it.
    pub args: Vec<String>,
}

/// What lies over the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overlay {
    /// The keys.
    Help(usize),
    /// A question before something that cannot be taken back.
    Confirm {
        /// What would happen.
        lines: Vec<String>,
        /// The word for yes.
        yes: String,
        /// What yes does.
        then: HomeAction,
    },
    /// A launch that is being prepared.
    Launch(Launch),
    /// The processes on a host's GPUs.
    Processes {
        /// Name of the host.
        host: String,
        /// `None`: the first.
        selected: Option<ProcessName>,
    },
    /// A text.
    Input(Input),
    /// What the latest command said; lines scrolled.
    Said(usize),
}

/// Selections are names, never rows.
#[derive(Debug, Clone, Default)]
pub struct HomeView {
    pub page: Page,
    /// The selected run.
    pub run: Option<String>,
    /// The selected experiment's path.
    pub experiment: Option<String>,
    /// The selected host.
    pub host: Option<String>,
    /// Runs that show, by their text; `!` in front inverts.
    pub filter: String,
    /// The filter is being typed.
    pub filtering: bool,
    /// Marked runs.
    pub marks: BTreeSet<String>,
    /// Hosts to launch on; empty: all.
    pub chosen: BTreeSet<String>,
    /// What lies over the page.
    pub overlay: Option<Overlay>,
    /// A short message, and when it goes.
    pub toast: Option<(String, Role, Timestamp)>,
    /// First row shown, per page.
    pub top: [usize; 4],
    /// How runs are compared.
    pub looks: Looks,
    /// The series that is drawn.
    pub series: Option<String>,
    /// Rows of the list that fit.
    pub rows: usize,
    /// The row of the screen on which the list begins.
    pub list_y: u16,
    /// The whole screen.
    pub area: Rect,
    /// No key stops, removes or launches anything.
    pub read_only: bool,
}

impl HomeView {
    /// Says something for a while.
    pub fn say(&mut self, text: impl Into<String>, role: Role, now: Timestamp) {
        self.toast = Some((text.into(), role, now.plus(TOAST_MS)));
    }

    /// Lets go of a message whose time is over; true when it did.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let over = self.toast.as_ref().is_some_and(|(_, _, until)| *until <= now);
        if over {
            self.toast = None;
        }
        over
    }

    /// Runs that show.
    pub fn runs<'a>(&self, home: &'a Home) -> Vec<&'a RunRow> {
        let (inverted, wanted) = match self.filter.strip_prefix('!') {
            Some(rest) => (true, rest.to_lowercase()),
            None => (false, self.filter.to_lowercase()),
        };
        let shows = |row: &&RunRow| wanted.is_empty() || text_of(row).contains(&wanted) != inverted;
        home.runs.iter().filter(shows).collect()
    }

    /// The selected run, if it shows.
    pub fn selected_run<'a>(&self, home: &'a Home) -> Option<&'a RunRow> {
        let wanted = self.run.as_deref()?;
        self.runs(home).into_iter().find(|row| row.run == wanted)
    }

    /// The selected host.
    pub fn selected_host<'a>(&self, home: &'a Home) -> Option<&'a FleetHost> {
        home.hosts.iter().find(|host| Some(&host.name) == self.host.as_ref())
    }

    /// Names in the list of the page, and the selected one's place.
    pub fn list(&self, home: &Home) -> (Vec<String>, Option<usize>) {
        let (names, selected): (Vec<String>, _) = match self.page {
            Page::Runs => (self.runs(home).iter().map(|row| row.run.clone()).collect(), &self.run),
            Page::Experiments => {
                (home.experiments.iter().map(|one| one.path.clone()).collect(), &self.experiment)
            }
            Page::Fleet => (home.hosts.iter().map(|host| host.name.clone()).collect(), &self.host),
            Page::Compare => (home.compared.series.clone(), &self.series),
        };
        let at = selected.as_ref().and_then(|wanted| names.iter().position(|name| name == wanted));
        (names, at)
    }

    /// Selects a name of the list.
    pub fn select(&mut self, name: Option<String>) {
        match self.page {
            Page::Runs => self.run = name,
            Page::Experiments => self.experiment = name,
            Page::Fleet => self.host = name,
            Page::Compare => self.series = name,
        }
    }

    /// Something of the list is selected whenever there is something; marks of what is gone are gone.
    pub fn settle(&mut self, home: &Home) {
        let page = self.page;
        for each in Page::ALL {
            self.page = each;
            let (names, at) = self.list(home);
            if at.is_none() {
                self.select(names.into_iter().next());
            }
        }
        self.page = page;
        self.marks.retain(|name| home.run(name).is_some());
        self.chosen.retain(|name| home.hosts.iter().any(|host| host.name == *name));
    }
}

/// What a filter looks at.
fn text_of(row: &RunRow) -> String {
    let summary = &row.summary;
    let state = summary.outcome_text().unwrap_or_default();
    let parts = [&row.run, &summary.note, &summary.program, &state, &format!("{:?}", row.life)];
    let hosts = summary.hosts.iter();
    parts.into_iter().chain(hosts).map(|part| part.to_lowercase()).collect::<Vec<_>>().join(" ")
}

/// Hosts that are left out because others were chosen.
pub fn left_out<'a>(home: &'a Home, view: &'a HomeView) -> impl Iterator<Item = &'a str> {
    let all = view.chosen.is_empty();
    home.hosts.iter().map(|host| host.name.as_str()).filter(move |name| !all && !view.chosen.contains(*name))
}
