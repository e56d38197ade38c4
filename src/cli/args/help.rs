//! What `--help`, `rankdeck help` and the man pages print besides the options: groups of commands, examples, files,
//! environment variables.
//!
//! Invariants:
//! - HELP-1: every variable that a command or a rank reads is listed here or in [`TOPICS`].
//! - HELP-2: the help of a command lists no option that means nothing to it.
//! - HELP-3: every command is listed in one group of `rankdeck --help`.

use super::Cli;
use clap::{Arg, CommandFactory};
use std::fmt::Write;

/// The groups of `rankdeck --help`, by what a user does, and their commands in the order of that list.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start runs", &["run", "init", "check", "drill", "sbatch", "demo"]),
    (
        "Watch and control runs",
        &[
            "home",
            "attach",
            "ps",
            "status",
            "logs",
            "explain",
            "stop",
            "restart",
            "add",
            "wait",
            "export-metrics",
        ],
    ),
    (
        "Results",
        &["report", "compare", "diff", "replay", "tensorboard", "fetch", "eval", "play", "export", "mlflow"],
    ),
    ("Sweeps", &["queue"]),
    ("Hosts", &["gpus", "push"]),
    ("Disk space", &["prune", "rm"]),
    ("More", &["help", "man", "completions", "schema", "client"]),
];

