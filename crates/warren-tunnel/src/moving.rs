//! A client's move to another exit: which of its two sessions each packet takes during the move.
//!
//! The client has the same inner addresses at both exits, but the exits have other public addresses. So a flow that began at the
//! old exit must stay at the old exit. A TCP flow is new if its SYN came after the switch. A UDP flow is old if it had packets
//! between the start of the move and the switch. It becomes new when it pauses. All other packets, such as pings, take the new
//! session from the switch on.
//!
//! The workers and the control plane share one [`Moving`]. Its rules apply only while a move is under way.

mod flow_table;

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warren_packet::flow_step::FlowStep;
use warren_packet::ip::protocol;
use warren_packet::tuple::FiveTuple;
use warren_session::exit::SessionId;

use self::flow_table::FlowTable;

/// A UDP flow without a packet for this long counts as over. Its next packet takes the new session.
const UDP_PAUSE: Duration = Duration::from_secs(5);
/// How long a flow of the old session counts as under way after its latest packet.
const COUNTED_FOR: Duration = Duration::from_secs(15);

/// A flow of the old session without a packet for this long loses its slot if no other slot is free. An old TCP flow
/// needs its slot only to be counted, and to distinguish a copied SYN from a new one. An old UDP flow has paused by
/// then.
const OLD_IDLE: Duration = Duration::from_secs(60);
/// Like [`OLD_IDLE`], for a TCP flow of the new session. A flow that has lost its slot is treated as an old one.
const NEW_IDLE: Duration = Duration::from_secs(300);

/// A move from one session to another.
#[derive(Debug)]
pub struct Moving {
    begun: Instant,
    old: SessionId,
    /// The new session, and the echo requests that prove that it carries packets.
    new: OnceLock<(SessionId, Option<Echo>)>,
    has_switched: AtomicBool,
    /// Flows that stay with the old session.
    old_flows: FlowTable,
    /// TCP flows of the new session.
    new_flows: FlowTable,
    /// TCP flows that found the table full.
    without_room: AtomicU64,
}

/// Echo requests of one program to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// The destination of the echo requests.
    pub destination: IpAddr,
    /// The identifier in the echo requests.
    pub identifier: u16,
}

/// The sessions of a packet: the right one, and the one that takes the packet while the right one has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) right: SessionId,
    pub(crate) other: Option<SessionId>,
}

impl Moving {
    /// Begins a move away from a session. Until [`Self::switch`], every packet takes that session.
    pub fn begin(old: SessionId, now: Instant) -> Self {
        Self {
            begun: now,
            old,
            new: OnceLock::new(),
            has_switched: AtomicBool::new(false),
            old_flows: FlowTable::new(milliseconds(OLD_IDLE)),
            new_flows: FlowTable::new(milliseconds(NEW_IDLE)),
            without_room: AtomicU64::new(0),
        }
    }

    /// Names the new session. Before the switch, only the echo requests take the new session. Later calls change nothing.
    pub fn prove(&self, new: SessionId, echo: Option<Echo>) {
        let _ = self.new.set((new, echo));
    }

    /// Lets new flows take the new session.
    pub fn switch(&self) {
        self.has_switched.store(true, Ordering::Release);
    }

    /// Number of flows that are under way at the old session.
    pub fn flows_at_old(&self, now: Instant) -> usize {
        let since = self.milliseconds(now).saturating_sub(milliseconds(COUNTED_FOR));
        // Slots that were never used have the time 0.
        self.old_flows.count_since(since.max(1))
    }

    /// Number of TCP flows that began after the switch and use the old session, because the table of new flows was full.
    pub fn without_room(&self) -> u64 {
        self.without_room.load(Ordering::Relaxed)
    }

    /// The session of packets from a connection that has not been attached yet.
    pub(crate) fn newest(&self) -> SessionId {
        self.new.get().map_or(self.old, |(new, _)| *new)
    }

