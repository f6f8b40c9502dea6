//! The congestion controller of a path. When the settings change, another controller takes its place.

use std::{
    any::Any,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use noq_proto::{
    RttEstimator,
    congestion::{
        Bbr3Config, Controller, ControllerFactory as LibraryFactory, ControllerMetrics, CubicConfig,
        NewRenoConfig,
    },
};

mod adaptive;

use self::adaptive::Adaptive;
use crate::{
    settings::{Congestion, CongestionChoice, TransportSettings},
    stats::ControllerState,
};

/// A window so large that it is never full. noq does not pace windows above `u32::MAX` either.
const UNLIMITED_WINDOW: u64 = 1 << 40;

/// Maximum number of packets sent after the last acknowledged one. noq keeps 40 to 80 bytes per datagram packet. With packets of
/// 1,400 bytes, this allows 3.7 Gbit/s at a round-trip time of 100 ms.
const MAX_UNANSWERED: u64 = 32 * 1024;

/// The window once [`MAX_UNANSWERED`] is reached. It is smaller than the packets in flight, so only probes leave. It is
/// large enough that the probes are not paced.
const UNANSWERED_WINDOW: u64 = 256 * 1024;

/// Returns the state of the controller `adaptive`; `None` for other controllers. The library shows a path's controller only as a
/// trait object.
pub(crate) fn state_of(controller: &dyn Controller) -> Option<ControllerState> {
    controller.as_any()?.downcast_ref::<Chosen>()?.controller.state()
}

/// Makes the controller of each path.
#[derive(Debug)]
pub(super) struct ControllerFactory {
    choice: CongestionChoice,
    initial_window: u64,
}

impl ControllerFactory {
    pub(super) fn new(settings: &TransportSettings) -> Self {
        Self { choice: settings.congestion.clone(), initial_window: settings.initial_window }
    }

    fn controller(&self, chosen: Congestion, now: Instant, mtu: u16) -> Running {
        Running::Other(match chosen {
            Congestion::Cubic => {
                let mut cubic = CubicConfig::default();
                cubic.initial_window(self.initial_window);
                Arc::new(cubic).build(now, mtu)
            }
            Congestion::Bbr3 => {
                let mut bbr3 = Bbr3Config::default();
                bbr3.initial_window(self.initial_window);
                Arc::new(bbr3).build(now, mtu)
            }
            Congestion::NewReno => {
                let mut new_reno = NewRenoConfig::default();
                new_reno.initial_window(self.initial_window);
                Arc::new(new_reno).build(now, mtu)
            }
            Congestion::Adaptive => return Running::Adaptive(Box::new(Adaptive::new(mtu))),
            Congestion::Off => Box::new(Unlimited::default()),
        })
    }
}

impl LibraryFactory for ControllerFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let chosen = self.choice.get();
        let controller = self.controller(chosen, now, mtu);
        Box::new(Chosen { factory: self, chosen, controller, mtu, ack_frequency: None })
    }
}

/// A running controller. `adaptive` keeps its type here, because otherwise it could not report its state.
#[derive(Debug)]
enum Running {
    Adaptive(Box<Adaptive>),
    Other(Box<dyn Controller>),
}

impl Running {
    fn state(&self) -> Option<ControllerState> {
        match self {
            Self::Adaptive(adaptive) => Some(adaptive.state()),
            Self::Other(_) => None,
        }
    }

    /// A copy for a new path.
    fn copy(&self) -> Self {
        match self {
            Self::Adaptive(adaptive) => Self::Adaptive(Box::new(adaptive.copy())),
            Self::Other(other) => Self::Other(other.clone_box()),
        }
    }
}

impl Deref for Running {
    type Target = dyn Controller;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Adaptive(adaptive) => adaptive.as_ref(),
            Self::Other(other) => other.as_ref(),
        }
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Adaptive(adaptive) => adaptive.as_mut(),
            Self::Other(other) => other.as_mut(),
        }
    }
}

/// The currently chosen controller. A change takes effect with the next send or acknowledgement. A new controller has not seen
/// the packets in flight. The library's controllers ignore such packets.
#[derive(Debug)]
struct Chosen {
    factory: Arc<ControllerFactory>,
    chosen: Congestion,
    controller: Running,
    mtu: u16,
    /// The latest acknowledgement frequency requested from the peer, for a new controller.
    ack_frequency: Option<(u64, Duration)>,
}

