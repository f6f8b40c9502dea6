//! Which addresses no exit may give this host: those that it has, and those by which it reaches others. A lease that comes to be one
//! of them ends the session.

use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use warren_host::facts;
use warren_session::client::{AddressOwner, SessionGrant, TakenAddresses};
use warren_session::exit::SessionId;

use super::Daemon;
use warren_control::status::State;
use warren_daemon::notify;
use warren_tunnel::Command;

impl Daemon {
    /// Tells the session before it reads the answer to its Hello.
    pub(super) async fn tell_taken_addresses(&mut self) {
        let taken = self.taken_addresses().await;
        self.session.set_taken(taken);
    }

    async fn taken_addresses(&self) -> TakenAddresses {
        let own = facts::own_addresses().await.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot look at this host's addresses, so what the exit gives is not compared: {error}"
            );
            facts::OwnAddresses::default()
        });
        // The tunnel of before still has its lease. Those of other profiles are theirs.
        let leased = self.welcome.iter().flat_map(|welcome| {
            let ipv4 = welcome.ipv4.map(|(address, _)| IpAddr::V4(address));
            [ipv4, welcome.ipv6.map(|(address, _)| IpAddr::V6(address))].into_iter().flatten()
        });
        let leased: Vec<IpAddr> = leased.collect();
        let of_tunnels = own.of_tunnels.into_iter().filter(|address| !leased.contains(address));
        let owned = |owner| move |address: IpAddr| (address, owner);
        let exits = self.remotes.values().map(|remote| remote.ip());
        let resolvers = self.start.listed_resolvers().await;
        // The last owner of an address is the one that is named.
        let known = self.exits.known().map(owned(AddressOwner::KnownExit));
        known
            .chain(resolvers.into_iter().map(owned(AddressOwner::Resolver)))
            .chain(exits.map(owned(AddressOwner::Exit)))
            .chain(own.gateways.into_iter().map(owned(AddressOwner::Gateway)))
            .chain(own.outside.into_iter().chain(of_tunnels).map(owned(AddressOwner::Host)))
            .collect()
    }

    /// Gives the session up if its lease has become the address of somebody whom this host has to reach outside the tunnel.
    /// Another session is asked for at once, and refused as long as the exit gives that address.
    ///
    /// # Errors
    /// Why the lease is still on this host.
    pub(super) async fn give_up_taken_lease(&mut self) -> anyhow::Result<()> {
        let Some(welcome) = self.welcome.clone().filter(|_| self.state != State::Stopping) else {
            return Ok(());
        };
        let clash = match self.taken_addresses().await.check(&welcome) {
            Err(clash) => clash.to_string(),
            Ok(()) => match self.network_around(&welcome).await? {
                Some(clash) => clash,
                None => return Ok(()),
            },
        };
        let endpoint = &self.exits.exit(self.exits.current()).endpoint;
        let sentence = format!(
            "the session with {endpoint} is given up: {clash}; have the exit's operator give another address, or use another network"
        );
        tracing::error!("{sentence}");
        let given_back = self.give_session_up(&sentence).await;
        if self.refused.is_none() {
            self.begin_session(Instant::now());
        }
        given_back
    }

    /// Says whether this host has come into a network that the lease is in. The lease may be its gateway's address, whose route
    /// the kernel then refuses, or leads into the tunnel. In a network that this host was in when the exit gave the lease it is not: its gateway was compared.
    async fn network_around(&self, welcome: &SessionGrant) -> anyhow::Result<Option<String>> {
        let ipv4 = welcome.ipv4.map(|(address, _)| IpAddr::V4(address));
        let ipv6 = welcome.ipv6.map(|(address, _)| IpAddr::V6(address));
        let leased: Vec<IpAddr> = ipv4.into_iter().chain(ipv6).collect();
        let is_new = |network: &IpNet| !self.networks_at_welcome.contains(network);
        let networks = facts::networks().await?;
        let mut around = networks.into_iter().filter(is_new);
        Ok(around.find_map(|network| {
            let address = leased.iter().find(|address| network.contains(*address))?;
            Some(format!(
                "this host has come into the network {network}, where {address}, this client's inner address, may be another's"
            ))
        }))
    }

    /// Takes leave of the exit. The host keeps what leads into the tunnel, but not the lease.
    ///
    /// # Errors
    /// Why the lease is still on this host.
    pub(super) async fn give_session_up(&mut self, why: &str) -> anyhow::Result<()> {
        self.session.stop(Instant::now());
        self.carry_out_all_but_connects().await?;
        self.abort_race().await;
        self.vigil = warren_session::client::Vigil::default();
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
        if let Some(welcome) = self.welcome.take() {
            self.worker.send(Command::EndSession { session: SessionId(welcome.session) }).await;
        }
        if self.refused.is_none() {
            self.set_state(State::Reconnecting);
            self.last_error = Some(why.to_owned());
            notify::status(why);
        }
        self.host.give_lease_back().await
    }
}
