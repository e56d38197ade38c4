//! Deploys the agent and the built-in trainer to hosts.
//!
//! Directories are named by content, under `~/.cache/rankdeck` (or `$RANKDECK_CACHE` on the host):
//! `AGENT16/rankdeck`, and with a trainer `BOTH16/rankdeck` (a hard link to the first) next to
//! `BOTH16/rankdeck-trainer`, because an agent finds its trainer next to itself. Invariants:
//! - DEPLOY-1: only uploaded files run: a file counts as present if its SHA-256 is right and only its owner,
//!   this user or root, can write it. A cache that others can write or replace is rejected. Files that are
//!   present are never uploaded again.
//! - Files are never overwritten in place, so that running agents and other consoles are not affected.
//!
//! Local files to deploy, identified by content, with their requirements.
//!
//! Reads the head of a 64-bit little-endian ELF file: machine, loader (`PT_INTERP`), and the newest version
//! of glibc among the names that the loader has to find (`DT_STRTAB`). Source: the System V ABI, chapters 4
//! and 5.

use crate::ssh::exec::Script;
use crate::ssh::exec::{self, CommandOutput};
use crate::ssh::session::SshSession;
use crate::ssh::upload::{self, Uploader};
use crate::ssh::{SessionOwner, SshError};
use rankdeck_types::words;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Name of the agent on a host.
pub const AGENT: &str = "rankdeck";
/// Name of the trainer on a host.
pub(crate) const TRAINER: &str = "rankdeck-trainer";
/// Timeout of probing a host and of linking files there: its home directory may be a slow network disk, and
/// its shell may have slow start files.
const PROBING: Duration = Duration::from_secs(30);
/// Starts the first line of a probe on a host whose PATH lacks `uname`.
const NO_UNAME: &str = "PATH ";
/// Marks the end of a probe if all files are present; the output of the remote script follows.
const PRESENT: &str = "RANKDECK-PRESENT";
/// Marks the end of a probe if files are missing.
const MISSING: &str = "RANKDECK-MISSING";

/// Files that a host needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub agent: Image,
    /// The built-in trainer, if used.
    pub trainer: Option<Image>,
}

impl Package {
    /// Reads both files.
    pub fn read(label: &str, agent: &Path, trainer: Option<&Path>) -> Result<Package, SshError> {
        let image = |path: &Path| {
            Image::read(path).map_err(|error| {
                SshError::permanent(
                    format!("{label}: cannot read {}: {error}", path.display()),
                    "rebuild or reinstall rankdeck",
                )
            })
        };
        Ok(Package { agent: image(agent)?, trainer: trainer.map(image).transpose()? })
    }

    /// Returns the newest glibc that one of the programs needs.
    fn glibc(&self) -> Option<(u32, u32)> {
        self.agent.needs.glibc.max(self.trainer.as_ref().and_then(|trainer| trainer.needs.glibc))
    }

    /// Returns the directory of the agent alone.
    fn agent_folder(&self) -> String {
        self.agent.sha256.chars().take(16).collect()
    }

    /// Returns the directory from which the agent runs.
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

/// Deployed files on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeployedPrograms {
    /// Absolute path of the agent.
    pub agent: String,
    /// Absolute path of the trainer, if used.
    pub trainer: Option<String>,
    /// Absolute home directory.
    pub home: String,
    /// Absolute cache directory.
    pub cache: String,
}

/// Result of probing a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeployProbe {
    system: String,
    /// The agent's loader exists, or it needs none.
    loader: bool,
    home: String,
    cache: String,
    libc: String,
    /// Why the cache cannot be trusted.
    distrust: Option<String>,
    /// Valid files: the agent alone, the agent in its directory, the trainer in its directory.
    right: [bool; 3],
}

