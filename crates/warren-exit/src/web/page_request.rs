//! As much of an HTTP/1.1 request as the page needs, and whether this page may have sent it.

/// A longer head is refused.
pub(super) const MAX_HEAD: usize = 8 * 1024;
/// A longer body is refused.
pub(super) const MAX_BODY: usize = 4 * 1024;

/// What was asked, from a head that names this host and comes from this page or from no page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Request<'a> {
    pub(super) method: Method,
    /// Without a query: a request that has one is refused, so that no secret comes to stand in a URL.
    pub(super) path: &'a str,
    /// What follows `Bearer` in Authorization.
    pub(super) token: Option<&'a str>,
    pub(super) body_length: usize,
    pub(super) body_is_json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Method {
    Get,
    Post,
}

/// Why there is no answer but this one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    Malformed,
    HeadTooLong,
    BodyTooLong,
    Method,
    NotFound,
    /// The name that the request was sent to is not this host's: a page elsewhere let its own name lead here (DNS rebinding).
    Foreign,
    /// A page elsewhere has sent the request (cross-site request forgery).
    CrossSite,
    NoToken,
    NotJson,
    Unavailable,
}

/// Understands a head without its blank line.
pub(super) fn parse(head: &[u8]) -> Result<Request<'_>, Refusal> {
    let head = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = head.split("\r\n");
    let (method, path) = request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines {
        fields.add(line)?;
    }
    if !fields.host.is_some_and(is_this_host) {
        return Err(Refusal::Foreign);
    }
    if !fields.is_from_here() {
        return Err(Refusal::CrossSite);
    }
    Ok(Request {
        method,
        path,
        token: fields.authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim),
        body_length: body_length(method, fields.content_length)?,
        body_is_json: fields.content_type == Some("application/json"),
    })
}

fn request_line(line: &str) -> Result<(Method, &str), Refusal> {
    let mut words = line.split(' ');
    let (Some(method), Some(path), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    if version != "HTTP/1.1" || !path.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    let method = match method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        _ => return Err(Refusal::Method),
    };
    if path.contains(['?', '#', '%']) {
        return Err(Refusal::NotFound);
    }
    Ok((method, path))
}

fn body_length(method: Method, content_length: Option<&str>) -> Result<usize, Refusal> {
    let Some(text) = content_length else { return Ok(0) };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::Malformed);
    }
    let length = text.parse::<usize>().map_err(|_| Refusal::BodyTooLong)?;
    if method == Method::Get && length > 0 {
        return Err(Refusal::Malformed);
    }
    if length > MAX_BODY { Err(Refusal::BodyTooLong) } else { Ok(length) }
}

