use std::time::{Duration, UNIX_EPOCH};

mod oracle;

use super::*;
use crate::PublicKey;
use crate::invite::InviteToken;

const FILE: &str = r#"
[[client]]
name = "laptop"
public_key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
leased_ipv4 = "10.66.0.2"
leased_ipv6 = "fd66::2"
created = "2026-11-21T09:10:00Z"
last_seen = "2026-11-21T10:00:00Z"

[[client]]
name = "office"
public_key = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
ipv4 = "10.66.0.9"
ipv6 = "fd66::9"
prefixes = ["192.168.7.0/24"]
forwards = ["tcp/443", "udp/6881-6889 to 7000"]
disabled = true
created = "2026-11-20T00:00:00Z"
"#;

#[test]
fn the_file_reads_back_as_it_was_written() {
    let registry: ClientRegistry = toml::from_str(FILE).unwrap();
    let office = registry.by_name("office").unwrap();
    assert_eq!(office.ipv4, Some("10.66.0.9".parse().unwrap()));
    assert!(office.disabled && registry.by_key(key(1)).unwrap().leased_ipv4.is_some());
    assert_eq!(toml::to_string(&registry).unwrap().trim(), FILE.trim());
    assert_eq!(toml::from_str::<ClientRegistry>("").unwrap(), ClientRegistry::new());
}

#[test]
fn a_file_with_an_unknown_key_or_a_bad_value_is_refused_by_name() {
    let refused = |from: &str, to: &str| {
        assert!(FILE.contains(from), "{from}");
        toml::from_str::<ClientRegistry>(&FILE.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert!(refused("disabled = true", "disable = true").contains("disable"));
    assert!(refused("[[client]]", "[[clients]]").contains("clients"));
    assert!(refused("\"office\"", "\"laptop\"").contains("there is a client \"laptop\" already"));
    assert!(refused("\"office\"", "\"My Office\"").contains("\"My Office\" cannot be a client's name"));
    assert!(refused("AQEBAQEB", "AQEB").contains("a public key is 32 bytes"));
    assert!(refused("2026-11-21T09:10:00Z", "yesterday").contains("\"yesterday\" is not a time"));
    assert!(refused("192.168.7.0/24", "192.168.7.1/24").contains("write 192.168.7.0/24"));
    assert!(refused("tcp/443", "tcp/0").contains("write a forward such as"));
    assert!(refused("tcp/443", "udp/6889").contains("udp/6889 already, which overlaps udp/6881-6889"));
}

#[test]
fn names_keys_and_static_addresses_are_unique() {
    let mut registry = ClientRegistry::new();
    let first = Client { ipv4: Some("10.0.0.9".parse().unwrap()), ..client("a", 1) };
    registry.add(first.clone()).unwrap();
    let before = registry.clone();
    assert!(matches!(registry.add(client("a", 2)), Err(RegistryError::NameTaken { .. })));
    assert!(
        matches!(registry.add(client("b", 1)), Err(RegistryError::KeyTaken { holder, .. }) if holder == "a")
    );
    let wireguard = Client { wireguard: Some(WireGuardClient::default()), ..client("b", 1) };
    for (rival, maker) in [(client("b", 1), "`warren keygen`"), (wireguard, "`wg genkey`")] {
        let refused = registry.add(rival).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("make another with {maker}")), "{refused}");
    }
    let same_address = Client { ipv4: first.ipv4, ..client("b", 2) };
    assert!(
        matches!(registry.add(same_address), Err(RegistryError::AddressTaken { holder, .. }) if holder == "a")
    );
    assert_eq!(registry, before);
}

