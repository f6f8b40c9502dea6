use std::{
    future::poll_fn,
    io::IoSliceMut,
    net::{Ipv4Addr, Ipv6Addr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use noq::AsyncUdpSocket;
use noq_udp::{EcnCodepoint, RecvMeta, Transmit};

use super::*;
use crate::{
    stats::{MAX_SEGMENTS, SocketCounters},
    tests::listening::{Listening, listen},
};

fn local() -> SocketConfig {
    SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())
}

fn quic_socket(socket: UdpSocket) -> (QuicSocket, Arc<SocketCounters>) {
    quic_socket_sharing(socket, Lacking::default())
}

fn quic_socket_sharing(socket: UdpSocket, lacking: Lacking) -> (QuicSocket, Arc<SocketCounters>) {
    let counters = Arc::new(SocketCounters::new());
    let using = SocketUse { gso: true, gro: true, lacking, max_payload: 1_472, keeps_source: true };
    (QuicSocket::new(socket, using, counters.clone(), None).unwrap(), counters)
}

async fn send(socket: &QuicSocket, to: SocketAddr, contents: &[u8], segment_size: usize) {
    let mut sender = socket.create_sender();
    let segment_size = Some(segment_size);
    let transmit = Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None };
    poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx)).await.unwrap();
}

/// Receives `count` datagrams and returns their sizes.
fn receive(socket: &UdpSocket, count: usize) -> Vec<usize> {
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut buffer = [0; 65_536];
    (0..count).map(|_| socket.recv(&mut buffer).unwrap()).collect()
}

#[tokio::test]
async fn batch_is_one_send_and_counted_by_its_segments() {
    let receiver = bind(local()).unwrap();
    let (socket, counters) = quic_socket(bind(local()).unwrap());
    send(&socket, receiver.local_addr().unwrap(), &[1; 9 * 1_200 + 100], 1_200).await;

    assert_eq!(receive(&receiver, 10), [[1_200; 9].as_slice(), &[100]].concat());
    let stats = counters.snapshot();
    assert_eq!((stats.sends, stats.segments_per_send[10], stats.largest_send()), (1, 1, 10));
    assert_eq!((stats.datagrams_sent(), stats.bytes_sent), (10, 10_900));
    assert_eq!(stats.send_errors.total(), 0);
}

#[tokio::test]
async fn batch_beyond_64_kib_is_counted_as_too_long() {
    // The negative control of the test of caps: without the clamp, that test would see a batch that is too
    // long.
    let receiver = bind(local()).unwrap();
    let (socket, counters) = quic_socket(bind(local()).unwrap());
    send(&socket, receiver.local_addr().unwrap(), &[1; 64 * 1_452], 1_452).await;
    send(&socket, receiver.local_addr().unwrap(), &[1; 45 * 1_452], 1_452).await;

    let stats = counters.snapshot();
    assert_eq!((stats.send_errors.batch_too_long, stats.send_errors.total()), (1, 1));
    assert_eq!((stats.sends, stats.largest_send()), (1, 45));
}

#[tokio::test]
async fn datagram_larger_than_any_is_counted_apart_from_batches() {
    let receiver = bind(local()).unwrap();
    let (socket, counters) = quic_socket(bind(local()).unwrap());
    send(&socket, receiver.local_addr().unwrap(), &[1; 65_508], 65_508).await;
    assert_eq!(counters.snapshot().send_errors.datagram_too_long, 1);
}

#[tokio::test]
async fn refused_segmentation_loses_nothing_and_is_off_from_then_on() {
    let receiver = bind(local()).unwrap();
    let to = receiver.local_addr().unwrap();
    let sending = bind(local()).unwrap();
    // The kernel refuses to segment without checksums, with EINVAL.
    set_option(&sending, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let (socket, counters) = quic_socket(sending);
    assert_eq!(socket.create_sender().max_transmit_segments().get(), MAX_SEGMENTS);

    send(&socket, to, &[1; 9 * 1_200 + 100], 1_200).await;
    assert_eq!(receive(&receiver, 10), [[1_200; 9].as_slice(), &[100]].concat());
    let stats = counters.snapshot();
    assert_eq!((stats.send_errors.invalid, stats.send_errors.total()), (1, 1));
    assert_eq!((stats.unsegmented, stats.segments_per_send[1]), (1, 10));
    assert_eq!(socket.create_sender().max_transmit_segments().get(), 1);

    // A batch that was built before the refusal is sent one by one without another refusal.
    send(&socket, to, &[1; 2_400], 1_200).await;
    assert_eq!(receive(&receiver, 2), [1_200, 1_200]);
    assert_eq!(counters.snapshot().send_errors.total(), 1);
}

#[tokio::test]
async fn what_a_refused_batch_is_cut_into_bears_its_mark_and_so_does_all_that_follows() {
    let (mut receiver, _) = quic_socket(bind(local()).unwrap());
    let destination = receiver.local_addr().unwrap();
    let sending = bind(local()).unwrap();
    // The kernel refuses to segment without checksums, with EINVAL.
    set_option(&sending, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let (socket, counters) = quic_socket(sending);
    let mut sender = socket.create_sender();
    // A source address that no datagram can have also causes EINVAL, and nothing is sent.
    for (src_ip, size) in [(None, 2_400), (Some(Ipv4Addr::BROADCAST.into()), 1_200), (None, 1_200)] {
        let (ecn, contents) = (Some(EcnCodepoint::Ect0), &vec![1; size]);
        let transmit = Transmit { destination, ecn, contents, segment_size: Some(1_200), src_ip };
        poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx)).await.unwrap();
    }
    assert_eq!(counters.snapshot().send_errors.invalid, 2);

    for _ in 0..3 {
        let mut buffer = vec![0; 65_536];
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        poll_fn(|cx| receiver.poll_recv(cx, &mut buffers, &mut meta)).await.unwrap();
        assert_eq!((meta[0].len, meta[0].ecn), (1_200, Some(EcnCodepoint::Ect0)));
    }
}