/// Examples of each command: what it does, and what to type.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    ("", &[
        ("Open the home screen", "rankdeck"),
        ("Try it without hosts", "rankdeck demo"),
        ("Generate hosts.toml and train.toml", "rankdeck init gpu-a gpu-b train.py"),
        ("Run the preflight checks", "rankdeck check train.toml"),
        ("Launch and watch", "rankdeck run train.toml"),
        ("Watch it again, from another terminal", "rankdeck attach"),
        ("Stop it and verify that nothing is left running", "rankdeck stop"),
    ]),
    ("home", &[
        ("Open the home screen", "rankdeck"),
        ("Show it on a wall display", "rankdeck home --read-only"),
    ]),
    ("demo", &[
        ("Two hosts with four ranks each; F2 freezes a rank", "rankdeck demo"),
        ("256 ranks", "rankdeck demo --nnodes 32 --ranks 8"),
    ]),
    ("run", &[
        ("Launch on the hosts of hosts.toml", "rankdeck run ppo.toml"),
        ("Launch a script without an experiment file", "rankdeck run --hosts gpu-a,gpu-b -- python train.py --lr 3e-4"),
        ("Two ranks on this machine, in a virtual environment", "rankdeck run --nproc 2 --venv ~/venv -- python train.py"),
        ("Translate a torchrun command line into ranks", "rankdeck run -- torchrun --nproc-per-node 2 train.py"),
        ("Override a config key and stop after a million steps", "rankdeck run ppo.toml --set learn.gamma=0.98 --until steps=1e6"),
        ("Start from the best checkpoint of another run", "rankdeck run ppo.toml --from ppo-2026:best"),
        ("Launch and detach", "rankdeck run ppo.toml --detach"),
        ("Launch one run per seed", "rankdeck run ppo.toml --seeds 1..5"),
        ("Launch one run per learning rate of a script", "rankdeck run train.toml --sweep args.lr=1e-4,3e-4"),
        ("Print evaluations as JSON", "rankdeck run ppo.toml --json | jq -c 'select(.kind == \"eval\")'"),
    ]),
    ("drill", &[
        ("Try every case on the hosts of hosts.toml", "rankdeck drill train.toml"),
        ("Three cases on this machine, with two ranks", "rankdeck drill --only freeze,kill,stop --nproc 2 -- python train.py"),
        ("Print the cases that failed", "rankdeck drill train.toml --json | jq -c 'select(.outcome == \"failed\")'"),
    ]),
    ("attach", &[
        ("Attach to the newest running run", "rankdeck attach"),
        ("Attach to a run by the start of its name", "rankdeck attach ppo"),
        ("Watch without changing anything", "rankdeck attach ppo-2026 --headless --read-only"),
    ]),
    ("stop", &[
        ("Save a checkpoint and stop", "rankdeck stop"),
        ("Kill all processes", "rankdeck stop ppo-2026 --kill"),
    ]),
    ("add", &[("Start lost rank 3 of the only running run again", "rankdeck add --rank 3")]),
    ("restart", &[
        ("Restart from the latest checkpoint", "rankdeck restart"),
        ("Restart with another learning rate", "rankdeck restart --from best --set learn.learning_rate=1e-4"),
        ("Restart with the code as it is now", "rankdeck restart --code new"),
        ("Restart without a host", "rankdeck restart --exclude gpu-b"),
    ]),
    ("wait", &[
        ("Wait for the newest run and use its exit code", "rankdeck wait"),
        ("Give up after eight hours", "rankdeck wait ppo --timeout 8h"),
        ("Evaluate a detached run when it has succeeded", "rankdeck wait --quiet && rankdeck eval"),
    ]),
    ("ps", &[
        ("List the runs on all hosts", "rankdeck ps"),
        ("Print the names of all runs", "rankdeck ps --all --json | jq -r .run"),
    ]),
    ("gpus", &[
        ("List the processes that hold GPUs on all hosts", "rankdeck gpus"),
        ("End the leftovers of runs", "rankdeck gpus --free"),
        ("End one unproven process", "rankdeck gpus --pid gpu-b:4711"),
        ("Print the leftovers as JSON", "rankdeck gpus --json | jq -c 'select(.status == \"leftover\")'"),
    ]),
    ("status", &[
        ("Show the newest running run", "rankdeck status"),
        ("Show it in the status line of tmux", "rankdeck status --line"),
        ("Print it as JSON", "rankdeck status ppo-2026 --json"),
    ]),
    ("export-metrics", &[
        ("Serve metrics at 127.0.0.1:9464; dashboard: examples/grafana.json", "rankdeck export-metrics"),
        ("Write a textfile for node_exporter", "rankdeck export-metrics --textfile /var/lib/node_exporter/rl.prom"),
    ]),
    ("queue", &[
        ("Start a sweep", "rankdeck run ppo.toml --seeds 1..10"),
        ("Show progress and scores", "rankdeck queue"),
        ("Continue after an interruption", "rankdeck queue sweep-ppo-2026 --resume"),
        ("Also restart failed trials", "rankdeck queue sweep-ppo-2026 --resume --failed"),
    ]),
    ("fetch", &[
        ("Copy the weights", "rankdeck fetch ppo-2026 '*.safetensors'"),
        ("Copy the logs of the first generation", "rankdeck fetch ppo-2026 gen0/"),
    ]),
    ("tensorboard", &[
        ("Open two runs side by side", "rankdeck tensorboard ppo-2026 sac-2026 -- --port 6007"),
    ]),
    ("eval", &[
        ("Print mean, deviation and confidence interval", "rankdeck eval ppo-2026:best --episodes 100"),
        ("Print the mean return alone", "rankdeck eval ./best.ckpt --json | jq .return_mean"),
    ]),
    ("play", &[
        ("Show the best policy", "rankdeck play ppo-2026:best"),
        ("Save an animation", "rankdeck play ppo-2026 --record play.gif"),
    ]),
    ("export", &[
        ("Write best.pt for torch.jit.load", "rankdeck export ppo-2026:best"),
        ("Write latest.onnx", "rankdeck export ppo-2026 --format onnx --python venv/bin/python"),
    ]),
    ("rm", &[
        ("Show what would be removed", "rankdeck rm ppo-2026 --dry-run"),
        ("Remove two runs", "rankdeck rm ppo-2026 sac-2026"),
    ]),
    ("prune", &[
        ("Show which runs would be removed", "rankdeck prune --older-than 30d --dry-run"),
        ("Keep the 20 newest runs", "rankdeck prune --keep 20 --yes"),
    ]),
    ("sbatch", &[
        ("Submit an experiment", "rankdeck sbatch ppo.toml --nodes 2 --gpus-per-node 4 --time 4:00:00"),
        ("Print the script", "rankdeck sbatch ppo.toml --nodes 2 --dry-run"),
        ("Requeue at the time limit", "rankdeck sbatch ppo.toml --time 8:00:00 --requeue"),
    ]),
    ("check", &[
        ("Run the preflight checks", "rankdeck check ppo.toml"),
        ("Also run an all-reduce", "rankdeck check ppo.toml --all-reduce"),
        ("Measure links, clocks and disks, and compare with the baseline", "rankdeck check ppo.toml --measure"),
    ]),
    ("push", &[
        ("Upload everything that a run needs", "rankdeck push ppo.toml"),
        ("Install libtorch where it is missing", "rankdeck push --libtorch ~/torch"),
    ]),
    ("init", &[
        ("Write hosts.toml for this machine and train.toml for the script", "rankdeck init train.py"),
        ("Do the same for two hosts", "rankdeck init gpu-a gpu-b train.py"),
        ("Detect the script in this directory", "rankdeck init"),
    ]),
    ("schema", &[
        ("Write the schema of experiment files, for editors", "rankdeck schema experiment > experiment.schema.json"),
    ]),
    ("logs", &[
        ("Follow one rank", "rankdeck logs --rank 3 -f"),
        ("Print the last ten minutes of all ranks", "rankdeck logs --since 10m --times"),
        ("Search all generations on all hosts", "rankdeck logs --grep 'nan|inf' -C 3"),
    ]),
    ("replay", &[
        ("Replay a run. `,` and `.` step 1 s, `<` and `>` step an event, T goes to a time, P plays or pauses", "rankdeck replay ppo-2026"),
    ]),
    ("report", &[
        ("Write RUN.html of the newest run, with charts", "rankdeck report"),
        ("Print Markdown", "rankdeck report ppo-2026 --output -"),
    ]),
    ("compare", &[
        ("Compare the newest runs of two experiments", "rankdeck compare ppo sac"),
        ("Compare a run with the one before it", "rankdeck compare ppo ppo~1"),
        ("Compare all runs of an experiment", "rankdeck compare ppo"),
        ("Draw many runs; seeds become a mean with a band", "rankdeck compare runs/ppo-* --svg ppo.svg"),
        ("Print the best returns", "rankdeck compare a b --json | jq -c '{run, best_return}'"),
    ]),
    ("diff", &[
        ("Compare a run with the one before it", "rankdeck diff ppo ppo~1"),
        ("Compare two ranks of a run", "rankdeck diff ppo --ranks 0,1"),
        ("Print the first different iteration", "rankdeck diff a b --json | jq .first_different"),
    ]),
    ("mlflow", &[
        ("Write a store for `mlflow ui --backend-store-uri mlruns`", "rankdeck mlflow ppo-2026 --into mlruns"),
    ]),
    ("explain", &[
        ("List all reason codes", "rankdeck explain"),
        ("Explain one", "rankdeck explain gil_held"),
    ]),
    ("client", &[
        ("Write it next to a script that also runs without rankdeck", "rankdeck client > rankdeck.py"),
    ]),
    ("completions", &[
        ("Install completions for bash", "rankdeck completions bash > ~/.local/share/bash-completion/completions/rankdeck"),
    ]),
    ("man", &[
        ("Show the page of a command", "rankdeck man run | man -l -"),
    ]),
    ("help", &[
        ("Show how to resume runs from checkpoints", "rankdeck help resume"),
        ("Show the help of a command", "rankdeck help run"),
    ]),
];

