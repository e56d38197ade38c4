//! Writes what operations give to a file, for `rankdeck diff` (`--trace`): a line of JSON for each operation of the
//! traced iterations, a file per rank.

use crate::error::TrainerError;
use crate::support::events::warn;
use rankdeck_kernel::trace::{self, Operation, Stage};
use rankdeck_proto::execution::{MOST_OPERATIONS, TracedOperation, TracedStage};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;

struct Written {
    file: BufWriter<File>,
    left: u64,
    result: io::Result<()>,
}

/// The file of a rank.
pub(crate) struct TraceFile {
    path: PathBuf,
    iterations: RangeInclusive<u64>,
    written: Rc<RefCell<Written>>,
}

impl TraceFile {
    /// Creates `PATH.RANK`, for the operations of these iterations, counted from 1.
    pub(crate) fn create(
        path: &Path,
        rank: u32,
        iterations: RangeInclusive<u64>,
    ) -> Result<TraceFile, TrainerError> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{rank}"));
        let path = PathBuf::from(name);
        let file = File::create(&path).map_err(|error| failed(&path, &error))?;
        let written = Written { file: BufWriter::new(file), left: MOST_OPERATIONS, result: Ok(()) };
        Ok(TraceFile { path, iterations, written: Rc::new(RefCell::new(written)) })
    }

    /// The iteration after which nothing is left to trace.
    pub(crate) fn last(&self) -> u64 {
        *self.iterations.end()
    }

    /// Before iteration `train_iter`, counted from 1.
    pub(crate) fn start(&self, train_iter: u64) {
        if self.iterations.contains(&train_iter) {
            let written = Rc::clone(&self.written);
            trace::start(train_iter, Box::new(move |operation| written.borrow_mut().write(operation)));
        }
    }

    /// After an iteration.
    pub(crate) fn finish(&self) -> Result<(), TrainerError> {
        trace::finish();
        let mut written = self.written.borrow_mut();
        let result = std::mem::replace(&mut written.result, Ok(())).and_then(|()| written.file.flush());
        result.map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> TrainerError {
    let text = format!("cannot write the operations to {}: {error}", path.display());
    TrainerError::failure(text, "check free disk space and permissions").with_io_kind(error)
}

impl Written {
    fn write(&mut self, operation: &Operation<'_>) {
        if self.result.is_err() || self.left == 0 {
            return;
        }
        self.left -= 1;
        if self.left == 0 {
            warn(&format!("operations beyond {MOST_OPERATIONS} are not traced"));
        }
        self.result = serde_json::to_writer(&mut self.file, &line(operation))
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
    }
}

fn line(operation: &Operation<'_>) -> TracedOperation {
    let Operation { place, step, name, len, hash, norm } = *operation;
    TracedOperation {
        train_iter: place.iteration,
        update: place.update,
        stage: match place.stage {
            Stage::Start => TracedStage::Start,
            Stage::Rollout => TracedStage::Rollout,
            Stage::Advantages => TracedStage::Advantages,
            Stage::Pass => TracedStage::Pass,
            Stage::Step => TracedStage::Step,
        },
        unit: place.unit,
        step,
        operation: name.to_owned(),
        len: len as u64,
        hash: format!("{hash:016x}"),
        norm: norm.is_finite().then_some(norm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traced_iterations_are_written_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = TraceFile::create(&folder.path().join("trace"), 3, 2..=3).unwrap();
        for iteration in 1..=4 {
            file.start(iteration);
            trace::enter(Stage::Pass, 1);
            trace::record(|| "product".into(), &[iteration as f32]);
            trace::leave();
            file.finish().unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join("trace.3")).unwrap();
        let lines: Vec<TracedOperation> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.train_iter).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((lines[0].unit, lines[0].norm, lines[0].stage), (1, Some(2.0), TracedStage::Pass));
        assert_ne!(lines[0].hash, lines[1].hash);
    }
}
