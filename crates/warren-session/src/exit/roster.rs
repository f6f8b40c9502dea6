//! Sends the roster of the exit's fleet to clients that follow rosters.

use super::fleet_news::FleetNews;
use super::updates::takes;
use super::{ExitSessions, SessionId};
use crate::ROSTER;
use crate::message::{self, ExitLoad, Message};
use crate::planted::{Bug, is_planted};
use crate::roster::{FollowedFleet, MAX_ROSTER_EXITS, RosterNews, RosterRefusal, SignedRoster};

impl ExitSessions {
    /// The fleet whose roster clients get. The caller saves it, so that the exit knows the fleet's key after a restart.
    pub fn fleet(&self) -> Option<&FollowedFleet> {
        self.config.fleet.fleet.as_ref()
    }

    /// Accepts a signed roster, and sends it to all clients that follow rosters. The first roster determines the fleet's key. From
    /// then on, only newer rosters signed by that key are accepted.
    ///
    /// # Errors
    ///
    /// Why the roster is not accepted. In that case no client gets it.
    pub fn set_roster(&mut self, signed: &[u8]) -> Result<RosterNews, RosterRefusal> {
        let news = match &mut self.config.fleet.fleet {
            Some(fleet) => fleet.take(signed)?,
            None => {
                let first = SignedRoster::decode(signed).map_err(RosterRefusal::Invalid)?;
                self.config.fleet.fleet = Some(FollowedFleet::begin(first));
                RosterNews::Newer
            }
        };
        if news != RosterNews::Known
            && let Some(roster) = self.roster()
        {
            let hearing: Vec<_> =
                self.sessions.values().filter(|each| takes(each, ROSTER)).map(|each| each.id).collect();
            hearing.into_iter().for_each(|id| self.tell_roster(id, &roster));
        }
        Ok(news)
    }

    /// Sets the loads of the fleet's exits. Clients get them when they connect, and with the next roster.
    pub fn set_loads(&mut self, mut loads: Vec<ExitLoad>) {
        // Bounds the length of the message. A roster never has more exits than this.
        loads.truncate(MAX_ROSTER_EXITS);
        self.config.fleet.loads = loads;
    }

    /// Sends the roster on a session's connection that has just said `Hello`, unless its client has this roster or a newer one.
    pub(super) fn offer_roster(&mut self, id: SessionId, connection: u64, known: Option<&message::Fleet>) {
        let Some(fleet) = self.fleet() else { return };
        let Some(session) = self.sessions.get(&id).filter(|session| takes(session, ROSTER)) else { return };
        debug_assert_eq!(session.attached().next(), Some((0, connection)), "Hello comes on connection 0");
        let roster = fleet.roster();
        let is_known =
            known.is_some_and(|known| known.name == roster.fleet.as_str() && known.serial >= roster.serial);
        let signed = if is_known { Vec::new() } else { fleet.signed().as_bytes().to_vec() };
        let loads = self.config.fleet.loads.clone();
        if !is_known && let Some(session) = self.sessions.get_mut(&id) {
            // Connections that join later send the roster again, because this connection may break before the client has the
            // roster.
            session.told.roster = true;
        }
        if !(signed.is_empty() && loads.is_empty()) {
            self.send(connection, &Message::Roster(message::Roster { signed, loads }));
        }
    }

    /// Sends the roster on a connection that has just joined a session, if the client lacked the roster when it opened the session.
    /// Every connection on which the roster was sent may have broken since.
    pub(super) fn repeat_roster(&mut self, id: SessionId, connection: u64) {
        let has_news = self.sessions.get(&id).is_some_and(|session| session.told.roster);
        if has_news
            && !is_planted(Bug::RosterNotRepeated)
            && let Some(roster) = self.roster()
        {
            self.send(connection, &roster);
        }
    }

    /// Sends the roster to a session's client on every connection, because one of them may be about to break.
    fn tell_roster(&mut self, id: SessionId, roster: &Message) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.told.roster = true;
        if is_planted(Bug::RosterNotSent) {
            return;
        }
        let connections: Vec<_> = session.attached().map(|(_, connection)| connection).collect();
        connections.into_iter().for_each(|connection| self.send(connection, roster));
    }

    fn roster(&self) -> Option<Message> {
        let FleetNews { fleet, loads } = &self.config.fleet;
        let signed = fleet.as_ref()?.signed().as_bytes().to_vec();
        Some(Message::Roster(message::Roster { signed, loads: loads.clone() }))
    }
}
