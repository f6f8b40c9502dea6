//! The wire: the datagrams under way, what the wire does to them, and what a stranger can do with the datagrams that
//! it saw.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use warren_simulation::Random;

use super::{EXIT, STRANGER, trace::Trace};

/// Longest datagram that passes.
const LIMIT: usize = 1_472;

/// A datagram under way, ordered by its arrival.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Underway {
    arrival: Instant,
    number: u64,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Wire {
    underway: BinaryHeap<Reverse<Underway>>,
    random: Random,
    sent: u64,
    lost_per_mille: u64,
    repeated_per_mille: u64,
    /// Maximum delay of a datagram compared with others, in milliseconds.
    jitter: u64,
    /// The narrowest link, to the exit and from it.
    bottleneck: Option<Bottleneck>,
    /// For each direction (to the exit, from the exit): when the bottleneck will have sent everything queued.
    free: [Instant; 2],
    /// Whether nothing that the exit sends arrives.
    pub(super) swallows_answers: bool,
    start: Instant,
    trace: Trace,
    /// Whether the stranger was sent something.
    answered_stranger: bool,
    /// First packets of clients since the exit started, which a stranger can repeat.
    initials: Vec<Vec<u8>>,
}

/// A link with a rate. When its queue is full, it drops datagrams.
struct Bottleneck {
    bytes_per_second: u32,
    /// The longest time that a datagram may wait.
    queue: Duration,
}

impl Bottleneck {
    fn new(random: &mut Random) -> Self {
        let bytes_per_second = u32::try_from(40_000 + random.below(1_000_000)).unwrap();
        Self { bytes_per_second, queue: Duration::from_millis(5 + random.below(100)) }
    }
}

impl Wire {
    pub(super) fn new(random: &mut Random, start: Instant, trace: Trace) -> Self {
        Self {
            underway: BinaryHeap::new(),
            sent: 0,
            lost_per_mille: random.below(150),
            repeated_per_mille: random.below(100),
            jitter: random.below(40),
            bottleneck: (!random.once_in(3)).then(|| Bottleneck::new(random)),
            free: [start; 2],
            swallows_answers: false,
            random: Random::new(random.draw()),
            start,
            trace,
            answered_stranger: false,
            initials: Vec::new(),
        }
    }

    /// From now on, the wire does not lose, repeat, delay or queue anything.
    pub(super) fn is_kind(&mut self) {
        (self.lost_per_mille, self.repeated_per_mille, self.jitter) = (0, 0, 0);
        self.bottleneck = None;
    }

    pub(super) fn send(&mut self, now: Instant, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.answered_stranger |= to == STRANGER;
        let time = u64::try_from(now.duration_since(self.start).as_nanos()).unwrap();
        self.trace.note([time, from.port().into(), to.port().into(), bytes.len() as u64]);
        if self.swallows_answers && from == EXIT {
            return;
        }
        if bytes.len() > LIMIT || self.random.below(1_000) < self.lost_per_mille {
            return;
        }
        let Some(leaves) = self.pass_bottleneck(now, to == EXIT, bytes.len()) else { return };
        let copies = 1 + u64::from(self.random.below(1_000) < self.repeated_per_mille);
        for _ in 0..copies {
            let delay = Duration::from_millis(10 + self.random.below(self.jitter + 1));
            self.sent += 1;
            let (arrival, number, bytes) = (leaves + delay, self.sent, bytes.to_vec());
            self.underway.push(Reverse(Underway { arrival, number, from, to, bytes }));
        }
    }

    /// When a datagram leaves the bottleneck; `None` if its queue is full.
    fn pass_bottleneck(&mut self, now: Instant, is_to_exit: bool, length: usize) -> Option<Instant> {
        let Some(Bottleneck { bytes_per_second, queue }) = self.bottleneck else { return Some(now) };
        let free = &mut self.free[usize::from(is_to_exit)];
        let starts = (*free).max(now);
        if starts - now > queue {
            return None;
        }
        *free = starts + Duration::from_secs(1) * u32::try_from(length).unwrap() / bytes_per_second;
        Some(*free)
    }

    pub(super) fn arrived(&mut self, now: Instant) -> Option<Underway> {
        let Reverse(first) = self.underway.peek()?;
        if first.arrival > now {
            return None;
        }
        let Reverse(first) = self.underway.pop()?;
        // Keeps only Initials that have arrived. If the exit had not seen the Initial, a stranger could be the first to use its
        // proof.
        if first.to == EXIT && first.bytes[0] & 0xf0 == 0xc0 && self.initials.len() < 64 {
            self.initials.push(first.bytes.clone());
        }
        Some(first)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.underway.peek().map(|Reverse(first)| first.arrival)
    }

    pub(super) fn answered_stranger(&self) -> bool {
        self.answered_stranger
    }

    /// A restarted exit does not know which proofs were used before, as its documentation says.
    pub(super) fn forget_initials(&mut self) {
        self.initials.clear();
    }

    /// What a stranger sends: random bytes, a version that does not exist, an Initial without a proof, and a copy of a
    /// client's Initial.
    pub(super) fn probes(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let mut noise = vec![0; 1_200];
        random.fill(&mut noise);
        noise[0] &= 0x7f;
        let mut version = noise.clone();
        version[..6].copy_from_slice(&[0xc0, 0xba, 0xba, 0xba, 0xba, 8]);
        let mut initial = noise.clone();
        initial[..6].copy_from_slice(&[0xc0, 0, 0, 0, 1, 20]);
        let mut probes = vec![noise, version, initial];
        if let Some(number) = self.initials.len().checked_sub(1) {
            let which = usize::try_from(random.below(number as u64 + 1)).unwrap();
            probes.extend(self.initials.get(which).cloned());
        }
        probes
    }
}
