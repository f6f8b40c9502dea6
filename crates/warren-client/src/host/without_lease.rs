//! A host whose tunnel leads nowhere: every exit has refused before there was a lease.

use std::time::Duration;

use warren_session::AttachToken;
use warren_session::client::SessionGrant;
use warren_tun::Queue;

use super::HostSetup;

/// Of the device, until an exit says more.
const MTU: u16 = 1380;

impl HostSetup {
    /// Makes what belongs into the tunnel unreachable, unless the tunnel's routes stand already, which lead into its device. Returns
    /// the queues of a TUN device that this made.
    ///
    /// # Errors
    /// What could not be done, after what was done is undone.
    pub(crate) async fn close(&mut self) -> anyhow::Result<Option<Vec<Queue>>> {
        if self.standing.is_some() {
            return Ok(None);
        }
        let (standing, queues) = self.stand(&nothing_granted()).await?;
        self.standing = Some(standing);
        Ok(Some(queues))
    }

    /// Takes the lease off this host: what belongs into the tunnel is unreachable until there is another.
    ///
    /// # Errors
    /// What could not be done; the next look tries again.
    pub(crate) async fn give_lease_back(&mut self) -> anyhow::Result<()> {
        self.change(&nothing_granted()).await
    }

    /// Whether there is anything on this host that a session can be lost without.
    pub(crate) fn stands(&self) -> bool {
        self.standing.is_some()
    }
}

/// The Welcome of an exit that grants nothing: a tunnel without addresses has unreachable routes.
pub(super) fn nothing_granted() -> SessionGrant {
    SessionGrant {
        session: 0,
        attach_token: AttachToken::new([0; AttachToken::LENGTH]),
        ipv4: None,
        ipv6: None,
        gateway_ipv4: None,
        gateway_ipv6: None,
        mtu: MTU,
        dns: Vec::new(),
        routes: Vec::new(),
        connections: 0,
        keep_alive: Duration::ZERO,
        features: 0,
        prefixes: Vec::new(),
    }
}
