//! Measures bytes, CPU time and frames on the wire during the measured time of a test, and applies the path's events in that
//! time.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{device::Device, named::Path};
use crate::{
    interrupt::Interrupt,
    stats::{float, share},
    usage::GB,
    vpn::{measure::Used, peers::Tunnel, topology::Topology},
    way::{Way, Ways},
    wire::{DirectionState, Handle},
};

/// Interval between checks for new bytes and for events that are due.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of an Ethernet header. The wire counts it, but packets inside a tunnel have none.
const ETHERNET: u64 = 14;

/// The wire, the tunnel and the device to measure, and the direction of the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter<'a> {
    pub(super) topology: &'a Topology,
    pub(super) tunnel: &'a Tunnel,
    pub(super) path: &'a Path,
    pub(super) way: Way,
    /// The tunnel's device at the receiving end.
    pub(super) device: &'a Device,
    pub(super) interrupt: &'a Interrupt,
}

/// The measured values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    seconds: f64,
    /// Bytes of payload that the receiving program got.
    bytes: u64,
    /// Longest time in which the receiving program got no byte.
    pub(super) longest_gap: Duration,
    cpu_seconds: f64,
    /// Bytes of the IP packets that the wire received in the direction of the data.
    wire_bytes: u64,
    queue_drops_percent: f64,
    /// Bytes that the receiving end's device received.
    device_bytes: u64,
}

impl Meter<'_> {
    /// Measures for a time. `count` returns the payload received so far.
    pub(super) fn measure(&self, time: Duration, count: &dyn Fn() -> u64) -> anyhow::Result<Reading> {
        // The payload is read last at the start and first at the end. So the time over which the payload is counted lies within
        // the time over which its cost is counted.
        let (wire, device, cpu) = (self.wire()?, self.device.received()?, self.cpu());
        let (start, first) = (Instant::now(), count());
        let longest_gap = self.watch(start, time, count)?;
        let (bytes, seconds) = (count() - first, start.elapsed().as_secs_f64());
        let after = self.wire()?;
        let frames = after.account.received - wire.account.received;
        let dropped = |of: &DirectionState| of.account.queue_full + of.account.codel + of.account.policed;
        let wire_bytes = after.account.received_bytes - wire.account.received_bytes;
        // The kernel dropped these frames before the wire could read them, because the machine was too busy. Up to one frame in a
        // thousand is tolerated.
        let missed = after.missed - wire.missed;
        anyhow::ensure!(
            missed.saturating_mul(1_000) <= frames,
            "the machine was too busy: the wire missed {missed} of {frames} frames"
        );
        Ok(Reading {
            seconds,
            bytes,
            longest_gap,
            cpu_seconds: self.cpu() - cpu,
            wire_bytes: wire_bytes.saturating_sub(frames * ETHERNET),
            queue_drops_percent: share(dropped(&after) - dropped(&wire), frames) * 100.0,
            device_bytes: self.device.received()?.saturating_sub(device),
        })
    }

    /// Waits until the time is over, and applies the path's events when they are due. Returns the longest time in which `count`
    /// did not increase.
    fn watch(&self, start: Instant, time: Duration, count: &dyn Fn() -> u64) -> anyhow::Result<Duration> {
        let mut events = self.path.events(time).into_iter().peekable();
        let (mut last, mut last_count, mut longest) = (start, count(), Duration::ZERO);
        while start.elapsed() < time {
            self.interrupt.wait(Some(LOOK.min(time.saturating_sub(start.elapsed()))));
            self.interrupt.check()?;
            while let Some((_, change)) = events.next_if(|(at, _)| *at <= start.elapsed()) {
                self.handle()?.change(&change.each_way(Ways::Both))?;
            }
            let now = count();
            if now > last_count {
                last_count = now;
                last = Instant::now();
            }
            longest = longest.max(last.elapsed());
        }
        Ok(longest)
    }

    fn handle(&self) -> anyhow::Result<&Handle> {
        Ok(&self.topology.wire.as_ref().context("there is no wire between the hosts")?.handle)
    }

    fn wire(&self) -> anyhow::Result<DirectionState> {
        let state = self.handle()?.state()?;
        Ok(if self.way == Way::Up { state.up } else { state.down })
    }

    fn cpu(&self) -> f64 {
        let Tunnel { client_pids, exit_pids, .. } = self.tunnel;
        Used::by(client_pids).cpu_seconds + Used::by(exit_pids).cpu_seconds
    }
}

impl Reading {
    /// Returns the reading with `bytes` as the received payload.
    pub(super) fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(super) fn mbit_per_s(&self) -> f64 {
        float(self.bytes) * 8e-6 / self.seconds.max(1e-9)
    }

    /// Returns the ratio of bytes on the wire to bytes of inner packets. `headers` is the size of the inner headers divided by
    /// the size of the payload.
    pub(super) fn wire_per_inner(&self, headers: f64) -> Option<f64> {
        (self.bytes > 0).then(|| float(self.wire_bytes) / (float(self.bytes) * (1.0 + headers)))
    }

    /// Returns the CPU time of both ends per GB of payload. None without a tunnel.
    pub(super) fn cpu_seconds_per_gb(&self) -> Option<f64> {
        (self.bytes > 0 && self.cpu_seconds > 0.0).then(|| self.cpu_seconds / (float(self.bytes) / GB))
    }

    pub(super) fn queue_drops_percent(&self) -> f64 {
        self.queue_drops_percent
    }

    /// Fails if the payload did not come through the tunnel and over the wire.
    pub(super) fn check(&self, device: &str) -> anyhow::Result<()> {
        // Allows for data that was in flight at the start of the measurement.
        const SLACK: u64 = 2 << 20;
        let least = (self.bytes / 100 * 95).saturating_sub(SLACK);
        for (what, bytes) in [(device, self.device_bytes), ("the wire", self.wire_bytes)] {
            anyhow::ensure!(
                bytes >= least,
                "{} bytes arrived, but only {bytes} passed {what}: some did not go through the tunnel",
                self.bytes
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_beside_the_tunnel_is_found() {
        let carried = Reading {
            seconds: 2.0,
            bytes: 50_000_000,
            wire_bytes: 53_000_000,
            device_bytes: 52_000_000,
            ..Reading::default()
        };
        assert!(carried.check("warren0").is_ok());
        let beside = Reading { device_bytes: 1_000, ..carried };
        assert!(beside.check("warren0").unwrap_err().to_string().contains("passed warren0"));
        let elsewhere = Reading { wire_bytes: 1_000, ..carried };
        assert!(elsewhere.check("warren0").unwrap_err().to_string().contains("passed the wire"));
    }

    #[test]
    fn figures_are_those_of_the_received_payload() {
        let reading = Reading {
            seconds: 2.0,
            bytes: 50_000_000,
            wire_bytes: 56_650_000,
            cpu_seconds: 0.1,
            ..Reading::default()
        };
        assert!((reading.mbit_per_s() - 200.0).abs() < 1e-9);
        assert!((reading.wire_per_inner(0.1).unwrap() - 1.03).abs() < 1e-9);
        assert!((reading.cpu_seconds_per_gb().unwrap() - 2.0).abs() < 1e-9);
        let idle = Reading { bytes: 0, ..reading };
        assert_eq!((idle.wire_per_inner(0.1), idle.cpu_seconds_per_gb()), (None, None));
    }
}
