//! The two hosts of the self-test and the wire between them.

use super::super::{
    emulator::{Ends, Wire},
    request::State,
    settings::Change,
};
use crate::{
    namespace::{Namespace, execute},
    way::Way,
};

pub(super) const CLIENT: &str = "192.0.2.2";
pub(super) const EXIT: &str = "192.0.2.1";
const DEVICE: &str = "eth0";

/// Two hosts that are configured not to send frames by themselves, so that every frame belongs to the test.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) wire: Wire,
    pub(super) client: Namespace,
    pub(super) exit: Namespace,
}

impl Bed {
    pub(super) fn create(seed: u64) -> anyhow::Result<Self> {
        let (client, exit) = (Namespace::create("client")?, Namespace::create("exit")?);
        let hosts = [(&client, CLIENT, "02:00:00:00:00:02"), (&exit, EXIT, "02:00:00:00:00:01")];
        for (host, ..) in hosts {
            // With IPv6, a host sends router solicitations and multicast reports by itself. "default" applies to devices that are
            // made later, so it must be set before the wire is made.
            let sysctl = "net.ipv6.conf.default.disable_ipv6=1";
            execute(host.command("sysctl").args(["-qw", sysctl]))?;
        }
        let wire = Wire::start(&Ends { client: &client, exit: &exit, device: DEVICE }, 1_500, seed)?;
        for (host, address, station) in hosts {
            // The permanent neighbour entries below need known hardware addresses.
            host.ip(&format!("link set {DEVICE} address {station}"))?;
            host.ip(&format!("address add {address}/24 dev {DEVICE}"))?;
        }
        // With permanent neighbour entries, no ARP frames are sent. Such frames would change the sequence of the wire's random
        // choices.
        for ((host, ..), (_, address, station)) in hosts.iter().zip(hosts.iter().rev()) {
            host.ip(&format!("neighbour replace {address} lladdr {station} dev {DEVICE} nud permanent"))?;
        }
        Ok(Self { wire, client, exit })
    }

    /// Changes the settings from the client to the exit.
    pub(super) fn set(&self, settings: &str) -> anyhow::Result<()> {
        let change: Change = settings.parse().map_err(|error: String| anyhow::anyhow!(error))?;
        self.wire.handle.change(&[(Way::Up, change)]).map(drop)
    }

    pub(super) fn state(&self) -> anyhow::Result<State> {
        self.wire.handle.state()
    }
}
