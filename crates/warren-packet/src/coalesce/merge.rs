//! The limits of writes to the TUN device: the number of parts, and the kinds of super-packets.

/// Maximum number of parts of one write, which is the number that a TUN queue gathers.
pub const MAX_PARTS: usize = 64;

/// The kinds of super-packets that the TUN device accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merge {
    /// TCP (TSO4 and TSO6).
    pub tcp: bool,
    /// UDP (USO), which needs Linux 6.2.
    pub udp: bool,
}

impl Merge {
    /// Writes every packet on its own.
    pub const NOTHING: Self = Self { tcp: false, udp: false };
    /// Merges everything that this crate can merge.
    pub const ALL: Self = Self { tcp: true, udp: true };
}
