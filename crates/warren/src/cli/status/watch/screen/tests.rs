use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::example;
use super::*;

#[test]
fn four_connections_fit_an_ordinary_terminal() {
    let lines = plain(&screen(&seen(4, 30), None, look(80, 24)));
    let text = lines.join("\n");

    assert_eq!(lines.len(), 24);
    assert!(lines[0].starts_with("home: up for 1m 1s, since "), "{text}");
    assert!(lines[1].contains("exit.example.net:443"), "{text}");
    assert!(lines[6].contains("RATE, BOTH WAYS") && lines[6].contains("RTT"), "{text}");
    for (row, index) in (7..11).zip(0..) {
        assert!(lines[row].starts_with(&format!("{index} ")), "{text}");
        assert!(lines[row].contains("kbit/s") && lines[row].contains("10.5 ms"), "{text}");
        assert!(lines[row].contains('█') && lines[row].ends_with('%'), "{text}");
    }
    assert!(lines[23].ends_with("q ends"), "{text}");
}

#[test]
fn connections_that_do_not_fit_are_counted() {
    let text = plain(&screen(&seen(32, 3), None, look(80, 24))).join("\n");

    assert!(text.contains("and 18 more"), "{text}");
}

#[test]
fn paths_of_the_same_words_share_a_line() {
    use warren_control::status::{ControllerStatus, RepairStatus};
    let mut status = example(&[(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
    for connection in &mut status.connections {
        connection.controller = Some(ControllerStatus::ShortQueue);
    }
    status.connections[1].repair =
        RepairStatus { is_on: true, loss_percent: 1.1, repaired: 31, waiting: 2, ..RepairStatus::default() };
    let mut history = History::default();
    history.add(Instant::now(), status);

    let text = plain(&screen(&history, None, look(80, 24))).join("\n");

    assert!(text.contains("\n0, 2: short queue\n"), "{text}");
    let lossy = "\n1: lossy path: 1.1 % lost, 0 % after repair, short queue; 31 repaired, 0\n    given up, 2 waiting\n";
    assert!(text.contains(lossy), "{text}");
}

#[test]
fn the_largest_values_and_names_fit_80_columns_below_their_titles() {
    let mut status = example(&[(0, 0, 0), (1, 0, 0)]);
    status.client = None;
    let session = |name: &str| warren_control::status::SessionStatus {
        id: 1,
        name: name.to_owned(),
        public_key: String::new(),
        ipv4: None,
        ipv6: None,
        since_seconds: 0.0,
        connections: vec![0, 1],
        has_other_exit: None,
    };
    status.exit = Some(warren_control::status::ExitStatus {
        wireguard: None,
        listen: Vec::new(),
        public_key: String::new(),
        old_public_key: None,
        clients: warren_control::status::ClientCounts { enrolled: 1, connected: 1 },
        sessions: vec![session("a-name-that-is-much-too-long")],
        silent: true,
        strangers: Default::default(),
        handshakes_in_flight: 0,
        handshakes_timed_out: 0,
        is_disk_failing: false,
        fleet: None,
    });
    let start = Instant::now();
    let mut history = History::default();
    for look in 0..3_u64 {
        for connection in &mut status.connections {
            connection.index = Some(31);
            connection.rtt_ms = 9_999.9;
            connection.bytes_out = look * 124_900_000;
            (connection.sent_packets, connection.lost_packets) = (look * 10, look * 10);
        }
        history.add(start + Duration::from_secs(look), status.clone());
    }

    let lines = plain(&screen(&history, None, look(80, 24)));

    let header = lines.iter().find(|line| line.contains("LOSS")).unwrap();
    let row = lines.iter().find(|line| line.contains("9999.9 ms")).unwrap();
    assert!(row.ends_with(" 100.0 %") && row.contains("999.2 Mbit/s"), "{row}");
    // A title begins in the same column as its chart, and so to the right of the preceding value.
    let column = |line: &str, part: &str| line[..line.find(part).unwrap()].chars().count();
    assert!(column(header, "LOSS") > column(row, "9999.9 ms"), "{header}\n{row}");
    assert!(column(header, "RTT") > column(row, "999.2 Mbit/s"), "{header}\n{row}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", lines.join("\n"));
}

#[test]
fn nothing_of_a_long_line_is_lost() {
    let mut status = example(&[(0, 0, 0)]);
    let reasons =
        ["assembly_full", "connection_lost", "invalid_packet", "no_connection", "queue_delay", "queue_full"];
    for (reason, count) in reasons.iter().zip(1_000_000_u64..) {
        status.drops.insert((*reason).to_owned(), count);
    }
    let error = "a reason with so many words that they do not fit the terminal in one line alone".to_owned();
    status.client.as_mut().unwrap().last_error = Some(error.clone());
    let mut history = History::default();
    history.add(Instant::now(), status);

    let text = plain(&screen(&history, None, look(80, 24))).join("\n");

    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&error) && reasons.iter().all(|reason| words.contains(reason)), "{text}");
}

#[test]
fn notice_stands_in_the_last_line() {
    let lines = plain(&screen(&seen(1, 2), Some("the daemon does not answer"), look(80, 24)));

    assert_eq!(lines[23], "the daemon does not answer");
}

#[test]
fn without_colour_no_colour_is_set() {
    let with = screen(&seen(1, 2), None, Look { colour: true, ..look(80, 24) }).join("");
    let without = screen(&seen(1, 2), None, look(80, 24)).join("");

    assert!(with.contains("\x1b[1;32m"), "{with}");
    assert!(!without.contains("\x1b[1;3"), "{without}");
}

#[test]
fn nothing_seen_shows_nothing() {
    assert!(screen(&History::default(), None, look(80, 24)).is_empty());
}

proptest! {
    #[test]
    fn screen_keeps_to_any_terminal(
        columns in 0_usize..300,
        rows in 0_usize..100,
        connections in 0_u64..40,
        looks in 0_u64..5,
        notice in proptest::option::of(".*"),
    ) {
        let lines = plain(&screen(&seen(connections, looks), notice.as_deref(), look(columns, rows)));

        prop_assert!(lines.len() <= rows);
        for line in lines {
            prop_assert!(line.chars().count() <= columns, "{line}");
        }
    }
}

fn look(columns: usize, rows: usize) -> Look {
    Look { columns, rows, bars: Bars::Blocks, colour: false }
}

/// Some connections, sampled several times, a second apart.
fn seen(connections: u64, looks: u64) -> History {
    let start = Instant::now();
    let mut history = History::default();
    for look in 0..looks {
        let connections: Vec<_> = (0..connections).map(|id| (id, 1_000 * look * look, look)).collect();
        history.add(start + Duration::from_secs(look), example(&connections));
    }
    history
}

/// The lines without the codes for bold and colour.
fn plain(lines: &[String]) -> Vec<String> {
    let without = |line: &String| {
        let mut text = String::new();
        let mut rest = line.as_str();
        while let Some((before, code)) = rest.split_once("\x1b[") {
            text += before;
            rest = code.split_once('m').unwrap().1;
        }
        text + rest
    };
    lines.iter().map(without).collect()
}
