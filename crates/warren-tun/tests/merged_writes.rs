//! Merged writes against the kernel: a receiving host gets every coalesced packet of the sending host intact.
//!
//! ```text
//!   sender 10.9.1.1 == TUN == this test == TUN == gateway 10.9.2.1 -- veth -- 10.9.2.2 receiver
//!          fd09:1::1                                      fd09:2::1           fd09:2::2
//! ```
//!
//! The gateway's veth computes no checksums (`tx off`), so its kernel completes them before the receiver verifies them.
//! Between namespaces with offloads on, no kernel would verify them. Needs root.
#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy allows these in test functions, not in their helpers"
)]

use std::fs::File;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::{Builder, Runtime};
use warren_packet::checksum::Sum;
use warren_packet::coalesce::{Coalescer, Outcome};
use warren_packet::datagram::Flags;
use warren_packet::receive::accept;
use warren_packet::segment::segment;
use warren_packet::virtio::GSO_NONE;
use warren_tun::{Device, DeviceConfig, Lane, Queue, READ_BUFFER_BYTES, create};

const RECEIVER: [&str; 2] = ["10.9.2.2", "fd09:2::2"];
const PORT: u16 = 5_000;
/// Bytes that a TCP test sends each way.
const STREAM: usize = 16 << 20;
/// Number of datagrams in a UDP test, which a receive buffer has room for, and the payload of most of them in bytes.
const DATAGRAMS: usize = 80;
const DATAGRAM: usize = 1_000;

#[test]
fn a_tcp_receiver_gets_what_was_sent_when_checksums_are_left_partial() {
    tcp_both_ways(Checksums::Partial);
}

#[test]
fn a_tcp_receiver_gets_what_was_sent_when_checksums_are_whole() {
    tcp_both_ways(Checksums::Whole);
}

#[test]
fn merged_udp_datagrams_arrive_one_by_one() {
    for checksums in [Checksums::Partial, Checksums::Whole] {
        let Some(mut net) = Net::new(checksums) else { return };
        if !net.gateway_queue.takes().udp {
            println!("skipped: this kernel's TUN takes no UDP super-packets");
            return;
        }
        for receiver in RECEIVER {
            let socket = net.receiver.within(move || UdpSocket::bind((receiver, PORT)).unwrap());
            let receive = std::thread::spawn(move || {
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut buffer = [0; 4_096];
                let sizes = (0..DATAGRAMS).map(|index| {
                    let length = socket.recv(&mut buffer).unwrap();
                    assert_eq!(buffer[..length], pattern(index, length), "datagram {index}");
                    length
                });
                sizes.collect::<Vec<_>>()
            });
            let send = net.sender.thread(move || {
                let socket = UdpSocket::bind(SocketAddr::new(unspecified(receiver), 0)).unwrap();
                socket.connect((receiver, PORT)).unwrap();
                for index in 0..DATAGRAMS {
                    socket.send(&pattern(index, datagram_length(index))).unwrap();
                }
            });

            net.relay_until(&send);
            net.relay_until(&receive);

            send.join().unwrap();
            assert_eq!(receive.join().unwrap(), (0..DATAGRAMS).map(datagram_length).collect::<Vec<_>>());
        }
        assert!(net.merged > 0, "some datagrams were merged: {net:?}");
        assert_eq!(net.receiver.checksum_errors(), 0);
    }
}

#[test]
fn the_receiver_does_verify_checksums() {
    let Some(mut net) = Net::new(Checksums::Wrong) else { return };
    let (receiver, port) = (RECEIVER[0].parse().unwrap(), PORT);
    let _listener = net.receiver.within(move || TcpListener::bind((receiver, port)).unwrap());
    let connect = net.sender.thread(move || {
        TcpStream::connect_timeout(&SocketAddr::new(receiver, port), Duration::from_secs(2)).is_ok()
    });

    net.relay_until(&connect);

    assert!(!connect.join().unwrap(), "a connection was established with wrong checksums");
    assert!(net.receiver.checksum_errors() > 0);
}

