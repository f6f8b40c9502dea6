//! Computes the lines on the terminal from the history and the terminal's size.

use super::super::condition::details;
use super::super::layout::hanging_within;
use super::super::report::{connection_name, headline, moving};
use super::super::units::{bit_rate, bytes, percent, round_trip};
use super::history::{History, Series};
use super::sparkline::{Bars, sparkline};
use warren_config::counted;
use warren_control::status::{ConnectionStatus, State, Status};

/// The size of the terminal, and its capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) bars: Bars,
    pub(super) colour: bool,
}

/// The lines to show. There are at most as many as the terminal has rows, and each has at most as many characters as the terminal
/// has columns. Escape sequences for bold and colour do not count.
pub(super) fn screen(history: &History, notice: Option<&str>, look: Look) -> Vec<String> {
    let Some(status) = history.status() else { return Vec::new() };
    let mut lines = vec![paint(&cut(&headline(status), look), tone(status.state), look)];
    lines.extend(facts(status).iter().flat_map(|(label, fact)| wrapped(label, fact, look)));
    let (out, into) = history.rates();
    lines.push(String::new());
    lines.push(total("out", out, look));
    lines.push(total("in", into, look));
    lines.push(String::new());
    // The lines at the bottom are always shown. The parts above share the remaining rows.
    let ending = ending(status, notice, look);
    let room = look.rows.saturating_sub(lines.len() + ending.len());
    lines.extend(connections(history, status, room, look));
    let room = look.rows.saturating_sub(lines.len() + ending.len());
    lines.extend(paths(status, room, look));
    let above = look.rows.saturating_sub(ending.len());
    lines.truncate(above);
    lines.resize(above, String::new());
    lines.extend(ending);
    // On a terminal with very few rows, even the lines at the bottom may not fit.
    lines.truncate(look.rows);
    lines
}

/// Further facts, each with its label.
fn facts(status: &Status) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(client) = &status.client {
        let session = client.session.as_ref();
        let addresses = session.map(|session| [&session.ipv4, &session.ipv6]).into_iter().flatten().flatten();
        let addresses: Vec<&str> = addresses.map(String::as_str).collect();
        let device = status.device.as_ref().map(|device| format!(", MTU {}", device.mtu));
        let device = device.unwrap_or_default();
        lines.push(("exit ", format!("{}  {}{device}", client.exit.endpoint, addresses.join(", "))));
        lines.extend(moving(client).map(|moving| ("moving ", moving)));
        lines.extend(client.refused.as_ref().map(|refused| ("refused: ", refused.message.clone())));
        lines.extend(client.error.as_ref().map(|error| ("error: ", error.clone())));
        lines.extend(client.last_error.as_ref().map(|error| ("last error: ", error.clone())));
    }
    if let Some(exit) = &status.exit {
        let counts = &exit.clients;
        lines.push((
            "",
            format!("{} enrolled, {} connected", counted(counts.enrolled, "client"), counts.connected),
        ));
    }
    lines
}

/// Draws the rate of all connections in one direction, across the whole width.
fn total(label: &str, series: &Series, look: Look) -> String {
    let value = bit_rate(series.last());
    let width = look.columns.saturating_sub(LABEL + RATE + 1);
    let line = sparkline(series.values(), width, 0.0, look.bars);
    cut(&format!("{label:<LABEL$}{line} {value:>RATE$}"), look)
}

/// Returns a header, and a line for each connection. If not all fit, the last line counts the others.
fn connections(history: &History, status: &Status, room: usize, look: Look) -> Vec<String> {
    let mut shown: Vec<(String, &ConnectionStatus)> = status
        .connections
        .iter()
        .map(|connection| (connection_name(status, connection), connection))
        .collect();
    // Sorted by length first, so that "laptop 2" comes before "laptop 10".
    shown.sort_by(|(one, _), (other, _)| one.len().cmp(&other.len()).then_with(|| one.cmp(other)));
    let name = shown.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(LABEL - 1);
    // Three bar charts share the width that names and values leave.
    let values = [RATE, ROUND_TRIP, LOSS];
    let taken = name + values.iter().sum::<usize>() + 3 * 3;
    let width = look.columns.saturating_sub(taken) / 3;
    let header = header(width);
    let mut lines = vec![paint(&cut(&format!("{:<name$}{header}", ""), look), Tone::Strong, look)];
    let fits = room.saturating_sub(1);
    // If not all connections fit, the last row is used for the number of hidden ones.
    let (shown, hidden) = match shown.len() > fits {
        true => shown.split_at(fits.saturating_sub(1)),
        false => (shown.as_slice(), [].as_slice()),
    };
    for (label, connection) in shown {
        let history = history.connection(connection.id);
        let bars = |of: Option<&Series>, full: f64| match of {
            Some(series) => sparkline(series.values(), width, full, look.bars),
            None => " ".repeat(width),
        };
        let rate = history.map(|history| &history.rate);
        let loss = history.map(|history| &history.loss_percent);
        let line = format!(
            "{label:<name$}  {} {:>RATE$}  {} {:>ROUND_TRIP$}  {} {:>LOSS$}",
            bars(rate, 0.0),
            bit_rate(rate.map(Series::last).unwrap_or_default()),
            bars(history.map(|history| &history.rtt_ms), 0.0),
            round_trip(connection.rtt_ms),
            bars(loss, FULL_LOSS),
            percent(loss.map(Series::last).unwrap_or_default()),
        );
        lines.push(cut(&line, look));
    }
    if !hidden.is_empty() {
        lines.push(cut(&format!("and {} more, which do not fit the terminal", hidden.len()), look));
    }
    lines
}

