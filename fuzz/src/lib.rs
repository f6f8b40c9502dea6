//! Bodies of the fuzz targets. The tests of `warren-host`, `warren-packet` and `warren-session` take the same files in and give them what is in
//! `corpus/`, so they depend on nothing that those crates do not.

pub mod coalesce;
pub mod control;
pub mod datagram;
pub mod inner_packet;
pub mod input;
pub mod invite;
pub mod nft_ruleset;
pub mod resequence;
pub mod segment;
pub mod wireguard;
