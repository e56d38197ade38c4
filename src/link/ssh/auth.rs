//! Logging in: ssh-agent, key files, then questions.
//!
//! Owner: the session's thread. Invariants:
//! - AUTH-1: at most [`MAX_OFFERS`] keys are offered, the configured ones first: sshd hangs up after six failures (MaxAuthTries).
//! - AUTH-2: the agent's identities are offered one by one; libssh2's own loop tries only the first.
//! - AUTH-3: `authenticated()` decides, not return codes: libssh2 returns -19 for a key that was accepted as the first of two factors.

use super::answers::{Answers, Idle};
use super::connection::{Connection, Permit};
use super::key_files::{self, KeyFile};
use super::keyring::{self, Secret};
use super::user_config::AgentChoice;
use super::wait::Stall;
use super::{Operator, SshError, SshErrorKind};
use rankdeck_types::link_state::Prompt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most public keys offered to one server.
pub const MAX_OFFERS: usize = 5;
/// How often a passphrase or password is asked for.
const TRIES: u32 = 3;
/// Bound of one exchange with the server; PAM alone may take seconds.
const EXCHANGE: Duration = Duration::from_secs(30);
/// `LIBSSH2_ERROR_FILE`: the key could not be read, because of its passphrase or its form.
const BAD_KEY: i32 = -16;

/// One login under way.
struct Login<'a> {
    connection: &'a Connection,
    operator: &'a mut dyn Operator,
    permit: &'a mut Option<Permit>,
    /// What the server still accepts, separated by commas.
    methods: String,
    offers: usize,
    /// What was tried, for the error.
    tried: Vec<String>,
    /// What would have helped.
    hints: Vec<String>,
    /// Public keys that need not be offered again.
    offered: Vec<Vec<u8>>,
}

/// How far a step got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Logged in.
    Done,
    /// Accepted, but the server wants another factor.
    Partial,
    /// Not accepted.
    Refused,
}

/// Logs in. `permit` is given up as soon as the user must be asked.
pub fn login(
    connection: &Connection,
    permit: &mut Option<Permit>,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let mut login = Login {
        connection,
        operator,
        permit,
        methods: String::new(),
        offers: 0,
        tried: Vec::new(),
        hints: Vec::new(),
        offered: Vec::new(),
    };
    if login.ask_methods()? {
        return Ok(());
    }
    if login.accepts("publickey") && login.public_keys()? == Step::Done {
        return Ok(());
    }
    if login.questions()? == Step::Done {
        return Ok(());
    }
    Err(login.refused())
}

