//! Truncates agent messages to what a genuine agent sends, before they are stored (CORE-2): a frame of 1 MiB may
//! be one text, or a list of 300,000 empty elements, and the model keeps thousands of some.
//!
//! Launches are not truncated: a console made them, and there is one per host.

use super::charts::{CHARTS, MARKS};
use super::failure;
use super::progress::EVALUATIONS;
use super::ranks::CHECKPOINTS;
use crate::card::{Card, RankEvidence};
use crate::model::{
    EventSubject, HistogramSeries, HostModel, MEDIA_NAMES, Model, RankLife, RankModel, RunModel,
};
use crate::report::VerdictReport;
use crate::series::Series;
use crate::session::HISTORY;
use rankdeck_proto::inspection::{BlockingProcess, Frame, Inspection, Obstacle, PythonView};
use rankdeck_proto::lineage::Lineage;
use rankdeck_proto::media::{self, MOST_BINS, PICTURE_BYTES};
use rankdeck_proto::message::{
    AgentMessage, CheckpointReply, CollectiveCall, Exception, Exit, HostSample, LoggedHistogram, LoggedImage,
    Membership, PageSample, RankEvent, RankSample, RecordEvent, RunResults, Survivor, Work,
};
use rankdeck_proto::process::{ReachOutcome, VARIABLES};
use rankdeck_proto::progress_bar::ShownProgress;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a text that is a sentence or more.
const TEXT: usize = 8 << 10;
/// Bytes of a line of a log: agents cut at 4 KiB, and invalid bytes become three each.
const LINE: usize = 12 << 10;
/// Bytes of a path: the kernel takes no longer one.
const PATH: usize = 4 << 10;
/// Bytes of a name.
const NAME: usize = 512;
/// Elements of a list.
const LIST: usize = 1024;
/// Elements of a list with one per rank, or per line of a log.
const LONG: usize = 1 << 16;
/// Lines of the end of a log.
const LAST_LINES: usize = 32;

/// Cuts, and how many texts and lists it has cut.
#[derive(Debug, Default)]
struct Truncator(u64);

/// Cuts a message; returns how many of its texts and lists were cut.
pub(super) fn cut(message: &mut AgentMessage) -> u64 {
    let mut cut = Truncator::default();
    match message {
        AgentMessage::Hello { build, host, run_dir, .. } => {
            cut.texts(NAME, [build, host]);
            cut.text(PATH, run_dir);
        }
        AgentMessage::Snapshot { ranks, holds, .. } => {
            cut.list(LONG, ranks);
            cut.list(LIST, holds);
            holds.iter_mut().for_each(|name| cut.text(NAME, name));
            ranks.iter_mut().filter_map(|rank| rank.exit.as_mut()).for_each(|exit| cut.exit(exit));
        }
        AgentMessage::Record(record) => cut.record(&mut record.event),
        AgentMessage::Sample(sample) => cut.sample(sample),
        AgentMessage::Log { lines, times, .. } => {
            cut.lines(LONG, lines);
            times.truncate(lines.len());
        }
        AgentMessage::Inspected { inspections, .. } => {
            cut.list(LIST, inspections);
            inspections.iter_mut().for_each(|inspection| cut.inspection(inspection));
        }
        AgentMessage::Frame { frame, .. } => {
            let (policy, step) = (&mut frame.policy, &mut frame.step);
            cut.texts(NAME, [&mut policy.algorithm, &mut policy.env_id]);
            cut.list(LIST, &mut policy.bounds);
            cut.list(LIST, &mut step.seen);
            cut.list(LIST, &mut step.action);
            step.thought.iter_mut().for_each(|thought| cut.list(LIST, &mut thought.scores));
        }
        AgentMessage::Found { findings, .. } => {
            cut.list(LONG, &mut findings.hits);
            for hit in &mut findings.hits {
                cut.text(LINE, &mut hit.text);
                cut.lines(0, &mut hit.before);
                cut.lines(0, &mut hit.after);
            }
            cut.text(TEXT, &mut findings.cut);
        }
        AgentMessage::Reached { outcome, .. } => match &mut **outcome {
            ReachOutcome::Environment(found) => {
                cut.list(VARIABLES, &mut found.variables);
                for variable in &mut found.variables {
                    cut.text(NAME, &mut variable.name);
                    variable.value.iter_mut().for_each(|value| cut.text(TEXT, value));
                }
            }
            ReachOutcome::Refused(error) => cut.texts(TEXT, [&mut error.error, &mut error.hint]),
            ReachOutcome::Signalled { .. } | ReachOutcome::Unknown => {}
        },
        AgentMessage::Checkpoint { reply, .. } => match &mut **reply {
            CheckpointReply::Described(content) => {
                cut.text(PATH, &mut content.path);
                cut.list(LONG, &mut content.files);
                for file in &mut content.files {
                    cut.text(PATH, &mut file.name);
                    cut.text(NAME, &mut file.identity);
                    file.sha256.iter_mut().for_each(|hash| cut.text(NAME, hash));
                }
            }
            CheckpointReply::Failed(error) => cut.texts(TEXT, [&mut error.error, &mut error.hint]),
            // Passed on at once.
            CheckpointReply::Piece { .. } | CheckpointReply::Written | CheckpointReply::Unknown => {}
        },
        AgentMessage::Refused(error) => cut.texts(TEXT, [&mut error.error, &mut error.hint]),
        AgentMessage::Bye { reason } => cut.text(TEXT, reason),
        AgentMessage::PortReserved { .. } | AgentMessage::Pong { .. } | AgentMessage::Unknown => {}
    }
    cut.0
}

