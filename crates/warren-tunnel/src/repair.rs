//! The sender's half of repair. It numbers and keeps datagrams while the path loses some, and sends lost ones again.
//!
//! Repair is for random loss. A budget limits how many bytes are sent again. A path that loses too much gets no repair. Lost
//! datagrams of flows that need order are sent again twice at most, the others once and only while they are fresh.

mod budget;
mod planted;
mod watch;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{
    Datagram, Lane, NOTHING_BELOW_LEN, Number, Numbering, Place, append_trailer, write_nothing_below,
};
use warren_quic::driver::{LossCounts, LostDatagram};

use self::budget::Budget;
use self::planted::{Bug, is_planted};
use self::watch::LossWatch;

/// How often a lost datagram of an ordered lane is sent again at most, not counting the extra copy.
// There are no parity packets. They would help only if many calls at once used a long path with purely random
// loss (bench/LOG.md, "Parity for real-time traffic, by calculation").
const ORDERED_ROUNDS: u8 = 2;
/// A lost datagram of the unordered lane is sent again once, if it was first sent less than this long ago. After that, a call has
/// no use for it.
const FRESH: Duration = Duration::from_millis(400);
/// A copy of the last repair follows after this time, because nothing else makes up for its loss. A burst of losses is
/// over by then.
const COPY_AFTER: Duration = Duration::from_millis(3);

/// A datagram for the transport.
pub(crate) struct Outgoing {
    pub datagram: Bytes,
    /// The context that the transport returns if the datagram is lost. `None` if the datagram need not be kept.
    pub context: Option<u64>,
}

/// How many lost datagrams were sent again, and how many were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepairCounts {
    /// How often a lost datagram was sent again. The extra copy that follows the last attempt does not count.
    pub repaired: u64,
    /// Lost datagrams that were not sent again, because their rounds or the budget were used up or they were too old.
    pub given_up: u64,
}

/// Repair of one connection's datagrams.
#[derive(Default)]
pub(crate) struct Repair {
    /// Whether the peer puts numbered datagrams in order.
    pub is_agreed: bool,
    watch: LossWatch,
    budget: Budget,
    /// The next number of each lane. Empty before the first one.
    next: Vec<Number>,
    /// Datagrams to send before all others.
    urgent: VecDeque<Outgoing>,
    /// Copies to send later, the earliest first.
    copies: VecDeque<(Instant, Outgoing)>,
    pub counts: RepairCounts,
}

impl Repair {
    /// Records the path's losses so far.
    pub(crate) fn observe(&mut self, counts: &LossCounts, now: Instant) {
        self.watch.observe(counts, now);
        self.budget.set_share(self.watch.loss().share());
    }

    /// The share of packets that the path loses, from 0 to 1.
    pub(crate) fn loss(&self) -> f64 {
        self.watch.loss().share()
    }

    /// Whether datagrams are numbered and kept now.
    pub(crate) fn is_on(&self) -> bool {
        (self.is_agreed || is_planted(Bug::OldPeerNumbered)) && self.watch.needs_numbers()
    }

    /// Makes a framed packet or fragment ready for the transport: numbers it while repair is on.
    pub(crate) fn prepare(&mut self, mut framed: BytesMut, lane: impl FnOnce(&[u8]) -> Lane) -> Outgoing {
        // Done even while repair is off, so that the first losses find a budget.
        self.budget.earn(framed.len());
        if !self.is_on() {
            return Outgoing { datagram: framed.freeze(), context: None };
        }
        let lane = lane(&framed);
        if self.next.is_empty() {
            self.next.resize(Lane::COUNT, Number::ZERO);
        }
        // `get_mut` always finds an entry, because a lane's index is below `Lane::COUNT`.
        let Some(next) = self.next.get_mut(lane.index()) else {
            return Outgoing { datagram: framed.freeze(), context: None };
        };
        let place = Place { lane, number: *next };
        let is_reused = is_planted(Bug::NumberReused) && place.number.value() % 100 == 99;
        *next = next.plus(u32::from(!is_reused));
        append_trailer(&mut framed, place);
        let kept = Kept { place, rounds: 0, has_copy: false };
        Outgoing { datagram: framed.freeze(), context: Some(kept.to_context()) }
    }

    /// Takes back the number of a datagram that the transport refused, if it is the latest number of its lane.
    pub(crate) fn take_back(&mut self, datagram: &mut Bytes) {
        if let Ok(Numbering::Numbered(place)) = Numbering::cut(datagram)
            && let Some(next) = self.next.get_mut(place.lane.index())
            // If a later number is already in use, taking this one back would use that number twice.
            && *next == place.number.plus(1)
            && !is_planted(Bug::NumberNotTakenBack)
        {
            *next = place.number;
        }
    }

