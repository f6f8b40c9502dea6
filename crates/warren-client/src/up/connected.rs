//! The line that `warren up` prints once traffic flows.

use warren_config::ProfileName;
use warren_control::status::{ClientStatus, Status};

/// Returns the line, such as `connected to home, 12 ms, IPv4 and IPv6`. If the profile (`has_other_exits`) or its fleet has other
/// exits, the line contains the name of the exit in use. Parts that are missing from the status are left out.
pub(crate) fn line(profile: &ProfileName, has_other_exits: bool, status: Option<&Status>) -> String {
    let client = status.and_then(|status| status.client.as_ref());
    if let Some(network) = client.and_then(|client| client.resting.as_ref()) {
        return format!(
            "{profile} is resting on the trusted network {network}; `warren up {profile}` as root connects anyway"
        );
    }
    let is_choice = |client: &&ClientStatus| {
        has_other_exits || client.roster.as_ref().is_some_and(|fleet| fleet.exits > 1)
    };
    let exit = client.filter(is_choice).map(|client| client.exit.endpoint.as_str());
    let name = match exit {
        Some(exit) => format!("{profile} by {exit}"),
        None => profile.to_string(),
    };
    let parts = [Some(name), status.and_then(round_trip), client.and_then(versions).map(str::to_owned)];
    format!("connected to {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Formats the shortest round-trip time of the connections: below 10 ms in tenths of a millisecond, otherwise in whole
/// milliseconds.
fn round_trip(status: &Status) -> Option<String> {
    let shortest = status.shortest_rtt_ms()?;
    // From 9.95 ms on, one digit after the point would print as "10.0".
    Some(if shortest < 9.95 { format!("{shortest:.1} ms") } else { format!("{shortest:.0} ms") })
}

/// The versions of IP that the tunnel carries.
fn versions(client: &ClientStatus) -> Option<&'static str> {
    let session = client.session.as_ref()?;
    match (session.ipv4.is_some(), session.ipv6.is_some()) {
        (true, true) => Some("IPv4 and IPv6"),
        (true, false) => Some("IPv4 only"),
        (false, true) => Some("IPv6 only"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use warren_control::status::{
        ClientSessionStatus, ConnectionStatus, ExitPeer, Observed, RateMeter, Sandbox, State,
    };
    use warren_tunnel::Snapshot;
    use warren_tunnel::tuning::Tuning;

    use super::*;

    #[test]
    fn line_names_profile_round_trip_and_versions_of_ip() {
        let home: ProfileName = "home".parse().unwrap();
        let line = |has_others, status: Option<&Status>| line(&home, has_others, status);
        let full = status(&[12.4, 30.0, 0.0], true, true);
        assert_eq!(line(false, Some(&full)), "connected to home, 12 ms, IPv4 and IPv6");
        assert_eq!(line(false, Some(&status(&[0.42], true, false))), "connected to home, 0.4 ms, IPv4 only");
        assert_eq!(line(false, Some(&status(&[0.0], false, true))), "connected to home, IPv6 only");
        assert_eq!(line(false, None), "connected to home");

        assert_eq!(
            line(true, Some(&full)),
            "connected to home by 192.0.2.2:443, 12 ms, IPv4 and IPv6",
            "the exit in use is named"
        );
    }

    fn status(round_trips: &[f64], ipv4: bool, ipv6: bool) -> Status {
        let client = ClientStatus {
            profile: "home".to_owned(),
            exit: ExitPeer {
                endpoint: "192.0.2.2:443".to_owned(),
                address: None,
                public_key: String::new(),
                next_public_key: None,
            },
            session: Some(ClientSessionStatus {
                id: 1,
                ipv4: ipv4.then(|| "10.66.0.2/16".to_owned()),
                ipv6: ipv6.then(|| "fd66::2/64".to_owned()),
                gateway_ipv4: None,
                gateway_ipv6: None,
                mtu: 1_380,
                connections: 4,
                prefixes: Vec::new(),
            }),
            refused: None,
            error: None,
            host_outside: false,
            warnings: Vec::new(),
            last_error: None,
            resting: None,
            roster: None,
            moving: None,
            kill_switch: false,
            reconnects: 0,
            dropped_queries: 0,
        };
        let observed = Observed {
            state: State::Up,
            since: Instant::now(),
            device: None,
            host_changes: Vec::new(),
            reload_error: None,
            tuning: &Tuning::default(),
            snapshot: Snapshot::default(),
            meter: &RateMeter::new(Instant::now()),
            sandbox: Sandbox::default(),
        };
        let connection = |rtt_ms: &f64| ConnectionStatus {
            session: Some(1),
            rtt_ms: *rtt_ms,
            ..ConnectionStatus::default()
        };
        // This connection belongs to the second session, at the exit to which the client moves.
        let beside = ConnectionStatus { session: Some(2), rtt_ms: 0.1, ..ConnectionStatus::default() };
        let connections = round_trips.iter().map(connection).chain([beside]).collect();
        Status { connections, ..Status::client(client, observed) }
    }
}
