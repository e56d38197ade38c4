//! What `--help` and the manual pages say besides the arguments: examples, files, variables.
//!
//! Invariants:
//! - HELP-1: every variable that a command or a rank reads stands here or in docs/EVENTS.md.
//! - HELP-2: options that mean nothing to a command do not stand on its page.

use super::args::Cli;
use clap::{Arg, ArgAction, CommandFactory};
use std::fmt::Write;

/// Commands, each with examples: what to type, and what it does.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[
            ("rankdeck", "runs, hosts and experiments on one screen"),
            ("rankdeck demo", "a simulated cluster on this machine, and keys that break it"),
            ("rankdeck check ppo.toml", "can it work on the hosts of hosts.toml?"),
            ("rankdeck run ppo.toml", "start it, and watch it"),
            ("rankdeck attach", "watch it again, from anywhere"),
            ("rankdeck stop", "end it, with proof that nothing is left"),
        ],
    ),
    (
        "run",
        &[
            ("rankdeck run ppo.toml", "on the hosts of hosts.toml"),
            ("rankdeck run --hosts gpu-a,gpu-b -- python train.py --lr 3e-4", "a script, without any file"),
            ("rankdeck run ppo.toml --set learn.gamma=0.98 --until steps=1e6", "another value, and an end"),
            ("rankdeck run ppo.toml --from ppo-2026:best", "from the best checkpoint of an earlier run"),
            ("rankdeck run ppo.toml --detach", "leave it alone as soon as it runs"),
            ("rankdeck run ppo.toml --json | jq -c 'select(.kind == \"eval\")'", "for programs"),
        ],
    ),
    (
        "home",
        &[("rankdeck", "the same, on a terminal"), ("rankdeck home --read-only", "for a screen on the wall")],
    ),
    (
        "attach",
        &[
            ("rankdeck attach", "the only run that runs"),
            ("rankdeck attach ppo-2026", "the run whose name begins so"),
        ],
    ),
    (
        "stop",
        &[
            ("rankdeck stop", "with a checkpoint, where the program makes one"),
            ("rankdeck stop ppo-2026 --kill", "at once"),
        ],
    ),
    (
        "restart",
        &[
            ("rankdeck restart --from latest", "the latest checkpoint, in a new generation"),
            ("rankdeck restart --exclude gpu-b", "without that host"),
        ],
    ),
    ("ps", &[("rankdeck ps", "every run on every host"), ("rankdeck ps --json | jq .run", "for programs")]),
    (
        "queue",
        &[
            ("rankdeck run ppo.toml --seeds 1..10", "begin a sweep"),
            ("rankdeck queue", "how far sweeps are, and their scores"),
            ("rankdeck queue sweep-ppo-2026 --resume", "after an interruption"),
            ("rankdeck queue sweep-ppo-2026 --resume --failed", "again what failed, too"),
        ],
    ),
    (
        "fetch",
        &[
            ("rankdeck fetch ppo-2026 '*.safetensors'", "the weights"),
            ("rankdeck fetch ppo-2026 gen0/", "logs of the first generation"),
        ],
    ),
    ("tensorboard", &[("rankdeck tensorboard ppo-2026 sac-2026 -- --port 6007", "two runs side by side")]),
    (
        "eval",
        &[
            ("rankdeck eval ppo-2026:best --episodes 100", "mean, deviation and interval of the return"),
            ("rankdeck eval ./best.ckpt --json | jq .return_mean", "for programs"),
        ],
    ),
    (
        "play",
        &[
            ("rankdeck play ppo-2026:best", "the best policy, drawn as it acts"),
            ("rankdeck play ppo-2026 --record play.gif", "the same as a picture that moves"),
        ],
    ),
    (
        "export",
        &[
            ("rankdeck export ppo-2026:best", "best.pt, for torch.jit.load"),
            ("rankdeck export ppo-2026 --format onnx --python venv/bin/python", "latest.onnx"),
        ],
    ),
    ("rm", &[("rankdeck rm ppo-2026 --dry-run", "what would it free?")]),
    (
        "prune",
        &[
            ("rankdeck prune --older-than 30d --dry-run", "what would go"),
            ("rankdeck prune --keep 20 --yes", "all but the newest 20"),
        ],
    ),
    (
        "sbatch",
        &[
            ("rankdeck sbatch ppo.toml --nodes 2 --gpus-per-node 4 --time 4:00:00", "submit it"),
            ("rankdeck sbatch ppo.toml --nodes 2 --dry-run", "look at the script"),
        ],
    ),
    (
        "check",
        &[
            ("rankdeck check ppo.toml", "start nothing"),
            ("rankdeck check ppo.toml --all-reduce", "let the ranks meet once"),
        ],
    ),
    ("push", &[("rankdeck push ppo.toml", "its code, agent and trainer, before a deadline")]),
    (
        "status",
        &[
            ("rankdeck status --line", "for tmux: set -g status-right '#(rankdeck status --line)'"),
            ("rankdeck status ppo-2026 --json", "for scripts"),
        ],
    ),
    (
        "export-metrics",
        &[
            (
                "rankdeck export-metrics",
                "for a Prometheus that scrapes 127.0.0.1:9464; examples/grafana.json",
            ),
            ("rankdeck export-metrics --textfile /var/lib/node_exporter/rl.prom", "for a node exporter"),
        ],
    ),
    (
        "logs",
        &[
            ("rankdeck logs --rank 3 -f", "one rank, as it goes on"),
            ("rankdeck logs | grep -i error", "all ranks"),
            ("rankdeck logs --since 10m --times", "the last ten minutes of all ranks, by time"),
            ("rankdeck logs --grep 'nan|inf' -C 3", "everything that the hosts keep, all generations"),
        ],
    ),
    (
        "replay",
        &[(
            "rankdeck replay ppo-2026",
            ", . move a second, < > an event, T types a time, P plays and pauses",
        )],
    ),
    (
        "report",
        &[
            ("rankdeck report ppo-2026", "ppo-2026....html, with charts"),
            ("rankdeck report ppo-2026 --output -", "Markdown, for a message"),
        ],
    ),
    (
        "compare",
        &[
            ("rankdeck compare ppo-2026 sac-2026", "what they came to, how they differ, and their charts"),
            ("rankdeck compare runs/ppo-* --svg ppo.svg", "many at once; seeds become a mean with a band"),
            ("rankdeck compare a b --json | jq -c '{run, best_return}'", "for programs"),
        ],
    ),
    ("mlflow", &[("rankdeck mlflow ppo-2026 --into mlruns", "for `mlflow ui --backend-store-uri mlruns`")]),
    (
        "init",
        &[
            ("rankdeck init train.py", "this machine and that script; write hosts.toml and train.toml"),
            ("rankdeck init gpu-a gpu-b train.py", "look at two hosts; write the same for them"),
            ("rankdeck init", "this machine, and the script of this folder"),
        ],
    ),
    ("schema", &[("rankdeck schema experiment > experiment.schema.json", "for editors")]),
    (
        "demo",
        &[
            ("rankdeck demo", "two hosts with four ranks each; F2 freezes a rank"),
            ("rankdeck demo --nnodes 32 --ranks 8", "256 ranks"),
        ],
    ),
    ("client", &[("rankdeck client > rankdeck.py", "beside a script that also runs without rankdeck")]),
    (
        "completions",
        &[("rankdeck completions bash > ~/.local/share/bash-completion/completions/rankdeck", "for bash")],
    ),
    ("man", &[("rankdeck man run | man -l -", "the page of a command")]),
];

