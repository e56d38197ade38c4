//! What people get wrong in experiments, hosts files and `--set`: each is refused at its place with what to
//! write.
//!
//! `tests/data/wrong_inputs.txt` has the inputs and what is said of them; `UPDATE_EXPECTED=1` writes it anew.

use crate::support::{Bench, rankdeck};
use rankdeck_testkit::repository;

const EXPERIMENT: &str = "[run]\nname = \"x\"\ntotal_steps = 4096\n[env]\nid = \"CartPole-v1\"\nnum_envs = 8\n\
                          [collect]\nnum_steps = 64\n[learn]\nalgorithm = \"ppo\"\n";
const HOSTS: &str = "[defaults]\ntransport = \"local\"\n[[host]]\nname = \"node0\"\nnproc = 1\n";

/// What `check` says: its errors with places and hints, and its exit code.
fn said(kind: &str, input: &str) -> String {
    let bench = Bench::new();
    let given = |of: &str, or: &str| if kind == of { input.to_owned() } else { or.to_owned() };
    bench.write("experiment.toml", &given("experiment", EXPERIMENT));
    bench.write("hosts.toml", &given("hosts", HOSTS));
    let mut command = rankdeck();
    command.args(["check", "experiment.toml", "--hosts", "hosts.toml"]).current_dir(bench.path());
    if kind == "set" {
        command.args(["--set", input.trim_end()]);
    }
    let output = command.env_remove("WANDB_API_KEY").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).replace(bench.path().to_str().unwrap(), "FOLDER");
    let is_told = |line: &&str| {
        let line = line.trim_start();
        ["error: ", "--> ", "= hint: ", "hint: ", "warning: "].iter().any(|begin| line.starts_with(begin))
    };
    let mut told: Vec<&str> = stderr.lines().filter(is_told).map(str::trim).collect();
    let code = format!("exit code {}", output.status.code().unwrap());
    told.push(&code);
    told.join("\n")
}

#[test]
fn every_wrong_input_is_named_at_its_place_with_what_to_write() {
    let path = repository("tests/data/wrong_inputs.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut written = String::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for block in text.split("#### ").skip(1) {
        let (head, rest) = block.split_once('\n').unwrap();
        let (input, expected) = rest.split_once("---- says\n").unwrap();
        let kind = head.split_once(':').unwrap().0;
        let now = said(kind, input);
        assert!(!now.ends_with("exit code 0") || now.contains("warning: "), "{head} is accepted:\n{now}");
        let place = now.contains("--> ") || now.contains(".toml:") || now.contains("--set");
        assert!(place && now.contains("hint: "), "{head}: no place, or nothing to write:\n{now}");
        if now != expected.trim_end() {
            wrong.push(format!("{head}\n{now}\n"));
        }
        written += &format!("#### {head}\n{input}---- says\n{now}\n");
        count += 1;
    }
    assert!(count >= 66, "{count} inputs");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(path, written).unwrap();
    } else {
        assert!(wrong.is_empty(), "{}\nUPDATE_EXPECTED=1 accepts these", wrong.join("\n"));
    }
}

/// Files as large as may be, of nothing but mistakes: the reader ends, and shows some and counts the others.
#[test]
fn a_file_of_a_hundred_thousand_mistakes_is_read_in_bounded_time_and_told_in_part() {
    use rankdeck_config::{ExperimentSource, HostsSource, load_experiment, load_hosts};
    let folder = tempfile::tempdir().unwrap();
    let times = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<String>();
    let many = |line: fn(usize) -> String| times(20_000, line);
    let files = [
        ("keys", format!("[run]\nname = 'x'\n{}", times(100_000, |n| format!("k{n}=1\n")))),
        ("lines", many(|_| "x y\n".into())),
        ("repeated", format!("[run]\n{}", many(|_| "a=1\n".into()))),
        ("tables", many(|n| format!("[t{n}]\n"))),
        ("one line", format!("a = [{}", "x,".repeat(20_000))),
        ("hosts", many(|_| "[[host]]\n".into())),
        ("names", (0..10_000).map(|n| format!("[[host]]\nname='{n}'\n")).collect()),
        (
            "values",
            format!(
                "[[host]]\nname='a'\nenv={{{}}}\n",
                (0..20_000).map(|n| format!("A{n}=1,")).collect::<String>()
            ),
        ),
    ];
    for (name, text) in files {
        assert!(text.len() <= 1 << 20, "{name}: a larger one is refused for its size: {}", text.len());
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let (done, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let experiment = load_experiment(&ExperimentSource::File(file.clone()), &[]).err();
            let hosts = load_hosts(&HostsSource::File(file)).err();
            let _ = done.send([experiment, hosts]);
        });
        let found = found.recv_timeout(std::time::Duration::from_secs(60));
        let found = found.unwrap_or_else(|_| panic!("{name} is read for more than a minute"));
        for mistakes in found {
            let mistakes = mistakes.unwrap_or_else(|| panic!("{name} has no mistakes"));
            assert!((1..=100).contains(&mistakes.0.len()), "{name}: {}", mistakes.0.len());
            let shown = mistakes.to_string();
            assert!(shown.len() < 1 << 20, "{name}: {} bytes", shown.len());
            let all = mistakes.0.len() + mistakes.more();
            assert!(mistakes.more() == 0 || shown.contains("more mistakes"), "{name}: {all}");
        }
    }
}
