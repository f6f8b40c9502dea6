//! Sockets that listen for HTTP: a TCP port, or a Unix socket that is made before the sandbox is entered.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::peer::Peer;
use warren_control::private_socket;

/// A connection, over TCP or a Unix socket.
pub(crate) type Stream = Box<dyn Duplex>;

/// A stream of bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    /// Listens on a TCP address. The error message says that `what` should be served there, because of `section` of the
    /// configuration.
    ///
    /// # Errors
    /// A message with the address and what to do.
    pub(crate) async fn tcp(address: SocketAddr, what: &str, section: &str) -> anyhow::Result<Self> {
        TcpListener::bind(address).await.map(Self::Tcp).map_err(|error| {
            let kind = error.kind();
            let advice = if kind == ErrorKind::AddrInUse {
                "another program has this port; choose another"
            } else if kind == ErrorKind::AddrNotAvailable {
                "this host has no such address; choose one that `ip address` shows"
            } else if kind == ErrorKind::PermissionDenied {
                "the exit has given up its right to ports below 1024; choose a higher port"
            } else {
                "choose another address"
            };
            anyhow::anyhow!("cannot serve {what} on TCP {address}: {error}; {advice} for listen in {section}")
        })
    }

    /// The address of a TCP socket. If the configured port was 0, this contains the port that the kernel
    /// chose.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                let peer = Peer::Tcp { remote, local: stream.local_addr()? };
                (Box::new(stream), peer)
            }
            Self::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                (Box::new(stream), Peer::Unix { user })
            }
        })
    }
}

/// A Unix socket that was made before the sandbox, which forbids making one. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: StdUnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at a path. Only the owner and root can connect. Replaces a socket file on which nobody listens.
    ///
    /// # Errors
    /// A message with the path and what to do.
    pub(crate) fn bind(path: &Path, what: &str, section: &str) -> anyhow::Result<Self> {
        let bind = || {
            remove_abandoned(path)?;
            Ok(Self { listener: private_socket::listen(path)?, path: path.to_owned() })
        };
        bind().map_err(|error: io::Error| {
            let path = path.display();
            anyhow::anyhow!(
                "cannot serve {what} on {path}: {error}; choose a path in a directory of the exit's own for listen in {section}"
            )
        })
    }

    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Returns a socket that accepts the connections. Use only one such socket at a time. With several, each connection would go
    /// to an arbitrary one.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn listen(&self) -> io::Result<Socket> {
        Ok(Socket::Unix(UnixListener::from_std(self.listener.try_clone()?)?))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // The directory may already be gone, and the file with it.
        drop(fs::remove_file(&self.path));
    }
}

/// Removes a socket file that a killed daemon left, and nothing else.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    // A symbolic link counts as another file, no matter where it leads.
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "another file is there, which is not a socket"));
    }
    // Without a listening process, the kernel refuses connections to the socket of a killed daemon.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(ErrorKind::AddrInUse, "another program listens there"));
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.sock");
        drop(StdUnixListener::bind(&path).unwrap());

        let socket = UnixSocket::bind(&path, "the web page", "[web]").unwrap();

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = UnixSocket::bind(&path, "the web page", "[web]").unwrap_err().to_string();
        assert!(
            taken.contains("another program listens there") && taken.contains("listen in [web]"),
            "{taken}"
        );
        drop(socket);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(UnixSocket::bind(&path, "the web page", "[web]").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_sentence() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error =
            Socket::tcp(taken.local_addr().unwrap(), "metrics", "[metrics]").await.unwrap_err().to_string();
        assert!(error.contains("another program has this port"), "{error}");
        assert!(error.contains("listen in [metrics]"), "{error}");
    }
}
