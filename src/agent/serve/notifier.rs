//! Sends notifications while no console is attached, by the webhook and the command that came with the launch.
//!
//! Owner: the agent's loop, on rank 0's host; other hosts get neither address nor command. Invariants:
//! - CALLS-1: address and command are in memory only, and nothing is sent while a console is attached: the
//!   console sends its own.
//! - CALLS-2: at most [`WAITING`] notifications wait; older ones are dropped, counted and reported.

use crate::notify::{EventFilter, LONGEST, Notification, NotificationSender, NotifyEvent};
use crate::supervise::groups::Helpers;
use rankdeck_proto::message::{AwayNotices, Exit, HostSample, RankEvent, RecordEvent};
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::ids::RunId;
use rankdeck_types::words;
use serde_json::json;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Most notifications that wait for the next tick.
const WAITING: usize = 8;

/// The notifications of an agent.
#[derive(Debug)]
pub(crate) struct AgentNotifier {
    run: RunId,
    host: String,
    away: Option<AwayNotices>,
    waiting: VecDeque<Notification>,
    filter: EventFilter,
    has_failed: bool,
    /// The other ranks may continue if one dies.
    shrinks: bool,
    /// One of this host has died.
    has_lost: bool,
    /// Who ordered a stop.
    stopped_by: Option<String>,
    /// Hash of the ranks' progress counters, and when it last changed.
    progress: Option<(u64, Instant)>,
    is_stuck: bool,
    sender: NotificationSender,
}

impl AgentNotifier {
    /// A notifier without a launch. `helpers`: where the processes of commands are noted.
    pub fn new(run: RunId, host: String, helpers: Helpers) -> AgentNotifier {
        AgentNotifier {
            run,
            host,
            away: None,
            waiting: VecDeque::new(),
            filter: EventFilter::default(),
            has_failed: false,
            shrinks: false,
            has_lost: false,
            stopped_by: None,
            progress: None,
            is_stuck: false,
            sender: NotificationSender::for_agent(helpers),
        }
    }

    /// Starts a generation. Without `away`, the settings of the last launch stay. `shrinks`: ranks may outlive others.
    pub fn start_generation(&mut self, away: Option<AwayNotices>, shrinks: bool) {
        (self.shrinks, self.has_lost) = (shrinks, false);
        self.away = away.or(self.away.take());
        (self.has_failed, self.stopped_by, self.progress, self.is_stuck) = (false, None, None, false);
    }

    /// Takes in a recorded event.
    pub fn on_record(&mut self, event: &RecordEvent) {
        if self.away.is_some()
            && let Some(event) = self.event(event)
        {
            self.enqueue(event);
        }
    }

    fn event(&mut self, event: &RecordEvent) -> Option<NotifyEvent> {
        match event {
            RecordEvent::RankExited { rank, exit, last_lines, stopping: false, .. }
                if *exit != (Exit::Code { code: 0 }) && !self.has_failed =>
            {
                let ended = exit.explained("", last_lines);
                let is_death = matches!(exit, Exit::Signal { .. } | Exit::Code { .. });
                if self.shrinks && is_death && *exit != (Exit::Code { code: CANNOT_SHRINK }) {
                    self.has_lost = true;
                    return Some(NotifyEvent::Verdict(format!("lost: rank {rank} on {} {ended}", self.host)));
                }
                self.has_failed = true;
                Some(NotifyEvent::End(format!("failed: rank {rank} on {} {ended}", self.host)))
            }
            RecordEvent::StopOrdered { by, .. } => {
                self.stopped_by.get_or_insert_with(|| by.clone());
                None
            }
            // Where all ranks of this host are lost, the run continues.
            RecordEvent::Stopped { .. } if self.has_failed || self.has_lost => None,
            RecordEvent::Stopped { survivors, .. } => {
                let leftovers = match survivors.len() {
                    0 => String::new(),
                    count => format!("; {} left", words::plural(count, "process")),
                };
                let how = match &self.stopped_by {
                    Some(by) => format!("stopped by {by}"),
                    None => "finished".to_owned(),
                };
                Some(NotifyEvent::End(format!("{how} on {}{leftovers}", self.host)))
            }
            RecordEvent::Rank { event: RankEvent::Eval(eval), .. } => {
                Some(NotifyEvent::Evaluation { return_mean: eval.return_mean, env_step: eval.env_step })
            }
            _ => None,
        }
    }

