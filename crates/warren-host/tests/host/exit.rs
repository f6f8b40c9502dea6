//! An exit's plan: its firewall table and forwarding, and a host that is unchanged afterwards.

use warren_host::{
    Host, OnLink, Plan, Step, Surroundings, TableFamily,
    exit_plan::{Egress, ExitHost, TABLE, exit, ruleset},
    facts, surroundings,
};

use crate::support::{Namespace, device, is_root, lived_in_host};

#[test]
fn exit_leaves_no_trace() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");

    host.with_plan(&exit(&exit_host(&host)), || {
        for device in ["lan0", "exit0"] {
            assert_eq!(host.run(&format!("sysctl -n net.ipv4.conf.{device}.forwarding")).trim(), "1");
        }
        assert_eq!(
            host.run("sysctl -n net.ipv4.ip_forward").trim(),
            "0",
            "the exit leaves forwarding for the whole host alone"
        );
        for device in ["lan0", "exit0", "default"] {
            assert_eq!(host.run(&format!("sysctl -n net.ipv6.conf.{device}.forwarding")).trim(), "0");
        }
        assert_eq!(host.run("sysctl -n net.ipv6.conf.lan0.accept_ra").trim(), "2");
        assert_eq!(host.run("sysctl -n net.ipv6.conf.all.forwarding").trim(), "1");
        assert!(host.run("ip address show dev exit0").contains("inet 10.66.0.1/16 scope global exit0"));
        assert!(host.run("ip address show dev exit0").contains("inet6 fd66:6666::1/64"));
        assert!(!host.run("ip address show dev exit0").contains("fe80"));
    });
}

#[test]
fn forwarding_gives_back_what_the_kernel_changed_along_with_it() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    host.run("sysctl -q -w net.ipv4.conf.all.accept_redirects=0");
    host.run("sysctl -q -w net.ipv4.conf.lan0.forwarding=1");
    host.run("sysctl -q -w net.ipv6.conf.lan0.forwarding=1");

    host.with_plan(&exit(&exit_host(&host)), || {});
}

#[test]
fn setting_that_somebody_changed_meanwhile_stays_as_it_is() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");

    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&exit(&exit_host(&host))).await.unwrap();
        host.run("sysctl -q -w net.ipv6.conf.lan0.accept_ra=0");
        host.run("sysctl -q -w net.ipv4.conf.lan0.forwarding=0");
        warren.undo(applied).await.unwrap();
    });

    assert_eq!(host.run("sysctl -n net.ipv6.conf.lan0.accept_ra").trim(), "0");
    assert_eq!(host.run("sysctl -n net.ipv4.ip_forward").trim(), "0");
}

#[test]
fn forwarding_that_somebody_turned_on_for_the_whole_host_meanwhile_stays_on() {
    if !is_root() {
        return;
    }
    for (turn_on, stay_on) in [
        ("net.ipv4.ip_forward", ["net.ipv4.ip_forward", "net.ipv4.conf.lan0.forwarding"]),
        ("net.ipv6.conf.all.forwarding", ["net.ipv6.conf.all.forwarding", "net.ipv6.conf.lan0.forwarding"]),
        (
            "net.ipv6.conf.default.forwarding",
            ["net.ipv6.conf.all.forwarding", "net.ipv6.conf.default.forwarding"],
        ),
    ] {
        let (host, _lan) = lived_in_host("exit0");
        host.block_on(|| async {
            let mut warren = Host::open(host.journal()).await.unwrap();
            let applied = warren.apply(&exit(&exit_host(&host))).await.unwrap();
            let before = warren.surroundings(&device("exit0")).await.unwrap().forwarding;
            assert_eq!((before.ipv4_own, before.ipv6_others), (vec![device("lan0")], Some(Vec::new())));
            host.run(&format!("sysctl -q -w {turn_on}=1"));
            let after = warren.surroundings(&device("exit0")).await.unwrap().forwarding;
            assert!(after.ipv4_own.is_empty() || after.ipv6_others.is_none(), "{turn_on}: {after:?}");
            warren.undo(applied).await.unwrap();
        });

        for key in stay_on {
            assert_eq!(host.run(&format!("sysctl -n {key}")).trim(), "1", "{key} after {turn_on}");
        }
        let other = if turn_on.contains("ipv4") { "net.ipv6.conf.all" } else { "net.ipv4.conf.lan0" };
        assert_eq!(host.run(&format!("sysctl -n {other}.forwarding")).trim(), "0", "after {turn_on}");
    }
}

