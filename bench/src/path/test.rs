//! All tests by name.

use std::{
    ffi::OsString,
    fmt,
    net::{Ipv4Addr, TcpListener},
    os::fd::AsFd,
    str::FromStr,
};

use anyhow::Context as _;
use nix::sys::socket::{setsockopt, sockopt};

use super::outcome::Figure;
use crate::way::Way;

/// One test of a tunnel over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Test {
    /// Bulk TCP.
    Tcp { flows: u32, congestion: Congestion, way: Way },
    /// A UDP stream with 1,200 bytes of payload per packet.
    Udp { rate: Rate, way: Way },
    /// UDP streams of 50 packets a second each, at the same time as one bulk flow in the same direction.
    Voice { way: Way },
    /// ICMP echo requests at the same time as one bulk flow.
    Ping { way: Way },
    /// One TCP flow inside the tunnel and another one outside the tunnel, at the same time on the same path.
    Native { way: Way },
    /// Memory use under load, before and after the path drops all frames for 5 s.
    Memory,
}

/// The congestion control of the TCP sender inside the tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Congestion {
    Cubic,
    Bbr,
}

/// The rate of a UDP stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// Mbit/s of payload.
    Mbit(f64),
    /// Payload as a share of the path's rate.
    Share(f64),
}

impl Congestion {
    /// Returns the name by which the kernel knows this congestion control.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    /// Makes a socket use this congestion control. Fails if the kernel lacks it.
    pub(super) fn set(self, socket: &impl AsFd) -> anyhow::Result<()> {
        setsockopt(socket, sockopt::TcpCongestion, &OsString::from(self.name()))
            .with_context(|| format!("the kernel lacks TCP's {}", self.name()))
    }

    /// Fails if the kernel lacks this congestion control.
    pub(super) fn check(self) -> anyhow::Result<()> {
        // The check needs any TCP socket. A listener needs no peer.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
        self.set(&listener)
    }
}

impl Rate {
    /// Returns the rate in Mbit/s of payload on a path with this capacity. None if the rate is a share and the path has no
    /// capacity limit, or if a rate in Mbit/s exceeds `MOST` of the capacity.
    pub(super) fn on(self, path_mbit_per_s: Option<f64>) -> Option<f64> {
        /// The largest share of the path's capacity that the payload may use. The rest is for the headers of tunnel and link.
        const MOST: f64 = 0.8;
        match self {
            Self::Mbit(rate) => {
                Some(rate).filter(|rate| path_mbit_per_s.is_none_or(|most| *rate <= most * MOST))
            }
            Self::Share(share) => path_mbit_per_s.map(|most| most * share),
        }
    }
}

impl Test {
    /// Returns all tests, in the order of the table.
    pub(super) fn all() -> Vec<Self> {
        let each = |test: fn(Way) -> Self| [test(Way::Down), test(Way::Up)];
        let pairs = [
            each(|way| Self::Tcp { flows: 1, congestion: Congestion::Cubic, way }),
            each(|way| Self::Tcp { flows: 8, congestion: Congestion::Cubic, way }),
            each(|way| Self::Tcp { flows: 1, congestion: Congestion::Bbr, way }),
            each(|way| Self::Udp { rate: Rate::Mbit(5.0), way }),
            each(|way| Self::Udp { rate: Rate::Mbit(40.0), way }),
            each(|way| Self::Udp { rate: Rate::Share(0.8), way }),
            each(|way| Self::Voice { way }),
            each(|way| Self::Ping { way }),
            each(|way| Self::Native { way }),
        ];
        pairs.concat().into_iter().chain([Self::Memory]).collect()
    }

    /// Returns whether the test runs on a path by default. The memory use hardly depends on the path, so `Memory` runs on one
    /// path only.
    pub(super) fn runs_on(self, path: &str) -> bool {
        self != Self::Memory || path == "clean"
    }

    /// Returns the tests of the README's subset.
    pub(super) fn subset() -> Vec<Self> {
        // A test checks that all five names parse.
        ["tcp1-down", "tcp1-up", "tcp8-down", "udp40", "ping-beside"]
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect()
    }

