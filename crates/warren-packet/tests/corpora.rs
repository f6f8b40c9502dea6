//! Replays the corpora of the fuzz targets that concern packets.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "the files are modules of fuzz/ as well"
)]

#[path = "../../../fuzz/src/coalesce.rs"]
mod coalesce;
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/datagram.rs"]
mod datagram;
#[path = "../../../fuzz/src/inner_packet.rs"]
mod inner_packet;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/resequence.rs"]
mod resequence;
#[path = "../../../fuzz/src/segment.rs"]
mod segment;

#[test]
fn inner_packets() {
    corpus::replay("inner_packet", inner_packet::run);
}

#[test]
fn super_packets_from_the_device() {
    corpus::replay("segment", segment::run);
}

#[test]
fn batches_for_the_device() {
    corpus::replay("coalesce", coalesce::run);
}

#[test]
fn datagrams() {
    corpus::replay("datagram", datagram::run);
}

#[test]
fn numbered_datagrams() {
    corpus::replay("resequence", resequence::run);
}
