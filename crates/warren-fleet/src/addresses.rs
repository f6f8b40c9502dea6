//! The addresses of the store's members. The exit's host must reach these addresses, so no network behind a client may contain
//! one of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use warren_fleet_link::{MAX_ADDRESSES, StoreMembers};

use crate::tls::address_of;

/// The interval between look-ups once every member's address is known, and the interval until then.
const EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));

/// How long a look-up may take.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The members with the addresses that their endpoints contain. Members with names have no address yet.
pub(crate) fn without_look_up(endpoints: &[String]) -> StoreMembers {
    endpoints.iter().map(|endpoint| (endpoint.clone(), literal(endpoint).into_iter().collect())).collect()
}

/// Looks the members up periodically. Reports each member's addresses as soon as they are found, and whenever they change. A member
/// whose name cannot be looked up now keeps its addresses.
pub(crate) async fn watch(endpoints: Vec<String>, report: mpsc::Sender<StoreMembers>) {
    let mut known = without_look_up(&endpoints);
    let mut told = None;
    loop {
        // All look-ups run at once, so a look-up without an answer delays no other.
        let mut looking = JoinSet::new();
        for endpoint in endpoints.clone() {
            looking.spawn(async move {
                let found = timeout(LOOK_UP, lookup_host(with_port(&endpoint))).await.ok()?.ok()?;
                Some((endpoint, found.map(|address| address.ip()).collect::<BTreeSet<_>>()))
            });
        }
        while let Some(looked) = looking.join_next().await {
            let Ok(Some((endpoint, addresses))) = looked else { continue };
            // An empty answer says nothing, so the earlier addresses stay.
            if addresses.is_empty() {
                continue;
            }
            known.insert(endpoint, addresses);
            let found = within_limits(known.clone());
            if told.as_ref() != Some(&found) {
                if report.send(found.clone()).await.is_err() {
                    return;
                }
                told = Some(found);
            }
        }
        sleep(if are_all_known(&known) { EVERY.0 } else { EVERY.1 }).await;
    }
}

fn are_all_known(members: &StoreMembers) -> bool {
    members.values().all(|addresses| !addresses.is_empty())
}

/// Drops addresses that do not fit into a message. A member that keeps no address counts as unknown.
fn within_limits(mut members: StoreMembers) -> StoreMembers {
    let mut left = MAX_ADDRESSES;
    for addresses in members.values_mut() {
        *addresses = std::mem::take(addresses).into_iter().take(left).collect();
        left -= addresses.len();
    }
    members
}

/// The address of an endpoint whose host is an IP address.
fn literal(endpoint: &str) -> Option<IpAddr> {
    with_port(endpoint).parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// Host and port of an endpoint, for the look-up. The port does not matter.
fn with_port(endpoint: &str) -> String {
    let authority = address_of(endpoint);
    let has_port =
        authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    if has_port { authority.to_owned() } else { format!("{authority}:2379") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_looked_up_by_its_host() {
        let cases = [
            ("https://192.0.2.1:2379", "192.0.2.1:2379"),
            ("https://a.example.net/", "a.example.net:2379"),
            ("https://[2001:db8::1]:2379/", "[2001:db8::1]:2379"),
            ("https://[2001:db8::1]", "[2001:db8::1]:2379"),
        ];
        for (endpoint, expected) in cases {
            assert_eq!(with_port(endpoint), expected);
        }
    }

    #[tokio::test]
    async fn addresses_are_told_as_they_are_found_and_all_of_them_in_the_end() {
        let members = [
            ("https://192.0.2.2:2379", Some("192.0.2.2")),
            ("https://[2001:db8::1]:2379", Some("2001:db8::1")),
            ("https://192.0.2.1:2379", Some("192.0.2.1")),
        ];
        let (endpoints, members) = endpoints_of(&members);
        assert_eq!(without_look_up(&endpoints), members);
        assert_eq!(last_told(endpoints, 3).await, members);
    }

    #[tokio::test]
    async fn a_member_whose_name_nobody_knows_hides_no_other() {
        let members = [
            ("https://192.0.2.2:2379", Some("192.0.2.2")),
            ("https://nobody.invalid:2379", None),
            ("https://192.0.2.1:2379", Some("192.0.2.1")),
        ];
        let (endpoints, members) = endpoints_of(&members);
        // The exit must also learn of the member without an address.
        assert_eq!(without_look_up(&endpoints), members);
        assert_eq!(last_told(endpoints, 2).await, members);
    }

    #[test]
    fn a_member_whose_addresses_do_not_fit_counts_as_unknown() {
        let addresses = |count: usize| {
            let numbers = (0..=u32::MAX).take(count);
            numbers.map(|number| IpAddr::from(number.to_be_bytes())).collect::<BTreeSet<_>>()
        };
        let members =
            |a, b| StoreMembers::from([("a".to_owned(), addresses(a)), ("b".to_owned(), addresses(b))]);
        let of_both = |members: StoreMembers| members.values().map(BTreeSet::len).collect::<Vec<_>>();
        assert_eq!(of_both(within_limits(members(MAX_ADDRESSES + 1, 1))), [MAX_ADDRESSES, 0]);
        assert_eq!(of_both(within_limits(members(MAX_ADDRESSES - 1, 1))), [MAX_ADDRESSES - 1, 1]);
    }

    fn endpoints_of(members: &[(&str, Option<&str>)]) -> (Vec<String>, StoreMembers) {
        let member = |&(endpoint, address): &(&str, Option<&str>)| {
            (endpoint.to_owned(), address.into_iter().map(|address| address.parse().unwrap()).collect())
        };
        (
            members.iter().map(|(endpoint, _)| (*endpoint).to_owned()).collect(),
            members.iter().map(member).collect(),
        )
    }

    /// Returns the report once the addresses of this many members are known.
    async fn last_told(endpoints: Vec<String>, known: usize) -> StoreMembers {
        let (report, mut told) = mpsc::channel(1);
        let watching = tokio::spawn(watch(endpoints, report));
        let found = loop {
            let found = told.recv().await.unwrap();
            if found.values().filter(|addresses| !addresses.is_empty()).count() == known {
                break found;
            }
        };
        watching.abort();
        found
    }
}
