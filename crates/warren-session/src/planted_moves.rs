//! Bugs planted on purpose. The simulation of moves between two exits must find each one.

warren_simulation::planted_bugs! {
    /// A client that stays at an exit after a failed move does not tell the exit.
    StayUnsaid,
    /// An exit ignores that a client stays.
    StayIgnored,
    /// An exit ends its session in favour of a session at another exit, although its own session is newer.
    NewerSessionLeft,
    /// The new session is used as soon as it is open.
    UnprovenSwitch,
    /// The client does not return to the old session although the new one carries nothing.
    NoWayBack,
    /// The client does not switch to the new session when the one in use is lost.
    LostWithoutSuccessor,
    /// The session that the client has left never ends.
    LeftSessionKept,
    /// The session that the client has left is kept although its path is dead.
    DeadPathKept,
}