/// Sends a stream from sender to receiver and back, over IPv4 and over IPv6.
fn tcp_both_ways(checksums: Checksums) {
    let Some(mut net) = Net::new(checksums) else { return };
    for receiver in RECEIVER {
        let listener = net.receiver.within(move || TcpListener::bind((receiver, PORT)).unwrap());
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let received = receive_stream(&mut stream);
            stream.write_all(&pattern(2, STREAM)).unwrap();
            received
        });
        let send = net.sender.thread(move || {
            let mut stream = TcpStream::connect((receiver, PORT)).unwrap();
            stream.write_all(&pattern(1, STREAM)).unwrap();
            receive_stream(&mut stream)
        });

        net.relay_until(&send);

        assert!(
            serve.join().unwrap() == pattern(1, STREAM),
            "the bytes that {receiver} received are not those that were sent"
        );
        assert!(
            send.join().unwrap() == pattern(2, STREAM),
            "the bytes that arrived are not those that {receiver} sent"
        );
    }
    assert_eq!(net.refused, 0, "{net:?}");
    assert!(net.packets > 4 * net.writes, "most packets were merged: {net:?}");
    assert_eq!(net.receiver.checksum_errors(), 0);
}

fn receive_stream(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = vec![0; STREAM];
    stream.read_exact(&mut received).unwrap();
    received
}

/// Bytes that differ by position and by seed.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let byte = |index: usize| ((index * 31 + seed * 17) ^ (index >> 8)).to_le_bytes()[0];
    (0..length).map(byte).collect()
}

/// Every tenth datagram is shorter, every 25th longer.
fn datagram_length(index: usize) -> usize {
    match (index % 10, index % 25) {
        (9, _) => DATAGRAM - index,
        (_, 24) => DATAGRAM + index,
        _ => DATAGRAM,
    }
}

fn unspecified(family_of: &str) -> IpAddr {
    if family_of.contains(':') { "::".parse().unwrap() } else { "0.0.0.0".parse().unwrap() }
}

/// The checksums of packets that enter the coalescer and leave it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Checksums {
    Partial,
    Whole,
    /// Partial, but corrupted after the coalescer wrote them.
    Wrong,
}

/// Three hosts, and this test between two of them.
#[derive(Debug)]
struct Net {
    sender: Namespace,
    receiver: Namespace,
    _gateway: Namespace,
    sender_queue: Queue,
    gateway_queue: Queue,
    runtime: Rc<Runtime>,
    checksums: Checksums,
    packets: u64,
    writes: u64,
    merged: u64,
    refused: u64,
}

impl Net {
    fn new(checksums: Checksums) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            println!("skipped: this test needs root");
            return None;
        }
        let [sender, gateway, receiver] = ["sender", "gateway", "receiver"].map(Namespace::new);
        let (_, sender_queue) = sender.device();
        let (_, gateway_queue) = gateway.device();
        sender.ip("address add 10.9.1.1/24 dev warren0");
        sender.ip("address add fd09:1::1/64 dev warren0 nodad");
        sender.ip("link set warren0 up");
        sender.ip("-4 route add default dev warren0");
        sender.ip("-6 route add default dev warren0");
        gateway.ip("link set warren0 up");
        gateway.ip("-4 route add 10.9.1.0/24 dev warren0");
        gateway.ip("-6 route add fd09:1::/64 dev warren0");
        gateway.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        gateway.ip(&format!("link add out type veth peer name in netns {}", receiver.name));
        gateway.run("ethtool -K out tx off");
        for (host, device, address) in [(&gateway, "out", 1), (&receiver, "in", 2)] {
            host.ip(&format!("address add 10.9.2.{address}/24 dev {device}"));
            host.ip(&format!("address add fd09:2::{address}/64 dev {device} nodad"));
            host.ip(&format!("link set {device} up"));
        }
        receiver.ip("-4 route add default via 10.9.2.1");
        receiver.ip("-6 route add default via fd09:2::1");
        Some(Self {
            sender,
            receiver,
            _gateway: gateway,
            sender_queue,
            gateway_queue,
            runtime: Rc::new(Builder::new_current_thread().enable_all().build().unwrap()),
            checksums,
            packets: 0,
            writes: 0,
            merged: 0,
            refused: 0,
        })
    }

    /// Carries packets both ways until the thread has ended, for at most 60 seconds.
    fn relay_until<T>(&mut self, thread: &JoinHandle<T>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let runtime = Rc::clone(&self.runtime);
        runtime.block_on(async {
            while !thread.is_finished() {
                assert!(Instant::now() < deadline, "not finished in time: {self:?}");
                let relay = poll_fn(|context| self.poll_relay(context));
                let _ = tokio::time::timeout(Duration::from_millis(20), relay).await;
            }
        });
    }

    fn poll_relay(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut up = Batch::read(context, &mut self.sender_queue, self.checksums);
        let mut down = Batch::read(context, &mut self.gateway_queue, self.checksums);
        if up.is_some() || down.is_some() {
            context.waker().wake_by_ref();
        }
        for (batch, queue) in [(&mut up, &mut self.gateway_queue), (&mut down, &mut self.sender_queue)] {
            let Some(Batch(packets)) = batch else { continue };
            let mut coalescer = Coalescer::new(queue.takes());
            for (flags, packet) in packets.drain(..) {
                coalescer.push(flags, packet).unwrap();
            }
            coalescer.flush(|write| {
                self.packets += write.packets;
                self.writes += 1;
                self.merged += u64::from(write.header.gso_type != GSO_NONE);
                let mut parts = write.parts.to_vec();
                // The checksum field is the second of three parts. A pseudo-header's sum is never 0.
                if self.checksums == Checksums::Wrong && parts.len() == 3 {
                    parts[1] = &[0, 0];
                }
                self.refused += u64::from(queue.write(Lane::Prompt, write.header, &parts).is_err());
                Outcome::Written
            });
        }
        Poll::Pending
    }
}