#[test]
fn a_port_of_the_exit_leads_to_one_client_and_comes_free_with_it() {
    let mut registry = ClientRegistry::new();
    ["a", "b"].iter().zip(1..).for_each(|(name, number)| registry.add(client(name, number)).unwrap());
    let add = |registry: &mut ClientRegistry, name: &str, forward: &str| {
        registry.change(name, &ClientChange::AddForward { forward: forward.parse().unwrap() })
    };
    add(&mut registry, "a", "tcp/8440-8450").unwrap();
    add(&mut registry, "a", "tcp/443 to 8443").unwrap();
    add(&mut registry, "b", "udp/8440-8450").unwrap();

    for taken in ["tcp/8440", "tcp/8450-8460", "tcp/8400-8500", "tcp/443"] {
        let refused = add(&mut registry, "b", taken).unwrap_err().to_string();
        assert!(refused.contains("leads to \"a\""), "{taken}: {refused}");
    }
    let own = add(&mut registry, "a", "tcp/443").unwrap_err().to_string();
    assert!(own.contains("tcp/443 already"), "{own}");
    let wider = add(&mut registry, "a", "tcp/8400-8445").unwrap_err().to_string();
    assert!(wider.contains("has tcp/8440-8450 already, which overlaps tcp/8400-8445"), "{wider}");
    add(&mut registry, "a", "tcp/443 to 8443").unwrap();
    let shown: Vec<String> =
        registry.forwards().map(|(forward, client)| format!("{} {forward}", client.name)).collect();
    assert_eq!(shown, ["a tcp/443 to 8443", "a tcp/8440-8450", "b udp/8440-8450"]);

    let remove = |registry: &mut ClientRegistry, name: &str, ports: &str| {
        registry.change(name, &ClientChange::RemoveForward { ports: ports.parse().unwrap() })
    };
    for (name, ports) in [("a", "tcp/8440"), ("b", "tcp/443"), ("c", "tcp/443")] {
        assert!(remove(&mut registry, name, ports).is_err(), "{name} {ports}");
    }
    remove(&mut registry, "a", "tcp/443").unwrap();
    add(&mut registry, "b", "tcp/443").unwrap();
    registry.remove("a", UNIX_EPOCH).unwrap();
    add(&mut registry, "b", "tcp/8440").unwrap();
}

#[test]
fn forwards_are_bounded() {
    let mut registry = ClientRegistry::new();
    for (name, number) in [("a", 1), ("b", 2)] {
        registry.add(client(name, number)).unwrap();
    }
    let add = |registry: &mut ClientRegistry, name: &str, forward: String| {
        registry.change(name, &ClientChange::AddForward { forward: forward.parse().unwrap() })
    };
    add(&mut registry, "a", "tcp/10000-14000 to 20000".to_owned()).unwrap();
    let refused = add(&mut registry, "b", "tcp/20000-20199 to 1".to_owned()).unwrap_err().to_string();
    assert!(refused.contains("4201 ports: at most 4096"), "{refused}");
    add(&mut registry, "b", "tcp/20000-60000".to_owned()).unwrap();
    (1..64).for_each(|port| add(&mut registry, "b", format!("udp/{port}")).unwrap());
    let refused = add(&mut registry, "b", "udp/64".to_owned()).unwrap_err().to_string();
    assert!(refused.contains("65 forwards: at most 64"), "{refused}");
}

#[test]
fn names_are_what_a_label_can_be() {
    for name in ["a", "laptop-2", "x.y_z", &"n".repeat(63)] {
        assert!(is_valid_name(name), "{name}");
    }
    for name in ["", "A", "-a", ".a", "a b", "ä", "a/b", &"n".repeat(64)] {
        assert_eq!(
            ClientRegistry::new().add(client(name, 1)),
            Err(RegistryError::BadName { name: name.to_owned() })
        );
    }
}

#[test]
fn prefixes_of_clients_do_not_overlap() {
    let mut registry = ClientRegistry::new();
    let with = |name: &str, number, prefixes: &[&str]| Client {
        prefixes: prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect(),
        ..client(name, number)
    };
    registry.add(with("a", 1, &["192.168.0.0/16", "fd01::/48"])).unwrap();
    let inside = registry.add(with("b", 2, &["192.168.3.0/24"])).unwrap_err();
    assert!(inside.to_string().contains("overlaps 192.168.0.0/16 of \"a\""), "{inside}");
    assert!(registry.add(with("b", 2, &["192.0.0.0/8"])).is_err(), "around");
    assert!(registry.add(with("b", 2, &["10.0.0.0/8", "10.1.0.0/16"])).is_err(), "within itself");
    registry.add(with("b", 2, &["10.0.0.0/8", "fd02::/48"])).unwrap();
}

