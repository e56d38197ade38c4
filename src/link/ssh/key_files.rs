//! The key files of one login, and the certificates that belong to them.
//!
//! Owner: one login. Nothing is offered here.

use super::keyring::Secret;
use super::keys;
use super::user_config::SshTarget;
use std::fs;
use std::path::{Path, PathBuf};

/// A configured key.
pub(super) struct KeyFile {
    pub path: PathBuf,
    /// The private half; empty for a `.pub` file, which means that key of the agent.
    pub text: Secret,
    /// A passphrase is needed.
    pub encrypted: bool,
    /// The public half in wire form, where it can be told.
    pub public: Option<Vec<u8>>,
    /// Certificates for it (path and text of the file), offered before the bare key, as OpenSSH does.
    pub certificates: Vec<(PathBuf, String)>,
}

impl KeyFile {
    /// The private half is here.
    pub fn is_private(&self) -> bool {
        !self.text.text().is_empty()
    }
}

/// The configured keys that exist; what cannot be used is added to `tried`.
pub(super) fn load(target: &SshTarget, tried: &mut Vec<String>) -> Vec<KeyFile> {
    let mut files = Vec::new();
    for path in &target.identities {
        let text = match fs::read_to_string(path) {
            Ok(text) => Secret::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                tried.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let Some(facts) = keys::facts(text.text()) else {
            let named = text.text().starts_with("ssh-") || text.text().starts_with("ecdsa-");
            match keys::public_blob(text.text()).filter(|_| named) {
                Some(public) => files.push(KeyFile {
                    path: path.clone(),
                    text: Secret::new(String::new()),
                    encrypted: false,
                    public: Some(public),
                    certificates: Vec::new(),
                }),
                None => tried.push(format!("{}: no private key", path.display())),
            }
            continue;
        };
        let public = facts.public.or_else(|| {
            fs::read_to_string(beside(path, ".pub")).ok().and_then(|text| keys::public_blob(&text))
        });
        let certificates = certificates(target, path, public.as_deref());
        files.push(KeyFile { path: path.clone(), text, encrypted: facts.encrypted, public, certificates });
    }
    files
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_path_buf().into_os_string();
    name.push(suffix);
    name.into()
}

/// The certificates of the key at `path`: those configured that are for it, and `PATH-cert.pub`.
fn certificates(target: &SshTarget, path: &Path, public: Option<&[u8]>) -> Vec<(PathBuf, String)> {
    let Some(public) = public else { return Vec::new() };
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for file in target.certificates.iter().cloned().chain([beside(path, "-cert.pub")]) {
        let fits = |text: &String| {
            keys::public_blob(text).is_some_and(|certificate| keys::certifies(&certificate, public))
        };
        if let Some(text) = fs::read_to_string(&file).ok().filter(fits)
            && !found.iter().any(|(_, known)| *known == text)
        {
            found.push((file, text));
        }
    }
    found
}