/// The fields that matter; each may be there once.
#[derive(Debug, Default)]
struct Fields<'a> {
    host: Option<&'a str>,
    origin: Option<&'a str>,
    fetch_site: Option<&'a str>,
    authorization: Option<&'a str>,
    content_length: Option<&'a str>,
    content_type: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn add(&mut self, line: &'a str) -> Result<(), Refusal> {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$&'*+^`|~%".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) || value.contains(['\0', '\r', '\n']) {
            return Err(Refusal::Malformed);
        }
        let place = match name.to_ascii_lowercase().as_str() {
            "host" => &mut self.host,
            "origin" => &mut self.origin,
            "sec-fetch-site" => &mut self.fetch_site,
            "authorization" => &mut self.authorization,
            "content-length" => &mut self.content_length,
            "content-type" => &mut self.content_type,
            // A body of unknown length; no browser sends one.
            "transfer-encoding" => return Err(Refusal::Malformed),
            _ => return Ok(()),
        };
        if place.replace(value.trim()).is_some() { Err(Refusal::Malformed) } else { Ok(()) }
    }

    /// Whether the page itself has sent this, or somebody without a page. `none` is what was typed into the address bar.
    fn is_from_here(&self) -> bool {
        let origin_is_host = match (self.origin, self.host) {
            (Some(origin), Some(host)) => origin.strip_prefix("http://") == Some(host),
            (Some(_), None) => false,
            (None, _) => true,
        };
        origin_is_host && matches!(self.fetch_site, None | Some("same-origin" | "none"))
    }
}

/// Whether a Host field names the loopback, with whatever port (`ssh -L` may have another one).
fn is_this_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((name, port)) = rest.split_once(']') else { return false };
            (name, port.strip_prefix(':').or(port.is_empty().then_some("80")))
        }
        None => host.split_once(':').map_or((host, Some("80")), |(name, port)| (name, Some(port))),
    };
    let is_port =
        port.is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok());
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_port && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get(fields: &str) -> String {
        format!("GET /api/overview HTTP/1.1\r\nHost: 127.0.0.1:9467{fields}")
    }

    fn why(head: &str) -> Refusal {
        parse(head.as_bytes()).expect_err("is refused")
    }

    #[test]
    fn a_request_of_the_page_is_understood() {
        let head = "POST /api/invite HTTP/1.1\r\nhost: localhost:9467\r\nOrigin: http://localhost:9467\r\n\
                    Sec-Fetch-Site: same-origin\r\nAuthorization: Bearer abc\r\nContent-Type: application/json\r\nContent-Length: 12";
        let request = parse(head.as_bytes()).unwrap();
        assert_eq!(request.method, Method::Post);
        assert_eq!((request.path, request.token), ("/api/invite", Some("abc")));
        assert_eq!((request.body_length, request.body_is_json), (12, true));
        assert_eq!(parse(get("").as_bytes()).unwrap().token, None);
    }

    #[test]
    fn other_names_than_this_hosts_are_refused() {
        for host in ["127.0.0.1", "127.0.0.1:1", "127.1.2.3:80", "LOCALHOST:9467", "[::1]:9467", "[::1]"] {
            assert!(is_this_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9467",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.66.0.1:9467",
            "[::2]:9467",
            "[::1",
            "[::1]x",
            "127.0.0.1:",
            "127.0.0.1:99999",
            "127.0.0.1:9467:1",
            "user@127.0.0.1",
        ] {
            // An empty port is none.
            assert!(!is_this_host(host), "{host}");
            let head = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert_eq!(why(&head), Refusal::Foreign, "{host}");
        }
        assert_eq!(why("GET / HTTP/1.1"), Refusal::Foreign);
    }

    #[test]
    fn pages_elsewhere_are_refused() {
        for field in [
            "Origin: http://evil.example",
            "Origin: null",
            "Origin: http://127.0.0.1:9468",
            "Origin: https://127.0.0.1:9467",
            "Origin: http://localhost:9467",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert_eq!(why(&get(&format!("\r\n{field}"))), Refusal::CrossSite, "{field}");
        }
        assert!(parse(get("\r\nSec-Fetch-Site: none").as_bytes()).is_ok());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for fields in [
            "\r\nHost: localhost",
            "\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
            "\r\nTransfer-Encoding: chunked",
            "\r\nContent-Length: +1",
            "\r\nContent-Length: 1, 1",
            "\r\nContent-Length: 5",
            "\r\n folded",
            "\r\nHost : x",
            "\r\nno colon",
            "\r\n: empty",
            "\r\nX: a\nHost: evil",
        ] {
            assert_eq!(why(&get(fields)), Refusal::Malformed, "{fields:?}");
        }
        assert_eq!(why("GET / HTTP/1.0\r\nHost: localhost"), Refusal::Malformed);
        assert_eq!(why("GET http://localhost/ HTTP/1.1\r\nHost: localhost"), Refusal::Malformed);
        assert_eq!(why("PUT / HTTP/1.1\r\nHost: localhost"), Refusal::Method);
        assert_eq!(why("GET /?token=abc HTTP/1.1\r\nHost: localhost"), Refusal::NotFound);
        let long = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999";
        assert_eq!(why(long), Refusal::BodyTooLong);
        assert_eq!(why("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4097"), Refusal::BodyTooLong);
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_understood_or_refused(head in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&head);
        }

        #[test]
        fn only_the_loopback_is_ever_this_host(
            name in "[a-z0-9.:\\[\\]-]{0,20}",
            fields in prop::collection::vec("[A-Za-z-]{1,16}: ?[ -~]{0,24}", 0..4),
        ) {
            let head = format!("GET / HTTP/1.1\r\nHost: {name}\r\n{}", fields.join("\r\n"));
            let is_loopback = ["127.", "localhost", "[::1]", "[0:"].iter().any(|start| name.starts_with(start));
            prop_assert!(is_loopback || parse(head.as_bytes()).is_err());
        }
    }
}
