//! One connection from its first packet until the peer can have nothing more to say: what QUIC did becomes news, and news
//! becomes events and datagrams for the inbox.

mod news;

use std::{
    cell::RefCell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use noq_proto::{ConnectionHandle, Endpoint, Event as QuicEvent, PathId, SendDatagramError, VarInt};

use self::news::News;
pub(super) use self::news::{Left, MAX_EVENTS};
use super::{allowance::allowance, control::Control, silence::Silence};
use crate::{
    boundary::{CloseReason, ConnectionId, ConnectionStats, SendError},
    key::PublicKey,
    outcome::{Tally, close_reason, connection_stats, peer_key},
    planted::{Bug, is_planted},
    settings::MINIMUM_MTU,
    strangers::Seat,
    tls::PresentedKey,
};

/// How long an exit lets a handshake take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a close waits for the peer to acknowledge control bytes.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection and its place in the driver.
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// The port it runs on.
    pub(super) port: usize,
    handle: ConnectionHandle,
    /// Only its counters are read through a shared reference, for which the library wants an exclusive one.
    quic: RefCell<noq_proto::Connection>,
    /// At a client, where the verifier leaves a refused key; an exit has none.
    presented: Option<PresentedKey>,
    remote: SocketAddr,
    /// The key that the peer proved, once it has.
    pub(super) peer: Option<PublicKey>,
    state: State,
    /// At an exit, while the handshake is under way; and whether it gave its place to another one.
    seat: Option<Seat>,
    gave_way: bool,
    control: Control,
    /// A close that waits for the control stream.
    closing: Option<Closing>,
    /// Why this side closes it.
    reason: Option<CloseReason>,
    news: News,
    tally: Tally,
    silence: Silence,
    max_datagram_size: Option<usize>,
    /// Bytes of datagrams that it can hold, and those that it takes.
    capacity: usize,
    allowance: usize,
    /// Whether it turned a datagram away since it had room.
    is_full: bool,
    /// Whether the peer is known to have ended it too, and whether nothing more will come of it.
    draining: bool,
    drained: bool,
    /// Whether it is listed as one that may have something to send.
    pub(super) listed_to_send: bool,
    /// Whether it is listed as one that may have news.
    pub(super) listed_with_news: bool,
    /// The time for which its timer is set; never later than [`Self::deadline`].
    pub(super) timer: Option<Instant>,
}

#[derive(Debug)]
enum State {
    /// With the time by which an exit wants it done.
    Handshake(Option<Instant>),
    Open,
    /// Told to be closed; what is left to do is to answer late packets. With its counters until the poll after.
    Over(Option<Box<ConnectionStats>>),
}

