//! The sockets that an agent listens on.

use crate::serve::journal::say;
use rankdeck_types::error::HintedError;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// Between two looks whether somebody removed a socket.
const SOCKET_CHECK: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts on `path` while the agent lives; to be called in a `LocalSet`.
///
/// Errors: the socket cannot be made.
pub(crate) fn listen(path: PathBuf, each: impl FnMut(UnixStream) + 'static) -> Result<(), HintedError> {
    let listener = bind(&path).map_err(|error| {
        HintedError::new(format!("cannot listen on {}: {error}", path.display()), "look at agent.log")
    })?;
    tokio::task::spawn_local(keep_listening(path, listener, each));
    Ok(())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::DirBuilder::new().mode(0o700).create(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Comes back when a cleaner of temporary files has removed the socket.
async fn keep_listening(path: PathBuf, mut listener: UnixListener, mut each: impl FnMut(UnixStream)) {
    loop {
        match tokio::time::timeout(SOCKET_CHECK, listener.accept()).await {
            Ok(Ok((stream, _))) => each(stream),
            // Out of descriptors, most likely: wait for some to come back.
            Ok(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            Err(_) if path.exists() => {}
            Err(_) => match bind(&path) {
                Ok(again) => listener = again,
                Err(error) => say(&format!("cannot listen on {} again: {error}", path.display())),
            },
        }
    }
}
