//! The operators' web page: only for users on this host who have the token.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Exit, ExitOptions, Finished, Net, eventually, finished, flows, seconds};

const PAGE: &str = "http://127.0.0.1:9467";

/// An exit with its web page on.
fn exit_with_page<'net>(net: &'net Net) -> Exit<'net> {
    let mut exit = Exit::init(net, &ExitOptions::default());
    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
    exit.run();
    exit
}

fn token(exit: &Exit<'_>) -> String {
    std::fs::read_to_string(exit.warren.state("exit/web.token"))
        .expect("the exit made the token")
        .trim()
        .to_owned()
}

/// Sends a request from the exit's host with the page's token.
fn ask(exit: &Exit<'_>, path: &str, more: &str) -> Finished {
    let token = token(exit);
    exit.warren.host.sh(&format!(
        "curl --silent --show-error --fail --max-time 20 --header 'Authorization: Bearer {token}' {more} '{PAGE}{path}'"
    ))
}

#[track_caller]
fn overview(exit: &Exit<'_>) -> Value {
    serde_json::from_str(&ask(exit, "/api/overview", "").ok()).expect("an answer is JSON")
}

/// A page of the table of clients.
#[track_caller]
fn clients(exit: &Exit<'_>, query: &Value) -> Value {
    serde_json::from_str(&change(exit, "/api/clients", &query.to_string()).ok()).expect("an answer is JSON")
}

#[track_caller]
fn change(exit: &Exit<'_>, path: &str, body: &str) -> Finished {
    ask(exit, path, &format!("--header 'Content-Type: application/json' --data '{body}'"))
}

