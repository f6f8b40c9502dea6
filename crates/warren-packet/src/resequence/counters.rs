//! Counters of one connection's numbers.

/// The counts of one connection's numbers.
///
/// `given_up - late` is the number of datagrams that never arrived, or have not arrived yet in the unordered lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams held now.
    pub held_datagrams: usize,
    /// Bytes of these datagrams.
    pub held_bytes: usize,
    /// Missing numbers that arrived while their lane waited for them.
    pub filled: u64,
    /// Missing numbers that their lane skipped. The unordered lane waits for none.
    pub given_up: u64,
    /// Numbers among those given up that arrived after all.
    pub late: u64,
    /// Datagrams that were refused because they had arrived before, or were too old to tell.
    pub repeated: u64,
}
