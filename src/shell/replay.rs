//! A recorded run, shown again: the same screen with the time cursor, fed from a record instead of hosts.

use super::clock::{Clock, earlier};
use super::compared_curves::{self, CurveReader};
use super::cursor::Cursor;
use super::frames::FrameReason;
use super::screen::{InputOutcome, Screen};
use super::signals::{ConsoleSignal, Signals};
use rankdeck_core::event::Event;
use rankdeck_tui::{Action, Role};
use std::io;
use std::path::Path;

/// Plays on a screen until the user leaves; other runs are looked for in `runs`. `what` names the record on a
/// command line.
///
/// # Errors
/// When the terminal fails.
pub async fn on_screen(mut cursor: Cursor, mut screen: Screen, runs: &Path, what: &str) -> io::Result<()> {
    screen.view.steering.replay = true;
    screen.view.steering.report = Some(format!("rankdeck report {what}"));
    screen.view.steering.recorded = compared_curves::names(runs, "");
    let mut curves = CurveReader::default();
    let mut signals = Signals::new(true)?;
    let clock = Clock::new();
    cursor.play(clock.now());
    loop {
        let now = clock.now();
        cursor.advance(now);
        let shown = cursor.shown(None);
        if screen.view.moment.cursor.as_ref() != Some(&shown) {
            screen.view.moment.cursor = Some(shown);
            screen.want(FrameReason::Data);
        }
        screen.draw(now, cursor.at(), cursor.model(), &|_| {})?;
        let wake = earlier(cursor.poll_timeout(now), screen.poll_timeout());
        let input = tokio::select! {
            signal = signals.next() => {
                match signal {
                    ConsoleSignal::Stop | ConsoleSignal::HangUp => break,
                    ConsoleSignal::Suspend => screen.suspend(&mut signals).await?,
                    ConsoleSignal::Continue => screen.redraw(),
                }
                continue;
            }
            loaded = curves.next() => {
                match loaded {
                    Ok(runs) => screen.view.chart.compared = runs,
                    Err(why) => screen.view.toast(format!("compare: {why}"), Role::Warn, cursor.at()),
                }
                screen.want(FrameReason::Input);
                continue;
            }
            input = screen.next_input() => input,
            () = clock.sleep_until(wake) => continue,
        };
        let InputOutcome::Actions(actions) = screen.hear(input, cursor.model(), cursor.at()) else { break };
        for action in actions {
            match action {
                Action::Tell(Event::DetachRequested) => {
                    screen.close();
                    return Ok(());
                }
                Action::Time(to) => cursor.go(to, clock.now()),
                Action::Suspend => screen.suspend(&mut signals).await?,
                Action::Redraw => screen.redraw(),
                Action::Compare(names) if names.is_empty() => screen.view.chart.compared.clear(),
                Action::Compare(names) => curves.read(runs.to_owned(), names),
                Action::Mouse(on) => screen.mouse(on),
                Action::Copy(text) => screen.copy(&text, cursor.at())?,
                Action::SaveFiles(files) => screen.save_files(Path::new("."), &files, cursor.at()),
                Action::SaveScreen => {
                    let (text, role) = match screen.save(Path::new("."), cursor.model(), cursor.at()) {
                        Ok(path) => (format!("screen saved to {}", path.display()), Role::Good),
                        Err(error) => (format!("failed to save the screen: {error}"), Role::Warn),
                    };
                    screen.view.toast(text, role, cursor.at());
                }
                // There is nothing to stop, restart, repeat or answer in the past.
                Action::Tell(_) | Action::Again | Action::Shell(_) => {}
            }
        }
        screen.want(FrameReason::Input);
    }
    screen.close();
    Ok(())
}
