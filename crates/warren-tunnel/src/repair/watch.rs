//! Finds out whether a path loses packets. A packet counts if QUIC declares it lost, unless it arrives after all.
//!
//! A path counts as lossy until enough is known about it, because a flow that loses a packet in its first round trips is
//! slow for seconds.

use std::time::{Duration, Instant};

use warren_quic::driver::LossCounts;

use super::planted::{Bug, is_planted};

/// Length of a window. The present window and the last one count.
const WINDOW: Duration = Duration::from_secs(5);
/// A path is lossy from this share on.
const LOSSY: f64 = 4e-4;
/// A path is unknown until both windows together contain this many packets. A single loss among them is a share
/// of [`LOSSY`].
const KNOWN: u64 = 2_500;
/// A lossy path is clean once less than this share was lost in two windows.
const CLEAN: f64 = 1e-4;
/// On a path that loses more than this share, no datagrams are sent again. Such loss is congestion, or the datagrams would be
/// lost again.
const TOO_LOSSY: f64 = 0.15;
/// If both windows together have fewer packets than this, a large share of losses proves nothing.
const FEW: u64 = 200;

/// The recent losses of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathLoss {
    /// Packets of the last five to ten seconds.
    pub sent: u64,
    /// How many of these packets were lost. Late packets do not count as lost.
    pub lost: u64,
}

impl PathLoss {
    /// The share of packets that is lost, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// Packets in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    sent: u64,
    lost: u64,
}

/// Measures the loss of a path.
#[derive(Debug)]
pub(super) struct LossWatch {
    /// The counts at the last observation.
    seen: Window,
    windows: [Window; 2],
    began: Option<Instant>,
    is_lossy: bool,
    /// Whether packets overtake each other. If so, flows that need order are as slow as with losses.
    reorders: bool,
}

impl Default for LossWatch {
    fn default() -> Self {
        Self {
            seen: Window::default(),
            windows: Default::default(),
            began: None,
            // A new path counts as lossy, because repair that begins with the first loss comes too late for slow start. At 1 %
            // loss, one flow reached 20 Mbit/s when repair began late, and 146 to 166 Mbit/s with repair from the start
            // (bench/LOG.md).
            is_lossy: true,
            reorders: false,
        }
    }
}

impl LossWatch {
    /// Evaluates the connection's counts of losses.
    pub(super) fn observe(&mut self, counts: &LossCounts, now: Instant) {
        let lost = counts.lost_packets.saturating_sub(counts.spurious_losses);
        // The difference falls when a loss later proves spurious, but the total must never fall.
        let total = Window { sent: counts.sent_packets, lost: lost.max(self.seen.lost) };
        if now.saturating_duration_since(*self.began.get_or_insert(now)) >= WINDOW {
            self.began = Some(now);
            self.windows = [Window::default(), self.windows[0]];
        }
        let [present, _] = &mut self.windows;
        present.sent += total.sent.saturating_sub(self.seen.sent);
        present.lost += total.lost - self.seen.lost;
        self.seen = total;
        let loss = self.loss();
        let is_too_lossy = loss.sent >= FEW && loss.share() > TOO_LOSSY && !is_planted(Bug::TooLossyRepaired);
        // There are two thresholds, so that repair does not turn on and off again and again near a single
        // one.
        let from = if self.is_lossy { CLEAN } else { LOSSY };
        // On a path that delays a tenth of the packets by 5 ms, one CUBIC flow reached 93 Mbit/s with unnumbered datagrams and
        // 182 Mbit/s with numbered ones (bench/LOG.md).
        self.reorders = !counts.reordering.is_zero() && !is_too_lossy;
        self.is_lossy =
            (loss.sent < KNOWN || loss.share() >= from || is_planted(Bug::NeverOff)) && !is_too_lossy;
    }

    /// Whether datagrams must be numbered, because the path loses some or changes their order.
    pub(super) fn needs_numbers(&self) -> bool {
        self.is_lossy || self.reorders
    }

    pub(super) fn loss(&self) -> PathLoss {
        let [present, last] = self.windows;
        PathLoss { sent: present.sent + last.sent, lost: present.lost + last.lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that sends 1,000 packets in each second and loses `lost` of them, for some seconds.
    fn pass(watch: &mut LossWatch, counts: &mut LossCounts, now: &mut Instant, seconds: u32, lost: u64) {
        for _ in 0..seconds {
            *now += Duration::from_secs(1);
            counts.sent_packets += 1_000;
            counts.lost_packets += lost;
            watch.observe(counts, *now);
        }
    }

    #[test]
    fn a_path_is_lossy_until_it_is_known_to_be_clean() {
        let (mut watch, mut counts, mut now) = (LossWatch::default(), LossCounts::default(), Instant::now());
        pass(&mut watch, &mut counts, &mut now, 2, 0);
        assert!(watch.needs_numbers(), "little is known");
        pass(&mut watch, &mut counts, &mut now, 8, 0);
        assert!(!watch.needs_numbers());
        pass(&mut watch, &mut counts, &mut now, 1, 10);
        assert!(watch.needs_numbers());
        pass(&mut watch, &mut counts, &mut now, 4, 0);
        assert!(watch.needs_numbers());
        pass(&mut watch, &mut counts, &mut now, 7, 0);
        assert!(!watch.needs_numbers());
        now += 2 * WINDOW;
        watch.observe(&counts, now);
        now += 2 * WINDOW;
        watch.observe(&counts, now);
        assert!(watch.needs_numbers(), "nothing was sent for a while");
    }

    #[test]
    fn late_packets_and_rare_losses_do_not_count_and_a_collapse_is_not_repaired() {
        let (mut watch, mut counts, mut now) = (LossWatch::default(), LossCounts::default(), Instant::now());
        pass(&mut watch, &mut counts, &mut now, 4, 0);
        counts.spurious_losses = 5;
        pass(&mut watch, &mut counts, &mut now, 1, 5);
        assert!(!watch.needs_numbers(), "they arrived after all");
        pass(&mut watch, &mut counts, &mut now, 6, 0);
        pass(&mut watch, &mut counts, &mut now, 1, 1);
        assert!(!watch.needs_numbers(), "one in seven thousand");
        pass(&mut watch, &mut counts, &mut now, 10, 200);
        assert!(!watch.needs_numbers(), "a fifth");
        assert!(watch.loss().share() > 0.15);
    }

    #[test]
    fn a_path_that_changes_the_order_needs_numbers() {
        let (mut watch, mut counts, mut now) = (LossWatch::default(), LossCounts::default(), Instant::now());
        counts.reordering = Duration::from_millis(5);
        pass(&mut watch, &mut counts, &mut now, 4, 0);
        assert!(watch.needs_numbers());
        counts.reordering = Duration::ZERO;
        pass(&mut watch, &mut counts, &mut now, 1, 0);
        assert!(!watch.needs_numbers());
    }
}
