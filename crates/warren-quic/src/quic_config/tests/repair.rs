//! What the fork reports about losses. Kept datagrams come back when their packets are lost. If a packet is found to be only
//! late, it no longer counts as lost.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::{collections::BTreeSet, ops::Range, time::Duration};

use bytes::Bytes;
use noq_proto::{KeptDatagramStats, LostDatagram, PathId, PathStats, VarInt};
use proptest::{collection::vec, prelude::*};

use super::world::{CLIENT, EXIT, FULL, World, settings};
use crate::settings::{Congestion, TransportSettings};

/// The round-trip time in these tests.
const RTT: Duration = Duration::from_millis(30);
/// The time that the acknowledgement of a packet may take beyond the round trip.
const ACK_DELAY: Duration = Duration::from_millis(6);
/// The time between two packets of FULL bytes at 140 Mbit/s.
const GAP: Duration = Duration::from_micros(80);

/// A client that sends kept datagrams.
struct Repair {
    world: World,
    /// The context of the next datagram.
    next: u64,
    /// The datagrams that came back, and how long after they were sent.
    returned: Vec<(LostDatagram, Duration)>,
}

impl Repair {
    fn new() -> Self {
        Self::with(&TransportSettings { congestion: Congestion::Off.into(), ..settings() })
    }

    fn with(settings: &TransportSettings) -> Self {
        let mut world = World::connected(settings);
        world.delay = RTT / 2;
        world.run(Duration::from_secs(2), Some(&[FULL]));
        world.run(Duration::from_millis(100), None);
        assert_eq!(world.heard(EXIT).len(), 0);
        Self { world, next: 0, returned: Vec::new() }
    }

    /// Queues a datagram with the next context, for the next step to send.
    fn send(&mut self, size: usize) {
        let data = content(self.next, size);
        self.world.quic(CLIENT).datagrams().send_kept(data, false, self.next).unwrap();
        self.next += 1;
    }

    fn send_all(&mut self, sizes: impl IntoIterator<Item = usize>) -> Range<u64> {
        let first = self.next;
        sizes.into_iter().for_each(|size| self.send(size));
        first..self.next
    }

    /// Sends at a steady rate.
    fn stream(&mut self, time: Duration) -> Range<u64> {
        let (first, end) = (self.next, self.world.now + time);
        while self.world.now < end {
            self.send(FULL);
            self.run(GAP);
        }
        first..self.next
    }

    fn run(&mut self, time: Duration) {
        let end = self.world.now + time;
        while self.world.now < end {
            self.step(end);
        }
    }

    /// Runs until nothing is kept any more.
    fn settle(&mut self) {
        let end = self.world.now + Duration::from_secs(30);
        while self.kept().bytes > 0 {
            assert!(self.world.now < end, "{} bytes are kept for ever", self.kept().bytes);
            self.step(end);
        }
    }

    fn step(&mut self, end: std::time::Instant) {
        self.world.step(None, end);
        while let Some(lost) = self.world.quic(CLIENT).poll_lost_datagram() {
            assert_eq!(lost.data, content(lost.context, lost.data.len()));
            let age = self.world.now - lost.sent;
            self.returned.push((lost, age));
        }
    }

    /// Loses everything that is sent while `meanwhile` runs.
    fn lose(&mut self, mut meanwhile: impl FnMut(&mut Self)) {
        let before = std::mem::replace(&mut self.world.loss_per_mille, 1_000);
        meanwhile(self);
        self.world.loss_per_mille = before;
    }

    /// The contexts of the datagrams that came back.
    fn contexts(&self) -> Vec<u64> {
        self.returned.iter().map(|(lost, _)| lost.context).collect()
    }

    fn heard(&mut self) -> BTreeSet<u64> {
        self.world.heard(EXIT).iter().map(|data| u64::from_be_bytes(data[..8].try_into().unwrap())).collect()
    }

    fn kept(&mut self) -> KeptDatagramStats {
        self.world.quic(CLIENT).stats().kept_datagrams
    }

    fn path(&mut self) -> PathStats {
        self.world.quic(CLIENT).path_stats(PathId::ZERO).unwrap()
    }
}

/// The datagram with this context.
fn content(context: u64, size: usize) -> Bytes {
    let mut data = vec![u8::try_from(context % 251).unwrap(); size.max(8)];
    data[..8].copy_from_slice(&context.to_be_bytes());
    data.into()
}

#[test]
fn lost_datagrams_come_back_once_and_acknowledged_ones_never() {
    let mut repair = Repair::new();
    repair.world.loss_per_mille = 20;
    let sent = repair.stream(Duration::from_secs(2));
    repair.world.loss_per_mille = 0;
    repair.settle();

    let (heard, contexts) = (repair.heard(), repair.contexts());
    let returned: BTreeSet<_> = contexts.iter().copied().collect();
    assert_eq!(returned.len(), contexts.len(), "one came back twice");
    assert_eq!(returned, sent.filter(|context| !heard.contains(context)).collect());
    assert!(returned.len() > 200, "{}", returned.len());
    assert_eq!(repair.kept().lost, returned.len() as u64);
    assert_eq!((repair.kept().forgotten, repair.kept().bytes), (0, 0));
}

