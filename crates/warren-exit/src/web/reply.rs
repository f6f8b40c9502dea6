//! Answers of HTTP/1.1, each with what keeps a browser from doing more with it than to show it.

use super::page_request::Refusal;

/// Nothing but the page's own files is loaded, by nobody's wish; nothing frames it, and no form leaves it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const JSON: &str = "application/json";

/// A file of the page.
pub(super) fn file(content_type: &str, body: &str) -> Vec<u8> {
    answer("200 OK", content_type, "", body)
}

/// What was asked for.
pub(super) fn value(value: &serde_json::Value) -> Vec<u8> {
    answer("200 OK", JSON, "", &value.to_string())
}

/// Why a change was not made, as a sentence for the operator.
pub(super) fn not_done(sentence: &str) -> Vec<u8> {
    answer("409 Conflict", JSON, "", &sentence_as_json(sentence))
}

/// Why the request was not even looked at.
pub(super) fn refusal(refusal: Refusal) -> Vec<u8> {
    let (status, field, sentence) = match refusal {
        Refusal::Malformed => ("400 Bad Request", "", "this is not a request of HTTP/1.1"),
        Refusal::HeadTooLong => {
            ("431 Request Header Fields Too Large", "", "the request's head is longer than 8 KiB")
        }
        Refusal::BodyTooLong => ("413 Content Too Large", "", "the request's body is longer than 4 KiB"),
        Refusal::Method => ("405 Method Not Allowed", "Allow: GET, POST\r\n", "use GET, or POST for changes"),
        Refusal::NotFound => ("404 Not Found", "", "there is nothing at this address; the page is at /"),
        Refusal::Foreign => (
            "421 Misdirected Request",
            "",
            "the page answers to localhost, 127.0.0.1 and [::1] only; reach it with: ssh -L 9467:127.0.0.1:9467 HOST",
        ),
        Refusal::CrossSite => ("403 Forbidden", "", "another page sent this request, so it was refused"),
        Refusal::NoToken => (
            "401 Unauthorized",
            "WWW-Authenticate: Bearer\r\n",
            "this is not the exit's token; its log says which file has it",
        ),
        Refusal::NotJson => {
            ("415 Unsupported Media Type", "", "the request must be JSON with the keys of its kind")
        }
        Refusal::Unavailable => ("503 Service Unavailable", "", "the exit is stopping"),
    };
    answer(status, JSON, field, &sentence_as_json(sentence))
}

fn sentence_as_json(sentence: &str) -> String {
    serde_json::json!({ "error": sentence }).to_string()
}

fn answer(status: &str, content_type: &str, field: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}; charset=utf-8\r\nContent-Length: {length}\r\n{field}\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
         Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
