//! The operators' web page: only for users on this host who have the token.

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
    // A new token takes effect although the socket stays.
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
    let exit = exit_with_page(&net);
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

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/web/browser.py");
    let mut driver = exit.warren.host.command(&["python3", script.to_str().unwrap(), PAGE]);
    driver.env("WARREN_TOKEN", token(&exit));
    let outcome = finished(&mut driver);
    println!("{}", outcome.stdout);

    assert!(outcome.succeeded(), "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("measured: "), "{outcome:?}");
    let names = exit.warren.run("exit client list").ok();
    assert!(names.contains("laptop") && !names.contains("workshop"), "the browser revoked workshop: {names}");
    assert!(names.contains("phone-of-mary is invited"), "the browser invited a phone: {names}");
    for client in sessions {
        client.warren.run("down home");
    }
}

#[test]
fn the_table_of_clients_has_pages_that_are_searched_and_sorted() {
    let Some(net) = Net::new() else { return };
    let exit = exit_with_page(&net);
    let client = Client::with(&net, &exit.enrol("host-070"));
    exit.edit_clients(|clients| {
        for number in (0..120).filter(|number| *number != 70) {
            let key = warren_quic::key::PrivateKey::generate().unwrap().public();
            let entry = format!(
                "name = \"host-{number:03}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\""
            );
            clients.push(entry.parse::<toml::Table>().unwrap().into());
        }
    });
    exit.warren.run("reload exit").ok();
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
    for sort in ["connected", "traffic", "seen"] {
        let (sorted, matching, _) = names(json!({ "sort": sort }));
        assert_eq!(
            (sorted[0].as_str(), sorted[1].as_str(), matching),
            ("host-070", "host-000", 120),
            "{sort}"
        );
    }
    for wrong in [json!({ "sort": "up" }), json!({ "page": -1 }), json!({ "more": 1 })] {
        assert!(change(&exit, "/api/clients", &wrong.to_string()).code != Some(0), "{wrong}");
    }
}
