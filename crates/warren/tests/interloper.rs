//! An attacker on the path answers in place of an exit. No forged answer ends a client. Only the owner of the exit's key can
//! refuse a client.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::Instant;

use warren_quic::key::PrivateKey;

use crate::exit_name::answer_with;
use crate::support::interloper::{Forgery, Interloper, close_for_want_of_a_protocol};
use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds};

/// Forgeries by name, with the client's message about the failed attempt. The QUIC library accepts each as an answer of the exit.
fn forgeries() -> Vec<(&'static str, Forgery, &'static str)> {
    const FAILED: &str = "does not answer: the connection failed";
    let frames = |frames: &[u8]| Forgery::Frames(frames.to_vec());
    vec![
        (
            "no common protocol",
            Forgery::Frames(close_for_want_of_a_protocol()),
            "does not answer: the peer does not speak",
        ),
        ("a failed handshake", frames(&[0x1c, 0x41, 0x28, 0, 0]), FAILED),
        ("a refused connection", frames(&[0x1c, 0x02, 0, 0]), FAILED),
        ("a Goodbye: disabled", frames(&[0x1d, 0x05, 0]), FAILED),
        ("a frame of an unknown type", frames(&[0x3f]), FAILED),
        ("a hello that is none", frames(&[0x06, 0, 4, 2, 0, 0, 0]), FAILED),
        ("other versions of QUIC", Forgery::VersionNegotiation, FAILED),
    ]
}

#[test]
fn what_nobody_has_proven_ends_no_client_that_connects_for_the_first_time() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let profile = client.warren.config("home.toml");
    let mut daemon = client.warren.start(&format!("--log debug client run {}", profile.display()));

    for (name, forgery, says) in forgeries() {
        let before = daemon.output().len();
        let interloper = Interloper::start(&net, forgery);
        eventually(seconds(60), &format!("the client takes {name:?} for the exit's"), || {
            assert!(daemon.is_running(), "the client ended: {}", daemon.output());
            daemon.output().get(before..).is_some_and(|new| new.contains(says))
        });
        let answers = interloper.end();
        println!("measured: {name}: {answers} attempts answered, and the client goes on");
        assert_eq!(client.status().text("/state"), "connecting");
    }
    // These forged answers do not even end an attempt.
    for forgery in [Forgery::Retry, Forgery::StatelessReset] {
        let interloper = Interloper::start(&net, forgery);
        eventually(seconds(60), "an attempt is answered", || interloper.answers() > 0);
        interloper.end();
    }
    assert!(daemon.is_running(), "the client ended: {}", daemon.output());

    exit.run();
    eventually(seconds(40), "the client connects once the interloper has stopped", || {
        client.status().text("/state") == "up"
    });
    client.down();
}

#[test]
fn an_up_tells_of_an_answer_that_nobody_has_proven_only_once_it_goes_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let interloper = Interloper::start(&net, Forgery::Frames(close_for_want_of_a_protocol()));

    let start = Instant::now();
    let refused = client.warren.run("up home --timeout 30s");

    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("does not speak"), "{refused:?}");
    let took = start.elapsed();
    assert!(
        took >= seconds(2) && interloper.end() >= 3,
        "a single forged packet ended the attempt: {took:?}"
    );
    client.assert_host_unchanged();
}

#[test]
fn a_daemon_that_is_shown_another_key_goes_on_and_takes_the_right_one_by_a_reload() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    // A silent exit does not show its key to anybody who does not know it.
    exit.configure(|config| config.with("access", "silent", false));
    exit.run();
    let right = exit.enrol("laptop");
    let other = PrivateKey::generate().unwrap().public().to_string();
    let client = Client::with(&net, &right.clone().with_exit("public_key", other));
    let profile = client.warren.config("home.toml");
    let mut daemon = client.warren.start(&format!("--log info client run {}", profile.display()));

    let start = Instant::now();
    eventually(seconds(20), "the client has been seeing the wrong key for some time", || {
        assert!(daemon.is_running(), "the client ended: {}", daemon.output());
        let status = client.warren.status();
        let said = status.and_then(|status| status.0["last_error"].as_str().map(str::to_owned));
        start.elapsed() > seconds(4) && said.is_some_and(|said| said.contains("another key"))
    });
    client.warren.write("home.toml", 0o600, &right.text());
    client.warren.run("reload home").ok();

    eventually(seconds(20), "the client connects", || client.status().text("/state") == "up");
    client.down();
}

#[test]
fn a_join_goes_on_to_the_next_address_of_the_exit_s_name() {
    const OTHER: &str = "198.51.100.99";
    let Some(net) = Net::new() else { return };
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let _names = answer_with(&net, &[OTHER, Net::EXIT_V4]);
    let line = exit.warren.run("exit invite laptop").ok();
    let client = Client::bare(&net.client);
    let interloper = Interloper::at(&net, OTHER, Forgery::Frames(close_for_want_of_a_protocol()));

    client.warren.run(line.trim().strip_prefix("warren ").unwrap()).ok();

    assert!(interloper.end() > 0, "the other address was tried first");
    assert!(client.warren.config("laptop.toml").exists());
    assert_eq!(exit.status().number("/clients/enrolled"), 1);
}
