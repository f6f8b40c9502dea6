//! Finds out whether a command was typed in an SSH session, and warns before the kill switch cuts off that
//! session.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::kill_switch::{InboundPort, InboundProtocol, KillSwitchRules};

/// An SSH session, as sshd describes it in `SSH_CONNECTION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SshSession {
    /// The address from which the user connects.
    peer: IpAddr,
    /// The port of this host's sshd.
    port: u16,
}

impl SshSession {
    /// The SSH session that this process runs in, if any. sudo(8) removes the variable, so the parents' environments are read too.
    pub(crate) fn current() -> Option<Self> {
        if let Ok(connection) = std::env::var(VARIABLE) {
            return Self::parse(&connection);
        }
        let mut process = std::process::id();
        for _ in 0..MOST_PARENTS {
            process = parent(process).filter(|process| *process > 1)?;
            let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            if let Some(session) = Self::of_environment(&environment) {
                return Some(session);
            }
        }
        None
    }

    /// Returns a warning that a kill switch with these rules would cut off this SSH session. `None` if the session would survive.
    pub(crate) fn warning(self, rules: &KillSwitchRules) -> Option<String> {
        let Self { peer, port } = self;
        let own = InboundPort { protocol: InboundProtocol::Tcp, port };
        let stays = rules.allow_inbound.contains(&own) || !self.belongs_inside(rules);
        (!stays).then(|| {
            format!(
                "the kill switch cuts off this SSH session from {peer}: add \"{own}\" to allow_inbound in [kill_switch] to \
                 keep the session"
            )
        })
    }

    /// Returns a warning that, without nft, this SSH session's replies would go into the tunnel. `None` if they would stay
    /// outside.
    pub(crate) fn warning_without_firewall(self, rules: &KillSwitchRules) -> Option<String> {
        let peer = self.peer;
        self.belongs_inside(rules).then(|| {
            format!(
                "nft is missing, so the answers of this SSH session would go to {peer} through the tunnel, and the session \
                 would break: install nftables to keep it"
            )
        })
    }

    /// Whether the tunnel takes packets to the user's address.
    fn belongs_inside(self, rules: &KillSwitchRules) -> bool {
        let holds = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&self.peer));
        // `exclude` and `lan` are parts of `include` that stay outside the tunnel.
        !self.peer.is_loopback() && !holds(&rules.lan) && !holds(&rules.exclude) && holds(&rules.include)
    }

    fn of_environment(environment: &[u8]) -> Option<Self> {
        environment.split(|byte| *byte == 0).find_map(|variable| {
            let variable = std::str::from_utf8(variable).ok()?;
            Self::parse(variable.strip_prefix(VARIABLE)?.strip_prefix('=')?)
        })
    }

    /// Parses `SSH_CONNECTION`: the peer's address and port, then this host's address and port.
    fn parse(connection: &str) -> Option<Self> {
        let mut words = connection.split_whitespace();
        // In a link-local address, a percent sign separates the address from the device's name.
        let peer: IpAddr = words.next()?.split('%').next()?.parse().ok()?;
        let port = words.nth(2)?.parse().ok()?;
        Some(Self { peer: peer.to_canonical(), port })
    }
}

/// Reads the parent's ID, the fourth field of proc_pid_stat(5). The second field is the program's name in parentheses. It may
/// contain any character, even a parenthesis, so the fields are counted from the last one.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

const VARIABLE: &str = "SSH_CONNECTION";
/// Maximum number of parents that are read. A shell, sudo and its helper processes are fewer.
const MOST_PARENTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_found_among_the_variables_of_a_process() {
        let environment = b"HOME=/root\0SSH_CONNECTION=192.0.2.9 50022 198.51.100.1 22\0TERM=x\0";

        let session = SshSession::of_environment(environment).unwrap();

        assert_eq!(session, SshSession { peer: "192.0.2.9".parse().unwrap(), port: 22 });
        assert_eq!(SshSession::of_environment(b"SSH_CONNECTIONS=1 2 3 4\0"), None);
        assert_eq!(SshSession::parse("fe80::1%eth0 50022 fe80::2%eth0 2222").unwrap().port, 2222);
        assert_eq!(SshSession::parse("::ffff:192.0.2.9 1 ::1 22").unwrap().peer, session.peer);
    }

    #[test]
    fn only_a_session_that_would_be_cut_causes_a_warning() {
        let session = SshSession { peer: "192.168.1.9".parse().unwrap(), port: 22 };
        let rules = KillSwitchRules { include: networks("0.0.0.0/0"), ..KillSwitchRules::default() };

        assert!(session.warning(&rules).unwrap().contains("\"tcp/22\""));
        for harmless in [
            KillSwitchRules { include: networks("10.0.0.0/8"), ..rules.clone() },
            KillSwitchRules { exclude: networks("192.168.1.0/24"), ..rules.clone() },
            KillSwitchRules { lan: networks("192.168.0.0/16"), ..rules.clone() },
            KillSwitchRules {
                allow_inbound: vec![InboundPort { protocol: InboundProtocol::Tcp, port: 22 }],
                ..rules.clone()
            },
        ] {
            assert_eq!(session.warning(&harmless), None);
        }
        let local = SshSession { peer: "127.0.0.1".parse().unwrap(), ..session };
        assert_eq!(local.warning(&rules), None);
        assert!(session.warning_without_firewall(&rules).unwrap().contains("192.168.1.9"));
        let outside = KillSwitchRules { exclude: networks("192.168.1.0/24"), ..rules };
        assert_eq!(session.warning_without_firewall(&outside), None);
    }

    #[test]
    fn parent_of_this_process_is_read_from_its_status() {
        assert_eq!(parent(std::process::id()), Some(std::os::unix::process::parent_id()));
    }

    fn networks(network: &str) -> Vec<IpNet> {
        vec![network.parse().unwrap()]
    }
}
