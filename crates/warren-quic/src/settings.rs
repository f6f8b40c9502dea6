//! Transport settings: what may be tuned, with bounds on everything that the QUIC library leaves wide.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::strangers::Strangers;

mod worker_place;

pub use self::worker_place::WorkerPlace;

/// The smallest UDP payload that every QUIC path must carry (RFC 9000 section 14).
pub const MINIMUM_MTU: u16 = 1_200;

/// The largest UDP payload of an Ethernet path (1,500 bytes) under IPv4.
pub const ETHERNET_MTU: u16 = 1_472;

/// Settings of every connection of an endpoint.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// What drives the connections; both speak the same on the wire.
    pub driver: Driver,
    /// Caps of one send and one drive; a clone of the settings shares them, and they act on running connections.
    pub caps: TransmitCaps,
    /// Bound of one receive; a clone of the settings shares it, and it acts on running connections. Warren's driver alone
    /// looks at it.
    pub receive_batches: ReceiveBatches,
    /// The congestion controller; a clone of the settings shares the choice, and it acts on running connections.
    pub congestion: CongestionChoice,
    /// The controller's first window in bytes (cubic, bbr3 and newreno).
    pub initial_window: u64,
    /// Silence after which a keep-alive is sent; the client's side alone needs one. `None` is off.
    pub keep_alive: Option<Duration>,
    /// Silence after which a connection is given up.
    pub idle_timeout: Duration,
    /// UDP payload to start with, in bytes; at least [`MINIMUM_MTU`].
    pub initial_mtu: u16,
    /// UDP payload that the path is taken to carry whatever happens, in bytes; at least [`MINIMUM_MTU`].
    pub min_mtu: u16,
    /// Largest UDP payload that discovery looks for on an IPv4 path, in bytes; 20 less are looked for under IPv6, whose
    /// header is that much longer.
    pub max_mtu: u16,
    /// Whether several datagrams may leave in one send (UDP_SEGMENT), where host and device can.
    pub udp_gso: bool,
    /// Whether several datagrams may arrive in one receive (UDP_GRO), where the host can.
    pub udp_gro: bool,
    /// What the host turned out not to be able to; a clone of the settings shares it.
    pub lacking: Lacking,
    /// Bytes of outgoing datagrams that a connection holds; `None` is what one drive takes, at least 64 KiB.
    pub datagram_send_buffer: Option<usize>,
    /// Bytes of received datagrams that a connection holds until they are read.
    pub datagram_receive_buffer: usize,
    /// Packets that may arrive before the peer must acknowledge.
    pub ack_threshold: u32,
    /// Longest time the peer may hold back an acknowledgement.
    pub max_ack_delay: Duration,
    /// Packets by which another may arrive late before it counts as lost; at least 3.
    pub reordering_threshold: u32,
    /// The cipher that a client asks for; `None` is the one that this CPU is fastest at. An exit takes what it is asked for.
    pub cipher: Option<Cipher>,
    /// Bytes of a control stream that may be under way.
    pub stream_window: u32,
    /// Whether an exit answers strangers; a clone of the settings shares it, and it acts at once.
    pub strangers: Strangers,
    /// Which worker the endpoint belongs to. It is said by the first byte of every connection ID that the endpoint gives
    /// out: a packet with another worker's byte is dropped, never answered with a reset.
    pub worker: WorkerPlace,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            driver: Driver::default(),
            caps: TransmitCaps::default(),
            receive_batches: ReceiveBatches::default(),
            congestion: CongestionChoice::default(),
            initial_window: 256 * 1024,
            keep_alive: Some(Duration::from_secs(5)),
            // Below 25 s, noq sends a loss probe each second at least, so a path that comes back is found within one.
            idle_timeout: Duration::from_secs(24),
            initial_mtu: MINIMUM_MTU,
            min_mtu: MINIMUM_MTU,
            max_mtu: ETHERNET_MTU,
            udp_gso: true,
            udp_gro: true,
            lacking: Lacking::default(),
            datagram_send_buffer: None,
            datagram_receive_buffer: 8 * 1024 * 1024,
            ack_threshold: 32,
            max_ack_delay: Duration::from_millis(5),
            reordering_threshold: 16,
            cipher: None,
            stream_window: 64 * 1024,
            strangers: Strangers::default(),
            worker: WorkerPlace::ONLY,
        }
    }
}

