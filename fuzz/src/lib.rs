//! The bodies of the fuzz targets. The tests of `warren-host`, `warren-packet`, `warren-session` and `warren-wireguard` also
//! include these files and run them on `corpus/`. So each file uses only dependencies of the crate that includes it.

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
