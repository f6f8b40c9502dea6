//! The daemon's side of the control socket.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use super::operator::login_name;
use super::protocol::{AskedBy, Request, RequestRefused, Response};
use crate::exec_socket::refuse;
use crate::places::Places;
use crate::private_socket;

/// Maximum length of a request in bytes.
const MAX_REQUEST: usize = 4 * 1024 * 1024;
/// Size of the first buffer. It is enough for most requests. It is also the maximum length of the requests of users who may only
/// ask for the status.
const FIRST_ROOM: usize = 4096;
/// A peer that is silent for this long is disconnected.
// The time includes the wait for the daemon's answer. The command gives up after the same time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait for the daemon.
const WAITING: usize = 16;

/// A request and the channel for its answer.
pub struct PendingRequest {
    /// The request.
    pub request: Request,
    /// The sender of the request.
    pub peer: Peer,
    /// The channel for the answer.
    pub answer: oneshot::Sender<Response>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of the peer's user, from the kernel (SO_PEERCRED).
    pub user: u32,
    /// The user who logged in, as the command reports it.
    pub login: Option<String>,
}

/// A bound control socket. Dropping it removes the file.
pub struct ControlSocket {
    path: PathBuf,
    asked: mpsc::Receiver<PendingRequest>,
    accepting: JoinHandle<()>,
}

impl ControlSocket {
    /// Binds the socket. Must be called before the daemon enters its sandbox. The caller holds the daemon's lock, so an existing
    /// socket file is left over from an earlier daemon and is replaced.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        Self::bind_for(path, None)
    }

    /// Binds the socket like [`Self::bind`], and also lets members of a group connect. They may only ask for the status.
    pub fn bind_for(path: &Path, group: Option<u32>) -> anyhow::Result<Self> {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| {
                format!("cannot remove the old socket {}; check its directory", path.display())
            });
        }
        let listener = private_socket::listen(path).and_then(UnixListener::from_std).with_context(|| {
            format!("cannot bind {}; check that its directory can be written to", path.display())
        })?;
        if let Some(group) = group {
            // The file cannot have been replaced since the bind by anybody but root.
            chown(path, None, Some(group))
                .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o660)))
                .with_context(|| format!("cannot open {} to a group; check its directory", path.display()))?;
        }
        let (sender, asked) = mpsc::channel(WAITING);
        let accepting = tokio::spawn(accept(listener, sender, group.is_some()));
        Ok(Self { path: path.to_owned(), asked, accepting })
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// When the socket can accept no more requests. The daemon must then end, because no command could stop it.
    pub async fn next(&mut self) -> anyhow::Result<PendingRequest> {
        let asked = self.asked.recv().await;
        asked.context(
            "the control socket's task has ended, so nobody can reach or stop this daemon; see the log",
        )
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.accepting.abort();
        // This may fail because the directory was already removed.
        drop(std::fs::remove_file(&self.path));
    }
}