#[test]
fn all_datagrams_of_a_packet_come_back() {
    let mut repair = Repair::new();
    let lost = repair.send_all([100; 30]);
    repair.lose(|repair| repair.run(Duration::from_micros(10)));
    let sent = repair.path().sent_packets;
    repair.run(Duration::from_millis(1));
    // The lost datagrams filled three packets. These datagrams bring the acknowledgement that shows the loss.
    repair.send_all([FULL; 40]);
    repair.run(RTT + ACK_DELAY);
    assert!(repair.path().sent_packets >= sent + 40);
    assert_eq!(repair.contexts(), lost.collect::<Vec<_>>());
    assert!(repair.path().lost_packets < 10);
    repair.settle();
    assert_eq!(repair.contexts().len(), 30);
}

#[test]
fn what_is_not_kept_does_not_come_back() {
    let mut repair = Repair::new();
    repair.lose(|repair| {
        repair.world.speak(CLIENT, &[FULL]);
        repair.run(Duration::from_millis(1));
    });
    repair.world.run(Duration::from_secs(1), Some(&[FULL]));
    repair.run(Duration::from_secs(1));
    assert!(repair.path().lost_packets > 0);
    assert_eq!(repair.contexts(), []);
    assert_eq!(repair.kept(), KeptDatagramStats::default());
}

#[test]
fn loss_probe_hands_out_the_two_oldest() {
    let mut repair = Repair::new();
    let sent = repair.send_all([FULL; 5]);
    repair.lose(|repair| {
        let end = repair.world.now + Duration::from_secs(1);
        while repair.returned.is_empty() {
            assert!(repair.world.now < end, "no probe");
            repair.step(end);
        }
    });
    // These two datagrams came back before any acknowledgement had shown a loss, because a loss probe was about to be sent.
    assert_eq!(repair.contexts(), [0, 1]);
    assert!(repair.returned[0].1 < 2 * RTT, "{:?}", repair.returned[0].1);
    assert_eq!(repair.path().lost_packets, 0);

    repair.settle();
    assert_eq!(repair.contexts(), sent.collect::<Vec<_>>(), "the others follow, and none comes twice");
    assert_eq!(repair.path().spurious_losses, 0);
}

#[test]
fn datagram_that_a_probe_handed_out_is_not_returned_again() {
    let mut repair = Repair::new();
    // The path falls silent for longer than a probe takes, and then delivers everything.
    repair.world.delay = 5 * RTT;
    let sent = repair.send_all([FULL; 4]);
    repair.run(Duration::from_secs(2));
    repair.settle();
    let returned = repair.contexts();
    assert!(returned.len() >= 2 && returned.is_sorted_by(|one, next| one < next), "{returned:?}");
    assert_eq!(repair.heard(), sent.collect());
    assert_eq!(repair.path().lost_packets, 0);
}

#[test]
fn oldest_are_forgotten_first_beyond_the_limit() {
    let mut repair = Repair::new();
    // Room for ten datagrams and their entries, but not for eleven.
    repair.world.quic(CLIENT).datagrams().set_kept_limit(10 * (FULL + 128));
    let sent = repair.send_all([FULL; 30]);
    repair.lose(|repair| repair.run(Duration::from_millis(1)));
    let room = 30 - repair.kept().forgotten;
    assert!((10..12).contains(&room), "{room}");
    assert!(repair.kept().bytes <= 10 * (FULL as u64 + 128));

    repair.world.quic(CLIENT).datagrams().set_kept_limit(5 * (FULL + 128));
    let room = 30 - repair.kept().forgotten;
    assert!((5..7).contains(&room), "{room}");
    repair.settle();
    assert_eq!(repair.contexts(), sent.skip(30 - usize::try_from(room).unwrap()).collect::<Vec<_>>());
}

#[test]
fn connection_that_ends_keeps_nothing() {
    let mut repair = Repair::new();
    repair.send_all([FULL; 30]);
    repair.lose(|repair| repair.run(Duration::from_millis(100)));
    assert!(repair.kept().bytes > 0 && !repair.returned.is_empty());
    // Some lost datagrams are still to be read.
    let now = repair.world.now;
    repair.world.quic(CLIENT).handle_timeout(now + RTT * 20);
    repair.world.quic(CLIENT).close(now + RTT * 20, VarInt::from_u32(0), Bytes::new());
    assert_eq!(repair.kept().bytes, 0);
    assert!(repair.world.quic(CLIENT).poll_lost_datagram().is_none());
}

#[test]
fn datagrams_on_a_path_that_is_left_come_back() {
    let mut repair = Repair::new();
    repair.send_all([FULL; 30]);
    repair.lose(|repair| repair.run(Duration::from_millis(1)));
    let now = repair.world.now;
    repair.world.quic(CLIENT).handle_network_change(None, now);
    repair.world.strays = true;
    repair.run(Duration::from_millis(300));
    repair.world.strays = false;
    repair.settle();
    let returned: BTreeSet<_> = repair.contexts().into_iter().collect();
    assert_eq!(returned.len(), repair.returned.len());
    assert_eq!(returned, (0..30).collect());
}

