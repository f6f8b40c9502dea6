//! One connection, from its first packet until late packets from the peer are no longer expected. QUIC's events become the
//! connection's news. The news becomes events and datagrams for the inbox.

mod delivery;
mod news;

use std::{
    cell::RefCell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use noq_proto::{ConnectionHandle, Endpoint, Event as QuicEvent, PathId, SendDatagramError, VarInt};

pub(super) use self::delivery::{Left, MAX_EVENTS};
use self::news::News;
use super::{control::Control, intake::Sender, room::Room, silence::Silence, work::Listed};
use crate::{
    boundary::{CloseReason, ConnectionId, ConnectionStats, ControllerState, LossCounts, SendError},
    key::PublicKey,
    outcome::{Tally, close_reason, connection_stats, loss_counts, peer_key},
    planted::{Bug, is_planted},
    quic_config::state_of,
    settings::MINIMUM_MTU,
    strangers::Seat,
    tls::PresentedKey,
};

/// How long an exit lets a handshake take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a close waits for the peer to acknowledge control bytes.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection of this driver.
pub(super) struct WarrenConnection {
    pub(super) place: Place,
    /// A `RefCell`, because the counters are read through a shared reference, but the library requires an
    /// exclusive one.
    quic: RefCell<noq_proto::Connection>,
    /// Where a client's verifier leaves a refused key. `None` at an exit.
    presented: Option<PresentedKey>,
    remote: SocketAddr,
    /// The key that the peer has proven. `None` before that.
    pub(super) peer: Option<PublicKey>,
    /// At an exit, whether the peer is known to be an enrolled client.
    is_enrolled: bool,
    state: State,
    seating: Seating,
    control: Control,
    ending: Ending,
    news: News,
    tally: Tally,
    silence: Silence,
    max_datagram_size: Option<usize>,
    room: Room,
}

/// Where the driver keeps a connection.
pub(super) struct Place {
    pub(super) id: ConnectionId,
    /// The index of the port that the connection uses.
    pub(super) port: usize,
    /// The connection's name at the port's QUIC endpoint.
    pub(super) handle: ConnectionHandle,
    pub(super) listed: Listed,
    /// The time for which the connection's timer is set; never later than [`WarrenConnection::deadline`].
    pub(super) timer: Option<Instant>,
}

/// At an exit, a handshake's seat among the handshakes under way.
#[derive(Default)]
struct Seating {
    seat: Option<Seat>,
    /// Whether the handshake was ended because another one needed its seat.
    gave_way: bool,
    /// The key that the exit proves on this connection.
    proven: Option<PublicKey>,
}

/// The progress of a connection's end.
#[derive(Default)]
struct Ending {
    /// A close that waits for the control stream.
    closing: Option<Closing>,
    /// Why this side closes the connection.
    reason: Option<CloseReason>,
    /// Whether the peer is known to have closed the connection too.
    draining: bool,
    /// Whether the time for late packets is over.
    drained: bool,
}

#[derive(Debug)]
enum State {
    /// Contains the time at which an exit gives the handshake up.
    Handshake(Option<Instant>),
    Open,
    /// The connection has ended, and its end was reported. It now only answers late packets. It keeps its
    /// final counters until the next poll.
    Over(Option<Box<ConnectionStats>>),
}

#[derive(Debug)]
struct Closing {
    code: u32,
    words: Bytes,
    deadline: Instant,
}

impl WarrenConnection {
    pub(super) fn new(
        id: ConnectionId,
        port: usize,
        (handle, mut quic): (ConnectionHandle, noq_proto::Connection),
        remote: SocketAddr,
        presented: Option<PresentedKey>,
        now: Instant,
    ) -> Self {
        // Set only at an exit, where there is no `presented`.
        let deadline = presented.is_none().then(|| now + HANDSHAKE_TIMEOUT);
        let room = Room::new(quic.datagrams().send_buffer_space());
        Self {
            place: Place { id, port, handle, listed: Listed::default(), timer: None },
            quic: RefCell::new(quic),
            presented,
            remote,
            peer: None,
            is_enrolled: false,
            state: State::Handshake(deadline),
            seating: Seating::default(),
            control: Control::default(),
            ending: Ending::default(),
            news: News::default(),
            tally: Tally::default(),
            silence: Silence::default(),
            max_datagram_size: None,
            room,
        }
    }

    /// Gives the connection a seat among the handshakes, until its handshake has finished or is given up.
    pub(super) fn seated(self, seat: Seat, proven: Option<PublicKey>) -> Self {
        Self { seating: Seating { seat: Some(seat), gave_way: false, proven }, ..self }
    }

    /// Records the connection's slot, for [`Self::give_way`].
    pub(super) fn settle(&self, slot: usize) {
        if let Some(seat) = &self.seating.seat {
            seat.settle(slot as u64);
        }
    }

    /// Ends the handshake if it has this number and is still under way. The close is sent once, without waiting for the client.
    /// Returns whether the handshake ended.
    pub(super) fn give_way(&mut self, number: u64, now: Instant) -> bool {
        let is_meant =
            self.is_in_handshake() && self.seating.seat.as_ref().is_some_and(|seat| seat.is(number));
        if is_meant {
            self.seating.gave_way = true;
            self.close(now, 0, "");
        }
        is_meant
    }

    /// Whether to forget the connection instead of keeping it for late packets.
    pub(super) fn is_to_be_forgotten(&self) -> bool {
        self.seating.gave_way && !self.place.listed.to_send
    }

    /// Records that the peer is an enrolled client.
    pub(super) fn know_as_client(&mut self) {
        self.is_enrolled = true;
    }

    /// Returns the sender whose queue space and turn this connection's packets use at an exit that is behind. After the
    /// connection's end, this is no longer the client, because the client's key may have been removed.
    pub(super) fn sender(&self) -> Sender {
        match self.peer {
            None => Sender::Stranger,
            Some(peer) if self.is_enrolled && !self.is_over() => Sender::Client(peer),
            Some(_) => Sender::Unenrolled,
        }
    }

    pub(super) fn quic(&mut self) -> &mut noq_proto::Connection {
        self.quic.get_mut()
    }

    fn is_in_handshake(&self) -> bool {
        matches!(self.state, State::Handshake(_)) && self.news.ended.is_none()
    }

    /// Whether the connection's end was delivered.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Whether the connection is over and the peer knows that. A lost close is repeated until the peer knows.
    pub(super) fn is_told(&self) -> bool {
        self.is_over() && (self.ending.draining || self.ending.drained)
    }

    /// Whether nothing is left to do for the connection, not even to answer late packets.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over() && self.ending.drained
    }

    /// Returns when [`Self::expire`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let handshake = match self.state {
            State::Handshake(deadline) if self.news.ended.is_none() => deadline,
            State::Handshake(_) | State::Open | State::Over(_) => None,
        };
        let closing = self.ending.closing.as_ref().map(|closing| closing.deadline);
        let quic = self.quic.borrow().poll_timeout().filter(|_| !is_planted(Bug::TimersForgotten));
        [quic, handshake, closing].into_iter().flatten().min()
    }

    /// Handles every timer that is due by `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        let quic = self.quic.get_mut();
        quic.handle_timeout(now);
        if let State::Handshake(Some(deadline)) = self.state
            && deadline <= now
            && self.news.ended.is_none()
        {
            quic.close(now, VarInt::from_u32(0), Bytes::new());
            // Set before the library reports a close by this side, because the first reason counts.
            self.news.ended = Some(CloseReason::TimedOut);
        }
        if let Some(closing) = self.ending.closing.take_if(|closing| closing.deadline <= now) {
            self.finish_closing(now, closing);
        }
    }

    /// Turns QUIC's events into news, and passes on those that concern the endpoint. Returns whether the connection has something to send
    /// now.
    pub(super) fn absorb(&mut self, endpoint: &mut Endpoint, now: Instant) -> bool {
        while let Some(event) = self.quic.get_mut().poll() {
            self.absorb_event(event, now);
        }
        // Done after the events, because a lost connection has nothing left to deliver.
        let has_closed = self.try_closing(now);
        let has_answer = self.tell_endpoint(endpoint);
        self.judge_silence(now);
        // Read here once, because `send_datagram` needs it for each datagram.
        self.max_datagram_size = match self.state {
            State::Open => self.quic.get_mut().datagrams().max_size(),
            State::Handshake(_) | State::Over(_) => None,
        };
        self.make_room();
        self.leave_seat();
        has_closed || has_answer
    }

    /// Finishes a close whose control bytes the peer has acknowledged. Returns whether it finished one.
    fn try_closing(&mut self, now: Instant) -> bool {
        let Some(closing) = self.ending.closing.take() else { return false };
        if self.control.is_delivered(self.quic.get_mut()) {
            self.finish_closing(now, closing);
            return true;
        }
        self.ending.closing = Some(closing);
        false
    }

    /// Passes events on to the endpoint, such as reset tokens. Returns whether it answered any.
    fn tell_endpoint(&mut self, endpoint: &mut Endpoint) -> bool {
        let quic = self.quic.get_mut();
        let mut has_answer = false;
        while let Some(event) = quic.poll_endpoint_events() {
            self.ending.draining |= event.is_draining();
            self.ending.drained |= event.is_drained();
            if is_planted(Bug::EndpointUntold) && !self.ending.drained {
                continue;
            }
            if let Some(answer) = endpoint.handle_event(self.place.handle, event) {
                quic.handle_event(answer);
                has_answer = true;
            }
        }
        has_answer
    }

    fn judge_silence(&mut self, now: Instant) {
        if !matches!(self.state, State::Open) {
            return;
        }
        let quic = self.quic.get_mut();
        let verdict = self.silence.judge(now, quic.unanswered_probes(), || quic.stats().frame_rx.acks);
        let Some(is_silent) = verdict else { return };
        self.news.answers = Some(!is_silent);
        if !is_silent {
            self.discard_stale();
        }
    }

    /// Gives up the seat of a handshake that is over. Counts a handshake that timed out.
    fn leave_seat(&mut self) {
        // The seat is given up in both cases. The last condition only decides whether a timeout is counted.
        if !self.is_in_handshake()
            && let Some(seat) = self.seating.seat.take()
            && self.news.ended == Some(CloseReason::TimedOut)
        {
            seat.time_out();
        }
    }

    /// Drops the datagrams that were queued while the peer was silent. Otherwise they would be sent before fresh ones.
    fn discard_stale(&mut self) {
        self.quic.get_mut().datagrams().discard_unsent();
        // This driver's limit or the library's may have been reached. Now there is room under both limits.
        self.room.empty();
        self.news.writable = !is_planted(Bug::RoomUntold);
    }

    /// Adapts to the path's speed, and accepts datagrams again once there is room.
    fn make_room(&mut self) {
        let quic = self.quic.get_mut();
        let (Some(path), Some(rtt)) = (quic.congestion_state(PathId::ZERO), quic.rtt(PathId::ZERO)) else {
            return;
        };
        let datagram = self.max_datagram_size.unwrap_or(MINIMUM_MTU.into());
        let window = path.window();
        if self.room.follow(window, rtt, datagram, quic.datagrams().send_buffer_space()) {
            self.news.writable = !is_planted(Bug::RoomUntold);
        }
    }

    fn absorb_event(&mut self, event: QuicEvent, now: Instant) {
        let quic = self.quic.get_mut();
        match event {
            QuicEvent::Connected => match peer_key(quic.crypto_session().peer_identity()) {
                Some(peer) => {
                    self.state = State::Open;
                    self.peer = Some(peer);
                    self.news.connected = Some(peer);
                    self.control.open(quic);
                }
                None => {
                    quic.close(now, VarInt::from_u32(0), Bytes::new());
                    let why = "the peer proved no Ed25519 key";
                    self.news.ended = Some(CloseReason::Transport(why.to_owned()));
                }
            },
            QuicEvent::ConnectionLost { reason } => {
                self.ending.closing = None;
                let lost = || close_reason(reason, self.presented.as_ref());
                // The first reason counts, because a close by this side is reported again as a lost connection.
                self.news.ended.get_or_insert_with(|| self.ending.reason.take().unwrap_or_else(lost));
            }
            QuicEvent::Stream(event) => self.control.handle(quic, &event),
            QuicEvent::DatagramReceived => self.news.datagrams = true,
            QuicEvent::DatagramsUnblocked => self.news.writable = true,
            QuicEvent::DatagramsLost => self.news.lost = !is_planted(Bug::LostUntold),
            QuicEvent::HandshakeDataReady
            | QuicEvent::HandshakeConfirmed
            | QuicEvent::Path(_)
            | QuicEvent::NatTraversal(_) => {}
        }
    }

    /// Queues a datagram. With a context, it is kept until its packet is acknowledged or lost.
    pub(super) fn send_datagram(&mut self, datagram: Bytes, context: Option<u64>) -> Result<(), SendError> {
        if self.max_datagram_size.is_none_or(|size| size < datagram.len()) || self.is_ending() {
            return match self.max_datagram_size() {
                Some(_) => Err(SendError::TooLarge(datagram)),
                None => Err(SendError::Closed(datagram)),
            };
        }
        let mut datagrams = self.quic.get_mut().datagrams();
        if !self.room.takes(datagram.len(), datagrams.send_buffer_space()) {
            return Err(SendError::Blocked(datagram));
        }
        // The size was checked above, so QUIC will not find the datagram too large, and no copy is needed for
        // that case.
        let result = match context.filter(|_| !is_planted(Bug::KeptNot)) {
            None => datagrams.send(datagram, false),
            Some(context) => datagrams.send_kept(datagram, false, context),
        };
        match result {
            Ok(()) => {
                self.tally.accepted += 1;
                Ok(())
            }
            Err(SendDatagramError::Blocked(datagram)) => Err(SendError::Blocked(datagram)),
            Err(error) => {
                // The check above accepted the datagram, so it counts as accepted and dropped.
                tracing::debug!(%error, "a datagram became too large");
                self.tally.accepted += 1;
                self.tally.too_large += 1;
                Ok(())
            }
        }
    }

    pub(super) fn max_datagram_size(&self) -> Option<usize> {
        self.max_datagram_size.filter(|_| !self.is_ending())
    }

    pub(super) fn send_control(&mut self, now: Instant, data: &[u8]) -> Result<(), SendError> {
        let closed = || SendError::Closed(Bytes::copy_from_slice(data));
        if !matches!(self.state, State::Open) || self.is_ending() {
            return Err(closed());
        }
        let quic = self.quic.get_mut();
        self.control.send(quic, data).map_err(|_overflow| {
            // Closed at once, because the peer will never accept the control bytes that a close would wait for.
            let why = "the peer accepts no control messages";
            quic.close(now, VarInt::from_u32(0), Bytes::from_static(why.as_bytes()));
            self.news.ended = Some(CloseReason::Transport(why.to_owned()));
            closed()
        })
    }

    pub(super) fn control_backlog(&self) -> Option<usize> {
        let is_open = matches!(self.state, State::Open) && !self.is_ending();
        is_open.then(|| self.control.backlog())
    }

    /// Closes the connection. A handshake ends at once. An open connection closes once its control bytes are delivered, or after
    /// [`FLUSH_TIMEOUT`].
    pub(super) fn close(&mut self, now: Instant, code: u32, words: &str) {
        if self.is_ending() || self.is_over() {
            return;
        }
        if matches!(self.state, State::Handshake(_)) {
            // No code: an application's code must not be sent before the handshake is complete (RFC 9000 section 10.2.3).
            self.quic.get_mut().close(now, VarInt::from_u32(0), Bytes::new());
            self.news.ended = Some(CloseReason::Local);
            return;
        }
        let words = Bytes::copy_from_slice(words.as_bytes());
        self.ending.reason = Some(CloseReason::Local);
        self.ending.closing = Some(Closing { code, words, deadline: now + FLUSH_TIMEOUT });
    }

    /// Pings the peer at once. The ping shows the peer this side's address.
    pub(super) fn rouse(&mut self, now: Instant) {
        if !self.is_over() {
            self.quic.get_mut().handle_network_change(None, now);
        }
    }

    fn finish_closing(&mut self, now: Instant, closing: Closing) {
        self.quic.get_mut().close(now, VarInt::from_u32(closing.code), closing.words);
        self.news.ended = self.ending.reason.take().or(Some(CloseReason::Local));
    }

    fn is_ending(&self) -> bool {
        self.ending.closing.is_some() || self.news.ended.is_some()
    }

    pub(super) fn stats(&self) -> Option<ConnectionStats> {
        match &self.state {
            State::Open => Some(self.read_stats(false)),
            State::Over(stats) => stats.as_deref().cloned(),
            State::Handshake(_) => None,
        }
    }

    /// Forgets the counters of a connection that is over.
    pub(super) fn forget_stats(&mut self) {
        if let State::Over(stats) = &mut self.state {
            *stats = None;
        }
    }

    pub(super) fn loss_counts(&self) -> Option<LossCounts> {
        if !matches!(self.state, State::Open) {
            return None;
        }
        let mut quic = self.quic.borrow_mut();
        let path = quic.path_stats(PathId::ZERO).unwrap_or_default();
        Some(loss_counts(&quic.stats(), &path, controller_state(&quic)))
    }

    fn read_stats(&self, last: bool) -> ConnectionStats {
        let mut quic = self.quic.borrow_mut();
        let remote = quic.network_path(PathId::ZERO).map_or(self.remote, |path| path.remote());
        // Without multipath, path 0 is the only one.
        let path = quic.path_stats(PathId::ZERO).unwrap_or_default();
        connection_stats(remote, &quic.stats(), &path, controller_state(&quic), self.tally, last)
    }
}

fn controller_state(quic: &noq_proto::Connection) -> Option<ControllerState> {
    quic.congestion_state(PathId::ZERO).and_then(state_of)
}