impl Chosen {
    fn follow_choice(&mut self, now: Instant) {
        let chosen = self.factory.choice.get();
        if chosen == self.chosen {
            return;
        }
        self.chosen = chosen;
        self.controller = self.factory.controller(chosen, now, self.mtu);
        if let Some((threshold, delay)) = self.ack_frequency {
            // The library reports the frequency only when it changes.
            self.controller.on_ack_frequency_update(threshold, delay);
        }
    }
}

// The library's trait fixes the arguments: on_ack and on_congestion_event have more than six.
impl Controller for Chosen {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.follow_choice(now);
        self.controller.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.controller.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.controller.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.controller.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_pn: Option<u64>) {
        self.controller.on_end_acks(now, in_flight, app_limited, largest_pn);
        // This is the last call of an ACK frame. A switch here lets each controller see only whole ACK frames.
        self.follow_choice(now);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        self.controller.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.controller.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.controller.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.controller.on_mtu_update(new_mtu);
    }

    fn answers_to_marks(&self) -> bool {
        self.controller.answers_to_marks()
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.ack_frequency = Some((ack_eliciting_threshold, requested_max_ack_delay));
        self.controller.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.controller.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.controller.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            factory: self.factory.clone(),
            chosen: self.chosen,
            controller: self.controller.copy(),
            mtu: self.mtu,
            ack_frequency: self.ack_frequency,
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn initial_window(&self) -> u64 {
        self.controller.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A controller that does not limit a connection whose peer answers. Only the inner flows limit it.
#[derive(Clone, Debug, Default)]
struct Unlimited {
    /// Numbers of the latest packets sent and acknowledged. `None` before the first is sent.
    last: Option<(u64, u64)>,
}

// The library's trait fixes the arguments: on_congestion_event has more than six.
impl Controller for Unlimited {
    fn on_packet_sent(&mut self, _: Instant, _: u16, pn: u64) {
        // The controller may be chosen in mid-connection, so the first number that it sees may be far above 0. This first number
        // counts as acknowledged.
        let (sent, _) = self.last.get_or_insert((pn, pn));
        *sent = pn.max(*sent);
    }

    fn on_end_acks(&mut self, _: Instant, _: u64, _: bool, largest_pn: Option<u64>) {
        if let (Some((_, acknowledged)), Some(largest_pn)) = (&mut self.last, largest_pn) {
            *acknowledged = largest_pn.max(*acknowledged);
        }
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn answers_to_marks(&self) -> bool {
        // No controller here slows down for a mark, so packets are sent without ECN (patch `ecn-switch`).
        false
    }

    fn window(&self) -> u64 {
        let is_answered =
            self.last.is_none_or(|(sent, acknowledged)| sent.saturating_sub(acknowledged) < MAX_UNANSWERED);
        if is_answered { UNLIMITED_WINDOW } else { UNANSWERED_WINDOW }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        UNLIMITED_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_follows_the_choice_and_starts_from_its_first_window() {
        let settings = TransportSettings {
            congestion: Congestion::Off.into(),
            initial_window: 77_000,
            ..Default::default()
        };
        let now = Instant::now();
        let mut controller = Arc::new(ControllerFactory::new(&settings)).build(now, 1_400);
        assert_eq!(controller.window(), UNLIMITED_WINDOW);

        for congestion in [Congestion::Cubic, Congestion::NewReno, Congestion::Bbr3] {
            settings.congestion.set(Congestion::Off);
            controller.on_sent(now, 1_000, 1);
            settings.congestion.set(congestion);
            controller.on_end_acks(now, 0, false, Some(1));
            assert_eq!(controller.window(), 77_000, "{congestion}");
        }
        assert_eq!(controller.clone_box().window(), 77_000);
    }

    #[test]
    fn only_the_adaptive_controller_tells_its_state_and_nothing_is_copied_for_that() {
        let settings = TransportSettings { congestion: Congestion::Adaptive.into(), ..Default::default() };
        let now = Instant::now();
        let mut controller = Arc::new(ControllerFactory::new(&settings)).build(now, 1_400);

        assert_eq!(state_of(controller.as_ref()), Some(ControllerState::Starting));
        controller.on_congestion_event(now, now, false, true, 1_000, 1);
        assert_eq!(state_of(controller.as_ref()), Some(ControllerState::Marked));
        // A copy is for a new path, where all state starts afresh.
        assert_eq!(state_of(controller.clone_box().as_ref()), Some(ControllerState::Starting));

        for other in [Congestion::Cubic, Congestion::NewReno, Congestion::Bbr3, Congestion::Off] {
            settings.congestion.set(other);
            controller.on_end_acks(now, 0, false, Some(1));
            assert_eq!(state_of(controller.as_ref()), None, "{other}");
        }
    }
}
