//! `warren status`: a running daemon's state, for people or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use crate::cli::args::GlobalArgs;
use crate::cli::output;
use crate::control::{AskError, Request, ask};
use crate::daemon_dir::{self, DaemonDir};
use crate::exit_code::{ExitCode, Failure};
use crate::status::{ConnectionStatus, ExitStatus, Status};

/// Prints the status of one daemon: the one named, or the only one that runs.
///
/// # Errors
/// [`ExitCode::NotRunning`] when there is none.
pub(crate) async fn run(global: &GlobalArgs, name: Option<&str>, json: bool) -> anyhow::Result<()> {
    let (_, value) = ask_daemon(global, name, &Request::Status).await?;
    if json {
        return output::print_json(&value);
    }
    let status: Status = serde_json::from_value(value)?;
    output::print(&render(&status))
}

/// Asks the daemon that is named, or the only one that runs; returns its name and its answer.
///
/// # Errors
/// [`ExitCode::NotRunning`] when there is none, and the daemon's refusal.
pub(super) async fn ask_daemon(
    global: &GlobalArgs,
    name: Option<&str>,
    request: &Request,
) -> anyhow::Result<(String, serde_json::Value)> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => only_one(global)?,
    };
    let directory = DaemonDir::new(&global.runtime_dir, &name);
    match ask(&directory.socket(), request).await {
        Ok(value) => Ok((name, value)),
        Err(AskError::NotRunning) => Err(not_running(&directory, &name).into()),
        Err(error) => Err(error.into()),
    }
}

fn only_one(global: &GlobalArgs) -> anyhow::Result<String> {
    let all = daemon_dir::all(&global.runtime_dir)?;
    let mut running = Vec::new();
    for (name, directory) in &all {
        if directory.is_running()? {
            running.push(name.clone());
        }
    }
    match running.as_slice() {
        [name] => Ok(name.clone()),
        [] => match all.iter().find(|(_, directory)| directory.has_remains()).or(all.first()) {
            Some((name, directory)) => Err(not_running(directory, name).into()),
            None => Err(Failure::new(ExitCode::NotRunning, "neither a client nor an exit is running").into()),
        },
        several => {
            let sentence = format!("{} are running; name one", several.join(", "));
            Err(Failure::new(ExitCode::Usage, sentence).into())
        }
    }
}

/// Why a daemon does not run, as far as can be told.
fn not_running(directory: &DaemonDir, name: &str) -> Failure {
    let sentence = if directory.kill_switch().exists() {
        format!(
            "{name} is not running and its kill switch is closed; `warren up {name}` connects, `warren down {name}` opens it"
        )
    } else if directory.has_remains() {
        format!("{name} was killed and left changes on this host; undo them with `warren cleanup`")
    } else if let Some(last_words) = directory.last_words() {
        format!("{name} is not running; it ended with: {last_words}")
    } else {
        format!("{name} is not running")
    };
    Failure::new(ExitCode::NotRunning, sentence)
}

fn render(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_head(&mut text, status).and_then(|()| write_counters(&mut text, status));
    text
}

