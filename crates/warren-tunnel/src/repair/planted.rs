//! Bugs planted on purpose in the sender's half of repair. Its simulation must find each one.

warren_simulation::planted_bugs! {
    /// More is sent again than the budget allows.
    BudgetIgnored,
    /// The extra copy that follows the last attempt is not charged to the budget.
    CopyFree,
    /// A datagram is repaired as often as it is lost.
    RoundsIgnored,
    /// The last repair is not sent again.
    CopyNeverSent,
    /// A lost datagram of the unordered lane is repaired however old it is.
    StaleRepaired,
    /// The peer is not told of a datagram that was given up.
    GivenUpUntold,
    /// The peer is told to give up one more datagram than the sender gave up.
    GivenUpTooFar,
    /// Datagrams are numbered for a peer that does not support numbered datagrams.
    OldPeerNumbered,
    /// A path never counts as clean.
    NeverOff,
    /// Lost datagrams are repaired even on a path that loses too many for that.
    TooLossyRepaired,
    /// Two datagrams of a lane have the same number now and then.
    NumberReused,
    /// The number of a datagram that was not sent is never used.
    NumberNotTakenBack,
    /// A repair that the transport has no room for is dropped.
    NotPutBack,
}
