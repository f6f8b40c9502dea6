//! The server: it bounds connections and time, and passes questions that only the daemon can answer to the daemon, through a
//! channel.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

use super::answer::Answer;
use super::peer::Peer;
use super::request::{BadHead, Head, MAX_HEAD};
use super::socket::{Socket, Stream};

/// Maximum number of connections at once. A further connection ends the oldest one, so that idle connections lock nobody out.
pub(crate) const CONNECTIONS: usize = 16;
/// Maximum duration of a connection. A connection that takes longer is ended.
pub(crate) const TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read and discarded after the answer. If they stayed unread, the kernel would reset the
/// connection, and the answer could be lost.
const REST: u64 = 64 * 1024;
/// The wait after a connection could not be accepted, for instance because the process has no descriptor left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A site turns requests into answers.
pub(crate) trait Site: Send + Sync + 'static {
    /// The site's name in the log.
    const NAME: &'static str;

    /// Answers one request.
    ///
    /// # Errors
    /// When the connection fails.
    fn answer(
        &self,
        head: Result<Head, BadHead>,
        body: Body<'_>,
    ) -> impl Future<Output = io::Result<Answer>> + Send;
}

/// The body of a request. Parts of it may not have arrived yet.
pub(crate) struct Body<'a> {
    /// The bytes that arrived together with the head.
    begun: Vec<u8>,
    stream: &'a mut Stream,
    /// The sender of the request.
    pub(crate) peer: Peer,
}

impl Body<'_> {
    /// Reads a body of this many bytes. Returns `None` if the body ends earlier, or if more bytes than that have already arrived.
    pub(crate) async fn read(self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut body = self.begun;
        let Some(missing) = length.checked_sub(body.len()) else { return Ok(None) };
        self.stream.take(missing as u64).read_to_end(&mut body).await?;
        Ok((body.len() == length).then_some(body))
    }
}

/// Reads the head of a request. Bytes that arrived after the head are the beginning of the body.
async fn read_head(stream: &mut Stream, peer: Peer) -> io::Result<(Result<Head, BadHead>, Body<'_>)> {
    let mut begun = Vec::new();
    let head = loop {
        // Reads in small pieces, so that a head can exceed `MAX_HEAD` by less than one piece.
        if (&mut *stream).take(1024).read_buf(&mut begun).await? == 0 {
            break Err(BadHead::Malformed);
        }
        match Head::parse(&begun) {
            Ok(Some((head, length))) => {
                begun.drain(..length);
                break Ok(head);
            }
            Ok(None) if begun.len() < MAX_HEAD => {}
            Ok(None) => break Err(BadHead::TooLong),
            Err(bad) => break Err(bad),
        }
    };
    Ok((head, Body { begun, stream, peer }))
}

/// A server, and the questions that its site has for the daemon. Dropping the server closes its socket and ends every connection.
#[derive(Debug)]
pub(crate) struct Server<Question> {
    questions: mpsc::Receiver<Question>,
    accepting: JoinHandle<()>,
}

impl<Question> Server<Question> {
    /// Serves the site that `site` makes. The site sends its questions for the daemon into the given channel.
    pub(crate) fn start<S: Site>(socket: Socket, site: impl FnOnce(mpsc::Sender<Question>) -> S) -> Self {
        // The daemon answers one question at a time, so a longer queue would only hide that it is busy.
        let (sender, questions) = mpsc::channel(1);
        Self { questions, accepting: tokio::spawn(accept(socket, Arc::new(site(sender)))) }
    }

    /// Stops listening. A TCP address is free when this returns.
    pub(crate) async fn close(mut self) {
        self.accepting.abort();
        // Waits until the task has dropped the socket. The task's result only says that it was aborted.
        drop((&mut self.accepting).await);
    }

    /// The next question.
    pub(crate) async fn next(&mut self) -> Question {
        match self.questions.recv().await {
            Some(question) => question,
            // The accepting task has ended, so no question will ever come.
            None => std::future::pending().await,
        }
    }
}

impl<Question> Drop for Server<Question> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The next question of a server, if there is a server.
pub(crate) async fn next_question<Question>(server: Option<&mut Server<Question>>) -> Question {
    match server {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

async fn accept<S: Site>(socket: Socket, site: Arc<S>) {
    let mut connections = Connections::default();
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => {
                let site = Arc::clone(&site);
                let connection = tokio::spawn(async move {
                    match tokio::time::timeout(TIME, serve(stream, peer, &*site)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!("a connection for {} failed: {error}", S::NAME),
                        Err(_) => tracing::debug!("a connection for {} took more than {TIME:?}", S::NAME),
                    }
                });
                connections.add(connection.abort_handle());
            }
            Err(error) => {
                tracing::debug!("cannot accept a connection for {}: {error}", S::NAME);
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

async fn serve(mut stream: Stream, peer: Peer, site: &impl Site) -> io::Result<()> {
    // Each connection has only one request, so no second request can hide behind the first (request smuggling).
    let (head, body) = read_head(&mut stream, peer).await?;
    let answer = site.answer(head, body).await?;
    stream.write_all(&answer.into_bytes()).await?;
    // The client must learn that the answer is complete before the rest of its request is discarded.
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REST), &mut tokio::io::sink()).await.map(drop)
}

/// The connections of a server. Dropping this value ends all of them.
#[derive(Debug, Default)]
struct Connections(VecDeque<AbortHandle>);

impl Connections {
    fn add(&mut self, connection: AbortHandle) {
        // Closed connections must not count. Otherwise a live one would be ended in their place.
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
