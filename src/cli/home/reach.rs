//! A process of a host that the user asks for: its environment, or a signal to it. One command over the
//! session that the host's looks use, or over another one of the same login.

use super::hosts::{News, RefusingPrompter};
use crate::cli::roster::{decode, own_binary};
use rankdeck_link::{AgentCommand, Links};
use rankdeck_proto::process::{Environment, ProcessAction, ProcessName, ReachOutcome};
use rankdeck_tui::Role;
use rankdeck_tui::home::CommandEnd;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Asks, and has the answer among the news.
pub(super) async fn ask(host: Host, process: ProcessName, action: ProcessAction, news: mpsc::Sender<News>) {
    let outcome = match asked(&host, process, action).await {
        Ok(outcome) => outcome,
        Err(error) => ReachOutcome::Refused(error),
    };
    let _ = news.send(News::Reached(host.name, process, action, outcome)).await;
}

async fn asked(
    host: &Host,
    process: ProcessName,
    action: ProcessAction,
) -> Result<ReachOutcome, HintedError> {
    let binary = own_binary().map_err(|failure| failure.cause)?;
    let mut args = vec!["reach".to_owned(), "--process".into(), format!("{}-{}", process.pid, process.start)];
    if let ProcessAction::Signal { signal } = action {
        args.extend(["--signal".to_owned(), signal.to_string()]);
    }
    let command = AgentCommand { args, ..AgentCommand::default() };
    let reply =
        Links::from_environment().call(host, &binary, command, Arc::<RefusingPrompter>::default()).await?;
    decode(host, &reply.text)
}

/// What an answer becomes: something to read, or a word in the footer.
pub(super) enum AnswerView {
    Page(CommandEnd),
    Word(String, Role),
}

pub(super) fn told(
    host: &str,
    process: ProcessName,
    action: ProcessAction,
    outcome: ReachOutcome,
) -> AnswerView {
    match outcome {
        ReachOutcome::Environment(found) => {
            let title = format!("environment of {process} on {host}, as it was started");
            AnswerView::Page(CommandEnd { title, well: true, lines: lines(&found) })
        }
        ReachOutcome::Signalled { .. } => {
            AnswerView::Word(format!("{process} on {host} was sent {action}"), Role::Good)
        }
        ReachOutcome::Refused(error) => {
            AnswerView::Word(format!("{action} of {process}: {}", error.with_hint()), Role::Bad)
        }
        ReachOutcome::Unknown => AnswerView::Word(format!("{host} runs another rankdeck"), Role::Warn),
    }
}

fn lines(found: &Environment) -> Vec<String> {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "(hidden)".into());
    let each = found.variables.iter().map(|variable| format!("{}={}", variable.name, value(&variable.value)));
    let more = (found.left_out > 0).then(|| format!("warning: {} more found no room", found.left_out));
    each.chain(more).collect()
}
