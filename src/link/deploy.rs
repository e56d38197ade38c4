//! Bringing the agent, and the trainer when it is wanted, to a host that lacks this build.
//!
//! Owner: the link's thread. Folders are named by content, under `~/.cache/rankdeck` (or `$RANKDECK_CACHE` on the host):
//! `AGENT16/rankdeck`, and with a trainer `BOTH16/rankdeck` (a hard link to the first) beside `BOTH16/rankdeck-trainer`, because an agent
//! finds its trainer as its sibling. Invariants:
//! - What has the right name and size is never sent again; the name is the content's hash.
//! - Nothing is ever overwritten in place, so that running agents and several consoles do not disturb each other.

use super::chunked_upload::Uploader;
use super::image::Image;
use crate::ssh::connection::Connection;
use crate::ssh::exec::{Output, StartMarker};
use crate::ssh::script::Script;
use crate::ssh::user_config::SshTarget;
use crate::ssh::{Operator, SshError, exec};
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
/// Oldest glibc that this build runs on.
const GLIBC: (u32, u32) = (2, 34);

/// What a host must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The agent.
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
pub struct Deployed {
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
struct Found {
    system: String,
    home: String,
    cache: String,
    libc: String,
    /// Sizes of the agent alone, the agent in its folder, the trainer there.
    sizes: [Option<u64>; 3],
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

/// Sees to it that the host of `connection` has `package`, and runs a remote script with it. Where everything is in
/// place already, this is one
/// command: start files of a shell may cost more than all the rest. Uploads go over a session of their own to the same target (SSH-3).
pub fn run(
    connection: &Connection,
    target: &SshTarget,
    package: &Package,
    remote: &RemoteScript<'_>,
    operator: &mut dyn Operator,
) -> Result<(Deployed, Output), SshError> {
    let label = connection.label();
    let command = look(package, remote.script).command();
    let enough = |bytes: &[u8]| {
        exec::after(bytes, MISSING).is_some()
            || (exec::after(bytes, PRESENT).is_some() && (remote.done)(bytes))
    };
    operator.starting();
    let output = exec::run_from(
        connection,
        operator,
        (&command, Some(HOST)),
        remote.input,
        LOOKING + remote.within,
        &enough,
    )?;
    let found = parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        SshError::lasting(
            format!("{label}: commands do not run there as expected: {}", output.described()),
            format!("check the login shell and its start files with `{} uname -sm`", target.command()),
        )
    })?;
    let folder = format!("{}/{}", found.cache, package.folder());
    let deployed = Deployed {
        agent: format!("{folder}/{AGENT}"),
        trainer: package.trainer.as_ref().map(|_| format!("{folder}/{TRAINER}")),
        home: found.home.clone(),
        cache: found.cache.clone(),
    };
    if output.after(PRESENT).is_some() {
        return Ok((deployed, output));
    }
    suits(label, &found)?;
    upload_missing(connection, target, package, &found, operator)?;
    operator.starting();
    let script =
        Script::new().run("echo; echo RANKDECK-HOST; cd").set("A", &deployed.agent).then(remote.script);
    let command = script.command();
    let output = exec::run_from(
        connection,
        operator,
        (&command, Some(HOST)),
        remote.input,
        remote.within,
        remote.done,
    )?;
    Ok((deployed, output))
}

/// Uploads what is missing.
fn upload_missing(
    connection: &Connection,
    target: &SshTarget,
    package: &Package,
    found: &Found,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let (cache, alone, folder) = (&found.cache, package.agent_folder(), package.folder());
    let [agent_alone, agent_beside, trainer_there] = found.sizes;
    let agent_fits = agent_beside == Some(package.agent.size);
    let mut uploader = Uploader::new(target);
    if !agent_fits && agent_alone != Some(package.agent.size) {
        uploader.file(connection, &package.agent, cache, &alone, AGENT, operator)?;
    }
    if let Some(trainer) = &package.trainer {
        if !agent_fits {
            share(connection, operator, &format!("{cache}/{alone}"), &format!("{cache}/{folder}"))?;
        }
        if trainer_there != Some(trainer.size) {
            uploader.file(connection, trainer, cache, &folder, TRAINER, operator)?;
        }
    }
    Ok(())
}

