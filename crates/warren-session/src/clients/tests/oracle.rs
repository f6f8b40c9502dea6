//! Compares the indexed registry with a plain list of clients, and tests its rows and undo.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::super::*;
use super::{client, key};
use crate::invite::InviteToken;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A change of a small registry. Names, keys, addresses and prefixes are few, so that they often collide.
#[derive(Clone, Debug)]
enum Step {
    Add(Client),
    Replace(Client),
    Remove(u8),
    Rename(u8, u8),
    Rotate(u8),
    Allow(u8),
    Invite(u8, u8, u64),
    Redeem(u8, u8, u64),
}

fn any_client() -> impl Strategy<Value = Client> {
    let address = || prop::option::weighted(0.3, 0..4u8);
    let prefixes = prop::collection::vec((0..4u8, 22..26u8), 0..3);
    let forwards = prop::collection::vec((1..12u16, 0..4u16), 0..3);
    (0..5u8, 1..6u8, prop::option::weighted(0.2, 1..6u8), address(), address(), prefixes, forwards).prop_map(
        |(name, number, next, ipv4, leased, prefixes, forwards)| Client {
            next_public_key: next.filter(|next| *next != number).map(key),
            ipv4: ipv4.map(|last| [10, 0, 0, last].into()),
            leased_ipv4: leased.map(|last| [10, 0, 0, last].into()),
            prefixes: prefixes.into_iter().map(|(third, length)| prefix(third, length)).collect(),
            forwards: forwards.into_iter().map(|(first, more)| forward(first, more)).collect(),
            ..client(&format!("c{name}"), number)
        },
    )
}

fn prefix(third: u8, length: u8) -> ipnet::IpNet {
    ipnet::Ipv4Net::new(Ipv4Addr::new(192, 168, third, 0), length).unwrap().trunc().into()
}

fn forward(first: u16, more: u16) -> Forward {
    PortRange::new(ForwardProtocol::Tcp, first, first + more).unwrap().into()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_client().prop_map(Step::Add),
        2 => any_client().prop_map(Step::Replace),
        2 => (0..5u8).prop_map(Step::Remove),
        1 => (0..5u8, 0..5u8).prop_map(|(old, new)| Step::Rename(old, new)),
        1 => (1..6u8).prop_map(Step::Rotate),
        1 => (1..6u8).prop_map(Step::Allow),
        2 => (0..5u8, 0..4u8, 0..9u64).prop_map(|(name, token, expires)| Step::Invite(name, token, expires)),
        2 => (0..4u8, 1..6u8, 0..9u64).prop_map(|(token, key, now)| Step::Redeem(token, key, now)),
    ]
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn take(registry: &mut ClientRegistry, step: &Step) -> Result<(), RegistryError> {
    let name = |number: u8| format!("c{number}");
    match step.clone() {
        Step::Add(client) => registry.add(client),
        Step::Replace(client) => registry.replace(client),
        Step::Remove(number) => registry.remove(&name(number), at(5)).map(drop),
        Step::Rename(old, new) => registry.rename(&name(old), &name(new)),
        Step::Rotate(number) => {
            registry.take_next_key(key(number), at(5));
            Ok(())
        }
        Step::Allow(number) => {
            registry.allow(key(number));
            Ok(())
        }
        Step::Invite(number, token, expires) => {
            let token_sha256 = InviteToken::new([token; 16]).digest();
            let invitation = Invitation {
                name: name(number),
                token_sha256,
                expires: at(expires),
                used_by: None,
                upgrades: None,
            };
            registry.invite(invitation, at(4))
        }
        Step::Redeem(token, number, now) => {
            registry.redeem(&InviteToken::new([token; 16]), key(number), at(now));
            Ok(())
        }
    }
}

