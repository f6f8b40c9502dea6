//! Sends packets at a higher rate than single sends allow, by sending many small ones in one system call. A firewall rule counts
//! the arrivals, so no receiver is needed. Single sends cannot overload a tunnel, because the kernel makes the sender wait for
//! the TUN.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use super::counters::{HEADERS, packets_and_bytes_of_one};
use super::flows::Flood;
use super::{Net, seconds};

/// The most datagrams that the kernel accepts in one system call (`UDP_MAX_SEGMENTS`): since Linux 6.9, and before that.
const TRAINS: [u64; 2] = [128, 64];
/// The most payload bytes in one call.
const MOST_BYTES: u64 = 60_000;
const PORT: u16 = 5_302;

/// Finds the highest number of packets of `length` bytes that arrive per second. Raises the offered rate until a tenth is lost or
/// cannot be sent.
pub fn capacity(net: &Net, length: u64) -> u64 {
    const LASTING: u64 = 2;
    let (mut most, mut offered, mut too_many) = (0, 20_000, 0);
    // One bad result does not end the search, because a shared machine may pause.
    while too_many < 2 {
        let Flood { received, .. } = offer(net, offered, length, seconds(LASTING));
        most = most.max(received / LASTING);
        if received * 10 < offered * LASTING * 9 {
            too_many += 1;
        } else {
            (offered, too_many) = (offered * 3 / 2, 0);
        }
    }
    most
}

/// Sends `per_second` datagrams of `length` bytes per second to the internet host.
pub fn offer(net: &Net, per_second: u64, length: u64, lasting: Duration) -> Flood {
    let table = format!(
        "table inet trains; flush table inet trains; table inet trains {{ chain in {{ \
         type filter hook prerouting priority raw; udp dport {PORT} counter drop; }}; }}"
    );
    net.internet.host.sh(&format!("nft '{table}'")).ok();
    let length_of_one = i32::try_from(length).unwrap();
    let sending = net.client.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::INTERNET_V4, PORT)).unwrap();
        setsockopt(&socket, UdpGsoSegment, &length_of_one).unwrap();
        let packets = vec![0; usize::try_from(MOST_BYTES).unwrap()];
        let send = |train: u64| socket.send(&packets[..usize::try_from(train * length).unwrap()]).is_ok();
        let mut trains = TRAINS.map(|train| train.min(MOST_BYTES / length)).into_iter();
        let train = trains.find(|train| send(*train)).expect("trains can be sent");
        let start = Instant::now();
        let (mut tick, mut sent) = (start, train);
        while start.elapsed() < lasting {
            let due = u64::try_from(start.elapsed().as_micros()).unwrap() * per_second / 1_000_000;
            // The number is limited, so that a pause of the machine does not lead to a large burst.
            for _ in 0..(due.saturating_sub(sent) / train).min(80) {
                sent += if send(train) { train } else { 0 };
            }
            // The time that sending took is part of the interval.
            tick = (tick + Duration::from_millis(1)).max(Instant::now());
            std::thread::sleep(tick.saturating_duration_since(Instant::now()));
        }
        sent
    });
    let sent = sending.join().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let listed = net.internet.host.sh("nft list table inet trains").ok();
    // A merged packet has its headers only once, so the number of packets is computed from the bytes.
    let (packets, bytes) = packets_and_bytes_of_one(&listed);
    Flood { sent, received: (bytes - packets * HEADERS) / length }
}
