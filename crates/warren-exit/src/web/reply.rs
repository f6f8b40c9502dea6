//! The answers to a browser. Their header fields keep the browser from doing anything with an answer except showing it.

use std::fmt::Write as _;

use serde_json::Value;
use zeroize::Zeroize as _;

use super::page_request::Refusal;
use crate::http::Answer;

/// Lets the browser load only the page's own files. No other page can frame this page, and its forms cannot be submitted
/// anywhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const JSON: &str = "application/json";

/// A file of the page.
pub(super) fn file(content_type: &str, body: &str) -> Answer {
    answer("200 OK", content_type, body.to_owned())
}

/// Answers with the value that was asked for. It may contain a client's private key, so no copy of it stays in memory.
pub(super) fn value(mut value: Value) -> Answer {
    let mut body = String::with_capacity(longest(&value));
    // The string has room for the whole value. A string that grows leaves its old buffer behind, unwiped.
    let written = write!(body, "{value}");
    wipe(&mut value);
    match written {
        Ok(()) => answer("200 OK", JSON, body),
        Err(_) => not_done("the answer cannot be written"),
    }
}

/// Returns at least as many bytes as the value takes as text.
fn longest(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        // The longest number is a float, such as -1.7976931348623157e+308.
        Value::Number(_) => 32,
        // An escape such as `\u001f` takes six bytes in place of one.
        Value::String(text) => text.len() + 2 + 5 * text.bytes().filter(|byte| is_escaped(*byte)).count(),
        Value::Array(values) => 2 + values.iter().map(|value| longest(value) + 1).sum::<usize>(),
        Value::Object(values) => {
            2 + values.iter().map(|(key, value)| key.len() + longest(value) + 4).sum::<usize>()
        }
    }
}

fn is_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn wipe(value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => text.zeroize(),
        Value::Array(values) => values.iter_mut().for_each(wipe),
        Value::Object(values) => values.values_mut().for_each(wipe),
    }
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
            ("401 Unauthorized", "this is not the exit's token; its log says which file contains it")
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
        // X-Frame-Options is for browsers that do not know `frame-ancestors`.
        .with("X-Frame-Options", "DENY")
        .with("Referrer-Policy", "no-referrer")
        // Pages of other sites cannot get a reference to this page's window, and cannot embed its answers.
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_wiped_in_all_its_depth() {
        let mut value = json!({ "file": "secret", "rows": [{ "key": "secret" }], "size": 7 });
        wipe(&mut value);
        assert!(!value.to_string().contains("secret"), "{value}");
    }

    proptest! {
        #[test]
        fn a_value_never_outgrows_its_room(texts in prop::collection::vec(".{0,40}", 0..6), number in any::<f64>(), whole in any::<i64>()) {
            let value = json!({ "texts": texts, "a\"b": [number, whole, null, true], "control": "\u{1}\n\"\\" });
            // A key may also need escapes. This function ignores them, because the page's own keys need none.
            prop_assert!(value.to_string().len() <= longest(&value) + 2);
        }
    }
}
