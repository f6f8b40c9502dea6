//! What came from the carrier and waits for a TUN device that is slow, by the connection that brought it.
//!
//! All connections of a worker share its sockets, and what a full socket has no room for the kernel drops, whoever sent it. A
//! worker that is behind reads ahead instead. Here each connection has room of its own, so that who brings too much pushes out
//! its own oldest datagrams and nobody else's, and each has its turn.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use warren_quic::driver::ConnectionId;

/// Bytes that one connection may keep here, as many as may wait for it the other way.
const LIMIT: usize = 512 * 1024;
/// What a datagram costs beside its bytes: its place and the allocator's.
const OVERHEAD: usize = 64;
/// Datagrams of one connection that are taken before it is another's turn.
const TURN: usize = 32;

/// Datagrams that wait, in the order in which each connection brought them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lines: HashMap<ConnectionId, Line>,
    /// The connections that have a line, the next first.
    turns: VecDeque<ConnectionId>,
}

#[derive(Debug, Default)]
struct Line {
    datagrams: VecDeque<Bytes>,
    bytes: usize,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Keeps a copy of a datagram, which lies in a receive buffer that it would keep whole. Returns how many older ones of its
    /// connection were dropped for it.
    pub(crate) fn push(&mut self, connection: ConnectionId, datagram: &[u8]) -> u64 {
        let line = self.lines.entry(connection).or_insert_with(|| {
            self.turns.push_back(connection);
            Line::default()
        });
        let mut dropped = 0;
        while line.bytes + datagram.len() + OVERHEAD > LIMIT && line.pop().is_some() {
            dropped += 1;
        }
        line.bytes += datagram.len() + OVERHEAD;
        line.datagrams.push_back(Bytes::copy_from_slice(datagram));
        dropped
    }

    /// Moves one turn's datagrams of the next connection to `served`, and returns which connection that is.
    pub(crate) fn serve(&mut self, served: &mut Vec<Bytes>) -> Option<ConnectionId> {
        let connection = self.turns.pop_front()?;
        let line = self.lines.get_mut(&connection)?;
        served.extend(std::iter::from_fn(|| line.pop()).take(TURN));
        if line.datagrams.is_empty() {
            self.lines.remove(&connection);
        } else {
            self.turns.push_back(connection);
        }
        Some(connection)
    }

    /// Forgets what a connection brought that is no more. Returns how many datagrams that were.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> u64 {
        let Some(line) = self.lines.remove(&connection) else { return 0 };
        self.turns.retain(|of| *of != connection);
        line.datagrams.len() as u64
    }
}

impl Line {
    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.datagrams.pop_front()?;
        self.bytes -= datagram.len() + OVERHEAD;
        Some(datagram)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOUD: ConnectionId = ConnectionId(1);
    const QUIET: ConnectionId = ConnectionId(2);

    fn served(backlog: &mut Backlog) -> (ConnectionId, Vec<Bytes>) {
        let mut served = Vec::new();
        (backlog.serve(&mut served).unwrap(), served)
    }

    #[test]
    fn who_brings_too_much_loses_its_own_oldest_datagrams() {
        let mut backlog = Backlog::default();
        assert_eq!(backlog.push(QUIET, b"first"), 0);
        let dropped: u64 = (0..1_000_u32)
            .map(|number| backlog.push(LOUD, &[&number.to_be_bytes()[..], &[0; 996]].concat()))
            .sum();
        let room = (LIMIT / (1_000 + OVERHEAD)) as u64;
        assert_eq!(dropped, 1_000 - room);
        assert_eq!(served(&mut backlog), (QUIET, vec![Bytes::from_static(b"first")]));
        let (connection, datagrams) = served(&mut backlog);
        assert_eq!(connection, LOUD);
        assert_eq!(u64::from(u32::from_be_bytes(datagrams[0][..4].try_into().unwrap())), dropped);
        assert_eq!(backlog.forget(LOUD), room - TURN as u64);
        assert!(backlog.is_empty() && backlog.lines.is_empty());
    }

    #[test]
    fn each_has_its_turn_however_long_its_line_is() {
        let mut backlog = Backlog::default();
        for _ in 0..10 * TURN {
            backlog.push(LOUD, b"loud");
        }
        backlog.push(QUIET, b"quiet");
        assert_eq!(served(&mut backlog).0, LOUD);
        assert_eq!(served(&mut backlog), (QUIET, vec![Bytes::from_static(b"quiet")]));
        let (connection, datagrams) = served(&mut backlog);
        assert_eq!((connection, datagrams.len()), (LOUD, TURN));
    }

    proptest! {
        /// Whatever comes, goes and ends in whatever order: each datagram is served once, in its connection's order, or is
        /// counted.
        #[test]
        fn property_every_datagram_is_served_in_order_or_counted(
            steps in prop::collection::vec((0_u64..3, 0_usize..80_000, 0_u8..8), 0..200),
        ) {
            let mut backlog = Backlog::default();
            let (mut pushed, mut counted, mut number) = (0, 0, 0_u64);
            let mut last = [None; 3];
            let mut check = |connection: ConnectionId, datagrams: Vec<Bytes>| {
                let last = &mut last[usize::try_from(connection.0).unwrap()];
                for datagram in &datagrams {
                    let number = u64::from_be_bytes(datagram[..8].try_into().unwrap());
                    assert!(*last < Some(number));
                    *last = Some(number);
                }
                datagrams.len() as u64
            };
            for (connection, length, what) in steps {
                match what {
                    0 => counted += backlog.forget(ConnectionId(connection)),
                    1 if !backlog.is_empty() => {
                        let (of, datagrams) = served(&mut backlog);
                        counted += check(of, datagrams);
                    }
                    _ => {
                        let mut datagram = number.to_be_bytes().to_vec();
                        datagram.resize(8 + length, 0);
                        counted += backlog.push(ConnectionId(connection), &datagram);
                        pushed += 1;
                        number += 1;
                    }
                }
                assert!(backlog.lines.values().all(|line| line.bytes <= LIMIT));
            }
            while !backlog.is_empty() {
                let (of, datagrams) = served(&mut backlog);
                counted += check(of, datagrams);
            }
            assert_eq!(pushed, counted);
        }
    }
}
