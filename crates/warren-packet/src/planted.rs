//! Bugs planted on purpose. A packet's simulated journey must find each one.

warren_simulation::planted_bugs! {
    /// All segments have the sequence number of the first.
    SequenceRepeated,
    /// All segments have the identification of the first.
    IdentificationRepeated,
    /// A segment's IP checksum is that of another length.
    SegmentIpChecksumKept,
    /// Every segment has the PSH and FIN of the last.
    PushEverywhere,
    /// A segment's UDP length is the super-packet's.
    UdpLengthKept,
    /// The flag of a partial checksum is lost on the way.
    FlagLost,
    /// A fragment is put into another packet of the same length.
    FragmentsMergedAcrossPackets,
    /// A fragment that came twice is counted twice.
    OverlapTaken,
    /// A packet is merged into one of another flow between the same hosts.
    MergedAcrossFlows,
    /// Something is merged behind a packet with PSH or FIN.
    MergedAcrossPush,
    /// Something is merged behind a gap in the sequence numbers.
    MergedAcrossGap,
    /// Packets are merged whose checksums are wrong.
    MergedUnverified,
    /// Packets are merged although other fields of their headers differ.
    MergedAcrossHeaders,
    /// A longer packet is merged behind a shorter one.
    LongerMerged,
    /// A super-packet's IP checksum is that of its first packet.
    ChecksumNotRecomputed,
}
