//! Forwards to clients on this host: which of its ports they may use, and which forwards are in force.

use std::{fmt, ops::RangeInclusive};

use warren_host::exit_plan::leaves_too_few_ports;
use warren_host::kill_switch::InboundProtocol;
use warren_host::tracking::SentOn;
use warren_host::{ForwardedPorts, Ports, facts, published};
use warren_session::clients::{Client, ClientRegistry, Forward};

use warren_config::{ExitSettings, WebListen, ports_of};
use warren_control::ForwardNotInForce;

/// The ports of the exit's own sockets, each with a text that says what uses it.
pub(crate) type OwnPorts = Vec<(Ports, &'static str)>;

/// The ports that this host needs itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostPorts {
    own: OwnPorts,
    /// The ports of other programs.
    programs: Vec<Ports>,
    /// The ports that this host's firewall rules publish, for any protocol.
    published: Vec<RangeInclusive<u16>>,
}

impl HostPorts {
    pub(crate) fn new(own: OwnPorts, programs: Vec<Ports>, published: Vec<RangeInclusive<u16>>) -> Self {
        Self { own, programs, published }
    }

    /// Lists the ports of this host's sockets and firewall rules.
    ///
    /// # Errors
    /// If the host's sockets cannot be listed. Rules that cannot be read count as absent, as they do for clients' own flows.
    pub(crate) async fn look(own: OwnPorts) -> std::io::Result<Self> {
        Ok(Self::new(own, facts::own_ports()?, published::look().await.ports))
    }

    /// Returns the first of these ports that this host needs itself, and what it needs the port for.
    fn taken(&self, wanted: Ports) -> Option<(u16, &'static str)> {
        let of_exit = self.own.iter().find_map(|(ports, what)| Some((common(wanted, *ports)?, *what)));
        let of_program = || {
            let port = self.programs.iter().find_map(|ports| common(wanted, *ports))?;
            Some((port, "a program on this host listens there"))
        };
        let published = || {
            let published = self
                .published
                .iter()
                .find(|published| *published.start() <= wanted.last && *published.end() >= wanted.first);
            let port = (*published?.start()).max(wanted.first);
            Some((port, "a firewall rule of this host publishes it, such as a container's"))
        };
        of_exit.or_else(of_program).or_else(published)
    }
}

/// Refuses a forward of a port that this host needs itself, or that leaves clients' own flows too few ports.
///
/// # Errors
/// Which port is taken, and by what.
pub(crate) fn refuse_taken(
    forward: Forward,
    host: &HostPorts,
    registry: &ClientRegistry,
) -> Result<(), String> {
    let ports = forward.ports();
    if let Some((port, what)) = host.taken(ports_of(ports)) {
        let protocol = ports.protocol();
        return Err(format!(
            "{protocol}/{port} cannot be forwarded: {what}; choose another port of the exit"
        ));
    }
    let own = host.own.iter().map(|(ports, _)| ports);
    let listen: Vec<u16> =
        own.filter(|ports| ports.protocol == InboundProtocol::Udp).map(|ports| ports.first).collect();
    let there_are = registry.forwards().map(|(forward, _)| forward.ports());
    let forwarded = there_are.chain([ports]).flat_map(|ports| ports.first()..=ports.last());
    if leaves_too_few_ports(&listen, forwarded) {
        return Err(format!(
            "{ports} cannot be forwarded: clients' own traffic needs 4,096 ports in a row between 20000 and 60999; choose ports outside that range"
        ));
    }
    Ok(())
}

/// The ports at which the exit itself listens, including those that only this host can reach.
pub(crate) fn own_ports(config: &ExitSettings) -> OwnPorts {
    let one = |protocol, port| Ports { protocol, first: port, last: port };
    let listen = config
        .ports()
        .into_iter()
        .map(|port| (one(InboundProtocol::Udp, port), "this exit listens there for its clients"));
    let metrics = config
        .metrics
        .listen
        .map(|address| (one(InboundProtocol::Tcp, address.port()), "this exit's metrics are there"));
    let web = match &config.web {
        Some(WebListen::Loopback(address)) => {
            Some((one(InboundProtocol::Tcp, address.port()), "this exit's page for operators is there"))
        }
        Some(WebListen::Unix(_)) | None => None,
    };
    listen.chain(metrics).chain(web).collect()
}

fn common(wanted: Ports, taken: Ports) -> Option<u16> {
    let overlaps =
        wanted.protocol == taken.protocol && wanted.first <= taken.last && taken.first <= wanted.last;
    overlaps.then(|| wanted.first.max(taken.first))
}

