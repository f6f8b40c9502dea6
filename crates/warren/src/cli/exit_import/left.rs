//! The settings that an import leaves out, and the commands with which the operator can set some of them up again.

use std::collections::HashMap;
use std::net::IpAddr;

use warren_control::{ClientView, Forward, NewClient};
use warren_daemon::output;

use super::wireguard::{Skipped, WireGuardServer};
use crate::cli::exit_client::forward_command;

/// Maximum number of lines of the file that are listed.
const SHOWN: usize = 16;

/// Prints which settings of the file are not imported.
pub(super) fn say(server: &WireGuardServer, planned: &[NewClient], enrolled: &[ClientView]) {
    let new = planned.iter().map(|client| (client.name.as_str(), client.ipv4, client.ipv6));
    let old = enrolled.iter().map(|view| (view.name.as_str(), view.ipv4, view.ipv6));
    let mut names = HashMap::new();
    for (name, ipv4, ipv6) in old.chain(new) {
        names.extend(ipv4.map(|ipv4| (IpAddr::V4(ipv4), name)));
        names.extend(ipv6.map(|ipv6| (IpAddr::V6(ipv6), name)));
    }
    notes(&server.skipped, &names).into_iter().for_each(output::note);
}

fn notes(skipped: &[Skipped], names: &HashMap<IpAddr, &str>) -> Vec<String> {
    let mut notes = Vec::new();
    if !skipped.is_empty() {
        let named =
            skipped.iter().take(SHOWN).map(|Skipped { line, key, .. }| format!("{key} (line {line})"));
        let more = match skipped.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = named.collect::<Vec<_>>().join(", ");
        notes.push(format!("Not imported: {named}{more}. The exit does NAT and forwarding itself."));
    }
    for Skipped { line, key, value } in skipped {
        let begins = ["PreUp", "PostUp"].contains(key);
        for command in value.split([';', '&', '|']).filter(|command| begins && command.contains("DNAT")) {
            notes.push(match forward(command, names) {
                Some((name, forward)) => {
                    format!("The DNAT of line {line} is not imported. Run: {}", forward_command(name, forward))
                }
                None => format!(
                    "A DNAT of line {line} is not imported, because it is not of the form: -p tcp --dport PORT -j DNAT --to-destination CLIENT:PORT. \
                     To forward a port: warren exit client forward add NAME tcp/PORT"
                ),
            });
        }
    }
    let count = notes.len();
    notes.truncate(SHOWN + 1);
    if count > notes.len() {
        notes.push(format!("{} more DNATs are not imported.", count - notes.len()));
    }
    notes
}

/// Returns the forward that an iptables rule describes, and the name of the client to which it leads.
fn forward<'n>(command: &str, names: &HashMap<IpAddr, &'n str>) -> Option<(&'n str, Forward)> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let after = |options: &[&str]| {
        let at = words.iter().position(|word| options.contains(word))?;
        words.get(at + 1).copied()
    };
    let protocol = after(&["-p", "--protocol", "--proto"])?.to_ascii_lowercase();
    let ports = after(&["--dport", "--destination-port"])?;
    let target = after(&["--to-destination", "--to"])?;
    let (address, to) = match target.parse::<IpAddr>() {
        Ok(address) => (address, None),
        Err(_) => {
            let (address, to) = target.rsplit_once(':')?;
            (address.trim_start_matches('[').trim_end_matches(']').parse().ok()?, Some(to))
        }
    };
    // A rule with a condition on addresses cannot become a forward, because a forward applies to all visitors.
    if words.iter().any(|word| ["!", "-s", "--source", "-d", "--destination"].contains(word)) {
        return None;
    }
    let name = names.get(&address)?;
    let ports: warren_control::PortRange = format!("{protocol}/{}", ports.replace(':', "-")).parse().ok()?;
    let first = match to {
        // The range of target ports must be as long as the range of original ports.
        Some(to) => {
            let (first, last) = to.split_once('-').unwrap_or((to, to));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            if last.checked_sub(first)? != ports.last() - ports.first() {
                return None;
            }
            first
        }
        None => ports.first(),
    };
    Some((name, Forward::new(ports, first)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HashMap<IpAddr, &'static str> {
        [("10.8.0.2".parse().unwrap(), "home"), ("fd08::2".parse().unwrap(), "home")].into()
    }

    #[test]
    fn a_dnat_that_is_understood_becomes_a_forward() {
        for (rule, command) in [
            (
                "iptables -t nat -A PREROUTING -i eth0 -p tcp --dport 8080 -j DNAT --to-destination 10.8.0.2:80",
                "warren exit client forward add home tcp/8080 --to 80",
            ),
            (
                "iptables -t nat -A PREROUTING -p udp -m udp --dport 6881:6889 -j DNAT --to-destination 10.8.0.2",
                "warren exit client forward add home udp/6881-6889",
            ),
            (
                "iptables -t nat -A PREROUTING -p tcp --dport 90:92 -j DNAT --to-destination 10.8.0.2:190-192",
                "warren exit client forward add home tcp/90-92 --to 190",
            ),
            (
                "ip6tables -t nat -A PREROUTING -p tcp --dport 443 -j DNAT --to-destination [fd08::2]:443",
                "warren exit client forward add home tcp/443",
            ),
        ] {
            let (name, found) = forward(rule, &names()).expect(rule);
            assert_eq!(forward_command(name, found), command);
        }
    }

    #[test]
    fn a_dnat_that_is_something_else_becomes_none() {
        for rule in [
            "iptables -p tcp --dport 80 -j DNAT --to-destination 10.8.0.3:80",
            "iptables -p tcp --dport 80 -j DNAT",
            "iptables -j DNAT --to-destination 10.8.0.2",
            "iptables -p sctp --dport 80 -j DNAT --to-destination 10.8.0.2",
            "iptables -p tcp --dport 80 -s 192.0.2.1 -j DNAT --to-destination 10.8.0.2",
            "iptables -p tcp --dport 90:92 -j DNAT --to-destination 10.8.0.2:80",
        ] {
            assert_eq!(forward(rule, &names()), None, "{rule}");
        }
    }

    #[test]
    fn every_setting_that_is_left_is_named_and_each_dnat_has_a_line() {
        let skipped = |line, key: &'static str, value: &str| Skipped { line, key, value: value.into() };
        let dnat = "iptables -A FORWARD -i %i -j ACCEPT; iptables -p tcp --dport 80 -j DNAT --to-destination 10.8.0.2";
        let unknown = "iptables -p tcp --dport 80 -j DNAT --to-destination 10.9.0.2";
        let settings =
            [skipped(4, "PostUp", dnat), skipped(5, "PostDown", dnat), skipped(6, "PostUp", unknown)];
        let notes = notes(&settings, &names());
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].contains("PostUp (line 4), PostDown (line 5), PostUp (line 6)"), "{notes:?}");
        assert!(
            notes[1].ends_with("line 4 is not imported. Run: warren exit client forward add home tcp/80"),
            "{notes:?}"
        );
        assert!(notes[2].contains("line 6") && notes[2].contains("not of the form"), "{notes:?}");
        let many: Vec<_> = (0..99).map(|line| skipped(line, "PostUp", dnat)).collect();
        assert_eq!(super::notes(&many, &names()).len(), SHOWN + 2);
    }
}