/// Variables that the console and the agent read; those of ranks stand in docs/EVENTS.md.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("RANKDECK_HOSTS", "the hosts file, or hosts as `a,b`, where neither --hosts nor a hosts.toml here says"),
    ("RANKDECK_CACHE", "folder of uploads on a host, instead of ~/.cache/rankdeck"),
    ("RANKDECK_SSH_CONFIG", "the SSH configuration, instead of ~/.ssh/config"),
    ("RANKDECK_THEME", "dark, light, cvd (for colour-blind eyes) or mono"),
    ("RANKDECK_GLYPHS", "braille, block or ascii"),
    (
        "RANKDECK_LOG_LEVEL",
        "how much the console's log says: error, warn, info, debug; or info,rankdeck_link=debug",
    ),
    ("NO_COLOR", "no colours"),
    ("LIBTORCH", "unpacked torch folder for the built-in trainer"),
    ("SSH_AUTH_SOCK", "the SSH agent"),
];

const FILES: &[(&str, &str)] = &[
    ("hosts.toml", "the hosts: here or in the project around; --hosts names another one"),
    ("~/.config/rankdeck/hosts.toml", "the hosts where a project has none"),
    ("runs/RUN/console/", "what this console has recorded of a run; `rankdeck replay` shows it"),
    ("WORKDIR/runs/RUN/", "the run on a host: logs, checkpoints, TensorBoard files"),
    ("~/.cache/rankdeck/", "agents, trainers and code on a host, by content"),
    ("~/.ssh/config, ~/.ssh/known_hosts", "read as ssh reads them"),
];

