//! Split DNS: queries for names below the profile's domains go to the tunnel's resolver, and all others to the host's own. The tests run
//! with the stub of the client's daemon, with the real systemd-resolved, and beside the real openresolv.

use std::net::UdpSocket;
use std::time::Duration;

use rustix::process::Signal;
use toml::Value;

use super::managers::{Resolved, give_openresolv, unpacked};
use super::{CountsQueries as _, asks, exit_with_resolver, local_resolver};
use crate::support::{Client, Exit, Net, Profile, eventually, seconds};

#[test]
fn stub_asks_the_tunnel_for_its_domains_alone_and_leaves_search_and_all_other_names_to_the_host() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    std::fs::write(host.own_files().etc().join("resolv.conf"), OWN).unwrap();
    let file = || host.sh("cat /etc/resolv.conf").stdout;

    // The control: without domains, a split tunnel leaves the host's resolvers alone, and the router sees every name.
    let client = Client::with(&net, &split(&exit, "phone").without("dns", "domains"));
    client.up();
    assert_eq!(file(), OWN);
    let before = net.client_queries();
    assert!(!asks(host, "www.internet.test."));
    assert!(net.client_queries().udp > before.udp);
    client.down();

    let client = Client::with(&net, &split(&exit, "laptop"));
    client.up();
    let text = file();
    assert!(text.contains("nameserver 127.87.97.1\nsearch router.test\noptions timeout:2\n"), "{text}");
    let (outside, inside) = (net.client_queries(), net.exit_queries());
    assert!(asks(host, "www.internet.test") && asks(host, "WWW.Internet.TEST"));
    assert!(host.sh("dig +tcp +short +tries=1 www.internet.test").stdout.contains(Net::INTERNET_V4));
    assert_eq!(net.client_queries(), outside, "the router saw a name of the tunnel");
    assert!(net.exit_queries().udp > inside.udp && net.exit_queries().tcp > inside.tcp);
    let inside = net.exit_queries();
    assert!(asks(host, "www.router.test") && asks(host, "www"), "the host's own resolver and search");
    assert!(host.sh("dig +tcp +short +tries=1 www.router.test").stdout.contains("192.0.2.1"));
    assert!(!asks(host, "www.xinternet.test."));
    assert_eq!(net.exit_queries(), inside, "the exit's resolver saw another name");

    // The stub asks the resolvers of the network that the host is in now.
    host.sh("printf 'search lan\\nnameserver 192.0.2.77\\n' > /etc/resolv.conf").ok();
    let follows = || file().contains("nameserver 127.87.97.1\nsearch lan\n");
    eventually(seconds(10), "the stub is back", follows);
    eventually(seconds(10), "the stub follows", || !asks(host, "www.router.test"));
    assert!(asks(host, "www.internet.test"));
    host.sh("printf 'nameserver 192.0.2.1\\n' > /etc/resolv.conf").ok();
    eventually(seconds(10), "the stub follows", || asks(host, "www.router.test"));

    client.warren.run("down home").ok();
    assert_eq!(file(), "nameserver 192.0.2.1\n");
}

#[test]
fn names_of_the_tunnel_are_asked_of_nobody_else_while_its_resolver_does_not_answer() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let mut exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    std::fs::write(host.own_files().etc().join("resolv.conf"), OWN).unwrap();
    let client = Client::with(&net, &split(&exit, "laptop"));
    client.up();
    assert!(asks(host, "www.internet.test"));

    exit.stop(Signal::KILL);
    let before = net.client_queries();
    let said = host.sh("dig +tries=1 +time=15 www.internet.test").stdout;
    assert!(said.contains("SERVFAIL"), "{said}");
    assert_eq!(net.client_queries(), before);
    assert!(asks(host, "www.router.test"), "all other names are found");
    assert!(net.client_queries().udp > before.udp, "the control");

    // Queries that the stub drops because too many are open are counted.
    assert_eq!(client.status().number("/dropped_queries"), 0);
    let flood = host.enter(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..400 {
            socket.send_to(QUERY, "127.87.97.1:53").unwrap();
            // The pause keeps the stub's socket, which holds about two hundred queries, from overflowing.
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    flood.join().unwrap();
    eventually(seconds(5), "the drops are counted", || client.status().number("/dropped_queries") >= 100);
    assert!(client.warren.run("status home").ok().contains("dns_queries"));

    // `cleanup` undoes what the killed daemon left, as without split DNS.
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || client.warren.status().is_none());
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
}

