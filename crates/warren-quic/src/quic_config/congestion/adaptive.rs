//! A congestion controller for tunnels, which carry flows that have a congestion control of their own.
//!
//! Random loss never shrinks the window, because the inner flows react to it themselves. A queue at the bottleneck does shrink it.
//! When the round-trip time of whole rounds rises, the window shrinks to the bytes that the path holds without a queue. Packets
//! then wait in the tunnel's own queue, which separates the inner flows. A queue belongs to another flow if it stays although this
//! connection sends less, or if the rate is much lower than at earlier queues. The window then returns to its size before the test,
//! and grows by a twentieth a round trip until the queue overflows. From then on, CUBIC (RFC 9438) competes for a fair share, and
//! losses count while the queue is full. CUBIC also answers losses that come only while the queue is near its longest. Afterwards,
//! the window grows slowly for a while, so that a rival that has lost packets gets its share again. Losses always count if the path
//! loses far more than usual. A bottleneck that marks packets (ECN) keeps its own queue short. Such a queue shows nothing about
//! other flows, so CUBIC answers the marks.

use std::{
    any::Any,
    time::{Duration, Instant},
};

use noq_proto::{RttEstimator, congestion::Controller};

mod base_rtt;
mod competition;
mod full_queue;
mod rivals;
mod rounds;
mod usual_loss;

use self::{
    base_rtt::BaseRtt,
    competition::{Cause, Competition},
    full_queue::FullQueue,
    rivals::Rivals,
    rounds::{RATES, Round, Rounds, bytes_in, loss_share, scaled},
    usual_loss::UsualLoss,
};
use crate::stats::ControllerState;

/// Queueing delay that is always tolerated: more than the peer's acknowledgement delay (5 ms) and the jitter of timers.
const MIN_QUEUE: Duration = Duration::from_millis(7);
/// A shorter queueing delay is noise of the timers and does not show a queue.
const LEAST_QUEUE: Duration = Duration::from_millis(1);
/// On a long path, a queueing delay of an eighth of the round-trip time is tolerated.
const QUEUE_SHARE: u32 = 8;

/// The smallest window, in packets.
const MIN_PACKETS: u64 = 4;
/// The first window, in packets. The pacer spreads them over a round trip. The window is large, because a drop in the tunnel's
/// own queue during an inner flow's slow start costs that flow seconds on a long path.
const INITIAL_PACKETS: u64 = 128;
/// When the window is reduced, at least this share of its used part is left.
const CUT: f64 = 0.85;
/// Growth per round as a share of the window: a 32nd at first, an eighth at most.
const FIRST_GROWTH_SHARE: u64 = 32;
const GROWTH_SHARE: u64 = 8;
/// Growth per round while rivals recover: at first a 512th of the window. The growth itself then rises by a 128th per round.
const SLOW_GROWTH_SHARE: u64 = 512;
const SLOW_ACCELERATION: u64 = 128;
/// The window stops growing at this many times the bytes that a round delivers.
const UNFILLED: u64 = 4;

/// For a verdict, a window counts as smaller if it is at most this share of the previous window.
const SMALLER: f64 = 0.95;
/// Rounds with a queue and a smaller window after which the controller decides whose queue it is.
const ROUNDS_BEFORE_VERDICT: u32 = 3;
/// Share of the learnt jitter that is left after a round.
const JITTER_LEFT: f64 = 0.9995;
/// Rounds with a small window after which the controller decides whether its own packets cause the loss. The first of these rounds
/// acknowledges packets that left before the window shrank.
const DRAIN_ROUNDS: u32 = 3;
/// If all of the queue were this connection's, a smaller window would shorten the round-trip time by a known amount. The queue
/// belongs to a rival flow if the round-trip time falls by less than this share of that amount.
const OWN_SHARE: f64 = 0.7;

/// At its end, slow start keeps at most this share of its window, because the packets in flight left when the
/// window was smaller.
const SLOW_START_LEFT: f64 = 0.7;
/// The last few acknowledgements show a queue only if they arrived over at least an eighth of the round-trip time.
const RECENT_SHARE: u32 = 8;
/// Number of rounds that end after slow start, but whose packets were sent during it.
const OVERSHOT_ROUNDS: u32 = 2;

