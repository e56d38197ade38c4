//! Home: what bare `rankdeck` shows on a terminal.
//!
//! Owner: the process. The hosts are watched by [`hosts`], one session each; what is known becomes a
//! [`Home`](rankdeck_tui::home::Home), which is drawn; what the user wants comes back as actions. A command
//! that needs the terminal gets it, in this process, so that what was typed there is typed once; hosts are
//! not watched meanwhile. Other commands run beside the screen, as children that are waited for.

mod editor;
mod experiments;
mod hosts;
mod jobs;
mod reach;
mod recorded;
mod runs;

use super::again;
use super::args::{Cli, HomeArgs, OutputArgs};
use super::choose::{self, TerminalInfo};
use super::{Failure, code};
use crate::shell::clock::Clock;
use crate::shell::home_screen::HomeScreen;
use crate::shell::signals::{ConsoleSignal, Signals};
use crate::shell::stderr;
use clap::FromArgMatches;
use hosts::{News, Watch};
use jobs::Jobs;
use rankdeck_config::HostsSource;
use rankdeck_tui::home::{Home, HomeAction, HomeEvent, HomeView, Launch, Overlay, Page};
use rankdeck_types::host::Host;
use reach::AnswerView;
use runs::Lists;
use std::future::Future;
use std::io;
use std::pin::Pin;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Carries out a command of this program.
pub type Dispatch = fn(Cli) -> Pin<Box<dyn Future<Output = Result<u8, Failure>>>>;

/// What home works with.
struct HomeSession {
    /// Options before each command that is started from here.
    options: Vec<String>,
    /// Options of commands that show a run.
    looks: Vec<String>,
    source: HostsSource,
    hosts: Vec<Host>,
    home: Home,
    view: HomeView,
    clock: Clock,
    lists: Lists,
    watch: Watch,
    jobs: Jobs,
    /// The plan that was asked for last.
    drafting: Option<(String, String)>,
    dispatch: Dispatch,
}

/// Signals that end this console whatever it shows.
struct Leave {
    terminate: Signal,
    hang_up: Signal,
}

impl Leave {
    fn new() -> io::Result<Leave> {
        Ok(Leave { terminate: signal(SignalKind::terminate())?, hang_up: signal(SignalKind::hangup())? })
    }

    /// One of them has come.
    fn has_come(&mut self) -> bool {
        use futures_util::FutureExt;
        self.terminate.recv().now_or_never().is_some() || self.hang_up.recv().now_or_never().is_some()
    }
}

