//! Bugs planted on purpose. The simulation of sessions must find each one.

warren_simulation::planted_bugs! {
    /// A session gets the addresses of another one.
    LeaseGivenTwice,
    /// A lease is granted before it is persisted.
    LeaseNotPersisted,
    /// Where the pool is full, the lease of a client that is online is taken.
    OnlineLeaseTaken,
    /// The session that a key has goes on beside its new one.
    PreviousSessionKept,
    /// A session's number is that of the one before.
    NumberUsedTwice,
    /// Any token attaches.
    StaleAttachToken,
    /// Any enrolled key attaches with a session's token.
    AttachByAnotherKey,
    /// A client is told that it is attached before the packet path is.
    AttachedTooEarly,
    /// The connection that an attached one replaces is not detached.
    ReplacedNotDetached,
    /// A connection is closed without a word.
    LostGoodbye,
    /// A session without connections never ends.
    SessionNeverTimesOut,
    /// A connection may wait for its first message for ever.
    HandshakeNeverTimesOut,
    /// A removed client's session goes on.
    RevokedSessionKept,
    /// The client comes back after a reason that is final.
    FinalGoodbyeIgnored,
    /// The client holds on to a session that the exit has forgotten.
    ForgottenSessionKept,
    /// The client plans no next attempt after a loss.
    RetryForgotten,
    /// The client's packet path keeps a connection that is gone.
    LostLinkNotDetached,
    /// A client's old key opens sessions beside the one that took its place.
    OldKeyAccepted,
    /// A key that nobody set takes the place of a client's.
    UnsetKeyTaken,
    /// A client that is disabled takes its next key.
    DisabledTakesNextKey,
    /// A client's addresses stay with its old key.
    LeaseLostWithKey,
    /// The session of a client's old key goes on beside that of the next.
    OldKeySessionKept,
    /// The session of a client goes on whose addresses or prefixes were changed.
    ChangedSessionKept,
    /// A client gets every prefix that it wants.
    UnsetPrefixGranted,
    /// A change that could not be saved stays.
    UnsavedChangeKept,
    /// A step of the wall clock ends every session.
    ClockStepEndsSessions,
    /// Invitations expire by the wall clock as it was before it was set.
    ClockStepIgnored,
    /// An invitation that has expired enrols.
    ExpiredInvitationTaken,
    /// A key that was removed is enrolled again.
    RemovedKeyEnrolled,
}