/// A script to run with the deployed agent.
#[derive(Clone, Copy)]
pub(crate) struct RemoteScript<'a> {
    /// The script; `"$A"` is the agent's absolute path, and it starts in the home directory.
    pub script: &'a Script,
    /// Its stdin.
    pub input: &'a [u8],
    /// Returns whether the output is complete.
    pub done: &'a dyn Fn(&[u8]) -> bool,
    /// Timeout.
    pub within: Duration,
}

/// Deploys `package` to the host of `session` and runs a remote script with it. If all files are present,
/// this is one command: start files of a shell may take longer than the rest.
pub fn run(
    session: &dyn SshSession,
    package: &Package,
    remote: &RemoteScript<'_>,
    owner: &mut dyn SessionOwner,
) -> Result<(DeployedPrograms, CommandOutput), SshError> {
    let label = session.label();
    let (found, output) = probe_and_run(session, package, remote, owner)?;
    if output.after(PRESENT).is_some() {
        return Ok((deployed(package, &found), output));
    }
    check_host(label, package, &found)?;
    upload_missing(session, package, &found, owner)?;
    let (found, output) = probe_and_run(session, package, remote, owner)?;
    if output.after(PRESENT).is_some() {
        return Ok((deployed(package, &found), output));
    }
    check_host(label, package, &found)?;
    Err(SshError::transient(
        format!("{label}: uploaded files disappeared from {}", found.cache),
        "check for a job that cleans that directory",
    ))
}

fn deployed(package: &Package, found: &DeployProbe) -> DeployedPrograms {
    let folder = format!("{}/{}", found.cache, package.folder());
    DeployedPrograms {
        agent: format!("{folder}/{AGENT}"),
        trainer: package.trainer.as_ref().map(|_| format!("{folder}/{TRAINER}")),
        home: found.home.clone(),
        cache: found.cache.clone(),
    }
}

/// Probes the host, and runs `remote` if all files are present, in one command.
fn probe_and_run(
    session: &dyn SshSession,
    package: &Package,
    remote: &RemoteScript<'_>,
    owner: &mut dyn SessionOwner,
) -> Result<(DeployProbe, CommandOutput), SshError> {
    let command = probe_script(package, remote.script).command();
    let enough = |bytes: &[u8]| {
        exec::after(bytes, MISSING).is_some()
            || (exec::after(bytes, PRESENT).is_some() && (remote.done)(bytes))
    };
    owner.starting();
    let output = exec::run_from(
        session,
        owner,
        (&command, exec::START),
        remote.input,
        PROBING + remote.within,
        &enough,
    )?;
    let found = parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        SshError::permanent(
            format!("{}: cannot run commands: {}", session.label(), output.summary()),
            format!("check the login shell and its start files with `{} uname -sm`", session.by_hand()),
        )
    })?;
    Ok((found, output))
}

/// Uploads missing files.
fn upload_missing(
    session: &dyn SshSession,
    package: &Package,
    found: &DeployProbe,
    owner: &mut dyn SessionOwner,
) -> Result<(), SshError> {
    let (cache, alone, folder) = (&found.cache, package.agent_folder(), package.folder());
    let [agent_alone, agent_beside, trainer_there] = found.right;
    let mut uploader = Uploader::new(session);
    if !agent_beside && !agent_alone {
        uploader.file(&package.agent, cache, &alone, AGENT, owner)?;
    }
    if let Some(trainer) = &package.trainer {
        if !agent_beside {
            share(session, owner, &format!("{cache}/{alone}"), &format!("{cache}/{folder}"))?;
        }
        if !trainer_there {
            uploader.file(trainer, cache, &folder, TRAINER, owner)?;
        }
    }
    Ok(())
}

