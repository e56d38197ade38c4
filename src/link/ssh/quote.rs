//! Quoting for the POSIX shell at the other end. Pure.

/// `text` as one shell word, whatever it holds.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The words of a command, quoted and separated by blanks.
pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// `text` in quotes, plain or not.
pub(super) fn always(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_gives_back_every_word_unchanged() {
        let nasty = [
            "", "a", "a b", "it's", "$HOME", "`id`", "a\"b", "a\\", "*", "~", "a\nb", "'", "''", "-n", "é€",
            "a;b|c&d",
        ];
        for text in nasty {
            let line = format!("printf %s\\\\n {}; printf x", word(text));
            let output = Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{text}\nx"), "{line}");
        }
    }

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(words(["agent", "start", "--workdir", "a b"]), "agent start --workdir 'a b'");
    }
}
