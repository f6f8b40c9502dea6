//! All of a status as text, in 80 columns.

use super::condition::details;
use super::fleet;
use super::layout::{Fields, hanging};
use super::units::{bit_rate, bytes, moment, packet_rate, percent, round_trip, time};
use warren_control::status::{
    ClientStatus, ConnectionStatus, ExitStatus, MoveStatus, Rates, RefusedStatus, SessionStatus, Status,
    percent as percent_of,
};
use warren_daemon::output;
use warren_packet::reason::DropReason;

/// The whole report.
pub(super) fn report(status: &Status) -> String {
    let mut text = format!("{}\n{}", headline(status), fields(status));
    if let Some(exit) = &status.exit {
        text += &exit.fleet.as_ref().map(fleet::exits).unwrap_or_default();
        text += &sessions(status, exit);
    }
    text + &connections(status) + &paths(status) + &drops(status) + &host_changes(status)
}

/// The daemon's name, its state, and since when.
pub(super) fn headline(status: &Status) -> String {
    let name = status.client.as_ref().map_or("exit", |client| client.profile.as_str());
    let resting = status.client.as_ref().and_then(|client| client.resting.as_ref());
    let state = resting.map(|network| format!("resting on the trusted network {network}"));
    format!(
        "{name}: {} for {}, since {}",
        state.as_deref().unwrap_or(status.state.name()),
        time(status.since_seconds),
        moment(&status.since)
    )
}

fn fields(status: &Status) -> Fields {
    let mut fields = Fields::default();
    if let Some(client) = &status.client {
        add_client(&mut fields, client);
    }
    if let Some(exit) = &status.exit {
        add_exit(&mut fields, exit);
    }
    add_trouble(&mut fields, status);
    if let Some(device) = &status.device {
        let offload = if device.offload { "on" } else { "off" };
        fields.add("device", format!("{}, MTU {}, offload {offload}", device.name, device.mtu));
    }
    add_traffic(&mut fields, status);
    let process = &status.process;
    fields.add(
        "process",
        format!(
            "{}, {} of memory, {} threads, {} descriptors",
            status.pid,
            bytes(process.rss_kib * 1024),
            process.threads,
            process.fds
        ),
    );
    fields
}

fn add_client(fields: &mut Fields, client: &ClientStatus) {
    let address = client.exit.address.map(|address| address.to_string());
    // If the endpoint is an address, the address is not printed a second time.
    let address = address.filter(|address| *address != client.exit.endpoint);
    let address = address.map(|address| format!(" ({address})")).unwrap_or_default();
    fields.add("exit", format!("{}{address}", client.exit.endpoint));
    fields.add_some("next exit key", client.exit.next_public_key.clone());
    fields.add_some("fleet", fleet(client));
    fields.add_some("moving", moving(client));
    if let Some(session) = &client.session {
        let addresses: Vec<&str> =
            [&session.ipv4, &session.ipv6].into_iter().flatten().map(String::as_str).collect();
        fields.add("addresses", addresses.join(", "));
    }
    if client.kill_switch {
        let name = &client.profile;
        fields.add(
            "kill switch",
            format!("closed: nothing leaves outside the tunnel until `warren down {name}`"),
        );
    }
    if client.reconnects > 0 {
        fields.add("reconnects", client.reconnects.to_string());
    }
}

/// Describes the exit to which the client moves, and how many flows still use the old one.
pub(super) fn moving(client: &ClientStatus) -> Option<String> {
    let MoveStatus { from, to, has_switched, flows_at_old_exit, .. } = client.moving.as_ref()?;
    Some(match (has_switched, flows_at_old_exit) {
        (false, _) => format!("to {to}; everything goes through {from} until {to} carries packets"),
        (true, 0) => format!("to {to}; no flow is left at {from}"),
        (true, 1) => format!("to {to}; 1 flow finishes at {from}"),
        (true, flows) => format!("to {to}; {flows} flows finish at {from}"),
    })
}

/// Describes the fleet: its name, its roster's serial number, and the name of the exit in use.
pub(super) fn fleet(client: &ClientStatus) -> Option<String> {
    let fleet = client.roster.as_ref()?;
    let exit = fleet.exit.as_ref().map(|exit| format!(", exit {exit}")).unwrap_or_default();
    Some(format!("{}, roster {}{exit}", fleet.name, fleet.serial))
}

