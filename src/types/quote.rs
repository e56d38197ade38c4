//! Quoting for the POSIX shell. Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

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
pub fn always(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The words of a command, whatever bytes they hold.
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
    fn words_that_are_no_text_keep_their_bytes() {
        let odd = OsString::from_vec(b"a'\xff b".to_vec());
        let line = os_words([OsStr::new("printf"), OsStr::new("%s|"), &odd, OsStr::new("c d")]);
        let output = Command::new("/bin/sh").arg("-c").arg(line).output().unwrap();
        assert_eq!(output.stdout, b"a'\xff b|c d|");
    }

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(words(["agent", "start", "--workdir", "a b"]), "agent start --workdir 'a b'");
    }
}
