//! The limits on one client of an exit, and the counts of its dropped packets. The control plane sets the limits and reads the
//! drops. Every worker that carries packets of the client checks the limits and counts the drops.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use warren_packet::rate_limit::RateLimiter;
use warren_packet::reason::{DropCounters, DropReason};
use warren_session::clients::RateLimit;

/// A client's limits, one for each direction. The limits outlive the client's sessions.
#[derive(Debug)]
pub struct ClientLimit {
    /// The limit for packets that the client sends.
    pub from_client: RateLimiter,
    /// The limit for packets to the client.
    pub to_client: RateLimiter,
    /// Drops of the client's packets by reason. They have a memory allocation of their own, because a drop must not slow down other
    /// workers that check the limits.
    drops: Box<[AtomicU64; DropReason::ALL.len()]>,
}

impl ClientLimit {
    /// Creates limits of the same rate in both directions, or without a limit.
    pub fn new(rate: Option<RateLimit>, now: Instant) -> Self {
        let (from_client, to_client) = (RateLimiter::new(now), RateLimiter::new(now));
        let limit =
            Self { from_client, to_client, drops: Box::new(std::array::from_fn(|_| AtomicU64::new(0))) };
        limit.set(rate);
        limit
    }

    /// Changes the rate in both directions from the next packet on.
    pub fn set(&self, rate: Option<RateLimit>) {
        let rate = rate.map(RateLimit::bits_per_second);
        self.from_client.set(rate);
        self.to_client.set(rate);
    }

    /// Packets that were dropped, in both directions together.
    pub fn refused(&self) -> u64 {
        self.from_client.refused() + self.to_client.refused()
    }

    /// Counts drops of the client's packets. The limits count the drops that they cause themselves.
    pub fn count_drops(&self, reason: DropReason, packets: u64) {
        if reason != DropReason::RateLimit
            && let Some(count) = self.drops.get(reason as usize)
        {
            // Each counter stands alone, so no order between them is needed.
            count.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Returns the counts of the client's dropped packets, both directions together.
    pub fn drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        for (reason, count) in DropReason::ALL.into_iter().zip(self.drops.iter()) {
            drops.add_many(reason, count.load(Ordering::Relaxed));
        }
        drops.add_many(DropReason::RateLimit, self.refused());
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_by_reason_and_those_of_the_limit_once() {
        let now = Instant::now();
        let limit = ClientLimit::new(Some("64kbit".parse().unwrap()), now);
        limit.count_drops(DropReason::QueueFull, 3);
        limit.count_drops(DropReason::QueueFull, 1);
        while limit.to_client.admits(1_000, now) {}
        limit.count_drops(DropReason::RateLimit, 1);

        let drops = limit.drops();
        assert_eq!((drops.get(DropReason::QueueFull), drops.get(DropReason::RateLimit)), (4, 1));
        assert_eq!(drops.total(), 5);
    }
}
