//! After a death: which rank was the first to leave the common order. Pure.

use super::draft::Judgement;
use super::evidence::{LateRank, Snapshot};
use super::rank_view::RankView;
use super::{Occurrence, Watch, disagree};
use crate::limits::Limits;
use crate::model::{Model, RankLife, RankModel};
use crate::reason::Reason;
use crate::report::{Confidence, Severity};
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// Milliseconds after a death in which the last words of all ranks are compared.
const POST_MORTEM_MS: u64 = 5_000;

/// What is done about the last words of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PostMortem {
    /// Nobody has died.
    #[default]
    NobodyDied,
    /// They are compared until this time on the awake clock.
    Open(u64),
    /// They have named a rank.
    Found,
}

impl Watch {
    /// The rank that left with exit code 0 and took `victim`'s connection with it: the root of the victim's
    /// death. Its verdict becomes a fact. The counters tell which rank it was. Without counters, it is one of
    /// a few ranks that ended well, if the other ranks are at least as many.
    pub fn left_early(
        &mut self,
        model: &Model,
        victim: Rank,
        limits: &Limits,
        happened: Occurrence,
    ) -> Option<(Rank, String)> {
        let (rank, verdict) = {
            let views = self.views(model, &[], limits);
            let waits = views
                .iter()
                .find(|view| view.rank == victim)
                .and_then(|victim| victim.groups.iter().find(|group| group.inside));
            let counted = waits.and_then(|waits| {
                let behind = |view: &&RankView| {
                    view.left && view.group(waits.name).is_some_and(|group| group.entered < waits.entered)
                };
                Some((views.iter().find(behind)?.rank, waits.name, waits.entered, waits.age_ms))
            });
            let (rank, group, seq, waited_ms) = counted.or_else(|| Some((leaver(model)?, "", 0, 0)))?;
            let judged = Judgement {
                severity: Severity::Red,
                confidence: if counted.is_some() { Confidence::Certain } else { Confidence::Likely },
                reason: Reason::LeftEarly,
            };
            let waiters = [victim];
            let late = LateRank { rank, also: &[], waiters: &waiters, group, seq, waited_ms, ahead: false };
            (rank, Snapshot { model, views: &views }.behind(&late, judged))
        };
        let text = verdict.reason.clone();
        self.incidents.fact(Some(rank), verdict, Some(happened));
        Some((rank, text))
    }

    /// A rank died: for a while, the last words of all ranks are compared.
    pub fn died(&mut self, awake_ms: u64) {
        if self.post_mortem == PostMortem::NobodyDied {
            self.post_mortem = PostMortem::Open(awake_ms.saturating_add(POST_MORTEM_MS));
        }
    }

    /// After a death: the rank that left the common order, if the last words of all ranks tell. The rank is
    /// returned once. Its verdict becomes a fact, and the other dead ranks become its victims.
    pub fn last_words(&mut self, model: &Model, awake_ms: u64, limits: &Limits) -> Option<(Rank, String)> {
        matches!(self.post_mortem, PostMortem::Open(until) if awake_ms <= until).then_some(())?;
        let mut views = self.views(model, &[], limits);
        views.iter_mut().for_each(|view| view.died = true);
        let members: Vec<&RankView> = views.iter().collect();
        let mut names: Vec<&str> =
            views.iter().flat_map(|view| &view.groups).map(|group| group.name).collect();
        names.sort_unstable();
        names.dedup();
        let what = names.into_iter().find_map(|name| {
            let of: Vec<&RankView> =
                members.iter().copied().filter(|view| view.group(name).is_some()).collect();
            disagree::calls(&of, name)
        })?;
        let snapshot = Snapshot { model, views: &views };
        let verdict = snapshot.disagree(&what, 0);
        let rank = what.rank?;
        self.post_mortem = PostMortem::Found;
        self.incidents.deaths_follow_from(rank);
        let text = verdict.reason.clone();
        let death = self.incidents.first_death();
        self.incidents.fact(Some(rank), verdict, death);
        Some((rank, text))
    }
}

/// The rank that ended with exit code 0 with the fewest collectives, when at least as many ranks did not end
/// so.
fn leaver(model: &Model) -> Option<Rank> {
    let left = |rank: &&RankModel| matches!(&rank.life, RankLife::Exited(exit) if exit.is_success());
    let left: Vec<&RankModel> = model.ranks.iter().filter(left).collect();
    let entered = |rank: &&&RankModel| {
        let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
        page.map_or(0, |page| page.collective.entered)
    };
    let first = left.iter().min_by_key(entered)?.rank;
    (left.len() * 2 <= model.ranks.len()).then_some(first)
}