#[test]
fn prefix_is_a_network_that_can_be_behind_a_client() {
    let with = |prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
        ClientRegistry::new().add(Client { prefixes, ..client("a", 1) })
    };
    for (prefix, what) in [
        ("127.0.0.0/8", "loopback"),
        ("127.0.0.53/32", "loopback"),
        ("0.0.0.0/1", "unspecified"),
        ("128.0.0.0/1", "link-local"),
        ("169.254.1.0/24", "link-local"),
        ("224.0.0.0/24", "multicast"),
        ("255.255.255.255/32", "reserved"),
        ("::1/128", "loopback"),
        ("fe80::/64", "link-local"),
        ("ff02::/16", "multicast"),
    ] {
        let refused = with(&[prefix]).unwrap_err().to_string();
        assert!(refused.contains(prefix) && refused.contains(what), "{refused}");
    }
    let twice = with(&["10.1.0.0/16", "10.1.0.0/16"]).unwrap_err().to_string();
    assert!(twice.contains("its prefixes 10.1.0.0/16 and 10.1.0.0/16 overlap"), "{twice}");
    with(&["10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12", "2000::/3", "fd00::/8"]).unwrap();
}

#[test]
fn there_is_an_end_of_clients() {
    let mut registry = ClientRegistry::new();
    let numbered = |number: usize| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        Client::new(format!("client-{number}"), PublicKey(key), UNIX_EPOCH)
    };
    for number in 0..MAX_CLIENTS {
        registry.add(numbered(number)).unwrap();
    }
    assert_eq!(registry.add(numbered(MAX_CLIENTS)), Err(RegistryError::Full));
    registry.replace(Client { disabled: true, ..numbered(7) }).unwrap();
    registry.remove("client-7", UNIX_EPOCH).unwrap();
    registry.add(numbered(MAX_CLIENTS)).unwrap();
}

#[test]
fn a_client_can_be_renamed_disabled_and_removed() {
    let mut registry = ClientRegistry::new();
    registry.add(client("a", 1)).unwrap();
    registry.add(client("b", 2)).unwrap();
    assert!(matches!(registry.rename("a", "b"), Err(RegistryError::NameTaken { .. })));
    assert!(matches!(registry.rename("c", "d"), Err(RegistryError::NoSuchClient { .. })));
    registry.rename("a", "z").unwrap();
    assert_eq!(registry.set_disabled("z", true), Ok(key(1)));
    assert!(registry.by_key(key(1)).is_some_and(|client| client.name == "z" && client.disabled));
    assert_eq!(registry.by_name("a"), None);
    assert_eq!(registry.iter().map(|client| client.name.as_str()).collect::<Vec<_>>(), ["b", "z"]);
    assert_eq!(registry.remove("z", UNIX_EPOCH).unwrap().map(|client| client.public_key), Some(key(1)));
    assert_eq!((registry.len(), registry.by_key(key(1))), (1, None));
}

#[test]
fn a_removed_key_is_enrolled_again_only_if_the_operator_allows_it() {
    let mut registry = ClientRegistry::new();
    registry.add(Client { next_public_key: Some(key(2)), ..client("a", 1) }).unwrap();
    registry.rename("a", "z").unwrap();
    registry.remove("z", UNIX_EPOCH + Duration::from_secs(9)).unwrap();
    // The registry is read again, as after a restart.
    let mut registry: ClientRegistry = toml::from_str(&toml::to_string(&registry).unwrap()).unwrap();

    let by_next = Client { next_public_key: Some(key(2)), ..client("b", 3) };
    for again in [client("b", 1), client("b", 2), by_next] {
        let refused = registry.add(again).unwrap_err();
        assert!(matches!(&refused, RegistryError::KeyRemoved { holder, .. } if holder == "z"), "{refused}");
        assert!(refused.to_string().contains("--allow-removed"), "{refused}");
    }
    registry.add(client("b", 3)).unwrap();
    assert!(registry.allow(key(1)) && !registry.allow(key(1)));
    registry.add(client("z", 1)).unwrap();
    let removed: Vec<_> = registry.removed_after(None).map(|removed| removed.public_key).collect();
    assert_eq!(removed, [key(2)]);
}

#[test]
fn a_file_with_a_client_whose_key_was_removed_is_refused() {
    let removed = r#"
[[removed]]
name = "phone"
public_key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
removed = "2026-11-22T00:00:00Z"
"#;
    let refused = toml::from_str::<ClientRegistry>(&format!("{FILE}{removed}")).unwrap_err().to_string();
    assert!(refused.contains("\"laptop\" cannot have the key") && refused.contains("\"phone\""), "{refused}");
    toml::from_str::<ClientRegistry>(removed).unwrap();
}

