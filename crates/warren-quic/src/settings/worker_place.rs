//! The worker that an endpoint belongs to, among the workers that share a port, and the first byte of that worker's connection IDs.

/// One of the workers that share a port, by its number.
///
/// The first byte of a worker's connection IDs is congruent to its number modulo the number of workers. Every byte belongs to
/// some worker. A process can therefore reset connections of a predecessor that had more workers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct WorkerPlace {
    index: u8,
    count: u8,
}

impl WorkerPlace {
    /// Maximum number of workers of a daemon.
    pub const MAX: u8 = 64;

    /// The only worker of a port.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Makes the places of `count` workers, from 1 to [`Self::MAX`], in order.
    pub fn all(count: u8) -> impl Iterator<Item = Self> {
        let count = count.clamp(1, Self::MAX);
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns the worker's index, counted from 0.
    pub fn index(self) -> u8 {
        self.index
    }

    /// Returns the number of workers that share the port.
    pub(crate) fn count(self) -> u8 {
        self.count
    }

    /// Whether a connection ID with this first byte belongs to the worker.
    pub fn owns(self, first: u8) -> bool {
        first % self.count == self.index
    }

    /// Turns any byte into a first byte of this worker's connection IDs.
    pub(crate) fn first_byte(self, random: u8) -> u8 {
        let base = random - random % self.count;
        // With the last multiple of `count`, the sum may exceed 255. In that case, the multiple before it is used.
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
