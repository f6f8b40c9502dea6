//! Bugs planted on purpose. The simulation of whole endpoints must find each one.

warren_simulation::planted_bugs! {
    /// A silent exit accepts a client without proof.
    StrangersLetIn,
    /// A proof is accepted from every address.
    ProofsReplayed,
    /// An exit resets connection IDs that no exit issued.
    ForeignIdsReset,
    /// Connection IDs of an earlier process are not reset.
    OwnIdsDisowned,
    /// A restart changes the exit's reset key.
    ResetKeyLost,
    /// A client does not prove that it knows the exit's key.
    ProofLeftOut,
    /// A datagram is delivered twice.
    DatagramTwice,
    /// A connection's timers are ignored.
    TimersForgotten,
    /// The exit or client is not told that a connection has room again.
    RoomUntold,
    /// The end of a connection is not reported.
    EndUntold,
    /// A connection's events for its endpoint, such as reset tokens, are lost.
    EndpointUntold,
    /// A datagram that should be kept is sent but not kept.
    KeptNot,
    /// A lost datagram is returned twice.
    LostTwice,
    /// The loss of kept datagrams is not reported.
    LostUntold,
    /// A lost datagram is returned with another one's context.
    ContextMixed,
    /// Lost datagrams that do not fit into the inbox are never returned.
    LostRemainderLeft,
    /// Kept datagrams are given up without being counted.
    ForgottenUncounted,
}
