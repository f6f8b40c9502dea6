//! Tests each check on a good host, and on a host where only the fact of that check is bad.

use super::super::facts::{
    ClockFacts, ClosedKillSwitch, CoreFacts, Egress, ExitFacts, KernelFacts, NetworkFacts, SocketFacts,
};
use warren_host::kill_switch::Standing;
use warren_quic::socket::UdpOffload;

use super::super::finding::Verdict;
use super::super::path::Path;
use super::*;
use warren_exit::other_firewalls::in_the_way;

/// A running exit on a good host.
fn good() -> Facts {
    let features = [("rx-udp-gro-forwarding", true), ("rx-gro-list", false)];
    Facts {
        kernel: KernelFacts {
            version: Some((6, 12)),
            has_tun: true,
            has_nft: true,
            has_landlock: Some(true),
        },
        sockets: SocketFacts {
            buffers: Some((8 << 20, 8 << 20)),
            offload: Some(UdpOffload { gso: true, gro: true }),
        },
        clock: ClockFacts { seconds: EARLIEST + 1, is_synchronised: Some(true) },
        cores: CoreFacts { deepest_idle: Some(("C1".to_owned(), 2)), is_virtual: false },
        network: NetworkFacts {
            egress: Some(Egress {
                device: "eth0".to_owned(),
                mtu: Some(1_500),
                features: features.map(|(name, is_on)| (name.to_owned(), is_on)).into(),
                qdisc: Some("fq".to_owned()),
            }),
            path: Some(path(1_500)),
            networks: vec!["192.0.2.0/24".parse().unwrap(), "10.66.0.1/32".parse().unwrap()],
            resolvers: vec![[9, 9, 9, 9].into()],
            tun_features: [
                ("tx-tcp-segmentation".to_owned(), true),
                ("tx-udp-segmentation".to_owned(), true),
            ]
            .into(),
            forwarding_ipv4: Some(true),
            forwarding_ipv6: Some(true),
            conntrack: Some((1_000, 262_144)),
            ..NetworkFacts::default()
        },
        exit: Some(ExitFacts {
            is_running: true,
            ports: vec![443],
            ports_in_use: vec![443],
            pools: vec!["10.66.0.0/16".parse().unwrap(), "fd66::/64".parse().unwrap()],
            resolvers: vec![[9, 9, 9, 9].into()],
            untranslated: Vec::new(),
            in_the_way: Vec::new(),
            unread_ports: Vec::new(),
            takes_ipv6: true,
            translates: Some(true),
        }),
        ..Facts::default()
    }
}

fn path(carries: u32) -> Path {
    Path { to: [9, 9, 9, 9].into(), asked: 1_500, carries }
}

/// Changes the facts, and returns the only finding that is not good after the change.
fn only(change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = good();
    change(&mut facts);
    let mut bad: Vec<Finding> =
        all(&facts).into_iter().filter(|finding| finding.verdict != Verdict::Good).collect();
    assert_eq!(bad.len(), 1, "{bad:#?}");
    bad.remove(0)
}

fn closed(profile: &str, is_running: bool, standing: Standing) -> ClosedKillSwitch {
    ClosedKillSwitch { profile: profile.to_owned(), is_running, standing: Ok(standing) }
}

fn exit(facts: &mut Facts) -> &mut ExitFacts {
    facts.exit.as_mut().unwrap()
}

fn egress(facts: &mut Facts) -> &mut Egress {
    facts.network.egress.as_mut().unwrap()
}

#[test]
fn what_a_client_says_of_itself_and_rules_in_its_way_are_findings() {
    let trouble = |facts: &mut Facts| {
        let sentence = "names may not be found: none; set one; or two".to_owned();
        facts.daemons.troubles.push(TunnelTrouble { profile: "home".to_owned(), sentence });
    };
    let finding = only(trouble);
    assert_eq!((finding.verdict, finding.fix.as_str()), (Verdict::Problem, "set one; or two"));
    for (is_first, verdict) in [(true, Verdict::Problem), (false, Verdict::Advice)] {
        let (rule, remedy) = ("the rule x".to_owned(), "delete it".to_owned());
        let in_front = RuleInFront { profile: "home".to_owned(), rule, remedy, is_first };
        let finding = only(|facts| facts.rules_in_front.push(in_front));
        assert_eq!(finding.verdict, verdict);
        assert!(finding.found.contains("the rule x") && finding.fix.contains("delete it"), "{finding:?}");
    }
}

