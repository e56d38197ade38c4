//! The sockets that an agent listens on.
//!
//! - SOCKET-1: a socket is bound only in a folder that is this user's alone, at the start and at any time
//!   later.

use crate::paths;
use crate::serve::log::say;
use crate::serve::settings::Settings;
use rankdeck_types::error::HintedError;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// Between two looks whether somebody removed a socket.
const SOCKET_CHECK: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts on one of the agent's sockets while the agent lives; to be called in a `LocalSet`.
///
/// Errors: the socket cannot be made.
pub(crate) fn listen(
    settings: &Settings,
    path: fn(&Settings) -> PathBuf,
    each: impl FnMut(UnixStream) + 'static,
) -> Result<(), HintedError> {
    let listener = bind(&path(settings)).map_err(|error| {
        HintedError::new(
            format!("cannot listen on {}: {error}", path(settings).display()),
            "look at agent.log",
        )
    })?;
    tokio::task::spawn_local(keep_listening(settings.clone(), path, listener, each));
    Ok(())
}

/// SOCKET-1 at every bind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        paths::make_private(folder).map_err(io::Error::other)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Comes back when a cleaner of temporary files has removed the socket; in another folder when somebody else
/// has taken the name of this one meanwhile.
async fn keep_listening(
    settings: Settings,
    path: fn(&Settings) -> PathBuf,
    mut listener: UnixListener,
    mut each: impl FnMut(UnixStream),
) {
    loop {
        let now = path(&settings);
        match tokio::time::timeout(SOCKET_CHECK, listener.accept()).await {
            Ok(Ok((stream, _))) => each(stream),
            // Out of descriptors, most likely: wait for some to come back.
            Ok(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            Err(_) if is_there(&now) => {}
            Err(_) => match bind(&now).or_else(|error| bind_elsewhere(&settings, path, &error)) {
                Ok(again) => listener = again,
                Err(error) => say(&format!("cannot listen on {} again: {error}", now.display())),
            },
        }
    }
}

/// The socket and its folder are as they were made: what others put in their place serves nobody.
fn is_there(path: &Path) -> bool {
    path.exists() && path.parent().is_none_or(paths::is_own)
}

fn bind_elsewhere(
    settings: &Settings,
    path: fn(&Settings) -> PathBuf,
    why: &io::Error,
) -> io::Result<UnixListener> {
    let folder = paths::private_folder(&settings.paths).map_err(|error| io::Error::other(error.error))?;
    say(&format!("{} {why}; sockets are in {} from now on", path(settings).display(), folder.display()));
    settings.sockets.replace(folder);
    bind(&path(settings))
}
