//! The table itself.

use super::reasons::{
    always, at_begin, at_newest, broken, following, merged, no_continue, no_cursor, no_detach, no_event,
    no_histogram, no_kill, no_look, no_moment, no_pattern, no_picture, no_processes, no_rank, no_ranks_there,
    no_record, no_rehost, no_repeat, no_restart, no_series, no_shell, no_sight, no_sizes, no_stop,
    no_trouble, no_verdict, no_waits, no_zoom, nobody_blamed, not_over, one_pane, past_stands, present,
    whole,
};
use super::{Binding, Command, Scope};
use crate::state::{Pane, Tab};
use crate::time::{MINUTE_MS, STEP_MS, TimeMove};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const fn c(key: char) -> KeyEvent {
    k(KeyCode::Char(key))
}
const fn ctrl(key: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)
}
const fn ctrl_k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::CONTROL)
}
const fn k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

const RANKS: Scope = Scope::In(Pane::Ranks);
const CHARTS: Scope = Scope::In(Pane::Charts);
const LOG: Scope = Scope::In(Pane::Log);
const HOSTS: Scope = Scope::In(Pane::Hosts);
const EVENTS: Scope = Scope::In(Pane::Events);
const END: Scope = Scope::In(Pane::End);

macro_rules! bindings {
    ($($scope:expr, $command:expr, [$($key:expr),+], $footer:expr, $short:expr, $long:expr, $disabled:expr;)*) => {
        &[$(Binding {
            command: $command, keys: &[$($key),+], scope: $scope, short: $short, long: $long, footer: $footer, disabled: $disabled,
        }),*]
    };
}

