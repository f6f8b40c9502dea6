//! The answers to a browser. Each has the fields that keep the browser from doing more with it than showing it.

use super::page_request::Refusal;
use crate::http::Answer;

/// Lets the browser load only the page's own files. No other page can frame this one, and its forms can be sent nowhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const JSON: &str = "application/json";

/// A file of the page.
pub(super) fn file(content_type: &str, body: &str) -> Answer {
    answer("200 OK", content_type, body.to_owned())
}

/// The value that was asked for.
pub(super) fn value(value: &serde_json::Value) -> Answer {
    answer("200 OK", JSON, value.to_string())
}

/// An answer that tells the operator why a change was not made.
pub(super) fn not_done(sentence: &str) -> Answer {
    answer("409 Conflict", JSON, sentence_as_json(sentence))
}

/// An answer that tells the operator why a request is refused.
pub(super) fn refusal(refusal: Refusal) -> Answer {
    let (status, sentence) = match refusal {
        Refusal::Malformed => ("400 Bad Request", "this is not a request of HTTP/1.1"),
        Refusal::HeadTooLong => (
            "431 Request Header Fields Too Large",
            "the request's head is longer than 8 KiB or has more than 100 fields",
        ),
        Refusal::BodyTooLong => ("413 Content Too Large", "the request's body is longer than 4 KiB"),
        Refusal::Method => ("405 Method Not Allowed", "use GET, or POST for changes"),
        Refusal::NotFound => ("404 Not Found", "there is nothing at this address; the page is at /"),
        Refusal::ForeignHost => (
            "421 Misdirected Request",
            "the page answers to localhost, 127.0.0.1 and [::1] only; reach it with: ssh -L 9467:127.0.0.1:9467 HOST",
        ),
        Refusal::CrossSite => ("403 Forbidden", "another page sent this request, so it was refused"),
        Refusal::NoToken => {
            ("401 Unauthorized", "this is not the exit's token; its log says which file has it")
        }
        Refusal::NotJson => (
            "415 Unsupported Media Type",
            "the request's body must be JSON with exactly the keys that its path takes",
        ),
        Refusal::Unavailable => ("503 Service Unavailable", "the exit is stopping"),
    };
    let answer = answer(status, JSON, sentence_as_json(sentence));
    match refusal {
        Refusal::Method => answer.with("Allow", "GET, POST"),
        Refusal::NoToken => answer.with("WWW-Authenticate", "Bearer"),
        Refusal::Malformed
        | Refusal::HeadTooLong
        | Refusal::BodyTooLong
        | Refusal::NotFound
        | Refusal::ForeignHost
        | Refusal::CrossSite
        | Refusal::NotJson
        | Refusal::Unavailable => answer,
    }
}

fn sentence_as_json(sentence: &str) -> String {
    serde_json::json!({ "error": sentence }).to_string()
}

fn answer(status: &str, content_type: &str, body: String) -> Answer {
    Answer::new(status, &format!("{content_type}; charset=utf-8"), body)
        .with("Content-Security-Policy", POLICY)
        // For browsers that do not know `frame-ancestors`.
        .with("X-Frame-Options", "DENY")
        .with("Referrer-Policy", "no-referrer")
        // Pages of other sites get no handle on this page's window, and cannot embed its answers.
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}
