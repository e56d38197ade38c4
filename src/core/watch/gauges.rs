//! What is known of a rank, in words: its name, what a close look showed, and which ranks wait for it.

use super::rank_view::{self, RankView};
use crate::model::{Model, RankModel};
use crate::xid::xid_words;
use rankdeck_proto::inspection::{Inspection, Socket};
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::Rank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;

/// Most ranks that are named one by one.
pub(super) const NAMED: usize = 4;

/// `rank 1 on bee`.
pub(super) fn who(rank: &RankModel) -> String {
    format!("rank {} on {}", rank.rank, rank.host)
}

pub(super) fn name(model: &Model, rank: Rank) -> String {
    find(model, rank).map_or_else(|| format!("rank {rank}"), who)
}

pub(super) fn find(model: &Model, rank: Rank) -> Option<&RankModel> {
    model.ranks.get(rank.index())
}

pub(super) fn host_of(model: &Model, rank: Option<Rank>) -> Option<String> {
    find(model, rank?).map(|rank| rank.host.clone())
}

/// What of a connection is not answered, in words.
pub(super) fn unanswered(socket: &Socket) -> String {
    if socket.unacked == 0 && socket.unsent > 0 {
        format!("{} do not leave", words::bytes(u64::from(socket.unsent)))
    } else {
        format!("{} segments unacknowledged", socket.unacked)
    }
}

/// What a close look shows that stands on no side of a card.
pub(super) fn looked(view: Option<&RankView<'_>>) -> Vec<String> {
    let Some((view, look)) = view.and_then(|view| Some((view, view.look?))) else { return Vec::new() };
    let rank = look.rank;
    let mut facts = Vec::new();
    let ended = look.children.iter().filter(|child| child.state == 'Z').take(NAMED);
    facts.extend(
        ended.map(|child| format!("rank {rank}: its child {} ({}) has ended", child.pid, child.name)),
    );
    let lossy =
        view.sockets().iter().filter(|socket| socket.backoff >= 2 || socket.retransmits >= 2).take(NAMED);
    facts.extend(lossy.map(|socket| {
        format!(
            "rank {rank}: TCP to {}: {}, {} retransmissions, nothing received for {}",
            socket.peer,
            unanswered(socket),
            socket.retransmits,
            words::duration_ms(u64::from(socket.last_received_ms))
        )
    }));
    if look.storage_moved > 0 {
        let moved = words::bytes(look.storage_moved);
        facts.push(format!("rank {rank}: the storage that it waits for moved {moved} while somebody looked"));
    }
    facts.extend(look.gpu.iter().map(|gpu| format!("rank {rank}: {}", words::clip(gpu, 200))));
    facts.extend(ras(look));
    facts
}

/// What NCCL's RAS says; what hindered it, where it was asked and says nothing.
fn ras(look: &Inspection) -> Vec<String> {
    let said = look.ras.iter().take(NAMED).map(|line| format!("NCCL RAS: {}", words::clip(line, 200)));
    let silent = look.notes.iter().find(|note| look.ras.is_empty() && note.starts_with("NCCL RAS"));
    said.chain(silent.map(|note| words::clip(note, 200))).collect()
}

/// What the driver complains of about a GPU.
pub(super) fn complaint(gpu: &GpuSample) -> String {
    let xids: Vec<String> = gpu.xids.iter().map(|xid| xid_words(*xid)).collect();
    let lost = gpu.lost.then(|| "the driver has lost it".to_owned());
    let xids = (!xids.is_empty()).then(|| format!("Xid {}", xids.join(", ")));
    let said: Vec<String> = lost.into_iter().chain(xids).collect();
    format!("GPU {} ({}): {}", gpu.index, gpu.name, said.join(", "))
}

/// The ranks that wait, in a few lines.
pub(super) fn waiters(model: &Model, ranks: &[Rank]) -> Vec<String> {
    let mut facts: Vec<String> = ranks
        .iter()
        .take(NAMED)
        .filter_map(|rank| {
            let rank = find(model, *rank)?;
            let sample = rank.sample.as_ref()?;
            let place = match (rank_view::call(sample), &sample.page) {
                (Some(call), _) if call.inside => {
                    let site = call.call.at_site();
                    format!("waits in {} for {}{site}", call.name(), words::duration_ms(call.age_ms))
                }
                (_, Some(page)) if page.collective.entered == 0 => {
                    format!("waits for the process group for {}", words::duration_ms(page.phase_age_ms))
                }
                _ => return None,
            };
            Some(format!("{} {place}", who(rank)))
        })
        .collect();
    if ranks.len() > NAMED {
        facts.push(format!("and {} more ranks wait", ranks.len() - NAMED));
    }
    facts
}

/// What the link says about its trouble.
pub(super) fn link(state: &LinkState) -> Option<String> {
    let lost = if let LinkState::Lost { reason, .. } = state { Some(reason) } else { None };
    lost.or(state.failure().map(|failure| &failure.error)).map(|why| format!("link: {why}"))
}
