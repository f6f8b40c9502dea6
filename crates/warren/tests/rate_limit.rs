//! What a client may send and receive, set and lifted while it is connected.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;

use crate::support::{Client, Exit, Net, flows, seconds};

/// Datagrams of the answer, 1200 bytes each: much more than the burst of a slow client.
const ANSWERS: u64 = 400;

#[test]
fn a_limit_holds_both_ways_is_counted_and_changes_without_touching_the_session() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let session = exit.status().number("/sessions/0/id");
    let dropped = |to| exit.status().drop(to, "rate_limit");
    // Without a limit nothing is dropped for it.
    flows::flood(&net, 8, 1200, seconds(1));
    assert!(ask_for_answers(&net) > 0);
    assert_eq!((dropped("tun"), dropped("carrier")), (0, 0));

    exit.warren.run("exit client set laptop --rate-limit 256kbit").ok();
    let limited = flows::flood(&net, 8, 1200, seconds(1));
    let answers = ask_for_answers(&net);

    // 64 KiB at once and 32 kB a second, for a machine that takes its time.
    assert!(limited.received > 10 && limited.received < limited.sent / 2, "{limited:?}");
    assert!(answers > 10 && answers < ANSWERS / 2, "{answers}");
    let (up, down) = (dropped("tun"), dropped("carrier"));
    assert!(up > 0 && down > 0, "{up}, {down}");
    let shown = exit.warren.run("exit client show laptop").ok();
    assert!(shown.contains("256kbit each way") && shown.contains("192.0.2.2"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&exit.warren.run("exit client show laptop --json").ok()).unwrap();
    assert_eq!(json["rate_limit"], "256kbit");
    assert!(json["rate_limited_packets"].as_u64().unwrap() >= up + down, "{json}");

    exit.warren.run("exit client set laptop --rate-limit off").ok();
    flows::flood(&net, 8, 1200, seconds(1));
    assert!(ask_for_answers(&net) > 0);
    assert_eq!((dropped("tun"), dropped("carrier")), (up, down), "nothing is dropped for it any more");
    assert_eq!(exit.status().number("/sessions/0/id"), session);
    assert_eq!(client.status().number("/reconnects"), 0);
    let wrong = exit.warren.run("exit client set laptop --rate-limit fast");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("50mbit"), "{wrong:?}");
}

/// Asks the internet host once, which answers with [`ANSWERS`] datagrams at once; returns how many of them came.
fn ask_for_answers(net: &Net) -> u64 {
    let server = net
        .internet
        .host
        .enter(|| {
            let socket = UdpSocket::bind((Net::INTERNET_V4, 5_302)).unwrap();
            socket.set_read_timeout(Some(seconds(20))).unwrap();
            socket
        })
        .join()
        .unwrap();
    let answering = std::thread::spawn(move || {
        let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
        for _ in 0..ANSWERS {
            server.send_to(&[7; 1_172], from).unwrap();
        }
    });
    let asking = net.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::INTERNET_V4, 5_302)).unwrap();
        socket.set_read_timeout(Some(seconds(2))).unwrap();
        let mut buffer = [0; 2_048];
        for _ in 0..10 {
            socket.send(b"more").unwrap();
            if socket.recv(&mut buffer).is_ok() {
                break;
            }
        }
        let mut received = 1;
        while socket.recv(&mut buffer).is_ok() {
            received += 1;
        }
        received
    });
    let received = asking.join().unwrap();
    answering.join().unwrap();
    received
}
