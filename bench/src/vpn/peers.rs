//! The tunnels that are compared. Each is brought up as its users do, with its own default settings.

mod bare;
mod certificate;
mod install;
mod openvpn;
mod peer;
mod quincy;
mod tun_copy;
mod tunnel;
mod veth;
mod warren;
mod wireguard;
mod wireguard_at_warren;
mod wireguard_go;
mod wireguard_rust;

use self::tunnel::Start;
pub(crate) use self::{
    install::on_path,
    peer::{Kind, Peer},
    tunnel::{Installed, Tunnel, Turn},
};
use super::topology::Topology;
use crate::interrupt::Interrupt;

/// Installs the load generators, unless they are installed.
pub(crate) fn install_load_generators(interrupt: &Interrupt) -> anyhow::Result<()> {
    install::debian("load generator", &[("iperf3", "iperf3")], interrupt)
}

/// Installs perf, unless it is installed.
pub(crate) fn install_profiler(interrupt: &Interrupt) -> anyhow::Result<()> {
    install::debian("the profiler", &[("perf", "linux-perf")], interrupt)
}

impl Installed {
    /// Finds the programs of a peer. If they are missing, installs them.
    pub(crate) fn find(peer: &Peer, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let (version, programs) = match peer.kind {
            Kind::Veth => ("kernel".to_owned(), Vec::new()),
            Kind::TunCopy | Kind::Bare => tun_copy::find()?,
            Kind::Warren => warren::find(peer, interrupt)?,
            Kind::WireguardGo => wireguard_go::find(interrupt)?,
            Kind::WireguardGoAtWarren => wireguard_at_warren::find(peer, interrupt)?,
            Kind::Openvpn => openvpn::find(interrupt)?,
            Kind::Boringtun => wireguard_rust::find_boringtun(interrupt)?,
            Kind::Gotatun => wireguard_rust::find_gotatun(interrupt)?,
            Kind::Quincy => quincy::find(interrupt)?,
        };
        Ok(Self { peer: peer.clone(), version, programs })
    }

    /// Brings the tunnel up between two hosts, and waits for the first reply through it.
    pub(crate) fn start(&self, topology: &Topology, interrupt: &Interrupt) -> anyhow::Result<Tunnel> {
        let start = Start { topology, interrupt, installed: self };
        match self.peer.kind {
            Kind::Veth => veth::start(&start),
            Kind::TunCopy => tun_copy::start(&start),
            Kind::Bare => bare::start(&start),
            Kind::Warren => warren::start(&start),
            Kind::WireguardGo => wireguard_go::start(&start),
            Kind::WireguardGoAtWarren => wireguard_at_warren::start(&start),
            Kind::Openvpn => openvpn::start(&start),
            Kind::Boringtun | Kind::Gotatun => wireguard_rust::start(&start),
            Kind::Quincy => quincy::start(&start),
        }
    }

    /// Takes down a Warren tunnel that [`Self::start`] has brought up, and brings it up again.
    pub(crate) fn turn(&self, topology: &Topology, interrupt: &Interrupt) -> anyhow::Result<Turn> {
        warren::turn(&Start { topology, interrupt, installed: self })
    }
}
