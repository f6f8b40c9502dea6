//! Follows the exits' fleet: takes its rosters, and chooses among the rosters' exits by round-trip time.

use std::time::{Duration, Instant};

use warren_session::message::Roster;

use super::ExitNews;
use crate::daemon::connections::Purpose;
use crate::daemon::moves::spread_confirmation;
use crate::daemon::sessions::Sessions;
use crate::kill_switch::Lockdown;
use warren_config::ClientProfile;

/// The time until a second measurement, which must confirm that another exit is nearer.
const CONFIRM_AFTER: Duration = Duration::from_secs(20);
/// Interval between regular measurements of the exits.
const MEASURE_EVERY: Duration = Duration::from_secs(3_600);
/// How long to postpone a measurement while there is no session.
const RETRY_AFTER: Duration = Duration::from_secs(30);

impl ExitNews {
    /// Handles the roster and the exits' loads that the exit sends on one of the session's connections. Returns whether the
    /// roster is new.
    pub(in crate::daemon) fn take_roster(
        &mut self,
        profile: &ClientProfile,
        sessions: &Sessions,
        index: u32,
        roster: &Roster,
    ) -> bool {
        self.fleet.take_loads(&roster.loads);
        let by = self.voucher(profile, sessions, index);
        !roster.signed.is_empty() && self.fleet.take(Instant::now(), &roster.signed, by)
    }

    /// Stores the fleet's state, if it has changed.
    pub(in crate::daemon) async fn keep_fleet(&mut self) {
        let Some(fleet) = self.fleet.unsaved() else { return };
        // The fleet's state is used even if it cannot be stored.
        if let Err(error) = self.helper.keep_fleet(fleet).await {
            tracing::warn!(
                "what the client knows of the fleet could not be saved, and will be lost at a restart: {error:#}; check the state directory and its disk"
            );
        }
    }

    /// Begins to measure the exits of the roster, or ends a measurement. After a measurement, the client may look for a
    /// nearer exit. `is_up`: whether the session in use carries packets.
    ///
    /// # Errors
    /// When this process may not mark its sockets.
    pub(in crate::daemon) async fn measure(
        &mut self,
        profile: &ClientProfile,
        sessions: &mut Sessions,
        lockdown: &mut Lockdown,
        is_up: bool,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        let carries_packets = sessions.carries_packets();
        let Sessions { connections, worker, .. } = sessions;
        connections.lookups.follow_tunnel(carries_packets);
        if connections.is_measuring() {
            let round_trips = connections.end_measuring(worker).await;
            self.fleet.measured(&round_trips);
            self.keep_fleet().await;
            self.follow(profile, sessions);
            if self.is_nearer_confirmed(sessions, now, is_up) {
                sessions.start_race(lockdown, Purpose::Nearer).await?;
                sessions.connections.set_nearer(Vec::new());
            }
            return Ok(());
        }
        if !is_up {
            connections.measure_at(now + RETRY_AFTER);
            return Ok(());
        }
        connections.start_measuring(worker, lockdown, now).await
    }

    /// Whether two measurements in a row have found an exit that is much nearer, and the client may move there now. Also
    /// schedules the next measurement.
    fn is_nearer_confirmed(&self, sessions: &mut Sessions, now: Instant, is_up: bool) -> bool {
        let Sessions { connections, moves, .. } = sessions;
        let exits = &connections.exits;
        let nearer = exits
            .member(exits.current())
            .filter(|_| exits.chooses())
            .and_then(|current| self.fleet.nearer_than(current, exits.best_member(now)?));
        let places = nearer.map(|name| exits.places_of(name)).unwrap_or_default();
        let was_nearer = connections.has_nearer();
        connections.set_nearer(places);
        let may_improve = connections.has_nearer() && moves.plan.may_improve(now);
        let is_confirmed = was_nearer && may_improve && is_up && !connections.is_racing();
        let confirms = may_improve && !is_confirmed;
        connections
            .measure_at(now + if confirms { CONFIRM_AFTER + spread_confirmation() } else { MEASURE_EVERY });
        is_confirmed
    }
}
