//! The listener: bounded in connections, in time and in what it asks of the daemon.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::http::{self, Refusal, Request};
use crate::http::server::{self as listener, Answered, Listener, Socket, Stream};

/// A page is given to everybody who asks within this time.
const FRESH: Duration = Duration::from_millis(500);

/// A question for the page; the daemon answers it.
pub(crate) type Scrape = oneshot::Sender<String>;

/// A bound listener; closed, with its connections, when dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    scrapes: mpsc::Receiver<Scrape>,
    listener: Listener,
}

impl MetricsServer {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// A sentence with the address and what to do.
    pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = listener::tcp(address, "metrics", "[metrics]").await?;
        let address = socket.local_addr()?;
        let (sender, scrapes) = mpsc::channel(1);
        let pages = Arc::new(Pages { latest: Mutex::new(None), scrapes: sender });
        let listener =
            Listener::start(Socket::Tcp(socket), "metrics", move |stream| serve(stream, Arc::clone(&pages)));
        Ok(Self { address, scrapes, listener })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening; the address is free when this returns.
    pub(crate) async fn close(self) {
        self.listener.close().await;
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

async fn serve(mut stream: Stream, pages: Arc<Pages>) -> io::Result<Answered> {
    let answer = match read_request(&mut stream).await? {
        Request::Page { with_body } => match pages.page().await {
            Some(text) => http::page(&text, with_body),
            None => http::refusal(Refusal::Unavailable),
        },
        Request::Refused(refusal) => http::refusal(refusal),
    };
    Ok(Answered { stream, answer })
}

async fn read_request(stream: &mut Stream) -> io::Result<Request> {
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
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;

    use super::*;
    use crate::http::server::{CONNECTIONS, TIME};

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
}
