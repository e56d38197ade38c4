//! Bringing the agent, and the trainer when it is wanted, to a host that lacks this build.
//!
//! Owner: the link's thread. Folders are named by content, under `~/.cache/rankdeck` (or `$RANKDECK_CACHE` on
//! the host): `AGENT16/rankdeck`, and with a trainer `BOTH16/rankdeck` (a hard link to the first) beside
//! `BOTH16/rankdeck-trainer`, because an agent finds its trainer as its sibling. Invariants:
//! - DEPLOY-1: what is run is what was sent: a file counts as there when its SHA-256 is right and only its
//!   owner, who is this user or root, can write it. A cache that others can write, or can put another one in
//!   place of, is refused. What is right is never sent again.
//! - Nothing is ever overwritten in place, so that running agents and several consoles do not disturb each
//!   other.

use super::chunked_upload::Uploader;
use super::image::Image;
use crate::ssh::exec::StartMarker;
use crate::ssh::output::{self, Output};
use crate::ssh::script::Script;
use crate::ssh::session::SshSession;
use crate::ssh::{Operator, SshError, exec, upload};
use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

/// Name of the agent on a host.
pub const AGENT: &str = "rankdeck";
/// Name of the trainer on a host.
pub const TRAINER: &str = "rankdeck-trainer";
/// Bound of looking at a host and of linking files there; its home folder may be a slow network disk,
/// and the start files of its shell may take a while.
const LOOKING: Duration = Duration::from_secs(30);
/// The first word of a look.
const HOST: StartMarker = StartMarker { marker: "RANKDECK-HOST", within: LOOKING };
/// Ends the look at a host where everything is in place; the remote script's output follows.
const PRESENT: &str = "RANKDECK-PRESENT";
/// Ends the look at a host that lacks something.
const MISSING: &str = "RANKDECK-MISSING";

/// What a host must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub agent: Image,
    /// The trainer, when the built-in one is wanted.
    pub trainer: Option<Image>,
}

impl Package {
    /// Reads both files.
    pub fn read(label: &str, agent: &Path, trainer: Option<&Path>) -> Result<Package, SshError> {
        let image = |path: &Path| {
            Image::read(path).map_err(|error| {
                SshError::lasting(
                    format!("{label}: nothing to deploy: cannot read {}: {error}", path.display()),
                    "build or install rankdeck again",
                )
            })
        };
        Ok(Package { agent: image(agent)?, trainer: trainer.map(image).transpose()? })
    }

    /// Newest glibc that one of the programs needs.
    fn glibc(&self) -> Option<(u32, u32)> {
        self.agent.needs.glibc.max(self.trainer.as_ref().and_then(|trainer| trainer.needs.glibc))
    }

    /// Folder of the agent alone.
    fn agent_folder(&self) -> String {
        self.agent.sha256.chars().take(16).collect()
    }

    /// Folder that the agent is run from.
    fn folder(&self) -> String {
        match &self.trainer {
            None => self.agent_folder(),
            Some(trainer) => {
                let both = Sha256::digest(format!("{} {}", self.agent.sha256, trainer.sha256));
                words::hex(&both).chars().take(16).collect()
            }
        }
    }
}

/// Where things are on a host now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedPrograms {
    /// Absolute path of the agent.
    pub agent: String,
    /// Absolute path of the trainer, when it was wanted.
    pub trainer: Option<String>,
    /// Absolute home folder.
    pub home: String,
    /// Absolute folder of the cache.
    pub cache: String,
}

/// What a host answered when looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeployLook {
    system: String,
    /// The loader that the agent needs is there, or it needs none.
    loader: bool,
    home: String,
    cache: String,
    libc: String,
    /// Why nothing can be trusted that lies in the cache.
    distrust: Option<String>,
    /// What is there as it should be: the agent alone, the agent in its folder, the trainer there.
    right: [bool; 3],
}