impl TransportSettings {
    /// Returns the bytes of outgoing datagrams that a connection holds: no more than its next drive takes, since what
    /// waits here can be neither dropped nor reordered by the packet path any more.
    pub fn datagram_send_buffer(&self) -> usize {
        let drive = || self.caps.datagrams() * usize::from(self.max_mtu.max(self.initial_mtu));
        self.datagram_send_buffer.unwrap_or_else(|| drive().max(64 * 1024))
    }
}

/// Both caps of sending, which can change while connections run; clones share one pair.
#[derive(Clone)]
pub struct TransmitCaps(Arc<noq_proto::TransmitCaps>);

impl TransmitCaps {
    /// Makes caps of their own; 0 counts as 1.
    pub fn new(segments: usize, datagrams: usize) -> Self {
        let caps = Self(Arc::default());
        caps.set(segments, datagrams);
        caps
    }

    /// Changes both caps for every connection that shares them; 0 counts as 1.
    pub fn set(&self, segments: usize, datagrams: usize) {
        self.0.set(segments, datagrams);
    }

    /// Returns how many UDP datagrams one send may hold. The kernel's own limits (64, and 65,507 bytes) always hold too.
    pub fn segments(&self) -> usize {
        self.0.segments().get()
    }

    /// Returns the number of UDP datagrams after which a drive yields.
    pub fn datagrams(&self) -> usize {
        self.0.datagrams().get()
    }

    pub(crate) fn shared(&self) -> Arc<noq_proto::TransmitCaps> {
        self.0.clone()
    }
}

impl Default for TransmitCaps {
    /// 40 segments and 80 datagrams, what noq PR #636 measured as best.
    fn default() -> Self {
        Self::new(40, 80)
    }
}

impl fmt::Debug for TransmitCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransmitCaps({}, {})", self.segments(), self.datagrams())
    }
}

/// How many batches (each up to 64 datagrams of one sender, merged by GRO) are received before they are dealt with; it can
/// change while connections run, and clones share it.
#[derive(Clone, Debug)]
pub struct ReceiveBatches(Arc<AtomicUsize>);

impl ReceiveBatches {
    /// The most that one system call brings.
    pub const MAX: usize = 32;

    /// Makes a bound of its own, from 1 to [`Self::MAX`].
    pub fn new(batches: usize) -> Self {
        let this = Self(Arc::default());
        this.set(batches);
        this
    }

    /// Changes the bound for every connection that shares it; it is kept from 1 to [`Self::MAX`].
    pub fn set(&self, batches: usize) {
        self.0.store(batches.clamp(1, Self::MAX), Relaxed);
    }

    /// Returns the bound.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Default for ReceiveBatches {
    /// 8 batches, which is some 360 full datagrams in half a MiB of buffers.
    fn default() -> Self {
        Self::new(8)
    }
}

/// UDP offloads that the kernel does not have, or that it or a device refused when they were used: found when a socket is
/// made or at the first refusal, and left alone from then on by every socket that shares it.
#[derive(Clone, Debug, Default)]
pub struct Lacking(Arc<Lacks>);

#[derive(Debug, Default)]
struct Lacks {
    gso: AtomicBool,
    gro: AtomicBool,
}

impl Lacking {
    /// Returns whether several datagrams cannot leave in one send.
    pub fn gso(&self) -> bool {
        self.0.gso.load(Relaxed)
    }

    /// Returns whether several datagrams cannot arrive in one receive.
    pub fn gro(&self) -> bool {
        self.0.gro.load(Relaxed)
    }

    /// Notes that segmentation is not to be had; true for the first to note it.
    pub(crate) fn found_no_gso(&self) -> bool {
        !self.0.gso.swap(true, Relaxed)
    }

    /// Notes that merged receives are not to be had; true for the first to note it.
    pub(crate) fn found_no_gro(&self) -> bool {
        !self.0.gro.swap(true, Relaxed)
    }
}

/// What drives the connections of an endpoint.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Driver {
    /// noq's tasks on the worker's runtime.
    #[default]
    Noq,
    /// Warren's own loop straight on noq-proto.
    Warren,
}

impl Driver {
    /// Every driver.
    pub const ALL: [Self; 2] = [Self::Noq, Self::Warren];

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noq => "noq",
            Self::Warren => "warren",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Driver {
    type Err = UnknownDriver;

    fn from_str(name: &str) -> Result<Self, UnknownDriver> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownDriver(name.to_owned()))
    }
}

/// A name that no driver has.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no driver {0:?}; choose warren or noq")]
pub struct UnknownDriver(String);

