//! A model of the transport and the path. It loses, delays and reorders datagrams, and has a rate and a queue. It returns the
//! datagrams that it considers lost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_quic::driver::{LossCounts, LostDatagram};
use warren_simulation::Random;

use crate::repair::Outgoing;

/// Time that the acknowledgement of a packet may take beyond 9/8 of a round trip.
const ACK_DELAY: Duration = Duration::from_millis(6);
/// Time until the transport returns a datagram that was lost in a black-out. No acknowledgement shows the loss earlier.
const PROBE: Duration = Duration::from_millis(500);

/// What a path does to packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    pub loss_per_mille: u64,
    /// How many of a thousand packets arrive late, and by how much.
    pub late_per_mille: u64,
    pub late_by: Duration,
    /// The time for one way, without waiting in the queue.
    pub delay: Duration,
    pub bytes_per_second: u32,
    /// How long a packet may wait for the link.
    pub queue: Duration,
    pub is_black: bool,
}

/// Something that happens to a packet later.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Arrived(Bytes),
    /// The datagram of a packet that was declared lost. `None` for one that was not kept.
    Lost(Option<(Bytes, u64)>, Instant),
    /// A packet that was declared lost is acknowledged after all.
    Late,
}

pub(super) struct Path {
    pub traits: Traits,
    /// The counts that a transport would report.
    pub counts: LossCounts,
    random: Random,
    /// When the link has sent everything that waits for it.
    free: Instant,
    news: BinaryHeap<Reverse<Entry>>,
    told: u64,
}

/// News, ordered by time and then by their number.
struct Entry(Instant, u64, News);

impl Path {
    pub(super) fn new(traits: Traits, random: Random, now: Instant) -> Self {
        let counts = LossCounts { rtt: 2 * traits.delay, ..LossCounts::default() };
        Self { traits, counts, random, free: now, news: BinaryHeap::new(), told: 0 }
    }

    /// Sends a datagram in a packet of its own.
    pub(super) fn send(&mut self, now: Instant, outgoing: &Outgoing) {
        self.counts.sent_packets += 1;
        let kept = outgoing.context.map(|context| (outgoing.datagram.clone(), context));
        let mut declared_lost = now + self.counts.rtt / 8 * 9 + ACK_DELAY;
        let Some(arrival) = self.arrival(now, outgoing.datagram.len()) else {
            if self.traits.is_black {
                declared_lost += PROBE;
            }
            self.tell(declared_lost, News::Lost(kept, now));
            return;
        };
        let round_trip = arrival + self.traits.delay - now;
        self.counts.rtt = (7 * self.counts.rtt + round_trip) / 8;
        self.tell(arrival, News::Arrived(outgoing.datagram.clone()));
        if now + round_trip > declared_lost {
            self.tell(declared_lost, News::Lost(kept, now));
            self.tell(now + round_trip, News::Late);
        }
    }

    /// Takes the next news that is due.
    pub(super) fn next(&mut self, now: Instant) -> Option<News> {
        if self.news.peek().is_none_or(|Reverse(Entry(time, ..))| *time > now) {
            return None;
        }
        let Reverse(Entry(_, _, news)) = self.news.pop()?;
        match &news {
            News::Lost(..) => self.counts.lost_packets += 1,
            News::Late => self.counts.spurious_losses += 1,
            News::Arrived(_) => {}
        }
        Some(news)
    }

    /// When a packet arrives, unless it is lost.
    fn arrival(&mut self, now: Instant, length: usize) -> Option<Instant> {
        let Traits { loss_per_mille, late_per_mille, late_by, delay, bytes_per_second, queue, is_black } =
            self.traits;
        let starts = self.free.max(now);
        if is_black || self.random.below(1_000) < loss_per_mille || starts - now > queue {
            return None;
        }
        self.free = starts + Duration::from_secs(1) * u32::try_from(length).unwrap() / bytes_per_second;
        let is_late = self.random.below(1_000) < late_per_mille;
        Some(self.free + delay + if is_late { late_by } else { Duration::ZERO })
    }

    fn tell(&mut self, at: Instant, news: News) {
        self.told += 1;
        self.news.push(Reverse(Entry(at, self.told, news)));
    }
}

impl News {
    /// The datagram as the transport returns it.
    pub(super) fn lost(kept: (Bytes, u64), sent: Instant) -> LostDatagram {
        let (data, context) = kept;
        LostDatagram { data, context, sent }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Entry {}
