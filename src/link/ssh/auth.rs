//! Login: ssh-agent, key files, then prompts.
//!
//! Secrets that the user typed stay in memory for the lifetime of the process: reconnecting links need them
//! without the user, and hosts with the same key share one prompt. Invariants:
//! - AUTH-1: keys are offered in OpenSSH's order (certificates; configured keys of the agent; its other keys
//!   unless `IdentitiesOnly`; other configured keys), and a refused key costs one of the server's attempts
//!   (MaxAuthTries). If the server disconnects before the configured keys were offered, one more connection
//!   offers only those.
//! - AUTH-2: the agent's identities are offered one by one; libssh2's own loop tries only the first.
//! - AUTH-3: `authenticated()` decides, not return codes: libssh2 returns -19 for a key that was accepted as
//!   the first of two factors.
//! - RING-1: a secret is never stored or formatted, and is overwritten when dropped ([`Secret`]).
//! - RING-2: the answer to a server's prompt is used again only after the user has typed it twice and it was
//!   accepted twice: nothing else shows that it is not a one-time code, whatever the prompt is. A code that is
//!   tried twice is a failed login, and may lock the account.
//! - There is one prompt at a time per secret; other sessions wait and use its answer.

use super::connection::{Connection, Permit};
use super::keys::{self, KeyFile, Secret};
use super::session::{self, BlockReason};
use super::user_config::{AgentChoice, SshTarget};
use super::{SessionOwner, SshError, SshErrorKind, quote};
use rankdeck_types::link_state::Prompt;
use rankdeck_types::words;
use ssh2::KeyboardInteractivePrompt;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most prompts for a passphrase or password.
const TRIES: u32 = 3;
/// Timeout of one exchange with the server; PAM alone may take seconds.
const EXCHANGE: Duration = Duration::from_secs(30);
/// Timeout of reading the last words of a server that disconnected.
const PARTING: Duration = Duration::from_secs(2);
/// libssh2's error if the server disconnects after the signature, which it requests for keys that it accepts.
const AFTER_SIGNATURE: &str = "Waiting for publickey USERAUTH response";
/// `LIBSSH2_ERROR_FILE`: the key cannot be read, because of its passphrase or its format.
const BAD_KEY: i32 = -16;
/// `LIBSSH2_ERROR_AUTHENTICATION_FAILED`. For a key: refused before a signature.
const AUTHENTICATION_FAILED: i32 = -18;
/// `LIBSSH2_ERROR_SOCKET_NONE`, `..._SEND`, `..._DISCONNECT`, `..._RECV`: the connection is gone.
const DISCONNECTED: [i32; 4] = [-1, -7, -13, -43];

/// A login in progress.
struct Login<'a> {
    connection: &'a Connection,
    owner: &'a mut dyn SessionOwner,
    permit: &'a mut Option<Permit>,
    /// Methods that the server still accepts, separated by commas.
    methods: String,
    /// Keys of the agent that are not configured were offered.
    has_offered_others: bool,
    /// Configured keys not offered yet.
    configured_left: usize,
    /// Attempts, for the error.
    tried: Vec<String>,
    /// Hints, for the error.
    hints: Vec<String>,
    /// Public keys offered so far.
    offered: Vec<Vec<u8>>,
    /// The server accepted the last key.
    has_accepted_key: bool,
    /// The server's banner before the first credentials, usually a legal notice.
    greeting: String,
}

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoginStep {
    /// Logged in.
    Done,
    /// Accepted, but the server requires another factor.
    Partial,
    /// Not accepted.
    Refused,
}

/// Logs in. Drops `permit` before the first prompt.
pub fn login(
    connection: &Connection,
    permit: &mut Option<Permit>,
    owner: &mut dyn SessionOwner,
) -> Result<(), SshError> {
    let mut login = Login {
        connection,
        owner,
        permit,
        methods: String::new(),
        has_offered_others: false,
        configured_left: 0,
        tried: Vec::new(),
        hints: Vec::new(),
        offered: Vec::new(),
        has_accepted_key: false,
        greeting: String::new(),
    };
    if login.ask_methods()? {
        return Ok(());
    }
    login.greeting = login.banner();
    if login.accepts("publickey") && login.public_keys()? == LoginStep::Done {
        return Ok(());
    }
    if login.questions()? == LoginStep::Done {
        return Ok(());
    }
    Err(login.refused())
}

