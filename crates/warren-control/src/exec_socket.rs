//! The socket of users who may put their own programs inside or outside of a tunnel, and may ask nothing else.
//!
//! A connection carries one line of JSON in each direction: a wish, and the answer. Every user of the host may connect. The
//! kernel says who does (SO_PEERCRED), and the daemon decides. The asking process is the one that is moved, so a request
//! names no process.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::ask::AskError;
use super::protocol::{ExecSide, RequestRefused};
use crate::private_socket;

/// A user's wish for one of its processes.
#[derive(Debug)]
pub struct ExecAsked {
    /// The process that asks.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// What the user wants for it.
    pub wish: UserWish,
    /// The channel for the answer.
    pub answer: oneshot::Sender<Result<(), RequestRefused>>,
}

/// What a user can want for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserWish {
    /// To be in the tunnel.
    Inside,
    /// To be outside of it.
    Outside,
    /// To reach the network's login page.
    Portal,
}

impl From<ExecSide> for UserWish {
    fn from(side: ExecSide) -> Self {
        match side {
            ExecSide::Inside => Self::Inside,
            ExecSide::Outside => Self::Outside,
        }
    }
}

/// The bound socket. Without one, nobody ever asks.
#[derive(Debug)]
pub struct ExecSocket {
    asked: Option<(mpsc::Receiver<ExecAsked>, JoinHandle<()>)>,
}

impl ExecSocket {
    /// No socket, for a profile that allows no user but root.
    pub fn none() -> Self {
        Self { asked: None }
    }

    /// Binds the socket in place of one that is left over.
    ///
    /// # Errors
    /// When its directory cannot be written to.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        drop(std::fs::remove_file(path));
        let cannot = || format!("cannot bind {}; check that its directory can be written to", path.display());
        let listener = private_socket::listen(path).with_context(cannot)?;
        // Every user may ask; the daemon looks at who it is. The directory belongs to root, so nobody can put a link there.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).with_context(cannot)?;
        let (sender, asked) = mpsc::channel(MOST_AT_ONCE);
        let accepting = tokio::spawn(accept(UnixListener::from_std(listener).with_context(cannot)?, sender));
        Ok(Self { asked: Some((asked, accepting)) })
    }

    /// Waits for the next wish.
    pub async fn next(&mut self) -> ExecAsked {
        if let Some((asked, _)) = &mut self.asked
            && let Some(asked) = asked.recv().await
        {
            return asked;
        }
        std::future::pending().await
    }
}

impl Drop for ExecSocket {
    fn drop(&mut self) {
        if let Some((_, accepting)) = &self.asked {
            accepting.abort();
        }
    }
}

/// The socket of the profile `name`. No profile's own directory begins with a dot.
pub fn path(runtime_dir: &Path, name: &str) -> PathBuf {
    runtime_dir.join(format!(".{name}{SUFFIX}"))
}

/// The profiles that have a socket.
pub fn names(runtime_dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runtime_dir).into_iter().flatten().flatten();
    let name = |file: String| Some(file.strip_prefix('.')?.strip_suffix(SUFFIX)?.to_owned());
    entries.filter_map(|entry| name(entry.file_name().into_string().ok()?)).collect()
}

/// Asks the daemon of the profile `name` for something for this process.
///
/// # Errors
/// As [`super::ask`]. [`AskError::Forbidden`] also if another user than root or this one answers.
pub async fn ask_for(runtime_dir: &Path, name: &str, wish: UserWish) -> Result<(), AskError> {
    let exchange = async {
        let mut stream = UnixStream::connect(path(runtime_dir, name)).await?;
        let peer = stream.peer_cred()?.uid();
        if peer != 0 && peer != rustix::process::geteuid().as_raw() {
            return Err(AskError::Forbidden);
        }
        let line = serde_json::to_string(&wish).map_err(io::Error::other)? + "\n";
        stream.write_all(line.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
        if answer.is_empty() {
            return Err(AskError::NotRunning);
        }
        let answer: Result<(), RequestRefused> = serde_json::from_slice(&answer).map_err(io::Error::other)?;
        Ok(answer?)
    };
    let timed_out = |_| AskError::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(TIMEOUT, exchange).await.map_err(timed_out)?
}

async fn accept(listener: UnixListener, sender: mpsc::Sender<ExecAsked>) {
    // Any user may connect, so the connections are few at a time.
    let places = std::sync::Arc::new(Semaphore::new(MOST_AT_ONCE));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let sender = sender.clone();
                tokio::spawn(async move {
                    // A peer that is silent or has gone gets no answer.
                    drop(tokio::time::timeout(TIMEOUT, serve(stream, sender)).await);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept on the socket of `warren exec`: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, sender: mpsc::Sender<ExecAsked>) -> anyhow::Result<()> {
    let peer = stream.peer_cred()?;
    let process = u32::try_from(peer.pid().context("the kernel does not say which process asks")?)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    (&mut reader).take(LONGEST_REQUEST).read_line(&mut line).await?;
    let wish = serde_json::from_str(line.trim_end())?;
    let (answer, answered) = oneshot::channel();
    sender.send(ExecAsked { process, user: peer.uid(), wish, answer }).await?;
    let line = serde_json::to_string(&answered.await?)? + "\n";
    reader.get_mut().write_all(line.as_bytes()).await?;
    Ok(())
}

const SUFFIX: &str = ".exec";
const MOST_AT_ONCE: usize = 8;
const LONGEST_REQUEST: u64 = 64;
const LONGEST_ANSWER: u64 = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn asking_process_and_its_user_are_the_kernels_word() {
        let directory = tempfile::tempdir().unwrap();
        let mut socket = ExecSocket::bind(&path(directory.path(), "home")).unwrap();
        assert_eq!(names(directory.path()), ["home"]);
        let serving = async {
            let asked = socket.next().await;
            assert_eq!((asked.process, asked.wish), (std::process::id(), UserWish::Outside));
            assert_eq!(asked.user, rustix::process::geteuid().as_raw());
            asked.answer.send(Err(RequestRefused::new("no"))).unwrap();
        };
        let (answer, ()) = tokio::join!(ask_for(directory.path(), "home", UserWish::Outside), serving);
        assert!(matches!(answer, Err(AskError::Refused(refused)) if refused.message == "no"));
    }

    #[tokio::test]
    async fn nonsense_reaches_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let at = path(directory.path(), "home");
        let mut socket = ExecSocket::bind(&at).unwrap();
        for text in ["\"sideways\"\n".to_owned(), "x".repeat(100_000)] {
            let mut stream = UnixStream::connect(&at).await.unwrap();
            drop(stream.write_all(text.as_bytes()).await);
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer).await);
            assert!(answer.is_empty());
        }
        let nobody = tokio::time::timeout(Duration::from_millis(50), socket.next()).await;
        assert!(nobody.is_err());
    }
}
