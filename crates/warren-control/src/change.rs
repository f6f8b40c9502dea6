//! Settings that can change while a daemon runs: `warren set KEY VALUE`, with the same bounds as in configuration
//! files.

use std::fmt;

use serde::{Deserialize, Serialize};
use warren_quic::settings::{Congestion, TransportSettings};

use warren_config::suggestion;
use warren_tunnel::tuning::{DATAGRAMS, RECEIVE_BATCHES, SEGMENTS, TUN_BATCHES, Tuning};

/// A valid change of one setting.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "UncheckedChange", into = "UncheckedChange")]
pub struct Change {
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

/// A change as it is typed and as it is sent to the daemon. Name and value are not checked yet.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct UncheckedChange {
    /// The setting's name, as in `[transport]`.
    pub key: String,
    /// The setting's new value.
    pub value: String,
}

impl Change {
    /// Makes the change and returns the previous value.
    pub fn apply(self, tuning: &Tuning) -> String {
        let before = self.key.in_force(tuning);
        let Tuning { settings, tun_batches, .. } = tuning;
        let TransportSettings { caps, receive_batches, congestion, .. } = settings;
        match self.value {
            Value::Congestion(chosen) => congestion.set(chosen),
            Value::Number(number) => match self.key {
                Key::MaxTransmitSegments => caps.set(number, caps.datagrams()),
                Key::MaxTransmitDatagrams => caps.set(caps.segments(), number),
                Key::ReceiveBatches => receive_batches.set(number),
                Key::TunBatches => tun_batches.set(number),
                // The congestion controller is set as a word above, so there is no number to set.
                Key::Congestion => {}
            },
        }
        before
    }

    /// The names of all settings.
    pub fn keys() -> [&'static str; 5] {
        Key::ALL.map(Key::name)
    }

    /// The possible values of a setting whose values are words. Empty for any other setting.
    pub fn words(key: &str) -> &'static [&'static str] {
        if key == Key::Congestion.name() { &["adaptive", "cubic", "bbr3", "newreno", "off"] } else { &[] }
    }

    /// The name of the setting.
    pub fn key(self) -> &'static str {
        self.key.name()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} = {}", self.key(), self.value)
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

    fn in_force(self, tuning: &Tuning) -> String {
        let settings = &tuning.settings;
        match self {
            Self::MaxTransmitSegments => settings.caps.segments().to_string(),
            Self::MaxTransmitDatagrams => settings.caps.datagrams().to_string(),
            Self::ReceiveBatches => settings.receive_batches.get().to_string(),
            Self::TunBatches => tuning.tun_batches.get().to_string(),
            Self::Congestion => settings.congestion.get().to_string(),
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
                return chosen.map_err(|_| "must be adaptive, cubic, bbr3, newreno or off".to_owned());
            }
        };
        let number = text.parse::<u32>().ok().filter(|number| range.contains(number));
        number
            .map(|number| Value::Number(number as usize))
            .ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
    }
}

impl TryFrom<UncheckedChange> for Change {
    type Error = String;

    fn try_from(UncheckedChange { key, value }: UncheckedChange) -> Result<Self, String> {
        // Both sides parse the change: the command for a quick error, and the daemon because it must not trust the sender.
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

impl From<Change> for UncheckedChange {
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
        UncheckedChange { key: key.to_owned(), value: value.to_owned() }.try_into()
    }

    #[test]
    fn every_key_changes_its_own_value_alone_and_tells_the_old_one() {
        for (key, value, before) in [
            ("max_transmit_segments", "10", "40"),
            ("max_transmit_datagrams", "20", "80"),
            ("receive_batches", "4", "8"),
            ("tun_batches", "1", "128"),
            ("congestion", "off", "adaptive"),
        ] {
            let tuning = Tuning::default();
            let values = || Key::ALL.map(|key| key.in_force(&tuning));
            let old = values();
            let change = change(key, value).unwrap();
            assert_eq!(change.apply(&tuning), before);
            assert_eq!(change.apply(&tuning), value);
            let changed = values().iter().zip(&old).filter(|(new, old)| new != old).count();
            assert_eq!(changed, 1, "{key}");
        }
    }

    #[test]
    fn change_survives_the_control_socket() {
        for key in Key::ALL {
            let words = change(key.name(), &key.in_force(&Tuning::default())).unwrap();
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
            (
                "congestion",
                "reno",
                "congestion is \"reno\", but must be adaptive, cubic, bbr3, newreno or off",
            ),
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