impl Login<'_> {
    /// Returns whether the server accepts a method that the user's configuration allows.
    fn accepts(&self, method: &str) -> bool {
        self.methods.split(',').any(|offered| offered == method)
            && self.connection.target.allows_method(method)
    }

    /// Returns the server's latest banner; empty without one.
    fn banner(&self) -> String {
        let banner = self.connection.session.userauth_banner().ok().flatten();
        banner.map(str::to_owned).unwrap_or_default()
    }

    /// Returns what a server printed before it disconnected, such as PAM's reason; empty if nothing. libssh2
    /// parses it only with the next list of methods, which need not arrive.
    fn last_words(&mut self) -> String {
        let user = self.connection.target.user.clone();
        let connection = self.connection;
        let _ = connection
            .until(self.owner, Instant::now() + PARTING, || connection.session.auth_methods(&user).map(drop));
        let banner = self.banner();
        if banner == self.greeting { String::new() } else { one_line(&banner) }
    }

    /// Runs one exchange with the server.
    fn exchange<T>(
        &mut self,
        mut call: impl FnMut(&ssh2::Session) -> Result<T, ssh2::Error>,
    ) -> Result<T, BlockReason> {
        let connection = self.connection;
        connection.until(self.owner, Instant::now() + EXCHANGE, || call(&connection.session))
    }

    /// Queries the methods of the server; `true` if it requires none.
    fn ask_methods(&mut self) -> Result<bool, SshError> {
        let user = self.connection.target.user.clone();
        let methods = self.exchange(|session| session.auth_methods(&user).map(String::from));
        if self.connection.session.authenticated() {
            return Ok(true);
        }
        self.methods = methods.map_err(|blocked| self.disconnected(&blocked))?;
        Ok(false)
    }

    /// Returns the error of a lost connection.
    fn disconnected(&self, blocked: &BlockReason) -> SshError {
        let target = &self.connection.target;
        blocked.transient(
            &format!("{}: login as {} interrupted", target.label, target.account()),
            &format!("try `{}`", target.command()),
        )
    }

    /// Checks the result of offering a key. After a refused key, the methods are not queried: that would
    /// count as one more attempt.
    fn check_key(&mut self, result: Result<(), BlockReason>, what: &str) -> Result<LoginStep, SshError> {
        match &result {
            Err(blocked)
                if blocked.code() == AUTHENTICATION_FAILED && !self.connection.session.authenticated() =>
            {
                self.tried.push(format!("{what}: {}", plain(blocked)));
                Ok(LoginStep::Refused)
            }
            _ => self.check(result, what),
        }
    }

    /// Checks the result of offering credentials.
    fn check(&mut self, result: Result<(), BlockReason>, what: &str) -> Result<LoginStep, SshError> {
        if self.connection.session.authenticated() {
            return Ok(LoginStep::Done);
        }
        let blocked = match result {
            Ok(()) => return Ok(LoginStep::Done),
            Err(BlockReason::Closed) => return Err(SshError::closed()),
            Err(blocked @ BlockReason::TimedOut) => return Err(self.disconnected(&blocked)),
            Err(blocked) => blocked,
        };
        self.has_accepted_key = blocked.text() == AFTER_SIGNATURE;
        let outcome = if self.has_accepted_key { "accepted".into() } else { plain(&blocked) };
        self.tried.push(format!("{what}: {outcome}"));
        if DISCONNECTED.contains(&blocked.code()) {
            return Err(self.server_disconnected());
        }
        let before = self.methods.clone();
        match self.ask_methods() {
            Ok(true) => Ok(LoginStep::Done),
            Ok(false) if self.methods != before => Ok(LoginStep::Partial),
            Ok(false) => Ok(LoginStep::Refused),
            Err(error) if error.kind == SshErrorKind::Closed => Err(error),
            Err(_) => Err(self.server_disconnected()),
        }
    }

    /// Returns the error of a server that disconnected: it printed why, does not admit the account although it
    /// accepted the key, or allows no more attempts.
    fn server_disconnected(&mut self) -> SshError {
        let words = self.last_words();
        self.tried.push("then the server disconnected".into());
        let command = self.connection.target.command();
        if !words.is_empty() {
            self.hints.push(format!("check why the server rejects this account: try `{command}`"));
            return self.refused_with(&words);
        }
        if self.has_accepted_key {
            self.hints.push(format!(
                "the server may not admit this account (PAM, /etc/nologin, an expired password): try `{command}`"
            ));
        } else if self.has_offered_others || self.configured_left > 0 {
            self.hints.push(
                "the server limits attempts (MaxAuthTries): set identity_file for this host in hosts.toml, and \
                 `IdentitiesOnly yes` for it in ~/.ssh/config, to offer no other keys"
                    .into(),
            );
        }
        // Without either, the hint is about the key.
        let error = self.refused();
        let is_narrower = self.has_offered_others && self.configured_left > 0 && !self.has_accepted_key;
        let kind = if is_narrower { SshErrorKind::TooManyKeys } else { error.kind };
        SshError { kind, ..error }
    }

    /// Offers all keys (AUTH-1).
    fn public_keys(&mut self) -> Result<LoginStep, SshError> {
        let files = keys::load(&self.connection.target, &mut self.tried);
        self.configured_left = files.iter().filter(|file| file.is_private()).count();
        // Encrypted keys come last, to avoid prompts.
        let (encrypted, open): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.encrypted);
        for file in open.iter().filter(|file| file.is_private()) {
            match self.certificates(file, None)? {
                Some(LoginStep::Refused) | None => {}
                Some(step) => return Ok(step),
            }
        }
        let configured_keys: Vec<&[u8]> = files.iter().filter_map(|file| file.public.as_deref()).collect();
        match self.agent(&configured_keys)? {
            LoginStep::Refused => {}
            step => return Ok(step),
        }
        for file in open.into_iter().chain(encrypted) {
            if file.public.as_ref().is_some_and(|key| self.offered.contains(key)) {
                continue;
            }
            self.configured_left = self.configured_left.saturating_sub(1);
            let step = if file.encrypted { self.encrypted_file(file)? } else { self.plain_file(file)? };
            if step != LoginStep::Refused {
                return Ok(step);
            }
        }
        Ok(LoginStep::Refused)
    }

    /// Offers the agent's keys (AUTH-2), those in `configured_keys` first and in their order.
    fn agent(&mut self, configured_keys: &[&[u8]]) -> Result<LoginStep, SshError> {
        let socket = match &self.connection.target.agent {
            AgentChoice::Off => return Ok(LoginStep::Refused),
            AgentChoice::Environment
                if std::env::var_os("SSH_AUTH_SOCK").is_none_or(|value| value.is_empty()) =>
            {
                return Ok(LoginStep::Refused);
            }
            AgentChoice::Environment => None,
            AgentChoice::Socket(path) => Some(path.clone()),
        };
        let opened = self.connection.session.agent().and_then(|mut agent| {
            if let Some(path) = &socket {
                agent.set_identity_path(path)?;
            }
            agent.connect()?;
            agent.list_identities()?;
            let identities = agent.identities()?;
            Ok((agent, identities))
        });
        let (agent, identities) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.tried.push(format!("ssh-agent: {}", error.message()));
                return Ok(LoginStep::Refused);
            }
        };
        let place = |blob: &[u8]| configured_keys.iter().position(|key| *key == blob);
        let (mut configured, others): (Vec<_>, Vec<_>) =
            identities.into_iter().partition(|identity| place(identity.blob()).is_some());
        configured.sort_by_key(|identity| place(identity.blob()));
        let others = if self.connection.target.identities_only { Vec::new() } else { others };
        let user = self.connection.target.user.clone();
        for identity in configured.into_iter().chain(others) {
            if place(identity.blob()).is_some() {
                self.configured_left = self.configured_left.saturating_sub(1);
            } else {
                self.has_offered_others = true;
            }
            self.offered.push(identity.blob().to_vec());
            let result = self.exchange(|_| agent.userauth(&user, &identity));
            let outcome = self.check_key(result, &format!("ssh-agent {}", identity.comment()))?;
            if outcome != LoginStep::Refused {
                return Ok(outcome);
            }
        }
        Ok(LoginStep::Refused)
    }

    /// Offers the certificates of a key; `None` if the passphrase is wrong.
    fn certificates(
        &mut self,
        file: &KeyFile,
        secret: Option<&Secret>,
    ) -> Result<Option<LoginStep>, SshError> {
        let user = self.connection.target.user.clone();
        for (path, certificate) in &file.certificates {
            let result = self.exchange(|session| {
                let secret = secret.map(Secret::text);
                session.userauth_pubkey_memory(&user, Some(certificate), file.text.text(), secret)
            });
            if secret.is_some() && result.as_ref().is_err_and(|blocked| blocked.code() == BAD_KEY) {
                return Ok(None);
            }
            match self.check_key(result, &path.display().to_string())? {
                LoginStep::Refused => {}
                step => return Ok(Some(step)),
            }
        }
        Ok(Some(LoginStep::Refused))
    }

    fn plain_file(&mut self, file: &KeyFile) -> Result<LoginStep, SshError> {
        if !file.is_private() {
            self.tried.push(format!("{}: not in the ssh-agent", file.path.display()));
            return Ok(LoginStep::Refused);
        }
        let user = self.connection.target.user.clone();
        let result =
            self.exchange(|session| session.userauth_pubkey_memory(&user, None, file.text.text(), None));
        self.check_key(result, &file.path.display().to_string())
    }

    fn encrypted_file(&mut self, file: &KeyFile) -> Result<LoginStep, SshError> {
        let name = format!("key {}", file.path.display());
        let user = self.connection.target.user.clone();
        if let Some(secret) = remembered_secret(&name) {
            match self.unlock(&user, file, &secret)? {
                None => forget_secret(&name),
                Some(step) => return Ok(step),
            }
        }
        if !self.owner.interactive() {
            self.tried.push(format!("{}: needs a passphrase", file.path.display()));
            self.hints.push(format!(
                "load the key with `ssh-add {}`",
                quote::word(&file.path.display().to_string())
            ));
            return Ok(LoginStep::Refused);
        }
        self.permit.take();
        for _ in 0..TRIES {
            let turn = prompt_turn(&name, self.owner).ok_or_else(SshError::closed)?;
            let (secret, asked) = match remembered_secret(&name) {
                Some(secret) => (secret, false),
                None => {
                    let answer = self.owner.ask(&Prompt::Passphrase { key: file.path.display().to_string() });
                    if self.owner.closing() {
                        return Err(SshError::closed());
                    }
                    match answer {
                        Some(text) => (Secret::new(text), true),
                        None => {
                            self.tried.push(format!("{}: no passphrase entered", file.path.display()));
                            return Ok(LoginStep::Refused);
                        }
                    }
                }
            };
            match self.unlock(&user, file, &secret)? {
                Some(step) => {
                    if asked {
                        remember_secret(&name, secret);
                    }
                    return Ok(step);
                }
                None => forget_secret(&name),
            }
            drop(turn);
        }
        self.tried.push(format!("{}: wrong passphrase", file.path.display()));
        self.hints.push(format!(
            "check the passphrase with `ssh-keygen -y -f {}`",
            quote::word(&file.path.display().to_string())
        ));
        Ok(LoginStep::Refused)
    }

    /// Offers an encrypted key; `None` if the passphrase is wrong.
    fn unlock(&mut self, user: &str, file: &KeyFile, secret: &Secret) -> Result<Option<LoginStep>, SshError> {
        match self.certificates(file, Some(secret))? {
            Some(LoginStep::Refused) => {}
            other => return Ok(other),
        }
        let result = self.exchange(|session| {
            session.userauth_pubkey_memory(user, None, file.text.text(), Some(secret.text()))
        });
        if result.as_ref().is_err_and(|blocked| blocked.code() == BAD_KEY) {
            return Ok(None);
        }
        self.check_key(result, &file.path.display().to_string()).map(Some)
    }

    /// Prompts: keyboard-interactive, else password.
    fn questions(&mut self) -> Result<LoginStep, SshError> {
        let interactive = self.accepts("keyboard-interactive");
        if !interactive && !self.accepts("password") {
            return Ok(LoginStep::Refused);
        }
        let account = self.connection.target.account();
        let user = self.connection.target.user.clone();
        let name = format!("account {account}");
        for attempt in 0..TRIES {
            let remembered = remembered_secret(&name).filter(|_| attempt == 0);
            if remembered.is_none() && !self.owner.interactive() {
                self.hints.push(format!(
                    "{account} requires a password; install a key with `{}`",
                    copy_id(&self.connection.target, None)
                ));
                return Ok(LoginStep::Refused);
            }
            if remembered.is_none() {
                self.permit.take();
            }
            let is_remembered = remembered.is_some();
            let connection = self.connection;
            let mut answers = KeyboardAnswers {
                owner: self.owner,
                account: &account,
                jump: connection.target.jump(),
                remembered,
                typed: None,
                rounds: 0,
                refused: false,
            };
            let result = if interactive {
                // The server bounds the user's time (LoginGraceTime).
                let fd = connection.fd();
                session::wait_until(
                    &connection.session,
                    fd,
                    &mut AbsentOwner,
                    Instant::now() + EXCHANGE * 4,
                    || connection.session.userauth_keyboard_interactive(&user, &mut answers),
                )
            } else {
                match answers.one("password: ") {
                    Some(text) => {
                        let text = Secret::new(text);
                        connection.until(answers.owner, Instant::now() + EXCHANGE, || {
                            connection.session.userauth_password(&user, text.text())
                        })
                    }
                    None => Err(BlockReason::Closed),
                }
            };
            let (typed, refused) = (answers.typed.take(), answers.refused);
            if self.owner.closing() {
                return Err(SshError::closed());
            }
            if refused {
                self.tried.push("password: no answer".into());
                return Ok(LoginStep::Refused);
            }
            let step = self.check(result, if is_remembered { "remembered password" } else { "password" })?;
            match step {
                LoginStep::Refused => forget_secret(&name),
                step => {
                    if let Some(secret) = typed {
                        remember_answer(&name, secret);
                    }
                    return Ok(step);
                }
            }
        }
        Ok(LoginStep::Refused)
    }

    fn refused(&mut self) -> SshError {
        let target = &self.connection.target;
        let tried = if self.tried.is_empty() { "no key to offer".to_string() } else { self.tried.join("; ") };
        if self.hints.is_empty() {
            let key = target.identities.iter().find(|path| path.exists()).map(PathBuf::as_path);
            self.hints.push(match key {
                Some(key) => format!(
                    "install a key with `{}`, then check with `{}`",
                    copy_id(target, Some(key)),
                    target.command()
                ),
                None => "create a key with `ssh-keygen -t ed25519`, or set identity_file for this host in hosts.toml".into(),
            });
        }
        let hint = self.hints.join("; ") + &target.ignored_hint();
        SshError::permanent(
            format!(
                "{}: {} refused the login (accepted methods: {}{}): {tried}",
                target.label,
                target.account(),
                self.methods,
                match target.methods.as_slice() {
                    [] => String::new(),
                    allowed => format!("; allowed by the ssh configuration: {}", allowed.join(",")),
                }
            ),
            hint,
        )
    }

    /// Returns the error of a server that printed `words` and disconnected.
    fn refused_with(&self, words: &str) -> SshError {
        let target = &self.connection.target;
        SshError::permanent(
            format!(
                "{}: {} refused the login: {words} ({})",
                target.label,
                target.account(),
                self.tried.join("; ")
            ),
            self.hints.join("; "),
        )
    }
}