/// Cuts the texts of a model that comes out of a record as those of messages are; returns how many were cut.
fn cut_model(model: &mut Model) -> u64 {
    let mut cut = Truncator::default();
    cut.run(&mut model.run);
    cut.list(LONG, &mut model.hosts);
    model.hosts.iter_mut().for_each(|host| cut.host(host));
    cut.list(LONG, &mut model.ranks);
    model.ranks.iter_mut().for_each(|rank| cut.rank_model(rank));
    cut.list(LIST, &mut model.verdicts);
    model.verdicts.iter_mut().for_each(|verdict| cut.verdict(verdict));
    for line in &mut model.history {
        cut.text(TEXT, &mut line.text);
        match &mut line.subject {
            Some(EventSubject::Verdict(verdict)) => cut.verdict(verdict),
            Some(EventSubject::Checkpoint(path)) => cut.text(PATH, path),
            Some(EventSubject::Rank(_)) | None => {}
        }
    }
    for checkpoint in &mut model.checkpoints {
        cut.text(PATH, &mut checkpoint.path);
        cut.text(NAME, &mut checkpoint.reason);
    }
    model.evals.iter_mut().for_each(|eval| cut.text(NAME, &mut eval.series));
    model.membership.changes.iter_mut().for_each(|known| cut.membership(&mut known.change));
    cut.list(LONG, &mut model.membership.members);
    if let Some(own) = &mut model.own {
        cut.text(NAME, &mut own.source);
        own.progress.iter_mut().for_each(|progress| cut.progress(&mut progress.shown));
    }
    if let Some(progress) = &mut model.progress {
        cut.list(LONG, &mut progress.per_rank);
        progress.per_rank.iter_mut().for_each(|rank| cut.text(NAME, &mut rank.host));
    }
    cut.0
}

impl Truncator {
    fn text(&mut self, most: usize, text: &mut String) {
        if text.len() > most {
            let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.push('…');
            text.shrink_to_fit();
            self.0 += 1;
        }
    }

    fn texts<const N: usize>(&mut self, most: usize, texts: [&mut String; N]) {
        texts.into_iter().for_each(|text| self.text(most, text));
    }

    fn list<T>(&mut self, most: usize, list: &mut Vec<T>) {
        if list.len() > most {
            list.truncate(most);
            self.0 += 1;
        }
        list.shrink_to_fit();
    }

    fn lines(&mut self, most: usize, lines: &mut Vec<String>) {
        self.list(most, lines);
        lines.iter_mut().for_each(|line| self.text(LINE, line));
    }

    fn names(&mut self, most: usize, names: &mut Vec<String>) {
        self.list(most, names);
        names.iter_mut().for_each(|name| self.text(NAME, name));
    }

