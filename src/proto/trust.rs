//! Checks that files, directories and sockets belong to this user alone. Other users who can write a
//! directory can create files, links and sockets under any name in it.
//!
//! Invariants:
//! - TRUST-1: an agent starts only in directories that no other user can change or replace, and the console
//!   keeps files in no other cache. Above a run's own directory, members of a group of this user may write, as in
//!   a project folder ([`check_run`]): they can rename or remove a run, but not read or change what is in it.
//! - TRUST-2: files of a run are opened for writing only by [`open`] and [`create`], which follow no link.
//! - TRUST-3: nothing is sent to a socket before its owner is checked ([`connect`], [`check_peer`]).

use rankdeck_types::error::HintedError;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Most bytes read of a system file.
const SYSTEM_FILE: u64 = 8 << 20;

/// Returns the effective user of this process.
pub fn own_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn is_trusted(uid: u32) -> bool {
    uid == own_uid() || uid == 0
}

/// Most symbolic links on the way to a file; the kernel follows as many.
const MOST_LINKS: usize = 40;

/// Returns why users other than this one and root could change or replace the file or directory at `path`: by
/// its owner or mode, or those of a directory or symbolic link on the way to it. Sticky directories such as
/// `/tmp` are safe above it. A group counts as other users, except the private group of this user. In a user
/// namespace, root's directories belong to the overflow user.
pub fn distrust(path: &Path) -> Option<HintedError> {
    distrust_in(path, None)
}

/// Directories that colleagues may share: those on the way to `runs`, and `runs` itself.
struct GroupFolders<'a> {
    runs: PathBuf,
    /// The groups of this user.
    groups: &'a [u32],
}

impl GroupFolders<'_> {
    /// Returns whether this is a project folder of a group of this user (mode 2775), whoever owns it.
    fn holds(&self, place: &Path, data: &Metadata) -> bool {
        self.runs.starts_with(place) && is_of_group(data, self.groups)
    }
}

fn is_of_group(data: &Metadata, groups: &[u32]) -> bool {
    data.is_dir() && data.mode() & 0o020 != 0 && groups.contains(&data.gid())
}

fn distrust_in(path: &Path, shared: Option<&GroupFolders<'_>>) -> Option<HintedError> {
    let overflow = overflow_uid();
    let mut found = match places(path) {
        Ok(found) => found,
        Err((place, error)) => {
            let error = format!("cannot read {}: {error}", place.display());
            return Some(HintedError::new(error, OTHER_PLACE));
        }
    };
    let last = found.pop();
    let above = found.into_iter().map(|place| (place, true));
    last.map(|place| (place, false)).into_iter().chain(above).find_map(|((place, data), above)| {
        let is_shared = shared.is_some_and(|shared| shared.holds(&place, &data));
        match is_shared || is_trusted(data.uid()) || above && overflow == Some(data.uid()) {
            // Whoever can write the directory of a link can replace it, whatever its mode is.
            true if data.is_symlink() => None,
            true => open_to_others(&place, &data, above, is_shared),
            false => Some(HintedError::new(
                format!(
                    "{} belongs to user {} (mode {:04o})",
                    place.display(),
                    data.uid(),
                    data.mode() & 0o7777
                ),
                OTHER_PLACE,
            )),
        }
    })
}

/// Returns every directory and link on the way to `path`, and what it stands for as the last one.
///
/// # Errors
/// The first that cannot be read.
fn places(path: &Path) -> Result<Vec<(PathBuf, Metadata)>, (PathBuf, io::Error)> {
    let read = |place: &Path| std::fs::symlink_metadata(place).map_err(|error| (place.to_owned(), error));
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let absolute = std::path::absolute(path).map_err(|error| (path.to_owned(), error))?;
    let (mut at, mut rest, mut found, mut links) = (PathBuf::new(), parts(&absolute), Vec::new(), 0);
    while let Some(part) = rest.pop() {
        if part == "." || part == ".." && at.pop() {
            continue;
        }
        let next = at.join(&part);
        let data = read(&next)?;
        if data.is_symlink() {
            links += 1;
            let target = std::fs::read_link(&next).map_err(|error| (next.clone(), error))?;
            if links > MOST_LINKS {
                return Err((next, io::Error::other("too many symbolic links")));
            }
            rest.extend(parts(&target));
        } else {
            at.clone_from(&next);
        }
        found.push((next, data));
    }
    // The way may end with `..`.
    let last = (at.clone(), read(&at)?);
    found.push(last);
    Ok(found)
}

