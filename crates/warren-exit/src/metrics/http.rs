//! As much of HTTP/1.1 as a scrape needs: one GET, one answer, and the connection is closed.

/// A longer head is refused.
pub(super) const MAX_HEAD: usize = 8 * 1024;
/// What the page is.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// What was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Request {
    /// The page; `with_body` is not set for HEAD.
    Page { with_body: bool },
    /// What is answered with an error.
    Refused(Refusal),
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    Malformed,
    NotFound,
    Method,
    TooLong,
    Unavailable,
}

/// Where the head of a request ends, once it does.
pub(super) fn end_of_head(bytes: &[u8]) -> Option<usize> {
    // A person with netcat may leave out carriage returns.
    let blank_line = |pattern: &[u8]| bytes.windows(pattern.len()).position(|window| window == pattern);
    [blank_line(b"\r\n\r\n"), blank_line(b"\n\n")].into_iter().flatten().min()
}

/// Understands the head of a request.
pub(super) fn parse(head: &[u8]) -> Request {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Request::Refused(Refusal::Malformed) };
    let mut words = line.trim_end_matches('\r').split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Request::Refused(Refusal::Malformed);
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Request::Refused(Refusal::Malformed);
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (method, path) {
        ("GET", "/metrics") => Request::Page { with_body: true },
        ("HEAD", "/metrics") => Request::Page { with_body: false },
        ("GET" | "HEAD", _) => Request::Refused(Refusal::NotFound),
        _ => Request::Refused(Refusal::Method),
    }
}

/// The answer with the page.
pub(super) fn page(text: &str, with_body: bool) -> Vec<u8> {
    answer("200 OK", OPEN_METRICS, "", text, with_body)
}

/// The answer without it.
pub(super) fn refusal(refusal: Refusal) -> Vec<u8> {
    let (status, header, sentence) = match refusal {
        Refusal::Malformed => ("400 Bad Request", "", "This is not a request of HTTP/1.1.\n"),
        Refusal::NotFound => ("404 Not Found", "", "The metrics are at /metrics.\n"),
        Refusal::Method => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "Use GET.\n"),
        Refusal::TooLong => {
            ("431 Request Header Fields Too Large", "", "The request is longer than 8 KiB.\n")
        }
        Refusal::Unavailable => ("503 Service Unavailable", "", "The exit is stopping.\n"),
    };
    answer(status, TEXT, header, sentence, true)
}

fn answer(status: &str, content: &str, header: &str, body: &str, with_body: bool) -> Vec<u8> {
    let length = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\n{header}\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes();
    if with_body {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_get_of_the_page_is_answered_with_it() {
        for (head, request) in [
            ("GET /metrics HTTP/1.1\r\nHost: x", Request::Page { with_body: true }),
            ("GET /metrics?a=b HTTP/1.0", Request::Page { with_body: true }),
            ("HEAD /metrics HTTP/1.1", Request::Page { with_body: false }),
            ("GET / HTTP/1.1", Request::Refused(Refusal::NotFound)),
            ("GET /metrics/ HTTP/1.1", Request::Refused(Refusal::NotFound)),
            ("POST /metrics HTTP/1.1", Request::Refused(Refusal::Method)),
            ("get /metrics HTTP/1.1", Request::Refused(Refusal::Method)),
            ("GET /metrics HTTP/2", Request::Refused(Refusal::Malformed)),
            ("GET  /metrics HTTP/1.1", Request::Refused(Refusal::Malformed)),
            ("GET http://x/metrics HTTP/1.1", Request::Refused(Refusal::Malformed)),
            ("GET /metrics", Request::Refused(Refusal::Malformed)),
            ("", Request::Refused(Refusal::Malformed)),
        ] {
            assert_eq!(parse(head.as_bytes()), request, "{head:?}");
        }
    }

    #[test]
    fn answers_say_how_long_they_are() {
        let text = String::from_utf8(page("abc\n", true)).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nabc\n"), "{text}");
        assert!(text.contains("Content-Length: 4\r\n"), "{text}");
        let head = String::from_utf8(page("abc\n", false)).unwrap();
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let refused = String::from_utf8(refusal(Refusal::Method)).unwrap();
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_understood_or_refused(head in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = end_of_head(&head);
            let asked_for_page = matches!(parse(&head), Request::Page { .. });
            prop_assert!(!asked_for_page || head.starts_with(b"GET /metrics") || head.starts_with(b"HEAD /metrics"));
        }

        #[test]
        fn a_head_ends_at_its_first_blank_line(lines in prop::collection::vec("[a-z]{1,9}", 1..9), rest in ".{0,20}") {
            let head = lines.join("\r\n");
            let sent = format!("{head}\r\n\r\n{rest}");
            prop_assert_eq!(end_of_head(sent.as_bytes()), Some(head.len()));
        }
    }
}
