//! The listener of the page: what may be asked without the daemon, what with it, and by whom.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{mpsc, oneshot};

use super::history::History;
use super::page;
use super::page_request::{self as request, MAX_BODY, MAX_HEAD, Method, Refusal, Request};
use super::reply as http;
use super::token::{self, Token};
use crate::http::server::{self as listener, Answered, Listener, Socket, Stream, UnixSocket};
use warren_config::WebListen;

const WHAT: &str = "the page for operators";
const SECTION: &str = "[web]";

/// What somebody with the token asks of the daemon, and the place for the answer: a value, or why there is none.
#[derive(Debug)]
pub(crate) struct Question {
    pub(super) asked: Asked,
    pub(super) answer: oneshot::Sender<Result<serde_json::Value, String>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Everything that the page shows at once.
    Overview,
    /// Rates of the last day.
    Day,
    Invite(NewInvitation),
    /// Cut a client off for good, or withdraw an invitation.
    Remove(Named),
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewInvitation {
    pub(super) name: String,
    /// How long it is good for.
    pub(super) hours: u32,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) name: String,
}

/// A bound listener and what it remembers; closed, with its connections, when dropped.
#[derive(Debug)]
pub(crate) struct WebServer {
    pub(super) history: History,
    questions: mpsc::Receiver<Question>,
    listener: Listener,
}

/// Makes what a sandboxed exit cannot: the Unix socket, if the page is to have one.
///
/// # Errors
/// A sentence with the path and what to do.
pub(crate) fn unix_socket(listen: Option<&WebListen>) -> anyhow::Result<Option<UnixSocket>> {
    match listen {
        Some(WebListen::Unix(path)) => UnixSocket::bind(path, WHAT, SECTION).map(Some),
        Some(WebListen::Loopback(_)) | None => Ok(None),
    }
}

impl WebServer {
    /// Listens, with the token of the exit's state directory, which is made if there is none; says where unless that is no news.
    /// `made` is the Unix socket that there is.
    ///
    /// # Errors
    /// A sentence with the address or file and what to do.
    pub(crate) async fn bind(
        listen: &WebListen,
        made: Option<&UnixSocket>,
        state: &Path,
        is_news: bool,
    ) -> anyhow::Result<Self> {
        let token = Token::read_or_make(state)?;
        let socket = match (listen, made) {
            (WebListen::Loopback(address), _) => Socket::Tcp(listener::tcp(*address, WHAT, SECTION).await?),
            (WebListen::Unix(path), Some(made)) if made.is_at(path) => {
                made.listen().with_context(|| format!("cannot serve {WHAT} on {}", path.display()))?
            }
            (WebListen::Unix(path), _) => bail!(
                "{WHAT} on {} takes a restart of the exit (`systemctl restart warren-exit`)",
                path.display()
            ),
        };
        if is_news {
            tracing::info!("{WHAT} is at {listen}; its token is in {}", token::path(state).display());
        }
        Ok(Self::start(socket, token))
    }

    fn start(socket: Socket, token: Token) -> Self {
        let (sender, questions) = mpsc::channel(1);
        let guard = Arc::new(Guard { token, questions: sender });
        let listener = Listener::start(socket, WHAT, move |stream| serve(stream, Arc::clone(&guard)));
        Self { history: History::new(), questions, listener }
    }

    /// Stops listening and gives what it remembers; a TCP address is free when this returns.
    pub(super) async fn close(self) -> History {
        self.listener.close().await;
        self.history
    }

    /// The next question.
    pub(crate) async fn next(&mut self) -> Question {
        match self.questions.recv().await {
            Some(question) => question,
            // The accepting task ended: no question will ever come.
            None => std::future::pending().await,
        }
    }
}

/// Who may ask the daemon.
#[derive(Debug)]
struct Guard {
    token: Token,
    questions: mpsc::Sender<Question>,
}

async fn serve(mut stream: Stream, guard: Arc<Guard>) -> io::Result<Answered> {
    let answer = match answer(&mut stream, &guard).await? {
        Ok(answer) => answer,
        Err(refusal) => http::refusal(refusal),
    };
    Ok(Answered { stream, answer })
}

async fn answer(stream: &mut Stream, guard: &Guard) -> io::Result<Result<Vec<u8>, Refusal>> {
    let mut read = Vec::new();
    let Some(end) = read_head(stream, &mut read).await? else {
        return Ok(Err(if read.len() >= MAX_HEAD { Refusal::HeadTooLong } else { Refusal::Malformed }));
    };
    let (head, rest) = read.split_at(end);
    let request = match request::parse(head) {
        Ok(request) => request,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if request.method == Method::Get
        && let Some(file) = page::file(request.path)
    {
        return Ok(Ok(http::file(file.content_type, file.text)));
    }
    // Nobody without the token learns what there is.
    if !request.token.is_some_and(|shown| guard.token.is(shown)) {
        return Ok(Err(Refusal::NoToken));
    }
    let body = rest.get(BLANK_LINE.len()..).unwrap_or_default();
    let Some(body) = read_body(stream, body, request.body_length).await? else {
        return Ok(Err(Refusal::Malformed));
    };
    let asked = match understand(&request, &body) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (sender, answered) = oneshot::channel();
    if guard.questions.send(Question { asked, answer: sender }).await.is_err() {
        return Ok(Err(Refusal::Unavailable));
    }
    Ok(match answered.await {
        Ok(Ok(value)) => Ok(http::value(&value)),
        Ok(Err(sentence)) => Ok(http::not_done(&sentence)),
        Err(_) => Err(Refusal::Unavailable),
    })
}

fn understand(request: &Request<'_>, body: &[u8]) -> Result<Asked, Refusal> {
    let is_change = matches!(request.path, "/api/invite" | "/api/remove");
    match (request.method, request.path) {
        (Method::Get, "/api/overview") => Ok(Asked::Overview),
        (Method::Get, "/api/day") => Ok(Asked::Day),
        (Method::Post, _) if is_change && !request.body_is_json => Err(Refusal::NotJson),
        (Method::Post, "/api/invite") => parse(body).map(Asked::Invite),
        (Method::Post, "/api/remove") => parse(body).map(Asked::Remove),
        (Method::Get, _) if is_change => Err(Refusal::Method),
        _ => Err(Refusal::NotFound),
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|_| Refusal::NotJson)
}

const BLANK_LINE: &[u8] = b"\r\n\r\n";

/// Reads until the head has ended, and says where; nothing if it does not end in time and size.
async fn read_head(stream: &mut Stream, read: &mut Vec<u8>) -> io::Result<Option<usize>> {
    loop {
        let from = read.len().saturating_sub(BLANK_LINE.len() - 1);
        if (&mut *stream).take(1024).read_buf(read).await? == 0 {
            return Ok(None);
        }
        let fresh = read.get(from..).unwrap_or_default();
        if let Some(place) = fresh.windows(BLANK_LINE.len()).position(|window| window == BLANK_LINE) {
            return Ok(Some(from + place));
        }
        if read.len() >= MAX_HEAD {
            return Ok(None);
        }
    }
}

/// The rest of a body of which the beginning was read with the head; nothing if it ends early or does not end.
async fn read_body(stream: &mut Stream, begun: &[u8], length: usize) -> io::Result<Option<Vec<u8>>> {
    if begun.len() > length || length > MAX_BODY {
        return Ok(None);
    }
    let mut body = vec![0; length];
    let (start, rest) = body.split_at_mut(begun.len());
    start.copy_from_slice(begun);
    match stream.read_exact(rest).await {
        Ok(_) => Ok(Some(body)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
