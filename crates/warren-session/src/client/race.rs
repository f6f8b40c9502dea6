//! Happy Eyeballs: connection attempts to several candidates, staggered until the first one answers (RFC 8305 section 5).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Delay between the starts of two attempts, as RFC 8305 section 5 recommends. If the running attempt fails, the next
/// one starts at once.
pub const STAGGER: Duration = Duration::from_millis(250);

/// The waiting and the running candidates.
#[derive(Debug)]
pub struct Race<Candidate> {
    /// Sorted by earliest start. A candidate starts before this time only if no other attempt runs.
    waiting: VecDeque<(Instant, Candidate)>,
    running: Vec<Candidate>,
    known: Vec<Candidate>,
    last_begun: Option<Instant>,
    /// Whether candidates that precede the waiting ones may still be added.
    expecting: bool,
}

impl<Candidate: Clone + PartialEq> Race<Candidate> {
    /// Makes a race without candidates. `expecting` says that more candidates are still being looked up.
    pub fn new(expecting: bool) -> Self {
        Self { waiting: VecDeque::new(), running: Vec::new(), known: Vec::new(), last_begun: None, expecting }
    }

    /// Adds a candidate after those with the same or an earlier start. A candidate that was added before is ignored.
    pub fn add(&mut self, not_before: Instant, candidate: Candidate) {
        if self.known.contains(&candidate) {
            return;
        }
        self.known.push(candidate.clone());
        let place = self.waiting.iter().take_while(|(other, _)| *other <= not_before).count();
        self.waiting.insert(place, (not_before, candidate));
    }

    /// Tells the race that no more candidates will be added.
    pub fn complete(&mut self) {
        self.expecting = false;
    }

    /// When [`Self::begin`] has a candidate to start, unless an event happens first.
    pub fn due(&self) -> Option<Instant> {
        let (not_before, _) = self.waiting.front()?;
        // No attempt is running and no better candidate can come, so waiting would only lose time.
        if self.running.is_empty() && !self.expecting {
            // The last start is past, so the next candidate is due at once.
            return Some(self.last_begun.map_or(*not_before, |last| last.min(*not_before)));
        }
        let staggered = self.last_begun.filter(|_| !self.running.is_empty()).map(|last| last + STAGGER);
        Some(staggered.map_or(*not_before, |staggered| staggered.max(*not_before)))
    }

    /// Starts the next candidate if it is due by `now`, and returns it.
    pub fn begin(&mut self, now: Instant) -> Option<Candidate> {
        let alone = self.running.is_empty() && !self.expecting && !self.waiting.is_empty();
        if !alone && self.due()? > now {
            return None;
        }
        let (_, candidate) = self.waiting.pop_front()?;
        self.last_begun = Some(now);
        self.running.push(candidate.clone());
        Some(candidate)
    }

    /// Records that a running candidate failed.
    pub fn failed(&mut self, candidate: &Candidate) {
        self.running.retain(|other| other != candidate);
    }

    /// Whether every candidate has failed and no more are expected.
    pub fn is_lost(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && !self.expecting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn candidates_begin_one_stagger_apart_and_at_once_after_a_failure() {
        let start = Instant::now();
        let mut race = Race::new(false);
        for name in ["six", "four", "six"] {
            race.add(start, name);
        }
        assert_eq!(race.begin(start), Some("six"));
        assert_eq!(race.begin(start), None);
        assert_eq!(race.due(), Some(start + STAGGER));
        race.failed(&"six");
        assert_eq!(race.begin(start), Some("four"));
        race.failed(&"four");
        assert!(race.is_lost());
    }

    #[test]
    fn another_exit_waits_for_its_head_start_unless_nobody_else_is_left() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let mut race = Race::new(true);
        race.add(later, "second");
        assert_eq!(race.begin(start), None, "the first is still being looked up");
        race.add(start, "first");
        race.complete();
        assert_eq!(race.begin(start), Some("first"));
        assert_eq!(race.begin(later - STAGGER), None);
        race.failed(&"first");
        assert_eq!(race.begin(later - STAGGER), Some("second"));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add { candidate: u8, delay: u64 },
        Fail(u8),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..8_u8, 0..2_000_u64).prop_map(|(candidate, delay)| Step::Add { candidate, delay }),
            (0..8_u8).prop_map(Step::Fail),
            (0..700_u64).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn every_candidate_begins_once_and_never_crowds_another(steps in steps()) {
            let mut now = Instant::now();
            let mut race = Race::new(false);
            let mut begun: Vec<u8> = Vec::new();
            let mut running: Vec<u8> = Vec::new();
            let mut last: Option<Instant> = None;
            for step in steps {
                match step {
                    Step::Add { candidate, delay } => race.add(now + Duration::from_millis(delay), candidate),
                    Step::Fail(candidate) => {
                        race.failed(&candidate);
                        running.retain(|other| *other != candidate);
                    }
                    Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                }
                while let Some(candidate) = race.begin(now) {
                    prop_assert!(!begun.contains(&candidate));
                    if !running.is_empty() {
                        prop_assert!(last.is_some_and(|last| now >= last + STAGGER));
                    }
                    begun.push(candidate);
                    running.push(candidate);
                    last = Some(now);
                }
                prop_assert!(race.due().is_none() || !running.is_empty(), "nobody runs, so the next is begun");
            }
        }
    }
}
