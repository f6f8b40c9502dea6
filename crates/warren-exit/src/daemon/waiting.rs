//! What the daemon does for a fleet: it follows the link, says how busy the exit is, and lets operators wait for the store without
//! waiting itself.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use warren_fleet_link::Load;
use warren_session::clients::MAX_CLIENTS;

use super::Daemon;
use crate::clients::{Awaited, Clients, Proposed, look_again_at};
use crate::fleet::{FleetSocket, LinkEvent, LinkEvents};
use warren_control::RequestRefused;
use warren_tunnel::Snapshot;

/// How often the fleet hears how busy the exit is.
const LOAD_EVERY: Duration = Duration::from_secs(2);

/// What follows once a change has its outcome: an answer, and a line of the audit log.
pub(super) type Then = Box<dyn FnOnce(&mut Daemon<'_>, Result<Value, RequestRefused>)>;

/// Makes a change.
pub(super) type Propose = Box<dyn FnOnce(&mut Clients) -> Result<Proposed, RequestRefused>>;

/// The link to the fleet, and what was said on it last.
pub(super) struct FleetLink {
    events: LinkEvents,
    /// When the load is due.
    load_due: Instant,
    /// The processor time until then, and when it was read.
    processor: (Instant, Duration),
    /// Operators' changes that wait for the store.
    waiting: Vec<Waiting>,
}

impl FleetLink {
    pub(super) fn new(socket: FleetSocket) -> std::io::Result<Self> {
        let now = Instant::now();
        let events = LinkEvents::accept(socket)?;
        Ok(Self { events, load_due: now, processor: (now, processor_time()), waiting: Vec::new() })
    }

    /// The cores that this process has used since the latest call.
    fn cores(&mut self, now: Instant) -> f32 {
        let (since, before) = std::mem::replace(&mut self.processor, (now, processor_time()));
        let used = self.processor.1.saturating_sub(before).as_secs_f32();
        let elapsed = now.saturating_duration_since(since).as_secs_f32();
        if elapsed > 0.0 { used / elapsed } else { 0.0 }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// The next event of the link. An exit without a fleet has none.
pub(super) async fn next(link: &mut Option<FleetLink>) -> (u64, LinkEvent) {
    match link {
        Some(link) => link.events.next().await,
        None => std::future::pending().await,
    }
}

/// When to look at the changes that wait although nothing has happened.
pub(super) fn due(link: Option<&FleetLink>) -> Option<Instant> {
    link?.waiting.iter().map(|waiting| look_again_at(&waiting.awaited)).min()
}

/// A change that waits for the store.
struct Waiting {
    awaited: Awaited,
    then: Then,
    follows_host: bool,
}

impl Daemon<'_> {
    /// Makes a change of clients, and answers once it has its outcome: at once, unless the exit belongs to a fleet. `follows_host`
    /// says whether rules and routes of the host may depend on the change.
    pub(super) async fn change(&mut self, propose: Propose, follows_host: bool, then: Then) {
        let proposed = match propose(&mut self.clients) {
            Ok(proposed) => proposed,
            Err(refusal) => return then(self, Err(refusal)),
        };
        if let Some(link) = &mut self.fleet {
            let awaited = self.clients.await_store(proposed);
            link.waiting.push(Waiting { awaited, then, follows_host });
            self.clients.carry_out_all(&self.worker).await;
            return self.answer_waiting().await;
        }
        let settled = self.clients.settle(proposed, &self.worker).await;
        // In any case: a change that shuts a client out is in force even if it could not be stored.
        let followed = if follows_host { self.follow_clients().await } else { Ok(()) };
        let outcome = followed.and_then(|()| settled.map(|()| Value::Null));
        then(self, outcome);
    }

    /// Answers the changes that have an outcome now.
    pub(super) async fn answer_waiting(&mut self) {
        let Some(waiting) = self.fleet.as_mut().map(|link| std::mem::take(&mut link.waiting)) else { return };
        let mut open = Vec::new();
        for mut waiting in waiting {
            let Some(outcome) = self.clients.outcome(&mut waiting.awaited) else {
                open.push(waiting);
                continue;
            };
            let followed = if waiting.follows_host { self.follow_clients().await } else { Ok(()) };
            (waiting.then)(self, followed.and(outcome));
        }
        self.fleet.iter_mut().for_each(|link| link.waiting.append(&mut open));
    }

    /// Lets the exit serve or leave, as the fleet has it.
    pub(super) fn follow_fleet(&mut self) {
        if self.clients.serve_as_fleet()
            && let Some(link) = &mut self.fleet
        {
            // With the next measurement, which says the new state.
            link.load_due = Instant::now();
        }
    }

    /// Says how busy the exit is, now and then.
    pub(super) fn say_load(&mut self, now: Instant, snapshot: &Snapshot) {
        let Some(link) = self.fleet.as_mut().filter(|link| link.load_due <= now) else { return };
        link.load_due = now + LOAD_EVERY;
        let cores = link.cores(now);
        let bits_per_second = self.reporting.bits_per_second(now, snapshot);
        let max_sessions = max_sessions(&self.config);
        self.clients.say_load(Load { sessions: 0, max_sessions, bits_per_second, cores });
    }
}

/// As many clients as the smaller pool has addresses.
fn max_sessions(config: &warren_config::ExitSettings) -> u32 {
    let most = u32::try_from(MAX_CLIENTS).unwrap_or(u32::MAX);
    // The network's address, the exit's own, and the broadcast address are nobody's.
    let of_ipv4 = config.ipv4.map(|pool| 2_u64.pow(u32::from(32 - pool.prefix_len())).saturating_sub(3));
    of_ipv4.and_then(|room| u32::try_from(room).ok()).unwrap_or(most).min(most)
}