/// Topics of `rankdeck help`. `keys` and `promises` have no text of their own: they are generated from their tables.
const TOPICS: [(&str, &str); 12] = [
    ("env", include_str!("../topics/env.md")),
    ("exit-codes", include_str!("../topics/exit-codes.md")),
    ("files", include_str!("../topics/files.md")),
    ("hosts", include_str!("../topics/hosts.md")),
    ("json", include_str!("../topics/json.md")),
    ("keys", ""),
    ("promises", ""),
    ("resume", include_str!("../topics/resume.md")),
    ("runs", include_str!("../topics/runs.md")),
    ("slurm", include_str!("../topics/slurm.md")),
    ("sweep", include_str!("../topics/sweep.md")),
    ("terms", include_str!("../topics/terms.md")),
];

/// Environment variables that the console and the agent read; those of ranks are in the topic `env`.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("RANKDECK_HOSTS", "hosts file or list `a,b`; used if there is no --hosts and no ./hosts.toml"),
    ("RANKDECK_CACHE", "cache for uploads on a host [~/.cache/rankdeck]"),
    ("RANKDECK_SSH_CONFIG", "SSH configuration [~/.ssh/config]"),
    ("RANKDECK_THEME", "dark, light, cvd (for color blindness) or mono"),
    ("RANKDECK_GLYPHS", "braille, block or ascii"),
    ("RANKDECK_LOG_LEVEL", "console.log: error, warn, info, debug; or a filter `info,rankdeck_link=debug`"),
    ("NO_COLOR", "disables colors"),
    ("LIBTORCH", "unpacked torch directory for the built-in trainer"),
    ("SSH_AUTH_SOCK", "socket of the SSH agent"),
];

