//! The output of `warren status` as plain text and live on a terminal.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::{Client, Exit, Net, eventually, seconds};

#[test]
fn status_is_ten_lines_and_all_of_it_has_what_the_json_has_in_80_columns() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(
        &net,
        &exit.enrol("laptop").with("kill_switch", "enabled", true).with("transport", "connections", 4),
    );
    client.up();
    eventually(seconds(10), "every connection is attached", || attached(&client) == 4);
    client.sh("ping -c 5 -i 0.2 -s 1000 203.0.113.2");
    eventually(seconds(10), "the rates cover more than a second", || {
        client.status().0["rates"]["seconds"].as_f64().unwrap() > 1.0
    });

    let short = client.warren.run("status").ok();
    let changes = client.warren.run("status home --changes").ok();
    let report = client.warren.run("status --all").ok();
    let status = client.status();

    assert_eq!(short.lines().count(), 10, "{short}");
    for text in [&short, &changes, &report] {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    for expected in
        ["home: up for ", " UTC", "exit ", " ms", "MTU", "packets/s", "closed", "4 of 4", "--changes"]
    {
        assert!(short.contains(expected), "{expected} is missing:\n{short}");
    }
    for expected in
        ["home: up for ", " UTC", "exit ", "addresses", "MTU", "packets/s", "loss", "CONNECTION", "closed"]
    {
        assert!(report.contains(expected), "{expected} is missing:\n{report}");
    }
    let listed = status.list("/host_changes");
    assert!(listed.len() > 5, "{listed:?}");
    for change in listed {
        let words = change.as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [&changes, &report] {
            let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(unwrapped.contains(&words), "{words} is missing:\n{text}");
        }
    }
    let device = client.sh("ip -o link show warren0");
    assert!(!device.is_empty() && changes.contains("TUN device warren0"), "{changes}");
    assert!(changes.contains("nftables table inet warren-kill-switch_home"), "{changes}");
    assert!(!short.contains("nftables"), "{short}");

    let short = exit.warren.run("status").ok();
    assert_eq!(short.lines().count(), 10, "{short}");
    assert!(short.contains("1 enrolled, 1 connected: laptop"), "{short}");
    let of_exit = exit.warren.run("status exit --all").ok();
    assert!(of_exit.lines().all(|line| line.chars().count() <= 80), "{of_exit}");
    for expected in
        ["exit: up for ", "1 enrolled, 1 connected", "laptop for ", "4 of 4 connections", "laptop 0"]
    {
        assert!(of_exit.contains(expected), "{expected} is missing:\n{of_exit}");
    }
    client.down();
}

#[test]
fn watch_draws_follows_the_terminal_and_gives_it_back() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "connections", 4));
    let refused = client.warren.run("status home --watch");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("needs a terminal"), "{}", refused.stderr);
    client.up();
    eventually(seconds(10), "every connection is attached", || attached(&client) == 4);
    let watch = || {
        let terminal = client.warren.on_terminal("status home --watch");
        terminal.wait_for("a line for each connection", |lines| connections(lines) == 4);
        terminal
    };

    let mut terminal = watch();
    let lines = terminal.screen();
    assert!(lines[0].starts_with("home: up for "), "{lines:#?}");
    assert!(lines[23].ends_with("q ends"), "{lines:#?}");
    terminal.resize(60, 12);
    terminal.wait_for("the smaller screen", |lines| lines[11].ends_with("q ends"));
    terminal.press("q");
    assert_eq!(terminal.end(), (Some(0), String::new()));

    let mut terminal = watch();
    terminal.press("\x03");
    assert_eq!(terminal.end(), (Some(0), String::new()));

    let mut terminal = watch();
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end(), (Some(0), String::new()));

    let mut terminal = watch();
    client.down();
    let (code, said) = terminal.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("home is not running"), "{said}");
}

/// The number of lines that describe a connection.
fn connections(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.contains(" ms ") && line.ends_with('%')).count()
}

fn attached(client: &Client<'_>) -> usize {
    client.status().list("/connections").iter().filter(|connection| connection["index"].is_u64()).count()
}
