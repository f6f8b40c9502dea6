//! Connections between hosts and the exit, each with two queues. Each queue keeps its order. There is no order between queues.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::exit_model::ExitModel;
use crate::client::ConnectionEnd;
use crate::{HANDSHAKE_TIMEOUT, PublicKey};

/// A packet in flight.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Packet {
    Connected,
    Bytes(Vec<u8>),
    Closed(ConnectionEnd),
}

/// One QUIC connection. Nothing is delivered to a side that is gone.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pub(super) key: PublicKey,
    /// The host at the client's end, and the connection's index there. `None` for strangers and restarted hosts.
    pub(super) owner: Option<(usize, u32)>,
    /// The host that began the connection. `None` for strangers.
    pub(super) dialler: Option<usize>,
    pub(super) to_exit: VecDeque<Packet>,
    pub(super) to_client: VecDeque<Packet>,
    /// Whether the exit knows the connection, and does not know yet that it has ended.
    pub(super) exit_has_it: bool,
    /// Whether the exit has closed the connection or crashed.
    pub(super) exit_is_done: bool,
    /// Whether the path drops all packets while neither side is told.
    pub(super) is_silent: bool,
    /// Whether the peer is a forger, whose connection must never be attached.
    pub(super) is_forger: bool,
    /// When the exit learned of the connection.
    pub(super) connected: Option<Instant>,
}

/// All connections, keyed by number.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) wires: BTreeMap<u64, Wire>,
    next: u64,
}

impl Network {
    pub(super) fn dial(&mut self, key: PublicKey, owner: Option<(usize, u32)>) -> u64 {
        let number = self.next;
        self.next += 1;
        let wire = Wire {
            key,
            owner,
            dialler: owner.map(|(host, _)| host),
            to_exit: [Packet::Connected].into(),
            to_client: VecDeque::new(),
            exit_has_it: false,
            exit_is_done: false,
            is_silent: false,
            is_forger: false,
            connected: None,
        };
        self.wires.insert(number, wire);
        number
    }

    pub(super) fn wire(&mut self, number: u64) -> &mut Wire {
        self.wires.get_mut(&number).expect("a wire stays until both sides are done")
    }

    /// Every queue with packets: the wire, and whether the queue leads to the exit.
    pub(super) fn pending(&self) -> Vec<(u64, bool)> {
        let queues = self.wires.iter().filter(|(_, wire)| !wire.is_silent).flat_map(|(&number, wire)| {
            [(number, true, wire.to_exit.is_empty()), (number, false, wire.to_client.is_empty())]
        });
        queues.filter(|(.., is_empty)| !is_empty).map(|(number, to_exit, _)| (number, to_exit)).collect()
    }

    /// Whether the exit has a connection on which a key was proven.
    pub(super) fn has_shown(&self, key: PublicKey) -> bool {
        self.wires.values().any(|wire| wire.exit_has_it && wire.key == key)
    }

    /// Checks that no connection waits for its first message longer than allowed.
    pub(super) fn check_patience(&self, now: Instant, exit: &ExitModel) {
        for (number, wire) in self.wires.iter().filter(|(_, wire)| wire.exit_has_it) {
            let is_late = wire.connected.is_some_and(|connected| now >= connected + HANDSHAKE_TIMEOUT);
            assert!(!is_late || exit.ever_attached.contains(number), "it may say something for ever");
        }
    }

    /// Forgets connections that neither side has.
    pub(super) fn sweep(&mut self) {
        self.wires.retain(|_, wire| wire.owner.is_some() || wire.exit_has_it || !wire.to_exit.is_empty());
    }
}

impl Wire {
    /// Sends in two pieces, so that decoders see parts of messages.
    pub(super) fn send(queue: &mut VecDeque<Packet>, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        queue.extend([first, second].map(|piece| Packet::Bytes(piece.to_vec())));
    }
}
