//! A WireGuard client's configuration in the form of wg-quick(8).

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use crate::cli::wireguard_file::{self, Part, items, networks};
use warren_config::ConfigError;

/// The settings of a client's file that Warren can use, or that a user should know about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WireGuardClient {
    /// The client's inner addresses with their networks.
    pub(super) addresses: Vec<IpNet>,
    pub(super) resolvers: Vec<IpAddr>,
    /// The names in `DNS`, which wg-quick treats as search domains.
    pub(super) domains: Vec<String>,
    /// Whether `DNS` says that all names are looked up through the tunnel.
    pub(super) asks_for_all: bool,
    /// The networks of all peers.
    pub(super) allowed: Vec<IpNet>,
    /// The addresses of peers' endpoints that are not names.
    pub(super) endpoints: Vec<IpAddr>,
    /// Commands of PreUp, PostUp, PreDown and PostDown, each with its key.
    pub(super) commands: Vec<(&'static str, String)>,
    /// Other keys of the file, each once, in a fixed order.
    pub(super) others: Vec<&'static str>,
    pub(super) peers: usize,
}

/// Reads a file.
///
/// # Errors
/// The first line that cannot be understood.
pub(super) fn parse(file: &Path, text: &str) -> Result<WireGuardClient, ConfigError> {
    let mut client = WireGuardClient::default();
    wireguard_file::read(file, text, |_, part| {
        match part {
            Part::Comment(_) | Part::Interface => {}
            Part::Peer(_) => client.peers += 1,
            Part::Setting(key, value) => client.take(key, value)?,
        }
        Ok(())
    })?;
    Ok(client)
}

impl WireGuardClient {
    /// Handles one setting. The error continues after the key.
    fn take(&mut self, key: &'static str, value: &str) -> Result<(), String> {
        match key {
            "Address" => self.addresses.extend(networks(value)?),
            "AllowedIPs" => self.allowed.extend(networks(value)?.iter().map(IpNet::trunc)),
            "DNS" => {
                for item in items(value) {
                    match item.parse() {
                        Ok(address) => push_new(&mut self.resolvers, address),
                        Err(_) => self.take_domain(item),
                    }
                }
            }
            "Endpoint" => {
                let host = value.rsplit_once(':').map_or(value, |(host, _)| host);
                self.endpoints.extend(host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
            }
            "PreUp" | "PostUp" | "PreDown" | "PostDown" => self.commands.push((key, value.to_owned())),
            other if !self.others.contains(&other) => self.others.push(other),
            _ => {}
        }
        Ok(())
    }

    /// Takes a domain in the form of wg-quick(8) or of systemd-resolved. The latter marks a domain with a tilde if names below it
    /// are looked up through this tunnel, but names without a dot are not completed with it. `~.` stands for all names.
    fn take_domain(&mut self, item: &str) {
        match item.strip_prefix('~') {
            Some(".") => self.asks_for_all = true,
            domain => push_new(&mut self.domains, domain.unwrap_or(item).to_owned()),
        }
    }
}

/// Adds a value unless the list has it, because a profile's lists name each value once.
pub(super) fn push_new<T: PartialEq>(list: &mut Vec<T>, value: T) {
    if !list.contains(&value) {
        list.push(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<WireGuardClient, String> {
        parse(Path::new("wg0.conf"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn file_gives_networks_resolvers_domains_and_what_else_it_has() {
        let client = parsed(
            "\u{feff}[interface]\nprivatekey = x # mine\nAddress = 10.8.0.2/24, fd08::2\nDNS=10.8.0.1,corp.example\nMTU = 1420\n\
             PostUp = iptables -I OUTPUT -o eth0 -j REJECT\n[Peer]\nPublicKey = y\nAllowedIPs = 0.0.0.0/0\nAllowedIPs = ::/0\n\
             Endpoint = [2001:db8::1]:51820\n",
        )
        .unwrap();
        assert_eq!(client.addresses, ["10.8.0.2/24".parse().unwrap(), "fd08::2/128".parse().unwrap()]);
        assert_eq!(client.resolvers, ["10.8.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!((client.domains, client.peers), (vec!["corp.example".to_owned()], 1));
        assert_eq!(client.allowed, ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
        assert_eq!(client.endpoints, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
        assert_eq!(client.others, ["PrivateKey", "MTU", "PublicKey"]);
        assert_eq!(client.commands, [("PostUp", "iptables -I OUTPUT -o eth0 -j REJECT".to_owned())]);
    }

    #[test]
    fn line_that_makes_no_sense_is_named_with_what_to_do() {
        for (text, said) in [
            ("[Interface]\nAdress = 10.8.0.2\n", "wg0.conf:2: unknown key \"Adress\"; did you mean Address?"),
            ("[Peer]\nDNS = 1.1.1.1\n", "wg0.conf:2: unknown key \"DNS\"; the keys are PublicKey,"),
            ("DNS = 1.1.1.1\n", "wg0.conf:1: this line is outside any [section]"),
            ("[Peer]\nAllowedIPs\n", "wg0.conf:2: this is neither a [section] nor KEY = VALUE"),
            (
                "[Peer]\nAllowedIPs = everything\n",
                "wg0.conf:2: AllowedIPs has \"everything\", which is not a network",
            ),
            ("[Peers]\n", "wg0.conf:1: unknown section ["),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn key_in_another_values_place_is_not_shown() {
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        let error = parsed(&format!("[Peer]\nAllowedIPs = {key}\n")).unwrap_err();
        assert!(!error.contains(key), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([\\[\\]#=,:./ \n]|Peer|Interface|AllowedIPs|DNS|Address|10.0.0.1|.){0,80}") {
            if let Err(error) = parsed(&text) {
                prop_assert_eq!(error.lines().count(), 1);
            }
        }
    }
}
