//! The code that ranks run: a directory of the console's machine, or a pack that every host has.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Prefix of a pack in `launch.code`.
const BY_HASH: &str = "sha256:";

/// Value of `launch.code`. A console replaces the directory by its pack before it launches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Code {
    /// A directory, relative to the experiment file.
    Path(String),
    /// A pack, by the SHA-256 of its content in hexadecimal digits.
    Pack(String),
}

impl Code {
    /// Returns the directory, `None` for a pack.
    pub fn path(&self) -> Option<&str> {
        match self {
            Code::Path(path) => Some(path),
            Code::Pack(_) => None,
        }
    }
}

impl From<String> for Code {
    fn from(text: String) -> Code {
        match text.strip_prefix(BY_HASH) {
            Some(hash) => Code::Pack(hash.to_owned()),
            None => Code::Path(text),
        }
    }
}

impl From<Code> for String {
    fn from(code: Code) -> String {
        code.to_string()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Path(path) => f.write_str(path),
            Code::Pack(hash) => write!(f, "{BY_HASH}{hash}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_one_string_in_files() {
        for (text, code) in [("src", Code::Path("src".into())), ("sha256:ab12", Code::Pack("ab12".into()))] {
            let value = toml::Value::String(text.to_owned());
            assert_eq!(toml::Value::try_from(&code).unwrap(), value);
            assert_eq!(value.try_into::<Code>().unwrap(), code);
        }
    }
}
