//! Releases a daemon's unused memory after a rush of clients or strangers. Each of their connections took about 50 KiB, which the
//! allocator otherwise keeps for new connections.

use std::time::{Duration, Instant};

use warren_quic::socket::{ThreadCache, release_spare_memory};

use warren_control::status::resident_kib;
use warren_tunnel::WorkerHandle;

/// The usual pause between two checks. Releasing memory takes some milliseconds, for which a worker that allocates memory has to
/// wait.
const SOON: Duration = Duration::from_secs(10);

/// The longest pause. The pause doubles after each check that released nothing because the memory is in use.
const LATER: Duration = Duration::from_secs(320);

/// Growth below this is ignored, because the allocator soon reuses this little memory.
const SLACK_KIB: u64 = 512;

/// Checks how much resident memory the process has.
#[derive(Debug)]
pub struct SpareMemory {
    /// The smallest resident memory seen so far.
    least_kib: u64,
    pause: Duration,
    next: Instant,
}

impl SpareMemory {
    /// Creates the check with the memory that the process has now as the smallest seen so far.
    pub fn new(now: Instant) -> Self {
        Self { least_kib: resident_kib(), pause: SOON, next: now + SOON }
    }

    /// Releases unused memory, if it is time to check and the process has grown.
    pub async fn look(&mut self, now: Instant, workers: &WorkerHandle) {
        if now < self.next {
            return;
        }
        let before = resident_kib();
        let is_large = before >= self.least_kib + SLACK_KIB;
        if is_large {
            let mut caches = workers.thread_caches().await;
            // The allocator caches freed memory for each thread. Only the thread itself can release its cache; malloc_trim(3)
            // does not. In a measurement, 316 of 696 pages held only cached memory (bench/LOG.md).
            caches.push(ThreadCache::take());
            release_spare_memory(caches);
        }
        let after = if is_large { resident_kib() } else { before };
        self.note(now, before, after);
    }

    fn note(&mut self, now: Instant, before_kib: u64, after_kib: u64) {
        let in_use = before_kib >= self.least_kib + SLACK_KIB && after_kib + SLACK_KIB > before_kib;
        self.pause = if in_use { (self.pause * 2).min(LATER) } else { SOON };
        self.next = now + self.pause;
        self.least_kib = self.least_kib.min(after_kib);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_asked_for_ever_less_often_until_it_comes() {
        let now = Instant::now();
        let mut memory = SpareMemory { least_kib: 15_000, pause: SOON, next: now };
        let pauses: Vec<u64> = (0..7)
            .map(|_| {
                memory.note(now, 40_000, 39_600);
                (memory.next - now).as_secs()
            })
            .collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 320, 320]);
        memory.note(now, 40_000, 20_000);
        assert_eq!((memory.next - now, memory.least_kib), (SOON, 15_000));
        memory.note(now, 15_400, 15_400);
        assert_eq!(memory.next - now, SOON, "it has not grown");
        memory.note(now, 14_000, 14_000);
        assert_eq!(memory.least_kib, 14_000);
    }
}
