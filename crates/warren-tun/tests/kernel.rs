//! TUN queues against the kernel. Each test has its own network namespace, which needs root.
#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "clippy allows these in test functions, not in their helpers"
)]

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use etherparse::{Icmpv4Type, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space, set_capabilities,
};
use warren_packet::virtio::{self, VirtioNetHeader};
use warren_tun::{
    Device, DeviceConfig, Lane, MAX_PARTS, Queue, READ_BUFFER_BYTES, Ring, TunError, WriteBatch, create,
};

const MTU: u16 = 1380;
const KERNEL: [u8; 4] = [10, 9, 0, 1];
const PEER: [u8; 4] = [10, 9, 0, 2];
const OTHER_PEER: [u8; 4] = [10, 9, 0, 3];

#[test]
fn the_kernel_answers_an_echo_request_that_was_written_in_parts() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);
        let request = echo_request(0x1234, 7, b"over here");

        queue
            .write(
                Lane::Prompt,
                VirtioNetHeader::default(),
                &[&request[..20], &request[20..28], &request[28..]],
            )
            .unwrap();

        let reply = read_until(&mut queue, |_, packet| echo_reply(packet)).await;
        assert_eq!(reply, (0x1234, 7, b"over here".to_vec()));
    });
}

#[test]
fn with_offload_a_tcp_write_of_the_kernel_arrives_as_one_super_packet() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);

        let (header, packet) = first_data_of_a_connection(&mut queue).await;

        assert!(packet.len() > usize::from(MTU), "a super-packet of {} bytes", packet.len());
        assert_eq!(header.gso_type, virtio::GSO_TCPV4);
        assert_eq!(header.gso_size, MTU - 40);
        assert!(!tcp_checksum_is_right(&packet), "the checksum should be partial");
    });
}

#[test]
fn without_offload_the_same_write_arrives_in_whole_packets_with_whole_checksums() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(false);

        let (header, packet) = first_data_of_a_connection(&mut queue).await;

        assert!(packet.len() <= usize::from(MTU), "a packet of {} bytes", packet.len());
        assert_eq!(header, VirtioNetHeader::default());
        assert!(tcp_checksum_is_right(&packet));
    });
}

#[test]
fn a_quiet_queue_waits_and_a_packet_of_the_kernel_wakes_it() {
    in_namespace(async || {
        let (device, mut queue) = one_queue(true);
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut read = poll_fn(|context| queue.poll_read(context, &mut buffer));

        let quiet = tokio::time::timeout(Duration::from_millis(100), &mut read).await;
        let mut ping =
            Command::new("ping").args(["-c1", "-W1", "10.9.0.2"]).stdout(Stdio::null()).spawn().unwrap();
        let woken = tokio::time::timeout(Duration::from_secs(5), &mut read).await;
        ping.kill().unwrap();
        ping.wait().unwrap();

        assert!(quiet.is_err(), "{} was not quiet: {quiet:?}", device.name());
        assert!(woken.is_ok(), "the ping did not wake the reader");
    });
}

#[test]
fn a_header_that_does_not_fit_its_packet_is_an_error_and_the_queue_goes_on() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);
        let request = echo_request(1, 1, b"");
        let no_such_type = VirtioNetHeader { gso_type: 0x77, gso_size: 1, ..VirtioNetHeader::default() };
        let beyond_the_end = VirtioNetHeader {
            flags: virtio::NEEDS_CSUM,
            checksum_start: 60_000,
            ..VirtioNetHeader::default()
        };
        let too_long_a_header = VirtioNetHeader { header_length: 60_000, ..VirtioNetHeader::default() };

        for bad in [no_such_type, beyond_the_end, too_long_a_header] {
            let error = queue.write(Lane::Prompt, bad, &[&request]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad:?}: {error}");
        }
        assert!(queue.write(Lane::Prompt, VirtioNetHeader::default(), &[]).is_err(), "an empty packet");
        assert!(
            queue.write(Lane::Prompt, VirtioNetHeader::default(), &[&[0x55; 40]]).is_err(),
            "IP version 5"
        );

        queue.write(Lane::Prompt, VirtioNetHeader::default(), &[&request]).unwrap();
        assert_eq!(read_until(&mut queue, |_, packet| echo_reply(packet)).await, (1, 1, Vec::new()));
    });
}