    /// Values by name; a name is not cut, since it would then be another one's.
    fn values<T>(&mut self, values: &mut BTreeMap<String, T>) {
        let before = values.len();
        let mut left = LIST;
        values.retain(|name, _| {
            let keeps = left > 0 && name.len() <= NAME;
            left -= usize::from(keeps);
            keeps
        });
        self.0 += (before - values.len()) as u64;
    }

    fn progress(&mut self, progress: &mut ShownProgress) {
        self.texts(NAME, [&mut progress.label, &mut progress.unit]);
    }

    fn run(&mut self, run: &mut RunModel) {
        self.text(TEXT, &mut run.reason);
        self.text(NAME, &mut run.master);
        run.resumed.iter_mut().for_each(|path| self.text(PATH, path));
        run.refused.iter_mut().for_each(|text| self.text(TEXT, text));
        self.names(LONG, &mut run.unverified);
        self.names(LONG, &mut run.differing);
        self.names(LONG, &mut run.restart_awaits);
        self.lines(LIST, &mut run.warnings);
        self.lines(LIST, &mut run.end_warnings);
        run.work.iter_mut().for_each(|work| self.work(work));
        run.results.iter_mut().for_each(|found| self.results(&mut found.results));
        if let Some(failure) = &mut run.first_failure {
            self.text(NAME, &mut failure.host);
            self.text(TEXT, &mut failure.error);
            self.lines(LAST_LINES, &mut failure.last_lines);
        }
    }

    fn host(&mut self, host: &mut HostModel) {
        failure::check_clock(host);
        self.text(NAME, &mut host.name);
        self.text(PATH, &mut host.run_dir);
        host.agent.iter_mut().for_each(|(_, build)| self.text(NAME, build));
        host.excluded.iter_mut().for_each(|reason| self.text(TEXT, reason));
        host.sample.iter_mut().for_each(|sample| self.sample(sample));
        host.stopped.iter_mut().for_each(|left| self.survivors(left));
        self.list(LIST, &mut host.gpus_free);
        host.holds.iter_mut().for_each(|names| self.names(LIST, names));
        host.machine.ahead.iter_mut().for_each(|record| self.record(&mut record.event));
    }

    fn rank_model(&mut self, rank: &mut RankModel) {
        self.texts(NAME, [&mut rank.host, &mut rank.device]);
        rank.sample.iter_mut().for_each(|sample| self.rank(sample));
        rank.error.iter_mut().for_each(|(error, hint)| self.texts(TEXT, [error, hint]));
        rank.exception.iter_mut().for_each(|exception| self.exception(exception));
        if let RankLife::Exited(exit) = &mut rank.life {
            self.exit(exit);
        }
        rank.log.lines.iter_mut().for_each(|line| self.text(LINE, &mut line.text));
        if let Some(inspection) = &mut rank.inspection {
            self.evidence(&mut inspection.side);
            self.lines(LIST, &mut inspection.notes);
        }
    }

    fn verdict(&mut self, verdict: &mut VerdictReport) {
        self.text(TEXT, &mut verdict.reason);
        verdict.host.iter_mut().for_each(|host| self.text(NAME, host));
        let Card { culprit, waiter, opposite, facts, observations, others, ruled_out, actions } =
            &mut *verdict.card;
        culprit.iter_mut().chain(waiter).chain(opposite).for_each(|side| self.evidence(side));
        [facts, observations, ruled_out].into_iter().for_each(|lines| self.lines(LIST, lines));
        self.list(LIST, others);
        others.iter_mut().for_each(|group| self.text(TEXT, &mut group.text));
        self.list(LIST, actions);
        actions.iter_mut().for_each(|advice| self.texts(TEXT, [&mut advice.text, &mut advice.command]));
    }

    fn evidence(&mut self, side: &mut RankEvidence) {
        self.texts(NAME, [&mut side.host, &mut side.phase, &mut side.activity, &mut side.amount]);
        self.texts(TEXT, [&mut side.os, &mut side.blocked_on, &mut side.at, &mut side.last_line]);
        self.lines(LIST, &mut side.stack);
        self.lines(LIST, &mut side.children);
        side.call.iter_mut().for_each(|call| self.call(&mut call.call));
    }

    fn survivors(&mut self, survivors: &mut Vec<Survivor>) {
        self.list(LIST, survivors);
        survivors.iter_mut().for_each(|left| self.text(NAME, &mut left.command));
    }

