//! Text of a stranger on its way to stdout and stderr.

use crate::support::{Bench, rankdeck};
use rankdeck_types::words::controls_terminal;

#[test]
fn print_1_commands_of_a_stranger_drive_no_terminal() {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    let text = "[run]\nname = \"odd\"\n[launch]\ncommand = [\"echo\", \
                \"c\\u001b]0;PWNED\\u0007\\u001b(B\\u001bP1$r0m\\u001b\\\\\\u009b31m\\u202e\", \
                \"x\\n  hosts    fake line\"]\n";
    let file = bench.write("odd.toml", text);
    let file = file.to_str().unwrap();
    let call = |args: &[&str]| {
        let output = rankdeck().args(args).current_dir(bench.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {err}");
        for text in [&out, &err] {
            assert!(!text.contains(|c| c != '\n' && controls_terminal(c)), "{args:?}: {text:?}");
        }
        out
    };
    let checked = call(&["check", file]);
    assert!(checked.contains("fake line") && !checked.contains("\n  hosts    fake"), "{checked}");
    assert!(!["PWNED", "r0m", "31m"].iter().any(|residue| checked.contains(residue)), "{checked}");
    call(&["run", file, "--headless"]);
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().next().unwrap().unwrap();
    let run = run.file_name().into_string().unwrap();
    for args in [
        &["ps", "--all"][..],
        &["status", &run],
        &["logs", &run],
        &["replay", &run, "--headless"],
        &["report", &run, "--output", "-"],
        &["compare", &run],
    ] {
        call(args);
    }
}

/// Reports and charts of a run of a stranger, in a real browser.
#[test]
fn reports_and_charts_run_no_script_in_a_browser() {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    let hostile = rankdeck_testkit::browser::hostile_texts();
    let program = "import rankdeck, sys\nfor step in range(1, 9):\n    \
        rankdeck.report(env_step=step, returns=[1.0], **{text: 0.5 for text in sys.argv[1:]})\n\
        for text in sys.argv[1:]: print(text)\nraise RuntimeError(sys.argv[1])\n";
    let Some(python) = rankdeck_testkit::python("json") else { return };
    let mut command = vec![python.as_str(), "-c", program];
    command.extend(hostile.iter().map(String::as_str));
    let table = toml::Table::from_iter([("command".to_owned(), toml::Value::from(command))]);
    let name = &hostile[0];
    let env = toml::Value::from(name.as_str());
    let text = format!("[run]\nname = \"odd\"\n[launch]\n{table}env = {{ ODD = {env} }}\n");
    let file = bench.write("odd.toml", &text);
    let call = |args: &[&str]| {
        let output = rankdeck().args(args).current_dir(bench.path()).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {output:?}");
    };
    call(&["run", file.to_str().unwrap(), "--headless"]);
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().next().unwrap().unwrap();
    let run = run.file_name().into_string().unwrap();
    call(&["report", &run, "--output", "r.html"]);
    call(&["compare", &run, "--svg", "c.svg"]);
    let page = std::fs::read_to_string(bench.path().join("r.html")).unwrap();
    assert!(page.contains("data-pwned"), "the texts are shown as texts");
    for name in ["r.html", "c.svg"] {
        rankdeck_testkit::browser::assert_inert(&bench.path().join(name));
    }
}
