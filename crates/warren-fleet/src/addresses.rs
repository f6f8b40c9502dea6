//! The addresses of the store's members. The exit's host must reach them, so no network behind a client may contain one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use warren_fleet_link::MAX_ADDRESSES;

use crate::certificates::address_of;

/// The interval between look-ups once every member's address is known, and the interval until then.
const EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));

/// How long a look-up may take.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Looks the members up periodically. Reports their addresses at the start and at each change.
pub(crate) async fn watch(endpoints: Vec<String>, report: mpsc::Sender<Vec<IpAddr>>) {
    // A member whose name cannot be looked up now keeps its addresses.
    let mut known: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut told = BTreeSet::new();
    loop {
        for endpoint in &endpoints {
            let found = timeout(LOOK_UP, lookup_host(with_port(endpoint))).await;
            if let Ok(Ok(found)) = found {
                known.insert(endpoint, found.map(|address| address.ip()).collect());
            }
        }
        // Nothing is reported before all members are known, because the exit may still know more of them from
        // an earlier run.
        let is_complete = endpoints.iter().all(|endpoint| known.contains_key(endpoint.as_str()));
        let all: BTreeSet<IpAddr> = known.values().flatten().copied().take(MAX_ADDRESSES).collect();
        if is_complete && all != told {
            if report.send(all.iter().copied().collect()).await.is_err() {
                return;
            }
            told = all;
        }
        sleep(if is_complete { EVERY.0 } else { EVERY.1 }).await;
    }
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
    async fn addresses_are_told_once_and_all_together() {
        let endpoints = ["https://192.0.2.2:2379", "https://[2001:db8::1]:2379", "https://192.0.2.1:2379"];
        let (report, mut told) = mpsc::channel(1);
        let watching = tokio::spawn(watch(endpoints.map(str::to_owned).to_vec(), report));
        let expected: Vec<IpAddr> =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(told.recv().await, Some(expected));
        watching.abort();
    }
}
