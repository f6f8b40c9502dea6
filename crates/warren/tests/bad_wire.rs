//! A path that loses, corrupts, duplicates and delays datagrams.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::counters::{HEADERS, packets_and_bytes_of_one, packets_counted, packets_of_one};
use crate::support::{Client, Exit, Namespace, Net, asked, flows, seconds};

/// For rows F3 and F4 of the scorecard (docs/torture.md), run this test with `WARREN_HANDSHAKES=50`.
#[test]
fn sessions_begin_over_a_path_that_loses_and_spoils_every_third_datagram() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    let handshakes = asked("WARREN_HANDSHAKES");
    let count = handshakes.unwrap_or(2);
    for (name, what) in [("lost, three in a row", bursts()), ("spoilt", spoilt(300))] {
        net.filter(&what);
        let mut took: Vec<Duration> = (0..count)
            .map(|_| {
                let start = Instant::now();
                client.warren.run("up home --timeout 60s").ok();
                let took = start.elapsed();
                client.warren.run("down home").ok();
                took
            })
            .collect();
        took.sort();
        let (median, slowest) = (took[count / 2], took[count - 1]);
        println!(
            "measured: 30 % {name}: {count} of {count} up, half of them in {median:.1?}, all in {slowest:.1?}"
        );
        if handshakes.is_some() {
            assert!(median <= seconds(3) && slowest <= seconds(20), "{name}: {took:?}");
        }
    }
    net.unfilter();
    client.assert_host_unchanged();
}

/// For row F4 of the scorecard (docs/torture.md), run this test with `WARREN_SPOILT_BYTES=10000000`, the bytes in each direction.
#[test]
fn bytes_stay_right_over_a_path_that_spoils_every_fiftieth_datagram() {
    let Some(net) = Net::new() else { return };
    let mut bytes = vec![0; asked("WARREN_SPOILT_BYTES").unwrap_or(1_000_000)];
    getrandom::fill(&mut bytes).unwrap();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    // With `tx` offload off, each packet leaves with a complete checksum, which the receiver then verifies.
    net.internet.host.sh("ethtool -K eth0 tx off").ok();
    client.up();
    client.sh("ethtool -K warren0 tx off");
    net.filter(&spoilt(20));
    let wrong = || [&net.client, &net.internet.host].map(wrong_packets);
    let before = wrong();

    let start = Instant::now();
    let (there, back) = there_and_back(&net, &bytes);

    let took = start.elapsed();
    let spoilt = ["to-client", "to-exit"].map(|device| {
        let listed = net.router.sh(&format!("nft list table netdev {device}")).ok();
        packets_counted(&listed).into_iter().sum::<u64>()
    });
    println!(
        "measured: {} bytes both ways in {took:.1?}, {} datagrams of the client and {} of the exit spoilt",
        bytes.len(),
        spoilt[0],
        spoilt[1]
    );
    assert!(there == bytes, "other bytes arrived");
    assert!(back == bytes, "other bytes came back");
    assert!(spoilt.iter().all(|count| *count > 0), "{spoilt:?}");
    assert_eq!(wrong(), before, "the kernels found wrong packets");
    for status in [client.status(), exit.status()] {
        for reason in ["bad_datagram", "bad_packet", "bad_checksum_flag", "bad_fragment"] {
            assert_eq!(status.drop("tun", reason), 0, "{reason}");
        }
    }
    client.down();

    // The control: without the tunnel, the same check notices corrupted bytes.
    net.unfilter();
    let byte = "@th,320,8 set 0xa5";
    let there = format!("tcp dport {PORT} {byte}");
    let back = format!("tcp sport {PORT} numgen random mod 10 < 2 {byte}");
    for (device, rule) in [("to-client", there), ("to-internet", back)] {
        net.router.sh(&table(device, "ingress", device, &rule)).ok();
    }
    let (there, _) = there_and_back(&net, &bytes[..200_000]);
    assert!(there != bytes[..200_000], "no byte was corrupted");
    assert!(wrong()[0] > before[0], "no packet was found to be wrong");
}