#[test]
fn a_write_takes_as_many_parts_as_it_says_and_no_more() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);
        let request = echo_request(9, 9, &[0x55; MAX_PARTS]);
        let (head, tail) = request.split_at(request.len() - (MAX_PARTS - 1));
        let mut parts = vec![head];
        parts.extend(tail.chunks(1));

        assert_eq!(parts.len(), MAX_PARTS);
        queue.write(Lane::Prompt, VirtioNetHeader::default(), &parts).unwrap();
        let (.., payload) = read_until(&mut queue, |_, packet| echo_reply(packet)).await;
        assert_eq!(payload, [0x55; MAX_PARTS]);

        parts.push(&[]);
        let error = queue.write(Lane::Prompt, VirtioNetHeader::default(), &parts).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn a_batch_is_written_in_order_and_each_write_has_its_own_result() {
    in_namespace(async || {
        for with_ring in [true, false] {
            let (device, mut queue) = one_queue(true);
            let mut ring = with_ring.then(|| Ring::new().unwrap());
            let requests = [1, 2, 3].map(|sequence| echo_request(9, sequence, b"of a batch"));
            let mut batch = WriteBatch::with_capacity(4);
            batch.push(Lane::Prompt, VirtioNetHeader::default(), &[&requests[0][..20], &requests[0][20..]]);
            let unknown = VirtioNetHeader { gso_type: 2, ..VirtioNetHeader::default() };
            batch.push(Lane::Prompt, unknown, &[&requests[0]]);
            batch.push(Lane::Bulk, VirtioNetHeader::default(), &[&requests[1]]);
            batch.push(Lane::Bulk, VirtioNetHeader::default(), &[&requests[2]]);
            assert_eq!(batch.len(), 4);

            let mut results = Vec::new();
            queue.write_all(&batch, &mut ring, &mut results).unwrap();

            let [Ok(()), Err(refused), Ok(()), Ok(())] = &results[..] else { panic!("{results:?}") };
            assert_eq!(Errno::from_io_error(refused), Some(Errno::INVAL));
            for expected in 1..=3 {
                let (_, sequence, _) = read_until(&mut queue, |_, packet| echo_reply(packet)).await;
                assert_eq!(sequence, expected);
            }
            run("ip", &["link", "set", device.name(), "down"]);
            results.clear();
            queue.write_all(&batch, &mut ring, &mut results).unwrap();
            let errors = results.iter().map(|result| Errno::from_io_error(result.as_ref().unwrap_err()));
            // The kernel checks the header first.
            let expected = [Errno::IO, Errno::INVAL, Errno::IO, Errno::IO].map(Some);
            assert_eq!(errors.collect::<Vec<_>>(), expected);
            assert_eq!(ring.is_some(), with_ring);

            // A ring that still exists does not keep the device alive.
            drop(queue);
            assert_gone(&device);
        }
    });
}

#[test]
fn a_buffer_that_could_cut_a_packet_off_is_refused() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);
        let mut buffer = vec![0; READ_BUFFER_BYTES - 1];

        let error = poll_fn(|context| queue.poll_read(context, &mut buffer)).await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn what_answers_a_write_to_the_bulk_lane_is_overtaken_by_what_answers_one_to_the_other() {
    in_namespace(async || {
        let (_device, mut queue) = one_queue(true);
        let write = |queue: &mut Queue, lane, peer: [u8; 4], sequence| {
            let mut request = Vec::new();
            let builder = PacketBuilder::ipv4(peer, KERNEL, 64).icmpv4_echo_request(1, sequence);
            builder.write(&mut request, b"").unwrap();
            queue.write(lane, VirtioNetHeader::default(), &[&request]).unwrap();
        };
        for (bulk, other) in [(PEER, OTHER_PEER), (OTHER_PEER, PEER)] {
            // The kernel learns a flow's queue from the first write. It replies while a write is in progress.
            write(&mut queue, Lane::Bulk, bulk, 0);
            write(&mut queue, Lane::Prompt, other, 0);
            for _ in 0..2 {
                read_until(&mut queue, |_, packet| echo_reply(packet)).await;
            }
            let mut buffer = vec![0; READ_BUFFER_BYTES];
            let both_are_empty =
                poll_fn(|context| Poll::Ready(queue.poll_read(context, &mut buffer).is_pending()));
            assert!(both_are_empty.await);

            write(&mut queue, Lane::Bulk, bulk, 1);
            write(&mut queue, Lane::Bulk, bulk, 2);
            write(&mut queue, Lane::Prompt, other, 3);
            write(&mut queue, Lane::Prompt, other, 4);

            for expected in [3, 4, 1, 2] {
                let (_, sequence, _) = read_until(&mut queue, |_, packet| echo_reply(packet)).await;
                assert_eq!(sequence, expected);
            }
        }
    });
}