impl Login<'_> {
    fn accepts(&self, method: &str) -> bool {
        self.methods.split(',').any(|offered| offered == method)
    }

    /// One exchange with the server.
    fn exchange<T>(
        &mut self,
        mut call: impl FnMut(&ssh2::Session) -> Result<T, ssh2::Error>,
    ) -> Result<T, Stall> {
        let connection = self.connection;
        connection.until(self.operator, Instant::now() + EXCHANGE, || call(&connection.session))
    }

    /// Asks what the server accepts; `true` when it needs nothing at all.
    fn ask_methods(&mut self) -> Result<bool, SshError> {
        let user = self.connection.target.user.clone();
        let methods = self.exchange(|session| session.auth_methods(&user).map(String::from));
        if self.connection.session.authenticated() {
            return Ok(true);
        }
        self.methods = methods.map_err(|stall| self.broken(&stall))?;
        Ok(false)
    }

    /// The connection itself failed.
    fn broken(&self, stall: &Stall) -> SshError {
        let target = &self.connection.target;
        stall.passing(
            &format!("{}: login as {} broke off", target.label, target.account()),
            &format!("try `{}`", target.command()),
        )
    }

    /// Judges the result of offering something.
    fn judge(&mut self, result: Result<(), Stall>, what: &str) -> Result<Step, SshError> {
        if self.connection.session.authenticated() {
            return Ok(Step::Done);
        }
        match result {
            Ok(()) => return Ok(Step::Done),
            Err(Stall::Closed) => return Err(SshError::closed()),
            Err(stall @ Stall::TimedOut) => return Err(self.broken(&stall)),
            Err(stall) => self.tried.push(format!("{what}: {}", plain(&stall))),
        }
        let before = self.methods.clone();
        match self.ask_methods() {
            Ok(true) => Ok(Step::Done),
            Ok(false) if self.methods != before => Ok(Step::Partial),
            Ok(false) => Ok(Step::Refused),
            Err(error) if error.kind == SshErrorKind::Closed => Err(error),
            // Hung up: the server has had enough of our attempts.
            Err(_) => {
                self.hints.push("the server closed the connection: too many keys? set identity_file for this host, with `IdentitiesOnly yes` in ~/.ssh/config".into());
                Err(self.refused())
            }
        }
    }

    fn public_keys(&mut self) -> Result<Step, SshError> {
        let files = key_files::load(&self.connection.target, &mut self.tried);
        // A `.pub` file as identity means that key of the agent.
        for file in files.iter().filter(|file| file.text.text().is_empty()) {
            self.offered.retain(|key| Some(key) != file.public.as_ref());
        }
        let wanted: Vec<Vec<u8>> = files.iter().filter_map(|file| file.public.clone()).collect();
        match self.agent(&wanted)? {
            Step::Refused => {}
            step => return Ok(step),
        }
        // Keys without passphrase first: the user is asked only when nothing else helps.
        let (encrypted, open): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.encrypted);
        for file in open.into_iter().chain(encrypted) {
            if file.public.as_ref().is_some_and(|key| self.offered.contains(key)) {
                continue;
            }
            if self.offers >= MAX_OFFERS {
                self.tried.push(format!("{}: not offered after {MAX_OFFERS} others", file.path.display()));
                continue;
            }
            let step = if file.encrypted { self.encrypted_file(&file)? } else { self.plain_file(&file)? };
            if step != Step::Refused {
                return Ok(step);
            }
        }
        Ok(Step::Refused)
    }

    /// AUTH-2. `wanted`: the public keys of the configured files.
    fn agent(&mut self, wanted: &[Vec<u8>]) -> Result<Step, SshError> {
        let socket = match &self.connection.target.agent {
            AgentChoice::Off => return Ok(Step::Refused),
            AgentChoice::Environment
                if std::env::var_os("SSH_AUTH_SOCK").is_none_or(|value| value.is_empty()) =>
            {
                return Ok(Step::Refused);
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
                return Ok(Step::Refused);
            }
        };
        let (configured, others): (Vec<_>, Vec<_>) =
            identities.into_iter().partition(|identity| wanted.iter().any(|key| key == identity.blob()));
        let others = if self.connection.target.identities_only { Vec::new() } else { others };
        let user = self.connection.target.user.clone();
        // Strange keys must not use up all offers when the user has named files of his own.
        let reserve = usize::from(wanted.len() > configured.len());
        let mut outcome = Step::Refused;
        for identity in configured.into_iter().chain(others) {
            if self.offers + reserve >= MAX_OFFERS {
                self.tried.push(format!(
                    "ssh-agent {}: not offered after {} others",
                    identity.comment(),
                    self.offers
                ));
                continue;
            }
            self.offers += 1;
            self.offered.push(identity.blob().to_vec());
            let result = self.exchange(|_| agent.userauth(&user, &identity));
            outcome = self.judge(result, &format!("ssh-agent {}", identity.comment()))?;
            if outcome != Step::Refused {
                break;
            }
        }
        Ok(outcome)
    }

    fn plain_file(&mut self, file: &KeyFile) -> Result<Step, SshError> {
        if file.text.text().is_empty() {
            self.tried.push(format!("{}: not in the ssh-agent", file.path.display()));
            return Ok(Step::Refused);
        }
        let user = self.connection.target.user.clone();
        for (path, certificate) in &file.certificates {
            if self.offers + 1 >= MAX_OFFERS {
                break;
            }
            self.offers += 1;
            let result = self.exchange(|session| {
                session.userauth_pubkey_memory(&user, Some(certificate), file.text.text(), None)
            });
            match self.judge(result, &path.display().to_string())? {
                Step::Refused => {}
                step => return Ok(step),
            }
        }
        self.offers += 1;
        let result =
            self.exchange(|session| session.userauth_pubkey_memory(&user, None, file.text.text(), None));
        self.judge(result, &file.path.display().to_string())
    }

    fn encrypted_file(&mut self, file: &KeyFile) -> Result<Step, SshError> {
        let name = format!("key {}", file.path.display());
        let user = self.connection.target.user.clone();
        if let Some(secret) = keyring::get(&name) {
            match self.unlock(&user, file, &secret)? {
                None => keyring::forget(&name),
                Some(step) => return Ok(step),
            }
        }
        if !self.operator.interactive() {
            self.tried.push(format!("{}: needs a passphrase", file.path.display()));
            self.hints.push(format!("load the key first: `ssh-add {}`", file.path.display()));
            return Ok(Step::Refused);
        }
        self.permit.take();
        for _ in 0..TRIES {
            let turn = keyring::turn(&name, self.operator).ok_or_else(SshError::closed)?;
            let (secret, asked) = match keyring::get(&name) {
                Some(secret) => (secret, false),
                None => {
                    let answer =
                        self.operator.ask(&Prompt::Passphrase { key: file.path.display().to_string() });
                    if self.operator.closing() {
                        return Err(SshError::closed());
                    }
                    match answer {
                        Some(text) => (Secret::new(text), true),
                        None => {
                            self.tried.push(format!("{}: no passphrase given", file.path.display()));
                            return Ok(Step::Refused);
                        }
                    }
                }
            };
            match self.unlock(&user, file, &secret)? {
                Some(step) => {
                    if asked {
                        keyring::put(&name, secret);
                    }
                    return Ok(step);
                }
                None => keyring::forget(&name),
            }
            drop(turn);
        }
        self.tried.push(format!("{}: wrong passphrase", file.path.display()));
        self.hints.push(format!("check the passphrase with `ssh-keygen -y -f {}`", file.path.display()));
        Ok(Step::Refused)
    }

    /// Offers an encrypted key; `None` when the passphrase does not open it.
    fn unlock(&mut self, user: &str, file: &KeyFile, secret: &Secret) -> Result<Option<Step>, SshError> {
        for (path, certificate) in &file.certificates {
            if self.offers + 1 >= MAX_OFFERS {
                break;
            }
            let result = self.exchange(|session| {
                session.userauth_pubkey_memory(user, Some(certificate), file.text.text(), Some(secret.text()))
            });
            if result.as_ref().is_err_and(|stall| stall.code() == BAD_KEY) {
                return Ok(None);
            }
            self.offers += 1;
            match self.judge(result, &path.display().to_string())? {
                Step::Refused => {}
                step => return Ok(Some(step)),
            }
        }
        let result = self.exchange(|session| {
            session.userauth_pubkey_memory(user, None, file.text.text(), Some(secret.text()))
        });
        if result.as_ref().is_err_and(|stall| stall.code() == BAD_KEY) {
            return Ok(None);
        }
        self.offers += 1;
        self.judge(result, &file.path.display().to_string()).map(Some)
    }

    /// Keyboard-interactive, else password.
    fn questions(&mut self) -> Result<Step, SshError> {
        let interactive = self.accepts("keyboard-interactive");
        if !interactive && !self.accepts("password") {
            return Ok(Step::Refused);
        }
        let account = self.connection.target.account();
        let user = self.connection.target.user.clone();
        let name = format!("account {account}");
        for attempt in 0..TRIES {
            let remembered = keyring::get(&name).filter(|_| attempt == 0);
            if remembered.is_none() && !self.operator.interactive() {
                self.hints.push(format!(
                    "{account} wants a password; set up a key: `ssh-copy-id -p {} {}@{}`",
                    self.connection.target.port, user, self.connection.target.address
                ));
                return Ok(Step::Refused);
            }
            if remembered.is_none() {
                self.permit.take();
            }
            let known = remembered.is_some();
            let connection = self.connection;
            let mut answers = Answers {
                operator: self.operator,
                account: &account,
                remembered,
                typed: None,
                rounds: 0,
                refused: false,
            };
            let result = if interactive {
                // The user thinks as long as he likes: the bound is the server's (LoginGraceTime).
                let fd = connection.fd();
                super::wait::until(&connection.session, fd, &mut Idle, Instant::now() + EXCHANGE * 4, || {
                    connection.session.userauth_keyboard_interactive(&user, &mut answers)
                })
            } else {
                match answers.one("password: ") {
                    Some(text) => {
                        let text = Secret::new(text);
                        connection.until(answers.operator, Instant::now() + EXCHANGE, || {
                            connection.session.userauth_password(&user, text.text())
                        })
                    }
                    None => Err(Stall::Closed),
                }
            };
            let (typed, refused) = (answers.typed.take(), answers.refused);
            if self.operator.closing() {
                return Err(SshError::closed());
            }
            if refused {
                self.tried.push("password: none given".into());
                return Ok(Step::Refused);
            }
            let step = self.judge(result, if known { "remembered password" } else { "password" })?;
            match step {
                Step::Refused => keyring::forget(&name),
                step => {
                    if let Some(secret) = typed {
                        keyring::put(&name, secret);
                    }
                    return Ok(step);
                }
            }
        }
        Ok(Step::Refused)
    }

    fn refused(&mut self) -> SshError {
        let target = &self.connection.target;
        let tried = if self.tried.is_empty() { "no key to offer".to_string() } else { self.tried.join("; ") };
        if self.hints.is_empty() {
            let key = target.identities.iter().find(|path| Path::exists(path));
            self.hints.push(match key {
                Some(key) => format!(
                    "install a key: `ssh-copy-id -i {} -p {} {}@{}`; then check with `{}`",
                    key.display(),
                    target.port,
                    target.user,
                    target.address,
                    target.command()
                ),
                None => "make a key with `ssh-keygen -t ed25519`, or set identity_file for this host in hosts.toml".into(),
            });
        }
        SshError::lasting(
            format!(
                "{}: {} refused the login (it accepts {}): {tried}",
                target.label,
                target.account(),
                self.methods
            ),
            self.hints.join("; "),
        )
    }
}

/// libssh2's words for a refusal, in ours.
fn plain(stall: &Stall) -> String {
    match stall.code() {
        -18 | -19 => "refused".into(),
        BAD_KEY => "cannot be read".into(),
        _ => stall.text(),
    }
}
