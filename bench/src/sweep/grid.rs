//! The grid of a sweep: every combination of the axes' values, on every network.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::{report::value_name, vpn::peers::Peer, wire::Change};

/// The settings `max_transmit_segments` and `max_transmit_datagrams`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Caps {
    segments: u32,
    datagrams: u32,
}

/// The networks below a tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Net {
    /// A veth pair: only the machine limits
    Clean,
    /// 30 ms of RTT and 200 Mbit/s
    #[value(name = "30ms")]
    Near,
    /// 100 ms of RTT and 100 Mbit/s
    #[value(name = "100ms")]
    Far,
    /// 30 ms of RTT, 200 Mbit/s, and 1 % lost each way
    Lossy,
}

/// The values of each axis.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub(super) caps: Vec<Caps>,
    pub(super) mtus: Vec<u16>,
    pub(super) connections: Vec<u32>,
    pub(super) queues: Vec<String>,
}

/// A combination of one value of each axis.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) caps: Caps,
    pub(super) mtu: u16,
    pub(super) connections: u32,
    /// The queue of the wire's bottleneck. None without a bottleneck.
    pub(super) queue: Option<String>,
}

/// A combination on a network.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Cell {
    #[serde(serialize_with = "by_name")]
    pub(super) net: Net,
    pub(super) setting: Setting,
}

impl Net {
    pub(super) const ALL: [Self; 4] = [Self::Clean, Self::Near, Self::Far, Self::Lossy];

    pub(super) fn name(self) -> String {
        value_name(&self)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Clean => "clean (veth)",
            Self::Near => "30 ms, 200 Mbit/s",
            Self::Far => "100 ms, 100 Mbit/s",
            Self::Lossy => "30 ms, 200 Mbit/s, 1 % loss",
        }
    }

    /// Returns the wire's settings for each direction, without its queue. None for a veth pair.
    fn wire(self) -> Option<&'static str> {
        match self {
            Self::Clean => None,
            Self::Near => Some("delay=15ms rate=200mbit"),
            Self::Far => Some("delay=50ms rate=100mbit"),
            Self::Lossy => Some("delay=15ms rate=200mbit loss=1%"),
        }
    }
}

impl Axes {
    /// Returns every cell once, network by network.
    pub(super) fn cells(&self, nets: &[Net]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &net in nets {
            // A veth pair has no bottleneck, so its cells have no queue.
            let queues: Vec<_> = match net.wire() {
                None => vec![None],
                Some(_) => self.queues.iter().cloned().map(Some).collect(),
            };
            for queue in &queues {
                for &connections in &self.connections {
                    for &mtu in &self.mtus {
                        for &caps in &self.caps {
                            let setting = Setting { caps, mtu, connections, queue: queue.clone() };
                            cells.push(Cell { net, setting });
                        }
                    }
                }
            }
        }
        cells
    }
}

impl Cell {
    /// Returns the wire's settings. None for a veth pair.
    pub(super) fn wire(&self) -> Option<String> {
        let queue = self.setting.queue.as_ref().map(|queue| format!(" queue={queue}")).unwrap_or_default();
        self.net.wire().map(|wire| format!("{wire}{queue}"))
    }
}

impl Setting {
    /// Returns `base` with these settings.
    pub(super) fn peer(&self, base: &Peer) -> Peer {
        base.with("max_transmit_segments", &self.caps.segments.to_string())
            .with("max_transmit_datagrams", &self.caps.datagrams.to_string())
            .with("connections", &self.connections.to_string())
            .with("tun.mtu", &self.mtu.to_string())
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.segments, self.datagrams)
    }
}

impl FromStr for Caps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not SEGMENTS/DATAGRAMS, as in 40/80");
        let (segments, datagrams) = text.split_once('/').ok_or_else(wrong)?;
        match (segments.parse(), datagrams.parse()) {
            (Ok(segments @ 1..=128), Ok(datagrams @ 1..=1_024)) => Ok(Self { segments, datagrams }),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Caps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn by_name<S: Serializer>(net: &Net, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&net.name())
}

/// Checks the length of a wire's queue and returns it unchanged.
pub(super) fn parse_queue(text: &str) -> Result<String, String> {
    // The text is parsed as a setting of the wire, so that exactly the lengths that the wire supports are accepted.
    format!("queue={text}").parse::<Change>().map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> Axes {
        Axes {
            caps: vec!["10/20".parse().unwrap(), "40/80".parse().unwrap()],
            mtus: vec![1_280, 1_380],
            connections: vec![1, 4],
            queues: vec!["10ms".to_owned(), "100ms".to_owned()],
        }
    }

    #[test]
    fn every_combination_comes_once_and_a_veth_pair_has_no_queue() {
        let cells = axes().cells(&Net::ALL);
        assert_eq!(cells.len(), 8 + 3 * 16);
        for (index, cell) in cells.iter().enumerate() {
            assert!(!cells.iter().take(index).any(|other| other == cell), "{cell:?}");
            assert_eq!(cell.wire().is_none(), cell.net == Net::Clean);
            assert!(cell.wire().is_none_or(|wire| wire.parse::<Change>().is_ok() && wire.contains("queue=")));
        }
    }

    #[test]
    fn settings_reach_the_tunnel() {
        let cell = axes().cells(&[Net::Near]).pop().unwrap();
        let peer = cell.setting.peer(&"warren".parse().unwrap()).to_string();
        let expected = "max_transmit_segments=40+max_transmit_datagrams=80+connections=4+tun.mtu=1380";
        assert_eq!(peer, format!("warren:{expected}"));
    }

    #[test]
    fn caps_and_queues_are_read_as_they_are_written() {
        assert_eq!("40/80".parse::<Caps>().unwrap().to_string(), "40/80");
        for wrong in ["40", "0/80", "40/0", "200/80", "a/b"] {
            assert!(wrong.parse::<Caps>().is_err(), "{wrong}");
        }
        assert!(parse_queue("50ms").is_ok() && parse_queue("50").unwrap_err().contains("not a length"));
    }
}
