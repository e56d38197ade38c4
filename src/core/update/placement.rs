//! Places the checkpoint of the next generation on all of its hosts before anything is launched.
//!
//! Hosts are asked what they have; what they lack is copied through this console, in pieces. Invariants:
//! - PLACE-3: a generation that resumes is launched when every host has its part, or not at all.
//! - PLACE-4: at most [`WINDOW`] pieces are under way.
//! - PLACE-5: more than `launch.max_copy_gb` is copied only if the user agrees, in time: without an answer, the
//!   generation does not start. A restart by policy has no user to ask: it copies, and a warning reports that.
//! - PLACE-6: where the latest checkpoint is gone, the one before it that exists is resumed from.
//! - PLACE-7: a requested restart from a checkpoint that it names stops nothing before a host has reported that it has
//!   the checkpoint: for the built-in trainer the host of rank 0, for a script any host.

use super::{policy, transition};
use crate::event::Effect;
use crate::model::{CheckpointModel, EventTone, HostModel};
use crate::origin::{Standing, StartPoint};
use crate::placement::{FileCopy, KnownSave, PlacementFacts, PlacementStep};
use crate::report::RunOutcome;
use crate::run::RunStage;
use crate::session::EventCtx;
use rankdeck_proto::message::{
    CHECKPOINT_FILES, CheckpointContent, CheckpointOrder, CheckpointReply, ConsoleMessage, PIECE, RunEnd,
};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Timestamp};
use rankdeck_types::link_state::Prompt;
use rankdeck_types::plan::Plan;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most pieces under way.
const WINDOW: u64 = 4;
/// Milliseconds without a reply after which a host is given up.
const SILENCE_MS: u64 = 60_000;
/// Most replies that list a checkpoint's files.
const PAGES: usize = 64;
/// Milliseconds for which the user may answer.
const ANSWER_MS: u64 = 600_000;
/// Bytes per millisecond that a host hashes at least.
const HASH_RATE: u64 = 20_000;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// All hosts are asked for the path.
    Describing,
    /// Hosts that do not have it are asked for the same place below their own directories.
    Relating,
    Hashing,
    /// Files of other saves are moved away.
    SettingAside,
    /// The user is asked.
    Asking,
    Copying,
    Done,
}

/// The checkpoint of the generation that is being reserved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlacedCheckpoint {
    path: String,
    stage: Stage,
    /// With times by this console's clock.
    contents: BTreeMap<NodeRank, CheckpointContent>,
    /// Replies so far, and what they list, of hosts that have not reported all of their files yet.
    #[serde(default)]
    pages: BTreeMap<NodeRank, (usize, CheckpointContent)>,
    /// Hosts on which files were moved away.
    aside: BTreeSet<NodeRank>,
    /// Requests without a reply, and their hosts.
    open: BTreeMap<u64, NodeRank>,
    /// When the latest reply came, and how long the next one may take.
    since: Timestamp,
    patience_ms: u64,
    /// Files to copy; the first one is under way.
    copies: Vec<FileCopy>,
    /// Pieces of that file that were requested, and that have arrived; pieces written, on all hosts.
    requested: u64,
    arrived: u64,
    written: u64,
}

impl PlacedCheckpoint {
    fn new(path: &str, now: Timestamp) -> PlacedCheckpoint {
        PlacedCheckpoint {
            path: path.to_owned(),
            stage: Stage::Describing,
            contents: BTreeMap::new(),
            pages: BTreeMap::new(),
            aside: BTreeSet::new(),
            open: BTreeMap::new(),
            since: now,
            patience_ms: SILENCE_MS,
            copies: Vec::new(),
            requested: 0,
            arrived: 0,
            written: 0,
        }
    }

    /// Paths of hosts that have it elsewhere.
    fn places(&self) -> BTreeMap<NodeRank, String> {
        let others = self.contents.iter().filter(|(_, content)| content.path != self.path);
        others.map(|(node, content)| (*node, content.path.clone())).collect()
    }
}