    /// Returns whether the table shows this figure of the test. The JSON has all figures.
    pub(super) fn shows(self, figure: Figure) -> bool {
        match self {
            Self::Tcp { flows: 1, .. } => !matches!(figure, Figure::QueueDropsPercent),
            Self::Tcp { .. } => figure == Figure::MbitPerS,
            Self::Udp { .. } => !matches!(
                figure,
                Figure::CpuSecondsPerGb
                    | Figure::QueueDropsPercent
                    | Figure::DelayMedianMs
                    | Figure::MbitPerS
            ),
            Self::Voice { .. } => {
                matches!(figure, Figure::LostPercent | Figure::DelayP99Ms | Figure::LongestGapMs)
            }
            Self::Ping { .. } => !matches!(figure, Figure::MbitPerS),
            Self::Native { .. } | Self::Memory => true,
        }
    }

    /// Returns the name on the command line and in the JSON.
    pub(super) fn name(self) -> String {
        let (name, way) = match self {
            Self::Tcp { flows, congestion: Congestion::Cubic, way } => (format!("tcp{flows}"), way),
            Self::Tcp { flows, congestion: Congestion::Bbr, way } => (format!("bbr{flows}"), way),
            Self::Udp { rate: Rate::Mbit(rate), way } => (format!("udp{rate}"), way),
            Self::Udp { rate: Rate::Share(share), way } => (format!("udp{}p", share * 100.0), way),
            Self::Voice { way } => ("voice".to_owned(), way),
            Self::Ping { way } => ("ping-beside".to_owned(), way),
            Self::Native { way } => ("native".to_owned(), way),
            Self::Memory => return "memory".to_owned(),
        };
        format!("{name}-{}", direction(way))
    }

    /// Returns the name in tables.
    pub(super) fn title(self) -> String {
        let (name, way) = match self {
            Self::Tcp { flows, congestion: Congestion::Cubic, way } => (format!("CUBIC x{flows}"), way),
            Self::Tcp { flows, congestion: Congestion::Bbr, way } => (format!("BBR x{flows}"), way),
            Self::Udp { rate: Rate::Mbit(rate), way } => (format!("UDP {rate} Mbit/s"), way),
            Self::Udp { rate: Rate::Share(share), way } => {
                (format!("UDP {} % of the rate", share * 100.0), way)
            }
            Self::Voice { way } => ("voice beside CUBIC x1".to_owned(), way),
            Self::Ping { way } => ("ping beside CUBIC x1".to_owned(), way),
            Self::Native { way } => ("native CUBIC beside CUBIC x1".to_owned(), way),
            Self::Memory => return "black-out of 5 s under load".to_owned(),
        };
        format!("{name} {}", direction(way))
    }
}

fn direction(way: Way) -> &'static str {
    match way {
        Way::Up => "up",
        Way::Down => "down",
    }
}

impl FromStr for Test {
    type Err = String;

    /// Parses the name of a test. A name without a direction is the test in the direction down.
    fn from_str(name: &str) -> Result<Self, String> {
        let down = format!("{name}-down");
        let found = Self::all().into_iter().find(|test| [name, &down].contains(&test.name().as_str()));
        found.ok_or_else(|| {
            let names: Vec<_> = Self::all().into_iter().map(Self::name).collect();
            format!("there is no test {name}; tests are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_name_of_its_own_that_leads_back_to_it() {
        let mut names: Vec<_> = Test::all().into_iter().map(Test::name).collect();
        for test in Test::all() {
            assert_eq!(test.name().parse(), Ok(test));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (19, 19));
        assert_eq!(Test::subset().len(), 5);
        assert!("tcp2".parse::<Test>().unwrap_err().contains("udp80p-up"));
    }

    #[test]
    fn name_without_a_direction_is_down() {
        assert_eq!("udp40".parse::<Test>().unwrap().name(), "udp40-down");
        assert_eq!("ping-beside".parse(), Ok(Test::Ping { way: Way::Down }));
    }

    #[test]
    fn stream_that_has_no_room_on_a_path_is_left_out() {
        assert_eq!(Rate::Mbit(40.0).on(Some(50.0)), Some(40.0));
        assert_eq!(Rate::Mbit(40.0).on(Some(20.0)), None);
        assert_eq!(Rate::Share(0.8).on(Some(200.0)), Some(160.0));
        assert_eq!(Rate::Share(0.8).on(None), None);
    }
}
