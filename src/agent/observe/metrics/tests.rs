use super::*;
use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
use std::io::Write;

#[test]
fn values_that_are_not_numbers_are_told_by_name_and_number() {
    let mut gathered = PendingValues::default();
    for (name, value) in
        [("loss", 0.5), ("loss", f64::NAN), ("kl", f64::INFINITY), ("kl", 0.25), ("loss", f64::NAN)]
    {
        gathered.add(name, value);
    }
    let Some(RecordEvent::Metrics { values, not_finite, .. }) = gathered.take("stdout", Rank(0)) else {
        panic!("no record")
    };
    assert_eq!(values, BTreeMap::from([("kl".into(), 0.25)]), "a number is the newest of kl only");
    assert_eq!(not_finite, BTreeMap::from([("loss".into(), 2), ("kl".into(), 1)]));
}

#[test]
fn a_folder_without_event_files_is_told_once_and_one_with_files_never() {
    let folder = tempfile::tempdir().unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    let start = |path: PathBuf, sender: std::sync::mpsc::Sender<RecordEvent>| {
        Follower::start(path, Gate::default(), Duration::ZERO, move |event| drop(sender.send(event))).unwrap()
    };
    let follower = start(folder.path().join("runs"), sender.clone());
    let Ok(RecordEvent::Notice { text }) = told.recv_timeout(Duration::from_secs(60)) else { panic!() };
    assert!(text.contains("there is no folder") && text.contains("/runs"), "{text}");
    drop(follower);
    std::fs::write(folder.path().join("events.out.tfevents.1"), "").unwrap();
    let mut files = Files::new(folder.path().into(), Gate::default(), std::time::SystemTime::UNIX_EPOCH);
    files.look();
    assert_eq!(files.complaint(), None);
}

fn told(record: Option<RecordEvent>) -> (Option<u64>, Vec<(String, f64)>, u64) {
    match record {
        Some(RecordEvent::Metrics { env_step, values, skipped, .. }) => {
            (env_step, values.into_iter().collect(), skipped)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn metrics_1_lines_become_one_record_a_second() {
    let metrics = Metrics {
        presets: vec!["cleanrl".into()],
        stdout: vec!["loss (?P<loss>[-0-9.]+)".into()],
        tensorboard: None,
    };
    let mut picker = Picker::new(&metrics).unwrap();
    for line in [
        "global_step=100, episodic_return=10.0",
        "noise",
        "global_step=180, episodic_return=[30.]",
        "SPS: 512",
        "loss 0.5",
        "loss 0.25",
        "loss .-.",
    ] {
        picker.line(line);
    }
    let now = Instant::now();
    let (step, values, skipped) = told(picker.due(now, false));
    assert_eq!(step, Some(180));
    let expected = [("charts/SPS", 512.0), ("charts/episodic_return", 20.0), ("loss", 0.25)];
    assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(skipped, 2, "one loss was overtaken, one is no number");
    for loss in ["0.5", "1000000", "0.25"] {
        picker.line(&format!("loss {loss}"));
    }
    let Some(RecordEvent::Metrics { values, spread, .. }) = picker.due(now, true) else { panic!() };
    assert_eq!(values["loss"], 0.25, "the last is told");
    assert_eq!(spread, BTreeMap::from([("loss".into(), (0.25, 1e6))]), "and the spike is not lost");
    picker.line("SPS: 600");
    assert_eq!(picker.due(now + Duration::from_millis(900), false), None);
    let (step, values, _) = told(picker.due(now + Duration::from_millis(1100), false));
    assert_eq!((step, values[0].1), (Some(180), 600.0), "the step is the last one known");
    assert_eq!(picker.due(now + Duration::from_secs(9), true), None, "nothing is told twice");
}

#[test]
fn a_line_gives_all_of_its_values_once() {
    let patterns = ["step (?P<env_step>[0-9]+)", "loss (?P<loss>[-0-9.]+)", "return (?P<return>[0-9.]+)"];
    let metrics = Metrics {
        stdout: patterns.iter().chain(&["(?P<loss>[0-9]+)"]).map(|text| (*text).to_owned()).collect(),
        ..Metrics::default()
    };
    let mut picker = Picker::new(&metrics).unwrap();
    picker.line("step 30 loss 0.5 return 7");
    let (step, values, skipped) = told(picker.due(Instant::now(), false));
    assert_eq!((step, skipped), (Some(30), 0));
    let expected = [("charts/episodic_return", 7.0), ("loss", 0.5)];
    assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
}

fn event(step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut entry = Vec::new();
    field_bytes(&mut entry, 1, tag.as_bytes());
    varint(&mut entry, 2 << 3 | 5);
    entry.extend(value.to_le_bytes());
    let (mut summary, mut bytes) = (Vec::new(), Vec::new());
    field_bytes(&mut summary, 1, &entry);
    varint(&mut bytes, 2 << 3);
    varint(&mut bytes, step);
    field_bytes(&mut bytes, 5, &summary);
    frame(&bytes)
}

#[test]
fn event_files_are_followed_as_they_grow() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("run/a");
    std::fs::create_dir_all(&below).unwrap();
    let mut file = File::create(below.join("events.out.tfevents.1.h")).unwrap();
    File::create(below.join("events.out.tfevents.2.h")).unwrap().write_all(b"this is none at all").unwrap();
    let mut files = Files::new(folder.path().into(), Gate::default(), std::time::SystemTime::UNIX_EPOCH);
    file.write_all(&event(5, "losses/value", 0.5)).unwrap();
    let second = event(7, "charts/SPS", 100.0);
    file.write_all(&second[..9]).unwrap();
    let mut records = files.look();
    assert_eq!(told(records.pop()), (Some(5), vec![("losses/value".into(), 0.5)], 0));
    assert!(records.is_empty() && files.look().is_empty(), "the second record is not whole");
    file.write_all(&second[9..]).unwrap();
    assert_eq!(told(files.look().pop()), (Some(7), vec![("charts/SPS".into(), 100.0)], 0));
    for step in 0..1000 {
        let value = if step == 333 { -9e6 } else { step as f32 };
        file.write_all(&event(step, "x", value)).unwrap();
    }
    let burst = files.look();
    let low = |record: &RecordEvent| match record {
        RecordEvent::Metrics { spread, .. } => spread["x"].0,
        other => panic!("{other:?}"),
    };
    assert_eq!(burst.iter().map(low).fold(0.0, f64::min), -9e6, "a spike between the steps that are told");
    assert!(burst.len() <= STEPS, "{}", burst.len());
    let skipped: u64 = burst.iter().map(|record| told(Some(record.clone())).2).sum();
    assert_eq!(skipped as usize + burst.len(), 1000, "every value is told or counted");
    let old = Files::new(
        folder.path().into(),
        Gate::default(),
        std::time::SystemTime::now() + Duration::from_secs(60),
    )
    .look();
    assert!(old.is_empty(), "files of earlier runs are left alone");
}