#[tokio::test]
async fn segmentation_that_one_socket_finds_refused_is_off_for_every_socket_and_warned_of_once() {
    let receiver = bind(local()).unwrap();
    let to = receiver.local_addr().unwrap();
    let lacking = Lacking::default();
    let sockets: Vec<_> = (0..3)
        .map(|_| {
            let sending = bind(local()).unwrap();
            // The kernel refuses to segment without checksums, with EINVAL.
            set_option(&sending, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
            quic_socket_sharing(sending, lacking.clone())
        })
        .collect();
    let (warnings, listening) = warnings();
    for (socket, _) in &sockets {
        send(socket, to, &[1; 2_400], 1_200).await;
        assert_eq!(receive(&receiver, 2), [1_200, 1_200]);
        assert_eq!(socket.create_sender().max_transmit_segments().get(), 1);
    }
    drop(listening);

    let refusals = sockets.iter().map(|(_, counters)| counters.snapshot().send_errors.total());
    assert_eq!(refusals.collect::<Vec<_>>(), [1, 0, 0]);
    assert!(lacking.gso() && !lacking.gro());
    assert_eq!(warnings.load(Ordering::Relaxed), 1);
}

/// Counts this thread's warnings until the guard is dropped.
fn warnings() -> (Arc<AtomicUsize>, Listening) {
    struct Count(Arc<AtomicUsize>);
    impl tracing::Subscriber for Count {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let count = Arc::new(AtomicUsize::new(0));
    (count.clone(), listen(Count(count)))
}

#[tokio::test]
async fn received_batches_are_counted_by_their_datagrams() {
    let (mut socket, counters) = quic_socket(bind(local()).unwrap());
    let (sending, _) = quic_socket(bind(local()).unwrap());
    send(&sending, socket.local_addr().unwrap(), &[1; 20 * 1_000], 1_000).await;

    let mut bytes = 0;
    while bytes < 20_000 {
        let mut buffer = vec![0; 65_536];
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        let mut received = pin!(poll_fn(|cx| socket.poll_recv(cx, &mut buffers, &mut meta)));
        assert_eq!(received.as_mut().await.unwrap(), 1);
        bytes += meta[0].len;
    }
    let stats = counters.snapshot();
    assert_eq!(stats.bytes_received, 20_000);
    assert_eq!(stats.receives, stats.datagrams_per_receive.iter().sum::<u64>());
    assert!(stats.datagrams_per_receive[4] <= 1 && stats.receives <= 20);
}

#[test]
fn socket_has_the_mark_and_the_buffers_it_was_asked_for() {
    let config = SocketConfig { mark: Some(0x77), ..local() };
    let socket = match bind(config) {
        // Without CAP_NET_ADMIN, a mark is refused and not silently ignored.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
        socket => socket.unwrap(),
    };
    let socket = socket2::SockRef::from(&socket);
    assert_eq!(socket.mark().unwrap(), 0x77);
    // The kernel doubles the number for its own bookkeeping.
    assert!(socket.recv_buffer_size().unwrap() >= DEFAULT_BUFFER_BYTES);
    assert!(socket.send_buffer_size().unwrap() >= DEFAULT_BUFFER_BYTES);
}

#[test]
fn ipv6_socket_leaves_ipv4_alone_and_shared_ports_are_shared() {
    let config = SocketConfig { reuse_port: true, ..SocketConfig::new((Ipv6Addr::UNSPECIFIED, 0).into()) };
    let first = bind(config.clone()).unwrap();
    let port = first.local_addr().unwrap().port();
    let _second = bind(SocketConfig { address: (Ipv6Addr::UNSPECIFIED, port).into(), ..config }).unwrap();
    let _beside = bind(SocketConfig::new((Ipv4Addr::UNSPECIFIED, port).into())).unwrap();
    let taken = bind(SocketConfig::new((Ipv4Addr::UNSPECIFIED, port).into())).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn a_socket_is_watched_for_room_only_while_somebody_waits_for_it() {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let destination = receiver.local_addr().unwrap();
    let using = SocketUse {
        gso: true,
        gro: true,
        lacking: Lacking::default(),
        max_payload: 1_472,
        keeps_source: true,
    };
    let socket = bind(local()).unwrap();
    let mut socket = CountedSocket::new(socket, using, Arc::new(SocketCounters::new())).unwrap();
    let send = |socket: &CountedSocket| {
        let contents = &[0; 1_400];
        let transmit = Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
        socket.send(&transmit, &mut Resume::default())
    };
    let is_watched = |socket: &CountedSocket| !format!("{socket:?}").contains("room: OnceLock(<uninit>)");

    for _ in 0..3 {
        send(&socket).unwrap();
        assert!(!is_watched(&socket));
        poll_fn(|cx| socket.poll_writable(cx)).await.unwrap();
        assert!(is_watched(&socket));
        send(&socket).unwrap();
        assert_eq!(receive(&receiver, 2), [1_400, 1_400]);
        socket.forget_room();
    }
}