/// For row F5 of the scorecard (docs/torture.md), run this test with `WARREN_TWICE=20000`.
#[test]
fn what_comes_twice_is_delivered_once() {
    let Some(net) = Net::new() else { return };
    let twice = asked("WARREN_TWICE");
    let sent = twice.unwrap_or(2_000);
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    datagrams_one_by_one(&net);
    let ways = [(&net.client, "to-client", "dport"), (&net.exit, "to-exit", "sport")];
    for (host, device, direction) in ways {
        let carrier = format!("udp {direction} 443");
        net.router.sh(&table(device, "ingress", device, &format!("{carrier} counter"))).ok();
        // The copy passes this rule too. By its mark, it is not counted or copied again.
        let copied = format!("{carrier} meta mark != 2 meta mark set 2 counter dup to \"eth0\"");
        host.sh(&table("twice", "egress", "eth0", &copied)).ok();
    }
    client.up();
    let (total, behind) = none_twice(flows::echo_numbered(&net.client, sent));
    assert!(total > sent as usize / 2, "{total} of {sent}");
    if twice.is_some() {
        assert_eq!(total, sent as usize, "some were lost");
        assert!(behind * 10 <= total, "{behind} out of order");
    }
    // The egress counter includes the link header, and counts a batch as one packet with one set of headers.
    let times = ways.map(|(host, device, _)| {
        let left = payload(&host.sh("nft list table netdev twice").ok(), HEADERS + LINK_HEADER);
        let arrived = payload(&net.router.sh(&format!("nft list table netdev {device}")).ok(), HEADERS);
        arrived as f64 / left as f64
    });
    println!(
        "measured: {total} of {sent} came, none twice, {behind} out of order; each byte of the carrier's was on the wire {:.2} times \
         from the client and {:.2} times from the exit",
        times[0], times[1]
    );
    assert!(times.iter().all(|times| (1.9..3.0).contains(times)), "{times:?}");
    for host in [&net.client, &net.exit] {
        host.sh("nft delete table netdev twice").ok();
    }
    client.down();
}

/// For row F5 of the scorecard (docs/torture.md), run this test with `WARREN_LATE=20000`, the number of datagrams in each
/// direction.
#[test]
fn what_comes_late_is_delivered_all_the_same() {
    let Some(net) = Net::new() else { return };
    let late = asked("WARREN_LATE");
    let sent: u32 = late.unwrap_or(1_000);
    // The rule delays datagrams with a random byte below this value. The scorecard delays a tenth of the datagrams. The short
    // test delays a twentieth, because by chance a tenth could exceed the test's limit.
    let below = if late.is_some() { "26" } else { "13" };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    // With `tx` offload off, each datagram has a complete checksum, which late.py needs to forward it through a raw socket.
    for host in [&net.client, &net.exit] {
        host.sh("ethtool -K eth0 tx off").ok();
    }
    client.up();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/late.py");
    for (device, port, way) in [("to-client", "dport", "to the exit"), ("to-exit", "sport", "to the client")]
    {
        let taken = format!("udp {port} 443 @th,320,8 < {below} counter drop");
        net.router.sh(&table("late", "ingress", device, &taken)).ok();
        let taken = || packets_of_one(&net.router.sh("nft list table netdev late").ok());
        // Reordering is counted on the link, because repair may deliver all datagrams in order.
        flows::echo_numbered(&net.client, 5_000);
        assert!(taken() > 0, "no datagram is taken from the link");

        let mut sending_on = net.router.start(&["python3", "-u", script, device, port, below]);
        sending_on.wait_for_output("listening");
        let taken_before = taken();
        let (total, behind) = none_twice(flows::echo_numbered(&net.client, sent));
        let late_ones = taken() - taken_before;
        println!(
            "measured: {total} of {sent} came, {behind} out of order, with {late_ones} datagrams {way} 5 to 20 ms late"
        );
        assert_eq!(total, sent as usize, "some datagrams were lost");
        assert!(behind * 10 <= total, "{behind} out of order");
        assert!(late_ones > 0, "no datagram was late");
        assert!(sending_on.is_running(), "{}", sending_on.output());
        drop(sending_on);
        net.router.sh("nft delete table netdev late").ok();
    }
    client.down();
}