/// Links the agent next to its trainer instead of uploading it twice.
fn share(
    session: &dyn SshSession,
    owner: &mut dyn SessionOwner,
    from: &str,
    to: &str,
) -> Result<(), SshError> {
    let script = Script::new().set("from", from).set("to", to).set("name", AGENT).run(
        "umask 077; mkdir -p \"$to\" && { ln -f \"$from/$name\" \"$to/$name\" || \
         { cp \"$from/$name\" \"$to/.$name.$$.part\" && mv -f \"$to/.$name.$$.part\" \"$to/$name\"; }; } && \
         echo RANKDECK-SHARED",
    );
    let output = exec::run(session, owner, &script.command(), PROBING, &|_| false)?;
    match output.after("RANKDECK-SHARED") {
        Some(_) => Ok(()),
        None => Err(SshError::transient(
            format!("{}: cannot create {to}: {}", session.label(), output.summary()),
            upload::unwritable(session, &output.summary()),
        )),
    }
}

/// Shell functions of a probe.
///
/// `all plain PATH...`: only their owner, this user or root, can write them. `all chain DIR...`: other users
/// cannot replace one of these directories; sticky directories such as `/tmp` pass, and so do directories
/// that only the user's private group can write. In a user namespace, root's directories have the overflow
/// uid. The reason goes to `T`. `above DIR`: its parents, with `chain`. `right FILE HASH`: a valid program.
///
/// One `ls` describes all paths. A name with line breaks yields more lines than paths and is not trusted.
const TRUST: &str = "U=$(id -u); T=; read x x W 2>/dev/null < /proc/self/uid_map; V=$U; \
     test \"$W\" = 4294967295 || read V 2>/dev/null < /proc/sys/fs/overflowuid; \
     all() { K=$1; shift; T=$(LC_ALL=C ls -ldn \"$@\" 2>/dev/null | { N=0; \
     while read -r M x O G x; do D=/${x#*/}; N=$((N+1)); $K || exit; done; \
     test $N = $# || echo \"cannot stat $1\"; }); test -z \"$T\"; }; \
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
     yes_no() { if \"$@\"; then echo yes; else echo no; fi; }";

/// Returns the script that probes everything at once, and runs `remote` if nothing is missing, to save a
/// round trip.
fn probe_script(package: &Package, remote: &Script) -> Script {
    let (alone, folder) = (package.agent_folder(), package.folder());
    let trainer = package.trainer.as_ref();
    Script::started()
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
            "S=$(uname -sm) || S=\"PATH $PATH\"; echo \"$S\"; \
             L=yes; test -z \"$loader\" || test -e \"$loader\" || L=no; echo \"$L\"; echo \"$HOME\"; \
             C=\"${RANKDECK_CACHE:-$HOME/.cache/rankdeck}\"; \
             case \"$C\" in /*) \
             R=$(cd \"$C\" 2>/dev/null && pwd -P) && C=$R; esac; echo \"$C\"; \
             getconf GNU_LIBC_VERSION 2>/dev/null || echo -; \
             a=no b=no t=no; if test \"${C#/}\" != \"$C\" && test -d \"$C\"; then set -- \"$C\"; \
             for f in \"$alone\" \"$agent\"; do f=$C/${f%/*}; test -d \"$f\" && set -- \"$@\" \"$f\"; done; \
             all plain \"$@\" && above \"$C\"; \
             can_hash || T=\"neither sha256sum nor openssl found\"; fi; \
             if test -z \"$T\"; then b=$(yes_no right \"$C/$agent\" \"$agent_hash\"); \
             if test $b = yes; then a=yes; else a=$(yes_no right \"$C/$alone\" \"$agent_hash\"); fi; \
             if test -n \"$trainer_hash\"; then \
             t=$(yes_no right \"$C/$trainer\" \"$trainer_hash\"); else t=yes; fi; fi; \
             echo \"${T:--}\"; printf \"%s\\n\" $a $b $t; \
             if test \"$S$L$T$b$t\" = \"${system}yesyesyes\"; then echo RANKDECK-PRESENT; cd; A=\"$C/$agent\"",
        )
        .then(remote)
        .run("else echo RANKDECK-MISSING; fi")
}

