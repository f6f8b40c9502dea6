//! Decides when the tunnel rests, which means that it is taken down on a trusted network, and when it goes on, which means that
//! it is brought up again.
//!
//! [`OnDemand`] only decides, and changes nothing itself. The tunnel goes on immediately when the network is not known to be
//! trusted. The tunnel rests only after the host has been on the same trusted network for a while. This time doubles with each
//! recent change from resting to going on.

use std::time::{Duration, Instant};

use warren_host::current_network::{CurrentNetwork, TrustedNetwork};

/// What to do on the network that this host is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Change nothing.
    Stay,
    /// Take the tunnel down.
    Rest(String),
    /// Bring the tunnel up.
    GoOn,
}

/// The network as the check found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<'a> {
    /// A trusted network. `is_confirmed`: its router has answered lately.
    Trusted { name: &'a str, is_confirmed: bool },
    /// A network that is not trusted, or no network.
    Other,
}

/// Whether the user has overridden the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Override {
    None,
    /// `warren up` has started this daemon. So the tunnel is up on the network that this host is in now,
    /// whichever that is.
    Here,
    /// The tunnel is up on this trusted network.
    On(String),
}

/// The state of the trusted networks.
#[derive(Debug)]
pub(super) struct OnDemand {
    trusted: Vec<TrustedNetwork>,
    resting: Option<String>,
    overridden: Override,
    /// The trusted network that this host is on, and the time since when.
    steady: Option<(String, Instant)>,
    /// The times at which the tunnel has gone on, as far back as [`REMEMBERED`].
    gone_on: Vec<Instant>,
    look_at: Option<Instant>,
    is_first_look: bool,
    /// Whether on-demand has opened the kill switch for the current rest.
    pub(super) has_opened: bool,
    /// Why the tunnel still rests although this host has left the trusted network.
    trouble: Option<String>,
}

impl OnDemand {
    /// `is_overridden`: `warren up` has started this daemon.
    pub(super) fn new(trusted: Vec<TrustedNetwork>, is_overridden: bool, now: Instant) -> Self {
        let is_used = !trusted.is_empty();
        let look_at = is_used.then_some(now);
        let overridden = if is_overridden && is_used { Override::Here } else { Override::None };
        Self {
            trusted,
            resting: None,
            overridden,
            steady: None,
            gone_on: Vec::new(),
            look_at,
            is_first_look: is_used,
            has_opened: false,
            trouble: None,
        }
    }

    /// Applies a profile that was read again.
    pub(super) fn follow(&mut self, trusted: &[TrustedNetwork], now: Instant) {
        trusted.clone_into(&mut self.trusted);
        self.look_soon(now);
    }

    /// The trusted network on which the tunnel rests.
    pub(super) fn resting(&self) -> Option<&str> {
        self.resting.as_deref()
    }

    /// Why the tunnel still rests although this host has left the trusted network.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Records that the tunnel cannot go on, and why. The next check tries again soon.
    pub(super) fn cannot_go_on(&mut self, now: Instant, why: String) {
        self.trouble = Some(why);
        self.look_soon(now + TRY_AGAIN);
    }

    /// Forgets why the tunnel could not go on, if this host is on the trusted network again. Returns whether it has forgotten such
    /// a reason. A router that has not answered may be another network's, and is looked at again soon.
    pub(super) fn stays_resting(&mut self, now: Instant, seen: Seen<'_>) -> bool {
        let is_back = matches!(seen, Seen::Trusted { is_confirmed: true, .. });
        if self.trouble.is_some() && !is_back {
            self.look_soon(now + LOOK_FOR_ANSWER);
        }
        is_back && self.trouble.take().is_some()
    }

    /// When to check the network.
    pub(super) fn look_due(&self) -> Option<Instant> {
        self.look_at
    }

    /// Schedules an immediate check, because the network has changed.
    pub(super) fn look_soon(&mut self, now: Instant) {
        let is_used = !self.trusted.is_empty() || self.resting.is_some();
        self.look_at = is_used.then_some(now);
    }

