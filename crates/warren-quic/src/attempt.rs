//! The checks and configuration that both drivers need before a client's connection starts.

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

/// A placeholder for connections without a server name. It is never sent, because SNI is off for them and the verifier checks
/// only keys.
pub(crate) const SERVER_NAME: &str = "exit.invalid";

/// A connection that is about to be started.
pub(crate) struct Attempt<'a> {
    pub(crate) config: ClientConfig,
    pub(crate) server_name: &'a str,
    /// Where the verifier stores a refused key.
    pub(crate) presented: PresentedKey,
    /// The reset key of the connection's own endpoint.
    pub(crate) reset_key: Zeroizing<[u8; 64]>,
}

impl<'a> Attempt<'a> {
    /// Prepares a connection to an exit that holds one of `exit_keys`. `identity` is the client's key. `server_name` is sent as
    /// SNI, which anybody on the path can read.
    pub(crate) fn new(
        settings: &TransportSettings,
        identity: Option<&PrivateKey>,
        socket: &UdpSocket,
        remote: SocketAddr,
        exit_keys: &[PublicKey],
        server_name: Option<&'a str>,
    ) -> Result<Self, ConnectError> {
        let identity = identity.ok_or(ConnectError::NotAClient)?;
        // Without a key, the verifier would refuse every exit, but only after a handshake.
        if exit_keys.is_empty() {
            return Err(ConnectError::NoExitKey);
        }
        let local = socket.local_addr()?;
        // If the IP versions differed, every send would fail, and the attempt would only time out.
        if local.is_ipv6() != remote.is_ipv6() {
            let reason = format!("the socket at {local} is of the other IP version");
            return Err(ConnectError::Address { remote, reason });
        }
        let presented = PresentedKey::default();
        let mut tls = tls::client(identity, exit_keys, presented.clone(), settings.cipher)?;
        tls.enable_sni = server_name.is_some();
        let mut reset_key = Zeroizing::new([0; 64]);
        // A client sends no resets, so its key need not outlive the connection.
        getrandom::fill(&mut *reset_key).map_err(std::io::Error::other)?;
        let mut config = quic_config::client(settings, remote, tls);
        introduce(&mut config, exit_keys)?;
        Ok(Self { config, server_name: server_name.unwrap_or(SERVER_NAME), presented, reset_key })
    }
}

/// Adds to the connection's Initials the proof that a silent exit requires. Other exits ignore it.
pub(crate) fn introduce(config: &mut ClientConfig, exit_keys: &[PublicKey]) -> std::io::Result<()> {
    // The longest ID that QUIC allows (RFC 9000 section 17.2).
    let mut first_id = [0; 20];
    getrandom::fill(&mut first_id).map_err(std::io::Error::other)?;
    let exit_keys = if is_planted(Bug::ProofLeftOut) { &[] } else { exit_keys };
    let token = strangers::token(exit_keys, &first_id).into();
    let first_id = ConnectionId::new(&first_id);
    // The proof covers this ID, so the library must not choose another one.
    config.initial_dst_cid_provider(Arc::new(move || first_id)).token_store(Arc::new(OneToken(token)));
    Ok(())
}

/// A token store for a configuration with one connection.
struct OneToken(Bytes);

impl TokenStore for OneToken {
    // Tokens from an exit are not stored, because the token field of an Initial carries the proof.
    fn insert(&self, _server_name: &str, _token: Bytes) {}

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        Some(self.0.clone())
    }
}
