//! The queue reports every loss, keeps each flow in order and stays within its limit. A sparse flow never waits behind a bulk flow.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;
use warren_packet::ip::IpPacket;
use warren_packet::queue::{FlowQueue, MAX_SOJOURN, Signals};

const LIMIT: usize = 100_000;

#[derive(Clone, Debug)]
enum Step {
    Push { flow: u32, length: usize, ecn: u8 },
    Pop { count: usize },
    Wait { microseconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..70u32, 40..1_400usize, 0..4u8).prop_map(|(flow, length, ecn)| Step::Push { flow, length, ecn }),
        2 => (0..40usize).prop_map(|count| Step::Pop { count }),
        1 => (0..30_000u64).prop_map(|microseconds| Step::Wait { microseconds }),
    ]
}

/// A framed IPv4 packet that carries its number within the flow.
fn framed(flow: u32, number: u32, length: usize, ecn: u8) -> BytesMut {
    let mut framed = BytesMut::with_capacity(length + 1);
    framed.put_u8(0);
    framed.put_slice(&[0x45, ecn]);
    framed.put_u16(u16::try_from(length).unwrap());
    framed.put_slice(&[0; 8]);
    framed.put_u32(flow);
    framed.put_u32(number);
    framed.put_bytes(0, length - 20);
    framed
}

fn read(framed: &[u8]) -> (u32, u32) {
    let field = |at: usize| u32::from_be_bytes(framed[at..at + 4].try_into().unwrap());
    (field(13), field(17))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_packet_leaves_once_in_its_flows_order_or_is_counted(
        steps in prop::collection::vec(step(), 1..600)
    ) {
        let mut queue = FlowQueue::new(LIMIT);
        let mut now = Instant::now();
        let (mut pushed, mut popped, mut full, mut marked) = (0u64, 0u64, 0u64, 0u64);
        let mut signals = Signals::default();
        let mut last = HashMap::new();
        let mut entered = HashMap::new();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Push { flow, length, ecn } => {
                    number += 1;
                    entered.insert(number, (now, ecn));
                    full += queue.push(flow, framed(flow, number, length, ecn), now);
                    pushed += 1;
                }
                Step::Pop { count } => {
                    let mut longest = Duration::ZERO;
                    for _ in 0..count {
                        let Some(packet) = queue.pop(now, &mut signals) else { break };
                        popped += 1;
                        let (flow, number) = read(&packet);
                        prop_assert!(last.insert(flow, number).is_none_or(|before| before < number));
                        let (since, ecn) = entered[&number];
                        prop_assert!(now - since <= MAX_SOJOURN);
                        longest = longest.max(now - since);
                        prop_assert!(IpPacket::parse(&packet[1..]).is_ok());
                        if packet[2] != ecn {
                            prop_assert!(ecn != 0 && packet[2] == 3, "only ECN-capable packets are marked");
                            marked += 1;
                        }
                    }
                    prop_assert_eq!(queue.take_longest_wait(), longest);
                }
                Step::Wait { microseconds } => now += Duration::from_micros(microseconds),
            }
            prop_assert!(queue.bytes() <= LIMIT);
            prop_assert!(marked <= signals.marked);
            prop_assert_eq!(pushed, popped + full + signals.dropped + queue.packets() as u64);
        }
        // Drained without waiting, the queue returns all remaining packets.
        while queue.pop(now, &mut signals).is_some() {
            popped += 1;
        }
        prop_assert_eq!((queue.packets(), queue.bytes()), (0, 0));
        prop_assert_eq!(pushed, popped + full + signals.dropped);
    }

    #[test]
    fn a_sparse_flow_waits_for_no_more_than_a_train(bulk_flows in 1..20u32, backlog in 80..300u32) {
        let mut queue = FlowQueue::new(usize::MAX);
        let now = Instant::now();
        for number in 0..backlog {
            for flow in 0..bulk_flows {
                queue.push(flow, framed(flow, number, 1_380, 0), now);
            }
        }
        let mut signals = Signals::default();
        // Skips the first rounds, in which every flow counts as new.
        for _ in 0..bulk_flows * 50 {
            queue.pop(now, &mut signals);
        }
        queue.push(60, framed(60, 1, 84, 0), now);
        let before = (0..).take_while(|_| read(&queue.pop(now, &mut signals).unwrap()).0 != 60).count();
        prop_assert!(before <= 64 * 1024 / 1_380 + 1, "{before} packets went first");
    }

    #[test]
    fn bulk_flows_share_and_leave_in_trains(flows in 2..10u32) {
        let mut queue = FlowQueue::new(usize::MAX);
        let now = Instant::now();
        for number in 0..400 {
            for flow in 0..flows {
                queue.push(flow, framed(flow, number, 1_380, 0), now);
            }
        }
        let mut signals = Signals::default();
        let order: Vec<u32> = (0..flows * 200).map(|_| read(&queue.pop(now, &mut signals).unwrap()).0).collect();
        let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert!(changes <= order.len() / 45, "trains are whole: {changes} changes");
        for flow in 0..flows {
            let share = order.iter().filter(|of| **of == flow).count();
            prop_assert!((150..=250).contains(&share), "flow {flow} sent {share} of 200");
        }
    }
}

