//! What a request to the page's server asks for, and whether the page itself may have sent it.

use crate::http::{BadHead, Head};

/// The longest body, in bytes.
const MAX_BODY: usize = 4 * 1024;

/// A request that names this host. It comes from this page, or from a program that is not a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PageRequest<'a> {
    pub(super) method: Method,
    /// The path. A request with a query is refused, so that no secret ends up in a URL.
    pub(super) path: &'a str,
    /// The token that follows `Bearer` in Authorization.
    pub(super) token: Option<&'a str>,
    pub(super) body_length: usize,
    pub(super) body_is_json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Method {
    Get,
    Post,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    Malformed,
    HeadTooLong,
    BodyTooLong,
    Method,
    NotFound,
    /// The request names another host than this one. In that case another site has made its own name resolve to this host (DNS
    /// rebinding).
    ForeignHost,
    /// The page of another site has sent the request (cross-site request forgery).
    CrossSite,
    NoToken,
    NotJson,
    Unavailable,
}

impl From<BadHead> for Refusal {
    fn from(bad: BadHead) -> Self {
        match bad {
            BadHead::Malformed => Self::Malformed,
            BadHead::TooLong => Self::HeadTooLong,
        }
    }
}

impl<'a> PageRequest<'a> {
    /// Checks a head. No browser sends the forms that are refused as malformed, and a proxy may read them differently.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub(super) fn check(head: &'a Head) -> Result<Self, Refusal> {
        if head.minor_version != 1 || !head.has_carriage_returns {
            return Err(Refusal::Malformed);
        }
        let method = match head.method.as_str() {
            "GET" => Method::Get,
            "POST" => Method::Post,
            _ => return Err(Refusal::Method),
        };
        // Without escapes, each file and each question has only one path.
        if head.target.contains(['?', '#', '%']) {
            return Err(Refusal::NotFound);
        }
        let (authorization, content_type) = (head.field("Authorization")?, head.field("Content-Type")?);
        let (host, content_length) = (head.field("Host")?, head.field("Content-Length")?);
        let (origin, fetch_site) = (head.field("Origin")?, head.field("Sec-Fetch-Site")?);
        // With Transfer-Encoding, the length of the body is not known.
        if head.field("Transfer-Encoding")?.is_some() {
            return Err(Refusal::Malformed);
        }
        let host = host.filter(|host| is_this_host(host)).ok_or(Refusal::ForeignHost)?;
        let origin_is_host = origin.is_none_or(|origin| origin.strip_prefix("http://") == Some(host));
        // `none` means that a person typed the address or used a bookmark. Programs that are not browsers send neither field.
        if !origin_is_host || !matches!(fetch_site, None | Some("same-origin" | "none")) {
            return Err(Refusal::CrossSite);
        }
        Ok(Self {
            method,
            path: &head.target,
            token: authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim),
            body_length: body_length(method, content_length)?,
            body_is_json: content_type == Some("application/json"),
        })
    }
}

fn body_length(method: Method, content_length: Option<&str>) -> Result<usize, Refusal> {
    let Some(text) = content_length else { return Ok(0) };
    // Rust parses `+1` as a number. A proxy may not, and then the two would find different ends of the body.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::Malformed);
    }
    let length = text.parse::<usize>().map_err(|_| Refusal::BodyTooLong)?;
    if method == Method::Get && length > 0 {
        return Err(Refusal::Malformed);
    }
    if length > MAX_BODY { Err(Refusal::BodyTooLong) } else { Ok(length) }
}

/// Whether a Host field names the loopback address. Any port is accepted, because `ssh -L` may use another port than the exit.
fn is_this_host(host: &str) -> bool {
    // An IPv6 address is enclosed in brackets (RFC 3986 section 3.2.2).
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

    /// Checks a head, given without its last line break and the blank line.
    fn check<T>(head: &str, look: impl FnOnce(&PageRequest<'_>) -> T) -> Result<T, Refusal> {
        let text = format!("{head}\r\n\r\n");
        let (head, _) = Head::parse(text.as_bytes())?.expect("is whole");
        PageRequest::check(&head).map(|request| look(&request))
    }

    fn why(head: &str) -> Refusal {
        check(head, |_| ()).expect_err("is refused")
    }

    #[test]
    fn a_request_of_the_page_is_understood() {
        let head = "POST /api/invite HTTP/1.1\r\nhost: localhost:9467\r\nOrigin: http://localhost:9467\r\n\
                    Sec-Fetch-Site: same-origin\r\nAuthorization: Bearer abc\r\nContent-Type: application/json\r\nContent-Length: 12";
        check(head, |request| {
            assert_eq!(request.method, Method::Post);
            assert_eq!((request.path, request.token), ("/api/invite", Some("abc")));
            assert_eq!((request.body_length, request.body_is_json), (12, true));
        })
        .unwrap();
        assert_eq!(check(&get(""), |request| request.token.is_none()), Ok(true));
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
            // A host with a colon but without a port is refused as well.
            assert!(!is_this_host(host), "{host}");
            let head = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert_eq!(why(&head), Refusal::ForeignHost, "{host}");
        }
        assert_eq!(why("GET / HTTP/1.1"), Refusal::ForeignHost);
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
        assert_eq!(check(&get("\r\nSec-Fetch-Site: none"), |_| ()), Ok(()));
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
            "\r\nX: a\nY: b",
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
        fn only_the_loopback_is_ever_this_host(
            name in "[a-z0-9.:\\[\\]-]{0,20}",
            fields in prop::collection::vec("[A-Za-z-]{1,16}: ?[ -~]{0,24}", 0..4),
        ) {
            let head = format!("GET / HTTP/1.1\r\nHost: {name}\r\n{}", fields.join("\r\n"));
            let is_loopback = ["127.", "localhost", "[::1]", "[0:"].iter().any(|start| name.starts_with(start));
            prop_assert!(is_loopback || check(&head, |_| ()).is_err());
        }
    }
}
