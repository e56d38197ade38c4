//! Guesses `[metrics]` from the source of a script, for `rankdeck init` and `rankdeck run -- COMMAND`.

use rankdeck_proto::regular;
use rankdeck_types::experiment::Metrics;
use rankdeck_types::metrics::compile;
use std::io::Read;
use std::path::Path;

/// Most bytes of a script that are read.
const SCRIPT: u64 = 1 << 20;
/// Most names that are taken from the output of a script.
const NAMES: usize = 8;
/// Most bytes of one call that are read.
const CALL: usize = 1000;
/// A number as programs print it.
const NUMBER: &str = r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?|nan|inf)";

/// Returns the start of a script; empty if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = regular::open(path).map(|file| file.take(SCRIPT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Guesses the metrics of the script or module of a command in this directory.
pub(crate) fn of_command(words: &[String]) -> Metrics {
    let module = words.iter().position(|word| word == "-m").and_then(|at| words.get(at + 1));
    let script = rankdeck_agent::examine::script_of(words);
    let source = match (script, module) {
        (Some(script), _) => read(Path::new(script)),
        (None, Some(module)) => {
            let path = module.replace('.', "/");
            let file = Path::new(&path).with_extension("py");
            if file.is_file() { read(&file) } else { read(&Path::new(&path).join("__main__.py")) }
        }
        (None, None) => String::new(),
    };
    let mut metrics = metrics(&source);
    // Other runs also have event files there.
    metrics.tensorboard = metrics.tensorboard.filter(|folder| folder != "runs");
    metrics
}

/// Guesses the metrics of a source.
pub(crate) fn metrics(source: &str) -> Metrics {
    let tensorboard = source.contains("SummaryWriter(").then(|| tensorboard(source));
    let mut found = Metrics { tensorboard, ..Metrics::default() };
    if source.contains("global_step=") && source.contains("episodic_return") {
        found.presets = vec!["cleanrl".to_owned()];
    } else {
        found.stdout = printed(source);
    }
    match compile(&found) {
        Ok(_) => found,
        Err(_) => Metrics::default(),
    }
}

/// Returns the directory of `SummaryWriter("runs/...")`, up to its first variable part.
fn tensorboard(source: &str) -> String {
    let inside = source.split("SummaryWriter(").nth(1).unwrap_or_default();
    let inside = inside.split(')').next().unwrap_or_default();
    let text = inside.split(['"', '\'']).nth(1).unwrap_or_default();
    let fixed = text.split('{').next().unwrap_or_default();
    let folder = match fixed.len() < text.len() {
        true => fixed.rsplit_once('/').map_or("", |(folder, _)| folder),
        false => fixed,
    };
    let plain = folder.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    if folder.is_empty() || !plain { "runs".to_owned() } else { folder.to_owned() }
}

/// Returns one pattern per name for output like `name=value`, `name: value` and `name value`.
fn printed(source: &str) -> Vec<String> {
    let mut found: Vec<(String, String)> = Vec::new();
    if source.contains("stable_baselines3") {
        // Its logger prints a table with a row per value.
        for (label, group) in [("ep_rew_mean", "return"), ("total_timesteps", "env_step"), ("fps", "SPS")] {
            let row = format!(r"\|\s*{label}\s*\|\s*(?P<{group}>{NUMBER})");
            found.push((label.to_owned(), row));
        }
    }
    for call in calls(source) {
        for (name, between) in labels(&call) {
            if found.len() < NAMES && !found.iter().any(|(known, _)| *known == name) {
                let steps = ["step", "global_step", "timestep", "env_step", "total_timesteps", "total_steps"];
                let group = if steps.contains(&name.as_str()) { "env_step" } else { &name };
                let pattern = format!(r"\b{name}{between}(?P<{group}>{NUMBER})");
                found.push((name, pattern));
            }
        }
    }
    found.into_iter().map(|(_, pattern)| pattern).collect()
}

/// The arguments of `print(...)` and of a logger's `info(...)`, each on one line.
fn calls(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, begin) in source.match_indices("print(").chain(source.match_indices(".info(")) {
        let line = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
        if source[line..at].trim_start().starts_with('#') {
            continue;
        }
        let mut depth = 1;
        let inside: String = source[at + begin.len()..]
            .chars()
            .take(CALL)
            .take_while(|c| {
                depth += i32::from(*c == '(') - i32::from(*c == ')');
                depth > 0
            })
            .collect();
        found.push((at, inside.replace("\\t", " ").replace("\\n", " ").replace('\n', " ")));
    }
    found.sort();
    found.into_iter().map(|(_, inside)| inside).collect()
}

