//! Everything that reads bytes of others, with bytes that are nearly right: no panic, no loop without end,
//! and memory within a bound (rankdeck_testkit::fuzz). Messages and states also with fields that are absurd
//! (`fields`): what is shown of them controls no terminal and runs no script.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests

mod fields;

use rankdeck_core::Core;
use rankdeck_core::event::Event;
use rankdeck_core::model::{EventTone, HistoryLine, Model};
use rankdeck_core::trace;
use rankdeck_core::trace::SegmentHeader;
use rankdeck_kit::decoder::InputDecoder;
use rankdeck_proto::frame::Decoder;
use rankdeck_proto::media::{self, Histogram};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, RankEvent, Record};
use rankdeck_proto::printed::{self, MetricLineParser};
use rankdeck_proto::progress_bar;
use rankdeck_proto::status_page::{StatusPageReader, StatusPageWriter};
use rankdeck_proto::{tfrecord, wandb};
use rankdeck_testkit::fuzz::{Counting, fuzz, fuzz_by};
use rankdeck_tui::report::{self, Sources};
use rankdeck_tui::{Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::meaning::Meanings;
use rankdeck_types::words;
use rankdeck_types::words::controls_terminal;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

/// Lines of a recorded run: a header, then one event each.
fn recorded() -> String {
    std::fs::read_to_string(rankdeck_testkit::repository("tests/fuzz/trace/simulated.jsonl")).unwrap()
}

/// The messages of that run, as their JSON.
fn messages() -> Vec<String> {
    recorded()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|line| line.pointer("/event/agent_said/message").map(ToString::to_string))
        .collect()
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn frames() {
    let mut seeds: Vec<Vec<u8>> = messages().iter().map(|text| framed(text)).collect();
    seeds.push(seeds.concat());
    for order in [
        r#"{"kind":"attach","protocol":1,"build":"x","after_seq":3,"log_tail":9}"#,
        r#"{"kind":"stop","mode":"clean","grace_ms":1000}"#,
        r#"{"kind":"inspect","request":1,"ranks":[0,5]}"#,
        r#"{"kind":"ping","sent_ms":12}"#,
    ] {
        seeds.push(framed(order));
    }
    fuzz("frames", seeds, 64 * MIB, |bytes| {
        let mut decoder = Decoder::default();
        let (one, other) = bytes.split_at(bytes.len() / 2);
        for piece in [one, other] {
            decoder.push(piece);
            while let Ok(Some(frame)) = decoder.next_bytes() {
                let _ = serde_json::from_slice::<AgentMessage>(frame);
                let _ = serde_json::from_slice::<ConsoleMessage>(frame);
            }
        }
    });
}

/// The first events of that run as a segment of a record: its entries, and the log lines that lie apart.
fn segment() -> (Vec<u8>, Vec<u8>) {
    let text = recorded();
    let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let head = lines.next().unwrap();
    let goal = serde_json::from_value(head["goal"].clone()).unwrap();
    let (mut writer, mut bursts) = (trace::SegmentWriter::default(), Vec::new());
    let mut entries = Vec::new();
    let core = Core::new(goal, Vec::new(), Timestamp(0));
    trace::ConsoleSnapshot::of(&core).unwrap().write_to(&mut entries).unwrap();
    for line in lines.take(40) {
        let event = serde_json::from_value(line["event"].clone()).unwrap();
        let at = Timestamp(line["at"].as_u64().unwrap());
        writer.event(at, &event, &mut entries, &mut bursts);
    }
    (entries, bursts)
}

/// The console after all events of that run.
fn recorded_core() -> Core {
    let text = recorded();
    let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let goal = serde_json::from_value(lines.next().unwrap()["goal"].clone()).unwrap();
    let mut core = Core::new(goal, Vec::new(), Timestamp(0));
    for line in lines {
        let event = serde_json::from_value(line["event"].clone()).unwrap();
        let _ = core.handle(Timestamp(line["at"].as_u64().unwrap()), event);
    }
    core
}

/// Read, and played to the reducer.
#[test]
fn traces() {
    let header = SegmentHeader::new(Timestamp(0), 0.0);
    let (entries, bursts) = segment();
    fuzz("trace", vec![entries], 256 * MIB, |bytes| {
        let Ok((mut core, mut reader)) = trace::SegmentReader::open(&header, bytes, Some(&bursts[..])) else {
            return;
        };
        for (at, event) in std::iter::from_fn(|| reader.event()).take(2000) {
            let _ = core.handle(at, event);
        }
    });
}

/// Elements of a report; none of them runs anything, or loads anything from elsewhere.
const ELEMENTS: [&str; 30] = [
    "!doctype",
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "ul",
    "li",
    "table",
    "tr",
    "td",
    "th",
    "pre",
    "div",
    "figure",
    "figcaption",
    "b",
    "img",
    "svg",
    "g",
    "text",
    "rect",
    "path",
    "line",
    "polygon",
    "polyline",
];

/// Checks that a report holds nothing but its own elements, without handlers, links and addresses.
fn check_markup(html: &str) {
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(ELEMENTS.contains(&name.trim_matches('/')), "<{tag}>");
        while let Some((key, value)) = rest.split_once("=\"") {
            let (value, behind) = value.split_once('"').unwrap();
            let key = key.trim().trim_start_matches('/');
            assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "<{tag}>");
            assert!(!key.starts_with("on") && !key.contains("href"), "<{tag}>");
            assert!(key != "src" || value.starts_with("data:image/"), "<{tag}>");
            rest = behind;
        }
        assert!(matches!(rest.trim(), "" | "/" | "html"), "<{tag}>");
    }
}

