//! Setup of a host before its ranks start: modules, Python environment, shell command, container.

use crate::schema::{KeyType, ValueKind};
use crate::schema::{PATH, PLAIN, Refusal, TextRule};
use serde::{Deserialize, Serialize};

/// A container tool and the words after its `run` or `exec`.
pub(crate) static CONTAINER: TextRule =
    TextRule::new("a container tool, its options and an image", container);
/// The name or directory of a conda environment.
pub(crate) static CONDA: TextRule = TextRule::new("the name or directory of an environment", conda);

/// Tools that run containers.
const TOOLS: [(&str, Tool); 4] = [
    ("apptainer", Tool::Apptainer),
    ("singularity", Tool::Apptainer),
    ("docker", Tool::Docker),
    ("podman", Tool::Podman),
];

/// Keys that select a Python; a host has at most one.
pub const ENVIRONMENTS: [&str; 4] = ["venv", "conda", "uv", "container"];

/// Setup before each rank of a host, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    /// Environment modules to load.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// A conda environment to activate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conda: Option<String>,
    /// A virtual environment to activate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub venv: Option<String>,
    /// A uv project whose environment is synced and activated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uv: Option<Uv>,
    /// A shell command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prelude: Option<String>,
    /// The container that the rank runs in: tool, options, image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Where a uv project is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Uv {
    /// In the ranks' directory; `false` is the same as no key.
    Here(bool),
    /// In this directory of the host.
    Folder(String),
}

impl KeyType for Uv {
    const KIND: ValueKind = ValueKind::FlagOrText(&PATH);
}

/// A container tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `apptainer exec`, in the caller's own environment and name spaces.
    Apptainer,
    /// `docker run`.
    Docker,
    /// `podman run`.
    Podman,
}

impl Setup {
    /// Returns whether there is no setup.
    pub fn is_empty(&self) -> bool {
        *self == Setup::default()
    }

    /// Returns the setup as text.
    pub fn shown(&self) -> String {
        let mut parts = Vec::new();
        if !self.modules.is_empty() {
            parts.push(format!("module load {}", self.modules.join(" ")));
        }
        parts.extend(self.conda.as_ref().map(|name| format!("conda activate {name}")));
        parts.extend(self.venv.as_ref().map(|folder| format!("venv {folder}")));
        parts.extend(self.uv.as_ref().map(|uv| match uv {
            Uv::Here(_) => "uv sync".to_owned(),
            Uv::Folder(folder) => format!("uv sync in {folder}"),
        }));
        parts.extend(self.prelude.clone());
        parts.extend(self.container.as_ref().map(|container| format!("in {container}")));
        parts.join("; ")
    }

    /// Returns the key that most likely decides which program is found.
    pub fn deciding_key(&self) -> &'static str {
        match self {
            Setup { container: Some(_), .. } => "container",
            Setup { prelude: Some(_), .. } => "prelude",
            Setup { venv: Some(_), .. } => "venv",
            Setup { conda: Some(_), .. } => "conda",
            Setup { uv: Some(_), .. } => "uv",
            Setup { modules, .. } if !modules.is_empty() => "modules",
            _ => "prelude",
        }
    }

    /// Returns whether a monitor of the container tool starts the program, not the rank's own process.
    pub fn starts_elsewhere(&self) -> bool {
        self.container().is_some_and(|(_, tool, _)| tool != Tool::Apptainer)
    }

    /// Returns the container tool as typed, its kind, and options and image.
    pub fn container(&self) -> Option<(&str, Tool, &str)> {
        let (word, rest) = self.container.as_deref()?.trim().split_once(char::is_whitespace)?;
        let name = word.rsplit('/').next().unwrap_or(word);
        let (_, tool) = TOOLS.iter().find(|(known, _)| *known == name)?;
        Some((word, *tool, rest.trim()))
    }
}

fn container(text: &str) -> Result<(), Refusal> {
    (PLAIN.test)(text)?;
    let hint = "as on a command line: `\"docker IMAGE\"`, `\"podman --shm-size 8g IMAGE\"` or \
                `\"apptainer IMAGE.sif\"`";
    let first = text.split_whitespace().next().unwrap_or_default();
    let name = first.rsplit('/').next().unwrap_or(first);
    if !TOOLS.iter().any(|(known, _)| *known == name) {
        return Err((format!("starts with `{first}`, not a container tool"), hint.to_owned()));
    }
    match text.split_whitespace().nth(1) {
        None => Err(("has no image".to_owned(), hint.to_owned())),
        Some(word @ ("run" | "exec" | "shell")) => Err((
            format!("contains the command `{word}`"),
            format!("remove `{word}`: rankdeck adds it with the options that ranks need"),
        )),
        Some(_) => Ok(()),
    }
}

fn conda(text: &str) -> Result<(), Refusal> {
    (PATH.test)(text)?;
    match text.strip_prefix("conda activate ") {
        Some(name) => Err(("contains a command".to_owned(), format!("write `conda = \"{}\"`", name.trim()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_needs_a_tool_and_an_image() {
        for good in
            ["docker a/b:c", "podman --shm-size 8g x", "apptainer docker://x", "/opt/bin/apptainer x.sif"]
        {
            assert_eq!(container(good), Ok(()), "{good}");
            assert!(
                Setup { container: Some(good.into()), ..Setup::default() }.container().is_some(),
                "{good}"
            );
        }
        for bad in ["", "docker", "pytorch/pytorch:latest", "docker run x", "apptainer exec x.sif"] {
            assert!(container(bad).is_err(), "{bad}");
        }
    }
}
