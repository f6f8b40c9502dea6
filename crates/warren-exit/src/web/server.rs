//! The server of the page. Anybody gets the page's files. Questions to the daemon need the token.

use std::io;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::history::History;
use super::page_request::{Method, PageRequest, Refusal};
use super::table_query::TableQuery;
use super::token::{self, Token};
use super::{page, reply};
use crate::http::{Answer, BadHead, Body, Head, Peer, Server, Site, Socket, UnixSocket};
use warren_config::WebListen;

const SECTION: &str = "[web]";

/// A question to the daemon from somebody who has the token. The answer is a value, or a message that explains why there is none.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) asked: ApiCall,
    /// The browser or program that asks.
    pub(crate) visitor: Peer,
    pub(crate) answer: oneshot::Sender<Result<serde_json::Value, String>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ApiCall {
    /// Everything that the page shows at once, except the table of clients.
    Overview,
    /// A page of the table of clients.
    Clients(TableQuery),
    /// Everything about one client.
    Client(Named),
    /// The rates of the last day.
    Day,
    /// A page of the audit log.
    Audit(AuditQuery),
    /// Make a name from a person's text.
    Name(Typed),
    /// A change.
    Change(Change),
}

/// A change that an operator makes on the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Invite(NewInvitation),
    /// Enrol a client that uses WireGuard.
    AddWireGuard(Named),
    Rename(Renaming),
    Disable(Named),
    Enable(Named),
    Limit(NewLimit),
    /// Remove a client for good, or withdraw an invitation.
    Remove(Named),
    /// Forward ports of the exit to a client.
    Forward(NewForward),
    /// Stop forwarding ports of the exit.
    Unforward(ForwardedPorts),
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewInvitation {
    pub(crate) name: String,
    /// How long the invitation can be used.
    pub(crate) hours: u32,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) name: String,
}