/// What a reader sees of a model: every page, and both forms of a report.
fn shown(model: &Model, now: Timestamp) {
    let sources = Sources::default();
    let (html, markdown) = (report::html(model, &sources), report::markdown(model, &sources));
    for text in [&html, &markdown] {
        assert!(!text.chars().any(|c| controls_terminal(c) && c != '\n'), "a report controls the terminal");
        let lower = text.to_lowercase();
        assert!(
            !lower.contains("<script") && !lower.contains("<img src=x"),
            "a report holds markup of a run"
        );
    }
    check_markup(&html);
    let mut view = ViewState::default();
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    for key in ['1', '2', '3', '4', '5', '6', '7', 'd', 'i', '?'] {
        let key = crossterm::event::KeyEvent::from(crossterm::event::KeyCode::Char(key));
        let drawn = terminal.draw(|frame| {
            rankdeck_tui::layout(model, &mut view, frame.area());
            rankdeck_tui::view(model, &view, &Theme::dark(), now, frame);
        });
        let cells = &drawn.unwrap().buffer.content;
        let controls = |text: &str| text.chars().any(controls_terminal);
        assert!(!cells.iter().any(|cell| controls(cell.symbol())), "a cell controls the terminal");
        let _ = rankdeck_tui::on_key(model, &mut view, key, now);
    }
}

#[test]
fn fields_of_states() {
    let header = SegmentHeader::new(Timestamp(0), 0.0);
    let (entries, bursts) = segment();
    fuzz_by("state_fields", vec![entries], 512 * MIB, fields::mutate_entries, |bytes| {
        let Ok((mut core, mut reader)) = trace::SegmentReader::open(&header, bytes, Some(&bursts[..])) else {
            return;
        };
        shown(core.model(), Timestamp(1));
        let mut end = Timestamp(1);
        for (at, event) in std::iter::from_fn(|| reader.event()).take(200) {
            let _ = core.handle(at, event);
            end = at;
        }
        let _ = core.handle(end.plus(1000), Event::Ticked);
        shown(core.model(), end.plus(1000));
    });
}

/// One after the other, as agents of a run send them.
#[test]
fn fields_of_messages() {
    let text = recorded();
    let mut lines = text.lines();
    let head: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let seed = lines.collect::<Vec<_>>().join("\n").into_bytes();
    fuzz_by("message_fields", vec![seed], 512 * MIB, fields::mutate_lines, |bytes| {
        let goal = serde_json::from_value(head["goal"].clone()).unwrap();
        let mut core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut now = Timestamp(0);
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(mut line) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
            let Ok(event) = serde_json::from_value::<Event>(line["event"].take()) else { continue };
            now = Timestamp(line["at"].as_u64().unwrap_or(0).clamp(now.0, now.0 + 10_000));
            let _ = core.handle(now, event);
        }
        let _ = core.handle(now.plus(1000), Event::Ticked);
        shown(core.model(), now.plus(1000));
    });
}

#[test]
fn records() {
    let records: Vec<Vec<u8>> = messages()
        .iter()
        .filter(|text| text.contains("\"kind\":\"record\""))
        .map(|text| text.clone().into_bytes())
        .collect();
    assert!(!records.is_empty());
    fuzz("records", records, 16 * MIB, |bytes| {
        if let Ok(record) = serde_json::from_slice::<Record>(bytes) {
            let again = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&again).unwrap(), record);
        }
    });
}

