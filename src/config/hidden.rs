//! Lines of the user's files as they are shown: without passwords and other secrets that stand in them.

use rankdeck_types::variables::names_secret;

/// Most characters before a sign that are looked at: no name and no password is as long.
const NEAR: usize = 256;

/// The line with a star for each character of a secret, so that what is below it still fits.
pub fn line(text: &str) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    named(&mut letters);
    logins(&mut letters);
    letters.into_iter().collect()
}

/// Values of names that tell a secret: `password = "..."`, `{ API_KEY = "..." }`.
fn named(letters: &mut [char]) {
    let is_part = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
    for at in 0..letters.len() {
        if letters[at] != '=' {
            continue;
        }
        let near = letters[at.saturating_sub(NEAR)..at].iter().rev();
        let near = near.skip_while(|c| c.is_whitespace()).skip_while(|c| "\"'".contains(**c));
        let name: String = near.take_while(|c| is_part(c)).collect::<Vec<_>>().into_iter().rev().collect();
        // A list of names, of which none is a value.
        if !names_secret(&name.replace('-', "_")) || name == "pass_env" {
            continue;
        }
        let from = (at + 1..letters.len()).find(|at| !letters[*at].is_whitespace()).unwrap_or(letters.len());
        let quote = letters.get(from).copied().filter(|c| "\"'".contains(*c));
        let from = from + usize::from(quote.is_some());
        let ends = |c: &char| match quote {
            Some(quote) => *c == quote,
            None => ",}#".contains(*c) || c.is_whitespace(),
        };
        letters[from..].iter_mut().take_while(|c| !ends(c)).for_each(|c| *c = '*');
    }
}

/// Passwords of logins: `user:...@host`, `https://user:...@host`.
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
    fn secrets_are_stars_and_the_rest_is_as_it_was() {
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

    proptest::proptest! {
        #[test]
        fn any_line_keeps_its_length(text in "[a-zA-Z_=:@\"'/ é#,{}]{0,60}") {
            proptest::prop_assert_eq!(line(&text).chars().count(), text.chars().count());
        }
    }
}