/// Returns a banner as one line.
fn one_line(banner: &str) -> String {
    let lines: Vec<&str> = banner.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    words::clip(&lines.join(" "), 300)
}

/// Returns the command that installs a key.
fn copy_id(target: &SshTarget, key: Option<&Path>) -> String {
    let key = key.map(|key| format!("-i {} ", quote::word(&key.display().to_string()))).unwrap_or_default();
    let account = format!("{}@{}", target.user, target.address);
    format!("ssh-copy-id {key}-p {} {}", target.port, quote::word(&account))
}

/// Returns a refusal of libssh2 as text.
fn plain(blocked: &BlockReason) -> String {
    match blocked.code() {
        -18 | -19 => "refused".into(),
        BAD_KEY => "cannot be read".into(),
        _ => blocked.text(),
    }
}

/// Answers the server's prompts. libssh2 prompts inside a call, so the owner is lent to the callback
/// meanwhile.
struct KeyboardAnswers<'a> {
    owner: &'a mut dyn SessionOwner,
    account: &'a str,
    jump: Option<&'a str>,
    remembered: Option<Secret>,
    /// The typed secret, if there was exactly one.
    typed: Option<Secret>,
    rounds: u32,
    refused: bool,
}

impl KeyboardAnswers<'_> {
    fn one(&mut self, text: &str) -> Option<String> {
        if let Some(secret) = self.remembered.take() {
            return Some(secret.text().to_string());
        }
        let (account, jump) = (self.account.to_owned(), self.jump.map(str::to_owned));
        let prompt = Prompt::Password { account, text: text.to_owned(), jump };
        let answer = if self.refused { None } else { self.owner.ask(&prompt) };
        self.rounds += 1;
        match &answer {
            Some(text) => self.typed = (self.rounds == 1).then(|| Secret::new(text.clone())),
            None => self.refused = true,
        }
        answer
    }
}

