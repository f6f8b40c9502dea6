//! The datagrams that a connection keeps until they are acknowledged, and what became of them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::speech::Speech;
use crate::boundary::{ConnectionStats, LostDatagram};

/// The kept datagrams of one connection that have not come back.
#[derive(Default)]
pub(super) struct Ledger(BTreeMap<u64, (Speech, Bytes)>);

impl Ledger {
    /// Returns the context for a datagram that is kept. Every second datagram is not kept and has none.
    pub(super) fn context(speech: Speech) -> Option<u64> {
        // Contexts of consecutive datagrams differ in many bits.
        speech.number.is_multiple_of(2).then(|| speech.number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Records a datagram that was accepted.
    pub(super) fn keep(&mut self, speech: Speech) {
        if let Some(context) = Self::context(speech) {
            self.0.insert(context, (speech, speech.write()));
        }
    }

    /// Removes a datagram that came back. Each one comes back at most once, unchanged and with its own context.
    pub(super) fn take_lost(&mut self, lost: &LostDatagram) {
        let (_, datagram) = self.0.remove(&lost.context).expect("it came back twice, or was not kept");
        assert_eq!(lost.data, datagram, "the context belongs to another datagram");
    }

    /// Checks that each kept datagram that did not arrive came back or was counted.
    pub(super) fn settle(&self, stats: &ConnectionStats, is_heard: impl Fn(Speech) -> bool) {
        assert_eq!(stats.kept_bytes, 0, "some are kept for ever");
        let missing = self.0.values().filter(|(speech, _)| !is_heard(*speech)).count() as u64;
        let counted = stats.datagrams_forgotten
            + stats.send_drops_full
            + stats.send_drops_too_large
            + stats.send_drops_stale;
        assert!(missing <= counted, "{missing} of the kept ones are missing, {counted} were counted");
    }
}