/// The controller of one path. It counts bytes of UDP payload.
#[derive(Debug)]
pub(super) struct Adaptive {
    mtu: u64,
    initial_window: u64,
    window: u64,
    phase: Phase,
    rounds: Rounds,
    base: BaseRtt,
    full_queue: FullQueue,
    /// Delay that looked like a queue but was not one, because the path's delay fluctuates.
    jitter: Duration,
    usual_loss: UsualLoss,
    /// Rounds in a row that lost much more than usual.
    lossy_rounds: u32,
    /// The window when a queue or an overflow was last seen.
    limit: u64,
    rivals: Rivals,
    /// The last window of slow start or of a competition. `None` once it is known whose queue followed.
    unjudged: Option<u64>,
    /// Remaining rounds with packets that were sent during slow start. They say nothing about the window after slow start.
    overshot_rounds: u32,
    /// When the window was last reduced. Losses of packets that were sent earlier do not reduce it again.
    last_cut: Option<Instant>,
}

/// How the window is set.
#[derive(Debug)]
enum Phase {
    /// The window doubles each round until there is a queue.
    SlowStart,
    /// The window grows, faster each round, while there is no queue.
    Bounded {
        /// How many bytes the next round adds.
        step: u64,
        /// The queue of the last rounds, while there is one.
        queue: Option<Queue>,
    },
    /// The window is a little smaller than the path's capacity without a queue. This shows whether the loss falls
    /// with the window.
    Draining {
        /// The share of packets that was lost before.
        loss: f64,
        /// Rounds until the controller decides.
        left: u32,
        /// The window to return to.
        before: u64,
        /// Packets delivered and lost in these rounds, except the first.
        delivered: u64,
        lost: u64,
    },
    /// The connection competes for a share of the queue.
    Competing(Competition),
}

/// A queue whose owner is not known yet. The connection's own queue shrinks with its window.
#[derive(Clone, Copy, Debug)]
struct Queue {
    /// Rounds in a row with a smaller window, and rounds that waited for a smaller window.
    rounds: u32,
    waited: usize,
    /// The window and the round-trip time when the queue was first seen.
    window: u64,
    rtt: Duration,
    /// The previous round's window, which caused this round's round-trip time.
    last_window: u64,
}

impl Queue {
    /// Whether another flow fills the queue too. If so, the round-trip time fell clearly less than the smaller window
    /// should have made it fall.
    fn is_rivals(&self, rtt: Duration, base: Duration) -> bool {
        // The path's rate stays the same. So if only this connection fills the queue, the round-trip time is
        // proportional to the window.
        let alone = self.rtt.mul_f64(self.last_window as f64 / self.window.max(1) as f64).max(base);
        self.rtt.saturating_sub(rtt) < self.rtt.saturating_sub(alone).mul_f64(OWN_SHARE)
    }
}

impl Adaptive {
    pub(super) fn new(mtu: u16) -> Self {
        let initial_window = INITIAL_PACKETS * u64::from(mtu);
        Self {
            mtu: mtu.into(),
            initial_window,
            window: initial_window,
            phase: Phase::SlowStart,
            rounds: Rounds::default(),
            base: BaseRtt::default(),
            full_queue: FullQueue::default(),
            jitter: Duration::ZERO,
            usual_loss: UsualLoss::default(),
            lossy_rounds: 0,
            limit: 0,
            rivals: Rivals::default(),
            unjudged: None,
            overshot_rounds: 0,
            last_cut: None,
        }
    }

    /// Makes a controller for a new path. It starts with this controller's window and knows nothing else.
    pub(super) fn copy(&self) -> Self {
        Self { window: self.window, ..Self::new(self.datagram_size()) }
    }

    fn datagram_size(&self) -> u16 {
        // Always fits, because `mtu` was a `u16`.
        u16::try_from(self.mtu).unwrap_or(u16::MAX)
    }

    pub(super) fn state(&self) -> ControllerState {
        match &self.phase {
            Phase::SlowStart => ControllerState::Starting,
            Phase::Bounded { queue, .. }
                if self.unjudged.is_some() && (queue.is_some() || self.overshot_rounds > 0) =>
            {
                ControllerState::Probing
            }
            Phase::Bounded { .. } => ControllerState::ShortQueue,
            Phase::Draining { .. } => ControllerState::Probing,
            Phase::Competing(competition) => competition.state(),
        }
    }

