//! Variables of the console that are passed to the ranks. A plan holds their names and templates, never their
//! values: those are read when a generation is launched, and sent next to its secret.

use crate::error::HintedError;
use crate::experiment::LaunchConfig;
use crate::host::Host;
use crate::template;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Variables that identify a rank. `env` of the experiment or of a host cannot change them.
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

/// Prefix of rankdeck's own variables. A rank gets only those that rankdeck sets.
const OWN: &str = "RANKDECK_";

/// Prefixes of variables by which other launchers number their processes.
const LAUNCHERS: [&str; 18] = [
    "SLURM_CPU_BIND",
    "SLURM_GTIDS",
    "SLURM_LAUNCH_NODE",
    "SLURM_NTASKS",
    "SLURM_PMI",
    "SLURM_SRUN_",
    "SLURM_STEP",
    "SLURM_TASK",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "MV2_COMM_WORLD_",
    "MPI_LOCAL",
    "PALS_",
    "ALPS_APP_",
    "JSM_NAMESPACE_",
    "FLUX_TASK_",
    "TORCHELASTIC_",
];

/// Other such variables.
const LAUNCHED: [&str; 5] = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NNODES"];

/// Prefixes of settings that users make for a launcher, and of those among them that a launcher makes itself.
const SETTINGS: [&str; 3] = ["OMPI_MCA_", "OMPI_ALLOW_", "PMIX_MCA_"];
const OWN_SETTINGS: [&str; 2] = ["OMPI_MCA_orte_", "OMPI_MCA_ess"];

/// Returns whether another launcher (a Slurm step, MPI, torchrun) describes one of its processes by this
/// variable. A rank that inherited it would take itself for that process.
///
/// Facts about a Slurm job and its nodes (`SLURM_JOB_ID`, `SLURM_GPUS_ON_NODE`) are not among them.
pub fn is_of_launcher(name: &str) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    begins(&OWN_SETTINGS) || !begins(&SETTINGS) && (begins(&LAUNCHERS) || LAUNCHED.contains(&name))
}

/// Returns whether a variable identifies a rank in its group.
pub fn is_identity(name: &str) -> bool {
    IDENTITY.contains(&name)
}

/// Returns why the user cannot set this variable of a rank, if so.
pub fn reserved(name: &str) -> Option<HintedError> {
    if is_identity(name) {
        return Some(HintedError::new(
            format!("`{name}` is reserved: rankdeck sets it for each rank"),
            "remove it",
        ));
    }
    name.starts_with(OWN).then(|| {
        HintedError::new(
            format!("`{name}` is reserved: names that start with `{OWN}` belong to rankdeck"),
            "choose another name",
        )
    })
}

/// Words that mark the name of a secret.
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

/// Returns whether a variable of this name usually holds a secret: `WANDB_API_KEY`, `PGPASSWORD`, but not
/// `PWD`.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_secret = |part: &str| {
        let bare = part.strip_suffix('S').filter(|bare| SECRETS.contains(bare)).unwrap_or(part);
        // Short words end many others: `COMPASS`, `SPAT`.
        SECRETS.iter().any(|word| bare == *word || (word.len() > 4 && bare.ends_with(word)))
            || (bare.ends_with("KEY") && bare.len() > 3 && !["MONKEY", "TURKEY"].contains(&bare))
    };
    !["PWD", "OLDPWD"].contains(&name.as_str())
        && name.split(|c: char| !c.is_ascii_alphanumeric()).any(is_secret)
}

/// Returns whether a text contains a login with its password: `https://me:secret@host`.
pub fn holds_password(value: &str) -> bool {
    value.match_indices("://").any(|(at, sign)| {
        let rest = value.get(at + sign.len()..).unwrap_or_default();
        let end = rest.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(rest.len());
        rest.get(..end).and_then(|host| host.rsplit_once('@')).is_some_and(|(who, _)| who.contains(':'))
    })
}

/// Most bytes of all values of one host: they must fit into a launch message.
pub const MOST_BYTES: usize = 32 << 10;

/// A part of a value of `env`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart<'a> {
    Text(&'a str),
    /// `${NAME}`.
    Variable(&'a str),
}

/// A malformed value of `env`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedValue {
    /// The error, to follow the key.
    pub error: String,
    /// The fix.
    pub hint: String,
}

