//! Rate limits of clients, which are set and removed while the client is connected.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

/// Datagrams of 1,200 bytes that are sent at once. A slow client's burst covers about 55 of them.
const AT_ONCE: usize = 400;
/// The number of datagrams at which a test stops receiving. A client that is limited to 64 kbit/s gets fewer, and an unlimited
/// one gets more.
const ENOUGH: usize = 120;

#[test]
fn a_limit_holds_both_ways_is_counted_and_changes_without_touching_the_session() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop --rate-limit 64kbit"));
    client.up();
    let session = exit.status().number("/sessions/0/id");
    let dropped = |to| exit.status().drop(to, "rate_limit");

    eventually(seconds(20), "what the client sends is limited", || {
        assert!(send(&net.client, &net.internet.host, Net::INTERNET_V4) < ENOUGH);
        dropped("tun") >= 100
    });
    eventually(seconds(20), "what it receives is limited", || {
        assert!(ask(&net.client, &net.internet.host) < ENOUGH);
        dropped("carrier") >= 100
    });

    let shown = exit.warren.run("exit client show laptop").ok();
    assert!(shown.contains("64kbit each way") && shown.contains("192.0.2.2"), "{shown}");
    let json = exit.warren.run("exit client show laptop --json").ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rate_limit"], "64kbit");
    let of_client = json["rate_limited_packets"].as_u64().unwrap();
    assert!(of_client >= 200 && json["received_bytes"].as_u64().unwrap() > 100_000, "{json}");

    exit.warren.run("exit client set laptop --rate-limit off").ok();
    let before = (dropped("tun"), dropped("carrier"));
    eventually(seconds(20), "what it sends passes", || {
        send(&net.client, &net.internet.host, Net::INTERNET_V4) >= ENOUGH
    });
    eventually(seconds(20), "what it receives passes", || ask(&net.client, &net.internet.host) >= ENOUGH);
    assert_eq!((dropped("tun"), dropped("carrier")), before);
    assert_eq!(exit.status().number("/sessions/0/id"), session);
    assert_eq!(client.status().number("/reconnects"), 0);
    let wrong = exit.warren.run("exit client set laptop --rate-limit fast");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("50mbit"), "{wrong:?}");
}

/// Sends [`AT_ONCE`] datagrams between two hosts. Returns how many arrived, at most [`ENOUGH`].
fn send(from: &Namespace, to: &Namespace, address: &'static str) -> usize {
    let receiver = to.enter(move || UdpSocket::bind((address, 0)).unwrap()).join().unwrap();
    let port = receiver.local_addr().unwrap().port();
    let receiving = std::thread::spawn(move || received(&receiver));
    let sending = from.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for _ in 0..AT_ONCE {
            drop(socket.send_to(&[7; 1_172], (address, port)));
        }
    });
    sending.join().unwrap();
    receiving.join().unwrap()
}

/// Sends one request to another host, which answers with [`AT_ONCE`] datagrams. Returns how many arrived, at most [`ENOUGH`].
fn ask(from: &Namespace, to: &Namespace) -> usize {
    let server = to.enter(|| UdpSocket::bind((Net::INTERNET_V4, 0)).unwrap()).join().unwrap();
    server.set_read_timeout(Some(seconds(1))).unwrap();
    let address = server.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let Ok((_, from)) = server.recv_from(&mut [0; 16]) else { return };
        for _ in 0..AT_ONCE {
            drop(server.send_to(&[7; 1_172], from));
        }
    });
    let asking = from.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        socket.send(b"more").unwrap();
        received(&socket)
    });
    answering.join().unwrap();
    asking.join().unwrap()
}

/// Datagrams that arrive until the socket has been quiet for a while.
fn received(socket: &UdpSocket) -> usize {
    socket.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    (0..ENOUGH).take_while(|_| socket.recv(&mut [0; 2_048]).is_ok()).count()
}
