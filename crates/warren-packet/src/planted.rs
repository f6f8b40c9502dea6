//! Bugs that a packet's simulated journey has to find, which shows that it would find such that nobody planted. Only test
//! builds have them, and there each thread plants its own.

/// A mistake in one place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
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

#[cfg(test)]
thread_local!(static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) });

/// Plants a bug in this thread, or none, in place of the one before.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether the bug is to show itself here.
pub(crate) fn is_planted(bug: Bug) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(bug);
    #[cfg(not(test))]
    {
        let _ = bug;
        false
    }
}

#[cfg(test)]
impl Bug {
    /// Every one.
    pub(crate) const ALL: [Self; 15] = [
        Self::SequenceRepeated,
        Self::IdentificationRepeated,
        Self::SegmentIpChecksumKept,
        Self::PushEverywhere,
        Self::UdpLengthKept,
        Self::FlagLost,
        Self::FragmentsMergedAcrossPackets,
        Self::OverlapTaken,
        Self::MergedAcrossFlows,
        Self::MergedAcrossPush,
        Self::MergedAcrossGap,
        Self::MergedUnverified,
        Self::MergedAcrossHeaders,
        Self::LongerMerged,
        Self::ChecksumNotRecomputed,
    ];
}
