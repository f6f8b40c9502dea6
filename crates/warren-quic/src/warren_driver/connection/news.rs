//! What has happened to a connection and was not reported to the caller yet.

use crate::{boundary::CloseReason, key::PublicKey};

/// News that waits for the next delivery.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) connected: Option<PublicKey>,
    pub(super) writable: bool,
    pub(super) answers: Option<bool>,
    /// Whether datagrams lie in QUIC's receive buffer.
    pub(super) datagrams: bool,
    /// Whether kept datagrams were lost, so that QUIC can return them.
    pub(super) lost: bool,
    pub(super) ended: Option<CloseReason>,
}

impl News {
    pub(super) fn is_empty(&self) -> bool {
        let Self { connected, writable, answers, datagrams, lost, ended } = self;
        connected.is_none() && !writable && answers.is_none() && !datagrams && !lost && ended.is_none()
    }
}