/// The shell command that makes an nft table with one rule on a hook of a device.
pub(crate) fn table(name: &str, hook: &str, device: &str, rule: &str) -> String {
    let hook = format!("type filter hook {hook} device \"{device}\" priority 0;");
    format!("nft 'table netdev {name} {{ chain passing {{ {hook} {rule}; }}; }}'")
}

/// Returns how many numbers arrived, and how many of them arrived after a higher number. Fails on a duplicate.
fn none_twice(mut came: Vec<u32>) -> (usize, usize) {
    let total = came.len();
    let behind = came.windows(2).filter(|pair| pair[1] < pair[0]).count();
    came.sort_unstable();
    came.dedup();
    assert_eq!(came.len(), total, "some datagrams came twice");
    (total, behind)
}

/// Returns the UDP payload bytes of the only counter in an nft listing.
fn payload(listing: &str, headers: u64) -> u64 {
    let (packets, bytes) = packets_and_bytes_of_one(listing);
    bytes - packets * headers
}

/// Turns off segmentation offload, so that nft rules see single datagrams and not batches.
pub(crate) fn datagrams_one_by_one(net: &Net) {
    for host in [&net.client, &net.exit] {
        host.sh("ethtool -K eth0 tx-udp-segmentation off").ok();
    }
}

/// Rules that change one byte of the payload. The receiving kernel does not detect the change, because UDP checksums are not
/// verified between namespaces.
fn spoilt(per_mille: u32) -> String {
    both_ways(&format!("numgen random mod 1000 < {per_mille} counter @th,320,8 set 0xa5"))
}

fn bursts() -> String {
    both_ways("numgen inc mod 10 < 3 drop")
}

fn both_ways(what: &str) -> String {
    format!("udp dport 443 {what}; udp sport 443 {what};")
}

/// Bytes of the Ethernet header.
const LINK_HEADER: u64 = 14;

/// The TCP port on which the internet host echoes bytes.
const PORT: u16 = 7_008;

/// Sends bytes over TCP to the internet host, which echoes them. Returns the bytes that the host received and those that the
/// client got back.
fn there_and_back(net: &Net, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let listener = net.internet.host.enter(|| TcpListener::bind((Net::INTERNET_V4, PORT)).unwrap());
    let listener = listener.join().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let got = all_of(&mut stream);
        stream.write_all(&got).unwrap();
        got
    });
    let bytes = bytes.to_vec();
    let asking = net.client.enter(move || {
        let mut stream = TcpStream::connect((Net::INTERNET_V4, PORT)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        all_of(&mut stream)
    });
    let back = asking.join().unwrap();
    (answering.join().unwrap(), back)
}

/// All bytes until the peer closes the stream.
fn all_of(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(seconds(60))).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// How many packets a host's kernel discarded because of a wrong IPv4 header or TCP checksum.
fn wrong_packets(host: &Namespace) -> u64 {
    const COUNTERS: [(&str, &str); 3] =
        [("Ip:", "InHdrErrors"), ("Tcp:", "InErrs"), ("Tcp:", "InCsumErrors")];
    let text = host.sh("cat /proc/net/snmp").ok();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let counter = |(protocol, name): (&str, &str)| -> u64 {
        // Each pair consists of a line with names and a line with numbers.
        let mut pairs = lines.chunks(2);
        let pair = pairs.find(|pair| pair[0][0] == protocol).unwrap();
        let place = pair[0].iter().position(|word| *word == name).unwrap();
        pair[1][place].parse().unwrap()
    };
    COUNTERS.into_iter().map(counter).sum()
}
