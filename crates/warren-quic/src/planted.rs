//! Bugs that the simulation of whole endpoints has to find, which shows that it would find such that nobody planted. Only
//! test builds have them, and there each thread plants its own.

/// A mistake in one place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A silent exit lets in whom has no proof.
    StrangersLetIn,
    /// A proof is good for everybody who shows it.
    ProofsReplayed,
    /// Resets are due to IDs that nobody gave out.
    ForeignIdsReset,
    /// Resets are not due to IDs of an earlier life.
    OwnIdsDisowned,
    /// A restarted exit has another reset key.
    #[cfg(test)]
    ResetKeyLost,
    /// A client does not prove that it knows the exit's key.
    ProofLeftOut,
    /// A datagram is handed over twice.
    DatagramTwice,
    /// A connection's own timers are not kept.
    TimersForgotten,
    /// Nobody is told that there is room for datagrams again.
    RoomUntold,
    /// Nobody is told that a connection has ended.
    EndUntold,
    /// What a connection has to tell its endpoint, such as reset tokens, does not reach it.
    EndpointUntold,
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
    pub(crate) const ALL: [Self; 11] = [
        Self::StrangersLetIn,
        Self::ProofsReplayed,
        Self::ForeignIdsReset,
        Self::OwnIdsDisowned,
        Self::ResetKeyLost,
        Self::ProofLeftOut,
        Self::DatagramTwice,
        Self::TimersForgotten,
        Self::RoomUntold,
        Self::EndUntold,
        Self::EndpointUntold,
    ];
}
