//! The names of peers, and the settings of variants of Warren.

use std::{fmt, str::FromStr};

use clap::ValueEnum as _;

use crate::report::value_name;

/// The kinds of peers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
pub(crate) enum Kind {
    /// No tunnel: the link itself.
    Veth,
    /// TUN to TUN without crypto: the limit of any TUN VPN.
    TunCopy,
    /// Only QUIC between two TUN devices.
    Bare,
    Warren,
    WireguardGo,
    /// A wireguard-go client at a Warren exit.
    WireguardGoAtWarren,
    Openvpn,
    Boringtun,
    Gotatun,
    Quincy,
}

/// A peer and, if Warren is part of it, Warren's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
    pub(crate) kind: Kind,
    /// Pairs of key and value. The key is a key of `[transport]` or `section.key`, or `binary`, `name` or `forwards`, which are
    /// not written to Warren's configuration.
    pub(super) settings: Vec<(String, String)>,
}

impl Peer {
    pub(crate) fn of_default_run() -> Vec<Self> {
        [Kind::Veth, Kind::TunCopy, Kind::Warren, Kind::WireguardGo, Kind::Openvpn].map(Self::plain).to_vec()
    }

    pub(crate) fn all() -> Vec<Self> {
        Kind::value_variants().iter().copied().map(Self::plain).collect()
    }

    pub(super) fn plain(kind: Kind) -> Self {
        Self { kind, settings: Vec::new() }
    }

    pub(crate) fn is_warren(&self) -> bool {
        self.kind == Kind::Warren
    }

    /// Returns the peer with another setting. It overrides an earlier setting of the same key.
    pub(crate) fn with(&self, key: &str, value: &str) -> Self {
        let mut peer = self.clone();
        peer.settings.push((key.to_owned(), value.to_owned()));
        peer
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        // The last value of a key counts, so that `with` overrides the user's setting.
        self.settings.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl FromStr for Peer {
    type Err = String;

    /// Parses `PEER` or `warren:KEY=VALUE+KEY=VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let kind = Kind::from_str(name, false).map_err(|_| {
            let names: Vec<_> = Self::all().iter().map(ToString::to_string).collect();
            format!("there is no peer {name}; peers are {}", names.join(", "))
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
        if !settings.is_empty() && ![Kind::Warren, Kind::WireguardGoAtWarren].contains(&kind) {
            return Err(format!("{name} takes no settings; only warren and wireguard-go-at-warren do"));
        }
        Ok(Self { kind, settings })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.setting("name") {
            return f.write_str(name);
        }
        f.write_str(&value_name(&self.kind))?;
        for (index, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { '+' })?;
        }
        Ok(())
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
    fn variants_of_warren_carry_their_settings() {
        let peer: Peer = "warren:congestion=bbr3+tun.mtu=1400".parse().unwrap();
        assert_eq!(peer.setting("tun.mtu"), Some("1400"));
        assert_eq!(peer.to_string(), "warren:congestion=bbr3+tun.mtu=1400");
        assert_eq!("warren:name=new+binary=/x".parse::<Peer>().unwrap().to_string(), "new");
        assert!("warren:bbr3".parse::<Peer>().unwrap_err().contains("KEY=VALUE"));
        assert!("wireguard-go-at-warren:binary=/x".parse::<Peer>().is_ok());
        assert!("veth:a=b".parse::<Peer>().unwrap_err().contains("no settings"));
    }
}
