//! A client's plan on a host with a LAN, other rules and another firewall.

use std::path::PathBuf;

use warren_host::{
    Band, CARRIER_MARK, Host, HostError, Plan, Route, RouteKind, Step,
    client_plan::{ClientFirewall, ClientPlanFacts, client, firewall_table, table},
    facts, recover,
};

use crate::support::{Namespace, device, is_root, lived_in_host};

#[test]
fn full_tunnel_takes_all_but_the_carrier_and_leaves_no_trace() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");

    host.with_plan(&client(&full_tunnel()), || {
        assert!(host.run("ip route get 8.8.8.8").contains("dev warren0 table 22369 src 10.66.0.2"));
        assert!(host.run("ip route get 192.168.50.1").contains("dev warren0"), "no route in main may win");
        assert!(host.run("ip -6 route get 2001:db8::1").contains("dev warren0"));
        assert!(host.run(&format!("ip route get 8.8.8.8 mark {CARRIER_MARK}")).contains("dev lan0"));
        assert!(host.run(&format!("ip -6 route get 2001:db8::1 mark {CARRIER_MARK}")).contains("dev lan0"));
        host.run("ip route add 9.9.9.9/32 via 192.168.50.1");
        assert!(host.run("ip route get 9.9.9.9").contains("dev warren0"), "a pushed route may not win");
        host.run("ip route delete 9.9.9.9/32 via 192.168.50.1");
    });
}

#[test]
fn split_tunnel_takes_its_networks_alone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let plan = client(&ClientPlanFacts { include: networks(&["203.0.113.0/24"]), slot: 9, ..full_tunnel() });

    host.with_plan(&plan, || {
        assert!(host.run("ip route get 203.0.113.9").contains("dev warren0"));
        assert!(host.run("ip route get 8.8.8.8").contains("dev lan0"));
        assert!(host.run("ip -6 route get 2001:db8::1").contains("dev lan0"));
    });
}

#[test]
fn ipv6_without_a_lease_fails_fast_instead_of_leaving_outside() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");

    host.with_plan(&client(&ClientPlanFacts { ipv6: None, ..full_tunnel() }), || {
        assert!(!host.succeeds("ip -6 route get 2001:db8::1"));
        assert!(host.run(&format!("ip -6 route get 2001:db8::1 mark {CARRIER_MARK}")).contains("dev lan0"));
        assert!(host.run("ip route get 8.8.8.8").contains("dev warren0"));
    });
}

#[test]
fn device_with_ipv6_switched_off_is_named_and_ipv6_can_be_left_out() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.run("sysctl -q -w net.ipv6.conf.warren0.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1");
    let before = host.snapshot();

    let error = host.block_on(|| async {
        assert!(facts::has_ipv6().unwrap() && !facts::takes_ipv6(&device("warren0")).unwrap());
        Host::open(host.journal()).await.unwrap().apply(&client(&full_tunnel())).await.unwrap_err()
    });

    assert_eq!(
        error.to_string(),
        "`ip address add fd66:6666::2/128 dev warren0` failed: IPv6 is switched off on warren0; set \
         net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0, or use no IPv6 addresses: an exit \
         without ipv6 in [addresses] of exit.toml assigns none"
    );
    host.assert_is(&before, "after the failure");
    host.with_plan(&client(&ClientPlanFacts { ipv6: None, ..full_tunnel() }), || {
        assert!(!host.succeeds("ip -6 route get 2001:db8::1"));
    });
}

#[test]
fn two_tunnels_go_up_and_down_independently_and_the_more_specific_route_wins() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.run("ip tuntap add warren1 mode tun");
    let before = host.snapshot();
    let work = ClientPlanFacts {
        device: device("warren1"),
        ipv4: Some([10, 77, 0, 2].into()),
        ipv6: None,
        include: networks(&["203.0.113.0/24"]),
        firewall: Some(ClientFirewall { table: firewall_table("work"), listening: Vec::new() }),
        ..full_tunnel()
    };

    host.block_on(|| async {
        let mut first = Host::open(host.journal()).await.unwrap();
        let mut second = Host::open(other_journal(&host)).await.unwrap();
        // Another program's rule makes slots 0 and 1 unavailable: it looks up slot 0's table and has a priority of slot 1.
        let slot = first.free_slot().await.unwrap().unwrap();
        assert_eq!(slot, 2);
        let full = first.apply(&client(&ClientPlanFacts { slot, ..full_tunnel() })).await.unwrap();
        let slot = second.free_slot().await.unwrap().unwrap();
        assert_eq!(slot, 3);
        let split = second.apply(&client(&ClientPlanFacts { slot, ..work })).await.unwrap();

        assert!(host.run("ip route get 203.0.113.9").contains("dev warren1"));
        assert!(host.run("ip route get 8.8.8.8").contains("dev warren0"));
        first.undo(full).await.unwrap();
        assert!(host.run("ip route get 203.0.113.9").contains("dev warren1"));
        assert!(host.run("ip route get 8.8.8.8").contains("dev lan0"));
        second.undo(split).await.unwrap();
    });

    host.assert_is(&before, "after both");
}

