//! The tunnels that are compared, each brought up as its users do, with its own defaults.

mod bare;
mod boringtun;
mod certificate;
mod gotatun;
mod install;
mod openvpn;
mod quincy;
mod tun_copy;
mod veth;
mod warren;
mod wireguard;
mod wireguard_go;

use std::{
    fmt,
    path::PathBuf,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use aws_lc_rs::digest::{SHA256, digest};
use clap::ValueEnum as _;

pub(crate) use self::install::on_path;
use super::{load::first_reply, process::Process, topology::Topology};
use crate::interrupt::Interrupt;

/// How long a tunnel may take to come up.
const UP: Duration = Duration::from_secs(15);
/// Inner addresses of tunnels that leave the choice to us.
const CLIENT: &str = "10.98.0.2";
const EXIT: &str = "10.98.0.1";

/// What can be compared.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
pub(crate) enum Kind {
    /// No tunnel: the link itself.
    Veth,
    /// TUN to TUN without crypto: the limit.
    TunCopy,
    /// QUIC between two TUN devices and nothing else.
    Bare,
    Warren,
    WireguardGo,
    Openvpn,
    Boringtun,
    Gotatun,
    Quincy,
}

/// A peer and, for Warren, what is set otherwise than its defaults.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
    pub(crate) kind: Kind,
    /// `key=value` of `[transport]`, or `section.key=value`; `binary=PATH`; `name=NAME` in tables.
    settings: Vec<(String, String)>,
}

impl Peer {
    pub(crate) fn of_default_run() -> Vec<Self> {
        [Kind::Veth, Kind::TunCopy, Kind::Warren, Kind::WireguardGo, Kind::Openvpn].map(Self::plain).to_vec()
    }

    pub(crate) fn all() -> Vec<Self> {
        Kind::value_variants().iter().copied().map(Self::plain).collect()
    }

    fn plain(kind: Kind) -> Self {
        Self { kind, settings: Vec::new() }
    }

    pub(crate) fn is_warren(&self) -> bool {
        self.kind == Kind::Warren
    }

    /// The same with another setting besides.
    pub(crate) fn with(&self, key: &str, value: &str) -> Self {
        let mut peer = self.clone();
        peer.settings.push((key.to_owned(), value.to_owned()));
        peer
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl FromStr for Peer {
    type Err = String;

    /// `PEER` or `warren:KEY=VALUE+KEY=VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let kind = Kind::from_str(name, false).map_err(|_| {
            let names: Vec<_> = Self::all().iter().map(ToString::to_string).collect();
            format!("there is no peer {name}; there are {}", names.join(", "))
        })?;
        let pair = |setting: &str| match setting.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                Ok((key.to_owned(), value.to_owned()))
            }
            _ => Err(format!(
                "the setting \"{setting}\" is not KEY=VALUE, as in warren:congestion=bbr3+connections=1"
            )),
        };
        let settings: Vec<_> =
            settings.split('+').filter(|setting| !setting.is_empty()).map(pair).collect::<Result<_, _>>()?;
        if !settings.is_empty() && kind != Kind::Warren {
            return Err(format!("{name} takes no settings; only warren does"));
        }
        Ok(Self { kind, settings })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.setting("name") {
            return f.write_str(name);
        }
        f.write_str(name(self.kind))?;
        for (index, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { '+' })?;
        }
        Ok(())
    }
}

const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Veth => "veth",
        Kind::TunCopy => "tun-copy",
        Kind::Bare => "bare",
        Kind::Warren => "warren",
        Kind::WireguardGo => "wireguard-go",
        Kind::Openvpn => "openvpn",
        Kind::Boringtun => "boringtun",
        Kind::Gotatun => "gotatun",
        Kind::Quincy => "quincy",
    }
}

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

/// A peer that is there to be started.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) peer: Peer,
    /// What it says of its version.
    pub(crate) version: String,
    /// Its programs: one, or the exit's first.
    programs: Vec<PathBuf>,
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

    /// SHA-256 of its programs, hexadecimal; one that cannot be read is left out.
    pub(crate) fn fingerprints(&self) -> Vec<String> {
        let fingerprint = |path: &PathBuf| {
            let hash = digest(&SHA256, &std::fs::read(path).ok()?);
            Some(hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        self.programs.iter().filter_map(fingerprint).collect()
    }

    #[cfg(test)]
    pub(super) fn for_test(peer: Peer) -> Self {
        Self { peer, version: "1".to_owned(), programs: Vec::new() }
    }

    pub(crate) fn program(&self, index: usize) -> anyhow::Result<&str> {
        let path = self.programs.get(index).context("the peer has a program for each end")?;
        path.to_str().context("the path of a peer's program is no text")
    }
}

/// What a peer is brought up with.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    topology: &'a Topology,
    interrupt: &'a Interrupt,
    installed: &'a Installed,
}

/// A tunnel that works; dropping it ends its processes.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// Inside the tunnel, IPv4.
    pub(crate) client_address: String,
    pub(crate) exit_address: String,
    pub(crate) client_pids: Vec<u32>,
    pub(crate) exit_pids: Vec<u32>,
    /// From starting the client to the first reply through the tunnel; none where nothing is set up.
    pub(crate) setup: Option<Duration>,
    _processes: Vec<Process>,
    _files: Vec<RemovedFile>,
}

/// How long a tunnel of Warren's took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// From `warren up` to the first reply.
    pub(crate) up: Duration,
    /// Until `warren down` returned.
    pub(crate) down: Duration,
}

impl Start<'_> {
    /// The tunnel of two processes, once a reply comes back through it.
    fn tunnel(&self, began: Instant, client: Process, exit: Process) -> anyhow::Result<Tunnel> {
        first_reply(self.topology, EXIT, UP, self.interrupt)?;
        Ok(Tunnel {
            client_address: CLIENT.to_owned(),
            exit_address: EXIT.to_owned(),
            client_pids: vec![client.id()],
            exit_pids: vec![exit.id()],
            setup: Some(began.elapsed()),
            _processes: vec![client, exit],
            _files: Vec::new(),
        })
    }

    /// Writes a file for a peer, readable by its owner alone, and returns its path.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
        let path = self.topology.path().join(name);
        let mut options = std::fs::OpenOptions::new();
        options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// A file outside of the topology's directory; removed when dropped.
#[derive(Debug)]
struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // The program that made it removes it when it ends in peace.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_known_by_their_names() {
        for peer in Peer::all() {
            assert_eq!(peer.to_string().parse(), Ok(peer));
        }
        let error = "ipsec".parse::<Peer>().unwrap_err();
        assert!(error.contains("ipsec") && error.contains("wireguard-go"), "{error}");
    }

    #[test]
    fn program_is_told_by_its_sha_256() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::write(&program, "abc").unwrap();
        let absent = directory.path().join("absent");
        let installed =
            Installed { programs: vec![absent, program], ..Installed::for_test(Peer::plain(Kind::Quincy)) };
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(installed.fingerprints(), [abc]);
    }

    #[test]
    fn variants_of_warren_carry_their_settings() {
        let peer: Peer = "warren:congestion=bbr3+tun.mtu=1400".parse().unwrap();
        assert_eq!(peer.setting("tun.mtu"), Some("1400"));
        assert_eq!(peer.to_string(), "warren:congestion=bbr3+tun.mtu=1400");
        assert_eq!("warren:name=new+binary=/x".parse::<Peer>().unwrap().to_string(), "new");
        assert!("warren:bbr3".parse::<Peer>().unwrap_err().contains("KEY=VALUE"));
        assert!("veth:a=b".parse::<Peer>().unwrap_err().contains("no settings"));
    }
}
