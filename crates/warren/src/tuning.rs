//! What may be changed while a daemon runs: `warren set KEY VALUE`, with the bounds that configuration files have too.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use warren_packet::coalesce::Merge;
use warren_quic::settings::{Congestion, TransportSettings};

use crate::config::suggestion;

/// UDP payloads in one GSO send.
pub(crate) const SEGMENTS: RangeInclusive<u32> = 1..=128;
/// Datagrams in one drive.
pub(crate) const DATAGRAMS: RangeInclusive<u32> = 1..=1024;
/// Receives that are dealt with at once.
pub(crate) const RECEIVE_BATCHES: RangeInclusive<u32> = 1..=32;
/// Reads of the TUN in one turn.
pub(crate) const TUN_BATCHES: RangeInclusive<u32> = 1..=256;

/// What of a daemon's transport can change while it runs; clones share it with the worker and its connections.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) settings: TransportSettings,
    pub(crate) tun_batches: TunBatches,
    pub(crate) tun_offload: TunOffload,
    /// How many workers there are, each with a queue of the TUN device; fixed for the daemon's life, as is the next.
    pub(crate) workers: u8,
    /// Whether each is tied to a core.
    pub(crate) pin: bool,
}

impl Tuning {
    /// Carries a change out and returns the value that was.
    pub(crate) fn apply(&self, change: Change) -> String {
        let before = self.value(change.key);
        let Self { settings, tun_batches, .. } = self;
        let TransportSettings { caps, receive_batches, congestion, .. } = settings;
        match change.value {
            Value::Congestion(chosen) => congestion.set(chosen),
            Value::Number(number) => match change.key {
                Key::MaxTransmitSegments => caps.set(number, caps.datagrams()),
                Key::MaxTransmitDatagrams => caps.set(caps.segments(), number),
                Key::ReceiveBatches => receive_batches.set(number),
                Key::TunBatches => tun_batches.set(number),
                // Its values are words.
                Key::Congestion => {}
            },
        }
        before
    }

    fn value(&self, key: Key) -> String {
        let settings = &self.settings;
        match key {
            Key::MaxTransmitSegments => settings.caps.segments().to_string(),
            Key::MaxTransmitDatagrams => settings.caps.datagrams().to_string(),
            Key::ReceiveBatches => settings.receive_batches.get().to_string(),
            Key::TunBatches => self.tun_batches.get().to_string(),
            Key::Congestion => settings.congestion.get().to_string(),
        }
    }
}

#[cfg(test)]
impl Default for Tuning {
    fn default() -> Self {
        Self {
            settings: TransportSettings::default(),
            tun_batches: TunBatches::new(128),
            tun_offload: TunOffload::default(),
            workers: 1,
            pin: false,
        }
    }
}

/// How often a turn reads the TUN at most; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TunBatches(Arc<AtomicUsize>);

impl TunBatches {
    pub(crate) fn new(reads: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(reads)))
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, reads: usize) {
        self.0.store(reads, Relaxed);
    }
}

/// Which super-packets the TUN device takes: known once there is a device, and less after it refused some; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunOffload(Arc<AtomicU8>);

impl TunOffload {
    const KNOWN: u8 = 1;
    const TCP: u8 = 2;
    const UDP: u8 = 4;

    /// Notes what a new device takes, unless one did before.
    pub(crate) fn found(&self, takes: Merge) {
        // Another worker was first, and may have been refused something since.
        let _ = self.0.compare_exchange(0, Self::bits(takes), Relaxed, Relaxed);
    }

    /// Notes that no more than this is taken; true if that is news.
    pub(crate) fn restrict(&self, takes: Merge) -> bool {
        let before = self.0.fetch_and(Self::bits(takes), Relaxed);
        before & !Self::bits(takes) != 0
    }

    /// The offloads in force, once there is a device.
    pub(crate) fn in_force(&self) -> Option<&'static str> {
        let bits = self.0.load(Relaxed);
        let word = match (bits & Self::TCP != 0, bits & Self::UDP != 0) {
            (true, true) => "tcp and udp",
            (true, false) => "tcp",
            (false, true) => "udp",
            (false, false) => "off",
        };
        (bits != 0).then_some(word)
    }

    fn bits(takes: Merge) -> u8 {
        Self::KNOWN | if takes.tcp { Self::TCP } else { 0 } | if takes.udp { Self::UDP } else { 0 }
    }
}

/// One change that is valid.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "Words", into = "Words")]
pub(crate) struct Change {
    key: Key,
    value: Value,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Value {
    Number(usize),
    Congestion(Congestion),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Key {
    MaxTransmitSegments,
    MaxTransmitDatagrams,
    ReceiveBatches,
    TunBatches,
    Congestion,
}

/// A change as it is typed and as it is sent to the daemon.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Words {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Change {
    /// The name of what is changed.
    pub(crate) fn key(self) -> &'static str {
        self.key.name()
    }
}

