//! The addresses of the store's members. The exit's host must reach them, so no network behind a client may contain one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use warren_fleet_link::MAX_ADDRESSES;

use crate::certificates::address_of;
use crate::link::Found;

/// The interval between look-ups once every member's address is known, and the interval until then.
const EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));

/// How long a look-up may take.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The known addresses of each member. A member whose name cannot be looked up now keeps its addresses.
#[derive(Default)]
struct Known(BTreeMap<String, BTreeSet<IpAddr>>);

impl Known {
    fn found(&self, endpoints: &[String]) -> Found {
        let all: BTreeSet<IpAddr> = self.0.values().flatten().copied().take(MAX_ADDRESSES).collect();
        let is_whole = endpoints.iter().all(|endpoint| self.0.contains_key(endpoint));
        Found { addresses: all.into_iter().collect(), is_whole }
    }
}

/// The addresses that the endpoints contain. `None` if all endpoints have names.
pub(crate) fn without_look_up(endpoints: &[String]) -> Option<Found> {
    let literal = |endpoint: &String| Some((endpoint.clone(), [literal(endpoint)?].into()));
    let known = Known(endpoints.iter().filter_map(literal).collect());
    (!known.0.is_empty()).then(|| known.found(endpoints))
}

/// Looks the members up periodically. Reports each member's addresses as soon as they are found, and at each change.
pub(crate) async fn watch(endpoints: Vec<String>, report: mpsc::Sender<Found>) {
    let mut known = Known::default();
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
            if !addresses.is_empty() {
                known.0.insert(endpoint, addresses);
            }
            let found = known.found(&endpoints);
            if !found.addresses.is_empty() && told.as_ref() != Some(&found) {
                if report.send(found.clone()).await.is_err() {
                    return;
                }
                told = Some(found);
            }
        }
        let is_whole = told.as_ref().is_some_and(|told| told.is_whole);
        sleep(if is_whole { EVERY.0 } else { EVERY.1 }).await;
    }
}

/// The address of an endpoint that has no name.
fn literal(endpoint: &str) -> Option<IpAddr> {
    with_port(endpoint).parse::<SocketAddr>().ok().map(|address| address.ip())
}

/// Host and port of an endpoint. Only the host counts.
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
        let [two, v6, one] =
            ["192.0.2.2", "2001:db8::1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
        let endpoints = ["https://192.0.2.2:2379", "https://[2001:db8::1]:2379", "https://192.0.2.1:2379"];
        let endpoints = endpoints.map(str::to_owned).to_vec();
        let all = Found { addresses: vec![one, two, v6], is_whole: true };
        assert_eq!(without_look_up(&endpoints), Some(all.clone()));
        assert_eq!(last_told(endpoints, true).await, all);
    }

    #[tokio::test]
    async fn a_member_whose_name_nobody_knows_hides_no_other() {
        let endpoints = ["https://192.0.2.2:2379", "https://nobody.invalid:2379", "https://192.0.2.1:2379"];
        let endpoints = endpoints.map(str::to_owned).to_vec();
        let known = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap()).to_vec();
        let some = Found { addresses: known, is_whole: false };
        assert_eq!(without_look_up(&endpoints), Some(some.clone()));
        assert_eq!(last_told(endpoints, false).await, some);
        assert_eq!(without_look_up(&["https://nobody.invalid:2379".to_owned()]), None);
    }

    /// The report once two addresses, or all of them, are known.
    async fn last_told(endpoints: Vec<String>, is_whole: bool) -> Found {
        let (report, mut told) = mpsc::channel(1);
        let watching = tokio::spawn(watch(endpoints, report));
        let found = loop {
            let found = told.recv().await.unwrap();
            if found.is_whole || !is_whole && found.addresses.len() == 2 {
                break found;
            }
        };
        watching.abort();
        found
    }
}
