//! An answer of HTTP/1.1.

use zeroize::Zeroizing;

/// An answer, after which the connection is closed.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Everything before the blank line, with a line break after each field.
    head: String,
    /// The body may contain a secret.
    body: Zeroizing<String>,
    with_body: bool,
}

impl Answer {
    /// Makes an answer with a status such as `200 OK`. No cache may keep it, and no browser may guess its content type.
    pub(crate) fn new(status: &str, content_type: &str, body: String) -> Self {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
        );
        Self { head, body: Zeroizing::new(body), with_body: true }
    }

    /// The answer with one more field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.head.extend([name, ": ", value, "\r\n"]);
        self
    }

    /// The answer to a HEAD request. It states the length of the body, but does not contain the body.
    pub(crate) fn without_body(self) -> Self {
        Self { with_body: false, ..self }
    }

    /// The answer as it is sent.
    pub(crate) fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        let body = if self.with_body { self.body.as_str() } else { "" };
        // The whole length is allocated at once, because a buffer that grows would leave unwiped copies behind.
        Zeroizing::new([&self.head, "\r\n", body].concat().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_how_long_they_are() {
        let answer = || Answer::new("200 OK", "text/plain", "abc\n".to_owned()).with("Allow", "GET");
        let text = String::from_utf8(answer().into_bytes().to_vec()).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nabc\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 4\r\n") && text.contains("\r\nAllow: GET\r\n"), "{text}");
        let head = String::from_utf8(answer().without_body().into_bytes().to_vec()).unwrap();
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
