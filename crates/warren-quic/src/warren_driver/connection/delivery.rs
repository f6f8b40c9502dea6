//! The delivery of a connection's news to the inbox.

use super::{State, WarrenConnection};
use crate::{
    boundary::{CloseReason, Event, Inbox, LostDatagram, MAX_DATAGRAMS_PER_POLL, MAX_LOST_PER_POLL},
    planted::{Bug, is_planted},
};

/// Maximum number of events that one delivery adds: `Connected`, `Control`, `Writable`, `Answers`, `Control` for the bytes that
/// remain, and `Closed`.
pub(in super::super) const MAX_EVENTS: usize = 6;

/// What remains after a delivery.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(in super::super) enum Left {
    /// Everything was delivered.
    Nothing,
    /// Some of the news did not fit.
    More,
    /// The connection's end was delivered just now.
    Over,
}

impl WarrenConnection {
    /// Whether there is news to deliver.
    pub(in super::super) fn has_news(&self) -> bool {
        !self.is_over() && (!self.news.is_empty() || self.control.is_readable())
    }

    /// Delivers as much of the news as fits. Adds at most [`MAX_EVENTS`] events.
    pub(in super::super) fn deliver(&mut self, inbox: &mut Inbox) -> Left {
        if self.is_over() {
            return Left::Nothing;
        }
        // Events come before datagrams, because the caller prepares for datagrams when it sees `Connected`.
        self.deliver_events(&mut inbox.events);
        // Lost datagrams come next, so that received ones that keep filling the inbox do not delay sending lost ones again.
        let has_delivered_lost = !self.news.lost || self.deliver_lost(inbox);
        // The end comes after all datagrams, so it waits if some datagrams do not fit.
        if self.news.datagrams && !self.deliver_datagrams(inbox) {
            return Left::More;
        }
        if !has_delivered_lost {
            return Left::More;
        }
        match self.news.ended.take() {
            Some(reason) => {
                self.deliver_end(reason, &mut inbox.events);
                Left::Over
            }
            None if self.control.is_readable() => Left::More,
            None => Left::Nothing,
        }
    }

    fn deliver_events(&mut self, events: &mut Vec<Event>) {
        let connection = self.place.id;
        if let Some(peer) = self.news.connected.take() {
            let proven = self.seating.proven;
            events.push(Event::Connected { connection, peer, remote: self.remote, proven });
        }
        if let Some(data) = self.control.read(self.quic.get_mut()) {
            events.push(Event::Control { connection, data });
        }
        // A connection that is closing takes no datagrams.
        if std::mem::take(&mut self.news.writable) && self.ending.closing.is_none() {
            events.push(Event::Writable { connection });
        }
        if let Some(answers) = self.news.answers.take().filter(|_| self.news.ended.is_none()) {
            events.push(Event::Answers { connection, answers });
        }
    }

    /// Delivers received datagrams. Returns whether all of them fitted.
    fn deliver_datagrams(&mut self, inbox: &mut Inbox) -> bool {
        let connection = self.place.id;
        let mut datagrams = self.quic.get_mut().datagrams();
        while inbox.datagrams.len() < MAX_DATAGRAMS_PER_POLL {
            let Some(datagram) = datagrams.recv() else {
                self.news.datagrams = false;
                break;
            };
            if is_planted(Bug::DatagramTwice) {
                inbox.datagrams.push((connection, datagram.clone()));
            }
            inbox.datagrams.push((connection, datagram));
            self.tally.delivered += 1;
        }
        !self.news.datagrams
    }

    /// Delivers lost datagrams. Returns whether all of them fitted.
    fn deliver_lost(&mut self, inbox: &mut Inbox) -> bool {
        let connection = self.place.id;
        while inbox.lost.len() < MAX_LOST_PER_POLL {
            let Some(noq_proto::LostDatagram { data, context, sent }) =
                self.quic.get_mut().poll_lost_datagram()
            else {
                self.news.lost = false;
                break;
            };
            let context = context + u64::from(is_planted(Bug::ContextMixed));
            if is_planted(Bug::LostTwice) {
                inbox.lost.push((connection, LostDatagram { data: data.clone(), context, sent }));
            }
            inbox.lost.push((connection, LostDatagram { data, context, sent }));
        }
        if is_planted(Bug::LostRemainderLeft) {
            self.news.lost = false;
        }
        !self.news.lost
    }

    fn deliver_end(&mut self, reason: CloseReason, events: &mut Vec<Event>) {
        let connection = self.place.id;
        if let Some(data) = self.control.rest(self.quic.get_mut()) {
            events.push(Event::Control { connection, data });
        }
        let was_open = matches!(self.state, State::Open);
        if is_planted(Bug::EndUntold) {
            tracing::debug!(%connection, %reason, "nobody is told");
        } else if was_open || self.presented.is_some() {
            events.push(Event::Closed { connection, reason });
        } else {
            // The exit has not reported this connection to the caller, so it does not report the end either.
            tracing::debug!(%connection, %reason, "a handshake failed");
        }
        self.state = State::Over(was_open.then(|| Box::new(self.read_stats(true))));
        self.max_datagram_size = None;
    }
}
