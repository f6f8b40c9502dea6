//! The socket for users who may put their own programs inside or outside of a tunnel. They cannot request anything else on this
//! socket.
//!
//! A connection carries one line of JSON in each direction: a request, and the answer. Every user of the host may connect, and the
//! kernel says which user it is (SO_PEERCRED). A user whom the profile does not allow is refused before anything is read. The
//! number of connections is limited for each user, so no user can keep another one out. A request names no process: the daemon
//! moves the process that asks.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::ask::AskError;
use super::protocol::RequestRefused;
use crate::places::Places;
use crate::private_socket;
use warren_host::exec_groups::Side;

/// A request from a process, for itself.
#[derive(Debug)]
pub struct ExecAsked {
    /// The process that asks.
    pub process: u32,
    /// The user that the process runs as.
    pub user: u32,
    /// What the user wants to do with the process.
    pub wish: UserWish,
    /// The channel for the answer.
    pub answer: oneshot::Sender<Result<(), RequestRefused>>,
}

/// The requests that a process can make for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserWish {
    /// To put the process inside the tunnel.
    Inside,
    /// To put the process outside of the tunnel.
    Outside,
    /// To let the process reach the network's login page.
    Portal,
}

impl From<Side> for UserWish {
    fn from(side: Side) -> Self {
        match side {
            Side::Inside => Self::Inside,
            Side::Outside => Self::Outside,
        }
    }
}

/// The bound socket, or no socket if the profile allows no user but root.
#[derive(Debug)]
pub struct ExecSocket {
    asked: Option<(mpsc::Receiver<ExecAsked>, JoinHandle<()>)>,
}

impl ExecSocket {
    /// No socket, for a profile that allows no user but root.
    pub fn none() -> Self {
        Self { asked: None }
    }

    /// Binds the socket of the profile `name`. Replaces one that an earlier daemon left. It serves root and `users`.
    ///
    /// # Errors
    /// When its directory cannot be written to.
    pub fn bind(runtime_dir: &Path, name: &str, users: Vec<u32>) -> anyhow::Result<Self> {
        let path = &path(runtime_dir, name);
        remove(runtime_dir, name);
        let cannot = || format!("cannot bind {}; check that its directory can be written to", path.display());
        let listener = private_socket::listen(path).with_context(cannot)?;
        // Every user may connect, so that a user who is refused learns why. Setting the mode follows no link, because only root
        // can write to the directory.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).with_context(cannot)?;
        let (sender, asked) = mpsc::channel(WAITING);
        let listener = UnixListener::from_std(listener).with_context(cannot)?;
        let door =
            Door { name: name.to_owned(), users, places: Places::default(), refusals: Refusals::default() };
        let accepting = tokio::spawn(accept(listener, door, sender));
        Ok(Self { asked: Some((asked, accepting)) })
    }

    /// Waits for the next request.
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

/// Removes the socket of the profile `name`, whose daemon does not run, so that [`names`] no longer returns it.
pub fn remove(runtime_dir: &Path, name: &str) {
    // Most profiles have no such socket.
    drop(std::fs::remove_file(path(runtime_dir, name)));
}

/// The profiles whose daemons listen on a socket.
pub fn names(runtime_dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runtime_dir).into_iter().flatten().flatten();
    let name = |file: String| Some(file.strip_prefix('.')?.strip_suffix(SUFFIX)?.to_owned());
    let names = entries.filter_map(|entry| name(entry.file_name().into_string().ok()?));
    // The sandbox keeps a daemon from removing its socket, so one may be left over.
    names.filter(|name| std::os::unix::net::UnixStream::connect(path(runtime_dir, name)).is_ok()).collect()
}

/// Asks the daemon of the profile `name` for something for this process.
///
/// # Errors
/// As [`super::ask`]. [`AskError::Forbidden`] also means that a user other than root or this one has answered.
pub async fn ask_for(runtime_dir: &Path, name: &str, wish: UserWish) -> Result<(), AskError> {
    let exchange = async {
        let mut stream = UnixStream::connect(path(runtime_dir, name)).await?;
        let peer = stream.peer_cred()?.uid();
        if peer != 0 && peer != rustix::process::geteuid().as_raw() {
            return Err(AskError::Forbidden);
        }
        let line = serde_json::to_string(&wish).map_err(io::Error::other)? + "\n";
        // The daemon answers a user whom it refuses without reading the request. So this write may fail although an answer can be
        // read, and its error is used only without an answer.
        let sent = stream.write_all(line.as_bytes()).await;
        let mut answer = Vec::new();
        let received = BufReader::new(stream.take(LONGEST_ANSWER)).read_until(b'\n', &mut answer).await;
        if answer.is_empty() {
            sent.and(received.map(drop))?;
            return Err(AskError::NotRunning);
        }
        let answer: Result<(), RequestRefused> = serde_json::from_slice(&answer).map_err(io::Error::other)?;
        Ok(answer?)
    };
    let timed_out = |_| AskError::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(TIMEOUT, exchange).await.map_err(timed_out)?
}