    fn exception(&mut self, exception: &mut Exception) {
        let Exception {
            class,
            bases,
            message,
            at,
            thread,
            cause,
            child,
            errno: _,
            failure: _,
            survivable: _,
        } = exception;
        self.texts(NAME, [class, thread]);
        self.names(LAST_LINES, bases);
        self.texts(TEXT, [message, at, cause]);
        if let Some(child) = child {
            self.text(NAME, &mut child.name);
            self.exit(&mut child.exit);
        }
    }

    fn results(&mut self, results: &mut RunResults) {
        self.text(PATH, &mut results.folder);
        self.text(NAME, &mut results.mark);
        self.list(LAST_LINES, &mut results.names);
        results.names.iter_mut().for_each(|name| self.text(PATH, name));
        self.names(LAST_LINES, &mut results.shared_with);
    }

    fn work(&mut self, work: &mut Work) {
        match work {
            Work::Saved { path, .. } | Work::Lost { path, .. } => self.text(PATH, path),
            Work::NeverSaved | Work::Unknown => {}
        }
    }

    fn exit(&mut self, exit: &mut Exit) {
        match exit {
            Exit::NotStarted { error } => self.text(TEXT, error),
            Exit::Code { .. } | Exit::Signal { .. } => {}
        }
    }

    fn record(&mut self, event: &mut RecordEvent) {
        match event {
            RecordEvent::RankExited { exit, last_lines, .. } => {
                self.exit(exit);
                self.lines(LAST_LINES, last_lines);
            }
            RecordEvent::StopOrdered { by, .. } => self.text(NAME, by),
            RecordEvent::Stopped { survivors, gpus_free, .. } => {
                self.survivors(survivors);
                self.list(LIST, gpus_free);
            }
            RecordEvent::Ended { ending } => {
                self.text(TEXT, &mut ending.reason);
                ending.first_failure.iter_mut().for_each(|text| self.text(TEXT, text));
                ending.work.iter_mut().for_each(|work| self.work(work));
            }
            RecordEvent::CheckpointFiles { files, .. } => {
                self.list(LAST_LINES, files);
                files.iter_mut().for_each(|file| self.text(PATH, &mut file.path));
            }
            RecordEvent::CheckpointUnread { path } => self.text(PATH, path),
            RecordEvent::Results { results } => self.results(results),
            RecordEvent::Rank { event, .. } => self.event(event),
            RecordEvent::Metrics { source, values, not_finite, spread, counter, progress, .. } => {
                self.text(NAME, source);
                counter.iter_mut().for_each(|counter| self.text(NAME, &mut counter.unit));
                progress.iter_mut().for_each(|progress| self.progress(progress));
                self.values(values);
                self.values(not_finite);
                self.values(spread);
            }
            RecordEvent::Notice { text } => self.text(TEXT, text),
            RecordEvent::Launched { .. }
            | RecordEvent::RankSpawned { .. }
            | RecordEvent::Signalled { .. }
            | RecordEvent::Omitted { .. }
            | RecordEvent::Unknown => {}
        }
    }

    fn event(&mut self, event: &mut RankEvent) {
        match event {
            RankEvent::Joined { backend, device, .. } => self.texts(NAME, [backend, device]),
            RankEvent::Scalars { values, not_finite, .. } => {
                self.values(values);
                self.values(not_finite);
            }
            RankEvent::Checkpoint { path, reason, .. } => {
                self.text(PATH, path);
                self.text(NAME, reason);
            }
            // A truncated one is not valid.
            RankEvent::Histogram(LoggedHistogram { name, edges, counts, .. }) => {
                self.text(NAME, name);
                self.list(MOST_BINS + 1, edges);
                self.list(MOST_BINS + 1, counts);
            }
            RankEvent::Image(LoggedImage { name, data, .. }) => {
                self.text(NAME, name);
                self.text(PICTURE_BYTES.div_ceil(3) * 4, data);
            }
            RankEvent::Fingerprint { values, .. } => self.names(LONG, values),
            RankEvent::Eval(evaluation) => self.text(NAME, &mut evaluation.series),
            RankEvent::Error { message, hint, .. } => self.texts(TEXT, [message, hint]),
            RankEvent::Exception(exception) => self.exception(exception),
            RankEvent::InnerRank(inner) => self.texts(NAME, [&mut inner.backend, &mut inner.at]),
            RankEvent::Membership(change) => self.membership(change),
            RankEvent::Hello { .. }
            | RankEvent::Counters(_)
            | RankEvent::Totals(_)
            | RankEvent::Returned
            | RankEvent::Survived
            | RankEvent::Finished { .. }
            | RankEvent::Frame(_)
            | RankEvent::Unknown => {}
        }
    }

