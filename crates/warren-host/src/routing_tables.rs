//! The numbers of the routing tables that clients use. Each kind has a table for each of the 256 slots.

/// RT_TABLE_MAIN of `linux/rtnetlink.h`.
pub(crate) const MAIN: u32 = 254;
/// The first of the tunnels' tables.
pub(crate) const TUNNELS: u32 = 0x5761;
/// The first of the tables for replies to visitors.
pub(crate) const ANSWERS: u32 = TUNNELS + 0x100;
/// The first of the routing tables for `warren exec`.
pub(crate) const EXEC: u32 = ANSWERS + 0x100;
