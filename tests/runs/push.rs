//! `rankdeck push` and `launch.code`, over real SSH on loopback.

use crate::support::hosts::Loopback;
use crate::support::wait_until;
use rankdeck_testkit::repository;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

fn code_folder(hosts: &Loopback, text: &str) -> PathBuf {
    let folder = hosts.bench.path().join("code");
    std::fs::create_dir_all(folder.join("data")).unwrap();
    std::fs::create_dir_all(folder.join(".git")).unwrap();
    std::fs::write(folder.join("train.py"), text).unwrap();
    std::fs::write(folder.join("model.py"), "name = 'net'\n").unwrap();
    std::fs::write(folder.join("data/big.bin"), "x").unwrap();
    std::fs::write(folder.join(".git/HEAD"), "x").unwrap();
    hosts.bench.write(
        "code.toml",
        "[run]\nname = \"code\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \"code\"\nexclude = [\"data\"]\n",
    )
}

fn push(hosts: &Loopback, args: &[&str]) -> Output {
    let mut command = hosts.command(&[&["push"], args].concat());
    command.env("RANKDECK_CACHE", hosts.bench.path().join("own-cache")).output().unwrap()
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn inside(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn push_uploads_code_once_and_ranks_work_in_a_copy() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let experiment = code_folder(
        &hosts,
        "import os\nprint('here', sorted(os.listdir('.')), os.getcwd(), flush=True)\nimport model\nopen('out', 'w').write('x')\n",
    );
    let experiment = experiment.to_str().unwrap();
    let first = push(&hosts, &[experiment]);
    assert!(first.status.success(), "{}", text_of(&first));
    for server in &hosts.servers {
        assert_eq!(inside(&server.folder.join("cache/packs")).len(), 1);
        assert_eq!(inside(&server.folder.join("cache/experiments")).len(), 1);
        assert!(inside(&server.folder.join("cache/pieces")).is_empty(), "pieces are joined and removed");
    }
    let again = push(&hosts, &[experiment]);
    assert_eq!(
        text_of(&again).lines().filter(|line| line.ends_with(" 0B")).count(),
        2,
        "{}",
        text_of(&again)
    );
    let mut command = hosts.command(&["run", experiment, "--headless", "--json"]);
    command.env("RANKDECK_CACHE", hosts.bench.path().join("own-cache"));
    let mut console = crate::support::Console::spawn(command);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let lines = console.all("log");
    let output_text: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["line"].as_str())
        .filter(|line| line.starts_with("here"))
        .collect();
    assert_eq!(output_text.len(), 2, "{lines:?}");
    assert!(
        output_text
            .iter()
            .all(|line| line.contains("['model.py', 'train.py']") && line.contains("/work/code")),
        "{output_text:?}"
    );
    let work = hosts.bench.path().join("host0/work/code");
    assert!(work.join("out").is_file(), "what ranks write stays");
    // A change is another code: the next run brings it by itself.
    code_folder(&hosts, "print('here changed')\n");
    let mut command = hosts.command(&["run", experiment, "--headless", "--json"]);
    command.env("RANKDECK_CACHE", hosts.bench.path().join("own-cache"));
    let mut console = crate::support::Console::spawn(command);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    assert_eq!(console.all("log").iter().filter(|line| line["line"] == "here changed").count(), 2);
    assert!(work.join("out").is_file() && work.join("model.py").is_file());
    wait_until("agents leave", 40, || hosts.bench.processes().is_empty());
}

/// Two hosts with separate disks. A script saves where it works and resumes from what it finds there.
#[test]
fn results_of_two_hosts_are_fetched_and_found_by_the_next_run() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let script = "import os, sys\nrank = os.environ['RANK']\n\
                  print('found', os.path.exists('best.pt') and open('best.pt').read(), flush=True)\n\
                  open('best.pt', 'w').write('weights ' + rank)\n\
                  os.makedirs('logs', exist_ok=True)\nopen('logs/log.csv', 'w').write('1')\n";
    let experiment = code_folder(&hosts, script);
    let run = |expected: &str| {
        let mut command = hosts.command(&["run", experiment.to_str().unwrap(), "--headless", "--json"]);
        command.env("RANKDECK_CACHE", hosts.bench.path().join("own-cache"));
        let mut console = crate::support::Console::spawn(command);
        assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
        let found = |line: &&Value| line["line"].as_str().is_some_and(|line| line.starts_with(expected));
        assert_eq!(console.all("log").iter().filter(found).count(), 2, "{}", console.transcript());
        let end = console.all("run_finished").pop().unwrap();
        assert_eq!(end["results"].as_array().map(Vec::len), Some(2), "{end}");
        assert_eq!(
            (&end["results"][0]["files"], &end["results"][0]["names"][0]),
            (&2.into(), &"best.pt".into())
        );
        end["run"].as_str().unwrap_or_default().to_owned()
    };
    run("found False");
    let output = hosts.command(&["fetch", "code"]).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let runs = hosts.bench.path().join("runs");
    let [first] = inside(&runs).try_into().unwrap();
    for node in 0..2 {
        let fetched = runs.join(&first).join(format!("hosts/h{node}/work"));
        let weights = std::fs::read_to_string(fetched.join("best.pt")).unwrap();
        assert_eq!(weights, format!("weights {node}"));
        assert_eq!(inside(&fetched), ["best.pt", "logs"], "no code");
    }
    // The same folder, with what the first run has left.
    run("found weights");
    wait_until("agents leave", 40, || hosts.bench.processes().is_empty());
    let removed = hosts.command(&["rm", &first, "--yes"]).output().unwrap();
    assert!(removed.status.success(), "{}", text_of(&removed));
    assert!(hosts.bench.path().join("host1/work/code/best.pt").is_file(), "results stay");
    assert!(runs.join(&first).join("hosts/h1/work/best.pt").is_file(), "and so do fetched ones");
}

