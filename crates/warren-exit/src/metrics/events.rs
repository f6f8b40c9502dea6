//! Counts of what happened since the exit started: handshakes, sessions and connections.

use std::collections::BTreeMap;

use warren_session::exit::{EndReason, ExitAction};
use warren_session::goodbye::{Goodbye, Violation};

/// Counts of events. Every reason is present from the start, with a count of zero.
#[derive(Clone, Debug)]
pub(crate) struct EventCounts {
    /// TLS handshakes that were completed, including those of peers that are not enrolled.
    pub(super) handshakes: u64,
    pub(super) sessions_opened: u64,
    /// Clients that enrolled themselves by invitation.
    pub(super) enrolments: u64,
    /// Sessions that ended, by reason.
    pub(super) sessions_ended: BTreeMap<&'static str, u64>,
    /// Connections that the exit closed, by reason.
    pub(super) connections_closed: BTreeMap<&'static str, u64>,
}

impl Default for EventCounts {
    fn default() -> Self {
        let goodbyes = Goodbye::ALL.into_iter().chain([Goodbye::Protocol(Violation::Malformed)]);
        Self {
            handshakes: 0,
            sessions_opened: 0,
            enrolments: 0,
            // All reasons start at zero. Prometheus sees no increase in a series that begins above zero, so it would miss each
            // reason's first event.
            sessions_ended: EndReason::NAMES.into_iter().map(|name| (name, 0)).collect(),
            connections_closed: goodbyes.map(|reason| (reason.name(), 0)).collect(),
        }
    }
}

impl EventCounts {
    /// Counts a completed handshake.
    pub(crate) fn connected(&mut self) {
        self.handshakes += 1;
    }

    /// Counts an action that the sessions' state machine decided on.
    pub(crate) fn count(&mut self, action: &ExitAction) {
        match action {
            ExitAction::Open { .. } => self.sessions_opened += 1,
            ExitAction::Enrolled { .. } => self.enrolments += 1,
            ExitAction::End { reason, .. } => *self.sessions_ended.entry(reason.name()).or_default() += 1,
            ExitAction::Close { reason, .. } => {
                *self.connections_closed.entry(reason.name()).or_default() += 1;
            }
            ExitAction::Send { .. }
            | ExitAction::Attach { .. }
            | ExitAction::SetWireGuard { .. }
            | ExitAction::Stays { .. }
            | ExitAction::Detach { .. }
            | ExitAction::Store(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_there_before_it_happens() {
        let events = EventCounts::default();
        assert_eq!(events.connections_closed.len(), Goodbye::ALL.len() + 1, "names are unique");
        for reason in [
            EndReason::TimedOut,
            EndReason::Replaced,
            EndReason::Superseded,
            EndReason::Revoked,
            EndReason::Disabled,
            EndReason::Changed,
            EndReason::KeyRetired,
            EndReason::ClientStopped,
            EndReason::Shutdown(Goodbye::Draining),
        ] {
            assert!(events.sessions_ended.contains_key(reason.name()), "{reason:?}");
        }
    }
}