/// Checks that files can be stored at `path`, a part of which may not exist yet (TRUST-1).
///
/// # Errors
/// That of [`distrust`].
pub fn check_place(path: &Path) -> Result<(), HintedError> {
    nearest(path).and_then(|place| distrust(&place)).map_or(Ok(()), Err)
}

/// Checks that a run can be stored at `path`, which is `runs` or below it; a part of both may not exist yet
/// (TRUST-1).
///
/// # Errors
/// Another user can change or replace what is in the run's own directory, or others than a group of this user
/// can replace that directory.
pub fn check_run(runs: &Path, path: &Path) -> Result<(), HintedError> {
    check_run_in(runs, path, &own_groups())
}

fn check_run_in(runs: &Path, path: &Path, groups: &[u32]) -> Result<(), HintedError> {
    let runs = nearest(runs).and_then(|runs| runs.canonicalize().ok());
    let shared = runs.map(|runs| GroupFolders { runs, groups });
    nearest(path).and_then(|place| distrust_in(&place, shared.as_ref())).map_or(Ok(()), Err)
}

/// Returns the path, or the nearest directory above it that exists.
fn nearest(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|place| place.exists()).map(Path::to_owned)
}

/// Returns whether new entries of a directory belong to a group of this user that has other members.
pub(crate) fn is_project(folder: &Metadata, groups: &[u32]) -> bool {
    is_of_group(folder, groups) && folder.mode() & 0o2002 == 0o2000 && !is_private_group(folder.gid())
}