/// Whether a client can be added. Compares it with every other client.
fn can_add(registry: &ClientRegistry, client: &Client) -> bool {
    let own: Vec<_> = client.keys().collect();
    let overlap = |one: &ipnet::IpNet, other: &ipnet::IpNet| one.contains(other) || other.contains(one);
    let is_once = |(position, prefix): (usize, &ipnet::IpNet)| {
        !client.prefixes[..position].iter().any(|other| overlap(other, prefix))
    };
    let ports = |client: &Client| -> Vec<u16> {
        client.forwards.iter().flat_map(|forward| forward.ports().first()..=forward.ports().last()).collect()
    };
    let (own_ports, mut once) = (ports(client), ports(client));
    once.sort_unstable();
    once.dedup();
    once.len() == own_ports.len()
        && registry.removed_after(None).all(|removed| !own.contains(&removed.public_key))
        && client.prefixes.iter().enumerate().all(is_once)
        && registry.iter().all(|other| {
            other.name != client.name
                && other.keys().all(|key| !own.contains(&key))
                && (client.ipv4.is_none() || other.ipv4 != client.ipv4)
                && ports(other).iter().all(|port| !own_ports.contains(port))
                && client.prefixes.iter().all(|own| !other.prefixes.iter().any(|other| overlap(own, other)))
        })
}

/// Checks a registry's invariants for every client.
fn check(registry: &ClientRegistry) -> Result<(), TestCaseError> {
    let clients: Vec<_> = registry.iter().collect();
    prop_assert_eq!(clients.len(), registry.len());
    prop_assert!(clients.is_sorted_by(|one, other| one.name < other.name));
    for client in &clients {
        prop_assert_eq!(registry.by_key(client.public_key), Some(*client));
        prop_assert_eq!(registry.by_name(&client.name), Some(*client));
        let next = client.next_public_key;
        prop_assert!(next.is_none_or(|next| registry.by_next_key(next) == Some(*client)));
        let others = clients.iter().filter(|other| other.name != client.name);
        let mut taken = others.flat_map(|other| other.lease().addresses());
        prop_assert!(taken.all(|address| !client.lease().contains(address)), "an address of two clients");
        let after: Vec<_> = registry.page(Some(&client.name), "").map(|client| &client.name).collect();
        prop_assert!(after.iter().all(|name| **name > client.name));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_registry_agrees_with_a_plain_list(steps in prop::collection::vec(step(), 1..60)) {
        let mut registry = ClientRegistry::new();
        for step in steps {
            let before = registry.clone();
            let expected = if let Step::Add(client) = &step { Some(can_add(&registry, client)) } else { None };
            let outcome = take(&mut registry, &step);
            if let Some(expected) = expected {
                prop_assert_eq!(outcome.is_ok(), expected, "{:?}", step);
            }
            prop_assert!(outcome.is_ok() || registry == before, "{:?} failed and changed something", step);
            check(&registry)?;
        }
    }

    #[test]
    fn rows_make_the_same_registry_and_undo_restores_it(steps in prop::collection::vec(step(), 1..60)) {
        let mut registry = ClientRegistry::new();
        let mut log = Vec::new();
        for step in &steps {
            let before = registry.clone();
            let proposed = registry.changes_of(|registry| take(registry, step));
            prop_assert_eq!(&registry, &before, "a change that is only tried");
            let made = registry.transact(|registry| take(registry, step));
            match (proposed, made) {
                (Ok(((), proposed)), Ok(((), undo))) => {
                    prop_assert_eq!(&registry.changes_since(&undo), &proposed);
                    log.extend(proposed);
                    let mut undone = registry.clone();
                    undone.restore(undo);
                    prop_assert_eq!(&undone, &before);
                }
                (proposed, made) => prop_assert!(proposed.is_err() && made.is_err() && registry == before),
            }
            let (of_rows, of_log) = (ClientRegistry::from_rows(registry.rows()), ClientRegistry::from_rows(log.clone()));
            prop_assert_eq!(of_rows.as_ref(), Ok(&registry));
            prop_assert_eq!(of_log.as_ref(), Ok(&registry));
        }
    }

    #[test]
    fn the_store_s_rows_win_whatever_was_there(
        steps in prop::collection::vec(step(), 1..30), others in prop::collection::vec(step(), 1..30),
    ) {
        let (mut here, mut there) = (ClientRegistry::new(), ClientRegistry::new());
        steps.iter().for_each(|step| drop(take(&mut here, step)));
        others.iter().for_each(|step| drop(take(&mut there, step)));
        // Rows that exist only in `here` are deleted. The map sorts all rows as an exit does.
        let mut rows: std::collections::BTreeMap<_, _> =
            here.rows().map(|row| (row.id(), there.row(row.id()))).collect();
        rows.extend(there.rows().map(|row| (row.id(), row)));
        prop_assert_eq!(here.take_over(rows.into_values().collect()), []);
        check(&here)?;
        prop_assert_eq!(&here, &there);
    }
}
