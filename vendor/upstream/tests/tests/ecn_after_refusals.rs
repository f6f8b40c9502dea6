//! Fails with: the mark is gone

use std::{
    io::IoSliceMut,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use noq_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};

#[test]
fn a_socket_marks_for_ecn_after_a_send_that_was_refused_for_another_reason() {
    let (sending, receiving) = (socket(), socket());
    let (sender, receiver) =
        (UdpSocketState::new((&sending).into()).unwrap(), UdpSocketState::new((&receiving).into()).unwrap());
    let destination = receiving.local_addr().unwrap();
    let send = |src_ip| {
        let ecn = Some(EcnCodepoint::Ect0);
        let transmit = Transmit { destination, ecn, contents: b"datagram", segment_size: None, src_ip };
        sender.try_send((&sending).into(), &transmit)
    };
    let receive = || {
        let (mut buffer, mut meta) = ([0; 65_536], [RecvMeta::default()]);
        receiver.recv((&receiving).into(), &mut [IoSliceMut::new(&mut buffer)], &mut meta).unwrap();
        meta[0].ecn
    };
    // The control: the mark arrives.
    send(None).unwrap();
    assert_eq!(receive(), Some(EcnCodepoint::Ect0));
    // A source address that no datagram can have, as one that the host has lost.
    let refused = send(Some(Ipv4Addr::BROADCAST.into()));
    send(None).unwrap();
    assert_eq!(receive(), Some(EcnCodepoint::Ect0), "the mark is gone after {refused:?}");
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}
