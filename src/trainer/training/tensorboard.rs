//! TensorBoard event files of the run; [`rankdeck_proto::tfrecord`] has the record format.
//!
//! One file per generation of the run, in `RUN_DIR/tensorboard`.

use rankdeck_proto::clock::wall_time;
use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// An open event file.
pub(crate) struct EventFile {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventFile {
    /// Creates the folder and a file named as TensorBoard expects it, and writes the version record.
    pub(crate) fn create(folder: &Path) -> io::Result<EventFile> {
        std::fs::create_dir_all(folder)?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let now = wall_time();
        // Two generations may start in the same second with the same process id (containers).
        let name = format!(
            "events.out.tfevents.{}.{host}.{}.{:06}",
            now as u64,
            std::process::id(),
            (now.fract() * 1e6) as u64
        );
        let path = folder.join(name);
        let file = BufWriter::new(File::options().write(true).create_new(true).open(&path)?);
        let mut this = EventFile { file, path };
        let mut version = Vec::new();
        field_bytes(&mut version, 3, b"brain.Event:2");
        this.event(0, &version)?;
        this.flush()?;
        Ok(this)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars for one step.
    pub(crate) fn scalars<'a>(
        &mut self,
        step: u64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, tag.as_bytes());
            varint(&mut entry, 2 << 3 | 5);
            entry.extend((value as f32).to_le_bytes());
            field_bytes(&mut summary, 1, &entry);
        }
        let mut body = Vec::new();
        field_bytes(&mut body, 5, &summary);
        self.event(step, &body)
    }

    /// Writes settings: as a table of texts, and as the hyper-parameters of TensorBoard's plugin
    /// (tensorboard/plugins/hparams/plugin_data.proto).
    pub(crate) fn settings(&mut self, settings: &[(String, Value)]) -> io::Result<()> {
        let mut table = String::from("| key | value |\n|---|---|\n");
        let (mut session, mut hparams) = (Vec::new(), Vec::new());
        for (name, value) in settings {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            table.push_str(&format!("| {name} | {} |\n", text.replace('|', "\\|").replace('\n', " ")));
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, name.as_bytes());
            field_bytes(&mut entry, 2, &hparam(value, &text));
            field_bytes(&mut hparams, 1, &entry);
        }
        field_bytes(&mut session, 3, &hparams);
        let text = plugin_value("settings/text_summary", "text", &[], Some(&table));
        self.event(0, &summary(&text))?;
        let session = plugin_value("_hparams_/session_start_info", "hparams", &session, None);
        self.event(0, &summary(&session))
    }

    /// Hands everything to the kernel.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn event(&mut self, step: u64, body: &[u8]) -> io::Result<()> {
        let mut event = Vec::with_capacity(body.len() + 20);
        varint(&mut event, 1 << 3 | 1);
        event.extend(wall_time().to_le_bytes());
        varint(&mut event, 2 << 3);
        varint(&mut event, step);
        event.extend_from_slice(body);
        self.file.write_all(&frame(&event))
    }
}

/// A `google.protobuf.Value`.
fn hparam(value: &Value, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (value, value.as_f64()) {
        (_, Some(number)) => {
            varint(&mut bytes, 2 << 3 | 1);
            bytes.extend(number.to_le_bytes());
        }
        (Value::Bool(flag), _) => {
            varint(&mut bytes, 4 << 3);
            varint(&mut bytes, u64::from(*flag));
        }
        _ => field_bytes(&mut bytes, 3, text.as_bytes()),
    }
    bytes
}

/// `Event.summary` with one value.
fn summary(value: &[u8]) -> Vec<u8> {
    let (mut summary, mut event) = (Vec::new(), Vec::new());
    field_bytes(&mut summary, 1, value);
    field_bytes(&mut event, 5, &summary);
    event
}

/// `Summary.Value` of a plugin: its tag, its data, and a tensor with a text.
fn plugin_value(tag: &str, plugin: &str, data: &[u8], text: Option<&str>) -> Vec<u8> {
    let (mut value, mut plugin_data, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    field_bytes(&mut plugin_data, 1, plugin.as_bytes());
    field_bytes(&mut plugin_data, 2, data);
    field_bytes(&mut metadata, 1, &plugin_data);
    field_bytes(&mut value, 1, tag.as_bytes());
    if let Some(text) = text {
        const STRING: u64 = 7;
        let (mut tensor, mut shape, mut side) = (Vec::new(), Vec::new(), Vec::new());
        varint(&mut tensor, 1 << 3);
        varint(&mut tensor, STRING);
        varint(&mut side, 1 << 3);
        varint(&mut side, 1);
        field_bytes(&mut shape, 2, &side);
        field_bytes(&mut tensor, 2, &shape);
        field_bytes(&mut tensor, 8, text.as_bytes());
        field_bytes(&mut value, 8, &tensor);
    }
    field_bytes(&mut value, 9, &metadata);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::tfrecord::{Next, next};

    #[test]
    fn frames_hold_their_length_and_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path()).unwrap();
        file.scalars(300, [("charts/SPS", 1.5), ("losses/entropy", -2.0)]).unwrap();
        file.flush().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let mut rest = bytes.as_slice();
        let mut records = Vec::new();
        while let Next::Record(data, taken) = next(rest) {
            records.push(data.to_vec());
            rest = &rest[taken..];
        }
        assert!(rest.is_empty());
        assert_eq!(records.len(), 2);
        let contains = |record: &[u8], text: &[u8]| record.windows(text.len()).any(|window| window == text);
        assert!(contains(&records[0], b"brain.Event:2"));
        assert!(contains(&records[1], b"charts/SPS") && contains(&records[1], &1.5_f32.to_le_bytes()));
        // Field 2, 300 as a varint.
        assert!(contains(&records[1], &[0x10, 0xac, 0x02]));
    }
}
