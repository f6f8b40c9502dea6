//! A WireGuard server's configuration (wg-quick(8)): the names, addresses and keys of its peers, and its own key.

use std::fmt;
use std::path::Path;

use ipnet::IpNet;

use super::label::Label;
use crate::cli::wireguard_file::{self, Part, networks};
use warren_config::{ConfigError, quoted};
use zeroize::Zeroizing;

/// The part of the file that describes the server's clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WireGuardServer {
    /// The networks of the server's own addresses.
    pub(super) networks: Vec<IpNet>,
    pub(super) private_key: Option<KeyText>,
    /// The UDP port of the server, which is in the clients' files.
    pub(super) listen_port: Option<u16>,
    pub(super) peers: Vec<Peer>,
    /// Settings of the server that have no meaning for an exit.
    pub(super) skipped: Vec<Skipped>,
}

/// A setting that is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) line: usize,
    pub(super) key: &'static str,
    pub(super) value: String,
}

/// One `[Peer]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    /// The line of `[Peer]`, counted from 1.
    pub(super) line: usize,
    /// The name in a comment. It has only characters that a client's name may have.
    pub(super) name: Option<String>,
    pub(super) allowed_ips: Vec<IpNet>,
    pub(super) public_key: Option<KeyText>,
    pub(super) preshared_key: Option<KeyText>,
}

/// The text of a key, and its line. The key is parsed only if the import keeps keys.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KeyText {
    pub(super) line: usize,
    pub(super) text: Zeroizing<String>,
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyText(line {})", self.line)
    }
}

/// Reads the file. Records settings that an exit does not import.
///
/// # Errors
/// The first line that cannot be understood.
pub(super) fn parse(file: &Path, text: &str) -> Result<WireGuardServer, ConfigError> {
    let mut server = WireGuardServer::default();
    let mut is_in_peer = false;
    // `before` is the name in comments since the last setting, which belongs to the next [Peer]. `label` is the name of the
    // current [Peer].
    let (mut before, mut label): (Option<Label>, Option<Label>) = (None, None);
    wireguard_file::read(file, text, |line, part| {
        match part {
            Part::Comment(comment) => {
                let said = Label::of(comment);
                before = Label::better(before.take(), said.clone());
                if let Some(peer) = server.peers.last_mut()
                    && is_in_peer
                    && peer.allowed_ips.is_empty()
                {
                    label = Label::better(label.take(), said);
                    peer.name = label.as_ref().map(|label| label.name.clone());
                }
                return Ok(());
            }
            Part::Interface => is_in_peer = false,
            Part::Peer(beside) => {
                is_in_peer = true;
                label = Label::better(before.take(), beside.and_then(Label::of));
                let name = label.as_ref().map(|label| label.name.clone());
                server.peers.push(Peer { line, name, ..Peer::default() });
            }
            Part::Setting(key, value) => server.take(line, key, value)?,
        }
        before = None;
        Ok(())
    })?;
    Ok(server)
}