/// Returns whether `name` is a valid variable name.
pub fn is_name(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses `a${B}c$$D` into parts; `$$` before a name or a brace is a dollar sign.
fn parts(text: &str) -> Result<Vec<TemplatePart<'_>>, MalformedValue> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (plain, behind) = rest.split_at(at);
        found.push(TemplatePart::Text(plain));
        let begins = |text: &str| text.starts_with(|c: char| c == '{' || c == '_' || c.is_ascii_alphabetic());
        let after = &behind[1..];
        rest = if let Some(escaped) = after.strip_prefix('$').filter(|escaped| begins(escaped)) {
            found.push(TemplatePart::Text("$"));
            // The following name is literal.
            let end = escaped.find('$').unwrap_or(escaped.len());
            found.push(TemplatePart::Text(&escaped[..end]));
            &escaped[end..]
        } else if let Some(inner) = after.strip_prefix('{') {
            let name = inner.split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
            let Some(name) = name else {
                return Err(MalformedValue {
                    error: "contains `${` without a variable name".into(),
                    hint: "write `${NAME}` for a variable of this console, `$${` for the literal text".into(),
                });
            };
            found.push(TemplatePart::Variable(name));
            &inner[name.len() + 1..]
        } else if begins(after) {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            let name = &after[..end];
            return Err(MalformedValue {
                error: format!("contains `${name}`, which is not expanded (no shell)"),
                hint: format!(
                    "write `${{{name}}}` for this console's value, `$${name}` for the literal text, or set it in \
                     `prelude` for the host's value"
                ),
            });
        } else {
            found.push(TemplatePart::Text("$"));
            after
        };
    }
    found.push(TemplatePart::Text(rest));
    Ok(found)
}

/// Validates a value of `env`.
pub fn check(text: &str) -> Result<(), MalformedValue> {
    parts(text).map(drop)
}

/// Returns the literal value of an `env` entry; `None` if it refers to a variable.
pub fn plain(text: &str) -> Option<String> {
    // A value that an older console accepted stays as it is.
    let Ok(parts) = parts(text) else { return Some(text.to_owned()) };
    parts
        .into_iter()
        .map(|part| match part {
            TemplatePart::Text(text) => Some(text),
            TemplatePart::Variable(_) => None,
        })
        .collect()
}

/// Variables of a host's ranks whose values come from the console.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestedVariables {
    /// Name in the ranks, and the template to fill in.
    entries: BTreeMap<String, String>,
}

impl RequestedVariables {
    /// Collects `launch.pass_env`, and `env` of the experiment and of the host.
    pub fn new(launch: &LaunchConfig, host: &Host) -> RequestedVariables {
        let mut entries: BTreeMap<String, String> =
            launch.pass_env.iter().map(|name| (name.clone(), format!("${{{name}}}"))).collect();
        let env = launch.env.iter().chain(&host.env);
        for (name, value) in env {
            // The later one wins, even if it is literal.
            match plain(value) {
                None => entries.insert(name.clone(), value.clone()),
                Some(_) => entries.remove(name),
            };
        }
        entries.retain(|name, _| reserved(name).is_none());
        RequestedVariables { entries }
    }

    /// Returns whether no value is needed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the names in the ranks.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the console's variables that the templates read.
    pub fn console_names(&self) -> BTreeSet<String> {
        let read = self.entries.values().flat_map(|template| parts(template).unwrap_or_default());
        read.filter_map(|part| match part {
            TemplatePart::Variable(name) => Some(name.to_owned()),
            TemplatePart::Text(_) => None,
        })
        .collect()
    }