/// Returns the paths of the checkpoint on hosts that have it elsewhere, once every host has it; `None` while that
/// takes time, or when it has failed, which ends the run (PLACE-3).
pub(super) fn place(
    ctx: &mut EventCtx<'_>,
    plan: &Plan,
    resume: Option<&str>,
) -> Option<BTreeMap<NodeRank, String>> {
    // The trainer's rank 0 reads it and broadcasts.
    let Some(path) = resume.filter(|_| !plan.is_builtin() && ctx.model.hosts.len() > 1) else {
        return Some(BTreeMap::new());
    };
    let is_away = |node: &NodeRank| !ctx.model.hosts.get(node.index()).is_some_and(HostModel::is_live);
    let stands = |placed: &PlacedCheckpoint| placed.path == path && !placed.open.values().any(is_away);
    if !ctx.session.run.placed.as_ref().is_some_and(stands) {
        ctx.session.run.placed = Some(PlacedCheckpoint::new(path, ctx.now));
        let nodes: Vec<NodeRank> =
            ctx.nodes().filter(|node| ctx.model.hosts[node.index()].is_live()).collect();
        describe(ctx, plan, &nodes, false);
    }
    let placed = ctx.session.run.placed.as_ref()?;
    match placed.stage {
        Stage::Done => return Some(placed.places()),
        Stage::Asking if ctx.now.since(placed.since) >= placed.patience_ms => {
            let minutes = placed.patience_ms / 60_000;
            not_copied(ctx, &format!("within {minutes} minutes"));
            return None;
        }
        Stage::Asking => return None,
        Stage::Describing | Stage::Relating | Stage::Hashing | Stage::SettingAside | Stage::Copying => {}
    }
    if ctx.now.since(placed.since) >= placed.patience_ms {
        let nodes: BTreeSet<NodeRank> = placed.open.values().copied().collect();
        let names: Vec<String> = nodes.into_iter().map(|node| ctx.host_name(node)).collect();
        let error = format!("no reply from {} about checkpoint {path}", names.join(", "));
        refuse(ctx, HintedError::new(error, "check the host and its disk"));
    }
    None
}

/// A host replied. Returns whether a screen could show the change.
pub(super) fn on_reply(ctx: &mut EventCtx<'_>, node: NodeRank, request: u64, reply: CheckpointReply) -> bool {
    let now = ctx.now;
    if let Some(check) = &mut ctx.session.run.check
        && check.open.remove(&request) == Some(node)
    {
        check.since = now;
        match reply {
            CheckpointReply::Described(content) => check.found |= !content.files.is_empty(),
            CheckpointReply::Failed(error) => check.failed = Some(error),
            CheckpointReply::Piece { .. } | CheckpointReply::Written | CheckpointReply::Unknown => {}
        }
        return true;
    }
    let is_member = ctx.model.hosts.get(node.index()).is_some_and(|host| ctx.is_member(host));
    let offset_s = ctx.model.hosts.get(node.index()).map_or(0.0, |host| host.clock_offset_s);
    let Some(placed) = ctx.session.run.placed.as_mut() else { return false };
    if !matches!(ctx.session.run.stage, RunStage::Reserving { .. })
        || placed.open.remove(&request) != Some(node)
    {
        return false;
    }
    placed.since = now;
    match (placed.stage, reply) {
        // What it has is not needed.
        (Stage::Describing, CheckpointReply::Failed(_)) if !is_member => {
            if placed.open.is_empty() {
                decide(ctx);
            }
        }
        (_, CheckpointReply::Failed(error)) => {
            let error = HintedError { error: format!("{}: {}", ctx.host_name(node), error.error), ..error };
            refuse(ctx, error);
        }
        (Stage::Describing | Stage::Relating | Stage::Hashing, CheckpointReply::Described(mut content)) => {
            for file in content.files.iter_mut().filter(|file| file.modified > 0.0) {
                file.modified -= offset_s;
            }
            let mut pages = 1;
            if let Some((earlier, known)) = placed.pages.remove(&node) {
                pages += earlier;
                let mut files = known.files;
                files.append(&mut content.files);
                content.files = files;
            }
            if content.files.len() > CHECKPOINT_FILES || pages > PAGES {
                let most = words::count(CHECKPOINT_FILES as u64);
                let (name, path) = (ctx.host_name(node), content.path);
                let error = format!("{name}: checkpoint {path} has more than {most} files");
                refuse(ctx, HintedError::new(error, "choose another checkpoint"));
                return true;
            }
            if content.more && !content.files.is_empty() {
                let after = content.files.last().map(|file| file.name.clone());
                let (path, hash) = (content.path.clone(), placed.stage == Stage::Hashing);
                placed.pages.insert(node, (pages, content));
                let code = ctx.model.plan.as_ref().and_then(|plan| plan.experiment.launch.code.clone());
                ask(ctx, node, CheckpointOrder::Describe { path, relative: None, code, hash, after });
                return true;
            }
            placed.contents.insert(node, content);
            if placed.open.is_empty() {
                decide(ctx);
            }
        }
        (Stage::SettingAside, CheckpointReply::Written) => {
            placed.contents.remove(&node);
            placed.aside.insert(node);
            if placed.open.is_empty() {
                let nodes: Vec<NodeRank> = placed.aside.iter().copied().collect();
                let Some(plan) = ctx.model.plan.clone() else { return true };
                set_stage(ctx, Stage::Describing, SILENCE_MS);
                describe(ctx, &plan, &nodes, false);
            }
        }
        (Stage::Copying, CheckpointReply::Piece { bytes, data }) => arrived(ctx, bytes, data),
        (Stage::Copying, CheckpointReply::Written) => {
            placed.written += 1;
            copy_on(ctx);
        }
        (_, _) => {
            let path = placed.path.clone();
            let error = format!("{}: unexpected reply about checkpoint {path}", ctx.host_name(node));
            refuse(ctx, HintedError::new(error, "use the same rankdeck on all hosts"));
        }
    }
    true
}

