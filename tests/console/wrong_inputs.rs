//! Common errors in experiments, hosts files and `--set`: each is reported at its position with a fix.
//!
//! `tests/data/wrong_inputs.txt` has the inputs and the expected output; `UPDATE_EXPECTED=1` rewrites it.

use crate::support::{Bench, rankdeck};
use rankdeck_testkit::repository;

const EXPERIMENT: &str = "[run]\nname = \"x\"\ntotal_steps = 4096\n[env]\nid = \"CartPole-v1\"\nnum_envs = 8\n\
                          [collect]\nnum_steps = 64\n[learn]\nalgorithm = \"ppo\"\n";
const HOSTS: &str = "[defaults]\ntransport = \"local\"\n[[host]]\nname = \"node0\"\nnproc = 1\n";

/// Returns the errors of `check` with positions and hints, and its exit code.
fn check_output(kind: &str, input: &str) -> String {
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
    let is_relevant = |line: &&str| {
        let line = line.trim_start();
        ["error: ", "--> ", "= hint: ", "hint: ", "warning: "].iter().any(|begin| line.starts_with(begin))
    };
    let mut lines: Vec<&str> = stderr.lines().filter(is_relevant).map(str::trim).collect();
    let code = format!("exit code {}", output.status.code().unwrap());
    lines.push(&code);
    lines.join("\n")
}

#[test]
fn wrong_input_is_reported_at_its_position_with_a_hint() {
    let path = repository("tests/data/wrong_inputs.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut written = String::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for block in text.split("#### ").skip(1) {
        let (head, rest) = block.split_once('\n').unwrap();
        let (input, expected) = rest.split_once("---- output\n").unwrap();
        let kind = head.split_once(':').unwrap().0;
        let now = check_output(kind, input);
        assert!(!now.ends_with("exit code 0") || now.contains("warning: "), "{head} is accepted:\n{now}");
        let place = now.contains("--> ") || now.contains(".toml:") || now.contains("--set");
        assert!(place && now.contains("hint: "), "{head}: no position, or no hint:\n{now}");
        if now != expected.trim_end() {
            wrong.push(format!("{head}\n{now}\n"));
        }
        written += &format!("#### {head}\n{input}---- output\n{now}\n");
        count += 1;
    }
    assert!(count >= 66, "{count} inputs");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(path, written).unwrap();
    } else {
        assert!(wrong.is_empty(), "{}\nUPDATE_EXPECTED=1 accepts these", wrong.join("\n"));
    }
}

/// Files of the largest size that contain only errors: some are printed, the others counted.
#[test]
fn config_with_100k_errors_is_reported_in_bounded_time() {
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
        assert!(text.len() <= 1 << 20, "{name}: larger than the limit: {}", text.len());
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let (done, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let experiment = load_experiment(&ExperimentSource::File(file.clone()), &[]).err();
            let hosts = load_hosts(&HostsSource::File(file)).err();
            let _ = done.send([experiment, hosts]);
        });
        let found = found.recv_timeout(std::time::Duration::from_secs(60));
        let found = found.unwrap_or_else(|_| panic!("{name}: loading takes more than a minute"));
        for mistakes in found {
            let mistakes = mistakes.unwrap_or_else(|| panic!("{name} has no mistakes"));
            assert!((1..=100).contains(&mistakes.0.len()), "{name}: {}", mistakes.0.len());
            let shown = mistakes.to_string();
            assert!(shown.len() < 1 << 20, "{name}: {} bytes", shown.len());
            assert!(mistakes.more() == 0 || shown.contains(&mistakes.more().to_string()), "{name}");
        }
    }
}

/// Returns the values or lines that a hint suggests, alone or together; empty for a general form.
fn suggested(hint: &str) -> Vec<String> {
    let found = hint.split_once("write `").or_else(|| hint.split_once(" exists: `"));
    let Some((_, mut rest)) = found else { return Vec::new() };
    // An alternative, or for another line.
    if hint.starts_with("remove") {
        return Vec::new();
    }
    let mut items = Vec::new();
    while let Some((item, behind)) = rest.split_once('`') {
        items.push(item.to_owned());
        rest = behind;
        let next = [", `", " and `", " or `"].iter().find_map(|between| rest.strip_prefix(between));
        match next {
            Some(next) => rest = next,
            None => break,
        }
    }
    // General forms: one per host, another table, a part of a value.
    let is_form =
        [" for ", ", once per", " in `[", " twice", ": CPU"].iter().any(|form| rest.starts_with(form));
    let is_blank = |item: &String| {
        item.contains("...") || ["key = value", "user@host:port", "python:PATH"].contains(&item.as_str())
    };
    if is_form || items.iter().any(is_blank) {
        return Vec::new();
    }
    items
}

