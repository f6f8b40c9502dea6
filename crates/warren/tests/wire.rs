//! The wire protocol as `docs/wire-protocol.md` describes it: a client in another language, written from that document alone.

use std::path::PathBuf;
use std::process::Command;

use crate::support::daemon::repository;
use crate::support::{Exit, Finished, Net, eventually, finished, seconds};

fn script() -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/second_client.py"));
    path.to_str().expect("paths are UTF-8").to_owned()
}

#[track_caller]
fn holds(outcome: &Finished) {
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.succeeded() && said.contains("measured: "), "{said}");
}

#[test]
fn a_client_written_from_the_document_has_a_session_and_sends_packets_through_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let line = exit.warren.run("exit invite second").ok();
    let invitation = line.strip_prefix("warren join ").unwrap();

    let arguments = ["python3", "-B", &script(), "session", invitation, Net::INTERNET_V4, "7"];
    let outcome = finished(&mut net.client.command(&arguments));

    holds(&outcome);
    eventually(seconds(10), "the session is over", || exit.status().number("/clients/connected") == 0);
    let status = exit.status();
    assert_eq!(status.number("/clients/enrolled"), 1);
    assert!(status.number("/strangers/no_proof") >= 2, "two attempts had no valid proof");
    assert_eq!(
        status.drop("tun", "bad_datagram"),
        3,
        "datagrams with a reserved kind, with a reserved flag, and without content"
    );
    assert_eq!((status.drop("tun", "bad_packet"), status.drop("tun", "bad_fragment")), (1, 1));
    assert_eq!(status.drop("tun", "spoofed_source"), 1);
}

#[test]
fn vectors_of_the_document_are_those_of_another_implementation() {
    let document = repository().join("docs/wire-protocol.md");
    holds(&finished(Command::new("python3").args(["-B", &script(), "vectors"]).arg(document)));
}