/// The user answered whether to copy.
pub(super) fn on_answer(ctx: &mut EventCtx<'_>, yes: bool) -> bool {
    for host in &mut ctx.model.hosts {
        if matches!(host.prompt, Some(Prompt::CopyCheckpoint { .. })) {
            host.prompt = None;
        }
    }
    let Some(placed) = ctx.session.run.placed.as_mut().filter(|placed| placed.stage == Stage::Asking) else {
        return false;
    };
    placed.since = ctx.now;
    if yes {
        placed.stage = Stage::Copying;
        copy_on(ctx);
        return true;
    }
    not_copied(ctx, "");
    true
}

/// PLACE-5. The user has not agreed to copy the checkpoint, or not `in_time`.
fn not_copied(ctx: &mut EventCtx<'_>, in_time: &str) {
    let Some(placed) = ctx.session.run.placed.as_ref() else { return };
    let bytes = copied_bytes(&placed.copies);
    let (size, gb) = (words::bytes(bytes), bytes.div_ceil(1_000_000_000));
    let unanswered = if in_time.is_empty() { String::new() } else { format!("; no answer {in_time}") };
    let error = format!("checkpoint {} needs {size} copied between hosts{unanswered}", placed.path);
    refuse(ctx, HintedError::new(error, format!("allow it with `--max-copy-gb {gb}`, or copy it yourself")));
}

fn copied_bytes(copies: &[FileCopy]) -> u64 {
    copies.iter().map(|copy| copy.bytes.saturating_mul(copy.to.len() as u64)).fold(0, u64::saturating_add)
}

/// The checkpoint that a requested restart names, while hosts are asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NamedCheckpoint {
    path: String,
    /// Requests without a reply, and their hosts.
    open: BTreeMap<u64, NodeRank>,
    /// When the latest reply came.
    since: Timestamp,
    found: bool,
    failed: Option<HintedError>,
}

/// PLACE-7. Whether a host has the checkpoint at `path`, of those that may read it; `None` while that is unknown.
pub(super) fn exists(
    ctx: &mut EventCtx<'_>,
    path: &str,
    nodes: &[NodeRank],
) -> Option<Result<(), HintedError>> {
    let is_away = |node: &NodeRank| !ctx.model.hosts.get(node.index()).is_some_and(HostModel::is_live);
    let stands = |check: &NamedCheckpoint| check.path == path && !check.open.values().any(is_away);
    if !ctx.session.run.check.as_ref().is_some_and(stands) {
        let mut open = BTreeMap::new();
        let code = ctx.model.plan.as_ref().and_then(|plan| plan.experiment.launch.code.clone());
        for node in nodes.iter().filter(|node| !is_away(node)) {
            ctx.session.run.requests += 1;
            open.insert(ctx.session.run.requests, *node);
        }
        for (request, node) in &open {
            let (path, code) = (path.to_owned(), code.clone());
            let order = CheckpointOrder::Describe { path, relative: None, code, hash: false, after: None };
            ctx.send(*node, ConsoleMessage::Checkpoint { request: *request, order: Box::new(order) });
        }
        let (path, since) = (path.to_owned(), ctx.now);
        ctx.session.run.check = Some(NamedCheckpoint { path, open, since, found: false, failed: None });
        return None;
    }
    let check = ctx.session.run.check.as_ref()?;
    let is_late = ctx.now.since(check.since) >= SILENCE_MS;
    if !check.found && !check.open.is_empty() && !is_late {
        return None;
    }
    let check = ctx.session.run.check.take()?;
    if check.found {
        return Some(Ok(()));
    }
    if let Some(failed) = check.failed {
        return Some(Err(failed));
    }
    let hint = "choose another one with `--from`, or `--from scratch`";
    let names = |nodes: &mut dyn Iterator<Item = NodeRank>| -> String {
        nodes
            .map(|node| ctx.host_name(node))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join(", ")
    };
    let error = match check.open.is_empty() {
        true => format!("checkpoint {path} not found on {}", names(&mut nodes.iter().copied())),
        false => {
            format!("no reply from {} about checkpoint {path}", names(&mut check.open.values().copied()))
        }
    };
    Some(Err(HintedError::new(format!("{error}; the run is unchanged"), hint)))
}

