//! `agent.log`.

use rankdeck_types::words::clean;
use std::io::{self, Write};

/// A line in `agent.log`.
pub(crate) fn say(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "standard error of an agent is its log")]
    let _ = writeln!(io::stderr(), "agent: {}", clean(text));
}