impl KeyboardInteractivePrompt for KeyboardAnswers<'_> {
    fn prompt<'a>(&mut self, _user: &str, instructions: &str, prompts: &[ssh2::Prompt<'a>]) -> Vec<String> {
        let ask = |prompt: &ssh2::Prompt<'a>| match instructions.trim() {
            "" => prompt.text.to_string(),
            instructions => format!("{instructions} {}", prompt.text),
        };
        prompts.iter().map(|prompt| self.one(&ask(prompt)).unwrap_or_default()).collect()
    }
}

/// Placeholder while libssh2's callback holds the owner; the exchange's deadline bounds the wait.
pub(super) struct AbsentOwner;

impl SessionOwner for AbsentOwner {
    fn interactive(&self) -> bool {
        false
    }

    fn ask(&mut self, _prompt: &Prompt) -> Option<String> {
        None
    }

    fn closing(&mut self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// Secrets that were accepted, and those that a session prompts for.
#[derive(Default)]
struct Keyring {
    secrets: HashMap<String, Secret>,
    /// Answers that were accepted once (RING-2).
    once: HashMap<String, Secret>,
    asking: HashSet<String>,
}

static KEYRING: Mutex<Option<Keyring>> = Mutex::new(None);

fn with_keyring<T>(act: impl FnOnce(&mut Keyring) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Keyring>> = KEYRING.lock().unwrap_or_else(PoisonError::into_inner);
    act(guard.get_or_insert_default())
}

/// Returns the secret `name`, if it was typed before.
fn remembered_secret(name: &str) -> Option<Secret> {
    with_keyring(|ring| ring.secrets.get(name).cloned())
}

/// Stores the answer to a server's prompt if it was accepted twice (RING-2).
fn remember_answer(name: &str, answer: Secret) {
    with_keyring(|ring| {
        let again = ring.once.get(name).is_some_and(|known| known.text() == answer.text());
        let ring = if again { &mut ring.secrets } else { &mut ring.once };
        ring.insert(name.into(), answer);
    });
}

/// Stores a secret that was accepted.
fn remember_secret(name: &str, secret: Secret) {
    with_keyring(|ring| ring.secrets.insert(name.into(), secret));
}

/// Removes a secret that was rejected.
fn forget_secret(name: &str) {
    with_keyring(|ring| ring.secrets.remove(name));
}

/// The right to prompt for one secret, until dropped.
struct PromptTurn(String);

impl Drop for PromptTurn {
    fn drop(&mut self) {
        with_keyring(|ring| ring.asking.remove(&self.0));
    }
}

/// Waits until no other session prompts for `name`; `None` if the owner closes the session. The secret may be
/// remembered afterwards.
fn prompt_turn(name: &str, owner: &mut dyn SessionOwner) -> Option<PromptTurn> {
    loop {
        if with_keyring(|ring| ring.asking.insert(name.into())) {
            return Some(PromptTurn(name.into()));
        }
        if owner.closing() {
            return None;
        }
        // Polling is cheap compared with typing, and needs no second wake-up.
        let wake: Vec<_> = owner
            .wake_fd()
            .map(|fd| session::Interest { fd, read: true, write: false })
            .into_iter()
            .collect();
        let _ = session::poll(&wake, Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_2_answer_is_reused_after_it_was_accepted_twice() {
        let name = "test: account";
        let accepted = |text: &str| {
            remember_answer(name, Secret::new(text.into()));
            remembered_secret(name).map(|secret| secret.text().to_owned())
        };
        assert_eq!(accepted("111111"), None);
        assert_eq!(accepted("222222"), None, "one-time codes differ");
        assert_eq!(accepted("hunter2"), None);
        assert_eq!(accepted("hunter2").as_deref(), Some("hunter2"));
        forget_secret(name);
        assert_eq!(remembered_secret(name).map(|secret| secret.text().to_owned()), None);
    }

    #[test]
    fn banner_becomes_one_clean_line() {
        let text = "\r\nAccess denied: no active job\r\n\x1b[31mon this node\n\n";
        assert_eq!(one_line(text), "Access denied: no active job on this node");
        assert!(one_line(&"x".repeat(5000)).chars().count() < 400);
    }

    #[test]
    fn ring_1_secret_is_not_formatted() {
        assert_eq!(format!("{:?}", Secret::new("hunter2".into())), "(secret)");
        remember_secret("test: one", Secret::new("a".into()));
        assert_eq!(remembered_secret("test: one").unwrap().text(), "a");
        forget_secret("test: one");
        assert_eq!(remembered_secret("test: one"), None);
    }
}