const FILES: &[(&str, &str)] = &[
    ("hosts.toml", "hosts, in this directory or an enclosing one of the Git repository"),
    ("~/.config/rankdeck/hosts.toml", "hosts for projects without a hosts file"),
    ("~/.config/rankdeck/ui.toml", "theme, key bindings, columns and notifications"),
    ("runs/RUN/console/", "recording of a run, for `rankdeck replay`"),
    ("WORKDIR/runs/RUN/", "a run on its host: logs, checkpoints, event files"),
    ("~/.cache/rankdeck/", "uploaded agents, trainers and code (on hosts, content-addressed)"),
    ("~/.ssh/config", "read by OpenSSH's rules, as is ~/.ssh/known_hosts"),
];

const MORE: &str = "rankdeck help TOPIC prints more about env, exit-codes, files, hosts, json, keys, promises, resume, runs, slurm, sweep, terms.";

/// Two columns, the second one aligned.
fn columns(rows: &[(&str, &str)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, text)| format!("  {name:width$}  {text}")).collect::<Vec<_>>().join("\n")
}

/// The page of a topic with a text of its own.
pub(crate) fn topic(name: &str) -> Option<String> {
    let (_, text) = TOPICS.iter().find(|(topic, _)| *topic == name)?;
    let text = text.replace("{ENVIRONMENT}", &columns(ENVIRONMENT));
    let text = text.replace("{FILES}", &columns(FILES));
    Some(text.replace("{EXIT_CODES}", super::EXIT_CODES))
}

/// Commands that use no hosts.
const WITHOUT_HOSTS: [&str; 13] = [
    "version",
    "schema",
    "replay",
    "report",
    "compare",
    "mlflow",
    "demo",
    "simulate",
    "client",
    "completions",
    "man",
    "help",
    "explain",
];

/// The command line as `--help` shows it.
pub(crate) fn command() -> clap::Command {
    let mut root = Cli::command();
    for name in WITHOUT_HOSTS {
        // An argument of its own keeps the global one away.
        root = root.mut_subcommand(name, |command| {
            let hosts = Arg::new("hosts").long("hosts").value_name("FILE").hide(true);
            let slurm = Arg::new("slurm").long("slurm").num_args(0..=1).require_equals(true);
            let slurm = slurm.default_missing_value("").hide(true);
            command.arg(hosts).arg(slurm)
        });
    }
    root = root.mut_subcommand("replay", |command| {
        command.mut_arg("metrics", |arg| arg.hide(true)).mut_arg("read_only", |arg| arg.hide(true))
    });
    let names: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in &names {
        root = root.mut_subcommand(name, |command| with_examples(command, name));
    }
    let listed = listed(&root);
    with_examples(root.help_template(listed), "")
}

