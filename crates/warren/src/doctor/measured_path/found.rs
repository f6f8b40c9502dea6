//! The results of a measurement of the path, as `warren doctor --path --json` prints them.

use std::time::Duration;

use serde::Serialize;

use super::counts::Loss;

/// The results of the measurement.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) profile: String,
    pub(super) exit: String,
    pub(super) seconds: f64,
    pub(super) round_trip: RoundTrip,
    pub(super) loss: BothWays<Loss>,
    pub(super) echoes: EchoCount,
    pub(super) mtu: Mtu,
    pub(super) rate: BothWays<Rate>,
    /// Bytes of packets that this measurement sent and received.
    pub(super) traffic: BothWays<u64>,
    /// Other traffic in both directions before the measurement began, in bits per second.
    pub(super) other_bits_per_second: f64,
    /// Whether the tunnel currently sends lost datagrams again.
    pub(super) repairs: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct BothWays<T> {
    pub(super) to_exit: T,
    pub(super) from_exit: T,
}

/// Round-trip times of small echoes, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RoundTrip {
    pub(super) least_ms: f64,
    pub(super) at_rest_ms: f64,
    /// The median under load. This field and the next two are `None` if no echo request under load was answered.
    pub(super) under_load_ms: Option<f64>,
    /// The 95th percentile under load.
    pub(super) under_load_p95_ms: Option<f64>,
    /// The increase of the median under load.
    pub(super) queue_ms: Option<f64>,
}

/// The number of small echo requests and replies while no load was sent. Late and repaired replies are included.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EchoCount {
    pub(super) sent: u64,
    pub(super) answered: u64,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Mtu {
    /// Largest UDP payload that the path carries.
    pub(super) path: u16,
    /// Largest packet in the tunnel.
    pub(super) tunnel: u16,
}

/// The rate of packets in the tunnel.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Rate {
    pub(super) bits_per_second: f64,
    /// Whether this rate is the path's limit. If not, the offered load was not higher than this rate.
    pub(super) is_limit: bool,
}

impl RoundTrip {
    pub(super) fn of(at_rest: &[Duration], under_load: &[Duration]) -> Self {
        let rest = quantile(at_rest, 0.5);
        let of_load = |share| (!under_load.is_empty()).then(|| quantile(under_load, share));
        Self {
            least_ms: quantile(at_rest, 0.0),
            at_rest_ms: rest,
            under_load_ms: of_load(0.5),
            under_load_p95_ms: of_load(0.95),
            queue_ms: of_load(0.5).map(|load| (load - rest).max(0.0)),
        }
    }
}

/// Returns a quantile of sorted times, in milliseconds.
fn quantile(times: &[Duration], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "smaller than the length")]
    let place = (times.len().saturating_sub(1) as f64 * share) as usize;
    times.get(place).copied().unwrap_or_default().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_what_the_load_adds() {
        let times = |ms: &[u64]| ms.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>();
        let found = RoundTrip::of(&times(&[30, 31, 32]), &times(&[60, 81, 90]));
        assert!((found.queue_ms.unwrap() - 50.0).abs() < 1e-9 && (found.least_ms - 30.0).abs() < 1e-9);
        assert!(RoundTrip::of(&times(&[30]), &[]).queue_ms.is_none(), "nothing is known of the queue");
    }
}
