//! Runs races, in which the client tries several exits and addresses, and evaluates the winners.

use std::collections::HashMap;
use std::time::Instant;

use warren_quic::driver::ConnectionId;
use warren_session::client::{ConnectionEnd, Race};

use super::ordered::Ordered;
use super::running_race::{Purpose, RunningRace};
use super::{Connections, Ended, LookupAnswer, Which, Winner, close_quietly};
use crate::exits::Way;
use crate::kill_switch::Lockdown;
use warren_tunnel::WorkerHandle;

impl Connections {
    /// Whether a race is under way for this purpose.
    pub(super) fn races_for(&self, purpose: Purpose) -> bool {
        self.race.as_ref().is_some_and(|race| race.purpose == purpose)
    }

    /// Starts a race, and ends any race under way. Known addresses are tried immediately, while names are looked up.
    pub(in crate::daemon) async fn start_race(
        &mut self,
        worker: &WorkerHandle,
        lockdown: &Lockdown,
        purpose: Purpose,
    ) {
        // There is one race at a time, because its winner becomes the one connection 0.
        self.abort_race(worker).await;
        let now = Instant::now();
        let places = match purpose {
            Purpose::Failback => self.exits.preferred(now),
            Purpose::Nearer => self.nearer.clone(),
            Purpose::Leave => self.exits.other_members(now),
            Purpose::Attempt | Purpose::Scout => self.exits.order(now),
        };
        let places = self.exits.with_ranks(&places);
        // A `Scout` race does not try the address in use, because the silent connections to it stay open.
        let excluded = self.own.way.filter(|_| purpose == Purpose::Scout);
        // The race does not end before the look-ups do, because they may find further addresses.
        let mut race = Race::new(!places.is_empty());
        for (place, rank) in &places {
            self.exits.enter(&mut race, *place, *rank, now, excluded);
            self.lookups.start(*place, &self.exits.exit(*place).endpoint, lockdown);
        }
        self.races += 1;
        self.race = Some(RunningRace {
            number: self.races,
            purpose,
            race,
            begun: now,
            awaited: places.iter().map(|(place, _)| *place).collect(),
            places,
            excluded,
            runners: HashMap::new(),
            failure: None,
        });
    }

    /// Stores the looked-up addresses of an exit. Returns whether a race is under way, which may now try these addresses too.
    pub(in crate::daemon) fn take_lookup(&mut self, LookupAnswer { place, addresses }: LookupAnswer) -> bool {
        self.lookups.ended(place);
        let learnt = self.exits.learn(place, addresses);
        let Some(race) = &mut self.race else { return false };
        if let Some((_, rank)) = race.places.iter().find(|(other, _)| *other == place) {
            self.exits.enter(&mut race.race, place, *rank, race.begun, race.excluded);
        }
        if let Err(error) = learnt {
            race.failure = Some(ConnectionEnd::Lost(error));
        }
        race.awaited.remove(&place);
        if race.awaited.is_empty() {
            race.race.complete();
        }
        true
    }

    /// When the next connection of the race must be started.
    pub(in crate::daemon) fn race_due(&self) -> Option<Instant> {
        self.race.as_ref()?.race.due()
    }

    /// Starts the connections of the race that are due. If every way has failed and the session waits for connection 0, returns
    /// this failure as the end of connection 0.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(in crate::daemon) async fn run_race(
        &mut self,
        worker: &WorkerHandle,
        lockdown: &mut Lockdown,
    ) -> anyhow::Result<Option<Ended>> {
        while let Some(race) = &mut self.race
            && let Some(way) = race.race.begin(Instant::now())
        {
            let ordered = Ordered::for_race(race.number, way);
            // If the connection cannot be opened, it has failed in the race. The session is told only of the race's
            // end.
            self.open(worker, lockdown, 0, ordered).await?;
        }
        let Some(lost) = self.race.take_if(|race| race.race.is_lost()) else { return Ok(None) };
        match lost.purpose {
            Purpose::Attempt => {
                return Ok(Some(Ended { which: Which::InUse, index: 0, end: lost.into_failure() }));
            }
            // The session's silent connections still exist and the exit may answer on them again, so the session has lost
            // nothing.
            Purpose::Scout | Purpose::Nearer | Purpose::Leave => {}
            Purpose::Failback => {
                self.failback.answered(false);
            }
        }
        Ok(None)
    }

    /// Removes a connection from the race because its handshake is done. `None` if it took no part in the race.
    pub(in crate::daemon) fn take_runner(&mut self, connection: ConnectionId) -> Option<(Purpose, Way)> {
        let race = self.race.as_mut()?;
        let way = race.runners.remove(&connection)?;
        Some((race.purpose, way))
    }

    /// Decides how the session uses the winner of a race.
    pub(in crate::daemon) fn judge_winner(&mut self, purpose: Purpose, way: Way) -> Winner {
        // Records that the exit has proven its key at this address, even if it is too early to move to the address.
        self.exits.works(way);
        if purpose == Purpose::Failback && !self.failback.answered(true) {
            return Winner::TooEarly;
        }
        match purpose {
            // A session belongs to one exit, so another exit needs a new session, whatever the race was for.
            _ if !self.exits.is_same_exit(way.exit, self.exits.current()) => Winner::OtherExit,
            Purpose::Attempt => Winner::Awaited,
            Purpose::Scout | Purpose::Failback | Purpose::Nearer | Purpose::Leave => Winner::OtherWay,
        }
    }

    /// Ends the race, if there is one, without a winner.
    pub(in crate::daemon) async fn abort_race(&mut self, worker: &WorkerHandle) {
        let Some(race) = self.race.take() else { return };
        for connection in race.runners.into_keys() {
            close_quietly(worker, connection).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Lookups;
    use super::*;
    use crate::exits::Exits;
    use crate::lookup::NameServers;

    #[test]
    fn winner_gives_the_session_a_connection_another_way_or_another_exit() {
        let mut connections = connections();
        let (first, second) = (way(0, "192.0.2.1:443"), way(1, "192.0.2.2:443"));

        assert_eq!(connections.judge_winner(Purpose::Attempt, first), Winner::Awaited);
        assert_eq!(connections.judge_winner(Purpose::Scout, first), Winner::OtherWay);
        assert_eq!(connections.judge_winner(Purpose::Attempt, second), Winner::OtherExit);
        assert_eq!(connections.judge_winner(Purpose::Scout, second), Winner::OtherExit);
    }

    #[test]
    fn client_goes_back_to_an_exit_that_has_answered_several_times() {
        let mut connections = connections();
        connections.exits.use_exit(1);
        connections.failback.uses(Instant::now(), 1);
        let first = way(0, "192.0.2.1:443");

        let winners = [(); 3].map(|()| connections.judge_winner(Purpose::Failback, first));

        assert_eq!(winners, [Winner::TooEarly, Winner::TooEarly, Winner::OtherExit]);
    }

    fn connections() -> Connections {
        let exits = Exits::at(&["192.0.2.1:443", "192.0.2.2:443"]);
        Connections::new(exits, Lookups::new(NameServers::default()))
    }

    fn way(exit: usize, remote: &str) -> Way {
        Way { exit, remote: remote.parse().unwrap() }
    }
}
