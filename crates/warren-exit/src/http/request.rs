//! The head of an HTTP request, parsed by httparse.

/// The longest head, in bytes.
pub(crate) const MAX_HEAD: usize = 8 * 1024;
/// Maximum number of fields of a head. Browsers send about twenty.
const MAX_FIELDS: usize = 100;

/// The head of a request: its first line and its fields.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// The path, with a query if there is one.
    pub(crate) target: String,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub(crate) minor_version: u8,
    /// Whether each line ends with CR LF, as the standard requires. If a person types into netcat, lines end with LF only.
    pub(crate) has_carriage_returns: bool,
    fields: Vec<(String, Vec<u8>)>,
}

/// Why a head cannot be understood.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BadHead {
    /// The head is not HTTP/1.0 or HTTP/1.1, or the connection ended within it.
    Malformed,
    /// The head is longer than [`MAX_HEAD`], or has more fields than [`MAX_FIELDS`].
    TooLong,
}

impl Head {
    /// Parses the head at the start of `bytes`. Returns the head and its length, which includes the blank line. Returns `None` if
    /// the head has not arrived completely.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHead> {
        // httparse would skip blank lines before the request, so they are refused here.
        if matches!(bytes, [b'\r' | b'\n', ..]) {
            return Err(BadHead::Malformed);
        }
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        let length = match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(BadHead::TooLong),
            Err(_) => return Err(BadHead::Malformed),
        };
        let (Some(method), Some(target), Some(minor_version)) =
            (request.method, request.path, request.version)
        else {
            return Err(BadHead::Malformed);
        };
        // Other forms of target are only for proxies and for OPTIONS (RFC 9112 section 3.2).
        if !target.starts_with('/') {
            return Err(BadHead::Malformed);
        }
        let head = Self {
            method: method.to_owned(),
            target: target.to_owned(),
            minor_version,
            has_carriage_returns: has_carriage_returns(bytes.get(..length).unwrap_or_default()),
            fields: request.headers.iter().map(|field| (field.name.to_owned(), field.value.into())).collect(),
        };
        Ok(Some((head, length)))
    }

    /// Returns the value of a field.
    ///
    /// # Errors
    /// If the head contains the field twice, or if its value is not text. Two programs could read such a head in different
    /// ways.
    pub(crate) fn field(&self, name: &str) -> Result<Option<&str>, BadHead> {
        // Names of fields are case-insensitive (RFC 9110 section 5.1).
        let mut values = self.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let (first, None) = (values.next(), values.next()) else { return Err(BadHead::Malformed) };
        let Some((_, value)) = first else { return Ok(None) };
        std::str::from_utf8(value).map(|value| Some(value.trim())).map_err(|_| BadHead::Malformed)
    }
}

fn has_carriage_returns(head: &[u8]) -> bool {
    let lines = head.strip_suffix(b"\n").unwrap_or(head).split(|byte| *byte == b'\n');
    lines.into_iter().all(|line| line.ends_with(b"\r"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(head: &str) -> Result<Option<(String, String, u8)>, BadHead> {
        let parsed = Head::parse(head.as_bytes())?;
        Ok(parsed.map(|(head, _)| (head.method, head.target, head.minor_version)))
    }

    #[test]
    fn heads_of_either_version_are_parsed_and_others_refused() {
        let get = |minor| Ok(Some(("GET".to_owned(), "/a?b".to_owned(), minor)));
        assert_eq!(parsed("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\nbody"), get(1));
        assert_eq!(parsed("GET /a?b HTTP/1.0\n\n"), get(0));
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n", Ok(None)),
            ("", Ok(None)),
            ("GET / HTTP/2\r\n\r\n", Err(BadHead::Malformed)),
            ("GET  / HTTP/1.1\r\n\r\n", Err(BadHead::Malformed)),
            ("GET http://x/ HTTP/1.1\r\n\r\n", Err(BadHead::Malformed)),
            ("GET /\r\n\r\n", Err(BadHead::Malformed)),
            ("\r\n\r\n", Err(BadHead::Malformed)),
            ("GET / HTTP/1.1\r\n folded\r\n\r\n", Err(BadHead::Malformed)),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", Err(BadHead::Malformed)),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", Err(BadHead::Malformed)),
            ("GET / HTTP/1.1\r\n: empty\r\n\r\n", Err(BadHead::Malformed)),
            ("GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", Err(BadHead::Malformed)),
        ] {
            assert_eq!(parsed(head), expected, "{head:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(parsed(&many), Err(BadHead::TooLong));
    }

    #[test]
    fn a_field_is_found_by_any_spelling_and_refused_twice() {
        let (head, _) =
            Head::parse(b"GET / HTTP/1.1\r\nhOST:  x \r\nA: 1\r\na: 2\r\nB: \xff\r\n\r\n").unwrap().unwrap();
        assert_eq!(head.field("Host"), Ok(Some("x")));
        assert_eq!(head.field("Origin"), Ok(None));
        assert_eq!(head.field("A"), Err(BadHead::Malformed));
        assert_eq!(head.field("B"), Err(BadHead::Malformed));
    }

    #[test]
    fn lines_without_carriage_returns_are_noticed() {
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nA: b\r\n\r\n\n", true),
            ("GET / HTTP/1.1\nA: b\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nA: b\n\r\n", false),
            ("GET / HTTP/1.1\r\nA: b\r\n\n", false),
        ] {
            assert_eq!(
                Head::parse(head.as_bytes()).unwrap().unwrap().0.has_carriage_returns,
                expected,
                "{head:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((_, length))) = Head::parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }

        #[test]
        fn a_head_ends_at_its_first_blank_line(lines in prop::collection::vec("[a-z]{1,9}: [a-z]{0,9}", 0..9), rest in ".{0,20}") {
            let head = format!("GET / HTTP/1.1\r\n{}", lines.iter().map(|line| format!("{line}\r\n")).collect::<String>());
            let sent = format!("{head}\r\n{rest}");
            prop_assert_eq!(Head::parse(sent.as_bytes()).unwrap().unwrap().1, head.len() + 2);
            prop_assert!(Head::parse(head.as_bytes()).unwrap().is_none());
        }
    }
}