#[test]
fn a_standing_queue_is_held_short_by_drops_and_by_marks() {
    for (ecn, name) in [(0, "drops"), (2, "marks")] {
        let mut queue = FlowQueue::new(usize::MAX);
        let start = Instant::now();
        let mut signals = Signals::default();
        // A sender that does not slow down: it offers twice the drain rate.
        for number in 0..2_000 {
            let now = start + Duration::from_millis(1) * number;
            queue.push(1, framed(1, 2 * number, 1_380, ecn), now);
            queue.push(1, framed(1, 2 * number + 1, 1_380, ecn), now);
            queue.pop(now, &mut signals);
        }
        let counted = if ecn == 0 { signals.dropped } else { signals.marked };
        assert!(counted > 20, "{name}: {signals:?}");
    }
}

#[test]
fn a_full_queue_drops_from_the_flow_that_holds_most() {
    let mut queue = FlowQueue::new(LIMIT);
    let now = Instant::now();
    queue.push(1, framed(1, 0, 84, 0), now);
    for number in 0..200 {
        queue.push(2, framed(2, number, 1_380, 0), now);
    }
    let mut signals = Signals::default();
    let flows: Vec<u32> =
        std::iter::from_fn(|| queue.pop(now, &mut signals)).map(|packet| read(&packet).0).collect();
    assert!(flows.contains(&1));
    assert_eq!((signals.dropped, signals.marked), (0, 0));
}

/// Pushes a packet each millisecond, and returns how many were lost at each push because the queue was full.
fn overfill(queue: &mut FlowQueue, milliseconds: u32) -> Vec<u64> {
    let start = Instant::now();
    let push = |number: u32| {
        let now = start + Duration::from_millis(1) * number;
        queue.push(1, framed(1, number, 500, 0), now)
    };
    (0..milliseconds).map(push).collect()
}

#[test]
fn a_queue_that_is_nearly_full_drops_one_packet_a_round_trip_and_a_full_one_each_packet() {
    let mut queue = FlowQueue::new(LIMIT);
    // Each packet has 501 bytes. So 134 packets exceed two thirds of the limit, and some 200 exceed all of it.
    let dropped = overfill(&mut queue, 300);
    let (nearly_full, full) = (&dropped[..195], &dropped[210..]);
    assert_eq!(nearly_full.iter().sum::<u64>(), 2, "{nearly_full:?}");
    let first = nearly_full.iter().position(|count| *count > 0).unwrap();
    assert!((133..136).contains(&first), "{first}");
    // The drop of a nearly full queue may come first, and make room for the next packet.
    assert!(full.iter().sum::<u64>() >= full.len() as u64, "{full:?}");
}

#[test]
fn nothing_is_dropped_or_marked_before_a_window_that_still_doubles() {
    for (is_searching, ecn) in [(true, 0), (true, 2), (false, 0), (false, 2)] {
        let mut queue = FlowQueue::new(usize::MAX);
        queue.set_round_trip(Duration::ZERO, is_searching);
        let start = Instant::now();
        let mut signals = Signals::default();
        for number in 0..300 {
            let now = start + Duration::from_millis(1) * number;
            for half in 0..2 {
                queue.push(1, framed(1, 2 * number + half, 1_380, ecn), now);
            }
            queue.pop(now, &mut signals);
        }
        assert_eq!((signals.dropped, signals.marked) == (0, 0), is_searching, "{signals:?}");
    }
}

#[test]
fn an_empty_queue_gives_up_its_memory_and_goes_on_as_a_new_one() {
    let mut queue = FlowQueue::new(LIMIT);
    let now = Instant::now();
    let mut signals = Signals::default();
    queue.push(1, framed(1, 0, 84, 0), now);
    queue.release();
    assert_eq!(queue.packets(), 1, "it is not empty");
    assert_eq!(queue.pop(now, &mut signals).map(|packet| read(&packet)), Some((1, 0)));
    // The flow stays on a list until `pop` visits it again.
    queue.release();
    for number in 1..=2 {
        queue.push(1, framed(1, number, 84, 0), now);
    }
    let left: Vec<_> =
        std::iter::from_fn(|| queue.pop(now, &mut signals)).map(|packet| read(&packet)).collect();
    assert_eq!(left, [(1, 1), (1, 2)]);
    assert_eq!((queue.packets(), queue.bytes()), (0, 0));
}
