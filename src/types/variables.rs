//! Variables of the console that ranks get. A plan holds their names and templates, never their values: those
//! are read when a generation is launched, and travel beside its secret.

use crate::error::HintedError;
use crate::experiment::Launch;
use crate::host::Host;
use std::collections::BTreeMap;
use std::fmt;

/// Variables that tell a rank who it is. `env` of the experiment or of a host cannot change them.
const IDENTITY: [&str; 16] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
];

/// Begins the names that are rankdeck's own. A rank gets no such variable but those that rankdeck sets.
const OWN: &str = "RANKDECK_";

/// Why the user cannot set this variable of a rank: it would have no effect.
pub fn reserved(name: &str) -> Option<HintedError> {
    if IDENTITY.contains(&name) {
        return Some(HintedError::new(
            format!("`{name}` tells a rank who it is, and rankdeck sets it"),
            "leave it out",
        ));
    }
    name.starts_with(OWN).then(|| {
        HintedError::new(
            format!("`{name}` would not reach the ranks: names that begin with `{OWN}` are rankdeck's own"),
            "choose another name",
        )
    })
}

/// Words that end a part of the name of a secret.
const SECRETS: [&str; 14] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASS",
    "PWD",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "PAT",
    "WEBHOOK",
    "DSN",
];

/// A variable of this name usually holds a secret: `WANDB_API_KEY`, `PGPASSWORD`, but not `PWD`.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let told = |part: &str| {
        let bare = part.strip_suffix('S').filter(|bare| SECRETS.contains(bare)).unwrap_or(part);
        // Short words end many others: `COMPASS`, `SPAT`.
        SECRETS.iter().any(|word| bare == *word || (word.len() > 4 && bare.ends_with(word)))
            || (bare.ends_with("KEY") && bare.len() > 3 && !["MONKEY", "TURKEY"].contains(&bare))
    };
    !["PWD", "OLDPWD"].contains(&name.as_str()) && name.split(|c: char| !c.is_ascii_alphanumeric()).any(told)
}

/// A text that holds a name and its password, as an address may: `https://me:secret@host`.
pub fn holds_password(value: &str) -> bool {
    value.match_indices("://").any(|(at, sign)| {
        let rest = value.get(at + sign.len()..).unwrap_or_default();
        let end = rest.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(rest.len());
        rest.get(..end).and_then(|host| host.rsplit_once('@')).is_some_and(|(who, _)| who.contains(':'))
    })
}

/// Values of one host that are longer together do not fit into a launch.
pub const MOST_BYTES: usize = 32 << 10;

/// A part of a value of `env`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// `${NAME}`.
    Variable(&'a str),
}

/// Why a value of `env` cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedValue {
    /// What is wrong with it, after the key.
    pub error: String,
    /// What to write instead.
    pub hint: String,
}

/// `name` as a shell has it.
pub fn is_name(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `a${B}c$$D` as its pieces; `$$` before a name or a brace is a dollar sign.
fn pieces(text: &str) -> Result<Vec<Piece<'_>>, MalformedValue> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (plain, behind) = rest.split_at(at);
        found.push(Piece::Text(plain));
        let begins = |text: &str| text.starts_with(|c: char| c == '{' || c == '_' || c.is_ascii_alphabetic());
        let after = &behind[1..];
        rest = if let Some(escaped) = after.strip_prefix('$').filter(|escaped| begins(escaped)) {
            found.push(Piece::Text("$"));
            // The name that follows is text.
            let end = escaped.find('$').unwrap_or(escaped.len());
            found.push(Piece::Text(&escaped[..end]));
            &escaped[end..]
        } else if let Some(inner) = after.strip_prefix('{') {
            let name = inner.split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
            let Some(name) = name else {
                return Err(MalformedValue {
                    error: "holds a `${` that names no variable".into(),
                    hint: "write `${NAME}` for a variable of this console, `$${` for the text itself".into(),
                });
            };
            found.push(Piece::Variable(name));
            &inner[name.len() + 1..]
        } else if begins(after) {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            let name = &after[..end];
            return Err(MalformedValue {
                error: format!("holds `${name}`, which no shell expands here"),
                hint: format!(
                    "write `${{{name}}}` for this console's value, `$${name}` for the text itself, or set it in \
                     `prelude` for the host's value"
                ),
            });
        } else {
            found.push(Piece::Text("$"));
            after
        };
    }
    found.push(Piece::Text(rest));
    Ok(found)
}

