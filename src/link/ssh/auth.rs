//! Logging in: ssh-agent, key files, then questions.
//!
//! Owner: the session's thread. Invariants:
//! - AUTH-1: keys are offered in OpenSSH's order (certificates; keys of the agent that are configured; its
//!   others unless `IdentitiesOnly`; other configured keys), and a refused key costs one of the server's
//!   attempts (MaxAuthTries) and no more. A server that hangs up before the configured keys had their turn is
//!   called once more, for those alone.
//! - AUTH-2: the agent's identities are offered one by one; libssh2's own loop tries only the first.
//! - AUTH-3: `authenticated()` decides, not return codes: libssh2 returns -19 for a key that was accepted as
//!   the first of two factors.

use super::answers::{AbsentOperator, Answers};
use super::connection::{Connection, Permit};
use super::key_files::{self, KeyFile};
use super::keyring::{self, Secret};
use super::user_config::{AgentChoice, SshTarget};
use super::wait::Stall;
use super::{Operator, SshError, SshErrorKind, quote};
use rankdeck_types::link_state::Prompt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a passphrase or password is asked for.
const TRIES: u32 = 3;
/// Bound of one exchange with the server; PAM alone may take seconds.
const EXCHANGE: Duration = Duration::from_secs(30);
/// `LIBSSH2_ERROR_FILE`: the key could not be read, because of its passphrase or its form.
const BAD_KEY: i32 = -16;
/// `LIBSSH2_ERROR_AUTHENTICATION_FAILED`. Of a key: the server does not want it, and nothing was signed.
const UNWANTED: i32 = -18;
/// `LIBSSH2_ERROR_SOCKET_NONE`, `..._SEND`, `..._DISCONNECT`, `..._RECV`: the connection is gone.
const HUNG_UP: [i32; 4] = [-1, -7, -13, -43];