#[test]
fn the_device_lives_as_long_as_one_of_its_queues() {
    in_namespace(async || {
        let (device, mut queues) = create(&config(4, true)).unwrap();
        assert_eq!(queues.len(), 4);
        bring_up(&device);
        assert!(shown(&device).unwrap().starts_with(&format!("{}: {}: ", device.index(), device.name())));

        let mut last = queues.pop().unwrap();
        drop(queues);
        last.write(Lane::Prompt, VirtioNetHeader::default(), &[&echo_request(3, 3, b"")]).unwrap();
        assert_eq!(read_until(&mut last, |_, packet| echo_reply(packet)).await, (3, 3, Vec::new()));

        drop(last);
        assert_gone(&device);
    });
}

#[test]
fn a_device_that_exists_is_never_joined() {
    in_namespace(async || {
        let (device, _queues) = create(&config(2, true)).unwrap();

        for queues in [1, 2] {
            let error = create(&config(queues, true)).unwrap_err();
            assert!(matches!(&error, TunError::NameTaken { name } if name == device.name()), "{error}");
        }
        assert!(matches!(
            create(&DeviceConfig { name: "lo".into(), ..config(1, true) }),
            Err(TunError::NameTaken { .. })
        ));
    });
}

#[test]
fn of_two_that_make_a_device_at_the_same_moment_one_hears_that_it_exists() {
    in_namespace(async || {
        for _ in 0..20 {
            let both_are_ready = Barrier::new(2);
            let make = || {
                both_are_ready.wait();
                create(&config(1, true))
            };
            let made = std::thread::scope(|scope| {
                [scope.spawn(make), scope.spawn(make)].map(|thread| thread.join().unwrap())
            });
            let taken = |made: &Result<_, _>| matches!(made, Err(TunError::NameTaken { .. }));
            assert_eq!(made.iter().filter(|made| taken(made)).count(), 1, "{made:?}");
            let [device] = made
                .into_iter()
                .filter_map(|made| Some(made.ok()?.0))
                .collect::<Vec<_>>()
                .try_into()
                .unwrap();
            assert_gone(&device);
        }
    });
}

#[test]
fn without_the_capability_the_error_says_what_is_needed() {
    in_namespace(async || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();

        let error = create(&config(1, true)).unwrap_err();

        assert!(matches!(error, TunError::NotPermitted { .. }), "{error}");
    });
}

/// Runs a test inside a tokio runtime, on its own thread in a new network namespace.
///
/// Without root the test prints a line and returns; in CI it fails.
fn in_namespace(test: impl AsyncFnOnce()) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        println!("skipped: this test needs root");
        return;
    }
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("wt-{}-tun{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    run("ip", &["netns", "add", &name]);
    let file = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
    // The thread keeps the namespace alive. Its name is not needed after entering it.
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    run("ip", &["netns", "delete", &name]);

    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
}

fn config(queues: usize, offload: bool) -> DeviceConfig {
    DeviceConfig { name: "warren0".into(), mtu: MTU, queues, bulk_lane: true, offload }
}

/// Makes a device with one queue, up and with the kernel's address.
fn one_queue(offload: bool) -> (Device, Queue) {
    let (device, mut queues) = create(&config(1, offload)).unwrap();
    bring_up(&device);
    (device, queues.remove(0))
}