async fn accept(listener: UnixListener, sender: mpsc::Sender<PendingRequest>, has_group: bool) {
    let mut places = Places::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (caller, place) = match admit(&stream, &mut places) {
                    Ok(admitted) => admitted,
                    Err(refusal) => {
                        refuse(&stream, &refusal);
                        continue;
                    }
                };
                // Each connection has its own task, so that a silent peer does not delay other peers.
                let sender = sender.clone();
                tokio::spawn(async move {
                    let served = serve(stream, caller, sender, has_group);
                    match tokio::time::timeout(REQUEST_TIMEOUT, served).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!("control connection: {error:#}"),
                        Err(_) => tracing::debug!("control connection timed out"),
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept on the control socket: {error}");
                // If the process has no free descriptor, accepting fails at once. The pause keeps this loop from spinning.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The user at the other end of a connection, from the kernel.
#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u32,
    /// Whether the user may ask for more than the status.
    may_change: bool,
}

/// Identifies the peer of a connection, and counts the connection as long as the returned reference is held. Only root and the
/// daemon's own user have any number of connections: others could otherwise take all of the daemon's memory and descriptors.
fn admit(stream: &UnixStream, places: &mut Places) -> Result<(Caller, Option<Arc<()>>), RequestRefused> {
    let user = stream.peer_cred().map_err(|_| RequestRefused::new("the kernel does not say who asks"))?.uid();
    let own = rustix::process::geteuid().as_raw();
    let caller = Caller { user, may_change: user == 0 || user == own };
    if caller.may_change {
        return Ok((caller, None));
    }
    Ok((caller, Some(places.take(user)?)))
}

async fn serve(
    mut stream: UnixStream,
    Caller { user, may_change }: Caller,
    sender: mpsc::Sender<PendingRequest>,
    has_group: bool,
) -> anyhow::Result<()> {
    // The file's mode already keeps other users out. This check works even if somebody changes the mode.
    let response = if !may_change && !has_group {
        // The peer is refused before anything is read from it.
        Err(RequestRefused::new("only root and the daemon's own user may talk to it; run this as root"))
    } else {
        match read_request(&mut stream, may_change).await? {
            Ok((request, _)) if !may_change && !matches!(request, Request::Status) => {
                Err(RequestRefused::new(ONLY_STATUS))
            }
            Ok((request, login)) => {
                let (answer, answered) = oneshot::channel();
                sender.send(PendingRequest { request, peer: Peer { user, login }, answer }).await?;
                // A daemon that is ending drops the channel. The peer then sees the end of the stream without an answer.
                answered.await?
            }
            Err(refusal) => Err(refusal),
        }
    };
    stream.write_all(&line_of(response)?).await?;
    stream.shutdown().await?;
    Ok(())
}

const ONLY_STATUS: &str = "only root may ask the daemon for more than its status; run this as root";

/// The line that answers a request.
fn line_of(response: Response) -> serde_json::Result<Vec<u8>> {
    match response {
        Ok(answer) => Ok(answer.into_line()),
        Err(refusal) => {
            let mut line = serde_json::to_vec(&Result::<(), _>::Err(refusal))?;
            line.push(b'\n');
            Ok(line)
        }
    }
}

/// The request, and the name of the user who logged in, if the command has sent one.
type Read = (Request, Option<String>);

/// Reads a request. `may_change`: as in [`Caller`].
async fn read_request(
    stream: &mut UnixStream,
    may_change: bool,
) -> anyhow::Result<Result<Read, RequestRefused>> {
    let line = read_line(stream, if may_change { MAX_REQUEST } else { FIRST_ROOM }).await?;
    if line.last() != Some(&b'\n') {
        const NO_LINE: &str =
            "the request is longer than 4 MiB or not a line; use the daemon's own version of warren";
        // A request for the status is never as long as `FIRST_ROOM`.
        return Ok(Err(RequestRefused::new(if may_change { NO_LINE } else { ONLY_STATUS })));
    }
    // A request is served even if its login is missing or malformed.
    let by: AskedBy = serde_json::from_slice(&line).unwrap_or_default();
    let login = by.login.and_then(|login| login_name(&login));
    Ok(serde_json::from_slice(&line)
        .map(|request| (request, login))
        .map_err(|error| RequestRefused::new(format!("the request is not understood: {error}; the daemon's version differs from this command's, so restart it"))))
}

/// Reads a line of at most `most` bytes. Leaves no copy of it in memory, because it may contain a private key.
async fn read_line(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(FIRST_ROOM));
    while line.last() != Some(&b'\n') && line.len() < most {
        if line.len() == line.capacity() {
            // A vector that grows by itself leaves its old buffer unwiped.
            let mut longer = Zeroizing::new(Vec::with_capacity(2 * line.len()));
            longer.extend_from_slice(&line);
            line = longer;
        }
        if stream.read_buf(&mut *line).await? == 0 {
            break;
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::places::MOST_OF_A_USER;
    use crate::{Answer, AskError, ask, ask_text};

    async fn answering(socket: &mut ControlSocket, value: serde_json::Value) {
        let asked = socket.next().await.unwrap();
        asked.answer.send(Ok(value.into())).unwrap();
    }

    #[tokio::test]
    async fn question_gets_its_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let (answer, ()) = tokio::join!(ask(&path, &Request::Status), answering(&mut socket, 7.into()));
        assert_eq!(answer.unwrap(), serde_json::Value::from(7));
    }

    #[tokio::test]
    async fn answer_arrives_as_it_was_written_and_a_refusal_as_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let answers = [Answer::of(["a}", "\n"]), Err(RequestRefused::new("no"))];
        for answer in answers {
            let expected = answer.clone();
            let answering = async { socket.next().await.unwrap().answer.send(answer).unwrap() };
            let (text, ()) = tokio::join!(ask_text(&path, &Request::Status), answering);
            match (text, expected) {
                (Ok(text), Ok(_)) => assert_eq!(text, r#"["a}","\n"]"#),
                (Err(AskError::Refused(refused)), Err(_)) => assert_eq!(refused.message, "no"),
                (text, _) => panic!("{text:?}"),
            }
        }
    }

    #[tokio::test]
    async fn daemon_learns_the_users_number_from_the_kernel_and_the_login_from_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let own = rustix::process::geteuid().as_raw();
        for (line, login) in [
            (&b"{\"request\":\"retry\",\"login\":\"a\\nnn\"}\n"[..], Some("ann")),
            (&b"{\"request\":\"retry\"}\n"[..], None),
            (&b"{\"request\":\"retry\",\"login\":7,\"user\":4711}\n"[..], None),
        ] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(line).await.unwrap();
            let asked = socket.next().await.unwrap();
            assert_eq!(asked.peer, Peer { user: own, login: login.map(str::to_owned) });
        }
    }

    #[tokio::test]
    async fn end_of_the_task_that_accepts_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut socket = ControlSocket::bind(&directory.path().join("s")).unwrap();
        socket.accepting.abort();
        assert!(socket.next().await.is_err());
    }

    #[tokio::test]
    async fn socket_is_for_its_owner_alone_and_goes_when_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = ControlSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn nonsense_and_endless_questions_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _socket = ControlSocket::bind(&path).unwrap();
        for question in [b"{\"request\":\"fly\"}\n".to_vec(), vec![b'x'; 70_000], vec![b'x'; 5_000_000]] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            // Writing may fail, because the server stops reading a request that is too long.
            drop(stream.write_all(&question).await);
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer).await);
            assert!(answer.contains("the request is") || answer.is_empty(), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_line_is_read_up_to_its_limit_alone() {
        for most in [FIRST_ROOM, MAX_REQUEST] {
            let line = read_line(&mut tokio::io::repeat(b'x'), most).await.unwrap();
            assert_eq!(line.len(), most);
        }
    }

    /// Needs root, which alone can connect as another user.
    #[tokio::test]
    async fn users_who_may_only_see_the_status_take_little_memory_and_few_descriptors() {
        use std::io::{Read as _, Write as _};
        use std::os::unix::net::UnixStream as StdStream;
        const CONNECTIONS: usize = 100;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = ControlSocket::bind_for(&path, Some(rustix::process::getegid().as_raw())).unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let answers = move |user: u32, line: Vec<u8>| {
            let id = rustix::process::Uid::from_raw(user);
            // The user of this thread alone changes.
            rustix::thread::set_thread_res_uid(id, id, id).unwrap();
            let mut streams: Vec<StdStream> =
                (0..CONNECTIONS).map(|_| StdStream::connect(&path).unwrap()).collect();
            let mut answers = Vec::new();
            for stream in &mut streams {
                stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                // The server may have refused the connection already.
                drop(stream.write_all(&line));
                let mut answer = vec![0; 400];
                answers.extend(
                    stream
                        .read(&mut answer)
                        .map(|length| String::from_utf8_lossy(&answer[..length]).into_owned()),
                );
            }
            answers
        };
        let ask = async |user, line: &[u8]| {
            let (answers, line) = (answers.clone(), line.to_vec());
            tokio::task::spawn_blocking(move || {
                std::thread::spawn(move || answers(user, line)).join().unwrap()
            })
            .await
            .unwrap()
        };
        let counted =
            |answers: &[String], words: &str| answers.iter().filter(|answer| answer.contains(words)).count();

        // Silent connections are kept until they time out.
        let silent = ask(65_534, b"").await;
        assert_eq!(
            counted(&silent, "programs of user 65534 are asking"),
            CONNECTIONS - MOST_OF_A_USER,
            "{silent:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        // A long request is refused before it has been read to its end.
        let long = ask(65_534, &vec![b'x'; 2 * FIRST_ROOM]).await;
        assert!(counted(&long, "only root may ask") > 0, "{long:?}");
        // The control: root is not limited.
        assert!(ask(0, b"").await.is_empty());
        drop(socket);
    }

    #[tokio::test]
    async fn nobody_listening_is_not_running() {
        let directory = tempfile::tempdir().unwrap();
        let answer = ask(&directory.path().join("s"), &Request::Status).await;
        assert!(matches!(answer, Err(AskError::NotRunning)));
    }
}
