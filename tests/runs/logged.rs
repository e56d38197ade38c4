//! Histograms and pictures of programs: by the client, from TensorBoard files of real writers, and wrong
//! ones; from the program to `--json`, the report and the screen.

use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Bench, Console, rankdeck};
use rankdeck_testkit::python;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

/// An experiment of one rank that runs a script.
fn experiment(bench: &Bench, python: &str, script: &str, more: &str) -> PathBuf {
    let program = bench.write("train.py", script);
    bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"logged\"\n[launch]\ncommand = [{python:?}, {program:?}]\n{more}"),
    )
}

/// Runs it to its end with `--json`.
fn run(bench: &Bench, experiment: &std::path::Path) -> Console {
    let hosts = bench.local_hosts(1, 1);
    let args = ["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()];
    let mut console = Console::start(&args);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    console
}

fn named(console: &Console, kind: &str, name: &str) -> Vec<Value> {
    console.all(kind).into_iter().filter(|line| line["name"] == name).collect()
}

const CLIENT: &str = "import rankdeck, time
for i in range(1, 7):
    rankdeck.report(env_step=i * 100, returns=float(i))
    rankdeck.histogram('actions', [0] * i + [1] * 3)
    rankdeck.image('seen', [[10 * i, 255], [0, 128]])
    time.sleep(0.1)
";

#[test]
fn client_media_is_in_json_and_report() {
    let bench = Bench::new();
    let mut console = run(&bench, &experiment(&bench, "python3", CLIENT, ""));
    let actions = named(&console, "histogram", "actions");
    assert_eq!(actions.len(), 6, "{}", console.transcript());
    let last = &actions[5];
    assert_eq!((&last["env_step"], &last["counts"]), (&600.into(), &serde_json::json!([6.0, 3.0])));
    assert_eq!((&last["count"], &last["min"], &last["max"]), (&9.0.into(), &(-0.5).into(), &1.5.into()));
    let seen = named(&console, "image", "seen");
    assert!((4..=6).contains(&seen.len()), "{seen:?}");
    assert_eq!((&seen[0]["width"], &seen[0]["format"]), (&2.into(), &"png".into()));
    let name = console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned();
    let page = bench.path().join("report.html");
    let words = ["report", &name, "--output", page.to_str().unwrap()];
    let output = rankdeck().args(words).current_dir(bench.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<figcaption>actions</figcaption><svg") && page.contains("data:image/png;base64,"));
    assert!(page.contains("600"), "{page}");
}

#[test]
fn screen_shows_logged_media_after_the_end() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let file = experiment(&bench, "python3", &CLIENT.replace("range(1, 7)", "range(1, 30)"), "");
    let words = ["run", file.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()];
    // A terminal that draws pictures by itself, and one that does not.
    for (envs, drawn) in [(&[][..], "▀"), (&[("KITTY_WINDOW_ID", "1"), ("TMUX", "")][..], "")] {
        let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &words, envs);
        // The key is disabled until there is a first picture.
        let deadline = Instant::now() + Duration::from_secs(120);
        while !terminal.text().contains("2 x 2") {
            assert!(Instant::now() < deadline, "no picture; the screen shows:\n{}", terminal.text());
            terminal.send("i");
            let asked = Instant::now();
            terminal.until("a picture", |terminal| {
                terminal.text().contains("2 x 2") || asked.elapsed() > Duration::from_secs(1)
            });
        }
        terminal.until("the picture", |terminal| {
            let text = terminal.text();
            text.contains("2 x 2") && text.contains(drawn)
        });
        if drawn.is_empty() {
            let sent = || terminal.written().matches("\x1b_Ga=T,f=24,s=2,v=2").count();
            terminal.until("the picture in kitty's form", |_| sent() > 0);
            terminal.until("newer ones", |_| sent() > 1);
        }
        terminal.send("\x1b");
        terminal.until("the page below", |terminal| !terminal.text().contains("2 x 2"));
        terminal.send(":chart actions\r");
        terminal.until("the chart", |terminal| {
            let text = terminal.text();
            text.contains("actions") && !text.contains(":chart")
        });
        terminal.send("[");
        terminal.until_shows(texts::SUCCEEDED);
        terminal.send("i");
        // Four a second are made: the newest is one of the script's last.
        terminal.until("the newest", |terminal| {
            let text = terminal.text();
            text.contains("2 x 2") && text.contains("step 2.")
        });
        terminal.send("\x1b");
        terminal.until("the end below", |terminal| !terminal.text().contains("2 x 2"));
        terminal.send("q");
        assert_eq!(terminal.wait(), 0);
        terminal.assert_restored();
    }
}

/// What a SummaryWriter of PyTorch's writes, a file of TensorFlow's form, and a picture that is too large.
const WRITER: &str = "import numpy as np, time, torch
from torch.utils.tensorboard import SummaryWriter
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util import tensor_util
writer = SummaryWriter('runs/a')
for step in range(0, 50, 10):
    writer.add_scalar('losses/value', 1.0 / (step + 1), step)
    writer.add_histogram('weights/first', torch.randn(1000), step)
    writer.add_histogram('weights/numpy', np.linspace(0, 1, 500), step, bins='auto')
    writer.add_image('seen', np.full((3, 20, 30), 0.5), step)