    /// Returns whether the console's variable is passed unchanged under the same name.
    pub fn passes(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|template| *template == format!("${{{name}}}"))
    }

    /// Returns whether the value depends on the rank.
    pub fn is_per_rank(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|template| template::names_rank(template))
    }

    /// Returns whether both use the same template for the variable.
    pub fn agrees(&self, other: &RequestedVariables, name: &str) -> bool {
        self.entries.get(name).is_some_and(|template| other.entries.get(name) == Some(template))
    }

    /// Returns the variables without those that a host already holds with the template of `was`.
    #[must_use]
    pub fn beyond(mut self, was: &RequestedVariables, held: &[String]) -> RequestedVariables {
        for name in held {
            if self.agrees(was, name) {
                self.entries.remove(name);
            }
        }
        self
    }

    /// Fills the templates from the console; returns the values, and the names of missing variables.
    pub fn fill(&self, console: &dyn Fn(&str) -> Option<String>) -> (PassedVariables, Vec<String>) {
        let (mut values, mut missing) = (BTreeMap::new(), Vec::new());
        for (name, template) in &self.entries {
            let mut value = Some(String::new());
            for part in parts(template).unwrap_or_default() {
                let text = match part {
                    TemplatePart::Text(text) => Some(text.to_owned()),
                    TemplatePart::Variable(variable) => {
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
        (PassedVariables(values), missing)
    }
}

/// Names with hidden values.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PassedVariables(BTreeMap<String, HiddenText>);

impl PassedVariables {
    /// Returns whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there is a value of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Copies the requested values of `other` that are missing.
    pub fn complete(&mut self, other: &PassedVariables, is_requested: impl Fn(&str) -> bool) {
        for (name, value) in other.0.iter().filter(|(name, _)| is_requested(name)) {
            self.0.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// Returns the bytes of names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.0.len()).sum()
    }

    /// Returns each name with its value, for an environment.
    pub fn reveal(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.0.as_str()))
    }
}

/// A text that no formatting prints. Overwritten when dropped.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct HiddenText(String);

impl Drop for HiddenText {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        for byte in &mut bytes {
            // SAFETY: `byte` is a valid, exclusive reference; volatile, so that the write is not optimized
            // away.
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

    fn requested(pass: &[&str], env: &[(&str, &str)], own: &[(&str, &str)]) -> RequestedVariables {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let launch = LaunchConfig {
            pass_env: pass.iter().map(|name| name.to_string()).collect(),
            env: map(env),
            ..LaunchConfig::default()
        };
        RequestedVariables::new(&launch, &Host { env: map(own), ..Host::default() })
    }

    fn console(name: &str) -> Option<String> {
        [("A", "1"), ("KEY", "s3cret"), ("EMPTY", "")]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_string())
    }

    fn filled(requested: &RequestedVariables) -> (Vec<String>, Vec<String>) {
        let (values, missing) = requested.fill(&console);
        (values.reveal().map(|(name, value)| format!("{name}={value}")).collect(), missing)
    }

    #[test]
    fn templates_are_filled_from_the_console() {
        let requested = requested(
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
        let (values, missing) = filled(&requested);
        assert_eq!(values, ["KEY=s3cret", "X=a1bs3cret", "Z="]);
        assert_eq!(missing, ["GONE", "NOT"]);
        assert_eq!(
            requested.console_names().into_iter().collect::<Vec<_>>(),
            ["A", "EMPTY", "GONE", "KEY", "NOT"]
        );
        assert_eq!(plain("$${A} $$B $ 5$").as_deref(), Some("${A} $B $ 5$"));
    }

    #[test]
    fn host_env_overrides_experiment() {
        assert_eq!(
            filled(&requested(&["KEY"], &[("X", "${KEY}")], &[("X", "own"), ("KEY", "own")])).0,
            [""; 0]
        );
        assert_eq!(filled(&requested(&[], &[("X", "own")], &[("X", "${A}")])).0, ["X=1"]);
    }

    #[test]
    fn malformed_template_is_rejected() {
        for bad in ["$HOME/x", "${", "${}", "${A", "${A-b}", "${1}", "x$PATH"] {
            assert!(check(bad).is_err(), "{bad}");
        }
        for good in ["", "$", "5$", "$5", "$$", "a$$HOME", "${A}", "$-", "pa$$"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn variables_of_other_launchers_are_recognized() {
        for name in [
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NTASKS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_NNODES",
            "SLURM_NPROCS",
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_TASKS_PER_NODE",
            "SLURM_TASK_PID",
            "PMI_RANK",
            "PMIX_NAMESPACE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_UNIVERSE_SIZE",
            "OMPI_MCA_orte_hnp_uri",
            "MPI_LOCALRANKID",
            "TORCHELASTIC_ERROR_FILE",
        ] {
            assert!(is_of_launcher(name), "{name}");
        }
        for name in [
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_GPUS_ON_NODE",
            "SLURM_CPUS_PER_TASK",
            "SLURM_CONF",
            "OMPI_MCA_btl",
            "PMIX_MCA_gds",
            "PATH",
            "RANK",
        ] {
            assert!(!is_of_launcher(name), "{name}");
        }
    }

    #[test]
    fn secret_is_recognized_by_name_or_url() {
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
    fn formatting_hides_values() {
        let (values, _) = requested(&["KEY"], &[], &[]).fill(&console);
        assert!(!format!("{values:?} {values:#?}").contains("s3cret"));
        let text = toml::to_string(&values).unwrap();
        assert_eq!(toml::from_str::<PassedVariables>(&text).unwrap(), values);
    }
}
