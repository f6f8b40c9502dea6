//! Whether the worker keeps up with what comes in, and what it does when the TUN device is too slow for that.

use std::task::Context;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use warren_packet::reason::DropReason;

use super::Worker;
use crate::worker::backlog::Backlog;

/// What a datagram may cost from its receipt to its write, a few times what it costs with a device that does no more than some
/// rules of a firewall. Reading ahead is no answer to less: what is dropped behind QUIC tells no sender to slow down, and reading
/// it would take the time in which it could be written.
const PER_DATAGRAM: Duration = Duration::from_micros(20);
/// A batch that costs less is no load, whatever its datagrams cost: the first ones after a pause find everything cold.
const BATCH: Duration = Duration::from_micros(150);
/// How long a turn writes to the device, about. Before that it reads ahead for half of the time for which the last one wrote, at most.
const SERVING: Duration = Duration::from_millis(2);

/// What comes in: whether the worker keeps up with it, and what it has not come to yet.
#[derive(Debug, Default)]
pub(super) struct Intake {
    pub(super) pace: Pace,
    pub(super) backlog: Backlog,
    /// How long the last turn wrote.
    wrote_for: Duration,
    /// What a connection has its turn with; empty between turns.
    served: Vec<Bytes>,
}

/// How the worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// It keeps up, as far as is known.
    #[default]
    Fine,
    /// The last batch took long, which may as well be because others had the processor.
    Doubtful,
    /// The device is slow: what comes in is read ahead.
    Behind,
}

/// Times one batch.
pub(super) enum Stopwatch {
    /// By the clock.
    Elapsed(Instant),
    /// By the processor's time of this thread.
    Spent(Duration),
}

impl Pace {
    /// Starts to time a batch that was received at `now`.
    pub(super) fn stopwatch(self, now: Instant) -> Stopwatch {
        match self {
            Self::Fine => Stopwatch::Elapsed(now),
            Self::Doubtful | Self::Behind => Stopwatch::Spent(processor_time()),
        }
    }
}

impl Stopwatch {
    /// What is known when `datagrams` of them were written.
    pub(super) fn judge(self, datagrams: usize) -> Pace {
        let (spent, slow) = match self {
            Self::Elapsed(start) => (start.elapsed(), Pace::Doubtful),
            Self::Spent(before) => (processor_time().saturating_sub(before), Pace::Behind),
        };
        let enough = PER_DATAGRAM * u32::try_from(datagrams).unwrap_or(u32::MAX);
        let is_slow = spent > enough.max(BATCH);
        if is_slow { slow } else { Pace::Fine }
    }
}

/// The time that the processor spent on this thread so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

impl Worker {
    /// Reads all that the carrier brought, or much of it, and writes some of it to the device; true as long as there is more to do.
    pub(super) fn catch_up(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let is_all = self.read_ahead(cx, now);
        let start = Instant::now();
        while start.elapsed() < SERVING
            && let Some(connection) = self.intake.backlog.serve(&mut self.intake.served)
        {
            let slot = self.by_connection.get(&connection).copied();
            let mut served = std::mem::take(&mut self.intake.served);
            for datagram in served.drain(..) {
                self.take_datagram(slot, datagram, now);
            }
            self.intake.served = served;
            self.write_to_device();
        }
        self.intake.wrote_for = start.elapsed();
        if is_all && self.intake.backlog.is_empty() {
            self.intake.pace = Pace::Fine;
        }
        true
    }

    /// Returns whether nothing is left to read.
    fn read_ahead(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let start = Instant::now();
        let limit = self.intake.wrote_for.max(SERVING) / 2;
        while start.elapsed() < limit {
            let Some(mut inbox) = self.poll_carrier(cx, now) else { return true };
            for (connection, datagram) in inbox.datagrams.drain(..) {
                let dropped = self.intake.backlog.push(connection, &datagram);
                self.refuse_many(DropReason::DeviceSlow, dropped);
            }
            self.inbox = inbox;
            if !self.unsent_reports.is_empty() {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_took_long_is_timed_again_by_the_processors_time() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(Pace::Fine.stopwatch(long_ago).judge(100), Pace::Doubtful);
        assert_eq!(Pace::Fine.stopwatch(long_ago).judge(1_000_000), Pace::Fine, "that many take as long");
        // Others had the processor.
        let stopwatch = Pace::Doubtful.stopwatch(long_ago);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(stopwatch.judge(100), Pace::Fine);
        // This thread had it.
        let stopwatch = Pace::Doubtful.stopwatch(long_ago);
        let before = processor_time();
        while processor_time() - before < Duration::from_millis(5) {}
        assert_eq!(stopwatch.judge(100), Pace::Behind);
    }
}