def plugin(tag, name, tensor, step):
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=name))
    value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor_util.make_tensor_proto(tensor))
    writer._get_file_writer().add_summary(Summary(value=[value]), step)
plugin('tf/histogram', 'histograms', np.array([[0.0, 1.0, 5.0], [1.0, 2.0, 7.0]]), 40)
import io
from PIL import Image
png = io.BytesIO()
Image.new('RGB', (7, 5)).save(png, 'PNG')
plugin('tf/image', 'images', np.array([b'7', b'5', png.getvalue()]), 40)
writer.add_image('noise', np.random.randint(0, 255, (3, 900, 900), dtype='uint8'), 40)
frames = [Image.new('P', (12, 9), colour) for colour in (0, 200)]
gif = io.BytesIO()
frames[0].save(gif, 'GIF', save_all=True, append_images=frames[1:])
video = Summary.Image(height=9, width=12, colorspace=3, encoded_image_string=gif.getvalue())
writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag='video', image=video)]), 40)
writer.add_scalar('losses/value', 0.5, 60)
writer.close()
";

#[test]
fn summary_writer_media_flushed_at_exit_is_collected() {
    let Some(python) = python("torch, tensorboard, PIL, numpy") else { return };
    let bench = Bench::new();
    let console = run(&bench, &experiment(&bench, &python, WRITER, "[metrics]\ntensorboard = \"runs\"\n"));
    let first = named(&console, "histogram", "weights/first");
    assert_eq!(first.iter().map(|line| line["env_step"].clone()).collect::<Vec<_>>(), [0, 10, 20, 30, 40]);
    for line in first.iter().chain(&named(&console, "histogram", "weights/numpy")) {
        let expected = if line["name"] == "weights/first" { 1000.0 } else { 500.0 };
        assert!((line["count"].as_f64().unwrap() - expected).abs() < 1e-6, "{line}");
        let (low, high) = (line["min"].as_f64().unwrap(), line["max"].as_f64().unwrap());
        assert!(low > -6.0 && high < 6.0 && line["counts"].as_array().unwrap().len() <= 64, "{line}");
    }
    let plugin = &named(&console, "histogram", "tf/histogram")[0];
    assert_eq!((&plugin["counts"], &plugin["max"]), (&serde_json::json!([5.0, 7.0]), &2.0.into()));
    let pictures: Vec<(String, u64, u64)> = console
        .all("image")
        .iter()
        .map(|line| {
            let side = |name: &str| line[name].as_u64().unwrap();
            (line["name"].as_str().unwrap().to_owned(), side("width"), side("height"))
        })
        .collect();
    for expected in [("seen", 30, 20), ("tf/image", 7, 5), ("video", 12, 9)] {
        assert!(
            pictures.contains(&(expected.0.to_owned(), expected.1, expected.2)),
            "{expected:?}: {pictures:?}"
        );
    }
    assert!(!pictures.iter().any(|one| one.0 == "noise"));
    let notices: Vec<String> = console.all("notice").iter().map(|line| line["text"].to_string()).collect();
    assert!(
        notices.iter().any(|text| text.contains("metrics.tensorboard") || text.contains("record")),
        "{notices:?}"
    );
    let values = console.all("metrics");
    assert_eq!(values.last().unwrap()["env_step"], 60, "what follows a long record is read, too");
}

#[test]
fn invalid_media_is_reported_and_the_run_continues() {
    let script = "import json, os, socket, base64, time
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ['RANKDECK_EVENTS'])
def send(kind, **fields):
    agent.sendall((json.dumps({'kind': kind, **fields}) + '\\n').encode())
send('hello', rank=0, generation=0)
send('histogram', name='h', edges=[1, 0], counts=[1])
send('histogram', name='h', edges=[0, 1], counts=['x'])
send('image', name='p', data='no base64')
send('image', name='p', data=base64.b64encode(b'text').decode())
send('image', name='p', data='A' * 500000)
for i in range(300):
    send('histogram', name='many', env_step=i, edges=[0, 1], counts=[i + 1])
send('histogram', name='right', env_step=1, edges=[0, 1], counts=[1])
time.sleep(1.0)
send('finished', reason='budget')
";
    let bench = Bench::new();
    let console = run(&bench, &experiment(&bench, "python3", script, ""));
    let notices: Vec<String> = console.all("notice").iter().map(|line| line["text"].to_string()).collect();
    for (kind, count) in [("`histogram`: ", 2), ("`image`: ", 2)] {
        let refused = notices.iter().filter(|text| text.contains(kind)).count();
        assert!(refused >= count, "{kind}: {notices:?}");
    }
    assert!(notices.len() >= 5, "the long line, too: {notices:?}");
    assert_eq!(named(&console, "histogram", "right").len(), 1);
    let many = named(&console, "histogram", "many").len();
    assert!((12..40).contains(&many), "{many}");
}
