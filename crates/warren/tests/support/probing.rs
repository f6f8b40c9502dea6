//! Continuous datagrams to the internet host, and the router's count of those that leave outside the tunnel.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::counters::packets_of_one;
use super::{Namespace, Net};

/// The destination port of probes. No other traffic uses it.
const PORT: u16 = 7777;

/// Sends a hundred datagrams a second, half of them over IPv6, each from a new socket.
#[derive(Debug)]
pub struct Probing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Probing {
    /// Starts to count probes from the client's own addresses at the router.
    pub fn counter(net: &Net) -> impl Fn() -> usize {
        let table = format!(
            "table netdev probes {{ counter left {{ }}; chain received {{ \
             type filter hook ingress device to-client priority -500; udp dport {PORT} counter name left; }}; }}"
        );
        net.router.sh(&format!("nft '{table}'")).ok();
        || {
            let listed = net.router.sh("nft list counter netdev probes left").ok();
            usize::try_from(packets_of_one(&listed)).unwrap()
        }
    }

    pub fn start(host: &Namespace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = host.enter(move || {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                for (any, target) in [("0.0.0.0:0", Net::INTERNET_V4), ("[::]:0", Net::INTERNET_V6)] {
                    // Errors are ignored, because a probe may be refused or go through the tunnel.
                    drop(UdpSocket::bind(any).unwrap().send_to(b"probe", (target, PORT)));
                    sent += 1;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            sent
        });
        Self { stop, thread }
    }

    pub fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    pub fn for_a_while(self) -> usize {
        std::thread::sleep(Duration::from_millis(500));
        self.end()
    }
}
