//! An exit with tens of thousands of clients: it starts, lists the clients in pages, and limits the size of a scrape.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::fmt::Write as _;

use serde_json::Value;
use warren_session::PublicKey;

use crate::support::{Client, Exit, ExitOptions, Net, asked, eventually, seconds, timed};

/// `WARREN_CLIENTS=100000` measures the largest exit that the documentation mentions.
const CLIENTS: usize = 20_000;

#[test]
fn an_exit_with_tens_of_thousands_of_clients_lists_them_in_pages() {
    let Some(net) = Net::new() else { return };
    let count = asked("WARREN_CLIENTS").unwrap_or(CLIENTS);
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("metrics", "clients", true).with("web", "listen", "127.0.0.1:9467"));
    let profile = exit.enrol("laptop");
    let mut text = exit.export();
    for number in 1..count {
        let mut key = [7; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        let (table, key) = ("[[client]]\nname = \"client-", PublicKey(key));
        writeln!(text, "{table}{number:06}\"\npublic_key = \"{key}\"\ncreated = \"2026-01-01T00:00:00Z\"")
            .unwrap();
    }
    let file = exit.warren.write("many.toml", 0o600, &text);
    let import = timed(|| drop(exit.warren.run(&format!("exit client import {}", file.display())).ok()));

    let start = timed(|| exit.run());
    let client = Client::with(&net, &profile);
    client.up();
    let mut found = Vec::new();
    let all = timed(|| assert_eq!(listed(&exit, "").len(), count));
    let by_name = [(); 5].map(|()| timed(|| found = listed(&exit, "--name client-00123")));
    assert_eq!(found.len(), 10);
    assert_eq!(listed(&exit, "--limit 3 --after client-000002").len(), 3);
    let more = exit.warren.run("exit client list --limit 3");
    assert!(more.stdout.lines().count() == 4 && more.stderr.contains("--after client-000003"), "{more:?}");
    let add = timed(|| drop(exit.enrol("zebra")));

    let mut page = String::new();
    let scrape = timed(|| page = net.exit.sh("curl --silent --fail 127.0.0.1:9466/metrics").ok());
    let series = page.lines().filter(|line| line.starts_with("warren_client_connections{")).count();
    assert_eq!(series, 1_000);
    assert!(
        page.contains("warren_client_connections{client=\"laptop\"} "),
        "a client with traffic is in the scrape"
    );
    assert!(page.contains(&format!("warren_clients_left_out {}", count + 1 - series)));
    let token = std::fs::read_to_string(exit.warren.state("exit/web.token")).unwrap();
    let ask = |query: &str| {
        let header = format!(
            "--header 'Authorization: Bearer {}' --header 'Content-Type: application/json'",
            token.trim()
        );
        net.exit
            .sh(&format!("curl --silent --fail {header} --data '{query}' 127.0.0.1:9467/api/clients"))
            .ok()
    };
    let pages = [r#"{}"#, r#"{"search":"client-0012"}"#, r#"{"sort":"seen"}"#].map(|query| {
        let mut answer = String::new();
        let took = timed(|| answer = ask(query));
        let rows: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(rows["rows"].as_array().unwrap().len(), 50);
        assert!(answer.len() < 64 * 1024, "{} bytes", answer.len());
        took
    });

    let resident = exit.status().number("/process/rss_kib");
    let store = std::fs::metadata(exit.warren.state("exit/clients.store")).unwrap().len();
    println!(
        "measured: {count} clients: import {import:?}, start {start:?}, add {add:?}, list all {all:?}, list --name {by_name:?}, \
         scrape {scrape:?}, pages {pages:?}, {resident} KiB resident, store {store} bytes"
    );
    client.down();
    exit.stop(rustix::process::Signal::TERM);
    eventually(seconds(20), "the clients are there without the exit", || {
        listed(&exit, "--name client-00123").len() == 10
    });
}

fn listed(exit: &Exit<'_>, options: &str) -> Vec<Value> {
    serde_json::from_str(&exit.warren.run(&format!("exit client list --json {options}")).ok()).unwrap()
}
