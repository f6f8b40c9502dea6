//! Handles clients that wait for the store. The store must confirm each enrolment with an invitation, and in a fleet also a
//! client's first addresses.

use std::convert::Infallible;
use std::time::Instant;

use super::claims::Claim;
use super::connections::Phase;
use super::store::{Awaited, STORE_TIMEOUT};
use super::{Deadline, ExitSessions, StoreRequestId};
use crate::PublicKey;
use crate::clients::RowId;
use crate::goodbye::Goodbye;
use crate::invite::InviteToken;
use crate::message::{Enrol, Enrolled, Hello, Message};
use crate::planted::{Bug, is_planted};
use crate::pool::{Lease, Leased};

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
            // If the key has a request with another invitation, that request does not answer this connection.
            let token = RowId::Invitation(token.digest());
            let is_same = self.store.proposed(id).iter().any(|change| change.id() == token);
            let joined = is_same.then(|| self.join(now, connection, id, None)).flatten();
            return joined.ok_or(Goodbye::NotStored);
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
            // With a wrong clock, this exit could take an expired invitation for a valid one.
            return Err(Goodbye::NotStored);
        }
        if is_planted(Bug::EnrolledTooEarly) {
            self.send(connection, &Message::Enrolled(Enrolled { name: redeemed.name }));
        }
        let awaited = Awaited { key, token: Some(token.digest()), waiting: [(connection, None)].into() };
        // Until the store has answered, another key may still use the token, or another client may take the name.
        let request = self.ask(changes, Some(awaited)).ok_or(Goodbye::NotStored)?;
        self.wait_for_store(now, connection, request);
        Ok(())
    }

    /// Asks the store for a client's first addresses, because other exits assign addresses of the same networks. The client's
    /// `Hello` is answered once the store has confirmed the addresses.
    pub(super) fn lease_first(
        &mut self,
        now: Instant,
        connection: u64,
        (key, hello): (PublicKey, Hello),
        planned: &Leased,
    ) -> Result<(), Goodbye> {
        if let Some(id) = self.store.claimed(&Claim::Key(key)) {
            return self.join(now, connection, id, Some(hello)).ok_or(Goodbye::NotStored);
        }
        let awaited = Awaited { key, token: None, waiting: [(connection, Some(hello))].into() };
        let request = self.ask_for_lease(key, planned, Some(awaited)).ok_or(Goodbye::NotStored)?;
        self.wait_for_store(now, connection, request);
        Ok(())
    }

    /// Asks the store for the addresses that a client would get.
    pub(super) fn ask_for_lease(
        &mut self,
        key: PublicKey,
        planned: &Leased,
        awaited: Option<Awaited>,
    ) -> Option<StoreRequestId> {
        // The request also contains the rows of the clients that lose these addresses, so the store never has one address in two
        // rows.
        let losers = planned.taken_from.iter().map(|loser| (*loser, self.without(*loser, planned.lease)));
        let leases: Vec<_> = losers.chain([(key, planned.lease)]).collect();
        let Ok(((), changes)) = self.registry.changes_of(|registry| {
            leases.into_iter().for_each(|(key, lease)| _ = registry.record_lease(key, lease));
            Ok::<_, Infallible>(())
        });
        self.ask(changes, awaited)
    }

    /// A client's lease without the addresses of the lease `other`.
    fn without(&self, key: PublicKey, other: Lease) -> Lease {
        let lease = self.pool.lease_of(key);
        Lease {
            ipv4: lease.ipv4.filter(|address| other.ipv4 != Some(*address)),
            ipv6: lease.ipv6.filter(|address| other.ipv6 != Some(*address)),
        }
    }

    /// Makes a connection wait for the answer to a request that another connection of its key has caused. Returns `None` if no
    /// connection waits for that request, or if the other connections wait for something else.
    fn join(
        &mut self,
        now: Instant,
        connection: u64,
        id: StoreRequestId,
        hello: Option<Hello>,
    ) -> Option<()> {
        let awaited = self.store.awaited(id).filter(|awaited| awaited.token.is_none() == hello.is_some())?;
        awaited.waiting.insert(connection, hello);
        self.wait_for_store(now, connection, id);
        Some(())
    }

    fn wait_for_store(&mut self, now: Instant, connection: u64, request: StoreRequestId) {
        let Some((_, Phase::Waiting { deadline, enrolled })) = self.connections.phase(connection) else {
            return;
        };
        // Waiting for the store must not extend the time that a client has for its Hello.
        let patience = deadline.min(now + STORE_TIMEOUT);
        self.change_phase(connection, Phase::Storing { request, patience, deadline, enrolled });
    }

    /// Changes the phase of a connection that is not attached, and its deadline.
    pub(super) fn change_phase(&mut self, connection: u64, phase: Phase) {
        let before = self.connections.phase(connection).and_then(|(_, before)| before.deadline());
        before.inspect(|at| self.deadlines.remove(*at, Deadline::Handshake(connection)));
        self.connections.set_phase(connection, phase);
        if let Some(at) = phase.deadline().filter(|_| !is_planted(Bug::HandshakeNeverTimesOut)) {
            self.deadlines.add(at, Deadline::Handshake(connection));
        }
    }
}