/// Checks a value of `env`.
pub fn check(text: &str) -> Result<(), MalformedValue> {
    pieces(text).map(drop)
}

/// The value of an `env` entry that names no variable; `None` for one that does.
pub fn plain(text: &str) -> Option<String> {
    // A value that an older console let pass is as it is.
    let Ok(pieces) = pieces(text) else { return Some(text.to_owned()) };
    pieces
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(text) => Some(text),
            Piece::Variable(_) => None,
        })
        .collect()
}

/// Variables of a host's ranks whose values only a console knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedVariables {
    /// Name in the ranks, and the template that is filled in.
    entries: BTreeMap<String, String>,
}

impl WantedVariables {
    /// By `launch.pass_env`, and by `env` of the experiment and of the host.
    pub fn new(launch: &Launch, host: &Host) -> WantedVariables {
        let mut entries: BTreeMap<String, String> =
            launch.pass_env.iter().map(|name| (name.clone(), format!("${{{name}}}"))).collect();
        let env = launch.env.iter().chain(&host.env);
        for (name, value) in env {
            // The later one wins, also when it needs nothing.
            match plain(value) {
                None => entries.insert(name.clone(), value.clone()),
                Some(_) => entries.remove(name),
            };
        }
        entries.retain(|name, _| reserved(name).is_none());
        WantedVariables { entries }
    }

    /// Nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What holds the values in the ranks.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The variable is a console's own, as it is, under the same name.
    pub fn passes(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|template| *template == format!("${{{name}}}"))
    }

    /// The variable is made of the same ones in both.
    pub fn agrees(&self, other: &WantedVariables, name: &str) -> bool {
        self.entries.get(name).is_some_and(|template| other.entries.get(name) == Some(template))
    }

    /// The same without those that a host has already, as `was` made them.
    #[must_use]
    pub fn beyond(mut self, was: &WantedVariables, held: &[String]) -> WantedVariables {
        for name in held {
            if self.agrees(was, name) {
                self.entries.remove(name);
            }
        }
        self
    }

    /// Fills in what the console has; returns the values, and the names of variables that it lacks.
    pub fn fill(&self, console: &dyn Fn(&str) -> Option<String>) -> (Values, Vec<String>) {
        let (mut values, mut missing) = (BTreeMap::new(), Vec::new());
        for (name, template) in &self.entries {
            let mut value = Some(String::new());
            for piece in pieces(template).unwrap_or_default() {
                let text = match piece {
                    Piece::Text(text) => Some(text.to_owned()),
                    Piece::Variable(variable) => {
                        let found = console(variable);
                        if found.is_none() && !missing.iter().any(|known| known == variable) {
                            missing.push(variable.to_owned());
                        }
                        found
                    }
                };
                value = value.zip(text).map(|(value, text)| value + &text);
            }
            values.extend(value.map(|value| (name.clone(), HiddenText(value))));
        }
        (Values(values), missing)
    }
}

/// Names with values that nothing shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Values(BTreeMap<String, HiddenText>);

impl Values {
    /// No value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// There is a value of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes over those of `other` that are wanted and not there.
    pub fn complete(&mut self, other: &Values, wanted: impl Fn(&str) -> bool) {
        for (name, value) in other.0.iter().filter(|(name, _)| wanted(name)) {
            self.0.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// Bytes of names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.0.len()).sum()
    }

    /// Each name with its value, for an environment.
    pub fn reveal(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.0.as_str()))
    }
}