fn parse(text: &str) -> Option<DeployProbe> {
    let mut lines = text.lines().skip_while(|line| *line != exec::STARTED).skip(1).map(str::trim);
    let mut line = || lines.next();
    let (system, loader, home) = (line()?.to_string(), line()? == "yes", line()?.to_string());
    let (cache, libc) = (line()?.to_string(), line()?.to_string());
    let distrust = Some(line()?).filter(|reason| *reason != "-").map(str::to_owned);
    let right = [line()? == "yes", line()? == "yes", line()? == "yes"];
    let whole = [PRESENT, MISSING].contains(&line()?);
    whole.then_some(DeployProbe { system, loader, home, cache, libc, distrust, right })
}

/// Returns `uname -sm` of hosts that can run this build.
fn system() -> String {
    format!("Linux {}", std::env::consts::ARCH)
}

/// Rejects a host that cannot run this build.
fn check_host(label: &str, package: &Package, found: &DeployProbe) -> Result<(), SshError> {
    let own = system();
    if let Some(path) = found.system.strip_prefix(NO_UNAME).or(found.system.is_empty().then_some("")) {
        return Err(SshError::permanent(
            format!("{label}: cannot run `uname`: not found on the login shell's PATH ({path})"),
            "in ~/.bashrc, ~/.profile and the like, append to PATH instead of replacing it: `PATH=DIR:$PATH`",
        ));
    }
    if found.system != own {
        return Err(SshError::permanent(
            format!("{label}: the host is {}, but this rankdeck is built for {own}", found.system),
            format!("use hosts of one architecture, or build rankdeck for {}", found.system),
        ));
    }
    let needed = package.glibc().map(|(major, minor)| format!("glibc {major}.{minor} or newer"));
    if !found.loader {
        let needed = needed.unwrap_or_else(|| "glibc".into());
        return Err(SshError::permanent(
            format!("{label} has no glibc loader; rankdeck's binary needs {needed}"),
            format!(
                "the host uses another C library (musl, as on Alpine): use a host or a container image with {needed}, \
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
        return Err(SshError::permanent(
            format!("{label} has {}; rankdeck's binary needs {needed}", found.libc),
            "use a host with a newer system, or build rankdeck on a system as old as this host's",
        ));
    }
    if !found.cache.starts_with('/') {
        return Err(SshError::permanent(
            format!("{label}: cache directory {:?} is not an absolute path", found.cache),
            "set HOME or RANKDECK_CACHE on the host to an absolute path",
        ));
    }
    if let Some(reason) = &found.distrust {
        let hint = match reason.contains("sha256sum") {
            true => "install coreutils on the host: programs are verified by their SHA-256".to_owned(),
            false => format!(
                "run `chmod go-w` on the directory, or set RANKDECK_CACHE on the host to a private directory (now {})",
                found.cache
            ),
        };
        return Err(SshError::permanent(
            format!("{label}: cannot trust programs in {}: {reason}", found.cache),
            hint,
        ));
    }
    Ok(())
}

/// Hashes and requirements, by path, size and modification time.
type RequirementsCache = HashMap<(PathBuf, u64, SystemTime), (String, BinaryRequirements)>;

/// A file to deploy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// Local path.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Requirements of a program.
    pub needs: BinaryRequirements,
}

impl Image {
    /// Reads a file. Hashes of unchanged files are cached: all links deploy the same ones.
    pub fn read(path: &Path) -> io::Result<Image> {
        static SEEN: Mutex<Option<RequirementsCache>> = Mutex::new(None);
        let facts = fs::metadata(path)?;
        let key = (path.to_path_buf(), facts.len(), facts.modified()?);
        // Held while hashing, so that other links wait for the result.
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert_default();
        let (sha256, needs) = match seen.get(&key) {
            Some(known) => known.clone(),
            None => {
                let known = hash_and_needs(path)?;
                seen.insert(key, known.clone());
                known
            }
        };
        Ok(Image { path: path.to_path_buf(), size: facts.len(), sha256, needs })
    }

    /// Returns the SHA-256 of `size` bytes from `offset`.
    pub fn piece(&self, offset: u64, size: u64) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes)?;
        Ok(words::hex(&Sha256::digest(&bytes)))
    }
}