    fn enqueue(&mut self, event: NotifyEvent) {
        let on = self.away.as_ref().map(|away| away.on.as_slice()).unwrap_or_default();
        let Some(notification) = self.filter.assess(event, on) else { return };
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
            self.sender.count_dropped(1);
        }
        self.waiting.push_back(notification);
    }

    /// Checks that the ranks of this host make progress, by their status pages. One notification after
    /// `within` without any.
    pub fn check_progress(&mut self, sample: &HostSample, now: Instant, within: Duration) {
        let mut hasher = DefaultHasher::new();
        let mut pages = 0;
        for page in sample.ranks.iter().filter_map(|rank| rank.page.as_ref()) {
            pages += 1;
            let collectives = (page.collective.entered, page.collective.left);
            let steps = (page.train_iter, page.updates, page.env_step);
            (collectives, steps, page.phase_progress).hash(&mut hasher);
        }
        let counters = hasher.finish();
        match self.progress {
            Some((before, since)) if before == counters && pages > 0 => {
                if now.duration_since(since) >= within && !std::mem::replace(&mut self.is_stuck, true) {
                    let age = words::duration(now.duration_since(since).as_secs_f64());
                    self.enqueue(NotifyEvent::Verdict(format!(
                        "no rank on {} has made progress for {age}",
                        self.host
                    )));
                }
            }
            _ => (self.progress, self.is_stuck) = (Some((counters, now)), false),
        }
    }

    /// Sends the waiting notifications, or drops them while a console is attached. Returns problems for the
    /// record.
    pub fn send(&mut self, attended: bool) -> Vec<String> {
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(away) = self.away.as_ref().filter(|_| !attended) {
            for notification in waiting {
                let text = words::clip(&notification.text, LONGEST);
                let json = json!({
                    "occasion": notification.occasion.name(),
                    "run": self.run.0,
                    "text": text,
                    "from": self.host,
                });
                self.sender.send(&away.command, &away.webhook, &json.to_string());
            }
        }
        self.sender.problems()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::Occasion;
    use rankdeck_proto::message::{Evaluation, PageSample, RankSample, StopMode};
    use rankdeck_types::ids::Rank;

    fn notifier(on: &[&str]) -> AgentNotifier {
        let mut notifier = AgentNotifier::new(RunId("ppo-1".into()), "gpu-a".into(), Helpers::default());
        let on = on.iter().map(|on| (*on).to_owned()).collect();
        let away = AwayNotices { on, webhook: String::new(), command: vec!["true".into()] };
        notifier.start_generation(Some(away), false);
        notifier
    }

    fn exited(rank: u32, exit: Exit, stopping: bool) -> RecordEvent {
        let last_lines = vec!["out of memory".into()];
        RecordEvent::RankExited {
            rank: Rank(rank),
            pid: 7,
            exit,
            last_lines,
            stopping,
            ago_ms: 0,
            with_agent: false,
        }
    }

    fn stopped() -> RecordEvent {
        RecordEvent::Stopped { survivors: Vec::new(), gpus_free: Vec::new(), took_ms: 3 }
    }

    fn waiting(notifier: &AgentNotifier) -> Vec<(Occasion, String)> {
        notifier.waiting.iter().map(|waiting| (waiting.occasion, waiting.text.clone())).collect()
    }

    #[test]
    fn only_the_first_failure_is_sent() {
        let mut notifier = notifier(&[]);
        let killed = Exit::Signal { signal: libc::SIGKILL, out_of_memory: false };
        notifier.on_record(&exited(3, killed.clone(), false));
        notifier.on_record(&exited(4, killed, false));
        notifier.on_record(&stopped());
        let waiting = waiting(&notifier);
        assert_eq!(waiting.len(), 1);
        let text = &waiting[0].1;
        assert!(
            text.contains("rank 3") && text.contains("gpu-a") && !text.contains("out of memory"),
            "{text}"
        );
    }

    #[test]
    fn end_names_who_stopped_the_run() {
        let mut notifier = notifier(&[]);
        notifier.on_record(&exited(0, Exit::Code { code: 0 }, false));
        notifier.on_record(&stopped());
        assert!(waiting(&notifier)[0].1.starts_with("finished"));
        notifier.start_generation(None, false);
        notifier.waiting.clear();
        notifier.on_record(&RecordEvent::StopOrdered {
            mode: StopMode::Clean,
            by: "lease".into(),
            ends: false,
        });
        notifier.on_record(&exited(0, Exit::Code { code: 1 }, true));
        notifier.on_record(&stopped());
        assert!(waiting(&notifier)[0].1.contains("lease"), "{:?}", waiting(&notifier));
    }

    #[test]
    fn better_evaluation_is_sent_where_best_is_enabled() {
        let eval = |(return_mean, env_step): (f64, u64)| RecordEvent::Rank {
            rank: Rank(0),
            event: RankEvent::Eval(Evaluation { return_mean, env_step, ..Evaluation::default() }),
        };
        let mut best = notifier(&["best"]);
        [1.0, 0.5, f64::NAN, 2.0, 2.0].into_iter().zip(1..).for_each(|one| best.on_record(&eval(one)));
        assert_eq!(waiting(&best).len(), 1);
        let mut other = notifier(&["end"]);
        [1.0, 2.0].into_iter().zip(1..).for_each(|one| other.on_record(&eval(one)));
        assert!(waiting(&other).is_empty());
    }

    #[test]
    fn stuck_ranks_are_sent_once_until_they_progress() {
        let mut notifier = notifier(&[]);
        let (begun, within) = (Instant::now(), Duration::from_secs(600));
        let rank = |env_step| RankSample {
            rank: Rank(0),
            pid: 7,
            state: 'R',
            cpu_percent: 0.0,
            rss: 0,
            children: 0,
            wchan: String::new(),
            gpu: None,
            gpu_memory: None,
            gpu_share: None,
            page: Some(PageSample { env_step, ..PageSample::default() }),
            signals: Default::default(),
            live: String::new(),
        };
        let sample = |env_step| HostSample { ranks: vec![rank(env_step)], ..HostSample::default() };
        let mut at = |seconds, step| {
            notifier.check_progress(&sample(step), begun + Duration::from_secs(seconds), within);
        };
        at(0, 1);
        at(599, 1);
        at(600, 1);
        at(900, 1);
        at(901, 2);
        at(1400, 2);
        at(1501, 2);
        let sent = waiting(&notifier);
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent[0].0 == Occasion::Verdict && sent[0].1.contains(&words::duration(600.0)), "{sent:?}");
        let mut without_pages = super::tests::notifier(&[]);
        for seconds in [0, 9000] {
            let now = begun + Duration::from_secs(seconds);
            without_pages.check_progress(&HostSample::default(), now, within);
        }
        assert!(without_pages.waiting.is_empty(), "progress is unknown");
    }

    #[tokio::test]
    async fn calls_1_nothing_is_sent_while_a_console_is_attached() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sent");
        let script =
            format!("cat > {}.part && mv {}.part {}", file.display(), file.display(), file.display());
        let mut notifier = notifier(&[]);
        notifier.away.as_mut().unwrap().command = vec!["sh".into(), "-c".into(), script];
        notifier.on_record(&stopped());
        assert!(notifier.send(true).is_empty() && notifier.waiting.is_empty());
        notifier.on_record(&stopped());
        assert!(notifier.send(false).is_empty());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !file.exists() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sent: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!((&sent["run"], &sent["from"]), (&json!("ppo-1"), &json!("gpu-a")));
        assert!(!format!("{notifier:?}").contains("part"), "neither command nor address is in any log");
    }

    #[test]
    fn calls_2_notifications_beyond_the_queue_are_counted() {
        let mut notifier = notifier(&["end"]);
        for _ in 0..WAITING + 1 {
            notifier.on_record(&stopped());
        }
        assert_eq!(notifier.waiting.len(), WAITING);
        notifier.away.as_mut().unwrap().command.clear();
        assert_eq!(notifier.send(false).len(), 1);
    }
}
