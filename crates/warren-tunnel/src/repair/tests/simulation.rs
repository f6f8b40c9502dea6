//! Both halves of repair over a model of the path, in virtual time. Everything follows from a seed.
//!
//! The sender does what a pump does: urgent datagrams first, then the datagram that found no room before, then the next packet. The
//! receiver puts the datagrams in order. `rules` contains the rules that must hold.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod path;
mod rules;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{Lane, Numbering};
use warren_packet::resequence::{Limits, Resequencer};
use warren_simulation::{Random, find_every_bug, outcome, seeds};

use self::path::{News, Path, Traits};
use self::rules::{Rules, id_of};
use crate::pump::hold;
use crate::repair::planted::Bug;
use crate::repair::{Outgoing, Repair};

/// Number of seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: Range<u64> = 0..70;
/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 70;

const TICK: Duration = Duration::from_millis(1);
/// How often the sender checks for losses.
const LOOK: Duration = Duration::from_millis(100);
/// How long packets are sent, and how long the last of them may take to arrive.
const TIME: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(3);
/// How long it takes until a path is known to be clean, and until it is known to lose too much.
const KNOWN: Duration = Duration::from_secs(11);
const MUCH_IS_KNOWN: Duration = Duration::from_secs(2);
/// How late something that is due may happen, because the transport may have no room for a moment.
const PATIENCE: Duration = Duration::from_millis(50);

#[test]
fn repair_keeps_its_promises_over_any_path() {
    for seed in seeds(SEEDS) {
        assert!(
            outcome(|| World::new(seed).run()).is_kept,
            "repeat it with WARREN_SIMULATION={seed}..{}",
            seed + 1
        );
    }
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, |seed| outcome(|| World::new(seed).run()));
}

/// The kind of path or peer that a seed tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Random loss of at most 5 %.
    Loss,
    /// Loss that is just low enough to be repaired.
    MuchLoss,
    /// Loss that is too high to be repaired.
    TooMuchLoss,
    /// Nothing arrives for a second now and then.
    BlackOuts,
    /// Packets that overtake others, and a queue that overflows.
    Crowd,
    /// Loss that ends.
    Clean,
    /// A peer that does not support numbered datagrams.
    OldPeer,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Loss,
        Self::MuchLoss,
        Self::TooMuchLoss,
        Self::BlackOuts,
        Self::Crowd,
        Self::Clean,
        Self::OldPeer,
    ];

    fn traits(self, random: &mut Random) -> Traits {
        let loss_per_mille = match self {
            Self::Loss | Self::Clean | Self::OldPeer => 5 + random.below(46),
            Self::MuchLoss => 120 + random.below(20),
            Self::TooMuchLoss => 250,
            Self::BlackOuts | Self::Crowd => random.below(20),
        };
        let delay = Duration::from_millis(2 + random.below(40));
        let calm = Traits {
            loss_per_mille,
            late_per_mille: 0,
            late_by: Duration::ZERO,
            delay,
            bytes_per_second: 12_500_000,
            queue: Duration::from_millis(30),
            is_black: false,
        };
        match self {
            Self::Crowd => Traits {
                late_per_mille: random.below(100),
                late_by: Duration::from_millis(random.below(30)),
                bytes_per_second: 1_400_000,
                queue: Duration::from_millis(5 + random.below(100)),
                ..calm
            },
            Self::Loss
            | Self::MuchLoss
            | Self::TooMuchLoss
            | Self::BlackOuts
            | Self::Clean
            | Self::OldPeer => calm,
        }
    }
}

