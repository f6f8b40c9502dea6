//! Finds a network's login page and reads its response. The network responds in place of the host that was asked.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A web server's answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status code.
    pub status: &'a str,
    /// The target of the redirect.
    pub location: Option<&'a str>,
    /// The beginning of the page.
    pub body: &'a str,
}

impl<'a> Answer<'a> {
    /// Reads an answer. `None` if it is not HTTP.
    pub fn read(text: &'a str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let mut lines = head.lines();
        let status = lines.next().filter(|line| line.starts_with("HTTP/"))?;
        let location = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim())
        });
        let status = status.split_whitespace().nth(1).unwrap_or_default();
        // Other 3xx codes are not redirects (304), or do not send this host to one page (300). See RFC 9110 section 15.4.
        let redirects = matches!(status, "301" | "302" | "303" | "307" | "308");
        Some(Self { status, location: location.filter(|_| redirects), body })
    }

    /// Whether the answer says that a login is needed (RFC 6585 section 6).
    pub fn needs_login(&self) -> bool {
        self.status == "511"
    }
}

/// Requests a page over a connection, and returns the beginning of the answer.
///
/// # Errors
/// When the connection fails.
pub async fn ask(mut stream: TcpStream, host: &str, path: &str) -> io::Result<String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // A login page may be large, but its beginning is enough.
    stream.take(8 * 1024).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
