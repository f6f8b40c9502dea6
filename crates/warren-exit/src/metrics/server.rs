//! The site of the metrics. It limits how often the daemon is asked.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::http::{Answer, BadHead, Body, Head, Server, Site, Socket};
use warren_config::MetricsSettings;

/// How long a page is served again before the daemon is asked for a new one.
const FRESH: Duration = Duration::from_millis(500);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// A request for the page. The daemon answers it with the page's text.
pub(crate) type Scrape = oneshot::Sender<String>;

/// Listens where the settings say. If another program has the default address and the file does not name that address, only logs a
/// warning.
///
/// # Errors
/// When the file asks for an address and the exit cannot listen there. The message says what to do.
pub(crate) async fn serve(settings: &MetricsSettings) -> anyhow::Result<Option<Server<Scrape>>> {
    let Some(address) = settings.listen else { return Ok(None) };
    match Socket::tcp(address, MetricsSite::NAME, "[metrics]").await {
        Ok(socket) => {
            tracing::info!("metrics are at http://{}/metrics", socket.tcp_address().unwrap_or(address));
            Ok(Some(start(socket)))
        }
        Err(error) if settings.is_asked_for => Err(error),
        Err(error) => {
            tracing::warn!("{error}");
            Ok(None)
        }
    }
}

fn start(socket: Socket) -> Server<Scrape> {
    Server::start(socket, |scrapes| MetricsSite { latest: Mutex::new(None), scrapes })
}

/// The latest page, and the channel on which the daemon is asked for a new one.
#[derive(Debug)]
struct MetricsSite {
    latest: Mutex<Option<(Instant, Arc<str>)>>,
    scrapes: mpsc::Sender<Scrape>,
}

impl MetricsSite {
    /// Returns a fresh page, or `None` when the daemon is stopping. Scrapes that arrive while the daemon makes a page wait for that
    /// page.
    async fn page(&self) -> Option<Arc<str>> {
        // The lock is held while the daemon answers, so that other scrapes wait for the same page.
        let mut latest = self.latest.lock().await;
        if let Some((made, page)) = &*latest
            && made.elapsed() < FRESH
        {
            return Some(Arc::clone(page));
        }
        let (answer, answered) = oneshot::channel();
        self.scrapes.send(answer).await.ok()?;
        // Receiving the answer fails if the daemon drops the request, as it does when it stops.
        let page: Arc<str> = answered.await.ok()?.into();
        *latest = Some((Instant::now(), Arc::clone(&page)));
        Some(page)
    }
}

impl Site for MetricsSite {
    const NAME: &'static str = "metrics";

    async fn answer(&self, head: Result<Head, BadHead>, _: Body<'_>) -> io::Result<Answer> {
        let with_body = match head.map(|head| asks_for_page(&head)) {
            Ok(Ok(with_body)) => with_body,
            Ok(Err(refused)) => return Ok(refused),
            Err(BadHead::Malformed) => {
                return Ok(refusal("400 Bad Request", "This is not a request of HTTP/1.1."));
            }
            Err(BadHead::TooLong) => {
                return Ok(refusal(
                    "431 Request Header Fields Too Large",
                    "The request is longer than 8 KiB or has more than 100 fields.",
                ));
            }
        };
        let Some(text) = self.page().await else {
            return Ok(refusal("503 Service Unavailable", "The exit is stopping."));
        };
        let page = Answer::new("200 OK", OPEN_METRICS, text.to_string());
        Ok(if with_body { page } else { page.without_body() })
    }
}

/// Returns whether a request for the page wants its body too. For any other request, returns the answer that refuses it.
fn asks_for_page(head: &Head) -> Result<bool, Answer> {
    // A scrape may have parameters (`params` in Prometheus's configuration). The exit ignores them.
    let path = head.target.split_once('?').map_or(head.target.as_str(), |(path, _)| path);
    match (head.method.as_str(), path) {
        ("GET", "/metrics") => Ok(true),
        ("HEAD", "/metrics") => Ok(false),
        ("GET" | "HEAD", _) => Err(refusal("404 Not Found", "The metrics are at /metrics.")),
        _ => Err(refusal("405 Method Not Allowed", "Use GET.").with("Allow", "GET, HEAD")),
    }
}

fn refusal(status: &str, sentence: &str) -> Answer {
    Answer::new(status, TEXT, format!("{sentence}\n"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::http::{CONNECTIONS, TIME};

    /// Starts a server whose pages are numbered. Also returns how many pages were made.
    async fn numbered() -> (SocketAddr, Arc<std::sync::atomic::AtomicUsize>) {
        let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), "metrics", "[metrics]").await.unwrap();
        let address = socket.tcp_address().unwrap();
        let mut server = start(socket);
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
            (b"GET /metrics?a=b HTTP/1.0\r\nHost: x\r\n\r\n", "200 OK"),
            // A person with netcat sends a request like this.
            (b"GET /metrics HTTP/1.1\n\n", "200 OK"),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"get /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"),
            (b"\r\n\r\n", "400 Bad Request"),
            (b"\xff\xff\r\n\r\n", "400 Bad Request"),
            (&[b'x'; 9_000], "431 Request Header Fields Too Large"),
        ] {
            let answer = ask(address, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{answer}");
            let has_page = answer.contains("\r\n\r\npage ");
            assert_eq!(has_page, expected == "200 OK" && request.starts_with(b"GET"), "{answer}");
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
        // The task counts a page before it is asked for, so its count is one ahead.
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
        // The first connection was ended in favour of a later one.
        let mut byte = [0];
        let first = idle.first_mut().unwrap().read(&mut byte);
        assert!(matches!(tokio::time::timeout(TIME / 2, first).await, Ok(Ok(0) | Err(_))));
    }
}
