//! Enrolment with an invitation. The store must confirm it before the client is told.

use std::time::Instant;

use super::connections::Phase;
use super::store::{Claim, Enrolment, STORE_TIMEOUT};
use super::{Deadline, ExitAction, ExitSessions, StoreRefusal, StoreRequestId};
use crate::PublicKey;
use crate::clients::RowId;
use crate::goodbye::Goodbye;
use crate::invite::InviteToken;
use crate::message::{Enrol, Enrolled, Message};
use crate::planted::{Bug, is_planted};

impl ExitSessions {
    /// Enrols the key that the connection proved. The deadline for the client's next message stays the same.
    pub(super) fn enrol(
        &mut self,
        now: Instant,
        connection: u64,
        key: PublicKey,
        enrol: &Enrol,
    ) -> Result<(), Goodbye> {
        let token = InviteToken::from_wire(&enrol.token).ok_or(Goodbye::InvitationVoid)?;
        if let Some(id) = self.store.claimed(&Claim::Key(key)) {
            return self.join(now, connection, id, &token);
        }
        let wall = self.clock.at(now);
        let (redeemed, changes) = self
            .registry
            .changes_of(|registry| registry.redeem(&token, key, wall).ok_or(Goodbye::InvitationVoid))?;
        // The key was enrolled before, and its client asks again. There is nothing to store.
        if !redeemed.is_new {
            self.send(connection, &Message::Enrolled(Enrolled { name: redeemed.name }));
            return Ok(());
        }
        if self.fleet.is_clock_wrong {
            // This clock is wrong, so an expired invitation could still look valid.
            return Err(Goodbye::NotStored);
        }
        if is_planted(Bug::EnrolledTooEarly) {
            self.send(connection, &Message::Enrolled(Enrolled { name: redeemed.name }));
        }
        let enrolment = Enrolment { key, token: token.digest(), waiting: [connection].into() };
        // Until the store has answered, another key may still get the token, or another client the name.
        let request = self.ask(changes, Some(enrolment)).ok_or(Goodbye::NotStored)?;
        self.wait_for_store(now, connection, request);
        Ok(())
    }

    /// If a client asks again, makes it wait for the answer to its first request.
    fn join(
        &mut self,
        now: Instant,
        connection: u64,
        id: StoreRequestId,
        token: &InviteToken,
    ) -> Result<(), Goodbye> {
        let token = RowId::Invitation(token.digest());
        if !self.store.proposed(id).iter().any(|change| change.id() == token) {
            return Err(Goodbye::NotStored);
        }
        self.store.waiting(id).map(|waiting| waiting.insert(connection));
        self.wait_for_store(now, connection, id);
        Ok(())
    }

    fn wait_for_store(&mut self, now: Instant, connection: u64, request: StoreRequestId) {
        let Some((_, Phase::Waiting { deadline, enrolled })) = self.connections.phase(connection) else {
            return;
        };
        let patience = deadline.min(now + STORE_TIMEOUT);
        self.change_phase(connection, Phase::Storing { request, patience, deadline, enrolled });
    }

    /// Changes the phase of a connection that is not attached, and its deadline.
    fn change_phase(&mut self, connection: u64, phase: Phase) {
        let before = self.connections.phase(connection).and_then(|(_, before)| before.deadline());
        before.inspect(|at| self.deadlines.remove(*at, Deadline::Handshake(connection)));
        self.connections.set_phase(connection, phase);
        if let Some(at) = phase.deadline().filter(|_| !is_planted(Bug::HandshakeNeverTimesOut)) {
            self.deadlines.add(at, Deadline::Handshake(connection));
        }
    }

    /// Answers the clients that wait for the store.
    pub(super) fn answer_enrolment(
        &mut self,
        now: Instant,
        enrolment: Enrolment,
        outcome: Result<(), StoreRefusal>,
    ) {
        let Enrolment { key, token, waiting } = enrolment;
        // An upgraded client has the key as its next one.
        let name = self.registry.enrolled(key).map(|client| client.name.clone());
        if let (Ok(()), Some(name)) = (outcome, &name) {
            self.actions.push_back(ExitAction::Enrolled { name: name.clone() });
        }
        let is_void = !self.registry.admits(token, key, self.clock.at(now));
        for connection in waiting {
            let Some((_, Phase::Storing { deadline, enrolled, .. })) = self.connections.phase(connection)
            else {
                continue;
            };
            self.change_phase(connection, Phase::Waiting { deadline, enrolled });
            match (&name, outcome) {
                // The outcome of this request does not matter: if the store refused, another exit has enrolled the key meanwhile.
                (Some(name), _) => {
                    self.send(connection, &Message::Enrolled(Enrolled { name: name.clone() }));
                    // Messages that came while the connection waited were not read.
                    self.read(now, connection);
                }
                // Meanwhile, the invitation was withdrawn or used by another key, as the store has shown.
                (None, Ok(()) | Err(StoreRefusal::Conflict)) if is_void => {
                    self.refuse(now, connection, Goodbye::InvitationVoid);
                }
                (None, _) => self.refuse(now, connection, Goodbye::NotStored),
            }
        }
    }
}