/// A forward that is not in force, because this host now needs one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    client: String,
    forward: Forward,
    port: u16,
    what: &'static str,
}

impl Waiting {
    /// A client's forwards that are not in force, as `client show` reports them.
    pub(crate) fn of(waiting: &[Self], client: &str) -> Vec<ForwardNotInForce> {
        let of_client = waiting.iter().filter(|one| one.client == client);
        let view = |one: &Self| {
            let ports = one.forward.ports();
            ForwardNotInForce { ports, reason: format!("{}/{}: {}", ports.protocol(), one.port, one.what) }
        };
        of_client.map(view).collect()
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, forward, port, what } = self;
        write!(
            f,
            "the forward {forward} of {client} is not in force, because of port {port}: {what}; remove the forward, or free the port"
        )
    }
}

/// Returns the forwards that are in force, and those that are not because this host needs one of their ports.
pub(super) fn in_force(registry: &ClientRegistry, host: &HostPorts) -> (Vec<ForwardedPorts>, Vec<Waiting>) {
    let (mut forwards, mut waiting) = (Vec::new(), Vec::new());
    for (forward, client) in registry.forwards().filter(|(_, client)| !client.disabled) {
        match host.taken(ports_of(forward.ports())) {
            Some((port, what)) => waiting.push(Waiting { client: client.name.clone(), forward, port, what }),
            None => forwards.push(of_client(forward, client)),
        }
    }
    (forwards, waiting)
}

fn of_client(forward: Forward, client: &Client) -> ForwardedPorts {
    let lease = client.lease();
    ForwardedPorts { ports: ports_of(forward.ports()), to: forward.to(), ipv4: lease.ipv4, ipv6: lease.ipv6 }
}

/// Whether a flow goes through this forward.
pub(super) fn leads(forward: &ForwardedPorts, flow: &SentOn) -> bool {
    let Ports { protocol, first, last } = forward.ports;
    let is_port = protocol == flow.protocol && (first..=last).contains(&flow.port);
    let is_client = match flow.to.ip() {
        std::net::IpAddr::V4(address) => forward.ipv4 == Some(address),
        std::net::IpAddr::V6(address) => forward.ipv6 == Some(address),
    };
    is_port && is_client && flow.to.port().checked_sub(forward.to) == Some(flow.port - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(text: &str) -> Ports {
        ports_of(text.parse().unwrap())
    }

    fn host() -> HostPorts {
        HostPorts {
            own: vec![(ports("udp/443"), "this exit listens there for its clients")],
            programs: vec![ports("tcp/22"), ports("udp/53")],
            published: vec![8_000..=8_010],
        }
    }

    #[test]
    fn ports_of_this_host_are_not_forwarded_and_others_are() {
        for (wanted, port) in [
            ("udp/443", 443),
            ("udp/400-500", 443),
            ("tcp/22", 22),
            ("tcp/1-21000", 22),
            ("udp/53", 53),
            ("tcp/8005", 8_005),
            ("udp/7000-9000", 8_000),
        ] {
            assert_eq!(host().taken(ports(wanted)).map(|(port, _)| port), Some(port), "{wanted}");
        }
        for free in ["tcp/443", "udp/22", "tcp/53", "tcp/7999", "udp/8011-8012"] {
            assert_eq!(host().taken(ports(free)), None, "{free}");
        }
    }

    #[test]
    fn a_connection_takes_the_way_of_a_forward_only_with_all_of_its_ends() {
        let forward = ForwardedPorts {
            ports: ports("tcp/8443-8450"),
            to: 443,
            ipv4: "10.66.0.2".parse().ok(),
            ipv6: None,
        };
        let flow = |protocol, port, to: &str| SentOn { protocol, port, to: to.parse().unwrap() };
        let tcp = InboundProtocol::Tcp;

        assert!(leads(&forward, &flow(tcp, 8_445, "10.66.0.2:445")));
        for other in [
            flow(tcp, 8_445, "10.66.0.3:445"),
            flow(tcp, 8_445, "10.66.0.2:446"),
            flow(tcp, 8_451, "10.66.0.2:451"),
            flow(InboundProtocol::Udp, 8_445, "10.66.0.2:445"),
            flow(tcp, 8_445, "[fd66::2]:445"),
        ] {
            assert!(!leads(&forward, &other), "{other:?}");
        }
    }
}
