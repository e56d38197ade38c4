//! How long the agent waits for consoles and between samples.

use std::time::Duration;

/// How long the agent waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// An idle agent without a console ends after this.
    pub linger: Duration,
    /// Neighbours of a failed rank are stopped after this when no console gives orders.
    pub unattended: Duration,
    /// A console that used to ping and is silent for this long does not count as attached.
    pub silent: Duration,
    /// A notification is sent when no rank has made progress for this long and no console is attached.
    pub stuck: Duration,
    /// Between two samples of the host and its ranks.
    pub sample: Duration,
    /// The same while every rank's status page changes; `None`: by the world size.
    pub calm_sample: Option<Duration>,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            linger: Duration::from_secs(60),
            unattended: Duration::from_secs(15),
            silent: Duration::from_secs(15),
            stuck: Duration::from_secs(600),
            sample: Duration::from_millis(250),
            calm_sample: None,
        }
    }
}

impl Timing {
    /// The defaults, changed by `RANKDECK_AGENT_TIMING="linger=2,unattended=1"` (seconds), which is there for
    /// tests.
    pub fn from_environment() -> Timing {
        let mut timing = Timing::default();
        let text = std::env::var("RANKDECK_AGENT_TIMING").unwrap_or_default();
        for (name, value) in text.split(',').filter_map(|pair| pair.split_once('=')) {
            let Some(time) = value.trim().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok())
            else {
                continue;
            };
            match name.trim() {
                "linger" => timing.linger = time,
                "unattended" => timing.unattended = time,
                "silent" => timing.silent = time,
                "stuck" => timing.stuck = time,
                "sample" => (timing.sample, timing.calm_sample) = (time, Some(time)),
                _ => {}
            }
        }
        timing
    }
}
