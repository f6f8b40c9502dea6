//! Follows the fleet of the exits: takes rosters, and chooses among their exits.

use std::time::{Duration, Instant};

use warren_session::message::Roster;

use super::Daemon;
use super::connections::Purpose;
use super::moves::spread_confirmation;
use crate::kill_switch;
use crate::lookup::NameServers;
use warren_config::RemoteExit;
use warren_control::status::State;

/// How long after news of the fleet the exits are measured. The session has settled by then.
const MEASURE_AFTER: Duration = Duration::from_secs(3);
/// When to measure again to be sure that another exit is nearer.
const CONFIRM_AFTER: Duration = Duration::from_secs(20);
/// How often exits are measured otherwise.
const MEASURE_EVERY: Duration = Duration::from_secs(3_600);
/// How long to wait with a measurement while there is no session.
const RETRY_AFTER: Duration = Duration::from_secs(30);

impl Daemon {
    /// Takes the roster that the exit hands over on one of the session's connections, and how busy it says the exits are.
    pub(super) async fn take_roster(&mut self, index: u32, roster: &Roster) -> anyhow::Result<()> {
        self.start.fleet.take_loads(&roster.loads);
        if roster.signed.is_empty() {
            return Ok(());
        }
        let by = self.voucher(index);
        if self.start.fleet.take(Instant::now(), &roster.signed, by.as_ref()) {
            self.follow_roster().await;
        }
        Ok(())
    }

    /// The exit in use as the profile has it, if the profile pins it, and the connection has proven a key by which the profile knows
    /// it: a key of the profile, or one for which such a key has vouched.
    fn voucher(&self, index: u32) -> Option<RemoteExit> {
        let exit = self.pinned_exit()?;
        let key = self.connections.proven_on(index)?;
        self.start.learnt_keys.accepted(exit).contains(&key).then(|| exit.clone())
    }

    /// Acts by the roster as it is known now, and keeps it.
    pub(super) async fn follow_roster(&mut self) {
        let now = Instant::now();
        self.follow_exits();
        self.connections.measure_at(now + MEASURE_AFTER);
        self.keep_fleet().await;
        let listed = self.host.listed_resolvers().await;
        if self.start.fleet.has_names() && kill_switch::names_all_by_address(&self.start.profile) {
            // Nothing needed name servers at the start.
            self.connections.lookups.ask(NameServers::find(Some(self.start.helper.clone())).await);
        }
        let Self { start, host, connections, .. } = self;
        // With an open kill switch, this only notes the addresses.
        let followed =
            host.lockdown.follow_roster(&start.fleet, |exit| connections.exits.have(exit), &listed).await;
        if let Err(error) = followed {
            tracing::warn!("the kill switch does not follow the roster: {error:#}");
        }
        self.check_beside().await;
        let is_proven = self.session.welcome().is_some();
        let place = self.connections.exits.current();
        if (is_proven && !self.connections.is_exit_accepted()) || !self.connections.exits.has(place) {
            self.leave_exit(now).await;
        }
    }

    /// Takes over the exits of profile and roster.
    pub(super) fn follow_exits(&mut self) {
        let Self { start, connections, .. } = self;
        connections.exits.follow(&start.profile, &start.learnt_keys, &start.fleet);
        self.name_fleet();
    }

    /// Has the next Hello name the fleet, and say whether there is another exit.
    pub(super) fn name_fleet(&mut self) {
        let Self { start, connections, session, .. } = self;
        session.follow_fleet(start.fleet.is_wanted(), start.fleet.hello(), connections.exits.count() > 1);
        session.set_moves_without_gap(connections.exits.has_sibling());
    }

    /// Leaves an exit that neither the profile nor the roster has any more.
    async fn leave_exit(&mut self, now: Instant) {
        if self.health.refusal.is_refused() || self.on_demand.resting().is_some() {
            // It has no session to move, and must not begin one.
            self.connections.exits.use_first();
            return;
        }
        let from = self.connections.endpoint().to_string();
        self.end_move().await;
        self.session.machine.stop(now);
        self.close_unwanted().await;
        self.connections.exits.use_first();
        tracing::warn!(
            "the roster no longer has the exit {from} with the key that it has proven; moving to {}",
            self.connections.endpoint()
        );
        self.health.moves();
        self.begin_session(now);
    }

    async fn keep_fleet(&mut self) {
        let Some(fleet) = self.start.fleet.unsaved() else { return };
        // In memory it counts even if it cannot be kept.
        if let Err(error) = self.start.helper.keep_fleet(fleet).await {
            tracing::warn!(
                "what is known of the fleet could not be kept beyond a restart: {error:#}; check the state directory and its disk"
            );
        }
    }

    /// Begins to measure the exits of the roster, or ends a measurement.
    pub(super) async fn measure_exits(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.connections.is_measuring() {
            let round_trips = self.connections.end_measuring(&self.worker).await;
            self.start.fleet.measured(&round_trips);
            self.keep_fleet().await;
            return self.choose(now).await;
        }
        if self.health.state() != State::Up {
            self.connections.measure_at(now + RETRY_AFTER);
            return Ok(());
        }
        self.connections.start_measuring(&self.worker, &mut self.host.lockdown, now).await
    }

    /// Moves to another exit if two measurements in a row have found one that is much nearer.
    async fn choose(&mut self, now: Instant) -> anyhow::Result<()> {
        self.follow_exits();
        let exits = &self.connections.exits;
        let nearer = exits
            .member(exits.current())
            .filter(|_| exits.chooses())
            .and_then(|current| self.start.fleet.nearer_than(current, exits.best_member()?));
        let was_nearer = self.connections.has_nearer();
        self.connections.set_nearer(nearer.map(|name| exits.places_of(name)).unwrap_or_default());
        let is_nearer = self.connections.has_nearer();
        let moves = was_nearer
            && is_nearer
            && self.health.state() == State::Up
            && self.moves.plan.may_improve(now)
            && !self.connections.is_racing();
        let confirms = is_nearer && !moves && self.moves.plan.may_improve(now);
        self.connections
            .measure_at(now + if confirms { CONFIRM_AFTER + spread_confirmation() } else { MEASURE_EVERY });
        if moves {
            self.start_race(Purpose::Nearer).await?;
            self.connections.set_nearer(Vec::new());
        }
        Ok(())
    }
}
