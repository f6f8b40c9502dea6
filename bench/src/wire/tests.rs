//! Tests of wires between namespaces that the tests make. They need root.

use std::thread;

use super::*;

const DEVICE: &str = "eth0";

/// Two hosts with IPv4 and IPv6 addresses, and a wire between them.
struct Net {
    wire: Wire,
    client: Namespace,
    exit: Namespace,
}

impl Net {
    fn new() -> Option<Self> {
        let Ok(client) = Namespace::create("client") else {
            eprintln!("skipped: this needs root");
            return None;
        };
        let exit = Namespace::create("exit").unwrap();
        let ends = Ends { client: &client, exit: &exit, device: DEVICE };
        let wire = Wire::start(&ends, 1_500, 1).unwrap();
        for (host, own) in [(&client, 2), (&exit, 1)] {
            host.ip(&format!("address add 192.0.2.{own}/24 dev {DEVICE}")).unwrap();
            host.ip(&format!("address add 2001:db8::{own}/64 dev {DEVICE}")).unwrap();
        }
        Some(Self { wire, client, exit })
    }

    fn set(&self, ways: Ways, settings: &str) -> State {
        let change: Change = settings.parse().unwrap();
        self.wire.handle.change(&change.each_way(ways)).unwrap()
    }

    /// Pings, and returns whether a reply came and what ping printed.
    fn ping(&self, arguments: &str) -> (bool, String) {
        let output = self.client.command("ping").args(arguments.split_whitespace()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn frames_cross_with_their_delay_all_are_accounted_for_and_nothing_is_left() {
    let Some(net) = Net::new() else { return };
    for target in ["192.0.2.1", "2001:db8::1"] {
        let (answered, said) = net.ping(&format!("-c3 -i0.01 -W5 -s1400 {target}"));
        assert!(answered, "{said}");
    }
    net.set(Ways::Up, "delay=40ms");
    let (answered, said) = net.ping("-c3 -i0.01 -W5 192.0.2.1");
    let least: f64 =
        said.split("min/avg/max/mdev = ").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    assert!(answered && least >= 40.0, "{said}");

    let Net { wire, client, exit } = net;
    let state = wire.stop().unwrap();
    assert!(state.up.account.is_balanced() && state.down.account.is_balanced(), "{state:?}");
    assert!(state.up.account.delivered >= 9 && state.down.account.delivered >= 9, "{state:?}");
    assert_eq!((state.up.account.dropped(), state.up.missed), (0, 0));
    for host in [client, exit] {
        let has_device = || {
            let links = host.command("ip").args(["-o", "link"]).output().unwrap();
            String::from_utf8_lossy(&links.stdout).contains(DEVICE)
        };
        // The kernel removes a device some time after its last user.
        let until = Instant::now() + Duration::from_secs(5);
        while has_device() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!has_device());
    }
}

#[test]
fn loss_of_everything_loses_everything_and_can_be_taken_back() {
    let Some(net) = Net::new() else { return };
    net.set(Ways::Up, "loss=100%");
    assert!(!net.ping("-c2 -i0.01 -W1 192.0.2.1").0);
    assert!(net.wire.handle.state().unwrap().up.account.lost >= 1);
    net.set(Ways::Up, "clear");
    assert!(net.ping("-c2 -i0.01 -W5 192.0.2.1").0);
}

#[test]
fn loud_mtu_teaches_the_sender_and_a_silent_one_does_not() {
    let Some(net) = Net::new() else { return };
    net.set(Ways::Up, "mtu=1400:loud");
    for target in ["192.0.2.1", "2001:db8::1"] {
        let (answered, said) = net.ping(&format!("-c1 -W2 -M do -s1400 {target}"));
        assert!(!answered && said.contains("mtu") && said.contains("1400"), "{said}");
    }
    let route = net.client.command("ip").args(["route", "get", "192.0.2.1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&route.stdout).contains("mtu 1400"));

    let Some(net) = Net::new() else { return };
    net.set(Ways::Up, "mtu=1400");
    let (answered, said) = net.ping("-c1 -W1 -M do -s1400 192.0.2.1");
    assert!(!answered && !said.contains("1400 "), "{said}");
    assert_eq!(net.wire.handle.state().unwrap().up.account.too_large, 1);
}

#[test]
fn running_wire_is_changed_by_its_name() {
    let Some(mut net) = Net::new() else { return };
    let name = format!("test-{}", std::process::id());
    net.wire.listen(&name).unwrap();
    let state = control::ask(&name, "set both delay=5ms loss=1%").unwrap();
    assert_eq!(
        (state.up.settings.as_str(), state.down.settings.as_str()),
        ("delay=5ms loss=1%", "delay=5ms loss=1%")
    );
    assert_eq!(control::ask(&name, "set down clear").unwrap().down.settings, "clear");
    assert_eq!(control::ask(&name, "stats").unwrap().up.settings, "delay=5ms loss=1%");
    for (request, expected) in
        [("set left delay=1ms", "up, down or both"), ("set up speed=1", "speed"), ("x", "not a request")]
    {
        let error = control::ask(&name, request).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(net.wire.listen(&name).unwrap_err().to_string().contains("runs already"));
    drop(net);
    assert!(control::ask(&name, "stats").unwrap_err().to_string().contains("no wire"));
}

#[test]
fn wire_whose_device_is_deleted_ends_with_a_sentence() {
    let Some(net) = Net::new() else { return };
    let Net { wire, client, exit: _exit } = net;
    client.ip("link delete eth0").unwrap();
    let start = Instant::now();
    while wire.is_running() && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(5));
    }
    let error = format!("{:#}", wire.stop().unwrap_err());
    assert!(error.contains("eth0"), "{error}");
}