/// Asks hosts for what they have.
fn describe(ctx: &mut EventCtx<'_>, plan: &Plan, nodes: &[NodeRank], hash: bool) {
    let Some(placed) = ctx.session.run.placed.as_ref() else { return };
    let path = placed.path.clone();
    let relative = placed.contents.values().find(|content| !content.files.is_empty());
    let relative = relative.and_then(|content| content.relative.clone());
    for node in nodes {
        // By its own path, so that it describes the same files again.
        let own = placed_content(ctx, *node).filter(|content| !content.files.is_empty());
        let path = own.map_or_else(|| path.clone(), |content| content.path.clone());
        let (relative, code) = (relative.clone(), plan.experiment.launch.code.clone());
        ask(ctx, *node, CheckpointOrder::Describe { path, relative, code, hash, after: None });
    }
}

fn placed_content<'a>(ctx: &'a EventCtx<'_>, node: NodeRank) -> Option<&'a CheckpointContent> {
    ctx.session.run.placed.as_ref()?.contents.get(&node)
}

fn ask(ctx: &mut EventCtx<'_>, node: NodeRank, order: CheckpointOrder) {
    ctx.session.run.requests += 1;
    let request = ctx.session.run.requests;
    if let Some(placed) = &mut ctx.session.run.placed {
        placed.open.insert(request, node);
    }
    ctx.send(node, ConsoleMessage::Checkpoint { request, order: Box::new(order) });
}

/// All hosts have replied.
fn decide(ctx: &mut EventCtx<'_>) {
    let (Some(placed), Some(plan)) = (ctx.session.run.placed.clone(), ctx.model.plan.clone()) else { return };
    let members: Vec<NodeRank> = plan.members().map(|planned| planned.node_rank).collect();
    let ranks: Vec<NodeRank> = plan.ranks.iter().map(|rank| rank.node_rank).collect();
    let is_there =
        |node: &NodeRank| placed.contents.get(node).is_some_and(|content| !content.files.is_empty());
    let has_relative =
        placed.contents.values().any(|content| !content.files.is_empty() && content.relative.is_some());
    let lacking: Vec<NodeRank> = members.iter().copied().filter(|node| !is_there(node)).collect();
    if placed.stage == Stage::Describing && has_relative && !lacking.is_empty() {
        set_stage(ctx, Stage::Relating, SILENCE_MS);
        return describe(ctx, &plan, &lacking, false);
    }
    let is_hashed = |node: &NodeRank| {
        let files = placed.contents.get(node).map(|content| content.files.as_slice());
        files.is_some_and(|files| files.iter().all(|file| file.sha256.is_some()))
    };
    let names = |node: NodeRank| ctx.host_name(node);
    let latest = |node: NodeRank| ctx.model.hosts.get(node.index())?.machine.generation;
    let saved = ctx.model.checkpoints.iter().rev().find(|saved| saved.path == placed.path);
    let facts = PlacementFacts {
        path: &placed.path,
        members: &members,
        ranks: &ranks,
        contents: &placed.contents,
        save: saved.map(|saved| KnownSave { node: saved.node, generation: saved.generation, at: saved.at }),
        latest: &latest,
        names: &names,
    };
    match facts.decide() {
        PlacementStep::Refused(error) => refuse(ctx, error),
        PlacementStep::Missing(error) => fall_back(ctx, error),
        PlacementStep::SetAside(nodes) => set_aside(ctx, &placed, nodes),
        PlacementStep::Hash(nodes) if nodes.iter().all(is_hashed) => {
            let error = format!("hosts report no hashes of checkpoint {}", placed.path);
            refuse(ctx, HintedError::new(error, "use the same rankdeck on all hosts"));
        }
        PlacementStep::Hash(nodes) => {
            let nodes: Vec<NodeRank> = nodes.into_iter().collect();
            let bytes = |node: &NodeRank| -> u64 {
                placed
                    .contents
                    .get(node)
                    .map_or(0, |content| content.files.iter().map(|file| file.bytes).sum())
            };
            let most = nodes.iter().map(bytes).max().unwrap_or(0);
            set_stage(ctx, Stage::Hashing, SILENCE_MS.saturating_add(most / HASH_RATE));
            describe(ctx, &plan, &nodes, true);
        }
        PlacementStep::Copy { copies, parts } => {
            if !parts.is_empty() {
                let hosts: Vec<String> = parts.into_iter().map(|node| ctx.host_name(node)).collect();
                let text = format!(
                    "{} differs between {}: each resumes from its own part",
                    placed.path,
                    hosts.join(", ")
                );
                ctx.note(EventTone::Info, text);
            }
            start_copies(ctx, &plan, copies);
        }
    }
}