#[test]
fn forwarding_of_a_device_stays_the_exits_when_somebody_renames_it() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");

    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&exit(&exit_host(&host))).await.unwrap();
        // The LAN device is renamed. A new device takes its old name and forwards for somebody else.
        host.run("ip link set lan0 down");
        host.run("ip link set lan0 name wan9");
        host.run("ip link add lan0 type bridge");
        host.run("sysctl -q -w net.ipv4.conf.lan0.forwarding=1");
        let forwarding = warren.surroundings(&device("exit0")).await.unwrap().forwarding;
        assert_eq!((forwarding.ipv4_own, forwarding.ipv4_off), (vec![device("wan9")], Vec::new()));
        warren.undo(applied).await.unwrap();
    });

    let now = |key: &str| host.run(&format!("sysctl -n {key}")).trim().to_owned();
    assert_eq!(now("net.ipv4.conf.wan9.forwarding"), "0");
    assert_eq!(now("net.ipv6.conf.wan9.accept_ra"), "1");
    assert_eq!(now("net.ipv4.conf.lan0.forwarding"), "1", "another device's setting stays");
}

#[test]
fn networks_on_the_links_are_known_whatever_they_came_by() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    for line in [
        "ip address add 10.66.0.1/16 dev exit0",
        "ip link set exit0 up",
        "ip route add 198.41.0.0/16 dev exit0",
        "ip address add 198.41.7.5 peer 198.41.8.1/32 dev lan0",
        "ip address add 198.41.9.5/32 dev lan0",
        "ip route add 198.41.10.1 dev lan0",
        "ip route add 198.41.11.0/24 dev lan0 table 100",
        "ip route add 198.41.12.0/24 via 198.41.13.1 dev lan0 onlink",
        "ip route add 0.0.0.0/1 dev lan0",
        "ip -6 route add 2a01:4f8::/64 dev lan0 proto ra",
        "ip -6 route add 2000::/3 dev lan0",
        "ip tuntap add ppp0 mode tun",
        "ip link set ppp0 up",
        "ip route add 198.42.0.0/15 dev ppp0",
        "ip route add 198.44.0.0/24 dev ppp0",
    ] {
        host.run(line);
    }

    let seen = host.inside(surroundings_here);

    let networks: Vec<String> =
        seen.links.iter().map(|link| format!("{} {}", link.device, link.network)).collect();
    let expected = [
        "lan0 192.168.50.0/24",
        "lan0 192.168.50.1/32",
        "lan0 198.41.8.1/32",
        "lan0 198.41.9.5/32",
        "lan0 198.41.10.1/32",
        "lan0 198.41.11.0/24",
        "lan0 198.41.13.1/32",
        "lan0 2001:db8:50::/64",
        "lan0 2001:db8:50::1/128",
        "lan0 2a01:4f8::/64",
        "ppp0 198.44.0.0/24",
    ];
    assert_eq!(networks, expected);
    assert_eq!(seen.routers, [device("lan0"), device("ppp0")]);
}

#[test]
fn networks_that_a_neighbour_can_give_this_host_are_not_its_permanent_ones() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    for line in [
        "ip address add 198.41.1.5/24 dev lan0 valid_lft 600 preferred_lft 600",
        "ip address add 2a01:4f8:1::5/64 dev lan0 valid_lft 600 preferred_lft 600",
        "ip address add 2a01:4f8:2::5/64 dev lan0 noprefixroute",
        "ip -6 route add 2a01:4f8:3::/64 dev lan0 proto ra",
        "ip address add 198.41.2.5/24 dev lan0",
    ] {
        host.run(line);
    }

    let seen = host.inside(surroundings_here);

    let on = |links: &[OnLink]| links.iter().map(|link| link.network.to_string()).collect::<Vec<_>>();
    assert_eq!(on(&seen.permanent), ["192.168.50.0/24", "198.41.2.0/24", "2001:db8:50::/64"]);
    for network in ["198.41.1.0/24", "2a01:4f8:1::/64", "2a01:4f8:2::/64", "2a01:4f8:3::/64"] {
        assert!(on(&seen.links).contains(&network.to_owned()), "{network} is on the link: {seen:?}");
    }
}

