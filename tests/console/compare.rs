//! `rankdeck compare` with recorded runs, and the compare page of home.

use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Bench, rankdeck};
use serde_json::Value;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

/// A run of a script that prints returns as CleanRL's scripts do; returns its name.
fn run(bench: &Bench, sets: &[&str]) -> String {
    let script = "for i in 1 2 3 4 5 6; do echo \"global_step=$((i*100)), episodic_return=$((i*SLOPE))\"; \
                  sleep 0.2; done";
    let text = format!(
        "[run]\nname = \"curve\"\n[launch]\ncommand = [\"bash\", \"-c\", {script:?}]\nenv = {{ SLOPE = \"1\", SEED = \"{{seed}}\" }}\n\
         [metrics]\npresets = [\"cleanrl\"]\n"
    );
    let file = bench.write("curve.toml", &text);
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(bench.path().join("runs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let before = names();
    let mut command = rankdeck();
    command.args(["run", file.to_str().unwrap(), "--headless"]).current_dir(bench.path());
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    names().into_iter().find(|name| !before.contains(name)).unwrap()
}

fn compare(bench: &Bench, args: &[&str]) -> (i32, String, String) {
    let output = rankdeck().arg("compare").args(args).current_dir(bench.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn compare_writes_text_json_files_and_shows_on_home() {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    let first = run(&bench, &["run.seed=1"]);
    let second = run(&bench, &["run.seed=2", "launch.env.SLOPE=3"]);
    let third = run(&bench, &["run.seed=3"]);
    let names = [first.as_str(), second.as_str(), third.as_str()];
    let (code, text, error) = compare(&bench, &names);
    assert_eq!(code, 0, "{error}");
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert!(text.contains("SLOPE=1 (2 "), "{text}");
    let (svg, csv) = (bench.path().join("c.svg"), bench.path().join("c.csv"));
    let png = bench.path().join("c.png");
    let [to_svg, to_csv, to_png] = [&svg, &csv, &png].map(|path| path.to_str().unwrap());
    let files = ["--svg", to_svg, "--csv", to_csv, "--png", to_png, "--json", "--apart"];
    let (code, text, error) = compare(&bench, &[&names[..], &files[..]].concat());
    assert_eq!(code, 0, "{error}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[3]["kind"].as_str()), (4, Some("comparison")));
    assert_eq!(lines[1]["settings"]["launch.env.SLOPE"], "3");
    assert_eq!(lines[3]["groups"][0]["runs"], serde_json::json!([0, 2]));
    assert!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count() >= 3);
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    assert!(std::fs::read_to_string(&csv).unwrap().lines().count() > 6);
    let (code, _, error) = compare(&bench, &[&first, "--svg", to_svg]);
    assert!(code == 2 && error.contains("--force"), "{error}");
    for (given, expected) in
        [(&["curve"][..], &names[..]), (&["curve", "curve~1"], &names[1..]), (&["@last"], &names[2..])]
    {
        let (code, text, error) = compare(&bench, &[given, &["--json"]].concat());
        assert_eq!(code, 0, "{error}");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut compared: Vec<String> =
            lines.filter_map(|line| line["run"].as_str().map(str::to_owned)).collect();
        compared.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(compared, expected, "{given:?}");
    }
    let (code, _, error) = compare(&bench, &[&first, "--series", "nonsense"]);
    assert!(code == 2 && error.contains("nonsense"), "{error}");
    let (code, _, error) = compare(&bench, &["nothing"]);
    assert!(code == 2 && error.contains("hint:"), "{error}");

    let output = rankdeck().args(["mlflow", &first, &second]).current_dir(bench.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let store = std::fs::read_dir(bench.path().join("mlruns")).unwrap().flatten().next().unwrap().path();
    let entries = std::fs::read_dir(&store).unwrap().flatten().map(|entry| entry.path());
    let runs: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert_eq!(runs.len(), 2, "one experiment, two runs: {runs:?}");
    let charts = std::fs::read_to_string(runs[0].join("metrics/charts/episodic_return")).unwrap();
    let last: Vec<&str> = charts.lines().last().unwrap().split(' ').collect();
    assert!(last.len() == 3 && last[0].len() == 13 && last[2] == "600", "ms, value, step: {last:?}");
    assert_eq!(std::fs::read_to_string(runs[0].join("params/run.name")).unwrap(), "curve");

    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows("1 runs 3");
    terminal.send("   c");
    terminal.until("all three", |t| names.iter().all(|name| t.text().contains(name)));
    terminal.until_shows("4 compare 3");
    terminal.until_shows(texts::GROUPED);
    terminal.send("t");
    terminal.until("ungrouped runs", |t| !t.text().contains(texts::GROUPED));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
}