/// The template of `rankdeck --help`: clap lists commands below one heading only.
fn listed(root: &clap::Command) -> String {
    let (header, literal) = (*root.get_styles().get_header(), *root.get_styles().get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "{header}{group}:{header:#}");
        for command in names.iter().filter_map(|name| root.find_subcommand(name)) {
            let name = command.get_name();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let aliases: Vec<&str> = command.get_visible_aliases().collect();
            let alias = match aliases.is_empty() {
                true => String::new(),
                false => format!(" [alias: {}]", aliases.join(", ")),
            };
            let gap = width + 2 - name.len();
            let _ = writeln!(text, "  {literal}{name}{literal:#}{:gap$}{about}{alias}", "");
        }
        text.push('\n');
    }
    let _ = write!(text, "{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

/// What `help` takes: topics and visible commands.
pub(crate) fn subjects() -> Vec<String> {
    let root = command();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands.map(|command| command.get_name().to_owned());
    TOPICS.iter().map(|(name, _)| (*name).to_owned()).chain(commands).collect()
}

fn examples(name: &str) -> &'static [(&'static str, &'static str)] {
    EXAMPLES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, examples)| examples)
}

fn with_examples(command: clap::Command, name: &str) -> clap::Command {
    let mut text = String::new();
    for (why, what) in examples(name) {
        let _ = write!(text, "{}\n  # {why}\n  {what}", if text.is_empty() { "Examples:" } else { "\n" });
    }
    let mut after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if name.is_empty() {
        let _ = write!(after, "\n\n{MORE}");
    }
    if !text.is_empty() && !after.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&after);
    command.after_help(text)
}

/// The man page of a command, or of rankdeck itself.
pub(crate) fn manual(name: Option<&str>) -> Option<std::io::Result<Vec<u8>>> {
    let mut root = command();
    root.build();
    let page = match name {
        None => root,
        Some(name) => root.find_subcommand(name)?.clone(),
    };
    Some(render(page, name.unwrap_or("")))
}