    fn base(&self) -> Duration {
        self.base.get().unwrap_or_default()
    }

    /// The queueing delay that is tolerated on this path.
    fn allowed_queue(&self) -> Duration {
        MIN_QUEUE.max(self.base() / QUEUE_SHARE).max(self.jitter)
    }

    /// Returns the part of a round-trip time that packets spent in a queue. Zero while the round-trip time without a queue is not
    /// known.
    fn queue_of(&self, rtt: Duration) -> Duration {
        self.base.get().map_or(Duration::ZERO, |base| rtt.saturating_sub(base))
    }

    /// The queueing delay that the last acknowledgement showed.
    fn latest_queue(&self) -> Duration {
        self.queue_of(self.rounds.latest_rtt())
    }

    /// The bytes that the path holds with half of the allowed queue. Half a queue keeps the bottleneck from idling.
    fn filled_path(&self) -> u64 {
        self.rounds.carried_in(self.base() + self.allowed_queue() / 2).max(self.least())
    }

    /// Whether the queue may have been full just now. A short queue may be full before it is long.
    fn may_be_full(&self) -> bool {
        let queue = self.queue_of(self.rounds.longer_rtt());
        self.full_queue.is_near(queue) && queue > LEAST_QUEUE
    }

    fn first_step(&self, now: Instant) -> u64 {
        let share = if self.rivals.may_recover(now) { SLOW_GROWTH_SHARE } else { FIRST_GROWTH_SHARE };
        (self.window / share).max(self.mtu)
    }

    fn least(&self) -> u64 {
        MIN_PACKETS * self.mtu
    }

    fn bound(&mut self, now: Instant, window: u64) {
        self.window = window;
        self.last_cut = Some(now);
        self.phase = Phase::Bounded { step: self.first_step(now), queue: None };
    }

    fn on_round(&mut self, now: Instant, round: Round) {
        self.base.add(now, round.least_rtt);
        let queue = round.least_rtt.saturating_sub(self.base());
        // If no packet was held back, a longer round trip is jitter or somebody else's queue.
        let has_queue = round.was_limited && queue > self.allowed_queue();
        if self.overshot_rounds > 0 {
            self.overshot_rounds -= 1;
            // The bursts of slow start may have arrived at a higher rate than the path has.
            self.rounds.forget_rates();
            return;
        }
        self.full_queue.end_round();
        let excess = self.judge_loss(&round, has_queue);
        self.jitter = self.jitter.mul_f64(JITTER_LEFT);
        match &mut self.phase {
            Phase::SlowStart | Phase::Bounded { .. } if !has_queue && excess.is_some() => {
                self.drain(excess.unwrap_or_default());
            }
            Phase::SlowStart if has_queue => self.end_slow_start(now),
            Phase::SlowStart => {
                // The window grows in `on_ack`. Here it only loses the part that was never used, but does not fall below the
                // initial window.
                self.window = self.window.min(self.most(&round)).max(self.initial_window.min(self.window));
            }
            Phase::Bounded { .. } if has_queue => self.answer_queue(now, &round),
            Phase::Bounded { .. } => self.grow(now, &round),
            Phase::Draining { .. } => self.judge_drain(now, &round),
            Phase::Competing(_) => self.judge_competition(now, queue),
        }
    }

    /// Ends slow start at a queue. The window is set to what the path carries. The window of slow start is too large, because a
    /// queue shows only after a round trip, in which the window has doubled.
    fn end_slow_start(&mut self, now: Instant) {
        self.overshot_rounds = OVERSHOT_ROUNDS;
        let carried = self.rounds.carried_lately_in(self.base() + self.allowed_queue() / 2);
        let most = scaled(self.window, SLOW_START_LEFT);
        self.unjudged = Some(most);
        // A path that has become longer seems to have a queue too. If the window was never filled, the measured rate does not show
        // what the path carries. If the queue is real, the next rounds shrink the window further.
        let least = self.initial_window.min(self.window);
        self.bound(now, carried.map_or(most, |carried| carried.min(most)).max(least));
        self.limit = self.window;
    }

