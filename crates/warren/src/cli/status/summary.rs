//! Formats a status in ten lines of 80 columns, plus one line for a fleet and one for each problem.

use super::condition::condition;
use super::fleet;
use super::layout::{COLUMNS, Fields};
use super::report::{add_trouble, dropped_by_reason, fleet, headline, moving};
use super::units::{bit_rate, bytes, packet_rate, percent, round_trip};
use warren_control::status::{
    ClientStatus, ConnectionStatus, ExitStatus, Rates, Status, percent as percent_of,
};

/// The ten lines.
pub(super) fn summary(status: &Status) -> String {
    let mut fields = Fields::default();
    if let Some(client) = &status.client {
        add_client(&mut fields, status, client);
    }
    if let Some(exit) = &status.exit {
        add_exit(&mut fields, exit);
    }
    fields.add("device", device(status));
    if let Some(client) = &status.client {
        fields.add("kill switch", kill_switch(client));
        fields.add("connections", connections(status, client));
    }
    add_traffic(&mut fields, status);
    fields.add("dropped", dropped(status));
    add_trouble(&mut fields, status);
    format!("{}\n{fields}", headline(status))
}

fn add_client(fields: &mut Fields, status: &Status, client: &ClientStatus) {
    let address = client.exit.address.map(|address| address.to_string());
    // If the endpoint is an address, the address is not printed a second time.
    let address = address.filter(|address| *address != client.exit.endpoint);
    let address = address.map(|address| format!(" ({address})")).unwrap_or_default();
    let distance = status.shortest_rtt_ms().map(|rtt| format!(", {}", round_trip(rtt))).unwrap_or_default();
    fields.add("exit", format!("{}{address}{distance}", client.exit.endpoint));
    fields.add_some("next exit key", client.exit.next_public_key.clone());
    fields.add_some("fleet", fleet(client));
    fields.add_some("moving", moving(client));
    let addresses = client.session.as_ref().map(|session| [&session.ipv4, &session.ipv6]);
    let addresses: Vec<&str> = addresses.into_iter().flatten().flatten().map(String::as_str).collect();
    fields.add("addresses", if addresses.is_empty() { "none yet".to_owned() } else { addresses.join(", ") });
}

fn add_exit(fields: &mut Fields, exit: &ExitStatus) {
    let listen: Vec<String> = exit.listen.iter().map(ToString::to_string).collect();
    fields.add("listening", fitting("UDP ", &listen));
    if let Some(wireguard) = &exit.wireguard {
        let listen: Vec<String> = wireguard.listen.iter().map(ToString::to_string).collect();
        fields.add("wireguard", fitting("UDP ", &listen));
    }
    fields.add("public key", exit.public_key.clone());
    fields.add_some("old key", exit.old_public_key.clone());
    let counts = format!("{} enrolled, {} connected", exit.clients.enrolled, exit.clients.connected);
    let names: Vec<String> = exit.sessions.iter().map(|session| session.name.clone()).collect();
    fields.add("clients", if names.is_empty() { counts } else { fitting(&format!("{counts}: "), &names) });
    let turned_away: u64 = exit.strangers.values().sum();
    let answer = if exit.silent { "get no answer" } else { "get an answer" };
    fields.add("strangers", format!("{answer}, {turned_away} turned away"));
    exit.fleet.iter().for_each(|fleet| fleet::add_line(fields, fleet));
}

fn device(status: &Status) -> String {
    let device = status.device.as_ref().map(|device| format!("{}, MTU {}", device.name, device.mtu));
    let device = device.unwrap_or_else(|| "none yet".to_owned());
    match status.host_changes.len() {
        0 => device,
        1 => format!("{device}; 1 change on this host, see --changes"),
        many => format!("{device}; {many} changes on this host, see --changes"),
    }
}

fn kill_switch(client: &ClientStatus) -> String {
    match client.kill_switch {
        true => format!("closed until `warren down {}`", client.profile),
        false => "off".to_owned(),
    }
}

/// Describes how many connections there are, and the condition of the path with the highest loss.
fn connections(status: &Status, client: &ClientStatus) -> String {
    let attached = status.connections.iter().filter(|connection| connection.index.is_some()).count();
    let granted = client.session.as_ref().map(|session| session.connections).unwrap_or_default();
    let worst = status.connections.iter().max_by(|one, other| {
        let loss = |connection: &ConnectionStatus| connection.repair.loss_percent;
        loss(one).total_cmp(&loss(other))
    });
    let words = worst.map(condition).filter(|words| !words.is_empty());
    let words = words.map(|words| format!("; {words}")).unwrap_or_default();
    let reconnects = match client.reconnects {
        0 => String::new(),
        1 => ", 1 reconnect".to_owned(),
        many => format!(", {many} reconnects"),
    };
    format!("{attached} of {granted}{reconnects}{words}")
}

fn add_traffic(fields: &mut Fields, status: &Status) {
    let rates = &status.rates;
    let total = |name: &str| bytes(status.totals.get(name).copied().unwrap_or_default());
    let line =
        |bits, packets, total| format!("{}, {}; {total} in total", bit_rate(bits), packet_rate(packets));
    let Rates { bits_per_second_out, packets_per_second_out, .. } = *rates;
    fields.add("out", line(bits_per_second_out, packets_per_second_out, total("tun_read_bytes")));
    let Rates { bits_per_second_in, packets_per_second_in, .. } = *rates;
    fields.add("in", line(bits_per_second_in, packets_per_second_in, total("tun_written_bytes")));
    let sum = |of: fn(&ConnectionStatus) -> u64| status.connections.iter().map(of).sum();
    let lost = percent_of(sum(|one| one.lost_packets), sum(|one| one.sent_packets));
    fields.add("loss", format!("{} now, {} in total", percent(rates.loss_percent), percent(lost)));
}

