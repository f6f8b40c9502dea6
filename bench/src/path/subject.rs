//! The tunnels of a run: no tunnel, a peer of `vpn`, or Warren with settings.

use std::{fmt, str::FromStr};

use crate::vpn::peers::{Kind, Peer};

/// A tunnel to measure, which is a column of the table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Subject(pub(super) Peer);

impl Subject {
    /// Returns the tunnels of a run without `--tunnels`: `none`, wireguard-go, and Warren with default settings.
    pub(super) fn of_default_run() -> Vec<Self> {
        // A test checks that all three names parse.
        ["none", "wireguard-go", "warren"].iter().filter_map(|name| name.parse().ok()).collect()
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return "veth".parse().map(Self);
        }
        let peer: Peer = text.parse().map_err(|error| format!("{error}; `none` stands for no tunnel"))?;
        Ok(Self(peer))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In `path`, the hosts are joined by a wire and not by a veth pair, so the peer `veth` is named `none`.
        if self.0.kind == Kind::Veth { f.write_str("none") } else { self.0.fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_are_known_by_their_names() {
        for name in ["none", "wireguard-go", "warren", "warren:congestion=off"] {
            assert_eq!(name.parse::<Subject>().unwrap().to_string(), name);
        }
        assert_eq!(Subject::of_default_run().len(), 3);
        let error = "ipsec".parse::<Subject>().unwrap_err();
        assert!(error.contains("openvpn") && error.contains("none"), "{error}");
    }
}