/// The table.
#[rustfmt::skip]
pub static BINDINGS: &[Binding] = bindings![
    Scope::Everywhere, Command::Quit, [c('q')], 1, "quit", "leave: detach, stop or stay while ranks run", always;
    Scope::Everywhere, Command::Stop, [c('x')], 2, "stop", "stop the run: checkpoint, leave together, verify that nothing is left", no_stop;
    Scope::Everywhere, Command::Kill, [c('X')], 0, "kill", "kill every process of the run on every host", no_kill;
    Scope::Everywhere, Command::Detach, [c('D')], 7, "detach", "leave now; training goes on, and `rankdeck attach` comes back to it", no_detach;
    Scope::Everywhere, Command::Restart, [c('r')], 6, "restart", "begin a new generation, from a checkpoint or afresh", no_restart;
    Scope::Everywhere, Command::RestartWith, [c('R')], 0, "restart with", "begin a new generation from any checkpoint, with changed keys", no_restart;
    Scope::Everywhere, Command::PickHosts, [c('H')], 0, "other hosts", "leave hosts out of the next generation, or take more in", no_rehost;
    Scope::Everywhere, Command::Explain, [c('d')], 3, "why", "evidence for what the watch says", no_verdict;
    Scope::Everywhere, Command::Policy, [c('v')], 0, "policy", "see the policy in rank 0's evaluation: what it sees, thinks and does now", no_sight;
    Scope::Everywhere, Command::Pictures, [c('i')], 0, "pictures", "see the pictures that the program logs, by name and step", no_picture;
    Scope::Everywhere, Command::Help, [c('?')], 0, "help", "this page: type to filter, enter runs", always;
    Scope::Everywhere, Command::Palette, [c(':')], 0, "type", "type what to do: rank 13, sort speed, theme light ...; tab completes", always;
    Scope::Everywhere, Command::Go(Tab::Overview), [c('1')], 0, "overview", "totals, ranks, charts, log", always;
    Scope::Everywhere, Command::Go(Tab::Charts), [c('2')], 0, "charts", "every series over env_step", always;
    Scope::Everywhere, Command::Go(Tab::Evals), [c('3')], 0, "evals", "rank 0's evaluations", always;
    Scope::Everywhere, Command::Go(Tab::Logs), [c('4')], 0, "logs", "log lines, merged or of one rank", always;
    Scope::Everywhere, Command::Go(Tab::Hosts), [c('5')], 0, "hosts", "links, agents, CPU, memory, GPUs", always;
    Scope::Everywhere, Command::Go(Tab::Events), [c('6')], 0, "events", "what happened, in order", always;
    Scope::Everywhere, Command::Go(Tab::End), [c('7')], 0, "end", "how the run ended, its last minute, what was lost", always;
    Scope::Everywhere, Command::Time(TimeMove::Step(-STEP_MS)), [c(',')], 0, "second back", "show all pages as they were a second earlier; the run goes on", no_record;
    Scope::Everywhere, Command::Time(TimeMove::Step(STEP_MS)), [c('.')], 0, "second on", "a second later", present;
    Scope::Everywhere, Command::Time(TimeMove::Step(-MINUTE_MS)), [c('(')], 0, "minute back", "show all pages as they were a minute earlier", no_record;
    Scope::Everywhere, Command::Time(TimeMove::Step(MINUTE_MS)), [c(')')], 0, "minute on", "a minute later", present;
    Scope::Everywhere, Command::Time(TimeMove::Event(-1)), [c('<')], 12, "earlier event", "show all pages as they were at the event before", no_record;
    Scope::Everywhere, Command::Time(TimeMove::Event(1)), [c('>')], 0, "later event", "at the next event", present;
    Scope::Everywhere, Command::TypeTime, [c('T')], 0, "time", "type the time that all pages show: 03:12, -5m", no_record;
    Scope::Everywhere, Command::Time(TimeMove::Play), [c('P')], 0, "play", "let the time shown run, or hold it", present;
    Scope::Everywhere, Command::Time(TimeMove::Speed(1)), [c('}')], 0, "faster", "let it run twice as fast", present;
    Scope::Everywhere, Command::Time(TimeMove::Speed(-1)), [c('{')], 0, "slower", "let it run half as fast", present;
    Scope::Everywhere, Command::NextPane, [k(KeyCode::Tab)], 9, "pane", "focus the next pane", one_pane;
    Scope::Everywhere, Command::PreviousPane, [k(KeyCode::BackTab)], 0, "pane back", "focus the previous pane", one_pane;
    Scope::Everywhere, Command::Zoom, [c('z')], 10, "zoom", "give the focused pane the whole page, and back", no_zoom;
    Scope::Everywhere, Command::Taller(1), [ctrl_k(KeyCode::Down)], 0, "taller", "give the focused pane a row more; its border can be dragged, too", one_pane;
    Scope::Everywhere, Command::Taller(-1), [ctrl_k(KeyCode::Up)], 0, "lower", "take a row from the focused pane", one_pane;
    Scope::Everywhere, Command::Wider(1), [ctrl_k(KeyCode::Right)], 0, "broader", "make the focused pane wider", one_pane;
    Scope::Everywhere, Command::Wider(-1), [ctrl_k(KeyCode::Left)], 0, "narrower", "make the focused pane narrower", one_pane;
    Scope::Everywhere, Command::UsualSizes, [c('Z')], 0, "usual sizes", "all panes as large as what they have to say", no_sizes;
    Scope::Everywhere, Command::Freeze, [c('f')], 11, "freeze", "hold the view while the run goes on; alarms still show", past_stands;
    Scope::Everywhere, Command::Back, [k(KeyCode::Esc)], 0, "back", "one level back: filter, zoom, freeze, marks; never quits", always;
    Scope::Everywhere, Command::Copy, [c('y')], 0, "copy", "copy what is selected to the clipboard", always;
    Scope::Everywhere, Command::SaveScreen, [ctrl('s')], 0, "save screen", "write the screen as text into the run directory", always;
    Scope::Everywhere, Command::Redraw, [ctrl('l')], 0, "redraw", "clear the terminal and draw again", always;
    Scope::Everywhere, Command::Mouse, [c('M')], 0, "mouse", "leave the mouse to the terminal, so that it selects text, or take it back", always;
    Scope::Everywhere, Command::Suspend, [ctrl('z')], 0, "suspend", "back to the shell; `fg` returns", always;
    Scope::Everywhere, Command::Move(1), [c('j'), k(KeyCode::Down)], 0, "down", "one row down", always;
    Scope::Everywhere, Command::Move(-1), [c('k'), k(KeyCode::Up)], 0, "up", "one row up", always;
    Scope::Everywhere, Command::Page(1), [ctrl('d'), k(KeyCode::PageDown)], 0, "page down", "half a page down", always;
    Scope::Everywhere, Command::Page(-1), [ctrl('u'), k(KeyCode::PageUp)], 0, "page up", "half a page up", always;
    Scope::Everywhere, Command::First, [c('g'), k(KeyCode::Home)], 0, "first", "first row", always;
    Scope::Everywhere, Command::Last, [c('G'), k(KeyCode::End)], 0, "last", "last row; follows in logs and events", always;
    RANKS, Command::Inspect, [k(KeyCode::Enter)], 4, "inspect", "everything known about the selected rank", no_rank;
    RANKS, Command::Filter, [c('/')], 5, "filter", "filter rows: text, !text, host: rank: state: phase:", always;
    RANKS, Command::Sort, [c('o')], 7, "sort", "sort by the next column", always;
    RANKS, Command::Reverse, [c('O')], 0, "reverse", "sort the other way round", always;
    RANKS, Command::Mark, [c(' ')], 0, "mark", "mark the rank: merged logs and copy use marked ranks", no_rank;
    RANKS, Command::NextTrouble, [c('n')], 0, "next trouble", "select the next failed or stuck rank", no_trouble;
    RANKS, Command::LogThere, [c('L')], 0, "log there", "the selected rank's log when the watch spoke of it", no_rank;
    RANKS, Command::RankLog, [c('l')], 8, "log", "the selected rank's log", no_rank;
    RANKS, Command::Stack, [c('t')], 8, "stack", "the stack of the selected rank now, whatever the watch thinks of it", no_look;
    RANKS, Command::Continue, [c('c')], 0, "continue", "continue the selected rank, which a signal has stopped (SIGCONT)", no_continue;
    RANKS, Command::Environment, [c('e')], 0, "environment", "the environment of the selected rank's process, without its secrets", no_look;
    RANKS, Command::Waits, [c('w')], 0, "waits", "how long each rank waits for the others, in place of letters: who waits least is waited for", no_waits;
    RANKS, Command::Shell, [c('s')], 0, "shell", "a shell on the selected rank's host, in the folder of the run", no_shell;
    CHARTS, Command::ToggleSeries, [c(' ')], 4, "show/hide", "show the selected series beside the others, or hide it", no_series;
    CHARTS, Command::Filter, [c('/')], 11, "filter", "list series whose name has this text; !text those without", no_series;
    CHARTS, Command::Span(1), [c('+'), c('=')], 5, "closer", "halve the span", no_series;
    CHARTS, Command::Span(-1), [c('-')], 5, "wider", "double the span", whole;
    CHARTS, Command::Pan(-1), [k(KeyCode::Left), c('h')], 0, "earlier", "move to earlier steps", whole;
    CHARTS, Command::Pan(1), [k(KeyCode::Right), c('l')], 0, "later", "move to later steps", whole;
    CHARTS, Command::Cursor(-1), [c('[')], 6, "cursor", "move the cursor to earlier values", no_series;
    CHARTS, Command::Cursor(1), [c(']')], 0, "cursor on", "move the cursor to later values", no_series;
    CHARTS, Command::Cursor(-10), [c('{')], 0, "cursor far", "move the cursor far to earlier values", no_series;
    CHARTS, Command::Cursor(10), [c('}')], 0, "cursor far on", "move the cursor far to later values", no_series;
    CHARTS, Command::Pin, [c('m')], 8, "pin", "compare the cursor's values with those here, or no longer", no_cursor;
    CHARTS, Command::Height(1), [c('K')], 0, "row above", "of histograms at the cursor: tell a higher bin", no_histogram;
    CHARTS, Command::Height(-1), [c('J')], 0, "row below", "of histograms at the cursor: tell a lower bin", no_histogram;
    CHARTS, Command::Smooth(1), [c('s')], 8, "smooth", "smooth more, as TensorBoard does; extremes stay visible", no_series;
    CHARTS, Command::Smooth(-1), [c('S')], 0, "smooth less", "smooth less", no_series;
    CHARTS, Command::LogScale, [c('L')], 9, "log y", "logarithmic y axes, and colours of histograms, or linear ones", no_series;
    CHARTS, Command::Axis, [c('a')], 9, "x axis", "over steps, time or the wall clock", no_series;
    CHARTS, Command::Together, [c('o')], 10, "one chart", "all shown series in one chart, or one chart each", no_series;
    CHARTS, Command::ExportCharts, [c('e')], 10, "export", "write the shown series to the run directory, as CSV, SVG and PNG", no_series;
    CHARTS, Command::WholeRun, [c('0')], 7, "all", "the whole run again", whole;
    LOG, Command::Filter, [c('/')], 4, "filter", "show lines that match: a text or a regular expression; !text those without", always;
    LOG, Command::Hit(1), [c('n')], 0, "next hit", "the next line that matches", no_pattern;
    LOG, Command::Hit(-1), [c('N')], 5, "hit before", "the line before that matches; where held lines end, in the hosts' files", no_pattern;
    LOG, Command::Around, [k(KeyCode::Enter)], 5, "around", "the lines of all ranks around the match, or the lowest line; esc comes back", always;
    LOG, Command::Level, [c('e')], 6, "level", "only warnings and errors, only errors, all lines", always;
    LOG, Command::Times, [c('t')], 9, "times", "when each line was read, by its host's clock", always;
    LOG, Command::Fold, [c('c')], 10, "fold", "one line for equal ones, and for a traceback, or each line", always;
    LOG, Command::Former, [c('p')], 0, "generations", "lines of former generations too, or only of this one", always;
    LOG, Command::Merge, [c('m')], 5, "merge", "all ranks' lines, or the selected rank's", no_rank;
    LOG, Command::OtherRank(1), [c(']'), k(KeyCode::Right)], 6, "next rank", "select the next rank", merged;
    LOG, Command::OtherRank(-1), [c('['), k(KeyCode::Left)], 0, "previous rank", "select the previous rank", merged;
    LOG, Command::Wrap, [c('w')], 7, "wrap", "break long lines", always;
    LOG, Command::Sideways(1), [c('l')], 0, "further right", "show what long lines say further on", broken;
    LOG, Command::Sideways(-1), [c('h')], 0, "further left", "back towards the begin of long lines", at_begin;
    LOG, Command::Follow, [c('F')], 8, "follow", "follow the newest line", following;
    EVENTS, Command::Inspect, [k(KeyCode::Enter)], 4, "open", "the selected event, whole, with its card", no_event;
    EVENTS, Command::Filter, [c('/')], 5, "filter", "show events with this text; !text shows those without", always;
    EVENTS, Command::LogThere, [c('L')], 6, "log there", "the log at the moment of the selected event", no_event;
    EVENTS, Command::GoThere, [c('o')], 6, "go there", "show all pages as they were at the selected event", no_moment;
    EVENTS, Command::Follow, [c('F')], 8, "follow", "follow the newest event", at_newest;
    END, Command::GoThere, [c('s')], 3, "before", "show all pages as they were five minutes before the end", not_over;
    END, Command::RankLog, [c('l')], 4, "log", "the log of the rank that is blamed", nobody_blamed;
    END, Command::Again, [c('n')], 4, "new run", "prepare another run of the same experiment: change keys, see the plan, launch", no_repeat;
    HOSTS, Command::Inspect, [k(KeyCode::Enter)], 4, "ranks", "show this host's ranks", no_ranks_there;
    HOSTS, Command::Processes, [c('p')], 6, "processes", "ranks of this host and what else is on its GPUs: environment, signals", no_processes;
    HOSTS, Command::Shell, [c('s')], 5, "shell", "a shell on this host, in the folder of the run", no_shell;
];