impl Key {
    const ALL: [Self; 5] = [
        Self::MaxTransmitSegments,
        Self::MaxTransmitDatagrams,
        Self::ReceiveBatches,
        Self::TunBatches,
        Self::Congestion,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::MaxTransmitSegments => "max_transmit_segments",
            Self::MaxTransmitDatagrams => "max_transmit_datagrams",
            Self::ReceiveBatches => "receive_batches",
            Self::TunBatches => "tun_batches",
            Self::Congestion => "congestion",
        }
    }

    fn value(self, text: &str) -> Result<Value, String> {
        let range = match self {
            Self::MaxTransmitSegments => SEGMENTS,
            Self::MaxTransmitDatagrams => DATAGRAMS,
            Self::ReceiveBatches => RECEIVE_BATCHES,
            Self::TunBatches => TUN_BATCHES,
            Self::Congestion => {
                let chosen = text.parse().map(Value::Congestion);
                return chosen.map_err(|_| "must be cubic, bbr3, newreno or off".to_owned());
            }
        };
        let number = text.parse::<u32>().ok().filter(|number| range.contains(number));
        number
            .map(|number| Value::Number(number as usize))
            .ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
    }
}

impl TryFrom<Words> for Change {
    type Error = String;

    fn try_from(Words { key, value }: Words) -> Result<Self, String> {
        let Some(known) = Key::ALL.into_iter().find(|known| known.name() == key) else {
            let names = Key::ALL.map(Key::name);
            let choice = match suggestion(&key, names.into_iter()) {
                Some(name) => format!("did you mean {name}?"),
                None => format!("choose one of {}", names.join(", ")),
            };
            return Err(format!("{key:?} cannot be changed while the daemon runs; {choice}"));
        };
        let parsed = known.value(&value).map_err(|expected| format!("{key} is {value:?}, but {expected}"))?;
        Ok(Self { key: known, value: parsed })
    }
}

impl From<Change> for Words {
    fn from(change: Change) -> Self {
        Self { key: change.key().to_owned(), value: change.value.to_string() }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Congestion(congestion) => congestion.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, value: &str) -> Result<Change, String> {
        Words { key: key.to_owned(), value: value.to_owned() }.try_into()
    }

    #[test]
    fn every_key_changes_its_own_value_alone_and_tells_the_old_one() {
        for (key, value, before) in [
            ("max_transmit_segments", "10", "40"),
            ("max_transmit_datagrams", "20", "80"),
            ("receive_batches", "4", "8"),
            ("tun_batches", "1", "128"),
            ("congestion", "off", "cubic"),
        ] {
            let tuning = Tuning::default();
            let values = || Key::ALL.map(|key| tuning.value(key));
            let old = values();
            let change = change(key, value).unwrap();
            assert_eq!(tuning.apply(change), before);
            assert_eq!(tuning.apply(change), value);
            let changed = values().iter().zip(&old).filter(|(new, old)| new != old).count();
            assert_eq!(changed, 1, "{key}");
        }
    }

    #[test]
    fn an_offload_that_was_refused_is_news_once_and_stays_off() {
        let offload = TunOffload::default();
        assert_eq!(offload.in_force(), None);
        offload.found(Merge::ALL);
        assert_eq!(offload.in_force(), Some("tcp and udp"));
        assert!(offload.restrict(Merge { tcp: true, udp: false }));
        assert!(!offload.restrict(Merge { tcp: true, udp: false }));
        offload.found(Merge::ALL);
        assert_eq!(offload.in_force(), Some("tcp"));
        assert!(offload.restrict(Merge::NOTHING));
        assert_eq!(offload.in_force(), Some("off"));
    }

    #[test]
    fn receive_batches_are_bounded_as_the_socket_layer_bounds_them() {
        assert_eq!(*RECEIVE_BATCHES.end() as usize, warren_quic::settings::ReceiveBatches::MAX);
    }

    #[test]
    fn change_survives_the_control_socket() {
        for key in Key::ALL {
            let words = change(key.name(), &Tuning::default().value(key)).unwrap();
            let sent = serde_json::to_string(&words).unwrap();
            assert_eq!(serde_json::from_str::<Change>(&sent).unwrap(), words);
        }
        assert!(serde_json::from_str::<Change>(r#"{"key":"tun_batches","value":"0"}"#).is_err());
    }

    #[test]
    fn wrong_keys_and_values_are_refused_in_one_sentence() {
        for (key, value, sentence) in [
            (
                "max_transmit_segments",
                "0",
                "max_transmit_segments is \"0\", but must be a number from 1 to 128",
            ),
            ("receive_batches", "33", "receive_batches is \"33\", but must be a number from 1 to 32"),
            ("tun_batches", "many", "tun_batches is \"many\", but must be a number from 1 to 256"),
            ("congestion", "reno", "congestion is \"reno\", but must be cubic, bbr3, newreno or off"),
            (
                "max_transmit_segment",
                "10",
                "\"max_transmit_segment\" cannot be changed while the daemon runs; did you mean max_transmit_segments?",
            ),
            (
                "mtu",
                "10",
                "\"mtu\" cannot be changed while the daemon runs; choose one of max_transmit_segments, \
                 max_transmit_datagrams, receive_batches, tun_batches, congestion",
            ),
        ] {
            assert_eq!(change(key, value).unwrap_err(), sentence);
        }
    }
}