struct World {
    kind: Kind,
    now: Instant,
    start: Instant,
    random: Random,
    path: Path,
    repair: Repair,
    resequencer: Resequencer,
    hold: Duration,
    rules: Rules,
    /// The datagram for which the transport had no room.
    held: Option<Outgoing>,
    next_id: u64,
    /// The share of packets that the path loses.
    loss: f64,
    next_look: Instant,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let kind = Kind::ALL[usize::try_from(seed).unwrap() % Kind::ALL.len()];
        let now = Instant::now();
        let traits = kind.traits(&mut random);
        Self {
            kind,
            now,
            start: now,
            path: Path::new(traits, Random::new(random.draw()), now),
            repair: Repair { is_agreed: kind != Kind::OldPeer, ..Repair::default() },
            resequencer: Resequencer::new(Limits::default()),
            hold: hold(2 * traits.delay),
            rules: Rules::new(),
            held: None,
            next_id: 0,
            loss: traits.loss_per_mille as f64 / 1_000.0,
            next_look: now,
            random,
        }
    }

    fn run(mut self) {
        while self.now < self.start + TIME {
            self.change_path();
            self.step(true);
        }
        (self.path.traits.is_black, self.path.traits.loss_per_mille) = (false, 0);
        while self.now < self.start + TIME + QUIET {
            self.step(false);
        }
        self.check();
    }

    fn change_path(&mut self) {
        let elapsed = (self.now - self.start).as_millis();
        if self.kind == Kind::BlackOuts {
            self.path.traits.is_black = elapsed % 6_000 > 5_000;
        }
        if self.kind == Kind::Clean && elapsed > 4_000 {
            self.path.traits.loss_per_mille = 0;
        }
    }

    fn step(&mut self, speaks: bool) {
        while let Some(news) = self.path.next(self.now) {
            self.take(news);
        }
        self.expire();
        if self.now >= self.next_look {
            self.next_look = self.now + LOOK;
            self.repair.observe(&self.path.counts, self.now);
            self.hold = hold(self.path.counts.rtt);
        }
        let packets = if speaks { 1 + self.random.below(2) } else { 0 };
        self.drain(packets);
        self.rules.check_time(self.now);
        self.now += TICK;
    }

    /// Sends as a pump does, with at most this many new packets.
    fn drain(&mut self, mut packets: u64) {
        let mut is_blocked = false;
        while !is_blocked {
            let is_full = self.random.once_in(40);
            if let Some(outgoing) = self.repair.next_urgent(self.now) {
                is_blocked = is_full;
                if is_full {
                    self.repair.put_back(outgoing);
                } else {
                    self.send(&outgoing);
                }
                continue;
            }
            let outgoing = match self.held.take() {
                Some(held) => held,
                None if packets == 0 => return,
                None => {
                    packets -= 1;
                    self.next_packet()
                }
            };
            is_blocked = is_full;
            if is_full {
                self.held = Some(outgoing);
            } else {
                self.send(&outgoing);
            }
        }
    }

    /// A packet of one of five flows, of which one needs no order. Now and then the packet has to be framed again.
    fn next_packet(&mut self) -> Outgoing {
        let flow = self.random.below(5);
        let lane = if flow == 0 { Lane::UNORDERED } else { Lane::of_flow(u32::try_from(flow).unwrap()) };
        self.next_id += 1;
        let mut framed = BytesMut::from(&[0][..]);
        framed.extend_from_slice(&self.next_id.to_be_bytes());
        framed.resize(200 + usize::try_from(self.random.below(1_000)).unwrap(), 7);
        let length = framed.len();
        self.rules.framed(length);
        let outgoing = self.repair.prepare(framed.clone(), |_| lane);
        if !self.random.once_in(100) {
            return outgoing;
        }
        let mut datagram = outgoing.datagram;
        self.repair.take_back(&mut datagram);
        self.rules.framed(length);
        self.repair.prepare(framed, |_| lane)
    }

    fn send(&mut self, outgoing: &Outgoing) {
        let is_numbered = outgoing.datagram[0] != 0;
        let elapsed = self.now - self.start;
        match self.kind {
            Kind::OldPeer => assert!(!is_numbered, "a number for an old peer"),
            Kind::TooMuchLoss => {
                assert!(!is_numbered || elapsed < MUCH_IS_KNOWN, "too much is lost for repair")
            }
            Kind::Clean => {
                let since = Duration::from_secs(4) + KNOWN;
                assert!(!is_numbered || elapsed < since, "a number on a clean path");
            }
            Kind::Loss => assert!(is_numbered, "no number on a lossy path"),
            Kind::MuchLoss | Kind::BlackOuts | Kind::Crowd => {}
        }
        self.rules.leaves(self.now, outgoing.datagram.clone(), outgoing.context);
        self.path.send(self.now, outgoing);
    }

    fn take(&mut self, news: News) {
        match news {
            News::Arrived(datagram) => self.receive(datagram),
            News::Lost(Some(kept), sent) => {
                let before = self.repair.counts;
                let lost = News::lost(kept, sent);
                let datagram = lost.data.clone();
                self.repair.take_lost(lost, self.now);
                if self.repair.counts.repaired > before.repaired {
                    self.rules.repaired(datagram.len());
                } else if self.repair.counts.given_up > before.given_up {
                    self.rules.given_up(self.now, datagram);
                }
            }
            News::Lost(None, _) | News::Late => {}
        }
    }

    fn receive(&mut self, mut datagram: Bytes) {
        let mut released = VecDeque::new();
        match Numbering::cut(&mut datagram).unwrap() {
            Numbering::Unnumbered => released.push_back(datagram),
            Numbering::Numbered(place) => {
                if self.resequencer.take(self.now, place, datagram, self.hold, &mut released).is_ok() {
                    self.rules.arrives(place);
                }
            }
            Numbering::NothingBelow(place) => {
                self.resequencer.nothing_below(place, &mut released);
                self.release(released);
                self.rules.check_freed(place);
                return;
            }
        }
        self.release(released);
    }

    fn expire(&mut self) {
        let mut released = VecDeque::new();
        self.resequencer.expire(self.now, &mut released);
        self.release(released);
    }

    fn release(&mut self, released: VecDeque<Bytes>) {
        for datagram in released {
            self.rules.released(id_of(&datagram));
        }
    }

    fn check(&self) {
        let (rules, counts, order) = (&self.rules, self.repair.counts, self.resequencer.counters());
        rules.check_end();
        assert_eq!(counts.repaired, rules.repairs, "a repair did not leave");
        assert_eq!(order.held_datagrams, 0);
        // A datagram also counts as late if its lane has stopped waiting for it and released nothing since.
        assert!(
            order.late >= rules.overtaken.0 + rules.overtaken.1,
            "an overtaken datagram does not count as late"
        );
        if self.kind == Kind::Loss {
            let [(unordered, unordered_lost), (ordered, ordered_lost)] =
                [false, true].map(|is| rules.lost(is));
            let most = |sent: u64, rounds: i32| 1.5 * sent as f64 * self.loss.powi(1 + rounds) + 6.0;
            assert!((unordered_lost as f64) < most(unordered, 1), "{unordered_lost} of {unordered}");
            assert!((ordered_lost as f64) < most(ordered, 2), "{ordered_lost} of {ordered} in order");
            assert_eq!(rules.overtaken.0, 0, "repairs came too late");
        }
    }
}