/// Loses one packet among many. Returns how long after its sending it is declared lost.
fn time_to_find_a_loss(repair: &mut Repair) -> Duration {
    repair.stream(Duration::from_millis(100));
    repair.returned.clear();
    let lost = repair.next;
    repair.send(FULL);
    repair.lose(|repair| repair.run(GAP));
    repair.stream(Duration::from_millis(100));
    let found = repair.returned.iter().find(|(datagram, _)| datagram.context == lost);
    found.map_or(Duration::MAX, |(_, age)| *age)
}

#[test]
fn path_that_keeps_the_order_finds_a_loss_by_the_packets_after_it() {
    let mut repair = Repair::new();
    let age = time_to_find_a_loss(&mut repair);
    // 16 packets are 1.3 ms.
    assert!((RTT..RTT + Duration::from_millis(2)).contains(&age), "{age:?}");
    assert_eq!(repair.path().reordering_window, Duration::ZERO);
    assert_eq!(repair.path().spurious_losses, 0);
}

/// A tenth of the packets arrive 5 ms late: some 60 others overtake each of them.
#[test]
fn packets_that_come_late_are_lost_only_until_that_is_known() {
    let mut repair = Repair::new();
    (repair.world.late_per_mille, repair.world.late_by) = (100, Duration::from_millis(5));
    repair.stream(Duration::from_millis(100));
    let first = repair.path().spurious_losses;
    let sent = repair.stream(Duration::from_secs(10));
    let later = repair.path().spurious_losses - first;
    let count = sent.end - sent.start;
    println!(
        "{first} spurious losses in 0.1 s, then {later} of {count} packets; {:?}",
        repair.path().reordering_window
    );
    assert!((1..=20).contains(&first), "{first}");
    assert!(later * 10_000 <= count, "{later} of {count}");
    let window = repair.path().reordering_window;
    assert!((Duration::from_millis(5)..Duration::from_millis(14)).contains(&window), "{window:?}");

    // A real loss is still found, only a little later.
    let age = time_to_find_a_loss(&mut repair);
    assert!((RTT + window..RTT + window + ACK_DELAY).contains(&age), "{age:?}, {window:?}");

    // Once the path has kept the order for some seconds, losses are found as quickly as before.
    repair.world.late_per_mille = 0;
    repair.stream(Duration::from_secs(8));
    assert_eq!(repair.path().reordering_window, Duration::ZERO);
    let age = time_to_find_a_loss(&mut repair);
    assert!(age < RTT + Duration::from_millis(2), "{age:?}");
}

/// A part of a run: what is sent, and what the path does to it.
#[derive(Clone, Debug)]
struct Stretch {
    sizes: Vec<usize>,
    milliseconds: u64,
    loss_per_mille: u64,
    late_per_mille: u64,
    updates_keys: bool,
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let size = prop_oneof![3 => Just(FULL), 1 => 8_usize..FULL, 1 => 8_usize..100];
    let loss_per_mille = prop_oneof![2 => Just(0_u64), 2 => 0_u64..300, 1 => Just(1_000)];
    let late_per_mille = prop_oneof![2 => Just(0_u64), 1 => 0_u64..300];
    (vec(size, 0..80), 0_u64..60, loss_per_mille, late_per_mille, proptest::bool::weighted(0.1)).prop_map(
        |(sizes, milliseconds, loss_per_mille, late_per_mille, updates_keys)| Stretch {
            sizes,
            milliseconds,
            loss_per_mille,
            late_per_mille,
            updates_keys,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_kept_datagram_arrives_or_comes_back(stretches in vec(stretch(), 1..30)) {
        let mut repair = Repair::new();
        repair.world.late_by = Duration::from_millis(5);
        for stretch in stretches {
            (repair.world.loss_per_mille, repair.world.late_per_mille) =
                (stretch.loss_per_mille, stretch.late_per_mille);
            if stretch.updates_keys {
                repair.world.quic(CLIENT).force_key_update();
            }
            for size in stretch.sizes {
                let data = content(repair.next, size);
                let is_sent = repair.world.quic(CLIENT).datagrams().send_kept(data, false, repair.next).is_ok();
                repair.next += u64::from(is_sent);
            }
            repair.run(Duration::from_millis(stretch.milliseconds));
        }
        (repair.world.loss_per_mille, repair.world.late_per_mille) = (0, 0);
        repair.settle();

        let (heard, contexts) = (repair.heard(), repair.contexts());
        let returned: BTreeSet<_> = contexts.iter().copied().collect();
        prop_assert_eq!(returned.len(), contexts.len(), "one came back twice");
        let missing: Vec<_> =
            (0..repair.next).filter(|context| !heard.contains(context) && !returned.contains(context)).collect();
        prop_assert_eq!(missing, Vec::<u64>::new());
        prop_assert_eq!(repair.kept().forgotten, 0);
    }
}