#[test]
fn who_has_the_token_invites_sees_and_revokes_a_client() {
    let Some(net) = Net::new() else { return };
    let mut exit = exit_with_page(&net);
    let file = exit.warren.state("exit/web.token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(exit.daemon().output().contains("web.token"), "the log names the token's file");

    let invited = change(&exit, "/api/invite", r#"{"name":"laptop","hours":1}"#).ok();
    let invited: Value = serde_json::from_str(&invited).unwrap();
    assert_eq!(overview(&exit)["invitations"]["first"][0]["name"], "laptop");
    assert!(invited["qr"]["size"].as_u64().unwrap() > 20);
    let client = Client::bare(&net.client);
    let line = invited["line"].as_str().unwrap().strip_prefix("warren ").unwrap();
    client.warren.run(&format!("{line} --name home")).ok();
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_008), 8);

    let shown = overview(&exit);
    assert_eq!(shown["clients"], json!({ "enrolled": 1, "connected": 1 }));
    let table = clients(&exit, &json!({}));
    let row = &table["rows"][0];
    assert_eq!((&row["name"], &row["connected"]), (&"laptop".into(), &true.into()));
    assert!(row["session"]["rtt_ms"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["traffic"]["from_client"].as_u64().unwrap() > 0, "{row}");
    assert!(row["session"]["connections"].as_u64().unwrap() > 0, "{row}");
    assert_eq!(shown["invitations"]["open"], 0);
    eventually(seconds(20), "rates are remembered", || {
        overview(&exit)["minutes"]["from_clients"].as_array().unwrap().len() > 1
    });
    // Neither the clients' locations nor their packets' destinations are shown.
    let text = format!("{}{table}", overview(&exit));
    assert!(text.contains("10.66."), "negative control: inner addresses are shown");
    for hidden in [Net::CLIENT_V4, Net::INTERNET_V4, token(&exit).as_str()] {
        assert!(!text.contains(hidden), "{hidden} is shown: {text}");
    }

    exit.warren.run("exit client add office --prefix 172.30.0.0/24").ok();
    assert!(net.exit.sh("ip route").ok().contains("172.30.0.0/24"), "there is a route to its network");
    change(&exit, "/api/remove", r#"{"name":"office"}"#).ok();
    assert!(!net.exit.sh("ip route").ok().contains("172.30.0.0/24"), "the route is gone with the client");

    change(&exit, "/api/remove", r#"{"name":"laptop"}"#).ok();
    assert_eq!(exit.status().number("/clients/connected"), 0, "a removed client is cut off");
    assert_eq!(overview(&exit)["clients"]["enrolled"], 0);
    eventually(seconds(20), "the client is refused", || client.status().text("/state") == "refused");
    client.warren.run("down home");
    assert!(!exit.daemon().output().contains(&token(&exit)), "the token is in the log");
    let again = change(&exit, "/api/remove", r#"{"name":"laptop"}"#);
    assert!(!again.succeeded() && again.stderr.contains("409"), "{again:?}");
}

/// An answer to a change, as JSON.
#[track_caller]
fn made(exit: &Exit<'_>, path: &str, body: &Value) -> Value {
    serde_json::from_str(&change(exit, path, &body.to_string()).ok()).expect("an answer is JSON")
}

/// The sentence with which the page refuses a change.
#[track_caller]
fn refused(exit: &Exit<'_>, path: &str, body: &Value) -> String {
    let token = token(exit);
    let answer = exit.warren.host.sh(&format!(
        "curl --silent --max-time 20 --write-out ' %{{http_code}}' --header 'Authorization: Bearer {token}' \
         --header 'Content-Type: application/json' --data '{body}' '{PAGE}{path}'"
    ));
    let text = answer.ok();
    assert!(text.ends_with(" 409"), "{path}: {text}");
    text
}

#[track_caller]
fn audited(exit: &Exit<'_>) -> Vec<Value> {
    serde_json::from_str(&exit.warren.run("exit audit --json").ok()).expect("the audit log is JSON")
}

#[test]
fn the_page_changes_a_client_and_the_audit_log_says_who_did_what_by_page_and_command() {
    let Some(net) = Net::new() else { return };
    let mut exit = exit_with_page(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_008), 8);
    let of = |name: &str| made(&exit, "/api/client", &json!({ "name": name }));

    let seen = of("laptop");
    assert_eq!(seen["client"]["name"], "laptop");
    assert!(seen["client"]["session"]["rtt_ms"].as_f64().unwrap() > 0.0, "{seen}");
    // The exit has run for less than five minutes, so there is exactly one value, and it is not zero.
    eventually(seconds(20), "the day has its first value", || {
        let day = &of("laptop")["day"];
        let rates = day["from_clients"].as_array().unwrap();
        rates.len() == 1 && rates[0].as_u64() > Some(0)
    });
    assert!(!seen["drops"].to_string().contains("rate_limit"), "control: nothing is dropped without a limit");
    assert!(!seen.to_string().contains(Net::CLIENT_V4), "it is not shown where the client is: {seen}");

    made(&exit, "/api/limit", &json!({ "name": "laptop", "rate": "64kbit" }));
    assert_eq!(of("laptop")["client"]["rate_limit"], "64kbit");
    client.sh(&format!("ping -q -i 0.002 -c 300 -s 1200 -W 1 {}", Net::INTERNET_V4));
    eventually(seconds(20), "its own drops are counted by reason", || {
        let seen = of("laptop");
        let drops = seen["drops"].as_array().unwrap();
        drops.iter().any(|row| row["reason"] == "rate_limit" && row["count"].as_u64() > Some(20))
    });
    made(&exit, "/api/limit", &json!({ "name": "laptop", "rate": null }));

    made(&exit, "/api/rename", &json!({ "name": "laptop", "to": "desk" }));
    assert_eq!(of("desk")["client"]["connected"], true, "its session continues");
    assert!(refused(&exit, "/api/client", &json!({ "name": "laptop" })).contains("no client is named"));
    made(&exit, "/api/disable", &json!({ "name": "desk" }));
    assert_eq!(of("desk")["client"]["connected"], false, "it is cut off");
    made(&exit, "/api/enable", &json!({ "name": "desk" }));
    exit.warren.run("exit client rename desk tower").ok();
    client.warren.run("down home");

    let log = audited(&exit);
    let line = |entry: &Value| {
        ["by", "user", "client", "what"].map(|key| entry[key].as_str().unwrap_or("-").to_owned()).join(" | ")
    };
    let lines: Vec<String> = log.iter().map(line).collect();
    for expected in [
        "command | root | laptop | enrolled",
        "page | root | laptop | changed: rate limit 64kbit",
        "page | root | laptop | changed: no rate limit",
        "page | root | laptop | renamed to desk",
        "page | root | desk | disabled",
        "page | root | desk | enabled",
        "command | root | desk | renamed to tower",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
    }
    assert!(log.iter().all(|entry| entry["by"] != "page" || entry["from"] == "127.0.0.1"), "{log:#?}");
    // The page shows the same entries, and the exit's log contains them too.
    let shown = made(&exit, "/api/audit", &json!({ "search": "DESK" }));
    assert_eq!(shown["rows"][0]["what"], "renamed to tower", "{shown}");
    assert_eq!(shown["matching"], 4, "{shown}");
    let journal = exit.daemon().output();
    assert!(journal.contains("renamed to desk") && journal.contains("by=\"page\""), "{journal}");
    let file = exit.warren.state("exit/audit.log");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // The audit log also has changes that were made while no exit ran, and a restart keeps all entries.
    exit.stop(Signal::TERM);
    exit.warren.run("exit client disable tower").ok();
    exit.run();
    let after = audited(&exit);
    assert!(after.len() > log.len());
    assert_eq!(after.last().map(line).as_deref(), Some("command | root | tower | disabled"), "{after:#?}");
    let shown = made(&exit, "/api/audit", &json!({}));
    assert_eq!(shown["rows"][0]["what"], "disabled", "{shown}");
}

#[test]
fn a_phone_gets_its_key_once_and_the_exit_keeps_it_nowhere() {
    let Some(net) = Net::new() else { return };
    let mut exit = exit_with_page(&net);
    let phone = json!({ "name": "phone" });
    let why = refused(&exit, "/api/wireguard", &phone);
    assert!(why.contains("[wireguard]") && why.contains("listen ="), "one sentence says what to set: {why}");
    assert!(overview(&exit)["no_wireguard"].as_str().unwrap().contains("[wireguard]"));

    exit.stop(Signal::TERM);
    exit.configure(|config| config.with("wireguard", "listen", "0.0.0.0:51820"));
    exit.run();
    assert_eq!(overview(&exit)["no_wireguard"], Value::Null);
    let body = phone.to_string();
    let answer = ask(
        &exit,
        "/api/wireguard",
        &format!("--include --header 'Content-Type: application/json' --data '{body}'"),
    );
    let answer = answer.ok();
    assert!(answer.contains("Cache-Control: no-store"), "no cache keeps it: {answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let added: Value = serde_json::from_str(body).unwrap();
    let text = added["configuration"].as_str().unwrap();
    assert!(text.contains("[Interface]") && text.contains(":51820"), "{text}");
    assert_eq!(added["file"], "phone.conf");
    assert!(added["qr"]["size"].as_u64().unwrap() > 20);
    let secrets: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("PrivateKey = ").or_else(|| line.strip_prefix("PresharedKey = "))
        })
        .collect();
    assert!(
        secrets.len() == 2 && secrets.iter().all(|key| key.len() == 44),
        "control: the answer has the keys"
    );

    let key = secrets[0];
    let state = exit.warren.state("exit");
    let found = exit.warren.host.sh(&format!("grep -rlF '{key}' {} || true", state.display())).ok();
    assert_eq!(found, "", "the private key is on the exit's disk");
    let log = exit.daemon().output();
    assert!(log.contains("enrolled for WireGuard"), "control: the log says that it was added: {log}");
    assert!(secrets.iter().all(|secret| !log.contains(secret)), "a key is in the log");
    let again = refused(&exit, "/api/wireguard", &phone);
    assert!(again.contains("phone") && secrets.iter().all(|secret| !again.contains(secret)), "{again}");
    let shown = made(&exit, "/api/client", &phone).to_string();
    assert!(shown.contains("\"wireguard\":true") && !shown.contains(key), "{shown}");
    assert!(exit.warren.run("exit client show phone").ok().contains("WireGuard"));
}

#[test]
fn any_name_that_is_typed_becomes_a_harmless_one_and_no_other_is_taken() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_page(&net);
    exit.warren.run("exit client add annas-phone").ok();
    exit.warren.run("exit invite guest").ok();
    let named = |text: &str| made(&exit, "/api/name", &json!({ "text": text }));
    assert_eq!(
        named("Anna\u{2019}s laptop"),
        json!({ "name": "annas-laptop", "wanted": "annas-laptop", "holder": null })
    );
    assert_eq!(
        named("ANNAS PHONE"),
        json!({ "name": "annas-phone-2", "wanted": "annas-phone", "holder": "client" })
    );
    assert_eq!(named("Guest"), json!({ "name": "guest-2", "wanted": "guest", "holder": "invitation" }));
    let own = made(&exit, "/api/name", &json!({ "text": "annas-phone", "of": "annas-phone" }));
    assert_eq!(own["name"], "annas-phone", "a client's own name is free for it");

    for hostile in [
        "<img src=x onerror=alert(1)>",
        "../../etc/passwd",
        "a b",
        "A",
        "x\ny",
        "\"};alert(1)//",
        "\u{202e}gpj",
    ] {
        let name = named(hostile)["name"].as_str().unwrap().to_owned();
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)),
            "{name}"
        );
        // The exit accepts only the name that the page derives from the text, not the text itself.
        refused(&exit, "/api/invite", &json!({ "name": hostile, "hours": 1 }));
        refused(&exit, "/api/rename", &json!({ "name": "annas-phone", "to": hostile }));
    }
    made(&exit, "/api/invite", &json!({ "name": "annas-laptop", "hours": 1 }));
    let list = exit.warren.run("exit client list").ok();
    assert!(
        list.contains("annas-phone") && list.contains("annas-laptop is invited") && !list.contains("img"),
        "{list}"
    );
}

