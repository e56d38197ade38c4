//! Quoting for the POSIX shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Quotes `text` as one shell word.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes the words of a command, separated by spaces.
pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Quotes `text`, even if it needs no quotes.
pub fn always(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes the words of a command, of any bytes.
pub fn os_words<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let mut line = Vec::new();
    for text in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        match text.to_str() {
            Some(text) => line.extend(word(text).into_bytes()),
            None => {
                let quoted = text.as_bytes().iter().flat_map(|byte| match byte {
                    b'\'' => br"'\''".as_slice(),
                    byte => std::slice::from_ref(byte),
                });
                line.push(b'\'');
                line.extend(quoted);
                line.push(b'\'');
            }
        }
    }
    OsString::from_vec(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn quoted_word_survives_a_shell() {
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
    fn quoted_word_keeps_non_utf8_bytes() {
        let odd = OsString::from_vec(b"a'\xff b".to_vec());
        let line = os_words([OsStr::new("printf"), OsStr::new("%s|"), &odd, OsStr::new("c d")]);
        let output = Command::new("/bin/sh").arg("-c").arg(line).output().unwrap();
        assert_eq!(output.stdout, b"a'\xff b|c d|");
    }

    #[test]
    fn plain_word_is_not_quoted() {
        assert_eq!(words(["agent", "start", "--workdir", "a b"]), "agent start --workdir 'a b'");
    }
}