fn hash_and_needs(path: &Path) -> io::Result<(String, BinaryRequirements)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((words::hex(&digest.finalize()), needs(&file))),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// Requirements of a program. Default: none, for scripts and static programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BinaryRequirements {
    /// Path of the loader.
    pub loader: Option<String>,
    /// Oldest glibc that has every symbol.
    pub glibc: Option<(u32, u32)>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// One entry of the program header table.
struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Reads bytes of a file at an offset; `None` if it is too short.
type ReadAt<'a> = &'a dyn Fn(u64, u64) -> Option<Vec<u8>>;

/// Most bytes of one table.
const MAX_TABLE: u64 = 64 << 20;

/// Returns the requirements of a program; none for other files.
fn needs(file: &File) -> BinaryRequirements {
    needs_of(&|offset, size| {
        let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= MAX_TABLE)?];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    })
}

fn needs_of(read: ReadAt<'_>) -> BinaryRequirements {
    let Some(segments) = segments(read) else { return BinaryRequirements::default() };
    let of = |kind: u32| segments.iter().find(|segment| segment.kind == kind);
    let loader = of(PT_INTERP).and_then(|segment| read(segment.offset, segment.size));
    let loader = loader.map(|text| String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned());
    let names = of(PT_DYNAMIC).and_then(|segment| {
        let dynamic = read(segment.offset, segment.size)?;
        let value = |tag: u64| {
            let mut entries = dynamic.chunks_exact(16);
            entries.find(|entry| number(entry, 0, 8) == Some(tag)).and_then(|entry| number(entry, 8, 8))
        };
        let address = value(DT_STRTAB)?;
        let home = segments.iter().find(|segment| {
            segment.kind == PT_LOAD && address >= segment.address && address - segment.address < segment.size
        })?;
        read(home.offset.checked_add(address - home.address)?, value(DT_STRSZ)?)
    });
    let names = names.unwrap_or_default();
    let versions = names.split(|&byte| byte == 0).filter_map(glibc);
    BinaryRequirements { loader, glibc: versions.max() }
}

