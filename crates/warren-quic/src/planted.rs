//! Bugs planted on purpose. The simulation of whole endpoints must find each one.

warren_simulation::planted_bugs! {
    /// A silent exit lets in whom has no proof.
    StrangersLetIn,
    /// A proof is good for everybody who shows it.
    ProofsReplayed,
    /// Resets are due to IDs that nobody gave out.
    ForeignIdsReset,
    /// Resets are not due to IDs of an earlier life.
    OwnIdsDisowned,
    /// A restarted exit has another reset key.
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
