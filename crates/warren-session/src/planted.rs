//! Bugs planted on purpose. The simulation of sessions must find each one.

warren_simulation::planted_bugs! {
    /// A session gets the addresses of another session.
    LeaseGivenTwice,
    /// A lease is granted before it is persisted.
    LeaseNotPersisted,
    /// In a fleet, a client that has no addresses yet gets some without the store.
    LeasedWithoutStore,
    /// A full pool takes back the lease of an online client.
    OnlineLeaseTaken,
    /// A key's old session continues beside its new one.
    PreviousSessionKept,
    /// A session reuses the number of the previous one.
    NumberUsedTwice,
    /// Any token is accepted in Attach.
    StaleAttachToken,
    /// Any enrolled key can attach with a session's token.
    AttachByAnotherKey,
    /// A client is told that its connection is attached before the packet path has attached it.
    AttachedTooEarly,
    /// A replaced connection is not detached.
    ReplacedNotDetached,
    /// A connection is closed without a Goodbye.
    LostGoodbye,
    /// A session without connections never ends.
    SessionNeverTimesOut,
    /// A connection may wait for its first message forever.
    HandshakeNeverTimesOut,
    /// A removed client's session continues.
    RevokedSessionKept,
    /// The client reconnects after a final reason.
    FinalGoodbyeIgnored,
    /// The client holds on to a session that the exit has forgotten.
    ForgottenSessionKept,
    /// The client plans no next attempt after a loss.
    RetryForgotten,
    /// The client's packet path keeps a lost connection.
    LostLinkNotDetached,
    /// A client's old key still opens sessions after its rotation.
    OldKeyAccepted,
    /// A key that nobody set replaces a client's key.
    UnsetKeyTaken,
    /// A disabled client takes its next key.
    DisabledTakesNextKey,
    /// A client's addresses stay with its old key after a rotation.
    LeaseLostWithKey,
    /// The session of a client's old key survives a rotation.
    OldKeySessionKept,
    /// A client's session survives a change of its addresses or prefixes.
    ChangedSessionKept,
    /// A client is granted every prefix that it asks for.
    UnsetPrefixGranted,
    /// A change that could not be saved stays in force.
    UnsavedChangeKept,
    /// A step of the wall clock ends every session.
    ClockStepEndsSessions,
    /// Invitations expire by the wall clock as it was before its last step.
    ClockStepIgnored,
    /// An expired invitation enrols a key.
    ExpiredInvitationTaken,
    /// A removed key is enrolled again.
    RemovedKeyEnrolled,
    /// A client is told that it is enrolled before the enrolment is stored.
    EnrolledTooEarly,
    /// While the store has not answered for a first key, the same token enrols a second key.
    TokenTakenTwice,
    /// A change that is in force and that the store has refused is not sent again.
    UnsavedForgotten,
    /// A removal by another exit changes nothing here.
    RemovalElsewhereIgnored,
    /// A change that was stored before a client was disabled enables it again.
    ShutOutOverwritten,
    /// An address that goes to another client also stays with its former holder.
    AddressTakenTwice,
    /// A client takes an update that is older than the one that it has.
    StaleUpdateTaken,
    /// An update does not reach the sessions that are open.
    UpdateNotSent,
    /// A connection that joins a session later is not told what has changed since its Welcome.
    UpdateNotRepeated,
    /// A newer roster does not reach the sessions that are open.
    RosterNotSent,
    /// A connection that joins a session later does not get the roster that has come since its Welcome.
    RosterNotRepeated,
    /// A row that waits for the answer to a proposal is forgotten.
    HeldRowForgotten,
    /// A change that the store lacks is forgotten in a restart of the exit.
    UnsentForgotten,
    /// A lease that only this exit has granted wins over a lease that the store has.
    OwnLeaseWins,
    /// Rows that a whole copy of the store does not contain stay at the exit.
    GoneRowsKept,
    /// A session continues although another host has opened one with the same key at another exit.
    ElsewhereIgnored,
    /// A client that moves to another exit is told that another host has replaced it.
    MovedCutOff,
}