/// One login under way.
struct Login<'a> {
    connection: &'a Connection,
    operator: &'a mut dyn Operator,
    permit: &'a mut Option<Permit>,
    /// What the server still accepts, separated by commas.
    methods: String,
    /// Keys of the agent that nobody has configured were offered.
    strangers: bool,
    /// Configured keys that were not offered yet.
    waiting: usize,
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
        strangers: false,
        waiting: 0,
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

    /// Judges the result of offering a key. Of a key that the server does not want it is not asked what else
    /// it accepts: the question would count as one more attempt.
    fn judge_key(&mut self, result: Result<(), Stall>, what: &str) -> Result<Step, SshError> {
        match &result {
            Err(stall) if stall.code() == UNWANTED && !self.connection.session.authenticated() => {
                self.tried.push(format!("{what}: {}", plain(stall)));
                Ok(Step::Refused)
            }
            _ => self.judge(result, what),
        }
    }

    /// Judges the result of offering something.
    fn judge(&mut self, result: Result<(), Stall>, what: &str) -> Result<Step, SshError> {
        if self.connection.session.authenticated() {
            return Ok(Step::Done);
        }
        let stall = match result {
            Ok(()) => return Ok(Step::Done),
            Err(Stall::Closed) => return Err(SshError::closed()),
            Err(stall @ Stall::TimedOut) => return Err(self.broken(&stall)),
            Err(stall) => stall,
        };
        self.tried.push(format!("{what}: {}", plain(&stall)));
        if HUNG_UP.contains(&stall.code()) {
            return Err(self.hung_up());
        }
        let before = self.methods.clone();
        match self.ask_methods() {
            Ok(true) => Ok(Step::Done),
            Ok(false) if self.methods != before => Ok(Step::Partial),
            Ok(false) => Ok(Step::Refused),
            Err(error) if error.kind == SshErrorKind::Closed => Err(error),
            Err(_) => Err(self.hung_up()),
        }
    }

    /// The server has had enough of our attempts.
    fn hung_up(&mut self) -> SshError {
        self.tried.push("then the server hung up".into());
        self.hints.push(
            "the server allows few attempts (MaxAuthTries): set identity_file for this host in hosts.toml, and \
             `IdentitiesOnly yes` for it in ~/.ssh/config, so that other keys of the ssh-agent are not offered"
                .into(),
        );
        let narrower = self.strangers && self.waiting > 0;
        let error = self.refused();
        let kind = if narrower { SshErrorKind::TooManyKeys } else { error.kind };
        SshError { kind, ..error }
    }

    /// AUTH-1.
    fn public_keys(&mut self) -> Result<Step, SshError> {
        let files = key_files::load(&self.connection.target, &mut self.tried);
        self.waiting = files.iter().filter(|file| file.is_private()).count();
        // The user is asked for a passphrase only when nothing else helps.
        let (encrypted, open): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.encrypted);
        for file in open.iter().filter(|file| file.is_private()) {
            match self.certificates(file, None)? {
                Some(Step::Refused) | None => {}
                Some(step) => return Ok(step),
            }
        }
        let wanted: Vec<&[u8]> = files.iter().filter_map(|file| file.public.as_deref()).collect();
        match self.agent(&wanted)? {
            Step::Refused => {}
            step => return Ok(step),
        }
        for file in open.into_iter().chain(encrypted) {
            if file.public.as_ref().is_some_and(|key| self.offered.contains(key)) {
                continue;
            }
            self.waiting = self.waiting.saturating_sub(1);
            let step = if file.encrypted { self.encrypted_file(file)? } else { self.plain_file(file)? };
            if step != Step::Refused {
                return Ok(step);
            }
        }
        Ok(Step::Refused)
    }

    /// AUTH-2. `wanted`: the public keys of the configured files, which come first and in their order.
    fn agent(&mut self, wanted: &[&[u8]]) -> Result<Step, SshError> {
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
        let place = |blob: &[u8]| wanted.iter().position(|key| *key == blob);
        let (mut configured, others): (Vec<_>, Vec<_>) =
            identities.into_iter().partition(|identity| place(identity.blob()).is_some());
        configured.sort_by_key(|identity| place(identity.blob()));
        let others = if self.connection.target.identities_only { Vec::new() } else { others };
        let user = self.connection.target.user.clone();
        for identity in configured.into_iter().chain(others) {
            if place(identity.blob()).is_some() {
                self.waiting = self.waiting.saturating_sub(1);
            } else {
                self.strangers = true;
            }
            self.offered.push(identity.blob().to_vec());
            let result = self.exchange(|_| agent.userauth(&user, &identity));
            let outcome = self.judge_key(result, &format!("ssh-agent {}", identity.comment()))?;
            if outcome != Step::Refused {
                return Ok(outcome);
            }
        }
        Ok(Step::Refused)
    }

    /// Offers the certificates of a key; `None` when the passphrase does not open it.
    fn certificates(&mut self, file: &KeyFile, secret: Option<&Secret>) -> Result<Option<Step>, SshError> {
        let user = self.connection.target.user.clone();
        for (path, certificate) in &file.certificates {
            let result = self.exchange(|session| {
                let secret = secret.map(Secret::text);
                session.userauth_pubkey_memory(&user, Some(certificate), file.text.text(), secret)
            });
            if secret.is_some() && result.as_ref().is_err_and(|stall| stall.code() == BAD_KEY) {
                return Ok(None);
            }
            match self.judge_key(result, &path.display().to_string())? {
                Step::Refused => {}
                step => return Ok(Some(step)),
            }
        }
        Ok(Some(Step::Refused))
    }

    fn plain_file(&mut self, file: &KeyFile) -> Result<Step, SshError> {
        if !file.is_private() {
            self.tried.push(format!("{}: not in the ssh-agent", file.path.display()));
            return Ok(Step::Refused);
        }
        let user = self.connection.target.user.clone();
        let result =
            self.exchange(|session| session.userauth_pubkey_memory(&user, None, file.text.text(), None));
        self.judge_key(result, &file.path.display().to_string())
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
            self.hints.push(format!(
                "load the key first: `ssh-add {}`",
                quote::word(&file.path.display().to_string())
            ));
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
        self.hints.push(format!(
            "check the passphrase with `ssh-keygen -y -f {}`",
            quote::word(&file.path.display().to_string())
        ));
        Ok(Step::Refused)
    }

    /// Offers an encrypted key; `None` when the passphrase does not open it.
    fn unlock(&mut self, user: &str, file: &KeyFile, secret: &Secret) -> Result<Option<Step>, SshError> {
        match self.certificates(file, Some(secret))? {
            Some(Step::Refused) => {}
            other => return Ok(other),
        }
        let result = self.exchange(|session| {
            session.userauth_pubkey_memory(user, None, file.text.text(), Some(secret.text()))
        });
        if result.as_ref().is_err_and(|stall| stall.code() == BAD_KEY) {
            return Ok(None);
        }
        self.judge_key(result, &file.path.display().to_string()).map(Some)
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
                    "{account} wants a password; set up a key: `{}`",
                    copy_id(&self.connection.target, None)
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
                super::wait::until(
                    &connection.session,
                    fd,
                    &mut AbsentOperator,
                    Instant::now() + EXCHANGE * 4,
                    || connection.session.userauth_keyboard_interactive(&user, &mut answers),
                )
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
            let key = target.identities.iter().find(|path| path.exists()).map(PathBuf::as_path);
            self.hints.push(match key {
                Some(key) => format!(
                    "install a key: `{}`; then check with `{}`",
                    copy_id(target, Some(key)),
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

/// The command that lets a key in.
fn copy_id(target: &SshTarget, key: Option<&Path>) -> String {
    let key = key.map(|key| format!("-i {} ", quote::word(&key.display().to_string()))).unwrap_or_default();
    let account = format!("{}@{}", target.user, target.address);
    format!("ssh-copy-id {key}-p {} {}", target.port, quote::word(&account))
}

/// libssh2's words for a refusal, in ours.
fn plain(stall: &Stall) -> String {
    match stall.code() {
        -18 | -19 => "refused".into(),
        BAD_KEY => "cannot be read".into(),
        _ => stall.text(),
    }
}
