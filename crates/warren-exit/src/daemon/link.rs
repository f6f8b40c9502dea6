//! The daemon's end of the link to the fleet: events, what is due, and the changes that wait for the store.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::fleet::{FleetSocket, LinkEvent, LinkEvents};

/// How often the exit tells the fleet how busy it is.
const LOAD_EVERY: Duration = Duration::from_secs(2);

/// The link to the fleet, and the state of the load reports. `W` is a change that waits for the store.
pub(super) struct FleetLink<W> {
    events: LinkEvents,
    /// When the load is due.
    load_due: Instant,
    /// When the processor time was last read, and its value then.
    processor: (Instant, Duration),
    /// Operators' changes that wait for the store.
    pub(super) waiting: Vec<W>,
}

impl<W> FleetLink<W> {
    pub(super) fn new(socket: FleetSocket) -> std::io::Result<Self> {
        let now = Instant::now();
        let events = LinkEvents::accept(socket)?;
        Ok(Self { events, load_due: now, processor: (now, processor_time()), waiting: Vec::new() })
    }

    /// Makes the load due at once.
    pub(super) fn hurry(&mut self) {
        self.load_due = Instant::now();
    }

    /// The cores that this process has used since the latest load, if a load is due. The next load is due
    /// [`LOAD_EVERY`] later.
    pub(super) fn cores_if_due(&mut self, now: Instant) -> Option<f32> {
        if self.load_due > now {
            return None;
        }
        self.load_due = now + LOAD_EVERY;
        let (since, before) = std::mem::replace(&mut self.processor, (now, processor_time()));
        let used = self.processor.1.saturating_sub(before).as_secs_f32();
        let elapsed = now.saturating_duration_since(since).as_secs_f32();
        Some(if elapsed > 0.0 { used / elapsed } else { 0.0 })
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// Waits for the link's next event. Never returns for an exit without a fleet.
pub(super) async fn next<W>(link: &mut Option<FleetLink<W>>) -> (u64, LinkEvent) {
    match link {
        Some(link) => link.events.next().await,
        None => std::future::pending().await,
    }
}