/// Returns the groups of this process.
pub(crate) fn own_groups() -> Vec<u32> {
    // SAFETY: with a count of 0, nothing is written.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: `groups` has room for as many numbers as are announced.
    let count = unsafe { libc::getgroups(count.max(0), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    // SAFETY: getegid takes nothing and cannot fail.
    groups.push(unsafe { libc::getegid() });
    groups
}

const OTHER_PLACE: &str = "use a directory that only you can write";

fn open_to_others(place: &Path, data: &Metadata, above: bool, is_shared: bool) -> Option<HintedError> {
    let mode = data.mode();
    let group = mode & 0o020 != 0 && (!(is_shared || is_private_group(data.gid())) || has_acl(place));
    let open = mode & 0o002 != 0 || group;
    if !open || (above && mode & 0o1000 != 0) {
        return None;
    }
    let shown = place.display();
    let error = format!(
        "other users can write {shown} (mode {:04o}, owner {}, group {})",
        mode & 0o7777,
        data.uid(),
        data.gid()
    );
    let hint = match data.uid() == own_uid() {
        true => format!("`chmod go-w {shown}`, or {OTHER_PLACE}"),
        false => OTHER_PLACE.to_owned(),
    };
    Some(HintedError::new(error, hint))
}

/// Returns the apparent owner of files of users outside this user namespace; `None` outside a user namespace.
fn overflow_uid() -> Option<u32> {
    let whole = system_file("/proc/self/uid_map").is_none_or(|map| map.contains("4294967295"));
    let uid = system_file("/proc/sys/fs/overflowuid").and_then(|uid| uid.trim().parse().ok());
    uid.filter(|_| !whole)
}

fn system_file(path: &str) -> Option<String> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(SYSTEM_FILE).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns whether this user is the only member of the group, as on systems with a group per user.
fn is_private_group(gid: u32) -> bool {
    let read = |path| system_file(path).unwrap_or_default();
    is_private_in(gid, own_uid(), &read("/etc/passwd"), &read("/etc/group"))
}

fn is_private_in(gid: u32, uid: u32, passwd: &str, group: &str) -> bool {
    let number = |line: &str, field: usize| line.split(':').nth(field).and_then(|text| text.parse().ok());
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let user = passwd.lines().find(|line| number(line, 2) == Some(uid)).map(name);
    let Some(listed) = group.lines().find(|line| number(line, 2) == Some(gid)) else {
        // A directory service gives both the same number.
        return gid == uid;
    };
    let is_own = |other: &str| other.is_empty() || other == "root" || Some(other) == user.as_deref();
    let mut members = listed.split(':').nth(3).unwrap_or_default().split(',').map(str::trim);
    let others = |line: &str| {
        number(line, 3) == Some(gid) && number(line, 2).is_some_and(|other: u32| other != uid && other != 0)
    };
    // Some systems list system accounts in the group of root.
    members.all(is_own)
        && (gid == 0 || (gid == uid || Some(name(listed)) == user) && !passwd.lines().any(others))
}

/// Returns whether an access control list names more users or groups than the mode.
fn has_acl(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: both names end in NUL; a length of 0 lets the kernel write nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"system.posix_acl_access".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Returns whether only this user can read and change the directory.
pub fn is_private(folder: &Path) -> bool {
    owned_privately(folder).is_ok()
}

/// Returns whether the directory belongs to this user; others may read it.
pub fn is_own(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir() && data.uid() == own_uid())
}

/// Checks that only this user can read and change the directory.
///
/// # Errors
/// The reason, to follow the path.
pub fn owned_privately(path: &Path) -> Result<(), String> {
    let data = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !data.is_dir() {
        return Err("is not a directory".into());
    }
    if data.uid() != own_uid() {
        return Err(format!("belongs to user {}", data.uid()));
    }
    if data.mode() & 0o077 != 0 {
        return Err("is open to other users".into());
    }
    Ok(())
}

/// Returns the owner of the file at `path` if it is neither this user nor root; links are not followed.
pub fn other_owner(path: &Path) -> Option<u32> {
    let data = std::fs::symlink_metadata(path).ok()?;
    Some(data.uid()).filter(|uid| !is_trusted(*uid))
}

/// Returns owner and mode of a file or directory to follow its name, such as ` (owner 1002, mode 0700)`; empty
/// if unknown.
pub fn described(path: &Path) -> String {
    let data = std::fs::metadata(path).ok();
    data.map_or(String::new(), |data| {
        format!(" (owner {}, mode {:04o})", user_name(data.uid()), data.mode() & 0o7777)
    })
}

/// Returns the name of a user, or the number without one.
pub fn user_name(uid: u32) -> String {
    let (listed, number) = (system_file("/etc/passwd").unwrap_or_default(), uid.to_string());
    let own = listed.lines().find(|line| line.split(':').nth(2) == Some(&number));
    own.and_then(|line| line.split(':').next()).map_or(number, str::to_owned)
}

/// Opens a regular file of this user with the options `how`, mode 0600 if it is new (TRUST-2).
///
/// # Errors
/// It is a link or another kind of file, or belongs to another user; or a system error.
pub fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let refused = |what: String| io::Error::other(format!("{} {what}", path.display()));
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.is_symlink() => return Err(refused("is a symbolic link".into())),
        // A pipe would block.
        Ok(data) if !data.is_file() => return Err(refused("is not a regular file".into())),
        _ => {}
    }
    let file = how.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let data = file.metadata()?;
    match is_trusted(data.uid()) {
        true => Ok(file),
        false => Err(refused(format!("belongs to user {}", data.uid()))),
    }
}

/// Creates an empty file of mode 0600; replaces a file or link of that name (TRUST-2).
///
/// # Errors
/// A system error.
pub fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Reads a regular file of this user, at most `most` bytes.
///
/// # Errors
/// Those of [`open`], or the file is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("{} is longer than {most} bytes", path.display()))),
        false => Ok(bytes),
    }
}

/// Connects to a socket of an agent of this user (TRUST-3).
///
/// # Errors
/// Its directory is open to others, another user listens on it, or a system error.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    let folder = socket.parent().ok_or(io::ErrorKind::NotFound)?;
    // Without the directory, connecting fails with the usual error.
    if folder.exists() {
        owned_privately(folder).map_err(|why| {
            io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", folder.display()))
        })?;
    }
    let stream = UnixStream::connect(socket)?;
    check_peer(&stream)?;
    Ok(stream)
}