/// Runs home.
///
/// # Errors
/// When this is no terminal, or the terminal fails.
pub async fn home(
    source: &HostsSource,
    args: HomeArgs,
    options: Vec<String>,
    dispatch: Dispatch,
) -> Result<u8, Failure> {
    let place = TerminalInfo::here();
    if !place.terminal {
        return Err(Failure::usage("home needs a terminal")
            .hint("`rankdeck ps` lists runs, `rankdeck --help` commands"));
    }
    let output = OutputArgs {
        theme: args.theme.clone(),
        glyphs: args.glyphs.clone(),
        read_only: args.read_only,
        ..OutputArgs::default()
    };
    choose::choose(&output, &place)?;
    choose::stay_at_home();
    let (hosts, trouble) = match rankdeck_config::load_hosts(source) {
        Ok(hosts) => (hosts, None),
        Err(error) => (Vec::new(), Some(Failure::from(error).in_short())),
    };
    let mut home = Home::new(hosts.iter().map(|host| (host.name.clone(), host.address.clone())));
    home.trouble = trouble;
    let view = HomeView { read_only: choose::ui().read_only, ..HomeView::default() };
    let mut looks = Vec::new();
    for (name, value) in [("--theme", args.theme), ("--glyphs", args.glyphs)] {
        looks.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    if args.read_only {
        looks.push("--read-only".into());
    }
    let session = HomeSession {
        lists: Lists::new(hosts.clone()),
        options,
        looks,
        source: source.clone(),
        hosts,
        home,
        view,
        clock: Clock::new(),
        watch: Watch::default(),
        jobs: Jobs::default(),
        drafting: None,
        dispatch,
    };
    session.live().await.map_err(Failure::terminal)?
}

/// What ends a stay on the screen.
enum NextStep {
    Leave,
    Terminal { args: Vec<String>, pause: bool },
    Edit(String),
}

impl HomeSession {
    async fn live(mut self) -> io::Result<Result<u8, Failure>> {
        let mut leave = Leave::new()?;
        loop {
            match self.stay().await? {
                NextStep::Leave => break,
                NextStep::Terminal { args, pause } => {
                    self.watch.end();
                    self.on_terminal(&args, pause).await;
                    if leave.has_come() {
                        break;
                    }
                }
                NextStep::Edit(path) => {
                    self.watch.end();
                    let edited = editor::edit(&path).await;
                    edited.unwrap_or_else(|failure| pause(&failure.lines()));
                    if leave.has_come() {
                        break;
                    }
                }
            }
        }
        self.watch.end();
        self.jobs.finish().await;
        Ok(Ok(code::SUCCESS))
    }

    /// Shows home until the user leaves it.
    async fn stay(&mut self) -> io::Result<NextStep> {
        let mut screen = HomeScreen::open(&choose::ui())?;
        let mut signals = Signals::new(true)?;
        self.watch.begin(&self.hosts);
        self.tell(HomeEvent::Experiments(experiments::find()));
        self.retell_runs();
        self.prepare_again();
        loop {
            let now = self.clock.now();
            screen.draw(&self.home, &mut self.view, now)?;
            let wake = screen.poll_timeout();
            let actions = tokio::select! {
                signal = signals.next() => match signal {
                    ConsoleSignal::Stop | ConsoleSignal::HangUp => vec![HomeAction::Quit],
                    ConsoleSignal::Suspend => vec![HomeAction::Suspend],
                    ConsoleSignal::Continue => vec![HomeAction::Redraw],
                },
                input = screen.next_input() => match input {
                    Some(input) => screen.hear(input, &self.home, &mut self.view, now),
                    None => vec![HomeAction::Quit],
                },
                news = self.watch.news() => {
                    self.hear(news);
                    Vec::new()
                }
                ended = self.jobs.next() => {
                    self.ended(ended);
                    Vec::new()
                }
                () = self.clock.sleep_until(wake) => Vec::new(),
            };
            for action in actions {
                match action {
                    HomeAction::Quit => {
                        screen.close();
                        return Ok(NextStep::Leave);
                    }
                    HomeAction::OnTerminal { args, pause } => {
                        screen.close();
                        return Ok(NextStep::Terminal { args, pause });
                    }
                    HomeAction::Edit(path) => {
                        screen.close();
                        return Ok(NextStep::Edit(path));
                    }
                    HomeAction::Suspend => screen.suspend(&mut signals).await?,
                    HomeAction::Redraw => screen.redraw(),
                    HomeAction::Refresh => {
                        self.watch.begin(&self.hosts);
                        self.tell(HomeEvent::Experiments(experiments::find()));
                    }
                    HomeAction::Draft { path, typed } => self.draft(path, typed),
                    HomeAction::Compare(runs) => self.compare(runs),
                    HomeAction::Reach { host, process, action } => {
                        if let Some(host) = self.hosts.iter().find(|known| known.name == host).cloned() {
                            tokio::spawn(reach::ask(host, process, action, self.watch.sender()));
                        }
                    }
                    HomeAction::InBackground { title, args } => self.in_background(title, args),
                }
            }
        }
    }

    /// The screen of a run was left for another one like it: its launch is prepared, nothing is started.
    fn prepare_again(&mut self) {
        let Some(again) = again::take() else { return };
        let (path, typed) = (again.path(), again.set.join(" "));
        self.view.page = Page::Experiments;
        self.view.overlay = Some(Overlay::Launch(Launch { path: path.clone(), typed: typed.clone() }));
        self.draft(path, typed);
    }

    fn tell(&mut self, event: HomeEvent) {
        self.home.update(event, self.clock.now());
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Look(host, mut look) => {
                let listed = look.runs.take();
                // The model is to know that there was a list.
                look.runs = listed.as_ref().map(|_| Vec::new());
                self.tell(HomeEvent::Looked { host, look });
                if let Some(runs) = listed {
                    self.lists.heard(host, runs);
                    self.retell_runs();
                }
            }
            News::Failed(host, error) => {
                self.tell(HomeEvent::Failed { host, error });
                self.retell_runs();
            }
            News::Reached(host, process, action, outcome) => {
                match reach::told(&host, process, action, outcome) {
                    AnswerView::Page(said) => {
                        self.tell(HomeEvent::Ended { job: 0, said });
                        self.view.overlay.get_or_insert(Overlay::Said(0));
                    }
                    AnswerView::Word(text, role) => self.view.say(text, role, self.clock.now()),
                }
            }
            News::Recorded(past, summary) => {
                self.lists.learnt(&past, *summary);
                self.show_runs();
            }
            News::AllRecorded => {
                self.lists.read_all();
                self.retell_runs();
            }
            News::Compared(runs, missing) => self.tell(HomeEvent::Compared(runs, missing)),
            News::Drafted(draft) => {
                if self.drafting.as_ref() == Some(&(draft.path.clone(), draft.typed.clone())) {
                    self.tell(HomeEvent::Drafted(draft));
                }
            }
        }
    }

    fn show_runs(&mut self) {
        let rows = self.lists.rows(&self.home);
        self.tell(HomeEvent::Runs(rows));
    }

    /// Tells the runs, and has records read, elsewhere, that tell of runs which no host has.
    fn retell_runs(&mut self) {
        self.show_runs();
        let unread = self.lists.unread(&self.home.runs);
        if unread.is_empty() {
            return;
        }
        let news = self.watch.sender();
        tokio::task::spawn_blocking(move || {
            for past in unread {
                let summary = Box::new(recorded::read(&past));
                if news.blocking_send(News::Recorded(past, summary)).is_err() {
                    return;
                }
            }
            let _ = news.blocking_send(News::AllRecorded);
        });
    }

    /// Makes a plan, elsewhere: sources of hosts may have to be asked.
    fn draft(&mut self, path: String, typed: String) {
        self.drafting = Some((path.clone(), typed.clone()));
        let chosen = self.view.chosen.clone();
        let probes = experiments::probes(&self.home);
        let (source, drafts) = (self.source.clone(), self.watch.sender());
        tokio::task::spawn_blocking(move || {
            let draft = experiments::draft(&source, path, typed, &chosen, &probes);
            let _ = drafts.blocking_send(News::Drafted(draft));
        });
    }

    /// Reads records, elsewhere.
    fn compare(&mut self, runs: Vec<String>) {
        let news = self.watch.sender();
        tokio::task::spawn_blocking(move || {
            let (mut read, mut missing) = (Vec::new(), Vec::new());
            for run in runs {
                match super::compare::load(&run) {
                    Ok(run) => read.push(run),
                    Err(failure) => missing.push(format!("{run}: {}", failure.cause.error)),
                }
            }
            let _ = news.blocking_send(News::Compared(read, missing));
        });
    }

    fn in_background(&mut self, title: String, args: Vec<String>) {
        let args = self.options.iter().cloned().chain(args).collect::<Vec<_>>();
        let now = self.clock.now();
        match self.jobs.start(&title, &args) {
            Ok(job) => self.tell(HomeEvent::Began { job, title }),
            Err(error) => self.view.say(format!("{title}: {error}"), rankdeck_tui::Role::Bad, now),
        }
    }

    fn ended(&mut self, (job, said): (u64, rankdeck_tui::home::CommandEnd)) {
        let role = if said.well { rankdeck_tui::Role::Good } else { rankdeck_tui::Role::Bad };
        let last = match said.well {
            true => said.lines.iter().rev().find(|line| !line.starts_with("hint:")),
            false => said.lines.iter().find(|line| line.starts_with("error:")).or(said.lines.last()),
        };
        let text = format!("{}: {}   o shows all", said.title, last.map_or("done", String::as_str));
        self.view.say(text, role, self.clock.now());
        self.tell(HomeEvent::Ended { job, said });
        // What it did shows at once.
        self.watch.begin(&self.hosts);
    }

    /// Runs a command of this program with the terminal, and reads its last words with the user.
    async fn on_terminal(&mut self, args: &[String], pause: bool) {
        let shows = matches!(args.first().map(String::as_str), Some("attach" | "run"));
        let looks = self.looks.iter().filter(|_| shows).cloned();
        let words = ["rankdeck".to_owned()].into_iter().chain(self.options.iter().cloned());
        let words: Vec<String> = words.chain(args.iter().cloned()).chain(looks).collect();
        let parsed = super::help::command().try_get_matches_from(&words);
        let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
        let done = match parsed {
            Ok(cli) => (self.dispatch)(cli).await,
            Err(error) => Err(Failure::usage(error.to_string())),
        };
        match done {
            Err(failure) => self::pause(&failure.lines()),
            Ok(_) if pause => self::pause(&[]),
            Ok(_) => {}
        }
    }
}

/// Says this, and waits until somebody has read it.
fn pause(lines: &[String]) {
    lines.iter().for_each(|line| stderr::line(line));
    stderr::status("enter goes back to home ");
    let mut line = String::new();
    let _ = io::stdin().read_line(&mut line);
}
