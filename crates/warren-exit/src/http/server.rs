//! A listener for what is asked over HTTP on this host: bounded in connections and in time.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinHandle};

use warren_control::private_socket;

/// Connections at once; one more ends the oldest, so that idle ones keep nobody out.
pub(crate) const CONNECTIONS: usize = 16;
/// A connection that takes longer is ended.
pub(crate) const TIME: Duration = Duration::from_secs(10);
/// What is read, and thrown away, after the answer, so that the kernel does not reset the connection before it arrived.
const REST: u64 = 64 * 1024;

/// A connection, over TCP or a Unix socket.
pub(crate) type Stream = Box<dyn Duplex>;

/// What is read and written.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A socket that listens and whose connections are not taken yet.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Listens on a TCP address; `what` is served, as `section` says.
///
/// # Errors
/// A sentence with the address and what to do.
pub(crate) async fn tcp(address: SocketAddr, what: &str, section: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let kind = error.kind();
        let advice = if kind == ErrorKind::AddrInUse {
            "another program has this port; choose another"
        } else if kind == ErrorKind::AddrNotAvailable {
            "this host has no such address; choose one that `ip address` shows"
        } else if kind == ErrorKind::PermissionDenied {
            "the exit has given up ports below 1024; choose one above"
        } else {
            "choose another address"
        };
        anyhow::anyhow!("cannot serve {what} on TCP {address}: {error}; {advice} for listen in {section}")
    })
}

/// A Unix socket that listens from before the sandbox, in which none can be made; its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: StdUnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at a path, for its owner and root alone. A socket on which nobody listens is replaced.
    ///
    /// # Errors
    /// A sentence with the path and what to do.
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

    /// To take connections from, one listener at a time.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn listen(&self) -> io::Result<Socket> {
        Ok(Socket::Unix(UnixListener::from_std(self.listener.try_clone()?)?))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Its directory may be gone already.
        drop(fs::remove_file(&self.path));
    }
}

/// Removes a socket that a killed daemon left, and nothing else.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(ErrorKind::AddrInUse, "another program listens there"));
    }
    fs::remove_file(path)
}

/// Takes connections until it is dropped, which ends them too.
#[derive(Debug)]
pub(crate) struct Listener(JoinHandle<()>);

impl Listener {
    /// Takes connections; `serve` answers one and says with what.
    pub(crate) fn start<S, F>(socket: Socket, what: &'static str, serve: S) -> Self
    where
        S: Fn(Stream) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<Answered>> + Send + 'static,
    {
        Self(tokio::spawn(accept(socket, what, Arc::new(serve))))
    }

    /// Takes no more; a TCP address is free when this returns.
    pub(crate) async fn close(mut self) {
        self.0.abort();
        // It was told to end, and that is all there is to say of its end.
        drop((&mut self.0).await);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer, and the connection that it goes to.
pub(crate) struct Answered {
    pub(crate) stream: Stream,
    pub(crate) answer: Vec<u8>,
}

async fn accept<S, F>(socket: Socket, what: &'static str, serve: Arc<S>)
where
    S: Fn(Stream) -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<Answered>> + Send + 'static,
{
    let mut connections = Connections::default();
    loop {
        match next(&socket).await {
            Ok(stream) => {
                let serve = Arc::clone(&serve);
                let connection = tokio::spawn(async move {
                    match tokio::time::timeout(TIME, finish(serve(stream))).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!("a connection for {what} failed: {error}"),
                        Err(_) => tracing::debug!("a connection for {what} took more than {TIME:?}"),
                    }
                });
                connections.add(connection.abort_handle());
            }
            Err(error) => {
                tracing::debug!("cannot accept a connection for {what}: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn next(socket: &Socket) -> io::Result<Stream> {
    Ok(match socket {
        Socket::Tcp(listener) => Box::new(listener.accept().await?.0),
        Socket::Unix(listener) => Box::new(listener.accept().await?.0),
    })
}

async fn finish(serving: impl Future<Output = io::Result<Answered>>) -> io::Result<()> {
    let Answered { mut stream, answer } = serving.await?;
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REST), &mut tokio::io::sink()).await.map(drop)
}

/// Ends every connection when it is dropped.
#[derive(Debug, Default)]
struct Connections(VecDeque<AbortHandle>);

impl Connections {
    fn add(&mut self, connection: AbortHandle) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
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
        let error = tcp(taken.local_addr().unwrap(), "metrics", "[metrics]").await.unwrap_err().to_string();
        assert!(error.contains("another program has this port"), "{error}");
        assert!(error.contains("listen in [metrics]"), "{error}");
    }
}
