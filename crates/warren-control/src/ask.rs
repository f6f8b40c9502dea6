//! The command line's side of the control socket.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::operator::login;
use super::protocol::{Answer, Asking, Request, RequestRefused};
use super::status::Status;

/// How long to wait for a daemon's answer. A daemon that takes longer counts as stuck.
// The message of `AskError::TimedOut` names this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of an answer in bytes. A list of all clients that an exit can have fits.
const LONGEST_ANSWER: u64 = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The daemon is not running: no process listens on the socket.
    #[error("not running")]
    NotRunning,
    /// The daemon answered with a refusal.
    #[error(transparent)]
    Refused(#[from] RequestRefused),
    /// The daemon runs but did not answer in time.
    #[error(
        "the daemon did not answer within 5 s; see its log, or end it with `kill -9 {pid}` and run this again"
    )]
    TimedOut {
        /// The daemon's process ID, if known.
        pid: String,
    },
    /// This user is not allowed to use the socket.
    #[error("only root and members of the group warren may talk to the daemon; run this as root")]
    Forbidden,
    /// The socket cannot be used.
    #[error("cannot talk to the daemon: {0}; see its log, and start it again")]
    Io(io::Error),
}

/// Sends one request and returns its answer.
///
/// # Errors
/// See [`AskError`].
pub async fn ask(path: &Path, request: &Request) -> Result<serde_json::Value, AskError> {
    ask_as(path, request).await
}

/// Sends one request and reads its answer as a `T`.
///
/// # Errors
/// As [`ask`]. [`AskError::Io`] also means that the answer is not a `T`, because the daemon has another version.
pub async fn ask_as<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, AskError> {
    read(&answer_to(path, request).await?)
}

/// Sends one request and returns its answer as the JSON text that the daemon wrote. The text is valid JSON.
///
/// # Errors
/// As [`ask`].
pub async fn ask_text(path: &Path, request: &Request) -> Result<String, AskError> {
    let line = String::from_utf8(answer_to(path, request).await?).map_err(io::Error::other)?;
    read::<IgnoredAny>(line.as_bytes())?;
    let text = Answer::text_in(&line).ok_or_else(|| io::Error::other("the answer has an unexpected form"))?;
    Ok(text.to_owned())
}

fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, AskError> {
    let response: Result<T, RequestRefused> = serde_json::from_slice(line).map_err(io::Error::other)?;
    Ok(response?)
}

/// Asks a daemon for its status.
///
/// # Errors
/// As [`ask`]. [`AskError::Io`] also means that the daemon has another version, whose status has another form.
pub async fn ask_status(path: &Path) -> Result<Status, AskError> {
    ask_as(path, &Request::Status).await
}

/// Returns the line with which the daemon answers.
async fn answer_to(path: &Path, request: &Request) -> Result<Vec<u8>, AskError> {
    let mut pid = None;
    match tokio::time::timeout(ANSWER_TIMEOUT, exchange(path, request, &mut pid)).await {
        Ok(answer) => answer,
        Err(_) => Err(AskError::TimedOut { pid: pid.map_or("PID".to_owned(), |pid| pid.to_string()) }),
    }
}

async fn exchange(path: &Path, request: &Request, pid: &mut Option<i32>) -> Result<Vec<u8>, AskError> {
    let socket = socket_at(path)?;
    // Connects to the socket that was checked, even if another file now has its name.
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
    // The message about a stuck daemon names this process, because it advises to end it.
    *pid = stream.peer_cred()?.pid();
    // A status request changes nothing and is not logged, so the daemon need not know who logged in.
    let login = (!matches!(request, Request::Status)).then(login).flatten();
    let mut line = serde_json::to_vec(&Asking { request, login }).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut answer = Vec::new();
    // A daemon of another user must not be able to fill the memory of root's command.
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    // The daemon was ending, so it closed the connection without an answer.
    if answer.is_empty() {
        return Err(AskError::NotRunning);
    }
    Ok(answer)
}

/// Opens the socket without following a link. By a link, another user could make root's command talk to a different daemon.
fn socket_at(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&socket)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Socket {
        Ok(socket)
    } else if kind == FileType::RegularFile {
        // The path is a plain file, which a test or a backup may have left.
        Err(io::ErrorKind::ConnectionRefused.into())
    } else {
        Err(io::Error::other(format!("{} is not a socket", path.display())))
    }
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
        let kind = error.kind();
        // The last two kinds of error mean that the daemon was killed during the request.
        if matches!(kind, NotFound | ConnectionRefused | ConnectionReset | BrokenPipe) {
            Self::NotRunning
        } else if kind == io::ErrorKind::PermissionDenied {
            Self::Forbidden
        } else {
            Self::Io(error)
        }
    }
}