#[test]
fn kill_switch_whose_table_is_gone_is_closed_again_where_no_daemon_does_it() {
    let of = |is_running| only(|facts| facts.daemons.closed.push(closed("home", is_running, Standing::Gone)));

    assert!(of(false).found.contains("has deleted its nftables table inet warren-kill-switch_home"));
    assert_eq!(of(false).repairs, [Repair::CloseKillSwitch { profile: "home".to_owned() }]);
    assert_eq!(of(true).repairs, []);
}

#[test]
fn good_host_has_no_finding_but_good_ones() {
    assert!(all(&good()).iter().all(|finding| finding.verdict == Verdict::Good), "{:#?}", all(&good()));
    assert!(all(&good()).len() >= 20);
}

#[test]
fn each_fact_that_is_wrong_is_found_by_its_check_alone() {
    use Verdict::{Advice, Problem};
    type Case = (&'static str, Verdict, fn(&mut Facts));
    let cases: [Case; 38] = [
        ("configuration", Problem, |facts| facts.files.broken.push("home.toml:3: no".to_owned())),
        ("configuration", Advice, |facts| facts.files.without_effect.push("pin".to_owned())),
        ("remains", Problem, |facts| facts.daemons.killed.push("home".to_owned())),
        ("kill switch", Advice, |facts| facts.daemons.closed.push(closed("home", false, Standing::Closed))),
        ("kill switch", Problem, |facts| facts.daemons.closed.push(closed("home", false, Standing::Gone))),
        ("kill switch", Problem, |facts| facts.daemons.closed.push(closed("home", true, Standing::Changed))),
        ("exit", Advice, |facts| {
            facts.daemons.closed.push(closed("work", true, Standing::Closed));
            facts.exits.push(KnownExit {
                profile: "home".to_owned(),
                endpoint: "exit.test:443".to_owned(),
                answer: Err("silence".to_owned()),
            });
        }),
        ("kernel", Advice, |facts| facts.kernel.version = Some((6, 1))),
        ("kernel", Advice, |facts| facts.kernel.version = Some((4, 19))),
        ("tun", Problem, |facts| facts.kernel.has_tun = false),
        ("nft", Problem, |facts| facts.kernel.has_nft = false),
        ("sandbox", Advice, |facts| facts.kernel.has_landlock = Some(false)),
        ("clock", Problem, |facts| facts.clock.seconds = 0),
        ("clock", Advice, |facts| facts.clock.is_synchronised = Some(false)),
        ("resolver", Problem, |facts| facts.network.resolvers.clear()),
        ("mtu", Problem, |facts| egress(facts).mtu = Some(1_200)),
        ("mtu", Advice, |facts| egress(facts).mtu = Some(1_420)),
        ("socket buffers", Advice, |facts| facts.sockets.buffers = Some((8 << 20, 212_992))),
        ("udp offload", Advice, |facts| facts.sockets.offload = Some(UdpOffload { gso: false, gro: true })),
        ("path mtu", Advice, |facts| facts.network.path = Some(path(1_420))),
        ("tun offload", Advice, |facts| {
            _ = facts.network.tun_features.insert("tx-udp-segmentation".to_owned(), false)
        }),
        ("tun offload", Advice, |facts| {
            _ = facts.network.tun_features.insert("tx-tcp-segmentation".to_owned(), false)
        }),
        ("nat", Problem, |facts| facts.network.egress = None),
        ("nat", Problem, |facts| exit(facts).translates = Some(false)),
        ("nat", Advice, |facts| exit(facts).untranslated = exit(facts).pools.clone()),
        ("nat", Advice, |facts| exit(facts).untranslated = vec!["fd66::/64".parse().unwrap()]),
        ("udp offload of the link", Advice, |facts| {
            _ = egress(facts).features.insert("rx-gro-list".to_owned(), true)
        }),
        ("qdisc", Advice, |facts| egress(facts).qdisc = Some("pfifo_fast".to_owned())),
        ("idle states", Advice, |facts| facts.cores.deepest_idle = Some(("C6".to_owned(), 200))),
        ("port", Problem, |facts| exit(facts).is_running = false),
        ("port", Problem, |facts| exit(facts).ports_in_use.clear()),
        ("addresses", Problem, |facts| facts.network.networks.push("10.0.0.0/8".parse().unwrap())),
        ("other firewalls", Problem, |facts| {
            let drops = "table ip f {\n\tchain x {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n";
            exit(facts).in_the_way = in_the_way(drops, &[443]);
        }),
        ("published ports", Advice, |facts| exit(facts).unread_ports.push("a rule".to_owned())),
        ("ipv6", Problem, |facts| exit(facts).takes_ipv6 = false),
        ("connection tracking", Problem, |facts| facts.network.conntrack = Some((90, 100))),
        ("connection tracking", Advice, |facts| facts.network.conntrack = Some((0, 4_096))),
        ("clients' resolvers", Advice, |facts| exit(facts).resolvers.clear()),
    ];
    for (check, verdict, change) in cases {
        let change_alone = |facts: &mut Facts| {
            change(facts);
            // A stopped exit's addresses are not on the host.
            if !exit(facts).is_running {
                facts.network.networks.clear();
            }
        };
        let finding = only(change_alone);
        assert_eq!((finding.check, finding.verdict), (check, verdict));
        assert!(
            !finding.found.is_empty() && !finding.why.is_empty() && !finding.fix.is_empty(),
            "{finding:?}"
        );
    }
}

#[test]
fn repairs_concern_what_was_found_and_nothing_else() {
    let off = only(|facts| facts.network.forwarding_ipv6 = Some(false));
    assert_eq!(
        (off.check, off.repairs),
        ("forwarding", Vec::new()),
        "if it were turned on for all devices, it would serve strangers too"
    );
    let offload = only(|facts| egress(facts).features = [("rx-udp-gro-forwarding".to_owned(), false)].into());
    let command = ["ethtool", "-K", "eth0", "rx-udp-gro-forwarding", "on", "rx-gro-list", "off"];
    assert_eq!(offload.repairs, [Repair::run(&command)]);
    let table = only(|facts| facts.network.conntrack = Some((9, 10)));
    assert_eq!(table.repairs, [Repair::sysctl("net.netfilter.nf_conntrack_max", 262_144)]);
    assert!(all(&good()).iter().all(|finding| finding.repairs.is_empty()));
}

#[test]
fn forwarding_for_others_is_said() {
    let mut facts = good();
    facts.network.forwarding_for_all = vec!["net.ipv4.ip_forward"];

    let findings = all(&facts);

    let forwarding = findings.iter().find(|finding| finding.check == "forwarding").unwrap();
    assert_eq!(forwarding.verdict, Verdict::Good);
    assert!(forwarding.found.contains("because net.ipv4.ip_forward is on;"), "{forwarding:?}");
}

#[test]
fn a_stopped_exit_is_not_blamed_for_what_it_does_when_it_starts() {
    let mut facts = good();
    (facts.network.forwarding_ipv4, facts.network.forwarding_ipv6) = (Some(false), Some(false));
    facts.network.networks = vec!["192.0.2.0/24".parse().unwrap()];
    let exit = exit(&mut facts);
    (exit.is_running, exit.ports_in_use) = (false, Vec::new());
    assert!(all(&facts).iter().all(|finding| finding.verdict == Verdict::Good), "{:#?}", all(&facts));
    facts.network.networks.push("10.66.7.0/24".parse().unwrap());
    assert!(
        all(&facts).iter().any(|finding| finding.check == "addresses" && finding.verdict == Verdict::Problem)
    );
}

#[test]
fn what_is_not_known_is_not_judged() {
    let findings = all(&Facts {
        clock: ClockFacts { seconds: EARLIEST + 1, is_synchronised: None },
        ..Facts::default()
    });
    let problems: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Problem)
        .map(|finding| finding.check)
        .collect();
    assert_eq!(problems, ["tun", "resolver"]);
}

#[test]
fn routed_prefixes_need_no_translation() {
    let mut facts = good();
    let exit = exit(&mut facts);
    exit.translates = Some(false);
    exit.pools = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
    exit.untranslated = exit.pools.clone();
    facts.network.networks.clear();
    assert!(all(&facts).iter().all(|finding| finding.verdict == Verdict::Good), "{:#?}", all(&facts));
}
