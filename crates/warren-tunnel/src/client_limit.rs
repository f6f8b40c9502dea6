//! What one client of an exit may send and receive; the control plane sets it, and every worker that carries packets of the
//! client asks it.

use std::time::Instant;

use warren_packet::rate_limit::RateLimiter;
use warren_session::clients::RateLimit;

/// A client's limits, one for each direction. They outlive its sessions.
#[derive(Debug)]
pub struct ClientLimit {
    /// The limit for packets that the client sends.
    pub from_client: RateLimiter,
    /// The limit for packets to the client.
    pub to_client: RateLimiter,
}

impl ClientLimit {
    /// Creates limits of the same rate in both directions, or without a limit.
    pub fn new(rate: Option<RateLimit>, now: Instant) -> Self {
        let limit = Self { from_client: RateLimiter::new(now), to_client: RateLimiter::new(now) };
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
}
