//! The kernel's drops due to full receive buffers. The kernel counts them per socket. The counts are read when the sum is
//! requested.

use std::{
    io,
    net::UdpSocket,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// A sum over all sockets, including closed ones. It never decreases.
#[derive(Debug, Default)]
pub(crate) struct Overflow(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sum: u64,
    sockets: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    socket: Weak<UdpSocket>,
    /// The kernel's count at the last read. The kernel's counter wraps around.
    seen: u32,
}

impl Overflow {
    /// Adds a socket to the sum, counting from its first datagram.
    pub(super) fn watch(&self, socket: &Arc<UdpSocket>) {
        self.counts().sockets.push(Watched { socket: Arc::downgrade(socket), seen: 0 });
    }

    /// Reads a socket's count for the last time, before it is closed.
    pub(super) fn forget(&self, socket: &Arc<UdpSocket>) {
        let mut counts = self.counts();
        counts.read();
        counts.sockets.retain(|watched| !std::ptr::eq(watched.socket.as_ptr(), Arc::as_ptr(socket)));
    }

    /// Reads the sockets' counts and returns the sum.
    pub(crate) fn sum(&self) -> u64 {
        let mut counts = self.counts();
        counts.read();
        counts.sum
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn read(&mut self) {
        for Watched { socket, seen } in &mut self.sockets {
            let Some(dropped) = socket.upgrade().and_then(|socket| dropped(&socket).ok()) else { continue };
            // Kept as a sum, because a closed socket's count is lost.
            self.sum += u64::from(dropped.wrapping_sub(*seen));
            *seen = dropped;
        }
    }
}

/// Returns the kernel's count of datagrams dropped at a socket (`SO_MEMINFO`, Linux 4.12).
fn dropped(socket: &UdpSocket) -> io::Result<u32> {
    /// `SK_MEMINFO_DROPS` of `linux/sock_diag.h`.
    const DROPS: usize = 8;
    let mut values = [0_u32; DROPS + 1];
    let mut length = libc::socklen_t::try_from(size_of_val(&values)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open while `socket` is borrowed. The kernel writes at most `length` bytes, the size of `values`,
    // and the length itself. Both are borrowed until the call returns, and any bits are a valid u32.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut values).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let [.., drops] = values;
    Ok(drops)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        settings::Lacking,
        socket::{CountedSocket, SocketConfig, SocketUse, bind},
        stats::SocketCounters,
    };

    /// A driver's socket with room for a dozen datagrams, and another descriptor of it for receiving.
    struct Narrow {
        counted: CountedSocket,
        receiver: UdpSocket,
    }

    impl Narrow {
        fn new(counters: &Arc<SocketCounters>) -> Self {
            let config = SocketConfig {
                buffer_bytes: 16 * 1024,
                ..SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())
            };
            let socket = bind(config).unwrap();
            let receiver = socket.try_clone().unwrap();
            let lacking = Lacking::default();
            let using = SocketUse { gso: true, gro: true, lacking, max_payload: 1_472, keeps_source: true };
            Self { counted: CountedSocket::new(socket, using, counters.clone()).unwrap(), receiver }
        }

        fn address(&self) -> SocketAddr {
            self.counted.local_addr().unwrap()
        }

        /// Sends datagrams one by one, receives those that fit, and returns the number that did not.
        fn overfill(&self, sent: u64, counters: &SocketCounters) -> u64 {
            let before = counters.snapshot().dropped;
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for _ in 0..sent {
                assert_eq!(sender.send_to(&[7; 1_000], self.address()).unwrap(), 1_000);
            }
            let start = Instant::now();
            let mut received = 0;
            let mut buffer = [0; 2_000];
            loop {
                // Read before receiving, so that no datagram in flight is counted twice.
                let dropped = counters.snapshot().dropped - before;
                while self.receiver.recv(&mut buffer).is_ok() {
                    received += 1;
                }
                if received + dropped >= sent {
                    assert_eq!(received, sent - dropped);
                    return dropped;
                }
                assert!(start.elapsed() < Duration::from_secs(20), "{received} and {dropped} of {sent}");
            }
        }
    }

    #[tokio::test]
    async fn what_finds_a_socket_full_is_counted_to_the_datagram() {
        let counters = Arc::new(SocketCounters::new());
        let narrow = Narrow::new(&counters);
        // The control: three datagrams fit.
        assert_eq!(narrow.overfill(3, &counters), 0);

        let dropped = narrow.overfill(200, &counters);
        assert!(dropped > 100, "{dropped}");
        assert_eq!(counters.snapshot().dropped, dropped);
        assert_eq!(narrow.overfill(3, &counters), 0);
    }

    #[tokio::test]
    async fn the_sum_is_over_all_sockets_and_keeps_those_that_are_closed() {
        let counters = Arc::new(SocketCounters::new());
        let (mut first, second) = (Narrow::new(&counters), Narrow::new(&counters));
        let of_first = first.overfill(150, &counters);
        let of_second = second.overfill(100, &counters);
        assert!(of_first > 0 && of_second > 0);
        assert_eq!(counters.snapshot().dropped, of_first + of_second);

        // Another socket replaces the first one, as when a client's address changes.
        first = Narrow::new(&counters);
        assert_eq!(counters.snapshot().dropped, of_first + of_second);
        drop(second);
        assert_eq!(counters.snapshot().dropped, of_first + of_second);
        let of_third = first.overfill(120, &counters);
        assert!(of_third > 0);
        assert_eq!(counters.snapshot().dropped, of_first + of_second + of_third);
    }

    #[test]
    fn a_count_that_wraps_goes_on() {
        let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let overflow = Overflow::default();
        overflow.watch(&socket);
        let mut counts = overflow.counts();
        counts.sum = u64::from(u32::MAX - 4);
        counts.sockets[0].seen = u32::MAX - 4;
        drop(counts);
        assert_eq!(overflow.sum(), 1 << 32);
    }
}