    /// The session of a packet from the TUN.
    pub(crate) fn choose(&self, flow: &FiveTuple, step: FlowStep, now: Instant) -> Choice {
        let Some((new, echo)) = self.new.get().copied() else {
            self.note_before(flow, step, now);
            return Choice { right: self.old, other: None };
        };
        let is_new = match self.has_switched.load(Ordering::Acquire) {
            true => self.is_new(flow, step, now),
            false => {
                let is_of_move = is_echo(flow, echo) || self.new_flows.seen(flow).is_some();
                if !is_of_move {
                    self.note_before(flow, step, now);
                }
                is_of_move
            }
        };
        let (right, other) = if is_new { (new, self.old) } else { (self.old, new) };
        Choice { right, other: Some(other) }
    }

    /// Records a packet from an exit. A flow that begins at an exit must be answered through the same exit.
    pub(crate) fn received(&self, session: SessionId, packet: &FiveTuple, step: FlowStep, now: Instant) {
        let (flow, at) = (packet.reversed(), self.milliseconds(now));
        let is_tcp = flow.protocol == protocol::TCP;
        if session != self.old {
            let has_begun = match is_tcp {
                true => step == FlowStep::Opens,
                // After the switch, every UDP flow that is not old counts as new. So it is not recorded.
                false => flow.protocol == protocol::UDP && !self.has_switched.load(Ordering::Acquire),
            };
            if has_begun && self.old_flows.seen(&flow).is_none() {
                self.note_new(&flow, at);
            } else if is_tcp {
                self.see_new(&flow, step, at);
            }
        } else if step == FlowStep::Ends {
            self.old_flows.end(&flow);
        } else if step == FlowStep::Opens || flow.protocol == protocol::UDP {
            self.old_flows.note(&flow, at);
        }
    }

    /// Records a packet before the switch: its flow stays with the old session.
    fn note_before(&self, flow: &FiveTuple, step: FlowStep, now: Instant) {
        match flow.protocol {
            protocol::TCP if step == FlowStep::Ends => self.old_flows.end(flow),
            // If the table is full, a TCP flow counts as old anyway, but a UDP flow moves to the new session.
            protocol::TCP | protocol::UDP => {
                self.old_flows.note(flow, self.milliseconds(now));
            }
            _ => {}
        }
    }

    /// Whether a packet takes the new session after the switch.
    fn is_new(&self, flow: &FiveTuple, step: FlowStep, now: Instant) -> bool {
        let at = self.milliseconds(now);
        match (flow.protocol, step) {
            (protocol::TCP, step) if self.see_new(flow, step, at) => true,
            // A copy of a SYN from before the switch is not a new flow.
            (protocol::TCP, FlowStep::Opens) if self.old_flows.seen(flow).is_none() => {
                self.note_new(flow, at)
            }
            (protocol::TCP, FlowStep::Ends) => {
                self.old_flows.end(flow);
                false
            }
            (protocol::TCP, _) => {
                self.old_flows.note(flow, at);
                false
            }
            (protocol::UDP, _) => {
                let seen = self.old_flows.seen(flow);
                let goes_on = seen.is_some_and(|seen| at.saturating_sub(seen) < milliseconds(UDP_PAUSE));
                if goes_on {
                    self.old_flows.note(flow, at);
                }
                !goes_on
            }
            _ => true,
        }
    }