    /// Shrinks the window at a queue, or competes if the queue is a rival's.
    fn answer_queue(&mut self, now: Instant, round: &Round) {
        let (used, rtt, base, first_step) =
            (self.used(round), round.least_rtt, self.base(), self.first_step(now));
        let Phase::Bounded { step, queue: seen } = &mut self.phase else { return };
        // A round that left most of the window unused says little about the path.
        let is_filled = round.in_flight >= self.window / 2;
        if seen.is_none()
            && is_filled
            && let Some(share) = self.rivals.on_queue(self.rounds.rate())
        {
            let window = used.max(bytes_in(share, rtt));
            return self.compete(now, window, Cause::Rival);
        }
        *step = first_step;
        let now_seen = seen.unwrap_or(Queue { rounds: 0, waited: 0, window: used, rtt, last_window: used });
        if now_seen.rounds < ROUNDS_BEFORE_VERDICT {
            self.shrink_to_judge(now, round, now_seen);
        } else if now_seen.is_rivals(rtt, base) {
            let before = self.unjudged.take().unwrap_or_default();
            self.compete(now, now_seen.window.max(before), Cause::Rival);
        } else {
            self.unjudged = None;
            *seen = None;
            self.cut(now, round);
        }
    }

    /// Shrinks the window, to find out how much shorter the queue gets.
    fn shrink_to_judge(&mut self, now: Instant, round: &Round, seen: Queue) {
        let used = self.used(round);
        self.cut(now, round);
        // If the path's rate has just fallen, the old rate still counts for a few rounds and keeps the window large. These rounds show
        // nothing.
        let is_smaller = seen.rounds > 0 || self.window < scaled(used, SMALLER);
        let Phase::Bounded { queue, .. } = &mut self.phase else { return };
        // The first window and round-trip time stay: the verdict compares with them.
        *queue = match is_smaller {
            true => Some(Queue { rounds: seen.rounds + 1, last_window: used, ..seen }),
            false if seen.waited < RATES => {
                let waited = seen.waited + 1;
                Some(Queue { rounds: 0, waited, window: used, rtt: round.least_rtt, last_window: used })
            }
            false => {
                self.unjudged = None;
                None
            }
        };
    }

    /// Grows the window after a round without a queue.
    fn grow(&mut self, now: Instant, round: &Round) {
        let (most, filled_path, first_step) = (self.most(round), self.filled_path(), self.first_step(now));
        let may_recover = self.rivals.may_recover(now);
        // The queue is gone, whoever filled it.
        if self.queue_of(round.least_rtt) <= self.allowed_queue() {
            self.unjudged = None;
        }
        let Phase::Bounded { step, queue } = &mut self.phase else { return };
        *queue = None;
        if !round.was_limited || self.window >= most {
            return;
        }
        // The window becomes at least large enough to fill the path, unless that would overflow the path's
        // queue.
        let least = if may_recover { filled_path.min(scaled(self.limit, CUT)) } else { filled_path };
        self.window = (self.window + *step).max(least);
        let next = if may_recover { *step + *step / SLOW_ACCELERATION } else { *step * 2 };
        *step = next.min(self.window / GROWTH_SHARE).max(first_step);
    }

    /// The largest useful window. A larger one would never be filled, so it would show nothing about the
    /// path.
    fn most(&self, round: &Round) -> u64 {
        UNFILLED.saturating_mul(round.bytes).max(self.filled_path())
    }

    /// Returns the share of lost packets, if it is much higher than usual for the second round in a row.
    fn judge_loss(&mut self, round: &Round, has_queue: bool) -> Option<f64> {
        let exceeds = self.usual_loss.is_exceeded(round);
        self.lossy_rounds = if exceeds { self.lossy_rounds + 1 } else { 0 };
        // Losses from a full queue or a policer are not part of the path's usual loss.
        if !has_queue && !exceeds {
            self.usual_loss.add(round);
        }
        (self.lossy_rounds >= 2).then(|| round.loss())
    }

