//! Lines of a command that goes on, as they come.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

type Hear = Arc<dyn Fn(&str) + Send + Sync>;

/// Who hears each line. It must not block: it is called by the thread that reads.
#[derive(Clone, Default)]
pub struct LineSink(Option<Hear>);

impl LineSink {
    /// Lines go to `hear`.
    pub fn new(hear: impl Fn(&str) + Send + Sync + 'static) -> LineSink {
        LineSink(Some(Arc::new(hear)))
    }

    /// For one command's output.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { sink: self, passed: Cell::new(0) }
    }
}

impl fmt::Debug for LineSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "LineSink" } else { "no LineSink" })
    }
}

impl PartialEq for LineSink {
    fn eq(&self, other: &LineSink) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for LineSink {}

/// What of an output has been passed on.
pub(crate) struct Reader<'a> {
    sink: &'a LineSink,
    passed: Cell<usize>,
}

impl Reader<'_> {
    /// Passes on the whole lines of `all` that were not passed on before; `all` only grows.
    pub fn read(&self, all: &[u8]) {
        let Some(hear) = &self.sink.0 else { return };
        let fresh = all.get(self.passed.get()..).unwrap_or_default();
        for line in fresh.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            hear(String::from_utf8_lossy(line).trim_end());
            self.passed.set(self.passed.get() + line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_line_is_heard_once_and_whole() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let to = heard.clone();
        let sink = LineSink::new(move |line| to.lock().unwrap().push(line.to_owned()));
        let reader = sink.reader();
        for all in ["", "a", "a\nb", "a\nb", "a\nbc\nd", "a\nbc\nd\n"] {
            reader.read(all.as_bytes());
        }
        assert_eq!(*heard.lock().unwrap(), ["a", "bc", "d"]);
    }
}