    /// Records a flow of the new session. If there is no room, the flow's later packets could not be distinguished from those of
    /// old flows. So the whole flow takes the old session.
    fn note_new(&self, flow: &FiveTuple, at: u32) -> bool {
        let has_room = self.new_flows.note(flow, at);
        if !has_room {
            self.without_room.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Records a packet, if its flow belongs to the new session. Returns whether it does.
    fn see_new(&self, flow: &FiveTuple, step: FlowStep, at: u32) -> bool {
        let is_known = self.new_flows.see(flow, at);
        if is_known && step == FlowStep::Ends {
            self.new_flows.end(flow);
        }
        is_known
    }

    /// Milliseconds since the move began, at least 1.
    fn milliseconds(&self, now: Instant) -> u32 {
        milliseconds(now.saturating_duration_since(self.begun)).max(1)
    }
}

fn is_echo(flow: &FiveTuple, echo: Option<Echo>) -> bool {
    let is_icmp = matches!(flow.protocol, protocol::ICMP | protocol::ICMPV6);
    is_icmp && echo == Some(Echo { destination: flow.destination, identifier: flow.source_port })
}

fn milliseconds(duration: Duration) -> u32 {
    // The highest bit marks an ended flow.
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).min(u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: SessionId = SessionId(1);
    const NEW: SessionId = SessionId(2);
    const TCP: u8 = protocol::TCP;
    const UDP: u8 = protocol::UDP;

    fn flow(protocol: u8, port: u16) -> FiveTuple {
        FiveTuple {
            source: "10.66.0.2".parse().unwrap(),
            destination: "203.0.113.7".parse().unwrap(),
            protocol,
            source_port: port,
            destination_port: if protocol == protocol::ICMP { port } else { 443 },
        }
    }

    /// A move, and its steps at given seconds.
    struct Test {
        moving: Moving,
        start: Instant,
    }

    impl Test {
        fn new() -> Self {
            let start = Instant::now();
            Self { moving: Moving::begin(OLD, start), start }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn send(&self, seconds: u64, protocol: u8, port: u16, step: FlowStep) -> SessionId {
            self.moving.choose(&flow(protocol, port), step, self.at(seconds)).right
        }

        fn receive(&self, seconds: u64, session: SessionId, protocol: u8, port: u16, step: FlowStep) {
            self.moving.received(session, &flow(protocol, port).reversed(), step, self.at(seconds));
        }

        fn switch(&self) {
            self.moving.prove(NEW, None);
            self.moving.switch();
        }
    }

    #[test]
    fn tcp_flows_stay_where_their_syn_went() {
        let test = Test::new();
        assert_eq!(test.send(0, TCP, 1, FlowStep::Opens), OLD);
        test.switch();

        assert_eq!(test.send(1, TCP, 1, FlowStep::Continues), OLD);
        assert_eq!(test.send(1, TCP, 1, FlowStep::Opens), OLD, "a copy of the SYN");
        assert_eq!(test.send(1, TCP, 2, FlowStep::Continues), OLD, "silent since before the move");
        assert_eq!(test.send(1, TCP, 3, FlowStep::Opens), NEW);
        assert_eq!(test.send(2, TCP, 3, FlowStep::Continues), NEW);
        assert_eq!(test.send(2, TCP, 3, FlowStep::Ends), NEW);
        assert_eq!(test.send(2, TCP, 1, FlowStep::Ends), OLD);
    }

    #[test]
    fn udp_flows_from_before_the_switch_stay_while_they_go_on_and_pings_move() {
        let test = Test::new();
        assert_eq!(test.send(0, UDP, 1, FlowStep::Unknown), OLD);
        assert_eq!(test.send(0, UDP, 2, FlowStep::Unknown), OLD);
        assert_eq!(test.send(0, protocol::ICMP, 9, FlowStep::Unknown), OLD);
        test.switch();

        for second in 1..9 {
            assert_eq!(test.send(second, UDP, 1, FlowStep::Unknown), OLD);
        }
        assert_eq!(test.send(8, UDP, 2, FlowStep::Unknown), NEW, "it has paused");
        assert_eq!(test.send(9, UDP, 2, FlowStep::Unknown), NEW);
        assert_eq!(test.send(1, UDP, 3, FlowStep::Unknown), NEW);
        assert_eq!(test.send(1, protocol::ICMP, 9, FlowStep::Unknown), NEW);
    }

    #[test]
    fn before_the_switch_only_the_proving_echo_takes_the_new_session() {
        let test = Test::new();
        let echo = Echo { destination: "203.0.113.7".parse().unwrap(), identifier: 7 };
        assert_eq!(test.send(0, protocol::ICMP, 7, FlowStep::Unknown), OLD, "there is no new session");
        test.moving.prove(NEW, Some(echo));

        assert_eq!(test.send(0, protocol::ICMP, 7, FlowStep::Unknown), NEW);
        assert_eq!(test.send(0, protocol::ICMP, 8, FlowStep::Unknown), OLD);
        assert_eq!(test.send(0, TCP, 7, FlowStep::Opens), OLD);
    }

    #[test]
    fn flows_that_begin_at_an_exit_are_answered_there() {
        let test = Test::new();
        test.moving.prove(NEW, None);
        test.receive(0, NEW, TCP, 22, FlowStep::Opens);
        test.receive(0, NEW, UDP, 53, FlowStep::Unknown);
        assert_eq!(test.send(0, TCP, 22, FlowStep::Continues), NEW);
        assert_eq!(test.send(0, UDP, 53, FlowStep::Unknown), NEW);
        test.moving.switch();

        test.receive(1, OLD, TCP, 23, FlowStep::Opens);
        test.receive(1, OLD, UDP, 54, FlowStep::Unknown);
        test.receive(1, NEW, TCP, 24, FlowStep::Opens);
        assert_eq!(test.send(1, TCP, 23, FlowStep::Continues), OLD);
        assert_eq!(test.send(1, UDP, 54, FlowStep::Unknown), OLD);
        assert_eq!(test.send(1, TCP, 24, FlowStep::Continues), NEW);
    }

    #[test]
    fn flows_at_the_old_session_are_counted_until_they_end_or_fall_silent() {
        let test = Test::new();
        test.switch();
        (1..4).for_each(|port| assert_eq!(test.send(1, TCP, port, FlowStep::Continues), OLD));
        assert_eq!(test.moving.flows_at_old(test.at(2)), 3);
        test.send(2, TCP, 1, FlowStep::Ends);
        test.receive(2, OLD, TCP, 2, FlowStep::Ends);
        test.send(2, TCP, 1, FlowStep::Continues);
        assert_eq!(test.moving.flows_at_old(test.at(2)), 1);
        assert_eq!(test.moving.flows_at_old(test.at(20)), 0);
    }

    #[test]
    fn ten_minutes_of_short_flows_find_room() {
        let test = Test::new();
        test.switch();
        for number in 0..200_000_u32 {
            let source = std::net::Ipv4Addr::from(0x0a42_0000 + number);
            let flow = FiveTuple { source: source.into(), ..flow(TCP, 1) };
            let at = test.start + Duration::from_millis(u64::from(number) * 3);
            let right = |step| test.moving.choose(&flow, step, at).right;
            assert_eq!((right(FlowStep::Opens), right(FlowStep::Continues)), (NEW, NEW), "{number}");
            assert_eq!(right(FlowStep::Ends), NEW);
            test.moving.received(NEW, &flow.reversed(), FlowStep::Ends, at);
            assert_eq!(right(FlowStep::Continues), NEW, "the last acknowledgement");
        }
        assert_eq!(test.moving.without_room(), 0);
    }

    #[test]
    fn new_flows_without_room_stay_whole_with_the_old_session_and_are_counted() {
        let test = Test::new();
        test.switch();
        let mut flows = Vec::new();
        for number in 0..40_000_u32 {
            let source = std::net::Ipv4Addr::from(0x0a42_0000 | number);
            flows.push(FiveTuple { source: source.into(), ..flow(TCP, 1) });
        }
        let right = |flow: &FiveTuple, step| test.moving.choose(flow, step, test.at(1)).right;

        let first: Vec<SessionId> = flows.iter().map(|flow| right(flow, FlowStep::Opens)).collect();
        let later: Vec<SessionId> = flows.iter().map(|flow| right(flow, FlowStep::Continues)).collect();

        assert_eq!(first, later);
        let at_old = first.iter().filter(|session| **session == OLD).count();
        assert_eq!(at_old as u64, test.moving.without_room());
        assert!(at_old > 5_000, "{at_old}");
    }
}