#[test]
fn an_invitation_stays_open_for_another_key_than_a_removed_one() {
    let mut registry = ClientRegistry::new();
    registry.add(client("a", 1)).unwrap();
    registry.remove("a", UNIX_EPOCH).unwrap();
    let token = InviteToken::new([7; InviteToken::LENGTH]);
    let expires = UNIX_EPOCH + Duration::from_secs(9);
    let invitation = Invitation {
        name: "a".to_owned(),
        token_sha256: token.digest(),
        expires,
        used_by: None,
        upgrades: None,
    };
    registry.invite(invitation, UNIX_EPOCH).unwrap();

    assert_eq!(registry.redeem(&token, key(1), UNIX_EPOCH), None);
    assert_eq!(registry.open_invitations(UNIX_EPOCH).len(), 1);
    assert!(registry.redeem(&token, key(2), UNIX_EPOCH).is_some_and(|redeemed| redeemed.is_new));
}

#[test]
fn an_invitation_of_a_wireguard_client_gives_that_client_a_next_key_and_nobody_else() {
    let mut registry = ClientRegistry::new();
    let forwards = vec!["tcp/443".parse().unwrap()];
    let wireguard = Some(WireGuardClient::default());
    registry.add(Client { wireguard, forwards: forwards.clone(), ..client("phone", 1) }).unwrap();
    registry.add(client("laptop", 2)).unwrap();
    let token = |number| InviteToken::new([number; InviteToken::LENGTH]);
    let invitation = |name: &str, number| {
        let expires = UNIX_EPOCH + Duration::from_secs(9);
        let token_sha256 = token(number).digest();
        Invitation { name: name.to_owned(), token_sha256, expires, used_by: None, upgrades: None }
    };
    let refused = registry.invite(invitation("laptop", 7), UNIX_EPOCH);
    assert_eq!(refused, Err(RegistryError::NameTaken { name: "laptop".to_owned() }));
    registry.invite(invitation("tablet", 8), UNIX_EPOCH).unwrap();
    registry.invite(invitation("phone", 9), UNIX_EPOCH).unwrap();
    // The invitation follows the client to another name, and a change of the client's settings does not withdraw it.
    let off = ClientSettings { rate_limit: Some(RateChoice::Off), ..ClientSettings::default() };
    registry.change("phone", &ClientChange::Set(off)).unwrap();
    registry.rename("phone", "tablet").unwrap();
    // The invitation for a new client named tablet does not give access to the existing client that has this name now.
    assert_eq!(registry.redeem(&token(8), key(5), UNIX_EPOCH), None);

    let redeemed = registry.redeem(&token(9), key(3), UNIX_EPOCH).unwrap();

    assert_eq!((redeemed.name.as_str(), redeemed.is_new), ("tablet", true));
    let phone = registry.by_key(key(1)).unwrap();
    assert_eq!((phone.next_public_key, phone.wireguard.is_some()), (Some(key(3)), true));
    assert!(registry.redeem(&token(9), key(3), UNIX_EPOCH).is_some_and(|again| !again.is_new));
    assert_eq!(registry.redeem(&token(9), key(4), UNIX_EPOCH), None);
    registry.take_next_key(key(1), UNIX_EPOCH);
    let upgraded = registry.by_name("tablet").unwrap();
    assert_eq!((upgraded.public_key, &upgraded.wireguard, &upgraded.forwards), (key(3), &None, &forwards));
    let text = toml::to_string(&registry).unwrap();
    assert_eq!(toml::from_str::<ClientRegistry>(&text).unwrap(), registry);
}

#[test]
fn an_invitation_of_a_wireguard_client_ends_with_the_client() {
    let token = InviteToken::new([7; InviteToken::LENGTH]);
    let invited = || {
        let mut registry = ClientRegistry::new();
        registry.add(Client { wireguard: Some(WireGuardClient::default()), ..client("phone", 1) }).unwrap();
        let expires = UNIX_EPOCH + Duration::from_secs(9);
        let token_sha256 = token.digest();
        let invitation =
            Invitation { name: "phone".to_owned(), token_sha256, expires, used_by: None, upgrades: None };
        registry.invite(invitation, UNIX_EPOCH).unwrap();
        registry
    };
    let mut registry = invited();
    registry.remove("phone", UNIX_EPOCH).unwrap();
    assert_eq!(registry.redeem(&token, key(3), UNIX_EPOCH), None);
    // In this registry, another client has taken the name.
    let mut registry = invited();
    registry.rename("phone", "tablet").unwrap();
    registry.remove("tablet", UNIX_EPOCH).unwrap();
    registry.add(client("other", 4)).unwrap();
    registry.rename("other", "phone").unwrap();
    assert_eq!(registry.redeem(&token, key(3), UNIX_EPOCH), None);
    // Removing the client also shuts out the key that the invitation enrolled.
    let mut registry = invited();
    registry.redeem(&token, key(3), UNIX_EPOCH).unwrap();
    registry.remove("phone", UNIX_EPOCH).unwrap();
    assert_eq!(registry.redeem(&token, key(3), UNIX_EPOCH), None);
    // An export that was made before the upgrade does not take the new key from the client.
    let mut registry = invited();
    let edited = registry.clone();
    registry.redeem(&token, key(3), UNIX_EPOCH).unwrap();
    registry.become_edited(edited, UNIX_EPOCH).unwrap();
    assert_eq!(registry.by_key(key(1)).unwrap().next_public_key, Some(key(3)));
}