/// Parses `GLIBC_2.34` into a version.
fn glibc(name: &[u8]) -> Option<(u32, u32)> {
    let mut parts = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn segments(read: ReadAt<'_>) -> Option<Vec<ProgramHeader>> {
    let head = read(0, 64)?;
    // 64-bit, little-endian.
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, size, count) = (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    let segment = |index: u64| {
        let entry = read(table.checked_add(index * size)?, size)?;
        Some(ProgramHeader {
            kind: u32::try_from(number(&entry, 0, 4)?).ok()?,
            offset: number(&entry, 8, 8)?,
            address: number(&entry, 16, 8)?,
            size: number(&entry, 32, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

/// Reads a little-endian number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    Some(bytes.get(at..at + size)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::BinaryRequirements;
    use std::fs::{self, DirBuilder};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    use std::process::Command;

    fn package(folder: &Path, trainer: bool) -> Package {
        let file = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            Image::read(&folder.join(name)).unwrap()
        };
        Package { agent: file("a", "agent"), trainer: trainer.then(|| file("t", "trainer")) }
    }

    /// A start file has replaced PATH.
    #[test]
    fn host_without_uname_on_its_path_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), false);
        let script = probe_script(&package, &Script::new().run("true")).command();
        let output = Command::new("/bin/sh").args(["-c", &script]).env("PATH", "/opt/bin").output().unwrap();
        let found = parse(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let error = check_host("node1", &package, &found).unwrap_err();
        assert!(error.cause.error.contains("(/opt/bin)") && error.cause.hint.contains("PATH="), "{error:?}");
    }

    fn probe_at(package: &Package, cache: &Path) -> String {
        let script = probe_script(package, &Script::new().run("echo \"remote $A\"")).command();
        let output =
            Command::new("/bin/sh").args(["-c", &script]).env("RANKDECK_CACHE", cache).output().unwrap();
        format!("Welcome!\n{}", String::from_utf8(output.stdout).unwrap())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn put(folder: &Path, name: &str, text: &str) {
        fs::write(folder.join(name), text).unwrap();
        set_mode(&folder.join(name), 0o755);
    }

    #[test]
    fn deploy_1_probe_finds_files_by_content() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), true);
        let cache = folder.path().join("cache dir");
        let right = |text: &str| {
            let found = parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found.distrust, None, "{text}");
            found.right
        };
        assert_eq!(right(&probe_at(&package, &cache)), [false; 3]);
        let own = cache.join(package.folder());
        assert!(!cache.exists(), "probing creates nothing");
        DirBuilder::new().mode(0o700).recursive(true).create(&own).unwrap();
        fs::write(own.join(AGENT), "agent").unwrap();
        assert_eq!(right(&probe_at(&package, &cache)), [false; 3], "not executable yet");
        put(&own, AGENT, "agent");
        let text = probe_at(&package, &cache);
        let found = parse(&text).unwrap();
        assert_eq!((found.right, Path::new(&found.cache)), ([true, true, false], cache.as_path()));
        assert!(check_host("node1", &package, &found).is_ok(), "{found:?}");
        assert!(text.ends_with("RANKDECK-MISSING\n"), "the trainer is missing: {text}");
        put(&own, TRAINER, "trainer");
        let text = probe_at(&package, &cache);
        assert_eq!(right(&text), [true; 3]);
        let end = format!("RANKDECK-PRESENT\nremote {}\n", own.join(AGENT).display());
        assert!(text.ends_with(&end), "{text}");
        for other in ["cut", "AGENT", "agent "] {
            put(&own, AGENT, other);
            assert!(probe_at(&package, &cache).ends_with("RANKDECK-MISSING\n"), "{other} is another content");
        }
        put(&own, AGENT, "agent");
        set_mode(&own.join(AGENT), 0o777);
        assert_eq!(right(&probe_at(&package, &cache)), [false, false, true], "writable by others");
    }

    #[test]
    fn deploy_1_cache_writable_by_others_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), false);
        let cache = folder.path().join("above/cache");
        DirBuilder::new().mode(0o700).recursive(true).create(cache.join(package.folder())).unwrap();
        let own = cache.join(package.folder());
        put(&own, AGENT, "agent");
        let refused = |what: &str| {
            let text = probe_at(&package, &cache);
            assert!(text.ends_with("RANKDECK-MISSING\n"), "{what}: {text}");
            let error = check_host("n", &package, &parse(&text).unwrap()).expect_err(what).cause;
            assert!(error.error.contains(what) && error.hint.contains("RANKDECK_CACHE"), "{error:?}");
        };
        assert!(probe_at(&package, &cache).contains("RANKDECK-PRESENT"));
        for (path, mode) in [(&cache, 0o777), (&cache, 0o1777), (&own, 0o702), (&own, 0o770)] {
            set_mode(path, mode);
            refused("others can write");
            set_mode(path, 0o700);
        }
        set_mode(cache.parent().unwrap(), 0o777);
        refused("others can write");
        set_mode(cache.parent().unwrap(), 0o1777);
        assert!(probe_at(&package, &cache).contains("RANKDECK-PRESENT"), "as /tmp");
        set_mode(cache.parent().unwrap(), 0o700);
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            rankdeck_testkit::skip!("only root can make folders of another user");
        }
        for path in [cache.parent().unwrap(), &cache, &own] {
            std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
            refused("belongs to user 65534");
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
        std::os::unix::fs::chown(own.join(AGENT), Some(65_534), None).unwrap();
        assert!(probe_at(&package, &cache).ends_with("RANKDECK-MISSING\n"), "its owner could write it");
    }

    /// The probe walks up to the root, which a relative path never reaches.
    #[test]
    fn deploy_1_relative_cache_path_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), false);
        let text = probe_at(&package, Path::new("."));
        let found = parse(&text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((found.right, found.distrust.as_deref()), ([false, false, true], None));
        assert!(check_host("n", &package, &found).is_err());
    }

    #[test]
    fn directory_name_depends_on_both_contents() {
        let folder = tempfile::tempdir().unwrap();
        let (alone, both) = (package(folder.path(), false), package(folder.path(), true));
        assert_eq!(alone.folder(), alone.agent_folder());
        assert_ne!(both.folder(), both.agent_folder());
        assert_eq!(both.agent_folder(), alone.agent_folder());
        assert_eq!(alone.folder().len(), 16);
    }

    #[test]
    fn unsuitable_host_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let mut package = package(folder.path(), false);
        package.agent.needs =
            BinaryRequirements { loader: Some("/lib64/ld-linux.so".into()), glibc: Some((2, 34)) };
        let good = DeployProbe {
            system: system(),
            loader: true,
            home: "/h".into(),
            cache: "/h/c".into(),
            libc: "glibc 2.36".into(),
            distrust: None,
            right: [false; 3],
        };
        assert!(check_host("n", &package, &good).is_ok());
        let refused = |found: DeployProbe| check_host("n", &package, &found).unwrap_err().cause.error;
        assert!(
            refused(DeployProbe { system: "Linux aarch64".into(), ..good.clone() }).contains("Linux aarch64")
        );
        let old = refused(DeployProbe { libc: "glibc 2.31".into(), ..good.clone() });
        assert!(old.contains("2.31") && old.contains("2.34"), "{old}");
        let musl = refused(DeployProbe { loader: false, libc: "-".into(), ..good.clone() });
        assert!(musl.contains("2.34"), "{musl}");
        refused(DeployProbe { cache: "x".into(), ..good.clone() });
        let unknown = DeployProbe { libc: "-".into(), ..good.clone() };
        assert!(check_host("n", &package, &unknown).is_ok(), "an unknown libc is tried");
        package.agent.needs = BinaryRequirements::default();
        assert!(
            check_host("n", &package, &DeployProbe { libc: "glibc 2.17".into(), ..good }).is_ok(),
            "a static program"
        );
    }

    #[test]
    fn truncated_probe_is_rejected() {
        assert_eq!(parse("RANKDECK-HOST\nLinux x86_64\nyes\n/root\n"), None);
        assert_eq!(parse(""), None);
    }

    fn of(bytes: &[u8]) -> BinaryRequirements {
        needs_of(&|offset, size| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?).map(<[u8]>::to_vec)
        })
    }

    #[test]
    fn own_binary_needs_its_loader_and_glibc() {
        let needs = needs(&File::open(std::env::current_exe().unwrap()).unwrap());
        assert!(needs.loader.unwrap().contains("ld-linux"));
        assert!(needs.glibc.unwrap() >= (2, 17));
    }

    #[test]
    fn script_or_truncated_file_has_no_needs() {
        assert_eq!(of(b"#!/bin/sh\n"), BinaryRequirements::default());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for end in 0..2048 {
            of(&own[..end]);
        }
        let mut huge = own[..4096].to_vec();
        huge[32..40].fill(0xff);
        assert_eq!(of(&huge), BinaryRequirements::default());
    }

    #[test]
    fn glibc_version_is_parsed() {
        assert_eq!(glibc(b"GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc(b"GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc(b"GLIBC_PRIVATE"), None);
    }
}