/// Returns the text with a diagnostic's line or value replaced, and the number of new lines.
fn applied(text: &str, items: &[String], mistake: &rankdeck_config::Diagnostic) -> Option<(String, usize)> {
    let span = mistake.span?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = lines.get_mut(span.line as usize - 1)?;
    let is_line = |item: &String| {
        item.split_once(" = ")
            .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)))
    };
    let is_heading = line.trim_start().starts_with('[');
    let letters: Vec<char> = line.chars().collect();
    let (begin, len) = (span.column as usize - 1, span.len as usize);
    let part = |range: std::ops::Range<usize>| letters[range].iter().collect::<String>();
    // A key within braces ends at the next comma.
    if items.iter().all(is_line) && part(0..begin).contains('{') {
        let end = (begin..letters.len()).find(|at| ",}".contains(letters[*at])).unwrap_or(letters.len());
        *line = format!("{}{}{}", part(0..begin), items.join(", "), part(end..letters.len()));
        return Some((lines.join("\n") + "\n", 1));
    }
    if items.iter().all(is_line) || is_heading {
        *line = items.join("\n");
        return Some((lines.join("\n") + "\n", items.len()));
    }
    *line = format!(
        "{}{}{}",
        part(0..begin),
        items.first()?,
        part((begin + len).min(letters.len())..letters.len())
    );
    Some((lines.join("\n") + "\n", 1))
}

/// A suggested line or value passes the checks.
#[test]
fn suggested_fix_is_accepted() {
    use rankdeck_config::{Diagnostics, ExperimentSource, HostsSource, load_experiment, load_hosts};
    let folder = tempfile::tempdir().unwrap();
    let found = |kind: &str, text: &str| -> Diagnostics {
        let file = folder.path().join(format!("{kind}.toml"));
        let given = if kind == "set" { EXPERIMENT } else { text };
        std::fs::write(&file, given).unwrap();
        let sets = if kind == "set" { vec![text.trim_end().to_owned()] } else { Vec::new() };
        match kind {
            "hosts" => load_hosts(&HostsSource::File(file)).err(),
            _ => load_experiment(&ExperimentSource::File(file), &sets).err(),
        }
        .unwrap_or_default()
    };
    let text = std::fs::read_to_string(repository("tests/data/wrong_inputs.txt")).unwrap();
    let mut inputs: Vec<(String, String, String)> = Vec::new();
    for block in text.split("#### ").skip(1) {
        let (head, rest) = block.split_once('\n').unwrap();
        let input = rest.split_once("---- output\n").unwrap().0;
        inputs.push((head.split_once(':').unwrap().0.to_owned(), head.to_owned(), input.to_owned()));
    }
    for entry in std::fs::read_dir(repository("tests/configs/invalid")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".toml") {
            let kind = if name.starts_with("hosts") { "hosts" } else { "experiment" };
            inputs.push((kind.to_owned(), name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for (kind, name, text) in &inputs {
        let before = found(kind, text);
        for mistake in &before.0 {
            let items = suggested(&mistake.hint);
            if items.is_empty() {
                continue;
            }
            // Alternatives are tried separately.
            let is_choice = mistake.hint.contains("` or `");
            let ways: Vec<Vec<String>> =
                if is_choice { items.iter().map(|item| vec![item.clone()]).collect() } else { vec![items] };
            for items in ways {
                let option = items[0].strip_prefix("--set ").filter(|_| kind == "set");
                let (now, lines) = match option {
                    Some(option) => (option.to_owned(), 1),
                    // An override has no lines.
                    None if kind == "set" && items[0].contains(" = ") => continue,
                    None => match applied(text, &items, mistake) {
                        Some(applied) => applied,
                        None => continue,
                    },
                };
                count += 1;
                let first = mistake.span.map_or(1, |span| span.line);
                let place = if kind == "set" { "--set".to_owned() } else { format!("{kind}.toml") };
                let is_there = |one: &&rankdeck_config::Diagnostic| {
                    let inside = |line: u32| line >= first && line < first + lines as u32;
                    one.file.ends_with(&place) && one.span.is_some_and(|span| inside(span.line))
                };
                let others = |one: &&rankdeck_config::Diagnostic| {
                    one.message == mistake.message
                        || before.0.iter().all(|known| known.message != one.message)
                };
                for left in found(kind, &now).0.iter().filter(is_there).filter(others) {
                    wrong
                        .push(format!("{name}: `{}` was suggested, and then:\n{left}\n", items.join("`, `")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 60, "only {count} lines were suggested");
}

/// A password in a file or on the command line is not in the output.
#[test]
fn password_is_never_printed() {
    let bench = Bench::new();
    bench.write("experiment.toml", EXPERIMENT);
    for (line, option) in [
        ("address = \"me:s3cret@h\"", None),
        ("address = \"ssh://me:s3cret@h:22\"", None),
        ("proxy_jump = \"me:s3cret@h\"", None),
        ("password = \"s3cret\"", None),
        ("env = { API_KEY = s3cret }", None),
        ("env = { \"API KEY\" = \"s3cret\" }", None),
        ("port = 22", Some("me:s3cret@h,b")),
    ] {
        bench.write("hosts.toml", &format!("[[host]]\nname = \"a\"\n{line}\n"));
        for command in ["check", "run"] {
            for form in [&[][..], &["--json"]] {
                let mut command_line = rankdeck();
                command_line
                    .args([command, "experiment.toml", "--hosts", option.unwrap_or("hosts.toml")])
                    .args(form);
                let output = command_line.current_dir(bench.path()).output().unwrap();
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                assert!(
                    output.status.code() == Some(2) && !text.contains("cret"),
                    "{line} {command}: {text}"
                );
            }
        }
    }
}
