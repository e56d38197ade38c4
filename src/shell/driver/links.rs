//! The links of the loop: orders to them, what comes from them, hosts that join, and their end.

use super::Driver;
use rankdeck_core::event::Event;
use rankdeck_link::{LinkCommand, LinkEvent, Opening};
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::Plan;
use std::time::Duration;

/// How long links may take to end.
const LINKS_END_WITHIN: Duration = Duration::from_secs(3);
/// Link events applied before looking at anything else, and about how long that may take: keys wait for it.
const BURST: usize = 256;
const BURST_MS: u64 = 5;

impl Driver {
    /// Gives an order of the core to a link; a launch gets what stands in no record (SECRET-1).
    pub(super) fn order(&mut self, node: NodeRank, mut command: LinkCommand) {
        if let LinkCommand::Send(ConsoleMessage::Launch { spec, private }) = &mut command {
            match self.secrets.private(spec) {
                Ok(own) => *private = own,
                // The core sends the launch again when the link is next up.
                Err(error) => return tracing::error!("no random numbers, so nothing is launched: {error}"),
            }
        }
        self.command(node, command);
    }

    /// Opens a link to a host that joins the run, or that another console's plan names.
    pub(super) fn connect(&mut self, node: NodeRank, host: &Host, opening: Opening) {
        let builtin = self.core.model().plan.as_ref().is_some_and(Plan::is_builtin);
        self.links.retain(|link| link.node != node);
        match &self.connector {
            Some(connector) => self.links.push(connector(node, host, opening, builtin)),
            None => tracing::warn!("no way to open a link to host {node} from here"),
        }
    }

    /// Opens a link to a host that the user has named; another one is not contacted.
    pub(super) fn find(&mut self, node: NodeRank, name: &str) {
        match self.listed.iter().find(|host| host.name == name).cloned() {
            Some(host) => self.connect(node, &host, Opening::Attach),
            None => self.later.push(unlisted(node, name)),
        }
    }

    /// Hosts of the run that the user has not named: the core learns that they have no link.
    pub(super) fn report_unlisted(&mut self) {
        let hosts = &self.core.model().hosts;
        let without_link = hosts.iter().filter(|host| {
            let linked = self.links.iter().any(|link| link.node == host.node_rank);
            !linked && host.excluded.is_none()
        });
        let events: Vec<Event> = without_link.map(|host| unlisted(host.node_rank, &host.name)).collect();
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// An order to a link. A full queue means that the link is stuck; the core sends again after the next
    /// snapshot.
    fn command(&self, node: NodeRank, command: LinkCommand) {
        let Some(link) = self.links.iter().find(|link| link.node == node) else { return };
        if let Err(error) = link.commands.try_send(command) {
            tracing::warn!("an order to host {node} was not taken: {error}");
        }
    }

    pub(super) fn on_link(&mut self, first: Option<(NodeRank, LinkEvent)>) {
        let Some(first) = first else {
            self.inbox_open = false;
            return;
        };
        let begun = self.clock.now();
        self.tell(first.into());
        for _ in 1..BURST {
            if self.clock.now().since(begun) > BURST_MS {
                break;
            }
            let Ok(next) = self.inbox.try_recv() else { break };
            self.tell(next.into());
        }
    }

    pub(super) async fn end_links(&mut self) {
        let deadline = tokio::time::Instant::now() + LINKS_END_WITHIN;
        for link in &self.links {
            let _ = tokio::time::timeout_at(deadline, link.commands.send(LinkCommand::Close)).await;
        }
        let links = &self.links;
        let ended = async {
            for link in links {
                link.commands.closed().await;
            }
        };
        // Nobody wants what links still tell, but a full inbox would hold them up. It stays open: a link that
        // finds it closed ends at once, and orders that wait for it would be lost.
        let inbox = &mut self.inbox;
        let drained = async {
            while inbox.recv().await.is_some() {}
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout_at(deadline, async {
            tokio::select! {
                () = ended => {}
                () = drained => {}
            }
        })
        .await;
    }
}

/// The state of a host that is not contacted.
fn unlisted(node: NodeRank, name: &str) -> Event {
    let error = format!("{name}: the hosts file does not list it, and it is not contacted");
    let hint = format!(
        "add `[[host]]` with `name = \"{name}\"`, or use the hosts file of the launch: `--hosts FILE`"
    );
    Event::LinkChanged { node, state: LinkState::Failed(HintedError { error, hint }) }
}