/// Brings the device up with its IPv4 address. IPv6 is off, so that the device stays quiet.
fn bring_up(device: &Device) {
    run("ip", &["link", "set", device.name(), "addrgenmode", "none"]);
    run("ip", &["address", "add", "10.9.0.1/24", "dev", device.name()]);
    run("ip", &["link", "set", device.name(), "up"]);
}

/// Waits until the device is gone. A child process that another test has forked holds copies of the descriptors until it calls
/// exec.
fn assert_gone(device: &Device) {
    let gone = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        shown(device).is_none()
    });
    assert!(gone, "{:?}", shown(device));
}

/// The output of `ip link show` for the device while it exists.
fn shown(device: &Device) -> Option<String> {
    let output = Command::new("ip").args(["-o", "link", "show", device.name()]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn run(command: &str, arguments: &[&str]) {
    let status = Command::new(command).args(arguments).status().unwrap();
    assert!(status.success(), "{command} {arguments:?}: {status}");
}

/// Reads packets until `wanted` returns a value, for at most five seconds.
async fn read_until<T>(queue: &mut Queue, mut wanted: impl FnMut(VirtioNetHeader, &[u8]) -> Option<T>) -> T {
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let found = async {
        loop {
            let (header, range) = poll_fn(|context| queue.poll_read(context, &mut buffer)).await.unwrap();
            if let Some(found) = wanted(header, &buffer[range]) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), found).await.expect("no matching packet was read in 5 s")
}

/// Answers the handshake of a TCP connection that the kernel opens. Returns the first data packet of a 64 KiB write.
async fn first_data_of_a_connection(queue: &mut Queue) -> (VirtioNetHeader, Vec<u8>) {
    let connecting = std::thread::spawn(|| TcpStream::connect((std::net::Ipv4Addr::from(PEER), 80)).unwrap());
    let (port, sequence) = read_until(queue, |_, packet| {
        let tcp = tcp(packet)?;
        tcp.syn().then(|| (tcp.source_port(), tcp.sequence_number()))
    })
    .await;
    let answer = PacketBuilder::ipv4(PEER, KERNEL, 64)
        .tcp(80, port, 1_000, 65_535)
        .syn()
        .ack(sequence + 1)
        .options(&[TcpOptionElement::MaximumSegmentSize(MTU - 40), TcpOptionElement::WindowScale(7)])
        .unwrap();
    queue.write(Lane::Prompt, VirtioNetHeader::default(), &[&built(answer, &[])]).unwrap();
    let mut stream = connecting.join().unwrap();
    stream.set_nonblocking(true).unwrap();
    assert!(stream.write(&[0x55; 65_536]).unwrap() > usize::from(MTU));

    read_until(queue, |header, packet| {
        let has_data = !tcp(packet)?.payload().is_empty();
        has_data.then(|| (header, packet.to_vec()))
    })
    .await
}

fn tcp(packet: &[u8]) -> Option<etherparse::TcpSlice<'_>> {
    match SlicedPacket::from_ip(packet).ok()?.transport? {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}

fn tcp_checksum_is_right(packet: &[u8]) -> bool {
    let tcp = tcp(packet).unwrap();
    let source = packet[12..16].try_into().unwrap();
    let destination = packet[16..20].try_into().unwrap();
    tcp.calc_checksum_ipv4(source, destination).unwrap() == tcp.checksum()
}

fn echo_request(id: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ipv4(PEER, KERNEL, 64).icmpv4_echo_request(id, sequence);
    let mut packet = Vec::new();
    builder.write(&mut packet, payload).unwrap();
    packet
}

fn echo_reply(packet: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    let TransportSlice::Icmpv4(icmp) = SlicedPacket::from_ip(packet).ok()?.transport? else { return None };
    match icmp.icmp_type() {
        Icmpv4Type::EchoReply(echo) => Some((echo.id, echo.seq, icmp.payload().to_vec())),
        _ => None,
    }
}

fn built(builder: etherparse::PacketBuilderStep<etherparse::TcpHeader>, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    builder.write(&mut packet, payload).unwrap();
    packet
}