const MORE: &str = "docs/TUTORIALS.md and docs/CONFIG.md beside the sources say more.";

/// Commands that have nothing to do with hosts.
const WITHOUT_HOSTS: [&str; 10] =
    ["schema", "replay", "report", "compare", "mlflow", "demo", "simulate", "client", "completions", "man"];

/// The command line as `--help` shows it.
pub fn command() -> clap::Command {
    let mut root = Cli::command();
    for name in WITHOUT_HOSTS {
        // An argument of its own keeps the global one away.
        root = root.mut_subcommand(name, |command| {
            let hosts = Arg::new("hosts").long("hosts").value_name("FILE").hide(true);
            let slurm = Arg::new("slurm").long("slurm").action(ArgAction::SetTrue).hide(true);
            command.arg(hosts).arg(slurm)
        });
    }
    let names: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        root = root.mut_subcommand(&name, |command| with_examples(command, &name));
    }
    with_examples(root, "")
}

fn examples(name: &str) -> &'static [(&'static str, &'static str)] {
    EXAMPLES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, examples)| examples)
}

fn with_examples(command: clap::Command, name: &str) -> clap::Command {
    let mut text = String::new();
    for (what, why) in examples(name) {
        let _ = write!(text, "{}\n  $ {what}\n      {why}", if text.is_empty() { "Examples:" } else { "" });
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if !text.is_empty() && !after.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&after);
    command.after_help(text)
}

/// The manual page of a command, or of rankdeck itself.
pub fn manual(name: Option<&str>) -> Option<std::io::Result<Vec<u8>>> {
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
        text.split_once("Exit codes:").map(|(_, codes)| codes.trim_matches('\n').to_owned())
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
    section(&mut text, "EXAMPLES", examples(name));
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
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_that_is_listed_has_examples_that_parse() {
        for shown in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(!examples(shown.get_name()).is_empty(), "{} has no example", shown.get_name());
        }
        for (name, rows) in EXAMPLES {
            assert!(page(name).contains("Examples:"), "{name}");
            for (what, _) in *rows {
                let words = what.split([' ']).take_while(|word| !["|", ">"].contains(word));
                let parsed = command().try_get_matches_from(words);
                // On a terminal, the name alone opens home.
                let is_home = *what == "rankdeck";
                assert!(parsed.is_ok() || is_home, "{what}: {parsed:?}");
            }
        }
    }

    /// HELP-2
    #[test]
    fn options_stand_only_where_they_mean_something() {
        for name in WITHOUT_HOSTS {
            let text = page(name);
            assert!(!text.contains("--hosts") && !text.contains("--slurm"), "{name}: {text}");
        }
        for name in ["", "run", "ps", "stop"] {
            assert!(page(name).contains("--hosts"), "{name}");
        }
        for words in [["rankdeck", "--hosts", "a.toml", "man"], ["rankdeck", "man", "--hosts", "a.toml"]] {
            assert!(command().try_get_matches_from(words).is_ok(), "{words:?}: as before");
        }
    }

    #[test]
    fn manual_pages_have_their_sections() {
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
