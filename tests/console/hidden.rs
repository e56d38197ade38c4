//! Secrets of an experiment and of a command line, over all that this program prints and writes for readers.

use crate::support::{Bench, rankdeck};
use std::path::{Path, PathBuf};

/// In `launch.env`, in `--set`, in the command, and in `env` of a host.
const SECRETS: [&str; 4] = ["plainsecret123456", "setsecret654321", "flagsecret777777", "hostsecret888888"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => files(&path, found),
            path => found.push(path),
        }
    }
}

#[test]
fn hide_1_no_output_holds_a_secret() {
    let bench = Bench::new();
    let hosts = std::fs::read_to_string(bench.local_hosts(1, 1)).unwrap();
    bench.write("hosts.toml", &(hosts + "env = { HOST_TOKEN = \"hostsecret888888\" }\n"));
    let text = "[run]\nname = \"keep\"\n[launch]\ncommand = [\"bash\", \"-c\", \"echo global_step=100, \
                episodic_return=1; echo global_step=200, episodic_return=2\", \"--api-key\", \"flagsecret777777\"]\n\
                [launch.env]\nMY_TOKEN = \"plainsecret123456\"\n[metrics]\npresets = [\"cleanrl\"]\n";
    let file = bench.write("keep.toml", text);
    let file = file.to_str().unwrap();
    let mut shown = Vec::new();
    let mut call = |args: &[&str]| {
        let output = rankdeck().args(args).current_dir(bench.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        shown.push((args.join(" "), text(&output.stdout) + &text(&output.stderr)));
    };
    let set = ["--set", "launch.env.API_TOKEN=\"setsecret654321\""];
    call(&[&["check", file][..], &set].concat());
    call(&[&["check", file, "--json"][..], &set].concat());
    call(&[&["run", file, "--headless"][..], &set].concat());
    call(&[&["run", file, "--json"][..], &set].concat());
    let runs = || std::fs::read_dir(bench.path().join("runs")).unwrap().flatten();
    let names: Vec<String> = runs().map(|entry| entry.file_name().into_string().unwrap()).collect();
    let [first, second] = [names[0].as_str(), names[1].as_str()];
    for args in [
        &["ps", "--all"][..],
        &["ps", "--all", "--json"],
        &["status", first],
        &["status", first, "--json"],
        &["logs", first],
        &["replay", first, "--headless"],
        &["replay", first, "--json"],
        &["report", first, "--output", "out/r.html"],
        &["report", first, "--output", "out/r.md"],
        &["report", first, "--output", "-"],
        &["compare", first, second],
        &["compare", first, second, "--json", "--apart", "--svg", "out/c.svg", "--csv", "out/c.csv"],
        &["mlflow", first, second, "--into", "out/mlruns"],
    ] {
        std::fs::create_dir_all(bench.path().join("out")).unwrap();
        call(args);
    }
    let mut written = Vec::new();
    files(&bench.path().join("out"), &mut written);
    assert!(written.len() > 10, "{written:?}");
    for run in &names {
        let console = bench.path().join("runs").join(run).join("console");
        written.extend(["origin.json", "events.jsonl", "console.log"].map(|name| console.join(name)));
    }
    shown.extend(written.iter().map(|path| {
        let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (path.display().to_string(), text.unwrap_or_default())
    }));
    let html = std::fs::read_to_string(bench.path().join("out/r.html")).unwrap();
    assert!(html.contains("MY_TOKEN") && html.contains("API_TOKEN"), "names are shown");
    for (what, text) in &shown {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{what}: {}", text.replace(secret, &format!(">>{secret}<<")));
        }
    }
}

/// SECRET-3: the plan of a run is what its hosts report, and may ask for any variable of this console.
/// What an agent on this machine inherits needs no sending: the variable has another name here.
#[test]
fn secret_3_restart_sends_only_named_variables() {
    let bench = Bench::new();
    let hosts = std::fs::read_to_string(bench.local_hosts(1, 1)).unwrap();
    let again = bench.path().join("again");
    let script = format!("if [ -e '{}' ]; then echo \"has ${{#KEY}}\"; sleep 600; fi", again.display());
    let text = format!(
        "[run]\nname = \"give\"\n[launch]\ncommand = [\"bash\", \"-c\", {script:?}]\nenv = {{ KEY = \"${{GIVEN}}\" }}\n"
    );
    let file = bench.write("give.toml", &text);
    let elsewhere = bench.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("hosts.toml"), hosts).unwrap();
    let call = |folder: &Path, args: &[&str]| {
        let output = rankdeck().args(args).current_dir(folder).env("GIVEN", "hush").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let (code, stderr) = call(bench.path(), &["run", file.to_str().unwrap(), "--headless"]);
    assert_eq!(code, Some(0), "{stderr}");
    let mut runs = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten();
    let run = runs.next().unwrap().file_name().into_string().unwrap();
    std::fs::write(&again, "").unwrap();
    let (code, stderr) = call(&elsewhere, &["restart", &run, "--yes"]);
    assert!(code == Some(2) && stderr.contains("launch.pass_env=[\"GIVEN\"]"), "{code:?} {stderr}");
    for (folder, set) in
        [(elsewhere.as_path(), &["--set", "launch.pass_env=[\"GIVEN\"]"][..]), (bench.path(), &[])]
    {
        let (code, stderr) = call(folder, &[&["restart", &run, "--yes"][..], set].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let (code, stderr) = call(folder, &["stop", &run, "--kill"]);
        assert_eq!(code, Some(0), "{stderr}");
    }
}
