//! The lists of connections with pending work, and each connection's marks for being listed.

use std::collections::VecDeque;

/// The lists that contain a connection. Stored in the connection, so that no list contains it twice.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) to_send: bool,
    pub(super) with_news: bool,
}

/// The slots of connections that may have something to send, and of those that may have news.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) to_send: VecDeque<usize>,
    pub(super) with_news: VecDeque<usize>,
}

impl Work {
    /// Puts a connection on both lists.
    pub(super) fn list(&mut self, slot: usize, listed: &mut Listed) {
        self.list_to_send(slot, listed);
        self.list_news(slot, listed);
    }

    pub(super) fn list_to_send(&mut self, slot: usize, listed: &mut Listed) {
        if !listed.to_send {
            listed.to_send = true;
            self.to_send.push_back(slot);
        }
    }

    pub(super) fn list_news(&mut self, slot: usize, listed: &mut Listed) {
        if !listed.with_news {
            listed.with_news = true;
            self.with_news.push_back(slot);
        }
    }
}