/// Anybody may send an ICMP error about any destination, and the kernel caches the path MTU that it contains as a route. If the
/// default route has no gateway, this route looks like a network on the link.
#[test]
fn path_mtu_that_an_icmp_error_told_is_no_network_on_the_link() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    for line in ["ip route del default", "ip -6 route del default"] {
        host.succeeds(line);
    }
    for line in [
        "ip address add 198.41.0.5/32 dev lan0",
        "ip address add 2600:5::5/128 dev lan0 nodad",
        "ip route add default dev lan0",
        "ip -6 route add default dev lan0",
    ] {
        host.run(line);
    }
    let before = host.inside(surroundings_here);
    let script = host.journal().with_file_name("too_big.py");
    std::fs::write(&script, TOO_BIG).unwrap();

    host.run(&format!("python3 {}", script.display()));

    let cached = host.run("ip route show cache") + &host.run("ip -6 route show cache");
    assert!(cached.contains("1.1.1.1") && cached.contains("2606:4700:4700::1111"), "{cached}");
    assert_eq!(host.inside(surroundings_here), before);
}

#[test]
fn forwarding_that_was_on_before_stays_on() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    host.run("sysctl -q -w net.ipv4.ip_forward=1");

    host.with_plan(&exit(&exit_host(&host)), || {});

    assert_eq!(host.run("sysctl -n net.ipv4.ip_forward").trim(), "1");
}

#[test]
fn table_is_replaced_as_a_whole_and_stays_its_owners() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let list = || host.run("nft --stateless list table inet warren_exit");

    host.block_on(|| async {
        let mut warren = Host::open(host.journal()).await.unwrap();
        let facts = exit_host(&host);
        let applied = warren.apply(&exit(&facts)).await.unwrap();
        let before = list();
        let opened = ruleset(&ExitHost { isolation: false, ..facts.clone() });
        warren.replace_table(TABLE, &opened).await.unwrap();
        let after = list();
        assert_ne!(after, before);
        assert!(after.contains("flags owner"), "{after}");

        assert!(warren.replace_table(TABLE, "nonsense").await.is_err());
        assert!(warren.replace_table("another", &opened).await.is_err());
        assert_eq!(list(), after, "a refused ruleset changes nothing");

        warren.replace_table(TABLE, &ruleset(&facts)).await.unwrap();
        assert_eq!(list(), before);
        warren.undo(applied).await.unwrap();
    });

    assert!(!host.run("nft list tables").contains("warren_exit"));
}

#[test]
fn nobody_else_can_flush_the_table() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let before = host.snapshot();

    host.block_on(|| async {
        let plan = exit(&exit_host(&host));
        let mut warren = Host::open(host.journal()).await.unwrap();
        let applied = warren.apply(&plan).await.unwrap();
        assert!(host.run("nft list table inet warren_exit").contains("flags owner"));

        assert!(!host.succeeds("nft delete table inet warren_exit"));
        assert!(!host.succeeds("nft flush table inet warren_exit"));

        assert_eq!(warren.verify(&plan).await.unwrap(), []);
        warren.undo(applied).await.unwrap();
    });

    host.assert_is(&before, "after undo");
}

#[test]
fn refusal_of_nft_undoes_everything_and_names_its_reason() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let before = host.snapshot();
    let mut plan = exit(&exit_host(&host));
    plan.steps.push(Step::Nftables {
        family: TableFamily::Inet,
        table: "warren_bad".into(),
        ruleset: "chain a {\n\ttcp dport 9-5 accept\n}\n".into(),
        owned: true,
    });

    let error =
        host.block_on(|| async { Host::open(host.journal()).await.unwrap().apply(&plan).await.unwrap_err() });

    assert_eq!(
        error.to_string(),
        "`nft add table inet warren_bad` failed: nft refused: Range has zero or negative size; see what `nft list ruleset` shows"
    );
    host.assert_is(&before, "after the failure");
}

