//! Reports a repeating failure once when it starts and once when it is resolved.

/// Whether something fails.
#[derive(Debug, Default)]
pub(crate) struct TransientFailure {
    failing: bool,
}

impl TransientFailure {
    /// Takes in an attempt. Returns a report when its outcome changes: `what` and the error, or that it is resolved.
    pub fn tried(&mut self, what: impl FnOnce() -> String, error: Option<&str>) -> Option<String> {
        if error.is_some() == self.failing {
            return None;
        }
        self.failing = error.is_some();
        Some(match error {
            Some(error) => format!("{}: {error}", what()),
            None => format!("{}: resolved", what()),
        })
    }

    /// The last try failed.
    pub fn is_failing(&self) -> bool {
        self.failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_reported_at_its_start_and_at_its_end() {
        let mut failure = TransientFailure::default();
        let mut tried = |error| failure.tried(|| "notes".into(), error);
        assert_eq!(tried(None), None);
        assert_eq!(tried(Some("no space")).as_deref(), Some("notes: no space"));
        assert_eq!(tried(Some("no space")), None);
        assert_eq!(tried(None).as_deref(), Some("notes: resolved"));
        assert_eq!(tried(None), None);
    }
}
