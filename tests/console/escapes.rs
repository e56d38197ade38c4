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
