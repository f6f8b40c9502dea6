//! The exit goes away and comes back: traffic does too, with the same inner addresses.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

mod support;

use std::time::Instant;

use rustix::process::Signal;
use support::{Client, Exit, Net, eventually, flows, seconds};

#[test]
fn after_sigterm_traffic_is_back_within_five_seconds_of_the_exit_listening() {
    assert_traffic_comes_back_after(Signal::TERM);
}

#[test]
fn after_sigkill_traffic_is_back_within_five_seconds_of_the_exit_listening() {
    assert_traffic_comes_back_after(Signal::KILL);
}

fn assert_traffic_comes_back_after(ending: Signal) {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let addresses = client.inner_addresses();
    let _server = net.internet.iperf3(5201);
    let _load = net.client.start(&["iperf3", "-c", Net::INTERNET_V4, "-t", "60", "-P", "4"]);
    let asking = flows::answers(&net.client, seconds(25));
    eventually(seconds(5), "the load flows", || {
        exit.status().number("/totals/tun_written_bytes") > 10_000_000
    });

    exit.stop(ending);
    let stopped = Instant::now();
    std::thread::sleep(seconds(3));
    exit.run();
    let listening = Instant::now();

    let answers = asking.join().unwrap();
    let back = answers.iter().find(|at| **at > listening).expect("traffic came back");
    let took = *back - listening;
    println!("{ending:?}: back {took:?} after the exit answered");
    assert!(took < seconds(5), "it took {took:?}");
    assert!(answers.iter().any(|at| *at < stopped), "there was traffic before");
    assert!(
        !answers.iter().any(|at| *at > stopped && *at < listening - seconds(1)),
        "the exit was really away"
    );
    assert_eq!(client.inner_addresses(), addresses);
    assert_eq!(client.status().text("/state"), "up");
    eventually(seconds(10), "every connection is back", || client.status().list("/connections").len() == 4);
    client.down();
}