/// Which congestion controller a connection runs.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Congestion {
    /// CUBIC (RFC 9438), the default.
    #[default]
    Cubic,
    /// BBR version 3, experimental in noq.
    Bbr3,
    /// NewReno (RFC 9002 section 7).
    NewReno,
    /// None, and no pacing: for paths of one's own, since nothing holds the tunnel back but the inner flows.
    Off,
}

impl Congestion {
    /// Every controller.
    pub const ALL: [Self; 4] = [Self::Cubic, Self::Bbr3, Self::NewReno, Self::Off];

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr3 => "bbr3",
            Self::NewReno => "newreno",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Congestion {
    type Err = UnknownCongestion;

    fn from_str(name: &str) -> Result<Self, UnknownCongestion> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| UnknownCongestion(name.to_owned()))
    }
}

/// A congestion controller that can be exchanged while connections run; clones share the choice.
#[derive(Clone, Debug)]
pub struct CongestionChoice(Arc<AtomicU8>);

impl CongestionChoice {
    /// Changes the controller of every connection that shares the choice; each starts anew from its first window.
    pub fn set(&self, congestion: Congestion) {
        self.0.store(congestion as u8, Relaxed);
    }

    /// Returns the controller that is chosen.
    pub fn get(&self) -> Congestion {
        let chosen = self.0.load(Relaxed);
        Congestion::ALL.into_iter().find(|known| *known as u8 == chosen).unwrap_or_default()
    }
}

impl From<Congestion> for CongestionChoice {
    fn from(congestion: Congestion) -> Self {
        Self(Arc::new(AtomicU8::new(congestion as u8)))
    }
}

impl Default for CongestionChoice {
    fn default() -> Self {
        Congestion::default().into()
    }
}

/// A name that no congestion controller has.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no congestion controller {0:?}; choose cubic, bbr3, newreno or off")]
pub struct UnknownCongestion(String);

/// A cipher of TLS 1.3, which protects QUIC's packets.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// ChaCha20 with Poly1305, for CPUs without AES instructions.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Every cipher.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the name that a person gives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cipher {
    type Err = UnknownCipher;

    fn from_str(name: &str) -> Result<Self, UnknownCipher> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownCipher(name.to_owned()))
    }
}

/// A name that no cipher has.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no cipher {0:?}; choose aes-128-gcm, aes-256-gcm or chacha20-poly1305")]
pub struct UnknownCipher(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_buffer_holds_one_drive_and_at_least_64_kib() {
        let mut settings = TransportSettings { caps: TransmitCaps::new(10, 20), ..Default::default() };
        assert_eq!(settings.datagram_send_buffer(), 64 * 1024);
        settings.caps.set(64, 128);
        assert_eq!(settings.datagram_send_buffer(), 128 * 1_472);
        settings.datagram_send_buffer = Some(100_000);
        assert_eq!(settings.datagram_send_buffer(), 100_000);
    }

    #[test]
    fn caps_are_shared_by_clones_and_never_zero() {
        let settings = TransportSettings::default();
        let clone = settings.caps.clone();
        clone.set(0, 0);
        assert_eq!((settings.caps.segments(), settings.caps.datagrams()), (1, 1));
    }

    #[test]
    fn receive_batches_are_shared_by_clones_and_stay_within_bounds() {
        let batches = ReceiveBatches::default();
        let clone = batches.clone();
        clone.set(0);
        assert_eq!(batches.get(), 1);
        assert_eq!(ReceiveBatches::new(1_000).get(), ReceiveBatches::MAX);
    }

    #[test]
    fn congestion_choice_is_shared_by_clones() {
        let settings = TransportSettings::default();
        for congestion in Congestion::ALL {
            settings.clone().congestion.set(congestion);
            assert_eq!(settings.congestion.get(), congestion);
        }
    }

    #[test]
    fn drivers_are_known_by_name() {
        for driver in Driver::ALL {
            assert_eq!(driver.to_string().parse::<Driver>().unwrap(), driver);
        }
        assert!("quinn".parse::<Driver>().unwrap_err().to_string().contains("\"quinn\""));
    }

    #[test]
    fn congestion_controllers_are_known_by_name() {
        for congestion in Congestion::ALL {
            assert_eq!(congestion.name().parse::<Congestion>().unwrap(), congestion);
        }
        assert!("reno".parse::<Congestion>().unwrap_err().to_string().contains("\"reno\""));
    }

    #[test]
    fn ciphers_are_known_by_name() {
        for cipher in Cipher::ALL {
            assert_eq!(cipher.to_string().parse::<Cipher>().unwrap(), cipher);
        }
        assert!("rc4".parse::<Cipher>().unwrap_err().to_string().contains("\"rc4\""));
    }
}