#[test]
fn failure_at_any_step_leaves_the_host_as_it_was() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let before = host.snapshot();
    let plan = client(&full_tunnel());

    for length in 0..=plan.steps.len() {
        let mut steps = plan.steps[..length].to_vec();
        steps.push(Step::LinkUp { device: device("nosuch0"), mtu: 1380, group: None });

        let error = host.block_on(|| async {
            Host::open(host.journal()).await.unwrap().apply(&Plan { steps }).await.unwrap_err()
        });

        assert_eq!(
            error.to_string(),
            "`ip link set nosuch0 mtu 1380 addrgenmode none up` failed: there is no network device nosuch0; somebody has deleted or renamed it, so run `warren down` and start again"
        );
        host.assert_is(&before, "after the failure");
    }
}

#[test]
fn what_is_there_already_is_not_taken_for_ours() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.run(&format!("ip route add unreachable 203.0.113.0/24 table {}", table(0)));
    let before = host.snapshot();
    let plan = client(&ClientPlanFacts { include: networks(&["203.0.113.0/24"]), ..full_tunnel() });

    let error =
        host.block_on(|| async { Host::open(host.journal()).await.unwrap().apply(&plan).await.unwrap_err() });

    assert_eq!(
        error.to_string(),
        "`ip -4 route add 203.0.113.0/24 dev warren0 table 22369 proto 87` failed: it exists already and was not made \
         by this Warren; remove it, or run `warren cleanup` if it was left behind, or restart this machine if Warren's record of it \
         is lost with /run/warren"
    );
    host.assert_is(&before, "after the refusal");
}

#[test]
fn device_that_vanished_takes_its_part_along_and_the_rest_is_undone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.run("ip tuntap delete warren0 mode tun");
    let before = host.snapshot();
    host.run("ip tuntap add warren0 mode tun");

    host.block_on(|| async {
        let plan = client(&ClientPlanFacts { ipv6: None, ..full_tunnel() });
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&plan).await.unwrap();
        host.run("ip tuntap delete warren0 mode tun");

        let missing = warren.verify(&plan).await.unwrap();
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        assert_eq!(
            missing,
            [
                "`ip address add 10.66.0.2/32 dev warren0` is not in effect: the device does not exist",
                "`ip link set warren0 mtu 1380 addrgenmode none group 22369 up` is not in effect: the device does not exist",
                "`ip -4 route add 0.0.0.0/0 dev warren0 table 22369 proto 87` is not in effect: the device does not exist",
            ]
        );
        warren.undo(applied).await.unwrap();
    });

    host.assert_is(&before, "after undo");
}

#[test]
fn rules_of_others_that_lead_around_the_tunnel_are_found_and_passed() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let tunnel = full_tunnel().tunnel();

    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&client(&full_tunnel())).await.unwrap();
        let found = async || warren.place(&tunnel, 0, Band::USUAL).await.unwrap();
        for harmless in [
            "priority 1000 l3mdev protocol kernel",
            "priority 5210 fwmark 0x80000/0xff0000 lookup main",
            "priority 5270 lookup 52",
            "priority 200 uidrange 1000-1000 lookup main",
            "priority 201 iif lan0 lookup main",
            "priority 202 from 192.168.50.2 lookup main protocol 16",
            "priority 203 to 10.42.0.9 lookup main",
            "priority 204 ipproto tcp dport 22 lookup main",
        ] {
            host.run(&format!("ip rule add {harmless}"));
            let place = found().await;
            assert_eq!((place.band, place.bypasses.len()), (Some(Band::USUAL), 0), "{harmless}");
        }
        // The kernel puts a rule without a priority in front of all other rules.
        for (rule, priorities) in [
            ("priority 6100 lookup main", [4736, 4992, 5248]),
            ("priority 300 not fwmark 0x51 lookup main suppress_prefixlength 0", [36, 64, 92]),
            ("lookup main", [12, 20, 28]),
            ("priority 90 goto 32766", [12, 20, 28]),
            ("priority 5 lookup main", [1, 2, 3]),
        ] {
            host.run(&format!("ip rule add {rule}"));
            let place = found().await;
            assert_eq!(place.band.map(|band| band.priorities(0)), Some(priorities), "{rule}: {place:?}");
            assert!(!place.bypasses.is_empty());
        }
        // This band is so early that it is too small for slots from 28 on.
        host.run("ip rule delete priority 5");
        let late = warren.place(&tunnel, 28, Band::USUAL).await.unwrap();
        assert!(late.band.is_none() && late.bypasses[0].remedy().contains("ip -4 rule delete priority"));
        for priority in [3, 2] {
            host.run(&format!("ip rule add priority {priority} lookup main"));
            let place = found().await;
            let remedy = format!("`ip -4 rule delete priority {priority}`");
            assert!(place.band.is_none() && place.bypasses[0].remedy().contains(&remedy), "{place:?}");
            host.run(&format!("ip rule delete priority {priority}"));
        }
        host.run("ip -6 rule add priority 1 lookup main");
        let place = found().await;
        assert_eq!(place.band, None);
        let said = place.bypasses.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(said.contains("IPv6 policy rule `1: from all lookup main` of another program"), "{said}");
        warren.undo(applied).await.unwrap();
    });
}