/// Returns the names before a value in the arguments of a call, and the separator pattern.
fn labels(call: &str) -> Vec<(String, &'static str)> {
    let is_format = call.contains(".format(");
    let is_value = |at: usize| {
        let after = call.get(at + 1..).unwrap_or_default();
        match call.as_bytes()[at] {
            b'{' => {
                let inside = after.split('}').next().unwrap_or_default();
                let is_filled = !inside.trim().is_empty() && !inside.starts_with(':');
                !after.starts_with('{') && !call[..at].ends_with('{') && (is_filled || is_format)
            }
            b'%' => {
                let kind = after.trim_start_matches(|c: char| c.is_ascii_digit() || ".+- #".contains(c));
                kind.starts_with(['d', 'f', 'e', 'g', 's', 'i', 'r'])
            }
            // A text, followed by a value as the next argument.
            b'"' | b'\'' => {
                let next = after.trim_start().strip_prefix(',').map(str::trim_start).unwrap_or_default();
                let keyword = ["end", "sep", "file", "flush"].iter().any(|name| {
                    next.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='))
                });
                !next.is_empty() && !next.starts_with(['"', '\'']) && !keyword
            }
            _ => false,
        }
    };
    // A key of a dictionary.
    let is_key = |at: usize| {
        let begins = [": ", ":{", ":f"].iter().any(|sign| call[at + 1..].starts_with(sign));
        b"\"'".contains(&call.as_bytes()[at]) && begins
    };
    let starts = (0..call.len()).filter(|at| call.is_char_boundary(*at));
    let found = starts.filter_map(|at| {
        let between = match (is_value(at), call.is_char_boundary(at + 1) && is_key(at)) {
            (true, _) => "[=: ]+",
            (false, true) => r"[\x22\x27]: *",
            (false, false) => return None,
        };
        Some((label(&call[..at], call.as_bytes()[at])?, between))
    });
    found.collect()
}

/// Returns the name at the end of a text, before a value that starts with `sign`.
fn label(text: &str, sign: u8) -> Option<String> {
    let before = text.trim_end();
    let joins = before.ends_with(['=', ':']) || text.ends_with(' ') || b"\"'".contains(&sign);
    let label = before.strip_suffix(['=', ':']).unwrap_or(before).trim_end();
    let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let name: String =
        label.chars().rev().take_while(is_part).collect::<Vec<_>>().into_iter().rev().collect();
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.len() <= 40;
    // The `d` of `%d` is not a name.
    let is_placeholder = label.len() > name.len() && label[..label.len() - name.len()].ends_with('%');
    (joins && is_name && !is_placeholder).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the patterns of a source extract from a line of its output.
    fn picked(source: &str, line: &str) -> Vec<String> {
        let patterns = compile(&metrics(source)).unwrap();
        let mut found: Vec<String> = Vec::new();
        for pattern in &patterns {
            let Some(captures) = pattern.captures(line) else { continue };
            let names = pattern.capture_names().flatten();
            found.extend(names.filter_map(|name| Some(format!("{name}={}", captures.name(name)?.as_str()))));
        }
        found.sort();
        found
    }

    #[test]
    fn metrics_are_guessed_from_source() {
        assert_eq!(metrics("print(f\"global_step={s}, episodic_return={r}\")").presets, ["cleanrl"]);
        let own =
            metrics("writer = SummaryWriter(f\"logs/tb/{name}\")\nprint(f\"step {i} loss={loss:.3f}\")");
        assert_eq!(own.tensorboard.as_deref(), Some("logs/tb"));
        assert_eq!(metrics("x = 1"), Metrics::default());
        assert_eq!(tensorboard("SummaryWriter()"), "runs");
        assert_eq!(tensorboard("SummaryWriter(log_dir='out/x')"), "out/x");
    }

    #[test]
    fn metric_patterns_match_all_print_styles() {
        let line = "step 3 loss: -1.5e-3, acc=0.5.";
        let expected = ["acc=0.5", "env_step=3", "loss=-1.5e-3"];
        for source in [
            "print(f\"step {i} loss: {loss:.3e}, acc={a}.\", flush=True)",
            "print(\n    f'step {i} loss: {loss}, '\n    f'acc={a}.'\n)",
            "print('step {} loss: {:.3e}, acc={}.'.format(i, loss, a))",
            "print(\"step %d loss: %.3e, acc=%g.\" % (i, loss, a))",
            "logger.info(\"step %d loss: %.3e, acc=%s.\", i, loss, a)",
        ] {
            let found = picked(source, line);
            assert_eq!(found, expected, "{source}: {:?}", metrics(source).stdout);
        }
        let words = "print('step', i, 'loss:', loss.item(), \"acc\", a, file=out)";
        assert_eq!(picked(words, "step 3 loss: 0.25 acc 1"), ["acc=1", "env_step=3", "loss=0.25"]);
        let json = "print(json.dumps({'step': i, \"loss\": loss}))";
        assert_eq!(picked(json, "{\"step\": 3, \"loss\": 0.25}"), ["env_step=3", "loss=0.25"]);
        let table = "from stable_baselines3 import PPO";
        assert_eq!(picked(table, "|    ep_rew_mean      | 23.4     |"), ["return=23.4"]);
        for nothing in
            ["print('done')", "print(\"all\", \"words\")", "# print(f'loss {x}')", "print('a', end='')"]
        {
            assert_eq!(metrics(nothing), Metrics::default(), "{nothing}");
        }
    }

    #[test]
    fn any_text_is_parsed() {
        for odd in
            ["print(", "print(f'é{", "print('%", "print(\"é\",", ".info('{{x}}')", "print(f'{{loss}} {'"]
        {
            metrics(odd);
        }
    }
}
