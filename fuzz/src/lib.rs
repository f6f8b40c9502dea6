//! Bodies of the fuzz targets. The tests of `warren-host`, `warren-packet` and `warren-session` include these files and
//! run them on `corpus/`. So each file uses only the dependencies that its crate has anyway.

pub mod coalesce;
pub mod control;
pub mod datagram;
pub mod inner_packet;
pub mod input;
pub mod invite;
pub mod nft_ruleset;
pub mod resequence;
pub mod roster;
pub mod segment;
pub mod wireguard;