    fn judge_competition(&mut self, now: Instant, queue: Duration) {
        let base = self.base();
        let Phase::Competing(competition) = &mut self.phase else { return };
        self.window = competition.window();
        if let Some(jitter) = competition.on_round(queue) {
            self.jitter = jitter.min(base);
            self.rivals.were_none();
            let window = self.window.max(competition.before());
            self.bound(now, window);
        } else if competition.is_over(now) {
            // It is time to check again whether there is a rival. If the rival is still there, the next rounds find its queue
            // again.
            let window = self.window;
            self.limit = window;
            self.unjudged = Some(window);
            self.bound(now, window);
        }
    }

    fn judge_drain(&mut self, now: Instant, round: &Round) {
        let Phase::Draining { loss: usual, left, before, delivered, lost } = &mut self.phase else { return };
        *left = left.saturating_sub(1);
        // Packets that were lost in the first round had left before the window shrank.
        if *left + 1 < DRAIN_ROUNDS {
            *delivered += round.delivered;
            *lost += round.lost;
        }
        if *left > 0 {
            return;
        }
        let (usual, before, loss) = (*usual, *before, loss_share(*lost, *delivered));
        self.lossy_rounds = 0;
        // If this connection's packets caused the loss, the loss falls with the window.
        let is_own = loss < usual / 2.0;
        // If they did not cause it, this is the path's usual loss, which is not judged again.
        if !is_own {
            self.usual_loss.set(usual);
        }
        let window = if is_own { self.window } else { before };
        self.bound(now, window);
    }

    /// Returns about how many bytes of the window a round used.
    fn used(&self, round: &Round) -> u64 {
        self.window.min(round.in_flight.max(self.filled_path()))
    }

    /// Shrinks the window by the bytes that wait in the queue, but not by too much at a time, because a longer round-trip
    /// time may have other causes.
    fn cut(&mut self, now: Instant, round: &Round) {
        let used = self.used(round);
        self.limit = used;
        let mut least = scaled(used, CUT);
        // A round that left most of the window unused says little about the path.
        if round.in_flight < self.window / 2 {
            least = least.max(self.initial_window.min(self.window));
        }
        self.window = self.filled_path().clamp(least, used.max(least)).max(self.least());
        self.last_cut = Some(now);
    }

    fn drain(&mut self, loss: f64) {
        let before = self.window;
        self.unjudged = None;
        self.window = (self.rounds.carried_in(self.base()) / 10 * 9).max(self.least()).min(self.window);
        self.phase = Phase::Draining { loss, left: DRAIN_ROUNDS, before, delivered: 0, lost: 0 };
    }

    /// Starts to compete, with this window. If the rival is a new one, the window grows until the first loss.
    fn compete(&mut self, now: Instant, window: u64, cause: Cause) {
        let is_new = cause == Cause::Rival && self.rivals.is_new(now);
        let until = self.rivals.compete(now);
        let competition = match is_new {
            true => Competition::new(window, until),
            false => Competition::continued(now, window, self.datagram_size(), cause, until),
        };
        self.window = competition.window();
        self.phase = Phase::Competing(competition);
    }

    /// Answers congestion (a loss or a mark) as CUBIC does. From then on, CUBIC sets the window.
    fn give_way(&mut self, now: Instant, cause: Cause) {
        (self.last_cut, self.limit) = (Some(now), self.window);
        self.unjudged = None;
        let window = scaled(self.window, competition::CUBIC_CUT).max(self.least());
        self.compete(now, window, cause);
    }

    /// Starts again after silence from the path, because what was known about it may be wrong.
    fn start_again(&mut self, now: Instant) {
        self.window = self.initial_window.min(self.window / 2).max(self.least());
        self.rounds.forget_path();
        self.base = BaseRtt::default();
        self.full_queue = FullQueue::default();
        self.rivals = Rivals::default();
        self.jitter = Duration::ZERO;
        (self.limit, self.overshot_rounds, self.unjudged) = (0, 0, None);
        self.phase = Phase::SlowStart;
        self.last_cut = Some(now);
    }
}

impl Controller for Adaptive {
    fn on_packet_sent(&mut self, _: Instant, _: u16, number: u64) {
        self.rounds.on_packet_sent(number);
    }

