//! Hides passwords and other secrets in settings and command lines. Every output of an experiment or a
//! command line goes through this module.
//!
//! - HIDE-1: no output contains a value whose name marks a secret, or the password of a login.

use crate::code::Code;
use crate::experiment::Experiment;
use crate::variables::names_secret;

/// Placeholder for a hidden value.
pub const STARS: &str = "***";

/// Most characters to search before a sign: longer than any name or password.
const NEAR: usize = 256;

/// Hides the value of a key such as `launch.env.API_KEY`.
pub fn value(key: &str, value: &str) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    if is_secret(name, value) { STARS.to_owned() } else { line(value) }
}

fn is_secret(name: &str, value: &str) -> bool {
    // `--max-tokens 512` counts tokens, and `pass_env` holds names.
    let counts = name.to_ascii_uppercase().ends_with("TOKENS") && value.trim().parse::<f64>().is_ok();
    names_secret(name) && name != "pass_env" && !counts
}

/// Hides secrets in the words of a command: `--set launch.env.API_KEY=...`, `--api-key=...` and `--api-key
/// ...`.
pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut before = "";
    words
        .into_iter()
        .map(|word| {
            let option = std::mem::replace(&mut before, word);
            let name = option.strip_prefix('-').filter(|name| !name.contains(['=', ' ']));
            match name.is_some_and(|name| is_secret(name, word)) && !word.starts_with("--") {
                true => STARS.to_owned(),
                false => self::word(word),
            }
        })
        .collect()
}

/// Hides secrets in a word of a command, such as `KEY=VALUE`.
pub fn word(word: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    for (at, _) in word.match_indices('=') {
        let (before, value) = (&word[..at], &word[at + 1..]);
        // Within a table other names follow, which `line` finds.
        let name = before.trim_end().trim_end_matches(['"', '\'']);
        let name = &name[name.trim_end_matches(is_part).len()..];
        if !before.contains('{') && is_secret(name, value) {
            return format!("{before}={STARS}");
        }
    }
    line(word)
}

/// Hides secrets in overrides that are being typed: `learn.gamma=0.5 launch.env.API_KEY=...`.
pub fn typed(text: &str) -> String {
    words(line(text).split(' ')).join(" ")
}

/// Returns the experiment with secrets hidden.
pub fn experiment(own: &Experiment) -> Experiment {
    let mut shown = own.clone();
    let launch = &mut shown.launch;
    launch.env.iter_mut().chain(&mut shown.args).for_each(|(name, text)| *text = value(name, text));
    launch.command = words(launch.command.iter().map(String::as_str));
    if let Some(Code::Path(path)) = &mut launch.code {
        *path = line(path);
    }
    shown.run.note.iter_mut().for_each(|text| *text = line(text));
    shown
}

/// Returns the command of the ranks with its arguments and the values of keys, without secrets.
pub fn command(own: &Experiment) -> Vec<String> {
    words(experiment(own).filled_launch().command.iter().map(String::as_str))
}

/// Replaces each character of a secret with a star, so that carets below the line still fit.
pub fn line(text: &str) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    named(&mut letters);
    logins(&mut letters);
    letters.into_iter().collect()
}

/// Hides values of names that mark a secret: `password = "..."`, `{ API_KEY = "..." }`, `{"api_key": "..."}`.
fn named(letters: &mut [char]) {
    let is_part = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
    for at in 0..letters.len() {
        let quoted = at > 0 && "\"'".contains(letters[at - 1]);
        if letters[at] != '=' && !(letters[at] == ':' && quoted) {
            continue;
        }
        let near = letters[at.saturating_sub(NEAR)..at].iter().rev();
        let near = near.skip_while(|c| c.is_whitespace()).skip_while(|c| "\"'".contains(**c));
        let name: String = near.take_while(|c| is_part(c)).collect::<Vec<_>>().into_iter().rev().collect();
        // A line may be a megabyte of such signs.
        if !names_secret(&name) {
            continue;
        }
        let from = (at + 1..letters.len()).find(|at| !letters[*at].is_whitespace()).unwrap_or(letters.len());
        let quote = letters.get(from).copied().filter(|c| "\"'".contains(*c));
        let from = from + usize::from(quote.is_some());
        let mut escaped = false;
        let mut ends = |c: &char| {
            let is_escaped = escaped;
            escaped = *c == '\\' && quote == Some('"') && !is_escaped;
            match quote {
                Some(quote) => *c == quote && !is_escaped,
                None => ",}#".contains(*c) || c.is_whitespace(),
            }
        };
        let length = letters[from..].iter().take_while(|c| !ends(c)).count();
        let value: String = letters[from..from + length].iter().collect();
        if is_secret(&name, &value) {
            letters[from..from + length].fill('*');
        }
    }
}

