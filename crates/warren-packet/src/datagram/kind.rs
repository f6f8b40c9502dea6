//! The kinds of datagrams, and the bytes that each adds to its content.

/// Bytes before a packet.
pub const PACKET_OVERHEAD: usize = 1;
/// Bytes before a fragment's payload.
pub const FRAGMENT_OVERHEAD: usize = 9;
/// Bytes after a numbered packet or fragment.
pub const TRAILER: usize = 4;

pub(super) const PACKET: u8 = 0;
pub(super) const FRAGMENT: u8 = 1;
pub(super) const NUMBERED_PACKET: u8 = PACKET | NUMBERED;
pub(super) const NUMBERED_FRAGMENT: u8 = FRAGMENT | NUMBERED;
pub(super) const NOTHING_BELOW: u8 = 4;

/// The bit that makes a kind a numbered one.
pub(super) const NUMBERED: u8 = 2;
