//! The loop draws only changes, obeys signals, and closes its links.

use super::*;
use crate::shell::screen::Screen;
use crate::shell::terminal::{CopyTarget, Surface};
use crossterm::event::Event as TermEvent;
use rankdeck_link::LinkCommand;
use rankdeck_types::ids::RunId;
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Size;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A terminal that counts its frames.
struct CountingTerminal(Terminal<TestBackend>, Arc<AtomicU64>);

impl Surface for CountingTerminal {
    fn draw(&mut self, paint: &mut dyn FnMut(&mut Frame)) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.draw(|frame| paint(frame)).map(|_| ()).map_err(|error| io::Error::other(error.to_string()))
    }
    fn size(&self) -> io::Result<Size> {
        Ok(Size::new(80, 24))
    }
    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn enter(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn clear(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn copy(&mut self, _: &str) -> io::Result<CopyTarget> {
        Ok(CopyTarget::Terminal)
    }
}

fn screen() -> (Screen, Arc<AtomicU64>) {
    let frames = Arc::new(AtomicU64::new(0));
    let surface = CountingTerminal(Terminal::new(TestBackend::new(80, 24)).unwrap(), Arc::clone(&frames));
    let input = Box::pin(futures_util::stream::pending());
    (Screen::new(Box::new(surface), input, rankdeck_tui::Theme::dark()), frames)
}

fn driver(output: Output, objective: Objective) -> (Driver, mpsc::Sender<(NodeRank, LinkEvent)>) {
    let (events, inbox) = mpsc::channel(16);
    let (answers, _) = mpsc::channel(1);
    let session = Session {
        goal: Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] },
        until: Vec::new(),
        objective,
        links: Vec::new(),
        inbox,
        connector: None,
        spares: Vec::new(),
        listed: Vec::new(),
        warnings: Vec::new(),
        recorder: None,
        accept_new_host_keys: false,
        can_ask: false,
        simulated: false,
        demo: None,
        notify: None,
        metrics: None,
    };
    (Driver::new(session, output, answers), events)
}

#[tokio::test]
async fn shell_1_nothing_is_drawn_without_a_change() {
    let (screen, frames) = screen();
    let (mut driver, _events) = driver(Output::Screen(Box::new(screen)), Objective::Watch);
    for _ in 0..1000 {
        driver.draw().unwrap();
    }
    assert_eq!(frames.load(Ordering::SeqCst), 1, "only the first frame");
    assert_eq!(driver.output.poll_timeout(), None, "and nothing wakes the loop to draw again");
    let key = crossterm::event::KeyEvent::new(
        crossterm::event::KeyCode::Char('?'),
        crossterm::event::KeyModifiers::NONE,
    );
    let Output::Screen(screen) = &mut driver.output else { panic!("no screen") };
    screen.hear(Some(TermEvent::Key(key)), &Model::default(), Timestamp(0));
    assert!(driver.output.poll_timeout().is_some(), "a key wants a frame");
}

#[tokio::test]
async fn a_third_signal_leaves_at_once_and_never_with_success() {
    let (mut driver, _events) = driver(Output::Quiet, Objective::Watch);
    driver.on_stop_signal();
    driver.on_stop_signal();
    // Whatever the core makes of the first two, the third ends the console.
    (driver.leaving.exit, driver.leaving.finished) = (None, None);
    assert_eq!(driver.leaving.leave, None);
    driver.on_stop_signal();
    assert_eq!(driver.leaving.why(driver.clock.now()), Some(Why::Cut));
    assert_ne!(driver.end(Why::Cut).await.code, 0);
}

#[tokio::test]
async fn links_are_told_to_close_and_waited_for() {
    let (mut driver, _events) = driver(Output::Quiet, Objective::Watch);
    let (commands, mut orders) = mpsc::channel(4);
    driver.links = vec![LinkHandle { node: NodeRank(0), commands }];
    let link = tokio::spawn(async move {
        while let Some(order) = orders.recv().await {
            if matches!(order, LinkCommand::Close) {
                return true;
            }
        }
        false
    });
    driver.leaving.exit = Some(4);
    let end = driver.end(Why::Done).await;
    assert_eq!(end.code, 4);
    assert!(link.await.unwrap());
}