#[test]
fn verify_names_what_somebody_else_has_undone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let before = host.snapshot();

    host.block_on(|| async {
        let plan = client(&full_tunnel());
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&plan).await.unwrap();
        host.run("ip rule delete priority 6017");
        host.run("ip -6 route flush table 22369");
        host.run("ip address flush dev warren0 to 10.66.0.2");
        host.run("ip link set warren0 mtu 1400");

        let missing = warren.verify(&plan).await.unwrap();

        let missing: Vec<String> = missing.iter().map(|missing| missing.found.clone()).collect();
        assert_eq!(
            missing,
            [
                "the device does not have the address",
                "the device's MTU is 1400",
                // The kernel removes the IPv4 route together with the device's last address.
                "there is no such route",
                "there is no such route",
                "there is no such rule",
            ]
        );
        warren.undo(applied).await.unwrap();
    });

    host.assert_is(&before, "after undo");
}

#[test]
fn strict_reverse_path_check_is_loosened_while_the_tunnel_is_up() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.run("sysctl -q -w net.ipv4.conf.lan0.rp_filter=1");
    let strict = host.inside(|| facts::devices_with_strict_reverse_path().unwrap());
    assert_eq!(strict, [device("lan0")]);

    let strict_reverse_path = [strict, vec![device("vanished0")]].concat();
    host.with_plan(&client(&ClientPlanFacts { strict_reverse_path, ..full_tunnel() }), || {
        assert_eq!(host.run("sysctl -n net.ipv4.conf.lan0.rp_filter").trim(), "2");
    });
}

#[test]
fn journal_is_one_daemons_and_must_be_recovered_before_it_is_used_again() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let elsewhere = Namespace::new("elsewhere");
    let before = host.snapshot();

    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let _applied = warren.apply(&client(&full_tunnel())).await.unwrap();
        assert!(matches!(Host::open(host.journal()).await, Err(HostError::Busy(_))));
        assert!(matches!(recover(host.journal()).await, Err(HostError::Busy(_))));
    });
    elsewhere.block_on(|| async {
        assert!(matches!(recover(host.journal()).await, Err(HostError::OtherNamespace(_))));
    });
    host.block_on(|| async {
        assert!(matches!(Host::open(host.journal()).await, Err(HostError::Unfinished(_))));
        let recovered = recover(host.journal()).await.unwrap();
        assert_eq!(recovered.undone.len(), 11);
        assert!(recovered.damaged_lines.is_empty());
        assert_eq!(recover(host.journal()).await.unwrap().undone, [""; 0]);
    });

    host.assert_is(&before, "after recovery");
    assert!(!host.journal().exists());
}

#[test]
fn later_device_of_the_same_name_is_left_alone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let _applied = warren.apply(&client(&full_tunnel())).await.unwrap();
    });
    host.run("ip tuntap delete warren0 mode tun");
    host.run("ip tuntap add warren0 mode tun");
    host.run("ip address add 10.66.0.2/32 dev warren0");
    host.run("ip link set warren0 up");

    host.block_on(|| async { recover(host.journal()).await.unwrap() });

    assert!(host.run("ip address show dev warren0 up").contains("10.66.0.2/32"));
    assert!(!host.run("ip rule show").contains("0x5761"));
}

#[test]
fn a_route_without_a_device_in_an_own_table_is_undone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("warren0");
    let route = |destination: &str| {
        Step::Route(Route {
            destination: destination.parse().unwrap(),
            device: None,
            table: 22_400,
            kind: RouteKind::Unreachable,
            metric: 77,
        })
    };

    host.with_plan(
        &Plan { steps: vec![route("10.1.0.0/16"), route("2001:db8:7::/48"), route("::/0")] },
        || {},
    );
}

fn full_tunnel() -> ClientPlanFacts {
    ClientPlanFacts {
        device: device("warren0"),
        void: None,
        mtu: 1380,
        ipv4: Some([10, 66, 0, 2].into()),
        ipv6: Some("fd66:6666::2".parse().unwrap()),
        kernel_has_ipv6: true,
        include: networks(&["0.0.0.0/0", "::/0"]),
        exclude: Vec::new(),
        guests: Vec::new(),
        prefixes: Vec::new(),
        allowed_forwards: Vec::new(),
        router_advertisements: Vec::new(),
        firewall: Some(ClientFirewall { table: firewall_table("home"), listening: vec![22] }),
        mark: CARRIER_MARK,
        slot: 0,
        band: Band::USUAL,
        strict_reverse_path: Vec::new(),
    }
}

fn networks(networks: &[&str]) -> Vec<ipnet::IpNet> {
    networks.iter().map(|network| network.parse().unwrap()).collect()
}

fn other_journal(host: &Namespace) -> PathBuf {
    host.journal().with_file_name("other")
}
