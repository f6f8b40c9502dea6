//! Bugs planted on purpose. A packet's simulated journey must find each one.

warren_simulation::planted_bugs! {
    /// All segments have the first one's sequence number.
    SequenceRepeated,
    /// All segments have the first one's identification.
    IdentificationRepeated,
    /// A segment's IP checksum is not updated for its length.
    SegmentIpChecksumKept,
    /// Every segment has the last one's PSH and FIN.
    PushEverywhere,
    /// A segment keeps the super-packet's UDP length.
    UdpLengthKept,
    /// The partial checksum flag is lost.
    FlagLost,
    /// A fragment is added to another packet of the same length.
    FragmentsMergedAcrossPackets,
    /// A repeated fragment is counted twice.
    OverlapTaken,
    /// A packet is merged into another flow between the same hosts.
    MergedAcrossFlows,
    /// A packet is merged after one with PSH or FIN.
    MergedAcrossPush,
    /// A packet is merged after a gap in the sequence numbers.
    MergedAcrossGap,
    /// Packets with wrong checksums are merged.
    MergedUnverified,
    /// Packets are merged although other fields of their headers differ.
    MergedAcrossHeaders,
    /// A longer packet is merged after a shorter one.
    LongerMerged,
    /// A super-packet keeps its first packet's IP checksum.
    ChecksumNotRecomputed,
}