/// Adds a line for each problem. Adds none if all is well.
pub(super) fn add_trouble(fields: &mut Fields, status: &Status) {
    if let Some(client) = &status.client {
        if let Some(refused) = &client.refused {
            add_refused(fields, client, refused);
        }
        fields.add_some("error", client.error.clone());
        client.warnings.iter().for_each(|warning| fields.add("warning", warning.clone()));
        fields.add_some("last error", client.last_error.clone());
    }
    if status.exit.as_ref().is_some_and(|exit| exit.is_disk_failing) {
        fields.add(
            "disk",
            "changes of clients cannot be written, so a removed client may come back when this exit restarts; make room on the disk"
                .to_owned(),
        );
    }
    if let Some(fleet) = status.exit.as_ref().and_then(|exit| exit.fleet.as_ref()) {
        fleet::add_trouble(fields, fleet);
    }
    fields.add_some("reload", status.reload_error.clone());
}

/// Adds the exit's reason for a refusal, and what happens next.
fn add_refused(fields: &mut Fields, client: &ClientStatus, refused: &RefusedStatus) {
    let name = &client.profile;
    fields.add("refused", refused.message.clone());
    let again = match refused.asked_again_in_seconds {
        Some(seconds) => {
            format!(
                "the daemon asks the exit again in {}, or at once if you run `warren up {name}`",
                time(seconds)
            )
        }
        None => format!("`warren up {name}` asks the exit again"),
    };
    fields.add("closed", format!("traffic for the tunnel goes nowhere until `warren down {name}`; {again}"));
}

fn add_exit(fields: &mut Fields, exit: &ExitStatus) {
    let listen: Vec<String> = exit.listen.iter().map(ToString::to_string).collect();
    fields.add("listening", format!("UDP {}", listen.join(", ")));
    if let Some(wireguard) = &exit.wireguard {
        let listen: Vec<String> = wireguard.listen.iter().map(ToString::to_string).collect();
        fields.add("wireguard", format!("UDP {}, key {}", listen.join(", "), wireguard.public_key));
    }
    fields.add("public key", exit.public_key.clone());
    fields.add_some("old key", exit.old_public_key.clone());
    fields
        .add("clients", format!("{} enrolled, {} connected", exit.clients.enrolled, exit.clients.connected));
    fields.add("strangers", strangers(exit));
    exit.fleet.iter().for_each(|fleet| fleet::add_line(fields, fleet));
}

/// Describes whether the exit answers strangers, and how many were turned away.
fn strangers(exit: &ExitStatus) -> String {
    let mut text = if exit.silent { "get no answer".to_owned() } else { "get an answer".to_owned() };
    for (reason, count) in exit.strangers.iter().filter(|(_, count)| **count > 0) {
        text += &format!(", {reason} {count}");
    }
    text
}

fn add_traffic(fields: &mut Fields, status: &Status) {
    let Rates { seconds, loss_percent, .. } = status.rates;
    let Rates { bits_per_second_out, bits_per_second_in, .. } = status.rates;
    let Rates { packets_per_second_out, packets_per_second_in, .. } = status.rates;
    let total = |name: &str| status.totals.get(name).copied().unwrap_or_default();
    fields.add("out", {
        let (rate, packets) = (bit_rate(bits_per_second_out), packet_rate(packets_per_second_out));
        let sent = total("carrier_sent_packets");
        format!("{rate}, {packets}; total {}, {sent} packets", bytes(total("tun_read_bytes")))
    });
    fields.add("in", {
        let (rate, packets) = (bit_rate(bits_per_second_in), packet_rate(packets_per_second_in));
        let written = total("tun_written_packets");
        format!("{rate}, {packets}; total {}, {written} packets", bytes(total("tun_written_bytes")))
    });
    if status.connections.is_empty() {
        return;
    }
    let sum = |of: fn(&ConnectionStatus) -> u64| status.connections.iter().map(of).sum();
    let lost = percent_of(sum(|one| one.lost_packets), sum(|one| one.sent_packets));
    fields.add(
        "loss",
        match seconds > 0.0 {
            true => {
                format!("{} in the last {seconds:.0} s, {} in total", percent(loss_percent), percent(lost))
            }
            false => percent(lost),
        },
    );
}

/// Formats the sessions. Each takes two lines, because addresses can be long.
fn sessions(status: &Status, exit: &ExitStatus) -> String {
    exit.sessions.iter().map(|session| session_lines(status, session)).collect()
}

fn session_lines(status: &Status, session: &SessionStatus) -> String {
    let own: Vec<&ConnectionStatus> =
        status.connections.iter().filter(|connection| connection.session == Some(session.id)).collect();
    let sum = |of: fn(&Rates) -> f64| own.iter().map(|connection| of(&connection.rates)).sum::<f64>();
    let inner: Vec<&str> = [&session.ipv4, &session.ipv6].into_iter().flatten().map(String::as_str).collect();
    let remote = own.iter().find_map(|connection| connection.remote);
    let remote = remote.map(|remote| format!(" from {}", remote.ip())).unwrap_or_default();
    let carried = format!(
        "out {}, in {}; {} of {} connections attached",
        bit_rate(sum(|rates| rates.bits_per_second_out)),
        bit_rate(sum(|rates| rates.bits_per_second_in)),
        session.connections.len(),
        own.len().max(session.connections.len()),
    );
    let since = time(session.since_seconds);
    format!(
        "\n{}{}",
        hanging("", &format!("{} for {since}: {}{remote}", session.name, inner.join(", "))),
        hanging("  ", &carried)
    )
}

