//! Several sockets share a port. Steers a packet to the socket of the worker that issued the packet's connection ID. A client
//! that changes its address stays with its worker.

use std::{io, net::UdpSocket};

use libc::{sock_filter, sock_fprog};

use super::set_option_of;

/// A value that is not the index of any socket. The kernel then selects by the hash of both addresses and ports.
const BY_HASH: u32 = u32::MAX;

/// Steers packets for a shared port (`SO_REUSEPORT`) to the first `workers` sockets bound to it, by the first byte of the
/// destination connection ID ([`WorkerPlace::owns`](crate::settings::WorkerPlace::owns)).
///
/// Call it once, for the first socket, after it is bound and before the second is. Packets with a connection ID of the client's
/// choice (Initial and 0-RTT) are spread by the hash of both addresses and ports. Such packets of one client reach the same worker
/// until the client has learnt one of that worker's IDs.
///
/// # Errors
/// If the kernel refuses the program (`SO_ATTACH_REUSEPORT_CBPF`).
pub fn steer(socket: &UdpSocket, workers: u8) -> io::Result<()> {
    let mut program = program(workers);
    let length = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    // The kernel copies the program during the call.
    let program = sock_fprog { len: length, filter: program.as_mut_ptr() };
    set_option_of(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// The BPF program. The packet starts with the QUIC header (RFC 9000 section 17, RFC 8999). A read beyond the packet's end
/// makes the program return 0, which selects the first socket.
fn program(workers: u8) -> [sock_filter; 10] {
    // linux/bpf_common.h
    const LOAD_BYTE: u16 = 0x30;
    const IF_BITS: u16 = 0x45;
    const IF_EQUAL: u16 = 0x15;
    const GO: u16 = 0x05;
    const AND: u16 = 0x54;
    const MODULO: u16 = 0x94;
    const RETURN_VALUE: u16 = 0x16;
    const RETURN: u16 = 0x06;
    let step = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let choice = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    [
        step(LOAD_BYTE, 0),
        // The long header bit. A jump counts from the next instruction.
        choice(IF_BITS, 0x80, 2, 0),
        // A short header: the connection ID follows.
        step(LOAD_BYTE, 1),
        step(GO, 3),
        // A long header: type, version and ID length follow. Only a Handshake packet is certain to carry our ID.
        step(AND, 0x30),
        choice(IF_EQUAL, 0x20, 0, 3),
        step(LOAD_BYTE, 6),
        // Both header forms get here with the first byte of our ID. The divisor is at least 1, because the kernel refuses a
        // program that divides by 0.
        step(MODULO, u32::from(workers.max(1))),
        step(RETURN_VALUE, 0),
        step(RETURN, BY_HASH),
    ]
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::socket::{SocketConfig, bind};

    const WORKERS: u8 = 3;

    struct Group(Vec<UdpSocket>);

    impl Group {
        fn new() -> Self {
            let config = |port| SocketConfig {
                reuse_port: true,
                ..SocketConfig::new((Ipv4Addr::LOCALHOST, port).into())
            };
            let first = bind(config(0)).unwrap();
            steer(&first, WORKERS).unwrap();
            let port = first.local_addr().unwrap().port();
            let others = (1..WORKERS).map(|_| bind(config(port)).unwrap());
            Self(std::iter::once(first).chain(others).collect())
        }

        fn address(&self) -> SocketAddr {
            self.0[0].local_addr().unwrap()
        }

        /// The socket that receives a packet.
        fn receiver(&self, from: &UdpSocket, packet: &[u8]) -> usize {
            from.send_to(packet, self.address()).unwrap();
            let start = Instant::now();
            let mut buffer = [0; 64];
            loop {
                if let Some(at) = self.0.iter().position(|socket| socket.recv(&mut buffer).is_ok()) {
                    return at;
                }
                assert!(start.elapsed() < Duration::from_secs(5), "nobody got it");
            }
        }
    }

    fn sender() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    #[test]
    fn packets_with_a_workers_id_reach_it_from_everywhere() {
        let group = Group::new();
        for byte in (0..=255).step_by(5) {
            let expected = usize::from(byte % WORKERS);
            assert_eq!(group.receiver(&sender(), &[0x40, byte, 9, 9]), expected, "short header, {byte}");
            let handshake = [0xe0, 0, 0, 0, 1, 8, byte, 9, 9];
            assert_eq!(group.receiver(&sender(), &handshake), expected, "Handshake, {byte}");
        }
    }

    #[test]
    fn first_packets_of_a_client_reach_one_worker_and_those_of_many_reach_all() {
        let group = Group::new();
        let mut reached = [0; WORKERS as usize];
        for _ in 0..64 {
            let client = sender();
            let at = group.receiver(&client, &[0xc0, 0, 0, 0, 1, 8, 1, 2, 3]);
            reached[at] += 1;
            for byte in 0..8 {
                assert_eq!(group.receiver(&client, &[0xc0, 0, 0, 0, 1, 8, byte, 2, 3]), at);
            }
        }
        assert!(reached.iter().all(|clients| *clients > 0), "{reached:?}");
    }

    #[test]
    fn packets_of_no_length_are_no_error() {
        let group = Group::new();
        assert_eq!(group.receiver(&sender(), &[]), 0);
        assert_eq!(group.receiver(&sender(), &[0x40]), 0);
    }
}
