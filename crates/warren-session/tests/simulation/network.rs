//! Connections between hosts and the exit: two queues each, in order within, in any order between.

use std::collections::{BTreeMap, VecDeque};

use warren_session::PeerKey;
use warren_session::client::ConnectionEnd;

/// What is on its way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Packet {
    Connected,
    Bytes(Vec<u8>),
    Closed(ConnectionEnd),
}

/// One QUIC connection. A side that is gone gets nothing more.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) key: PeerKey,
    /// Who has the client's end, and at what index; `None` for strangers and hosts that were restarted.
    pub(crate) owner: Option<(usize, u32)>,
    /// Which host began it; `None` for strangers.
    pub(crate) dialler: Option<usize>,
    pub(crate) to_exit: VecDeque<Packet>,
    pub(crate) to_client: VecDeque<Packet>,
    /// Whether the exit has heard of it and not of its end.
    pub(crate) exit_has_it: bool,
    /// Whether the exit has ended it, or has died with it.
    pub(crate) exit_is_done: bool,
    /// Nothing gets through any more, and nobody is told.
    pub(crate) is_silent: bool,
}

/// All connections by number.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) wires: BTreeMap<u64, Wire>,
    next: u64,
}

impl Network {
    pub(crate) fn dial(&mut self, key: PeerKey, owner: Option<(usize, u32)>) -> u64 {
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
        };
        self.wires.insert(number, wire);
        number
    }

    pub(crate) fn wire(&mut self, number: u64) -> &mut Wire {
        self.wires.get_mut(&number).expect("a wire stays until both sides are done")
    }

    /// Every queue that holds something: the wire, and whether it leads to the exit.
    pub(crate) fn pending(&self) -> Vec<(u64, bool)> {
        let queues = self.wires.iter().filter(|(_, wire)| !wire.is_silent).flat_map(|(&number, wire)| {
            [(number, true, wire.to_exit.is_empty()), (number, false, wire.to_client.is_empty())]
        });
        queues.filter(|(.., is_empty)| !is_empty).map(|(number, to_exit, _)| (number, to_exit)).collect()
    }

    /// Forgets wires that neither side has.
    pub(crate) fn sweep(&mut self) {
        self.wires.retain(|_, wire| wire.owner.is_some() || wire.exit_has_it || !wire.to_exit.is_empty());
    }
}

impl Wire {
    /// Sends in two pieces, so that decoders see parts of messages.
    pub(crate) fn send(queue: &mut VecDeque<Packet>, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        queue.extend([first, second].map(|piece| Packet::Bytes(piece.to_vec())));
    }
}