/// A text that no formatting shows. Overwritten when dropped.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct HiddenText(String);

impl Drop for HiddenText {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        for byte in &mut bytes {
            // SAFETY: `byte` is a valid, exclusive reference; volatile, so that the write is not left out.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pass: &[&str], env: &[(&str, &str)], own: &[(&str, &str)]) -> WantedVariables {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let launch = Launch {
            pass_env: pass.iter().map(|name| name.to_string()).collect(),
            env: map(env),
            ..Launch::default()
        };
        WantedVariables::new(&launch, &Host { env: map(own), ..Host::default() })
    }

    fn console(name: &str) -> Option<String> {
        [("A", "1"), ("KEY", "s3cret"), ("EMPTY", "")]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_string())
    }

    fn filled(wanted: &WantedVariables) -> (Vec<String>, Vec<String>) {
        let (values, missing) = wanted.fill(&console);
        (values.reveal().map(|(name, value)| format!("{name}={value}")).collect(), missing)
    }

    #[test]
    fn templates_and_passed_names_are_filled_from_the_console() {
        let wanted = wanted(
            &["KEY", "GONE"],
            &[
                ("X", "a${A}b${KEY}"),
                ("Y", "plain"),
                ("Z", "${EMPTY}"),
                ("RANK", "${A}"),
                ("W", "${NOT}${A}"),
            ],
            &[("V", "$${A} $$B $ 5$")],
        );
        let (values, missing) = filled(&wanted);
        assert_eq!(values, ["KEY=s3cret", "X=a1bs3cret", "Z="]);
        assert_eq!(missing, ["GONE", "NOT"]);
        assert_eq!(plain("$${A} $$B $ 5$").as_deref(), Some("${A} $B $ 5$"));
    }

    #[test]
    fn what_a_host_says_wins() {
        assert_eq!(filled(&wanted(&["KEY"], &[("X", "${KEY}")], &[("X", "own"), ("KEY", "own")])).0, [""; 0]);
        assert_eq!(filled(&wanted(&[], &[("X", "own")], &[("X", "${A}")])).0, ["X=1"]);
    }

    #[test]
    fn what_is_no_template_is_refused_and_never_literal() {
        for bad in ["$HOME/x", "${", "${}", "${A", "${A-b}", "${1}", "x$PATH"] {
            assert!(check(bad).is_err(), "{bad}");
        }
        for good in ["", "$", "5$", "$5", "$$", "a$$HOME", "${A}", "$-", "pa$$"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn names_and_addresses_tell_secrets() {
        for name in [
            "WANDB_API_KEY",
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
            "MYSQL_PWD",
            "SSH_KEYS",
            "GITHUB_PAT",
            "SLACK_WEBHOOK_URL",
            "COMET_APIKEY",
            "RANKDECK_SECRET",
            "my-password",
            "DB_PASS",
            "GOOGLE_CREDENTIALS",
        ] {
            assert!(names_secret(name), "{name}");
        }
        for name in [
            "PWD",
            "OLDPWD",
            "PATH",
            "TOKENIZERS_PARALLELISM",
            "KEYBOARD",
            "MONKEY",
            "RANK",
            "COMPASS",
            "PYTHONPATH",
            "NCCL_DEBUG",
            "SPAT",
            "KEYMAP",
        ] {
            assert!(!names_secret(name), "{name}");
        }
        assert!(holds_password("http://me:pw@proxy:3128/x") && holds_password("a postgres://u:p@h"));
        assert!(!holds_password("http://proxy:3128/a@b:c") && !holds_password("me@host:22"));
    }

    #[test]
    fn formatting_shows_no_value() {
        let (values, _) = wanted(&["KEY"], &[], &[]).fill(&console);
        assert!(!format!("{values:?} {values:#?}").contains("s3cret"));
        let text = toml::to_string(&values).unwrap();
        assert_eq!(toml::from_str::<Values>(&text).unwrap(), values);
    }
}
