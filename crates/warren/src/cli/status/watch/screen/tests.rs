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

    assert!(text.contains("\n0, 2  short queue\n"), "{text}");
    let lossy = "\n1  lossy path: 1.1 % lost, 0 % after repair, short queue\n    31 repaired, 0 given up, 2 waiting\n";
    assert!(text.contains(lossy), "{text}");
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

/// The lines without their codes.
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