#[test]
fn interrupted_push_resumes() {
    let Some(hosts) = Loopback::start(1, 1).map(Loopback::with_agent) else { return };
    let experiment = code_folder(&hosts, "print(1)\n");
    // Five pieces and a bit, which no compression and no equality of pieces shortens.
    let mut noise: u64 = 1;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (noise >> 56) as u8
    })
    .take(42 << 20)
    .collect();
    std::fs::write(hosts.bench.path().join("code/weights"), &bytes).unwrap();
    let mut command = hosts.command(&["push", experiment.to_str().unwrap()]);
    command.env("RANKDECK_CACHE", hosts.bench.path().join("own-cache"));
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let server = &hosts.servers[0];
    let pieces = server.folder.join("cache/pieces");
    let packs = server.folder.join("cache/packs");
    // The agent comes first and is in pieces, too: wait for a piece of the pack.
    wait_until("a piece of the code has arrived", 60, || {
        packs.is_dir() || {
            let agent = inside(&server.folder.join("cache")).iter().any(|name| name.len() == 16);
            agent && inside(&pieces).iter().any(|name| !name.starts_with('.'))
        }
    });
    assert!(server.kill_sessions());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "it mends itself: {}", text_of(&output));
    assert_eq!(inside(&packs).len(), 1);
    assert!(inside(&pieces).is_empty());
    let experiment = experiment.to_str().unwrap();
    assert!(text_of(&push(&hosts, &[experiment])).contains("0B"));
}

#[test]
fn libtorch_is_installed_on_request_and_found_afterwards() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let torch = hosts.bench.path().join("torch");
    std::fs::create_dir_all(torch.join("lib")).unwrap();
    std::fs::create_dir_all(torch.join("include")).unwrap();
    std::fs::write(torch.join("lib/libtorch_cpu.so"), "a library").unwrap();
    std::fs::write(torch.join("version.py"), "__version__ = '2.11.0+cpu'\n").unwrap();
    std::fs::write(torch.join("include/x.h"), "").unwrap();
    for sent in [true, false] {
        let output = push(&hosts, &["--libtorch", torch.to_str().unwrap()]);
        assert!(output.status.success() && text_of(&output).contains("2.11.0+cpu"), "{}", text_of(&output));
        let again = text_of(&output).lines().filter(|line| line.ends_with(" 0B")).count();
        assert_eq!(again, if sent { 0 } else { 2 }, "{}", text_of(&output));
    }
    for server in &hosts.servers {
        let libraries = server.folder.join("cache/libtorch");
        let [name] = inside(&libraries).try_into().unwrap();
        assert_eq!(inside(&libraries.join(&name)), ["lib", "version.py"]);
        assert!(inside(&server.folder.join("cache/packs")).is_empty(), "the pack is not needed any more");
    }
    let nothing = push(&hosts, &["--libtorch", hosts.bench.path().to_str().unwrap()]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text_of(&nothing));
    // The built-in trainer's preflight finds it; the environment names another one for local use.
    let experiment = repository("configs/cartpole_ppo.toml");
    let output = hosts
        .command(&["check", "--json", experiment.to_str().unwrap()])
        .env_remove("LIBTORCH")
        .output()
        .unwrap();
    let versions: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["check"] == "versions")
        .collect();
    assert!(
        versions.len() == 2 && versions.iter().all(|line| line["text"] == "libtorch 2.11.0+cpu"),
        "{versions:?}"
    );
}

/// The environment of ranks holds tokens; command lines and logs can be read by more people than its owner.
#[test]
fn environment_secret_is_on_no_command_line_or_log() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let secret =
        format!("token-{}-{:x}", std::process::id(), std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    let text = std::fs::read_to_string(&hosts.hosts).unwrap();
    std::fs::write(
        &hosts.hosts,
        text.replacen("[defaults]", &format!("[defaults]\nenv = {{ TOKEN = {secret:?} }}"), 1),
    )
    .unwrap();
    let program = "import os, time; print('has', len(os.environ['TOKEN']), flush=True); time.sleep(3600)";
    let command = ["python3", "-u", "-c", program].map(|word| Value::from(word).to_string()).join(", ");
    let experiment = hosts
        .bench
        .write("secret.toml", &format!("[run]\nname = \"secret\"\n[launch]\ncommand = [{command}]\n"));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watcher = {
        let (stop, secret) = (stop.clone(), secret.clone());
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for entry in std::fs::read_dir("/proc").unwrap().flatten() {
                    let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line).into_owned();
                    if line.contains(&secret) {
                        seen.push(line);
                    }
                }
            }
            seen
        })
    };
    let mut console = hosts.console(&["run", experiment.to_str().unwrap()]);
    console.wait_for("a rank has it", 120, |line| line["line"] == format!("has {}", secret.len()));
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(90).code(), Some(130), "{}", console.transcript());
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let seen = watcher.join().unwrap();
    assert!(seen.is_empty(), "{seen:?}");
    assert!(!console.seen.iter().any(|line| line.to_string().contains(&secret)));
    let mut folders = vec![hosts.bench.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "log") {
                let text = std::fs::read(&path).unwrap();
                assert!(!String::from_utf8_lossy(&text).contains(&secret), "{}", path.display());
            }
        }
    }
    for server in &hosts.servers {
        assert!(!server.log().contains(&secret));
    }
}