#[test]
fn event_lines() {
    let lines = [
        r#"{"kind":"hello","rank":0,"generation":1}"#,
        r#"{"kind":"joined","world_size":2,"backend":"tcp","device":"cpu"}"#,
        r#"{"kind":"evaluation","value":1.5,"env_step":512}"#,
        r#"{"kind":"error","message":"x","hint":"y","usage":true}"#,
        r#"{"kind":"histogram","name":"w","env_step":5,"edges":[0.0,1.5,2e3],"counts":[3,4.0]}"#,
        r#"{"kind":"image","name":"p","env_step":5,"data":"R0lGODlhBQAEAA=="}"#,
    ];
    fuzz("event_lines", lines.map(|line| line.as_bytes().to_vec()).to_vec(), 16 * MIB, |bytes| {
        for line in bytes.split(|byte| *byte == b'\n') {
            match serde_json::from_slice::<RankEvent>(line) {
                Ok(RankEvent::Histogram(logged)) => {
                    let bins = Histogram { edges: logged.edges, counts: logged.counts };
                    if bins.check().is_ok() {
                        let sum = bins.plus(&Histogram { edges: vec![-1.0, 7.0], counts: vec![2.0] });
                        assert_eq!((sum.check(), sum.mean().is_finite()), (Ok(()), true), "{bins:?}");
                    }
                }
                Ok(RankEvent::Image(logged)) => drop(media::decoded(&logged.data)),
                _ => {}
            }
        }
    });
}

#[test]
fn event_files() {
    let field =
        |into: &mut Vec<u8>, number: u64, content: &[u8]| tfrecord::field_bytes(into, number, content);
    let numbers = |all: &[f64]| all.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let (mut buckets, mut image) = (Vec::new(), Vec::new());
    field(&mut buckets, 6, &numbers(&[0.5, 1.0, 2.0]));
    field(&mut buckets, 7, &numbers(&[3.0, 0.0, 5.0]));
    field(&mut image, 4, b"GIF89a");
    let seed = |number: u64, content: &[u8]| {
        let (mut value, mut summary, mut event) = (Vec::new(), Vec::new(), Vec::new());
        field(&mut value, 1, b"tag");
        field(&mut value, number, content);
        field(&mut summary, 1, &value);
        field(&mut event, 5, &summary);
        event
    };
    fuzz("event_files", vec![seed(5, &buckets), seed(4, &image), tfrecord::frame(b"x")], 16 * MIB, |bytes| {
        let _ = tfrecord::next(bytes);
        for (_, value) in tfrecord::values(bytes).into_iter().flat_map(|(_, values)| values) {
            if let tfrecord::EventValue::Histogram(bins) = value {
                assert_eq!(bins.check(), Ok(()));
            }
        }
    });
}

#[test]
fn run_files() {
    let (mut item, mut deep, mut step) = (Vec::new(), Vec::new(), Vec::new());
    tfrecord::field_bytes(&mut item, 1, b"loss");
    tfrecord::field_bytes(&mut item, 16, b"0.5");
    tfrecord::field_bytes(&mut deep, 2, b"eval");
    tfrecord::field_bytes(&mut deep, 16, b"{\"return\": {\"mean\": 21.5}, \"n\": [1, 2]}");
    tfrecord::varint(&mut step, 1 << 3);
    tfrecord::varint(&mut step, 7);
    let (mut history, mut record) = (Vec::new(), Vec::new());
    for (field, content) in [(1, &item), (1, &deep), (2, &step)] {
        tfrecord::field_bytes(&mut history, field, content);
    }
    tfrecord::field_bytes(&mut record, 2, &history);
    assert_eq!(wandb::row(&record).map(|row| row.values.len()), Some(2));
    let file =
        [&b":W&B\xe1\xbe\0"[..], &[0; 4][..], &7_u16.to_le_bytes()[..], &[1][..], &b"1234567"[..]].concat();
    fuzz("run_files", vec![record, file], 16 * MIB, |bytes| {
        let _ = wandb::row(bytes);
        let mut reader = wandb::RunFileReader::default();
        let _ = reader.read(bytes, |row| assert!(!row.values.is_empty()));
        assert!(reader.at() <= bytes.len() as u64);
    });
}