    fn on_cwnd_limited(&mut self) {
        self.rounds.on_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        number: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.rounds.on_ack(sent, bytes);
        self.full_queue.on_ack();
        if !app_limited {
            self.rounds.on_limited();
        }
        match &mut self.phase {
            // A window that is not used must not grow (RFC 9002 section 7.8).
            Phase::SlowStart if self.rounds.is_limited() => self.window = self.window.saturating_add(bytes),
            Phase::Competing(competition) => match competition.cubic() {
                Some(cubic) => cubic.on_ack(now, sent, bytes, number, app_limited, rtt),
                None if self.rounds.is_limited() => {
                    let rtt = self.rounds.latest_rtt();
                    competition.grow(bytes, rtt.saturating_sub(self.base.get().unwrap_or(rtt)), rtt);
                }
                None => {}
            },
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } => {}
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        if let Phase::Competing(competition) = &mut self.phase {
            if let Some(cubic) = competition.cubic() {
                cubic.on_end_acks(now, in_flight, app_limited, largest);
            }
            self.window = competition.window();
        }
        let round = self.rounds.on_end_acks(now, in_flight, largest);
        let is_starting = matches!(self.phase, Phase::SlowStart);
        if is_starting && !self.rounds.latest_rtt().is_zero() {
            self.base.add(now, self.rounds.latest_rtt());
        }
        if let Some(rtt) = self.rounds.recent_rtt(self.base() / RECENT_SHARE) {
            let queue = self.queue_of(rtt);
            self.full_queue.note(queue);
            if is_starting && self.rounds.is_limited() && queue > self.allowed_queue() {
                self.end_slow_start(now);
            }
        }
        self.full_queue.count(self.may_be_full());
        if let Some(round) = round {
            self.on_round(now, round);
        }
    }

    fn on_packet_lost(&mut self, _: u16, number: u64, _: Instant) {
        self.rounds.on_packet_lost(number);
        self.full_queue.on_packet_lost();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost: u64,
    ) {
        // Everything was lost for several probe timeouts (RFC 9002 section 7.6), so the path may be another one now.
        if is_persistent_congestion {
            return self.start_again(now);
        }
        self.full_queue.count(self.may_be_full());
        let queue = self.latest_queue();
        let is_long = queue > self.allowed_queue();
        let is_near_full = self.full_queue.is_near(queue);
        let (delivered, lost) = self.rounds.so_far();
        let is_unusual = self.usual_loss.is_unusual(delivered, lost);
        let overflows =
            self.may_be_full() && (is_unusual || self.full_queue.overflows(self.usual_loss.burst()));
        // The loss of a packet that left before the last reduction belongs to the event that caused that reduction.
        let is_recent = self.last_cut.is_none_or(|cut| sent > cut);
        let mtu = self.datagram_size();
        match &mut self.phase {
            Phase::Competing(competition) if is_ecn || is_unusual || is_long && is_near_full => {
                let cubic = competition.cubic_at_loss(now, mtu);
                cubic.on_congestion_event(now, sent, false, is_ecn, lost_bytes, largest_lost);
                self.window = competition.window();
            }
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } if is_ecn => {
                // Only one mark per round counts.
                if is_recent {
                    self.give_way(now, Cause::Mark);
                }
            }
            Phase::SlowStart if is_long => self.end_slow_start(now),
            Phase::Bounded { .. } if overflows && is_recent => {
                // The first overflow only cuts the window. Within so few rounds after a cut, a second overflow is unlikely to
                // be chance.
                if self.full_queue.answered() {
                    return self.give_way(now, Cause::Overflow);
                }
                (self.last_cut, self.limit) = (Some(now), self.window);
                self.rivals.let_recover(now);
                self.unjudged = self.unjudged.map(|window| scaled(window, CUT));
                self.window = scaled(self.window, CUT).max(self.least());
            }
            Phase::SlowStart | Phase::Bounded { .. } | Phase::Draining { .. } | Phase::Competing(_) => {}
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        // The smallest window grows with the MTU.
        self.window = self.window.max(self.least());
        if let Phase::Competing(competition) = &mut self.phase
            && let Some(cubic) = competition.cubic()
        {
            cubic.on_mtu_update(new_mtu);
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.copy())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