/// What to do with the agent once it is there.
#[derive(Clone, Copy)]
pub struct RemoteScript<'a> {
    /// `"$A"` is the agent's absolute path; it begins in the home folder.
    pub script: &'a Script,
    /// What it reads.
    pub input: &'a [u8],
    /// The output says enough.
    pub done: &'a dyn Fn(&[u8]) -> bool,
    /// Bound of the whole.
    pub within: Duration,
}

/// Sees to it that the host of `session` has `package`, and runs a remote script with it. Where everything
/// is in place already, this is one
/// command: start files of a shell may cost more than all the rest.
pub fn run(
    session: &dyn SshSession,
    package: &Package,
    remote: &RemoteScript<'_>,
    operator: &mut dyn Operator,
) -> Result<(DeployedPrograms, Output), SshError> {
    let label = session.label();
    let (found, output) = look_and_run(session, package, remote, operator)?;
    if output.after(PRESENT).is_some() {
        return Ok((deployed(package, &found), output));
    }
    suits(label, package, &found)?;
    upload_missing(session, package, &found, operator)?;
    let (found, output) = look_and_run(session, package, remote, operator)?;
    if output.after(PRESENT).is_some() {
        return Ok((deployed(package, &found), output));
    }
    suits(label, package, &found)?;
    Err(SshError::passing(
        format!("{label}: what was just sent to {} is not there any more", found.cache),
        "does somebody clean that folder?",
    ))
}

fn deployed(package: &Package, found: &DeployLook) -> DeployedPrograms {
    let folder = format!("{}/{}", found.cache, package.folder());
    DeployedPrograms {
        agent: format!("{folder}/{AGENT}"),
        trainer: package.trainer.as_ref().map(|_| format!("{folder}/{TRAINER}")),
        home: found.home.clone(),
        cache: found.cache.clone(),
    }
}

/// One command: looks, and runs `remote` where everything is in place.
fn look_and_run(
    session: &dyn SshSession,
    package: &Package,
    remote: &RemoteScript<'_>,
    operator: &mut dyn Operator,
) -> Result<(DeployLook, Output), SshError> {
    let command = look(package, remote.script).command();
    let enough = |bytes: &[u8]| {
        output::after(bytes, MISSING).is_some()
            || (output::after(bytes, PRESENT).is_some() && (remote.done)(bytes))
    };
    operator.starting();
    let output = exec::run_from(
        session,
        operator,
        (&command, Some(HOST)),
        remote.input,
        LOOKING + remote.within,
        &enough,
    )?;
    let found = parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        SshError::lasting(
            format!("{}: commands do not run there as expected: {}", session.label(), output.described()),
            format!("check the login shell and its start files with `{} uname -sm`", session.by_hand()),
        )
    })?;
    Ok((found, output))
}

/// Uploads what is missing.
fn upload_missing(
    session: &dyn SshSession,
    package: &Package,
    found: &DeployLook,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let (cache, alone, folder) = (&found.cache, package.agent_folder(), package.folder());
    let [agent_alone, agent_beside, trainer_there] = found.right;
    let mut uploader = Uploader::new(session);
    if !agent_beside && !agent_alone {
        uploader.file(&package.agent, cache, &alone, AGENT, operator)?;
    }
    if let Some(trainer) = &package.trainer {
        if !agent_beside {
            share(session, operator, &format!("{cache}/{alone}"), &format!("{cache}/{folder}"))?;
        }
        if !trainer_there {
            uploader.file(trainer, cache, &folder, TRAINER, operator)?;
        }
    }
    Ok(())
}

/// Puts the agent beside its trainer without sending it twice.
fn share(
    session: &dyn SshSession,
    operator: &mut dyn Operator,
    from: &str,
    to: &str,
) -> Result<(), SshError> {
    let script = Script::new().set("from", from).set("to", to).set("name", AGENT).run(
        "umask 077; mkdir -p \"$to\" && { ln -f \"$from/$name\" \"$to/$name\" || \
         { cp \"$from/$name\" \"$to/.$name.$$.part\" && mv -f \"$to/.$name.$$.part\" \"$to/$name\"; }; } && \
         echo RANKDECK-SHARED",
    );
    let output = exec::run(session, operator, &script.command(), &[], LOOKING, &|_| false)?;
    match output.after("RANKDECK-SHARED") {
        Some(_) => Ok(()),
        None => Err(SshError::passing(
            format!("{}: cannot make {to}: {}", session.label(), output.described()),
            upload::full_disk(session),
        )),
    }
}