    fn membership(&mut self, change: &mut Membership) {
        for ranks in [&mut change.ranks, &mut change.lost, &mut change.joined] {
            self.list(LONG, ranks);
        }
        change.store.iter_mut().for_each(|address| self.text(NAME, address));
    }

    fn sample(&mut self, sample: &mut HostSample) {
        self.list(LONG, &mut sample.ranks);
        sample.ranks.iter_mut().for_each(|rank| self.rank(rank));
        self.list(LIST, &mut sample.inner);
        sample.inner.iter_mut().for_each(|inner| self.rank(&mut inner.sample));
        self.list(LIST, &mut sample.gpus);
        for gpu in &mut sample.gpus {
            self.texts(NAME, [&mut gpu.name, &mut gpu.uuid]);
            self.names(LIST, &mut gpu.throttle);
            self.list(LIST, &mut gpu.processes);
            self.list(LIST, &mut gpu.shares);
            self.list(LIST, &mut gpu.xids);
            self.list(LIST, &mut gpu.instances);
            for instance in &mut gpu.instances {
                self.texts(NAME, [&mut instance.name, &mut instance.uuid]);
                self.list(LIST, &mut instance.processes);
            }
        }
        sample.signals.link.iter_mut().for_each(|link| self.text(NAME, &mut link.name));
    }

    fn rank(&mut self, rank: &mut RankSample) {
        self.text(NAME, &mut rank.wchan);
        self.text(LINE, &mut rank.live);
        let signals = &mut rank.signals;
        self.list(LIST, &mut signals.children);
        self.list(LIST, &mut signals.returns);
        signals.children.iter_mut().for_each(|child| self.text(NAME, &mut child.name));
        signals.cgroup.iter_mut().for_each(|cgroup| self.text(PATH, &mut cgroup.path));
        rank.page.iter_mut().for_each(|page| self.page(page));
    }

    fn page(&mut self, page: &mut PageSample) {
        self.call(&mut page.collective.call);
        self.list(LIST, &mut page.groups);
        page.groups.iter_mut().for_each(|group| self.text(NAME, &mut group.name));
        self.list(LIST, &mut page.iterations);
        self.list(LIST, &mut page.fingerprints);
        self.list(LIST, &mut page.own_ms);
        self.list(LIST, &mut page.recent);
        page.recent.iter_mut().for_each(|recent| self.call(&mut recent.call));
        if let Some(given) = &mut page.group_arguments {
            self.texts(NAME, [&mut given.address, &mut given.backend, &mut given.site]);
            self.list(LIST, &mut given.contradicting);
            given.contradicting.iter_mut().for_each(|name| self.text(NAME, name));
        }
        page.input.iter_mut().for_each(|input| self.text(NAME, &mut input.site));
    }

    fn call(&mut self, call: &mut CollectiveCall) {
        let CollectiveCall { op, tag, group, dtype, site, count: _, bytes: _, root: _ } = call;
        self.texts(NAME, [op, tag, group, dtype]);
        self.text(PATH, site);
    }

