//! What both drivers check and make before a client's connection starts.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use bytes::Bytes;
use noq_proto::{ClientConfig, ConnectionId, TokenStore};
use zeroize::Zeroizing;

use crate::{
    boundary::ConnectError,
    key::{PrivateKey, PublicKey},
    planted::{Bug, is_planted},
    quic_config,
    settings::TransportSettings,
    strangers,
    tls::{self, PresentedKey},
};

/// The name that a connection asks for if it has none. It goes nowhere: there is no SNI then, and the verifier knows keys alone.
pub(crate) const SERVER_NAME: &str = "exit.invalid";

/// A connection that is about to be started.
pub(crate) struct Attempt<'a> {
    pub(crate) config: ClientConfig,
    pub(crate) server_name: &'a str,
    /// Where the verifier leaves a key that it refused.
    pub(crate) presented: PresentedKey,
    /// Of the endpoint that the connection has to itself.
    pub(crate) reset_key: Zeroizing<[u8; 64]>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt to reach an exit that holds one of `exit_keys`; `identity` is a client's endpoint's. `server_name` stands in
    /// the hello (SNI), where anybody on the way reads it.
    pub(crate) fn new(
        settings: &TransportSettings,
        identity: Option<&PrivateKey>,
        socket: &UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
        server_name: Option<&'a str>,
    ) -> Result<Self, ConnectError> {
        let identity = identity.ok_or(ConnectError::NotAClient)?;
        if exit_keys.is_empty() {
            return Err(ConnectError::NoExitKey);
        }
        let local = socket.local_addr()?;
        if local.is_ipv6() != remote.is_ipv6() {
            let reason = format!("the socket at {local} is of the other IP version");
            return Err(ConnectError::Address { remote, reason });
        }
        let presented = PresentedKey::default();
        let mut tls = tls::client(identity, exit_keys, presented.clone(), settings.cipher)?;
        tls.enable_sni = server_name.is_some();
        let mut reset_key = Zeroizing::new([0; 64]);
        getrandom::fill(&mut *reset_key).map_err(std::io::Error::other)?;
        let mut config = quic_config::client(settings, remote, tls);
        introduce(&mut config, exit_keys)?;
        Ok(Self { config, server_name: server_name.unwrap_or(SERVER_NAME), presented, reset_key })
    }
}

/// Puts the proof into the connection's Initials that a silent exit asks for; others take no notice of it.
pub(crate) fn introduce(config: &mut ClientConfig, exit_keys: &[PublicKey]) -> std::io::Result<()> {
    let mut first_id = [0; 20];
    getrandom::fill(&mut first_id).map_err(std::io::Error::other)?;
    let exit_keys = if is_planted(Bug::ProofLeftOut) { &[] } else { exit_keys };
    let token = strangers::token(exit_keys, &first_id).into();
    let first_id = ConnectionId::new(&first_id);
    config.initial_dst_cid_provider(Arc::new(move || first_id)).token_store(Arc::new(OneToken(token)));
    Ok(())
}

/// The token of a configuration's only connection.
struct OneToken(Bytes);

impl TokenStore for OneToken {
    fn insert(&self, _server_name: &str, _token: Bytes) {}

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        Some(self.0.clone())
    }
}