/// Puts the agent beside its trainer without sending it twice.
fn share(connection: &Connection, operator: &mut dyn Operator, from: &str, to: &str) -> Result<(), SshError> {
    let script = Script::new().set("from", from).set("to", to).set("name", AGENT).run(
        "umask 077; mkdir -p \"$to\" && { ln -f \"$from/$name\" \"$to/$name\" || \
         { cp \"$from/$name\" \"$to/.$name.$$.part\" && mv -f \"$to/.$name.$$.part\" \"$to/$name\"; }; } && \
         echo RANKDECK-SHARED",
    );
    let output = exec::run(connection, operator, &script.command(), &[], LOOKING, &|_| false)?;
    match output.after("RANKDECK-SHARED") {
        Some(_) => Ok(()),
        None => Err(SshError::passing(
            format!("{}: cannot make {to}: {}", connection.label(), output.described()),
            "is the disk or the quota full?",
        )),
    }
}

/// Asks for everything at once, and runs `remote` when nothing is missing: a round trip costs more than all of it.
fn look(package: &Package, remote: &Script) -> Script {
    let (alone, folder) = (package.agent_folder(), package.folder());
    let trainer_size = package.trainer.as_ref().map_or(String::new(), |trainer| trainer.size.to_string());
    Script::new()
        .set("alone", format!("{alone}/{AGENT}"))
        .set("agent", format!("{folder}/{AGENT}"))
        .set("trainer", format!("{folder}/{TRAINER}"))
        .set("agent_size", package.agent.size)
        .set("trainer_size", trainer_size)
        .run(
            "echo; echo RANKDECK-HOST; uname -sm; echo \"$HOME\"; \
             C=\"${RANKDECK_CACHE:-$HOME/.cache/rankdeck}\"; echo \"$C\"; \
             getconf GNU_LIBC_VERSION 2>/dev/null || echo -; \
             size() { if test -x \"$1\"; then echo \"$(($(wc -c < \"$1\")))\"; else echo -; fi; }; \
             set -- \"$(size \"$C/$alone\")\" \"$(size \"$C/$agent\")\" \"$(size \"$C/$trainer\")\"; \
             printf \"%s\\n\" \"$@\"; \
             if test \"$2\" = \"$agent_size\" && { test -z \"$trainer_size\" || test \"$3\" = \"$trainer_size\"; }; \
             then echo RANKDECK-PRESENT; cd; A=\"$C/$agent\"",
        )
        .then(remote)
        .run("else echo RANKDECK-MISSING; fi")
}

fn parse(text: &str) -> Option<Found> {
    let mut lines = text.lines().skip_while(|line| *line != "RANKDECK-HOST").skip(1).map(str::trim);
    let mut line = || lines.next();
    let (system, home, cache, libc) =
        (line()?.to_string(), line()?.to_string(), line()?.to_string(), line()?.to_string());
    let sizes = [line()?.parse().ok(), line()?.parse().ok(), line()?.parse().ok()];
    [PRESENT, MISSING].contains(&line()?).then_some(Found { system, home, cache, libc, sizes })
}

