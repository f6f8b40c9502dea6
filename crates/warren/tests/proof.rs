//! `warren up` and the status say that traffic flows once an echo has proven it. If nothing has proven it, they say so plainly.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use crate::support::{Client, Exit, Net, eventually, seconds};

/// The warning for users.
const UNPROVEN: &str = "the exit does not answer pings to 10.66.0.1, so it is not proven that traffic flows";

#[test]
fn an_exit_that_answers_no_pings_is_used_and_users_hear_that_nothing_is_proven() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let answers = |are_on: bool| {
        let off = u8::from(!are_on);
        net.exit.sh(&format!("sysctl -qw net.ipv4.icmp_echo_ignore_all={off}")).ok();
    };
    let up = || {
        let start = Instant::now();
        let said = client.warren.run("up home");
        assert!(said.succeeded(), "{}", said.stderr);
        assert!(said.stdout.starts_with("connected to home"), "{}", said.stdout);
        (said.stderr, start.elapsed())
    };
    let is_told = || client.status().0["warnings"].to_string().contains("not proven");
    // The control: an exit that answers.
    let (warned, _) = up();
    assert!(!warned.contains("proven") && !is_told(), "{warned}");
    client.down();

    answers(false);
    let (warned, unproven_in) = up();

    assert!(warned.contains(UNPROVEN), "{warned}");
    assert!(is_told());
    assert!(unproven_in >= Duration::from_secs(2), "it is waited for: {unproven_in:?}");
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);

    answers(true);
    eventually(seconds(5), "the echo is answered after all", || !is_told());
    client.down();
}