#[test]
fn an_edited_client_that_is_new_here_keeps_its_lease_unless_somebody_has_it() {
    let mut registry: ClientRegistry = toml::from_str(FILE).unwrap();
    let mut edited = registry.clone();
    let leased =
        |name, number, last| Client { leased_ipv4: Some([10, 66, 0, last].into()), ..client(name, number) };
    edited.add(leased("new", 3, 12)).unwrap();
    registry.add(leased("rival", 4, 8)).unwrap();
    edited.add(leased("late", 5, 8)).unwrap();
    edited.add(leased("rival", 4, 7)).unwrap();
    registry.become_edited(edited, UNIX_EPOCH).unwrap();
    let lease = |name| registry.by_name(name).unwrap().leased_ipv4.map(|address| address.octets()[3]);
    assert_eq!([lease("new"), lease("late"), lease("rival")], [Some(12), None, Some(8)]);
}

#[test]
fn a_static_address_ends_a_sticky_lease_on_it() {
    let mut registry: ClientRegistry = toml::from_str(FILE).unwrap();
    registry.add(Client { ipv4: Some("10.66.0.2".parse().unwrap()), ..client("new", 3) }).unwrap();
    let laptop = registry.by_name("laptop").unwrap();
    assert_eq!((laptop.leased_ipv4, laptop.leased_ipv6.is_some()), (None, true));
}

#[test]
fn times_that_rfc_3339_cannot_write_are_written_as_the_nearest_it_can() {
    let mut registry = ClientRegistry::new();
    registry.add(Client { created: UNIX_EPOCH - Duration::from_secs(9), ..client("a", 1) }).unwrap();
    let far = UNIX_EPOCH + Duration::from_secs(400_000_000_000);
    registry.add(Client { created: far, ..client("b", 2) }).unwrap();
    let text = toml::to_string(&registry).unwrap();
    assert!(text.contains("1970-01-01T00:00:00Z") && text.contains("9999-12-31T23:59:59Z"), "{text}");
}

#[test]
fn removed_keys_and_open_invitations_are_read_in_pages() {
    let mut registry = ClientRegistry::new();
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    for number in [3, 1, 2] {
        registry.add(client(&format!("client{number}"), number)).unwrap();
        registry.remove(&format!("client{number}"), now).unwrap();
    }
    let removed = |after| registry.removed_after(after).map(|removed| removed.public_key).collect::<Vec<_>>();
    assert_eq!(removed(None), [key(1), key(2), key(3)]);
    assert_eq!(removed(Some(key(1))), [key(2), key(3)]);
    // A page may begin after a key that was allowed in the meantime.
    assert_eq!(removed(Some(key(0))), removed(None));
    assert!(removed(Some(key(3))).is_empty());

    for (number, name, expires) in [(1, "b", 60), (2, "a", 60), (3, "c", 60), (4, "gone", 0)] {
        let token_sha256 = InviteToken::new([number; InviteToken::LENGTH]).digest();
        let expires = now + Duration::from_secs(expires);
        let invitation =
            Invitation { name: name.into(), token_sha256, expires, used_by: None, upgrades: None };
        registry.invite(invitation, UNIX_EPOCH).unwrap();
    }
    let open =
        |after: &str| registry.open_after(after, now).map(|open| open.name.clone()).collect::<Vec<_>>();
    assert_eq!((open(""), open("a"), open("aa")), (names("abc"), names("bc"), names("bc")));
    assert_eq!(["b", "gone", "d"].map(|name| registry.is_invited(name, now)), [true, false, false]);
}

fn names(letters: &str) -> Vec<String> {
    letters.chars().map(String::from).collect()
}

fn client(name: &str, number: u8) -> Client {
    Client::new(name, key(number), UNIX_EPOCH)
}

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}