/// Returns the column titles, each above its chart and value, even if the charts are narrow.
fn header(width: usize) -> String {
    let column = |title: &str, value: usize| format!("  {title:<0$}", width + 1 + value);
    [("RATE, BOTH WAYS", RATE), ("RTT", ROUND_TRIP), ("LOSS", LOSS)]
        .into_iter()
        .map(|(title, value)| column(title, value))
        .collect()
}

/// Returns the description of each path, after an empty line. Paths with the same description share a line. Empty if the
/// descriptions do not all fit.
fn paths(status: &Status, room: usize, look: Look) -> Vec<String> {
    let mut named: Vec<(String, Vec<String>)> = Vec::new();
    for connection in &status.connections {
        let (name, words) = (connection_name(status, connection), details(connection));
        match named.iter_mut().find(|(known, _)| *known == words) {
            Some((_, names)) => names.push(name),
            None => named.push((words, vec![name])),
        }
    }
    named.retain(|(words, _)| !words.is_empty());
    let mut lines = vec![String::new()];
    for (words, names) in named {
        let narrower = Look { columns: look.columns.saturating_sub(PATH_INDENT), ..look };
        let path = wrapped("", &format!("{}: {words}", names.join(", ")), narrower);
        let indents = std::iter::once(0).chain(std::iter::repeat(PATH_INDENT));
        let indented = path.iter().zip(indents).map(|(line, indent)| format!("{:indent$}{line}", ""));
        lines.extend(indented.map(|line| cut(&line, look)));
    }
    if lines.len() == 1 || lines.len() > room {
        return Vec::new();
    }
    lines
}

/// The lines at the bottom.
fn ending(status: &Status, notice: Option<&str>, look: Look) -> Vec<String> {
    let dropped: Vec<String> = status
        .drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let dropped = if dropped.is_empty() { "nothing".to_owned() } else { dropped.join(", ") };
    let total = |name: &str| bytes(status.totals.get(name).copied().unwrap_or_default());
    let carried = format!("total out {}, in {}", total("tun_read_bytes"), total("tun_written_bytes"));
    let mut lines = wrapped("dropped: ", &dropped, look);
    lines.truncate(MOST_LINES_OF_DROPS);
    lines.push(cut(&format!("{carried}    q ends"), look));
    lines.extend(notice.map(|notice| paint(&cut(notice, look), Tone::Bad, look)));
    lines
}

/// How a line is highlighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Strong,
    Good,
    Bad,
}

fn tone(state: State) -> Tone {
    match state {
        State::Up => Tone::Good,
        State::Connecting
        | State::Reconnecting
        | State::Resting
        | State::Refused
        | State::Error
        | State::Stopping => Tone::Bad,
    }
}

/// Adds the escape sequences of ECMA-48 for colour and bold.
fn paint(line: &str, tone: Tone, look: Look) -> String {
    let code = match (tone, look.colour) {
        (Tone::Strong, _) | (_, false) => "1",
        (Tone::Good, true) => "1;32",
        (Tone::Bad, true) => "1;31",
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}

/// Returns `text` after `label`, on as many lines as necessary. Control characters, which could control the terminal, become
/// spaces.
fn wrapped(label: &str, text: &str, look: Look) -> Vec<String> {
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    // `hanging_within` does not break a word that is longer than a line, so such lines are truncated here.
    hanging_within(look.columns, label, &text).lines().map(|line| cut(line, look)).collect()
}

/// Truncates a line to the terminal's width and removes control characters.
fn cut(line: &str, look: Look) -> String {
    line.chars()
        .filter(|letter| !letter.is_control())
        .take(look.columns)
        .collect::<String>()
        .trim_end()
        .to_owned()
}

const LABEL: usize = 4;
/// The indentation of a path's second and further lines.
const PATH_INDENT: usize = 4;
/// Maximum number of lines for drop reasons, because a terminal has few rows.
const MOST_LINES_OF_DROPS: usize = 3;
/// The width of a rate, such as `999.9 Mbit/s`.
const RATE: usize = 12;
/// The width of a round-trip time, such as `1234.5 ms`.
const ROUND_TRIP: usize = 9;
/// The width of a loss, such as `100.0 %`.
const LOSS: usize = 7;
/// The loss in per cent that fills the height of a chart. A higher loss stretches the chart's scale.
const FULL_LOSS: f64 = 5.0;

#[cfg(test)]
mod tests;
