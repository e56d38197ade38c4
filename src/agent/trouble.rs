//! What fails for a while: told when it begins and when it is over, not each time.

/// Whether something fails.
#[derive(Debug, Default)]
pub struct Trouble {
    failing: bool,
}

impl Trouble {
    /// Something was tried. What there is to tell: `what` and the error, or that it works again.
    pub fn tried(&mut self, what: impl FnOnce() -> String, error: Option<&str>) -> Option<String> {
        if error.is_some() == self.failing {
            return None;
        }
        self.failing = error.is_some();
        Some(match error {
            Some(error) => format!("{}: {error}", what()),
            None => format!("{}: it works again", what()),
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
    fn a_trouble_is_told_when_it_begins_and_when_it_is_over() {
        let mut trouble = Trouble::default();
        let mut tried = |error| trouble.tried(|| "notes".into(), error);
        assert_eq!(tried(None), None);
        assert_eq!(tried(Some("no space")).as_deref(), Some("notes: no space"));
        assert_eq!(tried(Some("no space")), None);
        assert_eq!(tried(None).as_deref(), Some("notes: it works again"));
        assert_eq!(tried(None), None);
    }
}
