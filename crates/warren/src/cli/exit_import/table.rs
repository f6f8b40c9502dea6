//! The table that an import prints before it changes anything.

use warren_control::NewClient;
use warren_daemon::output;

/// Formats the clients with their addresses and networks.
pub(super) fn table(planned: &[NewClient]) -> String {
    let rows = planned.iter().map(|client| {
        let addresses = [client.ipv4.map(|a| a.to_string()), client.ipv6.map(|a| a.to_string())];
        let prefixes = client.prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
        vec![
            client.name.clone(),
            addresses.into_iter().flatten().collect::<Vec<_>>().join(" "),
            prefixes.join(" "),
        ]
    });
    output::table(&["NAME", "ADDRESSES", "PREFIXES"], &rows.collect::<Vec<_>>())
}