    fn inspection(&mut self, inspection: &mut Inspection) {
        let os = &mut inspection.os;
        self.text(TEXT, &mut os.words);
        let words = [
            &mut os.wchan,
            &mut os.syscall,
            &mut inspection.blocked_on,
            &mut inspection.last_line,
            &mut inspection.gpu,
        ];
        words.into_iter().flatten().for_each(|text| self.text(TEXT, text));
        inspection.obstacle.iter_mut().for_each(|obstacle| self.obstacle(obstacle));
        self.list(LIST, &mut inspection.awaits);
        self.list(LIST, &mut inspection.threads);
        for thread in &mut inspection.threads {
            self.text(NAME, &mut thread.name);
            self.list(LIST, &mut thread.frames);
            for Frame { function, file, line: _ } in &mut thread.frames {
                self.text(NAME, function);
                file.iter_mut().for_each(|file| self.text(PATH, file));
            }
        }
        self.list(LIST, &mut inspection.children);
        for child in &mut inspection.children {
            self.text(NAME, &mut child.name);
            child.exit.iter_mut().for_each(|exit| self.exit(exit));
        }
        self.list(LIST, &mut inspection.sockets);
        for socket in &mut inspection.sockets {
            self.texts(NAME, [&mut socket.peer, &mut socket.local, &mut socket.state]);
        }
        inspection.python.iter_mut().for_each(|python| self.python(python));
        self.lines(LIST, &mut inspection.ras);
        self.lines(LIST, &mut inspection.notes);
        self.lines(LIST, &mut inspection.variables);
    }

    fn python(&mut self, python: &mut PythonView) {
        self.texts(NAME, [&mut python.source, &mut python.torch]);
        self.list(LIST, &mut python.groups);
        for group in &mut python.groups {
            self.text(NAME, &mut group.name);
            self.list(LONG, &mut group.ranks);
            self.call(&mut group.call);
        }
        self.list(LIST, &mut python.recent);
        for recent in &mut python.recent {
            self.text(NAME, &mut recent.state);
            self.call(&mut recent.call);
        }
    }

    fn obstacle(&mut self, obstacle: &mut Obstacle) {
        match obstacle {
            Obstacle::FileLock { path, holders } => {
                self.text(PATH, path);
                self.holders(holders);
            }
            Obstacle::Fifo { path, .. } | Obstacle::Listener { at: path } => self.text(PATH, path),
            Obstacle::NameServer { server, name } => self.texts(NAME, [server, name]),
            Obstacle::Connection { peer, owner } => {
                self.text(NAME, peer);
                owner.iter_mut().for_each(|holder| self.holder(holder));
            }
            Obstacle::Pipe { ends, .. } => self.holders(ends),
            Obstacle::Child { process } => self.holder(process),
        }
    }

    fn holders(&mut self, holders: &mut Vec<BlockingProcess>) {
        self.list(LIST, holders);
        holders.iter_mut().for_each(|holder| self.holder(holder));
    }

    fn holder(&mut self, holder: &mut BlockingProcess) {
        self.texts(NAME, [&mut holder.name, &mut holder.does]);
    }
}

/// Drops what no event can have made, and counts it.
pub(crate) fn check(model: &mut Model) {
    let mut lines = last(&mut model.evals, EVALUATIONS);
    lines += last(&mut model.checkpoints, CHECKPOINTS);
    lines += last(&mut model.marks, MARKS);
    lines += last(&mut model.history, HISTORY);
    let series = charts(&mut model.scalars) + charts(&mut model.spreads);
    if !model.lineage.is_sound() {
        model.lineage = Lineage::default();
    }
    let logged = histograms(&mut model.histograms) + model.gallery.check();
    let cut = cut_model(model);
    let drops = &mut model.drops;
    let count = |drops: &mut u64, more: usize| *drops = drops.saturating_add(more as u64);
    count(&mut drops.history, lines);
    count(&mut drops.charts, series);
    count(&mut drops.withheld, logged);
    drops.cut = drops.cut.saturating_add(cut);
}

fn last<T>(all: &mut VecDeque<T>, most: usize) -> usize {
    let more = all.len().saturating_sub(most);
    all.drain(..more);
    more
}

fn charts(all: &mut BTreeMap<String, Series>) -> usize {
    let count = all.len();
    let series = std::mem::take(all).into_iter();
    // The console's own names come on top of those that programs give.
    let is_sound = |(name, series): &(String, Series)| name.len() <= NAME && series.is_sound();
    *all = series.filter(is_sound).take(2 * CHARTS).collect();
    count - all.len()
}

fn histograms(all: &mut BTreeMap<String, HistogramSeries>) -> usize {
    let count = all.len();
    let series = std::mem::take(all).into_iter();
    let is_sound =
        |(name, series): &(String, HistogramSeries)| media::check_name(name).is_ok() && series.is_sound();
    *all = series.filter(is_sound).take(MEDIA_NAMES).collect();
    count - all.len()
}