#[test]
fn table_of_the_same_name_is_refused_and_left_alone() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    host.run("nft add table inet warren_exit");
    let before = host.snapshot();

    let error = host.block_on(|| async {
        Host::open(host.journal()).await.unwrap().apply(&exit(&exit_host(&host))).await.unwrap_err()
    });

    assert!(error.to_string().contains("it exists already"), "{error}");
    host.assert_is(&before, "after the refusal");
}

#[test]
fn table_without_an_owner_is_made_and_undone_too() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let mut plan = exit(&exit_host(&host));
    if let Some(Step::Nftables { owned, .. }) = plan.steps.first_mut() {
        *owned = false;
    }

    host.with_plan(&plan, || {
        assert!(!host.run("nft list table inet warren_exit").contains("flags owner"));
    });
}

#[test]
fn long_list_of_allowed_networks_is_taken() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let allow = (0..2_000_u32)
        .map(|number| ipnet::Ipv4Net::new((0x0a00_0000 + number * 256).into(), 24).unwrap().into());
    let plan = exit(&ExitHost { allow: allow.collect(), ..exit_host(&host) });

    host.with_plan(&plan, || {});
}

#[test]
fn failure_at_any_step_leaves_the_exit_as_it_was() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let before = host.snapshot();
    let plan = exit(&exit_host(&host));

    for length in 1..=plan.steps.len() {
        let mut steps = plan.steps[..length].to_vec();
        steps.push(Step::Sysctl { key: "net.warren.nothing".into(), value: "1".into() });

        let error = host.block_on(|| async {
            Host::open(host.journal()).await.unwrap().apply(&Plan { steps }).await.unwrap_err()
        });

        assert_eq!(
            error.to_string(),
            "`sysctl -w net.warren.nothing=1` failed: this kernel has no such setting; use a kernel that has it"
        );
        host.assert_is(&before, "after the failure");
    }
}

/// ICMP errors about a destination of each IP version, as a router on the internet sends them to this host.
const TOO_BIG: &str = r#"
import socket, struct
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
own, about = map(socket.inet_aton, ("198.41.0.5", "1.1.1.1"))
inner = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1400, 1, 0x4000, 60, 1, 0, own, about) + struct.pack("!BBHHH", 0, 0, 0, 7, 1)
error = struct.pack("!BBHHH", 3, 4, 0, 0, 1300) + inner
error = error[:2] + struct.pack("!H", checksum(error)) + error[4:]
socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).sendto(error, ("198.41.0.5", 0))
own, about = (socket.inet_pton(socket.AF_INET6, address) for address in ("2600:5::5", "2606:4700:4700::1111"))
inner = struct.pack("!IHBB", 6 << 28, 1400, 58, 60) + own + about + struct.pack("!BBHHH", 129, 0, 0, 7, 1)
error = struct.pack("!BBHI", 2, 0, 0, 1300) + inner
socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58).sendto(error, ("2600:5::5", 0))
"#;

fn exit_host(namespace: &Namespace) -> ExitHost {
    namespace.inside(exit_host_here)
}

/// An exit in the calling thread's network namespace.
pub(crate) fn exit_host_here() -> ExitHost {
    ExitHost {
        device: device("exit0"),
        mtu: 1380,
        ipv4: Some("10.66.0.1/16".parse().unwrap()),
        ipv6: Some("fd66:6666::1/64".parse().unwrap()),
        nat_ipv4: true,
        nat_ipv6: true,
        interface: Egress::Auto,
        listen_ports: vec![443],
        service_ports: Vec::new(),
        allow: Vec::new(),
        prefixes: Vec::new(),
        forwards: Vec::new(),
        isolation: true,
        resolvers: Vec::new(),
        surroundings: surroundings_here(),
        router_advertisements: facts::devices_taking_router_advertisements().unwrap(),
    }
}

/// Runs on a thread of its own, because the calling thread may already belong to a runtime.
fn surroundings_here() -> Surroundings {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(surroundings(&device("exit0"))).unwrap()
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}
