//! One index of the session: its connection, or the time of its next attempt.

use std::time::{Duration, Instant};

use crate::message::MessageDecoder;

/// How long a connection or session must last for its loss to begin a new outage. The loss of a shorter one continues the previous
/// outage. So the client pauses before it retries an exit that accepts a connection and drops it at once.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Whether a connection or session that began at `since` has lasted long enough to count as stable.
pub(super) fn is_stable(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= STABLE_AFTER
}

/// The state of one connection index of the session.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) phase: Phase,
    pub(super) decoder: MessageDecoder,
    /// When the current outage began. Unset while no loss has happened since the connection was last stable.
    pub(super) outage: Option<Instant>,
    /// When the latest attempt began.
    pub(super) attempted: Option<Instant>,
}

/// The state of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Idle, because the session is not open, or because only connection 0 reconnects.
    #[default]
    Parked,
    /// The next attempt begins at this time.
    Waiting { at: Instant },
    /// The QUIC handshake runs.
    Connecting { deadline: Instant },
    /// The client has sent `Hello` and waits for `Welcome`.
    Hello { deadline: Instant },
    /// The client has sent `Attach` and waits for `Attached`.
    Attaching { deadline: Instant },
    /// Traffic flows.
    Attached { since: Instant },
}

impl Link {
    /// When this index needs attention unless an event happens first.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Parked | Phase::Attached { .. } => None,
            Phase::Waiting { at: due }
            | Phase::Connecting { deadline: due }
            | Phase::Hello { deadline: due }
            | Phase::Attaching { deadline: due } => Some(due),
        }
    }

    /// Records an attempt on a connection that the driver already has.
    pub(super) fn attempted(&mut self, now: Instant) {
        self.attempted = Some(now);
        self.decoder = MessageDecoder::new();
    }

    /// Whether the driver has a connection with this index.
    pub(super) fn is_connection(&self) -> bool {
        match self.phase {
            Phase::Parked | Phase::Waiting { .. } => false,
            Phase::Connecting { .. }
            | Phase::Hello { .. }
            | Phase::Attaching { .. }
            | Phase::Attached { .. } => true,
        }
    }

    /// Whether bytes can be sent and received.
    pub(super) fn is_open(&self) -> bool {
        self.is_connection() && !matches!(self.phase, Phase::Connecting { .. })
    }

    pub(super) fn attached_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Attached { since } => Some(since),
            Phase::Parked
            | Phase::Waiting { .. }
            | Phase::Connecting { .. }
            | Phase::Hello { .. }
            | Phase::Attaching { .. } => None,
        }
    }
}
