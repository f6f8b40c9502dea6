//! A WireGuard server's configuration (wg-quick(8)): the names, addresses and keys of its peers, and its own key.

use std::fmt;

use ipnet::IpNet;

use super::label::Label;
use crate::cli::wireguard_file::{self, INTERFACE, PEER, setting};
use warren_config::quoted;
use zeroize::Zeroizing;

/// What the file says about the server's clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WireGuardServer {
    /// The networks of the server's own addresses.
    pub(super) networks: Vec<IpNet>,
    pub(super) private_key: Option<KeyText>,
    /// The UDP port that its clients know.
    pub(super) listen_port: Option<u16>,
    pub(super) peers: Vec<Peer>,
    /// Settings that mean something to the server and nothing to an exit.
    pub(super) skipped: Vec<Skipped>,
}

/// A setting that is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// One `[Peer]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    /// The line of `[Peer]`, counted from 1.
    pub(super) line: usize,
    /// The name in a comment, in the characters of a client's name.
    pub(super) name: Option<String>,
    pub(super) allowed_ips: Vec<IpNet>,
    pub(super) public_key: Option<KeyText>,
    pub(super) preshared_key: Option<KeyText>,
}

/// The text of a key, and its line. It is parsed only where keys are kept.
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

/// Why a file cannot be read, and the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) sentence: String,
}

enum Section {
    None,
    Interface,
    Peer,
}

/// Reads the file. Notes settings that an exit does not import.
///
/// # Errors
/// The first line that cannot be understood.
pub(super) fn parse(text: &str) -> Result<WireGuardServer, Mistake> {
    let mut server = WireGuardServer::default();
    let mut section = Section::None;
    // The name in the comments right before a [Peer].
    let mut before: Option<Label> = None;
    let mut label: Option<Label> = None;
    // Editors on other systems write a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        let mistake = |sentence: String| Mistake { line, sentence };
        if let Some(comment) = content.strip_prefix('#') {
            let said = Label::of(comment);
            before = Label::better(before, said.clone());
            if matches!(section, Section::Peer)
                && server.peers.last().is_some_and(|peer| peer.allowed_ips.is_empty())
            {
                label = Label::better(label, said);
                name_last(&mut server, label.as_ref());
            }
            continue;
        }
        let (content, beside) = content
            .split_once('#')
            .map_or((content, None), |(content, comment)| (content.trim_end(), Some(comment)));
        if content.is_empty() {
            continue;
        }
        if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = match name.trim().to_ascii_lowercase().as_str() {
                "interface" => Section::Interface,
                "peer" => Section::Peer,
                _ => {
                    let sentence = format!("{} is neither [Interface] nor [Peer]", quoted(content));
                    return Err(mistake(sentence));
                }
            };
            if matches!(section, Section::Peer) {
                server.peers.push(Peer { line, ..Peer::default() });
                label = Label::better(before.take(), beside.and_then(Label::of));
                name_last(&mut server, label.as_ref());
            }
            before = None;
            continue;
        }
        before = None;
        let (key, value) = content
            .split_once('=')
            .ok_or_else(|| mistake("this is neither a [section] nor KEY = VALUE".to_owned()))?;
        take(&mut server, &section, (key, value), line)?;
    }
    Ok(server)
}