/// Refuses a host that cannot run this build.
fn suits(label: &str, found: &Found) -> Result<(), SshError> {
    let ours = format!("Linux {}", std::env::consts::ARCH);
    if found.system != ours {
        return Err(SshError::lasting(
            format!("{label}: the host is {}, this rankdeck is built for {ours}", found.system),
            "use a rankdeck built for that system",
        ));
    }
    let version = found.libc.rsplit(' ').next().and_then(|version| version.split_once('.'));
    let version =
        version.and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    if version.is_some_and(|version| version < GLIBC) {
        return Err(SshError::lasting(
            format!(
                "{label}: the host has {}, the agent needs glibc {}.{} or newer",
                found.libc, GLIBC.0, GLIBC.1
            ),
            "use a host with a newer system, or build rankdeck on one as old as this",
        ));
    }
    if !found.cache.starts_with('/') {
        return Err(SshError::lasting(
            format!("{label}: the cache folder {:?} is not an absolute path", found.cache),
            "set HOME or RANKDECK_CACHE on the host to an absolute path",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn package(folder: &Path, trainer: bool) -> Package {
        let file = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            Image::read(&folder.join(name)).unwrap()
        };
        Package { agent: file("a", "agent"), trainer: trainer.then(|| file("t", "trainer")) }
    }

    #[test]
    fn looking_finds_what_is_there_by_content() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), true);
        let cache = folder.path().join("cache dir");
        let look = |cache: &Path| {
            let script = look(&package, &Script::new().run("echo \"remote $A\"")).command();
            let output =
                Command::new("/bin/sh").args(["-c", &script]).env("RANKDECK_CACHE", cache).output().unwrap();
            format!("Welcome!\n{}", String::from_utf8(output.stdout).unwrap())
        };
        let sizes = |text: &str| parse(text).unwrap().sizes;
        assert_eq!(sizes(&look(&cache)), [None, None, None]);
        let own = cache.join(package.folder());
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join(AGENT), "agent").unwrap();
        assert_eq!(sizes(&look(&cache)), [None, None, None], "not executable yet");
        let executable =
            |name: &str| fs::set_permissions(own.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        executable(AGENT);
        let text = look(&cache);
        let found = parse(&text).unwrap();
        assert_eq!((found.sizes, Path::new(&found.cache)), ([None, Some(5), None], cache.as_path()));
        assert!(suits("node1", &found).is_ok(), "{found:?}");
        assert!(text.ends_with("RANKDECK-MISSING\n"), "the trainer is missing: {text}");
        fs::write(own.join(TRAINER), "trainer").unwrap();
        executable(TRAINER);
        let text = look(&cache);
        assert_eq!(sizes(&text), [None, Some(5), Some(7)]);
        assert!(
            text.ends_with(&format!("RANKDECK-PRESENT\nremote {}\n", own.join(AGENT).display())),
            "{text}"
        );
        fs::write(own.join(AGENT), "cut").unwrap();
        assert!(look(&cache).ends_with("RANKDECK-MISSING\n"), "a wrong size is no match");
    }

    #[test]
    fn the_folder_depends_on_both_contents() {
        let folder = tempfile::tempdir().unwrap();
        let (alone, both) = (package(folder.path(), false), package(folder.path(), true));
        assert_eq!(alone.folder(), alone.agent_folder());
        assert_ne!(both.folder(), both.agent_folder());
        assert_eq!(both.agent_folder(), alone.agent_folder());
        assert_eq!(alone.folder().len(), 16);
    }

    #[test]
    fn unsuitable_hosts_are_named() {
        let good = Found {
            system: format!("Linux {}", std::env::consts::ARCH),
            home: "/h".into(),
            cache: "/h/c".into(),
            libc: "glibc 2.36".into(),
            sizes: [None; 3],
        };
        assert!(suits("n", &good).is_ok());
        let refused = |found: Found| suits("n", &found).unwrap_err().cause.error;
        assert!(refused(Found { system: "Darwin arm64".into(), ..good.clone() }).contains("Darwin arm64"));
        assert!(refused(Found { libc: "glibc 2.31".into(), ..good.clone() }).contains("glibc 2.31"));
        assert!(refused(Found { cache: "x".into(), ..good.clone() }).contains("absolute"));
        assert!(suits("n", &Found { libc: "-".into(), ..good }).is_ok(), "unknown is tried");
    }

    #[test]
    fn half_an_answer_is_none() {
        assert_eq!(parse("RANKDECK-HOST\nLinux x86_64\n/root\n"), None);
        assert_eq!(parse(""), None);
    }
}