/// PLACE-6. A path that is not that of the latest checkpoint was chosen: it is not replaced.
fn fall_back(ctx: &mut EventCtx<'_>, error: HintedError) {
    let Some(placed) = ctx.session.run.placed.as_ref() else { return };
    let path = placed.path.clone();
    let Some(gone) = ctx.model.checkpoints.back().filter(|latest| latest.path == path) else {
        return refuse(ctx, error);
    };
    // What an earlier generation has saved there may still be on a host that got a copy.
    let (gone, is_empty) =
        (gone.generation, placed.contents.values().all(|content| content.files.is_empty()));
    let is_gone = |saved: &CheckpointModel| saved.path == path && (is_empty || saved.generation == gone);
    let next = ctx.model.checkpoints.iter().rev().find(|saved| !is_gone(saved)).cloned();
    let Some(next) = next else { return refuse(ctx, error) };
    let RunStage::Reserving { generation, resume, .. } = &mut ctx.session.run.stage else { return };
    *resume = Some(next.path.clone());
    let name = next.path.rsplit('/').next().unwrap_or(&next.path);
    let start = StartPoint::at(name, next.path.as_str(), next.step());
    let begins = Standing::of(ctx.model).begins(&start);
    let text = format!("{}: generation {generation} {begins}", error.error);
    ctx.model.checkpoints.retain(|saved| !is_gone(saved));
    ctx.session.run.placed = None;
    ctx.note(EventTone::Warn, text);
}

/// Files of other saves give way to copies.
fn set_aside(ctx: &mut EventCtx<'_>, placed: &PlacedCheckpoint, nodes: BTreeMap<NodeRank, Generation>) {
    if let Some(node) = nodes.keys().find(|node| placed.aside.contains(*node)) {
        let name = ctx.host_name(*node);
        let error = format!("{name} has another checkpoint as {}, which cannot be moved away", placed.path);
        return refuse(ctx, HintedError::new(error, format!("move it away on {name}, then restart")));
    }
    set_stage(ctx, Stage::SettingAside, SILENCE_MS);
    for (node, generation) in nodes {
        let Some(path) = placed.contents.get(&node).map(|content| content.path.clone()) else { continue };
        let name = ctx.host_name(node);
        let text = format!("{name} has an earlier checkpoint as {path}: it is kept in gen{generation}/");
        ctx.note(EventTone::Info, text);
        ask(ctx, node, CheckpointOrder::SetAside { path, generation });
    }
}

fn set_stage(ctx: &mut EventCtx<'_>, stage: Stage, patience_ms: u64) {
    let now = ctx.now;
    if let Some(placed) = &mut ctx.session.run.placed {
        (placed.stage, placed.since, placed.patience_ms) = (stage, now, patience_ms);
    }
}

