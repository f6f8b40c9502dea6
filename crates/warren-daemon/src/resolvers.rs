//! The resolvers that this host's files name.

use std::net::IpAddr;

use warren_host::dns::nameservers;

/// Files that list resolvers. systemd-resolved's own list comes first, because /etc/resolv.conf may contain only the address of
/// systemd-resolved itself.
const LISTS: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// The resolvers on other hosts. A resolver on this host is left out, because the queries that it forwards do not have the
/// carrier's firewall mark.
pub fn listed() -> Vec<IpAddr> {
    let mut servers = Vec::new();
    for text in LISTS.iter().filter_map(|file| std::fs::read_to_string(file).ok()) {
        for server in parse(&text) {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
    }
    servers
}

fn parse(text: &str) -> impl Iterator<Item = IpAddr> {
    let is_elsewhere = |server: &IpAddr| match server {
        IpAddr::V4(server) => !server.is_loopback() && !server.is_unspecified(),
        // A link-local address is left out, because it cannot be reached without its link.
        IpAddr::V6(server) => {
            !server.is_loopback() && !server.is_unspecified() && !server.is_unicast_link_local()
        }
    };
    nameservers(text).into_iter().filter(is_elsewhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_on_this_host_and_what_is_none_are_left_out() {
        let text = "# nameserver 192.0.2.9\nnameserver 127.0.0.53\nnameserver ::1\nnameserver 0.0.0.0\nsearch example.net\n\
                    nameserver 192.0.2.1\n nameserver 2001:db8::1 \nnameserver x\nnameserver\n";
        let found: Vec<String> = parse(text).map(|server| server.to_string()).collect();

        assert_eq!(found, ["192.0.2.1", "2001:db8::1"]);
    }
}