impl WireGuardServer {
    /// Handles one setting. The error continues a sentence that begins with the key.
    fn take(&mut self, line: usize, key: &'static str, value: &str) -> Result<(), String> {
        let key_text = Some(KeyText { line, text: Zeroizing::new(value.to_owned()) });
        match (key, self.peers.last_mut()) {
            ("Address", _) => self.networks.extend(networks(value)?.iter().map(IpNet::trunc)),
            ("PrivateKey", _) => self.private_key = key_text,
            ("ListenPort", _) => {
                let port = value.parse::<u16>().ok().filter(|port| *port > 0);
                let wrong = || format!("is {}, but must be a port from 1 to 65535", quoted(value));
                self.listen_port = Some(port.ok_or_else(wrong)?);
            }
            ("PublicKey", Some(peer)) => peer.public_key = key_text,
            ("PresharedKey", Some(peer)) => peer.preshared_key = key_text,
            ("AllowedIPs", Some(peer)) => peer.allowed_ips.extend(networks(value)?),
            // These settings are ignored, because an exit does not need them: it saves its own state, and its clients send
            // keep-alives.
            ("SaveConfig" | "Endpoint" | "PersistentKeepalive", _) => {}
            _ if value.is_empty() => {}
            _ => self.skipped.push(Skipped { line, key, value: value.to_owned() }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warren_session::clients::is_valid_name;

    use super::*;

    fn parsed(text: &str) -> Result<WireGuardServer, String> {
        parse(Path::new("wg0.conf"), text).map_err(|error| error.to_string())
    }

    fn names(text: &str) -> Vec<Option<String>> {
        parsed(text).unwrap().peers.into_iter().map(|peer| peer.name).collect()
    }

    #[test]
    fn server_file_gives_networks_names_and_addresses() {
        let server = parsed(
            "[Interface]\nAddress = 10.8.0.1/24, fd08::1/64\nPrivateKey = x\nPostUp = iptables -A FORWARD\n\n\
             # Anna's laptop\n[Peer]\nPublicKey = y\nAllowedIPs = 10.8.0.2/32,fd08::2/128\n\n\
             [peer]\nallowedips=10.8.0.3 # the phone\nAllowedIPs = 192.168.7.0/24\n",
        )
        .unwrap();
        assert_eq!(server.networks, ["10.8.0.0/24".parse().unwrap(), "fd08::/64".parse().unwrap()]);
        let [laptop, other] = server.peers.try_into().unwrap();
        assert_eq!((laptop.line, laptop.name.as_deref()), (7, Some("annas-laptop")));
        assert_eq!(laptop.allowed_ips, ["10.8.0.2/32".parse().unwrap(), "fd08::2/128".parse().unwrap()]);
        assert_eq!((other.line, other.name), (11, None));
        assert_eq!(other.allowed_ips, ["10.8.0.3/32".parse().unwrap(), "192.168.7.0/24".parse().unwrap()]);
    }

    #[test]
    fn names_are_found_where_the_usual_programs_write_them() {
        for (text, name) in [
            ("### Client alice\n[Peer]\n", "alice"),
            ("# BEGIN_PEER alice\n[Peer]\nAllowedIPs = 10.8.0.2\n# END_PEER alice\n", "alice"),
            ("[Peer]\n# Name = Alice\nPublicKey = x\n", "alice"),
            ("[Peer]\n# friendly_name=Alice B.\nAllowedIPs = 10.8.0.2\n", "alice-b"),
            ("# Client: alice\n# her old laptop\n[Peer]\n", "alice"),
            ("# her old laptop\n[Peer]\n# name = alice\n", "alice"),
            ("[Peer]\n#PresharedKey = x\n# alice\n", "alice"),
            ("### begin alice ###\n[Peer]\nAllowedIPs = 10.8.0.2\n### end alice ###\n", "alice"),
            ("# Client: alice (3e7a0c50-6a4f-4c2e-9d0b-1f2e3d4c5b6a)\n[Peer]\n", "alice"),
            ("# alice: the old laptop\n[Peer]\n", "alice"),
            ("[Peer] # alice\nAllowedIPs = 10.8.0.2\n", "alice"),
            ("\u{feff}# alice\n[Peer]\n", "alice"),
        ] {
            assert_eq!(names(text), [Some(name.to_owned())], "{text}");
        }
        assert_eq!(
            names("# one\n[Peer]\nAllowedIPs = 10.8.0.2\n### end one ###\n\n[Peer]\n").last(),
            Some(&None)
        );
        let two = "# one\n[Peer]\nAllowedIPs = 10.8.0.2\n# two\n[Peer]\nAllowedIPs = 10.8.0.3\n[Peer]\n";
        assert_eq!(names(two), [Some("one".to_owned()), Some("two".to_owned()), None]);
    }

    #[test]
    fn line_that_makes_no_sense_is_named_with_what_to_do() {
        for (text, said) in [
            ("[Interface]\nAddress 10.8.0.1\n", "2: this is neither a [section] nor KEY = VALUE; correct it"),
            ("PublicKey = x\n", "1: this line is outside any [section]; put [Interface] or [Peer] before it"),
            (
                "[Peer]\n\nAllowedIPs = 10.8.0.2, nowhere\n",
                "3: AllowedIPs has \"nowhere\", which is not a network; correct the line",
            ),
            (
                "[Interface]\nListenPort = 70000\n",
                "2: ListenPort is \"70000\", but must be a port from 1 to 65535; correct the line",
            ),
            ("[Interface]\n\nListenport2 = 1\n", "3: unknown key \"Listenport2\"; did you mean ListenPort?"),
            (
                "[Interface]\nAllowedIPs = 10.8.0.1\n",
                "2: unknown key \"AllowedIPs\"; the keys are PrivateKey, ",
            ),
            ("[Peers]\n", "1: unknown section [\"Peers\"]; the sections are [Interface] and [Peer]"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(&format!("wg0.conf:{said}")), "{error}");
        }
    }

    #[test]
    fn settings_that_an_exit_does_not_need_are_noted() {
        let text = "[Interface]\nListenPort=1\npostup = a = b\nPreUp =\nmtu = 1420\n[Peer]\nEndpoint = x\n";
        let server = parsed(text).unwrap();
        let skipped: Vec<_> = server.skipped.iter().map(|of| (of.line, of.key, of.value.as_str())).collect();
        assert_eq!(skipped, [(3, "PostUp", "a = b"), (5, "MTU", "1420")]);
        for key in wireguard_file::INTERFACE {
            assert!(parsed(&format!("[Interface]\n{key} = 1\n")).is_ok() || key == "Address", "{key}");
        }
    }

    #[test]
    fn key_in_a_networks_place_is_not_shown() {
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        for (text, said) in [
            (format!("[Peer]\nAllowedIPs = {key}\n"), "AllowedIPs has \"(a key, not shown)\","),
            (
                format!("[Peer]\nAllowedIPs = 10.8.0.2, {key}/32\n"),
                "AllowedIPs has \"(a key, not shown)/32\",",
            ),
            (
                format!("[Interface]\nAddress = {key} {key}\n"),
                "Address has \"(a key, not shown) (a key, not shown)\",",
            ),
            // Keys must be hidden before the text is truncated. Otherwise a truncated second key would not be recognised as a
            // key, and would be printed.
            (
                format!("[Interface]\nAddress = PrivateKey={key} {key}\n"),
                "Address has \"PrivateKey=(a key, not shown) (a key, not shown)\",",
            ),
        ] {
            let error = parsed(&text).unwrap_err();
            assert!(error.contains(said) && !error.contains(key), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([\\[\\]#=,:./ \n]|Peer|Interface|AllowedIPs|10.0.0.1|.){0,80}") {
            if let Ok(server) = parsed(&text) {
                for peer in server.peers {
                    prop_assert!(peer.name.is_none_or(|name| is_valid_name(&name)));
                }
            }
        }

        #[test]
        fn what_a_program_wrote_is_read_back(
            peers in prop::collection::vec(("[a-z][a-z0-9]{0,20}", any::<[u8; 4]>(), any::<u128>()), 0..20),
        ) {
            let mut text = "[Interface]\nAddress = 10.0.0.1/8\n".to_owned();
            for (name, ipv4, ipv6) in &peers {
                let (ipv4, ipv6) = (std::net::Ipv4Addr::from(*ipv4), std::net::Ipv6Addr::from(*ipv6));
                text += &format!("\n### Client {name}\n[Peer]\nPublicKey = k\nAllowedIPs = {ipv4}/32,{ipv6}/128\n");
            }
            let server = parsed(&text).unwrap();
            prop_assert_eq!(server.peers.len(), peers.len());
            for (peer, (name, ipv4, ipv6)) in server.peers.iter().zip(&peers) {
                prop_assert_eq!(peer.name.as_ref(), Some(name));
                let expected: Vec<IpNet> =
                    vec![IpNet::from(std::net::IpAddr::from(*ipv4)), IpNet::from(std::net::IpAddr::from(std::net::Ipv6Addr::from(*ipv6)))];
                prop_assert_eq!(&peer.allowed_ips, &expected);
            }
        }
    }
}
