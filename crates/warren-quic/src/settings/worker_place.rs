//! Which of the workers that share a port an endpoint belongs to, and which connection IDs are its own.

/// One of the workers that share a port, by its number.
///
/// A worker's connection IDs have a first byte that leaves its number when divided by the number of workers. Every byte is some
/// worker's, however many there are, so that one process answers for the connections of another that had more of them.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct WorkerPlace {
    index: u8,
    count: u8,
}

impl WorkerPlace {
    /// The most workers that a daemon has.
    pub const MAX: u8 = 64;

    /// The worker that shares with nobody.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Makes the places of `count` workers, from 1 to [`Self::MAX`], in order.
    pub fn all(count: u8) -> impl Iterator<Item = Self> {
        let count = count.clamp(1, Self::MAX);
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns its number, from 0 on.
    pub fn index(self) -> u8 {
        self.index
    }

    /// Returns how many share the port.
    pub(crate) fn count(self) -> u8 {
        self.count
    }

    /// Whether a connection ID with this first byte is the worker's.
    pub fn owns(self, first: u8) -> bool {
        first % self.count == self.index
    }

    /// Makes a first byte of the worker's out of any byte.
    pub(crate) fn first_byte(self, random: u8) -> u8 {
        let base = random - random % self.count;
        // Past the last multiple that has room for every worker, the one before it is taken.
        base.checked_add(self.index).unwrap_or_else(|| base - self.count + self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_exactly_one_workers_and_every_worker_makes_its_own() {
        for count in 1..=WorkerPlace::MAX {
            for byte in 0..=u8::MAX {
                assert_eq!(WorkerPlace::all(count).filter(|place| place.owns(byte)).count(), 1);
                assert!(WorkerPlace::all(count).all(|place| place.owns(place.first_byte(byte))));
            }
        }
    }
}
