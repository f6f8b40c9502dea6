//! Bugs planted on purpose. The tests must find each one, which shows that they can find real ones.

warren_simulation::planted_bugs! {
    "WARREN_FLEET_PLANTED":
    /// Rows are written, no matter what the store contains.
    ReadThenPut,
    /// A request is checked against the link's knowledge, not against what the exit had seen.
    NewestBasis,
    /// After a compaction, everything is read again, but not compared with the exit's rows.
    CompactionIgnored,
    /// A transaction whose answer was lost counts as failed, although it may still succeed later.
    LateTransactionMissed,
    /// The outcome of a request of an ended exit process counts for the next process's request with the same number.
    NumbersConfused,
    /// A session that waited for the store takes the record from a newer session.
    QueuedClaimOverwrites,
    /// The numbers that a client process gives its sessions are ignored.
    ClaimsIgnored,
    /// A session that has changed while its record was written counts as written.
    LaterChangeForgotten,
    /// A client's record is written each time it changes, without a limit.
    RecordsWithoutPace,
    /// A recovery brings back no removed keys.
    TombstoneForgotten,
    /// A link does not notice that the store was restored from an old backup.
    RestoreUnnoticed,
    /// A link that comes back after a recovery adds no clients that only its copy has.
    NewsForgotten,
    /// After a recovery, the removal of an exit's earlier membership counts for its present one.
    EarlierRemovalObeyed,
    /// Invitations that only one copy has are open again before all exits have come back.
    ReopenedTooEarly,
}

/// Ends the command as SIGKILL would, if the test that runs it names this step. Only builds with debug assertions do this.
pub(crate) fn reached(step: &str) {
    if cfg!(debug_assertions) && std::env::var("WARREN_FLEET_DIES_AT").is_ok_and(|named| named == step) {
        // Unlike a panic, an abort runs no destructors, just as SIGKILL does.
        std::process::abort();
    }
}
