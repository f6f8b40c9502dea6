//! The listener: bounded in connections, in time and in what it asks of the daemon.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

use super::http::{self, Refusal, Request};

/// Connections at once; one more ends the oldest, so that idle ones keep nobody out.
const CONNECTIONS: usize = 16;
/// A scrape that takes longer is ended.
const TIME: Duration = Duration::from_secs(10);
/// A page is given to everybody who asks within this time.
const FRESH: Duration = Duration::from_millis(500);
/// What is read, and thrown away, after the answer, so that the kernel does not reset the connection before it arrived.
const REST: u64 = 64 * 1024;

/// A question for the page; the daemon answers it.
pub(crate) type Scrape = oneshot::Sender<String>;

/// A bound listener; closed, with its connections, when dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    scrapes: mpsc::Receiver<Scrape>,
    accepting: JoinHandle<()>,
}

impl MetricsServer {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// A sentence with the address and what to do.
    pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let kind = error.kind();
            let advice = if kind == io::ErrorKind::AddrInUse {
                "another program has this port; choose another"
            } else if kind == io::ErrorKind::AddrNotAvailable {
                "this host has no such address; choose one that `ip address` shows"
            } else if kind == io::ErrorKind::PermissionDenied {
                "the exit has given up ports below 1024; choose one above"
            } else {
                "choose another address"
            };
            anyhow::anyhow!(
                "cannot serve metrics on TCP {address}: {error}; {advice} for listen in [metrics]"
            )
        })?;
        let address = listener.local_addr()?;
        let (sender, scrapes) = mpsc::channel(1);
        let pages = Arc::new(Pages { latest: Mutex::new(None), scrapes: sender });
        Ok(Self { address, scrapes, accepting: tokio::spawn(accept(listener, pages)) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening; the address is free when this returns.
    pub(crate) async fn close(mut self) {
        self.accepting.abort();
        // It was told to end, and that is all there is to say of its end.
        drop((&mut self.accepting).await);
    }

    /// The next question.
    pub(crate) async fn next(&mut self) -> Scrape {
        match self.scrapes.recv().await {
            Some(scrape) => scrape,
            // The accepting task ended: no question will ever come.
            None => std::future::pending().await,
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The page of a moment ago, and where a new one comes from.
#[derive(Debug)]
struct Pages {
    latest: Mutex<Option<(Instant, Arc<str>)>>,
    scrapes: mpsc::Sender<Scrape>,
}

impl Pages {
    /// A page that is fresh; nothing when the daemon is stopping. Whoever asks meanwhile waits for the same one.
    async fn page(&self) -> Option<Arc<str>> {
        let mut latest = self.latest.lock().await;
        if let Some((made, page)) = &*latest
            && made.elapsed() < FRESH
        {
            return Some(Arc::clone(page));
        }
        let (answer, answered) = oneshot::channel();
        self.scrapes.send(answer).await.ok()?;
        let page: Arc<str> = answered.await.ok()?.into();
        *latest = Some((Instant::now(), Arc::clone(&page)));
        Some(page)
    }
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

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = Arc::clone(&pages);
                let connection = tokio::spawn(async move {
                    match tokio::time::timeout(TIME, serve(stream, &pages)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!("a scrape of the metrics failed: {error}"),
                        Err(_) => tracing::debug!("a scrape of the metrics took more than {TIME:?}"),
                    }
                });
                connections.add(connection.abort_handle());
            }
            Err(error) => {
                tracing::debug!("cannot accept a scrape of the metrics: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, pages: &Pages) -> io::Result<()> {
    let answer = match read_request(&mut stream).await? {
        Request::Page { with_body } => match pages.page().await {
            Some(text) => http::page(&text, with_body),
            None => http::refusal(Refusal::Unavailable),
        },
        Request::Refused(refusal) => http::refusal(refusal),
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REST), &mut tokio::io::sink()).await.map(drop)
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Request> {
    let mut head = Vec::new();
    loop {
        if let Some(end) = http::end_of_head(&head) {
            return Ok(http::parse(head.get(..end).unwrap_or_default()));
        }
        if head.len() >= http::MAX_HEAD {
            return Ok(Request::Refused(Refusal::TooLong));
        }
        if (&mut *stream).take(1024).read_buf(&mut head).await? == 0 {
            return Ok(Request::Refused(Refusal::Malformed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose pages are numbered, and how many were made.
    async fn numbered() -> (SocketAddr, Arc<std::sync::atomic::AtomicUsize>) {
        let mut server = MetricsServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = server.address();
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&made);
        tokio::spawn(async move {
            loop {
                let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let _ = server.next().await.send(format!("page {number}\n"));
            }
        });
        (address, made)
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn page_is_served_and_everything_else_refused() {
        let (address, _) = numbered().await;
        for (request, expected) in [
            (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"\xff\xff\r\n\r\n", "400 Bad Request"),
            (&[b'x'; 9_000], "431 Request Header Fields Too Large"),
        ] {
            let answer = ask(address, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{answer}");
        }
    }

    #[tokio::test]
    async fn many_scrapes_in_a_moment_ask_the_daemon_once_or_twice() {
        let (address, made) = numbered().await;
        let asking: Vec<_> = (0..12)
            .map(|_| tokio::spawn(async move { ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await }))
            .collect();
        let start = Instant::now();
        for asked in asking {
            assert!(asked.await.unwrap().contains("page "));
        }
        let bound = 2 + start.elapsed().as_millis() as usize / FRESH.as_millis() as usize;
        // The task above has begun one more than it made.
        assert!(made.load(std::sync::atomic::Ordering::Relaxed) <= bound + 1);
    }

    #[tokio::test]
    async fn idle_connections_keep_nobody_out_and_are_bounded() {
        let (address, _) = numbered().await;
        let mut idle = Vec::new();
        for _ in 0..4 * CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await.contains("page "));
        // The first was ended for one that came later.
        let mut byte = [0];
        let first = idle.first_mut().unwrap().read(&mut byte);
        assert!(matches!(tokio::time::timeout(TIME / 2, first).await, Ok(Ok(0) | Err(_))));
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_sentence() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = MetricsServer::bind(taken.local_addr().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("another program has this port"), "{error}");
        assert!(error.contains("listen in [metrics]"), "{error}");
    }
}