/// Checks that the process at the other end of a socket belongs to this user or root (TRUST-3).
///
/// # Errors
/// It belongs to another user.
pub fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `peer` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    match is_trusted(peer.uid) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the socket belongs to user {}", peer.uid),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    const STRANGER: u32 = 61_003;

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("above/own");
        std::fs::create_dir_all(&folder).unwrap();
        mode(folder.parent().unwrap(), 0o755);
        mode(&folder, 0o755);
        (base, folder)
    }

    fn names(found: Option<HintedError>, place: &Path) -> bool {
        found.is_some_and(|found| found.error.contains(&format!("{} ", place.display())))
    }

    #[test]
    fn trust_1_directory_writable_by_others_is_rejected() {
        let (_base, folder) = folder();
        let above = folder.parent().unwrap().to_owned();
        assert_eq!(distrust(&folder), None);
        for open in [0o757, 0o1777, 0o777] {
            mode(&folder, open);
            let found = distrust(&folder).unwrap();
            assert!(found.hint.contains(&format!("chmod go-w {}", folder.display())), "{found:?}");
            assert!(found.error.contains(&format!("{open:04o}")), "{found:?}");
        }
        mode(&folder, 0o755);
        mode(&above, 0o777);
        assert!(names(distrust(&folder), &above));
        mode(&above, 0o1777);
        assert_eq!(distrust(&folder), None, "a sticky directory above");
        assert!(distrust(&folder.join("none")).is_some());
    }

    #[test]
    fn trust_1_link_that_others_can_replace_is_rejected() {
        let (_base, folder) = folder();
        let above = folder.parent().unwrap().to_owned();
        let open = above.join("open");
        std::fs::create_dir(&open).unwrap();
        symlink(&folder, open.join("link")).unwrap();
        symlink(open.join("link"), above.join("two")).unwrap();
        symlink("../own", open.join("up")).unwrap();
        let ways = [open.join("link"), above.join("two"), open.join("up"), open.join("../own")];
        for way in &ways {
            assert_eq!(distrust(way), None, "{}", way.display());
        }
        mode(&open, 0o777);
        for way in &ways {
            assert!(names(distrust(way), &open), "{}", way.display());
        }
        mode(&open, 0o1777);
        assert_eq!(distrust(&ways[0]), None, "an own link in a sticky directory");
        if own_uid() == 0 {
            std::os::unix::fs::lchown(&ways[0], Some(STRANGER), None).unwrap();
            assert!(names(distrust(&ways[1]), &ways[0]), "a link of another user");
        }
        symlink("round", open.join("round")).unwrap();
        assert!(distrust(&open.join("round")).is_some());
    }

    #[test]
    fn trust_1_other_owner_or_shared_group_is_rejected() {
        if own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can give files to other users");
        }
        let (_base, folder) = folder();
        let above = folder.parent().unwrap().to_owned();
        for place in [&folder, &above] {
            chown(place, Some(STRANGER), None).unwrap();
            mode(&above, 0o1755);
            assert!(names(distrust(&folder), place));
            chown(place, Some(0), None).unwrap();
            mode(&above, 0o755);
            // As a project directory that colleagues share.
            chown(place, None, Some(STRANGER)).unwrap();
            mode(place, 0o2775);
            assert!(names(distrust(&folder), place));
            chown(place, None, Some(0)).unwrap();
            assert_eq!(distrust(&folder), None, "the user's own group");
            mode(place, 0o755);
        }
    }

    #[test]
    fn trust_1_project_folder_of_an_own_group_may_hold_runs() {
        if own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can give files to other users");
        }
        let (_base, project) = folder();
        let (runs, run) = (project.join("runs"), project.join("runs/r"));
        let check = |groups: &[u32]| check_run_in(&runs, &run.join("node0"), groups).err();
        let share = |place: &Path, owner: u32, bits: u32| {
            chown(place, Some(owner), Some(STRANGER)).unwrap();
            mode(place, bits);
        };
        share(&project, 0, 0o2775);
        assert!(names(check(&[]), &project), "a group of others");
        assert_eq!(check(&[STRANGER]), None, "before the first run");
        std::fs::create_dir_all(&run).unwrap();
        // A colleague owns the folder and was the first to run something.
        share(&project, STRANGER, 0o2775);
        share(&runs, STRANGER, 0o3770);
        share(&run, 0, 0o700);
        assert_eq!(check(&[STRANGER]), None);
        assert!(distrust(&run).is_some(), "other places stay strict");
        share(&run, 0, 0o770);
        assert!(names(check(&[STRANGER]), &run), "the run itself is private");
        share(&run, STRANGER, 0o700);
        assert!(names(check(&[STRANGER]), &run), "a colleague's run");
        share(&run, 0, 0o700);
        share(&runs, STRANGER, 0o2755);
        assert!(names(check(&[STRANGER]), &runs), "the owner alone can write");
        share(&runs, 0, 0o2777);
        assert!(names(check(&[STRANGER]), &runs), "everybody can write");
        share(&runs, 0, 0o3777);
        assert_eq!(check(&[STRANGER]), None, "a sticky directory above");
    }

    #[test]
    fn group_is_private_without_other_members() {
        let passwd = "root:x:0:0::/:\nsync:x:4:0::/:\nann:x:1001:1001::/:\nbob:x:1002:1002::/:\n\
                      eve:x:1003:1002::/:\nfay:x:1004:100::/:\ngil:x:1005:2005::/:";
        let group = "root:x:0:\nann:x:1001:\nbob:x:1002:\nusers:x:100:fay\nlab:x:2000:ann,bob\ngil:x:2005:gil\n\
                     solo:x:2001:ann";
        for (gid, uid, private) in [
            (1001, 1001, true),
            (2005, 1005, true),
            (0, 1001, true),
            (1002, 1002, false),
            (1001, 1002, false),
            (100, 1004, false),
            (2000, 1001, false),
            (2001, 1001, false),
            (5000, 5000, true),
            (5001, 5000, false),
        ] {
            assert_eq!(is_private_in(gid, uid, passwd, group), private, "group {gid} of user {uid}");
        }
        assert!(!is_private_in(1001, 1001, passwd, &group.replace("1001:", "1001:bob")));
    }

    #[test]
    fn trust_2_link_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        std::fs::write(at("bashrc"), "mine").unwrap();
        symlink(at("bashrc"), at("agent.log")).unwrap();
        symlink(at("none"), at("new.log")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let mut append = OpenOptions::new();
        append.append(true).create(true);
        let mut cut = OpenOptions::new();
        cut.write(true).create(true).truncate(true);
        for how in [&mut append, &mut cut] {
            for name in ["agent.log", "new.log", "folder"] {
                let error = open(&at(name), how).unwrap_err().to_string();
                assert!(error.contains(name), "{error}");
            }
        }
        assert!(!at("none").exists());
        assert!(read(&at("agent.log"), 100).is_err());
        assert_eq!(
            (read(&at("bashrc"), 4).unwrap(), read(&at("bashrc"), 3).is_err()),
            (b"mine".to_vec(), true)
        );
        create(&at("agent.log")).unwrap();
        assert!(at("agent.log").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(at("bashrc")).unwrap(), "mine");
        let made = open(&at("made"), &mut append).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o600);
        if own_uid() == 0 {
            chown(at("made"), Some(STRANGER), None).unwrap();
            assert!(open(&at("made"), &mut append).unwrap_err().to_string().contains("61003"));
            assert_eq!((other_owner(&at("made")), other_owner(&at("bashrc"))), (Some(STRANGER), None));
        }
    }

    #[test]
    fn trust_3_socket_in_an_open_directory_is_rejected() {
        let base = tempfile::tempdir().unwrap();
        mode(base.path(), 0o700);
        let path = base.path().join("a.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        connect(&path).unwrap();
        mode(base.path(), 0o755);
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(connect(&base.path().join("none/a.sock")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn trust_3_socket_of_another_user_is_rejected() {
        if own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can act as another user");
        }
        let base = tempfile::tempdir().unwrap();
        mode(base.path(), 0o700);
        let path = base.path().join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // The last process that calls `listen` is the peer, here a program of another user.
        let program =
            "import os, socket; os.setgid(61003); os.setuid(61003); socket.socket(fileno=0).listen(1)";
        let done = std::process::Command::new("python3")
            .args(["-c", program])
            .stdin(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()))
            .status()
            .unwrap();
        assert!(done.success());
        let error = connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("61003"), "{error}");
    }
}