fn connections(status: &Status) -> String {
    if status.connections.is_empty() {
        return String::new();
    }
    let header = ["CONNECTION", "RTT", "LOSS", "MTU", "OUT", "IN", "QUEUED"];
    let rows: Vec<Vec<String>> =
        status.connections.iter().map(|connection| connection_row(status, connection)).collect();
    format!("\n{}", output::table(&header, &rows))
}

fn connection_row(status: &Status, connection: &ConnectionStatus) -> Vec<String> {
    vec![
        connection_name(status, connection),
        round_trip(connection.rtt_ms),
        percent(connection.rates.loss_percent),
        connection.mtu.to_string(),
        bit_rate(connection.rates.bits_per_second_out),
        bit_rate(connection.rates.bits_per_second_in),
        connection.queue_packets.to_string(),
    ]
}

/// Describes each connection's path.
fn paths(status: &Status) -> String {
    let lines: String = status
        .connections
        .iter()
        .map(|connection| (connection_name(status, connection), details(connection)))
        .filter(|(_, details)| !details.is_empty())
        .map(|(name, details)| hanging(&format!("  {name}  "), &details))
        .collect();
    if lines.is_empty() { lines } else { format!("\npaths\n{lines}") }
}

/// Returns a connection's number in its session, on an exit with the client's name.
pub(super) fn connection_name(status: &Status, connection: &ConnectionStatus) -> String {
    let sessions = status.exit.as_ref().map(|exit| exit.sessions.as_slice()).unwrap_or_default();
    let session = sessions.iter().find(|session| Some(session.id) == connection.session);
    match (session, connection.index) {
        (Some(session), Some(index)) => format!("{} {index}", shortened(&session.name, MOST_OF_A_NAME)),
        (None, Some(index)) => index.to_string(),
        (_, None) => "new".to_owned(),
    }
}

/// Shortens a name that is too long for its column.
fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let beginning: String = name.chars().take(most - 1).collect();
    format!("{beginning}~")
}

fn drops(status: &Status) -> String {
    // The JSON has all reasons. The text leaves out those at zero.
    let dropped = dropped_by_reason(status);
    if dropped.is_empty() {
        return "\ndropped: nothing\n".to_owned();
    }
    let width = dropped.iter().map(|(reason, _)| reason.len()).max().unwrap_or(0);
    let digits = dropped.iter().map(|(_, count)| count.to_string().len()).max().unwrap_or(0);
    let mut text = "\ndropped, by reason\n".to_owned();
    for (reason, count) in dropped {
        let meaning = DropReason::ALL.into_iter().find(|known| known.name() == reason);
        let meaning = match meaning {
            _ if reason == QUERIES => "queries to Warren's stub resolver that came while 256 others waited",
            meaning => meaning.map(DropReason::description).unwrap_or_default(),
        };
        text += &hanging(&format!("  {reason:<width$}  {count:>digits$}  "), meaning);
    }
    text
}

/// Returns the drops by reason: packets, and queries to the stub resolver.
pub(super) fn dropped_by_reason(status: &Status) -> Vec<(&str, u64)> {
    let packets = status.drops.iter().map(|(reason, count)| (reason.as_str(), *count));
    let queries = status.client.as_ref().map(|client| (QUERIES, client.dropped_queries));
    packets.chain(queries).filter(|(_, count)| *count > 0).collect()
}

/// The name under which dropped queries to the stub resolver appear among the reasons.
const QUERIES: &str = "dns_queries";

/// Formats only the changes on this host.
pub(super) fn changes(status: &Status) -> String {
    match host_changes(status) {
        none if none.is_empty() => "Nothing is changed on this host.\n".to_owned(),
        changes => changes.trim_start().to_owned(),
    }
}

fn host_changes(status: &Status) -> String {
    if status.host_changes.is_empty() {
        return String::new();
    }
    let undoing = match &status.client {
        Some(client) => format!("`warren down {}` undoes it", client.profile),
        None => "undone when the exit stops".to_owned(),
    };
    let lines = status.host_changes.iter().map(|change| hanging("  ", change));
    format!("\nchanged on this host; {undoing}\n{}", lines.collect::<String>())
}

/// Maximum length to which clients' names are shortened, so that the table keeps its columns.
const MOST_OF_A_NAME: usize = 12;
