//! The results of `warren doctor --path` agree with the properties of the path.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::slow_wire::{SlowWire, Wire};
use crate::support::{Client, Exit, Net, eventually, seconds};

const WIRE: Wire = Wire {
    megabits: 50,
    delay: Duration::from_millis(15),
    queue: Duration::from_millis(50),
    loss_per_mille: 10,
};

#[test]
fn doctor_measures_a_path_that_loses_packets() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with_exit("endpoint", SlowWire::ENDPOINT);
    let client = Client::with(&net, &profile);

    let lossy = measure(&net, &client, WIRE);

    for way in ["to_exit", "from_exit"] {
        let loss = &lossy["loss"][way];
        assert!((500..4_000).contains(&loss["sent"].as_u64().unwrap()), "{way}: {lossy:#}");
        // At least 1,000 packets are sent, of which 1 % are lost. The range allows 4 standard deviations. Some packets contain
        // two echo requests.
        assert!((0.1..2.4).contains(&loss["percent"].as_f64().unwrap()), "{way}: {lossy:#}");
    }
    assert_shape(&lossy);

    // The control: the same wire without loss.
    let clean = measure(&net, &client, Wire { loss_per_mille: 0, ..WIRE });

    for way in ["to_exit", "from_exit"] {
        // A few packets may seem lost, because the exit skips packet numbers at random.
        assert!(clean["loss"][way]["lost"].as_u64().unwrap() < 5, "{way}: {clean:#}");
    }
    assert_eq!(clean["echoes"]["sent"], clean["echoes"]["answered"], "{clean:#}");
    assert_shape(&clean);
}

#[test]
fn doctor_says_why_it_cannot_measure() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));

    let none = client.warren.run("doctor --path home");
    assert_eq!(none.code, Some(3), "{none:?}");
    assert!(none.stderr.contains("is not running"), "{none:?}");

    client.up();
    net.black_hole();
    eventually(seconds(60), "the tunnel is lost", || client.status().text("/state") == "reconnecting");
    let lost = client.warren.run("doctor --path");
    assert_eq!(lost.code, Some(3), "{lost:?}");
    assert!(lost.stderr.contains("home is reconnecting, so there is no tunnel to measure"), "{lost:?}");

    let at_exit = exit.warren.run("doctor --path");
    assert_eq!(at_exit.code, Some(2), "{at_exit:?}");
}

/// Compares round-trip time, queue, MTU and rate with those of [`WIRE`], which do not depend on its loss.
fn assert_shape(measured: &Value) {
    let number = |pointer: &str| measured.pointer(pointer).unwrap().as_f64().unwrap();
    assert!((30.0..40.0).contains(&number("/round_trip/at_rest_ms")), "{measured:#}");
    // The wire's queue is 50 ms each way.
    assert!(number("/round_trip/under_load_ms") >= number("/round_trip/least_ms"), "{measured:#}");
    assert!(number("/round_trip/queue_ms") <= 110.0, "{measured:#}");
    assert!((1_400.0..1_473.0).contains(&number("/mtu/path")), "{measured:#}");
    // A machine that is busy with other tests may carry less than the wire.
    for way in ["to_exit", "from_exit"] {
        let rate = number(&format!("/rate/{way}/bits_per_second"));
        assert!((8e6..51e6).contains(&rate), "{way}: {measured:#}");
    }
    assert!(number("/seconds") <= 10.0, "{measured:#}");
    assert!(number("/traffic/to_exit") <= 80e6, "{measured:#}");
}

/// What the doctor measures over a wire, as JSON.
fn measure(net: &Net, client: &Client<'_>, wire: Wire) -> Value {
    let _wire = SlowWire::start(net, wire);
    client.up();
    let start = Instant::now();
    let answer = client.warren.run("doctor --path home --json");
    assert!(answer.succeeded(), "{answer:?}");
    assert!(start.elapsed() < seconds(12), "{:?}", start.elapsed());
    println!("measured: {}", answer.stdout);
    println!("{}", client.warren.run("status home").stdout);
    client.down();
    serde_json::from_str(&answer.stdout).unwrap()
}
