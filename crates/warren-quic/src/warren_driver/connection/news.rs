//! What happened to a connection and was not handed over yet, and the hand-over to the inbox.

use super::{Connection, State};
use crate::{
    boundary::{CloseReason, Event, Inbox, MAX_DATAGRAMS_PER_POLL},
    key::PublicKey,
    planted::{Bug, is_planted},
};

/// Most events that one hand-over adds.
pub(in super::super) const MAX_EVENTS: usize = 6;

/// What happened and was not handed over.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) connected: Option<PublicKey>,
    pub(super) writable: bool,
    pub(super) answers: Option<bool>,
    pub(super) datagrams: bool,
    pub(super) ended: Option<CloseReason>,
}

/// What is left after a hand-over.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(in super::super) enum Left {
    /// Nothing.
    Nothing,
    /// More than fitted.
    More,
    /// The connection was told to be closed just now.
    Over,
}

impl Connection {
    /// Whether there is something to hand over.
    pub(in super::super) fn has_news(&self) -> bool {
        let News { connected, writable, answers, datagrams, ended } = &self.news;
        let told = connected.is_some() || *writable || answers.is_some() || *datagrams || ended.is_some();
        !self.is_over() && (told || self.control.is_readable())
    }

    /// Hands over what fits of the news; at most [`MAX_EVENTS`] events are added.
    pub(in super::super) fn hand_over(&mut self, inbox: &mut Inbox) -> Left {
        let connection = self.id;
        if self.is_over() {
            return Left::Nothing;
        }
        let quic = self.quic.get_mut();
        if let Some(peer) = self.news.connected.take() {
            inbox.events.push(Event::Connected { connection, peer, remote: self.remote });
        }
        if let Some(data) = self.control.read(quic) {
            inbox.events.push(Event::Control { connection, data });
        }
        if std::mem::take(&mut self.news.writable) && self.closing.is_none() {
            inbox.events.push(Event::Writable { connection });
        }
        if let Some(answers) = self.news.answers.take().filter(|_| self.news.ended.is_none()) {
            inbox.events.push(Event::Answers { connection, answers });
        }
        if self.news.datagrams {
            let mut datagrams = quic.datagrams();
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
            if self.news.datagrams {
                return Left::More;
            }
        }
        let Some(reason) = self.news.ended.take() else {
            return if self.control.is_readable() { Left::More } else { Left::Nothing };
        };
        if let Some(data) = self.control.rest(quic) {
            inbox.events.push(Event::Control { connection, data });
        }
        let was_open = matches!(self.state, State::Open);
        if is_planted(Bug::EndUntold) {
            tracing::debug!(%connection, %reason, "nobody is told");
        } else if was_open || self.presented.is_some() {
            inbox.events.push(Event::Closed { connection, reason });
        } else {
            // At an exit, nobody has heard of it.
            tracing::debug!(%connection, %reason, "a handshake failed");
        }
        self.state = State::Over(was_open.then(|| Box::new(self.read_stats(true))));
        self.max_datagram_size = None;
        Left::Over
    }
}