async fn accept(listener: UnixListener, mut door: Door, sender: mpsc::Sender<ExecAsked>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match door.admit(&stream, Instant::now()) {
                Ok(place) => {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        // An error or a timeout means that the peer is silent or has closed the connection, so it gets no answer.
                        drop(tokio::time::timeout(TIMEOUT, serve(stream, sender)).await);
                        drop(place);
                    });
                }
                Err(refusal) => refuse(&stream, &refusal),
            },
            Err(error) => {
                tracing::warn!("cannot accept on the socket of `warren exec`: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Answers without reading or waiting.
pub(crate) fn refuse(stream: &UnixStream, refusal: &RequestRefused) {
    let answer: Result<(), &RequestRefused> = Err(refusal);
    if let Ok(line) = serde_json::to_string(&answer) {
        // The buffer of a new socket has room for the whole line. An error means that the peer has closed the connection.
        drop(stream.try_write((line + "\n").as_bytes()));
    }
}

/// Decides which connections are served.
struct Door {
    name: String,
    users: Vec<u32>,
    places: Places,
    refusals: Refusals,
}

impl Door {
    /// Checks whether the connection may be served. Returns a reference that counts the connection as long as it is held.
    fn admit(&mut self, stream: &UnixStream, now: Instant) -> Result<Arc<()>, RequestRefused> {
        let user =
            stream.peer_cred().map_err(|_| RequestRefused::new("the kernel does not say who asks"))?.uid();
        let admitted = self.place_of(user);
        if let Err(refusal) = &admitted
            && let Some(times) = self.refusals.add(now)
        {
            let since = format!("{times} times since this was last logged");
            tracing::info!(user, "`warren exec` was refused ({since}): {refusal}");
        }
        admitted
    }

    fn place_of(&mut self, user: u32) -> Result<Arc<()>, RequestRefused> {
        let Self { name, users, .. } = self;
        if user != 0 && !users.contains(&user) {
            return Err(RequestRefused::new(format!(
                "user {user} may use neither `warren exec {name}` nor `warren portal {name}`; run it as root, or have root list the user \
                 in users under [exec] of the profile, or set portal = \"group\" under [kill_switch], and run `warren down {name}` and \
                 `warren up {name}`"
            )));
        }
        self.places.take(user)
    }
}

/// Counts refusals, so that one log line per minute covers all of them.
#[derive(Default)]
struct Refusals {
    said: Option<Instant>,
    untold: u64,
}

impl Refusals {
    /// Counts one more refusal. Returns how many refusals to report, if it is time to report them.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if self.said.is_some_and(|said| now.duration_since(said) < BETWEEN_LINES) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.untold))
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
/// Maximum number of requests that wait for the daemon.
const WAITING: usize = 8;
const BETWEEN_LINES: Duration = Duration::from_secs(60);
const LONGEST_REQUEST: u64 = 64;
const LONGEST_ANSWER: u64 = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::MOST_OF_A_USER;

    #[tokio::test]
    async fn asking_process_and_its_user_are_the_kernels_word() {
        let directory = tempfile::tempdir().unwrap();
        let mut socket = ExecSocket::bind(directory.path(), "home", vec![me()]).unwrap();
        assert_eq!(names(directory.path()), ["home"]);
        let serving = async {
            let asked = socket.next().await;
            assert_eq!((asked.process, asked.wish), (std::process::id(), UserWish::Outside));
            assert_eq!(asked.user, me());
            asked.answer.send(Err(RequestRefused::new("no"))).unwrap();
        };
        let (answer, ()) = tokio::join!(ask_for(directory.path(), "home", UserWish::Outside), serving);
        assert!(matches!(answer, Err(AskError::Refused(refused)) if refused.message == "no"));
        drop(socket);
        tokio::task::yield_now().await;
        assert!(names(directory.path()).is_empty(), "a socket that is left over");
        remove(directory.path(), "home");
        assert!(!path(directory.path(), "home").exists());
    }

    #[tokio::test]
    async fn nonsense_reaches_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let at = path(directory.path(), "home");
        let mut socket = ExecSocket::bind(directory.path(), "home", vec![me()]).unwrap();
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

    #[test]
    fn each_user_has_places_of_its_own_and_gets_them_back() {
        let mut door = door(&[1000, 1001]);
        let mut places: Vec<_> = (0..MOST_OF_A_USER).map(|_| door.place_of(1000).unwrap()).collect();
        assert!(door.place_of(1000).unwrap_err().message.contains("user 1000 are asking"));
        assert!(door.place_of(1001).is_ok() && door.place_of(0).is_ok());
        assert!(door.place_of(1002).unwrap_err().message.contains("may use neither"));
        places.pop();
        assert!(door.place_of(1000).is_ok());
    }

    #[test]
    fn one_line_a_minute_tells_of_all_refusals() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.add(start), Some(1));
        for second in 0..59 {
            assert_eq!(refusals.add(start + Duration::from_secs(second)), None);
        }
        assert_eq!(refusals.add(start + BETWEEN_LINES), Some(60));
    }

    fn door(users: &[u32]) -> Door {
        let refusals = Refusals::default();
        Door { name: "home".into(), users: users.to_vec(), places: Places::default(), refusals }
    }

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }
}
