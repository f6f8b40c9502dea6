//! The attempts to connect: when each begins, and the changes of state that come with success and loss.

use std::time::{Duration, Instant};

use super::link::{Link, Phase};
use super::{ClientAction, ClientSession, ClientState, Loss, backoff};
use crate::goodbye::Goodbye;
use crate::message::{self, Message, MessageDecoder};
use crate::planted::{Bug, is_planted};

impl ClientSession {
    pub(super) fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(usize::try_from(index).ok()?)
    }

    pub(super) fn link_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.links.get_mut(usize::try_from(index).ok()?)
    }

    /// Number of connections that carry traffic.
    pub(super) fn up_count(&self) -> u32 {
        let attached = self.links.iter().filter(|link| link.attached_since().is_some()).count();
        u32::try_from(attached).expect("at most MAX_CONNECTIONS")
    }

    /// Begins an attempt.
    pub(super) fn attempt(&mut self, now: Instant, index: u32) {
        let Some(link) = self.link_mut(index) else { return };
        let outage = link.outage.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        link.phase = Phase::Connecting { deadline: now + backoff::patience(outage) };
        link.attempted = Some(now);
        link.decoder = MessageDecoder::new();
        self.actions.push_back(ClientAction::Connect { index });
    }

    /// Lets traffic flow on a connection. If it is the first one, makes the others connect.
    pub(super) fn attached(&mut self, now: Instant, index: u32) {
        let was_down = self.up_count() == 0;
        let Some(link) = self.link_mut(index) else { return };
        link.phase = Phase::Attached { since: now };
        self.actions.push_back(ClientAction::Attach { index });
        self.state = ClientState::Up { attached: self.up_count() };
        if self.stays {
            self.say_stay(index);
        }
        if was_down {
            // The exit may grant fewer connections than this client asked for.
            let granted = self.session.as_ref().map_or(0, |session| session.welcome.connections);
            for other in 0..granted {
                if self.link(other).is_some_and(|link| link.phase == Phase::Parked) {
                    self.attempt(now, other);
                }
            }
        }
    }

    /// Forgets a connection and closes it with `closing`, which is `None` if the connection is closed already. If the connection
    /// carried traffic, returns the time when that began.
    pub(super) fn drop_link(&mut self, index: u32, closing: Option<Goodbye>) -> Option<Instant> {
        let link = self.link_mut(index)?;
        let since = link.attached_since();
        link.phase = Phase::Parked;
        // The empty decoder also ends the loop of `received`, if a message of that loop dropped the link.
        link.decoder = MessageDecoder::new();
        if since.is_some() && !is_planted(Bug::LostLinkNotDetached) {
            self.actions.push_back(ClientAction::Detach { index });
        }
        self.actions.extend(closing.map(|reason| ClientAction::Close { index, reason }));
        since
    }

    pub(super) fn park(&mut self, index: u32) {
        if let Some(link) = self.link_mut(index) {
            link.phase = Phase::Parked;
        }
    }

    /// Plans the next attempt. The first one of an outage starts at once unless the exit answered. Later ones follow the
    /// back-off, counted from the start of the previous attempt.
    pub(super) fn plan(&mut self, now: Instant, index: u32, was_stable: bool, loss: &Loss) {
        let mut random = [0; 2];
        (self.entropy)(&mut random);
        let Some(link) = self.link_mut(index) else { return };
        if was_stable {
            link.outage = None;
        }
        let is_first = link.outage.is_none();
        let outage = now.saturating_duration_since(*link.outage.get_or_insert(now));
        let wait = backoff::wait(outage, u16::from_ne_bytes(random));
        let at = match link.attempted {
            // An exit that answered is reachable. The pause counts from its answer, so that the exit gets time to recover.
            _ if loss.answered => now + wait,
            _ if is_first => now,
            Some(attempted) => (attempted + wait).max(now),
            None => now + wait,
        };
        link.phase = if is_planted(Bug::RetryForgotten) { Phase::Parked } else { Phase::Waiting { at } };
    }

    /// Starts a new outage of connection 0. Called when a stable session was lost.
    pub(super) fn begin_outage(&mut self, now: Instant) {
        if let Some(first) = self.link_mut(0) {
            first.outage = Some(now);
        }
    }

    /// Starts every waiting attempt at once, as at the beginning of an outage.
    pub(super) fn cut_waits_short(&mut self, now: Instant) {
        for link in &mut self.links {
            if matches!(link.phase, Phase::Waiting { .. }) {
                link.phase = Phase::Waiting { at: now };
                link.outage = Some(now);
            }
        }
    }

    /// If the lost connection was stable, makes connection 0 reconnect at once, even if it was waiting for its back-off. Call it
    /// when no connection is left.
    pub(super) fn wake_first(&mut self, now: Instant, was_stable: bool) {
        let Some(first) = self.link_mut(0) else { return };
        if was_stable && !first.is_connection() {
            first.outage = Some(now);
            first.phase = Phase::Waiting { at: now };
        }
    }

    pub(super) fn say_stay(&mut self, index: u32) {
        let bytes = message::encode(&Message::Stay(message::Stay { claim: self.config.claim }));
        self.actions.push_back(ClientAction::Send { index, bytes });
    }
}
