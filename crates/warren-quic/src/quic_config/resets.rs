//! Limits how often one connection ID is answered with a stateless reset. An endpoint sends few resets a second, and an attacker
//! who repeats the ID of an ended connection must not use up all of them.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::strangers::OWN_ID_LENGTH;

/// The time between the first two resets of one ID. A second one is sent because the first may get lost. Each further pause is twice as
/// long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// An ID that was not answered for this long counts as new. Every pause is shorter, so a packet at the end of a pause does not
/// start the pauses again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(16);

/// Maximum number of remembered IDs. An endpoint that sends 50 resets a second and forgets an ID after 16 s remembers at most 800.
const MOST: usize = 1_024;

/// The IDs that were answered recently.
#[derive(Clone, Debug, Default)]
pub(super) struct Resets(HashMap<[u8; OWN_ID_LENGTH], Answered>);

#[derive(Clone, Copy, Debug)]
struct Answered {
    at: Instant,
    /// How long after `at` the ID is not answered again.
    pause: Duration,
}

impl Resets {
    /// Whether a reset may be sent for this ID now. If so, it counts as sent.
    pub(super) fn admit(&mut self, id: &[u8; OWN_ID_LENGTH], now: Instant) -> bool {
        // Done only when the table is full, because this visits every ID.
        if self.0.len() >= MOST {
            self.0.retain(|_, answered| !answered.is_past(now));
        }
        let last = self.0.get(id).filter(|answered| !answered.is_past(now));
        let pause = last.map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
        let is_due = last.is_none_or(|last| last.age(now) >= last.pause);
        // An endpoint that keeps to its rate always finds room in the table.
        let admitted = is_due && (self.0.len() < MOST || self.0.contains_key(id));
        if admitted {
            self.0.insert(*id, Answered { at: now, pause });
        }
        admitted
    }
}

impl Answered {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    fn is_past(&self, now: Instant) -> bool {
        self.age(now) >= FORGOTTEN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; OWN_ID_LENGTH] = [1; OWN_ID_LENGTH];

    fn id(number: u64) -> [u8; OWN_ID_LENGTH] {
        let mut id = [0; OWN_ID_LENGTH];
        id[..8].copy_from_slice(&number.to_be_bytes());
        id
    }

    #[test]
    fn an_id_that_is_repeated_is_answered_less_and_less_and_others_at_once() {
        let (mut resets, start) = (Resets::default(), Instant::now());
        let milliseconds = |count| start + Duration::from_millis(count);
        let answered: Vec<u64> = (0..30_000).filter(|at| resets.admit(&ID, milliseconds(*at))).collect();
        assert_eq!(answered, [0, 1_000, 3_000, 7_000, 15_000, 23_000]);
        assert!(resets.admit(&id(7), milliseconds(30_000)));
    }

    #[test]
    fn an_id_that_is_asked_for_at_the_end_of_a_pause_or_later_has_longer_and_longer_ones() {
        for (every, expected) in
            [(2, vec![0, 2, 4, 8, 16, 24]), (3, vec![0, 3, 6, 12, 21]), (16, vec![0, 16])]
        {
            let (mut resets, start) = (Resets::default(), Instant::now());
            let mut asked = (0..30).step_by(every);
            let answered: Vec<u64> =
                asked.by_ref().filter(|at| resets.admit(&ID, start + Duration::from_secs(*at))).collect();
            assert_eq!(answered, expected, "asked every {every} s");
        }
    }

    #[test]
    fn an_id_that_was_not_asked_for_long_is_like_new() {
        let (mut resets, start) = (Resets::default(), Instant::now());
        assert!(resets.admit(&ID, start));
        let later = start + FORGOTTEN_AFTER;
        assert!(resets.admit(&ID, later) && resets.admit(&ID, later + FIRST_PAUSE));
    }

    #[test]
    fn at_fifty_a_second_everybody_finds_room_and_what_is_remembered_is_bounded() {
        let (mut resets, start) = (Resets::default(), Instant::now());
        for number in 0..10_000 {
            let now = start + Duration::from_millis(20 * number);
            assert!(resets.admit(&id(number), now), "{number}");
            // Meanwhile, somebody repeats one ID.
            resets.admit(&ID, now);
            assert!(resets.0.len() <= MOST);
        }
        for number in 0..10_000 {
            resets.admit(&id(number << 32), start);
            assert!(resets.0.len() <= MOST);
        }
    }
}