    /// Gives up a datagram that no longer fits the path.
    pub(crate) fn refused(&mut self, mut datagram: Bytes) {
        if let Ok(Numbering::Numbered(place)) = Numbering::cut(&mut datagram) {
            self.give_up(place);
        }
    }

    /// Handles a kept datagram that the transport lost.
    pub(crate) fn take_lost(&mut self, lost: LostDatagram, now: Instant) {
        let Some(kept) = Kept::of(lost.context) else { return };
        // The copy of this repair may have arrived. If the copy is lost too, its own context gives the datagram up.
        if kept.has_copy {
            return;
        }
        let is_ordered = kept.place.lane.is_ordered();
        let rounds = if is_ordered { ORDERED_ROUNDS } else { 1 };
        let is_fresh =
            is_ordered || now.saturating_duration_since(lost.sent) < FRESH || is_planted(Bug::StaleRepaired);
        let is_last = kept.rounds + 1 == rounds;
        let has_copy = is_ordered && is_last && !is_planted(Bug::CopyNeverSent);
        // The copy leaves whether or not its repair arrives, so both are paid for.
        let is_charged = has_copy && !is_planted(Bug::CopyFree);
        let cost = if is_charged { 2 * lost.data.len() } else { lost.data.len() };
        let has_rounds = kept.rounds < rounds || is_planted(Bug::RoundsIgnored);
        if !has_rounds || !is_fresh || !self.budget.spend(cost) {
            self.give_up(kept.place);
            return;
        }
        self.counts.repaired += 1;
        let context = |has_copy| Kept { rounds: kept.rounds + 1, has_copy, ..kept }.to_context();
        if has_copy {
            let copy = Outgoing { datagram: lost.data.clone(), context: Some(context(false)) };
            self.copies.push_back((now + COPY_AFTER, copy));
        }
        self.urgent.push_back(Outgoing { datagram: lost.data, context: Some(context(has_copy)) });
    }

    /// Tells the peer not to wait for a datagram.
    fn give_up(&mut self, place: Place) {
        self.counts.given_up += 1;
        // In the unordered lane nothing waits, so the peer need not know.
        if place.lane.is_ordered() && !is_planted(Bug::GivenUpUntold) {
            let steps = if is_planted(Bug::GivenUpTooFar) { 2 } else { 1 };
            let next = Place { number: place.number.plus(steps), ..place };
            let mut datagram = BytesMut::with_capacity(NOTHING_BELOW_LEN);
            write_nothing_below(next, &mut datagram);
            // The notice is not kept: if it is lost, the receiver's deadline has the same effect a little later.
            self.urgent.push_back(Outgoing { datagram: datagram.freeze(), context: None });
        }
    }

    /// Takes the next datagram that goes before all others.
    pub(crate) fn next_urgent(&mut self, now: Instant) -> Option<Outgoing> {
        if self.copies.front().is_some_and(|(due, _)| *due <= now) {
            return self.copies.pop_front().map(|(_, copy)| copy);
        }
        self.urgent.pop_front()
    }

    /// Returns a datagram that the transport had no room for.
    pub(crate) fn put_back(&mut self, outgoing: Outgoing) {
        if !is_planted(Bug::NotPutBack) {
            self.urgent.push_front(outgoing);
        }
    }

    /// Whether a datagram must go before all others.
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        !self.urgent.is_empty() || self.copies.front().is_some_and(|(due, _)| *due <= now)
    }

    /// When the next copy is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.copies.front().map(|(due, _)| *due)
    }

    /// Forgets the datagrams that wait to be sent again, because the connection sends nothing more.
    pub(crate) fn abandon(&mut self) {
        self.urgent.clear();
        self.copies.clear();
    }
}

/// The lane of a framed packet.
pub(crate) fn lane_of(framed: &[u8]) -> Lane {
    match Datagram::parse(framed) {
        Ok(Datagram::Packet { packet, .. }) => Lane::of_packet(packet),
        _ => Lane::UNORDERED,
    }
}

/// The context of a kept datagram: its place in bits 0 to 31, the number of repairs in bits 32 to 39, and in bit 40
/// whether a copy of this repair follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    place: Place,
    rounds: u8,
    has_copy: bool,
}

impl Kept {
    fn to_context(self) -> u64 {
        let Self { place: Place { lane, number }, rounds, has_copy } = self;
        u64::from(has_copy) << 40
            | u64::from(rounds) << 32
            | (lane.index() as u64) << 26
            | u64::from(number.value())
    }

    fn of(context: u64) -> Option<Self> {
        // The lane is in bits 26 to 31. `Number::new` takes the low 26 bits.
        let [_, _, copy, rounds, place @ ..] = context.to_be_bytes();
        let place = u32::from_be_bytes(place);
        let lane = Lane::new(u8::try_from(place >> 26).ok()?)?;
        Some(Self { place: Place { lane, number: Number::new(place) }, rounds, has_copy: copy != 0 })
    }
}

#[cfg(test)]
mod tests;
