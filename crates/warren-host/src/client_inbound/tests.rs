use super::*;
use crate::client_plan::tests::host;
use crate::{GuestNetwork, Plan};

fn ports(protocol: InboundProtocol, first: u16, last: u16) -> Ports {
    Ports { protocol, first, last }
}

fn serving(include: &[&str]) -> ClientPlanFacts {
    ClientPlanFacts {
        allowed_forwards: vec![
            ports(InboundProtocol::Tcp, 443, 443),
            ports(InboundProtocol::Udp, 5_000, 5_009),
            ports(InboundProtocol::Udp, 5_005, 5_010),
        ],
        slot: 1,
        ..host(include)
    }
}

#[test]
fn nobody_opens_a_connection_to_the_inner_addresses_unless_a_port_is_allowed() {
    let mut text = String::new();
    chains(&mut text, &host(&["0.0.0.0/0", "::/0"]));

    let arrivals: Vec<String> = arrivals(&host(&[])).collect();
    assert_eq!(
        arrivals,
        [
            "iifname \"warren0\" ip daddr 10.66.0.2 jump from_tunnel",
            "iifname \"warren0\" ip6 daddr fd66:6666::2 jump from_tunnel"
        ]
    );
    assert_eq!(
        text,
        "chain from_tunnel {\n\
         \tct state established,related accept\n\
         \tmeta l4proto { icmp, icmpv6 } accept\n\
         \ttcp flags & (fin | syn | rst | ack) != syn accept\n\
         \tcounter drop\n\
         }\n"
    );
}

#[test]
fn full_tunnel_needs_no_routes_of_its_own_for_answers() {
    let host = serving(&["0.0.0.0/0", "::/0"]);
    let mut text = String::new();
    chains(&mut text, &host);

    assert!(
        text.contains("\ttcp dport { 443 } accept\n\tudp dport { 5000-5010 } accept\n\tcounter drop\n"),
        "{text}"
    );
    assert!(!text.contains("set "), "{text}");
    assert_eq!((routes(&host), rules(&host), forwarded_answers(&host)), (Vec::new(), Vec::new(), None));
}

#[test]
fn split_tunnel_sends_answers_back_by_address_by_mark_and_to_remembered_visitors() {
    let guest =
        GuestNetwork { device: "docker0".parse().unwrap(), network: "172.17.0.0/16".parse().unwrap() };
    let host = ClientPlanFacts { guests: vec![guest], ..serving(&["10.0.0.0/8", "::/0"]) };
    let mut text = String::new();
    chains(&mut text, &host);

    assert_eq!(
        text,
        "set visitors {\n\
         \ttype ipv4_addr . inet_service . inet_service\n\
         \tsize 65535\n\
         \tflags dynamic, timeout\n\
         \ttimeout 180s\n\
         }\n\
         chain answers {\n\
         \ttype route hook output priority raw; policy accept;\n\
         \tip saddr != 10.66.0.2 ip daddr . udp dport . udp sport @visitors ip saddr set 10.66.0.2\n\
         }\n\
         chain from_tunnel {\n\
         \tmeta nfproto ipv4 udp dport { 5000-5010 } update @visitors { ip saddr . udp sport . udp dport }\n\
         \tct state established,related accept\n\
         \tmeta l4proto { icmp, icmpv6 } accept\n\
         \ttcp flags & (fin | syn | rst | ack) != syn accept\n\
         \ttcp dport { 443 } ct mark set 0x125761 accept\n\
         \tudp dport { 5000-5010 } ct mark set 0x125761 accept\n\
         \tcounter drop\n\
         }\n"
    );
    assert_eq!(
        forwarded_answers(&host).as_deref(),
        Some("ct direction reply ct mark 0x125761 meta mark set 0x125761")
    );
    let steps = Plan { steps: [routes(&host), rules(&host)].concat() }.to_string();
    assert_eq!(
        steps,
        "ip -4 route add 0.0.0.0/0 dev warren0 table 22626 proto 87\n\
         ip -4 route add throw 172.17.0.0/16 table 22626 proto 87\n\
         ip -4 rule add priority 5506 from 10.66.0.2 lookup 22626 protocol 87\n\
         ip -4 rule add priority 5506 fwmark 0x125761 lookup 22626 protocol 87\n"
    );
}