#[test]
fn printed_values() {
    let seeds = [
        "│ Trial name   ts   │\n│ PPO_1   12000   │\n╰──╯\n\t Train metrics/train/Accuracy: 0.5",
        "step 3 loss: -1.5e-3, acc=0.5. [tensor(0.5, device='cuda:0')] x=np.float64(nan)",
        "{'loss': '5.993', \"n\": {\"v\": [1.5, 2]}, 'epoch': 0.1}",
        "-----\n| rollout/ | |\n|    ep_rew_mean | 21.3 |\n+---+\n| Name | a |\n| Value | 1 |\n┃ a ┃ b ┃\n│ 1 │ 2 │\n└──┘",
        "Epoch 3:  45%|████▌     | 45/100 [00:10<00:12,  4.40it/s, v_num=0, loss=0.1]",
        "Epoch 0/9 ━━━━ 1.5k/2.0M 0:00:10 • 0:00:12 4.40it/s v_num: 0.000\n1,308/100,000 [ 0:00:33 < -:--:-- , 2s/it ]",
        "fps step: 1 fps total: 2 epoch: 3/500 frames: 4,096/8_000\nEval x=1, episode_reward=2 +/- 1",
    ];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec()).to_vec();
    fuzz("printed_values", seeds, 16 * MIB, |bytes| {
        let (text, meanings) = (String::from_utf8_lossy(bytes), Meanings::default());
        let mut reader = MetricLineParser::default();
        for line in text.lines() {
            reader.line(line, &meanings, |reading| assert!(reading.values.len() <= printed::VALUES));
            if let Some(bar) = progress_bar::parse(line) {
                assert_eq!(bar.progress.clone().checked(), bar.progress);
                let _ = (bar.progress.amount(), printed::listed(bar.values, &meanings));
            }
        }
        reader.end(|reading| assert!(!reading.values.is_empty()));
        assert!(printed::object(&text).len() <= printed::OBJECT_VALUES);
    });
}

fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(rankdeck_testkit::repository(folder)).unwrap();
    let mut files: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

#[test]
fn configurations() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let seeds = [files("configs"), files("tests/configs/valid"), files("tests/configs/invalid")].concat();
    fuzz("configurations", seeds, 64 * MIB, |bytes| {
        // Long files are refused by their length; this target is about their content.
        std::fs::write(&file, &bytes[..bytes.len().min(64 << 10)]).unwrap();
        if let Err(found) =
            rankdeck_config::load_experiment(&rankdeck_config::ExperimentSource::File(file.clone()), &[])
        {
            assert!(!found.to_string().is_empty());
        }
    });
}

fn page(file: &Path) -> Vec<u8> {
    let mut writer = StatusPageWriter::create(file, 1, 2).unwrap();
    writer.group("world", 4);
    writer.progress();
    drop(writer);
    std::fs::read(file).unwrap()
}

#[test]
fn status_pages() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rank1.page");
    let seed = page(&file);
    fuzz("status_pages", vec![seed], 4 * MIB, |bytes| {
        // A new file each time: another page may still be mapped.
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, bytes).unwrap();
        if let Ok(reader) = StatusPageReader::open(&file) {
            let _ = reader.view();
        }
    });
}

#[test]
fn terminal_text_and_input() {
    let seeds = [
        "\x1b[1;31mred\x1b(B\x1b[m \x1b]0;title\x07 \x1bP1$r0m\x1b\\ \x1b_Gi=1\x1b\\ \x1b^p\x1b\\ \x1bXs\x1b\\",
        "\u{9b}31m\u{9d}0;t\u{9c}so\u{ad}ft\u{200b}\u{202e}\ttab\r\n10%\r20%",
        "q\x1b[A\x1bOP\x1b[1;5C\x1b[<0;3;5M\x1b[M #%\x1b[200~a\nb\x1b[201~\x1b]11;rgb:1/2/3\x1b\\\x1b[?62;4c\x1bx",
    ];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec()).to_vec();
    fuzz("terminal_text_and_input", seeds, 16 * MIB, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for cleaned in [words::clean(&text), words::clean_output(&text)] {
            assert!(!cleaned.contains(words::controls_terminal), "{text:?}");
            assert_eq!(words::clean(&cleaned), cleaned);
        }
        let mut decoder = InputDecoder::default();
        for piece in bytes.chunks(5) {
            decoder.push(piece);
            while decoder.next_event().is_some() {}
        }
        decoder.settle();
    });
}