/// Asks for the address of www.internet.test.
const QUERY: &[u8] = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x03www\x08internet\x04test\0\0\x01\0\x01";

#[test]
fn domains_follow_a_reload_and_a_profile_whose_exit_names_no_resolver_says_so() {
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    host.own_files();
    let profile = split(&exit, "laptop");
    let client = Client::with(&net, &profile);
    let reload = |profile: &Profile| {
        client.warren.write("home.toml", 0o600, &profile.text());
        client.warren.run("reload home")
    };
    client.up();
    assert!(asks(host, "www.internet.test"));

    reload(&profile.clone().with("dns", "domains", vec!["elsewhere.test"])).ok();
    assert!(!asks(host, "www.internet.test") && asks(host, "www.router.test"));
    let refused = reload(&profile.clone().without("dns", "domains"));
    assert!(refused.stderr.contains("domains in [dns] changed, which needs `warren down`"), "{refused:?}");
    reload(&profile.clone().with("routes", "include", vec!["198.18.5.0/24"])).ok();
    let status = || client.warren.run("status home").stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "names below internet.test are not looked up through the tunnel: the exit names no resolver";
    eventually(seconds(5), "status says so", || status().contains(said));
    reload(&profile).ok();
    assert!(asks(host, "www.internet.test") && !status().contains(said));
    client.down();

    // Another program uses the port on every address.
    let mut taken = host.start(&["python3", "-u", "-c", TAKE_PORT]);
    taken.wait_for_output("ready");
    let refused = client.warren.run("up home");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("cannot listen for DNS queries at 127.87.97.1"), "{refused:?}");
    client.assert_host_unchanged();
}

#[test]
fn systemd_resolved_asks_the_tunnel_for_its_domains_alone() {
    let Some(package) = unpacked("systemd-resolved") else { return };
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    let _resolved = Resolved::start(&net, package);
    host.sh("resolvectl dns eth0 192.0.2.1 && resolvectl domain eth0 router.test").ok();
    let client = Client::with(&net, &split(&exit, "laptop"));
    // systemd-resolved writes its stub-resolv.conf with a delay.
    eventually(seconds(10), "the LAN's search is in force", || asks(host, "www"));
    let before = host.sh("resolvectl dns; resolvectl domain; cat /etc/resolv.conf").ok();
    assert!(!asks(host, "www.internet.test."), "the control");

    client.up();
    let (outside, inside) = (net.client_queries(), net.exit_queries());
    assert!(asks(host, "www.internet.test"), "{}", host.sh("resolvectl status").stdout);
    assert_eq!(net.client_queries(), outside, "the router saw a name of the tunnel");
    assert!(net.exit_queries().udp > inside.udp);
    let inside = net.exit_queries();
    assert!(
        asks(host, "mail.router.test") && asks(host, "web"),
        "the link's own domain completes short names"
    );
    assert!(!asks(host, "www.xinternet.test."));
    assert_eq!(net.exit_queries(), inside, "the exit's resolver saw another name");
    client.down();
    assert_eq!(host.sh("resolvectl dns; resolvectl domain; cat /etc/resolv.conf").ok(), before);
}

#[test]
fn openresolv_keeps_its_entries_beside_the_stub() {
    let Some(package) = unpacked("openresolv") else { return };
    let Some(net) = Net::new() else { return };
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let host = &net.client;
    give_openresolv(host, &package);
    let client = Client::with(&net, &split(&exit, "laptop"));

    client.up();
    let (outside, inside) = (net.client_queries(), net.exit_queries());
    assert!(asks(host, "www.internet.test"));
    assert_eq!(net.client_queries(), outside);
    assert!(asks(host, "www.router.test"));
    assert_eq!(net.exit_queries().udp, inside.udp + 1);
    client.down();
    assert!(asks(host, "www.router.test"));
}

/// A profile that includes the internet host's network, and asks the resolver there for names below `internet.test`.
fn split(exit: &Exit<'_>, name: &str) -> Profile {
    exit.enrol(name).with("routes", "include", Value::Array(vec!["203.0.113.0/24".into()])).with(
        "dns",
        "domains",
        vec!["internet.test"],
    )
}

/// The host's own file.
const OWN: &str = "search router.test\nnameserver 192.0.2.1\noptions timeout:2\n";

const TAKE_PORT: &str = "
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((\"0.0.0.0\", 53))
print(\"ready\")
time.sleep(600)
";
