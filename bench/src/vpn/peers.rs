//! The tunnels that are compared, each brought up as its users do, with its own defaults.

mod bare;
mod boringtun;
mod certificate;
mod gotatun;
mod install;
mod openvpn;
mod peer;
mod quincy;
mod tun_copy;
mod tunnel;
mod veth;
mod warren;
mod wireguard;
mod wireguard_go;

use self::tunnel::Start;
pub(crate) use self::{
    install::on_path,
    peer::{Kind, Peer},
    tunnel::{Installed, Tunnel, Turn},
};
use super::topology::Topology;
use crate::interrupt::Interrupt;

/// Installs what makes the traffic, where it is missing.
///
/// # Errors
/// A sentence when it is not there and cannot be had.
pub(crate) fn install_load_generators(interrupt: &Interrupt) -> anyhow::Result<()> {
    install::debian("load generator", &[("iperf3", "iperf3")], interrupt)
}

/// Installs what takes profiles, where it is missing.
///
/// # Errors
/// A sentence when it is not there and cannot be had.
pub(crate) fn install_profiler(interrupt: &Interrupt) -> anyhow::Result<()> {
    install::debian("the profiler", &[("perf", "linux-perf")], interrupt)
}

impl Installed {
    /// Installs a peer where it is missing, telling so.
    ///
    /// # Errors
    /// A sentence when it is not there and cannot be had.
    pub(crate) fn find(peer: &Peer, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let (version, programs) = match peer.kind {
            Kind::Veth => ("kernel".to_owned(), Vec::new()),
            Kind::TunCopy | Kind::Bare => tun_copy::find()?,
            Kind::Warren => warren::find(peer, interrupt)?,
            Kind::WireguardGo => wireguard_go::find(interrupt)?,
            Kind::Openvpn => openvpn::find(interrupt)?,
            Kind::Boringtun => boringtun::find(interrupt)?,
            Kind::Gotatun => gotatun::find(interrupt)?,
            Kind::Quincy => quincy::find(interrupt)?,
        };
        Ok(Self { peer: peer.clone(), version, programs })
    }

    /// Brings it up between two hosts and waits until a packet went through and back.
    ///
    /// # Errors
    /// A sentence when that does not work.
    pub(crate) fn start(&self, topology: &Topology, interrupt: &Interrupt) -> anyhow::Result<Tunnel> {
        let start = Start { topology, interrupt, installed: self };
        match self.peer.kind {
            Kind::Veth => veth::start(&start),
            Kind::TunCopy => tun_copy::start(&start),
            Kind::Bare => bare::start(&start),
            Kind::Warren => warren::start(&start),
            Kind::WireguardGo => wireguard_go::start(&start),
            Kind::Openvpn => openvpn::start(&start),
            Kind::Boringtun => boringtun::start(&start),
            Kind::Gotatun => gotatun::start(&start),
            Kind::Quincy => quincy::start(&start),
        }
    }

    /// Takes a tunnel of Warren's down that [`Self::start`] has brought up, and brings it up again.
    ///
    /// # Errors
    /// A sentence when that does not work.
    pub(crate) fn turn(&self, topology: &Topology, interrupt: &Interrupt) -> anyhow::Result<Turn> {
        warren::turn(&Start { topology, interrupt, installed: self })
    }
}