/// Handles one KEY = VALUE of a section.
fn take(
    server: &mut WireGuardServer,
    section: &Section,
    (key, value): (&str, &str),
    line: usize,
) -> Result<(), Mistake> {
    let mistake = |sentence: String| Mistake { line, sentence };
    let networks = || {
        wireguard_file::networks(value)
            .map_err(|network| mistake(format!("{} is not a network", quoted(network))))
    };
    let key_text = || Some(KeyText { line, text: Zeroizing::new(value.trim().to_owned()) });
    match (section, key.trim().to_ascii_lowercase().as_str()) {
        (Section::None, _) => return Err(mistake("this line is outside any [section]".to_owned())),
        (Section::Interface, "address") => {
            server.networks.extend(networks()?.iter().map(IpNet::trunc));
        }
        (Section::Interface, "privatekey") => server.private_key = key_text(),
        (Section::Interface, "listenport") => {
            let port = value.trim().parse::<u16>().ok().filter(|port| *port > 0);
            let sentence = || {
                mistake(format!("ListenPort is {}, but must be a port from 1 to 65535", quoted(value.trim())))
            };
            server.listen_port = Some(port.ok_or_else(sentence)?);
        }
        (Section::Peer, "publickey") => {
            server.peers.last_mut().into_iter().for_each(|peer| peer.public_key = key_text());
        }
        (Section::Peer, "presharedkey") => {
            server.peers.last_mut().into_iter().for_each(|peer| peer.preshared_key = key_text());
        }
        (Section::Peer, "allowedips") => {
            if let Some(peer) = server.peers.last_mut() {
                peer.allowed_ips.extend(networks()?);
            }
        }
        // The exit saves its own state, and each client keeps its own end alive.
        (Section::Interface, "saveconfig") | (Section::Peer, "endpoint" | "persistentkeepalive") => {}
        (_, lowered) => {
            let settings: &[&'static str] = if matches!(section, Section::Peer) { &PEER } else { &INTERFACE };
            let name = setting(settings, lowered).map_err(|meant| mistake(unknown(key.trim(), meant)))?;
            let value = value.trim().to_owned();
            if !value.is_empty() {
                server.skipped.push(Skipped { line, key: name.to_owned(), value });
            }
        }
    }
    Ok(())
}

fn unknown(key: &str, meant: Option<&str>) -> String {
    let advice = meant.map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default();
    format!("{} is not a setting of WireGuard in this section{advice}", quoted(key))
}

fn name_last(server: &mut WireGuardServer, label: Option<&Label>) {
    if let Some(peer) = server.peers.last_mut() {
        peer.name = label.map(|label| label.name.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warren_session::clients::is_valid_name;

    use super::*;

    fn names(text: &str) -> Vec<Option<String>> {
        parse(text).unwrap().peers.into_iter().map(|peer| peer.name).collect()
    }

    #[test]
    fn server_file_gives_networks_names_and_addresses() {
        let server = parse(
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
    fn line_that_makes_no_sense_is_named() {
        for (text, line) in [
            ("[Interface]\nAddress 10.8.0.1\n", 2),
            ("PublicKey = x\n", 1),
            ("[Peer]\n\nAllowedIPs = 10.8.0.2, nowhere\n", 3),
            ("[Interface]\nListenPort = 70000\n", 2),
            ("[Interface]\nAddress = 10.8.0.1\nListenport2 = 51820\n", 3),
            ("[Interface]\nAllowedIPs = 10.8.0.1\n", 2),
            ("[Peers]\n", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn unknown_settings_are_named_and_known_ones_that_an_exit_does_not_need_are_noted() {
        let mistake = parse("[Interface]\nListenport2 = 51820\n").unwrap_err();
        assert_eq!(
            mistake.sentence,
            "\"Listenport2\" is not a setting of WireGuard in this section (did you mean ListenPort?)"
        );
        let text = "[Interface]\nListenPort=1\npostup = a = b\nPreUp =\nmtu = 1420\n[Peer]\nEndpoint = x\n";
        let server = parse(text).unwrap();
        let skipped: Vec<_> =
            server.skipped.iter().map(|of| (of.line, of.key.as_str(), of.value.as_str())).collect();
        assert_eq!(skipped, [(3, "PostUp", "a = b"), (5, "MTU", "1420")]);
        for key in INTERFACE {
            assert!(parse(&format!("[Interface]\n{key} = 1\n")).is_ok() || key == "Address", "{key}");
        }
    }

    #[test]
    fn key_in_a_networks_place_is_not_shown() {
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        for (text, said) in [
            (format!("[Peer]\nAllowedIPs = {key}\n"), "\"(a key, not shown)\" is not a network"),
            (
                format!("[Peer]\nAllowedIPs = 10.8.0.2, {key}/32\n"),
                "\"(a key, not shown)/32\" is not a network",
            ),
            (
                format!("[Interface]\nAddress = {key} {key}\n"),
                "\"(a key, not shown) (a key, not shown)\" is not a network",
            ),
            // If it were only cut to the length of a line, the second would no longer be recognised as a key, but show
            // most of one.
            (
                format!("[Interface]\nAddress = PrivateKey={key} {key}\n"),
                "\"PrivateKey=(a key, not shown) (a key, not shown)\" is not a network",
            ),
        ] {
            assert_eq!(parse(&text).unwrap_err().sentence, said, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([\\[\\]#=,:./ \n]|Peer|Interface|AllowedIPs|10.0.0.1|.){0,80}") {
            if let Ok(server) = parse(&text) {
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
            let server = parse(&text).unwrap();
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