fn start_copies(ctx: &mut EventCtx<'_>, plan: &Plan, copies: Vec<FileCopy>) {
    let Some(placed) = &mut ctx.session.run.placed else { return };
    let path = placed.path.clone();
    let bytes = copied_bytes(&copies);
    let to: BTreeSet<NodeRank> = copies.iter().flat_map(|copy| copy.to.iter().copied()).collect();
    placed.copies = copies;
    if placed.copies.is_empty() {
        return set_stage(ctx, Stage::Done, SILENCE_MS);
    }
    let to: Vec<String> = to.into_iter().map(|node| ctx.host_name(node)).collect();
    let text = format!("copying checkpoint {path} ({}) to {}", words::bytes(bytes), to.join(", "));
    ctx.note(EventTone::Info, text);
    // PLACE-5.
    let limit = plan.experiment.launch.max_copy_gb;
    let is_above = bytes as f64 > limit * 1e9;
    if is_above && ctx.session.run.by_policy {
        let text = format!(
            "{} exceeds `launch.max_copy_gb` = {limit}: an automatic restart copies without a prompt",
            words::bytes(bytes)
        );
        ctx.note(EventTone::Warn, text);
    } else if is_above {
        let node = plan.ranks.first().map_or(NodeRank(0), |rank| rank.node_rank);
        let prompt = Prompt::CopyCheckpoint { path, bytes, to };
        ctx.host(node).prompt = Some(prompt.clone());
        set_stage(ctx, Stage::Asking, ANSWER_MS);
        ctx.out.push(Effect::Ask { node, prompt });
        return;
    }
    set_stage(ctx, Stage::Copying, SILENCE_MS);
    copy_on(ctx);
}

/// Pieces of a file; an empty one has one, too.
fn pieces(copy: &FileCopy) -> u64 {
    copy.bytes.div_ceil(PIECE).max(1)
}

/// Requests pieces as far as the window allows, and continues with the next file.
fn copy_on(ctx: &mut EventCtx<'_>) {
    loop {
        let Some(placed) = &mut ctx.session.run.placed else { return };
        let Some(copy) = placed.copies.first().cloned() else {
            let text = format!("checkpoint {} is on all hosts", placed.path);
            set_stage(ctx, Stage::Done, SILENCE_MS);
            return ctx.note(EventTone::Good, text);
        };
        let (all, targets) = (pieces(&copy), copy.to.len() as u64);
        if placed.written >= all * targets {
            placed.copies.remove(0);
            (placed.requested, placed.arrived, placed.written) = (0, 0, 0);
            placed.patience_ms = SILENCE_MS;
            continue;
        }
        // PLACE-4.
        let complete = placed.written / targets.max(1);
        if placed.requested >= all || placed.requested >= complete + WINDOW {
            return;
        }
        let Some(source) = placed.contents.get(&copy.from).map(|content| content.path.clone()) else {
            return;
        };
        let offset = placed.requested * PIECE;
        placed.requested += 1;
        ask(ctx, copy.from, CheckpointOrder::Read { path: source, file: copy.file, offset });
    }
}

/// A piece has arrived, and is passed on.
fn arrived(ctx: &mut EventCtx<'_>, bytes: u64, data: String) {
    let Some(placed) = &mut ctx.session.run.placed else { return };
    let Some(copy) = placed.copies.first().cloned() else { return };
    let offset = placed.arrived * PIECE;
    placed.arrived += 1;
    let is_last = placed.arrived == pieces(&copy);
    if is_last {
        // Its hash is compared.
        placed.patience_ms = SILENCE_MS.saturating_add(copy.bytes / HASH_RATE);
    }
    if bytes != PIECE.min(copy.bytes.saturating_sub(offset)) {
        let error = format!("checkpoint {} changed while it was copied", placed.path);
        return refuse(ctx, HintedError::new(error, "try again"));
    }
    let places: Vec<(NodeRank, String)> =
        copy.to.iter().filter_map(|node| Some((*node, placed.contents.get(node)?.path.clone()))).collect();
    for (node, path) in places {
        let sha256 = is_last.then(|| copy.sha256.clone());
        let (file, data) = (copy.file.clone(), data.clone());
        ask(ctx, node, CheckpointOrder::Write { path, file, offset, data, sha256 });
    }
}

/// PLACE-3. The generation is not launched, and this is why.
fn refuse(ctx: &mut EventCtx<'_>, error: HintedError) {
    let RunStage::Reserving { generation, .. } = ctx.session.run.stage else { return };
    ctx.session.run.placed = None;
    for host in &mut ctx.model.hosts {
        if matches!(host.prompt, Some(Prompt::CopyCheckpoint { .. })) {
            host.prompt = None;
        }
    }
    let text = error.with_hint();
    if generation > Generation(0) {
        policy::refuse(ctx, text.clone());
    }
    let reason = format!("generation {generation} did not start: {text}");
    transition::finish(ctx, RunEnd::new(RunOutcome::Failed, 1, reason));
}
