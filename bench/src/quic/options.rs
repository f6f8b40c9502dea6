//! The options of `quic`.

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::Serialize;
use warren_quic::{
    settings::{Cipher, Congestion, Driver, MINIMUM_MTU, ReceiveBatches, TransmitCaps, TransportSettings},
    socket::{self, SocketConfig},
};

use crate::way::Ways;

/// Options that both sides use. It has 23 fields because each is an option of the command line.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(crate) struct Options {
    /// What carries the payload: unreliable datagrams, as in Warren, or one reliable stream per connection
    #[arg(long, value_enum, default_value_t = Mode::Datagrams)]
    pub(crate) mode: Mode,
    /// Which way the payload goes
    #[arg(long, value_enum, default_value_t = Ways::Up)]
    pub(crate) direction: Ways,
    /// Number of connections, all on one worker thread per side, as in a Warren worker
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) connections: u32,
    /// Bytes of a stream that may be in flight (only with --mode stream)
    ///
    /// noq closes a connection if a stream has more than 1,024 gaps. A larger window and heavy loss may cause that.
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1_024..))]
    pub(crate) stream_window: u32,
    /// Bytes of a datagram [default: 32 less than the path carries, so that an ACK fits beside it]
    #[arg(long, value_name = "BYTES")]
    pub(crate) datagram_size: Option<u16>,
    /// UDP payload of the path in bytes, without path MTU discovery
    #[arg(long, default_value_t = 1472, value_parser = clap::value_parser!(u16).range(1200..))]
    pub(crate) mtu: u16,
    /// What drives the connections
    ///
    /// noq: noq's tasks. warren: Warren's own loop on noq-proto.
    #[arg(long, default_value_t = Driver::default(), value_name = "noq|warren")]
    #[serde(serialize_with = "as_text")]
    pub(crate) driver: Driver,
    /// Maximum number of UDP datagrams in one send
    #[arg(long, default_value_t = 40, value_name = "N")]
    pub(crate) max_segments: usize,
    /// Number of UDP datagrams after which a drive yields
    #[arg(long, default_value_t = 80, value_name = "N")]
    pub(crate) max_datagrams: usize,
    /// Batches per receive (only with --driver warren)
    #[arg(long, default_value_t = ReceiveBatches::default().get(), value_name = "N")]
    pub(crate) receive_batches: usize,
    /// The congestion controller
    #[arg(long, default_value_t = Congestion::Cubic, value_name = "cubic|newreno|bbr3|off")]
    #[serde(serialize_with = "as_text")]
    pub(crate) congestion: Congestion,
    /// The cipher [default: the fastest on this CPU]
    #[arg(long, value_name = "aes-128-gcm|aes-256-gcm|chacha20-poly1305")]
    #[serde(serialize_with = "as_text_or_null")]
    pub(crate) cipher: Option<Cipher>,
    /// Packets that may arrive before the peer must acknowledge
    #[arg(long, default_value_t = TransportSettings::default().ack_threshold, value_name = "PACKETS")]
    pub(crate) ack_threshold: u32,
    /// Longest delay of an acknowledgement in milliseconds
    #[arg(long, default_value_t = 5, value_name = "MS")]
    pub(crate) max_ack_delay: u64,
    /// One datagram per send (no UDP_SEGMENT)
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// One datagram per receive (no UDP_GRO)
    #[arg(long)]
    pub(crate) no_gro: bool,
    /// Bytes of each socket buffer
    #[arg(long, default_value_t = warren_quic::socket::DEFAULT_BUFFER_BYTES, value_name = "BYTES")]
    pub(crate) socket_buffer: usize,
    /// Pin the client to the first and the exit to the last of this process's CPUs
    #[arg(long)]
    pub(crate) pin: bool,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Seconds to send before the measurement starts
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub(crate) warm_up: f64,
    /// The exit's address
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    pub(crate) address: IpAddr,
    /// The client's network namespace [default: that of this process]
    #[arg(long, value_name = "NAME")]
    pub(crate) client_namespace: Option<String>,
    /// The exit's network namespace [default: that of this process]
    #[arg(long, value_name = "NAME")]
    pub(crate) exit_namespace: Option<String>,
}

/// What carries the payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Datagrams,
    Stream,
}

impl Options {
    /// Returns an error for values that clap cannot check.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (name, seconds, least) in [("--seconds", self.seconds, 0.1), ("--warm-up", self.warm_up, 0.0)] {
            if !(least..=3_600.0).contains(&seconds) {
                bail!("{name} is {seconds}, but must be from {least} to 3600");
            }
        }
        if self.mtu < MINIMUM_MTU {
            bail!("--mtu is {}, but must be at least {MINIMUM_MTU}", self.mtu);
        }
        if self.datagram_size.is_some_and(|size| size == 0) {
            bail!("--datagram-size must be at least 1");
        }
        if self.datagram_size.is_some() && self.mode == Mode::Stream {
            bail!(
                "--datagram-size is given, but a stream has no datagrams; leave it out or use --mode datagrams"
            );
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> TransportSettings {
        TransportSettings {
            driver: self.driver,
            receive_batches: ReceiveBatches::new(self.receive_batches),
            caps: TransmitCaps::new(self.max_segments, self.max_datagrams),
            congestion: self.congestion.into(),
            cipher: self.cipher,
            stream_window: match self.mode {
                // `--stream-window` applies only to streams. In datagram mode, Warren's default applies.
                Mode::Datagrams => TransportSettings::default().stream_window,
                Mode::Stream => self.stream_window,
            },
            // If the initial MTU equals the maximum, path MTU discovery sends no probes.
            initial_mtu: self.mtu,
            min_mtu: self.mtu,
            max_mtu: self.mtu,
            udp_gso: !self.no_gso,
            udp_gro: !self.no_gro,
            ack_threshold: self.ack_threshold,
            max_ack_delay: Duration::from_millis(self.max_ack_delay),
            ..TransportSettings::default()
        }
    }

    /// Binds a UDP socket to any port of an address, with buffers of the requested size.
    pub(crate) fn bind(&self, address: IpAddr) -> anyhow::Result<UdpSocket> {
        let config =
            SocketConfig { buffer_bytes: self.socket_buffer, ..SocketConfig::new((address, 0).into()) };
        socket::bind(config).with_context(|| format!("cannot bind a UDP socket to {address}"))
    }
}

fn as_text_or_null<S: serde::Serializer>(
    value: &Option<impl std::fmt::Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn as_text<S: serde::Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
