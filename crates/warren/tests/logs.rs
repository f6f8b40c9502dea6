//! Tests what an exit's log contains, and what it must not contain.

use serde_json::Value;

use crate::support::{Client, Exit, ExitOptions, Net, eventually, flows, seconds};

#[test]
fn a_daemon_that_up_starts_logs_as_up_was_told() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let log = || {
        let file = client.warren.config("../runtime/home/log");
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };

    client.warren.run("--log-format json up home").ok();
    let json = log();
    client.down();
    client.up();
    let text = log();

    let is_json = |text: &str| text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
    assert!(json.contains("connected to") && is_json(&json), "{json}");
    assert!(text.contains("connected to") && !is_json(&text), "negative control: {text}");
}

#[test]
fn log_is_json_on_request_and_names_neither_where_clients_are_nor_where_they_go() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let (laptop, stranger) = (exit.enrol("laptop"), exit.enrol("stranger"));
    let key = exit.warren.public_key(stranger.value("client", "private_key"));
    exit.warren.run("exit client remove stranger").ok();
    let daemon = exit.warren.start("--log debug --log-format json exit run");
    eventually(seconds(10), "the exit answers", || exit.warren.status().is_some());

    let refused = Client::with(&net, &stranger).warren.run("up home --timeout 20s");
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let client = Client::with(&net, &laptop);
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_008), 8);
    exit.warren.run("reload exit").ok();
    client.down();
    eventually(seconds(10), "the end of the session is logged", || daemon.output().contains("session ended"));

    let output = daemon.output();
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["fields"]["message"].is_string(), "{line}");
    }
    let (debug, usual): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["level"] == "DEBUG");
    let usual = usual.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(usual.contains("session opened") && usual.contains("laptop"), "negative control: {usual}");
    // Inner addresses may be in the log. The exit itself has assigned them, so they do not reveal where a client is.
    assert!(usual.contains("session opened: 10.66.0.2, fd66:6666::"), "{usual}");
    let hidden = [Net::CLIENT_V4, Net::CLIENT_V6, Net::INTERNET_V4, "stranger", key.as_str()];
    for hidden in hidden {
        assert!(!usual.contains(hidden), "{hidden} is in the log: {usual}");
    }
    // A client that is not enrolled has one debug line, for an operator who looks for it.
    let attempts = debug.iter().filter(|line| line.to_string().contains(&key)).count();
    assert_eq!(attempts, 1, "{output}");
    assert!(!output.contains(stranger.value("client", "private_key")), "a private key is in the log");
}

#[test]
fn every_change_of_a_client_is_logged_with_its_values_and_none_that_was_refused() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    for line in [
        "exit client add laptop",
        "exit invite phone",
        "exit client rename laptop desk",
        "exit client set desk --rate-limit 20mbit --ipv4 10.66.0.9",
        "exit client disable desk",
        "exit client enable desk",
        "exit client remove desk",
        "exit client remove phone",
    ] {
        exit.warren.run(line).ok();
    }
    assert_eq!(exit.warren.run("exit client disable nobody").code, Some(1));

    let log = exit.daemon().output();

    for (client, what) in [
        ("laptop", "enrolled"),
        ("phone", "invited until 20"),
        ("laptop", "renamed to desk"),
        ("desk", "changed: IPv4 address 10.66.0.9, rate limit 20mbit"),
        ("desk", "disabled"),
        ("desk", "enabled"),
        ("desk", "removed"),
        ("phone", "removed"),
    ] {
        let is_logged = |line: &str| line.contains(what) && line.contains(client) && line.contains("command");
        assert!(log.lines().any(is_logged), "{client} {what} is missing:\n{log}");
    }
    assert!(!log.contains("nobody"), "{log}");
}
