//! The socket on which `warren-fleet` connects, and who may use it.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::geteuid;
use warren_control::private_socket;
use warren_daemon::members::number_in;

/// The user and the group of `warren-fleet`. The package makes them.
const ACCOUNT: &str = "warren-fleet";

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct FleetSocket {
    listener: UnixListener,
    path: PathBuf,
    users: Vec<u32>,
}

impl FleetSocket {
    /// Binds `fleet/fleet.sock` in the runtime directory, which a sandboxed daemon could not do. The caller holds the daemon's
    /// lock, so an existing socket file is a leftover.
    ///
    /// # Errors
    /// When the directory or the socket cannot be made. The message says what to do.
    pub(crate) fn bind(runtime: &Path) -> anyhow::Result<Self> {
        let directory = runtime.join("fleet");
        let path = directory.join("fleet.sock");
        let listener = listen(&directory, &path).with_context(|| {
            format!("cannot bind {}; check that its directory belongs to the exit's user", path.display())
        })?;
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = number_in(&accounts, ACCOUNT);
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        if let Some(group) = number_in(&groups, ACCOUNT)
            && let Err(error) = open_to(&directory, &path, group)
        {
            // The socket still works for root, and for a `warren-fleet` that runs as the exit's own user.
            tracing::warn!(
                "{} cannot be given to the group {ACCOUNT}: {error}; add the exit's user to that group",
                path.display()
            );
        }
        let users = [Some(0), Some(geteuid().as_raw()), user].into_iter().flatten().collect();
        Ok(Self { listener, path, users })
    }

    /// The directory of the socket.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Returns a socket that accepts connections.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }

    /// The users who may connect: root, the exit's own user, and the user of `warren-fleet`.
    pub(super) fn users(&self) -> &[u32] {
        &self.users
    }
}

impl Drop for FleetSocket {
    fn drop(&mut self) {
        // The directory may already be gone.
        drop(fs::remove_file(&self.path));
    }
}

fn listen(directory: &Path, path: &Path) -> io::Result<UnixListener> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    private_socket::listen(path)
}

/// Lets the members of a group use the socket. They may pass through its directory, but not list it.
fn open_to(directory: &Path, path: &Path, group: u32) -> io::Result<()> {
    chown(directory, None, Some(group))?;
    fs::set_permissions(directory, Permissions::from_mode(0o710))?;
    chown(path, None, Some(group))?;
    fs::set_permissions(path, Permissions::from_mode(0o660))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_found_by_its_whole_name() {
        let number = |text| number_in(text, ACCOUNT);
        assert_eq!(
            number("root:x:0:0\nwarren-fleets:x:7:\nwarren-fleet:x:995:995::/:/bin/false\n"),
            Some(995)
        );
        assert_eq!(number("warren-fleet:x:\n#warren-fleet:x:1:\nwarren:x:2:\n"), None);
    }

    #[test]
    fn the_group_may_use_the_socket_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let socket = FleetSocket::bind(directory.path()).unwrap();
        let group = rustix::process::getegid().as_raw();
        open_to(socket.directory(), &socket.path, group).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(socket.directory()), mode(&socket.path)), (0o710, 0o660));
    }

    #[test]
    fn a_leftover_is_replaced_and_the_file_goes_with_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("fleet")).unwrap();
        fs::write(directory.path().join("fleet/fleet.sock"), "").unwrap();
        let socket = FleetSocket::bind(directory.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&socket.path) & 0o007, 0, "nobody else reaches it");
        assert!(socket.users().contains(&0));
        let path = socket.path.clone();
        drop(socket);
        assert!(!path.exists());
    }
}
