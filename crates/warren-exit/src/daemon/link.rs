//! The daemon's end of the link to the fleet: its events, its timers, and the changes that wait for the store.

use std::collections::VecDeque;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::fleet::{FleetSocket, LinkEvent, LinkEvents};

/// How often the exit tells the fleet how busy it is.
const LOAD_EVERY: Duration = Duration::from_secs(2);

/// The time over which the use of the cores is averaged. One download should not decide which exit clients choose.
const BUSY_OVER: Duration = Duration::from_secs(30);

/// The link to the fleet, and the state of the load reports. `W` is a change that waits for the store.
pub(super) struct FleetLink<W> {
    events: LinkEvents,
    /// When the load is due.
    load_due: Instant,
    processor: Processor,
    /// Operators' changes that wait for the store.
    pub(super) waiting: Vec<W>,
}

impl<W> FleetLink<W> {
    pub(super) fn new(socket: FleetSocket, workers: u8) -> std::io::Result<Self> {
        let now = Instant::now();
        let events = LinkEvents::accept(socket)?;
        let processor = Processor::new((now, processor_time()), workers);
        Ok(Self { events, load_due: now, processor, waiting: Vec::new() })
    }

    /// Makes a load report due at once.
    pub(super) fn hurry(&mut self) {
        self.load_due = Instant::now();
    }

    /// If a load report is due, returns the processor time that this process has used. The next report is due [`LOAD_EVERY`] later.
    pub(super) fn processor_if_due(&mut self, now: Instant) -> Option<Used> {
        if self.load_due > now {
            return None;
        }
        self.load_due = now + LOAD_EVERY;
        Some(self.processor.read(now, processor_time()))
    }
}

/// The processor time that this process has used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    /// Number of cores in use since the latest load report.
    pub(super) cores: f32,
    /// Mean use of the cores over [`BUSY_OVER`], in thousandths of the cores that the exit can use.
    pub(super) busy_permille: u32,
}

/// Recent readings of this process's processor time.
struct Processor {
    /// The time and the value of each reading. The first reading is the newest one that is at least [`BUSY_OVER`] old, if there is
    /// such a reading.
    readings: VecDeque<(Instant, Duration)>,
    /// How many cores the exit can use.
    cores: u32,
}

impl Processor {
    fn new(first: (Instant, Duration), workers: u8) -> Self {
        // Each worker is one thread. When all workers are busy, the exit is busy, even if the host has idle cores.
        let workers = usize::from(workers).max(1);
        let cores = available_parallelism().map_or(workers, |all| workers.min(all.get()));
        Self { readings: [first].into(), cores: u32::try_from(cores).unwrap_or(1) }
    }

    fn read(&mut self, now: Instant, time: Duration) -> Used {
        let since = |(at, before): &(Instant, Duration)| {
            (now.saturating_duration_since(*at), time.saturating_sub(*before))
        };
        let (elapsed, used) = self.readings.back().map(since).unwrap_or_default();
        let cores = if elapsed.is_zero() { 0.0 } else { used.as_secs_f32() / elapsed.as_secs_f32() };
        while self.readings.get(1).is_some_and(|second| since(second).0 >= BUSY_OVER) {
            self.readings.pop_front();
        }
        let (elapsed, used) = self.readings.front().map(since).unwrap_or_default();
        // During the first half minute, a short burst must not count as a busy half minute.
        let full = elapsed.max(BUSY_OVER) * self.cores;
        let permille = used.as_millis() * 1_000 / full.as_millis();
        self.readings.push_back((now, time));
        Used { cores, busy_permille: u32::try_from(permille).unwrap_or(u32::MAX).min(1_000) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_busy_by_the_mean_of_half_a_minute_and_of_the_cores_that_it_can_use() {
        let start = Instant::now();
        let mut processor = Processor { readings: [(start, Duration::ZERO)].into(), cores: 2 };
        let mut time = Duration::ZERO;
        let mut run = |from: u64, seconds: u64, cores: u32| {
            let reports = (from..from + seconds).step_by(2).map(|second| {
                time += Duration::from_secs(2) * cores;
                processor.read(start + Duration::from_secs(second + 2), time)
            });
            let last = reports.last().unwrap();
            assert_eq!(last.cores, cores as f32);
            (last.busy_permille, processor.readings.len())
        };
        // From the first report on, a burst counts only in proportion to half a minute.
        assert_eq!(run(0, 2, 2).0, 66);
        assert_eq!(run(2, 28, 2).0, 1_000);
        assert_eq!(run(30, 30, 1).0, 500);
        assert_eq!(run(60, 10, 0).0, 333);
        assert_eq!(run(70, 20, 0).0, 0);
        // The list of readings does not grow.
        assert_eq!(run(90, 3_600, 1), (500, 16));
    }

    #[test]
    fn an_exit_can_use_as_many_cores_as_it_has_workers_and_no_more_than_there_are() {
        let now = Instant::now();
        let cores = |workers| Processor::new((now, Duration::ZERO), workers).cores;
        assert_eq!(cores(1), 1);
        assert_eq!(cores(255), u32::try_from(available_parallelism().unwrap().get()).unwrap());
        // Two readings at the same moment.
        let mut processor = Processor::new((now, Duration::ZERO), 1);
        assert_eq!(processor.read(now, Duration::ZERO), Used { cores: 0.0, busy_permille: 0 });
    }
}