#[test]
fn nobody_else_gets_to_the_page_and_reload_moves_it() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_page(&net);
    exit.warren.host.sh(&format!("curl --silent --fail {PAGE}/")).ok();
    for wrong in ["", "--header 'Authorization: Bearer AAAA'"] {
        let refused =
            exit.warren.host.sh(&format!("curl --silent --show-error --fail {wrong} {PAGE}/api/overview"));
        assert!(refused.stderr.contains("401"), "{refused:?}");
    }
    for foreign in ["Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
        let refused = ask(&exit, "/api/overview", &format!("--header '{foreign}'"));
        assert!(refused.stderr.contains("421") || refused.stderr.contains("403"), "{refused:?}");
    }
    let outside = net.router.sh(&format!("curl --silent --max-time 5 http://{}:9467/", Net::EXIT_V4));
    assert!(!outside.succeeded(), "{outside:?}");

    // A new token replaces the old one.
    let old = token(&exit);
    std::fs::remove_file(exit.warren.state("exit/web.token")).unwrap();
    exit.warren.run("reload exit").ok();
    assert_ne!(token(&exit), old);
    ask(&exit, "/api/overview", "").ok();
    let refused = exit.warren.host.sh(&format!(
        "curl --silent --show-error --fail --header 'Authorization: Bearer {old}' {PAGE}/api/day"
    ));
    assert!(refused.stderr.contains("401"), "{refused:?}");

    exit.configure(|config| config.with("web", "listen", "0.0.0.0:9467"));
    let public = exit.warren.run("reload exit");
    assert!(public.stderr.contains("write a loopback address"), "{public:?}");
    ask(&exit, "/api/overview", "").ok();

    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9468"));
    exit.warren.run("reload exit").ok();
    assert!(!exit.warren.host.sh(&format!("curl --silent --max-time 5 {PAGE}/")).succeeded());
    exit.warren.host.sh("curl --silent --fail http://127.0.0.1:9468/").ok();
    exit.warren.host.sh("nft list ruleset").ok();
}

