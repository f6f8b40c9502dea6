//! Bugs planted on purpose in the resequencer. Its simulation must find each one.

warren_simulation::planted_bugs! {
    /// A missing number holds back its lane for ever.
    HoleNeverGivenUp,
    /// A repeated datagram is released again.
    RepetitionReleased,
    /// A repeated datagram replaces the one that is held.
    HeldReplaced,
    /// A datagram is released before a lower number that may still come.
    OrderNotKept,
    /// A datagram is dropped because its lane has skipped its number.
    LateDropped,
    /// More is held than the limits allow.
    LimitsIgnored,
    /// A datagram whose number is far ahead makes its lane drop everything that it holds.
    HeldDroppedOnJump,
    /// The lane waits for numbers although the peer said that they never come.
    NothingBelowIgnored,
    /// Numbers do not wrap.
    WrapMissed,
}
