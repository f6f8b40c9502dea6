//! The resolvers that this host's files name.

use std::net::IpAddr;

/// Where they are listed: systemd-resolved's own list of what the network offers comes before a file that may name nothing but
/// resolved itself.
const LISTS: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// Those on other hosts; one on this host asks others in turn, and not over marked sockets.
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
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() == Some("nameserver") { words.next()?.parse().ok() } else { None }
    });
    servers.filter(|server: &IpAddr| !server.is_loopback() && !server.is_unspecified())
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