#[test]
fn a_unix_socket_serves_the_page_from_the_start_and_goes_when_reload_moves_it() {
    let Some(net) = Net::new() else { return };
    let mut exit = exit_with_page(&net);
    let socket = exit.warren.state("exit/web.sock").display().to_string();
    exit.configure(|config| config.with("web", "listen", socket.as_str()));
    let refused = exit.warren.run("reload exit");
    assert!(refused.stderr.contains("listen in [web] changed"), "{refused:?}");
    ask(&exit, "/api/overview", "").ok();
    exit.stop(Signal::TERM);

    exit.run();
    let over_socket = format!("--unix-socket {socket}");
    ask(&exit, "/api/overview", &over_socket).ok();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // With a Unix socket, a new token takes effect although the socket stays.
    let old = token(&exit);
    std::fs::remove_file(exit.warren.state("exit/web.token")).unwrap();
    exit.warren.run("reload exit").ok();
    assert_ne!(token(&exit), old);
    ask(&exit, "/api/overview", &over_socket).ok();

    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
    exit.warren.run("reload exit").ok();
    ask(&exit, "/api/overview", "").ok();
    assert!(!Path::new(&socket).exists(), "the socket is removed with its listener");
}

/// Needs Chromium and its driver. `WARREN_SCREENSHOTS` names a directory for screenshots.
#[test]
#[ignore = "needs Chromium; `scripts/torture web` runs it"]
fn a_browser_works_the_page_by_mouse_by_keyboard_and_on_a_phone() {
    let net = Net::new().expect("root can make a net");
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
    exit.configure(|config| config.with("wireguard", "listen", "0.0.0.0:51820"));
    exit.run();
    let clients = [("laptop", 20_000), ("workshop", 21_000)].map(|(name, port)| (exit.enrol(name), port));
    let second = net.second_client();
    let hosts = [&net.client, &second];
    let sessions: Vec<Client<'_>> = clients
        .iter()
        .zip(hosts)
        .map(|((profile, port), host)| {
            let client = Client::on(host, profile);
            client.up();
            let _ = flows::echo_from_each(host, *port..*port + 8);
            client
        })
        .collect();

    enrol_hosts(&exit, 0..MANY - clients.len());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/web/browser.py");
    let mut driver = exit.warren.host.command(&["python3", script.to_str().unwrap(), PAGE]);
    driver.env("WARREN_TOKEN", token(&exit)).env("WARREN_CLIENTS", MANY.to_string());
    let outcome = finished(&mut driver);
    println!("{}", outcome.stdout);

    assert!(outcome.succeeded(), "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("measured: "), "{outcome:?}");
    let names = exit.warren.run("exit client list").ok();
    assert!(
        names.contains("annas-laptop") && !names.contains("workshop"),
        "the browser removed workshop: {names}"
    );
    assert!(names.contains("annas-very-old-phone"), "the browser added a phone: {names}");
    assert!(names.contains("phone-of-mary is invited"), "the browser invited a phone: {names}");
    for client in sessions {
        client.warren.run("down home");
    }
}

/// The number of clients with which the page must still be quick.
const MANY: usize = 1_000;

/// Enrols clients that never connect.
fn enrol_hosts(exit: &Exit<'_>, numbers: impl Iterator<Item = usize>) {
    exit.edit_clients(|clients| {
        for number in numbers {
            let key = warren_quic::key::PrivateKey::generate().unwrap().public();
            let entry = format!(
                "name = \"host-{number:03}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\""
            );
            clients.push(entry.parse::<toml::Table>().unwrap().into());
        }
    });
    exit.warren.run("reload exit").ok();
}

#[test]
fn the_table_of_clients_has_pages_that_are_searched_and_sorted() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_page(&net);
    let client = Client::with(&net, &exit.enrol("host-070"));
    enrol_hosts(&exit, (0..120).filter(|number| *number != 70));
    client.up();
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    let names = |query: Value| {
        let table = clients(&exit, &query);
        let rows = table["rows"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
        (names, table["matching"].as_u64().unwrap(), table["pages"].as_u64().unwrap())
    };

    let (first, matching, pages) = names(json!({}));
    assert_eq!((first.len(), first[0].as_str(), matching, pages), (50, "host-000", 120, 3));
    let (last, ..) = names(json!({ "page": 2 }));
    assert_eq!((last.len(), last[19].as_str()), (20, "host-119"));
    assert_eq!(names(json!({ "page": 3 })).0.len(), 0);
    assert_eq!(names(json!({ "search": "host-01" })).1, 10);
    for (state, number) in
        [("all", 120), ("connected", 1), ("offline", 119), ("never", 119), ("disabled", 0), ("limited", 0)]
    {
        assert_eq!(names(json!({ "state": state })).1, number, "{state}");
    }
    for sort in ["connected", "rate", "traffic", "seen"] {
        let (sorted, matching, _) = names(json!({ "sort": sort }));
        assert_eq!(
            (sorted[0].as_str(), sorted[1].as_str(), matching),
            ("host-070", "host-000", 120),
            "{sort}"
        );
    }
    for wrong in
        [json!({ "sort": "up" }), json!({ "state": "up" }), json!({ "page": -1 }), json!({ "more": 1 })]
    {
        assert!(change(&exit, "/api/clients", &wrong.to_string()).code != Some(0), "{wrong}");
    }
}