/// A name as a person types it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Typed {
    pub(crate) text: String,
    /// The client that should get the name, if it exists already. The name of this client counts as free.
    pub(crate) of: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renaming {
    pub(crate) name: String,
    pub(crate) to: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLimit {
    pub(crate) name: String,
    /// A rate such as `20mbit`. Null for no limit.
    pub(crate) rate: Option<String>,
}

/// A request for one page of the audit log.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// A part of a client's name, of a user's name, or of a change.
    #[serde(default)]
    pub(crate) search: String,
    /// The page's number. Page 0 has the newest entries.
    #[serde(default)]
    pub(crate) page: usize,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewForward {
    pub(crate) name: String,
    /// The ports of the exit to forward, such as `tcp/8443`.
    pub(crate) ports: String,
    /// The client's lowest port, if it differs from the exit's.
    pub(crate) to: Option<u16>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForwardedPorts {
    pub(crate) name: String,
    pub(crate) ports: String,
}

/// The page while it is served, and the history of its rates. Dropping it ends its connections.
#[derive(Debug)]
pub(crate) struct WebServer {
    pub(crate) history: History,
    pub(crate) server: Server<Question>,
}

/// Makes the page's Unix socket, if the page is to have one. An exit that is in its sandbox cannot make it.
///
/// # Errors
/// A message with the path and what to do.
pub(crate) fn unix_socket(listen: Option<&WebListen>) -> anyhow::Result<Option<UnixSocket>> {
    match listen {
        Some(WebListen::Unix(path)) => UnixSocket::bind(path, PageSite::NAME, SECTION).map(Some),
        Some(WebListen::Loopback(_)) | None => Ok(None),
    }
}

impl WebServer {
    /// Listens, and logs the address if `is_news`. Reads the token in the exit's state directory, or makes it. `made` is the Unix
    /// socket that was made before the sandbox.
    ///
    /// # Errors
    /// A message with the address or file and what to do.
    pub(crate) async fn bind(
        listen: &WebListen,
        made: Option<&UnixSocket>,
        state: &Path,
        is_news: bool,
    ) -> anyhow::Result<Self> {
        const WHAT: &str = PageSite::NAME;
        let token = Token::read_or_make(state)?;
        let socket = match (listen, made) {
            (WebListen::Loopback(address), _) => Socket::tcp(*address, WHAT, SECTION).await?,
            (WebListen::Unix(path), Some(made)) if made.is_at(path) => {
                made.listen().with_context(|| format!("cannot serve {WHAT} on {}", path.display()))?
            }
            (WebListen::Unix(path), _) => bail!(
                "{WHAT} on {} needs a restart of the exit (`systemctl restart warren-exit`)",
                path.display()
            ),
        };
        if is_news {
            tracing::info!("{WHAT} is at {listen}; its token is in {}", token::path(state).display());
        }
        Ok(Self { history: History::new(), server: start(socket, token) })
    }

    /// Stops listening, and returns the history. A TCP address is free when this returns.
    pub(crate) async fn close(self) -> History {
        self.server.close().await;
        self.history
    }
}

fn start(socket: Socket, token: Token) -> Server<Question> {
    Server::start(socket, |questions| PageSite { token, questions })
}

/// Answers files to anybody, and passes questions of those who have the token to the daemon.
#[derive(Debug)]
struct PageSite {
    token: Token,
    questions: mpsc::Sender<Question>,
}

impl Site for PageSite {
    const NAME: &'static str = "the page for operators";

    async fn answer(&self, head: Result<Head, BadHead>, body: Body<'_>) -> io::Result<Answer> {
        Ok(self.answer_or_refuse(head, body).await?.unwrap_or_else(reply::refusal))
    }
}

impl PageSite {
    async fn answer_or_refuse(
        &self,
        head: Result<Head, BadHead>,
        body: Body<'_>,
    ) -> io::Result<Result<Answer, Refusal>> {
        let head = match head {
            Ok(head) => head,
            Err(bad) => return Ok(Err(bad.into())),
        };
        let request = match PageRequest::check(&head) {
            Ok(request) => request,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // The files need no token. They are the same for everybody, and contain the form in which the token is typed.
        if request.method == Method::Get
            && let Some(file) = page::file(request.path)
        {
            return Ok(Ok(reply::file(file.content_type, file.text)));
        }
        // The token is checked first. Without the token, nobody may learn which paths exist.
        if !request.token.is_some_and(|shown| self.token.is(shown)) {
            return Ok(Err(Refusal::NoToken));
        }
        let visitor = body.peer;
        // The body is read only now, so that a stranger cannot make the exit read and store one.
        let Some(body) = body.read(request.body_length).await? else {
            return Ok(Err(Refusal::Malformed));
        };
        Ok(match understand(&request, &body) {
            Ok(asked) => self.ask(asked, visitor).await,
            Err(refusal) => Err(refusal),
        })
    }

    /// Passes a question to the daemon, and returns its answer.
    async fn ask(&self, asked: ApiCall, visitor: Peer) -> Result<Answer, Refusal> {
        let (answer, answered) = oneshot::channel();
        let question = Question { asked, visitor, answer };
        self.questions.send(question).await.map_err(|_| Refusal::Unavailable)?;
        Ok(match answered.await.map_err(|_| Refusal::Unavailable)? {
            Ok(value) => reply::value(value),
            Err(sentence) => reply::not_done(&sentence),
        })
    }
}

fn understand(request: &PageRequest<'_>, body: &[u8]) -> Result<ApiCall, Refusal> {
    let of_body = match request.path {
        "/api/overview" | "/api/day" => None,
        path => Some(OF_BODY.iter().find(|(known, _)| *known == path).ok_or(Refusal::NotFound)?.1),
    };
    match (request.method, of_body) {
        (Method::Get, None) if request.path == "/api/day" => Ok(ApiCall::Day),
        (Method::Get, None) => Ok(ApiCall::Overview),
        (Method::Post, Some(_)) if !request.body_is_json => Err(Refusal::NotJson),
        (Method::Post, Some(read)) => read(body),
        (Method::Get, Some(_)) => Err(Refusal::Method),
        (Method::Post, None) => Err(Refusal::NotFound),
    }
}

/// Reads the body of a call.
type ReadBody = fn(&[u8]) -> Result<ApiCall, Refusal>;

/// The paths of questions that have a body, and how to read it.
const OF_BODY: [(&str, ReadBody); 13] = [
    ("/api/clients", |body| parse(body).map(ApiCall::Clients)),
    ("/api/client", |body| parse(body).map(ApiCall::Client)),
    ("/api/audit", |body| parse(body).map(ApiCall::Audit)),
    ("/api/name", |body| parse(body).map(ApiCall::Name)),
    ("/api/invite", |body| change(body, Change::Invite)),
    ("/api/wireguard", |body| change(body, Change::AddWireGuard)),
    ("/api/rename", |body| change(body, Change::Rename)),
    ("/api/disable", |body| change(body, Change::Disable)),
    ("/api/enable", |body| change(body, Change::Enable)),
    ("/api/limit", |body| change(body, Change::Limit)),
    ("/api/remove", |body| change(body, Change::Remove)),
    ("/api/forward", |body| change(body, Change::Forward)),
    ("/api/unforward", |body| change(body, Change::Unforward)),
];

fn change<'a, T: Deserialize<'a>>(body: &'a [u8], made: fn(T) -> Change) -> Result<ApiCall, Refusal> {
    parse(body).map(|asked| ApiCall::Change(made(asked)))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|_| Refusal::NotJson)
}

#[cfg(test)]
mod tests;