/// Packets of a few TUN reads, segmented as for the carrier.
struct Batch(Vec<(Flags, Vec<u8>)>);

impl Batch {
    fn read(context: &mut Context<'_>, queue: &mut Queue, checksums: Checksums) -> Option<Self> {
        let mut packets = Vec::new();
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        for _ in 0..8 {
            let Poll::Ready(read) = queue.poll_read(context, &mut buffer) else { break };
            let (header, range) = read.unwrap();
            segment(header, &buffer[range], &mut |segment| {
                let mut packet = segment.parts().concat();
                let mut flags = segment.flags();
                if checksums == Checksums::Whole && flags.partial_checksum() {
                    complete(&mut packet);
                    flags = Flags::NONE;
                }
                packets.push((flags, packet));
            })
            .unwrap();
        }
        (!packets.is_empty()).then_some(Self(packets))
    }
}

fn complete(packet: &mut [u8]) {
    let header = accept(Flags::PARTIAL_CHECKSUM, packet).unwrap();
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    let checksum = Sum::of(&packet[start..]).transport_checksum();
    packet[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A network namespace that is removed on drop.
#[derive(Debug)]
struct Namespace {
    name: String,
}

impl Namespace {
    fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("wt-{}-{role}{count}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Makes a TUN device with one queue in the namespace.
    fn device(&self) -> (Device, Queue) {
        self.within(|| {
            let config = DeviceConfig {
                name: "warren0".into(),
                mtu: 1_380,
                queues: 1,
                bulk_lane: true,
                offload: true,
            };
            let (device, mut queues) = create(&config).unwrap();
            (device, queues.remove(0))
        })
    }

    /// Runs a closure in the namespace. Sockets and devices that the closure makes stay in the namespace.
    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.thread(work).join().unwrap()
    }

    /// Starts a thread in the namespace.
    fn thread<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name);
        std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }

    fn ip(&self, arguments: &str) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    fn run(&self, line: &str) {
        let mut all = vec!["netns", "exec", &self.name];
        all.extend(line.split(' '));
        run("ip", &all);
    }

    /// TCP and UDP packets that this host dropped because of a wrong checksum.
    fn checksum_errors(&self) -> u64 {
        let arguments = ["netns", "exec", &self.name, "nstat", "-asz", "--json"];
        let output = Command::new("ip").args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counters = ["TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors"];
        let values = counters.map(|counter| {
            let (_, rest) = text.split_once(&format!("\"{counter}\":")).unwrap();
            let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().unwrap()
        });
        values.iter().sum()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn run(command: &str, arguments: &[&str]) {
    let output = Command::new(command).args(arguments).output().unwrap();
    assert!(output.status.success(), "{command} {arguments:?}: {output:?}");
}