    /// Returns the name of the trusted network that `current` is, and whether its router has answered lately. `None` if the
    /// network is not trusted.
    pub(super) fn recognise(&self, current: Option<&CurrentNetwork>) -> Option<(String, bool)> {
        let current = current?;
        let trusted = self.trusted.iter().find(|trusted| current.is(trusted))?;
        Some((trusted.name.clone(), current.is_confirmed))
    }

    /// Decides after a check of the network.
    pub(super) fn decide(&mut self, now: Instant, seen: Seen<'_>) -> Decision {
        let is_first = std::mem::replace(&mut self.is_first_look, false);
        self.look_at = (!self.trusted.is_empty()).then(|| now + LOOK_EVERY);
        let Seen::Trusted { name, is_confirmed } = seen else {
            self.steady = None;
            self.overridden = Override::None;
            return if self.resting.is_some() { Decision::GoOn } else { Decision::Stay };
        };
        if self.overridden == Override::Here {
            self.overridden = Override::On(name.to_owned());
        }
        if self.overridden == Override::On(name.to_owned()) {
            return Decision::Stay;
        }
        self.overridden = Override::None;
        if self.resting.as_deref() == Some(name) {
            return Decision::Stay;
        }
        if self.resting.is_some() {
            // The host has moved to another trusted network. The tunnel rests there only after the network has been steady for a
            // while.
            return Decision::GoOn;
        }
        if !is_confirmed {
            // The router's neighbour entry may be left over from another network with the same addresses. The kernel is asking
            // the router again.
            self.steady = None;
            self.look_at = Some(now + LOOK_FOR_ANSWER);
            return Decision::Stay;
        }
        let since = match &self.steady {
            Some((steady, since)) if steady == name => *since,
            _ => now,
        };
        let due = since + if is_first { Duration::ZERO } else { self.wait(now) };
        if now >= due {
            self.steady = None;
            return Decision::Rest(name.to_owned());
        }
        self.steady = Some((name.to_owned(), since));
        self.look_at = Some(due.min(now + LOOK_EVERY));
        Decision::Stay
    }

    /// Records that the tunnel rests now.
    pub(super) fn rests(&mut self, name: String) {
        self.resting = Some(name);
    }

    /// Records that the tunnel goes on now. `by_user`: the user wants it up on this network.
    pub(super) fn goes_on(&mut self, now: Instant, by_user: bool) {
        let Some(name) = self.resting.take() else { return };
        self.has_opened = false;
        self.trouble = None;
        if by_user {
            self.overridden = Override::On(name);
        } else {
            self.gone_on.push(now);
        }
        self.look_soon(now);
    }

    /// Returns how long a trusted network has to be steady now.
    fn wait(&mut self, now: Instant) -> Duration {
        self.gone_on.retain(|at| now.saturating_duration_since(*at) < REMEMBERED);
        let doublings = u32::try_from(self.gone_on.len()).unwrap_or(u32::MAX).min(MOST_DOUBLINGS);
        STEADY_FOR * 2_u32.pow(doublings)
    }
}