fn dropped(status: &Status) -> String {
    let mut reasons = dropped_by_reason(status);
    // The most frequent reasons come first, because the line may not have room for all reasons.
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if named.is_empty() { "nothing".to_owned() } else { fitting("", &named) }
}

/// Returns as many items as fit on a line after `lead`, and how many more there are.
fn fitting(lead: &str, items: &[String]) -> String {
    let mut text = lead.to_owned();
    for (number, item) in items.iter().enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        let left = items.len() - number - 1;
        // After the last item, no room is needed for the count of remaining items.
        let room = VALUE - if left == 0 { 0 } else { " and 9999 more".len() };
        if number > 0 && text.chars().count() + separator.len() + item.chars().count() > room {
            return format!("{text} and {} more", left + 1);
        }
        text += separator;
        text += item;
    }
    text
}

/// Number of columns for a value, next to the longest label and its margins.
const VALUE: usize = COLUMNS - "  kill switch  ".len();

#[cfg(test)]
mod tests {
    use warren_control::status::{
        ClientCounts, ClientSessionStatus, DeviceStatus, MoveStatus, SessionStatus,
    };

    use super::super::watch::example;
    use super::*;

    #[test]
    fn ten_lines_say_what_a_client_does() {
        let mut status = example(&[(0, 10, 4), (1, 10, 0)]);
        let client = status.client.as_mut().unwrap();
        client.session = Some(ClientSessionStatus {
            id: 1,
            ipv4: Some("10.66.0.2/16".to_owned()),
            ipv6: Some("fd66:6666::2/64".to_owned()),
            gateway_ipv4: None,
            gateway_ipv6: None,
            mtu: 1_380,
            connections: 4,
            prefixes: Vec::new(),
        });
        client.kill_switch = true;
        client.reconnects = 2;
        client.dropped_queries = 7;
        status.device = Some(DeviceStatus { name: "warren0".to_owned(), mtu: 1_380, offload: true });
        status.host_changes = vec![String::new(); 23];
        status.drops.extend([("queue_full".to_owned(), 3), ("spoofed".to_owned(), 12)]);

        let text = summary(&status);

        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(
            lines[1..],
            [
                "  exit         exit.example.net:443, 10.5 ms",
                "  addresses    10.66.0.2/16, fd66:6666::2/64",
                "  device       warren0, MTU 1380; 23 changes on this host, see --changes",
                "  kill switch  closed until `warren down home`",
                "  connections  2 of 4, 2 reconnects",
                "  out          0 bit/s, 0 packets/s; 0 B in total",
                "  in           0 bit/s, 0 packets/s; 0 B in total",
                "  loss         0 % now, 50.0 % in total",
                "  dropped      spoofed 12, dns_queries 7, queue_full 3",
            ]
        );
    }

    #[test]
    fn a_move_is_told_in_plain_words() {
        let mut status = example(&[]);
        let mut line_of = |has_switched, flows_at_old_exit| {
            let (from, to) = ("ams1".to_owned(), "fra1".to_owned());
            let moving = MoveStatus { from, to, has_switched, flows_at_old_exit, flows_without_room: 0 };
            status.client.as_mut().unwrap().moving = Some(moving);
            let text = summary(&status);
            text.lines().find(|line| line.contains("moving")).unwrap().trim().to_owned()
        };
        assert_eq!(line_of(true, 3), "moving       to fra1; 3 flows finish at ams1");
        assert_eq!(line_of(true, 1), "moving       to fra1; 1 flow finishes at ams1");
        assert_eq!(
            line_of(false, 0),
            "moving       to fra1; everything goes through ams1 until fra1 carries packets"
        );
        assert!(!summary(&example(&[])).contains("moving"));
    }

    #[test]
    fn what_is_wrong_has_a_line_of_its_own_at_the_end() {
        let mut status = example(&[]);
        let client = status.client.as_mut().unwrap();
        client.warnings = vec!["no resolver".to_owned()];
        client.last_error = Some("it does not answer".to_owned());
        let text = summary(&status);
        assert_eq!(text.lines().count(), 12, "{text}");
        for line in ["warning      no resolver", "last error   it does not answer"] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn ten_lines_say_what_an_exit_does_however_many_clients_it_has() {
        let session = |number: u64| SessionStatus {
            id: number,
            name: format!("laptop-of-user-{number}"),
            public_key: String::new(),
            ipv4: None,
            ipv6: None,
            since_seconds: 1.0,
            connections: vec![0],
            has_other_exit: None,
        };
        let mut status = example(&[]);
        status.client = None;
        status.exit = Some(ExitStatus {
            wireguard: None,
            listen: vec!["0.0.0.0:443".parse().unwrap(), "[::]:443".parse().unwrap()],
            public_key: "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=".to_owned(),
            old_public_key: None,
            clients: ClientCounts { enrolled: 2_000, connected: 1_000 },
            sessions: (0..1_000).map(session).collect(),
            silent: true,
            strangers: [("no_proof".to_owned(), 7)].into(),
            handshakes_in_flight: 0,
            handshakes_timed_out: 0,
            is_disk_failing: false,
            fleet: None,
        });

        let text = summary(&status);

        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.contains("2000 enrolled, 1000 connected: laptop-of-user-0 and 999 more"), "{text}");
        assert!(text.contains("get no answer, 7 turned away"), "{text}");
    }

    #[test]
    fn as_many_items_as_fit_are_named() {
        let items: Vec<String> = (0..40).map(|number| format!("item-{number}")).collect();
        let text = fitting("", &items);
        assert!(text.chars().count() <= VALUE && text.ends_with(" more"), "{text}");
        assert_eq!(fitting("UDP ", &items[..2]), "UDP item-0, item-1");
    }
}