#[derive(Debug)]
struct Closing {
    code: u32,
    words: Bytes,
    deadline: Instant,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        port: usize,
        (handle, mut quic): (ConnectionHandle, noq_proto::Connection),
        remote: SocketAddr,
        presented: Option<PresentedKey>,
        now: Instant,
    ) -> Self {
        let deadline = presented.is_none().then(|| now + HANDSHAKE_TIMEOUT);
        let capacity = quic.datagrams().send_buffer_space();
        Self {
            id,
            port,
            handle,
            quic: RefCell::new(quic),
            presented,
            remote,
            peer: None,
            state: State::Handshake(deadline),
            seat: None,
            gave_way: false,
            control: Control::default(),
            closing: None,
            reason: None,
            news: News::default(),
            tally: Tally::default(),
            silence: Silence::default(),
            max_datagram_size: None,
            capacity,
            allowance: capacity,
            is_full: false,
            draining: false,
            drained: false,
            listed_to_send: false,
            listed_with_news: false,
            timer: None,
        }
    }

    /// Keeps its place among the handshakes until it is done or given up.
    pub(super) fn seated(self, seat: Seat) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// Notes where the driver has it, for [`Self::give_way`].
    pub(super) fn settle(&self, slot: usize) {
        if let Some(seat) = &self.seat {
            seat.settle(slot as u64);
        }
    }

    /// Ends the handshake, if it is the one of this number and still under way. The client is told once and not waited for.
    pub(super) fn give_way(&mut self, number: u64, now: Instant) -> bool {
        let is_meant = self.is_in_handshake() && self.seat.as_ref().is_some_and(|seat| seat.is(number));
        if is_meant {
            self.gave_way = true;
            self.close(now, 0, "");
        }
        is_meant
    }

    /// Whether it is not to be kept for late packets.
    pub(super) fn is_to_be_forgotten(&self) -> bool {
        self.gave_way && !self.listed_to_send
    }

    pub(super) fn handle(&self) -> ConnectionHandle {
        self.handle
    }

    pub(super) fn quic(&mut self) -> &mut noq_proto::Connection {
        self.quic.get_mut()
    }

    fn is_in_handshake(&self) -> bool {
        matches!(self.state, State::Handshake(_)) && self.news.ended.is_none()
    }

    /// Whether its end was handed over.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Whether it is over and the peer knows; a close that was lost is repeated until then.
    pub(super) fn is_told(&self) -> bool {
        self.is_over() && (self.draining || self.drained)
    }

    /// Whether nothing is left to do for it, not even to answer late packets.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over() && self.drained
    }

    /// Returns when [`Self::expire`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let handshake = match self.state {
            State::Handshake(deadline) if self.news.ended.is_none() => deadline,
            State::Handshake(_) | State::Open | State::Over(_) => None,
        };
        let closing = self.closing.as_ref().map(|closing| closing.deadline);
        let quic = self.quic.borrow().poll_timeout().filter(|_| !is_planted(Bug::TimersForgotten));
        [quic, handshake, closing].into_iter().flatten().min()
    }

    /// Does what is due by `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        let quic = self.quic.get_mut();
        quic.handle_timeout(now);
        if let State::Handshake(Some(deadline)) = self.state
            && deadline <= now
            && self.news.ended.is_none()
        {
            quic.close(now, VarInt::from_u32(0), Bytes::new());
            self.news.ended = Some(CloseReason::TimedOut);
        }
        if let Some(closing) = self.closing.take_if(|closing| closing.deadline <= now) {
            self.finish_closing(now, closing);
        }
    }

    /// Turns what QUIC has to tell into news and passes on what concerns the endpoint. Returns whether that gave it
    /// something to send.
    pub(super) fn absorb(&mut self, endpoint: &mut Endpoint, now: Instant) -> bool {
        while let Some(event) = self.quic.get_mut().poll() {
            self.absorb_event(event, now);
        }
        let mut to_send = false;
        if let Some(closing) = self.closing.take() {
            if self.control.is_delivered(self.quic.get_mut()) {
                self.finish_closing(now, closing);
                to_send = true;
            } else {
                self.closing = Some(closing);
            }
        }
        let quic = self.quic.get_mut();
        while let Some(event) = quic.poll_endpoint_events() {
            self.draining |= event.is_draining();
            self.drained |= event.is_drained();
            if is_planted(Bug::EndpointUntold) && !self.drained {
                continue;
            }
            if let Some(answer) = endpoint.handle_event(self.handle, event) {
                quic.handle_event(answer);
                to_send = true;
            }
        }
        if let State::Open = self.state
            && let Some(is_silent) =
                self.silence.judge(now, quic.unanswered_probes(), || quic.stats().frame_rx.acks)
        {
            self.news.answers = Some(!is_silent);
            if !is_silent {
                self.discard_stale();
            }
        }
        self.max_datagram_size = match self.state {
            State::Open => self.quic.get_mut().datagrams().max_size(),
            State::Handshake(_) | State::Over(_) => None,
        };
        self.make_room();
        if !self.is_in_handshake()
            && let Some(seat) = self.seat.take()
            && self.news.ended == Some(CloseReason::TimedOut)
        {
            seat.time_out();
        }
        to_send
    }

    /// Drops what has waited through a silence: it would go before all that is fresh.
    fn discard_stale(&mut self) {
        self.quic.get_mut().datagrams().discard_unsent();
        // Whether it was found full here or by the library.
        self.is_full = false;
        self.news.writable = !is_planted(Bug::RoomUntold);
    }

    /// Takes datagrams again once half of what it may hold is sent.
    fn make_room(&mut self) {
        let quic = self.quic.get_mut();
        let (Some(path), Some(rtt)) = (quic.congestion_state(PathId::ZERO), quic.rtt(PathId::ZERO)) else {
            return;
        };
        let datagram = self.max_datagram_size.unwrap_or(MINIMUM_MTU.into());
        self.allowance = allowance(path.window(), rtt, datagram, self.capacity);
        let held = self.capacity.saturating_sub(quic.datagrams().send_buffer_space());
        if self.is_full && held <= self.allowance / 2 {
            self.is_full = false;
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
                self.closing = None;
                let lost = || close_reason(reason, self.presented.as_ref());
                self.news.ended.get_or_insert_with(|| self.reason.take().unwrap_or_else(lost));
            }
            QuicEvent::Stream(event) => self.control.handle(quic, &event),
            QuicEvent::DatagramReceived => self.news.datagrams = true,
            QuicEvent::DatagramsUnblocked => self.news.writable = true,
            QuicEvent::HandshakeDataReady
            | QuicEvent::HandshakeConfirmed
            | QuicEvent::Path(_)
            | QuicEvent::NatTraversal(_) => {}
        }
    }

    pub(super) fn send_datagram(&mut self, datagram: Bytes) -> Result<(), SendError> {
        if self.max_datagram_size.is_none_or(|size| size < datagram.len()) || self.is_ending() {
            return match self.max_datagram_size() {
                Some(_) => Err(SendError::TooLarge(datagram)),
                None => Err(SendError::Closed(datagram)),
            };
        }
        // The size was looked at above, so that the datagram need not be kept to be given back.
        let mut datagrams = self.quic.get_mut().datagrams();
        let held = self.capacity.saturating_sub(datagrams.send_buffer_space());
        if held > 0 && held + datagram.len() > self.allowance {
            self.is_full = true;
            return Err(SendError::Blocked(datagram));
        }
        match datagrams.send(datagram, false) {
            Ok(()) => {
                self.tally.accepted += 1;
                Ok(())
            }
            Err(SendDatagramError::Blocked(datagram)) => Err(SendError::Blocked(datagram)),
            Err(error) => {
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
            let why = "the peer takes no control messages";
            quic.close(now, VarInt::from_u32(0), Bytes::from_static(why.as_bytes()));
            self.news.ended = Some(CloseReason::Transport(why.to_owned()));
            closed()
        })
    }

    pub(super) fn control_backlog(&self) -> Option<usize> {
        let is_open = matches!(self.state, State::Open) && !self.is_ending();
        is_open.then(|| self.control.backlog())
    }

    /// Closes it: at once during the handshake, later once control bytes are delivered or the time for that is over.
    pub(super) fn close(&mut self, now: Instant, code: u32, words: &str) {
        if self.is_ending() || self.is_over() {
            return;
        }
        if matches!(self.state, State::Handshake(_)) {
            self.quic.get_mut().close(now, VarInt::from_u32(0), Bytes::new());
            self.news.ended = Some(CloseReason::Local);
            return;
        }
        let words = Bytes::copy_from_slice(words.as_bytes());
        self.reason = Some(CloseReason::Local);
        self.closing = Some(Closing { code, words, deadline: now + FLUSH_TIMEOUT });
    }

    /// Asks the peer for a sign of life at once; it learns this side's address by it.
    pub(super) fn rouse(&mut self, now: Instant) {
        if !self.is_over() {
            self.quic.get_mut().handle_network_change(None, now);
        }
    }

    fn finish_closing(&mut self, now: Instant, closing: Closing) {
        self.quic.get_mut().close(now, VarInt::from_u32(closing.code), closing.words);
        self.news.ended = self.reason.take().or(Some(CloseReason::Local));
    }

    fn is_ending(&self) -> bool {
        self.closing.is_some() || self.news.ended.is_some()
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

    fn read_stats(&self, last: bool) -> ConnectionStats {
        let mut quic = self.quic.borrow_mut();
        let remote = quic.network_path(PathId::ZERO).map_or(self.remote, |path| path.remote());
        let path = quic.path_stats(PathId::ZERO).unwrap_or_default();
        connection_stats(remote, &quic.stats(), &path, self.tally, last)
    }
}