/// Hides passwords of logins: `user:...@host`, `https://user:...@host`.
fn logins(letters: &mut [char]) {
    let ends = |c: char| c.is_whitespace() || "\"',".contains(c);
    let mut begin = 0;
    for at in 0..letters.len() {
        if ends(letters[at]) {
            begin = at + 1;
        } else if letters[at] == '@' {
            // A line may be a megabyte of such signs.
            let begin = begin.max(at.saturating_sub(NEAR));
            let word: String = letters[begin..at].iter().collect();
            let skip = word.find("://").map_or(0, |sign| word[..sign].chars().count() + 3);
            let from = (begin + skip..at).find(|place| letters[*place] == ':');
            from.into_iter().for_each(|from| letters[from + 1..at].fill('*'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_hides_only_secrets() {
        for (text, shown) in [
            ("address = \"me:s3cret@h\"", "address = \"me:******@h\""),
            ("proxy = 'https://me:s3@cret@h/x'", "proxy = 'https://me:*******@h/x'"),
            ("password = \"hunter2\" # mine", "password = \"*******\" # mine"),
            ("env = { A = \"1\", WANDB_API_KEY = \"abc\" }", "env = { A = \"1\", WANDB_API_KEY = \"***\" }"),
            ("\"HF_TOKEN\" = 'x'", "\"HF_TOKEN\" = '*'"),
            ("launch.env.API_KEY=abc", "launch.env.API_KEY=***"),
            ("command = [\"x\", \"--api-key=abc\"]", "command = [\"x\", \"--api-key=***\"]"),
        ] {
            let now = line(text);
            assert!(now.starts_with(&shown[..shown.rfind('*').unwrap()]) || now == shown, "{text}: {now}");
            assert_eq!(now.chars().count(), text.chars().count());
            assert!(!now.contains("cret") && !now.contains("hunter2") && !now.contains("abc"), "{now}");
        }
        for same in
            ["pass_env = [\"API_KEY\"]", "address = \"me@h:22\"", "name = \"a:b\"", "é = \"ü\"", "=", ""]
        {
            assert_eq!(line(same), same);
        }
    }

    #[test]
    fn hide_1_command_words_and_values() {
        for (command, shown) in [
            ("run x.toml --set launch.env.API_TOKEN=ab,c#d", "run x.toml --set launch.env.API_TOKEN=***"),
            ("--set=launch.env.API_TOKEN=a=b", "--set=launch.env.API_TOKEN=***"),
            ("train --api-key hunter2 --lr 0.1", "train --api-key *** --lr 0.1"),
            ("train --api-key --lr 0.1", "train --api-key --lr 0.1"),
            ("train --max-tokens 512 --max_tokens=64", "train --max-tokens 512 --max_tokens=64"),
            ("WANDB_API_KEY=hunter2 python", "WANDB_API_KEY=*** python"),
            ("--set learn.gamma=0.5", "--set learn.gamma=0.5"),
            ("--url https://me:hunter2@h/x", "--url https://me:*******@h/x"),
        ] {
            assert_eq!(words(command.split(' ')).join(" "), shown);
        }
        assert_eq!(typed("a.b=1 launch.env.API_KEY=hun,ter2 "), "a.b=1 launch.env.API_KEY=*** ");
        assert!(!typed("launch.env.API_KEY=\"hunter2 hunter2\" x").contains("hunter2"));
        let table = word("launch.env={A=\"1\",API_TOKEN=\"hun\\\"ter2\"}");
        assert!(table.starts_with("launch.env={A=\"1\",API_TOKEN=\"") && !table.contains("ter2"), "{table}");
        let json = word("{\"api_key\": \"hunter2\", \"lr\": 1}");
        assert!(!json.contains("hunter2") && json.contains("\"lr\": 1"), "{json}");
        assert_eq!(value("launch.env.MY_TOKEN", "hunter2"), STARS);
        assert_eq!(value("launch.env.PIP_INDEX_URL", "https://me:hunter2@h"), "https://me:*******@h");
        assert_eq!(value("launch.pass_env", "[\"API_KEY\"]"), "[\"API_KEY\"]");
    }

    #[test]
    fn hide_1_experiment_has_no_secret() {
        let text = "[run]\nname = \"x\"\nnote = \"at https://me:hunter2@h\"\n[launch]\n\
                    command = [\"t\", \"--password\", \"hunter2\"]\n\
                    [launch.env]\nMY_TOKEN = \"hunter2\"\nA = \"1\"\nPROXY = \"http://me:hunter2@p\"\n\
                    [args]\n\"hub.api_key\" = \"hunter2\"\n";
        let own: Experiment = toml::from_str(text).unwrap();
        let shown = toml::to_string(&experiment(&own)).unwrap();
        assert!(!shown.contains("hunter2") && shown.contains("A = \"1\""), "{shown}");
        let mut named = own.clone();
        named.launch.command.push("{args.hub.api_key}".into());
        for own in [&own, &named] {
            let shown = command(own).join(" ");
            assert!(!shown.contains("hunter2") && shown.contains(STARS), "{shown}");
        }
        let plain: Experiment = toml::from_str("[run]\nname = \"x\"\n[launch]\ncommand = [\"t\"]\n").unwrap();
        assert_eq!(experiment(&plain), plain);
    }

    proptest::proptest! {
        #[test]
        fn any_line_keeps_its_length(text in "[a-zA-Z_=:@\"'/ é#,{}]{0,60}") {
            proptest::prop_assert_eq!(line(&text).chars().count(), text.chars().count());
        }
    }
}