fn render(page: clap::Command, name: &str) -> std::io::Result<Vec<u8>> {
    let exit_codes = page.get_after_help().map(ToString::to_string).and_then(|text| {
        let (_, codes) = text.split_once("Exit codes:")?;
        codes.trim_matches('\n').split("\n\n").next().map(str::to_owned)
    });
    let has_commands = page.has_subcommands();
    let man = clap_mangen::Man::new(page).source(concat!("rankdeck ", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if has_commands {
        man.render_subcommands_section(&mut out)?;
    }
    let mut text = String::new();
    if let Some(codes) = exit_codes {
        text.push_str(".SH \"EXIT STATUS\"\n.nf\n");
        codes.lines().for_each(|line| text.push_str(&roff(line.trim_start())));
        text.push_str(".fi\n");
    }
    let examples: Vec<(&str, &str)> = examples(name).iter().map(|(why, what)| (*what, *why)).collect();
    section(&mut text, "EXAMPLES", &examples);
    section(&mut text, "FILES", FILES);
    section(&mut text, "ENVIRONMENT", ENVIRONMENT);
    text.push_str(".SH \"SEE ALSO\"\n");
    text.push_str(&roff(MORE));
    out.extend(text.bytes());
    Ok(out)
}

fn section(text: &mut String, title: &str, rows: &[(&str, &str)]) {
    if !rows.is_empty() {
        let _ = writeln!(text, ".SH {title}");
        for (name, meaning) in rows {
            let _ = write!(text, ".TP\n\\fB{}\\fR\n{}", roff(name).trim_end(), roff(meaning));
        }
    }
}

/// A line of text for roff.
fn roff(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let begin = if escaped.starts_with('.') { "\\&" } else { "" };
    format!("{begin}{escaped}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        let mut root = command();
        root.build();
        let command = if name.is_empty() { Some(&mut root) } else { root.find_subcommand_mut(name) };
        command.unwrap().render_long_help().to_string()
    }

    #[test]
    fn command_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn help_lines_are_short_and_have_no_period() {
        fn lines(command: &clap::Command, found: &mut Vec<(String, String)>) {
            let name = command.get_name().to_owned();
            found.extend(command.get_about().map(|about| (name.clone(), about.to_string())));
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                found.extend(
                    arg.get_help().map(|help| (format!("{name} {}", arg.get_id()), help.to_string())),
                );
            }
            command.get_subcommands().for_each(|command| lines(command, found));
        }
        let mut found = Vec::new();
        lines(&command(), &mut found);
        assert!(found.len() > 150);
        let wrong: Vec<_> = found
            .iter()
            .filter(|(_, line)| line.chars().count() > 72 || line.ends_with('.') || line.contains('\n'))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn topics_are_short_and_complete() {
        for (name, _) in TOPICS.iter().filter(|(_, text)| !text.is_empty()) {
            let text = topic(name).unwrap();
            assert!(!text.contains('{') || ["sweep", "resume"].contains(name), "{name}");
            assert!(text.lines().count() <= 60, "{name}");
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{name}");
        }
        assert!(topic("fly").is_none());
    }

    #[test]
    fn listed_commands_have_examples_that_parse() {
        for shown in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(!examples(shown.get_name()).is_empty(), "{} has no example", shown.get_name());
        }
        for (name, rows) in EXAMPLES {
            assert!(page(name).contains("Examples:"), "{name}");
            for (_, what) in *rows {
                let words = what.split([' ']).take_while(|word| !["|", ">", "&&"].contains(word));
                let parsed = command().try_get_matches_from(words);
                // On a terminal, the name alone opens home.
                let is_home = *what == "rankdeck";
                assert!(parsed.is_ok() || is_home, "{what}: {parsed:?}");
            }
        }
    }

    /// HELP-3
    #[test]
    fn help_3_commands_are_listed_in_groups() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let root = command();
        let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        shown.sort_unstable();
        assert_eq!(listed, shown, "each command once");
        let text = page("");
        for (group, names) in GROUPS {
            let (_, below) = text.split_once(&format!("\n{group}:\n")).expect(group);
            let below = below.split("\n\n").next().unwrap();
            let found: Vec<&str> = below.lines().filter_map(|line| line.split_whitespace().next()).collect();
            assert_eq!(found, *names, "{group}");
            assert!(below.lines().all(|line| line.chars().count() <= 80), "{below}");
        }
    }

    /// HELP-2
    #[test]
    fn help_2_host_options_are_hidden_where_unused() {
        for name in WITHOUT_HOSTS {
            let text = page(name);
            assert!(!text.contains("--hosts") && !text.contains("--slurm"), "{name}: {text}");
        }
        for name in ["", "run", "ps", "stop"] {
            assert!(page(name).contains("--hosts"), "{name}");
        }
        assert!(!page("replay").contains("--metrics") && !page("replay").contains("--read-only"));
        for words in [["rankdeck", "--hosts", "a.toml", "man"], ["rankdeck", "man", "--hosts", "a.toml"]] {
            assert!(command().try_get_matches_from(words).is_ok(), "{words:?}: still accepted");
        }
    }

    #[test]
    fn man_pages_have_all_sections() {
        for name in [None, Some("run"), Some("demo")] {
            let text = String::from_utf8(manual(name).unwrap().unwrap()).unwrap();
            for part in ["NAME", "SYNOPSIS", "EXAMPLES", "FILES", "ENVIRONMENT"] {
                assert!(text.contains(&format!(".SH {part}")), "{name:?} lacks {part}");
            }
            assert!(text.contains("RANKDECK_CACHE") && !text.contains(".SH EXTRA"));
        }
        assert!(manual(Some("fly")).is_none());
    }
}