/// Shell functions of a look. `all plain PATH...`: only their owner, this user or root, can write them.
/// `all chain FOLDER...`: nobody else can put another folder in the place of one of these; folders like
/// `/tmp` are right, and so is what only the user's private group can write. In a user namespace root's
/// folders look like nobody's. Why not goes to `T`. `above FOLDER`: what leads to it, with `chain`.
/// `right FILE HASH`: a program that is as it should be.
///
/// One `ls` tells all there is about some paths. A name in more than one line is more than one line, and so
/// not trusted.
const TRUST: &str = "U=$(id -u); T=; read x x W 2>/dev/null < /proc/self/uid_map; V=$U; \
     test \"$W\" = 4294967295 || read V 2>/dev/null < /proc/sys/fs/overflowuid; \
     all() { K=$1; shift; T=$(LC_ALL=C ls -ldn \"$@\" 2>/dev/null | { N=0; \
     while read -r M x O G x; do D=/${x#*/}; N=$((N+1)); $K || exit; done; \
     test $N = $# || echo \"$1 cannot be looked at\"; }); test -z \"$T\"; }; \
     foreign() { echo \"$D belongs to user $O\"; return 1; }; \
     shared() { echo \"$1 can write $D\"; return 1; }; \
     plain() { case \"$O\" in \"$U\"|0) ;; *) foreign; return;; esac; \
     case \"$M\" in ?????w*|????????w*) shared others;; esac; }; \
     chain() { case \"$O\" in \"$U\"|\"$V\"|0) ;; *) foreign; return;; esac; \
     case \"$M\" in ?????????[tT]*) ;; ????????w*) shared others;; \
     ?????w*) test \"$G\" = \"$(id -g)\" && test \"$(id -gn)\" = \"$(id -un)\" || shared \"a group\";; esac; }; \
     above() { D=$1; set --; while test \"$D\" != /; do D=${D%/*}; D=${D:-/}; set -- \"$@\" \"$D\"; done; \
     all chain \"$@\"; }; \
     right() { test -f \"$1\" && test -x \"$1\" && (all plain \"$1\") && test \"$(hash_of \"$1\")\" = \"$2\"; }; \
     told() { if \"$@\"; then echo yes; else echo no; fi; }";

/// Asks for everything at once, and runs `remote` when nothing is missing: a round trip costs more than all
/// of it.
fn look(package: &Package, remote: &Script) -> Script {
    let (alone, folder) = (package.agent_folder(), package.folder());
    let trainer = package.trainer.as_ref();
    Script::new()
        .set("alone", format!("{alone}/{AGENT}"))
        .set("agent", format!("{folder}/{AGENT}"))
        .set("trainer", format!("{folder}/{TRAINER}"))
        .set("system", system())
        .set("loader", package.agent.needs.loader.as_deref().unwrap_or_default())
        .set("agent_hash", &package.agent.sha256)
        .set("trainer_hash", trainer.map_or("", |trainer| trainer.sha256.as_str()))
        .run(upload::HASH)
        .run(TRUST)
        .run(
            "echo; echo RANKDECK-HOST; S=$(uname -sm); echo \"$S\"; \
             L=yes; test -z \"$loader\" || test -e \"$loader\" || L=no; echo \"$L\"; echo \"$HOME\"; \
             C=\"${RANKDECK_CACHE:-$HOME/.cache/rankdeck}\"; \
             case \"$C\" in /*) \
             R=$(cd \"$C\" 2>/dev/null && pwd -P) && C=$R; esac; echo \"$C\"; \
             getconf GNU_LIBC_VERSION 2>/dev/null || echo -; \
             a=no b=no t=no; if test \"${C#/}\" != \"$C\" && test -d \"$C\"; then set -- \"$C\"; \
             for f in \"$alone\" \"$agent\"; do f=$C/${f%/*}; test -d \"$f\" && set -- \"$@\" \"$f\"; done; \
             all plain \"$@\" && above \"$C\"; \
             can_hash || T=\"there is neither sha256sum nor openssl\"; fi; \
             if test -z \"$T\"; then b=$(told right \"$C/$agent\" \"$agent_hash\"); \
             if test $b = yes; then a=yes; else a=$(told right \"$C/$alone\" \"$agent_hash\"); fi; \
             if test -n \"$trainer_hash\"; then \
             t=$(told right \"$C/$trainer\" \"$trainer_hash\"); else t=yes; fi; fi; \
             echo \"${T:--}\"; printf \"%s\\n\" $a $b $t; \
             if test \"$S$L$T$b$t\" = \"${system}yesyesyes\"; then echo RANKDECK-PRESENT; cd; A=\"$C/$agent\"",
        )
        .then(remote)
        .run("else echo RANKDECK-MISSING; fi")
}

