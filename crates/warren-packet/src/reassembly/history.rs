//! Remembers which packets of a connection were completed or dropped, so that none is counted twice.

/// An assembly is dropped once this many newer ids were seen.
pub const MAX_NEWER_IDS: u32 = 1_024;
/// The number of newest ids whose finished packets are remembered: four times as many as an assembly can outlive.
const REMEMBERED: u32 = 4 * MAX_NEWER_IDS;
const WORDS: usize = REMEMBERED as usize / 64;

/// The newest id, and a ring of bits for it and the ids before it. Ids wrap and are compared by serial number arithmetic (RFC
/// 1982).
#[derive(Debug)]
pub(super) struct History {
    newest: Option<u32>,
    finished: [u64; WORDS],
}

/// The state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The packet may be assembled.
    Open,
    /// The packet was completed or dropped.
    Finished,
    /// Too many newer ids were seen before its first fragment.
    TooOld,
    /// The id is too old to be remembered.
    Forgotten,
}

impl History {
    pub(super) fn new() -> Self {
        Self { newest: None, finished: [0; WORDS] }
    }

    /// Records that `id` was seen and returns its state.
    pub(super) fn place(&mut self, id: u32) -> Place {
        self.advance(id);
        // Forgotten ids come first, because an older id shares its bit with a newer one.
        match self.newer_than(id) {
            newer if newer >= REMEMBERED => Place::Forgotten,
            _ if self.is_finished(id) => Place::Finished,
            newer if newer >= MAX_NEWER_IDS => Place::TooOld,
            _ => Place::Open,
        }
    }

    /// How far the newest id is ahead of `id`.
    pub(super) fn newer_than(&self, id: u32) -> u32 {
        self.newest.map_or(0, |newest| newest.wrapping_sub(id))
    }

    /// Records that the packet `id` was completed or dropped, unless it is too old to be remembered.
    pub(super) fn finish(&mut self, id: u32) {
        // The bit of an older id belongs to a newer one by now.
        if self.newer_than(id) < REMEMBERED {
            let (word, bit) = position(id);
            self.finished[word] |= bit;
        }
    }

    fn is_finished(&self, id: u32) -> bool {
        let (word, bit) = position(id);
        self.finished[word] & bit != 0
    }

    /// Makes `id` the newest if it is newer than the newest so far. For each new id, forgets one of the
    /// oldest.
    fn advance(&mut self, id: u32) {
        let newest = *self.newest.get_or_insert(id);
        let ahead = id.wrapping_sub(newest);
        // An id that is more than half of all numbers ahead counts as behind (RFC 1982).
        if ahead == 0 || ahead > u32::MAX / 2 {
            return;
        }
        self.newest = Some(id);
        if ahead >= REMEMBERED {
            self.finished = [0; WORDS];
            return;
        }
        for step in 0..ahead {
            let (word, bit) = position(id.wrapping_sub(step));
            self.finished[word] &= !bit;
        }
    }
}

/// The word of an id and its bit there. The ring's size divides 2^32, so wrapping ids keep their order.
fn position(id: u32) -> (usize, u64) {
    let slot = id % REMEMBERED;
    ((slot / 64) as usize, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_open_for_1023_newer_ones() {
        let mut history = History::new();
        assert_eq!(history.place(10), Place::Open);
        assert_eq!(history.place(10 + 1_023), Place::Open);
        assert_eq!(history.place(10), Place::Open);
        assert_eq!(history.place(10 + 1_024), Place::Open);
        assert_eq!(history.place(10), Place::TooOld);
        assert_eq!(history.place(10u32.wrapping_sub(3_071)), Place::TooOld);
        assert_eq!(history.place(10u32.wrapping_sub(3_072)), Place::Forgotten);
    }

    #[test]
    fn finished_ids_stay_so_until_they_are_forgotten() {
        let mut history = History::new();
        for id in [u32::MAX - 5, u32::MAX, 0, 7] {
            assert_eq!(history.place(id), Place::Open);
            history.finish(id);
            assert_eq!(history.place(id), Place::Finished);
        }
        assert_eq!(history.place(4_000), Place::Open);
        assert_eq!(history.place(u32::MAX - 5), Place::Finished);
        assert_eq!(history.place(u32::MAX - 4), Place::TooOld);
        assert_eq!(history.place(4_096), Place::Open);
        assert_eq!(history.place(0), Place::Forgotten);
        assert_eq!(history.place(7), Place::Finished);
    }

    #[test]
    fn a_leap_forgets_everything() {
        let mut history = History::new();
        for id in 0..REMEMBERED {
            history.place(id);
            history.finish(id);
        }
        let leap = REMEMBERED * 3;
        for id in leap..leap + 10 {
            assert_eq!(history.place(id), Place::Open);
        }
        assert_eq!(history.place(0), Place::Forgotten);
    }
}
