//! Chooses among the exits of a fleet, by round-trip time, weight and load.
//!
//! Exits that are about as near as the nearest one share the clients at random, each in proportion to its weight and its free
//! capacity. A client's knowledge of loads may be hours old, and clients that lose an exit at the same moment all know the same
//! loads. So a lower load only makes an exit more likely to be chosen. If the load alone decided, all of these clients would move
//! to one exit.
//!
//! The client's place in this draw is its [`Lot`], which is computed from its inner address. The lots of neighbouring addresses
//! are spread evenly. A thousand clients therefore share three exits almost exactly, while random numbers would often give one
//! exit 10 % more than its share.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Round-trip times that differ by less than this are treated as equal, because a busy host alone can cause such a difference.
const NOISE: Duration = Duration::from_millis(2);

/// The load of a full exit, in thousandths.
const FULL: u32 = 1_000;

/// A client's place on a line of 2^64 points. The exits divide the line among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lot(u64);

/// An exit that a client may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The round-trip time, if it was measured.
    pub round_trip: Option<Duration>,
    /// The exit's load in thousandths, if it is known.
    pub load: Option<u32>,
    /// The exit's intended share of the clients, relative to the weights of the other exits.
    pub weight: u32,
    /// Whether the exit is draining and sends its clients to other exits.
    pub is_draining: bool,
}

/// Sorts exits into the order in which to use them. Returns their places in `candidates`.
///
/// All clients must have the candidates in the same order, such as the roster's. Otherwise their lots do not spread evenly.
pub fn order(candidates: &[Candidate], mut lot: Lot) -> Vec<usize> {
    let mut left: Vec<(usize, Candidate)> = candidates.iter().copied().enumerate().collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(place) = choose(&left, &mut lot) {
        order.push(place);
        left.retain(|(other, _)| *other != place);
    }
    order
}

/// Whether another exit is so much nearer that moving there is worth its cost: by a fifth or more, and by more than noise.
pub fn is_worth_moving(current: Duration, other: Duration) -> bool {
    other.as_nanos() * 5 <= current.as_nanos() * 4 && current.saturating_sub(other) >= NOISE
}

/// Draws the next exit from those that are left, and returns its place.
fn choose(left: &[(usize, Candidate)], lot: &mut Lot) -> Option<usize> {
    // Exits that accept clients come first, then those that have answered.
    let class = |candidate: &Candidate| (candidate.is_draining, candidate.round_trip.is_none());
    let best_class = left.iter().map(|(_, candidate)| class(candidate)).min()?;
    let of_class = || left.iter().filter(|(_, candidate)| class(candidate) == best_class);
    let nearest = of_class().filter_map(|(_, candidate)| candidate.round_trip).min().unwrap_or_default();
    // An exit counts as near if its round-trip time is at most 1.2 times that of the nearest exit.
    let farthest = (nearest * 6 / 5).max(nearest + NOISE);
    let is_near =
        |candidate: &Candidate| candidate.round_trip.is_none_or(|round_trip| round_trip <= farthest);
    let near: Vec<_> = of_class().filter(|(_, candidate)| is_near(candidate)).copied().collect();
    let part = |(place, candidate): &(usize, Candidate)| (*place, candidate.part());
    let parts: Vec<_> = near.iter().map(part).filter(|(_, part)| *part > 0).collect();
    lot.draw(&parts).or_else(|| {
        // All of these exits report that they are full, so only their weights count.
        let weights: Vec<_> = near.iter().map(|(place, candidate)| (*place, candidate.weight())).collect();
        lot.draw(&weights)
    })
}

impl Candidate {
    fn weight(&self) -> u64 {
        self.weight.max(1).into()
    }

    /// Returns the exit's relative share of the clients. An exit of unknown load counts as idle, or it would never be tried.
    fn part(&self) -> u64 {
        self.weight() * u64::from(FULL.saturating_sub(self.load.unwrap_or_default()))
    }
}

impl Lot {
    /// Returns the lot of a client with these addresses, which are unique in its fleet. `None` if the client has no address.
    pub fn of(ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> Option<Self> {
        let of_ipv6 = |address: Ipv6Addr| {
            let [.., a, b, c, d, e, f, g, h] = address.octets();
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        let number = ipv4.map(|address| u32::from(address).into()).or(ipv6.map(of_ipv6))?;
        // Consecutive multiples of the golden ratio spread evenly over the line, however many there are (Knuth, volume 3,
        // section 6.4).
        Some(Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns the lot of a client that has never had an address, from a random number.
    pub fn random(number: u64) -> Self {
        Self(number)
    }

    /// Draws one of several places, each with a probability in proportion to its part. The remainder of the lot decides the next
    /// draw.
    fn draw(&mut self, parts: &[(usize, u64)]) -> Option<usize> {
        let total: u64 = parts.iter().map(|(_, part)| part).sum();
        let mut point = u128::from(self.0) * u128::from(total);
        for (place, part) in parts {
            let end = u128::from(*part) << 64;
            if point < end {
                // Stretches the lot's place within this part to the whole line. The clients that drew this exit then spread evenly
                // in the next draw.
                let rest = u64::try_from(point / u128::from(*part)).unwrap_or_default();
                // Stretching leaves fewer distinct points, so a hash fills the low bits. Without the hash, all lots would end at
                // one point after many draws.
                self.0 = rest ^ (mixed(rest) >> 24);
                return Some(*place);
            }
            point -= end;
        }
        None
    }
}

/// Mixes the bits of a number, so that each bit of the result depends on every bit of the number (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests;