fn write_head(text: &mut String, status: &Status) -> std::fmt::Result {
    let since = humantime::format_duration(whole_seconds(status.since_seconds));
    if let Some(client) = &status.client {
        writeln!(text, "{}: {} for {since}", client.profile, status.state.name())?;
        let address = client.exit.address.map(|address| format!(" ({address})")).unwrap_or_default();
        writeln!(text, "  exit         {}{address}", client.exit.endpoint)?;
        if let Some(session) = &client.session {
            let addresses: Vec<&str> =
                [&session.ipv4, &session.ipv6].into_iter().flatten().map(String::as_str).collect();
            writeln!(text, "  addresses    {}", addresses.join(", "))?;
        }
        if let Some(error) = &client.error {
            writeln!(text, "  error        {error}")?;
        }
        if let Some(error) = &client.last_error {
            writeln!(text, "  last error   {error}")?;
        }
        if client.kill_switch {
            writeln!(text, "  kill switch  closed")?;
        }
        if let Some(error) = &client.reload_error {
            writeln!(text, "  reload       {error}")?;
        }
        if client.reconnects > 0 {
            writeln!(text, "  reconnects   {}", client.reconnects)?;
        }
    }
    if let Some(exit) = &status.exit {
        writeln!(text, "exit: {} for {since}", status.state.name())?;
        let listen: Vec<String> = exit.listen.iter().map(ToString::to_string).collect();
        writeln!(text, "  listening    UDP {}", listen.join(", "))?;
        writeln!(text, "  public key   {}", exit.public_key)?;
        writeln!(
            text,
            "  clients      {} enrolled, {} connected",
            exit.clients.enrolled, exit.clients.connected
        )?;
        writeln!(text, "  strangers    {}", strangers(exit))?;
        if let Some(error) = &exit.reload_error {
            writeln!(text, "  reload       {error}")?;
        }
    }
    if let Some(device) = &status.device {
        let offload = if device.offload { ", offload on" } else { "" };
        writeln!(text, "  device       {}, MTU {}{offload}", device.name, device.mtu)?;
    }
    if let Some(exit) = &status.exit {
        let rows = exit.sessions.iter().map(|session| {
            let indices: Vec<String> = session.connections.iter().map(ToString::to_string).collect();
            vec![
                session.name.clone(),
                session.ipv4.clone().unwrap_or_default(),
                session.ipv6.clone().unwrap_or_default(),
                humantime::format_duration(whole_seconds(session.since_seconds)).to_string(),
                indices.join(" "),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            write!(text, "\n{}", output::table(&["SESSION", "IPV4", "IPV6", "SINCE", "CONNECTIONS"], &rows))?;
        }
    }
    Ok(())
}

fn write_counters(text: &mut String, status: &Status) -> std::fmt::Result {
    let rows: Vec<Vec<String>> =
        status.connections.iter().map(|connection| connection_row(status, connection)).collect();
    if !rows.is_empty() {
        let header = ["CONNECTION", "REMOTE", "RTT", "MTU", "OUT", "IN", "LOST", "QUEUED"];
        write!(text, "\n{}", output::table(&header, &rows))?;
    }
    let total = |name: &str| status.totals.get(name).copied().unwrap_or_default();
    writeln!(
        text,
        "\nsent      {} packets, {}\nreceived  {} packets, {}",
        total("carrier_sent_packets"),
        bytes(total("tun_read_bytes")),
        total("tun_written_packets"),
        bytes(total("tun_written_bytes")),
    )?;
    let dropped: Vec<String> = status
        .drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
    writeln!(text, "dropped   {dropped}")?;
    writeln!(
        text,
        "process   {} KiB, {} threads, {} descriptors",
        status.process.rss_kib, status.process.threads, status.process.fds
    )
}

/// What who does not know the exit gets, and what was turned away.
fn strangers(exit: &ExitStatus) -> String {
    let mut text = if exit.silent { "no answer".to_owned() } else { "answered".to_owned() };
    for (reason, count) in exit.strangers.iter().filter(|(_, count)| **count > 0) {
        text += &format!(", {reason} {count}");
    }
    text
}

fn connection_row(status: &Status, connection: &ConnectionStatus) -> Vec<String> {
    let sessions = status.exit.as_ref().map(|exit| exit.sessions.as_slice()).unwrap_or_default();
    let session = sessions.iter().find(|session| Some(session.id) == connection.session);
    let index = match (session, connection.index) {
        (Some(session), Some(index)) => format!("{} {index}", session.name),
        (None, Some(index)) => index.to_string(),
        (_, None) => "not attached".to_owned(),
    };
    vec![
        index,
        connection.remote.map(|remote| remote.to_string()).unwrap_or_default(),
        format!("{:.1} ms", connection.rtt_ms),
        connection.mtu.to_string(),
        bytes(connection.bytes_out),
        bytes(connection.bytes_in),
        connection.lost_packets.to_string(),
        connection.queue_packets.to_string(),
    ]
}

/// A time as people say it; what is no time at all is none.
fn whole_seconds(seconds: f64) -> Duration {
    Duration::from_secs(Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs())
}

/// A number of bytes with a decimal unit, as link speeds are said.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_decimal_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(2_340_000_000), "2.3 GB");
    }
}