/// The time until the next attempt to go on after a failed one.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long a trusted network has to be steady before the tunnel rests.
const STEADY_FOR: Duration = Duration::from_secs(2);
/// The wait is at most 64 s.
const MOST_DOUBLINGS: u32 = 5;
/// A change from resting to going on lengthens the wait before the next rest for this time.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The longest time between two checks. The kernel reports most changes at once, but does not report a replaced
/// router.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a router may take to answer before the next check.
const LOOK_FOR_ANSWER: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Seen<'_> = Seen::Trusted { name: "home", is_confirmed: true };

    #[test]
    fn tunnel_rests_at_once_at_the_start_and_otherwise_when_the_network_is_steady() {
        let now = Instant::now();
        let mut one = on_demand(false, now);
        assert_eq!(one.decide(now, HOME), rest("home"), "at the start");

        let mut one = on_demand(false, now);
        assert_eq!(one.decide(now, Seen::Other), Decision::Stay);
        assert_eq!(one.decide(now + seconds(5), HOME), Decision::Stay);
        assert_eq!(one.decide(now + seconds(6), HOME), Decision::Stay);
        assert_eq!(one.decide(now + seconds(7), HOME), rest("home"));
        one.rests("home".to_owned());
        let unconfirmed = Seen::Trusted { name: "home", is_confirmed: false };
        assert_eq!(one.decide(now + seconds(9), unconfirmed), Decision::Stay, "it may just be idle");
        assert_eq!(one.decide(now + seconds(10), Seen::Other), Decision::GoOn);
    }

    #[test]
    fn router_that_has_not_answered_lets_no_tunnel_rest() {
        let now = Instant::now();
        let mut one = on_demand(false, now);
        for second in 0..60 {
            let unconfirmed = Seen::Trusted { name: "home", is_confirmed: false };
            assert_eq!(one.decide(now + seconds(second), unconfirmed), Decision::Stay);
        }
    }

    #[test]
    fn only_a_router_that_has_answered_ends_the_attempts_to_go_on() {
        let now = Instant::now();
        let mut one = on_demand(false, now);
        one.rests("home".to_owned());
        assert!(!one.stays_resting(now, HOME), "nothing has failed");
        one.cannot_go_on(now, "nft is missing".to_owned());
        let unconfirmed = Seen::Trusted { name: "home", is_confirmed: false };
        assert_eq!(one.decide(now, unconfirmed), Decision::Stay);
        assert!(!one.stays_resting(now, unconfirmed) && one.trouble().is_some());
        assert_eq!(one.look_due(), Some(now + LOOK_FOR_ANSWER));
        assert!(one.stays_resting(now, HOME) && one.trouble().is_none());
    }

    #[test]
    fn user_overrides_until_the_network_changes() {
        let now = Instant::now();
        let mut one = on_demand(true, now);
        assert_eq!(one.decide(now, HOME), Decision::Stay);
        assert_eq!(one.decide(now + seconds(60), HOME), Decision::Stay);
        assert_eq!(one.decide(now + seconds(61), Seen::Other), Decision::Stay);
        assert_eq!(one.decide(now + seconds(62), HOME), Decision::Stay);
        assert_eq!(one.decide(now + seconds(64), HOME), rest("home"));
        one.rests("home".to_owned());
        one.goes_on(now + seconds(65), true);
        assert_eq!(one.decide(now + seconds(99), HOME), Decision::Stay);
    }

    #[test]
    fn network_that_flaps_makes_the_tunnel_rest_ever_more_rarely() {
        let now = Instant::now();
        let mut one = on_demand(false, now);
        let mut rests = 0;
        // For ten minutes, the host alternates between 10 s on the trusted network and 1 s on another one.
        for second in 0..600 {
            let at = now + seconds(second);
            let seen = if second % 11 == 10 { Seen::Other } else { HOME };
            match one.decide(at, seen) {
                Decision::Rest(name) => {
                    rests += 1;
                    one.rests(name);
                }
                Decision::GoOn => one.goes_on(at, false),
                Decision::Stay => {}
            }
        }
        assert_eq!(rests, 3, "it rests after 0, 4 and 8 s, and never stays for 16 s");
    }

    #[test]
    fn profile_without_trusted_networks_never_looks() {
        let now = Instant::now();
        for is_overridden in [false, true] {
            let mut one = OnDemand::new(Vec::new(), is_overridden, now);
            assert_eq!(one.look_due(), None);
            assert_eq!(one.decide(now, Seen::Other), Decision::Stay);
            assert_eq!(one.look_due(), None);
            // A reload adds a trusted network.
            one.follow(&["home 192.168.1.0/24 4c:11:bf:00:00:01".parse().unwrap()], now);
            assert_eq!(one.look_due(), Some(now));
        }
    }

    fn on_demand(is_overridden: bool, now: Instant) -> OnDemand {
        let home = "home 192.168.1.0/24 4c:11:bf:00:00:01".parse().unwrap();
        OnDemand::new(vec![home], is_overridden, now)
    }

    fn rest(name: &str) -> Decision {
        Decision::Rest(name.to_owned())
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }
}