fn parse(text: &str) -> Option<DeployLook> {
    let mut lines = text.lines().skip_while(|line| *line != "RANKDECK-HOST").skip(1).map(str::trim);
    let mut line = || lines.next();
    let (system, loader, home) = (line()?.to_string(), line()? == "yes", line()?.to_string());
    let (cache, libc) = (line()?.to_string(), line()?.to_string());
    let distrust = Some(line()?).filter(|reason| *reason != "-").map(str::to_owned);
    let right = [line()? == "yes", line()? == "yes", line()? == "yes"];
    let whole = [PRESENT, MISSING].contains(&line()?);
    whole.then_some(DeployLook { system, loader, home, cache, libc, distrust, right })
}

/// `uname -sm` of hosts that can run this build.
fn system() -> String {
    format!("Linux {}", std::env::consts::ARCH)
}

/// Refuses a host that cannot run this build.
fn suits(label: &str, package: &Package, found: &DeployLook) -> Result<(), SshError> {
    let ours = system();
    if found.system != ours {
        return Err(SshError::lasting(
            format!("{label}: the host is {}, this rankdeck is built for {ours}", found.system),
            format!("use hosts of one architecture, or a rankdeck that is built for {}", found.system),
        ));
    }
    let needed = package.glibc().map(|(major, minor)| format!("glibc {major}.{minor} or newer"));
    if !found.loader {
        let needed = needed.unwrap_or_else(|| "glibc".into());
        return Err(SshError::lasting(
            format!("{label} has no glibc loader; rankdeck's binary needs {needed}"),
            format!(
                "the host's C library is another one (musl, as on Alpine): use a host or a container image with {needed}, \
                 such as Debian, Ubuntu or Rocky"
            ),
        ));
    }
    let version = found.libc.rsplit(' ').next().and_then(|version| version.split_once('.'));
    let version =
        version.and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    if let (Some(version), Some(least), Some(needed)) = (version, package.glibc(), needed)
        && version < least
    {
        return Err(SshError::lasting(
            format!("{label} has {}; rankdeck's binary needs {needed}", found.libc),
            "use a host with a newer system, or build rankdeck on one as old as this",
        ));
    }
    if !found.cache.starts_with('/') {
        return Err(SshError::lasting(
            format!("{label}: the cache folder {:?} is not an absolute path", found.cache),
            "set HOME or RANKDECK_CACHE on the host to an absolute path",
        ));
    }
    if let Some(reason) = &found.distrust {
        let hint = match reason.contains("sha256sum") {
            true => "install coreutils there: programs are trusted by their SHA-256".to_owned(),
            false => format!(
                "`chmod go-w` where the folder is yours, or set RANKDECK_CACHE on the host to a folder of your own \
                 (now {})",
                found.cache
            ),
        };
        return Err(SshError::lasting(
            format!("{label}: programs in {} cannot be trusted: {reason}", found.cache),
            hint,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
