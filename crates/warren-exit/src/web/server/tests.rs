//! Tests the page's server with honest and hostile clients. The daemon behind it echoes each question.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::http::{CONNECTIONS, TIME};

struct Page {
    address: SocketAddr,
    token: String,
    _directory: tempfile::TempDir,
}

impl Page {
    async fn serve() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let token = Token::read_or_make(directory.path()).unwrap();
        let text = std::fs::read_to_string(token::path(directory.path())).unwrap();
        let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), PageSite::NAME, SECTION).await.unwrap();
        let address = socket.tcp_address().unwrap();
        let mut server = start(socket, token);
        tokio::spawn(async move {
            loop {
                let Question { asked, visitor, answer } = server.next().await;
                let reply = match &asked {
                    ApiCall::Change(Change::Remove(Named { name })) if name == "nobody" => {
                        Err("there is no client".to_owned())
                    }
                    ApiCall::Overview
                    | ApiCall::Clients(_)
                    | ApiCall::Client(_)
                    | ApiCall::Audit(_)
                    | ApiCall::Name(_)
                    | ApiCall::Day
                    | ApiCall::Change(_) => {
                        Ok(serde_json::json!({ "asked": format!("{asked:?}"), "user": visitor.user() }))
                    }
                };
                let _ = answer.send(reply);
            }
        });
        Self { address, token: text.trim().to_owned(), _directory: directory }
    }

    /// A request with the token, other fields and a body.
    async fn ask(&self, line: &str, fields: &str, body: &str) -> String {
        let (token, length) = (&self.token, body.len());
        let own = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n");
        self.send(format!("{line} HTTP/1.1\r\n{own}{fields}\r\n{body}").as_bytes()).await
    }

    async fn send(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may stop reading a request that is too long.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

#[track_caller]
fn assert_status(answer: &str, status: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    // Every answer forbids the browser to keep it, to guess its type, or to show it within another site.
    for field in [
        "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; ",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "X-Frame-Options: DENY",
        "Referrer-Policy: no-referrer",
    ] {
        assert!(answer.contains(&format!("\r\n{field}")), "{field}: {answer}");
    }
    assert!(!answer.contains("Access-Control-") && !answer.contains("Set-Cookie"), "{answer}");
}

#[tokio::test]
async fn files_are_anybodys_and_figures_are_not() {
    let page = Page::serve().await;
    let anybody = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    for path in ["/", "/page.css", "/page.js", "/add.js", "/client.js", "/words.js", "/icon.svg"] {
        assert_status(&page.send(&anybody(&format!("GET {path}"))).await, "200");
    }
    for line in ["GET /api/overview", "GET /api/day", "GET /api/nothing"] {
        assert_status(&page.send(&anybody(line)).await, "401");
    }
    for (path, _) in OF_BODY {
        assert_status(&page.send(&anybody(&format!("POST {path}"))).await, "401");
    }
    let wrong = format!(
        "GET /api/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}x\r\n\r\n",
        page.token
    );
    assert_status(&page.send(wrong.as_bytes()).await, "401");
    let basic = format!(
        "GET /api/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {}\r\n\r\n",
        page.token
    );
    assert_status(&page.send(basic.as_bytes()).await, "401");
    let in_url = format!("GET /api/overview?token={} HTTP/1.1\r\nHost: localhost\r\n\r\n", page.token);
    assert_status(&page.send(in_url.as_bytes()).await, "404");

    assert_status(&page.ask("GET /api/overview", "", "").await, "200");
    assert_status(&page.ask("GET /api/nothing", "", "").await, "404");
}

#[tokio::test]
async fn changes_take_json_of_their_kind_and_say_why_not() {
    let page = Page::serve().await;
    let json = "Content-Type: application/json\r\n";
    let invited = page.ask("POST /api/invite", json, r#"{"name":"laptop","hours":24}"#).await;
    assert_status(&invited, "200");
    assert!(invited.contains("NewInvitation") && invited.contains("laptop"), "{invited}");
    let refused = page.ask("POST /api/remove", json, r#"{"name":"nobody"}"#).await;
    assert_status(&refused, "409");
    assert!(refused.ends_with(r#"{"error":"there is no client"}"#), "{refused}");

    // A form of another site can send these content types, but not JSON's.
    for content in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
    {
        assert_status(&page.ask("POST /api/remove", content, r#"{"name":"laptop"}"#).await, "415");
    }
    for body in ["", "{", "[]", r#"{"name":7}"#, r#"{"name":"a","x":1}"#, "\u{0}", &"[".repeat(4_000)] {
        assert_status(&page.ask("POST /api/remove", json, body).await, "415");
    }
    assert_status(&page.ask("GET /api/invite", "", "").await, "405");
    assert_status(&page.ask("DELETE /api/remove", json, "").await, "405");
    assert_status(&page.ask("POST /api/overview", json, "{}").await, "404");
}

#[tokio::test]
async fn every_change_takes_its_own_json_and_nothing_that_a_page_elsewhere_can_send() {
    let page = Page::serve().await;
    let json = "Content-Type: application/json\r\n";
    for (path, body, understood) in [
        ("/api/client", r#"{"name":"laptop"}"#, "Client(Named"),
        ("/api/audit", r#"{"search":"ann","page":1}"#, "Audit(AuditQuery"),
        ("/api/name", r#"{"text":"Anna's phone"}"#, "Name(Typed"),
        ("/api/wireguard", r#"{"name":"phone"}"#, "AddWireGuard(Named"),
        ("/api/rename", r#"{"name":"laptop","to":"desk"}"#, "Rename(Renaming"),
        ("/api/disable", r#"{"name":"laptop"}"#, "Disable(Named"),
        ("/api/enable", r#"{"name":"laptop"}"#, "Enable(Named"),
        ("/api/limit", r#"{"name":"laptop","rate":"20mbit"}"#, "Limit(NewLimit"),
        ("/api/limit", r#"{"name":"laptop","rate":null}"#, "rate: None"),
        ("/api/remove", r#"{"name":"laptop"}"#, "Remove(Named"),
    ] {
        let line = format!("POST {path}");
        let made = page.ask(&line, json, body).await;
        assert_status(&made, "200");
        assert!(made.contains(understood), "{path}: {made}");
        // The audit log needs the visitor's user, so the server must know it.
        let own = rustix::process::geteuid().as_raw();
        assert!(made.contains(&format!("\"user\":{own}")), "{made}");

        assert_status(&page.ask(&line, "", body).await, "415");
        assert_status(
            &page
                .ask(
                    &line,
                    json,
                    &body.replace("name", "nome").replace("text", "toxt").replace("search", "sarch"),
                )
                .await,
            "415",
        );
        assert_status(&page.ask(&line, &format!("{json}Origin: http://evil.example\r\n"), body).await, "403");
        assert_status(&page.ask(&format!("GET {path}"), "", "").await, "405");
    }
}

#[tokio::test]
async fn pages_elsewhere_get_nothing_even_with_the_token() {
    let page = Page::serve().await;
    for (field, status) in [
        ("Origin: http://evil.example\r\n", "403"),
        ("Origin: null\r\n", "403"),
        ("Sec-Fetch-Site: cross-site\r\n", "403"),
    ] {
        assert_status(&page.ask("GET /api/overview", field, "").await, status);
        assert_status(&page.ask("POST /api/remove", field, r#"{"name":"laptop"}"#).await, status);
    }
    let rebound = format!(
        "GET /api/overview HTTP/1.1\r\nHost: evil.example:9467\r\nAuthorization: Bearer {}\r\n\r\n",
        page.token
    );
    assert_status(&page.send(rebound.as_bytes()).await, "421");
    assert_status(&page.send(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await, "421");
}

#[tokio::test]
async fn hostile_input_is_refused_and_bounded() {
    let page = Page::serve().await;
    for (request, status) in [
        (b"\xff\xfe\r\n\r\n".to_vec(), "400"),
        (b"\r\n\r\n".to_vec(), "400"),
        (b"GET / HTTP/1.1\nHost: localhost\n\n\r\n\r\n".to_vec(), "400"),
        (vec![b'x'; 100_000], "431"),
        ([b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 9_000], b"\r\n\r\n".to_vec()].concat(), "431"),
        (b"POST /api/invite HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".to_vec(), "413"),
        (
            b"POST /api/invite HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_vec(),
            "400",
        ),
    ] {
        assert_status(&page.send(&request).await, status);
    }
    // A second request follows the first one directly. A server that answered it could be tricked behind a proxy.
    let own = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", page.token);
    let smuggled = format!("GET /api/overview HTTP/1.1\r\n{own}\r\nPOST /api/remove HTTP/1.1\r\n{own}\r\n");
    let answer = page.send(smuggled.as_bytes()).await;
    assert_status(&answer, "400");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
}

#[tokio::test]
async fn slow_and_idle_connections_keep_nobody_out_and_are_ended() {
    let page = Page::serve().await;
    let mut idle = Vec::new();
    for place in 0..4 * CONNECTIONS {
        let mut stream = TcpStream::connect(page.address).await.unwrap();
        if place % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHo").await;
        }
        idle.push(stream);
    }
    assert_status(&page.ask("GET /api/overview", "", "").await, "200");
    let first = idle.first_mut().unwrap();
    let mut byte = [0];
    assert!(matches!(tokio::time::timeout(TIME / 2, first.read(&mut byte)).await, Ok(Ok(0) | Err(_))));

    // The server does not wait longer for a missing body than for anything else.
    let own = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", page.token);
    let head = format!(
        "POST /api/remove HTTP/1.1\r\n{own}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    );
    let mut stream = TcpStream::connect(page.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let start = Instant::now();
    let _ = tokio::time::timeout(3 * TIME, stream.read(&mut byte)).await.expect("is ended");
    assert!(start.elapsed() >= TIME - Duration::from_secs(1));
}
